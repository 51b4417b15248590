/* SPDX-License-Identifier: MIT */
/* Random models of known shapes, for benchmarks without download: speed depends only on the dimensions, which are those
 * of the published config.json files. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/nearest.h"
#include "kernels/base/rng.h"
#include "kernels/half.h"
#include "kernels/qblock_random.h"
#include "model/weights.h"

#define LAYERS "\"num_hidden_layers\":"
#define DIMS(layers, hidden, ffn, heads, kv, dim, vocab)                                                               \
    LAYERS #layers ",\"hidden_size\":" #hidden ",\"intermediate_size\":" #ffn ",\"num_attention_heads\":" #heads       \
                   ",\"num_key_value_heads\":" #kv ",\"head_dim\":" #dim ",\"vocab_size\":" #vocab
#define LLAMA3(factor)                                                                                                 \
    ",\"rms_norm_eps\":1e-5,\"rope_theta\":500000.0,\"max_position_embeddings\":131072,"                               \
    "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":" #factor ",\"low_freq_factor\":1.0,"                       \
    "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}"
#define PLAIN(eps, max) ",\"rms_norm_eps\":" #eps ",\"rope_theta\":1000000.0,\"max_position_embeddings\":" #max
#define EXPERTS(n, chosen, width)                                                                                      \
    ",\"num_experts\":" #n ",\"num_experts_per_tok\":" #chosen ",\"moe_intermediate_size\":" #width
#define NO_WINDOW  ",\"sliding_window\":null"
#define ARCH(name) "{\"architectures\":[\"" name "ForCausalLM\"],"
#define TIED       ",\"tie_word_embeddings\":true"

static const struct {
    const char *name, *config;
} shapes[] = {
    {"llama-3.2-1b", ARCH("Llama") DIMS(16, 2048, 8192, 32, 8, 64, 128256) TIED LLAMA3(32.0) "}"},
    {"llama-3.2-3b", ARCH("Llama") DIMS(28, 3072, 8192, 24, 8, 128, 128256) TIED LLAMA3(32.0) "}"},
    {"llama-3.1-8b", ARCH("Llama") DIMS(32, 4096, 14336, 32, 8, 128, 128256) LLAMA3(8.0) "}"},
    {"mistral-7b-v0.3", ARCH("Mistral") DIMS(32, 4096, 14336, 32, 8, 128, 32768) NO_WINDOW PLAIN(1e-5, 32768) "}"},
    {"qwen2.5-7b", ARCH("Qwen2") DIMS(28, 3584, 18944, 28, 4, 128, 152064) PLAIN(1e-6, 131072) "}"},
    {"qwen3-0.6b", ARCH("Qwen3") DIMS(28, 1024, 3072, 16, 8, 128, 151936) TIED PLAIN(1e-6, 40960) "}"},
    {"qwen3-8b", ARCH("Qwen3") DIMS(36, 4096, 12288, 32, 8, 128, 151936) PLAIN(1e-6, 40960) "}"},
    {"qwen3-30b-a3b", ARCH("Qwen3Moe") DIMS(48, 2048, 6144, 32, 4, 128, 151936) PLAIN(1e-6, 40960)
                          EXPERTS(128, 8, 768) ",\"norm_topk_prob\":true}"},
    {"tiny", ARCH("Llama") DIMS(2, 64, 160, 4, 2, 16, 512) TIED LLAMA3(8.0) "}"}, /* for tests */
};

enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Reads a shape's config with the number of layers that the rest of its name may give: ":layers=N". */
static status parse_shape(model_config *c, const char *config, const char *shape, const char *rest, err *e)
{
    char text[512];
    int layers = 0, end = 0, used = 0;
    if (!*rest) return model_config_parse(c, config, strlen(config), shape, NULL, e);
    if (sscanf(rest, ":layers=%4d%n", &layers, &end) != 1 || rest[end] || layers < 1 || layers > 4096)
        return err_set(e, ST_USAGE, "--shape %.60s: '%.40s' is not :layers=N, with N from 1 to 4096", shape, rest);
    const char *at = strstr(config, LAYERS) + strlen(LAYERS);
    sscanf(at, "%*d%n", &used);
    snprintf(text, sizeof text, "%.*s%d%s", (int)(at - config), config, layers, at + used);
    return model_config_parse(c, text, strlen(text), shape, NULL, e);
}

status model_shape_config(model_config *c, const char *shape, err *e)
{
    const size_t stem = strcspn(shape, ":");
    char list[160] = "";
    nearest near;
    *c = (model_config){0};
    nearest_start(&near, shape);
    for (size_t i = 0, n = 0; i < N_SHAPES && n < sizeof list; i++) {
        const char *name = shapes[i].name;
        if (strlen(name) == stem && memcmp(shape, name, stem) == 0)
            return parse_shape(c, shapes[i].config, shape, shape + stem, e);
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", name);
        nearest_try(&near, name, strlen(name));
    }
    return err_set(e, ST_USAGE, "--shape: unknown shape '%.40s'%s; known: %s", shape, nearest_hint(&near), list);
}

/* ---- random weights ---- */

enum { BLOCK = 1 << 20 };

typedef struct {
    model *m;
    dtype type;
    buf block[DT_COUNT]; /* per type: BLOCK random values, copied from varying offsets */
    rng r;
} filler;

/* Returns the type of a weight. Norms, biases, routers and the embedding are never quantized. */
static dtype type_of(const void *ctx, const weight_spec *w)
{
    const filler *f = ctx;
    bool plain = w->vector || w->kept || w->slot == &f->m->embed;
    return plain && dtype_in_qblocks(f->type) ? DT_BF16 : f->type;
}

/* Returns the bytes of the smallest unit to copy: an element, or a quantized block. */
static size_t unit_of(dtype t)
{
    return dtype_in_qblocks(t) ? qblock_bytes(t) : dtype_size(t);
}

static size_t units_in(dtype t)
{
    return dtype_in_qblocks(t) ? BLOCK / (QBLOCK_ROWS * qblock_cols(t)) : BLOCK;
}

static void put(void *p, dtype t, size_t i, float x)
{
    if (t == DT_F32) ((float *)p)[i] = x;
    else ((uint16_t *)p)[i] = t == DT_F16 ? f32_to_f16(x) : f32_to_bf16(x);
}

static status alloc_block(filler *f, dtype t, err *e)
{
    return f->m->be->ops->alloc(f->m->be, &f->block[t], units_in(t) * unit_of(t), "random block", e);
}

/* Range of uniform values of standard deviation 0.02, the initializer_range of these families. */
#define WIDTH (0.02f * 3.46410162f)

/* Fills a block with uniform values. */
static status make_values(filler *f, dtype t, err *e)
{
    void *p;
    TRY(alloc_block(f, t, e));
    TRY(mem_alloc(&p, BLOCK, dtype_size(t), "random block", e));
    for (size_t i = 0; i < BLOCK; i++) put(p, t, i, (rng_float(&f->r) - 0.5f) * WIDTH);
    f->m->be->ops->upload(f->m->be, f->block[t], p, BLOCK * dtype_size(t));
    mem_free(p);
    return ST_OK;
}

/* Fills blocks of a type that `quantize` does not make. */
static status make_numbers(filler *f, err *e)
{
    const dtype t = f->type;
    const size_t bytes = units_in(t) * unit_of(t);
    qblock_values v = {0};
    unsigned char *p;
    TRY(alloc_block(f, t, e));
    TRY(mem_alloc((void **)&p, bytes, 1, "random block", e));
    for (size_t i = 0; i < units_in(t) * QBLOCK_ROWS; i++) {
        qblock_random(&v, t, WIDTH / 2, &f->r);
        qblock_put(p + i / QBLOCK_ROWS * unit_of(t), t, i % QBLOCK_ROWS, &v);
    }
    f->m->be->ops->upload(f->m->be, f->block[t], p, bytes);
    mem_free(p);
    return ST_OK;
}

static status make_blocks(filler *f, err *e)
{
    if (!dtype_in_qblocks(f->type)) return make_values(f, f->type, e);
    TRY(make_values(f, DT_BF16, e));
    if (!dtype_is_quantized_to(f->type)) return make_numbers(f, e);
    TRY(alloc_block(f, f->type, e));
    const weight in = {f->block[DT_BF16], DT_BF16, QBLOCK_ROWS, BLOCK / QBLOCK_ROWS, {NULL}};
    f->m->be->ops->quantize(f->m->be, f->block[f->type], f->type, in);
    return ST_OK;
}

static status fill_ones(filler *f, dtype t, buf to, size_t n, err *e)
{
    void *ones;
    TRY(mem_alloc(&ones, n, dtype_size(t), "norms", e));
    for (size_t i = 0; i < n; i++) put(ones, t, i, 1);
    f->m->be->ops->upload(f->m->be, to, ones, n * dtype_size(t));
    mem_free(ones);
    return ST_OK;
}

static void fill_values(filler *f, dtype t, buf to, size_t n)
{
    size_t unit = unit_of(t), pool = units_in(t);
    for (size_t i = 0; i < n;) {
        size_t from = rng_below(&f->r, pool / 2), len = pool - from < n - i ? pool - from : n - i;
        f->m->be->ops->copy(f->m->be, buf_at(to, i * unit), buf_at(f->block[t], from * unit), len * unit);
        i += len;
    }
}

static status fill(filler *f, const weight_spec *w, err *e)
{
    const dtype t = w->slot->type;
    const size_t n = weight_size(w, t) / unit_of(t);
    if (w->norm) TRY(fill_ones(f, t, w->slot->p, n, e));
    else fill_values(f, t, w->slot->p, n);
    return backend_fault(f->m->be, e);
}

/* Allocates and fills the weights from w on that have one allocation. Returns their number in *n. */
static status fill_joined(filler *f, weight_spec *w, size_t *n, err *e)
{
    *n = weights_joined(f->m, w, type_of, f);
    TRY(weights_alloc(f->m, w, *n, type_of(f, w), e));
    for (size_t i = 0; i < *n; i++) TRY(fill(f, w + i, e));
    return ST_OK;
}

status model_open_shape(model **out, const char *shape, dtype type, uint64_t seed, backend *be, err *e)
{
    model_config c;
    model *m = NULL;
    *out = NULL;
    if (dtype_in_qblocks(type) && !(be->ops->qblocks >> type & 1))
        return err_set(e, ST_UNSUPPORTED, "--weights %s: not supported on %s; use q8 or q4", dtype_name(type),
                       be->name);
    TRY(model_shape_config(&c, shape, e));
    TRY(model_create(&m, &c, shape, be, e));
    filler f = {.m = m, .type = type, .r = {seed}};
    model_files *files = m->files;
    size_t n;
    status st;
    if (m->config.tied && dtype_in_qblocks(type)) m->lm_head.type = type; /* now a weight of its own */
    for (const weight_spec *w = m->weights; w < weights_end(m); w++)
        TRY_GOTO(size_add(&files->random_bytes, files->random_bytes, weight_room(w, type_of(&f, w)), shape, e));
    size_t room = be->ops->available(be);
    if (room && files->random_bytes > room) {
        st = err_set(e, ST_NOMEM, "%s in %s needs %.2f GB for its weights, %.2f GB are available", shape,
                     dtype_name(type), (double)files->random_bytes * 1e-9, (double)room * 1e-9);
        goto done;
    }
    TRY_GOTO(make_blocks(&f, e));
    for (weight_spec *w = m->weights; w < weights_end(m); w += n) TRY_GOTO(fill_joined(&f, w, &n, e));
    model_finish(m);
done:
    for (dtype t = DT_F32; t < DT_COUNT; t++)
        if (f.block[t].p) be->ops->free(be, f.block[t], units_in(t) * unit_of(t));
    if (st == ST_OK) *out = m;
    else model_close(m);
    return st;
}
