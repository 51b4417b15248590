/* SPDX-License-Identifier: MIT */
/* Weights from safetensors: mapped, found by name, checked against the config. */
#include "config.h"

#include "model/weights.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "kernels/comm.h"
#include "model/block.h"

enum { INDEX_BYTES_MAX = 64 << 20, INDEX_DEPTH = 8 };

/* ---- where they come from ---- */

typedef struct {
    model *m;
    const char *dir;
    char *index_path;
    json_t *index, *map; /* NULL: everything is in shards[0] */
    size_t n_used;       /* tensors that the model needs */
    sha256 identity;
} source;

/* Where a tensor is looked at to tell it from others without reading it all. */
enum { SAMPLES = 16, SAMPLE_BYTES = 256 };

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

static status add_shard(source *s, const char *name, err *e)
{
    model_files *f = files_of(s->m);
    char *path = path_join(s->dir, name);
    if (!path) return err_set(e, ST_NOMEM, "%s: out of memory", path_tail(s->dir));
    status st = ST_OK;
    TRY_GOTO(MEM_GROW(&f->shards, f->n_shards + 1, e));
    TRY_GOTO(st_open(&f->shards[f->n_shards], path, e));
    f->n_shards++;
done:
    mem_free(path);
    return st;
}

/* The shard that the index names for a tensor, opened the first time it is asked for. */
static status find_shard(source *s, const char *tensor, st_file **out, err *e)
{
    model_files *f = files_of(s->m);
    const char *index = path_tail(s->index_path);
    const char *name = json_string_value(json_object_get(s->map, tensor));
    if (!name || !*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return err_set(e, ST_FORMAT, "%s: \"weight_map\": %s is in \"%.40s\", expected a plain file name", index,
                       tensor, name ? name : "(not a string)");
    for (size_t i = f->n_shards; i-- > 0;) {
        const char *path = st_path(f->shards[i]);
        size_t a = strlen(path), b = strlen(name);
        if (a > b && path[a - b - 1] == '/' && strcmp(path + a - b, name) == 0) {
            *out = f->shards[i];
            return ST_OK;
        }
    }
    TRY(add_shard(s, name, e));
    *out = f->shards[f->n_shards - 1];
    return ST_OK;
}

static status check_type(dtype *out, const char *file, const st_tensor *t, err *e)
{
    for (dtype d = DT_F32; d <= DT_BF16; d++) {
        static const char *const names[] = {"F32", "F16", "BF16"};
        if (strcmp(t->type, names[d]) != 0) continue;
        *out = d;
        return ST_OK;
    }
    return err_set(e, ST_UNSUPPORTED, "%s: tensor %s has dtype %s; supported: F32, F16, BF16", file, t->name, t->type);
}

static status check_shape(const weight_spec *w, const char *file, const st_tensor *t, err *e)
{
    char found[64] = "[", want[48];
    size_t at = 1;
    bool good = w->vector ? t->rank == 1 && t->shape[0] == w->all_cols
                          : t->rank == 2 && t->shape[0] == w->all_rows && t->shape[1] == w->all_cols;
    if (good) return ST_OK;
    for (size_t i = 0; i < t->rank && at < sizeof found; i++)
        at += (size_t)snprintf(found + at, sizeof found - at, "%s%zu", i ? ", " : "", t->shape[i]);
    if (w->vector) snprintf(want, sizeof want, "[%zu]", w->all_cols);
    else snprintf(want, sizeof want, "[%zu, %zu]", w->all_rows, w->all_cols);
    return err_set(e, ST_FORMAT, "%s: tensor %s has shape %s], config.json asks for %s", file, t->name, found, want);
}

/* Kernels read whole elements of rows that follow each other, so that a tensor that the file places across elements is
 * copied, and so are columns. */
static status part_copy(source *s, const char *file, const weight_spec *w, const st_tensor *t, size_t element,
                        const void **out, err *e)
{
    model_files *f = files_of(s->m);
    unsigned char *p;
    size_t room = s->m->be->ops->available(s->m->be), row = w->cols * element, bytes = w->rows * row;
    if (room && bytes > room)
        return err_set(e, ST_NOMEM,
                       "%s: tensor %s is %s, and its copy of %zu bytes does not fit into "
                       "the %zu available",
                       file, t->name, weight_in_columns(w) ? "split by columns" : "not aligned", bytes, room);
    TRY(MEM_GROW(&f->copies, f->n_copies + 1, e));
    TRY(mem_alloc((void **)&p, bytes, 1, t->name, e));
    for (size_t i = 0; i < w->rows; i++)
        memcpy(p + i * row, t->data + ((w->first_row + i) * w->all_cols + w->first_col) * element, row);
    f->copies[f->n_copies++] = p;
    if (weight_in_columns(w)) f->column_bytes += bytes;
    *out = p;
    return ST_OK;
}

/* Name, type, shape and pieces of a tensor as it is in the files: the same on all ranks of a model. */
static void add_to_identity(source *s, const st_tensor *t)
{
    char line[192];
    snprintf(line, sizeof line, "%s %s %zu %zu\n", t->name, t->type, t->shape[0], t->bytes);
    sha256_add(&s->identity, line, strlen(line));
    for (size_t i = 0; i < SAMPLES; i++)
        sha256_add(&s->identity, t->data + sample_at(t->bytes, i), sample_bytes(t->bytes));
}

static bool has_tensor(const source *s, const char *name)
{
    return s->map ? json_object_get(s->map, name) != NULL : st_find(files_of(s->m)->shards[0], name) != NULL;
}

/* Writes the spelling of a weight's name that the files use, or "". The base model's prefix may be missing, or may be
 * one too many. Errors: ST_FORMAT for two spellings. Source: transformers 5, rename_source_key. */
static status find_name(const source *s, const char *name, char found[WEIGHT_NAME], err *e)
{
    static const char prefix[] = "model.";
    const size_t n = sizeof prefix - 1;
    char more[WEIGHT_NAME];
    snprintf(more, sizeof more, "%s%s", prefix, name);
    const char *const spellings[] = {name, more, strncmp(name, prefix, n) == 0 ? name + n : NULL};
    found[0] = 0;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        if (!spellings[i] || !has_tensor(s, spellings[i])) continue;
        if (found[0])
            return err_set(e, ST_FORMAT, "%s: tensors %s and %s are the same weight; remove one of them",
                           path_tail(s->map ? s->index_path : st_path(files_of(s->m)->shards[0])), found, spellings[i]);
        snprintf(found, WEIGHT_NAME, "%s", spellings[i]);
    }
    return ST_OK;
}

static status missing(const source *s, const char *name, err *e)
{
    if (s->map) return err_set(e, ST_FORMAT, "%s: \"weight_map\" lacks tensor %s", path_tail(s->index_path), name);
    return err_set(e, ST_FORMAT, "%s: tensor %s is missing%s", path_tail(st_path(files_of(s->m)->shards[0])), name,
                   strcmp(name, HEAD_NAME) == 0 ? " and config.json does not say \"tie_word_embeddings\": true" : "");
}

/* Finds the tensor of a weight and the name of its file, and checks type and shape. Of two tied matrices the files may
 * have either. */
static status locate(source *s, const weight_spec *w, const st_tensor **t, dtype *type, const char **file, err *e)
{
    char name[WEIGHT_NAME];
    TRY(find_name(s, w->name, name, e));
    if (!name[0] && s->m->config.tied && strcmp(w->name, EMBED_NAME) == 0) TRY(find_name(s, HEAD_NAME, name, e));
    if (!name[0]) return missing(s, w->name, e);
    st_file *f = s->map ? NULL : files_of(s->m)->shards[0];
    if (s->map) TRY(find_shard(s, name, &f, e));
    *file = path_tail(st_path(f));
    *t = st_find(f, name);
    if (!*t) return err_set(e, ST_FORMAT, "%s: tensor %s is missing, though the index says it is here", *file, name);
    TRY(check_type(type, *file, *t, e));
    return check_shape(w, *file, *t, e);
}

/* Clears config.tied if the files hold two different matrices. Source: transformers 5, tie_weights. */
static status untie(source *s, err *e)
{
    const model *m = s->m;
    model_config *c = &s->m->config;
    const st_tensor *embed = NULL, *head = NULL;
    const char *file;
    char name[WEIGHT_NAME];
    dtype type;
    if (!c->tied) return ST_OK;
    TRY(find_name(s, HEAD_NAME, name, e));
    if (!name[0]) return ST_OK;
    TRY(locate(s, &m->weights[0], &embed, &type, &file, e));
    TRY(locate(s, &m->weights[m->n_weights - 1], &head, &type, &file, e));
    if (strcmp(embed->type, head->type) == 0 && memcmp(embed->data, head->data, embed->bytes) == 0) return ST_OK;
    c->tied = false;
    c->n_params += (int64_t)c->vocab * c->hidden;
    return ST_OK;
}

static status load(source *s, const weight_spec *w, err *e)
{
    backend *be = s->m->be;
    const st_tensor *t = NULL;
    const char *file = NULL;
    dtype type = DT_F32;
    TRY(locate(s, w, &t, &type, &file, e));
    size_t element = dtype_size(type);
    const void *data = t->data + (w->first_row * w->all_cols + w->first_col) * element;
    if ((uintptr_t)data % element || weight_in_columns(w)) TRY(part_copy(s, file, w, t, element, &data, e));
    bool all_have_it = !w->vector || w->norm || w->cols < w->all_cols; /* all but a bias of a sum */
    if (backend_ranks(be) > 1 && all_have_it) add_to_identity(s, t);
    buf p;
    TRY(be->ops->import(be, &p, data, weight_size(w, type), e));
    *w->slot = (weight){p, type, w->rows, w->cols};
    s->n_used++;
    return ST_OK;
}

/* The slot's type and shape, without numbers. */
static status measure(source *s, const weight_spec *w, err *e)
{
    const st_tensor *t = NULL;
    const char *file = NULL;
    dtype type = DT_F32;
    TRY(locate(s, w, &t, &type, &file, e));
    *w->slot = (weight){{NULL}, type, w->rows, w->cols};
    return ST_OK;
}

/* Whether all weights fit, where they are copied: before the first of them is. */
static status check_room(const model *m, err *e)
{
    backend *be = m->be;
    size_t have = be->ops->imports_copy ? be->ops->available(be) : 0;
    if (have == 0 || m->weight_bytes <= have) return ST_OK;
    return err_set(e, ST_NOMEM, "%s: out of memory: weights of %.1f MB are needed, %.1f MB are available on %s",
                   path_tail(m->name), (double)m->weight_bytes / 1e6, (double)have / 1e6, be->name);
}

/* Opens model.safetensors, or reads the index. */
static status open_source(source *s, err *e)
{
    status st = ST_OK;
    char *single = path_join(s->dir, "model.safetensors");
    s->index_path = path_join(s->dir, "model.safetensors.index.json");
    if (!single || !s->index_path) {
        st = err_set(e, ST_NOMEM, "%s: out of memory", path_tail(s->dir));
        goto done;
    }
    if (file_exists(single)) {
        st = add_shard(s, "model.safetensors", e);
        goto done;
    }
    if (!file_exists(s->index_path)) {
        st = err_set(e, ST_IO,
                     "%s: neither model.safetensors nor model.safetensors.index.json is there "
                     "(other formats are not supported)",
                     path_tail(s->dir));
        goto done;
    }
    TRY_GOTO(json_read_object(&s->index, s->index_path, INDEX_BYTES_MAX, INDEX_DEPTH, e));
    s->map = json_object_get(s->index, "weight_map");
    if (!json_is_object(s->map))
        st = err_set(e, ST_FORMAT, "%s: \"weight_map\" is missing or not an object", path_tail(s->index_path));
done:
    mem_free(single);
    return st;
}

/* ---- the model ---- */

/* The config becomes that of this rank. */
static status split(model_config *c, const char *name, const backend *be, err *e)
{
    int n = backend_ranks(be);
    if (c->n_kv_heads % n)
        return err_set(e, ST_USAGE, "--tp %d: %s has %d key-value heads, which %d ranks do not divide", n,
                       path_tail(name), c->n_kv_heads, n);
    if (c->ffn % n)
        return err_set(e, ST_USAGE, "--tp %d: %s has a feed-forward of %d, which %d ranks do not divide", n,
                       path_tail(name), c->ffn, n);
    c->n_heads /= n;
    c->n_kv_heads /= n;
    c->ffn /= n;
    return ST_OK;
}

/* Whether all ranks opened the same. */
static status check_identity(source *s, err *e)
{
    comm *c = s->m->be->ranks;
    char own[SHA256_HEX], (*all)[SHA256_HEX];
    int other = 0;
    if (backend_ranks(s->m->be) == 1) return ST_OK;
    sha256_hex(&s->identity, own);
    TRY(MEM_NEW(&all, (size_t)c->size, e));
    status st = comm_all_gather(c, all, own, sizeof own, e);
    for (int r = 1; r < c->size && st == ST_OK && !other; r++)
        if (memcmp(all[r], all[0], sizeof own) != 0) other = r;
    mem_free(all);
    if (!other) return st;
    return err_set(e, ST_USAGE, "%s: rank %d has another model than rank 0", path_tail(s->m->name), other);
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

/* This rank's rows. */
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
    s->files = s->source = s->name = NULL;
    s->blocks = NULL;
    s->weights = NULL;
    status st = config_copy(&s->config, &m->config, e);
    if (st == ST_OK) st = mem_alloc(&s->files, 1, sizeof(model_files), "model files", e);
    if (st == ST_OK) *(model_files *)s->files = (model_files){.beside = m};
    if (st == ST_OK) st = blocks_copy(&s->blocks, m->blocks, m->n_blocks, &m->config, e);
    if (st == ST_OK) st = model_list_weights(s, (size_t)backend_rank(m->be), (size_t)backend_ranks(m->be), e);
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
        m->decode_bytes += all ? weight_size(w, t) : w->read_rows * weight_bytes(t, 1, w->cols);
        if (typed || w->vector || w->layer < 0) continue;
        m->type = t;
        typed = true;
    }
    m->memory_bytes = f->random_bytes + f->column_bytes + (f->cache ? 0 : f->converted_bytes);
    if (m->be->ops->imports_copy) m->memory_bytes = m->weight_bytes;
    if (head_is_shared(m)) m->lm_head = head_of_embed(m);
}

double model_products(const model *m)
{
    double n = 0;
    for (const weight_spec *w = m->weights; w < weights_end(m); w++)
        if (w->layer >= 0 && !w->vector) n += (double)w->read_rows * (double)w->cols;
    return n;
}

static void forget_source(source *s)
{
    if (!s) return;
    json_decref(s->index);
    mem_free(s->index_path);
    mem_free(s);
}

status model_find(model **out, const char *dir, const model_family *family, backend *be, err *e)
{
    model_config c;
    model *m = NULL;
    *out = NULL;
    TRY(model_config_read(&c, dir, family, e));
    TRY(model_create(&m, &c, dir, be, e));
    status st;
    TRY_GOTO(mem_alloc(&m->source, 1, sizeof(source), "model files", e));
    *(source *)m->source = (source){.m = m, .dir = m->name};
    TRY_GOTO(open_source(m->source, e));
    TRY_GOTO(untie(m->source, e));
    for (const weight_spec *w = m->weights; w < weights_end(m); w++) TRY_GOTO(measure(m->source, w, e));
    model_finish(m);
    TRY_GOTO(check_room(m, e));
    *out = m;
    m = NULL;
done:
    model_close(m);
    return st;
}

status model_load(model *m, err *e)
{
    source *s = m->source;
    model_files *f = files_of(m);
    if (!s) return ST_OK;
    m->lm_head = (weight){.rows = 0}; /* a tied one was made of the embedding */
    sha256_init(&s->identity);
    config_hash(&s->identity, &m->config);
    for (const weight_spec *w = m->weights; w < weights_end(m); w++) TRY(load(s, w, e));
    TRY(check_identity(s, e));
    model_finish(m);
    for (size_t i = 0; i < f->n_shards; i++) f->n_unused += st_count(f->shards[i]);
    f->n_unused -= s->n_used;
    forget_source(s);
    m->source = NULL;
    return ST_OK;
}

status model_open(model **out, const char *dir, backend *be, err *e)
{
    TRY(model_find(out, dir, NULL, be, e));
    status st = model_load(*out, e);
    if (st == ST_OK) return ST_OK;
    model_close(*out);
    *out = NULL;
    return st;
}

static void release_weights(const model *m)
{
    const model_files *f = files_of(m);
    for (const weight_spec *w = m->weights; w < weights_end(m); w++) {
        bool own = !f->beside || dtype_in_qblocks(w->slot->type);
        size_t bytes = weight_size(w, w->slot->type);
        if (own && w->slot->p.p) (f->random_bytes ? m->be->ops->free : m->be->ops->release)(m->be, w->slot->p, bytes);
    }
}

void model_close(model *m)
{
    if (!m) return;
    model_files *f = files_of(m);
    if (m->weights) release_weights(m);
    forget_source(m->source);
    for (size_t i = 0; f && i < f->n_shards; i++) st_close(f->shards[i]);
    for (size_t i = 0; f && i < f->n_copies; i++) mem_free(f->copies[i]);
    if (f) {
        mem_free(f->shards);
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

/* Adds what the first families do not have: their hashes stay as they are. */
static void hash_more(sha256 *hash, const model_config *c)
{
    char line[96];
    for (int l = 0; l < c->n_layers; l++) {
        const block_kind *mixer = c->family->mixer(c, l), *ffn = c->family->ffn(c, l);
        if (mixer == &block_attention && ffn == &block_swiglu) continue;
        snprintf(line, sizeof line, "%d %s %s\n", l, mixer ? mixer->name : "-", ffn ? ffn->name : "-");
        sha256_add(hash, line, strlen(line));
    }
    if (c->rotary != c->head_dim) sha256_add(hash, &c->rotary, sizeof c->rotary);
    if (c->n_ropes > 1) hash_rope(hash, &c->window_rope);
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
    snprintf(line, sizeof line, "%s %s %zu %zu\n", w->name, dtype_name(from->type), w->rows, w->cols);
    sha256_add(hash, line, strlen(line));
    for (size_t i = 0; i < SAMPLES; i++) {
        be->ops->download(be, piece, buf_at(from->p, sample_at(bytes, i)), n);
        sha256_add(hash, piece, n);
    }
}
