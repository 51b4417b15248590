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

status cli_check_template(const char *name, err *e)
{
    const char *const *known = chat_template_names();
    char list[160] = "";
    size_t n = 0;
    if (!name) return ST_OK;
    for (; *known && n < sizeof list; known++) {
        if (strcmp(*known, name) == 0) return ST_OK;
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", *known);
    }
    return err_set(e, ST_USAGE, "--template: unknown template '%.40s' (%s)", name, list);
}

status cli_read_text(char **text, size_t *n, const prompt_source *p, comm *ranks, err *e)
{
    *text = NULL;
    if (p->text) {
        *n = strlen(p->text);
        *text = mem_strdup(p->text);
        return *text ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
    }
    if (p->file) return file_read(text, n, p->file, MAX_TEXT_BYTES, e);
    if (!ranks || ranks->rank == 0) TRY(file_read_stream(text, n, stdin, "standard input", MAX_TEXT_BYTES, e));
    return ranks_share_text(ranks, text, n, e);
}

status cli_parse_prefix(char **dir, uint64_t *bytes, const char *text, err *e)
{
    int64_t size = (int64_t)8192 << 20;
    const char *colon = strrchr(text, ':');
    err why = {0};
    *dir = NULL;
    if (colon && strchr(colon, '/')) colon = NULL;
    if (colon && (cli_parse_size(&size, colon + 1, "--prefix-disk", &why) != ST_OK || size < 1))
        return err_set(e, ST_USAGE, "--prefix-disk: '%.40s' behind the folder, expected a size such as 500M",
                       colon + 1);
    if (colon == text || !*text) return err_set(e, ST_USAGE, "--prefix-disk: '%.40s' names no folder", text);
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
    if (ctx) TRY(cli_parse_size(&o.ctx, ctx, "--ctx", e));
    TRY(cli_parse_prefix(&dir, &o.disk, a->disk, e));
    o.dir = dir;
    prefix_small_pages();
    status st = prefix_cache_open(out, &o, g->dec, e);
    mem_free(dir);
    return st;
}
