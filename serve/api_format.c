/* SPDX-License-Identifier: MIT */
/* The field response_format. */
#include "config.h"

#include <string.h>

#include "serve/api_impl.h"

static bool is_name(const char *text)
{
    const size_t n = strlen(text);
    return n >= 1 && n <= 64 && strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") == n;
}

static bool bad(api_error *e, const char *what, const char *expected)
{
    return api_bad(e, "response_format", "response_format%s: expected %s", what, expected);
}

/* Reads the member json_schema: a name, a schema, and whether unsupported keywords are errors. */
static bool read_schema(api_request *r, const json_t *of, api_error *e)
{
    const json_t *name = api_field(of, "name"), *strict = api_field(of, "strict");
    if (!json_is_object(of)) return bad(e, ".json_schema", "an object with name and schema");
    if (name && (!api_is_text(name) || !is_name(json_string_value(name))))
        return bad(e, ".json_schema.name", "1 to 64 of A-Z, a-z, 0-9, _ and -");
    if (strict && !json_is_boolean(strict)) return bad(e, ".json_schema.strict", "true or false");
    r->format.schema = api_field(of, "schema");
    r->format.lenient = json_is_false(strict);
    return true;
}

bool api_read_format(api_request *r, api_error *e)
{
    const json_t *of = api_field(r->body, "response_format"), *type = api_field(of, "type");
    const json_t *white = api_field(r->body, "json_whitespace");
    if (white && !api_is(white, "compact") && !api_is(white, "any"))
        return api_bad(e, "json_whitespace", "json_whitespace: expected \"any\" or \"compact\"");
    r->format.compact = api_is(white, "compact");
    if (!of || api_is(type, "text")) return true;
    r->format.json = true;
    if (!api_is(type, "json_object") && !api_is(type, "json_schema"))
        return bad(e, ".type", "text, json_object or json_schema");
    if (api_is(type, "json_schema") && !read_schema(r, api_field(of, "json_schema"), e)) return false;
    if (r->ignore_eos) return api_bad(e, "ignore_eos", "ignore_eos: mutually exclusive with response_format");
    const json_t *list = r->chat ? r->talk.messages : NULL;
    if (list && r->talk.end == CHAT_CONTINUES &&
        api_is(json_object_get(json_array_get(list, json_array_size(list) - 1), "role"), "assistant"))
        return api_bad(e, "response_format",
                       "response_format: the last message is the assistant's; set "
                       "continue_final_message to false");
    return true;
}
