/* SPDX-License-Identifier: MIT */
/* Options of the evaluations. */
#include "config.h"

#include "cli/command.h"
#include "eval/evaluation.h"

#define SAMPLES .groups = OPTIONS_SAMPLES
#define TRIALS  .groups = OPTIONS_TRIALS
#define JOBS    .groups = OPTIONS_SAMPLES | OPTIONS_TRIALS | OPTIONS_JOBS
#define RESULTS .groups = OPTIONS_RESULTS

enum { MOST = 1 << 30 };

const cli_option evaluation_rows[] = {
    {SAMPLES, .name = "data", .arg = "PATH,...", AT(evaluation_options, data),
     .help = "folders or files of samples (default: a few built-in ones)"},
    {SAMPLES, .name = "limit", .arg = "N", WHOLE(1, MOST, 0), AT(evaluation_options, limit),
     .help = "use only the first N samples of each dataset"},
    {SAMPLES, .name = "sample-seed", .arg = "N", .type = OPTION_SEED, AT(evaluation_options, sample_seed),
     .help = "draw the samples of --limit at random with this seed"},
    {TRIALS, .name = "trials", .arg = "N", WHOLE(1, 100000, 20), AT(evaluation_options, trials),
     .help = "prompts per length (default 20)"},
    {JOBS, .name = "jobs", .arg = "N", WHOLE(1, 256, 1), AT(evaluation_options, jobs),
     .help = "prompts decoded as one batch (default 1)"},
    {RESULTS, .letter = 'o', .arg = "FILE.jsonl", AT(run_options, out.output),
     .help = "write one line per result; the same command resumes an interrupted run"},
    {SAMPLES, .name = "max-length", .arg = "N", AT(evaluation_options, max_length),
     .help = "cut longer prompts in the middle to N tokens (default: fit the window)"},
    {SAMPLES, .name = "wrap", .arg = "template|raw|double-bos", AT(evaluation_options, wrap),
     .help = "wrap prompts in the chat template (default if the model has one), not at all, or with a second BOS"},
    {SAMPLES, .name = "clean-up", .arg = "on|off", AT(evaluation_options, clean_up),
     .help = "remove spaces before punctuation in decoded text (default: the tokenizer's setting)"},
    {0}};
