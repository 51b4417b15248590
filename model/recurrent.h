/* SPDX-License-Identifier: MIT */
/* Recurrent state of a sequence: state of fixed size that blocks keep in addition to keys and values. A block declares
 * it once (block_kind.declare). All functions accept NULL for a model without such state. */
#ifndef MODEL_RECURRENT_H
#define MODEL_RECURRENT_H

#include "attention/sequence.h"
#include "attention/state.h"
#include "model/model.h"

typedef struct recurrent recurrent;

/* Returns in *out the bytes of a sequence's state and snapshots. */
status recurrent_plan(size_t *out, const model *m, int snapshots, err *e);
/* Creates the state of a sequence; *out is NULL for a model without recurrent state. */
status recurrent_create(recurrent **out, const model *m, int snapshots, err *e);
void recurrent_free(recurrent *r);
void recurrent_reset(recurrent *r);
/* Returns the i-th buffer declared by a block. */
buf recurrent_buf(const recurrent *r, const block *b, int i);
/* Ends a forward of the step's sequences. Sequences of a shared prompt copy the state of the first. */
void recurrent_end(recurrent *const *r, const attn_step *step);
/* Returns the bytes of a sequence, snapshots included. */
size_t recurrent_bytes(const recurrent *r);
/* Visits the state (attention/state.h) after `length` tokens. Snapshots are not visited; loading drops them. */
status recurrent_state(recurrent *r, attn_state *s, int64_t length, err *e);
/* Takes a snapshot of the current state. ST_UNSUPPORTED: no room for snapshots. */
status recurrent_snapshot(recurrent *r, err *e);
/* Returns ST_UNSUPPORTED unless n is 0, the current length or that of a snapshot. */
status recurrent_can_rewind(const recurrent *r, int64_t n, err *e);
/* Goes back to n tokens, as allowed by recurrent_can_rewind. */
void recurrent_rewind(recurrent *r, int64_t n);
/* Returns ST_UNSUPPORTED for a model with recurrent state, because rejected drafts cannot be removed from it. */
status recurrent_draft_check(const model *m, err *e);

#endif
