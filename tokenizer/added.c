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

static void drop_texts(added_token *a)
{
    mem_free(a->text);
    mem_free(a->form);
    a->text = a->form = NULL;
}

void added_free(added_set *s)
{
    for (size_t i = 0; i < s->n; i++) drop_texts(&s->items[i]);
    mem_free(s->items);
    mem_free(s->by_id);
    mem_free(s->by_form);
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

/* Keeps the first of equal texts. tokenizer.json and tokenizer_config.json may both list a token, with the same id. */
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
            drop_texts(a);
        } else if (k++ != i) {
            s->items[k - 1] = *a;
            a->text = a->form = NULL;
        }
    }
    s->n = k;
    return ST_OK;
}

const char *added_matched(const added_token *a, size_t *n)
{
    *n = a->form ? a->n_form : a->n;
    return a->form ? a->form : a->text;
}

/* Orders special tokens before others with the same text, and each kind as they were added. */
static int by_matched_text(const void *a, const void *b)
{
    const added_token *x = *(const added_token *const *)a, *y = *(const added_token *const *)b;
    size_t n_x, n_y;
    const char *s = added_matched(x, &n_x), *t = added_matched(y, &n_y);
    if (x->normalized != y->normalized) return x->normalized - y->normalized;
    const int c = compare_text(s, n_x, t, n_y);
    if (c) return c;
    return x->special != y->special ? y->special - x->special : (x->order > y->order) - (x->order < y->order);
}

/* Fills by_form, n_plain and starts. */
static status sort_forms(added_set *s, const normalizer *z, err *e)
{
    const added_token **order;
    for (size_t i = 0; i < s->n; i++) {
        added_token *a = &s->items[i];
        mem_free(a->form);
        a->form = NULL;
        if (a->normalized) TRY(normalizer_run(z, &a->form, &a->n_form, a->text, a->n, e));
    }
    TRY(MEM_NEW(&order, s->n, e));
    for (size_t i = 0; i < s->n; i++) order[i] = &s->items[i];
    qsort(order, s->n, sizeof *order, by_matched_text);
    mem_free(s->by_form);
    s->by_form = NULL;
    s->n_plain = 0;
    memset(s->starts, 0, sizeof s->starts);
    status st = MEM_NEW(&s->by_form, s->n, e);
    for (size_t i = 0, n; i < s->n && st == ST_OK; i++) {
        s->by_form[i] = (int32_t)(order[i] - s->items);
        s->n_plain += !order[i]->normalized;
        const char *text = added_matched(order[i], &n);
        if (n > s->longest) s->longest = n;
        if (n) s->starts[order[i]->normalized][(unsigned char)text[0]] = true;
    }
    mem_free(order);
    return st;
}

status added_sort(added_set *s, const normalizer *z, const char *what, err *e)
{
    id_index *order;
    status st = ST_OK;
    if (s->n == 0) return ST_OK;
    qsort(s->items, s->n, sizeof *s->items, by_text);
    TRY(drop_twins(s, what, e));
    TRY(sort_forms(s, z, e));
    TRY(MEM_NEW(&order, s->n, e));
    for (size_t i = 0; i < s->n; i++) order[i] = (id_index){s->items[i].id, (int32_t)i};
    qsort(order, s->n, sizeof *order, by_number);
    mem_free(s->by_id);
    s->by_id = NULL;
    TRY_GOTO(MEM_NEW(&s->by_id, s->n, e));
    for (size_t i = 0; i < s->n; i++) {
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

/* Returns the first index of by_form in [lo, hi) whose byte at depth k is >= c. All texts in the range share their
 * first k bytes; a text that ends there sorts first. */
static size_t lower(const added_set *s, size_t lo, size_t hi, size_t k, int c)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        size_t n_form;
        const char *form = added_matched(&s->items[s->by_form[mid]], &n_form);
        int have = n_form > k ? (unsigned char)form[k] : -1;
        if (have < c) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Returns the longest token that text[0..n) starts with, and its length there. A special token must end within the
 * first n_trusted bytes; *hidden is the length of the longest one that does not, and hides shorter tokens that are not
 * special. Narrows the sorted list byte by byte. */
static const added_token *longest_at(const added_set *s, const char *text, size_t n, size_t n_trusted, bool normalized,
                                     size_t *len, size_t *hidden)
{
    const added_token *best = NULL;
    size_t lo = normalized ? s->n_plain : 0, hi = normalized ? s->n : s->n_plain, n_form;
    *hidden = *len = 0;
    for (size_t k = 0; k < n && lo < hi; k++) {
        int c = (unsigned char)text[k];
        lo = lower(s, lo, hi, k, c);
        hi = lower(s, lo, hi, k, c + 1);
        if (lo >= hi) break;
        const added_token *a = &s->items[s->by_form[lo]];
        added_matched(a, &n_form);
        if (n_form != k + 1) continue;
        if (a->special && n_form > n_trusted) {
            *hidden = n_form;
        } else {
            best = a;
            *len = n_form;
        }
    }
    return best && (best->special || *len > *hidden) ? best : NULL;
}

/* True for \w of Rust's regular expressions: alphabetic characters, among them numbers that are letters and letters in
 * circles and squares, marks, digits, connectors and joiners. */
static bool word_char(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC || c == 0x200c ||
           c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
           (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}

static bool inside_word(const char *text, size_t n, size_t start, size_t end)
{
    int32_t c;
    if (start > 0 && char_before(text, start, &c) && word_char(c)) return true;
    return end < n && char_at(text + end, n - end, &c) && word_char(c);
}

static bool is_input(marked_text m, size_t i)
{
    return m.input ? m.input[i] : m.all_input;
}

/* Returns the number of trusted bytes from i on, at most `most`. */
static size_t trusted_from(marked_text m, size_t i, size_t most)
{
    size_t k = 0;
    while (k < most && i + k < m.n && !is_input(m, i + k)) k++;
    return k;
}

/* Widens a match by the white space that its token takes. */
static void take_space(const added_token *a, marked_text m, size_t from, size_t *start, size_t *end)
{
    int32_t c;
    int k;
    if (a->lstrip)
        while (*start > from && (k = char_before(m.text, *start, &c)) && is_white_space(c)) *start -= (size_t)k;
    if (a->rstrip)
        while (*end < m.n && (k = char_at(m.text + *end, m.n - *end, &c)) && is_white_space(c)) *end += (size_t)k;
}

const added_token *added_find(const added_set *s, marked_text m, size_t from, bool normalized, size_t *start,
                              size_t *end)
{
    const bool *starts = s->starts[normalized];
    for (size_t i = from; i < m.n; i++) {
        size_t hidden, len;
        if (!starts[(unsigned char)m.text[i]]) continue;
        const size_t n_trusted = trusted_from(m, i, s->longest);
        const added_token *a = longest_at(s, m.text + i, m.n - i, n_trusted, normalized, &len, &hidden);
        /* As in the reference, a rejected match hides matches inside it. An untrusted one hides no trusted text. */
        if (a && a->single_word && inside_word(m.text, m.n, i, i + len)) {
            i += len - 1;
            continue;
        }
        if (!a) {
            for (; hidden > 1 && is_input(m, i + 1); hidden--) i++;
            continue;
        }
        *start = i;
        *end = i + len;
        take_space(a, m, from, start, end);
        return a;
    }
    return NULL;
}
