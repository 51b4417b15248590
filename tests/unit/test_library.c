/* SPDX-License-Identifier: MIT */
/* libkvasir: the bits of the engine through one header, and its handling of wrong arguments. */
#include "config.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/kvasir.h"
#include "tests/unit/library_util.h"
#include "tests/unit/oom.h"
#include "api/impl.h"
#include "tests/unit/poison.h"

enum { N = 50, STEPS = 6, LIMIT = 80 };
#define MODEL "qwen3-bf16"

static int32_t text_ids[N + STEPS]; /* filled once, before threads read it */

/* Logits of the prompt and of STEPS steps: [STEPS + 1][U_VOCAB]; how the steps are made alternates. */
static bool trace(kvasir_session *s, float (*out)[U_VOCAB])
{
    const float *row;
    const int32_t *ids = text_ids;
    kvasir_status st = kvasir_session_feed(s, ids, N, KVASIR_PROMPT, NULL, msg, MSG);
    for (int i = 0; st == KVASIR_OK; i++) {
        st = kvasir_session_logits(s, &row, msg, MSG);
        if (st == KVASIR_OK) memcpy(out[i], row, sizeof out[i]);
        if (st != KVASIR_OK || i == STEPS) break;
        st = i % 2 ? kvasir_decode(&s, 1, &ids[N + i], msg, MSG)
                   : kvasir_session_feed(s, &ids[N + i], 1, KVASIR_STEPS, NULL, msg, MSG);
    }
    return st == KVASIR_OK;
}

/* ---- the engine's own numbers ---- */

static const struct {
    const char *strategy, *store;
} sessions[] = {{"full", "f16"},           {"quest:budget=16:page=4", "f32"},
                {"h2o:budget=24", "bf16"}, {"streaming:budget=20:skip=0", "f16"},
                {"full", "kivi4:r=32"},    {"snapkv:budget=24:skip=1", "f16"}};
enum { N_SESSIONS = sizeof sessions / sizeof *sessions };

static bool engine_trace(const engine_parts *p, int i, float (*out)[U_VOCAB], err *e)
{
    session *s = NULL;
    status st = session_new(&s, p, sessions[i].strategy, sessions[i].store, LIMIT, e);
    prefill_options o = {.which = LOGITS_LAST, .rows = keep_last_row, .ctx = out[0]};
    if (st == ST_OK) st = session_prefill(&s, 1, text_ids, N, &o, e);
    for (int k = 0; k < STEPS && st == ST_OK; k++) st = session_decode(&s, 1, text_ids + N + k, out[k + 1], e);
    session_free(s);
    return st == ST_OK;
}

static void check_engine(kvasir_model *m)
{
    static float want[STEPS + 1][U_VOCAB], got[STEPS + 1][U_VOCAB];
    engine_parts p;
    err e = {0};
    if (!is_ok(parts_open(&p, MODEL, "cpu", &e), &e, "the engine")) return;
    for (int i = 0; i < N_SESSIONS; i++) {
        kvasir_session *s = open_session(m, sessions[i].strategy, sessions[i].store);
        ok(engine_trace(&p, i, want, &e) && trace(s, got) && memcmp(want, got, sizeof want) == 0,
           "%s over %s: the engine's bits", sessions[i].strategy, sessions[i].store);
        kvasir_session_free(s);
    }
    kvasir_info info = {.struct_size = sizeof info};
    good(kvasir_model_info(m, &info, msg, MSG), "info");
    const model_config *c = &p.m->config;
    ok(info.vocab == c->vocab && info.layers == c->n_layers && info.heads == c->n_heads &&
           info.kv_heads == c->n_kv_heads && info.head_dim == c->head_dim && info.hidden == c->hidden &&
           info.feed_forward == c->ffn && info.threads == 1 && info.batch == 4 && info.chunk == U_CHUNK &&
           info.ctx == LIMIT && info.parameters == c->n_params && strcmp(info.architecture, c->arch) == 0 &&
           strcmp(info.weights, "bf16") == 0 && strcmp(info.device, "cpu") == 0,
       "it says what the model is");
    kvasir_plan plan = {.struct_size = sizeof plan};
    good(kvasir_session_plan(m, "full", "f16", 1000, &plan, msg, MSG), "plan");
    is_int(plan.kv, 1000LL * c->n_layers * c->n_kv_heads * c->head_dim * 4, "planned bytes of keys and values");
    parts_close(&p);
}

/* ---- scores, forks, rewinding, files ---- */

static void check_scores(kvasir_model *m)
{
    static kvasir_score a[N], b[N];
    kvasir_session *s = open_session(m, NULL, "f32"), *t = open_session(m, "full", "f32");
    bool close = true, own = true;
    good(kvasir_session_feed(s, text_ids, N, KVASIR_PROMPT, a, msg, MSG), "a prompt with scores");
    for (int i = 0; i < N; i++) {
        const float *row;
        bool has = kvasir_session_logits(t, &row, msg, MSG) == KVASIR_OK;
        float want = has ? (float)-logits_nll(row, U_VOCAB, text_ids[i]) : NAN;
        int32_t best = has ? logits_argmax(row, U_VOCAB) : -1;
        kvasir_session_feed(t, text_ids + i, 1, KVASIR_STEPS, &b[i], msg, MSG);
        own &= b[i].best == best && (b[i].logprob == want || (isnan(want) && isnan(b[i].logprob)));
        close &= i == 0 ? isnan(a[i].logprob) && a[i].best == -1
                        : fabsf(a[i].logprob - b[i].logprob) < 1e-4f && a[i].best == b[i].best;
    }
    ok(own, "scores of steps are those of the logits before them");
    ok(close, "and those of a prompt agree");
    kvasir_session_free(s);
    kvasir_session_free(t);
}

static bool same_steps(kvasir_session *a, kvasir_session *b)
{
    kvasir_session *const both[] = {a, b};
    bool same = same_logits(a, b);
    for (int i = 0; i < STEPS && same; i++) {
        const int32_t ids[] = {text_ids[N + i], text_ids[N + i]};
        same = kvasir_decode(both, 2, ids, msg, MSG) == KVASIR_OK && same_logits(a, b);
    }
    return same;
}

static void check_copies(kvasir_model *m, const char *strategy, const char *path)
{
    kvasir_session *s = open_session(m, strategy, "f16"), *t, *u;
    const int32_t *ids;
    size_t n;
    good(kvasir_session_feed(s, text_ids, N, KVASIR_PROMPT, NULL, msg, MSG), "prompt");
    good(kvasir_session_save(s, path, msg, MSG), "saved");
    good(kvasir_session_fork(&t, s, msg, MSG), "forked");
    ok(t && same_steps(s, t), "%s: a fork continues with the same bits", strategy);
    kvasir_session_free(t);
    good(kvasir_session_load(&t, m, path, msg, MSG), "loaded");
    good(kvasir_session_load(&u, m, path, msg, MSG), "loaded again");
    ok(t && u && same_steps(t, u) && same_logits(s, t), "%s: and so does what was saved", strategy);
    good(kvasir_session_tokens(t, &ids, &n, msg, MSG), "tokens");
    ok(n == N + STEPS && memcmp(ids, text_ids, n * sizeof *ids) == 0, "its tokens are known");
    int fd = open(path, O_WRONLY);
    ok(pwrite(fd, "damage", 6, SESSION_ALIGN + 100) == 6 && close(fd) == 0, "rows are changed");
    kvasir_session_free(t);
    refused(kvasir_session_load(&t, m, path, msg, MSG), KVASIR_FORMAT, "bytes 65536 to", "a file that was changed");
    kvasir_session_free(s);
    kvasir_session_free(u);
}

static void check_rewind(kvasir_model *m)
{
    kvasir_session *s = open_session(m, "full", "f16"), *h = open_session(m, "h2o:budget=24", "f16"), *t;
    const float *row;
    kvasir_session_feed(s, text_ids, N, KVASIR_PROMPT, NULL, msg, MSG);
    kvasir_session_fork(&t, s, msg, MSG);
    for (int i = 0; i < 3; i++) kvasir_session_feed(t, text_ids + N, 3, KVASIR_STEPS, NULL, msg, MSG);
    good(kvasir_session_rewind(t, N - 1, msg, MSG), "rewound");
    refused(kvasir_session_logits(t, &row, msg, MSG), KVASIR_USAGE, "no logits",
            "logits of a session that was rewound");
    kvasir_session_rewind(s, N - 1, msg, MSG);
    kvasir_session_feed(s, text_ids + N - 1, 1, KVASIR_STEPS, NULL, msg, MSG);
    kvasir_session_feed(t, text_ids + N - 1, 1, KVASIR_STEPS, NULL, msg, MSG);
    ok(same_steps(s, t), "after a rewind the bits are those of a session that was not continued");
    refused(kvasir_session_rewind(t, N + STEPS + 1, msg, MSG), KVASIR_USAGE, "expected 0 to 56", "beyond the end");
    refused(kvasir_session_rewind(t, -1, msg, MSG), KVASIR_USAGE, "-1", "below 0");
    kvasir_session_feed(h, text_ids, N, KVASIR_PROMPT, NULL, msg, MSG);
    kvasir_session_free(t);
    kvasir_session_fork(&t, h, msg, MSG);
    refused(kvasir_session_rewind(h, 10, msg, MSG), KVASIR_UNSUPPORTED, "cannot go back", "an evictor");
    ok(same_steps(h, t), "which is then as it was");
    kvasir_session_free(s);
    kvasir_session_free(h);
    kvasir_session_free(t);
}

/* ---- sampling ---- */

static void check_sampling(kvasir_model *m)
{
    kvasir_session *s = open_session(m, "full", "f16");
    kvasir_sampling o = {.struct_size = sizeof o, .temperature = 1.5, .seed = 3}, p = o, all = o;
    const float *row;
    int32_t greedy, a, b, differ = 0;
    refused(kvasir_session_sample(s, NULL, &a, msg, MSG), KVASIR_USAGE, "no logits", "a token of an empty session");
    kvasir_session_feed(s, text_ids, N, KVASIR_PROMPT, NULL, msg, MSG);
    kvasir_session_logits(s, &row, msg, MSG);
    good(kvasir_session_sample(s, NULL, &greedy, msg, MSG), "greedy");
    is_int(greedy, logits_argmax(row, U_VOCAB), "the most likely token");
    p.top_k = 1;
    all.top_p = 1;
    for (uint64_t seed = 0; seed < 20; seed++) {
        o.seed = p.seed = all.seed = seed;
        kvasir_session_sample(s, &o, &a, msg, MSG);
        kvasir_session_sample(s, &p, &b, msg, MSG);
        differ += a != greedy;
        if (b != greedy) differ = -1000;
        kvasir_session_sample(s, &o, &b, msg, MSG);
        if (a != b) differ = -1000;
        kvasir_session_sample(s, &all, &b, msg, MSG);
        if (a != b) differ = -1000;
    }
    ok(differ > 0, "seeds differ, the same seed does not, top_k=1 is greedy, top_p=0 is off");
    p.top_p = 2;
    refused(kvasir_session_sample(s, &p, &a, msg, MSG), KVASIR_USAGE, "top_p", "top_p 2");
    o.seed = INT64_MAX;
    good(kvasir_session_sample(s, &o, &a, msg, MSG), "the largest seed");
    o.seed++;
    refused(kvasir_session_sample(s, &o, &a, msg, MSG), KVASIR_USAGE,
            "seed 9223372036854775808: must be from 0 to 9223372036854775807", "a larger one");
    kvasir_session_free(s);
}

/* Samples a value under a constraint into text; returns its length. */
static size_t constrained_text(kvasir_model *m, kvasir_session *s, char *text, size_t size)
{
    const kvasir_sampling o = {.struct_size = sizeof o, .temperature = 1, .seed = 5};
    int32_t id;
    size_t n = 0, k = 0;
    for (int i = 0; i < 100 && n < size; i++) {
        if (kvasir_session_sample(s, &o, &id, msg, MSG) != KVASIR_OK || kvasir_is_end(m, id)) break;
        kvasir_detokenize(m, &id, 1, 0, text + n, size - n, &k, msg, MSG);
        n += k;
        kvasir_decode(&s, 1, &id, msg, MSG);
    }
    return n;
}

static void check_constraint(kvasir_model *m)
{
    static const char schema[] = "{\"type\":\"array\",\"items\":{\"enum\":[1,null]},\"minItems\":2,\"maxItems\":3}";
    kvasir_session *s = open_session(m, "full", NULL);
    char text[512] = "";
    const int32_t *ids;
    size_t n, all;
    int32_t id;
    refused(kvasir_session_constrain(s, "{\"not\":{}}", msg, MSG), KVASIR_UNSUPPORTED, "$.not: not supported",
            "a keyword");
    refused(kvasir_session_constrain(s, "{\"enum\":[]}", msg, MSG), KVASIR_USAGE, "$: no value", "no value");
    refused(kvasir_session_constrain(s, "[", msg, MSG), KVASIR_FORMAT, "schema", "no JSON");
    good(kvasir_session_constrain(s, schema, msg, MSG), "a schema");
    for (int k = 0; k < 2; k++) { /* a prompt begins another value */
        good(kvasir_session_feed(s, text_ids, 5, KVASIR_PROMPT, NULL, msg, MSG), "a prompt");
        n = constrained_text(m, s, text, sizeof text - 1);
        text[n] = 0;
        json_t *j = json_loads(text, 0, NULL);
        ok(json_array_size(j) >= 2 && json_array_size(j) <= 3, "value %d is an array of the schema", k);
        json_decref(j);
    }
    kvasir_session_tokens(s, &ids, &all, msg, MSG);
    good(kvasir_session_rewind(s, (int64_t)all - 1, msg, MSG), "rewound");
    id = ids[all - 1];
    good(kvasir_session_constrain(s, NULL, msg, MSG), "no constraint");
    good(kvasir_session_feed(s, &id, 1, KVASIR_STEPS, NULL, msg, MSG), "a step");
    good(kvasir_session_sample(s, NULL, &id, msg, MSG), "any token");
    kvasir_session_free(s);
}

/* ---- logits that are not finite ---- */

/* Returns the best token after the penalties for the last n tokens of a session. */
static int32_t penalized_best(const kvasir_session *s, size_t n, const kvasir_sampling *o)
{
    const float *logits;
    const int32_t *ids;
    size_t all;
    float best = -INFINITY;
    int32_t id = 0;
    kvasir_session_logits(s, &logits, msg, MSG);
    kvasir_session_tokens(s, &ids, &all, msg, MSG);
    for (int32_t i = 0; i < U_VOCAB; i++) {
        int count = 0;
        for (size_t k = all - n; k < all; k++) count += ids[k] == i;
        const float x = logits[i] - (float)(count * o->frequency_penalty + (count > 0) * o->presence_penalty);
        if (x > best) best = x, id = i;
    }
    return id;
}

/* Samples and feeds STEPS tokens after n generated ones; returns the number that differ from the definition. */
static int penalized_steps(kvasir_session *s, size_t n, const kvasir_sampling *o)
{
    int wrong = 0;
    int32_t id;
    for (size_t i = 0; i < STEPS; i++) {
        good(kvasir_session_sample(s, o, &id, msg, MSG), "a token with penalties");
        wrong += id != penalized_best(s, n + i, o);
        if (i % 2) kvasir_decode(&s, 1, &id, msg, MSG);
        else kvasir_session_feed(s, &id, 1, KVASIR_STEPS, NULL, msg, MSG);
    }
    return wrong;
}

/* Penalties count the tokens fed as steps since the last prompt, also in copies. */
static void check_penalties(kvasir_model *m, const char *path)
{
    const kvasir_sampling o = {.struct_size = sizeof o, .presence_penalty = 1.5, .frequency_penalty = 0.5},
                          first = {.struct_size = offsetof(kvasir_sampling, presence_penalty)};
    kvasir_session *s = open_session(m, "full", NULL), *copy;
    const int32_t bad = -1;
    int32_t id;
    good(kvasir_session_feed(s, text_ids, 9, KVASIR_PROMPT, NULL, msg, MSG), "a prompt");
    is_int(penalized_steps(s, 0, &o), 0, "tokens of the definition");
    good(kvasir_session_sample(s, &first, &id, msg, MSG), "a struct of an earlier header");
    is_int(id, penalized_best(s, 0, &o), "has no penalties");
    refused(kvasir_session_feed(s, &bad, 1, KVASIR_PROMPT, NULL, msg, MSG), KVASIR_USAGE, "token id -1", "a prompt");
    good(kvasir_session_fork(&copy, s, msg, MSG), "a copy");
    is_int(penalized_steps(copy, STEPS, &o), 0, "a copy has counts");
    good(kvasir_session_rewind(copy, 9 + 2, msg, MSG), "rewound");
    good(kvasir_session_feed(copy, text_ids, 1, KVASIR_STEPS, NULL, msg, MSG), "a step");
    is_int(penalized_steps(copy, 3, &o), 0, "counts of the remaining tokens");
    kvasir_session_free(copy);
    good(kvasir_session_save(s, path, msg, MSG), "saved");
    good(kvasir_session_load(&copy, m, path, msg, MSG), "loaded");
    is_int(penalized_steps(copy, STEPS, &o), 0, "counts in files");
    kvasir_session_free(copy);
    good(kvasir_session_feed(s, text_ids, 3, KVASIR_PROMPT, NULL, msg, MSG), "another prompt");
    is_int(penalized_steps(s, 0, &o), 0, "starts the counts again");
    kvasir_session_free(s);
}

static void check_length(const kvasir_session *s, size_t want, const char *name)
{
    const int32_t *ids;
    size_t n = 0;
    kvasir_session_tokens(s, &ids, &n, msg, MSG);
    is_int((long long)n, (long long)want, "%s", name);
}

static void check_not_finite(void)
{
    kvasir_options o = small_options(LIMIT);
    kvasir_model *m = open_model(POISON_MODEL, &o);
    if (!m) return;
    poison(m->m, POISON_VALUES, 1, 192);
    kvasir_session *s = open_session(m, "full", "f16"), *h2o = open_session(m, "h2o:budget=8", "f16");
    kvasir_session *both[] = {h2o, s};
    const int32_t ids[] = {1, 2, 3, 300}, step[] = {4, 300};
    kvasir_score scores[4];
    int32_t before, after;
    good(kvasir_session_feed(s, ids, 3, KVASIR_PROMPT, NULL, msg, MSG), "a prompt");
    good(kvasir_session_feed(h2o, ids, 3, KVASIR_PROMPT, NULL, msg, MSG), "another");
    kvasir_session_sample(s, NULL, &before, msg, MSG);
    refused(kvasir_session_feed(s, ids, 4, KVASIR_PROMPT, scores, msg, MSG), KVASIR_FORMAT,
            "values of layer 1 exceed 65504", "scores of a prompt beyond f16");
    check_length(s, 3, "the prompt is taken back");
    good(kvasir_session_sample(s, NULL, &after, msg, MSG), "the logits before it stay");
    is_int(after, before, "and their choice");
    refused(kvasir_decode(both, 2, step, msg, MSG), KVASIR_FORMAT, "session 1: ", "a step of two sessions");
    check_length(s, 3, "the step is taken back");
    refused(kvasir_session_feed(s, step, 2, KVASIR_STEPS, NULL, msg, MSG), KVASIR_FORMAT, "use bf16 rows (store bf16)",
            "the second step");
    check_length(s, 4, "the first step stays");
    kvasir_session_free(s);
    s = open_session(m, "full", "bf16");
    good(kvasir_session_feed(s, ids, 4, KVASIR_PROMPT, scores, msg, MSG), "over bf16 it is fed");
    kvasir_session_free(s);
    kvasir_session_free(h2o);
    kvasir_model_free(m);
}

/* ---- what steps read ---- */

static double attended(const kvasir_session *s)
{
    kvasir_stats t = {.struct_size = sizeof t};
    kvasir_session_stats(s, &t, msg, MSG);
    return t.attended;
}

/* The lists of the last step against what the engine counted of it. */
static void check_selection(kvasir_model *m, const char *strategy, int64_t most)
{
    kvasir_session *s = open_session(m, strategy, "f16");
    kvasir_info info = {.struct_size = sizeof info};
    const int32_t *pos;
    size_t n;
    double sum = 0;
    bool right = true;
    kvasir_model_info(m, &info, msg, MSG);
    kvasir_session_feed(s, text_ids, N, KVASIR_PROMPT, NULL, msg, MSG);
    refused(kvasir_session_selection(s, 0, 0, &pos, &n, msg, MSG), KVASIR_USAGE, "no step was watched",
            "before a step");
    good(kvasir_session_watch(s, 1, msg, MSG), "watch");
    kvasir_session_feed(s, text_ids + N, STEPS - 1, KVASIR_STEPS, NULL, msg, MSG);
    double before = attended(s);
    kvasir_session_feed(s, text_ids + N + STEPS - 1, 1, KVASIR_STEPS, NULL, msg, MSG);
    double now = attended(s) - before;
    for (int l = 0; l < info.layers; l++)
        for (int h = 0; h < info.heads; h++) {
            right &= kvasir_session_selection(s, l, h, &pos, &n, msg, MSG) == KVASIR_OK && n > 0 && (int64_t)n <= most;
            if (!right) break;
            right &= pos[0] >= 0 && pos[n - 1] == N + STEPS - 1;
            for (size_t i = 1; i < n; i++) right &= pos[i] > pos[i - 1];
            sum += (double)n / (double)(info.layers * info.heads);
        }
    ok(right, "%s: positions ascend to the step's own, at most %d", strategy, (int)most);
    ok(fabs(sum - now) <= 0.5, "%s: as many as were counted", strategy);
    printf("# %g read, %g counted\n", sum, now);
    refused(kvasir_session_selection(s, info.layers, 0, &pos, &n, msg, MSG), KVASIR_USAGE, "layers", "no such layer");
    refused(kvasir_session_selection(s, 0, -1, &pos, &n, msg, MSG), KVASIR_USAGE, "heads", "no such head");
    kvasir_session_free(s);
}

/* ---- callbacks ---- */

typedef struct {
    kvasir_model *m;
    kvasir_session *s;
    int stop_at, calls, lines;
    kvasir_status inner;
} caller;

static void on_log(void *arg, int32_t level, const char *line)
{
    caller *c = arg;
    c->lines += level == KVASIR_INFO && strstr(line, "Qwen3") && !strchr(line, '\n');
}

static int32_t on_progress(void *arg, int64_t done, int64_t total)
{
    caller *c = arg;
    char own[MSG];
    (void)total;
    c->calls++;
    if (c->s) c->inner = kvasir_session_rewind(c->s, 0, own, MSG);
    return done != c->stop_at;
}

static void check_callbacks(void)
{
    static const char *const strategies[] = {"full", "quest:budget=16:page=4", "h2o:budget=24", "snapkv:budget=24"};
    static float want[STEPS + 1][U_VOCAB], got[STEPS + 1][U_VOCAB];
    caller c = {0};
    kvasir_options o = small_options(LIMIT);
    o.log = on_log;
    o.progress = on_progress;
    o.arg = &c;
    c.m = open_model(MODEL, &o);
    is_int(c.lines, 1, "one line about the model");
    for (int i = 0; i < 4; i++) {
        kvasir_session *s = open_session(c.m, strategies[i], "f16");
        kvasir_stats t = {.struct_size = sizeof t};
        c.stop_at = -1;
        trace(s, want);
        kvasir_session_rewind(s, 0, msg, MSG);
        c.stop_at = 2 * U_CHUNK;
        refused(kvasir_session_feed(s, text_ids, N, KVASIR_PROMPT, NULL, msg, MSG), KVASIR_INTERRUPTED, "interrupted",
                "a prompt that is stopped");
        good(kvasir_session_stats(s, &t, msg, MSG), "stats");
        is_int(t.length, 0, "%s: of which nothing is left", strategies[i]);
        c.stop_at = -1;
        ok(trace(s, got) && memcmp(got, want, sizeof want) == 0, "%s: then the same prompt gives the same bits",
           strategies[i]);
        c.stop_at = U_CHUNK;
        kvasir_session_feed(s, text_ids, U_CHUNK + 2, KVASIR_PROMPT, NULL, msg, MSG);
        kvasir_session_stats(s, &t, msg, MSG);
        ok(t.length == 0 || t.length == N + STEPS,
           "%s: after an interrupted second prompt the session is unchanged or empty", strategies[i]);
        ok(t.length == 0 || (kvasir_session_logits(s, &(const float *){NULL}, msg, MSG) == KVASIR_OK),
           "with its logits");
        kvasir_session *copy;
        good(kvasir_session_fork(&copy, s, msg, MSG), "and whole: it can be copied");
        kvasir_session_free(copy);
        kvasir_session_free(s);
    }
    c.s = open_session(c.m, "full", "f16");
    c.stop_at = -1;
    c.calls = 0;
    good(kvasir_session_feed(c.s, text_ids, N, KVASIR_PROMPT, NULL, msg, MSG), "a callback that calls back");
    is_int(c.calls, (N + U_CHUNK - 1) / U_CHUNK, "is called after each chunk");
    is_int(c.inner, KVASIR_USAGE, "and its own calls are refused");
    kvasir_session_free(c.s);
    kvasir_model_free(c.m);
}

static void check_defaults(void)
{
    kvasir_options o = small_options(LIMIT);
    kvasir_info info = {.struct_size = sizeof info};
    o.chunk = 0;
    kvasir_model *m = open_model(MODEL, &o);
    if (!m) return;
    good(kvasir_model_info(m, &info, msg, MSG), "info");
    is_int(info.chunk, 512, "the chunk where none is asked for");
    kvasir_model_free(m);
}

/* ---- text ---- */

/* Conversations as JSON have the n ids of kvasir_chat. */
static void check_chat_json(kvasir_model *m, const kvasir_message *talk, const int32_t *want, size_t n)
{
    int32_t ids[128];
    size_t k;
    char list[256], with[512];
    snprintf(list, sizeof list, "[{\"role\":\"%s\",\"content\":\"%s\"},{\"role\":\"%s\",\"content\":\"%s\"}]",
             talk[0].role, talk[0].content, talk[1].role, talk[1].content);
    good(kvasir_chat_json(m, "chatml", list, ids, 128, &k, msg, MSG), "a list of messages");
    ok(k == n && memcmp(ids, want, n * sizeof *ids) == 0, "has the ids of kvasir_chat");
    snprintf(with, sizeof with, "{\"messages\":%s,\"x\":\"hi\"}", list);
    good(kvasir_chat_json(m, "{{ x }}", with, ids, 128, &k, msg, MSG), "a template as text, with a variable");
    good(kvasir_tokenize(m, "hi", 2, 0, ids + 64, 64, &n, msg, MSG), "its text");
    ok(k == n && memcmp(ids, ids + 64, n * sizeof *ids) == 0, "has the same ids");
    good(kvasir_chat_json(m, tap_path("tests/data/chat/tools.jinja"), list, ids, 128, &k, msg, MSG), "a file");
    refused(kvasir_chat_json(m, "{% if %}", list, ids, 128, &k, msg, MSG), KVASIR_FORMAT,
            "template:1: ", "a faulty text");
    refused(kvasir_chat_json(m, NULL, "[", ids, 128, &k, msg, MSG), KVASIR_FORMAT, "conversation: not valid JSON",
            "JSON");
    refused(kvasir_chat_json(m, NULL, "3", ids, 128, &k, msg, MSG), KVASIR_FORMAT, "expected an array", "a number");
    refused(kvasir_chat_json(m, NULL, "{}", ids, 128, &k, msg, MSG), KVASIR_USAGE, "no messages", "no messages");
    refused(kvasir_chat_json(m, NULL, NULL, ids, 128, &k, msg, MSG), KVASIR_USAGE, "conversation: NULL", "NULL");
}

static void check_text(kvasir_model *m)
{
    const char text[] = "Hello, wörld: 1 + 2";
    int32_t ids[64], few[2], chat[128];
    char out[64], tail[8], joined[64] = "";
    size_t n, k, all;
    good(kvasir_tokenize(m, text, strlen(text), 0, NULL, 0, &all, msg, MSG), "how many tokens");
    good(kvasir_tokenize(m, text, strlen(text), 0, ids, 64, &n, msg, MSG), "tokens");
    kvasir_tokenize(m, text, strlen(text), 0, few, 2, &k, msg, MSG);
    ok(n == all && n > 3 && k == n && few[0] == ids[0] && few[1] == ids[1], "as many as there is room for");
    good(kvasir_detokenize(m, ids, n, 0, out, sizeof out, &k, msg, MSG), "text again");
    is_str(out, text, "which is the same");
    is_int((long long)k, (long long)strlen(text), "and as long");
    kvasir_detokenize(m, ids, n, 0, tail, sizeof tail, &k, msg, MSG);
    ok(k == strlen(text) && strlen(tail) == 7 && strncmp(tail, text, 7) == 0, "cut to the room");
    kvasir_text *t;
    const char *piece;
    good(kvasir_text_create(&t, m, msg, MSG), "a stream");
    for (size_t i = 0; i < n; i++) {
        kvasir_text_push(t, ids[i], &piece, &k, msg, MSG);
        strncat(joined, piece, k);
    }
    good(kvasir_text_end(t, &piece, &k, msg, MSG), "its end");
    strncat(joined, piece, k);
    is_str(joined, text, "token by token the same text");
    kvasir_text_free(t);
    const kvasir_message talk[] = {{"system", "Be short."}, {"user", "Hi"}};
    good(kvasir_chat(m, "chatml", talk, 2, chat, 128, &n, msg, MSG), "a conversation");
    ok(n > 5 && n <= 128, "has tokens");
    check_chat_json(m, talk, chat, n);
    refused(kvasir_chat(m, "nonsense", talk, 2, chat, 128, &n, msg, MSG), KVASIR_USAGE, "template nonsense: no such",
            "a template that is not there");
    refused(kvasir_chat(m, NULL, talk, 0, chat, 128, &n, msg, MSG), KVASIR_USAGE, "none", "no messages");
    refused(kvasir_tokenize(m, text, 3, 64, ids, 64, &n, msg, MSG), KVASIR_UNSUPPORTED, "flags", "unknown flags");
    refused(kvasir_tokenize(m, NULL, 3, 0, ids, 64, &n, msg, MSG), KVASIR_USAGE, "text", "no text");
    good(kvasir_tokenize(m, NULL, 0, 0, NULL, 0, &n, msg, MSG), "an empty text");
    is_int((long long)n, 0, "has no tokens");
    ok(!kvasir_is_end(m, 5) && !kvasir_is_end(m, -1) && !kvasir_is_end(m, INT32_MAX), "ordinary tokens end nothing");
}

/* ---- sizes of structs, wrong arguments ---- */

static void check_sizes(kvasir_model *m)
{
    struct {
        kvasir_options o;
        char more[16];
    } later = {.o = small_options(LIMIT)};
    struct {
        size_t struct_size;
        const char *device;
    } earlier = {sizeof earlier, "cpu"};
    kvasir_options wrong = small_options(LIMIT);
    kvasir_model *x;
    later.o.struct_size = sizeof later;
    good(kvasir_model_load(&x, model_dir(MODEL), &later.o, msg, MSG), "a larger struct with nothing in it");
    kvasir_model_free(x);
    later.more[9] = 1;
    refused(kvasir_model_load(&x, model_dir(MODEL), &later.o, msg, MSG), KVASIR_UNSUPPORTED, "struct",
            "a field of the future");
    good(kvasir_model_load(&x, model_dir(MODEL), (const kvasir_options *)(const void *)&earlier, msg, MSG),
         "a smaller one");
    kvasir_model_free(x);
    wrong.struct_size = 0;
    refused(kvasir_model_load(&x, model_dir(MODEL), &wrong, msg, MSG), KVASIR_USAGE, "struct_size", "no size");
    ok(x == NULL, "which makes nothing");
    wrong = small_options(LIMIT);
    wrong.flags = 1;
    refused(kvasir_model_load(&x, model_dir(MODEL), &wrong, msg, MSG), KVASIR_UNSUPPORTED, "flags", "flags of models");
    kvasir_info info = {.struct_size = offsetof(kvasir_info, vocab), .vocab = -7};
    good(kvasir_model_info(m, &info, msg, MSG), "a struct of an earlier version");
    ok(info.vocab == -7 && info.parameters > 0, "is filled as far as it goes");
    struct {
        kvasir_plan p;
        char more[8];
    } plan = {.p = {.struct_size = sizeof plan}, .more = "1234567"};
    good(kvasir_session_plan(m, "full", NULL, 10, &plan.p, msg, MSG), "one of a later version");
    ok(plan.p.struct_size == sizeof plan && plan.more[0] == 0, "has zeros where nothing is known");
}

static void check_wrong_models(void)
{
    static const struct {
        const char *device, *weights, *gemm;
        int32_t threads, batch, chunk;
        kvasir_status want;
        const char *part;
    } t[] = {{"abacus", NULL, NULL, 1, 1, 1, KVASIR_USAGE, "abacus"},
             {NULL, "q7", NULL, 1, 1, 1, KVASIR_USAGE, "q7"},
             {NULL, NULL, "magic", 1, 1, 1, KVASIR_USAGE, "magic"},
             {NULL, NULL, NULL, -1, 1, 1, KVASIR_USAGE, "threads -1"},
             {NULL, NULL, NULL, 1, INT32_MAX, 1, KVASIR_USAGE, "batch"},
             {NULL, NULL, NULL, 1, 1, INT32_MAX, KVASIR_USAGE, "chunk"}};
    kvasir_model *m;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        kvasir_options o = small_options(LIMIT);
        o.device = t[i].device;
        o.weights = t[i].weights;
        o.gemm = t[i].gemm;
        o.threads = t[i].threads;
        o.batch = t[i].batch;
        o.chunk = t[i].chunk;
        refused(kvasir_model_load(&m, model_dir(MODEL), &o, msg, MSG), t[i].want, t[i].part, t[i].part);
    }
    refused(kvasir_model_load(&m, "/nowhere", NULL, msg, MSG), KVASIR_IO, "nowhere", "no such folder");
    refused(kvasir_model_load(&m, NULL, NULL, msg, MSG), KVASIR_USAGE, "dir", "no folder");
    refused(kvasir_model_load(NULL, "x", NULL, msg, MSG), KVASIR_USAGE, "out", "no place for the model");
    is_int(kvasir_model_load(&m, NULL, NULL, NULL, 0), KVASIR_USAGE, "without room for a message");
    char tiny[4] = "xyz";
    kvasir_model_load(&m, "/nowhere", NULL, tiny, sizeof tiny);
    ok(tiny[3] == 0 && strlen(tiny) == 3, "a message is cut to its room");
    kvasir_model_free(NULL);
    kvasir_session_free(NULL);
    kvasir_text_free(NULL);
}

static void check_wrong_sessions(kvasir_model *m)
{
    kvasir_session *s, *none[] = {NULL};
    const int32_t far[] = {1, 2, 100000}, low[] = {-1};
    int32_t many[LIMIT + 1] = {0};
    kvasir_score scores[LIMIT + 1];
    kvasir_stats t = {.struct_size = sizeof t};
    refused(kvasir_session_create(&s, m, "questt", NULL, 0, msg, MSG), KVASIR_USAGE, "quest", "no such strategy");
    refused(kvasir_session_create(&s, m, "quest:budget=x", NULL, 0, msg, MSG), KVASIR_USAGE, "budget",
            "a wrong number");
    refused(kvasir_session_create(&s, m, "full", "f8", 0, msg, MSG), KVASIR_USAGE, "f8", "no such store");
    refused(kvasir_session_create(&s, m, "full", "f16", -5, msg, MSG), KVASIR_USAGE, "-5", "a negative limit");
    refused(kvasir_session_create(&s, m, "full", "f16", INT64_MAX, msg, MSG), KVASIR_USAGE, "limit", "a limit too far");
    refused(kvasir_session_create(&s, m, "full", "f32", INT32_MAX - 1, msg, MSG), KVASIR_NOMEM, "needed",
            "more than there is memory");
    ok(s == NULL, "which makes no session");
    refused(kvasir_session_create(&s, NULL, NULL, NULL, 0, msg, MSG), KVASIR_USAGE, "model", "no model");
    s = open_session(m, NULL, NULL);
    refused(kvasir_session_feed(s, far, 3, KVASIR_PROMPT, NULL, msg, MSG), KVASIR_USAGE, "100000", "an id too far");
    refused(kvasir_session_feed(s, low, 1, KVASIR_STEPS, NULL, msg, MSG), KVASIR_USAGE, "-1", "an id below 0");
    refused(kvasir_decode(&s, 1, low, msg, MSG), KVASIR_USAGE, "-1", "and in a step");
    refused(kvasir_session_feed(s, far, 1, 7, NULL, msg, MSG), KVASIR_USAGE, "how", "neither prompt nor steps");
    refused(kvasir_session_feed(s, NULL, 1, KVASIR_PROMPT, NULL, msg, MSG), KVASIR_USAGE, "ids", "no ids");
    refused(kvasir_session_feed(s, many, LIMIT + 1, KVASIR_PROMPT, scores, msg, MSG), KVASIR_UNSUPPORTED, "80",
            "a prompt beyond the limit");
    refused(kvasir_session_feed(s, many, LIMIT + 1, KVASIR_STEPS, scores, msg, MSG), KVASIR_UNSUPPORTED, "80",
            "steps beyond the limit");
    good(kvasir_session_feed(s, NULL, 0, KVASIR_PROMPT, NULL, msg, MSG), "no tokens are no error");
    kvasir_session_stats(s, &t, msg, MSG);
    is_int(t.length, 0, "after all that the session is empty");
    good(kvasir_session_feed(s, many, LIMIT, KVASIR_PROMPT, NULL, msg, MSG), "a full session");
    refused(kvasir_decode(&s, 1, far, msg, MSG), KVASIR_UNSUPPORTED, "full", "takes no more");
    refused(kvasir_decode(none, 1, far, msg, MSG), KVASIR_USAGE, "session", "a session that is not there");
    refused(kvasir_decode(&s, 0, far, msg, MSG), KVASIR_USAGE, "none", "a step of nobody");
    refused(kvasir_session_save(s, "/nowhere/x", msg, MSG), KVASIR_IO, "x", "a file that cannot be");
    kvasir_session_free(s);
    refused(kvasir_session_load(&s, m, model_dir(MODEL "/config.json"), msg, MSG), KVASIR_FORMAT, "config.json",
            "a file that is no session");
    refused(kvasir_session_stats(NULL, &t, msg, MSG), KVASIR_USAGE, "session", "stats of nothing");
}

/* ---- threads ---- */

typedef struct {
    kvasir_model *m;
    int which;
    float out[STEPS + 1][U_VOCAB];
    bool good;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    kvasir_session *s;
    char own[MSG];
    w->good = kvasir_session_create(&s, w->m, sessions[w->which].strategy, sessions[w->which].store, 0, own, MSG) ==
              KVASIR_OK;
    for (int k = 0; k < 3 && w->good; k++) {
        const float *row;
        w->good = kvasir_session_rewind(s, 0, own, MSG) == KVASIR_OK;
        for (int i = 0; i <= STEPS && w->good; i++) {
            const int32_t *ids = text_ids;
            w->good = kvasir_session_feed(s, i ? ids + N + i - 1 : ids, i ? 1 : N, i ? KVASIR_STEPS : KVASIR_PROMPT,
                                          NULL, own, MSG) == KVASIR_OK &&
                      kvasir_session_logits(s, &row, own, MSG) == KVASIR_OK;
            if (w->good) memcpy(w->out[i], row, sizeof w->out[i]);
        }
    }
    kvasir_session_free(s);
    return NULL;
}

/* Two threads of one model, and one of another. */
static void check_threads(kvasir_model *m)
{
    static worker w[3], want[3];
    pthread_t id[3];
    kvasir_options o = small_options(LIMIT);
    kvasir_model *other = open_model("llama31-f32-tied", &o);
    bool same = true;
    for (int i = 0; i < 3; i++) {
        w[i] = want[i] = (worker){.m = i == 2 ? other : m, .which = i};
        work(&want[i]);
    }
    for (int i = 0; i < 3; i++) same &= pthread_create(&id[i], NULL, work, &w[i]) == 0;
    for (int i = 0; i < 3 && same; i++) {
        pthread_join(id[i], NULL);
        same = w[i].good && want[i].good && memcmp(w[i].out, want[i].out, sizeof w[i].out) == 0;
    }
    ok(same, "three threads with two models get the bits of one");
    kvasir_session *s = open_session(other, NULL, NULL);
    kvasir_model_free(other);
    ok(trace(s, w[0].out) && memcmp(w[0].out[0], want[0].out[0], sizeof w[0].out[0]) != 0, "a session keeps its model");
    kvasir_session_free(s);
}

/* ---- memory ---- */

static status try_session(kvasir_model *m, err *e)
{
    kvasir_session *s = NULL, *t = NULL;
    kvasir_status st = kvasir_session_create(&s, m, "quest:budget=16:page=4:skip=0", "f16", 0, e->msg, sizeof e->msg);
    if (st == KVASIR_OK) st = kvasir_session_watch(s, 1, e->msg, sizeof e->msg);
    if (st == KVASIR_OK) st = kvasir_session_feed(s, text_ids, N, KVASIR_PROMPT, NULL, e->msg, sizeof e->msg);
    if (st == KVASIR_OK) st = kvasir_session_fork(&t, s, e->msg, sizeof e->msg);
    if (st == KVASIR_OK) st = kvasir_session_feed(s, text_ids + N, 2, KVASIR_STEPS, NULL, e->msg, sizeof e->msg);
    int32_t id;
    if (st == KVASIR_OK) st = kvasir_session_sample(s, NULL, &id, e->msg, sizeof e->msg);
    kvasir_session_free(s);
    kvasir_session_free(t);
    e->code = (status)st;
    return (status)st;
}

static void check_oom(kvasir_model *m)
{
    oom_run o = {0}, p = {0};
    while (oom_next(&o)) oom_saw(&o, try_session(m, &o.e), NULL);
    oom_ok(&o, 30, "a session");
    kvasir_options opt = small_options(LIMIT);
    while (oom_next(&p)) {
        kvasir_model *x;
        kvasir_status st = kvasir_model_load(&x, model_dir(MODEL), &opt, p.e.msg, sizeof p.e.msg);
        p.e.code = (status)st;
        oom_saw(&p, (status)st, st == KVASIR_OK ? NULL : (const void *)&x);
        kvasir_model_free(x);
    }
    oom_ok(&p, 30, "a model");
}

int main(void)
{
    char path[] = "/tmp/kvasir-library-XXXXXX";
    kvasir_options o = small_options(LIMIT);
    int fd = mkstemp(path);
    for (int i = 0; i < N + STEPS; i++) text_ids[i] = some_id(i);
    is_str(kvasir_version(), PACKAGE_VERSION, "version");
    kvasir_model *m = open_model(MODEL, &o);
    if (fd < 0 || !m) return tap_done();
    close(fd);
    check_engine(m);
    check_scores(m);
    check_copies(m, "full", path);
    check_copies(m, "quest:budget=16:page=4:skip=0", path);
    check_rewind(m);
    check_sampling(m);
    check_constraint(m);
    check_penalties(m, path);
    check_selection(m, "full", N + STEPS);
    check_selection(m, "quest:budget=16:page=4:skip=0", 16 + 4);
    check_selection(m, "h2o:budget=24:skip=0", 25);
    check_selection(m, "h2o:budget=20:skip=0:demote=token4:recall=7", 28);
    check_callbacks();
    check_defaults();
    check_text(m);
    check_sizes(m);
    check_not_finite();
    check_wrong_models();
    check_wrong_sessions(m);
    check_threads(m);
    check_oom(m);
    kvasir_model_free(m);
    unlink(path);
    return tap_done();
}
