/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/measure.h"

#include "eval/provenance.h"

/* ---- results ---- */

/* Returns {"attn", "budget"} and the members of `own`. Takes ownership of `own`. */
static json_t *with_row(const measure *m, size_t row, json_t *own)
{
    const attn_spec *spec = &m->rows.run[row].spec;
    return results_merge(json_pack("{s:s, s:o}", "attn", spec->text, "budget", lineup_budget_json(spec)), own);
}

const json_t *measure_result(const measure *m, size_t row, json_t *identity)
{
    return results_find(m->out, with_row(m, row, identity));
}

status measure_add(measure *m, size_t row, json_t *line, err *e)
{
    return results_add(m->out, with_row(m, row, line), e);
}

json_t *measure_row_json(const measure *m, size_t row, json_t *own)
{
    const err *why = &m->rows.why[row];
    json_t *o = results_merge(lineup_row_json(&m->rows.run[row].spec), own);
    return why->code == ST_OK ? o : results_merge(o, json_pack("{s:s}", "reason", why->msg));
}

/* ---- the run ---- */

static status run_pass(measure *m, const measure_kind *kind, size_t i, err *e)
{
    if (!kind->lacks || kind->lacks(m, i)) {
        m->bar = progress_start(kind->passes ? m->o->out.command : m->rows.run[i].spec.text);
        status st = kind->run(m, i, e);
        progress_end(m->bar);
        m->bar = NULL;
        TRY(st);
    }
    if (kind->print) TRY(kind->print(m, i, e));
    return out_flush(e);
}

static status run_passes(measure *m, const measure_kind *kind, err *e)
{
    size_t n = kind->passes ? kind->passes(m) : m->rows.n;
    status st = kind->head ? kind->head(m, e) : ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++)
        if (kind->passes || m->rows.why[i].code == ST_OK) st = run_pass(m, kind, i, e);
    if (st != ST_OK && kind->identity) provenance_note_rest(m->out, &m->o->out, kind->resume);
    return st;
}

static status open_results(measure *m, const measure_kind *kind, err *e)
{
    json_t *config = kind->config(m);
    if (kind->output_config) config = results_merge(config, kind->output_config(m));
    return provenance_open(&m->out, &m->o->out, m->o->seed.value, &m->g, &m->rows, config, kind->identity, e);
}

static status run_all(measure *m, const measure_kind *kind, err *e)
{
    const engine_options *o = &m->o->engine;
    TRY(lineup_read_budgets(&m->rows, &m->o->attn, kind->attn, kind->budget, e));
    TRY(kind->parse(m, e));
    TRY(m->no_model ? cli_open_backend(&m->g.be, &o->device, e) : engine_find(&m->g, o, true, e));
    cli_catch_interrupt();
    TRY(kind->ready(m, e));
    if (m->g.m) TRY(engine_load(&m->g, kind->together ? m->rows.n : 1, e));
    if (kind->identity) TRY(open_results(m, kind, e));
    TRY(run_passes(m, kind, e));
    if (m->table.n_columns) TRY(table_print(&m->table, e));
    if (kind->end) TRY(kind->end(m, e));
    else if (!kind->passes) TRY(lineup_print_why(&m->rows, e));
    TRY(out_flush(e));
    if (!m->o->out.json) return ST_OK;
    return report_write(&m->o->out, &m->g, results_merge(kind->config(m), kind->json_config(m)), kind->results(m),
                        kind->extra ? kind->extra(m) : NULL, e);
}

status measure_run(measure *m, const measure_kind *kind, err *e)
{
    const status st = run_all(m, kind, e);
    return provenance_end(m->out, &m->o->out, &m->g, st, e);
}

void measure_close(measure *m)
{
    cli_clear_interrupt();
    table_free(&m->table);
    results_close(m->out);
    lineup_free(&m->rows);
    engine_close(&m->g);
}
