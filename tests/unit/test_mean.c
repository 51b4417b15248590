/* SPDX-License-Identifier: MIT */
/* A family that only this test has: a block with recurrent state, two rotary embeddings, heads that are rotated in
 * part. Logits are those of scripts/fixtures/make_mean.py, however the tokens come. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/comm.h"
#include "model/block.h"
#include "model/decoder.h"
#include "model/session_file.h"
#include "tests/tap.h"

enum { N = 40, VOCAB = 64, HIDDEN = 32, MOST = 64 };

/* ---- the block: x += W mean(norm(x) of all tokens so far) ---- */

typedef struct {
    weight norm, out;
} mean_weights;

static status mean_visit(walk *k, const model_config *c, void *w)
{
    mean_weights *m = w;
    TRY(walk_norm(k, &m->norm, "input_layernorm.weight", (size_t)c->hidden));
    return walk_cols(k, &m->out, "mean.out.weight", (size_t)c->hidden, (size_t)c->hidden / k->ranks);
}

static size_t mean_scratch(const model_config *c, size_t rows)
{
    return rows * (size_t)c->hidden * sizeof(float);
}

/* The sum of all rows, then their number. */
static void mean_declare(state_decl *d, const model_config *c)
{
    state_add(d, (mem_decl){.name = "mean",
                            .kind = MEM_STATE,
                            .regions = 1,
                            .item = ((size_t)c->hidden + 1) * sizeof(float),
                            .cap = 1,
                            .used = 1});
}

static void mean_run(decoder *d, const attn_step *s, const block *b, size_t rows)
{
    const backend_ops *o = d->be->ops;
    const mean_weights *w = b->w;
    size_t cols = w->out.cols, first = cols * (size_t)backend_rank(d->be);
    buf room = decoder_scratch(d, b);
    const linear_job job = {d->xn, w->out, {.p = {NULL}}};
    const projection p = {.jobs = &job, .n_jobs = 1, .x = room, .n = rows, .exact = d->opt.exact, .into = d->x};
    float x[HIDDEN], sum[HIDDEN + 1];
    o->rmsnorm(d->be, d->xn, d->x, w->norm, rows, d->m->config.rms_eps);
    for (size_t i = 0; i < rows; i++) {
        buf state = recurrent_buf(d->states[s->flags & ATTN_PROMPT ? 0 : i], b, 0);
        o->download(d->be, x, buf_at(d->xn, i * sizeof x), sizeof x);
        o->download(d->be, sum, state, sizeof sum);
        sum[HIDDEN] += 1;
        for (size_t c = 0; c < HIDDEN; c++) x[c] = (sum[c] += x[c]) / sum[HIDDEN];
        o->upload(d->be, state, sum, sizeof sum);
        o->upload(d->be, buf_at(room, i * cols * sizeof *x), x + first, cols * sizeof *x);
    }
    o->project(d->be, &p);
}

static const block_kind block_mean = {"mean",     false,        sizeof(mean_weights), 0,
                                      mean_visit, mean_scratch, mean_declare,         mean_run};

static const block_kind *mixer(const model_config *c, int layer)
{
    (void)c;
    return layer % 2 ? &block_mean : &block_attention;
}

static const block_kind *ffn(const model_config *c, int layer)
{
    (void)c, (void)layer;
    return &block_swiglu;
}

static const model_family family = {
    "MeanForCausalLM",   "mean",         512,       0, WINDOW_BY_LAYER, .partial_rotary = true,
    .window_rope = true, .mixer = mixer, .ffn = ffn};

/* ---- sessions ---- */

typedef struct {
    backend *be;
    model *m;
    decoder *d;
    attn_spec spec;
    int32_t ids[N];
    float want[N][VOCAB], got[N][VOCAB];
} parts;

static status parts_open(parts *p, const char *device, comm *ranks, size_t chunk, err *e)
{
    backend_options bo = {.device = device, .n_threads = 1, .ranks = ranks};
    decoder_options opt = {.chunk = chunk, .max_batch = 2, .exact = true};
    attn_options ao = {.kv = kv_plain(DT_F32)};
    st_file *f;
    memset(p, 0, sizeof *p);
    TRY(st_open(&f, tap_path("tests/data/mean/expected.safetensors"), e));
    memcpy(p->ids, st_find(f, "input_ids")->data, sizeof p->ids);
    memcpy(p->want, st_find(f, "logits")->data, sizeof p->want);
    st_close(f);
    TRY(backend_open(&p->be, &bo, e));
    TRY(model_find(&p->m, tap_path("tests/data/mean"), &family, p->be, e));
    TRY(model_load(p->m, e));
    TRY(attn_spec_parse(&p->spec, "full", &ao, e));
    return decoder_create(&p->d, p->m, &opt, e);
}

static void parts_close(parts *p)
{
    decoder_free(p->d);
    model_close(p->m);
    backend_close(p->be);
}

static session *new_session(parts *p, int snapshots)
{
    err e = {0};
    session *s;
    session_size size = session_of(MOST);
    size.snapshots = snapshots;
    is_ok(session_create(&s, p->d, &p->spec, size, &e), &e, "a session");
    return s;
}

static void take(void *ctx, int64_t first, size_t n, const float *logits)
{
    parts *p = ctx;
    memcpy(p->got[first], logits, n * sizeof p->got[0]);
}

/* Feeds tokens [from, to) as a prompt that began at 0, and compares their logits. */
static void feed(parts *p, session *s, size_t from, size_t to, const char *what)
{
    err e = {0};
    prefill_options o = {.which = LOGITS_ALL, .rows = take, .ctx = p, .before = from};
    is_ok(session_prefill(&s, 1, p->ids + from, to - from, &o, &e), &e, "%s: prefill", what);
    is_near(p->got[from], p->want[from], (to - from) * VOCAB, 1e-10, "%s: logits %zu to %zu", what, from, to);
}

/* The same in decode steps. */
static void step(parts *p, session *s, size_t from, size_t to, const char *what)
{
    err e = {0};
    status st = ST_OK;
    for (size_t i = from; i < to && st == ST_OK; i++) st = session_decode(&s, 1, &p->ids[i], p->got[i], &e);
    is_ok(st, &e, "%s: steps", what);
    is_near(p->got[from], p->want[from], (to - from) * VOCAB, 1e-10, "%s: logits %zu to %zu", what, from, to);
}

static void test_rewind(parts *p)
{
    err e = {0};
    session *s = new_session(p, 1);
    feed(p, s, 0, 12, "before the snapshot");
    is_ok(session_snapshot(s, &e), &e, "snapshot");
    step(p, s, 12, 20, "after it");
    is_int(session_rewind(s, 15, &e), ST_UNSUPPORTED, "no way back to other tokens");
    ok(strstr(e.msg, "no snapshot") != NULL, "%s", e.msg);
    e = (err){0};
    is_ok(session_rewind(s, 12, &e), &e, "back to the snapshot");
    step(p, s, 12, N, "from the snapshot");
    is_ok(session_rewind(s, 0, &e), &e, "back to 0");
    feed(p, s, 0, N, "from 0");
    is_int(session_rewind(s, 12, NULL), ST_UNSUPPORTED, "the snapshot went with its tokens");
    session_free(s);
}

static void test_fork(parts *p)
{
    err e = {0};
    session *s = new_session(p, 0), *two[2] = {new_session(p, 0), new_session(p, 0)};
    session_file *c;
    session_notes none = {0};
    float logits[2][VOCAB];
    feed(p, s, 0, 16, "before the copy");
    is_int(session_snapshot(s, NULL), ST_UNSUPPORTED, "no room for snapshots");
    is_ok(session_keep(&c, s, &none, &e), &e, "copy");
    step(p, s, 16, 20, "the session continues");
    for (int i = 0; i < 2; i++) is_ok(session_load(two[i], c, &none, &e), &e, "given");
    step(p, two[0], 16, 20, "the first copy");
    step(p, two[1], 16, 18, "the second copy");
    const int32_t ids[2] = {p->ids[20], p->ids[18]};
    is_ok(session_decode(two, 2, ids, logits[0], &e), &e, "both in one step");
    is_near(logits[0], p->want[20], VOCAB, 1e-10, "logits of the first");
    is_near(logits[1], p->want[18], VOCAB, 1e-10, "logits of the second");
    session_file_close(c);
    session_free(s);
    session_free(two[0]);
    session_free(two[1]);
}

static void test_shared(parts *p)
{
    err e = {0};
    session *two[2] = {new_session(p, 0), new_session(p, 0)};
    prefill_options o = {.which = LOGITS_ALL, .rows = take, .ctx = p};
    is_ok(session_prefill(two, 2, p->ids, 20, &o, &e), &e, "one prompt of two sessions");
    for (int i = 0; i < 2; i++) step(p, two[i], 20, 24, "after a shared prompt");
    session_free(two[0]);
    session_free(two[1]);
}

/* Saves a session to a file, and the start of a prompt as the prefix cache does. */
static void test_files(parts *p)
{
    static const char path[] = "mean.session";
    err e = {0};
    session *s = new_session(p, 0), *t = new_session(p, 0);
    session_file *f = NULL;
    session_notes notes = {.ids = p->ids, .n_ids = 17};
    feed(p, s, 0, 16, "before saving");
    is_ok(session_save(s, path, &notes, &e), &e, "save");
    if (is_ok(session_file_open(&f, path, &e), &e, "open")) is_ok(session_load(t, f, &notes, &e), &e, "load");
    session_file_close(f);
    step(p, t, 16, N, "a loaded session");
    remove(path);
    prefill_options o = {.which = LOGITS_LAST, .after = N - 16};
    session_reset(s);
    is_ok(session_prefill(&s, 1, p->ids, 16, &o, &e), &e, "the start of a prompt");
    notes = (session_notes){.ids = p->ids, .n_ids = 17};
    if (is_ok(session_keep(&f, s, &notes, &e), &e, "kept as a prefix"))
        is_ok(session_load(t, f, &notes, &e), &e, "load");
    session_file_close(f);
    feed(p, t, 16, N, "after a cached prefix");
    session_free(s);
    session_free(t);
}

/* Layers are counted as the model has them, rows as those with keys and values are. */
static void test_layer_numbers(parts *p)
{
    err e = {0};
    char text[4096] = "", line[64];
    FILE *f = fmemopen(text, sizeof text, "w");
    float v[2 * HIDDEN * HIDDEN];
    attention_weights *w = p->m->blocks[4].w; /* layer 2, the second with keys and values */
    weight kept = w->v;
    session *s = new_session(p, 0);
    prefill_options o = {.which = LOGITS_LAST, .rows = take, .ctx = p};
    model_print_info(p->m, f);
    fclose(f);
    snprintf(line, sizeof line, "KV per token   %d bytes in f16\n",
             2 * 2 * p->m->config.n_kv_heads * p->m->config.head_dim * 2);
    ok(strstr(text, line) != NULL, "info: %s", line);
    for (size_t i = 0; i < kept.rows * kept.cols; i++) v[i] = i % kept.cols == 1 ? 3e38f : 0;
    w->v.p.p = (unsigned char *)v;
    is_err(session_prefill(&s, 1, p->ids, 5, &o, &e), &e, ST_FORMAT, "the values of layer 2 are not finite",
           "overflow");
    w->v = kept;
    session_free(s);
}

static void test_device(const char *device, size_t chunk)
{
    err e = {0};
    parts p;
    if (is_ok(parts_open(&p, device, NULL, chunk, &e), &e, "%s, chunk %zu", device, chunk)) {
        attn_spec streaming;
        attn_options ao = {.kv = kv_plain(DT_F32)};
        is_int(decoder_attn_shape(p.d)->n_layers, 2, "layers with keys and values");
        session *s = new_session(&p, 0);
        is_int((long long)session_state_bytes(s), 2 * (HIDDEN + 1) * 4, "bytes of state");
        step(&p, s, 0, N, "steps alone");
        session_free(s);
        is_ok(attn_spec_parse(&streaming, "streaming", &ao, &e), &e, "streaming");
        is_int(session_create(&s, p.d, &streaming, session_of(MOST), &e), ST_UNSUPPORTED, "two rotary embeddings");
        test_rewind(&p);
        test_fork(&p);
        test_shared(&p);
        test_files(&p);
        test_layer_numbers(&p);
    }
    parts_close(&p);
}

/* Returns 0 if a rank has the logits. */
static int run_rank(comm *c)
{
    err e = {0};
    parts p;
    if (is_ok(parts_open(&p, "cpu", c, 7, &e), &e, "rank %d", c->rank)) {
        session *s = new_session(&p, 0);
        feed(&p, s, 0, 30, "ranks");
        step(&p, s, 30, N, "ranks");
        session_free(s);
    }
    parts_close(&p);
    return tap_done();
}

int main(void)
{
    comm *c = NULL;
    err e = {0};
    int rc = 1;
    status st = comm_fork(&c, 2, &rc, &e);
    if (c) {
        if (!freopen("/dev/null", "w", stdout)) return 1;
        return comm_close(c, run_rank(c));
    }
    is_ok(st, &e, "two ranks");
    is_int(rc, 0, "logits of two ranks");
    test_device("ref", 512);
    test_device("cpu", 7);
    return tap_done();
}
