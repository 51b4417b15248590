/* SPDX-License-Identifier: MIT */
/* Demotion: rows that an evicting method drops move to a cheaper store. doc/methods.md section 14a. */
#ifndef ATTENTION_DEMOTE_H
#define ATTENTION_DEMOTE_H

#include "attention/method.h"
#include "kernels/ops_codes.h"
#include "kernels/ops_evict.h"
#include "kernels/ops_select.h"
#include "kernels/ops_token.h"

enum { DEMOTE_NONE, DEMOTE_TOKEN2, DEMOTE_TOKEN4, DEMOTE_F16, DEMOTE_KIVI2, DEMOTE_KIVI4 };

/* Parameters: format of dropped rows, and number of them that are attended. */
#define DEMOTE_PARAM                                                                                                   \
    "demote", "none token2 token4 f16 kivi2 kivi4",                                                                    \
        "keep dropped tokens: in 2 or 4 bits per half row of a head, as f16, or in KIVI's groups of tokens", 0, 0,     \
        DEMOTE_KIVI4
#define DEMOTE_G_PARAM                                                                                                 \
    "demote_g", NULL, "kivi2, kivi4: group size (tokens for keys, channels for values); groups are demoted whole", 32, \
        1, 1024
#define RECALL_PARAM                                                                                                   \
    "recall", attn_or_all, "demoted rows that a step attends: the best of each KV head by their stored keys",          \
        ATTN_ALL, 0, 1 << 30

typedef struct {
    int how;        /* DEMOTE_* */
    int64_t recall; /* demoted rows that a step attends; ATTN_ALL */
    int64_t group;  /* rows of a list that are demoted at a time */
    bool in_order;  /* tokens are demoted in the order of positions; no positions are stored */
} demote_rule;

/* Member of an evicting method's struct. */
typedef struct {
    demote_rule rule;
    size_t n_lists; /* lists of a layer */
    int64_t origin; /* in_order: position of the first demoted row */
    int64_t cap;    /* most rows of a list */
    buf *k, *v;     /* [n_layers] quantized rows, or rows of f16 */
    buf *k_pair, *v_pair;
    buf *at;       /* [n_layers] i32 [n_lists][cap] positions, in the order of demotion; NULL: in_order */
    buf slot;      /* i32 [n_lists][cap] slots of the rows to demote in the current layer */
    buf map;       /* i32 [cap] kv_codes.k_at: all rows are quantized */
    int32_t *host; /* host copy of map */
    kv_rows *rows; /* [n_layers] views of these buffers */
    /* [n_layers] f32 [n_kv_heads][head_dim]: channel factors. Keys are multiplied by them before quantization, and
     * queries are divided by them. NULL: none. A method that declares it fills it before the first demotion and
     * recalls all rows. */
    buf *factor;
    /* recall: f32 [n_heads][cap] scores followed by [regions][cap] votes; i32 [regions][min(recall, cap)] selected
     * rows; i64 [regions][2]. There is one region per KV head, or per query head with GQA_PER_Q. */
    buf score, idx, range;
} demoted;

/* Returns the rule that the parameters describe. */
demote_rule demote_rule_of(const attn_spec *s);
/* Checks that a configuration can demote, as attn_method.check: float rows, layers without a sliding window. */
status demote_check(const attn_spec *s, demote_rule r, const attn_shape *shape, err *e);
/* Declares the buffers. d->lists, heads and entries are set. at: offset of the member; cap: most rows of a list. */
void demote_declare(attn_decl *d, size_t at, demote_rule r, int64_t cap);
void demote_reset(demoted *m, const attn_view *v, demote_rule r, size_t n_lists, int64_t cap);
/* Sets in *r the buffers that receive the rows dropped by pruning a layer. first: rows demoted before. */
void demote_listen(const demoted *m, int layer, int64_t first, keep_rule *r);
/* Encodes the n rows of each list that pruning dropped. */
void demote_take(const demoted *m, const attn_view *v, int layer, int64_t first, int64_t n);
/* Adds a segment with the recalled ones of n demoted rows to a selection. A prompt recalls all or none. */
void demote_select(const demoted *m, const attn_task *t, int layer, int64_t n);
/* Downloads n i32 positions from `at`. */
void demote_download(const attn_view *v, buf at, int64_t n, int64_t *out);

#endif
