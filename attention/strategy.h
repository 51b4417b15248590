/* SPDX-License-Identifier: MIT */
/* The strategy table: how a sequence's KV cache is held and read.
 *
 * The decoder hands over un-rotated q, k, v and never learns what a method does. A method (one file,
 * one row of the table in strategies.c) decides which rows it keeps and which it attends; it calls ops
 * and stores only. Around it the composition (attention.c) does what is the same for all: dense layers
 * (`skip`), the rotation of queries, attention over the selected segments and their merge, counts.
 *
 * Rules. Whatever changes from step to step lives in ops memory and is changed by ops in
 * step_begin and step_end; hooks of single layers change nothing that another layer reads. In
 * decode steps the host passes bounds only, so a step can be captured; in prompt steps it may
 * upload small arrays. */
#ifndef ATTENTION_STRATEGY_H
#define ATTENTION_STRATEGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/ops_select.h"
#include "kernels/ops_tier.h"

typedef struct attn_method attn_method;

/* What attention needs to know of a model. */
typedef struct {
    int n_layers, n_heads, n_kv_heads, head_dim;
    float scale;           /* softmax scale */
    const int *window;     /* [n_layers] sliding window of a layer, 0: none; borrowed */
    int64_t max_positions; /* context the model was made for */
} attn_shape;

/* ---- what the user asks for ---- */

/* How rows are held. */
typedef enum { KV_EXACT, KV_KIVI, KV_LOGQUANT } kv_kind;
typedef struct {
    kv_kind kind;
    dtype type; /* of exact rows */
    int bits;   /* KIVI, LOGQUANT: 2 or 4 */
    int64_t group, residual, sink; /* g and R of methods.md 10 and 11; first tokens that stay exact */
    bool slide; /* KIVI: key_residual=slide */
    bool hf;    /* LOGQUANT: quant=hf_axis0_g64 */
    int64_t prompt; /* codes: most tokens of one prompt, which wait in full for its end; 0: all */
    bool at_once;   /* codes: memory is taken when it is allocated, not where it is written first. For plans only */
} kv_format;

/* Parses `f16` or `kivi2:r=128:g=32`; what: the option, for errors. Errors: ST_USAGE. */
status kv_format_parse(kv_format *f, const char *text, const char *what, err *e);
/* The other way, with all parameters. */
void kv_format_text(const kv_format *f, char *out, size_t size);
const char *kv_format_name(const kv_format *f); /* without parameters */
/* exact[i] of the first n tokens: whether token i still has an exact key or value after n tokens. ST_NOMEM. */
status kv_exact_tokens(const kv_format *f, int64_t n, bool *exact, err *e);
static inline kv_format kv_exact(dtype type)
{
    return (kv_format){.kind = KV_EXACT, .type = type};
}

/* Where rows lie, those of dense layers apart, which stay in the device's memory. HOST: all in the memory of the host,
 * where the device reads and writes them; what a strategy always attends and the newest `window` tokens are on the device
 * as well, and `cache` bytes of rows that were read; of stores with codes exact rows alone, where they are few. On a CPU
 * it is the device's memory. DISK: all but the newest `window` tokens and what a strategy always attends in files in
 * `dir` ("": $TMPDIR, else the current folder), of which `cache` bytes of blocks stay in memory. */
typedef enum { KV_DEVICE, KV_HOST, KV_DISK } kv_place;
typedef struct {
    kv_place place;
    int64_t window;
    size_t cache;
    char dir[256];
} kv_tier;

/* Parses `disk`, `disk:cache=512M:window=256:DIR`, `host:cache=512M:window=256`. Errors: ST_USAGE. */
status kv_tier_parse(kv_tier *t, const char *text, err *e);
const char *kv_tier_dir(const kv_tier *t);
const char *kv_place_name(kv_place p);

enum { ATTN_MAX_PARAMS = 24 };

/* A parameter: a number from min to max, or one of `choices` (words separated by spaces). */
typedef struct {
    const char *key, *choices, *help;
    int64_t def, min, max; /* choices: indexes into the list */
} attn_param;

/* A set of layers. */
enum { ATTN_MAX_LAYERS = 256, ATTN_TEXT = 256 };
typedef struct {
    bool has[ATTN_MAX_LAYERS];
} attn_layers;

typedef struct {
    const attn_method *method;
    int64_t value[ATTN_MAX_PARAMS]; /* in the order of method->params */
    int64_t budget;                 /* tokens; 0 for a method without one */
    attn_layers skip;               /* these are dense */
    kv_format kv;
    kv_tier tier;
    bool two_stores; /* --kv asks for codes beside a method that is a store: attn_spec_check refuses */
    bool forced;   /* retrieval: select even where the budget covers everything (tests, recall of tensors) */
    char text[ATTN_TEXT]; /* as written on the command line */
} attn_spec;

/* Values of the options that apply to every strategy of a list; a key inside a strategy wins. */
typedef struct {
    int64_t budget;   /* 0: the method's default, */
    bool has_budget;  /* unless 0 is what was asked for, which attn_spec_check refuses */
    const char *skip; /* NULL: the method's default; "2" = the first two, "0+16" = a list */
    kv_format kv;
    const kv_tier *tier; /* NULL: in the device's memory */
} attn_options;

/* Parses `name[:key=value]...`; a store inside it is written with '/': `fier:kv=kivi2/r=64`.
 * Errors: ST_USAGE, naming the word, what is known and the range. */
status attn_spec_parse(attn_spec *s, const char *text, const attn_options *o, err *e);
/* Whether the strategy can run on a model; ST_USAGE or ST_UNSUPPORTED with the reason. */
status attn_spec_check(const attn_spec *s, const attn_shape *shape, err *e);
/* Whether a backend has the ops that it needs; ST_UNSUPPORTED, naming them. */
status attn_backend_check(const attn_spec *s, const backend *be, err *e);
/* All parameters with their values: "budget=256 sink=4 pos=reindex". */
void attn_spec_params(const attn_spec *s, char *out, size_t size);
/* A strategy as two words: its name with all parameters, and its store. */
enum { ATTN_WRITTEN = 2048 };
void attn_spec_write(const attn_spec *s, char strategy[ATTN_WRITTEN], char store[128]);
/* The strategy that was written so; ST_FORMAT or ST_USAGE where none is. */
status attn_spec_read(attn_spec *s, const char *strategy, const char *store, err *e);
bool attn_has_budget(const attn_spec *s);
/* Whether it keeps everything and chooses anew in each step; slots are then positions. */
bool attn_retrieves(const attn_spec *s);
/* Whether it also chooses in prompts, window by window. */
bool attn_by_window(const attn_spec *s);
/* Whether a layer runs full attention: skip, or a window within the budget. */
bool attn_is_dense(const attn_spec *s, const attn_shape *shape, int layer);
/* How heads share what is attended: the parameter gqa. Methods without one treat all heads alike: GQA_LAYER_VOTE. */
gqa_mode attn_gqa(const attn_spec *s);

/* The table. */
const attn_method *attn_method_find(const char *name);
/* The error that attn_method_find has no such name: ST_USAGE with the option, the nearest name and all. */
status attn_method_unknown(const char *option, const char *name, err *e);
const attn_method *const *attn_methods(void); /* NULL-terminated */
const char *attn_method_name(const attn_method *m);
/* --help-attn: one method with its parameters, defaults and source; NULL: the whole list. */
void attn_print_help(FILE *f, const attn_method *m);

/* ---- one sequence ---- */

typedef struct attn_seq attn_seq;
typedef struct attn_state attn_state; /* state.h */

typedef struct {
    int64_t n_tokens; /* most tokens that the sequence may hold, prompt and generated */
    int64_t chunk;    /* most tokens of one forward */
} attn_limits;

/* Bytes by kind: held now, or planned. scratch: buffers of the sequence that hold no state. */
typedef struct {
    size_t kv, index, scratch;
} attn_bytes;

/* Bytes that a sequence will hold at its peak, without allocating. */
status attn_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                 const attn_limits *lim, err *e);
/* Bytes beside those that its files will hold, or the host's memory: spec->tier.place says which. */
status attn_plan_slow(size_t *out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim, err *e);
status attn_seq_create(attn_seq **out, const attn_spec *s, const attn_shape *shape,
                       const attn_limits *lim, backend *be, err *e);
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

/* Counts over decode steps (prompts excluded), summed over layers: tokens attended and visible; bytes of rows
 * read, k_read of them of keys, and of index; those of all visible keys, read once as exact rows. */
typedef struct {
    int64_t steps;
    double attended, visible;
    double kv_read, k_read, index_read, full_keys;
} attn_stats;
attn_stats attn_seq_stats(const attn_seq *s);
/* The same of what moved between memory and files in decode steps, and what is in files now; zeros without any. */
tier_counts attn_seq_tier(const attn_seq *s);
/* --kv-tier host: bytes of the rows of its layers now; by decode steps: bytes that came from the host's memory and that went there;
 * rows asked for, K and V apart, and those that were on the device already. */
typedef struct {
    size_t held;
    double read, written, asked, found;
} host_counts;

/* What was counted after `from`. */
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
    STAGE_NORM, /* and rotation */
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
};

/* A forward: in decode n_seq sequences (of any strategies) with n_tok = 1, rows in this order; in a
 * prompt n_tok rows, which are the same prompt of all n_seq sequences (attention is then computed
 * once, by the first: see attn_can_share). */
typedef struct {
    attn_seq **seq;
    size_t n_seq, n_tok;
    int64_t n_prompt, prompt_done; /* tokens of the whole prompt, and those before this forward */
    unsigned flags;
    buf pos;      /* i64 [rows] absolute positions */
    buf table;    /* rope table [rows, head_dim/2, 2] of these positions */
    buf freq;     /* f32 [head_dim/2]: for tables of other positions */
    float mscale; /* factor of the tables */
} attn_step;

/* Scratch for forwards of at most max_rows rows, shared by all sequences of a batch. */
typedef struct attn_work attn_work;
status attn_work_create(attn_work **out, const attn_shape *shape, size_t max_rows, backend *be,
                        err *e);
void attn_work_free(attn_work *w);
size_t attn_work_bytes(const attn_shape *shape, size_t max_rows);

/* Whether two sequences may go through a prompt of n_prompt more tokens together: same length and row type, and both
 * strategies leave the prompt exact. How a store quantizes does not matter: it does so behind a prompt, and over
 * what is quantized already no prompt is exact. */
bool attn_can_share(const attn_seq *a, const attn_seq *b, int64_t n_prompt);

/* Called by the decoder, in this order: begin; for each layer `layer`; end. q [rows, n_heads, head_dim],
 * k, v [rows, n_kv_heads, head_dim], un-rotated, f32; out like q. */
void attn_begin(attn_work *w, const attn_step *step);
void attn_layer(attn_work *w, const attn_step *step, int layer, buf q, buf k, buf v, buf out);
void attn_end(attn_work *w, const attn_step *step);
/* In place of attn_layer, in prompt steps: stores the rows and attends nothing (synthetic contexts). */
void attn_store(attn_work *w, const attn_step *step, int layer, buf k, buf v);

/* What a layer was given and gave, called at the end of attn_layer; layer -1 in attn_begin, n_layers in attn_end
 * (then without buffers). q and k are rotated. fn NULL: nobody watches. */
typedef struct {
    const attn_step *step;
    int layer;
    buf q_raw, k_raw, q, k, v, out;
} attn_seen;
void attn_watch(attn_work *w, void (*fn)(void *ctx, const attn_seen *seen), void *ctx);

/* The slots of list `list` of segment `seg` of sequence i in the last attn_layer, in their order; returns their
 * number, -1 without such a segment. out may be NULL. */
int64_t attn_last_list(const attn_work *w, size_t i, int seg, size_t list, int32_t *out);
/* Positions that query head `head` of sequence i attended in the last attn_layer of a decode step, ascending;
 * returns their number, out may be NULL. Taken whatever their score were those before *head_end and
 * from *tail on. Only for strategies that retrieve (attn_retrieves). Of a prompt: what the last window found, before
 * each query's mask, and a position is there twice where its distance decides which segment shows it. */
int64_t attn_last_selection(const attn_work *w, size_t i, int head, int32_t *out, int64_t *head_end,
                            int64_t *tail);

#endif
