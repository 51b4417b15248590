/* SPDX-License-Identifier: MIT */
/* Ops on quantized rows, split over heads and blocks of rows. */
#include "config.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/ops_codes.h"
#include "kernels/ref/ref.h"

enum { FETCH_ROWS = 256, ENCODE_ROWS = 64 };

/* Splits work into pieces that start at groups. */
void cpu_codes_encode(backend *be, const kv_rows *r, bool value, buf src, size_t first, size_t n)
{
    const cpu_kernels *kernels = cpu_of(be)->k;
    unsigned char *code = (value ? r->codes.v : r->codes.k).p, *pair = (value ? r->codes.v_pair : r->codes.k_pair).p;
    size_t group = value || r->codes.by_token ? 1 : r->codes.group;
    size_t step = (ENCODE_ROWS + group - 1) / group * group, blocks = (n + step - 1) / step;
    if (!cpu_dim_fits(be, r->head_dim)) return;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, n * r->n_kv_heads * r->head_dim * 8))
    for (size_t i = 0; i < r->n_kv_heads * blocks; i++) {
        size_t at = i % blocks * step, rows = n - at < step ? n - at : step;
        row_source s = cpu_rows(r, value, i / blocks);
        kernels->encode(code + (s.code - code), pair + (s.pair - pair), &s, i64_at(src, 0) + at, first + at, rows);
    }
}

enum { DEMOTE_ROWS = ENCODE_ROWS + 1024 }; /* a group extends at most so far past a multiple of ENCODE_ROWS */

/* Moves rows [i0, i0 + n) of a job, of K or V in region h. */
static void demote_some(const cpu_kernels *kernels, const demote_job *j, bool value, size_t h, size_t i0, size_t n)
{
    row_source to = cpu_rows(j->to, value, h), from = cpu_rows(j->from, value, h);
    const int32_t *slot = i32_at(j->slot, (j->n_lists == 1 ? 0 : h) * j->stride) + i0;
    size_t d = to.head_dim, row = kv_row_bytes(j->to->type, d);
    unsigned char *rows = (value ? j->to->v : j->to->k).p, *code = (value ? j->to->codes.v : j->to->codes.k).p,
                  *pair = (value ? j->to->codes.v_pair : j->to->codes.k_pair).p;
    if (j->exact) {
        float x[HEAD_DIM_MAX];
        rows += (h * j->to->cap + j->first + i0) * row;
        for (size_t i = 0; i < n; i++) {
            kernels->get_row(x, from.exact + (size_t)slot[i] * kv_row_bytes(from.type, d), from.type, from.rotated, d);
            kernels->put_row(rows + i * row, x, j->to->type, to.rotated, d);
        }
        return;
    }
    int64_t src[DEMOTE_ROWS];
    for (size_t i = 0; i < n; i++) src[i] = slot[i];
    code += to.code - code, pair += to.pair - pair;
    to.exact = from.exact;
    to.type = from.type;
    to.rotated = from.rotated;
    to.factor = value ? NULL : f32_at(j->factor, h * d);
    kernels->encode(code, pair, &to, src, j->first + i0, n);
}

void cpu_codes_demote(backend *be, const demote_job *j)
{
    const kv_codes *c = &j->to->codes;
    size_t group = j->exact || c->by_token ? 1 : c->group, step = (ENCODE_ROWS + group - 1) / group * group;
    size_t blocks = (j->n + step - 1) / step, halves = 2 * j->to->n_kv_heads;
    if (!cpu_dim_fits(be, j->to->head_dim)) return;
    if (step > DEMOTE_ROWS) {
        err_set(&be->fault, ST_UNSUPPORTED, "demote: groups of %zu rows: must be at most 1024", group);
        return;
    }
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, j->n *halves * j->to->head_dim * 8))
    for (size_t i = 0; i < halves * blocks; i++) {
        size_t at = i % blocks * step, half = i / blocks;
        demote_some(cpu_of(be)->k, j, half % 2, half / 2, at, j->n - at < step ? j->n - at : step);
    }
}

void cpu_codes_fetch(backend *be, const kv_rows *out, const kv_rows *rows, int64_t first, int64_t n, buf read)
{
    const cpu_kernels *kernels = cpu_of(be)->k;
    size_t d = rows->head_dim, blocks = ((size_t)n + FETCH_ROWS - 1) / FETCH_ROWS;
    attn_job j = ref_slots_job(rows, first, n, read);
    if (!cpu_dim_fits(be, d) || !cpu_count_read(be, &j, out->v.p)) return;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, (size_t)n * rows->n_kv_heads * d))
    for (size_t i = 0; i < rows->n_kv_heads * blocks; i++) {
        size_t head = i / blocks, at = i % blocks * FETCH_ROWS, to = (head * out->cap + at) * d;
        size_t some = (size_t)n - at < FETCH_ROWS ? (size_t)n - at : FETCH_ROWS;
        row_source k = cpu_rows(rows, false, head), v = cpu_rows(rows, true, head);
        kernels->rows(f32_at(out->k, 0) + to, d, &k, NULL, first + (int64_t)at, some);
        if (out->v.p) kernels->rows(f32_at(out->v, 0) + to, d, &v, NULL, first + (int64_t)at, some);
    }
}

void cpu_codes_round(backend *be, buf out, buf in, const kv_rows *rows, bool value, size_t n)
{
    const cpu_kernels *kernels = cpu_of(be)->k;
    size_t d = rows->head_dim, all = n * rows->n_kv_heads;
    bool rotated = rows->rotated & (value ? KV_ROTATED_V : KV_ROTATED_K);
    if (!cpu_dim_fits(be, d)) return;
#pragma omp parallel for schedule(static) num_threads(cpu_team(be, all *d * 8))
    for (size_t i = 0; i < all; i++) {
        unsigned char row[HEAD_DIM_MAX * sizeof(float)];
        kernels->put_row(row, f32_at(in, i * d), rows->type, rotated, d);
        kernels->get_row(f32_at(out, i * d), row, rows->type, rotated, d);
    }
}
