/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "kernels/base/mem.h"
#include "model/model.h"
#include "model/weights.h"
#include "tests/unit/oom.h"
#include "tests/tap.h"

static const char *const base =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":4,\"hidden_size\":64,"
    "\"intermediate_size\":172,\"vocab_size\":512,\"num_attention_heads\":8,\"num_key_value_"
    "heads\":4,"
    "\"max_position_embeddings\":512}";

/* base with the keys of `change`; the value "-" removes a key. */
static status parse(model_config *c, const char *change, err *e)
{
    json_t *j = json_loads(base, 0, NULL), *k = json_loads(change, 0, NULL), *v;
    const char *key;
    void *tmp;
    if (!j || !k) {
        printf("Bail out! bad JSON in the test: %s\n", change);
        exit(1);
    }
    json_object_update(j, k);
    json_object_foreach_safe(k, tmp, key, v)
    {
        if (json_is_string(v) && strcmp(json_string_value(v), "-") == 0) json_object_del(j, key);
    }
    char *text = json_dumps(j, 0);
    *e = (err){0};
    status st = model_config_parse(c, text, strlen(text), "dir/config.json", NULL, e);
    free(text);
    json_decref(j);
    json_decref(k);
    return st;
}

static void test_defaults(void)
{
    err e;
    model_config c;
    if (!is_ok(parse(&c, "{}", &e), &e, "a plain Llama")) return;
    is_str(c.arch, "LlamaForCausalLM", "architecture");
    is_int(c.n_layers, 4, "layers");
    is_int(c.hidden, 64, "hidden size");
    is_int(c.ffn, 172, "feed-forward size");
    is_int(c.vocab, 512, "vocabulary");
    is_int(c.n_heads, 8, "heads");
    is_int(c.n_kv_heads, 4, "kv heads");
    is_int(c.head_dim, 8, "head_dim derived");
    is_int(c.max_positions, 512, "positions");
    ok(c.rms_eps == 1e-6f, "rms_norm_eps default");
    ok(!c.tied && !c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm, "switches are off");
    ok(c.rope.kind == ROPE_NONE && c.rope.theta == 10000 && c.rope.head_dim == 8, "plain rope");
    is_int(c.window[3], 0, "no window");
    is_int(c.n_params, 4LL * (2 * 64 + 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 172) + 64 + 2 * 64 * 512, "parameters");
    model_config_free(&c);
    ok(!c.window, "freed");
}

/* One line each: change, then what must hold. */
#define GOOD(change, cond)                                                                                             \
    do {                                                                                                               \
        err e;                                                                                                         \
        model_config c;                                                                                                \
        if (is_ok(parse(&c, change, &e), &e, "%s", change)) ok(cond, "  %s", #cond);                                   \
        model_config_free(&c);                                                                                         \
    } while (0)

#define LLAMA   "\"architectures\":[\"LlamaForCausalLM\"]"
#define MISTRAL "\"architectures\":[\"MistralForCausalLM\"]"
#define QWEN2   "\"architectures\":[\"Qwen2ForCausalLM\"]"
#define QWEN3   "\"architectures\":[\"Qwen3ForCausalLM\"]"
#define MIXTRAL "\"architectures\":[\"MixtralForCausalLM\"]"
#define QWEN2E  "\"architectures\":[\"Qwen2MoeForCausalLM\"]"
#define QWEN3E  "\"architectures\":[\"Qwen3MoeForCausalLM\"]"

static void test_spellings(void)
{
    GOOD("{\"head_dim\":16}", c.head_dim == 16);
    GOOD("{\"head_dim\":null}", c.head_dim == 8);
    GOOD("{\"num_key_value_heads\":\"-\"}", c.n_kv_heads == 8);
    GOOD("{\"num_key_value_heads\":null}", c.n_kv_heads == 8);
    GOOD("{\"rms_norm_eps\":1e-05}", c.rms_eps == 1e-5f);
    GOOD("{\"tie_word_embeddings\":true}", c.tied && c.n_params == 4 * 45440 + 64 + 64 * 512);
    GOOD("{\"attention_bias\":true,\"mlp_bias\":true}", c.qkv_bias && c.o_bias && c.mlp_bias);
    GOOD("{\"architectures\":\"-\",\"model_type\":\"qwen3\"}", strcmp(c.arch, "Qwen3ForCausalLM") == 0);
    GOOD("{\"architectures\":[],\"model_type\":\"mistral\"}", strcmp(c.arch, "MistralForCausalLM") == 0);
    GOOD("{\"torch_dtype\":\"bfloat16\",\"dtype\":\"float32\",\"unknown_key\":[{}]}", c.hidden == 64);
    GOOD("{\"hidden_act\":\"silu\",\"quantization_config\":null,\"rope_scaling\":null}", c.hidden == 64);
    GOOD("{\"max_position_embeddings\":\"-\"}", c.max_positions == 2048);
    GOOD("{" MISTRAL ",\"max_position_embeddings\":\"-\"}", c.max_positions == 131072);
    GOOD("{" MISTRAL ",\"attention_bias\":true,\"mlp_bias\":true}", !c.qkv_bias && !c.o_bias && !c.mlp_bias);
    GOOD("{" QWEN2 "}", c.qkv_bias && !c.o_bias && !c.qk_norm && c.head_dim == 8);
    GOOD("{" QWEN3 "}", !c.qkv_bias && c.qk_norm && c.head_dim == 128);
    GOOD("{" QWEN3 ",\"attention_bias\":true,\"head_dim\":null}", c.qkv_bias && c.o_bias && c.head_dim == 8);
    GOOD("{\"hidden_act\":\"swish\"}", c.hidden == 64);
    GOOD("{\"eos_token_id\":[1,2],\"pad_token_id\":-1,\"rope_scaling\":null,\"auto_map\":{}}", c.hidden == 64);
}

static void test_experts(void)
{
    GOOD("{" MIXTRAL "}", c.n_experts == 8 && c.n_chosen == 2 && c.expert_ffn == 172 && c.normalize && c.sparse[0] &&
                              c.rope.theta == 1e6 && c.window[0] == 0 && c.rms_eps == 1e-5f);
    GOOD("{" MIXTRAL ",\"sliding_window\":64}", c.window[3] == 64);
    GOOD("{" MIXTRAL ",\"head_dim\":null,\"num_experts\":4,\"decoder_sparse_step\":2}",
         c.head_dim == 8 && c.n_experts == 4 && c.sparse[0] && c.sparse[3]);
    GOOD("{" QWEN3E ",\"num_local_experts\":16,\"use_qk_norm\":true,\"dual_chunk_attention_config\":null}",
         c.n_experts == 16 && c.qk_norm);
    GOOD("{" QWEN2E "}", c.n_experts == 60 && c.n_chosen == 4 && c.expert_ffn == 1408 && c.shared_ffn == 5632 &&
                             !c.normalize && c.qkv_bias && !c.o_bias);
    GOOD("{" QWEN2E ",\"qkv_bias\":false,\"shared_expert_intermediate_size\":0,\"sliding_window\":0}",
         !c.qkv_bias && c.shared_ffn == 0);
    GOOD("{" QWEN3E ",\"num_local_experts\":16,\"norm_topk_prob\":true,\"shared_expert_intermediate_size\":0}",
         c.n_experts == 16 && c.n_chosen == 8 && c.normalize && c.shared_ffn == 0 && c.qk_norm && c.head_dim == 8);
    GOOD("{" QWEN3E ",\"decoder_sparse_step\":2,\"mlp_only_layers\":[3]}",
         !c.sparse[0] && c.sparse[1] && !c.sparse[2] && !c.sparse[3]);
    GOOD("{" QWEN3E ",\"num_experts\":0}", c.n_experts == 0 && !c.sparse[0] && c.n_active == c.n_params);
    /* each of 4 layers runs 1 of 2 experts of 3 matrices */
    GOOD("{" MIXTRAL ",\"num_local_experts\":2,\"num_experts_per_tok\":1}",
         c.n_params - c.n_active == 4LL * 3 * 64 * 172);
}

/* Keys that are not read may have values that C cannot hold. A key that is read is not mistaken for an absent one. */
static void test_numbers(void)
{
    static const struct {
        const char *more, *want; /* want NULL: it parses */
    } cases[] = {
        {"\"x\":NaN,\"y\":[-Infinity,1e999],\"z\":1000000000000000019884624838656", NULL},
        {"\"rope_theta\":NaN", "\"rope_theta\" is the string \"NaN\", expected a number"},
        {"\"rms_norm_eps\":-Infinity", "\"rms_norm_eps\" is the string \"-Infinity\", expected a number"},
        {"\"head_dim\":100000000000000000000", "\"head_dim\" is the number 1e+20, expected an integer"},
        {"\"tie_word_embeddings\":NaN", "\"tie_word_embeddings\" is the string \"NaN\", expected true or false"},
        {"\"partial_rotary_factor\":1e999", "\"partial_rotary_factor\" is the string \"1e999\", expected a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        err e = {0};
        model_config c;
        snprintf(text, sizeof text, "%.*s,%s}", (int)strlen(base) - 1, base, cases[i].more);
        status st = model_config_parse(&c, text, strlen(text), "config.json", NULL, &e);
        if (cases[i].want) is_err(st, &e, ST_FORMAT, cases[i].want, "%s", cases[i].more);
        else is_ok(st, &e, "%s", cases[i].more);
        model_config_free(&c);
    }
}

/* AutoModel's rules: model_type decides; the class without an output matrix has the same config. */
static void test_families(void)
{
    GOOD("{\"architectures\":[\"Qwen3Model\"],\"model_type\":\"qwen3\"}", strcmp(c.arch, "Qwen3ForCausalLM") == 0);
    GOOD("{\"architectures\":[\"LlamaModel\"]}", strcmp(c.arch, "LlamaForCausalLM") == 0);
    GOOD("{" LLAMA ",\"model_type\":\"mistral\"}", c.window[0] == 4096);
    GOOD("{" MISTRAL ",\"model_type\":\"llama\"}", c.window[0] == 0);
    GOOD("{\"architectures\":null,\"model_type\":\"ministral\"}", c.window[3] == 4096);
}

static void test_windows(void)
{
    GOOD("{\"sliding_window\":64}", c.window[0] == 0 && c.window[3] == 0);
    GOOD("{" MISTRAL ",\"sliding_window\":64}", c.window[0] == 64 && c.window[3] == 64);
    GOOD("{" MISTRAL ",\"sliding_window\":null}", c.window[0] == 0);
    GOOD("{" MISTRAL "}", c.window[0] == 4096); /* transformers' default for the absent key */
    GOOD("{" QWEN2 ",\"sliding_window\":64,\"max_window_layers\":0}", c.window[0] == 0 && c.window[3] == 0);
    GOOD("{" QWEN2 ",\"sliding_window\":64,\"use_sliding_window\":true,\"max_window_layers\":3}",
         c.window[2] == 0 && c.window[3] == 64);
    GOOD("{" QWEN2 ",\"sliding_window\":64,\"use_sliding_window\":true}", c.window[3] == 0);
    GOOD("{" QWEN3 ",\"sliding_window\":null,\"use_sliding_window\":true,\"max_window_layers\":0}", c.window[0] == 0);
    GOOD("{" QWEN3 ",\"sliding_window\":64,\"use_sliding_window\":true,\"max_window_layers\":0,"
         "\"layer_types\":"
         "[\"full_attention\",\"sliding_attention\",\"full_attention\",\"sliding_attention\"]}",
         c.window[0] == 0 && c.window[1] == 64 && c.window[2] == 0 && c.window[3] == 64);
    GOOD("{" QWEN3 ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\","
         "\"full_attention\"]}",
         c.window[3] == 0);
}

#define FSFS "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"attention\",\"sliding_attention\"]"

/* Mistral with layer_types is Ministral; "attention" is an old name of full attention. */
static void test_mistral_layers(void)
{
    GOOD("{" MISTRAL ",\"sliding_window\":64," FSFS "}",
         c.window[0] == 0 && c.window[1] == 64 && c.window[2] == 0 && c.window[3] == 64);
    GOOD("{" MISTRAL "," FSFS "}", c.window[0] == 0 && c.window[1] == 4096);
    GOOD("{\"architectures\":[\"MinistralForCausalLM\"],\"sliding_window\":64," FSFS "}",
         c.window[0] == 0 && c.window[3] == 64);
    GOOD("{" MISTRAL ",\"sliding_window\":64,\"layer_types\":null}", c.window[0] == 64 && c.window[3] == 64);
    GOOD("{" MISTRAL ",\"sliding_window\":64,\"use_sliding_window\":false,\"max_window_layers\":2}", c.window[0] == 64);
    GOOD("{" LLAMA ",\"sliding_window\":64," FSFS "}", c.window[1] == 0);
}

#define YARN "\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":256"

#define WRAPPER                                                                                                        \
    "\"architectures\":[\"Mistral3ForConditionalGeneration\"],\"model_type\":\"mistral3\",\"vision_config\":{},"
#define BETA "\"rope_type\":\"yarn\",\"factor\":8,\"llama_4_scaling_beta\":0.25,\"original_max_position_embeddings\":16"

static void test_ministral3(void)
{
    GOOD("{\"architectures\":[\"Ministral3ForCausalLM\"],\"head_dim\":\"-\",\"rms_norm_eps\":\"-\","
         "\"sliding_window\":\"-\",\"rope_parameters\":{" BETA "}}",
         c.head_dim == 128 && c.rms_eps == 1e-5f && c.window[0] == 0 && c.rope.query_beta == 0.25 &&
             c.rope.original_max == 16);
    GOOD("{\"architectures\":[\"Ministral3ForCausalLM\"],\"rope_parameters\":{\"rope_type\":\"default\","
         "\"llama_4_scaling_beta\":0.25,\"original_max_position_embeddings\":16}}",
         c.rope.kind == ROPE_NONE && c.rope.query_beta == 0.25 && c.rope.original_max == 16);
    GOOD("{" WRAPPER "\"text_config\":{\"model_type\":\"ministral3\",\"num_hidden_layers\":2,\"architectures\":null,"
         "\"tie_word_embeddings\":false,\"rope_parameters\":{" BETA "}}}",
         strcmp(c.arch, "Ministral3ForCausalLM") == 0 && c.n_layers == 2 && c.hidden == 64 && c.tied &&
             c.rope.query_beta == 0.25);
    GOOD("{" WRAPPER "\"tie_word_embeddings\":false,\"text_config\":{\"sliding_window\":null}}",
         strcmp(c.arch, "MistralForCausalLM") == 0 && !c.tied && c.window[0] == 0);
    GOOD("{\"architectures\":[\"Mistral3ForConditionalGeneration\"],\"text_config\":{}}",
         strcmp(c.arch, "MistralForCausalLM") == 0 && c.tied);
    GOOD("{\"architectures\":[\"Qwen3VLForConditionalGeneration\"],\"sliding_window\":8,\"text_config\":{"
         "\"tie_word_embeddings\":true,\"rope_scaling\":{\"rope_type\":"
         "\"default\",\"mrope_section\":[24,20,20],\"mrope_interleaved\":true}}}",
         c.qk_norm && !c.tied && c.window[0] == 0 && c.rope.kind == ROPE_NONE);
    GOOD("{\"model_type\":\"qwen3_vl_moe\",\"architectures\":[\"Qwen3VLMoeForConditionalGeneration\"],"
         "\"tie_word_embeddings\":true,\"text_config\":{\"norm_topk_prob\":false,\"num_experts\":4}}",
         c.qk_norm && c.tied && c.normalize && c.n_experts == 4 && c.n_chosen == 4 && c.expert_ffn == 1408);
    const rope_config r = {.query_beta = 0.1, .original_max = 16384};
    ok(rope_query_scale(&r, 0) == 1 && rope_query_scale(&r, 16383) == 1, "no factor within the trained length");
    ok(fabsf(rope_query_scale(&r, 16384) - 1.0693147f) < 1e-6f &&
           fabsf(rope_query_scale(&r, 262143) - 1.2772589f) < 1e-6f,
       "factors of queries beyond it");
}

#define MUSE "\"architectures\":[\"MuseGlimmerForConditionalGeneration\"],\"model_type\":\"muse_glimmer\","

static void test_muse(void)
{
    GOOD("{" MUSE "\"text_config\":{\"num_hidden_layers\":5}}",
         c.window[0] == 0 && c.window[1] == 2048 && c.window[3] == 2048 && c.window[4] == 0 && c.n_ropes == 2 &&
             c.rope.kind == ROPE_OFF && c.window_rope.kind == ROPE_NONE && !c.tied);
    GOOD("{" MUSE "\"text_config\":{}}", c.qk_norm && c.query_gain == 3.87f && c.post_eps == 1e-8f &&
                                             c.logit_cap == 20 && c.logit_factor == 0.19611613513818404f);
    GOOD("{" MUSE "\"text_config\":{\"qk_scale_factor\":2,\"post_norm_eps\":1e-6,\"final_logit_softcapping\":30,"
         "\"output_multiplier\":0.5,\"hidden_activation\":\"silu\"}}",
         c.query_gain == 2 && c.post_eps == 1e-6f && c.logit_cap == 30 && c.logit_factor == 0.5f);
    GOOD("{" MUSE "\"text_config\":{\"layer_rope_theta\":[0,5e5,0,5e5]," FSFS "}}",
         c.window[2] == 0 && c.window[1] == 2048 && config_rope_of(&c, 1) == 1 && config_rope_of(&c, 2) == 0);
    float freq[64], mscale;
    const rope_config off = {.kind = ROPE_OFF, .theta = 10000, .head_dim = 128};
    rope_frequencies(&off, 8, freq, &mscale);
    ok(mscale == 1 && freq[0] == 0 && freq[63] == 0, "no rotation");
}

#define LONGROPE "\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,2,3,4]"
#define PHI3     "\"architectures\":[\"Phi3ForCausalLM\"],"
#define PARTIAL  "\"partial_rotary_factor\":0.75,\"original_max_position_embeddings\":128,"
#define FACTORS  "\"short_factor\":[1,1.5,2],\"long_factor\":[4,5,6.5]"

static void test_phi3(void)
{
    GOOD("{" PHI3 "\"rms_norm_eps\":\"-\",\"max_position_embeddings\":\"-\",\"sliding_window\":\"-\"}",
         c.rms_eps == 1e-5f && c.max_positions == 4096 && c.window[0] == 0 && !c.tied);
    GOOD("{" PHI3 "\"sliding_window\":2047}", c.window[0] == 2047 && c.window[3] == 2047);
    GOOD("{" PHI3 PARTIAL "\"rope_scaling\":{\"type\":\"longrope\"," FACTORS "}}",
         c.rotary == 6 && c.rope.kind == ROPE_LONGROPE && c.rope.head_dim == 6 && c.rope.factor == 4 &&
             c.rope.original_max == 128 && c.rope.divisors[1] == 1.5f && c.rope.long_divisors[2] == 6.5f);
    GOOD("{" PHI3 PARTIAL "\"rope_scaling\":{\"type\":\"su\"," FACTORS "}}", c.rope.kind == ROPE_LONGROPE);
    GOOD("{" PHI3 PARTIAL "\"rope_scaling\":{\"type\":\"yarn\"," FACTORS "}}", c.rope.kind == ROPE_LONGROPE);
    GOOD("{\"rope_scaling\":{" LONGROPE ",\"factor\":8,\"attention_factor\":1.5}}",
         c.rope.kind == ROPE_LONGROPE && c.rope.factor == 8 && c.rope.attention_factor == 1.5);
    static model_config c;
    static const char text[] = "{" PHI3 "\"num_hidden_layers\":2,\"hidden_size\":64,\"intermediate_size\":96,"
                               "\"vocab_size\":100,\"num_attention_heads\":8,\"max_position_embeddings\":512," PARTIAL
                               "\"rope_scaling\":{\"type\":\"longrope\"," FACTORS "}}";
    err e = {0};
    float near[3], far[3], mscale;
    if (!is_ok(model_config_parse(&c, text, strlen(text), "x", NULL, &e), &e, "a Phi-3")) return;
    rope_frequencies(&c.rope, 128, near, &mscale);
    rope_frequencies(&c.rope, 129, far, &mscale);
    ok(near[0] == 1 && far[0] == 0.25f, "long factors from the first token after the trained length on");
    ok(fabsf(mscale - sqrtf(1 + logf(4) / logf(128))) < 1e-6f, "attention factor");
    ok(config_same_rotation(&c, 1, 128) && config_same_rotation(&c, 129, 512) && !config_same_rotation(&c, 128, 129),
       "sessions within and beyond the trained length have different rows");
    model_config copy;
    if (is_ok(config_copy(&copy, &c, &e), &e, "a copy")) {
        ok(copy.rope.long_divisors == copy.divisors + 3 && copy.rope.long_divisors[2] == 6.5f, "has its own divisors");
        model_config_free(&copy);
    }
    model_config_free(&c);
}

static void test_rope(void)
{
    GOOD("{\"rope_theta\":500000}", c.rope.theta == 500000);
    GOOD("{\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"default\"},\"rope_theta\":5}", c.rope.theta == 1e6);
    GOOD("{\"rope_scaling\":{}}", c.rope.kind == ROPE_NONE);
    GOOD("{\"rope_scaling\":{\"type\":\"linear\",\"factor\":8}}", c.rope.kind == ROPE_LINEAR && c.rope.factor == 8);
    GOOD("{\"rope_scaling\":{\"type\":\"x\",\"rope_type\":\"linear\",\"factor\":8}}", c.rope.kind == ROPE_LINEAR);
    GOOD("{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}",
         c.rope.kind == ROPE_DYNAMIC && c.rope.original_max == 512 && c.max_positions == 1024);
    GOOD("{\"rope_scaling\":{" YARN "}}", c.rope.kind == ROPE_YARN && c.max_positions == 1024 &&
                                              c.rope.beta_fast == 32 && c.rope.beta_slow == 1 && c.rope.truncate &&
                                              c.rope.original_max == 256);
    GOOD("{\"rope_parameters\":{" YARN ",\"truncate\":false}}", !c.rope.truncate);
    GOOD("{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":7e5}}}",
         c.rope.theta == 7e5);
    GOOD("{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":2},"
         "\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":2.0},\"other\":null}}",
         c.rope.factor == 2);
    GOOD("{\"partial_rotary_factor\":1.0}", c.rope.kind == ROPE_NONE);
}

static const struct {
    status st;
    const char *change, *want; /* the key is part of want */
} bad[] = {
    {ST_UNSUPPORTED, "{\"architectures\":[\"GemmaForCausalLM\"]}", "GemmaForCausalLM; supported: Llama, Mistral"},
    {ST_UNSUPPORTED, "{\"architectures\":[\"Phi3SmallForCausalLM\"],\"model_type\":\"phi3small\"}",
     "\"architectures\" is Phi3SmallForCausalLM; supported"},
    {ST_UNSUPPORTED, "{\"architectures\":\"-\",\"model_type\":\"phimoe\"}", "\"model_type\" is phimoe; supported"},
    {ST_UNSUPPORTED, "{\"architectures\":\"-\",\"model_type\":\"gpt2\"}", "\"model_type\" is gpt2; supported"},
    {ST_FORMAT, "{" MIXTRAL ",\"num_local_experts\":0}", "\"num_local_experts\" is 0, expected at least 1"},
    {ST_FORMAT, "{" MIXTRAL ",\"num_local_experts\":4097}", "\"num_local_experts\" is 4097, expected"},
    {ST_FORMAT, "{" QWEN3E ",\"num_experts_per_tok\":129}",
     "\"num_experts_per_tok\" is 129, expected at most the 128 experts"},
    {ST_FORMAT, "{" QWEN3E ",\"num_experts_per_tok\":0}", "\"num_experts_per_tok\" is 0, expected"},
    {ST_FORMAT, "{" QWEN3E ",\"decoder_sparse_step\":0}", "\"decoder_sparse_step\" is 0, expected"},
    {ST_FORMAT, "{" QWEN3E ",\"mlp_only_layers\":[4]}", "\"mlp_only_layers[]\" is 4, expected the index of a layer"},
    {ST_FORMAT, "{" QWEN3E ",\"mlp_only_layers\":[null]}", "\"mlp_only_layers[]\" is null, expected"},
    {ST_UNSUPPORTED, "{" QWEN3E ",\"dual_chunk_attention_config\":{\"chunk_size\":262144}}",
     "\"dual_chunk_attention_config\" is not supported; remove it to run plain attention"},
    {ST_FORMAT, "{" QWEN3E ",\"moe_intermediate_size\":0}", "\"moe_intermediate_size\" is 0, expected"},
    {ST_FORMAT, "{\"architectures\":\"-\"}", "\"architectures\" is missing"},
    {ST_FORMAT, "{\"architectures\":\"Llama\"}", "\"architectures\" is the string \"Llama\", expected a list"},
    {ST_FORMAT, "{\"architectures\":[1]}", "\"architectures[0]\" is 1, expected a string"},
    {ST_FORMAT, "{\"num_hidden_layers\":\"-\"}", "\"num_hidden_layers\" is missing"},
    {ST_FORMAT, "{\"num_hidden_layers\":\"four\"}",
     "\"num_hidden_layers\" is the string \"four\", expected an integer in 1..4096"},
    {ST_FORMAT, "{\"num_hidden_layers\":0}", "\"num_hidden_layers\" is 0, expected an integer in 1.."},
    {ST_FORMAT, "{\"num_hidden_layers\":100000}", "\"num_hidden_layers\" is 100000, expected"},
    {ST_FORMAT, "{\"hidden_size\":64.0}", "\"hidden_size\" is the number 64, expected an integer"},
    {ST_FORMAT, "{\"hidden_size\":-64}", "\"hidden_size\" is -64, expected an integer"},
    {ST_FORMAT, "{\"hidden_size\":4611686018427387904}", "\"hidden_size\" is 4611686018427387904, expected"},
    {ST_FORMAT, "{\"hidden_size\":null}", "\"hidden_size\" is missing"},
    {ST_FORMAT, "{\"hidden_size\":60}", "\"hidden_size\" 60 is not a multiple of \"num_attention_heads\" 8"},
    {ST_FORMAT, "{\"intermediate_size\":[]}", "\"intermediate_size\" is a list of 0, expected"},
    {ST_FORMAT, "{\"vocab_size\":true}", "\"vocab_size\" is true, expected"},
    {ST_FORMAT, "{\"vocab_size\":1000000000}", "\"vocab_size\" is 1000000000, expected"},
    {ST_FORMAT, "{\"num_attention_heads\":0}", "\"num_attention_heads\" is 0, expected"},
    {ST_FORMAT, "{\"num_key_value_heads\":3}",
     "\"num_attention_heads\" 8 is not a multiple of \"num_key_value_heads\" 3"},
    {ST_FORMAT, "{\"num_key_value_heads\":{}}", "\"num_key_value_heads\" is an object, expected"},
    {ST_FORMAT, "{\"head_dim\":\"8\"}", "\"head_dim\" is the string \"8\", expected"},
    {ST_FORMAT, "{\"head_dim\":0}", "\"head_dim\" is 0, expected"},
    {ST_UNSUPPORTED, "{\"head_dim\":7}", "\"head_dim\" (given or hidden_size / num_attention_heads) is 7"},
    {ST_UNSUPPORTED, "{\"head_dim\":512}", "is 512; supported: even numbers up to 256"},
    {ST_FORMAT, "{\"rms_norm_eps\":\"1e-5\"}", "\"rms_norm_eps\" is the string \"1e-5\", expected a number"},
    {ST_FORMAT, "{\"rms_norm_eps\":0}", "\"rms_norm_eps\" is 0, expected a number"},
    {ST_FORMAT, "{\"max_position_embeddings\":0}", "\"max_position_embeddings\" is 0, expected"},
    {ST_FORMAT, "{\"tie_word_embeddings\":1}", "\"tie_word_embeddings\" is 1, expected true or false"},
    {ST_FORMAT, "{\"attention_bias\":\"no\"}", "\"attention_bias\" is the string \"no\""},
    {ST_UNSUPPORTED, "{\"hidden_act\":\"gelu\"}", "\"hidden_act\" is \"gelu\"; supported: silu"},
    {ST_UNSUPPORTED, "{\"partial_rotary_factor\":0.5}", "\"partial_rotary_factor\" is 0.5, only 1"},
    {ST_UNSUPPORTED, "{\"rope_parameters\":{\"partial_rotary_factor\":0.25}}",
     "\"rope_parameters.partial_rotary_factor\" is 0.25"},
    {ST_FORMAT, "{\"rope_theta\":0}", "\"rope_theta\" is 0, expected"},
    {ST_FORMAT, "{\"rope_scaling\":[]}", "\"rope_scaling\" is a list of 0, expected an object"},
    {ST_UNSUPPORTED, "{\"rope_scaling\":{\"type\":\"su\"}}",
     "\"rope_scaling.type\" is \"su\"; supported: default, linear"},
    {ST_FORMAT, "{\"rope_scaling\":{\"rope_type\":\"longrope\"}}", "\"rope_scaling.short_factor\" is missing"},
    {ST_FORMAT, "{\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1]}}",
     "\"rope_scaling.short_factor\" has 3 numbers, expected 4"},
    {ST_FORMAT, "{\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,0]}}",
     "\"rope_scaling.short_factor\" is 0, expected numbers"},
    {ST_FORMAT, "{\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":7}}",
     "\"rope_scaling.long_factor\" is 7, expected a list"},
    {ST_FORMAT, "{\"rope_scaling\":{\"rope_type\":\"longrope\"},\"original_max_position_embeddings\":1}",
     "\"original_max_position_embeddings\" is 1, expected at least 2"},
    {ST_UNSUPPORTED, "{\"rope_parameters\":{\"a\":{" LONGROPE "},\"b\":{" LONGROPE "}}}", "several layer types"},
    {ST_FORMAT, "{\"architectures\":[\"Ministral3ForCausalLM\"]}", "\"rope_parameters\" is missing"},
    {ST_FORMAT, "{" WRAPPER "\"hidden_size\":64}", "\"text_config\" is missing"},
    {ST_FORMAT, "{" WRAPPER "\"text_config\":[]}", "\"text_config\" is a list of 0, expected an object"},
    {ST_UNSUPPORTED, "{" WRAPPER "\"text_config\":{\"model_type\":\"mistral4\"}}", "\"model_type\" is mistral4"},
    {ST_UNSUPPORTED, "{" MUSE "\"text_config\":{\"hidden_activation\":\"gelu\"}}", "\"hidden_activation\" is \"gelu\""},
    {ST_FORMAT, "{" MUSE "\"text_config\":{\"post_norm_eps\":0}}", "\"post_norm_eps\" is 0"},
    {ST_FORMAT, "{" MUSE "\"text_config\":{\"layer_rope_theta\":[0]}}", "\"layer_rope_theta\" has 1 entries"},
    {ST_FORMAT, "{" MUSE "\"text_config\":{\"layer_rope_theta\":[5e5,5e5,5e5,\"x\"]}}", "\"layer_rope_theta[]\" is"},
    {ST_UNSUPPORTED, "{" MUSE "\"text_config\":{\"layer_rope_theta\":[1,1,1,1]}}",
     "layer 3 has a rotation and no window"},
    {ST_UNSUPPORTED, "{" MUSE "\"text_config\":{\"sliding_window\":null}}", "layer 0 has a rotation and no window"},
    {ST_UNSUPPORTED, "{\"rope_parameters\":{" BETA "}}",
     "\"rope_parameters.llama_4_scaling_beta\" is not supported in Llama"},
    {ST_UNSUPPORTED, "{" MISTRAL ",\"rope_parameters\":{" BETA "}}",
     "\"rope_parameters.llama_4_scaling_beta\" is not supported in MistralForCausalLM"},
    {ST_UNSUPPORTED, "{\"rope_parameters\":{\"rope_type\":\"proportional\"}}",
     "\"rope_parameters.rope_type\" is \"prop"},
    {ST_FORMAT, "{\"rope_scaling\":{\"rope_type\":3}}", "\"rope_scaling.rope_type\" is 3, expected a string"},
    {ST_FORMAT, "{\"rope_scaling\":{\"type\":\"linear\"}}", "\"rope_scaling.factor\" is missing"},
    {ST_FORMAT, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", "\"rope_scaling.factor\" is 0, expected"},
    {ST_FORMAT, "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}", "\"rope_scaling.low_freq_factor\" is missing"},
    {ST_FORMAT,
     "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_"
     "factor\":1}}",
     "\"rope_scaling.high_freq_factor\" is 1, expected more"},
    {ST_FORMAT, "{\"rope_scaling\":{" YARN ",\"truncate\":1}}", "\"rope_scaling.truncate\" is 1"},
    {ST_FORMAT, "{\"rope_scaling\":{\"type\":\"yarn\",\"original_max_position_embeddings\":0}}",
     "\"rope_scaling.original_max_position_embeddings\" is 0"},
    {ST_UNSUPPORTED,
     "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6},\"sliding_attention\":{\"rope_"
     "theta\":1e4}}}",
     "\"rope_parameters.sliding_attention\" differs from the other layer types"},
    {ST_FORMAT, "{\"rope_parameters\":{\"full_attention\":{\"factor\":\"2\",\"type\":\"linear\"}}}",
     "\"rope_parameters.full_attention.factor\" is the string"},
    {ST_FORMAT, "{\"rope_parameters\":{\"full_attention\":{},\"rope_type\":\"default\"}}",
     "\"rope_parameters.rope_type\" is the string"},
    {ST_FORMAT, "{" MISTRAL ",\"sliding_window\":0}", "\"sliding_window\" is 0, expected"},
    {ST_FORMAT, "{" MISTRAL ",\"sliding_window\":null," FSFS "}", "\"layer_types\" has sliding_attention, but"},
    {ST_FORMAT, "{" MISTRAL ",\"layer_types\":[\"full_attention\"]}",
     "\"layer_types\" has 1 entries, expected one for"},
    {ST_UNSUPPORTED, "{" MISTRAL ",\"layer_types\":[\"chunked_attention\",\"x\",\"x\",\"x\"]}",
     "\"layer_types\" has \"chunked_attention\"; supported"},
    {ST_UNSUPPORTED, "{" LLAMA ",\"model_type\":\"llama4\"}", "\"model_type\" is llama4; supported"},
    {ST_UNSUPPORTED, "{\"architectures\":[\"LlamaForSequenceClassification\"],\"model_type\":\"llama\"}",
     "\"architectures\" is LlamaForSequenceClassification; supported"},
    {ST_FORMAT, "{" QWEN2 ",\"use_sliding_window\":\"yes\"}", "\"use_sliding_window\" is the string \"yes\""},
    {ST_FORMAT, "{" QWEN2 ",\"layer_types\":[\"full_attention\"]}",
     "\"layer_types\" has 1 entries, expected one for each of 4"},
    {ST_FORMAT, "{" QWEN2 ",\"layer_types\":[1,2,3,4]}", "\"layer_types[]\" is 1, expected a string"},
    {ST_UNSUPPORTED, "{" QWEN3 ",\"layer_types\":[\"full_attention\",\"linear_attention\",\"x\",\"x\"]}",
     "\"layer_types\" has \"linear_attention\"; supported"},
    {ST_FORMAT, "{" QWEN3 ",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"x\",\"x\"]}",
     "\"layer_types\" has sliding_attention, but \"use_sliding_window\""},
};

static void test_bad(void)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e;
        model_config c;
        is_err(parse(&c, bad[i].change, &e), &e, bad[i].st, bad[i].want, "%s", bad[i].change);
        ok(strncmp(e.msg, "dir/config.json: ", 17) == 0 && !c.window, "  names the file, frees all");
    }
    err e = {0};
    model_config c;
    const char *const texts[] = {"", "[]", "{\"a\":1,\"a\":2}", "{\"hidden_size\":1e999}", "{", "\xff\xfe"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        e = (err){0};
        is_err(model_config_parse(&c, texts[i], strlen(texts[i]), "config.json", NULL, &e), &e, ST_FORMAT,
               "config.json: ", "not a JSON object: text %zu", i);
    }
    char deep[128] = "{\"a\":";
    for (int i = 0; i < 40; i++) strcat(deep, "[");
    e = (err){0};
    is_err(model_config_parse(&c, deep, strlen(deep), "config.json", NULL, &e), &e, ST_FORMAT, "nested 41 deep",
           "nesting");
}

static void test_folders(void)
{
    const char *dir = "test_config.tmp";
    err e = {0};
    model_config c;
    is_err(model_config_read(&c, "no/such/folder", NULL, &e), &e, ST_IO, "no/such/folder: no such folder",
           "missing folder");
    mkdir(dir, 0777);
    e = (err){0};
    is_err(model_config_read(&c, dir, NULL, &e), &e, ST_IO, "test_config.tmp/config.json: No such file",
           "missing file");
    FILE *f = fopen("test_config.tmp/config.json", "w");
    if (f) {
        fputs(base, f);
        fclose(f);
    }
    e = (err){0};
    is_ok(model_config_read(&c, dir, NULL, &e), &e, "a folder");
    model_config_free(&c);
    unlink("test_config.tmp/config.json");
    rmdir(dir);
    const char *real = tap_data("models/stories260K/hf");
    e = (err){0};
    if (!real) {
        tap_skip("models/stories260K is not there");
    } else if (is_ok(model_config_read(&c, real, NULL, &e), &e, "stories260K")) {
        ok(c.n_layers == 5 && c.n_kv_heads == 4 && c.tied && c.rms_eps == 1e-5f, "its values");
        model_config_free(&c);
    }
}

/* Saved sessions, prefix stores and converted weights on disk are found by these hashes. */
static void test_hashes(void)
{
    static const struct {
        const char *change, *hash;
    } of[] = {
        {"{}", "939ae5852a11b0b2"},
        {"{\"architectures\":[\"LlamaForCausalLM\"],\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
         "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":256}}",
         "9128a536dad75847"},
        {"{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":16}", "8e638a816aba8f08"},
        {"{\"architectures\":[\"MinistralForCausalLM\"],\"layer_types\":[\"sliding_attention\",\"full_attention\","
         "\"sliding_attention\",\"full_attention\"]}",
         "487e6104bf7fc027"},
        {"{\"architectures\":[\"Qwen2ForCausalLM\"],\"use_sliding_window\":true,\"max_window_layers\":2}",
         "c4d46aa6671d5419"},
        {"{\"architectures\":[\"Qwen3ForCausalLM\"],\"head_dim\":16,\"rope_scaling\":{" YARN "}}", "5ad5050d410c0ef3"},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        err e;
        model_config c;
        sha256 sum;
        char hex[SHA256_HEX];
        if (!is_ok(parse(&c, of[i].change, &e), &e, "config %zu", i)) continue;
        sha256_init(&sum);
        config_hash(&sum, &c);
        sha256_hex(&sum, hex);
        hex[16] = 0;
        is_str(hex, of[i].hash, "hash of a %s", c.arch);
        model_config_free(&c);
    }
}

static void test_out_of_memory(void)
{
    oom_run o = {0};
    model_config c;
    while (oom_next(&o)) {
        oom_saw(&o, model_config_parse(&c, base, strlen(base), "config.json", NULL, &o.e), &c.window);
        if (o.done) model_config_free(&c);
    }
    oom_ok(&o, 0, "parsing");
}

int main(void)
{
    test_defaults();
    test_spellings();
    test_experts();
    test_numbers();
    test_families();
    test_windows();
    test_mistral_layers();
    test_rope();
    test_phi3();
    test_muse();
    test_ministral3();
    test_bad();
    test_folders();
    test_hashes();
    test_out_of_memory();
    return tap_done();
}
