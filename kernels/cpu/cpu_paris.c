/* SPDX-License-Identifier: MIT */
/* ParisKV. Encoding goes by rows, scoring by heads and chunks of tokens; nothing depends on the number of threads. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/half.h"
#include "kernels/ops_paris.h"
#include "kernels/ref/ref.h"

enum { CHUNK = 4096 }; /* tokens or candidates of a piece of work */

static void add_read(buf read, size_t bytes)
{
    if (read.p) *(uint64_t *)(void *)read.p += bytes;
}

/* The order of summation of ops_paris.h; n is a multiple of 8. */
static inline float dot8(const float *a, const float *b, size_t n)
{
    float s[8] = {0};
    for (size_t i = 0; i < n; i += 8)
        for (size_t j = 0; j < 8; j++) s[j] += a[i + j] * b[i + j];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

static float normalise(const cpu_kernels *k, const paris_index *x, float *v)
{
    size_t dim = paris_dim(x->head_dim);
    float norm = fmaxf(sqrtf(dot8(v, v, dim)), 1e-8f);
    k->scale(v, v, 1 / norm, dim);
    k->paris_rotate(v, cpu_f32(x->sign), x->rounds, (float)(1 / sqrt((double)dim)), dim);
    return norm;
}

/* Number of thresholds below u, by halves. NaN: none, as in the reference. */
static inline unsigned bin_of(float u)
{
    unsigned t = (paris_threshold[3] < u) * 4u;
    t += (paris_threshold[t + 1] < u) * 2u;
    return t + (paris_threshold[t] < u);
}

static void encode_block(unsigned char *id, unsigned char *scale, unsigned char *bins, const float *v, float norm,
                         bool alpha)
{
    float u[PARIS_BLOCK], centre[PARIS_BLOCK], radius = sqrtf(dot8(v, v, PARIS_BLOCK)), by = 1 / fmaxf(radius, 1e-8f);
    uint32_t packed = 0, signs = 0;
    for (unsigned j = 0; j < PARIS_BLOCK; j++) {
        u[j] = fabsf(v[j]) * by;
        unsigned t = bin_of(u[j]);
        centre[j] = paris_centre[t];
        packed |= t << 3 * j;
        signs |= (uint32_t)(v[j] >= 0) << j;
    }
    float w = norm * radius;
    if (alpha) w /= fmaxf(dot8(centre, u, PARIS_BLOCK), 1e-6f);
    uint16_t h = f32_to_bf16(w);
    *id = (unsigned char)signs;
    scale[0] = (unsigned char)h;
    scale[1] = (unsigned char)(h >> 8);
    for (int i = 0; i < 3; i++) bins[i] = (unsigned char)(packed >> 8 * i);
}

static void encode_row(const cpu_kernels *k, const paris_index *x, const kv_rows *rows, size_t head, int64_t slot)
{
    size_t nb = paris_blocks(x->head_dim), d = x->head_dim, at = head * x->cap + (size_t)slot;
    int64_t row = rows->codes.bits ? ((const int32_t *)(void *)rows->codes.k_at.p)[slot] : slot;
    float v[PARIS_DIM_MAX] = {0};
    k->widen(v, rows->k.p + (head * rows->cap + (size_t)row) * d * dtype_size(rows->type), rows->type, d);
    for (size_t c = 0; x->mean.p && c < d; c++) v[c] -= cpu_f32(x->mean)[head * d + c];
    float norm = normalise(k, x, v);
    unsigned char *code = x->code.p + at * PARIS_CODE * nb;
    for (size_t b = 0; b < nb; b++)
        encode_block(x->id.p + at * nb + b, code + 2 * b, code + 2 * nb + 3 * b, v + b * PARIS_BLOCK, norm, x->alpha);
}

static void cpu_paris_encode(backend *be, const paris_index *x, const kv_rows *rows, buf range, int64_t n_max)
{
    (void)n_max;
    int64_t first = cpu_i64(range)[0], n = cpu_i64(range)[1] * (int64_t)x->n_kv_heads;
    const cpu_kernels *k = cpu_of(be)->k;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, (size_t)n * 32 * paris_dim(x->head_dim)))
    for (int64_t i = 0; i < n; i++)
        encode_row(k, x, rows, (size_t)i % x->n_kv_heads, first + i / (int64_t)x->n_kv_heads);
}

static void cpu_paris_query(backend *be, buf y, buf norm, buf q, size_t n_heads, const paris_index *x)
{
    size_t dim = paris_dim(x->head_dim), d = x->head_dim;
    for (size_t h = 0; h < n_heads; h++) {
        float *v = cpu_f32(y) + h * dim;
        memset(v, 0, dim * sizeof *v);
        memcpy(v, cpu_f32(q) + h * d, d * sizeof *v);
        cpu_f32(norm)[h] = normalise(cpu_of(be)->k, x, v);
    }
}

enum { SORTS = 4 }; /* at a time: a step of a merge waits for the one before, not for those of other sorts */

/* Sums in descending order and their patterns. */
typedef struct {
    float sum[PARIS_PATTERNS];
    unsigned char id[PARIS_PATTERNS];
} sorted_sums;

static void sort_one(sorted_sums *to, float y)
{
    bool up = !(y < 0);
    to->sum[0] = up ? y : -y;
    to->sum[1] = up ? -y : y;
    to->id[0] = up;
    to->id[1] = !up;
}

/* The 2 n sums of n sorted ones and +-y[s], bit j of a pattern, for each of SORTS lists. No branch depends on sums:
 * half of them would be guessed wrong. */
static void merge_signs(sorted_sums *to, sorted_sums *from, const float y[SORTS], size_t n, unsigned j)
{
    size_t a[SORTS] = {0}, b[SORTS] = {0};
    float by[SORTS][2];
    for (size_t s = 0; s < SORTS; s++) {
        by[s][0] = -y[s];
        by[s][1] = y[s];
        from[s].sum[n] = 0; /* read behind the end, not used */
        from[s].id[n] = 0;
    }
    for (size_t i = 0; i < 2 * n; i++)
        for (size_t s = 0; s < SORTS; s++) {
            const sorted_sums *f = from + s;
            unsigned more = f->sum[a[s]] + y[s] > f->sum[b[s]] - y[s];
            unsigned up = (unsigned)(b[s] == n) | ((unsigned)(a[s] < n) & more);
            size_t at = b[s] + (a[s] - b[s]) * up;
            to[s].sum[i] = f->sum[at] + by[s][up];
            to[s].id[i] = (unsigned char)(f->id[at] | up << j);
            a[s] += up;
            b[s] += 1 - up;
        }
}

/* Ties, also those that rounding made, go to the lower id; NaN makes all equal. */
static void order_ties(sorted_sums *x)
{
    for (size_t i = 1; i < PARIS_PATTERNS; i++)
        for (size_t k = i; k > 0 && !(x->sum[k - 1] > x->sum[k]) && x->id[k - 1] > x->id[k]; k--) {
            unsigned char t = x->id[k];
            x->id[k] = x->id[k - 1];
            x->id[k - 1] = t;
        }
}

/* The 256 sums +-y_0 +- ... +-y_7 of SORTS rows y. Rounded addition is monotone: a sorted list plus a number stays
 * sorted, so each further element merges two sorted lists. space: twice SORTS lists; returns the half with the
 * result. */
static sorted_sums *sort_patterns(sorted_sums *space, const float *const y[SORTS])
{
    sorted_sums *from = space, *to = space + SORTS;
    for (size_t s = 0; s < SORTS; s++) sort_one(from + s, y[s][0]);
    for (unsigned j = 1; j < PARIS_BLOCK; j++) {
        float next[SORTS];
        for (size_t s = 0; s < SORTS; s++) next[s] = y[s][j];
        merge_signs(to, from, next, (size_t)1 << j, j);
        sorted_sums *t = from;
        from = to, to = t;
    }
    for (size_t s = 0; s < SORTS; s++) order_ties(from + s);
    return from;
}

/* Tiers of the patterns of one block in their order; limits descend. */
static void set_bonus(unsigned char *out, const unsigned char *order, const int32_t *count, const int64_t *limit,
                      size_t n_tiers)
{
    int64_t before = 0;
    for (size_t i = 0, tiers = n_tiers; i < PARIS_PATTERNS; i++) {
        while (tiers > 0 && before >= limit[tiers - 1]) tiers--;
        out[order[i]] = (unsigned char)tiers;
        before += count[order[i]];
    }
}

static void cpu_paris_bonus(backend *be, buf bonus, const paris_index *x, buf y, buf limit, size_t n_tiers, buf read)
{
    (void)be; /* unused without OpenMP */
    size_t n = x->n_kv_heads * paris_blocks(x->head_dim);
    const int32_t *counts = (const int32_t *)(void *)x->count.p;
    int64_t down[PARIS_TIERS];
    for (size_t t = 0; t < n_tiers; t++) {
        size_t i = t;
        for (; i > 0 && down[i - 1] < cpu_i64(limit)[t]; i--) down[i] = down[i - 1];
        down[i] = cpu_i64(limit)[t];
    }
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, n * 2048))
    for (size_t g = 0; g < (n + SORTS - 1) / SORTS; g++) {
        sorted_sums space[2 * SORTS];
        const float *rows[SORTS];
        for (size_t s = 0; s < SORTS; s++) {
            size_t b = g * SORTS + s;
            rows[s] = cpu_f32(y) + (b < n ? b : n - 1) * PARIS_BLOCK;
        }
        const sorted_sums *sorted = sort_patterns(space, rows);
        for (size_t s = 0, b = g * SORTS; s < SORTS && b < n; s++, b++)
            set_bonus(bonus.p + b * PARIS_PATTERNS, sorted[s].id, counts + b * PARIS_PATTERNS, down, n_tiers);
    }
    add_read(read, n * PARIS_PATTERNS * sizeof *counts);
}

static void cpu_paris_collide(backend *be, buf score, size_t stride, const paris_index *x, buf bonus, buf range,
                              int64_t n_max, buf read)
{
    (void)n_max;
    const cpu_kernels *k = cpu_of(be)->k;
    size_t nb = paris_blocks(x->head_dim), first = (size_t)cpu_i64(range)[0], n = (size_t)cpu_i64(range)[1];
    size_t chunks = (n + CHUNK - 1) / CHUNK;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, n * nb * x->n_kv_heads))
    for (size_t i = 0; i < chunks * x->n_kv_heads; i++) {
        size_t h = i / chunks, from = i % chunks * CHUNK, len = n - from < CHUNK ? n - from : CHUNK;
        unsigned char *out = score.p + h * stride + from;
        const unsigned char *id = x->id.p + (h * x->cap + first + from) * nb;
        k->paris_collide(out, id, bonus.p + h * nb * PARIS_PATTERNS, len, nb);
    }
    add_read(read, n * x->n_kv_heads * nb);
}

static void cpu_paris_candidates(backend *be, buf cand, size_t stride, buf score, size_t score_stride,
                                 size_t n_kv_heads, buf range, buf m, int64_t n_max)
{
    (void)n_max;
    const cpu_kernels *k = cpu_of(be)->k;
    size_t n = (size_t)cpu_i64(range)[1], want = cpu_i64(m)[0] < 0 ? 0 : (size_t)cpu_i64(m)[0];
    if (want > n) want = n;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, n * n_kv_heads * 4))
    for (size_t h = 0; h < n_kv_heads; h++)
        k->top_bytes((int32_t *)(void *)cand.p + h * stride, score.p + h * score_stride, (int32_t)cpu_i64(range)[0], n,
                     want);
}

static void cpu_paris_estimate(backend *be, buf est, const paris_index *x, buf y, buf norm, size_t n_heads, buf cand,
                               size_t stride, buf m, int64_t m_max, buf read)
{
    (void)m_max;
    enum { PIECE = CHUNK / 8 };
    size_t nb = paris_blocks(x->head_dim), n = (size_t)cpu_i64(m)[0], group = n_heads / x->n_kv_heads;
    size_t pieces = (n + PIECE - 1) / PIECE;
    const cpu_kernels *k = cpu_of(be)->k;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, n * n_heads * nb * PARIS_BLOCK))
    for (size_t i = 0; i < pieces * x->n_kv_heads; i++) {
        size_t h = i / pieces, from = i % pieces * PIECE;
        paris_piece p = {.token = (const int32_t *)(void *)cand.p + h * stride + from,
                         .n = n - from < PIECE ? n - from : PIECE,
                         .id = x->id.p + h * x->cap * nb,
                         .code = x->code.p + h * x->cap * nb * PARIS_CODE,
                         .n_blocks = nb,
                         .y = cpu_f32(y) + h * group * nb * PARIS_BLOCK,
                         .norm = cpu_f32(norm) + h * group,
                         .group = group,
                         .est = cpu_f32(est) + h * group * stride + from,
                         .stride = stride};
        k->paris_estimate(&p);
    }
    add_read(read, n * x->n_kv_heads * nb * (1 + PARIS_CODE));
}

/* Once a prompt or flush, or short: plain code will do. */
const paris_ops cpu_paris = {
    .mean = ref_paris_mean,
    .encode = cpu_paris_encode,
    .query = cpu_paris_query,
    .count = ref_paris_count,
    .bonus = cpu_paris_bonus,
    .collide = cpu_paris_collide,
    .candidates = cpu_paris_candidates,
    .estimate = cpu_paris_estimate,
    .resolve = ref_paris_resolve,
};
