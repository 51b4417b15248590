/* SPDX-License-Identifier: MIT */
/* Grammars of requests. */
#include "config.h"

#include "serve/sched_impl.h"

/* Indexes the vocabulary for the first request that needs it. */
static status find_words(scheduler *s, err *e)
{
    pthread_mutex_lock(&s->encoding);
    status st = ST_OK;
    if (!s->words) st = grammar_vocab_create(&s->words, s->o.tok, (size_t)decoder_model(s->o.dec)->config.vocab, e);
    pthread_mutex_unlock(&s->encoding);
    return st;
}

/* Sets the error of a schema: its path and reason, and a code that names the kind. */
static bool refuse(api_error *e, const char *param, const err *why)
{
    if (why->code == ST_NOMEM) return api_fail(e, 500, NULL, "%s", why->msg);
    api_bad(e, param, "%s", why->msg);
    if (why->code == ST_UNSUPPORTED) e->code = "schema_unsupported";
    if (why->code == ST_USAGE) e->code = "schema_unsatisfiable";
    return false;
}

bool job_read_format(scheduler *s, job *j, api_error *e)
{
    const api_format *f = &j->r.format;
    grammar_thinking think = {.open_token = -1, .close_token = -1};
    err why = {0};
    const bool calls = j->r.calls && (j->r.must_call || j->r.strict || j->r.only);
    const char *param = calls ? "tools" : "response_format";
    if (!f->json && !calls) return true;
    if (!(j->schema_ignored = json_array())) return api_fail(e, 500, NULL, "out of memory for a request");
    if (find_words(s, &why) != ST_OK) return refuse(e, param, &why);
    if (j->r.chat && s->o.calls && s->o.calls->think_close)
        think = grammar_find_thinking(s->o.tok, j->prompts[0].ids, j->prompts[0].n);
    if (calls) return call_grammar(&j->under, s, j, &think, &why) == ST_OK || refuse(e, param, &why);
    const schema_options o = {.root = "$", .lenient = f->lenient, .ignored = j->schema_ignored};
    return grammar_compile(&j->under, f->schema, f->compact, &think, &o, &why) == ST_OK || refuse(e, param, &why);
}
