/* SPDX-License-Identifier: MIT */
/* Rows that an evictor drops go to a cheaper store. doc/methods.md section 14a. */
#ifndef ATTENTION_DEMOTE_H
#define ATTENTION_DEMOTE_H

#include "attention/method.h"
#include "kernels/ops_codes.h"
#include "kernels/ops_evict.h"
#include "kernels/ops_select.h"
#include "kernels/ops_token.h"

enum { DEMOTE_NONE, DEMOTE_TOKEN2, DEMOTE_TOKEN4, DEMOTE_F16, DEMOTE_KIVI2, DEMOTE_KIVI4 };

/* Parameters: treatment of dropped rows, and which of them are attended. */
#define DEMOTE_PARAM                                                                                                   \
    "demote", "none token2 token4 f16 kivi2 kivi4",                                                                    \
        "what is dropped is kept: in codes of 2 or 4 bits for half a row of a token and head, as f16, or in KIVI's "   \
        "codes for groups of tokens",                                                                                  \
        0, 0, DEMOTE_KIVI4
#define DEMOTE_G_PARAM                                                                                                 \
    "demote_g", NULL,                                                                                                  \
        "kivi2, kivi4: tokens (keys) and channels (values) of a group; tokens leave a list so many at a time, and "    \
        "those before them wait exactly",                                                                              \
        32, 1, 1024
#define RECALL_PARAM                                                                                                   \
    "recall", attn_or_all,                                                                                             \
        "demoted rows that a step attends: the best of each kv head by their keys as they are kept", ATTN_ALL, 0,      \
        1 << 30

typedef struct {
    int how;        /* DEMOTE_* */
    int64_t recall; /* as many are attended; ATTN_ALL */
    int64_t group;  /* as many rows of a list go at a time */
    bool in_order;  /* tokens go in the order of their positions, which nothing needs to hold then */
} demote_rule;

/* A member of an evictor's struct. */
typedef struct {
    demote_rule rule;
    size_t n_lists; /* of a layer */
    int64_t origin; /* in_order: position of the first row */
    int64_t cap;    /* rows of a list */
    buf *k, *v;     /* [n_layers] codes, or rows of f16 */
    buf *k_pair, *v_pair;
    buf *at;       /* [n_layers] i32 [n_lists][cap] positions, in the order of demotion; NULL: in_order */
    buf slot;      /* i32 [n_lists][cap] where the rows at work lie */
    buf map;       /* i32 [cap] kv_codes.k_at: all are in codes */
    int32_t *host; /* the same */
    kv_rows *rows; /* [n_layers] made of these */
    /* [n_layers] f32 [n_kv_heads][head_dim]: codes are those of keys times it, and queries are divided by it; NULL: as
     * they are. Declared by a method that fills it before the first row is demoted, and that recalls all. */
    buf *factor;
    /* recall: f32 [n_heads][cap] scores, and behind them [regions][cap] votes; i32 [regions][recalled] rows that are
     * chosen; i64 [regions][2]. A region is that of a kv head, or of a query head that has its own. */
    buf score, idx, range;
} demoted;

/* Returns the rule that the parameters describe. */
demote_rule demote_rule_of(const attn_spec *s);
/* Checks that a configuration can demote, as attn_method.check: exact rows only, in layers without a window. */
status demote_check(const attn_spec *s, demote_rule r, const attn_shape *shape, err *e);
/* d->lists, heads and entries are set. at: the member's offset; cap: rows of a list. */
void demote_declare(attn_decl *d, size_t at, demote_rule r, int64_t cap);
void demote_reset(demoted *m, const attn_view *v, demote_rule r, size_t n_lists, int64_t cap);
/* Returns the buffers that receive what a pruning of a layer drops; `first` rows are demoted already. */
void demote_listen(const demoted *m, int layer, int64_t first, keep_rule *r);
/* Encodes the n rows of each list that a pruning dropped. */
void demote_take(const demoted *m, const attn_view *v, int layer, int64_t first, int64_t n);
/* Adds to what a sequence attends those of its n demoted rows that are recalled. A prompt recalls all or none. */
void demote_select(const demoted *m, const attn_turn *t, int layer, int64_t n);
/* Reads n positions of a list, i32 at `at`. */
void demote_download(const attn_view *v, buf at, int64_t n, int64_t *out);

#endif
