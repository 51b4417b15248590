/* SPDX-License-Identifier: MIT */
/* MRCR: conversations with several similar requests, one of which must be repeated. Source: doc/evals.md 18; data sets
 * openai/mrcr and, for version 2, google-deepmind/eval_hub. */
#ifndef EVAL_MRCR_H
#define EVAL_MRCR_H

#include <stdbool.h>

#include "eval/prompt.h"
#include "eval/samples.h"

typedef struct {
    sample_head at;
    json_t *messages;         /* messages {"role", "content"}; NULL: version 2 */
    utf8_text queries;        /* version 2: the whole prompt */
    utf8_text answer, prefix; /* prefix: required start of the answer; version 2: none */
    int64_t needles;          /* number of similar requests; 0: unknown */
    size_t tokens;            /* of prompt and answer, set after encoding */
} mrcr_sample;

static inline bool mrcr_is_v2(const mrcr_sample *s)
{
    return s->prefix.s == NULL;
}

/* Reads records with the columns of openai/mrcr ("prompt", a list of messages or its JSON text, "answer",
 * "random_string_to_prepend", "n_needles") or of version 2 ("queries", "answer"; the number of needles is in a column
 * "n_needles" or in the name of a CSV file: "8needle"). */
extern const sample_reader mrcr_reader;
/* Frees the messages of a sample. */
void mrcr_drop(void *s);
/* Frees the prompt of a sample, which is large. */
void mrcr_sample_forget(mrcr_sample *s);

/* Writes the prompt: the conversation in the chat template, or, with WRAP_RAW, each message after the name of its role.
 */
status mrcr_text(prompt_text *out, const mrcr_sample *s, const prompter *how, err *e);

#endif
