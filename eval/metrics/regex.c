/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/metrics/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

status regex_open(regex *r, const char *pattern, utf8_text s, err *e)
{
    int error;
    PCRE2_SIZE at;
    *r = (regex){0};
    regex_restart(r, s);
    r->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &at, NULL);
    r->data = r->code ? pcre2_match_data_create_from_pattern(r->code, NULL) : NULL;
    return r->data ? ST_OK : err_set(e, ST_NOMEM, "out of memory for a regular expression");
}

void regex_restart(regex *r, utf8_text s)
{
    r->s = (utf8_text){s.s ? s.s : "", s.n};
    r->begin = r->end = 0;
}

void regex_close(regex *r)
{
    pcre2_match_data_free(r->data);
    pcre2_code_free(r->code);
}

status regex_next(regex *r, bool *found, err *e)
{
    /* The first call validates the text for all. */
    int n = pcre2_match(r->code, (PCRE2_SPTR)r->s.s, r->s.n, r->end, r->end ? PCRE2_NO_UTF_CHECK : 0, r->data, NULL);
    *found = n > 0;
    if (n == PCRE2_ERROR_NOMATCH) return ST_OK;
    if (n <= PCRE2_ERROR_UTF8_ERR1 && n >= PCRE2_ERROR_UTF8_ERR21) return err_set(e, ST_FORMAT, "text is not UTF-8");
    if (n < 0) return err_set(e, ST_UNSUPPORTED, "searching a text of %zu bytes takes too many steps", r->s.n);
    const PCRE2_SIZE *offset = pcre2_get_ovector_pointer(r->data);
    r->begin = offset[0];
    r->end = offset[1];
    if (n > 1) offset += 2;
    r->group = (utf8_text){r->s.s + offset[0], offset[1] - offset[0]};
    return ST_OK;
}

status regex_find(utf8_text *group, bool *found, const char *pattern, bool last, utf8_text s, err *e)
{
    regex r;
    bool more = true;
    *found = false;
    status st = regex_open(&r, pattern, s, e);
    while (st == ST_OK && more) {
        st = regex_next(&r, &more, e);
        if (!more) break;
        *group = r.group;
        *found = true;
        more = last;
    }
    regex_close(&r);
    return st;
}
