/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/cpu/votes.h"

#include <math.h>

vote_lists votes_of(float *out, size_t stride, size_t heads, size_t n, float scale)
{
    return (vote_lists){.out = out,
                        .stride = stride,
                        .heads = heads,
                        .n = n,
                        .chunks = (n + VOTE_CHUNK - 1) / VOTE_CHUNK,
                        .by = scale * 1.44269504f};
}

size_t vote_floats(const vote_lists *all)
{
    return (all->heads * (all->n + 2 * all->chunks + 1) + 15) / 16 * 16;
}

vote_list vote_at(const vote_lists *all, size_t list, float *work)
{
    vote_list v = {.of = all, .out = all->out + list * all->stride, .e = work};
    v.top = v.e + all->heads * all->n;
    v.sum = v.top + all->heads * all->chunks;
    v.lse = v.sum + all->heads * all->chunks;
    return v;
}

size_t vote_items(const vote_lists *all, size_t chunk)
{
    size_t from = chunk * VOTE_CHUNK;
    return all->n - from < VOTE_CHUNK ? all->n - from : VOTE_CHUNK;
}

void vote_exp(const cpu_kernels *k, const vote_list *v, size_t h, size_t chunk, const float *x)
{
    size_t i = h * v->of->chunks + chunk;
    k->vote_exp(v->e + h * v->of->n + chunk * VOTE_CHUNK, v->top + i, v->sum + i, x, v->of->by,
                vote_items(v->of, chunk));
}

/* Combines the chunks of a head to its log-sum-exp, to the base 2. */
void vote_head(const vote_list *v, size_t h)
{
    const float *t = v->top + h * v->of->chunks, *s = v->sum + h * v->of->chunks;
    float top = -INFINITY, sum = 0;
    for (size_t c = 0; c < v->of->chunks; c++)
        if (t[c] > top) top = t[c];
    for (size_t c = 0; c < v->of->chunks; c++)
        if (t[c] > -INFINITY) sum += s[c] * exp2f(t[c] - top);
    v->lse[h] = top == -INFINITY ? top : top + log2f(sum);
}

bool vote_sum(const cpu_kernels *k, const vote_list *v, size_t chunk, const float *x, size_t stride)
{
    float factor[VOTE_HEADS];
    size_t from = chunk * VOTE_CHUNK;
    for (size_t h = 0; h < v->of->heads; h++) {
        float t = v->top[h * v->of->chunks + chunk];
        factor[h] = t == -INFINITY ? 0 : exp2f(t - v->lse[h]);
    }
    vote_job j = {.x = x,
                  .e = v->e + from,
                  .stride = stride,
                  .e_stride = v->of->n,
                  .heads = v->of->heads,
                  .n = vote_items(v->of, chunk),
                  .by = v->of->by,
                  .factor = factor,
                  .lse = v->lse};
    return k->vote_sum(v->out + from, &j);
}
