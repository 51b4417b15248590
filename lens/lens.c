/* SPDX-License-Identifier: MIT */
/* Sessions of a lens and their forward passes. */
#include "config.h"

#include "lens/lens.h"

#include <string.h>

#include "lens/lens_impl.h"
#include "kernels/base/mem.h"

static size_t vocab_of(const lens *l)
{
    return (size_t)decoder_model(l->o.dec)->config.vocab;
}

static size_t keys_bytes(const attn_shape *shape, int64_t cap)
{
    return (size_t)shape->n_kv_heads * (size_t)cap * (size_t)shape->head_dim * sizeof(float);
}

/* ---- memory ---- */

status lens_plan(size_t *bytes, const lens_options *o, const decoder_options *d, err *e)
{
    const model *m = decoder_model(o->dec);
    const attn_shape *sh = decoder_attn_shape(o->dec);
    int64_t cap = (int64_t)(o->n_ids + o->n_new);
    /* keys twice; scores and shares; selected and mark */
    *bytes = 2 * keys_bytes(sh, cap) + (size_t)cap * (2 * (size_t)sh->n_heads * sizeof(double) + 32);
    for (size_t i = 0; i <= o->n; i++) {
        memory_plan p;
        TRY(session_plan(&p, m, d, i == 0 ? o->full : &o->spec[i - 1], session_of(cap), e));
        *bytes += p.kv + p.index;
    }
    *bytes += o->n * ((size_t)sh->n_layers * ((size_t)cap + 7) / 8 + (size_t)cap * sizeof(double));
    return ST_OK;
}

static status run_open(lens *l, lens_run *r, const attn_spec *spec, session *s, err *e)
{
    const attn_shape *sh = l->shape;
    size_t layers = (size_t)sh->n_layers;
    r->spec = spec;
    r->s = s;
    TRY(MEM_NEW(&r->dense, layers, e));
    TRY(MEM_NEW(&r->bits, layers * l->row, e));
    TRY(MEM_NEW(&r->reads, l->n_bins, e));
    TRY(MEM_NEW(&r->missed_at, (size_t)l->cap, e));
    TRY(MEM_NEW(&r->missed_by, layers * (size_t)sh->n_kv_heads, e));
    for (int k = 0; k < sh->n_layers; k++) r->dense[k] = attn_is_dense(spec, sh, k);
    return ST_OK;
}

static void run_close(lens_run *r)
{
    mem_free(r->dense);
    mem_free(r->bits);
    mem_free(r->reads);
    mem_free(r->missed_at);
    mem_free(r->missed_by);
}

void lens_close(lens *l)
{
    if (!l) return;
    for (size_t i = 0; i < l->o.n; i++) run_close(&l->run[i]);
    for (size_t i = 0; i <= l->o.n; i++) session_free(l->s[i]);
    if (l->keys.p) l->be->ops->free(l->be, l->keys, keys_bytes(l->shape, l->cap));
    mem_free(l->logits);
    mem_free(l->k);
    mem_free(l->q);
    mem_free(l->query.score);
    mem_free(l->query.share);
    mem_free(l->selected);
    mem_free(l->mark);
    token_stream_free(l->stream);
    mem_free(l);
}

static status open_arrays(lens *l, err *e)
{
    const attn_shape *sh = l->shape;
    size_t cap = (size_t)l->cap, heads = (size_t)sh->n_heads;
    TRY(l->be->ops->alloc(l->be, &l->keys, keys_bytes(sh, l->cap), "keys", e));
    TRY(MEM_NEW(&l->k, keys_bytes(sh, l->cap) / sizeof *l->k, e));
    TRY(MEM_NEW(&l->q, heads * (size_t)sh->head_dim, e));
    TRY(MEM_NEW(&l->query.score, heads * cap, e));
    TRY(MEM_NEW(&l->query.share, heads * cap, e));
    TRY(MEM_NEW(&l->selected, 2 * cap, e));
    TRY(MEM_NEW(&l->mark, cap, e));
    TRY(MEM_NEW(&l->logits, (1 + l->o.n) * vocab_of(l), e));
    l->rows = (exact_rows){.shape = sh, .k = l->k, .cap = l->cap};
    l->query.rows = &l->rows;
    l->query.q = l->q;
    return token_stream_create(&l->stream, l->o.tok, e);
}

/* Groups neighbouring sessions that can share the computation of the prompt. */
static void find_groups(lens *l)
{
    size_t first = 0;
    for (size_t i = 0; i <= l->o.n; i++) {
        if (i > first && !session_can_share(l->s[first], l->s[i], l->o.n_ids - 1)) first = i;
        l->group[first]++;
    }
}

static status open_all(lens *l, err *e)
{
    const lens_options *o = &l->o;
    TRY(open_arrays(l, e));
    for (size_t i = 0; i <= o->n; i++)
        TRY(session_create(&l->s[i], o->dec, i == 0 ? o->full : &o->spec[i - 1], session_of(l->cap), e));
    for (size_t i = 0; i < o->n; i++) TRY(run_open(l, &l->run[i], &o->spec[i], l->s[i + 1], e));
    find_groups(l);
    l->next = o->ids[o->n_ids - 1];
    return lens_begin(l, e);
}

status lens_open(lens **out, const lens_options *o, err *e)
{
    lens *l;
    *out = NULL;
    if (o->n_ids < 2) return err_set(e, ST_USAGE, "the prompt has %zu tokens; at least 2 are needed", o->n_ids);
    if (o->n < 1 || o->n > LENS_STRATEGIES)
        return err_set(e, ST_USAGE, "%zu strategies, expected 1 to %d", o->n, LENS_STRATEGIES);
    if (o->n_new < 1) return err_set(e, ST_USAGE, "at least one new token is needed");
    TRY(MEM_NEW(&l, 1, e));
    l->o = *o;
    l->shape = decoder_attn_shape(o->dec);
    l->be = decoder_model(o->dec)->be;
    l->cap = (int64_t)(o->n_ids + o->n_new);
    l->row = ((size_t)l->cap + 7) / 8;
    l->bin = (o->n_ids + LENS_BINS - 1) / LENS_BINS;
    l->n_bins = (o->n_ids + l->bin - 1) / l->bin;
    status st = open_all(l, e);
    if (st != ST_OK) lens_close(l);
    else *out = l;
    return st;
}

/* ---- forwards ---- */

static status feed_chunk(lens *l, err *e)
{
    size_t all = l->o.n_ids - 1, left = all - l->fed, n = (size_t)decoder_chunk(l->o.dec);
    if (n > left) n = left;
    const prefill_options o = {.which = LOGITS_LAST, .before = l->fed, .after = left - n};
    TRY(session_prefill(&l->s[l->first], l->group[l->first], l->o.ids + l->fed, n, &o, e));
    l->fed += n;
    if (l->fed < all) return ST_OK;
    l->first += l->group[l->first];
    l->fed = 0;
    return ST_OK;
}

static status step(lens *l, err *e)
{
    int32_t ids[1 + LENS_STRATEGIES], choice[1 + LENS_STRATEGIES];
    size_t n = 1 + l->o.n;
    for (size_t i = 0; i < n; i++) ids[i] = l->next;
    lens_before(l);
    attn_watch(decoder_attn_work(l->o.dec), lens_watch, l);
    status st = session_decode(l->s, n, ids, l->logits, e);
    attn_watch(decoder_attn_work(l->o.dec), NULL, NULL);
    TRY(st);
    for (size_t i = 0; i < n; i++) choice[i] = logits_argmax(l->logits + i * vocab_of(l), vocab_of(l));
    for (size_t i = 1; i < n; i++) l->run[i - 1].choice = choice[i];
    l->next = choice[l->o.drive];
    TRY(lens_record_step(l, l->next, e));
    l->step++;
    l->ended = l->step == l->o.n_new || (tokenizer_is_eos(l->o.tok, l->next) && !l->o.ignore_eos);
    return l->ended ? lens_end(l, e) : ST_OK;
}

status lens_advance(lens *l, bool *done, err *e)
{
    status st = ST_OK;
    if (!l->ended) st = l->first <= l->o.n ? feed_chunk(l, e) : step(l, e);
    *done = l->ended;
    return st;
}

/* ---- queries ---- */

void lens_progress(const lens *l, int64_t *done, int64_t *total)
{
    size_t all = l->o.n_ids - 1, chunk = (size_t)decoder_chunk(l->o.dec), chunks = (all + chunk - 1) / chunk,
           groups = 0;
    size_t done_groups = 0;
    for (size_t i = 0; i <= l->o.n; i++) {
        groups += l->group[i] != 0;
        done_groups += l->group[i] != 0 && i < l->first;
    }
    *total = (int64_t)(groups * chunks + l->o.n_new);
    *done = (int64_t)(done_groups * chunks + (l->fed + chunk - 1) / chunk + l->step);
}

size_t lens_steps(const lens *l)
{
    return l->step;
}

lens_means lens_mean(const lens *l, size_t strategy)
{
    const lens_means *sum = &l->run[strategy].sum;
    double n = l->step ? (double)l->step : 1;
    return (lens_means){sum->attended / n, sum->missed / n};
}

const uint8_t *lens_bits(const lens *l, size_t strategy, size_t *row)
{
    *row = l->row;
    return l->run[strategy].bits;
}
