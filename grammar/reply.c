/* SPDX-License-Identifier: MIT */
/* Grammars of whole replies: thinking, then a JSON value. */
#include "config.h"

#include <string.h>

#include "grammar/grammar.h"

/* Returns the id of a marker if it is a special token, which no text spells. */
static int32_t special_id(const tokenizer *t, const char *marker)
{
    const int32_t id = tokenizer_special_id(t, marker);
    return id >= 0 && tokenizer_is_special(t, id) ? id : -1;
}

grammar_thinking grammar_find_thinking(const tokenizer *t, const int32_t *prompt, size_t n)
{
    static const char *const markers[][2] = {{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}};
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
        const char *const *m = markers[i];
        const int32_t open = tokenizer_special_id(t, m[0]), close = tokenizer_special_id(t, m[1]);
        size_t at = n;
        if (open < 0 || close < 0) continue;
        while (at > 0 && prompt[at - 1] != open && prompt[at - 1] != close) at--;
        if (at > 0 && prompt[at - 1] == close) break;
        return (grammar_thinking){m[0], m[1], special_id(t, m[0]), special_id(t, m[1]), at > 0};
    }
    return (grammar_thinking){.open_token = -1, .close_token = -1};
}

grammar_node grammar_think(grammar_builder *b, const grammar_thinking *t, grammar_node then)
{
    if (!t || !t->close) return then;
    const grammar_node thought = grammar_free(b, t->close_token < 0 ? t->close : NULL, t->close_token, false);
    const grammar_node inside[] = {thought, then};
    if (t->inside) return grammar_sequence(b, inside, 2);
    const grammar_node open =
        t->open_token < 0 ? grammar_text(b, t->open, strlen(t->open)) : grammar_token(b, t->open_token);
    const grammar_node whole[] = {grammar_blank(b), open, thought, then};
    const grammar_node either[] = {grammar_sequence(b, whole, 4), then};
    return grammar_choice(b, either, 2);
}

status grammar_compile(grammar **out, const json_t *schema, bool compact, const grammar_thinking *think,
                       const schema_options *o, err *e)
{
    grammar_builder *b;
    grammar_node value;
    *out = NULL;
    TRY(grammar_begin(&b, compact, e));
    status st = ST_OK;
    if (schema) st = grammar_schema(&value, b, schema, o, e);
    else value = grammar_object(b);
    if (st != ST_OK) {
        grammar_finish(NULL, b, -1, NULL);
        return st;
    }
    const grammar_node parts[] = {grammar_blank(b), value};
    return grammar_finish(out, b, grammar_think(b, think, grammar_sequence(b, parts, 2)), e);
}
