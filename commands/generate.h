/* SPDX-License-Identifier: MIT */
/* One reply of a model, printed as it comes: what generate and chat share. */
#ifndef COMMANDS_GENERATE_H
#define COMMANDS_GENERATE_H

#include "cli/command.h"
#include "generate/sequence.h"
#include "generate/text_out.h"

/* Options of `chat`, and the first of `generate`. */
typedef struct {
    run_options run;
    prefix_args prefix;
    const char *template_name, *system, *save, *load, *draw;
    sampler_options sampling; /* without seed and draw */
    text_options stop;
    int n_new; /* -1: the command's own number */
    bool ignore_eos, no_verify;
} reply_options;

typedef struct {
    reply_options reply;
    prompt_source prompt;
    bool chat, special, plan;
} generate_options;

extern const cli_option reply_rows[]; /* of both */
/* Places of the parts of a reply_options, at the start of a command's options. */
#define REPLY_PLACES                                                                                                   \
    {                                                                                                                  \
        [IN_PREFIX] = offsetof(reply_options, prefix), [IN_TEMPLATE] = offsetof(reply_options, template_name)          \
    }

typedef struct {
    const reply_options *o;
    engine g;
    sequence q; /* its ids: those of the session, and those to feed */
    stepper x;  /* of one sequence; its row: logits of the next token */
    int n_new;  /* most tokens of the reply */
    progress *bar;
    int64_t n_prompt, n_cached, n_decoded; /* n_cached: tokens of the prompt from --prefix-disk */
    int64_t prompt_ns, decode_ns;
    token_list said;     /* ids of the reply */
    prefix_cache *cache; /* NULL: no --prefix-disk */
} reply;

/* Checks the options and finds the model. n_new: tokens of a reply without -n. reply_free also after an error. */
status reply_find(reply *r, const reply_options *o, int n_new, err *e);
/* Tokens of a session: --ctx, else need, with room for more behind a session that is to be saved; refuses need beyond
 * the model's maximum. */
status reply_tokens(const reply *r, int64_t need, int64_t *out, err *e);
/* Creates a session for n_tokens and a sampler. */
status reply_create(reply *r, int64_t n_tokens, err *e);
/* Loads the session of --load FILE, with the strategy and store that it was saved with unless the options name one, and
 * with its sampler's random state unless --seed was given. */
status reply_load(reply *r, err *e);
/* Writes --save FILE, if that was asked for. */
status reply_save(reply *r, err *e);
void reply_free(reply *r);
/* The ids of the last of n messages in the template, to be fed behind the session; the message before it is the last
 * reply. */
status reply_encode_turn(const reply *r, chat_message *msg, size_t n, token_list *out, err *e);
/* Feeds ids (none: it goes on where the session ended, unless that was an EOS), then prints tokens until EOS, a stop
 * string, n_new tokens, a full context or Ctrl-C. */
status reply_run(reply *r, const token_list *ids, err *e);
void reply_print_stats(const reply *r); /* to stderr */
/* The reply as an object of a report; NULL: e says why. */
json_t *reply_json(const reply *r, err *e);
/* Writes --json FILE with the options of replies; takes results. */
status reply_report(const reply *r, json_t *results, err *e);

/* Prints a piece of a reply (text_out). */
status reply_write(void *ctx, const char *text, size_t n, err *e);

#endif
