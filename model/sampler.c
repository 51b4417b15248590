/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "model/sampler.h"

#include <math.h>
#include <stdbool.h>

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
    candidate *cand;     /* [vocab] a heap [0, n_heap), then those taken out, the best one last */
    size_t n_heap;
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

/* The likelier one; of equals the lower id. */
static bool goes_before(const candidate *a, const candidate *b)
{
    return a->logit != b->logit ? a->logit > b->logit : a->id < b->id;
}

static void sift_down(candidate *h, size_t n, size_t i)
{
    const candidate x = h[i];
    for (size_t k; (k = 2 * i + 1) < n; i = k) {
        if (k + 1 < n && goes_before(&h[k + 1], &h[k])) k++;
        if (!goes_before(&h[k], &x)) break;
        h[i] = h[k];
    }
    h[i] = x;
}

/* Number j (0: the best) of all candidates. Few are ever asked for, so they are taken from a heap:
 * sorting a vocabulary of 150,000 takes as long as a small model's decode step. */
static const candidate *best(sampler *s, size_t j)
{
    while (s->vocab - s->n_heap <= j) {
        const candidate top = s->cand[0];
        s->cand[0] = s->cand[--s->n_heap];
        sift_down(s->cand, s->n_heap, 0);
        s->cand[s->n_heap] = top;
    }
    return &s->cand[s->vocab - 1 - j];
}

/* Fills the heap; p is relative to the best one. Returns the sum of all p. */
static double fill(sampler *s, const float *logits)
{
    const float top = logits[logits_argmax(logits, s->vocab)], temp = (float)s->opt.temp;
    double sum = 0;
    for (size_t i = 0; i < s->vocab; i++) {
        s->cand[i] = (candidate){logits[i], expf((logits[i] - top) / temp), (int32_t)i};
        sum += (double)s->cand[i].p;
    }
    s->n_heap = s->vocab;
    for (size_t i = s->vocab / 2; i-- > 0;) sift_down(s->cand, s->vocab, i);
    return sum;
}

/* How many of the best survive top-k, top-p and min-p; *sum becomes that of their p. */
static size_t keep(sampler *s, double *sum)
{
    const sampler_options *o = &s->opt;
    size_t n = s->vocab, k = 0;
    double all = *sum;
    if (o->top_k > 0 && (size_t)o->top_k < n) {
        n = (size_t)o->top_k;
        all = 0;
        for (size_t i = 0; i < n; i++) all += (double)best(s, i)->p;
        *sum = all;
    }
    if (o->top_p == 1 && o->min_p == 0) return n;
    for (*sum = 0; k < n && (k == 0 || *sum < o->top_p * all); k++) {
        const double p = (double)best(s, k)->p;
        if (k > 0 && p < o->min_p) break;
        *sum += p;
    }
    return k;
}

int32_t sampler_next(sampler *s, float *logits)
{
    if (s->opt.repeat_penalty != 1) penalize(s, logits);
    if (s->opt.temp == 0) return logits_argmax(logits, s->vocab);
    double sum = fill(s, logits), at = 0;
    const size_t n = keep(s, &sum);
    const double x = (double)rng_float(&s->random) * sum;
    for (size_t i = 0; i + 1 < n; i++) {
        at += (double)best(s, i)->p;
        if (x < at) return best(s, i)->id;
    }
    return best(s, n - 1)->id;
}
