/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/metrics/dictionary.h"

#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tokenizer/chars.h"

enum { FIRST_CAP = 1 << 20, CHAR_BITS = 21, MAX_FREQ = 1000000000 };
static const size_t MAX_BYTES = (size_t)1 << 28; /* so that a node's number has 32 bits */

/* Where key is, or the free place where it belongs. */
static size_t find_place(const uint64_t *keys, size_t cap, uint64_t key)
{
    uint64_t h = key * 0x9E3779B97F4A7C15u;
    size_t at = (size_t)(h ^ h >> 32) & (cap - 1);
    while (keys[at] && keys[at] != key) at = (at + 1) & (cap - 1);
    return at;
}

uint32_t dictionary_step(const dictionary *d, uint32_t node, int32_t c)
{
    size_t at = find_place(d->key, d->cap, (uint64_t)node << CHAR_BITS | (uint32_t)c);
    return d->key[at] ? d->child[at] : 0;
}

/* A table of twice the size, with everything that was in the old one. */
static status grow_table(dictionary *d, err *e)
{
    uint64_t *key = NULL;
    uint32_t *child = NULL;
    size_t cap = d->cap ? 2 * d->cap : FIRST_CAP;
    status st = MEM_NEW(&key, cap, e);
    if (st == ST_OK) st = MEM_NEW(&child, cap, e);
    if (st != ST_OK) {
        mem_free(key);
        return st;
    }
    for (size_t i = 0; i < d->cap; i++)
        if (d->key[i]) {
            size_t at = find_place(key, cap, d->key[i]);
            key[at] = d->key[i];
            child[at] = d->child[i];
        }
    mem_free(d->key);
    mem_free(d->child);
    d->key = key;
    d->child = child;
    d->cap = cap;
    return ST_OK;
}

static status add_node(dictionary *d, uint32_t *node, int32_t c, err *e)
{
    if (d->n * 10 >= d->cap * 7) TRY(grow_table(d, e));
    uint64_t key = (uint64_t)*node << CHAR_BITS | (uint32_t)c;
    size_t at = find_place(d->key, d->cap, key);
    if (!d->key[at]) {
        if (d->n == d->n_alloc) {
            TRY(MEM_GROW(&d->freq, 2 * d->n_alloc, e));
            d->n_alloc *= 2;
        }
        d->key[at] = key;
        d->child[at] = (uint32_t)d->n;
        d->freq[d->n++] = 0;
    }
    *node = d->child[at];
    return ST_OK;
}

/* One line s[0..n): a word, a space, a decimal number, and maybe more behind another space. */
static status add_line(dictionary *d, const char *s, size_t n, const char *path, size_t line, err *e)
{
    size_t i = 0, digits = 0;
    uint32_t node = DICTIONARY_ROOT;
    uint64_t freq = 0;
    while (i < n && s[i] != ' ') {
        int32_t c;
        int k = char_at(s + i, n - i, &c);
        if (k == 0 || c == 0) return err_set(e, ST_FORMAT, "%s line %zu: not UTF-8", path_tail(path), line);
        TRY(add_node(d, &node, c, e));
        i += (size_t)k;
    }
    for (i++; i < n && s[i] >= '0' && s[i] <= '9' && freq <= MAX_FREQ; i++, digits++)
        freq = freq * 10 + (uint64_t)(s[i] - '0');
    if (node == DICTIONARY_ROOT || digits == 0 || freq > MAX_FREQ || (i < n && s[i] != ' ' && s[i] != '\r'))
        return err_set(e, ST_FORMAT, "%s line %zu: expected 'word frequency tag'", path_tail(path), line);
    d->freq[node] = (uint32_t)freq; /* the last line of a word counts, but the sum has them all */
    d->total += (double)freq;
    return ST_OK;
}

status dictionary_read(dictionary *d, const char *path, err *e)
{
    file_map map = {0};
    size_t line = 0;
    *d = (dictionary){.n = 1, .n_alloc = FIRST_CAP / 2};
    TRY(file_map_open(&map, path, e));
    status st = map.size > MAX_BYTES
                    ? err_set(e, ST_FORMAT, "%s: %zu bytes, at most %zu allowed", path_tail(path), map.size, MAX_BYTES)
                    : MEM_NEW(&d->freq, d->n_alloc, e);
    for (size_t i = 0; st == ST_OK && i < map.size;) {
        const char *s = (const char *)map.data + i, *end = memchr(s, '\n', map.size - i);
        size_t n = end ? (size_t)(end - s) : map.size - i;
        st = add_line(d, s, n, path, ++line, e);
        i += n + 1;
    }
    if (st == ST_OK && d->total < 1) st = err_set(e, ST_FORMAT, "%s: no word with a frequency", path_tail(path));
    file_map_close(&map);
    return st;
}

void dictionary_free(dictionary *d)
{
    mem_free(d->key);
    mem_free(d->child);
    mem_free(d->freq);
    *d = (dictionary){0};
}
