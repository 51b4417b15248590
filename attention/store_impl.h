/* SPDX-License-Identifier: MIT */
/* Inside of stores with codes. Included by store*.c and the store's test. */
#ifndef ATTENTION_STORE_IMPL_H
#define ATTENTION_STORE_IMPL_H

#include "attention/store.h"
#include "kernels/ops_codes.h"

enum { KV_K, KV_V, KV_HALVES, KV_RUN = 64 };

/* Which tokens are exact is a matter of the host alone: it follows from the count of tokens. A token has
 * an exact row, the lowest free one, until both its K and its V are quantized; the step after that
 * may use the row again. While nothing is quantized, row = slot. */
typedef struct kv_coded kv_coded;
struct kv_coded {
    backend *be;
    kv_format f;
    int64_t cap, chunk;     /* slots; most tokens of a forward */
    int64_t n_rows;         /* exact rows that there are */
    int64_t n;              /* tokens put */
    int64_t n_settled;      /* tokens that the rule has seen: not those of a prompt under way */
    int64_t prompt_done;    /* of the forward under way */
    int32_t *at[KV_HALVES]; /* [cap] as kv_codes.k_at and v_at, which at_buf holds */
    buf at_buf[KV_HALVES];
    bool *used;                 /* [n_rows] exact rows */
    int64_t lowest;             /* none below it is free */
    buf slots;                  /* i64 [chunk] rows of this forward's tokens */
    int64_t n_coded[KV_HALVES]; /* tokens in codes = code rows taken */
    int32_t *due[KV_HALVES];    /* [cap] tokens that become codes in this forward, in this order */
    int64_t n_due[KV_HALVES];
    buf src[KV_HALVES]; /* i64 [cap] their exact rows */
    int64_t *host;      /* [cap] for uploads */
    unsigned char *halves; /* [cap] of find_runs: halves of tokens in an exact row; marks of checks */
    /* Runs of exact rows that a prompt's end leaves free, long enough to be given back. */
    struct {
        int64_t from, to;
    } *run; /* [n_rows / KV_RUN + 1] */
    int64_t n_runs;
    bool *mark;         /* [groups] of kv_coded_bytes_of */
    /* LOGQUANT: exact tokens of the list, ascending, and those that left it (methods.md 11.3). */
    int32_t *list, *staged; /* [3 W], [W + group] */
    int64_t n_list, n_staged;
};

/* Rows of the host's memory that the device holds too (ops_tier.h), of all layers that a state serves; cap: slots. */
typedef struct kv_nears kv_nears;
status kv_nears_create(kv_nears **out, const attn_ctx *c, size_t n_heads, int64_t cap, err *e);
void kv_nears_free(kv_nears *s);
const kv_near *kv_nears_layer(const kv_nears *s, int layer);

kv_coded *kv_store_coded(const kv_store *s); /* NULL: all rows are exact */
/* Tokens of a quantization group of K. */
int64_t kv_code_group(const kv_format *f);
/* Exact rows that n slots of a store with codes ever need at once: a prompt that waits, and what stays exact behind it. */
int64_t kv_exact_rows(const kv_format *f, int64_t n);
/* The codes of one layer without its buffers: what sizes follow from. */
kv_codes kv_codes_of(const kv_format *f, int64_t cap);
/* Bytes of K or V of n tokens of which n_coded are in codes, in one region. */
size_t kv_half_bytes(const kv_format *f, size_t head_dim, int half, int64_t n, int64_t n_coded);

status kv_coded_create(kv_coded **out, const attn_ctx *c, int64_t cap, err *e);
void kv_coded_free(kv_coded *s);
void kv_coded_reset(kv_coded *s);
void kv_coded_begin(kv_coded *s, const attn_ctx *c, const attn_part *p);
void kv_coded_layer_end(kv_coded *s, const kv_rows *rows);
void kv_coded_end(kv_coded *s);
/* *n_rows: exact rows that may hold something. */
status kv_coded_state(kv_coded *s, attn_state *v, int64_t n, int64_t *n_rows, err *e);
bool kv_coded_rewind(kv_coded *s, int64_t n);
size_t kv_coded_bytes_of(const kv_coded *s, size_t head_dim, const int64_t *pos, int64_t n);

/* store_rules.c: adds to `due` what is quantized once the sequence has n tokens, all settled. */
void kv_rule_due(kv_coded *s, int64_t n);
/* Forgets the tokens from n on, none of which is quantized. */
void kv_rule_rewind(kv_coded *s, int64_t n);
/* Whether what is loaded could come from the rule: n, at, n_coded, list and staged. */
status kv_rule_check(kv_coded *s, err *e);
/* Room of list and staged; 0 where the rule needs none. */
size_t kv_rule_list(const kv_format *f);
size_t kv_rule_staged(const kv_format *f);

#endif
