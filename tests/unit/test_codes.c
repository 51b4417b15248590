/* SPDX-License-Identifier: MIT */
/* Quantized rows: encode, fetch and attention against a plain computation from methods.md 10.3 and 11.7. */
#include "config.h"

#include "kernels/ops_codes.h"
#include "kernels/ops_evict.h"
#include "tests/unit/devices.h"
#include "tests/unit/ops_util.h"

/* A store with code rows: cap exact rows and cap code rows a head, and cap slots. */
typedef struct {
    kv_rows rows;
    int32_t *k_at, *v_at;
} store;

typedef struct {
    size_t heads, dim, cap, group, run;
    dtype type;
    int bits;
    bool by_token, zero_point;
} shape;

static size_t row_bytes(const shape *s)
{
    return (s->dim * (size_t)s->bits + 7) / 8;
}

static size_t runs(const shape *s)
{
    return (s->dim + s->run - 1) / s->run;
}

static size_t v_pair_bytes(const shape *s)
{
    return s->heads * s->cap * runs(s) * 4;
}

static size_t k_pair_bytes(const shape *s)
{
    return s->by_token ? v_pair_bytes(s) : s->heads * (s->cap / s->group) * s->dim * 4;
}

static void *filled(size_t n, int byte)
{
    void *p = xmalloc(n);
    memset(p, byte, n);
    return p;
}

/* Slots are exact rows; codes hold a pattern that shows what was not written. */
static store store_make(rng *r, shape s)
{
    store st = {.k_at = xmalloc(4 * s.cap), .v_at = xmalloc(4 * s.cap)};
    for (size_t i = 0; i < s.cap; i++) st.k_at[i] = st.v_at[i] = (int32_t)i;
    size_t n = s.heads * s.cap * s.dim, codes = s.heads * s.cap * row_bytes(&s);
    st.rows = (kv_rows){at(random_as(r, n, s.type)), at(random_as(r, n, s.type)), s.type, s.heads, s.dim, s.cap,
                        {.bits = s.bits, .by_token = s.by_token, .zero_point = s.zero_point, .cap = s.cap,
                         .group = s.group, .run = s.run, .k = at(filled(codes, 0xa5)), .v = at(filled(codes, 0xa5)),
                         .k_pair = at(filled(k_pair_bytes(&s), 0xa5)), .v_pair = at(filled(v_pair_bytes(&s), 0xa5)),
                         .k_at = at(st.k_at), .v_at = at(st.v_at)}, NULL, NULL};
    return st;
}

static void store_free(store *s)
{
    kv_codes *c = &s->rows.codes;
    free(s->rows.k.p), free(s->rows.v.p), free(c->k.p), free(c->v.p), free(c->k_pair.p), free(c->v_pair.p);
    free(s->k_at), free(s->v_at);
}

static float element(buf b, dtype t, size_t i)
{
    float f;
    uint16_t h;
    if (t == DT_F32) memcpy(&f, b.p + 4 * i, 4);
    else {
        memcpy(&h, b.p + 2 * i, 2);
        f = t == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
    }
    return f;
}

static void element_set(buf b, dtype t, size_t i, float x)
{
    uint16_t h = t == DT_F16 ? f32_to_f16(x) : f32_to_bf16(x);
    if (t == DT_F32) memcpy(b.p + 4 * i, &x, 4);
    else memcpy(b.p + 2 * i, &h, 2);
}

/* ---- a plain quantizer ---- */

static double half_even(double x)
{
    double f = floor(x), r = x - f;
    if (r > 0.5 || (r == 0.5 && fmod(f, 2) != 0)) f += 1;
    return f;
}

static float as_f16(float x)
{
    return f16_to_f32(f32_to_f16(x));
}

/* Codes of n numbers, and what they come back as. Returns the largest error that is allowed. */
static double quantize(const float *x, size_t n, const shape *s, int *code, float *back)
{
    int top = (1 << s->bits) - 1;
    float lo = x[0], hi = x[0];
    for (size_t i = 0; i < n; i++) {
        if (x[i] < lo) lo = x[i];
        if (x[i] > hi) hi = x[i];
    }
    float step = (hi - lo) / (float)top;
    int zero = 0;
    if (s->zero_point && hi > lo) {
        zero = (int)half_even((double)(-lo / step)) % 256;
        if (zero > 127) zero -= 256;
        if (zero < -128) zero += 256;
    }
    for (size_t i = 0; i < n; i++) {
        if (hi == lo) {
            code[i] = 0;
            back[i] = as_f16(lo);
        } else if (s->zero_point) {
            int c = (int)half_even((double)(x[i] / step)) + zero;
            code[i] = c < 0 ? 0 : c > top ? top : c;
            back[i] = as_f16(step) * (float)(code[i] - zero);
        } else {
            float scaled = (x[i] - lo) * (float)top;
            code[i] = (int)half_even((double)(scaled / (hi - lo)));
            back[i] = as_f16(lo) + as_f16(step) * (float)code[i];
        }
    }
    double f16_error = 0x1p-11 * ((double)fabsf(lo) + top * (double)step) + 0x1p-24;
    return (double)step / 2 + f16_error + 0x1p-20 * (double)fabsf(hi);
}

static int code_in(const unsigned char *row, size_t ch, int bits)
{
    int x = 0;
    for (int b = 0; b < bits; b++) {
        size_t bit = ch * (size_t)bits + (size_t)b;
        x |= (row[bit / 8] >> bit % 8 & 1) << b;
    }
    return x;
}

/* Whether code rows [first, first + n) of `head` are those of exact rows src, and decode to what `back` (filled
 * here, [cap][dim] of the head) says. */
static bool check_encoded(const store *st, const shape *s, bool value, size_t head, const int64_t *src, size_t first,
                          size_t n, float *back)
{
    size_t rows = value || s->by_token ? 1 : s->group, chans = value || s->by_token ? s->run : 1;
    buf exact = value ? st->rows.v : st->rows.k, codes = value ? st->rows.codes.v : st->rows.codes.k;
    float *x = xmalloc(4 * rows * s->dim), *y = xmalloc(4 * rows * s->dim);
    int *code = xmalloc(sizeof(int) * rows * s->dim);
    bool good = true;
    for (size_t i = 0; i < n; i += rows)
        for (size_t ch = 0; ch < s->dim; ch += chans) {
            size_t c_n = ch + chans < s->dim ? chans : s->dim - ch, m = 0;
            for (size_t a = 0; a < rows; a++)
                for (size_t c = 0; c < c_n; c++)
                    x[m++] = element(exact, s->type, (head * s->cap + (size_t)src[i + a]) * s->dim + ch + c);
            double limit = quantize(x, m, s, code, y);
            for (size_t e = 0; e < m; e++) {
                size_t row = first + i + e / c_n, c = ch + e % c_n;
                good &= code_in(codes.p + (head * s->cap + row) * row_bytes(s), c, s->bits) == code[e];
                good &= s->zero_point || fabs((double)x[e] - (double)y[e]) <= limit;
                back[row * s->dim + c] = y[e];
            }
        }
    free(x), free(y), free(code);
    return good;
}

/* ---- encode and fetch ---- */

/* Rows [first, first + n) of each list as fetch gives them against `want`, [heads][cap][dim]. */
static bool check_fetch(backend *be, const store *st, const shape *s, bool value, const float *want)
{
    size_t n = s->heads * s->cap * s->dim;
    float *k = filled(4 * n, 0xff), *v = filled(4 * n, 0xff);
    int64_t range[2] = {0, (int64_t)s->cap};
    kv_rows out = {.k = at(k), .type = DT_F32, .n_kv_heads = s->heads, .head_dim = s->dim, .cap = s->cap};
    if (value) out.v = at(v);
    be->ops->codes->fetch(be, &out, &st->rows, at(range), (buf){0}, 1, 0, (int64_t)s->cap, (buf){0});
    bool good = memcmp(value ? v : k, want, 4 * n) == 0;
    unsigned char *untouched = (unsigned char *)v;
    for (size_t i = 0; i < 4 * n && !value; i++) good &= untouched[i] == 0xff;
    free(k), free(v);
    return good;
}

/* Encodes all but the first 2 * group rows from permuted exact rows, in calls of `step` rows. */
static void case_encode(backend *be, rng *r, group *g, group *f, shape s, size_t step)
{
    store st = store_make(r, s);
    int64_t *src = xmalloc(8 * s.cap);
    size_t first = 2 * s.group, n_groups = s.cap / s.group - 2, n = n_groups * s.group;
    for (size_t i = 0; i < n; i++) src[i] = (int64_t)((i * 7 + 3) % s.cap);
    float *back = xmalloc(4 * s.heads * s.cap * s.dim);
    for (int value = 0; value < 2; value++) {
        int32_t *slot = value ? st.v_at : st.k_at;
        unsigned char *codes = value ? st.rows.codes.v.p : st.rows.codes.k.p;
        for (size_t i = 0; i < n; i += step) {
            size_t m = n - i < step ? n - i : step;
            (value ? be->ops->codes->encode_v : be->ops->codes->encode_k)(be, &st.rows, at(src + i), first + i, m);
        }
        for (size_t i = first; i < first + n; i++) slot[i] = -1 - (int32_t)i;
        bool good = true;
        for (size_t h = 0; h < s.heads; h++) {
            float *head_back = back + h * s.cap * s.dim;
            for (size_t i = 0; i < s.cap * s.dim; i++)
                head_back[i] = element(value ? st.rows.v : st.rows.k, s.type, h * s.cap * s.dim + i);
            good &= check_encoded(&st, &s, value, h, src, first, n, head_back);
            for (size_t i = 0; i < first * row_bytes(&s); i++) good &= codes[h * s.cap * row_bytes(&s) + i] == 0xa5;
        }
        group_note(g, good, "%s %s dim %zu bits %d group %zu run %zu by_token %d zero %d step %zu", value ? "V" : "K",
                   dtype_name(s.type), s.dim, s.bits, s.group, s.run, s.by_token, s.zero_point, step);
        group_note(f, check_fetch(be, &st, &s, value, back), "%s %s dim %zu bits %d by_token %d zero %d",
                   value ? "V" : "K", dtype_name(s.type), s.dim, s.bits, s.by_token, s.zero_point);
    }
    free(src), free(back);
    store_free(&st);
}

static void test_encode(backend *be, const char *level)
{
    static const size_t dims[] = {2, 6, 8, 10, 32, 34, 64, 80, 96, 128, 256};
    rng r = {41};
    group g = {0}, f = {0};
    for (size_t t = 0; t < 3; t++)
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++)
            for (int form = 0; form < 8; form++) {
                static const size_t run[] = {32, 6, 64, 8};
                if (left_out(3, 13)) continue;
                shape s = {.heads = 2, .dim = dims[d], .cap = 32, .group = d % 2 ? 8 : 4, .run = run[form / 2],
                           .type = ALL_TYPES[t], .bits = form & 1 ? 4 : 2, .by_token = form & 2,
                           .zero_point = form & 4};
                case_encode(be, &r, &g, &f, s, s.cap);
                case_encode(be, &r, &g, &f, s, s.by_token ? 5 * s.group : s.group);
            }
    group_end(&g, "encode: codes and errors, at once and group by group, nothing beside them", level);
    group_end(&f, "fetch: exact and code rows to the bit", level);
}

/* ---- worked examples ---- */

/* Encodes `n` numbers as the only channel pair's first channel of one K group, or as one V row; what comes back. */
static void through(backend *be, bool value, const shape *form, const float *x, size_t n, float *back, int *code)
{
    shape s = *form;
    rng r = {1};
    s.heads = 1;
    s.dim = value ? n : 2;
    s.group = s.cap = value ? 1 : n;
    s.run = n;
    store st = store_make(&r, s);
    int64_t *src = xmalloc(8 * n);
    for (size_t i = 0; i < n; i++) {
        src[i] = (int64_t)i;
        element_set(value ? st.rows.v : st.rows.k, s.type, value ? i : 2 * i, x[i]);
    }
    if (value) be->ops->codes->encode_v(be, &st.rows, at(src), 0, 1);
    else be->ops->codes->encode_k(be, &st.rows, at(src), 0, n);
    for (size_t i = 0; i < s.cap; i++) st.k_at[i] = st.v_at[i] = -1 - (int32_t)i;
    float *k = xmalloc(4 * s.cap * s.dim), *v = xmalloc(4 * s.cap * s.dim);
    int64_t range[2] = {0, (int64_t)s.cap};
    kv_rows out = {.k = at(k), .v = at(v), .type = DT_F32, .n_kv_heads = 1, .head_dim = s.dim, .cap = s.cap};
    if (!value) st.v_at[0] = 0, out.v.p = NULL;
    if (value) st.k_at[0] = 0;
    be->ops->codes->fetch(be, &out, &st.rows, at(range), (buf){0}, 1, 0, (int64_t)s.cap, (buf){0});
    for (size_t i = 0; i < n; i++) {
        const unsigned char *row = value ? st.rows.codes.v.p : st.rows.codes.k.p + i * row_bytes(&s);
        back[i] = value ? v[i] : k[2 * i];
        code[i] = code_in(row, value ? i : 0, s.bits);
    }
    free(src), free(k), free(v);
    store_free(&st);
}

static void example(backend *be, group *g, const shape *s, const float *x, const int *want_code, const float *want,
                    size_t n, const char *what)
{
    for (int value = 0; value < 2; value++) {
        float back[32];
        int code[32];
        bool good = true;
        through(be, value, s, x, n, back, code);
        for (size_t i = 0; i < n; i++) good &= (!want_code || code[i] == want_code[i]) && back[i] == want[i];
        group_note(g, good, "%s, %s, %d bits, %s", what, value ? "V" : "K", s->bits, dtype_name(s->type));
    }
}

static void test_examples(backend *be, const char *level)
{
    group g = {0};
    for (size_t t = 0; t < 3; t++)
        for (int bits = 2; bits <= 4; bits += 2) {
            shape s = {.type = ALL_TYPES[t], .bits = bits};
            shape z = {.type = ALL_TYPES[t], .bits = bits, .zero_point = true};
            float grid[16], flat[5] = {-1.25f, -1.25f, -1.25f, -1.25f, -1.25f}, nil[3] = {0, 0, 0};
            int first[16] = {0};
            for (int i = 0; i < 16; i++) grid[i] = -3.5f + 0.25f * (float)(i * 5 % (1 << bits));
            example(be, &g, &s, grid, NULL, grid, 16, "equally spaced");
            example(be, &g, &s, flat, first, flat, 5, "constant");
            example(be, &g, &z, flat, first, flat, 5, "constant, zero point");
            example(be, &g, &z, nil, first, nil, 3, "zeros, zero point");
        }
    shape s = {.type = DT_F32, .bits = 2}, z = {.type = DT_F32, .bits = 2, .zero_point = true};
    const float halves[6] = {0.5f, 0, 1.5f, 2.5f, 3, 1}, rounded[6] = {0, 0, 2, 2, 3, 1};
    const int codes[6] = {0, 0, 2, 2, 3, 1};
    example(be, &g, &s, halves, codes, rounded, 6, "halves to even");
    /* step 1, zero point 1.5 to even: 2; level 0 is -2 */
    const float mid[4] = {-1.5f, 0, 1, 1.5f}, mid_back[4] = {-2, 0, 1, 1};
    const int mid_code[4] = {0, 2, 3, 3};
    example(be, &g, &z, mid, mid_code, mid_back, 4, "zero point, halves to even");
    /* zero point -200 is 56 as int8: x / step + 56 = 256.. is cut to 3, 3 - 56 = -53 */
    const float far[4] = {200, 201, 202, 203}, far_back[4] = {-53, -53, -53, -53};
    const int far_code[4] = {3, 3, 3, 3};
    example(be, &g, &z, far, far_code, far_back, 4, "zero point beyond int8");
    group_end(&g, "examples: exact grids, constants, halves, zero points", level);
}

/* ---- attention over codes ---- */

/* Codes rows of every kind: exact, K codes with exact V, both; permuted code rows. */
static void encode_some(backend *be, store *st, const shape *s)
{
    int64_t *src = xmalloc(8 * s->cap);
    for (size_t i = 0; i < s->cap; i++) src[i] = (int64_t)((i * 5 + 1) % s->cap);
    be->ops->codes->encode_k(be, &st->rows, at(src), 0, s->cap);
    be->ops->codes->encode_v(be, &st->rows, at(src), 0, s->cap);
    for (size_t i = 0; i < s->cap; i++) {
        int32_t code = -1 - (int32_t)((i * 3 + 2) % s->cap);
        st->k_at[i] = i % 16 < 11 ? code : (int32_t)((i + 5) % s->cap);
        st->v_at[i] = i % 16 < 9 ? code : (int32_t)((i + 5) % s->cap);
    }
    free(src);
}

/* Adds the bytes that the K and V of entries [lo, hi) take, groups of K pairs once. */
static void add_bytes(uint64_t *sum, const store *st, const shape *s, const int32_t *idx, size_t lo, size_t hi)
{
    bool *touched = filled(s->cap, 0); /* groups of K */
    for (size_t i = lo; i < hi; i++) {
        size_t slot = (size_t)(idx ? idx[i] : (int32_t)i), exact = s->dim * dtype_size(s->type);
        int32_t k = st->k_at[slot], v = st->v_at[slot];
        sum[READ_K] += k < 0 ? row_bytes(s) : exact;
        sum[READ_V] += v < 0 ? row_bytes(s) + 4 * runs(s) : exact;
        if (k < 0 && s->by_token) sum[READ_K] += 4 * runs(s);
        if (k >= 0 || s->by_token || touched[(size_t)(-1 - k) / s->group]) continue;
        touched[(size_t)(-1 - k) / s->group] = true;
        sum[READ_K] += 4 * s->dim;
    }
    free(touched);
}

static void case_attend(backend *be, rng *r, group *g, shape s, size_t per_kv, bool lists, bool prompt)
{
    enum { N_TOK = 5, BAND = 20 };
    store st = store_make(r, s);
    encode_some(be, &st, &s);
    size_t heads = s.heads * per_kv, n_tok = prompt ? N_TOK : 1, n = n_tok * heads * s.dim, stride = s.cap;
    float *q = random_f32(r, n), *got = filled(4 * n, 0xff), *want = filled(4 * n, 0xff);
    float *k = xmalloc(4 * s.heads * s.cap * s.dim), *v = xmalloc(4 * s.heads * s.cap * s.dim);
    int32_t *idx = xmalloc(4 * s.heads * stride), *pos = xmalloc(4 * s.heads * stride);
    int64_t *range = xmalloc(16 * s.heads), qpos[N_TOK];
    uint64_t read[READ_KINDS] = {1000, 2000, 3000}, bytes[READ_KINDS] = {1000, 2000, 3000};
    uint64_t copied[READ_KINDS] = {0}, whole[READ_KINDS] = {0};
    for (size_t h = 0; h < s.heads; h++) {
        range[2 * h] = 2;
        range[2 * h + 1] = (int64_t)(s.cap - 5 - h);
        for (size_t i = 0; i < stride; i++) {
            idx[h * stride + i] = (int32_t)((i * 7 + h) % s.cap);
            pos[h * stride + i] = (int32_t)(2 * i + h);
        }
    }
    for (size_t t = 0; t < n_tok; t++) qpos[t] = (int64_t)(s.cap + t);
    attn_job j = {.q = at(q), .out = at(got), .n_tok = n_tok, .n_heads = heads, .rows = st.rows, .range = at(range),
                  .n_lists = 1, .idx_stride = stride, .n_max = (int64_t)s.cap, .scale = 0.3f, .read = at(read)};
    if (lists) {
        j.idx = at(idx);
        j.at = at(pos);
        j.qpos = at(qpos);
        j.band = BAND;
        j.n_lists = s.heads;
    }
    for (size_t h = 0; h < s.heads; h++) {
        size_t lo = 2, hi = (size_t)(2 + range[2 * (lists ? h : 0) + 1]);
        while (lists && pos[h * stride + lo] <= qpos[0] - BAND) lo++;
        while (lists && pos[h * stride + hi - 1] > qpos[n_tok - 1]) hi--;
        add_bytes(bytes, &st, &s, lists ? idx + h * stride : NULL, lo, hi);
        add_bytes(whole, &st, &s, NULL, 0, s.cap);
    }
    if (prompt) be->ops->attn_prefill(be, &j);
    else be->ops->attn_decode(be, &j, 1);
    int64_t all[2] = {0, (int64_t)s.cap};
    kv_rows plain = {.k = at(k), .v = at(v), .type = DT_F32, .n_kv_heads = s.heads, .head_dim = s.dim, .cap = s.cap};
    be->ops->codes->fetch(be, &plain, &st.rows, at(all), (buf){0}, 1, 0, all[1], at(copied));
    j.rows = plain;
    j.out = at(want);
    j.copied = true;
    if (prompt) be->ops->attn_prefill(be, &j);
    else be->ops->attn_decode(be, &j, 1);
    group_note(g, rows_agree(got, want, n), "bits: %s dim %zu group %zu bits %d by_token %d lists %d prompt %d",
               dtype_name(s.type), s.dim, per_kv, s.bits, s.by_token, lists, prompt);
    group_note(g, memcmp(read, bytes, sizeof read) == 0 && memcmp(copied, whole, sizeof copied) == 0,
               "read K %llu, not %llu: %s dim %zu bits %d by_token %d lists %d prompt %d",
               (unsigned long long)read[READ_K], (unsigned long long)bytes[READ_K], dtype_name(s.type), s.dim, s.bits,
               s.by_token, lists, prompt);
    plain.v = (buf){NULL};
    be->ops->codes->fetch(be, &plain, &st.rows, at(all), (buf){0}, 1, 0, all[1], at(copied));
    group_note(g, copied[READ_K] == 2 * whole[READ_K] && copied[READ_V] == whole[READ_V], "K alone is read");
    free(q), free(got), free(want), free(k), free(v), free(idx), free(pos), free(range);
    store_free(&st);
}

static void test_attend(backend *be, const char *level)
{
    static const size_t dims[] = {2, 8, 10, 32, 64, 80, 96, 128, 256};
    rng r = {42};
    group g = {0};
    for (size_t t = 0; t < 3; t++)
        for (size_t d = 0; d < 9; d++)
            for (int form = 0; form < 16; form++) {
                if (left_out(3, 31)) continue;
                shape s = {.heads = 2, .dim = dims[d], .cap = 48, .group = 16, .run = 32, .type = ALL_TYPES[t],
                           .bits = form & 1 ? 4 : 2, .by_token = form & 2, .zero_point = form & 2};
                case_attend(be, &r, &g, s, 1 + (d + (size_t)form) % 8, form & 4, form & 8);
            }
    group_end(&g, "attention over codes: the bits of their rows as f32; bytes read", level);
}

/* What eviction reads of codes, against ref: column sums, rows by rank, bytes. */
static void case_evict(backend *be, rng *r, group *g, shape s, size_t per_kv)
{
    enum { N_TOK = 5, CAP = 48, LISTS = 2 };
    backend *both[2] = {open_ref(), be};
    store st = store_make(r, s);
    encode_some(both[0], &st, &s);
    size_t heads = LISTS * per_kv, n = LISTS * CAP * s.dim;
    float *q = random_f32(r, N_TOK * heads * s.dim), *lse = random_f32(r, N_TOK * heads), sum[2][LISTS * CAP], *k[2], *v[2];
    int32_t slot[LISTS * CAP], pos[LISTS * CAP];
    int64_t range[2 * LISTS], qpos[N_TOK], last = 3 * CAP;
    uint64_t read[2][READ_KINDS] = {{0}};
    float *freq = random_f32(r, s.dim / 2);
    for (int i = 0; i < LISTS * CAP; i++) slot[i] = i * 7 % CAP, pos[i] = 3 * (i % CAP) + i / CAP;
    for (int i = 0; i < LISTS; i++) range[2 * i] = 0, range[2 * i + 1] = CAP - 5 - i;
    for (int t = 0; t < N_TOK; t++) qpos[t] = 3 * CAP - 30 + 6 * t;
    for (int b = 0; b < 2; b++) {
        const evict_ops *o = both[b]->ops->evict;
        k[b] = filled(4 * n, 0), v[b] = filled(4 * n, 0);
        for (int i = 0; i < LISTS * CAP; i++) sum[b][i] = 0.25f * (float)i;
        attn_job j = {.q = at(q), .lse = at(lse), .n_tok = N_TOK, .n_heads = heads, .rows = st.rows, .range = at(range),
                      .idx = at(slot), .at = at(pos), .n_lists = LISTS, .idx_stride = CAP, .n_max = CAP, .qpos = at(qpos),
                      .scale = 0.3f, .read = at(read[b])};
        o->colsum(both[b], &j, LISTS, COMBINE_MEAN, true, at(sum[b]), CAP);
        kept_rows l = {.at = at(pos), .slot = at(slot), .range = at(range), .n_lists = LISTS, .stride = CAP};
        kv_rows out = {.k = at(k[b]), .v = at(v[b]), .type = DT_F32, .n_kv_heads = LISTS, .head_dim = s.dim, .cap = CAP};
        o->by_rank(both[b], &out, &st.rows, &l, at(&last), at(freq), at(read[b]));
    }
    group_note(g, nmse(sum[1], sum[0], LISTS * CAP) <= 1e-10, "sums: %s dim %zu bits %d by_token %d", dtype_name(s.type), s.dim,
               s.bits, s.by_token);
    group_note(g, nmse(k[1], k[0], n) <= 1e-12 && memcmp(v[1], v[0], 4 * n) == 0, "by rank: %s dim %zu bits %d by_token %d",
               dtype_name(s.type), s.dim, s.bits, s.by_token);
    group_note(g, memcmp(read[0], read[1], sizeof *read) == 0, "read K %llu, not %llu: dim %zu bits %d by_token %d",
               (unsigned long long)read[1][READ_K], (unsigned long long)read[0][READ_K], s.dim, s.bits, s.by_token);
    for (int b = 0; b < 2; b++) free(k[b]), free(v[b]);
    free(q), free(lse), free(freq);
    store_free(&st);
}

static void test_evict(backend *be, const char *level)
{
    static const size_t dims[] = {2, 10, 64, 128, 256};
    rng r = {44};
    group g = {0};
    for (size_t i = 0; i < 60; i++) {
        if (left_out(2, 13)) continue;
        shape s = {.heads = 2, .dim = dims[i % 5], .cap = 48, .group = 16, .run = 32, .type = ALL_TYPES[i % 3],
                   .bits = i / 3 % 2 ? 4 : 2, .by_token = i / 5 % 2, .zero_point = i / 7 % 2};
        case_evict(be, &r, &g, s, 1 + i % 4);
    }
    group_end(&g, "column sums and rows by rank over codes: those of ref, and the bytes", level);
}

/* The exact rows of K or V, slot by slot. */
static unsigned char *rows_by_slot(const shape *s, buf rows, const int32_t *slot_at)
{
    size_t bytes = s->dim * dtype_size(s->type);
    unsigned char *out = xmalloc(s->heads * s->cap * bytes);
    for (size_t h = 0; h < s->heads; h++)
        for (size_t i = 0; i < s->cap; i++)
            memcpy(out + (h * s->cap + i) * bytes, rows.p + (h * s->cap + (size_t)slot_at[i]) * bytes, bytes);
    return out;
}

/* Slots that are all exact, in any rows: the bits of those rows without codes, in the order of slots. */
static void test_all_exact(backend *be, const char *level)
{
    enum { CAP = 160, DIM = 24, HEADS = 4, N_TOK = 3, N = N_TOK * HEADS * DIM };
    rng r = {43};
    group g = {0};
    for (size_t t = 0; t < 3; t++) {
        shape s = {.heads = 2, .dim = DIM, .cap = CAP, .group = 16, .run = 32, .type = ALL_TYPES[t], .bits = 2};
        store st = store_make(&r, s);
        float *q = random_f32(&r, N), got[N], want[N];
        int64_t range[2] = {3, CAP - 9};
        uint64_t read[2][READ_KINDS] = {{0}};
        for (size_t i = 0; i < CAP; i++) st.k_at[i] = st.v_at[i] = (int32_t)(i * 7 % CAP);
        attn_job j = {.q = at(q), .out = at(got), .n_heads = HEADS, .rows = st.rows, .range = at(range), .n_lists = 1,
                      .idx_stride = CAP, .n_max = CAP, .scale = 0.5f, .read = at(read[0])};
        attn_job plain = j;
        plain.out = at(want);
        plain.read = at(read[1]);
        unsigned char *k = rows_by_slot(&s, st.rows.k, st.k_at), *v = rows_by_slot(&s, st.rows.v, st.v_at);
        plain.rows.codes = (kv_codes){0};
        plain.rows.k = at(k);
        plain.rows.v = at(v);
        for (int prompt = 0; prompt < 2; prompt++) {
            j.n_tok = plain.n_tok = prompt ? N_TOK : 1;
            if (prompt) be->ops->attn_prefill(be, &j), be->ops->attn_prefill(be, &plain);
            else be->ops->attn_decode(be, &j, 1), be->ops->attn_decode(be, &plain, 1);
            group_note(&g, memcmp(got, want, 4 * j.n_tok * HEADS * DIM) == 0 && !memcmp(read[0], read[1], sizeof *read),
                       "%s, prompt %d", dtype_name(s.type), prompt);
        }
        free(q), free(k), free(v);
        store_free(&st);
    }
    group_end(&g, "a store with codes whose rows are all exact: the bits of exact rows", level);
}

static void run_all(backend *be, const char *level)
{
    test_encode(be, level);
    test_examples(be, level);
    test_attend(be, level);
    test_evict(be, level);
    test_all_exact(be, level);
}

int main(void)
{
    if (no_device()) return 0;
    run_all(open_ref(), "ref");
    for (size_t i = 0; i < sizeof ALL_LEVELS / sizeof ALL_LEVELS[0]; i++) {
        backend *be = open_level(ALL_LEVELS[i], 2);
        err e = {0};
        if (!be) continue;
        run_all(be, ALL_LEVELS[i]);
        is_ok(backend_fault(be, &e), &e, "%s, no fault", ALL_LEVELS[i]);
        backend_close(be);
    }
    check_races();
    return tap_done();
}
