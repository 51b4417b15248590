/* SPDX-License-Identifier: MIT */
/* Running a model: a decoder holds the activations, a session one sequence's KV state. */
#ifndef MODEL_SESSION_H
#define MODEL_SESSION_H

#include "attention/sequence.h"
#include "model/model.h"
#include "model/sampler.h"

typedef struct decoder decoder;
typedef struct session session;

/* What a session has room for. longest_prompt: no prompt is longer, so that a store with codes needs fewer exact rows;
 * 0: any. draft: what session_draft drafts with, borrowed until the session is created; NULL: nothing. reach: no more
 * tokens will come, so that plans count no more of the room, where memory is taken as it is written; 0: n_tokens.
 * snapshots: of recurrent state, at most. */
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
    size_t chunk;     /* prompt tokens of one forward; 0: as backend_chunk says */
    size_t max_batch; /* sequences of one decode step; 0: 1 */
    size_t verify;    /* rows of session_verify, at most SESSION_VERIFY_ROWS; 0: none */
    bool exact;       /* built-in GEMM with float32 activations (reproducible for any chunk) */
    /* The same model in other weights (model_convert_beside), with which the steps of drafts run; NULL: its own. */
    const model *draft;
} decoder_options;

/* Rows of which products have the bits of one row's on every backend: more may go to a vendor's library. */
enum { SESSION_VERIFY_ROWS = 8 };

/* One forward's scratch is allocated here, once. The model outlives the decoder. */
status decoder_create(decoder **out, const model *m, const decoder_options *o, err *e);
void decoder_free(decoder *d);
const model *decoder_model(const decoder *d);
const attn_shape *decoder_attn_shape(const decoder *d);
attn_work *decoder_attn_work(decoder *d);
/* Returns the most prompt tokens of one forward. */
int64_t decoder_chunk(const decoder *d);

/* What a decoder and one session of that size will hold, in bytes, before anything is allocated. */
typedef struct {
    size_t weights, weights_in_memory; /* all, and those of them that are not mapped from files */
    size_t to_load;                    /* of the weights, which will take memory that is still available (model_find) */
    size_t draft_weights;              /* of drafts, beside those */
    size_t disk;                       /* in files of the folder tier_dir: of rows (--kv-tier) */
    char tier_dir[256];
    size_t host;               /* of rows in the host's memory, where that is not the device's */
    size_t kv, index, scratch; /* in memory; index: of the strategy, and its own buffers; scratch: of the decoder */
} memory_plan;
status session_plan(memory_plan *p, const model *m, const decoder_options *o, const attn_spec *spec, session_size size,
                    err *e);
/* ST_NOMEM, with the numbers, when the plan (without mapped weights) exceeds the memory that be has left, or the disk.
 */
status memory_plan_check(const memory_plan *p, backend *be, err *e);
/* All that session_create would refuse, known before the model is loaded. */
status session_check(const model *m, const decoder_options *o, const attn_spec *spec, session_size size, err *e);

/* n_tokens: most tokens of the sequence. Checks that the plan fits before it allocates. */
status session_create(session **out, decoder *d, const attn_spec *spec, session_size size, err *e);
void session_free(session *s);
void session_reset(session *s);
int64_t session_length(const session *s);
int64_t session_limit(const session *s);
decoder *session_decoder(const session *s);
const attn_seq *session_attn(const session *s);
/* Forgets the tokens from position n on, and a prompt that was stopped if all of it goes; ST_UNSUPPORTED when the
 * strategy has evicted meanwhile, where the model has recurrent state but for 0 and snapshots, or inside a prompt whose
 * rows depend on its later tokens (dynamic RoPE beyond the trained length, attn_prompt_grain). */
status session_rewind(session *s, int64_t n, err *e);
/* Keeps the recurrent state of the tokens so far, to which session_rewind can then go back; the oldest snapshot goes
 * where there is no room. A model without recurrent state needs none. ST_UNSUPPORTED: session_size.snapshots is 0. */
status session_snapshot(session *s, err *e);
/* Returns the bytes of recurrent state. */
size_t session_state_bytes(const session *s);

/* Which logits a prefill gives, and what it calls. rows gets [n, vocab] f32, valid during the call,
 * all finite. */
typedef struct {
    enum { LOGITS_LAST, LOGITS_ALL } which;
    size_t from; /* LOGITS_ALL: the first row of the prompt that is wanted */
    void (*rows)(void *ctx, int64_t first, size_t n, const float *logits);
    /* After each chunk; false ends the prefill with ST_INTERRUPTED. May be NULL. */
    bool (*progress)(void *ctx, int64_t done, int64_t total);
    void *ctx;
    /* A prompt that comes in several calls: tokens of it that were stored by earlier ones, and that later ones
     * bring. Rows of logits and progress count from the start of the prompt; LOGITS_LAST gives none before its end. */
    size_t before, after;
    attn_hint hint; /* in positions of the sequence */
} prefill_options;

/* Feeds a prompt to one session, or the same prompt to several whose strategies leave it exact
 * (session_can_share): projections and attention are then computed once. Errors: ST_UNSUPPORTED when it
 * does not fit the limit, ST_FORMAT for logits that are not finite: the sessions then hold the prompt up to their
 * chunk. */
status session_prefill(session *const *s, size_t n_sessions, const int32_t *ids, size_t n_ids, const prefill_options *o,
                       err *e);
bool session_can_share(const session *a, const session *b, size_t n_ids);

/* Gives empty sessions a context of keys and values from somewhere else, as a prompt would, without computing one. */
typedef struct {
    int64_t n_tokens;
    int64_t after; /* tokens of the same prompt that session_prefill then brings */
    /* Not 0: as prompts of so many tokens (a multiple of the chunk) one after the other, so that a store with codes
     * need not hold all rows in full at once; kv_format's prompt plans with that. Then after is 0. */
    int64_t piece;
    /* Queues on the backend what gives a layer's keys, which are then rotated at their positions, and values of n
     * tokens from `first` on: f32 [n, kv_heads, head_dim] each. */
    void (*rows)(void *source, int layer, int64_t first, size_t n, buf k, buf v);
    void *source;
    bool (*progress)(void *ctx, int64_t done, int64_t total); /* as of prefill_options */
    void *ctx;
} store_options;
status session_store(session *const *s, size_t n_sessions, const store_options *o, err *e);

/* One decode step: ids[i] is fed to s[i]; logits [n, vocab] f32 of the next tokens. Allocates nothing. Errors:
 * ST_FORMAT if the logits of a session are not finite. Every session then holds its token, and logits has all rows:
 * finite ones are those of a step without the others. */
status session_decode(session *const *s, size_t n, const int32_t *ids, float *logits, err *e);

/* Decode steps of one session in one forward, with the bits of n calls of session_decode: ids[i] is fed at position
 * length + i. The logits of the rows stay here until the next forward. n: at most decoder_options.verify. Only over
 * strategies that attn_verify_check allows. Allocates nothing. A failed step is taken back: the session has the tokens
 * that it had. */
status session_verify(session *s, const int32_t *ids, size_t n, err *e);
/* These two fail with ST_FORMAT if the row's logits are not finite; the rows stay in the session. A backend that queues
 * (backend_ops) checks the logits of session_verified and session_queue only once, before the first choice: to check
 * each time, it would have to wait. */
/* Of those: the token that the sampler chooses from row `row`, once for each; by NULL: the most likely one. It is for
 * the position behind the row's own. */
status session_verified(session *s, size_t row, sampler *by, int32_t *id, err *e);
/* The logits of row `row`: [vocab], before it was chosen from. */
status session_verified_logits(session *s, size_t row, float *logits, err *e);

/* Drafts n tokens behind `first`, which was chosen and not fed: steps of the session's draft (without one: its own)
 * over its rows, each fed what the one before chose as the sampler would (by NULL: the most likely). What they stored
 * is forgotten again, also after a step that failed, and the sampler is as it was. The steps run with the weights of
 * decoder_options.draft. */
status session_draft(session *s, int32_t first, size_t n, sampler *by, int32_t *ids, err *e);
/* The same, but what they stored stays, and the sampler goes on: a further draft is one behind it. The caller goes back
 * (session_rewind) before anything else. */
status session_draft_on(session *s, int32_t first, size_t n, sampler *by, int32_t *ids, err *e);

/* Decode steps whose logits nobody looks at. session_queue feeds ids[i] to s[i], or with ids NULL what the step queued
 * last chose in row i; the next tokens are then chosen by the samplers, which must be plain, with by NULL the most
 * likely ones. Nothing waits: session_take gives the choices of the steps in the order in which they were queued, n as
 * then. Choices are those of session_decode and sampler_next. A step more than decoder_ahead is no use; after it all
 * must be taken before other calls. Errors: as session_decode, but nothing is chosen; a fault may show in a later call.
 */
enum { SESSION_QUEUE_ROWS = BACKEND_SLOT_BYTES / (int)sizeof(int32_t) };
status session_queue(session *const *s, size_t n, const int32_t *ids, sampler *const *by, err *e);
status session_take(decoder *d, size_t n, int32_t *ids, err *e);
/* Steps that may be queued while one is waited for: 0 where they run at once. */
int decoder_ahead(const decoder *d);

/* For `bench`: nanoseconds of each stage since profiling was switched on; what is between them is in none. */
extern const char *const stage_names[STAGE_COUNT];
void decoder_profile(decoder *d, bool on); /* on: also resets */
void decoder_stages(const decoder *d, int64_t ns[STAGE_COUNT]);

#endif
