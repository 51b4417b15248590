/* SPDX-License-Identifier: MIT */
/* `eval accept`: the share of a strategy's tokens that full attention would have chosen, at the same random numbers.
 * It needs no task, and no length of drafts: that of any length follows. Source: doc/evals.md 21. */
#include "config.h"

#include "eval/fidelity/accept.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
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

static status parse(void *own, err *e)
{
    accept_run *r = own;
    TRY(parse_temps(r, e));
    TRY(cli_parse_sizes(&r->ctx, &r->n_ctx, r->f.c->ctx, "2048", "--ctx", e));
    for (size_t i = 0; i < r->n_ctx; i++)
        if (r->ctx[i] < r->o->n + 2)
            return err_set(e, ST_USAGE, "--ctx %lld: at least 2 tokens are needed before the %d of -n",
                           (long long)r->ctx[i], r->o->n);
    return lineup_read_budgets(&r->f.rows, r->f.c, "full,streaming,quest,fier", "256", e);
}

/* ---- who can run ---- */

static status can_run(void *ctx, const attn_spec *row, err *why)
{
    const accept_run *r = ctx;
    const decoder_options o = {.chunk = (size_t)r->f.c->chunk, .verify = ACCEPT_AHEAD};
    int64_t longest = 0;
    accept_pair p;
    for (size_t i = 0; i < r->n_ctx; i++)
        if (r->ctx[i] > longest) longest = r->ctx[i];
    TRY(accept_pair_of(&p, row, accept_limit(r, longest), why));
    return session_check(r->f.g.m, &o, &p.full, p.size, why);
}

static status ready(void *own, err *e)
{
    accept_run *r = own;
    fidelity *f = &r->f;
    TRY(fidelity_read_text(&f->text, f->sha256, &f->g, f->c, 0, e));
    TRY(fidelity_check_ctx(&f->text, r->ctx, r->n_ctx, &f->g, f->c, e));
    return lineup_check_by(&f->rows, can_run, r, e);
}

/* ---- the command ---- */

static json_t *config(const void *own)
{
    const accept_run *r = own;
    json_t *temps = json_array();
    int bad = 0;
    for (size_t i = 0; i < r->n_temp; i++) bad |= json_array_append_new(temps, json_real(r->temp[i]));
    temps = fidelity_json(temps, bad);
    return temps ? json_pack("{s:o, s:i, s:i, s:o, s:s}", "ctx", report_sizes(r->ctx, r->n_ctx), "trials", r->o->trials,
                             "n", r->o->n, "temp", temps, "text_sha256", r->f.sha256)
                 : NULL;
}

static const char *const identity[] = {"attn", "budget", "ctx", "trial", "temp", NULL};

static const fidelity_measure accept_kind = {.identity = identity,
                                             .resume = "from there",
                                             .parse = parse,
                                             .ready = ready,
                                             .config = config,
                                             .head = accept_print_head,
                                             .measure = accept_measure,
                                             .print = accept_print_row,
                                             .per_row = accept_per_row,
                                             .json = accept_row_json,
                                             .options = accept_options_json};

static status cmd_accept(const cli *c, err *e)
{
    accept_run r = {.f.c = c, .o = c->own};
    status st = fidelity_run(&r.f, &accept_kind, e);
    fidelity_close(&r.f);
    mem_free(r.ctx);
    mem_free(r.temp);
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
                                .measure = "tokens",
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
