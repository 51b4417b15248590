/* SPDX-License-Identifier: MIT */
/* Results to stdout, reports to files, progress to stderr, Ctrl-C. */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"

/* ---- stdout ---- */

static status out_failed(err *e)
{
    return err_set(e, ST_IO, "standard output: %s", strerror(errno));
}

status out_write(const char *text, size_t n, err *e)
{
    return n == 0 || fwrite(text, 1, n, stdout) == n ? ST_OK : out_failed(e);
}

status out_printf(err *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vprintf(fmt, ap);
    va_end(ap);
    return n >= 0 ? ST_OK : out_failed(e);
}

status out_flush(err *e)
{
    return fflush(stdout) == 0 && !ferror(stdout) ? ST_OK : out_failed(e);
}

/* ---- reports ---- */

json_t *tier_json(const tier_counts *c, int64_t steps)
{
    double n = steps > 0 ? (double)steps : 1;
    return json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "file_bytes", (json_int_t)c->in_file,
                     "memory_bytes", (json_int_t)c->here, "memory_bytes_peak", (json_int_t)c->most_here, "read_bytes",
                     (double)c->read / n, "written_bytes", (double)c->written / n, "rows", (double)c->rows / n,
                     "blocks", (double)c->pages / n, "blocks_read", (double)c->missed / n, "blocks_per_row",
                     tier_per_row(c), "hit_rate", tier_hits(c), "stall_ms", (double)c->stall_ns / 1e6 / n);
}

json_t *host_json(const host_counts *c, int64_t steps)
{
    double n = (double)(steps > 0 ? steps : 1);
    return json_pack("{s:I, s:f, s:f, s:f}", "host_bytes", (json_int_t)c->held, "read_bytes", c->read / n,
                     "written_bytes", c->written / n, "hit_rate", host_hits(c));
}

json_t *report_sizes(const int64_t *x, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(a, json_integer(x[i]));
    return a;
}

/* A path may be anything but UTF-8, which JSON must be: then it is written as an err shows it. */
static json_t *name_json(const char *path)
{
    char *real = realpath(path, NULL); /* the name of "." or "model/" */
    const char *at = real ? real : path, *slash = strrchr(at, '/'), *name = slash && slash[1] ? slash + 1 : at;
    err shown = {0};
    err_set(&shown, ST_OK, "%s", name);
    json_t *exact = json_string(name);
    free(real);
    return exact ? exact : json_string(shown.msg);
}

json_t *report_model(const char *path)
{
    static const cli none;
    const char *own;
    if (cli_model_dir(&none, &own, NULL) == ST_OK && strcmp(own, path) == 0) return json_string("built-in");
    return name_json(path);
}

static json_t *report_object(const cli *c, const engine *g, json_t *options, json_t *results, json_t *extra)
{
    const char *dir = c->shape ? c->shape : "";
    if (!g->m && !c->shape) cli_model_dir(c, &dir, NULL); /* a command that needs the tokenizer alone */
    json_t *named = c->tensors ? name_json(c->tensors) : report_model(g->m ? g->m->name : dir);
    json_t *o = json_pack("{s:s, s:s, s:o, s:s?, s:s?, s:o, s:o, s:o}", "command", c->command, "version",
                          PACKAGE_VERSION, "model", named, "weights", g->m ? dtype_name(g->m->type) : NULL, "device",
                          g->be ? g->be->name : NULL, "threads", g->be ? json_integer(g->be->n_threads) : json_null(),
                          "options", options ? options : json_object(), "results", results);
    if (o && g->be && backend_ranks(g->be) > 1) json_object_set_new(o, "ranks", json_integer(backend_ranks(g->be)));
    if (o && extra) json_object_update(o, extra);
    json_decref(extra);
    return o;
}

status out_check_regular(const char *option, const char *path, err *e)
{
    struct stat s;
    return stat(path, &s) == 0 && !S_ISREG(s.st_mode) ? err_set(e, ST_IO, "%s %s: not a regular file", option, path)
                                                      : ST_OK;
}

status out_file_open(out_file *o, const char *option, const char *path, err *e)
{
    *o = (out_file){.option = option, .path = path};
    TRY(out_check_regular(option, path, e));
    if (asprintf(&o->tmp, "%s.part", path) < 0) {
        o->tmp = NULL;
        return err_set(e, ST_NOMEM, "%s: out of memory", option);
    }
    o->f = fopen(o->tmp, "w");
    if (o->f) return ST_OK;
    err_set(e, ST_IO, "%s %s: %s", option, o->tmp, strerror(errno));
    free(o->tmp);
    return ST_IO;
}

status out_file_close(out_file *o, bool good, err *e)
{
    good = fclose(o->f) == 0 && good;
    status st = ST_OK;
    if (!good || rename(o->tmp, o->path) != 0) {
        st = err_set(e, ST_IO, "%s %s: %s", o->option, o->path, strerror(errno));
        unlink(o->tmp);
    }
    free(o->tmp);
    return st;
}

static status check_writable(const char *option, const char *path, err *e)
{
    out_file o;
    if (!path) return ST_OK;
    TRY(out_file_open(&o, option, path, e));
    fclose(o.f);
    unlink(o.tmp);
    free(o.tmp);
    return ST_OK;
}

static status check_apart(const char *a_option, const char *a, const char *b_option, const char *b, err *e)
{
    struct stat x, y;
    if (!a || !b) return ST_OK;
    bool same =
        strcmp(a, b) == 0 || (stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino);
    return same ? err_set(e, ST_USAGE, "%s %s: is the file of %s too", a_option, a, b_option) : ST_OK;
}

status report_check(const cli *c, err *e)
{
    TRY(check_apart("--json", c->json, "-o", c->output, e));
    TRY(check_apart("--csv", c->csv, "-o", c->output, e));
    TRY(check_apart("--csv", c->csv, "--json", c->json, e));
    TRY(check_writable("--json", c->json, e));
    return check_writable("--csv", c->csv, e);
}

status report_write(const cli *c, const engine *g, json_t *options, json_t *results, json_t *extra, err *e)
{
    json_t *o = report_object(c, g, options, results, extra);
    out_file out;
    status st = o ? ST_OK : err_set(e, ST_NOMEM, "--json: out of memory");
    if (st == ST_OK) st = out_file_open(&out, "--json", c->json, e);
    if (st == ST_OK) {
        const size_t flags = JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9);
        bool good = json_dumpf(o, out.f, flags) == 0 && fputc('\n', out.f) != EOF;
        st = out_file_close(&out, good, e);
    }
    json_decref(o);
    return st;
}

/* ---- progress ---- */

enum { PROGRESS_EVERY_MS = 100, LINES_EVERY_MS = 30000 };

struct progress {
    const char *what;
    int64_t start, last;
    bool bar, drawn;
};

progress *progress_start(const cli *c, const char *what)
{
    progress *p;
    if (c->quiet || MEM_NEW(&p, 1, NULL) != ST_OK) return NULL;
    *p = (progress){.what = what, .start = clock_ns(), .last = clock_ns(), .bar = isatty(STDERR_FILENO)};
    return p;
}

/* Nothing is drawn for what ends soon: the first line comes when the first interval has passed. */
void progress_set(progress *p, int64_t done, int64_t total)
{
    if (!p || total <= 0) return;
    int64_t now = clock_ns(), since = (now - p->last) / 1000000;
    if (since < (p->bar ? PROGRESS_EVERY_MS : LINES_EVERY_MS)) return;
    p->last = now;
    double spent = (double)(now - p->start) / 1e9, share = (double)done / (double)total;
    double left = done > 0 ? spent / share - spent : 0;
    if (!p->bar) {
        fprintf(stderr, "%s: %lld of %lld, about %.0f s left\n", p->what, (long long)done, (long long)total, left);
        return;
    }
    char bar[31];
    for (int i = 0; i < 30; i++) bar[i] = share * 30 > i ? '#' : '.';
    bar[30] = 0;
    fprintf(stderr, "\r%s [%s] %lld/%lld, %.0f s left \033[K", p->what, bar, (long long)done, (long long)total, left);
    p->drawn = true;
}

void progress_end(progress *p)
{
    if (p && p->drawn) fprintf(stderr, "\r\033[K");
    mem_free(p);
}

/* ---- Ctrl-C ---- */

static volatile sig_atomic_t interrupted;
static int wake = -1; /* an eventfd: readable once Ctrl-C came, so that a waiting poll ends */

static void on_interrupt(int sig)
{
    const uint64_t one = 1;
    const int before = errno;
    if (interrupted) signal(sig, SIG_DFL), raise(sig); /* the second one is meant */
    interrupted = 1;
    ssize_t written = wake < 0 ? 0 : write(wake, &one, sizeof one);
    (void)written; /* it cannot be full */
    errno = before;
}

static bool left;

void cli_leave_interrupt(void)
{
    left = true;
}

void cli_catch_interrupt(void)
{
    if (left) return;
    /* SA_RESTART: text that is being written is not torn; waiting is cli_wait_input's. */
    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, before;
    if (sigaction(SIGINT, NULL, &before) == 0 && before.sa_handler == SIG_IGN) return;
    if (wake < 0) wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sigaction(SIGINT, &a, NULL);
}

bool cli_interrupted(void)
{
    return interrupted != 0;
}

void cli_clear_interrupt(void)
{
    uint64_t count;
    interrupted = 0; /* first: a Ctrl-C from here on is seen by the flag */
    ssize_t n = wake < 0 ? 0 : read(wake, &count, sizeof count);
    (void)n; /* nothing, where none had come */
}

bool cli_wait_input(int fd)
{
    struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = wake, .events = POLLIN}};
    while (!interrupted) {
        int n = poll(p, 2, -1);
        if (p[0].revents || (n < 0 && errno != EINTR)) return true; /* reading tells what is wrong */
    }
    return false;
}
