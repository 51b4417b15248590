/* SPDX-License-Identifier: MIT */
/* Grammars of whole replies: thinking, then a JSON value. */
#include "config.h"

#include <string.h>

#include "grammar/grammar.h"

enum { SPELLED_PARTS = 16 };

/* Returns the length of the longest special token that is spelled at the start of a text; 0: none. */
static size_t special_at(const tokenizer *t, const char *text, int32_t *id)
{
    char word[64];
    size_t n = *text == '<' || *text == '[' ? strlen(text) : 0;
    for (n = n < sizeof word ? n : sizeof word - 1; n > 0; n--) {
        memcpy(word, text, n);
        word[n] = 0;
        *id = tokenizer_special_id(t, word);
        if (*id >= 0 && tokenizer_is_special(t, *id)) break;
    }
    return n;
}

grammar_node grammar_spelled(grammar_builder *b, const tokenizer *t, const char *text)
{
    grammar_node parts[SPELLED_PARTS];
    size_t n = 0, from = 0, at = 0;
    while (text[at] && n + 2 < SPELLED_PARTS) {
        int32_t id = -1;
        const size_t k = special_at(t, text + at, &id);
        if (k && at > from) parts[n++] = grammar_text(b, text + from, at - from);
        if (k) parts[n++] = grammar_token(b, id);
        at += k ? k : 1;
        if (k) from = at;
    }
    if (text[from]) parts[n++] = grammar_text(b, text + from, strlen(text + from));
    return n == 1 ? parts[0] : grammar_sequence(b, parts, n);
}

grammar_node grammar_up_to(grammar_builder *b, const tokenizer *t, const char *marker, bool ends)
{
    const int32_t id = tokenizer_special_id(t, marker);
    const bool special = id >= 0 && tokenizer_is_special(t, id);
    return grammar_free(b, special ? NULL : marker, special ? id : -1, ends);
}

grammar_node grammar_think(grammar_builder *b, const grammar_thinking *t, grammar_node then)
{
    if (!t || !t->close) return then;
    const grammar_node thought = grammar_up_to(b, t->t, t->close, false);
    const grammar_node inside[] = {thought, then};
    if (t->inside) return grammar_sequence(b, inside, 2);
    const grammar_node whole[] = {grammar_blank(b), grammar_spelled(b, t->t, t->open), thought, then};
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
