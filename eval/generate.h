/* SPDX-License-Identifier: MIT */
/* One reply of a model, printed as it comes: what generate and chat share. */
#ifndef EVAL_GENERATE_H
#define EVAL_GENERATE_H

#include "eval/cli.h"

typedef struct {
    const cli *c;
    engine *g;
    session *s;
    sampler *sampler;
    float *logits; /* [vocab] of the next token */
    int n_new;     /* most tokens of the reply */
    progress *bar;
    int64_t n_prompt, n_decoded;
    int64_t prompt_ns, decode_ns;
    token_list said; /* ids of the reply; the last one was sampled, but not fed to the session */
} reply;

/* A session for n_tokens and a sampler from the options. */
status reply_create(reply *r, const cli *c, engine *g, int64_t n_tokens, err *e);
void reply_free(reply *r);
/* Feeds ids, then prints tokens until EOS, a stop string, n_new tokens, a full context or Ctrl-C. */
status reply_run(reply *r, const token_list *ids, err *e);
void reply_print_stats(const reply *r); /* to stderr */
/* The reply as an object of a report; NULL: e says why. */
json_t *reply_json(const reply *r, err *e);
/* Writes --json FILE with the options of replies; takes results. */
status reply_report(const reply *r, json_t *results, err *e);
/* Options that can be judged before anything is opened. */
status reply_check(const cli *c, err *e);

/* Tokens of a session: --ctx, else need; refuses need beyond the model's maximum. */
status session_tokens(const cli *c, const engine *g, int64_t need, int64_t *out, err *e);

/* Printing with stop strings: text that may begin one is held back. */
typedef struct {
    const char *const *stop;
    int n_stop;
    char *held;
    size_t n, cap;
} text_out;
status text_out_add(text_out *t, const char *text, size_t n, bool *stopped, err *e);
status text_out_end(text_out *t, bool stopped, err *e); /* prints what is held, frees */

#endif
