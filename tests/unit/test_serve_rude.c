/* SPDX-License-Identifier: MIT */
/* The server and clients that are slow, rude or gone. */
#include "config.h"

#include <sys/resource.h>

#include "kernels/base/clock.h"
#include "tests/unit/serve_util.h"

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
    /* More of them: test_api. */
    static const char *const bodies[] = {"{\"prompt\":\"\xff\xfe\"}", "{\"prompt\":\"\\ud800\"}", "7", "",
                                         "{\"prompt\":[1,999999]}",   "{\"prompt\":[]}"};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        char *said = post("/v1/completions", bodies[i]);
        ok(said && strstr(said, "HTTP/1.1 400") && strstr(said, "{\"error\":{\"message\""), "body %zu is refused", i);
        free(said);
    }
    char deep[2048];
    memset(deep, '[', 2000);
    memcpy(deep, "{\"prompt\":", 10);
    deep[2000] = 0;
    char *reply = post("/v1/completions", deep);
    ok(reply && strstr(reply, "HTTP/1.1 400"), "2,000 lists in each other");
    free(reply);
    static const char *const outside[] = {
        "/../../etc/passwd", "/v1/models/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/v1/chat/%00", "//x",
        "/lens/../x"};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        reply = get(outside[i]);
        ok(reply && strstr(reply, "HTTP/1.1 404") && strstr(reply, "{\"error\":{\"message\""), "404: %s", outside[i]);
        free(reply);
    }
    reply = post("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1000000}");
    ok(reply && strstr(reply, "HTTP/1.1 400") && strstr(reply, "context_length_exceeded"), "beyond the context");
    free(reply);
    reply = post("/v1/completions", "{\"prompt\":\"a\",\"attn\":\"nobody\"}");
    ok(reply && strstr(reply, "HTTP/1.1 400") && strstr(reply, "nobody"), "a strategy that there is not");
    free(reply);
    reply = post("/v1/completions", "{\"prompt\":\"a\",\"model\":\"other\"}");
    ok(reply && strstr(reply, "HTTP/1.1 404") && strstr(reply, "model_not_found"), "a model that there is not");
    free(reply);
}

/* A body without a length that has more than 32 MiB. */
static void check_huge(void)
{
    enum { PART = 1 << 20 };
    char *part = malloc(PART + 1), size[16];
    int fd = call();
    memset(part, ' ', PART);
    part[PART] = 0;
    snprintf(size, sizeof size, "%x\r\n", PART);
    say(fd, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 33; i++) say(fd, size), say(fd, part), say(fd, "\r\n");
    say(fd, "0\r\n\r\n");
    char *reply = hear(fd, NULL);
    ok(reply && strncmp(reply, "HTTP/1.1 413", 12) == 0, "a body of 33 MiB in chunks");
    free(reply);
    free(part);
    close(fd);
}

static int64_t cancelled(void)
{
    return metric("\nkvasir_cancelled_total ");
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

/* Nobody can hold all places by asking nothing, or half of something. */
static void check_idle(void)
{
    enum { MANY = 1000 };
    struct rlimit files = {0};
    int *fds = calloc(MANY, sizeof *fds);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (files.rlim_cur < MANY + 400) { /* of both sides */
        tap_skip("%llu open files at most", (unsigned long long)files.rlim_cur);
        free(fds);
        return;
    }
    for (int i = 0; i < MANY && fds; i++) {
        fds[i] = call();
        if (i % 2) say(fds[i], "POST /v1/comp");
    }
    char *text = ask_text((void *)0);
    ok(text && *text, "a thousand idle connections hold nobody up");
    free(text);
    for (int i = 0; i < MANY && fds; i++) close(fds[i]);
    free(fds);
}

/* An incomplete request, while another one is served. */
static void check_slow(void)
{
    char request[1024];
    int slow = call(), idle = call(), fd = call();
    write_post(request, sizeof request, "/v1/completions",
               "{\"prompt\":\"Alice\",\"max_tokens\":400,\"ignore_eos\":true,\"stream\":true}");
    say(slow, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
    say(fd, request);
    free(hear(fd, "data: "));
    http_tick(v.http, clock_ns());
    say(slow, " ");
    struct pollfd open = {.fd = slow, .events = POLLIN};
    is_int(poll(&open, 1, 50), 0, "a request may take its time");
    http_tick(v.http, clock_ns() + (int64_t)31 * 1000000000);
    char *end = hear(slow, NULL), *other = hear(idle, NULL), *rest = hear(fd, NULL);
    ok(end && !strstr(end, "200 OK"), "but not for ever");
    ok(other && !*other, "nor may a connection be idle");
    ok(rest && strstr(rest, "[DONE]"), "a response continues");
    free(end);
    free(other);
    free(rest);
    close(slow);
    close(idle);
    close(fd);
}

/* A client that reads nothing holds up its own answer alone. */
static void check_unread(void)
{
    char request[1024];
    int fd = call(), small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    write_post(request, sizeof request, "/v1/completions",
               "{\"prompt\":\"Alice\",\"n\":3,\"max_tokens\":400,\"logprobs\":20,\"ignore_eos\":true,"
               "\"stream\":true}");
    say(fd, request);
    for (int i = 0; i < 3; i++) {
        char *text = ask_text((void *)0);
        ok(text && *text, "while another client does not read");
        free(text);
    }
    close(fd);
    ok(wait_for_none(), "which leaves its places");
}

int main(void)
{
    err e = {0};
    if (start(&e)) {
        check_bytes();
        check_pipeline();
        check_broken();
        check_huge();
        check_leaving();
        check_idle();
        check_slow();
        check_unread();
    }
    if (v.sched) sched_stop(v.sched);
    http_stop(v.http);
    stop();
    return tap_done();
}
