/* SPDX-License-Identifier: MIT */
/* KV cache of one sequence: the decoder's interface to attention.
 *
 * The decoder passes unrotated q, k and v layer by layer and receives the attention output. It does not depend on the
 * strategy. A strategy (one file, one row of the table in strategies.c) decides which rows are kept and attended.
 * sequence.c owns the memory of a sequence (store, buffers, saving, accounting). forward.c runs a forward (rotation,
 * dense layers, attention over segments, merging). */
#ifndef ATTENTION_SEQUENCE_H
#define ATTENTION_SEQUENCE_H

#include "attention/spec.h"
#include "kernels/ops_tier.h"

/* ---- one sequence ---- */

typedef struct attn_seq attn_seq;
typedef struct attn_state attn_state; /* state.h */

typedef struct {
    int64_t n_tokens; /* most tokens of the sequence, prompt and generated */
    int64_t chunk;    /* most tokens of one forward */
    int64_t prompt;   /* quantized stores: longest prompt, whose rows are quantized at its end; 0: any */
    const attn_spec
        *draft;   /* strategy that drafts over the same rows (ATTN_DRAFT); NULL: none; attn_seq_create copies */
    bool at_once; /* plans: allocation takes memory, not the first write (backend_ops) */
} attn_limits;

/* Bytes by kind, held or planned. scratch: buffers of the sequence without state. */
typedef struct {
    size_t kv, index, scratch;
} attn_bytes;

/* Computes the peak bytes of a sequence without allocating. */
status attn_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim, err *e);
/* Computes the peak bytes in files or in host memory, by spec->tier.kind. */
status attn_plan_slow(size_t *out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim, err *e);
status attn_seq_create(attn_seq **out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim, backend *be,
                       err *e);
void attn_seq_free(attn_seq *s);
/* Returns the tokens of a prompt window for attn_by_window strategies, otherwise the token limit. */
int64_t attn_seq_window(const attn_seq *s);
/* Returns to the state after creation. */
void attn_seq_reset(attn_seq *s);
const attn_spec *attn_seq_spec(const attn_seq *s);
/* Returns the rows of a step (ATTN_VERIFY) whose heads of a group share a tile, at least 1; 0: the backend has no
 * tiles, or not for these rows. */
size_t attn_seq_tile_rows(const attn_seq *s);
/* Sets the kernel of attention in the following decode steps; tiles requires attn_seq_tile_rows > 0. A new sequence has
 * that of its spec, AUTO: rows. */
void attn_seq_decode_by(attn_seq *s, bool tiles);
bool attn_seq_by_tiles(const attn_seq *s);
/* Returns the number of tokens so far, which is the position of the next token. */
int64_t attn_seq_length(const attn_seq *s);
/* Drops the tokens from position n on. ST_UNSUPPORTED with the reason if the state is lost: tokens were evicted or
 * quantized since, or statistics include later tokens. */
status attn_seq_rewind(attn_seq *s, int64_t n, err *e);
/* Walks over the state of a sequence (state.h), between prompts or steps. Loading requires a new or reset sequence with
 * the same spec, shape and limits. After ST_FORMAT (invalid loaded state) the sequence must be reset. */
status attn_seq_state(attn_seq *s, attn_state *v, err *e);
/* Return the bytes in use now, and their peak. */
attn_bytes attn_seq_held(const attn_seq *s);
attn_bytes attn_seq_peak(const attn_seq *s);
/* Writes the stored positions of a layer and KV head, ascending; returns their number. out may be NULL. */
int64_t attn_seq_positions(const attn_seq *s, int layer, int kv_head, int64_t *out);
/* Writes the positions of demoted tokens, in the order of demotion; returns their number. out may be NULL. */
int64_t attn_seq_demoted(const attn_seq *s, int layer, int kv_head, int64_t *out);

/* Writes the keys of the positions [0, n) of a layer, as attention reads them in the current step, to out f32
 * [n_kv_heads][cap][head_dim]. Requires a strategy that keeps everything, so that slots are positions. */
void attn_seq_keys(const attn_seq *s, int layer, buf out, int64_t cap, int64_t n);

/* Counts over decode steps without prompts, summed over layers. */
typedef struct {
    int64_t steps;
    double attended, visible; /* tokens */
    /* Bytes read: rows, keys among them, index; bytes of all visible keys, read once as unquantized rows. */
    double kv_read, k_read, index_read, full_keys;
    /* With tail=sample:N: sum of the measured fractions of missed attention over layers and query heads, upper bound of
     * its variance, and number of measurements. */
    double missed, missed_var, measured;
} attn_stats;
attn_stats attn_seq_stats(const attn_seq *s);
/* Results of certify= over layers and decode steps. */
typedef struct {
    int64_t heads, certified;                    /* query heads of selections, certified ones */
    double bound_mean, bound_most;               /* bound on the missed attention of certified heads */
    int64_t lists, whole;                        /* lists, those that attend everything */
    double tokens_mean;                          /* per list, as the following */
    int64_t tokens_p10, tokens_p90, tokens_most; /* p10, p90: to 1/32 */
} attn_certified;
/* Returns false if the strategy does not certify. */
bool attn_seq_certified(const attn_seq *s, attn_certified *out);
/* Writes the bounds [n_heads] of the last decode step in a layer. Returns false if there are none. */
bool attn_seq_bounds(const attn_seq *s, int layer, float *bound);
/* Returns the traffic between memory and files in decode steps, and the bytes in files; zeros without files. */
tier_counts attn_seq_tier(const attn_seq *s);
/* Counts of --kv-tier host. */
typedef struct {
    size_t held; /* bytes of rows now */
    /* Decode steps: bytes moved from and to host memory; rows read, K and V separately, and those found on the device.
     */
    double read, written, asked, found;
} host_counts;

/* Subtracts the counts of `from`. */
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
/* Returns the bytes of keys and index read over the bytes of all visible unquantized keys (FIER v2, section 3.4). The
 * ratio exceeds 1 if keys are read more than once. It is 0 before the first decode step. */
static inline double attn_key_access(const attn_stats *s)
{
    return s->full_keys > 0 ? (s->k_read + s->index_read) / s->full_keys : 0;
}

/* ---- one forward ---- */

/* Stages of a forward, marked by backend_mark in the decoder and in attention. */
enum {
    STAGE_EMBED,
    STAGE_NORM, /* rotation; norms are part of the products after them */
    STAGE_QKV,
    STAGE_INDEX,     /* storing rows, updating index and statistics, eviction, quantization */
    STAGE_SCORE,     /* scores of candidates */
    STAGE_TOPK,      /* choice of the best */
    STAGE_ATTENTION, /* over the selection */
    STAGE_OUT,
    STAGE_FFN,
    STAGE_LOGITS,
    STAGE_COUNT
};

enum {
    ATTN_PROMPT = 1,     /* prompt tokens; otherwise one decode token per sequence */
    ATTN_PROMPT_END = 2, /* the last chunk of a prompt */
    ATTN_ROUNDED = 4,    /* attn_job.rounded; observers still multiply in float32 */
    ATTN_VERIFY = 8,     /* n_tok rows of one sequence, each bit-identical to its own decode step */
    ATTN_DRAFT = 16, /* decode step of limits.draft instead of the sequence's strategy, to be rewound; not counted */
    ATTN_FREQ_MOVES = 32, /* frequencies depend on the length (dynamic RoPE), so tables of earlier forwards are stale */
};

/* Positions [first, end) of a sequence; empty if end <= first. */
typedef struct {
    int64_t first, end;
} attn_span;

/* Optional hints about a prompt, which a strategy may ignore: the span of its question. */
typedef struct {
    attn_span question;
} attn_hint;

/* One forward. Decode: n_seq sequences of any strategies with n_tok = 1, one row each, in this order. Prompt: n_tok
 * rows, the same prompt for all n_seq sequences; the first one computes attention for all (attn_can_share).
 * ATTN_VERIFY: n_tok rows of one sequence (attn_verify_check). */
typedef struct {
    attn_seq **seq;
    size_t n_seq, n_tok;
    int64_t n_prompt, prompt_done; /* tokens of the whole prompt, and of it before this forward */
    unsigned flags;
    attn_hint hint; /* hints of the whole prompt, in each of its forwards */
    buf pos;        /* i64 [rows] absolute positions */
    buf table;      /* rope table [rows, attn_pairs, 2] of these positions */
    buf freq;       /* f32 [rows, attn_pairs] frequencies, for tables of other positions; prompts: [1, attn_pairs] */
    float mscale;   /* factor of the tables */
} attn_step;

/* Scratch for forwards of at most max_rows rows, used by all sequences of a batch. */
typedef struct attn_work attn_work;
status attn_work_create(attn_work **out, const attn_shape *shape, size_t max_rows, backend *be, err *e);
void attn_work_free(attn_work *w);
size_t attn_work_bytes(const attn_shape *shape, size_t max_rows);

/* True if two sequences may share a prompt of n_prompt more tokens. Requires equal length and row type, and strategies
 * that attend the prompt as `full`. No row may be quantized yet; the prompt itself is quantized only at its end. */
bool attn_can_share(const attn_seq *a, const attn_seq *b, int64_t n_prompt);

/* Checks that a strategy supports ATTN_VERIFY: it attends everything, over float or block rows. ST_UNSUPPORTED with the
 * reason. */
status attn_verify_check(const attn_spec *s, err *e);
/* Checks that `draft` can draft over the verifier's rows: it keeps the same rows, and a rewind restores its state.
 * ST_UNSUPPORTED with the reason, or the error of attn_spec_check. */
status attn_draft_check(const attn_spec *draft, const attn_spec *verifier, const attn_shape *shape, err *e);

/* Returns the rows of a forward. */
static inline size_t attn_step_rows(const attn_step *s)
{
    return s->flags & ATTN_PROMPT ? s->n_tok : s->n_seq * s->n_tok;
}

/* Run a forward. The decoder calls attn_begin, attn_layer for each layer, attn_end. q [rows, n_heads, head_dim] and k,
 * v [rows, n_kv_heads, head_dim] are unrotated f32; out like q. */
void attn_begin(attn_work *w, const attn_step *step);
void attn_layer(attn_work *w, const attn_step *step, int layer, buf q, buf k, buf v, buf out);
/* Run the two halves of attn_layer. attn_last_selection is valid between them, since the second half evicts. */
void attn_attend(attn_work *w, const attn_step *step, int layer, buf q, buf k, buf v, buf out);
void attn_layer_end(const attn_work *w, const attn_step *step, int layer);
void attn_end(attn_work *w, const attn_step *step);
/* Stores the rows of a prompt step without attention, instead of attn_layer (synthetic contexts). */
void attn_store(attn_work *w, const attn_step *step, int layer, buf k, buf v);

/* Inputs and output of a layer, passed to the observer at the end of attn_attend. attn_begin and attn_end also call it,
 * with layer -1 and n_layers and without buffers. q and k are rotated. */
typedef struct {
    const attn_step *step;
    int layer;
    buf q_raw, k_raw, q, k, v, out;
} attn_seen;
/* Sets the observer; fn NULL: none. */
void attn_watch(attn_work *w, void (*fn)(void *ctx, const attn_seen *seen), void *ctx);

/* Writes the slots of a list of segment `seg` of sequence i in the last attn_layer, in order. Returns their number, -1
 * without such a segment. out may be NULL. */
int64_t attn_last_list(const attn_work *w, size_t i, int seg, size_t list, int32_t *out);
/* Writes the positions that query head `head` of sequence i read in the last attn_attend of a decode step, ascending.
 * Returns their number; with out NULL an upper bound. Valid until attn_layer_end, for every layer and strategy. Means
 * and samples that stand for other tokens are excluded. Positions before *head_end and from *tail on are read
 * regardless of their score. In a prompt, for strategies that retrieve: the positions of the last window before each
 * query's mask; a position is written twice if its distance decides which segment it belongs to. */
int64_t attn_last_selection(const attn_work *w, size_t i, int head, int32_t *out, int64_t *head_end, int64_t *tail);
/* Computes the output of the last attn_layer, a decode step of one sequence, without rows that stand for groups of
 * tokens: out f32 [n_heads][head_dim]. Returns false and leaves out unchanged if there were no such rows. */
bool attn_last_of_tokens(const attn_work *w, buf out);
/* Writes the missed fraction of attention measured by the sample of that step: out [n_heads][2], fraction and sigma of
 * tail_missed_job. Returns the tokens per sample; 0 and out unchanged without a sample. */
int64_t attn_last_missed(const attn_work *w, float *out);

#endif
