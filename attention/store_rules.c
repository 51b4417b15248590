/* SPDX-License-Identifier: MIT */
/* Rules of quantized stores: the tokens that are quantized at each step. */
#include "config.h"

#include <string.h>

#include "attention/store_impl.h"
#include "kernels/base/mem.h"

static void add_due(kv_quantized *s, int half, int64_t token)
{
    s->due[half][s->n_due[half]++] = (int32_t)token;
}

/* Counts the tokens after the sinks that are quantized once the sequence has n tokens. Source: methods.md 10.3. */
static void kivi_coded(const kv_format *f, int64_t n, int64_t coded[KV_HALVES])
{
    int64_t m = n > f->sink ? n - f->sink : 0, old = m > f->residual ? m - f->residual : 0;
    coded[KV_K] = f->slide ? old / f->group * f->group : m / f->residual * f->residual;
    coded[KV_V] = old;
}

static void kivi_due(kv_quantized *s, int64_t n)
{
    int64_t border[KV_HALVES];
    kivi_coded(&s->f, n, border);
    for (int h = 0; h < KV_HALVES; h++)
        for (int64_t j = s->n_coded[h]; j < border[h]; j++) add_due(s, h, s->f.sink + j);
}

/* Quantizes a whole prompt, then later tokens R at a time. Source: methods.md 11.11 (transformers' QuantizedCache). */
static void hf_due(kv_quantized *s, int64_t n, bool prompt_end)
{
    int64_t first = s->f.sink + s->n_coded[KV_K];
    if (!prompt_end && n - first < s->f.residual) return;
    for (int h = 0; h < KV_HALVES; h++)
        for (int64_t j = first; j < n; j++) add_due(s, h, j);
}

static int64_t log_window(const kv_format *f)
{
    return f->residual / 3;
}

/* Thins the list, A <- A[0:2W:2] ++ A[2W:3W], and stages the removed tokens. */
static void thin(kv_quantized *s)
{
    int64_t w = log_window(&s->f);
    for (int64_t i = 0; i < w; i++) {
        s->staged[s->n_staged++] = s->list[2 * i + 1];
        s->list[i] = s->list[2 * i];
    }
    memmove(s->list + w, s->list + 2 * w, (size_t)w * sizeof *s->list);
    s->n_list = 2 * w;
}

/* Adds tokens to the list and thins it as soon as it is full. Source: methods.md 11.3 (LogQuant, Alg. 1). */
static void logquant_due(kv_quantized *s, int64_t n)
{
    int64_t g = kv_code_group(&s->f);
    for (int64_t j = s->n_settled; j < n; j++) {
        s->list[s->n_list++] = (int32_t)j;
        if (s->n_list < 3 * log_window(&s->f)) continue;
        thin(s);
        int64_t take = s->n_staged / g * g;
        for (int64_t i = 0; i < take; i++)
            for (int h = 0; h < KV_HALVES; h++) add_due(s, h, s->staged[i]);
        s->n_staged -= take;
        memmove(s->staged, s->staged + take, (size_t)s->n_staged * sizeof *s->staged);
    }
}

void kv_rule_due(kv_quantized *s, int64_t n, bool prompt_end)
{
    if (s->f.kind == KV_KIVI) kivi_due(s, n);
    else if (s->f.kind == KV_HF) hf_due(s, n, prompt_end);
    else logquant_due(s, n);
    s->n_settled = n;
}

/* Rebuilds the lists for n tokens; returns the number of quantized tokens. */
static int64_t logquant_replay(kv_quantized *s, int64_t n)
{
    s->n_settled = s->n_list = s->n_staged = 0;
    logquant_due(s, n);
    s->n_settled = n;
    int64_t coded = s->n_due[KV_K];
    s->n_due[KV_K] = s->n_due[KV_V] = 0;
    return coded;
}

bool kv_rule_rewind(kv_quantized *s, int64_t n)
{
    int64_t coded[KV_HALVES] = {0}, settled = s->n_settled;
    if (n >= settled) return true;
    if (s->f.kind == KV_LOGQUANT) coded[KV_K] = coded[KV_V] = logquant_replay(s, n);
    else if (s->f.kind == KV_KIVI) kivi_coded(&s->f, n, coded);
    /* HF: possible only if all quantized tokens remain. */
    else if (n >= s->f.sink + s->n_coded[KV_K]) coded[KV_K] = coded[KV_V] = s->n_coded[KV_K];
    if (coded[KV_K] == s->n_coded[KV_K] && coded[KV_V] == s->n_coded[KV_V]) {
        s->n_settled = n;
        return true;
    }
    if (s->f.kind == KV_LOGQUANT) (void)logquant_replay(s, settled);
    return false;
}

/* Checks that quantized tokens follow the sinks, oldest first; HF: equally many in both halves. */
static status order_check(const kv_quantized *s, err *e)
{
    if (s->f.kind == KV_HF && s->n_coded[KV_K] != s->n_coded[KV_V]) return state_bad("the number of quantized rows", e);
    for (int h = 0; h < KV_HALVES; h++)
        for (int64_t i = 0; i < s->n_coded[h]; i++)
            if (s->f.sink + i >= s->n || s->at[h][s->f.sink + i] != -1 - i)
                return state_bad("the order of quantized tokens", e);
    return ST_OK;
}

/* Checks that each unquantized token is in exactly one list, once, and that both halves of a token are quantized
 * together. `list` ascends; `staged` does not, since it comes from several thinnings. */
static status logquant_check(kv_quantized *s, err *e)
{
    const int32_t *const lists[] = {s->list, s->staged};
    const int64_t count[] = {s->n_list, s->n_staged};
    memset(s->halves, 0, (size_t)s->cap);
    for (int l = 0; l < 2; l++)
        for (int64_t i = 0; i < count[l]; i++) {
            int64_t j = lists[l][i];
            if (j < 0 || j >= s->n || s->halves[j] || (l == 0 && i > 0 && j <= lists[l][i - 1]))
                return state_bad("the lists of unquantized tokens", e);
            s->halves[j] = 1;
        }
    for (int64_t j = 0; j < s->n; j++)
        if (s->at[KV_K][j] != s->at[KV_V][j] || (s->at[KV_K][j] >= 0) != s->halves[j])
            return state_bad("the set of unquantized tokens", e);
    return ST_OK;
}

status kv_rule_check(kv_quantized *s, err *e)
{
    return s->f.kind == KV_LOGQUANT ? logquant_check(s, e) : order_check(s, e);
}

/* Clears the marks of tokens that the HF rule quantizes. */
static void hf_float(const kv_format *f, int64_t prompt, int64_t n, bool *is_float)
{
    int64_t coded = f->sink; /* end of the quantized tokens */
    if (prompt > coded) coded = prompt;
    if (n > coded) coded += (n - coded) / f->residual * f->residual;
    for (int64_t i = f->sink; i < coded && i < n; i++) is_float[i] = false;
}

status kv_float_tokens(const kv_format *f, int64_t prompt, int64_t n, bool *is_float, err *e)
{
    kv_quantized s = {.f = *f};
    status st = ST_OK;
    for (int64_t i = 0; i < n; i++) is_float[i] = true;
    if (!kv_has_codes(f)) return ST_OK;
    if (f->kind == KV_HF) {
        hf_float(f, prompt, n, is_float);
        return ST_OK;
    }
    for (int h = 0; h < KV_HALVES; h++)
        if (st == ST_OK) st = MEM_NEW(&s.due[h], (size_t)n + 1, e);
    if (st == ST_OK) st = MEM_NEW(&s.list, kv_rule_list(f) + 1, e);
    if (st == ST_OK) st = MEM_NEW(&s.staged, kv_rule_staged(f) + 1, e);
    if (st == ST_OK) kv_rule_due(&s, n, true);
    /* One half of a token may be quantized before the other. Tokens of the smaller set are quantized in both. */
    int half = s.n_due[KV_K] > s.n_due[KV_V] ? KV_V : KV_K;
    for (int64_t i = 0; i < s.n_due[half] && st == ST_OK; i++) is_float[s.due[half][i]] = false;
    for (int h = 0; h < KV_HALVES; h++) mem_free(s.due[h]);
    mem_free(s.list);
    mem_free(s.staged);
    return st;
}

int64_t kv_float_newest(const kv_format *f)
{
    if (f->kind == KV_LOGQUANT) return log_window(f);
    return f->residual + (f->kind == KV_KIVI && f->slide ? f->group : 0);
}

size_t kv_rule_list(const kv_format *f)
{
    return f->kind == KV_LOGQUANT ? (size_t)(3 * log_window(f)) : 0;
}

size_t kv_rule_staged(const kv_format *f)
{
    return f->kind == KV_LOGQUANT ? (size_t)(log_window(f) + kv_code_group(f)) : 0;
}
