/* SPDX-License-Identifier: MIT */
/* LongBench's prompts in tokens. Source: evals.md 1.2 to 1.5; THUDM/LongBench pred.py, mit-han-lab/Quest. */
#ifndef EVAL_LONGBENCH_PROMPT_H
#define EVAL_LONGBENCH_PROMPT_H

#include "eval/longbench.h"
#include "eval/prompt.h"

typedef struct {
    const tokenizer *tok;
    size_t max_length;         /* tokens of a prompt before it is wrapped, at least 2 */
    prompt_wrap wrap;          /* of datasets that are wrapped at all */
    const char *chat_template; /* NULL: the folder's own */
    bool decode;               /* Quest's rule: the question goes through the decode path */
    bool clean; /* clean up spaces where text is cut, as Llama-3's tokenizer is set */
} longbench_prompter;

typedef struct {
    token_list head, tail; /* prefilled; fed token by token */
    size_t n_tokens;       /* of the filled template, before anything is cut */
    bool truncated;
} longbench_prompt;

/* longbench_prompt_free also after an error. */
status longbench_prompt_make(longbench_prompt *out, const longbench_prompter *p,
                             const longbench_dataset *d, utf8_text context, utf8_text input,
                             err *e);
void longbench_prompt_free(longbench_prompt *p);

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
