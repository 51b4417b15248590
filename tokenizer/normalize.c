/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/normalize.h"

#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

#include "kernels/base/mem.h"

static status copy_text(char **out, const char *text, err *e)
{
    *out = NULL;
    if (!text) return ST_OK;
    const size_t n = strlen(text) + 1;
    TRY(mem_alloc((void **)out, n, 1, "normalizer", e));
    memcpy(*out, text, n);
    return ST_OK;
}

status normalizer_add(normalizer *z, normalize_kind kind, const char *from, const char *to, const char *what, err *e)
{
    if (z->n == NORMALIZE_MAX_STEPS)
        return err_set(e, ST_UNSUPPORTED, "%s: at most %d steps are supported", what, NORMALIZE_MAX_STEPS);
    if (from && !*from) return err_set(e, ST_FORMAT, "%s: empty pattern", what);
    normalize_step *step = &z->steps[z->n++];
    step->kind = kind;
    TRY(copy_text(&step->from, from, e));
    return copy_text(&step->to, to, e);
}

void normalizer_free(normalizer *z)
{
    for (int i = 0; i < z->n; i++) {
        mem_free(z->steps[i].from);
        mem_free(z->steps[i].to);
    }
    *z = (normalizer){0};
}

/* True for text that the form does not change. Characters below U+0300 are starters, do not combine with preceding
 * characters, and are in NFC; 0xCC is the lead byte of U+0300. The other forms leave ASCII alone. */
static bool surely_normal(normalize_kind form, const char *text, size_t n)
{
    const unsigned char limit = form == NORMALIZE_NFC ? 0xcc : 0x80;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] >= limit) return false;
    return true;
}

static status to_form(normalize_kind form, char **out, size_t *n_out, const char *text, size_t n, err *e)
{
    static const utf8proc_option_t options[] = {
        [NORMALIZE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [NORMALIZE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [NORMALIZE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [NORMALIZE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    const utf8proc_option_t how = options[form];
    utf8proc_int32_t *buf;
    if (surely_normal(form, text, n)) return ST_OK;
    /* A canonical decomposition has at most 4/3 code points per byte of its character, a compatible one 6 (U+FDFA). One
     * more for the NUL written by reencode. */
    size_t cap;
    TRY(size_mul(&cap, n, form < NORMALIZE_NFKC ? 2 : 6, "normalized text", e));
    TRY(MEM_NEW(&buf, cap + 1, e));
    utf8proc_ssize_t m =
        utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, buf, (utf8proc_ssize_t)cap, how);
    if (m >= 0 && (size_t)m <= cap) m = utf8proc_reencode(buf, m, how);
    if (m < 0 || (size_t)m > cap * sizeof *buf) {
        mem_free(buf);
        return err_set(e, ST_FORMAT, "Unicode normalization: %s", m < 0 ? utf8proc_errmsg(m) : "text grew too much");
    }
    if ((size_t)m == n && memcmp(buf, text, n) == 0) {
        mem_free(buf);
        return ST_OK;
    }
    *out = (char *)buf;
    *n_out = (size_t)m;
    return ST_OK;
}

static status prepend(const char *what, char **out, size_t *n_out, const char *text, size_t n, err *e)
{
    const size_t k = strlen(what);
    if (n == 0 || k == 0) return ST_OK;
    TRY(mem_alloc((void **)out, n + k, 1, "normalized text", e));
    memcpy(*out, what, k);
    memcpy(*out + k, text, n);
    *n_out = n + k;
    return ST_OK;
}

static size_t count(const char *text, size_t n, const char *from, size_t n_from)
{
    size_t k = 0;
    for (const char *at = text, *end = text + n; (at = memmem(at, (size_t)(end - at), from, n_from)); at += n_from) k++;
    return k;
}

static status replace(const normalize_step *step, char **out, size_t *n_out, const char *text, size_t n, err *e)
{
    const size_t n_from = strlen(step->from), n_to = strlen(step->to), k = count(text, n, step->from, n_from);
    size_t grown, room;
    if (k == 0) return ST_OK;
    TRY(size_mul(&grown, k, n_to, "normalized text", e));
    TRY(size_add(&room, n - k * n_from, grown, "normalized text", e));
    TRY(mem_alloc((void **)out, room + 1, 1, "normalized text", e));
    char *put = *out;
    const char *at = text, *end = text + n;
    for (const char *hit; (hit = memmem(at, (size_t)(end - at), step->from, n_from)); at = hit + n_from) {
        memcpy(put, at, (size_t)(hit - at));
        put += hit - at;
        memcpy(put, step->to, n_to);
        put += n_to;
    }
    memcpy(put, at, (size_t)(end - at));
    *n_out = room;
    return ST_OK;
}

static status run_step(const normalize_step *step, char **out, size_t *n_out, const char *text, size_t n, err *e)
{
    if (step->kind == NORMALIZE_PREPEND) return prepend(step->to, out, n_out, text, n, e);
    if (step->kind == NORMALIZE_REPLACE) return replace(step, out, n_out, text, n, e);
    return to_form(step->kind, out, n_out, text, n, e);
}

/* Returns the end of the run that begins at i: a character of ASCII, and all others up to the next one, which never
 * composes with characters before it. */
static size_t run_end(const char *text, size_t n, size_t i)
{
    for (i++; i < n && (unsigned char)text[i] >= 0x80;) i++;
    return i;
}

/* Writes the marks of the n_out bytes that a Unicode form has. */
static status mark_form(normalize_kind form, unsigned char *marks, size_t n_out, const char *text, size_t n,
                        const unsigned char *from, err *e)
{
    size_t at = 0;
    for (size_t i = 0, end; i < n && at < n_out; i = end) {
        char *changed = NULL;
        size_t k = 0;
        end = run_end(text, n, i);
        if (end - i > 1) TRY(to_form(form, &changed, &k, text + i, end - i, e));
        if (!changed) k = end - i;
        if (k > n_out - at) k = n_out - at;
        if (changed) memset(marks + at, memchr(from + i, 1, end - i) != NULL, k);
        else memcpy(marks + at, from + i, k);
        if (changed && *changed == text[i] && k) marks[at] = from[i]; /* the first character did not compose */
        mem_free(changed);
        at += k;
    }
    return ST_OK;
}

/* Writes the marks of a text in which step->from is replaced. */
static void mark_replaced(const normalize_step *step, unsigned char *marks, const char *text, size_t n,
                          const unsigned char *from)
{
    const size_t n_from = strlen(step->from), n_to = strlen(step->to);
    const char *at = text, *end = text + n;
    for (const char *hit; (hit = memmem(at, (size_t)(end - at), step->from, n_from)); at = hit + n_from) {
        memcpy(marks, from + (at - text), (size_t)(hit - at));
        marks += hit - at;
        memset(marks, memchr(from + (hit - text), 1, n_from) != NULL, n_to);
        marks += n_to;
    }
    memcpy(marks, from + (at - text), (size_t)(end - at));
}

/* Allocates the marks of the n_out bytes that a step makes of text. */
static status step_marks(const normalize_step *step, unsigned char **marks, size_t n_out, const char *text, size_t n,
                         const unsigned char *from, err *e)
{
    TRY(MEM_NEW(marks, n_out + 1, e));
    if (step->kind == NORMALIZE_PREPEND) { /* has the mark of the first byte */
        memset(*marks, from[0], n_out - n);
        memcpy(*marks + n_out - n, from, n);
    } else if (step->kind == NORMALIZE_REPLACE) {
        mark_replaced(step, *marks, text, n, from);
    } else {
        return mark_form(step->kind, *marks, n_out, text, n, from, e);
    }
    return ST_OK;
}

/* A text between two steps; the first one is borrowed. */
typedef struct {
    char *text;
    unsigned char *marks;
    size_t n;
} changed_text;

static void drop(changed_text *c)
{
    mem_free(c->text);
    mem_free(c->marks);
}

status normalizer_run_marked(const normalizer *z, char **out, size_t *n_out, unsigned char **marks, const char *text,
                             size_t n, const unsigned char *from, err *e)
{
    changed_text now = {0};
    *out = NULL;
    *marks = NULL;
    *n_out = 0;
    for (int i = 0; i < z->n; i++) {
        const normalize_step *step = &z->steps[i];
        changed_text next = {0};
        status st = run_step(step, &next.text, &next.n, text, n, e);
        if (st == ST_OK && next.text && from) st = step_marks(step, &next.marks, next.n, text, n, from, e);
        if (st != ST_OK) {
            drop(&now);
            drop(&next);
            return st;
        }
        if (!next.text) continue;
        drop(&now);
        now = next;
        text = now.text;
        n = now.n;
        from = now.marks;
    }
    *out = now.text;
    *n_out = now.n;
    *marks = now.marks;
    return ST_OK;
}

status normalizer_run(const normalizer *z, char **out, size_t *n_out, const char *text, size_t n, err *e)
{
    unsigned char *marks;
    return normalizer_run_marked(z, out, n_out, &marks, text, n, NULL, e);
}
