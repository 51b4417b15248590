/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "generate/drafter.h"

#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "model/ngram.h"

enum {
    MOST = SESSION_VERIFY_ROWS - 1,
    WORTH_MEASURING = 256 /* least tokens of a run whose kernel is measured, which costs about 8 steps */
};

/* Sources of drafts. */
enum { LOOKUP, STRATEGY, SOURCES };

struct drafter {
    const char *spec, *what; /* what: name of the option in errors */
    comm *ranks;
    bool has[SOURCES];
    attn_spec attn; /* spec of STRATEGY */
    bool own;       /* `attn` is the verifier's strategy with other weights, and needs no draft rows */
    draft_pace pace[SOURCES];
    /* Last step: source of its drafts; tokens fed, of which the first is not a draft; number of rows, and next row to
     * choose from. */
    int by;
    int32_t fed[SESSION_VERIFY_ROWS];
    size_t rows, at;
    int64_t began_ns, draft_ns;
    bool held; /* a source withheld its drafts */
    draft_counts counts;
    bool settled, tiles; /* the kernel of attention is known; it is that of tiles */
    bool forced;
    double accept_rate; /* forced: fraction of drafts to accept */
    int32_t period;
    rng chance;
    float *row; /* see drafter_copy_logits */
};

/* ---- option syntax ---- */

/* Removes the keys of drafts from a word: n=K, and adapt=off, which drafts all K tokens in every step. */
static status take_keys(draft_pace *p, char *word, const char *what, err *e)
{
    char *to = word + strcspn(word, ":");
    pace_start(p, MOST);
    for (char *key = to, *end; *key; key = end) {
        end = key + 1 + strcspn(key + 1, ":");
        size_t n = (size_t)(end - key);
        if (n == 10 && memcmp(key, ":adapt=off", n) == 0) {
            p->fixed = true;
        } else if (strncmp(key, ":n=", 3) != 0) {
            memmove(to, key, n);
            to += n;
        } else if (n != 4 || key[3] < '1' || key[3] > '0' + MOST) {
            return err_set(e, ST_USAGE, "%s: '%.*s', expected n=1 to n=%d drafted tokens", what, (int)n - 1, key + 1,
                           (int)MOST);
        } else {
            p->most = (size_t)(key[3] - '0');
        }
    }
    *to = 0;
    return ST_OK;
}

static bool is_name(const char *word, const char *name)
{
    size_t n = strcspn(word, ":");
    return strlen(name) == n && memcmp(word, name, n) == 0;
}

static bool is_strategy(const char *word)
{
    bool is = false;
    for (const attn_method *const *m = attn_methods(); *m; m++) is |= is_name(word, attn_method_name(*m));
    return is;
}

/* Parses `ngram` or a strategy. */
static status read_word(drafter *d, char *word, const attn_spec *verifier, err *e)
{
    const attn_options o = {.kv = verifier->kv};
    err why = {0};
    draft_pace pace;
    TRY(take_keys(&pace, word, d->what, e));
    int source = is_name(word, "ngram") ? LOOKUP : STRATEGY;
    if (source == STRATEGY && !is_strategy(word))
        return err_set(e, ST_USAGE, "%s: '%.60s', expected ngram or a strategy (--help-attn list)", d->what, word);
    if (d->has[source])
        return err_set(e, ST_USAGE, "%s: '%.60s', expected ngram, a strategy, or one of each", d->what, d->spec);
    if (source == LOOKUP && word[5])
        return err_set(e, ST_USAGE, "%s: '%.60s' after ngram, expected n=1 to n=%d, or adapt=off", d->what, word + 6,
                       (int)MOST);
    status st = source == STRATEGY ? attn_spec_parse(&d->attn, word, &o, &why) : ST_OK;
    if (st != ST_OK) return err_set(e, st, "%s: %s", d->what, why.msg);
    d->has[source] = true;
    d->pace[source] = pace;
    return ST_OK;
}

static status read_spec(drafter *d, const attn_spec *verifier, err *e)
{
    char *words = mem_strdup(d->spec);
    status st = words ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
    for (char *word = words, *end; word && st == ST_OK; word = end) {
        end = strchr(word, ',');
        if (end) *end++ = 0;
        st = read_word(d, word, verifier, e);
    }
    mem_free(words);
    return st;
}

/* Sets d->own if drafts with other weights can use the verifier's own rows. */
static status take_weights(drafter *d, const char *weights, const attn_spec *verifier, err *e)
{
    if (!d->has[STRATEGY])
        return err_set(e, ST_USAGE, "--draft-weights %s: ngram drafts do not use the model; add a strategy, e.g. full",
                       weights);
    d->own = d->attn.method == verifier->method && d->attn.kv.kind == verifier->kv.kind &&
             d->attn.kv.type == verifier->kv.type;
    return ST_OK;
}

status drafter_create(drafter **out, const draft_options *o, const attn_spec *verifier, err *e)
{
    drafter *d;
    err why = {0};
    *out = NULL;
    if (!o->spec) return ST_OK;
    TRY(MEM_NEW(&d, 1, e));
    *d = (drafter){.spec = o->spec, .what = o->name, .ranks = o->ranks};
    status st = read_spec(d, verifier, e);
    if (st == ST_OK && (st = attn_verify_check(verifier, &why)) != ST_OK)
        err_set(e, st, "%s cannot be verified: %s", d->what, why.msg);
    if (st == ST_OK && o->weights) st = take_weights(d, o->weights, verifier, e);
    if (st != ST_OK) drafter_free(d);
    else *out = d;
    return st;
}

void drafter_free(drafter *d)
{
    mem_free(d);
}

session_size drafter_session(const drafter *d, int64_t n_tokens)
{
    session_size size = session_of(n_tokens);
    if (d && d->has[STRATEGY] && !d->own) size.draft = &d->attn;
    return size;
}

/* ---- steps ---- */

void drafter_begin(drafter *d)
{
    d->counts = (draft_counts){0};
}

/* Writes up to `most` drafts of a source after `all` to d->fed + 1; *n is their number. */
static status draft(drafter *d, int source, session *s, sampler *by, const token_list *all, size_t most, size_t *n,
                    err *e)
{
    *n = 0;
    if (!d->has[source]) return ST_OK;
    size_t g = pace_length(&d->pace[source]);
    TRY(comm_broadcast(d->ranks, &g, sizeof g, 0, e)); /* based on timings, which differ between ranks */
    d->held |= g == 0;
    if (g > most) g = most;
    if (source == LOOKUP) {
        *n = ngram_lookup(all->ids, all->n, d->fed + 1, g);
        return ST_OK;
    }
    if (g == 0) return ST_OK;
    TRY(session_draft(s, d->fed[0], g, by, d->fed + 1, e));
    *n = g;
    return comm_broadcast(d->ranks, d->fed + 1, g * sizeof *d->fed, 0, e);
}

/* ---- kernel of attention ---- */

/* Measures a step of `rows` rows of d->fed, which is then forgotten. */
static status probe(drafter *d, session *s, size_t rows, int64_t *ns, err *e)
{
    int64_t n = session_length(s), began = clock_ns();
    TRY(session_verify(s, d->fed, rows, e));
    *ns = clock_ns() - began;
    return session_rewind(s, n, e);
}

/* Sets d->tiles to the kernel with more tokens in the same time, by steps of one row and of as many as share a tile. */
static status measure(drafter *d, session *s, int32_t last, size_t rows, err *e)
{
    int64_t ns[2][2];
    for (size_t i = 0; i < rows; i++) d->fed[i] = last;
    TRY(probe(d, s, 1, &ns[0][0], e)); /* warms the caches */
    for (int t = 0; t < 2; t++) {
        session_decode_by(s, t);
        TRY(probe(d, s, 1, &ns[t][0], e));
        TRY(probe(d, s, rows, &ns[t][1], e));
    }
    d->tiles = pace_prefers(&d->pace[d->has[LOOKUP] ? LOOKUP : STRATEGY], rows, ns[1], ns[0]);
    for (int i = 0; i < SOURCES; i++) {
        pace_timed(&d->pace[i], 1, ns[d->tiles][0], 0, 0);
        pace_timed(&d->pace[i], rows, ns[d->tiles][1], 0, 0);
    }
    return ST_OK;
}

/* Decides the kernel of a run, and limits adaptive drafts to the rows that share a tile. */
static status settle(drafter *d, session *s, int32_t last, size_t most, err *e)
{
    const attn_decode_kernel wanted = attn_seq_spec(session_attn(s))->decode;
    size_t rows = attn_seq_tile_rows(session_attn(s));
    if (rows > SESSION_VERIFY_ROWS) rows = SESSION_VERIFY_ROWS;
    d->settled = true;
    d->tiles = wanted == ATTN_DECODE_TILES;
    const bool pays = d->forced || most >= WORTH_MEASURING, alone = !d->ranks || d->ranks->size == 1;
    if (wanted == ATTN_DECODE_AUTO && rows > 1 && rows <= most && pays && alone) TRY(measure(d, s, last, rows, e));
    session_decode_by(s, d->tiles);
    for (int i = 0; i < SOURCES && d->tiles; i++) pace_limit(&d->pace[i], rows);
    return ST_OK;
}

/* Drafts tokens after `all` and verifies them. */
static status step(drafter *d, session *s, sampler *by, const token_list *all, size_t most, err *e)
{
    size_t room = (size_t)(session_limit(s) - session_length(s)), n;
    if (most > room) most = room;
    if (!d->settled) TRY(settle(d, s, all->ids[all->n - 1], most, e));
    d->began_ns = clock_ns();
    d->fed[0] = all->ids[all->n - 1];
    d->by = LOOKUP;
    d->held = false;
    TRY(draft(d, LOOKUP, s, by, all, most - 1, &n, e));
    if (n == 0) {
        d->by = STRATEGY;
        TRY(draft(d, STRATEGY, s, by, all, most - 1, &n, e));
    }
    if (by) n = sampler_fitting(by, d->fed + 1, n);
    d->draft_ns = clock_ns() - d->began_ns;
    d->rows = n + 1;
    d->at = 0;
    d->counts.proposed += (int64_t)n;
    d->counts.verifications++;
    d->counts.withheld += n == 0 && d->held;
    return session_verify(s, d->fed, d->rows, e);
}

void drafter_force(drafter *d, double rate, int32_t period, uint64_t seed)
{
    d->forced = true;
    d->accept_rate = rate;
    d->period = period;
    d->chance = (rng){seed};
}

/* Returns the token after `last`: a drafted one with its probability, else one half a period away. Without a draft, the
 * next id. */
static int32_t force(drafter *d, int32_t last)
{
    if (d->at + 1 == d->rows) return (last + 1) % d->period;
    int32_t id = d->fed[d->at + 1];
    return (double)rng_float(&d->chance) < d->accept_rate ? id : (id + d->period / 2) % d->period;
}

/* Records times after the first choice of a step, which waited for the device. */
static void count_time(drafter *d)
{
    const draft_pace *p = &d->pace[d->by];
    int64_t ns = clock_ns() - d->began_ns - d->draft_ns;
    for (int i = 0; i < SOURCES; i++) pace_timed(&d->pace[i], d->rows, ns, i == d->by ? d->rows - 1 : 0, d->draft_ns);
    d->counts.draft_ns += d->draft_ns;
    d->counts.verify_ns += ns;
    d->counts.ns += pace_step_ns(p, d->rows) + (double)(d->rows - 1) * p->draft_ns;
}

bool drafter_ready(const drafter *d, const token_list *all)
{
    return d->at < d->rows && d->fed[d->at] == all->ids[all->n - 1];
}

void drafter_copy_logits(drafter *d, float *row)
{
    d->row = row;
}

/* Finds the row of the last of `all` that was verified ahead, or runs a verification (*fresh). */
static status advance(drafter *d, session *s, sampler *by, const token_list *all, size_t most, bool *fresh, err *e)
{
    bool ahead = d->at < d->rows, right = drafter_ready(d, all);
    if (ahead) pace_judged(&d->pace[d->by], right);
    *fresh = !right;
    if (right) {
        d->counts.accepted++;
        return ST_OK;
    }
    TRY(drafter_drop(d, s, all, e));
    return step(d, s, by, all, most, e);
}

/* Counts a used row. */
static void pass(drafter *d)
{
    if (d->at++ == 0) count_time(d);
    d->counts.tokens++;
}

status drafter_next(drafter *d, session *s, sampler *by, const token_list *all, size_t most, int32_t *id, err *e)
{
    bool fresh;
    TRY(advance(d, s, by, all, most, &fresh, e));
    if (d->row) TRY(session_verified_logits(s, d->at, d->row, e));
    TRY(session_verified(s, d->at, by, id, e));
    if (d->forced) *id = force(d, all->ids[all->n - 1]);
    pass(d);
    return ST_OK;
}

/* Copies the logits of a step. Those of its first row must be finite; rows from the next non-finite one on
 * are dropped. */
static status copy_rows(drafter *d, session *s, float *rows, size_t vocab, err *e)
{
    TRY(session_verified_logits(s, 0, rows, e));
    for (size_t i = 1; i < d->rows; i++)
        if (session_verified_logits(s, i, rows + i * vocab, NULL) != ST_OK) d->rows = i;
    return ST_OK;
}

status drafter_feed(drafter *d, session *s, sampler *by, const token_list *all, float *rows, const float **row, err *e)
{
    size_t vocab = (size_t)decoder_model(session_decoder(s))->config.vocab;
    bool fresh;
    TRY(advance(d, s, by, all, SIZE_MAX, &fresh, e));
    if (fresh) TRY(copy_rows(d, s, rows, vocab, e));
    *row = rows + d->at * vocab;
    pass(d);
    return ST_OK;
}

void drafter_forget(drafter *d)
{
    d->rows = d->at = 0;
}

status drafter_drop(drafter *d, session *s, const token_list *all, err *e)
{
    int64_t n = (int64_t)all->n - 1;
    drafter_forget(d);
    return session_length(s) > n ? session_rewind(s, n, e) : ST_OK;
}

draft_counts drafter_counts(const drafter *d)
{
    draft_counts c = d->counts;
    c.single_ns = d->pace[d->by].step_ns[1];
    c.tiles = d->tiles;
    return c;
}

const char *drafter_spec(const drafter *d)
{
    return d->spec;
}

const char *draft_kernel(const draft_counts *n)
{
    return n->tiles ? "tiles" : "rows";
}

double draft_length(const draft_counts *n)
{
    return n->verifications > 0 ? (double)n->tokens / (double)n->verifications : 0;
}

json_t *draft_json(const char *spec, const draft_counts *n)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:s}", "spec", spec, "proposed", (json_int_t)n->proposed,
                     "accepted", (json_int_t)n->accepted, "verifications", (json_int_t)n->verifications, "withheld",
                     (json_int_t)n->withheld, "accepted_length", draft_length(n), "decode", draft_kernel(n));
}

json_t *drafter_json(const drafter *d, const model *m)
{
    draft_counts n = drafter_counts(d);
    json_t *o = draft_json(d->spec, &n);
    if (o && m) {
        json_object_set_new(o, "weights", json_string(dtype_name(m->type)));
        json_object_set_new(o, "weights_bytes", json_integer((json_int_t)m->weight_bytes));
    }
    return o;
}
