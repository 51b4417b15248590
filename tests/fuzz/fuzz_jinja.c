/* SPDX-License-Identifier: MIT */
/* Any bytes as a template and, after a NUL, as the JSON object of its variables. */
#include "config.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/utf8.h"
#include "tokenizer/jinja/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MOST = 4096 };

/* Variables of inputs that bring none. */
static const char preset[] =
    "{\"s\":\" a<b> \\u00e9\",\"n\":3,\"f\":0.5,\"t\":true,\"no\":null,\"l\":[1,\"x\",[2]],"
    "\"d\":{\"a\":1,\"b\":{\"c\":\"v\"}},\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}";

static bool is_utf8(const char *s, size_t n)
{
    for (size_t i = 0, k; i < n; i += k)
        if ((k = (size_t)utf8_valid_len((const unsigned char *)s + i, n - i)) == 0) return false;
    return true;
}

/* A rendering gives valid text and marks, or an error with a message. The same input gives the same text. */
static void use(const jinja *j, const json_t *variables)
{
    jinja_text a, b;
    err e = {0};
    const status st = jinja_render(j, variables, 1785067200, &a, &e);
    if (st != ST_OK && (e.code != st || (st != ST_USAGE && !e.msg[0]))) abort();
    if (st != ST_OK && st != ST_USAGE && (a.text || a.input || a.n)) abort();
    if (st == ST_OK || st == ST_USAGE) {
        if (a.text[a.n] != 0 || !is_utf8(a.text, a.n)) abort();
        for (size_t i = 0; i < a.n; i++)
            if (a.input[i] > 1) abort();
        if (jinja_render(j, variables, 1785067200, &b, NULL) != st || a.n != b.n || memcmp(a.text, b.text, a.n) != 0)
            abort();
        jinja_text_free(&b);
    }
    jinja_text_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n > MOST) return 0;
    const uint8_t *end = n ? memchr(data, 0, n) : NULL;
    const size_t n_text = end ? (size_t)(end - data) : n;
    jinja *j;
    err e = {0};
    const status st = jinja_parse(&j, (const char *)data, n_text, "fuzz", &e);
    if ((st == ST_OK) != (j != NULL) || (st != ST_OK && (e.code != st || !e.msg[0]))) abort();
    if (!j) return 0;
    json_t *variables = end ? json_loadb((const char *)end + 1, n - n_text - 1, JSON_ALLOW_NUL, NULL) : NULL;
    if (!json_is_object(variables)) {
        json_decref(variables);
        variables = json_loads(preset, 0, NULL);
    }
    use(j, variables);
    json_decref(variables);
    jinja_free(j);
    return 0;
}
