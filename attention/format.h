/* SPDX-License-Identifier: MIT */
/* Parameters of quantized stores, for `--kv kivi2:r=128` and for the strategies that are stores. */
#ifndef ATTENTION_FORMAT_H
#define ATTENTION_FORMAT_H

#include "attention/method.h"

/* The first parameter is bits, which `--kv` takes from the store's name. The others are also keys of the store. */
extern const attn_param kv_kivi_params[], kv_logquant_params[];

/* The hook `parse` of a method that is a store and has its parameters; attn_method.kind: a kv_kind. */
status kv_format_own(attn_spec *s, err *e);
/* Returns the index of a method's parameter `key`; -1: none. */
int attn_param_index(const attn_method *m, const char *key);
/* Checks that a model's rows can be stored in the format; ST_UNSUPPORTED. */
status kv_format_check(const kv_format *f, const attn_shape *shape, const char *what, err *e);
/* Parses the value of a parameter. ST_USAGE names `what`, the key and the expected values. */
status attn_param_parse(int64_t *out, const attn_param *p, const char *text, const char *what, err *e);
/* Writes the numbers that are allowed in addition to the words: " or a number from 2 to 9", or "". */
void attn_param_range(const attn_param *p, char out[64]);
/* Writes a value in the form that attn_param_parse reads. */
void attn_param_text(char out[32], const attn_param *p, int64_t value);
/* Returns word i of a list separated by spaces and its length in *n; NULL: no such word. */
const char *attn_param_choice(const char *list, int64_t i, size_t *n);

#endif
