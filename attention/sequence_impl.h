/* SPDX-License-Identifier: MIT */
/* Inside of a sequence. Included by sequence.c, memory.c and forward.c. */
#ifndef ATTENTION_SEQUENCE_IMPL_H
#define ATTENTION_SEQUENCE_IMPL_H

#include "attention/method.h"
#include "attention/tier.h"

/* A hook of the method of a view: its own, else its family's, else NULL. */
#define HOOK(v, name)                                                                                                  \
    ((v)->method->hooks.name ? (v)->method->hooks.name : ((v)->method->family ? (v)->method->family->hooks.name : NULL))

/* Some layers of a sequence under one method, with all the memory that they hold. */
typedef struct {
    attn_view v;
    attn_decl d;        /* as declared at creation */
    int64_t *positions; /* [slots + chunk] for counts of what is kept */
} attn_share;

/* Shares of a sequence: dense layers, which are those of `full`, and the method's; those that a draft reads in another
 * way, whose rows are the method's. */
enum { SHARE_DENSE, SHARE_METHOD, SHARE_DRAFT, SHARES };

struct attn_seq {
    attn_spec spec, draft; /* draft: as lim.draft points to */
    attn_shape shape;
    attn_limits lim;
    backend *be;
    int64_t length;
    bool *layers[SHARES];           /* [n_layers]; the first two are complementary */
    attn_share *share[SHARES];      /* NULL: no layer */
    row_tier *tier;                 /* of the method's rows; NULL: the device's memory */
    tier_counts before, in_prompts; /* of the tier's files, at the start of a forward and by prompts */
    /* u64 [SHARES][READ_KINDS]: counts of ops since the last prompt; apart where the host holds rows, and of drafts,
     * which nobody asks for */
    buf read;
    int64_t *attended; /* [n_layers] of the current decode step */
    attn_stats stats;  /* but for what ops counted */
    attn_bytes peak;
};

enum { READ_BYTES = READ_KINDS * sizeof(uint64_t) };

static inline attn_view *view_of(const attn_seq *s, int layer)
{
    return &s->share[s->layers[SHARE_DENSE][layer] ? SHARE_DENSE : SHARE_METHOD]->v;
}

/* The view that keeps an index of a layer's rows up, and appends them. */
static inline attn_view *keeper_of(const attn_seq *s, int layer)
{
    return s->layers[SHARE_DRAFT][layer] ? &s->share[SHARE_DRAFT]->v : view_of(s, layer);
}

/* memory.c */
void share_declare(attn_decl *d, const attn_method *m, const attn_spec *s, const attn_shape *shape,
                   const attn_limits *lim, int64_t n, int64_t entries);
/* Adds the bytes of n_layers layers. */
status share_plan(attn_bytes *out, const attn_decl *d, int64_t n_layers, err *e);
/* Allocates what share->d declares, and the store. share->v is set but for these. After a failure share_free releases
 * it. */
status share_open(attn_share *share, row_tier *where, err *e);
void share_free(attn_share *share);
/* Bytes held while a forward of n_new tokens is not yet ended; most: or more, without a download. */
attn_bytes share_held(const attn_share *share, int64_t n_new, bool most);
status share_state(attn_share *share, attn_state *s, err *e);

/* Shares that have layers, in order; returns their number. */
static inline int shares_of(const attn_seq *s, attn_share *out[SHARES])
{
    int n = 0;
    for (int i = 0; i < SHARES; i++)
        if (s->share[i]) out[n++] = s->share[i];
    return n;
}

/* The same but for drafts. */
static inline int own_shares_of(const attn_seq *s, attn_share *out[SHARES])
{
    int n = shares_of(s, out);
    return s->share[SHARE_DRAFT] ? n - 1 : n;
}

/* After a forward of n_tok tokens: what is held may be a new peak. */
void seq_keep_peak(attn_seq *s, int64_t n_new);
void seq_count_steps(attn_seq *s, int64_t n);
void seq_prompt_begin(attn_seq *s);
void seq_prompt_end(attn_seq *s);

#endif
