/* SPDX-License-Identifier: MIT */
/* linear. Few rows of x, or exact: our kernels, all jobs in one parallel region. Many rows: tiles if the level has them
 * for the type (cpu_linear_tiles.c), or a vendor's GEMM, on stored bf16 if the CPU supports its products, otherwise on
 * panels of w widened to float32. Weights in blocks: on panels of bf16 or float32, or our own kernel if the level
 * multiplies bytes faster. */
#include "config.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"

enum {
    WIDEN_ABOVE = 48,             /* rows of x; with fewer, widening takes longer than a product of panels saves */
    SLICE = 512,                  /* rows of x that our own products process at a time, to stay in the caches */
    PANEL_BYTES = 4 * 1024 * 1024 /* size of widened w that stays in L3 between widening and use */
};

/* At most SLICE rows of x and the products with them. */
typedef struct {
    const linear_job *jobs;
    size_t n_jobs, cols;
    const float *x; /* rows [first, first + n) of the call */
    size_t first, n;
    x8_rows x8; /* for weights in blocks, if not exact; otherwise no rows */
} slice;

/* Products that threads compute together. */
typedef struct {
    const cpu_kernels *k;
    slice *slices;
    size_t n;
    bool exact, rounds; /* rounds: a slice has x8 */
    float *wide;        /* exact: a widened group for each thread */
} product;

/* Computes rows of one job's output; r0 is a multiple of QBLOCK_ROWS. */
static void job_span(const product *p, const slice *s, const linear_job *j, size_t r0, size_t r1)
{
    const weight *w = &j->w;
    float *out = f32_at(j->out, 0) + s->first * w->rows;
    if (!dtype_in_qblocks(w->type)) {
        p->k->linear(out, w->rows, s->x, s->n, w, &j->bias, r0, r1);
        return;
    }
    if (!p->exact) {
        p->k->linear_qblocks(out, w->rows, &s->x8, w, &j->bias, r0 / QBLOCK_ROWS, qblock_groups(r1));
        return;
    }
    float *wide = p->wide + (size_t)threads_id() * QBLOCK_ROWS * w->cols;
    for (size_t r = r0; r < r1; r += QBLOCK_ROWS) {
        size_t rows = r1 - r < QBLOCK_ROWS ? r1 - r : QBLOCK_ROWS;
        weight part = {{(unsigned char *)wide}, DT_F32, rows, w->cols, {NULL}}, bias = j->bias;
        bias.p.p = bias.p.p ? bias.p.p + r * dtype_size(bias.type) : NULL;
        p->k->unpack(wide, DT_F32, w, r, r + rows);
        p->k->linear(out + r, w->rows, s->x, s->n, &part, &bias, 0, rows);
    }
}

/* Computes groups [from, to) of QBLOCK_ROWS rows of the concatenated outputs of all jobs. */
static void jobs_span(const product *p, const slice *s, size_t from, size_t to)
{
    size_t base = 0, r0, r1;
    for (const linear_job *j = s->jobs; j < s->jobs + s->n_jobs; j++)
        if (cpu_job_rows(&r0, &r1, &base, j->w.rows, QBLOCK_ROWS, from, to)) job_span(p, s, j, r0, r1);
}

static size_t slice_groups(const slice *s)
{
    size_t groups = 0;
    for (size_t j = 0; j < s->n_jobs; j++) groups += qblock_groups(s->jobs[j].w.rows);
    return groups;
}

/* Returns the time of a group of a slice: reading its weights takes as long as a few products. */
static size_t group_time(const slice *s)
{
    enum { READING = 2 };
    return s->cols * (s->n + READING);
}

static size_t product_time(const product *p)
{
    size_t time = 0;
    for (const slice *s = p->slices; s < p->slices + p->n; s++) time += slice_groups(s) * group_time(s);
    return time;
}

/* Computes this thread's part of all slices, as long as every other thread's. */
static void slices_span(const product *p)
{
    size_t from, to, base = 0;
    threads_split(product_time(p), 1, &from, &to);
    for (const slice *s = p->slices; s < p->slices + p->n; s++) {
        size_t groups = slice_groups(s), time = group_time(s);
        size_t a = from > base ? (from - base + time - 1) / time : 0, b = to > base ? (to - base + time - 1) / time : 0;
        if (b > groups) b = groups;
        if (a < b) jobs_span(p, s, a, b);
        base += groups * time;
    }
}

static bool has_blocks(const slice *s)
{
    for (size_t j = 0; j < s->n_jobs; j++)
        if (dtype_in_qblocks(s->jobs[j].w.type)) return true;
    return false;
}

/* Allocates scratch for weights in blocks; false after a fault. */
static bool product_prepare(backend *be, product *p)
{
    cpu_ctx *c = cpu_of(be);
    size_t n = 0, cols = 0;
    for (slice *s = p->slices; s < p->slices + p->n; s++) {
        if (!has_blocks(s)) continue;
        s->x8 = (x8_rows){.n = p->exact ? 0 : s->n, .blocks = qblock_count(s->cols)};
        n += s->x8.n * s->x8.blocks;
        if (s->cols > cols) cols = s->cols;
    }
    if (p->exact && cols > 0) {
        p->wide = cpu_scratch(be, &c->panel, (size_t)be->n_threads * QBLOCK_ROWS * cols, sizeof *p->wide,
                              "group of a widened weight");
        return p->wide;
    }
    p->rounds = n > 0;
    if (!p->rounds) return true;
    unsigned char *at =
        cpu_scratch(be, &c->bytes, n, QBLOCK_COLS + sizeof(float) + 2 * sizeof(int32_t), "8-bit activations");
    if (!at) return false;
    float *scale = (float *)(void *)(at + n * QBLOCK_COLS);
    int32_t *sum = (int32_t *)(void *)(scale + n), *half = sum + n;
    for (slice *s = p->slices; s < p->slices + p->n; s++) {
        size_t some = s->x8.n * s->x8.blocks;
        s->x8 = (x8_rows){(int8_t *)at, scale, sum, half, s->x8.n, s->x8.blocks};
        at += some * QBLOCK_COLS, scale += some, sum += some, half += some;
    }
    return true;
}

/* Rounds this thread's part of x to 8 bits. */
static void round_x(const product *p, const slice *s)
{
    size_t a, b, blocks = s->x8.blocks;
    threads_split(s->x8.n * blocks, 4, &a, &b);
    while (a < b) {
        size_t row = a / blocks, from = a % blocks, to = b - row * blocks < blocks ? b - row * blocks : blocks;
        p->k->round_x(&s->x8, row, s->x + row * s->cols, s->cols, from, to);
        a = row * blocks + to;
    }
}

static void linear_slices(backend *be, slice *slices, size_t n, bool exact)
{
    product p = {.k = cpu_of(be)->k, .slices = slices, .n = n, .exact = exact};
    if (!product_prepare(be, &p)) return;
#pragma omp parallel num_threads(cpu_team(be, product_time(&p) * QBLOCK_ROWS * 2))
    {
        if (p.rounds) {
            for (size_t i = 0; i < n; i++) round_x(&p, &slices[i]);
#pragma omp barrier
        }
        slices_span(&p);
    }
}

/* Returns the slice of rows from `first` on. */
static slice slice_of(const linear_job *jobs, size_t n_jobs, const float *x, size_t first, size_t n)
{
    const size_t cols = jobs->w.cols;
    return (slice){jobs, n_jobs, cols, x + first * cols, first, n - first < SLICE ? n - first : SLICE, {.n = 0}};
}

static void linear_builtin(backend *be, const linear_job *jobs, size_t n_jobs, const float *x, size_t n, bool exact)
{
    for (size_t i = 0; i < n; i += SLICE) {
        slice one = slice_of(jobs, n_jobs, x, i, n);
        linear_slices(be, &one, 1, exact);
    }
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
        bool tiles = cpu_tile_parts(c->k, t);
        bool ours = !tiles && (!c->gemm || (dtype_in_qblocks(t) && bytes_are_faster(c->k, qblock_kind_of(t))));
        bool as_stored = t == DT_F32 || (t == DT_BF16 && (tiles || c->bf16_gemm));
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

/* True if one product takes both jobs. */
static bool are_alike(backend *be, const linear_job *a, const linear_job *b)
{
    const cpu_kernels *k = cpu_of(be)->k;
    return a->w.order.p == b->w.order.p && cpu_tile_parts(k, a->w.type) == cpu_tile_parts(k, b->w.type);
}

void cpu_linear(backend *be, const linear_job *jobs, size_t n_jobs, buf x, size_t n, bool exact)
{
    for (size_t some; n > 0 && n_jobs > 0; jobs += some, n_jobs -= some) {
        const float *in = in_order(be, &jobs->w, f32_at(x, 0), n);
        for (some = 1; some < n_jobs && are_alike(be, jobs, jobs + some);) some++;
        if (!in) return;
        if (exact || n <= own_rows(be, jobs, some)) linear_builtin(be, jobs, some, in, n, exact);
        else if (cpu_tile_parts(cpu_of(be)->k, jobs->w.type)) cpu_linear_tiles(be, jobs, some, in, n);
        else linear_vendor(be, jobs, some, in, n);
    }
}

/* True if our own products compute a projection, with the columns of x in their order. */
static bool is_own(backend *be, const projection *p)
{
    for (size_t j = 0; j < p->n_jobs; j++)
        if (p->jobs[j].w.order.p) return false;
    return p->exact || p->n <= own_rows(be, p->jobs, p->n_jobs);
}

static void swiglu_each(backend *be, const projection *list, size_t n)
{
    size_t all = 0;
    for (size_t i = 0; i < n; i++) all += list[i].gated ? list[i].n * list[i].jobs->w.rows : 0;
    if (all == 0) return;
#pragma omp parallel num_threads(cpu_team(be, all * 8))
    for (const projection *p = list; p < list + n; p++) {
        size_t a, b;
        threads_split(p->gated ? p->n * p->jobs->w.rows : 0, 64, &a, &b);
        float *gate = f32_at(p->jobs[0].out, a);
        if (a < b) cpu_of(be)->k->swiglu(gate, gate, f32_at(p->jobs[1].out, a), b - a);
    }
}

/* Our own products of all projections share a parallel region. */
void cpu_project_each(backend *be, const projection *list, size_t n)
{
    size_t most = 0, some = 0;
    for (size_t i = 0; i < n; i++) most += (list[i].n + SLICE - 1) / SLICE;
    if (most == 0) return;
    slice *s = cpu_scratch(be, &cpu_of(be)->slices, most, sizeof *s, "list of products");
    if (!s) return;
    for (const projection *p = list; p < list + n; p++) {
        if (!is_own(be, p)) cpu_linear(be, p->jobs, p->n_jobs, p->x, p->n, p->exact);
        else
            for (size_t i = 0; i < p->n; i += SLICE) s[some++] = slice_of(p->jobs, p->n_jobs, f32_at(p->x, 0), i, p->n);
    }
    if (some) linear_slices(be, s, some, list->exact);
    swiglu_each(be, list, n);
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
