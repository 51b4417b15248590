/* SPDX-License-Identifier: MIT */
/* The vendor library: where it is searched for, and products that it refuses or that run without it. */
/* Builds: shim */
#include "config.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cuda/library.h"
#include "tests/cuda/cuda_util.h"

enum { N = 20, ROWS = 24, COLS = 40 };

/* ---- products ---- */

/* What is computed: products of x or of its norm with a bias, or a product added to other numbers. */
enum { PLAIN, NORMED, ADDED, N_KINDS };

/* Computes out [N][ROWS] for weights of a type; exact or not. */
static void multiply(backend *be, dtype t, bool exact, int kind, float *out)
{
    rng r = {7};
    device d = {.be = be};
    float *x = random_f32(&r, N * COLS), *w = random_f32(&r, ROWS * COLS), *bias = random_f32(&r, ROWS);
    linear_job j = {.out = put(&d, out, N * ROWS * sizeof *out)};
    buf from = put(&d, w, ROWS * COLS * sizeof *w), in = put(&d, x, N * COLS * sizeof *x);
    j.w = (weight){put(&d, w, ROWS * COLS * dtype_size(t)), t, ROWS, COLS, {NULL}};
    if (kind != ADDED) j.bias = (weight){put(&d, bias, ROWS * sizeof *bias), DT_F32, 1, ROWS, {NULL}};
    be->ops->convert(be, j.w.p, t, from, DT_F32, ROWS * COLS);
    projection c = {.jobs = &j, .n_jobs = 1, .x = in, .n = N, .exact = exact, .eps = 1e-5f};
    if (kind == NORMED)
        c.norm = (weight){put(&d, w, COLS * sizeof *w), DT_F32, 1, COLS, {NULL}},
        c.room = put(&d, x, N * COLS * sizeof *x);
    if (kind == ADDED) c.into = put(&d, w, N * ROWS * sizeof *w);
    if (kind != PLAIN) be->ops->project(be, &c);
    else be->ops->linear(be, &j, 1, in, N, exact);
    be->ops->download(be, out, kind == ADDED ? c.into : j.out, N * ROWS * sizeof *out);
    drop(&d);
    free(x), free(w), free(bias);
}

/* If the library refuses or is missing, our own kernel multiplies, with the bits of `exact`. */
static void test_refusal(int how, const char *name)
{
    static float got[N * ROWS], want[N * ROWS];
    shim_gemm(how);
    backend *be = open_cuda();
    err e = {0};
    for (int i = 0; i < N_KINDS * (DT_BF16 + 1); i++) {
        static const char *const kinds[] = {"", ", normed", ", added"};
        dtype t = (dtype)(i / N_KINDS);
        multiply(be, t, true, i % N_KINDS, want);
        multiply(be, t, false, i % N_KINDS, got);
        ok(how == SHIM_GEMM || memcmp(got, want, sizeof got) == 0, "%s, %s%s: products all the same", name,
           dtype_name(t), kinds[i % N_KINDS]);
    }
    is_ok(backend_fault(be, &e), &e, "%s: no fault", name);
    is_int(strstr(be->about, "built-in GEMM") != NULL, how == SHIM_GEMM_MISSING || getenv("KVASIR_NO_CUBLASLT"),
           "%s: %s", name, be->about);
    backend_close(be);
    shim_gemm(SHIM_GEMM);
}

/* ---- several products at once ---- */

enum { JOBS = 3, GAP = 32 };

/* Rows of the jobs. `gap` numbers of w lie before the last one; back: out in descending order. */
typedef struct {
    size_t rows[JOBS];
    size_t gap;
    bool back;
    int how;
    long calls;
    const char *name;
} batch_case;

static const batch_case batches[] = {
    {{ROWS, ROWS, ROWS}, 0, false, SHIM_GEMM, 1, "one shape"},
    {{ROWS, 8, 8}, 0, false, SHIM_GEMM, 2, "a shape, then another"},
    {{8, 8, ROWS}, 0, false, SHIM_GEMM, 2, "the same in another order"},
    {{8, ROWS, 8}, 0, false, SHIM_GEMM, 3, "no two of a shape in a row"},
    {{ROWS, ROWS, ROWS}, GAP, false, SHIM_GEMM, 2, "a gap between weights"},
    {{ROWS, ROWS, ROWS}, 0, true, SHIM_GEMM, 3, "results in descending order"},
    {{ROWS, ROWS, ROWS}, 0, false, SHIM_GEMM_SINGLE, 3, "one at a time"},
    {{ROWS, ROWS, ROWS}, 0, false, SHIM_GEMM_REFUSES, 0, "refused"},
};

/* Computes all jobs, in one call or in one call each. out [JOBS][N * ROWS], unused ends included. */
static void multiply_jobs(backend *be, dtype t, const batch_case *b, bool each, float *out)
{
    rng r = {7};
    device d = {.be = be};
    const size_t all = JOBS * ROWS * COLS + GAP;
    float *x = random_f32(&r, N * COLS), *w = random_f32(&r, all), *bias = random_f32(&r, ROWS);
    buf from = put(&d, w, all * sizeof *w), to = put(&d, w, all * dtype_size(t)), in = put(&d, x, N * COLS * sizeof *x);
    buf by = put(&d, bias, ROWS * sizeof *bias), at = put(&d, out, JOBS * N * ROWS * sizeof *out);
    linear_job jobs[JOBS];
    be->ops->convert(be, to, t, from, DT_F32, all);
    for (size_t i = 0, first = 0; i < JOBS; first += b->rows[i++] * COLS) {
        if (i + 1 == JOBS) first += b->gap;
        const size_t place = b->back ? JOBS - 1 - i : i;
        jobs[i] = (linear_job){.out = buf_at(at, place * N * ROWS * sizeof *out)};
        jobs[i].w = (weight){buf_at(to, first * dtype_size(t)), t, b->rows[i], COLS, {NULL}};
        if (i) jobs[i].bias = (weight){by, DT_F32, 1, b->rows[i], {NULL}};
    }
    for (size_t i = 0; i < (each ? JOBS : 1); i++) be->ops->linear(be, jobs + i, each ? 1 : JOBS, in, N, false);
    be->ops->download(be, out, at, JOBS * N * ROWS * sizeof *out);
    drop(&d);
    free(x), free(w), free(bias);
}

/* Jobs of one shape at one stride are one call, with the bits of separate ones. */
static void test_batches(void)
{
    static float got[JOBS * N * ROWS], want[JOBS * N * ROWS];
    backend *be = open_cuda();
    err e = {0};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
        for (int t = 0; t <= DT_BF16; t++) {
            const batch_case *b = &batches[i];
            shim_gemm(b->how);
            multiply_jobs(be, (dtype)t, b, true, want);
            const long before = shim_count(SHIM_PRODUCTS);
            multiply_jobs(be, (dtype)t, b, false, got);
            is_int(shim_count(SHIM_PRODUCTS) - before, b->calls, "%s, %s: calls", b->name, dtype_name((dtype)t));
            ok(memcmp(got, want, sizeof got) == 0, "  the same bits");
        }
    is_ok(backend_fault(be, &e), &e, "no fault");
    backend_close(be);
    shim_gemm(SHIM_GEMM);
}

/* A product added to other numbers has the bits of product and sum, also if f16 requires that x is scaled. */
static void test_added(void)
{
    static float sum[N * ROWS], want[N * ROWS];
    backend *be = open_cuda();
    for (int i = 0; i < 2 * (DT_BF16 + 1); i++) {
        const dtype t = (dtype)(i / 2);
        rng r = {9};
        device d = {.be = be};
        float *x = random_f32(&r, N * COLS), *w = random_f32(&r, ROWS * COLS), *into = random_f32(&r, N * ROWS);
        for (size_t k = 0; k < N * COLS; k++) x[k] *= 1e6f;
        buf from = put(&d, w, ROWS * COLS * sizeof *w), in = put(&d, x, N * COLS * sizeof *x),
            out = put(&d, sum, sizeof sum);
        buf alone = put(&d, into, sizeof sum), to = put(&d, into, sizeof sum);
        linear_job j = {.out = out, .w = {put(&d, w, ROWS * COLS * sizeof *w), t, ROWS, COLS, {NULL}}};
        be->ops->convert(be, j.w.p, t, from, DT_F32, ROWS * COLS);
        if (i % 2) j.bias = (weight){from, DT_F32, 1, ROWS, {NULL}};
        be->ops->linear(be, &j, 1, in, N, false);
        be->ops->add(be, alone, out, N * ROWS);
        be->ops->project(be, &(projection){.jobs = &j, .n_jobs = 1, .x = in, .n = N, .into = to});
        be->ops->download(be, sum, to, sizeof sum);
        be->ops->download(be, want, alone, sizeof want);
        ok(memcmp(sum, want, sizeof sum) == 0, "%s%s, added: the same bits", dtype_name(t), i % 2 ? ", bias" : "");
        drop(&d);
        free(x), free(w), free(into);
    }
    backend_close(be);
}

/* A gate has the bits of products and swiglu where f16 requires that x is scaled: applied while the next x is
 * converted, or before another op. */
static void test_scaled_gate(void)
{
    static float sum[N * COLS], want[N * COLS];
    backend *be = open_cuda();
    for (int i = 0; i < 6; i++) {
        const dtype t = i / 2 == 2 ? DT_BF16 : DT_F16; /* of the next product */
        const int how = i / 2 == 1 ? SHIM_GEMM_REFUSES : SHIM_GEMM;
        rng r = {11};
        device d = {.be = be};
        float *x = random_f32(&r, N * COLS), *w = random_f32(&r, 3 * ROWS * COLS);
        for (size_t k = 0; k < N * COLS; k++) x[k] *= 1e6f;
        buf from = put(&d, w, 3 * ROWS * COLS * sizeof *w), to = put(&d, w, 3 * ROWS * COLS * sizeof *w);
        buf in = put(&d, x, N * COLS * sizeof *x), out = put(&d, x, N * COLS * sizeof *x);
        const size_t bytes = ROWS * COLS * sizeof(uint16_t);
        linear_job jobs[3];
        be->ops->convert(be, to, DT_F16, from, DT_F32, 2 * ROWS * COLS);
        be->ops->convert(be, buf_at(to, 2 * bytes), t, buf_at(from, 4 * bytes), DT_F32, ROWS * COLS);
        for (size_t k = 0; k < 3; k++)
            jobs[k] = (linear_job){
                k < 2 ? put(&d, x, N * ROWS * sizeof *x) : out,
                {buf_at(to, k * bytes), k < 2 ? DT_F16 : t, k < 2 ? ROWS : COLS, k < 2 ? COLS : ROWS, {NULL}},
                {.p = {NULL}}};
        be->ops->linear(be, jobs, 2, in, N, false);
        be->ops->swiglu(be, jobs[0].out, jobs[0].out, jobs[1].out, N * ROWS);
        shim_gemm(how);
        be->ops->linear(be, jobs + 2, 1, jobs[0].out, N, false);
        shim_gemm(SHIM_GEMM);
        be->ops->download(be, want, out, sizeof want);
        be->ops->project(be, &(projection){.jobs = jobs, .n_jobs = 2, .x = in, .n = N, .gated = true});
        if (i % 2) be->ops->copy(be, in, jobs[0].out, N * ROWS * sizeof *x);
        shim_gemm(how);
        be->ops->project(be, &(projection){.jobs = jobs + 2, .n_jobs = 1, .x = jobs[0].out, .n = N, .spent = true});
        shim_gemm(SHIM_GEMM);
        be->ops->download(be, sum, out, sizeof sum);
        ok(memcmp(sum, want, sizeof sum) == 0 && isfinite(sum[0]), "a gate of f16, then %s%s%s: the same bits",
           dtype_name(t), how ? ", refused" : "", i % 2 ? ", after another op" : "");
        drop(&d);
        free(x), free(w);
    }
    backend_close(be);
}

/* The warning is printed once per process, and not if the library is left out on purpose. */
static void test_missing(void)
{
    FILE *taken = tmpfile();
    char line[400] = "", more[40] = "";
    int real = dup(STDERR_FILENO);
    if (!taken || real < 0 || dup2(fileno(taken), STDERR_FILENO) < 0) exit(1);
    setenv("KVASIR_NO_CUBLASLT", "1", 1);
    test_refusal(SHIM_GEMM_REFUSES, "left out");
    unsetenv("KVASIR_NO_CUBLASLT");
    fputs("-\n", stderr);
    test_refusal(SHIM_GEMM_MISSING, "missing");
    test_refusal(SHIM_GEMM_MISSING, "missing again");
    dup2(real, STDERR_FILENO);
    rewind(taken);
    bool silent = fgets(line, sizeof line, taken) && strcmp(line, "-\n") == 0;
    bool said = fgets(line, sizeof line, taken), again = fgets(more, sizeof more, taken);
    ok(said && strncmp(line, "cuda:0: cublasLt was not found: prompts", 39) == 0, "a warning was printed: %s", line);
    ok(silent, "left out: no warning");
    ok(!again, "is printed once: %s", more);
    fclose(taken);
    close(real);
}

/* ---- search ---- */

/* Makes a file that the loader accepts under another library's name: a link to an existing library. */
static void place(const char *root, const char *folder, const char *name)
{
    Dl_info here;
    char path[600], make[700];
    if (!dladdr((void *)(uintptr_t)&dlopen, &here)) exit(1);
    snprintf(make, sizeof make, "mkdir -p '%s/%s'", root, folder);
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    if (system(make) != 0 || symlink(here.dli_fname, path) != 0) exit(1);
}

static void check_found(bool want, int version, const char *name)
{
    void *lib = cuda_library("libshimvendor", version, 11, version + 2);
    ok((lib != NULL) == want, "%s", name);
    if (lib) dlclose(lib);
}

static void test_places(void)
{
    char root[] = "/tmp/kvasir-library-XXXXXX", path[100], remove[100];
    if (!mkdtemp(root)) exit(1);
    check_found(false, 13, "a library that is nowhere");
    place(root, "venv/lib/python3.12/site-packages/nvidia/cu13/lib", "libshimvendor.so.13");
    snprintf(path, sizeof path, "/nowhere/bin:%s/venv/bin:/usr/bin", root);
    setenv("PATH", path, 1);
    check_found(true, 13, "PyTorch's copy, in the prefix of the python3 on PATH");
    check_found(true, 14, "an older version, where that of the build is not there");
    check_found(true, 12, "a newer one");
    check_found(false, 10, "but not one that is too new");
    setenv("PATH", "/usr/bin", 1);
    check_found(false, 13, "without it on PATH");
    place(root, "toolkit/lib64", "libshimvendor.so.13");
    snprintf(path, sizeof path, "%s/toolkit", root);
    setenv("CUDA_HOME", path, 1);
    check_found(true, 13, "in CUDA_HOME");
    unsetenv("CUDA_HOME");
    snprintf(remove, sizeof remove, "rm -r '%s'", root);
    ok(system(remove) == 0, "the folder is gone");
}

int main(void)
{
    test_refusal(SHIM_GEMM, "the library");
    test_refusal(SHIM_GEMM_REFUSES, "refused");
    test_refusal(SHIM_GEMM_INVALID, "refused as invalid");
    test_batches();
    test_added();
    test_scaled_gate();
    test_missing();
    test_places();
    is_int((long long)shim_held(), 0, "all device memory was given back");
    return tap_done();
}
