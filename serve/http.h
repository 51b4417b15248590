/* SPDX-License-Identifier: MIT */
/* The HTTP side, on libmicrohttpd; a build without it refuses to serve. */
#ifndef SERVE_HTTP_H
#define SERVE_HTTP_H

#include "serve/sched.h"

typedef struct http http;

/* A key that opens the interface: its name, and the SHA-256 of what a client sends. */
typedef struct {
    char name[64], sum[65];
} http_key;

typedef struct {
    const char *host;     /* address to bind; "127.0.0.1" */
    int port;             /* 0: any free one */
    const http_key *keys; /* n_keys 0: everyone may ask */
    size_t n_keys;
    const char *host_name; /* another name that clients may call it by; NULL */
    const char *cors;      /* an origin whose pages may ask; NULL */
    bool strict;           /* unknown fields are refused */
    int64_t created;       /* of the model, in seconds */
    scheduler *sched;
} http_options;

/* Listens. *port gets the port. ST_UNSUPPORTED without libmicrohttpd, ST_IO where the address cannot be had. */
status http_start(http **out, const http_options *o, int *port, err *e);
/* Takes no new connections; requests in progress continue. */
void http_quiesce(http *h);
/* Now and then, with the time (clock_ns): closes connections on which a request takes too long to come. */
void http_tick(http *h, int64_t now);
/* Behind sched_stop: waits for the last bytes for a moment, closes, frees. */
void http_stop(http *h);

/* ---- guard.c: who may ask ---- */

/* Reads lines `name key`; the file must be the user's alone. *out is freed with mem_free. */
status http_read_keys(http_key **out, size_t *n, const char *path, err *e);
void http_make_key(http_key *k, const char *name, const char *secret);
/* The name of the key that an Authorization header has ("" where none is needed), NULL: refused. Takes as long for
 * every key. */
const char *http_check_key(const http_options *o, const char *authorization);
/* True if a Host header names this server, with any port, since a forwarded one has another number (NULL: HTTP/1.0 had
 * none), and an Origin is its own page or --cors. */
bool http_check_host(const http_options *o, const char *host);
bool http_check_origin(const http_options *o, int port, const char *origin);

/* ---- routes.c: answers that need no model; text is freed with free(), NULL: out of memory ---- */

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
    ROUTE_PAGE,
    ROUTE_LENS,
    ROUTE_LENS_MAP,
    N_ROUTES
} http_route;

/* The route of a method and a path; *e: 404 or 405. *rest: what follows the path of a model or a
 * lens. */
bool http_find(http_route *out, const char *method, const char *path, const char **rest, api_error *e);
/* Numbers of requests by route and status, and of refusals by reason; of the thread that talks to clients. */
enum { HTTP_STATUSES = 14, HTTP_REASONS = 6 };
typedef struct {
    int64_t requests[N_ROUTES][HTTP_STATUSES], refused[HTTP_REASONS];
} http_counts;

/* http_status 0: the client left before an answer. code: of an error, or NULL. */
void http_count(http_counts *c, http_route route, int http_status, const char *code);
/* Returns the text of /metrics. */
char *http_metrics(const http_counts *c, scheduler *s);
char *http_models(const http_options *o, const char *id, api_error *e);
char *http_info(const http_options *o);
char *http_tokenize(const http_options *o, const char *body, size_t n, api_error *e);
char *http_detokenize(const http_options *o, const char *body, size_t n, api_error *e);

#endif
