/* SPDX-License-Identifier: MIT */
/* Conversations as prompts: a Jinja chat template renders the messages, and the text becomes ids. Text from messages,
 * tools and arguments never becomes a special token. */
#ifndef TOKENIZER_CHAT_H
#define TOKENIZER_CHAT_H

#include <jansson.h>

#include "tokenizer/tokenizer.h"

/* End of a prompt. */
typedef enum {
    CHAT_CONTINUES, /* a last message from the assistant is continued; otherwise its reply begins */
    CHAT_REPLIES,   /* a reply begins */
    CHAT_ENDS       /* the last message ends */
} chat_end;

/* A conversation. messages is an array of objects with role and content, and whatever else the template reads. */
typedef struct {
    const json_t *messages;
    const json_t *tools; /* array of functions; NULL or empty: none */
    const json_t *args;  /* object of further variables, before those of tokenizer_set_template_args; NULL: none */
    const char *name;    /* as of tokenizer_set_template; NULL: the selected one */
    chat_end end;
    int64_t now; /* time for the template, in seconds since 1970; 0: chat_clock() */
} chat_input;

/* Selects the template of all conversations: the name of a template of the model or of a built-in one, a file, or the
 * text of a template, which contains {{ or {%. ST_USAGE, naming --template, if there is none. NULL: the model's own. */
status tokenizer_set_template(tokenizer *t, const char *name, err *e);
/* Sets the variables that all templates read in addition; copied. NULL: none. */
status tokenizer_set_template_args(tokenizer *t, const json_t *args, err *e);
/* Returns the origin of the selected template, or of the model's own: a file, a key or a built-in name. NULL if the
 * model has none and none is selected. */
const char *tokenizer_chat_template(const tokenizer *t);
/* Returns the text of the template of conversations with or without tools; NULL if there is none. */
const char *tokenizer_chat_text(const tokenizer *t, bool tools);
/* Returns the NULL-terminated list of the built-in templates' names. */
const char *const *chat_template_names(void);

/* Parses a conversation: an array of messages, or an object with messages, tools and further variables. *out is the
 * object {"messages", ...}. name: origin for messages of errors. */
status chat_parse(json_t **out, const char *text, size_t n, const char *name, err *e);
/* Returns the conversation of such an object, from which it borrows. */
chat_input chat_input_of(const json_t *object);

/* A message of text only. */
typedef struct {
    const char *role, *content;
} chat_message;

/* Stores n messages as an array in *out. */
status chat_messages(json_t **out, const chat_message *m, size_t n, err *e);

/* Returns the time that templates read: SOURCE_DATE_EPOCH if it is set, else the current time. */
int64_t chat_clock(void);

/* A rendered conversation. input[i]: 1 if byte i is from messages, tools or arguments, 0 if the template wrote it. */
typedef struct {
    char *text; /* UTF-8 */
    size_t n;
    unsigned char *input;
} chat_text;

void chat_text_free(chat_text *t);
/* Renders a conversation with the generation prompt; tokenizer_encode_marked gives its ids. Errors as chat_encode. */
status chat_render_marked(const tokenizer *t, const chat_input *in, chat_text *out, err *e);

/* Appends the ids of a conversation with the generation prompt. The ids are those of transformers' apply_chat_template,
 * unless the input spells special tokens. Errors: ST_USAGE for messages that the template refuses, in its own words;
 * ST_FORMAT for a faulty template; ST_UNSUPPORTED, naming --template, without a template. */
status chat_encode(const tokenizer *t, const chat_input *in, token_list *out, err *e);
/* Returns the conversation as text, like apply_chat_template. *out is NUL-terminated and freed with mem_free. */
status chat_render(const tokenizer *t, const chat_input *in, char **out, size_t *len, err *e);

#endif
