/* SPDX-License-Identifier: MIT */
/* Conversion of matrices to another type when a model is opened, or mapping of converted ones from a cache file. */
#include "config.h"

#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/host.h"
#include "model/encoded.h"
#include "model/weights_cache.h"

typedef struct {
    model *m;
    const model *of; /* model that supplies the files and matrices: m, or the original of model_convert_copy */
    const weights_options *o;
    weight_spec **matrix; /* [n]: matrices to convert; a tied output matrix, as a weight of its own, is last */
    size_t n;
    bool shared;           /* the output matrix remains the embedding */
    size_t bytes;          /* bytes of all converted matrices */
    unsigned char *memory; /* where the converted matrices go; NULL: into the file */
    weights_cache *file;
    int n_threads;
    encoded_work *work; /* [n_threads] */
    err *fault;         /* [n_threads]: first error of each */
    atomic_bool stopped;
    atomic_size_t done;                          /* converted bytes */
    encoded_loss loss[GGUF_NVFP4 + 2][DT_COUNT]; /* by encoding (the last: of packed matrices) and type in memory */
} converter;

/* Returns the tensor of a matrix. That of a tied output matrix is the embedding's. */
static const source_tensor *tensor_of(const converter *h, const weight_spec *w)
{
    return w->from.data ? &w->from : &h->of->weights[0].from;
}

/* Returns the type that a matrix gets. An embedding, whose rows are only looked up, is not quantized, nor is a router.
 */
static dtype target(const converter *h, const weight_spec *w)
{
    bool looked_up = w->slot == &h->m->embed && dtype_in_qblocks(h->o->type);
    return h->o->type == DT_COUNT || looked_up || w->kept ? w->slot->type : h->o->type;
}

static const char *option_of(const converter *h)
{
    return h->o->option ? h->o->option : "--weights";
}

static status add_size(converter *h, const weight_spec *w, err *e)
{
    dtype t = target(h, w);
    bool split = weight_in_columns(w) && dtype_in_qblocks(t) && w->cols % qblock_cols(t);
    if (split && h->o->type == DT_COUNT)
        return err_set(e, ST_USAGE,
                       "--tp %d: tensor %s of %s has %zu columns, each rank %zu, not a multiple of %d; use another "
                       "number of ranks or --weights f16",
                       backend_ranks(h->m->be), w->from.name, w->from.file, w->all_cols, w->cols, QBLOCK_COLS);
    if (split)
        return err_set(
            e, ST_USAGE, "%s %s: %s has %zu columns; each of %d ranks has %zu, which must be a multiple of %d",
            option_of(h), dtype_name(t), w->name, w->all_cols, backend_ranks(h->m->be), w->cols, QBLOCK_COLS);
    return size_add(&h->bytes, h->bytes, weight_room(w, t), "weights", e);
}

static __attribute__((format(printf, 2, 3))) void note(const converter *h, const char *fmt, ...)
{
    err line = {0};
    va_list ap;
    char text[sizeof line.msg];
    if (!h->o->report) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(&line, ST_OK, "%s", text); /* err_set makes the path printable */
    h->o->report(h->o->ctx, line.msg);
}

/* Lists the matrices to convert and adds up their sizes. */
static status list_matrices(converter *h, err *e)
{
    const model *m = h->m;
    h->shared = head_is_shared(m) && (!dtype_in_qblocks(h->o->type) || dtype_in_qblocks(m->embed.type));
    TRY(MEM_NEW(&h->matrix, m->n_weights, e));
    for (weight_spec *w = m->weights; w < m->weights + m->n_weights; w++) {
        if (w->vector || (h->shared && w->slot == &m->lm_head)) continue;
        bool loaded =
            !tensor_is_encoded(&w->from) || (h->of != m && w->slot->p.p); /* a copy may come before its original */
        if (w->slot->type == target(h, w) && loaded) continue;
        h->matrix[h->n++] = w;
        TRY(add_size(h, w, e));
    }
    return ST_OK;
}

/* Reports the matrices whose blocks ranks split, so that they are converted to DT_Q8. */
static void note_split(const converter *h)
{
    const model *m = h->m;
    size_t n = 0;
    for (size_t i = 0; i < h->n; i++) {
        const weight_spec *w = h->matrix[i];
        const source_tensor *from = &w->from;
        if (!tensor_is_encoded(from) || !weight_in_columns(w) || target(h, w) != DT_Q8) continue;
        n += weight_converted(from, m->be->ops->qblocks) != DT_Q8;
    }
    if (n && h->o->type == DT_COUNT)
        note(h, "weights: --tp %d splits blocks of %zu matrices, which are converted to q8", backend_ranks(m->be), n);
}

/* Reports the encodings whose types the backend does not multiply, so that they are converted to DT_Q8. Once per model,
 * since a plan precedes the conversion. */
static void note_missing(const converter *h)
{
    const backend *be = h->m->be;
    model_files *f = h->m->files;
    char types[64] = "";
    size_t n = 0, end = 0;
    if (h->o->type != DT_COUNT || f->noted) return;
    f->noted = true;
    for (size_t i = 0; i < h->n; i++) {
        const source_tensor *from = tensor_of(h, h->matrix[i]);
        if (!tensor_is_encoded(from) || weight_converted(from, UINT_MAX) == weight_converted(from, be->ops->qblocks))
            continue;
        n++;
        if (!strstr(types, from->type) && end + strlen(from->type) + 3 < sizeof types)
            end += (size_t)snprintf(types + end, sizeof types - end, "%s%s", end ? ", " : "", from->type);
    }
    if (n) note(h, "weights: %s does not multiply %s: %zu matrices are converted to q8", be->name, types, n);
}

/* ---- converting ---- */

/* Releases the pages of the mapped file that hold a matrix. */
static void release_pages(const converter *h, const weight_spec *w)
{
    const source_tensor *from = tensor_of(h, w);
    mem_discard((void *)(uintptr_t)from->data, from->bytes);
}

/* Rows of a matrix, converted by several threads. */
typedef struct {
    converter *h;
    const weight_spec *w;
    size_t at; /* offset among the converted matrices */
} matrix_job;

/* Reports the progress, on the calling thread. */
static status report_progress(const converter *h, err *e)
{
    const weights_options *o = h->o;
    if (!o->progress || o->progress(o->ctx, (int64_t)atomic_load(&h->done), (int64_t)h->bytes)) return ST_OK;
    return err_set(e, ST_INTERRUPTED, "interrupted");
}

/* Converts rows of a matrix into memory, or writes them to the cache file. */
static void convert_rows(void *ctx, size_t i, int thread)
{
    const matrix_job *j = ctx;
    const weight_spec *w = j->w;
    converter *h = j->h;
    err *e = &h->fault[thread];
    if (atomic_load(&h->stopped)) return;
    const dtype t = target(h, w);
    size_t row = i * ENCODED_ROWS, n = w->rows - row < ENCODED_ROWS ? w->rows - row : ENCODED_ROWS;
    size_t at = j->at + weight_bytes(t, row, w->cols), bytes = weight_bytes(t, n, w->cols);
    unsigned char *to = h->memory ? h->memory + at : h->work[thread].out;
    encoded_convert(&h->work[thread], w, tensor_of(h, w), t, row, n, to);
    status st = h->memory ? ST_OK : weights_cache_write(h->file, at, to, bytes, e);
    atomic_fetch_add(&h->done, bytes);
    if (st == ST_OK && thread == 0) st = report_progress(h, e);
    if (st != ST_OK) atomic_store(&h->stopped, true);
}

/* Returns the loss of all matrices with the encoding and the type in memory of one; NULL: it is not encoded. */
static encoded_loss *loss_of(converter *h, const weight_spec *w)
{
    const source_tensor *from = tensor_of(h, w);
    if (!tensor_is_encoded(from)) return NULL;
    return &h->loss[from->encoding ? (int)from->encoding->type : GGUF_NVFP4 + 1][target(h, w)];
}

/* Collects what the threads found in an encoded matrix. */
static status collect_loss(converter *h, const weight_spec *w, err *e)
{
    const source_tensor *from = tensor_of(h, w);
    encoded_loss *all = loss_of(h, w);
    bool nonfinite = false;
    if (!all) return ST_OK;
    for (encoded_work *k = h->work; k < h->work + h->n_threads; k++) {
        if (k->loss.error > all->error) all->error = k->loss.error;
        nonfinite |= k->loss.nonfinite;
        k->loss = (encoded_loss){0};
    }
    if (!nonfinite) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: tensor %s has weights that are not finite", from->file, from->name);
}

static status convert_matrix(converter *h, const weight_spec *w, size_t at, err *e)
{
    matrix_job j = {h, w, at};
    host_each(h->n_threads, (w->rows + ENCODED_ROWS - 1) / ENCODED_ROWS, convert_rows, &j);
    for (int i = 0; i < h->n_threads; i++)
        if (h->fault[i].code != ST_OK) return err_set(e, h->fault[i].code, "%s", h->fault[i].msg);
    release_pages(h, w);
    TRY(collect_loss(h, w, e));
    return report_progress(h, e);
}

/* Empties a slot. Its old weight is released, unless another model owns it or it is a tied output matrix, which is part
 * of the embedding. */
static void give_up(converter *h, weight_spec *w)
{
    model_files *f = h->m->files;
    bool own = h->of == h->m && w->slot->p.p;
    if (own && weight_is_copied(w) && !h->o->plan) {
        size_t bytes = weight_size(w, w->slot->type);
        mem_discard(w->slot->p.p, bytes);
        f->copied_bytes -= bytes;
    }
    if (own && (w->slot != &h->m->lm_head || !h->m->config.tied)) weight_release(h->m, w);
    w->slot->p.p = NULL;
}

/* Assigns a slot its matrix at `at`, which is copied to the slot's memory if that is already allocated. NULL: sets only
 * type and shape. */
static status take_one(converter *h, const weight_spec *w, const unsigned char *at, err *e)
{
    backend *be = h->m->be;
    const dtype t = target(h, w);
    const packed_matrix *packed = tensor_of(h, w)->packed;
    const int32_t *order = packed ? packed_order(packed, t) : NULL;
    buf p = w->slot->p, o = {NULL};
    if (p.p) be->ops->upload(be, p, at, weight_size(w, t));
    else if (at) TRY(be->ops->import(be, &p, at, weight_size(w, t), e));
    if (at && order) TRY(be->ops->import(be, &o, order, w->cols * sizeof *order, e));
    *w->slot = (weight){p, t, w->rows, w->cols, o};
    return ST_OK;
}

static dtype target_of(const void *h, const weight_spec *w)
{
    return target(h, w);
}

/* Assigns each slot its matrix, consecutively from `at` on. NULL: sets only types and shapes. A tied output matrix
 * leaves the embedding unchanged. */
static status take(converter *h, const unsigned char *at, err *e)
{
    for (size_t i = 0, n; i < h->n; i += n) {
        weight_spec *w = h->matrix[i];
        const size_t most = weights_joined(h->m, w, target_of, h);
        for (n = 0; n < most && i + n < h->n && h->matrix[i + n] == w + n; n++) give_up(h, w + n);
        if (at && n > 1) TRY(weights_alloc(h->m, w, n, target(h, w), e));
        for (size_t k = 0; k < n; k++) {
            TRY(take_one(h, w + k, at, e));
            if (at) at += weight_room(w, target(h, w));
        }
    }
    return at ? backend_fault(h->m->be, e) : ST_OK;
}

static void close_work(converter *h)
{
    for (int i = 0; h->work && i < h->n_threads; i++) encoded_close(&h->work[i]);
    mem_free(h->work);
    mem_free(h->fault);
    h->work = NULL;
    h->fault = NULL;
}

/* Allocates the work areas of the threads. */
static status open_work(converter *h, err *e)
{
    size_t cols = 0, all_cols = 0;
    for (size_t i = 0; i < h->n; i++) {
        const weight_spec *w = h->matrix[i];
        if (w->cols > cols) cols = w->cols;
        if (w->all_cols > all_cols) all_cols = w->all_cols;
    }
    h->n_threads = host_threads(h->m->be);
    TRY(MEM_NEW(&h->work, (size_t)h->n_threads, e));
    TRY(MEM_NEW(&h->fault, (size_t)h->n_threads, e));
    for (int i = 0; i < h->n_threads; i++) TRY(encoded_open(&h->work[i], cols, all_cols, e));
    return ST_OK;
}

/* Reports the encodings that were rounded. */
static void note_loss(converter *h)
{
    for (size_t i = 0; i < h->n; i++) {
        const weight_spec *w = h->matrix[i];
        const encoded_loss *x = loss_of(h, w);
        bool first = x && x->error > 0;
        for (size_t k = 0; k < i && first; k++) first = loss_of(h, h->matrix[k]) != x;
        if (first)
            note(h, "weights: %s is converted to %s; the largest error is %.2g %% of a block's largest weight",
                 tensor_of(h, w)->type, dtype_name(target(h, w)), 100 * (double)x->error);
    }
}

static status convert_all(converter *h, err *e)
{
    size_t at = 0;
    h->stopped = false;
    h->done = 0;
    status st = open_work(h, e);
    for (size_t i = 0; i < h->n && st == ST_OK; i++) {
        st = convert_matrix(h, h->matrix[i], at, e);
        at += weight_room(h->matrix[i], target(h, h->matrix[i]));
    }
    if (st == ST_OK) note_loss(h);
    close_work(h);
    return st;
}

/* ---- the cache file ---- */

/* Hashes everything that determines the content: format, names, sizes and times of the files, the matrices and samples
 * of them. */
static weights_key make_key(const converter *h)
{
    const model_files *f = h->of->files;
    const char *type = h->o->type == DT_COUNT ? f->source->kind->format : dtype_name(h->o->type);
    weights_key key = {.type = h->o->type, .name = type, .bytes = h->bytes};
    char line[128];
    sha256 hash;
    sha256_init(&hash);
    snprintf(line, sizeof line, "kvasir %d %s\n", WEIGHTS_CACHE_VERSION, type);
    sha256_add(&hash, line, strlen(line));
    int ranks = backend_ranks(h->m->be);
    snprintf(line, sizeof line, "rank %d of %d\n", backend_rank(h->m->be), ranks);
    if (ranks > 1) sha256_add(&hash, line, strlen(line));
    for (size_t i = 0; i < f->source->n_files; i++) {
        const source_file file = f->source->kind->file(f->source, i);
        const char *name = strrchr(file.path, '/');
        struct stat s = {0};
        stat(file.path, &s); /* on failure zeros, which also compare equal */
        sha256_add(&hash, name ? name : file.path, strlen(name ? name : file.path));
        snprintf(line, sizeof line, " %zu %lld.%09ld\n", file.bytes, (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
        sha256_add(&hash, line, strlen(line));
    }
    for (size_t i = 0; i < h->n; i++) {
        const char *held = dtype_name(target(h, h->matrix[i]));
        weight_hash(&hash, h->m->be, h->matrix[i]);
        sha256_add(&hash, held, strlen(held));
        release_pages(h, h->matrix[i]); /* large pages around the samples */
    }
    sha256_hex(&hash, key.model);
    return key;
}

/* Transfers the mapping to the model. */
static void keep(converter *h, weights_cache *c)
{
    model_files *f = h->m->files;
    f->converted = c->map;
    f->converted_bytes = c->map_bytes;
    f->cache = c->path;
    c->map = NULL;
    c->path = NULL;
}

/* Takes the weights from a cache file, if there is a valid one (*used). */
static status take_cached(converter *h, const weights_key *key, bool *used, err *e)
{
    weights_cache c;
    err why = {0};
    status st = weights_cache_open(&c, h->o->cache_dir, key, host_threads(h->m->be), &why);
    *used = st == ST_OK && c.map;
    if (*used) {
        note(h, "weights: %s, mapped from %s", key->name, c.path);
        unsigned char *weights = c.map + WEIGHTS_CACHE_HEADER;
        keep(h, &c);
        st = take(h, weights, &why);
    } else if (st == ST_OK && why.msg[0]) {
        note(h, "warning: weights cache %s: writing it again", why.msg);
    }
    weights_cache_close(&c);
    return st == ST_OK ? ST_OK : err_set(e, st, "%s", why.msg);
}

/* Converts into a created cache file. */
static status convert_into(converter *h, weights_cache *c, const weights_key *key, err *e)
{
    err why = {0};
    int64_t start = clock_ns();
    note(h, "weights: %s %s, %.1f MB, cached in %s", key->type == DT_COUNT ? "converting from" : "quantizing to",
         key->name, (double)key->bytes / 1e6, c->path);
    h->file = c;
    TRY(convert_all(h, e));
    if (weights_cache_commit(c, key, host_threads(h->m->be), &why) != ST_OK) {
        if (!c->map) return err_set(e, why.code, "%s", why.msg);
        note(h, "warning: weights cache %s", why.msg);
    } else {
        note(h, "weights: converted in %.1f s", (double)(clock_ns() - start) / 1e9);
    }
    unsigned char *weights = c->map + WEIGHTS_CACHE_HEADER;
    keep(h, c);
    return take(h, weights, e);
}

/* Makes the cache file and takes the weights from it. If it cannot be written, the reason is logged and *used is
 * false. */
static status make_cached(converter *h, const weights_key *key, bool *used, err *e)
{
    weights_cache c;
    err why = {0};
    status st = weights_cache_create(&c, key, h->o->cache_dir, &why);
    if (st == ST_OK) st = convert_into(h, &c, key, &why);
    *used = st != ST_IO;
    if (st == ST_IO) note(h, "warning: weights cache %s; converted weights are kept in memory", why.msg);
    weights_cache_close(&c);
    return *used && st != ST_OK ? err_set(e, st, "%s", why.msg) : ST_OK;
}

static status convert_with_file(converter *h, bool *used, err *e)
{
    const weights_key key = make_key(h);
    TRY(take_cached(h, &key, used, e));
    return *used ? ST_OK : make_cached(h, &key, used, e);
}

/* ---- with and without a file ---- */

static status convert_in_memory(converter *h, err *e)
{
    model_files *f = h->m->files;
    void *p;
    size_t room = mem_available();
    if (room && h->bytes > room)
        return err_set(e, ST_NOMEM, "%s %s: %.2f GB are needed, %.2f GB are available", option_of(h),
                       dtype_name(h->o->type), (double)h->bytes * 1e-9, (double)room * 1e-9);
    TRY(mem_map_anon(&p, h->bytes, "converted weights", e));
    f->converted = h->memory = p;
    f->converted_bytes = h->bytes;
    TRY(convert_all(h, e));
    return take(h, p, e);
}

/* Converts the matrices. *mapped: a cache file is requested. */
static status convert_model(converter *h, bool *mapped, err *e)
{
    bool used = h->o->plan;
    *mapped = h->o->cache_dir && (h->o->type == DT_COUNT || dtype_in_qblocks(h->o->type));
    status st = list_matrices(h, e);
    if (st == ST_OK && h->n > 0) {
        note_missing(h);
        if (used) note_split(h);
        if (used) st = take(h, NULL, e);
        else if (*mapped) st = convert_with_file(h, &used, e);
        if (st == ST_OK && !used) st = convert_in_memory(h, e);
        if (h->shared) h->m->lm_head = (weight){.rows = 0}; /* to be derived from the new embedding */
        if (st == ST_OK) model_finish(h->m);
    }
    mem_free(h->matrix);
    return st;
}

status model_convert(model *m, const weights_options *o, err *e)
{
    converter h = {.m = m, .of = m, .o = o};
    bool mapped;
    if (!o->plan && ((const model_files *)m->files)->converted)
        return err_set(e, ST_USAGE, "%s: the weights are already converted", path_tail(m->name));
    TRY(convert_model(&h, &mapped, e));
    if (o->plan && !mapped) m->memory_bytes += h.bytes;
    return ST_OK;
}

status model_convert_copy(model **out, const model *m, const weights_options *o, err *e)
{
    model *copy;
    bool mapped;
    *out = NULL;
    TRY(model_share(&copy, m, e));
    converter h = {.m = copy, .of = m, .o = o};
    status st = convert_model(&h, &mapped, e);
    if (st != ST_OK) {
        model_close(copy);
        return st;
    }
    copy->weight_bytes = h.bytes;
    if (m->be->ops->imports_copy || (o->plan && !mapped)) copy->memory_bytes = h.bytes;
    *out = copy;
    return ST_OK;
}

status model_open(model **out, const char *path, backend *be, err *e)
{
    const weights_options as_held = {.type = DT_COUNT};
    TRY(model_find(out, path, NULL, be, e));
    status st = model_load(*out, e);
    if (st == ST_OK) st = model_convert(*out, &as_held, e);
    if (st == ST_OK) return ST_OK;
    model_close(*out);
    *out = NULL;
    return st;
}
