/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/mrcr/mrcr.h"

#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "eval/records.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

/* ---- one record ---- */

static status check_message(const json_t *m, size_t i, const char *where, err *e)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    const json_t *content = json_object_get(m, "content");
    const char *role = json_string_value(json_object_get(m, "role"));
    bool known = false;
    for (size_t k = 0; role && k < 3; k++) known |= strcmp(role, roles[k]) == 0;
    if (!known) return err_set(e, ST_FORMAT, "%s: 'prompt': message %zu has no role of a conversation", where, i + 1);
    utf8_text text = {json_string_value(content), json_string_length(content)};
    if (text.s && !sample_has_nul(text)) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: 'prompt': message %zu has no text", where, i + 1);
}

/* The list of messages, or the text of one. */
static status read_messages(mrcr_sample *s, const char *where, err *e)
{
    json_t *prompt = json_object_get(s->root, "prompt"), *parsed = NULL;
    size_t i;
    json_t *m;
    if (json_is_string(prompt)) {
        parsed = json_loadb(json_string_value(prompt), json_string_length(prompt), JSON_REJECT_DUPLICATES, NULL);
        if (!parsed) return err_set(e, ST_FORMAT, "%s: 'prompt': expected the JSON text of a list of messages", where);
    }
    s->messages = parsed ? parsed : json_incref(prompt);
    if (json_array_size(s->messages) == 0)
        return err_set(e, ST_FORMAT, "%s: 'prompt': expected a list of messages", where);
    json_array_foreach(s->messages, i, m) TRY(check_message(m, i, where, e));
    return ST_OK;
}

/* A whole number, or its text as CSV has it. */
static status read_needles(mrcr_sample *s, const char *where, err *e)
{
    const json_t *n = json_object_get(s->root, "n_needles");
    if (!n) return ST_OK;
    s->needles = json_is_string(n) ? strtoll(json_string_value(n), NULL, 10) : json_integer_value(n);
    return s->needles >= 1 && s->needles <= 1 << 20
               ? ST_OK
               : err_set(e, ST_FORMAT, "%s: 'n_needles': expected a whole number of at least 1", where);
}

/* Takes root also after an error. */
static status read_record(mrcr_sample *s, json_t *root, const char *where, err *e)
{
    s->root = root;
    TRY(sample_text(&s->answer, root, "answer", where, e));
    if (s->answer.n == 0) return err_set(e, ST_FORMAT, "%s: 'answer' is empty", where);
    TRY(read_needles(s, where, e));
    if (json_object_get(root, "queries")) return sample_text(&s->queries, root, "queries", where, e);
    TRY(sample_text(&s->prefix, root, "random_string_to_prepend", where, e));
    return read_messages(s, where, e);
}

static void drop_sample(void *sample)
{
    mrcr_sample *s = sample;
    json_decref(s->root);
    json_decref(s->messages);
}

/* Takes root. */
static status push(mrcr_data *out, json_t *root, const char *where, err *e)
{
    mrcr_sample s = {.index = (int64_t)out->n};
    status st = read_record(&s, root, where, e);
    if (st == ST_OK && out->n == out->cap) {
        size_t cap = out->cap ? 2 * out->cap : 64;
        st = MEM_GROW(&out->s, cap, e);
        if (st == ST_OK) out->cap = cap;
    }
    if (st == ST_OK) out->s[out->n++] = s;
    else drop_sample(&s);
    return st;
}

/* ---- files ---- */

/* The number in front of "needle" in a file's name; 0: there is none. */
static int64_t needles_of_name(const char *name)
{
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name, *mark = strstr(base, "needle"), *d = mark;
    while (mark && d > base && d[-1] >= '0' && d[-1] <= '9' && mark - d < 6) d--;
    return mark ? strtoll(d, NULL, 10) : 0;
}

typedef struct {
    mrcr_data *out;
    int64_t needles; /* where a record has no number of its own */
} reading;

static status take(void *own, json_t *record, const char *where, err *e)
{
    const reading *r = own;
    TRY(push(r->out, record, where, e));
    mrcr_sample *s = &r->out->s[r->out->n - 1];
    if (s->needles == 0) s->needles = r->needles;
    return ST_OK;
}

status mrcr_data_add(mrcr_data *out, const char *name, const char *text, size_t n, err *e)
{
    size_t before = out->n, length = strlen(name);
    bool csv = length > 4 && strcmp(name + length - 4, ".csv") == 0;
    reading into = {out, csv ? needles_of_name(name) : 0};
    TRY(records_read(&(record_reader){.take = take, .own = &into}, name, text, n, e));
    return out->n > before ? ST_OK : err_set(e, ST_FORMAT, "%s: no samples", path_tail(name));
}

static status read_file(mrcr_data *out, const char *path, err *e)
{
    char *text;
    size_t n;
    if (dir_exists(path)) return err_set(e, ST_IO, "--data %s: a folder, expected files", path_tail(path));
    TRY(samples_file(&text, &n, path, out->files, e));
    status st = mrcr_data_add(out, path, text, n, e);
    mem_free(text);
    return st;
}

static status choose(mrcr_data *d, const sample_source *from, err *e)
{
    sample_key *key;
    TRY(MEM_NEW(&key, d->n, e));
    for (size_t i = 0; i < d->n; i++) key[i].index = d->s[i].index;
    status st = samples_keep(d->s, sizeof *d->s, &d->n, key, from, drop_sample, e);
    mem_free(key);
    return st;
}

status mrcr_data_read(mrcr_data *out, const sample_source *from, err *e)
{
    char **word = NULL, *store = NULL;
    size_t n;
    *out = (mrcr_data){.files = json_array()};
    if (!out->files) return err_set(e, ST_NOMEM, "out of memory");
    status st = cli_split(&word, &n, &store, from->data, e);
    for (size_t i = 0; i < n && st == ST_OK; i++) st = read_file(out, word[i], e);
    mem_free(word);
    mem_free(store);
    return st == ST_OK ? choose(out, from, e) : st;
}

void mrcr_data_free(mrcr_data *d)
{
    for (size_t i = 0; i < d->n; i++) drop_sample(&d->s[i]);
    mem_free(d->s);
    json_decref(d->files);
    *d = (mrcr_data){0};
}

void mrcr_sample_forget(mrcr_sample *s)
{
    json_object_del(s->root, "prompt");
    json_object_del(s->root, "queries");
    json_decref(s->messages);
    s->messages = NULL;
    s->queries = (utf8_text){0};
}

/* ---- prompts ---- */

static status to_chat(prompt_text *out, const mrcr_sample *s, const tokenizer *tok, const char *name, err *e)
{
    size_t i, n = json_array_size(s->messages);
    json_t *m;
    chat_message *list;
    TRY(MEM_NEW(&list, n, e));
    json_array_foreach(s->messages, i, m)
    {
        list[i].role = json_string_value(json_object_get(m, "role"));
        list[i].content = json_string_value(json_object_get(m, "content"));
    }
    status st = chat_render(tok, name, list, n, &out->s, &out->n, e);
    mem_free(list);
    return st;
}

/* "user: ...\n\nassistant: ...\n\n", and "assistant:" at the end. Writes to out where it is not NULL; the bytes. */
static size_t put_raw(char *out, const json_t *messages)
{
    size_t i, n = 0;
    const json_t *m;
    json_array_foreach(messages, i, m)
    {
        const char *part[] = {json_string_value(json_object_get(m, "role")), ": ",
                              json_string_value(json_object_get(m, "content")), "\n\n"};
        for (size_t k = 0; k < 4; k++) {
            size_t bytes = strlen(part[k]);
            if (out) memcpy(out + n, part[k], bytes);
            n += bytes;
        }
    }
    if (out) strcpy(out + n, "assistant:");
    return n + strlen("assistant:");
}

static status copy_text(prompt_text *out, utf8_text from, err *e)
{
    TRY(mem_alloc((void **)&out->s, from.n + 1, 1, "prompt", e));
    memcpy(out->s, from.s, from.n);
    out->n = from.n;
    return ST_OK;
}

status mrcr_text(prompt_text *out, const mrcr_sample *s, const tokenizer *tok, const char *name, bool chat, err *e)
{
    *out = (prompt_text){0};
    if (s->messages && chat) return to_chat(out, s, tok, name, e);
    if (s->messages) {
        TRY(mem_alloc((void **)&out->s, put_raw(NULL, s->messages) + 1, 1, "prompt", e));
        out->n = put_raw(out->s, s->messages);
        return ST_OK;
    }
    TRY(copy_text(out, s->queries, e));
    return chat ? prompt_to_chat(out, tok, name, e) : ST_OK;
}
