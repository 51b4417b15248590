/* SPDX-License-Identifier: MIT */
/* The server as its clients meet it: whole requests, broken ones, and clients that leave. */
#include "config.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/http.h"
#include "tests/unit/session_util.h"

enum { REPLY = 1 << 20, N_TEXTS = 5, WAIT_MS = 20000 };

static struct {
    engine_parts p;
    tokenizer *tok;
    scheduler *sched;
    http *http;
    int port;
} v;

/* ---- a client ---- */

static int call(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)v.port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static bool say(int fd, const char *text)
{
    for (size_t n = strlen(text); n > 0;) {
        ssize_t k = send(fd, text, n, MSG_NOSIGNAL);
        if (k <= 0) return false;
        text += k;
        n -= (size_t)k;
    }
    return true;
}

/* All until the server closes, or `until` came. */
static char *hear(int fd, const char *until)
{
    char *text = calloc(1, REPLY);
    size_t n = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (text && n + 1 < REPLY && poll(&p, 1, WAIT_MS) > 0) {
        ssize_t k = recv(fd, text + n, REPLY - n - 1, 0);
        if (k <= 0) break;
        n += (size_t)k;
        text[n] = 0;
        if (until && strstr(text, until)) break;
    }
    return text;
}

static void write_post(char *out, size_t size, const char *path, const char *body)
{
    snprintf(out, size, "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
             path, strlen(body), body);
}

static char *post(const char *path, const char *body)
{
    char request[4096];
    int fd = call();
    write_post(request, sizeof request, path, body);
    say(fd, request);
    char *text = hear(fd, NULL);
    close(fd);
    return text;
}

/* The text of choice 0. */
static char *text_of(const char *reply)
{
    const char *body = reply ? strstr(reply, "\r\n\r\n") : NULL;
    json_t *j = body ? json_loads(body + 4, 0, NULL) : NULL;
    const char *text = json_string_value(json_object_get(json_array_get(json_object_get(j, "choices"), 0), "text"));
    char *copy = text ? strdup(text) : NULL;
    json_decref(j);
    return copy;
}

static bool wait_for_none(void)
{
    for (int ms = 0; ms < WAIT_MS; ms += 5) {
        if (sched_jobs(v.sched) == 0) return true;
        poll(NULL, 0, 5);
    }
    return false;
}

/* ---- answers ---- */

static void body_of(char *out, size_t size, int i, bool stream)
{
    static const char *const attn[N_TEXTS] = {"full", "quest:budget=48:skip=0", "streaming:budget=16", "h2o:budget=16",
                                              "full"};
    snprintf(out, size,
             "{\"prompt\":\"Alice was beginning to get very tired of sitting by her sister on the bank, and of having "
             "nothing to do %d\",\"max_tokens\":24,\"temperature\":%d,\"seed\":%d,\"attn\":\"%s\",\"ignore_eos\":true,"
             "\"stream\":%s}",
             i, i % 2, i, attn[i], stream ? "true" : "false");
}

static void *ask_text(void *arg)
{
    char body[1024];
    body_of(body, sizeof body, (int)(intptr_t)arg, false);
    char *reply = post("/v1/completions", body), *text = text_of(reply);
    free(reply);
    return text;
}

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
        is_str(both, alone[i], "request %d: the same text beside others", i);
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

static char *get(const char *path)
{
    char request[512];
    int fd = call();
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    say(fd, request);
    char *text = hear(fd, NULL);
    close(fd);
    return text;
}

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
    is_str(beside, alone, "beside a lens: the same text");
    is_int(times(lens, "\"kind\":\"step\""), 12, "a lens has a record a step and strategy");
    ok(lens && strstr(lens, "application/x-ndjson") && times(lens, "\"kind\":\"end\"") == 1, "and an end");
    member_of(id, lens, "id");
    snprintf(path, sizeof path, "/lens/%s/5?s=2", id);
    reply = get(path);
    ok(reply && strstr(reply, "200 OK") && strstr(reply, "\"layers\":[\""), "a step's bitmaps (%s)", path);
    free(reply);
    snprintf(path, sizeof path, "/lens/%s/6", id);
    static const char *const none[] = {"/lens/nothing/0", "/lens/", "/lens/a", "/lens/a/x", NULL};
    for (int i = 0; i < 5; i++) {
        reply = get(none[i] ? none[i] : path);
        ok(reply && strstr(reply, "HTTP/1.1 404"), "no such step: %s", none[i] ? none[i] : "behind the last");
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
        is_str(both, alone[i], "the same beside others, in part known");
        free(both);
        free(alone[i]);
    }
}

/* ---- clients that are slow, rude or gone ---- */

static void check_bytes(void)
{
    char request[4096], body[1024], *whole = ask_text((void *)0);
    body_of(body, sizeof body, 0, false);
    write_post(request, sizeof request, "/v1/completions", body);
    int fd = call();
    for (size_t i = 0; request[i]; i++) {
        char one[2] = {request[i], 0};
        say(fd, one);
    }
    char *reply = hear(fd, NULL), *text = text_of(reply);
    is_str(text, whole, "a request that comes byte by byte");
    free(reply);
    free(text);
    free(whole);
    close(fd);
}

static void check_pipeline(void)
{
    int fd = call();
    say(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: "
            "close\r\n\r\n");
    char *reply = hear(fd, NULL), *second = reply ? strstr(reply + 1, "HTTP/1.1 404") : NULL;
    ok(reply && strncmp(reply, "HTTP/1.1 200", 12) == 0 && second, "two requests at once have two answers");
    free(reply);
    close(fd);
}

static void check_status(const char *request, const char *want, const char *name)
{
    int fd = call();
    say(fd, request);
    char *reply = hear(fd, "\r\n\r\n");
    ok(reply && strncmp(reply, want, strlen(want)) == 0, "%s (%.12s)", name, reply ? reply : "");
    free(reply);
    close(fd);
}

static void check_broken(void)
{
    check_status("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
                 "HTTP/1.1 400", "two lengths");
    check_status(
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 400", "a length and chunks");
    check_status("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", "HTTP/1.1 413",
                 "a length beyond the limit");
    check_status("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", "HTTP/1.1 421", "another host");
    check_status("GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n\r\n", "HTTP/1.1 403",
                 "another origin");
    check_status("GET /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 405", "another method");
    check_status("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n{\"a", "HTTP/1.1 400",
                 "half a body of JSON");
    char *reply = post("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1000000}");
    ok(reply && strstr(reply, "HTTP/1.1 400") && strstr(reply, "context_length_exceeded"), "beyond the context");
    free(reply);
    reply = post("/v1/completions", "{\"prompt\":\"a\",\"attn\":\"nobody\"}");
    ok(reply && strstr(reply, "HTTP/1.1 400") && strstr(reply, "nobody"), "a strategy that there is not");
    free(reply);
    reply = post("/v1/completions", "{\"prompt\":\"a\",\"model\":\"other\"}");
    ok(reply && strstr(reply, "HTTP/1.1 404") && strstr(reply, "model_not_found"), "a model that there is not");
    free(reply);
}

static int64_t cancelled(void)
{
    static const char key[] = "{result=\"cancelled\"} ";
    char *text = sched_metrics(v.sched);
    const char *at = text ? strstr(text, key) : NULL;
    int64_t n = at ? strtoll(at + strlen(key), NULL, 10) : -1;
    free(text);
    return n;
}

/* Requests of 7,680 tokens, whose clients stay for a few. */
static void check_leaving(void)
{
    static const char *const when[] = {"while it streams", "while it waits", "half closed", "before anything came"};
    char body[256], request[1024];
    for (int i = 0; i < 4; i++) {
        int64_t before = cancelled();
        snprintf(body, sizeof body,
                 "{\"prompt\":\"Alice\",\"n\":16,\"max_tokens\":480,\"ignore_eos\":true,\"stream\":%s}",
                 i % 2 ? "false" : "true");
        write_post(request, sizeof request, "/v1/completions", body);
        int fd = call();
        say(fd, request);
        if (i == 0) free(hear(fd, "data: "));
        for (int ms = 0; ms < WAIT_MS && sched_jobs(v.sched) == 0; ms++) poll(NULL, 0, 1);
        if (i == 2) shutdown(fd, SHUT_WR);
        else close(fd);
        ok(wait_for_none(), "a client that leaves %s frees its place", when[i]);
        ok(cancelled() == before + 1, "and its request is cancelled (%" PRId64 " before, %" PRId64 " now)", before,
           cancelled());
        if (i == 2) close(fd);
    }
}

static void check_idle(void)
{
    int fds[40];
    for (int i = 0; i < 40; i++) {
        fds[i] = call();
        if (i % 2) say(fds[i], "POST /v1/comp");
    }
    char *text = ask_text((void *)0);
    ok(text && *text, "idle connections hold nobody up");
    free(text);
    for (int i = 0; i < 40; i++) close(fds[i]);
}

/* ---- the server ---- */

static bool start(err *e)
{
    const char *dir = "llama31-f32-tied";
    char rel[96];
    snprintf(rel, sizeof rel, "tests/data/models/%s", dir);
    if (!is_ok(parts_open(&v.p, dir, "cpu", e), e, "the model is opened")) return false;
    if (!is_ok(tokenizer_open(&v.tok, tap_path(rel), e), e, "its tokenizer too")) return false;
    const sched_options s = {.dec = v.p.dec,
                             .decoder = {.chunk = U_CHUNK, .max_batch = U_BATCH, .exact = true},
                             .tok = v.tok,
                             .model = dir,
                             .attn = {.kv = kv_exact(DT_F16)},
                             .strategy = "full",
                             .ctx = 512,
                             .max_new = 64,
                             .batch = 4,
                             .memory = (size_t)1 << 30,
                             .queue = 64,
                             .a_client = 64,
                             .prefix_memory = (size_t)1 << 26,
                             .prefix_least = 64};
    if (!is_ok(sched_start(&v.sched, &s, e), e, "the scheduler is started")) return false;
    const http_options h = {
        .host = "127.0.0.1", .created = 1, .ctx = s.ctx, .model = dir, .tok = v.tok, .sched = v.sched};
    status st = http_start(&v.http, &h, &v.port, e);
    if (st == ST_UNSUPPORTED) tap_skip("%s", e->msg);
    else is_ok(st, e, "it listens");
    return st == ST_OK;
}

/* A stream that is under way when the server stops. */
static void check_stop(void)
{
    char request[1024];
    write_post(request, sizeof request, "/v1/completions",
               "{\"prompt\":\"Alice\",\"max_tokens\":400,\"ignore_eos\":true,\"stream\":true}");
    int fd = call();
    say(fd, request);
    free(hear(fd, "data: "));
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
        check_bytes();
        check_pipeline();
        check_broken();
        check_leaving();
        check_idle();
        check_stop();
    } else if (v.sched) {
        sched_stop(v.sched);
    }
    sched_free(v.sched);
    tokenizer_free(v.tok);
    parts_close(&v.p);
    return tap_done();
}
