/* SPDX-License-Identifier: MIT */
/* The base ops: memory, the transformer's, products of all weights, rotary embedding, KV rows. */
/* Builds: shim race device */
#include "config.h"

#define TILE_LEVELS "amx-emulated", "amx"
#include "kernels/qblock_random.h"
#include "tests/unit/op_table.h"

/* ---- memory ---- */

/* Uploads larger than what a device pins, and many small ones. */
static void memory(op_run *x, const int64_t *p)
{
    enum { BIG = 3 << 19 };
    const backend_ops *o = x->be->ops;
    size_t step = (size_t)p[0];
    unsigned char *a = xmalloc(BIG);
    err e = {0};
    for (size_t i = 0; i < BIG; i++) a[i] = (unsigned char)(i * 7 + i / 256);
    buf b = op_inout(x, NULL, BIG, BITS, 0), y;
    unsigned char *fresh = op_see(x, b, BIG);
    for (size_t i = 0; i < BIG; i++) op_note(x, fresh[i] == 0, "fresh memory is not zero at %zu", i);
    op_note(x, o->import(x->be, &y, a, BIG, &e) == ST_OK, "import: %s", e.msg);
    for (size_t i = 0; i < BIG; i += step) o->upload(x->be, buf_at(b, i), a + i, BIG - i < step ? BIG - i : step);
    o->copy(x->be, buf_at(b, 64), y, 1000);
    unsigned char *now = op_see(x, b, BIG);
    op_note(x, !memcmp(now, a, 64) && !memcmp(now + 64, a, 1000) && !memcmp(now + 1064, a + 1064, BIG - 1064),
            "uploads of %zu bytes, a copy", step);
    o->release(x->be, y, BIG);
    free(a), free(fresh), free(now);
}

/* ---- rows and elements ---- */

static void rmsnorm(op_run *x, const int64_t *p)
{
    enum { N = 3 };
    size_t dim = (size_t)p[0], bytes = 4 * N * dim;
    weight w = {op_as(x, dim, (dtype)p[1]), (dtype)p[1], 1, dim, {NULL}};
    float *f = random_f32(&x->r, N * dim);
    buf out = op_out(x, bytes, NMSE, 1e-12), in_place = op_inout(x, f, bytes, IN, 0);
    x->be->ops->rmsnorm(x->be, out, op_in(x, f, bytes), w, N, 1e-5f);
    x->be->ops->rmsnorm(x->be, in_place, in_place, w, N, 1e-5f);
    op_same(x, out, in_place, bytes, "in place");
    free(f);
}

/* Floats at which roundings go wrong: subnormals of either type, halfway cases, limits, NaN. */
static float *hard_floats(op_run *x, size_t n)
{
    static const uint32_t base[] = {0,          1,          0x7fffff,   0x800000,   0x33000000, 0x33000001, 0x337fffff,
                                    0x33800000, 0x38000000, 0x387fe000, 0x387ff000, 0x387fffff, 0x38800000, 0x3f800000,
                                    0x3f801000, 0x3f803000, 0x3f808000, 0x3f818000, 0x477fe000, 0x477fefff, 0x477ff000,
                                    0x47800000, 0x7f7f0000, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff, 0x7f800000, 0x7f800001,
                                    0x7fa00000, 0x7fc00000, 0x7fffffff};
    const size_t n_base = sizeof base / sizeof base[0];
    float *f = xmalloc(4 * n);
    for (size_t i = 0; i < n; i++) {
        uint32_t u = i % 3 ? (uint32_t)rng_next(&x->r) : base[i / 3 % n_base] + (uint32_t)(i / 3 / n_base % 3) - 1;
        f[i] = bits_to_f32(u ^ (uint32_t)(i / 7 % 2) << 31);
    }
    return f;
}

/* Widening is exact: a table with all 65,536 values of 16 bits. */
static void embed(op_run *x, const int64_t *p)
{
    dtype t = (dtype)p[0];
    size_t cols = (size_t)p[1], rows = 65536 / cols / (t == DT_F32 ? 2 : 1), n = rows;
    uint16_t *h = xmalloc(2 * 65536);
    int32_t *ids = xmalloc(4 * n);
    for (size_t i = 0; i < 65536; i++) h[i] = (uint16_t)i;
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)((i * 5 + 1) % rows);
    buf out = op_out(x, 4 * n * cols, BITS_F32, 0), table = op_in(x, h, rows * cols * dtype_size(t));
    x->be->ops->embed(x->be, out, (weight){table, t, rows, cols, {NULL}}, op_in(x, ids, 4 * n), n);
    free(h), free(ids);
}

/* Fills a matrix with random blocks whose weights are positive on average, so that no sum cancels to almost nothing.
 * The padding is filled too: its products are not used. */
static unsigned char *random_blocks(rng *r, dtype t, size_t rows, size_t cols)
{
    unsigned char *w = xmalloc(weight_bytes(t, rows, cols));
    qblock_values v = {0};
    for (size_t i = 0; i < qblock_groups(rows) * QBLOCK_ROWS; i++)
        for (size_t b = 0; b * qblock_cols(t) < cols; b++) {
            qblock_random(&v, t, 2, r);
            v.m &= 0x7fff;
            v.z &= 7; /* below the mean code, so that sums do not cancel */
            for (size_t j = 0; j < sizeof v.s; j++) v.s[j] &= 127;
            for (size_t c = 0; c < qblock_cols(t) && t == DT_FP8; c++) v.code[c] &= 127;
            for (size_t c = 0; c < qblock_cols(t) && qblock_offset(t); c++)
                if (v.code[c] < qblock_offset(t)) v.code[c] |= (uint8_t)(rng_next(r) & (unsigned)qblock_offset(t));
            qblock_put(qblock_at(w, t, cols, i, b), t, i, &v);
        }
    return w;
}

/* A table in blocks: random ones, and for types that `quantize` makes one whose values it keeps. */
static void embed_blocks(op_run *x, const int64_t *p)
{
    dtype t = (dtype)p[0];
    size_t cols = (size_t)p[1], rows = (size_t)p[2], n = 2 * rows, bytes = weight_bytes(t, rows, cols);
    int32_t *ids = xmalloc(4 * n);
    unsigned char *b = xmalloc(bytes);
    float *f = xmalloc(4 * rows * cols);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)((i * 5 + 1) % rows);
    for (size_t i = 0; i < bytes; i++) b[i] = (unsigned char)rng_next(&x->r);
    for (size_t i = 0; i < bytes; i += 2)
        if (i % qblock_bytes(t) < qblock_head_bytes(t)) b[i + 1] &= 0xbf; /* finite */
    for (size_t i = 0; i < rows * cols; i++) { /* codes from the lowest, times a scale for each block */
        int low = t == DT_Q8 ? -127 : -8,
            c = i % cols % QBLOCK_COLS ? (int)(rng_next(&x->r) % (unsigned)(-2 * low)) : 0;
        f[i] = ldexpf((float)(low + c), (int)((i / cols * 3 + i % cols / QBLOCK_COLS) % 20) - 12);
    }
    buf id = op_in(x, ids, 4 * n), plain = op_in(x, f, 4 * rows * cols), want = op_out(x, 4 * n * cols, BITS, 0),
        kept = op_inout(x, NULL, bytes, IN, 0), got = op_out(x, 4 * n * cols, BITS, 0),
        any = op_out(x, 4 * n * cols, BITS, 0);
    const backend_ops *o = x->be->ops;
    o->embed(x->be, any, (weight){op_in(x, b, bytes), t, rows, cols, {NULL}}, id, n);
    free(ids), free(b), free(f);
    if (!dtype_is_quantized_to(t)) return;
    o->quantize(x->be, kept, t, (weight){plain, DT_F32, rows, cols, {NULL}});
    o->embed(x->be, want, (weight){plain, DT_F32, rows, cols, {NULL}}, id, n);
    o->embed(x->be, got, (weight){kept, t, rows, cols, {NULL}}, id, n);
    op_same(x, want, got, 4 * n * cols, "the values before quantizing");
}

/* silu on [-80, 80], then whatever a float may be; the vector's tails. */
static void swiglu(op_run *x, const int64_t *p)
{
    static const float odd[] = {NAN, INFINITY, -80, -100, -1000, 1000, 0, -0.0f, 3e38f, 1e-41f, -200, 70000};
    size_t n = (size_t)p[0];
    float *a = random_f32(&x->r, n), *b = random_f32(&x->r, n);
    for (size_t i = 0; i < n; i++) {
        a[i] *= p[1] ? 80 : 4;
        if (p[1]) b[i] = 1;
        if (p[1] == 2) a[i] = odd[i % 12];
    }
    buf gate = op_in(x, a, 4 * n), up = op_in(x, b, 4 * n),
        out = op_out(x, 4 * n, p[1] ? REL : NMSE, p[1] ? 6e-7 : 1e-12);
    buf in_place = op_inout(x, a, 4 * n, IN, 0), sum = op_inout(x, a, 4 * n, BITS_F32, 0),
        parts = op_out(x, 4 * n, IN, 0);
    x->be->ops->swiglu(x->be, out, gate, up, n);
    x->be->ops->swiglu(x->be, in_place, in_place, up, n);
    for (size_t i = 0, k; i < n; i += k) { /* any split gives these bits */
        k = n - i < 97 ? n - i : 97;
        x->be->ops->swiglu(x->be, buf_at(parts, 4 * i), buf_at(gate, 4 * i), buf_at(up, 4 * i), k);
    }
    op_same(x, out, in_place, 4 * n, "in place");
    op_same(x, out, parts, 4 * n, "in parts");
    x->be->ops->add(x->be, sum, up, n);
    free(a), free(b);
}

/* Gates on [-80, 80], then whatever a float may be; logits far below and beyond the cap. */
static void gate(op_run *x, const int64_t *p)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, -100, -1000, 1000, 0, -0.0f, 3e38f, 1e-41f, -200, 70000};
    size_t n = (size_t)p[0];
    float *a = random_f32(&x->r, n), *b = random_f32(&x->r, n);
    for (size_t i = 0; i < n; i++) {
        if (p[1] == 1) b[i] *= 80, a[i] = 1;
        if (p[1] == 2) a[i] = odd[(i + 5) % 12], b[i] = 1;
    }
    buf g = op_in(x, b, 4 * n);
    buf all = op_inout(x, a, 4 * n, p[1] ? REL : NMSE, p[1] ? 6e-7 : 1e-12), parts = op_inout(x, a, 4 * n, IN, 0);
    buf logits = op_inout(x, a, 4 * n, REL, 6e-7);
    x->be->ops->gate(x->be, all, g, n);
    for (size_t i = 0, k; i < n; i += k) { /* any split gives these bits */
        k = n - i < 97 ? n - i : 97;
        x->be->ops->gate(x->be, buf_at(parts, 4 * i), buf_at(g, 4 * i), k);
    }
    op_same(x, all, parts, 4 * n, "in parts");
    x->be->ops->softcap(x->be, logits, n, 0.7f, 20);
    free(a), free(b);
}

static void convert(op_run *x, const int64_t *p)
{
    size_t n = (size_t)p[0];
    dtype to = (dtype)p[1], from = (dtype)p[2];
    float *f = hard_floats(x, n);
    buf a = op_in(x, f, 4 * n), mid = op_out(x, n * dtype_size(from), op_bits(from), 0);
    x->be->ops->convert(x->be, mid, from, a, DT_F32, n);
    x->be->ops->convert(x->be, op_out(x, n * dtype_size(to), op_bits(to), 0), to, mid, from, n);
    free(f);
}

static void rope(op_run *x, const int64_t *p)
{
    static const int64_t pos[] = {0, 1, 17, 4095, 131071, 1000003, 8000000};
    enum { N = 7, HEADS = 3 };
    size_t half = (size_t)p[0], dim = 2 * half + (size_t)p[1], n = N * HEADS * dim;
    float freq[128], *f = random_f32(&x->r, n);
    for (size_t c = 0; c < half; c++) freq[c] = powf(500000, -(float)c / (float)half);
    buf table = op_out(x, 8 * N * half, NMSE, 1e-13), out = op_out(x, 4 * n, NMSE, 1e-13);
    buf in_place = op_inout(x, f, 4 * n, IN, 0);
    x->be->ops->rope_table(x->be, table, op_in(x, pos, sizeof pos), N, op_in(x, freq, 4 * half), half, 1.25f);
    x->be->ops->rope(x->be, out, in_place, table, N, HEADS, dim, half);
    x->be->ops->rope(x->be, in_place, in_place, table, N, HEADS, dim, half);
    op_same(x, out, in_place, 4 * n, "in place");
    free(f);
}

/* ---- KV rows ---- */

/* Rows to a slot of all heads, then of each head; two stores in one call; moves that overlap, and not. */
static void kv_write(op_run *x, const int64_t *p)
{
    enum { CAP = 40 };
    size_t n = (size_t)p[1], dim = (size_t)p[0], heads = (size_t)p[2], row = n * heads * dim;
    dtype t = (dtype)p[3];
    size_t bytes = heads * CAP * dim * dtype_size(t);
    op_rule rule = op_bits(t);
    kv_rows a = {op_out(x, bytes, rule, 0), op_out(x, bytes, rule, 0), t, 0, heads, dim, CAP, {0}, NULL, NULL}, c = a;
    c.k = op_out(x, bytes, rule, 0), c.v = op_out(x, bytes, rule, 0);
    float *f = hard_floats(x, 2 * row);
    int64_t one[16], each[16 * 3], last[3];
    for (size_t h = 0; h < heads; h++) last[h] = (int64_t)(CAP - 1 - h);
    for (size_t i = 0; i < n; i++) {
        one[i] = (int64_t)(i * 3 % CAP);
        for (size_t h = 0; h < heads; h++) each[i * heads + h] = (int64_t)((i * 7 + h + 1) % CAP);
    }
    buf k = op_in(x, f, 4 * row), v = op_in(x, f + row, 4 * row);
    x->be->ops->kv_write(x->be, &(kv_write_job){&a, CAP - (int64_t)n, (buf){NULL}, 1, v, k, n}, 1);
    x->be->ops->kv_write(x->be, &(kv_write_job){&a, 0, op_in(x, one, 8 * n), 1, k, v, n}, 1);
    x->be->ops->kv_write(x->be, &(kv_write_job){&a, 0, op_in(x, each, 8 * n * heads), heads, v, k, n}, 1);
    const kv_write_job two[] = {{&c, 1, (buf){NULL}, 1, k, v, n}, {&c, 0, op_in(x, last, 8 * heads), heads, v, k, 1}};
    x->be->ops->kv_write(x->be, two, 2);
    x->be->ops->kv_move(x->be, &a, 1, 3, n);
    x->be->ops->kv_move(x->be, &a, CAP / 2, 2, n);
    free(f);
}

/* One layer's rows of heads: norms, rotations, writing. wait: for each op before the next. */
static void make_rows(op_run *x, const int64_t *p, buf q[2], buf k[2], buf v, const kv_rows *rows, bool wait)
{
    enum { N = 5, Q_HEADS = 4 };
    const backend_ops *o = x->be->ops;
    size_t half = (size_t)p[0], heads = (size_t)p[1], token = 4 * heads * 2 * half;
    size_t pairs = p[5] ? (half + 1) / 2 : half;
    dtype t = (dtype)p[3];
    weight w = {op_as(x, 2 * half, t), t, 1, 2 * half, {NULL}};
    int64_t slots[N] = {7, 2, 9, 0, 4};
    float turns[N * 128 * 2];
    for (size_t i = 0; i < 2 * N * half; i++) turns[i] = cosf((float)i);
    buf table = op_in(x, turns, 8 * N * half), slot = op_in(x, slots, sizeof slots);
    kv_write_job jobs[N];
    size_t n_jobs = p[4] ? N : 1;
    for (size_t i = 0; i < n_jobs; i++)
        jobs[i] = (kv_write_job){rows, 0, buf_at(slot, 8 * i), 1, buf_at(k[1], i * token), buf_at(v, i * token), N};
    for (size_t i = 0; i < n_jobs && n_jobs == N; i++) jobs[i].n = 1;
    if (p[2] & 1) o->rmsnorm(x->be, q[0], q[0], w, N * Q_HEADS, 1e-5f);
    if (wait) o->sync(x->be);
    if (p[2] & 2) o->rmsnorm(x->be, k[0], k[0], w, N * heads, 1e-5f);
    if (wait) o->sync(x->be);
    o->rope(x->be, k[1], k[0], table, N, heads, 2 * half, pairs);
    if (wait) o->sync(x->be);
    o->rope(x->be, q[1], q[0], table, N, Q_HEADS, 2 * half, pairs);
    if (wait) o->sync(x->be);
    o->kv_write(x->be, jobs, n_jobs);
    if (p[2] & 4) o->rope(x->be, k[1], k[1], table, N, heads, 2 * half, pairs);
    if (p[2] & 8) o->rope(x->be, q[0], k[1], table, N, heads < Q_HEADS ? heads : Q_HEADS, 2 * half, pairs);
}

/* The ops of rows of heads one after the other, and each waited for: the same bits. */
static void rows_of_heads(op_run *x, const int64_t *p)
{
    enum { N = 5, CAP = 12 };
    size_t dim = 2 * (size_t)p[0], heads = (size_t)p[1], nq = 4 * N * 4 * dim, nk = 4 * N * heads * dim;
    dtype t = (dtype)p[3];
    size_t bytes = heads * CAP * dim * dtype_size(t);
    float *f = random_f32(&x->r, (nq + nk) / 4);
    buf q[2][2], k[2][2], v = op_in(x, f + 1, nk);
    kv_rows rows[2];
    rng at = x->r;
    for (int i = 0; i < 2; i++) {
        q[i][0] = op_inout(x, f, nq, NMSE, 1e-12), q[i][1] = op_out(x, nq, NMSE, 1e-12);
        k[i][0] = op_inout(x, f + nq / 4, nk, NMSE, 1e-12), k[i][1] = op_out(x, nk, NMSE, 1e-12);
        rows[i] = (kv_rows){
            op_inout(x, NULL, bytes, IN, 0), op_inout(x, NULL, bytes, IN, 0), t, 0, heads, dim, CAP, {0}, NULL, NULL};
        x->r = at; /* the same weights */
        make_rows(x, p, q[i], k[i], v, &rows[i], i);
    }
    for (int i = 0; i < 2; i++) {
        op_same(x, q[0][i], q[1][i], nq, "queries");
        op_same(x, k[0][i], k[1][i], nk, "keys");
    }
    op_same(x, rows[0].k, rows[1].k, bytes, "rows of keys");
    op_same(x, rows[0].v, rows[1].v, bytes, "rows of values");
    free(f);
}

/* ---- products ---- */

/* Three products of one x: of rows m, 40 and 1. Weights of two bytes lie at odd addresses of these where `odd`, those
 * in blocks are made by `quantize`. The first two of a type with zero points have their columns in one random order. */
typedef struct {
    size_t n, cols, m[3];
    linear_job job[3];
    buf x;
} product;

/* Returns a random order of n columns. */
static buf random_order(op_run *x, size_t n)
{
    int32_t *order = xmalloc(n * sizeof *order);
    for (size_t i = 0; i < n; i++) {
        size_t j = (size_t)rng_below(&x->r, i + 1);
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    buf b = op_in(x, order, n * sizeof *order);
    free(order);
    return b;
}

static product product_of(op_run *x, size_t n, size_t m, size_t cols, dtype held, dtype type, bool odd)
{
    product q = {.n = n, .cols = cols, .m = {m, 40, 1}};
    float *f = random_f32(&x->r, n * cols);
    for (size_t i = 0; i < n * cols; i++) f[i] += 0.5f; /* no sum cancels to almost nothing */
    q.x = op_in(x, f, 4 * n * cols);
    free(f);
    for (int k = 0; k < 3; k++) {
        size_t skip = type == DT_F32 || !odd ? 0 : 2, size = q.m[k] * cols * dtype_size(type);
        unsigned char *room = xmalloc(size + skip);
        float *w = random_f32(&x->r, q.m[k] * cols);
        for (size_t i = 0; i < q.m[k] * cols; i++) {
            uint16_t h = type == DT_F16 ? f32_to_f16(w[i] + 0.5f) : f32_to_bf16(w[i] + 0.5f);
            float f32 = w[i] + 0.5f;
            memcpy(room + skip + i * dtype_size(type), type == DT_F32 ? (void *)&f32 : &h, dtype_size(type));
        }
        q.job[k].w = (weight){buf_at(op_in(x, room, size + skip), skip), type, q.m[k], cols, {NULL}};
        if (k != 1) q.job[k].bias = (weight){op_as(x, q.m[k], type), type, 1, q.m[k], {NULL}};
        free(room), free(w);
        if (!dtype_in_qblocks(held)) continue;
        unsigned char *any = dtype_is_quantized_to(held) ? NULL : random_blocks(&x->r, held, q.m[k], cols);
        buf blocks = op_inout(x, any, weight_bytes(held, q.m[k], cols), BITS, 0);
        if (!any) x->be->ops->quantize(x->be, blocks, held, q.job[k].w);
        free(any);
        q.job[k].w.p = blocks, q.job[k].w.type = held;
    }
    if (qblock_kind_of(held).zero) q.job[0].w.order = q.job[1].w.order = random_order(x, cols);
    return q;
}

/* Rows of x that have the bits of one alone, on all backends of this program. */
static size_t alike(dtype held)
{
#ifdef ON_CUDA
    if (held == DT_F32 || held == DT_F16) return LINEAR_ALIKE / 2;
    if (dtype_in_qblocks(held)) return 2 * LINEAR_ALIKE;
#endif
    (void)held;
    return LINEAR_ALIKE;
}

/* NMSE of products: of x in 8 bits and of float32, of what a library or many rows may round. Tensor cores, which
 * multiply by bf16, truncate sums. */
static double linear_error(const op_run *x, const product *q, dtype held, bool exact)
{
    if (exact || q->n <= alike(held)) return held == DT_BF16 && op_on_cuda(x) ? 1e-10 : 1e-11;
    if (dtype_in_qblocks(held)) return op_on_cuda(x) ? 1e-11 : 2e-5;
    return held == DT_BF16 ? 1e-5 : held == DT_F16 && op_on_cuda(x) ? 1e-6 : 1e-10;
}

static void linear(op_run *x, const int64_t *p)
{
    dtype held = (dtype)p[3], type = dtype_in_qblocks(held) ? (dtype)p[4] : held;
    bool exact = p[5], many = !exact && (size_t)p[1] > alike(held);
    product q = product_of(x, (size_t)p[1], (size_t)p[2], (size_t)p[0], held, type, p[6]);
    x->any_bits = many;
    for (int k = 0; k < 3; k++) q.job[k].out = op_out(x, 4 * q.n * q.m[k], NMSE, linear_error(x, &q, held, exact));
#ifndef ON_CUDA /* the CPU may round less than 8 bits of x where there are many rows */
    if (many && dtype_in_qblocks(held) && strcmp(x->be->name, "ref") == 0) exact = true;
#endif
    x->be->ops->linear(x->be, q.job, 3, q.x, q.n, exact);
    if (many) return;
    buf alone = op_out(x, 4 * q.m[0], IN, 0), batch = buf_at(q.job[0].out, 4 * (q.n - 1) * q.m[0]);
    linear_job last = q.job[0];
    last.out = alone;
    x->be->ops->linear(x->be, &last, 1, buf_at(q.x, 4 * (q.n - 1) * q.cols), 1, exact);
    op_same(x, alone, batch, 4 * q.m[0], "the last row alone");
    if (q.m[0] <= 16) return; /* the last rows of w alone */
    buf part = op_out(x, 4 * q.n * (q.m[0] - 16), IN, 0);
    size_t skip = dtype_in_qblocks(held) ? qblock_group_bytes(held, q.cols) : 16 * q.cols * dtype_size(held);
    last = (linear_job){part, {buf_at(q.job[0].w.p, skip), held, q.m[0] - 16, q.cols, q.job[0].w.order}, q.job[0].bias};
    last.bias.cols -= 16;
    last.bias.p = buf_at(last.bias.p, 16 * dtype_size(last.bias.type));
    x->be->ops->linear(x->be, &last, 1, q.x, q.n, exact);
    for (size_t i = 0; i < q.n; i++)
        op_same(x, buf_at(part, 4 * i * (q.m[0] - 16)), buf_at(q.job[0].out, 4 * (i * q.m[0] + 16)), 4 * (q.m[0] - 16),
                "a part of w");
}

/* Products fused with the ops around them have the bits of these ops. p: columns, rows of x, rows of w, storage type of
 * the weights, type of their elements, exact, requested fusion, type of the norm. */
static void project(op_run *x, const int64_t *p)
{
    const backend_ops *o = x->be->ops;
    dtype held = (dtype)p[3], type = dtype_in_qblocks(held) ? DT_F32 : held;
    product q = product_of(x, (size_t)p[1], 40, (size_t)p[0], held, type, false);
    bool norm = p[4] & 1, gated = p[4] & 2, into = p[4] & 4, many = q.n > alike(held);
    size_t n_jobs = gated ? 2 : into ? 1 : 3, all = 40 * q.n, bytes = 4 * all;
    linear_job alone[3];
    buf room = op_out(x, 4 * q.n * q.cols, IN, 0), in = room, sum = op_out(x, bytes, IN, 0);
    weight w = {op_as(x, q.cols, (dtype)p[6]), (dtype)p[6], 1, q.cols, {NULL}};
    x->any_bits = many;
    for (int k = 0; k < 3; k++) {
        alone[k] = q.job[k];
        q.job[k].out = op_out(x, 4 * q.n * q.m[k], IN, 0), alone[k].out = op_out(x, 4 * q.n * q.m[k], IN, 0);
    }
    float *f = random_f32(&x->r, all);
    buf to = op_inout(x, f, bytes, NMSE, many ? 1e-4 : 1e-10);
    free(f);
    o->copy(x->be, sum, to, bytes);
    if (norm) o->rmsnorm(x->be, in, q.x, w, q.n, 1e-5f);
    o->linear(x->be, alone, n_jobs, norm ? in : q.x, q.n, p[5]);
    if (gated) o->swiglu(x->be, alone[0].out, alone[0].out, alone[1].out, all);
    o->add(x->be, sum, alone[0].out, all);
    projection c = {.jobs = q.job, .n_jobs = n_jobs, .x = q.x, .n = q.n, .exact = p[5], .eps = 1e-5f, .gated = gated};
    if (norm) c.norm = w, c.room = room;
    if (into) c.into = to;
    o->project(x->be, &c);
    if (!into) o->add(x->be, to, q.job[0].out, all);
    op_same(x, to, sum, bytes, "op by op");
    for (size_t k = 0; k < n_jobs && !gated && !into; k++)
        op_same(x, q.job[k].out, alone[k].out, 4 * q.n * q.m[k], "a product");
}

/* A gated projection and one of its result have the bits of the ops one after the other. p: columns, rows of x, types
 * of the first two weights and of the third, exact, another op between. */
static void feed_forward(op_run *x, const int64_t *p)
{
    const backend_ops *o = x->be->ops;
    const dtype first = (dtype)p[2], second = (dtype)p[3];
    const bool exact = p[4];
    product q = product_of(x, (size_t)p[1], 40, (size_t)p[0], first, dtype_in_qblocks(first) ? DT_F32 : first, false),
            r = product_of(x, (size_t)p[1], 40, 40, second, dtype_in_qblocks(second) ? DT_F32 : second, false);
    const bool many = q.n > alike(first) || q.n > alike(second);
    const size_t all = 40 * q.n, bytes = 4 * all;
    float *f = random_f32(&x->r, all);
    buf to = op_inout(x, f, bytes, NMSE, many ? 1e-4 : 1e-10), sum = op_out(x, bytes, IN, 0);
    buf gate = op_out(x, bytes, IN, 0), up = op_out(x, bytes, IN, 0), out = op_out(x, bytes, IN, 0);
    free(f);
    x->any_bits = many;
    o->copy(x->be, sum, to, bytes);
    q.job[0].out = gate, q.job[1].out = up, r.job[0].out = out;
    o->linear(x->be, q.job, 2, q.x, q.n, exact);
    o->swiglu(x->be, gate, gate, up, all);
    o->linear(x->be, r.job, 1, gate, q.n, exact);
    o->add(x->be, sum, out, all);
    const projection gated = {.jobs = q.job, .n_jobs = 2, .x = q.x, .n = q.n, .exact = exact, .gated = true};
    const projection down = {
        .jobs = r.job, .n_jobs = 1, .x = gate, .n = q.n, .exact = exact, .into = to, .spent = true};
    o->project(x->be, &gated);
    if (p[5]) o->add(x->be, out, gate, all);
    o->project(x->be, &down);
    op_same(x, to, sum, bytes, "op by op");
}

/* Projections of unlike sizes and types run together with the bits of each alone; those of more rows than the library
 * takes among them. p: columns, most rows of x, type of the weights of every other one, exact, gated. */
static void project_each(op_run *x, const int64_t *p)
{
    enum { MANY = 5 };
    const backend_ops *o = x->be->ops;
    const bool exact = p[3], gated = p[4];
    projection list[MANY];
    product q[MANY];
    buf alone[MANY], out[MANY];
    for (size_t i = 0; i < MANY; i++) {
        dtype held = i % 2 ? DT_F32 : (dtype)p[2];
        q[i] = product_of(x, 1 + (size_t)p[1] * i / (MANY - 1), 40, (size_t)p[0] + i, held,
                          dtype_in_qblocks(held) ? DT_F32 : held, false);
        const bool many = !exact && q[i].n > alike(held);
        x->any_bits |= many;
        alone[i] = op_out(x, 160 * q[i].n, IN, 0);
        out[i] = op_out(x, 160 * q[i].n, NMSE, many ? 1e-4 : 1e-10);
        for (size_t k = 0; k < 2; k++) q[i].job[k].out = k ? op_out(x, 160 * q[i].n, IN, 0) : alone[i];
        list[i] = (projection){
            .jobs = q[i].job, .n_jobs = 1 + gated, .x = q[i].x, .n = q[i].n, .exact = exact, .gated = gated};
        o->project(x->be, &list[i]);
        q[i].job[0].out = out[i];
    }
    o->project_each(x->be, list, MANY);
    for (size_t i = 0; i < MANY; i++) op_same(x, out[i], alone[i], 160 * q[i].n, "a projection");
    o->project_each(x->be, list, 0);
}

/* p: columns, rows, terms. Rows are used several times or not at all. */
static void sum_rows(op_run *x, const int64_t *p)
{
    size_t cols = (size_t)p[0], n = (size_t)p[1], terms = (size_t)p[2];
    float *f = random_f32(&x->r, n * cols), *by = random_f32(&x->r, n * terms);
    int32_t *at = xmalloc(n * terms * sizeof *at);
    for (size_t i = 0; i < n * terms; i++) at[i] = (int32_t)rng_below(&x->r, n);
    buf out = op_out(x, 4 * n * cols, BITS, 0), in = op_in(x, f, 4 * n * cols);
    x->be->ops->sum_rows(x->be, out, in, op_in(x, at, 4 * n * terms), op_in(x, by, 4 * n * terms), n, terms, cols);
    free(f), free(by), free(at);
}

/* An odd number stays in its row of x: others are as without it. */
static void odd_x(op_run *x, const int64_t *p)
{
    enum { N = 3, M = 20, COLS = 72 };
    static const float odd[] = {0, 1e-35f, 1e30f, INFINITY, NAN};
    dtype held = (dtype)p[1];
    product q = product_of(x, N, M, COLS, held, dtype_in_qblocks(held) ? DT_F32 : held, p[3]);
    buf plain = op_out(x, 4 * N * M, NMSE, 1e-11), out = op_out(x, 4 * N * M, IN, 0);
    q.job[0].out = plain;
    x->be->ops->linear(x->be, q.job, 1, q.x, N, p[2]);
    x->be->ops->upload(x->be, buf_at(q.x, 4 * (COLS + 40)), &odd[p[0]], 4);
    q.job[0].out = out;
    x->be->ops->linear(x->be, q.job, 1, q.x, N, p[2]);
    op_same(x, plain, out, 4 * M, "the row before");
    op_same(x, buf_at(plain, 8 * M), buf_at(out, 8 * M), 4 * M, "the row after it");
    float *row = op_see(x, buf_at(out, 4 * M), 4 * M);
    for (size_t i = 0; i < M; i++) op_note(x, isfinite(odd[p[0]]) || !isfinite(row[i]), "output %zu is finite", i);
    free(row);
}

/* The largest weights from 0 to NaN, and some far smaller ones. */
static void quantize(op_run *x, const int64_t *p)
{
    static const float tops[] = {0, 1e-30f, 1e-7f, 1e-5f, 3e-4f, 1, 60000, 1e7f, 3e38f, INFINITY, NAN};
    size_t rows = (size_t)p[1], cols = (size_t)p[2];
    dtype from = (dtype)p[3], to = (dtype)p[4];
    float *f = random_f32(&x->r, rows * cols);
    for (size_t i = 0; i < rows * cols; i++) f[i] = i % cols == 3 % cols ? tops[p[0]] : tops[p[0]] * f[i];
    buf w = op_in(x, NULL, rows * cols * dtype_size(from)),
        out = op_inout(x, NULL, weight_bytes(to, rows, cols), BITS, 0);
    x->be->ops->convert(x->be, w, from, op_in(x, f, 4 * rows * cols), DT_F32, rows * cols);
    x->be->ops->quantize(x->be, out, to, (weight){w, from, rows, cols, {NULL}});
    free(f);
}

#define TAILS                                                                                                          \
    OP_P(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29,    \
         30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 48, 63, 64, 65, 96, 100, 127, 128, 255, 256, 257, 1030, 2051)
#define OF_FILES  OP_P(DT_Q4Z, DT_Q4K, DT_Q5K, DT_Q6K, DT_FP8, DT_Q4G, DT_Q4G32)
#define HEAD_DIMS OP_P(2, 6, 8, 10, 14, 16, 18, 30, 32, 34, 64, 80, 96, 128, 256)

static const op_test tests[] = {
    {"memory", memory, 2, 1, 0, {OP_P(700, 3 << 19)}},
    {"rmsnorm", rmsnorm, 159, 5, 29, {TAILS, OP_TYPES}},
    {"embed", embed, 6, 2, 0, {OP_TYPES, OP_P(37, 64)}},
    {"embed, weights of 8 and 4 bits",
     embed_blocks,
     96,
     12,
     24,
     {OP_P(DT_Q8, DT_Q4), OP_P(1, 16, 31, 32, 33, 64, 100, 576), OP_P(1, 15, 16, 17, 40)}},
    {"swiglu, add", swiglu, 300, 17, 61, {TAILS, OP_P(0, 0, 1, 2)}},
    {"gate, softcap", gate, 300, 17, 61, {TAILS, OP_P(0, 0, 1, 2)}},
    {"convert", convert, 200, 11, 61, {TAILS, OP_TYPES, OP_TYPES}},
    {"rope_table, rope",
     rope,
     57,
     3,
     7,
     {OP_P(1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 48, 64, 128), OP_P(0, 2, 22)}},
    {"kv_write, kv_move", kv_write, 120, 3, 17, {HEAD_DIMS, OP_P(1, 2, 7, 11), OP_P(1, 2, 3), OP_TYPES}},
    {"rows of heads",
     rows_of_heads,
     96,
     5,
     19,
     {OP_P(1, 2, 7, 16, 32, 33, 64, 65, 128), OP_P(1, 2, 3), OP_P(0, 1, 2, 3, 7, 11), OP_TYPES, OP_BOOL, OP_BOOL}},
    {"linear, all tails",
     linear,
     530,
     13,
     101,
     {TAILS, OP_P(1, 2, 3, 4, 5, 8, 9, 16), OP_P(1, 2, 3, 17, 33), OP_TYPES, OP_TYPES, OP_P(1), OP_BOOL}},
    {"linear, many rows",
     linear,
     60,
     7,
     31,
     {OP_P(1, 20, 31, 64, 200, 300), OP_P(16, 31, 33, 127, 130), OP_P(16, 33, 129), OP_TYPES, OP_TYPES, OP_BOOL,
      OP_BOOL}},
    {"linear, weights of 8 and 4 bits",
     linear,
     212,
     11,
     53,
     {TAILS, OP_P(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16), OP_P(1, 15, 17, 50), OP_P(DT_Q8, DT_Q4), OP_TYPES, OP_BOOL}},
    {"linear, many rows, weights of 8 and 4 bits",
     linear,
     48,
     5,
     23,
     {OP_P(1, 31, 32, 97, 128, 200, 300, 1000), OP_P(9, 16, 31, 32, 33, 127), OP_P(16, 33, 129), OP_P(DT_Q8, DT_Q4),
      OP_TYPES, OP_BOOL}},
    {"linear, w of many rows and a part of it", /* the cuda backend has a kernel for each */
     linear,
     48,
     5,
     13,
     {OP_P(300, 1032, 2112, 4512), OP_P(1, 3, 8, 11, 16), OP_P(121), OP_P(DT_F16, DT_BF16, DT_BF16, DT_Q8, DT_Q4),
      OP_TYPES, OP_P(0), OP_BOOL}},
    {"project",
     project,
     240,
     7,
     59,
     {OP_P(1, 8, 31, 64, 72, 100, 256, 520, 1032), OP_P(1, 2, 3, 8, 9, 16, 33), OP_P(40),
      OP_P(DT_F32, DT_F16, DT_BF16, DT_Q8, DT_Q4), OP_P(0, 1, 2, 3, 4, 5), OP_BOOL, OP_TYPES}},
    {"feed_forward",
     feed_forward,
     60,
     5,
     19,
     {OP_P(1, 31, 64, 72), OP_P(3, 9, 17, 33, 130), OP_P(DT_F32, DT_F16, DT_BF16, DT_BF16, DT_Q8, DT_Q4),
      OP_P(DT_F32, DT_F16, DT_BF16, DT_BF16, DT_Q8, DT_Q4), OP_BOOL, OP_BOOL}},
    {"project_each",
     project_each,
     40,
     3,
     11,
     {OP_P(1, 31, 72, 256, 520), OP_P(2, 9, 30, 70, 600), OP_P(DT_F16, DT_BF16, DT_Q8, DT_Q4), OP_BOOL, OP_BOOL}},
    {"sum_rows", sum_rows, 53, 3, 7, {TAILS, OP_P(1, 2, 40), OP_P(1, 2, 9)}},
    {"linear, odd numbers in x",
     odd_x,
     50,
     5,
     0,
     {OP_P(0, 1, 2, 3, 4), OP_P(DT_F32, DT_F16, DT_BF16, DT_Q8, DT_Q4), OP_BOOL, OP_BOOL}},
    {"quantize",
     quantize,
     132,
     11,
     43,
     {OP_P(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), OP_P(1, 15, 16, 17, 40), OP_P(1, 31, 32, 33, 100, 530), OP_TYPES,
      OP_P(DT_Q8, DT_Q4)}},
#ifndef ON_CUDA /* which has no kernels for these types */
    {"embed, types of files in blocks",
     embed_blocks,
     96,
     12,
     24,
     {OF_FILES, OP_P(1, 31, 32, 33, 256, 288, 576), OP_P(1, 15, 16, 17, 40)}},
    {"linear, types of files in blocks",
     linear,
     212,
     22,
     53,
     {TAILS, OP_P(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16), OP_P(1, 15, 17, 50), OF_FILES, OP_TYPES, OP_BOOL}},
    {"linear, many rows, types of files in blocks",
     linear,
     48,
     8,
     23,
     {OP_P(1, 31, 32, 97, 128, 256, 300, 1000), OP_P(9, 16, 31, 32, 33, 127), OP_P(16, 33, 129), OF_FILES, OP_TYPES,
      OP_BOOL}},
    {"project, types of files in blocks",
     project,
     80,
     7,
     23,
     {OP_P(1, 8, 31, 64, 100, 256, 520, 1032), OP_P(1, 2, 3, 8, 9, 16, 33), OP_P(40), OF_FILES, OP_P(0, 2, 4), OP_BOOL,
      OP_TYPES}},
    {"linear, odd numbers in x, types of files in blocks",
     odd_x,
     40,
     5,
     0,
     {OP_P(0, 1, 2, 3, 4), OF_FILES, OP_BOOL, OP_BOOL}},
#endif
};

#ifndef ON_CUDA
static void test_levels(void)
{
    backend *be;
    err e = {0};
    backend_options o = {.device = "cpu"};
    setenv("KVASIR_CPU", "sse9", 1);
    is_err(backend_open(&be, &o, &e), &e, ST_USAGE, "sse9", "an unknown KVASIR_CPU is refused");
    unsetenv("KVASIR_CPU");
    e = (err){0};
    if (!is_ok(backend_open(&be, &o, &e), &e, "the best level opens")) return;
    printf("# %s\n", be->about);
    ok(be->n_threads >= 1, "threads: physical cores by default");
    backend_close(be);
}
#endif

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
#ifndef ON_CUDA
    test_levels();
#endif
    return tap_done();
}
