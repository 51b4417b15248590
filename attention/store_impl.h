/* SPDX-License-Identifier: MIT */
/* Internals of stores and tiers, for store*.c, tier*.c and the store's test. */
#ifndef ATTENTION_STORE_IMPL_H
#define ATTENTION_STORE_IMPL_H

#include "attention/tier.h"
#include "kernels/ops_codes.h"

enum { KV_K, KV_V, KV_HALVES, KV_RUN = 64 };

/* State of a quantized store. The host decides from token counts which tokens are quantized. A token has a float row,
 * the lowest free one, until both its K and its V are quantized. The next step may reuse the row. While nothing is
 * quantized, row = slot. */
typedef struct kv_quantized kv_quantized;
struct kv_quantized {
    backend *be;
    kv_format f;
    int64_t cap, chunk;     /* slots; most tokens of a forward */
    int64_t n_rows;         /* number of float rows */
    int64_t n;              /* number of tokens */
    int64_t n_settled;      /* tokens that the rule has processed, without those of an unfinished prompt */
    int64_t first;          /* first token of the current forward */
    int32_t *at[KV_HALVES]; /* [cap] kv_codes.k_at and v_at; at_buf: device copies */
    buf at_buf[KV_HALVES];
    bool *used;                 /* [n_rows] float rows in use */
    int64_t lowest;             /* no row below it is free */
    buf slots;                  /* i64 [chunk] float rows of this forward's tokens */
    int64_t n_coded[KV_HALVES]; /* number of quantized tokens, which is that of quantized rows */
    int32_t *due[KV_HALVES];    /* [cap] tokens that this forward quantizes, in order */
    int64_t n_due[KV_HALVES];
    buf src[KV_HALVES];    /* i64 [cap] float rows of `due` */
    int64_t *host;         /* [cap] upload buffer */
    unsigned char *halves; /* [cap] scratch of find_runs (halves that use a float row) and of checks */
    /* Runs of float rows that the end of a prompt frees, long enough to release their memory. */
    struct {
        int64_t from, to;
    } * run; /* [n_rows / KV_RUN + 1] */
    int64_t n_runs;
    bool *mark; /* [groups] scratch of kv_quantized_bytes_of */
    /* LOGQUANT: tokens of the list, ascending, and tokens that left it and wait for a group (methods.md 11.3). */
    int32_t *list, *staged; /* [3 W], [W + group] */
    int64_t n_list, n_staged;
};

struct kv_store {
    backend *be;
    kv_format f;
    int n_layers;
    size_t n_heads, head_dim;
    int64_t prompt;      /* longest prompt; 0: any */
    kv_rows *layer;      /* [n_layers]; k.p NULL: no rows in this layer */
    kv_quantized *coded; /* NULL: float or block store */
    row_tier *tier;      /* NULL: device memory */
    int64_t n;           /* tokens including those of the current forward */
    unsigned flags;      /* of the current forward */
};

/* Buffer with its size. */
typedef struct {
    buf *b;
    size_t bytes;
} sized_buf;

enum { N_CODE_BUFS = 4 };
/* Lists the buffers of a layer's quantized rows: k, v, k_pair, v_pair. Requires r->codes.bits. */
void kv_code_bufs(kv_rows *r, sized_buf out[N_CODE_BUFS]);
/* Returns the bytes of a layer's float or block rows of K (or V). */
size_t kv_plain_half_bytes(const kv_rows *r);
/* Returns the bytes of n float or block rows, K and V, in all regions. */
size_t kv_plain_bytes(const kv_format *f, size_t n_heads, size_t head_dim, int64_t n);
/* Returns the tokens of a quantization group of K. */
int64_t kv_code_group(const kv_format *f);
/* Returns the most float rows that n slots of a quantized store need at once: a prompt before its quantization, and the
 * tokens that stay unquantized. prompt: the longest; 0: any. */
int64_t kv_float_rows(const kv_format *f, int64_t prompt, int64_t n);
/* Returns the quantization of one layer without buffers, for sizes. */
kv_codes kv_codes_of(const kv_format *f, int64_t cap);
/* Returns the bytes of K or V of n tokens, n_coded of them quantized, in one region. */
size_t kv_half_bytes(const kv_format *f, size_t head_dim, int half, int64_t n, int64_t n_coded);

/* store_quantized.c */
status kv_quantized_create(kv_quantized **out, const kv_store_options *o, err *e);
void kv_quantized_free(kv_quantized *s);
void kv_quantized_reset(kv_quantized *s);
void kv_quantized_begin(kv_quantized *s, int64_t length, int64_t n_tok, unsigned flags);
void kv_quantized_layer_end(kv_quantized *s, const kv_rows *rows);
void kv_quantized_end(kv_quantized *s);
/* Walks over the state of n tokens. *n_rows: number of leading float rows that may be in use. */
status kv_quantized_state(kv_quantized *s, attn_state *v, int64_t n, int64_t *n_rows, err *e);
bool kv_quantized_rewind(kv_quantized *s, int64_t n);
size_t kv_quantized_bytes_of(const kv_quantized *s, size_t head_dim, const int64_t *pos, int64_t n);

/* store_rules.c */
/* Adds to `due` the tokens that are quantized once the sequence has n tokens. prompt_end: the last token ended a
 * prompt.
 */
void kv_rule_due(kv_quantized *s, int64_t n, bool prompt_end);
/* Drops the tokens from n on. Returns false and changes nothing if a token was quantized since then. */
bool kv_rule_rewind(kv_quantized *s, int64_t n);
/* Validates loaded state against the rule: n, at, n_coded, list, staged. */
status kv_rule_check(kv_quantized *s, err *e);
/* Return the capacity of `list` and `staged`; 0: not needed. */
size_t kv_rule_list(const kv_format *f);
size_t kv_rule_staged(const kv_format *f);

/* Returns the bytes of n quantized tokens with their scales in one region. K in groups: of whole groups only. */
size_t kv_code_bytes(const kv_format *f, size_t head_dim, int half, int64_t n);

/* ---- tiers (tier.h) ---- */

/* Hooks of a tier below the device's memory. A missing hook does nothing. */
typedef struct {
    size_t align; /* rows per head are a multiple of it; 0: any number */
    /* Opens the tier; after a failure `close` releases it. */
    status (*open)(row_tier *t, err *e);
    void (*close)(row_tier *t);
    /* Implements row_tier_plan. */
    void (*plan)(const row_tier *t, attn_bytes *part, size_t *slow);
    /* True if float and block rows (plain), or quantized rows, are allocated in host memory. */
    bool (*in_host)(const row_tier *t, bool plain);
    /* Adds a layer with allocated rows. */
    status (*add)(row_tier *t, kv_rows *r, int layer, err *e);
    /* Called by the store: before rows of a layer are quantized, after a layer, after a step, in a rewind to n tokens,
     * in a reset. */
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
    int n;              /* number of true entries */
    /* DISK: number of first and newest tokens that stay in memory; tokens that a decode step writes at least. */
    int64_t first, newest, flush;
    tier *files;
    /* HOST, unless host memory is device memory: copies on the device. */
    kv_near *near; /* [n_layers]; NULL: none */
    buf claim, moved;
};

/* Calls a hook of the store's tier, if it has one. */
#define TIER(s, hook, ...)                                                                                             \
    do {                                                                                                               \
        if ((s)->tier && (s)->tier->kind->hook) (s)->tier->kind->hook(__VA_ARGS__);                                    \
    } while (0)

/* Allocates memory for plain or quantized rows. t NULL: device memory. */
status row_tier_alloc(const row_tier *t, backend *be, buf *out, size_t bytes, bool plain, const char *what, err *e);
void row_tier_free(const row_tier *t, backend *be, buf b, size_t bytes, bool plain);

#endif
