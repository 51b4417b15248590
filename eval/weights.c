/* SPDX-License-Identifier: MIT */
/* --weights: in which type matrices are held, and where quantized ones are kept. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "eval/cli.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

status cli_parse_weights(dtype *out, const char *text, err *e)
{
    for (dtype t = DT_F32; t < DT_COUNT; t++)
        if (strcmp(text, dtype_name(t)) == 0) {
            *out = t;
            return ST_OK;
        }
    return err_set(e, ST_USAGE, "--weights: '%.40s' is not one of: bf16 f16 f32 q8 q4", text);
}

/* $XDG_CACHE_HOME/kvasir, or ~/.cache/kvasir; NULL: neither is known. mem_free. A path that is not
 * absolute is ignored, as the XDG base directory specification says. */
static char *cache_folder(void)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *base = NULL, *dir = NULL;
    if (xdg && xdg[0] == '/') return path_join(xdg, "kvasir");
    if (home && home[0] == '/') base = path_join(home, ".cache");
    if (base) dir = path_join(base, "kvasir");
    mem_free(base);
    return dir;
}

static void say(void *ctx, const char *line)
{
    const cli *c = ctx;
    if (!c->quiet) fprintf(stderr, "%s\n", line);
}

status cli_hold_weights(model *m, const cli *c, bool plan, err *e)
{
    weights_options o = {.plan = plan, .say = say, .ctx = (void *)(uintptr_t)c};
    char *dir = NULL;
    if (!c->weights) return ST_OK;
    TRY(cli_parse_weights(&o.type, c->weights, e));
    if (!c->no_weights_cache) dir = cache_folder();
    o.cache_dir = dir;
    status st = model_hold(m, &o, e);
    mem_free(dir);
    return st;
}
