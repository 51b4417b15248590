/* SPDX-License-Identifier: MIT */
/* `eval accept`: one strategy over pieces of a text. It drafts in a session of full attention, as --draft does. */
#include "config.h"

#include "eval/fidelity/accept.h"
#include "eval/evaluation.h"
#include "kernels/base/mem.h"

typedef struct {
    accept_run *r;
    session *s;
    sampler *by;      /* of the case at hand */
    token_list piece; /* of the text; all but its last n tokens are the prompt */
    int32_t *text;    /* [n + 1] full attention's, behind the piece */
    size_t n;
    accept_sums sums;
} measured;

/* ---- drafts from exact rows ---- */

/* Drafts behind x, which follows what the session holds, and feeds x. *next: full attention's token behind x. */
static status draft_behind(measured *m, int32_t x, int32_t *next, err *e)
{
    int32_t fed[ACCEPT_AHEAD + 1] = {x}, id;
    int64_t length = session_length(m->s);
    TRY(session_draft(m->s, x, ACCEPT_AHEAD, m->by, fed + 1, e));
    TRY(session_verify(m->s, fed, ACCEPT_AHEAD, e));
    m->sums.n++;
    for (size_t i = 0; i < ACCEPT_AHEAD; i++) {
        TRY(session_verified(m->s, i, m->by, &id, e));
        if (i == 0) *next = id;
        if (id != fed[i + 1]) break;
        m->sums.right[i]++;
    }
    return session_rewind(m->s, length + 1, e);
}

/* From each of the last n tokens of the piece. */
static status draft_all(measured *m, err *e)
{
    for (size_t i = m->piece.n - m->n; i < m->piece.n; i++) {
        TRY(draft_behind(m, m->piece.ids[i], &m->text[0], e));
        if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    return ST_OK;
}

/* ---- along full attention's text ---- */

/* The text behind text[0], which follows what the session holds. */
static status write_text(measured *m, err *e)
{
    int64_t length = session_length(m->s);
    for (size_t i = 0; i < m->n; i++) {
        TRY(session_verify(m->s, &m->text[i], 1, e));
        TRY(session_verified(m->s, 0, m->by, &m->text[i + 1], e));
    }
    return session_rewind(m->s, length, e);
}

/* The strategy goes on behind text[at] by itself, over rows of its own, up to a difference or the end: *n tokens. The
 * session is as before. */
static status go_on(measured *m, size_t at, size_t *n, err *e)
{
    int64_t length = session_length(m->s);
    int32_t id = m->text[at];
    bool same = true;
    for (*n = 0; same && at + *n < m->n; ++*n) {
        TRY(session_draft_on(m->s, id, 1, m->by, &id, e));
        same = id == m->text[at + *n + 1];
    }
    m->sums.tokens += (int64_t)*n;
    m->sums.differences += !same;
    return session_rewind(m->s, length, e);
}

/* Exact rows of n tokens of the text. */
static status feed(measured *m, size_t at, size_t n, err *e)
{
    for (size_t i = 0, k; i < n; i += k) {
        k = n - i < ACCEPT_AHEAD ? n - i : ACCEPT_AHEAD;
        TRY(session_verify(m->s, m->text + at + i, k, e));
    }
    return ST_OK;
}

static status run_along(measured *m, err *e)
{
    TRY(write_text(m, e));
    for (size_t at = 0, n; at < m->n; at += n) {
        TRY(go_on(m, at, &n, e));
        TRY(feed(m, at, n, e));
        if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    return ST_OK;
}

/* ---- cases ---- */

static status take_piece(measured *m, const accept_case *x, err *e)
{
    const accept_run *r = m->r;
    bool bos = tokenizer_adds_bos(r->f.g.tok);
    size_t n = (size_t)x->ctx - bos;
    const int32_t *from = fidelity_piece(&r->f.text, n, r->f.c->seed, x->ctx, (size_t)x->trial);
    m->piece.n = 0;
    if (bos) TRY(token_list_push(&m->piece, tokenizer_bos(r->f.g.tok), e));
    for (size_t i = 0; i < n; i++) TRY(token_list_push(&m->piece, from[i], e));
    return ST_OK;
}

/* A temperature, over a piece whose prompt is in the session. */
static status measure_case(measured *m, const accept_case *x, err *e)
{
    const sampler_options so = {.temp = x->temp,
                                .top_p = 1,
                                .repeat_penalty = 1,
                                .seed = evaluation_random(m->r->f.c->seed, x->trial, (uint64_t)x->ctx)};
    int64_t prompt = session_length(m->s);
    m->sums = (accept_sums){0};
    TRY(sampler_create(&m->by, &so, (size_t)m->r->f.g.m->config.vocab, e));
    status st = draft_all(m, e);
    if (st == ST_OK) st = run_along(m, e);
    if (st == ST_OK) st = session_rewind(m->s, prompt, e);
    sampler_free(m->by);
    m->by = NULL;
    return st == ST_OK ? results_add(m->r->f.out, results_merge(accept_identity(m->r, x), accept_counts(&m->sums)), e)
                       : st;
}

static bool on_prompt(void *ctx, int64_t done, int64_t total)
{
    (void)ctx;
    (void)done;
    (void)total;
    return !cli_interrupted();
}

static status measure_piece(measured *m, accept_case *x, err *e)
{
    const accept_run *r = m->r;
    const prefill_options o = {.which = LOGITS_LAST, .progress = on_prompt};
    bool ready = false;
    for (size_t i = 0; i < r->n_temp; i++) {
        x->temp = r->temp[i];
        if (accept_result(r, x)) continue;
        if (!ready) {
            session_reset(m->s);
            TRY(take_piece(m, x, e));
            TRY(session_prefill(&m->s, 1, m->piece.ids, m->piece.n - m->n, &o, e));
            ready = true;
        }
        TRY(measure_case(m, x, e));
    }
    return ST_OK;
}

static status measure_length(measured *m, size_t row, size_t length, err *e)
{
    accept_run *r = m->r;
    accept_pair p;
    int64_t ctx = r->ctx[length];
    TRY(accept_pair_of(&p, &r->f.rows.run[row].spec, accept_limit(r, ctx), e));
    TRY(session_create(&m->s, r->f.g.dec, &p.full, p.size, e));
    status st = ST_OK;
    for (int i = 0; i < r->o->trials && st == ST_OK; i++) {
        st = measure_piece(m, &(accept_case){.row = row, .ctx = ctx, .trial = i}, e);
        progress_set(r->f.bar, (int64_t)length * r->o->trials + i + 1, (int64_t)r->n_ctx * r->o->trials);
    }
    session_free(m->s);
    m->s = NULL;
    return st;
}

status accept_measure(void *own, size_t row, err *e)
{
    accept_run *r = own;
    measured m = {.r = r, .n = (size_t)r->o->n};
    status st = MEM_NEW(&m.text, m.n + 1, e);
    for (size_t i = 0; i < r->n_ctx && st == ST_OK; i++) st = measure_length(&m, row, i, e);
    token_list_free(&m.piece);
    mem_free(m.text);
    return st;
}
