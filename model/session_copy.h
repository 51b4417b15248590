/* SPDX-License-Identifier: MIT */
/* A session's state in memory, from which other sessions go on with the same bits: several continuations of one
 * context, which is then fed once. */
#ifndef MODEL_SESSION_COPY_H
#define MODEL_SESSION_COPY_H

#include "model/session.h"

typedef struct session_copy session_copy;

/* Takes what s holds, between two prompts or steps, into *c, which is made if it is NULL and else takes it instead of
 * what it had. ST_UNSUPPORTED where a session cannot be copied (rows in files); ST_NOMEM. */
status session_copy_take(session_copy **c, session *s, err *e);
/* Gives it to a session with the same decoder, strategy and limit, instead of what that one holds. After an error the
 * session is empty. */
status session_copy_give(session *s, session_copy *c, err *e);
void session_copy_free(session_copy *c);

#endif
