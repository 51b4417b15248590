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

static void check_top_p(draw_how how)
{
    double got[V];
    sampler_options o = {.temp = 1, .top_p = 0, .repeat_penalty = 1, .draw = how};
    shares(&o, -1, got);
    ok(got[1] > 0.9999, "top-p 0 is greedy, %s", draw_names[how]);
    o = (sampler_options){.temp = 1, .top_p = 1, .min_p = 1, .repeat_penalty = 1, .draw = how};
    shares(&o, -1, got);
    ok(got[1] + got[3] > 0.9999, "min-p 1 leaves the most likely tokens, %s", draw_names[how]);
}

/* ---- penalties ---- */

/* Logits after OpenAI's penalties, from counts of the generated tokens: x - n * frequency - (n > 0) * presence. */
static int32_t penalized_best(const sampler_options *o, const int32_t *text, int n)
{
    int count[V] = {0};
    double best = -(double)INFINITY;
    int32_t id = 0;
    for (int i = 0; i < n; i++) count[text[i]]++;
    for (int i = 0; i < V; i++) {
        double x = (double)logits[i] - count[i] * o->frequency_penalty - (count[i] > 0) * o->presence_penalty;
        if (x > best) best = x, id = i;
    }
    return id;
}

/* Greedy texts of 24 tokens, and the same tokens after each number of drafted tokens that are forgotten. */
static void check_penalties(double presence, double frequency)
{
    const sampler_options o = {
        .top_p = 1, .repeat_penalty = 1, .presence_penalty = presence, .frequency_penalty = frequency};
    err e = {0};
    sampler *s;
    int32_t text[24], drafts[7];
    int wrong = 0;
    if (!is_ok(sampler_create(&s, &o, V, &e), &e, "sampler")) return;
    sampler_accept(s, 1); /* a prompt is not penalized */
    for (int i = 0; i < 24; i++) {
        float l[V];
        const sampler_counts before = sampler_counted(s);
        for (int k = 0; k < i % 8; k++) sampler_accept_new(s, drafts[k] = (i + k) % V);
        sampler_forget(s, before, drafts);
        memcpy(l, logits, sizeof l);
        text[i] = sampler_next(s, l, i);
        wrong += text[i] != penalized_best(&o, text, i);
        sampler_accept_new(s, text[i]);
    }
    ok(wrong == 0, "presence %g, frequency %g: tokens of the definition (%d wrong)", presence, frequency, wrong);
    sampler_free(s);
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
        {{.temp = 1, .top_p = -0.1, .repeat_penalty = 1}, "--top-p"},
        {{.temp = 1, .top_p = 1, .min_p = 1.1, .repeat_penalty = 1}, "--min-p"},
        {{.temp = 1, .top_p = 1, .top_k = -1, .repeat_penalty = 1}, "--top-k"},
        {{.temp = 1, .top_p = 1, .repeat_penalty = 0}, "--repeat-penalty"},
        {{.temp = 1, .top_p = 1, .repeat_penalty = 1, .presence_penalty = -3}, "--presence-penalty -3"},
        {{.temp = 1, .top_p = 1, .repeat_penalty = 1, .frequency_penalty = 2.5}, "--frequency-penalty 2.5"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        sampler *s;
        is_err(sampler_create(&s, &bad[i].o, V, &e), &e, ST_USAGE, bad[i].part, "bad %s", bad[i].part);
    }
}

/* A constraint for tests: ids of a set, and the tokens that were counted. */
typedef struct {
    uint64_t set;
    int32_t n;
} only;

static const uint64_t *only_allowed(void *ctx)
{
    return &((only *)ctx)->set;
}

static void only_accept(void *ctx, int32_t id)
{
    ((only *)ctx)->n += id + 1;
}

static void only_forget(void *ctx, size_t n)
{
    ((only *)ctx)->n -= (int32_t)n;
}

static size_t only_fitting(void *ctx, const int32_t *ids, size_t n)
{
    size_t k = 0;
    while (k < n && ((only *)ctx)->set >> ids[k] & 1) k++;
    return k;
}

static void check_limit(const sampler_options *o, uint64_t set, const float *x, int32_t want, const char *name)
{
    err e = {0};
    sampler *s;
    only of = {.set = set};
    const sampler_limit limit = {only_allowed, only_accept, only_forget, only_fitting, &of};
    if (!is_ok(sampler_create(&s, o, V, &e), &e, "sampler")) return;
    sampler_restrict(s, &limit);
    ok(!sampler_is_plain(s), "%s: a constrained sampler is not plain", name);
    int wrong = 0;
    for (int i = 0; i < 200; i++) {
        float l[V];
        memcpy(l, x, sizeof l);
        const int32_t id = sampler_next(s, l, i);
        wrong += want >= -1 ? id != want : !(set >> id & 1);
    }
    is_int(wrong, 0, "%s: choices", name);
    sampler_free(s);
}

static void check_limits(void)
{
    const sampler_options greedy = {.top_p = 1, .repeat_penalty = 1},
                          warm = {.temp = 2, .top_p = 1, .repeat_penalty = 1};
    const sampler_options narrow = {.temp = 1, .top_k = 1, .top_p = 0.1, .min_p = 0.9, .repeat_penalty = 1.5};
    const sampler_options by_rank = {.temp = 2, .top_p = 1, .repeat_penalty = 1, .draw = DRAW_RANK};
    const float nan[V] = {NAN, NAN, NAN, 5, NAN}, low[V] = {-INFINITY, 1, -INFINITY, -INFINITY, 1};
    check_limit(&greedy, 0x1f, logits, 1, "greedy, all allowed");
    check_limit(&greedy, 0x1d, logits, 3, "greedy, the first of two equal ones refused");
    check_limit(&greedy, 0x15, logits, 2, "greedy, both refused");
    check_limit(&warm, 0x15, logits, -2, "temperature 2");
    check_limit(&by_rank, 0x15, logits, -2, "temperature 2, by rank");
    check_limit(&narrow, 0x11, logits, 0, "top-k, top-p and min-p after the constraint");
    check_limit(&warm, 0x16, nan, 1, "allowed logits that are NaN");
    check_limit(&by_rank, 0xc, low, 2, "allowed logits that are infinite");
    check_limit(&warm, 0, logits, -1, "nothing allowed");
}

/* Generated tokens reach the constraint and are taken back with the penalties' counts. */
static void check_limit_counts(void)
{
    const sampler_options o = {.top_p = 1, .repeat_penalty = 1};
    err e = {0};
    sampler *s;
    only of = {.set = 0xa};
    const sampler_limit limit = {only_allowed, only_accept, only_forget, only_fitting, &of};
    const int32_t ids[] = {1, 3, 2, 1};
    if (!is_ok(sampler_create(&s, &o, V, &e), &e, "sampler")) return;
    is_int((long long)sampler_fitting(s, ids, 4), 4, "without a constraint all drafts fit");
    sampler_restrict(s, &limit);
    is_int((long long)sampler_fitting(s, ids, 4), 2, "drafts are cut at the first refused token");
    sampler_accept(s, 4);
    is_int(of.n, 0, "tokens of the prompt do not count");
    const sampler_counts before = sampler_counted(s);
    sampler_accept_new(s, 0);
    sampler_accept_new(s, 0);
    is_int(of.n, 2, "generated tokens do");
    sampler_forget(s, before, (const int32_t[]){0, 0});
    is_int(of.n, 0, "and are taken back");
    sampler_free(s);
}

int main(void)
{
    check_limits();
    check_limit_counts();
    for (int how = 0; how < DRAW_COUNT; how++) {
        check_softmax(1, (draw_how)how);
        check_softmax(0.5, (draw_how)how);
        check_top_p((draw_how)how);
        check_sort(WIDE, 12, (draw_how)how);
        check_sort(129, 40, (draw_how)how);
        check_sort(7, 40, (draw_how)how);
        check_sort(1, 40, (draw_how)how);
    }
    check_kernels(&cpu_kernels_generic);
    check_kernels(cpu_best_kernels());
    check_greedy();
    for (int p = -4; p <= 4; p++)
        for (int f = -4; f <= 4; f++) check_penalties(p / 2.0, f / 2.0);
    check_errors();
    return tap_done();
}
