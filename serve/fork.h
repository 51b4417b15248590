/* SPDX-License-Identifier: MIT */
/* Copy of a session after a prompt, from which the other choices continue: the prompt is computed once. Where rows can
 * be mapped, as those of the prefix store are, sessions share them and the system copies pages that they change. Else
 * each session gets a copy. */
#ifndef SERVE_FORK_H
#define SERVE_FORK_H

#include "model/session.h"

typedef struct prompt_fork prompt_fork;

/* Bytes that fork_take will take, at most. */
size_t fork_bytes(const session *s);
/* Copies the state of s after a whole prompt, and logits [vocab] of the next token. ST_NOMEM; ST_UNSUPPORTED where a
 * session cannot be copied (rows in files). s is not changed. */
status fork_take(prompt_fork **out, session *s, const float *logits, err *e);
/* Gives it to an empty session with the same decoder, strategy and limit, without a draft: it continues with the bits
 * of a session that was fed the prompt. After an error the session is empty. */
status fork_give(const prompt_fork *f, session *s, float *logits, err *e);
/* Sessions that it was given to keep what they have. */
void fork_free(prompt_fork *f);

#endif
