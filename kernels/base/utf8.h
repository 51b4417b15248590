/* SPDX-License-Identifier: MIT */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>

/* Returns the length in bytes (1..4) of the valid UTF-8 character at s, at most n bytes, or 0 if there is none
 * (overlong forms, surrogates and values above U+10FFFF are invalid). Reading stops at the first byte that does not
 * fit, so a NUL-terminated s needs no exact n. */
int utf8_valid_len(const unsigned char *s, size_t n);

/* Returns the number of bytes (0..3) at the end of s[0..n) that are the start of an incomplete character. */
size_t utf8_partial_tail(const unsigned char *s, size_t n);

#endif
