/* SPDX-License-Identifier: MIT */
/* UTF-8 text and its characters. */
#ifndef TOKENIZER_CHARS_H
#define TOKENIZER_CHARS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Borrowed UTF-8 text, which may contain NUL. */
typedef struct {
    const char *s;
    size_t n;
} utf8_text;

static inline utf8_text utf8_of(const char *s)
{
    return (utf8_text){s, strlen(s)};
}

/* Length in bytes of the valid character at s and its code point; 0 if there is none. */
int char_at(const char *s, size_t n, int32_t *c);
/* The same for the character that ends before s[end]. */
int char_before(const char *s, size_t end, int32_t *c);
/* Writes c (at most U+10FFFF) as UTF-8, returns the length. */
int char_put(char *out, int32_t c);
/* Unicode White_Space. */
bool is_white_space(int32_t c);
/* What Python's str.strip() removes (evals.md section 0, WS), which Jinja's trim uses. */
bool is_python_space(int32_t c);
/* Trims such characters off both ends of *s[0..*n). */
void trim_python(const char **s, size_t *n);
/* Bytes of the maximal subpart of a character at s, where no valid one starts (1..3): what one
 * U+FFFD stands for in Rust's from_utf8_lossy. Source: Unicode 15, section 3.9, table 3-8. */
size_t broken_len(const char *s, size_t n);

#endif
