/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/samples.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "kernels/base/sha256.h"

static const size_t MAX_FILE_BYTES = (size_t)1 << 30;

/* ---- files ---- */

static bool is_listed(const json_t *files, const char *sum)
{
    size_t i;
    json_t *f;
    json_array_foreach(files, i, f)
    {
        if (strcmp(sum, json_string_value(json_object_get(f, "sha256"))) == 0) return true;
    }
    return false;
}

static status note_file(json_t *files, const char *path, const char *text, size_t n, err *e)
{
    char sum[SHA256_HEX];
    sha256 h;
    const char *slash = strrchr(path, '/');
    sha256_init(&h);
    sha256_add(&h, text, n);
    sha256_hex(&h, sum);
    if (is_listed(files, sum))
        return err_set(e, ST_USAGE, "--data: %s has the samples of another file of the list", path_tail(path));
    err shown = {0};
    err_set(&shown, ST_OK, "%s", slash ? slash + 1 : path); /* a name need not be UTF-8 */
    json_t *file = json_pack("{s:s, s:s}", "name", shown.msg, "sha256", sum);
    return json_array_append_new(files, file) == 0 ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

status samples_file(char **text, size_t *n, const char *path, json_t *files, err *e)
{
    TRY(file_read(text, n, path, MAX_FILE_BYTES, e));
    status st = note_file(files, path, *text, *n, e);
    if (st == ST_OK) return ST_OK;
    mem_free(*text);
    *text = NULL;
    return st;
}

/* ---- which samples ---- */

typedef struct {
    sample_key key;
    uint64_t draw;
    size_t number;
} drawn;

static int by_draw(const void *a, const void *b)
{
    const drawn *x = a, *y = b;
    if (x->key.dataset != y->key.dataset) return x->key.dataset < y->key.dataset ? -1 : 1;
    if (x->draw != y->draw) return x->draw < y->draw ? -1 : 1;
    return x->key.index < y->key.index ? -1 : x->key.index > y->key.index;
}

static int by_index(const void *a, const void *b)
{
    const drawn *x = a, *y = b;
    if (x->key.dataset != y->key.dataset) return x->key.dataset < y->key.dataset ? -1 : 1;
    return x->key.index < y->key.index ? -1 : x->key.index > y->key.index;
}

static uint64_t draw_of(uint64_t seed, const sample_key *k)
{
    rng r = {seed};
    r.state = rng_next(&r) ^ (uint64_t)k->dataset;
    r.state = rng_next(&r) ^ (uint64_t)k->index;
    return rng_next(&r);
}

status samples_choose(size_t *keep, size_t *kept, const sample_key *k, size_t n, const sample_source *s, err *e)
{
    drawn *all;
    size_t n_kept = 0;
    int64_t of_dataset = 0;
    TRY(MEM_NEW(&all, n, e));
    for (size_t i = 0; i < n; i++) all[i] = (drawn){k[i], s->sampled ? draw_of(s->seed, &k[i]) : 0, i};
    qsort(all, n, sizeof *all, by_draw);
    for (size_t i = 0; i < n; i++) {
        of_dataset = i > 0 && all[i].key.dataset == all[i - 1].key.dataset ? of_dataset + 1 : 0;
        if (s->limit == 0 || of_dataset < s->limit) all[n_kept++] = all[i];
    }
    qsort(all, n_kept, sizeof *all, by_index);
    for (size_t i = 0; i < n_kept; i++) keep[i] = all[i].number;
    *kept = n_kept;
    mem_free(all);
    return ST_OK;
}

status samples_keep(void *s, size_t size, size_t *n, const sample_key *k, const sample_source *from,
                    void (*drop)(void *), err *e)
{
    size_t *keep = NULL, kept;
    char *old = s, *all = NULL;
    bool *taken = NULL;
    status st;
    TRY_GOTO(MEM_NEW(&keep, *n, e));
    TRY_GOTO(MEM_NEW(&taken, *n, e));
    TRY_GOTO(mem_alloc((void **)&all, *n, size, "samples", e));
    TRY_GOTO(samples_choose(keep, &kept, k, *n, from, e));
    for (size_t i = 0; i < kept; i++) {
        memcpy(all + i * size, old + keep[i] * size, size);
        taken[keep[i]] = true;
    }
    for (size_t i = 0; i < *n; i++)
        if (!taken[i]) drop(old + i * size);
    memcpy(s, all, kept * size);
    *n = kept;
done:
    mem_free(keep);
    mem_free(taken);
    mem_free(all);
    return st;
}

/* ---- texts ---- */

bool sample_has_nul(utf8_text s)
{
    return s.n && memchr(s.s, 0, s.n);
}

status sample_text(utf8_text *out, const json_t *sample, const char *field, const char *where, err *e)
{
    const json_t *j = json_object_get(sample, field);
    if (!json_is_string(j)) return err_set(e, ST_FORMAT, "%s: '%s': expected a text", where, field);
    *out = (utf8_text){json_string_value(j), json_string_length(j)};
    return sample_has_nul(*out) ? err_set(e, ST_FORMAT, "%s: '%s' holds the character U+0000", where, field) : ST_OK;
}
