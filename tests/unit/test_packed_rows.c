/* SPDX-License-Identifier: MIT */
/* Decoding of matrices in codes with scales of their own, and conversion of their codes without loss.
 * tests/data/packed/rows.safetensors has one of each packing, with its weights. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/encoding/packed.h"
#include "tests/tap.h"

/* held: the type that has the numbers of a matrix; NULL: they are rounded. */
static const struct {
    const char *name, *method, *held;
} cases[] = {
    {"fp8-scalar", "fp8", "fp8"},
    {"fp8-scalar-f16", "fp8", "fp8"},
    {"fp8-rows", "fp8", "fp8"},
    {"fp8-rows-f32", "fp8", "fp8"},
    {"fp8-blocks", "fp8", "fp8"},
    {"fp8-small-blocks", "fp8", NULL},
    {"awq-32", "awq", "q4g32"},
    {"awq-64", "awq", "q4g32"},
    {"awq-128", "awq", "q4g"},
    {"awq-column", "awq", "q4g"},
    {"awq-no-zeros", "awq", "q4g32"},
    {"gptq-32", "gptq", "q4g32"},
    {"gptq-v2-64", "gptq", "q4g32"},
    {"gptq-128-symmetric", "gptq", "q4g"},
    {"gptq-symmetric-plain", "gptq", "q4g"},
    {"gptq-listed", "gptq", "q4g32"},
    {"gptq-scattered", "gptq", "q4g32"},
    {"gptq-scattered-128", "gptq", "q4g"},
    {"gptq-8", "gptq", NULL},
    {"gptq-8-symmetric", "gptq", NULL}, /* has the code 0 */
    {"packed-32", "compressed-tensors", "q4g32"},
    {"packed-64-zeros", "compressed-tensors", "q4g32"},
    {"packed-128-zeros", "compressed-tensors", "q4g"},
    {"packed-rows", "compressed-tensors", "q4g"},
    {"packed-scattered", "compressed-tensors", "q4g32"},
    {"packed-8", "compressed-tensors", NULL}, /* has the code 0 */
    {"packed-8-zeros", "compressed-tensors", NULL},
    {"int8-rows", "compressed-tensors", "q8"},
    {"int8-lowest", "compressed-tensors", NULL},
    {"int8-scalar", "compressed-tensors", NULL}, /* its scale is no f16 number */
};

enum { ROW_MOST = 256 };

static const st_tensor *part(const st_file *f, const char *name, const char *of)
{
    char full[64];
    snprintf(full, sizeof full, "%s.%s", name, of);
    return st_find(f, full);
}

static int32_t number(const st_tensor *x, size_t i)
{
    int32_t v;
    memcpy(&v, x->data + sizeof v * i, sizeof v);
    return v;
}

static status open_case(packed_matrix *p, const st_file *f, const char *name, const char *method, err *e)
{
    const st_tensor *c = part(f, name, "claims");
    const packed_claims q = {.file = "config.json",
                             .method = method,
                             .plain_zeros = number(c, 3),
                             .scheme = {{.bits = number(c, 0),
                                         .group = number(c, 1),
                                         .symmetric = number(c, 2),
                                         .block = {(size_t)number(c, 4), (size_t)number(c, 5)}}},
                             .n = 1};
    const packed_tensors t = {"rows.safetensors",     part(f, name, "codes"), part(f, name, "scales"),
                              part(f, name, "zeros"), part(f, name, "order"), part(f, name, "shape")};
    return packed_open(p, &t, &q, e);
}

/* Counts the rows that differ in a bit, decoded as a whole and from column `from` on. */
static size_t wrong_rows(const packed_matrix *p, const uint8_t *want, size_t from)
{
    float row[ROW_MOST];
    size_t wrong = 0;
    for (size_t r = 0; r < p->rows; r++) {
        packed_decode(p, r, from, p->cols - from, row);
        wrong += memcmp(row, want + sizeof *row * (r * p->cols + from), sizeof *row * (p->cols - from)) != 0;
    }
    return wrong;
}

/* Converts the codes to blocks of type t. False if the type does not hold them. */
static bool convert(const packed_matrix *p, dtype t, unsigned char *blocks)
{
    bool nonfinite = false;
    memset(blocks, 0, weight_bytes(t, p->rows, p->cols));
    for (size_t r = 0; r < p->rows; r++)
        for (size_t b = 0; b * qblock_cols(t) < p->cols; b++) {
            qblock_values v;
            if (!packed_values(p, t, r, b * qblock_cols(t), &v, &nonfinite)) return false;
            qblock_put(qblock_at(blocks, t, p->cols, r, b), t, r, &v);
        }
    return !nonfinite;
}

static void check_conversion(const packed_matrix *p, const uint8_t *want, const char *name, const char *held)
{
    const dtype t = packed_converted(p, (1u << DT_COUNT) - 1);
    unsigned char *blocks = malloc(weight_bytes(t, p->rows, p->cols));
    if (!blocks) exit(1);
    const bool same = convert(p, t, blocks);
    is_str(same ? dtype_name(t) : "rounded", held ? held : "rounded", "%s: type in memory", name);
    const int32_t *order = packed_order(p, t);
    size_t wrong = 0;
    for (size_t r = 0; r < p->rows && same; r++) {
        float row[ROW_MOST];
        qblock_row(row, blocks, t, p->cols, r);
        for (size_t c = 0; c < p->cols; c++) {
            size_t from = order ? (size_t)order[c] : c;
            wrong += memcmp(&row[c], want + sizeof *row * (r * p->cols + from), sizeof *row) != 0;
        }
    }
    is_int((long long)wrong, 0, "%s: weights of blocks that differ", name);
    free(blocks);
}

int main(void)
{
    st_file *f;
    err e = {0};
    if (!is_ok(st_open(&f, tap_path("tests/data/packed/rows.safetensors"), &e), &e, "rows.safetensors")) return 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *name = cases[i].name;
        const st_tensor *want = part(f, name, "decoded");
        packed_matrix p;
        if (!is_ok(open_case(&p, f, name, cases[i].method, &e), &e, "%s: opens", name)) continue;
        if (!ok(want->shape[0] == p.rows && want->shape[1] == p.cols && p.cols <= ROW_MOST, "%s: shape", name))
            continue;
        is_int((long long)wrong_rows(&p, want->data, 0), 0, "%s: rows that differ", name);
        is_int((long long)wrong_rows(&p, want->data, 41), 0, "%s: ends of rows that differ", name);
        check_conversion(&p, want->data, name, cases[i].held);
        packed_close(&p);
    }
    st_close(f);
    return tap_done();
}
