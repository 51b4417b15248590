/* SPDX-License-Identifier: MIT */
/* Any bytes as a results file: a refused file stays as it is; an accepted one is continued after its complete lines. */
#include "config.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "eval/results.h"
#include "kernels/base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* True if the file starts with these bytes, or with no_more equals them. */
static bool holds(int fd, const uint8_t *data, size_t n, bool no_more)
{
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = malloc(n + 1);
    bool same = text && pread(fd, text, n, 0) == (ssize_t)n && (n == 0 || memcmp(text, data, n) == 0);
    free(text);
    return same && (!no_more || size == (off_t)n);
}

static size_t whole_lines(const uint8_t *data, size_t n)
{
    while (n && data[n - 1] != '\n') n--;
    return n;
}

/* Opens; *count results were there, and one that is new has been added. */
static status add_one(const results_options *o, size_t *count, err *e)
{
    results *r;
    TRY(results_open(&r, o, e));
    *count = results_count(r);
    status st = results_add(r, json_pack("{s:s, s:I}", "dataset", "fuzz", "index", (json_int_t)*count), e);
    if (st == ST_USAGE) st = ST_OK; /* the file has it */
    results_close(r);
    return st;
}

static void go_on(int fd, const results_options *o, const uint8_t *data, size_t n)
{
    err e = {0};
    size_t count, again;
    if (add_one(o, &count, &e) != ST_OK) {
        if (!e.msg[0] || !holds(fd, data, n, true)) abort();
        return;
    }
    if (!holds(fd, data, whole_lines(data, n), false)) abort();
    if (add_one(o, &again, &e) != ST_OK || again < count) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const identity[] = {"dataset", "index", NULL};
    char path[32];
    int fd = memfd_create("results", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    json_t *config = json_pack("{s:i, s:[i]}", "seed", 42, "runs", 1), *started = json_object();
    results_options o = {path, "eval fuzz", config, started, identity, NULL};
    go_on(fd, &o, data, n);
    json_decref(config);
    json_decref(started);
    close(fd);
    return 0;
}
