/* SPDX-License-Identifier: MIT */
/* What the command line asks for. Commands return a status; run.c prints e->msg and turns it into the exit status. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "cli/engine.h"
#include "cli/lineup.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "cli/values.h"
#include "model/sampler.h"
#include "model/session.h"

/* Options as given; NULL or 0 where not given. Lists are comma-separated strings. What one command takes by itself is
 * in `own`, a struct of its own. */
typedef struct {
    result_options out;
    engine_options engine;
    attn_args attn;
    prefix_args prefix;
    prompt_source prompt;
    seed_option seed, sample_seed;
    text_options stop;
    const char *shape, *protocol, *template_name, *system, *input, *tensors, *data, *max_length, *wrap, *clean_up;
    const char *save, *load, *draw;
    void *own;
    int n_new, top_k, limit, trials, jobs;
    double temp, top_p, min_p, repeat_penalty;
    bool alone; /* of the command: it is for one process */
    bool chat, special, plan, ignore_eos, no_verify;
} cli;

#endif
