/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/store_impl.h"
#include "attention/tier.h"
#include "kernels/base/mem.h"

struct kv_store {
    backend *be;
    kv_format f;
    int n_layers;
    size_t n_heads, head_dim;
    kv_rows *layer;  /* [n_layers]; k.p NULL: nothing stored for this layer */
    kv_coded *coded; /* NULL: all rows are exact */
    const attn_tier *tier; /* NULL: all rows stay in memory */
    const host_ops *host;  /* holds them; NULL: the device */
    kv_nears *nears;       /* of them; NULL: none */
    int64_t n;       /* tokens with those of the forward under way */
    unsigned flags;  /* of it */
};

/* Bytes of n exact rows, K and V, of all regions. */
static size_t exact_bytes(const kv_format *f, size_t n_heads, size_t head_dim, int64_t n)
{
    return 2 * n_heads * head_dim * dtype_size(f->type) * (size_t)n;
}

status kv_plan_bytes(size_t *out, const kv_format *f, const attn_shape *shape, size_t n_heads,
                     int64_t n, err *e)
{
    size_t d = (size_t)shape->head_dim, sum = 0;
    if (f->kind == KV_EXACT)
        return size_mul(out, (size_t)n, exact_bytes(f, n_heads, d, 1), "KV plan", e);
    /* More than a row of either kind takes. */
    TRY(size_mul(out, (size_t)n, 16 * n_heads * d, "KV plan", e));
    int64_t coded[KV_HALVES] = {n - n % kv_code_group(f), n};
    int64_t whole = (int64_t)kv_codes_of(f, n).cap;
    size_t waiting = kv_half_bytes(f, d, KV_K, kv_exact_rows(f, n), 0);
    for (int h = 0; h < KV_HALVES; h++) {
        size_t exact = kv_half_bytes(f, d, h, n, 0), codes = kv_half_bytes(f, d, h, n, coded[h]);
        size_t parts = codes + waiting, most = exact > codes ? exact : codes;
        /* Not at once: what exact rows that became codes took goes back. */
        sum += f->at_once ? waiting + kv_half_bytes(f, d, h, whole, whole) : parts < most ? parts : most;
    }
    *out = n_heads * sum;
    return ST_OK;
}

size_t kv_far_bytes(const kv_format *f, const attn_shape *shape)
{
    size_t d = (size_t)shape->head_dim, heads = (size_t)shape->n_kv_heads, sum = 0;
    int64_t group = kv_code_group(f);
    if (!kv_has_codes(f)) return exact_bytes(f, heads, d, 1);
    for (int h = 0; h < KV_HALVES; h++) sum += kv_half_bytes(f, d, h, group, group) / (size_t)group;
    return heads * sum + (kv_exact_near(f) ? 0 : exact_bytes(f, heads, d, 1));
}

/* ---- life ---- */

static size_t half_bytes(const kv_rows *r)
{
    return r->cap * r->n_kv_heads * r->head_dim * dtype_size(r->type);
}

/* Buffers of a layer's codes with their sizes: k, v, k_pair, v_pair. */
enum { N_CODE_BUFS = 4 };
typedef struct {
    buf *b;
    size_t bytes;
} sized_buf;

static void code_bufs(kv_rows *r, sized_buf out[N_CODE_BUFS])
{
    kv_codes *c = &r->codes;
    size_t rows = r->n_kv_heads * c->cap, pair = 2 * sizeof(uint16_t);
    size_t codes = rows * ((r->head_dim * (size_t)r->codes.bits + 7) / 8);
    size_t by_run = rows * codes_runs(c, r->head_dim) * pair;
    out[0] = (sized_buf){&c->k, codes};
    out[1] = (sized_buf){&c->v, codes};
    out[2] = (sized_buf){&c->k_pair, c->by_token ? by_run : rows / c->group * r->head_dim * pair};
    out[3] = (sized_buf){&c->v_pair, by_run};
}

static status rows_alloc(kv_store *s, const host_ops *host, buf *out, size_t bytes, const char *what, err *e)
{
    return (host ? host->alloc : s->be->ops->alloc)(s->be, out, bytes, what, e);
}

static void rows_free(kv_store *s, const host_ops *host, buf b, size_t bytes)
{
    (host ? host->free : s->be->ops->free)(s->be, b, bytes);
}

/* Where exact rows lie. */
static const host_ops *exact_place(const kv_store *s)
{
    return s->nears && kv_exact_near(&s->f) ? NULL : s->host;
}

/* Exact rows as the tier's blocks. */
static tier_area exact_area(const kv_rows *r, int64_t first)
{
    size_t row = r->head_dim * dtype_size(r->type), block = TIER_BLOCK * row;
    return (tier_area){.plane = {{r->k, block, r->cap * row}, {r->v, block, r->cap * row}},
                       .n_planes = 2,
                       .rows = TIER_BLOCK,
                       .n_blocks = (int64_t)r->cap / TIER_BLOCK,
                       .stay = (first + TIER_BLOCK - 1) / TIER_BLOCK};
}

/* Codes: whole groups of K. */
static tier_area code_area(const kv_rows *r)
{
    const kv_codes *c = &r->codes;
    sized_buf all[N_CODE_BUFS];
    kv_rows work = *r;
    size_t rows = (TIER_BLOCK + c->group - 1) / c->group * c->group;
    tier_area a = {.rows = (int64_t)rows, .n_blocks = (int64_t)(c->cap / rows)};
    code_bufs(&work, all);
    for (; a.n_planes < N_CODE_BUFS; a.n_planes++) {
        const sized_buf *b = &all[a.n_planes];
        size_t stride = b->bytes / r->n_kv_heads;
        a.plane[a.n_planes] = (tier_plane){*b->b, stride / (c->cap / c->group) * (rows / c->group), stride};
    }
    return a;
}

static status add_tier(kv_store *s, kv_rows *r, int layer, err *e)
{
    kv_rows bits = *r;
    bits.codes.bits = s->f.bits;
    const tier_area area[TIER_AREAS] = {exact_area(r, s->coded ? 0 : s->tier->first),
                                        s->coded ? code_area(&bits) : (tier_area){.n_planes = 0}};
    return s->be->ops->tier->add(s->be, &r->tier, s->tier->t, layer, area, e);
}

/* Heads then begin at whole pages of memory, so that each of their blocks can be given back. */
enum { TIER_CAP = 64 };

static status create_layer(kv_store *s, int layer, int64_t cap, err *e)
{
    kv_rows *r = &s->layer[layer];
    sized_buf codes[N_CODE_BUFS];
    size_t bytes;
    int64_t align = s->tier ? TIER_CAP : 1, rows = s->coded ? kv_exact_rows(&s->f, cap) : cap;
    cap = (cap + align - 1) / align * align;
    rows = (rows + align - 1) / align * align;
    *r = (kv_rows){.type = s->f.type, .n_kv_heads = s->n_heads, .head_dim = s->head_dim, .cap = (size_t)rows};
    if (cap == 0) return ST_OK;
    TRY(size_mul(&bytes, (size_t)cap, 16 * s->n_heads * s->head_dim, "KV rows", e));
    if (s->nears) r->near = kv_nears_layer(s->nears, layer);
    TRY(rows_alloc(s, exact_place(s), &r->k, half_bytes(r), "K rows", e));
    TRY(rows_alloc(s, exact_place(s), &r->v, half_bytes(r), "V rows", e));
    if (!s->coded) return s->tier ? add_tier(s, r, layer, e) : ST_OK;
    r->codes = kv_codes_of(&s->f, cap);
    r->codes.k_at = s->coded->at_buf[KV_K];
    r->codes.v_at = s->coded->at_buf[KV_V];
    code_bufs(r, codes);
    for (int i = 0; i < N_CODE_BUFS; i++) TRY(rows_alloc(s, s->host, codes[i].b, codes[i].bytes, "KV codes", e));
    return s->tier ? add_tier(s, r, layer, e) : ST_OK;
}

/* While nothing is quantized every slot is its own exact row: kernels then take the shorter way. */
static void show_codes(kv_store *s, bool codes)
{
    for (int l = 0; l < s->n_layers; l++) s->layer[l].codes.bits = codes ? s->f.bits : 0;
}

status kv_store_create(kv_store **out, const attn_ctx *c, size_t n_heads, const int64_t *cap,
                       err *e)
{
    kv_store *s;
    int64_t most = 0;
    const attn_shape *sh = c->shape;
    *out = NULL;
    TRY(MEM_NEW(&s, 1, e));
    *s = (kv_store){.be = c->be,
                    .f = c->spec->kv,
                    .tier = c->tier,
                    .host = c->host,
                    .n_layers = sh->n_layers,
                    .n_heads = n_heads,
                    .head_dim = (size_t)sh->head_dim};
    for (int l = 0; l < sh->n_layers; l++) most = cap[l] > most ? cap[l] : most;
    status st = MEM_NEW(&s->layer, (size_t)sh->n_layers, e);
    if (st == ST_OK && kv_has_codes(&s->f)) st = kv_coded_create(&s->coded, c, most, e);
    if (st == ST_OK && s->host && c->moved.p) st = kv_nears_create(&s->nears, c, n_heads, most, e);
    for (int l = 0; l < sh->n_layers && st == ST_OK; l++)
        st = create_layer(s, l, cap[l], e);
    if (st != ST_OK) kv_store_free(s);
    else {
        show_codes(s, false);
        *out = s;
    }
    return st;
}

static void tier_forget_all(kv_store *s);

static void free_layer(kv_store *s, kv_rows *r)
{
    sized_buf codes[N_CODE_BUFS];
    if (r->k.p) rows_free(s, exact_place(s), r->k, half_bytes(r));
    if (r->v.p) rows_free(s, exact_place(s), r->v, half_bytes(r));
    if (!s->coded || r->codes.cap == 0) return;
    r->codes.bits = s->f.bits;
    code_bufs(r, codes);
    for (int i = 0; i < N_CODE_BUFS; i++)
        if (codes[i].b->p) rows_free(s, s->host, *codes[i].b, codes[i].bytes);
}

void kv_store_free(kv_store *s)
{
    if (!s) return;
    for (int l = 0; s->layer && l < s->n_layers; l++) free_layer(s, &s->layer[l]);
    kv_coded_free(s->coded);
    kv_nears_free(s->nears);
    mem_free(s->layer);
    mem_free(s);
}

void kv_store_reset(kv_store *s)
{
    if (s->tier) tier_forget_all(s);
    if (!s->coded) return;
    kv_coded_reset(s->coded);
    show_codes(s, false);
}

bool kv_store_by_position(const kv_store *s)
{
    return s->coded;
}

bool kv_store_exact(const kv_store *s)
{
    return !s->coded || (s->coded->n_coded[KV_K] == 0 && s->coded->n_coded[KV_V] == 0);
}

kv_coded *kv_store_coded(const kv_store *s)
{
    return s->coded;
}

const kv_rows *kv_store_rows(const kv_store *s, int layer)
{
    return &s->layer[layer];
}

/* ---- what lies in files ---- */

/* Blocks [0, end) of a layer's area go there. */
static void tier_write(kv_store *s, int layer, int area, int64_t end)
{
    s->be->ops->tier->write(s->be, s->layer[layer].tier, area, end);
}

static void tier_forget(kv_store *s, int layer, int area, int64_t end)
{
    s->be->ops->tier->forget(s->be, s->layer[layer].tier, area, end);
}

/* Brings back all exact rows of a layer and forgets that they are in the file. */
static void tier_return(kv_store *s, int layer)
{
    kv_rows rows = s->layer[layer];
    int64_t n = s->be->ops->tier->written(rows.tier, TIER_EXACT);
    if (n == 0) return;
    rows.codes.bits = 0; /* slots are then rows */
    s->be->ops->tier->span(s->be, &rows, 0, n * TIER_BLOCK);
    tier_forget(s, layer, TIER_EXACT, 0);
}

static void tier_forget_all(kv_store *s)
{
    for (int l = 0; l < s->n_layers; l++)
        for (int a = 0; s->layer[l].tier && a < TIER_AREAS; a++) tier_forget(s, l, a, 0);
}

/* Tokens of codes whose both halves are in them, now or, due: at the end of this forward. */
static int64_t coded_tokens(const kv_coded *c, bool due)
{
    int64_t k = c->n_coded[KV_K] + (due ? c->n_due[KV_K] : 0), v = c->n_coded[KV_V] + (due ? c->n_due[KV_V] : 0);
    return k < v ? k : v;
}

static int64_t code_block(const kv_store *s)
{
    int64_t group = kv_code_group(&s->f);
    return (TIER_BLOCK + group - 1) / group * group;
}

/* The end of a prompt quantizes rows of which most are in the file. */
static void tier_before_codes(kv_store *s, int layer)
{
    if (s->coded && (s->flags & ATTN_PROMPT_END)) tier_return(s, layer);
}

/* In prompts a layer leaves memory when it was attended; codes take the place of exact rows at the end. */
static void tier_layer_end(kv_store *s, int layer)
{
    const attn_tier *t = s->tier;
    if (s->flags & ATTN_PROMPT) {
        if (!s->coded) tier_write(s, layer, TIER_EXACT, s->n > t->newest ? (s->n - t->newest) / TIER_BLOCK : 0);
        else if (s->flags & ATTN_PROMPT_END) tier_write(s, layer, TIER_CODES, coded_tokens(s->coded, true) / code_block(s));
        else tier_write(s, layer, TIER_EXACT, s->coded->lowest / TIER_BLOCK);
    }
    s->be->ops->tier->trim(s->be, s->layer[layer].tier);
}

/* Decode steps: all layers alike, when enough tokens have left the window. */
static void tier_step_end(kv_store *s)
{
    int area = s->coded ? TIER_CODES : TIER_EXACT;
    int64_t rows = s->coded ? code_block(s) : TIER_BLOCK, left = s->coded ? coded_tokens(s->coded, false) : s->n - s->tier->newest;
    if (s->flags & ATTN_PROMPT) return;
    for (int l = 0; l < s->n_layers; l++) {
        tier_layer *t = s->layer[l].tier;
        if (!t || left / rows * rows < s->be->ops->tier->written(t, area) * rows + s->tier->flush) continue;
        tier_write(s, l, area, left / rows);
        s->be->ops->tier->trim(s->be, t);
    }
}

/* Rows behind token n are written anew: where the file holds them it forgets them, and what it holds of the block
 * before comes back. */
static void tier_rewind(kv_store *s, int64_t n)
{
    for (int l = 0; l < s->n_layers; l++) {
        const kv_rows *r = &s->layer[l];
        if (!r->tier) continue;
        if (s->coded) {
            tier_return(s, l);
            continue;
        }
        s->be->ops->tier->span(s->be, r, n / TIER_BLOCK * TIER_BLOCK, n);
        tier_forget(s, l, TIER_EXACT, n / TIER_BLOCK);
    }
}

/* ---- forwards ---- */

void kv_store_begin(kv_store *s, const attn_ctx *c, const attn_part *p)
{
    s->n = c->length + (int64_t)p->n_tok;
    s->flags = p->flags;
    if (s->coded) kv_coded_begin(s->coded, c, p);
}

void kv_store_put(kv_store *s, const attn_part *p, int layer, buf slots, size_t n_lists, buf k,
                  buf v)
{
    if (s->coded) {
        int64_t done = p->prompt_done - s->coded->prompt_done; /* windows before this one */
        slots = buf_at(s->coded->slots, (size_t)done * sizeof(int64_t));
        n_lists = 1;
    }
    s->be->ops->kv_write(s->be, &s->layer[layer], slots, n_lists, k, v, p->n_tok);
}

/* Rows [from, to) of each region. */
static void discard_rows(backend *be, const kv_rows *r, int64_t from, int64_t to)
{
    size_t row = r->head_dim * dtype_size(r->type), bytes = (size_t)(to - from) * row;
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
    const kv_coded *coded = s->coded;
    if (s->tier) tier_before_codes(s, layer);
    if (coded) {
        kv_coded_layer_end(s->coded, &s->layer[layer]);
        for (int64_t i = 0; i < coded->n_runs; i++)
            discard_rows(s->be, &s->layer[layer], coded->run[i].from, coded->run[i].to);
    }
    if (s->tier) tier_layer_end(s, layer);
}

void kv_store_end(kv_store *s)
{
    if (s->coded) {
        kv_coded_end(s->coded);
        show_codes(s, !kv_store_exact(s));
    }
    if (s->tier) tier_step_end(s);
}

bool kv_store_rewind(kv_store *s, int64_t n)
{
    if (s->coded && !kv_coded_rewind(s->coded, n)) return false;
    if (s->tier) tier_rewind(s, n);
    return true;
}

/* ---- saving and loading ---- */

static status state_of_codes(kv_store *s, attn_state *v, int layer, err *e)
{
    static const char *const names[N_CODE_BUFS] = {"K codes", "V codes", "K pairs", "V pairs"};
    kv_rows r = s->layer[layer];
    sized_buf all[N_CODE_BUFS];
    r.codes.bits = s->f.bits;
    code_bufs(&r, all);
    for (int i = 0; i < N_CODE_BUFS; i++) {
        /* Pairs of a channel are one for a group of rows, everything else is one a row. */
        size_t per = i == 2 && !r.codes.by_token ? r.codes.group : 1, slots = r.codes.cap / per;
        size_t stride = all[i].bytes / r.n_kv_heads;
        size_t used = (size_t)s->coded->n_coded[i % 2] / per * (stride / slots);
        TRY(v->rows(v, names[i], layer, *all[i].b, all[i].bytes, &(state_part){0, r.n_kv_heads, stride, used}, 1, e));
    }
    return ST_OK;
}

status kv_store_state(kv_store *s, attn_state *v, int64_t n, int64_t n_rows, err *e)
{
    if (s->tier || s->host)
        return err_set(e, ST_UNSUPPORTED, "a session in --kv-tier %s cannot be saved or loaded", s->tier ? "disk" : "host");
    if (s->coded) {
        TRY(kv_coded_state(s->coded, v, n, &n_rows, e));
        if (v->load) show_codes(s, !kv_store_exact(s));
    }
    for (int l = 0; l < s->n_layers; l++) {
        const kv_rows *r = &s->layer[l];
        if (r->cap == 0) continue;
        size_t stride = half_bytes(r) / r->n_kv_heads;
        int64_t rows = n_rows < (int64_t)r->cap ? n_rows : (int64_t)r->cap;
        const state_part part = {0, r->n_kv_heads, stride, stride / r->cap * (size_t)rows};
        TRY(v->rows(v, "K rows", l, r->k, half_bytes(r), &part, 1, e));
        TRY(v->rows(v, "V rows", l, r->v, half_bytes(r), &part, 1, e));
        if (s->coded) TRY(state_of_codes(s, v, l, e));
    }
    return ST_OK;
}

/* ---- bytes ---- */

size_t kv_store_bytes(const kv_store *s, int64_t n)
{
    size_t sum = 0;
    if (!s->coded) return exact_bytes(&s->f, s->n_heads, s->head_dim, n);
    for (int h = 0; h < KV_HALVES; h++)
        sum += kv_half_bytes(&s->f, s->head_dim, h, n, s->coded->n_coded[h]);
    return s->n_heads * sum;
}

size_t kv_store_bytes_of(const kv_store *s, const int64_t *pos, int64_t n)
{
    if (!s->coded) return exact_bytes(&s->f, 1, s->head_dim, n);
    return kv_coded_bytes_of(s->coded, s->head_dim, pos, n);
}

size_t kv_store_bytes_most(const kv_store *s, int64_t n_all, int64_t n)
{
    if (!s->coded) return exact_bytes(&s->f, 1, s->head_dim, n);
    /* Each token alone, in a group of its own, or all tokens. */
    int64_t group = kv_code_group(&s->f);
    size_t exact = exact_bytes(&s->f, 1, s->head_dim, 1), all = kv_store_bytes(s, n_all) / s->n_heads;
    size_t coded = kv_half_bytes(&s->f, s->head_dim, KV_K, group, group) + kv_half_bytes(&s->f, s->head_dim, KV_V, 1, 1);
    size_t half = exact / KV_HALVES, one = half > coded ? half : coded; /* K and V may be in codes apart */
    size_t each = (size_t)n * (one + half);
    return each < all ? each : all;
}
