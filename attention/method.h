/* SPDX-License-Identifier: MIT */
/* Interface of a method, a row of the strategy table. Internal to attention/.
 *
 * A method implements only its own behavior. The composition (sequence.c, forward.c) owns the store, its tier, the
 * dense layers, and every buffer that a method declares. It plans, allocates, counts, saves, loads and frees them. A
 * NULL hook falls back to that of the method's family. If that is also NULL, the behavior is that of `full`: keep and
 * attend everything. */
#ifndef ATTENTION_METHOD_H
#define ATTENTION_METHOD_H

#include "attention/reuse.h"
#include "attention/sequence.h"
#include "attention/state.h"
#include "attention/store.h"

enum { ATTN_MAX_SEGS = 4 };

/* Families of ops as bits of a set. A backend may lack any of them (ops.h). */
#define ATTN_FAMILIES(F)       OP_FAMILIES(F) F(tier, , ) F(host, , ) F(certify, , )
#define FAMILY_BIT(name, o, t) FAMILY_##name,
#define USES(name)             (1u << FAMILY_##name)
enum { ATTN_FAMILIES(FAMILY_BIT) };

/* ---- buffers ---- */

/* Declaration of a layer group. The hook `declare` fills it, the family's first, then the method's. */
typedef struct {
    const attn_spec *spec;
    const attn_shape *shape;
    const attn_limits *lim;
    int64_t n;       /* tokens in the sequence */
    int64_t entries; /* tokens that an evicting method still keeps in each list */
    /* Set by the hooks; defaults in parentheses. */
    state_decl buffers;
    int64_t slots;        /* rows of a layer's store (one per token) */
    size_t heads;         /* regions of the store (KV heads) */
    size_t lists;         /* lists of kept rows per layer, for `kept` (1) */
    size_t choose_lists;  /* most lists of a choice; no choice (0) */
    int64_t choose_items; /* most items of a choice (0) */
    int64_t window;       /* attn_view.window (0) */
} attn_decl;

/* Adds a buffer with one region of `bytes` bytes. */
void decl_bytes(attn_decl *d, mem_kind kind, size_t at, const char *name, size_t bytes);
/* Adds such a buffer for each layer. */
void decl_layers(attn_decl *d, mem_kind kind, size_t at, const char *name, size_t bytes);
/* Adds a scratch buffer for n items. */
void decl_scratch(attn_decl *d, size_t at, const char *name, size_t item, int64_t n);
/* Adds a buffer for each layer whose regions grow with the tokens. */
void decl_regions(attn_decl *d, mem_kind kind, size_t at, const char *name, size_t regions, size_t item, int64_t cap,
                  int64_t used);

/* ---- a method's view of a sequence ---- */

/* Layers of one sequence that a method serves, with their store. */
typedef struct {
    const attn_method *method;
    const attn_spec *spec;
    const attn_shape *shape;
    const attn_limits *lim;
    const bool *layers; /* [n_layers]: true for the layers of this view */
    backend *be;
    kv_store *store;
    buf read;          /* u64 [READ_KINDS]: counts by ops */
    int64_t length;    /* tokens before this forward */
    int64_t stored;    /* with `kept`: entries per list; with sliding windows an upper bound */
    bool listed;       /* tokens were dropped: rows are read through lists, which may differ */
    bool draft_view;   /* drafts over another strategy's store, which keeps everything; slots are positions */
    bool observes;     /* set in begin: observe is called in this forward */
    int64_t window;    /* tokens of a prompt window, as declared: append, select and observe run window by window
                        * inside a layer, and chunks are multiples of it; 0: the whole forward is one window */
    int64_t *attended; /* [n_layers] tokens attended by the current decode step */
    void *own;         /* the method's struct; its first member is the family's, if any */
} attn_view;

/* Returns the value of parameter i of method->params. */
static inline int64_t attn_get(const attn_view *v, int i)
{
    return v->spec->value[i];
}

/* Returns the read counter for ops that only read an index. */
static inline buf attn_index_read(const attn_view *v)
{
    return buf_at(v->read, READ_INDEX * sizeof(uint64_t));
}

/* Returns the number of tokens that the newest of n tokens sees in a layer. */
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

/* Part of a forward that concerns one sequence. */
typedef struct {
    size_t n_tok;
    int64_t n_prompt;    /* tokens of the whole prompt; 0 in decode steps */
    int64_t prompt_done; /* tokens of it before this forward */
    unsigned flags;
    attn_hint hint; /* of the whole prompt */
    buf pos, table, freq;
    float mscale;
    int64_t first; /* position of the first token: view->length plus the earlier windows of this forward */
} attn_part;

/* True if queries need a mask: in prompts and in layers with a sliding window. */
static inline bool attn_masked(const attn_view *v, const attn_part *p, int layer)
{
    return (p->flags & ATTN_PROMPT) || v->shape->window[layer] > 0;
}

/* Segment: rows of one store that are attended in one job. */
typedef struct {
    const kv_rows *rows;
    bool copied;    /* this and fields without a comment: as in attn_job */
    buf range, idx; /* range.p NULL: entries [first, first + n_max) of every list */
    size_t n_lists, idx_stride;
    int64_t first, n_max;
    int64_t origin; /* position of slot 0 */
    buf pos;        /* i32 [lists][pos_stride] positions of the entries, or with by_row of the rows that idx names;
                     * p NULL: position = slot + origin */
    size_t pos_lists, pos_stride;
    bool by_row;
    bool masked;
    int64_t kpos;
    buf at; /* without masked and at, every row is visible to every query */
    int64_t band;
    buf scores, bias, rope; /* decode steps; p NULL: none */
    size_t score_stride, bias_stride;
    bool pseudo; /* rows stand for groups of tokens and are not counted as attended; after all segments of tokens */
    buf left, missed; /* tail_missed_job of a sample of unattended tokens. A sample is the last segment and, like
                       * pseudo rows, not counted as attended, but its rows are read; p NULL: no sample */
    buf table, qpos;  /* rotation table and positions of its queries; p NULL: the step's */
    buf factor;       /* f32 [rows->n_kv_heads][head_dim]: divides the queries at the step's positions; p NULL: none */
} attn_seg;

/* Selection: the segments that the queries attend. */
typedef struct {
    int n_seg;
    attn_seg seg[ATTN_MAX_SEGS];
    /* Retrieval: positions before head and from tail on are attended regardless of their score; tail <= head: all. */
    int64_t head, tail;
    /* Tokens that a decode step attends in this layer; 0 if ops count them (READ_ATTENDED). */
    int64_t attended;
} attn_sel;

/* Work item: one sequence in one layer, with its new rows, its queries and their selection. k and q are rotated at the
 * step's positions, k_raw and q_raw are not. In a shared prompt only the first sequence has queries and a selection. */
typedef struct {
    attn_view *v;
    attn_part p;
    buf k_raw, k, val, q_raw, q;
    attn_sel *sel;
} attn_task;

/* Most work items of one call of append or select. Their views have the same method, parameters and sizes, so that the
 * backend receives them as lists of jobs. */
enum { ATTN_MAX_TASKS = 16 };

/* Returns an attention job over a segment. The caller sets queries, results, and qpos if the segment has none. */
attn_job attn_seg_job(const attn_view *v, const attn_seg *g);

/* Queues the choice of the best items by score. v: any of the views. */
void attn_choose(const attn_view *v, const choose_job *jobs, size_t n);
/* Adds the tokens that a decode step attended: range i64 [n_layers][n_lists][2], in layers with chose[layer]. */
void attn_count_lists(const attn_view *v, buf range, size_t n_lists, const bool *chose);

/* ---- hooks ---- */

/* Regions that depend on the strategy alone. Every step attends the `first` and `newest` tokens, so they stay in
 * memory. A layer with a sliding window of at most `covers` tokens attends all of it and is dense. */
typedef struct {
    int64_t first, newest, covers;
} attn_regions;

typedef struct {
    /* Declares buffers. Also called for plans and counts, with other values of n. */
    void (*declare)(attn_decl *d);
    /* Returns to the initial state. Buffers keep their contents. At creation the struct is zero except for buffers. */
    void (*reset)(attn_view *v);
    /* Begins a forward, whose first position is view->length. begin and end may upload: they run outside of captured
     * steps. */
    void (*begin)(attn_view *v, const attn_part *p);
    /* Stores the new rows of n sequences. */
    void (*append)(const attn_task *t, size_t n, int layer);
    /* Fills the selection of each of n sequences. */
    void (*select)(const attn_task *t, size_t n, int layer);
    /* Runs after attention; lse: f32 [n_tok][n_heads] over everything that the queries attended. */
    void (*observe)(attn_view *v, const attn_part *p, int layer, buf q, buf lse);
    void (*layer_end)(attn_view *v, const attn_part *p, int layer); /* evicts; before the store quantizes */
    void (*end)(attn_view *v, const attn_part *p);                  /* before length is updated */
    /* Drops the tokens from n on. Returns NULL, or the reason for the error if that is impossible. */
    const char *(*rewind)(attn_view *v, int64_t n);
    /* Walks over persistent state (state.h): host numbers, buffers (attn_walk), rows of the store. Validates loaded
     * state before use. view->length is already set. NULL: the buffers, and a row for each token. */
    status (*state)(attn_view *v, attn_state *s, err *e);
    /* True if a prompt of n more tokens is attended as by `full`, given float or block rows (shared prefill). */
    bool (*exact_prompt)(const attn_view *v, int64_t n);
    /* Writes the stored positions of a list of a layer, ascending; returns their number. out may be NULL. Hook NULL:
     * all. */
    int64_t (*kept)(const attn_view *v, int layer, size_t list, int64_t *out);
    /* Writes the positions of demoted tokens in the order of their demotion; returns their number. Hook NULL: none. */
    int64_t (*demoted)(const attn_view *v, int layer, size_t list, int64_t *out);
    /* Returns the certificates of selections (certify.h), or NULL. Hook NULL: none. */
    const struct attn_certify *(*certifies)(const attn_view *v);
} attn_hooks;

/* Hooks and properties that related methods have in common. */
typedef struct {
    attn_hooks hooks;
    size_t size;    /* bytes of its struct */
    unsigned uses;  /* families of ops */
    bool drops;     /* drops tokens: slots may be reused, other tiers are not supported */
    bool retrieves; /* keeps everything, slots are positions, selects in each step */
    bool windows;   /* also selects in prompts, window by window */
    bool drafts;    /* can be a draft view: rows are rotated, and a rewind to a token after the prompt is exact */
    /* Returns the reason why a configuration cannot run tensor-parallel; NULL if it can. */
    const char *(*alone)(const attn_spec *s);
} attn_family;

struct attn_method {
    const char *name, *summary, *source; /* source: paper, reference code, section of doc/methods.md */
    const char *counts;                  /* word of attn_budget_counts; NULL: by family */
    const attn_param *params;            /* ends with key NULL; NULL: none */
    const attn_family *family;           /* NULL: keeps and attends everything */
    const void *kind;                    /* hooks and properties that the family requires */
    size_t size;                         /* bytes of its struct; 0: the family's */
    const char *gqa;                     /* word of GQA_NAMES for methods without a parameter gqa; NULL: layer_vote */
    bool has_budget;
    int64_t def_budget;
    int def_skip;     /* number of leading dense layers */
    const char *skip; /* dense layers as a list, "0+16"; NULL: def_skip */
    unsigned uses;    /* families of ops that it always calls, in addition to its family's */
    attn_reuse reuse; /* prefix reuse, over float or block rows */
    /* Parameter that must be 0 for the state of a prompt not to depend on the budget; "": none; NULL: it depends. */
    const char *reuse_budget;
    const char *reuse_unless; /* ATTN_REUSE_NEVER if this parameter is not 0; NULL: no such parameter */
    /* Derives values, and the store of a method that has its own, after the parameters were read. */
    status (*parse)(attn_spec *s, err *e);
    status (*check)(const attn_spec *s, const attn_shape *shape, err *e);
    /* Changes *r, which holds the defaults from force_sink, force_recent and the budget. */
    void (*regions)(const attn_spec *s, attn_regions *r);
    attn_hooks hooks;
};

/* Returns the parameters of a method, ended by one with key NULL. */
static inline const attn_param *attn_params(const attn_method *m)
{
    static const attn_param none[] = {{.key = NULL}};
    return m->params ? m->params : none;
}

/* Rejects models with several rotary embeddings, for methods that rotate rows or queries at positions other than the
 * step's. */
status attn_check_ropes(const attn_spec *s, const attn_shape *shape, err *e);

/* Returns the value of a strategy's parameter `key`, or `none` if there is no such parameter. */
int64_t attn_value(const attn_spec *s, const char *key, int64_t none);

extern const attn_family attn_evict, attn_retrieve, attn_blocks;
extern const attn_family attn_keeping; /* keeps everything; no hooks */
extern const attn_method attn_full;    /* serves dense layers */

attn_regions attn_regions_of(const attn_spec *s);

/* Walks over the declared persistent buffers. */
status attn_walk(attn_view *v, attn_state *s, err *e);

/* Hooks of `full`, for methods that behave like it in some steps. */
void full_append(const attn_task *t, size_t n, int layer);
void full_select(const attn_task *t, size_t n, int layer);

#endif
