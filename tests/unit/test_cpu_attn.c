/* SPDX-License-Identifier: MIT */
/* Attention at every SIMD level against ref, and what its bits may not depend on. */
#include "config.h"

#include "tests/unit/attn_call.h"

/* Whether products may be of bf16 numbers; q, k, v and weights, each rounded with an NMSE of 2.4e-6, then make 1e-5
 * of scores with variance 1, a few keys up to three times as much. */
static bool rounds(const backend *be, const shape *s)
{
    return s->rounded && s->type != DT_F32 && strstr(be->about, "AVX-512 VNNI");
}

static double mean_square(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += isfinite(x[i]) ? (double)x[i] * (double)x[i] : 0;
    return sum / (double)n;
}

static void compare(backend *be, group *g, rng *r, shape s, bool prefill)
{
    call c = call_make(r, s);
    call_place(&c, s);
    size_t rows = s.n_tok * c.job.n_heads, n = rows * s.dim;
    float *out = xmalloc(4 * n), *lse = xmalloc(4 * rows);
    size_t stride = s.n + 3;
    float *scores = calloc(c.job.n_heads, 4 * stride), *want = calloc(c.job.n_heads, 4 * stride);
    uint64_t read[READ_KINDS] = {0};
    attn_job j = c.job;
    j.out = at(out);
    j.lse = at(lse);
    c.job.read = at(c.read);
    j.read = at(read);
    if (!prefill) {
        j.scores = at(scores);
        c.job.scores = at(want);
        j.score_stride = c.job.score_stride = stride;
    }
    ref->ops->attn_prefill(ref, &c.job);
    if (prefill) be->ops->attn_prefill(be, &j);
    else be->ops->attn_decode(be, &j, 1);
    double e = nmse(out, c.out, n), el = nmse(lse, c.lse, rows), most = rounds(be, &s) ? 3e-5 : 1e-10;
    if (rounds(be, &s)) el *= mean_square(c.lse, rows); /* of few keys it may be close to 0 */
    group_note(g, e <= most && el <= most && memcmp(read, c.read, sizeof read) == 0,
               "%s dim %zu group %zu n %zu lists %zu tok %zu band %lld pos %d at %d bits %d: %.2g, lse %.2g, K read %+lld",
               dtype_name(s.type), s.dim, s.group, s.n, s.n_lists, s.n_tok, (long long)s.band, s.pos, s.at, s.bits, e,
               el, (long long)(read[READ_K] - c.read[READ_K]));
    bool same = true;
    for (size_t i = 0; i < c.job.n_heads * stride; i++)
        same &= scores[i] == want[i] || fabsf(scores[i] - want[i]) < 1e-4f;
    group_note(g, same, "scores: dim %zu group %zu n %zu lists %zu band %lld", s.dim, s.group, s.n, s.n_lists,
               (long long)s.band);
    free(out), free(lse), free(scores), free(want);
    call_free(&c);
}

static const size_t DIMS[] = {2, 6, 8, 18, 32, 64, 80, 96, 128, 256};
static const size_t GROUPS[] = {1, 2, 3, 4, 5, 6, 7, 8, 21};
enum { N_DIMS = sizeof DIMS / sizeof DIMS[0], N_GROUPS = sizeof GROUPS / sizeof GROUPS[0] };

static void test_decode(backend *be, const char *level)
{
    rng r = {21};
    group g = {0}, h = {0}, k = {0};
    static const size_t lengths[] = {1, 2, 7, 63, 64, 65, 128, 130, 191};
    for (size_t d = 0; d < N_DIMS; d++)
        for (size_t i = 0; i < N_GROUPS; i++) {
            size_t t = (d + 2 * i) % 3;
            shape s = {.n_tok = 1, .kv_heads = 2, .group = GROUPS[i], .dim = DIMS[d], .n = lengths[(t + d + i) % 9], .type = ALL_TYPES[t]};
            compare(be, &g, &r, s, false);
            s.idx = true;
            s.n_lists = i % 2 ? 2 : s.group * 2;
            s.n = lengths[(d + i) % 9];
            compare(be, &h, &r, s, false);
        }
    for (size_t n = 1; n < 140; n++) {
        shape s = {.n_tok = 1, .kv_heads = 1, .group = 4, .dim = 16, .n = n, .type = DT_F16, .pos = n % 2, .band = n % 3 ? (int64_t)n / 2 : 0};
        compare(be, &k, &r, s, false);
    }
    shape s = {.n_tok = 1, .kv_heads = 2, .group = 4, .dim = 32, .n = 6001, .type = DT_BF16, .n_lists = 2};
    compare(be, &k, &r, s, false);
    s.idx = true;
    compare(be, &k, &r, s, false);
    group_end(&g, "decode, contiguous: dims x groups, types in turn", level);
    group_end(&h, "decode, index lists per kv head and per query head, one empty", level);
    group_end(&k, "decode, lengths, several chunks, positions and bands", level);
}

static void test_prefill(backend *be, const char *level)
{
    rng r = {22};
    group g = {0}, h = {0};
    for (size_t d = 0; d < N_DIMS; d++)
        for (size_t i = 0; i < N_GROUPS; i++) {
            size_t t = (d + 2 * i) % 3;
            shape s = {.n_tok = 1 + (d + i) % 5, .kv_heads = 2, .group = GROUPS[i], .dim = DIMS[d], .n = 5 + (d * 37 + i * 11) % 150, .type = ALL_TYPES[t], .pos = true};
            s.rounded = (d + i) % 2; /* every dim and every group with and without */
            compare(be, &g, &r, s, true);
        }
    static const int64_t bands[] = {0, 1, 20, 127, 128, 200};
    for (size_t n = 1; n <= 400; n += 133)
        for (size_t b = 0; b < 6; b++)
            for (size_t tok = 1; tok <= 130; tok += 43) {
                shape s = {.n_tok = tok, .kv_heads = 2, .group = 2, .dim = 24, .n = n, .type = DT_F16, .pos = true, .band = bands[b], .n_lists = b % 2 ? 2 : 1};
                compare(be, &h, &r, s, true);
                s.n_lists = 4;
                compare(be, &h, &r, s, true);
                s.pos = false;
                compare(be, &h, &r, s, true);
                s.pos = s.rounded = true;
                if (rounds(be, &s)) compare(be, &h, &r, s, true);
            }
    group_end(&g, "prefill: dims x groups, types in turn", level);
    group_end(&h, "prefill: lengths, chunks, bands, lists, queries that see nothing", level);
}

/* Lists of slots in prompts and in decode, with positions of their own, over exact rows and codes. */
static void test_lists(backend *be, const char *level)
{
    rng r = {26};
    group g = {0}, h = {0};
    static const size_t lengths[] = {1, 5, 64, 129, 200};
    for (size_t d = 0; d < N_DIMS; d++)
        for (size_t i = 0; i < N_GROUPS; i++) {
            size_t t = (d + 2 * i) % 3;
            shape s = {.n_tok = 1 + (d + i) % 4, .kv_heads = 2, .group = GROUPS[i], .dim = DIMS[d],
                       .n = lengths[(t + d + i) % 5], .type = ALL_TYPES[t], .idx = true};
            s.at = i % 4 > 0;
            s.band = i % 4 > 1 ? 3 + (int64_t)s.n / 2 : 0;
            s.n_lists = i % 3 == 0 ? 1 : i % 3 == 1 ? 2 : 2 * s.group;
            s.rounded = (d + i) % 2;
            compare(be, &g, &r, s, true);
            s.bits = d % 2 ? 2 : 4;
            s.by_token = i % 3 == 1;
            compare(be, &h, &r, s, true);
            s.idx = (d + i) % 4 > 0;
            s.n_tok = 1;
            compare(be, &h, &r, s, false);
        }
    shape s = {.n_tok = 1, .kv_heads = 2, .group = 4, .dim = 32, .n = 4500, .type = DT_F16, .bits = 2};
    compare(be, &h, &r, s, false);
    s.idx = s.at = true;
    s.n_lists = 2;
    s.band = 4400;
    compare(be, &h, &r, s, false);
    group_end(&g, "prefill: lists per model, kv head and query head; positions and bands", level);
    group_end(&h, "codes of 2 and 4 bits among exact rows, in prompts and decode", level);
}

/* One prompt at once, in chunks, with other threads: the same bits. Keys of later chunks are
 * garbage (NaN) until their chunk comes: nothing may read them. */
static void test_prefill_bits(backend *one, backend *two, const char *level)
{
    rng r = {23};
    enum { N = 300, KV = 2, GROUP = 3, DIM = 40, HEADS = KV * GROUP, CAP = N + 70 };
    static const size_t chunks[] = {N, 1, 7, 64};
    group g = {0};
    for (size_t t = 0; t < 3; t++)
        for (int64_t band = 0; band <= 90; band += 90) {
            shape s = {.n_tok = N, .kv_heads = KV, .group = GROUP, .dim = DIM, .n = N, .type = ALL_TYPES[t], .pos = true, .band = band, .rounded = true};
            call c = call_make(&r, s);
            call_place(&c, s);
            size_t bytes = KV * CAP * DIM * dtype_size(s.type), row = DIM * dtype_size(s.type);
            one->ops->attn_prefill(one, &c.job);
            for (size_t i = 0; i < 4; i++)
                for (int b = 0; b < 2; b++) {
                    backend *be = b ? two : one;
                    float *out = xmalloc(4 * N * HEADS * DIM), *lse = xmalloc(4 * N * HEADS);
                    unsigned char *k = xmalloc(bytes), *v = xmalloc(bytes);
                    memset(k, 0xff, bytes);
                    memset(v, 0xff, bytes);
                    for (size_t t0 = 0; t0 < N; t0 += chunks[i]) {
                        size_t n = N - t0 < chunks[i] ? N - t0 : chunks[i];
                        for (size_t h = 0; h < KV; h++) {
                            memcpy(k + (h * CAP + t0) * row, (char *)c.k + (h * CAP + t0) * row, n * row);
                            memcpy(v + (h * CAP + t0) * row, (char *)c.v + (h * CAP + t0) * row, n * row);
                        }
                        int64_t range[2] = {0, (int64_t)(t0 + n)};
                        attn_job j = c.job;
                        j.rows.k = at(k);
                        j.rows.v = at(v);
                        j.range = at(range);
                        j.n_tok = n;
                        j.q = at(c.q + t0 * HEADS * DIM);
                        j.out = at(out + t0 * HEADS * DIM);
                        j.lse = at(lse + t0 * HEADS);
                        j.qpos = at(c.qpos + t0);
                        be->ops->attn_prefill(be, &j);
                    }
                    group_note(&g, memcmp(out, c.out, 4 * N * HEADS * DIM) == 0 && memcmp(lse, c.lse, 4 * N * HEADS) == 0,
                               "%s, chunks of %zu, %d threads, band %lld", dtype_name(s.type), chunks[i], be->n_threads, (long long)band);
                    free(out), free(lse), free(k), free(v);
                }
            call_free(&c);
        }
    group_end(&g, "prefill: same bits at once and in chunks of 1, 7, 64, threads 1 and 2", level);
}

/* Several sequences in one call and two threads give the bits of each alone with one. */
static void test_decode_bits(backend *one, backend *two, const char *level)
{
    rng r = {24};
    group g = {0};
    enum { JOBS = 5 };
    for (size_t t = 0; t < 3; t++) {
        call c[JOBS];
        attn_job jobs[JOBS];
        float *out[JOBS];
        for (size_t i = 0; i < JOBS; i++) {
            shape s = {.n_tok = 1, .kv_heads = 2, .group = 3, .dim = 24, .n = i == 1 ? 5000 : 70 + i,
                       .type = ALL_TYPES[t], .idx = i >= 2, .bits = i >= 3 ? 4 : 0};
            s.n += i == 4 ? 4000 : 0;
            c[i] = call_make(&r, s);
            one->ops->attn_decode(one, &c[i].job, 1);
            out[i] = xmalloc(4 * 6 * 24);
            jobs[i] = c[i].job;
            jobs[i].out = at(out[i]);
            jobs[i].lse = (buf){0};
        }
        two->ops->attn_decode(two, jobs, JOBS);
        for (size_t i = 0; i < JOBS; i++) {
            group_note(&g, memcmp(out[i], c[i].out, 4 * 6 * 24) == 0, "%s job %zu", dtype_name(ALL_TYPES[t]), i);
            free(out[i]);
            call_free(&c[i]);
        }
    }
    group_end(&g, "decode: same bits alone and in a batch, threads 1 and 2", level);
}

static void test_fault(const char *level)
{
    backend *be = open_level(level, 1);
    if (!be) return;
    rng r = {25};
    err e = {0};
    shape s = {.n_tok = 1, .kv_heads = 1, .group = 1, .dim = 258, .n = 4};
    call c = call_make(&r, s);
    be->ops->attn_decode(be, &c.job, 1);
    is_err(backend_fault(be, &e), &e, ST_UNSUPPORTED, "258", "a head_dim above 256 is a fault that names it");
    call_free(&c);
    backend_close(be);
}

int main(void)
{
    ref = open_ref();
    for (size_t i = 0; i < sizeof ALL_LEVELS / sizeof ALL_LEVELS[0]; i++) {
        const char *level = ALL_LEVELS[i];
        backend *one = open_level(level, 1), *two = one ? open_level(level, 2) : NULL;
        err e = {0};
        if (!two) continue;
        test_decode(two, level);
        test_prefill(two, level);
        test_lists(two, level);
        test_prefill_bits(one, two, level);
        test_decode_bits(one, two, level);
        is_ok(backend_fault(two, &e), &e, "%s, no fault", level);
        backend_close(one);
        backend_close(two);
    }
    test_fault("generic");
    return tap_done();
}
