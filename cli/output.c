/* SPDX-License-Identifier: MIT */
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

#include "cli/output.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/fold.h"
#include "kernels/base/mem.h"

/* ---- stdout ---- */

static status out_failed(err *e)
{
    return err_set(e, ST_IO, "standard output: %s", strerror(errno));
}

static bool taken; /* a results file is standard output */

/* Returns the stream of other output. */
static FILE *text_stream(void)
{
    return taken ? stderr : stdout;
}

status out_write(const char *text, size_t n, err *e)
{
    return n == 0 || fwrite(text, 1, n, text_stream()) == n ? ST_OK : out_failed(e);
}

status out_printf(err *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vfprintf(text_stream(), fmt, ap);
    va_end(ap);
    return n >= 0 ? ST_OK : out_failed(e);
}

status out_folded(const char *text, int indent, err *e)
{
    fold_print(text_stream(), text, 0, indent);
    return ferror(text_stream()) ? out_failed(e) : ST_OK;
}

status out_flush(err *e)
{
    return fflush(text_stream()) == 0 && !ferror(text_stream()) ? ST_OK : out_failed(e);
}

/* ---- results files ---- */

bool out_is_stdout(const char *path)
{
    struct stat a, b;
    return strcmp(path, "-") == 0 ||
           (stat(path, &a) == 0 && fstat(STDOUT_FILENO, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino);
}

/* Opens a pipe, a device or standard output, which are written in place. */
static FILE *open_stream(const char *path)
{
    if (!out_is_stdout(path)) return fopen(path, "we");
    taken = true;
    int fd = dup(STDOUT_FILENO);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f && fd >= 0) close(fd);
    return f;
}

/* True if a path is written in place. Others are replaced, so they must be regular files. */
static bool is_stream(const char *path)
{
    struct stat s;
    return out_is_stdout(path) || (stat(path, &s) == 0 && (S_ISFIFO(s.st_mode) || S_ISCHR(s.st_mode)));
}

static status file_failed(const out_file *o, const char *path, err *e)
{
    return err_set(e, ST_IO, "%s %s: %s", o->option, path, strerror(errno));
}

status out_file_open(out_file *o, const char *option, const char *path, err *e)
{
    struct stat s;
    *o = (out_file){.option = option, .path = path};
    if (is_stream(path)) return (o->f = open_stream(path)) ? ST_OK : file_failed(o, path, e);
    if (stat(path, &s) == 0 && !S_ISREG(s.st_mode))
        return err_set(e, ST_IO, "%s %s: neither a regular file nor a pipe", option, path);
    if (!(o->target = path_target(path))) return file_failed(o, path, e);
    if (asprintf(&o->tmp, "%s.part", o->target) < 0) o->tmp = NULL;
    o->f = o->tmp ? fopen(o->tmp, "we") : NULL;
    if (o->f) return ST_OK;
    file_failed(o, path, e);
    free(o->tmp);
    mem_free(o->target);
    return ST_IO;
}

/* Closes the file and renames it. */
static bool finish_file(out_file *o, bool good)
{
    good = fclose(o->f) == 0 && good;
    return good && (!o->tmp || rename(o->tmp, o->target) == 0);
}

status out_file_close(out_file *o, bool good, err *e)
{
    status st = finish_file(o, good) ? ST_OK : file_failed(o, o->path, e);
    if (st != ST_OK && o->tmp) unlink(o->tmp);
    free(o->tmp);
    mem_free(o->target);
    return st;
}

status out_file_check(const char *option, const char *path, err *e)
{
    out_file o = {.option = option};
    taken |= out_is_stdout(path);
    if (is_stream(path)) return taken || access(path, W_OK) == 0 ? ST_OK : file_failed(&o, path, e);
    TRY(out_file_open(&o, option, path, e));
    (void)out_file_close(&o, false, NULL);
    return ST_OK;
}

/* ---- notes and progress ---- */

static bool quiet;

void out_hush(void)
{
    quiet = true;
}

bool out_is_quiet(void)
{
    return quiet;
}

void out_note(const char *fmt, ...)
{
    va_list ap;
    if (quiet) return;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

enum { PROGRESS_EVERY_MS = 100, LINES_EVERY_MS = 30000 };

struct progress {
    const char *what;
    int64_t start, last;
    bool bar, drawn;
};

progress *progress_start(const char *what)
{
    progress *p;
    if (quiet || MEM_NEW(&p, 1, NULL) != ST_OK) return NULL;
    *p = (progress){.what = what, .start = clock_ns(), .last = clock_ns(), .bar = isatty(STDERR_FILENO)};
    return p;
}

/* Draws nothing for short tasks: the first line appears after the first interval. */
void progress_set(progress *p, int64_t done, int64_t total)
{
    if (!p || total <= 0) return;
    int64_t now = clock_ns(), since = (now - p->last) / 1000000;
    if (since < (p->bar ? PROGRESS_EVERY_MS : LINES_EVERY_MS)) return;
    p->last = now;
    double spent = (double)(now - p->start) / 1e9, share = (double)done / (double)total;
    double left = done > 0 ? spent / share - spent : 0;
    if (!p->bar) {
        fprintf(stderr, "%s: %.0f %%, about %.0f s left\n", p->what, 100 * share, left);
        return;
    }
    char bar[31];
    for (int i = 0; i < 30; i++) bar[i] = share * 30 > i ? '#' : '.';
    bar[30] = 0;
    fprintf(stderr, "\r%s [%s] %.0f %%, %.0f s left \033[K", p->what, bar, 100 * share, left);
    p->drawn = true;
}

void progress_end(progress *p)
{
    if (p && p->drawn) fprintf(stderr, "\r\033[K");
    mem_free(p);
}

/* ---- Ctrl-C ---- */

static volatile sig_atomic_t interrupted; /* a signal, or 0 */
static int wake = -1;                     /* eventfd that Ctrl-C makes readable to end a waiting poll */

static void on_interrupt(int sig)
{
    const uint64_t one = 1;
    const int before = errno;
    if (interrupted) signal(sig, SIG_DFL), raise(sig); /* a second signal ends the program */
    interrupted = sig;
    ssize_t written = wake < 0 ? 0 : write(wake, &one, sizeof one);
    (void)written; /* the counter cannot overflow */
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
    /* SA_RESTART: writes are not interrupted; cli_wait_input handles waiting */
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, before;
    if (wake < 0) wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (sigaction(signals[i], NULL, &before) != 0 || before.sa_handler != SIG_IGN) sigaction(signals[i], &a, NULL);
}

bool cli_interrupted(void)
{
    return interrupted != 0;
}

int cli_ending(void)
{
    return interrupted == SIGINT ? 0 : interrupted;
}

void cli_clear_interrupt(void)
{
    uint64_t count;
    if (cli_ending()) return;
    interrupted = 0; /* first, so that the flag sees any later Ctrl-C */
    ssize_t n = wake < 0 ? 0 : read(wake, &count, sizeof count);
    (void)n; /* fails if there was no Ctrl-C */
}

bool cli_wait_input(int fd)
{
    struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = wake, .events = POLLIN}};
    while (!interrupted) {
        int n = poll(p, 2, -1);
        if (p[0].revents || (n < 0 && errno != EINTR)) return true; /* reading reports the error */
    }
    return false;
}
