/* SPDX-License-Identifier: MIT */
/* linear. Few rows of x, or exact: our kernels, all jobs in one parallel region. Many rows: a vendor's GEMM, on stored
 * bf16 if the CPU supports its products, otherwise on panels of w widened to float32. Weights in blocks: on panels of
 * bf16 or float32, or our own kernel if the level multiplies bytes faster. */
#include "config.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"

enum {
    WIDEN_ABOVE = 48,             /* rows of x; with fewer, widening takes longer than a vendor's product saves */
    SLICE = 512,                  /* rows of x that our own products process at a time, to stay in the caches */
    PANEL_BYTES = 4 * 1024 * 1024 /* size of widened w that stays in L3 between widening and use */
};

/* Data shared by the jobs of one call. */
typedef struct {
    const cpu_kernels *k;
    const float *x; /* rows [first, first + n) of the call */
    size_t first, n;
    bool exact;
    x8_rows x8;  /* for weights in blocks, if not exact */
    float *wide; /* exact: a widened group for each thread */
} product;

/* Computes rows of one job's output; r0 is a multiple of QBLOCK_ROWS. */
static void job_span(const product *p, const linear_job *j, size_t r0, size_t r1)
{
    const weight *w = &j->w;
    float *out = f32_at(j->out, 0) + p->first * w->rows;
    if (!dtype_in_qblocks(w->type)) {
        p->k->linear(out, w->rows, p->x, p->n, w, &j->bias, r0, r1);
        return;
    }
    if (!p->exact) {
        p->k->linear_qblocks(out, w->rows, &p->x8, w, &j->bias, r0 / QBLOCK_ROWS, qblock_groups(r1));
        return;
    }
    float *wide = p->wide + (size_t)threads_id() * QBLOCK_ROWS * w->cols;
    for (size_t r = r0; r < r1; r += QBLOCK_ROWS) {
        size_t rows = r1 - r < QBLOCK_ROWS ? r1 - r : QBLOCK_ROWS;
        weight part = {{(unsigned char *)wide}, DT_F32, rows, w->cols, {NULL}}, bias = j->bias;
        bias.p.p = bias.p.p ? bias.p.p + r * dtype_size(bias.type) : NULL;
        p->k->unpack(wide, DT_F32, w, r, r + rows);
        p->k->linear(out + r, w->rows, p->x, p->n, &part, &bias, 0, rows);
    }
}

/* Computes groups [from, to) of QBLOCK_ROWS rows of the concatenated outputs of all jobs. */
static void jobs_span(const product *p, const linear_job *jobs, size_t n_jobs, size_t from, size_t to)
{
    size_t base = 0;
    for (size_t j = 0; j < n_jobs; j++) {
        size_t groups = qblock_groups(jobs[j].w.rows), rows = jobs[j].w.rows;
        size_t a = from > base ? from - base : 0, b = to > base ? to - base : 0;
        if (b > groups) b = groups;
        if (a < b) job_span(p, &jobs[j], a * QBLOCK_ROWS, b * QBLOCK_ROWS < rows ? b * QBLOCK_ROWS : rows);
        base += groups;
    }
}

/* Allocates scratch for weights in blocks; false after a fault. */
static bool product_prepare(backend *be, product *p, size_t cols)
{
    cpu_ctx *c = cpu_of(be);
    if (p->exact) {
        p->wide = cpu_scratch(be, &c->panel, (size_t)be->n_threads * QBLOCK_ROWS * cols, sizeof *p->wide,
                              "group of a widened weight");
        return p->wide;
    }
    size_t blocks = qblock_count(cols), n = p->n * blocks;
    unsigned char *at =
        cpu_scratch(be, &c->bytes, n, QBLOCK_COLS + sizeof(float) + 2 * sizeof(int32_t), "8-bit activations");
    if (!at) return false;
    float *scale = (float *)(void *)(at + n * QBLOCK_COLS);
    int32_t *sum = (int32_t *)(void *)(scale + n);
    p->x8 = (x8_rows){(int8_t *)at, scale, sum, sum + n, p->n, blocks};
    return true;
}

/* Rounds this thread's part of x to 8 bits. */
static void round_x(const product *p, size_t cols)
{
    size_t a, b, blocks = p->x8.blocks;
    threads_split(p->n * blocks, 4, &a, &b);
    while (a < b) {
        size_t row = a / blocks, from = a % blocks, to = b - row * blocks < blocks ? b - row * blocks : blocks;
        p->k->round_x(&p->x8, row, p->x + row * cols, cols, from, to);
        a = row * blocks + to;
    }
}

/* Processes rows [first, first + n) of x. */
static void linear_slice(backend *be, const linear_job *jobs, size_t n_jobs, const float *x, size_t first, size_t n,
                         bool exact)
{
    size_t groups = 0, cols = jobs[0].w.cols;
    bool blocks = false;
    product p = {.k = cpu_of(be)->k, .x = x + first * cols, .first = first, .n = n, .exact = exact};
    for (size_t j = 0; j < n_jobs; j++) {
        groups += qblock_groups(jobs[j].w.rows);
        blocks |= dtype_in_qblocks(jobs[j].w.type);
    }
    if (blocks && !product_prepare(be, &p, cols)) return;
#pragma omp parallel num_threads(cpu_team(be, groups *QBLOCK_ROWS *cols *n * 2))
    {
        size_t a, b;
        if (blocks && !exact) {
            round_x(&p, cols);
#pragma omp barrier
        }
        threads_split(groups, 1, &a, &b);
        jobs_span(&p, jobs, n_jobs, a, b);
    }
}

static void linear_builtin(backend *be, const linear_job *jobs, size_t n_jobs, const float *x, size_t n, bool exact)
{
    for (size_t i = 0; i < n; i += SLICE) linear_slice(be, jobs, n_jobs, x, i, n - i < SLICE ? n - i : SLICE, exact);
}

/* Widens rows [r0, r1) of w to f32 or (weights in blocks) bf16, with all threads. */
static void widen_rows(backend *be, void *out, dtype to, const weight *w, size_t r0, size_t r1)
{
    const cpu_kernels *k = cpu_of(be)->k;
    size_t row = w->cols * dtype_size(to);
#pragma omp parallel num_threads(be->n_threads)
    {
        size_t a, b;
        threads_split(r1 - r0, QBLOCK_ROWS, &a, &b);
        unsigned char *part = (unsigned char *)out + a * row;
        if (dtype_in_qblocks(w->type)) k->unpack(part, to, w, r0 + a, r0 + b);
        else
            k->widen((float *)(void *)part, w->p.p + (r0 + a) * w->cols * dtype_size(w->type), w->type,
                     (b - a) * w->cols);
    }
}

static void narrow_parallel(backend *be, uint16_t *out, const float *in, size_t n)
{
#pragma omp parallel num_threads(be->n_threads)
    {
        size_t a, b;
        threads_split(n, 64, &a, &b);
        cpu_of(be)->k->narrow(out + a, in + a, DT_BF16, b - a);
    }
}

static void add_bias(backend *be, const linear_job *j, const float *bias, size_t n)
{
    size_t rows = j->w.rows;
#pragma omp parallel num_threads(be->n_threads)
    {
        size_t a, b;
        threads_split(n, 1, &a, &b);
        for (size_t i = a; i < b; i++) cpu_of(be)->k->add(f32_at(j->out, 0) + i * rows, bias, rows);
    }
}

/* Computes x w^T on panels of w that are widened to `to`; x has the same type. */
static void linear_panels(backend *be, const linear_job *j, dtype to, const void *x, size_t n)
{
    cpu_ctx *c = cpu_of(be);
    size_t k = j->w.cols, m = j->w.rows, panel = PANEL_BYTES / (k * dtype_size(to)) / QBLOCK_ROWS * QBLOCK_ROWS;
    if (panel < QBLOCK_ROWS) panel = QBLOCK_ROWS;
    if (panel > m) panel = m;
    void *wide = cpu_scratch(be, &c->panel, panel * k, dtype_size(to), "panel of a widened weight");
    if (!wide) return;
    for (size_t r = 0; r < m; r += panel) {
        size_t rows = m - r < panel ? m - r : panel;
        float *out = f32_at(j->out, 0) + r;
        widen_rows(be, wide, to, &j->w, r, r + rows);
        if (to == DT_BF16) gemm_bf16(c->gemm, x, wide, out, n, rows, k, m, &be->fault);
        else gemm_f32(c->gemm, x, wide, out, n, rows, k, m, &be->fault);
    }
}

static void linear_f32(backend *be, const linear_job *j, const float *x, size_t n)
{
    size_t k = j->w.cols, m = j->w.rows;
    if (j->w.type == DT_F32 && (uintptr_t)j->w.p.p % sizeof(float) == 0)
        gemm_f32(cpu_of(be)->gemm, x, f32_at(j->w.p, 0), f32_at(j->out, 0), n, m, k, m, &be->fault);
    else linear_panels(be, j, DT_F32, x, n);
}

static void linear_vendor(backend *be, const linear_job *jobs, size_t n_jobs, const float *x, size_t n)
{
    cpu_ctx *c = cpu_of(be);
    uint16_t *half = NULL; /* x in bf16, made once for all jobs that need it */
    size_t k = jobs[0].w.cols;
    for (size_t i = 0; i < n_jobs; i++) {
        const linear_job *j = &jobs[i];
        bool blocks = dtype_in_qblocks(j->w.type);
        if ((j->w.type == DT_BF16 || blocks) && c->bf16_gemm) {
            if (!half) {
                half = cpu_scratch(be, &c->halves, n * k, sizeof *half, "bf16 activations");
                if (!half) return;
                narrow_parallel(be, half, x, n * k);
            }
            if (blocks) linear_panels(be, j, DT_BF16, half, n);
            else
                gemm_bf16(c->gemm, half, (const uint16_t *)(void *)j->w.p.p, f32_at(j->out, 0), n, j->w.rows, k,
                          j->w.rows, &be->fault);
        } else {
            linear_f32(be, j, x, n);
        }
        if (!j->bias.p.p) continue;
        float *bias = cpu_scratch(be, &c->panel, j->w.rows, sizeof *bias, "bias");
        if (!bias) return;
        c->k->widen(bias, j->bias.p.p, j->bias.type, j->w.rows);
        add_bias(be, j, bias, n);
    }
}

/* True if the level multiplies codes of a type faster than a vendor's GEMM multiplies panels. */
static bool bytes_are_faster(const cpu_kernels *k, qblock_kind kind)
{
    return !kind.floats && k->qblock_gemm >> kind.bits & 1;
}

/* Returns the maximum of rows of x for which our own products are used. */
static size_t own_rows(backend *be, const linear_job *jobs, size_t n_jobs)
{
    const cpu_ctx *c = cpu_of(be);
    size_t least = SIZE_MAX;
    for (size_t j = 0; j < n_jobs; j++) {
        dtype t = jobs[j].w.type;
        bool ours = !c->gemm || (dtype_in_qblocks(t) && bytes_are_faster(c->k, qblock_kind_of(t)));
        bool as_stored = t == DT_F32 || (t == DT_BF16 && c->bf16_gemm);
        size_t rows = ours ? SIZE_MAX : as_stored ? LINEAR_ALIKE : WIDEN_ABOVE;
        if (rows < least) least = rows;
    }
    return least;
}

/* Returns x with its columns in the order of w's; NULL after a fault. */
static const float *in_order(backend *be, const weight *w, const float *x, size_t n)
{
    const size_t cols = w->cols;
    const int32_t *order = (const int32_t *)(const void *)w->order.p;
    if (!order) return x;
    float *out = cpu_scratch(be, &cpu_of(be)->order, n * cols, sizeof *out, "activations in another order");
    if (!out) return NULL;
#pragma omp parallel num_threads(cpu_team(be, n *cols))
    {
        size_t a, b;
        threads_split(cols, QBLOCK_COLS, &a, &b);
        for (size_t r = 0; r < n; r++)
            for (size_t c = a; c < b; c++) out[r * cols + c] = x[r * cols + (size_t)order[c]];
    }
    return out;
}

void cpu_linear(backend *be, const linear_job *jobs, size_t n_jobs, buf x, size_t n, bool exact)
{
    for (size_t some; n > 0 && n_jobs > 0; jobs += some, n_jobs -= some) {
        const float *in = in_order(be, &jobs->w, f32_at(x, 0), n);
        for (some = 1; some < n_jobs && jobs[some].w.order.p == jobs->w.order.p;) some++;
        if (!in) return;
        if (exact || n <= own_rows(be, jobs, some)) linear_builtin(be, jobs, some, in, n, exact);
        else linear_vendor(be, jobs, some, in, n);
    }
}

void cpu_quantize(backend *be, buf out, dtype type, weight w)
{
#pragma omp parallel num_threads(cpu_team(be, w.rows *w.cols * 8))
    {
        size_t a, b;
        threads_split(qblock_groups(w.rows), 1, &a, &b);
        for (size_t g = a; g < b; g++) cpu_of(be)->k->quantize(out.p, type, &w, g);
    }
}

void cpu_convert(backend *be, buf out, dtype to, buf in, dtype from, size_t n)
{
    enum { PIECE = 1024 };
    const cpu_kernels *k = cpu_of(be)->k;
#pragma omp parallel num_threads(cpu_team(be, n))
    {
        size_t a, b;
        float wide[PIECE];
        threads_split(n, PIECE, &a, &b);
        for (size_t i = a; i < b; i += PIECE) {
            size_t m = b - i < PIECE ? b - i : PIECE;
            k->widen(wide, in.p + i * dtype_size(from), from, m);
            k->narrow(out.p + i * dtype_size(to), wide, to, m);
        }
    }
}
