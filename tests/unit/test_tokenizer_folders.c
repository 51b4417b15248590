/* SPDX-License-Identifier: MIT */
/* Folders in the forms in which models are published: ids and texts of the reference (tests/data/tokenizers/folders,
 * made by scripts/fixtures/make_folders.py). */
#include "config.h"

#include <dirent.h>

#include "tests/unit/test_tokenizer_util.h"

/* Number of lines of a folder that are as in the reference. */
typedef struct {
    int n, ids, full, decoded, streams;
} marks;

static bool same_text(const tokenizer *t, const token_list *ids, bool keep, const json_t *j, const char *key)
{
    const json_t *want = json_object_get(j, key) ? json_object_get(j, key) : json_object_get(j, "text");
    char *out;
    size_t n;
    if (tokenizer_decode(t, ids->ids, ids->n, keep, &out, &n, NULL) != ST_OK) return false;
    const bool same = n == json_string_length(want) && memcmp(out, json_string_value(want), n) == 0;
    if (!same) {
        print_text("decoded", out, n);
        print_text("want   ", json_string_value(want), json_string_length(want));
    }
    mem_free(out);
    return same;
}

static bool check_ids(const tokenizer *t, const json_t *j, const char *key, unsigned flags, token_list *got)
{
    const json_t *text = json_object_get(j, "text"), *want = json_object_get(j, key);
    if (!want) want = json_object_get(j, "ids");
    err e = {0};
    status st =
        tokenizer_encode(t, json_string_value(text), json_string_length(text), TOKENIZE_SPECIAL | flags, got, &e);
    if (st == ST_OK && same_ids(want, got)) return true;
    print_text(key, json_string_value(text), json_string_length(text));
    print_ids("got ", got);
    char *s = json_dumps(want, JSON_COMPACT);
    printf("#   want %s (%s)\n", s, e.msg);
    free(s);
    return false;
}

static void check_line(const tokenizer *t, const json_t *j, marks *m)
{
    token_list ids = {0}, full = {0};
    m->n++;
    m->ids += check_ids(t, j, "ids", 0, &ids);
    m->full += check_ids(t, j, "full", tokenizer_adds_bos(t) ? TOKENIZE_BOS : 0, &full);
    m->decoded += same_text(t, &ids, false, j, "decoded") && same_text(t, &ids, true, j, "kept");
    m->streams += stream_equals_whole(t, ids.ids, ids.n);
    token_list_free(&ids);
    token_list_free(&full);
}

static void check_folder(const char *dir, const char *name)
{
    char path[4400];
    marks m = {0};
    tokenizer *t = open_tokenizer(dir, name);
    if (!t) return;
    snprintf(path, sizeof path, "%s/tokens.jsonl", dir);
    FILE *f = fopen(path, "rb");
    if (ok(f, "%s has tokens.jsonl", name)) {
        for (json_t *j; (j = next_json(f)); json_decref(j)) check_line(t, j, &m);
        fclose(f);
    }
    ok(m.n > 10, "%s has texts", name);
    is_int(m.ids, m.n, "%s: ids", name);
    is_int(m.full, m.n, "%s: ids with the tokens that are added", name);
    is_int(m.decoded, m.n, "%s: decoded texts", name);
    is_int(m.streams, m.n, "%s: streaming equals decoding", name);
    tokenizer_free(t);
}

int main(void)
{
    char root[4096], dir[4200];
    snprintf(root, sizeof root, "%s", tap_path("tests/data/tokenizers/folders"));
    struct dirent **list;
    const int n = scandir(root, &list, NULL, alphasort);
    ok(n > 2, "there are folders");
    for (int i = 0; i < n; i++) {
        snprintf(dir, sizeof dir, "%.3000s/%.255s", root, list[i]->d_name);
        if (list[i]->d_name[0] != '.') check_folder(dir, list[i]->d_name);
        free(list[i]);
    }
    if (n >= 0) free(list);
    return tap_done();
}
