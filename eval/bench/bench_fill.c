/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/bench/bench_fill.h"

#include <math.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

/* Standard normal numbers, enough that every (layer, chunk) can take rows from a place of its own. */
enum { POOL = 1 << 21 };

static void fill_pool(float *pool, rng *r)
{
    for (size_t i = 0; i < POOL; i += 2) {
        /* Box and Muller 1958; 1 - u is never 0. */
        float radius = sqrtf(-2 * logf(1 - rng_float(r))), angle = 6.28318531f * rng_float(r);
        pool[i] = radius * cosf(angle);
        pool[i + 1] = radius * sinf(angle);
    }
}

/* n numbers from random places of the pool. */
static void take_rows(float *out, const float *pool, size_t n, rng *r)
{
    for (size_t i = 0; i < n;) {
        size_t at = rng_below(r, POOL), run = POOL - at < n - i ? POOL - at : n - i;
        memcpy(out + i, pool + at, run * sizeof *out);
        i += run;
    }
}

/* Keys of n rows of a layer: the same channels stand out in all of them. */
static void widen_outliers(float *k, const attn_shape *sh, size_t n, rng r)
{
    size_t dim = (size_t)sh->head_dim, width = (size_t)sh->n_kv_heads * dim;
    size_t n_out = (dim * FILL_OUTLIERS + 99) / 100;
    for (size_t h = 0; h < (size_t)sh->n_kv_heads; h++) {
        size_t first = rng_below(&r, dim);
        for (size_t i = 0; i < n_out; i++) {
            size_t c = h * dim + (first + i * (dim / n_out)) % dim; /* apart from each other, so each once */
            for (size_t t = 0; t < n; t++) k[t * width + c] *= FILL_SCALE;
        }
    }
}

typedef struct {
    const attn_shape *shape;
    float *pool; /* [POOL] */
    uint64_t seed;
} filler;

static void give_rows(void *source, int layer, int64_t first, size_t n, float *out)
{
    const filler *f = source;
    size_t kv = n * (size_t)f->shape->n_kv_heads * (size_t)f->shape->head_dim;
    rng of_layer = {f->seed ^ (uint64_t)(layer + 1) << 40}, r = {rng_next(&of_layer) + (uint64_t)first};
    take_rows(out, f->pool, 2 * kv, &r);
    widen_outliers(out, f->shape, n, of_layer);
}

status fill_sessions(session *const *s, size_t n_sessions, const fill_options *o, err *e)
{
    filler f = {.shape = decoder_attn_shape(session_decoder(s[0])), .seed = o->seed};
    rng r = {o->seed};
    store_options store = {.n_tokens = o->n_tokens,
                           .after = o->after,
                           .piece = o->piece,
                           .rows = give_rows,
                           .source = &f,
                           .progress = o->progress,
                           .ctx = o->ctx};
    TRY(MEM_NEW(&f.pool, POOL, e));
    fill_pool(f.pool, &r);
    status st = session_store(s, n_sessions, &store, e);
    mem_free(f.pool);
    return st;
}
