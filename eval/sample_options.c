/* SPDX-License-Identifier: MIT */
/* The options of evaluations. */
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
     .help = "folders or files of samples (default: a few of our own)"},
    {SAMPLES, .name = "limit", .arg = "N", WHOLE(1, MOST, 0), AT(evaluation_options, limit),
     .help = "the first N samples of a dataset"},
    {SAMPLES, .name = "sample-seed", .arg = "N", .type = OPTION_SEED, AT(evaluation_options, sample_seed),
     .help = "draw the samples of --limit at random, by this seed"},
    {TRIALS, .name = "trials", .arg = "N", WHOLE(1, 100000, 20), AT(evaluation_options, trials),
     .help = "prompts of each length (default 20)"},
    {JOBS, .name = "jobs", .arg = "N", WHOLE(1, 256, 1), AT(evaluation_options, jobs),
     .help = "prompts side by side, decoded as one batch (default 1)"},
    {RESULTS, .letter = 'o', .arg = "FILE.jsonl", AT(run_options, out.output),
     .help = "write a line for each result; the same command goes on where such a file ends"},
    {SAMPLES, .name = "max-length", .arg = "N", AT(evaluation_options, max_length),
     .help = "cut longer prompts in the middle to N tokens (default: what the window leaves)"},
    {SAMPLES, .name = "wrap", .arg = "template|raw|double-bos", AT(evaluation_options, wrap),
     .help = "prompts in the chat template (default if the model has one), as they are, or with BOS twice"},
    {SAMPLES, .name = "clean-up", .arg = "on|off", AT(evaluation_options, clean_up),
     .help = "remove spaces before punctuation in decoded text (default: as the tokenizer says)"},
    {0}};
