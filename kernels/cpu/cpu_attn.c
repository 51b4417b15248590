/* SPDX-License-Identifier: MIT */
/* Attention: splits jobs into pieces whose borders do not depend on the number of threads, runs the level's kernels on
 * them, and merges in a fixed order. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/ops_codes.h"

enum {
    CHUNK = 2048,       /* keys of a decode piece: part of the result's definition */
    TOGETHER = 16,      /* jobs whose pieces are checked for shared rows */
    TASKS_A_THREAD = 4, /* minimum of tasks a thread before pieces with the same rows are combined in one task */
    BLOCK_ROWS = 1056   /* maximum of query rows in a prefill piece; a multiple of every level's tile_rows */
};

/* Query heads that read one kv head's rows through one list: a whole group, or a single head if each head has its own
 * list. */
typedef struct {
    size_t kv_head, head, heads; /* query heads [head, head + heads) */
    attn_list list;
} unit;

static size_t n_units(const attn_job *j)
{
    bool own_lists = j->n_lists == j->n_heads && j->n_heads != j->rows.n_kv_heads;
    return own_lists ? j->n_heads : j->rows.n_kv_heads;
}

static unit unit_of(const attn_job *j, size_t i)
{
    size_t group = j->n_heads / j->rows.n_kv_heads;
    unit u = {.kv_head = i, .head = i * group, .heads = group};
    if (n_units(j) != j->rows.n_kv_heads) u = (unit){.kv_head = i / group, .head = i, .heads = 1};
    u.list = ref_list_of(j, u.head);
    return u;
}

/* Returns the number of entries in the list whose position is at most p; positions ascend. */
static int64_t count_until(const attn_list *l, int64_t p)
{
    int64_t lo = 0, hi = l->n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (l->at[l->first + mid] <= p) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

void cpu_visible(const attn_job *j, const attn_list *l, size_t t, int64_t *lo, int64_t *hi)
{
    int64_t from = 0, to = l->n;
    if (l->at) {
        int64_t p = i64_at(j->qpos, 0)[t];
        to = count_until(l, p);
        if (j->band > 0) from = count_until(l, p - j->band);
    } else if (j->masked) {                              /* entry first + i has position kpos + i */
        int64_t ahead = i64_at(j->qpos, 0)[t] - j->kpos; /* the query's own index i */
        if (to > ahead + 1) to = ahead + 1;
        if (j->band > 0 && from < ahead - j->band + 1) from = ahead - j->band + 1;
    }
    if (from > l->n) from = l->n;
    *lo = l->first + from;
    *hi = l->first + (to > from ? to : from);
}

/* ---- bytes read ---- */

/* Returns the words of a bit set with a bit for each group of K pairs, which counts once a list. */
static size_t group_words(const attn_job *j)
{
    const kv_codes *c = &j->rows.codes;
    return c->bits == 0 || c->by_token ? 0 : (c->cap / c->group + 31) / 32;
}

typedef struct {
    uint64_t k, v, index;
} row_bytes;

/* Returns the bytes of entries [lo, hi), counted as in ops.h. */
static row_bytes bytes_of(const attn_job *j, const unit *u, int64_t lo, int64_t hi, uint32_t *groups)
{
    const kv_codes *c = &j->rows.codes;
    size_t d = j->rows.head_dim, exact = kv_row_bytes(j->rows.type, d), words = group_words(j);
    if (c->bits == 0) return (row_bytes){(uint64_t)(hi - lo) * exact, (uint64_t)(hi - lo) * exact, 0};
    row_source k = cpu_rows(&j->rows, false, u->kv_head), v = cpu_rows(&j->rows, true, u->kv_head);
    size_t by_run = 4 * codes_runs(c, d), k_row = k.row_bytes + (c->by_token ? by_run : 0);
    row_bytes sum = {0};
    if (words) memset(groups, 0, words * sizeof *groups);
    for (int64_t i = lo; i < hi; i++) {
        int64_t k_at = row_of(&k, u->list.idx, i), v_at = row_of(&v, u->list.idx, i);
        sum.k += k_at < 0 ? k_row : exact;
        sum.v += v_at < 0 ? v.row_bytes + by_run : exact;
        if (k_at >= 0 || !words) continue;
        size_t g = (size_t)(-1 - k_at) / c->group;
        if (!(groups[g / 32] >> g % 32 & 1)) sum.k += 4 * d;
        groups[g / 32] |= 1u << g % 32;
    }
    return sum;
}

/* Returns the bytes that list i adds to the job's counter. A single list for all heads is counted once, with the first
 * unit. */
static row_bytes list_read(const attn_job *j, size_t i, uint32_t *groups)
{
    unit u = unit_of(j, i);
    int64_t from = INT64_MAX, to = 0;
    row_bytes none = {0};
    if (!j->read.p || j->copied || (j->n_lists == 1 && i > 0)) return none;
    for (size_t t = 0; t < j->n_tok; t++) {
        int64_t lo, hi;
        cpu_visible(j, &u.list, t, &lo, &hi);
        if (lo < hi && lo < from) from = lo;
        if (lo < hi && hi > to) to = hi;
    }
    if (from >= to) return none;
    row_bytes b = bytes_of(j, &u, from, to, groups);
    uint64_t units = j->n_lists == 1 ? n_units(j) : 1;
    if (j->bias.p) b.index = (uint64_t)(to - from) * u.heads * sizeof(float);
    return (row_bytes){b.k * units, b.v * units, b.index * units};
}

static void add_read(const attn_job *j, row_bytes b, bool values)
{
    uint64_t *read = (uint64_t *)(void *)j->read.p;
    if (!read) return;
    read[j->pseudo ? READ_INDEX : READ_K] += b.k;
    if (values) read[j->pseudo ? READ_INDEX : READ_V] += b.v;
    read[READ_INDEX] += b.index;
}

bool cpu_count_read(backend *be, const attn_job *j, bool values)
{
    uint32_t *groups = cpu_scratch(be, &cpu_of(be)->parts, group_words(j) + 1, sizeof *groups, "groups of codes");
    for (size_t i = 0; groups && i < n_units(j); i++) add_read(j, list_read(j, i, groups), values);
    return groups;
}

/* ---- decode ---- */

/* Query heads [head, head + heads) of one job over entries [first, first + n). */
typedef struct piece {
    const attn_job *job;
    unit u;
    int64_t first;
    size_t n;
    size_t head, heads;   /* at most DECODE_GROUP of the unit's */
    size_t part, n_parts; /* index of this piece among the n_parts of these heads */
    float *out;           /* of piece 0: [n_parts][heads][dim], then [n_parts][heads] top, and sum */
    size_t unit;
    row_bytes read;     /* bytes of the unit's list, stored in its first piece */
    struct piece *next; /* next piece of the same task, or NULL */
} piece;

/* The pieces of some jobs, and a work area for each thread. A task is a parallel item: pieces of several jobs that read
 * the same rows run in sequence, while the rows are in the thread's cache. */
typedef struct {
    piece *list, **task; /* task: first piece of each task */
    size_t n, n_tasks, flops;
    float *work;
    size_t work_floats, group_words; /* per thread: work of a chunk, then bits of groups */
} decode_plan;

static size_t part_floats(size_t heads, size_t dim)
{
    return heads * (dim + 2);
}

/* Appends the pieces of one unit at p (NULL: only counts them). A unit that sees nothing gets one piece without keys,
 * so that its output is written. */
static size_t unit_pieces(piece *p, const attn_job *j, size_t i, float **parts)
{
    unit u = unit_of(j, i);
    int64_t lo, hi;
    size_t count = 0;
    cpu_visible(j, &u.list, 0, &lo, &hi);
    size_t n = (size_t)(hi - lo), n_parts = n ? (n + CHUNK - 1) / CHUNK : 1;
    for (size_t h = 0; h < u.heads; h += DECODE_GROUP) {
        size_t heads = u.heads - h < DECODE_GROUP ? u.heads - h : DECODE_GROUP;
        for (size_t c = 0; c < n_parts && p; c++)
            p[count + c] = (piece){.job = j,
                                   .u = u,
                                   .first = lo + (int64_t)(c * CHUNK),
                                   .n = n - c * CHUNK < CHUNK ? n - c * CHUNK : CHUNK,
                                   .head = u.head + h,
                                   .heads = heads,
                                   .part = c,
                                   .n_parts = n_parts,
                                   .out = *parts,
                                   .unit = i};
        count += n_parts;
        if (p) *parts += n_parts * part_floats(heads, j->rows.head_dim);
    }
    return count;
}

/* Returns the address for the scores of a piece. Sets entries of the list outside all pieces to -INFINITY. */
static float *piece_scores(const piece *p)
{
    const attn_job *j = p->job;
    size_t at = (size_t)(p->first - p->u.list.first), end = (size_t)p->u.list.n;
    if (!j->scores.p) return NULL;
    float *row = f32_at(j->scores, 0) + p->head * j->score_stride, *out = row + at;
    for (size_t h = 0; h < p->heads; h++, row += j->score_stride) {
        for (size_t i = 0; p->part == 0 && i < at; i++) row[i] = -INFINITY;
        for (size_t i = at + p->n; p->part + 1 == p->n_parts && i < end; i++) row[i] = -INFINITY;
    }
    return out;
}

/* True if the kernel decode_tiles computes a job. */
static bool by_tiles(const cpu_kernels *k, const attn_job *j)
{
    bool halves = j->rows.type == DT_F16 || j->rows.type == DT_BF16;
    return j->tiles && k->decode_tiles && halves && j->rows.codes.bits == 0 && !j->rope.p;
}

/* True if the level's kernel can process the heads of p, whose job has the same rows as a's, together with those
 * of a. */
static bool goes_with(const piece *a, const piece *p)
{
    const attn_job *j = a->job, *k = p->job;
    return p->head == a->head && p->heads == a->heads && p->first == a->first && p->n && !a->u.list.idx &&
           !p->u.list.idx && !j->rope.p && !k->rope.p && j->scale == k->scale && j->tiles == k->tiles &&
           j->score_stride == k->score_stride && j->bias_stride == k->bias_stride;
}

/* Runs a piece together with the following ones that match it; returns the first that does not. */
static piece *pieces_run(const cpu_kernels *k, piece *from, float *work, uint32_t *groups)
{
    const attn_job *j = from->job;
    size_t d = j->rows.head_dim;
    const bool tiles = by_tiles(k, j);
    const size_t most = tiles ? DECODE_TILE_HEADS : DECODE_GROUP;
    piece *p = from;
    decode_chunk c = {.scale = j->scale,
                      .k = cpu_rows(&j->rows, false, from->u.kv_head),
                      .v = cpu_rows(&j->rows, true, from->u.kv_head),
                      .idx = from->u.list.idx,
                      .first = from->first,
                      .group = from->heads,
                      .head_dim = d,
                      .work = work,
                      .rope = f32_at(j->rope, (size_t)(from->first - from->u.list.first) * d),
                      .score_stride = j->score_stride,
                      .bias_stride = j->bias_stride};
    do {
        float *top = p->out + p->n_parts * p->heads * d, *sum = top + p->n_parts * p->heads;
        size_t at = (size_t)(p->first - p->u.list.first);
        j = p->job;
        decode_query q = {.q = f32_at(j->q, 0) + p->head * d,
                          .n = p->n,
                          .acc = p->out + p->part * p->heads * d,
                          .top = top + p->part * p->heads,
                          .sum = sum + p->part * p->heads,
                          .scores = piece_scores(p),
                          .bias = f32_at(j->bias, p->head * j->bias_stride + at)};
        for (size_t h = 0; p->n == 0 && h < p->heads; h++) q.top[h] = -INFINITY;
        if (p->n) c.of[c.n_queries++] = q;
        if (p->part == 0 && p->head == p->u.head) p->read = list_read(j, p->unit, groups);
        p = p->next;
    } while (p && from->n && c.n_queries < DECODE_GROUP && (c.n_queries + 1) * c.group <= most && goes_with(from, p));
    if (c.n_queries) (tiles ? k->decode_tiles : k->decode)(&c);
    return p;
}

/* Merges all pieces; called for piece 0 of its heads. */
static void piece_merge(const cpu_kernels *k, const piece *p)
{
    const attn_job *j = p->job;
    size_t d = j->rows.head_dim;
    const float *top = p->out + p->n_parts * p->heads * d, *sum = top + p->n_parts * p->heads;
    for (size_t h = 0; h < p->heads; h++)
        k->merge(f32_at(j->out, 0) + (p->head + h) * d, j->lse.p ? f32_at(j->lse, 0) + p->head + h : NULL,
                 p->out + h * d, top + h, sum + h, p->n_parts, p->heads * d, p->heads, d);
}

/* True if two jobs may read the same rows: queries of one sequence. */
static bool same_rows(const attn_job *a, const attn_job *b)
{
    return a->rows.k.p == b->rows.k.p && a->rows.v.p == b->rows.v.p && a->rows.type == b->rows.type &&
           a->rows.rotated == b->rows.rotated && a->rows.codes.bits == b->rows.codes.bits && n_units(a) == n_units(b) &&
           a->n_heads == b->n_heads;
}

/* Returns the sort key of a job's pieces, which are stored in this order. Pieces of two jobs with equal keys read the
 * same rows, or nearly the same if their rows come from lists. */
static int64_t rank_of(const piece *p)
{
    return (int64_t)((uint64_t)p->head << 32 | p->part);
}

/* Builds tasks for n jobs with the same rows. Their pieces are consecutive from `from` on and end at end[i]. */
static void share_rows(decode_plan *p, piece *from, piece *const *end, size_t n, size_t most)
{
    piece *at[TOGETHER];
    for (size_t i = 0; i < n; i++) at[i] = i ? end[i - 1] : from;
    for (;;) {
        int64_t least = INT64_MAX;
        size_t chained = 0;
        piece *last = NULL;
        for (size_t i = 0; i < n; i++)
            if (at[i] < end[i] && rank_of(at[i]) < least) least = rank_of(at[i]);
        if (least == INT64_MAX) return;
        for (size_t i = 0; i < n; i++) {
            if (at[i] == end[i] || rank_of(at[i]) != least) continue;
            if (chained++ % most == 0) p->task[p->n_tasks++] = at[i];
            else last->next = at[i];
            last = at[i]++;
        }
    }
}

/* Distributes the pieces to tasks. */
static void decode_tasks(decode_plan *p, size_t threads)
{
    size_t most = p->n / (TASKS_A_THREAD * threads);
    piece *at = p->list, *all = p->list + p->n;
    while (at < all) {
        piece *from = at, *end[TOGETHER];
        size_t n = 0;
        while (at < all && n < TOGETHER && same_rows(from->job, at->job)) {
            const attn_job *j = at->job;
            while (at < all && at->job == j) at++;
            end[n++] = at;
        }
        share_rows(p, from, end, n, most ? most : 1);
    }
}

/* Fills the list of pieces; false after a fault. Sizes follow n_max, which changes less often than n. */
static bool decode_pieces(backend *be, const attn_job *jobs, size_t n_jobs, decode_plan *p)
{
    cpu_ctx *c = cpu_of(be);
    size_t max = 0, floats = 0;
    *p = (decode_plan){0};
    for (size_t i = 0; i < n_jobs; i++) {
        const attn_job *j = &jobs[i];
        if (!cpu_dim_fits(be, j->rows.head_dim)) return false;
        size_t chunks = (size_t)j->n_max / CHUNK + 1, units = n_units(j), heads = j->n_heads / units;
        max += chunks * units * ((heads + DECODE_GROUP - 1) / DECODE_GROUP);
        floats += chunks * part_floats(j->n_heads, j->rows.head_dim);
        size_t work = by_tiles(c->k, j) ? decode_tile_floats(j->rows.head_dim) : decode_work_floats(j->rows.head_dim);
        if (work > p->work_floats) p->work_floats = work;
        if (group_words(j) > p->group_words) p->group_words = group_words(j);
    }
    size_t per_thread = p->work_floats + p->group_words;
    p->list = cpu_scratch(be, &c->tasks, max, sizeof *p->list + sizeof *p->task, "attention pieces");
    float *parts = cpu_scratch(be, &c->parts, floats + (size_t)be->n_threads * per_thread, sizeof *parts,
                               "partial attention results");
    if (!p->list || !parts) return false;
    p->work = parts + floats;
    p->task = (piece **)(void *)(p->list + max);
    for (size_t i = 0; i < n_jobs; i++)
        for (size_t u = 0; u < n_units(&jobs[i]); u++) p->n += unit_pieces(p->list + p->n, &jobs[i], u, &parts);
    for (size_t i = 0; i < p->n; i++) p->flops += p->list[i].n * p->list[i].heads * p->list[i].job->rows.head_dim * 4;
    decode_tasks(p, (size_t)be->n_threads);
    return true;
}

void cpu_attn_decode(backend *be, const attn_job *jobs, size_t n_jobs)
{
    const cpu_kernels *k = cpu_of(be)->k;
    decode_plan p;
    if (!decode_pieces(be, jobs, n_jobs, &p)) return;
#pragma omp parallel num_threads(cpu_team(be, p.flops))
    {
        float *work = p.work + (size_t)threads_id() * (p.work_floats + p.group_words);
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < p.n_tasks; i++)
            for (piece *x = p.task[i]; x;) x = pieces_run(k, x, work, (uint32_t *)(void *)(work + p.work_floats));
#pragma omp for schedule(static)
        for (size_t i = 0; i < p.n; i++)
            if (p.list[i].part == 0) piece_merge(k, &p.list[i]);
    }
    for (size_t i = 0; i < p.n; i++) add_read(p.list[i].job, p.list[i].read, true);
}

/* ---- prefill ---- */

/* Per-thread arrays of a prefill piece. */
typedef struct {
    float *q, *acc, *top, *sum, *work;
    int64_t *lo, *hi;
} row_space;

static size_t row_space_bytes(size_t dim)
{
    size_t pad = prefill_dim_pad(dim), floats = BLOCK_ROWS * (2 * pad + 1 + SUM_LANES) + prefill_work_floats(dim);
    return (floats * sizeof(float) + 2 * BLOCK_ROWS * sizeof(int64_t) + 127) / 64 * 64;
}

static row_space row_space_at(unsigned char *p, size_t dim)
{
    size_t pad = prefill_dim_pad(dim);
    row_space s = {.work = (float *)(void *)p};
    s.q = s.work + prefill_work_floats(dim);
    s.acc = s.q + BLOCK_ROWS * pad;
    s.top = s.acc + BLOCK_ROWS * pad;
    s.sum = s.top + BLOCK_ROWS;
    s.lo = (int64_t *)(void *)(s.sum + BLOCK_ROWS * SUM_LANES);
    s.hi = s.lo + BLOCK_ROWS;
    return s;
}

/* Processes rows [r0, r0 + n) of a unit; row r is token r / heads, head r % heads. */
static void prefill_piece(const cpu_kernels *k, const attn_job *j, size_t i, size_t r0, size_t n, const row_space *s)
{
    unit u = unit_of(j, i);
    size_t d = j->rows.head_dim, pad = prefill_dim_pad(d);
    size_t padded = (n + k->tile_rows - 1) / k->tile_rows * k->tile_rows;
    row_source keys = cpu_rows(&j->rows, false, u.kv_head), values = cpu_rows(&j->rows, true, u.kv_head);
    for (size_t r = 0; r < padded; r++) {
        size_t t = (r0 + r) / u.heads, row = t * j->n_heads + u.head + (r0 + r) % u.heads;
        s->lo[r] = s->hi[r] = 0;
        memset(s->q + r * pad, 0, pad * sizeof *s->q);
        if (r >= n) continue;
        cpu_visible(j, &u.list, t, &s->lo[r], &s->hi[r]);
        k->scale(s->q + r * pad, f32_at(j->q, 0) + row * d, j->scale, d);
        if (keys.rotated) k->hadamard(s->q + r * pad, d);
    }
    const bool rotated = values.rotated;
    keys.rotated = values.rotated =
        false; /* rows are used as stored: queries are rotated, and results are rotated back */
    prefill_block b = {.q = s->q,
                       .lo = s->lo,
                       .hi = s->hi,
                       .k = keys,
                       .v = values,
                       .idx = u.list.idx,
                       .n_rows = padded,
                       .head_dim = d,
                       .list_lo = u.list.first,
                       .list_hi = u.list.first + u.list.n,
                       .acc = s->acc,
                       .top = s->top,
                       .sum = s->sum,
                       .work = s->work,
                       .rounded = j->rounded && j->rows.type != DT_F32};
    k->prefill(&b);
    for (size_t r = 0; r < n; r++) {
        size_t t = (r0 + r) / u.heads, row = t * j->n_heads + u.head + (r0 + r) % u.heads;
        bool empty = s->sum[r] == 0;
        if (rotated) k->hadamard(s->acc + r * pad, d);
        k->scale(f32_at(j->out, 0) + row * d, s->acc + r * pad, empty ? 0 : 1 / s->sum[r], d);
        if (j->lse.p) f32_at(j->lse, 0)[row] = empty ? -INFINITY : s->top[r] + logf(s->sum[r]);
    }
}

/* Returns the rows of a piece: enough that packing a key tile is cheap, few enough that each thread gets several pieces
 * of nearly equal size. Affects only speed. */
static size_t piece_rows(size_t rows, size_t units, size_t threads, size_t tile)
{
    size_t wanted = (3 * threads + units - 1) / units, least = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    size_t pieces = wanted > least ? wanted : least;
    return ((rows + pieces - 1) / pieces + tile - 1) / tile * tile;
}

void cpu_attn_prefill(backend *be, const attn_job *j)
{
    cpu_ctx *c = cpu_of(be);
    const cpu_kernels *k = c->k;
    size_t d = j->rows.head_dim, bytes = row_space_bytes(d), units = n_units(j);
    size_t rows = j->n_tok * (j->n_heads / units), threads = (size_t)be->n_threads;
    if (rows == 0 || !cpu_dim_fits(be, d) || !attn_is_plain(be, j)) return;
    size_t piece_n = piece_rows(rows, units, threads, k->tile_rows), blocks = (rows + piece_n - 1) / piece_n;
    unsigned char *space = cpu_scratch(be, &c->parts, threads * bytes + 4 * group_words(j), 1, "attention work space");
    if (!space) return;
    uint32_t *groups = (uint32_t *)(void *)(space + threads * bytes);
    for (size_t i = 0; i < units; i++) add_read(j, list_read(j, i, groups), true);
#pragma omp parallel for schedule(dynamic, 1) num_threads(be->n_threads)
    for (size_t i = 0; i < units * blocks; i++) {
        /* the last rows see most keys, so they run first, and no thread starts a long piece last */
        size_t r0 = (blocks - 1 - i / units) * piece_n, n = rows - r0 < piece_n ? rows - r0 : piece_n;
        row_space s = row_space_at(space + (size_t)threads_id() * bytes, d);
        prefill_piece(k, j, i % units, r0, n, &s);
    }
}
