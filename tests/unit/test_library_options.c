/* SPDX-License-Identifier: MIT */
/* libkvasir: drafts and the prefix cache change no bits, and a step of many sessions has the bits of lone ones.
 * tests/cli/library.t has structs of an earlier header. */
#include "config.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/impl.h"
#include "tests/unit/library_util.h"
#include "tests/unit/oom.h"
#include "tests/unit/poison.h"

enum { N = 60, STEPS = 40, LIMIT = 160, MANY = 40 };

static int32_t prompt[N];

static kvasir_stats stats_of(const kvasir_session *s)
{
    kvasir_stats t = {.struct_size = sizeof t};
    good(kvasir_session_stats(s, &t, msg, MSG), "stats");
    return t;
}

/* ---- drafts ---- */

/* A step of both, each alone or both sampled alike; how a token is fed alternates. */
static bool step_both(kvasir_session *plain, kvasir_session *drafts, const kvasir_sampling *by, int i)
{
    int32_t a, b;
    bool same = kvasir_session_sample(plain, by, &a, msg, MSG) == KVASIR_OK &&
                kvasir_session_sample(drafts, by, &b, msg, MSG) == KVASIR_OK && a == b;
    same = same && kvasir_decode(&plain, 1, &a, msg, MSG) == KVASIR_OK;
    if (i % 2) same = same && kvasir_decode(&drafts, 1, &a, msg, MSG) == KVASIR_OK;
    else same = same && kvasir_session_feed(drafts, &a, 1, KVASIR_STEPS, NULL, msg, MSG) == KVASIR_OK;
    return same && same_logits(plain, drafts);
}

static bool steps_both(kvasir_session *plain, kvasir_session *drafts, const kvasir_sampling *by, int n)
{
    bool same = same_logits(plain, drafts);
    for (int i = 0; i < n && same; i++) same = step_both(plain, drafts, by, i);
    return same;
}

static void feed_both(kvasir_session *a, kvasir_session *b, const int32_t *ids, size_t n)
{
    good(kvasir_session_feed(a, ids, n, KVASIR_PROMPT, NULL, msg, MSG), "a prompt");
    good(kvasir_session_feed(b, ids, n, KVASIR_PROMPT, NULL, msg, MSG), "the same with drafts");
}

/* How many tokens adaptive drafts have depends on measured times; the counts are certain with adapt=off. */
static void check_drafts(kvasir_model *m, kvasir_model *d, const char *store, const char *spec)
{
    const bool always = strstr(spec, "adapt=off") != NULL;
    const kvasir_sampling warm = {.struct_size = sizeof warm, .temperature = 0.8, .seed = 7},
                          penalty = {.struct_size = sizeof penalty, .repeat_penalty = 1.2};
    const kvasir_sampling *const by[] = {NULL, &warm, &penalty};
    for (int i = 0; i < 3; i++) {
        kvasir_session *a = open_session(m, "full", store), *b = open_session(d, "full", store);
        feed_both(a, b, prompt, N);
        ok(steps_both(a, b, by[i], STEPS), "%s over %s, sampling %d: the bits of single steps", spec, store, i);
        kvasir_stats t = stats_of(b);
        printf("# %lld of %lld drafts were fed\n", (long long)t.draft_accepted, (long long)t.drafted);
        ok(t.draft_accepted <= t.drafted, "no more are fed than drafted");
        if (always) ok(t.drafted > 0, "there are drafts");
        if (always && i == 0) ok(t.draft_accepted > 0, "some of which are right");
        is_int(t.length, N + STEPS, "no more tokens are known than were fed");
        is_int(stats_of(a).drafted, 0, "and none without them");
        kvasir_session_free(a);
        kvasir_session_free(b);
    }
}

/* Feeds the first token that is most likely, so that what follows is verified ahead. */
static void get_ahead(kvasir_session *a, kvasir_session *b)
{
    ok(steps_both(a, b, NULL, 5), "some steps");
}

/* Everything that a session can do while tokens are verified ahead. */
static void check_ahead(kvasir_model *m, kvasir_model *d, const char *path)
{
    kvasir_session *a = open_session(m, "full", NULL), *b = open_session(d, "full", NULL), *c, *e;
    kvasir_session *both[2];
    const int32_t *pos, *ids, ids2[] = {3, 4};
    size_t n;
    feed_both(a, b, prompt, N);
    get_ahead(a, b);
    good(kvasir_session_fork(&c, a, msg, MSG), "a fork");
    good(kvasir_session_fork(&e, b, msg, MSG), "and one of the session with drafts");
    ok(steps_both(c, e, NULL, 6), "which has the same bits");
    ok(steps_both(a, b, NULL, 3), "as the session itself");
    both[0] = b, both[1] = e;
    kvasir_session *const others[] = {a, c};
    ok(kvasir_decode(both, 2, ids2, msg, MSG) == KVASIR_OK && kvasir_decode(others, 2, ids2, msg, MSG) == KVASIR_OK &&
           same_logits(a, b) && same_logits(c, e),
       "a step of two sessions");
    get_ahead(a, b);
    for (int i = 0; i < 4; i++) ok(step_both(a, b, NULL, 1) && step_both(c, e, NULL, 1), "steps that alternate");
    good(kvasir_session_watch(a, 1, msg, MSG), "watch");
    good(kvasir_session_watch(b, 1, msg, MSG), "watch drafts");
    ok(steps_both(a, b, NULL, 2), "watched steps");
    ok(kvasir_session_selection(b, 0, 0, &pos, &n, msg, MSG) == KVASIR_OK && n == (size_t)stats_of(b).length,
       "list what they read");
    kvasir_session_watch(a, 0, msg, MSG);
    kvasir_session_watch(b, 0, msg, MSG);
    get_ahead(a, b);
    feed_both(a, b, prompt, 9);
    ok(steps_both(a, b, NULL, 5), "another prompt");
    good(kvasir_session_save(b, path, msg, MSG), "saved");
    kvasir_session_free(e);
    good(kvasir_session_load(&e, m, path, msg, MSG), "loaded without drafts");
    ok(steps_both(e, b, NULL, 5), "continues with the same bits");
    good(kvasir_session_rewind(b, N + 2, msg, MSG), "rewound");
    good(kvasir_session_rewind(e, N + 2, msg, MSG), "rewound without");
    is_int(stats_of(b).length, N + 2, "its length");
    feed_both(e, b, prompt + 20, 1);
    ok(steps_both(e, b, NULL, 5), "and so does what was rewound");
    good(kvasir_session_tokens(b, &ids, &n, msg, MSG), "tokens");
    ok(steps_both(e, b, NULL, LIMIT - (int)n), "to the limit");
    refused(kvasir_decode(&b, 1, prompt, msg, MSG), KVASIR_UNSUPPORTED, "full", "a step beyond it");
    kvasir_session_free(a);
    kvasir_session_free(b);
    kvasir_session_free(c);
    kvasir_session_free(e);
}

static void check_draft_options(void)
{
    static const char *const specs[] = {"ngram:adapt=off", "quest:budget=32:page=4:adapt=off",
                                        "ngram:n=3,fier:budget=24:n=5:adapt=off", "ngram,quest:budget=32:page=4"};
    const int n_specs = sizeof specs / sizeof *specs;
    char path[] = "/tmp/kvasir-options-XXXXXX";
    kvasir_options o = small_options(LIMIT);
    kvasir_model *m = open_model(MODEL, &o), *d;
    int fd = mkstemp(path);
    if (fd < 0 || !m) return;
    close(fd);
    for (int i = 0; i < n_specs; i++) {
        o.draft = specs[i];
        d = open_model(MODEL, &o);
        check_drafts(m, d, "f16", specs[i]);
        check_drafts(m, d, "q8", specs[i]);
        check_ahead(m, d, path);
        kvasir_session *s;
        refused(kvasir_session_create(&s, d, "h2o:budget=16", NULL, 0, msg, MSG), KVASIR_UNSUPPORTED,
                "draft cannot be verified", "an evictor");
        refused(kvasir_session_create(&s, d, "full", "kivi2", 0, msg, MSG), KVASIR_UNSUPPORTED,
                "is quantized as tokens arrive", "codes");
        kvasir_model_free(d);
    }
    unlink(path);
    kvasir_model_free(m);
    o.draft = "guess";
    refused(kvasir_model_load(&m, model_dir(MODEL), &o, msg, MSG), KVASIR_USAGE,
            "draft: 'guess', expected ngram or a strategy", "no such draft");
    o.draft = "ngram:n=9";
    refused(kvasir_model_load(&m, model_dir(MODEL), &o, msg, MSG), KVASIR_USAGE, "n=1 to n=7", "too many drafts");
    o.draft = "quest";
    o.prefix_ram = 1 << 20;
    refused(kvasir_model_load(&m, model_dir(MODEL), &o, msg, MSG), KVASIR_UNSUPPORTED,
            "draft: 'quest': strategies cannot draft with a prefix cache", "a strategy's drafts and the cache");
}

/* A step that fails is forgotten with what it verified. */
static void check_not_finite(void)
{
    const int32_t bad = 300, next = 4;
    kvasir_options o = small_options(LIMIT);
    o.draft = "ngram";
    kvasir_model *m = NULL;
    good(kvasir_model_load(&m, model_dir(POISON_MODEL), &o, msg, MSG), POISON_MODEL);
    if (!m) return;
    poison(m->m, POISON_VALUES, 1, 192);
    kvasir_session *s = open_session(m, "full", "f16"), *t = open_session(m, "full", "f16");
    feed_both(s, t, (const int32_t[]){1, 2, 3, 1, 2, 3}, 6);
    for (int i = 0; i < 2; i++) {
        refused(kvasir_decode(&s, 1, &bad, msg, MSG), KVASIR_FORMAT, "values of layer 1 exceed 65504", "a bad token");
        is_int(stats_of(s).length, 6, "which is taken back");
    }
    ok(same_logits(s, t), "the logits before it stay");
    ok(kvasir_decode(&s, 1, &next, msg, MSG) == KVASIR_OK && kvasir_decode(&t, 1, &next, msg, MSG) == KVASIR_OK &&
           same_logits(s, t),
       "and the session continues");
    kvasir_session_free(s);
    kvasir_session_free(t);
    kvasir_model_free(m);
}

/* ---- the prefix cache ---- */

typedef struct {
    int64_t computed; /* tokens of the last prompt */
    int64_t last;
    int calls;
    char warning[MSG];
} seen;

static int32_t on_progress(void *arg, int64_t done, int64_t total)
{
    seen *x = arg;
    (void)total;
    if (x->calls++ == 0) x->computed = done;
    x->last = done;
    return 1;
}

static void on_log(void *arg, int32_t level, const char *line)
{
    if (level == KVASIR_WARNING) snprintf(((seen *)arg)->warning, MSG, "%s", line);
}

/* Feeds a prompt of which `known` tokens are in the cache; its bits are those of `want`, which has fed it too. */
static void check_prompt(kvasir_model *m, const char *strategy, int64_t known, kvasir_session *want, seen *x,
                         const char *name)
{
    kvasir_session *s = open_session(m, strategy, NULL), *t;
    int64_t first = known / U_CHUNK * U_CHUNK + U_CHUNK;
    x->calls = 0;
    good(kvasir_session_feed(s, prompt, N, KVASIR_PROMPT, NULL, msg, MSG), name);
    is_int(stats_of(s).prefix_tokens, known, "%s, %s: tokens from the cache", strategy, name);
    is_int(x->computed, first < N ? first : N, "the others are computed");
    is_int(x->last, N, "up to the end");
    good(kvasir_session_fork(&t, want, msg, MSG), "the session without a cache");
    ok(steps_both(t, s, NULL, 8), "%s: the same bits", strategy);
    good(kvasir_session_rewind(s, 0, msg, MSG), "emptied");
    x->calls = 0;
    kvasir_session_free(t);
    kvasir_session_free(s);
}

static kvasir_session *without_cache(kvasir_model *m, const char *strategy)
{
    kvasir_session *s = open_session(m, strategy, NULL);
    good(kvasir_session_feed(s, prompt, N, KVASIR_PROMPT, NULL, msg, MSG), "a prompt without a cache");
    return s;
}

/* Known tokens are a multiple of the chunk, and at least one is computed. */
enum { KNOWN = (N - 1) / U_CHUNK * U_CHUNK };

static void check_memory(kvasir_model *m)
{
    static const char *const strategies[] = {"full", "quest:budget=16:page=4:skip=0", "h2o:budget=24"};
    static kvasir_score a[N], b[N];
    seen x = {0};
    kvasir_options o = small_options(LIMIT);
    o.prefix_ram = 64 << 20;
    o.batch = MANY; /* more than a chunk */
    o.prefix_min = U_CHUNK;
    o.progress = on_progress;
    o.arg = &x;
    kvasir_model *c = open_model(MODEL, &o);
    for (int i = 0; i < 3; i++) {
        kvasir_session *want = without_cache(m, strategies[i]);
        check_prompt(c, strategies[i], 0, want, &x, "a new prompt");
        check_prompt(c, strategies[i], i < 2 ? KNOWN : 0, want, &x, "the same again");
        kvasir_session_free(want);
    }
    kvasir_session *s = open_session(c, "full", NULL), *t = open_session(m, "full", NULL);
    good(kvasir_session_feed(s, prompt, N, KVASIR_PROMPT, a, msg, MSG), "scores");
    good(kvasir_session_feed(t, prompt, N, KVASIR_PROMPT, b, msg, MSG), "scores without a cache");
    is_int(stats_of(s).prefix_tokens, 0, "need the whole prompt");
    ok(memcmp(a + 1, b + 1, (N - 1) * sizeof *a) == 0, "and are the same");
    good(kvasir_session_rewind(s, 0, msg, MSG), "emptied");
    good(kvasir_session_feed(s, prompt, 40, KVASIR_PROMPT, NULL, msg, MSG), "the begin of a prompt");
    is_int(stats_of(s).prefix_tokens, 32, "comes from the cache");
    good(kvasir_session_feed(s, prompt, N, KVASIR_PROMPT, NULL, msg, MSG), "a second prompt");
    is_int(stats_of(s).prefix_tokens, 32, "does not");
    kvasir_session_free(s);
    good(kvasir_session_create(&s, c, "full", NULL, LIMIT - 1, msg, MSG), "another limit");
    good(kvasir_session_feed(s, prompt, N, KVASIR_PROMPT, NULL, msg, MSG), "the same prompt");
    is_int(stats_of(s).prefix_tokens, 0, "is another one there");
    kvasir_session_free(s);
    kvasir_session_free(t);
    kvasir_model_free(c);
}

/* Writes six bytes into the rows of every file of a folder; returns the number of files. */
static int damage(const char *dir)
{
    char command[MSG];
    snprintf(
        command, sizeof command,
        "n=0; for f in %s/*; do printf damage | dd of=\"$f\" bs=1 seek=65636 conv=notrunc status=none; n=$((n+1)); "
        "done; exit $n",
        dir);
    int rc = system(command);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

static void check_folder(kvasir_model *m)
{
    char dir[] = "/tmp/kvasir-options-XXXXXX", command[MSG];
    seen x = {0};
    kvasir_options o = small_options(LIMIT);
    kvasir_session *want = without_cache(m, "full");
    kvasir_model *c;
    if (!mkdtemp(dir)) return;
    o.prefix_disk = dir;
    o.prefix_min = U_CHUNK;
    o.progress = on_progress;
    o.log = on_log;
    o.arg = &x;
    for (int i = 0; i < 4; i++) {
        c = open_model(MODEL, &o);
        if (i < 3) check_prompt(c, "full", i ? KNOWN : 0, want, &x, i ? "after a restart" : "at first");
        else check_prompt(c, "full", 0, want, &x, "from a damaged file");
        kvasir_model_free(c);
        if (i == 1) o.draft = "ngram";
        if (i < 2) is_str(x.warning, "", "nothing to warn of");
        if (i == 2) is_int(damage(dir), 1, "one file, which is damaged");
    }
    ok(strncmp(x.warning, "prefix_disk: ", 13) == 0 && strstr(x.warning, "damaged"), "a warning says so");
    printf("# %s\n", x.warning);
    ok(chmod(dir, 0755) == 0, "a folder that others can read");
    refused(kvasir_model_load(&c, model_dir(MODEL), &o, msg, MSG), KVASIR_USAGE,
            "prefix_disk: ", "is none for prompts");
    ok(strstr(msg, "expected 0700"), "and the message says why");
    o.prefix_disk = "/nowhere/at/all";
    refused(kvasir_model_load(&c, model_dir(MODEL), &o, msg, MSG), KVASIR_IO, "prefix_disk: /nowhere/at/all",
            "a folder that cannot be made");
    o.prefix_disk = NULL;
    o.prefix_min = -1;
    refused(kvasir_model_load(&c, model_dir(MODEL), &o, msg, MSG), KVASIR_USAGE, "prefix_min -1", "a negative number");
    snprintf(command, sizeof command, "rm -r %s", dir);
    ok(system(command) == 0, "cleaned up");
    kvasir_session_free(want);
}

/* ---- more sessions than a product of the CPU takes with the bits of one ---- */

static void feed_many(kvasir_session *s, int i)
{
    kvasir_session_feed(s, prompt + i / 4, (size_t)(N - 12), KVASIR_PROMPT, NULL, msg, MSG);
}

static bool same_selection(const kvasir_session *a, const kvasir_session *b)
{
    const int32_t *x, *y;
    size_t n, k;
    return kvasir_session_selection(a, 1, 0, &x, &n, msg, MSG) == KVASIR_OK &&
           kvasir_session_selection(b, 1, 0, &y, &k, msg, MSG) == KVASIR_OK && n == k &&
           memcmp(x, y, n * sizeof *x) == 0;
}

static void check_many(const char *gemm)
{
    static kvasir_session *s[MANY], *alone[MANY];
    int32_t ids[MANY];
    kvasir_options o = small_options(LIMIT);
    bool same = true, read = true;
    o.gemm = gemm;
    o.batch = MANY;
    kvasir_model *m = open_model(MODEL, &o);
    for (int i = 0; i < MANY; i++) {
        const char *strategy = i % 2 ? "quest:budget=16:page=4:skip=0" : "full";
        same &= kvasir_session_create(&s[i], m, strategy, NULL, 0, msg, MSG) == KVASIR_OK &&
                kvasir_session_create(&alone[i], m, strategy, NULL, 0, msg, MSG) == KVASIR_OK;
        feed_many(s[i], i);
        feed_many(alone[i], i);
        if (i % 3 == 0) kvasir_session_watch(s[i], 1, msg, MSG);
        if (i % 3 == 0) kvasir_session_watch(alone[i], 1, msg, MSG);
    }
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < MANY; i++) ids[i] = some_id(3 * i + k);
        same &= kvasir_decode(s, MANY, ids, msg, MSG) == KVASIR_OK;
        for (int i = 0; i < MANY; i++) same &= kvasir_decode(&alone[i], 1, &ids[i], msg, MSG) == KVASIR_OK;
        for (int i = 0; i < MANY; i++) same &= same_logits(s[i], alone[i]);
        for (int i = 0; i < MANY; i += 3) read &= same_selection(s[i], alone[i]);
    }
    kvasir_session *twice[] = {s[0], s[0]};
    refused(kvasir_decode(twice, 2, ids, msg, MSG), KVASIR_USAGE, "same session", "a session twice in a step");
    ok(same, "%s: %d sessions of one step, each with the bits that it has alone", gemm, MANY);
    ok(read, "%s: and what it reads alone", gemm);
    for (int i = 0; i < MANY; i++) {
        kvasir_session_free(s[i]);
        kvasir_session_free(alone[i]);
    }
    kvasir_model_free(m);
}

/* ---- memory ---- */

static status try_options(const kvasir_options *o, err *e)
{
    kvasir_model *m = NULL;
    kvasir_session *s = NULL;
    int32_t id;
    kvasir_status st = kvasir_model_load(&m, model_dir(MODEL), o, e->msg, sizeof e->msg);
    if (st == KVASIR_OK) st = kvasir_session_create(&s, m, "full", NULL, 0, e->msg, sizeof e->msg);
    if (st == KVASIR_OK) st = kvasir_session_feed(s, prompt, N, KVASIR_PROMPT, NULL, e->msg, sizeof e->msg);
    if (st == KVASIR_OK) st = kvasir_session_sample(s, NULL, &id, e->msg, sizeof e->msg);
    if (st == KVASIR_OK) st = kvasir_decode(&s, 1, &id, e->msg, sizeof e->msg);
    kvasir_session_free(s);
    kvasir_model_free(m);
    e->code = (status)st;
    return (status)st;
}

int main(void)
{
    kvasir_options o = small_options(LIMIT);
    oom_run run = {0};
    for (int i = 0; i < N; i++) prompt[i] = some_id(i % 13);
    check_draft_options();
    check_not_finite();
    kvasir_model *m = open_model(MODEL, &o);
    check_memory(m);
    check_folder(m);
    kvasir_model_free(m);
    check_many("builtin");
    check_many("auto");
    o.draft = "ngram";
    while (oom_next(&run)) oom_saw(&run, try_options(&o, &run.e), NULL);
    oom_ok(&run, 30, "a model with drafts");
    return tap_done();
}
