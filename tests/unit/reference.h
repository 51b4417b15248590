/* SPDX-License-Identifier: MIT */
/* Fixtures of tests/data/reference (written by scripts/fixtures/reference/): one open file, copies of its tensors on
 * the heap, and comparisons. A missing tensor is an error in the test and aborts. */
#ifndef TESTS_UNIT_REFERENCE_H
#define TESTS_UNIT_REFERENCE_H

#include "model/safetensors.h"
#include "tests/unit/ops_util.h"

static st_file *fixture;
static void **held; /* all blocks since the last fixture_close */
static size_t n_held;

/* Returns a zeroed block of the exact size, valid until fixture_close. */
static UNUSED_OK void *hold(size_t bytes)
{
    void *p = calloc(bytes ? bytes : 1, 1);
    held = realloc(held, (n_held + 1) * sizeof *held);
    if (!p || !held) abort();
    return held[n_held++] = p;
}

static UNUSED_OK void fixture_open(const char *name)
{
    char path[64];
    err e = {0};
    snprintf(path, sizeof path, "tests/data/reference/%s.safetensors", name);
    if (st_open(&fixture, tap_path(path), &e) != ST_OK) {
        printf("Bail out! %s\n", e.msg);
        exit(1);
    }
}

static UNUSED_OK void release_held(void)
{
    while (n_held > 0) free(held[--n_held]);
    free(held);
    held = NULL;
}

static UNUSED_OK void fixture_close(void)
{
    release_held();
    st_close(fixture);
    fixture = NULL;
}

static UNUSED_OK __attribute__((format(printf, 1, 0))) const st_tensor *find_va(const char *fmt, va_list ap)
{
    char name[192];
    vsnprintf(name, sizeof name, fmt, ap);
    const st_tensor *t = st_find(fixture, name);
    if (!t) {
        printf("Bail out! %s has no tensor %s\n", st_path(fixture), name);
        exit(1);
    }
    return t;
}

static UNUSED_OK __attribute__((format(printf, 1, 2))) const st_tensor *tensor(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const st_tensor *t = find_va(fmt, ap);
    va_end(ap);
    return t;
}

static UNUSED_OK __attribute__((format(printf, 1, 2))) bool has(const char *fmt, ...)
{
    char name[192];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    return st_find(fixture, name) != NULL;
}

static UNUSED_OK dtype type_of(const st_tensor *t)
{
    return strcmp(t->type, "F32") == 0 ? DT_F32 : strcmp(t->type, "F16") == 0 ? DT_F16 : DT_BF16;
}

static UNUSED_OK size_t count_of(const st_tensor *t)
{
    size_t n = 1;
    for (size_t i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

static UNUSED_OK void *copy_of(const st_tensor *t)
{
    return memcpy(hold(t->bytes), t->data, t->bytes);
}

/* Returns F32, F16 or BF16 data as floats. */
static UNUSED_OK float *floats_of(const st_tensor *t)
{
    size_t n = count_of(t);
    float *out = hold(4 * n);
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        if (type_of(t) == DT_F32) memcpy(out + i, t->data + 4 * i, 4);
        else memcpy(&h, t->data + 2 * i, 2), out[i] = type_of(t) == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
    }
    return out;
}

static UNUSED_OK __attribute__((format(printf, 1, 2))) float *floats(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    float *p = floats_of(find_va(fmt, ap));
    va_end(ap);
    return p;
}

static UNUSED_OK __attribute__((format(printf, 1, 2))) int32_t *ints(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int32_t *p = copy_of(find_va(fmt, ap));
    va_end(ap);
    return p;
}

/* True if |got - want| <= tol * max |want|; infinities must agree. */
static UNUSED_OK bool near(const float *got, const float *want, size_t n, double tol)
{
    double top = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(want[i])) top = fmax(top, fabs((double)want[i]));
    for (size_t i = 0; i < n; i++) {
        if (isinf(want[i]) && got[i] == want[i]) continue;
        if (!(fabs((double)got[i] - (double)want[i]) <= tol * top)) return false;
    }
    return true;
}

/* Compares n entries with a fixture's row of `width`, padded with -1. */
static UNUSED_OK bool same_list(const int32_t *got, size_t n, const int32_t *want, size_t width)
{
    size_t m = 0;
    while (m < width && want[m] >= 0) m++;
    return n == m && memcmp(got, want, n * sizeof *got) == 0;
}

static UNUSED_OK int64_t *i64s(size_t n, const int64_t *x)
{
    return memcpy(hold(n * sizeof *x), x, n * sizeof *x);
}
#define I64(...) at(i64s(sizeof((int64_t[]){__VA_ARGS__}) / 8, (int64_t[]){__VA_ARGS__}))

/* Transposes [n_kv_heads][n][dim] to f32 [n][n_kv_heads][dim]. */
static UNUSED_OK float *by_token(const st_tensor *k)
{
    size_t heads = k->shape[0], n = k->shape[1], dim = k->shape[2];
    float *in = floats_of(k), *out = hold(4 * heads * n * dim);
    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < n; i++) memcpy(out + (i * heads + h) * dim, in + (h * n + i) * dim, 4 * dim);
    return out;
}

static UNUSED_OK kv_rows rows_of(const st_tensor *k, const st_tensor *v)
{
    return (kv_rows){.k = at(copy_of(k)),
                     .v = at(copy_of(v)),
                     .type = type_of(k),
                     .n_kv_heads = k->shape[0],
                     .head_dim = k->shape[2],
                     .cap = k->shape[1]};
}

/* Returns a job of the last n_tok positions over all n rows of `rows`. out and lse are held. */
static UNUSED_OK attn_job job_of(const kv_rows *rows, float *q, size_t n_tok, size_t n_heads)
{
    int64_t *qpos = hold(8 * n_tok), n = (int64_t)rows->cap;
    for (size_t i = 0; i < n_tok; i++) qpos[i] = n - (int64_t)(n_tok - i);
    return (attn_job){.q = at(q),
                      .out = at(hold(4 * n_tok * n_heads * rows->head_dim)),
                      .lse = at(hold(4 * n_tok * n_heads)),
                      .n_tok = n_tok,
                      .n_heads = n_heads,
                      .rows = *rows,
                      .range = I64(0, n),
                      .n_lists = 1,
                      .n_max = n,
                      .qpos = at(qpos),
                      .masked = true,
                      .scale = (float)(1 / sqrt((double)rows->head_dim))};
}

#endif
