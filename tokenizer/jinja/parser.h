/* SPDX-License-Identifier: MIT */
/* Shared by the parsers of expressions and statements. */
#ifndef TOKENIZER_JINJA_PARSER_H
#define TOKENIZER_JINJA_PARSER_H

#include "tokenizer/jinja/impl.h"

enum { JINJA_MAX_NAMES = 4096 };

typedef struct {
    jlexer lexer;
    jtoken t, ahead;
    jinja *j;
    int depth;
    unsigned uses; /* special names seen in the macro */
    int n_loops;   /* loops around the statement, within the same macro */
} jparser;

/* Advances to the next token. */
status jp_next(jparser *p);
status jp_unexpected(jparser *p, const char *wanted);
bool jp_is_op(const jparser *p, const char *op);
bool jp_is_name(const jparser *p, const char *name);
/* Consumes the token if it is op or name; *was: it was. */
status jp_skip_op(jparser *p, const char *op, bool *was);
status jp_skip_name(jparser *p, const char *name, bool *was);
status jp_expect_op(jparser *p, const char *op);
/* Consumes a name and stores its index. */
status jp_expect_name(jparser *p, int *id);
status jp_node(jparser *p, jnode_type type, jnode **out);
status jp_push(jparser *p, jnode *list, jnode *item);
status jp_string(jparser *p, const char *s, size_t n, jvalue *out);
status jp_intern(jparser *p, const char *s, size_t n, int *id);

status jp_expression(jparser *p, jnode **out);
/* Parses a filter at its name; *node is the operand before, the filter after. */
status jp_filter(jparser *p, jnode **node);
/* Parses expressions separated by commas, a tuple if there is a comma. */
enum { JP_PARENTHESES = 1, JP_TARGET = 2, JP_CONDITION = 4 };
status jp_tuple(jparser *p, unsigned how, jnode **out);

#endif
