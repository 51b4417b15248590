/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

void ref_token_score(backend *be, const token_score_job *j)
{
    size_t d = j->rows.head_dim, kv = j->rows.n_kv_heads;
    attn_job read = ref_slots_job(&j->rows, j->lo, j->hi - j->lo, j->read);
    if (j->hi <= j->lo || ref_token_again(j->state)) return;
    ref_count_read(&read, false);
    for (size_t h = 0; h < j->n_heads; h++)
        for (int64_t i = j->lo; i < j->hi; i++) {
            float k[256];
            ref_k_row(k, &j->rows, h / (j->n_heads / kv), i);
            *f32_at(j->score, h * j->stride + (size_t)i) = ref_dot16(f32_at(j->q, h * d), k, d);
        }
    const combine_job votes = token_votes(j);
    if (j->votes.p) ref_select_combine(be, &votes, 1);
}

void ref_token_match(backend *be, const token_cache *c, buf u, int64_t lo, int64_t hi)
{
    int64_t *state = i64_at(c->state, 0);
    float xy = 0, xx = 0, yy = 0;
    for (size_t i = 0; i < c->n_parts; i++) {
        const float *x = f32_at(u, i * c->part), *y = f32_at(c->probe, i * c->part);
        xy += ref_dot16(x, y, c->part);
        xx += ref_dot16(x, x, c->part);
        yy += ref_dot16(y, y, c->part);
    }
    bool near = xx > 0 && yy > 0 && xy >= c->least * sqrtf(xx) * sqrtf(yy);
    near &= state[TOKEN_AGAIN] >= 0 && state[TOKEN_AGAIN] < c->most;
    state[TOKEN_FRESH] = !near;
    state[TOKEN_AGAIN] = near ? state[TOKEN_AGAIN] + 1 : 0;
    state[TOKEN_FIRST] = lo;
    state[TOKEN_COUNT] = near ? 0 : hi - lo;
    if (near) return;
    state[TOKEN_END] = hi;
    memcpy(c->probe.p, u.p, c->n_parts * c->part * sizeof(float));
}

void ref_token_keep(backend *be, buf out, buf in, int64_t lo, int64_t hi, buf state)
{
    float *o = f32_at(out, 0);
    const float *x = f32_at(in, 0);
    bool again = ref_token_again(state);
    int64_t end = again ? *i64_at(state, TOKEN_END) : lo;
    for (int64_t i = end > lo ? end : lo; i < hi; i++) o[i] = !again && x[i] > -INFINITY ? x[i] : -INFINITY;
}

void ref_token_gather(backend *be, const kv_rows *out, const kv_rows *rows, buf idx, int64_t n, buf read)
{
    size_t d = rows->head_dim;
    attn_job job = ref_slots_job(rows, 0, n, read);
    job.idx = idx;
    ref_count_read(&job, true);
    for (size_t i = 0; i < (size_t)n; i++) {
        size_t slot = (size_t)*i32_at(idx, i);
        for (size_t h = 0; h < rows->n_kv_heads; h++) {
            ref_row(rows, false, h, slot, f32_at(out->k, (h * out->cap + i) * d));
            ref_row(rows, true, h, slot, f32_at(out->v, (h * out->cap + i) * d));
        }
    }
}
