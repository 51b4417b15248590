/* SPDX-License-Identifier: MIT */
/* ./run serve: OpenAI's HTTP interface to the model. */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/command.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "serve/http.h"

enum { CHUNK = 64 };

typedef struct {
    run_options run;
    prefix_args prefix;
    const char *template_name, *host, *host_name, *cors, *key_file, *memory, *prefix_ram, *alias;
    int port, batch, max_new, queue, a_client;
    double drain, prefill_share;
    bool insecure, strict, prefix_shared;
} serve_options;

#define OWN(field) AT(serve_options, field)

static const cli_option own[] = {
    {OWN(host), .name = "host", .arg = "ADDRESS", .help = "address to listen on (default 127.0.0.1)"},
    {OWN(port), .name = "port", .arg = "N", WHOLE(0, 65535, 8080), .help = "port, 0: any free one (default 8080)"},
    {OWN(batch), .name = "batch", .arg = "N", WHOLE(1, 256, 8), .help = "most sequences at once (default 8)"},
    {OWN(prefill_share), .name = "prefill-share", .arg = "SHARE", .type = OPTION_NUMBER, .def = 0.5,
     .help = "of the time, for prompts, while others get answers; above 0, below 1 (default 0.5)"},
    {OWN(alias), .name = "alias", .arg = "NAME=SPEC[@decode=N],..",
     .help = "other names of the model, each for a strategy, such as q64=quest:budget=64@decode=64"},
    {OWN(memory), .name = "memory", .arg = "SIZE",
     .help = "bytes that sequences may take together, such as 4000M (default: 80 % of what is available)"},
    {OWN(prefix_ram), .name = "prefix-ram", .arg = "SIZE",
     .help = "of these bytes, those for prompts that are kept for others that begin alike; 0: none is (default: 25 %)"},
    {OWN(prefix_shared), .name = "prefix-shared", .type = OPTION_FLAG,
     .help = "prompts that are kept serve all clients, not just whose they are"},
    {OWN(max_new), .name = "max-new", .arg = "N", WHOLE(1, 1 << 30, 1024),
     .help = "tokens of a chat's reply that does not say how many (default 1024)"},
    {OWN(queue), .name = "queue", .arg = "N", WHOLE(0, 4096, 64), .help = "requests that may wait (default 64)"},
    {OWN(a_client), .name = "per-client", .arg = "N", WHOLE(0, 4096, 16),
     .help = "of these, of one client: a key's name, or an address (default 16)"},
    {OWN(drain), .name = "drain", .arg = "SECONDS", .type = OPTION_NUMBER, .def = 30,
     .help = "how long answers under way may go on behind SIGTERM (default 30)"},
    {OWN(key_file), .name = "api-key-file", .arg = "FILE",
     .help = "who may ask: lines `name key` in a file of mode 0600 (or one key in KVASIR_API_KEY)"},
    {OWN(insecure), .name = "insecure", .type = OPTION_FLAG,
     .help = "listen on an address of the network without a key"},
    {OWN(host_name), .name = "host-name", .arg = "NAME", .help = "another name that clients may call this server by"},
    {OWN(cors), .name = "cors", .arg = "ORIGIN", .help = "pages of this origin may ask"},
    {OWN(template_name), .name = "template", .arg = "NAME", .help = "chat template (default: the model's own)"},
    {OWN(strict), .name = "strict", .type = OPTION_FLAG, .help = "refuse unknown fields of requests"},
    {0}};

/* ---- signals ---- */

static volatile sig_atomic_t ended;

static void on_end(int sig)
{
    (void)sig;
    ended = 1;
}

static void catch_end(void)
{
    struct sigaction a = {.sa_handler = on_end};
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGINT, &a, NULL);
}

/* ---- options ---- */

static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

static status read_keys(const serve_options *o, http_key **keys, size_t *n, err *e)
{
    const char *key = getenv("KVASIR_API_KEY");
    *keys = NULL;
    *n = 0;
    if (o->key_file) TRY(http_read_keys(keys, n, o->key_file, e));
    else if (key && *key) {
        TRY(MEM_NEW(keys, 1, e));
        http_make_key(*keys, "environment", key);
        *n = 1;
    }
    if (*n || o->insecure || is_loopback(o->host)) return ST_OK;
    return err_set(e, ST_USAGE, "--host %s: the network could ask: --api-key-file FILE, or --insecure", o->host);
}

/* The name of the model in requests: its folder's. */
static const char *model_name(const serve_options *o)
{
    const char *slash;
    if (!o->run.engine.model.dir) return "demo";
    slash = strrchr(o->run.engine.model.dir, '/');
    return slash && slash[1] ? slash + 1 : o->run.engine.model.dir;
}

typedef struct {
    engine g;
    scheduler *sched;
    http *http;
    http_key *keys;
    sched_alias *aliases;
    size_t n_aliases;
    char *prefix_dir, *alias_text, **alias_words;
} server;

static status read_aliases(server *v, const serve_options *o, err *e)
{
    if (!o->alias) return ST_OK;
    TRY(cli_split(&v->alias_words, &v->n_aliases, &v->alias_text, o->alias, e));
    TRY(MEM_NEW(&v->aliases, v->n_aliases, e));
    for (size_t i = 0; i < v->n_aliases; i++) {
        char *name = v->alias_words[i], *words = name + strcspn(name, "@=");
        if (words == name || *words != '=' || strcmp(name, model_name(o)) == 0)
            return err_set(e, ST_USAGE, "--alias: '%.80s', expected NAME=SPEC with a name that is not the model's",
                           name);
        *words++ = 0;
        v->aliases[i] = (sched_alias){name, words};
    }
    return ST_OK;
}

/* Checks the strategies of aliases. */
static status check_aliases(const server *v, err *e)
{
    for (size_t i = 0; i < v->n_aliases; i++) {
        const api_request r = {.model = v->aliases[i].name, .decode = -1};
        attn_spec unused;
        int64_t decode;
        err why = {0};
        status st = sched_spec(v->sched, &r, &unused, &decode, &why);
        if (st != ST_OK) return err_set(e, st, "--alias %s: %s", r.model, why.msg);
    }
    return ST_OK;
}

static status fill(sched_options *s, const serve_options *o, const engine *g, err *e)
{
    const attn_args *a = &o->run.attn;
    int64_t ctx = g->m->config.max_positions, memory, kept;
    attn_options attn;
    attn_spec spec;
    if (a->ctx) TRY(cli_parse_size(&ctx, a->ctx, "--ctx", e));
    if (a->kv_tier) return err_set(e, ST_UNSUPPORTED, "--kv-tier: serve keeps rows in memory");
    TRY(attn_args_read(&attn, NULL, a, e));
    attn.has_budget = a->budget != NULL;
    if (a->budget) TRY(cli_parse_size(&attn.budget, a->budget, "--budget", e));
    memory = (int64_t)((double)g->be->ops->available(g->be) * 0.8);
    if (o->memory) TRY(cli_parse_size(&memory, o->memory, "--memory", e));
    if (!(o->prefill_share > 0 && o->prefill_share < 1))
        return err_set(e, ST_USAGE, "--prefill-share: %g, expected above 0 and below 1", o->prefill_share);
    kept = memory / 4;
    if (o->prefix_ram) TRY(cli_parse_size(&kept, o->prefix_ram, "--prefix-ram", e));
    *s = (sched_options){.dec = g->dec,
                         .decoder = engine_decoder(g, (size_t)o->batch),
                         .tok = g->tok,
                         .model = model_name(o),
                         .attn = attn,
                         .strategy = a->names ? a->names : "full",
                         .template = o->template_name,
                         .ctx = ctx,
                         .max_new = o->max_new,
                         .batch = (size_t)o->batch,
                         .memory = (size_t)memory,
                         .prefill_share = o->prefill_share,
                         .queue = (size_t)o->queue,
                         .a_client = (size_t)o->a_client,
                         .prefix = {.log = cli_prefix_log(), .memory = (size_t)kept, .least = (size_t)o->prefix.least},
                         .prefix_shared = o->prefix_shared};
    TRY(attn_spec_parse(&spec, s->strategy, &s->attn, e));
    return attn_spec_check(&spec, decoder_attn_shape(g->dec), e);
}

static status read_prefix_disk(server *v, sched_options *s, const serve_options *o, err *e)
{
    if (!o->prefix.disk) return ST_OK;
    if (s->prefix.memory == 0) return err_set(e, ST_USAGE, "--prefix-disk: --prefix-ram 0 keeps no prompts");
    TRY(prefix_cache_check_device(decoder_model(s->dec)->be, "--prefix-disk", e));
    TRY(cli_parse_prefix(&v->prefix_dir, &s->prefix.disk, o->prefix.disk, e));
    s->prefix.dir = v->prefix_dir;
    return ST_OK;
}

static status start(server *v, const serve_options *o, err *e)
{
    sched_options s;
    http_options h = {.host = o->host,
                      .port = o->port,
                      .host_name = o->host_name,
                      .cors = o->cors,
                      .strict = o->strict,
                      .created = (int64_t)time(NULL)};
    int port;
    TRY(cli_check_template(o->template_name, e));
    TRY(read_keys(o, &v->keys, &h.n_keys, e));
    h.keys = v->keys;
    TRY(engine_open(&v->g, &o->run.engine, (size_t)o->batch, true, e));
    TRY(fill(&s, o, &v->g, e));
    TRY(read_prefix_disk(v, &s, o, e));
    TRY(read_aliases(v, o, e));
    s.aliases = v->aliases;
    s.n_aliases = v->n_aliases;
    if (s.prefix.memory > 0) prefix_small_pages();
    TRY(sched_start(&v->sched, &s, e));
    TRY(check_aliases(v, e));
    h.sched = v->sched;
    TRY(http_start(&v->http, &h, &port, e));
    fprintf(stderr, strchr(o->host, ':') ? "listening on http://[%s]:%d\n" : "listening on http://%s:%d\n", o->host,
            port);
    return ST_OK;
}

static void stop(server *v, double drain)
{
    int64_t end = clock_ns() + (int64_t)(drain * 1e9);
    if (v->http) {
        http_quiesce(v->http);
        sched_drain(v->sched);
        while (sched_jobs(v->sched) > 0 && clock_ns() < end) poll(NULL, 0, 10);
    }
    if (v->sched) sched_stop(v->sched);
    http_stop(v->http);
    sched_free(v->sched);
    engine_close(&v->g);
    mem_free(v->keys);
    mem_free(v->prefix_dir);
    mem_free(v->aliases);
    mem_free(v->alias_words);
    mem_free(v->alias_text);
}

static status cmd_serve(void *options, err *e)
{
    serve_options *o = options;
    server v = {0};
    if (!o->host) o->host = "127.0.0.1";
    if (o->run.engine.device.chunk == 0) o->run.engine.device.chunk = CHUNK;
    o->run.engine.verifies = true;
    catch_end();
    status st = start(&v, o, e);
    while (st == ST_OK && !ended) {
        poll(NULL, 0, 1000);
        http_tick(v.http, clock_ns());
    }
    stop(&v, st == ST_OK ? o->drain : 0);
    return st;
}

const command serve_command = {.name = "serve",
                               .args = "",
                               .summary = "answer requests over HTTP, as OpenAI's interface has them",
                               .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_PREFIX,
                               .own = own,
                               .size = sizeof(serve_options),
                               .place[IN_PREFIX] = offsetof(serve_options, prefix),
                               .alone = true,
                               .run = cmd_serve};
