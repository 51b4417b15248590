/* SPDX-License-Identifier: MIT */
/* Models as GGUF files (gguf_file.h): metadata and tensors that can be changed before they are written, twins of
 * Hugging Face folders, random models. */
#ifndef TESTS_UNIT_GGUF_WRITER_H
#define TESTS_UNIT_GGUF_WRITER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/encoding/encoding.h"
#include "model/source.h"
#include "model/weights.h"
#include "tests/unit/files.h"
#include "tests/unit/gguf_file.h"

enum { GGUF_WRITER_MAX = 64, GGUF_WRITER_ALIGN = 32 };

typedef struct {
    char name[64];
    uint32_t type, rank;
    uint64_t shape[3]; /* slowest first */
    uint8_t *data;
    size_t bytes;
} gguf_writer_tensor;

typedef struct {
    char key[64];
    uint32_t kind; /* K_U32, K_F32, K_STRING */
    char text[64];
    uint8_t number[4];
} gguf_writer_pair;

typedef struct {
    gguf_writer_pair pairs[GGUF_WRITER_MAX];
    size_t n_pairs;
    gguf_writer_tensor tensors[GGUF_WRITER_MAX];
    size_t n_tensors;
} gguf_writer;

static inline void gguf_writer_free(gguf_writer *w)
{
    for (size_t i = 0; i < w->n_tensors; i++) free(w->tensors[i].data);
    *w = (gguf_writer){0};
}

/* ---- metadata and tensors ---- */

static inline gguf_writer_pair *gguf_writer_pair_add(gguf_writer *w, const char *key, uint32_t kind)
{
    gguf_writer_pair *p = &w->pairs[w->n_pairs++];
    *p = (gguf_writer_pair){.kind = kind};
    snprintf(p->key, sizeof p->key, "%s", key);
    return p;
}

static inline void gguf_writer_text(gguf_writer *w, const char *key, const char *text)
{
    gguf_writer_pair *p = gguf_writer_pair_add(w, key, K_STRING);
    snprintf(p->text, sizeof p->text, "%s", text);
}

static inline void gguf_writer_int(gguf_writer *w, const char *key, uint32_t v)
{
    memcpy(gguf_writer_pair_add(w, key, K_U32)->number, &v, sizeof v);
}

static inline void gguf_writer_real(gguf_writer *w, const char *key, float v)
{
    memcpy(gguf_writer_pair_add(w, key, K_F32)->number, &v, sizeof v);
}

static inline void gguf_writer_drop(gguf_writer *w, const char *key)
{
    for (size_t i = 0; i < w->n_pairs; i++)
        if (strcmp(w->pairs[i].key, key) == 0) w->pairs[i] = w->pairs[--w->n_pairs];
}

/* Adds a tensor with room for its data, which are returned. cols of a vector: its length; rows 0. */
static inline uint8_t *gguf_writer_tensor_add(gguf_writer *w, const char *name, uint32_t type, size_t rows, size_t cols,
                                              size_t bytes)
{
    gguf_writer_tensor *t = &w->tensors[w->n_tensors++];
    *t = (gguf_writer_tensor){.type = type, .rank = rows ? 2 : 1, .shape = {rows ? rows : cols, cols}, .bytes = bytes};
    snprintf(t->name, sizeof t->name, "%s", name);
    t->data = calloc(1, bytes);
    if (!t->data) exit(1);
    return t->data;
}

static inline size_t gguf_writer_index(const gguf_writer *w, const char *name)
{
    for (size_t i = 0; i < w->n_tensors; i++)
        if (strcmp(w->tensors[i].name, name) == 0) return i;
    printf("Bail out! no tensor %s\n", name);
    exit(1);
}

static inline uint8_t *gguf_writer_data(const gguf_writer *w, const char *name)
{
    return w->tensors[gguf_writer_index(w, name)].data;
}

static inline void gguf_writer_drop_tensor(gguf_writer *w, const char *name)
{
    size_t i = gguf_writer_index(w, name);
    free(w->tensors[i].data);
    w->tensors[i] = w->tensors[--w->n_tensors];
}

/* Adds a vector of ones. */
static inline void gguf_writer_vector(gguf_writer *w, const char *name, size_t n)
{
    uint8_t *p = gguf_writer_tensor_add(w, name, GGUF_F32, 0, n, n * sizeof(float));
    const float one = 1;
    for (size_t i = 0; i < n; i++) memcpy(p + i * sizeof one, &one, sizeof one);
}

/* ---- files ---- */

/* Writes the metadata and tensors first to first + n - 1. */
static inline void gguf_writer_part(const gguf_writer *w, const char *path, size_t first, size_t n)
{
    gguf_file f = {0};
    uint64_t offset = 0;
    file_begin(&f, 3, n, w->n_pairs);
    for (const gguf_writer_pair *p = w->pairs; p < w->pairs + w->n_pairs; p++) {
        pair_begin(&f, p->key, p->kind);
        if (p->kind == K_STRING) put_text(&f, p->text);
        else put(&f, p->number, sizeof p->number);
    }
    for (const gguf_writer_tensor *t = w->tensors + first; t < w->tensors + first + n; t++) {
        uint64_t dim[3] = {0};
        for (uint32_t i = 0; i < t->rank; i++) dim[i] = t->shape[t->rank - 1 - i];
        entry(&f, t->name, t->rank, dim, t->type, offset);
        offset += (t->bytes + GGUF_WRITER_ALIGN - 1) / GGUF_WRITER_ALIGN * GGUF_WRITER_ALIGN;
    }
    for (const gguf_writer_tensor *t = w->tensors + first; t < w->tensors + first + n; t++) {
        file_pad(&f, GGUF_WRITER_ALIGN);
        put(&f, t->data, t->bytes);
    }
    file_pad(&f, GGUF_WRITER_ALIGN);
    write_file(path, f.p, f.n);
    free(f.p);
}

static inline void gguf_writer_save(const gguf_writer *w, const char *path)
{
    gguf_writer_part(w, path, 0, w->n_tensors);
}

/* Writes the first of two files, with n tensors. */
static inline void gguf_writer_split_first(const gguf_writer *w, const char *path, size_t n)
{
    gguf_writer part = *w;
    gguf_writer_int(&part, "split.no", 0);
    gguf_writer_int(&part, "split.count", 2);
    gguf_writer_int(&part, "split.tensors.count", (uint32_t)w->n_tensors);
    gguf_writer_part(&part, path, 0, n);
}

/* Writes STEM-00001-of-00002.gguf with n tensors, and STEM-00002-of-00002.gguf with the others. */
static inline void gguf_writer_split(const gguf_writer *w, const char *stem, size_t n)
{
    char path[600];
    snprintf(path, sizeof path, "%s-00001-of-00002.gguf", stem);
    gguf_writer_split_first(w, path, n);
    gguf_writer part = *w;
    part.n_pairs = 0;
    gguf_writer_int(&part, "split.no", 1);
    gguf_writer_int(&part, "split.count", 2);
    gguf_writer_int(&part, "split.tensors.count", (uint32_t)w->n_tensors);
    snprintf(path, sizeof path, "%s-00002-of-00002.gguf", stem);
    gguf_writer_part(&part, path, n, w->n_tensors - n);
}

/* Makes a matrix, whose rows are those of n, a tensor of three dimensions. */
static inline void gguf_writer_raise(gguf_writer *w, const char *name, uint64_t n)
{
    gguf_writer_tensor *t = &w->tensors[gguf_writer_index(w, name)];
    t->shape[2] = t->shape[1];
    t->shape[1] = t->shape[0];
    t->shape[0] = n;
    t->rank = 3;
}

/* ---- models ---- */

typedef struct {
    const char *arch;
    int layers, hidden, ffn, heads, kv_heads, head_dim;
    double theta, eps;
    int rotary; /* 0: head_dim */
} gguf_writer_sizes;

static inline void gguf_writer_config(gguf_writer *w, const gguf_writer_sizes *s)
{
    char key[64];
    const struct {
        const char *name;
        double value;
        bool real;
    } keys[] = {
        {"context_length", 512, false},
        {"embedding_length", s->hidden, false},
        {"block_count", s->layers, false},
        {"feed_forward_length", s->ffn, false},
        {"attention.head_count", s->heads, false},
        {"attention.head_count_kv", s->kv_heads, false},
        {"attention.key_length", s->head_dim, false},
        {"attention.value_length", s->head_dim, false},
        {"rope.dimension_count", s->rotary ? s->rotary : s->head_dim, false},
        {"attention.layer_norm_rms_epsilon", s->eps, true},
        {"rope.freq_base", s->theta, true},
    };
    gguf_writer_text(w, "general.architecture", s->arch);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(key, sizeof key, "%s.%s", s->arch, keys[i].name);
        if (keys[i].real) gguf_writer_real(w, key, (float)keys[i].value);
        else gguf_writer_int(w, key, (uint32_t)keys[i].value);
    }
}

static inline void gguf_writer_floats(gguf_writer *w, const char *name, const float *x, size_t n)
{
    memcpy(gguf_writer_tensor_add(w, name, GGUF_F32, 0, n, n * sizeof *x), x, n * sizeof *x);
}

static inline void gguf_writer_longrope(gguf_writer *w, const char *arch, const rope_config *r)
{
    char key[64];
    float freq[256], mscale;
    rope_frequencies(r, 1, freq, &mscale);
    gguf_writer_floats(w, "rope_factors_short.weight", r->divisors, (size_t)r->head_dim / 2);
    gguf_writer_floats(w, "rope_factors_long.weight", r->long_divisors, (size_t)r->head_dim / 2);
    snprintf(key, sizeof key, "%s.rope.scaling.attn_factor", arch);
    gguf_writer_real(w, key, mscale);
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", arch);
    gguf_writer_int(w, key, (uint32_t)r->original_max);
}

/* Adds scaling of the rotary embedding; Llama 3's becomes divisors. */
static inline void gguf_writer_rope(gguf_writer *w, const char *arch, const rope_config *r)
{
    char key[64];
    float *out, plain[256], freq[256], mscale;
    rope_config none = {.kind = ROPE_NONE, .theta = r->theta, .head_dim = r->head_dim};
    if (r->kind == ROPE_NONE) return;
    if (r->kind == ROPE_LONGROPE) {
        gguf_writer_longrope(w, arch, r);
        return;
    }
    if (r->kind == ROPE_LLAMA3) {
        size_t n = (size_t)r->head_dim / 2;
        out = (float *)(void *)gguf_writer_tensor_add(w, "rope_freqs.weight", GGUF_F32, 0, n, n * sizeof *out);
        rope_frequencies(&none, 1, plain, &mscale);
        rope_frequencies(r, 1, freq, &mscale);
        for (size_t i = 0; i < n; i++) out[i] = plain[i] / freq[i];
        return;
    }
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    gguf_writer_text(w, key, r->kind == ROPE_YARN ? "yarn" : "linear");
    const struct {
        const char *name;
        double value;
    } reals[] = {{"factor", r->factor},
                 {"yarn_beta_fast", r->beta_fast},
                 {"yarn_beta_slow", r->beta_slow},
                 {"yarn_attn_factor", r->attention_factor},
                 {"yarn_log_multiplier", r->mscale_all_dim}};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        snprintf(key, sizeof key, "%s.rope.scaling.%s", arch, reals[i].name);
        if ((i == 0 || r->kind == ROPE_YARN) && reals[i].value > 0) gguf_writer_real(w, key, (float)reals[i].value);
    }
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", arch);
    if (r->kind == ROPE_YARN) gguf_writer_int(w, key, (uint32_t)r->original_max);
    snprintf(key, sizeof key, "%s.attention.temperature_scale", arch);
    if (r->query_beta > 0) gguf_writer_real(w, key, (float)r->query_beta);
}

/* Adds a tensor of a layer with the matrices of all experts, which a folder has one by one. */
static inline status gguf_writer_stack(gguf_writer *w, tensor_source *s, int layer, const char *part, int n, err *e)
{
    char name[64], hf[96];
    source_tensor t = {0};
    uint8_t *to = NULL;
    snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", layer, part);
    for (int i = 0; i < n; i++) {
        snprintf(hf, sizeof hf, "model.layers.%d.mlp.experts.%d.%s_proj.weight", layer, i, part);
        TRY(s->kind->find(s, hf, &t, e));
        uint32_t type = t.element == DT_F32 ? GGUF_F32 : t.element == DT_F16 ? GGUF_F16 : GGUF_BF16;
        if (!to) to = gguf_writer_tensor_add(w, name, type, t.shape[0], t.shape[1], (size_t)n * t.bytes);
        memcpy(to + (size_t)i * t.bytes, t.data, t.bytes);
    }
    if (n) gguf_writer_raise(w, name, (uint64_t)n);
    return ST_OK;
}

/* Adds a tensor of a folder; rows of heads of head_dim are interleaved, 0: not. */
static inline void gguf_writer_copy(gguf_writer *w, const char *name, const source_tensor *t, size_t head_dim)
{
    size_t rows = t->rank == 2 ? t->shape[0] : 0, cols = t->shape[t->rank - 1], half = head_dim / 2;
    uint32_t type = t->element == DT_F32 ? GGUF_F32 : t->element == DT_F16 ? GGUF_F16 : GGUF_BF16;
    uint8_t *to = gguf_writer_tensor_add(w, name, type, rows, cols, t->bytes);
    size_t n = head_dim ? t->shape[0] : 1, row = t->bytes / n;
    for (size_t r = 0; r < n; r++) { /* row r of the file */
        size_t i = half ? r % head_dim : 0, from = half ? r - i + i / 2 + (i % 2) * half : r;
        memcpy(to + r * row, t->data + from * row, row);
    }
}

/* Adds what a folder has of these tensors of a layer (or of none: layer -1). */
static inline status gguf_writer_layer(gguf_writer *w, tensor_source *s, int layer, size_t head_dim, err *e)
{
    static const struct {
        const char *own, *hf;
    } of_layer[] = {{"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
                    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
                    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
                    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
                    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
                    {"ffn_down", "mlp.down_proj"},       {"attn_qkv", "self_attn.qkv_proj"},
                    {"ffn_up", "mlp.gate_up_proj"},      {"ffn_gate_inp", "mlp.gate"}},
      others[] = {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
    size_t n = layer < 0 ? 3 : sizeof of_layer / sizeof *of_layer;
    for (size_t i = 0; i < 2 * n; i++) {
        const char *suffix = i % 2 ? "bias" : "weight";
        const char *own = layer < 0 ? others[i / 2].own : of_layer[i / 2].own;
        char name[64], hf[96];
        source_tensor t = {0};
        if (layer < 0) snprintf(name, sizeof name, "%s.%s", own, suffix);
        else snprintf(name, sizeof name, "blk.%d.%s.%s", layer, own, suffix);
        if (layer < 0) snprintf(hf, sizeof hf, "%s.%s", others[i / 2].hf, suffix);
        else snprintf(hf, sizeof hf, "model.layers.%d.%s.%s", layer, of_layer[i / 2].hf, suffix);
        TRY(s->kind->find(s, hf, &t, e));
        bool turned = strcmp(own, "attn_q") == 0 || strcmp(own, "attn_k") == 0;
        if (t.data) gguf_writer_copy(w, name, &t, turned ? head_dim : 0);
    }
    return ST_OK;
}

/* Makes the twin of a Hugging Face folder. */
static inline status gguf_twin(gguf_writer *w, const char *folder, const char *arch, err *e)
{
    model_config c;
    tensor_source *s = NULL;
    TRY(model_config_read(&c, folder, NULL, e));
    const gguf_writer_sizes sizes = {.arch = arch,
                                     .layers = c.n_layers,
                                     .hidden = c.hidden,
                                     .ffn = c.ffn,
                                     .heads = c.n_heads,
                                     .kv_heads = c.n_kv_heads,
                                     .head_dim = c.head_dim,
                                     .rotary = c.rotary,
                                     .theta = c.rope.theta,
                                     .eps = (double)c.rms_eps};
    gguf_writer_config(w, &sizes);
    gguf_writer_rope(w, arch, &c.rope);
    if (c.n_experts) gguf_writer_int(w, "llama.expert_count", (uint32_t)c.n_experts);
    if (c.n_experts) gguf_writer_int(w, "llama.expert_used_count", (uint32_t)c.n_chosen);
    if (strcmp(arch, "phi3") == 0) gguf_writer_int(w, "phi3.attention.sliding_window", (uint32_t)c.window[0]);
    status st = source_open_folder(&s, folder, e);
    size_t turned = strcmp(arch, "llama") == 0 || strcmp(arch, "mistral3") == 0 ? (size_t)c.head_dim : 0;
    for (int i = -1; i < c.n_layers && st == ST_OK; i++) st = gguf_writer_layer(w, s, i, turned, e);
    for (int i = 0; i < 3 * c.n_layers && c.n_experts && st == ST_OK; i++)
        st = gguf_writer_stack(w, s, i / 3, (const char *const[]){"gate", "up", "down"}[i % 3], c.n_experts, e);
    source_close(s);
    model_config_free(&c);
    return st;
}

/* Replaces a layer's tensors of q, k and v, with this suffix, by one that has their rows. */
static inline void gguf_writer_fuse(gguf_writer *w, int layer, const char *suffix)
{
    static const char *const parts[] = {"attn_q", "attn_k", "attn_v"};
    gguf_writer_tensor of[3];
    char name[64];
    size_t rows = 0, bytes = 0;
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "blk.%d.%s.%s", layer, parts[i], suffix);
        of[i] = w->tensors[gguf_writer_index(w, name)];
        rows += of[i].shape[0];
        bytes += of[i].bytes;
    }
    snprintf(name, sizeof name, "blk.%d.attn_qkv.%s", layer, suffix);
    bool matrix = of[0].rank == 2;
    uint8_t *to = gguf_writer_tensor_add(w, name, of[0].type, matrix ? rows : 0, matrix ? of[0].shape[1] : rows, bytes);
    for (int i = 0; i < 3; to += of[i++].bytes) {
        memcpy(to, of[i].data, of[i].bytes);
        gguf_writer_drop_tensor(w, of[i].name);
    }
}

/* ---- random models ---- */

enum { RANDOM_HIDDEN = 256, RANDOM_VOCAB = 384 };

/* Fills n blocks with random bytes whose scales make weights of about 0.1. */
static inline void gguf_writer_blocks(uint8_t *p, const gguf_encoding *x, size_t n, uint64_t *seed)
{
    static const struct {
        gguf_type type;
        int scale, minimum; /* offsets of f16 numbers; -1: none */
        float size;
    } scales[] = {{GGUF_F16, 0, -1, 0.05f},     {GGUF_Q4_0, 0, -1, 0.01f},    {GGUF_Q4_1, 0, 2, 0.01f},
                  {GGUF_Q5_0, 0, -1, 0.005f},   {GGUF_Q5_1, 0, 2, 0.005f},    {GGUF_Q8_0, 0, -1, 0.0005f},
                  {GGUF_Q2_K, 80, 82, 0.003f},  {GGUF_Q3_K, 108, -1, 0.001f}, {GGUF_Q4_K, 0, 2, 0.0003f},
                  {GGUF_Q5_K, 0, 2, 0.0002f},   {GGUF_Q6_K, 208, -1, 3e-5f},  {GGUF_IQ4_NL, 0, -1, 0.001f},
                  {GGUF_IQ4_XS, 0, -1, 0.0001f}};
    for (size_t b = 0; b < n; b++, p += x->bytes) {
        for (size_t i = 0; i < x->bytes; i++) p[i] = (uint8_t)((*seed = *seed * 6364136223846793005u + 1) >> 56);
        float spread = 0.5f + (float)p[0] / 256;
        if (x->type == GGUF_BF16) p[1] = (uint8_t)(0x3d | (p[1] & 0x80));
        if (x->type == GGUF_MXFP4) p[0] = (uint8_t)(122 + (p[0] & 1));
        for (size_t i = 0; i < 4 && x->type == GGUF_NVFP4; i++) p[i] = (uint8_t)(0x10 | (p[i] & 7));
        for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
            if (scales[i].type != x->type) continue;
            float sign = x->type == GGUF_F16 && p[1] & 1 ? -1.0f : 1.0f;
            uint16_t d = f32_to_f16(sign * scales[i].size * spread), m = f32_to_f16(scales[i].size * -7 * spread);
            if (x->bytes > 100) m = f32_to_f16(scales[i].size * 7 * spread); /* a minimum that is subtracted */
            memcpy(p + scales[i].scale, &d, sizeof d);
            if (scales[i].minimum >= 0) memcpy(p + scales[i].minimum, &m, sizeof m);
        }
    }
}

/* Makes a Llama of two layers whose matrices have random blocks of an encoding; decoded: their values in F32. */
static inline void gguf_writer_random_of(gguf_writer *w, const gguf_encoding *x, bool decoded, int ffn)
{
    const size_t n_ffn = (size_t)ffn;
    const struct {
        const char *name;
        size_t rows, cols;
    } list[] = {{"attn_q", 256, 256},   {"attn_k", 128, 256},     {"attn_v", 128, 256},    {"attn_output", 256, 256},
                {"ffn_up", n_ffn, 256}, {"ffn_gate", n_ffn, 256}, {"ffn_down", 256, n_ffn}};
    const gguf_writer_sizes sizes = {.arch = "llama",
                                     .layers = 2,
                                     .hidden = RANDOM_HIDDEN,
                                     .ffn = ffn,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 64,
                                     .theta = 10000,
                                     .eps = 1e-5};
    uint64_t seed = 37;
    gguf_writer_config(w, &sizes);
    gguf_writer_vector(w, "output_norm.weight", RANDOM_HIDDEN);
    for (size_t i = 0; i < 15; i++) {
        char name[64] = "token_embd.weight";
        size_t rows = i < 14 ? list[i % 7].rows : RANDOM_VOCAB, cols = i < 14 ? list[i % 7].cols : RANDOM_HIDDEN;
        size_t n = rows * cols / x->elements;
        if (i < 14) snprintf(name, sizeof name, "blk.%zu.%s.weight", i / 7, list[i % 7].name);
        uint8_t *p = gguf_writer_tensor_add(w, name, x->type, rows, cols, n * x->bytes);
        gguf_writer_blocks(p, x, n, &seed);
        if (!decoded) continue;
        gguf_writer_tensor *t = &w->tensors[w->n_tensors - 1];
        t->bytes = rows * cols * sizeof(float);
        t->data = malloc(t->bytes);
        t->type = GGUF_F32;
        encoding_decoder(x->type)(p, n, (float *)(void *)t->data);
        free(p);
    }
    gguf_writer_vector(w, "blk.0.attn_norm.weight", RANDOM_HIDDEN);
    gguf_writer_vector(w, "blk.0.ffn_norm.weight", RANDOM_HIDDEN);
    gguf_writer_vector(w, "blk.1.attn_norm.weight", RANDOM_HIDDEN);
    gguf_writer_vector(w, "blk.1.ffn_norm.weight", RANDOM_HIDDEN);
}

static inline void gguf_writer_random(gguf_writer *w, const gguf_encoding *x, bool decoded)
{
    gguf_writer_random_of(w, x, decoded, RANDOM_HIDDEN);
}

/* Makes a Mixtral of two experts, of which a token runs one. */
static inline void gguf_writer_random_experts(gguf_writer *w, const gguf_encoding *x, bool decoded)
{
    static const char *const parts[] = {"gate", "up", "down"};
    uint64_t seed = 11;
    char name[64];
    gguf_writer_random_of(w, x, decoded, 2 * RANDOM_HIDDEN);
    gguf_writer_drop(w, "llama.feed_forward_length");
    gguf_writer_int(w, "llama.feed_forward_length", RANDOM_HIDDEN);
    gguf_writer_int(w, "llama.expert_count", 2);
    gguf_writer_int(w, "llama.expert_used_count", 1);
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "blk.%d.ffn_%s.weight", i / 3, parts[i % 3]);
        gguf_writer_tensor *t = &w->tensors[gguf_writer_index(w, name)];
        snprintf(t->name, sizeof t->name, "blk.%d.ffn_%s_exps.weight", i / 3, parts[i % 3]);
        t->rank = 3;
        t->shape[0] = 2;
        t->shape[1] = t->shape[2] = RANDOM_HIDDEN;
    }
    for (int i = 0; i < 2; i++) {
        const size_t n = 2 * (size_t)RANDOM_HIDDEN;
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", i);
        float *p = (float *)(void *)gguf_writer_tensor_add(w, name, GGUF_F32, 2, RANDOM_HIDDEN, n * sizeof *p);
        for (size_t k = 0; k < n; k++) p[k] = (float)(int)((seed = seed * 6364136223846793005u + 1) >> 60) / 16 - 0.5f;
    }
}

#endif
