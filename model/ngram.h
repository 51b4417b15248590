/* SPDX-License-Identifier: MIT */
/* N-gram drafts: tokens looked up in the text itself; and the pace of drafts from any source, the length that pays.
 * Neither changes the text: verification keeps what the model would have generated (session_verify). */
#ifndef MODEL_NGRAM_H
#define MODEL_NGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Look-up in the text itself: of the last 3, else 2, else 1 of n ids the latest earlier place; what follows it there,
 * up to `most` ids, to out. Returns their number. Source: prompt lookup decoding (Saxena 2023), as transformers does.
 */
size_t ngram_lookup(const int32_t *ids, size_t n, int32_t *out, size_t most);

/* What is known of a run's proposals: how often one is confirmed whose predecessors were, and what they cost. All
 * fades: texts change, and machines. */
enum { PACE_MOST = 15 };
typedef struct {
    size_t most;              /* longest proposal, at most PACE_MOST */
    bool fixed;               /* always so many */
    double reached, accepted; /* proposed tokens that all before them let through; and those that were the model's */
    double draft_ns;          /* of a proposed token, where it costs anything */
    double step_ns[PACE_MOST + 2]; /* of a step of so many rows; 0: unknown */
    size_t seen, idle;             /* steps so far; those in a row without a proposal */
} draft_pace;

void pace_start(draft_pace *p, size_t most);
/* The length of the next proposal, 0 to most, for the most tokens a second: with hazard h, E = 1 + h + .. + h^g tokens
 * in g draft_ns + the time of g + 1 rows. Where nothing is proposed any more, one is tried now and then. */
size_t pace_length(draft_pace *p);
/* A proposed token was reached. */
void pace_judged(draft_pace *p, bool accepted);
/* A step of `rows` rows took step_ns, and proposing `drafted` of them draft_ns. */
void pace_timed(draft_pace *p, size_t rows, int64_t step_ns, size_t drafted, int64_t draft_ns);
/* Nanoseconds of a step of so many rows, 1 to most + 1: the shortest of late, since a machine may be interrupted;
 * between known numbers of rows a line, beyond them as it goes on. 0: nothing is known. */
double pace_step_ns(const draft_pace *p, size_t rows);

#endif
