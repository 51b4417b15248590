/* SPDX-License-Identifier: MIT */
/* `eval pg19`: runs one book under one protocol for all strategies without a result. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "eval/perplexity.h"
#include "eval/pg19/pg19.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/ops_weights.h"
#include "model/weights.h"

const char *const pg19_protocols[] = {"decode", "window", "truncate"};

/* ---- results ---- */

/* Returns {"length", "book"}, which identify a result of a row. */
static json_t *identity_of(size_t book, int64_t length)
{
    return json_pack("{s:I, s:I}", "length", (json_int_t)length, "book", (json_int_t)book);
}

const json_t *pg19_result(const pg19_run *r, size_t row, size_t book, int64_t length)
{
    return measure_result(&r->m, row, identity_of(book, length));
}

/* ---- rows ---- */

/* State of a running row of the lineup. */
typedef struct {
    size_t row;
    double sum, *at;     /* nll so far; perplexity at each point */
    size_t n_at;         /* points reached */
    double pass_sum;     /* nll in one chunked pass */
    double *nll;         /* [values] of the decode path */
    double squares;      /* sum of squared differences from the chunked pass */
    double loss, scored; /* sum of the windows' mean losses; tokens scored */
    attn_stats stats;
    attn_bytes held, peak;
    bool whole; /* everything was attended, so a chunked pass must agree */
} seat;

/* Rows that run together, as many as fit in memory. */
typedef struct {
    pg19_run *r;
    size_t book, n;
    int64_t length;
    seat *seats;     /* [n] */
    session **s;     /* [n] */
    size_t *index;   /* [n] seats of the rows in batch */
    session **batch; /* [n] their sessions */
    float *logits;   /* [n, vocab] */
    int64_t *points;
    size_t n_points;
    double *at, *nll; /* of the seats */
    int64_t ns;
} group;

/* Lists the rows that have no result yet, if `row` is not NULL. Returns their number. */
static size_t list_wanted(const pg19_run *r, size_t book, int64_t length, size_t *row)
{
    size_t n = 0;
    for (size_t i = 0; i < r->m.rows.n; i++) {
        if (r->m.rows.why[i].code != ST_OK || pg19_result(r, i, book, length)) continue;
        if (row) row[n] = i;
        n++;
    }
    return n;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Returns the number of tokens fed through the decode path; each needs a next token. */
static size_t fed_tokens(const pg19_run *r, const pg19_book *b)
{
    return smaller((size_t)r->length[0], b->ids.n - 1);
}

/* Returns the number of tokens before the first scored one. */
static size_t before(const pg19_run *r)
{
    return r->prompt > 0 ? (size_t)r->prompt - 1 : 0;
}

/* Division of a book into windows of `length` tokens. */
typedef struct {
    size_t n, room, stride;
    bool bos;
} cutting;

static cutting cut(const pg19_run *r, const pg19_book *b, int64_t length)
{
    cutting c = {.n = b->ids.n, .stride = (size_t)r->stride, .bos = tokenizer_bos(r->m.g.tok) >= 0};
    if (r->tokens) c.n = smaller(c.n, (size_t)r->tokens);
    c.room = (size_t)length - c.bos;
    if (r->protocol == PG19_TRUNCATE) {
        c.n = smaller(c.n, c.room);
        c.stride = c.room;
    }
    return c;
}

/* ---- groups ---- */

/* n_values: kept of each session. */
static status group_open(group *g, const size_t *row, int64_t limit, size_t n_values, err *e)
{
    size_t vocab = (size_t)g->r->m.g.m->config.vocab;
    TRY(MEM_NEW(&g->seats, g->n, e));
    TRY(MEM_NEW(&g->s, g->n, e));
    TRY(MEM_NEW(&g->batch, g->n, e));
    TRY(MEM_NEW(&g->index, g->n, e));
    TRY(MEM_NEW(&g->logits, g->n * vocab, e));
    TRY(MEM_NEW(&g->points, g->n_points, e));
    TRY(MEM_NEW(&g->at, g->n * g->n_points, e));
    TRY(MEM_NEW(&g->nll, g->n * n_values, e));
    for (size_t i = 0; i < g->n; i++) {
        g->seats[i] = (seat){.row = row[i], .at = g->at + i * g->n_points, .nll = g->nll + i * n_values};
        TRY(session_create(&g->s[i], g->r->m.g.dec, &g->r->m.rows.run[row[i]].spec, session_of(limit), e));
    }
    return ST_OK;
}

static void group_close(group *g)
{
    for (size_t i = 0; g->s && i < g->n; i++) session_free(g->s[i]);
    mem_free(g->seats);
    mem_free(g->s);
    mem_free(g->batch);
    mem_free(g->index);
    mem_free(g->logits);
    mem_free(g->points);
    mem_free(g->at);
    mem_free(g->nll);
}

/* Adds the result of a seat: {identity, own, name, title, seconds, together}. Takes ownership of `own`. */
static status add_result(const group *g, const seat *t, json_t *own, err *e)
{
    const pg19_book *b = &g->r->books.book[g->book];
    json_t *o = json_pack("{s:s, s:s, s:f, s:i}", "name", b->name, "title", b->title, "seconds", (double)g->ns * 1e-9,
                          "together", (int)g->n);
    return measure_add(&g->r->m, t->row, results_merge(results_merge(identity_of(g->book, g->length), own), o), e);
}

/* ---- through the decode path ---- */

static void on_decoded(void *ctx, size_t i, size_t at, double nll)
{
    const group *g = ctx;
    seat *t = &g->seats[i];
    size_t n = at - before(g->r); /* values so far */
    t->sum += nll;
    t->nll[n - 1] = nll;
    if ((int64_t)n != g->points[t->n_at]) return;
    t->at[t->n_at] = exp(t->sum / (double)g->points[t->n_at]);
    t->n_at++;
}

/* Shows the group's progress in addition to that of earlier groups. */
static bool on_fed(void *ctx, size_t fed)
{
    const group *g = ctx;
    progress_set(g->r->m.bar, g->r->done + (int64_t)(fed * g->n), g->r->total);
    return !cli_interrupted();
}

static void on_passed(void *ctx, size_t i, size_t at, double nll)
{
    const group *g = ctx;
    seat *t = &g->seats[g->index[i]];
    double apart = nll - t->nll[at - before(g->r) - 1];
    t->pass_sum += nll;
    t->squares += apart * apart;
}

static bool not_interrupted(void *ctx, size_t fed)
{
    (void)ctx;
    (void)fed;
    return !cli_interrupted();
}

/* True if a sequence has tokens of fewer bits than its store (demotion). */
static bool has_demoted(const attn_seq *s, int n_layers)
{
    for (int l = 0; l < n_layers; l++)
        if (attn_seq_demoted(s, l, 0, NULL) > 0) return true;
    return false;
}

/* Runs one chunked pass for the sessions that attended everything, over float or q8 keys and values. */
static status pass_whole(group *g, const int32_t *ids, size_t n_fed, err *e)
{
    const perplexity_sink sink = {.take = on_passed, .progress = not_interrupted, .ctx = g};
    size_t n = 0;
    for (size_t i = 0; i < g->n; i++) {
        seat *t = &g->seats[i];
        const attn_spec *spec = &g->r->m.rows.run[t->row].spec;
        t->stats = attn_seq_stats(session_attn(g->s[i]));
        t->held = attn_seq_held(session_attn(g->s[i]));
        t->peak = attn_seq_peak(session_attn(g->s[i]));
        t->whole = t->stats.attended == t->stats.visible && spec->kv.kind == KV_PLAIN && spec->kv.type != DT_Q4 &&
                   !has_demoted(session_attn(g->s[i]), g->r->m.g.m->config.n_kv) &&
                   (int64_t)n_fed <= config_static_length(&g->r->m.g.m->config);
        if (!t->whole) continue;
        session_reset(g->s[i]);
        g->index[n] = i;
        g->batch[n++] = g->s[i];
    }
    return n ? perplexity_pass(g->batch, n, ids, n_fed, before(g->r) + 1, n_fed + 1, &sink, e) : ST_OK;
}

static bool rounds_to_bytes(const model *m)
{
    for (const weight_spec *w = m->weights; w < weights_end(m); w++)
        if (!w->vector && dtype_in_qblocks(w->slot->type)) return true;
    return false;
}

/* Returns how far the log-likelihoods of both paths may be apart. */
static double limit_of(const pg19_run *r, const attn_spec *spec)
{
    bool builtin = cli_builtin_gemm(&r->m.o->engine.device);
    dtype rows = spec->kv.type;
    if (!builtin && rounds_to_bytes(r->m.g.m)) return PG19_LIMIT_BYTES;
    if (!builtin || (rows != DT_F32 && rows != DT_F16)) return PG19_LIMIT_BF16;
    return rows == DT_F16 ? PG19_LIMIT_F16 : PG19_LIMIT_F32;
}

/* Returns the comparison with a chunked pass; nulls if there was none. */
static json_t *chunked_json(const group *g, const seat *t, size_t n)
{
    json_t *ppl = t->whole ? results_real(exp(t->pass_sum / (double)n)) : json_null();
    json_t *apart = t->whole ? results_real(sqrt(t->squares / (double)n)) : json_null();
    json_t *limit = t->whole ? json_real(limit_of(g->r, &g->r->m.rows.run[t->row].spec)) : json_null();
    return json_pack("{s:o, s:o, s:o}", "chunked_ppl", ppl, "chunked_rms", apart, "chunked_limit", limit);
}

static json_t *decoded_json(const group *g, const seat *t, size_t n)
{
    double steps = (double)t->stats.steps * g->r->m.g.m->config.n_kv;
    json_t *curve =
        json_pack("{s:o, s:o}", "length", report_sizes(g->points, t->n_at), "ppl", results_reals(t->at, t->n_at));
    json_t *o =
        json_pack("{s:I, s:f, s:o, s:o, s:f, s:f, s:I, s:I, s:I}", "tokens", (json_int_t)n, "nll", t->sum, "ppl",
                  results_real(exp(t->sum / (double)n)), "curve", curve, "attended", t->stats.attended / steps,
                  "visible", t->stats.visible / steps, "kv_bytes", (json_int_t)t->held.kv, "kv_bytes_peak",
                  (json_int_t)t->peak.kv, "index_bytes", (json_int_t)t->held.index);
    return results_merge(o, chunked_json(g, t, n));
}

static status decode_group(group *g, const size_t *row, err *e)
{
    const pg19_book *b = &g->r->books.book[g->book];
    const perplexity_sink sink = {.take = on_decoded, .progress = on_fed, .ctx = g};
    size_t n = fed_tokens(g->r, b), prompt = (size_t)g->r->prompt, n_values = n - before(g->r);
    g->n_points = perplexity_lengths(n_values, NULL);
    TRY(group_open(g, row, (int64_t)n, n_values, e));
    perplexity_lengths(n_values, g->points);
    int64_t t0 = clock_ns();
    if (prompt > 0) TRY(perplexity_pass(g->s, g->n, b->ids.ids, prompt, prompt, prompt + 1, &sink, e));
    TRY(perplexity_decode(g->s, g->n, b->ids.ids, prompt, n + 1, g->logits, &sink, e));
    g->ns = clock_ns() - t0;
    TRY(pass_whole(g, b->ids.ids, n, e));
    for (size_t i = 0; i < g->n; i++) TRY(add_result(g, &g->seats[i], decoded_json(g, &g->seats[i], n_values), e));
    return ST_OK;
}

/* ---- in windows ---- */

static void on_scored(void *ctx, size_t i, size_t at, double nll)
{
    const group *g = ctx;
    (void)at;
    g->seats[i].sum += nll;
    g->seats[i].scored++;
}

/* Adds the mean loss over the scored tokens of one window. */
static status pass_window(group *g, const cutting *c, const perplexity_window *w, int32_t *ids, err *e)
{
    const int32_t *text = g->r->books.book[g->book].ids.ids;
    const perplexity_sink sink = {.take = on_scored, .progress = not_interrupted, .ctx = g};
    size_t n = 0, from = w->from - w->begin + c->bos;
    if (c->bos) ids[n++] = tokenizer_bos(g->r->m.g.tok);
    memcpy(ids + n, text + w->begin, (w->end - w->begin) * sizeof *ids);
    n += w->end - w->begin;
    if (from == 0) from = 1; /* the first token has no context */
    for (size_t i = 0; i < g->n; i++) {
        session_reset(g->s[i]);
        g->seats[i].sum = 0;
    }
    TRY(perplexity_pass(g->s, g->n, ids, n, from, n, &sink, e));
    for (size_t i = 0; i < g->n; i++) g->seats[i].loss += g->seats[i].sum / (double)(n - from);
    on_fed(g, w->end);
    return ST_OK;
}

static status window_group(group *g, const size_t *row, err *e)
{
    const cutting c = cut(g->r, &g->r->books.book[g->book], g->length);
    perplexity_window w = {0};
    size_t windows = 0;
    int32_t *ids = NULL;
    status st;
    int64_t t0 = clock_ns();
    TRY_GOTO(group_open(g, row, g->length, 0, e));
    TRY_GOTO(MEM_NEW(&ids, (size_t)g->length, e));
    for (; perplexity_next(&w, c.n, c.room, c.stride); windows++) TRY_GOTO(pass_window(g, &c, &w, ids, e));
    g->ns = clock_ns() - t0;
    for (size_t i = 0; i < g->n; i++) {
        const seat *t = &g->seats[i];
        json_t *own = json_pack("{s:I, s:I, s:f, s:o}", "tokens", (json_int_t)t->scored, "windows", (json_int_t)windows,
                                "loss", t->loss, "ppl", results_real(exp(t->loss / (double)windows)));
        TRY_GOTO(add_result(g, t, own, e));
    }
done:
    mem_free(ids);
    return st;
}

/* ---- a book ---- */

/* Returns the number of tokens of a book that are fed or scored per row. */
static int64_t tokens_of(const pg19_run *r, const pg19_book *b, int64_t length)
{
    return (int64_t)(r->protocol == PG19_DECODE ? fed_tokens(r, b) : cut(r, b, length).n);
}

static status run_groups(pg19_run *r, size_t book, int64_t length, err *e)
{
    const pg19_book *b = &r->books.book[book];
    bool decode = r->protocol == PG19_DECODE;
    const batch_fitting fitting = {.d = r->m.g.dec,
                                   .options = {.chunk = (size_t)r->m.o->engine.device.chunk, .max_batch = r->m.rows.n},
                                   .limit = decode ? (int64_t)fed_tokens(r, b) : length,
                                   .sessions = 1};
    size_t *row;
    TRY(MEM_NEW(&row, r->m.rows.n, e));
    size_t n = list_wanted(r, book, length, row);
    status st = ST_OK;
    for (size_t from = 0; from < n && st == ST_OK;) {
        group g = {.r = r, .book = book, .length = length};
        st = batch_fit(&g.n, &fitting, r->m.rows.run, row + from, n - from, e);
        if (from == 0 && g.n < n)
            out_note("%zu of %zu strategies fit in memory at once; the others run after them", g.n, n);
        if (st == ST_OK) st = (decode ? decode_group : window_group)(&g, row + from, e);
        group_close(&g);
        from += g.n;
        r->done += (int64_t)g.n * tokens_of(r, b, length);
    }
    mem_free(row);
    return st;
}

status pg19_run_book(void *run, size_t book, err *e)
{
    pg19_run *r = run;
    r->done = r->total = 0;
    for (size_t i = 0; i < r->n_lengths; i++)
        r->total +=
            (int64_t)list_wanted(r, book, r->length[i], NULL) * tokens_of(r, &r->books.book[book], r->length[i]);
    for (size_t i = 0; i < r->n_lengths; i++) TRY(run_groups(r, book, r->length[i], e));
    return ST_OK;
}
