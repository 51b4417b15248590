/* SPDX-License-Identifier: MIT */
/* RULER's tasks and texts. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "cli/output.h"
#include "eval/metrics/text.h"
#include "eval/prompt_file.h"
#include "eval/ruler/ruler.h"
#include "kernels/base/mem.h"

const char *const ruler_file_options[RULER_FILES] = {"--essays", "--squad", "--hotpotqa"};

#define NIAH(name, file, haystack, uuid_keys, uuid_values, keys, values, queries)                                      \
    {                                                                                                                  \
        name, RULER_NIAH, "ruler_all", file, haystack, uuid_keys, uuid_values, keys, values, queries                   \
    }
#define OTHER(name, family, metric, file)                                                                              \
    {                                                                                                                  \
        name, family, metric, file, RULER_NOISE, false, false, 0, 0, 0                                                 \
    }

/* From scripts/synthetic.yaml. There are at least as many keys as are asked for. */
const ruler_task ruler_tasks[RULER_TASKS] = {
    NIAH("niah_single_1", RULER_FILES, RULER_NOISE, false, false, 1, 1, 1),
    NIAH("niah_single_2", RULER_ESSAYS, RULER_ESSAY, false, false, 1, 1, 1),
    NIAH("niah_single_3", RULER_ESSAYS, RULER_ESSAY, false, true, 1, 1, 1),
    NIAH("niah_multikey_1", RULER_ESSAYS, RULER_ESSAY, false, false, 4, 1, 1),
    NIAH("niah_multikey_2", RULER_FILES, RULER_NEEDLES, false, false, 1, 1, 1),
    NIAH("niah_multikey_3", RULER_FILES, RULER_NEEDLES, true, true, 1, 1, 1),
    NIAH("niah_multivalue", RULER_ESSAYS, RULER_ESSAY, false, false, 1, 4, 1),
    NIAH("niah_multiquery", RULER_ESSAYS, RULER_ESSAY, false, false, 4, 1, 4),
    OTHER("vt", RULER_VT, "ruler_all", RULER_FILES),
    OTHER("cwe", RULER_CWE, "ruler_all", RULER_FILES),
    OTHER("fwe", RULER_FWE, "ruler_all", RULER_FILES),
    OTHER("qa_1", RULER_QA, "ruler_part", RULER_SQUAD),
    OTHER("qa_2", RULER_QA, "ruler_part", RULER_HOTPOTQA),
};

const dataset_names ruler_names = {"RULER", NULL, RULER_TASKS, ruler_tasks, sizeof *ruler_tasks};

const char *ruler_value_name(const ruler_task *task)
{
    return task->uuid_values ? "uuids" : "numbers";
}

/* ---- texts ---- */

static const char *const families[RULER_FAMILIES] = {"niah", "variable_tracking", "common_words_extraction",
                                                     "freq_words_extraction", "qa"};

static status find_texts(ruler_templates *t, bool old, err *e)
{
    json_t *tasks;
    bool good = json_unpack(t->root, "{s:s, s:s, s:s, s:o}", "needle", &t->needle, "noise", &t->noise, "document",
                            &t->document, "tasks", &tasks) == 0;
    for (int i = 0; i < RULER_FAMILIES && good; i++) {
        const char *of_2024 = NULL;
        good = json_unpack(json_object_get(tasks, families[i]), "{s:s, s:s, s:i, s?s}", "template", &t->text[i],
                           "answer_prefix", &t->prefix[i], "tokens_to_generate", &t->n_new[i], "answer_prefix_2024",
                           &of_2024) == 0 &&
               t->n_new[i] > 0 && t->n_new[i] <= 1 << 20;
        if (old && of_2024) t->prefix[i] = of_2024;
    }
    return good ? ST_OK : err_set(e, ST_FORMAT, "ruler/templates.json: a text is missing");
}

status ruler_templates_open(ruler_templates *t, const char *data_dir, bool old, const char *wrapper, err *e)
{
    *t = (ruler_templates){0};
    TRY(prompt_table_read(&t->root, data_dir, "ruler/templates.json", e));
    TRY(find_texts(t, old, e));
    const json_t *found = prompt_table_find(json_object_get(t->root, "model_templates"), wrapper, "--template", e);
    t->wrapper = json_string_value(found);
    return t->wrapper ? ST_OK : err_set(e, ST_USAGE, "--template %s: not a text", wrapper);
}

void ruler_templates_close(ruler_templates *t)
{
    json_decref(t->root);
    *t = (ruler_templates){0};
}

/* Makes the wording singular. The official code replaces the words in the wrapper, too. */
static status make_singular(prompt_text *t, err *e)
{
    static const char *const words[][2] = {{"Some", "A"}, {"are all", "is"}, {"are", "is"}, {"answers", "answer"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        TRY(prompt_replace(t, utf8_of(words[i][0]), utf8_of(words[i][1]), e));
    return ST_OK;
}

status ruler_template(prompt_text *out, const ruler_templates *t, const ruler_task *task, bool wrapped, err *e)
{
    *out = (prompt_text){0};
    TRY(prompt_puts(out, wrapped ? t->wrapper : "{task_template}", e));
    TRY(prompt_replace(out, utf8_of("{task_template}"), utf8_of(t->text[task->family]), e));
    TRY(prompt_puts(out, t->prefix[task->family], e));
    return task->family == RULER_NIAH && task->queries * task->values == 1 ? make_singular(out, e) : ST_OK;
}

/* ---- lengths ---- */

static int64_t count_words(utf8_text s)
{
    int64_t words = 0;
    bool in_word = false;
    for (int32_t c; text_next(&s, &c);) {
        words += char_is_no_space(c) && !in_word;
        in_word = char_is_no_space(c);
    }
    return words;
}

status ruler_count(ruler_counter *c, const char *s, size_t n, int64_t *out, err *e)
{
    if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
    if (!c->tok) {
        *out = count_words((utf8_text){s, n});
        return ST_OK;
    }
    c->ids.n = 0;
    TRY(tokenizer_encode(c->tok, s, n, TOKENIZE_SPECIAL, &c->ids, e));
    *out = (int64_t)c->ids.n;
    return ST_OK;
}
