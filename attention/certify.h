/* SPDX-License-Identifier: MIT */
/* Selections as long as it takes to certify that no query head misses more than a share of its attention
 * (ops_certify.h). Inside attention/ only. doc/methods.md 7e. */
#ifndef ATTENTION_CERTIFY_H
#define ATTENTION_CERTIFY_H

#include "attention/method.h"
#include "kernels/ops_certify.h"

#define CERTIFY_PARAM                                                                                                  \
    "certify", attn_fraction,                                                                                          \
        "share of its attention that a query head is to miss at most, for sure; as many tokens as that takes, at "     \
        "most the budget that the strategy names itself; off: budget tokens",                                          \
        0, 0, ATTN_FRACTION - 1

/* Embedded in a method's family; all zero where the parameter is off. */
typedef struct attn_certify {
    float eps; /* 0: off */
    buf error; /* f32 [n_heads][places], as the scores of retrieve */
    buf bound; /* f32 [n_layers][n_heads] */
    buf counts;
} attn_certify;

/* The bound that a value of the parameter asks for: not above it. 0: off. */
float certify_eps(int64_t value);
/* Checks strategy and store; p: the strategy has p too. ST_USAGE. */
status certify_check(const attn_spec *s, float eps, gqa_mode gqa, bool p, err *e);
/* Where eps > 0. at: offset of the attn_certify, places: columns of a head's scores. */
void certify_declare(attn_decl *d, size_t at, int64_t places);
void certify_reset(attn_certify *c, const attn_view *v, float eps);
/* What was counted since the sequence was reset. */
attn_certified certify_counted(const attn_certify *c, backend *be);

#endif
