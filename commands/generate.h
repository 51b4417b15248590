/* SPDX-License-Identifier: MIT */
/* One reply of a model, printed as it is generated; shared by generate and chat. */
#ifndef COMMANDS_GENERATE_H
#define COMMANDS_GENERATE_H

#include "cli/command.h"
#include "generate/sequence.h"
#include "generate/text_out.h"
#include "model/generation_config.h"
#include "tokenizer/call_support.h"

/* Options of `chat`, and the first member of those of `generate`. */
typedef struct {
    run_options run;
    prefix_args prefix;
    template_options chat;
    const char *system, *save, *load, *draw, *json_schema;
    sampler_options sampling; /* without seed and draw; NAN and -1: not given */
    text_options stop;
    int n_new; /* -1: the command's default */
    bool ignore_eos, no_verify;
} reply_options;

typedef struct {
    reply_options reply;
    prompt_source prompt;
    bool chat, plan;
} generate_options;

extern const cli_option reply_rows[]; /* options of both */
/* Offsets of the parts of a reply_options at the start of a command's options. */
#define REPLY_PLACES                                                                                                   \
    {                                                                                                                  \
        [IN_PREFIX] = offsetof(reply_options, prefix), [IN_TEMPLATE] = offsetof(reply_options, chat)                   \
    }

typedef struct {
    const reply_options *o;
    sampler_options sampling;          /* of the options, else of the model, else the program's defaults */
    char sampling_of[GENERATION_TEXT]; /* what the model's generation_config.json names */
    engine g;
    sequence q; /* ids of the session, and those to feed */
    stepper x;  /* for one sequence; its row holds the logits of the next token */
    int n_new;  /* maximum tokens of the reply */
    progress *bar;
    int64_t n_prompt, n_cached, n_decoded; /* n_cached: prompt tokens from --prefix-disk */
    int64_t prompt_ns, decode_ns;
    token_list new_ids;  /* ids of the reply */
    const char *finish;  /* why the reply ended: "stop", "length", "context" or "interrupted" */
    bool saving;         /* signals do not stop the prompt that reply_save feeds again */
    prefix_cache *cache; /* NULL: no --prefix-disk */
    json_t *schema;      /* of --json-schema; NULL: not given */
    grammar *under;      /* the compiled schema, for the current reply */
    grammar_vocab *words;
    call_thinking thinking; /* of the reply to a chat, before it follows the schema */
} reply;

/* Checks the options and finds the model. n_new: maximum tokens without -n. Call reply_free also after an error. */
status reply_find(reply *r, const reply_options *o, int n_new, err *e);
/* Returns the limit of a session: --ctx, else need, plus room for a continuation if it is saved. Fails if need exceeds
 * the model's maximum. */
status reply_tokens(const reply *r, int64_t need, int64_t *out, err *e);
/* Creates a session for n_tokens and a sampler. */
status reply_create(reply *r, int64_t n_tokens, err *e);
/* Loads the session of --load FILE. Strategy and store are those of the file unless the options name them; the random
 * state is also restored unless --seed is given. */
status reply_load(reply *r, err *e);
/* Replaces the session by an empty one of another strategy, whose tokens are then unfed. After an error the session is
 * as before. */
status reply_change_attn(reply *r, const char *attn, err *e);
/* Removes all tokens. */
void reply_clear(reply *r);
/* Saves the session to a file. */
status reply_save(reply *r, const char *path, err *e);
/* True if n more prompt tokens fit the context. */
bool reply_fits(const reply *r, size_t n);
/* Writes --save FILE and, with `results`, --json FILE, if given, at the end of a command that ended with st: also after
 * a signal and after a failed write to stdout. Takes results. Returns st, or the first error if st is ST_OK. */
status reply_keep(reply *r, json_t *results, status st, err *e);
void reply_free(reply *r);
/* Encodes a conversation in the template. */
status reply_encode(reply *r, const chat_message *msg, size_t n, token_list *out, err *e);
/* Encodes the last of n messages in the template, to be fed after the session; the message before it is the last
 * reply. */
status reply_encode_turn(reply *r, chat_message *msg, size_t n, token_list *out, err *e);
/* Feeds ids (none: continues the session, unless it ended with EOS), then prints tokens until EOS, a stop string, n_new
 * tokens, a full context or Ctrl-C. */
status reply_run(reply *r, const token_list *ids, err *e);
void reply_print_stats(const reply *r); /* prints to stderr */
/* Returns the reply as an object of a report. NULL: *e has the reason. */
json_t *reply_json(const reply *r, err *e);
/* Writes --json FILE with the options of replies; takes results. */
status reply_report(const reply *r, json_t *results, err *e);

/* json_schema.c: reads and checks --json-schema, if given, and constrains the reply that begins. */
status reply_read_schema(reply *r, err *e);
status reply_restrict(reply *r, err *e);
void reply_free_schema(reply *r);

/* Prints a piece of a reply (text_out). */
status reply_write(void *ctx, const char *text, size_t n, err *e);

#endif
