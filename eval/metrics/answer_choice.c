/* SPDX-License-Identifier: MIT */
/* Extraction of multiple-choice letters. Source: evals.md 17.5; amy-77/ParisKV run/test_gpqa.py and
 * run/test_longbench_v2.py, openai/simple-evals common.py, EleutherAI/lm-evaluation-harness gpqa/cot_zeroshot. */
#include "config.h"

#include <string.h>

#include "eval/metrics/answer.h"

/* ParisKV's limits: characters of the early part, characters near the end, and number of last lines. */
enum { EARLY = 200, NEAR_END = 10, LAST_LINES = 10 };

#define SPACES      "[" PYTHON_SPACE "]*"
#define SOME_SPACE  "[" PYTHON_SPACE "]+"
#define NO_WORD     "(?![" PYTHON_WORD "])"
#define IN_BRACKETS "\\(" SPACES "([A-D])" SPACES "\\)"
#define ALONE       "(?<![" PYTHON_WORD "])([A-D])" NO_WORD
#define ANSWER      "(?:CORRECT" SOME_SPACE ")?ANSWER"
#define COLON       SPACES "[:\\x{ff1a}]" SPACES

static status put(str *out, bool *found, char letter, err *e)
{
    *found = letter != 0;
    if (letter) str_set(out, &letter, 1);
    return str_check(out, e);
}

/* ---- ParisKV: patterns over the upper case of an output ---- */

static size_t characters(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

/* Sets *letter to that of a pattern's first or last match, if any. */
static status search(char *letter, const char *pattern, bool last, utf8_text s, err *e)
{
    utf8_text group;
    bool found;
    TRY(regex_find(&group, &found, pattern, last, s, e));
    if (found) *letter = *group.s;
    return ST_OK;
}

/* Finds the first match. If it is early, the first late match replaces it. */
static status search_late(char *letter, const char *pattern, utf8_text s, err *e)
{
    regex r;
    bool found = true;
    status st = regex_open(&r, pattern, s, e);
    while (st == ST_OK) {
        st = regex_next(&r, &found, e);
        if (!found) break;
        bool is_late = characters(s.s, r.begin) >= EARLY;
        if (is_late || !*letter) *letter = *r.group.s;
        if (is_late) break;
    }
    regex_close(&r);
    return st;
}

/* Finds the last "(L)", or the one before it if the last is at the very end. */
static status search_last_brackets(char *letter, utf8_text s, err *e)
{
    regex r;
    bool found = true;
    char before = 0;
    size_t end = 0;
    status st = regex_open(&r, IN_BRACKETS, s, e);
    while (st == ST_OK) {
        st = regex_next(&r, &found, e);
        if (!found) break;
        before = *letter;
        *letter = *r.group.s;
        end = r.end;
    }
    regex_close(&r);
    if (before && characters(s.s + end, s.n - end) < NEAR_END) *letter = before;
    return st;
}

/* Searches the last ten lines upwards: in each line the first "(L)", else the first letter that stands alone. */
static status search_lines(char *letter, utf8_text s, err *e)
{
    for (int k = 0; k < LAST_LINES && !*letter; k++) {
        const char *newline = s.n ? memrchr(s.s, '\n', s.n) : NULL;
        size_t begin = newline ? (size_t)(newline - s.s) + 1 : 0;
        const utf8_text line = {s.s + begin, s.n - begin};
        TRY(search(letter, IN_BRACKETS, false, line, e));
        if (!*letter) TRY(search(letter, ALONE, false, line, e));
        if (begin == 0) break;
        s.n = begin - 1;
    }
    return ST_OK;
}

static status search_pariskv(char *letter, utf8_text s, bool cot, err *e)
{
    static const char *const said[] = {ANSWER SOME_SPACE "IS" SPACES IN_BRACKETS, ANSWER COLON IN_BRACKETS,
                                       ANSWER SOME_SPACE "IS" SOME_SPACE "([A-D])" NO_WORD,
                                       ANSWER COLON "([A-D])" NO_WORD};
    size_t half;
    for (size_t i = 0; i < sizeof said / sizeof *said && !*letter; i++) TRY(search_late(letter, said[i], s, e));
    if (!*letter) TRY(search_last_brackets(letter, s, e));
    if (!*letter && cot) TRY(search_lines(letter, s, e));
    if (*letter) return ST_OK;
    half = text_first(s, characters(s.s, s.n) / 2).n;
    TRY(search(letter, ALONE, true, text_from(s, half, s.n), e)); /* only the second half is searched */
    return *letter ? ST_OK : search(letter, ALONE "(?! SINGLE)", true, s, e);
}

static status extract_pariskv(str *out, bool *found, utf8_text output, bool cot, err *e)
{
    str upper = {0};
    char letter = 0;
    TRY(text_check(output, e));
    str_add_upper(&upper, output);
    status st = str_check(&upper, e);
    if (st == ST_OK) st = search_pariskv(&letter, str_text(&upper), cot, e);
    if (st == ST_OK) st = put(out, found, letter, e);
    str_free(&upper);
    return st;
}

static status extract_plain(str *out, bool *found, utf8_text output, err *e)
{
    return extract_pariskv(out, found, output, false, e);
}

static status extract_cot(str *out, bool *found, utf8_text output, err *e)
{
    return extract_pariskv(out, found, output, true, e);
}

/* ---- other rules ---- */

static status extract_simple_evals(str *out, bool *found, utf8_text s, err *e)
{
    char letter = 0;
    TRY(search(&letter, "(?i)Answer[ \\t]*:[ \\t]*\\$?([A-D])", false, s, e));
    return put(out, found, (char)(letter & ~32), e);
}

static status extract_lmeval(str *out, bool *found, utf8_text s, err *e)
{
    char letter = 0;
    TRY(search(&letter, "\\(([A-Z])\\)", true, s, e));
    if (!letter) TRY(search(&letter, ":" SPACES "([A-D])", true, s, e));
    return put(out, found, letter, e);
}

/* Accepts "B" and "(B)". */
static status label_letter(str *label, err *e)
{
    str_strip(label);
    if (label->n == 3 && label->s[0] == '(' && label->s[2] == ')') str_set(label, &(char){label->s[1]}, 1);
    if (label->n == 1 && label->s[0] >= 'A' && label->s[0] <= 'D') return ST_OK;
    return err_set(e, ST_FORMAT, "the answer '%.40s' is not A, B, C or D", str_text(label).s);
}

const answer_rule answer_gpqa = {.extract = extract_plain, .label = label_letter},
                  answer_gpqa_cot = {.extract = extract_cot, .label = label_letter},
                  answer_gpqa_simple_evals = {.extract = extract_simple_evals, .label = label_letter},
                  answer_gpqa_lmeval = {.extract = extract_lmeval, .label = label_letter};
