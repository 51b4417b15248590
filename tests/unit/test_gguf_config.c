/* SPDX-License-Identifier: MIT */
/* Configs of GGUF files: keys, their defaults, and what is refused. */
#include "config.h"

#include <math.h>
#include <stdio.h>

#include "model/weights.h"
#include "tests/tap.h"
#include "tests/unit/gguf_file.h"
#include "tests/unit/oom.h"

/* A pair of a file: a text, or a number of a kind. */
typedef struct {
    const char *key, *text;
    uint32_t kind;
    double number;
    unsigned array; /* elements of an array, all equal but the last; 0: a plain value */
    double last;
} value;

#define TEXT(k, t)                                                                                                     \
    {                                                                                                                  \
        .key = (k), .kind = K_STRING, .text = (t)                                                                      \
    }
#define INT(k, n)                                                                                                      \
    {                                                                                                                  \
        .key = (k), .kind = K_U32, .number = (n)                                                                       \
    }
#define REAL(k, x)                                                                                                     \
    {                                                                                                                  \
        .key = (k), .kind = K_F32, .number = (x)                                                                       \
    }
#define EACH(k, a, b)                                                                                                  \
    {                                                                                                                  \
        .key = (k), .kind = K_I64, .number = (a), .array = 3, .last = (b)                                              \
    }
#define TOKENS(n)                                                                                                      \
    {                                                                                                                  \
        .key = "tokenizer.ggml.tokens", .kind = K_STRING, .text = "x", .array = (n)                                    \
    }
#define NONE(k)                                                                                                        \
    {                                                                                                                  \
        .key = (k)                                                                                                     \
    }

static const value base[] = {
    TEXT("general.architecture", "llama"),
    INT("llama.block_count", 3),
    INT("llama.context_length", 128),
    INT("llama.embedding_length", 32),
    INT("llama.feed_forward_length", 48),
    INT("llama.attention.head_count", 4),
    REAL("llama.attention.layer_norm_rms_epsilon", 1e-5),
};
enum { N_BASE = sizeof base / sizeof *base };

static void put_number(gguf_file *f, uint32_t kind, double x)
{
    uint32_t bits;
    float single = (float)x;
    memcpy(&bits, &single, 4);
    if (kind == K_F32) put_le(f, bits, 4);
    else put_le(f, (uint64_t)(int64_t)x, kind == K_I64 ? 8 : kind == K_BOOL ? 1 : 4);
}

static void put_value(gguf_file *f, const value *v)
{
    if (v->text && !v->array) pair_text(f, v->key, v->text);
    if (v->text && v->array) array_begin(f, v->key, v->kind, v->array);
    for (unsigned i = 0; v->text && i < v->array; i++) put_text(f, v->text);
    if (v->text) return;
    if (v->array) array_begin(f, v->key, v->kind, v->array);
    else pair_begin(f, v->key, v->kind);
    for (unsigned i = 0; i + 1 < v->array; i++) put_number(f, v->kind, v->number);
    put_number(f, v->kind, v->array ? v->last : v->number);
}

/* Builds the base file with n values added or replaced, or removed by NONE, and reads its config. freqs: two or more
 * elements of rope_freqs.weight; 0: none. */
static status read(model_config *c, const value *v, size_t n, unsigned freqs, float freq, err *e)
{
    gguf_file f = {0};
    const value *all[N_BASE + 16];
    size_t n_all = 0;
    gguf *g;
    for (size_t i = 0; i < N_BASE; i++) {
        bool replaced = false;
        for (size_t k = 0; k < n; k++) replaced |= strcmp(v[k].key, base[i].key) == 0;
        if (!replaced) all[n_all++] = &base[i];
    }
    for (size_t k = 0; k < n; k++)
        if (v[k].text || v[k].kind) all[n_all++] = &v[k];
    file_begin(&f, 3, freqs ? 2 : 1, n_all);
    for (size_t i = 0; i < n_all; i++) put_value(&f, all[i]);
    entry(&f, "token_embd.weight", 2, (const uint64_t[]){32, 5}, GGUF_Q8_0, 0);
    if (freqs) entry(&f, "rope_freqs.weight", 1, (const uint64_t[]){freqs}, GGUF_F32, 192);
    file_data(&f, 32, 192);
    for (unsigned i = 0; i < freqs; i++) put_number(&f, K_F32, i ? 2 : (double)freq);
    status st = gguf_open_memory(&g, f.p, f.n, "x.gguf", e);
    if (st == ST_OK) st = model_config_from_gguf(c, &g, 1, e);
    gguf_close(g);
    free(f.p);
    return st;
}

static void test_base(void)
{
    model_config c;
    err e = {0};
    if (!is_ok(read(&c, NULL, 0, 0, 0, &e), &e, "the required keys")) return;
    ok(c.n_layers == 3 && c.hidden == 32 && c.n_heads == 4 && c.max_positions == 128, "sizes");
    is_int(c.n_kv_heads, 4, "heads of keys: those of queries by default");
    is_int(c.head_dim, 8, "size of a head by default");
    is_int(c.vocab, 5, "vocabulary: rows of token_embd");
    ok(c.tied, "the output matrix is shared if there is none");
    ok(c.rope.kind == ROPE_NONE && c.rope.theta == 10000 && !c.rope.divisors, "rotary embedding by default");
    ok(c.rms_eps == 1e-5f, "epsilon");
    model_config_free(&c);
}

static void test_keys(void)
{
    static const value v[] = {EACH("llama.attention.head_count", 4, 4), EACH("llama.attention.head_count_kv", 2, 2),
                              INT("llama.attention.key_length", 16),    INT("llama.attention.value_length", 16),
                              INT("llama.rope.dimension_count", 16),    REAL("llama.rope.freq_base", 5e5),
                              REAL("llama.rope.scaling.factor", 4),     TOKENS(5)};
    model_config c;
    err e = {0};
    if (!is_ok(read(&c, v, 8, 8, 3, &e), &e, "other keys")) return;
    ok(c.n_heads == 4 && c.n_kv_heads == 2, "equal numbers for each layer");
    ok(c.head_dim == 16 && c.rope.theta == 5e5, "size of a head, base");
    ok(c.rope.kind == ROPE_LINEAR && c.rope.factor == 4, "a factor without a type is linear");
    ok(c.rope.divisors && c.rope.divisors[0] == 3 && c.rope.divisors[7] == 2, "divisors");
    model_config copy;
    if (is_ok(config_copy(&copy, &c, &e), &e, "a copy")) {
        ok(copy.rope.divisors != c.rope.divisors && copy.rope.divisors[0] == 3, "has its own divisors");
        model_config_free(&copy);
    }
    model_config_free(&c);
    static const value yarn[] = {TEXT("llama.rope.scaling.type", "yarn"), REAL("llama.rope.scaling.factor", 8),
                                 INT("llama.rope.scaling.original_context_length", 16),
                                 REAL("llama.rope.scaling.yarn_ext_factor", 1),
                                 REAL("llama.rope.scaling.yarn_beta_fast", 16)};
    if (!is_ok(read(&c, yarn, 5, 0, 0, &e), &e, "YaRN")) return;
    ok(c.rope.kind == ROPE_YARN && c.rope.factor == 8 && c.rope.original_max == 16 && c.rope.beta_fast == 16 &&
           c.rope.beta_slow == 1,
       "its parameters");
    model_config_free(&c);
}

/* Widths of experts without keys of their own. */
static void test_experts(void)
{
    static const value mixtral[] = {INT("llama.expert_count", 8), INT("llama.expert_used_count", 2)};
#define SPARSE(arch)                                                                                                   \
    TEXT("general.architecture", arch), INT(arch ".block_count", 2), INT(arch ".context_length", 128),                 \
        INT(arch ".embedding_length", 32), INT(arch ".feed_forward_length", 48), INT(arch ".attention.head_count", 4), \
        REAL(arch ".attention.layer_norm_rms_epsilon", 1e-5), INT(arch ".expert_count", 6),                            \
        INT(arch ".expert_used_count", 3)
    static const value qwen2[] = {SPARSE("qwen2moe")};
    static const value qwen3vl[] = {SPARSE("qwen3vlmoe"), INT("qwen3vlmoe.n_deepstack_layers", 3),
                                    EACH("qwen3vlmoe.rope.dimension_sections", 2, 2)};
    model_config c;
    err e = {0};
    if (is_ok(read(&c, mixtral, 2, 0, 0, &e), &e, "Mixtral")) {
        ok(c.n_experts == 8 && c.n_chosen == 2 && c.expert_ffn == 48 && c.shared_ffn == 0 && c.normalize,
           "experts as wide as the feed-forward");
        model_config_free(&c);
    }
    if (!is_ok(read(&c, qwen2, 9, 0, 0, &e), &e, "Qwen2-MoE")) return;
    ok(c.n_experts == 6 && c.n_chosen == 3 && c.expert_ffn == 16 && c.shared_ffn == 48 && !c.normalize,
       "the chosen experts, and the shared one, are as wide as the feed-forward");
    model_config_free(&c);
    if (!is_ok(read(&c, qwen3vl, 11, 0, 0, &e), &e, "Qwen3-VL-MoE")) return;
    ok(c.n_experts == 6 && c.shared_ffn == 0 && c.normalize && c.qk_norm && c.rope.kind == ROPE_NONE,
       "normalized, no shared expert, plain rotary embeddings");
    model_config_free(&c);
}

static const struct {
    value v, also;
    status want;
    const char *part;
} bad[] = {
    {NONE("general.architecture"), NONE("-"), ST_FORMAT, "x.gguf: general.architecture is missing"},
    {INT("general.architecture", 1), NONE("-"), ST_FORMAT, "general.architecture is of type u32"},
    {TEXT("general.architecture", "granite"), NONE("-"), ST_UNSUPPORTED,
     "architecture granite is not supported; supported: llama"},
    {TEXT("general.type", "adapter"), NONE("general.architecture"), ST_UNSUPPORTED,
     "a LoRA adapter (general.type is adapter), not a whole model; open the model's own file"},
    {TEXT("general.type", "imatrix"), NONE("general.architecture"), ST_UNSUPPORTED,
     "an importance matrix for quantization (general.type is imatrix), not"},
    {TEXT("general.type", "mmproj"), TEXT("general.architecture", "clip"), ST_UNSUPPORTED,
     "an mmproj file of an image encoder (general.type is mmproj), not"},
    {TEXT("general.type", "dataset"), NONE("-"), ST_UNSUPPORTED, "general.type is \"dataset\", expected a model"},
    {TEXT("general.architecture", "clip"), NONE("-"), ST_UNSUPPORTED, "(general.architecture is clip), not"},
    {TEXT("general.architecture", "eagle3"), NONE("-"), ST_UNSUPPORTED, "a draft model of the kind EAGLE-3 (general"},
    {TEXT("general.architecture", "dflash"), TEXT("general.type", "model"), ST_UNSUPPORTED,
     "a draft model of the kind DFlash (general"},
    {INT("llama.expert_count", 8), NONE("-"), ST_FORMAT, "llama.expert_used_count is missing"},
    {INT("llama.expert_count", 8), INT("llama.expert_used_count", 9), ST_FORMAT, "expected at most the 8 experts"},
    {TEXT("general.architecture", "qwen3moe"), NONE("-"), ST_FORMAT, "x.gguf: qwen3moe.expert_count is missing or 0"},
    {TEXT("general.architecture", "qwen2"), INT("qwen2.expert_count", 8), ST_UNSUPPORTED,
     "architecture qwen2 with 8 experts is not supported"},
    {REAL("llama.expert_weights_norm", 1), NONE("-"), ST_UNSUPPORTED, "expert_weights_norm is not supported"},
    {INT("llama.expert_gating_func", 2), NONE("-"), ST_UNSUPPORTED, "expert_gating_func is not supported"},
    {NONE("llama.block_count"), NONE("-"), ST_FORMAT, "llama.block_count is missing"},
    {INT("llama.block_count", 0), NONE("-"), ST_FORMAT, "llama.block_count is 0"},
    {TEXT("llama.block_count", "3"), NONE("-"), ST_FORMAT, "llama.block_count is of type string"},
    {NONE("llama.embedding_length"), NONE("-"), ST_FORMAT, "llama.embedding_length is missing"},
    {NONE("llama.feed_forward_length"), NONE("-"), ST_FORMAT, "llama.feed_forward_length is missing"},
    {NONE("llama.context_length"), NONE("-"), ST_FORMAT, "llama.context_length is missing"},
    {NONE("llama.attention.head_count"), NONE("-"), ST_FORMAT, "llama.attention.head_count is missing"},
    {NONE("llama.attention.layer_norm_rms_epsilon"), NONE("-"), ST_FORMAT, "rms_epsilon is missing"},
    {REAL("llama.attention.layer_norm_rms_epsilon", (double)NAN), NONE("-"), ST_FORMAT, "rms_epsilon is nan"},
    {EACH("llama.attention.head_count_kv", 2, 1), NONE("-"), ST_UNSUPPORTED, "differs between layers"},
    {EACH("llama.attention.head_count_kv", 0, 0), NONE("-"), ST_FORMAT, "head_count_kv is 0"},
    {EACH("llama.attention.head_count", -1, -1), EACH("llama.embedding_length", (double)INT64_MIN, (double)INT64_MIN),
     ST_FORMAT, "embedding_length is -9"},
    {INT("llama.attention.head_count_kv", 3), NONE("-"), ST_FORMAT, "num_key_value_heads"},
    {INT("llama.attention.value_length", 4), NONE("-"), ST_UNSUPPORTED, "differs from value_length"},
    {INT("llama.attention.head_count", 5), NONE("-"), ST_FORMAT,
     "llama.attention.key_length is missing, and 5 heads do not divide embedding_length 32"},
    {INT("llama.rope.dimension_count", 4), NONE("-"), ST_UNSUPPORTED, "rope.dimension_count is 4, only"},
    {REAL("llama.rope.freq_base", -1), NONE("-"), ST_FORMAT, "llama.rope.freq_base is -1"},
    {TEXT("llama.rope.scaling.type", "spiral"), NONE("-"), ST_UNSUPPORTED, "supported: none, linear, yarn"},
    {TEXT("llama.rope.scaling.type", "longrope"), NONE("-"), ST_FORMAT, "rope_factors_long.weight is missing"},
    {REAL("llama.attention.temperature_scale", 0.1), NONE("-"), ST_UNSUPPORTED, "temperature_scale is not supported"},
    {INT("llama.attention.sliding_window", 16), NONE("-"), ST_UNSUPPORTED, "sliding_window is not supported"},
    {REAL("llama.rope.scaling.attn_factor", 1.19), NONE("-"), ST_UNSUPPORTED, "attn_factor is 1.19, only 1"},
    {REAL("llama.rope.scaling.yarn_ext_factor", 0), TEXT("llama.rope.scaling.type", "yarn"), ST_UNSUPPORTED,
     "yarn_ext_factor is 0, only 1"},
    {TOKENS(4), NONE("-"), ST_FORMAT, "tensor token_embd.weight has 5 rows, tokenizer.ggml.tokens has 4 elements"},
    {TOKENS(6), NONE("-"), ST_FORMAT, "tensor token_embd.weight has 5 rows, tokenizer.ggml.tokens has 6 elements"},
    {INT("tokenizer.ggml.tokens", 5), NONE("-"), ST_FORMAT, "tokenizer.ggml.tokens is of type u32"},
    {REAL("llama.logit_scale", 1), NONE("-"), ST_UNSUPPORTED, "llama.logit_scale is not supported"},
    {REAL("llama.embedding_scale", 1), NONE("-"), ST_UNSUPPORTED, "embedding_scale is not supported"},
    {REAL("llama.residual_scale", 1), NONE("-"), ST_UNSUPPORTED, "residual_scale is not supported"},
    {REAL("llama.attention.scale", 1), NONE("-"), ST_UNSUPPORTED, "attention.scale is not supported"},
    {REAL("llama.attention.clamp_kqv", 1), NONE("-"), ST_UNSUPPORTED, "clamp_kqv is not supported"},
    {REAL("llama.attn_logit_softcapping", 1), NONE("-"), ST_UNSUPPORTED, "attn_logit_softcapping is not"},
    {REAL("llama.final_logit_softcapping", 1), NONE("-"), ST_UNSUPPORTED, "final_logit_softcapping is not"},
    {REAL("llama.expert_weights_scale", 1), NONE("-"), ST_UNSUPPORTED, "expert_weights_scale is not supported"},
    {REAL("llama.rope.scaling.alpha", 1), NONE("-"), ST_UNSUPPORTED, "rope.scaling.alpha is not supported"},
    {REAL("llama.rope.freq_base_swa", 1), NONE("-"), ST_UNSUPPORTED, "rope.freq_base_swa is not supported"},
};

static void test_bad(void)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        model_config c;
        err e = {0};
        const value both[] = {bad[i].v, bad[i].also};
        is_err(read(&c, both, 2, 0, 0, &e), &e, bad[i].want, bad[i].part, "%s", bad[i].v.key);
        ok(strstr(e.msg, "x.gguf: ") == e.msg, "names the file");
    }
    static const float odd[] = {0, -1, 1e-40f, INFINITY, NAN};
    for (size_t i = 0; i < 5; i++) {
        model_config c;
        err e = {0};
        is_err(read(&c, NULL, 0, 4, odd[i], &e), &e, ST_FORMAT, "tensor rope_freqs.weight: a divisor of", "a divisor");
        e = (err){0};
        is_err(read(&c, NULL, 0, 5, 1, &e), &e, ST_FORMAT, "rope_freqs.weight, expected 4 elements", "5 divisors");
    }
}

static void test_out_of_memory(void)
{
    oom_run o = {0};
    while (oom_next(&o)) {
        model_config c = {0};
        status st = read(&c, NULL, 0, 4, 1, &o.e);
        oom_saw(&o, st, NULL);
        if (st == ST_OK) model_config_free(&c);
    }
    oom_ok(&o, 5, "reading a config");
}

int main(void)
{
    test_base();
    test_keys();
    test_experts();
    test_bad();
    test_out_of_memory();
    return tap_done();
}
