/* SPDX-License-Identifier: MIT */
/* Loading models, and locking and struct versions for all calls of the library. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/impl.h"
#include "kernels/base/err_names.h"
#include "kernels/base/mem.h"

enum { BATCH = 8, MOST_BATCH = 4096, MOST_CHUNK = 1 << 20, PREFIX_MIN = 64 };
#define PREFIX_DISK ((uint64_t)8192 << 20) /* bytes */

/* ---- statuses and structs ---- */

_Static_assert((int)KVASIR_INTERRUPTED == (int)ST_INTERRUPTED && (int)KVASIR_FORMAT == (int)ST_FORMAT,
               "one list of statuses");

kvasir_status lib_result(status st, const err *e, char *msg, size_t size)
{
    static const err_name names[] = {{"--attn", "strategy"},
                                     {"--kv", "store"},
                                     {"--ctx", "limit"},
                                     {"--budget", "budget"},
                                     {"--skip", "skip"},
                                     {"--chunk", "chunk"},
                                     {"--device", "device"},
                                     {"--weights", "weights"},
                                     {"--gemm", "gemm"},
                                     {"--draft", "draft"},
                                     {"--template", "template"},
                                     {"--temp", "temperature"},
                                     {"--top-k", "top_k"},
                                     {"--top-p", "top_p"},
                                     {"--min-p", "min_p"},
                                     {"--repeat-penalty", "repeat_penalty"},
                                     {"--presence-penalty", "presence_penalty"},
                                     {"--frequency-penalty", "frequency_penalty"},
                                     {0}};
    err named = *e;
    err_rename(&named, names);
    if (msg && size > 0) snprintf(msg, size, "%s", st == ST_OK ? "" : named.msg);
    return (kvasir_status)st;
}

status lib_need(const void *p, const char *name, err *e)
{
    return p ? ST_OK : err_set(e, ST_USAGE, "%s: NULL", name);
}

/* Reads struct_size. */
static status own_size(size_t *size, const void *p, const char *name, err *e)
{
    TRY(lib_need(p, name, e));
    memcpy(size, p, sizeof *size);
    if (*size >= sizeof *size && *size < 1 << 16) return ST_OK;
    return err_set(e, ST_USAGE, "%s: struct_size %zu, expected the size of the struct", name, *size);
}

status lib_take(void *to, size_t size, const void *from, const char *name, err *e)
{
    size_t theirs;
    TRY(own_size(&theirs, from, name, e));
    memset(to, 0, size);
    memcpy(to, from, theirs < size ? theirs : size);
    for (size_t i = size; i < theirs; i++)
        if (((const unsigned char *)from)[i] != 0)
            return err_set(e, ST_UNSUPPORTED, "%s: byte %zu is not 0: this library (%s) knows %zu bytes of the struct",
                           name, i, PACKAGE_VERSION, size);
    return ST_OK;
}

status lib_give(void *to, const void *from, size_t size, const char *name, err *e)
{
    size_t theirs;
    TRY(own_size(&theirs, to, name, e));
    memset(to, 0, theirs);
    memcpy(to, from, theirs < size ? theirs : size);
    memcpy(to, &theirs, sizeof theirs);
    return ST_OK;
}

const char *kvasir_version(void)
{
    return PACKAGE_VERSION;
}

/* ---- turns ---- */

status lib_enter(kvasir_model *m, err *e)
{
    TRY(lib_need(m, "model", e));
    if (pthread_mutex_lock(&m->lock) == EDEADLK)
        return err_set(e, ST_USAGE, "a callback must not use the model that calls it");
    m->before = uselocale(m->numbers);
    return ST_OK;
}

status lib_enter_session(const kvasir_session *s, err *e)
{
    TRY(lib_need(s, "session", e));
    return lib_enter(s->m, e);
}

/* Appends a warning of the prefix cache, possibly from its writer thread. Lines that do not fit are dropped. */
static void notice(void *ctx, const char *line)
{
    kvasir_model *m = ctx;
    pthread_mutex_lock(&m->noting);
    size_t at = strlen(m->notices), n = strlen(line);
    if (at + n + 2 <= sizeof m->notices) snprintf(m->notices + at, sizeof m->notices - at, "%s\n", line);
    pthread_mutex_unlock(&m->noting);
}

/* Logs the warnings of the prefix cache in the caller's thread. */
static void log_notices(kvasir_model *m)
{
    char lines[sizeof m->notices];
    pthread_mutex_lock(&m->noting);
    memcpy(lines, m->notices, sizeof lines);
    m->notices[0] = 0;
    pthread_mutex_unlock(&m->noting);
    for (char *line = lines, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        if (m->opt.log) m->opt.log(m->opt.arg, KVASIR_WARNING, line);
    }
}

status lib_leave(kvasir_model *m, status st)
{
    if (m->cache) log_notices(m);
    uselocale(m->before);
    pthread_mutex_unlock(&m->lock);
    return st;
}

void lib_retain(kvasir_model *m)
{
    atomic_fetch_add(&m->users, 1);
}

/* ---- models ---- */

static status read_options(kvasir_model *m, const kvasir_options *given, kvasir_options *o, err *e)
{
    *o = (kvasir_options){0};
    if (given) TRY(lib_take(o, sizeof *o, given, "options", e));
    if (o->flags != 0) return err_set(e, ST_UNSUPPORTED, "options: flags %d, expected 0", (int)o->flags);
    const struct {
        const char *name;
        int64_t value, most;
    } counts[] = {{"threads", o->threads, INT32_MAX},       {"batch", o->batch, MOST_BATCH},
                  {"chunk", o->chunk, MOST_CHUNK},          {"ctx", o->ctx, INT64_MAX},
                  {"prefix_ram", o->prefix_ram, INT64_MAX}, {"prefix_disk_bytes", o->prefix_disk_bytes, INT64_MAX},
                  {"prefix_min", o->prefix_min, INT64_MAX}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i].value < 0 || counts[i].value > counts[i].most)
            return err_set(e, ST_USAGE, "options: %s %lld, expected 0 to %lld", counts[i].name,
                           (long long)counts[i].value, (long long)counts[i].most);
    if (o->batch == 0) o->batch = BATCH;
    m->decoder = (decoder_options){.chunk = (size_t)o->chunk, .max_batch = (size_t)o->batch};
    if (o->draft) m->decoder.verify = SESSION_VERIFY_ROWS;
    m->decoder.exact = o->gemm && strcmp(o->gemm, "builtin") == 0;
    if (o->gemm && !m->decoder.exact && strcmp(o->gemm, "auto") != 0)
        return err_set(e, ST_USAGE, "gemm: '%.40s' is not one of: auto builtin", o->gemm);
    return ST_OK;
}

static void log_line(void *ctx, const char *line)
{
    const kvasir_model *m = ctx;
    if (m->opt.log) m->opt.log(m->opt.arg, KVASIR_INFO, line);
}

/* Converts the matrices to the requested type. */
static status convert_weights(kvasir_model *m, const char *type, err *e)
{
    weights_options o = {.type = DT_COUNT, .report = log_line, .ctx = m};
    if (!type) return model_convert(m->m, &o, e);
    o.type = dtype_named(type);
    if (o.type <= DT_Q4) return model_convert(m->m, &o, e);
    return err_set(e, ST_USAGE, "weights: '%.40s' is not one of: bf16 f16 f32 q8 q4", type);
}

/* Logs the warning of the tokenizer. */
static void log_warning(const kvasir_model *m)
{
    const char *line = tokenizer_warning(m->tok);
    if (line && m->opt.log) m->opt.log(m->opt.arg, KVASIR_WARNING, line);
}

static void log_model(const kvasir_model *m)
{
    char line[512], threads[BACKEND_THREADS_TEXT];
    const model *x = m->m;
    backend_threads_text(threads, m->be);
    snprintf(line, sizeof line, "%.80s: %s, %.1f M parameters, %s | %s: %s%s, %s", x->name, x->config.arch,
             (double)x->config.n_params / 1e6, dtype_name(x->type), m->be->name, m->be->about,
             m->decoder.exact ? ", built-in GEMM" : "", threads);
    log_line((void *)(uintptr_t)m, line);
}

/* Checks the draft specification. Conditions on a session's strategy are checked when it is created. */
static status open_drafts(kvasir_model *m, const char *spec, err *e)
{
    const attn_options o = {.kv = kv_plain(DT_F16)};
    attn_spec full;
    drafter *d;
    if (!spec) return ST_OK;
    if (!(m->draft = mem_strdup(spec))) return err_set(e, ST_NOMEM, "out of memory");
    m->drafts = (draft_options){.spec = m->draft, .name = "draft"};
    TRY(attn_spec_parse(&full, "full", &o, e));
    TRY(drafter_create(&d, &m->drafts, &full, e));
    m->draft_strategy = drafter_session(d, 0).draft != NULL;
    drafter_free(d);
    return ST_OK;
}

/* Opens the prefix cache. Sessions keep their requested sizes, so that prefix_small_pages is not needed. */
static status open_prefix(kvasir_model *m, const kvasir_options *o, err *e)
{
    if (!o->prefix_disk && o->prefix_ram == 0) return ST_OK;
    if (m->draft_strategy)
        return err_set(e, ST_UNSUPPORTED, "draft: '%.60s': strategies cannot draft with a prefix cache; use ngram",
                       m->draft);
    size_t have = m->be->ops->available(m->be);
    const prefix_cache_options r = {.log = {o->prefix_disk ? "prefix_disk" : "prefix_ram", notice, m},
                                    .memory = o->prefix_ram ? (size_t)o->prefix_ram
                                              : have        ? have / 4
                                                            : SIZE_MAX,
                                    .dir = o->prefix_disk,
                                    .disk = o->prefix_disk_bytes ? (uint64_t)o->prefix_disk_bytes : PREFIX_DISK,
                                    .least = o->prefix_min ? (size_t)o->prefix_min : PREFIX_MIN,
                                    .exact = m->decoder.exact};
    return prefix_cache_open(&m->cache, &r, m->dec, e);
}

static status open_parts(kvasir_model *m, const char *dir, const kvasir_options *given, err *e)
{
    kvasir_options o;
    TRY(lib_need(dir, "dir", e));
    TRY(read_options(m, given, &o, e));
    TRY(open_drafts(m, o.draft, e));
    const backend_options device = {.device = o.device ? o.device : "auto", .n_threads = o.threads};
    TRY(backend_open(&m->be, &device, e));
    TRY(model_find(&m->m, dir, NULL, m->be, e));
    TRY(model_load(m->m, e));
    TRY(tokenizer_open(&m->tok, dir, e));
    m->opt = o;
    log_warning(m);
    m->opt.device = m->opt.weights = m->opt.gemm = m->opt.draft = m->opt.prefix_disk = NULL;
    m->opt.chunk = (int32_t)backend_chunk(m->be, (size_t)o.chunk);
    if (m->opt.ctx == 0) m->opt.ctx = m->m->config.max_positions;
    TRY(convert_weights(m, o.weights, e));
    TRY(decoder_create(&m->dec, m->m, &m->decoder, e));
    TRY(stepper_open(&m->x, m->dec, (size_t)o.batch, e));
    TRY(MEM_NEW(&m->batch, (size_t)o.batch, e));
    TRY(open_prefix(m, &o, e));
    log_model(m);
    return ST_OK;
}

static void free_all(kvasir_model *m)
{
    prefix_cache_close(m->cache);
    grammar_vocab_free(m->words);
    mem_free(m->batch);
    stepper_close(&m->x);
    mem_free(m->draft);
    decoder_free(m->dec);
    tokenizer_free(m->tok);
    model_close(m->m);
    backend_close(m->be);
    freelocale(m->numbers);
    pthread_mutex_destroy(&m->lock);
    pthread_mutex_destroy(&m->encoding);
    pthread_mutex_destroy(&m->noting);
    mem_free(m);
}

static status load(kvasir_model **out, const char *dir, const kvasir_options *o, err *e)
{
    kvasir_model *m;
    pthread_mutexattr_t kind;
    locale_t numbers = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!numbers) return err_set(e, ST_NOMEM, "out of memory for a locale");
    status st = MEM_NEW(&m, 1, e);
    if (st != ST_OK) {
        freelocale(numbers);
        return st;
    }
    m->numbers = numbers;
    atomic_init(&m->users, 1);
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&m->lock, &kind);
    pthread_mutexattr_destroy(&kind);
    pthread_mutex_init(&m->encoding, NULL);
    pthread_mutex_init(&m->noting, NULL);
    st = lib_enter(m, e);
    if (st == ST_OK) st = lib_leave(m, open_parts(m, dir, o, e));
    if (st != ST_OK) free_all(m);
    else *out = m;
    return st;
}

kvasir_status kvasir_model_load(kvasir_model **out, const char *dir, const kvasir_options *options, char *msg,
                                size_t msg_size)
{
    err e = {0};
    if (out) *out = NULL;
    status st = lib_need(out, "out", &e);
    if (st == ST_OK) st = load(out, dir, options, &e);
    return lib_result(st, &e, msg, msg_size);
}

void kvasir_model_free(kvasir_model *m)
{
    if (m && atomic_fetch_sub(&m->users, 1) == 1) free_all(m);
}

static status info(const kvasir_model *m, kvasir_info *out, err *e)
{
    TRY(lib_need(m, "model", e));
    const model_config *c = &m->m->config;
    const kvasir_info known = {
        .name = m->m->name,
        .architecture = c->arch,
        .weights = dtype_name(m->m->type),
        .device = m->be->name,
        .about = m->be->about,
        .parameters = c->n_params,
        .weight_bytes = (int64_t)m->m->weight_bytes,
        .max_positions = c->max_positions,
        .ctx = m->opt.ctx,
        .vocab = c->vocab,
        .layers = c->n_layers,
        .heads = c->n_heads,
        .kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .hidden = c->hidden,
        .feed_forward = c->ffn,
        .threads = m->be->n_threads,
        .batch = m->opt.batch,
        .chunk = m->opt.chunk,
        .bos = tokenizer_bos(m->tok),
        .adds_bos = tokenizer_adds_bos(m->tok),
    };
    return lib_give(out, &known, sizeof known, "info", e);
}

kvasir_status kvasir_model_info(const kvasir_model *m, kvasir_info *out, char *msg, size_t msg_size)
{
    err e = {0};
    return lib_result(info(m, out, &e), &e, msg, msg_size);
}
