/* SPDX-License-Identifier: MIT */
/* Sums of rows, and the mean of those that lists leave out. */
/* Builds: shim race device */
#include "config.h"

#include "kernels/ops_tail.h"
#include "tests/unit/op_attn.h"

enum { KV = 3, MORE = 3 /* tokens that a rewind drops, of the same block: sums of later ones stay behind */ };

static tail_sums sums_of(op_run *x, size_t dim, int64_t n, dtype type, int64_t block)
{
    tail_sums s = {
        .block = block, .type = type, .n_kv_heads = KV, .head_dim = dim, .cap = (size_t)tail_blocks(n + MORE, block)};
    s.sum = op_out(x, KV * 2 * s.cap * dim * 4, BITS, 0);
    return s;
}

static size_t sum_bytes(const tail_sums *s)
{
    return KV * 2 * s->cap * s->head_dim * 4;
}

static tail_add_job add_of(const tail_sums *to, buf k, buf v, int64_t from, int64_t end)
{
    size_t at = (size_t)from * KV * to->head_dim * 4;
    return (tail_add_job){to, from, buf_at(k, at), buf_at(v, at), (size_t)(end - from)};
}

/* At once, in pieces beside it, and of the store's rows after a rewind: the same bits. */
static void add(op_run *x, const int64_t *p)
{
    const tail_ops *o = x->be->ops->tail;
    int64_t n = p[0], block = p[4], left = (block - n % block) % block, more = n + (left < MORE ? left : MORE);
    size_t dim = (size_t)p[1];
    dtype type = (dtype)p[2];
    tail_sums a = sums_of(x, dim, n, type, block), b = sums_of(x, dim, n, type, block);
    buf k = op_floats(x, (size_t)more * KV * dim), v = op_floats(x, (size_t)more * KV * dim);
    kv_rows rows = op_rows(x, KV, dim, (size_t)more, type, 0, false);
    const tail_add_job both[] = {add_of(&a, k, v, 0, n), add_of(&b, k, v, 0, n / 3)};
    x->be->ops->kv_write(x->be, &(kv_write_job){.rows = &rows, .k = k, .v = v, .n = (size_t)more}, 1);
    o->add(x->be, both, 2);
    for (int64_t from = n / 3, end; from < more; from = end) {
        end = from + 1 + from / 2 < more ? from + 1 + from / 2 : more;
        tail_add_job j = add_of(&b, k, v, from, end);
        o->add(x->be, &j, 1);
    }
    if (more > n) o->redo(x->be, &b, &rows, n);
    op_same(x, a.sum, b.sum, sum_bytes(&a), "sums in pieces");
    kv_rows codes = op_rows(x, KV, dim, (size_t)n, type, p[3] ? 4 : 2, p[3]);
    tail_sums c = sums_of(x, dim, n, type, block);
    o->redo(x->be, &c, &codes, n);
}

static tail_rest_job rest_of(op_run *x, const tail_sums *s, const op_shape *shape, int64_t n)
{
    tail_rest_job j = {.sums = s, .of = op_attn(x, shape), .n = n, .rows = s->block < TAIL_BLOCK ? s->cap : 1};
    j.of.read = op_read(x);
    size_t rows = j.of.n_heads / tail_share(&j) * j.rows;
    j.k = op_out(x, rows * s->head_dim * 4, BITS, 0);
    j.v = op_out(x, rows * s->head_dim * 4, BITS, 0);
    j.bias = op_out(x, j.of.n_heads * j.rows * 4, UNIT, 1e-6);
    return j;
}

/* Of n tokens, where 0 as many as the store holds: then nothing may be left. */
static void leave(op_run *x, const int64_t *p, int64_t n, int64_t block)
{
    op_shape s = {.n_tok = 1,
                  .kv = KV,
                  .group = (size_t)p[0],
                  .dim = (size_t)p[1],
                  .n = (size_t)p[2],
                  .type = (dtype)p[3],
                  .lists = (int)p[4],
                  .bits = (int)p[5],
                  .idx = p[6],
                  .by_token = p[7]};
    n = n ? n : (int64_t)s.n;
    tail_sums a = sums_of(x, s.dim, n, s.type, block);
    tail_add_job all = {&a, 0, op_floats(x, (size_t)n * KV * s.dim), op_floats(x, (size_t)n * KV * s.dim), (size_t)n};
    x->be->ops->tail->add(x->be, &all, 1);
    tail_rest_job jobs[] = {rest_of(x, &a, &s, n), rest_of(x, &a, &s, n)};
    int64_t first = (int64_t)s.n / 3, last = (int64_t)s.n - 1;
    if (p[9]) jobs[0].more[0] = (slot_range){0, first}, jobs[0].more[1] = jobs[1].more[0] = (slot_range){last, 1};
    x->be->ops->tail->rest(x->be, jobs, 2);
}

static void rest(op_run *x, const int64_t *p)
{
    leave(x, p, p[8], TAIL_BLOCK);
}

static void rest_of_blocks(op_run *x, const int64_t *p)
{
    leave(x, p, p[2] + 70, p[8]); /* every slot of op_attn lies below */
}

/* ---- stores whose rows are known ---- */

/* Attention of one query over the lists of j and what they leave of n tokens; out, f32 [n_heads][dim] as of j, is
 * returned. t: outputs of `rest`. */
static float *attend(op_run *x, attn_job j, const tail_rest_job *t)
{
    size_t dim = j.rows.head_dim, part = j.n_heads * dim * 4, lse = j.n_heads * 4;
    buf parts = op_in(x, NULL, 2 * part), lses = op_in(x, NULL, 2 * lse), out = op_in(x, NULL, part);
    attn_job tail = j;
    tail.rows = (kv_rows){.k = t->k, .v = t->v, .n_kv_heads = j.n_heads / tail_share(t), .head_dim = dim, .cap = 1};
    tail.range = tail.idx = (buf){NULL};
    tail.n_lists = tail.rows.n_kv_heads, tail.n_max = 1, tail.bias = t->bias, tail.bias_stride = 1;
    j.out = parts, j.lse = lses;
    tail.out = buf_at(parts, part), tail.lse = buf_at(lses, lse);
    x->be->ops->attn_decode(x->be, &j, 1);
    x->be->ops->attn_decode(x->be, &tail, 1);
    x->be->ops->attn_merge(x->be, out, (buf){NULL}, parts, lses, 2, j.n_heads, dim);
    return op_see(x, out, part);
}

/* Sums and the rest of a store of f32 rows k, v [n][kv][dim] for the lists of j. */
static tail_rest_job fill(op_run *x, tail_sums *s, attn_job *j, const float *k, const float *v, size_t n)
{
    size_t bytes = n * s->n_kv_heads * s->head_dim * 4, rows = j->n_heads * s->head_dim * 4;
    tail_add_job add = {s, 0, op_in(x, k, bytes), op_in(x, v, bytes), n};
    s->sum = op_in(x, NULL, 2 * s->n_kv_heads * s->cap * s->head_dim * 4);
    j->rows = (kv_rows){.k = op_in(x, NULL, bytes),
                        .v = op_in(x, NULL, bytes),
                        .n_kv_heads = s->n_kv_heads,
                        .head_dim = s->head_dim,
                        .cap = n};
    x->be->ops->kv_write(x->be, &(kv_write_job){.rows = &j->rows, .k = add.k, .v = add.v, .n = n}, 1);
    x->be->ops->tail->add(x->be, &add, 1);
    tail_rest_job t = {.sums = s, .of = *j, .n = (int64_t)n, .rows = 1};
    t.k = op_in(x, NULL, rows), t.v = op_in(x, NULL, rows), t.bias = op_in(x, NULL, j->n_heads * 4);
    x->be->ops->tail->rest(x->be, &t, 1);
    return t;
}

enum { N = 50, DIM = 16, HEADS = 2 * KV, EACH = 3 };
typedef float known_rows[N][KV][DIM];

/* Of which sums are exact. */
static float eighths(op_run *x)
{
    return (float)op_int(x, -8, 8) / 8;
}

/* Lists of every third slot: what they leave is counted, has the mean that it has, and where its rows are equal,
 * attention is that over all. */
static void known(op_run *x, const int64_t *p)
{
    known_rows k, v;
    int32_t idx[HEADS][N];
    int64_t range[HEADS][2];
    size_t lists = p[0] == ONE_LIST ? 1 : p[0] == LIST_PER_KV ? KV : HEADS;
    for (size_t i = 0; i < N * KV * DIM; i++) {
        size_t t = i / (KV * DIM),
               from = p[1] && t % EACH && t > 1 ? KV * DIM + i % (KV * DIM) : i; /* equal to row 1 */
        (&k[0][0][0])[i] = from < i ? (&k[0][0][0])[from] : eighths(x);
        (&v[0][0][0])[i] = from < i ? (&v[0][0][0])[from] : eighths(x);
    }
    for (size_t l = 0; l < lists; l++) {
        range[l][0] = 0, range[l][1] = 0;
        for (size_t t = p[1] ? 0 : l % EACH; t < N; t += EACH) idx[l][range[l][1]++] = (int32_t)t;
    }
    attn_job j = {.n_tok = 1, .n_heads = HEADS, .n_lists = lists, .idx_stride = N, .n_max = N, .scale = 0.25f};
    j.idx = op_in(x, idx, sizeof idx), j.range = op_in(x, range, sizeof range), j.q = op_floats(x, HEADS * DIM);
    tail_sums s = {.type = DT_F32, .n_kv_heads = KV, .head_dim = DIM, .block = TAIL_BLOCK, .cap = 1};
    tail_rest_job t = fill(x, &s, &j, &k[0][0][0], &v[0][0][0], N);
    float *mean = op_see(x, t.k, HEADS * DIM * 4), *bias = op_see(x, t.bias, HEADS * 4);
    for (size_t h = 0; h < HEADS; h++) {
        size_t list = lists == 1 ? 0 : h * lists / HEADS;
        double sum = 0, m = N - (double)range[list][1];
        for (size_t i = 0; i < N; i++) sum += i % EACH == (p[1] ? 0 : list % EACH) ? 0 : (double)k[i][h / 2][3];
        op_note(x, fabs((double)bias[h] - log(m)) < 1e-6, "head %zu: bias %g, not log %g", h, (double)bias[h], m);
        op_note(x, fabs((double)mean[h / tail_share(&t) * DIM + 3] - sum / m) < 1e-6, "head %zu: another mean", h);
    }
    free(mean), free(bias);
    float *got = attend(x, j, &t), *want;
    buf all = op_in(x, NULL, HEADS * DIM * 4);
    j.range = j.idx = (buf){NULL}, j.n_max = N, j.out = all;
    x->be->ops->attn_decode(x->be, &j, 1);
    want = op_see(x, all, HEADS * DIM * 4);
    double off = op_error(UNIT, got, want, HEADS * DIM);
    op_note(x, !p[1] || off < 1e-6, "equal rows: off by %g", off);
    op_note(x, p[1] || off > 1e-4, "other rows: nothing is off");
    free(got), free(want);
}

/* Logits 2 | 0, 1 and values 1 | 3, 5 (methods.md 17.2). */
static void example(op_run *x, const int64_t *p)
{
    static const float k[3][4] = {{2}, {0}, {1}}, v[3][4] = {{1}, {3}, {5}}, q[4] = {1};
    attn_job j = {.n_tok = 1, .n_heads = 1, .n_lists = 1, .n_max = 1, .scale = 1, .q = op_in(x, q, sizeof q)};
    tail_sums s = {.type = DT_F32, .n_kv_heads = 1, .head_dim = 4, .block = TAIL_BLOCK, .cap = 1};
    (void)p;
    tail_rest_job t = fill(x, &s, &j, &k[0][0], &v[0][0], 3);
    float *out = attend(x, j, &t), *row = op_see(x, t.k, 16), *value = op_see(x, t.v, 16), *bias = op_see(x, t.bias, 4);
    op_note(x, row[0] == 0.5f && value[0] == 4 && fabsf(bias[0] - logf(2)) < 1e-6f, "mean row: %g, %g, bias %g",
            (double)row[0], (double)value[0], (double)bias[0]);
    op_note(x, fabsf(out[0] - 1.92569f) < 1e-5f, "output %g", (double)out[0]);
    free(out), free(row), free(value), free(bias);
}

static const op_test tests[] = {
    {"sums of rows",
     add,
     40,
     8,
     20,
     {OP_P(1, 50, 1000, TAIL_BLOCK - 1, TAIL_BLOCK, TAIL_BLOCK + 1, 9000), OP_P(8, 16, 40, 64), OP_TYPES, OP_BOOL,
      OP_P(TAIL_BLOCK, 16, 7)}},
    {"what lists leave",
     rest,
     80,
     8,
     20,
     {OP_P(1, 2, 7), OP_P(16, 40, 64, 128), OP_P(1, 15, 33, 150), OP_TYPES, OP_P(ONE_LIST, LIST_PER_KV, LIST_PER_HEAD),
      OP_P(0, 2, 4), OP_BOOL, OP_BOOL, OP_P(0, 200, TAIL_BLOCK + 5), OP_BOOL}},
    {"what lists leave of blocks",
     rest_of_blocks,
     80,
     8,
     20,
     {OP_P(1, 2, 7), OP_P(16, 40, 64, 128), OP_P(1, 15, 33, 150), OP_TYPES, OP_P(ONE_LIST, LIST_PER_KV, LIST_PER_HEAD),
      OP_P(0, 2, 4), OP_BOOL, OP_BOOL, OP_P(3, 16, 40, 1000), OP_BOOL}},
    {"known rows", known, 12, 3, 6, {OP_P(ONE_LIST, LIST_PER_KV, LIST_PER_HEAD), OP_BOOL}},
    {"the example", example, 1, 1, 1, {OP_P(0)}},
};

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
    return tap_done();
}
