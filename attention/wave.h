/* SPDX-License-Identifier: MIT */
/* RetroInfer's wave index of one sequence: clusters of similar keys among the old tokens of each layer. What is
 * clustered follows from two numbers, the same in all layers; slots are positions. doc/methods.md 7c.3. */
#ifndef ATTENTION_WAVE_H
#define ATTENTION_WAVE_H

#include "attention/method.h"
#include "kernels/ops_cluster.h"

typedef struct {
    int64_t sink, local;   /* the first tokens, and the newest, are in no cluster */
    int64_t size, segment; /* tokens of a cluster on average, and of a prompt that are trained together */
    int64_t update;        /* tokens behind the prompt that become clusters together, a multiple of size */
    int64_t iters;
} wave_rule;

/* prompt: tokens at its end, or sink + local where none was clustered as a whole; built: updates behind it. */
typedef struct {
    int64_t prompt, built;
} wave_progress;

/* Clusters then; the first token behind those that are in them; most clusters of n tokens, wherever prompts ended. */
int64_t wave_clusters(const wave_rule *r, wave_progress p);
int64_t wave_end(const wave_rule *r, wave_progress p);
int64_t wave_most(const wave_rule *r, int64_t n);

/* A member of the method's struct. */
typedef struct {
    wave_rule rule;
    wave_progress at;
    buf *mean_k, *mean_v, *start, *member; /* [n_layers] of cluster_index, */
    cluster_index *index;                  /* which they make up */
    buf less, centroid, code;              /* k-means: f32 [n_kv_heads][head_dim]; the same by cluster; i32 by token */
} wave;

/* at: offset of the wave. */
void wave_declare(attn_decl *d, size_t at, const wave_rule *r);
void wave_open(const attn_view *v, wave *w, const wave_rule *r); /* in reset */
/* After a forward: a prompt is clustered at its end, as a whole if nothing is yet and it is long enough. */
wave_progress wave_after(const attn_view *v, const wave *w, const attn_part *p);
/* Makes the clusters that are missing in a layer until then, from rows that the store holds. */
void wave_grow(const attn_view *v, const wave *w, int layer, wave_progress next);
/* Drops what holds tokens from n on. */
void wave_cut(wave *w, int64_t n);
/* Walks over the numbers and the declared buffers, and checks lists. */
status wave_walk(attn_view *v, wave *w, attn_state *s, err *e);

/* Work space of choices; room for the clusters of the most tokens. */
typedef struct {
    int64_t est;          /* percent of the clusters that are estimated by their means */
    int64_t most;         /* tokens of a list, sinks among them */
    buf score, key, bits; /* f32 [n_heads][clusters], then [n_kv_heads]; cluster_choice has the rest */
    buf idx, ranges;      /* ranges [n_layers] */
    buf group, groups, bias;
} wave_search;

/* at: offset of the wave_search, of which est and most are told. */
void wave_search_declare(attn_decl *d, size_t at, const wave_rule *r, const wave_search *f);

/* A step of one sequence, in which the best clusters may hold k tokens. */
typedef struct {
    const attn_turn *t;
    const wave *w;
    const wave_search *f;
    int64_t k;
} wave_step;

/* Says what n of them attend. */
void wave_find(const wave_step *s, size_t n, int layer);

#endif
