/* SPDX-License-Identifier: MIT */
/* Ops of eviction against naive computations in double, at every SIMD level. */
#include "config.h"

#include "kernels/ops_evict.h"
#include "tests/unit/ops_util.h"

static backend *ref;

/* ---- column sums ---- */

/* What a case is made of. lists: 1, kv_heads or kv_heads * group. */
typedef struct {
    size_t n_tok, kv_heads, group, dim, n, lists, groups;
    dtype type;
    bool idx, masked;
    int64_t band;
    int how;
} shape;

/* A job with all of its data, and the sums expected. */
typedef struct {
    attn_job job;
    float *q, *lse, *start;
    void *k;
    int64_t *range, *qpos, kpos;
    int32_t *idx, *at;
    double *want, *rows; /* [groups][stride], [heads] sum of all weights of a head */
    size_t stride, heads;
} call;

static float key_at(const void *k, dtype t, size_t i)
{
    if (t == DT_F32) return ((const float *)k)[i];
    uint16_t h = ((const uint16_t *)k)[i];
    return t == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static size_t list_of(const call *c, const shape *s, size_t head)
{
    if (s->lists == 1) return 0;
    return s->lists == c->heads ? head : head / s->group;
}

static int64_t entry_pos(const call *c, const shape *s, size_t list, int64_t i)
{
    return s->idx ? c->at[list * c->stride + (size_t)(c->range[2 * list] + i)] : c->kpos + i;
}

/* Weights of one query and head, in double; fills its lse. */
static void weigh(call *c, const shape *s, size_t t, size_t h, double *w)
{
    size_t l = list_of(c, s, h), kv = h / s->group, cap = c->job.rows.cap;
    int64_t first = c->range[2 * l], n = c->range[2 * l + 1];
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t slot = (size_t)(s->idx ? c->idx[l * c->stride + (size_t)(first + i)] : first + i);
        int64_t behind = c->qpos[t] - entry_pos(c, s, l, i);
        double x = 0;
        for (size_t d = 0; d < s->dim; d++)
            x += (double)c->q[(t * c->heads + h) * s->dim + d] *
                 (double)key_at(c->k, s->type, (kv * cap + slot) * s->dim + d);
        w[i] = exp(x * (double)c->job.scale);
        if (s->masked && (behind < 0 || (s->band > 0 && behind >= s->band))) w[i] = 0;
        sum += w[i];
    }
    for (int64_t i = 0; i < n && sum > 0; i++) w[i] /= sum;
    c->lse[t * c->heads + h] = sum > 0 ? (float)log(sum) : -INFINITY;
}

static void expect(call *c, const shape *s)
{
    size_t heads = c->heads / s->groups;
    double *w = xmalloc(8 * c->stride), *both = xmalloc(8 * c->stride);
    for (size_t t = 0; t < s->n_tok; t++)
        for (size_t g = 0; g < s->groups; g++) {
            int64_t n = c->range[2 * list_of(c, s, g * heads) + 1];
            for (size_t h = g * heads; h < (g + 1) * heads; h++) {
                weigh(c, s, t, h, w);
                for (int64_t i = 0; i < n; i++) {
                    both[i] = h == g * heads ? w[i] : s->how == COMBINE_MAX ? fmax(both[i], w[i]) : both[i] + w[i];
                    c->rows[h] += w[i];
                }
            }
            for (int64_t i = 0; i < n; i++)
                c->want[g * c->stride + (size_t)i] += both[i] / (s->how == COMBINE_MEAN ? (double)heads : 1);
        }
    free(w), free(both);
}

static call *call_make(rng *r, shape s)
{
    call *c = xmalloc(sizeof *c);
    *c = (call){.stride = s.n + 8, .heads = s.kv_heads * s.group, .kpos = 50};
    size_t cap = 2 * s.n + 9;
    c->q = random_f32(r, s.n_tok * c->heads * s.dim);
    c->lse = xmalloc(4 * s.n_tok * c->heads);
    c->k = random_as(r, s.kv_heads * cap * s.dim, s.type);
    c->range = xmalloc(16 * s.lists);
    c->qpos = xmalloc(8 * s.n_tok);
    c->idx = xmalloc(4 * s.lists * c->stride);
    c->at = xmalloc(4 * s.lists * c->stride);
    c->start = random_f32(r, s.groups * c->stride);
    c->want = calloc(s.groups * c->stride, 8);
    c->rows = calloc(c->heads, 8);
    for (size_t l = 0; l < s.lists; l++) {
        c->range[2 * l] = s.idx ? (int64_t)(l % 3) : 0;
        c->range[2 * l + 1] = l > 0 && l + 1 == s.lists && s.idx ? 0 : (int64_t)(s.n - (s.idx ? l % 2 % s.n : 0));
        int32_t pos = 50;
        for (size_t i = 0; i < c->stride; i++) {
            pos += 1 + (rng_next(r) % 8 == 0);
            c->idx[l * c->stride + i] = (int32_t)(rng_next(r) % cap);
            c->at[l * c->stride + i] = pos;
        }
    }
    int64_t last = entry_pos(c, &s, 0, (int64_t)s.n - 1);
    for (size_t t = 0; t < s.n_tok; t++) c->qpos[t] = last - (int64_t)s.n_tok + (int64_t)t + 2;
    c->job = (attn_job){.q = at(c->q),
                        .lse = at(c->lse),
                        .n_tok = s.n_tok,
                        .n_heads = c->heads,
                        .range = at(c->range),
                        .n_lists = s.lists,
                        .idx_stride = c->stride,
                        .n_max = (int64_t)s.n + 5,
                        .qpos = at(c->qpos),
                        .band = s.band,
                        .scale = 2 / sqrtf((float)s.dim)};
    c->job.rows = (kv_rows){at(c->k), {NULL}, s.type, s.kv_heads, s.dim, cap, {0}, NULL, NULL};
    if (s.idx) c->job.idx = at(c->idx);
    if (s.idx && s.masked) c->job.at = at(c->at);
    if (!s.idx && s.masked) c->job.kpos = at(&c->kpos);
    expect(c, &s);
    return c;
}

static void call_free(call *c)
{
    free(c->q), free(c->lse), free(c->k), free(c->range), free(c->qpos), free(c->idx), free(c->at), free(c->start);
    free(c->want), free(c->rows), free(c);
}

/* Relative to 1: a weight of a query is at most that. */
static double sums_error(const call *c, const shape *s, const float *got, bool add)
{
    double worst = 0;
    for (size_t g = 0; g < s->groups; g++)
        for (int64_t i = 0; i < c->range[2 * list_of(c, s, g * (c->heads / s->groups)) + 1]; i++) {
            size_t k = g * c->stride + (size_t)i;
            double want = c->want[k] + (add ? (double)c->start[k] : 0),
                   e = fabs((double)got[k] - want) / fmax(1, fabs(want));
            worst = !(e <= worst) ? e : worst;
        }
    return worst;
}

static void compare(backend *be, group *g, rng *r, shape s)
{
    if (left_out(3, 23)) return;
    call *c = call_make(r, s);
    float *got = xmalloc(4 * s.groups * c->stride);
    uint64_t read[READ_KINDS] = {5, 6, 7}, keys = 0, sums = 0;
    c->job.read = at(read);
    for (int add = 0; add < 2; add++) {
        memcpy(got, c->start, 4 * s.groups * c->stride);
        be->ops->evict->colsum(be, &c->job, s.groups, s.how, add, at(got), c->stride);
        double e = sums_error(c, &s, got, add);
        group_note(
            g, e <= 1e-5,
            "%s dim %zu group %zu kv %zu n %zu lists %zu groups %zu tok %zu band %lld idx %d how %d add %d: %.2g",
            dtype_name(s.type), s.dim, s.group, s.kv_heads, s.n, s.lists, s.groups, s.n_tok, (long long)s.band, s.idx,
            s.how, add, e);
    }
    for (size_t u = 0; u < (s.lists == c->heads ? c->heads : s.kv_heads); u++)
        keys += (uint64_t)c->range[2 * (s.lists == 1 ? 0 : u) + 1] * s.dim * dtype_size(s.type);
    for (size_t k = 0; k < s.groups; k++)
        sums += 4 * (uint64_t)c->range[2 * list_of(c, &s, k * (c->heads / s.groups)) + 1];
    group_note(g, read[READ_K] == 5 + 2 * keys && read[READ_V] == 6 && read[READ_INDEX] == 7 + sums,
               "bytes read: %llu, not %llu; of sums %llu, not %llu", (unsigned long long)read[READ_K] - 5,
               (unsigned long long)(2 * keys), (unsigned long long)read[READ_INDEX] - 7, (unsigned long long)sums);
    c->job.copied = true;
    be->ops->evict->colsum(be, &c->job, s.groups, s.how, true, at(got), c->stride);
    group_note(g, read[READ_K] == 5 + 2 * keys && read[READ_INDEX] == 7 + 2 * sums, "copied rows do not count");
    free(got);
    call_free(c);
}

static void test_colsum(backend *be, const char *level)
{
    static const size_t dims[] = {2, 6, 8, 10, 18, 32, 64, 80, 96, 128, 256}, groups[] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const size_t lengths[] = {1, 2, 7, 127, 128, 129, 300};
    rng r = {31};
    group g = {0}, h = {0}, k = {0};
    for (size_t d = 0; d < 11; d++)
        for (size_t i = 0; i < 8; i++) {
            shape s = {.n_tok = 1 + (d * 5 + i) % 9,
                       .kv_heads = 2,
                       .group = groups[i],
                       .dim = dims[d],
                       .n = lengths[(d + i) % 7],
                       .lists = 1,
                       .groups = 2,
                       .type = ALL_TYPES[(d + i) % 3],
                       .masked = true,
                       .how = (int)(i % 3)};
            compare(be, &g, &r, s);
            s.idx = true;
            s.lists = 2;
            s.groups = i % 2 ? 2 : 2 * s.group;
            s.band = d % 2 ? (int64_t)s.n / 2 + 1 : 0;
            compare(be, &h, &r, s);
            s.lists = s.groups = 2 * s.group;
            s.masked = d % 3 > 0;
            compare(be, &h, &r, s);
            s.lists = s.groups = 1;
            s.n_tok = 1 + d % 3;
            compare(be, &k, &r, s);
            s.idx = false;
            compare(be, &k, &r, s);
        }
    shape s = {.n_tok = 70, .kv_heads = 1, .group = 50, .dim = 8, .n = 150, .lists = 1, .groups = 1, .masked = true};
    compare(be, &k, &r, s);
    s.band = 20;
    compare(be, &k, &r, s);
    group_end(&g, "colsum of contiguous keys: dims x groups x types", level);
    group_end(&h, "colsum of lists per KV head and query head, one empty, bands", level);
    group_end(&k, "colsum over all heads of a layer, many queries, large groups", level);
}

/* A causal prompt: every query gives each head a weight of 1 in all. */
static void test_total(backend *be, const char *level)
{
    enum { N = 200 };
    rng r = {32};
    shape s = {.n_tok = N, .kv_heads = 2, .group = 2, .dim = 16, .n = N, .lists = 1, .groups = 4, .masked = true};
    call *c = call_make(&r, s);
    float *got = xmalloc(4 * 4 * c->stride);
    for (size_t t = 0; t < N; t++) c->qpos[t] = c->kpos + (int64_t)t;
    memset(c->want, 0, 8 * 4 * c->stride);
    expect(c, &s);
    be->ops->evict->colsum(be, &c->job, 4, COMBINE_MEAN, false, at(got), c->stride);
    double worst = 0, off = sums_error(c, &s, got, false);
    for (size_t h = 0; h < 4; h++) {
        double sum = 0;
        for (size_t i = 0; i < N; i++) sum += (double)got[h * c->stride + i];
        worst = fmax(worst, fabs(sum / N - 1));
    }
    ok(worst < 1e-5 && off < 1e-5, "%s, column sums of a prompt add up to the number of queries: %.2g, %.2g", level,
       worst, off);
    free(got);
    call_free(c);
}

/* Sums do not depend, to the bit, on how queries are cut into calls, nor on threads. */
static void test_bits(backend *one, backend *two, const char *level)
{
    static const size_t chunks[] = {1, 3, 7, 64, 90};
    rng r = {33};
    group g = {0};
    for (size_t i = 0; i < 12; i++) {
        if (left_out(5, 7)) continue;
        shape s = {.n_tok = 150,
                   .kv_heads = 2,
                   .group = 1 + i % 4,
                   .dim = 20,
                   .n = 280,
                   .lists = i % 2 ? 2 : 1,
                   .groups = 2,
                   .type = ALL_TYPES[i % 3],
                   .idx = i % 2,
                   .masked = true,
                   .band = i % 4 > 1 ? 70 : 0,
                   .how = (int)(i % 3)};
        if (i == 11) s.groups = s.lists = 1;
        call *c = call_make(&r, s);
        size_t bytes = 4 * s.groups * c->stride;
        float *want = xmalloc(bytes), *got = xmalloc(bytes);
        memcpy(want, c->start, bytes);
        one->ops->evict->colsum(one, &c->job, s.groups, s.how, true, at(want), c->stride);
        for (size_t k = 0; k < 5; k++) {
            backend *be = k % 2 ? two : one;
            memcpy(got, c->start, bytes);
            for (size_t t = 0; t < s.n_tok; t += chunks[k]) {
                attn_job j = c->job;
                j.n_tok = s.n_tok - t < chunks[k] ? s.n_tok - t : chunks[k];
                j.q = at(c->q + t * c->heads * s.dim);
                j.lse = at(c->lse + t * c->heads);
                j.qpos = at(c->qpos + t);
                be->ops->evict->colsum(be, &j, s.groups, s.how, true, at(got), c->stride);
            }
            group_note(&g, memcmp(got, want, bytes) == 0, "case %zu, chunks of %zu", i, chunks[k]);
        }
        free(want), free(got);
        call_free(c);
    }
    group_end(&g, "colsum: the same bits in one call and in chunks of 1 to 90, threads 1 and 2", level);
}

/* From scores: one query, some entries not seen, a head that sees nothing. */
static void test_scored(backend *be, const char *level)
{
    enum { HEADS = 24, N = 300, ROW = N + 7, KV = 2 };
    static const size_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 12}, lengths[] = {1, 7, 128, 129, N};
    rng r = {38};
    group g = {0};
    float *score = random_f32(&r, HEADS * ROW), *lse = random_f32(&r, HEADS), *start = random_f32(&r, HEADS * ROW);
    float *got = xmalloc(4 * HEADS * ROW);
    for (size_t i = 0; i < HEADS * ROW; i += 5) score[i] = -INFINITY;
    lse[2] = -INFINITY;
    for (size_t i = 0; i < 9 * 5 * 6; i++) {
        size_t heads = sizes[i % 9], n = lengths[i / 9 % 5], n_heads = KV * heads;
        int how = (int)(i / 45 % 3);
        bool add = i / 135;
        int64_t range[2] = {4, (int64_t)n};
        uint64_t read[READ_KINDS] = {0};
        attn_job j = {.lse = at(lse), .n_tok = 1, .n_heads = n_heads, .range = at(range), .n_lists = 1, .n_max = N,
                      .rows = {.n_kv_heads = KV, .head_dim = 8}, .read = at(read), .scores = at(score),
                      .score_stride = ROW};
        memcpy(got, start, 4 * HEADS * ROW);
        be->ops->evict->colsum(be, &j, KV, how, add, at(got), ROW);
        double worst = 0;
        for (size_t k = 0; k < KV; k++)
            for (size_t e = 0; e < n; e++) {
                double want = 0;
                for (size_t h = k * heads; h < (k + 1) * heads; h++) {
                    double x = h == 2 ? 0 : exp((double)score[h * ROW + e] - (double)lse[h]);
                    want = how == COMBINE_MAX ? fmax(want, x) : want + x;
                }
                if (how == COMBINE_MEAN) want /= (double)heads;
                if (add) want += (double)start[k * ROW + e];
                worst = fmax(worst, fabs((double)got[k * ROW + e] - want) / fmax(1, fabs(want)));
            }
        bool rest = got[(KV - 1) * ROW + n] == start[(KV - 1) * ROW + n];
        group_note(&g, worst < 1e-5 && rest, "heads %zu n %zu how %d add %d: %.2g", heads, n, how, add, worst);
        group_note(&g, read[READ_K] == 0 && read[READ_INDEX] == (add ? 4 * KV * n : 0), "no key is read");
    }
    int64_t all[2] = {0, N};
    attn_job j = {.lse = at(lse), .n_tok = 1, .n_heads = HEADS, .range = at(all), .n_lists = 1, .n_max = N,
                  .rows = {.n_kv_heads = KV, .head_dim = 8}, .scores = at(score), .score_stride = ROW};
    be->ops->evict->colsum(be, &j, HEADS, COMBINE_SUM, false, at(got), ROW);
    be->ops->evict->colsum(be, &j, HEADS, COMBINE_SUM, false, at(score), ROW);
    for (size_t h = 0; h < HEADS; h++) group_note(&g, !memcmp(score + h * ROW, got + h * ROW, 4 * N), "in place");
    group_end(&g, "colsum of one query from its scores, in place too", level);
    free(score), free(lse), free(start), free(got);
}

/* ---- lists ---- */

enum { LISTS = 3, STRIDE = 64 };

/* Kept rows in plain arrays; each score names its entry, so that parallel moves show. */
typedef struct {
    int32_t at[LISTS][STRIDE], slot[LISTS][STRIDE];
    float score[LISTS][STRIDE];
    int64_t range[LISTS][2], seen[LISTS];
    uint64_t read;
} lists;

static kept_rows rows_of(lists *l, bool by_position)
{
    kept_rows k = {at(l->at), at(l->slot), at(l->score), at(l->range), at(l->seen), at(&l->read), LISTS, STRIDE};
    if (by_position) k.slot.p = NULL;
    return k;
}

static bool is_permutation(const int32_t *slot)
{
    bool seen[STRIDE] = {false};
    for (int i = 0; i < STRIDE; i++) {
        if (slot[i] < 0 || slot[i] >= STRIDE || seen[slot[i]]) return false;
        seen[slot[i]] = true;
    }
    return true;
}

/* n entries with gaps in their positions. */
static void lists_fill(backend *be, lists *l, rng *r, size_t n, bool by_position)
{
    int64_t pos[STRIDE], slots[STRIDE * LISTS], p = 0;
    *l = (lists){0};
    kept_rows k = rows_of(l, by_position);
    for (size_t i = 0; i < n; i++) pos[i] = p += 1 + (int64_t)(rng_next(r) % 3);
    if (!by_position) be->ops->evict->open(be, &k);
    be->ops->evict->append(be, &k, at(pos), n, by_position ? (buf){NULL} : at(slots));
}

/* Which entries stay, by sorting; pos: that of the query. */
static int64_t naive_prune(const lists *l, int i, int64_t pos, const keep_rule *r, int64_t *keep, int64_t *seen)
{
    int64_t n = l->range[i][1], first = 0, n_keep = 0;
    while (first < n && r->band > 0 && l->at[i][first] <= pos - r->band) first++;
    *seen = n - first;
    bool drop[STRIDE] = {false};
    for (int64_t left = n - first; left > r->budget; left--) {
        int64_t victim = -1;
        double least = (double)INFINITY;
        for (int64_t e = first; e < n - r->recent; e++) {
            double x = (double)l->score[i][e];
            if (r->by_count) x = (double)(l->score[i][e] / (float)(pos - l->at[i][e] + 1));
            if (isnan(x)) x = -(double)INFINITY;
            if (drop[e] || (victim >= 0 && x > least)) continue;
            victim = e;
            least = x;
        }
        drop[victim] = true;
    }
    for (int64_t e = first; e < n; e++)
        if (!drop[e]) keep[n_keep++] = e;
    return n_keep;
}

static float random_score(rng *r, int kind)
{
    float x = 4 * rng_float(r) - 1;
    switch (kind) {
    case 0: return x;
    case 1: return (float)(int)(2 * x) / 2; /* many ties */
    case 2: return rng_next(r) % 4 ? 0.5f : rng_next(r) % 2 ? NAN : -INFINITY;
    case 3: return rng_next(r) % 2 ? 0.0f : -0.0f;
    default: return rng_next(r) % 3 ? x : INFINITY;
    }
}

static void test_prune(backend *be, const char *level)
{
    rng r = {34};
    group g = {0}, h = {0};
    for (int n = 0; n < 4000; n++) {
        if (left_out(13, 61)) continue;
        lists l, old;
        bool by_position = n % 3 == 0, same = true;
        size_t count = rng_next(&r) % (STRIDE + 1);
        lists_fill(be, &l, &r, count, by_position);
        for (int i = 0; i < LISTS; i++)
            for (size_t e = 0; e < count; e++) l.score[i][e] = random_score(&r, n % 5);
        int64_t pos = count ? l.at[0][count - 1] : 0;
        keep_rule rule = {.band = n % 4 ? 0 : 1 + (int64_t)(rng_next(&r) % 100), .by_count = n % 7 == 0};
        rule.budget = n % 2 ? (int64_t)count - 1 : (int64_t)(rng_next(&r) % (count + 2));
        if (n % 11 == 0) rule.budget = INT64_MAX;
        if (rule.budget < 0) rule.budget = 0;
        rule.recent = rule.budget == INT64_MAX ? 3 : (int64_t)(rng_next(&r) % (uint64_t)(rule.budget + 1));
        kept_rows k = rows_of(&l, by_position);
        old = l;
        be->ops->evict->prune(be, &k, at(&pos), &rule);
        for (int i = 0; i < LISTS; i++) {
            int64_t keep[STRIDE], seen, n_keep = naive_prune(&old, i, pos, &rule, keep, &seen);
            same &= l.range[i][1] == n_keep && l.range[i][0] == 0 && l.seen[i] == seen;
            for (int64_t e = 0; same && e < n_keep; e++) {
                same &= l.at[i][e] == old.at[i][keep[e]];
                same &= memcmp(&l.score[i][e], &old.score[i][keep[e]], 4) == 0;
                same &= by_position || l.slot[i][e] == old.slot[i][keep[e]];
            }
            group_note(&h, by_position || is_permutation(l.slot[i]), "case %d", n);
        }
        group_note(&g, same, "case %d: %zu entries, budget %lld, recent %lld, band %lld, count %d, scores %d", n, count,
                   (long long)rule.budget, (long long)rule.recent, (long long)rule.band, rule.by_count, n % 5);
    }
    group_end(&g, "prune keeps what sorting keeps: ties, NaN, bands, recent ones", level);
    group_end(&h, "prune leaves every slot in its list once", level);
}

/* A life of lists: appended to, pruned, compacted; rows are found where the slots say. */
static void test_compact(backend *be, const char *level)
{
    enum { DIM = 2, LIMIT = 9 };
    rng r = {35};
    group g = {0};
    for (int one = 0; one < 2; one++) {
        static float k[LISTS][STRIDE][DIM], v[LISTS][STRIDE][DIM];
        lists l = {0};
        int64_t slots[STRIDE * LISTS], pos[STRIDE], next = 0;
        kv_rows rows = {at(k), at(v), DT_F32, LISTS, DIM, STRIDE, {0}, NULL, NULL};
        kept_rows kept = rows_of(&l, false);
        kept.n_lists = one ? 1 : LISTS;
        be->ops->evict->open(be, &kept);
        for (int turn = 0; turn < 40; turn++) {
            size_t n = turn % 3 ? 1 : 1 + rng_next(&r) % (STRIDE - LIMIT);
            float fresh[STRIDE][LISTS][DIM];
            for (size_t i = 0; i < n; i++) {
                pos[i] = next++;
                for (int h = 0; h < LISTS; h++) fresh[i][h][0] = (float)pos[i], fresh[i][h][1] = (float)h;
            }
            be->ops->evict->append(be, &kept, at(pos), n, at(slots));
            be->ops->kv_write(be, &rows, at(slots), kept.n_lists, at(fresh), at(fresh), n);
            for (size_t i = 0; i < kept.n_lists; i++)
                for (int64_t e = 0; e < l.range[i][1]; e++) l.score[i][e] = rng_float(&r);
            keep_rule rule = {.budget = LIMIT - 1, .recent = 2};
            be->ops->evict->prune(be, &kept, at(&pos[n - 1]), &rule);
            be->ops->evict->compact(be, &rows, &kept, LIMIT);
            for (size_t h = 0; h < LISTS; h++) {
                size_t i = one ? 0 : h;
                group_note(&g, is_permutation(l.slot[i]) && l.slot[i][l.range[i][1]] < LIMIT, "slots, turn %d", turn);
                for (int64_t e = 0; e < l.range[i][1]; e++) {
                    int32_t s = l.slot[i][e];
                    group_note(&g,
                               s < LIMIT && k[h][s][0] == (float)l.at[i][e] && v[h][s][0] == (float)l.at[i][e] &&
                                   k[h][s][1] == (float)h,
                               "turn %d, entry %d of %zu in slot %d", turn, (int)e, i, s);
                }
            }
        }
    }
    group_end(&g, "append, prune, compact: rows lie in their slots, below the limit", level);
}

/* ---- votes ---- */

static void test_votes(backend *be, const char *level)
{
    static float in[12][STRIDE], out[12][STRIDE];
    rng r = {36};
    group g = {0}, h = {0};
    for (int n = 0; n < 300; n++) {
        if (left_out(7, 17)) continue;
        lists l = {0};
        size_t groups = n % 2 ? 3 : 4;
        int64_t trim = n % 5, kernel = 1 + 2 * (n % 6), counts[LISTS] = {n % STRIDE, STRIDE, 1 + n % 9};
        bool max = n % 3 == 0;
        for (int i = 0; i < 12; i++)
            for (int e = 0; e < STRIDE; e++) in[i][e] = rng_float(&r);
        int how = n % 3;
        be->ops->evict->combine(be, at(out), at(in), STRIDE, 12, groups, STRIDE, how);
        for (size_t i = 0; i < groups * STRIDE; i++) {
            double want = how == COMBINE_MAX ? -1 : 0;
            for (size_t k = 0; k < 12 / groups; k++) {
                double x = (double)in[i / STRIDE * (12 / groups) + k][i % STRIDE];
                want =
                    how == COMBINE_MAX ? fmax(want, x) : want + x / (how == COMBINE_MEAN ? 12.0 / (double)groups : 1);
            }
            group_note(&g, fabs((double)out[i / STRIDE][i % STRIDE] - want) < 1e-5, "group %zu, how %d", i / STRIDE,
                       how);
        }
        for (int i = 0; i < LISTS; i++) l.range[i][1] = counts[i];
        kept_rows k = rows_of(&l, false);
        be->ops->evict->pool(be, &k, at(in), trim, kernel, max);
        for (int i = 0; i < LISTS; i++)
            for (int64_t e = 0; e < counts[i]; e++) {
                double want = 0, top = -1;
                for (int64_t o = -(kernel / 2); o <= kernel / 2; o++)
                    if (e + o >= 0 && e + o < counts[i] - trim) {
                        want += (double)in[i][e + o] / (double)kernel;
                        top = fmax(top, (double)in[i][e + o]);
                    }
                if (max) want = top;
                if (e >= counts[i] - trim) want = 0; /* not written */
                group_note(&h, fabs((double)l.score[i][e] - want) < 1e-6, "entry %d of %d, kernel %d", (int)e,
                           (int)counts[i], (int)kernel);
            }
    }
    group_end(&g, "heads combined", level);
    group_end(&h, "pooling, maximum and average, with borders", level);
    float x[2][3][2] = {{{1, 2}, {3, 4}, {5, 6}}, {{7, 8}, {9, 10}, {11, 12}}}, y[2][6][2];
    be->ops->evict->repeat_heads(be, at(y), at(x), 2, 3, 2, 2);
    ok(y[0][1][1] == 2 && y[0][2][0] == 3 && y[1][4][0] == 11 && y[1][5][1] == 12, "%s, heads repeated", level);
}

int main(void)
{
    if (no_device()) return 0;
    ref = open_ref();
    test_colsum(ref, "ref");
    test_total(ref, "ref");
    test_scored(ref, "ref");
    test_bits(ref, ref, "ref");
    test_prune(ref, "ref");
    test_compact(ref, "ref");
    test_votes(ref, "ref");
    for (size_t i = 0; i < sizeof ALL_LEVELS / sizeof ALL_LEVELS[0]; i++) {
        const char *level = ALL_LEVELS[i];
        backend *one = open_level(level, 1), *two = one ? open_level(level, 2) : NULL;
        err e = {0};
        if (!two) continue;
        test_colsum(two, level);
        test_total(two, level);
        test_scored(two, level);
        test_bits(one, two, level);
        test_prune(two, level);
        test_compact(two, level);
        test_votes(two, level);
        is_ok(backend_fault(two, &e), &e, "%s, no fault", level);
        backend_close(one);
        backend_close(two);
    }
    check_races();
    return tap_done();
}
