/* SPDX-License-Identifier: MIT */
/* GGUF files as models: logits equal those of Hugging Face folders and of transformers; files that are refused. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "model/encoding/encoding.h"
#include "model/session.h"
#include "tests/tap.h"
#include "tests/unit/gguf_writer.h"
#include "tests/unit/oom.h"

enum { N_IDS = 24, VOCAB = 384 };

static char dir[] = "/tmp/kvasir-gguf-XXXXXX";
static char path[512];
static gguf *all_types;

static const char *in_dir(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* Returns an encoding by its name, from the file that has all of them. */
static const gguf_encoding *encoding(const char *name)
{
    const gguf_tensor *t = gguf_find_tensor(all_types, name);
    return t->encoding;
}

/* ---- running ---- */

static void take(void *ctx, int64_t first, size_t n, const float *logits)
{
    memcpy((float *)ctx + (size_t)first * VOCAB, logits, n * VOCAB * sizeof(float));
}

/* Settings of a run: weights of type t, DT_COUNT: as held; exact: activations in float32; copy: with a copy in DT_Q4
 * that is made before the model's own conversion. */
typedef struct {
    dtype t;
    bool exact, copy;
} how_run;

/* Computes logits of N_IDS tokens. */
static status run_with(const char *model_path, how_run how, const int32_t *ids, float *out, err *e)
{
    backend *be = NULL;
    model *m = NULL, *copy = NULL;
    decoder *dec = NULL;
    session *s = NULL;
    attn_spec spec;
    attn_options ao = {.kv = kv_plain(DT_F32)};
    const backend_options bo = {.device = "cpu"};
    const decoder_options opt = {.chunk = how.exact ? 512 : 8, .exact = how.exact};
    const weights_options wo = {.type = how.t}, q4 = {.type = DT_Q4};
    const prefill_options po = {.which = LOGITS_ALL, .rows = take, .ctx = out};
    status st = attn_spec_parse(&spec, "full", &ao, e);
    if (st == ST_OK) st = backend_open(&be, &bo, e);
    if (st == ST_OK) st = model_find(&m, model_path, NULL, be, e);
    if (st == ST_OK) st = model_load(m, e);
    if (st == ST_OK && how.copy) st = model_convert_copy(&copy, m, &q4, e);
    if (st == ST_OK) st = model_convert(m, &wo, e);
    if (st == ST_OK) st = decoder_create(&dec, copy ? copy : m, &opt, e);
    if (st == ST_OK) st = session_create(&s, dec, &spec, session_of(N_IDS), e);
    if (st == ST_OK) st = session_prefill(&s, 1, ids, N_IDS, &po, e);
    session_free(s);
    decoder_free(dec);
    model_close(copy);
    model_close(m);
    backend_close(be);
    return st;
}

static status find_only(const char *model_path, err *e)
{
    backend *be = NULL;
    model *m = NULL;
    const backend_options bo = {.device = "cpu"};
    status st = backend_open(&be, &bo, e);
    if (st == ST_OK) st = model_open(&m, model_path, be, e);
    model_close(m);
    backend_close(be);
    return st;
}

/* A model is converted once: model_open converts encoded matrices. */
static void check_once(const char *name)
{
    backend *be = NULL;
    model *m = NULL;
    err e = {0};
    const backend_options bo = {.device = "cpu"};
    const weights_options q4 = {.type = DT_Q4}, plan = {.type = DT_Q4, .plan = true};
    char rel[64];
    snprintf(rel, sizeof rel, "tests/data/gguf/%s.gguf", name);
    status st = backend_open(&be, &bo, &e);
    if (st == ST_OK) st = model_open(&m, tap_path(rel), be, &e);
    if (is_ok(st, &e, "%s: opens", name)) {
        is_err(model_convert(m, &q4, &e), &e, ST_USAGE, ".gguf: the weights are already converted", "a second time");
        e = (err){0};
        is_ok(model_convert(m, &plan, &e), &e, "but planned");
    }
    model_close(m);
    backend_close(be);
}

static const int32_t some_ids[N_IDS] = {1, 5, 9, 40, 77, 3, 3, 200, 310, 12, 13, 14, 99, 8, 7, 6, 250, 251, 300, 2, 4};

static status run(const char *model_path, dtype t, const int32_t *ids, float *out, err *e)
{
    return run_with(model_path, (how_run){.t = t, .exact = true}, ids, out, e);
}

/* ---- twins of folders ---- */

/* Folders whose config GGUF can express, without windows and dynamic scaling. */
static const struct {
    const char *name, *arch;
    bool same; /* bit for bit; Llama 3's scaling becomes divisors, rounded to float32 */
} folders[] = {
    {"llama2-linear-f16", "llama", true},
    {"mistral-nemo-like-f32", "llama", true},
    {"qwen2-f16", "qwen2", true},
    {"qwen2-yarn-f32", "qwen2", true},
    {"qwen3-f32-sharded-tied", "qwen3", true},
    {"qwen3-vl-f16", "qwen3vl", true},
    {"phi3-longrope-f16", "phi3", true},
    {"ministral3-vision-f16", "mistral3", true},
    {"mixtral-f16", "llama", true},
    {"llama31-f32-tied", "llama", false},
    {"llama31-bf16-untied-sharded", "llama", false},
};

static void check_folder(size_t i)
{
    static float want[N_IDS * VOCAB], got[N_IDS * VOCAB];
    err e = {0};
    char rel[160];
    snprintf(rel, sizeof rel, "tests/data/models/%s", folders[i].name);
    const char *from = tap_path(rel);
    gguf_writer w = {0};
    status st = gguf_twin(&w, from, folders[i].arch, &e);
    if (st == ST_OK) gguf_writer_save(&w, in_dir("twin.gguf"));
    gguf_writer_free(&w);
    if (st == ST_OK) st = run(tap_path(rel), DT_COUNT, some_ids, want, &e);
    if (st == ST_OK) st = run(in_dir("twin.gguf"), DT_COUNT, some_ids, got, &e);
    if (!is_ok(st, &e, "%s: runs as a GGUF file", folders[i].name)) return;
    if (folders[i].same) ok(memcmp(got, want, sizeof got) == 0, "%s: the same logits, bit for bit", folders[i].name);
    else is_near(got, want, N_IDS * VOCAB, 1e-10, "%s: the same logits, with divisors", folders[i].name);
}

/* Files with q, k and v in one tensor have the logits of those with three. */
static void check_fused(const char *folder, const char *arch, int layers, bool biases)
{
    static float want[N_IDS * VOCAB], got[N_IDS * VOCAB];
    err e = {0};
    gguf_writer w = {0};
    char rel[160];
    snprintf(rel, sizeof rel, "tests/data/models/%s", folder);
    status st = gguf_twin(&w, tap_path(rel), arch, &e);
    for (int i = 0; i < layers && st == ST_OK; i++) gguf_writer_fuse(&w, i, "weight");
    for (int i = 0; i < layers && st == ST_OK && biases; i++) gguf_writer_fuse(&w, i, "bias");
    if (st == ST_OK) gguf_writer_save(&w, in_dir("fused.gguf"));
    gguf_writer_free(&w);
    if (st == ST_OK) st = run(tap_path(rel), DT_COUNT, some_ids, want, &e);
    if (st == ST_OK) st = run(in_dir("fused.gguf"), DT_COUNT, some_ids, got, &e);
    if (is_ok(st, &e, "%s: runs with q, k and v in one tensor", folder))
        ok(memcmp(got, want, sizeof got) == 0, "%s: the same logits, bit for bit", folder);
}

/* A Llama with biases, whose elements are interleaved like the rows, equals the Qwen2 of the same weights. */
static void check_bias(void)
{
    static float want[N_IDS * VOCAB], got[N_IDS * VOCAB];
    err e = {0};
    gguf_writer w = {0};
    const char *from = tap_path("tests/data/models/qwen2-f16");
    status st = gguf_twin(&w, from, "llama", &e);
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.attn_output.bias", i);
        gguf_writer_tensor_add(&w, name, GGUF_F32, 0, 56, 56 * sizeof(float));
    }
    gguf_writer_save(&w, in_dir("bias.gguf"));
    gguf_writer_free(&w);
    if (st == ST_OK) st = run(tap_path("tests/data/models/qwen2-f16"), DT_COUNT, some_ids, want, &e);
    if (st == ST_OK) st = run(in_dir("bias.gguf"), DT_COUNT, some_ids, got, &e);
    if (is_ok(st, &e, "a Llama with biases runs"))
        ok(memcmp(got, want, sizeof got) == 0, "the same logits as the Qwen2 of these weights");
}

/* ---- quantized files ---- */

/* Compares a committed file with the logits of transformers from the decoded blocks. */
static void check_committed(const char *name)
{
    static float got[N_IDS * VOCAB];
    err e = {0};
    st_file *f = NULL;
    char rel[160];
    snprintf(rel, sizeof rel, "tests/data/gguf/%s.safetensors", name);
    if (!is_ok(st_open(&f, tap_path(rel), &e), &e, "%s: expected values", name)) return;
    const int32_t *ids = (const int32_t *)(const void *)st_find(f, "input_ids")->data;
    const float *want = (const float *)(const void *)st_find(f, "logits")->data;
    snprintf(rel, sizeof rel, "tests/data/gguf/%s.gguf", name);
    if (is_ok(run(tap_path(rel), DT_F32, ids, got, &e), &e, "%s: decoded to f32", name))
        is_near(got, want, N_IDS * VOCAB, 1e-10, "%s: logits of transformers", name);
    if (is_ok(run(tap_path(rel), DT_COUNT, ids, got, &e), &e, "%s: as held", name))
        is_near(got, want, N_IDS * VOCAB, 5e-4, "%s: logits of the types held", name);
    st_close(f);
}

/* Writes a random Llama, or a Mixtral, of matrices in one encoding, or of their values. */
static void write_random(const char *to, const char *type, bool decoded, bool experts)
{
    gguf_writer w = {0};
    (experts ? gguf_writer_random_experts : gguf_writer_random)(&w, encoding(type), decoded);
    gguf_writer_save(&w, to);
    gguf_writer_free(&w);
}

static void check_encoding(const char *name, double nmse, bool experts)
{
    static float want[N_IDS * VOCAB], got[N_IDS * VOCAB];
    err e = {0};
    write_random(in_dir("f32.gguf"), name, true, experts);
    status st = run(path, DT_COUNT, some_ids, want, &e);
    write_random(in_dir("quant.gguf"), name, false, experts);
    if (st == ST_OK) st = run(path, DT_F32, some_ids, got, &e);
    if (!is_ok(st, &e, "%s%s: runs", name, experts ? " with experts" : "")) return;
    ok(memcmp(got, want, sizeof got) == 0, "%s: --weights f32 equals the decoded twin bit for bit", name);
    if (is_ok(run(in_dir("quant.gguf"), DT_COUNT, some_ids, got, &e), &e, "%s: as held", name))
        is_near(got, want, N_IDS * VOCAB, nmse, "%s: logits of the type held", name);
    if (is_ok(run_with(in_dir("quant.gguf"), (how_run){.t = DT_COUNT}, some_ids, got, &e), &e, "%s: x in 8 bits", name))
        is_near(got, want, N_IDS * VOCAB, 3e-3, "%s: logits with x in 8 bits", name);
}

/* Weights for drafts, made of a file with a tied, encoded embedding. */
static void check_copy(const char *name)
{
    static float want[N_IDS * VOCAB], got[N_IDS * VOCAB];
    err e = {0};
    write_random(in_dir("copy.gguf"), name, false, false);
    status st = run(path, DT_Q4, some_ids, want, &e);
    if (st == ST_OK) st = run_with(path, (how_run){.t = DT_COUNT, .exact = true, .copy = true}, some_ids, got, &e);
    if (is_ok(st, &e, "%s: a copy in 4 bits", name))
        ok(memcmp(got, want, sizeof got) == 0, "%s: a copy has the bits of --weights q4", name);
}

/* ---- split files ---- */

static void check_split(void)
{
    static float want[N_IDS * VOCAB], got[N_IDS * VOCAB];
    err e = {0};
    gguf_writer w = {0};
    gguf_twin(&w, tap_path("tests/data/models/qwen2-f16"), "qwen2", &e);
    gguf_writer_tensor last = w.tensors[w.n_tensors - 1]; /* the output matrix becomes the last tensor */
    size_t output = gguf_writer_index(&w, "output.weight");
    w.tensors[w.n_tensors - 1] = w.tensors[output];
    w.tensors[output] = last;
    gguf_writer_save(&w, in_dir("one.gguf"));
    run(path, DT_COUNT, some_ids, want, &e);
    for (size_t first = 0; first < 3; first++) { /* tensors in the first file: none, some, all but one */
        size_t cut[] = {0, 5, w.n_tensors - 1};
        gguf_writer_split(&w, in_dir("s"), cut[first]);
        if (is_ok(run(in_dir("s-00001-of-00002.gguf"), DT_COUNT, some_ids, got, &e), &e, "split after %zu tensors",
                  cut[first]))
            ok(memcmp(got, want, sizeof got) == 0, "the same logits");
    }
    e = (err){0};
    is_err(find_only(in_dir("s-00002-of-00002.gguf"), &e), &e, ST_USAGE, "-00001-of-00002.gguf", "the second file");
    rename(in_dir("s-00001-of-00002.gguf"), "moved.gguf");
    gguf_writer_save(&w, in_dir("s-00002-of-00002.gguf")); /* without split.no */
    gguf_writer_split_first(&w, in_dir("s-00001-of-00002.gguf"), 5);
    e = (err){0};
    is_err(find_only(in_dir("s-00001-of-00002.gguf"), &e), &e, ST_FORMAT, "split.no", "a second file that is no part");
    unlink(in_dir("s-00002-of-00002.gguf"));
    e = (err){0};
    is_err(find_only(in_dir("s-00001-of-00002.gguf"), &e), &e, ST_IO, "s-00002-of-00002.gguf", "a missing part");
    gguf_writer_split_first(&w, in_dir("other.gguf"), 5);
    e = (err){0};
    is_err(find_only(in_dir("other.gguf"), &e), &e, ST_FORMAT, "-00001-of-00002.gguf",
           "a first file with another name");
    unlink("moved.gguf");
    gguf_writer_free(&w);
}

/* ---- refusals ---- */

/* A change of a good file, and a part of the message. */
typedef struct {
    const char *name;
    status want;
    const char *part;
    enum { TEXT, INT, REAL, DROP, DROP_TENSOR, EXTRA_TENSOR, DROP_LAYER_0, DROP_TENSORS, RENAME } how;
    const char *key, *text;
    double number;
} change;

static const change changes[] = {
    {"an unknown architecture", ST_UNSUPPORTED, "architecture gpt2 is not supported; supported: llama", TEXT,
     "general.architecture", "gpt2", 0},
    {"no architecture", ST_FORMAT, "general.architecture is missing", DROP, "general.architecture", NULL, 0},
    {"an adapter", ST_UNSUPPORTED, "a LoRA adapter (general.type is adapter)", TEXT, "general.type", "adapter", 0},
    {"a matrix of importance", ST_UNSUPPORTED, "(general.type is imatrix)", TEXT, "general.type", "imatrix", 0},
    {"a projector", ST_UNSUPPORTED, "an mmproj file", TEXT, "general.architecture", "clip", 0},
    {"a draft model", ST_UNSUPPORTED, "EAGLE-3", TEXT, "general.architecture", "eagle3", 0},
    {"draft layers", ST_UNSUPPORTED, "draft layers for multi-token prediction (mtp) (no tensors of blk.0), not",
     DROP_LAYER_0, NULL, NULL, 0},
    {"a vocabulary", ST_UNSUPPORTED, "a vocabulary (no tensors), not a whole model", DROP_TENSORS, NULL, NULL, 0},
    {"no layers", ST_FORMAT, "llama.block_count is missing", DROP, "llama.block_count", NULL, 0},
    {"too many layers", ST_FORMAT, "blk.2.attn_norm.weight is missing", INT, "llama.block_count", NULL, 3},
    {"too few layers", ST_UNSUPPORTED, "blk.1.", INT, "llama.block_count", NULL, 1},
    {"a layer count that is a string", ST_FORMAT, "llama.block_count is of type string", TEXT, "llama.block_count", "2",
     0},
    {"no norm epsilon", ST_FORMAT, "layer_norm_rms_epsilon is missing", DROP, "llama.attention.layer_norm_rms_epsilon",
     NULL, 0},
    {"partial rotation", ST_UNSUPPORTED, "llama.rope.dimension_count is 8", INT, "llama.rope.dimension_count", NULL, 8},
    {"another size of values", ST_UNSUPPORTED, "value_length", INT, "llama.attention.value_length", NULL, 8},
    {"a scale of logits", ST_UNSUPPORTED, "llama.logit_scale", REAL, "llama.logit_scale", NULL, 0.5},
    {"soft capping", ST_UNSUPPORTED, "softcapping", REAL, "llama.attn_logit_softcapping", NULL, 50},
    {"a window", ST_UNSUPPORTED, "llama.attention.sliding_window", INT, "llama.attention.sliding_window", NULL, 16},
    {"another rope scaling", ST_UNSUPPORTED, "\"spiral\"", TEXT, "llama.rope.scaling.type", "spiral", 0},
    {"heads that do not divide", ST_FORMAT, "llama.attention.head_count is 0", INT, "llama.attention.head_count", NULL,
     0},
    {"another hidden size", ST_FORMAT, "token_embd.weight has shape [384, 256], the file header requires [384, 128]",
     INT, "llama.embedding_length", NULL, 128},
    {"another feed-forward", ST_FORMAT, "blk.0.ffn_gate.weight has shape", INT, "llama.feed_forward_length", NULL, 96},
    {"no embedding", ST_FORMAT, "token_embd.weight is missing", DROP_TENSOR, "token_embd.weight", NULL, 0},
    {"no matrix", ST_FORMAT, "blk.1.ffn_up.weight is missing", DROP_TENSOR, "blk.1.ffn_up.weight", NULL, 0},
    {"a tensor without a use", ST_UNSUPPORTED, "blk.1.ffn_sub_norm.weight is not supported", EXTRA_TENSOR,
     "blk.1.ffn_sub_norm.weight", NULL, 0},
    {"a bias of one layer", ST_UNSUPPORTED, "blk.1.ffn_up.bias", EXTRA_TENSOR, "blk.1.ffn_up.bias", NULL, 0},
};

/* Changes of a file with experts. */
static const change expert_changes[] = {
    {"another number of experts", ST_FORMAT,
     "ffn_gate_inp.weight has shape [2, 256], the file header requires [3, 256]", INT, "llama.expert_count", NULL, 3},
    {"another width of experts", ST_FORMAT,
     "blk.0.ffn_gate_exps.weight has shape [2, 256, 256], the file header requires [2, 128, 256]", INT,
     "llama.feed_forward_length", NULL, 128},
    {"no matrices of experts", ST_FORMAT, "bad.gguf: tensor blk.1.ffn_down_exps.weight is missing", DROP_TENSOR,
     "blk.1.ffn_down_exps.weight", NULL, 0},
    {"one tensor for each expert", ST_UNSUPPORTED,
     "tensor blk.0.ffn_gate.0.weight has one expert, as in files of before April 2024, which are not supported; "
     "convert",
     RENAME, "blk.0.ffn_gate_exps.weight", "blk.0.ffn_gate.0.weight", 0},
    {"gate and up in one tensor of another shape", ST_FORMAT,
     "blk.0.ffn_gate_up_exps.weight has shape [2, 256, 256], the file header requires [2, 512, 256]", RENAME,
     "blk.0.ffn_gate_exps.weight", "blk.0.ffn_gate_up_exps.weight", 0},
    {"a bias of routers", ST_UNSUPPORTED, "blk.1.exp_probs_b.bias", EXTRA_TENSOR, "blk.1.exp_probs_b.bias", NULL, 0},
};

static void check_change(const change *c, bool experts)
{
    err e = {0};
    gguf_writer w = {0};
    (experts ? gguf_writer_random_experts : gguf_writer_random)(&w, encoding("Q8_0"), false);
    if (c->how == TEXT || c->how == INT || c->how == REAL || c->how == DROP) gguf_writer_drop(&w, c->key);
    if (c->how == TEXT) gguf_writer_text(&w, c->key, c->text);
    if (c->how == INT) gguf_writer_int(&w, c->key, (uint32_t)c->number);
    if (c->how == REAL) gguf_writer_real(&w, c->key, (float)c->number);
    if (c->how == DROP_TENSOR) gguf_writer_drop_tensor(&w, c->key);
    if (c->how == RENAME)
        snprintf(w.tensors[gguf_writer_index(&w, c->key)].name, sizeof w.tensors->name, "%s", c->text);
    if (c->how == EXTRA_TENSOR) gguf_writer_vector(&w, c->key, 256);
    for (size_t i = w.n_tensors; i-- > 0;)
        if (c->how == DROP_TENSORS || (c->how == DROP_LAYER_0 && strncmp(w.tensors[i].name, "blk.0.", 6) == 0))
            gguf_writer_drop_tensor(&w, w.tensors[i].name);
    gguf_writer_save(&w, in_dir("bad.gguf"));
    gguf_writer_free(&w);
    is_err(find_only(path, &e), &e, c->want, c->part, "%s", c->name);
    ok(strstr(e.msg, "bad.gguf") != NULL, "the message names the file");
}

/* A scale that is infinite or NaN, in the second block of a matrix or the last of the embedding: the message names the
 * tensor. */
static void check_nonfinite(void)
{
    static const struct {
        const char *encoding;
        int at, bytes;
        uint8_t value[2];
    } scales[] = {
        {"Q8_0", 0, 2, {0, 0x7c}},   {"Q8_0", 0, 2, {1, 0xfe}},   {"Q4_0", 0, 2, {1, 0x7e}},
        {"Q4_1", 0, 2, {0, 0xfc}},   {"Q4_1", 2, 2, {0, 0x7c}},   {"Q5_0", 0, 2, {0, 0x7e}},
        {"Q5_1", 0, 2, {0, 0x7c}},   {"Q5_1", 2, 2, {0, 0x7e}},   {"Q2_K", 80, 2, {0, 0x7c}},
        {"Q2_K", 82, 2, {0, 0x7e}},  {"Q3_K", 108, 2, {0, 0xfe}}, {"Q4_K", 0, 2, {0, 0x7c}},
        {"Q4_K", 2, 2, {0, 0x7e}},   {"Q5_K", 0, 2, {0, 0xfc}},   {"Q5_K", 2, 2, {1, 0x7c}},
        {"Q6_K", 208, 2, {0, 0x7c}}, {"IQ4_NL", 0, 2, {0, 0x7c}}, {"IQ4_XS", 0, 2, {0, 0x7e}},
        {"MXFP4", 0, 1, {255}},      {"NVFP4", 0, 1, {0x7f}},     {"NVFP4", 3, 1, {0xff}},
    };
    static const dtype types[] = {DT_COUNT, DT_F32, DT_Q4};
    static float unused[N_IDS * VOCAB];
    for (size_t i = 0; i < 6 * (sizeof scales / sizeof *scales); i++) {
        err e = {0};
        gguf_writer w = {0};
        const gguf_encoding *x = encoding(scales[i / 6].encoding);
        const char *name = i % 2 ? "token_embd.weight" : "blk.1.attn_v.weight";
        char want[128];
        gguf_writer_random(&w, x, false);
        size_t at = i % 2 ? w.tensors[gguf_writer_index(&w, name)].bytes - x->bytes : x->bytes;
        memcpy(gguf_writer_data(&w, name) + at + scales[i / 6].at, scales[i / 6].value, (size_t)scales[i / 6].bytes);
        gguf_writer_save(&w, in_dir("bad.gguf"));
        gguf_writer_free(&w);
        snprintf(want, sizeof want, "bad.gguf: tensor %s has weights that are not finite", name);
        is_err(run(path, types[i / 2 % 3], some_ids, unused, &e), &e, ST_FORMAT, want,
               "%s: byte %d of a scale of %s, as %s", x->name, scales[i / 6].at, name,
               i / 2 % 3 ? dtype_name(types[i / 2 % 3]) : "held");
    }
}

/* Every file that ends early is refused. */
static void check_truncated(void)
{
    gguf_writer w = {0};
    err e = {0};
    size_t bad = 0;
    gguf_writer_random(&w, encoding("Q8_0"), false);
    gguf_writer_save(&w, in_dir("bad.gguf"));
    gguf_writer_free(&w);
    for (off_t n = 1; n < 4000; n += 61) {
        gguf_writer_random(&w, encoding("Q8_0"), false);
        gguf_writer_save(&w, in_dir("bad.gguf"));
        gguf_writer_free(&w);
        if (truncate(path, n) != 0) bad++;
        bad += find_only(path, &e) == ST_OK;
    }
    is_int((long long)bad, 0, "files that end inside of header, metadata and table");
}

static void check_oom(void)
{
    gguf_writer w = {0};
    oom_run o = {0};
    gguf_writer_random(&w, encoding("Q4_K"), false);
    gguf_writer_save(&w, in_dir("oom.gguf"));
    gguf_writer_free(&w);
    while (oom_next(&o)) oom_saw(&o, find_only(path, &o.e), NULL);
    oom_ok(&o, 10, "opening a GGUF file");
}

int main(void)
{
    static const struct {
        const char *name;
        double nmse;
    } types[] = {
        {"F16", 0},        {"BF16", 0},      {"Q8_0", 1e-4},   {"Q4_0", 1e-10}, {"Q4_1", 1e-10}, {"Q5_0", 1e-10},
        {"Q5_1", 1e-3},    {"Q2_K", 1e-3},   {"Q3_K", 1e-3},   {"Q4_K", 1e-10}, {"Q5_K", 1e-10}, {"Q6_K", 1e-10},
        {"IQ4_NL", 1e-10}, {"IQ4_XS", 1e-3}, {"MXFP4", 1e-10}, {"NVFP4", 3e-3},
    };
    err e = {0};
    if (!mkdtemp(dir)) return 1;
    if (!is_ok(gguf_open(&all_types, tap_path("tests/data/gguf/types.gguf"), &e), &e, "all encodings"))
        return tap_done();
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) check_folder(i);
    check_fused("mistral-nemo-like-f32", "llama", 2, false);
    check_fused("ministral3-vision-f16", "mistral3", 2, false);
    check_fused("qwen2-f16", "qwen2", 3, true);
    check_bias();
    check_committed("llama");
    check_committed("qwen2");
    check_committed("qwen3");
    check_committed("qwen2moe");
    check_committed("qwen3moe");
    check_committed("qwen3vlmoe");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) check_encoding(types[i].name, types[i].nmse, false);
    check_encoding("Q8_0", 1e-4, true);
    check_encoding("Q4_K", 1e-10, true);
    check_copy("Q8_0");
    check_copy("Q6_K");
    check_split();
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) check_change(&changes[i], false);
    for (size_t i = 0; i < sizeof expert_changes / sizeof *expert_changes; i++) check_change(&expert_changes[i], true);
    check_once("llama");
    check_once("qwen2");
    check_nonfinite();
    check_truncated();
    check_oom();
    gguf_close(all_types);
    remove_dir(dir);
    return tap_done();
}
