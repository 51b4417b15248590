/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/ruler/ruler_words.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"

enum { MAX_FILE_BYTES = 1 << 20, MAX_WORD = 64 };

typedef struct {
    const char **word;
    size_t n, cap;
} list;

/* Keys of consecutive adjectives. A group usually has one adjective, and its keys are in order of the nouns. Keys of
 * "blue-x" and "blue-eyed-x" are interleaved. */
typedef struct {
    size_t first, n; /* range of adjectives */
    size_t at;       /* index of the first key */
    uint32_t *order; /* [n * nouns] adjective * nouns + noun; NULL: one adjective */
} group;

enum { NOUNS, MORE_NOUNS, ADJECTIVES, VERBS, FILES };

struct ruler_words {
    char *text[FILES];
    list noun, adjective, all; /* sorted, distinct */
    group *groups;
    size_t n_groups;
};

/* ---- lists ---- */

static status push(list *l, const char *word, err *e)
{
    TRY(MEM_ROOM(&l->word, &l->cap, l->n + 1, e));
    l->word[l->n++] = word;
    return ST_OK;
}

static int by_word(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void sort(list *l)
{
    size_t n = 0;
    qsort(l->word, l->n, sizeof *l->word, by_word);
    for (size_t i = 0; i < l->n; i++)
        if (n == 0 || strcmp(l->word[n - 1], l->word[i]) != 0) l->word[n++] = l->word[i];
    l->n = n;
}

/* Adds the lines of a file of words, which point into the stored text. */
static status read_list(ruler_words *w, size_t file, list *l, const char *data_dir, err *e)
{
    static const char *const names[FILES] = {"ruler/nounlist.txt", "ruler/nounlist-2.2.0-extra.txt",
                                             "ruler/adjectivelist.txt", "ruler/verblist.txt"};
    char *save, *path = path_join(data_dir, names[file]);
    size_t n;
    if (!path) return err_set(e, ST_NOMEM, "out of memory");
    status st = file_read(&w->text[file], &n, path, MAX_FILE_BYTES, e);
    mem_free(path);
    if (st != ST_OK) return st;
    for (char *word = strtok_r(w->text[file], "\n", &save); word; word = strtok_r(NULL, "\n", &save)) {
        size_t end = strlen(word);
        while (end > 0 && word[end - 1] == ' ') word[--end] = 0; /* some lines end in a space */
        if (end > MAX_WORD) return err_set(e, ST_FORMAT, "%s: a word is longer than %d bytes", names[file], MAX_WORD);
        TRY(push(l, word, e));
    }
    return l->n ? ST_OK : err_set(e, ST_FORMAT, "%s: no words", names[file]);
}

static status read_lists(ruler_words *w, const char *data_dir, bool old, err *e)
{
    TRY(read_list(w, NOUNS, &w->noun, data_dir, e));
    if (old) TRY(read_list(w, MORE_NOUNS, &w->noun, data_dir, e));
    TRY(read_list(w, ADJECTIVES, &w->adjective, data_dir, e));
    TRY(read_list(w, VERBS, &w->all, data_dir, e));
    for (size_t i = 0; i < w->noun.n; i++) TRY(push(&w->all, w->noun.word[i], e));
    for (size_t i = 0; i < w->adjective.n; i++) TRY(push(&w->all, w->adjective.word[i], e));
    sort(&w->noun);
    sort(&w->all);
    return ST_OK;
}

/* ---- keys ---- */

static int by_prefix(const void *a, const void *b)
{
    char x[MAX_WORD + 2], y[MAX_WORD + 2];
    snprintf(x, sizeof x, "%s-", *(const char *const *)a);
    snprintf(y, sizeof y, "%s-", *(const char *const *)b);
    return strcmp(x, y);
}

typedef struct {
    uint32_t pair;
    char key[RULER_KEY_MAX];
} keyed;

static int by_key(const void *a, const void *b)
{
    return strcmp(((const keyed *)a)->key, ((const keyed *)b)->key);
}

static void spell(const ruler_words *w, uint32_t pair, char out[RULER_KEY_MAX])
{
    snprintf(out, RULER_KEY_MAX, "%s-%s", w->adjective.word[pair / w->noun.n], w->noun.word[pair % w->noun.n]);
}

static status sort_group(const ruler_words *w, group *g, err *e)
{
    keyed *k;
    size_t n = g->n * w->noun.n;
    TRY(MEM_NEW(&k, n, e));
    for (size_t i = 0; i < n; i++) {
        k[i].pair = (uint32_t)(g->first * w->noun.n + i);
        spell(w, k[i].pair, k[i].key);
    }
    qsort(k, n, sizeof *k, by_key);
    status st = MEM_NEW(&g->order, n, e);
    for (size_t i = 0; i < n && st == ST_OK; i++) g->order[i] = k[i].pair;
    mem_free(k);
    return st;
}

/* True if `adjective` begins with `with` and a hyphen, so that their keys are interleaved. */
static bool mixes(const char *adjective, const char *with)
{
    size_t n = strlen(with);
    return strncmp(adjective, with, n) == 0 && adjective[n] == '-';
}

static status make_groups(ruler_words *w, err *e)
{
    list *a = &w->adjective;
    sort(a);
    qsort(a->word, a->n, sizeof *a->word, by_prefix);
    TRY(MEM_NEW(&w->groups, a->n, e));
    for (size_t i = 0; i < a->n;) {
        group *g = &w->groups[w->n_groups++];
        *g = (group){.first = i, .n = 1, .at = i * w->noun.n};
        for (i++; i < a->n && mixes(a->word[i], a->word[g->first]); i++) g->n++;
        if (g->n > 1) TRY(sort_group(w, g, e));
    }
    return ST_OK;
}

size_t ruler_keys(const ruler_words *w)
{
    return w->adjective.n * w->noun.n;
}

void ruler_key(const ruler_words *w, size_t i, char out[RULER_KEY_MAX])
{
    size_t low = 0, high = w->n_groups;
    while (high - low > 1) {
        size_t mid = (low + high) / 2;
        if (w->groups[mid].at <= i) low = mid;
        else high = mid;
    }
    const group *g = &w->groups[low];
    spell(w, g->order ? g->order[i - g->at] : (uint32_t)i, out);
}

/* ---- all words ---- */

size_t ruler_common_words(const ruler_words *w)
{
    return w->all.n;
}

const char *ruler_common_word(const ruler_words *w, size_t i)
{
    return w->all.word[i];
}

status ruler_words_read(ruler_words **out, const char *data_dir, bool old, err *e)
{
    *out = NULL;
    ruler_words *w;
    TRY(MEM_NEW(&w, 1, e));
    status st = read_lists(w, data_dir, old, e);
    if (st == ST_OK) st = make_groups(w, e);
    if (st == ST_OK) *out = w;
    else ruler_words_free(w);
    return st;
}

void ruler_words_free(ruler_words *w)
{
    if (!w) return;
    for (size_t i = 0; i < FILES; i++) mem_free(w->text[i]);
    for (size_t i = 0; i < w->n_groups; i++) mem_free(w->groups[i].order);
    mem_free(w->groups);
    mem_free(w->noun.word);
    mem_free(w->adjective.word);
    mem_free(w->all.word);
    mem_free(w);
}
