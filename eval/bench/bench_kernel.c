/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/bench/bench_kernel.h"

#include "eval/bench/bench_fill.h"

#include <math.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "kernels/half.h"
#include "kernels/ops_codes.h"
#include "kernels/ops_fier.h"
#include "kernels/ops_paris.h"
#include "kernels/ops_quest.h"
#include "kernels/ops_rows.h"
#include "kernels/ops_select.h"

enum {
    BUFFERS = 12,
    PAGE = 16,                /* tokens per page of quest */
    GROUP = 32,               /* tokens per group of fier and of quantized keys, channels per run of quantized values */
    CHUNK = BENCH_KERNEL_CTX, /* query rows of a prompt */
    VERIFIED = 8,             /* most query rows of a verification */
    COLD_BYTES = 64 << 20,    /* bytes read by a sample on the CPU, */
    DEVICE_BYTES = 512 << 20, /* and on a device; more than the caches hold */
    PATTERN = 1 << 20,        /* random halves, repeated to fill a buffer */
    HOT_STEPS = 16,           /* steps of a sample whose input is cached */
    LISTS = 8                 /* different lists per layer */
};

static const float VOTE_SCALE = 0.125f;

typedef struct rig rig;

typedef struct {
    const char *name, *unit;
    status (*make)(rig *r, kernel_result *k, err *e);
    void (*step)(rig *r, size_t i); /* runs on layer i */
    size_t run;                     /* lists: consecutive tokens; verifications: query rows */
    bool int8, votes;               /* fier: int8 products; combines the heads of a group */
    dtype rows;                     /* type of the rows that are attended */
    int bits;                       /* rows are quantized as KIVI does, to 2 or 4 bits; 0: they are not */
    bool tiles;                     /* attn_job.tiles */
} kernel_kind;

struct rig {
    backend *be;
    const kernel_shape *s;
    const kernel_kind *kind;
    size_t n_steps, n_layers;
    buf list[BUFFERS];
    size_t bytes[BUFFERS], n;
    /* Buffers of a step. Per-layer buffers hold n_layers parts of `layer` bytes. */
    buf q, k, v, at, index, out, idx, pos, work;
    size_t layer, idx_layer, idx_stride;
};

/* ---- data ---- */

/* Allocates a zeroed buffer that is freed with the rig. */
static status room(rig *r, buf *out, size_t bytes, err *e)
{
    TRY(r->be->ops->alloc(r->be, out, bytes, "benchmark of a kernel", e));
    r->list[r->n] = *out;
    r->bytes[r->n++] = bytes;
    return ST_OK;
}

static status random_f32(rig *r, buf *out, size_t n, err *e)
{
    rng g = {r->s->seed};
    float *x;
    n += n % 2;
    TRY(room(r, out, n * sizeof *x, e));
    TRY(MEM_NEW(&x, n, e));
    fill_normals(&g, x, n);
    r->be->ops->upload(r->be, *out, x, n * sizeof *x);
    mem_free(x);
    return ST_OK;
}

static status random_halves(rig *r, buf *out, size_t bytes, err *e)
{
    enum { N = PATTERN / 2 };
    rng g = {r->s->seed};
    float *x;
    uint16_t *h = NULL;
    TRY(room(r, out, bytes, e));
    TRY(MEM_NEW(&x, N, e));
    status st = MEM_NEW(&h, N, e);
    if (st == ST_OK) {
        fill_normals(&g, x, N);
        for (size_t i = 0; i < N; i++) h[i] = f32_to_f16(x[i]);
        for (size_t at = 0; at < bytes; at += PATTERN)
            r->be->ops->upload(r->be, buf_at(*out, at), h, bytes - at < PATTERN ? bytes - at : PATTERN);
    }
    mem_free(x);
    mem_free(h);
    return st;
}

/* Sets the number of layers so that a sample reads COLD_BYTES, if one step reads `bytes`. */
static void cold(rig *r, size_t bytes, size_t lists)
{
    size_t all = strcmp(r->be->name, "cpu") == 0 ? COLD_BYTES : DEVICE_BYTES, steps = all / bytes + 1;
    r->n_layers = (steps + lists - 1) / lists;
    if (r->n_layers < 2) r->n_layers = 2;
    r->n_steps = r->n_layers * lists;
}

/* ---- attention ---- */

static kv_codes codes_of(const rig *r)
{
    return (kv_codes){.bits = r->kind->bits,
                      .cap = ((size_t)r->s->ctx + GROUP - 1) / GROUP * GROUP,
                      .group = GROUP,
                      .run = GROUP,
                      .k_at = r->at,
                      .v_at = r->at};
}

/* Returns the bytes of a row of K or of V, with the pairs of quantized rows. */
static size_t row_bytes(const rig *r)
{
    const kv_codes c = codes_of(r);
    const size_t d = r->s->head_dim;
    return c.bits ? codes_row_bytes(&c, d) + 4 * codes_runs(&c, d) : kv_row_bytes(r->kind->rows, d);
}

static kv_rows rows_of(const rig *r, size_t layer)
{
    const kernel_shape *s = r->s;
    kv_rows rows = {.k = buf_at(r->k, layer * r->layer),
                    .v = buf_at(r->v, layer * r->layer),
                    .type = r->kind->rows,
                    .n_kv_heads = s->n_kv_heads,
                    .head_dim = s->head_dim,
                    .cap = (size_t)s->ctx};
    if (!r->kind->bits) return rows;
    rows.codes = codes_of(r);
    const size_t codes = s->n_kv_heads * rows.codes.cap * codes_row_bytes(&rows.codes, s->head_dim);
    rows.codes.k = rows.k, rows.codes.k_pair = buf_at(rows.k, codes);
    rows.codes.v = rows.v, rows.codes.v_pair = buf_at(rows.v, codes);
    return rows;
}

static attn_job job_of(const rig *r, size_t layer, size_t n_tok)
{
    const kernel_shape *s = r->s;
    return (attn_job){.q = r->q,
                      .out = r->out,
                      .n_tok = n_tok,
                      .n_heads = s->n_heads,
                      .rows = rows_of(r, layer),
                      .n_lists = 1,
                      .n_max = s->ctx,
                      .scale = 1 / sqrtf((float)s->head_dim),
                      .tiles = r->kind->tiles};
}

/* Makes the table of slots of quantized rows: slot i is row i. */
static status make_slots(rig *r, err *e)
{
    const size_t n = codes_of(r).cap;
    int32_t *at;
    TRY(room(r, &r->at, n * sizeof *at, e));
    TRY(MEM_NEW(&at, n, e));
    for (size_t i = 0; i < n; i++) at[i] = -1 - (int32_t)i;
    r->be->ops->upload(r->be, r->at, at, n * sizeof *at);
    mem_free(at);
    return ST_OK;
}

static status make_rows(rig *r, size_t n_tok, err *e)
{
    const kernel_shape *s = r->s;
    size_t q = n_tok * s->n_heads * s->head_dim;
    if (r->kind->tiles && !r->be->tiles) return err_set(e, ST_UNSUPPORTED, "the %s backend has no tiles", r->be->name);
    if (dtype_in_qblocks(r->kind->rows) && s->head_dim % ROW_BLOCK)
        return err_set(e, ST_UNSUPPORTED, "%zu channels of a head are no multiple of %d", s->head_dim, ROW_BLOCK);
    r->layer = s->n_kv_heads * (r->kind->bits ? codes_of(r).cap : (size_t)s->ctx) * row_bytes(r);
    if (r->kind->bits) TRY(make_slots(r, e));
    TRY(random_f32(r, &r->q, q, e));
    TRY(room(r, &r->out, q * sizeof(float), e));
    TRY(random_halves(r, &r->k, r->n_layers * r->layer, e));
    return random_halves(r, &r->v, r->n_layers * r->layer, e);
}

/* Allocates rows of which a step of n_tok queries reads n tokens, in more layers than a cache holds. lists: different
 * lists per layer. */
static status make_cold_rows(rig *r, kernel_result *k, size_t n_tok, int64_t n, size_t lists, err *e)
{
    const kernel_shape *s = r->s;
    cold(r, 2 * s->n_kv_heads * (size_t)n * row_bytes(r), lists);
    k->units = (double)r->n_steps * (double)s->n_kv_heads * (double)n;
    k->need = 2 * (double)row_bytes(r) * k->units;
    return make_rows(r, n_tok, e);
}

static void prefill_step(rig *r, size_t i)
{
    attn_job j = job_of(r, i % r->n_layers, CHUNK);
    j.qpos = r->pos;
    j.masked = true;
    j.rounded = true;
    r->be->ops->attn_prefill(r->be, &j);
}

static status prefill_make(rig *r, kernel_result *k, err *e)
{
    const kernel_shape *s = r->s;
    int64_t pos[CHUNK];
    for (int64_t i = 0; i < CHUNK; i++) pos[i] = s->ctx - CHUNK + i;
    r->n_layers = r->n_steps = 2;
    TRY(make_rows(r, CHUNK, e));
    TRY(room(r, &r->pos, sizeof pos, e));
    r->be->ops->upload(r->be, r->pos, pos, sizeof pos);
    double seen = CHUNK * ((double)s->ctx - (CHUNK - 1) / 2.0) * (double)(s->n_heads * r->n_steps);
    k->product = true;
    k->need = 4 * (double)s->head_dim * seen;
    k->units = seen;
    return ST_OK;
}

static void decode_step(rig *r, size_t i)
{
    attn_job j = job_of(r, i % r->n_layers, 1);
    r->be->ops->attn_decode(r->be, &j, 1);
}

static status decode_make(rig *r, kernel_result *k, err *e)
{
    return make_cold_rows(r, k, 1, r->s->ctx, 1, e);
}

/* Row t sees one key more than the row before. */
static void verify_step(rig *r, size_t i)
{
    attn_job j[VERIFIED];
    size_t row = r->s->n_heads * r->s->head_dim * sizeof(float), n = r->kind->run;
    for (size_t t = 0; t < n; t++) {
        j[t] = job_of(r, i % r->n_layers, 1);
        j[t].q = buf_at(r->q, t * row);
        j[t].out = buf_at(r->out, t * row);
        j[t].n_max -= (int64_t)(n - 1 - t);
    }
    r->be->ops->attn_decode(r->be, j, n);
}

static status verify_make(rig *r, kernel_result *k, err *e)
{
    return make_cold_rows(r, k, r->kind->run, r->s->ctx, 1, e);
}

static void list_step(rig *r, size_t i)
{
    attn_job j = job_of(r, i % r->n_layers, 1);
    j.n_lists = r->s->n_kv_heads;
    j.n_max = r->s->budget;
    j.idx = buf_at(r->idx, i * r->idx_layer);
    j.idx_stride = r->idx_stride;
    r->be->ops->attn_decode(r->be, &j, 1);
}

/* Writes n of `all` items, ascending. */
static void some_of(rng *g, int32_t *out, size_t n, size_t all)
{
    for (size_t i = 0, got = 0; got < n; i++)
        if (rng_below(g, all - i) < n - got) out[got++] = (int32_t)i;
}

/* Makes a list of the budget's tokens, in runs of `run` tokens, for each step and head. */
static status make_lists(rig *r, size_t run, err *e)
{
    const kernel_shape *s = r->s;
    size_t n = (size_t)s->budget, lists = r->n_steps * s->n_kv_heads;
    rng g = {s->seed};
    int32_t *idx;
    r->idx_stride = n;
    r->idx_layer = s->n_kv_heads * n * sizeof *idx;
    TRY(room(r, &r->idx, lists * n * sizeof *idx, e));
    TRY(MEM_NEW(&idx, lists * n, e));
    for (size_t l = 0; l < lists; l++) {
        int32_t *of = idx + l * n;
        some_of(&g, of, n / run, (size_t)s->ctx / run);
        for (size_t i = n; i-- > 0;) of[i] = of[i / run] * (int32_t)run + (int32_t)(i % run);
    }
    r->be->ops->upload(r->be, r->idx, idx, lists * n * sizeof *idx);
    mem_free(idx);
    return ST_OK;
}

static status list_make(rig *r, kernel_result *k, err *e)
{
    int64_t run = (int64_t)r->kind->run;
    TRY(make_cold_rows(r, k, 1, r->s->budget / run * run, LISTS, e));
    return make_lists(r, (size_t)run, e);
}

/* ---- selectors ---- */

/* Allocates a query, and scores of `items` for each query head. */
static status make_scores(rig *r, int64_t items, err *e)
{
    const kernel_shape *s = r->s;
    TRY(random_f32(r, &r->q, s->n_heads * s->head_dim, e));
    return random_f32(r, &r->out, s->n_heads * (size_t)items, e);
}

/* Allocates an index of `layer` bytes per layer, in more layers than a cache holds. Its bits are random; all values are
 * valid. */
static status make_index(rig *r, kernel_result *k, size_t layer, int64_t tokens, err *e)
{
    r->layer = layer;
    cold(r, layer, 1);
    k->units = (double)(r->n_steps * r->s->n_kv_heads) * (double)tokens;
    k->need = (double)(r->n_steps * layer);
    return random_halves(r, &r->index, r->n_layers * layer, e);
}

/* Sets up a step whose input is cached: scores of all tokens. */
static status make_hot(rig *r, kernel_result *k, err *e)
{
    r->n_steps = HOT_STEPS;
    k->units = (double)(r->n_steps * r->s->n_kv_heads) * (double)r->s->ctx;
    return make_scores(r, r->s->ctx, e);
}

/* Returns a job that scores all items. */
static score_job score_all(const rig *r, const void *index, int64_t items)
{
    return (score_job){.index = index,
                       .q = r->q,
                       .n_heads = r->s->n_heads,
                       .score = r->out,
                       .stride = (size_t)items,
                       .items = {r->s->ctx, 0, items},
                       .scale = VOTE_SCALE};
}

static void quest_step(rig *r, size_t i)
{
    const kernel_shape *s = r->s;
    size_t pages = (size_t)s->ctx / PAGE;
    quest_index x = {
        buf_at(r->index, i * r->layer), DT_F16, s->n_kv_heads, s->head_dim, pages, PAGE, QUEST_SUM, {NULL}};
    score_job j = score_all(r, &x, (int64_t)pages);
    r->be->ops->quest->score(r->be, &j, 1);
}

static status quest_make(rig *r, kernel_result *k, err *e)
{
    int64_t pages = r->s->ctx / PAGE;
    TRY(make_scores(r, pages, e));
    return make_index(r, k, r->s->n_kv_heads * (size_t)pages * 2 * row_bytes(r), pages * PAGE, e);
}

static fier_index fier_layer(const rig *r, size_t i)
{
    const kernel_shape *s = r->s;
    buf at = buf_at(r->index, i * r->layer);
    size_t words = fier_words(s->head_dim), bits = s->n_kv_heads * (((size_t)s->ctx + 31) / 32) * words * 128;
    return (fier_index){.bits = at,
                        .levels = buf_at(at, bits),
                        .type = DT_F16,
                        .n_kv_heads = s->n_kv_heads,
                        .head_dim = s->head_dim,
                        .cap = (size_t)s->ctx,
                        .group = GROUP,
                        .products = r->kind->int8 ? FIER_INT8 : FIER_FLOAT};
}

static void fier_step(rig *r, size_t i)
{
    const fier_index x = fier_layer(r, i);
    score_job j = score_all(r, &x, r->s->ctx);
    j.votes = r->work; /* NULL without votes */
    r->be->ops->fier->score(r->be, &j, 1);
}

static status fier_make(rig *r, kernel_result *k, err *e)
{
    const kernel_shape *s = r->s;
    size_t groups = ((size_t)s->ctx + GROUP - 1) / GROUP, votes = s->n_kv_heads * (size_t)s->ctx * sizeof(float);
    TRY(make_scores(r, s->ctx, e));
    if (r->kind->votes) TRY(room(r, &r->work, votes, e));
    return make_index(r, k, s->n_kv_heads * groups * (fier_words(s->head_dim) * 4 * GROUP + 2 * row_bytes(r)), s->ctx,
                      e);
}

static void paris_step(rig *r, size_t i)
{
    const kernel_shape *s = r->s;
    paris_index x = {.id = buf_at(r->index, i * r->layer),
                     .n_kv_heads = s->n_kv_heads,
                     .head_dim = s->head_dim,
                     .cap = (size_t)s->ctx};
    const paris_job j = {.x = &x, .range = {0, s->ctx}, .bonus = r->work, .score = r->out};
    r->be->ops->paris->collide(r->be, &j);
}

static status paris_make(rig *r, kernel_result *k, err *e)
{
    const kernel_shape *s = r->s;
    size_t nb = paris_subspaces(s->head_dim);
    if (!r->be->ops->paris) return err_set(e, ST_UNSUPPORTED, "the %s backend lacks pariskv operations", r->be->name);
    TRY(room(r, &r->out, s->n_kv_heads * (size_t)s->ctx, e));
    TRY(room(r, &r->work, s->n_kv_heads * nb * PARIS_PATTERNS, e));
    return make_index(r, k, s->n_kv_heads * (size_t)s->ctx * nb, s->ctx, e);
}

static void vote_step(rig *r, size_t i)
{
    const kernel_shape *s = r->s;
    (void)i;
    combine_job j = {r->work, r->out, (size_t)s->ctx, s->n_heads, s->n_kv_heads, 0, s->ctx, GQA_VOTE, VOTE_SCALE};
    r->be->ops->select->combine(r->be, &j, 1);
}

static status vote_make(rig *r, kernel_result *k, err *e)
{
    TRY(make_hot(r, k, e));
    return room(r, &r->work, r->s->n_kv_heads * (size_t)r->s->ctx * sizeof(float), e);
}

static void topk_step(rig *r, size_t i)
{
    const kernel_shape *s = r->s;
    (void)i;
    const choose_job j = {.score = r->out,
                          .items = {s->ctx, 0, s->ctx},
                          .k = s->budget,
                          .tail = s->ctx,
                          .n_lists = s->n_kv_heads,
                          .stride = (size_t)s->ctx,
                          .granule = 1,
                          .most = s->ctx,
                          .idx_stride = s->budget,
                          .idx = r->idx,
                          .range = r->q};
    r->be->ops->select->choose(r->be, &j, 1);
}

static status topk_make(rig *r, kernel_result *k, err *e)
{
    const kernel_shape *s = r->s;
    TRY(make_hot(r, k, e));
    TRY(room(r, &r->q, s->n_kv_heads * 2 * sizeof(int64_t), e));
    return room(r, &r->idx, s->n_kv_heads * (size_t)s->budget * sizeof(int32_t), e);
}

/* ---- the list of kernels ---- */

#define TOKEN "token and kv head"
static const kernel_kind kernels[] = {
    {"prefill attention, 512 rows", "key, row and query head", prefill_make, prefill_step, 0, false, false, DT_F16, 0,
     false},
    {"decode attention", TOKEN, decode_make, decode_step, 0, false, false, DT_F16, 0, false},
    {"decode attention, q8", TOKEN, decode_make, decode_step, 0, false, false, DT_Q8, 0, false},
    {"decode attention, q4", TOKEN, decode_make, decode_step, 0, false, false, DT_Q4, 0, false},
    {"decode attention, kivi4", TOKEN, decode_make, decode_step, 0, false, false, DT_F16, 4, false},
    {"decode attention, kivi2", TOKEN, decode_make, decode_step, 0, false, false, DT_F16, 2, false},
    {"verification, 5 rows", TOKEN, verify_make, verify_step, 5, false, false, DT_F16, 0, false},
    {"decode attention, tiles", TOKEN, decode_make, decode_step, 0, false, false, DT_F16, 0, true},
    {"verification, 4 rows, tiles", TOKEN, verify_make, verify_step, 4, false, false, DT_F16, 0, true},
    {"pages of 16", TOKEN, list_make, list_step, PAGE, false, false, DT_F16, 0, false},
    {"single tokens", TOKEN, list_make, list_step, 1, false, false, DT_F16, 0, false},
    {"quest score", TOKEN, quest_make, quest_step, 0, false, false, DT_F16, 0, false},
    {"fier score", TOKEN, fier_make, fier_step, 0, false, false, DT_F16, 0, false},
    {"fier score and vote", TOKEN, fier_make, fier_step, 0, false, true, DT_F16, 0, false},
    {"fier score, int8", TOKEN, fier_make, fier_step, 0, true, false, DT_F16, 0, false},
    {"fier score and vote, int8", TOKEN, fier_make, fier_step, 0, true, true, DT_F16, 0, false},
    {"pariskv votes", TOKEN, paris_make, paris_step, 0, false, false, DT_F16, 0, false},
    {"vote of a group", TOKEN, vote_make, vote_step, 0, false, false, DT_F16, 0, false},
    {"top-k", "score and list", topk_make, topk_step, 0, false, false, DT_F16, 0, false},
};

size_t bench_kernels(void)
{
    return sizeof kernels / sizeof *kernels;
}

const char *bench_kernel_name(size_t i)
{
    return kernels[i].name;
}

static status run_steps(void *ctx, int64_t *ns, err *e)
{
    rig *r = ctx;
    int64_t start = clock_ns();
    for (size_t i = 0; i < r->n_steps; i++) r->kind->step(r, i);
    r->be->ops->sync(r->be);
    *ns = clock_ns() - start;
    return backend_fault(r->be, e);
}

status bench_kernel(size_t i, backend *be, const kernel_shape *s, const bench_timing *timing, kernel_result *out,
                    err *e)
{
    rig r = {.be = be, .s = s, .kind = &kernels[i]};
    int64_t ns;
    *out = (kernel_result){.name = kernels[i].name, .unit = kernels[i].unit};
    status st = kernels[i].make(&r, out, e);
    bench_timing t = *timing;
    t.run = run_steps;
    t.ctx = &r;
    t.product = out->product;
    if (st == ST_OK) st = run_steps(&r, &ns, e); /* warm-up: work space, first touch */
    if (st == ST_OK) st = bench_sample(&out->samples, &t, e);
    while (r.n > 0) {
        r.n--;
        be->ops->free(be, r.list[r.n], r.bytes[r.n]);
    }
    return st;
}
