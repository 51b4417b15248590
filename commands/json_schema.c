/* SPDX-License-Identifier: MIT */
/* --json-schema: replies that are JSON of a schema. */
#include "config.h"

#include <string.h>

#include "commands/generate.h"
#include "cli/output.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum { MAX_BYTES = 256 << 10, MAX_DEPTH = 128 };

/* Reads the schema of a file, or of the option itself if it is a JSON object. */
static status read_schema(json_t **out, const char *text, err *e)
{
    char *bytes;
    size_t n;
    err why = {0};
    *out = NULL;
    if (*text == '{') return json_parse_object(out, text, strlen(text), "--json-schema", MAX_DEPTH, e);
    status st = file_read_text(&bytes, &n, text, MAX_BYTES, &why);
    if (st != ST_OK) return err_set(e, st, "--json-schema %s", why.msg);
    st = json_parse_object(out, bytes, n, text, MAX_DEPTH, &why);
    mem_free(bytes);
    return st == ST_OK ? ST_OK : err_set(e, st, "--json-schema %s", why.msg);
}

/* Compiles the schema. ignored: keywords without effect. */
static status compile(grammar **out, const json_t *schema, const grammar_thinking *think, json_t *ignored, err *e)
{
    const schema_options o = {.root = "$", .ignored = ignored};
    err why = {0};
    const status st = grammar_compile(out, schema, false, think, &o, &why);
    return st == ST_OK ? ST_OK : err_set(e, st, "--json-schema: %s", why.msg);
}

status reply_read_schema(reply *r, err *e)
{
    json_t *ignored;
    if (!r->o->json_schema) return ST_OK;
    if (r->o->ignore_eos) return err_set(e, ST_USAGE, "--json-schema and --ignore-eos: mutually exclusive");
    TRY(read_schema(&r->schema, r->o->json_schema, e));
    if (!(ignored = json_array())) return err_set(e, ST_NOMEM, "out of memory for a schema");
    status st = compile(&r->under, r->schema, NULL, ignored, e);
    if (st == ST_OK) st = grammar_vocab_create(&r->words, r->g.tok, (size_t)r->g.m->config.vocab, e);
    for (size_t i = 0; st == ST_OK && i < json_array_size(ignored); i++)
        out_note("--json-schema: %s is not enforced", json_string_value(json_array_get(ignored, i)));
    json_decref(ignored);
    return st;
}

status reply_restrict(reply *r, err *e)
{
    const grammar_thinking think = {r->g.tok, r->thinking.open, r->thinking.close, r->thinking.inside};
    grammar *g;
    if (!r->schema) return ST_OK;
    TRY(compile(&g, r->schema, &think, NULL, e));
    status st = sequence_restrict(&r->q, g, r->words, e);
    grammar_drop(r->under);
    r->under = g;
    return st;
}

void reply_free_schema(reply *r)
{
    grammar_drop(r->under);
    grammar_vocab_free(r->words);
    json_decref(r->schema);
}
