/* SPDX-License-Identifier: MIT */
/* Conversion between weights in blocks (ops_weights.h) and plain rows. */
#include "config.h"

#include "kernels/cpu/k.h"
#include "kernels/cpu/simd8.h"
#include "kernels/half.h"
#include "kernels/ops_weights.h"

enum {
    PIECE = 16, /* blocks of a row widened at a time */
    V8S = QBLOCK_COLS / 8,
    TRIES_PAD = 16 /* a multiple of every level's lanes */
};

/* ---- quantizing 32 weights, with the same bits at every level ---- */

/* Rounds d to f16 and back. */
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

/* extreme: e of ops_weights.h */
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
        odd = vf_add(odd, vf_sub(v, v)); /* NaN if an element is not finite */
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

/* Stores the codes of row r of a group in a block. */
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
    for (size_t l = 0; l < QBLOCK_COLS / 8; l++) { /* + 8 flips the highest of 4 bits */
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

/* ---- unpacking ---- */

/* Reads the codes of row r from the lines of a part, 4 neighbouring columns at a time. */
INLINE void get_row(uint8_t code[QBLOCK_COLS], const unsigned char *line, const qblock_kind k, size_t r)
{
    enum { LINES = QBLOCK_COLS / 8 };
    const int bits = k.bits;
    uint32_t q[QBLOCK_COLS / 4], up[2] = {0};
    if (k.floats) {
        for (size_t c = 0; c < QBLOCK_COLS; c++) code[c] = line[QBLOCK_ROWS * c + r];
        return;
    }
    for (size_t l = 0; l < (bits == 8 ? 2 * LINES : LINES); l++) memcpy(&q[l], line + QBLOCK_LINE * l + 4 * r, 4);
    if (bits >= 5 && bits < 8) memcpy(&up[0], line + QBLOCK_LINE * LINES + 4 * r, 4);
    if (bits == 6) memcpy(&up[1], line + QBLOCK_LINE * (LINES + 1) + 4 * r, 4);
    for (size_t l = 0; l < LINES && bits < 8; l++) {
        uint32_t low = q[l] & 0x0f0f0f0f, high = q[l] >> 4 & 0x0f0f0f0f;
        if (bits == 5) low |= (up[0] >> l & 0x01010101) << 4, high |= (up[0] >> (4 + l) & 0x01010101) << 4;
        if (bits == 6) low |= (up[0] >> 2 * l & 0x03030303) << 4, high |= (up[1] >> 2 * l & 0x03030303) << 4;
        q[l] = low, q[LINES + l] = high;
    }
    memcpy(code, q, sizeof q);
}

/* Unpacks columns from c0 on of row r of a group, at most a part's. The products are exact in f32, but for those of
 * DT_FP8, and a sum is rounded once. */
INLINE void unpack_part(unsigned char *out, const dtype to, const unsigned char *head, const unsigned char *part,
                        const dtype t, size_t r, size_t c0, size_t cols)
{
    const qblock_kind k = qblock_kind_of(t);
    uint8_t code[QBLOCK_COLS];
    float d = qblock_scale(head, t, r), m = k.minimum ? qblock_f16(head + QBLOCK_SCALES, r) : 0;
    if (k.minimum && k.scales) m *= (float)(int8_t)part[(size_t)QBLOCK_ROWS * (size_t)k.scales + r];
    get_row(code, part + qblock_factor_bytes(t), k, r);
    VF offset = vf_set1((float)qblock_zero(head, t, r)), minimum = vf_set1(m);
    for (size_t c = 0; c < QBLOCK_COLS && c0 + c < cols; c += VF_LANES) {
        size_t of = k.scales == 2 ? c / (QBLOCK_COLS / 2) : 0;
        float s = k.scales ? (float)(int8_t)part[QBLOCK_ROWS * of + r] : 1;
        VF v = k.floats ? vf_mul(vf_e4m3(code + c), vf_set1(256)) : vf_sub(vf_bytes(code + c), offset);
        v = vf_mul(vf_set1(d * s), v);
        if (k.minimum) v = vf_add(v, minimum);
        if (cols - c0 - c >= VF_LANES) vf_store_as(out, c0 + c, v, to);
        else vf_store_as_n(out, c0 + c, v, to, cols - c0 - c);
    }
}

INLINE void unpack_as(unsigned char *out, const dtype to, const dtype t, const weight *w, size_t r0, size_t r1)
{
    const size_t cols = w->cols, parts = qblock_cols(t) / QBLOCK_COLS, row = cols * dtype_size(to);
    for (size_t r = r0; r < r1; r++) {
        const unsigned char *group = w->p.p + r / QBLOCK_ROWS * qblock_group_bytes(t, cols);
        for (size_t b = 0; b < qblock_count(cols); b++) {
            const unsigned char *head = group + b / parts * qblock_bytes(t);
            const unsigned char *part = head + qblock_head_bytes(t) + b % parts * qblock_part_bytes(t);
            unpack_part(out + (r - r0) * row, to, head, part, t, r % QBLOCK_ROWS, b * QBLOCK_COLS, cols);
        }
    }
}

INLINE void unpack_to(unsigned char *out, const dtype to, const weight *w, size_t r0, size_t r1)
{
    switch (w->type) {
    case DT_Q8: unpack_as(out, to, DT_Q8, w, r0, r1); break;
    case DT_Q4: unpack_as(out, to, DT_Q4, w, r0, r1); break;
    case DT_Q4Z: unpack_as(out, to, DT_Q4Z, w, r0, r1); break;
    case DT_Q4K: unpack_as(out, to, DT_Q4K, w, r0, r1); break;
    case DT_Q5K: unpack_as(out, to, DT_Q5K, w, r0, r1); break;
    case DT_Q6K: unpack_as(out, to, DT_Q6K, w, r0, r1); break;
    case DT_FP8: unpack_as(out, to, DT_FP8, w, r0, r1); break;
    case DT_Q4G: unpack_as(out, to, DT_Q4G, w, r0, r1); break;
    default: unpack_as(out, to, DT_Q4G32, w, r0, r1); break;
    }
}

void LEVEL(k_unpack)(void *out, dtype to, const weight *w, size_t r0, size_t r1)
{
    if (to == DT_F32) unpack_to(out, DT_F32, w, r0, r1);
    else unpack_to(out, DT_BF16, w, r0, r1);
}
