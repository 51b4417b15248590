/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/prompt_file.h"

#include <stdio.h>
#include <string.h>

#include "eval/results.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "kernels/base/nearest.h"

enum { MAX_BYTES = 1 << 20, MAX_DEPTH = 8 };

status prompt_table_read(json_t **out, const char *data_dir, const char *name, err *e)
{
    char *path = path_join(data_dir, name);
    *out = NULL;
    if (!path) return err_set(e, ST_NOMEM, "out of memory");
    status st = json_read_object(out, path, MAX_BYTES, MAX_DEPTH, e);
    mem_free(path);
    return st;
}

json_t *prompt_table_find(const json_t *table, const char *name, const char *option, err *e)
{
    json_t *found = json_object_get(table, name);
    nearest near;
    char list[160] = "";
    size_t n = 0;
    if (found) return found;
    nearest_start(&near, name);
    for (void *i = json_object_iter((json_t *)(uintptr_t)table); i;
         i = json_object_iter_next((json_t *)(uintptr_t)table, i)) {
        nearest_try(&near, json_object_iter_key(i), strlen(json_object_iter_key(i)));
        if (n < sizeof list) n += (size_t)snprintf(list + n, sizeof list - n, " %s", json_object_iter_key(i));
    }
    err_set(e, ST_USAGE, "%s: '%.40s' is not one of:%s%s", option, name, list, nearest_hint(&near));
    return NULL;
}

status prompt_file_parse(prompt_file *f, const char *text, size_t n, const char *name, err *e)
{
    const char *slash = strrchr(name, '/');
    sha256 sum;
    *f = (prompt_file){.name = slash ? slash + 1 : name};
    sha256_init(&sum);
    sha256_add(&sum, text, n);
    sha256_hex(&sum, f->sum);
    return json_parse_object(&f->texts, text, n, f->name, MAX_DEPTH, e);
}

status prompt_file_read(prompt_file *f, const char *path, err *e)
{
    char *text;
    size_t n;
    *f = (prompt_file){0};
    TRY(file_read(&text, &n, path, MAX_BYTES, e));
    status st = prompt_file_parse(f, text, n, path, e);
    mem_free(text);
    return st;
}

void prompt_file_close(prompt_file *f)
{
    json_decref(f->texts);
    *f = (prompt_file){0};
}

/* Returns the number of bytes of a name in braces at s; 0: none. */
static size_t field_at(const char *s)
{
    size_t n = *s == '{' ? strspn(s + 1, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") : 0;
    return n > 0 && s[n + 1] == '}' ? n + 2 : 0;
}

static bool among(const char *fields, const char *s, size_t n)
{
    for (; *fields; fields += strcspn(fields, " "), fields += strspn(fields, " "))
        if (strcspn(fields, " ") == n && memcmp(fields, s, n) == 0) return true;
    return false;
}

static status missing(const prompt_file *f, const char *dataset, err *e)
{
    nearest near;
    const char *name;
    json_t *unused;
    nearest_start(&near, dataset);
    json_object_foreach(f->texts, name, unused) nearest_try(&near, name, strlen(name));
    return err_set(e, ST_FORMAT, "%.60s: no template for data set '%.63s'%s", f->name, dataset, nearest_hint(&near));
}

status prompt_file_template(const char **out, const prompt_file *f, const char *dataset, const char *fields, err *e)
{
    static const char *const types[] = {"an object", "a list", "a text", "a number",
                                        "a number",  "true",   "false",  "null"};
    const json_t *j = json_object_get(f->texts, dataset);
    if (!j) return missing(f, dataset, e);
    if (!json_is_string(j))
        return err_set(e, ST_FORMAT, "%.60s: '%.63s': found %s, expected a template", f->name, dataset,
                       types[json_typeof(j)]);
    const char *text = json_string_value(j);
    for (const char *s = text; *s; s++) {
        size_t n = field_at(s);
        if (n && !among(fields, s, n))
            return err_set(e, ST_FORMAT, "%.60s: '%.63s': unknown field %.*s; supported fields: %s", f->name, dataset,
                           n < 32 ? (int)n : 32, s, fields);
    }
    if (!strstr(text, "{context}"))
        return err_set(e, ST_FORMAT, "%.60s: '%.63s': the template lacks {context}", f->name, dataset);
    *out = text;
    return ST_OK;
}

json_t *prompt_file_config(const prompt_file *f, json_t *config)
{
    return f->name ? results_merge(config, json_pack("{s:s, s:s}", "prompts", f->name, "prompts_sha256", f->sum))
                   : config;
}
