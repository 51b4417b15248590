/* SPDX-License-Identifier: MIT */
/* Attention: prompts, decode steps, their merge, over exact rows and codes. */
/* Builds: shim race device */
#include "config.h"

#define TILE_LEVELS "amx-emulated", "amx"
#include "tests/unit/op_attn.h"

static bool by_codes(const op_run *x, const op_shape *s, bool prompt)
{
    return !prompt && (s->bits || dtype_in_qblocks(s->type)) && multiplies_codes(x->be->about);
}

/* True if products are of numbers of 16 bits (tile_attend.h). */
static bool by_tiles(const op_run *x, const op_shape *s, bool prompt)
{
    bool halves = s->type == DT_F16 || s->type == DT_BF16;
    return x->be->tiles && (prompt ? s->type != DT_F32 : s->tiles && halves && !s->bits);
}

/* NMSE of an attention. Where the CPU multiplies bf16, or tensor cores do (ops.h): each of q, k, v and weights that is
 * rounded adds 2.4e-6 for bf16 and 1/64 of that for f16, of sums of few keys up to three times as much. */
static double allowed(const op_run *x, const op_shape *s, bool prompt)
{
    bool tensor = s->dim == 64 || s->dim == 96 || s->dim == 128 || s->dim == 256;
    if (by_codes(x, s, prompt)) return 1e-8;
    if (by_tiles(x, s, prompt)) return 2e-10;
    if (!prompt || !s->rounded || s->type == DT_F32) return 1e-10;
    if (op_on_cuda(x)) return !tensor ? 1e-10 : s->type == DT_BF16 ? 1e-5 : 1.6e-7;
    return strstr(x->be->about, "AVX-512 VNNI") ? 3e-5 : 1e-10;
}

static void run(op_run *x, const attn_job *j, bool prompt)
{
    if (prompt) x->be->ops->attn_prefill(x->be, j);
    else x->be->ops->attn_decode(x->be, j, 1);
}

/* The rows of a store as floats, in which attention has the bits of the store. */
static void as_floats(op_run *x, attn_job j, const op_shape *s, bool prompt)
{
    size_t n = s->kv * j.rows.cap * s->dim, out = 4 * s->n_tok * j.n_heads * s->dim;
    kv_rows plain = {
        op_out(x, 4 * n, BITS, 0), op_out(x, 4 * n, BITS, 0), DT_F32, 0, s->kv, s->dim, j.rows.cap, {0}, NULL, NULL};
    x->be->ops->codes->fetch(x->be, &plain, &j.rows, 0, (int64_t)j.rows.cap, op_read(x));
    buf stored = j.out;
    j.rows = plain;
    j.copied = true;
    j.out = op_out(x, out, NMSE, 1e-10);
    run(x, &j, prompt);
    /* A device adds in another order, and so does the CPU where rows of a list are long. Floats are not rounded. */
    if (!op_on_cuda(x) && (prompt || !s->idx) && !by_codes(x, s, prompt) && !by_tiles(x, s, prompt))
        op_same(x, stored, j.out, out, "rows as floats");
}

static void attend(op_run *x, const op_shape *s, bool prompt)
{
    attn_job j = op_attn(x, s);
    size_t rows = s->n_tok * j.n_heads;
    double most = allowed(x, s, prompt);
    j.out = op_out(x, 4 * rows * s->dim, NMSE, most);
    j.lse = op_out(x, 4 * rows, most > 1e-10 ? MSE : NMSE, most);
    j.read = op_read(x);
    j.score_stride = s->n + 3;
    if (!prompt) j.scores = op_inout(x, NULL, 4 * j.n_heads * j.score_stride, UNIT, 1e-4);
    run(x, &j, prompt);
    if (s->bits && !s->rounded) as_floats(x, j, s, prompt);
}

/* One bias a head and entry of the list; of some heads it leaves out the first entries, or all. */
static buf biases(op_run *x, const attn_job *j, size_t stride)
{
    float *b = random_f32(&x->r, j->n_heads * stride);
    for (size_t i = 0; i < j->n_heads * stride; i++) {
        size_t h = i / stride, at = i % stride;
        bool none = h % 4 == 1 ? at < 70 : h % 4 == 3 || b[i] > 0.7f;
        b[i] = none ? -INFINITY : 4 * b[i];
    }
    buf out = op_in(x, b, 4 * j->n_heads * stride);
    free(b);
    return out;
}

enum { P_DIM, P_GROUP, P_N, P_TYPE, P_LISTS, P_SEEN, P_BAND, P_BITS, P_TOK, P_ROUNDED };

static op_shape shape_of(const int64_t *p)
{
    op_shape s = {.n_tok = (size_t)p[P_TOK],
                  .kv = 2,
                  .group = (size_t)p[P_GROUP],
                  .dim = (size_t)p[P_DIM],
                  .n = (size_t)p[P_N],
                  .type = (dtype)p[P_TYPE],
                  .lists = (int)(p[P_LISTS] / 2),
                  .idx = p[P_LISTS] % 2,
                  .seen = (int)p[P_SEEN],
                  .bits = (int)(p[P_BITS] / 2 * 2),
                  .by_token = p[P_BITS] % 2,
                  .rounded = p[P_ROUNDED] && p[P_DIM] > 2};
    if (s.seen == SEEN_AT && !s.idx) s.seen = SEEN_KPOS;
    if (s.seen) s.band = p[P_BAND];
    return s;
}

static void decode(op_run *x, const int64_t *p)
{
    op_shape s = shape_of(p);
    attend(x, &s, false);
}

static void decode_tiles(op_run *x, const int64_t *p)
{
    op_shape s = shape_of(p);
    s.rounded = false;
    s.tiles = true;
    attend(x, &s, false);
}

static void prefill(op_run *x, const int64_t *p)
{
    op_shape s = shape_of(p);
    attend(x, &s, true);
}

/* A list may have so many keys that the weights of its pieces take more shared memory than every kernel has. */
static void decode_far(op_run *x, const int64_t *p)
{
    op_shape s = {.n_tok = 1, .kv = 1, .group = 1, .dim = 16, .n = 50, .type = (dtype)p[0], .lists = ONE_LIST};
    attn_job j = op_attn(x, &s);
    j.out = op_out(x, 4 * s.dim, NMSE, 1e-10);
    j.n_max = 13000000;
    run(x, &j, false);
}

/* A bias of 0 is none, to the bit. */
static void decode_with_bias(op_run *x, op_shape s, bool pseudo)
{
    s.rounded = false;
    attn_job j = op_attn(x, &s), none;
    size_t out = 4 * j.n_heads * s.dim;
    none = j;
    none.bias_stride = j.bias_stride = s.n + 5;
    j.score_stride = s.n + 3;
    j.bias = biases(x, &j, j.bias_stride);
    j.pseudo = pseudo;
    j.out = op_out(x, out, NMSE, allowed(x, &s, false));
    j.lse = op_out(x, 4 * j.n_heads, allowed(x, &s, false) > 1e-10 ? MSE : NMSE, allowed(x, &s, false));
    j.read = op_read(x);
    j.scores = op_inout(x, NULL, 4 * j.n_heads * j.score_stride, UNIT, 1e-4);
    run(x, &j, false);
    none.out = op_out(x, out, NMSE, allowed(x, &s, false));
    run(x, &none, false);
    buf plain = none.out;
    none.bias = op_in(x, NULL, 4 * j.n_heads * j.bias_stride);
    none.out = op_out(x, out, NMSE, allowed(x, &s, false));
    run(x, &none, false);
    op_same(x, plain, none.out, out, "a bias of 0");
}

/* The last parameter: rows that are no tokens. */
static void decode_biased(op_run *x, const int64_t *p)
{
    decode_with_bias(x, shape_of(p), p[P_ROUNDED]);
}

static void decode_biased_tiles(op_run *x, const int64_t *p)
{
    op_shape s = shape_of(p);
    s.tiles = true;
    decode_with_bias(x, s, p[P_ROUNDED]);
}

/* A rope table of n rows for random positions. */
static buf rope_rows(op_run *x, size_t n, size_t dim)
{
    int64_t *pos = xmalloc(8 * n);
    float *freq = xmalloc(4 * dim / 2);
    for (size_t i = 0; i < n; i++) pos[i] = (int64_t)(rng_next(&x->r) % 40000);
    for (size_t c = 0; c < dim / 2; c++) freq[c] = powf(10000, -2 * (float)c / (float)dim);
    buf out = op_out(x, 4 * n * dim, NMSE, 1e-10);
    x->be->ops->rope_table(x->be, out, op_in(x, pos, 8 * n), n, op_in(x, freq, 2 * dim), dim / 2, 1.1f);
    free(pos), free(freq);
    return out;
}

/* The rows of a job that has no list, in their order as floats, with keys that were rotated before. */
static kv_rows roped(op_run *x, const attn_job *j)
{
    size_t kv = j->rows.n_kv_heads, d = j->rows.head_dim, n = (size_t)j->n_max, bytes = 4 * kv * n * d;
    kv_rows r = {op_out(x, bytes, NMSE, 1e-10), op_out(x, bytes, BITS, 0), DT_F32, 0, kv, d, n, {0}, NULL, NULL};
    x->be->ops->codes->fetch(x->be, &r, &j->rows, j->first, j->n_max, op_read(x));
    for (size_t h = 0; h < kv; h++) {
        buf k = buf_at(r.k, 4 * h * n * d);
        x->be->ops->rope(x->be, k, k, j->rope, n, 1, d, d / 2);
    }
    return r;
}

/* Keys that are turned as they are read: as keys that were turned before, on the CPU to the bit. */
static void decode_roped(op_run *x, const int64_t *p)
{
    op_shape s = shape_of(p);
    s.rounded = false;
    attn_job j = op_attn(x, &s);
    size_t out = 4 * j.n_heads * s.dim;
    j.rope = rope_rows(x, s.n, s.dim);
    j.out = op_out(x, out, NMSE, 1e-10);
    j.lse = op_out(x, 4 * j.n_heads, NMSE, 1e-10);
    j.read = op_read(x);
    j.score_stride = s.n + 3;
    j.scores = op_inout(x, NULL, 4 * j.n_heads * j.score_stride, UNIT, 1e-4);
    if (p[P_ROUNDED]) j.bias_stride = s.n + 5, j.bias = biases(x, &j, j.bias_stride);
    run(x, &j, false);
    if (s.idx || j.range.p) return;
    attn_job plain = j;
    plain.rows = roped(x, &j);
    plain.first = 0;
    plain.rope = plain.read = (buf){NULL};
    plain.out = op_out(x, out, NMSE, 1e-10);
    run(x, &plain, false);
    if (!op_on_cuda(x)) op_same(x, j.out, plain.out, out, "keys turned before");
    float *a = op_see(x, j.out, out), *b = op_see(x, plain.out, out);
    op_note(x, nmse(a, b, out / 4) < 1e-10, "not the keys turned before: %g", nmse(a, b, out / 4));
    free(a), free(b);
}

/* f16 does not hold these queries as they are. */
static void wide_queries(op_run *x, const int64_t *p)
{
    op_shape s = {
        .n_tok = 20, .kv = 1, .group = 2, .dim = 64, .n = 40, .type = DT_F16, .seen = SEEN_KPOS, .rounded = true};
    attn_job j = op_attn(x, &s);
    size_t n_k = j.rows.cap * s.dim, n_q = s.n_tok * 2 * s.dim;
    float *q = op_see(x, j.q, 4 * n_q), by = p[0] ? 0x1p-15f : 0x1p20f;
    uint16_t *k = op_see(x, j.rows.k, 2 * n_k);
    for (size_t i = 0; i < n_k; i++) k[i] = f32_to_f16(f16_to_f32(k[i]) / by);
    for (size_t i = 0; i < n_q; i++) q[i] *= by;
    x->be->ops->upload(x->be, j.q, q, 4 * n_q);
    x->be->ops->upload(x->be, j.rows.k, k, 2 * n_k);
    j.out = op_out(x, 4 * n_q, NMSE, allowed(x, &s, true));
    run(x, &j, true);
    free(q), free(k);
}

/* One prompt at once and in chunks. Keys of later chunks are NaN until their chunk comes: nothing may read them. */
static void chunks(op_run *x, const int64_t *p)
{
    op_shape s = {.n_tok = 100,
                  .kv = 2,
                  .group = 3,
                  .dim = (size_t)p[1],
                  .n = 100,
                  .type = (dtype)p[2],
                  .seen = SEEN_KPOS,
                  .band = p[3],
                  .rounded = true};
    attn_job all = op_attn(x, &s), j = all;
    size_t row = s.dim * dtype_size(s.type), bytes = s.kv * all.rows.cap * row, q_row = 4 * all.n_heads * s.dim;
    unsigned char *k = op_see(x, all.rows.k, bytes), *v = op_see(x, all.rows.v, bytes), *nan = xmalloc(bytes);
    memset(nan, 0xff, bytes);
    all.out = op_out(x, s.n * q_row, NMSE, allowed(x, &s, true));
    all.lse = op_out(x, 4 * s.n * all.n_heads, IN, 0);
    x->be->ops->attn_prefill(x->be, &all);
    buf out = op_out(x, s.n * q_row, IN, 0), lse = op_out(x, 4 * s.n * all.n_heads, IN, 0);
    j.rows.k = op_in(x, nan, bytes), j.rows.v = op_in(x, nan, bytes);
    for (size_t t = 0; t < s.n; t += j.n_tok) {
        j.n_tok = s.n - t < (size_t)p[0] ? s.n - t : (size_t)p[0];
        for (size_t h = 0; h < s.kv; h++) {
            size_t from = (h * j.rows.cap + t) * row;
            x->be->ops->upload(x->be, buf_at(j.rows.k, from), k + from, j.n_tok * row);
            x->be->ops->upload(x->be, buf_at(j.rows.v, from), v + from, j.n_tok * row);
        }
        int64_t range[2] = {0, (int64_t)(t + j.n_tok)};
        x->be->ops->upload(x->be, j.range, range, sizeof range);
        j.q = buf_at(all.q, t * q_row), j.qpos = buf_at(all.qpos, 8 * t);
        j.out = buf_at(out, t * q_row), j.lse = buf_at(lse, 4 * t * all.n_heads);
        x->be->ops->attn_prefill(x->be, &j);
    }
    op_same(x, all.out, out, s.n * q_row, "chunks");
    op_same(x, all.lse, lse, 4 * s.n * all.n_heads, "chunks' lse");
    free(k), free(v), free(nan);
}

/* Queries on both sides of entry 4,096, of which most see entries of both sides, at once and in chunks. */
static void chunks_far(op_run *x, const int64_t *p)
{
    op_shape s = {.n_tok = 528,
                  .kv = 2,
                  .group = 8,
                  .dim = (size_t)p[0],
                  .n = 4360,
                  .type = (dtype)p[1],
                  .seen = SEEN_KPOS,
                  .band = 90,
                  .rounded = true};
    attn_job all = op_attn(x, &s), j = all;
    size_t q_row = 4 * all.n_heads * s.dim;
    all.out = op_out(x, s.n_tok * q_row, NMSE, allowed(x, &s, true));
    all.lse = op_out(x, 4 * s.n_tok * all.n_heads, IN, 0);
    x->be->ops->attn_prefill(x->be, &all);
    buf out = op_out(x, s.n_tok * q_row, IN, 0), lse = op_out(x, 4 * s.n_tok * all.n_heads, IN, 0);
    for (size_t t = 0; t < s.n_tok; t += j.n_tok) {
        j.n_tok = s.n_tok - t < (size_t)p[2] ? s.n_tok - t : (size_t)p[2];
        j.q = buf_at(all.q, t * q_row), j.qpos = buf_at(all.qpos, 8 * t);
        j.out = buf_at(out, t * q_row), j.lse = buf_at(lse, 4 * t * all.n_heads);
        x->be->ops->attn_prefill(x->be, &j);
    }
    op_same(x, all.out, out, s.n_tok * q_row, "chunks");
    op_same(x, all.lse, lse, 4 * s.n_tok * all.n_heads, "chunks' lse");
}

/* Sequences of other lengths, row types, kv heads and lists in one call, more than a launch takes: the bits of each
 * alone. */
static void batch(op_run *x, const int64_t *p)
{
    enum { JOBS = 10 };
    attn_job job[JOBS];
    size_t bytes = 0;
    for (size_t i = 0; i < JOBS; i++) {
        op_shape s = {.n_tok = 1,
                      .kv = i == 6 ? 2 * (size_t)p[1] : 2,
                      .group = i == 6 ? 1 : (size_t)p[1],
                      .dim = 24,
                      .type = (dtype)((p[0] + (int64_t)i / 4) % 3),
                      .n = i == 1 ? (size_t)p[2] : 1 + i * 23,
                      .idx = i > 2 && i<5, .bits = i> 6 ? 4 : 0,
                      .tiles = p[3] && i % 5 > 0};
        job[i] = op_attn(x, &s);
        if (i % 4 == 3) job[i].rope = rope_rows(x, s.n, s.dim);
        if (i % 3 == 1) job[i].bias_stride = s.n, job[i].bias = biases(x, &job[i], s.n);
        bytes = 4 * job[i].n_heads * s.dim;
        job[i].out = op_out(x, bytes, NMSE, allowed(x, &s, false));
        x->be->ops->attn_decode(x->be, &job[i], 1);
    }
    buf alone[JOBS];
    for (size_t i = 0; i < JOBS; i++) alone[i] = job[i].out, job[i].out = op_out(x, bytes, IN, 0);
    x->be->ops->attn_decode(x->be, job, JOBS);
    for (size_t i = 0; i < JOBS; i++) op_same(x, alone[i], job[i].out, bytes, "in a batch");
}

/* Numbers of keys. A CPU splits them into chunks of 2,048; the shim is too slow for so many. */
#ifdef ON_CUDA
#define TOGETHER OP_P(40, 300, 700)
#else
#define TOGETHER OP_P(40, 2055, 4200)
#endif

/* Queries of one sequence in one call, each of which sees one key more, and in between one of another sequence: the
 * bits of each alone. */
static void together(op_run *x, const int64_t *p)
{
    enum { JOBS = 19 };
    attn_job job[JOBS];
    buf alone[JOBS];
    op_shape s = {.n_tok = 1,
                  .kv = 2,
                  .group = (size_t)p[1],
                  .dim = (size_t)p[5],
                  .type = (dtype)p[0],
                  .n = (size_t)p[2],
                  .lists = p[3] ? LIST_PER_HEAD : ONE_LIST,
                  .idx = p[3],
                  .bits = (int)p[4],
                  .tiles = p[6]};
    attn_job first = op_attn(x, &s);
    size_t bytes = 4 * first.n_heads * s.dim;
    for (size_t i = 0; i < JOBS; i++) {
        job[i] = i == 5 ? op_attn(x, &s) : first;
        job[i].tiles &= i != 8;
        job[i].q = op_floats(x, first.n_heads * s.dim);
        if (!s.idx) job[i].range = (buf){NULL}, job[i].first = 0, job[i].n_max = (int64_t)(s.n - JOBS + i);
        job[i].out = alone[i] = op_out(x, bytes, NMSE, allowed(x, &s, false));
        x->be->ops->attn_decode(x->be, &job[i], 1);
        job[i].out = op_out(x, bytes, IN, 0);
    }
    x->be->ops->attn_decode(x->be, job, JOBS);
    for (size_t i = 0; i < JOBS; i++)
        op_same(x, alone[i], job[i].out, bytes, "in a batch with other jobs of its sequence");
}

/* Queries of one sequence whose newest values are not finite: only those that see them have such results. */
static void hidden_rows(op_run *x, const int64_t *p)
{
    enum { JOBS = 16, KEYS = 140, KV = 2, DIM = 32, FINITE = 4 /* jobs that see finite values only */ };
    attn_job job[JOBS];
    op_shape s = {.n_tok = 1, .kv = KV, .group = (size_t)p[1], .dim = DIM, .n = KEYS, .type = (dtype)p[0], .tiles = 1};
    attn_job first = op_attn(x, &s);
    size_t bytes = 4 * first.n_heads * DIM, cap = first.rows.cap, size = KV * cap * DIM * dtype_size(s.type);
    unsigned char *v = op_see(x, first.rows.v, size);
    for (size_t h = 0; h < KV; h++)
        memset(v + (h * cap + KEYS - JOBS + FINITE) * DIM * dtype_size(s.type), 0xff, JOBS * DIM); /* NaN */
    first.rows.v = op_in(x, v, size);
    first.range = (buf){NULL};
    first.first = 0;
    for (size_t i = 0; i < JOBS; i++) {
        job[i] = first;
        job[i].q = op_floats(x, first.n_heads * DIM);
        job[i].n_max = (int64_t)(KEYS - JOBS + 1 + i);
        job[i].out = i < FINITE ? op_out(x, bytes, NMSE, allowed(x, &s, false)) : op_out(x, bytes, BITS_F32, 0);
    }
    x->be->ops->attn_decode(x->be, job, JOBS);
    free(v);
}

/* Rows in the order of slots. */
static buf by_slot(op_run *x, const kv_rows *r, buf rows, const int32_t *at)
{
    size_t row = r->head_dim * dtype_size(r->type), bytes = r->n_kv_heads * r->cap * row;
    unsigned char *from = op_see(x, rows, bytes), *to = xmalloc(bytes);
    for (size_t i = 0; i < r->n_kv_heads * r->cap; i++)
        memcpy(to + i * row, from + (i / r->cap * r->cap + (size_t)at[i % r->cap]) * row, row);
    buf out = op_in(x, to, bytes);
    free(from), free(to);
    return out;
}

/* A store with codes all of whose rows are exact, in any order: the bits of these rows. */
static void all_exact(op_run *x, const int64_t *p)
{
    enum { CAP = 160, KV = 2, DIM = 24, HEADS = 4 };
    int32_t at[CAP];
    size_t n_tok = p[0] ? 3 : 1, bytes = 4 * n_tok * HEADS * DIM;
    for (int i = 0; i < CAP; i++) at[i] = i * 7 % CAP;
    attn_job j = {.q = op_floats(x, n_tok * HEADS * DIM),
                  .n_tok = n_tok,
                  .n_heads = HEADS,
                  .n_lists = 1,
                  .idx_stride = CAP,
                  .n_max = CAP,
                  .scale = 0.5f,
                  .range = op_range(x, 3, CAP - 9),
                  .rows = op_rows(x, KV, DIM, CAP, (dtype)p[1], 2, false)};
    j.rows.codes.k_at = j.rows.codes.v_at = op_in(x, at, sizeof at);
    attn_job plain = j;
    plain.rows.codes = (kv_codes){0};
    plain.rows.k = by_slot(x, &j.rows, j.rows.k, at);
    plain.rows.v = by_slot(x, &j.rows, j.rows.v, at);
    j.out = op_out(x, bytes, NMSE, 1e-10), plain.out = op_out(x, bytes, NMSE, 1e-10);
    j.read = op_read(x), plain.read = op_read(x);
    run(x, &j, p[0]);
    run(x, &plain, p[0]);
    op_same(x, j.out, plain.out, bytes, "exact rows");
    op_same(x, j.read, plain.read, READ_KINDS * sizeof(uint64_t), "exact rows: bytes read");
}

/* Rows and parts that are empty; what an empty part holds does not count. */
static void merge(op_run *x, const int64_t *p)
{
    enum { ROWS = 7 };
    size_t dim = (size_t)p[0], parts = (size_t)p[1], n = parts * ROWS;
    float *f = random_f32(&x->r, n * dim), *l = random_f32(&x->r, n);
    for (size_t k = 0; k < n; k++) l[k] *= 20;
    for (size_t k = 0; k < parts; k++) l[k * ROWS + 3] = -INFINITY;
    if (parts > 1) l[ROWS + 1] = -INFINITY, f[(ROWS + 1) * dim] = NAN;
    buf part = op_in(x, f, 4 * n * dim), lses = op_in(x, l, 4 * n), out = op_out(x, 4 * ROWS * dim, NMSE, 1e-12);
    x->be->ops->attn_merge(x->be, out, op_out(x, 4 * ROWS, NMSE, 1e-12), part, lses, parts, ROWS, dim);
    buf again = op_out(x, 4 * ROWS * dim, IN, 0);
    x->be->ops->attn_merge(x->be, again, (buf){NULL}, part, lses, parts, ROWS, dim);
    op_same(x, out, again, 4 * ROWS * dim, "without lse");
    free(f), free(l);
}

#define DIMS        OP_P(2, 6, 8, 18, 32, 64, 80, 96, 128, 256)
#define TENSOR_DIMS OP_P(64, 96, 128, 256)
#define BLOCK_DIMS  OP_P(32, 64, 128, 256)
#define BLOCK_TYPES OP_P(DT_Q8, DT_Q4)
#define GROUPS      OP_P(1, 2, 3, 4, 5, 6, 7, 8, 21)
#define LENGTHS     OP_P(1, 2, 5, 7, 31, 63, 64, 65, 128, 129, 130, 191, 200)
#define LISTS       OP_P(0, 1, 2, 3, 4, 5)
#define SEEN        OP_P(SEEN_ALL, SEEN_KPOS, SEEN_AT)
#define BANDS       OP_P(0, 0, 1, 20, 70, 128)
#define TOKENS      OP_P(1, 2, 3, 5, 17, 44, 130)
#define NONE        OP_P(0)
#define FORMS       OP_P(2, 3, 4, 5)

#ifdef ON_CUDA
#define LONG OP_P(4095, 4096, 4097, 16385) /* where the size of pieces changes */
#else
#define LONG OP_P(4500, 6001)
#endif

static const op_test tests[] = {
    {"decode", decode, 360, 7, 61, {DIMS, GROUPS, LENGTHS, OP_TYPES, LISTS, SEEN, BANDS, NONE, OP_P(1), NONE}},
    {"decode over codes",
     decode,
     200,
     5,
     41,
     {DIMS, GROUPS, LENGTHS, OP_TYPES, LISTS, SEEN, BANDS, FORMS, OP_P(1), NONE}},
    {"decode, pieces",
     decode,
     10,
     2,
     0,
     {OP_P(8), OP_P(2, 4), LONG, OP_TYPES, LISTS, SEEN, OP_P(0, 4000), OP_P(0, 2, 5), OP_P(1), NONE}},
    {"decode, room for very many keys", decode_far, 3, 1, 0, {OP_TYPES}},
    {"decode with a bias",
     decode_biased,
     360,
     7,
     61,
     {DIMS, GROUPS, LENGTHS, OP_TYPES, LISTS, SEEN, BANDS, OP_P(0, 0, 2, 5), OP_P(1), OP_BOOL}},
    {"decode with a bias, pieces",
     decode_biased,
     10,
     2,
     0,
     {OP_P(8), OP_P(2, 4), LONG, OP_TYPES, LISTS, SEEN, OP_P(0, 4000), OP_P(0, 2), OP_P(1), OP_BOOL}},
    {"decode with turned keys",
     decode_roped,
     360,
     7,
     61,
     {DIMS, GROUPS, LENGTHS, OP_TYPES, LISTS, SEEN, BANDS, OP_P(0, 0, 2, 5), OP_P(1), OP_BOOL}},
    {"decode with turned keys, pieces",
     decode_roped,
     12,
     2,
     0,
     {OP_P(8, 72), OP_P(2, 4), LONG, OP_TYPES, LISTS, SEEN, OP_P(0, 4000), OP_P(0, 2), OP_P(1), OP_BOOL}},
    {"prefill", prefill, 360, 13, 89, {DIMS, GROUPS, LENGTHS, OP_TYPES, LISTS, SEEN, BANDS, NONE, TOKENS, OP_BOOL}},
    {"decode over rows in blocks",
     decode,
     200,
     5,
     41,
     {BLOCK_DIMS, GROUPS, LENGTHS, BLOCK_TYPES, LISTS, SEEN, BANDS, NONE, OP_P(1), NONE}},
    {"decode over rows in blocks, pieces",
     decode,
     10,
     2,
     0,
     {OP_P(32, 64), OP_P(2, 4), LONG, BLOCK_TYPES, LISTS, SEEN, OP_P(0, 4000), NONE, OP_P(1), NONE}},
    {"decode over rows in blocks with a bias",
     decode_biased,
     60,
     5,
     17,
     {OP_P(64, 128, 256), GROUPS, LENGTHS, BLOCK_TYPES, LISTS, SEEN, BANDS, NONE, OP_P(1), OP_BOOL}},
    {"prefill over rows in blocks",
     prefill,
     120,
     7,
     53,
     {BLOCK_DIMS, GROUPS, LENGTHS, BLOCK_TYPES, LISTS, SEEN, BANDS, NONE, TOKENS, OP_BOOL}},
    {"decode over rows in blocks with turned keys",
     decode_roped,
     100,
     7,
     41,
     {BLOCK_DIMS, GROUPS, LENGTHS, BLOCK_TYPES, LISTS, SEEN, BANDS, NONE, OP_P(1), OP_BOOL}},
    {"prefill with tensor cores",
     prefill,
     60,
     3,
     17,
     {TENSOR_DIMS, GROUPS, LENGTHS, OP_TYPES, LISTS, SEEN, BANDS, NONE, OP_P(1, 17, 40, 64), OP_P(1)}},
    {"prefill over codes",
     prefill,
     200,
     7,
     53,
     {DIMS, GROUPS, LENGTHS, OP_TYPES, LISTS, SEEN, BANDS, FORMS, OP_P(1, 2, 4), OP_BOOL}},
    {"prefill, queries beyond f16", wide_queries, 2, 1, 0, {OP_BOOL}},
    {"prefill in chunks", chunks, 36, 7, 0, {OP_P(1, 7, 33, 64), OP_P(40, 64), OP_TYPES, OP_P(0, 30, 90)}},
    {"prefill in chunks, many keys", chunks_far, 4, 2, 3, {OP_P(64, 128), OP_P(DT_F16, DT_BF16), OP_P(100, 300)}},
    {"prefill of few queries, many keys",
     prefill,
     6,
     3,
     5,
     {TENSOR_DIMS, OP_P(1, 3), OP_P(4097, 8300), OP_P(DT_F16, DT_BF16), LISTS, SEEN, OP_P(0, 4200), NONE, OP_P(1, 5),
      OP_P(1)}},
    {"decode, a batch", batch, 12, 3, 0, {OP_P(0, 1, 2), OP_P(1, 3, 4), OP_P(24, 5000)}},
    {"decode, queries of one sequence",
     together,
     12,
     3,
     0,
     {OP_TYPES, OP_P(1, 3, 20), TOGETHER, OP_BOOL, OP_P(0, 2), OP_P(24, 64)}},
    {"decode, queries of one sequence, groups and head sizes",
     together,
     12,
     2,
     0,
     {OP_TYPES, GROUPS, OP_P(20, 84, 150), NONE, OP_P(0, 2, 4), OP_P(64, 80, 96, 128)}},
    {"decode, queries of one sequence over rows in blocks",
     together,
     6,
     2,
     0,
     {BLOCK_TYPES, GROUPS, OP_P(20, 84, 150), NONE, NONE, OP_P(64, 128)}},
    {"decode by tiles",
     decode_tiles,
     200,
     0,
     0,
     {DIMS, GROUPS, LENGTHS, OP_TYPES, LISTS, SEEN, BANDS, NONE, OP_P(1), NONE}},
    {"decode by tiles over codes",
     decode_tiles,
     20,
     0,
     0,
     {DIMS, GROUPS, LENGTHS, OP_TYPES, LISTS, SEEN, BANDS, FORMS, OP_P(1), NONE}},
    {"decode by tiles, pieces",
     decode_tiles,
     6,
     0,
     0,
     {OP_P(8), OP_P(2, 4), LONG, OP_TYPES, LISTS, SEEN, OP_P(0, 4000), NONE, OP_P(1), NONE}},
    {"decode by tiles with a bias",
     decode_biased_tiles,
     100,
     0,
     0,
     {DIMS, GROUPS, LENGTHS, OP_TYPES, LISTS, SEEN, BANDS, NONE, OP_P(1), OP_BOOL}},
    {"decode by tiles, queries of one sequence",
     together,
     12,
     0,
     0,
     {OP_TYPES, GROUPS, OP_P(20, 84, 150), OP_BOOL, NONE, OP_P(24, 64, 80, 128), OP_P(1)}},
    {"decode by tiles, queries of one sequence, pieces",
     together,
     2,
     0,
     0,
     {OP_P(DT_F16, DT_BF16), OP_P(1, 4), OP_P(2055), NONE, NONE, OP_P(24), OP_P(1)}},
    {"decode by tiles, a batch", batch, 6, 0, 0, {OP_P(0, 1, 2), OP_P(1, 3, 4), OP_P(24, 5000), OP_P(1)}},
    {"decode by tiles, rows that are not finite", hidden_rows, 4, 0, 0, {OP_P(DT_F16, DT_BF16), OP_P(1, 4)}},
    {"prefill and decode, rows that are all exact in a store with codes", all_exact, 12, 3, 0, {OP_BOOL, OP_TYPES}},
    {"attn_merge", merge, 60, 5, 17, {OP_P(2, 6, 8, 10, 32, 64, 80, 96, 128, 256), OP_P(1, 2, 3, 4, 5)}},
};

#ifndef ON_CUDA
static void test_fault(void)
{
    backend *be = open_level("generic", 1);
    op_run x = {.be = be};
    err e = {0};
    op_shape s = {.n_tok = 1, .kv = 1, .group = 1, .dim = 258, .n = 4};
    attn_job j = op_attn(&x, &s);
    be->ops->attn_decode(be, &j, 1);
    is_err(backend_fault(be, &e), &e, ST_UNSUPPORTED, "258", "a head_dim above 256 is a fault that names it");
    op_end(&x);
    backend_close(be);
}

/* Jobs that only attn_decode supports. */
static void test_prompt_fault(bool rope, const char *what)
{
    backend *be = open_level("generic", 1);
    op_run x = {.be = be};
    err e = {0};
    op_shape s = {.n_tok = 2, .kv = 1, .group = 1, .dim = 8, .n = 4};
    attn_job j = op_attn(&x, &s);
    j.out = op_out(&x, 4 * s.n_tok * s.dim, IN, 0);
    *(rope ? &j.rope : &j.bias) = op_floats(&x, s.n * s.dim);
    be->ops->attn_prefill(be, &j);
    is_err(backend_fault(be, &e), &e, ST_UNSUPPORTED, what, "in a prompt a fault: %s", what);
    op_end(&x);
    backend_close(be);
}
#endif

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
#ifndef ON_CUDA
    test_fault();
    test_prompt_fault(false, "a bias");
    test_prompt_fault(true, "RoPE of keys");
#endif
    return tap_done();
}
