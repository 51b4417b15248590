/* SPDX-License-Identifier: MIT */
/* Inside of stores and of the tiers below them. Included by store*.c, tier*.c and the store's test. */
#ifndef ATTENTION_STORE_IMPL_H
#define ATTENTION_STORE_IMPL_H

#include "attention/tier.h"
#include "kernels/ops_codes.h"

enum { KV_K, KV_V, KV_HALVES, KV_RUN = 64 };

/* Which tokens are exact is a matter of the host alone: it follows from counts of tokens. A token has
 * an exact row, the lowest free one, until both its K and its V are quantized; the step after that
 * may use the row again. While nothing is quantized, row = slot. */
typedef struct kv_quantized kv_quantized;
struct kv_quantized {
    backend *be;
    kv_format f;
    int64_t cap, chunk;     /* slots; most tokens of a forward */
    int64_t n_rows;         /* exact rows that there are */
    int64_t n;              /* tokens put */
    int64_t n_settled;      /* tokens that the rule has seen, without those of an unfinished prompt */
    int64_t first;          /* first token of the current forward */
    int32_t *at[KV_HALVES]; /* [cap] as kv_codes.k_at and v_at, which at_buf holds */
    buf at_buf[KV_HALVES];
    bool *used;                 /* [n_rows] exact rows */
    int64_t lowest;             /* none below it is free */
    buf slots;                  /* i64 [chunk] rows of this forward's tokens */
    int64_t n_coded[KV_HALVES]; /* tokens in codes = code rows taken */
    int32_t *due[KV_HALVES];    /* [cap] tokens that become codes in this forward, in this order */
    int64_t n_due[KV_HALVES];
    buf src[KV_HALVES];    /* i64 [cap] their exact rows */
    int64_t *host;         /* [cap] for uploads */
    unsigned char *halves; /* [cap] of find_runs: halves of tokens in an exact row; marks of checks */
    /* Runs of exact rows that a prompt's end leaves free, long enough to be given back. */
    struct {
        int64_t from, to;
    } * run; /* [n_rows / KV_RUN + 1] */
    int64_t n_runs;
    bool *mark; /* [groups] of kv_quantized_bytes_of */
    /* LOGQUANT: exact tokens of the list, ascending, and those that left it (methods.md 11.3). */
    int32_t *list, *staged; /* [3 W], [W + group] */
    int64_t n_list, n_staged;
};

struct kv_store {
    backend *be;
    kv_format f;
    int n_layers;
    size_t n_heads, head_dim;
    int64_t prompt;      /* longest prompt; 0: any */
    kv_rows *layer;      /* [n_layers]; k.p NULL: nothing stored for this layer */
    kv_quantized *coded; /* NULL: all rows are exact */
    row_tier *tier;      /* NULL: the device's memory */
    int64_t n;           /* tokens including those of the current forward */
    unsigned flags;      /* of it */
};

/* A buffer and its size. */
typedef struct {
    buf *b;
    size_t bytes;
} sized_buf;

/* Buffers of a layer's codes: k, v, k_pair, v_pair. r->codes.bits is set. */
enum { N_CODE_BUFS = 4 };
void kv_code_bufs(kv_rows *r, sized_buf out[N_CODE_BUFS]);
/* Returns the bytes of exact K (or V) rows of a layer. */
size_t kv_exact_half_bytes(const kv_rows *r);
/* Bytes of n exact rows, K and V, of all regions. */
size_t kv_exact_bytes(const kv_format *f, size_t n_heads, size_t head_dim, int64_t n);
/* Tokens of a quantization group of K. */
int64_t kv_code_group(const kv_format *f);
/* Returns the most exact rows that n slots of a quantized store need at once: a prompt before it is quantized, and what
 * stays exact after it. prompt: the longest; 0: any. */
int64_t kv_exact_rows(const kv_format *f, int64_t prompt, int64_t n);
/* The codes of one layer without its buffers: what sizes follow from. */
kv_codes kv_codes_of(const kv_format *f, int64_t cap);
/* Bytes of K or V of n tokens of which n_coded are in codes, in one region. */
size_t kv_half_bytes(const kv_format *f, size_t head_dim, int half, int64_t n, int64_t n_coded);

/* store_quantized.c */
status kv_quantized_create(kv_quantized **out, const kv_store_options *o, err *e);
void kv_quantized_free(kv_quantized *s);
void kv_quantized_reset(kv_quantized *s);
void kv_quantized_begin(kv_quantized *s, int64_t length, int64_t n_tok, unsigned flags);
void kv_quantized_layer_end(kv_quantized *s, const kv_rows *rows);
void kv_quantized_end(kv_quantized *s);
/* *n_rows: exact rows that may hold something. */
status kv_quantized_state(kv_quantized *s, attn_state *v, int64_t n, int64_t *n_rows, err *e);
bool kv_quantized_rewind(kv_quantized *s, int64_t n);
size_t kv_quantized_bytes_of(const kv_quantized *s, size_t head_dim, const int64_t *pos, int64_t n);

/* store_rules.c: adds to `due` what is quantized once the sequence has n tokens, all settled; prompt_end: the last one
 * ended a prompt. */
void kv_rule_due(kv_quantized *s, int64_t n, bool prompt_end);
/* Forgets the tokens from n on; false: a token was quantized since there were n, and nothing changes. */
bool kv_rule_rewind(kv_quantized *s, int64_t n);
/* Validates loaded state against the rule: n, at, n_coded, list and staged. */
status kv_rule_check(kv_quantized *s, err *e);
/* Room of list and staged; 0 where the rule needs none. */
size_t kv_rule_list(const kv_format *f);
size_t kv_rule_staged(const kv_format *f);

/* Bytes of the code rows and pairs of n tokens in one region; of whole groups where K has them. */
size_t kv_code_bytes(const kv_format *f, size_t head_dim, int half, int64_t n);

/* ---- tiers (tier.h) ---- */

/* Hooks of a tier below the device's memory. A missing hook does nothing. */
typedef struct {
    size_t align; /* rows of a head are a multiple of it; 0: any number */
    /* Opens what row_tier_open has described; on failure `close` releases it. */
    status (*open)(row_tier *t, err *e);
    void (*close)(row_tier *t);
    /* row_tier_plan */
    void (*plan)(const row_tier *t, attn_bytes *part, size_t *slow);
    /* True if exact rows, or quantized ones, are allocated in the host's memory. */
    bool (*in_host)(const row_tier *t, bool exact);
    /* Adds a layer whose rows were allocated. */
    status (*add)(row_tier *t, kv_rows *r, int layer, err *e);
    /* Run inside kv_store_*: before rows of a layer are quantized, after a layer, after a step, before a rewind to n
     * tokens, at a reset. */
    void (*before_codes)(kv_store *s, int layer);
    void (*layer_end)(kv_store *s, int layer);
    void (*step_end)(kv_store *s);
    void (*rewind)(kv_store *s, int64_t n);
    void (*reset)(kv_store *s);
} row_tier_kind;
extern const row_tier_kind row_tier_disk, row_tier_host;

struct row_tier {
    const row_tier_kind *kind;
    backend *be; /* NULL in plans */
    const attn_spec *spec;
    const attn_shape *shape;
    const attn_limits *lim;
    const bool *layers; /* [n_layers] */
    int n;              /* number of these layers */
    /* DISK: tokens that never leave memory are the first `first` and the newest `newest`; in decode steps others go
     * when there are `flush` of them. */
    int64_t first, newest, flush;
    tier *files;
    /* HOST, unless that is the device's memory: copies on the device. Exact rows of stores with codes stay on the
     * device, since they are few. */
    kv_near *near; /* [n_layers]; NULL: none */
    buf claim, moved;
};

/* Calls a hook of the store's tier, if it has one. */
#define TIER(s, hook, ...)                                                                                             \
    do {                                                                                                               \
        if ((s)->tier && (s)->tier->kind->hook) (s)->tier->kind->hook(__VA_ARGS__);                                    \
    } while (0)

/* Memory for exact rows, or for codes. t NULL: the device's. */
status row_tier_alloc(const row_tier *t, backend *be, buf *out, size_t bytes, bool exact, const char *what, err *e);
void row_tier_free(const row_tier *t, backend *be, buf b, size_t bytes, bool exact);

#endif
