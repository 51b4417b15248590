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

/* The 256 sums +-y_0 +- ... +-y_7 in descending order. Rounded addition is monotone: a sorted list plus a
 * number stays sorted, so each further element merges two sorted lists. */
static void sort_patterns(unsigned char *id, const float *y)
{
    float v[2][PARIS_PATTERNS] = {{y[0], -y[0]}}, *from = v[0], *to = v[1];
    unsigned char ids[2][PARIS_PATTERNS] = {{1, 0}}, *from_id = ids[0], *to_id = ids[1];
    if (y[0] < 0) {
        v[0][0] = -y[0], v[0][1] = y[0];
        ids[0][0] = 0, ids[0][1] = 1;
    }
    for (size_t j = 1, n = 2; j < PARIS_BLOCK; j++, n *= 2) {
        size_t a = 0, b = 0;
        for (size_t i = 0; i < 2 * n; i++) {
            float plus = a < n ? from[a] + y[j] : -INFINITY, minus = b < n ? from[b] - y[j] : -INFINITY;
            bool up = b == n || (a < n && plus > minus);
            to[i] = up ? plus : minus;
            to_id[i] = (unsigned char)(up ? from_id[a] | 1u << j : from_id[b]);
            a += up;
            b += !up;
        }
        float *f = from;
        unsigned char *g = from_id;
        from = to, to = f;
        from_id = to_id, to_id = g;
    }
    memcpy(id, from_id, PARIS_PATTERNS);
    /* Ties, also those that rounding made, go to the lower id; NaN makes all equal. */
    for (size_t i = 1; i < PARIS_PATTERNS; i++)
        for (size_t k = i; k > 0 && id[k - 1] > id[k] && !(from[k - 1] > from[k]); k--) {
            unsigned char t = id[k];
            id[k] = id[k - 1];
            id[k - 1] = t;
        }
}

static void cpu_paris_bonus(backend *be, buf bonus, const paris_index *x, buf y, buf limit, size_t n_tiers, buf read)
{
    (void)be; /* unused without OpenMP */
    size_t n = x->n_kv_heads * paris_blocks(x->head_dim);
    const int32_t *counts = (const int32_t *)(void *)x->count.p;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, n * 2048))
    for (size_t b = 0; b < n; b++) {
        unsigned char order[PARIS_PATTERNS], *out = bonus.p + b * PARIS_PATTERNS;
        const int32_t *count = counts + b * PARIS_PATTERNS;
        int64_t before = 0;
        sort_patterns(order, cpu_f32(y) + b * PARIS_BLOCK);
        for (size_t i = 0; i < PARIS_PATTERNS; i++) {
            unsigned tiers = 0;
            for (size_t t = 0; t < n_tiers; t++) tiers += before < cpu_i64(limit)[t];
            out[order[i]] = (unsigned char)tiers;
            before += count[order[i]];
        }
    }
    add_read(read, n * PARIS_PATTERNS * sizeof *counts);
}

static inline __attribute__((always_inline)) void collide(unsigned char *score, const unsigned char *id,
                                                          const unsigned char *bonus, size_t n, size_t nb)
{
    for (size_t i = 0; i < n; i++, id += nb) {
        unsigned sum = 0;
        for (size_t b = 0; b < nb; b++) sum += bonus[b * PARIS_PATTERNS + id[b]];
        score[i] = (unsigned char)sum;
    }
}

static void cpu_paris_collide(backend *be, buf score, size_t stride, const paris_index *x, buf bonus, buf range,
                              int64_t n_max, buf read)
{
    (void)be; /* unused without OpenMP */
    (void)n_max;
    size_t nb = paris_blocks(x->head_dim), first = (size_t)cpu_i64(range)[0], n = (size_t)cpu_i64(range)[1];
    size_t chunks = (n + CHUNK - 1) / CHUNK;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, n * nb * x->n_kv_heads))
    for (size_t i = 0; i < chunks * x->n_kv_heads; i++) {
        size_t h = i / chunks, from = i % chunks * CHUNK, len = n - from < CHUNK ? n - from : CHUNK;
        unsigned char *out = score.p + h * stride + from;
        const unsigned char *id = x->id.p + (h * x->cap + first + from) * nb;
        const unsigned char *table = bonus.p + h * nb * PARIS_PATTERNS;
        /* the usual sizes with loops that unroll */
        if (nb == 16) collide(out, id, table, len, 16);
        else if (nb == 8) collide(out, id, table, len, 8);
        else collide(out, id, table, len, nb);
    }
    add_read(read, n * x->n_kv_heads * nb);
}

static void choose_candidates(int32_t *out, const unsigned char *s, int32_t first, size_t n, size_t want)
{
    uint32_t count[4][256] = {{0}}; /* four, so that equal scores in a row do not wait for each other */
    size_t least = 255, left = want;
    for (size_t i = 0; i < n; i++) count[i % 4][s[i]]++;
    for (size_t v = 0; v < 256; v++) count[0][v] += count[1][v] + count[2][v] + count[3][v];
    while (least > 0 && left > count[0][least]) left -= count[0][least--];
    for (size_t i = 0, m = 0; i < n && m < want; i++) {
        bool tie = s[i] == least && left > 0;
        out[m] = first + (int32_t)i;
        m += tie || s[i] > least;
        left -= tie;
    }
}

static void cpu_paris_candidates(backend *be, buf cand, size_t stride, buf score, size_t score_stride,
                                 size_t n_kv_heads, buf range, buf m, int64_t n_max)
{
    (void)be; /* unused without OpenMP */
    (void)n_max;
    size_t n = (size_t)cpu_i64(range)[1], want = cpu_i64(m)[0] < 0 ? 0 : (size_t)cpu_i64(m)[0];
    if (want > n) want = n;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, n * n_kv_heads * 4))
    for (size_t h = 0; h < n_kv_heads; h++)
        choose_candidates((int32_t *)(void *)cand.p + h * stride, score.p + h * score_stride,
                          (int32_t)cpu_i64(range)[0], n, want);
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
