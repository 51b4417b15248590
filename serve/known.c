/* SPDX-License-Identifier: MIT */
/* What of a prompt is known, between the scheduler and the prefix store. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "model/session_file.h"
#include "serve/sched_impl.h"

/* ---- keys ---- */

static void add_text(sha256 *sum, const char *text)
{
    char n[24];
    sha256_add(sum, n, (size_t)snprintf(n, sizeof n, "%zu:", strlen(text)));
    sha256_add(sum, text, strlen(text));
}

/* Everything that the rows of a prompt depend on, beside its ids, and whose they are. */
void known_key(job *j)
{
    const scheduler *s = j->sched;
    char strategy[ATTN_WRITTEN], store[128], sizes[64];
    sha256 sum;
    j->reuse = ATTN_REUSE_NEVER;
    if (!s->prefix || j->lens || j->r.no_prefix) return;
    j->reuse = attn_reuse_of(&j->spec);
    attn_spec_write(&j->spec, strategy, store);
    snprintf(sizes, sizeof sizes, "%lld %lld %d", (long long)s->o.ctx, (long long)decoder_chunk(s->o.dec),
             SESSION_FILE_VERSION);
    sha256_init(&sum);
    add_text(&sum, s->o.prefix_shared ? "" : j->client.client);
    add_text(&sum, j->r.cache_salt ? j->r.cache_salt : "");
    add_text(&sum, s->weights);
    add_text(&sum, s->build);
    add_text(&sum, strategy);
    add_text(&sum, store);
    add_text(&sum, sizes);
    sha256_hex(&sum, j->key);
}

/* ---- a sequence ---- */

static prefix_prompt prompt_of(const choice *c, size_t n)
{
    return (prefix_prompt){c->j->key, c->j->reuse == ATTN_REUSE_ANY, c->prompt->ids, n};
}

/* Scores of a prompt's own tokens need its rows of logits: all of it is computed. */
static bool reads(const choice *c)
{
    return !(c->j->r.echo && c->j->r.logprobs);
}

static void find(choice *c, scheduler *s)
{
    size_t chunk = (size_t)decoder_chunk(s->o.dec), n = ((size_t)c->n_prefill - 1) / chunk * chunk;
    c->n_known = c->keep_at = 0;
    if (c->j->reuse == ATTN_REUSE_NEVER || n == 0) return;
    const prefix_prompt of = prompt_of(c, n);
    if (reads(c)) c->known = prefix_find(s->prefix, &of, &c->n_known);
    if (n >= c->n_known + s->o.prefix_least) c->keep_at = n;
}

bool known_admit(choice *c, scheduler *s)
{
    size_t with = s->used + c->bytes;
    bool fits = with <= s->o.memory;
    find(c, s);
    if (fits && s->prefix) fits = prefix_shrink(s->prefix, s->o.memory - with);
    if (fits || s->n_running == 0) return true;
    known_let_go(c);
    return false;
}

session_size known_size(const choice *c)
{
    int64_t reach = (int64_t)c->prompt->n + c->j->r.max_tokens;
    if (!c->known && !c->keep_at) return session_of(reach);
    return (session_size){.n_tokens = c->j->sched->o.ctx, .reach = reach};
}

/* An entry that cannot be loaded costs time, no more. */
void known_load(choice *c, scheduler *s)
{
    err e = {0};
    if (c->known && prefix_load(s->prefix, c->known, c->s, c->n_known, &e) != ST_OK) {
        known_let_go(c);
        c->n_known = 0;
    }
    c->fed = c->n_known;
    if (c->j->reuse == ATTN_REUSE_NEVER || !reads(c)) return;
    pthread_mutex_lock(&s->lock);
    s->counts.known_tokens += (int64_t)c->n_known;
    s->counts.lookups[c->n_known > 0]++;
    pthread_mutex_unlock(&s->lock);
}

/* A prompt for which there is no room is computed again when it comes again. */
void known_keep(const choice *c, scheduler *s)
{
    err e = {0};
    const prefix_prompt of = prompt_of(c, c->keep_at);
    if (c->keep_at == 0 || c->fed != c->keep_at || s->used >= s->o.memory) return;
    (void)prefix_keep(s->prefix, &of, c->s, s->o.memory - s->used, &e);
}

void known_let_go(choice *c)
{
    if (c->known) prefix_let_go(c->j->sched->prefix, c->known);
    c->known = NULL;
}
