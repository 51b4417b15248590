/* SPDX-License-Identifier: MIT */
/* A server with a small model, and clients with raw sockets. */
#ifndef TESTS_UNIT_SERVE_UTIL_H
#define TESTS_UNIT_SERVE_UTIL_H

#include <arpa/inet.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/http.h"
#include "tests/unit/devices.h"
#include "tests/unit/session_util.h"

enum { REPLY = 1 << 20, N_TEXTS = 5, WAIT_MS = 20000 };

static struct {
    engine_parts p;
    tokenizer *tok;
    const char *tools; /* format of calls, which the server describes; NULL: none */
    int64_t ctx;       /* tokens of a sequence; 0: 512 */
    int64_t ping_ns;
    call_support calls;
    scheduler *sched;
    http *http;
    int port;
} v;

/* ---- a client ---- */

static inline int call(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)v.port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static inline bool say(int fd, const char *text)
{
    for (size_t n = strlen(text); n > 0;) {
        ssize_t k = send(fd, text, n, MSG_NOSIGNAL);
        if (k <= 0) return false;
        text += k;
        n -= (size_t)k;
    }
    return true;
}

/* Reads until the server closes or `until` arrives. */
static inline char *hear(int fd, const char *until)
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

static inline void write_post(char *out, size_t size, const char *path, const char *body)
{
    snprintf(out, size, "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
             path, strlen(body), body);
}

static inline char *post(const char *path, const char *body)
{
    char request[4096];
    int fd = call();
    write_post(request, sizeof request, path, body);
    say(fd, request);
    char *text = hear(fd, NULL);
    close(fd);
    return text;
}

/* Returns the text of choice 0. */
static inline char *text_of(const char *reply)
{
    const char *body = reply ? strstr(reply, "\r\n\r\n") : NULL;
    json_t *j = body ? json_loads(body + 4, 0, NULL) : NULL;
    const char *text = json_string_value(json_object_get(json_array_get(json_object_get(j, "choices"), 0), "text"));
    char *copy = text ? strdup(text) : NULL;
    json_decref(j);
    return copy;
}

static inline bool wait_for_none(void)
{
    for (int ms = 0; ms < WAIT_MS; ms += 5) {
        if (sched_jobs(v.sched) == 0) return true;
        poll(NULL, 0, 5);
    }
    return false;
}

static inline void body_of(char *out, size_t size, int i, bool stream)
{
    static const char *const attn[N_TEXTS] = {"full", "quest:budget=48:skip=0", "streaming:budget=16", "h2o:budget=16",
                                              "full"};
    snprintf(out, size,
             "{\"prompt\":\"Alice was beginning to get very tired of sitting by her sister on the bank, and of having "
             "nothing to do %d\",\"max_tokens\":24,\"temperature\":%d,\"seed\":%d,\"attn\":\"%s\",\"ignore_eos\":true,"
             "\"stream\":%s}",
             i, i % 2, i, attn[i], stream ? "true" : "false");
}

static inline void *ask_text(void *arg)
{
    char body[1024];
    body_of(body, sizeof body, (int)(intptr_t)arg, false);
    char *reply = post("/v1/completions", body), *text = text_of(reply);
    free(reply);
    return text;
}

static inline char *get(const char *path)
{
    char request[512];
    int fd = call();
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    say(fd, request);
    char *text = hear(fd, NULL);
    close(fd);
    return text;
}

static inline int64_t metric(const char *key)
{
    char *text = get("/metrics");
    const char *at = text ? strstr(text, key) : NULL;
    int64_t n = at ? strtoll(at + strlen(key), NULL, 10) : -1;
    free(text);
    return n;
}

/* ---- the server ---- */

static inline bool start(err *e)
{
    const char *dir = "llama31-f32-tied";
    char rel[96];
    snprintf(rel, sizeof rel, "tests/data/models/%s", dir);
    const backend_options device = {.device = METHOD_DEVICES[N_METHOD_DEVICES - 1], .n_threads = 1};
    const decoder_options rows = {.chunk = U_CHUNK, .max_batch = U_BATCH, .verify = SESSION_VERIFY_ROWS};
    if (!is_ok(parts_open_with(&v.p, dir, device, rows, e), e, "the model is opened")) return false;
    if (!is_ok(tokenizer_open(&v.tok, tap_path(rel), e), e, "its tokenizer too")) return false;
    if (v.tools && !is_ok(call_support_find(&v.calls, v.tok, v.tools, e), e, "calls are described")) return false;
    const call_support *calls = v.tools ? &v.calls : NULL;
    const sched_options s = {
        .calls = calls,
        .dec = v.p.dec,
        .decoder = {.chunk = U_CHUNK, .max_batch = U_BATCH, .verify = SESSION_VERIFY_ROWS, .exact = true},
        .tok = v.tok,
        .model = dir,
        .attn = {.kv = kv_plain(DT_F16)},
        .strategy = "full",
        .ctx = v.ctx ? v.ctx : 512,
        .max_new = 64,
        .batch = 4,
        .ping_ns = v.ping_ns,
        .memory = (size_t)1 << 30,
        .prefill_share = 0.5,
        .queue = 64,
        .a_client = 64,
        .prefix = {.memory = (size_t)1 << 26, .least = U_CHUNK}};
    if (!is_ok(sched_start(&v.sched, &s, e), e, "the scheduler is started")) return false;
    const http_options h = {
        .host = "127.0.0.1", .rules = {.sampling = api_sampling(), .calls = calls}, .created = 1, .sched = v.sched};
    status st = http_start(&v.http, &h, &v.port, e);
    if (st == ST_UNSUPPORTED) tap_skip("%s", e->msg);
    else is_ok(st, e, "it listens");
    return st == ST_OK;
}

static inline void stop(void)
{
    sched_free(v.sched);
    tokenizer_free(v.tok);
    parts_close(&v.p);
}

#endif
