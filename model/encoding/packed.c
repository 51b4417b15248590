/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "model/encoding/packed.h"

#include <math.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "model/encoding/encoding.h"

/* Returns the nibble of row r in AWQ's words of 8 rows. */
static size_t awq_field(size_t r)
{
    return r % 8 / 2 + r % 2 * 4;
}

/* Returns field i of word w of an array, lowest bits first, after an addition to the word. */
static int field(const uint8_t *words, size_t w, size_t i, int bits, uint32_t add)
{
    return (int)((read_u32(words + 4 * w) + add) >> (i * (size_t)bits) & ((1u << bits) - 1));
}

static size_t words_of(size_t n, int bits)
{
    return (n * (size_t)bits + 31) / 32;
}

static int code_at(const packed_matrix *p, size_t r, size_t c)
{
    const size_t n = 32 / (size_t)p->bits;
    switch (p->kind) {
    case PACKED_INT8: return (int8_t)p->codes[r * p->cols + c];
    case PACKED_ROWS: return field(p->codes, r * words_of(p->cols, p->bits) + c / n, c % n, p->bits, 0);
    case PACKED_AWQ: return field(p->codes, c * (p->rows / 8) + r / 8, awq_field(r), 4, 0);
    case PACKED_GPTQ: return field(p->codes, c / n * p->rows + r, c % n, p->bits, 0);
    default: return p->codes[r * p->cols + c];
    }
}

static int zero_at(const packed_matrix *p, size_t r, size_t g)
{
    const size_t n = 32 / (size_t)p->bits;
    if (!p->zeros) return p->zero;
    switch (p->kind) {
    case PACKED_INT8: return (int8_t)p->zeros[r / p->block_rows * p->groups + g];
    case PACKED_ROWS: return field(p->zeros, r / n * p->groups + g, r % n, p->bits, 0);
    case PACKED_AWQ: return field(p->zeros, g * (p->rows / 8) + r / 8, awq_field(r), 4, 0);
    default: return field(p->zeros, g * words_of(p->rows, p->bits) + r / n, r % n, p->bits, p->add);
    }
}

/* Returns the group of a column, the index of its scale in a row. */
static size_t group_of(const packed_matrix *p, size_t c)
{
    return p->order ? read_u32(p->order + 4 * c) : c / p->block_cols;
}

static float read_scale(const packed_matrix *p, size_t i)
{
    float s;
    if (p->scale_type == DT_F16) decode_f16(p->scales + 2 * i, 1, &s);
    else if (p->scale_type == DT_BF16) decode_bf16(p->scales + 2 * i, 1, &s);
    else decode_f32(p->scales + 4 * i, 1, &s);
    return s;
}

static float scale_at(const packed_matrix *p, size_t r, size_t g)
{
    bool by_group = p->kind == PACKED_AWQ || p->kind == PACKED_GPTQ;
    return read_scale(p, by_group ? g * p->rows + r : r / p->block_rows * p->groups + g);
}

void packed_decode(const packed_matrix *p, size_t r, size_t c, size_t n, float *out)
{
    size_t held = SIZE_MAX;
    float s = 0;
    int zero = 0;
    for (size_t i = 0; i < n; i++) {
        size_t g = group_of(p, c + i);
        if (g != held) {
            s = scale_at(p, r, g);
            zero = zero_at(p, r, g);
            held = g;
        }
        int code = code_at(p, r, c + i);
        out[i] = (p->kind == PACKED_FP8 ? e4m3_to_f32((uint8_t)code) : (float)(code - zero)) * s;
    }
}

/* Returns the type that holds the numbers of a matrix, if its scales fit; DT_COUNT: none does. */
static dtype exact_type(const packed_matrix *p)
{
    const size_t cols = p->block_cols;
    const bool all = p->groups == 1;
    if (p->kind == PACKED_FP8) return all || cols % 128 == 0 ? DT_FP8 : DT_COUNT;
    if (p->order && !p->sorted) return DT_COUNT;
    if (p->bits == 4 && !p->narrow) return DT_COUNT;
    if (p->bits == 4) return all || cols % 128 == 0 ? DT_Q4G : cols % 32 == 0 ? DT_Q4G32 : DT_COUNT;
    if (p->order) return DT_COUNT;
    return !p->zeros && (all || cols % 32 == 0) ? DT_Q8 : DT_COUNT;
}

dtype packed_converted(const packed_matrix *p, unsigned types)
{
    dtype t = exact_type(p);
    return t < DT_COUNT && types >> t & 1 ? t : DT_Q8;
}

const int32_t *packed_order(const packed_matrix *p, dtype t)
{
    return t == exact_type(p) ? p->sorted : NULL;
}

bool packed_values(const packed_matrix *p, dtype t, size_t r, size_t c, qblock_values *out, bool *nonfinite)
{
    const int32_t *order = packed_order(p, t);
    const size_t g = c / p->block_cols, n = qblock_cols(t) < p->cols - c ? qblock_cols(t) : p->cols - c;
    const float s = scale_at(p, r, g);
    const int zero = zero_at(p, r, g);
    if (exact_type(p) != t) return false;
    *nonfinite |= !isfinite(s);
    *out = (qblock_values){.d = f32_to_f16(s), .scale = s, .z = (uint8_t)zero};
    memset(out->code, t == DT_Q8 ? 128 : t == DT_FP8 ? 0 : zero, sizeof out->code);
    for (size_t i = 0; i < n; i++) {
        int code = code_at(p, r, order ? (size_t)order[c + i] : c + i);
        if (t == DT_Q8) code += 128 - zero;
        if (t == DT_Q8 && (code < 1 || code > 255)) return false;
        if (t == DT_FP8) *nonfinite |= (code & 127) == 127;
        out->code[i] = (uint8_t)code;
    }
    return t == DT_FP8 || !isfinite(s) || f32_to_bits(f16_to_f32(out->d)) == f32_to_bits(s);
}

/* ---- checks ---- */

static status check_tensor(const packed_tensors *t, const st_tensor *x, const char *type, size_t rows, size_t cols,
                           err *e)
{
    if (strcmp(x->type, type) == 0 && x->rank == 2 && x->shape[0] == rows && x->shape[1] == cols) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: tensor %s must be %s [%zu, %zu] to fit %s", t->file, x->name, type, rows, cols,
                   t->codes->name);
}

/* Returns element i of the shape that compressed-tensors stores; 0 without one. */
static uint64_t stated(const packed_tensors *t, size_t i)
{
    const st_tensor *x = t->shape;
    bool good = x && strcmp(x->type, "I64") == 0 && x->rank == 1 && x->shape[0] == 2;
    return good ? read_u32(x->data + 8 * i) | (uint64_t)read_u32(x->data + 8 * i + 4) << 32 : 0;
}

/* Returns the columns of rows that end within a word, if they are stated, otherwise those of all words. */
static size_t stated_cols(const packed_matrix *p, const packed_tensors *t, size_t all)
{
    const uint64_t cols = stated(t, 1);
    return cols <= all && words_of((size_t)cols, p->bits) == words_of(all, p->bits) ? (size_t)cols : all;
}

/* Checks that the config's method is one that packs in this way, told by the name and the type of the codes. */
static status check_method(const packed_tensors *t, const packed_claims *q, err *e)
{
    static const struct {
        const char *suffix, *type, *methods; /* methods: those that do; others: all but these */
        bool others;
    } packings[] = {
        {".qweight", "I32", "awq gptq", false},
        {".weight_packed", "I32", "compressed-tensors", false},
        {".weight", "I8", "compressed-tensors", false},
        {".weight", "F8_E4M3", "awq gptq", true},
    };
    const char *suffix = strrchr(t->codes->name, '.');
    for (size_t i = 0; suffix && q->method && i < sizeof packings / sizeof *packings; i++) {
        if (strcmp(suffix, packings[i].suffix) != 0 || strcmp(t->codes->type, packings[i].type) != 0) continue;
        if ((strstr(packings[i].methods, q->method) != NULL) != packings[i].others) return ST_OK;
        return err_set(e, ST_FORMAT,
                       "%s: tensor %s is %s, but the quantization of %s is \"%s\", which does not write it", t->file,
                       t->codes->name, t->codes->type, q->file, q->method);
    }
    return ST_OK;
}

/* Sets the kind and the shape of the matrix from the codes. */
static status open_codes(packed_matrix *p, const packed_tensors *t, const packed_claims *q, int bits, err *e)
{
    static const char *const types[] = {"FP8", "INT8", "pack-quantized", "AWQ", "GPTQ"};
    const st_tensor *x = t->codes;
    const char *method = q->method ? q->method : "";
    const bool words = strcmp(x->type, "I32") == 0;
    if (!words) p->kind = strcmp(x->type, "I8") == 0 ? PACKED_INT8 : PACKED_FP8;
    else p->kind = strcmp(method, "awq") == 0 ? PACKED_AWQ : strcmp(method, "gptq") == 0 ? PACKED_GPTQ : PACKED_ROWS;
    if (x->rank != 2)
        return err_set(e, ST_FORMAT, "%s: tensor %s has %zu dimensions, expected 2", t->file, x->name, x->rank);
    p->type = types[p->kind];
    p->bits = words ? bits : 8;
    p->codes = x->data;
    p->rows = x->shape[0], p->cols = x->shape[1];
    if (!words) return ST_OK;
    if (p->bits != 4 && p->bits != 8)
        return err_set(e, ST_FORMAT, "%s: tensor %s has packed codes, but %s does not set 4 or 8 bits", t->file,
                       x->name, q->file ? q->file : "config.json");
    const size_t n = 32 / (size_t)p->bits;
    if (p->kind == PACKED_ROWS) p->cols = stated_cols(p, t, x->shape[1] * n);
    else if (p->kind == PACKED_AWQ) p->rows = x->shape[1] * 8, p->cols = x->shape[0];
    else p->rows = x->shape[1], p->cols = x->shape[0] * n;
    return ST_OK;
}

/* Sets the weights of a scale of types with one scale for the matrix, for a row or for a block. */
static status open_grid(packed_matrix *p, const packed_tensors *t, const packed_claims *q, const packed_scheme *m,
                        err *e)
{
    const st_tensor *x = t->scales;
    size_t n = 1, rows = x->rank ? x->shape[0] : 1, cols = x->rank > 1 ? x->shape[1] : 1;
    for (size_t i = 0; i < x->rank; i++) n *= x->shape[i];
    p->block_rows = p->rows, p->block_cols = p->cols, p->groups = 1;
    if (m->block[0]) {
        p->block_rows = m->block[0], p->block_cols = m->block[1];
        p->groups = (p->cols + m->block[1] - 1) / m->block[1];
        if (x->rank == 2 && rows == (p->rows + m->block[0] - 1) / m->block[0] && cols == p->groups) return ST_OK;
        return err_set(e, ST_FORMAT,
                       "%s: tensor %s does not have a scale for each block of %zu x %zu, which %s sets for %s", t->file,
                       x->name, m->block[0], m->block[1], q->file, t->codes->name);
    }
    if (n == 1 && x->rank <= 2) return ST_OK;
    p->block_rows = 1;
    if (x->rank <= 2 && rows == p->rows && cols == 1) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: tensor %s has a scale for each block, but %s sets no block size for %s", t->file,
                   x->name, q->file ? q->file : "no config", t->codes->name);
}

/* Sets the columns of a group. */
static status open_groups(packed_matrix *p, const packed_tensors *t, const packed_claims *q, int64_t group, err *e)
{
    const st_tensor *x = t->scales;
    const bool by_row = p->kind == PACKED_ROWS || p->kind == PACKED_INT8;
    p->block_rows = 1;
    p->block_cols = group > 0 ? (size_t)group : p->cols ? p->cols : 1;
    p->groups = (p->cols + p->block_cols - 1) / p->block_cols;
    if (x->rank == 2 && x->shape[by_row ? 0 : 1] == p->rows && x->shape[by_row ? 1 : 0] == p->groups) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: tensor %s does not fit %s with groups of %zu columns, which %s sets", t->file,
                   x->name, t->codes->name, p->block_cols, q->file ? q->file : "config.json");
}

/* Checks the stored zero points of symmetric GPTQ: 2^(bits - 1), or one less, in all fields alike. */
static status check_symmetric(const packed_matrix *p, const packed_tensors *t, err *e)
{
    const size_t words = words_of(p->rows, p->bits), n = 32 / (size_t)p->bits;
    for (size_t g = 0; g < p->groups; g++)
        for (size_t r = 0; r < p->rows; r++) {
            int z = field(p->zeros, g * words + r / n, r % n, p->bits, 0);
            if (z != p->zero && z != p->zero - 1)
                return err_set(e, ST_FORMAT, "%s: tensor %s has the zero point %d, but the config sets \"sym\": true",
                               t->file, t->zeros->name, z);
        }
    return ST_OK;
}

/* Checks that the zero points of 8-bit weights are laid out like the scales. */
static status check_bytes(const packed_tensors *t, err *e)
{
    const st_tensor *z = t->zeros, *s = t->scales;
    if (strcmp(z->type, "I8") == 0 && z->rank == s->rank && memcmp(z->shape, s->shape, z->rank * sizeof *z->shape) == 0)
        return ST_OK;
    return err_set(e, ST_FORMAT, "%s: tensor %s must be I8 with the shape of %s", t->file, z->name, s->name);
}

static status open_zeros(packed_matrix *p, const packed_tensors *t, const packed_claims *q, err *e)
{
    const size_t words = words_of(p->rows, p->bits);
    p->zero = p->kind == PACKED_FP8 || p->kind == PACKED_INT8 ? 0 : 1 << (p->bits - 1);
    if (!t->zeros) return ST_OK;
    p->zeros = t->zeros->data;
    if (p->kind == PACKED_FP8)
        return err_set(e, ST_FORMAT, "%s: tensor %s has zero points, but %s is FP8, which has none", t->file,
                       t->zeros->name, t->codes->name);
    if (p->kind == PACKED_INT8) return check_bytes(t, e);
    if (p->kind == PACKED_ROWS) return check_tensor(t, t->zeros, "I32", words, p->groups, e);
    TRY(check_tensor(t, t->zeros, "I32", p->groups, words, e));
    if (p->kind == PACKED_AWQ) return ST_OK;
    if (!q->plain_zeros) p->add = p->bits == 4 ? 0x11111111 : 0x01010101;
    if (!q->scheme[0].symmetric) return ST_OK;
    TRY(check_symmetric(p, t, e));
    p->zeros = NULL;
    return ST_OK;
}

/* Sorts the columns by their groups, if all groups have the same number of them. */
static status sort_columns(packed_matrix *p, err *e)
{
    size_t *next;
    bool equal = p->cols == p->groups * p->block_cols;
    TRY(MEM_NEW(&next, p->groups + 1, e));
    for (size_t c = 0; c < p->cols; c++) next[group_of(p, c) + 1]++;
    for (size_t g = 0; g < p->groups; g++) {
        equal = equal && next[g + 1] == p->block_cols;
        next[g + 1] += next[g];
    }
    status st = equal ? MEM_NEW(&p->sorted, p->cols, e) : ST_OK;
    for (size_t c = 0; p->sorted && c < p->cols; c++) p->sorted[next[group_of(p, c)]++] = (int32_t)c;
    mem_free(next);
    return st;
}

/* Reads the groups of the columns. Columns in order need no list. */
static status open_order(packed_matrix *p, const packed_tensors *t, err *e)
{
    const st_tensor *x = t->order;
    bool plain = true;
    if (!x) return ST_OK;
    if (strcmp(x->type, "I32") != 0 || x->rank != 1 || x->shape[0] != p->cols)
        return err_set(e, ST_FORMAT, "%s: tensor %s must be I32 [%zu] to fit %s", t->file, x->name, p->cols,
                       t->codes->name);
    for (size_t c = 0; c < p->cols; c++) {
        size_t g = read_u32(x->data + 4 * c);
        if (g >= p->groups)
            return err_set(e, ST_FORMAT, "%s: tensor %s: column %zu is in group %d of %zu", t->file, x->name, c, (int)g,
                           p->groups);
        plain = plain && g == c / p->block_cols;
    }
    if (plain) return ST_OK;
    p->order = x->data;
    return sort_columns(p, e);
}

/* True if all scales are f16 numbers, or not finite. */
static bool scales_are_narrow(const packed_matrix *p)
{
    const size_t n = p->scale_bytes / dtype_size(p->scale_type);
    if (p->scale_type == DT_F16) return true;
    for (size_t i = 0; i < n; i++) {
        float s = read_scale(p, i);
        if (isfinite(s) && f32_to_bits(f16_to_f32(f32_to_f16(s))) != f32_to_bits(s)) return false;
    }
    return true;
}

/* Checks the shape that compressed-tensors states in a tensor of its own. */
static status check_size(const packed_matrix *p, const packed_tensors *t, err *e)
{
    if (!t->shape || (stated(t, 0) == p->rows && stated(t, 1) == p->cols)) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: tensor %s must be I64 with the shape of %s, [%zu, %zu]", t->file, t->shape->name,
                   t->codes->name, p->rows, p->cols);
}

/* Opens a matrix of a scheme. */
static status open_scheme(packed_matrix *p, const packed_tensors *t, const packed_claims *q, const packed_scheme *m,
                          err *e)
{
    TRY(open_codes(p, t, q, m->bits, e));
    if (p->kind == PACKED_FP8 || (p->kind == PACKED_INT8 && m->group <= 0)) TRY(open_grid(p, t, q, m, e));
    else TRY(open_groups(p, t, q, m->group, e));
    return check_size(p, t, e);
}

/* Opens a matrix of the first scheme that fits it. */
static status choose_scheme(packed_matrix *p, const packed_tensors *t, const packed_claims *q, err *e)
{
    if (q->n <= 1) return open_scheme(p, t, q, &q->scheme[0], e);
    for (size_t i = 0; i < q->n; i++)
        if (open_scheme(p, t, q, &q->scheme[i], &(err){0}) == ST_OK) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: tensor %s and its scales fit none of the %zu schemes of %s", t->file,
                   t->codes->name, q->n, q->file);
}

status packed_open(packed_matrix *p, const packed_tensors *t, const packed_claims *q, err *e)
{
    static const char *const types[] = {"F32", "F16", "BF16"};
    *p = (packed_matrix){.scale_type = DT_COUNT};
    for (dtype d = DT_F32; d <= DT_BF16; d++)
        if (strcmp(t->scales->type, types[d]) == 0) p->scale_type = d;
    if (p->scale_type == DT_COUNT)
        return err_set(e, ST_UNSUPPORTED, "%s: tensor %s has dtype %s; scales in F32, F16 and BF16 are supported",
                       t->file, t->scales->name, t->scales->type);
    TRY(check_method(t, q, e));
    p->scales = t->scales->data;
    p->scale_bytes = t->scales->bytes;
    p->n_tensors = 2 + (t->zeros != NULL) + (t->order != NULL) + (t->shape != NULL);
    TRY(choose_scheme(p, t, q, e));
    TRY(open_zeros(p, t, q, e));
    p->narrow = scales_are_narrow(p);
    return open_order(p, t, e);
}

void packed_share_order(packed_matrix *p, const packed_matrix *with)
{
    if (!p->sorted || !with->sorted || p->cols != with->cols) return;
    if (memcmp(p->sorted, with->sorted, p->cols * sizeof *p->sorted) != 0) return;
    packed_close(p);
    p->sorted = with->sorted;
    p->borrowed = true;
}

void packed_close(packed_matrix *p)
{
    if (!p->borrowed) mem_free(p->sorted);
    p->sorted = NULL;
}
