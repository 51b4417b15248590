/* SPDX-License-Identifier: MIT */
/* Prompts of SCBench: texts of turns and requests, with or without a chat template, and their tokens. */
#include "config.h"

#include <string.h>

#include "eval/prediction.h"
#include "eval/prompt_file.h"
#include "eval/scbench/scbench.h"
#include "kernels/base/mem.h"

enum { MAX_NEW = 1 << 16, N_FIELDS = 9 };

/* ---- the tables ---- */

status scbench_prompts_open(scbench_prompts *p, const char *data_dir, err *e)
{
    static const char *const groups[] = {"first_turn", "context_and_query", "follow_up_plain", "follow_up_chat"};
    TRY(prompt_table_read(&p->root, data_dir, "scbench/prompts.json", e));
    for (size_t t = 0; t < SCBENCH_TASKS; t++)
        for (size_t g = 0; g < 4 && !scbench_tasks[t].refused; g++)
            if (!json_object_get(json_object_get(p->root, groups[g]), scbench_tasks[t].name))
                return err_set(e, ST_FORMAT, "scbench/prompts.json: '%s' of '%s' is missing", scbench_tasks[t].name,
                               groups[g]);
    return ST_OK;
}

void scbench_prompts_close(scbench_prompts *p)
{
    json_decref(p->root);
    p->root = NULL;
}

/* Returns part i of a task's template. A single text is part 0; its part 1 is NULL. */
static const char *template_of(const scbench_prompts *p, const char *group, size_t task, size_t i)
{
    const json_t *t = json_object_get(json_object_get(p->root, group), scbench_tasks[task].name);
    if (json_is_array(t)) return json_string_value(json_array_get(t, i));
    return i == 0 ? json_string_value(t) : NULL;
}

int scbench_new_tokens(const scbench_prompts *p, const scbench_sample *s, size_t turn)
{
    const json_t *t = json_object_get(json_object_get(p->root, "max_new_tokens"), scbench_tasks[s->at.dataset].name);
    if (json_is_object(t)) t = json_object_get(t, scbench_tasks[s->turn[turn].task].name);
    json_int_t n = json_integer_value(t);
    return n < 1 || n > MAX_NEW ? 1 : (int)n;
}

/* ---- fields ---- */

/* Sets *out to the correct answer as written by Python's str(). */
static status answer_text(prompt_text *out, const scbench_turn *t, err *e)
{
    json_t *list = NULL, *one;
    size_t i;
    *out = (prompt_text){0};
    TRY(labels_spell(&list, t->answer, "", "answer", e));
    status st = prompt_add(out, json_is_array(t->answer) ? "[" : "", json_is_array(t->answer), e);
    json_array_foreach(list, i, one)
    {
        const json_t *raw = json_is_array(t->answer) ? json_array_get(t->answer, i) : t->answer;
        utf8_text s = {json_string_value(one), json_string_length(one)};
        if (st == ST_OK && i > 0) st = prompt_add(out, ", ", 2, e);
        if (st == ST_OK)
            st = json_is_array(t->answer) && json_is_string(raw) ? prompt_add_repr(out, s, e)
                                                                 : prompt_add(out, s.s, s.n, e);
    }
    if (st == ST_OK && json_is_array(t->answer)) st = prompt_add(out, "]", 1, e);
    json_decref(list);
    return st;
}

/* Turns mf's input "The largest number of the list is" into "What is the largest number?", its prefix. */
static status prefix_text(prompt_text *out, const scbench_turn *t, err *e)
{
    bool found;
    TRY(prompt_ask(out, t->input, "is", "?", &found, e));
    return found ? ST_OK : err_set(e, ST_FORMAT, "'input': expected a string like \"The largest number is\"");
}

/* Appends a template filled for turn t. before: turn whose answer is inserted. prefix_of: turn whose input becomes
 * {prefix}; NULL: the input of t. */
static status add_filled(prompt_text *out, const char *template, const scbench_sample *s, const scbench_turn *t,
                         const scbench_turn *before, const scbench_turn *prefix_of, err *e)
{
    prompt_text answer = {0}, prefix = {0};
    status st = before && strstr(template, "{pre_ans}") ? answer_text(&answer, before, e) : ST_OK;
    if (st == ST_OK && strstr(template, "{prefix}") && prefix_of) st = prefix_text(&prefix, prefix_of, e);
    utf8_text p = prefix_of ? (utf8_text){prefix.s, prefix.n} : t->input;
    const prompt_field f[N_FIELDS] = {{"{context}", s->context},          {"{input}", t->input},
                                      {"{question}", t->input},           {"{OPTION_A}", t->option[0]},
                                      {"{OPTION_B}", t->option[1]},       {"{OPTION_C}", t->option[2]},
                                      {"{OPTION_D}", t->option[3]},       {"{prefix}", p},
                                      {"{pre_ans}", {answer.s, answer.n}}};
    if (st == ST_OK) st = prompt_append(out, template, f, N_FIELDS, e);
    mem_free(answer.s);
    mem_free(prefix.s);
    return st;
}

/* ---- chat ---- */

/* A word that occurs in no text. The template's text is what surrounds it in a rendered conversation. */
static const char MARK[] = "[SEPSEPSEP]";

/* Appends the part of a conversation before or after the mark. */
static status add_around(prompt_text *out, const prompter *how, const chat_message *m, size_t n, bool after, err *e)
{
    prompt_text all;
    TRY(prompter_say(&all, how, m, n, e));
    const char *mark = strstr(all.s, MARK);
    status st = !mark   ? err_set(e, ST_FORMAT, "the chat template drops a message")
                : after ? prompt_puts(out, mark + strlen(MARK), e)
                        : prompt_add(out, all.s, (size_t)(mark - all.s), e);
    mem_free(all.s);
    return st;
}

/* Removes the end token at the start of the text and stores it in *ends. If there is none, *ends is the model's first
 * end token. */
static status cut_end(prompt_text *to, int32_t *ends, const scbench_asking *a, err *e)
{
    size_t cut = 0;
    *ends = a->eos->n ? a->eos->ids[0] : -1;
    for (size_t i = 0; a->how->wrap != WRAP_RAW && i < a->eos->n && cut == 0; i++) {
        char *s;
        size_t n;
        TRY(tokenizer_decode(a->how->tok, &a->eos->ids[i], 1, true, &s, &n, e));
        if (n > 0 && n <= to->n && memcmp(to->s, s, n) == 0) {
            *ends = a->eos->ids[i];
            cut = n;
        }
        mem_free(s);
    }
    to->n -= cut;
    memmove(to->s, to->s + cut, to->n + 1);
    return ST_OK;
}

/* ---- parts ---- */

/* Appends a part in request mode: the context (part 0) or a question. Both belong to one message. The input of the
 * first turn introduces mf's context. */
static status request_text(prompt_text *out, const scbench_asking *a, const scbench_sample *s, size_t part, err *e)
{
    const bool chat = a->how->wrap != WRAP_RAW;
    const scbench_turn *t = &s->turn[part ? part - 1 : 0];
    const char *template = template_of(a->prompts, "context_and_query", s->at.dataset, part > 0);
    prompt_text text = {0}, *to = chat ? &text : out;
    if (!template) template = template_of(a->prompts, "follow_up_chat", s->at.dataset, 0);
    status st = chat && part > 0 ? prompt_puts(to, MARK, e) : ST_OK;
    if (st == ST_OK) st = add_filled(to, template, s, t, NULL, part ? t : NULL, e);
    if (st == ST_OK && chat && part == 0) st = prompt_puts(to, MARK, e);
    if (st == ST_OK && chat) st = add_around(out, a->how, &(chat_message){"user", text.s}, 1, part > 0, e);
    mem_free(text.s);
    return st;
}

/* Appends the next question after an answer: the template's text from the end of the answer on. As in the original,
 * follow-ups of mf have the prefix of the last turn, and those of summary begin the answer. */
static status next_text(prompt_text *out, const scbench_asking *a, const scbench_sample *s, size_t part, err *e)
{
    const scbench_turn *t = &s->turn[part], *last = &s->turn[s->n_turns - 1];
    prompt_text question = {0};
    status st =
        add_filled(&question, template_of(a->prompts, "follow_up_chat", s->at.dataset, 0), s, t, t - 1, last, e);
    const chat_message m[] = {{"user", "x"}, {"assistant", MARK}, {"user", question.s}};
    if (st == ST_OK && !a->own) st = answer_text(out, t - 1, e);
    if (st == ST_OK) st = add_around(out, a->how, m, 3, true, e);
    if (st == ST_OK && strcmp(scbench_tasks[s->at.dataset].name, "scbench_summary") == 0)
        st = prompt_puts(out, "This paper", e);
    mem_free(question.s);
    return st;
}

/* Appends a part in turn mode: the context with the first question, or the previous answer with the next question. */
static status turn_text(prompt_text *out, const scbench_asking *a, const scbench_sample *s, size_t part, err *e)
{
    const scbench_turn *t = &s->turn[part];
    const bool chat = a->how->wrap != WRAP_RAW;
    if (part > 0 && chat) return next_text(out, a, s, part, e);
    const char *group = part == 0 ? "first_turn" : a->own ? "follow_up_chat" : "follow_up_plain";
    TRY(add_filled(out, template_of(a->prompts, group, s->at.dataset, 0), s, t, part ? t - 1 : NULL, t, e));
    return chat ? prompter_ask(out, a->how, e) : ST_OK;
}

status scbench_part_text(prompt_text *out, const scbench_asking *a, const scbench_sample *s, size_t part, err *e)
{
    *out = (prompt_text){0};
    return (a->requests ? request_text : turn_text)(out, a, s, part, e);
}

void scbench_parts_cut(scbench_parts *p, size_t most)
{
    token_list *l = &p->part[0];
    size_t half = most / 2;
    if (l->n <= most) return;
    memmove(l->ids + half, l->ids + l->n - half, half * sizeof *l->ids);
    l->n = 2 * half;
    p->cut = true;
}

status scbench_parts_make(scbench_parts *out, const scbench_asking *a, const scbench_sample *s, size_t most, err *e)
{
    *out = (scbench_parts){.n = s->n_turns + a->requests};
    for (size_t i = 0; i < out->n; i++) {
        prompt_text fed;
        prompt_tokens t = {0};
        status st = scbench_part_text(&fed, a, s, i, e);
        if (st == ST_OK && a->own && i > 0) st = cut_end(&fed, &out->ends, a, e);
        if (st == ST_OK && i == 0) {
            st = prompter_encode(&t, a->how, true, &fed, fed.n, e);
            out->part[0] = t.head;
        } else if (st == ST_OK) {
            st = tokenizer_encode(a->how->tok, fed.s, fed.n, TOKENIZE_SPECIAL, &out->part[i], e);
        }
        mem_free(fed.s);
        if (st != ST_OK) return st;
    }
    out->n_context = out->part[0].n;
    scbench_parts_cut(out, most);
    return ST_OK;
}

void scbench_parts_free(scbench_parts *p)
{
    for (size_t i = 0; i < p->n; i++) token_list_free(&p->part[i]);
    *p = (scbench_parts){0};
}
