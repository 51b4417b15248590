/* SPDX-License-Identifier: MIT */
/* ParisKV in plain C. It keeps the float32 orders of ops_paris.h: ids, bins and scores decide a selection, which must
 * not differ between backends. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/ops_paris.h"
#include "kernels/ref/ref.h"

const float paris_threshold[7] = {.0843f, .1698f, .2578f, .3499f, .4487f, .5585f, .6901f};
const float paris_centre[8] = {.0420f, .1266f, .2130f, .3025f, .3973f, .5001f, .6169f, .7633f};

static const int64_t *i64s(buf b)
{
    return (const int64_t *)(void *)b.p;
}

/* Normalises and rotates x (dim elements, padded) in place; returns the norm. */
static float rotate(const paris_index *x, float *v)
{
    size_t dim = paris_dim(x->head_dim);
    float norm = fmaxf(sqrtf(ref_dot8(v, v, dim)), 1e-8f), by = 1 / norm;
    for (size_t i = 0; i < dim; i++) v[i] *= by;
    for (size_t r = 0; r < x->rounds; r++) {
        for (size_t i = 0; i < dim; i++) v[i] *= ref_get(x->sign, DT_F32, r * dim + i);
        ref_hadamard(v, dim);
    }
    return norm;
}

void ref_paris_mean(backend *be, const paris_index *x, const kv_rows *rows, slot_range range)
{
    int64_t first = range.first, n = range.n;
    for (size_t h = 0; h < x->n_kv_heads; h++) {
        double sum[PARIS_DIM_MAX] = {0};
        for (int64_t t = first; t < first + n; t++) {
            float k[PARIS_DIM_MAX];
            ref_k_row(k, rows, h, t);
            for (size_t c = 0; c < x->head_dim; c++) sum[c] += (double)k[c];
        }
        for (size_t c = 0; c < x->head_dim; c++)
            ref_put(x->mean, DT_F32, h * x->head_dim + c, n > 0 ? (float)(sum[c] / (double)n) : 0);
    }
}

/* Returns the number of thresholds below u by binary search. NaN: none. */
static inline unsigned bin_of(float u)
{
    unsigned t = (paris_threshold[3] < u) * 4u;
    t += (paris_threshold[t + 1] < u) * 2u;
    return t + (paris_threshold[t] < u);
}

void ref_paris_code(unsigned char *id, unsigned char *scale, unsigned char *bins, const float *v, float norm,
                    bool alpha)
{
    float u[PARIS_SUBSPACE], centre[PARIS_SUBSPACE], radius = sqrtf(ref_dot8(v, v, PARIS_SUBSPACE)),
                                                     by = 1 / fmaxf(radius, 1e-8f);
    uint32_t packed = 0;
    *id = 0;
    for (int j = 0; j < PARIS_SUBSPACE; j++) {
        u[j] = fabsf(v[j]) * by;
        unsigned t = bin_of(u[j]);
        centre[j] = paris_centre[t];
        packed |= t << 3 * j;
        *id |= (unsigned char)((v[j] >= 0) << j);
    }
    float w = norm * radius;
    if (alpha) w /= fmaxf(ref_dot8(centre, u, PARIS_SUBSPACE), 1e-6f);
    uint16_t h = f32_to_bf16(w);
    scale[0] = (unsigned char)h;
    scale[1] = (unsigned char)(h >> 8);
    for (int i = 0; i < 3; i++) bins[i] = (unsigned char)(packed >> 8 * i);
}

void ref_paris_encode(backend *be, const paris_index *x, const kv_rows *rows, slot_range range)
{
    size_t nb = paris_subspaces(x->head_dim);
    int64_t first = range.first, end = first + range.n;
    for (size_t h = 0; h < x->n_kv_heads; h++)
        for (int64_t t = first; t < end; t++) {
            float v[PARIS_DIM_MAX] = {0};
            size_t at = h * x->cap + (size_t)t;
            ref_k_row(v, rows, h, t);
            for (size_t c = 0; x->mean.p && c < x->head_dim; c++) v[c] -= ref_get(x->mean, DT_F32, h * x->head_dim + c);
            float norm = rotate(x, v);
            unsigned char *code = x->code.p + at * PARIS_CODE * nb;
            for (size_t b = 0; b < nb; b++)
                ref_paris_code(x->id.p + at * nb + b, code + 2 * b, code + 2 * nb + 3 * b, v + b * PARIS_SUBSPACE, norm,
                               x->alpha);
        }
}

void ref_paris_query(backend *be, buf y, buf norm, buf q, size_t n_heads, const paris_index *x)
{
    size_t dim = paris_dim(x->head_dim);
    for (size_t h = 0; h < n_heads; h++) {
        float v[PARIS_DIM_MAX] = {0};
        memcpy(v, q.p + h * x->head_dim * sizeof *v, x->head_dim * sizeof *v);
        ref_put(norm, DT_F32, h, rotate(x, v));
        memcpy(y.p + h * dim * sizeof *v, v, dim * sizeof *v);
    }
}

/* Adds `by` to the counts of the tokens [from, to). */
static void count_tokens(const paris_index *x, int64_t from, int64_t to, int32_t by, buf read)
{
    size_t nb = paris_subspaces(x->head_dim);
    int32_t *count = (int32_t *)(void *)x->count.p;
    for (size_t h = 0; h < x->n_kv_heads; h++)
        for (int64_t t = from; t < to; t++)
            for (size_t b = 0; b < nb; b++)
                count[(h * nb + b) * PARIS_PATTERNS + x->id.p[(h * x->cap + (size_t)t) * nb + b]] += by;
    if (to > from) add_bytes(read, (size_t)(to - from) * x->n_kv_heads * nb);
}

static int64_t clamp(int64_t v, int64_t lo, int64_t hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

void ref_paris_count(backend *be, const paris_index *x, slot_range range, buf read)
{
    int64_t *old = (int64_t *)(void *)x->counted.p;
    int64_t a = old[0], b = a + old[1], c = range.first, d = c + range.n;
    count_tokens(x, a, clamp(c, a, b), -1, read);
    count_tokens(x, clamp(d, clamp(c, a, b), b), b, -1, read);
    count_tokens(x, c, clamp(a, c, d), 1, read);
    count_tokens(x, clamp(b, clamp(a, c, d), d), d, 1, read);
    old[0] = c;
    old[1] = d - c;
}

typedef struct {
    float dot;
    int id;
} pattern;

static int by_dot(const void *pa, const void *pb)
{
    const pattern *a = pa, *b = pb;
    if (a->dot != b->dot) return a->dot < b->dot ? 1 : -1;
    return a->id - b->id;
}

static void make_bonus(const paris_job *j)
{
    /* paris_dim is 8 blocks: rows of y are contiguous */
    size_t n = j->x->n_kv_heads * paris_subspaces(j->x->head_dim);
    const int32_t *count = (const int32_t *)(void *)j->x->count.p;
    for (size_t b = 0; b < n; b++) {
        pattern p[PARIS_PATTERNS];
        int64_t before = 0;
        for (int id = 0; id < PARIS_PATTERNS; id++) {
            float s = 0;
            for (int i = 0; i < PARIS_SUBSPACE; i++) {
                float v = ref_get(j->y, DT_F32, b * PARIS_SUBSPACE + (size_t)i);
                s = id >> i & 1 ? s + v : s - v;
            }
            p[id] = (pattern){isnan(s) ? -INFINITY : s, id};
        }
        qsort(p, PARIS_PATTERNS, sizeof *p, by_dot);
        for (int i = 0; i < PARIS_PATTERNS; i++) {
            size_t at = b * PARIS_PATTERNS + (size_t)p[i].id;
            unsigned tiers = 0;
            for (size_t t = 0; t < j->n_levels; t++) tiers += before < j->limit[t];
            j->bonus.p[at] = (unsigned char)tiers;
            before += count[at];
        }
    }
    add_bytes(j->read, n * PARIS_PATTERNS * sizeof *count);
}

void ref_paris_collide(backend *be, const paris_job *j)
{
    const paris_index *x = j->x;
    size_t nb = paris_subspaces(x->head_dim);
    for (size_t h = 0; h < x->n_kv_heads; h++)
        for (int64_t i = 0; i < j->range.n; i++) {
            const unsigned char *id = x->id.p + (h * x->cap + (size_t)(j->range.first + i)) * nb;
            unsigned sum = 0;
            for (size_t b = 0; b < nb; b++) sum += j->bonus.p[(h * nb + b) * PARIS_PATTERNS + id[b]];
            j->score.p[h * x->cap + (size_t)i] = (unsigned char)sum;
        }
    add_bytes(j->read, (size_t)j->range.n * x->n_kv_heads * nb);
}

static void find_candidates(const paris_job *j, size_t head)
{
    int64_t n = j->range.n, count[256] = {0}, left = clamp(j->m, 0, n);
    const unsigned char *s = j->score.p + head * j->x->cap;
    int32_t *out = (int32_t *)(void *)j->cand.p + head * j->x->cap;
    int least = 255;
    for (int64_t i = 0; i < n; i++) count[s[i]]++;
    while (least > 0 && left > count[least]) left -= count[least--];
    /* all above `least`, and the first `left` of those equal to it */
    for (int64_t i = 0; i < n; i++)
        if (s[i] > least || (s[i] == least && left-- > 0)) *out++ = (int32_t)(j->range.first + i);
}

static float estimate(const paris_index *x, size_t at, const float *y, float norm)
{
    size_t nb = paris_subspaces(x->head_dim);
    const unsigned char *id = x->id.p + at * nb, *code = x->code.p + at * PARIS_CODE * nb;
    float v[PARIS_DIM_MAX];
    for (size_t b = 0; b < nb; b++) {
        const unsigned char *bins = code + 2 * nb + 3 * b;
        uint32_t packed = bins[0] | (uint32_t)bins[1] << 8 | (uint32_t)bins[2] << 16;
        float w = bf16_to_f32((uint16_t)(code[2 * b] | code[2 * b + 1] << 8));
        for (int j = 0; j < PARIS_SUBSPACE; j++) {
            float c = paris_centre[packed >> 3 * j & 7];
            v[b * PARIS_SUBSPACE + (size_t)j] = w * (id[b] >> j & 1 ? c : -c);
        }
    }
    return norm * ref_dot8(v, y, nb * PARIS_SUBSPACE);
}

void ref_paris_search(backend *be, const paris_job *j)
{
    const paris_index *x = j->x;
    size_t dim = paris_dim(x->head_dim), n = (size_t)j->m;
    const int32_t *token = (const int32_t *)(void *)j->cand.p;
    make_bonus(j);
    ref_paris_collide(be, j);
    for (size_t h = 0; h < x->n_kv_heads; h++) {
        find_candidates(j, h);
        for (size_t i = h * x->cap; i < h * x->cap + n; i++) {
            const float *y = (const float *)(void *)j->y.p + h * dim;
            size_t at = h * x->cap + (size_t)token[i];
            ref_put(j->est, DT_F32, i, estimate(x, at, y, ref_get(j->norm, DT_F32, h)));
        }
    }
    add_bytes(j->read, n * x->n_kv_heads * paris_subspaces(x->head_dim) * (1 + PARIS_CODE));
}

void ref_paris_resolve(backend *be, buf idx, size_t idx_stride, buf range, size_t n_lists, buf cand, size_t stride)
{
    for (size_t l = 0; l < n_lists; l++) {
        int32_t *out = (int32_t *)(void *)idx.p + l * idx_stride;
        const int32_t *from = (const int32_t *)(void *)cand.p + l * stride;
        int64_t first = i64s(range)[2 * l], n = i64s(range)[2 * l + 1];
        for (int64_t i = first; i < first + n; i++) out[i] = from[out[i]];
    }
}
