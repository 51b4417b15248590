/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/values.h"
#include "eval/records.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/nearest.h"
#include "kernels/base/rng.h"
#include "kernels/base/sha256.h"

static const size_t MAX_FILE_BYTES = (size_t)1 << 30;

/* ---- datasets ---- */

status dataset_find(size_t *out, const dataset_names *names, const char *name, size_t n, err *e)
{
    size_t best = 0, least = SIZE_MAX, rest = n > NEAREST_MAX ? n - NEAREST_MAX : 0;
    *out = DATASET_UNKNOWN;
    n -= rest;
    for (size_t i = 0; i < names->n; i++) {
        const char *known = dataset_name(names, i);
        size_t d = nearest_distance(name, n, known, strlen(known)) + rest;
        if (d < least) {
            least = d;
            best = i;
        }
    }
    if (least > 0)
        return err_set(e, ST_USAGE, "'%.*s' is not a dataset of %s; the nearest name is %s", (int)n, name, names->bench,
                       dataset_name(names, best));
    *out = best;
    return ST_OK;
}

/* Returns the length of a name without its suffix. */
static size_t without_ending(const dataset_names *names, const char *name, size_t n)
{
    size_t k = names->ending ? strlen(names->ending) : 0;
    return k && n > k && strncmp(name + n - k, names->ending, k) == 0 ? n - k : n;
}

status datasets_mark(bool *wanted, const dataset_names *names, const char *option, const char *datasets, err *e)
{
    char **word = NULL, *store = NULL;
    size_t n, d;
    status st = cli_split(&word, &n, &store, datasets, e);
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        err inner = {0};
        st = dataset_find(&d, names, word[i], without_ending(names, word[i], strlen(word[i])), &inner);
        if (st != ST_OK) err_set(e, st, "%s: %.200s", option, inner.msg);
        else wanted[d] = true;
    }
    mem_free(word);
    mem_free(store);
    return st;
}

/* Sets *d to the dataset named by the record's member "dataset", which must agree with the file's dataset. */
static status dataset_of(size_t *d, const dataset_names *names, const json_t *root, const char *where, err *e)
{
    const json_t *field = json_object_get(root, "dataset");
    const char *name = json_string_value(field);
    size_t of_file = *d;
    err inner = {0};
    if (!field && of_file != DATASET_UNKNOWN) return ST_OK;
    if (!name) return err_set(e, ST_FORMAT, "%s: 'dataset': expected a string", where);
    if (dataset_find(d, names, name, without_ending(names, name, strlen(name)), &inner) != ST_OK)
        return err_set(e, ST_FORMAT, "%s: 'dataset': %.120s", where, inner.msg);
    if (of_file == DATASET_UNKNOWN || of_file == *d) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: 'dataset' is %s in a file of %s", where, dataset_name(names, *d),
                   dataset_name(names, of_file));
}

/* ---- lists ---- */

void sample_drop(const sample_list *l, void *s)
{
    if (l->drop) l->drop(s);
    json_decref(((sample_head *)s)->root);
}

status samples_push(sample_list *l, void *s, err *e)
{
    status st = mem_room((void **)&l->s, &l->cap, l->n + 1, l->size, "samples", e);
    if (st == ST_OK) memcpy(samples_at(l, l->n++), s, l->size);
    else sample_drop(l, s);
    return st;
}

void samples_remove(sample_list *l, size_t i)
{
    char *s = samples_at(l, i);
    sample_drop(l, s);
    memmove(s, s + l->size, (--l->n - i) * l->size);
}

static int by_draw(const void *a, const void *b)
{
    const sample_head *x = a, *y = b;
    if (x->dataset != y->dataset) return x->dataset < y->dataset ? -1 : 1;
    if (x->draw != y->draw) return x->draw < y->draw ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static uint64_t draw_of(uint64_t seed, const sample_head *s)
{
    rng r = {seed};
    r.state = rng_next(&r) ^ (uint64_t)s->dataset;
    r.state = rng_next(&r) ^ (uint64_t)s->index;
    return rng_next(&r);
}

static void sort(sample_list *l)
{
    if (l->n > 0) qsort(l->s, l->n, l->size, by_draw);
}

void samples_keep(sample_list *l, const sample_source *from)
{
    size_t kept = 0, dataset = SIZE_MAX;
    int64_t of_dataset = 0;
    for (size_t i = 0; from->sampled && i < l->n; i++) {
        sample_head *s = samples_at(l, i);
        s->draw = draw_of(from->seed, s);
    }
    sort(l);
    for (size_t i = 0; i < l->n; i++) {
        sample_head *s = samples_at(l, i);
        of_dataset = s->dataset == dataset ? of_dataset + 1 : 0;
        dataset = s->dataset;
        s->draw = 0;
        if (from->limit > 0 && of_dataset >= from->limit) sample_drop(l, s);
        else memmove(samples_at(l, kept++), s, l->size);
    }
    l->n = kept;
    sort(l);
}

size_t samples_count(const sample_list *l, size_t dataset)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) n += ((const sample_head *)samples_at(l, i))->dataset == dataset;
    return n;
}

json_t *samples_counts(const sample_list *l, const dataset_names *names)
{
    json_t *o = json_object();
    for (size_t i = 0; i < l->n; i++) {
        size_t d = ((const sample_head *)samples_at(l, i))->dataset;
        json_object_set_new(o, dataset_name(names, d), json_integer((json_int_t)samples_count(l, d)));
    }
    return o;
}

void sample_forget(sample_head *s, const char *field)
{
    json_object_del(s->root, field);
}

void samples_free(sample_list *l)
{
    for (size_t i = 0; i < l->n; i++) sample_drop(l, samples_at(l, i));
    mem_free(l->s);
    json_decref(l->files);
    l->s = NULL;
    l->files = NULL;
    l->n = l->cap = 0;
}

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
        return err_set(e, ST_USAGE, "--data: %s has the same content as another file", path_tail(path));
    err shown = {0};
    err_set(&shown, ST_OK, "%s", slash ? slash + 1 : path); /* makes the name valid UTF-8 */
    json_t *file = json_pack("{s:s, s:s}", "name", shown.msg, "sha256", sum);
    return json_array_append_new(files, file) == 0 ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

status samples_file(char **text, size_t *n, const char *path, json_t *files, err *e)
{
    TRY(file_read_input(text, n, path, MAX_FILE_BYTES, e));
    status st = note_file(files, path, *text, *n, e);
    if (st == ST_OK) return ST_OK;
    mem_free(*text);
    *text = NULL;
    return st;
}

/* ---- reading ---- */

/* State while the records of one file are read. */
typedef struct {
    sample_list *l;
    const sample_reader *r;
    const sample_source *from; /* NULL: all samples are kept */
    int64_t *count;            /* [datasets] number of samples so far */
    const char *path;
    size_t of_file; /* dataset of the file, or DATASET_UNKNOWN */
    bool any;       /* the file has samples */
} reading;

static status read_sample(reading *g, void *s, const char *where, err *e)
{
    const sample_reader *r = g->r;
    sample_head *at = s;
    if (r->names) at->dataset = g->of_file;
    if (r->dataset) TRY(r->dataset(&at->dataset, at->root, g->path, where, e));
    else if (r->names) TRY(dataset_of(&at->dataset, r->names, at->root, where, e));
    return r->read(r->own, s, g->path, where, e);
}

/* True if the sample is selected. Samples beyond the limit are dropped at once, because official files are large. */
static bool is_kept(const reading *g, const sample_head *s)
{
    const sample_source *from = g->from;
    if (g->r->wanted && !g->r->wanted[s->dataset]) return false;
    return !from || from->limit == 0 || from->sampled || s->index < from->limit;
}

static status take(void *own, json_t *root, const char *where, err *e)
{
    reading *g = own;
    sample_head *s;
    status st = mem_alloc((void **)&s, 1, g->l->size, "sample", e);
    if (st != ST_OK) {
        json_decref(root);
        return st;
    }
    s->root = root;
    g->any = true;
    st = read_sample(g, s, where, e);
    if (st == ST_OK) s->index = g->count[s->dataset]++;
    if (st == ST_OK && is_kept(g, s)) st = samples_push(g->l, s, e);
    else sample_drop(g->l, s);
    mem_free(s);
    return st;
}

static status read_text(reading *g, const char *path, size_t of_file, const char *text, size_t n, err *e)
{
    g->path = path;
    g->of_file = of_file;
    g->any = false;
    TRY(records_read(&(record_reader){.take = take, .own = g}, path, text, n, e));
    return g->any ? ST_OK : err_set(e, ST_FORMAT, "%s: no samples", path_tail(path));
}

status samples_add(sample_list *l, const sample_reader *r, const char *name, const char *text, size_t n, err *e)
{
    reading g = {.l = l, .r = r};
    TRY(MEM_NEW(&g.count, r->names ? r->names->n : 1, e));
    status st = read_text(&g, name, DATASET_UNKNOWN, text, n, e);
    mem_free(g.count);
    return st;
}

static status read_file(reading *g, const char *path, size_t of_file, err *e)
{
    char *text;
    size_t n;
    TRY(samples_file(&text, &n, path, g->l->files, e));
    status st = read_text(g, path, of_file, text, n, e);
    mem_free(text);
    return st;
}

/* Reads DIR/NAME if it exists; sets *there. */
static status read_within(reading *g, const char *dir, const char *name, size_t of_file, bool *there, err *e)
{
    char *path = path_join(dir, name);
    if (!path) return err_set(e, ST_NOMEM, "out of memory");
    *there = file_exists(path);
    status st = *there ? read_file(g, path, of_file, e) : ST_OK;
    mem_free(path);
    return st;
}

static bool is_packed(const char *dir, const char *dataset)
{
    char name[96];
    snprintf(name, sizeof name, "%s.jsonl.xz", dataset);
    char *path = path_join(dir, name);
    bool there = path && file_exists(path);
    mem_free(path);
    return there;
}

static status read_datasets(reading *g, const char *dir, err *e)
{
    const dataset_names *names = g->r->names;
    const char *first = "", *suffix = g->r->suffix ? g->r->suffix : "";
    bool any = false, packed = false;
    for (size_t i = 0; i < names->n; i++) {
        bool there = false;
        const char *dataset = dataset_name(names, i);
        char name[96];
        if (g->r->wanted && !g->r->wanted[i]) continue;
        if (!*first) first = dataset;
        snprintf(name, sizeof name, "%s%s.jsonl", dataset, suffix);
        TRY(read_within(g, dir, name, i, &there, e));
        any |= there;
        packed |= !there && is_packed(dir, dataset);
        if (!there && g->r->datasets)
            return err_set(e, ST_IO, "--data %s: no file %s%s", path_tail(dir), name,
                           packed ? " (unpack the .xz first)" : "");
    }
    return any ? ST_OK
               : err_set(e, ST_IO, "--data %s: no file of a dataset (%s%s.jsonl, ...)%s", path_tail(dir), first, suffix,
                         packed ? "; unpack the .xz first" : "");
}

static status read_folder(reading *g, const char *dir, err *e)
{
    const char *const *name = g->r->in_folder;
    bool there = false;
    if (g->r->names) return read_datasets(g, dir, e);
    if (!name) return err_set(e, ST_IO, "--data %s: a folder, expected files", path_tail(dir));
    for (; *name && !there; name++) TRY(read_within(g, dir, *name, 0, &there, e));
    return there ? ST_OK
                 : err_set(e, ST_IO, "--data %s: neither %s nor %s exists", path_tail(dir), g->r->in_folder[0],
                           g->r->in_folder[1]);
}

/* Returns the dataset that a file is named after, or DATASET_UNKNOWN. */
static size_t dataset_of_name(const dataset_names *names, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t d = DATASET_UNKNOWN;
    if (names) dataset_find(&d, names, name, without_ending(names, name, strcspn(name, ".")), NULL);
    return d;
}

status samples_read(sample_list *l, const sample_reader *r, const sample_source *from, err *e)
{
    reading g = {.l = l, .r = r, .from = from};
    char **word = NULL, *store = NULL;
    size_t n;
    if (!(l->files = json_array())) return err_set(e, ST_NOMEM, "out of memory");
    TRY(MEM_NEW(&g.count, r->names ? r->names->n : 1, e));
    status st = cli_split(&word, &n, &store, from->data, e);
    for (size_t i = 0; i < n && st == ST_OK; i++)
        st = dir_exists(word[i]) ? read_folder(&g, word[i], e)
                                 : read_file(&g, word[i], dataset_of_name(r->names, word[i]), e);
    mem_free(word);
    mem_free(store);
    mem_free(g.count);
    if (st == ST_OK) samples_keep(l, from);
    return st;
}

/* ---- texts ---- */

bool sample_has_nul(utf8_text s)
{
    return s.n && memchr(s.s, 0, s.n);
}

status sample_text(utf8_text *out, const json_t *root, const char *field, const char *where, err *e)
{
    const json_t *j = json_object_get(root, field);
    if (!json_is_string(j)) return err_set(e, ST_FORMAT, "%s: '%s': expected a string", where, field);
    *out = (utf8_text){json_string_value(j), json_string_length(j)};
    return sample_has_nul(*out) ? err_set(e, ST_FORMAT, "%s: '%s' holds the character U+0000", where, field) : ST_OK;
}

status sample_options(utf8_text out[SAMPLE_OPTIONS], const json_t *root, const char *where, err *e)
{
    const json_t *list = json_object_get(root, "options");
    if (json_array_size(list) != SAMPLE_OPTIONS)
        return err_set(e, ST_FORMAT, "%s: 'options': expected a list of four texts", where);
    for (size_t i = 0; i < SAMPLE_OPTIONS; i++) {
        const json_t *one = json_array_get(list, i);
        out[i] = (utf8_text){json_string_value(one), json_string_length(one)};
        if (!out[i].s || sample_has_nul(out[i]))
            return err_set(e, ST_FORMAT, "%s: 'options': element %zu is not a string", where, i + 1);
    }
    return ST_OK;
}

status sample_choice(json_t **labels, utf8_text answer, const utf8_text options[SAMPLE_OPTIONS], const char *where,
                     err *e)
{
    for (int i = 0; answer.s && i < SAMPLE_OPTIONS; i++) {
        const char letter[] = {(char)('A' + i), 0};
        if (options[i].n != answer.n || memcmp(options[i].s, answer.s, answer.n) != 0) continue;
        *labels = json_pack("[s%, s]", answer.s, answer.n, letter);
        return *labels ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
    }
    return err_set(e, ST_FORMAT, "%s: 'answer' is not one of 'options'", where);
}
