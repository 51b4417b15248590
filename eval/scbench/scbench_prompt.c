/* SPDX-License-Identifier: MIT */
/* The texts that SCBench feeds: prompts of turns and of requests, in chat templates or without, and their tokens. */
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

/* The template of a task; of a pair part `i`, of a single text the text for part 0 and NULL for part 1. */
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

/* The right answer as str() writes it. */
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

/* Makes "What is the largest number?" of "The largest number of the list is": mf's prefix. */
static status prefix_text(prompt_text *out, const scbench_turn *t, err *e)
{
    bool found;
    TRY(prompt_ask(out, t->input, "is", "?", &found, e));
    return found ? ST_OK : err_set(e, ST_FORMAT, "'input' asks for nothing like \"The largest number is\"");
}

/* Fills a template for a turn; before: the turn whose answer is put in. */
static status fill(prompt_text *out, const char *template, const scbench_sample *s, const scbench_turn *t,
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
    if (st == ST_OK) st = prompt_fill(out, template, f, N_FIELDS, e);
    mem_free(answer.s);
    mem_free(prefix.s);
    return st;
}

/* ---- chat ---- */

/* A word that no text has; what stands around it in a rendered conversation is the template's. */
static const char MARK[] = "[SEPSEPSEP]";

/* The text of a conversation before or behind the mark in it, which takes the place of *to. */
static status around_mark(prompt_text *to, const prompter *how, const chat_message *m, size_t n, bool behind, err *e)
{
    prompt_text all = {0}, part = {0};
    TRY(chat_render(how->tok, how->chat_template, m, n, &all.s, &all.n, e));
    const char *mark = strstr(all.s, MARK);
    status st = mark ? ST_OK : err_set(e, ST_FORMAT, "the chat template drops a message");
    if (st == ST_OK && behind) st = prompt_add(&part, mark + strlen(MARK), strlen(mark) - strlen(MARK), e);
    else if (st == ST_OK) st = prompt_add(&part, all.s, (size_t)(mark - all.s), e);
    mem_free(all.s);
    if (st != ST_OK) return st;
    mem_free(to->s);
    *to = part;
    return ST_OK;
}

/* The context as the beginning of a user's message. */
static status open_message(prompt_text *to, const prompter *how, err *e)
{
    TRY(prompt_add(to, MARK, strlen(MARK), e));
    const chat_message m = {"user", to->s};
    return around_mark(to, how, &m, 1, false, e);
}

/* A question as the end of one. */
static status close_message(prompt_text *to, const prompter *how, err *e)
{
    prompt_text marked = {0};
    TRY(prompt_add(&marked, MARK, strlen(MARK), e));
    status st = prompt_add(&marked, to->s, to->n, e);
    const chat_message m = {"user", marked.s};
    if (st == ST_OK) st = around_mark(to, how, &m, 1, true, e);
    mem_free(marked.s);
    return st;
}

/* What the template writes behind an answer up to the next one, with a question as the user's message. */
static status behind_answer(prompt_text *to, const prompter *how, err *e)
{
    const chat_message m[] = {{"user", "x"}, {"assistant", MARK}, {"user", to->s}};
    return around_mark(to, how, m, 3, true, e);
}

/* The end token that the text begins with is cut off, and is *ends; else the model's first one. */
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

/* A question as the user's message behind the assistant's answer, which is `answer`. */
static status next_message(prompt_text *to, const prompter *how, const scbench_turn *answer, err *e)
{
    prompt_text said = {0};
    status st = behind_answer(to, how, e);
    if (st == ST_OK) st = answer_text(&said, answer, e);
    if (st == ST_OK) st = prompt_add(&said, to->s, to->n, e);
    if (st != ST_OK) {
        mem_free(said.s);
        return st;
    }
    mem_free(to->s);
    *to = said;
    return ST_OK;
}

/* ---- parts ---- */

static bool is_named(size_t task, const char *name)
{
    return strcmp(scbench_tasks[task].name, name) == 0;
}

/* Of requests: the context, then questions. mf's context is introduced by the first turn's input. */
static status request_text(prompt_text *out, const scbench_asking *a, const scbench_sample *s, size_t part, bool chat,
                           err *e)
{
    if (part == 0) {
        TRY(fill(out, template_of(a->prompts, "context_and_query", s->at.dataset, 0), s, &s->turn[0], NULL, NULL, e));
        return chat ? open_message(out, a->how, e) : ST_OK;
    }
    const scbench_turn *t = &s->turn[part - 1];
    const char *query = template_of(a->prompts, "context_and_query", s->at.dataset, 1);
    if (!query) query = template_of(a->prompts, "follow_up_chat", s->at.dataset, 0);
    TRY(fill(out, query, s, t, NULL, t, e));
    return chat ? close_message(out, a->how, e) : ST_OK;
}

/* Of turns: the context with the first question, then answers with the next questions. In a chat, follow-ups of mf have
 * the last turn's prefix, and those of summary begin the answer: so it is in the original. */
static status turn_text(prompt_text *out, const scbench_asking *a, const scbench_sample *s, size_t part, bool chat,
                        err *e)
{
    const scbench_turn *t = &s->turn[part], *last = &s->turn[s->n_turns - 1];
    if (part == 0) {
        TRY(fill(out, template_of(a->prompts, "first_turn", s->at.dataset, 0), s, t, NULL, t, e));
        return chat ? prompt_to_chat(out, a->how->tok, a->how->chat_template, e) : ST_OK;
    }
    const char *group = chat || a->own ? "follow_up_chat" : "follow_up_plain";
    TRY(fill(out, template_of(a->prompts, group, s->at.dataset, 0), s, t, t - 1, chat ? last : t, e));
    if (!chat) return ST_OK;
    TRY(a->own ? behind_answer(out, a->how, e) : next_message(out, a->how, t - 1, e));
    return is_named(s->at.dataset, "scbench_summary") ? prompt_add(out, "This paper", strlen("This paper"), e) : ST_OK;
}

status scbench_part_text(prompt_text *out, const scbench_asking *a, const scbench_sample *s, size_t part, err *e)
{
    bool chat = a->how->wrap != WRAP_RAW;
    *out = (prompt_text){0};
    return (a->requests ? request_text : turn_text)(out, a, s, part, chat, e);
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
