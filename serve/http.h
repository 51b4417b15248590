/* SPDX-License-Identifier: MIT */
/* HTTP server on libmicrohttpd. Builds without it cannot serve. */
#ifndef SERVE_HTTP_H
#define SERVE_HTTP_H

#include "serve/sched.h"

typedef struct http http;

/* API key: its name and the SHA-256 of the secret. */
typedef struct {
    char name[64], sum[65];
} http_key;

typedef struct {
    const char *host;     /* address to bind; "127.0.0.1" */
    int port;             /* 0: any free port */
    const http_key *keys; /* n_keys 0: no key is required */
    size_t n_keys;
    const char *host_name; /* additional accepted Host name; NULL: none */
    const char *names;     /* further accepted names, separated by spaces (http_own_names); NULL: none */
    const char *cors;      /* origin allowed to send requests; NULL: none */
    bool log;              /* print a line to stderr for each request */
    api_rules rules;
    int64_t created; /* creation time of the model, Unix seconds */
    scheduler *sched;
} http_options;

/* Starts the server; *port is the port in use. ST_UNSUPPORTED without libmicrohttpd, ST_IO if the address is
 * unavailable. */
status http_start(http **out, const http_options *o, int *port, err *e);
/* Stops accepting connections; requests in progress continue. */
void http_quiesce(http *h);
/* Closes connections whose request takes too long to arrive. Call it about once a second with clock_ns(). */
void http_tick(http *h, int64_t now);
/* Waits briefly for the last bytes to be sent, then closes and frees. Call it after sched_stop. */
void http_stop(http *h);

/* ---- guard.c: access control ---- */

/* Reads lines `name key` from a file that only its owner may read. Free *out with mem_free. */
status http_read_keys(http_key **out, size_t *n, const char *path, err *e);
void http_make_key(http_key *k, const char *name, const char *secret);
/* Returns the name of the key in an Authorization header, "" if none is required, or NULL if it is refused. Takes the
 * same time for every key. */
const char *http_check_key(const http_options *o, const char *authorization);
/* Writes the host name and the addresses of this machine as in Host headers, separated by spaces, if `host` stands for
 * all addresses (0.0.0.0, ::); else "". */
enum { HTTP_NAMES = 1024 };
void http_own_names(char out[HTTP_NAMES], const char *host);
/* True if a Host header names this server, with any port, since forwarding changes it. NULL (HTTP/1.0) is accepted. An
 * Origin must be the server's own page or that of --cors. */
bool http_check_host(const http_options *o, const char *host);
bool http_check_origin(const http_options *o, int port, const char *origin);

/* ---- routes.c: answers that need no model; text is freed with free(), NULL if out of memory ---- */

typedef enum {
    ROUTE_NONE,
    ROUTE_HEALTH,
    ROUTE_MODELS,
    ROUTE_METRICS,
    ROUTE_INFO,
    ROUTE_TOKENIZE,
    ROUTE_DETOKENIZE,
    ROUTE_COMPLETIONS,
    ROUTE_CHAT,
    ROUTE_MESSAGES,
    ROUTE_COUNT,
    ROUTE_RESPONSES,
    ROUTE_INPUT_TOKENS,
    ROUTE_HELLO,
    ROUTE_PAGE,
    ROUTE_LENS,
    ROUTE_LENS_MAP,
    N_ROUTES
} http_route;

/* Finds the route of a method and a path, which may end with a slash; *e: 404 or 405. *rest: the part of the path after
 * that of a model or a lens. *takes: the method of the path after 405. */
bool http_find(http_route *out, const char *method, const char *path, const char **rest, const char **takes,
               api_error *e);
/* Request counts by route and status, and refusals by reason; owned by libmicrohttpd's thread. */
enum { HTTP_STATUSES = 15, HTTP_REASONS = 6 };
typedef struct {
    int64_t requests[N_ROUTES][HTTP_STATUSES], refused[HTTP_REASONS];
} http_counts;

/* Counts a request. http_status 0: the client left before the answer. code: error code or NULL. */
void http_count(http_counts *c, http_route route, int http_status, const char *code);
/* Returns the path of a route; "other" for unknown paths. */
const char *http_path(http_route route);
/* Returns the text of /metrics. */
char *http_metrics(const http_counts *c, scheduler *s);
char *http_models(const http_options *o, const char *id, api_style style, api_error *e);
char *http_info(const http_options *o);
/* Returns the number of tokens of a request of the Messages or the Responses API. */
char *http_count_tokens(const http_options *o, api_style style, const char *body, size_t n, api_error *e);
char *http_tokenize(const http_options *o, const char *body, size_t n, api_error *e);
char *http_detokenize(const http_options *o, const char *body, size_t n, api_error *e);

#endif
