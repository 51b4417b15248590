/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "grammar/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/utf8.h"

/* ---- bytes ---- */

static bool is_eos(const grammar_vocab *v, int32_t id)
{
    for (size_t i = 0; i < v->eos.n; i++)
        if (v->eos.ids[i] == id) return true;
    return false;
}

/* Reads the bytes of the text tokens from a stream of single tokens. */
static status read_tokens(grammar_vocab *v, const tokenizer *t, token_stream *s, err *e)
{
    size_t used = 0, cap = 0;
    const size_t n_ids = (size_t)tokenizer_n_ids(t) < v->vocab ? (size_t)tokenizer_n_ids(t) : v->vocab;
    TRY(MEM_ROOM(&v->bytes, &cap, 1, e));
    for (size_t id = 0; id < n_ids; id++) {
        const char *bytes;
        size_t n;
        if (is_eos(v, (int32_t)id)) continue;
        if (tokenizer_is_special(t, (int32_t)id)) {
            set_add(v->special, (int32_t)id);
            continue;
        }
        TRY(token_stream_push(s, (int32_t)id, &bytes, &n, e));
        if (n > TOKEN_BYTES_MAX) n = 0;
        TRY(MEM_ROOM(&v->bytes, &cap, used + n, e));
        if (n) memcpy(v->bytes + used, bytes, n);
        v->tokens[id].n = (uint32_t)n;
        if (n) set_add(v->text, (int32_t)id);
        used += n;
    }
    for (size_t id = 0, at = 0; id < v->vocab; at += v->tokens[id++].n) v->tokens[id].bytes = v->bytes + at;
    return ST_OK;
}

static status read_bytes(grammar_vocab *v, const tokenizer *t, err *e)
{
    token_stream *s;
    TRY(token_stream_create(&s, t, e));
    token_stream_as_bytes(s);
    status st = read_tokens(v, t, s, e);
    token_stream_free(s);
    return st;
}

/* Returns the number of characters of a token that consists of whole ones which need no escape, else 0. */
static uint32_t characters_of(const vocab_token *t)
{
    uint32_t n = 0;
    for (size_t i = 0; i < t->n; n++) {
        const unsigned char b = (unsigned char)t->bytes[i];
        const int k = utf8_valid_len((const unsigned char *)t->bytes + i, t->n - i);
        if (k <= 0 || b < 0x20 || b == '"' || b == '\\') return 0;
        i += (size_t)k;
    }
    return n;
}

/* Checks that printable ASCII and the later bytes of characters are tokens, so that a text can always be completed. */
static status check_bytes(const grammar_vocab *v, err *e)
{
    bool has[256] = {false};
    for (size_t id = 0; id < v->vocab; id++)
        if (v->tokens[id].n == 1) has[(unsigned char)v->tokens[id].bytes[0]] = true;
    for (int b = 0x20; b < 0xc0; b++)
        if (!has[b] && b != 0x7f)
            return err_set(e, ST_UNSUPPORTED, "the tokenizer has no token for the byte 0x%02x, as constraints require",
                           b);
    if (v->eos.n == 0) return err_set(e, ST_UNSUPPORTED, "the tokenizer has no EOS token, as constraints require");
    return ST_OK;
}

/* ---- tries ---- */

/* A token of n bytes. head: the first bytes, of which the first one is the highest. same: number of bytes in common
 * with the token before it in the order. */
typedef struct {
    uint64_t head;
    const char *bytes;
    int32_t id;
    uint8_t n, same;
} sortable;

enum { HEAD = sizeof(uint64_t) };

static sortable sortable_of(const vocab_token *t, int32_t id)
{
    sortable s = {.bytes = t->bytes, .id = id, .n = (uint8_t)t->n};
    for (size_t i = 0; i < HEAD; i++) s.head = s.head << 8 | (i < t->n ? (unsigned char)t->bytes[i] : 0);
    return s;
}

static int by_bytes(const void *a, const void *b)
{
    const sortable *x = a, *y = b;
    if (x->head != y->head) return x->head < y->head ? -1 : 1;
    int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    if (order == 0) order = (x->n > y->n) - (x->n < y->n);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static uint8_t common(const sortable *a, const sortable *b)
{
    const uint8_t least = a->n < b->n ? a->n : b->n;
    uint64_t differ = a->head ^ b->head;
    uint8_t n = differ ? 0 : HEAD;
    for (; differ && !(differ >> 56); differ <<= 8) n++;
    while (n >= HEAD && n < least && a->bytes[n] == b->bytes[n]) n++;
    return n < least ? n : least;
}

/* Builds a trie of sorted tokens. */
static status build_trie(grammar_vocab *v, trie *t, sortable *list, size_t n, err *e)
{
    uint32_t open[TOKEN_BYTES_MAX + 1] = {0}; /* node of each depth on the current path */
    size_t nodes = 0, depth = 0;
    for (size_t i = 0; i < n; i++) {
        list[i].same = i ? common(&list[i - 1], &list[i]) : 0;
        nodes += (size_t)list[i].n - list[i].same;
    }
    if (nodes >= NO_TOKEN) return err_set(e, ST_UNSUPPORTED, "the vocabulary is too large for constraints");
    TRY(MEM_NEW(&t->nodes, nodes, e));
    for (size_t i = 0; i < n; i++) {
        const sortable *k = &list[i];
        for (; depth > k->same; depth--) t->nodes[open[depth]].size = (uint32_t)(t->n - open[depth]) & 0xffffff;
        for (; depth < k->n; t->n++) {
            const unsigned char byte = (unsigned char)k->bytes[depth++];
            open[depth] = (uint32_t)t->n;
            t->nodes[t->n] = (trie_node){.token = NO_TOKEN, .byte = byte, .depth = (uint8_t)depth};
        }
        trie_node *end = &t->nodes[open[depth]];
        if (end->token != NO_TOKEN) v->tokens[k->id].same = (int32_t)end->token;
        end->token = (uint32_t)k->id & 0xffffff;
    }
    for (; depth > 0; depth--) t->nodes[open[depth]].size = (uint32_t)(t->n - open[depth]) & 0xffffff;
    return ST_OK;
}

static status build_tries(grammar_vocab *v, err *e)
{
    sortable *list;
    TRY(MEM_NEW(&list, v->vocab, e));
    status st = ST_OK;
    for (int whole = 0; whole < 2 && st == ST_OK; whole++) {
        size_t n = 0;
        for (size_t id = 0; id < v->vocab; id++)
            if (v->tokens[id].n && (v->tokens[id].characters > 0) == whole)
                list[n++] = sortable_of(&v->tokens[id], (int32_t)id);
        qsort(list, n, sizeof *list, by_bytes);
        st = build_trie(v, whole ? &v->whole : &v->rest, list, n, e);
    }
    mem_free(list);
    return st;
}

/* ---- sets ---- */

const uint64_t *vocab_room(const grammar_vocab *v, uint32_t n)
{
    return v->room + (n > ROOM_SETS ? ROOM_SETS - 1 : n - 1) * v->n_words;
}

static status build_sets(grammar_vocab *v, err *e)
{
    TRY(MEM_NEW(&v->longest, v->vocab, e));
    for (size_t id = 0; id < v->vocab; id++) {
        const uint32_t n = v->tokens[id].characters;
        if (n == 0) continue;
        set_add(v->room + (n > ROOM_SETS ? ROOM_SETS : n - 1) * v->n_words, (int32_t)id);
        if (n > ROOM_SETS) v->longest[v->n_longest++] = (int32_t)id;
    }
    for (size_t i = v->n_words; i < (ROOM_SETS + 1) * v->n_words; i++) v->room[i] |= v->room[i - v->n_words];
    return ST_OK;
}

/* ---- the vocabulary ---- */

static status fill(grammar_vocab *v, const tokenizer *t, err *e)
{
    TRY(tokenizer_eos_ids(t, &v->eos, e));
    for (size_t i = 0; i < v->eos.n;) { /* EOS beyond the logits cannot be chosen */
        if ((size_t)v->eos.ids[i] < v->vocab) i++;
        else v->eos.ids[i] = v->eos.ids[--v->eos.n];
    }
    TRY(MEM_NEW(&v->tokens, v->vocab, e));
    TRY(MEM_NEW(&v->text, v->n_words, e));
    TRY(MEM_NEW(&v->special, v->n_words, e));
    TRY(MEM_NEW(&v->room, (ROOM_SETS + 1) * v->n_words, e));
    TRY(read_bytes(v, t, e));
    for (size_t id = 0; id < v->vocab; id++) {
        v->tokens[id].same = -1;
        v->tokens[id].characters = characters_of(&v->tokens[id]);
    }
    TRY(check_bytes(v, e));
    TRY(build_tries(v, e));
    return build_sets(v, e);
}

status grammar_vocab_create(grammar_vocab **out, const tokenizer *t, size_t vocab, err *e)
{
    grammar_vocab *v;
    *out = NULL;
    TRY(MEM_NEW(&v, 1, e));
    v->vocab = vocab;
    v->n_words = (vocab + 63) / 64;
    status st = fill(v, t, e);
    if (st != ST_OK) grammar_vocab_free(v);
    else *out = v;
    return st;
}

void grammar_vocab_free(grammar_vocab *v)
{
    if (!v) return;
    token_list_free(&v->eos);
    mem_free(v->tokens);
    mem_free(v->bytes);
    mem_free(v->whole.nodes);
    mem_free(v->rest.nodes);
    mem_free(v->room);
    mem_free(v->text);
    mem_free(v->special);
    mem_free(v->longest);
    mem_free(v);
}
