/* SPDX-License-Identifier: MIT */
/* State of the parser of replies, and the steps within a call. */
#ifndef TOKENIZER_CALL_STATE_H
#define TOKENIZER_CALL_STATE_H

#include "tokenizer/call_parse.h"
#include "tokenizer/call_tags.h"

enum { FIELD_MAX = 256, AFTER_VALUE_MAX = 256 };

/* One byte, or the spelling of a special token. */
typedef struct {
    const char *s;
    size_t n;
    bool special;
} symbol;

typedef enum { IN_START, IN_THINKING, IN_THOUGHT, IN_TEXT, IN_CALL, IN_FAULT } parser_state;

struct call_parser {
    call_rules r;
    call_sink *sink;
    void *ctx;
    parser_state state;
    call_event what; /* kind of `ready` */
    call_text ready; /* text of one kind that the next flush gives to the sink */
    call_text held;  /* white space and a possible marker, or all text of a call that has not begun */
    size_t n_white;  /* leading white space in `held` */
    bool fresh;      /* IN_THINKING: nothing was read yet */
    bool any_text;   /* content was output */
    int n_calls, n_bad;
    /* a call */
    int step;
    size_t at;      /* matched bytes of the step's markers; IN_START: of the opening marker */
    unsigned alive; /* markers that still match */
    bool must_know; /* the name must be that of a tool */
    bool begun;     /* CALL_BEGIN was output, CALL_END not yet */
    bool taken;     /* the marker's first call has begun: nothing is taken back */
    bool any_key;   /* a parameter was output */
    bool quoted;    /* the value is a string that streams */
    bool tagged;    /* OP_BARE: the string ends at a marker */
    bool bare;      /* OP_BARE: the key ends at a colon */
    size_t n_args;
    call_text field, name, id, key, value, keys;
    call_object object;
    json_scan scan;
};

typedef enum { MATCH_NO, MATCH_PART, MATCH_FULL } match;

typedef enum { STEP_BAD, STEP_MORE, STEP_AGAIN } step_result; /* STEP_AGAIN: the next step takes the symbol */

/* Gives the text that is ready to the sink. */
status parser_flush(call_parser *p, err *e);
/* Adds text of one kind to what is ready. */
status parser_put(call_parser *p, call_event what, const char *s, size_t n, err *e);
/* Ends the open call, if there is one. */
status parser_end_call(call_parser *p, err *e);
bool symbol_is_white(const symbol *y);
/* True if a marker is a special token of the vocabulary. */
bool mark_is_special(const call_parser *p, const char *mark);
/* Returns the length of the special token that is spelled at the beginning of a text; 0: none. */
size_t mark_part(const call_parser *p, const char *text);
/* True if a symbol is the special token of a marker. */
bool mark_is_token(const call_parser *p, const char *mark, const symbol *y);
/* Compares text with the beginning of a marker that is no special token. */
match mark_match(const call_parser *p, const char *mark, const char *s, size_t n);
/* Begins a step of the format. */
void parser_enter(call_parser *p, int step);
/* Gives a symbol to the current step. */
status parser_step(call_parser *p, const symbol *y, step_result *what, err *e);
/* Ends the parameters of a call. *good: its name is acceptable. */
status parser_close_call(call_parser *p, bool *good, err *e);
/* Ends a call that the end of the reply interrupts. */
status parser_cut_call(call_parser *p, err *e);

#endif
