/* SPDX-License-Identifier: MIT */
/* The server as seen by its clients: whole requests, alone and concurrent. */
#include "config.h"

#include <ctype.h>
#include <math.h>

#include "tests/unit/serve_util.h"

/* ---- answers ---- */

static void check_together(void)
{
    char *alone[N_TEXTS];
    void *both;
    pthread_t t[N_TEXTS];
    for (int i = 0; i < N_TEXTS; i++) alone[i] = ask_text((void *)(intptr_t)i);
    for (int i = 0; i < N_TEXTS; i++) pthread_create(&t[i], NULL, ask_text, (void *)(intptr_t)i);
    for (int i = 0; i < N_TEXTS; i++) {
        pthread_join(t[i], &both);
        ok(alone[i] && *alone[i], "request %d has a text", i);
        is_str(both, alone[i], "request %d: the same text in a batch", i);
        free(both);
        free(alone[i]);
    }
}

static void check_stream(void)
{
    char body[1024], joined[4096] = "", *whole = ask_text((void *)0);
    body_of(body, sizeof body, 0, true);
    char *reply = post("/v1/completions", body);
    for (char *at = reply; at && (at = strstr(at, "data: {"));) {
        char *end = strstr(at, "\n\n");
        json_t *j = json_loadb(at + 6, end ? (size_t)(end - at - 6) : 0, 0, NULL);
        const char *text = json_string_value(json_object_get(json_array_get(json_object_get(j, "choices"), 0), "text"));
        if (text) snprintf(joined + strlen(joined), sizeof joined - strlen(joined), "%s", text);
        json_decref(j);
        at = end;
    }
    is_str(joined, whole, "the pieces of a stream are the text");
    ok(reply && strstr(reply, "data: [DONE]"), "and it ends");
    free(reply);
    free(whole);
}

/* An echoed prompt scores as decode steps what it scores as a prompt. */
static void check_logprobs(void)
{
    static const char *const bodies[] = {
        "{\"prompt\":\"Alice was beginning\",\"max_tokens\":0,\"echo\":true,\"logprobs\":2}",
        "{\"prompt\":\"Alice was beginning\",\"max_tokens\":0,\"echo\":true,\"logprobs\":2,\"decode\":99}"};
    double sum[2] = {0};
    for (int i = 0; i < 2; i++) {
        char *reply = post("/v1/completions", bodies[i]);
        const char *at = reply ? strstr(reply, "\r\n\r\n") : NULL;
        json_t *j = at ? json_loads(at + 4, 0, NULL) : NULL;
        json_t *l = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "logprobs");
        json_t *own = json_object_get(l, "token_logprobs"), *top = json_object_get(l, "top_logprobs");
        ok(json_is_null(json_array_get(own, 0)) && json_array_size(own) > 2, "the first token has no logprob");
        for (size_t k = 1; k < json_array_size(own); k++) {
            const char *name;
            json_t *x;
            double best = -1e9, p = json_number_value(json_array_get(own, k));
            json_object_foreach(json_array_get(top, k), name, x) best =
                json_number_value(x) > best ? json_number_value(x) : best;
            sum[i] += p;
            if (p > best || json_object_size(json_array_get(top, k)) < 2) ok(false, "token %zu is among its best", k);
        }
        json_decref(j);
        free(reply);
    }
    ok(sum[0] < 0 && fabs(sum[0] - sum[1]) < 1e-3 * -sum[0], "decode steps score as the prompt: %g, %g", sum[1],
       sum[0]);
}

/* ---- the page and the lens ---- */

static const char lens_body[] =
    "{\"prompt\":\"Alice was beginning to get very tired of sitting by her sister on the bank\",\"max_tokens\":6,"
    "\"strategies\":[\"quest:budget=16:page=4\",\"streaming:budget=16\"],\"ignore_eos\":true}";

/* The member `name` of a text of JSON, up to its quotation mark. */
static void member_of(char out[64], const char *text, const char *name)
{
    char start[64];
    snprintf(start, sizeof start, "\"%s\":\"", name);
    const char *at = text ? strstr(text, start) : NULL;
    snprintf(out, 64, "%.*s", at ? (int)strcspn(at + strlen(start), "\"") : 0, at ? at + strlen(start) : "");
}

static int times(const char *text, const char *part)
{
    int n = 0;
    for (; text && (text = strstr(text, part)); text += strlen(part)) n++;
    return n;
}

static void *ask_lens(void *arg)
{
    (void)arg;
    return post("/lens", lens_body);
}

static void check_lens(void)
{
    char id[64], path[128], *alone = ask_text((void *)1), *beside, *reply;
    pthread_t t;
    void *lens;
    pthread_create(&t, NULL, ask_lens, NULL);
    beside = ask_text((void *)1);
    pthread_join(t, &lens);
    is_str(beside, alone, "concurrent with a lens: the same text");
    is_int(times(lens, "\"kind\":\"step\""), 12, "a lens has a record a step and strategy");
    ok(lens && strstr(lens, "application/x-ndjson") && times(lens, "\"kind\":\"end\"") == 1, "and an end");
    member_of(id, lens, "id");
    snprintf(path, sizeof path, "/lens/%s/5?s=2", id);
    reply = get(path);
    ok(reply && strstr(reply, "200 OK") && strstr(reply, "\"layers\":[\""), "a step's bitmaps (%s)", path);
    free(reply);
    snprintf(path, sizeof path, "/lens/%s/6", id);
    static const char *const none[] = {"/lens/nothing/0", "/lens/a", "/lens/a/x", NULL};
    for (int i = 0; i < 4; i++) {
        reply = get(none[i] ? none[i] : path);
        ok(reply && strstr(reply, "HTTP/1.1 404"), "no such step: %s", none[i] ? none[i] : "after the last");
        free(reply);
    }
    free(lens);
    free(alone);
    free(beside);
}

static void check_lens_bad(void)
{
    static const char *const bad[] = {"{\"prompt\":\"Alice was\",\"strategies\":[\"nobody\"]}",
                                      "{\"prompt\":[1],\"strategies\":[\"quest\"]}",
                                      "{\"prompt\":\"Alice was\",\"strategies\":[\"quest\"],\"drive\":\"h2o\"}",
                                      "{\"prompt\":\"Alice was\",\"strategies\":[\"quest\"],\"max_tokens\":9999}"};
    char request[1024], *reply;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        reply = post("/lens", bad[i]);
        ok(reply && strstr(reply, "HTTP/1.1 400"), "refused: %s", bad[i]);
        free(reply);
    }
    write_post(request, sizeof request, "/lens",
               "{\"prompt\":\"Alice was\",\"strategies\":[\"quest\"],\"max_tokens\":400,\"ignore_eos\":true}");
    int fd = call();
    say(fd, request);
    free(hear(fd, "\"step\""));
    close(fd);
    ok(wait_for_none(), "a client that leaves its lens frees its place");
}

static void check_page(void)
{
    char *reply = get("/"), *lens = get("/lens");
    ok(reply && strstr(reply, "text/html") && strstr(reply, "Content-Security-Policy: default-src 'none'"), "the page");
    ok(reply && lens && strcmp(strstr(reply, "<!DOCTYPE"), strstr(lens, "<!DOCTYPE")) == 0, "is that of /lens too");
    free(reply);
    free(lens);
}

/* ---- prompts that begin alike ---- */

/* Asks with a strategy and more fields: text and logprobs as one text, and how many tokens were known. */
static char *ask_known(const char *attn, int end, const char *fields, long long *known)
{
    char body[1024];
    snprintf(body, sizeof body,
             "{\"prompt\":\"CHAPTER I. Alice was beginning to get very tired of sitting by her sister on the bank, and "
             "of having "
             "nothing to do: once or twice she had peeped into the book %d\",\"max_tokens\":12,\"temperature\":0,"
             "\"logprobs\":3,\"attn\":\"%s\",\"ignore_eos\":true%s}",
             end, attn, fields);
    char *reply = post("/v1/completions", body), *at = reply ? strstr(reply, "\r\n\r\n") : NULL;
    json_t *j = at ? json_loads(at + 4, 0, NULL) : NULL;
    json_t *usage = json_object_get(json_object_get(j, "usage"), "prompt_tokens_details");
    char *text = json_dumps(json_object_get(j, "choices"), JSON_COMPACT);
    *known = json_integer_value(json_object_get(json_object_get(j, "kvasir"), "prefix_tokens"));
    if (json_integer_value(json_object_get(usage, "cached_tokens")) != *known) ok(false, "both numbers are the same");
    json_decref(j);
    free(reply);
    return text;
}

static void *ask_warm(void *arg)
{
    long long known;
    char *text = ask_known("quest:budget=48:skip=0", (int)(intptr_t)arg, "", &known);
    if (known == 0) ok(false, "prompt %d is known", (int)(intptr_t)arg);
    return text;
}

static void check_known(const char *attn, bool any, bool end)
{
    long long known;
    char *cold = ask_known(attn, 1, ",\"cache_prefix\":false", &known), *again;
    is_int(known, 0, "%s: nothing is known where nothing is to be", attn);
    again = ask_known(attn, 1, "", &known);
    ok(known == 0 && cold && again && strcmp(cold, again) == 0, "%s: nor was anything kept", attn);
    free(again);
    again = ask_known(attn, 1, "", &known);
    ok(end ? known >= 64 && known % U_CHUNK == 0 : known == 0, "%s: once more: %lld tokens are known", attn, known);
    is_str(again, cold, "%s: and the answer is the same, with its logprobs", attn);
    free(again);
    again = ask_known(attn, 1, ",\"cache_salt\":\"x\"", &known);
    ok(known == 0 && again && strcmp(cold, again) == 0, "%s: but not with another salt", attn);
    free(again);
    free(cold);
    cold = ask_known(attn, 2, ",\"cache_prefix\":false", &known);
    again = ask_known(attn, 2, "", &known);
    ok(any ? known >= 64 : true, "%s: a prompt that begins so: %lld tokens", attn, known);
    is_str(again, cold, "%s: and the answer is the same", attn);
    free(again);
    free(cold);
    again = ask_known(attn, 1, ",\"echo\":true", &known);
    is_int(known, 0, "%s: scores of a prompt read nothing", attn);
    free(again);
}

static void check_prefix(void)
{
    char *alone[N_TEXTS];
    pthread_t t[N_TEXTS];
    long long known;
    void *both;
    check_known("full", true, true);
    check_known("quest:budget=48:skip=0", true, true);
    check_known("pariskv:budget=6:sink=4:local=8:u=5:full_thr=0", true, true);
    check_known("actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31", false, true);
    check_known("streaming:budget=16", false, false);
    for (int i = 0; i < N_TEXTS; i++)
        alone[i] = ask_known("quest:budget=48:skip=0", 3 + i, ",\"cache_prefix\":false", &known);
    for (int i = 0; i < N_TEXTS; i++) pthread_create(&t[i], NULL, ask_warm, (void *)(intptr_t)(3 + i));
    for (int i = 0; i < N_TEXTS; i++) {
        pthread_join(t[i], &both);
        is_str(both, alone[i], "the same in a batch, with a cached prefix");
        free(both);
        free(alone[i]);
    }
}

/* ---- drafts ---- */

#define ALICE "Alice was beginning to get very tired. Alice was beginning to get very tired. Alice was"

/* Requests a continuation of ALICE. Returns the sequences as one text, and the whole response in *all (free with
 * json_decref). */
static char *ask(const char *fields, json_t **all)
{
    char body[1024];
    snprintf(body, sizeof body, "{\"prompt\":\"" ALICE "\",\"ignore_eos\":true,\"logprobs\":2,%s}", fields);
    char *reply = post("/v1/completions", body), *at = reply ? strstr(reply, "\r\n\r\n") : NULL;
    json_t *j = at ? json_loads(at + 4, 0, NULL) : NULL;
    char *text = json_dumps(json_object_get(j, "choices"), JSON_COMPACT);
    free(reply);
    if (all) *all = j;
    else json_decref(j);
    return text;
}

static const char *const drafted[] = {
    "\"max_tokens\":40,\"temperature\":0,\"draft\":\"ngram:adapt=off\"",
    "\"max_tokens\":40,\"temperature\":0.8,\"seed\":5,\"draft\":\"fier:budget=24:g=8:skip=0:adapt=off\"",
    "\"max_tokens\":40,\"temperature\":1.1,\"seed\":6,\"repeat_penalty\":1.2,\"draft\":\"ngram:n=3\"",
    "\"max_tokens\":24,\"temperature\":0.9,\"seed\":7,\"n\":3,\"draft\":\"ngram:adapt=off\"",
    "\"max_tokens\":24,\"temperature\":0.9,\"seed\":8,\"n\":2,\"draft\":\"streaming:budget=24:adapt=off\"",
    "\"max_tokens\":24,\"temperature\":0,\"decode\":5,\"echo\":true,\"draft\":\"ngram:adapt=off\"",
    "\"max_tokens\":1,\"temperature\":0,\"draft\":\"ngram:adapt=off\""};
enum { N_DRAFTED = sizeof drafted / sizeof *drafted };

static char *ask_plain(int i)
{
    char fields[256];
    const char *draft = strstr(drafted[i], ",\"draft\"");
    snprintf(fields, sizeof fields, "%.*s", (int)(draft - drafted[i]), drafted[i]);
    return ask(fields, NULL);
}

static void *ask_drafted(void *arg)
{
    return ask(drafted[(intptr_t)arg], NULL);
}

/* A token that was no draft came from a verification, or is the first. */
static void check_draft_counts(json_t *all, int i)
{
    json_t *d = json_object_get(json_object_get(all, "kvasir"), "draft");
    json_int_t proposed = json_integer_value(json_object_get(d, "proposed")),
               accepted = json_integer_value(json_object_get(d, "accepted")),
               steps = json_integer_value(json_object_get(d, "verifications")),
               said = json_integer_value(json_object_get(json_object_get(all, "usage"), "completion_tokens"));
    json_int_t choices = (json_int_t)json_array_size(json_object_get(all, "choices"));
    ok(d && accepted <= proposed && accepted + steps == said - choices && (steps == 0) == (said == choices),
       "draft %d: %lld of %lld drafted tokens, %lld verifications, %lld tokens", i, (long long)accepted,
       (long long)proposed, (long long)steps, (long long)said);
}

static void check_draft(void)
{
    char *alone[N_DRAFTED];
    pthread_t t[N_DRAFTED], beside[N_TEXTS];
    void *text;
    for (int i = 0; i < N_DRAFTED; i++) {
        json_t *all;
        alone[i] = ask_plain(i);
        char *with = ask(drafted[i], &all);
        ok(alone[i] && strstr(alone[i], "text"), "draft %d: there is an answer", i);
        is_str(with, alone[i], "draft %d: the same text and logprobs", i);
        check_draft_counts(all, i);
        json_decref(all);
        free(with);
    }
    for (int i = 0; i < N_TEXTS; i++) pthread_create(&beside[i], NULL, ask_text, (void *)(intptr_t)i);
    for (int i = 0; i < N_DRAFTED; i++) pthread_create(&t[i], NULL, ask_drafted, (void *)(intptr_t)i);
    for (int i = 0; i < N_DRAFTED; i++) {
        pthread_join(t[i], &text);
        is_str(text, alone[i], "draft %d: the same in a batch", i);
        free(text);
        free(alone[i]);
    }
    for (int i = 0; i < N_TEXTS; i++) {
        pthread_join(beside[i], &text);
        char *own = ask_text((void *)(intptr_t)i);
        is_str(text, own, "request %d: the same text in a batch with drafts", i);
        free(own);
        free(text);
    }
}

/* A text ends at a stop that is inside a draft as it does without. */
static void check_draft_stop(void)
{
    char fields[128], *plain = ask(drafted[0], NULL), *text_of[2], stop = 0;
    json_t *j = json_loads(plain, 0, NULL);
    const char *text = json_string_value(json_object_get(json_array_get(j, 0), "text"));
    for (size_t i = 0; text && text[i]; i++)
        if (i >= strlen(text) / 2 && isalnum((unsigned char)text[i]) && !stop) stop = text[i];
    json_decref(j);
    for (int i = 0; i < 2; i++) {
        snprintf(fields, sizeof fields, "\"max_tokens\":40,\"temperature\":0,\"stop\":\"%c\"%s", stop ? stop : 'e',
                 i ? ",\"draft\":\"ngram:adapt=off\"" : "");
        text_of[i] = ask(fields, NULL);
    }
    ok(stop && strstr(text_of[0], "\"finish_reason\":\"stop\""), "'%c' ends a text", stop);
    is_str(text_of[1], text_of[0], "and one with drafts");
    free(plain);
    free(text_of[0]);
    free(text_of[1]);
}

static void check_draft_bad(void)
{
    static const char *const bad[][2] = {{"\"draft\":\"nobody\"", "expected ngram or a strategy"},
                                         {"\"draft\":\"ngram:n=8\"", "expected n=1 to n=7"},
                                         {"\"draft\":7", "expected a string"},
                                         {"\"draft\":\"h2o\"", "cannot draft"},
                                         {"\"draft\":\"fier:kv=f32\"", "verifier's rows"},
                                         {"\"draft\":\"ngram\",\"attn\":\"quest\"", "cannot be verified"},
                                         {"\"draft\":\"ngram\",\"attn\":\"h2o\"", "cannot be verified"},
                                         {"\"draft\":\"ngram\",\"kv\":\"kivi4\"", "cannot be verified"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"prompt\":\"Alice\",%s}", bad[i][0]);
        char *reply = post("/v1/completions", body);
        ok(reply && strstr(reply, "HTTP/1.1 400") && strstr(reply, bad[i][1]) && strstr(reply, "\"param\":\"draft\""),
           "refused: %s", bad[i][0]);
        free(reply);
    }
}

/* ---- choices of one prompt ---- */

/* n choices are n requests with seeds that follow each other, and their prompt is computed once. */
static void check_choices(const char *fields, int n)
{
    static const char computed[] = "kvasir_prompt_tokens_total{source=\"computed\"} ";
    char some[256];
    json_t *all, *one;
    int64_t before = metric(computed);
    snprintf(some, sizeof some, "%s,\"cache_prefix\":false,\"temperature\":1.3,\"seed\":40,\"n\":%d", fields, n);
    free(ask(some, &all));
    int64_t prompt = metric(computed) - before;
    json_t *choices = json_object_get(all, "choices");
    is_int((long long)json_array_size(choices), n, "%s: %d choices", fields, n);
    for (int i = 0; i < n; i++) {
        snprintf(some, sizeof some, "%s,\"cache_prefix\":false,\"temperature\":1.3,\"seed\":%d", fields, 40 + i);
        before = metric(computed);
        free(ask(some, &one));
        is_int(metric(computed) - before, prompt, "%s: the prompt of %d choices was computed once", fields, n);
        json_t *got = json_array_get(choices, (size_t)i), *want = json_array_get(json_object_get(one, "choices"), 0);
        json_object_del(got, "index");
        json_object_del(want, "index");
        ok(want && json_equal(got, want), "%s: choice %d is that of its seed", fields, i);
        json_decref(one);
    }
    json_decref(all);
}

/* A stream that is under way when the server stops. */
static void check_stop(void)
{
    static const char health[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    char request[1024];
    write_post(request, sizeof request, "/v1/completions",
               "{\"prompt\":\"Alice\",\"n\":16,\"max_tokens\":480,\"ignore_eos\":true,\"stream\":true}");
    int fd = call(), kept = call();
    say(kept, health);
    free(hear(kept, "\"ok\""));
    say(fd, request);
    free(hear(fd, "data: "));
    http_quiesce(v.http);
    say(kept, health);
    char *said = hear(kept, "\"draining\"");
    ok(said && strncmp(said, "HTTP/1.1 503", 12) == 0, "a server that is about to stop says so");
    free(said);
    close(kept);
    sched_stop(v.sched);
    char *rest = hear(fd, NULL);
    ok(rest && !strstr(rest, "[DONE]"), "a stream that was cut does not look whole");
    free(rest);
    close(fd);
    http_stop(v.http);
}

int main(void)
{
    err e = {0};
    bool up = start(&e);
    if (up) {
        check_together();
        check_stream();
        check_logprobs();
        check_page();
        check_lens();
        check_lens_bad();
        check_prefix();
        check_draft();
        check_draft_stop();
        check_draft_bad();
        check_choices("\"max_tokens\":12", 6);
        check_choices("\"max_tokens\":12,\"attn\":\"h2o:budget=16\"", 3);
        check_choices("\"max_tokens\":6,\"echo\":true", 3);
        check_choices("\"max_tokens\":6,\"attn\":\"quest:budget=48:skip=0\",\"decode\":4", 3);
        check_choices("\"max_tokens\":1", 3);
        check_stop();
    } else if (v.sched) {
        sched_stop(v.sched);
    }
    stop();
    return tap_done();
}
