/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/mrcr/mrcr.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"

/* ---- one record ---- */

static status check_message(const json_t *m, size_t i, const char *where, err *e)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    const json_t *content = json_object_get(m, "content");
    const char *role = json_string_value(json_object_get(m, "role"));
    bool known = false;
    for (size_t k = 0; role && k < 3; k++) known |= strcmp(role, roles[k]) == 0;
    if (!known)
        return err_set(e, ST_FORMAT, "%s: 'prompt': message %zu: 'role' must be system, user or assistant", where,
                       i + 1);
    utf8_text text = {json_string_value(content), json_string_length(content)};
    if (text.s && !sample_has_nul(text)) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: 'prompt': message %zu has no text", where, i + 1);
}

/* Reads the list of messages, or its JSON text. */
static status read_messages(mrcr_sample *s, const char *where, err *e)
{
    json_t *prompt = json_object_get(s->at.root, "prompt"), *parsed = NULL;
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

/* Reads a whole number, or its text as in CSV. */
static status read_needles(mrcr_sample *s, const char *where, err *e)
{
    const json_t *n = json_object_get(s->at.root, "n_needles");
    if (!n) return ST_OK;
    s->needles = json_is_string(n) ? strtoll(json_string_value(n), NULL, 10) : json_integer_value(n);
    return s->needles >= 1 && s->needles <= 1 << 20
               ? ST_OK
               : err_set(e, ST_FORMAT, "%s: 'n_needles': expected a whole number of at least 1", where);
}

/* Returns the number before "needle" in the name of a CSV file, or 0. */
static int64_t needles_of_name(const char *name)
{
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name, *mark = strstr(base, "needle"), *d = mark;
    size_t n = strlen(base);
    if (!mark || n < 4 || strcmp(base + n - 4, ".csv") != 0) return 0;
    while (d > base && d[-1] >= '0' && d[-1] <= '9' && mark - d < 6) d--;
    return strtoll(d, NULL, 10);
}

static status read_record(const void *own, void *own_sample, const char *path, const char *where, err *e)
{
    mrcr_sample *s = own_sample;
    const json_t *root = s->at.root;
    (void)own;
    TRY(sample_text(&s->answer, root, "answer", where, e));
    if (s->answer.n == 0) return err_set(e, ST_FORMAT, "%s: 'answer' is empty", where);
    TRY(read_needles(s, where, e));
    if (s->needles == 0) s->needles = needles_of_name(path);
    if (json_object_get(root, "queries")) return sample_text(&s->queries, root, "queries", where, e);
    TRY(sample_text(&s->prefix, root, "random_string_to_prepend", where, e));
    return read_messages(s, where, e);
}

const sample_reader mrcr_reader = {.read = read_record};

void mrcr_drop(void *s)
{
    json_decref(((mrcr_sample *)s)->messages);
}

void mrcr_sample_forget(mrcr_sample *s)
{
    sample_forget(&s->at, "prompt");
    sample_forget(&s->at, "queries");
    json_decref(s->messages);
    s->messages = NULL;
    s->queries = (utf8_text){0};
}

/* ---- prompts ---- */

/* Writes "user: ...\n\nassistant: ...\n\n", and "assistant:" at the end. */
static status to_raw(prompt_text *out, const json_t *messages, err *e)
{
    size_t i;
    const json_t *m;
    json_array_foreach(messages, i, m)
    {
        const char *part[] = {json_string_value(json_object_get(m, "role")), ": ",
                              json_string_value(json_object_get(m, "content")), "\n\n"};
        for (size_t k = 0; k < 4; k++) TRY(prompt_add(out, part[k], strlen(part[k]), e));
    }
    return prompt_add(out, "assistant:", strlen("assistant:"), e);
}

status mrcr_text(prompt_text *out, const mrcr_sample *s, const prompter *how, err *e)
{
    *out = (prompt_text){0};
    if (s->messages && how->wrap != WRAP_RAW) return prompter_chat(out, how, s->messages, e);
    if (s->messages) return to_raw(out, s->messages, e);
    TRY(prompt_add(out, s->queries.s, s->queries.n, e));
    return how->wrap != WRAP_RAW ? prompter_ask(out, how, e) : ST_OK;
}
