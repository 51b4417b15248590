/* SPDX-License-Identifier: MIT */
/* `eval drift`: does a long generation stay as good and as fast as it began? Of each strategy, for every interval of
 * new tokens: speed, memory, bytes read, and what is selected against exact attention. Source: doc/evals.md 20. */
#include "config.h"

#include <string.h>

#include "cli/command.h"
#include "eval/drift/drift.h"
#include "eval/provenance.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

/* ---- options ---- */

static status parse_sizes(drift_run *r, err *e)
{
    int64_t prompt;
    const drift_options *o = r->o;
    TRY(cli_parse_size(&r->n, o->n ? o->n : "32k", "-n", e));
    TRY(cli_parse_size(&r->every, o->every ? o->every : "1024", "--every", e));
    r->compare = 4 * r->every;
    if (o->compare) TRY(cli_parse_size(&r->compare, o->compare, "--compare", e));
    TRY(cli_parse_size(&prompt, o->prompt ? o->prompt : "2048", "--prompt", e));
    if (prompt < 1) return err_set(e, ST_USAGE, "--prompt %s: at least 1 token is needed", o->prompt);
    if (r->every <= o->judged)
        return err_set(e, ST_USAGE, "--every %lld: more than the %d steps of --judged are needed", (long long)r->every,
                       o->judged);
    if (r->n < r->every || r->n % r->every != 0)
        return err_set(e, ST_USAGE, "-n %lld: a multiple of --every %lld is needed", (long long)r->n,
                       (long long)r->every);
    if (r->compare < 0 || r->compare % r->every != 0)
        return err_set(e, ST_USAGE, "--compare %lld: 0 or a multiple of --every %lld is needed", (long long)r->compare,
                       (long long)r->every);
    r->prompt.n = (size_t)prompt;
    return ST_OK;
}

/* The first tokens of the text, behind a BOS token where the tokenizer adds one. */
static status read_prompt(drift_run *r, err *e)
{
    char *text;
    size_t n = 0, want = r->prompt.n;
    r->prompt.n = 0;
    status st = provenance_read_text(&text, &n, r->sha256, r->c, e);
    unsigned flags = tokenizer_adds_bos(r->g.tok) ? TOKENIZE_BOS : 0;
    if (st == ST_OK) st = tokenizer_encode(r->g.tok, text, n, flags, &r->prompt, e);
    if (st == ST_OK && r->prompt.n < want)
        st = err_set(e, ST_USAGE, "--prompt %zu: the text has only %zu tokens", want, r->prompt.n);
    if (st == ST_OK) r->prompt.n = want;
    mem_free(text);
    return st;
}

/* ---- results ---- */

static const char *const identity[] = {"attn", "budget", "generated", NULL};

static status open_results(drift_run *r, err *e)
{
    json_t *own = json_pack("{s:I, s:I, s:I, s:I, s:i, s:f, s:f, s:s}", "n", (json_int_t)r->n, "prompt",
                            (json_int_t)r->prompt.n, "every", (json_int_t)r->every, "compare", (json_int_t)r->compare,
                            "judged", r->o->judged, "temp", r->c->temp, "top_p", r->c->top_p, "text_sha256", r->sha256);
    return provenance_open(&r->out, r->c, &r->g, &r->rows, own, identity, e);
}

/* Whether a row can run and lacks results: it is then generated from its start again. */
static bool is_wanted(const drift_run *r, size_t row)
{
    if (r->rows.why[row].code != ST_OK) return false;
    for (int64_t k = r->every; k <= r->n; k += r->every)
        if (!drift_result(r, row, k)) return true;
    return false;
}

static status run_rows(drift_run *r, err *e)
{
    status st = ST_OK;
    for (size_t i = 0; i < r->rows.n && st == ST_OK; i++) {
        if (r->rows.why[i].code != ST_OK) continue;
        if (is_wanted(r, i)) {
            r->bar = progress_start(r->c, r->rows.run[i].spec.text);
            st = drift_generate(r, i, e);
            progress_end(r->bar);
            r->bar = NULL;
        }
        if (st == ST_OK) st = drift_print_row(r, i, e);
    }
    if (st != ST_OK && r->c->output && !r->c->quiet)
        fprintf(stderr, "%s: %zu results; the same command goes on behind the last strategy that is complete\n",
                path_tail(r->c->output), results_count(r->out));
    return st;
}

/* ---- the command ---- */

static status evaluate(drift_run *r, err *e)
{
    TRY(parse_sizes(r, e));
    TRY(lineup_read_budgets(&r->rows, r->c, "all", NULL, e));
    TRY(engine_find(&r->g, r->c, true, e));
    cli_catch_interrupt();
    TRY(read_prompt(r, e));
    int64_t n_tokens = (int64_t)r->prompt.n + r->n;
    cli_warn_length(r->c, r->g.m, "--prompt and -n together,", n_tokens);
    TRY(lineup_check(&r->rows, r->c, &r->g, n_tokens, e));
    TRY(engine_load(&r->g, r->c, 1, false, e));
    TRY(open_results(r, e));
    TRY(out_printf(e, "drift: %lld new tokens behind a prompt of %zu, seed %llu, the last %d of each %lld judged",
                   (long long)r->n, r->prompt.n, (unsigned long long)r->c->seed, r->o->judged, (long long)r->every));
    TRY(lineup_print_terms(&r->rows, r->c, e));
    TRY(run_rows(r, e));
    return drift_report(r, e);
}

static status cmd_drift(const cli *c, err *e)
{
    drift_run r = {.c = c, .o = c->own};
    status st = evaluate(&r, e);
    cli_clear_interrupt();
    results_close(r.out);
    lineup_free(&r.rows);
    token_list_free(&r.prompt);
    engine_close(&r.g);
    return st;
}

static const cli_option options[] = {
    {.letter = 'n', .arg = "N", AT_OWN(drift_options, n), .help = "new tokens of each strategy (default 32k)"},
    {.letter = 'f', .arg = "FILE", AT(prompt_file), .help = "the prompt's text (default: the book of eval pg19)"},
    {.name = "prompt", .arg = "N", AT_OWN(drift_options, prompt), .help = "its first N tokens (default 2048)"},
    {.name = "every", .arg = "N", AT_OWN(drift_options, every), .help = "new tokens of an interval (default 1024)"},
    {.name = "compare",
     .arg = "N",
     AT_OWN(drift_options, compare),
     .help = "compare with full attention over the same tokens every N new ones (default: every fourth interval; 0: "
             "never)"},
    {.name = "judged",
     .arg = "N",
     .type = OPTION_WHOLE,
     .min = 1,
     .max = 1 << 20,
     .def = 8,
     AT_OWN(drift_options, judged),
     .help = "steps at its end that are judged by exact attention (default 8)"},
    {.name = "temp",
     .arg = "T",
     .type = OPTION_NUMBER,
     AT(temp),
     .def = 0.8,
     .help = "temperature, 0 = greedy (default 0.8)"},
    {.name = "top-p",
     .arg = "P",
     .type = OPTION_NUMBER,
     AT(top_p),
     .def = 0.95,
     .help = "keep the most likely tokens up to mass P (default 0.95)"},
    {0}};

const command drift_command = {.name = "eval drift",
                               .args = "",
                               .summary = "speed, memory and selection along a long generation: strategies compared",
                               .groups = OPTIONS_MODEL | OPTIONS_RESULTS,
                               .own = options,
                               .own_size = sizeof(drift_options),
                               .compares = true,
                               .alone = true,
                               .run = cmd_drift};
