/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/added.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "kernels/base/mem.h"
#include "tokenizer/chars.h"

status added_push(added_set *s, const added_token *tok, const char *what, err *e)
{
    if (tok->n == 0) return ST_OK;
    if (tok->id < 0) return err_set(e, ST_FORMAT, "%s: added token with id %d", what, tok->id);
    TRY(MEM_ROOM(&s->items, &s->cap, s->n + 1, e));
    added_token *a = &s->items[s->n];
    *a = *tok;
    a->order = s->n;
    TRY(mem_alloc((void **)&a->text, tok->n + 1, 1, "added token", e));
    memcpy(a->text, tok->text, tok->n);
    s->n++;
    return ST_OK;
}

void added_free(added_set *s)
{
    for (size_t i = 0; i < s->n; i++) mem_free(s->items[i].text);
    mem_free(s->items);
    mem_free(s->by_id);
    memset(s, 0, sizeof *s);
}

static int compare_text(const char *a, size_t na, const char *b, size_t nb)
{
    int c = memcmp(a, b, na < nb ? na : nb);
    return c ? c : (na > nb) - (na < nb);
}

static int by_text(const void *a, const void *b)
{
    const added_token *x = a, *y = b;
    int c = compare_text(x->text, x->n, y->text, y->n);
    return c ? c : (x->order > y->order) - (x->order < y->order);
}

typedef struct {
    int32_t id, index;
} id_index;

static int by_number(const void *a, const void *b)
{
    const id_index *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* Leaves the first of those with one text: tokenizer.json and tokenizer_config.json agree. */
static status drop_twins(added_set *s, const char *what, err *e)
{
    size_t k = 0;
    for (size_t i = 0; i < s->n; i++) {
        added_token *a = &s->items[i];
        if (k && compare_text(s->items[k - 1].text, s->items[k - 1].n, a->text, a->n) == 0) {
            if (s->items[k - 1].id != a->id)
                return err_set(e, ST_FORMAT, "%s: added token \"%.60s\" has the ids %d and %d", what, a->text,
                               s->items[k - 1].id, a->id);
            s->items[k - 1].special |= a->special;
            mem_free(a->text);
            a->text = NULL;
        } else if (k++ != i) {
            s->items[k - 1] = *a;
            a->text = NULL;
        }
    }
    s->n = k;
    return ST_OK;
}

status added_sort(added_set *s, const char *what, err *e)
{
    id_index *order;
    status st = ST_OK;
    if (s->n == 0) return ST_OK;
    qsort(s->items, s->n, sizeof *s->items, by_text);
    TRY(drop_twins(s, what, e));
    TRY(MEM_NEW(&order, s->n, e));
    for (size_t i = 0; i < s->n; i++) order[i] = (id_index){s->items[i].id, (int32_t)i};
    qsort(order, s->n, sizeof *order, by_number);
    mem_free(s->by_id);
    s->by_id = NULL;
    TRY_GOTO(MEM_NEW(&s->by_id, s->n, e));
    memset(s->starts, 0, sizeof s->starts);
    for (size_t i = 0; i < s->n; i++) {
        const added_token *a = &s->items[i];
        s->starts[a->normalized][(unsigned char)a->text[0]] = true;
        s->by_id[i] = order[i].index;
        if (i && order[i].id == order[i - 1].id) {
            st = err_set(e, ST_FORMAT, "%s: added tokens \"%.60s\" and \"%.60s\" have the id %d", what,
                         s->items[order[i - 1].index].text, s->items[order[i].index].text, order[i].id);
            goto done;
        }
    }
done:
    mem_free(order);
    return st;
}

const added_token *added_by_text(const added_set *s, const char *text, size_t n)
{
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = compare_text(s->items[mid].text, s->items[mid].n, text, n);
        if (c == 0) return &s->items[mid];
        if (c < 0) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

const added_token *added_by_id(const added_set *s, int32_t id)
{
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const added_token *a = &s->items[s->by_id[mid]];
        if (a->id == id) return a;
        if (a->id < id) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

/* First index in [lo, hi) whose byte at depth k is >= c (all of these share k bytes; a text that
 * ends there comes first). */
static size_t lower(const added_set *s, size_t lo, size_t hi, size_t k, int c)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const added_token *a = &s->items[mid];
        int have = a->n > k ? (unsigned char)a->text[k] : -1;
        if (have < c) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* The longest token that text[0..n) starts with: the sorted list is narrowed byte by byte. */
static const added_token *longest_at(const added_set *s, const char *text, size_t n, bool normalized)
{
    const added_token *best = NULL;
    size_t lo = 0, hi = s->n;
    for (size_t k = 0; k < n && lo < hi; k++) {
        int c = (unsigned char)text[k];
        lo = lower(s, lo, hi, k, c);
        hi = lower(s, lo, hi, k, c + 1);
        if (lo < hi && s->items[lo].n == k + 1 && s->items[lo].normalized == normalized) best = &s->items[lo];
    }
    return best;
}

static bool word_char(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_ND) || k == UTF8PROC_CATEGORY_PC;
}

static bool inside_word(const char *text, size_t n, size_t start, size_t end)
{
    int32_t c;
    if (start > 0 && char_before(text, start, &c) && word_char(c)) return true;
    return end < n && char_at(text + end, n - end, &c) && word_char(c);
}

const added_token *added_find(const added_set *s, const char *text, size_t n, size_t from, bool normalized,
                              bool want_special, size_t *start, size_t *end)
{
    const bool *starts = s->starts[normalized];
    for (size_t i = from; i < n; i++) {
        if (!starts[(unsigned char)text[i]]) continue;
        const added_token *a = longest_at(s, text + i, n - i, normalized);
        if (!a) continue;
        size_t a_end = i + a->n;
        if ((a->special && !want_special) || (a->single_word && inside_word(text, n, i, a_end))) {
            i = a_end - 1; /* like the reference: nothing inside a refused match counts */
            continue;
        }
        int32_t c;
        int k;
        *start = i;
        *end = a_end;
        if (a->lstrip)
            while (*start > from && (k = char_before(text, *start, &c)) && is_white_space(c)) *start -= (size_t)k;
        if (a->rstrip)
            while (*end < n && (k = char_at(text + *end, n - *end, &c)) && is_white_space(c)) *end += (size_t)k;
        return a;
    }
    return NULL;
}
