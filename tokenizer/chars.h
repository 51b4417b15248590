/* SPDX-License-Identifier: MIT */
/* UTF-8 text and its characters. */
#ifndef TOKENIZER_CHARS_H
#define TOKENIZER_CHARS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* U+2581, SentencePiece's spelling of a space. */
#define SPACE_MARK "\xe2\x96\x81"

/* Borrowed UTF-8 text, which may contain NUL. */
typedef struct {
    const char *s;
    size_t n;
} utf8_text;

static inline utf8_text utf8_of(const char *s)
{
    return (utf8_text){s, strlen(s)};
}

/* Returns the length in bytes of the valid character at s, 0 if there is none, and its code point in *c. */
int char_at(const char *s, size_t n, int32_t *c);
/* Returns the same for the character that ends before s[end]. */
int char_before(const char *s, size_t end, int32_t *c);
/* Writes c (at most U+10FFFF) as UTF-8 and returns the length. */
int char_put(char *out, int32_t c);
/* True for Unicode White_Space. */
bool is_white_space(int32_t c);
/* True for the characters that Python's str.strip() and Jinja's trim remove (evals.md section 0, WS). */
bool is_python_space(int32_t c);
/* Trims such characters from both ends of *s[0..*n). */
void trim_python(const char **s, size_t *n);
/* Returns the bytes (1..3) of the maximal subpart of an invalid character at s, which Rust's from_utf8_lossy replaces
 * by one U+FFFD. Source: Unicode 15, section 3.9, table 3-8. */
size_t broken_len(const char *s, size_t n);

#endif
