/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/bench/bench_draft.h"
#include "eval/bench/bench_run.h"
#include "cli/command.h"

static const cli_option options[] = {
    OPTION("shape", "NAME,...", TEXT, AT(shape), "random weights of known shapes, e.g. llama-3.2-1b"),
    OPTION("phase", "LIST", TEXT, AT_OWN(bench_options, phase),
           "what to time: prefill, decode (default: both), or kernel, single ops"),
    OPTION("batch", "N,...", TEXT, AT_OWN(bench_options, batch), "sequences of one decode step (default 1)"),
    OPTION("samples", "N", WHOLE(1, 20, 0), AT_OWN(bench_options, samples),
           "timed runs that count, of at most 2 N (default 20; fewer for a quick look)"),
    OPTION("fill", NULL, FLAG, AT_OWN(bench_options, fill),
           "random rows as context instead of a real prompt (always so for prompts beyond 8k tokens)"),
    OPTION("draft", "SPEC[:n=K]", TEXT, AT(draft),
           "time decode steps with these drafts (generate --draft) against single steps"),
    OPTION("draft-weights", "q8|q4", TEXT, AT(draft_weights),
           "with --draft STRATEGY: drafts run with the model's matrices in 8 or 4 bits (generate --draft-weights)"),
    OPTION("accept", "P", NUMBER(0.9), AT_OWN(bench_options, accept),
           "with --draft: the share of drafted tokens that is taken as right, whatever the model says (default 0.9)"),
    {0}};

static status run(const cli *c, err *e)
{
    TRY(cli_check_draft_weights(c, e));
    return c->draft ? bench_drafts(c, e) : bench_all(c, e);
}

const command bench_command = {.name = "bench",
                               .args = "",
                               .summary = "speed, and its share of what the machine can do",
                               .groups = OPTIONS_MODEL | OPTIONS_LENGTH,
                               .own = options,
                               .own_size = sizeof(bench_options),
                               .compares = true,
                               .run = run};
