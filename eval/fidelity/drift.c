/* SPDX-License-Identifier: MIT */
/* `eval drift`: does a long generation stay as good and as fast as it began? Of each strategy, for every interval of
 * new tokens: speed, memory, bytes read, and what is selected against exact attention. Source: doc/evals.md 20. */
#include "config.h"

#include "cli/command.h"
#include "eval/fidelity/drift.h"

/* ---- options ---- */

static status parse(void *own, err *e)
{
    drift_run *r = own;
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
    r->n_prompt = (size_t)prompt;
    return lineup_read_budgets(&r->f.rows, r->f.c, "all", NULL, e);
}

/* The prompt: the first tokens of the text, after a BOS token where the tokenizer adds one. */
static status ready(void *own, err *e)
{
    drift_run *r = own;
    fidelity *f = &r->f;
    unsigned flags = tokenizer_adds_bos(f->g.tok) ? TOKENIZE_BOS : 0;
    int64_t n_tokens = (int64_t)r->n_prompt + r->n;
    TRY(fidelity_read_text(&f->text, f->sha256, &f->g, f->c, flags, e));
    if (f->text.n < r->n_prompt)
        return err_set(e, ST_USAGE, "--prompt %zu: the text has only %zu tokens", r->n_prompt, f->text.n);
    f->text.n = r->n_prompt;
    cli_warn_length(f->c, f->g.m, "--prompt and -n together,", n_tokens);
    return lineup_check(&f->rows, f->c, &f->g, n_tokens, e);
}

/* ---- the command ---- */

static const char *const identity[] = {"attn", "budget", "generated", NULL};

static json_t *config(const void *own)
{
    const drift_run *r = own;
    return json_pack("{s:I, s:I, s:I, s:I, s:i, s:f, s:f, s:s}", "n", (json_int_t)r->n, "prompt",
                     (json_int_t)r->n_prompt, "every", (json_int_t)r->every, "compare", (json_int_t)r->compare,
                     "judged", r->o->judged, "temp", r->f.c->temp, "top_p", r->f.c->top_p, "text_sha256", r->f.sha256);
}

static status print_head(const void *own, err *e)
{
    const drift_run *r = own;
    TRY(out_printf(e, "drift: %lld new tokens behind a prompt of %zu, seed %llu, the last %d of each %lld judged",
                   (long long)r->n, r->n_prompt, (unsigned long long)r->f.c->seed, r->o->judged, (long long)r->every));
    return lineup_print_terms(&r->f.rows, r->f.c, e);
}

/* True if an interval has no result: the row is then generated again from its start. */
static bool lacks(const void *own, size_t row)
{
    const drift_run *r = own;
    for (int64_t k = r->every; k <= r->n; k += r->every)
        if (!drift_result(r, row, k)) return true;
    return false;
}

static const fidelity_measure drift_kind = {.identity = identity,
                                            .resume = "behind the last strategy that is complete",
                                            .parse = parse,
                                            .ready = ready,
                                            .config = config,
                                            .head = print_head,
                                            .lacks = lacks,
                                            .measure = drift_generate,
                                            .print = drift_print_row,
                                            .json = drift_row_json,
                                            .options = drift_options_json};

static status cmd_drift(const cli *c, err *e)
{
    drift_run r = {.f.c = c, .o = c->own};
    status st = fidelity_run(&r.f, &drift_kind, e);
    fidelity_close(&r.f);
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
                               .measure = "logits",
                               .args = "",
                               .summary = "speed, memory and selection along a long generation: strategies compared",
                               .groups = OPTIONS_MODEL | OPTIONS_RESULTS,
                               .own = options,
                               .own_size = sizeof(drift_options),
                               .compares = true,
                               .alone = true,
                               .run = cmd_drift};
