/* SPDX-License-Identifier: MIT */
/* Strings and numbers of JSON, byte by byte. Private to grammar/. */
#ifndef GRAMMAR_LEXICAL_H
#define GRAMMAR_LEXICAL_H

#include "grammar/program.h"

/* Effect of a byte on a string. */
typedef enum {
    STRING_REFUSED,
    STRING_GOES_ON, /* within a character */
    STRING_CHARACTER,
    STRING_CLOSED
} string_effect;

/* Position in a string after its opening quote: 0 is before a character. */
enum { STRING_NEXT = 0, STRING_ESCAPE = 1 };

/* Moves a position by a byte. Refuses what is not UTF-8, control characters, \u0000 and single surrogates. */
string_effect string_step(uint8_t *text, uint16_t *aux, unsigned char byte);

/* A number so far. */
typedef struct {
    uint8_t part; /* 0: nothing */
    bool negative;
    uint8_t digits, fraction; /* number of digits, and of those after the point */
    uint64_t value;           /* digits without the point, of a number with bounds */
} number_state;

/* Adds a byte. False if no number between the bounds begins so. */
bool number_step(const node *p, number_state *s, unsigned char byte);
/* True if the number may end. */
bool number_may_end(const node *p, const number_state *s);

#endif
