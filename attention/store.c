/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/store_impl.h"
#include "kernels/base/mem.h"

/* ---- creation and release ---- */

static status create_layer(kv_store *s, int layer, int64_t cap, err *e)
{
    kv_rows *r = &s->layer[layer];
    sized_buf codes[N_CODE_BUFS];
    size_t bytes;
    int64_t align = s->tier && s->tier->kind->align ? (int64_t)s->tier->kind->align : 1;
    int64_t rows = s->coded ? kv_float_rows(&s->f, s->prompt, cap) : cap;
    cap = (cap + align - 1) / align * align;
    rows = (rows + align - 1) / align * align;
    *r = (kv_rows){.type = s->f.type,
                   .rotated = s->f.rotated,
                   .n_kv_heads = s->n_heads,
                   .head_dim = s->head_dim,
                   .cap = (size_t)rows};
    if (cap == 0) return ST_OK;
    TRY(size_mul(&bytes, (size_t)cap, 16 * s->n_heads * s->head_dim, "KV rows", e));
    TRY(row_tier_alloc(s->tier, s->be, &r->k, kv_plain_half_bytes(r), true, "K rows", e));
    TRY(row_tier_alloc(s->tier, s->be, &r->v, kv_plain_half_bytes(r), true, "V rows", e));
    if (s->coded) {
        r->codes = kv_codes_of(&s->f, cap);
        r->codes.k_at = s->coded->at_buf[KV_K];
        r->codes.v_at = s->coded->at_buf[KV_V];
        kv_code_bufs(r, codes);
        for (int i = 0; i < N_CODE_BUFS; i++)
            TRY(row_tier_alloc(s->tier, s->be, codes[i].b, codes[i].bytes, false, "KV codes", e));
    }
    return s->tier ? s->tier->kind->add(s->tier, r, layer, e) : ST_OK;
}

/* Shows or hides quantization to kernels. While nothing is quantized, slots are rows, and kernels take a faster path.
 */
static void show_codes(kv_store *s, bool codes)
{
    for (int l = 0; l < s->n_layers; l++) s->layer[l].codes.bits = codes ? s->f.bits : 0;
}

status kv_store_create(kv_store **out, const kv_store_options *o, err *e)
{
    kv_store *s;
    const attn_shape *sh = o->shape;
    *out = NULL;
    TRY(MEM_NEW(&s, 1, e));
    *s = (kv_store){.be = o->be,
                    .f = o->spec->kv,
                    .tier = o->tier,
                    .prompt = o->lim->prompt,
                    .n_layers = sh->n_layers,
                    .n_heads = o->n_heads,
                    .head_dim = (size_t)sh->head_dim};
    status st = MEM_NEW(&s->layer, (size_t)sh->n_layers, e);
    if (st == ST_OK && kv_has_codes(&s->f)) st = kv_quantized_create(&s->coded, o, e);
    for (int l = 0; l < sh->n_layers && st == ST_OK; l++) st = create_layer(s, l, o->layers[l] ? o->slots : 0, e);
    if (st != ST_OK) kv_store_free(s);
    else {
        show_codes(s, false);
        *out = s;
    }
    return st;
}

static void free_layer(kv_store *s, kv_rows *r)
{
    sized_buf codes[N_CODE_BUFS];
    if (r->k.p) row_tier_free(s->tier, s->be, r->k, kv_plain_half_bytes(r), true);
    if (r->v.p) row_tier_free(s->tier, s->be, r->v, kv_plain_half_bytes(r), true);
    if (!s->coded || r->codes.cap == 0) return;
    r->codes.bits = s->f.bits;
    kv_code_bufs(r, codes);
    for (int i = 0; i < N_CODE_BUFS; i++)
        if (codes[i].b->p) row_tier_free(s->tier, s->be, *codes[i].b, codes[i].bytes, false);
}

void kv_store_free(kv_store *s)
{
    if (!s) return;
    for (int l = 0; s->layer && l < s->n_layers; l++) free_layer(s, &s->layer[l]);
    kv_quantized_free(s->coded);
    mem_free(s->layer);
    mem_free(s);
}

void kv_store_reset(kv_store *s)
{
    TIER(s, reset, s);
    if (!s->coded) return;
    kv_quantized_reset(s->coded);
    show_codes(s, false);
}

bool kv_store_by_position(const kv_store *s)
{
    return s->coded;
}

bool kv_store_plain(const kv_store *s)
{
    return !s->coded || (s->coded->n_coded[KV_K] == 0 && s->coded->n_coded[KV_V] == 0);
}

bool kv_store_coded_in(const kv_store *s, int64_t from, int64_t to)
{
    bool coded = false;
    for (int64_t p = from; s->coded && p < to; p++) coded |= s->coded->at[KV_K][p] < 0;
    return coded;
}

const kv_rows *kv_store_rows(const kv_store *s, int layer)
{
    return &s->layer[layer];
}

/* ---- forwards ---- */

void kv_store_begin(kv_store *s, int64_t length, int64_t n_tok, unsigned flags)
{
    s->n = length + n_tok;
    s->flags = flags;
    if (s->coded) kv_quantized_begin(s->coded, length, n_tok, flags);
}

kv_write_job kv_store_job(const kv_store *s, int layer, kv_target to, buf k, buf v, size_t n)
{
    if (s->coded) {
        to.slots = buf_at(s->coded->slots, (size_t)(to.pos - s->coded->first) * sizeof(int64_t));
        to.n_lists = 1;
    }
    return (kv_write_job){&s->layer[layer], to.first, to.slots, to.n_lists, k, v, n};
}

/* Releases the rows [from, to) of each region. */
static void discard_rows(backend *be, const kv_rows *r, int64_t from, int64_t to)
{
    size_t row = kv_row_bytes(r->type, r->head_dim), bytes = (size_t)(to - from) * row;
    for (size_t h = 0; h < r->n_kv_heads; h++) {
        size_t at = (h * r->cap + (size_t)from) * row;
        be->ops->discard(be, buf_at(r->k, at), bytes);
        be->ops->discard(be, buf_at(r->v, at), bytes);
    }
}

void kv_store_discard(kv_store *s, int layer, int64_t from)
{
    const kv_rows *r = &s->layer[layer];
    if (!s->coded && from < (int64_t)r->cap) discard_rows(s->be, r, from, (int64_t)r->cap);
}

void kv_store_layer_end(kv_store *s, int layer)
{
    const kv_quantized *coded = s->coded;
    TIER(s, before_codes, s, layer);
    if (coded) {
        kv_quantized_layer_end(s->coded, &s->layer[layer]);
        for (int64_t i = 0; i < coded->n_runs; i++)
            discard_rows(s->be, &s->layer[layer], coded->run[i].from, coded->run[i].to);
    }
    TIER(s, layer_end, s, layer);
}

void kv_store_end(kv_store *s)
{
    if (s->coded) {
        kv_quantized_end(s->coded);
        show_codes(s, !kv_store_plain(s));
    }
    TIER(s, step_end, s);
}

bool kv_store_rewind(kv_store *s, int64_t n)
{
    if (s->coded && !kv_quantized_rewind(s->coded, n)) return false;
    TIER(s, rewind, s, n);
    return true;
}

/* ---- saving and loading ---- */

static status state_of_codes(kv_store *s, attn_state *v, int layer, err *e)
{
    static const char *const names[N_CODE_BUFS] = {"K codes", "V codes", "K pairs", "V pairs"};
    kv_rows r = s->layer[layer];
    sized_buf all[N_CODE_BUFS];
    r.codes.bits = s->f.bits;
    kv_code_bufs(&r, all);
    for (int i = 0; i < N_CODE_BUFS; i++) {
        /* Pairs by channel: one per group of rows. All other buffers: one item per row. */
        size_t per = i == 2 && !r.codes.by_token ? r.codes.group : 1, slots = r.codes.cap / per;
        size_t stride = all[i].bytes / r.n_kv_heads;
        size_t used = (size_t)s->coded->n_coded[i % 2] / per * (stride / slots);
        TRY(v->rows(v, names[i], layer, *all[i].b, all[i].bytes, (state_part){r.n_kv_heads, stride, used}, e));
    }
    return ST_OK;
}

status kv_store_state(kv_store *s, attn_state *v, int64_t n, int64_t n_rows, err *e)
{
    if (s->tier)
        return err_set(e, ST_UNSUPPORTED, "a session in --kv-tier %s cannot be saved or loaded",
                       kv_tier_name(s->tier->spec->tier.kind));
    if (s->coded) {
        TRY(kv_quantized_state(s->coded, v, n, &n_rows, e));
        if (v->load) show_codes(s, !kv_store_plain(s));
    }
    for (int l = 0; l < s->n_layers; l++) {
        const kv_rows *r = &s->layer[l];
        if (r->cap == 0) continue;
        size_t stride = kv_plain_half_bytes(r) / r->n_kv_heads;
        int64_t rows = n_rows < (int64_t)r->cap ? n_rows : (int64_t)r->cap;
        const state_part part = {r->n_kv_heads, stride, stride / r->cap * (size_t)rows};
        TRY(v->rows(v, "K rows", l, r->k, kv_plain_half_bytes(r), part, e));
        TRY(v->rows(v, "V rows", l, r->v, kv_plain_half_bytes(r), part, e));
        if (s->coded) TRY(state_of_codes(s, v, l, e));
    }
    return ST_OK;
}

/* ---- bytes ---- */

size_t kv_store_bytes(const kv_store *s, int64_t n)
{
    size_t sum = 0;
    if (!s->coded) return kv_plain_bytes(&s->f, s->n_heads, s->head_dim, n);
    for (int h = 0; h < KV_HALVES; h++) sum += kv_half_bytes(&s->f, s->head_dim, h, n, s->coded->n_coded[h]);
    return s->n_heads * sum;
}

size_t kv_store_bytes_of(const kv_store *s, const int64_t *pos, int64_t n)
{
    if (!s->coded) return kv_plain_bytes(&s->f, 1, s->head_dim, n);
    return kv_quantized_bytes_of(s->coded, s->head_dim, pos, n);
}

size_t kv_store_bytes_most(const kv_store *s, int64_t n_all, int64_t n)
{
    if (!s->coded) return kv_plain_bytes(&s->f, 1, s->head_dim, n);
    /* Bound: the smaller of n tokens in separate groups and all tokens. */
    int64_t group = kv_code_group(&s->f);
    size_t row = kv_plain_bytes(&s->f, 1, s->head_dim, 1), all = kv_store_bytes(s, n_all) / s->n_heads;
    size_t coded =
        kv_half_bytes(&s->f, s->head_dim, KV_K, group, group) + kv_half_bytes(&s->f, s->head_dim, KV_V, 1, 1);
    size_t half = row / KV_HALVES, one = half > coded ? half : coded; /* K and V may be quantized separately */
    size_t each = (size_t)n * (one + half);
    return each < all ? each : all;
}
