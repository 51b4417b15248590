/* SPDX-License-Identifier: MIT */
/* Values of options, and opening what commands need. */
#include "config.h"

#include "cli/cli.h"
#include "generate/drafter.h"
#include "cli/ranks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/spin.h"
#include "kernels/ops_weights.h"

enum { MAX_TEXT_BYTES = 1 << 28 };

status cli_parse_size(int64_t *out, const char *text, const char *option, err *e)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (end != text && (*end == 'k' || *end == 'K')) v *= 1024, end++;
    else if (end != text && (*end == 'm' || *end == 'M')) v *= 1024 * 1024, end++;
    if (end == text || *end || errno || !(v >= 0 && v <= 1e12) || v != (double)(int64_t)v)
        return err_set(e, ST_USAGE, "%s: '%s' is not a size such as 300, 4k or 1M", option, text);
    *out = (int64_t)v;
    return ST_OK;
}

status cli_split(char ***out, size_t *n, char **store, const char *text, err *e)
{
    *out = NULL;
    *n = 0;
    if (!(*store = mem_strdup(text))) return err_set(e, ST_NOMEM, "out of memory");
    size_t commas = 0;
    for (const char *p = text; *p; p++) commas += *p == ',';
    status st = MEM_NEW(out, commas + 1, e);
    if (st != ST_OK) return st;
    for (char *p = *store; p;) {
        char *comma = strchr(p, ',');
        if (comma) *comma++ = 0;
        (*out)[(*n)++] = p;
        p = comma;
    }
    return ST_OK;
}

status cli_each(const char *list, status (*take)(void *ctx, const char *word, err *e), void *ctx, err *e)
{
    char **word = NULL, *store = NULL;
    size_t n = 0;
    status st = cli_split(&word, &n, &store, list, e);
    for (size_t i = 0; i < n && st == ST_OK; i++) st = take(ctx, word[i], e);
    mem_free(word);
    mem_free(store);
    return st;
}

status cli_parse_sizes(int64_t **out, size_t *n, const char *text, const char *def, const char *option, err *e)
{
    char **word = NULL, *store = NULL;
    *out = NULL;
    status st = cli_split(&word, n, &store, text ? text : def, e);
    if (st == ST_OK) st = MEM_NEW(out, *n, e);
    for (size_t i = 0; st == ST_OK && i < *n; i++) st = cli_parse_size(&(*out)[i], word[i], option, e);
    mem_free(word);
    mem_free(store);
    if (st != ST_OK) {
        mem_free(*out);
        *out = NULL;
    }
    return st;
}

/* The strategies of a word of --attn: itself, or with "all" the whole table. Returns their number;
 * out may be NULL. */
static size_t expand(const char **out, const char *word)
{
    const attn_method *const *m = attn_methods();
    bool all = strcmp(word, "all") == 0;
    size_t n = 0;
    for (; all && m[n]; n++)
        if (out) out[n] = attn_method_name(m[n]);
    if (!all && out) out[0] = word;
    return all ? n : 1;
}

const char *cli_skip(const cli *c)
{
    return c->skip ? c->skip : c->compares ? "0" : NULL;
}

status cli_parse_attn(attn_spec **out, size_t *n, const cli *c, const char *def, int64_t budget, err *e)
{
    char **word = NULL, *store = NULL;
    const char **name = NULL;
    size_t n_words = 0;
    kv_tier place;
    attn_options o = {
        .budget = budget < 0 ? 0 : budget, .has_budget = budget >= 0, .skip = cli_skip(c), .certify = c->certify};
    *out = NULL;
    *n = 0;
    /* The parity tool keeps f32 rows unless told otherwise. */
    o.kv = kv_exact(strcmp(c->command, "logits") == 0 ? DT_F32 : DT_F16);
    if (c->kv) TRY(kv_format_parse(&o.kv, c->kv, "--kv", e));
    if (c->kv_tier) {
        TRY(kv_tier_parse(&place, c->kv_tier, e));
        o.tier = &place;
    }
    status st = cli_split(&word, &n_words, &store, c->attn ? c->attn : def, e);
    for (size_t i = 0; i < n_words && st == ST_OK; i++) *n += expand(NULL, word[i]);
    if (st == ST_OK) st = MEM_NEW(&name, *n, e);
    if (st == ST_OK) st = MEM_NEW(out, *n, e);
    for (size_t i = 0, k = 0; st == ST_OK && i < n_words; i++) k += expand(name + k, word[i]);
    for (size_t i = 0; st == ST_OK && i < *n; i++) st = attn_spec_parse(&(*out)[i], name[i], &o, e);
    mem_free(name);
    mem_free(word);
    mem_free(store);
    if (st != ST_OK) {
        mem_free(*out);
        *out = NULL;
    }
    return st;
}

status cli_parse_one_attn(attn_spec *out, const cli *c, err *e)
{
    attn_spec *list;
    size_t n;
    int64_t budget = -1;
    if (c->budget) TRY(cli_parse_size(&budget, c->budget, "--budget", e));
    TRY(cli_parse_attn(&list, &n, c, "full", budget, e));
    *out = list[0];
    mem_free(list);
    return n == 1 ? ST_OK : err_set(e, ST_USAGE, "--attn: %s takes one strategy, found %zu", c->command, n);
}

void cli_warn_length(const cli *c, const model *m, const char *option, int64_t n)
{
    if (n > m->config.max_positions && !c->quiet)
        fprintf(stderr, "warning: %s %lld goes beyond the model's max_position_embeddings of %lld\n", option,
                (long long)n, (long long)m->config.max_positions);
}

void cli_warn_ctx(const cli *c, const model *m, int64_t ctx)
{
    cli_warn_length(c, m, "--ctx", ctx);
}

/* The first of two folders that has the file; NULL: none. */
static const char *first_with(const char *const places[2], const char *file)
{
    for (size_t i = 0; i < 2; i++) {
        char *path = path_join(places[i], file);
        bool there = path && file_exists(path);
        mem_free(path);
        if (there) return places[i];
    }
    return NULL;
}

status cli_model_dir(const cli *c, const char **dir, err *e)
{
    static const char *const places[] = {SRCDIR "/model/demo", PKGDATADIR "/demo"};
    if (c->model) {
        *dir = c->model;
        if (!dir_exists(*dir)) return err_set(e, ST_IO, "-m %s: no such folder", *dir);
        return ST_OK;
    }
    if ((*dir = first_with(places, "config.json"))) return ST_OK;
    return err_set(e, ST_IO, "the built-in model is not there (looked for %s); name a model with -m DIR", places[1]);
}

status cli_data_dir(const char **dir, err *e)
{
    static const char *const places[] = {SRCDIR "/eval", PKGDATADIR "/eval"};
    if ((*dir = first_with(places, "DATA.md"))) return ST_OK;
    return err_set(e, ST_IO, "the evaluation data is not there (looked for %s)", places[1]);
}

void cli_bound_spin(char **argv)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    if (!spin_bound() || n < 0 || (size_t)n == sizeof path) return;
    path[n] = 0;
    execv(path, argv); /* by its own name, which tools show */
    execv("/proc/self/exe", argv);
}

status cli_open_backend(backend **be, const cli *c, err *e)
{
    bool together = c->ranks && (c->ranks->size > 1 || c->tp > 0);
    backend_options o = {
        .device = c->device ? c->device : "auto", .n_threads = c->threads, .ranks = together ? c->ranks : NULL};
    return backend_open(be, &o, e);
}

static void say_start(const engine *g, const cli *c, bool exact)
{
    if (c->quiet) return;
    char ranks[32] = "", threads[BACKEND_THREADS_TEXT];
    backend_threads_text(threads, g->be);
    if (backend_ranks(g->be) > 1) snprintf(ranks, sizeof ranks, "%d ranks, each ", backend_ranks(g->be));
    fprintf(stderr, "%s: %s, %.1f M parameters, %s | %s: %s%s, %s%s\n", g->m->name, g->m->config.arch,
            (double)g->m->config.n_params / 1e6, dtype_name(g->m->type), g->be->name, g->be->about,
            exact ? ", built-in GEMM" : "", ranks, threads);
}

size_t cli_verify_rows(const cli *c)
{
    return c->draft || c->verifies ? SESSION_VERIFY_ROWS : 0;
}

status engine_open_decoder(engine *g, const cli *c, size_t max_batch, bool exact_by_default, err *e)
{
    bool exact = exact_by_default;
    if (c->gemm && strcmp(c->gemm, "builtin") == 0) exact = true;
    else if (c->gemm && strcmp(c->gemm, "auto") == 0) exact = false;
    else if (c->gemm) return err_set(e, ST_USAGE, "--gemm: '%s' is not one of: auto builtin", c->gemm);
    decoder_options o = {.chunk = (size_t)c->chunk,
                         .max_batch = max_batch,
                         .verify = cli_verify_rows(c),
                         .exact = exact,
                         .draft = g->draft};
    TRY(decoder_create(&g->dec, g->m, &o, e));
    say_start(g, c, exact);
    return ST_OK;
}

status engine_find(engine *g, const cli *c, bool need_tokenizer, err *e)
{
    const char *dir;
    *g = (engine){0};
    dtype unused; /* a wrong word shows before anything is read */
    if (c->weights) TRY(cli_parse_weights(&unused, c->weights, e));
    TRY(cli_check_draft_weights(c, e));
    TRY(cli_model_dir(c, &dir, e));
    status st = cli_open_backend(&g->be, c, e);
    if (st == ST_OK) st = model_find(&g->m, dir, NULL, g->be, e);
    if (st == ST_OK && need_tokenizer) st = tokenizer_open(&g->tok, dir, e);
    if (st == ST_OK) st = cli_hold_weights(g->m, c, true, e);
    if (st == ST_OK) st = cli_hold_draft(&g->draft, g->m, g->m->type, c, true, e);
    if (st != ST_OK) engine_close(g);
    return st;
}

/* Matrices in the types that were asked for. Blocks are made of those in the files, which quantizing the model gives
 * up: the draft's come first then. A float type converts the embedding too, which the draft shares: they come last. */
static status hold_all(engine *g, const cli *c, err *e)
{
    dtype type = g->m->type;
    if (c->weights) TRY(cli_parse_weights(&type, c->weights, e));
    bool first = dtype_in_qblocks(type);
    model_close(g->draft); /* of the plan */
    g->draft = NULL;
    if (first) TRY(cli_hold_draft(&g->draft, g->m, type, c, false, e));
    TRY(cli_hold_weights(g->m, c, false, e));
    return first ? ST_OK : cli_hold_draft(&g->draft, g->m, type, c, false, e);
}

status engine_load(engine *g, const cli *c, size_t max_batch, bool exact_by_default, err *e)
{
    if (g->dec) return ST_OK;
    TRY(model_load(g->m, e));
    TRY(hold_all(g, c, e));
    return engine_open_decoder(g, c, max_batch, exact_by_default, e);
}

status engine_open(engine *g, const cli *c, size_t max_batch, bool exact_by_default, bool need_tokenizer, err *e)
{
    TRY(engine_find(g, c, need_tokenizer, e));
    status st = engine_load(g, c, max_batch, exact_by_default, e);
    if (st != ST_OK) engine_close(g);
    return st;
}

status cli_check_template(const cli *c, err *e)
{
    const char *const *name = chat_template_names();
    char list[160] = "";
    size_t n = 0;
    if (!c->template_name) return ST_OK;
    for (; *name && n < sizeof list; name++) {
        if (strcmp(*name, c->template_name) == 0) return ST_OK;
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", *name);
    }
    return err_set(e, ST_USAGE, "--template: unknown template '%.40s' (%s)", c->template_name, list);
}

status cli_read_text(char **text, size_t *n, const cli *c, err *e)
{
    *text = NULL;
    if (c->prompt) {
        *n = strlen(c->prompt);
        *text = mem_strdup(c->prompt);
        return *text ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
    }
    if (c->prompt_file) return file_read(text, n, c->prompt_file, MAX_TEXT_BYTES, e);
    if (!c->ranks || c->ranks->rank == 0) TRY(file_read_stream(text, n, stdin, "standard input", MAX_TEXT_BYTES, e));
    return ranks_share_text(c->ranks, text, n, e);
}

void engine_close(engine *g)
{
    decoder_free(g->dec);
    tokenizer_free(g->tok);
    model_close(g->draft);
    model_close(g->m);
    backend_close(g->be);
    *g = (engine){0};
}
