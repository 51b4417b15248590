/* SPDX-License-Identifier: MIT */
/* Context parallel: the rows of a sequence are split over ranks by position. Each rank scores and attends its own rows
 * with the ops that one rank would use, a rule over all ranks says how many it takes, and outputs are merged by
 * log-sum-exp. Every rank also does the whole alone, for comparison. By itself one rank; tests/cli/context.t starts
 * more.
 *
 * Three rules. Threshold: the ranks find the score of the k-th best item of all by its bits, eight at a time, from
 * counts summed over the ranks, and what is equal to it is taken from the first ranks on. Candidates: every rank tells
 * its k best scores at once, which gives the same. Both choose what one rank would. Quotas: every rank takes its k / R
 * best; nothing is exchanged, and the choice differs. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "kernels/comm.h"
#include "kernels/ops_fier.h"
#include "kernels/ops_quest.h"
#include "kernels/ops_select.h"
#include "tests/tap.h"

enum { HEADS = 8, KV = 2, DIM = 64, TOKENS = 4096 + 37, PAGE = 16, GROUP = 32, QUERIES = 6, ROWS = HEADS * DIM };
enum { BINS = 256, ROUNDS = 4, MOST_RANKS = 16, MOST_K = 255 };
static const float SCALE = 0.125f;

typedef enum { FULL, QUEST, FIER } method;
typedef enum { THRESHOLD, CANDIDATES, QUOTAS } rule;
/* Where the keys that a query looks for lie: anywhere, or together near the start; ties: keys of few values. */
typedef enum { SCATTERED, TOGETHER, TIES, WORLDS } world;
static const char *const method_names[] = {"full", "quest", "fier"}, *const world_names[] = {"scattered", "together",
                                                                                             "ties"};

static comm *c;
static backend *be;
static float *keys, *values, *queries; /* [TOKENS][KV][DIM] twice, [QUERIES][HEADS][DIM] */
static size_t sent;                    /* bytes that this rank gave since the last query */

static void must(status st, const err *e)
{
    if (st == ST_OK) return;
    printf("Bail out! %s\n", e->msg);
    exit(comm_close(c, 1));
}

static buf room(size_t bytes)
{
    buf b;
    err e = {0};
    must(be->ops->alloc(be, &b, bytes, "test", &e), &e);
    return b;
}

static void gather(void *out, const void *in, size_t bytes)
{
    err e = {0};
    sent += bytes;
    must(comm_all_gather(c, out, in, bytes, &e), &e);
}

static void sum(float *x, size_t n)
{
    err e = {0};
    sent += n * sizeof *x;
    must(comm_all_reduce(c, x, n, &e), &e);
}

/* ---- data, the same on every rank ---- */

static float normal(rng *r)
{
    return sqrtf(-2 * logf(1 - rng_float(r))) * cosf(6.2831853f * rng_float(r));
}

static void make_world(world w)
{
    rng r = {91 + (uint64_t)w};
    for (size_t i = 0; i < QUERIES * ROWS; i++) queries[i] = normal(&r);
    for (size_t i = 0; i < TOKENS * KV * DIM; i++) {
        keys[i] = w == TIES ? floorf(3 * rng_float(&r)) - 1 : normal(&r);
        values[i] = normal(&r);
    }
    /* 600 tokens with a part of the first query heads in them */
    for (size_t t = 300; t < 900 && w == TOGETHER; t++)
        for (size_t i = 0; i < KV * DIM; i++)
            keys[t * KV * DIM + i] +=
                1.5f * queries[(t % QUERIES * HEADS + i / DIM * (HEADS / KV)) * DIM + i % DIM] * rng_float(&r);
    /* Sharp ones: the best 256 tokens have most of the weight. */
    for (size_t i = 0; i < QUERIES * ROWS; i++) queries[i] = w == TIES ? floorf(3 * rng_float(&r)) - 1 : 6 * queries[i];
}

/* ---- what a rank holds ---- */

/* Rows of the positions [at, at + n), their index and work space, n_lists one a kv head. */
typedef struct {
    int64_t at, n;
    bool last; /* holds the newest token */
    kv_rows rows;
    quest_index pages;
    fier_index bits;
    buf q, score, list, idx, range, out, lse;
} shard;

static void fill_rows(shard *s)
{
    const backend_ops *o = be->ops;
    size_t n = (size_t)s->n;
    buf k = {(unsigned char *)(keys + s->at * KV * DIM)}, v = {(unsigned char *)(values + s->at * KV * DIM)};
    o->kv_write(be, &(kv_write_job){&s->rows, 0, (buf){NULL}, 1, k, v, n}, 1);
    o->quest->add(be, &(index_add_job){&s->pages, 0, k, n}, 1);
    o->fier->add(be, &(index_add_job){&s->bits, 0, k, n}, 1);
}

/* Positions at multiples of GROUP, so that pages and groups are those of one rank. */
static shard make_shard(int rank, int size)
{
    int64_t part = (TOKENS + size - 1) / size, step = (part + GROUP - 1) / GROUP * GROUP;
    shard s = {.at = rank * step < TOKENS ? rank * step : TOKENS};
    s.n = TOKENS - s.at < step ? TOKENS - s.at : step;
    s.last = s.n > 0 && s.at + s.n == TOKENS;
    size_t n = (size_t)s.n + 1, row = 2 * KV * DIM;
    s.rows =
        (kv_rows){.k = room(n * row), .v = room(n * row), .type = DT_F16, .n_kv_heads = KV, .head_dim = DIM, .cap = n};
    s.pages = (quest_index){.type = DT_F16, .n_kv_heads = KV, .head_dim = DIM, .cap = n / PAGE + 1, .page = PAGE};
    s.pages.bound = room((n / PAGE + 1) * 2 * row);
    s.bits = (fier_index){.type = DT_F16, .n_kv_heads = KV, .head_dim = DIM, .cap = n, .group = GROUP};
    s.bits.bits = room(KV * (n / 32 + 1) * fier_words(DIM) * 128);
    s.bits.levels = room((n / GROUP + 1) * 2 * row);
    s.bits.ring = room(GROUP * row);
    s.q = room(4 * ROWS);
    s.score = room(4 * HEADS * (n + 1));
    s.list = room(4 * KV * (n + 1));
    s.idx = room(4 * KV * n), s.range = room(16 * KV);
    s.out = room(4 * ROWS), s.lse = room(4 * HEADS);
    fill_rows(&s);
    return s;
}

static void drop_shard(shard *s)
{
    size_t n = s->rows.cap, row = 2 * KV * DIM;
    const struct {
        buf b;
        size_t bytes;
    } all[] = {{s->rows.k, n * row},
               {s->rows.v, n * row},
               {s->pages.bound, (n / PAGE + 1) * 2 * row},
               {s->bits.bits, KV * (n / 32 + 1) * fier_words(DIM) * 128},
               {s->bits.levels, (n / GROUP + 1) * 2 * row},
               {s->bits.ring, GROUP * row},
               {s->q, 4 * ROWS},
               {s->score, 4 * HEADS * (n + 1)},
               {s->list, 4 * KV * (n + 1)},
               {s->idx, 4 * KV * n},
               {s->range, 16 * KV},
               {s->out, 4 * ROWS},
               {s->lse, 4 * HEADS}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) be->ops->free(be, all[i].b, all[i].bytes);
}

static int64_t granule(method m)
{
    return m == QUEST ? PAGE : 1;
}

/* Items that compete: all but the newest one, which is attended whatever its score. */
static int64_t candidates(const shard *s, method m)
{
    return (s->n + granule(m) - 1) / granule(m) - (s->last ? 1 : 0);
}

/* ---- scores ---- */

static double lse_of(const float *x, int64_t n)
{
    double most = -(double)INFINITY, total = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, (double)SCALE * (double)x[i]);
    for (int64_t i = 0; i < n; i++) total += exp((double)SCALE * (double)x[i] - most);
    return n > 0 ? most + log(total) : most;
}

/* A vote is a softmax over the candidates of all ranks. Each head's scores are lowered by the log of the sum over all
 * ranks, and by 40 more, and one candidate of 0 is added, beyond those that are chosen from: the op's own sum is then 1
 * on every rank, and equal scores get equal votes whichever rank has them. */
static void share_sums(const shard *s, int64_t n, size_t stride)
{
    float *x = (float *)(void *)s->score.p;
    double own[HEADS], all[MOST_RANKS][HEADS];
    for (size_t h = 0; h < HEADS; h++) own[h] = lse_of(x + h * stride, n);
    gather(all, own, sizeof own);
    for (size_t h = 0; h < HEADS; h++) {
        double total = 0;
        for (int r = 0; r < c->size; r++) total += exp(all[r][h]);
        float by = (float)((log(total) + 40) / (double)SCALE);
        for (int64_t i = 0; i < n; i++) x[h * stride + (size_t)i] -= by;
        x[h * stride + (size_t)n] = 0;
    }
}

/* Combined scores of the candidates in s->list, [KV][stride]. */
static size_t score(const shard *s, method m, gqa_mode mode, const float *q, bool alone)
{
    const backend_ops *o = be->ops;
    int64_t n = candidates(s, m), more = mode == GQA_VOTE && !alone;
    size_t stride = (size_t)n + 1;
    const score_job j = {.index = m == QUEST ? (const void *)&s->pages : &s->bits,
                         .q = s->q,
                         .n_heads = HEADS,
                         .score = s->score,
                         .stride = stride,
                         .items = {s->n, 0, n}};
    o->upload(be, s->q, q, 4 * ROWS);
    if (m == QUEST) o->quest->score(be, &j, 1);
    else o->fier->score(be, &j, 1);
    if (more) share_sums(s, n, stride);
    const combine_job all = {.out = s->list,
                             .in = s->score,
                             .stride = stride,
                             .n_heads = HEADS,
                             .n_lists = KV,
                             .hi = n + more,
                             .mode = mode,
                             .scale = SCALE};
    o->select->combine(be, &all, 1);
    return stride;
}

/* ---- how many each rank takes ---- */

/* Larger for larger scores; equal for equal ones, both zeros, and NaN like -INFINITY (ops_select.h). */
static uint32_t key_of(float x)
{
    uint32_t u;
    if (isnan(x)) x = -INFINITY;
    if (x == 0) x = 0;
    memcpy(&u, &x, sizeof u);
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* One round: of the keys that begin as *prefix does, the next eight bits of the one with `left` keys above or at it. */
static void narrow(const float *list, int64_t n, size_t stride, int round, uint32_t prefix[KV], int64_t left[KV])
{
    static float counts[KV][BINS];
    int shift = 24 - 8 * round;
    memset(counts, 0, sizeof counts);
    for (size_t l = 0; l < KV; l++)
        for (int64_t i = 0; i < n; i++) {
            uint32_t key = key_of(list[l * stride + (size_t)i]);
            if (round == 0 || key >> (shift + 8) == prefix[l]) counts[l][key >> shift & 255]++;
        }
    sum(&counts[0][0], KV * BINS);
    for (size_t l = 0; l < KV; l++) {
        int bin = BINS - 1;
        for (; bin > 0 && (int64_t)counts[l][bin] < left[l]; bin--) left[l] -= (int64_t)counts[l][bin];
        prefix[l] = prefix[l] << 8 | (uint32_t)bin;
    }
}

/* take[l]: items of this rank among the k best of all ranks. */
static void by_threshold(const float *list, int64_t n, size_t stride, int64_t k, int64_t take[KV])
{
    uint32_t prefix[KV] = {0};
    int64_t left[KV], equal[KV] = {0}, all[MOST_RANKS][KV];
    for (size_t l = 0; l < KV; l++) left[l] = k;
    for (int round = 0; round < ROUNDS; round++) narrow(list, n, stride, round, prefix, left);
    for (size_t l = 0; l < KV; l++) {
        take[l] = 0;
        for (int64_t i = 0; i < n; i++) {
            uint32_t key = key_of(list[l * stride + (size_t)i]);
            take[l] += key > prefix[l];
            equal[l] += key == prefix[l];
        }
    }
    gather(all, equal, sizeof equal);
    for (size_t l = 0; l < KV; l++) {
        for (int r = 0; r < c->rank; r++) left[l] -= all[r][l]; /* the lower positions first */
        int64_t more = left[l] < equal[l] ? left[l] : equal[l];
        take[l] += more > 0 ? more : 0;
    }
}

static int falling(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The k largest keys of a list, falling; 0, which no score has, behind them where there are fewer. */
static void best_keys(const float *x, int64_t n, int64_t k, uint32_t *out)
{
    static uint32_t key[TOKENS];
    for (int64_t i = 0; i < n; i++) key[i] = key_of(x[i]);
    qsort(key, (size_t)n, sizeof *key, falling);
    for (int64_t i = 0; i < k; i++) out[i] = i < n ? key[i] : 0;
}

static void by_candidates(const float *list, int64_t n, size_t stride, int64_t k, int64_t take[KV])
{
    static uint32_t own[KV * MOST_K], all[MOST_RANKS * KV * MOST_K], one[MOST_RANKS * MOST_K];
    for (size_t l = 0; l < KV; l++) best_keys(list + l * stride, n, k, own + l * (size_t)k);
    gather(all, own, KV * (size_t)k * sizeof *own);
    for (size_t l = 0; l < KV; l++) {
        int64_t most = c->size * k, left = k;
        for (int64_t i = 0; i < most; i++) one[i] = all[(i / k * KV + (int64_t)l) * k + i % k];
        qsort(one, (size_t)most, sizeof *one, falling);
        uint32_t last = one[k - 1];
        for (int64_t i = 0; i < most; i++) left -= one[i] > last;
        for (int64_t i = 0; i < c->rank * k; i++) left -= all[(i / k * KV + (int64_t)l) * k + i % k] == last;
        take[l] = 0;
        for (int64_t i = 0; i < k; i++) {
            uint32_t key = own[(int64_t)l * k + i];
            take[l] += key > last || (key == last && left-- > 0);
        }
    }
}

/* ---- a step ---- */

static void choose(const shard *s, method m, size_t stride, const int64_t take[KV])
{
    int64_t tail = candidates(s, m);
    choose_job j[KV];
    for (size_t l = 0; l < KV; l++)
        j[l] = (choose_job){.score = buf_at(s->list, 4 * l * stride),
                            .n_lists = 1,
                            .stride = stride,
                            .items = {s->n, 0, tail},
                            .tail = tail,
                            .k = take[l],
                            .granule = granule(m),
                            .most = tail + 1,
                            .idx_stride = (int64_t)s->rows.cap,
                            .idx = buf_at(s->idx, 4 * l * s->rows.cap),
                            .range = buf_at(s->range, 16 * l)};
    be->ops->select->choose(be, j, KV);
}

/* Attention over what was chosen, or over all rows. */
static void attend(const shard *s, bool listed, const float *q)
{
    int64_t all[2 * KV] = {0, s->n, 0, s->n};
    attn_job j = {.q = s->q,
                  .out = s->out,
                  .lse = s->lse,
                  .n_tok = 1,
                  .n_heads = HEADS,
                  .rows = s->rows,
                  .range = s->range,
                  .n_lists = KV,
                  .idx_stride = s->rows.cap,
                  .n_max = s->n,
                  .scale = SCALE};
    be->ops->upload(be, s->q, q, 4 * ROWS);
    if (listed) j.idx = s->idx;
    else be->ops->upload(be, s->range, all, sizeof all);
    be->ops->attn_decode(be, &j, 1);
}

/* Outputs of all ranks become one: out [ROWS]. */
static void merge(const shard *s, float *out)
{
    static float part[MOST_RANKS][ROWS + HEADS], one[ROWS + HEADS];
    size_t n = (size_t)c->size;
    buf parts = room(4 * n * ROWS), lses = room(4 * n * HEADS), whole = room(4 * ROWS);
    be->ops->download(be, one, s->out, 4 * ROWS);
    be->ops->download(be, one + ROWS, s->lse, 4 * HEADS);
    gather(part, one, sizeof one);
    for (size_t r = 0; r < n; r++) {
        be->ops->upload(be, buf_at(parts, 4 * r * ROWS), part[r], 4 * ROWS);
        be->ops->upload(be, buf_at(lses, 4 * r * HEADS), part[r] + ROWS, 4 * HEADS);
    }
    be->ops->attn_merge(be, whole, (buf){NULL}, parts, lses, n, HEADS, DIM);
    be->ops->download(be, out, whole, 4 * ROWS);
    be->ops->free(be, parts, 4 * n * ROWS);
    be->ops->free(be, lses, 4 * n * HEADS);
    be->ops->free(be, whole, 4 * ROWS);
}

/* The whole on one rank; k: items of a list. */
static void step_alone(const shard *s, method m, gqa_mode mode, const float *q, int64_t k, float *out)
{
    const int64_t take[KV] = {k, k};
    if (m != FULL) choose(s, m, score(s, m, mode, q, true), take);
    attend(s, m != FULL, q);
    be->ops->download(be, out, s->out, 4 * ROWS);
}

static void step_together(const shard *s, method m, gqa_mode mode, rule r, const float *q, int64_t k, float *out)
{
    int64_t take[KV];
    sent = 0;
    if (m != FULL) {
        size_t stride = score(s, m, mode, q, false);
        for (size_t l = 0; l < KV; l++) take[l] = k / c->size + (c->rank < k % c->size);
        if (r == THRESHOLD) by_threshold((float *)(void *)s->list.p, candidates(s, m), stride, k, take);
        if (r == CANDIDATES) by_candidates((float *)(void *)s->list.p, candidates(s, m), stride, k, take);
        choose(s, m, stride, take);
    }
    attend(s, m != FULL, q);
    merge(s, out);
}

/* ---- comparison ---- */

/* Marks of the positions that a list holds. */
static int64_t mark(const shard *s, size_t l, unsigned char *at)
{
    const int64_t *range = (int64_t *)(void *)s->range.p;
    const int32_t *idx = (int32_t *)(void *)s->idx.p;
    memset(at, 0, TOKENS);
    for (int64_t i = 0; i < range[2 * l + 1]; i++) at[s->at + idx[l * s->rows.cap + (size_t)i]] = 1;
    return range[2 * l + 1];
}

/* How many of the positions that one rank would choose are chosen by the ranks together; *n: how many there are, *same:
 * nothing else is. */
static int64_t found_of(const shard *own, const shard *whole, int64_t *n, bool *same)
{
    static unsigned char mine[TOKENS], want[TOKENS], all[MOST_RANKS][TOKENS];
    int64_t hits = 0;
    err e = {0};
    *n = 0;
    *same = true;
    for (size_t l = 0; l < KV; l++) {
        mark(own, l, mine);
        *n += mark(whole, l, want);
        must(comm_all_gather(c, all, mine, sizeof mine, &e), &e);
        for (int t = 0; t < TOKENS; t++) {
            int times = 0;
            for (int r = 0; r < c->size; r++) times += all[r][t];
            hits += want[t] && times;
            *same &= times == want[t];
        }
    }
    return hits;
}

static double error_of(const float *x, const float *want)
{
    double num = 0, den = 0;
    for (int i = 0; i < ROWS; i++) {
        num += pow((double)x[i] - (double)want[i], 2);
        den += pow((double)want[i], 2);
    }
    return sqrt(num / den);
}

static bool everywhere(bool good)
{
    float bad = good ? 0 : 1;
    err e = {0};
    must(comm_all_reduce(c, &bad, 1, &e), &e);
    return bad == 0;
}

/* What a rule does to the queries of a world. */
typedef struct {
    double found, error,
        from_full; /* share of one rank's choice; L2 error of the output beside one rank's, and full's */
    bool same;
    size_t sent;
} verdict;

static verdict compare(const shard *own, const shard *whole, method m, gqa_mode mode, rule r, int64_t k)
{
    verdict v = {.same = true};
    float want[ROWS], got[ROWS], full[ROWS];
    int64_t hits = 0, n = 0;
    for (size_t i = 0; i < QUERIES; i++) {
        const float *q = queries + i * ROWS;
        step_alone(whole, FULL, mode, q, 0, full);
        step_alone(whole, m, mode, q, k, want);
        step_together(own, m, mode, r, q, k, got);
        v.sent = sent;
        v.error = fmax(v.error, error_of(got, want));
        v.from_full += error_of(got, full) / QUERIES;
        if (m == FULL) continue;
        bool same;
        int64_t some;
        hits += found_of(own, whole, &some, &same);
        n += some;
        v.same &= same;
    }
    v.found = n > 0 ? (double)hits / (double)n : 1;
    return v;
}

static void check_method(const shard *own, const shard *whole, world w, method m, gqa_mode mode)
{
    int64_t k = m == QUEST ? 15 : 255; /* and the newest page or token: 256 */
    const char *how = mode == GQA_VOTE ? "vote" : "max_s";
    verdict t = compare(own, whole, m, mode, THRESHOLD, k), b = compare(own, whole, m, mode, CANDIDATES, k),
            p = compare(own, whole, m, mode, QUOTAS, k);
    /* Votes are to 1e-6: of scores that are nearer than that either may win (ops_select.h). */
    bool close = mode == GQA_VOTE && t.found > 0.999;
    ok(everywhere(t.same || close), "%d ranks, %s, %s, %s: the ranks' choice is that of one rank (%.4f found)", c->size,
       method_names[m], how, world_names[w], t.found);
    ok(everywhere(t.error < (t.same ? 1e-5 : 0.05)), "%d ranks, %s, %s, %s: and so is the output (error %.1e)", c->size,
       method_names[m], how, world_names[w], t.error);
    ok(everywhere(b.found == t.found && b.error == t.error && b.same == t.same),
       "%d ranks, %s, %s, %s: candidates choose what the threshold does", c->size, method_names[m], how,
       world_names[w]);
    ok(everywhere(p.found <= 1 && (c->size > 1 || p.same)), "%d ranks, %s, %s, %s: quotas find %.3f of it", c->size,
       method_names[m], how, world_names[w], p.found);
    printf("# %-9s %-5s %-5s ranks %d: sent %zu, %zu, %zu bytes; quotas: found %.3f, error %.3f; error to full: one "
           "rank %.3f, "
           "quotas %.3f\n",
           world_names[w], method_names[m], how, c->size, t.sent, b.sent, p.sent, p.found, p.error, t.from_full,
           p.from_full);
    if (w == TOGETHER && c->size > 1) ok(p.found < 0.9 && p.found > 0.1, "quotas miss what lies together");
}

static void test_world(world w)
{
    make_world(w);
    shard own = make_shard(c->rank, c->size), whole = make_shard(0, 1);
    verdict full = compare(&own, &whole, FULL, GQA_MAX_S, THRESHOLD, 0);
    ok(everywhere(full.error < 1e-5), "%d ranks, full, %s: the merged output is that of one rank (error %.1e)", c->size,
       world_names[w], full.error);
    for (method m = QUEST; m <= FIER; m++) {
        check_method(&own, &whole, w, m, GQA_MAX_S);
        check_method(&own, &whole, w, m, GQA_VOTE);
    }
    drop_shard(&own);
    drop_shard(&whole);
}

int main(void)
{
    err e = {0};
    if (comm_open(&c, &e) != ST_OK) {
        is_ok(e.code, &e, "the ranks open");
        return tap_done();
    }
    if (c->rank && !freopen("/dev/null", "w", stdout)) return comm_close(c, 1);
    const backend_options o = {.device = "cpu", .n_threads = 1};
    must(c->size <= MOST_RANKS ? ST_OK : err_set(&e, ST_USAGE, "at most %d ranks", MOST_RANKS), &e);
    must(backend_open(&be, &o, &e), &e);
    must(MEM_NEW(&keys, TOKENS * KV * DIM, &e), &e);
    must(MEM_NEW(&values, TOKENS * KV * DIM, &e), &e);
    must(MEM_NEW(&queries, QUERIES * ROWS, &e), &e);
    for (world w = SCATTERED; w < WORLDS; w++) test_world(w);
    is_ok(backend_fault(be, &e), &e, "no fault");
    mem_free(keys), mem_free(values), mem_free(queries);
    backend_close(be);
    return comm_close(c, tap_done());
}
