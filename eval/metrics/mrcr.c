/* SPDX-License-Identifier: MIT */
/* MRCR: how alike an answer is to the text that was asked for, once it begins with the string that it was told to begin
 * with. doc/evals.md 2.10; the data card of openai/mrcr, and google-deepmind/eval_hub for version 2. */
#include "config.h"

#include "eval/metrics/impl.h"

enum { PREFIX = 10, PREFIX_V2 = 12 }; /* characters of the string, where no one says which it is */

static bool begins_with(span s, span part)
{
    return part.n <= s.n && span_equal(span_from(s, 0, part.n), part);
}

/* The string that answers begin with: of the line, else the second answer, else the first characters of the answer. */
static span prefix_of(const metric_pair *p)
{
    span a = p->answers[0];
    if (p->n_classes == 1) return p->classes[0];
    if (p->n_answers > 1) return p->answers[1];
    return span_from(a, 0, a.n < PREFIX ? a.n : PREFIX);
}

status score_mrcr(const metric_pair *p, double *score, err *e)
{
    span prefix = prefix_of(p), said = p->prediction, want = p->answers[0];
    if (!begins_with(said, prefix)) return ST_OK;
    if (begins_with(want, prefix)) want = span_from(want, prefix.n, want.n);
    return difflib_ratio(span_from(said, prefix.n, said.n), want, "mrcr: texts", score, e);
}

/* Where `part`, which is not empty, begins in s for the last time; s.n + 1 when nowhere. */
static size_t find_last(span s, span part)
{
    size_t last = s.n + 1;
    for (size_t at = 0; (at = span_find(s, at, part)) <= s.n; at++) last = at;
    return last;
}

status score_mrcr_v2(const metric_pair *p, double *score, err *e)
{
    span want = span_strip(p->answer), said = p->prediction;
    span prefix = span_from(want, 0, want.n < PREFIX_V2 ? want.n : PREFIX_V2);
    if (prefix.n == 0) return err_set(e, ST_FORMAT, "mrcr_v2: the answer is empty");
    size_t at = find_last(said, prefix);
    if (at > said.n) return ST_OK;
    said = span_strip(span_from(said, at + prefix.n, said.n));
    want = span_strip(span_from(want, prefix.n, want.n));
    return difflib_ratio(want, said, "mrcr_v2: texts", score, e);
}
