/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "cli/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/output.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/spin.h"
#include "kernels/ops_weights.h"

/* ---- folders ---- */

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

status cli_model_dir(const char **dir, const char *given, err *e)
{
    static const char *const places[] = {SRCDIR "/model/demo", PKGDATADIR "/demo"};
    if ((*dir = given)) return dir_exists(given) ? ST_OK : err_set(e, ST_IO, "-m %s: no such folder", given);
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

/* ---- types of weights ---- */

status cli_check_draft_weights(const engine_options *o, err *e)
{
    const char *text = o->draft_weights;
    if (!text) return ST_OK;
    if (strcmp(text, dtype_name(DT_Q8)) != 0 && strcmp(text, dtype_name(DT_Q4)) != 0)
        return err_set(e, ST_USAGE, "--draft-weights: '%.40s' is not one of: q8 q4", text);
    return o->draft ? ST_OK : err_set(e, ST_USAGE, "--draft-weights %s: needs --draft with a strategy", text);
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
    (void)ctx;
    out_note("%s", line);
}

/* Converts m, or (out) makes a copy of it in another type, by way of the cache file. */
static status convert(model *m, model **out, const model_options *o, weights_options *to, err *e)
{
    char *dir = o->no_cache ? NULL : cache_folder();
    to->cache_dir = dir;
    to->say = say;
    status st = out ? model_convert_beside(out, m, to, e) : model_convert(m, to, e);
    mem_free(dir);
    return st;
}

status cli_hold_weights(model *m, const model_options *o, bool plan, err *e)
{
    weights_options to = {.plan = plan};
    if (!o->weights) return ST_OK;
    TRY(cli_parse_weights(&to.type, o->weights, e));
    return convert(m, NULL, o, &to, e);
}

/* Bytes of a block. */
static size_t size_of(dtype t)
{
    return weight_bytes(t, QBLOCK_ROWS, QBLOCK_COLS);
}

status cli_draft_type(dtype *out, dtype type, const char *text, err *e)
{
    TRY(cli_parse_weights(out, text, e));
    if (size_of(*out) < size_of(type)) return ST_OK;
    return err_set(e, ST_USAGE, "--draft-weights %s: smaller ones than the model's are expected, which are %s", text,
                   dtype_name(type));
}

/* Makes the model of --draft-weights from g->m, whose matrices are float (plan: of any type). type: in which they are
 * held. */
static status hold_draft(engine *g, dtype type, bool plan, err *e)
{
    weights_options to = {.option = "--draft-weights", .plan = plan};
    if (!g->o.draft_weights) return ST_OK;
    TRY(cli_draft_type(&to.type, type, g->o.draft_weights, e));
    return convert(g->m, &g->draft, &g->o.model, &to, e);
}

/* Matrices in the types that were asked for. Blocks are made of those in the files, which quantizing the model gives
 * up: the draft's come first then. A float type converts the embedding too, which the draft shares: they come last. */
static status hold_all(engine *g, err *e)
{
    dtype type = g->m->type;
    if (g->o.model.weights) TRY(cli_parse_weights(&type, g->o.model.weights, e));
    bool first = dtype_in_qblocks(type);
    model_close(g->draft); /* of the plan */
    g->draft = NULL;
    if (first) TRY(hold_draft(g, type, false, e));
    TRY(cli_hold_weights(g->m, &g->o.model, false, e));
    return first ? ST_OK : hold_draft(g, type, false, e);
}

/* ---- the engine ---- */

bool cli_builtin_gemm(const device_options *o)
{
    return o->gemm && strcmp(o->gemm, "builtin") == 0;
}

status cli_open_backend(backend **be, const device_options *o, err *e)
{
    bool together = o->ranks && (o->ranks->size > 1 || o->tp > 0);
    backend_options b = {
        .device = o->name ? o->name : "auto", .n_threads = o->threads, .ranks = together ? o->ranks : NULL};
    return backend_open(be, &b, e);
}

static void say_start(const engine *g)
{
    char ranks[32] = "", threads[BACKEND_THREADS_TEXT];
    backend_threads_text(threads, g->be);
    if (backend_ranks(g->be) > 1) snprintf(ranks, sizeof ranks, "%d ranks, each ", backend_ranks(g->be));
    out_note("%s: %s, %.1f M parameters, %s | %s: %s%s, %s%s", g->m->name, g->m->config.arch,
             (double)g->m->config.n_params / 1e6, dtype_name(g->m->type), g->be->name, g->be->about,
             cli_builtin_gemm(&g->o.device) ? ", built-in GEMM" : "", ranks, threads);
}

decoder_options engine_decoder(const engine *g, size_t max_batch)
{
    return (decoder_options){.chunk = (size_t)g->o.device.chunk,
                             .max_batch = max_batch,
                             .verify = g->o.draft || g->o.verifies ? SESSION_VERIFY_ROWS : 0,
                             .exact = cli_builtin_gemm(&g->o.device),
                             .draft = g->draft};
}

draft_options engine_drafts(const engine_options *o)
{
    return (draft_options){.spec = o->draft, .name = "--draft", .weights = o->draft_weights, .ranks = o->device.ranks};
}

status engine_check_session(const engine *g, const attn_spec *spec, int64_t n_tokens, err *e)
{
    const decoder_options o = engine_decoder(g, 1);
    const draft_options drafts = engine_drafts(&g->o);
    drafter *d;
    TRY(drafter_create(&d, &drafts, spec, e));
    status st = session_check(g->m, &o, spec, drafter_session(d, n_tokens), e);
    drafter_free(d);
    return st;
}

status engine_open_decoder(engine *g, size_t max_batch, err *e)
{
    const char *gemm = g->o.device.gemm;
    const decoder_options o = engine_decoder(g, max_batch);
    if (gemm && strcmp(gemm, "auto") != 0 && !o.exact)
        return err_set(e, ST_USAGE, "--gemm: '%s' is not one of: auto builtin", gemm);
    TRY(decoder_create(&g->dec, g->m, &o, e));
    say_start(g);
    return ST_OK;
}

status engine_find(engine *g, const engine_options *o, bool need_tokenizer, err *e)
{
    const char *dir;
    *g = (engine){.o = *o};
    dtype unused; /* a wrong word shows before anything is read */
    if (o->model.weights) TRY(cli_parse_weights(&unused, o->model.weights, e));
    TRY(cli_check_draft_weights(o, e));
    TRY(cli_model_dir(&dir, o->model.dir, e));
    status st = cli_open_backend(&g->be, &o->device, e);
    if (st == ST_OK) st = model_find(&g->m, dir, NULL, g->be, e);
    if (st == ST_OK && need_tokenizer) st = tokenizer_open(&g->tok, dir, e);
    if (st == ST_OK) st = cli_hold_weights(g->m, &o->model, true, e);
    if (st == ST_OK) st = hold_draft(g, g->m->type, true, e);
    if (st != ST_OK) engine_close(g);
    return st;
}

status engine_load(engine *g, size_t max_batch, err *e)
{
    if (g->dec) return ST_OK;
    TRY(model_load(g->m, e));
    TRY(hold_all(g, e));
    return engine_open_decoder(g, max_batch, e);
}

status engine_open(engine *g, const engine_options *o, size_t max_batch, bool need_tokenizer, err *e)
{
    TRY(engine_find(g, o, need_tokenizer, e));
    status st = engine_load(g, max_batch, e);
    if (st != ST_OK) engine_close(g);
    return st;
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
