/* SPDX-License-Identifier: MIT */
/* Internals of a sequence, for sequence.c, memory.c and forward.c. */
#ifndef ATTENTION_SEQUENCE_IMPL_H
#define ATTENTION_SEQUENCE_IMPL_H

#include "attention/method.h"
#include "attention/tier.h"

/* A hook of a view's method, or of its family, or NULL. */
#define HOOK(v, name)                                                                                                  \
    ((v)->method->hooks.name ? (v)->method->hooks.name : ((v)->method->family ? (v)->method->family->hooks.name : NULL))

/* Layer group: layers of a sequence under one method, with all their memory. */
typedef struct {
    attn_view v;
    attn_decl d;        /* declaration at creation */
    int64_t *positions; /* [slots + chunk] scratch, for counts of kept rows */
} layer_group;

/* Layer groups of a sequence: dense layers, which run `full`; the method's layers; layers of a draft view, which reads
 * the method's rows. */
enum { GROUP_DENSE, GROUP_METHOD, GROUP_DRAFT, GROUPS };

struct attn_seq {
    attn_spec spec, draft; /* draft: copy that lim.draft points to */
    attn_shape shape;
    attn_limits lim;
    backend *be;
    int64_t length;
    bool tiles;                     /* attn_job.tiles of decode steps */
    bool *layers[GROUPS];           /* [n_layers]; the first two are complementary */
    layer_group *group[GROUPS];     /* NULL: no layer */
    row_tier *tier;                 /* tier of the method's rows; NULL: the device's memory */
    tier_counts before, in_prompts; /* traffic of the tier's files at the start of a forward, and by prompts */
    /* u64 [GROUPS][READ_KINDS]: counts by ops since the last prompt. Rows in host memory and drafts are counted
     * separately; those of drafts are not reported. */
    buf read;
    int64_t *attended; /* [n_layers] tokens attended in the current decode step */
    attn_stats stats;  /* without the counts by ops */
    attn_bytes peak;
};

enum { READ_BYTES = READ_KINDS * sizeof(uint64_t) };

static inline attn_view *view_of(const attn_seq *s, int layer)
{
    return &s->group[s->layers[GROUP_DENSE][layer] ? GROUP_DENSE : GROUP_METHOD]->v;
}

/* Returns the view that appends a layer's rows and updates the index. */
static inline attn_view *storing_view(const attn_seq *s, int layer)
{
    return s->layers[GROUP_DRAFT][layer] ? &s->group[GROUP_DRAFT]->v : view_of(s, layer);
}

/* memory.c */
/* Runs the hooks `declare` for n tokens of which evicting methods keep `entries` per list. */
void group_declare(attn_decl *d, const attn_method *m, const attn_spec *s, const attn_shape *shape,
                   const attn_limits *lim, int64_t n, int64_t entries);
/* Adds the planned bytes of n_layers layers. */
status group_plan(attn_bytes *out, const attn_decl *d, int64_t n_layers, err *e);
/* Allocates the buffers of group->d and the store. The other fields of group->v are set. After a failure group_free
 * releases everything. */
status group_open(layer_group *group, row_tier *where, err *e);
void group_free(layer_group *group);
/* Returns the bytes held before a forward of n_new tokens ends. most: an upper bound, without a download. */
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

/* Writes the groups that have layers, without a draft view; returns their number. */
static inline int own_groups_of(const attn_seq *s, layer_group *out[GROUPS])
{
    int n = groups_of(s, out);
    return s->group[GROUP_DRAFT] ? n - 1 : n;
}

/* Updates the peak, with n_new tokens of a forward that has not ended. */
void seq_keep_peak(attn_seq *s, int64_t n_new);
void seq_count_steps(attn_seq *s, int64_t n);
/* Keep reads and traffic of prompts out of the counts of decode steps. */
void seq_prompt_begin(attn_seq *s);
void seq_prompt_end(attn_seq *s);

#endif
