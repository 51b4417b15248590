/* SPDX-License-Identifier: MIT */
/* Published chat templates render as transformers does: text, and messages of raise_exception. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tokenizer/jinja/jinja.h"

enum { NOW = 1785067200, MAX_BYTES = 64 << 20 };

static int n_equal, n_error, n_different;

/* Returns the variables of a context with the defaults of those it leaves out. */
static json_t *variables_of(const json_t *context)
{
    json_t *v = json_pack("{s:s, s:s, s:s, s:s, s:n, s:n, s:b}", "bos_token", "<BOS>", "eos_token", "<EOS>",
                          "unk_token", "<UNK>", "pad_token", "<PAD>", "documents", "tools", "add_generation_prompt", 1);
    json_object_update(v, (json_t *)(uintptr_t)context);
    return v;
}

static bool is_expected(status st, const jinja_text *got, const json_t *row)
{
    const json_t *text = json_object_get(row, "text");
    if (text) {
        return st == ST_OK && got->n == json_string_length(text) &&
               memcmp(got->text, json_string_value(text), got->n) == 0;
    }
    if (strcmp(json_string_value(json_object_get(row, "error")), "TemplateError") != 0) return st == ST_FORMAT;
    return st == ST_USAGE && strcmp(got->text, json_string_value(json_object_get(row, "message"))) == 0;
}

/* Prints where the text differs. */
static void show(const jinja_text *got, const json_t *row, const err *e)
{
    const char *want = json_string_value(json_object_get(row, "text"));
    size_t i = 0;
    printf("# %s, %s: %s\n", json_string_value(json_object_get(row, "template")),
           json_string_value(json_object_get(row, "case")), e->msg);
    if (!want) want = json_string_value(json_object_get(row, "message"));
    while (got->text && got->text[i] && got->text[i] == want[i]) i++;
    printf("#   at byte %zu: got %.60s\n#   want %.60s\n", i, got->text ? got->text + i : "(none)", want + i);
}

static void check_row(const json_t *row, const json_t *contexts, const jinja *j)
{
    json_t *variables = variables_of(json_object_get(contexts, json_string_value(json_object_get(row, "case"))));
    jinja_text got = {0};
    err e = {0};
    const status st = jinja_render(j, variables, NOW, &got, &e);
    if (is_expected(st, &got, row)) {
        if (st == ST_OK) n_equal++;
        else n_error++;
    } else {
        n_different++;
        show(&got, row, &e);
    }
    jinja_text_free(&got);
    json_decref(variables);
}

static jinja *open_template(const char *name)
{
    char rel[300], *text;
    size_t n;
    jinja *j = NULL;
    err e = {0};
    snprintf(rel, sizeof rel, "templates/%s", name);
    const char *path = tap_data(rel);
    if (!path || file_read(&text, &n, path, MAX_BYTES, &e) != ST_OK) return NULL;
    if (jinja_parse(&j, text, n, name, &e) != ST_OK) printf("# %s\n", e.msg);
    mem_free(text);
    return j;
}

/* Checks the rows of a file of JSON lines. Rows of the same template are adjacent. */
static void check_rows(FILE *f, const json_t *contexts)
{
    char *line = NULL, last[300] = "";
    size_t cap = 0;
    jinja *j = NULL;
    while (getline(&line, &cap, f) > 0) {
        json_t *row = json_loads(line, 0, NULL);
        const char *name = json_string_value(json_object_get(row, "template"));
        if (!name) break;
        if (strcmp(name, last) != 0) {
            jinja_free(j);
            j = open_template(name);
            snprintf(last, sizeof last, "%s", name);
        }
        if (j) check_row(row, contexts, j);
        else n_different++;
        json_decref(row);
    }
    jinja_free(j);
    free(line);
}

int main(void)
{
    char command[4200];
    const char *contexts_path = tap_data("templates/conversations.json");
    const char *rows = tap_data("templates/expected.jsonl.xz");
    if (!contexts_path || !rows) return tap_skip_all("no real data (KVASIR_DATA or ../shared/data)");
    if (system("xz --version >/dev/null 2>&1") != 0) return tap_skip_all("xz is not installed");
    setenv("TZ", "UTC", 1);
    json_t *contexts = json_load_file(contexts_path, 0, NULL);
    snprintf(command, sizeof command, "xz -dc '%s'", rows);
    FILE *f = popen(command, "r");
    if (!ok(contexts && f, "data are readable")) return tap_done();
    check_rows(f, contexts);
    ok(pclose(f) == 0, "rows are read to the end");
    is_int(n_different, 0, "no rendering differs; %d equal, %d fail as they must", n_equal, n_error);
    ok(n_equal + n_error >= 1120, "every row is checked");
    json_decref(contexts);
    return tap_done();
}
