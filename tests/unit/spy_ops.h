/* SPDX-License-Identifier: MIT */
/* A backend that observes ops independently of the strategy: allocated bytes, tokens attended by decode steps, and any
 * dependence on the order of visits. */
#ifndef TESTS_UNIT_SPY_OPS_H
#define TESTS_UNIT_SPY_OPS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/sequence.h"
#include "kernels/base/rng.h"
#include "kernels/ops.h"
#include "kernels/ops_tail.h"

enum { SPY_HEADS = 16 };

static struct {
    const backend_ops *real;
    backend_ops ops;
    size_t rows, codes, other; /* bytes allocated now: exact rows, quantized rows, anything else */
    size_t given;              /* bytes discarded */
    bool on;                   /* decode steps of one sequence are observed: */
    int64_t head[SPY_HEADS];   /* tokens that each head attended in the current layer */
    int64_t most;              /* in any layer */
    double sum, loose;         /* over all layers: mean over heads; rounding tolerance of the mean */
    bool reordered;            /* another order gave the same up to rounding */
    const attn_work *work;     /* of these steps: */
    bool listed;               /* it lists as many tokens as each head attended */
    bool by_codes;             /* equality is to 16 bits if the level multiplies codes directly (ops_rows.h) */
    tail_ops tail;
    const unsigned char *sample; /* the last sampled list: its tokens do not count as attended */
    rng r;
} spy;

static size_t *spy_kind(const char *what)
{
    static const char *const rows[] = {"K rows", "V rows", "demoted K", "demoted V"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(what, rows[i]) == 0) return &spy.rows;
    return strcmp(what, "KV codes") == 0 ? &spy.codes : &spy.other;
}

/* Purpose of each allocated buffer, by address. */
static struct {
    const unsigned char *p;
    size_t bytes, *kind;
} spy_buf[4096];

static status spy_alloc(backend *be, buf *out, size_t bytes, const char *what, err *e)
{
    size_t i = 0;
    TRY(spy.real->alloc(be, out, bytes, what, e));
    while (spy_buf[i].p) i++;
    spy_buf[i].p = out->p;
    spy_buf[i].bytes = bytes;
    spy_buf[i].kind = spy_kind(what);
    *spy_buf[i].kind += bytes;
    return ST_OK;
}

/* Frees a buffer. Bytes freed with another size stay counted. */
static void spy_free(backend *be, buf b, size_t bytes)
{
    size_t i = 0;
    while (i < sizeof spy_buf / sizeof *spy_buf && spy_buf[i].p != b.p) i++;
    if (i < sizeof spy_buf / sizeof *spy_buf) {
        if (spy_buf[i].bytes == bytes) *spy_buf[i].kind -= bytes;
        spy_buf[i].p = NULL;
    }
    spy.real->free(be, b, bytes);
}

/* Fills discarded memory with NaN, so that reading it shows. */
static void spy_discard(backend *be, buf b, size_t bytes)
{
    (void)be;
    memset(b.p, 0xff, bytes);
    spy.given += bytes;
}

/* Writes the slots of a list that the query sees. */
static int64_t spy_list(const attn_job *j, size_t list, int32_t *out)
{
    const int64_t range[] = {attn_job_first(j, list), attn_job_count(j, list)};
    const int32_t *idx = (const int32_t *)(const void *)j->idx.p, *at = (const int32_t *)(const void *)j->at.p;
    int64_t count = 0, q = *(const int64_t *)(const void *)j->qpos.p;
    for (int64_t i = 0; i < range[1]; i++) {
        size_t entry = list * j->idx_stride + (size_t)(range[0] + i);
        int64_t pos = at ? at[entry] : j->masked ? j->kpos + i : q;
        if (pos > q || (j->band > 0 && q - pos >= j->band && (at || j->masked))) continue;
        out[count++] = idx ? idx[entry] : (int32_t)(range[0] + i);
    }
    return count;
}

static bool spy_near(const float *a, const float *b, size_t n)
{
    const float most = spy.by_codes ? 1e-4f : 1e-5f;
    for (size_t i = 0; i < n; i++)
        if (!(a[i] == b[i] || fabsf(a[i] - b[i]) <= most * (1 + fabsf(a[i])))) return false;
    return true;
}

enum { SPY_MOST = 256 }; /* entries of a list, elements of a row */

/* Shuffles a list of n slots together with n_heads rows of biases and rotations of dim numbers, if given. */
static void spy_shuffle(int32_t *idx, float *bias, size_t n_heads, float *rope, size_t dim, int64_t n)
{
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t k = (int64_t)(rng_next(&spy.r) % (uint64_t)(i + 1));
        int32_t slot = idx[i];
        idx[i] = idx[k];
        idx[k] = slot;
        for (size_t h = 0; bias && h < n_heads; h++) {
            float *row = bias + h * SPY_MOST, x = row[i];
            row[i] = row[k];
            row[k] = x;
        }
        for (size_t c = 0; rope && c < dim; c++) {
            float x = rope[(size_t)i * dim + c];
            rope[(size_t)i * dim + c] = rope[(size_t)k * dim + c];
            rope[(size_t)k * dim + c] = x;
        }
    }
}

/* Runs the job again over its visible slots in a random order. Counts them, unless they represent groups or a sample.
 * With biases all slots are visible. */
static void spy_again(backend *be, const attn_job *j)
{
    enum { MOST = SPY_MOST };
    static int32_t idx[SPY_HEADS * MOST];
    static int64_t range[2 * SPY_HEADS];
    static float out[SPY_HEADS * MOST], lse[SPY_HEADS], bias[SPY_HEADS * MOST], rope[MOST * MOST];
    size_t dim = j->rows.head_dim, group = j->n_heads / j->n_lists;
    bool drawn = spy.sample && j->idx.p == spy.sample;
    attn_job other = *j;
    other.n_max = 0;
    /* one list, entirely visible to the query */
    if (j->rope.p) memcpy(rope, j->rope.p, (size_t)j->n_max * dim * sizeof *rope), other.rope.p = (void *)rope;
    for (size_t l = 0; l < j->n_lists; l++) {
        int64_t n = spy_list(j, l, idx + l * MOST);
        for (size_t h = l * group; j->bias.p && h < (l + 1) * group; h++)
            memcpy(bias + h * MOST, (const float *)(const void *)j->bias.p + h * j->bias_stride,
                   (size_t)n * sizeof *bias);
        spy_shuffle(idx + l * MOST, j->bias.p ? bias + l * group * MOST : NULL, group, j->rope.p ? rope : NULL, dim, n);
        for (size_t h = l * group; h < (l + 1) * group && !j->pseudo && !drawn; h++) spy.head[h] += n;
        range[2 * l] = 0;
        range[2 * l + 1] = n;
        if (n > other.n_max) other.n_max = n;
    }
    other.idx = (buf){(unsigned char *)idx};
    other.idx_stride = MOST;
    other.range = (buf){(unsigned char *)range};
    other.out = (buf){(unsigned char *)out};
    if (j->lse.p) other.lse = (buf){(unsigned char *)lse};
    if (j->bias.p) other.bias = (buf){(unsigned char *)bias};
    other.bias_stride = MOST;
    other.masked = false;
    other.at = other.read = other.scores = (buf){NULL};
    spy.real->attn_decode(be, &other, 1);
    spy.reordered &= spy_near((const float *)(const void *)j->out.p, out, j->n_heads * dim);
    if (j->lse.p) spy.reordered &= spy_near((const float *)(const void *)j->lse.p, lse, j->n_heads);
}

static void spy_decode(backend *be, const attn_job *jobs, size_t n)
{
    spy.real->attn_decode(be, jobs, n);
    if (spy.on && n == 1) spy_again(be, jobs);
}

/* Merges the segments in reverse order. */
static void spy_merge(backend *be, buf out, buf lse, buf parts, buf lses, size_t n_parts, size_t n_rows, size_t dim)
{
    enum { PARTS = 4, MOST = SPY_HEADS * 256 };
    static float back[PARTS * MOST], back_lse[PARTS * SPY_HEADS], again[MOST];
    spy.real->attn_merge(be, out, lse, parts, lses, n_parts, n_rows, dim);
    if (!spy.on || n_rows > SPY_HEADS) return;
    for (size_t i = 0; i < n_parts; i++) {
        size_t from = n_parts - 1 - i, row = n_rows * sizeof(float);
        memcpy(back + i * n_rows * dim, parts.p + from * row * dim, row * dim);
        memcpy(back_lse + i * n_rows, lses.p + from * row, row);
    }
    spy.real->attn_merge(be, (buf){(unsigned char *)again}, (buf){NULL}, (buf){(unsigned char *)back},
                         (buf){(unsigned char *)back_lse}, n_parts, n_rows, dim);
    spy.reordered &= spy_near((const float *)(const void *)out.p, again, n_rows * dim);
}

/* True if the current step lists as many tokens for a head as the ops saw. */
static bool spy_lists(int head)
{
    static int32_t pos[2 * SPY_MOST];
    int64_t head_end, tail;
    return attn_last_selection(spy.work, 0, head, pos, &head_end, &tail) == spy.head[head];
}

/* Called at the end of a layer. ctx: the shape. */
static void spy_layer(void *ctx, const attn_seen *seen)
{
    const attn_shape *sh = ctx;
    double sum = 0;
    bool even = true;
    if (!spy.on || seen->layer < 0 || seen->layer == sh->n_layers) return;
    for (int h = 0; h < sh->n_heads; h++) {
        if (spy.head[h] > spy.most) spy.most = spy.head[h];
        if (spy.work) spy.listed &= spy_lists(h);
        even &= spy.head[h] == spy.head[0];
        sum += (double)spy.head[h] / sh->n_heads;
        spy.head[h] = h > 0 ? 0 : spy.head[0];
    }
    spy.sum += even ? (double)spy.head[0] : sum;
    spy.loose += even ? 0 : 1;
    spy.head[0] = 0;
}

static void spy_sample(backend *be, const tail_sample_job *jobs, size_t n)
{
    spy.real->tail->sample(be, jobs, n);
    spy.sample = jobs[n - 1].idx.p;
}

static void spy_begin(void)
{
    spy.sample = NULL;
    memset(spy.head, 0, sizeof spy.head);
    spy.most = 0;
    spy.sum = spy.loose = 0;
    spy.reordered = spy.listed = spy.on = true;
}

/* Replaces the backend's ops for the rest of its life. */
static void spy_open(backend *be)
{
    spy.real = be->ops;
    spy.ops = *be->ops;
    spy.ops.alloc = spy_alloc;
    spy.ops.free = spy_free;
    spy.ops.discard = spy_discard;
    spy.ops.attn_decode = spy_decode;
    spy.ops.attn_merge = spy_merge;
    spy.tail = *spy.real->tail;
    spy.tail.sample = spy_sample;
    spy.ops.tail = &spy.tail;
    be->ops = &spy.ops;
}

#endif
