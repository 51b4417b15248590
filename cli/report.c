/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "cli/report.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/base/file.h"

/* ---- reports ---- */

json_t *tier_json(const tier_counts *c, int64_t steps)
{
    double n = steps > 0 ? (double)steps : 1;
    return json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "file_bytes", (json_int_t)c->in_file,
                     "memory_bytes", (json_int_t)c->here, "memory_bytes_peak", (json_int_t)c->most_here, "read_bytes",
                     (double)c->read / n, "written_bytes", (double)c->written / n, "rows", (double)c->rows / n,
                     "blocks", (double)c->pages / n, "blocks_read", (double)c->missed / n, "blocks_per_row",
                     tier_per_row(c), "hit_rate", tier_hits(c), "stall_ms", (double)c->stall_ns / 1e6 / n);
}

json_t *host_json(const host_counts *c, int64_t steps)
{
    double n = (double)(steps > 0 ? steps : 1);
    return json_pack("{s:I, s:f, s:f, s:f}", "host_bytes", (json_int_t)c->held, "read_bytes", c->read / n,
                     "written_bytes", c->written / n, "hit_rate", host_hits(c));
}

json_t *report_sizes(const int64_t *x, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(a, json_integer(x[i]));
    return a;
}

/* Returns a path as JSON. Bytes that are not UTF-8 are replaced as in error messages. */
static json_t *name_json(const char *path)
{
    char *real = realpath(path, NULL); /* resolves the name of "." or "model/" */
    const char *at = real ? real : path, *slash = strrchr(at, '/'), *name = slash && slash[1] ? slash + 1 : at;
    err shown = {0};
    err_set(&shown, ST_OK, "%s", name);
    json_t *exact = json_string(name);
    free(real);
    return exact ? exact : json_string(shown.msg);
}

json_t *report_model(const char *path)
{
    const char *own;
    if (cli_model_dir(&own, NULL, NULL) == ST_OK && strcmp(own, path) == 0) return json_string("built-in");
    return name_json(path);
}

static json_t *report_object(const char *command, const engine *g, json_t *options, json_t *results, json_t *extra)
{
    json_t *named = report_model(g->m ? g->m->name : g->name);
    json_t *o = json_pack("{s:s, s:s, s:o, s:s?, s:s?, s:o, s:o, s:o}", "command", command, "version", PACKAGE_VERSION,
                          "model", named, "weights", g->m ? dtype_name(g->m->type) : NULL, "device",
                          g->be ? g->be->name : NULL, "threads", g->be ? json_integer(g->be->n_threads) : json_null(),
                          "options", options ? options : json_object(), "results", results);
    if (o && g->be && backend_ranks(g->be) > 1) json_object_set_new(o, "ranks", json_integer(backend_ranks(g->be)));
    if (o && extra) json_object_update(o, extra);
    json_decref(extra);
    return o;
}

static status check_apart(const char *a_option, const char *a, const char *b_option, const char *b, err *e)
{
    struct stat x, y;
    if (!a || !b) return ST_OK;
    bool same = strcmp(a, b) == 0 || (out_is_stdout(a) && out_is_stdout(b)) ||
                (stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino);
    return same ? err_set(e, ST_USAGE, "%s %s: same file as %s", a_option, a, b_option) : ST_OK;
}

status report_check(const result_options *o, err *e)
{
    TRY(check_apart("--json", o->json, "-o", o->output, e));
    TRY(check_apart("--csv", o->csv, "-o", o->output, e));
    TRY(check_apart("--csv", o->csv, "--json", o->json, e));
    if (o->json) TRY(out_file_check("--json", o->json, e));
    return o->csv ? out_file_check("--csv", o->csv, e) : ST_OK;
}

status report_write(const result_options *o, const engine *g, json_t *options, json_t *results, json_t *extra, err *e)
{
    json_t *all = report_object(o->command, g, options, results, extra);
    out_file out;
    status st = all ? ST_OK : err_set(e, ST_NOMEM, "--json: out of memory");
    if (st == ST_OK) st = out_file_open(&out, "--json", o->json, e);
    if (st == ST_OK) {
        const size_t flags = JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9);
        bool good = json_dumpf(all, out.f, flags) == 0 && fputc('\n', out.f) != EOF;
        st = out_file_close(&out, good, e);
    }
    json_decref(all);
    return st;
}

status report_check_end(const result_options *o, status st, err *e)
{
    if (st != ST_INTERRUPTED || !o->json) return st;
    *e = (err){0};
    return err_set(e, st, "interrupted; --json %s was not written", path_tail(o->json));
}
