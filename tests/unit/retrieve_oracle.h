/* SPDX-License-Identifier: MIT */
/* Retrieval methods against naive ones: scores, combination, choice and attention straight from the formulas,
 * in double, from rotated keys of its own. A test gives the scores and the forced items of its method. */
#ifndef TESTS_UNIT_RETRIEVE_ORACLE_H
#define TESTS_UNIT_RETRIEVE_ORACLE_H

#include "kernels/base/mem.h"
#include "kernels/ops_select.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"

enum { GROUP = T_HEADS / T_KV, ROW = T_HEADS * T_DIM };
typedef float head_rows[T_HEADS][T_DIM];

static world w;
/* Rotated at their positions, as the store holds them. */
static float rot_k[T_LAYERS][T_MAX][T_KV][T_DIM], rot_q[T_LAYERS][T_MAX][T_HEADS][T_DIM];

/* What a query at position n - 1 that sees [first, n) may choose. */
typedef struct {
    int64_t granule, k;
    bool forced[T_MAX], candidate[T_MAX]; /* items */
} naive_rule;

typedef struct {
    const char *spec; /* skip=1 in it: layers 1 and 2 select */
    int64_t budget;
    gqa_mode gqa;
    /* Raw scores of the items that start before n. */
    void (*score)(int layer, int64_t n, int kv, const double *q, double *out);
    void (*rule)(int64_t first, int64_t n, naive_rule *r);
    bool pooled; /* pool=entropy */
    /* A second level: tokens of a group (0: none), how many groups are kept, of quest's score=maxch. */
    int64_t coarse, groups;
    bool max_channel;
} naive_method;

/* pool=entropy: sums of the entropies of earlier steps, and what each layer may take in this one. */
static struct {
    double sum[T_LAYERS];
    int64_t count, k[T_LAYERS], least, most; /* least and most: shares so far, against the even one */
    double spent, allowed;                   /* candidates of all steps */
} pool;

static void rotate(const float *x, int64_t p, float *out)
{
    for (int c = 0; c < T_DIM / 2; c++) {
        double a = (double)p * (double)w.freq[c], u = (double)x[c], v = (double)x[c + T_DIM / 2];
        out[c] = (float)(u * cos(a) - v * sin(a));
        out[c + T_DIM / 2] = (float)(v * cos(a) + u * sin(a));
    }
}

static void world_rotate(uint64_t seed)
{
    world_fill(&w, seed);
    for (int l = 0; l < T_LAYERS; l++)
        for (int64_t p = 0; p < T_MAX; p++) {
            for (int h = 0; h < T_HEADS; h++) rotate(w.q[l][p][h], p, rot_q[l][p][h]);
            for (int h = 0; h < T_KV; h++) rotate(w.k[l][p][h], p, rot_k[l][p][h]);
        }
}

static double log_sum(const double *x, const bool *in, int64_t n)
{
    double top = -(double)INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        if (in[i]) top = fmax(top, x[i]);
    for (int64_t i = 0; i < n; i++)
        if (in[i]) sum += exp(x[i] - top);
    return top + log(sum);
}

/* Combined scores of one list: query heads [h0, h0 + heads). */
static void naive_scores(const naive_method *m, int layer, int64_t n, const naive_rule *r, int h0, int heads,
                         double *out)
{
    static double raw[T_HEADS][T_MAX];
    int64_t items = (n + r->granule - 1) / r->granule;
    bool vote = (m->gqa == GQA_VOTE || m->gqa == GQA_LAYER_VOTE) && heads > 1;
    double q[T_HEADS][T_DIM], lse[T_HEADS] = {0};
    for (int h = 0; h < heads; h++)
        for (int c = 0; c < T_DIM; c++) q[h][c] = (double)rot_q[layer][n - 1][h0 + h][c];
    if (m->gqa == GQA_MEAN_Q) {
        for (int h = 1; h < heads; h++)
            for (int c = 0; c < T_DIM; c++) q[0][c] += q[h][c];
        for (int c = 0; c < T_DIM; c++) q[0][c] /= heads;
        heads = 1;
    }
    for (int h = 0; h < heads; h++) {
        m->score(layer, n, (h0 + h) / GROUP, q[h], raw[h]);
        for (int64_t i = 0; i < items && vote; i++) raw[h][i] /= sqrt((double)T_DIM);
        if (vote) lse[h] = log_sum(raw[h], r->candidate, items);
    }
    for (int64_t i = 0; i < items; i++) {
        double sum = 0, top = -(double)INFINITY;
        for (int h = 0; h < heads; h++) {
            double x = raw[h][i];
            sum += vote ? exp(x - lse[h]) : x;
            top = fmax(top, x);
        }
        out[i] = m->gqa == GQA_MAX_S ? top : m->gqa == GQA_MEAN_S || m->gqa == GQA_LAYER_MEAN ? sum / heads : sum;
    }
}

/* The largest product that a key inside the bounds of the positions [from, to) could have; max_channel: its largest
 * channel. */
static double naive_bound(int layer, int64_t from, int64_t to, int kv, const double *q, bool max_channel)
{
    double sum = 0, best = -(double)INFINITY;
    for (int c = 0; c < T_DIM; c++) {
        double hi = -(double)INFINITY, lo = (double)INFINITY;
        for (int64_t j = from; j < to; j++) {
            hi = fmax(hi, (double)rot_k[layer][j][kv][c]);
            lo = fmin(lo, (double)rot_k[layer][j][kv][c]);
        }
        double term = fmax(q[c] * hi, q[c] * lo);
        sum += term;
        best = fmax(best, term);
    }
    return max_channel ? best : sum;
}

static const naive_method *grouped; /* of group_bounds */

static void group_bounds(int layer, int64_t n, int kv, const double *q, double *out)
{
    int64_t g = grouped->coarse;
    for (int64_t i = 0; i * g < n; i++)
        out[i] = naive_bound(layer, i * g, i * g + g < n ? i * g + g : n, kv, q, grouped->max_channel);
}

/* Only what lies in the best groups stays a candidate; of three and more the first tokens' and the newest are two. */
static void keep_groups(const naive_method *m, int layer, int64_t n, int h0, int heads, naive_rule *r)
{
    naive_rule g = {.granule = m->coarse};
    naive_method of = *m;
    bool kept[T_MAX] = {false};
    double score[T_MAX];
    int64_t groups = (n + m->coarse - 1) / m->coarse, items = (n + r->granule - 1) / r->granule;
    grouped = m;
    of.score = group_bounds;
    for (int64_t i = 0; i < items; i++) g.candidate[i * r->granule / m->coarse] |= r->candidate[i];
    naive_scores(&of, layer, n, &g, h0, heads, score);
    int64_t last = groups - 1, left = m->groups;
    while (last > 0 && !g.candidate[last]) last--;
    if (m->groups > 2 && g.candidate[last]) kept[last] = true, left--;
    if (m->groups > 2 && g.candidate[0] && last > 0) kept[0] = true, left--;
    for (; left > 0; left--) {
        int64_t best = -1;
        for (int64_t i = 0; i < groups; i++)
            if (g.candidate[i] && !kept[i] && (best < 0 || score[i] > score[best])) best = i;
        if (best >= 0) kept[best] = true;
    }
    for (int64_t i = 0; i < items; i++) r->candidate[i] &= kept[i * r->granule / m->coarse];
}

/* Positions that query head h attends at position n - 1, ascending. */
static int64_t naive_select(const naive_method *m, int layer, int64_t n, int window, int h, int64_t *pos)
{
    int64_t first = window > 0 && window < n ? n - window : 0, count = 0;
    naive_rule r = {0};
    double score[T_MAX];
    bool dense = layer < 1 || n - first <= m->budget || (window > 0 && window <= m->budget);
    if (!dense) {
        int heads = m->gqa == GQA_PER_Q ? 1 : m->gqa >= GQA_LAYER_MEAN ? T_HEADS : GROUP;
        m->rule(first, n, &r);
        if (m->pooled) r.k = pool.k[layer];
        if (m->coarse) keep_groups(m, layer, n, h / heads * heads, heads, &r);
        naive_scores(m, layer, n, &r, h / heads * heads, heads, score);
    }
    int64_t items = dense ? 0 : (n + r.granule - 1) / r.granule;
    for (int64_t k = 0; k < r.k; k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < items; i++)
            if (r.candidate[i] && (best < 0 || score[i] > score[best])) best = i;
        if (best < 0) break;
        r.candidate[best] = false;
        r.forced[best] = true;
    }
    for (int64_t p = first; p < n; p++)
        if (dense || r.forced[p / r.granule]) pos[count++] = p;
    return count;
}

static void naive_attend(int layer, int64_t n, int h, const int64_t *pos, int64_t count, float *out)
{
    double sum = 0, acc[T_DIM] = {0};
    for (int64_t i = 0; i < count; i++) {
        double s = 0;
        for (int c = 0; c < T_DIM; c++)
            s += (double)rot_q[layer][n - 1][h][c] * (double)rot_k[layer][pos[i]][h / GROUP][c];
        double e = exp(s / sqrt((double)T_DIM));
        sum += e;
        for (int c = 0; c < T_DIM; c++) acc[c] += e * (double)w.v[layer][pos[i]][h / GROUP][c];
    }
    for (int c = 0; c < T_DIM; c++) out[c] = (float)(acc[c] / sum);
}

static double naive_entropy(const naive_method *m, int layer, int64_t n, const naive_rule *r)
{
    int heads = m->gqa == GQA_PER_Q ? 1 : m->gqa >= GQA_LAYER_MEAN ? T_HEADS : GROUP;
    bool vote = (m->gqa == GQA_VOTE || m->gqa == GQA_LAYER_VOTE) && heads > 1;
    double sum = 0, score[T_MAX];
    int64_t items = (n + r->granule - 1) / r->granule;
    for (int h = 0; h < T_HEADS; h += heads) {
        naive_scores(m, layer, n, r, h, heads, score);
        for (int64_t i = 0; i < items; i++) score[i] = vote ? log(score[i]) : score[i] / sqrt((double)T_DIM);
        double lse = log_sum(score, r->candidate, items);
        for (int64_t i = 0; i < items; i++)
            if (r->candidate[i]) sum -= exp(score[i] - lse) * (score[i] - lse);
    }
    return sum * heads / T_HEADS;
}

/* methods.md 9.3 and 9.7 over the layers that are not dense, which are the last ones. */
static void share_out(const naive_method *m, int64_t n, const int *window)
{
    double theta[T_LAYERS];
    int64_t even = INT64_MAX, left = 0;
    naive_rule r[T_LAYERS] = {0};
    for (int l = 1; l < T_LAYERS; l++) {
        m->rule(window[l] > 0 && window[l] < n ? n - window[l] : 0, n, &r[l]);
        theta[l] = naive_entropy(m, l, n, &r[l]);
        if (r[l].k < even) even = r[l].k;
    }
    left = even * (T_LAYERS - 1);
    for (int l = 1; l < T_LAYERS; l++) {
        double later = 0, share = 1 / (double)(T_LAYERS - l);
        int64_t candidates = 0, least = even * 7 / 10;
        for (int j = l + 1; j < T_LAYERS && pool.count; j++) later += pool.sum[j] / (double)pool.count;
        if (pool.count && theta[l] + later > 0) share = theta[l] / (theta[l] + later);
        int64_t k = (int64_t)floor(share * (double)left + 0.5);
        for (int64_t i = 0; i < T_MAX; i++) candidates += r[l].candidate[i];
        k = k < least ? least : k > 2 * even ? 2 * even : k;
        if (k > left - least * (T_LAYERS - 1 - l)) k = left - least * (T_LAYERS - 1 - l);
        if (k > candidates) k = candidates;
        left -= k;
        pool.k[l] = k;
        pool.spent += (double)k;
        if (k - even < pool.least) pool.least = k - even;
        if (k - even > pool.most) pool.most = k - even;
    }
    pool.allowed += (double)(even * (T_LAYERS - 1));
    for (int l = 1; l < T_LAYERS; l++) pool.sum[l] += theta[l];
    pool.count++;
}

/* Compares a decode step that has just run (n tokens now) with the naive method; the last layer's lists too. */
static bool step_is_right(const rig *r, const naive_method *m, int64_t n, const head_rows *out, int64_t *most)
{
    int64_t pos[T_MAX], count = 0;
    int32_t idx[T_MAX];
    bool good = true;
    int per_list = m->gqa == GQA_PER_Q ? 1 : m->gqa >= GQA_LAYER_MEAN ? T_HEADS : GROUP;
    if (m->pooled && n > m->budget) share_out(m, n, r->window);
    for (int l = 0; l < T_LAYERS; l++)
        for (int h = 0; h < T_HEADS; h++) {
            float want[T_DIM];
            if (h % per_list == 0) count = naive_select(m, l, n, r->window[l], h, pos);
            naive_attend(l, n, h, pos, count, want);
            for (int c = 0; c < T_DIM; c++) good &= fabsf(want[c] - out[l][h][c]) < 1e-5f;
            if (l > 0 && count > *most) *most = count;
            if (l < T_LAYERS - 1 || count == n || r->window[l] > 0) continue;
            good &= attn_last_list(r->work, 0, 0, (size_t)(h / per_list), idx) == count;
            for (int64_t i = 0; good && i < count; i++) good &= idx[i] == pos[i];
        }
    return good;
}

/* False: this case was left out. */
static bool check_steps(rig *r, const char *device, const naive_method *m)
{
    if (left_out(14, 100)) return false;
    memset(&pool, 0, sizeof pool);
    static head_rows out[T_LAYERS * T_MAX], full_out[T_LAYERS * T_MAX];
    err e = {0};
    attn_seq *s, *full;
    int64_t n = 0, most = 0;
    bool good = true, same = true;
    if (!is_ok(rig_seq(r, &s, m->spec, DT_F32, T_MAX, &e), &e, "%s: created", m->spec)) return true;
    if (!is_ok(rig_seq(r, &full, "full", DT_F32, T_MAX, &e), &e, "full: created")) return true;
    static const int64_t prompts[] = {37, 30}, steps[] = {36, 20};
    for (int turn = 0; turn < 2; turn++) {
        rig_prompt(r, &s, 1, prompts[turn], turn ? 16 : 5, out);
        rig_prompt(r, &full, 1, prompts[turn], 16, full_out);
        same &= memcmp(out, full_out, (size_t)(T_LAYERS * prompts[turn]) * sizeof *out) == 0;
        n += prompts[turn];
        for (int64_t i = 0; i < steps[turn]; i++) {
            rig_decode(r, &s, 1, out);
            good &= step_is_right(r, m, ++n, out, &most);
            rig_decode(r, &full, 1, full_out);
            if (n <= m->budget) same &= memcmp(out, full_out, T_LAYERS * sizeof *out) == 0;
        }
    }
    attn_stats st = attn_seq_stats(s);
    ok(good && most > 0, "%s, %s: every decode step as the naive method", device, m->spec);
    ok(same, "%s, %s: prompts and n <= B have the bits of full (U1)", device, m->spec);
    ok(st.attended <= st.visible && st.kv_read > 0 && st.index_read > 0, "%s: counts", m->spec);
    attn_seq_free(s);
    attn_seq_free(full);
    return true;
}

/* The state after going back: a few steps, into the last page or group, far back and the same tokens as a prompt. */
static void check_rewind(rig *r, const char *spec, dtype kv)
{
    if (left_out(14, 100)) return;
    static const int64_t back[] = {68, 61, 64};
    static head_rows want[8][T_LAYERS], got[T_LAYERS];
    err e = {0};
    attn_seq *s;
    bool rewound = true;
    if (!is_ok(rig_seq(r, &s, spec, kv, T_MAX, &e), &e, "%s: created", spec)) return;
    rig_prompt(r, &s, 1, 61, 16, NULL);
    for (int t = 0; t < 8; t++) rig_decode(r, &s, 1, want[t]);
    for (int i = 0; i < 3; i++) {
        rewound &= attn_seq_rewind(s, back[i], &e) == ST_OK;
        for (int64_t n = back[i]; n < 69; n++) {
            rig_decode(r, &s, 1, got);
            rewound &= memcmp(want[n - 61], got, sizeof got) == 0;
        }
    }
    rewound &= attn_seq_rewind(s, 13, &e) == ST_OK;
    rig_prompt(r, &s, 1, 48, 16, NULL);
    rig_decode(r, &s, 1, got);
    rewound &= memcmp(want[0], got, sizeof got) == 0;
    ok(rewound, "%s, %s: the same bits after going back", spec, dtype_name(kv));
    attn_seq_free(s);
}

/* A pool over the layers, after check_steps with it: what it did, and that it stays within the budget. The
 * queries of the last layer are far sharper than the others, see world_sharpen. */
static void check_pool(rig *r, const char *device, const char *spec)
{
    static const int64_t chunks[] = {1, 7, 64};
    static head_rows want[12][T_LAYERS], got[T_LAYERS], batch[3 * T_LAYERS];
    err e = {0};
    attn_seq *s, *b[3];
    bool chunked = true, reset = true, batched = true;
    ok(pool.spent <= pool.allowed, "%s, %s: the layers together take at most the budget of each (U7)", device, spec);
    ok(pool.least < 0 && pool.most > 0, "%s, %s: shares differ (%d to %+d)", device, spec, (int)pool.least,
       (int)pool.most);
    for (int i = 0; i < 3; i++) {
        if (!is_ok(rig_seq(r, &s, spec, DT_F16, T_MAX, &e), &e, "%s: created", spec)) return;
        for (int again = 0; again < 2; again++) {
            rig_prompt(r, &s, 1, 61, chunks[i], NULL);
            for (int t = 0; t < 12; t++) {
                rig_decode(r, &s, 1, i + again ? got : want[t]);
                if (i + again) *(again ? &reset : &chunked) &= memcmp(want[t], got, sizeof got) == 0;
            }
            if (i == 0 && again == 0)
                is_err(attn_seq_rewind(s, 65, &e), &e, ST_UNSUPPORTED, "means of the budget pool", "%s: no way back",
                       spec);
            attn_seq_reset(s);
        }
        attn_seq_free(s);
    }
    for (int i = 0; i < 3; i++) rig_seq(r, &b[i], i == 1 ? "full" : spec, DT_F16, T_MAX, &e);
    for (int i = 0; i < 3; i++) rig_prompt(r, &b[i], 1, i == 2 ? 90 : 61, 64, NULL);
    for (int t = 0; t < 12; t++) {
        rig_decode(r, b, 3, batch);
        for (int l = 0; l < T_LAYERS; l++) batched &= memcmp(batch[l * 3], want[t][l], sizeof(head_rows)) == 0;
    }
    for (int i = 0; i < 3; i++) attn_seq_free(b[i]);
    ok(chunked, "%s, %s: any chunks of the prompt give the same bits (U2)", device, spec);
    ok(reset, "%s, %s: reset (U4)", device, spec);
    ok(batched, "%s, %s: the same bits in a batch (U9)", device, spec);
}

/* Queries of odd positions of the last layer `by` times as long: entropies of layers and steps that differ. */
static void world_sharpen(float by)
{
    for (int64_t p = 1; p < T_MAX; p += 2)
        for (int h = 0; h < T_HEADS; h++) {
            for (int c = 0; c < T_DIM; c++) w.q[T_LAYERS - 1][p][h][c] *= by;
            rotate(w.q[T_LAYERS - 1][p][h], p, rot_q[T_LAYERS - 1][p][h]);
        }
}

/* index(n): bytes of the index of one layer with n tokens in an f16 store. */
static void check_bytes(rig *r, const char *spec, size_t (*index)(int64_t n))
{
    err e = {0};
    attn_seq *s;
    attn_bytes plan;
    attn_limits lim = {.n_tokens = 100, .chunk = 32};
    rig_seq(r, &s, spec, DT_F16, 100, &e);
    rig_prompt(r, &s, 1, 70, 32, NULL);
    attn_bytes held = attn_seq_held(s);
    is_int((long long)held.kv, 70LL * T_LAYERS * T_KV * T_DIM * 2 * 2, "%s: bytes of rows (U6)", spec);
    is_int((long long)held.index, 2 * (long long)index(70), "%s: bytes of the index of two layers (U6)", spec);
    for (int i = 0; i < 30; i++) rig_decode(r, &s, 1, NULL);
    held = attn_seq_held(s);
    attn_plan(&plan, attn_seq_spec(s), &r->shape, &lim, &e);
    ok(plan.kv == held.kv && plan.index == held.index && plan.scratch == held.scratch,
       "%s: the plan is what a full sequence holds", spec);
    attn_seq_free(s);
}

static void check_budget(const char *spec, const char *part)
{
    err e = {0};
    attn_spec s;
    attn_options o = {.kv = kv_exact(DT_F16)};
    attn_shape shape = {.n_layers = 1};
    is_ok(attn_spec_parse(&s, spec, &o, &e), &e, "%s: a spec", spec);
    is_err(attn_spec_check(&s, &shape, &e), &e, ST_USAGE, part, "%s: refused", spec);
}

#endif
