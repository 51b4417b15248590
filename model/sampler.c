/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "model/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

typedef struct {
    float logit, p;
    int32_t id;
} candidate;

struct sampler {
    sampler_options opt;
    size_t vocab;
    rng random;
    unsigned char *seen; /* [vocab] */
    candidate *cand;     /* [vocab] */
};

status sampler_create(sampler **out, const sampler_options *o, size_t vocab, err *e)
{
    sampler *s;
    *out = NULL;
    if (!(o->temp >= 0 && o->temp <= 100))
        return err_set(e, ST_USAGE, "--temp %g: expected 0 to 100", o->temp);
    if (!(o->top_p > 0 && o->top_p <= 1))
        return err_set(e, ST_USAGE, "--top-p %g: expected above 0, at most 1", o->top_p);
    if (!(o->min_p >= 0 && o->min_p < 1))
        return err_set(e, ST_USAGE, "--min-p %g: expected 0 to below 1", o->min_p);
    if (o->top_k < 0) return err_set(e, ST_USAGE, "--top-k %d: expected 0 (off) or more", o->top_k);
    if (!(o->repeat_penalty > 0 && o->repeat_penalty <= 10))
        return err_set(e, ST_USAGE, "--repeat-penalty %g: expected above 0, at most 10",
                       o->repeat_penalty);
    TRY(MEM_NEW(&s, 1, e));
    s->opt = *o;
    s->vocab = vocab;
    s->random.state = o->seed;
    status st = MEM_NEW(&s->seen, vocab, e);
    if (st == ST_OK) st = MEM_NEW(&s->cand, vocab, e);
    if (st != ST_OK) sampler_free(s);
    else *out = s;
    return st;
}

void sampler_free(sampler *s)
{
    if (!s) return;
    mem_free(s->seen);
    mem_free(s->cand);
    mem_free(s);
}

void sampler_accept(sampler *s, int32_t id)
{
    if (id >= 0 && (size_t)id < s->vocab) s->seen[id] = 1;
}

int32_t logits_argmax(const float *logits, size_t vocab)
{
    size_t best = 0;
    for (size_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

static void penalize(const sampler *s, float *logits)
{
    float r = (float)s->opt.repeat_penalty;
    for (size_t i = 0; i < s->vocab; i++)
        if (s->seen[i]) logits[i] = logits[i] > 0 ? logits[i] / r : logits[i] * r;
}

static int by_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* How many of the sorted candidates survive top-k, top-p and min-p; p is set relative to the best. */
static size_t keep(const sampler *s, size_t n)
{
    candidate *c = s->cand;
    if (s->opt.top_k > 0 && (size_t)s->opt.top_k < n) n = (size_t)s->opt.top_k;
    double sum = 0, upto = 0;
    for (size_t i = 0; i < n; i++) {
        c[i].p = expf((c[i].logit - c[0].logit) / (float)s->opt.temp);
        sum += (double)c[i].p;
    }
    size_t k = 0;
    while (k < n && (k == 0 || (upto < s->opt.top_p * sum && (double)c[k].p >= s->opt.min_p)))
        upto += (double)c[k++].p;
    return k;
}

int32_t sampler_next(sampler *s, float *logits)
{
    if (s->opt.repeat_penalty != 1) penalize(s, logits);
    if (s->opt.temp == 0) return logits_argmax(logits, s->vocab);
    for (size_t i = 0; i < s->vocab; i++) s->cand[i] = (candidate){logits[i], 0, (int32_t)i};
    qsort(s->cand, s->vocab, sizeof *s->cand, by_logit);
    size_t n = keep(s, s->vocab);
    double sum = 0, x, at = 0;
    for (size_t i = 0; i < n; i++) sum += (double)s->cand[i].p;
    x = (double)rng_float(&s->random) * sum;
    for (size_t i = 0; i < n; i++) {
        at += (double)s->cand[i].p;
        if (x < at) return s->cand[i].id;
    }
    return s->cand[n - 1].id;
}
