/* SPDX-License-Identifier: MIT */
/* Tensors of GGUF files, which have llama.cpp's names. Source: llama.cpp, gguf-py/gguf/constants.py and
 * tensor_mapping.py; convert_hf_to_gguf.py (permute). */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "model/source.h"

enum { SPLITS_MAX = 1024 };

typedef struct {
    tensor_source base;
    gguf **files;       /* [base.n_files] */
    bool *used;         /* of each tensor, file by file */
    size_t interleaved; /* size of the heads whose rows of q and k are interleaved; 0: not */
} gguf_files;

static gguf_files *files_of(const tensor_source *s)
{
    return (gguf_files *)(uintptr_t)s;
}

/* Names without the prefix of a layer, "model.layers.N." and "blk.N.". */
static const struct {
    const char *hf, *gguf;
} names[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.experts.gate_proj", "ffn_gate_exps"},
    {"mlp.experts.up_proj", "ffn_up_exps"},
    {"mlp.experts.down_proj", "ffn_down_exps"},
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
};

/* Translates a name; false if llama.cpp has none. Folders' names of tensors of all experts have no suffix. */
static bool translate(char out[GGUF_NAME], const char *name)
{
    int layer, n = 0;
    const bool in_layer = sscanf(name, "model.layers.%d.%n", &layer, &n) == 1 && n > 0;
    const char *rest = in_layer ? name + n : name, *suffix = strrchr(rest, '.');
    const bool bare = !suffix || (strcmp(suffix, ".weight") != 0 && strcmp(suffix, ".bias") != 0);
    const size_t length = bare ? strlen(rest) : (size_t)(suffix - rest);
    if (bare) suffix = ".weight";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i].hf) != length || memcmp(names[i].hf, rest, length) != 0) continue;
        if (in_layer) snprintf(out, GGUF_NAME, "blk.%d.%s%s", layer, names[i].gguf, suffix);
        else snprintf(out, GGUF_NAME, "%s%s", names[i].gguf, suffix);
        return true;
    }
    return false;
}

/* Finds a tensor by its own name, and its file. */
static const gguf_tensor *find_own(const gguf_files *f, const char *own, size_t *file)
{
    const gguf_tensor *x = NULL;
    for (*file = 0; *file < f->base.n_files && !x; *file += !x) x = gguf_find_tensor(f->files[*file], own);
    return x;
}

static status find(tensor_source *s, const char *name, source_tensor *t, err *e)
{
    const gguf_files *f = files_of(s);
    char own[GGUF_NAME];
    size_t i, before = 0;
    (void)e;
    if (!translate(own, name)) return ST_OK;
    const gguf_tensor *x = find_own(f, own, &i);
    if (!x) return ST_OK;
    for (size_t k = 0; k < i; k++) before += gguf_n_tensors(f->files[k]);
    f->used[before + (size_t)(x - gguf_tensor_at(f->files[i], 0))] = true;
    *t = (source_tensor){.name = x->name, .file = path_tail(gguf_path(f->files[i])), .type = x->encoding->name};
    t->rank = x->rank;
    memcpy(t->shape, x->shape, sizeof x->shape);
    if (x->rank == 1 && strstr(own, "ffn_gate_inp_shexp")) { /* a matrix of one row */
        t->rank = 2;
        t->shape[1] = x->shape[0];
        t->shape[0] = 1;
    }
    t->data = x->data;
    t->bytes = x->bytes;
    t->element = x->encoding->type == GGUF_F32    ? DT_F32
                 : x->encoding->type == GGUF_F16  ? DT_F16
                 : x->encoding->type == GGUF_BF16 ? DT_BF16
                                                  : DT_COUNT;
    if (t->element == DT_COUNT) t->encoding = x->encoding;
    return ST_OK;
}

static size_t interleaved(const tensor_source *s, const char *name)
{
    return strstr(name, ".q_proj.") || strstr(name, ".k_proj.") ? files_of(s)->interleaved : 0;
}

static status missing(const tensor_source *s, const char *name, err *e)
{
    char own[GGUF_NAME] = "?", part[8];
    int layer, expert;
    size_t file;
    translate(own, name);
    if (sscanf(name, "model.layers.%d.mlp.experts.%d.%7[a-z]", &layer, &expert, part) == 3) {
        snprintf(own, sizeof own, "blk.%d.ffn_%s.%d.weight", layer, part, expert);
        if (find_own(files_of(s), own, &file))
            return err_set(e, ST_UNSUPPORTED,
                           "%s: tensor %s has one expert, as in files of before April 2024, which are not supported; "
                           "convert the model with a newer llama.cpp",
                           path_tail(gguf_path(files_of(s)->files[file])), own);
        snprintf(own, sizeof own, "blk.%d.ffn_%s_exps.weight", layer, part);
    }
    return err_set(e, ST_FORMAT, "%s: tensor %s is missing", path_tail(gguf_path(files_of(s)->files[0])), own);
}

/* A tensor without a use, such as a bias, would change the numbers. The config reads the frequencies. */
static status check_unused(const tensor_source *s, err *e)
{
    const gguf_files *f = files_of(s);
    size_t n = 0;
    for (size_t i = 0; i < s->n_files; i++)
        for (size_t k = 0; k < gguf_n_tensors(f->files[i]); k++) {
            const gguf_tensor *t = gguf_tensor_at(f->files[i], k);
            if (!f->used[n++] && strncmp(t->name, "rope_f", 6) != 0)
                return err_set(e, ST_UNSUPPORTED, "%s: tensor %s is not supported in this architecture",
                               path_tail(gguf_path(f->files[i])), t->name);
        }
    return ST_OK;
}

static source_file file_at(const tensor_source *s, size_t i)
{
    const gguf *g = files_of(s)->files[i];
    return (source_file){gguf_path(g), gguf_size(g), gguf_n_tensors(g)};
}

static void close_files(tensor_source *s)
{
    gguf_files *f = files_of(s);
    for (size_t i = 0; i < s->n_files; i++) gguf_close(f->files[i]);
    mem_free(f->files);
    mem_free(f->used);
    mem_free(f);
}

/* ---- split files ---- */

/* Opens NAME-0000i-of-0000n.gguf, where g is NAME-00001-of-0000n.gguf. */
static status open_part(gguf_files *f, int64_t i, int64_t n, err *e)
{
    const char *first = gguf_path(f->files[0]);
    char suffix[40], *path = mem_strdup(first);
    int64_t no = -1;
    status st = ST_OK;
    if (!path) return err_set(e, ST_NOMEM, "%s: out of memory", path_tail(first));
    snprintf(suffix, sizeof suffix, "-00001-of-%05d.gguf", (int)n);
    size_t length = strlen(path), tail = strlen(suffix);
    if (length < tail || strcmp(path + length - tail, suffix) != 0) {
        st = err_set(e, ST_FORMAT, "%s: the first of %d files, expected a name that ends in %s", path_tail(first),
                     (int)n, suffix);
        goto done;
    }
    snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", (int)i + 1, (int)n);
    memcpy(path + length - tail, suffix, tail);
    TRY_GOTO(gguf_open(&f->files[i], path, e));
    f->base.n_files++;
    TRY_GOTO(gguf_int(f->files[i], "split.no", 0, SPLITS_MAX, &no, e));
    if (no != i) st = err_set(e, ST_FORMAT, "%s: split.no is %d, expected %d", path_tail(path), (int)no, (int)i);
done:
    mem_free(path);
    return st;
}

/* Checks that the files hold as many tensors as the first one announces, and none twice. */
static status check_parts(const gguf_files *f, err *e)
{
    int64_t want = -1, n = 0;
    const char *name = path_tail(gguf_path(f->files[0]));
    TRY(gguf_int(f->files[0], "split.tensors.count", 0, INT32_MAX, &want, e));
    for (size_t i = 0; i < f->base.n_files; i++) {
        n += (int64_t)gguf_n_tensors(f->files[i]);
        for (size_t k = 0; k < gguf_n_tensors(f->files[i]); k++)
            for (size_t j = 0; j < i; j++)
                if (gguf_find_tensor(f->files[j], gguf_tensor_at(f->files[i], k)->name))
                    return err_set(e, ST_FORMAT, "%s: tensor %s is in two of the split files", name,
                                   gguf_tensor_at(f->files[i], k)->name);
    }
    if (want >= 0 && n != want)
        return err_set(e, ST_FORMAT, "%s: the split files have %lld tensors, split.tensors.count is %lld", name,
                       (long long)n, (long long)want);
    return ST_OK;
}

static status open_parts(gguf_files *f, err *e)
{
    const gguf *g = f->files[0];
    int64_t n = 1, no = 0;
    TRY(gguf_int(g, "split.count", 1, SPLITS_MAX, &n, e));
    TRY(gguf_int(g, "split.no", 0, SPLITS_MAX, &no, e));
    if (n == 1) return ST_OK;
    if (no != 0)
        return err_set(e, ST_USAGE, "%s: file %d of %d; open the first one, whose name ends in -00001-of-%05d.gguf",
                       path_tail(gguf_path(g)), (int)no + 1, (int)n, (int)n);
    TRY(MEM_GROW(&f->files, (size_t)n, e));
    for (int64_t i = 1; i < n; i++) TRY(open_part(f, i, n, e));
    return check_parts(f, e);
}

/* Reads the config. Two architectures have the rows of q and k interleaved. */
static status read_config(gguf_files *f, model_config *c, err *e)
{
    char *arch = NULL;
    TRY(gguf_text(f->files[0], "general.architecture", 40, &arch, e));
    bool interleaved = arch && (strcmp(arch, "llama") == 0 || strcmp(arch, "mistral3") == 0);
    mem_free(arch);
    TRY(model_config_from_gguf(c, f->files, f->base.n_files, e));
    if (interleaved) f->interleaved = (size_t)c->head_dim;
    return ST_OK;
}

status source_open_gguf(tensor_source **out, model_config *c, gguf *g, err *e)
{
    static const source_kind kind = {"the file header", "gguf",       find,    interleaved,
                                     missing,           check_unused, file_at, close_files};
    gguf_files *f = NULL;
    status st = MEM_NEW(&f, 1, e);
    if (st == ST_OK) st = MEM_NEW(&f->files, 1, e);
    if (st != ST_OK) {
        gguf_close(g);
        mem_free(f);
        return st;
    }
    f->base.kind = &kind;
    f->files[0] = g;
    f->base.n_files = 1;
    *out = &f->base;
    st = open_parts(f, e);
    if (st != ST_OK) goto done;
    st = MEM_NEW(&f->used, source_n_tensors(*out), e);
    if (st == ST_OK) st = read_config(f, c, e);
done:
    if (st == ST_OK) return ST_OK;
    close_files(*out);
    *out = NULL;
    return st;
}
