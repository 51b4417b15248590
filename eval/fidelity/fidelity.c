/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/fidelity/fidelity.h"

#include <math.h>

#include "cli/command.h"
#include "eval/provenance.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

/* ---- the text ---- */

enum { MAX_TEXT_BYTES = 1 << 28 };

status fidelity_read_text(token_list *text, char sum[SHA256_HEX], const engine *g, const char *path, unsigned flags,
                          err *e)
{
    const char *dir;
    char *bytes = NULL;
    size_t n = 0;
    TRY(cli_data_dir(&dir, e));
    char *book = path_join(dir, "pg19/10146.txt");
    if (!path) path = book;
    status st = path ? file_read(&bytes, &n, path, MAX_TEXT_BYTES, e) : err_set(e, ST_NOMEM, "out of memory");
    if (st == ST_OK) st = file_sha256(path, sum, e);
    if (st == ST_OK) st = tokenizer_encode(g->tok, bytes, n, flags, text, e);
    mem_free(book);
    mem_free(bytes);
    return st;
}

status fidelity_check_ctx(const token_list *text, const int64_t *ctx, size_t n_ctx, const engine *g, err *e)
{
    for (size_t i = 0; i < n_ctx; i++) {
        if (ctx[i] > (int64_t)text->n)
            return err_set(e, ST_USAGE, "--ctx %lld: the text has only %zu tokens", (long long)ctx[i], text->n);
        cli_warn_ctx(g->m, ctx[i]);
    }
    return ST_OK;
}

const int32_t *fidelity_piece(const token_list *text, size_t n, uint64_t seed, int64_t ctx, size_t trial)
{
    rng random = {seed ^ (uint64_t)ctx << 32 ^ trial};
    return text->ids + rng_below(&random, text->n - n + 1);
}

/* ---- results ---- */

status fidelity_print_number(double x, int width, int decimals, err *e)
{
    return isnan(x) ? out_printf(e, " %*s", width, "-") : out_printf(e, " %*.*f", width, decimals, x);
}

json_t *fidelity_json(json_t *x, bool bad)
{
    if (!bad) return x;
    json_decref(x);
    return NULL;
}

static status run_row(fidelity *f, const fidelity_measure *m, size_t row, err *e)
{
    if (!m->lacks || m->lacks(f, row)) {
        f->bar = progress_start(f->rows.run[row].spec.text);
        status st = m->measure(f, row, e);
        progress_end(f->bar);
        f->bar = NULL;
        TRY(st);
    }
    return m->print(f, row, e);
}

static status run_rows(fidelity *f, const fidelity_measure *m, err *e)
{
    status st = m->head(f, e);
    for (size_t i = 0; i < f->rows.n && st == ST_OK; i++)
        if (f->rows.why[i].code == ST_OK) st = run_row(f, m, i, e);
    if (st != ST_OK) provenance_note_rest(f->out, &f->o->out, m->resume);
    return st;
}

static status report(const fidelity *f, const fidelity_measure *m, err *e)
{
    size_t per_row = m->per_row ? m->per_row(f) : 1;
    TRY(lineup_print_why(&f->rows, e));
    TRY(out_flush(e));
    if (!f->o->out.json) return ST_OK;
    json_t *list = json_array();
    int bad = 0;
    for (size_t i = 0; i < f->rows.n * per_row; i++)
        bad |= json_array_append_new(list, m->json(f, i / per_row, i % per_row));
    list = fidelity_json(list, bad);
    if (!list) return err_set(e, ST_NOMEM, "out of memory for the report");
    return report_write(&f->o->out, &f->g, m->options(f), list, NULL, e);
}

status fidelity_run(fidelity *f, const fidelity_measure *m, err *e)
{
    TRY(m->parse(f, e));
    TRY(engine_find(&f->g, &f->o->engine, true, e));
    cli_catch_interrupt();
    TRY(m->ready(f, e));
    TRY(engine_load(&f->g, 1, e));
    TRY(provenance_open(&f->out, &f->o->out, f->o->seed.value, &f->g, &f->rows, m->config(f), m->identity, e));
    TRY(run_rows(f, m, e));
    return report(f, m, e);
}

void fidelity_close(fidelity *f)
{
    cli_clear_interrupt();
    results_close(f->out);
    lineup_free(&f->rows);
    token_list_free(&f->text);
    engine_close(&f->g);
}

/* ---- the command without a measure ---- */

typedef struct {
    tool_options t;
    const char *measure;
} fidelity_options;

static status cmd_fidelity(void *options, err *e)
{
    const char *name = ((const fidelity_options *)options)->measure;
    return err_set(e, ST_USAGE, "--measure%s%.40s: selection, tokens, text or logits is needed, as the first option",
                   name ? " " : "", name ? name : "");
}

static const cli_option rows[] = {
    OPTION("measure", "selection|tokens|text|logits", TEXT, AT(fidelity_options, measure),
           "the first option: run eval recall, accept, agree or drift, whose options follow"),
    {0}};

const command fidelity_command = {.name = "eval fidelity",
                                  .args = "",
                                  .summary = "how closely strategies follow full attention, by one of four measures",
                                  .own = rows,
                                  .size = sizeof(fidelity_options),
                                  .run = cmd_fidelity};
