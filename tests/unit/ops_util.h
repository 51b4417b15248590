/* SPDX-License-Identifier: MIT */
/* For tests that compare a backend with ref: backends by level, random data, and checks that put a whole list of shapes
 * into one TAP line. Buffers are plain heap blocks of the exact size, so that sanitizers detect every access past an
 * end. */
#ifndef TESTS_UNIT_OPS_UTIL_H
#define TESTS_UNIT_OPS_UTIL_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/base/rng.h"
#include "kernels/half.h"
#include "kernels/ops.h"
#include "tests/tap.h"
#ifdef CUDA_SHIM
#include "tests/cushim/shim.h"
#endif
#include "tests/unit/devices.h"

#define UNUSED_OK __attribute__((unused))

/* Levels with tiles differ from others in attention alone: only the tests of that define them. */
#ifndef TILE_LEVELS
#define TILE_LEVELS
#endif

static const dtype ALL_TYPES[] UNUSED_OK = {DT_F32, DT_F16, DT_BF16};
#ifdef ON_CUDA
static const char *const ALL_LEVELS[] UNUSED_OK = {"cuda"};
#elif defined(HAVE_NEON_KERNELS)
static const char *const ALL_LEVELS[] UNUSED_OK = {"generic", "neon", "neon_dot", TILE_LEVELS};
#else
static const char *const ALL_LEVELS[] UNUSED_OK = {"generic", "avx2", "avx512", "avx512_bf16", TILE_LEVELS};
#endif
enum { N_ALL_LEVELS = sizeof ALL_LEVELS / sizeof ALL_LEVELS[0] };
/* One TAP line for many cases; it shows the first failing case. */
typedef struct {
    int n_cases, n_bad;
    char first[200];
} group;

static UNUSED_OK __attribute__((format(printf, 3, 4))) void group_note(group *g, bool good, const char *fmt, ...)
{
    va_list ap;
    g->n_cases++;
    if (good || g->n_bad++ > 0) return;
    va_start(ap, fmt);
    vsnprintf(g->first, sizeof g->first, fmt, ap);
    va_end(ap);
}

static UNUSED_OK void group_end(group *g, const char *name, const char *level)
{
    ok(g->n_bad == 0 && g->n_cases > 0, "%s, %s (%d cases)", level, name, g->n_cases);
    if (g->n_bad) printf("#   %d of %d failed, the first: %s\n", g->n_bad, g->n_cases, g->first);
}

/* Returns sum (got - want)^2 / sum want^2. Equal infinities count as equal; any other non-finite value gives 1e30. */
static UNUSED_OK double nmse(const float *got, const float *want, size_t n)
{
    double num = 0, den = 0;
    for (size_t i = 0; i < n; i++) {
        if (isinf(want[i]) && got[i] == want[i]) continue;
        if (!isfinite(got[i]) || !isfinite(want[i])) return 1e30;
        double d = (double)got[i] - (double)want[i];
        num += d * d;
        den += (double)want[i] * (double)want[i];
    }
    return num == 0 ? 0 : den > 0 ? num / den : 1e30;
}

static UNUSED_OK void *xmalloc(size_t n)
{
    void *p = malloc(n ? n : 1);
    if (!p) abort();
    return p;
}

/* Returns uniform values in [-1, 1). */
static UNUSED_OK float *random_f32(rng *r, size_t n)
{
    float *p = xmalloc(4 * n);
    for (size_t i = 0; i < n; i++) p[i] = 2 * rng_float(r) - 1;
    return p;
}

static UNUSED_OK void *random_as(rng *r, size_t n, dtype t)
{
    float *f = random_f32(r, n);
    if (t == DT_F32) return f;
    uint16_t *h = xmalloc(2 * n);
    for (size_t i = 0; i < n; i++) h[i] = t == DT_F16 ? f32_to_f16(f[i]) : f32_to_bf16(f[i]);
    free(f);
    return h;
}

static UNUSED_OK buf at(const void *p)
{
    return (buf){(unsigned char *)(uintptr_t)p};
}

/* True if a case is skipped. Since the host's shim is slow, it runs one in `plain` of the cases counted by `n`, and its
 * race build one in `race`. Of these all but one in 18 may be skipped. */
static UNUSED_OK bool leaves_out(int *n, int plain, int race)
{
#ifdef CUDA_SHIM
    int k = (*n)++, every = shim_sees_races() ? race : plain;
    return k % every > 0 || tap_leaves_out(k / every % 18 > 0);
#else
    (void)n, (void)plain, (void)race;
    return false;
#endif
}

static UNUSED_OK bool left_out(int plain, int race)
{
    static int n;
    return leaves_out(&n, plain, race);
}

/* Checks for races at the end of a program. */
static UNUSED_OK void check_races(void)
{
#ifdef CUDA_SHIM
    is_int(shim_races(), 0, "no race");
#endif
}

static UNUSED_OK backend *open_ref(void)
{
    static backend ref;
    backend_ref_init(&ref, NULL);
    return &ref;
}

/* True, with all checks skipped, if the program is to run on a device and there is none. */
static UNUSED_OK bool no_device(void)
{
#ifdef CUDA_DEVICE
    backend *be;
    err e = {0};
    if (backend_open(&be, &(backend_options){.device = "cuda"}, &e) != ST_OK) return tap_skip_all("%s", e.msg) == 0;
    backend_close(be);
#endif
    return false;
}

/* Opens a backend of a level. Returns NULL, with one skipped check, if the machine lacks it. */
static UNUSED_OK backend *open_level(const char *level, int n_threads)
{
    backend *be;
    err e = {0};
    backend_options o = {.device = strcmp(level, "cuda") == 0 ? level : "cpu", .n_threads = n_threads};
    setenv("KVASIR_CPU", level, 1);
    status st = backend_open(&be, &o, &e);
    unsetenv("KVASIR_CPU");
    if (st == ST_OK) return be;
    if (st == ST_UNSUPPORTED || st == ST_USAGE) tap_skip("%s", e.msg);
    else is_ok(st, &e, "open %s", level);
    return NULL;
}

#endif
