/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <stddef.h>

#include "attention/certify.h"

#define AT(member) (at + offsetof(attn_certify, member))

/* Returns the reason why a store's key bounds cannot certify; NULL: they can. */
static const char *without_bound(const kv_format *f)
{
    if (kv_in_blocks(f)) return NULL;
    if (f->bits < 4) return "bounds from 2-bit keys certify nothing; use 4 bits";
    if (f->hf && !f->float_zero) return "the offset of a run is one byte and may wrap, so its keys have no bound";
    return NULL;
}

float certify_eps(int64_t value)
{
    return nextafterf((float)value / ATTN_FRACTION, 0);
}

status certify_check(const attn_spec *s, float eps, gqa_mode gqa, bool p, err *e)
{
    char store[64];
    if (eps == 0) return ST_OK;
    kv_format_text(&s->kv, store, sizeof store);
    if (without_bound(&s->kv))
        return err_set(e, ST_USAGE, "%s: certify over store %s: %s", s->text, store, without_bound(&s->kv));
    if (gqa == GQA_MEAN_Q || gqa >= GQA_LAYER_MEAN)
        return err_set(e, ST_USAGE,
                       "%s: certify requires scores per query head: gqa=per_q, mean_s, sum_s, max_s or vote", s->text);
    if (p) return err_set(e, ST_USAGE, "%s: p and certify are mutually exclusive", s->text);
    return ST_OK;
}

void certify_declare(attn_decl *d, size_t at, int64_t columns)
{
    size_t heads = (size_t)d->shape->n_heads, layers = (size_t)d->shape->n_layers;
    decl_scratch(d, AT(error), "bounds of keys", heads * sizeof(float), columns);
    decl_bytes(d, MEM_SCRATCH, AT(bound), "certificates", layers * heads * sizeof(float));
    decl_bytes(d, MEM_SCRATCH, AT(counts), "certificates", CERTIFY_COUNTS * sizeof(uint64_t));
}

void certify_reset(attn_certify *c, const attn_view *v, float eps)
{
    static const uint64_t zero[CERTIFY_COUNTS];
    c->eps = eps;
    if (eps > 0) v->be->ops->upload(v->be, c->counts, zero, sizeof zero);
}

/* Returns a quantile of the tokens per list, to 1/32. */
static int64_t tokens_at(const uint64_t *counts, double fraction)
{
    uint64_t n = 0;
    int bin = 0;
    for (; bin < CERTIFY_COUNTS - CERTIFY_BINS; bin++) {
        n += counts[CERTIFY_BINS + bin];
        if (n > 0 && (double)n >= fraction * (double)counts[CERTIFY_LISTS]) break;
    }
    return min64(certify_bin_most(bin), (int64_t)counts[CERTIFY_MOST]);
}

attn_certified certify_counted(const attn_certify *c, backend *be)
{
    uint64_t n[CERTIFY_COUNTS];
    be->ops->download(be, n, c->counts, sizeof n);
    double lists = n[CERTIFY_LISTS] ? (double)n[CERTIFY_LISTS] : 1,
           done = n[CERTIFY_DONE] ? (double)n[CERTIFY_DONE] : 1;
    return (attn_certified){.heads = (int64_t)n[CERTIFY_HEADS],
                            .certified = (int64_t)n[CERTIFY_DONE],
                            .bound_mean = (double)n[CERTIFY_BOUNDS] * 0x1p-32 / done,
                            .bound_most = (double)n[CERTIFY_LARGEST] * 0x1p-32,
                            .lists = (int64_t)n[CERTIFY_LISTS],
                            .whole = (int64_t)n[CERTIFY_WHOLE],
                            .tokens_mean = (double)n[CERTIFY_TOKENS] / lists,
                            .tokens_p10 = tokens_at(n, 0.1),
                            .tokens_p90 = tokens_at(n, 0.9),
                            .tokens_most = (int64_t)n[CERTIFY_MOST]};
}
