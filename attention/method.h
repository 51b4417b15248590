/* SPDX-License-Identifier: MIT */
/* What a row of the strategy table implements. Included by attention/ alone.
 *
 * A method writes what is particular to it. The composition (sequence.c, forward.c) owns the store, its place, the
 * dense layers, and every buffer that a method declares: it plans, allocates, counts, saves, loads and frees them. A
 * hook that is NULL does what the method's family does, and where that is NULL too, what `full` does: keep and attend
 * everything. */
#ifndef ATTENTION_METHOD_H
#define ATTENTION_METHOD_H

#include "attention/reuse.h"
#include "attention/sequence.h"
#include "attention/state.h"
#include "attention/store.h"

enum { ATTN_MAX_SEGS = 4 };

/* Families of ops as bits of a set; a backend may lack any of them (ops.h). */
#define ATTN_FAMILIES(F)       OP_FAMILIES(F) F(tier, , ) F(host, , ) F(certify, , )
#define FAMILY_BIT(name, o, t) FAMILY_##name,
#define USES(name)             (1u << FAMILY_##name)
enum { ATTN_FAMILIES(FAMILY_BIT) };

/* ---- buffers ---- */

/* Filled by the hook `declare`: of the family first, then of the method. */
typedef struct {
    const attn_spec *spec;
    const attn_shape *shape;
    const attn_limits *lim;
    int64_t n;       /* tokens that the sequence holds */
    int64_t entries; /* of them those that an evicting method still keeps, in each list */
    /* To fill. */
    state_decl buffers;
    int64_t slots;        /* rows of a layer's store; as given: a row for each token */
    size_t heads;         /* regions of the store; as given: kv heads */
    size_t lists;         /* lists of kept rows a layer, for `kept`; as given: 1 */
    size_t choose_lists;  /* the largest choice of a step: lists and items; 0: no choice */
    int64_t choose_items; /* as given: 0 */
    int64_t window;       /* attn_view.window; as given: 0 */
} attn_decl;

/* Adds a buffer of one region of `bytes` bytes. */
void decl_bytes(attn_decl *d, mem_kind kind, size_t at, const char *name, size_t bytes);
/* The same for each layer. */
void decl_layers(attn_decl *d, mem_kind kind, size_t at, const char *name, size_t bytes);
/* Adds scratch for n items. */
void decl_scratch(attn_decl *d, size_t at, const char *name, size_t item, int64_t n);
/* Adds, for each layer, regions that grow with the tokens. */
void decl_regions(attn_decl *d, mem_kind kind, size_t at, const char *name, size_t regions, size_t item, int64_t cap,
                  int64_t used);

/* ---- what a method sees of a sequence ---- */

typedef struct {
    const attn_method *method;
    const attn_spec *spec;
    const attn_shape *shape;
    const attn_limits *lim;
    const bool *layers; /* [n_layers]: those that this method serves, the others are dense (or the other way round) */
    backend *be;
    kv_store *store;
    buf read;          /* u64 [READ_KINDS]: what ops count */
    int64_t length;    /* tokens before this forward */
    int64_t stored;    /* entries of each list of a layer, where `kept` is not NULL; with windows at most, and */
    bool listed;       /* lists may then differ */
    bool draft_view;   /* drafts over the rows of a strategy that keeps all: its store, slots are positions */
    bool observes;     /* set in begin: observe is called in this forward */
    int64_t window;    /* tokens of a prompt window, as declared: append, select and observe then run window by window
                        * inside a layer, and chunks are multiples of it; 0: the whole forward is one window */
    int64_t *attended; /* [n_layers] by the decode step at hand */
    void *own;         /* the method's struct of attn_method.size bytes; the family's, if any, is its first member */
} attn_view;

/* Value of a parameter of the spec by its index in method->params. */
static inline int64_t attn_get(const attn_view *v, int i)
{
    return v->spec->value[i];
}

/* For ops that count an index alone. */
static inline buf attn_index_read(const attn_view *v)
{
    return buf_at(v->read, READ_INDEX * sizeof(uint64_t));
}

/* Tokens that the newest of n sees in a layer. */
static inline int64_t attn_visible(const attn_shape *sh, int layer, int64_t n)
{
    int64_t window = sh->window[layer];
    return window > 0 && window < n ? window : n;
}

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The part of a forward that concerns one sequence. */
typedef struct {
    size_t n_tok;
    int64_t n_prompt;    /* tokens of the whole prompt; 0 in decode steps */
    int64_t prompt_done; /* those of it before this forward */
    unsigned flags;
    attn_hint hint; /* of the whole prompt */
    buf pos, table, freq;
    float mscale;
    int64_t first; /* position of the first token: view->length plus the windows of this forward that came before */
} attn_part;

/* Whether queries need a mask: in prompts, and behind a sliding window. */
static inline bool attn_masked(const attn_view *v, const attn_part *p, int layer)
{
    return (p->flags & ATTN_PROMPT) || v->shape->window[layer] > 0;
}

/* Rows of one store that are attended together. */
typedef struct {
    const kv_rows *rows;
    bool copied;    /* this and the rest: as in attn_job */
    buf range, idx; /* range.p NULL: entries [first, first + n_max) of every list */
    size_t n_lists, idx_stride;
    int64_t first, n_max;
    int64_t origin; /* position of slot 0 */
    buf pos;        /* i32 [lists][pos_stride] positions of the entries, or of the rows where idx names rows of a list
                     * of their own (by_row); p NULL: an entry's slot plus origin */
    size_t pos_lists, pos_stride;
    bool by_row;
    bool masked;
    int64_t kpos;
    buf at; /* neither masked nor at: every row is visible to every query */
    int64_t band;
    buf scores, bias, turn; /* decode steps: as in attn_job; p NULL: none */
    size_t score_stride, bias_stride;
    bool pseudo;      /* no tokens: neither attended nor selected ones; behind the segments of tokens */
    buf left, missed; /* a sample of other tokens, which is the last segment and counts as `pseudo` does, though its
                       * rows are read: as in tail_missed_job; p NULL: it is none */
    buf table, qpos;  /* queries are rotated and masked at these positions; p NULL: the step's */
    buf factor; /* f32 [rows->n_kv_heads][head_dim]: queries at the step's positions are divided by it; p NULL: no */
} attn_seg;

typedef struct {
    int n_seg;
    attn_seg seg[ATTN_MAX_SEGS];
    /* Retrieval: positions before head and from tail on are attended whatever their score; all are when
     * tail <= head. */
    int64_t head, tail;
    /* Tokens that a decode step attends in this layer, 0 where ops count them (READ_ATTENDED). */
    int64_t attended;
} attn_sel;

/* One sequence in a layer: its new rows, k rotated at the step's positions and k_raw not, its queries likewise, and
 * what they are to attend. Shared prompts: only the first sequence has queries and a selection. */
typedef struct {
    attn_view *v;
    attn_part p;
    buf k_raw, k, val, q_raw, q;
    attn_sel *sel;
} attn_turn;

/* Most sequences of one call of append and select. Their views are alike: the same method, parameters and sizes, so
 * that their work goes to the backend as lists of jobs. */
enum { ATTN_TOGETHER = 16 };

/* Attention over a segment, but for the queries, and their positions if the segment has none, and the results. */
attn_job attn_seg_job(const attn_view *v, const attn_seg *g);

/* The best of what the ops before it scored. v: any of the sequences. */
void attn_choose(const attn_view *v, const choose_job *jobs, size_t n);
/* Counts what a decode step attended: range i64 [n_layers][n_lists][2] in layers that `chose`. */
void attn_count_lists(const attn_view *v, buf range, size_t n_lists, const bool *chose);

/* ---- hooks ---- */

/* What does not depend on the sequence: tokens that every step attends, so that they stay in memory, and the widest
 * sliding window for which everything would be attended anyway (a layer with such a window is dense). */
typedef struct {
    int64_t first, newest, covers;
} attn_regions;

typedef struct {
    /* Declares buffers. Also asked for plans and counts, with other n. */
    void (*declare)(attn_decl *d);
    /* As created: buffers hold what they held, the struct is zero but for its buffers. */
    void (*reset)(attn_view *v);
    /* A forward begins; view->length is its first position. Uploads are allowed in begin and end: they lie outside a
     * captured step. */
    void (*begin)(attn_view *v, const attn_part *p);
    /* Stores the new rows of n sequences. */
    void (*append)(const attn_turn *t, size_t n, int layer);
    /* Says what each of them attends. */
    void (*select)(const attn_turn *t, size_t n, int layer);
    /* Sees what attention left: lse f32 [n_tok][n_heads] of everything that the queries attended. */
    void (*observe)(attn_view *v, const attn_part *p, int layer, buf q, buf lse);
    void (*layer_end)(attn_view *v, const attn_part *p, int layer); /* evict; before the store quantizes */
    void (*end)(attn_view *v, const attn_part *p);                  /* length is updated after it */
    /* Drops the tokens from n on; NULL, or why that is impossible (for the error). */
    const char *(*rewind)(attn_view *v, int64_t n);
    /* Walks over what lasts (state.h): numbers on the host, then attn_walk for the buffers, then the rows of the store;
     * checks what was loaded before it is used. view->length is set already. NULL: buffers, and a row for each token.
     */
    status (*state)(attn_view *v, attn_state *s, err *e);
    /* Whether a prompt of n more tokens is attended exactly as by `full` (shared prefill), over exact rows. */
    bool (*exact_prompt)(const attn_view *v, int64_t n);
    /* Stored positions, ascending, of list `list` of a layer; their number, out may be NULL. NULL: all. */
    int64_t (*kept)(const attn_view *v, int layer, size_t list, int64_t *out);
    /* The same of tokens whose rows went to a cheaper store, in the order in which they went. NULL: none. */
    int64_t (*demoted)(const attn_view *v, int layer, size_t list, int64_t *out);
    /* What certifies its selections (certify.h). NULL, or what it returns: nothing. */
    const struct attn_certify *(*certifies)(const attn_view *v);
} attn_hooks;

/* What related methods share. */
typedef struct {
    attn_hooks hooks;
    size_t size;    /* bytes of its struct */
    unsigned uses;  /* families of ops */
    bool drops;     /* drops tokens: rows cannot lie in files, slots may be used again */
    bool retrieves; /* keeps everything, slots are positions, chooses in each step */
    bool windows;   /* also chooses in prompts, window by window */
    bool drafts; /* can be a draft view: its rows are rotated, and rewind to a token after the prompt leaves no trace */
    /* Why a configuration cannot run tensor-parallel: what ranks would have to exchange; NULL if it can. */
    const char *(*alone)(const attn_spec *s);
} attn_family;

struct attn_method {
    const char *name, *summary, *source; /* source: paper, reference code, section of doc/methods.md */
    const char *counts;                  /* attn_budget_counts, in one word; NULL: as its family */
    const attn_param *params;            /* ends with key NULL; NULL: none */
    const attn_family *family;           /* NULL: everything is kept and attended */
    const void *kind;                    /* what the family asks of its methods */
    size_t size;                         /* bytes of its struct; 0: the family's */
    const char *gqa;                     /* its word of GQA_NAMES, without a parameter gqa; NULL: layer_vote */
    bool has_budget;
    int64_t def_budget;
    int def_skip;             /* leading dense layers, */
    const char *skip;         /* or a list, "0+16" */
    unsigned uses;            /* families of ops that it calls beside its family's, whatever its parameters */
    attn_reuse reuse;         /* of the first tokens of a prompt, over exact rows; */
    const char *reuse_unless; /* ATTN_REUSE_NEVER where this parameter is not 0; NULL: none */
    /* After the parameters were read: derives values, and the store where the method brings one. */
    status (*parse)(attn_spec *s, err *e);
    status (*check)(const attn_spec *s, const attn_shape *shape, err *e);
    /* r: as without it, from the parameters force_sink and force_recent, and the budget. */
    void (*regions)(const attn_spec *s, attn_regions *r);
    attn_hooks hooks;
};

/* The parameters of a method, ended by one with key NULL. */
static inline const attn_param *attn_params(const attn_method *m)
{
    static const attn_param none[] = {{.key = NULL}};
    return m->params ? m->params : none;
}

/* Refuses models with several rotary embeddings: for methods that rotate rows or queries at other positions than the
 * step's. */
status attn_check_ropes(const attn_spec *s, const attn_shape *shape, err *e);

/* Value of the parameter `key` of a strategy; `none` where it has no such parameter. */
int64_t attn_value(const attn_spec *s, const char *key, int64_t none);

extern const attn_family attn_evict, attn_retrieve, attn_blocks;
extern const attn_family attn_keeping; /* keeps everything, without hooks of its own */
extern const attn_method attn_full;    /* serves dense layers */

attn_regions attn_regions_of(const attn_spec *s);

/* Walks over the declared buffers that last. */
status attn_walk(attn_view *v, attn_state *s, err *e);

/* What `full` does, for methods that do the same in some steps. */
void full_append(const attn_turn *t, size_t n, int layer);
void full_select(const attn_turn *t, size_t n, int layer);

#endif
