/* SPDX-License-Identifier: MIT */
/* N-gram drafts (tokens looked up in the text itself), and the pace of drafts from any source: the length that pays.
 * Neither changes the output: verification keeps what the model would have generated (session_verify). */
#ifndef MODEL_NGRAM_H
#define MODEL_NGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Finds the latest earlier occurrence of the last 3 of n ids, else of the last 2, else of the last 1. Copies up to
 * `most` ids that follow it to out and returns their number. Source: prompt lookup decoding (Saxena 2023), as in
 * transformers. */
size_t ngram_lookup(const int32_t *ids, size_t n, int32_t *out, size_t most);

/* Acceptance and cost of the drafts of a run. Counts decay because texts and machine load change. */
enum { PACE_MOST = 15 };
typedef struct {
    size_t most;              /* most tokens of a draft, at most PACE_MOST */
    bool fixed;               /* every draft has `most` tokens */
    double reached, accepted; /* decayed counts of drafted tokens that verification reached, and of those it accepted */
    double draft_ns;          /* shortest recent time of a drafted token; 0 if drafts are free */
    double step_ns[PACE_MOST + 2]; /* [rows]: shortest recent time of a step with so many rows; 0: unknown */
    size_t seen, idle;             /* steps so far; latest consecutive steps without a draft */
    double credit;                 /* steps of one row that drafts may still lose; those they save are added */
} draft_pace;

void pace_start(draft_pace *p, size_t most);
/* Returns the length of the next draft, 0 to most, that maximizes tokens per second. With hazard h, a draft of g tokens
 * yields E = 1 + h + .. + h^g tokens in g draft_ns + the time of g + 1 rows. A draft that could lose more than the
 * credit is not made, so drafts cost about one step and 0.75 % of all steps at most. If 0 is best, a draft of 1 is
 * tried from time to time. */
size_t pace_length(draft_pace *p);
/* Limits adaptive drafts to steps of `rows` rows; a step may always have one draft. */
void pace_limit(draft_pace *p, size_t rows);
/* True if a run whose steps of 1 and of `rows` rows take b nanoseconds yields more tokens in the same time than one
 * whose steps take a, at the acceptance so far. */
bool pace_prefers(const draft_pace *p, size_t rows, const int64_t b[2], const int64_t a[2]);
/* Counts a drafted token that verification reached. */
void pace_judged(draft_pace *p, bool accepted);
/* Records a step of `rows` rows that took step_ns, and the draft_ns spent on `drafted` tokens of it. */
void pace_timed(draft_pace *p, size_t rows, int64_t step_ns, size_t drafted, int64_t draft_ns);
/* Returns the nanoseconds of a step of 1 to most + 1 rows: the shortest recent time, since interruptions only add time.
 * Unknown numbers of rows are interpolated or extrapolated linearly. 0: no step is known. */
double pace_step_ns(const draft_pace *p, size_t rows);

#endif
