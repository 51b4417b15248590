/* SPDX-License-Identifier: MIT */
/* libkvasir: LLM inference with KV-cache retrieval built in.
 *
 * Functions that can fail return a kvasir_status. Their last arguments are a buffer for an error message and its size:
 * one line, NUL-terminated, "" after KVASIR_OK. Pass msg = NULL if no message is wanted. Messages use the names of
 * this header. A function that fails sets *out to NULL. The session is
 * unchanged, or empty where the function documents it. The library never exits, prints nothing and installs no signal
 * handlers.
 *
 * Model files are memory-mapped: truncating a file in use raises SIGBUS. A session file that exceeds RLIMIT_FSIZE
 * raises SIGXFSZ; programs that set such limits should ignore this signal.
 *
 * Threads: any thread may use a model, and one thread at a time may use a session. Calls with sessions of the same
 * model are serialized; kvasir_decode computes several sessions at once. A callback runs in the thread of the call that
 * invokes it and must not use its model. After fork() the child must not use objects of the parent.
 *
 * Structs begin with struct_size, which the caller sets: `kvasir_options o = {.struct_size = sizeof o}`. Later versions
 * only append fields, and 0 means the default. A program therefore works with later libraries. It works with earlier
 * ones unless it sets fields that they lack (KVASIR_UNSUPPORTED). */
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

/* Result of a function. Later versions may add values. */
typedef int32_t kvasir_status;
enum {
    KVASIR_OK,
    KVASIR_USAGE,       /* invalid argument */
    KVASIR_NOMEM,       /* an allocation failed, or the planned memory exceeds the available memory */
    KVASIR_IO,          /* the system failed to read or write */
    KVASIR_FORMAT,      /* invalid file content, or logits that are not finite */
    KVASIR_UNSUPPORTED, /* valid, but not supported */
    KVASIR_DEVICE,      /* the device failed */
    KVASIR_INTERRUPTED  /* stopped by a callback */
};

/* Returns the version of the loaded library, such as "0.1.0". */
KVASIR_API const char *kvasir_version(void);

/* ---- models ---- */

typedef struct kvasir_model kvasir_model;

/* Levels of kvasir_options.log. */
enum { KVASIR_INFO, KVASIR_WARNING };

/* Drafts speed up decoding without changing any bit: a step also verifies tokens that may follow. If the next token
 * that is fed is one of them, its logits are already known. Drafts apply to a kvasir_decode of one session and to the
 * last token of kvasir_session_feed, unless the session is watched. They require a strategy that attends all tokens and
 * a store that does not quantize; otherwise creating a session fails with KVASIR_UNSUPPORTED. Sessions from
 * kvasir_session_fork or kvasir_session_load have no draft strategy. kvasir_stats counts verified tokens as steps,
 * including those that were not fed.
 *
 * The prefix cache keeps the rows of prompts (CPU only). A prompt that is fed to an empty session reuses the rows of
 * the longest common beginning with a cached prompt and computes the rest, with the same bits. A hit requires the same
 * strategy, store and limit; some strategies cannot share prompts. Prompts that are fed with scores neither use nor
 * enter the cache. The file format is that of `kvasir --prefix-disk`. */
typedef struct {
    size_t struct_size;
    const char *device;  /* "auto" (default), "cpu", "cuda", "cuda:N" */
    const char *weights; /* matrices in memory as "f32", "f16", "bf16", "q8" or "q4"; default: as in the files */
    const char *gemm;    /* GEMM of prompts: "auto" (default), or "builtin", whose bits are the same on every machine */
    int32_t threads;     /* CPU threads; default: number of cores */
    int32_t batch;       /* maximum number of sessions in a kvasir_decode; default 8 */
    int32_t chunk;       /* prompt tokens per pass through the model; default 512, on a GPU 2048 */
    int32_t flags;       /* must be 0 */
    int64_t ctx;         /* default limit of a session in tokens; default: the model's context */
    /* Logs one line, without a newline. NULL: no log. */
    void (*log)(void *arg, int32_t level, const char *line);
    /* Called after each chunk of a prompt and each step of kvasir_session_feed with the number of fed tokens. Returning
     * 0 stops the call: KVASIR_INTERRUPTED. */
    int32_t (*progress)(void *arg, int64_t done, int64_t total);
    void *arg;                 /* argument of both callbacks */
    const char *draft;         /* "ngram", a strategy, or both ("ngram,quest:budget=256"); NULL: no drafts */
    const char *prefix_disk;   /* folder of the prefix cache, readable by its owner only; NULL: none */
    int64_t prefix_ram;        /* maximum bytes of cached prompts in RAM; default 0, with prefix_disk 1/4 of free RAM */
    int64_t prefix_disk_bytes; /* maximum bytes in the folder; default 8192 MiB */
    int64_t prefix_min;        /* cache a prompt only if at least this many of its tokens are new; default 64 */
} kvasir_options;

/* Loads a Hugging Face checkpoint folder (config.json, safetensors and a tokenizer) or a GGUF file. options NULL: all
 * defaults. Free *out with kvasir_model_free. */
KVASIR_API kvasir_status kvasir_model_load(kvasir_model **out, const char *dir, const kvasir_options *options,
                                           char *msg, size_t msg_size);
/* Releases a model. It is freed with the last of its sessions and texts. NULL is ignored. */
KVASIR_API void kvasir_model_free(kvasir_model *model);

typedef struct {
    size_t struct_size;
    const char *name;         /* path of the model; strings of this struct live as long as the model */
    const char *architecture; /* "LlamaForCausalLM" */
    const char *weights;      /* type of the matrices, such as "bf16" */
    const char *device;       /* "cpu" or "cuda:N" */
    const char *about;        /* SIMD level and GEMM library, which determine the last bits */
    int64_t parameters;
    int64_t weight_bytes;
    int64_t max_positions;                               /* context length of the trained model, tokens */
    int64_t ctx;                                         /* default limit of a session, tokens */
    int32_t vocab, layers, heads, kv_heads, head_dim;    /* heads: query heads */
    int32_t hidden, feed_forward, threads, batch, chunk; /* threads, batch, chunk: values in effect */
    int32_t bos;                                         /* token at the beginning of a text; -1: none */
    int32_t adds_bos;                                    /* 1: plain text should begin with bos */
} kvasir_info;

/* Fills *info. The caller sets info->struct_size. */
KVASIR_API kvasir_status kvasir_model_info(const kvasir_model *model, kvasir_info *info, char *msg, size_t msg_size);

/* ---- tokens and text ---- */

/* Flags of kvasir_tokenize and kvasir_detokenize. */
enum {
    KVASIR_BOS = 1,    /* prepend kvasir_info.bos, if the model has one */
    KVASIR_SPECIAL = 2 /* convert between special tokens and their spellings */
};

/* Encodes text[0..n_text), which may hold any bytes. Writes at most `room` ids to ids, which may be NULL if room is 0.
 * *n is the total number of ids. */
KVASIR_API kvasir_status kvasir_tokenize(kvasir_model *model, const char *text, size_t n_text, int32_t flags,
                                         int32_t *ids, size_t room, size_t *n, char *msg, size_t msg_size);
/* Decodes ids[0..n_ids). Writes at most room - 1 bytes and a NUL to text, which may be NULL if room is 0. *n is the
 * total number of bytes without the NUL. Special tokens are omitted without KVASIR_SPECIAL. */
KVASIR_API kvasir_status kvasir_detokenize(kvasir_model *model, const int32_t *ids, size_t n_ids, int32_t flags,
                                           char *text, size_t room, size_t *n, char *msg, size_t msg_size);

typedef struct {
    const char *role; /* "system", "user", "assistant", or another one that the template knows */
    const char *content;
} kvasir_message;

/* Encodes a conversation with a chat template, up to the beginning of the next reply; a last message from the assistant
 * is continued. name: a template of the model or a built-in one, a file, or a Jinja text; NULL: the model's default.
 * ids, room and n are those of kvasir_tokenize. */
KVASIR_API kvasir_status kvasir_chat(kvasir_model *model, const char *name, const kvasir_message *messages,
                                     size_t n_messages, int32_t *ids, size_t room, size_t *n, char *msg,
                                     size_t msg_size);

/* Like kvasir_chat, for a conversation as JSON: an array of messages, or an object with `messages`, `tools` and other
 * variables of the template, such as {"messages": [...], "enable_thinking": false}. */
KVASIR_API kvasir_status kvasir_chat_json(kvasir_model *model, const char *name, const char *conversation, int32_t *ids,
                                          size_t room, size_t *n, char *msg, size_t msg_size);

/* Returns 1 if a token ends a text, otherwise 0. */
KVASIR_API int32_t kvasir_is_end(const kvasir_model *model, int32_t id);

/* Incremental detokenizer. A character that spans several tokens appears with the last of them. */
typedef struct kvasir_text kvasir_text;
KVASIR_API kvasir_status kvasir_text_create(kvasir_text **out, kvasir_model *model, char *msg, size_t msg_size);
KVASIR_API void kvasir_text_free(kvasir_text *text);
/* Returns the text that a token adds: *bytes has n bytes and a NUL, valid until the next call with this text. Before
 * the text of a reply, push the last tokens of its prompt; otherwise the first word loses its space. */
KVASIR_API kvasir_status kvasir_text_push(kvasir_text *text, int32_t id, const char **bytes, size_t *n, char *msg,
                                          size_t msg_size);
/* Returns the bytes of an incomplete character at the end, if any. */
KVASIR_API kvasir_status kvasir_text_end(kvasir_text *text, const char **bytes, size_t *n, char *msg, size_t msg_size);

/* ---- sessions ---- */

/* A sequence of tokens with its keys and values.
 *
 * strategy: which tokens the cache keeps and which of them a step reads, with parameters: "full" (NULL),
 * "quest:budget=1024", "h2o:budget=512:skip=0". `kvasir --help-attn` lists the strategies. store: format of keys and
 * values, with parameters: "f16" (NULL), "bf16", "f32", "kivi2", "logquant2" and others. limit: maximum number of
 * tokens; 0: kvasir_info.ctx. */
typedef struct kvasir_session kvasir_session;

/* Memory of a session, before it is allocated, in bytes. */
typedef struct {
    size_t struct_size;
    int64_t kv, index; /* of the session; index: lookup structures and buffers of the strategy */
    int64_t scratch;   /* once per model */
    int64_t available; /* free memory of the device; 0: unknown */
} kvasir_plan;

KVASIR_API kvasir_status kvasir_session_plan(kvasir_model *model, const char *strategy, const char *store,
                                             int64_t limit, kvasir_plan *plan, char *msg, size_t msg_size);
KVASIR_API kvasir_status kvasir_session_create(kvasir_session **out, kvasir_model *model, const char *strategy,
                                               const char *store, int64_t limit, char *msg, size_t msg_size);
KVASIR_API void kvasir_session_free(kvasir_session *session);
/* Copies a session; the copy continues with the same bits. The state passes through a file in memory: KVASIR_NOMEM also
 * if that file would exceed RLIMIT_FSIZE. */
KVASIR_API kvasir_status kvasir_session_fork(kvasir_session **out, kvasir_session *session, char *msg, size_t msg_size);
/* Removes the tokens from position n on; the session then has no logits. It continues with the bits of a session that
 * never held more than n tokens, with one exception. An index that is built at the end of a prompt (magicpig, pqcache,
 * retroinfer) is dropped by a rewind into that prompt; all tokens are then attended until the next prompt ends.
 * KVASIR_UNSUPPORTED, without a change, if the strategy or the store cannot restore the state. This is the case if
 * tokens were evicted or quantized since, or if n lies inside a prompt whose rows depend on its later tokens (dynamic
 * RoPE beyond the trained length, tokenselect). n = 0 is always supported. */
KVASIR_API kvasir_status kvasir_session_rewind(kvasir_session *session, int64_t n, char *msg, size_t msg_size);

/* Modes of kvasir_session_feed. Most retrieval strategies select tokens in steps only; their prompts use full
 * attention. */
enum {
    KVASIR_PROMPT, /* as a prompt, in chunks */
    KVASIR_STEPS   /* one step per token, as if each had been sampled */
};

/* Prediction for a token before it was fed. */
typedef struct {
    float logprob; /* log softmax(logits)[id] of the logits before the token; NaN if there are none */
    int32_t best;  /* most likely token at this position; -1 if there are no logits */
} kvasir_score;

/* Feeds ids[0..n) and leaves the logits of the next token; n = 0 has no effect. scores: [n], or NULL. If a prompt
 * fails, none of its tokens remain; if the strategy cannot rewind, the session is empty. If a step fails, the steps
 * before it remain.
 *
 * Logits are always finite: a prompt or step with NaN or infinite logits fails with KVASIR_FORMAT. The message names
 * the first layer with such values. If keys or values exceed 65504, the range of store "f16", it recommends store
 * "bf16". */
KVASIR_API kvasir_status kvasir_session_feed(kvasir_session *session, const int32_t *ids, size_t n, int32_t how,
                                             kvasir_score *scores, char *msg, size_t msg_size);
/* Runs one step of n different sessions of one model, at most kvasir_info.batch: feeds ids[i] to sessions[i]. Each
 * session has the bits that it would have alone. If the step fails, no session has its token; sessions whose strategy
 * cannot rewind are empty. */
KVASIR_API kvasir_status kvasir_decode(kvasir_session *const *sessions, size_t n, const int32_t *ids, char *msg,
                                       size_t msg_size);

/* Returns the *n tokens fed so far, valid until the next call with this session. */
KVASIR_API kvasir_status kvasir_session_tokens(const kvasir_session *session, const int32_t **ids, size_t *n, char *msg,
                                               size_t msg_size);
/* Returns the logits of the next token, [kvasir_info.vocab], valid until the session's next call. KVASIR_USAGE if there
 * are none, because nothing was fed or the session was rewound. After a step on a GPU the first call downloads them:
 * KVASIR_DEVICE if the device failed. */
KVASIR_API kvasir_status kvasir_session_logits(const kvasir_session *session, const float **logits, char *msg,
                                               size_t msg_size);

typedef struct {
    size_t struct_size;
    double temperature;    /* 0: greedy */
    double top_p, min_p;   /* 0: off; temperature 0, not top_p 0, is greedy */
    double repeat_penalty; /* divides the logits of all tokens of the session; 0: off */
    uint64_t seed;         /* at most INT64_MAX */
    int32_t top_k;         /* 0: off */
    int32_t flags;         /* must be 0 */
    /* OpenAI's penalties, -2 to 2: subtracted from the logit of a generated token, once and for each time that it was
     * generated. Generated are the tokens fed as steps since the last prompt. */
    double presence_penalty, frequency_penalty;
} kvasir_sampling;

/* Samples a token from the logits without feeding it. sampling NULL: greedy. The same logits, position, settings and
 * seed give the same token. */
KVASIR_API kvasir_status kvasir_session_sample(kvasir_session *session, const kvasir_sampling *sampling, int32_t *id,
                                               char *msg, size_t msg_size);

/* Constrains the tokens that kvasir_session_sample returns to JSON of a schema, given as the text of a JSON object;
 * NULL: no constraint. The tokens fed as steps since the last prompt belong to the value, and a prompt begins another
 * one. After a complete value only a token that ends the text is returned. Copies of the session are not constrained.
 * Keywords: doc/usage.md. KVASIR_UNSUPPORTED names the path of an unsupported keyword; KVASIR_USAGE if no value
 * satisfies the schema. */
KVASIR_API kvasir_status kvasir_session_constrain(kvasir_session *session, const char *schema, char *msg,
                                                  size_t msg_size);

/* Turns recording for kvasir_session_selection on or off. Recording takes time in every step, and 4 bytes for each
 * token that a head reads. */
KVASIR_API kvasir_status kvasir_session_watch(kvasir_session *session, int32_t on, char *msg, size_t msg_size);
/* Returns the positions that query head `head` of a layer read in the session's last step, ascending, including the
 * token of that step: *n positions, valid until the session's next call. Layers that the strategy leaves dense read all
 * tokens, or those of their window. Tokens that are represented by a mean or a sample are not listed. KVASIR_USAGE if
 * no step was watched since the last prompt. */
KVASIR_API kvasir_status kvasir_session_selection(const kvasir_session *session, int32_t layer, int32_t head,
                                                  const int32_t **positions, size_t *n, char *msg, size_t msg_size);

/* Writes a session to a file, or creates a session from a file of the same model with the same chunk. The file may be
 * written by the library or by `kvasir generate --save`. The loaded session maps the file. Loading reads the whole file
 * and verifies its checksums: KVASIR_FORMAT names the damaged layer and bytes. */
KVASIR_API kvasir_status kvasir_session_save(kvasir_session *session, const char *path, char *msg, size_t msg_size);
KVASIR_API kvasir_status kvasir_session_load(kvasir_session **out, kvasir_model *model, const char *path, char *msg,
                                             size_t msg_size);

typedef struct {
    size_t struct_size;
    int64_t length, limit;               /* tokens */
    int64_t steps;                       /* decode steps; the next four members are sums over all steps */
    double attended, visible;            /* tokens read, and tokens that a full read would see; means over layers */
    double kv_read_bytes;                /* bytes of keys and values read, all layers */
    double index_read_bytes;             /* bytes of the index read, all layers */
    int64_t kv_bytes, kv_peak_bytes;     /* current and maximum size */
    int64_t index_bytes;                 /* current size */
    double prompt_seconds, step_seconds; /* time in prompts and in steps, including steps of a batch */
    const char *strategy, *store;        /* with all parameters; valid until the session is freed */
    int64_t prefix_tokens;               /* tokens of prompts that came from the prefix cache */
    int64_t drafted, draft_accepted;     /* drafted tokens, and the number of them that were fed */
} kvasir_stats;

KVASIR_API kvasir_status kvasir_session_stats(const kvasir_session *session, kvasir_stats *stats, char *msg,
                                              size_t msg_size);

#ifdef __cplusplus
}
#endif

#endif
