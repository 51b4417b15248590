/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

enum { HALVES = 2 /* K, V */ };

static float *sum_of(const tail_sums *s, size_t head, size_t half, int64_t block)
{
    return f32_at(s->sum, ((head * HALVES + half) * s->cap + (size_t)block) * s->head_dim);
}

/* The row of position p, of one half, joins its block. */
static void join(const tail_sums *s, size_t head, size_t half, int64_t p, const float *row)
{
    float *sum = sum_of(s, head, half, p / s->block);
    if (p % s->block == 0) memset(sum, 0, s->head_dim * sizeof *sum);
    for (size_t c = 0; c < s->head_dim; c++) sum[c] += row[c];
}

void ref_tail_add(backend *be, const tail_add_job *jobs, size_t n)
{
    float row[256];
    for (const tail_add_job *j = jobs; j < jobs + n; j++)
        for (size_t i = 0; i < j->n * j->to->n_kv_heads * HALVES; i++) {
            size_t half = i % HALVES, at = i / HALVES, head = at % j->to->n_kv_heads;
            ref_round_row(row, half ? j->v : j->k, at, j->to->head_dim, j->to->type);
            join(j->to, head, half, j->first + (int64_t)(at / j->to->n_kv_heads), row);
        }
}

void ref_tail_redo(backend *be, const tail_sums *s, const kv_rows *rows, int64_t n)
{
    float row[256];
    for (size_t i = 0; i < s->n_kv_heads * HALVES; i++)
        for (int64_t p = n / s->block * s->block; p < n; p++) {
            ref_row(rows, i % HALVES, i / HALVES, (size_t)p, row);
            join(s, i / HALVES, i % HALVES, p, row);
        }
}

attn_list ref_tail_list(const tail_rest_job *j, size_t head, int i)
{
    if (i == 0) return ref_list_of(&j->of, head);
    return (attn_list){.first = j->more[i - 1].first, .n = j->more[i - 1].n};
}

int64_t ref_tail_left(const tail_rest_job *j, size_t head)
{
    int64_t m = j->n;
    for (int i = 0; i <= TAIL_RANGES; i++) m -= ref_tail_list(j, head, i).n;
    return m;
}

/* out: the attended rows of a query head, added up. */
static void sum_lists(float *out, const tail_rest_job *j, bool value, size_t head)
{
    const kv_rows *rows = &j->of.rows;
    float part[TAIL_PARTS][256] = {{0}}, row[256];
    size_t d = rows->head_dim, region = head / (j->of.n_heads / rows->n_kv_heads);
    for (int r = 0; r <= TAIL_RANGES; r++) {
        attn_list l = ref_tail_list(j, head, r);
        for (int64_t i = 0; i < l.n; i++) {
            ref_row(rows, value, region, list_slot(&l, i), row);
            for (size_t c = 0; c < d; c++) part[i % TAIL_PARTS][c] += row[c];
        }
    }
    memcpy(out, part[0], d * sizeof *out);
    for (int p = 1; p < TAIL_PARTS; p++)
        for (size_t c = 0; c < d; c++) out[c] += part[p][c];
}

void ref_tail_row(float *out, const tail_rest_job *j, size_t head, bool value, const float *attended, int64_t m)
{
    size_t d = j->sums->head_dim;
    memset(out, 0, d * sizeof *out);
    if (m <= 0) return;
    memcpy(out, sum_of(j->sums, head, value, 0), d * sizeof *out);
    for (int64_t b = 1; b < tail_blocks(j->n, j->sums->block); b++)
        for (size_t c = 0; c < d; c++) out[c] += sum_of(j->sums, head, value, b)[c];
    for (size_t c = 0; c < d; c++) out[c] = (out[c] - attended[c]) / (float)m;
}

float ref_tail_bias(int64_t m)
{
    return m > 0 ? (float)log((double)m) : -INFINITY;
}

void ref_tail_block(float *out, const tail_rest_job *j, size_t head, bool value, int64_t b, int64_t m)
{
    const float *sum = sum_of(j->sums, head, value, b);
    for (size_t c = 0; c < j->sums->head_dim; c++) out[c] = m > 0 ? (sum[c] - out[c]) / (float)m : 0;
}

/* The rows of block b of the query heads [h, h + share). */
static void rest_of_block(const tail_rest_job *j, size_t h, size_t share, int64_t b)
{
    const kv_rows *rows = &j->of.rows;
    size_t d = j->sums->head_dim, at = (h / share * j->rows + (size_t)b) * d;
    int64_t left = j->n - b * j->sums->block, m = left < j->sums->block ? left : j->sums->block;
    float *out[HALVES] = {f32_at(j->k, at), f32_at(j->v, at)}, row[256];
    for (int half = 0; half < HALVES; half++) memset(out[half], 0, d * sizeof(float));
    for (int r = 0; r <= TAIL_RANGES; r++) {
        attn_list l = ref_tail_list(j, h, r);
        for (int64_t i = 0; i < l.n; i++) {
            size_t slot = list_slot(&l, i);
            if ((int64_t)slot / j->sums->block != b) continue;
            for (int half = 0; half < HALVES; half++) {
                ref_row(rows, half, h / (j->of.n_heads / rows->n_kv_heads), slot, row);
                for (size_t c = 0; c < d; c++) out[half][c] += row[c];
            }
            m--;
        }
    }
    for (int half = 0; half < HALVES; half++)
        ref_tail_block(out[half], j, h / (j->of.n_heads / j->sums->n_kv_heads), half, b, m);
    for (size_t i = h; i < h + share; i++) *f32_at(j->bias, i * j->rows + (size_t)b) = ref_tail_bias(m);
}

static void rest_of_blocks(const tail_rest_job *j, size_t h, size_t share)
{
    for (int64_t b = 0; b < tail_blocks(j->n, j->sums->block); b++) rest_of_block(j, h, share, b);
}

/* The row of the query heads [h, h + share). */
static void rest_of(const tail_rest_job *j, size_t h, size_t share)
{
    size_t head = h / (j->of.n_heads / j->sums->n_kv_heads), at = h / share * j->sums->head_dim;
    int64_t m = ref_tail_left(j, h);
    float attended[256];
    for (size_t half = 0; half < HALVES; half++) {
        sum_lists(attended, j, half, h);
        ref_tail_row(f32_at(half ? j->v : j->k, at), j, head, half, attended, m);
    }
    for (size_t i = h; i < h + share; i++) *f32_at(j->bias, i) = ref_tail_bias(m);
}

void ref_tail_rest(backend *be, const tail_rest_job *jobs, size_t n)
{
    for (const tail_rest_job *j = jobs; j < jobs + n; j++) {
        for (size_t h = 0; h < j->of.n_heads; h += tail_share(j))
            (j->rows > 1 ? rest_of_blocks : rest_of)(j, h, tail_share(j));
        ref_count_read(&j->of, true);
        for (int i = 0; i < TAIL_RANGES; i++) {
            attn_job more = tail_range_job(j, i);
            ref_count_read(&more, true);
        }
        if (j->of.read.p) add_bytes(buf_at(j->of.read, READ_INDEX * sizeof(uint64_t)), tail_bytes(j->sums, j->n));
    }
}

/* ---- samples ---- */

/* Entries of a list, which ascends, with a slot of at most p. */
static int64_t entries_until(const attn_list *l, int64_t p)
{
    int64_t lo = 0, hi = l->n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if ((int64_t)list_slot(l, mid) <= p) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Token number `rank`, from 0 on, of those that the lists of a query head leave. */
static int64_t left_at(const tail_rest_job *j, size_t head, int64_t rank)
{
    int64_t lo = 0, hi = j->n - 1;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2, left = mid + 1;
        for (int i = 0; i <= TAIL_RANGES; i++) {
            attn_list l = ref_tail_list(j, head, i);
            left -= entries_until(&l, mid);
        }
        if (left > rank) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

/* The sample of one list, which is that of query heads from `head` on. */
static void sample_list(const tail_sample_job *j, size_t list, size_t head, size_t share)
{
    const tail_rest_job *r = &j->rest;
    int64_t m = ref_tail_left(r, head), b = m < (int64_t)r->rows ? m : (int64_t)r->rows;
    for (int64_t i = 0; i < b; i++) {
        int64_t lo = i * m / b, size = (i + 1) * m / b - lo;
        int64_t rank = lo + tail_draw(j->seed, r->n - 1, j->layer, list, (size_t)i, size);
        *i32_at(j->idx, list * r->rows + (size_t)i) = (int32_t)left_at(r, head, rank);
        for (size_t h = head; h < head + share; h++) *f32_at(r->bias, h * r->rows + (size_t)i) = ref_tail_bias(size);
    }
    *i64_at(j->range, 2 * list) = 0;
    *i64_at(j->range, 2 * list + 1) = b;
    *i64_at(j->left, list) = m;
}

void ref_tail_sample(backend *be, const tail_sample_job *jobs, size_t n)
{
    for (const tail_sample_job *j = jobs; j < jobs + n; j++) {
        size_t share = j->rest.of.n_heads / j->rest.of.n_lists;
        for (size_t l = 0; l < j->rest.of.n_lists; l++) sample_list(j, l, l * share, share);
    }
}

/* Share and sigma of a query head whose sample has b of m tokens. */
static void missed_of(const tail_missed_job *j, size_t head, int64_t b, int64_t m)
{
    float *out = f32_at(j->out, 2 * head);
    const float *score = f32_at(j->of.scores, head * j->of.score_stride);
    double top = -(double)INFINITY, all = 0, tau = 0, turns = 0, before = 0;
    out[0] = out[1] = 0;
    for (size_t p = 0; p < j->n_parts; p++) top = fmax(top, (double)*f32_at(j->parts, p * j->stride + head));
    for (size_t p = 0; p < j->n_parts; p++) all += exp((double)*f32_at(j->parts, p * j->stride + head) - top);
    if (b == 0 || !(all > 0)) return;
    for (int64_t i = 0; i < b; i++) {
        double y = exp((double)score[i] - top) / all;
        tau += y;
        turns += i ? (y - before) * (y - before) : 0;
        before = y;
    }
    double var = b < m ? (1 - (double)b / (double)m) * (double)b / (2 * (double)(b - 1)) * turns : 0;
    tau = fmin(tau, 1);
    out[0] = (float)tau;
    out[1] = tau > 0 ? (float)(sqrt(var) / tau) : 0;
}

void ref_tail_missed(backend *be, const tail_missed_job *jobs, size_t n)
{
    for (const tail_missed_job *j = jobs; j < jobs + n; j++)
        for (size_t l = 0, share = j->of.n_heads / j->of.n_lists; l < j->of.n_lists; l++) {
            double sum = 0, off = 0;
            for (size_t h = l * share; h < (l + 1) * share; h++) {
                missed_of(j, h, *i64_at(j->of.range, 2 * l + 1), *i64_at(j->left, l));
                double tau = (double)*f32_at(j->out, 2 * h);
                sum += tau;
                off += tau * (1 - tau) * (double)*f32_at(j->out, 2 * h + 1);
            }
            if (!j->of.read.p) continue;
            uint64_t *read = (uint64_t *)(void *)j->of.read.p;
            read[READ_MISSED] += (uint64_t)(sum * READ_ONE + 0.5);
            read[READ_MISSED_VAR] += (uint64_t)(off * off * READ_ONE + 0.5);
            read[READ_MEASURED] += share;
        }
}
