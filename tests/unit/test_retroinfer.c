/* SPDX-License-Identifier: MIT */
/* RetroInfer: estimates by means of clusters, rewind. test_sequences.c has its outputs, test_ops_kmeans.c its ops. */
/* Builds: shim race device */
#include "config.h"

#define T_HEADS 6
#define T_KV    2
#include "kernels/ops_cluster.h"
#include "tests/unit/attention_oracle.h"
#include "tests/unit/reference.h"

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

/* A choice among the first n clusters with room for everything. */
static cluster_choice choice_of(const cluster_index *x, int64_t n, size_t n_heads)
{
    size_t kv = x->mean.n_kv_heads, cap = x->mean.cap, words = cluster_words((int64_t)x->tokens);
    return (cluster_choice){.x = x,
                            .score = at(hold(kv * cap * sizeof(float))),
                            .stride = cap,
                            .n = n,
                            .n_slots = (int64_t)x->tokens,
                            .idx = at(hold(kv * x->tokens * sizeof(int32_t))),
                            .range = at(hold(kv * 2 * sizeof(int64_t))),
                            .idx_stride = x->tokens,
                            .group = at(hold(kv * cap * sizeof(int32_t))),
                            .groups = at(hold(kv * 2 * sizeof(int64_t))),
                            .bias = at(hold(n_heads * cap * sizeof(float))),
                            .group_stride = cap,
                            .n_heads = n_heads,
                            .key = at(hold(kv * cap * sizeof(uint32_t))),
                            .bits = at(hold(kv * words * sizeof(uint32_t))),
                            .read = at(hold(sizeof(uint64_t)))};
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
        if (!be) continue;
        test_exact(be, level);
        test_worked(be, level);
        release_held();
        if (i) backend_close(be);
    }
    world_fill(&w, 17);
    for (int d = 0; d < N_METHOD_DEVICES; d++) check_sequences(METHOD_DEVICES[d]);
    check_races();
    return tap_done();
}
