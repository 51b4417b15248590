/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "generate/prefix_cache.h"

#include <string.h>
#include <sys/prctl.h>

#include "kernels/base/mem.h"
#include "model/session_file.h"

struct prefix_cache {
    prefix_store *store;
    const decoder *d;
    char weights[SHA256_HEX], build[SHA256_HEX];
    prefix_cache_options o; /* without its folder */
};

/* ---- keys ---- */

void prefix_cache_build(char out[SHA256_HEX], const decoder *d, bool exact)
{
    const model *m = decoder_model(d);
    sha256 sum;
    char text[512];
    snprintf(text, sizeof text, "%s %s %s %s %lld %d %d", PACKAGE_VERSION, m->name, dtype_name(m->type), m->be->about,
             (long long)decoder_chunk(d), exact, m->be->n_threads);
    sha256_init(&sum);
    sha256_add(&sum, text, strlen(text));
    sha256_hex(&sum, out);
}

static void add_text(sha256 *sum, const char *text)
{
    char n[24];
    sha256_add(sum, n, (size_t)snprintf(n, sizeof n, "%zu:", strlen(text)));
    sha256_add(sum, text, strlen(text));
}

void prefix_cache_key(char out[SHA256_HEX], const prefix_origin *o)
{
    char strategy[ATTN_WRITTEN], store[128], sizes[64];
    sha256 sum;
    attn_spec_write(o->spec, strategy, store);
    snprintf(sizes, sizeof sizes, "%lld %lld %d", (long long)o->ctx, (long long)decoder_chunk(o->d),
             SESSION_FILE_VERSION);
    sha256_init(&sum);
    add_text(&sum, o->client);
    add_text(&sum, o->salt);
    add_text(&sum, o->weights);
    add_text(&sum, o->build);
    add_text(&sum, strategy);
    add_text(&sum, store);
    add_text(&sum, sizes);
    if (o->before[0]) add_text(&sum, o->before);
    sha256_hex(&sum, out);
}

attn_reuse prefix_cache_takes(const decoder *d, const attn_spec *spec, size_t n)
{
    if ((int64_t)n > config_static_length(&decoder_model(d)->config)) return ATTN_REUSE_NEVER;
    return attn_reuse_of(spec);
}

/* ---- options ---- */

status prefix_cache_check_device(const backend *be, const char *name, err *e)
{
    if (!be->ops->at_once) return ST_OK;
    return err_set(e, ST_UNSUPPORTED, "%s: prompts are kept on the CPU only", name);
}

void prefix_small_pages(void)
{
    (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
}

status prefix_cache_check(const attn_spec *spec, const attn_spec *draft, const char *name, err *e)
{
    if (draft) return err_set(e, ST_UNSUPPORTED, "%s: --draft %s: its index is made as tokens come", name, draft->text);
    if (attn_reuse_of(spec) != ATTN_REUSE_NEVER) return ST_OK;
    return err_set(e, ST_UNSUPPORTED, "%s: %s: the first tokens of a prompt are no use to another one", name,
                   spec->text);
}

static status open_store(prefix_cache *u, const prefix_cache_options *o, err *e)
{
    const model *m = decoder_model(u->d);
    const prefix_options p = {
        .memory = o->memory, .chunk = (size_t)decoder_chunk(u->d), .dir = o->dir, .disk = o->disk, .log = o->log};
    model_fingerprint(u->weights, m);
    prefix_cache_build(u->build, u->d, o->exact);
    return prefix_open(&u->store, &p, e);
}

status prefix_cache_open(prefix_cache **out, const prefix_cache_options *o, const decoder *d, err *e)
{
    prefix_cache *u;
    *out = NULL;
    TRY(prefix_cache_check_device(decoder_model(d)->be, o->log.name, e));
    TRY(MEM_NEW(&u, 1, e));
    *u = (prefix_cache){.d = d, .o = *o};
    u->o.dir = NULL;
    status st = open_store(u, o, e);
    if (st != ST_OK) prefix_cache_close(u);
    else *out = u;
    return st;
}

void prefix_cache_close(prefix_cache *u)
{
    if (!u) return;
    prefix_close(u->store);
    mem_free(u);
}

session_size prefix_cache_size(const prefix_cache *u, session_size size)
{
    if (!u) return size;
    size.reach = size.n_tokens;
    if (size.n_tokens < u->o.ctx) size.n_tokens = u->o.ctx;
    return size;
}

/* ---- prompts ---- */

/* What the rows depend on before the prompt. Where not any part of them serves, a strategy may have marked the rows of
 * a question. */
static void write_before(char *out, size_t size, const prefix_lookup *p, bool any)
{
    const char *before = p->before ? p->before : "";
    attn_span q = p->hint.question;
    if (any || q.end <= q.first) snprintf(out, size, "%s", before);
    else snprintf(out, size, "%s ?%lld-%lld", before, (long long)q.first, (long long)q.end);
}

static prefix_prompt kept_of(const prefix_hit *k)
{
    return (prefix_prompt){k->key, k->any && k->from == 0, k->ids, k->end};
}

void prefix_cache_find(prefix_hit *k, prefix_cache *u, const prefix_lookup *p)
{
    char before[SHA256_HEX + 64];
    *k = (prefix_hit){.n_cached = p->from, .from = p->from, .ids = p->ids};
    if (!u || p->n <= p->from) return;
    attn_reuse how = prefix_cache_takes(u->d, p->spec, p->n);
    size_t chunk = (size_t)decoder_chunk(u->d);
    k->any = how == ATTN_REUSE_ANY;
    k->end = p->from + (p->n - p->from - 1) / chunk * chunk;
    if (how == ATTN_REUSE_NEVER || k->end == p->from) return;
    write_before(before, sizeof before, p, k->any);
    prefix_cache_key(k->key, &(prefix_origin){u->d, u->weights, u->build, p->spec, p->limit, p->client ? p->client : "",
                                              p->salt ? p->salt : "", before});
    const prefix_prompt kept = kept_of(k);
    if (!p->keep_only) k->entry = prefix_find(u->store, &kept, &k->n_cached);
    if (k->n_cached <= p->from) { /* the session has as much */
        prefix_cache_release(k, u);
        k->n_cached = p->from;
    }
    if (k->end >= k->n_cached + u->o.least) k->keep = k->end;
}

void prefix_cache_load(prefix_hit *k, prefix_cache *u, session *s)
{
    err e = {0};
    if (!k->entry || prefix_load(u->store, k->entry, s, k->n_cached, &e) == ST_OK) return;
    prefix_cache_release(k, u);
    k->n_cached = 0;
    if (k->from > 0) k->keep = 0; /* its key holds for a session that was fed in two prompts */
}

/* A prompt without room is computed again the next time. */
void prefix_cache_keep(prefix_hit *k, prefix_cache *u, const session *s)
{
    backend *be = decoder_model(u->d)->be;
    const size_t have = be->ops->available(be), most = have ? have - have / 10 : SIZE_MAX;
    const prefix_prompt kept = kept_of(k);
    err e = {0};
    k->keep = 0;
    if (prefix_keep(u->store, &kept, s, u->o.room ? u->o.room(u->o.room_ctx) : most, &e) != ST_OK && !u->o.quiet)
        prefix_say(&u->o.log, "this prompt is not kept: %s", e.msg);
}

void prefix_cache_release(prefix_hit *k, prefix_cache *u)
{
    if (k->entry) prefix_let_go(u->store, k->entry);
    k->entry = NULL;
}

void prefix_cache_settle(prefix_cache *u)
{
    prefix_flush(u->store);
    (void)prefix_shrink(u->store, 0);
}

prefix_store *prefix_cache_store(const prefix_cache *u)
{
    return u->store;
}
