/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"

enum { LANES = 16 /* maximum of all levels */, CHUNK = 512 /* rows of a thread at a time; affects only speed */ };

/* Jobs with their work space. */
typedef struct {
    const kmeans_job *jobs;
    const cpu_kernels *k;
    size_t n, units, dim; /* units of a job: one for each sub-space of a head */
    size_t count, rows;   /* maximum over the jobs */
    double *sum;          /* [threads][count][dim + 1] */
    float *bias, *wide;   /* [n * units][count], [n * units][count][dim] */
    int team;
} work;

/* One sub-space of one head of a job. */
typedef struct {
    const kmeans_job *j;
    const cpu_kernels *k;
    size_t dim, at; /* channels [at, at + dim) */
    row_source rows;
    const float *less;
    float *centroid, *bias;
    buf code;
    size_t stride;
    bool wide;
} unit;

static unit unit_of(const work *w, size_t i, bool trains)
{
    const kmeans_job *j = &w->jobs[i / w->units];
    size_t head = i % w->units / j->parts, part = i % j->parts, at = part * w->dim, bytes = j->wide ? 4 : 1;
    unit u = {.j = j, .k = w->k, .dim = w->dim, .at = at, .bias = w->bias + i * w->count};
    u.rows = cpu_rows(j->rows, false, head);
    if (j->less.p) u.less = f32_at(j->less, head * j->rows->head_dim + at);
    u.centroid =
        j->type == DT_F32 ? f32_at(j->centroid, i % w->units * j->cap * w->dim) : w->wide + i * w->count * w->dim;
    u.code = trains ? buf_at(j->work, i % w->units * j->n * 4)
                    : buf_at(j->code, (head * j->code_cap * j->parts + part) * bytes);
    u.stride = trains ? 1 : j->parts;
    u.wide = trains || j->wide;
    return u;
}

/* Reads keys of n slots from `slot` on; the unit's channels of row i are at out + i * head_dim. */
static const float *rows_of(const unit *u, int64_t slot, size_t n, float *out)
{
    size_t d = u->j->rows->head_dim;
    u->k->rows(out, d, &u->rows, NULL, slot, n);
    for (size_t i = 0; u->less && i < n; i++)
        for (size_t c = 0; c < u->dim; c++) out[i * d + u->at + c] -= u->less[c];
    return out + u->at;
}

static size_t some(const unit *u, size_t at, size_t end)
{
    return end - at < u->k->lanes ? end - at : u->k->lanes;
}

/* Assigns the rows [at, end) of the job to centroids. */
static void code_rows(const unit *u, size_t at, size_t end)
{
    float rows[LANES * HEAD_DIM_MAX], transposed[LANES * HEAD_DIM_MAX], best[LANES];
    size_t lanes = u->k->lanes, d = u->j->rows->head_dim;
    for (size_t n; at < end; at += n) {
        n = some(u, at, end);
        const float *x = rows_of(u, u->j->first + (int64_t)at, n, rows);
        for (size_t c = 0; c < u->dim; c++)
            for (size_t i = 0; i < lanes; i++) transposed[c * lanes + i] = i < n ? x[i * d + c] : 0;
        u->k->nearest(best, transposed, u->dim, u->centroid, u->bias, u->j->count);
        for (size_t i = 0; i < n; i++) {
            size_t to = (at + i) * u->stride;
            if (u->wide) ((int32_t *)(void *)u->code.p)[to] = (int32_t)best[i];
            else u->code.p[to] = (unsigned char)best[i];
        }
    }
}

static void set_biases(const unit *u)
{
    for (size_t i = 0; i < u->j->count; i++)
        u->bias[i] = ref_kmeans_bias(u->centroid + i * u->dim, u->dim, u->j->metric);
}

static void start(const unit *u)
{
    float row[HEAD_DIM_MAX];
    for (size_t c = 0; c < u->j->count; c++)
        memcpy(u->centroid + c * u->dim, rows_of(u, kmeans_slot(&u->j->start, c), 1, row), u->dim * sizeof *row);
    set_biases(u);
}

/* Computes new centroids from the codes of all rows; false if none moved. */
static bool move(const unit *u, double *sum)
{
    const kmeans_job *j = u->j;
    const int32_t *code = (const int32_t *)(const void *)u->code.p;
    double *count = sum + j->count * u->dim;
    float rows[LANES * HEAD_DIM_MAX];
    memset(sum, 0, j->count * (u->dim + 1) * sizeof *sum);
    for (size_t at = 0, n; at < j->n; at += n) {
        n = some(u, at, j->n);
        const float *x = rows_of(u, j->first + (int64_t)at, n, rows);
        for (size_t i = 0; i < n; i++, x += j->rows->head_dim) {
            double *to = sum + (size_t)code[at + i] * u->dim;
            for (size_t c = 0; c < u->dim; c++) to[c] += (double)x[c];
            count[code[at + i]]++;
        }
    }
    if (!ref_kmeans_means(u->centroid, sum, count, j->count, u->dim, j->metric)) return false;
    set_biases(u);
    return true;
}

/* Assigns all rows, distributed over the threads. */
static void code_all(const work *w, bool trains)
{
    size_t chunks = (w->rows + CHUNK - 1) / CHUNK;
#pragma omp parallel for schedule(dynamic, 1) num_threads(w->team)
    for (size_t i = 0; i < w->n * w->units * chunks; i++) {
        unit u = unit_of(w, i / chunks, trains);
        size_t at = i % chunks * CHUNK, end = at + CHUNK < u.j->n ? at + CHUNK : u.j->n;
        code_rows(&u, at, end);
    }
}

static bool begin(backend *be, work *w, const kmeans_job *jobs, size_t n)
{
    size_t d = jobs->rows->head_dim, each = jobs->rows->n_kv_heads * jobs->parts, all = 0;
    *w = (work){.jobs = jobs, .k = cpu_of(be)->k, .n = n, .units = each, .dim = d / jobs->parts};
    if (!cpu_dim_fits(be, d)) return false;
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].count > w->count) w->count = jobs[i].count;
        if (jobs[i].n > w->rows) w->rows = jobs[i].n;
        all += jobs[i].n * jobs[i].count * each * w->dim;
    }
    w->team = cpu_team(be, all);
    size_t wide = jobs->type == DT_F32 ? 0 : w->dim;
    size_t sums = (size_t)be->n_threads * w->count * (w->dim + 1), floats = n * each * w->count * (wide + 1);
    unsigned char *p =
        cpu_scratch(be, &cpu_of(be)->parts, sums * sizeof(double) + floats * sizeof(float), 1, "k-means");
    if (!p) return false;
    w->sum = (double *)(void *)p;
    w->bias = (float *)(void *)(w->sum + sums);
    w->wide = w->bias + n * each * w->count;
    return true;
}

void cpu_kmeans_mean(backend *be, buf out, const kv_rows *rows, int64_t first, size_t n)
{
    const cpu_kernels *k = cpu_of(be)->k;
    size_t d = rows->head_dim;
    if (!cpu_dim_fits(be, d)) return;
#pragma omp parallel for num_threads(cpu_team(be, n * rows->n_kv_heads * d))
    for (size_t head = 0; head < rows->n_kv_heads; head++) {
        double sum[HEAD_DIM_MAX] = {0};
        float x[LANES * HEAD_DIM_MAX];
        row_source source = cpu_rows(rows, false, head);
        for (size_t at = 0, m; at < n; at += m) {
            m = n - at < LANES ? n - at : LANES;
            k->rows(x, d, &source, NULL, first + (int64_t)at, m);
            for (size_t i = 0; i < m; i++)
                for (size_t c = 0; c < d; c++) sum[c] += (double)x[i * d + c];
        }
        for (size_t c = 0; c < d; c++) *f32_at(out, head * d + c) = (float)(sum[c] / (double)n);
    }
}

void cpu_kmeans_train(backend *be, const kmeans_job *jobs, size_t n)
{
    work w;
    int iters = 0;
    bool moved = true;
    if (!begin(be, &w, jobs, n)) return;
    for (size_t i = 0; i < n; i++) iters = iters < jobs[i].iters ? jobs[i].iters : iters;
#pragma omp parallel for schedule(dynamic, 1) num_threads(w.team)
    for (size_t i = 0; i < n * w.units; i++) {
        unit u = unit_of(&w, i, true);
        start(&u);
    }
    for (int t = 0; t < iters && moved; t++) {
        moved = false;
        code_all(&w, true);
#pragma omp parallel for schedule(dynamic, 1) num_threads(w.team) reduction(|| : moved)
        for (size_t i = 0; i < n * w.units; i++) {
            unit u = unit_of(&w, i, true);
            if (t < u.j->iters) moved = move(&u, w.sum + (size_t)threads_id() * w.count * (w.dim + 1)) || moved;
        }
    }
}

void cpu_kmeans_assign(backend *be, const kmeans_job *jobs, size_t n)
{
    work w;
    if (!begin(be, &w, jobs, n)) return;
#pragma omp parallel for schedule(dynamic, 1) num_threads(w.team)
    for (size_t i = 0; i < n * w.units; i++) {
        unit u = unit_of(&w, i, false);
        size_t at = i % w.units * u.j->cap * w.dim * dtype_size(u.j->type);
        if (u.j->type != DT_F32) u.k->widen(u.centroid, u.j->centroid.p + at, u.j->type, u.j->count * w.dim);
        set_biases(&u);
    }
    code_all(&w, false);
}
