/* SPDX-License-Identifier: MIT */
/* Every base op of the cuda backend but attention, against ref. */
#include "config.h"

#include "kernels/ops_weights.h"
#include "tests/cuda/cuda_util.h"

static backend *ref;

/* Runs `call` on a device in each order; results (n floats from out) must agree to the bit. Returns them. */
typedef void (*device_call)(device *d, buf out, const void *job);

static float *run_orders(backend *be, group *g, const char *what, device_call f, const void *job, const float *init, size_t n)
{
    float *got = xmalloc(4 * n), *again = xmalloc(4 * n);
    for (int i = 0; i < n_orders(); i++) {
        device d = {.be = be};
        set_order(i);
        buf out = put(&d, init, 4 * n);
        f(&d, out, job);
        be->ops->download(be, i ? again : got, out, 4 * n);
        drop(&d);
        if (i) group_note(g, memcmp(got, again, 4 * n) == 0, "%s: order %d gives other bits", what, i);
    }
    free(again);
    return got;
}

/* ---- rows ---- */

typedef struct {
    const float *x;
    const void *w;
    const int32_t *ids;
    dtype type;
    size_t n, dim, rows;
} row_job;

static void call_rmsnorm(device *d, buf out, const void *job)
{
    const row_job *j = job;
    weight w = {put(d, j->w, j->dim * dtype_size(j->type)), j->type, 1, j->dim};
    d->be->ops->rmsnorm(d->be, out, put(d, j->x, 4 * j->n * j->dim), w, j->n, 1e-5f);
}

static void call_rmsnorm_in_place(device *d, buf out, const void *job)
{
    const row_job *j = job;
    weight w = {put(d, j->w, j->dim * dtype_size(j->type)), j->type, 1, j->dim};
    d->be->ops->rmsnorm(d->be, out, out, w, j->n, 1e-5f);
}

static void call_embed(device *d, buf out, const void *job)
{
    const row_job *j = job;
    weight w = {put(d, j->w, j->rows * j->dim * dtype_size(j->type)), j->type, j->rows, j->dim};
    d->be->ops->embed(d->be, out, w, put(d, j->ids, 4 * j->n), j->n);
}

static void test_rows(backend *be)
{
    static const size_t dims[] = {1, 2, 7, 31, 32, 33, 64, 100, 255, 256, 257, 1030};
    static const int32_t ids[] = {4, 0, 6};
    rng r = {1};
    group g = {0};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        row_job j = {.type = ALL_TYPES[i % 3], .n = 3, .dim = dims[i], .rows = 7, .ids = ids};
        float *x = random_f32(&r, j.n * j.dim), *want = xmalloc(4 * j.n * j.dim);
        void *w = random_as(&r, j.rows * j.dim, j.type);
        weight norm = {at(w), j.type, 1, j.dim}, table = {at(w), j.type, j.rows, j.dim};
        j.x = x;
        j.w = w;
        ref->ops->rmsnorm(ref, at(want), at(x), norm, j.n, 1e-5f);
        float *got = run_orders(be, &g, "rmsnorm", call_rmsnorm, &j, want, j.n * j.dim);
        float *same = run_orders(be, &g, "rmsnorm", call_rmsnorm_in_place, &j, x, j.n * j.dim);
        group_note(&g, nmse(got, want, j.n * j.dim) <= 1e-12, "rmsnorm %zu", j.dim);
        group_note(&g, memcmp(got, same, 4 * j.n * j.dim) == 0, "rmsnorm %zu in place", j.dim);
        free(got), free(same);
        ref->ops->embed(ref, at(want), table, at(ids), j.n);
        got = run_orders(be, &g, "embed", call_embed, &j, x, j.n * j.dim);
        group_note(&g, memcmp(got, want, 4 * j.n * j.dim) == 0, "embed %zu", j.dim);
        free(got), free(x), free(want), free(w);
    }
    group_end(&g, "rmsnorm, embed: sizes and types", where());
}

/* ---- elements ---- */

typedef struct {
    const float *a, *b;
    const void *in;
    dtype from, to;
    size_t n, heads, half;
    const int64_t *pos, *base;
    const float *freq;
} flat_job;

static void call_swiglu(device *d, buf out, const void *job)
{
    const flat_job *j = job;
    d->be->ops->swiglu(d->be, out, out, put(d, j->b, 4 * j->n), j->n);
}

static void call_add(device *d, buf out, const void *job)
{
    const flat_job *j = job;
    d->be->ops->add(d->be, out, put(d, j->b, 4 * j->n), j->n);
}

/* Out of 32 bits into the type and back, so that floats are compared. */
static void call_convert(device *d, buf out, const void *job)
{
    const flat_job *j = job;
    buf mid = put(d, j->a, 4 * j->n);
    d->be->ops->convert(d->be, mid, j->to, out, DT_F32, j->n);
    d->be->ops->convert(d->be, out, DT_F32, mid, j->to, j->n);
}

static void call_rope(device *d, buf out, const void *job)
{
    const flat_job *j = job;
    buf table = put(d, j->a, 8 * j->n * j->half);
    d->be->ops->rope_table(d->be, table, put(d, j->pos, 8 * j->n), j->n, put(d, j->freq, 4 * j->half), j->half, 0.9f);
    d->be->ops->rope(d->be, out, out, table, j->n, j->heads, j->half);
}

static void test_flat(backend *be)
{
    static const size_t sizes[] = {1, 5, 255, 256, 257, 700};
    rng r = {2};
    group g = {0};
    for (size_t i = 0; i < 6; i++) {
        size_t n = sizes[i];
        float *a = random_f32(&r, n), *b = random_f32(&r, n), *want = xmalloc(4 * n);
        a[0] = i % 2 ? 3e38f : -200, a[n / 2] = i % 3 ? 1e-41f : 70000;
        flat_job j = {.a = a, .b = b, .n = n, .to = ALL_TYPES[i % 3]};
        ref->ops->swiglu(ref, at(want), at(a), at(b), n);
        float *got = run_orders(be, &g, "swiglu", call_swiglu, &j, a, n);
        group_note(&g, nmse(got, want, n) <= 1e-12, "swiglu %zu", n);
        free(got);
        memcpy(want, a, 4 * n);
        ref->ops->add(ref, at(want), at(b), n);
        got = run_orders(be, &g, "add", call_add, &j, a, n);
        group_note(&g, memcmp(got, want, 4 * n) == 0, "add %zu", n);
        free(got);
        void *mid = xmalloc(4 * n);
        ref->ops->convert(ref, at(mid), j.to, at(a), DT_F32, n);
        ref->ops->convert(ref, at(want), DT_F32, at(mid), j.to, n);
        got = run_orders(be, &g, "convert", call_convert, &j, a, n);
        group_note(&g, memcmp(got, want, 4 * n) == 0, "convert %zu to %s", n, dtype_name(j.to));
        free(got), free(a), free(b), free(want), free(mid);
    }
    static const int64_t pos[] = {0, 1, 131071, 8000000};
    for (size_t half = 1; half <= 64; half = 2 * half + 1) {
        size_t n = 4, heads = 3, all = n * heads * 2 * half;
        float *x = random_f32(&r, all), *freq = random_f32(&r, half), *table = random_f32(&r, 2 * n * half);
        float *want = xmalloc(4 * all);
        flat_job j = {.a = table, .n = n, .heads = heads, .half = half, .pos = pos, .freq = freq};
        float *got = run_orders(be, &g, "rope", call_rope, &j, x, all);
        ref->ops->rope_table(ref, at(table), at(pos), n, at(freq), half, 0.9f);
        ref->ops->rope(ref, at(want), at(x), at(table), n, heads, half);
        group_note(&g, nmse(got, want, all) <= 1e-12, "rope half %zu", half);
        free(got), free(x), free(freq), free(table), free(want);
    }
    group_end(&g, "swiglu, add, convert, rope", where());
}

/* Three of the four position ops into out [4][n], then the first added to. */
static void positions(backend *be, buf out, buf pos, buf base, size_t n)
{
    be->ops->pos_iota(be, out, base, n);
    be->ops->pos_shift(be, buf_at(out, 8 * n), pos, n, 9, base);
    be->ops->pos_shift(be, buf_at(out, 16 * n), pos, n, 12, (buf){NULL});
    be->ops->pos_ring(be, buf_at(out, 24 * n), pos, n, 4, 7, base);
    be->ops->i64_add(be, out, n, -3);
}

static void test_positions(backend *be)
{
    group g = {0};
    for (size_t n = 1; n <= 300; n += 299) {
        int64_t *pos = xmalloc(8 * n), base = 6, *want = xmalloc(32 * n), *got = xmalloc(32 * n);
        device d = {.be = be};
        for (size_t i = 0; i < n; i++) pos[i] = (int64_t)i;
        positions(ref, at(want), at(pos), at(&base), n);
        buf out = put(&d, want, 32 * n);
        positions(be, out, put(&d, pos, 8 * n), put(&d, &base, 8), n);
        be->ops->download(be, got, out, 32 * n);
        group_note(&g, memcmp(got, want, 32 * n) == 0, "n %zu", n);
        drop(&d);
        free(pos), free(want), free(got);
    }
    group_end(&g, "positions", where());
}

/* ---- KV rows ---- */

typedef struct {
    size_t n, heads, dim, cap;
    dtype type;
} kv_shape;

/* Writes n rows (a slot for all heads, then one a head), copies some within the store, then all to another. */
static void kv_ops(backend *be, const kv_rows *a, const kv_rows *b, buf k, buf v, buf one, buf each, buf src, buf dst, size_t n)
{
    be->ops->kv_write(be, a, one, 1, k, v, n);
    be->ops->kv_write(be, a, each, a->n_kv_heads, v, k, n);
    be->ops->kv_copy(be, a, dst, a, src, n);
    be->ops->kv_copy(be, b, src, a, dst, n);
}

static void test_kv(backend *be)
{
    static const size_t dims[] = {2, 6, 8, 18, 64, 128, 256};
    rng r = {3};
    group g = {0};
    for (size_t i = 0; i < 7 * 3; i++) {
        kv_shape s = {.n = 1 + i % 11, .heads = i % 4 == 0 ? 1 : 3, .dim = dims[i % 7], .cap = 40, .type = ALL_TYPES[i % 3]};
        size_t bytes = s.heads * s.cap * s.dim * dtype_size(s.type), row = 4 * s.n * s.heads * s.dim;
        unsigned char *store[4], *got = xmalloc(bytes);
        device d = {.be = be};
        buf dev[4];
        for (int k = 0; k < 4; k++) {
            store[k] = xmalloc(bytes);
            memset(store[k], k, bytes);
            dev[k] = put(&d, store[k], bytes);
        }
        float *k = random_f32(&r, row / 4), *v = random_f32(&r, row / 4);
        int64_t one[16], each[16 * 3], src[16], dst[16];
        for (size_t t = 0; t < s.n; t++) {
            one[t] = (int64_t)(t * 3 % 40);
            for (size_t h = 0; h < s.heads; h++) each[t * s.heads + h] = (int64_t)((t * 7 + h + 1) % 40);
            dst[t] = (int64_t)t; /* each lies before what is still to be read */
            src[t] = (int64_t)(2 * t + 1);
        }
        kv_rows a = {at(store[0]), at(store[1]), s.type, s.heads, s.dim, s.cap, {0}, NULL, NULL}, b = a, da = a, db = a;
        b.k = at(store[2]), b.v = at(store[3]);
        da.k = dev[0], da.v = dev[1], db.k = dev[2], db.v = dev[3];
        kv_ops(ref, &a, &b, at(k), at(v), at(one), at(each), at(src), at(dst), s.n);
        set_order((int)i);
        kv_ops(be, &da, &db, put(&d, k, row), put(&d, v, row), put(&d, one, 8 * s.n), put(&d, each, 8 * s.n * s.heads),
               put(&d, src, 8 * s.n), put(&d, dst, 8 * s.n), s.n);
        for (int x = 0; x < 4; x++) {
            be->ops->download(be, got, dev[x], bytes);
            group_note(&g, memcmp(got, store[x], bytes) == 0, "%s dim %zu n %zu store %d", dtype_name(s.type), s.dim, s.n, x);
        }
        drop(&d);
        for (int x = 0; x < 4; x++) free(store[x]);
        free(got), free(k), free(v);
    }
    group_end(&g, "kv_write, kv_copy: dims, types, slots by head", where());
}

/* ---- products ---- */

typedef struct {
    size_t n, cols, rows[3];
    const float *x;
    const void *w[3], *bias[3];
    dtype type, held, bias_type;
    bool exact;
} product_job;

/* out: the products one after the other. */
static void products(backend *be, device *d, buf out, const product_job *j)
{
    linear_job jobs[3];
    for (int i = 0; i < 3; i++) {
        size_t bytes = j->rows[i] * j->cols * dtype_size(j->type);
        weight w = {d ? put(d, j->w[i], bytes) : at(j->w[i]), j->type, j->rows[i], j->cols};
        weight b = {d ? put(d, j->bias[i], j->rows[i] * dtype_size(j->bias_type)) : at(j->bias[i]), j->bias_type, 1, j->rows[i]};
        if (dtype_in_blocks(j->held)) {
            unsigned char *room = xmalloc(weight_bytes(j->held, w.rows, w.cols));
            memset(room, 0, weight_bytes(j->held, w.rows, w.cols));
            buf q = d ? put(d, room, weight_bytes(j->held, w.rows, w.cols)) : at(room);
            be->ops->quantize(be, q, j->held, w);
            if (d) free(room);
            w.p = q, w.type = j->held;
        }
        jobs[i] = (linear_job){out, w, b};
        out = buf_at(out, 4 * j->n * j->rows[i]);
    }
    be->ops->linear(be, jobs, 3, d ? put(d, j->x, 4 * j->n * j->cols) : at(j->x), j->n, j->exact);
    for (int i = 0; i < 3 && !d && dtype_in_blocks(j->held); i++) free(jobs[i].w.p.p);
}

static void call_products(device *d, buf out, const void *job)
{
    products(d->be, d, out, job);
}

static void check_product(backend *be, group *g, rng *r, product_job j, double most)
{
    size_t n = 0;
    void *w[3], *bias[3] = {NULL, NULL, NULL};
    float *x = random_f32(r, j.n * j.cols);
    for (int i = 0; i < 3; i++) {
        n += j.n * j.rows[i];
        j.w[i] = w[i] = random_as(r, j.rows[i] * j.cols, j.type);
        if (i != 1) j.bias[i] = bias[i] = random_as(r, j.rows[i], j.bias_type);
    }
    j.x = x;
    float *want = xmalloc(4 * n);
    memset(want, 0, 4 * n);
    products(ref, NULL, at(want), &j);
    float *got = run_orders(be, g, "linear", call_products, &j, want, n);
    double e = nmse(got, want, n);
    group_note(g, e <= most, "%s held %s, n %zu, cols %zu, exact %d: %.2g", dtype_name(j.type), dtype_name(j.held), j.n, j.cols,
               j.exact, e);
    /* a row's bits are its own; those of many rows by weights in blocks are, for any such number */
    product_job last = j;
    bool many = !j.exact && j.n > 8;
    last.n = many && dtype_in_blocks(j.held) ? 9 : 1;
    last.x = x + (j.n - last.n) * j.cols;
    float *alone = run_orders(be, g, "linear", call_products, &last, want, last.n * (j.rows[0] + j.rows[1] + j.rows[2]));
    bool same = memcmp(alone, got + (j.n - last.n) * j.rows[0], 4 * last.n * j.rows[0]) == 0;
    group_note(g, same || (many && last.n == 1), "%s held %s, n %zu, cols %zu: the last rows alone", dtype_name(j.type),
               dtype_name(j.held), j.n, j.cols);
    for (int i = 0; i < 3; i++) free(w[i]), free(bias[i]);
    free(x), free(want), free(got), free(alone);
}

static void test_linear(backend *be)
{
    static const size_t cols[] = {1, 8, 20, 33, 64, 96, 264}, rows[] = {1, 2, 3, 4, 5, 8, 9, 21};
    rng r = {4};
    group g = {0}, blocks = {0}, many = {0}, prompt = {0};
    for (size_t c = 0; c < 7; c++)
        for (size_t n = 0; n < 8; n++) {
            dtype t = ALL_TYPES[(c + n) % 3];
            product_job j = {.n = rows[n], .cols = cols[c], .rows = {17, 40, 1 + c}, .type = t, .held = t,
                             .bias_type = ALL_TYPES[n % 3], .exact = rows[n] > 8 || c % 2};
            check_product(be, &g, &r, j, 1e-11);
            if (n % 2 == 0) {
                j.held = c % 2 ? DT_Q8 : DT_Q4;
                j.exact = (c + n / 2) % 2;
                check_product(be, &blocks, &r, j, 1e-11);
            }
            if (rows[n] > 8) {
                j.held = t;
                j.exact = false;
                check_product(be, &many, &r, j, t == DT_BF16 ? 1e-5 : t == DT_F16 ? 1e-6 : 1e-11);
            }
        }
    static const size_t prompts[] = {16, 31, 32, 33, 127, 130}, widths[] = {31, 32, 97, 128, 200, 300};
    for (size_t c = 0; c < 6; c++) /* rows of x and of w at the ends of tiles */
        for (size_t n = c % 2; n < 6; n += 2) {
            product_job j = {.n = prompts[n], .cols = widths[c], .rows = {16 + c, 33, 129}, .type = ALL_TYPES[c % 3],
                             .held = n % 4 < 2 ? DT_Q8 : DT_Q4, .bias_type = ALL_TYPES[n % 3]};
            check_product(be, &prompt, &r, j, 1e-11);
        }
    group_end(&g, "linear: tails, rows of x, types, biases", where());
    group_end(&blocks, "linear: weights of 8 and 4 bits, exact or not", where());
    group_end(&prompt, "linear: weights of 8 and 4 bits, many rows of x", where());
    group_end(&many, "linear: many rows by the library", where());
}

static void test_quantize(backend *be)
{
    rng r = {5};
    group g = {0};
    for (size_t i = 0; i < 12; i++) {
        size_t rows = 1 + i * 5 % 40, cols = 1 + i * 29 % 100, bytes;
        dtype from = ALL_TYPES[i % 3], to = i % 2 ? DT_Q8 : DT_Q4;
        float *f = random_f32(&r, rows * cols);
        for (size_t k = 0; k < cols; k += 7) f[k] *= i % 4 ? 1e-8f : 3000;
        if (i == 5) f[0] = INFINITY;
        unsigned char *w = xmalloc(4 * rows * cols), *want, *got;
        ref->ops->convert(ref, at(w), from, at(f), DT_F32, rows * cols);
        bytes = weight_bytes(to, rows, cols);
        want = xmalloc(bytes), got = xmalloc(bytes);
        memset(want, 0, bytes);
        device d = {.be = be};
        buf out = put(&d, want, bytes);
        ref->ops->quantize(ref, at(want), to, (weight){at(w), from, rows, cols});
        be->ops->quantize(be, out, to, (weight){put(&d, w, rows * cols * dtype_size(from)), from, rows, cols});
        be->ops->download(be, got, out, bytes);
        group_note(&g, memcmp(got, want, bytes) == 0, "%s to %s, %zu x %zu", dtype_name(from), dtype_name(to), rows, cols);
        drop(&d);
        free(f), free(w), free(want), free(got);
    }
    group_end(&g, "quantize: the bits of ref", where());
}

/* Uploads larger than what is pinned, and many small ones. */
static void test_memory(backend *be)
{
    enum { BIG = 3 << 19, SMALL = 700 };
    unsigned char *a = xmalloc(BIG), *b = xmalloc(BIG);
    err e = {0};
    buf x, y;
    group g = {0};
    for (size_t i = 0; i < BIG; i++) a[i] = (unsigned char)(i * 7 + i / 256);
    if (is_ok(be->ops->alloc(be, &x, BIG, "test", &e), &e, "alloc") && is_ok(be->ops->import(be, &y, a, BIG, &e), &e, "import")) {
        be->ops->download(be, b, x, BIG);
        bool zero = true;
        for (size_t i = 0; i < BIG; i++) zero &= b[i] == 0;
        group_note(&g, zero, "fresh memory is zero");
        for (size_t i = 0; i < BIG; i += SMALL) be->ops->upload(be, buf_at(x, i), a + i, BIG - i < SMALL ? BIG - i : SMALL);
        be->ops->download(be, b, x, BIG);
        group_note(&g, memcmp(a, b, BIG) == 0, "many small uploads");
        memset(a, 9, BIG);
        be->ops->upload(be, x, a, BIG);
        be->ops->copy(be, buf_at(x, 64), y, 1000);
        be->ops->download(be, b, x, BIG);
        group_note(&g, b[0] == 9 && b[64] == 0 && b[65] == 7 && b[1064] == 9 && b[BIG - 1] == 9, "one large upload, a copy");
        be->ops->free(be, x, BIG);
        be->ops->release(be, y, BIG);
    }
    group_end(&g, "memory", where());
    free(a), free(b);
}

int main(void)
{
    backend *be = open_cuda();
    if (!be) return 0;
    ref = open_ref();
    test_memory(be);
    test_rows(be);
    test_flat(be);
    test_positions(be);
    test_kv(be);
    test_linear(be);
    test_quantize(be);
    check_end(be);
    return tap_done();
}
