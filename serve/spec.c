/* SPDX-License-Identifier: MIT */
/* Encoding, strategies of requests, and counters. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "cli/values.h"
#include "kernels/base/mem.h"
#include "serve/sched_impl.h"

/* ---- tokens ---- */

status sched_encode(scheduler *s, const char *text, size_t n, bool bos, token_list *out, err *e)
{
    pthread_mutex_lock(&s->encoding);
    status st = tokenizer_encode_prompt(s->o.tok, text, n, bos, out, e);
    pthread_mutex_unlock(&s->encoding);
    return st;
}

status sched_render_chat(scheduler *s, const chat_input *in, chat_text *out, err *e)
{
    pthread_mutex_lock(&s->encoding);
    status st = chat_render_marked(s->o.tok, in, out, e);
    pthread_mutex_unlock(&s->encoding);
    return st;
}

status sched_encode_chat(scheduler *s, const chat_text *text, token_list *out, err *e)
{
    pthread_mutex_lock(&s->encoding);
    status st = tokenizer_encode_marked(s->o.tok, text->text, text->n, text->input, out, e);
    pthread_mutex_unlock(&s->encoding);
    return st;
}

/* ---- the strategy ---- */

/* Splits `SPEC@decode=N`, with or without a leading @, in place. */
static status read_words(char *words, const char **spec, int64_t *decode, err *e)
{
    static const char last[] = "@decode=";
    char *end = strstr(words, last);
    if (end) {
        char *number = end + sizeof last - 1, *rest;
        *decode = strtoll(number, &rest, 10);
        if (rest == number || *rest || *decode < 0) return err_set(e, ST_USAGE, "model: '%s', expected @decode=N", end);
        *end = 0;
    }
    if (*words == '@') words++;
    *spec = *words ? words : NULL;
    return ST_OK;
}

const sched_alias *sched_alias_of(const scheduler *s, const char *name)
{
    for (size_t i = 0; i < s->o.n_aliases; i++)
        if (strcmp(s->o.aliases[i].name, name) == 0) return &s->o.aliases[i];
    return NULL;
}

static status spec_of(const scheduler *s, const api_request *r, const char *spec, attn_spec *out, err *e)
{
    attn_options o = s->o.attn;
    int64_t budget;
    if (r->budget) {
        TRY(cli_parse_size(&budget, r->budget, "budget", e));
        o.budget = budget;
        o.has_budget = true;
    }
    if (r->skip) o.skip = r->skip;
    if (r->kv) TRY(kv_format_parse(&o.kv, r->kv, "kv", e));
    const char *text = r->attn ? r->attn : spec ? spec : s->o.strategy;
    TRY(attn_spec_parse(out, text, &o, e));
    return attn_spec_check(out, decoder_attn_shape(s->o.dec), e);
}

status sched_spec(const scheduler *s, const api_request *r, attn_spec *out, int64_t *decode, err *e)
{
    const char *spec = NULL, *name = r->model ? r->model : s->o.model, *at = strchr(name, '@');
    const sched_alias *alias = sched_alias_of(s, name);
    char *words = mem_strdup(alias ? alias->words : at ? at : "");
    *decode = 0;
    if (!words) return err_set(e, ST_NOMEM, "out of memory for a request");
    status st = read_words(words, &spec, decode, e);
    if (st == ST_OK) st = spec_of(s, r, spec, out, e);
    if (r->decode >= 0) *decode = r->decode;
    mem_free(words);
    return st;
}

/* ---- counts ---- */

void sched_count(scheduler *s, int64_t *count, int64_t n)
{
    pthread_mutex_lock(&s->lock);
    *count += n;
    pthread_mutex_unlock(&s->lock);
}

void sched_count_time(scheduler *s, histogram *h, int64_t ns)
{
    pthread_mutex_lock(&s->lock);
    histogram_add(h, ns);
    pthread_mutex_unlock(&s->lock);
}
