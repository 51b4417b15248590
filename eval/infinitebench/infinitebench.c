/* SPDX-License-Identifier: MIT */
/* Tasks, samples and prompts of InfiniteBench. */
#include "config.h"

#include <string.h>

#include "eval/infinitebench/infinitebench.h"
#include "kernels/base/mem.h"

const infinitebench_task infinitebench_tasks[INFINITEBENCH_TASKS] = {
    {"passkey", "Retrieve.PassKey", "passkey", true, true, "{context} {input}"},
    {"number_string", "Retrieve.Number", "number_string", true, true, "{context} {input}"},
    {"kv_retrieval", "Retrieve.KV", "kv_retrieval", true, true, "{context} {input} {key}"},
    {"longbook_choice_eng", "En.MC", "longbook_choice_eng_infllm", true, false,
     "{context} {question} {OPTION_A} {OPTION_B} {OPTION_C} {OPTION_D}"},
    {"code_debug", "Code.Debug", "code_debug_infllm", true, false,
     "{context} {OPTION_A} {OPTION_B} {OPTION_C} {OPTION_D}"},
    {"math_find", "Math.Find", "math_find", true, false, "{context} {input} {prefix}"},
    {"longbook_sum_eng", "En.Sum", "longbook_sum_eng", false, false, "{context}"},
    {"longbook_qa_eng", "En.QA", "longbook_qa_eng", false, false, "{context} {question}"},
    {"longdialogue_qa_eng", "En.Dia", "longdialogue_qa_eng", false, false, "{context}"},
    {"longbook_qa_chn", "Zh.QA", "longbook_qa_chn", false, false, "{context} {question}"},
    {"code_run", "Code.Run", "code_run", false, false, "{context} {func} {func_call}"},
    {"math_calc", "Math.Calc", "math_calc", false, false, "{context}"},
};

const dataset_names infinitebench_names = {"InfiniteBench", NULL, INFINITEBENCH_TASKS, infinitebench_tasks,
                                           sizeof *infinitebench_tasks};

/* ---- prompts ---- */

static const char *const set_names[] = {"official", "chat", "infllm", NULL};
static const struct {
    const char *prompts, *group, *lengths; /* group: member of the prompts file; NULL: the whole file */
} sets[] = {
    {"infinitebench/official_prompts.json", "yarn_mistral", "infinitebench/official_max_new_tokens.json"},
    {"infinitebench/official_prompts.json", "gpt4", "infinitebench/official_max_new_tokens.json"},
    {"infinitebench/infllm_dataset2prompt.json", NULL, "infinitebench/infllm_dataset2maxlen.json"},
};

status infinitebench_set_parse(infinitebench_set *out, const char *text, err *e)
{
    int set;
    status st = cli_choose(&set, text, set_names, "--prompts", e);
    if (st == ST_OK) *out = (infinitebench_set)set;
    return st;
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
        p->text[i] = json_string_value(json_object_get(group, name));
        if (!p->text[i]) return err_set(e, ST_FORMAT, "%s: '%s' is missing", sets[set].prompts, name);
        if (n < 1 || n > 1 << 24)
            return err_set(e, ST_FORMAT, "%s: '%s' is not a number of tokens", sets[set].lengths, name);
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

status infinitebench_prompts_take(infinitebench_prompts *p, const bool *wanted, err *e)
{
    for (size_t i = 0; i < INFINITEBENCH_TASKS; i++) {
        const infinitebench_task *t = &infinitebench_tasks[i];
        if (wanted[i]) TRY(prompt_file_template(&p->text[i], &p->file, t->name, t->fields, e));
    }
    return ST_OK;
}

const char *infinitebench_prompts_name(const infinitebench_prompts *p)
{
    return p->file.name ? p->file.name : set_names[p->set];
}

status infinitebench_fill(prompt_text *out, const infinitebench_prompts *p, const infinitebench_sample *s, err *e)
{
    prompt_field field[INFINITEBENCH_FIELDS + 1];
    memcpy(field, s->field, sizeof s->field);
    field[s->n_fields] = (prompt_field){"{context}", s->context};
    return prompt_fill(out, p->text[s->at.dataset], field, s->n_fields + 1, e);
}

status infinitebench_prompt_make(prompt_tokens *out, const infinitebench_prompts *p, const prompter *how,
                                 const infinitebench_sample *s, err *e)
{
    prompt_text text;
    *out = (prompt_tokens){0};
    TRY(infinitebench_fill(&text, p, s, e));
    TRY(prompter_take(out, how, true, &text, e));
    if (p->set != PROMPTS_INFLLM || out->head.n < 2) return ST_OK;
    return token_list_push(&out->tail, out->head.ids[--out->head.n], e);
}

/* ---- samples ---- */

static void add_field(infinitebench_sample *s, const char *name, const char *value, size_t n)
{
    s->field[s->n_fields++] = (prompt_field){name, {value, n}};
}

/* Sets the labels to the right option's text and its letter. */
static status read_choice(infinitebench_sample *s, const char *where, err *e)
{
    static const char *const names[] = {"{OPTION_A}", "{OPTION_B}", "{OPTION_C}", "{OPTION_D}"};
    utf8_text option[SAMPLE_OPTIONS];
    TRY(sample_options(option, s->at.root, where, e));
    for (int i = 0; i < SAMPLE_OPTIONS; i++) add_field(s, names[i], option[i].s, option[i].n);
    size_t n = json_array_size(s->labels);
    const json_t *second = json_array_get(s->labels, 1);
    const char letter = json_string_length(second) == 1 ? *json_string_value(second) : 0;
    if (n == 2 && letter >= 'A' && letter <= 'D') return ST_OK;
    if (n != 1) return err_set(e, ST_FORMAT, "%s: 'answer': expected an option, or an option and its letter", where);
    json_t *label = s->labels;
    const json_t *first = json_array_get(label, 0);
    s->labels = NULL;
    status st =
        sample_choice(&s->labels, (utf8_text){json_string_value(first), json_string_length(first)}, option, where, e);
    json_decref(label);
    return st;
}

static size_t digits(const char *s)
{
    return strspn(s, "0123456789");
}

/* Finds the first match of func_[0-9]+\(-?[0-9]+\): the call, and its part before the parenthesis. */
static status read_function(infinitebench_sample *s, const char *input, const char *where, err *e)
{
    for (const char *f = input; (f = strstr(f, "func_")); f++) {
        size_t name = strlen("func_"), n;
        if (!(n = digits(f + name)) || f[name += n] != '(') continue;
        size_t end = name + 1 + (f[name + 1] == '-');
        if (!(n = digits(f + end)) || f[end += n] != ')') continue;
        add_field(s, "{func}", f, name);
        add_field(s, "{func_call}", f, end + 1);
        return ST_OK;
    }
    return err_set(e, ST_FORMAT, "%s: 'input' has no function call such as func_1(2)", where);
}

static status read_prefix(infinitebench_sample *s, utf8_text input, const char *where, err *e)
{
    bool found;
    prompt_text t;
    status st = prompt_ask(&t, input, "of", " in the following list?", &found, e);
    s->own = t.s;
    if (st == ST_OK && !found)
        return err_set(e, ST_FORMAT, "%s: 'input' has no question such as \"The largest number of\"", where);
    if (st == ST_OK) add_field(s, "{prefix}", t.s, t.n);
    return st;
}

/* Reads characters 6 to 43 of the input, including quotes. Only InfLLM's template uses them. */
static status read_key(infinitebench_sample *s, const infinitebench_prompts *p, const char *input, const char *where,
                       err *e)
{
    enum { FIRST = 6, LAST = 43 };
    size_t n = strlen(input), a = prompt_character_at(input, n, FIRST), b = prompt_character_at(input, n, LAST);
    bool there = b < n && input[a] == '"' && input[b] == '"';
    if (there) add_field(s, "{key}", input + a, b + 1 - a);
    else if (strstr(p->text[s->at.dataset], "{key}"))
        return err_set(e, ST_FORMAT, "%s: 'input' has no key in quotes at characters %d to %d", where, FIRST, LAST);
    return ST_OK;
}

static status read_fields(infinitebench_sample *s, const infinitebench_prompts *p, const char *where, err *e)
{
    const char *f = infinitebench_tasks[s->at.dataset].fields;
    const bool is_input = strstr(f, "{input}"), is_question = strstr(f, "{question}"), is_call = strstr(f, "{func}");
    utf8_text input = {"", 0};
    if (is_input || is_question || is_call) TRY(sample_text(&input, s->at.root, "input", where, e));
    if (is_input) add_field(s, "{input}", input.s, input.n);
    if (is_question) add_field(s, "{question}", input.s, input.n);
    if (is_call) TRY(read_function(s, input.s, where, e));
    if (strstr(f, "{prefix}")) TRY(read_prefix(s, input, where, e));
    if (strstr(f, "{key}")) TRY(read_key(s, p, input.s, where, e));
    return strstr(f, "{OPTION_A}") ? read_choice(s, where, e) : ST_OK;
}

status infinitebench_read(const void *own, void *own_sample, const char *path, const char *where, err *e)
{
    infinitebench_sample *s = own_sample;
    size_t i, bytes = 0;
    const json_t *one;
    (void)path;
    TRY(sample_text(&s->context, s->at.root, "context", where, e));
    TRY(labels_spell(&s->labels, json_object_get(s->at.root, "answer"), where, "answer", e));
    json_array_foreach(s->labels, i, one) bytes += json_string_length(one);
    if (bytes == 0) return err_set(e, ST_FORMAT, "%s: 'answer': empty", where);
    return read_fields(s, own, where, e);
}

json_t *infinitebench_answers(const infinitebench_sample *s)
{
    bool choice = strstr(infinitebench_tasks[s->at.dataset].fields, "{OPTION_A}");
    return choice ? s->labels : json_object_get(s->at.root, "answer");
}

void infinitebench_drop(void *own_sample)
{
    infinitebench_sample *s = own_sample;
    json_decref(s->labels);
    mem_free(s->own);
}

void infinitebench_sample_forget(infinitebench_sample *s)
{
    sample_forget(&s->at, "context");
    s->context = (utf8_text){0};
}
