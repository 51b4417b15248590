/* SPDX-License-Identifier: MIT */
/* Formats in which models write tool calls, one row each. Sources: published chat templates of the model families. */
#ifndef TOKENIZER_CALL_FORMAT_H
#define TOKENIZER_CALL_FORMAT_H

#include <stdbool.h>

/* Steps of the text after the opening marker of a call. */
typedef enum {
    OP_END,    /* the text ends */
    OP_WHITE,  /* white space, or nothing */
    OP_MARK,   /* one of two markers; goes to its next step */
    OP_FORK,   /* an object goes to next[0], other text to next[1] */
    OP_OBJECT, /* JSON object with name and arguments */
    OP_ARGS,   /* JSON object of the arguments */
    OP_NAME,   /* name of a function, up to a marker */
    OP_PATH,   /* functions.NAME:NUMBER, which is the id, up to a marker */
    OP_ID,     /* id of a call, up to a marker */
    OP_KEY,    /* name of a parameter, up to a marker */
    OP_VALUE,  /* value of a parameter, up to `until` and, after white space, a marker */
    OP_CLOSE,  /* end of the parameters */
    OP_BARE,   /* object of JSON after its brace, with bare keys and with a marker for the quotes of strings */
    OP_PYTHON  /* keyword arguments of a Python call whose values are strings, up to its parenthesis */
} call_op;

enum { CALL_STEPS = 12 };

typedef struct {
    call_op op;
    const char *mark[2];
    int next[2]; /* steps after the markers; other steps continue with the next one */
    const char *until;
    unsigned types; /* of a value, as in call_type; 0: those of the schema */
} call_step;

/* Texts of calls that are generated under a grammar. Calls: first, then one or more of before NAME after ARGS end, with
 * the separator in between, then last. ARGS is JSON, or parameters as tags: key NAME value TEXT until, or, if `json` is
 * not NULL, also key NAME json JSON until. `number` and the number of
 * the call follow NAME. NULL: empty, or no number. */
typedef struct {
    const char *first, *before, *after, *end, *separator, *last;
    const char *number;
    const char *key, *value, *until, *json; /* key NULL: the arguments are JSON */
    bool one;                               /* no second call */
} call_writing;

typedef struct {
    const char *name;       /* in --tools and messages */
    const char *marks[3];   /* texts that a chat template of this format contains */
    const char *without[2]; /* texts that it does not contain */
    const char *open;       /* marker before a call; the whole reply is the call if `whole` */
    const char *close;      /* end of a faulty call; NULL: the next opening marker */
    const char *bare;       /* text that begins a call of a known function at the start of a line without `open` */
    bool whole;             /* a call is the whole reply, and only names of known functions count */
    bool id_last;           /* the id follows the arguments */
    call_writing write;
    int after_open, after_bare;
    call_step steps[CALL_STEPS];
} call_format;

/* Formats in the order of recognition; a row without a name ends the table. */
extern const call_format call_formats[];
/* Returns the format of a name, or NULL. */
const call_format *call_format_named(const char *name);
/* True if the text of a chat template has the marks of a format. */
bool call_format_marked(const call_format *f, const char *text);

#endif
