/* SPDX-License-Identifier: MIT */
/* Grammars of requests. The newest are kept for other requests with the same schemas. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/sha256.h"
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

/* ---- compiled grammars ---- */

struct compiled {
    char key[SHA256_HEX];
    grammar *g;
    json_t *ignored;
    uint64_t used;
    int refs; /* the list, and jobs */
};

static void drop(compiled *c)
{
    if (!c || --c->refs > 0) return;
    grammar_drop(c->g);
    json_decref(c->ignored);
    mem_free(c);
}

void compiled_release(scheduler *s, compiled *c)
{
    pthread_mutex_lock(&s->lock);
    drop(c);
    pthread_mutex_unlock(&s->lock);
}

void compiled_free(scheduler *s)
{
    while (s->n_schemas) drop(s->schemas[--s->n_schemas]);
}

const char *compiled_key(const compiled *c)
{
    return c->key;
}

static void add_json(sha256 *sum, const json_t *v)
{
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    const size_t n = text ? strlen(text) : 0;
    sha256_add(sum, &n, sizeof n);
    sha256_add(sum, text ? text : "", n);
    free(text);
}

/* Hashes everything that a grammar depends on. */
static void write_key(char out[SHA256_HEX], const api_request *r, bool calls, const grammar_thinking *t)
{
    const int32_t flags[] = {calls,          r->must_call,     r->one_call, r->format.lenient, r->format.compact,
                             r->format.json, t->close != NULL, t->inside};
    sha256 sum;
    sha256_init(&sum);
    sha256_add(&sum, flags, sizeof flags);
    add_json(&sum, r->format.schema);
    add_json(&sum, calls ? r->tools : NULL);
    add_json(&sum, calls ? r->only : NULL);
    sha256_hex(&sum, out);
}

/* Returns the grammar of a key for a job; NULL: none. */
static compiled *find(scheduler *s, const char *key)
{
    compiled *c = NULL;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n_schemas && !c; i++)
        if (strcmp(s->schemas[i]->key, key) == 0) c = s->schemas[i];
    if (c) c->refs++, c->used = ++s->schema_clock, s->counts.schemas[SCHEMA_CACHED]++;
    pthread_mutex_unlock(&s->lock);
    return c;
}

/* Keeps a grammar for other requests, instead of the one that was used least recently. */
static void keep(scheduler *s, compiled *c)
{
    size_t at = s->n_schemas;
    pthread_mutex_lock(&s->lock);
    s->counts.schemas[SCHEMA_COMPILED]++;
    if (at == KEPT_SCHEMAS) {
        at = 0;
        for (size_t i = 1; i < s->n_schemas; i++)
            if (s->schemas[i]->used < s->schemas[at]->used) at = i;
        drop(s->schemas[at]);
    } else s->n_schemas++;
    c->refs++;
    c->used = ++s->schema_clock;
    s->schemas[at] = c;
    pthread_mutex_unlock(&s->lock);
}

static status compile(compiled *c, const scheduler *s, const job *j, bool calls, const grammar_thinking *think, err *e)
{
    const api_format *f = &j->r.format;
    const schema_options o = {.root = "$", .lenient = f->lenient, .ignored = c->ignored = json_array()};
    if (!c->ignored) return err_set(e, ST_NOMEM, "out of memory for a request");
    if (calls) return call_grammar(&c->g, s, j, think, &o, e);
    return grammar_compile(&c->g, f->schema, f->compact, think, &o, e);
}

bool job_read_format(scheduler *s, job *j, api_error *e)
{
    const grammar_thinking think = {s->o.tok, j->thinking.open, j->thinking.close, j->thinking.inside};
    char key[SHA256_HEX];
    err why = {0};
    const bool json = j->r.format.json && !j->r.must_call;
    const bool calls = j->r.calls && (j->r.must_call || j->r.strict || j->r.only || json);
    const char *param = calls ? "tools" : "response_format";
    if (!json && !calls) return true;
    if (json && calls && s->o.calls->format->whole)
        return api_bad(e, "response_format",
                       "response_format: this model's calls (%s) are JSON too; set tool_choice to \"none\" or "
                       "\"required\"",
                       s->o.calls->format->name);
    if (find_words(s, &why) != ST_OK) return refuse(e, param, &why);
    write_key(key, &j->r, calls, &think);
    if ((j->under = find(s, key))) return true;
    if (MEM_NEW(&j->under, 1, &why) != ST_OK) return refuse(e, param, &why);
    j->under->refs = 1;
    memcpy(j->under->key, key, sizeof key);
    const status st = compile(j->under, s, j, calls, &think, &why);
    if (st == ST_OK) keep(s, j->under);
    if (st == ST_UNSUPPORTED) sched_count(s, &s->counts.schemas[SCHEMA_UNSUPPORTED], 1);
    if (st == ST_USAGE) sched_count(s, &s->counts.schemas[SCHEMA_UNSATISFIABLE], 1);
    return st == ST_OK || refuse(e, *why.msg == '$' ? "response_format" : param, &why);
}

const grammar *compiled_grammar(const compiled *c)
{
    return c ? c->g : NULL;
}

const json_t *compiled_ignored(const compiled *c)
{
    return c ? c->ignored : NULL;
}
