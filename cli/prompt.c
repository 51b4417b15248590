/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "cli/prompt.h"

#include <stdio.h>
#include <string.h>

#include "cli/output.h"
#include "cli/ranks.h"
#include "cli/values.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

enum { MAX_TEXT_BYTES = 1 << 28 };

/* Adds K=V to the arguments: V as JSON, else as text. */
static status add_argument(json_t *args, const char *text, err *e)
{
    const char *equals = strchr(text, '=');
    char *key = mem_strdup(text);
    if (!key) return err_set(e, ST_NOMEM, "out of memory");
    if (equals) key[equals - text] = 0;
    json_t *v = equals ? json_loads(equals + 1, JSON_DECODE_ANY, NULL) : NULL;
    if (equals && !v) v = json_string(equals + 1);
    const bool good = v && *key && json_object_set_new(args, key, v) == 0;
    mem_free(key);
    return good ? ST_OK : err_set(e, ST_USAGE, "--template-arg %.60s: expected NAME=VALUE", text);
}

status cli_template_args(json_t **out, const template_options *o, err *e)
{
    status st = (*out = json_object()) ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
    for (int i = 0; i < o->args.n && st == ST_OK; i++) st = add_argument(*out, o->args.text[i], e);
    if (st == ST_OK) return ST_OK;
    json_decref(*out);
    *out = NULL;
    return st;
}

status cli_set_template(tokenizer *t, const template_options *o, err *e)
{
    json_t *args;
    TRY(cli_template_args(&args, o, e));
    status st = tokenizer_set_template_args(t, args, e);
    json_decref(args);
    return st == ST_OK ? tokenizer_set_template(t, o->name, e) : st;
}

status cli_read_text(char **text, size_t *n, const prompt_source *p, comm *ranks, err *e)
{
    *text = NULL;
    if (p->text) {
        *n = strlen(p->text);
        *text = mem_strdup(p->text);
        return *text ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
    }
    if (!ranks || ranks->rank == 0) TRY(file_read_text(text, n, p->file ? p->file : "-", MAX_TEXT_BYTES, e));
    return ranks_broadcast_text(ranks, text, n, e);
}

status cli_parse_prefix(char **dir, uint64_t *bytes, const char *text, err *e)
{
    int64_t size = (int64_t)8192 << 20;
    const char *colon = strrchr(text, ':');
    err why = {0};
    *dir = NULL;
    if (colon && strchr(colon, '/')) colon = NULL;
    if (colon && (cli_parse_size(&size, colon + 1, "--prefix-disk", &why) != ST_OK || size < 1))
        return err_set(e, ST_USAGE, "--prefix-disk: '%.40s' after the folder, expected a size such as 500M", colon + 1);
    if (colon == text || !*text) return err_set(e, ST_USAGE, "--prefix-disk: '%.40s': missing folder name", text);
    if (!(*dir = mem_strdup(text))) return err_set(e, ST_NOMEM, "out of memory");
    if (colon) (*dir)[colon - text] = 0;
    *bytes = (uint64_t)size;
    return ST_OK;
}

static void print_line(void *ctx, const char *line)
{
    (void)ctx;
    fprintf(stderr, "%s\n", line);
}

prefix_log cli_prefix_log(void)
{
    return (prefix_log){.name = "--prefix-disk", .line = print_line};
}

status cli_check_prefix(const char *text, const comm *ranks, err *e)
{
    char *dir;
    uint64_t bytes;
    TRY(ranks_refuse(ranks, "--prefix-disk", e));
    TRY(cli_parse_prefix(&dir, &bytes, text, e));
    status st = prefix_disk_check(dir, "--prefix-disk", e);
    mem_free(dir);
    return st;
}

status cli_check_reuse(const engine_options *o, const attn_spec *spec, err *e)
{
    const draft_options drafts = engine_drafts(o);
    drafter *d;
    TRY(drafter_create(&d, &drafts, spec, e));
    status st = prefix_cache_check(spec, drafter_session(d, 0).draft, "--prefix-disk", e);
    drafter_free(d);
    return st;
}

status cli_open_prefix(prefix_cache **out, const prefix_args *a, const char *ctx, const engine *g, err *e)
{
    char *dir;
    prefix_cache_options o = {.log = cli_prefix_log(),
                              .memory = SIZE_MAX,
                              .ctx = g->m->config.max_positions,
                              .least = (size_t)a->least,
                              .exact = cli_builtin_gemm(&g->o.device),
                              .quiet = out_is_quiet()};
    *out = NULL;
    if (!a->disk) return ST_OK;
    if (ctx && !cli_context_is_max(ctx)) TRY(cli_parse_size(&o.ctx, ctx, "--ctx", e));
    TRY(cli_parse_prefix(&dir, &o.disk, a->disk, e));
    o.dir = dir;
    prefix_small_pages();
    status st = prefix_cache_open(out, &o, g->dec, e);
    mem_free(dir);
    return st;
}
