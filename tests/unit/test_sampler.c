/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/rng.h"
#include "model/sampler.h"
#include "tests/tap.h"

enum { V = 5, DRAWS = 20000 };

static const float logits[V] = {1, 3, 2, 3, -1};

/* Shares of each id over many draws. */
static void shares(const sampler_options *o, int32_t seen, double out[V])
{
    err e = {0};
    sampler *s;
    memset(out, 0, V * sizeof *out);
    if (!is_ok(sampler_create(&s, o, V, &e), &e, "sampler")) return;
    if (seen >= 0) sampler_accept(s, seen);
    for (int i = 0; i < DRAWS; i++) {
        float l[V];
        memcpy(l, logits, sizeof l);
        out[sampler_next(s, l)] += 1.0 / DRAWS;
    }
    sampler_free(s);
}

static void check_softmax(double temp)
{
    double got[V], sum = 0, worst = 0;
    sampler_options o = {.temp = temp, .top_p = 1, .repeat_penalty = 1, .seed = 1};
    shares(&o, -1, got);
    for (int i = 0; i < V; i++) sum += exp((double)logits[i] / temp);
    for (int i = 0; i < V; i++)
        worst = fmax(worst, fabs(got[i] - exp((double)logits[i] / temp) / sum));
    ok(worst < 0.02, "temperature %g: shares follow the softmax (worst difference %.4f)", temp,
       worst);
}

static void check_cuts(void)
{
    double got[V];
    sampler_options o = {.temp = 1, .top_p = 1, .repeat_penalty = 1, .top_k = 2, .seed = 1};
    shares(&o, -1, got);
    ok(got[1] > 0.45 && got[3] > 0.45 && got[1] + got[3] > 0.9999, "top-k 2 keeps the two best");
    o.top_k = 1;
    shares(&o, -1, got);
    ok(got[1] > 0.9999, "of equals the lower id");
    o = (sampler_options){.temp = 1, .top_p = 0.5, .repeat_penalty = 1, .seed = 1};
    shares(&o, -1, got);
    ok(got[1] + got[3] > 0.9999 && got[3] > 0.4, "top-p 0.5 keeps the two that reach it");
    o = (sampler_options){.temp = 1, .top_p = 1, .min_p = 0.3, .repeat_penalty = 1, .seed = 1};
    shares(&o, -1, got);
    ok(got[2] > 0.1 && got[0] + got[4] == 0, "min-p 0.3 drops what is below 0.3 of the best");
    o = (sampler_options){.temp = 0, .top_p = 1, .repeat_penalty = 2};
    shares(&o, 1, got);
    ok(got[3] > 0.9999, "the repetition penalty divides positive logits");
    o = (sampler_options){.temp = 0, .top_p = 1, .repeat_penalty = 1};
    shares(&o, -1, got);
    ok(got[1] > 0.9999, "temperature 0 is greedy, the lower id of equals");
}

/* ---- against a whole sort ---- */

enum { WIDE = 5000 };

typedef struct {
    float logit;
    double p;
    int32_t id;
} entry;

static int by_logit(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->logit < y->logit || x->logit > y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The id at share u of what the options leave. *near: rounding may decide. */
static int32_t slow_next(const sampler_options *o, const float *l, double u, bool *near)
{
    static entry e[WIDE];
    double all = 0, kept = 0, at = 0;
    size_t n = WIDE, k = 0;
    for (int i = 0; i < WIDE; i++) e[i] = (entry){l[i], 0, i};
    qsort(e, WIDE, sizeof *e, by_logit);
    if (o->top_k > 0) n = (size_t)o->top_k;
    for (size_t i = 0; i < n; i++) {
        e[i].p = exp(((double)e[i].logit - (double)e[0].logit) / o->temp);
        all += e[i].p;
    }
    *near = false;
    for (; k < n && (k == 0 || (kept < o->top_p * all && e[k].p >= o->min_p)); k++) {
        *near |= fabs(kept / all - o->top_p) < 1e-5 && o->top_p < 1;
        kept += e[k].p;
    }
    for (size_t i = 0; i < k; i++) {
        at += e[i].p;
        *near |= fabs(at / kept - u) < 1e-5;
        if (u * kept < at) return e[i].id;
    }
    return e[k - 1].id;
}

static void check_sort(void)
{
    static const sampler_options options[] = {
        {.temp = 1, .top_p = 1, .repeat_penalty = 1},
        {.temp = 0.8, .top_p = 0.95, .repeat_penalty = 1},
        {.temp = 1.5, .top_p = 0.3, .repeat_penalty = 1},
        {.temp = 2, .top_p = 1, .top_k = 40, .repeat_penalty = 1},
        {.temp = 2, .top_p = 0.9, .top_k = 3000, .min_p = 0.01, .repeat_penalty = 1},
        {.temp = 3, .top_p = 1, .min_p = 0.2, .repeat_penalty = 1},
    };
    rng r = {5};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        err e = {0};
        sampler *s;
        sampler_options o = options[i];
        o.seed = 11;
        rng draws = {o.seed};
        int wrong = 0, compared = 0;
        if (!is_ok(sampler_create(&s, &o, WIDE, &e), &e, "sampler %zu", i)) continue;
        for (int k = 0; k < 200; k++) {
            float l[WIDE];
            bool near;
            for (int j = 0; j < WIDE; j++) l[j] = (float)rng_below(&r, 300) / 20; /* many equals */
            int32_t want = slow_next(&o, l, (double)rng_float(&draws), &near);
            int32_t got = sampler_next(s, l);
            if (near) continue;
            compared++;
            wrong += got != want;
        }
        ok(wrong == 0 && compared > 100, "options %zu: %d of %d draws differ from a whole sort", i,
           wrong, compared);
        sampler_free(s);
    }
}

static void check_errors(void)
{
    static const struct {
        sampler_options o;
        const char *part;
    } bad[] = {
        {{.temp = -1, .top_p = 1, .repeat_penalty = 1}, "--temp"},
        {{.temp = NAN, .top_p = 1, .repeat_penalty = 1}, "--temp"},
        {{.temp = 1, .top_p = 0, .repeat_penalty = 1}, "--top-p"},
        {{.temp = 1, .top_p = 1, .min_p = 1, .repeat_penalty = 1}, "--min-p"},
        {{.temp = 1, .top_p = 1, .top_k = -1, .repeat_penalty = 1}, "--top-k"},
        {{.temp = 1, .top_p = 1, .repeat_penalty = 0}, "--repeat-penalty"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        sampler *s;
        is_err(sampler_create(&s, &bad[i].o, V, &e), &e, ST_USAGE, bad[i].part, "bad %s",
               bad[i].part);
    }
}

int main(void)
{
    check_softmax(1);
    check_softmax(0.5);
    check_cuts();
    check_sort();
    check_errors();
    return tap_done();
}
