/* SPDX-License-Identifier: MIT */
/* Replies: stop strings, and what is in the cache when a reply ends, which chat builds upon. Ctrl-C:
 * also tests/cli/interrupt.t. */
#include "config.h"

#include <pthread.h>
#include <signal.h>
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
    text_out_end(&t, false, &e);
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
        ok(stopped == cases[i].stops, "stop case %zu %s", i, cases[i].stops ? "stops" : "continues");
        mem_free(got);
    }
}

/* ---- how a reply ends ---- */

static reply_options options(const char *attn)
{
    return (reply_options){.run = {.out.command = "generate",
                                   .engine = {.model.dir = tap_path("tests/data/models/llama31-f32-tied"),
                                              .device = {.name = "cpu", .threads = 1}},
                                   .attn.names = attn,
                                   .seed.value = 3},
                           .sampling = {.temp = 1, .top_p = 1, .repeat_penalty = 1},
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
    is_int(session_length(r->q.s), r->n_prompt + (long long)r->new_ids.n - 1,
           "%s: all but the reply's last token is in the cache", what);
}

static void check_ends(void)
{
    static const struct {
        int n_new;
        int64_t context;
        long long new_ids;
        const char *what;
    } ends[] = {{9, 100, 9, "n_new"}, {1000, 40, 21, "a full context: one token more than there is room for"}};
    reply r;
    err e = {0};
    token_list ids = prompt();
    reply_options o = options("full");
    for (int i = 0; i < 2; i++) {
        o.n_new = ends[i].n_new;
        is_ok(reply_find(&r, &o, 0, &e), &e, "a model");
        is_ok(reply_create(&r, ends[i].context, &e), &e, "reply");
        is_ok(quiet_reply(&r, &ids, &e), &e, "it runs");
        is_int((long long)r.new_ids.n, ends[i].new_ids, "%s", ends[i].what);
        check_held(&r, ends[i].what);
        reply_free(&r);
    }
    token_list_free(&ids);
}

/* An error in the middle of a character: it is not written. */
static void check_cut(void)
{
    engine g;
    err e = {0};
    token_list ids = {0};
    reply_options o = options("full");
    if (!is_ok(engine_open(&g, &o.run.engine, 1, true, &e), &e, "engine")) return;
    is_ok(tokenizer_encode(g.tok, "a \xf0\x9f\xa6\x91", 6, 0, &ids, &e), &e, "a character of several tokens");
    for (int cut = 0; cut < 2; cut++) {
        text_out t;
        is_ok(text_out_open(&t, g.tok, NULL, 0, &e), &e, "a text");
        t.write = reply_write;
        take_stdout();
        for (size_t i = 0; i + 1 < ids.n; i++) text_out_token(&t, ids.ids[i], &e);
        text_out_end(&t, cut, &e);
        char *text = give_stdout();
        is_str(text, cut ? "a " : "a \xef\xbf\xbd", "%s", cut ? "left out after an error" : "else replaced");
        mem_free(text);
        text_out_close(&t);
    }
    token_list_free(&ids);
    engine_close(&g);
}

/* Reads a reply that is being printed, and presses Ctrl-C after its first words. */
typedef struct {
    int fd;
    char text[1 << 18];
    size_t n;
} reader;

static void *read_words(void *ctx)
{
    reader *x = ctx;
    bool pressed = false;
    for (ssize_t k; (k = read(x->fd, x->text + x->n, sizeof x->text - 1 - x->n)) > 0;) {
        x->n += (size_t)k;
        if (x->n < 20 || pressed) continue;
        pressed = true;
        kill(getpid(), SIGINT);
    }
    return NULL;
}

/* Runs a reply until Ctrl-C. */
static status interrupted_reply(reply *r, const token_list *ids, reader *x, err *e)
{
    int ends[2];
    pthread_t thread;
    fflush(stdout);
    if (pipe(ends) != 0) return err_set(e, ST_IO, "no pipe");
    tap_out = dup(STDOUT_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[1]);
    *x = (reader){.fd = ends[0]};
    pthread_create(&thread, NULL, read_words, x);
    status st = reply_run(r, ids, e);
    fflush(stdout);
    dup2(tap_out, STDOUT_FILENO); /* the pipe's last writing end goes */
    close(tap_out);
    pthread_join(thread, NULL);
    close(ends[0]);
    return st;
}

/* After Ctrl-C the printed tokens are those of the reply, of which the cache has all but the last. */
static void check_interrupt(const char *draft)
{
    reply r;
    static reader x;
    err e = {0};
    token_list ids = prompt();
    reply_options o = options("full");
    char *want;
    size_t n;
    o.run.engine.draft = draft;
    o.n_new = 100000;
    is_ok(reply_find(&r, &o, 0, &e), &e, "a model");
    if (is_ok(reply_create(&r, o.n_new, &e), &e, "reply")) {
        signal(SIGINT, SIG_DFL);
        cli_catch_interrupt();
        is_ok(interrupted_reply(&r, &ids, &x, &e), &e, "%s: a reply that Ctrl-C ends", draft ? draft : "single steps");
        ok(cli_interrupted() && r.new_ids.n > 0 && r.new_ids.n < 100000, "after some tokens");
        is_ok(tokenizer_decode(r.g.tok, r.new_ids.ids, r.new_ids.n, false, &want, &n, &e), &e, "text of the reply");
        is_str(x.text, want, "the printed text");
        ok(r.q.ids.n == ids.n + r.new_ids.n &&
               memcmp(r.q.ids.ids + ids.n, r.new_ids.ids, r.new_ids.n * sizeof *r.new_ids.ids) == 0,
           "the sequence has the printed tokens");
        check_held(&r, "after Ctrl-C");
        cli_clear_interrupt();
        mem_free(want);
    }
    reply_free(&r);
    token_list_free(&ids);
}

int main(void)
{
    out_hush();
    check_stops();
    check_ends();
    check_cut();
    check_interrupt(NULL);
    check_interrupt("ngram");
    return tap_done();
}
