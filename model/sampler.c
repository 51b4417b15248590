/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "model/sampler.h"

#include <math.h>

#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

struct sampler {
    sampler_options opt;
    size_t vocab;
    rng random;
    unsigned char *is_seen; /* [vocab] */
    int32_t *seen;          /* [vocab], each id once */
    int32_t *generated;     /* [vocab], how often each id was generated */
    sampler_counts n;
    draw *draw;
    sampler_limit limit; /* without functions: none */
};

/* Fails unless x is in [low, high], or with `above` in (low, high]. */
static status check_range(const char *option, double x, bool above, double low, double high, err *e)
{
    if ((above ? x > low : x >= low) && x <= high) return ST_OK;
    return err_set(e, ST_USAGE, "%s %g: must be in %c%g, %g]", option, x, above ? '(' : '[', low, high);
}

static status check_options(const sampler_options *o, err *e)
{
    TRY(check_range("--temp", o->temp, false, 0, 100, e));
    TRY(check_range("--top-p", o->top_p, false, 0, 1, e));
    TRY(check_range("--min-p", o->min_p, false, 0, 1, e));
    TRY(check_range("--repeat-penalty", o->repeat_penalty, true, 0, 10, e));
    TRY(check_range("--presence-penalty", o->presence_penalty, false, -2, 2, e));
    TRY(check_range("--frequency-penalty", o->frequency_penalty, false, -2, 2, e));
    return o->top_k >= 0 ? ST_OK : err_set(e, ST_USAGE, "--top-k %d: must be 0 (off) or more", o->top_k);
}

status sampler_create(sampler **out, const sampler_options *o, size_t vocab, err *e)
{
    sampler *s;
    *out = NULL;
    TRY(check_options(o, e));
    TRY(MEM_NEW(&s, 1, e));
    s->opt = *o;
    s->vocab = vocab;
    s->random.state = o->seed;
    status st = MEM_NEW(&s->is_seen, vocab, e);
    if (st == ST_OK) st = MEM_NEW(&s->seen, vocab, e);
    if (st == ST_OK) st = MEM_NEW(&s->generated, vocab, e);
    if (st == ST_OK) st = draw_create(&s->draw, vocab, e);
    if (st != ST_OK) sampler_free(s);
    else *out = s;
    return st;
}

void sampler_free(sampler *s)
{
    if (!s) return;
    mem_free(s->seen);
    mem_free(s->generated);
    mem_free(s->is_seen);
    draw_free(s->draw);
    mem_free(s);
}

void sampler_accept(sampler *s, int32_t id)
{
    if (id < 0 || (size_t)id >= s->vocab || s->is_seen[id]) return;
    s->is_seen[id] = 1;
    s->seen[s->n.seen++] = id;
}

void sampler_accept_new(sampler *s, int32_t id)
{
    sampler_accept(s, id);
    s->n.generated++;
    if (s->limit.accept) s->limit.accept(s->limit.ctx, id);
    if (id >= 0 && (size_t)id < s->vocab) s->generated[id]++;
}

void sampler_begin(sampler *s)
{
    for (size_t i = 0; i < s->n.seen; i++) s->generated[s->seen[i]] = 0;
    s->n.generated = 0;
}

sampler_counts sampler_counted(const sampler *s)
{
    return s->n;
}

void sampler_forget(sampler *s, sampler_counts to, const int32_t *ids)
{
    if (s->limit.forget) s->limit.forget(s->limit.ctx, s->n.generated - to.generated);
    while (s->n.seen > to.seen) s->is_seen[s->seen[--s->n.seen]] = 0;
    for (; s->n.generated > to.generated; ids++, s->n.generated--)
        if (*ids >= 0 && (size_t)*ids < s->vocab) s->generated[*ids]--;
}

uint64_t sampler_random(const sampler *s)
{
    return s->random.state;
}

void sampler_set_random(sampler *s, uint64_t state)
{
    s->random.state = state;
}

int32_t logits_argmax(const float *logits, size_t vocab)
{
    return (int32_t)draw_first(logits, vocab);
}

double logits_nll(const float *logits, size_t vocab, int32_t id)
{
    float top = logits[0];
    double sum = 0;
    for (size_t i = 1; i < vocab; i++)
        if (logits[i] > top) top = logits[i];
    for (size_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - (double)top);
    return (double)top + log(sum) - (double)logits[id];
}

/* ---- the constraint ---- */

void sampler_restrict(sampler *s, const sampler_limit *limit)
{
    s->limit = limit ? *limit : (sampler_limit){0};
}

size_t sampler_fitting(const sampler *s, const int32_t *ids, size_t n)
{
    return s->limit.fitting ? s->limit.fitting(s->limit.ctx, ids, n) : n;
}

/* Sets the logits of tokens that are not allowed to -INFINITY. If no other logit is finite, the lowest allowed token is
 * certain. False: no token is allowed. */
static bool mask(const sampler *s, float *logits)
{
    const uint64_t *set = s->limit.allowed(s->limit.ctx);
    size_t first = s->vocab;
    bool finite = false;
    for (size_t at = 0; at < s->vocab; at += 64) {
        const uint64_t word = set[at / 64];
        const size_t n = s->vocab - at < 64 ? s->vocab - at : 64;
        if (word && first == s->vocab) first = at + (size_t)__builtin_ctzll(word);
        for (size_t i = 0; i < n; i++) {
            if (!(word >> i & 1)) logits[at + i] = -INFINITY;
            finite |= logits[at + i] > -INFINITY;
        }
    }
    if (first < s->vocab && !finite) logits[first] = 0;
    return first < s->vocab;
}

static void penalize(const sampler *s, float *logits)
{
    float r = (float)s->opt.repeat_penalty;
    for (size_t i = 0; i < s->n.seen; i++) {
        const int32_t n = s->generated[s->seen[i]];
        float *x = &logits[s->seen[i]];
        *x = *x > 0 ? *x / r : *x * r;
        if (n > 0) *x -= (float)(n * s->opt.frequency_penalty + s->opt.presence_penalty);
    }
}

bool sampler_is_plain(const sampler *s)
{
    return !s->limit.allowed && s->opt.repeat_penalty == 1 && s->opt.presence_penalty == 0 &&
           s->opt.frequency_penalty == 0;
}

/* Returns the temperature, 0 for a greedy choice. */
static double temperature(const sampler *s)
{
    return s->opt.top_p > 0 ? s->opt.temp : 0;
}

draw_rule sampler_rule(const sampler *s, int64_t pos)
{
    return (draw_rule){.temp = (float)temperature(s),
                       .top_k = (size_t)s->opt.top_k,
                       .top_p = s->opt.top_p,
                       .min_p = s->opt.min_p,
                       .how = s->opt.draw,
                       .seed = s->random.state,
                       .pos = pos,
                       .work = s->draw};
}

float sampler_uniform(sampler *s)
{
    return temperature(s) == 0 || s->opt.draw == DRAW_GUMBEL ? 0 : rng_float(&s->random);
}

int32_t sampler_next(sampler *s, float *logits, int64_t pos)
{
    draw_rule r = sampler_rule(s, pos);
    if (s->limit.allowed && !mask(s, logits)) return -1;
    if (!sampler_is_plain(s)) penalize(s, logits);
    return (int32_t)draw_by_rule(&r, logits, s->vocab, sampler_uniform(s));
}
