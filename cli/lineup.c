/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "cli/lineup.h"

#include <string.h>

#include "kernels/base/mem.h"

/* Whether the strategy at this budget equals one before: it has no budget, or one of its own. */
static bool is_repeat(const attn_spec *s, const lineup *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->run[i].spec.text, s->text) == 0 && l->run[i].spec.budget == s->budget) return true;
    return false;
}

status lineup_read(lineup *l, const cli *c, const char *def, const int64_t *budget, size_t n_budget, err *e)
{
    attn_spec **at_budget;
    size_t n = 0;
    *l = (lineup){0};
    TRY(MEM_NEW(&at_budget, n_budget, e));
    status st = ST_OK;
    for (size_t b = 0; b < n_budget && st == ST_OK; b++) st = cli_parse_attn(&at_budget[b], &n, c, def, budget[b], e);
    if (st == ST_OK) st = MEM_NEW(&l->run, n * n_budget, e);
    if (st == ST_OK) st = MEM_NEW(&l->why, n * n_budget, e);
    for (size_t i = 0; i < n && st == ST_OK; i++)
        for (size_t b = 0; b < n_budget; b++)
            if (!is_repeat(&at_budget[b][i], l)) l->run[l->n++].spec = at_budget[b][i];
    for (size_t b = 0; b < n_budget; b++) mem_free(at_budget[b]);
    mem_free(at_budget);
    return st;
}

status lineup_read_budgets(lineup *l, const cli *c, const char *def, const char *budgets, err *e)
{
    int64_t *budget = NULL, none = -1;
    size_t n = 1;
    if (c->budget || budgets) TRY(cli_parse_sizes(&budget, &n, c->budget, budgets, "--budget", e));
    status st = lineup_read(l, c, def, budget ? budget : &none, n, e);
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

/* Sessions that are to be checked. */
typedef struct {
    const cli *c;
    const engine *g;
    int64_t limit;
} checked;

static status has_session(void *ctx, const attn_spec *s, err *why)
{
    const checked *x = ctx;
    const decoder_options o = {.chunk = (size_t)x->c->chunk, .verify = cli_verify_rows(x->c), .draft = x->g->draft};
    drafter *d;
    const draft_options drafts = cli_drafts(x->c);
    TRY(drafter_create(&d, &drafts, s, why));
    status st = session_check(x->g->m, &o, s, drafter_session(d, x->limit), why);
    drafter_free(d);
    return st;
}

status lineup_check(lineup *l, const cli *c, const engine *g, int64_t limit, err *e)
{
    return lineup_check_by(l, has_session, &(checked){c, g, limit}, e);
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

int lineup_width(const lineup *l)
{
    int width = 8;
    for (size_t i = 0; i < l->n; i++) {
        int len = (int)strlen(l->run[i].spec.text);
        if (len > width) width = len;
    }
    return width;
}

/* The value of gqa of a strategy, in `out`; false: it has none. */
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

/* Whether a row before has the same method with the same gqa: it is named once. */
static bool gqa_is_named(const lineup *l, size_t row, const char *gqa)
{
    char other[32];
    for (size_t i = 0; i < row; i++)
        if (l->run[i].spec.method == l->run[row].spec.method && gqa_of(&l->run[i].spec, other) &&
            strcmp(gqa, other) == 0)
            return true;
    return false;
}

status lineup_print_terms(const lineup *l, const cli *c, err *e)
{
    char gqa[32];
    const char *before = "gqa, how query heads share a selection:";
    TRY(out_printf(e, ", skip %s\n", cli_skip(c) ? cli_skip(c) : "by strategy"));
    for (size_t i = 0; i < l->n; i++) {
        if (!gqa_of(&l->run[i].spec, gqa) || gqa_is_named(l, i, gqa)) continue;
        TRY(out_printf(e, "%s %s %s", before, attn_method_name(l->run[i].spec.method), gqa));
        before = ",";
    }
    return out_printf(e, before[0] == ',' ? " (per_q: each its own, as in Quest's code)\n\n" : "\n");
}

status lineup_print_why(const lineup *l, err *e)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->why[i].code != ST_OK) TRY(out_printf(e, "  - %s\n", l->why[i].msg));
    return ST_OK;
}

/* True if a row runs and leaves prompts in the cache. */
static bool can_reuse(const lineup *l, size_t i, err *why)
{
    return l->why[i].code == ST_OK && prefix_cache_check(&l->run[i].spec, NULL, "--prefix-disk", why) == ST_OK;
}

status lineup_check_reuse(const lineup *l, const cli *c, err *e)
{
    size_t n = 0;
    err why = {0};
    drafter *d; /* over any row */
    const draft_options drafts = cli_drafts(c);
    TRY(drafter_create(&d, &drafts, &l->run[0].spec, e));
    const attn_spec *draft = drafter_session(d, 0).draft;
    status st = draft ? prefix_cache_check(&l->run[0].spec, draft, "--prefix-disk", e) : ST_OK;
    drafter_free(d);
    TRY(st);
    for (size_t i = 0; i < l->n; i++) n += can_reuse(l, i, &why);
    if (n == 0) return err_set(e, why.code, "%s", why.msg);
    for (size_t i = 0; i < l->n && !c->quiet; i++)
        if (l->why[i].code == ST_OK && !can_reuse(l, i, &why)) fprintf(stderr, "%s\n", why.msg);
    return ST_OK;
}

void lineup_say_shared(const cli *c, const char *what, const batch_job *job)
{
    if (!c->quiet && job->cache)
        fprintf(stderr, "%s: %lld of %lld prompt tokens were known\n", what, (long long)job->cached_tokens,
                (long long)job->prompt_tokens);
    if (c->quiet || job->prefills == job->prefills_done) return;
    fprintf(stderr, "%s: %lld prompts took %lld prefills, since strategies shared them; about %.1f s saved\n", what,
            (long long)job->prefills, (long long)job->prefills_done, (double)job->saved_ns * 1e-9);
}
