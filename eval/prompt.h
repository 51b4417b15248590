/* SPDX-License-Identifier: MIT */
/* Prompts of evaluations: templates, middle truncation by tokens, chat wrapping. Source: evals.md 1.3 and 1.4. */
#ifndef EVAL_PROMPT_H
#define EVAL_PROMPT_H

#include "attention/sequence.h"
#include "eval/metrics/text.h"
#include "tokenizer/tokenizer.h"

/* A text that grows; s is freed with mem_free. An error of the functions below is str_check's. */
typedef str prompt_text;

typedef struct {
    const char *name; /* "{context}" */
    utf8_text value;
} prompt_field;

/* Fills the template's fields in one pass: values are not searched for fields. An error leaves nothing in out. */
status prompt_fill(prompt_text *out, const char *template, const prompt_field *f, size_t n, err *e);
/* Appends the filled template. */
status prompt_append(prompt_text *text, const char *template, const prompt_field *f, size_t n, err *e);

/* str.replace: every occurrence of the marker, which is not empty; what a value says is not looked at again. */
status prompt_replace(prompt_text *text, utf8_text marker, utf8_text value, err *e);

/* Appends n bytes; a NUL-terminated text; a text as Python's repr writes it, where characters beyond ASCII stay as they
 * are. */
status prompt_add(prompt_text *text, const char *s, size_t n, err *e);
status prompt_puts(prompt_text *text, const char *s, err *e);
status prompt_add_repr(prompt_text *text, utf8_text s, err *e);

/* Asks for the first match of the regular expression "The .+ LAST" of a text, as InfiniteBench does: "What is the
 * largest number" and `tail` of "The largest number is", LAST being "is". *found false: there is none. */
status prompt_ask(prompt_text *out, utf8_text text, const char *last, const char *tail, bool *found, err *e);

/* How a text that is too long is cut. */
typedef struct {
    size_t most;        /* longer texts are cut */
    size_t first, last; /* of a longer one, at least 1 each, at most `most` together */
    bool joined;        /* both are decoded as one list, else each by itself */
    bool clean;         /* with the reference's clean-up of spaces */
} prompt_cut;

/* Tokenizes the text with the tokenizer's own BOS and special tokens. Replaces a text that is too long by the text of
 * the tokens that are kept, without special tokens. *n_tokens: the number before the cut. */
status prompt_truncate(prompt_text *text, const tokenizer *tok, const prompt_cut *cut, size_t *n_tokens, err *e);

typedef enum { WRAP_TEMPLATE, WRAP_RAW, WRAP_DOUBLE_BOS } prompt_wrap;
/* Parses template, raw, double-bos; NULL is the first. ST_USAGE names the option --wrap. */
status prompt_wrap_parse(prompt_wrap *out, const char *text, err *e);
const char *prompt_wrap_name(prompt_wrap w);

/* The text as one user message of the chat template (name NULL: the folder's own). */
status prompt_to_chat(prompt_text *text, const tokenizer *tok, const char *name, err *e);

/* Characters of valid UTF-8; the byte where character i begins (the end: all of them). */
size_t prompt_characters(const char *s, size_t n);
size_t prompt_character_at(const char *s, size_t n, size_t i);

/* Returns the byte at which the last occurrence of a text that is not empty begins; n: there is none. */
size_t prompt_find_last(const char *s, size_t n, const char *text);

/* ---- from the text of a prompt to its tokens: cut in the middle, wrapped, encoded, as the options of a run say ----
 */

typedef struct {
    const tokenizer *tok;
    size_t max_length;         /* tokens of a prompt before it is wrapped, at least 2 */
    prompt_wrap wrap;          /* of prompts that are wrapped at all */
    const char *chat_template; /* NULL: the folder's own */
    bool joined; /* a longer prompt keeps max_length tokens, decoded as one; else its two halves, each by itself */
    bool halves; /* of joined: both halves have floor(max_length / 2) tokens; else all are kept */
    bool decode; /* Quest's rule: the question goes through the decode path */
    bool clean;  /* remove spaces before punctuation in decoded text, as Llama-3's tokenizer does */
} prompter;

typedef struct {
    token_list head, tail; /* prefilled; fed token by token */
    size_t *breaks;        /* [n_breaks] ascending places in the head where one prompt ends and the next begins */
    size_t n_breaks;
    size_t n_tokens; /* of the filled template, before anything is cut */
    bool truncated;
} prompt_tokens;

/* Cuts a text that is too long in the middle, and wraps it in the chat template if `chat`; sets n_tokens and truncated
 * of out. */
status prompter_wrap(prompt_tokens *out, const prompter *p, bool chat, prompt_text *text, err *e);
/* Encodes what prompter_wrap left; bytes from `cut` on go into the tail, which has no BOS. */
status prompter_encode(prompt_tokens *out, const prompter *p, bool chat, const prompt_text *text, size_t cut, err *e);
/* prompter_wrap, and prompter_encode of all of the text, which it frees. */
status prompter_take(prompt_tokens *out, const prompter *p, bool chat, prompt_text *text, err *e);
/* What is in the head so far is a prompt by itself: a break, unless the head is empty. */
status prompt_tokens_break(prompt_tokens *t, err *e);
/* Where a text stands in the head: the first match of its ids without the first and the last, which may depend on what
 * is beside them; {0, 0}: nowhere, as is a text of less than three tokens. */
status prompt_tokens_find(attn_span *out, const prompt_tokens *t, const tokenizer *tok, utf8_text text, err *e);
void prompt_tokens_free(prompt_tokens *t);

#endif
