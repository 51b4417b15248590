/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "cli/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/find_model.h"
#include "cli/output.h"
#include "cli/values.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/spin.h"
#include "kernels/ops_weights.h"

/* ---- folders ---- */

enum { PATH_BYTES = 4096 };

/* Writes the program's path, or "" if it is unknown. */
static void program_path(char out[PATH_BYTES])
{
    ssize_t n = readlink("/proc/self/exe", out, PATH_BYTES - 1);
    out[n < 0 ? 0 : n] = 0;
}

/* Removes the last component of a path. */
static void cut_component(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash) *slash = 0;
}

/* Finds a folder of data that has the file `has`: below the prefix of the program, in the source tree if the program is
 * in its build folder, where the program was configured to be installed, and in the source tree of any other copy. */
static bool find_data(char out[PATH_BYTES], const char *installed, const char *source, const char *has)
{
    char prefix[PATH_BYTES];
    program_path(prefix);
    bool built = strncmp(prefix, BUILDDIR "/", sizeof BUILDDIR) == 0;
    cut_component(prefix);
    cut_component(prefix);
    for (int place = 0; place < 4; place++) {
        if (place == 1 && !built) continue;
        if (place == 0) snprintf(out, PATH_BYTES, "%.4000s/share/kvasir/%s", prefix, installed);
        else if (place == 2) snprintf(out, PATH_BYTES, "%s/%s", PKGDATADIR, installed);
        else snprintf(out, PATH_BYTES, "%s/%s", SRCDIR, source);
        char *path = path_join(out, has);
        bool there = path && file_exists(path);
        mem_free(path);
        if (there) return true;
    }
    return false;
}

status cli_model_dir(const char **dir, const char *given, err *e)
{
    static char own[PATH_BYTES];
    static char *found; /* path of the last model that was found by its name or in a folder */
    if (given) {
        mem_free(found);
        found = NULL;
        if (dir_exists(given)) TRY(cli_find_gguf(&found, given, e));
        else if (!file_exists(given)) TRY(cli_find_model(&found, given, e));
        *dir = found ? found : given;
        return ST_OK;
    }
    *dir = own;
    if (find_data(own, "demo", "model/demo", "config.json")) return ST_OK;
    return err_set(e, ST_IO, "built-in model not found in %s; name a model with -m DIR", PKGDATADIR "/demo");
}

status cli_open_tokenizer(tokenizer **out, const char *dir, err *e)
{
    TRY(tokenizer_open(out, dir, e));
    const char *warning = tokenizer_warning(*out);
    if (warning) out_note("warning: %s", warning);
    return ST_OK;
}

status cli_data_dir(const char **dir, err *e)
{
    static char own[PATH_BYTES];
    *dir = own;
    if (find_data(own, "eval", "eval", "DATA.md")) return ST_OK;
    return err_set(e, ST_IO, "evaluation data not found in %s", PKGDATADIR "/eval");
}

void cli_bound_spin(char **argv)
{
    char path[PATH_BYTES];
    program_path(path);
    if (!spin_bound() || !path[0]) return;
    execv(path, argv); /* under its own name, which tools display */
    execv("/proc/self/exe", argv);
}

/* ---- types of weights ---- */

status cli_check_draft_weights(const engine_options *o, err *e)
{
    const char *text = o->draft_weights;
    if (!text) return ST_OK;
    if (strcmp(text, dtype_name(DT_Q8)) != 0 && strcmp(text, dtype_name(DT_Q4)) != 0)
        return err_set(e, ST_USAGE, "--draft-weights: '%.40s' is not one of: q8 q4", text);
    return o->draft ? ST_OK : err_set(e, ST_USAGE, "--draft-weights %s: requires --draft with a strategy", text);
}

status cli_parse_weights(dtype *out, const char *text, err *e)
{
    *out = dtype_named(text);
    if (*out <= DT_Q4) return ST_OK;
    return err_set(e, ST_USAGE, "--weights: '%.40s' is not one of: bf16 f16 f32 q8 q4", text);
}

static void note_line(void *ctx, const char *line)
{
    progress **shown = ctx;
    progress_end(*shown);
    *shown = NULL;
    out_note("%s", line);
}

static bool show_progress(void *ctx, int64_t done, int64_t total)
{
    progress **shown = ctx;
    if (!*shown) *shown = progress_start("converting weights, %");
    progress_set(*shown, 100 * done / total, 100);
    return !cli_interrupted();
}

/* Converts m, or with out a copy of it, to another type by means of the cache file. */
static status convert(model *m, model **out, const model_options *o, weights_options *to, err *e)
{
    char *dir = o->no_cache ? NULL : cli_cache_folder();
    to->cache_dir = dir;
    progress *shown = NULL;
    to->report = note_line;
    to->progress = show_progress;
    to->ctx = &shown;
    status st = out ? model_convert_copy(out, m, to, e) : model_convert(m, to, e);
    progress_end(shown);
    mem_free(dir);
    return st;
}

status cli_convert_weights(model *m, const model_options *o, bool plan, err *e)
{
    weights_options to = {.type = DT_COUNT, .plan = plan};
    if (o->weights) TRY(cli_parse_weights(&to.type, o->weights, e));
    return convert(m, NULL, o, &to, e);
}

/* Returns the bytes of 16 rows of 256 columns. */
static size_t size_of(dtype t)
{
    return weight_bytes(t, QBLOCK_ROWS, QBLOCK_MOST);
}

status cli_draft_type(dtype *out, dtype type, const char *text, err *e)
{
    TRY(cli_parse_weights(out, text, e));
    if (size_of(*out) < size_of(type)) return ST_OK;
    return err_set(e, ST_USAGE, "--draft-weights %s: must be smaller than the model's weights, %s", text,
                   dtype_name(type));
}

/* Makes the model of --draft-weights from g->m, whose matrices are float (plan: any type). type: type of its
 * matrices. */
static status convert_draft(engine *g, dtype type, bool plan, err *e)
{
    weights_options to = {.option = "--draft-weights", .plan = plan};
    if (!g->o.draft_weights) return ST_OK;
    TRY(cli_draft_type(&to.type, type, g->o.draft_weights, e));
    return convert(g->m, &g->draft, &g->o.model, &to, e);
}

/* Converts the matrices to the requested types. Blocks are quantized from the types in the files, which quantizing the
 * model discards: the draft's are then made first. A float type also converts the embedding, which the draft shares:
 * the draft's are then made last. */
static status convert_all(engine *g, err *e)
{
    dtype type = g->m->type;
    if (g->o.model.weights) TRY(cli_parse_weights(&type, g->o.model.weights, e));
    bool first = dtype_in_qblocks(type);
    model_close(g->draft); /* the planned model */
    g->draft = NULL;
    if (first) TRY(convert_draft(g, type, false, e));
    TRY(cli_convert_weights(g->m, &g->o.model, false, e));
    return first ? ST_OK : convert_draft(g, type, false, e);
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
    size_t chunk = (size_t)g->o.device.chunk;
    if (chunk == 0 && g->o.shared) chunk = g->be->ops->short_chunk;
    return (decoder_options){.chunk = chunk,
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

bool cli_context_is_max(const char *text)
{
    return text && strcmp(text, "max") == 0;
}

/* Finds the longest session, and reports it. */
static status find_longest(int64_t *n, const engine *g, const attn_spec *spec, const drafter *d, size_t room, err *e)
{
    const decoder_options o = engine_decoder(g, 1);
    memory_plan p;
    int64_t most = g->m->config.max_positions;
    size_t have = g->be->ops->available(g->be);
    if (room == 0) room = have ? have / 10 * 9 : SIZE_MAX;
    TRY(session_longest(n, g->m, &o, spec, drafter_session(d, most), room, e));
    TRY(session_plan(&p, g->m, &o, spec, drafter_session(d, *n), e));
    out_note("--ctx max: %lld tokens, %s; KV %.1f MB and index %.1f MB of %.1f MB available", (long long)*n,
             *n == most ? "the model's positions" : "as memory allows", (double)p.kv / 1e6, (double)p.index / 1e6,
             (double)have / 1e6);
    return ST_OK;
}

status engine_context(int64_t *n, const engine *g, const attn_spec *spec, const char *text, size_t room, err *e)
{
    const draft_options drafts = engine_drafts(&g->o);
    drafter *d;
    if (!cli_context_is_max(text)) {
        TRY(cli_parse_size(n, text, "--ctx", e));
        return *n >= 1 ? ST_OK : err_set(e, ST_USAGE, "--ctx %s: expected at least 1 token", text);
    }
    TRY(drafter_create(&d, &drafts, spec, e));
    status st = find_longest(n, g, spec, d, room, e);
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
    dtype unused; /* reports an invalid word before anything is read */
    if (o->model.weights) TRY(cli_parse_weights(&unused, o->model.weights, e));
    TRY(cli_check_draft_weights(o, e));
    TRY(cli_model_dir(&dir, o->model.dir, e));
    status st = cli_open_backend(&g->be, &o->device, e);
    if (st == ST_OK) st = model_find(&g->m, dir, NULL, g->be, e);
    if (st == ST_OK && need_tokenizer) st = cli_open_tokenizer(&g->tok, dir, e);
    if (st == ST_OK) st = cli_convert_weights(g->m, &o->model, true, e);
    if (st == ST_OK) st = convert_draft(g, g->m->type, true, e);
    if (st != ST_OK) engine_close(g);
    return st;
}

status engine_load(engine *g, size_t max_batch, err *e)
{
    if (g->dec) return ST_OK;
    TRY(model_load(g->m, e));
    TRY(convert_all(g, e));
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
