/* SPDX-License-Identifier: MIT */
/* Certified selections: lists grow until no query head misses more than a given fraction of its attention
 * (ops_certify.h). Internal to attention/. doc/methods.md 7e. */
#ifndef ATTENTION_CERTIFY_H
#define ATTENTION_CERTIFY_H

#include "attention/method.h"
#include "kernels/ops_certify.h"

#define CERTIFY_PARAM                                                                                                  \
    "certify", attn_fraction,                                                                                          \
        "fraction of attention that each head misses at most, certified; limited only by an explicit budget", 0, 0,    \
        ATTN_FRACTION - 1

/* Member of a family's state; all zero if the parameter is off. */
typedef struct attn_certify {
    float eps; /* 0: off */
    buf error; /* f32 [n_heads][columns], laid out like retrieve.score */
    buf bound; /* f32 [n_layers][n_heads] */
    buf counts;
} attn_certify;

/* Returns the bound for a value of the parameter, rounded down; 0: off. */
float certify_eps(int64_t value);
/* Checks strategy and store; p: the parameter p is also set. ST_USAGE. */
status certify_check(const attn_spec *s, float eps, gqa_mode gqa, bool p, err *e);
/* Declares the buffers, for eps > 0. at: offset of the attn_certify; columns: scores per head. */
void certify_declare(attn_decl *d, size_t at, int64_t columns);
void certify_reset(attn_certify *c, const attn_view *v, float eps);
/* Returns the counts since the sequence was reset. */
attn_certified certify_counted(const attn_certify *c, backend *be);

#endif
