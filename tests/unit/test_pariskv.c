/* SPDX-License-Identifier: MIT */
/* ParisKV as a method: against a naive oracle in double, its regions replayed, and U1-U9 of methods.md 0.3. */
/* Builds: race */
#include "config.h"

#include <limits.h>

#include "kernels/base/mem.h"
#include "kernels/half.h"
#include "kernels/ops_paris.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"
#include "tests/unit/ops_util.h"

typedef float head_rows[T_HEADS][T_DIM];

enum { ROW = T_HEADS * T_DIM, GROUP = T_HEADS / T_KV, MANY = 48 };

static world w, other;
static head_rows got[T_LAYERS * T_MAX], want[T_LAYERS * T_MAX];

/* ---- the oracle: one block of 8 channels, everything in double ---- */

typedef struct {
    const char *text; /* options beyond the numbers */
    int64_t k, sink, local, u, rho, beta;
} setup;

/* What is indexed, kept as the paper's steps keep it: new tokens gather behind it and leave u at a time. */
typedef struct {
    setup s;
    int64_t n, indexed; /* tokens; those of them that are indexed */
    int64_t m0, m1;     /* tokens of the mean */
    bool has_mean, vote, center, alpha, rotate, total;
    int rounds, tiers;
    int64_t window[T_LAYERS];
} naive;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static naive naive_new(setup s)
{
    naive o = {.s = s, .alpha = !strstr(s.text, "alpha=0"), .rotate = !strstr(s.text, "rotate=0")};
    o.vote = strstr(s.text, "vote");
    o.center = strstr(s.text, "center=1");
    o.total = strstr(s.text, "budget_mode=total");
    o.rounds = strstr(s.text, "rounds=2") ? 2 : 1;
    o.tiers = strstr(s.text, "tiers=1") ? 1 : 6;
    return o;
}

static int64_t rest_of(const naive *o)
{
    return o->n - smaller(o->n, o->s.sink) - o->indexed;
}

static void naive_prompt_end(naive *o, int64_t n)
{
    o->n += n;
    o->indexed = rest_of(o) + o->indexed - smaller(rest_of(o) + o->indexed, o->s.local);
    if (!o->has_mean) {
        o->m0 = o->indexed ? o->s.sink : 0;
        o->m1 = o->indexed ? o->s.sink + o->indexed : o->n;
    }
    o->has_mean = true;
}

/* After the attention of a step. */
static void naive_flush(naive *o)
{
    o->has_mean = true;
    if (rest_of(o) < o->s.local + o->s.u) return;
    o->indexed += o->s.u;
}

static void rotated(const float *x, int64_t pos, double out[8])
{
    for (int c = 0; c < 4; c++) {
        double a = (double)pos * (double)w.freq[c], p = (double)x[c], q = (double)x[c + 4];
        out[c] = p * cos(a) - q * sin(a);
        out[c + 4] = q * cos(a) + p * sin(a);
    }
}

/* The keys of w, rotated. */
static double keys[T_LAYERS][T_KV][T_MAX][8];

static void fill_keys(void)
{
    for (int l = 0; l < T_LAYERS; l++)
        for (int kv = 0; kv < T_KV; kv++)
            for (int t = 0; t < T_MAX; t++) rotated(w.k[l][t][kv], t, keys[l][kv][t]);
}

/* x / |x|, rotated; returns |x|. */
static double direction(const naive *o, double x[8])
{
    rng r = {42};
    double norm = 0;
    for (int c = 0; c < 8; c++) norm += x[c] * x[c];
    norm = fmax(sqrt(norm), 1e-8);
    for (int c = 0; c < 8; c++) x[c] /= norm;
    for (int i = 0; o->rotate && i < o->rounds; i++) {
        double y[8] = {0};
        for (int c = 0; c < 8; c++) {
            double s = (rng_next(&r) >> 63 ? -.35355339059327376 : .35355339059327376) * x[c];
            for (int j = 0; j < 8; j++) y[j] += __builtin_popcount((unsigned)(c & j)) & 1 ? -s : s;
        }
        memcpy(x, y, sizeof y);
    }
    return norm;
}

typedef struct {
    unsigned id;
    double v[8]; /* weight * signed centre */
} naive_code;

static naive_code encode(const naive *o, double x[8])
{
    naive_code code = {0};
    double norm = direction(o, x), radius = 0, alpha = 0;
    for (int j = 0; j < 8; j++) radius += x[j] * x[j];
    radius = sqrt(radius);
    for (int j = 0; j < 8; j++) {
        int t = 0;
        while (t < 7 && (double)paris_threshold[t] < fabs(x[j]) / fmax(radius, 1e-8)) t++;
        alpha += (double)paris_centre[t] * fabs(x[j]) / fmax(radius, 1e-8);
        code.id |= (unsigned)(x[j] >= 0) << j;
        code.v[j] = x[j] >= 0 ? (double)paris_centre[t] : -(double)paris_centre[t];
    }
    double scale = norm * radius / (o->alpha ? fmax(alpha, 1e-6) : 1);
    scale = (double)bf16_to_f32(f32_to_bf16((float)scale));
    for (int j = 0; j < 8; j++) code.v[j] *= scale;
    return code;
}

static double product(const double *a, const double *b)
{
    double s = 0;
    for (int j = 0; j < 8; j++) s += a[j] * b[j];
    return s;
}

static double pattern(unsigned id, const double *y)
{
    double s = 0;
    for (int j = 0; j < 8; j++) s += id >> j & 1 ? y[j] : -y[j];
    return s;
}

/* Tokens, of n, that precede i by (score descending, position ascending). */
static int64_t rank_of(const double *score, int64_t n, int64_t i)
{
    int64_t rank = 0;
    for (int64_t j = 0; j < n; j++) rank += score[j] > score[i] || (score[j] == score[i] && j < i);
    return rank;
}

static int bonus_of(const naive *o, const naive_code *code, int64_t n, unsigned id, const double *y)
{
    static const int64_t tau[] = {5, 15, 30, 50, 75, 100};
    int64_t before = 0;
    int tiers = 0;
    for (int64_t i = 0; i < n; i++)
        before +=
            pattern(code[i].id, y) > pattern(id, y) || (pattern(code[i].id, y) == pattern(id, y) && code[i].id < id);
    for (int t = 6 - o->tiers; t < 6; t++) tiers += before < (n * o->s.rho * tau[t] + 9999) / 10000;
    return tiers;
}

/* The score of reranking for candidate i of m. */
static double final_score(const naive *o, int layer, int kv, int64_t p, const naive_code *code, int64_t m, int64_t i,
                          const double *probe)
{
    double sum = 0;
    if (!o->vote) return product(code[i].v, probe);
    for (int h = kv * GROUP; h < (kv + 1) * GROUP; h++) {
        double q[8], all = 0;
        rotated(w.q[layer][p][h], p, q);
        double norm = direction(o, q);
        for (int64_t j = 0; j < m; j++) all += exp(norm * product(code[j].v, q) / sqrt(T_DIM));
        sum += exp(norm * product(code[i].v, q) / sqrt(T_DIM)) / all;
    }
    return sum;
}

/* Chosen tokens of [first, end) for the query at p; ascending. */
static int64_t naive_search(const naive *o, int layer, int kv, int64_t p, int64_t first, int64_t end, int64_t *out)
{
    naive_code code[T_MAX], cand[T_MAX];
    double probe[8] = {0}, score[T_MAX], q[8], x[8], mean[8] = {0};
    int64_t n = end - first, m = (n * o->s.beta + 99) / 100, where[T_MAX], count = 0;
    for (int h = kv * GROUP; h < (kv + 1) * GROUP; h++) {
        rotated(w.q[layer][p][h], p, q);
        for (int c = 0; c < 8; c++) probe[c] += q[c] / GROUP;
    }
    direction(o, probe);
    for (int64_t i = o->m0; o->center && i < o->m1; i++)
        for (int c = 0; c < 8; c++) mean[c] += keys[layer][kv][i][c] / (double)(o->m1 - o->m0);
    for (int64_t i = 0; i < n; i++) {
        for (int c = 0; c < 8; c++) x[c] = keys[layer][kv][first + i][c] - mean[c];
        code[i] = encode(o, x);
    }
    for (int64_t i = 0; i < n; i++) score[i] = bonus_of(o, code, n, code[i].id, probe);
    if (m < o->s.k) m = o->s.k;
    m = smaller(m, n);
    for (int64_t i = 0, c = 0; i < n; i++)
        if (rank_of(score, n, i) < m) {
            where[c] = first + i;
            cand[c++] = code[i];
        }
    for (int64_t i = 0; i < m; i++) score[i] = final_score(o, layer, kv, p, cand, m, i, probe);
    for (int64_t i = 0; i < m; i++)
        if (rank_of(score, m, i) < o->s.k) out[count++] = where[i];
    return count;
}

/* Fewer tokens are all attended. */
static int64_t naive_threshold(const naive *o)
{
    int64_t forced = o->s.sink + o->s.local;
    return forced + 2 * (o->total ? o->s.k - forced : o->s.k);
}

/* All positions that kv head `kv` attends in the step of token o->n - 1. */
static int64_t naive_attended(const naive *o, int layer, int kv, int64_t *pos)
{
    int64_t n = o->n, count = 0, end = smaller(n, o->s.sink) + o->indexed, window = o->window[layer];
    int64_t from = window && n > window ? n - window : 0, first = o->s.sink > from ? o->s.sink : from;
    bool all = (layer == 0 && strstr(o->s.text, "skip=1")) || n - from < naive_threshold(o) || end <= first;
    naive now = *o;
    if (all) {
        for (int64_t i = from; i < n; i++) pos[count++] = i;
        return count;
    }
    for (int64_t i = from; i < o->s.sink; i++) pos[count++] = i;
    if (o->total) now.s.k -= count + n - (end > from ? end : from);
    count += naive_search(&now, layer, kv, n - 1, first, end, pos + count);
    for (int64_t i = end > from ? end : from; i < n; i++) pos[count++] = i;
    return count;
}

/* One decode step; returns what its layers attend together. */
static int64_t naive_decode(naive *o, head_rows *out)
{
    int64_t attended = 0;
    o->n++;
    for (int l = 0; l < T_LAYERS; l++)
        for (int kv = 0; kv < T_KV; kv++) {
            int64_t pos[T_MAX], n = naive_attended(o, l, kv, pos);
            head_rows all;
            oracle_attend(&w, l, o->n - 1, o->n - 1, pos, pos, n, all);
            memcpy(out[l] + kv * GROUP, all + kv * GROUP, GROUP * sizeof *all);
            if (kv == 0) attended += n;
        }
    naive_flush(o);
    return attended;
}

/* Text of a strategy with its numbers. */
static const char *spec_text(setup s)
{
    static char text[160];
    snprintf(text, sizeof text, "pariskv:budget=%d:sink=%d:local=%d:u=%d:rho=%d:beta=%d:full_thr=0%s", (int)s.k,
             (int)s.sink, (int)s.local, (int)s.u, (int)s.rho, (int)s.beta, s.text);
    return text;
}

/* ---- against the oracle ---- */

/* A prompt, steps, a second prompt, steps. */
static void check_oracle(rig *r, const char *device, setup s, int64_t n1, int64_t n2, int64_t chunk)
{
    err e = {0};
    attn_seq *seq;
    naive o = naive_new(s);
    const int64_t prompts[2] = {n1, n2};
    int64_t attended = 0;
    int bad = 0;
    bool bounded = true;
    if (left_out(2, 6)) return;
    for (int l = 0; l < T_LAYERS; l++) o.window[l] = r->window[l];
    if (!is_ok(rig_seq(r, &seq, spec_text(s), DT_F32, T_MAX, &e), &e, "%s", spec_text(s))) return;
    for (int turn = 0; turn < 2; turn++) {
        if (prompts[turn] > 0) {
            rig_prompt(r, &seq, 1, prompts[turn], chunk, NULL);
            naive_prompt_end(&o, prompts[turn]);
        }
        for (int i = 0; i < 14; i++) {
            rig_decode(r, &seq, 1, got);
            int64_t one = naive_decode(&o, want), most = o.total ? s.k : s.sink + s.local + s.u + s.k;
            attended += one;
            bounded &= strstr(s.text, "skip") || o.n < naive_threshold(&o) || one <= T_LAYERS * most;
            for (int k = 0; k < T_LAYERS * ROW; k++) bad += fabsf((&got[0][0][0])[k] - (&want[0][0][0])[k]) > 1e-4f;
        }
    }
    ok(bad == 0, "%s, %s, prompts of %d and %d: 28 steps, %d outputs differ", spec_text(s), device, (int)n1, (int)n2,
       bad);
    is_int((long long)attn_seq_stats(seq).attended, (long long)attended, "%s: tokens attended (U7)", spec_text(s));
    ok(bounded, "%s: within the budget (U7)", spec_text(s));
    attn_seq_free(seq);
}

static void check_oracles(rig *r, const char *device)
{
    static const char *const options[] = {"",         ":rounds=2", ":center=1", ":tiers=1",
                                          ":alpha=0", ":rotate=0", ":gqa=vote", ":gqa=vote:center=1:rounds=2"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        check_oracle(r, device, (setup){options[i], 5, 4, 6, 7, 25, 20}, 60, 30, 16);
        check_oracle(r, device, (setup){options[i], 3, 0, 4, 3, 40, 30}, 5, 41, 64);
    }
    check_oracle(r, device, (setup){"", 4, 3, 5, 4, 30, 10}, 0, 50, 7);
    check_oracle(r, device, (setup){"", 1, 2, 0, 1, 10, 5}, 70, 20, 64);
    check_oracle(r, device, (setup){":skip=1", 6, 1, 3, 20, 25, 20}, 50, 0, 64);
    check_oracle(r, device, (setup){":budget_mode=total", 22, 4, 6, 7, 25, 20}, 60, 30, 16);
    check_oracle(r, device, (setup){":budget_mode=total:gqa=vote", 18, 4, 6, 7, 40, 30}, 41, 9, 64);
    /* sinks behind a window; a window that is narrower than what is attended anyway */
    r->window[0] = 45;
    r->window[2] = 12;
    check_oracle(r, device, (setup){"", 5, 4, 6, 7, 25, 20}, 60, 30, 16);
    check_oracle(r, device, (setup){"", 5, 20, 6, 30, 25, 20}, 45, 1, 16);
    check_oracle(r, device, (setup){":budget_mode=total", 23, 4, 6, 7, 25, 20}, 60, 30, 16);
    r->window[0] = r->window[2] = 0;
}

/* ---- regions ---- */

/* One decode step; sees every layer's selection. Returns whether it is that of the replay `o`. */
static bool watch_step(rig *r, attn_seq *seq, const naive *o)
{
    const backend_ops *op = r->be->ops;
    int64_t pos = attn_seq_length(seq), end = smaller(o->n, o->s.sink) + o->indexed;
    attn_step step = {
        .seq = &seq, .n_seq = 1, .n_tok = 1, .pos = r->pos, .table = r->table, .freq = r->freq, .mscale = 1};
    bool good = true, all = o->n < o->s.sink + o->s.local + 2 * o->s.k || o->indexed == 0;
    op->upload(r->be, r->pos, &pos, sizeof pos);
    op->rope_table(r->be, r->table, r->pos, 1, r->freq, T_DIM / 2, 1);
    attn_begin(r->work, &step);
    for (int l = 0; l < T_LAYERS; l++) {
        int32_t idx[T_MAX];
        op->upload(r->be, r->q, w.q[l][pos], sizeof w.q[0][0]);
        op->upload(r->be, r->k, w.k[l][pos], sizeof w.k[0][0]);
        op->upload(r->be, r->v, w.v[l][pos], sizeof w.v[0][0]);
        attn_layer(r->work, &step, l, r->q, r->k, r->v, r->out);
        int seg = 0;
        int64_t n;
        if (!all && o->s.sink > 0) {
            n = attn_last_list(r->work, 0, seg++, 0, idx);
            good &= n == o->s.sink && idx[0] == 0;
        }
        for (size_t kv = 0; kv < T_KV && !all; kv++) {
            n = attn_last_list(r->work, 0, seg, kv, idx);
            good &= n == smaller(o->s.k, o->indexed);
            for (int64_t i = 0; i < n; i++)
                good &= idx[i] >= o->s.sink && idx[i] < end && (i == 0 || idx[i] > idx[i - 1]);
        }
        n = attn_last_list(r->work, 0, all ? 0 : seg + 1, 0, idx);
        good &= n == (all ? o->n : rest_of(o)) && idx[0] == (all ? 0 : end);
        good &= idx[n - 1] == pos; /* U8: the current token, in every layer */
    }
    attn_end(r->work, &step);
    return good;
}

/* Every small prompt, sink, local and u, each layer, through two prompts. */
static void check_regions(rig *r)
{
    int n_cases = 0, bad = 0;
    for (int64_t t = 0; t <= 9; t++)
        for (int64_t i = 0; i < 2 * 3 * 4; i++) {
            setup s = {"", 1 + i % 2, i / 2 % 2 * 2, i / 4 % 3, 1 + i / 12 + t % 3, 30, 50};
            err e = {0};
            attn_seq *seq;
            naive o = naive_new(s);
            if (rig_seq(r, &seq, spec_text(s), DT_F32, 60, &e)) continue;
            for (int turn = 0; turn < 2; turn++) {
                if (t + turn > 0) {
                    rig_prompt(r, &seq, 1, t + turn, 4, NULL);
                    naive_prompt_end(&o, t + turn);
                }
                for (int k = 0; k < 9; k++, n_cases++) {
                    o.n++;
                    bad += !watch_step(r, seq, &o);
                    naive_flush(&o);
                }
            }
            attn_seq_free(seq);
        }
    ok(bad == 0 && n_cases == 4320, "regions of %d steps of small sequences, every layer (U8): %d differ", n_cases,
       bad);
}

/* ---- invariants ---- */

/* Prompt of n in chunks, then steps; all outputs of the steps to out. */
static void play(rig *r, attn_seq *s, int64_t n, int64_t chunk, int steps, head_rows *out)
{
    if (n > 0) rig_prompt(r, &s, 1, n, chunk, NULL);
    for (int i = 0; i < steps; i++) rig_decode(r, &s, 1, out + i * T_LAYERS);
}

static const char *const variants[] = {
    "pariskv:budget=6:sink=4:local=8:u=5:full_thr=0",
    "pariskv:budget=4:sink=0:local=8:u=16:full_thr=50:center=1:gqa=vote",
    "pariskv:budget=9:sink=3:local=1:u=3:full_thr=0:tiers=1:rounds=2:skip=1",
};
enum { N_VARIANTS = 3 };

static bool same(const head_rows *a, const head_rows *b, int steps)
{
    return memcmp(a, b, (size_t)(steps * T_LAYERS) * sizeof *a) == 0;
}

/* U1: with a budget for everything the bits of full; all indexed tokens chosen, its values. */
static void check_unbounded(rig *r)
{
    static head_rows a[MANY * T_LAYERS], b[MANY * T_LAYERS];
    static const char *const wide[] = {"pariskv", "pariskv:budget=40:full_thr=0", "pariskv:budget=1:full_thr=101"};
    err e = {0};
    attn_seq *s, *f;
    for (int i = 0; i < 3; i++) {
        rig_seq(r, &f, "full", DT_F16, 100, &e);
        if (!is_ok(rig_seq(r, &s, wide[i], DT_F16, 100, &e), &e, "%s", wide[i])) return;
        play(r, f, 60, 16, 40, a);
        play(r, s, 60, 16, 40, b);
        ok(same(a, b, 40), "U1: %s has the bits of full", wide[i]);
        attn_seq_free(s);
        attn_seq_free(f);
    }
    rig_seq(r, &f, "full", DT_F32, 100, &e);
    rig_seq(r, &s, "pariskv:budget=8:sink=2:local=2:u=20:full_thr=0", DT_F32, 100, &e);
    play(r, f, 12, 16, 20, a);
    play(r, s, 12, 16, 20, b);
    is_near(&b[0][0][0], &a[0][0][0], 20 * T_LAYERS * ROW, 1e-10, "U1: all tokens through the sparse path");
    is_int((long long)attn_seq_stats(s).attended, (long long)attn_seq_stats(f).attended, "U1: all were attended");
    attn_seq_free(s);
    attn_seq_free(f);
}

/* U6: planned at the most tokens = held then; less what grows, by its formula. */
static void check_bytes(rig *r)
{
    for (int i = 0; i < N_VARIANTS; i++) {
        err e = {0};
        attn_seq *s;
        attn_bytes plan;
        attn_limits lim = {.n_tokens = 90, .chunk = (int64_t)r->rows};
        if (!is_ok(rig_seq(r, &s, variants[i], DT_F16, 90, &e), &e, "%s", variants[i])) return;
        size_t layers = i == 2 ? 2 : 3, fixed = layers * (T_KV * 256 * 4 + 16 + (i == 1 ? T_KV * T_DIM * 4 : 0));
        play(r, s, 40, 16, 10, got);
        is_int((long long)attn_seq_held(s).index, (long long)(fixed + layers * 50 * T_KV * 6),
               "U6: %s: index of 50 tokens", variants[i]);
        play(r, s, 40, 16, 0, got);
        is_ok(attn_plan(&plan, attn_seq_spec(s), &r->shape, &lim, &e), &e, "%s: planned", variants[i]);
        attn_bytes held = attn_seq_held(s);
        ok(plan.index == held.index && plan.kv == held.kv && plan.scratch == held.scratch, "U6: %s: planned = held",
           variants[i]);
        attn_seq_free(s);
    }
}

/* Back into the buffer, behind a flush, into the prompt, to the start: as if the rest had never been. */
static void check_rewind(rig *r)
{
    static const int64_t to[] = {58, 51, 50, 33, 2, 0};
    static head_rows a[MANY * T_LAYERS], b[MANY * T_LAYERS];
    for (int i = 0; i < N_VARIANTS; i++)
        for (int k = 0; k < 6; k++) {
            err e = {0};
            attn_seq *s, *direct;
            bool center = strstr(variants[i], "center");
            if (left_out(7, 20)) continue;
            if (center && to[k] > 0 && to[k] < 50) continue; /* the mean stays that of the longer prompt */
            rig_seq(r, &s, variants[i], DT_F16, 120, &e);
            if (!is_ok(rig_seq(r, &direct, variants[i], DT_F16, 120, &e), &e, "%s", variants[i])) return;
            play(r, s, 50, 16, to[k] > 50 ? (int)to[k] - 50 : 0, got);
            play(r, direct, to[k] < 50 ? to[k] : 50, 64, to[k] > 50 ? (int)to[k] - 50 : 0, got);
            r->w = &other;
            play(r, s, 0, 0, 25, got);
            r->w = &w;
            is_ok(attn_seq_rewind(s, to[k], &e), &e, "%s: rewind to %d", variants[i], (int)to[k]);
            play(r, s, 20, 64, 20, a);
            play(r, direct, 20, 64, 20, b);
            ok(same(a, b, 20), "%s: after a rewind to %d", variants[i], (int)to[k]);
            attn_seq_free(s);
            attn_seq_free(direct);
        }
}

/* The slots that the last layer of the last step found for a kv head. */
static int64_t found(const rig *r, size_t kv, int32_t *out)
{
    return attn_last_list(r->work, 0, 1, kv, out);
}

/* 0.2.12: the index comes from keys as they were appended, so a store that quantizes changes no choice. */
static void check_stores(rig *r)
{
    static const char *const stores[] = {"kivi4/r=8/g=4", "kivi2/r=8/g=4", "logquant/r=12/g=4"};
    for (int i = 0; i < 3 * N_VARIANTS; i++) {
        char text[160];
        const char *spec = variants[i % N_VARIANTS];
        err e = {0};
        attn_seq *exact, *coded;
        bool good = true;
        int64_t chosen = 0;
        if (i % N_VARIANTS == 1) continue;                                       /* no sink: another segment */
        if (N_METHOD_DEVICES == 1 && i / N_VARIANTS != i % N_VARIANTS) continue; /* on a device in turn */
        snprintf(text, sizeof text, "%s:kv=%s", spec, stores[i / N_VARIANTS]);
        if (!is_ok(rig_seq(r, &coded, text, DT_F16, 120, &e), &e, "%s", text)) continue;
        rig_seq(r, &exact, spec, DT_F16, 120, &e);
        for (int turn = 0; turn < 2; turn++) {
            rig_prompt(r, &exact, 1, 30, 16, NULL);
            rig_prompt(r, &coded, 1, 30, 16, NULL);
            for (int t = 0; t < 20; t++) {
                int32_t a[T_KV][T_MAX], b[T_MAX];
                int64_t n[T_KV], m;
                rig_decode(r, &exact, 1, got);
                for (size_t kv = 0; kv < T_KV; kv++) n[kv] = found(r, kv, a[kv]);
                rig_decode(r, &coded, 1, got);
                for (size_t kv = 0; kv < T_KV; kv++) {
                    m = found(r, kv, b);
                    good &= m == n[kv] && (m <= 0 || memcmp(a[kv], b, (size_t)m * sizeof *b) == 0);
                    chosen += m > 0;
                }
            }
        }
        ok(good && chosen > 20, "%s chooses what it chooses over exact rows", text);
        attn_seq_free(exact);
        attn_seq_free(coded);
    }
}

static void check_specs(void)
{
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"pariskv:budget=-1", "budget='-1', expected a number from 0"},
        {"pariskv:u=0", "u='0', expected a number from 1"},
        {"pariskv:rho=101", "expected a number from 0 to 100"},
        {"pariskv:tiers=2", "one of: 6 1"},
        {"pariskv:gqa=per_q", "one of: mean_q vote"},
        {"pariskv:rounds=3", "expected a number from 1 to 2"},
    };
    attn_options o = {.kv = kv_exact(DT_F16)};
    attn_shape shape = {.n_layers = 1, .head_dim = 258};
    attn_spec s;
    char text[256];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        is_err(attn_spec_parse(&s, bad[i].text, &o, &e), &e, ST_USAGE, bad[i].part, "spec '%s'", bad[i].text);
    }
    err e = {0};
    is_ok(attn_spec_parse(&s, "pariskv", &o, &e), &e, "defaults");
    attn_spec_params(&s, text, sizeof text);
    is_str(text,
           "budget=512 sink=64 local=256 u=512 full_thr=2048 rho=0 beta=0 gqa=mean_q rounds=1 center=0 tiers=6 alpha=1 "
           "rotate=1 budget_mode=extra skip=0 kv=f16",
           "their text");
    is_err(attn_spec_check(&s, &shape, &e), &e, ST_UNSUPPORTED, "head_dim 258, at most 256", "a head that is too wide");
    err small = {0}, enough = {0};
    shape.head_dim = 8;
    is_ok(attn_spec_parse(&s, "pariskv:budget=832:budget_mode=total", &o, &small), &small, "a total");
    is_err(attn_spec_check(&s, &shape, &small), &small, ST_USAGE,
           "budget 832 is too small, at least sink + local + u + 1 = 833", "that leaves nothing to find");
    s.budget++;
    is_ok(attn_spec_check(&s, &shape, &enough), &enough, "that leaves one token");
}

static void check_decode_allocates_nothing(rig *r)
{
    err e = {0};
    attn_seq *s;
    is_ok(rig_seq(r, &s, variants[2], DT_F16, 90, &e), &e, "%s", variants[2]);
    play(r, s, 40, 64, 1, got);
    long before = mem_test_count();
    play(r, s, 0, 0, 12, got);
    ok(mem_test_count() == before, "decode steps allocate nothing");
    attn_seq_free(s);
}

int main(void)
{
    err e = {0};
    world_fill(&w, 11);
    world_fill(&other, 12);
    fill_keys();
    check_specs();
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        const char *device = METHOD_DEVICES[d];
        if (!is_ok(rig_open(&r, device, &w, 64, &e), &e, "%s backend", device)) return tap_done();
        check_oracles(&r, device);
        if (d == 0 && !left_out(INT_MAX, INT_MAX)) check_regions(&r); /* they follow from counts on any backend */
        check_unbounded(&r);
        check_bytes(&r);
        check_rewind(&r);
        if (r.be->ops->codes) check_stores(&r);
        else tap_skip("no codes on %s", r.be->name);
        rig_check_oom(&r, variants[2], 8);
        check_decode_allocates_nothing(&r);
        is_ok(backend_fault(r.be, &e), &e, "%s, no fault", device);
        rig_close(&r);
    }
    check_races();
    return tap_done();
}
