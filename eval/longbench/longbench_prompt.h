/* SPDX-License-Identifier: MIT */
/* LongBench's prompts in tokens. Source: evals.md 1.2 to 1.5; THUDM/LongBench pred.py, mit-han-lab/Quest. */
#ifndef EVAL_LONGBENCH_PROMPT_H
#define EVAL_LONGBENCH_PROMPT_H

#include "eval/longbench/longbench.h"
#include "eval/prompter.h"

/* prompt_tokens_free also after an error. */
status longbench_prompt_make(prompt_tokens *out, const prompter *p, const longbench_dataset *d, utf8_text context,
                             utf8_text input, err *e);

/* Where Quest's decoding part begins in a whole prompt, in bytes: at the last occurrence of the dataset's question, at
 * most 100 characters from the end (a prompt shorter than that without a question: its last character). */
size_t longbench_cut(const longbench_dataset *d, const char *s, size_t n);

/* Appends the ids that end an answer: the model's, and the newline where it ends one. */
status longbench_stops(token_list *out, const tokenizer *tok, const longbench_dataset *d, err *e);

/* The default of max_length for a window of this many tokens: the window in thousands, less 500, as the published
 * tables have it (4k: 3500, 8k: 7500, 16k: 15500, 32k: 31500); below 2,000 tokens the window less 500. ST_USAGE for
 * less than 600. */
status longbench_max_length(size_t *out, int64_t window, err *e);

#endif
