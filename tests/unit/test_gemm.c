/* SPDX-License-Identifier: MIT */
/* Products of many rows: the vendor's library, where one is built in, against the built-in GEMM. */
#include "config.h"

#include "tests/unit/ops_util.h"

#include "kernels/base/mem.h"

typedef struct {
    size_t n, m, k;
} shape;

static const shape SHAPES[] = {{16, 1, 1},
                               {16, 7, 33},
                               {17, 48, 64},
                               {64, 96, 200},
                               {33, 130, 1000},
                               {100, 301, 257},
                               /* several panels: K x 4 bytes x rows is beyond 4 MB */
                               {16, 300, 8192}};

static void compare(backend *be, bool bias, double limit, dtype t, group *g)
{
    rng r = {31};
    for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++) {
        shape s = SHAPES[i];
        size_t bytes = s.m * s.k * dtype_size(t);
        unsigned char *block = xmalloc(bytes + 2), *w = block + (i % 2 && t != DT_F32 ? 2 : 0);
        void *values = random_as(&r, s.m * s.k, t), *b = random_as(&r, s.m, t);
        memcpy(w, values, bytes);
        float *x = random_f32(&r, s.n * s.k), *got = xmalloc(8 * s.n * s.m), *want = xmalloc(4 * s.n * s.m);
        linear_job jobs[2] = {{.out = at(got), .w = {at(w), t, s.m, s.k, {NULL}}},
                              {.out = at(got + s.n * s.m), .w = {at(w), t, s.m, s.k, {NULL}}}};
        if (bias) jobs[0].bias = (weight){at(b), t, 1, s.m, {NULL}};
        linear_job exact = jobs[0];
        exact.out = at(want);
        be->ops->linear(be, jobs, 2, at(x), s.n, false);
        be->ops->linear(be, &exact, 1, at(x), s.n, true);
        double e = nmse(got, want, s.n * s.m);
        group_note(g, e <= limit, "%s n %zu m %zu k %zu: %.2g", dtype_name(t), s.n, s.m, s.k, e);
        exact.bias = (weight){0};
        be->ops->linear(be, &exact, 1, at(x), s.n, true);
        e = nmse(got + s.n * s.m, want, s.n * s.m);
        group_note(g, e <= limit, "second job, %s n %zu m %zu k %zu: %.2g", dtype_name(t), s.n, s.m, s.k, e);
        free(block), free(values), free(b), free(x), free(got), free(want);
    }
}

/* After the first decode step and the first prompt of a size, nothing is allocated. */
static void test_no_allocation(backend *be, dtype t)
{
    rng r = {32};
    float *w = random_f32(&r, 64 * 64), *x = random_f32(&r, 32 * 64), *out = xmalloc(4 * 32 * 64);
    linear_job j = {.out = at(out), .w = {.p = at(w), .type = t, .rows = 64, .cols = 64}};
    for (int exact = 0; exact < 2; exact++) be->ops->linear(be, &j, 1, at(x), 32, exact);
    long before = mem_test_count();
    for (size_t n = 1; n <= 32; n += 31)
        for (int exact = 0; exact < 2; exact++) be->ops->linear(be, &j, 1, at(x), n, exact);
    is_int(mem_test_count() - before, 0, "%s: linear allocates nothing after its first calls", dtype_name(t));
    free(w), free(x), free(out);
}

int main(void)
{
    backend *be;
    err e = {0};
    backend_options o = {.device = "cpu", .n_threads = 2};
    if (!is_ok(backend_open(&be, &o, &e), &e, "open")) return tap_done();
    printf("# %s\n", be->about);
    bool bf16 = strstr(be->about, "(bf16)") != NULL;
    for (size_t t = 0; t < 3; t++) {
        group plain = {0}, bias = {0};
        double limit = ALL_TYPES[t] == DT_BF16 && bf16 ? 1e-5 : 1e-10;
        compare(be, false, limit, ALL_TYPES[t], &plain);
        compare(be, true, limit, ALL_TYPES[t], &bias);
        group_end(&plain, "many rows against the built-in product", dtype_name(ALL_TYPES[t]));
        group_end(&bias, "the same with a bias", dtype_name(ALL_TYPES[t]));
    }
    test_no_allocation(be, DT_BF16);
    test_no_allocation(be, DT_Q8);
    is_ok(backend_fault(be, &e), &e, "no fault");
    backend_close(be);
    return tap_done();
}
