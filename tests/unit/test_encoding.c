/* SPDX-License-Identifier: MIT */
/* Decoders of GGUF's encodings, and conversion of their codes without loss. tests/data/gguf/types.gguf has two rows of
 * each, and types.safetensors the values that ggml's Python library reads there. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/qblock_random.h"
#include "model/encoding/encoding.h"
#include "model/safetensors.h"
#include "tests/tap.h"

static const gguf_type all[] = {GGUF_F32,  GGUF_F16,    GGUF_BF16,   GGUF_Q4_0,  GGUF_Q4_1, GGUF_Q5_0,
                                GGUF_Q5_1, GGUF_Q8_0,   GGUF_Q2_K,   GGUF_Q3_K,  GGUF_Q4_K, GGUF_Q5_K,
                                GGUF_Q6_K, GGUF_IQ4_NL, GGUF_IQ4_XS, GGUF_MXFP4, GGUF_NVFP4};
enum { N_TYPES = sizeof all / sizeof *all };

/* ---- values ---- */

/* Decodes a tensor and compares it with its values. */
static void check_values(const gguf_tensor *t, const st_tensor *want)
{
    size_t n = t->shape[0] * t->shape[1], wrong = 0;
    float *x = malloc(n * sizeof *x);
    if (!x) exit(1);
    encoding_decoder(t->encoding->type)(t->data, n / t->encoding->elements, x);
    for (size_t i = 0; i < n; i++) {
        float v;
        memcpy(&v, want->data + 4 * i, 4);
        wrong += !(x[i] == v);
    }
    ok(wrong == 0, "%s: %zu values, %zu differ", t->name, n, wrong);
    free(x);
}

static void test_values(void)
{
    gguf *g;
    st_file *f;
    err e = {0};
    if (!is_ok(gguf_open(&g, tap_path("tests/data/gguf/types.gguf"), &e), &e, "types.gguf")) return;
    if (!is_ok(st_open(&f, tap_path("tests/data/gguf/types.safetensors"), &e), &e, "types.safetensors")) exit(1);
    is_int((long long)gguf_n_tensors(g), N_TYPES, "a tensor of every encoding");
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        const st_tensor *want = st_find(f, t->name);
        is_str(t->encoding->name, t->name, "encoding");
        if (ok(want && want->rank == 2 && t->rank == 2 && want->shape[0] == t->shape[0] &&
                   want->shape[1] == t->shape[1] && strcmp(want->type, "F32") == 0,
               "%s: shape", t->name))
            check_values(t, want);
    }
    st_close(f);
    gguf_close(g);
}

/* Scales that the fixture does not have. */
static void test_odd_scales(void)
{
    uint8_t b[36] = {0};
    float x[64];
    memset(b + 1, 0x21, 16); /* codes 1 and 2: 0.5 and 1 */
    decode_mxfp4(b, 1, x);
    ok(x[0] == 0x1p-128f && x[16] == 0x1p-127f, "MXFP4: the smallest scale, 2^-127");
    b[0] = 254;
    decode_mxfp4(b, 1, x);
    ok(x[0] == 0x1p126f && x[16] == 0x1p127f, "MXFP4: the largest scale, 2^127");
    b[0] = 255;
    decode_mxfp4(b, 1, x);
    ok(isnan(x[0]) && isnan(x[16]), "MXFP4: scale 255 is NaN");
    memset(b + 4, 0x22, 32);
    memcpy(b, (const uint8_t[]){1, 0x81, 126, 127}, 4);
    decode_nvfp4(b, 1, x);
    ok(x[0] == 0x1p-9f && x[16] == 0x1p-9f, "NVFP4: the smallest scale; its top bit is ignored");
    ok(x[32] == 448 && isnan(x[48]), "NVFP4: the largest scale, and NaN");
    memset(b, 0xff, 34);
    decode_q8_0(b, 1, x);
    ok(isnan(x[0]), "Q8_0: a scale that is NaN");
    memcpy(b, (const uint8_t[]){1, 0, 0x80}, 3);
    decode_q8_0(b, 1, x);
    ok(x[0] == -128 * 0x1p-24f, "Q8_0: a subnormal scale, and code -128");
}

/* ---- codes ---- */

enum { ALL_TYPES = ~0 };

/* Compares a block that is converted to the type in memory with its decoder, bit for bit. */
static bool same_values(gguf_type type, const uint8_t *block, const qblock_values *v, size_t row)
{
    const dtype t = encoding_converted(type, ALL_TYPES);
    const size_t bytes = weight_bytes(t, QBLOCK_ROWS, qblock_cols(t));
    float want[QBLOCK_MOST], got[QBLOCK_MOST];
    unsigned char *m = calloc(1, bytes);
    if (!m) exit(1);
    qblock_put(m, t, row, v);
    encoding_decoder(type)(block, 1, want);
    qblock_row(got, m, t, qblock_cols(t), row);
    free(m);
    for (size_t c = 0; c < qblock_cols(t); c++)
        if (f32_to_bits(got[c] + 0.0f) != f32_to_bits(want[c] + 0.0f)) return false; /* MXFP4 has a code for -0 */
    return true;
}

/* An encoding with codes: bytes of a block, offsets of its f16 numbers (-1: none). */
typedef struct {
    gguf_type type;
    size_t bytes;
    int scale, minimum;
} coded;

/* Random blocks of a type with codes; for MXFP4 every scale. */
static void check_codes(const coded *x)
{
    enum { N = 4096 };
    const dtype t = encoding_converted(x->type, ALL_TYPES);
    rng r = {37};
    int wrong = 0, refused = 0, without = 0;
    for (int i = 0; i < N; i++) {
        uint8_t b[256];
        qblock_values v = {0};
        for (size_t k = 0; k < x->bytes; k++) b[k] = (uint8_t)rng_next(&r);
        if (x->scale >= 0) b[x->scale + 1] &= 0xbf; /* finite */
        if (x->minimum >= 0) b[x->minimum + 1] &= 0xbf;
        if (x->type == GGUF_MXFP4) b[0] = (uint8_t)i;
        bool fits = x->type == GGUF_MXFP4  ? b[0] >= 104 && b[0] <= 143
                    : x->type == GGUF_Q8_0 ? !memchr(b + 2, 0x80, 32)
                                           : true;
        if (!encoding_codes(x->type, t)(b, &v)) refused++;
        else if (!same_values(x->type, b, &v, (size_t)i % QBLOCK_ROWS)) wrong++;
        without += !fits;
    }
    ok(wrong == 0, "%d blocks of type %d as %s: %d differ", N, (int)x->type, dtype_name(t), wrong);
    is_int(refused, without, "refused blocks");
}

static void test_codes(void)
{
    static const coded with[] = {{GGUF_Q4_0, 18, 0, -1},    {GGUF_Q4_1, 20, 0, 2},    {GGUF_Q5_0, 22, 0, -1},
                                 {GGUF_Q8_0, 34, 0, -1},    {GGUF_Q4_K, 144, 0, 2},   {GGUF_Q5_K, 176, 0, 2},
                                 {GGUF_Q6_K, 210, 208, -1}, {GGUF_IQ4_NL, 18, 0, -1}, {GGUF_MXFP4, 17, -1, -1}};
    size_t n = 0;
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) check_codes(&with[i]);
    for (int i = 0; i < N_TYPES; i++) {
        n += encoding_codes(all[i], encoding_converted(all[i], ALL_TYPES)) != NULL;
        ok(encoding_decoder(all[i]) != NULL, "type %d has a decoder", (int)all[i]);
    }
    is_int((long long)n, sizeof with / sizeof *with, "encodings with codes");
    const unsigned few = 1u << DT_Q8 | 1u << DT_Q4;
    ok(encoding_converted(GGUF_Q4_0, few) == DT_Q4 && encoding_converted(GGUF_Q6_K, few) == DT_Q8 &&
           encoding_converted(GGUF_Q6_K, ALL_TYPES) == DT_Q6K,
       "types in memory by the backend's types");
    ok(!encoding_codes(GGUF_Q4_1, DT_Q8), "Q4_1 has no codes for q8");
}

/* ---- blocks ---- */

/* Returns weight c of a row from its numbers. */
static float value_of(const qblock_values *v, dtype t, size_t c)
{
    const qblock_kind k = qblock_kind_of(t);
    const size_t scales = (size_t)k.scales;
    float s = scales ? (float)v->s[c / QBLOCK_COLS * scales + c % QBLOCK_COLS / 16 * (scales - 1)] : 1;
    float w = f16_to_f32(v->d) * s * (float)(v->code[c] - k.offset);
    return k.minimum ? w + f16_to_f32(v->m) * (scales ? (float)v->t[c / QBLOCK_COLS] : 1) : w;
}

/* Blocks of 16 rows that are written row by row read back as the same values. Bytes a weight: as in the files, or a
 * little more. */
static void test_blocks(dtype t, double bytes)
{
    enum { ROWS = 19 };
    const size_t cols = 2 * qblock_cols(t), in_block = qblock_cols(t);
    unsigned char *m = malloc(weight_bytes(t, ROWS, cols));
    qblock_values v[ROWS][2] = {0};
    size_t wrong = 0;
    rng r = {17};
    if (!m) exit(1);
    memset(m, 0xa5, weight_bytes(t, ROWS, cols));
    for (size_t i = 0; i < 2 * ROWS; i++) {
        qblock_random(&v[i / 2][i % 2], t, 1, &r);
        qblock_put(qblock_at(m, t, cols, i / 2, i % 2), t, i / 2, &v[i / 2][i % 2]);
    }
    for (size_t i = 0; i < ROWS; i++) {
        float row[2 * QBLOCK_MOST];
        qblock_row(row, m, t, cols, i);
        for (size_t c = 0; c < cols; c++) wrong += row[c] != value_of(&v[i][c / in_block], t, c % in_block);
    }
    ok(wrong == 0, "rows in blocks of %s: %zu values differ", dtype_name(t), wrong);
    double ratio = (double)weight_bytes(t, 256, 4096) / (256 * 4096 * bytes);
    ok(ratio >= 1 && ratio <= 1.03, "%s: %.4f of the bytes in files", dtype_name(t), ratio);
    free(m);
}

int main(void)
{
    test_values();
    test_odd_scales();
    test_codes();
    test_blocks(DT_Q8, 34.0 / 32);
    test_blocks(DT_Q4, 18.0 / 32);
    test_blocks(DT_Q4Z, 20.0 / 32);
    test_blocks(DT_Q4K, 144.0 / 256);
    test_blocks(DT_Q5K, 176.0 / 256);
    test_blocks(DT_Q6K, 210.0 / 256);
    return tap_done();
}
