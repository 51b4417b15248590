/* SPDX-License-Identifier: MIT */
/* What a forward of ParisKV does: its regions, and who of them is encoded, counted and searched. doc/methods.md 8.3. */
#ifndef ATTENTION_PARIS_STEPS_H
#define ATTENTION_PARIS_STEPS_H

#include "attention/paris_index.h"

/* The parameters that regions follow from. */
typedef struct {
    int64_t sink, local, u; /* tokens */
    int64_t full_thr;       /* with fewer visible tokens everything is attended */
    int64_t budget;         /* indexed tokens */
} paris_sizes;

/* Memory of the method. */
typedef struct {
    paris_search search;
    paris_sizes sizes;
    int64_t prompt_end; /* tokens at the end of the last prompt, */
    int64_t *ends;      /* [n_tokens + 1] and when the sequence had so many: in a prompt as if it had ended there */
    int64_t encoded;    /* tokens with codes, */
    int64_t to_encode;  /* and how many follow in this forward */
} paris_memory;

/* Fewer visible tokens are all attended. */
int64_t paris_covers(const paris_sizes *s);
/* Goes back to n tokens: the codes of the first n are counted now, while they are still there. */
void paris_forget(attn_view *v, int64_t n);

void paris_begin(attn_view *v, const attn_part *p);
void paris_append(const attn_turn *t, size_t n, int layer);
void paris_select(const attn_turn *t, size_t n, int layer);
void paris_layer_end(attn_view *v, const attn_part *p, int layer);
void paris_end(attn_view *v, const attn_part *p);

#endif
