/* SPDX-License-Identifier: MIT */
/* Table-driven tests of ops. A case calls ops of one backend on data generated from its seed, in memory of that
 * backend, and states how each result compares with that of `ref`. Every case runs on ref, then at each level of the
 * CPU with one thread and with three, or on CUDA in two orders of threads. Both runs must give the same bits. Buffers
 * have their exact size, so that sanitizers detect every access past an end. */
#ifndef TESTS_UNIT_OP_TABLE_H
#define TESTS_UNIT_OP_TABLE_H

#include "tests/unit/ops_util.h"

enum { OP_BUFS = 96, OP_PARAMS = 10, OP_SAMES = 300, OP_MARK = 0x5a };

/* Comparison of a result. `most` is the limit of the named quantity. */
typedef enum {
    IN,   /* input, not a result */
    BITS, /* equal bytes */
    BITS_F32,
    BITS_F16,
    BITS_BF16, /* equal bits of elements, except that each NaN equals each other NaN */
    NMSE,      /* sum of squared differences over the sum of squares; floats from here on */
    MSE,       /* mean of squared differences, for what may be close to 0 */
    UNIT,      /* largest difference, in units of the larger of 1 and the number */
    REL        /* largest relative difference; below 1e-30 all is equal */
} op_rule;

/* One case on one backend. */
typedef struct {
    backend *be;
    rng r; /* the same on all backends */
    struct {
        buf b;
        size_t bytes;
        op_rule rule;
        double most;
        unsigned char *result;
    } part[OP_BUFS];
    struct {
        buf a, b;
        size_t bytes;
        const char *what;
    } same[OP_SAMES];
    int n, n_same;
    bool any_bits; /* threads and orders may change bits: a vendor library */
    bool one_bits; /* all levels have the same bits, possibly other ones than ref */
    bool failed;
    char why[120];
} op_run;

typedef void op_fn(op_run *x, const int64_t *p);

/* A test of an op, or of a few together. Case i has value i mod n of the first parameter and random values of the
 * others. The shim and race builds run one of this many cases. */
typedef struct {
    const char *name;
    op_fn *run;
    int cases, shim, race;
    struct {
        const int64_t *v;
        size_t n;
    } param[OP_PARAMS];
} op_test;

#define OP_P(...)                                                                                                      \
    {                                                                                                                  \
        (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)                       \
    }
#define OP_TYPES OP_P(DT_F32, DT_F16, DT_BF16)
#define OP_BOOL  OP_P(0, 1)

/* Returns the rule for elements that may be NaN, whose bits are unspecified (ops.h). */
static UNUSED_OK op_rule op_bits(dtype t)
{
    return t == DT_F16 ? BITS_F16 : t == DT_BF16 ? BITS_BF16 : BITS_F32;
}

static UNUSED_OK bool op_on_cuda(const op_run *x)
{
    return strncmp(x->be->name, "cuda", 4) == 0;
}

/* Prints the first failure of a case. */
static UNUSED_OK __attribute__((format(printf, 3, 4))) void op_note(op_run *x, bool good, const char *fmt, ...)
{
    va_list ap;
    if (good || x->failed) return;
    x->failed = true;
    va_start(ap, fmt);
    vsnprintf(x->why, sizeof x->why, fmt, ap);
    va_end(ap);
}

static UNUSED_OK buf op_buf(op_run *x, const void *from, size_t bytes, op_rule rule, double most)
{
    err e = {0};
    buf b;
    if (x->n == OP_BUFS || x->be->ops->alloc(x->be, &b, bytes, "test", &e) != ST_OK) {
        printf("Bail out! %s\n", x->n == OP_BUFS ? "too many buffers" : e.msg);
        exit(1);
    }
    if (from && bytes) x->be->ops->upload(x->be, b, from, bytes);
    x->part[x->n].b = b;
    x->part[x->n].bytes = bytes;
    x->part[x->n].rule = rule;
    x->part[x->n].result = NULL;
    x->part[x->n++].most = most;
    return b;
}

/* Adds an argument; from NULL: zeros. */
static UNUSED_OK buf op_in(op_run *x, const void *from, size_t bytes)
{
    return op_buf(x, from, bytes, IN, 0);
}

static UNUSED_OK buf op_i64(op_run *x, int64_t a)
{
    return op_in(x, &a, sizeof a);
}

static UNUSED_OK buf op_range(op_run *x, int64_t first, int64_t n)
{
    int64_t r[2] = {first, n};
    return op_in(x, r, sizeof r);
}

/* Adds a result that is initialized with `from`. */
static UNUSED_OK buf op_inout(op_run *x, const void *from, size_t bytes, op_rule rule, double most)
{
    return op_buf(x, from, bytes, rule, most);
}

/* Adds a result; parts that an op does not write keep OP_MARK. */
static UNUSED_OK buf op_out(op_run *x, size_t bytes, op_rule rule, double most)
{
    void *mark = xmalloc(bytes);
    memset(mark, OP_MARK, bytes);
    buf b = op_buf(x, mark, bytes, rule, most);
    free(mark);
    return b;
}

/* Adds a counter of bytes read, with a nonzero initial value. */
static UNUSED_OK buf op_read(op_run *x)
{
    static const uint64_t some[READ_KINDS] = {100, 200, 300, 400};
    return op_inout(x, some, sizeof some, BITS, 0);
}

/* Adds uniform values in [-1, 1). */
static UNUSED_OK buf op_floats(op_run *x, size_t n)
{
    float *f = random_f32(&x->r, n);
    buf b = op_in(x, f, 4 * n);
    free(f);
    return b;
}

static UNUSED_OK buf op_as(op_run *x, size_t n, dtype t)
{
    void *f = random_as(&x->r, n, t);
    buf b = op_in(x, f, n * dtype_size(t));
    free(f);
    return b;
}

/* Returns a number in [lo, hi]. */
static UNUSED_OK int64_t op_int(op_run *x, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(rng_next(&x->r) % (uint64_t)(hi - lo + 1));
}

/* Returns a heap copy of the current content. */
static UNUSED_OK void *op_see(op_run *x, buf b, size_t bytes)
{
    void *to = xmalloc(bytes);
    x->be->ops->download(x->be, to, b, bytes);
    return to;
}

/* Checks that both have the same bytes now. */
static UNUSED_OK void op_equal(op_run *x, buf a, buf b, size_t bytes, const char *what)
{
    void *p = op_see(x, a, bytes), *q = op_see(x, b, bytes);
    op_note(x, memcmp(p, q, bytes) == 0, "%s: other bits", what);
    free(p), free(q);
}

/* Checks that both have the same bytes after the case. */
static UNUSED_OK void op_same(op_run *x, buf a, buf b, size_t bytes, const char *what)
{
    if (x->n_same == OP_SAMES) {
        printf("Bail out! too many comparisons\n");
        exit(1);
    }
    x->same[x->n_same].a = a;
    x->same[x->n_same].b = b;
    x->same[x->n_same].bytes = bytes;
    x->same[x->n_same++].what = what;
}

/* ---- running ---- */

static UNUSED_OK void op_start(op_run *x, backend *be, const op_test *t, int i, int64_t p[OP_PARAMS])
{
    *x = (op_run){.be = be, .r = {(uint64_t)i * 977 + 5}};
    for (int k = 0; k < OP_PARAMS && t->param[k].n; k++)
        p[k] = t->param[k].v[k == 0 ? (uint64_t)i % t->param[k].n : rng_next(&x->r) % t->param[k].n];
    t->run(x, p);
    for (int k = 0; k < x->n; k++)
        if (x->part[k].rule != IN) x->part[k].result = op_see(x, x->part[k].b, x->part[k].bytes);
    for (int k = 0; k < x->n_same; k++) op_equal(x, x->same[k].a, x->same[k].b, x->same[k].bytes, x->same[k].what);
}

static UNUSED_OK void op_end(op_run *x)
{
    for (int k = 0; k < x->n; k++) {
        x->be->ops->free(x->be, x->part[k].b, x->part[k].bytes);
        free(x->part[k].result);
    }
}

static UNUSED_OK double op_error(op_rule rule, const float *got, const float *want, size_t n)
{
    double worst = 0, sum = 0;
    if (rule == NMSE) return nmse(got, want, n);
    for (size_t i = 0; i < n; i++) {
        double w = (double)want[i], d = fabs((double)got[i] - w);
        if (memcmp(&got[i], &want[i], 4) == 0 || (isnan(got[i]) && isnan(want[i])) || got[i] == want[i]) continue;
        if (!isfinite(d)) return 1e30;
        if (rule == REL) d = fabs(w) < 1e-30 && fabs((double)got[i]) < 1e-30 ? 0 : d / fabs(w);
        if (rule == UNIT) d /= fmax(1, fabs(w));
        sum += d * d;
        worst = fmax(worst, d);
    }
    return rule == MSE ? sum / (double)n : worst;
}

static UNUSED_OK bool op_bits_equal(op_rule rule, const unsigned char *a, const unsigned char *b, size_t bytes)
{
    size_t size = rule == BITS_F32 ? 4 : 2;
    uint32_t sign = 1u << (8 * size - 1), inf = rule == BITS_F32 ? 0x7f800000 : rule == BITS_F16 ? 0x7c00 : 0x7f80;
    if (memcmp(a, b, bytes) == 0 || rule == BITS) return memcmp(a, b, bytes) == 0;
    for (size_t i = 0; i < bytes; i += size) {
        uint32_t u = 0, v = 0;
        memcpy(&u, a + i, size), memcpy(&v, b + i, size);
        if (u != v && ((u & ~sign) <= inf || (v & ~sign) <= inf)) return false;
    }
    return true;
}

/* Checks got's rules; strict: all results are equal to the bit. */
static UNUSED_OK void op_compare(op_run *got, const op_run *want, bool strict)
{
    op_note(got, got->n == want->n || want->n == 0, "%d buffers, not %d", got->n,
            want->n); /* 0: not supported by ref */
    for (int k = 0; k < got->n && k < want->n; k++) {
        size_t bytes = got->part[k].bytes;
        op_rule rule = got->part[k].rule;
        if (rule == IN) continue;
        if (rule <= BITS_BF16 || strict) {
            bool same = bytes == want->part[k].bytes &&
                        op_bits_equal(strict ? BITS : rule, got->part[k].result, want->part[k].result, bytes);
            op_note(got, same, "buffer %d: %s", k, strict ? "bits depend on threads" : "other bits than ref");
            continue;
        }
        double e =
            op_error(rule, (float *)(void *)got->part[k].result, (float *)(void *)want->part[k].result, bytes / 4);
        op_note(got, e <= got->part[k].most, "buffer %d: off by %.2g, at most %.2g", k, e, got->part[k].most);
    }
}

static UNUSED_OK void op_tell(group *g, const op_run *x, int i, const op_test *t, const int64_t *p)
{
    char text[200] = "";
    size_t at = 0;
    for (int k = 0; k < OP_PARAMS && t->param[k].n; k++)
        at += (size_t)snprintf(text + at, sizeof text - at, " %lld", (long long)p[k]);
    group_note(g, !x->failed, "case %d (%s ):%s", i, text, x->why);
}

/* Backends of a case: the first is compared with ref, the second with the first. */
typedef struct {
    const char *level;
    backend *be[2];
} op_level;

/* first: results of the first level, which fills it in; its buffers last until the case ends. */
static UNUSED_OK void op_case(group *g, const op_level *l, const op_test *t, int i, const op_run *want, op_run *first)
{
    op_run got, again;
    int64_t p[OP_PARAMS] = {0};
#ifdef CUDA_SHIM
    shim_seed(0);
#endif
    op_start(&got, l->be[0], t, i, p);
    op_compare(&got, want, false);
    if (got.one_bits && first->be) op_compare(&got, first, true);
    op_tell(g, &got, i, t, p);
#ifdef CUDA_RACE /* any order shows a race */
    *first = got;
    return;
#endif
#ifdef CUDA_SHIM
    shim_seed(77 + (uint64_t)i);
#endif
    op_start(&again, l->be[1], t, i, p);
    if (!got.any_bits) op_compare(&again, &got, true);
    op_tell(g, &again, i, t, p);
    op_end(&again);
    if (first->be) op_end(&got);
    else *first = got;
}

static UNUSED_OK int op_open(op_level level[N_ALL_LEVELS])
{
    int n = 0;
    for (size_t i = 0; i < N_ALL_LEVELS; i++) {
        op_level l = {.level = ALL_LEVELS[i]};
        for (int k = 0; k < 2; k++) {
            err e = {0};
            backend_options o = {.device = strcmp(l.level, "cuda") == 0 ? l.level : "cpu", .n_threads = k ? 1 : 3};
            if (k && strcmp(l.level, "cuda") == 0) {
                l.be[1] = l.be[0];
                break;
            }
            setenv("KVASIR_CPU", l.level, 1);
            status st = backend_open(&l.be[k], &o, &e);
            unsetenv("KVASIR_CPU");
            if (st == ST_OK) continue;
            if (st == ST_UNSUPPORTED || st == ST_USAGE) tap_skip("%s", e.msg);
            else is_ok(st, &e, "open %s", l.level);
            break;
        }
        if (l.be[1]) level[n++] = l;
    }
    return n;
}

/* True for cases that are skipped: up to four fifths of a table's, on the shim eleven twelfths. Where all run on a CPU,
 * the remaining ones include every value of the first parameter. */
static UNUSED_OK bool op_extra(const op_test *t, int i, int step)
{
    int n = (int)t->param[0].n, apart = t->cases / n < 5 ? t->cases / n : 5;
    if (step > 1) return i / step % 12 != 0;
    return apart >= 3 && (i % n + i / n) % apart != 0;
}

/* True if the level has code of its own for a test: levels with tiles only for prompts, products of many rows, and what
 * is by tiles. */
static UNUSED_OK bool op_tests(const op_level *l, const op_test *t)
{
    return strncmp(l->level, "amx", 3) != 0 || strstr(t->name, "prefill") || strstr(t->name, "tiles") ||
           strstr(t->name, "linear, many rows");
}

/* Runs a table on all backends; returns false if it cannot run (no device). */
static UNUSED_OK bool op_table(const op_test *t, size_t n_tests)
{
    op_level level[N_ALL_LEVELS];
    if (no_device()) return false;
    backend *ref = open_ref();
    int n_levels = op_open(level);
    for (size_t k = 0; k < n_tests; k++) {
        group own = {0}, g[N_ALL_LEVELS] = {{0}};
        int step = 1;
#ifdef CUDA_RACE
        step = t[k].race;
#elif defined(CUDA_SHIM)
        step = t[k].shim;
#endif
        for (int i = 0; i < t[k].cases && step > 0; i += step) {
            op_run want, first = {0};
            int64_t p[OP_PARAMS] = {0};
            if (tap_leaves_out(op_extra(&t[k], i, step))) continue;
            op_start(&want, ref, &t[k], i, p);
            op_tell(&own, &want, i, &t[k], p);
            for (int l = 0; l < n_levels; l++)
                if (op_tests(&level[l], &t[k])) op_case(&g[l], &level[l], &t[k], i, &want, &first);
            if (first.be) op_end(&first);
            op_end(&want);
        }
        if (step == 0) continue;
        if (own.n_bad) group_end(&own, t[k].name, "ref");
        for (int l = 0; l < n_levels; l++)
            if (op_tests(&level[l], &t[k])) group_end(&g[l], t[k].name, level[l].level);
    }
    for (int l = 0; l < n_levels; l++) {
        err e = {0};
        is_ok(backend_fault(level[l].be[0], &e), &e, "%s, no fault", level[l].level);
        if (level[l].be[1] != level[l].be[0]) backend_close(level[l].be[1]);
        backend_close(level[l].be[0]);
    }
    check_races();
    return true;
}

#endif
