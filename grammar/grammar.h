/* SPDX-License-Identifier: MIT */
/* Constraints on generated text: a JSON Schema, or a sequence of literal texts, special tokens and JSON values. A
 * grammar is built from nodes, or compiled from a schema. A run follows the tokens of one sequence and returns the set
 * of tokens that may be next. Every text that ends with EOS under a grammar belongs to it. No HTTP, no model. */
#ifndef GRAMMAR_GRAMMAR_H
#define GRAMMAR_GRAMMAR_H

#include <jansson.h>

#include "tokenizer/tokenizer.h"

/* ---- vocabulary ---- */

/* The bytes of all tokens, indexed for masks. Shared by all runs; not changed after creation. */
typedef struct grammar_vocab grammar_vocab;

/* Indexes the tokens of t. vocab: number of logits; ids of t from there on are left out. ST_UNSUPPORTED if
 * printable ASCII or a later byte of a UTF-8 character has no token, or the tokenizer has no EOS. */
status grammar_vocab_create(grammar_vocab **out, const tokenizer *t, size_t vocab, err *e);
void grammar_vocab_free(grammar_vocab *v);

/* ---- grammars ---- */

typedef struct grammar grammar;
typedef struct grammar_builder grammar_builder;
typedef int32_t grammar_node;

/* Starts a grammar. compact: no white space between JSON tokens except one space after `:` and `,`. */
status grammar_begin(grammar_builder **out, bool compact, err *e);

/* Nodes. A node may be part of several others. After an error (out of memory, too many nodes) the functions return -1,
 * which all of them accept, and grammar_finish reports the error. A tool call of Hermes with one of two functions:
 *   grammar_node args[] = {grammar_object(b), of_schema};
 *   const char *names[] = {"f\", \"arguments\": ", "g\", \"arguments\": "};
 *   grammar_node call[] = {grammar_text(b, OPEN, strlen(OPEN)),       // <tool_call>\n{"name": "
 *                          grammar_names(b, names, args, 2),
 *                          grammar_text(b, CLOSE, strlen(CLOSE))};    // }\n</tool_call>
 *   root = grammar_repeat(b, grammar_sequence(b, call, 3), grammar_text(b, "\n", 1), 128); */

/* Exactly these bytes, in any tokens that are not special; n > 0. Added tokens that are not special count as text. */
grammar_node grammar_text(grammar_builder *b, const char *text, size_t n);
/* One special token. */
grammar_node grammar_token(grammar_builder *b, int32_t id);
/* Any JSON value, or any JSON object. */
grammar_node grammar_value(grammar_builder *b);
grammar_node grammar_object(grammar_builder *b);
/* At most two newlines or spaces, before a JSON value. */
grammar_node grammar_blank(grammar_builder *b);
/* Parts in this order; n > 0. */
grammar_node grammar_sequence(grammar_builder *b, const grammar_node *parts, size_t n);
/* One of n nodes. At most 64 stay possible at a time: use grammar_names for many literals. */
grammar_node grammar_choice(grammar_builder *b, const grammar_node *of, size_t n);
/* One of n texts, none of which is empty, each followed by its own node; then -2: by nothing. */
grammar_node grammar_names(grammar_builder *b, const char *const *names, const grammar_node *then, size_t n);
/* One or more of a node, at most `most`, with a separator in between (-2: none). */
grammar_node grammar_repeat(grammar_builder *b, grammar_node of, grammar_node separator, size_t most);
/* Any text up to and including a marker: the text `marker`, or the special token `token` if marker is NULL. ends: the
 * reply may also end before the marker. No mask applies before the marker, except that EOS requires `ends`. Thinking is
 * grammar_free(b, "</think>", -1, false); strict functions with tool_choice auto are a repetition of free text up to
 * the opening marker (ends: true), followed by a call. */
grammar_node grammar_free(grammar_builder *b, const char *marker, int32_t token, bool ends);
/* As grammar_free with a text as marker, without special tokens: the value of a parameter up to its closing tag. */
grammar_node grammar_until(grammar_builder *b, const char *marker);

typedef struct {
    const char *root; /* path of the schema in messages: "$", or "tools[2].function.parameters" */
    bool lenient;     /* unsupported keywords are ignored and listed, not errors */
    json_t *ignored;  /* array to which the paths of ignored keywords are added; may be NULL */
} schema_options;

/* A value of a JSON Schema (2020-12, and older forms of tuples). *out is -1 after an error: ST_UNSUPPORTED (keyword),
 * ST_USAGE (no value satisfies the schema) or ST_FORMAT (not a schema); the message begins with the path. */
status grammar_schema(grammar_node *out, grammar_builder *b, const json_t *schema, const schema_options *o, err *e);

/* Completes a grammar whose text is `root`, and frees b also after an error; out NULL only frees b. */
status grammar_finish(grammar **out, grammar_builder *b, grammar_node root, err *e);
void grammar_drop(grammar *g);

/* As grammar_text, but spellings of special tokens of t are these tokens. */
grammar_node grammar_spelled(grammar_builder *b, const tokenizer *t, const char *text);
/* As grammar_free, with a marker that is one special token of t or text. */
grammar_node grammar_up_to(grammar_builder *b, const tokenizer *t, const char *marker, bool ends);

/* Thinking before the constrained part of a reply. */
typedef struct {
    const tokenizer *t;
    const char *open, *close; /* markers; close NULL: the reply does not think */
    bool inside;              /* the reply begins inside thinking; else the opening marker may begin it */
} grammar_thinking;

/* Returns a node before which the reply may think, up to and including the closing marker. */
grammar_node grammar_think(grammar_builder *b, const grammar_thinking *t, grammar_node then);

/* Compiles a grammar of one JSON value: thinking (NULL: none), optional blanks, a value of the schema; schema NULL: any
 * JSON object. */
status grammar_compile(grammar **out, const json_t *schema, bool compact, const grammar_thinking *think,
                       const schema_options *o, err *e);

/* ---- runs ---- */

enum { GRAMMAR_BACK = 16 /* number of tokens that grammar_run_back can take back */ };

/* A sequence of tokens under a grammar. Borrows g and v. */
typedef struct grammar_run grammar_run;

status grammar_run_create(grammar_run **out, const grammar *g, const grammar_vocab *v, err *e);
void grammar_run_free(grammar_run *r);
/* Returns the set of tokens that may be next, one bit each, 64 a word, [vocab]; valid until the next call. Empty only
 * after ST_NOMEM or a token that was not allowed. */
const uint64_t *grammar_run_mask(grammar_run *r);
/* True if the text may end here. */
bool grammar_run_may_end(const grammar_run *r);
/* Adds a token. False if it is not allowed; the mask is then empty until the token is taken back. */
bool grammar_run_accept(grammar_run *r, int32_t id);
/* Takes back the last n tokens, at most GRAMMAR_BACK. */
void grammar_run_back(grammar_run *r, size_t n);
/* Returns how many of ids [n] are allowed one after the other, without adding them. */
size_t grammar_run_allows(grammar_run *r, const int32_t *ids, size_t n);

#endif
