/* SPDX-License-Identifier: MIT */
/* Folders as other programs write them: logits of transformers 5.24 for edited copies of tests/data/models. */
#include "config.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "model/safetensors.h"
#include "tests/unit/files.h"
#include "tests/unit/session_util.h"

#define DIR_NAME "test_folders.tmp"

enum { N_IDS = 64, N_VALUES = 8 };

/* First logits after tokens 1 to 64, from AutoModelForCausalLM in float32 with eager attention. */
static const struct {
    const char *fixture, *change; /* members of config.json */
    float want[N_VALUES];
} cases[] = {
    {"mistral-swa-bf16",
     "{\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
     {0.9058869f, -0.1741707f, -0.5506237f, -1.078407f, 1.044182f, 1.199378f, 0.04565726f, -1.605904f}},
    {"mistral-swa-bf16",
     "{\"layer_types\":[\"sliding_attention\",\"attention\"],\"model_type\":\"ministral\","
     "\"architectures\":[\"MinistralForCausalLM\"]}",
     {1.033728f, -0.8507702f, -1.34136f, 0.7510027f, 1.424824f, -3.668903f, -3.320969f, -1.425937f}},
    {"mistral-swa-bf16",
     "{\"model_type\":\"llama\"}",
     {2.276879f, -0.6351354f, -0.4700418f, -0.3530849f, 1.23276f, 3.136616f, -0.7327747f, -0.9849374f}},
};

/* A folder with links to a fixture's files and an edited config.json. */
static void make_folder(const char *fixture, const char *change)
{
    char rel[96], to[PATH_MAX + 32];
    static const char *const files[] = {"config.json", "model.safetensors"};
    mkdir(DIR_NAME, 0777);
    for (size_t i = 0; i < 2; i++) {
        snprintf(rel, sizeof rel, "tests/data/models/%s/%s", fixture, files[i]);
        snprintf(to, sizeof to, DIR_NAME "/%s", files[i]);
        unlink(to);
        char *from = realpath(tap_path(rel), NULL);
        json_t *j = i == 0 ? json_load_file(tap_path(rel), 0, NULL) : NULL, *edit = json_loads(change, 0, NULL);
        if (!from || (i == 0 && (json_object_update(j, edit) != 0 || json_dump_file(j, to, 0) != 0))) exit(1);
        if (i == 1 && symlink(from, to) != 0) exit(1);
        json_decref(j);
        json_decref(edit);
        free(from);
    }
}

static status last_logits(engine_parts *p, session **s, dtype t, float *out, err *e)
{
    int32_t ids[N_IDS];
    prefill_options o = {.which = LOGITS_LAST, .rows = keep_last_row, .ctx = out};
    for (int i = 0; i < N_IDS; i++) ids[i] = i + 1;
    TRY(backend_open(&p->be, &(backend_options){.device = "ref"}, e));
    TRY(model_open(&p->m, DIR_NAME, p->be, e));
    if (t != DT_COUNT) TRY(model_convert(p->m, &(weights_options){.type = t}, e));
    TRY(decoder_create(&p->dec, p->m, &(decoder_options){.chunk = N_IDS, .max_batch = 1, .exact = true}, e));
    TRY(session_new(s, p, "full", "f32", N_IDS, e));
    return session_prefill(s, 1, ids, N_IDS, &o, e);
}

/* ---- experts in one tensor ---- */

typedef struct {
    json_t *header;
    unsigned char *data;
    size_t n;
} st_writer;

static void add_tensor(st_writer *w, const char *name, const st_tensor *t, const json_int_t *shape, size_t rank,
                       size_t bytes)
{
    json_t *dims = json_array();
    for (size_t i = 0; i < rank; i++) json_array_append_new(dims, json_integer(shape[i]));
    json_t *x = json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->type, "shape", dims, "data_offsets", (json_int_t)w->n,
                          (json_int_t)(w->n + bytes));
    if (!x || json_object_set_new(w->header, name, x) != 0) exit(1);
    if (!(w->data = realloc(w->data, w->n + bytes + 1))) exit(1);
}

/* Adds the matrices of all experts, up to two parts of each, as one tensor. */
static void add_stack(st_writer *w, const st_file *f, int layer, const char *const *parts, bool transposed)
{
    const size_t n_parts = parts[1] ? 2 : 1;
    const st_tensor *t = NULL;
    char name[128];
    size_t n = 0;
    for (;; n++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%zu.%s_proj.weight", layer, n, parts[0]);
        if (!st_find(f, name)) break;
        t = st_find(f, name);
    }
    const size_t rows = t->shape[0], cols = t->shape[1], element = t->bytes / rows / cols, all = n_parts * rows;
    const json_int_t a = (json_int_t)all, b = (json_int_t)cols;
    const json_int_t shape[] = {(json_int_t)n, transposed ? b : a, transposed ? a : b};
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s_proj", layer, parts[1] ? "gate_up" : "down");
    add_tensor(w, name, t, shape, 3, n * n_parts * t->bytes);
    for (size_t i = 0; i < n * n_parts; i++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%zu.%s_proj.weight", layer, i / n_parts,
                 parts[i % n_parts]);
        const unsigned char *from = st_find(f, name)->data;
        unsigned char *to = w->data + w->n + i / n_parts * all * cols * element;
        for (size_t k = 0; k < rows * cols; k++) {
            size_t r = i % n_parts * rows + k / cols, c = k % cols;
            memcpy(to + (transposed ? c * all + r : r * cols + c) * element, from + k * element, element);
        }
    }
    w->n += n * n_parts * t->bytes;
}

/* Replaces the files' tensors of single experts by those of all. */
static void stack_experts(const char *fixture, bool transposed)
{
    st_writer w = {.header = json_object()};
    st_file *f;
    err e = {0};
    char rel[96];
    snprintf(rel, sizeof rel, "tests/data/models/%s/model.safetensors", fixture);
    if (st_open(&f, tap_path(rel), &e) != ST_OK) exit(1);
    for (size_t i = 0; i < st_count(f); i++) {
        const st_tensor *t = st_at(f, i);
        const json_int_t shape[] = {(json_int_t)t->shape[0], (json_int_t)t->shape[1]};
        int layer, expert;
        char part[8];
        if (sscanf(t->name, "model.layers.%d.mlp.experts.%d.%7[a-z]", &layer, &expert, part) != 3) {
            add_tensor(&w, t->name, t, shape, t->rank, t->bytes);
            memcpy(w.data + w.n, t->data, t->bytes);
            w.n += t->bytes;
        } else if (expert == 0 && strcmp(part, "up") != 0) {
            const bool down = strcmp(part, "down") == 0;
            add_stack(&w, f, layer, (const char *const[]){down ? "down" : "gate", down ? NULL : "up"}, transposed);
        }
    }
    st_close(f);
    char *text = json_dumps(w.header, JSON_COMPACT);
    const size_t length = strlen(text);
    unsigned char *all = malloc(8 + length + w.n);
    if (!all) exit(1);
    for (size_t i = 0; i < 8; i++) all[i] = (unsigned char)(length >> 8 * i);
    memcpy(all + 8, text, length);
    memcpy(all + 8 + length, w.data, w.n);
    unlink(DIR_NAME "/model.safetensors");
    write_file(DIR_NAME "/model.safetensors", all, 8 + length + w.n);
    free(all);
    free(text);
    free(w.data);
    json_decref(w.header);
}

static void check_stacked(const char *fixture, dtype t)
{
    static const char *const how[] = {"one by one", "in one tensor", "in one tensor, transposed"};
    float logits[3][U_VOCAB];
    for (int i = 0; i < 3; i++) {
        engine_parts p = {0};
        session *s = NULL;
        err e = {0};
        make_folder(fixture, "{}");
        if (i) stack_experts(fixture, i == 2);
        if (is_ok(last_logits(&p, &s, t, logits[i], &e), &e, "%s: experts %s", fixture, how[i]) && i)
            ok(memcmp(logits[i], logits[0], sizeof logits[0]) == 0, "  the same logits, bit for bit");
        session_free(s);
        parts_close(&p);
    }
}

/* ---- experts that are missing ---- */

/* Configs of qwen3-moe-f32, whose layers 1 and 3 have experts, that contradict its tensors. */
static const struct {
    const char *change, *part;
} contradictions[] = {
    {"{\"decoder_sparse_step\":1}", "model.safetensors: tensor model.layers.0.mlp.gate.weight is missing"},
    {"{\"mlp_only_layers\":[3]}", "model.safetensors: tensor model.layers.3.mlp.gate_proj.weight is missing"},
    {"{\"num_experts\":9,\"num_local_experts\":9}", "tensor model.layers.1.mlp.gate.weight has shape [8, 32]"},
    {"{\"moe_intermediate_size\":48}", "tensor model.layers.1.mlp.experts.0.gate_proj.weight has shape [24, 32]"},
    {"{\"intermediate_size\":24}", "tensor model.layers.0.mlp.gate_proj.weight has shape [48, 32]"},
};

/* Puts the fixture's weights, with another name of one tensor, into a file, and their names into an index if wanted. */
static void rename_tensor(const char *file, const char *fixture, const char *name, bool index)
{
    char path[160], *data;
    size_t size, n_found = 0;
    err e = {0};
    st_file *f;
    json_t *map = json_object(), *all = json_pack("{s:o}", "weight_map", map);
    snprintf(path, sizeof path, "tests/data/models/%s/model.safetensors", fixture);
    if (st_open(&f, tap_path(path), &e) != ST_OK || file_read(&data, &size, tap_path(path), 1 << 20, &e) != ST_OK)
        exit(1);
    for (size_t i = 0; i < st_count(f); i++) json_object_set_new(map, st_at(f, i)->name, json_string(file));
    for (size_t i = 0; i + strlen(name) <= size; i++)
        if (memcmp(data + i, name, strlen(name)) == 0) data[i] = 'x', n_found++;
    is_int((long long)n_found, 1, "%s", name);
    unlink(DIR_NAME "/model.safetensors");
    snprintf(path, sizeof path, DIR_NAME "/%s", file);
    write_file(path, data, size);
    if (index && json_dump_file(all, DIR_NAME "/model.safetensors.index.json", 0) != 0) exit(1);
    json_decref(all);
    mem_free(data);
    st_close(f);
}

static void refuse(const char *part, const char *name)
{
    err e = {0};
    backend *be = NULL;
    model *m = NULL;
    if (!is_ok(backend_open(&be, &(backend_options){.device = "ref"}, &e), &e, "a backend")) return;
    is_err(model_open(&m, DIR_NAME, be, &e), &e, ST_FORMAT, part, "%s", name);
    model_close(m);
    backend_close(be);
}

static void test_missing_experts(void)
{
    static const char fixture[] = "qwen3-moe-f32", name[] = "model.layers.1.mlp.experts.3.up_proj.weight";
    for (size_t i = 0; i < sizeof contradictions / sizeof *contradictions; i++) {
        make_folder(fixture, contradictions[i].change);
        refuse(contradictions[i].part, contradictions[i].change);
    }
    make_folder(fixture, "{}");
    rename_tensor("model.safetensors", fixture, name, false);
    refuse("model.safetensors: tensor model.layers.1.mlp.experts.3.up_proj.weight is missing", "an expert is missing");
    rename_tensor("part-1.safetensors", fixture, name, true);
    refuse("part-1.safetensors: tensor model.layers.1.mlp.experts.3.up_proj.weight is missing, although the index",
           "an expert is missing in a shard");
}

int main(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        engine_parts p = {0};
        session *s = NULL;
        float logits[U_VOCAB];
        err e = {0};
        make_folder(cases[i].fixture, cases[i].change);
        if (is_ok(last_logits(&p, &s, DT_COUNT, logits, &e), &e, "%s with %s", cases[i].fixture, cases[i].change))
            is_near(logits, cases[i].want, N_VALUES, 1e-10, "  logits");
        session_free(s);
        parts_close(&p);
    }
    check_stacked("qwen2-moe-bf16", DT_COUNT);
    check_stacked("qwen3-moe-f32", DT_COUNT);
    check_stacked("qwen3-moe-f32", DT_Q8);
    test_missing_experts();
    remove_dir(DIR_NAME);
    return tap_done();
}
