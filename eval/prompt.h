/* SPDX-License-Identifier: MIT */
/* Prompts of evaluations: templates, middle truncation by tokens, chat wrapping. Source: evals.md 1.3 and 1.4. */
#ifndef EVAL_PROMPT_H
#define EVAL_PROMPT_H

#include "attention/sequence.h"
#include "eval/metrics/text.h"
#include "tokenizer/chat.h"

/* Growing text; free s with mem_free. Errors of the functions below are those of str_check. */
typedef str prompt_text;

typedef struct {
    const char *name; /* "{context}" */
    utf8_text value;
} prompt_field;

/* Fills the template's fields in one pass: values are not searched for fields. On error, out is empty. */
status prompt_fill(prompt_text *out, const char *template, const prompt_field *f, size_t n, err *e);
/* Appends the filled template. */
status prompt_append(prompt_text *text, const char *template, const prompt_field *f, size_t n, err *e);

/* Replaces every occurrence of a nonempty marker in one pass, as str.replace: values are not searched for markers. */
status prompt_replace(prompt_text *text, utf8_text marker, utf8_text value, err *e);

/* Append n bytes; a NUL-terminated text; a text in the form of Python's repr, with characters beyond ASCII
 * unchanged. */
status prompt_add(prompt_text *text, const char *s, size_t n, err *e);
status prompt_puts(prompt_text *text, const char *s, err *e);
status prompt_add_repr(prompt_text *text, utf8_text s, err *e);

/* Turns a sentence into a question, as InfiniteBench does: "What is the largest number" and `tail` from "The largest
 * number is" with `last` "is". The sentence is the first match of the regular expression "The .+ LAST". *found false:
 * no match. */
status prompt_ask(prompt_text *out, utf8_text text, const char *last, const char *tail, bool *found, err *e);

/* Middle truncation of a text that is too long. */
typedef struct {
    size_t most;        /* limit in tokens; longer texts are cut */
    size_t first, last; /* tokens kept at each end: at least 1 each, together at most `most` */
    bool joined;        /* decode both ends as one list; else each by itself */
    bool clean;         /* with the reference's clean-up of spaces */
} prompt_cut;

/* Tokenizes the text with the tokenizer's own BOS and special tokens. Replaces a text that is too long by the decoded
 * text of the kept tokens, without special tokens. *n_tokens: the number before the cut. */
status prompt_truncate(prompt_text *text, const tokenizer *tok, const prompt_cut *cut, size_t *n_tokens, err *e);

typedef enum { WRAP_TEMPLATE, WRAP_RAW, WRAP_DOUBLE_BOS } prompt_wrap;
/* Parses template, raw or double-bos; NULL is template. ST_USAGE names the option --wrap. */
status prompt_wrap_parse(prompt_wrap *out, const char *text, err *e);
const char *prompt_wrap_name(prompt_wrap w);

/* Return the number of characters of valid UTF-8, and the byte at which character i begins (n after the last one). */
size_t prompt_characters(const char *s, size_t n);
size_t prompt_character_at(const char *s, size_t n, size_t i);

/* Returns the byte at which the last occurrence of a nonempty text begins; n: not found. */
size_t prompt_find_last(const char *s, size_t n, const char *text);

/* ---- from the text of a prompt to its tokens: cut, wrap, encode ---- */

typedef struct {
    const tokenizer *tok;
    size_t max_length;  /* maximum tokens of a prompt before it is wrapped, at least 2 */
    prompt_wrap wrap;   /* for prompts that are wrapped at all */
    const json_t *args; /* variables of the chat template, or NULL */
    bool thinks;        /* enable_thinking, unless args has it */
    bool joined; /* a cut prompt keeps max_length tokens decoded as one list; else its two halves, each by itself */
    bool halves; /* with joined: both halves have floor(max_length / 2) tokens; else together max_length */
    bool decode; /* Quest's rule: the question goes through the decode path */
    bool clean;  /* remove spaces before punctuation in decoded text, as Llama-3's tokenizer does */
} prompter;

typedef struct {
    token_list head, tail; /* prefilled; fed token by token */
    size_t *breaks;        /* [n_breaks] ascending positions in the head at which one prompt ends and the next begins */
    size_t n_breaks;
    size_t n_tokens; /* tokens of the filled template, before truncation */
    bool truncated;
} prompt_tokens;

/* Stores a conversation in the chat template as a new text. Templates that read the clock see 26 July 2024, so that
 * prompts do not depend on the day of the run. */
status prompter_chat(prompt_text *out, const prompter *p, const json_t *messages, err *e);
/* Stores the same for n messages of text. */
status prompter_say(prompt_text *out, const prompter *p, const chat_message *m, size_t n, err *e);
/* Replaces the text by a conversation of which it is the only message. */
status prompter_ask(prompt_text *text, const prompter *p, err *e);
/* Cuts a text that is too long in the middle, and wraps it in the chat template if `chat`. Sets n_tokens and truncated
 * of out. */
status prompter_wrap(prompt_tokens *out, const prompter *p, bool chat, prompt_text *text, err *e);
/* Encodes the result of prompter_wrap. Bytes from `cut` on become the tail, which has no BOS. */
status prompter_encode(prompt_tokens *out, const prompter *p, bool chat, const prompt_text *text, size_t cut, err *e);
/* Runs prompter_wrap and prompter_encode on the whole text, and frees it. */
status prompter_take(prompt_tokens *out, const prompter *p, bool chat, prompt_text *text, err *e);
/* Ends a prompt at the current end of the head: adds a break, unless the head is empty. */
status prompt_tokens_break(prompt_tokens *t, err *e);
/* Finds the span of a text in the head: the first match of its ids except the first and last, which may depend on their
 * neighbours. {0, 0}: not found, or the text has fewer than three tokens. */
status prompt_tokens_find(attn_span *out, const prompt_tokens *t, const tokenizer *tok, utf8_text text, err *e);
void prompt_tokens_free(prompt_tokens *t);

#endif
