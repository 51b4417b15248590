/* SPDX-License-Identifier: MIT */
/* Between weights in blocks (ops_weights.h) and plain rows. */
#include "config.h"

#include "kernels/cpu/k.h"
#include "kernels/cpu/simd8.h"
#include "kernels/half.h"
#include "kernels/ops_weights.h"

enum {
    PIECE = 16, /* blocks of a row that are widened at a time */
    V8S = QBLOCK_COLS / 8,
    TRIES_PAD = 16 /* a multiple of every level's lanes */
};

/* ---- 32 weights to a scale and codes: the definition, and so the bits, at every level ---- */

/* d rounded to f16 and back. */
static void round_scales(uint16_t h[TRIES_PAD], float d[TRIES_PAD])
{
    for (int i = 0; i < TRIES_PAD; i += VF_LANES) vf_store_f16(h + i, vf_load(d + i));
    for (int i = 0; i < QBLOCK_TRIES; i++) h[i] = qblock_limit(h[i]);
    for (int i = 0; i < TRIES_PAD; i += VF_LANES) vf_store(d + i, vf_load_f16(h + i));
}

INLINE float inverse_of(float d)
{
    return d < 0 || d > 0 ? 1 / d : 0;
}

INLINE V8 code8(V8 x, float inverse, float lo, float hi)
{
    V8 v = v8_max(v8_mul(x, v8_set1(inverse)), v8_set1(lo));
    return v8_round(v8_min(v, v8_set1(hi)));
}

INLINE float error_of(const V8 x[V8S], float d)
{
    V8 sum = v8_set1(0);
    float inverse = inverse_of(d);
    UNROLL for (int i = 0; i < V8S; i++)
    {
        V8 rest = v8_sub(x[i], v8_mul(v8_set1(d), code8(x[i], inverse, -8, 7)));
        sum = v8_add(sum, v8_mul(rest, rest));
    }
    return v8_sum(sum);
}

/* extreme: ops_weights.h's e. */
static uint16_t scale_q4(const float w[QBLOCK_COLS], float extreme, float *d)
{
    uint16_t h[TRIES_PAD];
    float tried[TRIES_PAD] = {0}, least = 0;
    V8 x[V8S];
    int best = 0;
    for (int i = 0; i < V8S; i++) x[i] = v8_load(w + 8 * i);
    for (int i = 0; i < QBLOCK_TRIES; i++) tried[i] = -extreme / qblock_ends[i];
    round_scales(h, tried);
    for (int i = 0; i < QBLOCK_TRIES; i++) {
        float error = error_of(x, tried[i]);
        if (i > 0 && !(error < least)) continue;
        least = error;
        best = i;
    }
    *d = tried[best];
    return h[best];
}

static uint16_t scale_q8(float largest, float *d)
{
    uint16_t h = qblock_limit(f32_to_f16(largest / 127));
    if (h < QBLOCK_LARGEST && largest > 127.5f * f16_to_f32(h)) h++;
    *d = f16_to_f32(h);
    return h;
}

uint16_t LEVEL(k_quantize_block)(int8_t code[QBLOCK_COLS], const float w[QBLOCK_COLS], dtype t)
{
    VF most = vf_load(w), least = most, odd = vf_zero();
    for (int c = 0; c < QBLOCK_COLS; c += VF_LANES) {
        VF v = vf_load(w + c);
        most = vf_max(most, v);
        least = vf_min(least, v);
        odd = vf_add(odd, vf_sub(v, v)); /* NaN where something is not finite */
    }
    float up = vf_hmax(most), down = vf_hmax(vf_sub(vf_zero(), least)), d = 0;
    float largest = up > down ? up : down;
    memset(code, 0, QBLOCK_COLS);
    if (vf_sum(odd) != 0) return QBLOCK_NAN;
    if (!(largest > 0)) return 0;
    uint16_t h = t == DT_Q8 ? scale_q8(largest, &d) : scale_q4(w, up > down ? up : -down, &d);
    float inverse = inverse_of(d), hi = t == DT_Q8 ? 127 : 7, lo = t == DT_Q8 ? -127 : -8, r[QBLOCK_COLS];
    for (int i = 0; i < V8S; i++) v8_store(r + 8 * i, code8(v8_load(w + 8 * i), inverse, lo, hi));
    for (int c = 0; c < QBLOCK_COLS; c += VF_LANES) vf_store_s8(code + c, vf_load(r + c));
    return h;
}

/* The codes of row r of a group into its place in a block. */
static void put_row(unsigned char *block, dtype t, size_t r, uint16_t d, const int8_t code[QBLOCK_COLS])
{
    unsigned char *to = block + QBLOCK_SCALES + 4 * r;
    uint32_t q[QBLOCK_COLS / 4];
    memcpy(block + 2 * r, &d, sizeof d);
    memcpy(q, code, sizeof q);
    if (t == DT_Q8) {
        for (size_t l = 0; l < QBLOCK_COLS / 4; l++) q[l] ^= 0x80808080; /* + 128 */
        for (size_t l = 0; l < QBLOCK_COLS / 4; l++) memcpy(to + QBLOCK_LINE * l, &q[l], 4);
        return;
    }
    for (size_t l = 0; l < QBLOCK_COLS / 8; l++) { /* + 8 is a change of the highest of 4 bits */
        uint32_t low = (q[l] & 0x0f0f0f0f) ^ 0x08080808, high = (q[l + QBLOCK_COLS / 8] & 0x0f0f0f0f) ^ 0x08080808;
        low |= high << 4;
        memcpy(to + QBLOCK_LINE * l, &low, 4);
    }
}

static void quantize_row(unsigned char *group, dtype t, size_t r, const weight *w, size_t row)
{
    float x[PIECE * QBLOCK_COLS];
    int8_t code[QBLOCK_COLS];
    size_t blocks = qblock_count(w->cols);
    for (size_t b = 0; b < blocks; b += PIECE) {
        size_t from = b * QBLOCK_COLS, n = w->cols - from < PIECE * QBLOCK_COLS ? w->cols - from : PIECE * QBLOCK_COLS;
        if (row >= w->rows) n = 0;
        LEVEL(k_widen)(x, w->p.p + (row * w->cols + from) * dtype_size(w->type), w->type, n);
        memset(x + n, 0, sizeof x - n * sizeof *x);
        for (size_t i = 0; i < PIECE && b + i < blocks; i++) {
            uint16_t d = LEVEL(k_quantize_block)(code, x + i * QBLOCK_COLS, t);
            put_row(group + (b + i) * qblock_bytes(t), t, r, d, code);
        }
    }
}

void LEVEL(k_quantize)(unsigned char *out, dtype type, const weight *w, size_t g)
{
    unsigned char *group = out + g * qblock_group_bytes(type, w->cols);
    for (size_t r = 0; r < QBLOCK_ROWS; r++) quantize_row(group, type, r, w, g * QBLOCK_ROWS + r);
}

/* ---- back ---- */

static void get_row(uint8_t code[QBLOCK_COLS], const unsigned char *block, dtype t, size_t r)
{
    const unsigned char *from = block + QBLOCK_SCALES + 4 * r;
    if (t == DT_Q8) {
        for (size_t l = 0; l < QBLOCK_COLS / 4; l++) memcpy(code + 4 * l, from + QBLOCK_LINE * l, 4);
        return;
    }
    for (size_t l = 0; l < QBLOCK_COLS / 8; l++) {
        uint32_t q, low, high;
        memcpy(&q, from + QBLOCK_LINE * l, 4);
        low = q & 0x0f0f0f0f;
        high = q >> 4 & 0x0f0f0f0f;
        memcpy(code + 4 * l, &low, 4);
        memcpy(code + QBLOCK_COLS / 2 + 4 * l, &high, 4);
    }
}

/* Columns from c0 on of one row: at most a block. d (code - offset) is exact in f32. */
INLINE void unpack_block(unsigned char *out, const dtype to, const unsigned char *block, const dtype t, size_t r,
                         size_t c0, size_t cols)
{
    uint8_t code[QBLOCK_COLS];
    uint16_t h;
    memcpy(&h, block + 2 * r, sizeof h);
    get_row(code, block, t, r);
    VF d = vf_set1(f16_to_f32(h)), offset = vf_set1((float)qblock_offset(t));
    for (size_t c = 0; c < QBLOCK_COLS && c0 + c < cols; c += VF_LANES) {
        VF v = vf_mul(d, vf_sub(vf_bytes(code + c), offset));
        if (cols - c0 - c >= VF_LANES) vf_store_as(out, c0 + c, v, to);
        else vf_store_as_n(out, c0 + c, v, to, cols - c0 - c);
    }
}

INLINE void unpack_as(unsigned char *out, const dtype to, const dtype t, const weight *w, size_t r0, size_t r1)
{
    size_t cols = w->cols, bytes = qblock_bytes(t), row = cols * dtype_size(to);
    for (size_t r = r0; r < r1; r++) {
        const unsigned char *group = w->p.p + r / QBLOCK_ROWS * qblock_group_bytes(t, cols);
        for (size_t b = 0; b < qblock_count(cols); b++)
            unpack_block(out + (r - r0) * row, to, group + b * bytes, t, r % QBLOCK_ROWS, b * QBLOCK_COLS, cols);
    }
}

void LEVEL(k_unpack)(void *out, dtype to, const weight *w, size_t r0, size_t r1)
{
    if (w->type == DT_Q8 && to == DT_F32) unpack_as(out, DT_F32, DT_Q8, w, r0, r1);
    else if (w->type == DT_Q8) unpack_as(out, DT_BF16, DT_Q8, w, r0, r1);
    else if (to == DT_F32) unpack_as(out, DT_F32, DT_Q4, w, r0, r1);
    else unpack_as(out, DT_BF16, DT_Q4, w, r0, r1);
}
