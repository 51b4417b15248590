/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tests/tap.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int n_run, n_failed, n_left_out;

__attribute__((format(printf, 2, 0))) static bool line(bool cond, const char *name, va_list ap)
{
    printf("%sok %d - ", cond ? "" : "not ", ++n_run);
    vprintf(name, ap);
    putchar('\n');
    n_failed += !cond;
    fflush(stdout);
    return cond;
}

#define LINE(cond)                                                                                                     \
    do {                                                                                                               \
        va_list ap_;                                                                                                   \
        va_start(ap_, name);                                                                                           \
        line((cond), name, ap_);                                                                                       \
        va_end(ap_);                                                                                                   \
    } while (0)

bool ok(bool cond, const char *name, ...)
{
    LINE(cond);
    return cond;
}

bool is_int(long long got, long long want, const char *name, ...)
{
    LINE(got == want);
    if (got != want) printf("#   got %lld, want %lld\n", got, want);
    return got == want;
}

bool is_str(const char *got, const char *want, const char *name, ...)
{
    bool same = got && want && strcmp(got, want) == 0;
    LINE(same);
    if (!same) printf("#   got  \"%s\"\n#   want \"%s\"\n", got ? got : "(null)", want ? want : "(null)");
    return same;
}

bool is_ok(status st, const err *e, const char *name, ...)
{
    LINE(st == ST_OK);
    if (st != ST_OK) printf("#   status %d: %s\n", (int)st, e ? e->msg : "");
    return st == ST_OK;
}

bool is_err(status st, const err *e, status want, const char *part, const char *name, ...)
{
    bool good = st == want && e && e->code == want && strstr(e->msg, part);
    LINE(good);
    if (!good)
        printf("#   status %d, want %d; message \"%s\", want \"%s\" in it\n", (int)st, (int)want, e ? e->msg : "",
               part);
    return good;
}

bool is_near(const float *got, const float *want, size_t n, double nmse, const char *name, ...)
{
    double num = 0, den = 0, worst = -1;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        num += d * d;
        den += (double)want[i] * (double)want[i];
        if (!(fabs(d) <= worst)) {
            worst = fabs(d);
            at = i;
        }
    }
    bool good = num <= nmse * den && isfinite(den);
    LINE(good);
    if (!good)
        printf("#   NMSE %.3g, at most %.3g; worst at %zu of %zu: got %.9g, want %.9g\n", num / den, nmse, at, n,
               n ? (double)got[at] : 0.0, n ? (double)want[at] : 0.0);
    return good;
}

void tap_skip(const char *why, ...)
{
    va_list ap;
    printf("ok %d # SKIP ", ++n_run);
    va_start(ap, why);
    vprintf(why, ap);
    va_end(ap);
    putchar('\n');
}

int tap_skip_all(const char *why, ...)
{
    va_list ap;
    printf("1..0 # SKIP ");
    va_start(ap, why);
    vprintf(why, ap);
    va_end(ap);
    putchar('\n');
    return 0;
}

bool tap_leaves_out(bool extra)
{
    bool thin = extra && getenv("THIN");
    n_left_out += thin;
    return thin;
}

int tap_done(void)
{
    printf("1..%d\n", n_run);
    if (n_left_out) printf("# %d cases left out\n", n_left_out);
    return n_failed != 0;
}

static const char *join(const char *dir, const char *rel)
{
    static char buf[4][4096];
    static unsigned k;
    char *p = buf[k++ % 4];
    snprintf(p, sizeof buf[0], "%s/%s", dir, rel);
    return p;
}

const char *tap_path(const char *rel)
{
    const char *dir = getenv("SRCDIR");
    return join(dir ? dir : SRCDIR, rel);
}

const char *tap_data(const char *rel)
{
    const char *dir = getenv("KVASIR_DATA");
    struct stat s;
    const char *p = join(dir ? dir : tap_path("../shared/data"), rel);
    return stat(p, &s) == 0 ? p : NULL;
}
