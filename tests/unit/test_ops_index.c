/* SPDX-License-Identifier: MIT */
/* ParisKV's index and search; ActQKV's probes, representatives and budgets. */
/* Builds: shim race device */
#include "config.h"

#include "kernels/ops_block.h"
#include "kernels/ops_paris.h"
#include "tests/unit/op_attn.h"

/* ---- ParisKV ---- */

static float gauss(op_run *x)
{
    double u = ((double)(rng_next(&x->r) >> 11) + 1) * 0x1p-53, v = (double)(rng_next(&x->r) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static buf gauss_as(op_run *x, size_t n, dtype t)
{
    float *f = xmalloc(4 * n);
    uint16_t *h = xmalloc(2 * n);
    for (size_t i = 0; i < n; i++) f[i] = gauss(x), h[i] = t == DT_F16 ? f32_to_f16(f[i]) : f32_to_bf16(f[i]);
    buf b = op_in(x, t == DT_F32 ? (void *)f : (void *)h, n * dtype_size(t));
    free(f), free(h);
    return b;
}

/* An index whose buffers are all results. */
static paris_index paris_of(op_run *x, size_t kv, size_t dim, size_t cap, size_t rounds, bool alpha, bool centre)
{
    size_t nb = paris_subspaces(dim), width = paris_dim(dim);
    float *sign = xmalloc(4 * (rounds * width + 1));
    for (size_t i = 0; i < rounds * width; i++) sign[i] = rng_next(&x->r) >> 63 ? -1 : 1;
    paris_index p = {.n_kv_heads = kv, .head_dim = dim, .cap = cap, .rounds = rounds, .alpha = alpha};
    p.id = op_inout(x, NULL, kv * cap * nb, BITS, 0);
    p.code = op_inout(x, NULL, kv * cap * nb * PARIS_CODE, BITS, 0);
    p.count = op_inout(x, NULL, kv * nb * PARIS_PATTERNS * 4, BITS, 0);
    p.counted = op_inout(x, NULL, 16, BITS, 0);
    p.sign = op_in(x, sign, 4 * (rounds * width + 1));
    if (centre) p.mean = op_inout(x, NULL, 4 * kv * dim, BITS, 0);
    free(sign);
    return p;
}

/* kind 0: random queries; 1: zeros; 2: equal magnitudes (many ties); 3: a large and small ones; 4: NaN in one. */
static buf queries_of(op_run *x, size_t n, int64_t kind)
{
    float *f = xmalloc(4 * n);
    for (size_t i = 0; i < n; i++) {
        f[i] = kind == 1 ? 0 : kind == 2 ? (rng_next(&x->r) >> 63 ? -1.0f : 1.0f) : gauss(x);
        if (kind == 3) f[i] = i % 8 == 2 ? 1 : f[i] * 1e-8f;
    }
    if (kind == 4) f[n / 2] = NAN;
    buf b = op_in(x, f, 4 * n);
    free(f);
    return b;
}

/* Everything from keys to estimates: the results have the bits of ref. */
static void paris(op_run *x, const int64_t *p)
{
    const paris_ops *o = x->be->ops->paris;
    size_t kv = (size_t)p[1], dim = (size_t)p[0], cap = (size_t)p[2] + 3, nb = paris_subspaces(dim);
    size_t width = paris_dim(dim), tiers = p[6] % 2 ? 6 : 1;
    int64_t n = p[2] - 2, half = n / 2;
    kv_rows rows = {.k = gauss_as(x, kv * cap * dim, (dtype)p[4]),
                    .type = (dtype)p[4],
                    .n_kv_heads = kv,
                    .head_dim = dim,
                    .cap = cap};
    paris_index i = paris_of(x, kv, dim, cap, (size_t)p[5], p[7], p[8]);
    slot_range range = {1, n};
    buf read = op_read(x), q = queries_of(x, kv * dim, p[6]);
    paris_job j = {.x = &i,
                   .y = op_out(x, 4 * kv * width, p[6] == 4 ? UNIT : BITS, 0),
                   .norm = op_out(x, 4 * kv, UNIT, 0),
                   .n_levels = tiers,
                   .range = range,
                   .m = 1 + (n - 1) / p[3],
                   .bonus = op_inout(x, NULL, kv * nb * PARIS_PATTERNS, BITS, 0),
                   .score = op_inout(x, NULL, kv * cap, BITS, 0),
                   .cand = op_inout(x, NULL, 4 * kv * cap, BITS, 0),
                   .est = op_inout(x, NULL, 4 * kv * cap, p[6] == 4 ? UNIT : BITS, 0),
                   .read = read};
    for (size_t t = 0; t < tiers; t++)
        j.limit[t] = (n * 25 * (int64_t[]){5, 15, 30, 50, 75, 100}[tiers == 1 ? 5 : t] + 9999) / 10000;
    if (i.mean.p) o->mean(x->be, &i, &rows, range);
    o->encode(x->be, &i, &rows, (slot_range){0, (int64_t)cap - 3});
    o->count(x->be, &i, (slot_range){half, n - half}, read); /* then on both sides of it */
    o->count(x->be, &i, (slot_range){0, half + 1}, read);
    o->count(x->be, &i, range, read);
    o->query(x->be, j.y, j.norm, q, kv, &i);
    o->search(x->be, &j);
}

static void resolve(op_run *x, const int64_t *p)
{
    static const int32_t idx[2][4] = {{0, 2, 3, 9}, {1, 9, 9, 9}},
                         cand[2][5] = {{10, 20, 30, 40, 50}, {11, 21, 31, 41, 51}};
    static const int32_t want[2][4] = {{10, 30, 40, 9}, {21, 9, 9, 9}};
    static const int64_t range[4] = {0, 3, 0, 1};
    (void)p;
    buf b = op_inout(x, idx, sizeof idx, BITS, 0);
    x->be->ops->paris->resolve(x->be, b, 4, op_in(x, range, sizeof range), 2, op_in(x, cand, sizeof cand), 5);
    op_same(x, b, op_in(x, want, sizeof want), sizeof want, "chosen candidates become tokens");
}

/* ---- probes and representatives ---- */

/* Statistics of n rows in windows, and the probe of the last one; weights add up to 1, all rows at once give the same.
 */
static void probe(op_run *x, const int64_t *p)
{
    const block_ops *o = x->be->ops->block;
    size_t dim = (size_t)p[0], n = (size_t)p[1], window = (size_t)p[2], last = 0, rows = 0;
    float *f = random_f32(&x->r, n * dim);
    for (size_t i = 0; i < n * dim; i++) f[i] = p[3] == 1 ? 0.3f * (float)(i % dim) : f[i] * (float)(1 + i % dim) + 3;
    buf in = op_in(x, f, 4 * n * dim), mean = op_out(x, 4 * dim, NMSE, 1e-11),
        m2 = op_out(x, 4 * dim, p[3] == 1 ? UNIT : NMSE, p[3] == 1 ? 1e-3 : 1e-10);
    for (size_t i = 0; i < n; i += window) {
        last = i, rows = n - i < window ? n - i : window;
        o->moments(x->be, mean, m2, i, buf_at(in, 4 * i * dim), rows, dim);
    }
    buf weights = op_out(x, 4 * rows, NMSE, 1e-9), out = op_out(x, 4 * dim, NMSE, 1e-9);
    o->probe(x->be, out, weights, buf_at(in, 4 * last * dim), rows, dim, p[3] == 2 ? (buf){NULL} : mean, m2, n);
    float *w = op_see(x, weights, 4 * rows);
    double sum = 0;
    for (size_t i = 0; i < rows; i++) {
        sum += (double)w[i];
        op_note(x, p[3] == 0 || fabsf(w[i] - 1 / (float)rows) < 1e-6f, "weight %zu: %g", i, (double)w[i]);
    }
    op_note(x, fabs(sum - 1) < 1e-5, "weights add up to %g", sum);
    free(f), free(w);
}

static void block_score(op_run *x, const int64_t *p)
{
    size_t heads = 2 * (size_t)p[1], dim = heads * (size_t)p[0], n = (size_t)p[2];
    dtype t = (dtype)p[3];
    void *rep = random_as(&x->r, n * dim, t);
    memset((char *)rep + (n - 1) * dim * dtype_size(t), 0, dim * dtype_size(t)); /* a representative of zeros */
    block_index b = {op_in(x, rep, n * dim * dtype_size(t)), t, heads, 2, (size_t)p[0], n, 8, 2, p[6] != 0};
    item_range items = {(int64_t)n, p[4] < (int64_t)n ? p[4] : 0, (int64_t)n};
    buf score = op_inout(x, NULL, 4 * n, NMSE, 1e-11), pr = op_floats(x, dim);
    x->be->ops->block->score(x->be, score, pr, &b, p[5] ? heads : 1, items, op_read(x));
    float *s = op_see(x, score, 4 * n);
    op_note(x, s[n - 1] == 0, "zeros score %g", (double)s[n - 1]);
    free(rep), free(s);
}

/* Scores of two probes together, of the candidates alone. */
static void weigh(op_run *x, const int64_t *p)
{
    int64_t n = p[0], lo = p[1] < n ? p[1] : n;
    float *start = random_f32(&x->r, (size_t)n), *other = random_f32(&x->r, (size_t)n), by = p[2] ? 4 : 0.3f;
    buf score = op_inout(x, start, 4 * (size_t)n, BITS, 0);
    x->be->ops->block->weigh(x->be, score, op_in(x, other, 4 * (size_t)n), (item_range){n, lo, n}, by);
    free(start), free(other);
}

/* Masses in a ring over windows of two tokens and a band; then cleared. */
static void fold(op_run *x, const int64_t *p)
{
    enum { HEADS = 3, STRIDE = 9 };
    size_t ring = (size_t)p[0];
    band_mass m = {
        .mass = op_out(x, 4 * HEADS * ring, NMSE, 1e-12), .n_heads = HEADS, .ring = ring, .read = op_read(x)};
    buf sum = op_floats(x, HEADS * STRIDE);
    for (int64_t t = 0; t < p[1]; t += 2) {
        int64_t lo = t > 5 ? t - 5 : 0;
        x->be->ops->block->fold(x->be, &m, p[2] && t == 6 ? (buf){NULL} : sum, STRIDE, lo, t + 2 - lo, t);
    }
    band_mass clear = m;
    clear.mass = op_out(x, 4 * HEADS * ring, BITS, 0);
    x->be->ops->block->fold(x->be, &clear, (buf){NULL}, 0, 49, (int64_t)ring, 49);
}

/* Blocks of 4 with 2 representatives: of masses with ties and a NaN, worked by hand, and of equal ones. */
static void form(op_run *x, const int64_t *p)
{
    enum { HEADS = 4, D = 6, SIZE = 4, REPS = 2, N = 3, RING = 17, CAP = N * SIZE + 1 };
    static const float mass[N * SIZE] = {1, 5, 5, 5, 2, 2, 2, 2, NAN, 3, 1, -0.0f};
    static const size_t best[N][REPS] = {{1, 2}, {0, 1}, {1, 2}};
    float *keys = random_f32(&x->r, 2 * CAP * D), ring[HEADS * RING];
    for (size_t i = 0; i < HEADS * RING; i++) ring[i] = 99;
    for (size_t i = 0; i < HEADS * N * SIZE; i++)
        ring[i / (N * SIZE) * RING + (9 + i % (N * SIZE)) % RING] = mass[i % (N * SIZE)];
    block_index b = {op_out(x, 4 * 5 * HEADS * D, UNIT, 1e-6), DT_F32, HEADS, 2, D, 5, SIZE, REPS, false};
    kv_rows rows = {.k = op_in(x, keys, 4 * 2 * CAP * D), .type = DT_F32, .n_kv_heads = 2, .head_dim = D, .cap = CAP};
    band_mass m = {.mass = op_in(x, ring, sizeof ring), .n_heads = HEADS, .ring = RING, .read = op_read(x)};
    x->be->ops->block->form(x->be, &b, &rows, p[0] ? NULL : &m, 1, N, 9); /* positions 9..20 go round the ring */
    float *rep = op_see(x, b.rep, 4 * 5 * HEADS * D);
    for (size_t i = 0; i < N * HEADS * D; i++) {
        size_t block = i / (HEADS * D), h = i / D % HEADS, c = i % D;
        float want = 0;
        for (size_t k = 0; k < REPS; k++)
            want += keys[(h / 2 * CAP + block * SIZE + (p[0] ? k : best[block][k])) * D + c] / REPS;
        op_note(x, fabsf(rep[HEADS * D + i] - want) < 1e-6f, "block %zu head %zu", block, h);
    }
    free(keys), free(rep);
}

/* Sinks, blocks and pending tokens outside a window; and the number of listed tokens. */
static void far_lists(op_run *x, const int64_t *p)
{
    static const int64_t where[][4] = {{0, 3, 27, 29}, {12, 3, 27, 29}, {0, 3, 27, 27}, {0, 0, 0, 0}};
    static const int64_t chosen[][2] = {{1, 3}, {1, 3}, {1, 0}, {1, 0}}, n[] = {17, 9, 3, 0};
    static const int32_t block[] = {77, 0, 2, 5}, all[] = {0, 1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 23, 24, 25, 26, 27, 28};
    const int64_t *w = where[p[0]];
    far_list l = {.from = w[0],
                  .sinks = w[1],
                  .pending = w[2],
                  .end = w[3],
                  .size = 4,
                  .block = op_in(x, block, sizeof block),
                  .chosen = p[1] && n[p[0]] < 4 ? (buf){NULL} : op_in(x, chosen[p[0]], 16),
                  .idx = op_inout(x, NULL, 256, BITS, 0),
                  .range = op_inout(x, NULL, 16, BITS, 0),
                  .count = op_inout(x, NULL, 8, BITS, 0)};
    x->be->ops->block->list(x->be, &l);
    op_same(x, l.idx, op_in(x, all + (p[0] == 1 ? 8 : 0), sizeof all - (p[0] == 1 ? 32 : 0)), 4 * (size_t)n[p[0]],
            "tokens");
    op_same(x, l.range, op_range(x, 0, n[p[0]]), 16, "their number");
    op_same(x, l.count, op_i64(x, n[p[0]]), 8, "their count");
}

/* ---- budgets ---- */

/* Steps over layers: budgets follow from the entropies that the op found, and no pool is overdrawn. */
static void take(op_run *x, const int64_t *p)
{
    enum { LAYERS = 5 };
    int64_t nominal = p[1], items = p[0], first = p[3] ? items / 3 : 0;
    entropy_pool e = {.theta = op_inout(x, NULL, 4 * LAYERS, UNIT, 2e-6),
                      .sum = op_inout(x, NULL, 8 * LAYERS, IN, 0),
                      .count = op_inout(x, NULL, 8, BITS, 0),
                      .pool = op_i64(x, 0),
                      .least = p[2] ? nominal * 7 / 10 : 0,
                      .most = p[2] == 1 ? 2 * nominal : 1 << 20,
                      .n_layers = LAYERS};
    double mean[LAYERS] = {0};
    for (int64_t step = 0; step < 3; step++) {
        int64_t pool = LAYERS * nominal;
        x->be->ops->upload(x->be, e.pool, &pool, 8);
        for (size_t l = 0; l < LAYERS; l++) {
            float sharp = p[4] ? 0 : 4 * rng_float(&x->r) * (float)l, *f = random_f32(&x->r, (size_t)items), *theta;
            for (size_t i = 0; i < (size_t)items; i++)
                f[i] = p[4] == 2 && i % 97 == 5 ? NAN : p[4] == 2 && i % 89 == 7 ? -INFINITY : f[i] * sharp;
            buf k = op_inout(x, NULL, 8, IN, 0), score = op_in(x, f, 4 * (size_t)items);
            x->be->ops->block->take(x->be, &e, l, score, (item_range){items, first, items}, k);
            theta = op_see(x, e.theta, 4 * LAYERS);
            int64_t *got = op_see(x, k, 8), reserve = e.least * (int64_t)(LAYERS - 1 - l);
            double later = 0, share = 1.0 / (double)(LAYERS - l);
            for (size_t i = l + 1; i < LAYERS && step; i++) later += mean[i] / (double)step;
            if (step && (double)theta[l] + later > 0) share = (double)theta[l] / ((double)theta[l] + later);
            double exact = share * (double)pool + 0.5;
            int64_t want = (int64_t)floor(exact);
            want = want < e.least ? e.least : want > e.most ? e.most : want;
            want = want > pool - reserve ? pool - reserve : want;
            want = want > items - first ? items - first : want < 0 ? 0 : want;
            bool border = fabs(exact - rint(exact)) < 1e-4;
            op_note(x, *got == want || border, "layer %zu: %d, not %d", l, (int)*got, (int)want);
            if (p[4] == 1)
                op_note(x, fabsf(theta[l] - logf((float)(items - first))) < 1e-5f, "uniform: %g", (double)theta[l]);
            pool -= *got;
            op_note(x, pool >= 0, "overdrawn");
            mean[l] += (double)theta[l];
            free(f), free(theta), free(got);
        }
        x->be->ops->block->close_pool(x->be, &e);
    }
    double *sum = op_see(x, e.sum, 8 * LAYERS);
    for (size_t l = 0; l < LAYERS; l++) op_note(x, fabs(sum[l] - mean[l]) < 1e-9, "sum of layer %zu", l);
    free(sum);
}

#define DIMS OP_P(2, 6, 8, 10, 16, 18, 32, 64, 80, 96, 128, 254, 256)

static const op_test tests[] = {
    {"paris: from keys to estimates",
     paris,
     130,
     7,
     41,
     {DIMS, OP_P(1, 2, 3, 7), OP_P(3, 5, 40, 100, 259), OP_P(1, 2, 3, 7, 60), OP_TYPES, OP_P(0, 1, 2),
      OP_P(0, 0, 1, 2, 3, 4), OP_BOOL, OP_BOOL}},
    {"paris: many tokens",
     paris,
     3,
     2,
     0,
     {OP_P(64), OP_P(2), OP_P(4100, 9000), OP_P(3, 60), OP_P(DT_F16), OP_P(1), OP_P(0, 3), OP_P(1), OP_P(0)}},
    {"paris: very many tokens",
     paris,
     2,
     1,
     0,
     {OP_P(8, 64), OP_P(1), OP_P(270001), OP_P(7), OP_P(DT_F16), OP_P(1), OP_P(1), OP_P(1), OP_P(0)}},
    {"paris: resolve", resolve, 1, 1, 1, {OP_P(0)}},
    {"block: statistics and probes",
     probe,
     108,
     5,
     29,
     {OP_P(2, 6, 8, 16, 18, 40, 64, 130, 1024), OP_P(2, 3, 8, 31, 64, 300), OP_P(7, 32, 300), OP_P(0, 0, 1, 2)}},
    {"block: scores",
     block_score,
     120,
     7,
     41,
     {OP_P(2, 6, 8, 30, 32, 64, 80, 96, 128, 256), OP_P(1, 2, 3, 4, 8), OP_P(1, 2, 7, 19, 90), OP_TYPES, OP_P(0, 1, 5),
      OP_BOOL, OP_BOOL}},
    {"block: scores of two probes", weigh, 16, 3, 5, {OP_P(1, 7, 255, 600), OP_P(0, 3), OP_BOOL}},
    {"block: masses", fold, 6, 2, 3, {OP_P(11, 17), OP_P(8, 30, 60), OP_BOOL}},
    {"block: representatives", form, 2, 1, 1, {OP_BOOL}},
    {"block: lists", far_lists, 8, 1, 3, {OP_P(0, 1, 2, 3), OP_BOOL}},
    {"block: budgets from entropies",
     take,
     120,
     13,
     0,
     {OP_P(1, 3, 50, 400), OP_P(1, 10, 40, 46), OP_P(0, 1, 2), OP_BOOL, OP_P(0, 0, 1, 2)}},
    {"block: budgets from long lists", take, 4, 3, 0, {OP_P(10001), OP_P(46), OP_P(0, 1), OP_BOOL, OP_P(0, 2)}},
};

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
    return tap_done();
}
