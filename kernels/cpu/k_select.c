/* SPDX-License-Identifier: MIT */
/* Scores and selections: exact scores, votes, and the scans of the top-k selection. Results do not depend on the level
 * (ops_select.h). */
#include "config.h"

#include <math.h>

#include "kernels/cpu/dots.h"
#include "kernels/cpu/k.h"

void LEVEL(k_dots)(float *out, size_t stride, const float *q, size_t heads, size_t d, const void *rows, dtype t,
                   size_t r0, size_t r1)
{
    size_t bytes = kv_row_bytes(t, d);
    if (t == DT_Q8) dots_rows(false, DT_Q8, q, heads, d, rows, bytes, r0, r1, out, stride);
    else if (t == DT_Q4) dots_rows(false, DT_Q4, q, heads, d, rows, bytes, r0, r1, out, stride);
    else if (t == DT_F32) dots_rows(false, DT_F32, q, heads, d, rows, bytes, r0, r1, out, stride);
    else if (t == DT_F16) dots_rows(false, DT_F16, q, heads, d, rows, bytes, r0, r1, out, stride);
    else dots_rows(false, DT_BF16, q, heads, d, rows, bytes, r0, r1, out, stride);
}

/* Loads elements [i, i + VF_LANES) of x, with -INFINITY past its end and in place of NaN. */
INLINE VF load_scores(const float *x, size_t i, size_t n)
{
    const VF none = vf_set1(-INFINITY);
    float last[VF_LANES];
    if (i + VF_LANES <= n) return vf_max(vf_load(x + i), none);
    vf_store(last, none);
    for (size_t l = 0; i + l < n; l++) last[l] = x[i + l];
    return vf_max(vf_load(last), none);
}

INLINE void store_some(float *p, size_t i, VF v, size_t n)
{
    if (i + VF_LANES <= n) vf_store(p + i, v);
    else if (i < n) vf_store_n(p + i, v, n - i);
}

/* Like load_scores, but keeps NaN. */
INLINE VF load_raw(const float *x, size_t i, size_t n)
{
    return i + VF_LANES <= n ? vf_load(x + i) : load_scores(x, i, n);
}

/* Processes `vecs` vectors from element i on; full: all elements exist. */
INLINE void vote_part(const bool full, const int vecs, float *e, const float *x, size_t i, size_t n, VF by, VF top,
                      VF acc[PARTS])
{
    VF v[EXP2_MOST];
    UNROLL for (int k = 0; k < vecs; k++)
    {
        size_t at = i + (size_t)k * VF_LANES;
        v[k] = vf_sub(vf_mul(full ? vf_load(x + at) : load_raw(x, at, n), by), top);
    }
    vf_exp2_each(vecs, v);
    UNROLL for (int k = 0; k < vecs; k++)
    {
        if (full) vf_store(e + i + (size_t)k * VF_LANES, v[k]);
        else store_some(e, i + (size_t)k * VF_LANES, v[k], n);
        acc[k % PARTS] = vf_add(acc[k % PARTS], v[k]);
    }
}

/* Returns the largest number, or -INFINITY if there are only -INFINITY and NaN. */
INLINE float largest(const float *x, size_t n)
{
    VF m[4];
    size_t i = 0;
    UNROLL for (int k = 0; k < 4; k++) m[k] = vf_set1(-INFINITY);
    for (; i + 4 * VF_LANES <= n; i += 4 * VF_LANES)
        UNROLL for (int k = 0; k < 4; k++) m[k] = vf_max(vf_load(x + i + (size_t)k * VF_LANES), m[k]);
    for (; i < n; i += VF_LANES) m[0] = vf_max(load_raw(x, i, n), m[0]);
    return vf_hmax(vf_max(vf_max(m[0], m[1]), vf_max(m[2], m[3])));
}

void LEVEL(k_vote_exp)(float *e, float *top, float *sum, const float *x, float by, size_t n)
{
    enum { VECS = VF_LANES == 8 ? 2 : 4, STEP = VECS * VF_LANES };
    VF b = vf_set1(by), acc[PARTS], m;
    float part[16], q[4];
    size_t i = 0;
    *top = largest(x, n) * by; /* the largest product: rounding is monotonic */
    *sum = 0;
    if (*top == -INFINITY) {
        memset(e, 0, n * sizeof *e);
        return;
    }
    UNROLL for (int p = 0; p < PARTS; p++) acc[p] = vf_zero();
    m = vf_set1(*top);
    for (; i + STEP <= n; i += STEP) vote_part(true, VECS, e, x, i, n, b, m, acc);
    for (; i + 16 <= n; i += 16) vote_part(true, PARTS, e, x, i, n, b, m, acc);
    if (i < n) vote_part(false, PARTS, e, x, i, n, b, m, acc);
    UNROLL for (int p = 0; p < PARTS; p++) vf_store(part + p * VF_LANES, acc[p]);
    for (i = 0; i < 4; i++) q[i] = (part[4 * i] + part[4 * i + 2]) + (part[4 * i + 1] + part[4 * i + 3]);
    *sum = (q[0] + q[1]) + (q[2] + q[3]);
}

enum { VOTE_VECS = 4 };

/* Computes the sum from the scores themselves if the sum of the votes underflows (methods.md 0.2.4: no ties by
 * underflow). */
static VF vote_far(const vote_job *j, size_t i)
{
    VF top = vf_set1(-INFINITY), sum = vf_zero(), by = vf_set1(j->by);
    for (int pass = 0; pass < 2; pass++)
        for (size_t h = 0; h < j->heads; h++) {
            if (j->lse[h] == -INFINITY) continue;
            VF y = vf_sub(vf_mul(load_scores(j->x + h * j->stride, i, j->n), by), vf_set1(j->lse[h]));
            if (pass == 0) top = vf_max(y, top);
            else sum = vf_add(sum, vf_exp2_plain(vf_sub(y, top)));
        }
    float t[VF_LANES], l[VF_LANES];
    vf_store(t, top);
    vf_store(l, vf_add(vf_mul(top, vf_set1(0.69314718f)), vf_log(sum)));
    for (int k = 0; k < VF_LANES; k++)
        if (t[k] == -INFINITY) l[k] = t[k];
    return vf_load(l);
}

/* Stores the logs of the sums of VF_LANES items; full: all items exist. */
INLINE bool put_votes(const bool full, float *out, const vote_job *j, VF sum, size_t i)
{
    const VF least = vf_set1(1e-25f);
    const unsigned all = (1u << VF_LANES) - 1;
    VF v = vf_log(vf_max(sum, least));
    unsigned good = vf_ge(sum, least);
    if (!full) good |= all << (j->n - i) & all; /* unused lanes */
    if (good != all) {
        if (!j->x) return false;
        float near[VF_LANES], far[VF_LANES];
        vf_store(near, v);
        vf_store(far, vote_far(j, i));
        for (int k = 0; k < VF_LANES; k++)
            if (!(good >> k & 1)) near[k] = far[k];
        v = vf_load(near);
    }
    if (full) vf_store(out + i, v);
    else vf_store_n(out + i, v, j->n - i);
    return true;
}

/* Computes `vecs` vectors of items from i on, with independent sums; full: all items exist. */
INLINE bool vote_items(const bool full, const int vecs, float *out, const vote_job *j, size_t heads, size_t i)
{
    VF sum[VOTE_VECS];
    UNROLL for (int k = 0; k < vecs; k++) sum[k] = vf_zero();
    for (size_t h = 0; h < heads; h++) {
        const float *e = j->e + h * j->e_stride + i;
        UNROLL for (int k = 0; k < vecs; k++)
        {
            VF x = full ? vf_load(e + k * VF_LANES) : vf_load_n(e, j->n - i);
            sum[k] = vf_add(sum[k], vf_mul(x, vf_set1(j->factor[h])));
        }
    }
    UNROLL for (int k = 0; k < vecs; k++) if (!put_votes(full, out, j, sum[k], i + (size_t)k * VF_LANES)) return false;
    return true;
}

bool LEVEL(k_vote_sum)(float *out, const vote_job *j)
{
    size_t i = 0;
    for (; i + VOTE_VECS * VF_LANES <= j->n; i += VOTE_VECS * VF_LANES)
        if (!vote_items(true, VOTE_VECS, out, j, j->heads, i)) return false;
    for (; i + VF_LANES <= j->n; i += VF_LANES)
        if (!vote_items(true, 1, out, j, j->heads, i)) return false;
    return i >= j->n || vote_items(false, 1, out, j, j->heads, i);
}

void LEVEL(k_reduce_heads)(float *out, const float *x, size_t stride, size_t heads, size_t n, bool max, float by)
{
    for (size_t i = 0; i < n; i += VF_LANES) {
        bool full = i + VF_LANES <= n;
        VF v = max ? vf_set1(-INFINITY) : full ? vf_load(x + i) : vf_load_n(x + i, n - i);
        for (size_t h = max ? 0 : 1; h < heads; h++) {
            const float *p = x + h * stride + i;
            VF y = full ? vf_load(p) : vf_load_n(p, n - i);
            v = max ? vf_max(y, v) : vf_add(v, y);
        }
        store_some(out, i, vf_div(v, vf_set1(by)), n);
    }
}

size_t LEVEL(k_lane_maxima)(float *out, const float *x, size_t n, size_t per)
{
    size_t count = 0, i = 0;
    for (; i + per * VF_LANES <= n; count += VF_LANES) {
        VF m = vf_set1(-INFINITY);
        for (size_t end = i + per * VF_LANES; i < end; i += VF_LANES) m = vf_max(vf_load(x + i), m);
        vf_store(out + count, m);
    }
    if (i >= n) return count;
    VF m = load_scores(x, i, n);
    for (i += VF_LANES; i < n; i += VF_LANES) m = vf_max(load_scores(x, i, n), m);
    vf_store(out + count, m);
    return count + VF_LANES;
}

enum { FOUR = 4 * VF_LANES };

/* Returns lane l of vector v as bit v * VF_LANES + l. */
INLINE uint64_t four_ge(const float *x, VF least)
{
    uint64_t m = 0;
    UNROLL for (int v = 0; v < 4; v++) m |= (uint64_t)vf_ge(vf_load(x + v * VF_LANES), least) << v * VF_LANES;
    return m;
}

float LEVEL(k_largest)(const float *x, size_t n)
{
    VF m[4];
    size_t i = 0;
    UNROLL for (int v = 0; v < 4; v++) m[v] = vf_set1(-INFINITY);
    for (; i + FOUR <= n; i += FOUR)
        UNROLL for (int v = 0; v < 4; v++) m[v] = vf_max(vf_load(x + i + (size_t)v * VF_LANES), m[v]);
    for (; i < n; i += VF_LANES) m[0] = vf_max(load_scores(x, i, n), m[0]);
    return vf_hmax(vf_max(vf_max(m[0], m[1]), vf_max(m[2], m[3])));
}

/* Returns a mask of the lanes with elements of [i, n). */
INLINE unsigned lanes_of(size_t i, size_t n)
{
    return n - i >= VF_LANES ? (1u << VF_LANES) - 1 : (1u << (n - i)) - 1;
}

size_t LEVEL(k_count_at_least)(const float *x, size_t n, float least)
{
    size_t count = 0, i = 0;
    const VF l = vf_set1(least);
    for (; i + FOUR <= n; i += FOUR) count += (size_t)__builtin_popcountll(four_ge(x + i, l));
    for (; i < n; i += VF_LANES)
        count += (size_t)__builtin_popcount(vf_ge(vf_load_some(x + i, n - i), l) & lanes_of(i, n));
    return count;
}

/* Appends elements [i, i + VF_LANES) to the lists of k_at_least, which hold `count`. */
INLINE size_t keep_lanes(int32_t *idx, float *val, size_t count, unsigned set, VF v, size_t i)
{
    vf_keep(val + count, set, v);
    return vi_keep(idx + count, set, (int32_t)i);
}

size_t LEVEL(k_at_least)(int32_t *idx, float *val, const float *x, size_t n, float least)
{
    size_t count = 0, i = 0;
    const VF l = vf_set1(least);
    for (; i + FOUR <= n; i += FOUR) {
        VF v[4];
        unsigned set[4], any = 0;
        UNROLL for (int k = 0; k < 4; k++)
        {
            v[k] = vf_max(vf_load(x + i + (size_t)k * VF_LANES), vf_set1(-INFINITY));
            any |= set[k] = vf_ge(v[k], l);
        }
        if (!any) continue;
        UNROLL for (int k = 0; k < 4; k++) count += keep_lanes(idx, val, count, set[k], v[k], i + (size_t)k * VF_LANES);
    }
    for (; i < n; i += VF_LANES) {
        VF v = load_scores(x, i, n);
        count += keep_lanes(idx, val, count, vf_ge(v, l) & lanes_of(i, n), v, i);
    }
    return count;
}

size_t LEVEL(k_best)(int32_t *idx, const float *x, size_t n, float limit, size_t ties)
{
    size_t count = 0;
    const VF l = vf_set1(limit);
    for (size_t i = 0; i < n; i += VF_LANES) {
        VF v = load_scores(x, i, n);
        unsigned set = vf_ge(v, l) & lanes_of(i, n), equal = set & vf_ge(l, v);
        set &= ~equal;
        for (; equal && ties > 0; equal &= equal - 1, ties--) set |= equal & -equal;
        count += vi_keep(idx + count, set, (int32_t)i);
    }
    return count;
}
