/* SPDX-License-Identifier: MIT */
/* MRCR: conversations in which several requests are alike, one of which is to be repeated. Source: doc/evals.md 18; the
 * data sets openai/mrcr, and google-deepmind/eval_hub for version 2. */
#ifndef EVAL_MRCR_H
#define EVAL_MRCR_H

#include <stdbool.h>

#include "eval/prompt.h"
#include "eval/samples.h"

typedef struct {
    sample_head at;
    json_t *messages;         /* of the conversation, {"role", "content"}; NULL: of version 2 */
    utf8_text queries;        /* of version 2: the whole prompt */
    utf8_text answer, prefix; /* prefix: what the answer begins with; of version 2 none */
    int64_t needles;          /* requests that are alike; 0: unknown */
    size_t tokens;            /* of prompt and answer, once they are encoded */
} mrcr_sample;

static inline bool mrcr_is_v2(const mrcr_sample *s)
{
    return s->prefix.s == NULL;
}

/* Records have the columns of openai/mrcr ("prompt", a list of messages or its text, "answer",
 * "random_string_to_prepend", "n_needles"), or those of version 2 ("queries", "answer"; the number of needles is a
 * column "n_needles" or in the name of a CSV file: "8needle"). */
extern const sample_reader mrcr_reader;
/* Frees the messages of a sample. */
void mrcr_drop(void *s);
/* Frees the conversation, which is large. */
void mrcr_sample_forget(mrcr_sample *s);

/* The text of the prompt: the conversation in the chat template (name NULL: the folder's own; chat: there is one), else
 * with the names of the roles in front of the messages. */
status mrcr_text(prompt_text *out, const mrcr_sample *s, const tokenizer *tok, const char *name, bool chat, err *e);

#endif
