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
    prefix_cache_options o; /* dir is NULL */
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
    const attn_spec spec = attn_reuse_spec(o->spec);
    attn_spec_write(&spec, strategy, store);
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

attn_reuse prefix_cache_reuse(const decoder *d, const attn_spec *spec, size_t n)
{
    if ((int64_t)n > config_static_length(&decoder_model(d)->config)) return ATTN_REUSE_NEVER;
    return attn_reuse_of(spec);
}

/* ---- options ---- */

status prefix_cache_check_device(const backend *be, const char *name, err *e)
{
    if (!be->ops->at_once) return ST_OK;
    return err_set(e, ST_UNSUPPORTED, "%s: supported on the CPU only", name);
}

void prefix_small_pages(void)
{
    (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
}

status prefix_cache_check(const attn_spec *spec, const attn_spec *draft, const char *name, err *e)
{
    if (draft)
        return err_set(e, ST_UNSUPPORTED, "%s: not supported with --draft %s, whose index is built token by token",
                       name, draft->text);
    if (attn_reuse_of(spec) != ATTN_REUSE_NEVER) return ST_OK;
    return err_set(e, ST_UNSUPPORTED, "%s: %s: this strategy does not support prefix caching", name, spec->text);
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

/* Writes the part of the key for the tokens before the prompt. Unless parts of entries can be used, it includes the
 * question, whose rows a strategy may have marked. */
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

static void write_keys(prefix_hit *k, const prefix_cache *u, const prefix_lookup *p)
{
    char before[SHA256_HEX + 64];
    write_before(before, sizeof before, p, k->any);
    prefix_origin of = {
        u->d, u->weights, u->build, p->spec, p->limit, p->client ? p->client : "", p->salt ? p->salt : "", before};
    prefix_cache_key(k->key, &of);
    if (!p->replies || !attn_reuse_steps(p->spec)) return;
    of.before = "replies";
    prefix_cache_key(k->reply_key, &of);
}

/* Looks up an entry with rows of replies, and uses it if it covers more of the prompt. */
static void find_reply(prefix_hit *k, prefix_cache *u)
{
    size_t n;
    prefix_prompt of = kept_of(k);
    of.key = k->reply_key;
    prefix_entry *x = prefix_find(u->store, &of, &n);
    if (n > k->n_cached) {
        prefix_cache_release(k, u);
        k->entry = x;
        k->n_cached = n;
        memcpy(k->key, k->reply_key, sizeof k->key);
    } else if (x) {
        prefix_release(u->store, x);
    }
}

static void find(prefix_hit *k, prefix_cache *u)
{
    const prefix_prompt of = kept_of(k);
    k->entry = prefix_find(u->store, &of, &k->n_cached);
    if (k->reply_key[0]) find_reply(k, u);
    if (k->n_cached > k->from) return;
    prefix_cache_release(k, u); /* no more than the session already has */
    k->n_cached = k->from;
}

void prefix_cache_find(prefix_hit *k, prefix_cache *u, const prefix_lookup *p)
{
    *k = (prefix_hit){.n_cached = p->from, .from = p->from, .ids = p->ids};
    if (!u || p->n <= p->from) return;
    attn_reuse how = prefix_cache_reuse(u->d, p->spec, p->n);
    size_t chunk = (size_t)decoder_chunk(u->d);
    k->any = how == ATTN_REUSE_ANY;
    k->end = p->from + (p->n - p->from - 1) / chunk * chunk;
    if (how == ATTN_REUSE_NEVER) return;
    write_keys(k, u, p);
    if (!p->keep_only && k->end > p->from) find(k, u);
    k->kept = k->n_cached;
    if (k->end > p->from && k->end >= k->kept + u->o.least) k->keep = k->end;
}

void prefix_cache_load(prefix_hit *k, prefix_cache *u, session *s)
{
    err e = {0};
    if (!k->entry || prefix_load(u->store, k->entry, s, k->n_cached, &e) == ST_OK) return;
    prefix_cache_release(k, u);
    k->n_cached = k->kept = 0;
    if (k->from > 0) k->keep = 0; /* the key is for a session fed with two prompts */
}

/* A prompt without room is not kept and is computed again next time. */
void prefix_cache_keep(prefix_hit *k, prefix_cache *u, const session *s)
{
    backend *be = decoder_model(u->d)->be;
    const size_t have = be->ops->available(be), most = have ? have - have / 10 : SIZE_MAX;
    const prefix_prompt kept = kept_of(k);
    err e = {0};
    k->keep = 0;
    if (prefix_keep(u->store, &kept, s, u->o.room ? u->o.room(u->o.room_ctx) : most, &e) == ST_OK) k->kept = k->end;
    else if (!u->o.quiet) prefix_log_line(&u->o.log, "prompt not cached: %s", e.msg);
}

/* Returns the end of the last chunk within the first n tokens of a sequence. */
static size_t whole_chunks(const prefix_hit *k, const prefix_cache *u, size_t n)
{
    const size_t chunk = (size_t)decoder_chunk(u->d);
    return k->from + (n - k->from) / chunk * chunk;
}

bool prefix_cache_may_keep(const prefix_hit *k, const prefix_cache *u, size_t n)
{
    if (!u || !k->key[0] || n <= k->from) return false;
    const size_t end = whole_chunks(k, u, n);
    return end >= k->kept + u->o.least && (end <= k->end || k->reply_key[0]);
}

void prefix_cache_keep_fed(prefix_hit *k, prefix_cache *u, session *s, const int32_t *ids, size_t n)
{
    if (!prefix_cache_may_keep(k, u, n)) return;
    const size_t end = whole_chunks(k, u, n);
    if (prefix_cache_reuse(u->d, attn_seq_spec(session_attn(s)), n) == ATTN_REUSE_NEVER) return;
    if (session_rewind(s, (int64_t)end, NULL) != ST_OK) return;
    if (end > k->end) memcpy(k->key, k->reply_key, sizeof k->key);
    k->ids = ids;
    k->end = end;
    prefix_cache_keep(k, u, s);
}

void prefix_cache_release(prefix_hit *k, prefix_cache *u)
{
    if (k->entry) prefix_release(u->store, k->entry);
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
