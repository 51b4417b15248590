/* SPDX-License-Identifier: MIT */
/* Ranks that split matrices of GGUF files: within blocks of 256, between blocks, and within blocks of 32. */
#include "config.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/comm.h"
#include "model/session.h"
#include "tests/tap.h"
#include "tests/unit/gguf_writer.h"
#include "tests/unit/model_blocks.h"

enum { N_IDS = 12, RANKS = 2 };

static char dir[] = "/tmp/kvasir-ranks-XXXXXX";

static char line[512]; /* last line that a conversion reported */

typedef struct {
    backend *be;
    model *m;
} opened;

static void close_model(opened *o)
{
    model_close(o->m);
    backend_close(o->be);
    *o = (opened){0};
}

static void report(void *ctx, const char *text)
{
    (void)ctx;
    snprintf(line, sizeof line, "%s", text);
}

/* Opens a file with weights of type t, DT_COUNT: as held; plan: without its weights. */
static status open_model(opened *o, const char *path, comm *ranks, dtype t, bool plan, err *e)
{
    const backend_options bo = {.device = "cpu", .n_threads = 1, .ranks = ranks};
    const weights_options wo = {.type = t, .plan = plan, .report = report};
    *o = (opened){0};
    TRY(backend_open(&o->be, &bo, e));
    TRY(model_find(&o->m, path, NULL, o->be, e));
    if (!plan) TRY(model_load(o->m, e));
    return model_convert(o->m, &wo, e);
}

static void take(void *ctx, int64_t first, size_t n, const float *logits)
{
    memcpy((float *)ctx + (size_t)first * RANDOM_VOCAB, logits, n * RANDOM_VOCAB * sizeof(float));
}

/* Computes logits, with activations in float32. */
static status run(const opened *o, float out[N_IDS * RANDOM_VOCAB], err *e)
{
    static const int32_t ids[N_IDS] = {1, 5, 9, 40, 77, 3, 3, 200, 310, 12, 13, 14};
    const attn_options ao = {.kv = kv_plain(DT_F32)};
    const decoder_options opt = {.chunk = 512, .exact = true};
    const prefill_options po = {.which = LOGITS_ALL, .rows = take, .ctx = out};
    attn_spec spec;
    decoder *dec = NULL;
    session *s = NULL;
    status st = attn_spec_parse(&spec, "full", &ao, e);
    if (st == ST_OK) st = decoder_create(&dec, o->m, &opt, e);
    if (st == ST_OK) st = session_create(&s, dec, &spec, session_of(N_IDS), e);
    if (st == ST_OK) st = session_prefill(&s, 1, ids, N_IDS, &po, e);
    session_free(s);
    decoder_free(dec);
    return st;
}

/* Compares logits, types and planned bytes with those of one rank. split: type of the matrices split by columns within
 * a block. nmse: of their rounding. */
static void check_ranks(comm *c, const char *encoding, int ffn, dtype split, double nmse)
{
    static float want[N_IDS * RANDOM_VOCAB], got[N_IDS * RANDOM_VOCAB];
    char path[64];
    err e = {0};
    opened one, plan, ranks;
    snprintf(path, sizeof path, "%s/%s-%d.gguf", dir, encoding, ffn);
    status st = open_model(&one, path, NULL, DT_COUNT, false, &e);
    if (st == ST_OK) st = run(&one, want, &e);
    line[0] = 0;
    if (st == ST_OK) st = open_model(&plan, path, c, DT_COUNT, true, &e);
    const char *note = nmse < 1e-9  ? ""
                       : ffn == 512 ? "weights: --tp 2 splits blocks of 2 matrices, which are converted to q8"
                                    : "weights: --tp 2 splits blocks of 4 matrices, which are converted to q8";
    is_str(line, note, "%s: the plan reports blocks that are split", encoding);
    if (st == ST_OK) st = open_model(&ranks, path, c, DT_COUNT, false, &e);
    if (st == ST_OK) st = run(&ranks, got, &e);
    if (!is_ok(st, &e, "%s, feed-forward %d: two ranks", encoding, ffn)) return;
    is_near(got, want, N_IDS * RANDOM_VOCAB, nmse, "%s: logits of one rank", encoding);
    const attention_weights *a = attention_at(ranks.m, 1), *all = attention_at(one.m, 1);
    const swiglu_weights *f = swiglu_at(ranks.m, 1);
    ok(a->q.type == all->q.type && a->o.type == split, "%s: q as %s, o as %s", encoding, dtype_name(a->q.type),
       dtype_name(a->o.type));
    ok(f->down.type == (ffn % 512 ? split : all->q.type) && f->up.type == all->q.type, "%s: down as %s", encoding,
       dtype_name(f->down.type));
    ok(plan.m->weight_bytes == ranks.m->weight_bytes && plan.m->decode_bytes == ranks.m->decode_bytes,
       "%s: the plan has the sizes", encoding);
    close_model(&one);
    close_model(&plan);
    close_model(&ranks);
}

/* Compares logits and planned bytes of a file with experts, whose factors no rounding changes, with those of one rank.
 */
static void check_experts(comm *c, const char *encoding)
{
    static float want[N_IDS * RANDOM_VOCAB], got[N_IDS * RANDOM_VOCAB];
    char path[64];
    err e = {0};
    opened one, plan, ranks;
    snprintf(path, sizeof path, "%s/%s-experts.gguf", dir, encoding);
    status st = open_model(&one, path, NULL, DT_COUNT, false, &e);
    if (st == ST_OK) st = run(&one, want, &e);
    if (st == ST_OK) st = open_model(&plan, path, c, DT_COUNT, true, &e);
    if (st == ST_OK) st = open_model(&ranks, path, c, DT_COUNT, false, &e);
    if (st == ST_OK) st = run(&ranks, got, &e);
    if (!is_ok(st, &e, "%s with experts: two ranks", encoding)) return;
    is_near(got, want, N_IDS * RANDOM_VOCAB, 1e-10, "%s with experts: logits of one rank", encoding);
    ok(plan.m->weight_bytes == ranks.m->weight_bytes && plan.m->decode_bytes == ranks.m->decode_bytes &&
           ranks.m->decode_bytes < one.m->decode_bytes,
       "%s with experts: the plan has the sizes", encoding);
    close_model(&one);
    close_model(&plan);
    close_model(&ranks);
}

/* Blocks of 32 that a split cuts are refused, in a plan too, and split when decoded. */
static void check_refused(comm *c, const char *encoding)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s-96.gguf", dir, encoding);
    for (int plan = 0; plan < 2; plan++) {
        opened o;
        err e = {0};
        is_err(open_model(&o, path, c, DT_COUNT, plan, &e), &e, ST_USAGE, "--tp 2: tensor blk.0.ffn_down.weight of ",
               "%s: a split within blocks of 32", encoding);
        close_model(&o);
        e = (err){0};
        is_ok(open_model(&o, path, c, DT_F16, plan, &e), &e, "%s: --weights f16", encoding);
        close_model(&o);
    }
}

/* Checks what is reported, once, if a backend multiplies only 8-bit and 4-bit blocks. */
static void check_missing(const char *encoding, const char *want)
{
    const backend_options bo = {.device = "cpu", .n_threads = 1};
    weights_options wo = {.type = DT_COUNT, .plan = true, .report = report};
    char path[64];
    err e = {0};
    opened o = {0};
    backend_ops ops;
    line[0] = 0;
    snprintf(path, sizeof path, "%s/%s-512.gguf", dir, encoding);
    status st = backend_open(&o.be, &bo, &e);
    if (!is_ok(st, &e, "a backend")) return;
    const backend_ops *all = o.be->ops;
    ops = *all;
    ops.qblocks = 1u << DT_Q8 | 1u << DT_Q4;
    o.be->ops = &ops;
    st = model_find(&o.m, path, NULL, o.be, &e);
    if (st == ST_OK) st = model_convert(o.m, &wo, &e);
    if (is_ok(st, &e, "%s without its products", encoding)) {
        is_str(line, want, "%s: the plan reports it", encoding);
        ok(attention_at(o.m, 1)->q.type == (strcmp(encoding, "Q4_0") == 0 ? DT_Q4 : DT_Q8), "%s: q", encoding);
        line[0] = 0;
        st = model_convert(o.m, &wo, &e);
        ok(st == ST_OK && !line[0], "%s: only once", encoding);
    }
    o.be->ops = all;
    close_model(&o);
}

static const struct {
    const char *encoding;
    dtype split; /* type of a matrix that is split within a block of 256 */
    double nmse; /* of its rounding */
} types[] = {
    {"Q4_0", DT_Q4, 1e-10},  {"Q4_1", DT_Q4Z, 1e-10}, {"Q5_0", DT_Q8, 1e-10},   {"Q5_1", DT_Q8, 1e-10},
    {"Q8_0", DT_Q8, 1e-10},  {"Q2_K", DT_Q8, 1e-10},  {"Q3_K", DT_Q8, 1e-10},   {"Q4_K", DT_Q8, 1e-3},
    {"Q5_K", DT_Q8, 1e-3},   {"Q6_K", DT_Q8, 1e-3},   {"IQ4_NL", DT_Q8, 1e-10}, {"IQ4_XS", DT_Q8, 1e-10},
    {"MXFP4", DT_Q8, 1e-10}, {"NVFP4", DT_Q8, 1e-10},
};
enum { N_TYPES = sizeof types / sizeof *types };
static const int ffns[] = {256, 512, 96};
static const char *const with_experts[] = {"Q4_0", "Q8_0", "Q2_K", "MXFP4"};
enum { N_EXPERTS = sizeof with_experts / sizeof *with_experts };

static status write_models(err *e)
{
    gguf *all_types;
    if (!mkdtemp(dir)) return err_set(e, ST_IO, "%s", dir);
    TRY(gguf_open(&all_types, tap_path("tests/data/gguf/types.gguf"), e));
    for (size_t i = 0; i < 3 * N_TYPES; i++) {
        gguf_writer w = {0};
        char path[64];
        const int ffn = ffns[i / N_TYPES];
        const gguf_encoding *x = gguf_find_tensor(all_types, types[i % N_TYPES].encoding)->encoding;
        if (ffn % (int)x->elements) continue;
        gguf_writer_random_of(&w, x, false, ffn);
        snprintf(path, sizeof path, "%s/%s-%d.gguf", dir, x->name, ffn);
        gguf_writer_save(&w, path);
        gguf_writer_free(&w);
    }
    for (size_t i = 0; i < N_EXPERTS; i++) {
        gguf_writer w = {0};
        char path[64];
        gguf_writer_random_experts(&w, gguf_find_tensor(all_types, with_experts[i])->encoding, false);
        snprintf(path, sizeof path, "%s/%s-experts.gguf", dir, with_experts[i]);
        gguf_writer_save(&w, path);
        gguf_writer_free(&w);
    }
    gguf_close(all_types);
    return ST_OK;
}

/* Runs the tests in a rank, of which the first prints. */
static int run_rank(comm *c)
{
    if (c->rank > 0 && !freopen("/dev/null", "w", stdout)) return 1;
    for (size_t i = 0; i < 2 * N_TYPES; i++)
        check_ranks(c, types[i % N_TYPES].encoding, ffns[i / N_TYPES], types[i % N_TYPES].split,
                    types[i % N_TYPES].nmse);
    for (size_t i = 0; i < N_EXPERTS; i++) check_experts(c, with_experts[i]);
    check_missing("Q4_K", "weights: cpu does not multiply Q4_K: 15 matrices are converted to q8");
    check_missing("Q4_0", "");
    check_refused(c, "Q4_0");
    check_refused(c, "Q4_1");
    check_refused(c, "Q5_1");
    check_refused(c, "Q8_0");
    return tap_done();
}

int main(void)
{
    comm *c = NULL;
    err e = {0};
    int rc = 1;
    if (write_models(&e) != ST_OK || comm_fork(&c, RANKS, &rc, &e) != ST_OK) {
        printf("Bail out! %s\n", e.msg);
        return 1;
    }
    if (c) return comm_close(c, run_rank(c));
    remove_dir(dir);
    return rc;
}
