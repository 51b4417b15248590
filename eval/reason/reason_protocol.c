/* SPDX-License-Identifier: MIT */
/* Protocols of reason/protocols.json, their prompts, and the order of choices. */
#include "config.h"

#include "eval/reason/reason.h"

#include <stdlib.h>
#include <string.h>

#include "eval/prediction.h"
#include "eval/prompt_file.h"
#include "eval/python_random.h"
#include "kernels/base/mem.h"
#include "kernels/base/sha256.h"
#include "tokenizer/chars.h"

/* ---- the file ---- */

static status wrong(const reason_protocol *p, const char *what, err *e)
{
    return err_set(e, ST_FORMAT, "protocols.json: '%.40s': %.100s", p->name, what);
}

static status read_words(reason_protocol *p, const json_t *row, err *e)
{
    static const char *const orders[] = {"none", "sha256", "simple_evals"};
    const json_t *stop = json_object_get(row, "stop"), *by = json_object_get(row, "metrics");
    const char *order = json_string_value(json_object_get(row, "order")),
               *wrap = json_string_value(json_object_get(row, "wrap"));
    while (order && p->order <= REASON_ORDER_SIMPLE_EVALS && strcmp(order, orders[p->order]) != 0) p->order++;
    if (p->order > REASON_ORDER_SIMPLE_EVALS) return wrong(p, "order", e);
    if (wrap) TRY(prompt_wrap_parse(&p->wrap, wrap, e));
    for (size_t i = 0; i < json_array_size(stop) && i < REASON_STOPS; i++)
        if (!(p->stop[i] = json_string_value(json_array_get(stop, i))) || !p->stop[i][0]) return wrong(p, "stop", e);
    for (size_t i = 0; i < json_array_size(by) && i < REASON_METRICS; i++) {
        const char *name = json_string_value(json_array_get(by, i));
        p->metric[i] = name ? metric_find(name) : NULL;
        if (!p->metric[i] || !metric_finds_answers(p->metric[i])) return wrong(p, "metrics", e);
    }
    return ST_OK;
}

/* Appends the template, filled with the question and answer of a shot. */
static status add_shot(prompt_text *out, const char *shot, utf8_text asked, utf8_text answer, err *e)
{
    const prompt_field f[] = {{"{question}", asked}, {"{answer}", answer}};
    return prompt_append(out, shot, f, 2, e);
}

static status join_shots(reason_protocol *p, const json_t *shots, err *e)
{
    size_t i;
    const json_t *pair;
    json_array_foreach(shots, i, pair)
    {
        TRY(add_shot(&p->before, p->shot, json_text(json_array_get(pair, 0)), json_text(json_array_get(pair, 1)), e));
    }
    return ST_OK;
}

static status list_messages(reason_protocol *p, const json_t *turns, const char *turn, err *e)
{
    size_t i;
    const json_t *pair;
    TRY(MEM_NEW(&p->said, 2 * json_array_size(turns) + 2, e));
    if (p->system) p->said[p->n_said++] = (chat_message){"system", p->system};
    json_array_foreach(turns, i, pair)
    {
        prompt_text asked = {0};
        TRY(add_shot(&asked, turn, json_text(json_array_get(pair, 0)), (utf8_text){0}, e));
        p->said[p->n_said++] = (chat_message){"user", asked.s};
        p->said[p->n_said++] = (chat_message){"assistant", json_string_value(json_array_get(pair, 1))};
    }
    return ST_OK;
}

static status read_protocol(reason_protocol *p, json_t *row, err *e)
{
    json_error_t why;
    int thinks = 0, loses = 0, strips = 0;
    json_int_t seed = 0;
    json_t *shots = NULL, *turns = NULL;
    const char *turn = NULL;
    p->samples = 1;
    p->top_p = 1;
    if (json_unpack_ex(row, &why, 0,
                       "{s?s, s:s, s?o, s?s, s?o, s?s, s?s, s?b, s:i, s?i, s?F, s?F, s?i, s?b, s?b, s?i, s?I}",
                       "system", &p->system, "user", &p->user, "shots", &shots, "shot", &p->shot, "turns", &turns,
                       "turn", &turn, "header", &p->header, "strip", &strips, "max_new_tokens", &p->n_new, "samples",
                       &p->samples, "temperature", &p->temp, "top_p", &p->top_p, "top_k", &p->top_k, "thinking",
                       &thinks, "loses", &loses, "drawn", &p->drawn, "seed", &seed) != 0)
        return wrong(p, why.text, e);
    p->thinks = thinks;
    p->loses = loses;
    p->strips = strips;
    p->seed = seed;
    if (p->n_new < 1 || p->samples < 1 || ((shots || p->drawn) && !p->shot) || (turns && !turn) || p->drawn < 0 ||
        p->drawn > REASON_DRAWN || seed < 0)
        return wrong(p, "max_new_tokens, samples, shot or turn", e);
    TRY(read_words(p, row, e));
    TRY(list_messages(p, turns, turn, e));
    return join_shots(p, shots, e);
}

status reason_protocol_open(reason_protocol *p, reason_task task, const char *name, const char *data_dir, err *e)
{
    *p = (reason_protocol){0};
    TRY(prompt_table_read(&p->source, data_dir, "reason/protocols.json", e));
    json_t *all = json_object_get(p->source, reason_task_name(task));
    void *first = json_object_iter(all);
    if (!first) return err_set(e, ST_FORMAT, "protocols.json: '%s' is missing", reason_task_name(task));
    json_t *row = name ? prompt_table_find(all, name, "--rules", e) : json_object_iter_value(first);
    if (!row) return ST_USAGE;
    p->name = name ? name : json_object_iter_key(first);
    return read_protocol(p, row, e);
}

void reason_protocol_close(reason_protocol *p)
{
    mem_free(p->before.s);
    for (size_t i = 0; i < p->n_said; i++)
        if (strcmp(p->said[i].role, "user") == 0) mem_free((char *)(uintptr_t)p->said[i].content);
    mem_free(p->said);
    json_decref(p->source);
    *p = (reason_protocol){0};
}

/* ---- drawn shots ---- */

status reason_draw(uint32_t (*draw)[REASON_DRAWN], const reason_protocol *p, const reason_data *d, err *e)
{
    mersenne stream;
    uint32_t drawn[REASON_DRAWN];
    const sample_list *l = d->problems;
    if (d->shots.n < (size_t)p->drawn)
        return err_set(e, ST_USAGE, "--train: only %zu questions; --rules %s draws %d for each problem", d->shots.n,
                       p->name, p->drawn);
    mersenne_seed_python(&stream, (uint64_t)p->seed);
    /* Problems that are left out also use up a draw. */
    int64_t at = 0;
    for (size_t i = 0; i < l->n; at++) {
        TRY(python_sample(&stream, drawn, d->shots.n, (size_t)p->drawn, e));
        for (; i < l->n && reason_at(l, i)->at.index == at; i++) memcpy(draw[i], drawn, sizeof drawn);
    }
    return ST_OK;
}

/* ---- prompts ---- */

static const char *const letters[] = {"{A}", "{B}", "{C}", "{D}"};
enum { N_FIELDS = 1 + REASON_CHOICES };

/* Appends the user's text. */
static status add_user(prompt_text *out, const reason_protocol *p, const reason_problem *x, const uint8_t *order,
                       err *e)
{
    prompt_field f[N_FIELDS] = {{"{question}", x->question}};
    if (p->strips) trim_python(&f[0].value.s, &f[0].value.n);
    for (size_t i = 0; i < REASON_CHOICES; i++) f[1 + i] = (prompt_field){letters[i], x->choice[order ? order[i] : i]};
    return prompt_append(out, p->user, f, N_FIELDS, e);
}

status reason_fill(prompt_text *out, const reason_protocol *p, const reason_problem *x, const uint8_t *order,
                   const reason_data *d, const uint32_t *draw, err *e)
{
    *out = (prompt_text){0};
    for (int i = 0; draw && i < p->drawn; i++) {
        const reason_problem *shot = reason_at(&d->shots, draw[i]);
        TRY(add_shot(out, p->shot, shot->question, shot->answer, e));
    }
    TRY(prompt_add(out, p->before.s, p->before.n, e));
    return add_user(out, p, x, order, e);
}

/* ---- MMLU ---- */

/* Appends the header; the subject "abstract_algebra" is written " abstract algebra". */
static status add_header(prompt_text *out, const reason_protocol *p, utf8_text subject, err *e)
{
    str spelled = {0};
    str_add(&spelled, " ", 1);
    str_add(&spelled, subject.s, subject.n);
    str_replace(&spelled, utf8_of("_"), utf8_of(" "));
    const prompt_field f = {"{subject}", str_text(&spelled)};
    status st = str_check(&spelled, e);
    if (st == ST_OK) st = prompt_append(out, p->header, &f, 1, e);
    str_free(&spelled);
    return st;
}

bool reason_same_group(const reason_problem *a, const reason_problem *b)
{
    return a->group.n == b->group.n && (a->group.n == 0 || memcmp(a->group.s, b->group.s, a->group.n) == 0);
}

status reason_fill_mmlu(prompt_text *out, size_t *begins, const reason_protocol *p, const reason_data *d,
                        const reason_problem *x, size_t shots, err *e)
{
    *out = (prompt_text){0};
    TRY(add_header(out, p, x->group, e));
    for (size_t i = 0; i < d->shots.n && shots > 0; i++) {
        const reason_problem *shot = reason_at(&d->shots, i);
        if (!reason_same_group(shot, x)) continue;
        const char end[] = {' ', shot->answer.s[0], '\n', '\n'};
        TRY(add_user(out, p, shot, NULL, e));
        TRY(prompt_add(out, end, sizeof end, e));
        shots--;
    }
    *begins = out->n;
    return add_user(out, p, x, NULL, e);
}

static size_t common(const token_list *a, const token_list *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->ids[n] == b->ids[n]) n++;
    return n;
}

/* Encodes the first n bytes of the text, followed by `more`. */
static status encode(token_list *out, const prompter *p, const prompt_text *text, size_t n, const char *more, err *e)
{
    prompt_text t = {0};
    prompt_tokens tokens = {0};
    status st = prompt_add(&t, text->s, n, e);
    if (st == ST_OK) st = prompt_puts(&t, more, e);
    if (st == ST_OK) st = prompter_encode(&tokens, p, true, &t, t.n, e);
    mem_free(t.s);
    *out = tokens.head;
    return st;
}

status reason_encode_choices(token_list *head, int32_t only[REASON_CHOICES], const prompter *p, const prompt_text *text,
                             err *e)
{
    static const char *const more[REASON_CHOICES] = {" A", " B", " C", " D"};
    token_list ids[REASON_CHOICES] = {0};
    status st = ST_OK;
    size_t same = SIZE_MAX;
    for (size_t i = 0; i < REASON_CHOICES && st == ST_OK; i++) {
        st = encode(&ids[i], p, text, text->n, more[i], e);
        size_t k = st == ST_OK ? common(&ids[0], &ids[i]) : 0;
        if (i > 0 && k < same) same = k;
    }
    for (size_t i = 0; i < REASON_CHOICES && st == ST_OK; i++) {
        if (ids[i].n != same + 1)
            st = err_set(e, ST_UNSUPPORTED, "the tokenizer does not encode \" A\" to \" D\" as one token each");
        else only[i] = ids[i].ids[same];
    }
    if (st == ST_OK) {
        *head = ids[0];
        head->n = same;
        ids[0] = (token_list){0};
    }
    for (size_t i = 0; i < REASON_CHOICES; i++) token_list_free(&ids[i]);
    return st;
}

status reason_cut(prompt_tokens *out, const prompter *p, const prompt_text *text, size_t begins, err *e)
{
    token_list before = {0}, *head = &out->head;
    status st = encode(&before, p, text, begins, "", e);
    size_t n = common(&before, head);
    token_list_free(&before);
    if (n == 0 && st == ST_OK) n = 1; /* at least one token is prefilled */
    for (size_t i = n; i < head->n && st == ST_OK; i++) st = token_list_push(&out->tail, head->ids[i], e);
    if (st == ST_OK && n < head->n) head->n = n;
    return st;
}

/* ---- the order of choices ---- */

/* Returns the first 8 bytes of the id's SHA-256 as a big-endian number. */
static uint64_t seed_of(utf8_text id)
{
    sha256 h;
    char hex[SHA256_HEX];
    sha256_init(&h);
    sha256_add(&h, id.s, id.n);
    sha256_hex(&h, hex);
    hex[16] = 0;
    return strtoull(hex, NULL, 16);
}

status reason_order_of(uint8_t out[REASON_CHOICES], reason_order by, const reason_problem *x, size_t at, err *e)
{
    uint32_t order[REASON_CHOICES] = {0, 1, 2, 3};
    mersenne m;
    if (by == REASON_ORDER_SHA256) {
        if (x->id.n == 0)
            return err_set(e, ST_FORMAT, "'Record ID' is missing; it determines the order of the choices");
        python_shuffled(order, REASON_CHOICES, seed_of(x->id));
    } else if (by == REASON_ORDER_SIMPLE_EVALS) {
        mersenne_seed_python(&m, 0);
        for (size_t i = 0; i <= at; i++) TRY(python_sample(&m, order, REASON_CHOICES, REASON_CHOICES, e));
    }
    for (size_t i = 0; i < REASON_CHOICES; i++) out[i] = (uint8_t)order[i];
    return ST_OK;
}

char reason_letter(const reason_problem *x, const uint8_t order[REASON_CHOICES])
{
    const utf8_text *right = &x->choice[0];
    for (int i = 0; i < REASON_CHOICES; i++) {
        const utf8_text *c = &x->choice[order[i]];
        if (c->n == right->n && (c->n == 0 || memcmp(c->s, right->s, c->n) == 0)) return (char)('A' + i);
    }
    return 0;
}
