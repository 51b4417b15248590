/* SPDX-License-Identifier: MIT */
/* Weights from the files of a checkpoint: mapped, found by their names, and checked against the config. */
#include "config.h"

#include "model/weights.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/comm.h"
#include "kernels/half.h"
#include "model/block.h"

/* While the weights of a model are loaded. */
typedef struct {
    model *m;
    size_t n_used; /* tensors that the model needs */
    sha256 identity;
} loader;

/* Samples of a tensor that identify it without reading all of it. */
enum { SAMPLES = 16, SAMPLE_BYTES = 256 };

/* A cache line of a GPU. Matrices whose bytes are no multiple of it have allocations of their own. */
enum { LINE = 128 };

static size_t sample_bytes(size_t bytes)
{
    return bytes < SAMPLE_BYTES ? bytes : SAMPLE_BYTES;
}

static size_t sample_at(size_t bytes, size_t i)
{
    return (bytes - sample_bytes(bytes)) / SAMPLES * i;
}

static model_files *files_of(const model *m)
{
    return m->files;
}

/* Checks that a tensor has elements or an encoding that this program reads; vectors have elements. */
static status check_type(const weight_spec *w, const source_tensor *t, err *e)
{
    if (t->element != DT_COUNT || (tensor_is_encoded(t) && !w->vector)) return ST_OK;
    return err_set(e, ST_UNSUPPORTED, "%s: tensor %s has dtype %s; supported: F32, F16, BF16", t->file, t->name,
                   t->type);
}

enum { SHAPE_TEXT = 64 };

static void put_shape(char out[SHAPE_TEXT], const size_t *shape, size_t rank)
{
    size_t at = 0;
    for (size_t i = 0; i < rank && at < SHAPE_TEXT; i++)
        at += (size_t)snprintf(out + at, SHAPE_TEXT - at, "%s%zu", i ? ", " : "", shape[i]);
}

static bool has_shape(const source_tensor *t, const size_t *want, size_t rank)
{
    return t->rank == rank && memcmp(t->shape, want, rank * sizeof *want) == 0;
}

static status wrong_shape(const source_tensor *t, const size_t *want, size_t rank, const char *config, err *e)
{
    char found[SHAPE_TEXT] = "", wanted[SHAPE_TEXT];
    put_shape(found, t->shape, t->rank);
    put_shape(wanted, want, rank);
    return err_set(e, ST_FORMAT, "%s: tensor %s has shape [%s], %s requires [%s]", t->file, t->name, found, config,
                   wanted);
}

/* Checks the shape of a tensor of `rows` rows; a vector: elements. */
static status check_shape(const weight_spec *w, size_t rows, const source_tensor *t, const char *config, err *e)
{
    const size_t want[] = {rows, w->all_cols}, rank = w->vector ? 1 : 2;
    return has_shape(t, want, rank) ? ST_OK : wrong_shape(t, want, rank, config, e);
}

/* Copies this rank's part of a tensor. Needed for tensors not aligned to their elements in the file, for columns, and
 * for rows in another order: kernels read aligned elements of consecutive rows. */
static status part_copy(loader *l, const weight_spec *w, const void **out, err *e)
{
    const source_tensor *t = &w->from;
    model_files *f = files_of(l->m);
    unsigned char *p;
    size_t element = dtype_size(t->element), room = l->m->be->ops->available(l->m->be), row = w->cols * element;
    size_t bytes = w->rows * row;
    bool elements = w->vector && t->head_dim; /* a bias: rows of one element */
    size_t n = elements ? w->cols : w->rows, first = elements ? w->first_col : w->first_row;
    size_t at = elements ? 0 : w->first_col;
    if (room && bytes > room)
        return err_set(e, ST_NOMEM,
                       "%s: tensor %s is %s, and its copy of %zu bytes does not fit into "
                       "the %zu available",
                       t->file, t->name,
                       weight_in_columns(w) ? "split by columns"
                       : t->head_dim        ? "in another order of rows"
                       : t->across          ? "transposed"
                                            : "not aligned",
                       bytes, room);
    TRY(MEM_GROW(&f->copies, f->n_copies + 1, e));
    TRY(mem_alloc((void **)&p, bytes, 1, t->name, e));
    for (size_t i = 0; i < n; i++) tensor_copy(t, first + i, at, bytes / n / element, p + i * (bytes / n));
    f->copies[f->n_copies++] = p;
    if (weight_is_copied(w)) f->copied_bytes += bytes;
    *out = p;
    return ST_OK;
}

/* Returns a number at an address of any alignment. */
static float number_at(const uint8_t *p, dtype t)
{
    float f;
    uint16_t h;
    memcpy(&h, p, sizeof h);
    if (t == DT_F16) return f16_to_f32(h);
    if (t == DT_BF16) return bf16_to_f32(h);
    memcpy(&f, p, sizeof f);
    return f;
}

/* Makes the vector of a derived weight. */
static status derive(loader *l, const weight_spec *w, const void **out, err *e)
{
    const source_tensor *t = &w->from;
    model_files *f = files_of(l->m);
    float *p;
    TRY(MEM_GROW(&f->copies, f->n_copies + 1, e));
    TRY(MEM_NEW(&p, w->cols, e));
    f->copies[f->n_copies++] = p;
    f->copied_bytes += w->cols * sizeof *p;
    for (size_t i = 0; i < w->cols; i++)
        p[i] = w->offset + (w->constant ? 0 : number_at(t->data + i * dtype_size(t->element), t->element));
    *out = p;
    return ST_OK;
}

/* Hashes name, type, shape and samples of a whole tensor, which are equal on all ranks of a model. */
static void add_to_identity(loader *l, const source_tensor *t)
{
    char line[192];
    snprintf(line, sizeof line, "%s %s %zu %zu\n", t->name, t->type, t->shape[0], t->bytes);
    sha256_add(&l->identity, line, strlen(line));
    for (size_t i = 0; i < SAMPLES; i++)
        sha256_add(&l->identity, t->data + sample_at(t->bytes, i), sample_bytes(t->bytes));
}

/* Returns the rows of a weight in the files; a vector: elements. */
static size_t rows_of(const weight_spec *w)
{
    return w->vector ? w->all_cols : w->all_rows;
}

/* Makes a tensor of all_rows rows those of a weight, from `first` on. */
static void take_rows(source_tensor *t, const weight_spec *w, size_t all_rows, size_t first)
{
    const size_t row = t->bytes / all_rows;
    t->before = first;
    t->rank = w->vector ? 1 : 2;
    t->shape[0] = rows_of(w);
    t->shape[1] = w->all_cols;
    if (t->packed) return; /* its parts are not in the order of rows */
    t->data += first * row;
    t->bytes = t->shape[0] * row;
}

/* Finds the rows of a weight in the tensor that also has the weights after it. w->from.data stays NULL without one. */
static status locate_part(tensor_source *from, weight_spec *w, err *e)
{
    source_tensor *t = &w->from;
    if (!w->whole[0]) return ST_OK;
    TRY(from->kind->find(from, w->whole, t, e));
    if (!t->data) return ST_OK;
    TRY(check_type(w, t, e));
    TRY(check_shape(w, w->whole_rows, t, from->kind->config, e));
    take_rows(t, w, w->whole_rows, w->whole_first);
    return ST_OK;
}

/* Makes a tensor [experts, columns, parts * rows] the transposed matrix of one expert. */
static void take_transposed(source_tensor *t, const weight_spec *w, const weight_stack *s)
{
    const size_t row = s->parts * w->all_rows, first = s->part * w->all_rows, element = dtype_size(t->element);
    t->data += (w->expert * w->all_cols * row + first) * element;
    t->bytes = (w->all_cols * row - first) * element;
    t->across = row;
    t->before = (w->expert * s->parts + s->part) * w->all_rows;
    t->rank = 2;
    t->shape[0] = w->all_rows;
    t->shape[1] = w->all_cols;
}

/* Finds the rows of an expert's matrix in a tensor of all experts. w->from.data stays NULL without one. A tensor whose
 * shape fits both layouts is not transposed. Source: transformers 5, core_model_loading.py, Transpose. */
static status locate_stacked(const model *m, weight_spec *w, err *e)
{
    tensor_source *from = files_of(m)->source;
    source_tensor *t = &w->from;
    const size_t n = (size_t)m->config.n_experts;
    char name[WEIGHT_NAME];
    for (const weight_stack *s = w->stacks; s && s->name && !t->data; s++) {
        const size_t want[] = {n, s->parts * w->all_rows, w->all_cols}, turned[] = {n, want[2], want[1]};
        snprintf(name, sizeof name, "model.layers.%d.%s", w->layer, s->name);
        TRY(from->kind->find(from, name, t, e));
        if (!t->data) continue;
        TRY(check_type(w, t, e));
        bool one = n == 1 && has_shape(t, want + 1, 2); /* GGUF files may omit the last dimension if it is 1 */
        if (!one && !has_shape(t, want, 3)) {
            if (tensor_is_encoded(t) || !has_shape(t, turned, 3)) return wrong_shape(t, want, 3, from->kind->config, e);
            take_transposed(t, w, s);
            continue;
        }
        take_rows(t, w, n * want[1], (w->expert * s->parts + s->part) * w->all_rows);
    }
    return ST_OK;
}

/* Finds the tensor of a weight, and checks type and shape. Of two tied matrices the files may have either. */
static status locate(model *m, weight_spec *w, err *e)
{
    tensor_source *from = files_of(m)->source;
    w->from = (source_tensor){0};
    if (w->constant) return ST_OK;
    TRY(locate_part(from, w, e));
    if (!w->from.data) TRY(from->kind->find(from, w->name, &w->from, e));
    if (!w->from.data) TRY(locate_stacked(m, w, e));
    if (!w->from.data && m->config.tied && strcmp(w->name, EMBED_NAME) == 0)
        TRY(from->kind->find(from, HEAD_NAME, &w->from, e));
    if (!w->from.data && m->config.tied && strcmp(w->name, HEAD_NAME) == 0)
        TRY(from->kind->find(from, EMBED_NAME, &w->from, e));
    if (!w->from.data) return from->kind->missing(from, w->whole[0] && m->config.family->fused ? w->whole : w->name, e);
    TRY(check_type(w, &w->from, e));
    if (from->kind->interleaved) w->from.head_dim = from->kind->interleaved(from, w->name);
    return check_shape(w, rows_of(w), &w->from, from->kind->config, e);
}

/* Clears config.tied if the files hold two different matrices. Source: transformers 5, tie_weights. */
static status untie(model *m, err *e)
{
    model_config *c = &m->config;
    tensor_source *from = files_of(m)->source;
    source_tensor head = {0};
    if (!c->tied) return ST_OK;
    TRY(from->kind->find(from, HEAD_NAME, &head, e));
    if (!head.data) return ST_OK;
    TRY(locate(m, &m->weights[0], e));
    TRY(locate(m, &m->weights[m->n_weights - 1], e));
    const source_tensor *embed = &m->weights[0].from;
    if (strcmp(embed->type, head.type) == 0 && memcmp(embed->data, head.data, embed->bytes) == 0) return ST_OK;
    c->tied = false;
    c->n_params += (int64_t)c->vocab * c->hidden;
    return ST_OK;
}

/* Returns this rank's part of a tensor, copied if it must be. */
static status part(loader *l, const weight_spec *w, const void **out, err *e)
{
    const source_tensor *t = &w->from;
    const size_t element = dtype_size(t->element);
    *out = t->data + (w->first_row * w->all_cols + w->first_col) * element;
    return (uintptr_t)*out % element || weight_is_copied(w) ? part_copy(l, w, out, e) : ST_OK;
}

/* ---- allocations ---- */

size_t weights_joined(const model *m, const weight_spec *w, weight_type_fn *type, const void *ctx)
{
    const dtype t = type(ctx, w);
    size_t n = 1;
    if (!m->be->ops->imports_copy || weight_size(w, t) % LINE) return n;
    for (const weight_spec *x = w + 1; x < weights_end(m) && x->together; x++, n++)
        if (x->rows != w->rows || x->cols != w->cols || type(ctx, x) != t) break;
    return n;
}

status weights_alloc(const model *m, weight_spec *w, size_t n, dtype t, err *e)
{
    const size_t bytes = weight_size(w, t);
    buf p;
    TRY(m->be->ops->alloc(m->be, &p, n * bytes, "weights", e));
    for (size_t i = 0; i < n; i++) {
        *w[i].slot = (weight){buf_at(p, i * bytes), t, w->rows, w->cols, {NULL}};
        w[i].joined = i > 0;
    }
    return ST_OK;
}

void weight_release(const model *m, weight_spec *w)
{
    const backend_ops *o = m->be->ops;
    const weight_spec *end = w + 1;
    while (end < m->weights + m->n_weights && end->joined) end++;
    const size_t bytes = (size_t)(end - w) * weight_size(w, w->slot->type);
    if (!w->joined) (files_of(m)->random_bytes ? o->free : o->release)(m->be, w->slot->p, bytes);
    w->slot->p.p = NULL;
    w->joined = false;
}

/* ---- loading ---- */

static dtype loaded_type(const void *ctx, const weight_spec *w)
{
    (void)ctx;
    return weight_is_derived(w) ? DT_F32 : w->from.element;
}

/* Loads a weight, into its slot's memory if that is already allocated. */
static status load(loader *l, const weight_spec *w, err *e)
{
    backend *be = l->m->be;
    const source_tensor *t = &w->from;
    bool all_have_it = !w->vector || w->norm || w->cols < w->all_cols; /* all except the bias of a sum */
    if (backend_ranks(be) > 1 && all_have_it && t->data) add_to_identity(l, t);
    if (t->before == 0 && t->data)
        l->n_used += t->packed ? t->packed->n_tensors : 1; /* a tensor of several weights counts once */
    if (tensor_is_encoded(t)) return ST_OK;                /* model_convert decodes it */
    const dtype type = loaded_type(NULL, w);
    const void *data;
    buf p = w->slot->p;
    if (weight_is_derived(w)) TRY(derive(l, w, &data, e));
    else TRY(part(l, w, &data, e));
    if (p.p) be->ops->upload(be, p, data, weight_size(w, type));
    else TRY(be->ops->import(be, &p, data, weight_size(w, type), e));
    *w->slot = (weight){p, type, w->rows, w->cols, {NULL}};
    return backend_fault(be, e);
}

/* Loads the weights from w on that have one allocation. Returns their number in *n. */
static status load_joined(loader *l, weight_spec *w, size_t *n, err *e)
{
    *n = tensor_is_encoded(&w->from) ? 1 : weights_joined(l->m, w, loaded_type, NULL);
    if (*n > 1) TRY(weights_alloc(l->m, w, *n, loaded_type(NULL, w), e));
    for (size_t i = 0; i < *n; i++) TRY(load(l, w + i, e));
    return ST_OK;
}

dtype weight_converted(const source_tensor *from, unsigned types)
{
    return from->packed ? packed_converted(from->packed, types) : encoding_converted(from->encoding->type, types);
}

/* Returns the type in memory of a matrix that the files encode. Ranks that split columns within its blocks, or in
 * another order, hold it as DT_Q8, and so does an embedding in another order. */
static dtype held_type(const model *m, const weight_spec *w)
{
    const source_tensor *from = &w->from;
    dtype t = weight_converted(from, m->be->ops->qblocks);
    const bool ordered = from->packed && packed_order(from->packed, t);
    if (ordered && (weight_in_columns(w) || w->slot == &m->embed)) return DT_Q8;
    return weight_in_columns(w) && w->cols % qblock_cols(t) ? DT_Q8 : t;
}

/* Sets the slot's type and shape, without data. */
static status measure(model *m, weight_spec *w, err *e)
{
    TRY(locate(m, w, e));
    dtype t = tensor_is_encoded(&w->from) ? held_type(m, w) : w->from.element;
    if (weight_is_derived(w)) t = DT_F32;
    *w->slot = (weight){{NULL}, t, w->rows, w->cols, {NULL}};
    /* Ranks split the rows of a shared output matrix anywhere, blocks only between groups. */
    if (w->slot == &m->embed && dtype_in_qblocks(t) && backend_ranks(m->be) > 1) m->lm_head.type = t;
    return ST_OK;
}

/* Checks, before the first copy, that all weights fit if the backend copies them. */
static status check_room(const model *m, err *e)
{
    backend *be = m->be;
    size_t have = be->ops->imports_copy ? be->ops->available(be) : 0;
    if (have == 0 || m->weight_bytes <= have) return ST_OK;
    return err_set(e, ST_NOMEM, "%s: out of memory: weights of %.1f MB are needed, %.1f MB are available on %s",
                   path_tail(m->name), (double)m->weight_bytes / 1e6, (double)have / 1e6, be->name);
}

/* ---- the model ---- */

/* Reduces the config to this rank's part. */
static status split(model_config *c, const char *name, const backend *be, err *e)
{
    int n = backend_ranks(be);
    if (c->n_kv_heads % n)
        return err_set(e, ST_USAGE, "--tp %d: %s has %d key-value heads, not a multiple of %d", n, path_tail(name),
                       c->n_kv_heads, n);
    if (c->ffn % n)
        return err_set(e, ST_USAGE, "--tp %d: %s has a feed-forward of %d, not a multiple of %d", n, path_tail(name),
                       c->ffn, n);
    if (c->expert_ffn % n || c->shared_ffn % n)
        return err_set(e, ST_USAGE, "--tp %d: %s has experts of width %d (shared: %d), not a multiple of %d", n,
                       path_tail(name), c->expert_ffn, c->shared_ffn, n);
    c->n_heads /= n;
    c->n_kv_heads /= n;
    c->ffn /= n;
    c->expert_ffn /= n;
    c->shared_ffn /= n;
    return ST_OK;
}

/* Checks that all ranks opened the same model. */
static status check_identity(loader *l, err *e)
{
    comm *c = l->m->be->ranks;
    char own[SHA256_HEX], (*all)[SHA256_HEX];
    int other = 0;
    if (backend_ranks(l->m->be) == 1) return ST_OK;
    sha256_hex(&l->identity, own);
    TRY(MEM_NEW(&all, (size_t)c->size, e));
    status st = comm_all_gather(c, all, own, sizeof own, e);
    for (int r = 1; r < c->size && st == ST_OK && !other; r++)
        if (memcmp(all[r], all[0], sizeof own) != 0) other = r;
    mem_free(all);
    if (!other) return st;
    return err_set(e, ST_USAGE, "%s: rank %d has a different model than rank 0", path_tail(l->m->name), other);
}

status model_create(model **out, model_config *c, const char *name, backend *be, err *e)
{
    model *m = NULL;
    status st;
    TRY_GOTO(MEM_NEW(&m, 1, e));
    m->config = *c;
    *c = (model_config){0};
    m->be = be;
    TRY_GOTO(split(&m->config, name, be, e));
    TRY_GOTO(mem_alloc(&m->files, 1, sizeof(model_files), "model files", e));
    TRY_GOTO(blocks_create(&m->blocks, &m->n_blocks, &m->config, e));
    TRY_GOTO(model_list_weights(m, (size_t)backend_rank(be), (size_t)backend_ranks(be), e));
    m->name = mem_strdup(name);
    if (!m->name) {
        st = err_set(e, ST_NOMEM, "%s: out of memory", path_tail(name));
        goto done;
    }
    *out = m;
    m = NULL;
done:
    model_close(m);
    model_config_free(c);
    return st;
}

/* Returns this rank's rows of the embedding as output matrix. */
static weight head_of_embed(const model *m)
{
    weight w = m->embed;
    size_t rank = (size_t)backend_rank(m->be), ranks = (size_t)backend_ranks(m->be);
    w.rows = head_rows(&m->config, ranks);
    if (w.p.p) w.p = buf_at(w.p, weight_bytes(w.type, head_first(&m->config, rank, ranks), w.cols));
    return w;
}

status model_share(model **out, const model *m, err *e)
{
    model *s;
    TRY(MEM_NEW(&s, 1, e));
    *s = *m;
    s->files = s->name = NULL;
    s->blocks = NULL;
    s->weights = NULL;
    status st = config_copy(&s->config, &m->config, e);
    if (st == ST_OK) st = mem_alloc(&s->files, 1, sizeof(model_files), "model files", e);
    if (st == ST_OK) *(model_files *)s->files = (model_files){.original = m};
    if (st == ST_OK) st = blocks_copy(&s->blocks, m->blocks, m->n_blocks, &m->config, e);
    if (st == ST_OK) st = model_list_weights(s, (size_t)backend_rank(m->be), (size_t)backend_ranks(m->be), e);
    for (size_t i = 0; st == ST_OK && i < m->n_weights; i++) s->weights[i].from = m->weights[i].from;
    if (st == ST_OK && !(s->name = mem_strdup(m->name))) st = err_set(e, ST_NOMEM, "out of memory");
    if (st != ST_OK) {
        model_close(s);
        return st;
    }
    if (m->config.tied) s->lm_head = head_of_embed(m);
    *out = s;
    return ST_OK;
}

void model_finish(model *m)
{
    const model_files *f = files_of(m);
    bool typed = false;
    m->weight_bytes = m->decode_bytes = 0;
    for (const weight_spec *w = m->weights; w < weights_end(m); w++) {
        dtype t = w->slot->type;
        bool all = w->read_rows == w->rows || (w->slot == &m->embed && head_is_shared(m));
        m->weight_bytes += weight_size(w, t);
        size_t read = all ? weight_size(w, t) : w->read_rows * weight_bytes(t, 1, w->cols);
        m->decode_bytes += (size_t)((double)read * weight_share(w, &m->config));
        if (typed || w->vector || w->layer < 0) continue;
        m->type = t;
        typed = true;
    }
    m->memory_bytes = f->random_bytes + f->copied_bytes + (f->cache ? 0 : f->converted_bytes);
    if (m->be->ops->imports_copy) m->memory_bytes = m->weight_bytes;
    if (head_is_shared(m)) m->lm_head = head_of_embed(m);
}

double model_products(const model *m)
{
    double n = 0;
    for (const weight_spec *w = m->weights; w < weights_end(m); w++)
        if (w->layer >= 0 && !w->vector) n += (double)w->read_rows * (double)w->cols * weight_share(w, &m->config);
    return n;
}

/* Opens a folder, or a GGUF file, whose metadata are the config. */
static status open_files(tensor_source **from, model_config *c, const char *path, const model_family *family, err *e)
{
    gguf *g;
    *from = NULL;
    if (!file_exists(path) || dir_exists(path)) {
        TRY(model_config_read(c, path, family, e));
        status st = source_open_folder(from, path, e);
        if (st != ST_OK) model_config_free(c);
        return st;
    }
    TRY(gguf_open(&g, path, e));
    return source_open_gguf(from, c, g, e);
}

status model_find(model **out, const char *path, const model_family *family, backend *be, err *e)
{
    model_config c;
    model *m = NULL;
    tensor_source *from;
    *out = NULL;
    TRY(open_files(&from, &c, path, family, e));
    status st = model_create(&m, &c, path, be, e);
    if (st != ST_OK) {
        source_close(from);
        return st;
    }
    files_of(m)->source = from;
    m->to_load = true;
    TRY_GOTO(untie(m, e));
    for (weight_spec *w = m->weights; w < weights_end(m); w++) TRY_GOTO(measure(m, w, e));
    if (from->kind->check_unused) TRY_GOTO(from->kind->check_unused(from, e));
    model_finish(m);
    TRY_GOTO(check_room(m, e));
    *out = m;
    m = NULL;
done:
    model_close(m);
    return st;
}

/* Returns the type of an output matrix before it is loaded: blocks if it is an encoded weight of its own. */
static dtype loaded_head(const model *m)
{
    const source_tensor *t = &m->weights[m->n_weights - 1].from;
    return tensor_is_encoded(t) ? held_type(m, &m->weights[m->n_weights - 1]) : DT_F32;
}

status model_load(model *m, err *e)
{
    model_files *f = files_of(m);
    loader l = {.m = m};
    size_t n;
    if (!m->to_load) return ST_OK;
    m->lm_head = (weight){.type = loaded_head(m)}; /* a plan may have given it another type */
    sha256_init(&l.identity);
    config_hash(&l.identity, &m->config);
    for (weight_spec *w = m->weights; w < weights_end(m); w += n) TRY(load_joined(&l, w, &n, e));
    TRY(check_identity(&l, e));
    model_finish(m);
    if (!f->source->kind->check_unused) f->n_unused = source_n_tensors(f->source) - l.n_used;
    m->to_load = false;
    return ST_OK;
}

static void release_weights(const model *m)
{
    const model_files *f = files_of(m);
    for (weight_spec *w = m->weights; w < weights_end(m); w++) {
        bool own = !f->original || w->slot->p.p != f->original->weights[w - m->weights].slot->p.p;
        if (own && w->slot->order.p) m->be->ops->release(m->be, w->slot->order, w->slot->cols * sizeof(int32_t));
        if (own && w->slot->p.p) weight_release(m, w);
    }
}

void model_close(model *m)
{
    if (!m) return;
    model_files *f = files_of(m);
    if (m->weights) release_weights(m);
    if (f) source_close(f->source);
    for (size_t i = 0; f && i < f->n_copies; i++) mem_free(f->copies[i]);
    if (f) {
        mem_free(f->copies);
        mem_unmap(f->converted, f->converted_bytes);
        mem_free(f->cache);
    }
    mem_free(f);
    mem_free(m->weights);
    mem_free(m->blocks);
    mem_free(m->name);
    model_config_free(&m->config);
    mem_free(m);
}

static void hash_rope(sha256 *hash, const rope_config *r)
{
    char line[ROPE_TEXT];
    rope_text(line, r);
    sha256_add(hash, line, strlen(line));
}

/* Hashes properties that the first families lack, so that the hashes of those do not change. */
static void hash_more(sha256 *hash, const model_config *c)
{
    char line[96];
    for (int l = 0; l < c->n_layers; l++) {
        const block_kind *mixer = c->family->mixer(c, l), *ffn = c->family->ffn(c, l);
        if (mixer == &block_attention && ffn == &block_swiglu) continue;
        snprintf(line, sizeof line, "%d %s %s\n", l, mixer ? mixer->name : "-", ffn ? ffn->name : "-");
        sha256_add(hash, line, strlen(line));
    }
    snprintf(line, sizeof line, "%d of %d experts of %d, shared %d%s\n", c->n_chosen, c->n_experts, c->expert_ffn,
             c->shared_ffn, c->normalize ? ", normalized" : "");
    if (c->n_experts) sha256_add(hash, line, strlen(line));
    if (c->rotary != c->head_dim) sha256_add(hash, &c->rotary, sizeof c->rotary);
    if (c->n_ropes > 1) hash_rope(hash, &c->window_rope);
    snprintf(line, sizeof line, "%a %a %a %a\n", (double)c->query_gain, (double)c->post_eps, (double)c->logit_factor,
             (double)c->logit_cap);
    if (c->post_eps > 0) sha256_add(hash, line, strlen(line));
}

void config_hash(sha256 *hash, const model_config *c)
{
    char line[512];
    snprintf(line, sizeof line, "%s %d %d %d %d %d %d %d %a %d %lld\n", c->arch, c->n_layers, c->n_heads, c->n_kv_heads,
             c->head_dim, c->hidden, c->ffn, c->vocab, (double)c->rms_eps, c->qk_norm, (long long)c->max_positions);
    sha256_add(hash, line, strlen(line));
    hash_rope(hash, &c->rope);
    sha256_add(hash, c->window, (size_t)c->n_layers * sizeof *c->window);
    hash_more(hash, c);
}

void weight_hash(sha256 *hash, backend *be, const weight_spec *w)
{
    const weight *from = w->slot;
    unsigned char piece[SAMPLE_BYTES];
    char line[192];
    size_t bytes = weight_size(w, from->type), n = sample_bytes(bytes);
    const bool encoded = tensor_is_encoded(&w->from);
    const char *type = encoded ? w->from.type : dtype_name(from->type);
    snprintf(line, sizeof line, "%s %s %zu %zu\n", w->name, type, w->rows, w->cols);
    sha256_add(hash, line, strlen(line));
    for (size_t i = 0; i < SAMPLES && encoded; i++)
        sha256_add(hash, w->from.data + sample_at(w->from.bytes, i), sample_bytes(w->from.bytes));
    if (w->from.packed) sha256_add(hash, w->from.packed->scales, sample_bytes(w->from.packed->scale_bytes));
    if (encoded) return;
    for (size_t i = 0; i < SAMPLES; i++) {
        be->ops->download(be, piece, buf_at(from->p, sample_at(bytes, i)), n);
        sha256_add(hash, piece, n);
    }
}
