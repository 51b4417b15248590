/* SPDX-License-Identifier: MIT */
/* Similarity of a line of code to the right one: fuzzywuzzy's ratio over Python's difflib. doc/evals.md 2.7. */
#include "config.h"

#include "eval/metrics/impl.h"

#include <math.h>

static bool is_code(span line)
{
    for (size_t i = 0; i < line.n; i++)
        if (line.c[i] == '`' || line.c[i] == '#' || (line.c[i] == '/' && i + 1 < line.n && line.c[i + 1] == '/'))
            return false;
    return true;
}

/* The first line without a mark of comments or of Markdown; empty where there is none. */
static span first_code_line(span s)
{
    size_t i = 0, end;
    while (i < s.n && s.c[i] == '\n') i++;
    for (; i <= s.n; i = end + 1) {
        for (end = i; end < s.n && s.c[end] != '\n';) end++;
        if (is_code(span_from(s, i, end))) return span_from(s, i, end);
    }
    return span_from(s, s.n, s.n);
}

status score_code_sim(const metric_pair *p, double *score, err *e)
{
    TRY(difflib_ratio(first_code_line(p->prediction), p->answer, "code_sim: lines", score, e));
    *score = rint(100 * *score) / 100; /* half to even, as Python's round */
    return ST_OK;
}
