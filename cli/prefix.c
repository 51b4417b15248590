/* SPDX-License-Identifier: MIT */
/* --prefix-disk and --draft: what generate/ takes, from options. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "kernels/base/mem.h"

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

status cli_check_prefix(const char *text, err *e)
{
    char *dir;
    uint64_t bytes;
    TRY(cli_parse_prefix(&dir, &bytes, text, e));
    status st = prefix_disk_check(dir, "--prefix-disk", e);
    mem_free(dir);
    return st;
}

status cli_open_prefix(prefix_cache **out, const cli *c, const engine *g, err *e)
{
    char *dir;
    prefix_cache_options o = {.log = cli_prefix_log(),
                              .memory = SIZE_MAX,
                              .ctx = g->m->config.max_positions,
                              .least = (size_t)c->prefix_min,
                              .exact = c->gemm && strcmp(c->gemm, "builtin") == 0,
                              .quiet = c->quiet};
    *out = NULL;
    if (!c->prefix_disk) return ST_OK;
    if (c->ctx) TRY(cli_parse_size(&o.ctx, c->ctx, "--ctx", e));
    TRY(cli_parse_prefix(&dir, &o.disk, c->prefix_disk, e));
    o.dir = dir;
    prefix_small_pages();
    status st = prefix_cache_open(out, &o, g->dec, e);
    mem_free(dir);
    return st;
}

draft_options cli_drafts(const cli *c)
{
    return (draft_options){.spec = c->draft, .name = "--draft", .weights = c->draft_weights, .ranks = c->ranks};
}
