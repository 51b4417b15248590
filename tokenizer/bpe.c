/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/bpe.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/utf8.h"

#define NO_TOKEN UINT32_MAX
#define NO_PAIR  UINT64_MAX

typedef struct {
    uint32_t at; /* offset in the arena; NO_TOKEN: unused id */
    uint32_t len : 31, reachable : 1;
} span;

typedef struct {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank;
    int32_t merged;
} merge;

struct bpe {
    char *arena;
    size_t arena_n, arena_cap;
    span *spans; /* by id */
    int32_t n_ids;
    size_t cap_ids, n_tokens, longest;
    int32_t *slots; /* hash table from bytes to id, -1: empty */
    size_t n_slots, n_used;
    merge *merges; /* hash table of pairs; NULL for tiktoken */
    size_t n_merge_slots, n_merges;
    unsigned flags;
    int32_t byte_ids[256];
    int32_t unk; /* with BPE_CHARACTERS */
};

/* A symbol of the word being merged. len 0: merged into its left neighbour. */
typedef struct {
    int32_t id, prev, next;
    uint32_t at, len;
} sym;

/* A merge that was possible when it was queued. Symbols only grow: it is still valid if the symbol at its position
 * exists and, with its neighbour, has the same length. */
typedef struct {
    uint64_t key; /* rank << 32 | position: orders by rank, then from left to right */
    int32_t merged;
    uint32_t len;
} cand;

static size_t pow2_above(size_t n)
{
    size_t p = 16;
    while (p < n) p *= 2;
    return p;
}

static inline uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a, because tokens are short */
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h ^ (h >> 29);
}

static inline uint64_t hash_pair(uint64_t pair)
{
    uint64_t h = pair * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 32);
}

status bpe_create(bpe **out, size_t n_tokens, size_t n_merges, unsigned flags, err *e)
{
    bpe *b;
    status st;
    *out = NULL;
    if (n_tokens > BPE_MAX_IDS || n_merges > BPE_MAX_IDS)
        return err_set(e, ST_FORMAT, "vocabulary of %zu tokens and %zu merges: at most %d allowed", n_tokens, n_merges,
                       BPE_MAX_IDS);
    TRY(MEM_NEW(&b, 1, e));
    b->flags = flags;
    b->unk = -1;
    b->n_slots = pow2_above(n_tokens * 2);
    TRY_GOTO(MEM_NEW(&b->slots, b->n_slots, e));
    memset(b->slots, 0xff, b->n_slots * sizeof *b->slots);
    if (!(flags & BPE_BY_RANK)) {
        b->n_merge_slots = pow2_above(n_merges + n_merges / 2);
        TRY_GOTO(MEM_NEW(&b->merges, b->n_merge_slots, e));
        memset(b->merges, 0xff, b->n_merge_slots * sizeof *b->merges);
    }
    memset(b->byte_ids, 0xff, sizeof b->byte_ids);
    *out = b;
    b = NULL;
done:
    bpe_free(b);
    return st;
}

void bpe_free(bpe *b)
{
    if (!b) return;
    mem_free(b->arena);
    mem_free(b->spans);
    mem_free(b->slots);
    mem_free(b->merges);
    mem_free(b);
}

void bpe_scratch_free(bpe_scratch *s)
{
    mem_free(s->syms);
    mem_free(s->heap);
    memset(s, 0, sizeof *s);
}

static status grow_ids(bpe *b, int32_t id, err *e)
{
    size_t want = (size_t)id + 1, had = b->cap_ids;
    TRY(MEM_ROOM(&b->spans, &b->cap_ids, want, e));
    if (want > had) memset(b->spans + had, 0xff, (b->cap_ids - had) * sizeof *b->spans);
    if (id >= b->n_ids) b->n_ids = id + 1;
    return ST_OK;
}

static size_t find_slot(const bpe *b, const char *bytes, size_t n)
{
    size_t i = hash_bytes(bytes, n) & (b->n_slots - 1);
    for (; b->slots[i] >= 0; i = (i + 1) & (b->n_slots - 1)) {
        const span *s = &b->spans[b->slots[i]];
        if (s->len == n && memcmp(b->arena + s->at, bytes, n) == 0) break;
    }
    return i;
}

status bpe_add_token(bpe *b, int32_t id, const char *bytes, size_t n, bool reachable, const char *what, err *e)
{
    if (id < 0 || id >= BPE_MAX_IDS)
        return err_set(e, ST_FORMAT, "%s: id %d is outside 0..%d", what, id, BPE_MAX_IDS - 1);
    TRY(grow_ids(b, id, e));
    if (b->spans[id].at != NO_TOKEN) return err_set(e, ST_FORMAT, "%s: id %d is assigned to two tokens", what, id);
    size_t slot = 0;
    if (reachable) {
        slot = find_slot(b, bytes, n);
        if (b->slots[slot] >= 0)
            return err_set(e, ST_FORMAT, "%s: ids %d and %d have the same text", what, b->slots[slot], id);
        if (b->n_used + 1 >= b->n_slots) return err_set(e, ST_FORMAT, "%s: more tokens than expected", what);
    }
    if (b->arena_n + n > 1 << 30) return err_set(e, ST_FORMAT, "%s: more than 1 GiB of token text", what);
    TRY(MEM_ROOM(&b->arena, &b->arena_cap, b->arena_n + n, e));
    if (n) memcpy(b->arena + b->arena_n, bytes, n);
    b->spans[id] = (span){.at = (uint32_t)b->arena_n, .len = (uint32_t)n & 0x7fffffff, .reachable = reachable};
    b->arena_n += n;
    b->n_tokens++;
    if (!reachable) return ST_OK;
    if (n > b->longest) b->longest = n;
    b->slots[slot] = id;
    b->n_used++;
    return ST_OK;
}

static merge *merge_slot(const bpe *b, uint64_t pair)
{
    size_t i = hash_pair(pair) & (b->n_merge_slots - 1);
    while (b->merges[i].pair != NO_PAIR && b->merges[i].pair != pair) i = (i + 1) & (b->n_merge_slots - 1);
    return &b->merges[i];
}

static inline uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

status bpe_add_merge(bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t merged, err *e)
{
    if (b->n_merges + 1 >= b->n_merge_slots) return err_set(e, ST_FORMAT, "more merges than expected");
    merge *m = merge_slot(b, pair_of(left, right));
    b->n_merges += m->pair == NO_PAIR;
    *m = (merge){pair_of(left, right), rank, merged};
    return ST_OK;
}

int bpe_finish(bpe *b, int32_t unk)
{
    int missing = 0;
    for (int c = 0; c < 256; c++) {
        char piece[8] = {(char)c};
        size_t n = 1;
        if (b->flags & BPE_BYTE_FALLBACK) n = (size_t)snprintf(piece, sizeof piece, "<0x%02X>", (unsigned)c);
        const int32_t id = !(b->flags & BPE_CHARACTERS) || n > 1 ? bpe_find(b, piece, n) : -1;
        missing += id < 0;
        b->byte_ids[c] = id < 0 && !(b->flags & BPE_CHARACTERS) ? unk : id;
    }
    b->unk = unk;
    return missing;
}

int32_t bpe_find(const bpe *b, const char *bytes, size_t n)
{
    return n <= b->longest ? b->slots[find_slot(b, bytes, n)] : -1;
}

bool bpe_is(const bpe *b, int32_t id, const char *bytes, size_t n)
{
    if (id < 0 || id >= b->n_ids) return false;
    const span *s = &b->spans[id];
    return s->at != NO_TOKEN && s->reachable && s->len == n && memcmp(b->arena + s->at, bytes, n) == 0;
}

int32_t bpe_n_ids(const bpe *b)
{
    return b->n_ids;
}

size_t bpe_n_tokens(const bpe *b)
{
    return b->n_tokens;
}

const char *bpe_token(const bpe *b, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= b->n_ids || b->spans[id].at == NO_TOKEN) return NULL;
    *n = b->spans[id].len;
    return b->arena + b->spans[id].at;
}

status bpe_encode_byte(const bpe *b, unsigned char c, token_list *out, err *e)
{
    const int32_t id = b->byte_ids[c] < 0 ? b->unk : b->byte_ids[c];
    return id < 0 ? ST_OK : token_list_push(out, id, e);
}

/* Fills *c if the symbol at pos and its right neighbour can merge. */
static bool candidate(const bpe *b, const char *text, const sym *s, int32_t pos, cand *c)
{
    const sym *l = &s[pos];
    if (l->next < 0) return false;
    const sym *r = &s[l->next];
    uint64_t rank;
    if (b->merges) {
        const merge *m = merge_slot(b, pair_of(l->id, r->id));
        if (m->pair == NO_PAIR) return false;
        rank = m->rank;
        c->merged = m->merged;
    } else {
        c->merged = bpe_find(b, text + l->at, l->len + r->len);
        if (c->merged < 0) return false;
        rank = (uint64_t)c->merged;
    }
    c->key = rank << 32 | (uint32_t)pos;
    c->len = l->len + r->len;
    return true;
}

static void sift_down(cand *h, size_t n, size_t i)
{
    cand x = h[i];
    for (size_t k; (k = 2 * i + 1) < n; i = k) {
        if (k + 1 < n && h[k + 1].key < h[k].key) k++;
        if (h[k].key >= x.key) break;
        h[i] = h[k];
    }
    h[i] = x;
}

static void heap_push(cand *h, size_t *n, cand x)
{
    size_t i = (*n)++;
    for (; i > 0 && h[(i - 1) / 2].key > x.key; i = (i - 1) / 2) h[i] = h[(i - 1) / 2];
    h[i] = x;
}

/* Merges in place until no pair is left. The heap holds at most 3n candidates: n - 1 at the start and two for each of
 * at most n - 1 merges. */
static void merge_all(const bpe *b, const char *text, sym *s, size_t n, cand *heap)
{
    size_t n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++) n_heap += candidate(b, text, s, (int32_t)i, &heap[n_heap]);
    for (size_t i = n_heap / 2; i-- > 0;) sift_down(heap, n_heap, i);
    while (n_heap) {
        cand top = heap[0], c;
        heap[0] = heap[--n_heap];
        if (n_heap) sift_down(heap, n_heap, 0);
        int32_t pos = (int32_t)(uint32_t)top.key;
        sym *l = &s[pos];
        if (l->len == 0 || l->next < 0 || l->len + s[l->next].len != top.len) continue;
        sym *r = &s[l->next];
        l->id = top.merged;
        l->len = top.len;
        l->next = r->next;
        r->len = 0;
        if (l->next >= 0) s[l->next].prev = pos;
        if (l->prev >= 0 && candidate(b, text, s, l->prev, &c)) heap_push(heap, &n_heap, c);
        if (candidate(b, text, s, pos, &c)) heap_push(heap, &n_heap, c);
    }
}

static status scratch_reserve(bpe_scratch *s, size_t n, err *e)
{
    if (n <= s->cap) return ST_OK;
    size_t cap = s->cap ? s->cap : 256, bytes;
    while (cap < n) cap *= 2;
    TRY(size_mul(&bytes, cap, 3 * sizeof(cand), "merge queue", e));
    TRY(mem_resize(&s->syms, cap, sizeof(sym), "symbols", e));
    TRY(mem_resize(&s->heap, cap, 3 * sizeof(cand), "merge queue", e));
    s->cap = cap;
    return ST_OK;
}

/* Appends a symbol to s[0..*k), which has room. */
static void push_symbol(sym *s, size_t *k, int32_t id, size_t at, size_t len)
{
    s[*k] = (sym){.id = id, .prev = (int32_t)*k - 1, .next = (int32_t)*k + 1, .at = (uint32_t)at, .len = (uint32_t)len};
    ++*k;
}

/* Writes the first symbols of a word, one for each byte, and returns their number. */
static size_t byte_symbols(const bpe *b, const char *text, size_t n, sym *s)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        const int32_t id = b->byte_ids[(unsigned char)text[i]];
        if (id >= 0) push_symbol(s, &k, id, i, 1);
    }
    return k;
}

/* True if each byte of text[0..n) has a token. */
static bool has_bytes(const bpe *b, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (b->byte_ids[(unsigned char)text[i]] < 0) return false;
    return true;
}

/* Writes the first symbols of a word, one for each character of valid UTF-8, and returns their number. Source:
 * tokenizers, models/bpe/model.rs. */
static size_t char_symbols(const bpe *b, const char *text, size_t n, sym *s)
{
    size_t k = 0, c;
    bool unknown = false; /* the last symbol is an unknown character */
    for (size_t i = 0; i < n; i += c) {
        const int len = utf8_valid_len((const unsigned char *)text + i, n - i);
        c = len ? (size_t)len : 1;
        const int32_t id = bpe_find(b, text + i, c);
        const bool fuse = unknown && (b->flags & BPE_FUSE_UNKNOWN);
        unknown = false;
        if (id >= 0) {
            push_symbol(s, &k, id, i, c);
        } else if (has_bytes(b, text + i, c)) {
            for (size_t j = 0; j < c; j++) push_symbol(s, &k, b->byte_ids[(unsigned char)text[i + j]], i + j, 1);
        } else if (b->unk >= 0) {
            unknown = true;
            if (fuse) s[k - 1].len += (uint32_t)c;
            else push_symbol(s, &k, b->unk, i, c);
        }
    }
    return k;
}

status bpe_encode(const bpe *b, const char *text, size_t n, bpe_scratch *scratch, token_list *out, err *e)
{
    const bool characters = b->flags & BPE_CHARACTERS;
    if (n == 1 && !characters) return bpe_encode_byte(b, (unsigned char)text[0], out, e);
    if (n > INT32_MAX) return err_set(e, ST_UNSUPPORTED, "a word of %zu bytes: at most %d allowed", n, INT32_MAX);
    if (b->flags & BPE_WHOLE_WORDS) {
        int32_t id = bpe_find(b, text, n);
        if (id >= 0) return token_list_push(out, id, e);
    }
    TRY(scratch_reserve(scratch, n, e));
    sym *s = scratch->syms;
    const size_t k = characters ? char_symbols(b, text, n, s) : byte_symbols(b, text, n, s);
    if (k == 0) return ST_OK;
    s[k - 1].next = -1;
    merge_all(b, text, s, k, scratch->heap);
    for (int32_t i = 0; i >= 0; i = s[i].next) TRY(token_list_push(out, s[i].id, e));
    return ST_OK;
}
