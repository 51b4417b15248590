/* SPDX-License-Identifier: MIT */
/* Tool calls and thinking of a model: found in its chat template by rendering a call and reading it back. */
#ifndef TOKENIZER_CALL_SUPPORT_H
#define TOKENIZER_CALL_SUPPORT_H

#include "tokenizer/call_parse.h"
#include "tokenizer/chat.h"

enum { CALL_SPECIALS = 16 };

/* Thinking of one reply. */
typedef struct {
    const char *open, *close; /* markers; NULL: the reply does not think */
    bool inside;              /* it begins inside thinking; else the opening marker may begin it */
} call_thinking;

typedef struct {
    const call_format *format; /* NULL: calls are not recognized */
    bool described;            /* the server describes tools in the system message, not the template */
    bool prints_tools;         /* the template prints tools */
    const char *think_open, *think_close;
    const char *special[CALL_SPECIALS + 1]; /* markers that are special tokens */
} call_support;

/* Finds what the selected template supports. name: format of calls that the server describes; NULL: that of the
 * template. ST_USAGE for an unknown name. */
status call_support_find(call_support *s, const tokenizer *t, const char *name, err *e);
/* Returns the thinking of a reply to a conversation that the selected template rendered. The last marker after the last
 * message decides: an opening one puts the reply inside thinking, a closing one turns thinking off; without one the
 * reply may begin with the opening marker. continues: the reply continues the last message, whose markers count. */
call_thinking call_thinking_of(const tokenizer *t, const chat_text *prompt, bool continues);

#endif
