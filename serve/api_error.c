/* SPDX-License-Identifier: MIT */
/* Errors of requests. */
#include "config.h"

#include <stdarg.h>
#include <stdio.h>

#include "kernels/base/err_names.h"
#include "serve/api.h"

static const char *type_of(int http)
{
    return http == 401   ? "authentication_error"
           : http == 403 ? "permission_error"
           : http == 404 ? "not_found_error"
           : http == 429 ? "rate_limit_error"
           : http >= 500 ? "server_error"
                         : "invalid_request_error";
}

__attribute__((format(printf, 5, 0))) static void set(api_error *e, int http, const char *code, const char *param,
                                                      const char *fmt, va_list args)
{
    static const err_name names[] = {{"--attn", "attn"}, {"--budget", "budget"}, {"--kv", "kv"},
                                     {"--skip", "skip"}, {"--draft", "draft"},   {0}};
    err clean = {0};
    char text[256];
    if (e->http) return; /* the first error wins */
    vsnprintf(text, sizeof text, fmt, args);
    err_set(&clean, ST_USAGE, "%s", text); /* replaces control characters and invalid UTF-8 */
    err_rename(&clean, names);
    *e = (api_error){.http = http, .type = type_of(http), .code = code};
    snprintf(e->param, sizeof e->param, "%s", param);
    snprintf(e->message, sizeof e->message, "%s", clean.msg);
}

bool api_bad(api_error *e, const char *param, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    set(e, 400, NULL, param, fmt, args);
    va_end(args);
    return false;
}

bool api_fail(api_error *e, int http, const char *code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    set(e, http, code, "", fmt, args);
    va_end(args);
    return false;
}

/* Returns the type of an error in the Messages API. */
static const char *message_type(const api_error *e)
{
    return e->http == 413   ? "request_too_large"
           : e->http == 503 ? "overloaded_error"
           : e->http >= 500 ? "api_error"
                            : e->type;
}

char *api_error_styled(const api_error *e, api_style style, const char *id)
{
    if (style != API_MESSAGES) return api_error_text(e);
    json_t *j = json_pack("{s:s, s:{s:s, s:s}, s:s}", "type", "error", "error", "type", message_type(e), "message",
                          e->message, "request_id", id);
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text;
}

char *api_error_text(const api_error *e)
{
    json_t *j = json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", e->message, "type", e->type, "param",
                          *e->param ? e->param : NULL, "code", e->code);
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text;
}
