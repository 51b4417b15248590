/* SPDX-License-Identifier: MIT */
/* Stubs of a build without libmicrohttpd. */
#include "config.h"

#include "serve/http.h"

status http_start(http **out, const http_options *o, int *port, err *e)
{
    (void)o;
    *out = NULL;
    *port = 0;
    return err_set(e, ST_UNSUPPORTED, "built without libmicrohttpd; serve is unavailable");
}

void http_quiesce(http *h)
{
    (void)h;
}

void http_stop(http *h)
{
    (void)h;
}

void http_tick(http *h, int64_t now)
{
    (void)h;
    (void)now;
}
