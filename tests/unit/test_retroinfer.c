/* SPDX-License-Identifier: MIT */
/* Clusters of tokens against scripts/fixtures/reference/retroinfer.py, what their means estimate, and ways back. */
/* Builds: shim race device */
#include "config.h"

#define T_HEADS 6
#define T_KV    2
#include "kernels/ops_cluster.h"
#include "tests/unit/attention_oracle.h"
#include "tests/unit/reference.h"

enum { BEGIN = 3, MORE = 5 }; /* slots before those of the fixture; clusters behind its */

/* ---- members and means ---- */

static kv_rows blank_rows(dtype type, size_t heads, size_t dim, size_t cap)
{
    size_t bytes = heads * dim * cap * dtype_size(type);
    return (kv_rows){
        .k = at(hold(bytes)), .v = at(hold(bytes)), .type = type, .n_kv_heads = heads, .head_dim = dim, .cap = cap};
}

static cluster_index index_of(const kv_rows *rows, size_t clusters)
{
    return (cluster_index){.start = at(hold(rows->n_kv_heads * (clusters + 1) * sizeof(int32_t))),
                           .member = at(hold(rows->n_kv_heads * rows->cap * sizeof(int32_t))),
                           .tokens = rows->cap,
                           .mean = blank_rows(rows->type, rows->n_kv_heads, rows->head_dim, clusters)};
}

static const int32_t *starts(const cluster_index *x, size_t head)
{
    return (const int32_t *)(const void *)x->start.p + head * (x->mean.cap + 1);
}

static const int32_t *members(const cluster_index *x, size_t head)
{
    return (const int32_t *)(const void *)x->member.p + head * x->tokens;
}

/* The tokens from `first` on are the members that code says of the clusters [from, from + count). */
static bool lists_are(const cluster_index *x, size_t head, const cluster_fill *j)
{
    const int32_t *code = (const int32_t *)(const void *)j->code.p + head * j->code_cap;
    int32_t at = starts(x, head)[j->from];
    bool good = true;
    for (size_t c = 0; c < j->count; c++) {
        good &= starts(x, head)[j->from + c] == at;
        for (size_t i = 0; i < j->n; i++)
            if (code[i] == (int32_t)c) good &= members(x, head)[at++] == (int32_t)(j->first + (int64_t)i);
    }
    return good && starts(x, head)[j->from + j->count] == at;
}

static bool means_are(const kv_rows *mean, bool value, const char *name)
{
    const float *want = floats("%s", name);
    size_t dim = mean->head_dim, clusters = tensor("%s", name)->shape[1];
    bool good = true;
    for (size_t i = 0; i < mean->n_kv_heads * clusters * dim; i++) {
        size_t row = i / dim / clusters * mean->cap + i / dim % clusters;
        uint16_t got;
        memcpy(&got, (value ? mean->v : mean->k).p + (row * dim + i % dim) * 2, 2);
        if (isnan(want[i])) good &= value ? got == 0 : isnan(f16_to_f32(got));
        else good &= got == f32_to_f16(want[i]);
    }
    return good;
}

/* The fixture's keys and values behind a few others. */
static kv_rows fixture_rows(void)
{
    const st_tensor *k = tensor("k"), *v = tensor("v");
    size_t n = k->shape[1], dim = k->shape[2];
    kv_rows rows = blank_rows(DT_F16, k->shape[0], dim, n + BEGIN);
    for (size_t h = 0; h < rows.n_kv_heads; h++) {
        memcpy(rows.k.p + (h * rows.cap + BEGIN) * dim * 2, k->data + h * n * dim * 2, n * dim * 2);
        memcpy(rows.v.p + (h * rows.cap + BEGIN) * dim * 2, v->data + h * n * dim * 2, n * dim * 2);
    }
    return rows;
}

static cluster_index fixture_clusters(backend *be, const kv_rows *rows, group *g)
{
    size_t n = rows->cap - BEGIN, clusters = tensor("mean_k")->shape[1];
    cluster_index x = index_of(rows, clusters + MORE);
    cluster_fill all = {rows, BEGIN, n, at(ints("code")), n, 0, clusters};
    x.tokens = rows->cap + n; /* some are members twice */
    x.member = at(hold(rows->n_kv_heads * x.tokens * sizeof(int32_t)));
    be->ops->cluster->fill(be, &x, &all);
    for (size_t h = 0; h < rows->n_kv_heads; h++)
        group_note(g, lists_are(&x, h, &all) && starts(&x, h)[clusters] == (int32_t)n, "members of head %zu", h);
    group_note(g, means_are(&x.mean, false, "mean_k") && means_are(&x.mean, true, "mean_v"), "means");
    int32_t code[2 * 7] = {4, 0, 0, 1, 3, 0, 4, 2, 2, 2, 2, 2, 2, 2};
    cluster_fill more = {rows, BEGIN + 20, 7, at(code), 7, clusters, MORE};
    be->ops->cluster->fill(be, &x, &more);
    for (size_t h = 0; h < rows->n_kv_heads; h++)
        group_note(g, lists_are(&x, h, &all) && lists_are(&x, h, &more), "members behind them, head %zu", h);
    return x;
}

/* ---- choice ---- */

/* The slots before `head`, and members of the clusters up to -1, ascending. */
static bool list_is(const cluster_choice *j, size_t head, const int32_t *best)
{
    const int32_t *got = (const int32_t *)(const void *)j->idx.p + head * j->idx_stride;
    const int64_t *range = (const int64_t *)(const void *)j->range.p + 2 * head;
    int64_t n = j->head;
    bool good = true;
    for (; *best >= 0; best++)
        for (int32_t i = starts(j->x, head)[*best]; i < starts(j->x, head)[*best + 1]; i++, n++) {
            bool there = false;
            for (int64_t t = j->head; t < range[1]; t++) there |= got[t] == members(j->x, head)[i];
            good &= there;
        }
    for (int64_t t = 0; t < range[1]; t++) good &= t < j->head ? got[t] == t : t == j->head || got[t] > got[t - 1];
    return good && range[0] == 0 && range[1] == n;
}

static bool rest_is(const cluster_choice *j, size_t head, const int32_t *left)
{
    const int64_t *groups = (const int64_t *)(const void *)j->groups.p + 2 * head;
    const int32_t *got = (const int32_t *)(const void *)j->group.p + head * j->group_stride;
    size_t per = j->n_heads / j->x->mean.n_kv_heads;
    int64_t n = 0;
    bool good = groups[0] == 0;
    for (; left[n] >= 0 && n < groups[1]; n++) {
        int32_t size = starts(j->x, head)[left[n] + 1] - starts(j->x, head)[left[n]];
        good &= got[n] == left[n];
        for (size_t h = head * per; h < (head + 1) * per; h++) {
            float bias = ((const float *)(const void *)j->bias.p)[h * j->group_stride + (size_t)n];
            good &= fabs((double)bias - log(size)) < 1e-6;
        }
    }
    return good && left[n] < 0 && groups[1] == n;
}

/* A choice among the first n clusters with room for everything. */
static cluster_choice choice_of(const cluster_index *x, int64_t n, size_t n_heads)
{
    size_t kv = x->mean.n_kv_heads, cap = x->mean.cap, words = cluster_words((int64_t)x->tokens);
    return (cluster_choice){.x = x,
                            .score = at(hold(kv * cap * sizeof(float))),
                            .stride = cap,
                            .n = n,
                            .n_slots = (int64_t)x->tokens,
                            .idx = at(hold(kv * (x->tokens + BEGIN) * sizeof(int32_t))),
                            .range = at(hold(kv * 2 * sizeof(int64_t))),
                            .idx_stride = x->tokens + BEGIN,
                            .group = at(hold(kv * cap * sizeof(int32_t))),
                            .groups = at(hold(kv * 2 * sizeof(int64_t))),
                            .bias = at(hold(n_heads * cap * sizeof(float))),
                            .group_stride = cap,
                            .n_heads = n_heads,
                            .key = at(hold(kv * cap * sizeof(uint32_t))),
                            .bits = at(hold(kv * words * sizeof(uint32_t))),
                            .read = at(hold(sizeof(uint64_t)))};
}

static void check_choices(backend *be, const cluster_index *x, group *g)
{
    static const int rooms[][2] = {{0, 0}, {9, 3}, {30, 20}, {45, 1}, {70, 5}};
    size_t clusters = tensor("score")->shape[1];
    cluster_choice jobs[5];
    for (size_t i = 0; i < 5; i++) {
        jobs[i] = choice_of(x, (int64_t)clusters, 4);
        jobs[i].k = rooms[i][0];
        jobs[i].most = rooms[i][1];
        jobs[i].head = i % 3 == 0 ? 0 : BEGIN;
        for (size_t h = 0; h < 2; h++)
            memcpy(jobs[i].score.p + h * jobs[i].stride * sizeof(float), floats("score") + h * clusters,
                   clusters * sizeof(float));
    }
    be->ops->cluster->choose(be, jobs, 5);
    for (size_t i = 0; i < 5; i++) {
        const cluster_choice *j = &jobs[i];
        uint64_t listed = 0;
        for (size_t h = 0; h < 2; h++) {
            char name[64];
            snprintf(name, sizeof name, "k%d.m%d.s0.%zu", rooms[i][0], rooms[i][1], h);
            group_note(g, list_is(j, h, ints("%s.best", name)), "%s: tokens", name);
            group_note(g, rest_is(j, h, ints("%s.left", name)), "%s: estimated", name);
            listed += (uint64_t)(((const int64_t *)(const void *)j->range.p)[2 * h + 1] - j->head);
        }
        group_note(g, *(const uint64_t *)(const void *)j->read.p == 4 * (2 * (clusters + 1) + listed), "bytes read");
    }
}

/* ---- estimates ---- */

/* Attention of queries q [heads][dim] over rows; over all of them, or those of a choice's groups. */
static void attend(backend *be, float *out, float *lse, const float *q, size_t heads, const kv_rows *rows,
                   const cluster_choice *c)
{
    int64_t pos = 1 << 20;
    attn_job j = {.q = at(q),
                  .out = at(out),
                  .lse = at(lse),
                  .n_tok = 1,
                  .n_heads = heads,
                  .rows = *rows,
                  .n_lists = rows->n_kv_heads,
                  .n_max = (int64_t)rows->cap,
                  .qpos = at(&pos),
                  .scale = 1};
    if (c) {
        j.range = c->groups;
        j.idx = c->group;
        j.idx_stride = j.bias_stride = c->group_stride;
        j.bias = c->bias;
        j.pseudo = true;
    }
    be->ops->attn_decode(be, &j, 1);
}

/* Everything left to estimates, each cluster being `size` tokens that follow each other, against full attention. */
static void estimate(backend *be, const kv_rows *rows, int32_t size, size_t heads, const float *q, float *out[2],
                     float *lse[2])
{
    size_t n = rows->cap, count = n / (size_t)size;
    int32_t *code = hold(rows->n_kv_heads * n * sizeof *code);
    for (size_t i = 0; i < rows->n_kv_heads * n; i++) code[i] = (int32_t)(i % n) / size;
    cluster_index x = index_of(rows, count);
    be->ops->cluster->fill(be, &x, &(cluster_fill){rows, 0, n, at(code), n, 0, count});
    cluster_choice j = choice_of(&x, (int64_t)count, heads);
    j.most = (int64_t)count;
    be->ops->cluster->choose(be, &j, 1);
    attend(be, out[0], lse[0], q, heads, rows, NULL);
    attend(be, out[1], lse[1], q, heads, &x.mean, &j);
}

/* One token a cluster: full attention. Equal keys: too, for sums of values are those of the clusters. */
static void test_exact(backend *be, const char *level)
{
    enum { N = 24, HEADS = 4, DIM = 16 };
    rng r = {5};
    for (int equal = 0; equal < 2; equal++) {
        kv_rows rows = blank_rows(DT_F32, 2, DIM, N);
        float *k = (float *)(void *)rows.k.p, *v = (float *)(void *)rows.v.p, q[HEADS * DIM];
        float *out[2] = {hold(HEADS * DIM * 4), hold(HEADS * DIM * 4)}, *lse[2] = {hold(HEADS * 4), hold(HEADS * 4)};
        for (int i = 0; i < 2 * N * DIM; i++) {
            k[i] = (float)(rng_next(&r) >> 40) / (1 << 23) - 1;
            v[i] = (float)(rng_next(&r) >> 40) / (1 << 23) - 1;
            if (equal) k[i] = k[i / (N * DIM) * N * DIM + i % DIM];
        }
        for (int i = 0; i < HEADS * DIM; i++) q[i] = (float)(rng_next(&r) >> 40) / (1 << 23) - 1;
        estimate(be, &rows, equal ? 4 : 1, HEADS, q, out, lse);
        ok(near(out[1], out[0], HEADS * DIM, 1e-5) && near(lse[1], lse[0], HEADS, 1e-5), "%s: estimates are exact: %s",
           level, equal ? "equal keys" : "one token a cluster");
    }
}

/* The example of doc/methods.md 7c: logits 1 and 3. */
static void test_worked(backend *be, const char *level)
{
    float k[] = {1, 0, 3, 0}, v[] = {1, 1, 2, 2}, q[] = {1, 0}, full[2], est[2], lse[2][1];
    kv_rows rows = {.k = at(k), .v = at(v), .type = DT_F32, .n_kv_heads = 1, .head_dim = 2, .cap = 2};
    estimate(be, &rows, 2, 1, q, (float *[]){full, est}, (float *[]){lse[0], lse[1]});
    ok(fabs(exp((double)lse[1][0]) - 14.778) < 1e-3 && fabs(exp((double)lse[0][0]) - 22.804) < 1e-3 &&
           fabs(exp((double)(lse[0][0] - lse[1][0])) - cosh(1)) < 1e-5,
       "%s, the example: masses", level);
    ok(est[0] == 1.5f && est[1] == 1.5f, "%s, the example: values", level);
}

/* ---- sequences ---- */

typedef float head_rows[T_HEADS][T_DIM];
enum { PROMPT = 57, STEPS = 20 };
#define SPEC "retroinfer:budget=28:sink=4:local=6:size=4:update=8"

static world w;
static head_rows want[STEPS][T_LAYERS], got[STEPS][T_LAYERS];

/* Back behind the prompt, over what two updates made; then into it, whose end makes all clusters again. */
static void test_back(rig *r, const char *name)
{
    err e = {0};
    attn_seq *s;
    if (!is_ok(rig_seq(r, &s, SPEC, DT_F16, T_MAX, &e), &e, "%s: created", name)) return;
    rig_prompt(r, &s, 1, PROMPT, 64, NULL);
    for (int i = 0; i < STEPS; i++) rig_decode(r, &s, 1, want[i]);
    is_ok(attn_seq_rewind(s, PROMPT + 3, &e), &e, "%s: back behind the prompt", name);
    for (int i = 3; i < STEPS; i++) rig_decode(r, &s, 1, got[i]);
    ok(memcmp(got[3], want[3], (STEPS - 3) * sizeof *got) == 0, "%s: the same steps again", name);
    is_ok(attn_seq_rewind(s, PROMPT - 20, &e), &e, "%s: back into the prompt", name);
    rig_prompt(r, &s, 1, 20, 7, NULL);
    for (int i = 0; i < STEPS; i++) rig_decode(r, &s, 1, got[i]);
    ok(memcmp(got, want, sizeof got) == 0, "%s: the same clusters again", name);
    attn_seq_free(s);
}

static void check_sequences(const char *device)
{
    err e = {0};
    rig r;
    if (!is_ok(rig_open(&r, device, &w, 64, &e), &e, "%s opened", device)) return;
    test_back(&r, device);
    rig_check_oom(&r, SPEC, 10);
    is_ok(backend_fault(r.be, &e), &e, "%s: no fault", device);
    rig_close(&r);
}

int main(void)
{
    if (no_device()) return 0;
    for (size_t i = 0; i <= N_ALL_LEVELS; i++) {
        const char *level = i ? ALL_LEVELS[i - 1] : "ref";
        backend *be = i ? open_level(level, 2) : open_ref();
        group g = {0};
        if (!be) continue;
        fixture_open("retroinfer");
        kv_rows rows = fixture_rows();
        cluster_index x = fixture_clusters(be, &rows, &g);
        group_end(&g, "clusters", level);
        g = (group){0};
        check_choices(be, &x, &g);
        group_end(&g, "choices", level);
        test_exact(be, level);
        test_worked(be, level);
        fixture_close();
        if (i) backend_close(be);
    }
    world_fill(&w, 17);
    for (int d = 0; d < N_METHOD_DEVICES; d++) check_sequences(METHOD_DEVICES[d]);
    check_races();
    return tap_done();
}
