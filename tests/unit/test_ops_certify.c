/* SPDX-License-Identifier: MIT */
/* Certificates of missed attention: bounds of what codes lost, and the selections that they certify. */
#include "config.h"

#include "kernels/ops_certify.h"
#include "tests/unit/op_attn.h"

enum { KV = 2 };

static score_job scored(op_run *x, const coded_index *c, buf q, size_t heads, int64_t lo, int64_t n, size_t stride)
{
    return (score_job){.index = c,
                       .q = q,
                       .n_heads = heads,
                       .score = op_out(x, 4 * heads * stride, BITS, 0),
                       .stride = stride,
                       .items = {n, lo, n}};
}

/* Two jobs of one call, and the first one's tokens again in two pieces: the same bits. */
static void bound(op_run *x, const int64_t *p)
{
    const certify_ops *o = x->be->ops->certify;
    size_t dim = (size_t)p[0], n = (size_t)p[1], heads = KV * (size_t)p[2], stride = n + 3;
    kv_rows a = op_rows(x, KV, dim, n, (dtype)p[3], (int)p[4], p[5]), b = a;
    buf q = op_floats(x, heads * dim);
    int64_t lo = p[6] ? (int64_t)n / 3 : 0, mid = (lo + (int64_t)n) / 2;
    b.codes.bits = 0; /* nothing in codes yet */
    coded_index codes = {&a}, exact = {&b};
    const score_job jobs[] = {scored(x, &codes, q, heads, lo, (int64_t)n, stride),
                              scored(x, &exact, q, heads, 0, mid, stride)};
    o->bound(x->be, jobs, 2);
    score_job again = scored(x, &codes, q, heads, lo, (int64_t)n, stride);
    again.items.hi = mid;
    o->bound(x->be, &again, 1);
    again.items.lo = mid, again.items.hi = (int64_t)n;
    o->bound(x->be, &again, 1);
    for (size_t h = 0; h < heads; h++) {
        size_t at = 4 * (h * stride + (size_t)lo);
        op_same(x, buf_at(jobs[0].score, at), buf_at(again.score, at), 4 * (n - (size_t)lo), "bounds in two pieces");
    }
}

/* The same of rows in blocks, of one that is not a number too. */
static void bound_blocks(op_run *x, const int64_t *p)
{
    const certify_ops *o = x->be->ops->certify;
    size_t dim = (size_t)p[0], n = (size_t)p[1], heads = KV * (size_t)p[2], stride = n + 3;
    kv_rows a = op_rows(x, KV, dim, n, (dtype)p[3], 0, false);
    uint16_t odd = p[5] ? QBLOCK_NAN : QBLOCK_LARGEST;
    int64_t mid = (int64_t)n / 2;
    a.rotated = (unsigned)p[4];
    x->be->ops->upload(x->be, buf_at(a.k, kv_row_bytes(a.type, dim) - sizeof odd), &odd, sizeof odd);
    coded_index blocks = {&a};
    score_job all = scored(x, &blocks, op_floats(x, heads * dim), heads, 0, (int64_t)n, stride), again = all;
    o->bound(x->be, &all, 1);
    again.score = op_out(x, 4 * heads * stride, BITS, 0);
    again.items.hi = mid;
    o->bound(x->be, &again, 1);
    again.items.lo = mid, again.items.hi = (int64_t)n;
    o->bound(x->be, &again, 1);
    float *got = op_see(x, all.score, 4 * heads * stride);
    for (size_t h = 0; h < heads; h++) {
        op_note(x, isinf(got[h * stride]) == (h < heads / KV), "head %zu: %g", h, (double)got[h * stride]);
        op_same(x, buf_at(all.score, 4 * h * stride), buf_at(again.score, 4 * h * stride), 4 * n,
                "bounds in two pieces");
    }
    free(got);
}

/* ---- keys that become codes ---- */

enum { KEYS_EVEN, KEYS_OUTLIERS, KEYS_FAR, KEYS_EQUAL, KEYS_TINY, KEYS_STEEP, KEYS_KINDS };

/* Coordinate c of key t: even; two channels 80 times the others; a mean of 30; rows that are all the same; numbers that
 * f16 holds as subnormal ones; lengths over six octaves. */
static float some_key(op_run *x, int64_t kind, int64_t t, size_t c)
{
    float u = rng_float(&x->r) * 2 - 1;
    if (kind == KEYS_OUTLIERS) return c % 7 < 2 ? 80 * u : u;
    if (kind == KEYS_FAR) return 30 + u;
    if (kind == KEYS_EQUAL) return (float)(c % 5) - 2;
    if (kind == KEYS_TINY) return u * 2e-6f;
    return kind == KEYS_STEEP ? ldexpf(u, (int)(t % 6) - 2) : u;
}

/* Keys of n tokens, of which the first `coded` are quantized as a store does; the exact rows are also kept. */
typedef struct {
    kv_rows rows;
    float *k; /* [KV][n][dim] as stored */
} key_store;

static key_store keys_of(op_run *x, int64_t kind, size_t n, size_t coded, size_t dim, dtype type, int bits,
                         bool by_token)
{
    key_store s = {.rows = {.type = type, .n_kv_heads = KV, .head_dim = dim, .cap = n}, .k = xmalloc(4 * KV * n * dim)};
    size_t cap = (n + CODE_GROUP - 1) / CODE_GROUP * CODE_GROUP;
    unsigned char *row = xmalloc(KV * n * dim * dtype_size(type));
    int32_t *at = xmalloc(4 * n);
    int64_t *src = xmalloc(8 * (n + 1));
    for (size_t i = 0; i < KV * n * dim; i++) {
        float y = some_key(x, kind, (int64_t)(i / dim % n), i % dim);
        uint16_t half = f32_to_f16(y);
        s.k[i] = type == DT_F16 ? f16_to_f32(half) : y;
        if (type == DT_F16) memcpy(row + 2 * i, &half, 2);
        else memcpy(row + 4 * i, &y, 4);
    }
    for (size_t t = 0; t < n; t++) at[t] = t < coded ? -1 - (int32_t)t : (int32_t)t, src[t] = (int64_t)t;
    s.rows.k = op_in(x, row, KV * n * dim * dtype_size(type));
    kv_codes c = {.bits = bits, .by_token = by_token, .cap = cap, .group = by_token ? 1 : CODE_GROUP, .run = CODE_RUN};
    c.k = op_in(x, NULL, KV * cap * codes_row_bytes(&c, dim));
    c.k_pair = op_in(x, NULL, 4 * KV * (by_token ? cap * codes_runs(&c, dim) : cap / CODE_GROUP * dim));
    c.k_at = c.v_at = op_in(x, at, 4 * n);
    s.rows.codes = c;
    if (coded) x->be->ops->codes->encode(x->be, &s.rows, false, op_in(x, src, 8 * n), 0, coded);
    free(row), free(at), free(src);
    return s;
}

/* The same with all rows in blocks. */
static key_store keys_in_blocks(op_run *x, int64_t kind, size_t n, size_t dim, dtype type, unsigned rotated)
{
    key_store s = {.rows = {.type = type, .rotated = rotated, .n_kv_heads = KV, .head_dim = dim, .cap = n},
                   .k = xmalloc(4 * KV * n * dim)};
    float *written = xmalloc(4 * KV * n * dim); /* [n][KV][dim] */
    for (size_t i = 0; i < KV * n * dim; i++) {
        size_t t = i / dim % n, h = i / dim / n;
        s.k[i] = some_key(x, kind, (int64_t)t, i % dim);
        written[(t * KV + h) * dim + i % dim] = s.k[i];
    }
    buf k = op_in(x, written, 4 * KV * n * dim);
    s.rows.k = op_in(x, NULL, KV * n * kv_row_bytes(type, dim));
    s.rows.v = op_in(x, NULL, KV * n * kv_row_bytes(type, dim));
    x->be->ops->kv_write(x->be, &(kv_write_job){.rows = &s.rows, .n_lists = 1, .k = k, .v = k, .n = n}, 1);
    free(written);
    return s;
}

static double true_score(const key_store *s, const float *q, size_t head, size_t heads, size_t t)
{
    size_t d = s->rows.head_dim, kv = head / (heads / KV);
    double sum = 0;
    for (size_t c = 0; c < d; c++) sum += (double)q[head * d + c] * (double)s->k[(kv * s->rows.cap + t) * d + c];
    return sum;
}

/* ---- choose ---- */

typedef struct {
    float score;
    int64_t at;
} ranked;

static int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return (x->at > y->at) - (x->at < y->at);
}

/* Returns the fraction of the mass that a head misses if the first k candidates in order are attended. up and low bound
 * the products from above and below. With errors, the result is the bound without its 1e-4. */
static double missed(const certify_job *j, const ranked *order, int64_t k, const double *up, const double *low)
{
    int64_t n = j->items.hi - j->items.lo;
    double top = -HUGE_VAL, f = 0, g = 0;
    for (int64_t t = j->first; t < j->items.n_slots; t++) top = fmax(top, (double)j->scale * up[t]);
    for (int64_t t = j->first; t < j->items.n_slots; t++)
        if (t < j->items.lo || t >= j->items.hi) g += exp((double)j->scale * low[t] - top);
    for (int64_t i = 0; i < n; i++) {
        if (i < k) g += exp((double)j->scale * low[order[i].at] - top);
        else f += exp((double)j->scale * up[order[i].at] - top);
    }
    if (up != low) f += (double)(j->items.n_slots - j->first) * 0x1p-100;
    return k >= n ? 0 : f / (f + g);
}

static ranked *order_of(const certify_job *j, const float *order)
{
    int64_t n = j->items.hi - j->items.lo;
    ranked *r = xmalloc((size_t)(n + 1) * sizeof *r);
    for (int64_t i = 0; i < n; i++) r[i] = (ranked){order[j->items.lo + i], j->items.lo + i};
    qsort(r, (size_t)n, sizeof *r, by_rank);
    return r;
}

/* A list: its heads miss no more than their bounds say, and it is the shortest such. */
static void check_list(op_run *x, const certify_job *j, size_t list, const key_store *s, const float *q,
                       const float *score, const float *error, const ranked *order, int64_t k, const float *bounds)
{
    size_t each = j->n_heads / j->n_lists, n = (size_t)j->items.n_slots;
    int64_t items = j->items.hi - j->items.lo, most = j->most < items ? j->most : items;
    double *up = xmalloc(8 * n), *low = xmalloc(8 * n), *real = xmalloc(8 * n), before = 0;
    bool done = true;
    for (size_t h = list * each; h < (list + 1) * each; h++) {
        for (size_t t = 0; t < n; t++) {
            up[t] = (double)score[h * j->stride + t] + (double)error[h * j->stride + t];
            low[t] = (double)score[h * j->stride + t] - (double)error[h * j->stride + t];
            real[t] = true_score(s, q, h, j->n_heads, t);
            op_note(x, t < (size_t)j->first || (real[t] <= up[t] && real[t] >= low[t]),
                    "token %zu: %g is not in [%g, %g]", t, real[t], low[t], up[t]);
        }
        double want = missed(j, order, k, up, low), is = missed(j, order, k, real, real), b = (double)bounds[h];
        op_note(x, is <= b, "head %zu misses %g, its bound is %g", h, is, b);
        op_note(x, b >= want * 0.9999 && b <= want * 1.0003 + 1e-7, "head %zu: bound %g, not %g", h, b, want);
        done &= bounds[h] <= j->eps;
        if (k > 0) before = fmax(before, missed(j, order, k - 1, up, low));
    }
    op_note(x, k <= most && (k >= j->least || k == most), "%d of %d to %d", (int)k, (int)j->least, (int)most);
    op_note(x, done || k == most, "list %zu ends at %d of %d without a certificate", list, (int)k, (int)most);
    op_note(x, k <= j->least || before > (double)j->eps * 0.9997, "%d are too many: %g", (int)k, before);
    free(up), free(low), free(real);
}

static void check_counts(op_run *x, const certify_job *j, const int64_t *k, const float *bounds)
{
    uint64_t want[CERTIFY_COUNTS] = {0}, *got = op_see(x, j->counts, sizeof want);
    int64_t seen = j->items.n_slots - j->first, forced = seen - (j->items.hi - j->items.lo);
    for (size_t h = 0; h < j->n_heads; h++) want[CERTIFY_DONE] += bounds[h] <= j->eps;
    for (size_t l = 0; l < j->n_lists; l++) want[CERTIFY_TOKENS] += (uint64_t)(forced + k[l]);
    op_note(x, got[CERTIFY_HEADS] == j->n_heads && got[CERTIFY_LISTS] == j->n_lists, "heads and lists");
    op_note(x, got[CERTIFY_DONE] == want[CERTIFY_DONE], "%d heads are certified", (int)got[CERTIFY_DONE]);
    op_note(x, got[CERTIFY_TOKENS] == want[CERTIFY_TOKENS], "%d tokens", (int)got[CERTIFY_TOKENS]);
    for (int b = 0; b < CERTIFY_COUNTS - CERTIFY_BINS; b++) want[CERTIFY_BINS] += got[CERTIFY_BINS + b];
    op_note(x, want[CERTIFY_BINS] == j->n_lists, "lists by tokens");
    free(got);
}

/* Real keys, scores and bounds of them, and lists in the order of a sum of scores, or of equal ones. */
static void certified(op_run *x, const int64_t *p)
{
    size_t n = (size_t)p[1], dim = (size_t)p[2], heads = KV * (size_t)p[3], lists = p[7] ? KV : heads, stride = n + 5;
    if (n > 500 && strcmp(x->be->name, "ref") == 0) return;
    key_store s =
        p[9] ? keys_in_blocks(x, p[0], n, dim, p[4] ? DT_Q8 : DT_Q4, p[5] ? KV_ROTATED_K : 0)
             : keys_of(x, p[0], n, n / CODE_GROUP * CODE_GROUP, dim, p[4] ? DT_F32 : DT_F16, p[5] ? 4 : 2, p[6]);
    float *q = random_f32(&x->r, heads * dim), *order = xmalloc(4 * lists * stride);
    coded_index index = {&s.rows};
    int64_t first = (int64_t)n / 9, sinks = op_int(x, 0, 2), newest = op_int(x, 1, 20);
    score_job score = scored(x, &index, op_in(x, q, 4 * heads * dim), heads, first, (int64_t)n, stride), error = score;
    error.score = op_out(x, 4 * heads * stride, BITS, 0);
    x->be->ops->coded->score(x->be, &score, 1);
    x->be->ops->certify->bound(x->be, &error, 1);
    float *sc = op_see(x, score.score, 4 * heads * stride), *er = op_see(x, error.score, 4 * heads * stride);
    for (size_t i = 0; i < lists * stride; i++) {
        size_t h = i / stride * (heads / lists);
        order[i] = p[8] ? 0 : sc[h * stride + i % stride] + sc[(h + heads / lists - 1) * stride + i % stride];
    }
    x->one_bits = true; /* ref may differ where a bound is eps but for rounding */
    certify_job j = {.score = score.score,
                     .error = error.score,
                     .order = op_in(x, order, 4 * lists * stride),
                     .n_heads = heads,
                     .n_lists = lists,
                     .stride = stride,
                     .first = first,
                     .items = {(int64_t)n, first + sinks, (int64_t)n - newest},
                     .scale = 2 / sqrtf((float)dim),
                     .eps = (float[]){0.01f, 0.1f, 0.5f, 0.9f}[op_int(x, 0, 3)],
                     .least = op_int(x, 0, 3),
                     .most = (int64_t)n / op_int(x, 1, 3),
                     .k = op_out(x, 8 * lists, UNIT, 1e30),
                     .bound = op_out(x, 4 * heads, UNIT, 1e30),
                     .counts = op_inout(x, NULL, 8 * CERTIFY_COUNTS, UNIT, 1e30)};
    if (j.items.hi < j.items.lo) j.items.hi = j.items.lo;
    x->be->ops->certify->choose(x->be, &j, 1);
    int64_t *k = op_see(x, j.k, 8 * lists);
    float *bounds = op_see(x, j.bound, 4 * heads);
    for (size_t l = 0; l < lists; l++) {
        ranked *r = order_of(&j, order + l * stride);
        check_list(x, &j, l, &s, q, sc, er, r, k[l], bounds);
        free(r);
    }
    check_counts(x, &j, k, bounds);
    free(s.k), free(q), free(order), free(sc), free(er), free(k), free(bounds);
}

/* doc/methods.md 7e: token 0 is attended, and tokens 1 and 2 are candidates; then one number that is none. */
static void example(op_run *x, const int64_t *p)
{
    static const float error[] = {0, 1, 0};
    static const struct {
        float eps, score[3];
        int64_t most, k;
        float bound;
    } want[] = {{0.51f, {5, 4, 0}, 9, 0, 0.50174f}, {0.5f, {5, 4, 0}, 9, 1, 0.0059f}, {0.001f, {5, 4, 0}, 9, 2, 0},
                {0.001f, {5, 4, 0}, 1, 1, 0.0059f}, {0.5f, {5, NAN, 0}, 9, 2, 0},     {0.5f, {5, NAN, 0}, 1, 1, 1},
                {0.5f, {5, 4, INFINITY}, 1, 1, 1},  {0.5f, {NAN, 4, 0}, 1, 1, 1}};
    (void)p;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        certify_job j = {.score = op_in(x, want[i].score, sizeof error),
                         .error = op_in(x, error, sizeof error),
                         .n_heads = 1,
                         .n_lists = 1,
                         .stride = 3,
                         .items = {3, 1, 3},
                         .scale = 1,
                         .eps = want[i].eps,
                         .most = want[i].most,
                         .k = op_out(x, 8, BITS, 0),
                         .bound = op_out(x, 4, UNIT, 1e-4),
                         .counts = op_inout(x, NULL, 8 * CERTIFY_COUNTS, UNIT, 1e30)};
        j.order = j.score;
        x->be->ops->certify->choose(x->be, &j, 1);
        int64_t *k = op_see(x, j.k, 8);
        float *b = op_see(x, j.bound, 4);
        op_note(x, *k == want[i].k && fabsf(*b - want[i].bound) < 1e-4f, "example %zu: %d, bound %g", i, (int)*k,
                (double)*b);
        free(k), free(b);
    }
}

/* Bins ascend without a gap, and a list lies in the bin of its number. */
static void bins(void)
{
    int64_t wrong = 0;
    for (int64_t n = 0; n < 1 << 20; n++) {
        int b = certify_bin(n);
        wrong += certify_bin_most(b) < n || (b > 0 && certify_bin_most(b - 1) >= n);
        if (certify_bin_most(b) > n + n / 32) wrong++;
    }
    ok(wrong == 0, "bins of numbers of tokens, to a thirty-second");
}

static const op_test tests[] = {
    {"bounds of codes",
     bound,
     160,
     0,
     0,
     {OP_P(2, 13, 16, 22, 32, 64, 80, 96, 128, 256), OP_P(1, 2, 17, 40, 130, 700), OP_P(1, 2, 3, 4, 9, 12), OP_TYPES,
      OP_P(2, 4), OP_BOOL, OP_BOOL}},
    {"no list misses more than its bound",
     certified,
     360,
     0,
     0,
     {OP_P(KEYS_EVEN, KEYS_OUTLIERS, KEYS_FAR, KEYS_EQUAL, KEYS_TINY, KEYS_STEEP), OP_P(40, 130, 301, 1500),
      OP_P(32, 64, 80, 128), OP_P(1, 2, 5, 12), OP_BOOL, OP_BOOL, OP_BOOL, OP_BOOL, OP_P(0, 0, 0, 1), OP_P(0)}},
    {"bounds of rows in blocks",
     bound_blocks,
     72,
     0,
     0,
     {OP_P(32, 64, 128, 256), OP_P(1, 17, 130, 700), OP_P(1, 3, 9, 12), OP_P(DT_Q8, DT_Q4), OP_P(0, KV_ROTATED_K),
      OP_BOOL}},
    {"no list over rows in blocks misses more than its bound",
     certified,
     240,
     0,
     0,
     {OP_P(KEYS_EVEN, KEYS_OUTLIERS, KEYS_FAR, KEYS_EQUAL, KEYS_TINY, KEYS_STEEP), OP_P(40, 130, 301, 1500),
      OP_P(32, 64, 128, 256), OP_P(1, 2, 5, 12), OP_BOOL, OP_BOOL, OP_P(0), OP_BOOL, OP_P(0, 0, 0, 1), OP_P(1)}},
    {"the example", example, 1, 0, 0, {OP_P(0)}},
};

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
    bins();
    return tap_done();
}
