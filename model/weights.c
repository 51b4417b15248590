/* SPDX-License-Identifier: MIT */
/* Weights from safetensors: mapped, found by name, checked against the config. */
#include "config.h"

#include "model/weights.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum { INDEX_BYTES_MAX = 64 << 20, INDEX_DEPTH = 8 };

/* ---- which weights there are ---- */

typedef struct {
    weight_visitor visit;
    void *ctx;
    int layer; /* -1: not in a layer */
    err *e;
} walk;

static status visit_one(const walk *k, weight *slot, const char *name, size_t rows, size_t cols,
                        bool norm)
{
    char full[96];
    if (k->layer >= 0) snprintf(full, sizeof full, "model.layers.%d.%s", k->layer, name);
    else snprintf(full, sizeof full, "%s", name);
    weight_spec w = {full, rows ? rows : 1, cols, rows == 0, norm, slot};
    return k->visit(k->ctx, &w, k->e);
}

static status matrix(const walk *k, weight *slot, const char *name, size_t rows, size_t cols)
{
    return visit_one(k, slot, name, rows, cols, false);
}

static status norm(const walk *k, weight *slot, const char *name, size_t n)
{
    return visit_one(k, slot, name, 0, n, true);
}

static status bias(const walk *k, bool wanted, weight *slot, const char *name, size_t n)
{
    return wanted ? visit_one(k, slot, name, 0, n, false) : ST_OK;
}

static status each_of_attention(const walk *k, const model_config *c, layer_weights *l)
{
    size_t h = c->hidden, d = c->head_dim, q = c->n_heads * d, kv = c->n_kv_heads * d;
    TRY(norm(k, &l->attn_norm, "input_layernorm.weight", h));
    TRY(matrix(k, &l->q, "self_attn.q_proj.weight", q, h));
    TRY(matrix(k, &l->k, "self_attn.k_proj.weight", kv, h));
    TRY(matrix(k, &l->v, "self_attn.v_proj.weight", kv, h));
    TRY(bias(k, c->qkv_bias, &l->q_bias, "self_attn.q_proj.bias", q));
    TRY(bias(k, c->qkv_bias, &l->k_bias, "self_attn.k_proj.bias", kv));
    TRY(bias(k, c->qkv_bias, &l->v_bias, "self_attn.v_proj.bias", kv));
    if (c->qk_norm) TRY(norm(k, &l->q_norm, "self_attn.q_norm.weight", d));
    if (c->qk_norm) TRY(norm(k, &l->k_norm, "self_attn.k_norm.weight", d));
    TRY(matrix(k, &l->o, "self_attn.o_proj.weight", h, q));
    return bias(k, c->o_bias, &l->o_bias, "self_attn.o_proj.bias", h);
}

static status each_of_mlp(const walk *k, const model_config *c, layer_weights *l)
{
    size_t h = c->hidden, f = c->ffn;
    TRY(norm(k, &l->ffn_norm, "post_attention_layernorm.weight", h));
    TRY(matrix(k, &l->gate, "mlp.gate_proj.weight", f, h));
    TRY(matrix(k, &l->up, "mlp.up_proj.weight", f, h));
    TRY(matrix(k, &l->down, "mlp.down_proj.weight", h, f));
    TRY(bias(k, c->mlp_bias, &l->gate_bias, "mlp.gate_proj.bias", f));
    TRY(bias(k, c->mlp_bias, &l->up_bias, "mlp.up_proj.bias", f));
    return bias(k, c->mlp_bias, &l->down_bias, "mlp.down_proj.bias", h);
}

/* The model is const for those who only look; the slots belong to it all the same. */
status model_each_weight(const model *m, weight_visitor visit, void *ctx, err *e)
{
    model *w = (model *)(uintptr_t)m;
    const model_config *c = &m->config;
    walk k = {visit, ctx, -1, e};
    TRY(matrix(&k, &w->embed, "model.embed_tokens.weight", c->vocab, c->hidden));
    for (int i = 0; i < c->n_layers; i++) {
        k.layer = i;
        TRY(each_of_attention(&k, c, &m->layers[i]));
        TRY(each_of_mlp(&k, c, &m->layers[i]));
    }
    k.layer = -1;
    TRY(norm(&k, &w->norm, "model.norm.weight", c->hidden));
    if (c->tied && !dtype_in_blocks(w->lm_head.type)) return ST_OK;
    return matrix(&k, &w->lm_head, "lm_head.weight", c->vocab, c->hidden);
}

/* ---- where they come from ---- */

typedef struct {
    model *m;
    const char *dir;
    char *index_path;
    json_t *index, *map; /* NULL: everything is in shards[0] */
    size_t n_used;
} source;

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
    const json_t *j = json_object_get(s->map, tensor);
    if (!j) return err_set(e, ST_FORMAT, "%s: \"weight_map\" lacks tensor %s", index, tensor);
    const char *name = json_string_value(j);
    if (!name || !*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return err_set(e, ST_FORMAT,
                       "%s: \"weight_map\": %s is in \"%.40s\", expected a plain file name", index,
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
    return err_set(e, ST_UNSUPPORTED, "%s: tensor %s has dtype %s; supported: F32, F16, BF16", file,
                   t->name, t->type);
}

static status check_shape(const weight_spec *w, const char *file, const st_tensor *t, err *e)
{
    char found[64] = "[", want[48];
    size_t at = 1;
    bool good = w->vector ? t->rank == 1 && t->shape[0] == w->cols
                          : t->rank == 2 && t->shape[0] == w->rows && t->shape[1] == w->cols;
    if (good) return ST_OK;
    for (size_t i = 0; i < t->rank && at < sizeof found; i++)
        at += (size_t)snprintf(found + at, sizeof found - at, "%s%zu", i ? ", " : "", t->shape[i]);
    if (w->vector) snprintf(want, sizeof want, "[%zu]", w->cols);
    else snprintf(want, sizeof want, "[%zu, %zu]", w->rows, w->cols);
    return err_set(e, ST_FORMAT, "%s: tensor %s has shape %s], config.json asks for %s", file,
                   t->name, found, want);
}

/* Kernels read whole elements, so a tensor that the file places across them is copied. */
static status aligned_copy(source *s, const char *file, const st_tensor *t, const void **out,
                           err *e)
{
    model_files *f = files_of(s->m);
    void *p;
    size_t room = mem_available();
    if (room && t->bytes > room)
        return err_set(e, ST_NOMEM,
                       "%s: tensor %s is not aligned, and its copy of %zu bytes does not fit into "
                       "the %zu available",
                       file, t->name, t->bytes, room);
    TRY(MEM_GROW(&f->copies, f->n_copies + 1, e));
    TRY(mem_alloc(&p, t->bytes, 1, t->name, e));
    memcpy(p, t->data, t->bytes);
    f->copies[f->n_copies++] = p;
    *out = p;
    return ST_OK;
}

static status load(void *ctx, const weight_spec *w, err *e)
{
    source *s = ctx;
    backend *be = s->m->be;
    st_file *f = NULL;
    dtype type = DT_F32;
    if (s->map) TRY(find_shard(s, w->name, &f, e));
    else f = files_of(s->m)->shards[0];
    const char *file = path_tail(st_path(f));
    const st_tensor *t = st_find(f, w->name);
    if (!t)
        return err_set(e, ST_FORMAT, "%s: tensor %s is missing%s", file, w->name,
                       s->map ? ", though the index says it is here"
                       : strcmp(w->name, "lm_head.weight") == 0
                           ? " and config.json does not say \"tie_word_embeddings\": true"
                           : "");
    TRY(check_type(&type, file, t, e));
    TRY(check_shape(w, file, t, e));
    const void *data = t->data;
    if ((uintptr_t)data % dtype_size(type)) TRY(aligned_copy(s, file, t, &data, e));
    buf p;
    TRY(be->ops->import(be, &p, data, t->bytes, e));
    *w->slot = (weight){p, type, w->rows, w->cols};
    s->n_used++;
    return ST_OK;
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
        st = err_set(e, ST_FORMAT, "%s: \"weight_map\" is missing or not an object",
                     path_tail(s->index_path));
done:
    mem_free(single);
    return st;
}

/* ---- the model ---- */

status model_create(model **out, model_config *c, const char *name, backend *be, err *e)
{
    model *m = NULL;
    status st;
    TRY_GOTO(MEM_NEW(&m, 1, e));
    m->config = *c;
    *c = (model_config){0};
    m->be = be;
    TRY_GOTO(MEM_NEW(&m->layers, (size_t)m->config.n_layers, e));
    TRY_GOTO(mem_alloc(&m->files, 1, sizeof(model_files), "model files", e));
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

static status count_bytes(void *ctx, const weight_spec *w, err *e)
{
    (void)e;
    *(size_t *)ctx += weight_size(w, w->slot->type);
    return ST_OK;
}

void model_finish(model *m)
{
    const model_files *f = files_of(m);
    bool shared = m->config.tied && !dtype_in_blocks(m->lm_head.type);
    m->weight_bytes = 0;
    model_each_weight(m, count_bytes, &m->weight_bytes, NULL);
    m->memory_bytes = f->random_bytes + (f->cache ? 0 : f->held_bytes);
    m->type = m->layers[0].q.type;
    m->decode_bytes = m->weight_bytes;
    if (shared) m->lm_head = m->embed;
    else
        m->decode_bytes -= (m->embed.rows - 1) *
                           weight_bytes(m->embed.type, 1, m->embed.cols); /* one is looked up */
}

status model_open(model **out, const char *dir, backend *be, err *e)
{
    model_config c;
    model *m = NULL;
    *out = NULL;
    TRY(model_config_read(&c, dir, e));
    TRY(model_create(&m, &c, dir, be, e));
    source s = {.m = m, .dir = dir};
    status st;
    TRY_GOTO(open_source(&s, e));
    TRY_GOTO(model_each_weight(m, load, &s, e));
    model_finish(m);
    model_files *f = files_of(m);
    for (size_t i = 0; i < f->n_shards; i++) f->n_unused += st_count(f->shards[i]);
    f->n_unused -= s.n_used;
    *out = m;
    m = NULL;
done:
    json_decref(s.index);
    mem_free(s.index_path);
    model_close(m);
    return st;
}

static status release(void *ctx, const weight_spec *w, err *e)
{
    backend *be = ctx;
    (void)e;
    if (w->slot->p.p) be->ops->release(be, w->slot->p, weight_size(w, w->slot->type));
    return ST_OK;
}

void model_close(model *m)
{
    if (!m) return;
    model_files *f = files_of(m);
    if (m->layers) model_each_weight(m, release, m->be, NULL);
    for (size_t i = 0; f && i < f->n_shards; i++) st_close(f->shards[i]);
    for (size_t i = 0; f && i < f->n_copies; i++) mem_free(f->copies[i]);
    if (f) {
        mem_free(f->shards);
        mem_free(f->copies);
        mem_unmap(f->random, f->random_bytes);
        mem_unmap(f->held, f->held_bytes);
        mem_free(f->cache);
    }
    mem_free(f);
    mem_free(m->layers);
    mem_free(m->name);
    model_config_free(&m->config);
    mem_free(m);
}

void weight_hash(sha256 *hash, backend *be, const weight_spec *w)
{
    enum { SAMPLES = 16, SAMPLE_BYTES = 256 };
    const weight *from = w->slot;
    unsigned char piece[SAMPLE_BYTES];
    char line[192];
    size_t bytes = weight_size(w, from->type), n = bytes < SAMPLE_BYTES ? bytes : SAMPLE_BYTES;
    snprintf(line, sizeof line, "%s %s %zu %zu\n", w->name, dtype_name(from->type), w->rows, w->cols);
    sha256_add(hash, line, strlen(line));
    for (size_t i = 0; i < SAMPLES; i++) {
        size_t at = (bytes - n) / SAMPLES * i;
        be->ops->download(be, piece, buf_at(from->p, at), n);
        sha256_add(hash, piece, n);
    }
}
