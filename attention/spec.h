/* SPDX-License-Identifier: MIT */
/* Strategy specifications: a strategy with its parameters, store and tier; the table of strategies. The decoder's
 * interface is sequence.h. */
#ifndef ATTENTION_SPEC_H
#define ATTENTION_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/ops_rows.h"
#include "kernels/ops_select.h"

typedef struct attn_method attn_method;

/* Shape of a model. */
typedef struct {
    int n_layers, n_heads, n_kv_heads, head_dim; /* n_layers: layers with keys and values */
    int rotary;                                  /* number of leading channels of a head that are rotated; 0: all */
    int n_ropes;                                 /* number of different rotary embeddings; 0: one for all layers */
    float scale;                                 /* softmax scale */
    const int *window;                           /* [n_layers] sliding window of a layer, 0: none; borrowed */
    int64_t max_positions;                       /* trained context length */
} attn_shape;

/* Returns the number of rotated channel pairs of a head. */
static inline size_t attn_pairs(const attn_shape *s)
{
    return (size_t)(s->rotary ? s->rotary : s->head_dim) / 2;
}

/* True if some channels of a head are not rotated. attn_job.rope rotates whole keys only. */
static inline bool attn_rotates_part(const attn_shape *s)
{
    return 2 * attn_pairs(s) < (size_t)s->head_dim;
}

/* ---- specification ---- */

/* Representation of rows. KV_PLAIN: float rows or rows in 8- or 4-bit blocks, written once (ops_rows.h). */
typedef enum { KV_PLAIN, KV_KIVI, KV_LOGQUANT, KV_HF } kv_kind;
typedef struct {
    kv_kind kind;
    dtype type;                    /* float or block rows; quantized stores: float rows */
    unsigned rotated;              /* rows in blocks: KV_ROTATED_* */
    int bits;                      /* quantized stores: 2 or 4 */
    int64_t group, residual, sink; /* g and R of methods.md 10 and 11; first tokens that stay unquantized */
    bool slide;                    /* KIVI: key_residual=slide */
    bool hf;         /* keys and values by token, as in quanto: HF, and LOGQUANT with quant=hf_axis0_g64 */
    bool float_zero; /* HF: zero=float */
} kv_format;

/* Parses `f16` or `kivi2:r=128:g=32`. what: the option, for errors. ST_USAGE. */
status kv_format_parse(kv_format *f, const char *text, const char *what, err *e);
/* Writes a format with all parameters. */
void kv_format_text(const kv_format *f, char *out, size_t size);
const char *kv_format_name(const kv_format *f); /* without parameters */
/* Sets is_float[i] if token i still has an unquantized key or value after a prompt of `prompt` tokens and n - prompt
 * steps. ST_NOMEM. */
status kv_float_tokens(const kv_format *f, int64_t prompt, int64_t n, bool *is_float, err *e);
/* Returns the most newest tokens with unquantized keys in a step; LOGQUANT: the number that is guaranteed. */
int64_t kv_float_newest(const kv_format *f);
static inline kv_format kv_plain(dtype type)
{
    return (kv_format){.kind = KV_PLAIN, .type = type};
}

/* True for rows in blocks of 8 or 4 bits. */
static inline bool kv_in_blocks(const kv_format *f)
{
    return dtype_in_qblocks(f->type);
}

/* Returns the number type for indexes over a store's rows. */
static inline dtype kv_number_type(const kv_format *f)
{
    return kv_in_blocks(f) ? DT_F16 : f->type;
}

/* True if equal keys and values give equal bytes. */
static inline bool kv_same_rows(const kv_format *a, const kv_format *b)
{
    return a->type == b->type && a->rotated == b->rotated;
}

/* Tier of rows. Rows of dense layers stay in device memory.
 * HOST: the device reads and writes the rows in host memory. It holds copies of the newest `window` tokens, of tokens
 * that the strategy always attends, and of `cache` bytes of rows that were read. Of quantized stores it holds only the
 * unquantized rows, and only if a longest prompt limits them. On a CPU, host memory is device memory.
 * DISK: all rows are in files in `dir` ("": $TMPDIR, or else the current folder), except for the newest `window` tokens
 * and tokens that the strategy always attends. `cache` bytes of blocks stay in memory. */
typedef enum { KV_DEVICE, KV_HOST, KV_DISK } kv_tier_kind;
typedef struct {
    kv_tier_kind kind;
    int64_t window;
    size_t cache;
    char dir[256];
} kv_tier;

/* Parses `device`, `host:cache=512M:window=256` or `disk:cache=512M:window=256:DIR`. ST_USAGE. */
status kv_tier_parse(kv_tier *t, const char *text, err *e);
const char *kv_tier_dir(const kv_tier *t);
const char *kv_tier_name(kv_tier_kind p);

enum { ATTN_MAX_PARAMS = 24 };

/* Parameter. Its values depend on `choices`:
 * NULL: a number from min to max.
 * words separated by spaces: one of them, stored as its index; also a number from their count to max, if max allows.
 * attn_fraction: `off` (0), or a number in (0, 1] with up to 4 decimals, stored times ATTN_FRACTION, at most max.
 * attn_or_all: `all` (ATTN_ALL), or a number from min to max.
 * attn_or_sample: `off` (0), or `sample:N` (N) with N from 2 to max. */
typedef struct {
    const char *key, *choices, *help;
    int64_t def, min, max; /* words: indexes into `choices` */
} attn_param;
enum { ATTN_FRACTION = 10000 };
extern const char attn_fraction[];
enum { ATTN_ALL = -1 };
extern const char attn_or_all[];
extern const char attn_or_sample[];

/* Set of layers. */
enum { ATTN_MAX_LAYERS = 256, ATTN_TEXT = 256 };
typedef struct {
    bool has[ATTN_MAX_LAYERS];
} attn_layers;

/* Kernel of attention in decode steps (attn_job.tiles). AUTO: rows, unless drafts choose (drafter.h). */
typedef enum { ATTN_DECODE_AUTO, ATTN_DECODE_ROWS, ATTN_DECODE_TILES } attn_decode_kernel;

#define ATTN_NO_BUDGET ((int64_t)1 << 40)

typedef struct {
    const attn_method *method;
    int64_t value[ATTN_MAX_PARAMS]; /* in the order of method->params */
    int64_t budget;                 /* tokens; 0: method without a budget; ATTN_NO_BUDGET or more: unlimited */
    attn_layers skip;               /* dense layers */
    kv_format kv;
    kv_tier tier;
    attn_decode_kernel decode;
    bool two_stores;      /* --kv is not float although the method is a store; attn_spec_check rejects it */
    bool own_budget;      /* the strategy itself sets its budget */
    bool uncertified;     /* --certify with a method that does not support it; attn_spec_check rejects it */
    bool forced;          /* retrieval: select even if the budget covers everything (tests, recall of tensors) */
    char text[ATTN_TEXT]; /* as written on the command line */
} attn_spec;

/* Options for every strategy of a list; a key inside a strategy overrides them. */
typedef struct {
    int64_t budget;      /* 0: the method's default, unless has_budget */
    bool has_budget;     /* budget was given; attn_spec_check rejects 0 */
    const char *skip;    /* NULL: the method's default; "2" = the first two, "0+16" = a list */
    const char *certify; /* parameter certify of strategies that select; NULL: their default */
    kv_format kv;
    const kv_tier *tier; /* NULL: device memory */
} attn_options;

/* Parses `name[:key=value]...`. A store in it uses '/' for ':': `fier:kv=kivi2/r=64`. ST_USAGE names the word and the
 * allowed values. */
status attn_spec_parse(attn_spec *s, const char *text, const attn_options *o, err *e);
/* Checks that the strategy can run on a model; ST_USAGE or ST_UNSUPPORTED with the reason. */
status attn_spec_check(const attn_spec *s, const attn_shape *shape, err *e);
/* Checks that a backend has the strategy's ops; ST_UNSUPPORTED with the names of missing ones. */
status attn_backend_check(const attn_spec *s, const backend *be, err *e);
/* Writes all parameters with their values: "budget=256 sink=4 pos=reindex". */
void attn_spec_params(const attn_spec *s, char *out, size_t size);
enum { ATTN_WRITTEN = 2048 };
/* Writes a strategy as two words: its name with all parameters, and its store. */
void attn_spec_write(const attn_spec *s, char strategy[ATTN_WRITTEN], char store[128]);
/* Reads a strategy written by attn_spec_write; ST_FORMAT or ST_USAGE if it is invalid. */
status attn_spec_read(attn_spec *s, const char *strategy, const char *store, err *e);
/* Copies a written strategy without removed parameters whose values had no effect. */
void attn_spec_known(char out[ATTN_WRITTEN], const char *strategy);
bool attn_has_budget(const attn_spec *s);
/* True if tiles can multiply the strategy's rows: elements of f16 or bf16. */
bool attn_takes_tiles(const attn_spec *s);
/* Returns the certified bound on the missed attention of a head; 0: no certificates. */
double attn_certify_eps(const attn_spec *s);
/* Writes a word for the tokens that a budget counts. "kept": kept between steps; "exact": kept and not demoted;
 * "total": attended by a step; "+forced": selected, in addition to forced tokens; a method's own word; "-": no budget.
 * The suffix "/q" means per query head. */
void attn_budget_counts(const attn_spec *s, char out[16]);
/* True if the strategy keeps everything and selects in each step. Slots are then positions. */
bool attn_retrieves(const attn_spec *s);
/* True if the strategy also selects in prompts, window by window. */
bool attn_by_window(const attn_spec *s);
/* Returns n such that, in a prompt that ends at position `end`, the first k n rows do not depend on later tokens, for
 * any k. This is 1, or the length of a window, whose queries have a common selection. */
int64_t attn_prompt_grain(const attn_spec *s, int64_t end);
/* True if a layer runs full attention: by skip, or because its window is within the budget. */
bool attn_is_dense(const attn_spec *s, const attn_shape *shape, int layer);
/* Returns the mode in which heads share a selection. Methods without gqa treat all heads alike: GQA_LAYER_VOTE. */
gqa_mode attn_gqa(const attn_spec *s);

/* ---- the table ---- */

/* A name for a strategy with parameters. */
typedef struct {
    const char *name, *strategy, *method, *summary;
} attn_alias;

/* Returns the alias with which `text` begins, alone or before a colon; NULL: none. */
const attn_alias *attn_alias_find(const char *text);
const attn_alias *attn_aliases(void); /* ends with name NULL */
const attn_method *attn_method_find(const char *name);
/* Returns the error for an unknown name, ST_USAGE, with the option, the nearest name and all names. */
status attn_method_unknown(const char *option, const char *name, err *e);
const attn_method *const *attn_methods(void); /* NULL-terminated */
const char *attn_method_name(const attn_method *m);
/* Prints --help-attn: a method with its parameters, defaults and source; NULL: the list of methods and aliases. */
void attn_print_help(FILE *f, const attn_method *m);

#endif
