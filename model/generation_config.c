/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "model/generation_config.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum { MAX_BYTES = 16 << 20, MAX_DEPTH = 32, MAX_TOP_K = 1 << 30 };

/* A key and the number it sets. */
typedef struct {
    const char *key, *option;
    double *to;
    double low, high;
    bool whole;
} row;

static status read_row(const row *r, const json_t *cfg, const char *path, char *text, err *e)
{
    const json_t *v = json_object_get(cfg, r->key);
    if (!v || json_is_null(v)) return ST_OK;
    const double x = json_number_value(v);
    if (!json_is_number(v)) return err_set(e, ST_FORMAT, "%s: %s is not a number", path_tail(path), r->key);
    if (r->whole && x != floor(x))
        return err_set(e, ST_FORMAT, "%s: %s %g: must be an integer", path_tail(path), r->key, x);
    if (!(x >= r->low && x <= r->high))
        return err_set(e, ST_FORMAT, "%s: %s %g: must be from %g to %g", path_tail(path), r->key, x, r->low, r->high);
    *r->to = x;
    const size_t n = strlen(text);
    snprintf(text + n, GENERATION_TEXT - n, "%s%s %g", n ? ", " : "", r->option, x);
    return ST_OK;
}

static status read_config(sampler_options *o, char *text, const json_t *cfg, const char *path, err *e)
{
    double top_k = o->top_k;
    const double least = 1e-9; /* of values that must be above 0 */
    const row rows[] = {{"temperature", "temp", &o->temp, 0, 100, false},
                        {"top_k", "top-k", &top_k, 0, MAX_TOP_K, true},
                        {"top_p", "top-p", &o->top_p, 0, 1, false},
                        {"min_p", "min-p", &o->min_p, 0, 1, false},
                        {"repetition_penalty", "repeat-penalty", &o->repeat_penalty, least, 10, false}};
    const json_t *sample = json_object_get(cfg, "do_sample");
    if (sample && !json_is_boolean(sample) && !json_is_null(sample))
        return err_set(e, ST_FORMAT, "%s: do_sample is not true or false", path_tail(path));
    if (json_is_false(sample)) { /* the other keys then have no meaning */
        o->temp = 0;
        snprintf(text, GENERATION_TEXT, "temp 0");
        return read_row(&rows[4], cfg, path, text, e);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) TRY(read_row(&rows[i], cfg, path, text, e));
    o->top_k = (int)top_k;
    return ST_OK;
}

status generation_config_read(sampler_options *o, char *text, const char *model, err *e)
{
    json_t *cfg = NULL;
    char *path = path_in_model(model, "generation_config.json");
    *text = 0;
    if (!path) return err_set(e, ST_NOMEM, "generation_config.json: out of memory");
    status st = file_exists(path) ? json_read_object(&cfg, path, MAX_BYTES, MAX_DEPTH, e) : ST_OK;
    if (st == ST_OK && cfg) st = read_config(o, text, cfg, path, e);
    json_decref(cfg);
    mem_free(path);
    return st;
}
