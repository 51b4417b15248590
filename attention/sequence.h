/* SPDX-License-Identifier: MIT */
/* One sequence's KV cache, as the decoder sees it.
 *
 * The decoder hands over un-rotated q, k and v, layer by layer, and takes the attention output back; it never learns
 * which strategy runs. A strategy (one file, one row of the table in strategies.c) decides which rows are kept and
 * which are attended. The composition does the rest for all of them: sequence.c owns the memory of a sequence (store,
 * buffers, saving, accounting), forward.c runs a forward (rotation, dense layers, attention over segments, merging). */
#ifndef ATTENTION_SEQUENCE_H
#define ATTENTION_SEQUENCE_H

#include "attention/spec.h"
#include "kernels/ops_tier.h"

/* ---- one sequence ---- */

typedef struct attn_seq attn_seq;
typedef struct attn_state attn_state; /* state.h */

typedef struct {
    int64_t n_tokens; /* most tokens that the sequence may hold, prompt and generated */
    int64_t chunk;    /* most tokens of one forward */
    int64_t prompt;   /* stores with codes: longest prompt; its rows stay exact until it ends, then they are quantized;
                       * 0: any */
    const attn_spec *draft; /* of a strategy that drafts over the same rows (ATTN_DRAFT); NULL: none; borrowed, and
                             * copied by attn_seq_create */
    bool at_once; /* plans: memory is taken when it is allocated, not where it is written first (backend_ops) */
} attn_limits;

/* Bytes by kind: held now, or planned. scratch: buffers of the sequence that hold no state. */
typedef struct {
    size_t kv, index, scratch;
} attn_bytes;

/* Bytes that a sequence will hold at its peak, without allocating. */
status attn_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim, err *e);
/* Returns the bytes that its files, or the host's memory, will hold; spec->tier.kind selects which. */
status attn_plan_slow(size_t *out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim, err *e);
status attn_seq_create(attn_seq **out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim, backend *be,
                       err *e);
void attn_seq_free(attn_seq *s);
/* Tokens of a prompt that choose what they attend together, where attn_by_window. */
int64_t attn_seq_window(const attn_seq *s);
void attn_seq_reset(attn_seq *s); /* as created */
const attn_spec *attn_seq_spec(const attn_seq *s);
/* Tokens fed so far, which is the position of the next one. */
int64_t attn_seq_length(const attn_seq *s);
/* Drops the tokens from position n on; ST_UNSUPPORTED with the reason where that state is gone: tokens were
 * evicted or quantized since, or statistics hold the later ones. */
status attn_seq_rewind(attn_seq *s, int64_t n, err *e);
/* Walks over all that a sequence holds (state.h), between two prompts or steps. Loading: the sequence is one of the
 * same spec, shape and limits as it was created or reset; ST_FORMAT where what is loaded cannot be, and it must be
 * reset. */
status attn_seq_state(attn_seq *s, attn_state *v, err *e);
/* Bytes of the rows that hold tokens now, and the most there ever were. */
attn_bytes attn_seq_held(const attn_seq *s);
attn_bytes attn_seq_peak(const attn_seq *s);
/* Positions stored in a layer, ascending, for kv head h; returns their number (out may be NULL). */
int64_t attn_seq_positions(const attn_seq *s, int layer, int kv_head, int64_t *out);
/* The same of tokens that an evictor keeps in a cheaper store, in the order in which they went there. */
int64_t attn_seq_demoted(const attn_seq *s, int layer, int kv_head, int64_t *out);

/* Writes the keys of the positions [0, n) of a layer, as attention reads them in the current step, to out f32
 * [n_kv_heads][cap][head_dim]. Requires slots that are positions: strategies that keep everything, or retrieve. */
void attn_seq_keys(const attn_seq *s, int layer, buf out, int64_t cap, int64_t n);

/* Counts over decode steps (prompts excluded), summed over layers: tokens attended and visible; bytes of rows
 * read, k_read of them of keys, and of index; those of all visible keys, read once as exact rows. */
typedef struct {
    int64_t steps;
    double attended, visible;
    double kv_read, k_read, index_read, full_keys;
    /* With tail=sample:N: shares of attention that steps missed, as samples measured them, added up over layers and
     * query heads; the variance of that sum, at most; how many shares there are. */
    double missed, missed_var, measured;
} attn_stats;
attn_stats attn_seq_stats(const attn_seq *s);
/* Results of certify= over layers and decode steps: query heads of selections, the certified ones, the mean and largest
 * bound on their missed fraction of attention; lists, those that attend everything, and tokens per list. */
typedef struct {
    int64_t heads, certified;
    double bound_mean, bound_most;
    int64_t lists, whole;
    double tokens_mean;
    int64_t tokens_p10, tokens_p90, tokens_most; /* p10, p90: to a thirty-second */
} attn_certified;
/* False: the strategy certifies nothing. */
bool attn_seq_certified(const attn_seq *s, attn_certified *out);
/* Bounds [n_heads] of the last decode step in a layer; false: there are none. */
bool attn_seq_bounds(const attn_seq *s, int layer, float *bound);
/* The same of what moved between memory and files in decode steps, and what is in files now; zeros without any. */
tier_counts attn_seq_tier(const attn_seq *s);
/* --kv-tier host: bytes of the rows of its layers now; by decode steps: bytes that came from the host's memory and that
 * went there; rows asked for, K and V apart, and those that were on the device already. */
typedef struct {
    size_t held;
    double read, written, asked, found;
} host_counts;

/* Returns the counts since `from`. */
static inline host_counts host_counts_since(host_counts now, const host_counts *from)
{
    now.read -= from->read;
    now.written -= from->written;
    now.asked -= from->asked;
    now.found -= from->found;
    return now;
}

static inline double host_hits(const host_counts *c)
{
    return c->asked > 0 ? c->found / c->asked : 0;
}

host_counts attn_seq_host(const attn_seq *s);
/* Bytes of keys and of index read, over those of all visible keys in full precision: FIER v2, section 3.4. More
 * than 1 where keys are read more than once. 0 before the first decode step. */
static inline double attn_key_access(const attn_stats *s)
{
    return s->full_keys > 0 ? (s->k_read + s->index_read) / s->full_keys : 0;
}

/* ---- one forward ---- */

/* Stages of a forward, marked by backend_mark: the decoder's and, where it attends, attention's. */
enum {
    STAGE_EMBED,
    STAGE_NORM, /* rotation: a norm is part of the products of what it norms */
    STAGE_QKV,
    STAGE_INDEX,     /* rows stored, index and statistics kept up, eviction, quantizing */
    STAGE_SCORE,     /* of what can be selected */
    STAGE_TOPK,      /* the best of them */
    STAGE_ATTENTION, /* over what was selected */
    STAGE_OUT,
    STAGE_FFN,
    STAGE_LOGITS,
    STAGE_COUNT
};

enum {
    ATTN_PROMPT = 1,     /* prompt tokens; else one decode token a sequence */
    ATTN_PROMPT_END = 2, /* the last chunk of a prompt */
    ATTN_ROUNDED = 4,    /* attn_job.rounded; what observers multiply stays in float32 */
    ATTN_VERIFY = 8,     /* n_tok rows of one sequence, each with the bits of a decode step of its own */
    ATTN_DRAFT = 16, /* a decode step of limits.draft in place of the sequence's strategy, to be rewound: not counted */
    ATTN_FREQ_MOVES = 32, /* frequencies depend on the length (dynamic RoPE): tables of earlier forwards are stale */
};

/* Positions [first, end) of a sequence; none where end <= first. */
typedef struct {
    int64_t first, end;
} attn_span;

/* Hints about a prompt: the span of its question. All are optional, and a strategy may ignore them. */
typedef struct {
    attn_span question;
} attn_hint;

/* A forward: in decode n_seq sequences (of any strategies) with n_tok = 1, rows in this order; in a
 * prompt n_tok rows, which are the same prompt of all n_seq sequences (attention is then computed
 * once, by the first: see attn_can_share); with ATTN_VERIFY n_tok rows of one sequence (attn_verify_check). */
typedef struct {
    attn_seq **seq;
    size_t n_seq, n_tok;
    int64_t n_prompt, prompt_done; /* tokens of the whole prompt, and those before this forward */
    unsigned flags;
    attn_hint hint; /* prompts: of all of it, in each forward */
    buf pos;        /* i64 [rows] absolute positions */
    buf table;      /* rope table [rows, attn_pairs, 2] of these positions */
    buf freq;       /* f32 [rows, attn_pairs], for tables of other positions; a prompt: [1, attn_pairs] */
    float mscale;   /* factor of the tables */
} attn_step;

/* Scratch for forwards of at most max_rows rows, shared by all sequences of a batch. */
typedef struct attn_work attn_work;
status attn_work_create(attn_work **out, const attn_shape *shape, size_t max_rows, backend *be, err *e);
void attn_work_free(attn_work *w);
size_t attn_work_bytes(const attn_shape *shape, size_t max_rows);

/* True if two sequences may share a prompt of n_prompt more tokens: same length and row type, and both strategies
 * attend the prompt exactly. Quantization happens after a prompt and does not matter, unless rows are quantized
 * already. */
bool attn_can_share(const attn_seq *a, const attn_seq *b, int64_t n_prompt);

/* Checks that the next tokens of a sequence can share a forward and get the bits of single steps: everything is
 * attended, over exact rows. ST_UNSUPPORTED with the reason. */
status attn_verify_check(const attn_spec *s, err *e);
/* Checks that `draft` can draft over the rows of such a strategy: it keeps the same rows, and a rewind leaves no trace.
 * ST_UNSUPPORTED with the reason, or what attn_spec_check finds. */
status attn_draft_check(const attn_spec *draft, const attn_spec *verifier, const attn_shape *shape, err *e);

/* Rows of a forward. */
static inline size_t attn_step_rows(const attn_step *s)
{
    return s->flags & ATTN_PROMPT ? s->n_tok : s->n_seq * s->n_tok;
}

/* Called by the decoder, in this order: begin; for each layer `layer`; end. q [rows, n_heads, head_dim],
 * k, v [rows, n_kv_heads, head_dim], un-rotated, f32; out like q. */
void attn_begin(attn_work *w, const attn_step *step);
void attn_layer(attn_work *w, const attn_step *step, int layer, buf q, buf k, buf v, buf out);
/* Run the two halves of attn_layer. attn_last_selection is valid between them: the second half evicts. */
void attn_attend(attn_work *w, const attn_step *step, int layer, buf q, buf k, buf v, buf out);
void attn_layer_end(const attn_work *w, const attn_step *step, int layer);
void attn_end(attn_work *w, const attn_step *step);
/* In place of attn_layer, in prompt steps: stores the rows and attends nothing (synthetic contexts). */
void attn_store(attn_work *w, const attn_step *step, int layer, buf k, buf v);

/* Inputs and output of a layer, passed at the end of attn_attend; layer -1 in attn_begin, n_layers in attn_end (then
 * without buffers). q and k are rotated. fn NULL: no observer. */
typedef struct {
    const attn_step *step;
    int layer;
    buf q_raw, k_raw, q, k, v, out;
} attn_seen;
void attn_watch(attn_work *w, void (*fn)(void *ctx, const attn_seen *seen), void *ctx);

/* The slots of list `list` of segment `seg` of sequence i in the last attn_layer, in their order; returns their
 * number, -1 without such a segment. out may be NULL. */
int64_t attn_last_list(const attn_work *w, size_t i, int seg, size_t list, int32_t *out);
/* Writes the positions that query head `head` of sequence i reads in the last attn_attend of a decode step, ascending,
 * to out and returns their number; out NULL: returns a bound on it. Every layer of every strategy has them, until
 * attn_layer_end. Means and samples that stand for other tokens are left out. Positions before *head_end and from *tail
 * on are read whatever their score is. Of a prompt: what the last window found, before each query's mask, and a
 * position is listed twice where its distance decides which segment shows it; only for strategies that retrieve. */
int64_t attn_last_selection(const attn_work *w, size_t i, int head, int32_t *out, int64_t *head_end, int64_t *tail);
/* The output of the last attn_layer, a decode step of one sequence, without rows that stand for groups of tokens: out
 * [n_heads][head_dim] f32. False: there were no such rows, and out stays as it is. */
bool attn_last_of_tokens(const attn_work *w, buf out);
/* Writes the missed fraction of attention as the sample of that step measured it: out [n_heads][2], the fraction and
 * sigma of tail_missed_job. Returns the tokens of a list's sample; 0: no sample, and out is unchanged. */
int64_t attn_last_missed(const attn_work *w, float *out);

#endif
