/* SPDX-License-Identifier: MIT */
/* Code shared by the ops: scratch memory, sums over ranks, rows in the kernels' format. */
#include "config.h"

#include "kernels/base/mem.h"
#include "kernels/comm.h"
#include "kernels/cpu/cpu.h"

/* Address space is free until it is touched, so small contexts never reallocate. */
enum { SCRATCH_MIN = 4 << 20 };

void *cpu_scratch(backend *be, scratch *s, size_t n, size_t size, const char *what)
{
    size_t bytes;
    if (size_mul(&bytes, n, size, what, &be->fault) != ST_OK) return NULL;
    if (s->p && bytes <= s->bytes) return s->p;
    if (s->p) bytes += bytes / 2;
    if (bytes < SCRATCH_MIN) bytes = SCRATCH_MIN;
    mem_unmap(s->p, s->bytes);
    *s = (scratch){0};
    if (mem_map_anon(&s->p, bytes, what, &be->fault) != ST_OK) return NULL;
    s->bytes = bytes;
    return s->p;
}

void cpu_over_ranks(backend *be, float *x, size_t n, bool mean)
{
    int ranks = backend_ranks(be);
    if (ranks == 1 || be->fault.code != ST_OK) return;
    comm_all_reduce(be->ranks, x, n, &be->fault);
    for (size_t i = 0; mean && i < n; i++) x[i] /= (float)ranks;
}

bool cpu_dim_fits(backend *be, size_t head_dim)
{
    if (head_dim <= HEAD_DIM_MAX) return true;
    err_set(&be->fault, ST_UNSUPPORTED, "attention: head_dim %zu: must be at most %d", head_dim, (int)HEAD_DIM_MAX);
    return false;
}

row_source cpu_rows(const kv_rows *r, bool value, size_t kv_head)
{
    const kv_codes *c = &r->codes;
    size_t d = r->head_dim, region = kv_head * r->cap * kv_row_bytes(r->type, d);
    row_source s = {.exact = (value ? r->v : r->k).p + region,
                    .type = r->type,
                    .rotated = r->rotated & (value ? KV_ROTATED_V : KV_ROTATED_K),
                    .head_dim = d,
                    .bits = c->bits};
    if (c->bits == 0) return s;
    bool by_token = value || c->by_token;
    size_t pair_bytes = by_token ? c->cap * codes_runs(c, d) * 4 : c->cap / c->group * d * 4;
    s.at = (const int32_t *)(void *)(value ? c->v_at : c->k_at).p;
    s.row_bytes = codes_row_bytes(c, d);
    s.code = (value ? c->v : c->k).p + kv_head * c->cap * s.row_bytes;
    s.pair = (value ? c->v_pair : c->k_pair).p + kv_head * pair_bytes;
    s.group = by_token ? 0 : c->group;
    s.run = c->run;
    s.zero_point = c->zero_point;
    return s;
}
