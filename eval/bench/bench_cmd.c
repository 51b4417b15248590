/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/bench/bench_draft.h"
#include "eval/bench/bench_run.h"
#include "cli/command.h"

static const cli_option options[] = {
    {.name = "shape", .arg = "NAME,...", AT(shape), .help = "random weights of known shapes, e.g. llama-3.2-1b"},
    {.name = "phase",
     .arg = "LIST",
     AT_OWN(bench_options, phase),
     .help = "what to time: prefill, decode (default: both), or kernel, single ops"},
    {.name = "batch", .arg = "N,...", AT_OWN(bench_options, batch), .help = "sequences of one decode step (default 1)"},
    {.name = "samples",
     .arg = "N",
     .type = OPTION_WHOLE,
     .min = 1,
     .max = 20,
     AT_OWN(bench_options, samples),
     .help = "timed runs that count, of at most 2 N (default 20; fewer for a quick look)"},
    {.name = "fill",
     .type = OPTION_FLAG,
     AT_OWN(bench_options, fill),
     .help = "random rows as context instead of a real prompt (always so for prompts beyond 8k tokens)"},
    {.name = "draft",
     .arg = "SPEC[:n=K]",
     AT(draft),
     .help = "time decode steps with these drafts (generate --draft) against single steps"},
    {.name = "draft-weights",
     .arg = "q8|q4",
     AT(draft_weights),
     .help = "with --draft STRATEGY: drafts run with the model's matrices in 8 or 4 bits (generate --draft-weights)"},
    {.name = "accept",
     .arg = "P",
     .type = OPTION_NUMBER,
     .def = 0.9,
     AT_OWN(bench_options, accept),
     .help = "with --draft: the share of drafted tokens that is taken as right, whatever the model says (default 0.9)"},
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
