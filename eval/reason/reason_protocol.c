/* SPDX-License-Identifier: MIT */
/* Protocols of reason/protocols.json, the prompts that they make, and the order of choices. */
#include "config.h"

#include "eval/reason/reason.h"

#include <stdlib.h>
#include <string.h>

#include "eval/python_random.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "kernels/base/nearest.h"
#include "kernels/base/sha256.h"
#include "tokenizer/chars.h"

enum { MAX_FILE_BYTES = 1 << 20, MAX_DEPTH = 16 };

static utf8_text text_of(const json_t *j)
{
    return (utf8_text){json_string_value(j), json_string_length(j)};
}

/* ---- the file ---- */

static status unknown(const json_t *all, reason_task task, const char *name, err *e)
{
    const char *key;
    json_t *j;
    nearest near;
    char list[160] = "";
    size_t n = 0;
    nearest_start(&near, name);
    json_object_foreach((json_t *)(uintptr_t)all, key, j)
    {
        nearest_try(&near, key, strlen(key));
        if (n < sizeof list) n += (size_t)snprintf(list + n, sizeof list - n, " %s", key);
    }
    return err_set(e, ST_USAGE, "--rules: '%.40s' is not one of:%s (eval %s)%s", name, list, reason_task_name(task),
                   nearest_hint(&near));
}

/* Members that are one of a few words; -1: another one. */
static int word_of(const json_t *j, const char *const *words, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(json_string_value(j), words[i]) == 0) return i;
    return -1;
}

static status read_words(reason_protocol *p, const json_t *row, err *e)
{
    static const char *const orders[] = {"none", "sha256", "simple_evals"};
    const json_t *order = json_object_get(row, "order"), *wrap = json_object_get(row, "wrap");
    const json_t *stop = json_object_get(row, "stop"), *by = json_object_get(row, "metrics");
    int found = json_is_string(order) ? word_of(order, orders, 3) : 0;
    if (found < 0) return err_set(e, ST_FORMAT, "protocols.json: '%.40s': order", p->name);
    p->order = (reason_order)found;
    if (json_is_string(wrap)) TRY(prompt_wrap_parse(&p->wrap, json_string_value(wrap), e));
    for (size_t i = 0; i < json_array_size(stop) && i < REASON_STOPS; i++)
        if (!(p->stop[i] = json_string_value(json_array_get(stop, i))) || !p->stop[i][0])
            return err_set(e, ST_FORMAT, "protocols.json: '%.40s': stop", p->name);
    for (size_t i = 0; i < json_array_size(by) && i < REASON_METRICS; i++) {
        const char *name = json_string_value(json_array_get(by, i));
        p->metric[i] = name ? metric_find(name) : NULL;
        if (!p->metric[i] || !metric_finds_answers(p->metric[i]))
            return err_set(e, ST_FORMAT, "protocols.json: '%.40s': metrics", p->name);
    }
    return ST_OK;
}

/* The worked questions that stand in front of each prompt. */
static status join_shots(reason_protocol *p, const json_t *shots, const char *shot, err *e)
{
    for (size_t i = 0; i < json_array_size(shots); i++) {
        const json_t *pair = json_array_get(shots, i);
        prompt_field f[] = {{"{question}", text_of(json_array_get(pair, 0))},
                            {"{answer}", text_of(json_array_get(pair, 1))}};
        prompt_text one;
        TRY(prompt_fill(&one, shot, f, 2, e));
        status st = mem_resize((void **)&p->before.s, p->before.n + one.n + 1, 1, "shots", e);
        if (st == ST_OK) {
            memcpy(p->before.s + p->before.n, one.s, one.n + 1);
            p->before.n += one.n;
        }
        mem_free(one.s);
        TRY(st);
    }
    return ST_OK;
}

static status read_protocol(reason_protocol *p, json_t *row, err *e)
{
    json_error_t why;
    int thinks = 0, loses = 0, strips = 0;
    json_int_t seed = 0;
    json_t *shots = NULL, *turns = NULL;
    p->samples = 1;
    p->top_p = 1;
    if (json_unpack_ex(row, &why, 0,
                       "{s?s, s:s, s?o, s?s, s?o, s?s, s?s, s?b, s:i, s?i, s?F, s?F, s?i, s?b, s?b, s?i, s?I}",
                       "system", &p->system, "user", &p->user, "shots", &shots, "shot", &p->shot, "turns", &turns,
                       "turn", &p->turn, "header", &p->header, "strip", &strips, "max_new_tokens", &p->n_new, "samples",
                       &p->samples, "temperature", &p->temp, "top_p", &p->top_p, "top_k", &p->top_k, "thinking",
                       &thinks, "loses", &loses, "drawn", &p->drawn, "seed", &seed) != 0)
        return err_set(e, ST_FORMAT, "protocols.json: '%.40s': %.100s", p->name, why.text);
    p->thinks = thinks;
    p->loses = loses;
    p->strips = strips;
    p->turns = turns;
    p->seed = seed;
    if (p->n_new < 1 || p->samples < 1 || ((shots || p->drawn) && !p->shot) || (turns && !p->turn) || p->drawn < 0 ||
        p->drawn > REASON_DRAWN || seed < 0)
        return err_set(e, ST_FORMAT, "protocols.json: '%.40s': max_new_tokens, samples, shot or turn", p->name);
    TRY(read_words(p, row, e));
    return shots ? join_shots(p, shots, p->shot, e) : ST_OK;
}

status reason_protocol_open(reason_protocol *p, reason_task task, const char *name, const char *data_dir, err *e)
{
    *p = (reason_protocol){0};
    char *path = path_join(data_dir, "reason/protocols.json");
    if (!path) return err_set(e, ST_NOMEM, "out of memory");
    status st = json_read_object(&p->source, path, MAX_FILE_BYTES, MAX_DEPTH, e);
    mem_free(path);
    TRY(st);
    json_t *all = json_object_get(p->source, reason_task_name(task));
    void *first = json_object_iter(all);
    if (!first) return err_set(e, ST_FORMAT, "protocols.json: '%s' is missing", reason_task_name(task));
    json_t *row = name ? json_object_get(all, name) : json_object_iter_value(first);
    if (!row) return unknown(all, task, name, e);
    p->name = name ? name : json_object_iter_key(first);
    return read_protocol(p, row, e);
}

void reason_protocol_close(reason_protocol *p)
{
    mem_free(p->before.s);
    json_decref(p->source);
    *p = (reason_protocol){0};
}

/* ---- shots that are drawn ---- */

status reason_draw(uint32_t (*draw)[REASON_DRAWN], const reason_protocol *p, const reason_data *d, err *e)
{
    mersenne stream;
    uint32_t drawn[REASON_DRAWN];
    if (d->n_shots < (size_t)p->drawn)
        return err_set(e, ST_USAGE, "--train: %zu questions, --rules %s draws %d of them for each problem", d->n_shots,
                       p->name, p->drawn);
    mersenne_seed_python(&stream, (uint64_t)p->seed);
    /* Problems that are left out draw theirs, too. */
    int64_t at = 0;
    for (size_t i = 0; i < d->n; at++) {
        TRY(python_sample(&stream, drawn, d->n_shots, (size_t)p->drawn, e));
        for (; i < d->n && d->s[i].at.index == at; i++) memcpy(draw[i], drawn, sizeof drawn);
    }
    return ST_OK;
}

status reason_put_drawn(prompt_text *text, const reason_protocol *p, const reason_data *d,
                        const uint32_t draw[REASON_DRAWN], err *e)
{
    prompt_text all = {0};
    status st = ST_OK;
    for (int i = 0; i < p->drawn && st == ST_OK; i++) {
        const reason_problem *x = &d->shot[draw[i]];
        const prompt_field f[] = {{"{question}", x->question}, {"{answer}", x->answer}};
        prompt_text one = {0};
        st = prompt_fill(&one, p->shot, f, 2, e);
        if (st == ST_OK) st = prompt_add(&all, one.s, one.n, e);
        mem_free(one.s);
    }
    if (st == ST_OK) st = prompt_add(&all, text->s, text->n, e);
    mem_free(st == ST_OK ? text->s : all.s);
    if (st == ST_OK) *text = all;
    return st;
}

/* ---- prompts ---- */

static const char *const letters[] = {"{A}", "{B}", "{C}", "{D}"};
enum { N_FIELDS = 1 + REASON_CHOICES };

static void fields_of(prompt_field f[N_FIELDS], const reason_protocol *p, const reason_problem *x, const uint8_t *order)
{
    f[0] = (prompt_field){"{question}", x->question};
    if (p->strips) trim_python(&f[0].value.s, &f[0].value.n);
    for (size_t i = 0; i < REASON_CHOICES; i++) f[1 + i] = (prompt_field){letters[i], x->choice[order ? order[i] : i]};
}

/* Puts n bytes in front. */
static status put_before(prompt_text *t, const char *s, size_t n, err *e)
{
    if (n == 0) return ST_OK;
    TRY(mem_resize((void **)&t->s, n + t->n + 1, 1, "prompt", e));
    memmove(t->s + n, t->s, t->n + 1);
    memcpy(t->s, s, n);
    t->n += n;
    return ST_OK;
}

status reason_fill(prompt_text *out, const reason_protocol *p, const reason_problem *x, const uint8_t *order, err *e)
{
    prompt_field f[N_FIELDS];
    fields_of(f, p, x, order);
    TRY(prompt_fill(out, p->user, f, N_FIELDS, e));
    status st = put_before(out, p->before.s, p->before.n, e);
    if (st != ST_OK) mem_free(out->s);
    return st;
}

status reason_fill_turn(prompt_text *out, const reason_protocol *p, size_t i, err *e)
{
    prompt_field f = {"{question}", text_of(json_array_get(json_array_get(p->turns, i), 0))};
    return prompt_fill(out, p->turn, &f, 1, e);
}

/* ---- MMLU ---- */

/* " abstract algebra" of "abstract_algebra". */
static status spell_subject(prompt_text *out, utf8_text subject, err *e)
{
    TRY(mem_alloc((void **)&out->s, subject.n + 2, 1, "prompt", e));
    out->s[0] = ' ';
    for (size_t i = 0; i < subject.n; i++) out->s[1 + i] = subject.s[i] == '_' ? ' ' : subject.s[i];
    out->n = subject.n + 1;
    return ST_OK;
}

static status add(prompt_text *t, const char *s, size_t n, err *e)
{
    TRY(mem_resize((void **)&t->s, t->n + n + 1, 1, "prompt", e));
    if (n) memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = 0;
    return ST_OK;
}

static status add_question(prompt_text *out, const reason_protocol *p, const reason_problem *x, bool answered, err *e)
{
    prompt_text one;
    prompt_field f[N_FIELDS];
    fields_of(f, p, x, NULL);
    TRY(prompt_fill(&one, p->user, f, N_FIELDS, e));
    status st = add(out, one.s, one.n, e);
    mem_free(one.s);
    if (st != ST_OK || !answered) return st;
    char end[] = {' ', x->answer.s[0], '\n', '\n'};
    return add(out, end, sizeof end, e);
}

static bool same_group(const reason_problem *a, const reason_problem *b)
{
    return a->group.n == b->group.n && memcmp(a->group.s, b->group.s, a->group.n) == 0;
}

static status add_shots(prompt_text *out, const reason_protocol *p, const reason_data *d, const reason_problem *x,
                        size_t shots, err *e)
{
    for (size_t i = 0; i < d->n_shots && shots > 0; i++) {
        if (!same_group(&d->shot[i], x)) continue;
        TRY(add_question(out, p, &d->shot[i], true, e));
        shots--;
    }
    return ST_OK;
}

status reason_fill_mmlu(prompt_text *out, size_t *begins, const reason_protocol *p, const reason_data *d,
                        const reason_problem *x, size_t shots, err *e)
{
    prompt_text subject;
    *out = (prompt_text){0};
    TRY(spell_subject(&subject, x->group, e));
    prompt_field f = {"{subject}", {subject.s, subject.n}};
    status st = prompt_fill(out, p->header, &f, 1, e);
    mem_free(subject.s);
    if (st == ST_OK) st = add_shots(out, p, d, x, shots, e);
    *begins = out->n;
    if (st == ST_OK) st = add_question(out, p, x, false, e);
    if (st == ST_OK) return ST_OK;
    mem_free(out->s);
    *out = (prompt_text){0};
    return st;
}

/* ---- the order of choices ---- */

/* The first 8 bytes of the id's SHA-256, the highest first. */
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
        if (x->id.n == 0) return err_set(e, ST_FORMAT, "'Record ID' is missing, from which the order follows");
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
