/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/drafter.h"

#include <string.h>

#include "eval/ranks.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "model/propose.h"

enum { MOST = SESSION_VERIFY_ROWS - 1 };

struct drafter {
    const char *spec;
    comm *ranks;
    propose_pace pace;
    /* The step at hand: ids that it was fed, the first of which is no draft; the next row to choose from. */
    int32_t fed[SESSION_VERIFY_ROWS];
    size_t rows, at;
    int64_t began_ns, draft_ns; /* of the step at hand */
    draft_counts counts;
};

/* ---- as users write it ---- */

/* "n=K" behind a word's name; most: as it is without one. */
static status read_length(size_t *most, const char *key, err *e)
{
    if (strncmp(key, "n=", 2) != 0)
        return err_set(e, ST_USAGE, "--draft: '%.60s' behind ngram, expected n=1 to n=%d", key, (int)MOST);
    if (key[2] < '1' || key[2] > '0' + MOST || key[3])
        return err_set(e, ST_USAGE, "--draft: n '%.20s', expected 1 to %d drafted tokens", key + 2, (int)MOST);
    *most = (size_t)(key[2] - '0');
    return ST_OK;
}

static status parse(size_t *most, const char *text, err *e)
{
    size_t name = strcspn(text, ":");
    *most = MOST;
    if (name != 5 || memcmp(text, "ngram", name) != 0)
        return err_set(e, ST_USAGE, "--draft: '%.60s', expected ngram or ngram:n=K", text);
    return text[name] ? read_length(most, text + name + 1, e) : ST_OK;
}

size_t drafter_rows(const cli *c)
{
    return c->draft ? SESSION_VERIFY_ROWS : 0;
}

status drafter_create(drafter **out, const cli *c, const attn_spec *verifier, err *e)
{
    drafter *d;
    err why = {0};
    size_t most;
    *out = NULL;
    if (!c->draft) return ST_OK;
    TRY(parse(&most, c->draft, e));
    status st = attn_verify_check(verifier, &why);
    if (st != ST_OK) return err_set(e, st, "--draft cannot be verified: %s", why.msg);
    TRY(MEM_NEW(&d, 1, e));
    *d = (drafter){.spec = c->draft, .ranks = c->ranks};
    propose_start(&d->pace, most);
    *out = d;
    return ST_OK;
}

void drafter_free(drafter *d)
{
    mem_free(d);
}

/* ---- steps ---- */

void drafter_begin(drafter *d)
{
    d->counts = (draft_counts){0};
}

/* Proposes behind `all` and verifies. */
static status step(drafter *d, session *s, const token_list *all, size_t most, err *e)
{
    size_t room = (size_t)(session_limit(s) - session_length(s)), n = propose_length(&d->pace);
    if (most > room) most = room;
    if (n > most - 1) n = most - 1;
    TRY(ranks_share(d->ranks, &n, sizeof n, e)); /* it follows from times */
    d->began_ns = clock_ns();
    d->fed[0] = all->ids[all->n - 1];
    n = propose_lookup(all->ids, all->n, d->fed + 1, n);
    d->draft_ns = clock_ns() - d->began_ns;
    d->rows = n + 1;
    d->at = 0;
    d->counts.proposed += (int64_t)n;
    d->counts.verifications++;
    return session_verify(s, d->fed, d->rows, e);
}

/* After the first choice of a step, for which the device was waited for. */
static void count_time(drafter *d)
{
    size_t drafted = d->rows - 1;
    propose_timed(&d->pace, d->rows, clock_ns() - d->began_ns - d->draft_ns, drafted, d->draft_ns);
    d->counts.ns += propose_step_ns(&d->pace, d->rows) + (double)drafted * d->pace.draft_ns;
}

status drafter_next(drafter *d, session *s, sampler *by, const token_list *all, size_t most, int32_t *id, err *e)
{
    bool ahead = d->at < d->rows, right = ahead && d->fed[d->at] == all->ids[all->n - 1];
    if (ahead) propose_judged(&d->pace, right);
    if (right) {
        d->counts.accepted++;
    } else {
        TRY(drafter_drop(d, s, all, e));
        TRY(step(d, s, all, most, e));
    }
    TRY(session_verified(s, d->at, by, id, e));
    if (d->at++ == 0) count_time(d);
    d->counts.tokens++;
    return ST_OK;
}

status drafter_drop(drafter *d, session *s, const token_list *all, err *e)
{
    int64_t n = (int64_t)all->n - 1;
    d->rows = d->at = 0;
    return session_length(s) > n ? session_rewind(s, n, e) : ST_OK;
}

draft_counts drafter_counts(const drafter *d)
{
    draft_counts c = d->counts;
    c.single_ns = propose_step_ns(&d->pace, 1);
    return c;
}

const char *drafter_spec(const drafter *d)
{
    return d->spec;
}
