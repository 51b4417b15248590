/* SPDX-License-Identifier: MIT */
/* Matrices in another type than in the files: converted when the model is opened, or mapped from a
 * file that an earlier start left. */
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "model/weights.h"
#include "model/weights_cache.h"

typedef struct {
    model *m;
    const model *of; /* whose files and matrices they are made of: m, or the one beside which m is held */
    const weights_options *o;
    size_t bytes, largest; /* of what is converted, together and of one */
    unsigned char *at;     /* where the next matrix goes */
    buf work;              /* room for the largest in ops memory */
    bool convert;          /* false: what lies at `at` is there already */
    sha256 hash;
} holder;

static const char *option_of(const holder *h)
{
    return h->o->option ? h->o->option : "--weights";
}

/* What is converted: matrices, but with blocks not the embedding. */
static bool is_converted(const holder *h, const weight_spec *w)
{
    bool looked_up = w->slot == &h->m->embed && dtype_in_qblocks(h->o->type);
    return !w->vector && !looked_up && w->slot->type != h->o->type;
}

typedef struct {
    holder *h;
    weight_visitor visit;
} matrix_walk;

static status visit_matrix(void *ctx, const weight_spec *w, err *e)
{
    const matrix_walk *k = ctx;
    return is_converted(k->h, w) ? k->visit(k->h, w, e) : ST_OK;
}

/* Calls visit for each matrix to convert; a tied output matrix, which becomes one of its own, is the last. */
static status each_matrix(holder *h, weight_visitor visit, err *e)
{
    model *m = h->m;
    matrix_walk k = {h, visit};
    TRY(model_each_weight(m, visit_matrix, &k, e));
    if (!m->config.tied || !dtype_in_qblocks(h->o->type)) return ST_OK;
    const weight_spec head = {.name = "lm_head.weight",
                              .rows = m->lm_head.rows,
                              .cols = m->embed.cols,
                              .all_rows = m->embed.rows,
                              .all_cols = m->embed.cols,
                              .slot = &m->lm_head};
    return visit(h, &head, e);
}

static status add_size(void *ctx, const weight_spec *w, err *e)
{
    holder *h = ctx;
    size_t size = weight_size(w, h->o->type);
    if (weight_in_columns(w) && dtype_in_qblocks(h->o->type) && w->cols % QBLOCK_COLS)
        return err_set(e, ST_USAGE, "%s %s: %s has %zu columns, of which %d ranks have %zu each: not a multiple of %d",
                       option_of(h), dtype_name(h->o->type), w->name, w->all_cols, backend_ranks(h->m->be), w->cols,
                       QBLOCK_COLS);
    if (size > h->largest) h->largest = size;
    return size_add(&h->bytes, h->bytes, weight_room(w, h->o->type), "weights", e);
}

/* ---- converting ---- */

static void convert(holder *h, const weight_spec *w)
{
    const backend_ops *o = h->m->be->ops;
    dtype t = h->o->type;
    if (dtype_in_qblocks(t)) o->quantize(h->m->be, h->work, t, *w->slot);
    else o->convert(h->m->be, h->work, t, w->slot->p, w->slot->type, w->rows * w->cols);
    o->download(h->m->be, h->at, h->work, weight_size(w, t));
}

/* Of columns that were copied from the file: the pages. */
static void give_up_copy(holder *h, const weight_spec *w)
{
    model_files *f = h->m->files;
    size_t bytes = weight_size(w, w->slot->type);
    if (h->o->plan) return;
    mem_discard(w->slot->p.p, bytes);
    f->column_bytes -= bytes;
}

/* What the slot held is no longer needed, unless it is another model's or what a tied output matrix was made of. */
static void give_up(holder *h, const weight_spec *w)
{
    const backend *be = h->m->be;
    if (h->of != h->m) return;
    if (weight_in_columns(w)) give_up_copy(h, w);
    if (w->slot != &h->m->lm_head || !h->m->config.tied)
        be->ops->release(h->m->be, w->slot->p, weight_size(w, w->slot->type));
}

/* The slot's matrix from h->at on; a tied output matrix leaves the embedding as it is. */
static status take(void *ctx, const weight_spec *w, err *e)
{
    holder *h = ctx;
    backend *be = h->m->be;
    dtype t = h->o->type;
    buf p = {NULL};
    if (h->convert) convert(h, w);
    if (!h->o->plan) TRY(be->ops->import(be, &p, h->at, weight_size(w, t), e));
    give_up(h, w);
    *w->slot = (weight){p, t, w->rows, w->cols};
    if (h->at) h->at += weight_room(w, t);
    return ST_OK;
}

static status convert_all(holder *h, unsigned char *to, err *e)
{
    backend *be = h->m->be;
    h->at = to;
    h->convert = true;
    TRY(be->ops->alloc(be, &h->work, h->largest, "a converted matrix", e));
    status st = each_matrix(h, take, e);
    be->ops->free(be, h->work, h->largest);
    return st == ST_OK ? backend_fault(be, e) : st;
}

/* ---- the file ---- */

static __attribute__((format(printf, 2, 3))) void say(const holder *h, const char *fmt, ...)
{
    err line = {0};
    va_list ap;
    char text[sizeof line.msg];
    if (!h->o->say) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(&line, ST_OK, "%s", text); /* a path may hold anything */
    h->o->say(h->o->ctx, line.msg);
}

static status hash_matrix(void *ctx, const weight_spec *w, err *e)
{
    holder *h = ctx;
    (void)e;
    weight_hash(&h->hash, h->m->be, w);
    return ST_OK;
}

/* What decides the content: format, names, sizes and times of the files, the matrices and parts of them. */
static status make_key(holder *h, weights_key *key, err *e)
{
    const model_files *f = h->of->files;
    char line[128];
    sha256_init(&h->hash);
    snprintf(line, sizeof line, "kvasir %d %s\n", WEIGHTS_CACHE_VERSION, dtype_name(h->o->type));
    sha256_add(&h->hash, line, strlen(line));
    int ranks = backend_ranks(h->m->be);
    snprintf(line, sizeof line, "rank %d of %d\n", backend_rank(h->m->be), ranks);
    if (ranks > 1) sha256_add(&h->hash, line, strlen(line));
    for (size_t i = 0; i < f->n_shards; i++) {
        const char *path = st_path(f->shards[i]), *name = strrchr(path, '/');
        struct stat s = {0};
        stat(path, &s); /* what it gives is compared with itself alone */
        sha256_add(&h->hash, name ? name : path, strlen(name ? name : path));
        snprintf(line, sizeof line, " %zu %lld.%09ld\n", st_size(f->shards[i]), (long long)s.st_mtim.tv_sec,
                 s.st_mtim.tv_nsec);
        sha256_add(&h->hash, line, strlen(line));
    }
    TRY(each_matrix(h, hash_matrix, e));
    key->type = h->o->type;
    key->bytes = h->bytes;
    sha256_hex(&h->hash, key->model);
    return ST_OK;
}

/* The mapping becomes the model's. */
static void keep(holder *h, weights_cache *c)
{
    model_files *f = h->m->files;
    f->held = c->map;
    f->held_bytes = c->map_bytes;
    f->cache = c->path;
    c->map = NULL;
    c->path = NULL;
}

/* Weights of a file that is there. *used tells whether there is one. */
static status take_cached(holder *h, const weights_key *key, bool *used, err *e)
{
    weights_cache c;
    err why = {0};
    status st = weights_cache_open(&c, h->o->cache_dir, key, h->m->be->n_threads, &why);
    *used = st == ST_OK && c.map;
    if (st != ST_OK) {
        err_set(e, st, "%s", why.msg);
    } else if (*used) {
        say(h, "weights: %s, mapped from %s", dtype_name(key->type), c.path);
        h->at = c.map + WEIGHTS_CACHE_HEADER;
        keep(h, &c);
        st = each_matrix(h, take, e);
    } else if (why.msg[0]) {
        say(h, "warning: weights cache %s: made anew", why.msg);
    }
    weights_cache_close(&c);
    return st;
}

/* Converts into a new file. Where that cannot be, *used is false; the reason is said. */
static status make_cached(holder *h, const weights_key *key, bool *used, err *e)
{
    weights_cache c;
    err why = {0};
    int64_t start = clock_ns();
    status st = weights_cache_create(&c, key, h->o->cache_dir, &why);
    *used = st == ST_OK;
    if (*used) {
        say(h, "weights: quantizing to %s, %.1f MB, kept in %s", dtype_name(key->type), (double)key->bytes / 1e6,
            c.path);
        st = convert_all(h, c.map + WEIGHTS_CACHE_HEADER, e);
        if (st == ST_OK && weights_cache_commit(&c, key, &why) != ST_OK) say(h, "warning: weights cache %s", why.msg);
        else if (st == ST_OK) say(h, "weights: quantized in %.1f s", (double)(clock_ns() - start) / 1e9);
        keep(h, &c);
    } else if (st == ST_IO) {
        say(h, "warning: weights cache %s; quantized weights are kept in memory", why.msg);
        st = ST_OK;
    } else {
        err_set(e, st, "%s", why.msg);
    }
    weights_cache_close(&c);
    return st;
}

/* ---- either way ---- */

static status hold_in_memory(holder *h, err *e)
{
    model_files *f = h->m->files;
    void *p;
    size_t room = mem_available();
    if (room && h->bytes > room)
        return err_set(e, ST_NOMEM, "%s %s: %.2f GB are needed, %.2f GB are available", option_of(h),
                       dtype_name(h->o->type), (double)h->bytes * 1e-9, (double)room * 1e-9);
    TRY(mem_map_anon(&p, h->bytes, "converted weights", e));
    f->held = p;
    f->held_bytes = h->bytes;
    return convert_all(h, p, e);
}

static status hold(holder *h, err *e)
{
    weights_key key;
    bool used = false;
    if (!h->o->cache_dir || !dtype_in_qblocks(h->o->type)) return hold_in_memory(h, e);
    TRY(make_key(h, &key, e));
    TRY(take_cached(h, &key, &used, e));
    if (!used) TRY(make_cached(h, &key, &used, e));
    return used ? ST_OK : hold_in_memory(h, e);
}

status model_hold(model *m, const weights_options *o, err *e)
{
    holder h = {.m = m, .of = m, .o = o};
    TRY(each_matrix(&h, add_size, e));
    if (h.bytes == 0) return ST_OK;
    if (o->plan) TRY(each_matrix(&h, take, e));
    else TRY(hold(&h, e));
    model_finish(m);
    if (o->plan && !(o->cache_dir && dtype_in_qblocks(o->type))) m->memory_bytes += h.bytes;
    return ST_OK;
}

/* What is converted of m into a model beside it. */
static status hold_beside(holder *h, err *e)
{
    model *m = h->m;
    bool cached = h->o->cache_dir != NULL;
    TRY(each_matrix(h, add_size, e));
    if (h->o->plan) TRY(each_matrix(h, take, e));
    else TRY(hold(h, e));
    model_finish(m);
    m->weight_bytes = h->bytes;
    if (m->be->ops->imports_copy || (h->o->plan && !cached)) m->memory_bytes = h->bytes;
    return ST_OK;
}

status model_hold_beside(model **out, const model *m, const weights_options *o, err *e)
{
    model *beside;
    *out = NULL;
    TRY(model_share(&beside, m, e));
    holder h = {.m = beside, .of = m, .o = o};
    status st = hold_beside(&h, e);
    if (st != ST_OK) model_close(beside);
    else *out = beside;
    return st;
}
