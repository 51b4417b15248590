/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "eval/metrics/text.h"
#include "eval/provenance.h"
#include "eval/ruler/ruler.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum { MAX_FILE_BYTES = 1 << 28, MAX_DEPTH = 8 };

status ruler_squeeze(prompt_text *t, const char *s, size_t n, bool strip, err *e)
{
    utf8_text rest = {s, n};
    bool in_space = false;
    if (strip) rest = text_strip(rest);
    TRY(prompt_add(t, s, 0, e));
    for (int32_t c;;) {
        const char *at = rest.s;
        if (!text_next(&rest, &c)) break;
        bool is_space = is_python_space(c);
        if (!is_space) TRY(prompt_add(t, at, (size_t)(rest.s - at), e));
        else if (!in_space) TRY(prompt_add(t, " ", 1, e));
        in_space = is_space;
    }
    return rest.n ? err_set(e, ST_FORMAT, "not UTF-8: byte %zu", (size_t)(rest.s - s)) : ST_OK;
}

status ruler_one_line(prompt_text *t, err *e)
{
    prompt_text line = {0};
    status st = ruler_squeeze(&line, t->s, t->n, true, e);
    mem_free(t->s);
    *t = line;
    return st;
}

static bool is_json(const char *path)
{
    size_t n = strlen(path), k = strlen(".json");
    return n > k && strcmp(path + n - k, ".json") == 0;
}

static status squeeze(ruler_essay *t, const char *path, const char *s, size_t n, err *e)
{
    err inner = {0};
    if (memchr(s, 0, n)) return err_set(e, ST_FORMAT, "%s: contains the character U+0000", path_tail(path));
    status st = ruler_squeeze(&t->text, s, n, false, &inner);
    if (st != ST_OK) return err_set(e, st, "%s: %.100s", path_tail(path), inner.msg);
    t->words = 1;
    for (size_t i = 0; i < t->text.n; i++) t->words += t->text.s[i] == ' ';
    return t->text.n > 1 ? ST_OK : err_set(e, ST_FORMAT, "%s: no text", path_tail(path));
}

static status read_text(ruler_essay *t, const char *path, const char *s, size_t n, err *e)
{
    json_t *root;
    if (!is_json(path)) return squeeze(t, path, s, n, e);
    TRY(json_parse_object(&root, s, n, path_tail(path), MAX_DEPTH, e));
    const json_t *text = json_object_get(root, "text");
    status st = json_is_string(text) ? squeeze(t, path, json_string_value(text), json_string_length(text), e)
                                     : err_set(e, ST_FORMAT, "%s: 'text': expected a string", path_tail(path));
    json_decref(root);
    return st;
}

status ruler_essay_open(ruler_essay *t, const char *path, const char *data_dir, err *e)
{
    char *s;
    size_t n;
    *t = (ruler_essay){0};
    TRY(punkt_read(&t->punkt, data_dir, e));
    TRY(file_read(&s, &n, path, MAX_FILE_BYTES, e));
    status st = read_text(t, path, s, n, e);
    mem_free(s);
    return st == ST_OK ? file_sha256(path, t->sum, e) : st;
}

void ruler_essay_close(ruler_essay *t)
{
    punkt_free(t->punkt);
    mem_free(t->text.s);
    mem_free(t->part.s);
    sentence_list_free(&t->sentences);
    *t = (ruler_essay){0};
}

/* Returns the number of bytes of the first n words, at most all. */
static size_t bytes_of(const ruler_essay *t, size_t n)
{
    size_t i = 0;
    while (i < t->text.n && !(t->text.s[i] == ' ' && --n == 0)) i++;
    return i;
}

status ruler_essay_cut(ruler_essay *t, size_t n, err *e)
{
    if (t->n == n) return ST_OK;
    t->n = t->part.n = 0;
    for (size_t left = n; left > 0;) {
        size_t take = left < t->words ? left : t->words;
        if (left < n) TRY(prompt_add(&t->part, " ", 1, e));
        TRY(prompt_add(&t->part, t->text.s, take == t->words ? t->text.n : bytes_of(t, take), e));
        left -= take;
    }
    size_t begin = 0, end = t->part.n;
    while (begin < end && t->part.s[begin] == ' ') begin++;
    while (end > begin && t->part.s[end - 1] == ' ') end--;
    memmove(t->part.s, t->part.s + begin, end - begin);
    t->part.n = end - begin;
    TRY(punkt_split(t->punkt, &t->sentences, t->part.s, t->part.n, e));
    t->n = n;
    return ST_OK;
}
