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
} layer_group;

/* Layer groups of a sequence: dense layers, which run `full`; the method's; and those that a draft view reads in
 * another way, whose rows are the method's. */
enum { GROUP_DENSE, GROUP_METHOD, GROUP_DRAFT, GROUPS };

struct attn_seq {
    attn_spec spec, draft; /* draft: as lim.draft points to */
    attn_shape shape;
    attn_limits lim;
    backend *be;
    int64_t length;
    bool *layers[GROUPS];           /* [n_layers]; the first two are complementary */
    layer_group *group[GROUPS];     /* NULL: no layer */
    row_tier *tier;                 /* of the method's rows; NULL: the device's memory */
    tier_counts before, in_prompts; /* of the tier's files, at the start of a forward and by prompts */
    /* u64 [GROUPS][READ_KINDS]: counts of ops since the last prompt; apart where the host holds rows, and of drafts,
     * which nobody asks for */
    buf read;
    int64_t *attended; /* [n_layers] of the current decode step */
    attn_stats stats;  /* but for what ops counted */
    attn_bytes peak;
};

enum { READ_BYTES = READ_KINDS * sizeof(uint64_t) };

static inline attn_view *view_of(const attn_seq *s, int layer)
{
    return &s->group[s->layers[GROUP_DENSE][layer] ? GROUP_DENSE : GROUP_METHOD]->v;
}

/* The view that appends a layer's rows and updates their index. */
static inline attn_view *storing_view(const attn_seq *s, int layer)
{
    return s->layers[GROUP_DRAFT][layer] ? &s->group[GROUP_DRAFT]->v : view_of(s, layer);
}

/* memory.c */
void group_declare(attn_decl *d, const attn_method *m, const attn_spec *s, const attn_shape *shape,
                   const attn_limits *lim, int64_t n, int64_t entries);
/* Adds the bytes of n_layers layers. */
status group_plan(attn_bytes *out, const attn_decl *d, int64_t n_layers, err *e);
/* Allocates what group->d declares, and the store. group->v is set but for these. After a failure group_free releases
 * it. */
status group_open(layer_group *group, row_tier *where, err *e);
void group_free(layer_group *group);
/* Bytes held while a forward of n_new tokens is not yet ended; most: or more, without a download. */
attn_bytes group_held(const layer_group *group, int64_t n_new, bool most);
status group_state(layer_group *group, attn_state *s, err *e);

/* Writes the groups that have layers, in order; returns their number. */
static inline int groups_of(const attn_seq *s, layer_group *out[GROUPS])
{
    int n = 0;
    for (int i = 0; i < GROUPS; i++)
        if (s->group[i]) out[n++] = s->group[i];
    return n;
}

/* The same without draft views. */
static inline int own_groups_of(const attn_seq *s, layer_group *out[GROUPS])
{
    int n = groups_of(s, out);
    return s->group[GROUP_DRAFT] ? n - 1 : n;
}

/* After a forward of n_tok tokens: what is held may be a new peak. */
void seq_keep_peak(attn_seq *s, int64_t n_new);
void seq_count_steps(attn_seq *s, int64_t n);
void seq_prompt_begin(attn_seq *s);
void seq_prompt_end(attn_seq *s);

#endif
