/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "eval/infinitebench/infinitebench.h"
#include "kernels/base/mem.h"

const infinitebench_task infinitebench_tasks[INFINITEBENCH_TASKS] = {
    {"passkey", "Retrieve.PassKey", "passkey", true, true, FIELD_INPUT},
    {"number_string", "Retrieve.Number", "number_string", true, true, FIELD_INPUT},
    {"kv_retrieval", "Retrieve.KV", "kv_retrieval", true, true, FIELD_INPUT | FIELD_KEY},
    {"longbook_choice_eng", "En.MC", "longbook_choice_eng_infllm", true, false, FIELD_QUESTION | FIELD_OPTIONS},
    {"code_debug", "Code.Debug", "code_debug_infllm", true, false, FIELD_OPTIONS},
    {"math_find", "Math.Find", "math_find", true, false, FIELD_INPUT | FIELD_PREFIX},
    {"longbook_sum_eng", "En.Sum", "longbook_sum_eng", false, false, 0},
    {"longbook_qa_eng", "En.QA", "longbook_qa_eng", false, false, FIELD_QUESTION},
    {"longdialogue_qa_eng", "En.Dia", "longdialogue_qa_eng", false, false, 0},
    {"longbook_qa_chn", "Zh.QA", "longbook_qa_chn", false, false, FIELD_QUESTION},
    {"code_run", "Code.Run", "code_run", false, false, FIELD_FUNCTION},
    {"math_calc", "Math.Calc", "math_calc", false, false, 0},
};

static const char *name_of(const void *own, size_t i)
{
    const infinitebench_task *t = own;
    return t[i].name;
}

dataset_names infinitebench_names(void)
{
    return (dataset_names){"InfiniteBench", NULL, INFINITEBENCH_TASKS, name_of, infinitebench_tasks};
}

/* ---- prompts ---- */

static const struct {
    const char *name, *prompts, *group, *lengths; /* group: of the file's prompts; NULL: all of it */
} sets[] = {
    {"official", "infinitebench/official_prompts.json", "yarn_mistral", "infinitebench/official_max_new_tokens.json"},
    {"chat", "infinitebench/official_prompts.json", "gpt4", "infinitebench/official_max_new_tokens.json"},
    {"infllm", "infinitebench/infllm_dataset2prompt.json", NULL, "infinitebench/infllm_dataset2maxlen.json"},
};

status infinitebench_set_parse(infinitebench_set *out, const char *text, err *e)
{
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (strcmp(sets[i].name, text) == 0) {
            *out = (infinitebench_set)i;
            return ST_OK;
        }
    return err_set(e, ST_USAGE, "--prompts: '%.40s' is no file, and not one of: official chat infllm", text);
}

const char *infinitebench_set_name(infinitebench_set s)
{
    return sets[s].name;
}

status infinitebench_prompts_open(infinitebench_prompts *p, const char *data_dir, infinitebench_set set, err *e)
{
    *p = (infinitebench_prompts){.set = set};
    TRY(prompt_table_read(&p->prompts, data_dir, sets[set].prompts, e));
    TRY(prompt_table_read(&p->lengths, data_dir, sets[set].lengths, e));
    const json_t *group = sets[set].group ? json_object_get(p->prompts, sets[set].group) : p->prompts;
    for (size_t i = 0; i < INFINITEBENCH_TASKS; i++) {
        const char *name = infinitebench_tasks[i].name;
        json_int_t n = json_integer_value(json_object_get(p->lengths, name));
        p->template[i] = json_string_value(json_object_get(group, name));
        if (!p->template[i]) return err_set(e, ST_FORMAT, "%s: '%s' is missing", sets[set].prompts, name);
        if (n < 1 || n > 1 << 24)
            return err_set(e, ST_FORMAT, "%s: '%s' is no number of tokens", sets[set].lengths, name);
        p->n_new[i] = (int)n;
    }
    return ST_OK;
}

void infinitebench_prompts_close(infinitebench_prompts *p)
{
    json_decref(p->prompts);
    json_decref(p->lengths);
    prompt_file_close(&p->file);
    *p = (infinitebench_prompts){0};
}

/* What the task's samples can fill. */
static void list_fields(char out[128], unsigned fields)
{
    static const struct {
        unsigned field;
        const char *names;
    } all[] = {{FIELD_INPUT, "{input}"},
               {FIELD_QUESTION, "{question}"},
               {FIELD_FUNCTION, "{func} {func_call}"},
               {FIELD_PREFIX, "{prefix}"},
               {FIELD_KEY, "{key}"},
               {FIELD_OPTIONS, "{OPTION_A} {OPTION_B} {OPTION_C} {OPTION_D}"}};
    size_t n = (size_t)snprintf(out, 128, "{context}");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (fields & all[i].field) n += (size_t)snprintf(out + n, 128 - n, " %s", all[i].names);
}

status infinitebench_prompts_take(infinitebench_prompts *p, const bool *wanted, err *e)
{
    char fields[128];
    for (size_t i = 0; i < INFINITEBENCH_TASKS; i++) {
        const infinitebench_task *t = &infinitebench_tasks[i];
        list_fields(fields, t->fields);
        if (wanted[i]) TRY(prompt_file_template(&p->template[i], &p -> file, t -> name, fields, e));
    }
    return ST_OK;
}

const char *infinitebench_prompts_name(const infinitebench_prompts *p)
{
    return p->file.name ? p->file.name : sets[p->set].name;
}

status infinitebench_fill(prompt_text *out, const infinitebench_prompts *p, const infinitebench_sample *s, err *e)
{
    prompt_field field[INFINITEBENCH_FIELDS + 1];
    memcpy(field, s->field, sizeof s->field);
    field[s->n_fields] = (prompt_field){"{context}", s->p.text};
    return prompt_fill(out, p->template[s->at.dataset], field, s -> n_fields + 1, e);
}

static status encode(prompt_tokens *out, const prompter *how, prompt_text *text, err *e)
{
    TRY(prompter_wrap(out, how, true, text, e));
    return prompter_encode(out, how, true, text, text->n, e);
}

status infinitebench_prompt_make(prompt_tokens *out, const infinitebench_prompts *p, const prompter *how,
                                 const infinitebench_sample *s, err *e)
{
    prompt_text text;
    *out = (prompt_tokens){0};
    TRY(infinitebench_fill(&text, p, s, e));
    status st = encode(out, how, &text, e);
    mem_free(text.s);
    if (st != ST_OK || p->set != PROMPTS_INFLLM || out->head.n < 2) return st;
    st = token_list_push(&out->tail, out->head.ids[out->head.n - 1], e);
    if (st == ST_OK) out->head.n--;
    return st;
}
