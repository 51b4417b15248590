/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/bench/bench_fill.h"

#include <math.h>

#include "kernels/base/mem.h"
#include "kernels/ops_codes.h"

/* Size of the pool of standard normal numbers: large enough that each (layer, chunk) takes rows from its own offset. */
enum { POOL = 1 << 21 };

void fill_normals(rng *r, float *x, size_t n)
{
    for (size_t i = 0; i + 1 < n; i += 2) {
        /* Box and Muller 1958; 1 - u is never 0. */
        float radius = sqrtf(-2 * logf(1 - rng_float(r))), angle = 6.28318531f * rng_float(r);
        x[i] = radius * cosf(angle);
        x[i + 1] = radius * sinf(angle);
    }
}

typedef struct {
    backend *be;
    const attn_shape *shape;
    buf pool;      /* f32 [POOL] in the backend's memory */
    buf narrow;    /* f32 [kv_heads][head_dim] divisors of a layer's keys */
    float *factor; /* the same in host memory */
    uint64_t seed;
} filler;

/* Fills n keys and n values with numbers from random offsets of the pool. */
static void take_rows(const filler *f, buf k, buf v, size_t n, rng *r)
{
    for (size_t i = 0; i < 2 * n;) {
        size_t at = rng_below(r, POOL), run = POOL - at < 2 * n - i ? POOL - at : 2 * n - i;
        for (size_t end = i + run; i < end;) {
            size_t in_half = i < n ? n - i : 2 * n - i, m = end - i < in_half ? end - i : in_half;
            buf to = i < n ? buf_at(k, i * sizeof(float)) : buf_at(v, (i - n) * sizeof(float));
            f->be->ops->copy(f->be, to, buf_at(f->pool, at * sizeof(float)), m * sizeof(float));
            i += m, at += m;
        }
    }
}

/* Scales up outlier channels in the keys of n rows of a layer. All rows of a layer have the same outlier channels. */
static void widen_outliers(const filler *f, buf k, size_t n, rng r)
{
    size_t dim = (size_t)f->shape->head_dim, heads = (size_t)f->shape->n_kv_heads;
    size_t n_out = (dim * FILL_OUTLIERS + 99) / 100;
    for (size_t i = 0; i < heads * dim; i++) f->factor[i] = 1;
    for (size_t h = 0; h < heads; h++) {
        size_t first = rng_below(&r, dim);
        for (size_t i = 0; i < n_out; i++) /* distinct channels */
            f->factor[h * dim + (first + i * (dim / n_out)) % dim] = 1.0f / FILL_SCALE;
    }
    f->be->ops->upload(f->be, f->narrow, f->factor, heads * dim * sizeof(float));
    f->be->ops->codes->divide_channels(f->be, k, k, f->narrow, n, heads, heads, dim);
}

static void give_rows(void *source, int layer, int64_t first, size_t n, buf k, buf v)
{
    const filler *f = source;
    rng of_layer = {f->seed ^ (uint64_t)(layer + 1) << 40}, r = {rng_next(&of_layer) + (uint64_t)first};
    take_rows(f, k, v, n * (size_t)f->shape->n_kv_heads * (size_t)f->shape->head_dim, &r);
    widen_outliers(f, k, n, of_layer);
}

/* Creates the pool in the backend's memory, so that a device copies within its own memory. */
static status open_filler(filler *f, size_t channels, err *e)
{
    rng r = {f->seed};
    float *pool;
    TRY(MEM_NEW(&f->factor, channels, e));
    TRY(f->be->ops->alloc(f->be, &f->narrow, channels * sizeof(float), "random rows", e));
    TRY(f->be->ops->alloc(f->be, &f->pool, POOL * sizeof(float), "random rows", e));
    TRY(MEM_NEW(&pool, POOL, e));
    fill_normals(&r, pool, POOL);
    f->be->ops->upload(f->be, f->pool, pool, POOL * sizeof(float));
    mem_free(pool);
    return backend_fault(f->be, e);
}

static void close_filler(filler *f, size_t channels)
{
    if (f->pool.p) f->be->ops->free(f->be, f->pool, POOL * sizeof(float));
    if (f->narrow.p) f->be->ops->free(f->be, f->narrow, channels * sizeof(float));
    mem_free(f->factor);
}

status fill_sessions(session *const *s, size_t n_sessions, const fill_options *o, err *e)
{
    decoder *d = session_decoder(s[0]);
    filler f = {.be = decoder_model(d)->be, .shape = decoder_attn_shape(d), .seed = o->seed};
    size_t channels = (size_t)f.shape->n_kv_heads * (size_t)f.shape->head_dim;
    store_options store = {.n_tokens = o->n_tokens,
                           .after = o->after,
                           .piece = o->piece,
                           .rows = give_rows,
                           .source = &f,
                           .progress = o->progress,
                           .ctx = o->ctx};
    status st = open_filler(&f, channels, e);
    if (st == ST_OK) st = session_store(s, n_sessions, &store, e);
    close_filler(&f, channels);
    return st;
}
