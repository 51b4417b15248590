/* SPDX-License-Identifier: MIT */
/* Tokens of a quantized store: float rows with reuse, quantized rows, and the maps from slots to both. */
#include "config.h"

#include <assert.h>
#include <string.h>

#include "attention/store_impl.h"
#include "kernels/base/mem.h"

/* ---- creation and release ---- */

static status create_host(kv_quantized *s, err *e)
{
    size_t cap = (size_t)s->cap, groups = kv_codes_of(&s->f, s->cap).cap / (size_t)kv_code_group(&s->f);
    for (int h = 0; h < KV_HALVES; h++) {
        TRY(MEM_NEW(&s->at[h], cap, e));
        TRY(MEM_NEW(&s->due[h], cap, e));
    }
    TRY(MEM_NEW(&s->used, (size_t)s->n_rows, e));
    TRY(MEM_NEW(&s->host, cap, e));
    TRY(MEM_NEW(&s->halves, cap, e));
    TRY(MEM_NEW(&s->run, (size_t)s->n_rows / KV_RUN + 1, e));
    TRY(MEM_NEW(&s->mark, groups, e));
    if (kv_rule_list(&s->f)) TRY(MEM_NEW(&s->list, kv_rule_list(&s->f), e));
    if (kv_rule_staged(&s->f)) TRY(MEM_NEW(&s->staged, kv_rule_staged(&s->f), e));
    return ST_OK;
}

static status create_bufs(kv_quantized *s, err *e)
{
    const backend_ops *o = s->be->ops;
    size_t cap = (size_t)s->cap;
    for (int h = 0; h < KV_HALVES; h++) {
        TRY(o->alloc(s->be, &s->at_buf[h], cap * sizeof(int32_t), "KV map", e));
        TRY(o->alloc(s->be, &s->src[h], cap * sizeof(int64_t), "KV map", e));
    }
    return o->alloc(s->be, &s->slots, (size_t)s->chunk * sizeof(int64_t), "KV map", e);
}

status kv_quantized_create(kv_quantized **out, const kv_store_options *o, err *e)
{
    kv_quantized *s;
    int64_t cap = o->slots;
    *out = NULL;
    if (cap > INT32_MAX)
        return err_set(e, ST_UNSUPPORTED, "%s: %lld tokens: a quantized store holds at most %d", o->spec->text,
                       (long long)cap, INT32_MAX);
    TRY(MEM_NEW(&s, 1, e));
    *s = (kv_quantized){.be = o->be, .f = o->spec->kv, .cap = cap, .chunk = o->lim->chunk};
    s->n_rows = kv_float_rows(&s->f, o->lim->prompt, cap);
    status st = create_host(s, e);
    if (st == ST_OK) st = create_bufs(s, e);
    if (st != ST_OK) kv_quantized_free(s);
    else *out = s;
    return st;
}

void kv_quantized_free(kv_quantized *s)
{
    if (!s) return;
    const backend_ops *o = s->be->ops;
    size_t cap = (size_t)s->cap;
    for (int h = 0; h < KV_HALVES; h++) {
        if (s->at_buf[h].p) o->free(s->be, s->at_buf[h], cap * sizeof(int32_t));
        if (s->src[h].p) o->free(s->be, s->src[h], cap * sizeof(int64_t));
        mem_free(s->at[h]);
        mem_free(s->due[h]);
    }
    if (s->slots.p) o->free(s->be, s->slots, (size_t)s->chunk * sizeof(int64_t));
    mem_free(s->used);
    mem_free(s->host);
    mem_free(s->halves);
    mem_free(s->run);
    mem_free(s->mark);
    mem_free(s->list);
    mem_free(s->staged);
    mem_free(s);
}

void kv_quantized_reset(kv_quantized *s)
{
    memset(s->used, 0, (size_t)s->n_rows * sizeof *s->used);
    memset(s->n_coded, 0, sizeof s->n_coded);
    memset(s->n_due, 0, sizeof s->n_due);
    s->n_runs = 0;
    s->n = s->n_settled = s->lowest = s->n_list = s->n_staged = 0;
}

/* ---- forwards ---- */

static int64_t take_row(kv_quantized *s)
{
    while (s->lowest < s->n_rows && s->used[s->lowest]) s->lowest++;
    assert(s->lowest < s->n_rows);
    s->used[s->lowest] = true;
    return s->lowest;
}

static void release_row(kv_quantized *s, int64_t row)
{
    s->used[row] = false;
    if (row < s->lowest) s->lowest = row;
}

static void upload_map(kv_quantized *s, int half, int64_t lo, int64_t hi)
{
    s->be->ops->upload(s->be, buf_at(s->at_buf[half], (size_t)lo * sizeof(int32_t)), s->at[half] + lo,
                       (size_t)(hi - lo) * sizeof(int32_t));
}

/* Finds runs of float rows that are free once the due tokens are quantized. */
static void find_runs(kv_quantized *s)
{
    int64_t n = s->n < s->n_rows ? s->n : s->n_rows; /* upper bound of the rows ever used */
    memset(s->halves, 0, (size_t)n);
    for (int h = 0; h < KV_HALVES; h++) {
        for (int64_t j = 0; j < s->n; j++)
            if (s->at[h][j] >= 0) s->halves[s->at[h][j]]++;
        for (int64_t i = 0; i < s->n_due[h]; i++) s->halves[s->at[h][s->due[h][i]]]--;
    }
    for (int64_t from = 0, to; from < n; from = to + 1) {
        for (to = from; to < n && s->halves[to] == 0;) to++;
        if (to - from < KV_RUN) continue;
        s->run[s->n_runs].from = from;
        s->run[s->n_runs++].to = to;
    }
}

void kv_quantized_begin(kv_quantized *s, int64_t first, int64_t n_tok, unsigned flags)
{
    s->first = first;
    s->n = first + n_tok;
    s->n_runs = 0;
    for (int64_t i = 0; i < n_tok; i++) {
        s->host[i] = take_row(s);
        s->at[KV_K][first + i] = s->at[KV_V][first + i] = (int32_t)s->host[i];
    }
    s->be->ops->upload(s->be, s->slots, s->host, (size_t)n_tok * sizeof *s->host);
    for (int h = 0; h < KV_HALVES; h++) upload_map(s, h, first, s->n);
    /* Quantization waits for the end of a prompt (methods.md 0.2.7). */
    if ((flags & ATTN_PROMPT) && !(flags & ATTN_PROMPT_END)) return;
    kv_rule_due(s, s->n, flags & ATTN_PROMPT);
    if (flags & ATTN_PROMPT) find_runs(s);
    for (int h = 0; h < KV_HALVES; h++) {
        for (int64_t i = 0; i < s->n_due[h]; i++) s->host[i] = s->at[h][s->due[h][i]];
        s->be->ops->upload(s->be, s->src[h], s->host, (size_t)s->n_due[h] * sizeof *s->host);
    }
}

void kv_quantized_layer_end(kv_quantized *s, const kv_rows *rows)
{
    const codes_ops *o = s->be->ops->codes;
    kv_rows r = *rows;
    r.codes.bits = s->f.bits;
    if (s->n_due[KV_K]) o->encode(s->be, &r, false, s->src[KV_K], (size_t)s->n_coded[KV_K], (size_t)s->n_due[KV_K]);
    if (s->n_due[KV_V]) o->encode(s->be, &r, true, s->src[KV_V], (size_t)s->n_coded[KV_V], (size_t)s->n_due[KV_V]);
}

/* Moves the due tokens from float rows to quantized rows in the maps. */
static void apply_due(kv_quantized *s, int h)
{
    int64_t lo = s->n, hi = 0;
    for (int64_t i = 0; i < s->n_due[h]; i++) {
        int64_t j = s->due[h][i], row = s->at[h][j];
        s->at[h][j] = (int32_t)(-1 - (s->n_coded[h] + i));
        if (s->at[!h][j] < 0) release_row(s, row);
        lo = j < lo ? j : lo;
        hi = j + 1 > hi ? j + 1 : hi;
    }
    s->n_coded[h] += s->n_due[h];
    s->n_due[h] = 0;
    if (lo < hi) upload_map(s, h, lo, hi);
}

void kv_quantized_end(kv_quantized *s)
{
    for (int h = 0; h < KV_HALVES; h++) apply_due(s, h);
}

bool kv_quantized_rewind(kv_quantized *s, int64_t n)
{
    if (!kv_rule_rewind(s, n)) return false;
    for (int64_t j = n; j < s->n; j++) release_row(s, s->at[KV_K][j]);
    s->n = n;
    return true;
}

/* Checks that the quantized rows of each half are the first n_coded, each used once, and that every token without both
 * halves quantized has its own float row. */
static status check_maps(kv_quantized *s, err *e)
{
    for (int h = 0; h < KV_HALVES; h++) {
        int64_t coded = 0;
        memset(s->halves, 0, (size_t)s->cap);
        for (int64_t j = 0; j < s->n; j++) {
            int64_t row = -1 - (int64_t)s->at[h][j];
            if (row < 0) continue;
            if (row >= s->n_coded[h] || s->halves[row]) return state_bad("a quantized row", e);
            s->halves[row] = 1;
            coded++;
        }
        if (coded != s->n_coded[h]) return state_bad("the number of quantized rows", e);
    }
    memset(s->used, 0, (size_t)s->n_rows * sizeof *s->used);
    for (int64_t j = 0; j < s->n; j++) {
        int64_t k = s->at[KV_K][j], v = s->at[KV_V][j], row = k < 0 ? v : k;
        if (row < 0) continue;
        if ((v >= 0 && v != row) || row >= s->n_rows || s->used[row]) return state_bad("an unquantized row", e);
        s->used[row] = true;
    }
    return ST_OK;
}

static status load_maps(kv_quantized *s, err *e)
{
    int64_t group = kv_code_group(&s->f);
    TRY(check_maps(s, e));
    if (s->n_coded[KV_K] % group) return state_bad("keys of a partial group", e);
    TRY(kv_rule_check(s, e));
    s->n_settled = s->n;
    s->lowest = 0;
    for (int h = 0; h < KV_HALVES; h++) upload_map(s, h, 0, s->n);
    return ST_OK;
}

status kv_quantized_state(kv_quantized *s, attn_state *v, int64_t n, int64_t *n_rows, err *e)
{
    s->n = n;
    for (int h = 0; h < KV_HALVES; h++)
        TRY(v->host(v, h == KV_K ? "K map" : "V map", -1, s->at[h], (size_t)n * sizeof **s->at, e));
    TRY(v->host(v, "tokens in codes", -1, s->n_coded, sizeof s->n_coded, e));
    for (int h = 0; h < KV_HALVES; h++) TRY(state_within("tokens in codes", s->n_coded[h], 0, n, e));
    if (kv_rule_list(&s->f)) {
        TRY(STATE_HOST(v, "exact tokens", &s->n_list, e));
        TRY(state_within("exact tokens", s->n_list, 0, (int64_t)kv_rule_list(&s->f) - 1, e));
        TRY(v->host(v, "exact tokens: list", -1, s->list, (size_t)s->n_list * sizeof *s->list, e));
        TRY(STATE_HOST(v, "staged tokens", &s->n_staged, e));
        TRY(state_within("staged tokens", s->n_staged, 0, kv_code_group(&s->f) - 1, e));
        TRY(v->host(v, "staged tokens: list", -1, s->staged, (size_t)s->n_staged * sizeof *s->staged, e));
    }
    if (v->load) TRY(load_maps(s, e));
    for (*n_rows = s->n_rows; *n_rows > 0 && !s->used[*n_rows - 1];) --*n_rows;
    return ST_OK;
}

size_t kv_quantized_bytes_of(const kv_quantized *s, size_t head_dim, const int64_t *pos, int64_t n)
{
    int64_t group = kv_code_group(&s->f), n_coded[KV_HALVES] = {0};
    for (int64_t i = 0; i < n; i++) {
        int64_t row = -1 - s->at[KV_K][pos[i]];
        if (row >= 0) s->mark[row / group] = false;
    }
    size_t k_groups = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = -1 - s->at[KV_K][pos[i]];
        n_coded[KV_V] += s->at[KV_V][pos[i]] < 0;
        if (row < 0) continue;
        n_coded[KV_K]++;
        if (s->mark[row / group]) continue;
        s->mark[row / group] = true;
        k_groups++;
    }
    return k_groups * kv_code_bytes(&s->f, head_dim, KV_K, group) +
           (size_t)(n - n_coded[KV_K]) * head_dim * dtype_size(s->f.type) +
           kv_half_bytes(&s->f, head_dim, KV_V, n, n_coded[KV_V]);
}
