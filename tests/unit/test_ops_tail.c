/* SPDX-License-Identifier: MIT */
/* Sums of rows, and the mean of those that lists leave out; slopes over samples of keys. */
/* Builds: shim race device */
#include "config.h"

#include "kernels/ops_select.h"
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

/* What a sample of most tokens holds: as many as it may, ascending, in strata that hold all that is left. */
static void check_sample(op_run *x, const tail_sample_job *j)
{
    size_t lists = j->rest.of.n_lists, heads = j->rest.of.n_heads, most = j->rest.rows;
    int32_t *idx = op_see(x, j->idx, lists * most * 4);
    int64_t *range = op_see(x, j->range, lists * 16), *left = op_see(x, j->left, lists * 8);
    float *bias = op_see(x, j->rest.bias, heads * most * 4);
    for (size_t l = 0; l < lists; l++) {
        int64_t b = range[2 * l + 1], want = left[l] < (int64_t)most ? left[l] : (int64_t)most;
        double all = 0;
        op_note(x, b == want && range[2 * l] == 0, "list %zu: %lld of %lld tokens", l, (long long)b,
                (long long)left[l]);
        for (int64_t i = 0; i < b; i++) {
            int32_t slot = idx[l * most + (size_t)i];
            op_note(x, slot < j->rest.n && slot > (i ? idx[l * most + (size_t)i - 1] : -1), "list %zu: slot %d", l,
                    slot);
            all += exp((double)bias[l * heads / lists * most + (size_t)i]);
        }
        op_note(x, fabs(all - (double)left[l]) < 1e-3, "list %zu: %g of %lld tokens", l, all, (long long)left[l]);
    }
    free(idx), free(range), free(left), free(bias);
}

/* A sample of what lists leave, attention over both, and the share of the sample's. */
static void sample(op_run *x, const int64_t *p)
{
    op_shape s = {.n_tok = 1, .kv = KV, .group = (size_t)p[0], .dim = 16, .n = (size_t)p[2], .lists = (int)p[4]};
    tail_sample_job j = {.rest = {.of = op_attn(x, &s), .rows = (size_t)p[1]}, .seed = (uint64_t)p[3], .layer = 3};
    attn_job *of = &j.rest.of, drawn;
    size_t lists = of->n_lists, heads = of->n_heads, most = j.rest.rows, n = 2 * s.n + 100;
    int32_t *idx = xmalloc(lists * of->idx_stride * 4);
    for (size_t i = 0; i < lists * of->idx_stride; i++) idx[i] = (int32_t)(i % of->idx_stride * 3 / 2);
    if (p[6]) of->idx = op_in(x, idx, lists * of->idx_stride * 4);
    free(idx);
    j.rest.n = (int64_t)n;
    if (p[5]) j.rest.more[0] = (slot_range){2 * p[2] + 60, 30};
    of->rows = op_rows(x, KV, s.dim, n, DT_F16, 0, false);
    j.idx = op_out(x, lists * most * 4, BITS, 0), j.range = op_out(x, lists * 16, BITS, 0);
    j.left = op_out(x, lists * 8, BITS, 0), j.rest.bias = op_out(x, heads * most * 4, UNIT, 1e-6);
    tail_sample_job other = j;
    other.idx = op_out(x, lists * most * 4, BITS, 0), other.range = op_out(x, lists * 16, BITS, 0);
    other.left = op_out(x, lists * 8, BITS, 0), other.rest.bias = op_out(x, heads * most * 4, UNIT, 1e-6);
    x->be->ops->tail->sample(x->be, (tail_sample_job[]){j, other}, 2);
    check_sample(x, &other);
    check_sample(x, &j);
    size_t lse = heads * 4;
    buf parts = op_in(x, NULL, 2 * lse), out = op_in(x, NULL, heads * s.dim * 4);
    drawn = *of;
    drawn.range = j.range, drawn.idx = j.idx, drawn.idx_stride = most, drawn.n_max = p[1], drawn.first = 0;
    drawn.bias = j.rest.bias, drawn.bias_stride = drawn.score_stride = most;
    drawn.scores = op_in(x, NULL, heads * most * 4);
    drawn.lse = buf_at(parts, lse), of->lse = parts, drawn.out = of->out = out;
    x->be->ops->attn_decode(x->be, of, 1);
    x->be->ops->attn_decode(x->be, &drawn, 1);
    drawn.read = op_in(x, NULL, READ_KINDS * 8);
    tail_missed_job m = {.of = drawn, .left = j.left, .parts = parts, .n_parts = 2, .stride = heads};
    m.out = op_out(x, heads * 8, UNIT, 1e-4);
    x->be->ops->tail->missed(x->be, &m, 1);
    float *both = op_see(x, parts, 2 * lse), *got = op_see(x, m.out, heads * 8);
    uint64_t *read = op_see(x, drawn.read, READ_KINDS * 8);
    double sum = 0;
    for (size_t h = 0; h < heads; h++) {
        double want = 1 / (1 + exp((double)both[h] - (double)both[heads + h]));
        sum += (double)got[2 * h];
        op_note(x, fabs(want - (double)got[2 * h]) < 1e-5, "head %zu: %g is missed, not %g", h, (double)got[2 * h],
                want);
    }
    op_note(x, read[READ_MEASURED] == heads && fabs((double)read[READ_MISSED] / READ_ONE - sum) < 1e-6,
            "counts: %g, not %g", (double)read[READ_MISSED] / READ_ONE, sum);
    free(both), free(got), free(read);
}

/* Logits 0, 1, 3, 2 of four of eight tokens that are left, with the logarithm of 2 each, beside an attended one of 4:
 * tau = 2 (e^0 + e^1 + e^3 + e^2) / (that + e^4), and successive differences. */
static void sample_example(op_run *x, const int64_t *p)
{
    const float logits[] = {0, 1, 3, 2}, beside = 4;
    float scores[4], lse[2] = {beside, 0};
    int64_t range[] = {0, 4}, left[] = {8};
    double u = 0, turns = 0, y[4];
    (void)p;
    for (int i = 0; i < 4; i++) scores[i] = logits[i] + logf(2), y[i] = 2 * exp((double)logits[i]), u += y[i];
    for (int i = 0; i < 3; i++) turns += (y[i + 1] - y[i]) * (y[i + 1] - y[i]);
    lse[1] = (float)log(u);
    tail_missed_job m = {.of = {.n_heads = 1, .n_lists = 1, .score_stride = 4}, .n_parts = 2, .stride = 1};
    m.of.scores = op_in(x, scores, 16), m.of.range = op_in(x, range, 16), m.left = op_in(x, left, 8);
    m.parts = op_in(x, lse, 8), m.out = op_out(x, 8, UNIT, 1e-5);
    x->be->ops->tail->missed(x->be, &m, 1);
    float *got = op_see(x, m.out, 8);
    double tau = u / (u + exp(4)), sigma = sqrt(0.5 * 4 / 6 * turns) / u;
    op_note(x, fabs((double)got[0] - tau) < 1e-6 && fabs((double)got[1] - sigma) < 1e-6, "%g, %g, not %g, %g",
            (double)got[0], (double)got[1], tau, sigma);
    free(got);
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

/* Estimates that are exact scores apart from a factor, an offset and noise: what is found is the factor. */
static void slope(op_run *x, const int64_t *p)
{
    size_t dim = (size_t)p[0], share = (size_t)p[1], heads = KV * share, n = (size_t)p[2], stride = n + 3;
    size_t lists = p[3] == 0 ? heads : p[3] == 1 ? KV : 1, count = (size_t)p[5];
    float factor = (float)p[6] / 100, *key = random_f32(&x->r, n * KV * dim), *q = random_f32(&x->r, heads * dim);
    float *noise = random_f32(&x->r, heads * stride);
    buf k = op_in(x, key, 4 * n * KV * dim);
    slope_job j = {.q = op_in(x, q, 4 * heads * dim),
                   .n_heads = heads,
                   .n_lists = lists,
                   .stride = stride,
                   .rows = op_rows(x, KV, dim, n, (dtype)p[4], 0, false),
                   .items = {(int64_t)n, (int64_t)n / 5, (int64_t)n - 1},
                   .count = count,
                   .seed = 42,
                   .layer = 3,
                   .slope = op_inout(x, NULL, 4 * lists, UNIT, 1e-6),
                   .read = op_read(x)};
    x->be->ops->kv_write(x->be, &(kv_write_job){.rows = &j.rows, .k = k, .v = k, .n = n}, 1);
    for (size_t h = 0; h < heads; h++)
        for (size_t t = 0; t < n; t++) {
            double dot = 0;
            for (size_t c = 0; c < dim; c++)
                dot += (double)q[h * dim + c] * (double)key[(t * KV + h / share) * dim + c];
            noise[h * stride + t] = (float)(dot / (double)factor) + 7 * (float)h + 0.001f * noise[h * stride + t];
        }
    for (size_t h = 0; h < heads; h++) noise[h * stride + n / 2] = h % 2 ? NAN : INFINITY; /* one is no number */
    j.score = op_in(x, noise, 4 * heads * stride);
    x->be->ops->select->slope(x->be, &j, 1);
    float *got = op_see(x, j.slope, 4 * lists), want = fminf(fmaxf(factor, 0.25f), 1);
    for (size_t l = 0; l < lists; l++)
        op_note(x, fabsf(got[l] - want) < 0.02f * want, "list %zu: %g, not %g", l, (double)got[l], (double)want);
    free(got), free(noise), free(q), free(key);
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
    {"a sample of what lists leave",
     sample,
     60,
     8,
     20,
     {OP_P(1, 2, 7), OP_P(2, 32, 300), OP_P(3, 33, 150), OP_P(0, 42), OP_P(ONE_LIST, LIST_PER_KV, LIST_PER_HEAD),
      OP_BOOL, OP_BOOL}},
    {"slopes of estimates, over a sample of keys",
     slope,
     60,
     7,
     13,
     {OP_P(8, 64, 100), OP_P(1, 2, 4), OP_P(40, 300), OP_P(0, 1, 2), OP_TYPES, OP_P(8, 64, 1024),
      OP_P(10, 40, 61, 130)}},
    {"the sample's example", sample_example, 1, 1, 1, {OP_P(0)}},
};

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
    return tap_done();
}
