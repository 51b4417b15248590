/* SPDX-License-Identifier: MIT */
/* Memory of a device: models take what was planned, and prompts and steps take none. */
/* Builds: shim */
#include "config.h"

#include <unistd.h>

#include "model/weights.h"
#include "tests/unit/session_util.h"

#include "tests/cuda/cuda_util.h"

enum { PROMPT = 60, STEPS = 2, MOST_BATCH = 12 };

typedef struct {
    const char *path;
    dtype held; /* DT_COUNT: as in the files */
    const char *attn, *kv;
    size_t chunk, batch;
} plan_case;

static const plan_case cases[] = {
    {"models/llama31-f32-tied", DT_COUNT, "full", "f16", 64, 1},
    {"models/llama31-f32-tied", DT_Q8, "full", "f16", 64, 1},
    {"models/qwen2-f16", DT_COUNT, "full", "f16", 64, 1},
    {"models/qwen2-f16", DT_COUNT, "full", "f16", 4, MOST_BATCH}, /* steps of more rows than prompts */
    {"models/qwen2-f16", DT_Q4, "full", "f16", 4, MOST_BATCH},
    {"models/qwen2-moe-bf16", DT_COUNT, "quest:p=0.9:page=4:skip=0", "f16", 64, 1},
    {"models/mixtral-f16", DT_Q4, "quest:budget=16:page=4:skip=0", "f16", 64, 1},
    {"models/qwen3-bf16", DT_COUNT, "fier:p=0.8:g=8:skip=0:gqa=vote", "q8", 64, 1},
    {"packed/mixed", DT_COUNT, "fier:budget=16:g=8:skip=0", "f16", 64, 1},
    {"packed/gptq-order", DT_COUNT, "full", "f16", 64, 1},
};

/* Compares the memory of a model and a decoder with the plan. */
static void check_held(const plan_case *c, engine_parts *p, const attn_spec *spec)
{
    const weights_options o = {.type = c->held};
    const decoder_options opt = {.chunk = c->chunk, .max_batch = c->batch};
    const size_t before = shim_held();
    memory_plan plan;
    err e = {0};
    if (!is_ok(model_open(&p->m, c->path, p->be, &e), &e, "%s", c->path) ||
        !is_ok(c->held == DT_COUNT ? ST_OK : model_convert(p->m, &o, &e), &e, "its type") ||
        !is_ok(session_plan(&plan, p->m, &opt, spec, session_of(PROMPT + STEPS), &e), &e, "a plan"))
        exit(1);
    is_int((long long)(shim_held() - before), (long long)plan.weights, "its weights take what the plan says");
    if (!is_ok(decoder_create(&p->dec, p->m, &opt, &e), &e, "a decoder")) exit(1);
    const size_t held = shim_held() - before - plan.weights;
    ok(held <= plan.scratch, "and a decoder at most that: %zu bytes of %zu", held, plan.scratch);
}

/* Runs a prompt in each of the sessions, and steps of all. */
static status run_all(session *const *s, size_t n, err *e)
{
    static float logits[MOST_BATCH * U_VOCAB];
    int32_t ids[MOST_BATCH];
    for (size_t i = 0; i < n; i++) TRY(live(s[i], n > 1 ? 1 : PROMPT, 0, logits, e));
    for (int k = 0; k < STEPS; k++) {
        for (size_t i = 0; i < n; i++) ids[i] = some_id(k + (int64_t)i);
        TRY(session_decode(s, n, ids, logits, e));
    }
    return ST_OK;
}

static void check_case(const plan_case *c)
{
    engine_parts p = {.be = open_cuda()};
    session *s[MOST_BATCH] = {NULL};
    attn_spec spec;
    attn_options ao = {0};
    err e = {0};
    if (!is_ok(kv_format_parse(&ao.kv, c->kv, "--kv", &e), &e, "%s", c->kv) ||
        !is_ok(attn_spec_parse(&spec, c->attn, &ao, &e), &e, "%s", c->attn))
        exit(1);
    check_held(c, &p, &spec);
    for (size_t i = 0; i < c->batch; i++)
        if (!is_ok(session_create(&s[i], p.dec, &spec, session_of(PROMPT + STEPS), &e), &e, "a session")) exit(1);
    const long before = shim_count(SHIM_ALLOCS);
    is_ok(run_all(s, c->batch, &e), &e, "prompts and steps");
    is_int(shim_count(SHIM_ALLOCS) - before, 0, "%s, %zu of %s in %s: take no memory", c->path, c->batch, c->attn,
           c->kv);
    for (size_t i = 0; i < c->batch; i++) session_free(s[i]);
    parts_close(&p);
}

/* A layer whose shared expert is wider than the rest. */
static void test_wide_experts(void)
{
    static const char config[] = "{\"architectures\":[\"Qwen2MoeForCausalLM\"],\"model_type\":\"qwen2_moe\","
                                 "\"hidden_size\":32,\"intermediate_size\":8,\"num_hidden_layers\":1,"
                                 "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"num_experts\":6,"
                                 "\"num_experts_per_tok\":2,\"moe_intermediate_size\":24,"
                                 "\"shared_expert_intermediate_size\":40,\"max_position_embeddings\":512,"
                                 "\"rope_theta\":1000000.0,\"tie_word_embeddings\":false,\"vocab_size\":384}";
    char dir[] = "/tmp/kvasir-plan-XXXXXX", at[64], weights[64];
    if (!mkdtemp(dir)) abort();
    snprintf(at, sizeof at, "%s/config.json", dir);
    snprintf(weights, sizeof weights, "%s/model.safetensors", dir);
    FILE *f = fopen(at, "w");
    char *from = realpath(tap_path("tests/data/models/qwen2-moe-bf16/model.safetensors"), NULL);
    if (!f || !from || fputs(config, f) < 0 || fclose(f) != 0 || symlink(from, weights) != 0) abort();
    check_case(&(plan_case){dir, DT_COUNT, "full", "f16", 64, 1});
    free(from);
    unlink(at);
    unlink(weights);
    rmdir(dir);
}

int main(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[64];
        plan_case c = cases[i];
        snprintf(path, sizeof path, "tests/data/%s", c.path);
        c.path = tap_path(path);
        check_case(&c);
    }
    test_wide_experts();
    is_int((long long)shim_held(), 0, "nothing is held");
    return tap_done();
}
