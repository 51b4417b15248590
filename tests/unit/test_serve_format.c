/* SPDX-License-Identifier: MIT */
/* response_format: constrained replies of the server, alone, as several choices, with drafts and as a stream. */
#include "config.h"

#include "tests/unit/serve_util.h"

#define SCHEMA                                                                                                         \
    "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":-5,\"maximum\":40},\"k\":{\"enum\":" \
    "["                                                                                                                \
    "\"cat\",\"caterpillar\",null]}},\"required\":[\"n\",\"k\"]}"
#define FORMAT "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":" SCHEMA "}}"

/* Returns the body of an answer. */
static json_t *answer(const char *fields)
{
    char body[2048];
    snprintf(body, sizeof body, "{\"prompt\":\"Alice\",\"max_tokens\":200,%s}", fields);
    char *reply = post("/v1/completions", body);
    const char *from = reply ? strstr(reply, "\r\n\r\n") : NULL;
    json_t *j = from ? json_loads(from + 4, 0, NULL) : NULL;
    free(reply);
    return j;
}

static const char *text_at(const json_t *answer, size_t i)
{
    return json_string_value(json_object_get(json_array_get(json_object_get(answer, "choices"), i), "text"));
}

/* True if a text is JSON of the schema. */
static bool fits(const char *text)
{
    json_t *j = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    const json_t *n = json_object_get(j, "n"), *k = json_object_get(j, "k");
    const char *kind = json_string_value(k);
    const bool good = json_object_size(j) == 2 && json_is_integer(n) && json_integer_value(n) >= -5 &&
                      json_integer_value(n) <= 40 &&
                      (json_is_null(k) || (kind && (!strcmp(kind, "cat") || !strcmp(kind, "caterpillar"))));
    json_decref(j);
    return good;
}

static void check_choices(void)
{
    json_t *all = answer(FORMAT ",\"temperature\":1.5,\"seed\":7,\"n\":3");
    for (int i = 0; i < 3; i++) {
        char fields[1024];
        snprintf(fields, sizeof fields, FORMAT ",\"temperature\":1.5,\"seed\":%d", 7 + i);
        json_t *one = answer(fields);
        const char *text = text_at(one, 0);
        ok(fits(text), "choice %d follows the schema", i);
        is_str(text_at(all, (size_t)i), text ? text : "", "choice %d of three equals it alone", i);
        strncat(fields, ",\"draft\":\"ngram:adapt=off\",\"logprobs\":0", sizeof fields - strlen(fields) - 1);
        json_t *drafted = answer(fields);
        is_str(text_at(drafted, 0), text ? text : "", "choice %d with drafts equals it without", i);
        json_decref(drafted);
        json_decref(one);
    }
    json_decref(all);
}

static void check_object(void)
{
    json_t *j =
        answer("\"response_format\":{\"type\":\"json_object\"},\"json_whitespace\":\"compact\",\"temperature\":1,"
               "\"seed\":3");
    const char *text = text_at(j, 0);
    ok(text && text[strspn(text, "\n ")] == '{', "json_object: the reply is an object");
    json_decref(j);
}

static void check_ignored(void)
{
    json_t *j = answer("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"strict\":false,"
                       "\"schema\":{\"type\":\"null\",\"format\":\"date\",\"not\":{}}}}");
    char *list = json_dumps(json_object_get(json_object_get(j, "kvasir"), "schema_ignored"), JSON_COMPACT);
    is_str(list, "[\"$.format\",\"$.not\"]", "ignored keywords are listed");
    const char *text = text_at(j, 0);
    is_str(text ? text + strspn(text, "\n ") : NULL, "null", "the rest is enforced");
    free(list);
    json_decref(j);
}

static void check_errors(void)
{
    static const struct {
        const char *format, *message, *code;
    } rows[] = {
        {"{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"properties\":{\"a\":{\"pattern\":\"x\"}}}}}",
         "$.properties.a.pattern: not supported", "schema_unsupported"},
        {"{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}}}",
         "$: no value satisfies minimum 3 and maximum 2", "schema_unsatisfiable"},
        {"{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":7}}}", "$.type: expected type names", NULL},
        {"{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a b\"}}",
         "response_format.json_schema.name: expected 1 to 64 of A-Z, a-z, 0-9, _ and -", NULL},
        {"{\"type\":\"json_schema\"}", "response_format.json_schema: expected an object with name and schema", NULL},
        {"{\"type\":\"xml\"}", "response_format.type: expected text, json_object or json_schema", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char fields[512];
        snprintf(fields, sizeof fields, "\"response_format\":%s", rows[i].format);
        json_t *j = answer(fields);
        const json_t *e = json_object_get(j, "error"), *code = json_object_get(e, "code");
        is_str(json_string_value(json_object_get(e, "message")), rows[i].message, "%s is refused", rows[i].format);
        is_str(json_string_value(json_object_get(e, "param")), "response_format", "its field");
        ok(rows[i].code ? json_is_string(code) && !strcmp(json_string_value(code), rows[i].code) : json_is_null(code),
           "its code");
        json_decref(j);
    }
}

int main(void)
{
    err e = {0};
    if (start(&e)) {
        check_choices();
        check_object();
        check_ignored();
        check_errors();
    }
    if (v.sched) sched_stop(v.sched);
    http_stop(v.http);
    stop();
    return tap_done();
}
