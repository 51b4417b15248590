/* SPDX-License-Identifier: MIT */
/* A quantized folder from outside: a config.json, and a matrix whose tensors have any types and shapes. The input is
 * the config, a zero byte, then for each tensor a type and its dimensions, then the tensors' bytes. Whatever opens is
 * decoded, and converted if a type has its numbers. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "model/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TENSORS = 5, RANK_MOST = 3, DIM_MOST = 255, COLS_MOST = DIM_MOST * 8, BYTES_MOST = 1 << 18, ROWS = 8 };

typedef struct {
    const uint8_t *at, *end;
} bytes;

static size_t next(bytes *b, size_t below)
{
    return b->at < b->end ? *b->at++ % below : 0;
}

/* Describes a tensor; its data come later. */
static st_tensor read_tensor(bytes *b)
{
    static const struct {
        const char *name;
        size_t size;
    } types[] = {{"F8_E4M3", 1}, {"I8", 1}, {"I32", 4}, {"I64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"U8", 1}};
    const size_t type = next(b, sizeof types / sizeof *types);
    st_tensor t = {.name = "x.weight", .rank = next(b, RANK_MOST + 1)};
    memcpy(t.type, types[type].name, strlen(types[type].name));
    t.bytes = types[type].size;
    for (size_t i = 0; i < t.rank; i++) {
        t.shape[i] = next(b, DIM_MOST + 1);
        t.bytes *= t.shape[i];
    }
    return t;
}

/* Gives a tensor a copy of the next bytes, with zeros behind the last. */
static void fill(st_tensor *t, bytes *b)
{
    uint8_t *p = calloc(t->bytes + 1, 1);
    size_t left = (size_t)(b->end - b->at), n = t->bytes < left ? t->bytes : left;
    if (!p) exit(1);
    memcpy(p, b->at, n);
    b->at += n;
    t->data = p;
}

static void read_all(const packed_matrix *p)
{
    const dtype t = packed_converted(p, QBLOCK_TYPES | 1 << DT_Q8);
    const int32_t *order = packed_order(p, t);
    float row[COLS_MOST];
    bool nonfinite = false;
    qblock_values v;
    if (p->cols > COLS_MOST) abort();
    for (size_t c = 0; order && c < p->cols; c++)
        if (order[c] < 0 || (size_t)order[c] >= p->cols) abort();
    for (size_t r = 0; r < p->rows; r += p->rows / ROWS + 1) {
        packed_decode(p, r, 0, p->cols, row);
        for (size_t c = 0; c < p->cols; c += qblock_cols(t))
            if (!packed_values(p, t, r, c, &v, &nonfinite)) break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    packed_claims q;
    packed_matrix p;
    bool found;
    err e = {0};
    if (packed_parse_claims(&q, (const char *)data, zero ? (size_t)(zero - data) : size, &found, &e) != ST_OK) return 0;
    if (q.n > PACKED_SCHEMES) abort();
    if (!zero) return 0;
    bytes b = {zero + 1, data + size};
    const size_t has = next(&b, 8); /* of zeros, order and shape */
    st_tensor t[TENSORS];
    for (size_t i = 0; i < TENSORS; i++) {
        t[i] = read_tensor(&b);
        if (t[i].bytes > BYTES_MOST) return 0;
    }
    for (size_t i = 0; i < TENSORS; i++) fill(&t[i], &b);
    const packed_tensors parts = {
        "fuzz", &t[0], &t[1], has & 1 ? &t[2] : NULL, has & 2 ? &t[3] : NULL, has & 4 ? &t[4] : NULL};
    if (packed_open(&p, &parts, &q, &e) == ST_OK) read_all(&p);
    packed_close(&p);
    for (size_t i = 0; i < TENSORS; i++) free((void *)(uintptr_t)t[i].data);
    return 0;
}
