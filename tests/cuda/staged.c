/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tests/cuda/staged.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/ops_fier.h"
#include "kernels/ops_quest.h"
#include "kernels/ops_select.h"

enum { MOST = 16 };

/* Of all backends: there is one kind of device in a program. */
static backend_ops real, table;
static select_ops select_table;
static quest_ops quest_table;
static fier_ops fier_table;

/* The buffers of one call. */
typedef struct {
    backend *be;
    int n;
    struct {
        buf host, dev;
        size_t bytes;
    } b[MOST];
} call;

static buf stage(call *c, buf host, size_t bytes)
{
    err e = {0};
    buf dev;
    if (!host.p) return host;
    if (c->n == MOST || real.alloc(c->be, &dev, bytes, "test", &e) != ST_OK) {
        printf("Bail out! %s\n", e.msg);
        exit(1);
    }
    real.upload(c->be, dev, host.p, bytes);
    c->b[c->n].host = host;
    c->b[c->n].dev = dev;
    c->b[c->n++].bytes = bytes;
    return dev;
}

/* What was staged comes back, whether it was written or not. */
static void end(call *c)
{
    while (c->n > 0) {
        c->n--;
        real.download(c->be, c->b[c->n].host.p, c->b[c->n].dev, c->b[c->n].bytes);
        real.free(c->be, c->b[c->n].dev, c->b[c->n].bytes);
    }
}

static buf floats(call *c, buf host, size_t n)
{
    return stage(c, host, n * sizeof(float));
}

static buf whole(call *c, buf host, size_t n)
{
    return stage(c, host, n * sizeof(int64_t));
}

static kv_rows rows_of(call *c, const kv_rows *host)
{
    kv_rows r = *host;
    size_t bytes = r.n_kv_heads * r.cap * r.head_dim * dtype_size(r.type);
    r.k = stage(c, host->k, bytes);
    r.v = stage(c, host->v, bytes);
    return r;
}

/* ---- ops.h, ops_select.h ---- */

static void kv_write(backend *be, const kv_rows *rows, buf slots, size_t n_lists, buf k, buf v, size_t n)
{
    call c = {.be = be};
    size_t row = rows->n_kv_heads * rows->head_dim;
    const kv_rows r = rows_of(&c, rows);
    real.kv_write(be, &r, whole(&c, slots, n * n_lists), n_lists, floats(&c, k, n * row), floats(&c, v, n * row), n);
    end(&c);
}

static void mean_heads(backend *be, buf out, buf q, size_t n_rows, size_t n_heads, size_t n_groups, size_t dim)
{
    call c = {.be = be};
    real.select->mean_heads(be, floats(&c, out, n_rows * n_groups * dim), floats(&c, q, n_rows * n_heads * dim), n_rows,
                            n_heads, n_groups, dim);
    end(&c);
}

static void exact(backend *be, buf score, size_t stride, buf q, size_t n_heads, const kv_rows *rows, buf n, int64_t n_max,
                  buf read)
{
    call c = {.be = be};
    const kv_rows r = rows_of(&c, rows);
    real.select->exact(be, floats(&c, score, n_heads * stride), stride, floats(&c, q, n_heads * r.head_dim), n_heads, &r,
                       whole(&c, n, 3), n_max, whole(&c, read, 1));
    end(&c);
}

static void combine(backend *be, buf out, buf in, size_t stride, size_t n_heads, size_t n_lists, buf n, int64_t n_max,
                    gqa_mode mode, float scale)
{
    call c = {.be = be};
    real.select->combine(be, floats(&c, out, n_lists * stride), floats(&c, in, n_heads * stride), stride, n_heads, n_lists,
                         whole(&c, n, 3), n_max, mode, scale);
    end(&c);
}

static void choose(backend *be, const choose_job *job)
{
    call c = {.be = be};
    choose_job j = *job;
    j.score = floats(&c, job->score, j.n_lists * j.stride);
    j.n = whole(&c, job->n, 3);
    j.k = whole(&c, job->k, j.n_k);
    j.tail = whole(&c, job->tail, 1);
    j.first = whole(&c, job->first, 1);
    j.idx = stage(&c, job->idx, j.n_lists * (size_t)j.idx_stride * sizeof(int32_t));
    j.range = whole(&c, job->range, 2 * j.n_lists);
    real.select->choose(be, &j);
    end(&c);
}

/* ---- ops_quest.h ---- */

static quest_index pages_of(call *c, const quest_index *host)
{
    quest_index x = *host;
    x.bound = stage(c, x.bound, x.n_kv_heads * x.cap * 2 * x.head_dim * dtype_size(x.type));
    return x;
}

static void quest_add(backend *be, const quest_index *host, buf pos, buf k, size_t n)
{
    call c = {.be = be};
    const quest_index x = pages_of(&c, host);
    real.quest->add(be, &x, whole(&c, pos, 1), floats(&c, k, n * x.n_kv_heads * x.head_dim), n);
    end(&c);
}

static void quest_redo(backend *be, const quest_index *host, const kv_rows *rows, int64_t n)
{
    call c = {.be = be};
    const quest_index x = pages_of(&c, host);
    const kv_rows r = rows_of(&c, rows);
    real.quest->redo(be, &x, &r, n);
    end(&c);
}

static void quest_score(backend *be, buf score, size_t stride, buf q, size_t n_heads, const quest_index *host, buf n,
                        int64_t n_max, bool max_channel, buf read)
{
    call c = {.be = be};
    const quest_index x = pages_of(&c, host);
    real.quest->score(be, floats(&c, score, n_heads * stride), stride, floats(&c, q, n_heads * x.head_dim), n_heads, &x,
                      whole(&c, n, 3), n_max, max_channel, whole(&c, read, 1));
    end(&c);
}

/* ---- ops_fier.h ---- */

static fier_index bits_of(call *c, const fier_index *host)
{
    fier_index x = *host;
    size_t row = x.head_dim * dtype_size(x.type);
    x.bits = stage(c, x.bits, x.n_kv_heads * ((x.cap + 31) / 32) * fier_words(x.head_dim) * 32 * sizeof(uint32_t));
    x.levels = stage(c, x.levels, x.n_kv_heads * ((x.cap + x.group - 1) / x.group) * 2 * row);
    x.ring = stage(c, x.ring, x.n_kv_heads * x.group * row);
    return x;
}

static void fier_add(backend *be, const fier_index *host, buf pos, buf k, size_t n)
{
    call c = {.be = be};
    const fier_index x = bits_of(&c, host);
    real.fier->add(be, &x, whole(&c, pos, 1), floats(&c, k, n * x.n_kv_heads * x.head_dim), n);
    end(&c);
}

static void fier_redo(backend *be, const fier_index *host, const kv_rows *rows, int64_t n)
{
    call c = {.be = be};
    const fier_index x = bits_of(&c, host);
    const kv_rows r = rows_of(&c, rows);
    real.fier->redo(be, &x, &r, n);
    end(&c);
}

static void fier_score(backend *be, buf score, size_t stride, buf q, size_t n_heads, const fier_index *host, buf n,
                       int64_t n_max, buf read)
{
    call c = {.be = be};
    const fier_index x = bits_of(&c, host);
    real.fier->score(be, floats(&c, score, n_heads * stride), stride, floats(&c, q, n_heads * x.head_dim), n_heads, &x,
                     whole(&c, n, 3), n_max, whole(&c, read, 1));
    end(&c);
}

static void fier_vote(backend *be, buf out, buf score, size_t stride, buf q, size_t n_heads, const fier_index *host, buf n,
                      int64_t n_max, float scale, buf read)
{
    call c = {.be = be};
    const fier_index x = bits_of(&c, host);
    real.fier->vote(be, floats(&c, out, x.n_kv_heads * stride), floats(&c, score, n_heads * stride), stride,
                    floats(&c, q, n_heads * x.head_dim), n_heads, &x, whole(&c, n, 3), n_max, scale, whole(&c, read, 1));
    end(&c);
}

void stage_ops(backend *be)
{
    if (be->ops != &table) real = *be->ops;
    table = real;
    select_table = (select_ops){mean_heads, exact, combine, choose, NULL};
    quest_table = (quest_ops){quest_add, quest_redo, quest_score, NULL};
    fier_table = (fier_ops){fier_add, fier_redo, fier_score, fier_vote, NULL};
    table.kv_write = kv_write;
    table.select = &select_table;
    table.quest = &quest_table;
    table.fier = &fier_table;
    be->ops = &table;
}
