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
    int32_t *seen;          /* [vocab] each id once */
    size_t n_seen;
    draw *draw;
};

status sampler_create(sampler **out, const sampler_options *o, size_t vocab, err *e)
{
    sampler *s;
    *out = NULL;
    if (!(o->temp >= 0 && o->temp <= 100)) return err_set(e, ST_USAGE, "--temp %g: expected 0 to 100", o->temp);
    if (!(o->top_p > 0 && o->top_p <= 1))
        return err_set(e, ST_USAGE, "--top-p %g: expected above 0, at most 1", o->top_p);
    if (!(o->min_p >= 0 && o->min_p < 1)) return err_set(e, ST_USAGE, "--min-p %g: expected 0 to below 1", o->min_p);
    if (o->top_k < 0) return err_set(e, ST_USAGE, "--top-k %d: expected 0 (off) or more", o->top_k);
    if (!(o->repeat_penalty > 0 && o->repeat_penalty <= 10))
        return err_set(e, ST_USAGE, "--repeat-penalty %g: expected above 0, at most 10", o->repeat_penalty);
    TRY(MEM_NEW(&s, 1, e));
    s->opt = *o;
    s->vocab = vocab;
    s->random.state = o->seed;
    status st = MEM_NEW(&s->is_seen, vocab, e);
    if (st == ST_OK) st = MEM_NEW(&s->seen, vocab, e);
    if (st == ST_OK) st = draw_create(&s->draw, vocab, e);
    if (st != ST_OK) sampler_free(s);
    else *out = s;
    return st;
}

void sampler_free(sampler *s)
{
    if (!s) return;
    mem_free(s->seen);
    mem_free(s->is_seen);
    draw_free(s->draw);
    mem_free(s);
}

void sampler_accept(sampler *s, int32_t id)
{
    if (id < 0 || (size_t)id >= s->vocab || s->is_seen[id]) return;
    s->is_seen[id] = 1;
    s->seen[s->n_seen++] = id;
}

size_t sampler_seen(const sampler *s)
{
    return s->n_seen;
}

void sampler_forget(sampler *s, size_t n)
{
    while (s->n_seen > n) s->is_seen[s->seen[--s->n_seen]] = 0;
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

static void penalize(const sampler *s, float *logits)
{
    float r = (float)s->opt.repeat_penalty;
    for (size_t i = 0; i < s->n_seen; i++) {
        float *x = &logits[s->seen[i]];
        *x = *x > 0 ? *x / r : *x * r;
    }
}

bool sampler_is_plain(const sampler *s)
{
    return s->opt.repeat_penalty == 1;
}

draw_rule sampler_rule(const sampler *s, int64_t pos)
{
    return (draw_rule){.temp = (float)s->opt.temp,
                       .top_k = (size_t)s->opt.top_k,
                       .top_p = s->opt.top_p,
                       .min_p = s->opt.min_p,
                       .how = s->opt.draw,
                       .seed = s->random.state,
                       .pos = pos,
                       .work = s->draw};
}

float sampler_share(sampler *s)
{
    return s->opt.temp == 0 || s->opt.draw == DRAW_GUMBEL ? 0 : rng_float(&s->random);
}

int32_t sampler_next(sampler *s, float *logits, int64_t pos)
{
    draw_rule r = sampler_rule(s, pos);
    if (!sampler_is_plain(s)) penalize(s, logits);
    return (int32_t)draw_by_rule(&r, logits, s->vocab, sampler_share(s));
}
