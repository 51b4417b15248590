/* SPDX-License-Identifier: MIT */
/* Attention of the cuda backend against ref. */
#include "config.h"

#include <limits.h>

#include "tests/cuda/cuda_util.h"
#include "tests/unit/attn_call.h"

/* The job with all its data on a device; out, lse, read, scores are those of the caller's arrays. */
static attn_job on_device(device *d, const call *c, const shape *s, float *scores, size_t stride)
{
    attn_job j = c->job;
    size_t lists = s->n_lists ? s->n_lists : 1, heads = s->kv_heads * s->group, n = s->n_tok * heads;
    size_t rows = s->kv_heads * c->job.rows.cap * s->dim * dtype_size(s->type);
    static const uint64_t none[READ_KINDS];
    j.out = put(d, c->out, 4 * n * s->dim);
    j.lse = put(d, c->lse, 4 * n);
    j.read = put(d, none, sizeof none);
    j.scores = put(d, scores, 4 * heads * stride);
    j.score_stride = stride;
    j.q = put(d, c->q, 4 * n * s->dim);
    j.rows.k = put(d, c->k, rows);
    j.rows.v = put(d, c->v, rows);
    j.range = put(d, c->range, 16 * lists);
    j.qpos = put(d, c->qpos, 8 * s->n_tok);
    j.idx = put(d, c->idx, 4 * lists * j.idx_stride);
    j.at = put(d, c->at, 4 * lists * j.idx_stride);
    if (s->pos) j.kpos = put(d, &c->kpos, 8);
    return j;
}

typedef struct {
    float *out, *lse, *scores;
    uint64_t read[READ_KINDS];
} result;

static result result_make(size_t n, size_t rows, size_t n_scores)
{
    result r = {.out = xmalloc(4 * n), .lse = xmalloc(4 * rows), .scores = xmalloc(4 * n_scores + 4)};
    memset(r.scores, 0, 4 * n_scores + 4);
    return r;
}

static void result_free(result *r)
{
    free(r->out), free(r->lse), free(r->scores);
}

/* What a job may differ by. Tensor cores multiply rows of f16 and bf16 as they are, and q and the weights rounded to the
 * same type: each of the two adds an NMSE of 2.4e-6 for bf16 and of 1/64 of that for f16 (ops.h), that of q times the
 * variance of the scores, here below 1; twice that for sums of few keys. */
static double allowed(const shape *s)
{
    bool tensor = s->dim == 64 || s->dim == 96 || s->dim == 128 || s->dim == 256;
    if (!s->rounded || !tensor || s->type == DT_F32) return 1e-10;
    return s->type == DT_BF16 ? 1e-5 : 1.6e-7;
}

static double mean_square(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += isfinite(x[i]) ? (double)x[i] * (double)x[i] : 0;
    return sum / (double)n;
}

static void compare_call(backend *be, group *g, call c, shape s, bool prefill)
{
    call_place(&c, s);
    size_t rows = s.n_tok * c.job.n_heads, n = rows * s.dim, stride = s.n + 3, n_scores = prefill ? 0 : c.job.n_heads * stride;
    result want = result_make(n, rows, n_scores), got = result_make(n, rows, n_scores), again = result_make(n, rows, n_scores);
    attn_job j = c.job;
    j.out = at(want.out), j.lse = at(want.lse), j.read = at(want.read);
    if (!prefill) j.scores = at(want.scores), j.score_stride = stride;
    memset(c.out, 0x55, 4 * n);
    ref->ops->attn_prefill(ref, &j);
    for (int o = 0; o < n_orders(); o++) {
        device d = {.be = be};
        result *x = o ? &again : &got;
        memset(got.scores, 0, 4 * n_scores * (o == 0));
        float *zero = xmalloc(4 * n_scores + 4);
        memset(zero, 0, 4 * n_scores + 4);
        set_order(o);
        attn_job dj = on_device(&d, &c, &s, prefill ? NULL : zero, stride);
        if (prefill) be->ops->attn_prefill(be, &dj);
        else be->ops->attn_decode(be, &dj, 1);
        be->ops->download(be, x->out, dj.out, 4 * n);
        be->ops->download(be, x->lse, dj.lse, 4 * rows);
        be->ops->download(be, x->read, dj.read, sizeof x->read);
        if (!prefill) be->ops->download(be, x->scores, dj.scores, 4 * n_scores);
        drop(&d);
        free(zero);
        if (o)
            group_note(g, memcmp(got.out, again.out, 4 * n) == 0 && memcmp(got.lse, again.lse, 4 * rows) == 0,
                       "order %d gives other bits: dim %zu n %zu", o, s.dim, s.n);
    }
    double e = nmse(got.out, want.out, n), el = nmse(got.lse, want.lse, rows), most = allowed(&s);
    if (most > 1e-10) el *= mean_square(want.lse, rows); /* of few keys it may be close to 0 */
    group_note(g, e <= most && el <= most && memcmp(got.read, want.read, sizeof want.read) == 0,
               "%s dim %zu group %zu n %zu lists %zu tok %zu band %lld pos %d at %d: %.2g, lse %.2g, K read %+lld",
               dtype_name(s.type), s.dim, s.group, s.n, s.n_lists, s.n_tok, (long long)s.band, s.pos, s.at, e, el,
               (long long)(got.read[READ_K] - want.read[READ_K]));
    bool same = true;
    for (size_t i = 0; i < n_scores; i++)
        same &= got.scores[i] == want.scores[i] || fabsf(got.scores[i] - want.scores[i]) < 1e-4f;
    group_note(g, same, "scores: dim %zu group %zu n %zu lists %zu band %lld", s.dim, s.group, s.n, s.n_lists, (long long)s.band);
    result_free(&want), result_free(&got), result_free(&again);
    call_free(&c);
}

static void compare(backend *be, group *g, rng *r, shape s, bool prefill)
{
    if (left_out(1, 7)) return;
    compare_call(be, g, call_make(r, s), s, prefill);
}

static const size_t DIMS[] = {2, 6, 8, 18, 32, 64, 80, 96, 128, 256};
static const size_t GROUPS[] = {1, 2, 3, 4, 5, 6, 7, 8, 21};
enum { N_DIMS = sizeof DIMS / sizeof DIMS[0], N_GROUPS = sizeof GROUPS / sizeof GROUPS[0] };

/* Every dim and group meets every type within few cases. */
static void test_decode(backend *be)
{
    static const size_t lengths[] = {1, 2, 7, 63, 64, 65, 128, 130, 191};
    rng r = {21};
    group g = {0}, h = {0}, k = {0};
    for (size_t d = 0; d < N_DIMS; d++)
        for (size_t i = d % 3; i < N_GROUPS; i += 3)
            for (size_t t = 0; t < 3; t++) {
                shape s = {.n_tok = 1, .kv_heads = 2, .group = GROUPS[i], .dim = DIMS[d], .n = lengths[(t + d + i) % 9],
                           .type = ALL_TYPES[t]};
                if (t != i % 3) compare(be, &g, &r, s, false);
                s.idx = true;
                s.n_lists = (d + i) % 2 ? 2 : s.group * 2;
                s.n = lengths[(d + i) % 9];
                if (t == i % 3) compare(be, &h, &r, s, false);
            }
    for (size_t n = 1; n < 140; n += 3) {
        shape s = {.n_tok = 1, .kv_heads = 1, .group = 4, .dim = 16, .n = n, .type = DT_F16, .pos = n % 2,
                   .band = n % 3 ? (int64_t)n / 2 : 0};
        compare(be, &k, &r, s, false);
        s.pos = false;
        s.idx = s.at = n % 4 == 0;
        compare(be, &k, &r, s, false);
    }
    group_end(&g, "decode, contiguous: dims x groups, types in turn", where());
    group_end(&h, "decode, index lists per kv head and per query head, one empty", where());
    group_end(&k, "decode, lengths, positions and bands", where());
}

/* Lengths at which the size of pieces changes. */
static void test_pieces(backend *be)
{
    static const size_t lengths[] = {4095, 4096, 4097, 16385};
    rng r = {25};
    group g = {0};
    if (left_out(1, INT_MAX)) return; /* long, and nothing new in it for the race build */
    for (size_t i = 0; i < 4; i++) {
        shape s = {.n_tok = 1, .kv_heads = 1, .group = 2, .dim = 8, .n = lengths[i], .type = DT_BF16};
        compare(be, &g, &r, s, false);
    }
    group_end(&g, "decode, many pieces", where());
}

static void test_prefill(backend *be)
{
    rng r = {22};
    group g = {0}, h = {0};
    for (size_t d = 0; d < N_DIMS; d++)
        for (size_t i = d % 3; i < N_GROUPS; i += 3) {
            size_t t = (d + i / 3) % 3;
            shape s = {.n_tok = 1 + (d + i) % 5, .kv_heads = 2, .group = GROUPS[i], .dim = DIMS[d],
                       .n = 5 + (d * 37 + i * 11) % 80, .type = ALL_TYPES[t], .pos = true};
            compare(be, &g, &r, s, true);
            s.pos = false;
            s.idx = true;
            s.at = i % 4 > 0;
            s.band = i % 4 > 1 ? 3 + (int64_t)s.n / 2 : 0;
            s.n_lists = i % 3 == 0 ? 1 : i % 3 == 1 ? 2 : 2 * s.group;
            compare(be, &g, &r, s, true);
        }
    static const int64_t bands[] = {0, 1, 20, 127};
    for (size_t n = 1; n <= 140; n += 68)
        for (size_t b = 0; b < 4; b++)
            for (size_t tok = 1; tok <= 49; tok += 24) {
                shape s = {.n_tok = tok, .kv_heads = 2, .group = 2, .dim = 24, .n = n, .type = DT_F16, .pos = true,
                           .band = bands[b], .n_lists = b % 2 ? 2 : 1};
                compare(be, &h, &r, s, true);
                s.n_lists = 4;
                s.pos = b % 2;
                compare(be, &h, &r, s, true);
            }
    group_end(&g, "prefill: dims x groups, types in turn, lists", where());
    group_end(&h, "prefill: lengths, chunks, bands, lists, queries that see nothing", where());
}

/* Jobs that tensor cores may compute, at sizes where tiles, blocks of queries and what a query sees begin and end. */
static void test_tensor(backend *be)
{
    static const size_t dims[] = {64, 96, 128, 256}, lengths[] = {1, 31, 64, 65, 130}, chunks[] = {1, 17, 40, 64};
    static const int64_t bands[] = {0, 1, 33, 70};
    rng r = {28};
    group g = {0}, h = {0};
    for (size_t d = 0; d < 4; d++)
        for (size_t t = 0; t < 3; t++)
            for (size_t i = 0; i < 5; i++) {
                shape s = {.n_tok = chunks[(i + d + t) % 4], .kv_heads = 2, .group = GROUPS[(i + 2 * d + t) % 6],
                           .dim = dims[d], .n = lengths[i], .type = ALL_TYPES[t], .pos = true, .band = bands[(i + d) % 4],
                           .rounded = true};
                if (s.type == DT_F32 && i) continue; /* exact: attn_prefill.cu */
                compare(be, &g, &r, s, true);
                s.pos = false;
                s.idx = true;
                s.at = i % 4 > 0;
                s.n_lists = i % 3 == 0 ? 1 : i % 3 == 1 ? 2 : 2 * s.group;
                if (i % 2 == t % 2) compare(be, &h, &r, s, true);
            }
    for (int i = 0; i < 2; i++) { /* f16 does not hold these queries as they are */
        shape s = {.n_tok = 20, .kv_heads = 1, .group = 2, .dim = 64, .n = 40, .type = DT_F16, .pos = true, .rounded = true};
        call c = call_make(&r, s);
        uint16_t *k = c.k;
        float by = i ? 0x1p-15f : 0x1p20f;
        for (size_t at = 0; at < c.job.rows.cap * s.dim; at++) k[at] = f32_to_f16(f16_to_f32(k[at]) / by);
        for (size_t at = 0; at < s.n_tok * 2 * s.dim; at++) c.q[at] *= by;
        compare_call(be, &g, c, s, true);
    }
    group_end(&g, "prefill with tensor cores: head sizes, lengths, chunks, bands", where());
    group_end(&h, "prefill with tensor cores: lists and positions", where());
}

/* One prompt at once and in chunks: the same bits. Keys of later chunks are NaN until their chunk comes. Head size 64: with
 * tensor cores. */
static void test_chunks(backend *be, size_t dim, const char *name)
{
    enum { N = 100, KV = 2, GROUP = 3, HEADS = KV * GROUP };
    static const size_t chunks[] = {N, 1, 7, 33};
    rng r = {23};
    group g = {0};
    for (size_t t = 0; t < 3; t++)
        for (int64_t band = 0; band <= 30; band += 30) {
            if (left_out(1, 5)) continue;
            shape s = {.n_tok = N, .kv_heads = KV, .group = GROUP, .dim = dim, .n = N, .type = ALL_TYPES[t], .pos = true,
                       .band = band, .rounded = true};
            call c = call_make(&r, s);
            call_place(&c, s);
            size_t row = dim * dtype_size(s.type), bytes = KV * c.job.rows.cap * row;
            float *want = xmalloc(4 * N * HEADS * dim), *out = xmalloc(4 * N * HEADS * dim);
            unsigned char *nan = xmalloc(bytes);
            memset(nan, 0xff, bytes);
            for (size_t i = 0; i < 4; i++) {
                device d = {.be = be};
                attn_job all = on_device(&d, &c, &s, NULL, 0);
                be->ops->upload(be, all.rows.k, nan, bytes);
                be->ops->upload(be, all.rows.v, nan, bytes);
                for (size_t t0 = 0; t0 < N; t0 += chunks[i]) {
                    size_t n = N - t0 < chunks[i] ? N - t0 : chunks[i];
                    for (size_t h = 0; h < KV; h++) {
                        size_t from = (h * c.job.rows.cap + t0) * row;
                        be->ops->upload(be, buf_at(all.rows.k, from), (char *)c.k + from, n * row);
                        be->ops->upload(be, buf_at(all.rows.v, from), (char *)c.v + from, n * row);
                    }
                    int64_t range[2] = {0, (int64_t)(t0 + n)};
                    be->ops->upload(be, all.range, range, sizeof range);
                    attn_job j = all;
                    j.n_tok = n;
                    j.q = buf_at(all.q, 4 * t0 * HEADS * dim);
                    j.out = buf_at(all.out, 4 * t0 * HEADS * dim);
                    j.lse = buf_at(all.lse, 4 * t0 * HEADS);
                    j.qpos = buf_at(all.qpos, 8 * t0);
                    be->ops->attn_prefill(be, &j);
                }
                be->ops->download(be, i ? out : want, all.out, 4 * N * HEADS * dim);
                drop(&d);
                group_note(&g, i == 0 ? isfinite(want[0]) : memcmp(out, want, 4 * N * HEADS * dim) == 0,
                           "%s, chunks of %zu, band %lld", dtype_name(s.type), chunks[i], (long long)band);
            }
            free(want), free(out), free(nan);
            call_free(&c);
        }
    group_end(&g, name, where());
}

/* Sequences of different lengths and row types in one call give the bits of each alone; more of them than one launch takes. */
static void test_batch(backend *be)
{
    enum { JOBS = 14, KV = 2, GROUP = 4, DIM = 64, HEADS = KV * GROUP };
    rng r = {24};
    group g = {0};
    call c[JOBS];
    attn_job jobs[JOBS];
    device d[JOBS];
    float *alone[JOBS], got[HEADS * DIM];
    for (size_t i = 0; i < JOBS; i++) {
        dtype type = i < 10 ? DT_BF16 : i < 12 ? DT_F32 : DT_F16;
        shape s = {.n_tok = 1, .kv_heads = KV, .group = GROUP, .dim = DIM, .n = 1 + i * 23, .type = type};
        c[i] = call_make(&r, s);
        d[i] = (device){.be = be};
        jobs[i] = on_device(&d[i], &c[i], &s, NULL, 0);
        alone[i] = xmalloc(sizeof got);
        be->ops->attn_decode(be, &jobs[i], 1);
        be->ops->download(be, alone[i], jobs[i].out, sizeof got);
    }
    be->ops->attn_decode(be, jobs, JOBS);
    for (size_t i = 0; i < JOBS; i++) {
        be->ops->download(be, got, jobs[i].out, sizeof got);
        group_note(&g, memcmp(got, alone[i], sizeof got) == 0, "job %zu", i);
        drop(&d[i]);
        call_free(&c[i]);
        free(alone[i]);
    }
    group_end(&g, "decode: a batch gives the bits of each job alone", where());
}

static void test_merge(backend *be)
{
    rng r = {27};
    group g = {0};
    for (size_t parts = 1; parts <= 4; parts++)
        for (size_t dim = 2; dim <= 256; dim += 127) {
            size_t rows = 5, n = rows * dim;
            float *p = random_f32(&r, parts * n), *l = random_f32(&r, parts * rows), *want = xmalloc(4 * n), *got = xmalloc(4 * n);
            float lse[5], got_lse[5];
            for (size_t i = 0; i < parts; i++) l[i * rows + 1] = -INFINITY;
            l[2] = -INFINITY;
            for (size_t k = 0; k < dim; k++) p[2 * dim + k] = NAN;
            ref->ops->attn_merge(ref, at(want), at(lse), at(p), at(l), parts, rows, dim);
            device d = {.be = be};
            buf out = put(&d, want, 4 * n), out_lse = put(&d, lse, sizeof lse);
            be->ops->attn_merge(be, out, out_lse, put(&d, p, 4 * parts * n), put(&d, l, 4 * parts * rows), parts, rows, dim);
            be->ops->download(be, got, out, 4 * n);
            be->ops->download(be, got_lse, out_lse, sizeof lse);
            group_note(&g, nmse(got, want, n) <= 1e-12 && nmse(got_lse, lse, rows) <= 1e-12, "%zu parts, dim %zu", parts, dim);
            drop(&d);
            free(p), free(l), free(want), free(got);
        }
    group_end(&g, "merge, with empty parts", where());
}

int main(void)
{
    backend *be = open_cuda();
    if (!be) return 0;
    ref = open_ref();
    test_decode(be);
    test_pieces(be);
    test_prefill(be);
    test_tensor(be);
    test_chunks(be, 40, "prefill: same bits at once and in chunks of 1, 7, 33");
    test_chunks(be, 64, "prefill with tensor cores: same bits at once and in chunks of 1, 7, 33");
    test_batch(be);
    test_merge(be);
    check_end(be);
    return tap_done();
}
