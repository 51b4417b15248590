/* SPDX-License-Identifier: MIT */
/* Request: a strategy with its parameters, a store for keys and values, a tier for its rows; and the table of
 * strategies. sequence.h has what the decoder calls. */
#ifndef ATTENTION_SPEC_H
#define ATTENTION_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/ops_rows.h"
#include "kernels/ops_select.h"

typedef struct attn_method attn_method;

/* Shape of a model, as attention needs it. */
typedef struct {
    int n_layers, n_heads, n_kv_heads, head_dim; /* n_layers: that keep keys and values */
    int rotary;                                  /* first channels of a head that are rotated; 0: all */
    int n_ropes;                                 /* rotary embeddings, each of some layers; 0: one for all */
    float scale;                                 /* softmax scale */
    const int *window;                           /* [n_layers] sliding window of a layer, 0: none; borrowed */
    int64_t max_positions;                       /* context the model was made for */
} attn_shape;

/* Returns the pairs of channels that a rotation turns in each head. */
static inline size_t attn_pairs(const attn_shape *s)
{
    return (size_t)(s->rotary ? s->rotary : s->head_dim) / 2;
}

/* ---- what the user asks for ---- */

/* Representation of rows. KV_EXACT: each on its own, as numbers or in blocks of 8 or 4 bits (ops_rows.h). */
typedef enum { KV_EXACT, KV_KIVI, KV_LOGQUANT, KV_HF } kv_kind;
typedef struct {
    kv_kind kind;
    dtype type;                    /* of exact rows */
    unsigned turned;               /* rows in blocks: KV_TURNED_* */
    int bits;                      /* all but EXACT: 2 or 4 */
    int64_t group, residual, sink; /* g and R of methods.md 10 and 11; first tokens that stay exact */
    bool slide;                    /* KIVI: key_residual=slide */
    bool hf;                       /* keys and values by token, as quanto: HF, and LOGQUANT with quant=hf_axis0_g64 */
    bool float_zero;               /* HF: zero=float */
} kv_format;

/* Parses `f16` or `kivi2:r=128:g=32`; what: the option, for errors. Errors: ST_USAGE. */
status kv_format_parse(kv_format *f, const char *text, const char *what, err *e);
/* The other way, with all parameters. */
void kv_format_text(const kv_format *f, char *out, size_t size);
const char *kv_format_name(const kv_format *f); /* without parameters */
/* exact[i] of the first n tokens: whether token i still has an exact key or value after a prompt of `prompt` tokens and
 * n - prompt steps. ST_NOMEM. */
status kv_exact_tokens(const kv_format *f, int64_t prompt, int64_t n, bool *exact, err *e);
/* The newest tokens of which a step finds a key exact, at most; of LOGQUANT those that follow each other for sure. */
int64_t kv_exact_newest(const kv_format *f);
static inline kv_format kv_exact(dtype type)
{
    return (kv_format){.kind = KV_EXACT, .type = type};
}

/* Rows of 8 or 4 bits in blocks. */
static inline bool kv_in_blocks(const kv_format *f)
{
    return dtype_in_qblocks(f->type);
}

/* The type of numbers that indexes of a store's rows hold. */
static inline dtype kv_number_type(const kv_format *f)
{
    return kv_in_blocks(f) ? DT_F16 : f->type;
}

/* True if equal keys and values give equal bytes. */
static inline bool kv_same_rows(const kv_format *a, const kv_format *b)
{
    return a->type == b->type && a->turned == b->turned;
}

/* Where rows lie, those of dense layers apart, which stay in the device's memory. HOST: all in the memory of the host,
 * where the device reads and writes them; what a strategy always attends and the newest `window` tokens are on the
 * device as well, and `cache` bytes of rows that were read; of stores with codes exact rows alone, where they are few.
 * On a CPU it is the device's memory. DISK: all but the newest `window` tokens and what a strategy always attends in
 * files in `dir` ("": $TMPDIR, else the current folder), of which `cache` bytes of blocks stay in memory. */
typedef enum { KV_DEVICE, KV_HOST, KV_DISK } kv_tier_kind;
typedef struct {
    kv_tier_kind kind;
    int64_t window;
    size_t cache;
    char dir[256];
} kv_tier;

/* Parses `disk`, `disk:cache=512M:window=256:DIR`, `host:cache=512M:window=256`. Errors: ST_USAGE. */
status kv_tier_parse(kv_tier *t, const char *text, err *e);
const char *kv_tier_dir(const kv_tier *t);
const char *kv_tier_name(kv_tier_kind p);

enum { ATTN_MAX_PARAMS = 24 };

/* A parameter: a number from min to max, one of `choices` (words separated by spaces) or, where max is beyond their
 * last one, a number from behind it to max, or with attn_fraction a number in (0, 1], written with up to 4 decimals and
 * held in parts of ATTN_FRACTION, of which it has at most max, or `off`: 0; with attn_or_all a number from min to max,
 * or `all`: ATTN_ALL. */
typedef struct {
    const char *key, *choices, *help;
    int64_t def, min, max; /* choices: indexes into the list */
} attn_param;
enum { ATTN_FRACTION = 10000 };
extern const char attn_fraction[];
enum { ATTN_ALL = -1 };
extern const char attn_or_all[];
/* `off`: 0, or sample:N with N from 2 to max: N. */
extern const char attn_or_sample[];

/* A set of layers. */
enum { ATTN_MAX_LAYERS = 256, ATTN_TEXT = 256 };
typedef struct {
    bool has[ATTN_MAX_LAYERS];
} attn_layers;

#define ATTN_NO_BUDGET ((int64_t)1 << 40)

typedef struct {
    const attn_method *method;
    int64_t value[ATTN_MAX_PARAMS]; /* in the order of method->params */
    int64_t budget;                 /* tokens; 0 for a method without one; from ATTN_NO_BUDGET on: any number */
    attn_layers skip;               /* these are dense */
    kv_format kv;
    kv_tier tier;
    bool two_stores;      /* --kv asks for codes beside a method that is a store: attn_spec_check refuses */
    bool own_budget;      /* it says its budget itself */
    bool uncertified;     /* --certify was asked of a method that cannot: attn_spec_check refuses */
    bool forced;          /* retrieval: select even where the budget covers everything (tests, recall of tensors) */
    char text[ATTN_TEXT]; /* as written on the command line */
} attn_spec;

/* Values of the options that apply to every strategy of a list; a key inside a strategy wins. */
typedef struct {
    int64_t budget;      /* 0: the method's default, */
    bool has_budget;     /* unless 0 is what was asked for, which attn_spec_check refuses */
    const char *skip;    /* NULL: the method's default; "2" = the first two, "0+16" = a list */
    const char *certify; /* the parameter certify of strategies that choose; NULL: their default */
    kv_format kv;
    const kv_tier *tier; /* NULL: in the device's memory */
} attn_options;

/* Parses `name[:key=value]...`; a store inside it is written with '/': `fier:kv=kivi2/r=64`.
 * Errors: ST_USAGE, naming the word, what is known and the range. */
status attn_spec_parse(attn_spec *s, const char *text, const attn_options *o, err *e);
/* Checks that the strategy can run on a model; ST_USAGE or ST_UNSUPPORTED with the reason. */
status attn_spec_check(const attn_spec *s, const attn_shape *shape, err *e);
/* Checks that a backend has the strategy's ops; ST_UNSUPPORTED with their names. */
status attn_backend_check(const attn_spec *s, const backend *be, err *e);
/* Writes all parameters with their values: "budget=256 sink=4 pos=reindex". */
void attn_spec_params(const attn_spec *s, char *out, size_t size);
/* A strategy as two words: its name with all parameters, and its store. */
enum { ATTN_WRITTEN = 2048 };
void attn_spec_write(const attn_spec *s, char strategy[ATTN_WRITTEN], char store[128]);
/* The strategy that was written so; ST_FORMAT or ST_USAGE where none is. */
status attn_spec_read(attn_spec *s, const char *strategy, const char *store, err *e);
/* Copies a written strategy without parameters that were removed, where their values changed nothing. */
void attn_spec_known(char out[ATTN_WRITTEN], const char *strategy);
bool attn_has_budget(const attn_spec *s);
/* The share of attention that its selections certify that no head misses more; 0: it certifies nothing. */
double attn_certify_eps(const attn_spec *s);
/* What a budget counts, in a word: "kept" tokens between steps; "exact", of these those that are not demoted; "total",
 * all that a step attends; "+forced", of these what is chosen, and forced tokens come on top; a method's own word; "-"
 * without a budget. "/q" behind it: in a list of each query head. */
void attn_budget_counts(const attn_spec *s, char out[16]);
/* True if the strategy keeps everything and chooses in each step; slots are then positions. */
bool attn_retrieves(const attn_spec *s);
/* True if it also chooses in prompts, window by window. */
bool attn_by_window(const attn_spec *s);
/* Returns n such that the first k n rows of a prompt that ends at position `end` depend on no later tokens of it: 1, or
 * the length of a window, whose queries choose together what each of them attends. */
int64_t attn_prompt_grain(const attn_spec *s, int64_t end);
/* True if a layer runs full attention: skip, or a window within the budget. */
bool attn_is_dense(const attn_spec *s, const attn_shape *shape, int layer);
/* Returns the parameter gqa: how heads share what is attended. Methods without one treat all heads alike:
 * GQA_LAYER_VOTE. */
gqa_mode attn_gqa(const attn_spec *s);

/* The table. */
const attn_method *attn_method_find(const char *name);
/* The error that attn_method_find has no such name: ST_USAGE with the option, the nearest name and all. */
status attn_method_unknown(const char *option, const char *name, err *e);
const attn_method *const *attn_methods(void); /* NULL-terminated */
const char *attn_method_name(const attn_method *m);
/* --help-attn: one method with its parameters, defaults and source; NULL: the whole list. */
void attn_print_help(FILE *f, const attn_method *m);

#endif
