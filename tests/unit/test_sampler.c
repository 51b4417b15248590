/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/gumbel.h"
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
        out[sampler_next(s, l, i)] += 1.0 / DRAWS;
    }
    sampler_free(s);
}

static void check_softmax(double temp, draw_how how)
{
    double got[V], sum = 0, worst = 0;
    sampler_options o = {.temp = temp, .top_p = 1, .repeat_penalty = 1, .seed = 1, .draw = how};
    shares(&o, -1, got);
    for (int i = 0; i < V; i++) sum += exp((double)logits[i] / temp);
    for (int i = 0; i < V; i++) worst = fmax(worst, fabs(got[i] - exp((double)logits[i] / temp) / sum));
    ok(worst < 0.02, "temperature %g, %s: shares follow the softmax (worst difference %.4f)", temp, draw_names[how],
       worst);
}

static void check_greedy(void)
{
    double got[V];
    sampler_options o = {.temp = 0, .top_p = 1, .repeat_penalty = 2};
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

/* The id with the most of logit and noise, of k entries. */
static int32_t noisiest(const sampler_options *o, const entry *e, size_t k, int64_t pos, bool *near)
{
    long double best = (long double)-INFINITY, next = (long double)-INFINITY;
    int32_t id = -1;
    for (size_t i = 0; i < k; i++) {
        long double u = ((long double)gumbel_bits(o->seed, pos, (uint32_t)e[i].id) + 0.5L) * 0x1p-53L;
        long double score = (long double)e[i].logit / (long double)(float)o->temp - logl(-logl(u));
        if (score > best || (score >= best && e[i].id < id)) next = best, best = score, id = e[i].id;
        else if (score > next) next = score;
    }
    *near |= best - next < 1e-9L * fmaxl(1, fabsl(best));
    return id;
}

/* The id at share u of what the options leave, or by the noise of a position. *near: rounding may decide. */
static int32_t slow_next(const sampler_options *o, const float *l, size_t vocab, double u, int64_t pos, bool *near)
{
    static entry e[WIDE];
    double all = 0, kept = 0, at = 0;
    size_t n = vocab, k = 0;
    for (size_t i = 0; i < n; i++) {
        double x = isnan(l[i]) ? (double)-INFINITY : (double)l[i];
        e[i] = (entry){(float)fmin(fmax(x, (double)-FLT_MAX), (double)FLT_MAX), 0, (int32_t)i};
    }
    qsort(e, n, sizeof *e, by_logit);
    if (o->top_k > 0 && (size_t)o->top_k < n) n = (size_t)o->top_k;
    for (size_t i = 0; i < n; i++) {
        e[i].p = exp(((double)e[i].logit - (double)e[0].logit) / o->temp);
        all += e[i].p;
    }
    *near = false;
    for (; k < n && (k == 0 || (kept < o->top_p * all && e[k].p >= o->min_p)); k++) {
        *near |= fabs(kept / all - o->top_p) < 1e-5 && o->top_p < 1;
        kept += e[k].p;
    }
    if (o->draw == DRAW_GUMBEL) return noisiest(o, e, k, pos, near);
    for (size_t i = 0; i < k; i++) {
        at += e[i].p;
        *near |= fabs(at / kept - u) < 1e-5;
        if (u * kept < at) return e[i].id;
    }
    return e[k - 1].id;
}

/* Kinds of logits: many equal ones; all different; with what is not finite; all equal; two values; a steep
 * distribution; nothing finite. */
enum { KINDS = 7 };

static void make_logits(float *l, size_t n, int kind, rng *r)
{
    const float odd[] = {NAN, -INFINITY, -NAN, -FLT_MAX, -0.0f, 0};
    for (size_t i = 0; i < n; i++) {
        float x = rng_float(r) + rng_float(r) + rng_float(r);
        uint64_t k = rng_below(r, 8);
        l[i] = 4 * x;
        if (kind == 0) l[i] = (float)rng_below(r, 300) / 20;
        if (kind == 2 && k < 6) l[i] = odd[k];
        if (kind == 3) l[i] = k < 4 ? 0.0f : -0.0f;
        if (kind == 4) l[i] = k < 4 ? 1 : 0.99999994f;
        if (kind == 5) l[i] = 90 * x;
        if (kind == 6) l[i] = odd[k % 4];
    }
    if (kind == 2) l[rng_below(r, n)] = INFINITY;
}

static void check_sort(size_t vocab, int draws, draw_how how)
{
    static const sampler_options options[] = {
        {.temp = 1, .top_p = 1, .repeat_penalty = 1},
        {.temp = 0.8, .top_p = 0.95, .repeat_penalty = 1},
        {.temp = 1.5, .top_p = 0.3, .repeat_penalty = 1},
        {.temp = 1, .top_p = 0.9999, .repeat_penalty = 1},
        {.temp = 1, .top_p = 1e-4, .repeat_penalty = 1},
        {.temp = 1e-30, .top_p = 1, .repeat_penalty = 1},
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
        o.draw = how;
        rng random = {o.seed};
        int wrong = 0, compared = 0, greedy = 0;
        if (!is_ok(sampler_create(&s, &o, vocab, &e), &e, "sampler %zu", i)) continue;
        for (int k = 0; k < draws * KINDS; k++) {
            static float l[WIDE];
            bool near;
            make_logits(l, vocab, k % KINDS, &r);
            int32_t want = slow_next(&o, l, vocab, (double)rng_float(&random), k, &near), first = -1;
            for (size_t j = 0; j < vocab; j++)
                if (!isnan(l[j]) && (first < 0 || l[j] > l[first])) first = (int32_t)j;
            greedy += logits_argmax(l, vocab) != (first < 0 ? 0 : first);
            long before = mem_test_count();
            int32_t got = sampler_next(s, l, k);
            wrong += mem_test_count() != before;
            if (near) continue;
            compared++;
            wrong += got != want;
        }
        ok(wrong == 0 && compared > draws, "%zu ids, %s, options %zu: %d of %d draws differ from a whole sort", vocab,
           draw_names[how], i, wrong, compared);
        is_int(greedy, 0, "%zu ids: the most likely one", vocab);
        sampler_free(s);
    }
}

/* ---- the kernels, on all tails ---- */

enum { TAILS = 150 };

static void check_kernels(const cpu_kernels *k)
{
    rng r = {3};
    int clamped = 0, wrong = 0;
    double off = 0;
    for (size_t n = 1; n <= TAILS; n++) {
        float x[TAILS], p[TAILS], top = -FLT_MAX;
        double part[TAILS / DRAW_PART + 1], again[TAILS / DRAW_PART + 1], sum[2], want[2] = {0, 0};
        int32_t idx[TAILS + SPLIT_SLACK];
        size_t count = 0;
        make_logits(x, n, 2, &r);
        float most = k->clamp(x, n);
        for (size_t i = 0; i < n; i++) {
            clamped += !isfinite(x[i]) || (x[i] == 0 && signbit(x[i]));
            if (x[i] > top) top = x[i];
        }
        clamped += most != top;
        make_logits(x, n, 0, &r);
        k->masses(p, part, x, n, 15, 1.5f);
        k->part_sums(again, p, n);
        wrong += memcmp(part, again, (n + DRAW_PART - 1) / DRAW_PART * sizeof *part) != 0;
        for (size_t i = 0; i < n; i += DRAW_PART)
            for (size_t j = i; j < n && j < i + DRAW_PART; j++) part[i / DRAW_PART] -= (double)p[j];
        for (size_t i = 0; i < n; i += DRAW_PART) off = fmax(off, fabs(part[i / DRAW_PART]) / (double)p[i]);
        for (size_t i = 0; i < n; i++) off = fmax(off, fabs((double)p[i] / exp2(1.5 * ((double)x[i] - 15)) - 1) * 1e-6);
        size_t got = k->split(idx, sum, x, n % 2 ? p : NULL, n, 5, 10);
        for (size_t i = 0; i < n; i++) {
            want[0] += x[i] > 10 ? n % 2 ? (double)p[i] : 1 : 0;
            want[1] += x[i] >= 5 ? n % 2 ? (double)p[i] : 1 : 0;
            if (x[i] < 5 || x[i] > 10) continue;
            wrong += count >= got || idx[count] != (int32_t)i;
            count++;
        }
        wrong += count != got;
        for (int i = 0; i < 2; i++) wrong += fabs(sum[i] - want[i]) > 1e-12 * want[i];
    }
    ok(clamped == 0 && wrong == 0 && off < 4e-12, "%s: kernels on 1 to %d numbers (%d, %d, %g)", k->name, TAILS,
       clamped, wrong, off);
}

static void check_errors(void)
{
    static const struct {
        sampler_options o;
        const char *part;
    } bad[] = {
        {{.temp = -1, .top_p = 1, .repeat_penalty = 1}, "--temp"},
        {{.temp = (double)NAN, .top_p = 1, .repeat_penalty = 1}, "--temp"},
        {{.temp = 1, .top_p = 0, .repeat_penalty = 1}, "--top-p"},
        {{.temp = 1, .top_p = 1, .min_p = 1, .repeat_penalty = 1}, "--min-p"},
        {{.temp = 1, .top_p = 1, .top_k = -1, .repeat_penalty = 1}, "--top-k"},
        {{.temp = 1, .top_p = 1, .repeat_penalty = 0}, "--repeat-penalty"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        sampler *s;
        is_err(sampler_create(&s, &bad[i].o, V, &e), &e, ST_USAGE, bad[i].part, "bad %s", bad[i].part);
    }
}

int main(void)
{
    for (int how = 0; how < DRAW_COUNT; how++) {
        check_softmax(1, (draw_how)how);
        check_softmax(0.5, (draw_how)how);
        check_sort(WIDE, 12, (draw_how)how);
        check_sort(129, 40, (draw_how)how);
        check_sort(7, 40, (draw_how)how);
        check_sort(1, 40, (draw_how)how);
    }
    check_kernels(&cpu_kernels_generic);
    check_kernels(cpu_best_kernels());
    check_greedy();
    check_errors();
    return tap_done();
}
