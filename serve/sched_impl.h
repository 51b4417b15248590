/* SPDX-License-Identifier: MIT */
/* Internal declarations of the scheduler. */
#ifndef SERVE_SCHED_IMPL_H
#define SERVE_SCHED_IMPL_H

#include <pthread.h>

#include "generate/sequence.h"
#include "generate/text_out.h"
#include "lens/lens.h"
#include "model/session_file.h"
#include "serve/api_stream.h"
#include "serve/metrics.h"
#include "serve/sched.h"

enum {
    JOB_BUFFER = 64 << 10,  /* bytes that a slow client may leave unread before its sequences pause */
    JOB_UNREAD_SECONDS = 60 /* seconds until such a request is cancelled */
};

typedef enum { GEN_WAITS, GEN_PROMPT, GEN_DECODES, GEN_DONE } gen_state;

/* One generated sequence of a request. */
typedef struct {
    job *j;
    int index;
    const token_list *prompt;
    gen_state state;
    size_t bytes;     /* planned memory */
    sequence q;       /* ids: the prompt, then new tokens */
    prefix_hit found; /* prefix cache lookup before the sequence exists */
    lens *lens;       /* the lens of a lens request, which has its own sessions */
    text_out out;
    int64_t n_prefill; /* number of prompt tokens that are not fed as decode steps */
    size_t n_cached;   /* number of prompt tokens that were not computed */
    size_t n_new;
    buffer text; /* of a completion */
    call_rules rules;
    call_parser *parser; /* of a chat */
    api_events events;   /* output of a chat; in a stream, since the last chunk */
    size_t n_thinking;   /* number of tokens of thinking */
    token_list closing;  /* marker that ends thinking at its budget */
    size_t n_closing;    /* tokens of it that were chosen */
    api_token *tokens;   /* for logprobs */
    size_t n_tokens, cap_tokens, sent_tokens, sent_ids;
    int64_t sent_offset;
    const char *finish;
    bool opened, closed; /* the first and the last chunk of the stream were written */
    attn_stats stats;    /* at the end of the sequence */
    attn_bytes held;
    bool exact_prompt;
} gen;

/* State after a prompt with several sequences. The first sequence computes it; the others continue from a copy. */
typedef struct {
    session_file *of;   /* NULL: not copied yet, or already freed */
    float *logits;      /* [vocab] logits of the token after the prompt */
    bool each;          /* copying is impossible: each sequence computes the prompt */
    size_t bytes, left; /* planned memory; number of sequences that have not taken the copy */
    size_t n_tokens;    /* number of scored prompt tokens, the first `tokens` of the first sequence */
    prefix_hit kept;    /* keys and kept tokens of the prompt */
    int64_t limit;      /* limit of the sessions */
} job_fork;

/* Strategies of a lens. */
typedef struct {
    attn_spec full, spec[LENS_STRATEGIES];
    size_t n, drive;
} job_lens;

typedef struct lens_map lens_map;
typedef struct compiled compiled; /* a grammar that requests share */
typedef struct kept_reply kept_reply;

/* Ids of replies, longest prompts first. */
typedef struct {
    pthread_mutex_t lock;
    kept_reply **list;
    size_t n, cap, bytes;
    uint64_t clock; /* number of uses */
} kept_replies;

struct job {
    scheduler *sched;
    job *next;
    api_request r;
    job_client client;
    attn_spec spec;
    drafter *draft; /* checked draft options, of which each sequence creates its own drafter; NULL: none */
    job_lens *lens; /* NULL: not a lens */
    int64_t decode;
    bool cached;            /* uses the prefix cache */
    bool keeps;             /* a chat whose replies the prefix cache keeps: their ids are kept too */
    chat_text text;         /* rendered prompt of a chat */
    call_thinking thinking; /* of the replies to a chat; their parsers and grammars follow it */
    compiled *under;        /* constraint on the replies; NULL: none */
    uint64_t seed;
    token_list *prompts;
    size_t n_prompts;
    gen *gens;
    size_t n_gens;
    job_fork *forks; /* [n_prompts]; NULL: one sequence per prompt. Used by the scheduler thread only */
    api_head head;
    api_stream form; /* of another API than OpenAI's completions */
    int64_t submitted_ns, admitted_ns, first_ns, prefill_ns, decode_ns;
    /* protected by lock */
    pthread_mutex_t lock;
    buffer out;
    api_error error;
    api_usage usage; /* at the end of the last cycle */
    int n_calls;     /* of the first choice, with the reason of its end */
    const char *finish;
    int64_t n_reported;                          /* number of prompt tokens reported as computed */
    bool admitted, ended, asleep, left, dropped; /* left: the client released it; dropped: the scheduler released it */
    int64_t unread_ns;                           /* time at which the buffer became full; 0: not full */
    int64_t wrote_ns;                            /* time of the last output of a stream */
};

enum { SCHEMA_COMPILED, SCHEMA_CACHED, SCHEMA_UNSUPPORTED, SCHEMA_UNSATISFIABLE, SCHEMA_RESULTS };
enum { CALL_COMPLETE, CALL_CUT, CALL_BAD, CALL_RESULTS };
enum { KEPT_SCHEMAS = 64 };

typedef struct {
    int64_t cancelled;                                       /* number of cancelled requests */
    int64_t prompt_tokens, cached_tokens, new_tokens, steps; /* prompt_tokens: computed ones */
    int64_t lookups[2];                                      /* prefix cache misses and hits */
    int64_t admitted;                                        /* number of requests in progress that no longer wait */
    int64_t schemas[SCHEMA_RESULTS], calls[CALL_RESULTS];
    size_t running, used;               /* number of sequences and their planned bytes */
    histogram queue, first_token, step; /* queue, first_token: from the request's arrival */
    histogram mask;                     /* of a token under a grammar */
} sched_counts;

struct scheduler {
    sched_options o;
    char fingerprint[16];
    prefix_cache *prefix; /* NULL: none. Used by the scheduler thread, except for its counts */
    pthread_t thread;
    pthread_mutex_t lock, encoding;
    grammar_vocab *words; /* for constraints; NULL: not needed yet. Created under `encoding` */
    pthread_cond_t work;
    job *incoming, *jobs; /* oldest first. Only the thread changes jobs; links are protected by lock */
    size_t n_jobs;        /* number of all jobs, protected by lock */
    bool draining, stopping;
    sched_counts counts; /* protected by lock */
    lens_map *maps;      /* bitmaps of lenses, oldest first, and their bytes; protected by lock */
    size_t map_bytes;
    kept_replies kept;
    compiled *schemas[KEPT_SCHEMAS]; /* protected by lock, like the next two */
    size_t n_schemas;
    uint64_t schema_clock; /* number of uses */
    /* used by the scheduler thread only */
    gen **running;
    size_t n_running, next_prefill, next_draft; /* next_*: indexes of the next sequence to prefill or draft */
    size_t used;                                /* planned bytes of running sequences and of forks */
    int64_t owed_ns;                            /* time that decode steps may still run before the next prompt chunk */
    float *row;                                 /* [vocab] */
    stepper x;
    gen **stepped; /* [batch] sequences of one step */
    sequence **batch;
};

/* constraint.c: compiles the grammar of a request whose prompts are encoded. False: *e has the reason. */
bool job_read_format(scheduler *s, job *j, api_error *e);
const grammar *compiled_grammar(const compiled *c);
/* Returns the paths of keywords of the schema that are not enforced. Both are NULL for NULL. */
const json_t *compiled_ignored(const compiled *c);
/* Returns the hash of the schema and its options. */
const char *compiled_key(const compiled *c);
void compiled_release(scheduler *s, compiled *c);
void compiled_free(scheduler *s);

/* call_grammar.c: returns the grammar of the calls that a request requires or whose arguments follow schemas. */
status call_grammar(grammar **out, const scheduler *s, const job *j, const grammar_thinking *think,
                    const schema_options *o, err *e);

/* gen.c: prompts, logits and text of one sequence. ST_NOMEM, or an error of the session. */

/* True while the first sequence of the same prompt computes it. */
bool gen_waits(const gen *g);
/* Looks up the prompt in the prefix cache and makes room for the sequence. False: not enough memory now. */
bool gen_admit(gen *g, scheduler *s);
status gen_open(gen *g, scheduler *s, err *e);
/* Computes the next chunk of the prompt. */
status gen_prefill(gen *g, scheduler *s, err *e);
/* Takes the logits after the last token fed, and may modify them. */
status gen_row(gen *g, scheduler *s, float *logits, err *e);
/* True if the next step's logits are needed for more than the choice of a token. */
bool gen_needs_row(const gen *g);
/* Takes the token that sequence_next has chosen. */
status gen_chosen(gen *g, scheduler *s, err *e);
/* True if the next tokens come from gen_draft, a step that verifies drafts. */
bool gen_drafts(const gen *g);
status gen_draft(gen *g, scheduler *s, err *e);
/* Frees the session; its statistics remain. keep: keeps prompt and reply in the prefix cache before. */
void gen_close(gen *g, bool keep);
void gen_free(gen *g);
/* Frees the prompt states of a job. */
void gen_drop_forks(job *j, scheduler *s);

/* reply.c: output of a chat. */

/* Returns how a reply is read. */
call_rules reply_rules(const scheduler *s, const api_request *r, const call_thinking *thinking);
status reply_open(gen *g, scheduler *s, err *e);
status reply_token(gen *g, const scheduler *s, int32_t id, err *e);
/* True if the reply ends after its first call. */
bool reply_ended(const gen *g);
status reply_end(gen *g, err *e);

/* kept.c: encodes the rendered chat of a job. Replies of earlier turns have the ids that the model generated. */
status kept_encode(scheduler *s, const job *j, token_list *out, err *e);
/* Keeps the ids of a finished reply, unless memory is short. */
void kept_add(scheduler *s, const gen *g);
void kept_free(kept_replies *all);

/* spec.c: add to counters, under the lock. */
void sched_count(scheduler *s, int64_t *count, int64_t n);
void sched_count_time(scheduler *s, histogram *h, int64_t ns);

/* spec.c: returns the alias of a name in requests, or NULL. */
const sched_alias *sched_alias_of(const scheduler *s, const char *name);

/* lens.c: the counterparts for a lens. */
bool job_read_lens(scheduler *s, job *j, api_error *e);
status gen_plan_lens(gen *g, const scheduler *s, err *e);
status gen_open_lens(gen *g, scheduler *s, err *e);
status gen_piece_lens(gen *g, scheduler *s, err *e);
void sched_free_maps(scheduler *s);

/* job.c: output for the client; the caller holds the job's lock. */
status job_hand_out(job *j, err *e);
void job_fail(job *j, const api_error *e);
/* Wakes the client if it sleeps. */
void job_wake(job *j);
void job_free(job *j);
bool job_done(const job *j); /* all sequences are done */

#endif
