/* SPDX-License-Identifier: MIT */
/* Converted weights: matrices in another type than in the files, converted when the model is opened, or mapped from a
 * file of an earlier start. */
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
    const model *of; /* whose files and matrices they are made of: m, or the one beside which m is */
    const weights_options *o;
    weight_visitor visit;  /* of each_matrix */
    size_t bytes, largest; /* of the converted matrices, together and of one */
    unsigned char *at;     /* offset of the next matrix */
    buf work;              /* room for the largest in ops memory */
    bool convert;          /* false: the matrix at `at` is converted already */
    sha256 hash;
} converter;

static const char *option_of(const converter *h)
{
    return h->o->option ? h->o->option : "--weights";
}

/* Visits a matrix to convert. The embedding is not held in blocks. */
static status visit_matrix(void *ctx, const weight_spec *w, err *e)
{
    converter *h = ctx;
    bool looked_up = w->slot == &h->m->embed && dtype_in_qblocks(h->o->type);
    return w->vector || looked_up || w->slot->type == h->o->type ? ST_OK : h->visit(h, w, e);
}

/* Calls visit for each matrix to convert; a tied output matrix, which becomes one of its own, is the last. */
static status each_matrix(converter *h, weight_visitor visit, err *e)
{
    model *m = h->m;
    h->visit = visit;
    TRY(model_each_weight(m, visit_matrix, h, e));
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
    converter *h = ctx;
    size_t size = weight_size(w, h->o->type);
    if (weight_in_columns(w) && dtype_in_qblocks(h->o->type) && w->cols % QBLOCK_COLS)
        return err_set(e, ST_USAGE, "%s %s: %s has %zu columns, of which %d ranks have %zu each: not a multiple of %d",
                       option_of(h), dtype_name(h->o->type), w->name, w->all_cols, backend_ranks(h->m->be), w->cols,
                       QBLOCK_COLS);
    if (size > h->largest) h->largest = size;
    return size_add(&h->bytes, h->bytes, weight_room(w, h->o->type), "weights", e);
}

/* ---- converting ---- */

static void convert(converter *h, const weight_spec *w)
{
    const backend_ops *o = h->m->be->ops;
    dtype t = h->o->type;
    if (dtype_in_qblocks(t)) o->quantize(h->m->be, h->work, t, *w->slot);
    else o->convert(h->m->be, h->work, t, w->slot->p, w->slot->type, w->rows * w->cols);
    o->download(h->m->be, h->at, h->work, weight_size(w, t));
}

/* Releases what the slot held, unless it is another model's or what a tied output matrix was made of. */
static void give_up(converter *h, const weight_spec *w)
{
    model_files *f = h->m->files;
    size_t bytes = weight_size(w, w->slot->type);
    if (h->of != h->m) return;
    if (weight_in_columns(w) && !h->o->plan) { /* a copy */
        mem_discard(w->slot->p.p, bytes);
        f->column_bytes -= bytes;
    }
    if (w->slot != &h->m->lm_head || !h->m->config.tied) h->m->be->ops->release(h->m->be, w->slot->p, bytes);
}

/* The slot's matrix from h->at on; a tied output matrix leaves the embedding as it is. */
static status take(void *ctx, const weight_spec *w, err *e)
{
    converter *h = ctx;
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

static status convert_all(converter *h, unsigned char *to, err *e)
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

static __attribute__((format(printf, 2, 3))) void say(const converter *h, const char *fmt, ...)
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
    converter *h = ctx;
    (void)e;
    weight_hash(&h->hash, h->m->be, w);
    return ST_OK;
}

/* What decides the content: format, names, sizes and times of the files, the matrices and parts of them. */
static status make_key(converter *h, weights_key *key, err *e)
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

/* Gives the mapping to the model. */
static void keep(converter *h, weights_cache *c)
{
    model_files *f = h->m->files;
    f->converted = c->map;
    f->converted_bytes = c->map_bytes;
    f->cache = c->path;
    c->map = NULL;
    c->path = NULL;
}

/* Takes the weights from a file, if there is one. */
static status take_cached(converter *h, const weights_key *key, bool *used, err *e)
{
    weights_cache c;
    err why = {0};
    status st = weights_cache_open(&c, h->o->cache_dir, key, h->m->be->n_threads, &why);
    *used = st == ST_OK && c.map;
    if (*used) {
        say(h, "weights: %s, mapped from %s", dtype_name(key->type), c.path);
        h->at = c.map + WEIGHTS_CACHE_HEADER;
        keep(h, &c);
        st = each_matrix(h, take, &why);
    } else if (st == ST_OK && why.msg[0]) {
        say(h, "warning: weights cache %s: made anew", why.msg);
    }
    weights_cache_close(&c);
    return st == ST_OK ? ST_OK : err_set(e, st, "%s", why.msg);
}

/* Converts into a new file. *used is false where none can be made, and the reason is reported. */
static status make_cached(converter *h, const weights_key *key, bool *used, err *e)
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

static status convert_in_memory(converter *h, err *e)
{
    model_files *f = h->m->files;
    void *p;
    size_t room = mem_available();
    if (room && h->bytes > room)
        return err_set(e, ST_NOMEM, "%s %s: %.2f GB are needed, %.2f GB are available", option_of(h),
                       dtype_name(h->o->type), (double)h->bytes * 1e-9, (double)room * 1e-9);
    TRY(mem_map_anon(&p, h->bytes, "converted weights", e));
    f->converted = p;
    f->converted_bytes = h->bytes;
    return convert_all(h, p, e);
}

/* Converts what the sum of the sizes is of; *mapped: there is to be a file. */
static status convert_model(converter *h, bool *mapped, err *e)
{
    weights_key key;
    bool used = false;
    *mapped = h->o->cache_dir && dtype_in_qblocks(h->o->type);
    TRY(each_matrix(h, add_size, e));
    if (h->bytes == 0) return ST_OK;
    if (h->o->plan) {
        TRY(each_matrix(h, take, e));
    } else {
        if (*mapped) TRY(make_key(h, &key, e));
        if (*mapped) TRY(take_cached(h, &key, &used, e));
        if (*mapped && !used) TRY(make_cached(h, &key, &used, e));
        if (!used) TRY(convert_in_memory(h, e));
    }
    model_finish(h->m);
    return ST_OK;
}

status model_convert(model *m, const weights_options *o, err *e)
{
    converter h = {.m = m, .of = m, .o = o};
    bool mapped;
    TRY(convert_model(&h, &mapped, e));
    if (o->plan && !mapped) m->memory_bytes += h.bytes;
    return ST_OK;
}

status model_convert_beside(model **out, const model *m, const weights_options *o, err *e)
{
    model *beside;
    bool mapped;
    *out = NULL;
    TRY(model_share(&beside, m, e));
    converter h = {.m = beside, .of = m, .o = o};
    status st = convert_model(&h, &mapped, e);
    if (st != ST_OK) {
        model_close(beside);
        return st;
    }
    beside->weight_bytes = h.bytes;
    if (m->be->ops->imports_copy || (o->plan && !mapped)) beside->memory_bytes = h.bytes;
    *out = beside;
    return ST_OK;
}
