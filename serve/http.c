/* SPDX-License-Identifier: MIT */
/* Connections. One thread of libmicrohttpd reads and writes and never waits for the model: it suspends a connection
 * whose answer is not ready, and the scheduler's thread resumes it. The library is loaded here because linking it would
 * add milliseconds to every start of the program. */
#include "config.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lens/page.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "serve/http.h"

enum {
    MOST_CONNECTIONS = 256,
    SPARE_CONNECTIONS = 16, /* below this number of free connections, idle ones are closed, oldest first */
    SILENT_SECONDS = 30,
    REQUEST_SECONDS = 30, /* time in which a request must arrive completely */
    HEADER_BYTES = 32 << 10,
    STREAM_BLOCK = 16 << 10,
    LAST_BYTES_MS = 2000 /* time to send the last bytes before stopping */
};

#define MHD_FUNCTIONS(X)                                                                                               \
    X(start_daemon)                                                                                                    \
    X(stop_daemon)                                                                                                     \
    X(quiesce_daemon)                                                                                                  \
    X(get_daemon_info)                                                                                                 \
    X(get_connection_info)                                                                                             \
    X(get_connection_values)                                                                                           \
    X(lookup_connection_value)                                                                                         \
    X(suspend_connection)                                                                                              \
    X(resume_connection)                                                                                               \
    X(create_response_from_buffer)                                                                                     \
    X(create_response_from_callback)                                                                                   \
    X(add_response_header)                                                                                             \
    X(queue_response)                                                                                                  \
    X(destroy_response)

typedef struct {
    void *library;
#define MEMBER(name) __typeof__(&MHD_##name) name;
    MHD_FUNCTIONS(MEMBER)
} mhd_api;

static mhd_api mhd; /* one server per process */

typedef union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} address;

/* A connection, which carries one request at a time. */
typedef struct {
    bool open;
    int fd;
    bool busy;     /* a complete request was read and its answer is not yet sent */
    int64_t since; /* last change of busy */
} connection;

struct http {
    http_options o;
    pthread_mutex_t lock; /* protects the connections, whose sockets are open */
    connection connections[MOST_CONNECTIONS];
    size_t n_connections;
    struct MHD_Daemon *daemon;
    int port, listening; /* listening: listening socket after http_quiesce, closed by http_stop; -1: none */
    int open;            /* number of exchanges in progress */
    bool draining;
    http_counts counts; /* used by the library's thread only */
};

/* A request and its answer. */
typedef struct {
    http *h;
    struct MHD_Connection *c;
    buffer body;
    size_t dropped; /* bytes beyond the maximum body size */
    bool ready, answered;
    int http_status; /* status of the answer; 0: none yet */
    http_route route;
    int64_t began;   /* time of the request's first bytes */
    char client[72]; /* see job_client */
    const char *rest, *origin;
    const char *route_takes; /* method of the path, after 405 */
    api_error error;
    char id[24]; /* request-id in answers of the Messages API */
    job *j;
} exchange;

/* ---- connections ---- */

/* Closes the oldest idle connection to make room for others. */
static void cut_oldest(http *h)
{
    connection *oldest = NULL;
    for (connection *k = h->connections; k < h->connections + MOST_CONNECTIONS; k++)
        if (k->open && !k->busy && (!oldest || k->since < oldest->since)) oldest = k;
    if (!oldest) return;
    shutdown(oldest->fd, SHUT_RDWR);
    oldest->busy = true; /* ignore it from now on */
}

void http_tick(http *h, int64_t now)
{
    pthread_mutex_lock(&h->lock);
    for (connection *k = h->connections; k < h->connections + MOST_CONNECTIONS; k++)
        if (k->open && !k->busy && now - k->since > (int64_t)REQUEST_SECONDS * 1000000000) shutdown(k->fd, SHUT_RDWR);
    pthread_mutex_unlock(&h->lock);
}

static void add_connection(http *h, struct MHD_Connection *c, void **own)
{
    const union MHD_ConnectionInfo *info = mhd.get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    connection *k = h->connections;
    if (!info || h->n_connections == MOST_CONNECTIONS) return;
    while (k->open) k++;
    *k = (connection){.open = true, .fd = info->connect_fd, .since = clock_ns()};
    if (++h->n_connections > MOST_CONNECTIONS - SPARE_CONNECTIONS) cut_oldest(h);
    *own = k;
}

static void remove_connection(http *h, connection *k)
{
    if (!k) return;
    k->open = false;
    h->n_connections--;
}

/* Adds or removes a connection, whose socket is open in both cases. */
static void notify(void *ctx, struct MHD_Connection *c, void **own, enum MHD_ConnectionNotificationCode what)
{
    http *h = ctx;
    pthread_mutex_lock(&h->lock);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) add_connection(h, c, own);
    else remove_connection(h, *own);
    pthread_mutex_unlock(&h->lock);
}

static void set_busy(http *h, struct MHD_Connection *c, bool busy)
{
    const union MHD_ConnectionInfo *info = mhd.get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    connection *k = info ? info->socket_context : NULL;
    if (!k) return;
    pthread_mutex_lock(&h->lock);
    k->busy = busy;
    k->since = clock_ns();
    pthread_mutex_unlock(&h->lock);
}

/* ---- answers ---- */

static const char *header(exchange *x, const char *name)
{
    return mhd.lookup_connection_value(x->c, MHD_HEADER_KIND, name);
}

/* Returns the header names that a preflight request asks for, if they are a list of names. Clients send headers of
 * their own, such as x-stainless-os, and none of them has an effect here. */
static const char *allowed_headers(exchange *x)
{
    const char *asked = header(x, "Access-Control-Request-Headers");
    return asked && asked[strspn(asked, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ")] == 0
               ? asked
               : "authorization, content-type";
}

/* Returns the API of a path, which decides the form of errors. */
static api_style style_of(const exchange *x)
{
    return x->route == ROUTE_MESSAGES || x->route == ROUTE_COUNT ? API_MESSAGES : API_OPENAI;
}

static enum MHD_Result send_response(exchange *x, int http_status, struct MHD_Response *r, const char *type)
{
    if (!r) return MHD_NO;
    mhd.add_response_header(r, "Content-Type", type);
    mhd.add_response_header(r, "Cache-Control", "no-store");
    if (x->origin && x->h->o.cors && strcmp(x->origin, x->h->o.cors) == 0) {
        mhd.add_response_header(r, "Access-Control-Allow-Origin", x->h->o.cors);
        mhd.add_response_header(r, "Access-Control-Allow-Headers", allowed_headers(x));
        mhd.add_response_header(r, "Vary", "Origin");
    }
    if (style_of(x) == API_MESSAGES) mhd.add_response_header(r, "request-id", x->id);
    if (http_status == 405) mhd.add_response_header(r, "Allow", x->route_takes);
    if (http_status == 415) mhd.add_response_header(r, "Accept-Encoding", "identity");
    if (http_status == 401) mhd.add_response_header(r, "WWW-Authenticate", "Bearer");
    if (http_status == 429) mhd.add_response_header(r, "Retry-After", "1");
    if (x->error.code && strcmp(x->error.code, "memory_exceeded") == 0)
        mhd.add_response_header(r, "x-should-retry", "false");
    if (http_status == 413 || http_status == 415 || http_status == 400)
        mhd.add_response_header(r, "Connection", "close");
    enum MHD_Result done = mhd.queue_response(x->c, (unsigned)http_status, r);
    mhd.destroy_response(r);
    x->answered = true;
    x->http_status = http_status;
    return done;
}

/* Sends text, which was allocated with malloc and is freed. */
static enum MHD_Result send_text(exchange *x, int http_status, char *text, const char *type)
{
    if (!text) return MHD_NO;
    struct MHD_Response *r = mhd.create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (!r) free(text);
    return send_response(x, http_status, r, type);
}

/* Sends the page. Its policy allows only its own script and requests to this server. */
static enum MHD_Result send_page(exchange *x)
{
    size_t n;
    char policy[PAGE_POLICY];
    const char *text = page_text(&n);
    struct MHD_Response *r = mhd.create_response_from_buffer(n, (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
    page_policy(policy, true);
    if (r) mhd.add_response_header(r, "Content-Security-Policy", policy);
    if (r) mhd.add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (r) mhd.add_response_header(r, "Referrer-Policy", "no-referrer");
    return send_response(x, 200, r, "text/html; charset=utf-8");
}

static enum MHD_Result send_error(exchange *x, const api_error *e)
{
    x->error = *e;
    return send_text(x, e->http, api_error_styled(e, style_of(x), x->id), "application/json");
}

/* ---- jobs ---- */

static void sleep_now(void *ctx)
{
    exchange *x = ctx;
    mhd.suspend_connection(x->c);
}

static void wake_up(void *ctx)
{
    exchange *x = ctx;
    mhd.resume_connection(x->c);
}

static ssize_t read_stream(void *ctx, uint64_t at, char *out, size_t n)
{
    exchange *x = ctx;
    (void)at;
    long k = job_read(x->j, out, n);
    return k < 0 ? MHD_CONTENT_READER_END_OF_STREAM : (ssize_t)k;
}

/* Sends the answer of a job if it can begin; otherwise the connection sleeps. */
static enum MHD_Result respond(exchange *x)
{
    api_error e;
    size_t n;
    if (!job_start(x->j, &e)) return MHD_YES;
    if (e.http) return send_error(x, &e);
    if (!job_streams(x->j)) {
        const char *text = job_text(x->j, &n);
        return send_response(x, 200, mhd.create_response_from_buffer(n, (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY),
                             "application/json");
    }
    struct MHD_Response *r = mhd.create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, x, NULL);
    if (r) mhd.add_response_header(r, "X-Accel-Buffering", "no");
    return send_response(x, 200, r, x->route == ROUTE_LENS ? "application/x-ndjson" : "text/event-stream");
}

/* Identifies the client by the name of its key or by its address. */
static void name_client(exchange *x, const char *key)
{
    const union MHD_ConnectionInfo *info = mhd.get_connection_info(x->c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const address *a = info ? (const void *)info->client_addr : NULL;
    if (*key) snprintf(x->client, sizeof x->client, "key %s", key);
    else if (a)
        inet_ntop(a->any.sa_family,
                  a->any.sa_family == AF_INET ? (const void *)&a->v4.sin_addr : (const void *)&a->v6.sin6_addr,
                  x->client, sizeof x->client);
}

static job_client client_of(exchange *x)
{
    const union MHD_ConnectionInfo *info = mhd.get_connection_info(x->c, MHD_CONNECTION_INFO_CONNECTION_FD);
    job_client client = {sleep_now, wake_up, x, info ? info->connect_fd : -1, ""};
    memcpy(client.client, x->client, sizeof client.client);
    return client;
}

static const char *body_of(const exchange *x)
{
    return x->body.p ? x->body.p : "";
}

static enum MHD_Result complete(exchange *x)
{
    api_request r;
    api_error e = {0};
    const job_client client = client_of(x);
    api_kind of = x->route == ROUTE_LENS        ? API_LENS
                  : x->route == ROUTE_CHAT      ? API_CHAT
                  : x->route == ROUTE_MESSAGES  ? API_MESSAGE
                  : x->route == ROUTE_RESPONSES ? API_RESPONSE
                                                : API_COMPLETION;
    if (!api_read(&r, of, body_of(x), x->body.n, &x->h->o.rules, &e)) return send_error(x, &e);
    x->j = sched_submit(x->h->o.sched, &r, &client, &e);
    return x->j ? respond(x) : send_error(x, &e);
}

/* ---- requests ---- */

typedef struct {
    int host, length, coding;
} header_counts;

static enum MHD_Result count_header(void *ctx, enum MHD_ValueKind kind, const char *key, const char *value)
{
    header_counts *n = ctx;
    (void)kind;
    (void)value;
    n->host += strcasecmp(key, "Host") == 0;
    n->length += strcasecmp(key, "Content-Length") == 0;
    n->coding += strcasecmp(key, "Transfer-Encoding") == 0;
    return MHD_YES;
}

/* Refuses headers that a proxy could interpret differently (request smuggling). */
static bool check_headers(exchange *x, api_error *e)
{
    header_counts n = {0};
    mhd.get_connection_values(x->c, MHD_HEADER_KIND, count_header, &n);
    if (n.host > 1 || n.length > 1 || n.coding > 1 || (n.length && n.coding))
        return api_fail(e, 400, NULL, "duplicate or conflicting Host, Content-Length or Transfer-Encoding header");
    const char *coding = header(x, "Content-Encoding");
    if (coding && strcasecmp(coding, "identity") != 0)
        return api_fail(e, 415, NULL, "Content-Encoding '%.40s': send the body uncompressed", coding);
    const char *length = header(x, "Content-Length");
    if (length && strtoull(length, NULL, 10) > API_MAX_BODY)
        return api_fail(e, 413, NULL, "body of %.20s bytes, expected at most %d", length, API_MAX_BODY);
    return true;
}

static bool check_names(exchange *x, api_error *e)
{
    const http *h = x->h;
    const char *host = header(x, "Host");
    x->origin = header(x, "Origin");
    if (!http_check_host(&h->o, host))
        return api_fail(e, 421, NULL, "Host '%.80s' is not a name of this server (--host-name adds one)", host);
    if (!http_check_origin(&h->o, h->port, x->origin))
        return api_fail(e, 403, NULL, "Origin '%.80s' is not allowed (--cors allows one)", x->origin);
    return true;
}

static enum MHD_Result send_health(exchange *x)
{
    bool draining = __atomic_load_n(&x->h->draining, __ATOMIC_RELAXED);
    return send_text(x, draining ? 503 : 200, strdup(draining ? "{\"status\":\"draining\"}" : "{\"status\":\"ok\"}"),
                     "application/json");
}

static enum MHD_Result answer(exchange *x)
{
    const http_options *o = &x->h->o;
    const char *type = "application/json";
    api_error e = {0};
    char *text = NULL;
    switch (x->route) {
    case ROUTE_HEALTH: return send_health(x);
    case ROUTE_MODELS:
        text = http_models(o, x->rest, header(x, "anthropic-version") ? API_MESSAGES : API_OPENAI, &e);
        break;
    case ROUTE_METRICS:
        text = http_metrics(&x->h->counts, o->sched);
        type = "text/plain; version=0.0.4";
        break;
    case ROUTE_INFO: text = http_info(o); break;
    case ROUTE_COUNT: text = http_count_tokens(o, API_MESSAGES, body_of(x), x->body.n, &e); break;
    case ROUTE_INPUT_TOKENS: text = http_count_tokens(o, API_RESPONSES, body_of(x), x->body.n, &e); break;
    case ROUTE_HELLO: return send_text(x, 200, strdup("{}"), type);
    case ROUTE_TOKENIZE: text = http_tokenize(o, body_of(x), x->body.n, &e); break;
    case ROUTE_DETOKENIZE: text = http_detokenize(o, body_of(x), x->body.n, &e); break;
    case ROUTE_PAGE: return send_page(x);
    case ROUTE_LENS_MAP:
        text = sched_lens_map(o->sched, x->rest, mhd.lookup_connection_value(x->c, MHD_GET_ARGUMENT_KIND, "s"), &e);
        break;
    default: return complete(x);
    }
    return e.http ? send_error(x, &e) : send_text(x, 200, text, type);
}

/* Checks the key of x-api-key or, without this header, of Authorization. */
static const char *check_key(exchange *x)
{
    char text[512];
    const char *own = header(x, "x-api-key");
    snprintf(text, sizeof text, "Bearer %s", own ? own : "");
    return http_check_key(&x->h->o, own ? text : header(x, "Authorization"));
}

/* Answers a complete request. */
static enum MHD_Result take(exchange *x, const char *method, const char *url)
{
    api_error e = {0};
    x->ready = true;
    set_busy(x->h, x->c, true);
    if (x->dropped) api_fail(&e, 413, NULL, "body of more than %d bytes", API_MAX_BODY);
    else if (check_names(x, &e) && x->origin && x->h->o.cors && strcmp(method, "OPTIONS") == 0)
        return send_text(x, 204, strdup(""), "text/plain");
    if (e.http || !http_find(&x->route, method, url, &x->rest, &x->route_takes, &e)) return send_error(x, &e);
    const char *key = check_key(x);
    if (!key && (x->route == ROUTE_HEALTH || x->route == ROUTE_PAGE || x->route == ROUTE_HELLO)) key = "";
    name_client(x, key ? key : "");
    if (key) return answer(x);
    api_fail(&e, 401, "invalid_api_key", "missing or invalid API key; send Authorization: Bearer KEY");
    return send_error(x, &e);
}

static enum MHD_Result add_body(exchange *x, const char *data, size_t *n)
{
    err e = {0};
    if (x->body.n + *n > API_MAX_BODY) {
        x->dropped += *n;
        *n = 0;
        return x->dropped > 4 * (size_t)API_MAX_BODY ? MHD_NO : MHD_YES;
    }
    status st = buffer_add(&x->body, data, *n, &e);
    *n = 0;
    return st == ST_OK ? MHD_YES : MHD_NO;
}

/* Called with the headers, with each part of the body, after the last part, and when a sleeping connection resumes. */
static enum MHD_Result handle(void *ctx, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *data, size_t *n_data, void **own)
{
    exchange *x = *own;
    (void)version;
    if (!x) {
        err e = {0};
        api_error bad = {0};
        if (MEM_NEW(&x, 1, &e) != ST_OK) return MHD_NO;
        *own = x;
        x->h = ctx;
        x->c = c;
        x->began = clock_ns();
        snprintf(x->id, sizeof x->id, "req_%016" PRIx64, (uint64_t)clock_ns());
        __atomic_add_fetch(&x->h->open, 1, __ATOMIC_RELAXED);
        return check_headers(x, &bad) ? MHD_YES : send_error(x, &bad);
    }
    if (x->answered) return MHD_YES;
    if (*n_data) return add_body(x, data, n_data);
    return x->ready ? respond(x) : take(x, method, url);
}

/* Prints time, client, path, status, token counts and seconds of a request; no text of the client, except for the name
 * of its key. */
static void log_request(const exchange *x)
{
    char what[256] = "", at[32];
    const time_t now = time(NULL);
    struct tm utc;
    strftime(at, sizeof at, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    if (x->j) job_describe(x->j, what, sizeof what);
    fprintf(stderr, "%s %s %s %d%s | %.3f s\n", at, *x->client ? x->client : "-", http_path(x->route),
            x->http_status ? x->http_status : 499, what, (double)(clock_ns() - x->began) / 1e9);
}

static void completed(void *ctx, struct MHD_Connection *c, void **own, enum MHD_RequestTerminationCode why)
{
    exchange *x = *own;
    (void)why;
    if (!x) return;
    set_busy(ctx, c, false);
    if (x->h->o.log) log_request(x);
    if (x->j) job_leave(x->j);
    http_count(&x->h->counts, x->route, x->http_status, x->error.code);
    __atomic_sub_fetch(&x->h->open, 1, __ATOMIC_RELAXED);
    mem_free(x->body.p);
    mem_free(x);
    *own = NULL;
}

/* ---- the server ---- */

static status open_library(err *e)
{
    if (mhd.library) return ST_OK;
    void *library = dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
    if (!library) return err_set(e, ST_UNSUPPORTED, "serve requires libmicrohttpd: %.160s", dlerror());
#define FIND(name)                                                                                                     \
    if (!(*(void **)(void *)&mhd.name = dlsym(library, "MHD_" #name)))                                                 \
        return err_set(e, ST_UNSUPPORTED, "libmicrohttpd has no MHD_" #name);
    MHD_FUNCTIONS(FIND)
    mhd.library = library;
    return ST_OK;
}

static status read_address(address *a, const http_options *o, err *e)
{
    const char *host = strcmp(o->host, "localhost") == 0 ? "127.0.0.1" : o->host;
    const in_port_t port = htons((uint16_t)o->port);
    *a = (address){.v4 = {.sin_family = AF_INET, .sin_port = port}};
    if (inet_pton(AF_INET, host, &a->v4.sin_addr) == 1) return ST_OK;
    *a = (address){.v6 = {.sin6_family = AF_INET6, .sin6_port = port}};
    if (inet_pton(AF_INET6, host, &a->v6.sin6_addr) == 1) return ST_OK;
    return err_set(e, ST_USAGE, "--host %.80s: expected an address such as 127.0.0.1 or ::1", o->host);
}

static void be_quiet(void *ctx, const char *format, va_list args)
{
    (void)ctx;
    (void)format;
    (void)args;
}

status http_start(http **out, const http_options *o, int *port, err *e)
{
    address own;
    http *h;
    *out = NULL;
    TRY(open_library(e));
    TRY(read_address(&own, o, e));
    TRY(MEM_NEW(&h, 1, e));
    h->o = *o;
    h->listening = -1;
    pthread_mutex_init(&h->lock, NULL);
    h->daemon =
        mhd.start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME |
                             MHD_USE_ERROR_LOG | (own.any.sa_family == AF_INET6 ? MHD_USE_IPv6 : 0),
                         0, NULL, NULL, handle, h, MHD_OPTION_EXTERNAL_LOGGER, be_quiet, NULL, MHD_OPTION_SOCK_ADDR,
                         &own.any, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MOST_CONNECTIONS,
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SILENT_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         (size_t)HEADER_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_COMPLETED, completed,
                         h, MHD_OPTION_NOTIFY_CONNECTION, notify, h, MHD_OPTION_END);
    if (!h->daemon) {
        pthread_mutex_destroy(&h->lock);
        mem_free(h);
        return err_set(e, ST_IO, "cannot listen on %.80s port %d: in use or not permitted", o->host, o->port);
    }
    const union MHD_DaemonInfo *info = mhd.get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT);
    h->port = *port = info ? info->port : o->port;
    *out = h;
    return ST_OK;
}

void http_quiesce(http *h)
{
    __atomic_store_n(&h->draining, true, __ATOMIC_RELAXED);
    if (h->listening < 0) h->listening = mhd.quiesce_daemon(h->daemon);
}

void http_stop(http *h)
{
    if (!h) return;
    http_quiesce(h);
    for (int ms = 0; ms < LAST_BYTES_MS && __atomic_load_n(&h->open, __ATOMIC_RELAXED) > 0; ms += 5) poll(NULL, 0, 5);
    mhd.stop_daemon(h->daemon);
    if (h->listening >= 0) close(h->listening);
    pthread_mutex_destroy(&h->lock);
    mem_free(h);
}
