/* SPDX-License-Identifier: MIT */
/* libkvasir on a device: steps leave their logits there, and return the token that the session's sampler chooses. */
/* Builds: shim */
#include "config.h"

#include <stdlib.h>
#include <unistd.h>

#include "tests/cushim/shim.h"
#include "tests/unit/library_util.h"
#include "api/impl.h"
#include "tests/unit/poison.h"

enum { N_PROMPT = 20, N_STEPS = 4, LIMIT = 80, ROW = U_VOCAB * (int)sizeof(float) };

static const int32_t prompt[N_PROMPT] = {5, 9, 14, 3, 77, 21, 8, 40, 2, 6, 90, 31, 12, 55, 7, 19, 4, 88, 61, 10};

static kvasir_options on_device(void)
{
    kvasir_options o = small_options(LIMIT);
    o.device = "cuda";
    return o;
}

static kvasir_session *prompted(kvasir_model *m, const char *strategy)
{
    kvasir_session *s = open_session(m, strategy, "f16");
    good(kvasir_session_feed(s, prompt, N_PROMPT, KVASIR_PROMPT, NULL, msg, MSG), "a prompt");
    return s;
}

/* Feeds the sampled token, then samples the next one; returns -1 after an error. */
static int32_t next(kvasir_session *s, const kvasir_sampling *o, int32_t id)
{
    if (kvasir_decode(&s, 1, &id, msg, MSG) != KVASIR_OK) return -1;
    return kvasir_session_sample(s, o, &id, msg, MSG) == KVASIR_OK ? id : -1;
}

/* Tokens chosen on the device are those that the host chooses from the logits. They alone are downloaded. */
static void check_choices(kvasir_model *m, const char *strategy, const kvasir_sampling *o, const char *name)
{
    kvasir_session *s = prompted(m, strategy), *t = prompted(m, strategy);
    int32_t a, b;
    bool same = true;
    kvasir_session_sample(s, o, &a, msg, MSG);
    kvasir_session_sample(t, o, &b, msg, MSG);
    for (int i = 0; i < N_STEPS && same; i++) {
        const float *logits;
        const long before = shim_count(SHIM_FETCHED);
        const int32_t id = a;
        a = next(s, o, id);
        is_int(shim_count(SHIM_FETCHED) - before, 8, "%s, %s: bytes of a step", strategy, name);
        same = a >= 0 && kvasir_decode(&t, 1, &id, msg, MSG) == KVASIR_OK &&
               kvasir_session_logits(t, &logits, msg, MSG) == KVASIR_OK &&
               kvasir_session_sample(t, o, &b, msg, MSG) == KVASIR_OK && a == b;
    }
    ok(same, "%s, %s: the choice of the host", strategy, name);
    ok(same_logits(s, t), "%s, %s: the logits can be read later", strategy, name);
    const long before = shim_count(SHIM_FETCHED);
    ok(same_logits(s, t), "and again");
    is_int(shim_count(SHIM_FETCHED) - before, 0, "without another download");
    kvasir_session_free(s);
    kvasir_session_free(t);
}

/* Logits stay with their session while others run. */
static void check_together(kvasir_model *m)
{
    kvasir_session *s[] = {prompted(m, "full"), prompted(m, "full"), prompted(m, "full")}, *alone = prompted(m, "full");
    const int32_t ids[] = {3, 4, 5};
    long before = shim_count(SHIM_FETCHED);
    good(kvasir_decode(s, 3, ids, msg, MSG), "a step of three sessions");
    is_int(shim_count(SHIM_FETCHED) - before, 3 * 8, "bytes of the step");
    good(kvasir_decode(&alone, 1, &ids[1], msg, MSG), "a step of another");
    before = shim_count(SHIM_FETCHED);
    ok(same_logits(s[1], alone), "the logits of the first step are those of a session alone");
    is_int(shim_count(SHIM_FETCHED) - before, 2 * ROW, "bytes of two rows");
    ok(!same_logits(s[0], s[2]), "each session has its own");
    for (int i = 0; i < 3; i++) kvasir_session_free(s[i]);
    kvasir_session_free(alone);
}

/* Settings that differ from those of the step, penalties and constraints: the host chooses. */
static void check_changes(kvasir_model *m)
{
    const kvasir_sampling hot = {.struct_size = sizeof hot, .temperature = 2, .seed = 4},
                          own = {.struct_size = sizeof own, .frequency_penalty = 0.5};
    kvasir_session *s = prompted(m, "full"), *t = prompted(m, "full");
    int32_t a = 1, b = 1;
    good(kvasir_decode(&s, 1, &a, msg, MSG), "a step");
    good(kvasir_decode(&t, 1, &a, msg, MSG), "the same");
    good(kvasir_session_sample(t, NULL, &b, msg, MSG), "a greedy token");
    good(kvasir_session_sample(t, &hot, &b, msg, MSG), "a token at another temperature");
    good(kvasir_session_sample(s, &hot, &a, msg, MSG), "the same at once");
    is_int(a, b, "is the same");
    a = next(s, &hot, a), b = next(t, &hot, b);
    ok(a >= 0 && a == b, "and so is the next");
    const long before = shim_count(SHIM_FETCHED);
    a = next(s, &own, a);
    a = next(s, &own, a);
    is_int(shim_count(SHIM_FETCHED) - before, 8 + 2 * ROW, "penalties need the logits");
    ok(a >= 0, "a token with penalties");
    good(kvasir_session_constrain(t, "{\"enum\":[true]}", msg, MSG), "a schema");
    good(kvasir_decode(&t, 1, &b, msg, MSG), "a step under it");
    refused(kvasir_session_sample(t, &hot, &b, msg, MSG), KVASIR_FORMAT, "the schema allows no token",
            "a token beyond it");
    good(kvasir_session_constrain(t, NULL, msg, MSG), "no schema");
    good(kvasir_session_sample(t, &hot, &b, msg, MSG), "any token");
    kvasir_session_free(s);
    kvasir_session_free(t);
}

/* Copies, files, scores and watched steps. */
static void check_copies(kvasir_model *m)
{
    char path[] = "/tmp/kvasir-chosen-XXXXXX";
    kvasir_session *s = prompted(m, "full"), *t, *u;
    const int32_t id = 30, *pos;
    kvasir_score score;
    const float *logits;
    size_t n = 0;
    int fd = mkstemp(path);
    good(kvasir_session_watch(s, 1, msg, MSG), "watched");
    good(kvasir_decode(&s, 1, &id, msg, MSG), "a step");
    ok(kvasir_session_selection(s, 0, 0, &pos, &n, msg, MSG) == KVASIR_OK && n == N_PROMPT + 1, "what it read");
    good(kvasir_session_fork(&t, s, msg, MSG), "forked");
    ok(same_logits(s, t), "with its logits");
    good(kvasir_decode(&s, 1, &id, msg, MSG), "another step");
    good(kvasir_session_save(s, path, msg, MSG), "saved");
    good(kvasir_session_load(&u, m, path, msg, MSG), "loaded");
    ok(same_logits(s, u) && !same_logits(s, t), "with its logits");
    good(kvasir_decode(&s, 1, &id, msg, MSG), "a third step");
    good(kvasir_decode(&u, 1, &id, msg, MSG), "and a copy's");
    kvasir_session_logits(u, &logits, msg, MSG);
    const float want = (float)-logits_nll(logits, U_VOCAB, 17);
    good(kvasir_session_feed(s, (const int32_t[]){17}, 1, KVASIR_STEPS, &score, msg, MSG), "a step with its score");
    ok(score.logprob == want, "the score is that of the logits");
    kvasir_session_free(s);
    kvasir_session_free(t);
    kvasir_session_free(u);
    ok(fd >= 0 && close(fd) == 0 && unlink(path) == 0, "the file is gone");
}

/* A failed step leaves the logits before it. */
static void check_not_finite(void)
{
    kvasir_options o = on_device();
    kvasir_model *m = open_model(POISON_MODEL, &o);
    if (!m) return;
    poison(m->m, POISON_VALUES, 1, 192);
    kvasir_session *s = open_session(m, "full", "f16"), *bad = open_session(m, "full", "f16"), *both[] = {s, bad};
    const int32_t ids[] = {1, 2}, step[] = {4, 300};
    int32_t before, after;
    const float *logits, *row;
    good(kvasir_session_feed(s, ids, 2, KVASIR_STEPS, NULL, msg, MSG), "steps");
    good(kvasir_session_feed(bad, ids, 2, KVASIR_STEPS, NULL, msg, MSG), "steps of another session");
    good(kvasir_session_sample(s, NULL, &before, msg, MSG), "a token");
    refused(kvasir_decode(both, 2, step, msg, MSG), KVASIR_FORMAT, "session 1: ", "a step with values beyond f16");
    refused(kvasir_decode(both, 1, step + 1, msg, MSG), KVASIR_FORMAT, "use bf16 rows", "a step of one session");
    good(kvasir_session_sample(s, NULL, &after, msg, MSG), "a token again");
    is_int(after, before, "is that before the step");
    ok(kvasir_session_logits(s, &logits, msg, MSG) == KVASIR_OK && kvasir_session_logits(bad, &row, msg, MSG) == 0 &&
           memcmp(logits, row, ROW) == 0 && logits_argmax(logits, U_VOCAB) == before,
       "and so are the logits");
    kvasir_session_free(s);
    kvasir_session_free(bad);
    kvasir_model_free(m);
}

int main(void)
{
    const kvasir_sampling warm = {.struct_size = sizeof warm, .temperature = 0.8, .top_p = 0.9, .top_k = 50, .seed = 7},
                          plain = {.struct_size = sizeof plain, .temperature = 1, .seed = 8};
    kvasir_options o = on_device();
    kvasir_model *m = open_model(MODEL, &o);
    if (!m) return tap_done();
    check_choices(m, "full", NULL, "greedy");
    check_choices(m, "full", &plain, "temperature 1");
    check_choices(m, "quest:budget=16:page=4:skip=0", &warm, "top-p");
    check_together(m);
    check_changes(m);
    check_copies(m);
    kvasir_model_free(m);
    is_int((long long)shim_held(), 0, "all device memory was given back");
    check_not_finite();
    return tap_done();
}
