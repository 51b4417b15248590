/* SPDX-License-Identifier: MIT */
/* The rules of stores with quantized rows, written naively: recomputed from the first token for every state. */
#ifndef TESTS_UNIT_STORE_ORACLE_H
#define TESTS_UNIT_STORE_ORACLE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/store_impl.h"
#include "kernels/half.h"

enum { ORACLE_N = 400 }; /* most tokens */

/* State of a token's half: -1 exact, else its quantization group, whose members are listed. */
typedef struct {
    int64_t n;
    int group[KV_HALVES][ORACLE_N];
    int64_t member[KV_HALVES][ORACLE_N][ORACLE_N / 4], n_member[KV_HALVES][ORACLE_N];
    int n_groups[KV_HALVES];
    int64_t list[ORACLE_N], n_list, staged[ORACLE_N], n_staged;
} naive;

static inline void naive_group(naive *m, int half, const int64_t *tokens, int64_t n)
{
    int g = m->n_groups[half]++;
    for (int64_t i = 0; i < n; i++) {
        m->group[half][tokens[i]] = g;
        m->member[half][g][i] = tokens[i];
    }
    m->n_member[half][g] = n;
}

/* methods.md 10.3: K in groups of g below its border, V token by token below n - R. */
static inline void naive_kivi(naive *m, const kv_format *f, int64_t n)
{
    int64_t g = f->group, run[ORACLE_N / 4];
    for (int64_t j = f->sink; j < n; j++) {
        int64_t m_n = n - f->sink, border = f->residual * (m_n / f->residual);
        if (f->slide) border = m_n < f->residual ? 0 : g * ((m_n - f->residual) / g);
        if ((j - f->sink) % g == 0 && j - f->sink + g <= border) {
            for (int64_t i = 0; i < g; i++) run[i] = j + i;
            naive_group(m, KV_K, run, g);
        }
        if (j < n - f->residual) naive_group(m, KV_V, &j, 1);
    }
}

/* methods.md 11.3, token by token, thinned when the list is full. */
static inline void naive_logquant(naive *m, const kv_format *f, int64_t n)
{
    int64_t w = f->residual / 3, g = f->hf ? 1 : f->group;
    for (int64_t j = 0; j < n; j++) {
        m->list[m->n_list++] = j;
        if (m->n_list < 3 * w) continue;
        int64_t kept[ORACLE_N], n_kept = 0;
        for (int64_t i = 0; i < m->n_list; i++)
            if (i >= 2 * w || i % 2 == 0) kept[n_kept++] = m->list[i];
            else m->staged[m->n_staged++] = m->list[i];
        memcpy(m->list, kept, sizeof kept);
        m->n_list = n_kept;
        for (; m->n_staged >= g; m->n_staged -= g) {
            naive_group(m, KV_K, m->staged, g);
            for (int64_t i = 0; i < g; i++) naive_group(m, KV_V, &m->staged[i], 1);
            memmove(m->staged, m->staged + g, (size_t)(m->n_staged - g) * sizeof *m->staged);
        }
    }
}

/* Origin of a token: a step, a prompt, the last token of a prompt. */
enum { FED_STEP, FED_PROMPT, FED_END };

/* methods.md 11.11, token by token: a prompt's end quantizes everything, and so does the step at which R tokens
 * wait. */
static inline void naive_hf(naive *m, const kv_format *f, int64_t n, const unsigned char *fed_as)
{
    int64_t next = f->sink;
    for (int64_t i = 0; i < n; i++) {
        bool due = fed_as[i] == FED_END || (fed_as[i] == FED_STEP && i + 1 - next == f->residual);
        for (; due && next <= i; next++)
            for (int half = 0; half < KV_HALVES; half++) naive_group(m, half, &next, 1);
    }
}

/* fed_as: origin of each token, for rules that need it. */
static inline naive *naive_fed(const kv_format *f, int64_t n, const unsigned char *fed_as)
{
    naive *m = calloc(1, sizeof *m);
    if (!m) abort();
    m->n = n;
    memset(m->group, -1, sizeof m->group);
    if (f->kind == KV_KIVI) naive_kivi(m, f, n);
    else if (f->kind == KV_HF) naive_hf(m, f, n, fed_as);
    else naive_logquant(m, f, n);
    return m;
}

static inline naive *naive_new(const kv_format *f, int64_t n)
{
    return naive_fed(f, n, NULL);
}

static inline float as_row(const kv_format *f, float x)
{
    return f->type == DT_F32 ? x : f->type == DT_F16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x));
}

static inline float as_half(float x)
{
    return f16_to_f32(f32_to_f16(x));
}

/* Returns x as restored from a group with extremes lo and hi; methods.md 10.3, 11.7 and 11.11. */
static inline float naive_value(const kv_format *f, float x, float lo, float hi)
{
    float top = f->bits == 2 ? 3 : 15;
    if (hi == lo) return as_half(lo);
    float s = (hi - lo) / top;
    if (f->hf && !f->float_zero) {
        float zero = (float)(int8_t)(int)rintf(-lo / s), c = rintf(x / s) + zero;
        c = c < 0 ? 0 : c > top ? top : c;
        return as_half(s) * (c - zero);
    }
    return as_half(lo) + rintf((x - lo) * top / (hi - lo)) * as_half(s);
}

/* Keys and values as fed, [layer][token][head][stride] each, of which d are used. */
typedef struct {
    const float *x[KV_HALVES];
    size_t tokens, heads, stride, d;
} fed_rows;

static inline float fed_element(const fed_rows *r, const kv_format *f, int half, int layer, int64_t token, size_t head,
                                size_t ch)
{
    size_t row = ((size_t)layer * r->tokens + (size_t)token) * r->heads + head;
    return as_row(f, r->x[half][row * r->stride + ch]);
}

/* Returns the value of one element in a state. */
static inline float naive_element(const naive *m, const kv_format *f, const fed_rows *r, int half, int layer,
                                  int64_t token, size_t head, size_t ch)
{
    int g = m->group[half][token];
    float x = fed_element(r, f, half, layer, token, head, ch), lo = x, hi = x;
    if (g < 0) return x;
    bool by_channel = half == KV_K && !f->hf;
    size_t run = (size_t)f->group, first = by_channel ? ch : ch / run * run;
    size_t end = by_channel ? ch + 1 : first + run < r->d ? first + run : r->d;
    for (int64_t i = 0; i < m->n_member[half][g]; i++)
        for (size_t c = first; c < end; c++) {
            float y = fed_element(r, f, half, layer, m->member[half][g][i], head, c);
            lo = fminf(lo, y);
            hi = fmaxf(hi, y);
        }
    return naive_value(f, x, lo, hi);
}

#endif
