/* SPDX-License-Identifier: MIT */
/* `eval accept`: the share of a strategy's tokens that full attention would have chosen, at the same random numbers.
 * It needs no task, and no length of drafts: that of any length follows. Source: doc/evals.md 21. */
#include "config.h"

#include "eval/accept/accept.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "eval/provenance.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

/* ---- options ---- */

static status parse_temps(accept_run *r, err *e)
{
    char **word = NULL, *store = NULL;
    status st = cli_split(&word, &r->n_temp, &store, r->o->temp ? r->o->temp : "0,1", e);
    if (st == ST_OK) st = MEM_NEW(&r->temp, r->n_temp, e);
    for (size_t i = 0; i < r->n_temp && st == ST_OK; i++) {
        char *end;
        r->temp[i] = strtod(word[i], &end);
        if (end == word[i] || *end || !(r->temp[i] >= 0 && isfinite(r->temp[i])))
            st = err_set(e, ST_USAGE, "--temp: '%.40s', expected temperatures from 0 on, separated by commas", word[i]);
    }
    mem_free(word);
    mem_free(store);
    return st;
}

static status parse(accept_run *r, err *e)
{
    TRY(parse_temps(r, e));
    TRY(cli_parse_sizes(&r->ctx, &r->n_ctx, r->c->ctx, "2048", "--ctx", e));
    for (size_t i = 0; i < r->n_ctx; i++)
        if (r->ctx[i] < r->o->n + 2)
            return err_set(e, ST_USAGE, "--ctx %lld: at least 2 tokens are needed before the %d of -n",
                           (long long)r->ctx[i], r->o->n);
    return lineup_read_budgets(&r->rows, r->c, "full,streaming,quest,fier", "256", e);
}

static status read_text(accept_run *r, err *e)
{
    char *text;
    size_t n = 0;
    status st = provenance_read_text(&text, &n, r->sha256, r->c, e);
    if (st == ST_OK) st = tokenizer_encode(r->g.tok, text, n, 0, &r->text, e);
    for (size_t i = 0; i < r->n_ctx && st == ST_OK; i++) {
        if (r->ctx[i] > (int64_t)r->text.n)
            st = err_set(e, ST_USAGE, "--ctx %lld: the text has only %zu tokens", (long long)r->ctx[i], r->text.n);
        cli_warn_ctx(r->c, r->g.m, r->ctx[i]);
    }
    mem_free(text);
    return st;
}

/* ---- who can run ---- */

static status can_run(void *ctx, const attn_spec *row, err *why)
{
    const accept_run *r = ctx;
    const decoder_options o = {.chunk = (size_t)r->c->chunk, .verify = ACCEPT_AHEAD};
    int64_t longest = 0;
    accept_pair p;
    for (size_t i = 0; i < r->n_ctx; i++)
        if (r->ctx[i] > longest) longest = r->ctx[i];
    TRY(accept_pair_of(&p, row, accept_limit(r, longest), why));
    return session_check(r->g.m, &o, &p.full, p.size, why);
}

/* ---- results ---- */

static const char *const identity[] = {"attn", "budget", "ctx", "trial", "temp", NULL};

static status open_results(accept_run *r, err *e)
{
    json_t *temps = json_array();
    int bad = 0;
    for (size_t i = 0; i < r->n_temp; i++) bad |= json_array_append_new(temps, json_real(r->temp[i]));
    json_t *own = bad ? NULL
                      : json_pack("{s:o, s:i, s:i, s:o, s:s}", "ctx", report_sizes(r->ctx, r->n_ctx), "trials",
                                  r->o->trials, "n", r->o->n, "temp", temps, "text_sha256", r->sha256);
    return provenance_open(&r->out, r->c, &r->g, &r->rows, own, identity, e);
}

static status run_rows(accept_run *r, err *e)
{
    status st = accept_print_head(r, e);
    for (size_t i = 0; i < r->rows.n && st == ST_OK; i++) {
        if (r->rows.why[i].code != ST_OK) continue;
        r->bar = progress_start(r->c, r->rows.run[i].spec.text);
        st = accept_measure(r, i, e);
        progress_end(r->bar);
        r->bar = NULL;
        if (st == ST_OK) st = accept_print_row(r, i, e);
    }
    if (st != ST_OK && r->c->output && !r->c->quiet)
        fprintf(stderr, "%s: %zu results; the same command goes on from there\n", path_tail(r->c->output),
                results_count(r->out));
    return st;
}

/* ---- the command ---- */

static status evaluate(accept_run *r, err *e)
{
    TRY(parse(r, e));
    TRY(engine_find(&r->g, r->c, true, e));
    cli_catch_interrupt();
    TRY(read_text(r, e));
    TRY(lineup_check_by(&r->rows, can_run, r, e));
    TRY(engine_load(&r->g, r->c, 1, false, e));
    TRY(open_results(r, e));
    TRY(run_rows(r, e));
    return accept_report(r, e);
}

static status cmd_accept(const cli *c, err *e)
{
    accept_run r = {.c = c, .o = c->own};
    status st = evaluate(&r, e);
    cli_clear_interrupt();
    results_close(r.out);
    lineup_free(&r.rows);
    token_list_free(&r.text);
    mem_free(r.ctx);
    mem_free(r.temp);
    engine_close(&r.g);
    return st;
}

static const cli_option options[] = {
    {.letter = 'f', .arg = "FILE", AT(prompt_file), .help = "the text (default: the book of eval pg19)"},
    {.letter = 'n',
     .arg = "N",
     .type = OPTION_WHOLE,
     .min = 1,
     .max = 1 << 20,
     .def = 64,
     AT_OWN(accept_options, n),
     .help = "places at the end of a piece that are drafted from, and new tokens behind it (default 64)"},
    {.name = "trials",
     .arg = "N",
     .type = OPTION_WHOLE,
     .min = 1,
     .max = 100000,
     .def = 4,
     AT_OWN(accept_options, trials),
     .help = "pieces of the text of each length (default 4)"},
    {.name = "temp",
     .arg = "T",
     AT_OWN(accept_options, temp),
     .help = "temperatures, a list; 0 = greedy (default 0,1)"},
    {0}};

const command accept_command = {.name = "eval accept",
                                .args = "",
                                .summary = "how often a strategy's next token is that of full attention, and drafts of "
                                           "any length by it",
                                .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_RESULTS,
                                .own = options,
                                .own_size = sizeof(accept_options),
                                .compares = true,
                                .verifies = true,
                                .alone = true,
                                .run = cmd_accept};
