/* SPDX-License-Identifier: MIT */
/* --weights: in which type matrices are held, and where quantized ones are kept. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/ops_weights.h"

status cli_check_draft_weights(const cli *c, err *e)
{
    const char *text = c->draft_weights;
    if (!text) return ST_OK;
    if (strcmp(text, dtype_name(DT_Q8)) != 0 && strcmp(text, dtype_name(DT_Q4)) != 0)
        return err_set(e, ST_USAGE, "--draft-weights: '%.40s' is not one of: q8 q4", text);
    return c->draft ? ST_OK : err_set(e, ST_USAGE, "--draft-weights %s: needs --draft with a strategy", text);
}

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

/* The folder of files that hold quantized weights; NULL: none, or not wanted. mem_free. */
static char *cache_of(const cli *c)
{
    return c->no_weights_cache ? NULL : cache_folder();
}

status cli_hold_weights(model *m, const cli *c, bool plan, err *e)
{
    weights_options o = {.plan = plan, .say = say, .ctx = (void *)(uintptr_t)c};
    if (!c->weights) return ST_OK;
    TRY(cli_parse_weights(&o.type, c->weights, e));
    char *dir = cache_of(c);
    o.cache_dir = dir;
    status st = model_convert(m, &o, e);
    mem_free(dir);
    return st;
}

/* Bytes of a block. */
static size_t size_of(dtype t)
{
    return weight_bytes(t, QBLOCK_ROWS, QBLOCK_COLS);
}

status cli_draft_type(dtype *out, dtype type, const cli *c, err *e)
{
    TRY(cli_parse_weights(out, c->draft_weights, e));
    if (size_of(*out) < size_of(type)) return ST_OK;
    return err_set(e, ST_USAGE, "--draft-weights %s: smaller ones than the model's are expected, which are %s",
                   c->draft_weights, dtype_name(type));
}

status cli_hold_draft(model **out, const model *m, dtype type, const cli *c, bool plan, err *e)
{
    weights_options o = {.option = "--draft-weights", .plan = plan, .say = say, .ctx = (void *)(uintptr_t)c};
    *out = NULL;
    if (!c->draft_weights) return ST_OK;
    TRY(cli_draft_type(&o.type, type, c, e));
    char *dir = cache_of(c);
    o.cache_dir = dir;
    status st = model_convert_beside(out, m, &o, e);
    mem_free(dir);
    return st;
}
