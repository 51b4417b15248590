/* SPDX-License-Identifier: MIT */
/* Running a model: a decoder holds the activations, a session the state of one sequence. */
#ifndef MODEL_SESSION_H
#define MODEL_SESSION_H

#include "attention/sequence.h"
#include "model/model.h"
#include "model/sampler.h"

/* Bytes of the weights of chosen experts, and those of them that were in memory when they were chosen. */
typedef struct {
    double chosen, resident;
} expert_reads;

typedef struct decoder decoder;
typedef struct session session;

/* Capacity of a session. longest_prompt: no prompt is longer, so that a quantized store needs fewer float rows; 0: any.
 * draft: spec of the drafts of session_draft, borrowed until the session is created; NULL: none. reach: most tokens
 * expected, to which plans limit memory that is taken as it is written; 0: n_tokens. snapshots: most snapshots of
 * recurrent state. */
typedef struct {
    int64_t n_tokens, longest_prompt, reach;
    const attn_spec *draft;
    int snapshots;
} session_size;

static inline session_size session_of(int64_t n_tokens)
{
    return (session_size){.n_tokens = n_tokens};
}

typedef struct {
    size_t chunk;     /* prompt tokens per forward; 0: see backend_chunk */
    size_t max_batch; /* sequences per decode step; 0: 1 */
    size_t verify;    /* rows of session_verify, at most SESSION_VERIFY_ROWS; 0: none */
    bool exact;       /* built-in GEMM with float32 activations (reproducible for any chunk) */
    /* the same model with other weights (model_convert_copy), for draft steps; NULL: the model itself */
    const model *draft;
} decoder_options;

/* Most rows whose products equal those of single rows bit for bit on every backend. Larger products may use a vendor's
 * library. */
enum { SESSION_VERIFY_ROWS = 8 };

/* Creates a decoder and allocates the scratch of one forward. The model must outlive the decoder. */
status decoder_create(decoder **out, const model *m, const decoder_options *o, err *e);
void decoder_free(decoder *d);
const model *decoder_model(const decoder *d);
/* Returns what was counted since the decoder was created; 0 unless mapped experts exceed the available memory. */
expert_reads decoder_expert_reads(const decoder *d);
const attn_shape *decoder_attn_shape(const decoder *d);
attn_work *decoder_attn_work(decoder *d);
/* Returns the most prompt tokens of one forward. */
int64_t decoder_chunk(const decoder *d);

/* Memory of a decoder and one session, in bytes, computed before anything is allocated. */
typedef struct {
    size_t weights, weights_in_memory; /* all weights; those not mapped from files */
    size_t to_load;                    /* part of the weights that loading will still allocate (model_find) */
    size_t draft_weights;              /* weights of drafts, included in `weights` */
    size_t disk;                       /* rows in files of the folder tier_dir (--kv-tier) */
    char tier_dir[256];
    size_t host;               /* rows in host memory, if the device has its own memory */
    size_t kv, index, scratch; /* in memory; index includes scratch of the sequence; scratch: of the decoder */
} memory_plan;
status session_plan(memory_plan *p, const model *m, const decoder_options *o, const attn_spec *spec, session_size size,
                    err *e);
/* Returns ST_NOMEM, with the sizes, if the plan (without mapped weights) exceeds the available memory or disk space. */
status memory_plan_check(const memory_plan *p, backend *be, err *e);
/* Makes all checks of session_create; possible before the model is loaded. */
status session_check(const model *m, const decoder_options *o, const attn_spec *spec, session_size size, err *e);

/* Finds the longest session, of at most size.n_tokens, whose plan needs at most `room` bytes of memory (weights that
 * are not loaded yet included) and leaves a tenth of a tier's room free. Makes the checks of session_check for it;
 * ST_NOMEM: not even one token fits. */
status session_longest(int64_t *n, const model *m, const decoder_options *o, const attn_spec *spec, session_size size,
                       size_t room, err *e);

/* Creates a session for sequences of up to size.n_tokens. Checks that the plan fits before allocating. */
status session_create(session **out, decoder *d, const attn_spec *spec, session_size size, err *e);
void session_free(session *s);
void session_reset(session *s);
int64_t session_length(const session *s);
int64_t session_limit(const session *s);
decoder *session_decoder(const session *s);
const attn_seq *session_attn(const session *s);
/* Sets the kernel of attention in decode steps (attn_seq_decode_by). */
void session_decode_by(session *s, bool tiles);
/* Forgets the tokens from position n on. An incomplete prompt ends if all of it is forgotten. ST_UNSUPPORTED if the
 * strategy has evicted tokens since; if the model has recurrent state, except for 0 and snapshots; inside a prompt
 * whose rows depend on its later tokens (dynamic RoPE beyond the trained length, attn_prompt_grain). */
status session_rewind(session *s, int64_t n, err *e);
/* Takes a snapshot of recurrent state, to which session_rewind can go back. Replaces the oldest snapshot if there is no
 * room. Does nothing for a model without recurrent state. ST_UNSUPPORTED: session_size.snapshots is 0. */
status session_snapshot(session *s, err *e);
/* Returns the bytes of recurrent state. */
size_t session_state_bytes(const session *s);

/* Logits returned by a prefill, and its callbacks. rows receives [n, vocab] f32, all finite, valid during the call. */
typedef struct {
    enum { LOGITS_LAST, LOGITS_ALL } which;
    size_t from; /* LOGITS_ALL: first row of the prompt to return */
    void (*rows)(void *ctx, int64_t first, size_t n, const float *logits);
    /* Called after each chunk; false ends the prefill with ST_INTERRUPTED. May be NULL. */
    bool (*progress)(void *ctx, int64_t done, int64_t total);
    void *ctx;
    /* For a prompt fed in several calls: tokens stored by earlier calls, and tokens of later calls. Logit rows and
     * progress count from the start of the prompt. LOGITS_LAST returns no logits before its end. */
    size_t before, after;
    attn_hint hint; /* in positions of the sequence */
} prefill_options;

/* Feeds a prompt to one session, or the same prompt to several that can share it (session_can_share): projections and
 * attention are then computed once. Errors: ST_UNSUPPORTED if the prompt does not fit the limit; ST_FORMAT if logits
 * are not finite, after which the sessions hold the prompt up to the end of that chunk. */
status session_prefill(session *const *s, size_t n_sessions, const int32_t *ids, size_t n_ids, const prefill_options *o,
                       err *e);
bool session_can_share(const session *a, const session *b, size_t n_ids);

/* Keys and values from another source, stored in empty sessions as those of a prompt, without computing one. */
typedef struct {
    int64_t n_tokens;
    int64_t after; /* tokens of the same prompt that session_prefill feeds afterwards */
    /* If not 0: stores the tokens as consecutive prompts of `piece` tokens, a multiple of the chunk. A quantized store
     * then need not hold all float rows at once. attn_limits.prompt refers to one piece. Requires `after` 0. */
    int64_t piece;
    /* Queues on the backend the computation of a layer's keys, before rotation, and values for n tokens from `first`
     * on: f32 [n, kv_heads, head_dim] each. */
    void (*rows)(void *source, int layer, int64_t first, size_t n, buf k, buf v);
    void *source;
    bool (*progress)(void *ctx, int64_t done, int64_t total); /* see prefill_options */
    void *ctx;
} store_options;
status session_store(session *const *s, size_t n_sessions, const store_options *o, err *e);

/* Runs one decode step: feeds ids[i] to s[i] and returns logits [n, vocab] f32 for the next tokens. Allocates nothing.
 * Errors: ST_FORMAT if logits of a session are not finite. Every session then holds its token, and logits has all rows;
 * the finite ones are the same as without the other sessions. */
status session_decode(session *const *s, size_t n, const int32_t *ids, float *logits, err *e);

/* Runs n decode steps of one session in one forward, with the bits of n calls of session_decode: feeds ids[i] at
 * position length + i. The logits stay in the decoder until the next forward. n is at most decoder_options.verify. Only
 * strategies allowed by attn_verify_check. Allocates nothing. A failed step is undone: the session keeps its previous
 * tokens. */
status session_verify(session *s, const int32_t *ids, size_t n, err *e);
/* session_verified and session_verified_logits fail with ST_FORMAT if the row's logits are not finite; the rows stay in
 * the session. */
/* Returns the token that the sampler chooses from row `row` of the last session_verify (NULL: the most likely). The
 * token is for the position after that row's. Call once per row. */
status session_verified(session *s, size_t row, sampler *by, int32_t *id, err *e);
/* Returns the logits [vocab] of row `row`. Call before session_verified for that row. */
status session_verified_logits(session *s, size_t row, float *logits, err *e);

/* Drafts n tokens after `first`, which was chosen but not fed. Runs steps of the session's draft spec (without one: its
 * own) over its rows, with the weights of decoder_options.draft. Each step feeds the choice of the previous one, made
 * by the sampler (NULL: the most likely). Afterwards, even on error, the stored rows are forgotten and the sampler is
 * restored. */
status session_draft(session *s, int32_t first, size_t n, sampler *by, int32_t *ids, err *e);
/* Drafts like session_draft, but keeps the stored rows and the sampler's state, so that further drafts can follow. The
 * caller must call session_rewind before any other function. */
status session_draft_on(session *s, int32_t first, size_t n, sampler *by, int32_t *ids, err *e);

/* Queue decode steps that return no logits. session_queue feeds ids[i] to s[i]; with ids NULL, the choice of the last
 * queued step for row i. The samplers, which must be plain, choose the next tokens (by, or one of them, NULL: the most
 * likely). Neither waits for the device. session_take returns the choices of the queued steps in order, with the n of
 * that step. Choices equal those of session_decode and sampler_next. Queuing more than decoder_ahead steps gains
 * nothing. Take all choices before calling other functions. Errors: see session_decode; a fault may be reported by a
 * later call. Logits that are not finite are an error of session_queue, and nothing is chosen; if the backend queues
 * (backend_ops), of session_take, whose choice is then -1 in their rows and valid in the others. */
enum { SESSION_QUEUE_ROWS = BACKEND_SLOT_BYTES / 2 / (int)sizeof(int32_t) };
status session_queue(session *const *s, size_t n, const int32_t *ids, sampler *const *by, err *e);
status session_take(decoder *d, size_t n, int32_t *ids, err *e);
/* Returns the logits [vocab] f32 of row `row` of the last step, in the backend's memory, valid until the next forward.
 * A choice may change them unless the backend queues. */
buf decoder_row(const decoder *d, size_t row);
/* Returns the number of steps worth queuing while waiting for one; 0 if steps run synchronously. */
int decoder_ahead(const decoder *d);

/* For `bench`: nanoseconds of each stage since profiling was enabled. Time between stages is not counted. */
extern const char *const stage_names[STAGE_COUNT];
void decoder_profile(decoder *d, bool on); /* on: also resets the counts */
void decoder_stages(const decoder *d, int64_t ns[STAGE_COUNT]);

#endif
