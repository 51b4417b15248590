/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/evaluation_table.h"

#include <math.h>
#include <string.h>

#include "kernels/base/mem.h"

enum { NAME_WIDTH = 24, NUMBER_WIDTH = 4, LEAST_WIDTH = 7 };

status evaluation_table_open(evaluation_table *t, const evaluation *ev, err *e)
{
    *t = (evaluation_table){.ev = ev};
    TRY(MEM_NEW(&t->text, 1, e));
    TRY(MEM_NEW(&t->x, ev->rows.n, e));
    table_column(t->text, TABLE_KEY | TABLE_LEFT, NAME_WIDTH, "strategy");
    table_column(t->text, TABLE_KEY, NUMBER_WIDTH, "n");
    for (size_t i = 0; i < ev->rows.n; i++) table_column(t->text, 0, LEAST_WIDTH, ev->rows.run[i].spec.text);
    return ST_OK;
}

void evaluation_table_close(evaluation_table *t)
{
    if (t->text) table_free(t->text);
    mem_free(t->text);
    mem_free(t->x);
    *t = (evaluation_table){0};
}

/* ---- text ---- */

status evaluation_table_head(const evaluation_table *t, err *e)
{
    const lineup *l = &t->ev->rows;
    char budget[24];
    (void)e;
    evaluation_table_name(t, 0, "budget", 0);
    for (size_t i = 0; i < l->n; i++) {
        lineup_budget_text(budget, sizeof budget, &l->run[i].spec);
        table_cell(t->text, "%s", budget);
    }
    evaluation_table_name(t, 0, "budget counts", 0);
    for (size_t i = 0; i < l->n; i++) lineup_counts(&l->run[i].spec, t->text);
    table_line(t->text, "%s", "");
    return ST_OK;
}

void evaluation_table_name(const evaluation_table *t, int indent, const char *name, size_t samples)
{
    table_cell(t->text, "%*s%s", indent, "", name);
    if (samples) table_cell(t->text, "%zu", samples);
    else table_cell(t->text, "%s", "");
}

status evaluation_table_line(const evaluation_table *t, int indent, const char *name, size_t samples, int decimals,
                             err *e)
{
    (void)e;
    evaluation_table_name(t, indent, name, samples);
    for (size_t i = 0; i < t->ev->rows.n; i++) table_number(t->text, t->x[i], decimals);
    return ST_OK;
}

status evaluation_table_end(const evaluation_table *t, err *e)
{
    TRY(table_print(t->text, e));
    TRY(lineup_print_why(&t->ev->rows, e));
    return out_flush(e);
}

/* ---- costs ---- */

void evaluation_costs_add(evaluation_costs *c, const json_t *line)
{
    double attended = results_number(line, "attended");
    c->n++;
    c->seconds += results_number(line, "seconds");
    c->kv_mb += results_number(line, "kv_bytes") / 1e6;
    if (isnan(attended)) return;
    c->n_attended++;
    c->attended += attended;
}

static double mean(double sum, size_t n)
{
    return n ? sum / (double)n : (double)NAN;
}

status evaluation_table_costs(const evaluation_table *t, const evaluation_costs *costs, err *e)
{
    size_t n = t->ev->rows.n;
    for (size_t i = 0; i < n; i++) t->x[i] = mean(costs[i].attended, costs[i].n_attended);
    TRY(evaluation_table_line(t, 0, "tokens attended", 0, 1, e));
    for (size_t i = 0; i < n; i++) t->x[i] = mean(costs[i].kv_mb, costs[i].n);
    TRY(evaluation_table_line(t, 0, "KV MB", 0, 2, e));
    for (size_t i = 0; i < n; i++) t->x[i] = mean(costs[i].seconds, costs[i].n);
    return evaluation_table_line(t, 0, "seconds a sample", 0, 3, e);
}

/* ---- JSON ---- */

json_t *evaluation_row_json(const evaluation *ev, size_t row)
{
    const err *why = &ev->rows.why[row];
    json_t *o = lineup_row_json(&ev->rows.run[row].spec);
    if (o && why->code != ST_OK) json_object_set_new(o, "reason", json_string(why->msg));
    return o;
}

void evaluation_costs_json(json_t *o, const evaluation_costs *c)
{
    json_object_set_new(o, "attended", results_real(mean(c->attended, c->n_attended)));
    json_object_set_new(o, "seconds", results_real(mean(c->seconds, c->n)));
    json_object_set_new(o, "kv_bytes", results_real(mean(c->kv_mb * 1e6, c->n)));
}

status evaluation_report_json(const evaluation *ev, size_t n_samples, json_t *own, json_t *list, json_t *extra, err *e)
{
    const evaluation_options *c = ev->o;
    const prompter *p = &ev->prompter;
    json_t *options =
        json_pack("{s:s, s:I, s:s, s:s, s:b, s:I}", "attn", c->run.attn.names ? c->run.attn.names : "full",
                  "max_length", (json_int_t)p->max_length, "wrap", prompt_wrap_name(p->wrap), "protocol",
                  p->decode ? "decode" : "prefill", "clean_up", p->clean, "limit", (json_int_t)c->limit);
    bool good = options && list && extra && own && json_object_update(options, own) == 0 &&
                json_object_set_new(extra, "samples", json_integer((json_int_t)n_samples)) == 0 &&
                json_object_set_new(extra, "truncated", json_integer((json_int_t)ev->n_truncated)) == 0;
    json_decref(own);
    if (good) return report_write(&c->run.out, &ev->g, options, list, extra, e);
    json_decref(options);
    json_decref(list);
    json_decref(extra);
    return err_set(e, ST_NOMEM, "out of memory for the report");
}
