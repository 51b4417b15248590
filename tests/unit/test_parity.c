/* SPDX-License-Identifier: MIT */
/* Parity with Hugging Face transformers: every checkpoint of tests/data/models, and stories260K. */
/* Builds: shim device */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "model/safetensors.h"
#include "model/sampler.h"
#include "model/session.h"
#include "tests/tap.h"
#include "tests/unit/model_names.h"
#include "tests/unit/ops_util.h"

enum { N_PROMPT = 64, N_GREEDY = 32 };

/* One way to run a model. */
typedef struct {
    const char *device, *attn;
    dtype kv;
    bool exact;
    size_t chunk;
    double nmse;
    bool forced; /* selects although everything fits into the budget */
} setting;

static const setting settings[] = {
#ifdef ON_CUDA
    {"cuda", "full", DT_F32, true, 512, 1e-10, false},
    {"cuda", "full", DT_F16, false, 7, 1e-5, false},
#else
    {"ref", "full", DT_F32, true, 512, 1e-10, false},
    {"cpu", "full", DT_F32, true, 512, 1e-10, false},
    {"cpu", "full", DT_F32, true, 7, 1e-10, false},
    {"cpu", "full", DT_F16, true, 512, 1e-5, false},
    {"cpu", "full", DT_F16, false, 512, 1e-5, false},
    {"cpu", "full", DT_BF16, false, 512, 1e-3, false},               /* 8 bits of mantissa in K and V */
    {"cpu", "streaming:budget=512", DT_F32, true, 16, 1e-10, false}, /* nothing is evicted */
#endif
};
/* Strategies that store keys before their rotation, with room for all tokens. */
static const setting unrotated[] = {
    {"cpu", "tokenselect:budget=512:window=16", DT_F32, true, 16, 1e-10, false},
    {"cpu", "tokenselect:budget=512:window=16", DT_F32, true, 16, 1e-10, true},
    {"cpu", "infllm:budget=300:local=200:sink=4:block=16:window=16", DT_F32, true, 16, 1e-10, false},
    {"cpu", "actqkv:budget=1024:window=16", DT_F32, true, 16, 1e-10, false},
};
/* The settings after the first run on one model in so many. */
#ifdef ON_CUDA
enum { LATER_EVERY = 3 };
#else
enum { LATER_EVERY = 1 };
#endif

/* Tolerance if the CPU multiplies bf16 by bf16. Each product of a layer, including those of attention, then has inputs
 * rounded to 8 bits of mantissa, with an NMSE of 2 to 3e-6. Two layers of random weights add up to 3 to 7e-5.
 * (Excluding attention, our own exact products on inputs rounded that way give the same errors to the second digit:
 * 3.1e-5, 3.7e-5 and 2.3e-5 for the three bf16 models.) */
static const double BF16_PRODUCTS = 1e-4;

typedef struct {
    backend *be;
    model *m;
    decoder *dec;
    session *s;
} run_parts;

static void close_run(run_parts *r)
{
    session_free(r->s);
    decoder_free(r->dec);
    model_close(r->m);
    backend_close(r->be);
}

static status open_run(run_parts *r, const char *dir, const setting *set, int64_t n, err *e)
{
    attn_spec spec;
    attn_options ao = {.kv = kv_plain(set->kv)};
    backend_options bo = {.device = set->device};
    decoder_options opt = {.chunk = set->chunk, .max_batch = 2, .exact = set->exact};
    *r = (run_parts){0};
    TRY(attn_spec_parse(&spec, set->attn, &ao, e));
    spec.forced = set->forced;
    TRY(backend_open(&r->be, &bo, e));
    TRY(model_open(&r->m, dir, r->be, e));
    TRY(decoder_create(&r->dec, r->m, &opt, e));
    return session_create(&r->s, r->dec, &spec, session_of(n), e);
}

typedef struct {
    float *out;
    size_t vocab;
} sink;

static void take(void *ctx, int64_t first, size_t n, const float *logits)
{
    sink *s = ctx;
    memcpy(s->out + (size_t)first * s->vocab, logits, n * s->vocab * sizeof(float));
}

/* Greedy continuation from the last logits through decode steps; the number of ids that agree. */
static size_t greedy(run_parts *r, float *logits, const int32_t *want, size_t n, err *e)
{
    size_t vocab = (size_t)r->m->config.vocab;
    for (size_t i = 0; i < n; i++) {
        int32_t id = logits_argmax(logits, vocab);
        if (id != want[i]) return i;
        if (i + 1 < n && session_decode(&r->s, 1, &id, logits, e) != ST_OK) return i;
    }
    return n;
}

/* Compares logits with those of transformers. In float32 none differs by more than MOST. */
static void compare(const float *got, const float *want, size_t n, double most_nmse, const char *name)
{
    static const double MOST = 5e-5;
    double most = 0;
    is_near(got, want, n, most_nmse, "%s", name);
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs((double)got[i] - (double)want[i]));
    if (most_nmse <= 1e-10) ok(most <= MOST, "%s: each within %.1e of transformers (%.1e)", name, MOST, most);
}

/* Compares the logits of a sequence within the trained length, which the files of longrope also have. */
static void check_short(const char *name, const char *dir, const setting *set, const st_file *f)
{
    const st_tensor *want = st_find(f, "short_logits");
    if (!want) return;
    const int32_t *ids = (const int32_t *)(const void *)st_find(f, "input_ids")->data;
    size_t n = want->shape[0], vocab = want->shape[1];
    float *got = malloc(n * vocab * sizeof(float));
    sink s = {got, vocab};
    const prefill_options o = {.which = LOGITS_ALL, .rows = take, .ctx = &s};
    run_parts r = {0};
    err e = {0};
    status st = open_run(&r, dir, set, (int64_t)n, &e);
    if (st == ST_OK) st = session_prefill(&r.s, 1, ids, n, &o, &e);
    if (is_ok(st, &e, "%s: a short session", name))
        is_near(got, (const float *)(const void *)want->data, n * vocab, set->nmse, "%s: logits of a short session",
                name);
    close_run(&r);
    free(got);
}

static void check_model(const char *name, const setting *set)
{
    char rel[160];
    err e = {0};
    st_file *f = NULL;
    run_parts r = {0};
    snprintf(rel, sizeof rel, "tests/data/models/%s/expected.safetensors", name);
    if (!is_ok(st_open(&f, tap_path(rel), &e), &e, "%s: expected values", name)) return;
    snprintf(rel, sizeof rel, "tests/data/models/%s", name);
    const status opened = open_run(&r, tap_path(rel), set, N_PROMPT + N_GREEDY, &e);
    if (opened == ST_UNSUPPORTED && r.m && r.m->config.n_ropes > 1) { /* strategies that rotate refuse it */
        is_err(opened, &e, ST_UNSUPPORTED, "2 rotary embeddings", "%s: %s", name, set->attn);
    } else if (is_ok(opened, &e, "%s: opens", name)) {
        const int32_t *ids = (const int32_t *)(const void *)st_find(f, "input_ids")->data;
        const int32_t *want = (const int32_t *)(const void *)st_find(f, "greedy_ids")->data;
        size_t vocab = (size_t)r.m->config.vocab;
        float *got = malloc(N_PROMPT * vocab * sizeof(float));
        sink s = {got, vocab};
        prefill_options o = {.which = LOGITS_ALL, .rows = take, .ctx = &s};
        status st = session_prefill(&r.s, 1, ids, N_PROMPT, &o, &e);
        is_ok(st, &e, "%s: prefill", name);
        bool bf16 =
            strstr(r.be->about, "AVX-512 VNNI") || strstr(r.be->about, "AMX") || strcmp(set->device, "cuda") == 0;
        bool rounded = !set->exact && bf16 && strstr(name, "bf16");
        char what[240];
        snprintf(what, sizeof what, "%s: logits, %s, kv %s, %s, chunk %zu, %s", name, set->device, dtype_name(set->kv),
                 set->exact ? "exact" : "auto", set->chunk, set->attn);
        compare(got, (const float *)(const void *)st_find(f, "logits")->data, N_PROMPT * vocab,
                rounded ? BF16_PRODUCTS : set->nmse, what);
        if (set->nmse <= 1e-5)
            is_int((long long)greedy(&r, got + (N_PROMPT - 1) * vocab, want, N_GREEDY, &e), N_GREEDY,
                   "%s: greedy continuation", name);
        free(got);
    }
    close_run(&r);
    check_short(name, tap_path(rel), set, f);
    st_close(f);
}

/* Checks models with products and attention of prompts by tiles. */
static void check_tiles(void)
{
    static const setting set = {"cpu", "full", DT_F16, false, 512, 1e-5, false};
    setenv("KVASIR_CPU", "amx-emulated", 1);
    check_model("qwen3-bf16", &set);
    check_model("qwen2-moe-bf16", &set);
    unsetenv("KVASIR_CPU");
}

/* Decodes the last tokens of the prompt in two sessions, the second shorter by one token, as a batch. */
static status decode_both(run_parts *r, session *shorter, const int32_t *ids, float *got, err *e)
{
    enum { BEFORE = N_PROMPT / 2 };
    const size_t vocab = (size_t)r->m->config.vocab;
    const prefill_options o = {.which = LOGITS_LAST};
    session *both[] = {r->s, shorter};
    TRY(session_prefill(&r->s, 1, ids, BEFORE + 1, &o, e));
    TRY(session_prefill(&shorter, 1, ids, BEFORE, &o, e));
    for (size_t i = BEFORE; i + 1 < N_PROMPT; i++) {
        const int32_t next[] = {ids[i + 1], ids[i]};
        TRY(session_decode(both, 2, next, got + 2 * (i - BEFORE) * vocab, e));
    }
    return ST_OK;
}

/* Compares the logits of a batch of two sequences. */
static void check_batch(const char *name, const setting *set)
{
    char rel[160];
    err e = {0};
    st_file *f = NULL;
    run_parts r = {0};
    session *shorter = NULL;
    attn_spec spec;
    const attn_options ao = {.kv = kv_plain(set->kv)};
    snprintf(rel, sizeof rel, "tests/data/models/%s/expected.safetensors", name);
    status st = st_open(&f, tap_path(rel), &e);
    snprintf(rel, sizeof rel, "tests/data/models/%s", name);
    if (st == ST_OK) st = open_run(&r, tap_path(rel), set, N_PROMPT, &e);
    if (st == ST_OK) st = attn_spec_parse(&spec, set->attn, &ao, &e);
    if (st == ST_OK) st = session_create(&shorter, r.dec, &spec, session_of(N_PROMPT), &e);
    if (is_ok(st, &e, "%s: opens", name) && !config_is_dynamic(&r.m->config)) { /* a step rotates by another length */
        const int32_t *ids = (const int32_t *)(const void *)st_find(f, "input_ids")->data;
        const float *want = (const float *)(const void *)st_find(f, "logits")->data;
        const size_t vocab = (size_t)r.m->config.vocab, steps = N_PROMPT / 2 - 1;
        float *got = calloc(2 * steps * vocab, sizeof(float)), *rows = malloc(2 * steps * vocab * sizeof(float));
        for (size_t i = 0; i < 2 * steps; i++) { /* the second sequence is shorter by one token */
            const size_t at = N_PROMPT / 2 + i / 2 + (i % 2 == 0);
            memcpy(rows + i * vocab, want + at * vocab, vocab * sizeof(float));
        }
        is_ok(decode_both(&r, shorter, ids, got, &e), &e, "%s: steps of two sequences", name);
        compare(got, rows, 2 * steps * vocab, set->nmse, name);
        free(got);
        free(rows);
    }
    session_free(shorter);
    close_run(&r);
    st_close(f);
}

/* Ids of a JSON list; returns their number. */
static size_t list_ids(const json_t *list, int32_t *out, size_t max)
{
    size_t n = json_array_size(list) < max ? json_array_size(list) : max;
    for (size_t i = 0; i < n; i++) out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return n;
}

static void check_stories(void)
{
    const char *dir = tap_data("models/stories260K/hf"), *expected = tap_data("models/stories260K/expected.json");
    if (!dir || !expected) {
        tap_skip("stories260K is not there");
        return;
    }
    err e = {0};
    run_parts r = {0};
    json_t *j = NULL;
    int32_t want[300];
    if (is_ok(json_read_object(&j, expected, 1 << 20, 8, &e), &e, "stories260K: expected values")) {
        size_t n = list_ids(json_object_get(j, "greedy_from_bos_ids"), want, 300);
        if (is_ok(open_run(&r, dir, &settings[1], (int64_t)n, &e), &e, "stories260K: opens")) {
            float *logits = malloc((size_t)r.m->config.vocab * sizeof(float));
            session_decode(&r.s, 1, want, logits, &e);
            is_int((long long)greedy(&r, logits, want + 1, n - 1, &e), (long long)n - 1,
                   "stories260K: the published text, token by token");
            free(logits);
        }
    }
    json_decref(j);
    close_run(&r);
}

int main(void)
{
    if (no_device()) return 0;
    for (size_t m = 0; m < sizeof MODEL_NAMES / sizeof *MODEL_NAMES; m++)
        for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
            if ((i == 0 || m % LATER_EVERY == 0) && !tap_leaves_out(LATER_EVERY > 1 && m % 4 != 0))
                check_model(MODEL_NAMES[m], &settings[i]);
    for (size_t m = 0; LATER_EVERY == 1 && m < sizeof MODEL_NAMES / sizeof *MODEL_NAMES; m++)
        check_batch(MODEL_NAMES[m], &settings[1]);
    for (size_t i = 0; LATER_EVERY == 1 && i < sizeof unrotated / sizeof *unrotated; i++) {
        check_model("phi3-longrope-f16", &unrotated[i]);
        check_model("ministral3-vision-f16", &unrotated[i]);
    }
    if (LATER_EVERY == 1) {
        check_tiles();
        check_stories();
    }
    return tap_done();
}
