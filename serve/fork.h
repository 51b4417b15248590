/* SPDX-License-Identifier: MIT */
/* What a prompt left in a session, for the other choices that go on from it: it is computed once. Where rows can be
 * mapped, as those of the prefix store are, sessions share them and the system copies what they change; else each gets
 * a copy. */
#ifndef SERVE_FORK_H
#define SERVE_FORK_H

#include "model/session.h"

typedef struct prompt_fork prompt_fork;

/* Bytes that fork_take will take, at most. */
size_t fork_bytes(const session *s);
/* Takes what s holds behind a whole prompt, and logits [vocab] of the next token. ST_NOMEM; ST_UNSUPPORTED where a
 * session cannot be copied (rows in files). s goes on as it would. */
status fork_take(prompt_fork **out, session *s, const float *logits, err *e);
/* Gives it to an empty session with the same decoder, strategy and limit, that has no draft: it goes on with the bits
 * of a session that was fed the prompt. After an error the session is empty. */
status fork_give(const prompt_fork *f, session *s, float *logits, err *e);
/* Sessions that it was given to keep what they have. */
void fork_free(prompt_fork *f);

#endif
