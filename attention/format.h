/* SPDX-License-Identifier: MIT */
/* Parameters of stores with codes, as `--kv kivi2:r=128` and the rows of the table both take them. */
#ifndef ATTENTION_FORMAT_H
#define ATTENTION_FORMAT_H

#include "attention/method.h"

/* Bits first (a store's name gives them), the rest are keys of the store too. */
extern const attn_param kv_kivi_params[], kv_logquant_params[];

/* The parse hook of a method that brings its own store, with that store's parameters; attn_method.kind: a kv_kind. */
status kv_format_own(attn_spec *s, err *e);
/* Index of the parameter `key` of a method; -1: none. */
int attn_param_index(const attn_method *m, const char *key);
/* Checks that a model's rows can be stored in the format; ST_UNSUPPORTED. */
status kv_format_check(const kv_format *f, const attn_shape *shape, const char *what, err *e);
/* The value of a parameter as written; ST_USAGE names `what`, the key and what is expected. */
status attn_param_parse(int64_t *out, const attn_param *p, const char *text, const char *what, err *e);
/* Writes the numbers that a list of words allows in addition: " or a number from 2 to 9", or "". */
void attn_param_range(const attn_param *p, char out[64]);
/* The value as it is written. */
void attn_param_text(char out[32], const attn_param *p, int64_t value);
/* Word number i of a list separated by spaces, *n its length; NULL: there is none. */
const char *attn_param_choice(const char *list, int64_t i, size_t *n);

#endif
