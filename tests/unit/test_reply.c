/* SPDX-License-Identifier: MIT */
/* Replies: stop strings, and what is in the cache when a reply ends, which chat builds upon. Ctrl-C:
 * tests/cli/interrupt.t. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands/generate.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"

/* ---- what goes to standard output, which TAP uses too ---- */

static int tap_out = -1;
static FILE *taken;

static void take_stdout(void)
{
    fflush(stdout);
    taken = tmpfile();
    tap_out = dup(STDOUT_FILENO);
    dup2(fileno(taken), STDOUT_FILENO);
}

/* The text since take_stdout; mem_free. */
static char *give_stdout(void)
{
    char *text = NULL;
    size_t n;
    fflush(stdout);
    dup2(tap_out, STDOUT_FILENO);
    close(tap_out);
    rewind(taken);
    file_read_stream(&text, &n, taken, "taken", 1 << 24, NULL);
    fclose(taken);
    return text;
}

/* ---- stop strings ---- */

/* Prints pieces (separated by '|') until a stop string is complete. */
static char *print_pieces(const char *const *stop, int n_stop, const char *pieces, bool *stopped)
{
    text_out t = {.stops = {.stop = stop, .n_stop = n_stop}, .write = reply_write};
    err e = {0};
    take_stdout();
    for (const char *p = pieces; p && !t.stopped;) {
        const char *bar = strchr(p, '|');
        text_out_add(&t, p, bar ? (size_t)(bar - p) : strlen(p), &e);
        p = bar ? bar + 1 : NULL;
    }
    text_out_end(&t, &e);
    *stopped = t.stopped;
    text_out_close(&t);
    return give_stdout();
}

static void check_stops(void)
{
    static const struct {
        const char *pieces, *want;
        bool stops;
        const char *stop[2];
    } cases[] = {
        {"one| two| three", "one two three", false, {NULL, NULL}},
        {"one| two| three", "one ", true, {"two", NULL}},
        {"o|n|e| |t|w|o| more", "one ", true, {"two", NULL}},
        {"a tw|elve", "a twelve", false, {"two", NULL}},
        {"a tw", "a tw", false, {"two", NULL}},
        {"aab", "", true, {"aab", NULL}},
        {"aa|ab", "a", true, {"aab", NULL}},
        {"x\n|\ny", "x", true, {"\n\n", NULL}},
        {"one two", "", true, {"two", "one"}},
        {"ab|c", "a", true, {"abd", "bc"}},
        {"||a||", "a", false, {"b", NULL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool stopped;
        int n = cases[i].stop[1] ? 2 : cases[i].stop[0] ? 1 : 0;
        char *got = print_pieces(cases[i].stop, n, cases[i].pieces, &stopped);
        is_str(got, cases[i].want, "stop case %zu prints what comes before", i);
        ok(stopped == cases[i].stops, "stop case %zu %s", i, cases[i].stops ? "stops" : "goes on");
        mem_free(got);
    }
}

/* ---- how a reply ends ---- */

static cli options(const char *attn)
{
    return (cli){.out.command = "generate",
                 .engine = {.model.dir = tap_path("tests/data/models/llama31-f32-tied"),
                            .device = {.name = "cpu", .threads = 1}},
                 .attn.names = attn,
                 .temp = 1,
                 .top_p = 1,
                 .repeat_penalty = 1,
                 .seed.value = 3,
                 .ignore_eos = true};
}

static token_list prompt(void)
{
    token_list l = {0};
    for (int i = 0; i < 20; i++) token_list_push(&l, (7 * i + 11) % 300, NULL);
    return l;
}

/* Runs a reply whose output nobody sees. */
static status quiet_reply(reply *r, const token_list *ids, err *e)
{
    take_stdout();
    status st = reply_run(r, ids, e);
    mem_free(give_stdout());
    return st;
}

static void check_held(const reply *r, const char *what)
{
    is_int(session_length(r->q.s), r->n_prompt + (long long)r->said.n - 1,
           "%s: all but the reply's last token is in the cache", what);
}

static void check_ends(void)
{
    static const struct {
        int n_new;
        int64_t context;
        long long said;
        const char *what;
    } ends[] = {{9, 100, 9, "n_new"}, {1000, 40, 21, "a full context: one token more than there is room for"}};
    engine g;
    reply r;
    err e = {0};
    token_list ids = prompt();
    cli c = options("full");
    if (!is_ok(engine_open(&g, &c.engine, 1, true, &e), &e, "engine")) return;
    for (int i = 0; i < 2; i++) {
        c.n_new = ends[i].n_new;
        if (!is_ok(reply_create(&r, &c, &g, ends[i].context, &e), &e, "reply")) continue;
        is_ok(quiet_reply(&r, &ids, &e), &e, "it runs");
        is_int((long long)r.said.n, ends[i].said, "%s", ends[i].what);
        check_held(&r, ends[i].what);
        reply_free(&r);
    }
    engine_close(&g);
    token_list_free(&ids);
}

int main(void)
{
    out_hush();
    check_stops();
    check_ends();
    return tap_done();
}
