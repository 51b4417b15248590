/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/ops_certify.h"
#include "kernels/ref/ref.h"

/* ---- bound ---- */

/* q: absolute values, rotated like the rows. */
static float bound_in_blocks(const kv_rows *r, size_t head, size_t slot, const float *q)
{
    const certify_blocks rule = certify_blocks_of(r->type, r->rotated & KV_ROTATED_K, r->head_dim);
    size_t d = r->head_dim;
    const unsigned char *row = r->k.p + (head * r->cap + slot) * kv_row_bytes(r->type, d);
    float w[256], scale[256 / ROW_BLOCK], all = 0;
    ref_floats(scale, (buf){(unsigned char *)(uintptr_t)row}, DT_F16, row_code_bytes(r->type, d) / 2, d / ROW_BLOCK);
    for (size_t b = 0; b < d / ROW_BLOCK; b++) all += certify_block_scale(scale[b]);
    for (size_t c = 0; c < d; c++) {
        int code = r->type == DT_Q8 ? row[c] : row[c / 2] >> c % 2 * 4 & 15;
        w[c] = certify_block_width(&rule, r->type, scale[c / ROW_BLOCK], code - qblock_offset(r->type));
        w[c] = (w[c] + rule.rotation * all) + rule.least;
    }
    return all < INFINITY ? ref_dot16(q, w, d) : INFINITY;
}

static float bound_of(const kv_rows *r, size_t head, size_t slot, const float *q)
{
    const kv_codes *c = &r->codes;
    const certify_rule rule = certify_rule_of(c->bits, r->head_dim);
    size_t d = r->head_dim, runs = c->bits ? codes_runs(c, d) : 0;
    int64_t row = c->bits ? i32_at(c->k_at, 0)[slot] : (int64_t)slot;
    float a[256], b[256], one[256], bound = 0;
    if (dtype_in_qblocks(r->type)) return bound_in_blocks(r, head, slot, q);
    if (row >= 0) {
        ref_floats(a, r->k, r->type, (head * r->cap + (size_t)row) * d, d);
        for (size_t i = 0; i < d; i++) a[i] = fabsf(a[i]);
        return rule.sum * ref_dot16(q, a, d);
    }
    size_t code = (size_t)(-1 - row), at = (head * (c->cap / c->group) + code / c->group) * 2 * d;
    if (!c->by_token) {
        ref_floats(a, c->k_pair, DT_F16, at, d);
        ref_floats(b, c->k_pair, DT_F16, at + d, d);
        for (size_t i = 0; i < d; i++) a[i] = certify_width(&rule, a[i], b[i]);
        return ref_dot16(q, a, d);
    }
    for (size_t i = 0; i < d; i++) one[i] = 1;
    for (size_t i = 0, from = 0; i < runs; i++, from += c->run) {
        at = 2 * ((head * c->cap + code) * runs + i);
        float s = ref_dot16(q + from, one, d - from < c->run ? d - from : c->run);
        float term = certify_width(&rule, ref_get(c->k_pair, DT_F16, at), ref_get(c->k_pair, DT_F16, at + 1)) * s;
        bound = i == 0 ? term : bound + term;
    }
    return bound;
}

void ref_certify_bound(backend *be, const score_job *jobs, size_t n)
{
    for (const score_job *j = jobs; j < jobs + n; j++) {
        const kv_rows *r = ((const coded_index *)j->index)->rows;
        for (size_t h = 0; h < j->n_heads; h++) {
            float q[256];
            memcpy(q, f32_at(j->q, h * r->head_dim), r->head_dim * sizeof *q);
            if (r->rotated & KV_ROTATED_K) ref_hadamard(q, r->head_dim);
            for (size_t c = 0; c < r->head_dim; c++) q[c] = fabsf(q[c]);
            for (int64_t t = j->items.lo; t < j->items.hi; t++)
                f32_at(j->score, h * j->stride)[t] = bound_of(r, h / (j->n_heads / r->n_kv_heads), (size_t)t, q);
        }
    }
}

/* ---- choose ---- */

/* A head's tokens. Sums are those of exp of the upper and lower logits, in units of the largest upper one. */
typedef struct {
    double top;
    const float *score, *error;
    bool finite;
} head_scores;

static double upper(const head_scores *s, const certify_job *j, int64_t t)
{
    return exp((double)j->scale * ((double)s->score[t] + (double)s->error[t]) - s->top);
}

static double lower(const head_scores *s, const certify_job *j, int64_t t)
{
    return exp((double)j->scale * ((double)s->score[t] - (double)s->error[t]) - s->top);
}

static head_scores scores_of(const certify_job *j, size_t h)
{
    head_scores s = {-(double)INFINITY, f32_at(j->score, h * j->stride), f32_at(j->error, h * j->stride), true};
    for (int64_t t = j->first; t < j->items.n_slots; t++) {
        s.top = fmax(s.top, (double)j->scale * ((double)s.score[t] + (double)s.error[t]));
        s.finite &= isfinite(s.score[t] + s.error[t]) && isfinite(s.score[t] - s.error[t]);
    }
    return s;
}

/* True if candidate a precedes b in the order of choose_job. */
static bool comes_before(const float *s, int64_t a, int64_t b)
{
    float x = isnan(s[a]) ? -INFINITY : s[a], y = isnan(s[b]) ? -INFINITY : s[b];
    return x > y || (x == y && a < b);
}

/* Returns candidate number k in that order, of n > k. */
static int64_t candidate_at(const float *s, int64_t n, int64_t k)
{
    int64_t before = -1, a = 0;
    for (; before != k; a++) {
        before = 0;
        for (int64_t b = 0; b < n; b++) before += comes_before(s, b, a);
    }
    return a - 1;
}

/* Returns the bound of a head whose list takes the first k candidates. */
static float bound_at(const certify_job *j, const head_scores *s, size_t list, int64_t k)
{
    const float *order = f32_at(j->order, list * j->stride) + j->items.lo;
    int64_t n = j->items.hi - j->items.lo;
    double f = 0, g = 0;
    if (k >= n) return 0;
    if (!s->finite) return 1;
    int64_t next = candidate_at(order, n, k);
    for (int64_t t = j->first; t < j->items.n_slots; t++) {
        bool taken = t < j->items.lo || t >= j->items.hi || comes_before(order, t - j->items.lo, next);
        if (taken) g += lower(s, j, t);
        else f += upper(s, j, t);
    }
    return certify_bound(f, g, n - k, j->items.n_slots - j->first);
}

static void certify_list(const certify_job *j, size_t list)
{
    size_t group = j->n_heads / j->n_lists;
    int64_t n = j->items.hi > j->items.lo ? j->items.hi - j->items.lo : 0, most = j->most < n ? j->most : n, k = 0;
    if (most < 0) most = 0;
    for (size_t h = list * group; h < (list + 1) * group; h++) {
        head_scores s = scores_of(j, h);
        int64_t lo = j->least < most ? j->least : most, hi = most;
        while (lo < hi) { /* the bound decreases with k */
            int64_t mid = lo + (hi - lo) / 2;
            if (bound_at(j, &s, list, mid) <= j->eps) hi = mid;
            else lo = mid + 1;
        }
        if (lo > k) k = lo;
    }
    i64_at(j->k, 0)[list] = k;
    for (size_t h = list * group; h < (list + 1) * group; h++) {
        head_scores s = scores_of(j, h);
        *f32_at(j->bound, h) = bound_at(j, &s, list, k);
    }
}

void ref_certify_count(const certify_job *j)
{
    uint64_t *c = (uint64_t *)(void *)j->counts.p;
    int64_t seen = j->items.n_slots - j->first, n = j->items.hi > j->items.lo ? j->items.hi - j->items.lo : 0;
    for (size_t h = 0; h < j->n_heads; h++) {
        float b = *f32_at(j->bound, h);
        uint64_t units = (uint64_t)ceil((double)b * 0x1p32);
        c[CERTIFY_HEADS]++;
        if (b > j->eps) continue;
        c[CERTIFY_DONE]++;
        c[CERTIFY_BOUNDS] += units;
        if (units > c[CERTIFY_LARGEST]) c[CERTIFY_LARGEST] = units;
    }
    for (size_t l = 0; l < j->n_lists; l++) {
        int64_t tokens = seen - n + i64_at(j->k, 0)[l];
        c[CERTIFY_LISTS]++;
        c[CERTIFY_WHOLE] += tokens == seen;
        c[CERTIFY_TOKENS] += (uint64_t)tokens;
        if ((uint64_t)tokens > c[CERTIFY_MOST]) c[CERTIFY_MOST] = (uint64_t)tokens;
        c[CERTIFY_BINS + certify_bin(tokens)]++;
    }
}

void ref_certify_choose(backend *be, const certify_job *jobs, size_t n)
{
    (void)be;
    for (const certify_job *j = jobs; j < jobs + n; j++) {
        for (size_t l = 0; l < j->n_lists; l++) certify_list(j, l);
        ref_certify_count(j);
    }
}

const certify_ops ref_certify = {CERTIFY_OPS(OP_ENTRY, ref_certify_, ref_certify_)};
