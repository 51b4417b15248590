/* SPDX-License-Identifier: MIT */
/* Chat templates of a model: the default, named ones, and the one that the user selects. */
#ifndef TOKENIZER_CHAT_SET_H
#define TOKENIZER_CHAT_SET_H

#include <jansson.h>
#include <stdbool.h>

#include "kernels/base/err.h"
#include "tokenizer/jinja/jinja.h"

enum { CHAT_TEMPLATES_MAX = 64 };

typedef struct {
    char *name;    /* "default", "tool_use", ... */
    char *from;    /* origin, for messages */
    char *text;    /* source, up to its first NUL */
    jinja *parsed; /* NULL: the text is invalid */
    char *why;     /* error of an invalid text */
} chat_template;

/* Start from {0}. */
typedef struct {
    chat_template *items;
    size_t n, cap;
    const chat_template *selected; /* by the user: an item or `own`; NULL: none */
    chat_template own;             /* a file or a built-in template */
    json_t *tokens;                /* object: variable (bos_token, ...) -> spelling */
    json_t *args;                  /* object of further variables, or NULL */
} chat_set;

/* Parses a template; copies its arguments. An invalid text is an error only where the template is used, so that the
 * model's other functions work. */
status chat_template_parse(chat_template *t, const char *name, const char *from, const char *text, size_t n, err *e);
void chat_template_free(chat_template *t);
/* Reads the text of a template that the user names: a file, a pipe, or standard input ("-"). Free *text with
 * mem_free. */
status chat_template_read(char **text, size_t *n, const char *path, err *e);

void chat_set_free(chat_set *s);
/* Adds the template text[0..n), and replaces one of the same name. */
status chat_set_add(chat_set *s, const char *name, const char *from, const char *text, size_t n, err *e);
/* Adds the templates of `chat_template` in a JSON file: a text, or a list of {name, template}. */
status chat_set_add_json(chat_set *s, const json_t *cfg, const char *file, err *e);
/* Adds the templates of chat_template.jinja and additional_chat_templates/ in dir. */
status chat_set_add_files(chat_set *s, const char *dir, err *e);
const chat_template *chat_set_find(const chat_set *s, const char *name);
/* Returns the template of a conversation: the selected one, else tool_use with tools, else the default; NULL: none. */
const chat_template *chat_set_choose(const chat_set *s, bool tools);
/* Error for a set from which chat_set_choose returns NULL. */
status chat_set_none(const chat_set *s, err *e);

/* chat_builtin.c: returns the text of a built-in template, NULL for an unknown name. *needs: special token without
 * which the template is useless, or NULL. */
const char *chat_builtin(const char *name, const char **needs);

#endif
