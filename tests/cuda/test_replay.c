/* SPDX-License-Identifier: MIT */
/* Numbers known to the host are arguments of ops. A step that runs through the updated graph of an earlier one with
 * other counts gives the bits of a freshly captured one. A list of jobs gives the bits of single jobs. */
/* Builds: shim race */
#include "config.h"

#include "kernels/ops_block.h"
#include "kernels/ops_cluster.h"
#include "kernels/ops_codes.h"
#include "kernels/ops_evict.h"
#include "kernels/ops_fier.h"
#include "kernels/ops_kmeans.h"
#include "kernels/ops_lsh.h"
#include "kernels/ops_pq.h"
#include "kernels/ops_quest.h"
#include "kernels/ops_token.h"
#include "tests/cuda/cuda_util.h"

enum { DIM = 32, KV = 2, HEADS = 4, CAP = 600, PAGE = 16, PAGES = (CAP + PAGE - 1) / PAGE, GROUP = 8, JOBS = 3 };
enum { WORDS = (CAP + 31) / 32 * 32, LEVELS = (CAP + GROUP - 1) / GROUP * 2 * DIM, STRIDE = CAP, BUDGET = 40 };
enum { SUBS = 2, SUB_BITS = 3, CLUSTERS = 10, EACH = 5, COPIES = 40, RUN = DIM / 2, RUNS = 2 };

enum { RING_OF = 90, BAND = 64, SIZE = 8, BLOCKS = CAP / SIZE, FAR = 8 * STRIDE, TABLES = 6, SIDES = 3 };

/* Buffers of each job and their bytes: keys, queries, indexes, scores, combined scores, lists. */
#define OF_A_JOB(X)                                                                                                    \
    X(K, 4 * CAP * KV * DIM)                                                                                           \
    X(Q, 4 * HEADS * DIM)                                                                                              \
    X(BOUND, 4 * KV * PAGES * 2 * DIM)                                                                                 \
    X(BITS, 4 * KV * WORDS)                                                                                            \
    X(LEVEL, 4 * KV * LEVELS)                                                                                          \
    X(RING, 4 * KV * GROUP * DIM)                                                                                      \
    X(SCORE, 4 * HEADS * STRIDE)                                                                                       \
    X(VOTES, 4 * KV * STRIDE)                                                                                          \
    X(RAW, 4 * HEADS * STRIDE)                                                                                         \
    X(MEAN, 4 * KV * STRIDE)                                                                                           \
    X(IDX, 4 * KV * STRIDE)                                                                                            \
    X(RANGE, 16 * KV)                                                                                                  \
    X(LIST, 4 * KV * STRIDE)                                                                                           \
    X(SPAN, 16 * KV)                                                                                                   \
    X(SUB, KV *CAP *SUBS)                                                                                              \
    X(SUB_SCORE, 4 * HEADS * STRIDE)                                                                                   \
    X(MEMBERS, 4 * KV * STRIDE)                                                                                        \
    X(N_MEMBERS, 16 * KV)                                                                                              \
    X(REST_OF, 4 * KV * CLUSTERS)                                                                                      \
    X(N_REST, 16 * KV)                                                                                                 \
    X(SIZES, 4 * HEADS * CLUSTERS)                                                                                     \
    X(ORDER, 4 * KV * STRIDE)                                                                                          \
    X(TAKEN_ONES, 4 * KV * ((CAP + 31) / 32))

/* Buffers of all jobs: counts that ops make, kept rows, blocks, tables, quantized rows, clusters. */
#define OF_ALL(X)                                                                                                      \
    X(THETA, 8)                                                                                                        \
    X(SUMS, 16)                                                                                                        \
    X(COUNT, 8)                                                                                                        \
    X(POOL, 8)                                                                                                         \
    X(TAKEN, 8)                                                                                                        \
    X(TOTAL, 8)                                                                                                        \
    X(AT, 4 * KV * STRIDE)                                                                                             \
    X(SLOT, 4 * KV * STRIDE)                                                                                           \
    X(KEPT, 16 * KV)                                                                                                   \
    X(SEEN, 8 * KV)                                                                                                    \
    X(READ, 8 * READ_KINDS)                                                                                            \
    X(SLOTS, 8 * KV * CAP)                                                                                             \
    X(MASS, 4 * HEADS * RING_OF)                                                                                       \
    X(REP, 4 * BLOCKS * HEADS * DIM)                                                                                   \
    X(LIKE, 4 * BLOCKS)                                                                                                \
    X(FAR_AT, 16 + 4 * FAR)                                                                                            \
    X(NO_FAR, 16 + 4 * FAR)                                                                                            \
    X(NORM, 4 * KV * CAP)                                                                                              \
    X(BUCKET, 4 * KV * TABLES * ((1 << SIDES) + 1))                                                                    \
    X(ENTRY, 4 * KV * TABLES * CAP)                                                                                    \
    X(CODE, 2 * TABLES * CAP)                                                                                          \
    X(HITS, HEADS *((CAP + 31) / 32 * 32))                                                                             \
    X(SAMPLE, 4 * HEADS * CAP)                                                                                         \
    X(BIAS, 4 * HEADS * CAP)                                                                                           \
    X(SAMPLES, 16 * HEADS)                                                                                             \
    X(WORD, (2 * KV * DIM) << SUB_BITS)                                                                                \
    X(PROBE, 4 * HEADS * DIM)                                                                                          \
    X(STATE, 8 * TOKEN_STATE)                                                                                          \
    X(PRODUCTS, 4 * HEADS * STRIDE)                                                                                    \
    X(HELD, 4 * STRIDE)                                                                                                \
    X(COPY_K, 4 * KV * COPIES * DIM)                                                                                   \
    X(COPY_V, 4 * KV * COPIES * DIM)                                                                                   \
    X(CODE_K, KV *CAP *DIM / 4)                                                                                        \
    X(CODE_V, KV *CAP *DIM / 4)                                                                                        \
    X(PAIR_K, 4 * KV * CAP * RUNS)                                                                                     \
    X(PAIR_V, 4 * KV * CAP * RUNS)                                                                                     \
    X(HALF_K, 2 * KV * CAP * DIM)                                                                                      \
    X(HALF_V, 2 * KV * CAP * DIM)                                                                                      \
    X(LESS, 4 * KV * DIM)                                                                                              \
    X(CENTER, 4 * KV * EACH * DIM)                                                                                     \
    X(NEAREST, 4 * KV * CAP)                                                                                           \
    X(STARTS, 4 * KV * (CLUSTERS + 1))                                                                                 \
    X(MEMBER, 4 * KV * CAP)                                                                                            \
    X(MEAN_K, 4 * KV * CLUSTERS * DIM)                                                                                 \
    X(MEAN_V, 4 * KV * CLUSTERS * DIM)

#define BUFFER_NAME(name, bytes)  name,
#define BUFFER_BYTES(name, bytes) [name] = bytes,
enum { OF_A_JOB(BUFFER_NAME) PARTS };
enum { OF_ALL(BUFFER_NAME) REST };
static const size_t bytes_of[PARTS] = {OF_A_JOB(BUFFER_BYTES)}, rest_bytes[REST] = {OF_ALL(BUFFER_BYTES)};

typedef struct {
    backend *be;
    buf b[JOBS][PARTS], rest[REST];
} room;

static buf take_room(backend *be, size_t bytes)
{
    buf b;
    err e = {0};
    if (be->ops->alloc(be, &b, bytes, "test", &e) != ST_OK) {
        printf("Bail out! %s\n", e.msg);
        exit(1);
    }
    return b;
}

/* Lists of kept rows, with scores made by the steps. */
static kept_rows kept_of(const room *o)
{
    return (kept_rows){.at = o->rest[AT],
                       .slot = o->rest[SLOT],
                       .score = o->b[0][VOTES],
                       .range = o->rest[KEPT],
                       .seen = o->rest[SEEN],
                       .read = o->rest[READ],
                       .n_lists = KV,
                       .stride = STRIDE};
}

static void room_open(room *o)
{
    const int64_t pool = 2 * BUDGET;
    rng r = {91};
    o->be = open_cuda();
    for (int j = 0; j < JOBS; j++)
        for (int p = 0; p < PARTS; p++) {
            o->b[j][p] = take_room(o->be, bytes_of[p]);
            if (p > Q) continue;
            float *x = random_f32(&r, bytes_of[p] / 4);
            o->be->ops->upload(o->be, o->b[j][p], x, bytes_of[p]);
            free(x);
        }
    for (int p = 0; p < REST; p++) o->rest[p] = take_room(o->be, rest_bytes[p]);
    o->be->ops->upload(o->be, o->rest[POOL], &pool, sizeof pool);
    o->be->ops->convert(o->be, o->rest[WORD], DT_F16, o->b[0][K], DT_F32, rest_bytes[WORD] / 2);
    const kept_rows kept = kept_of(o);
    o->be->ops->evict->open(o->be, &kept);
}

static void room_close(room *o)
{
    for (int j = 0; j < JOBS; j++)
        for (int p = 0; p < PARTS; p++) o->be->ops->free(o->be, o->b[j][p], bytes_of[p]);
    for (int p = 0; p < REST; p++) o->be->ops->free(o->be, o->rest[p], rest_bytes[p]);
    backend_close(o->be);
}

/* Eviction from a list: tokens [from, to) are appended, some are removed. */
static void run_kept(room *o, int64_t from, int64_t to)
{
    const evict_ops *op = o->be->ops->evict;
    const kept_rows kept = kept_of(o);
    op->append(o->be, &kept, from, (size_t)(to - from), o->rest[SLOTS]);
    op->combine(o->be, kept.score, o->b[0][RAW], STRIDE, HEADS, KV, STRIDE, COMBINE_SUM);
    op->prune(o->be, &kept, to - 1, &(keep_rule){.band = 450, .budget = 60, .recent = 5});
}

/* Memory blocks of the tokens up to `to`: masses of the band, newly full blocks (sometimes none), scores, far
 * tokens. */
static void run_blocks(room *o, int64_t from, int64_t to)
{
    const block_ops *op = o->be->ops->block;
    int64_t band = to > BAND ? to - BAND : 0, block = from / SIZE;
    const block_index x = {o->rest[REP], DT_F32, HEADS, KV, DIM, BLOCKS, SIZE, 2, true};
    const kv_rows keys = {.k = o->b[0][K], .n_kv_heads = KV, .head_dim = DIM, .cap = CAP};
    const band_mass m = {o->rest[MASS], HEADS, RING_OF, o->rest[READ]};
    far_list far = {.from = to / 2,
                    .sinks = to / 20,
                    .pending = to - 9,
                    .end = to,
                    .size = SIZE,
                    .block = o->b[0][IDX],
                    .chosen = o->b[0][RANGE],
                    .idx = buf_at(o->rest[FAR_AT], 16),
                    .range = o->rest[FAR_AT],
                    .count = o->rest[TOTAL]};
    op->fold(o->be, &m, o->b[1][RAW], STRIDE, band, to - band, from);
    op->form(o->be, &x, &keys, &m, block, to / SIZE - block, block * SIZE);
    op->score(o->be, o->rest[LIKE], o->b[0][Q], &x, 0, (item_range){to, 1, to / SIZE}, o->rest[READ]);
    op->list(o->be, &far);
    far.chosen.p = NULL, far.idx = buf_at(o->rest[NO_FAR], 16), far.range = o->rest[NO_FAR];
    op->list(o->be, &far);
}

/* Hash tables of the tokens up to `to`; samples for the last ones. */
static void run_tables(room *o, int64_t to)
{
    const lsh_ops *op = o->be->ops->lsh;
    const kv_rows keys = {.k = o->b[0][K], .n_kv_heads = KV, .head_dim = DIM, .cap = CAP};
    const lsh_index x = {.plane = o->b[1][K],
                         .mean = o->b[1][Q],
                         .norm = o->rest[NORM],
                         .start = o->rest[BUCKET],
                         .entry = o->rest[ENTRY],
                         .n_kv_heads = KV,
                         .head_dim = DIM,
                         .cap = CAP,
                         .bits = SIDES,
                         .tables = TABLES};
    const lsh_job j = {.x = &x,
                       .rows = &keys,
                       .q = o->b[0][Q],
                       .n_heads = HEADS,
                       .range = {to / 4, to - to / 4},
                       .idx = o->rest[SAMPLE],
                       .bias = o->rest[BIAS],
                       .list = o->rest[SAMPLES],
                       .hits = o->rest[HITS],
                       .read = o->rest[READ]};
    op->build(o->be, &x, &keys, (slot_range){0, to}, o->rest[CODE]);
    op->collide(o->be, &j);
}

/* Product-quantized keys of every job. */
static void run_words(room *o, const int64_t *from, const int64_t *to, size_t at_once)
{
    pq_index words[JOBS];
    index_add_job add[JOBS];
    score_job score[JOBS];
    for (int j = 0; j < JOBS; j++) {
        const buf *b = o->b[j];
        words[j] = (pq_index){b[SUB], o->rest[WORD], DT_F32, KV, DIM, CAP, SUBS, SUB_BITS, 1};
        add[j] = (index_add_job){&words[j], from[j], buf_at(b[K], 4 * (size_t)from[j] * KV * DIM),
                                 (size_t)(to[j] - from[j])};
        score[j] = (score_job){.index = &words[j],
                               .q = b[Q],
                               .n_heads = HEADS,
                               .score = b[SUB_SCORE],
                               .stride = STRIDE,
                               .items = {to[j], 2, to[j] - 1},
                               .read = o->rest[READ]};
    }
    for (size_t j = 0; j < JOBS; j += at_once) {
        o->be->ops->pq->add(o->be, &add[j], at_once);
        o->be->ops->pq->score(o->be, &score[j], at_once);
    }
}

/* Products with the keys before `to`, where the query differs from that of the previous step; votes of neighbours;
 * copies of rows. */
static void run_tokens(room *o, int64_t to)
{
    const token_ops *op = o->be->ops->token;
    const kv_rows rows = {.k = o->b[0][K], .v = o->b[1][K], .n_kv_heads = KV, .head_dim = DIM, .cap = CAP},
                  copies = {
                      .k = o->rest[COPY_K], .v = o->rest[COPY_V], .n_kv_heads = KV, .head_dim = DIM, .cap = COPIES};
    const token_cache used = {o->rest[PROBE], o->rest[STATE], HEADS, DIM, 0.9f, 1};
    const token_score_job j = {.q = o->b[0][Q],
                               .n_heads = HEADS,
                               .rows = rows,
                               .lo = to / 9,
                               .hi = to,
                               .score = o->rest[PRODUCTS],
                               .stride = STRIDE,
                               .state = o->rest[STATE],
                               .read = o->rest[READ]};
    op->match(o->be, &used, j.q, j.lo, j.hi);
    op->score(o->be, &j);
    op->keep(o->be, o->rest[HELD], j.score, j.lo, j.hi, j.state);
    op->gather(o->be, &copies, &rows, o->b[0][IDX], 20 + to % 7, o->rest[READ]);
}

/* Rows named by lists are quantized, and converted to f16. */
static void run_demotion(room *o, int64_t from, int64_t to)
{
    const kv_rows rows = {.k = o->b[0][K], .v = o->b[1][K], .n_kv_heads = KV, .head_dim = DIM, .cap = CAP},
                  half = {.k = o->rest[HALF_K],
                          .v = o->rest[HALF_V],
                          .type = DT_F16,
                          .n_kv_heads = KV,
                          .head_dim = DIM,
                          .cap = CAP};
    const kv_rows coded = {.n_kv_heads = KV,
                           .head_dim = DIM,
                           .codes = {.bits = 2,
                                     .by_token = true,
                                     .cap = CAP,
                                     .group = 1,
                                     .run = RUN,
                                     .k = o->rest[CODE_K],
                                     .v = o->rest[CODE_V],
                                     .k_pair = o->rest[PAIR_K],
                                     .v_pair = o->rest[PAIR_V]}};
    demote_job j = {.to = &coded,
                    .from = &rows,
                    .slot = o->b[0][IDX],
                    .n_lists = KV,
                    .stride = STRIDE,
                    .first = (size_t)from,
                    .n = (size_t)(to - from)};
    o->be->ops->codes->demote(o->be, &j);
    j.to = &half, j.exact = true, j.n_lists = 1;
    o->be->ops->codes->demote(o->be, &j);
}

/* Clusters the tokens [from, to) after the existing clusters, and selects among all. */
static void run_clusters(room *o, int64_t from, int64_t to, size_t at_once)
{
    const kmeans_ops *means = o->be->ops->kmeans;
    const size_t n = (size_t)(to - from), before = from > 0 ? CLUSTERS - EACH : 0;
    const kv_rows rows = {.k = o->b[0][K], .v = o->b[1][K], .n_kv_heads = KV, .head_dim = DIM, .cap = CAP};
    const cluster_index x = {
        o->rest[STARTS],
        o->rest[MEMBER],
        CAP,
        {.k = o->rest[MEAN_K], .v = o->rest[MEAN_V], .n_kv_heads = KV, .head_dim = DIM, .cap = CLUSTERS}};
    const kmeans_job near = {.rows = &rows,
                             .first = from,
                             .n = n,
                             .parts = 1,
                             .count = EACH,
                             .cap = EACH,
                             .metric = KMEANS_DOT,
                             .less = o->rest[LESS],
                             .centroid = o->rest[CENTER],
                             .start = {from, 0, n, EACH, true},
                             .iters = 1,
                             .work = o->rest[NEAREST],
                             .code = o->rest[NEAREST],
                             .code_cap = CAP,
                             .wide = true};
    const cluster_fill fill = {&rows, from, n, o->rest[NEAREST], CAP, before, EACH};
    means->mean(o->be, near.less, &rows, from, n);
    means->train(o->be, &near, 1);
    means->assign(o->be, &near, 1);
    o->be->ops->cluster->fill(o->be, &x, &fill);
    cluster_choice c[JOBS];
    for (int j = 0; j < JOBS; j++) {
        const buf *b = o->b[j];
        c[j] = (cluster_choice){.x = &x,
                                .score = b[VOTES],
                                .stride = STRIDE,
                                .n = (int64_t)before + EACH - j,
                                .n_slots = to,
                                .k = to / 3 + 9 * j,
                                .most = 1 + j,
                                .head = j,
                                .idx = b[MEMBERS],
                                .range = b[N_MEMBERS],
                                .idx_stride = STRIDE,
                                .group = b[REST_OF],
                                .groups = b[N_REST],
                                .bias = b[SIZES],
                                .group_stride = CLUSTERS,
                                .n_heads = HEADS,
                                .key = b[ORDER],
                                .bits = b[TAKEN_ONES],
                                .read = o->rest[READ]};
    }
    for (size_t j = 0; j < JOBS; j += at_once) o->be->ops->cluster->choose(o->be, &c[j], at_once);
}

/* Runs every op with arguments known to the host on the new tokens [from[j], to[j]) of each job, `at_once` jobs per
 * call. */
static void run_ops(room *o, const int64_t *from, const int64_t *to, size_t at_once)
{
    backend *be = o->be;
    quest_index pages[JOBS];
    fier_index ones[JOBS];
    index_add_job add[2][JOBS];
    score_job score[2][JOBS];
    combine_job mean[JOBS];
    choose_job tokens[JOBS], whole[JOBS];
    for (int j = 0; j < JOBS; j++) {
        const buf *b = o->b[j];
        int64_t n = to[j], n_pages = (n + PAGE - 1) / PAGE;
        size_t new_keys = (size_t)(to[j] - from[j]);
        buf k = buf_at(b[K], 4 * (size_t)from[j] * KV * DIM);
        pages[j] = (quest_index){b[BOUND], DT_F32, KV, DIM, PAGES, PAGE, QUEST_SUM, {NULL}};
        ones[j] = (fier_index){.bits = b[BITS],
                               .levels = b[LEVEL],
                               .ring = b[RING],
                               .type = DT_F32,
                               .n_kv_heads = KV,
                               .head_dim = DIM,
                               .cap = CAP,
                               .group = GROUP};
        add[0][j] = (index_add_job){&pages[j], from[j], k, new_keys};
        add[1][j] = (index_add_job){&ones[j], from[j], k, new_keys};
        score[0][j] = (score_job){.index = &pages[j],
                                  .q = b[Q],
                                  .n_heads = HEADS,
                                  .score = b[RAW],
                                  .stride = STRIDE,
                                  .items = {n, 1, n_pages - 1}};
        score[1][j] = (score_job){.index = &ones[j],
                                  .q = b[Q],
                                  .n_heads = HEADS,
                                  .score = b[SCORE],
                                  .stride = STRIDE,
                                  .items = {n, 3, n - 1},
                                  .votes = b[VOTES],
                                  .scale = 0.25f};
        mean[j] = (combine_job){b[MEAN], b[RAW], STRIDE, HEADS, KV, 1, n_pages - 1, GQA_MEAN_S, 1};
        tokens[j] = (choose_job){.score = b[VOTES],
                                 .n_lists = KV,
                                 .stride = STRIDE,
                                 .items = {n, 3, n - 1},
                                 .head = 3,
                                 .tail = n - 1,
                                 .k = BUDGET + n % 7,
                                 .granule = 1,
                                 .most = CAP,
                                 .idx_stride = STRIDE,
                                 .idx = b[IDX],
                                 .range = b[RANGE]};
        whole[j] = tokens[j];
        whole[j].score = b[MEAN], whole[j].items = (item_range){n, 1, n_pages - 1}, whole[j].head = 1;
        whole[j].tail = n_pages - 1, whole[j].granule = PAGE, whole[j].first = n % 5, whole[j].budget = o->rest[TAKEN];
        whole[j].idx = b[LIST], whole[j].range = b[SPAN];
    }
    for (size_t j = 0; j < JOBS; j += at_once) {
        be->ops->quest->add(be, &add[0][j], at_once);
        be->ops->fier->add(be, &add[1][j], at_once);
        be->ops->quest->score(be, &score[0][j], at_once);
        be->ops->fier->score(be, &score[1][j], at_once);
        be->ops->select->combine(be, &mean[j], at_once);
    }
    const entropy_pool pool = {
        o->rest[THETA], o->rest[SUMS], o->rest[COUNT], o->rest[POOL], BUDGET / 2, 2 * BUDGET + to[0], 2};
    be->ops->block->take(be, &pool, 0, o->b[0][MEAN], whole[0].items, o->rest[TAKEN]);
    for (size_t j = 0; j < JOBS; j += at_once) {
        be->ops->select->choose(be, &tokens[j], at_once);
        be->ops->select->choose(be, &whole[j], at_once);
    }
    const bool chose[KV] = {to[0] % 2, true};
    be->ops->count_lists(be, o->rest[TOTAL], o->b[1][RANGE], KV, 1, chose);
    run_blocks(o, from[0], to[0]);
    run_kept(o, from[0], to[0]);
    run_tables(o, to[0]);
    run_words(o, from, to, at_once);
    run_tokens(o, to[0]);
    run_demotion(o, from[0], to[0]);
    run_clusters(o, from[0], to[0], at_once);
}

static bool same_rooms(const room *a, const room *b)
{
    bool same = true;
    for (int i = 0; i < JOBS * PARTS + REST; i++) {
        bool job = i < JOBS * PARTS;
        size_t bytes = job ? bytes_of[i % PARTS] : rest_bytes[i - JOBS * PARTS];
        unsigned char *x = xmalloc(bytes), *y = xmalloc(bytes);
        a->be->ops->download(a->be, x, job ? a->b[i / PARTS][i % PARTS] : a->rest[i - JOBS * PARTS], bytes);
        b->be->ops->download(b->be, y, job ? b->b[i / PARTS][i % PARTS] : b->rest[i - JOBS * PARTS], bytes);
        if (memcmp(x, y, bytes) != 0) {
            printf("# buffer %d of job %d differs\n", job ? i % PARTS : i - JOBS * PARTS, job ? i / PARTS : -1);
            same = false;
        }
        free(x), free(y);
    }
    return same;
}

static const int64_t none[JOBS], first[JOBS] = {70, 300, 41}, second[JOBS] = {71, 301, 42},
                                 third[JOBS] = {500, 302, 511}, fourth[JOBS] = {501, 303, 512};

static void test_replay(void)
{
    room a, b;
    room_open(&a), room_open(&b);
    run_ops(&a, none, first, JOBS), run_ops(&b, none, first, JOBS);
    a.be->ops->sync(a.be), b.be->ops->sync(b.be);
    long made = shim_count(SHIM_MADE);
    /* all have the same number of launches, and two graphs alternate; only the last run of b is a step */
    backend_step_begin(a.be), run_ops(&a, first, second, JOBS), backend_step_end(a.be);
    backend_step_begin(a.be), run_ops(&a, second, third, JOBS), backend_step_end(a.be);
    backend_step_begin(a.be), run_ops(&a, third, fourth, JOBS), backend_step_end(a.be);
    a.be->ops->sync(a.be);
    is_int(shim_count(SHIM_MADE) - made, 2, "%s, the third step runs through the first one's graph", where());
    run_ops(&b, first, second, JOBS), run_ops(&b, second, third, JOBS);
    backend_step_begin(b.be), run_ops(&b, third, fourth, JOBS), backend_step_end(b.be);
    ok(same_rooms(&a, &b), "%s, an updated graph: the bits of a newly captured step", where());
    err e = {0};
    is_ok(backend_fault(a.be, &e), &e, "%s, no fault", where());
    room_close(&a), room_close(&b);
}

static void test_lists(void)
{
    room a, b;
    room_open(&a), room_open(&b);
    run_ops(&a, none, first, JOBS), run_ops(&b, none, first, 1);
    run_ops(&a, first, third, JOBS), run_ops(&b, first, third, 1);
    ok(same_rooms(&a, &b), "%s, jobs in one call: the bits of jobs one by one", where());
    room_close(&a), room_close(&b);
}

int main(void)
{
    test_replay();
    test_lists();
    check_races();
    return tap_done();
}
