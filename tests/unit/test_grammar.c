/* SPDX-License-Identifier: MIT */
/* Texts under grammars: which are complete, and which tokens the masks allow. */
#include "config.h"

#include "grammar/schema.h"
#include "tests/unit/grammar_util.h"

/* ---- texts ---- */

typedef struct {
    const char *schema;
    const char *yes[8], *no[12];
} text_row;

static const text_row texts[] = {
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}",
     {"{\"a\":1}", "{ \"a\" : -20 }", "{\n  \"a\":\n    0\n}", "\n\n{\"a\":7}"},
     {"{}", "{\"a\":01}", "{\"a\":-0}", "{\"a\":1.0}", "{\"b\":1}", "{\"a\":1,}", "{\"a\":1}\n", "{  \"a\":1}",
      "\n\n\n{\"a\":1}", "{\"a\":1,\"a\":2}", "[1]"}},
    {"", {"{}", "{\"a\":{\"b\":[1,2.5e-3,\"\\u00e9\",null]}}"}, {"[]", "1", "\"a\"", "{\"a\":tru}", "{a:1}"}},
    {"true",
     {"1", "\"x\"", "[]", "{}", "null", "false", "-0.5", "[[1],{\"a\":{}}]"},
     {"", "nul", "[1,]", "+1", ".5", "1."}},
    {"{\"enum\":[\"x\",\"xy\",12,1,{\"a\":[]},0.1]}",
     {"\"x\"", "\"xy\"", "1", "12", "{\"a\":[]}", "0.1"},
     {"\"y\"", "2", "{\"a\": []}", "123", "\"x", "0.10"}},
    {"{\"const\":\"a\\\"b\\u001f\\u00e9\"}", {"\"a\\\"b\\u001f\xc3\xa9\""}, {"\"a\\\"b\\u001F\xc3\xa9\"", "\"ab\""}},
    {"{\"type\":\"string\"}",
     {"\"\"", "\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\"", "\"\\/\\b\"", "\"\\u0001\"", "\"\\uD7FF\\ue000\""},
     {"\"\\ud83d\"", "\"\\ude00\"", "\"\\u0000\"", "\"\\x\"", "\"\x01\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"",
      "\"\xf4\x90\x80\x80\"", "\"\\ud83d\\u0041\"", "\"\n\""}},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"a\xc3\xa9z\"", "\"\\ud83d\\ude00\\n\""},
     {"\"a\"", "\"abcd\"", "\"\\n\"", "\"\xc3\xa9\""}},
    {"{\"type\":\"integer\",\"minimum\":-12,\"exclusiveMaximum\":250}",
     {"-12", "-1", "0", "7", "99", "249"},
     {"-13", "250", "1000", "-100", "00", "-0", "1e1"}},
    {"{\"type\":\"integer\",\"minimum\":100,\"maximum\":105}",
     {"100", "105"},
     {"1", "10", "106", "99", "-100", "1000"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0.1,\"maximum\":2.25}",
     {"0.11", "1", "2.25", "2", "0.100000000000001"},
     {"0.1", "0.10", "2.26", "0", "3", "1e0", "-1", "2.250000000000001"}},
    {"{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":-0.5}",
     {"-1.5", "-0.5", "-1"},
     {"-1.6", "-0.4", "0", "1", "-0"}},
    {"{\"type\":\"number\"}",
     {"0", "-0", "1.5E+10", "123456789012345.123456789012345", "-0.0e-99"},
     {"1234567890123456", "0.1234567890123456", "1e100", "1e", "1.", "01"}},
    {"{\"type\":\"integer\",\"minimum\":1000000000000000}",
     {"1000000000000000", "123456789012345678"},
     {"1", "999999999999999"}},
    {"{\"type\":[\"string\",\"null\"]}", {"\"a\"", "null"}, {"1", "true"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":2}",
     {"[1]", "[1,2]", "[ 1 , 2 ]"},
     {"[]", "[1,2,3]", "[1,]", "[\"a\"]", "[1 2]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false,\"minItems\":1}",
     {"[1]", "[1,2]"},
     {"[]", "[2]", "[1,2,3]"}},
    {"{\"type\":\"array\",\"items\":[{\"const\":1}],\"additionalItems\":{\"const\":3}}",
     {"[]", "[1]", "[1,3,3]"},
     {"[3]", "[1,1]"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3}},\"required\":["
     "\"b\"]}",
     {"{\"b\":2}", "{\"a\":1,\"b\":2}", "{\"b\":2,\"c\":3}", "{\"a\":1,\"b\":2,\"c\":3}"},
     {"{}", "{\"a\":1}", "{\"c\":3,\"b\":2}", "{\"b\":2,\"a\":1}", "{\"b\":2,\"d\":1}", "{\"b\":2,\"b\":2}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"additionalProperties\":{\"const\":2},\"required\":["
     "\"z\"]}",
     {"{\"z\":2}", "{\"a\":1,\"z\":2}", "{\"z\":2,\"b\":2}", "{\"z\":2,\"aa\":2}", "{\"z\":2,\"\":2}",
      "{\"z\":2,\"b\\u0061\":2}"},
     {"{\"a\":1}", "{\"z\":2,\"a\":2}", "{\"z\":2,\"a\":1}", "{\"z\":2,\"\\u0061\":2}", "{\"b\":2,\"z\":2}",
      "{\"z\":2,\"b\":1}"}},
    {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}",
     {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
     {"{}", "{\"a\":1,\"b\":2,\"c\":3}"}},
    {"{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}},"
     "\"required\":[\"k\",\"x\"]},"
     "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"}},\"required\":[\"k\"]},{\"type\":\"null\"}]}",
     {"{\"k\":\"a\",\"x\":1}", "{\"k\":\"b\"}", "null"},
     {"{\"k\":\"a\"}", "{\"k\":\"b\",\"x\":1}", "{}"}},
    {"{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"n\":{\"anyOf\":[{\"$ref\":"
     "\"#/$defs/t\"},"
     "{\"type\":\"null\"}]}},\"required\":[\"v\",\"n\"]}},\"$ref\":\"#/$defs/t\"}",
     {"{\"v\":1,\"n\":null}", "{\"v\":1,\"n\":{\"v\":2,\"n\":null}}"},
     {"{\"v\":1}", "null", "{\"v\":1,\"n\":{}}"}},
    {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"b\":{\"minimum\":2}},\"required\":[\"b\"]},"
     "{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"integer\",\"maximum\":3}}}]}",
     {"{\"b\":2}", "{\"b\":3,\"a\":null}"},
     {"{\"a\":null}", "{\"b\":4}", "{\"b\":1}", "{\"a\":null,\"b\":2}"}},
    {"{\"type\":[\"integer\",\"string\"],\"enum\":[1,\"a\",null,2.5,3.0],\"minimum\":2}",
     {"\"a\"", "3.0"},
     {"1", "null", "2.5"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":false,\"b\":{\"const\":1}}}", {"{}", "{\"b\":1}"}, {"{\"a\":1}"}},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", {"1", "\"a\""}, {"1.5", "null"}},
};

static void check_texts(void)
{
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const text_row *row = &texts[i];
        err e = {0};
        size_t at = 0, wrong = 0;
        grammar *g = compile_text(row->schema, false, NULL, &e);
        if (!ok(g != NULL, "%s compiles: %s", row->schema, e.msg)) continue;
        for (size_t k = 0; k < 8 && row->yes[k]; k++)
            if (!accepts(g, row->yes[k], strlen(row->yes[k]), &at))
                wrong++, printf("# refused: %s at %zu\n", row->yes[k], at);
        for (size_t k = 0; k < 12 && row->no[k]; k++)
            if (accepts(g, row->no[k], strlen(row->no[k]), &at)) wrong++, printf("# accepted: %s\n", row->no[k]);
        is_int((long long)wrong, 0, "%s: texts are accepted and refused", row->schema);
        grammar_drop(g);
    }
}

/* ---- errors ---- */

static const struct {
    const char *schema;
    status st;
    const char *message;
} refused[] = {
    {"{\"properties\":{\"a\":{\"pattern\":\"x\"}}}", ST_UNSUPPORTED, "$.properties.a.pattern: not supported"},
    {"{\"items\":{\"not\":{}}}", ST_UNSUPPORTED, "$.items.not: not supported"},
    {"{\"propertees\":{}}", ST_UNSUPPORTED, "$.propertees: not supported"},
    {"{\"anyOf\":[{},{\"if\":{}}]}", ST_UNSUPPORTED, "$.anyOf[1].if: not supported"},
    {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"contains\":{}}}}", ST_UNSUPPORTED,
     "$.$defs.a.contains: not supported"},
    {"{\"$ref\":\"http://x/y\"}", ST_UNSUPPORTED, "$.$ref: only references into this document"},
    {"{\"$ref\":\"#/nowhere\"}", ST_FORMAT, "$.$ref: '#/nowhere' is not a schema"},
    {"{\"multipleOf\":2}", ST_UNSUPPORTED, "$.multipleOf: only 1"},
    {"{\"uniqueItems\":true}", ST_UNSUPPORTED, "$.uniqueItems: true requires maxItems"},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", ST_UNSUPPORTED, "$.oneOf: the branches may overlap"},
    {"{\"type\":\"object\",\"minProperties\":2}", ST_UNSUPPORTED, "$.minProperties: more than"},
    {"{\"minLength\":70000}", ST_UNSUPPORTED, "$.minLength: more than 65536"},
    {"{\"minimum\":1e-17}", ST_UNSUPPORTED, "$.minimum: more than 15 digits"},
    {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", ST_USAGE, "$: no value satisfies minimum 3 and maximum 2"},
    {"{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":0.6}", ST_USAGE,
     "$: no value satisfies minimum 0.5 and maximum 0.6"},
    {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", ST_USAGE,
     "$: no value satisfies minLength 3 and maxLength 2"},
    {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", ST_USAGE, "$: no value is allowed"},
    {"{\"type\":\"string\",\"enum\":[1,2]}", ST_USAGE, "$: no value of enum or const"},
    {"false", ST_USAGE, "$: no value is allowed"},
    {"{\"type\":\"object\",\"properties\":{\"a\":false},\"required\":[\"a\"]}", ST_USAGE,
     "$: property 'a' allows no value"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", ST_USAGE,
     "$: recursion without an end"},
    {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", ST_USAGE, "$: recursion that passes no array or object"},
    {"{\"type\":\"text\"}", ST_FORMAT, "$.type: expected type names"},
    {"{\"properties\":[]}", ST_FORMAT, "$.properties: expected an object of schemas"},
    {"{\"minLength\":-1}", ST_FORMAT, "$.minLength: expected an integer"},
    {"[]", ST_FORMAT, "$: expected a schema"},
};

static void check_errors(void)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        err e = {0};
        grammar *g = compile_text(refused[i].schema, false, NULL, &e);
        is_err(e.code, &e, refused[i].st, refused[i].message, "%s is refused", refused[i].schema);
        grammar_drop(g);
    }
}

static void check_ignored(void)
{
    json_t *list = json_array();
    err e = {0};
    grammar *g =
        compile_text("{\"type\":\"string\",\"format\":\"date\",\"pattern\":\"x\",\"title\":\"t\"}", true, list, &e);
    char *text = json_dumps(list, JSON_COMPACT);
    is_str(text, "[\"$.format\",\"$.pattern\"]", "ignored keywords are listed");
    ok(g != NULL, "a lenient schema compiles");
    free(text);
    json_decref(list);
    grammar_drop(g);
}

/* ---- masks ---- */

/* Schemas of random documents. */
static const char *const samples[] = {
    "",
    "true",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":5},\"age\":{\"type\":\"integer\","
    "\"minimum\":0,"
    "\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"bc\",\"the\"]},\"maxItems\":3}},"
    "\"required\":[\"name\","
    "\"age\"],\"additionalProperties\":{\"type\":\"number\"}}",
    "{\"anyOf\":[{\"type\":\"string\",\"minLength\":1},{\"type\":\"string\",\"maxLength\":3},{\"enum\":[\"the "
    "cat\",\"then\",7]},"
    "{\"type\":\"number\",\"minimum\":0.25,\"maximum\":70}]}",
    "{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"kids\":{\"type\":\"array\","
    "\"items\":"
    "{\"$ref\":\"#/$defs/t\"}}},\"required\":[\"v\"]}},\"$ref\":\"#/$defs/t\"}",
    "{\"type\":\"object\",\"properties\":{\"the\":{\"type\":\"null\"},\"them\":{\"type\":\"boolean\"},\"t\\\"\":{"
    "\"const\":[1]}},"
    "\"additionalProperties\":true}",
};

enum { N_SAMPLES = sizeof samples / sizeof *samples };

/* Counts the tokens whose bit differs from trying them alone. */
static size_t differing(grammar_run *r)
{
    size_t n = 0;
    uint64_t *mask = NULL;
    if (MEM_NEW(&mask, (words.vocab + 63) / 64, NULL) != ST_OK) return 1;
    memcpy(mask, grammar_run_mask(r), (words.vocab + 63) / 64 * sizeof *mask);
    for (size_t id = 0; id < words.vocab; id++) {
        const bool can = grammar_run_accept(r, (int32_t)id);
        grammar_run_back(r, 1);
        n += can != mask_has(mask, (int32_t)id);
    }
    mem_free(mask);
    return n;
}

/* Follows random tokens, and compares the mask of each state. */
static void check_masks(const char *schema, rng *random)
{
    err e = {0};
    size_t wrong = 0, states = 0;
    grammar *g = compile_text(schema, false, NULL, &e);
    for (int k = 0; g && k < 12; k++) {
        grammar_run *r;
        if (grammar_run_create(&r, g, words.v, &e) != ST_OK) break;
        for (int i = 0; i < 40; i++, states++) {
            wrong += differing(r);
            int32_t id = -1;
            const uint64_t *mask = grammar_run_mask(r);
            for (int tries = 0; tries < 4000 && (id < 0 || !mask_has(mask, id)); tries++)
                id = (int32_t)(rng_float(random) * (float)words.vocab) % (int32_t)words.vocab;
            if (!mask_has(mask, id) || id == words.eos) break;
            if (!grammar_run_accept(r, id)) wrong++;
        }
        grammar_run_free(r);
    }
    ok(g && states > 20 && wrong == 0, "%.60s: masks equal single tokens (%zu states, %zu differ)", schema, states,
       wrong);
    grammar_drop(g);
}

/* Writes random documents and validates them. */
static void check_documents(const char *schema, rng *random)
{
    static char text[1 << 16];
    const schema_options o = {.root = "$"};
    document d;
    err e = {0};
    size_t ended = 0, wrong = 0;
    json_t *s = *schema ? json_loads(schema, JSON_DECODE_ANY, NULL) : json_pack("{s:s}", "type", "object");
    grammar *g = compile_text(schema, false, NULL, &e);
    if (document_check(&d, s, &o, &e) == ST_OK && g) {
        for (int k = 0; k < 40; k++) {
            const long n = write_random(g, random, text, sizeof text, 120);
            json_t *v = n < 0 ? NULL : json_loadb(text, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            ended += n >= 0;
            if (n >= 0 && (!v || !schema_valid(&d, s, v))) wrong++, printf("# wrong: %.*s\n", (int)n, text);
            json_decref(v);
        }
    }
    ok(g && ended > 10 && wrong == 0, "%.60s: random documents are valid (%zu ended, %zu wrong)", schema, ended, wrong);
    document_close(&d);
    json_decref(s);
    grammar_drop(g);
}

/* ---- other nodes ---- */

static bool follows(grammar_run *r, const char *text)
{
    bool good = true;
    for (; *text && good; text++) good = grammar_run_accept(r, words.byte[(unsigned char)*text]);
    return good;
}

/* Builds free text up to <t>, a call of one of two names, and </t>, repeated. */
static grammar *build_calls(bool ends, err *e)
{
    grammar_builder *b;
    grammar *g = NULL;
    static const char *const names[] = {"f(", "fg("};
    if (grammar_begin(&b, false, e) != ST_OK) return NULL;
    const grammar_node args[] = {grammar_object(b), grammar_value(b)};
    const grammar_node call[] = {grammar_free(b, "<t>", -1, ends), grammar_names(b, names, args, 2),
                                 grammar_text(b, ")</t>", 5),
                                 grammar_token(b, tokenizer_special_id(words.t, "<|im_start|>"))};
    grammar_finish(&g, b, grammar_repeat(b, grammar_sequence(b, call, 4), -2, 2), e);
    return g;
}

/* Free text with sections, each of which is a list of calls. */
static void check_sections(void)
{
    static const char *const names[] = {"f", "fg"};
    err e = {0};
    grammar_builder *b;
    grammar *g = NULL;
    grammar_run *r = NULL;
    if (!is_ok(grammar_begin(&b, true, &e), &e, "a grammar")) return;
    const grammar_node args[] = {grammar_object(b), grammar_object(b)}, names_node = grammar_names(b, names, args, 2);
    const grammar_node call[] = {grammar_text(b, "{", 1), names_node, grammar_text(b, "}", 1)};
    const grammar_node list = grammar_repeat(b, grammar_sequence(b, call, 3), grammar_text(b, ", ", 2), 128);
    const grammar_node all[] = {grammar_free(b, "[T]", -1, true), grammar_text(b, "[", 1), list,
                                grammar_text(b, "]", 1)};
    grammar_finish(&g, b, grammar_repeat(b, grammar_sequence(b, all, 4), -2, 128), &e);
    if (!is_ok(e.code, &e, "sections build") || !is_ok(grammar_run_create(&r, g, words.v, &e), &e, "a run")) return;
    ok(follows(r, "a {x} [") && grammar_run_may_end(r) && differing(r) == 0, "free text before a section");
    ok(follows(r, "T][{f{}") && !grammar_run_may_end(r) && differing(r) == 0, "a section has calls only");
    ok(!follows(r, "]"), "a call is completed");
    grammar_run_back(r, 1);
    ok(follows(r, "}, {fg{\"a\": 1}}") && differing(r) == 0, "a second call");
    ok(!grammar_run_may_end(r) && follows(r, "]") && grammar_run_may_end(r), "the section ends");
    ok(follows(r, " and {[T][{f{}}]") && grammar_run_may_end(r), "text and another section");
    grammar_run_free(r);
    grammar_drop(g);
}

static void check_calls(void)
{
    err e = {0};
    grammar_run *r = NULL;
    const int32_t start = tokenizer_special_id(words.t, "<|im_start|>");
    grammar *g = build_calls(true, &e);
    if (!is_ok(e.code, &e, "calls build") || !is_ok(grammar_run_create(&r, g, words.v, &e), &e, "a run")) return;
    ok(grammar_run_may_end(r), "free text may end");
    ok(follows(r, "Hi <<t") && differing(r) == 0, "free text: masks within a marker");
    ok(follows(r, ">f") && !grammar_run_may_end(r), "after the marker the reply may not end");
    ok(!follows(r, "x"), "only the names are allowed");
    grammar_run_back(r, 1);
    ok(follows(r, "({\"a\":1})</t>") && differing(r) == 0, "a call with an object");
    ok(mask_has(grammar_run_mask(r), start) && grammar_run_accept(r, start), "a special token");
    ok(follows(r, "a<t>fg(1)</t>") && grammar_run_accept(r, start), "a second call");
    ok(grammar_run_may_end(r) && !follows(r, "b"), "no third one");
    grammar_run_free(r);
    grammar_drop(g);
    g = build_calls(false, &e);
    if (is_ok(grammar_run_create(&r, g, words.v, &e), &e, "a run"))
        ok(!mask_has(grammar_run_mask(r), words.eos), "without `ends` free text may not end");
    grammar_run_free(r);
    grammar_drop(g);
}

/* Thinking ends with its marker, after which the value begins. */
static void check_thinking(void)
{
    const int32_t open = tokenizer_special_id(words.t, "<think>"), close = tokenizer_special_id(words.t, "</think>");
    const grammar_thinking rows[] = {
        {words.t, "<think>", "</think>", true}, {.t = words.t}, {words.t, "<think>", "</think>", false}};
    for (size_t i = 0; i < 3; i++) {
        const bool inside = rows[i].inside, thinks = rows[i].close;
        err e = {0};
        grammar *g = NULL;
        grammar_run *r = NULL;
        grammar_compile(&g, NULL, false, &rows[i], &(schema_options){.root = "$"}, &e);
        if (!is_ok(grammar_run_create(&r, g, words.v, &e), &e, "row %zu: a run", i)) continue;
        is_int(follows(r, "Hm {"), inside, "row %zu: free text", i);
        grammar_run_back(r, inside ? 4 : 1);
        if (thinks && !inside) ok(grammar_run_accept(r, open) && follows(r, "Hm"), "row %zu: may think", i);
        if (thinks) ok(differing(r) == 0 && grammar_run_accept(r, close), "row %zu: thinking ends", i);
        ok(!mask_has(grammar_run_mask(r), words.eos), "row %zu: a value must follow", i);
        ok(follows(r, "\n\n{}") && grammar_run_may_end(r) && differing(r) == 0, "row %zu: the value", i);
        grammar_run_free(r);
        grammar_drop(g);
    }
}

/* A marker of special tokens and text is these tokens and this text. */
static void check_spelled(void)
{
    const int32_t open = tokenizer_special_id(words.t, "<think>");
    const grammar_thinking t = {words.t, "<think>thought<think>", "<end>", false};
    err e = {0};
    grammar *g = NULL;
    grammar_run *r = NULL;
    grammar_compile(&g, NULL, false, &t, &(schema_options){.root = "$"}, &e);
    if (is_ok(grammar_run_create(&r, g, words.v, &e), &e, "a run")) {
        ok(grammar_run_accept(r, open) && !grammar_run_accept(r, open), "a token, then text");
        grammar_run_back(r, 1);
        ok(follows(r, "thought") && grammar_run_accept(r, open), "text, then a token");
        ok(follows(r, "Hm <e{<end>") && follows(r, "{}") && grammar_run_may_end(r),
           "a closing marker of several bytes");
    }
    grammar_run_free(r);
    grammar_drop(g);
}

static void check_back(void)
{
    err e = {0};
    grammar_run *r = NULL;
    grammar *g = compile_text("{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}", false, NULL, &e);
    const int32_t ids[] = {words.byte['['], words.byte['1'], words.byte['x'], words.byte[']']};
    if (!is_ok(grammar_run_create(&r, g, words.v, &e), &e, "a run")) return;
    is_int((long long)grammar_run_allows(r, ids, 4), 2, "the allowed part of a draft");
    is_int((long long)grammar_run_allows(r, ids, 4), 2, "asking changes nothing");
    ok(follows(r, "[12,") && !grammar_run_accept(r, words.eos), "EOS is not allowed within a value");
    grammar_run_back(r, 2);
    ok(follows(r, "]") && grammar_run_may_end(r), "tokens are taken back");
    grammar_run_free(r);
    grammar_drop(g);
}

/* Nesting ends at its limit with a complete document. */
static void check_nesting(void)
{
    err e = {0};
    grammar_run *r = NULL;
    grammar *g = compile_text("true", false, NULL, &e);
    int open = 0;
    if (!is_ok(grammar_run_create(&r, g, words.v, &e), &e, "a run")) return;
    while (open < 1000 && grammar_run_accept(r, words.byte['['])) open++;
    grammar_run_back(r, 1);
    is_int(open, NESTING_MAX, "arrays nest up to the limit");
    for (int i = 0; i < open; i++) follows(r, "]");
    ok(grammar_run_may_end(r), "and end");
    grammar_run_free(r);
    grammar_drop(g);
}

/* For scripts/dev/check_schemas: reads lines {"schema", "texts", "documents"} and writes a line for each: the error of
 * the schema, or which texts are accepted, and random documents. */
static int answer_lines(void)
{
    static char line[1 << 20], text[1 << 16];
    rng random = {11};
    while (fgets(line, sizeof line, stdin)) {
        json_t *j = json_loads(line, 0, NULL), *yes = json_array(), *out = json_array(), *one;
        const schema_options o = {.root = "$"};
        grammar *g;
        err e = {0};
        size_t i, at;
        grammar_compile(&g, json_object_get(j, "schema"), false, NULL, &o, &e);
        json_array_foreach(json_object_get(j, "texts"), i, one) json_array_append_new(
            yes, json_boolean(g && accepts(g, json_string_value(one), json_string_length(one), &at)));
        for (json_int_t k = json_integer_value(json_object_get(j, "documents")); g && k > 0; k--) {
            const long n = write_random(g, &random, text, sizeof text, 400);
            if (n >= 0) json_array_append_new(out, json_stringn(text, (size_t)n));
        }
        json_t *answer = json_pack("{s:s, s:o, s:o}", "error", e.msg, "accepted", yes, "documents", out);
        json_dumpf(answer, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(answer);
        json_decref(j);
        grammar_drop(g);
    }
    words_close();
    return 0;
}

int main(int argc, char **argv)
{
    rng random = {7};
    if (!words_open()) return tap_skip_all("the small tokenizer does not open");
    if (argc > 1 && strcmp(argv[1], "--lines") == 0) return answer_lines();
    check_texts();
    check_errors();
    check_ignored();
    for (size_t i = 0; i < N_SAMPLES; i++) check_masks(samples[i], &random);
    for (size_t i = 0; i < N_SAMPLES; i++) check_documents(samples[i], &random);
    check_calls();
    check_sections();
    check_thinking();
    check_spelled();
    check_back();
    check_nesting();
    words_close();
    return tap_done();
}
