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
