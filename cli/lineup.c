/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "cli/lineup.h"

#include <string.h>

#include "cli/output.h"
#include "cli/values.h"
#include "generate/prefix_cache.h"
#include "kernels/base/mem.h"

/* ---- one strategy, or a list ---- */

/* Prints the strategy that an alias stands for. */
static void note_alias(const char *text, const attn_spec *s)
{
    const attn_alias *as = attn_alias_find(text);
    if (as) out_note("--attn %s: %s", text, strcmp(text, as->name) == 0 ? as->summary : s->text);
}

status attn_args_read(attn_options *out, kv_tier *place, const attn_args *a, err *e)
{
    *out = (attn_options){.skip = a->skip, .certify = a->certify, .kv = kv_plain(DT_F16)};
    if (a->kv) TRY(kv_format_parse(&out->kv, a->kv, "--kv", e));
    if (!a->kv_tier) return ST_OK;
    out->tier = place;
    return kv_tier_parse(place, a->kv_tier, e);
}

/* State while reading a list of strategies. */
typedef struct {
    lineup *l;
    attn_options o;
    kv_tier tier;
    const int64_t *budget; /* budgets of each strategy; -1: its own */
    size_t n_budget, n_names;
} reading;

/* True if the strategy at this budget repeats an earlier row, because it has no budget or its own. */
static bool is_repeat(const attn_spec *s, const lineup *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->run[i].spec.text, s->text) == 0 && l->run[i].spec.budget == s->budget) return true;
    return false;
}

/* Adds a strategy at all budgets. */
static status add_name(reading *r, const char *name, err *e)
{
    lineup *l = r->l;
    r->n_names++;
    TRY(MEM_GROW(&l->run, l->n + r->n_budget, e));
    TRY(MEM_GROW(&l->why, l->n + r->n_budget, e));
    for (size_t b = 0; b < r->n_budget; b++) {
        attn_spec *s = &l->run[l->n].spec;
        l->run[l->n] = (batch_run){0};
        l->why[l->n] = (err){0};
        r->o.has_budget = r->budget[b] >= 0;
        r->o.budget = r->o.has_budget ? r->budget[b] : 0;
        TRY(attn_spec_parse(s, name, &r->o, e));
        l->n += !is_repeat(s, l);
    }
    return ST_OK;
}

/* Adds a word of --attn: a strategy, or "all". */
static status add_word(void *ctx, const char *word, err *e)
{
    if (strcmp(word, "all") != 0) return add_name(ctx, word, e);
    for (const attn_method *const *m = attn_methods(); *m; m++) TRY(add_name(ctx, attn_method_name(*m), e));
    return ST_OK;
}

status attn_args_parse(attn_spec *out, const attn_args *a, const char *command, err *e)
{
    int64_t budget = -1;
    lineup l = {0};
    reading r = {.l = &l, .budget = &budget, .n_budget = 1};
    if (a->budget) TRY(cli_parse_size(&budget, a->budget, "--budget", e));
    TRY(attn_args_read(&r.o, &r.tier, a, e));
    status st = cli_each(a->names ? a->names : "full", add_word, &r, e);
    if (st == ST_OK && r.n_names != 1)
        st = err_set(e, ST_USAGE, "--attn: %s accepts one strategy, found %zu", command, r.n_names);
    if (st == ST_OK) *out = l.run[0].spec;
    if (st == ST_OK && a->names) note_alias(a->names, out);
    lineup_free(&l);
    return st;
}

void cli_warn_length(const model *m, const char *option, int64_t n)
{
    if (n > m->config.max_positions)
        out_note("warning: %s %lld exceeds the model's max_position_embeddings of %lld", option, (long long)n,
                 (long long)m->config.max_positions);
}

void cli_warn_ctx(const model *m, int64_t ctx)
{
    cli_warn_length(m, "--ctx", ctx);
}

/* ---- the rows ---- */

status lineup_read(lineup *l, const attn_args *a, const char *def, const int64_t *budget, size_t n_budget, err *e)
{
    reading r = {.l = l, .budget = budget, .n_budget = n_budget};
    *l = (lineup){.skip = a->skip ? a->skip : "0"};
    TRY(attn_args_read(&r.o, &r.tier, a, e));
    r.o.skip = l->skip;
    return cli_each(a->names ? a->names : def, add_word, &r, e);
}

status lineup_read_budgets(lineup *l, const attn_args *a, const char *def, const char *budgets, err *e)
{
    int64_t *budget = NULL, none = -1;
    size_t n = 1;
    if (a->budget || budgets) TRY(cli_parse_sizes(&budget, &n, a->budget, budgets, "--budget", e));
    status st = lineup_read(l, a, def, budget ? budget : &none, n, e);
    mem_free(budget);
    return st;
}

void lineup_free(lineup *l)
{
    mem_free(l->run);
    mem_free(l->why);
    *l = (lineup){0};
}

status lineup_check_by(lineup *l, status (*can_run)(void *ctx, const attn_spec *s, err *why), void *ctx, err *e)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        err *why = &l->why[i];
        *why = (err){0};
        l->run[i] = (batch_run){.spec = l->run[i].spec};
        status st = can_run(ctx, &l->run[i].spec, why);
        if (st != ST_OK && l->n == 1) return err_set(e, st, "%s", why->msg);
        n += st == ST_OK;
    }
    return n > 0 ? ST_OK : err_set(e, l->why[0].code, "no strategy can run: %.200s", l->why[0].msg);
}

/* Parameters of the check of sessions. */
typedef struct {
    const engine *g;
    int64_t limit;
} checked;

static status has_session(void *ctx, const attn_spec *s, err *why)
{
    const checked *x = ctx;
    return engine_check_session(x->g, s, x->limit, why);
}

status lineup_check(lineup *l, const engine *g, int64_t limit, err *e)
{
    return lineup_check_by(l, has_session, &(checked){g, limit}, e);
}

void lineup_budget_text(char *out, size_t size, const attn_spec *s)
{
    if (attn_has_budget(s)) snprintf(out, size, "%lld", (long long)s->budget);
    else snprintf(out, size, "-");
}

json_t *lineup_budget_json(const attn_spec *s)
{
    return attn_has_budget(s) ? json_integer(s->budget) : json_null();
}

json_t *lineup_row_json(const attn_spec *s)
{
    char params[512];
    attn_spec_params(s, params, sizeof params);
    return json_pack("{s:s, s:s, s:o}", "attn", s->text, "params", params, "budget", lineup_budget_json(s));
}

void lineup_columns(const lineup *l, table *t)
{
    size_t width = 0;
    for (size_t i = 0; i < l->n; i++) {
        size_t n = strlen(l->run[i].spec.text);
        if (n > width) width = n;
    }
    table_column(t, TABLE_KEY | TABLE_LEFT, width, "strategy");
    table_column(t, TABLE_KEY, 0, "budget");
}

void lineup_cells(const attn_spec *s, table *t)
{
    char budget[24];
    lineup_budget_text(budget, sizeof budget, s);
    table_cell(t, "%s", s->text);
    table_cell(t, "%s", budget);
}

void lineup_counts(const attn_spec *s, table *t)
{
    char counts[16];
    attn_budget_counts(s, counts);
    table_cell(t, "%s", counts);
}

/* Writes the gqa value of a strategy to `out`. False: it has none. */
static bool gqa_of(const attn_spec *s, char out[32])
{
    char params[512];
    attn_spec_params(s, params, sizeof params);
    const char *at = strstr(params, " gqa=");
    if (!at && strncmp(params, "gqa=", 4) != 0) return false;
    at = at ? at + 5 : params + 4;
    snprintf(out, 32, "%.*s", (int)strcspn(at, " "), at);
    return true;
}

/* True if an earlier row has the same method and gqa, which is then not printed again. */
static bool gqa_is_named(const lineup *l, size_t row, const char *gqa)
{
    char other[32];
    for (size_t i = 0; i < row; i++)
        if (l->run[i].spec.method == l->run[row].spec.method && gqa_of(&l->run[i].spec, other) &&
            strcmp(gqa, other) == 0)
            return true;
    return false;
}

status lineup_print_terms(const lineup *l, err *e)
{
    char gqa[32];
    const char *before = "gqa, how query heads share a selection:";
    paragraph(", skip %s", l->skip);
    TRY(paragraph_end(2, e));
    for (size_t i = 0; i < l->n; i++) {
        if (!gqa_of(&l->run[i].spec, gqa) || gqa_is_named(l, i, gqa)) continue;
        paragraph("%s %s %s", before, attn_method_name(l->run[i].spec.method), gqa);
        before = ",";
    }
    if (before[0] == ',') {
        paragraph(" (per_q: each its own, as in Quest's code)");
        TRY(paragraph_end(2, e));
    }
    return out_printf(e, "\n");
}

status lineup_print_reason(const char *why, err *e)
{
    paragraph("  - %s", why);
    return paragraph_end(4, e);
}

status lineup_print_why(const lineup *l, err *e)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->why[i].code != ST_OK) TRY(lineup_print_reason(l->why[i].msg, e));
    return ST_OK;
}

/* True if a row can run and cache its prompts. */
static bool can_reuse(const lineup *l, size_t i, err *why)
{
    return l->why[i].code == ST_OK && prefix_cache_check(&l->run[i].spec, NULL, "--prefix-disk", why) == ST_OK;
}

status lineup_check_reuse(const lineup *l, const engine_options *o, err *e)
{
    size_t n = 0;
    err why = {0};
    drafter *d; /* the check holds for any row */
    const draft_options drafts = engine_drafts(o);
    TRY(drafter_create(&d, &drafts, &l->run[0].spec, e));
    const attn_spec *draft = drafter_session(d, 0).draft;
    status st = draft ? prefix_cache_check(&l->run[0].spec, draft, "--prefix-disk", e) : ST_OK;
    drafter_free(d);
    TRY(st);
    for (size_t i = 0; i < l->n; i++) n += can_reuse(l, i, &why);
    if (n == 0) return err_set(e, why.code, "%s", why.msg);
    for (size_t i = 0; i < l->n; i++)
        if (l->why[i].code == ST_OK && !can_reuse(l, i, &why)) out_note("%s", why.msg);
    return ST_OK;
}

void lineup_note_shared(const char *what, const batch_job *job)
{
    if (job->cache)
        out_note("%s: %lld of %lld prompt tokens were cached", what, (long long)job->cached_tokens,
                 (long long)job->prompt_tokens);
    if (job->prefills != job->prefills_done)
        out_note("%s: %lld prompts needed %lld prefills because strategies shared them; about %.1f s saved", what,
                 (long long)job->prefills, (long long)job->prefills_done, (double)job->saved_ns * 1e-9);
}
