/* SPDX-License-Identifier: MIT */
/* libkvasir: LLM inference with KV-cache retrieval built in.
 *
 * Functions that can fail return a kvasir_status and take room for a message last: one line that ends with 0, "" after
 * KVASIR_OK; msg NULL: not wanted. Messages call settings by the names that they have here or in the program `kvasir`.
 * After an error nothing was made: what `out` points to is NULL, and a session is as it was before, or where it says so
 * empty. The library never ends the program, prints nothing and leaves signals alone.
 *
 * Models are files that are mapped: one that becomes shorter while it is in use raises SIGBUS, as with every mapping.
 * Files of sessions that grow beyond a limit of the system raise SIGXFSZ, which a program that has such limits ignores.
 *
 * Threads: any thread may use a model, and one at a time a session. Sessions of one model take turns; those that are to
 * compute at once go into one call of kvasir_decode. Callbacks come in the thread of the call that they belong to and
 * may not use its model. After fork() the child may not use what the parent has made.
 *
 * Structs begin with their own size, struct_size, which the caller sets: `kvasir_options o = {.struct_size = sizeof
 * o}`. Fields are only ever appended, and 0 stands for the default: programs work with later libraries, and with
 * earlier ones as long as they ask for nothing that these lack (KVASIR_UNSUPPORTED). */
#ifndef KVASIR_H
#define KVASIR_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVASIR_API __attribute__((visibility("default")))
#else
#define KVASIR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What a function returns. Later versions may have more. */
typedef int32_t kvasir_status;
enum {
    KVASIR_OK,
    KVASIR_USAGE,       /* a wrong argument */
    KVASIR_NOMEM,       /* an allocation failed, or a plan does not fit */
    KVASIR_IO,          /* the system refused to read or write */
    KVASIR_FORMAT,      /* the content of a file is wrong */
    KVASIR_UNSUPPORTED, /* right, but not handled here */
    KVASIR_DEVICE,      /* the device failed */
    KVASIR_INTERRUPTED  /* a callback stopped it */
};

/* "0.1.0": of the library that is loaded. */
KVASIR_API const char *kvasir_version(void);

/* ---- models ---- */

typedef struct kvasir_model kvasir_model;

/* Levels of kvasir_options.log. */
enum { KVASIR_INFO, KVASIR_WARNING };

/* Drafts speed up decoding and leave all bits as they are: a step also verifies tokens that may follow, and if the next
 * token that is fed is one of them, its logits are known. They act where kvasir_decode has one session, and on the last
 * token of kvasir_session_feed, unless the session is watched. Sessions then need a strategy that attends everything
 * and a store without codes, else creating them fails with KVASIR_UNSUPPORTED. A strategy does not draft for sessions
 * that come from kvasir_session_fork or kvasir_session_load. kvasir_stats counts verified tokens as steps, also those
 * that were not fed then.
 *
 * The prefix cache keeps the rows of prompts, on a CPU. A prompt that is fed to an empty session takes from the cache
 * the tokens with which an earlier one began, computes the others, and has the same bits. A hit requires the same
 * strategy, store and limit; some strategies cannot share prompts. Prompts with scores neither use the cache nor enter
 * it. Files of the cache are those of `kvasir --prefix-disk`. */
typedef struct {
    size_t struct_size;
    const char *device;  /* "auto" (default), "cpu", "cuda", "cuda:N" */
    const char *weights; /* matrices as "f32", "f16", "bf16", "q8" or "q4" (in memory); default: as in the files */
    const char *gemm;    /* products of prompts: "auto" (default), or "builtin", the same bits on every machine */
    int32_t threads;     /* of the CPU; default: its cores */
    int32_t batch;       /* most sessions of one kvasir_decode; default 8 */
    int32_t chunk;       /* tokens of a prompt that go through the model together; default 512, on a GPU 2048 */
    int32_t flags;       /* 0 */
    int64_t ctx;         /* most tokens of sessions that do not say so themselves; default: the model's context */
    /* One line, without its end. NULL: not wanted. */
    void (*log)(void *arg, int32_t level, const char *line);
    /* Behind each chunk of a prompt or each step of kvasir_session_feed, and of the tokens that it was given how many
     * are done. 0 stops it: KVASIR_INTERRUPTED. */
    int32_t (*progress)(void *arg, int64_t done, int64_t total);
    void *arg;                 /* of both */
    const char *draft;         /* "ngram", a strategy, or both ("ngram,quest:budget=256"); NULL: no drafts */
    const char *prefix_disk;   /* folder of the prefix cache, private to the user; NULL: none */
    int64_t prefix_ram;        /* most bytes of cached prompts in memory; default 0, with prefix_disk a quarter of it */
    int64_t prefix_disk_bytes; /* most bytes in the folder; default 8192 MiB */
    int64_t prefix_min;        /* a prompt is cached if at least so many of its tokens are new; default 1024 */
} kvasir_options;

/* Opens a folder as Hugging Face has them: config.json, safetensors, tokenizer. options NULL: all defaults. *out is
 * released with kvasir_model_free. */
KVASIR_API kvasir_status kvasir_model_load(kvasir_model **out, const char *dir, const kvasir_options *options,
                                           char *msg, size_t msg_size);
/* The model goes with the last of its sessions and texts. NULL is fine. */
KVASIR_API void kvasir_model_free(kvasir_model *model);

typedef struct {
    size_t struct_size;
    const char *name;         /* of the folder; texts live as long as the model */
    const char *architecture; /* "LlamaForCausalLM" */
    const char *weights;      /* "bf16": of the matrices */
    const char *device;       /* "cpu" */
    const char *about;        /* SIMD level and library of products, on which last bits depend */
    int64_t parameters;
    int64_t weight_bytes;
    int64_t max_positions;                               /* tokens of context that the model was made for */
    int64_t ctx;                                         /* default limit of sessions */
    int32_t vocab, layers, heads, kv_heads, head_dim;    /* heads: of queries */
    int32_t hidden, feed_forward, threads, batch, chunk; /* the last three as they are, not 0 */
    int32_t bos;                                         /* token that begins a text; -1: none */
    int32_t adds_bos;                                    /* whether plain text should begin with it */
} kvasir_info;

/* Fills *info, whose struct_size is set. */
KVASIR_API kvasir_status kvasir_model_info(const kvasir_model *model, kvasir_info *info, char *msg, size_t msg_size);

/* ---- tokens and text ---- */

/* Flags of kvasir_tokenize and kvasir_detokenize. */
enum {
    KVASIR_BOS = 1,    /* begin with kvasir_info.bos, if there is one */
    KVASIR_SPECIAL = 2 /* spellings of special tokens become these tokens; and the other way */
};

/* Ids of text[0..n_text), any bytes. At most `room` of them go to ids (NULL if room is 0); *n: how many there are. */
KVASIR_API kvasir_status kvasir_tokenize(kvasir_model *model, const char *text, size_t n_text, int32_t flags,
                                         int32_t *ids, size_t room, size_t *n, char *msg, size_t msg_size);
/* The text of ids[0..n_ids). At most room - 1 bytes and a 0 go to text (NULL if room is 0); *n: bytes that there are,
 * without the 0. Special tokens are left out unless KVASIR_SPECIAL is set. */
KVASIR_API kvasir_status kvasir_detokenize(kvasir_model *model, const int32_t *ids, size_t n_ids, int32_t flags,
                                           char *text, size_t room, size_t *n, char *msg, size_t msg_size);

typedef struct {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} kvasir_message;

/* Ids of a conversation as the model's template writes it, up to where the next reply begins. name: of another
 * template, NULL: the model's own. ids, room, n: as for kvasir_tokenize. */
KVASIR_API kvasir_status kvasir_chat(kvasir_model *model, const char *name, const kvasir_message *messages,
                                     size_t n_messages, int32_t *ids, size_t room, size_t *n, char *msg,
                                     size_t msg_size);

/* 1 for tokens that end a text, 0 for others. */
KVASIR_API int32_t kvasir_is_end(const kvasir_model *model, int32_t id);

/* Text token by token: a character of several tokens comes with the last of them. */
typedef struct kvasir_text kvasir_text;
KVASIR_API kvasir_status kvasir_text_create(kvasir_text **out, kvasir_model *model, char *msg, size_t msg_size);
KVASIR_API void kvasir_text_free(kvasir_text *text);
/* *bytes gets n bytes that end with 0 and are valid until the next call with this text. Text that goes on behind a
 * prompt keeps the space of its first word if the prompt's last tokens were pushed before. */
KVASIR_API kvasir_status kvasir_text_push(kvasir_text *text, int32_t id, const char **bytes, size_t *n, char *msg,
                                          size_t msg_size);
/* What is left at the end, a character that was cut. */
KVASIR_API kvasir_status kvasir_text_end(kvasir_text *text, const char **bytes, size_t *n, char *msg, size_t msg_size);

/* ---- sessions ---- */

/* A sequence of tokens with its keys and values.
 *
 * strategy: what the cache keeps and what a step reads of it, with parameters: "full" (NULL), "quest:budget=1024",
 * "h2o:budget=512:skip=0"; `kvasir --help-attn` lists them. store: how keys and values are held: "f16" (NULL), "bf16",
 * "f32", "kivi2", "logquant2" and others, with parameters. limit: most tokens; 0: kvasir_info.ctx. */
typedef struct kvasir_session kvasir_session;

/* Bytes that a session would take, before anything is allocated. */
typedef struct {
    size_t struct_size;
    int64_t kv, index; /* of a session; index: what the strategy looks tokens up by, and its own buffers */
    int64_t scratch;   /* of the model, once */
    int64_t available; /* of the device's memory now; 0: unknown */
} kvasir_plan;

KVASIR_API kvasir_status kvasir_session_plan(kvasir_model *model, const char *strategy, const char *store,
                                             int64_t limit, kvasir_plan *plan, char *msg, size_t msg_size);
KVASIR_API kvasir_status kvasir_session_create(kvasir_session **out, kvasir_model *model, const char *strategy,
                                               const char *store, int64_t limit, char *msg, size_t msg_size);
KVASIR_API void kvasir_session_free(kvasir_session *session);
/* Another session that goes on from here with the same bits. */
KVASIR_API kvasir_status kvasir_session_fork(kvasir_session **out, kvasir_session *session, char *msg, size_t msg_size);
/* Forgets the tokens from position n on; then there are no logits. The session continues with the bits of one that
 * never held more than n tokens, with one exception: an index that is made at the end of a prompt (magicpig, pqcache,
 * retroinfer) is dropped by a rewind into that prompt, and all tokens are attended until a prompt ends again.
 * KVASIR_UNSUPPORTED, and no change, if the strategy or the store cannot restore that state: tokens were evicted or
 * quantized since, or n lies inside a prompt whose rows depend on later tokens of it (dynamic RoPE beyond the trained
 * length, tokenselect). n = 0 always works. */
KVASIR_API kvasir_status kvasir_session_rewind(kvasir_session *session, int64_t n, char *msg, size_t msg_size);

/* How kvasir_session_feed takes tokens. Most strategies that retrieve do so in steps only: they leave prompts exact. */
enum {
    KVASIR_PROMPT, /* as a prompt, chunk by chunk */
    KVASIR_STEPS   /* one by one, as if each had been sampled */
};

/* What was expected of a token that was fed. */
typedef struct {
    float logprob; /* log softmax(logits)[id] of the logits before it; NaN where there are none: no token before it */
    int32_t best;  /* the most likely token there; -1 likewise */
} kvasir_score;

/* Feeds ids[0..n) (n 0: nothing happens); the logits are then those of the next token. scores: [n], or NULL: not
 * wanted. After an error no token of a prompt is left: where the strategy cannot go back, the session is empty. Of
 * steps those before the error stay.
 *
 * Logits are always finite: a prompt or step whose logits hold NaN or infinity fails with KVASIR_FORMAT. The message
 * names the first layer that is not finite, and the remedy where keys or values exceed 65504, the range of store "f16":
 * store "bf16". */
KVASIR_API kvasir_status kvasir_session_feed(kvasir_session *session, const int32_t *ids, size_t n, int32_t how,
                                             kvasir_score *scores, char *msg, size_t msg_size);
/* One step of n different sessions of one model together, at most kvasir_info.batch: ids[i] is fed to sessions[i]. Each
 * gets the bits that it would have alone. After an error no session has its token: those whose strategy cannot go back
 * are empty. */
KVASIR_API kvasir_status kvasir_decode(kvasir_session *const *sessions, size_t n, const int32_t *ids, char *msg,
                                       size_t msg_size);

/* Tokens fed so far, [*n], valid until the next call with this session. */
KVASIR_API kvasir_status kvasir_session_tokens(const kvasir_session *session, const int32_t **ids, size_t *n, char *msg,
                                               size_t msg_size);
/* Logits of the next token, [kvasir_info.vocab], valid until the session's next call. KVASIR_USAGE where there are
 * none: nothing was fed, or the session was rewound. */
KVASIR_API kvasir_status kvasir_session_logits(const kvasir_session *session, const float **logits, char *msg,
                                               size_t msg_size);

typedef struct {
    size_t struct_size;
    double temperature;    /* 0: the most likely token */
    double top_p, min_p;   /* 0: off */
    double repeat_penalty; /* over all tokens of the session; 0: off */
    uint64_t seed;
    int32_t top_k; /* 0: off */
    int32_t flags; /* 0 */
} kvasir_sampling;

/* Chooses a token from the logits and feeds nothing. sampling NULL: the most likely one. The same logits, position,
 * settings and seed give the same token. */
KVASIR_API kvasir_status kvasir_session_sample(kvasir_session *session, const kvasir_sampling *sampling, int32_t *id,
                                               char *msg, size_t msg_size);

/* Whether kvasir_session_selection will be asked for: from now on steps note what they read, which takes time and
 * 4 bytes for each token that a head reads. */
KVASIR_API kvasir_status kvasir_session_watch(kvasir_session *session, int32_t on, char *msg, size_t msg_size);
/* Returns the positions of the tokens whose rows query head `head` of a layer read in the session's last step,
 * ascending, the step's own token included: *n positions, valid until the session's next call. Layers that the strategy
 * leaves dense read all tokens, or those of their window. Tokens that a mean or a sample stands for are not listed.
 * KVASIR_USAGE if no step was watched since the last prompt. */
KVASIR_API kvasir_status kvasir_session_selection(const kvasir_session *session, int32_t layer, int32_t head,
                                                  const int32_t **positions, size_t *n, char *msg, size_t msg_size);

/* Writes a session to a file, and makes one of a file that was written by the same model, by the library or by
 * `kvasir generate --save`; what the file holds is then mapped. chunk must be the same. Loading reads the whole file
 * and compares its checksums: KVASIR_FORMAT names the layer and the bytes that are damaged. */
KVASIR_API kvasir_status kvasir_session_save(kvasir_session *session, const char *path, char *msg, size_t msg_size);
KVASIR_API kvasir_status kvasir_session_load(kvasir_session **out, kvasir_model *model, const char *path, char *msg,
                                             size_t msg_size);

typedef struct {
    size_t struct_size;
    int64_t length, limit;               /* tokens */
    int64_t steps;                       /* decode steps; the next four are of all of these together, */
    double attended, visible;            /* tokens read and tokens there, a layer's mean; */
    double kv_read_bytes;                /* bytes of keys and values read, all layers; */
    double index_read_bytes;             /* bytes of what they are looked up by */
    int64_t kv_bytes, kv_peak_bytes;     /* held now, and at most */
    int64_t index_bytes;                 /* held now */
    double prompt_seconds, step_seconds; /* spent in prompts and in steps, those beside others included */
    const char *strategy, *store;        /* with all parameters; valid as long as the session */
    int64_t prefix_tokens;               /* tokens of prompts that came from the prefix cache */
    int64_t drafted, draft_accepted;     /* drafted tokens, and those of them that were then fed */
} kvasir_stats;

KVASIR_API kvasir_status kvasir_session_stats(const kvasir_session *session, kvasir_stats *stats, char *msg,
                                              size_t msg_size);

#ifdef __cplusplus
}
#endif

#endif
