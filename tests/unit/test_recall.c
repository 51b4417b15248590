/* SPDX-License-Identifier: MIT */
/* Recall: the measures against naive ones, what is dumped of tensors against what is reported, and files that
 * nobody should have written. */
#include "config.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/fidelity/recall_run.h"
#include "lens/recall_score.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "kernels/half.h"
#include "tests/tap.h"
#include "tests/unit/store_oracle.h"

enum { HEADS = 8, MAX_N = 96, DIM = 6 };

static int window0[1] = {0};

/* One layer's query, keys and values, and arrays for what is computed of them. */
typedef struct {
    attn_shape shape;
    float q[HEADS * DIM], k[HEADS * MAX_N * DIM], v[HEADS * MAX_N * DIM];
    double score[HEADS * MAX_N], share[HEADS * MAX_N], work[2 * MAX_N];
    exact_rows rows;
    exact_query x;
} scene;

static void scene_fill(scene *s, int heads, int kv_heads, int64_t n, uint64_t seed)
{
    rng r = {seed};
    memset(s, 0, sizeof *s);
    s->shape = (attn_shape){.n_layers = 1,
                            .n_heads = heads,
                            .n_kv_heads = kv_heads,
                            .head_dim = DIM,
                            .scale = (float)(1 / sqrt(DIM)),
                            .window = window0,
                            .max_positions = MAX_N};
    for (size_t i = 0; i < HEADS * DIM; i++) s->q[i] = 4 * rng_float(&r) - 2;
    for (size_t i = 0; i < HEADS * MAX_N * DIM; i++) {
        s->k[i] = 4 * rng_float(&r) - 2;
        s->v[i] = 2 * rng_float(&r) - 1;
    }
    s->rows = (exact_rows){.shape = &s->shape, .k = s->k, .v = s->v, .cap = MAX_N, .n = n};
    s->x = (exact_query){.rows = &s->rows, .q = s->q, .score = s->score, .share = s->share};
}

/* scale * q.k in double, from the definition. */
static double logit(const scene *s, int h, int64_t i)
{
    double sum = 0;
    int kv = h / (s->shape.n_heads / s->shape.n_kv_heads);
    for (int c = 0; c < DIM; c++) sum += (double)s->q[h * DIM + c] * (double)s->k[(kv * MAX_N + i) * DIM + c];
    return (double)s->shape.scale * sum;
}

/* Combines the scores of the heads [from, to) at position i by the gqa rule, among candidates [lo, hi). */
static double combined(const scene *s, int from, int to, gqa_mode gqa, int64_t lo, int64_t hi, int64_t i)
{
    double all = gqa == GQA_MAX_S ? -1e300 : 0;
    for (int h = from; h < to; h++) {
        double sum = 0, x = logit(s, h, i);
        for (int64_t j = lo; j < hi; j++) sum += exp(logit(s, h, j));
        if (gqa == GQA_VOTE || gqa == GQA_LAYER_VOTE) x = exp(x) / sum;
        all = gqa == GQA_MAX_S ? fmax(all, x) : all + x;
    }
    return all;
}

/* Sorts the candidates by score, those that were selected first among equals; counts the selected ones among
 * the first k. */
static double naive_recall(const double *score, const bool *in, int64_t lo, int64_t hi)
{
    int64_t order[MAX_N], n = 0, k = 0, found = 0;
    for (int64_t i = lo; i < hi; i++) {
        int64_t at = n++;
        for (; at > 0; at--) {
            int64_t o = order[at - 1];
            if (score[o] > score[i] || (score[o] == score[i] && in[o] >= in[i])) break;
            order[at] = o;
        }
        order[at] = i;
        k += in[i];
    }
    for (int64_t i = 0; i < k; i++) found += in[order[i]];
    return k == 0 ? 1 : (double)found / (double)k;
}

static void heads_of(const scene *s, int head, gqa_mode gqa, int *from, int *to)
{
    int group = s->shape.n_heads / s->shape.n_kv_heads;
    *from = gqa == GQA_PER_Q ? head : gqa >= GQA_LAYER_MEAN ? 0 : head / group * group;
    *to = gqa == GQA_PER_Q ? head + 1 : gqa >= GQA_LAYER_MEAN ? s->shape.n_heads : *from + group;
}

/* A random choice of about `part` of the candidates, with all that is forced. */
static void choose(rng *r, exact_choice *c, int64_t *pos, bool *in, int64_t first, int64_t n, float part)
{
    memset(in, 0, MAX_N * sizeof *in);
    c->pos = pos;
    c->n = 0;
    for (int64_t i = first; i < n; i++)
        if (i < c->head_end || i >= c->tail || rng_float(r) < part) in[pos[c->n++] = i] = true;
}

/* ---- measures ---- */

static void test_recall(void)
{
    static const int groups[] = {1, 2, 3, 4, 7, 8};
    static scene s;
    rng r = {7};
    double worst = 0;
    int n_checks = 0;
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (int gqa = 0; gqa < GQA_COUNT; gqa++)
            for (int trial = 0; trial < 12; trial++, n_checks++) {
                int kv = HEADS / groups[g], head = 0, from, to;
                int64_t pos[MAX_N], n = 2 + (int64_t)(rng_float(&r) * 60);
                bool in[MAX_N];
                scene_fill(&s, groups[g] * kv, kv, n, (uint64_t)n_checks);
                head = (int)(rng_float(&r) * (float)s.shape.n_heads);
                s.x.first = trial % 3 == 2 ? n / 4 : 0;
                exact_choice c = {.gqa = (gqa_mode)gqa, .head_end = trial % 4, .tail = n - 1 - trial % 2};
                choose(&r, &c, pos, in, s.x.first, n, (float)(trial % 5) / 4);
                exact_fill(&s.x);
                int64_t lo = c.head_end > s.x.first ? c.head_end : s.x.first;
                double score[MAX_N] = {0};
                heads_of(&s, head, c.gqa, &from, &to);
                for (int64_t i = lo; i < c.tail; i++) score[i] = combined(&s, from, to, c.gqa, lo, c.tail, i);
                double d = fabs(exact_recall(&s.x, head, &c, s.work) - naive_recall(score, in, lo, c.tail));
                worst = fmax(worst, d);
            }
    ok(worst < 1e-12, "recall is the naive one in %d scenes (differs by %g)", n_checks, worst);
}

/* Keys that repeat: any of equal scores may be taken, but no more than there is room for. */
static void test_ties(void)
{
    static scene s;
    rng r = {3};
    bool same = true;
    for (int trial = 0; trial < 200; trial++) {
        int64_t pos[MAX_N], n = 30;
        bool in[MAX_N];
        double score[MAX_N];
        scene_fill(&s, 1, 1, n, 5);
        for (int64_t i = 0; i < n; i++)
            for (int c = 0; c < DIM; c++) s.k[i * DIM + c] = s.k[i % 3 * DIM + c];
        exact_fill(&s.x);
        exact_choice c = {.gqa = GQA_PER_Q, .tail = n};
        choose(&r, &c, pos, in, 0, n, 0.4f);
        for (int64_t i = 0; i < n; i++) score[i] = logit(&s, 0, i % 3);
        same &= fabs(exact_recall(&s.x, 0, &c, s.work) - naive_recall(score, in, 0, n)) < 1e-12;
    }
    ok(same, "of three repeated keys: as with the friendliest order of equals");

    scene_fill(&s, 1, 1, 3, 1);
    memset(s.k, 0, sizeof s.k);
    s.q[0] = 1;
    s.k[0] = 2; /* position 0 is best, 1 and 2 are equal */
    exact_fill(&s.x);
    const int64_t both[] = {1, 2}, good[] = {0, 2};
    exact_choice c = {.pos = both, .n = 2, .gqa = GQA_PER_Q, .tail = 3};
    ok(exact_recall(&s.x, 0, &c, s.work) == 0.5, "two equals instead of the best: one of them counts");
    c.pos = good;
    ok(exact_recall(&s.x, 0, &c, s.work) == 1, "the best and either of the equals: all found");
    memset(s.k, 0, sizeof s.k);
    exact_fill(&s.x);
    c.pos = both;
    ok(exact_recall(&s.x, 0, &c, s.work) == 1, "constant keys: any choice is right");
    c.n = 0;
    ok(exact_recall(&s.x, 0, &c, s.work) == 1, "nothing to choose");
    c = (exact_choice){.pos = both, .n = 2, .gqa = GQA_PER_Q, .head_end = 2, .tail = 2};
    ok(exact_recall(&s.x, 0, &c, s.work) == 1, "everything is forced");
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-6 * (1 + fabs(b));
}

/* Attention of one head over the positions that `in` holds, in double. */
static void naive_output(const scene *s, int h, int64_t first, const bool *in, double out[DIM], double *mass)
{
    double sum = 0, all = 0;
    int kv = h / (s->shape.n_heads / s->shape.n_kv_heads);
    memset(out, 0, DIM * sizeof *out);
    for (int64_t i = first; i < s->rows.n; i++) {
        double w = exp(logit(s, h, i));
        all += w;
        if (!in[i]) continue;
        sum += w;
        for (int c = 0; c < DIM; c++) out[c] += w * (double)s->v[(kv * MAX_N + i) * DIM + c];
    }
    for (int c = 0; c < DIM; c++) out[c] /= sum;
    *mass = sum / all;
}

static void test_mass_and_error(void)
{
    static scene s;
    rng r = {11};
    bool mass_ok = true, error_ok = true, without_ok = true;
    for (int trial = 0; trial < 60; trial++) {
        int64_t pos[MAX_N], n = 2 + trial;
        bool in[MAX_N], all[MAX_N], kept[MAX_N], both[MAX_N];
        double exact[DIM], part[DIM], mass, one;
        int kv = 1 + trial % 2, heads = kv * (1 + trial % 4), h = trial % heads;
        scene_fill(&s, heads, kv, n, (uint64_t)trial);
        s.x.first = trial % 3 == 0 ? n / 3 : 0;
        exact_fill(&s.x);
        exact_choice c = {.tail = n - 1};
        choose(&r, &c, pos, in, s.x.first, n, 0.3f);
        for (int64_t i = 0; i < n; i++) {
            all[i] = true;
            kept[i] = i == n - 1 || i % 3 == 1;
            both[i] = kept[i] && in[i];
        }
        naive_output(&s, h, s.x.first, all, exact, &one);
        naive_output(&s, h, s.x.first, in, part, &mass);
        mass_ok &= near(exact_mass(&s.x, h, &c), mass);
        double d2 = 0, n2 = 0, d1 = 0, n1 = 0;
        float out[DIM];
        for (int k = 0; k < DIM; k++) {
            out[k] = (float)part[k];
            d2 += pow(part[k] - exact[k], 2);
            n2 += pow(exact[k], 2);
            d1 += fabs(part[k] - exact[k]);
            n1 += fabs(exact[k]);
        }
        exact_diff e = exact_error(&s.x, h, out);
        error_ok &= fabs(e.l2 - sqrt(d2 / n2)) < 1e-5 && fabs(e.l1 - d1 / n1) < 1e-5;
        naive_output(&s, h, s.x.first, both, part, &mass);
        for (int k = 0; k < DIM; k++) out[k] = (float)part[k];
        exact_diff want = exact_error(&s.x, h, out), got = exact_without(&s.x, h, &c, kept);
        without_ok &= fabs(got.l2 - want.l2) < 1e-5 && fabs(got.l1 - want.l1) < 1e-5;
    }
    ok(mass_ok, "mass is the share of the softmax");
    ok(error_ok, "errors are relative norms of the difference");
    ok(without_ok, "errors without the tokens in codes: attention over what is left");
    scene_fill(&s, 1, 1, 4, 1);
    memset(s.v, 0, sizeof s.v);
    exact_fill(&s.x);
    float zero[DIM] = {0};
    exact_diff none = exact_error(&s.x, 0, zero);
    ok(none.l2 == 0 && none.l1 == 0, "values of zero are no division by it");
}

/* Distances of attention distributions, from the definition: over all visible positions, with other keys. */
static void test_distances(void)
{
    static scene s;
    static float held[HEADS * MAX_N * DIM];
    rng r = {13};
    bool identity = true, other = true, zero = true, covers = true;
    for (int trial = 0; trial < 40; trial++) {
        int64_t pos[MAX_N], n = 3 + trial, count;
        bool in[MAX_N], kept[MAX_N];
        int kv = 1 + trial % 2, heads = kv * (1 + trial % 4), h = trial % heads, of = h / (heads / kv);
        scene_fill(&s, heads, kv, n, (uint64_t)trial);
        s.x.first = trial % 3 == 0 ? n / 3 : 0;
        exact_fill(&s.x);
        exact_choice c = {.tail = n - 1};
        choose(&r, &c, pos, in, s.x.first, n, 0.4f);
        for (int64_t i = 0; i < n; i++) kept[i] = i == n - 1 || i % 3 == 1;
        const double *p = s.x.share + h * MAX_N;
        double left = 0, cover = 0, top = 0, sum = 0, want = 0, y[MAX_N];
        int64_t n_cover = 0;
        for (int64_t i = s.x.first; i < n; i++) {
            if (!in[i] || !kept[i]) continue;
            left += p[i];
            if (i < 2) continue;
            cover += p[i];
            n_cover++;
        }
        identity &= near(exact_distance(&s.x, h, &c, kept, NULL), 2 * (1 - left));
        covers &= near(exact_covered(&s.x, h, &c, kept, &count), cover) && count == n_cover;
        /* Selected positions are visible through other keys; unselected ones get none of the softmax. */
        for (size_t i = 0; i < HEADS * MAX_N * DIM; i++) held[i] = roundf(s.k[i]);
        for (int64_t i = s.x.first; i < n; i++) {
            y[i] = 0;
            for (int d = 0; d < DIM && in[i]; d++)
                y[i] += (double)s.q[h * DIM + d] * (double)held[(of * MAX_N + i) * DIM + d];
            y[i] = in[i] ? exp((double)s.shape.scale * y[i]) : 0;
            sum += y[i];
        }
        for (int64_t i = s.x.first; i < n; i++) want += fabs(p[i] - y[i] / sum);
        other &= near(exact_distance(&s.x, h, &c, NULL, held), want);
        for (int64_t i = s.x.first; i < n; i++) top += p[i];
        c.pos = pos, c.n = 0;
        for (int64_t i = s.x.first; i < n; i++) pos[c.n++] = i;
        zero &= exact_distance(&s.x, h, &c, NULL, NULL) < 1e-9 && near(top, 1);
    }
    ok(identity, "dropping tokens is twice the mass of what is gone, whatever it is");
    ok(other, "over other keys: the sum of the differences");
    ok(zero, "everything, exactly: no distance");
    ok(covers, "what exact tokens cover: without tokens 0 and 1");
    /* (.5 .1 .2 .2) without the first two: 1.2 */
    scene_fill(&s, 1, 1, 4, 1);
    const double some[] = {.5, .1, .2, .2};
    const bool last[] = {false, false, true, true};
    const int64_t four[] = {0, 1, 2, 3};
    memcpy(s.share, some, sizeof some);
    for (int i = 0; i < 4; i++) s.score[i] = log(some[i]);
    double d = exact_distance(&s.x, 0, &(exact_choice){.pos = four, .n = 4, .tail = 3}, last, NULL);
    ok(fabs(d - 1.2) < 1e-12, ".5 .1 .2 .2 without the first two: %g", d);
}

/* Which tokens a store with codes holds exactly: the closed forms of methods.md 10.3 and 11.3. */
static void test_exact_tokens(void)
{
    err e = {0};
    bool exact[MAX_N], right = true;
    kv_format f;
    is_ok(kv_format_parse(&f, "kivi2:r=16:g=8", "--kv", &e), &e, "a format");
    for (int64_t n = 0; n < MAX_N && right; n++) {
        right &= kv_float_tokens(&f, n, n, exact, &e) == ST_OK;
        for (int64_t i = 0; i < n; i++) right &= exact[i] == (i >= n - 16);
    }
    ok(right, "kivi: the newest r have an exact value, whatever their keys");
    is_ok(kv_format_parse(&f, "f16", "--kv", &e), &e, "another");
    right = kv_float_tokens(&f, MAX_N, MAX_N, exact, &e) == ST_OK;
    for (int64_t i = 0; i < MAX_N; i++) right &= exact[i];
    ok(right, "f16: all tokens");
    is_ok(kv_format_parse(&f, "logquant:r=12:g=8", "--kv", &e), &e, "a third");
    for (int64_t n = 1; n < MAX_N; n++) {
        naive *m = naive_new(&f, n);
        right &= kv_float_tokens(&f, n, n, exact, &e) == ST_OK;
        for (int64_t i = 0; i < n; i++) right &= exact[i] == (m->group[KV_K][i] < 0);
        free(m);
    }
    ok(right, "logquant: the list and what waits for its group");
    is_ok(kv_format_parse(&f, "hf2:r=8:sink_fp=2", "--kv", &e), &e, "a fourth");
    for (int64_t t = 0; t < 20; t++)
        for (int64_t n = t; n < MAX_N; n++) {
            unsigned char fed_as[MAX_N] = {0};
            memset(fed_as, FED_PROMPT, (size_t)t);
            if (t) fed_as[t - 1] = FED_END;
            naive *m = naive_fed(&f, n, fed_as);
            right &= kv_float_tokens(&f, t, n, exact, &e) == ST_OK;
            for (int64_t i = 0; i < n; i++) right &= exact[i] == (m->group[KV_K][i] < 0);
            free(m);
        }
    ok(right, "hf: first tokens, and what was fed since the last flush");
    is_ok(kv_format_parse(&f, "logquant:r=12:g=8", "--kv", &e), &e, "the third again");
    for (long k = 1; k <= 4; k++) {
        mem_test_fail_at(k);
        right &= kv_float_tokens(&f, 50, 50, exact, NULL) == ST_NOMEM;
    }
    mem_test_fail_at(0);
    ok(right, "every allocation may fail");
}

/* ---- tensors ---- */

/* A file in memory. */
typedef struct {
    uint8_t *p;
    size_t size;
} blob;

typedef struct {
    const char *name, *type;
    size_t shape[4];
    int rank;
    const float *x; /* NULL: zeros */
} tensor;

static size_t type_size(const char *type)
{
    return strcmp(type, "F32") == 0 || strcmp(type, "I32") == 0 ? 4 : 2;
}

static size_t n_elements(const tensor *t)
{
    size_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

static void put_element(uint8_t *to, const char *type, float x)
{
    uint16_t h = strcmp(type, "F16") == 0 ? f32_to_f16(x) : f32_to_bf16(x);
    if (type_size(type) == 4) memcpy(to, &x, 4);
    else memcpy(to, &h, 2);
}

static blob make_file(const tensor *t, int n)
{
    char header[1024] = "{";
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        size_t len = strlen(header), bytes = n_elements(&t[i]) * type_size(t[i].type);
        char shape[96] = "";
        for (int k = 0; k < t[i].rank; k++)
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%zu", k ? "," : "", t[i].shape[k]);
        snprintf(header + len, sizeof header - len,
                 "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", i ? "," : "", t[i].name,
                 t[i].type, shape, at, at + bytes);
        at += bytes;
    }
    strcat(header, "}");
    uint64_t len = strlen(header);
    blob b = {calloc(8 + len + at, 1), 8 + len + at};
    if (!b.p) exit(1);
    for (int i = 0; i < 8; i++) b.p[i] = (uint8_t)(len >> (8 * i));
    memcpy(b.p + 8, header, len);
    uint8_t *data = b.p + 8 + len;
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < n_elements(&t[i]); k++, data += type_size(t[i].type))
            if (t[i].x) put_element(data, t[i].type, t[i].x[k]);
    return b;
}

/* Runs one strategy; lines of the dump in *lines if it is not NULL. */
static status run_tensors(const char *attn, int64_t budget, const char *kv, blob b, recall_tensors *job,
                          recall_run *run, json_t **lines, err *e)
{
    static backend *be;
    attn_options o = {.budget = budget};
    backend_options bo = {.device = "cpu", .n_threads = 1};
    if (!be) TRY(backend_open(&be, &bo, e));
    TRY(kv_format_parse(&o.kv, kv, "--kv", e));
    TRY(attn_spec_parse(&run->spec, attn, &o, e));
    FILE *dump = lines ? tmpfile() : NULL;
    if (lines && !dump) exit(1);
    *job = (recall_tensors){.be = be, .path = "test", .data = b.p, .size = b.size, .dump = dump};
    status st = recall_on_tensors(job, run, 1, e);
    if (!lines) return st;
    *lines = json_array();
    rewind(dump);
    for (json_t *line; (line = json_loadf(dump, JSON_DISABLE_EOF_CHECK, NULL));) json_array_append_new(*lines, line);
    fclose(dump);
    return st;
}

/* The dump's list for a query and a head; NULL: there is none, or two. */
static const json_t *list_of(const json_t *lines, int64_t query, int head, int group)
{
    const json_t *found = NULL, *o;
    size_t i;
    json_array_foreach(lines, i, o)
    {
        const json_t *h = json_object_get(o, "head"), *kv = json_object_get(o, "kv_head");
        if (json_integer_value(json_object_get(o, "query")) != query) continue;
        bool mine =
            h ? json_integer_value(h) == head : json_integer_value(kv) == -1 || json_integer_value(kv) == head / group;
        if (mine && found) return NULL;
        if (mine) found = json_object_get(o, "positions");
    }
    return found;
}

enum { M = 3, N = 90 };

/* A file of one scene for M queries: q of query i is that of the scene times (i + 1) / M. */
static blob scene_file(const scene *s, bool with_v, const char *type)
{
    static float q[HEADS * M * DIM], k[HEADS * N * DIM], v[HEADS * N * DIM];
    size_t heads = (size_t)s->shape.n_heads, kv = (size_t)s->shape.n_kv_heads;
    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < M; i++)
            for (size_t c = 0; c < DIM; c++) q[(h * M + i) * DIM + c] = s->q[h * DIM + c] * (float)(i + 1) / M;
    for (size_t h = 0; h < kv; h++) {
        memcpy(k + h * N * DIM, s->k + h * MAX_N * DIM, N * DIM * sizeof *k);
        memcpy(v + h * N * DIM, s->v + h * MAX_N * DIM, N * DIM * sizeof *v);
    }
    const tensor t[] = {
        {"q", type, {heads, M, DIM}, 3, q}, {"k", type, {kv, N, DIM}, 3, k}, {"v", type, {kv, N, DIM}, 3, v}};
    return make_file(t, with_v ? 3 : 2);
}

/* The sums of a run against what follows from its dump; forced: positions that are always attended. */
static bool dump_agrees(const recall_run *run, const json_t *lines, scene *s, int64_t forced_head, int64_t forced_tail)
{
    int group = s->shape.n_heads / s->shape.n_kv_heads, from, to;
    float q[HEADS * DIM];
    bool right = true;
    memcpy(q, s->q, sizeof q);
    for (int h = 0; h < s->shape.n_heads; h++) {
        double recall = 0, mass = 0, error = 0, selected = 0;
        for (int64_t i = 0; i < M; i++) {
            for (int c = 0; c < HEADS * DIM; c++) s->q[c] = q[c] * (float)(i + 1) / M;
            const json_t *list = list_of(lines, i, h, group);
            if (!list) return false;
            bool in[MAX_N] = {false}, all[MAX_N];
            double score[MAX_N] = {0}, out[DIM], exact[DIM], m, one, d2 = 0, n2 = 0;
            int64_t last = -1;
            for (size_t k = 0; k < json_array_size(list); k++) {
                int64_t p = json_integer_value(json_array_get(list, k));
                right &= p > last && p < N;
                in[last = p] = true;
            }
            memset(all, 1, sizeof all);
            right &= last == N - 1; /* the current token */
            gqa_mode gqa = attn_gqa(&run->spec);
            heads_of(s, h, gqa, &from, &to);
            for (int64_t p = forced_head; p < forced_tail; p++)
                score[p] = combined(s, from, to, gqa, forced_head, forced_tail, p);
            recall += naive_recall(score, in, forced_head, forced_tail);
            naive_output(s, h, 0, in, out, &m);
            naive_output(s, h, 0, all, exact, &one);
            for (int c = 0; c < DIM; c++) {
                d2 += pow(out[c] - exact[c], 2);
                n2 += pow(exact[c], 2);
            }
            mass += m;
            error += sqrt(d2 / n2);
            selected += (double)json_array_size(list);
        }
        right &= near(run->sum[SUM_RECALL][h], recall) && near(run->sum[SUM_MASS][h], mass) &&
                 fabs(run->sum[SUM_ERROR][h] - error) < 1e-4 && run->sum[SUM_SELECTED][h] == selected;
    }
    memcpy(s->q, q, sizeof q);
    return right && run->n_queries == M;
}

static void test_tensors(void)
{
    static const struct {
        const char *attn;
        int heads, kv;
        int64_t budget, head_end, tail;
        size_t lines;
    } cases[] = {
        {"fier:g=16", 4, 2, 20, 0, N - 1, M * 2},
        {"fier:gqa=per_q", 8, 2, 20, 0, N - 1, M * 8},
        {"fier:gqa=layer_mean", 6, 2, 20, 0, N - 1, M},
        {"fier:gqa=max_s:force_sink=3:force_recent=5", 7, 1, 30, 3, N - 5, M},
        {"fier:gqa=mean_q", 8, 1, 1, 0, N - 1, M},
        {"fier:gqa=sum_s", 3, 3, N - 1, 0, N - 1, M * 3},
        {"fier", 4, 1, 4 * N, 0, N - 1, M},
        {"quest:page=8:min_pages=1", 4, 2, 40, 0, 88, M * 2},
        {"quest:page=8:gqa=layer_vote", 4, 2, 40, 0, 88, M},
        {"pariskv:sink=4:local=8", 4, 2, 16, 4, N - 9, M * 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static scene s;
        err e = {0};
        recall_tensors job;
        recall_run run = {.seq = NULL};
        json_t *lines = NULL;
        scene_fill(&s, cases[i].heads, cases[i].kv, N, 40 + i);
        blob b = scene_file(&s, true, "F32");
        is_ok(run_tensors(cases[i].attn, cases[i].budget, "f32", b, &job, &run, &lines, &e), &e, "%s, budget %lld",
              cases[i].attn, (long long)cases[i].budget);
        is_int((long long)json_array_size(lines), (long long)cases[i].lines, "one line a list and query");
        ok(e.code == ST_OK && dump_agrees(&run, lines, &s, cases[i].head_end, cases[i].tail),
           "positions ascend, hold the current token, and give the recall, mass and error that are reported");
        ok(job.n_keys == N && run.shape.n_heads == cases[i].heads && run.shape.has_v, "what the file held");
        recall_runs_clear(&run, 1);
        json_decref(lines);
        free(b.p);
    }
}

/* Intervals of samples of `most` of 600 keys that are drawn at random, at 40 seeds, by four queries of eight heads with
 * a list each: 1,280 of 95 %. Logits have a deviation of 0.8. */
static void test_intervals(const char *attn, int most, double from, double to)
{
    enum { LONG = 600, WIDE = 16, ASKED = 4, SEEDS = 40 };
    static float q[HEADS * ASKED * WIDE], k[2 * LONG * WIDE];
    rng r = {77};
    for (size_t i = 0; i < sizeof q / sizeof *q; i++) q[i] = 4.8f * rng_float(&r) - 2.4f;
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) k[i] = 2 * rng_float(&r) - 1;
    const tensor t[] = {{"q", "F32", {HEADS, ASKED, WIDE}, 3, q}, {"k", "F32", {2, LONG, WIDE}, 3, k}};
    blob b = make_file(t, 2);
    double held = 0, said = 0, missed = 0, within = 0, n = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        err e = {0};
        recall_tensors job;
        recall_run run = {.seq = NULL};
        recall_missed m;
        char spec[96];
        snprintf(spec, sizeof spec, "%s:tail=sample:%d:tail_seed=%d", attn, most, seed);
        if (run_tensors(spec, 64, "f32", b, &job, &run, NULL, &e) != ST_OK) printf("# %s\n", e.msg);
        if (recall_missed_mass(&run, 0, &m)) {
            double exact = 1 - recall_mean(&run, SUM_MASS, 0);
            held += m.covers * HEADS * ASKED, said += m.mean, missed += exact, n++;
            within += m.lo <= exact && exact <= m.hi;
        }
        recall_runs_clear(&run, 1);
    }
    ok(n == SEEDS && held / (SEEDS * HEADS * ASKED) >= from && held / (SEEDS * HEADS * ASKED) <= to,
       "%s: samples of %d: %.0f of %d intervals hold what was missed", attn, most, held, SEEDS * HEADS * ASKED);
    ok(fabs(said - missed) < 0.01 * missed,
       "%s: samples of %d: %.4f is missed, %.4f as measured; in %.0f of 40 means held", attn, most, missed / SEEDS,
       said / SEEDS, within);
    free(b.p);
}

/* Constant keys, values left out, two-byte types, budgets beyond the keys. */
static void test_edges(void)
{
    static scene s;
    err e = {0};
    recall_tensors job;
    recall_run run = {.seq = NULL};
    scene_fill(&s, 4, 2, N, 9);
    static const char *const types[] = {"F16", "BF16", "F32"};
    for (int i = 0; i < 3; i++) {
        blob b = scene_file(&s, true, types[i]);
        const char *kv = types[i][0] == 'B' ? "bf16" : "f16";
        is_ok(run_tensors("fier", 2 * N, kv, b, &job, &run, NULL, &e), &e, "%s tensors", types[i]);
        bool all = true;
        for (int h = 0; h < 4 && run.sum[0]; h++)
            all &= run.sum[SUM_RECALL][h] == M && near(run.sum[SUM_MASS][h], M) && run.sum[SUM_ERROR][h] < 1e-4 &&
                   run.sum[SUM_SELECTED][h] == M * N;
        ok(all, "a budget beyond the keys finds everything");
        recall_runs_clear(&run, 1);
        free(b.p);
    }
    memset(s.k, 0, sizeof s.k);
    blob b = scene_file(&s, false, "F32");
    is_ok(run_tensors("quest:page=8", 40, "f32", b, &job, &run, NULL, &e), &e, "keys that are all the same, no v");
    bool flat = !run.shape.has_v;
    for (int h = 0; h < 4 && run.sum[0]; h++)
        flat &= run.sum[SUM_RECALL][h] == M && near(run.sum[SUM_MASS][h], run.sum[SUM_SELECTED][h] / N) &&
                run.sum[SUM_ERROR][h] == 0;
    ok(flat, "every choice is right, the mass is the share of the tokens, no error is claimed");
    recall_runs_clear(&run, 1);
    is_err(run_tensors("h2o", 40, "f32", b, &job, &run, NULL, &e), &e, ST_USAGE, "retrieve", "eviction is refused");
    e = (err){0};
    is_err(run_tensors("actqkv", 1024, "f32", b, &job, &run, NULL, &e), &e, ST_USAGE, "prompt's queries",
           "so is what needs the prompt's queries");
    recall_runs_clear(&run, 1);
    free(b.p);
}

/* Tensors of zeros such as "q F32 2 1 4, k F32 1 4 4", but for element `at` of the one called `bad`. */
static blob file_of(const char *text, char bad, int at, float x)
{
    static float some[16];
    static char name[3][2], type[3][8];
    tensor t[3] = {{.rank = 0}};
    int n = 0;
    memset(some, 0, sizeof some);
    some[at] = x;
    for (const char *p = text; n < 3; n++, p += 2) {
        int used = 0;
        if (sscanf(p, "%1s %7s%n", name[n], type[n], &used) != 2) exit(1);
        t[n].name = name[n], t[n].type = type[n], t[n].x = name[n][0] == bad ? some : NULL;
        for (p += used; *p == ' '; p += strcspn(p + 1, " ,") + 1) t[n].shape[t[n].rank++] = strtoul(p, NULL, 10);
        if (!*p) break;
    }
    return make_file(t, n + 1);
}

static void test_hostile(void)
{
    /* Name, type and shape of tensors; `at`: index of an element of one of them that is `x`. */
    static const struct {
        const char *part, *name, *file;
        char bad;
        int at;
        float x;
    } cases[] = {
        {"k: missing tensor", "no k", "q F32 2 1 4", 0, 0, 0},
        {"q: missing tensor", "no q", "k F32 2 1 4", 0, 0, 0},
        {"q: expected a tensor of rank 3", "rank 2", "q F32 2 4, k F32 1 4 4", 0, 0, 0},
        {"k: expected a tensor of rank 3", "rank 4", "q F32 2 1 4, k F32 1 1 4 4", 0, 0, 0},
        {"k: type I32", "integers", "q F32 2 1 4, k I32 1 4 4", 0, 0, 0},
        {"q: empty tensor", "no heads", "q F32 0 1 4, k F32 1 4 4", 0, 0, 0},
        {"q: empty tensor", "no queries", "q F32 2 0 4, k F32 1 4 4", 0, 0, 0},
        {"k: empty tensor", "no kv heads", "q F32 2 1 4, k F32 0 4 4", 0, 0, 0},
        {"k: empty tensor", "no keys", "q F32 2 1 4, k F32 1 0 4", 0, 0, 0},
        {"k: empty tensor", "head_dim 0", "q F32 2 1 4, k F32 1 4 0", 0, 0, 0},
        {"head_dim 3 and 3", "odd head_dim", "q F32 2 1 3, k F32 1 4 3", 0, 0, 0},
        {"head_dim 4 and 2", "unequal", "q F32 2 1 4, k F32 1 4 2", 0, 0, 0},
        {"head_dim 258", "too wide", "q F32 2 1 258, k F32 1 4 258", 0, 0, 0},
        {"3 query heads are not a multiple", "3 heads of 2", "q F32 3 1 4, k F32 2 4 4", 0, 0, 0},
        {"1 query heads are not a multiple", "1 of 2", "q F32 1 1 4, k F32 2 4 4", 0, 0, 0},
        {"query heads", "2,000 heads", "q F32 2000 1 2, k F32 1 4 2", 0, 0, 0},
        {"at least two keys", "one key", "q F32 2 1 4, k F32 1 1 4", 0, 0, 0},
        {"v: its shape differs", "short v", "q F32 2 1 4, k F32 1 4 4, v F32 1 3 4", 0, 0, 0},
        {"q: element 5 is NaN or infinite", "NaN in q", "q F32 2 1 4, k F32 1 4 4", 'q', 5, NAN},
        {"k: element 7 is NaN or infinite", "infinity in k", "q BF16 2 1 4, k BF16 1 4 4", 'k', 7, INFINITY},
        {"k: element 3 exceeds 65504", "keys beyond f16", "q F32 2 1 4, k F32 1 4 4", 'k', 3, 70000},
        {"v: element 0 is NaN or infinite", "infinity in v", "q F16 2 1 4, k F16 1 4 4, v F16 1 4 4", 'v', 0,
         -INFINITY},
    };
    recall_tensors job;
    recall_run run = {.seq = NULL};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err e = {0};
        blob b = file_of(cases[i].file, cases[i].bad, cases[i].at, cases[i].x);
        is_err(run_tensors("fier", 4, "f16", b, &job, &run, NULL, &e), &e, ST_FORMAT, cases[i].part, "%s",
               cases[i].name);
        recall_runs_clear(&run, 1);
        free(b.p);
    }
    blob b = file_of("q F32 2 1 4, k F32 1 4 4", 0, 0, 0);
    bool refused = true;
    for (size_t n = 0; n < b.size; n++) {
        err e = {0};
        uint8_t *cut = malloc(n + 1); /* so that tools see a read beyond it */
        memcpy(cut, b.p, n);
        refused &= run_tensors("fier", 4, "f16", (blob){cut, n}, &job, &run, NULL, &e) != ST_OK && e.msg[0];
        free(cut);
    }
    ok(refused, "a file cut anywhere is refused");
    err e = {0};
    is_ok(run_tensors("fier", 4, "f16", b, &job, &run, NULL, &e), &e, "whole it is taken");
    recall_runs_clear(&run, 1);
    bool unwound = true;
    long k = 1;
    for (status st = ST_NOMEM; st != ST_OK && k < 2000; k++) {
        mem_test_fail_at(k);
        e = (err){0};
        st = run_tensors("fier", 4, "f16", b, &job, &run, NULL, &e);
        unwound &= st == ST_OK || st == ST_NOMEM;
        mem_test_fail_at(0);
        recall_runs_clear(&run, 1);
    }
    ok(unwound && k > 20 && k < 2000, "every one of %ld allocations may fail", k - 2);
    free(b.p);
}

int main(void)
{
    test_recall();
    test_ties();
    test_mass_and_error();
    test_distances();
    test_exact_tokens();
    test_tensors();
    test_intervals("fier:gqa=per_q", 32, 0.93, 0.97);
    test_intervals("fier:gqa=per_q", 128, 0.93, 0.97);
    test_intervals("quest:gqa=per_q", 64, 0.93, 0.97);
    test_intervals("oracle", 32, 0.93, 0.97);
    test_edges();
    test_hostile();
    return tap_done();
}
