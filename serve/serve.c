/* SPDX-License-Identifier: MIT */
/* ./run serve: the OpenAI HTTP API. */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/command.h"
#include "cli/output.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "model/generation_config.h"
#include "serve/http.h"

typedef struct {
    run_options run;
    prefix_args prefix;
    template_options template;
    const char *tools, *host, *host_name, *cors, *key_file, *memory, *prefix_ram, *alias, *log;
    int port, batch, max_new, queue, a_client;
    double drain, prefill_share;
    bool insecure, strict, prefix_shared;
} serve_options;

#define OWN(field) AT(serve_options, field)

static const cli_option own[] = {
    {OWN(host), .name = "host", .arg = "ADDRESS", .help = "address to listen on (default 127.0.0.1)"},
    {OWN(port), .name = "port", .arg = "N", WHOLE(0, 65535, 8080), .help = "port; 0: any free port (default 8080)"},
    {OWN(batch), .name = "batch", .arg = "N", WHOLE(1, 256, 8), .help = "maximum sequences at once (default 8)"},
    {OWN(prefill_share), .name = "prefill-share", .arg = "SHARE", .type = OPTION_NUMBER, .def = 0.5,
     .help = "fraction of the time for prompts while sequences decode, in (0, 1) (default 0.5)"},
    {OWN(alias), .name = "alias", .arg = "NAME=SPEC[@decode=N],..",
     .help = "model aliases that select a strategy, such as q64=quest:budget=64@decode=64"},
    {OWN(memory), .name = "memory", .arg = "SIZE",
     .help = "memory of all sequences, such as 4000M (default: 80 % of the available memory)"},
    {OWN(prefix_ram), .name = "prefix-ram", .arg = "SIZE",
     .help = "part of --memory for the prefix cache; 0: no prefix cache (default: 25 %)"},
    {OWN(prefix_shared), .name = "prefix-shared", .type = OPTION_FLAG,
     .help = "share cached prompts between clients (default: each client has its own)"},
    {OWN(max_new), .name = "max-new", .arg = "N", WHOLE(1, 1 << 30, 1024),
     .help = "maximum tokens of a chat reply without max_tokens (default 1024)"},
    {OWN(queue), .name = "queue", .arg = "N", WHOLE(0, 4096, 64), .help = "maximum waiting requests (default 64)"},
    {OWN(a_client), .name = "per-client", .arg = "N", WHOLE(0, 4096, -1),
     .help = "maximum waiting requests of one client, a key or an address (default 16; on loopback no limit)"},
    {OWN(drain), .name = "drain", .arg = "SECONDS", .type = OPTION_NUMBER, .def = 30,
     .help = "time to finish answers in progress after SIGTERM (default 30)"},
    {OWN(key_file), .name = "api-key-file", .arg = "FILE",
     .help = "API keys: lines `name key`, in a file of mode 0600 (or one key in KVASIR_API_KEY)"},
    {OWN(insecure), .name = "insecure", .type = OPTION_FLAG, .help = "listen on a network address without API keys"},
    {OWN(host_name), .name = "host-name", .arg = "NAME", .help = "accept this name in Host headers too"},
    {OWN(cors), .name = "cors", .arg = "ORIGIN", .help = "allow requests from pages of this origin"},
    {OWN(template.name), .name = "template", .arg = "FILE|NAME|TEXT",
     .help = "chat template: a Jinja file, a name or a Jinja text (default: the model's own)"},
    {OWN(template.args), .name = "template-arg", .arg = "NAME=VALUE", .type = OPTION_TEXTS,
     .help = "variable of the chat template, such as enable_thinking=false; repeatable"},
    {OWN(tools), .name = "tools", .arg = "FORMAT",
     .help = "format of tool calls, such as hermes, also for templates without tools (default: the template's)"},
    {OWN(log), .name = "log", .arg = "requests",
     .help = "print a line per request to stderr: time, client, path, status, tokens, seconds; no texts"},
    {OWN(strict), .name = "strict", .type = OPTION_FLAG, .help = "refuse requests with unknown fields"},
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
    return err_set(e, ST_USAGE, "--host %s: a network address requires --api-key-file FILE or --insecure", o->host);
}

/* Returns the name of the model in requests, that of its folder. */
static const char *model_name(const serve_options *o)
{
    const char *slash;
    if (!o->run.engine.model.dir) return "demo";
    slash = strrchr(o->run.engine.model.dir, '/');
    return slash && slash[1] ? slash + 1 : o->run.engine.model.dir;
}

typedef struct {
    engine g;
    call_support calls;
    scheduler *sched;
    http *http;
    http_key *keys;
    sched_alias *aliases;
    size_t n_aliases;
    char *prefix_dir, *alias_text, **alias_words;
    char names[HTTP_NAMES];
} server;

static status read_aliases(server *v, const serve_options *o, err *e)
{
    if (!o->alias) return ST_OK;
    TRY(cli_split(&v->alias_words, &v->n_aliases, &v->alias_text, o->alias, e));
    TRY(MEM_NEW(&v->aliases, v->n_aliases, e));
    for (size_t i = 0; i < v->n_aliases; i++) {
        char *name = v->alias_words[i], *words = name + strcspn(name, "@=");
        if (words == name || *words != '=' || strcmp(name, model_name(o)) == 0)
            return err_set(e, ST_USAGE, "--alias %.80s: expected NAME=SPEC; NAME must differ from the model's", name);
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
    int64_t memory, kept;
    attn_options attn;
    attn_spec spec;
    if (a->kv_tier) return err_set(e, ST_UNSUPPORTED, "--kv-tier: not supported by serve");
    TRY(attn_args_read(&attn, NULL, a, e));
    attn.has_budget = a->budget != NULL;
    if (a->budget) TRY(cli_parse_size(&attn.budget, a->budget, "--budget", e));
    memory = (int64_t)((double)g->be->ops->available(g->be) * 0.8);
    if (o->memory) TRY(cli_parse_size(&memory, o->memory, "--memory", e));
    if (!(o->prefill_share > 0 && o->prefill_share < 1))
        return err_set(e, ST_USAGE, "--prefill-share %g: must be in (0, 1)", o->prefill_share);
    kept = memory / 4;
    if (o->prefix_ram) TRY(cli_parse_size(&kept, o->prefix_ram, "--prefix-ram", e));
    *s = (sched_options){.dec = g->dec,
                         .decoder = engine_decoder(g, (size_t)o->batch),
                         .tok = g->tok,
                         .model = model_name(o),
                         .attn = attn,
                         .strategy = a->names ? a->names : "full",
                         .ctx = g->m->config.max_positions,
                         .max_new = o->max_new,
                         .batch = (size_t)o->batch,
                         .memory = (size_t)memory,
                         .prefill_share = o->prefill_share,
                         .queue = (size_t)o->queue,
                         .a_client = (size_t)(o->a_client >= 0       ? o->a_client
                                              : is_loopback(o->host) ? o->queue
                                                                     : 16),
                         .prefix = {.log = cli_prefix_log(), .memory = (size_t)kept, .least = (size_t)o->prefix.least},
                         .ping_ns = (int64_t)10000000000,
                         .prefix_shared = o->prefix_shared};
    TRY(attn_spec_parse(&spec, s->strategy, &s->attn, e));
    if (a->ctx) TRY(engine_context(&s->ctx, g, &spec, a->ctx, (size_t)(memory - kept), e));
    return attn_spec_check(&spec, decoder_attn_shape(g->dec), e);
}

static status read_prefix_disk(server *v, sched_options *s, const serve_options *o, err *e)
{
    if (!o->prefix.disk) return ST_OK;
    if (s->prefix.memory == 0) return err_set(e, ST_USAGE, "--prefix-disk: requires --prefix-ram above 0");
    TRY(prefix_cache_check_device(decoder_model(s->dec)->be, "--prefix-disk", e));
    TRY(cli_parse_prefix(&v->prefix_dir, &s->prefix.disk, o->prefix.disk, e));
    s->prefix.dir = v->prefix_dir;
    return ST_OK;
}

/* Prints the address, accepted names and limits. */
static void print_start(const server *v, const sched_options *s, const serve_options *o, int port)
{
    char disk[64] = "";
    fprintf(stderr, strchr(o->host, ':') ? "listening on http://[%s]:%d\n" : "listening on http://%s:%d\n", o->host,
            port);
    if (*v->names) fprintf(stderr, "accepted in Host headers: localhost %s\n", v->names);
    if (s->prefix.dir) snprintf(disk, sizeof disk, ", on disk %.1f GB", (double)s->prefix.disk / 1e9);
    out_note("context %lld tokens | at most %zu sequences in %.1f GB, of which prefix cache %.1f GB%s | at most %zu "
             "requests wait, %zu of one client",
             (long long)s->ctx, s->batch, (double)s->memory / 1e9, (double)s->prefix.memory / 1e9, disk, s->queue,
             s->a_client);
}

static status start(server *v, const serve_options *o, err *e)
{
    sched_options s;
    http_options h = {.host = o->host,
                      .port = o->port,
                      .host_name = o->host_name,
                      .cors = o->cors,
                      .log = o->log != NULL,
                      .rules = {.strict = o->strict, .sampling = api_sampling()},
                      .created = (int64_t)time(NULL)};
    char sampling[GENERATION_TEXT];
    int port;
    if (o->log && strcmp(o->log, "requests") != 0)
        return err_set(e, ST_USAGE, "--log %.40s: expected requests", o->log);
    TRY(read_keys(o, &v->keys, &h.n_keys, e));
    h.keys = v->keys;
    http_own_names(v->names, o->host);
    h.names = v->names;
    TRY(engine_open(&v->g, &o->run.engine, (size_t)o->batch, true, e));
    TRY(generation_config_read(&h.rules.sampling, sampling, v->g.m->name, e));
    TRY(cli_set_template(v->g.tok, &o->template, e));
    TRY(call_support_find(&v->calls, v->g.tok, o->tools, e));
    h.rules.calls = &v->calls;
    TRY(fill(&s, o, &v->g, e));
    s.calls = &v->calls;
    TRY(read_prefix_disk(v, &s, o, e));
    TRY(read_aliases(v, o, e));
    s.aliases = v->aliases;
    s.n_aliases = v->n_aliases;
    if (s.prefix.memory > 0) prefix_small_pages();
    TRY(sched_start(&v->sched, &s, e));
    TRY(check_aliases(v, e));
    h.sched = v->sched;
    TRY(http_start(&v->http, &h, &port, e));
    print_start(v, &s, o, port);
    if (*sampling) fprintf(stderr, "generation_config.json: %s, for requests without these fields\n", sampling);
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
    o->run.engine.verifies = o->run.engine.shared = true;
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
                               .summary = "serve the OpenAI HTTP API",
                               .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_PREFIX,
                               .own = own,
                               .size = sizeof(serve_options),
                               .place[IN_PREFIX] = offsetof(serve_options, prefix),
                               .alone = true,
                               .run = cmd_serve};
