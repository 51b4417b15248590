/* SPDX-License-Identifier: MIT */
/* LongBench v2's samples, prompts, and the choice that an output makes. */
#include "config.h"

#include "eval/longbench2/longbench2.h"

#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tokenizer/chars.h"

enum { MAX_TEMPLATE_BYTES = 1 << 20 };

/* ---- samples ---- */

static status read_answer(longbench2_sample *s, const char *where, err *e)
{
    utf8_text a;
    TRY(sample_text(&a, s->at.root, "answer", where, e));
    if (a.n != 1 || a.s[0] < 'A' || a.s[0] >= 'A' + LONGBENCH2_CHOICES)
        return err_set(e, ST_FORMAT, "%s: 'answer' is '%.20s', expected A, B, C or D", where, a.s);
    s->answer = a.s[0];
    return ST_OK;
}

static status read_record(const void *own, void *own_sample, const char *path, const char *where, err *e)
{
    longbench2_sample *s = own_sample;
    const json_t *root = s->at.root;
    (void)own;
    (void)path;
    utf8_text id, difficulty, length;
    TRY(sample_text(&id, root, "_id", where, e));
    TRY(sample_text(&difficulty, root, "difficulty", where, e));
    TRY(sample_text(&length, root, "length", where, e));
    TRY(sample_text(&s->context, root, "context", where, e));
    TRY(sample_text(&s->question, root, "question", where, e));
    for (int i = 0; i < LONGBENCH2_CHOICES; i++) {
        const char field[] = {'c', 'h', 'o', 'i', 'c', 'e', '_', (char)('A' + i), 0};
        TRY(sample_text(&s->choice[i], root, field, where, e));
    }
    s->id = id.s;
    s->difficulty = difficulty.s;
    s->length = length.s;
    return read_answer(s, where, e);
}

static const char *const in_folder[] = {"data.json", "data.jsonl", NULL};
const sample_reader longbench2_reader = {.in_folder = in_folder, .read = read_record};

/* ---- templates ---- */

static const char *const names[LONGBENCH2_PROMPTS] = {"0shot", "0shot_no_context", "0shot_cot", "0shot_cot_ans",
                                                      "pariskv_cot"};

const char *longbench2_prompt_name(longbench2_prompt p)
{
    return names[p];
}

status longbench2_templates_read(longbench2_templates *t, const char *data_dir, err *e)
{
    *t = (longbench2_templates){0};
    for (size_t i = 0; i < LONGBENCH2_PROMPTS; i++) {
        char name[64];
        snprintf(name, sizeof name, "longbench2/%s.txt", names[i]);
        char *path = path_join(data_dir, name);
        if (!path) return err_set(e, ST_NOMEM, "out of memory");
        status st = file_read(&t->text[i].s, &t->text[i].n, path, MAX_TEMPLATE_BYTES, e);
        mem_free(path);
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

void longbench2_templates_free(longbench2_templates *t)
{
    for (size_t i = 0; i < LONGBENCH2_PROMPTS; i++) mem_free(t->text[i].s);
    *t = (longbench2_templates){0};
}

/* ---- filling ---- */

static utf8_text strip(utf8_text s)
{
    trim_python(&s.s, &s.n);
    return s;
}

static status replace_all(prompt_text *text, const longbench2_sample *s, utf8_text reasoning, err *e)
{
    const struct {
        const char *marker;
        utf8_text value;
    } fields[] = {{"$DOC$", s->context},   {"$Q$", s->question},    {"$C_A$", s->choice[0]}, {"$C_B$", s->choice[1]},
                  {"$C_C$", s->choice[2]}, {"$C_D$", s->choice[3]}, {"$COT$", reasoning}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        utf8_text marker = {fields[i].marker, strlen(fields[i].marker)};
        TRY(prompt_replace(text, marker, strip(fields[i].value), e));
    }
    return ST_OK;
}

/* As a Python format string of ParisKV's script has it. */
static status fill_pariskv(prompt_text *out, const char *template, const longbench2_sample *s, err *e)
{
    const prompt_field fields[] = {{"{context}", s->context}, {"{question}", s->question}, {"{A}", s->choice[0]},
                                   {"{B}", s->choice[1]},     {"{C}", s->choice[2]},       {"{D}", s->choice[3]}};
    return prompt_fill(out, template, fields, sizeof fields / sizeof *fields, e);
}

status longbench2_fill(prompt_text *out, const longbench2_templates *t, longbench2_prompt p, const longbench2_sample *s,
                       utf8_text reasoning, err *e)
{
    const prompt_text *template = &t->text[p];
    if (p == LONGBENCH2_PARISKV) return fill_pariskv(out, template->s, s, e);
    *out = (prompt_text){0};
    TRY(prompt_add(out, template->s, template->n, e));
    status st = replace_all(out, s, reasoning, e);
    if (st == ST_OK) return ST_OK;
    mem_free(out->s);
    *out = (prompt_text){0};
    return st;
}

/* ---- answers ---- */

/* The next byte that is no asterisk; false at the end. */
static bool next_letter(utf8_text s, size_t *at, char *c)
{
    while (*at < s.n && s.s[*at] == '*') ++*at;
    if (*at == s.n) return false;
    *c = s.s[(*at)++];
    return true;
}

/* The letter where `before`, a letter of a choice and `after` stand at s[at], 0: they do not. */
static char choice_at(utf8_text s, size_t at, const char *before, const char *after)
{
    char c, letter;
    for (; *before; before++)
        if (!next_letter(s, &at, &c) || c != *before) return 0;
    if (!next_letter(s, &at, &letter) || letter < 'A' || letter >= 'A' + LONGBENCH2_CHOICES) return 0;
    for (; *after; after++)
        if (!next_letter(s, &at, &c) || c != *after) return 0;
    return letter;
}

bool longbench2_says(utf8_text output, char letter)
{
    for (size_t at = 0; at < output.n; at++)
        if (choice_at(output, at, "The correct answer is (", ")") == letter ||
            choice_at(output, at, "The correct answer is ", "") == letter)
            return true;
    return false;
}

static char first_choice(utf8_text s, const char *before, const char *after)
{
    char letter = 0;
    for (size_t at = 0; at < s.n && !letter; at++) letter = choice_at(s, at, before, after);
    return letter;
}

char longbench2_choice(utf8_text output)
{
    char letter = first_choice(output, "The correct answer is (", ")");
    return letter ? letter : first_choice(output, "The correct answer is ", "");
}
