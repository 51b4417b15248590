/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "model/ngram.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { LONGEST_MATCH = 3, RETRY = 16 };

/* ---- lookup ---- */

/* Returns the index after the latest earlier occurrence of the last m ids; 0: none. */
static size_t find_before(const int32_t *ids, size_t n, size_t m)
{
    const int32_t *last = ids + n - m;
    for (size_t end = n - 1; end >= m; end--)
        if (ids[end - 1] == last[m - 1] && memcmp(ids + end - m, last, m * sizeof *ids) == 0) return end;
    return 0;
}

size_t ngram_lookup(const int32_t *ids, size_t n, int32_t *out, size_t most)
{
    for (size_t m = LONGEST_MATCH; m > 0; m--) {
        size_t from = n > m ? find_before(ids, n, m) : 0;
        if (from == 0) continue;
        size_t k = n - from < most ? n - from : most;
        memcpy(out, ids + from, k * sizeof *out);
        return k;
    }
    return 0;
}

/* ---- draft length ---- */

/* fade: decay of old counts per token; grow: growth of a shortest time per new time; at_start, each_step, credit_most:
 * steps that drafts may lose */
static const double fade = 0.97, grow = 1.1, at_start = 1, each_step = 0.0075, credit_most = 8;

void pace_start(draft_pace *p, size_t most)
{
    *p = (draft_pace){.most = most, .reached = 4, .accepted = 3, .credit = at_start};
}

void pace_limit(draft_pace *p, size_t rows)
{
    if (!p->fixed && p->most >= rows) p->most = rows > 1 ? rows - 1 : 1;
}

static void add_credit(draft_pace *p, double steps)
{
    p->credit = fmin(p->credit + steps, credit_most);
}

void pace_judged(draft_pace *p, bool accepted)
{
    p->reached = fade * p->reached + 1;
    p->accepted = fade * p->accepted + (accepted ? 1 : 0);
    if (accepted) add_credit(p, 1);
}

static void keep_shortest(double *best, double ns)
{
    *best = *best > 0 ? fmin(grow * *best, ns) : ns;
}

/* Returns the steps of one row that a draft of g tokens costs if none is accepted. */
static double loss_of(const draft_pace *p, size_t g)
{
    return ((double)g * p->draft_ns + pace_step_ns(p, g + 1)) / pace_step_ns(p, 1) - 1;
}

void pace_timed(draft_pace *p, size_t rows, int64_t step_ns, size_t drafted, int64_t draft_ns)
{
    p->seen++;
    p->idle = rows > 1 ? 0 : p->idle + 1;
    keep_shortest(&p->step_ns[rows], (double)step_ns);
    if (drafted > 0) keep_shortest(&p->draft_ns, (double)draft_ns / (double)drafted);
    add_credit(p, each_step - (drafted > 0 ? fmax(loss_of(p, drafted), 0) : 0));
}

double pace_step_ns(const draft_pace *p, size_t rows)
{
    size_t lo = rows, hi = rows, top = p->most + 1;
    while (lo > 0 && !(p->step_ns[lo] > 0)) lo--;
    while (hi <= top && !(p->step_ns[hi] > 0)) hi++;
    if (hi > top) { /* extrapolate from the last two known times */
        hi = lo;
        if (lo > 0) lo--;
        while (lo > 0 && !(p->step_ns[lo] > 0)) lo--;
    }
    if (lo == 0 || lo == hi) return p->step_ns[hi];
    double slope = (p->step_ns[hi] - p->step_ns[lo]) / (double)(hi - lo);
    return p->step_ns[lo] + fmax(slope, 0) * (double)(rows - lo);
}

/* Returns the longest draft to consider: twice the rows whose time is known, because longer times are extrapolated. */
static size_t longest(const draft_pace *p)
{
    size_t rows = p->most + 1;
    while (rows > 1 && !(p->step_ns[rows] > 0)) rows--;
    return 2 * rows - 1 < p->most ? 2 * rows - 1 : p->most;
}

/* Returns the best length that the credit allows, or the fixed one, and its tokens in the time of a step of one row. */
static size_t best_length(const draft_pace *p, double *best)
{
    double h = p->accepted / p->reached, chance = 1, tokens = 1;
    size_t length = 0;
    *best = 0;
    for (size_t g = 0, end = p->fixed ? p->most : longest(p); g <= end; g++) {
        if (g > 0) tokens += chance *= h;
        double rate = tokens / (1 + loss_of(p, g));
        if (p->fixed ? g < end : !(rate > *best) || (g > 0 && loss_of(p, g) > p->credit)) continue;
        *best = rate;
        length = g;
    }
    return length;
}

/* Returns the tokens a nanosecond of a run with such steps. */
static double rate_of(draft_pace p, size_t rows, const int64_t ns[2])
{
    double best;
    pace_timed(&p, 1, ns[0], 0, 0);
    pace_timed(&p, rows, ns[1], 0, 0);
    best_length(&p, &best);
    return best / (double)ns[0];
}

bool pace_prefers(const draft_pace *p, size_t rows, const int64_t b[2], const int64_t a[2])
{
    return rate_of(*p, rows, b) > rate_of(*p, rows, a);
}

size_t pace_length(draft_pace *p)
{
    double best;
    if (p->fixed) return p->most;
    if (p->seen < 2) return 0; /* the time of a one-row step must be known, and the first step runs with cold caches */
    size_t length = best_length(p, &best);
    bool retry = p->idle % RETRY == RETRY - 1 && p->most > 0 && loss_of(p, 1) <= p->credit;
    return length == 0 && retry ? 1 : length;
}
