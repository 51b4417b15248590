/* SPDX-License-Identifier: MIT */
/* Samples and prompts of LongBench v2, and the choice made by an output. */
#include "config.h"

#include "eval/longbench2/longbench2.h"

#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tokenizer/chars.h"

enum { MAX_TEMPLATE_BYTES = 1 << 20 };

/* ---- samples ---- */

static status read_record(const void *own, void *own_sample, const char *path, const char *where, err *e)
{
    longbench2_sample *s = own_sample;
    utf8_text answer = {0};
    const struct {
        const char *field;
        utf8_text *to;
    } texts[] = {{"_id", &s->id},
                 {"difficulty", &s->difficulty},
                 {"length", &s->length},
                 {"context", &s->context},
                 {"question", &s->question},
                 {"choice_A", &s->choice[0]},
                 {"choice_B", &s->choice[1]},
                 {"choice_C", &s->choice[2]},
                 {"choice_D", &s->choice[3]},
                 {"answer", &answer}};
    (void)own;
    (void)path;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        TRY(sample_text(texts[i].to, s->at.root, texts[i].field, where, e));
    if (answer.n != 1 || answer.s[0] < 'A' || answer.s[0] >= 'A' + LONGBENCH2_CHOICES)
        return err_set(e, ST_FORMAT, "%s: 'answer' is '%.20s', expected A, B, C or D", where, answer.s);
    s->answer = answer.s[0];
    return ST_OK;
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

/* ParisKV's template is a Python format string; in the others, markers are replaced one after the other. */
status longbench2_fill(prompt_text *out, const longbench2_templates *t, longbench2_prompt p, const longbench2_sample *s,
                       utf8_text reasoning, err *e)
{
    enum { FIELDS = 7 };
    static const char *const markers[FIELDS] = {"$DOC$", "$Q$", "$C_A$", "$C_B$", "$C_C$", "$C_D$", "$COT$"};
    const prompt_field fields[FIELDS] = {{"{context}", s->context}, {"{question}", s->question}, {"{A}", s->choice[0]},
                                         {"{B}", s->choice[1]},     {"{C}", s->choice[2]},       {"{D}", s->choice[3]},
                                         {NULL, reasoning}};
    const prompt_text *template = &t->text[p];
    if (p == LONGBENCH2_PARISKV) return prompt_fill(out, template->s, fields, FIELDS - 1, e);
    *out = (prompt_text){0};
    status st = prompt_add(out, template->s, template->n, e);
    for (size_t i = 0; i < FIELDS && st == ST_OK; i++) {
        utf8_text value = fields[i].value;
        trim_python(&value.s, &value.n);
        st = prompt_replace(out, (utf8_text){markers[i], strlen(markers[i])}, value, e);
    }
    if (st == ST_OK) return ST_OK;
    mem_free(out->s);
    *out = (prompt_text){0};
    return st;
}

/* ---- answers ---- */

/* Returns the letter that an output chooses at s[at], ignoring asterisks; 0: none. */
static char choice_at(utf8_text s, size_t at, bool in_brackets)
{
    char letter = 0;
    for (const char *want = in_brackets ? "The correct answer is (?)" : "The correct answer is ?"; *want; want++) {
        while (at < s.n && s.s[at] == '*') at++;
        if (at == s.n) return 0;
        const char c = s.s[at++];
        if (*want == '?' && c >= 'A' && c < 'A' + LONGBENCH2_CHOICES) letter = c;
        else if (c != *want) return 0;
    }
    return letter;
}

bool longbench2_says(utf8_text output, char letter)
{
    for (size_t at = 0; at < output.n; at++)
        if (choice_at(output, at, true) == letter || choice_at(output, at, false) == letter) return true;
    return false;
}

char longbench2_choice(utf8_text output)
{
    char letter = 0;
    for (size_t at = 0; at < output.n && !letter; at++) letter = choice_at(output, at, true);
    for (size_t at = 0; at < output.n && !letter; at++) letter = choice_at(output, at, false);
    return letter;
}
