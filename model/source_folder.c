/* SPDX-License-Identifier: MIT */
/* Tensors of a Hugging Face folder. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "model/source.h"

enum { INDEX_BYTES_MAX = 64 << 20, INDEX_DEPTH = 8 };

typedef struct {
    tensor_source base;
    char *dir;
    st_file **shards; /* [base.n_files] */
    char *index_path;
    json_t *index, *map; /* NULL: all tensors are in shards[0] */
    packed_claims claims;
    packed_matrix **packed; /* [n_packed] */
    size_t n_packed;
} folder;

static folder *folder_of(const tensor_source *s)
{
    return (folder *)(uintptr_t)s;
}

static status add_shard(folder *f, const char *name, err *e)
{
    char *path = path_join(f->dir, name);
    if (!path) return err_set(e, ST_NOMEM, "%s: out of memory", path_tail(f->dir));
    status st = ST_OK;
    TRY_GOTO(MEM_GROW(&f->shards, f->base.n_files + 1, e));
    TRY_GOTO(st_open(&f->shards[f->base.n_files], path, e));
    f->base.n_files++;
done:
    mem_free(path);
    return st;
}

/* Returns the shard that the index names for a tensor; opens it the first time. */
static status find_shard(folder *f, const char *name, st_file **out, err *e)
{
    const char *index = path_tail(f->index_path);
    const char *shard = json_string_value(json_object_get(f->map, name));
    if (!shard || !*shard || strchr(shard, '/') || strcmp(shard, ".") == 0 || strcmp(shard, "..") == 0)
        return err_set(e, ST_FORMAT, "%s: \"weight_map\": %s is in \"%.40s\", expected a plain file name", index, name,
                       shard ? shard : "(not a string)");
    for (size_t i = f->base.n_files; i-- > 0;) {
        const char *path = st_path(f->shards[i]);
        size_t a = strlen(path), b = strlen(shard);
        if (a > b && path[a - b - 1] == '/' && strcmp(path + a - b, shard) == 0) {
            *out = f->shards[i];
            return ST_OK;
        }
    }
    TRY(add_shard(f, shard, e));
    *out = f->shards[f->base.n_files - 1];
    return ST_OK;
}

static const char *list_name(const folder *f)
{
    return path_tail(f->map ? f->index_path : st_path(f->shards[0]));
}

static bool has_tensor(const folder *f, const char *name)
{
    return f->map ? json_object_get(f->map, name) != NULL : st_find(f->shards[0], name) != NULL;
}

enum { NAME_BYTES = 256 };

/* Writes the spelling of a weight's name that the files use: with a prefix of text models or of the text part of other
 * models. Writes "" without one. Errors: ST_FORMAT for two spellings. Source: transformers 5, rename_source_key. */
static status find_name(const folder *f, const char *name, char found[NAME_BYTES], err *e)
{
    static const char *const prefixes[] = {
        "model.", "", "language_model.", "language_model.model.", "model.language_model.", "model.model."};
    const size_t n = strlen(prefixes[0]);
    const char *bare = strncmp(name, prefixes[0], n) == 0 ? name + n : name;
    char other[NAME_BYTES];
    found[0] = 0;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        snprintf(other, sizeof other, "%s%s", prefixes[i], bare);
        if (!has_tensor(f, other)) continue;
        if (found[0])
            return err_set(e, ST_FORMAT, "%s: tensors %s and %s are the same weight; remove one of them", list_name(f),
                           found, other);
        memcpy(found, other, sizeof other);
    }
    return ST_OK;
}

static dtype element_of(const char *type)
{
    static const char *const names[] = {"F32", "F16", "BF16"};
    for (dtype d = DT_F32; d <= DT_BF16; d++)
        if (strcmp(type, names[d]) == 0) return d;
    return DT_COUNT;
}

/* Finds a tensor by its name in the files; *x stays NULL if there is none. */
static status find_tensor(folder *f, const char *name, const st_tensor **x, const char **file, err *e)
{
    st_file *in = f->map ? NULL : f->shards[0];
    *x = NULL;
    if (!has_tensor(f, name)) return ST_OK;
    if (f->map) TRY(find_shard(f, name, &in, e));
    *x = st_find(in, name);
    *file = path_tail(st_path(in));
    if (*x) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: tensor %s is missing, although the index lists it", *file, name);
}

/* Finds the first of several tensors of a matrix. */
static status find_part(folder *f, const char *stem, const char *const *suffix, const st_tensor **x, err *e)
{
    const char *file;
    char name[NAME_BYTES + 24];
    *x = NULL;
    for (; *suffix && !*x; suffix++) {
        snprintf(name, sizeof name, "%s%s", stem, *suffix);
        TRY(find_tensor(f, name, x, &file, e));
    }
    return ST_OK;
}

/* Fills in a matrix in codes, of which t is the tensor of the codes. stem: its name without ".weight". */
static status find_packed(folder *f, const char *stem, source_tensor *t, const st_tensor *codes, err *e)
{
    static const char *const scales[] = {".weight_scale_inv", ".weight_scale", ".scales", ".scale", NULL};
    static const char *const zeros[] = {".qzeros", ".weight_zero_point", NULL};
    static const char *const order[] = {".g_idx", ".weight_g_idx", NULL}, *const shape[] = {".weight_shape", NULL};
    packed_tensors parts = {.file = t->file, .codes = codes};
    packed_matrix *p;
    TRY(find_part(f, stem, scales, &parts.scales, e));
    if (t->element != DT_COUNT) {
        if (!parts.scales) return ST_OK;
        return err_set(e, ST_FORMAT, "%s: tensor %s has dtype %s, but %s scales an 8-bit or packed one", t->file,
                       t->name, t->type, parts.scales->name);
    }
    size_t n = strlen(codes->name), end = strlen(".weight");
    bool plain = n > end && strcmp(codes->name + n - end, ".weight") == 0; /* words of codes have other names */
    bool words = strcmp(t->type, "I32") == 0 && !plain;
    if (!words && strcmp(t->type, "F8_E4M3") != 0 && strcmp(t->type, "I8") != 0) return ST_OK;
    if (!parts.scales)
        return err_set(e, ST_FORMAT,
                       "%s: tensor %s has dtype %s, but %s.weight_scale_inv, .weight_scale and .scales are missing",
                       t->file, t->name, t->type, stem);
    TRY(find_part(f, stem, zeros, &parts.zeros, e));
    TRY(find_part(f, stem, order, &parts.order, e));
    TRY(find_part(f, stem, shape, &parts.shape, e));
    TRY(MEM_GROW(&f->packed, f->n_packed + 1, e));
    TRY(MEM_NEW(&p, 1, e));
    f->packed[f->n_packed++] = p;
    TRY(packed_open(p, &parts, &f->claims, e));
    if (f->n_packed > 1) packed_share_order(p, f->packed[f->n_packed - 2]);
    t->packed = p;
    t->type = p->type;
    t->shape[0] = p->rows;
    t->shape[1] = p->cols;
    return ST_OK;
}

/* Finds the spelling of a weight, or of its codes. Writes "" without one, and the length of its name before ".weight".
 */
static status find_codes(const folder *f, const char *name, char found[NAME_BYTES], size_t *stem, err *e)
{
    static const char *const codes[] = {"weight", "qweight", "weight_packed"};
    const char *suffix = strrchr(name, '.');
    char other[NAME_BYTES], spelled[NAME_BYTES];
    found[0] = 0;
    if (!suffix || strcmp(suffix, ".weight") != 0) return find_name(f, name, found, e);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        snprintf(other, sizeof other, "%.*s.%s", (int)(suffix - name), name, codes[i]);
        TRY(find_name(f, other, spelled, e));
        if (!spelled[0]) continue;
        if (found[0])
            return err_set(e, ST_FORMAT, "%s: tensors %s and %s are the same weight; remove one of them", list_name(f),
                           found, spelled);
        memcpy(found, spelled, sizeof spelled);
        *stem = (size_t)(strrchr(found, '.') - found);
    }
    return ST_OK;
}

/* Writes Mixtral's name of a router or of an expert's matrix; false for other weights. */
static bool mixtral_name(char out[NAME_BYTES], const char *name)
{
    static const char *const parts[][2] = {{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}};
    const char *mlp = strstr(name, ".mlp.");
    int expert, at = 0;
    if (!mlp) return false;
    const char *rest = mlp + strlen(".mlp.");
    const int stem = (int)(mlp - name);
    if (strcmp(rest, "gate.weight") == 0) {
        snprintf(out, NAME_BYTES, "%.*s.block_sparse_moe.%s", stem, name, rest);
        return true;
    }
    if (sscanf(rest, "experts.%d.%n", &expert, &at) != 1 || at == 0) return false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const size_t n = strlen(parts[i][0]);
        if (strncmp(rest + at, parts[i][0], n) != 0) continue;
        snprintf(out, NAME_BYTES, "%.*s.block_sparse_moe.experts.%d.%s%s", stem, name, expert, parts[i][1],
                 rest + at + n);
        return true;
    }
    return false;
}

static status find(tensor_source *s, const char *name, source_tensor *t, err *e)
{
    folder *f = folder_of(s);
    char found[NAME_BYTES], other[NAME_BYTES];
    const st_tensor *x = NULL;
    const char *file = NULL;
    size_t stem = 0;
    TRY(find_codes(f, name, found, &stem, e));
    if (!found[0] && mixtral_name(other, name)) TRY(find_codes(f, other, found, &stem, e));
    if (!found[0]) return ST_OK;
    TRY(find_tensor(f, found, &x, &file, e));
    *t = (source_tensor){
        .name = x->name, .file = file, .type = x->type, .rank = x->rank, .data = x->data, .bytes = x->bytes};
    t->element = element_of(x->type);
    memcpy(t->shape, x->shape, sizeof t->shape);
    found[stem] = 0;
    return stem ? find_packed(f, found, t, x, e) : ST_OK;
}

static status missing(const tensor_source *s, const char *name, err *e)
{
    const folder *f = folder_of(s);
    if (f->map) return err_set(e, ST_FORMAT, "%s: \"weight_map\" lacks tensor %s", list_name(f), name);
    return err_set(e, ST_FORMAT, "%s: tensor %s is missing%s", list_name(f), name,
                   strcmp(name, "lm_head.weight") == 0 ? " and config.json does not set \"tie_word_embeddings\": true"
                                                       : "");
}

static source_file file_at(const tensor_source *s, size_t i)
{
    const st_file *f = folder_of(s)->shards[i];
    return (source_file){st_path(f), st_size(f), st_count(f)};
}

static void close_folder(tensor_source *s)
{
    folder *f = folder_of(s);
    for (size_t i = 0; i < s->n_files; i++) st_close(f->shards[i]);
    mem_free(f->shards);
    for (size_t i = 0; i < f->n_packed; i++) {
        packed_close(f->packed[i]);
        mem_free(f->packed[i]);
    }
    mem_free(f->packed);
    json_decref(f->index);
    mem_free(f->index_path);
    mem_free(f->dir);
    mem_free(f);
}

static status open_files(folder *f, err *e)
{
    char *single = path_join(f->dir, "model.safetensors"), *own = path_join(f->dir, "consolidated.safetensors");
    f->index_path = path_join(f->dir, "model.safetensors.index.json");
    status st = ST_OK;
    if (!single || !own || !f->index_path) {
        st = err_set(e, ST_NOMEM, "%s: out of memory", path_tail(f->dir));
    } else if (file_exists(single)) {
        st = add_shard(f, "model.safetensors", e);
    } else if (!file_exists(f->index_path) && file_exists(own)) {
        st =
            err_set(e, ST_UNSUPPORTED,
                    "%s: consolidated.safetensors has Mistral's own names of tensors, which are not supported; use the "
                    "files config.json and model*.safetensors of the same model",
                    path_tail(f->dir));
    } else if (!file_exists(f->index_path)) {
        st = err_set(e, ST_IO,
                     "%s: no model.safetensors or model.safetensors.index.json "
                     "(other formats are not supported)",
                     path_tail(f->dir));
    } else {
        TRY_GOTO(json_read_object(&f->index, f->index_path, INDEX_BYTES_MAX, INDEX_DEPTH, e));
        f->map = json_object_get(f->index, "weight_map");
        if (!json_is_object(f->map))
            st = err_set(e, ST_FORMAT, "%s: \"weight_map\" is missing or not an object", path_tail(f->index_path));
    }
done:
    mem_free(own);
    mem_free(single);
    return st;
}

status source_open_folder(tensor_source **out, const char *dir, err *e)
{
    static const source_kind kind = {"config.json", "safetensors", find, NULL, missing, NULL, file_at, close_folder};
    folder *f;
    TRY(MEM_NEW(&f, 1, e));
    f->base.kind = &kind;
    *out = &f->base;
    f->dir = mem_strdup(dir);
    status st = f->dir ? open_files(f, e) : err_set(e, ST_NOMEM, "%s: out of memory", path_tail(dir));
    if (st == ST_OK) st = packed_read_claims(&f->claims, dir, e);
    if (st == ST_OK) return ST_OK;
    close_folder(*out);
    *out = NULL;
    return st;
}

/* ---- any source ---- */

const uint8_t *tensor_row(const source_tensor *t, size_t r, size_t *bytes)
{
    size_t rows = t->rank > 1 || t->head_dim ? t->shape[0] : 1, half = t->head_dim / 2;
    *bytes = t->bytes / rows;
    if (half) {
        size_t head = r / t->head_dim, i = r % t->head_dim;
        r = head * t->head_dim + (i < half ? 2 * i : 2 * (i - half) + 1);
    }
    return t->data + r * *bytes;
}

void tensor_copy(const source_tensor *t, size_t r, size_t first, size_t n, void *out)
{
    const size_t element = dtype_size(t->element);
    size_t bytes;
    if (!t->across) {
        memcpy(out, tensor_row(t, r, &bytes) + first * element, n * element);
        return;
    }
    const uint8_t *from = t->data + (first * t->across + r) * element;
    for (size_t i = 0; i < n; i++) memcpy((uint8_t *)out + i * element, from + i * t->across * element, element);
}

size_t source_n_tensors(const tensor_source *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_files; i++) n += s->kind->file(s, i).n_tensors;
    return n;
}

void source_close(tensor_source *s)
{
    if (s) s->kind->close(s);
}
