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
    const weight_spec **matrix; /* [n]: those to convert; a tied output matrix, which becomes one of its own, is last */
    size_t n;
    size_t bytes, largest; /* of the converted matrices, together and of one */
    buf work;              /* room for the largest in ops memory */
} converter;

static const char *option_of(const converter *h)
{
    return h->o->option ? h->o->option : "--weights";
}

static status add_size(converter *h, const weight_spec *w, err *e)
{
    size_t size = weight_size(w, h->o->type);
    if (weight_in_columns(w) && dtype_in_qblocks(h->o->type) && w->cols % QBLOCK_COLS)
        return err_set(e, ST_USAGE, "%s %s: %s has %zu columns, of which %d ranks have %zu each: not a multiple of %d",
                       option_of(h), dtype_name(h->o->type), w->name, w->all_cols, backend_ranks(h->m->be), w->cols,
                       QBLOCK_COLS);
    if (size > h->largest) h->largest = size;
    return size_add(&h->bytes, h->bytes, weight_room(w, h->o->type), "weights", e);
}

/* Lists the matrices to convert and adds up their sizes. The embedding is not held in blocks. */
static status list_matrices(converter *h, err *e)
{
    const model *m = h->m;
    bool blocks = dtype_in_qblocks(h->o->type);
    TRY(MEM_NEW(&h->matrix, m->n_weights, e));
    for (const weight_spec *w = m->weights; w < m->weights + m->n_weights; w++) {
        bool own = w < weights_end(m) || blocks, looked_up = w->slot == &m->embed && blocks;
        if (!own || w->vector || looked_up || w->slot->type == h->o->type) continue;
        h->matrix[h->n++] = w;
        TRY(add_size(h, w, e));
    }
    return ST_OK;
}

/* ---- converting ---- */

static void convert(converter *h, const weight_spec *w, unsigned char *to)
{
    const backend_ops *o = h->m->be->ops;
    dtype t = h->o->type;
    if (dtype_in_qblocks(t)) o->quantize(h->m->be, h->work, t, *w->slot);
    else o->convert(h->m->be, h->work, t, w->slot->p, w->slot->type, w->rows * w->cols);
    o->download(h->m->be, to, h->work, weight_size(w, t));
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

/* Gives each slot its matrix, one after the other from `at` on, and converts it to there first if there is room for
 * work. at NULL: types and shapes alone. A tied output matrix leaves the embedding as it is. */
static status take(converter *h, unsigned char *at, err *e)
{
    backend *be = h->m->be;
    dtype t = h->o->type;
    for (size_t i = 0; i < h->n; i++) {
        const weight_spec *w = h->matrix[i];
        buf p = {NULL};
        if (h->work.p) convert(h, w, at);
        if (at) TRY(be->ops->import(be, &p, at, weight_size(w, t), e));
        give_up(h, w);
        *w->slot = (weight){p, t, w->rows, w->cols};
        if (at) at += weight_room(w, t);
    }
    return ST_OK;
}

static status convert_all(converter *h, unsigned char *to, err *e)
{
    backend *be = h->m->be;
    TRY(be->ops->alloc(be, &h->work, h->largest, "a converted matrix", e));
    status st = take(h, to, e);
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

/* What decides the content: format, names, sizes and times of the files, the matrices and parts of them. */
static weights_key make_key(const converter *h)
{
    const model_files *f = h->of->files;
    weights_key key = {.type = h->o->type, .bytes = h->bytes};
    char line[128];
    sha256 hash;
    sha256_init(&hash);
    snprintf(line, sizeof line, "kvasir %d %s\n", WEIGHTS_CACHE_VERSION, dtype_name(h->o->type));
    sha256_add(&hash, line, strlen(line));
    int ranks = backend_ranks(h->m->be);
    snprintf(line, sizeof line, "rank %d of %d\n", backend_rank(h->m->be), ranks);
    if (ranks > 1) sha256_add(&hash, line, strlen(line));
    for (size_t i = 0; i < f->n_shards; i++) {
        const char *path = st_path(f->shards[i]), *name = strrchr(path, '/');
        struct stat s = {0};
        stat(path, &s); /* what it gives is compared with itself alone */
        sha256_add(&hash, name ? name : path, strlen(name ? name : path));
        snprintf(line, sizeof line, " %zu %lld.%09ld\n", st_size(f->shards[i]), (long long)s.st_mtim.tv_sec,
                 s.st_mtim.tv_nsec);
        sha256_add(&hash, line, strlen(line));
    }
    for (size_t i = 0; i < h->n; i++) weight_hash(&hash, h->m->be, h->matrix[i]);
    sha256_hex(&hash, key.model);
    return key;
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
        unsigned char *weights = c.map + WEIGHTS_CACHE_HEADER;
        keep(h, &c);
        st = take(h, weights, &why);
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

static status convert_with_file(converter *h, bool *used, err *e)
{
    const weights_key key = make_key(h);
    TRY(take_cached(h, &key, used, e));
    return *used ? ST_OK : make_cached(h, &key, used, e);
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
    bool used = h->o->plan;
    *mapped = h->o->cache_dir && dtype_in_qblocks(h->o->type);
    status st = list_matrices(h, e);
    if (st == ST_OK && h->n > 0) {
        if (used) st = take(h, NULL, e);
        else if (*mapped) st = convert_with_file(h, &used, e);
        if (st == ST_OK && !used) st = convert_in_memory(h, e);
        if (st == ST_OK) model_finish(h->m);
    }
    mem_free(h->matrix);
    return st;
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
