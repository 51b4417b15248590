/* SPDX-License-Identifier: MIT */
/* Recurrent state of a sequence: what blocks keep of all its tokens, of a fixed size. It lies beside the keys and
 * values, and a block declares it once (block_kind.declare). All functions accept NULL: a model without such state. */
#ifndef MODEL_RECURRENT_H
#define MODEL_RECURRENT_H

#include "attention/sequence.h"
#include "attention/state.h"
#include "model/model.h"

typedef struct recurrent recurrent;

/* Returns the bytes of a sequence's state and snapshots in *out. */
status recurrent_plan(size_t *out, const model *m, int snapshots, err *e);
/* Gives NULL for a model without recurrent state. */
status recurrent_create(recurrent **out, const model *m, int snapshots, err *e);
void recurrent_free(recurrent *r);
void recurrent_reset(recurrent *r);
/* Returns the i-th buffer that a block declared. */
buf recurrent_buf(const recurrent *r, const block *b, int i);
/* Ends a forward of the step's sequences; those of a shared prompt take the state of the first. */
void recurrent_end(recurrent *const *r, const attn_step *step);
/* Returns the bytes that a sequence holds, snapshots included. */
size_t recurrent_bytes(const recurrent *r);
/* Walks over the state (attention/state.h), which is that of `length` tokens; snapshots are left out, and forgotten. */
status recurrent_state(recurrent *r, attn_state *s, int64_t length, err *e);
/* Keeps the state of the tokens so far. ST_UNSUPPORTED: no room for snapshots. */
status recurrent_snapshot(recurrent *r, err *e);
/* ST_UNSUPPORTED unless n is 0, the length or that of a snapshot. */
status recurrent_can_rewind(const recurrent *r, int64_t n, err *e);
/* Goes back to n tokens, which recurrent_can_rewind allows. */
void recurrent_rewind(recurrent *r, int64_t n);
/* ST_UNSUPPORTED for a model with recurrent state: rejected drafts cannot be taken back. */
status recurrent_draft_check(const model *m, err *e);

#endif
