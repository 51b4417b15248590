/* SPDX-License-Identifier: MIT */
/* Tool calls and thinking of a model: found in its chat template by rendering a call and reading it back. */
#ifndef TOKENIZER_CALL_SUPPORT_H
#define TOKENIZER_CALL_SUPPORT_H

#include "tokenizer/call_parse.h"
#include "tokenizer/tokenizer.h"

enum { CALL_SPECIALS = 12 };

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
/* True if the last tokens of a prompt open a block of thinking. */
bool call_support_thinks(const call_support *s, const tokenizer *t, const int32_t *ids, size_t n);

#endif
