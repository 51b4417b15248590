/* SPDX-License-Identifier: MIT */
/* Finds the item at which the mass in order exceeds a bound, like Floyd and Rivest's SELECT finds a rank. A sample
 * drawn by mass gives two values that most likely enclose the item. One pass over the numbers computes the mass above
 * them and extracts the items between them, and the search continues with those. */
#include "config.h"

#include "kernels/draw.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/gumbel.h"

const char *const draw_names[DRAW_COUNT] = {"gumbel", "rank"};

enum {
    SAMPLE = 512,
    FEW = 128,    /* items that are sorted directly */
    CHUNK = 4096, /* block size of the search for the largest */
};

/* Numbers in ascending order of their indexes. */
typedef struct {
    const float *x, *p; /* values; masses, NULL: 1 each */
    const int32_t *at;  /* indexes; NULL: 0 to n - 1 */
    size_t n;
} item_set;

/* Values of items at equal distances of mass. */
typedef struct {
    float value[SAMPLE];
    size_t n;
    double mass; /* total mass of the sampled items */
} mass_sample;

struct draw {
    const cpu_kernels *k;
    item_set all;
    mass_sample sample;             /* sample of all items */
    float *p, *kept, *x, *w;        /* [n] masses; values of a part of the numbers; values and masses of a search */
    int32_t *kept_at, *at, *within; /* [n] indexes of these; indexes into an item_set */
    double *part;                   /* sums of DRAW_PART masses */
};

static size_t parts_of(size_t n)
{
    return (n + DRAW_PART - 1) / DRAW_PART;
}

status draw_create(draw **out, size_t n, err *e)
{
    draw *d;
    *out = NULL;
    TRY(MEM_NEW(&d, 1, e));
    d->k = cpu_best_kernels();
    status st = MEM_NEW(&d->p, n, e);
    if (st == ST_OK) st = MEM_NEW(&d->kept, n, e);
    if (st == ST_OK) st = MEM_NEW(&d->x, n, e);
    if (st == ST_OK) st = MEM_NEW(&d->w, n, e);
    if (st == ST_OK) st = MEM_NEW(&d->kept_at, n, e);
    if (st == ST_OK) st = MEM_NEW(&d->at, n, e);
    if (st == ST_OK) st = MEM_NEW(&d->within, n + SPLIT_SLACK, e);
    if (st == ST_OK) st = MEM_NEW(&d->part, parts_of(n), e);
    if (st != ST_OK) draw_free(d);
    else *out = d;
    return st;
}

void draw_free(draw *d)
{
    if (!d) return;
    mem_free(d->p);
    mem_free(d->kept);
    mem_free(d->x);
    mem_free(d->w);
    mem_free(d->kept_at);
    mem_free(d->at);
    mem_free(d->within);
    mem_free(d->part);
    mem_free(d);
}

/* ---- the largest ---- */

static float largest_of(const cpu_kernels *k, const float *x, size_t n)
{
    float lane[CHUNK], best = -INFINITY;
    size_t lanes = k->lane_maxima(lane, x, n, CHUNK / 64);
    for (size_t i = 0; i < lanes; i++)
        if (lane[i] > best) best = lane[i];
    return best;
}

bool draw_finite(const float *x, size_t n)
{
    return cpu_best_kernels()->finite(x, n);
}

size_t draw_first(const float *x, size_t n)
{
    const cpu_kernels *k = cpu_best_kernels();
    float best = -INFINITY;
    size_t from = 0;
    for (size_t i = 0; i < n; i += CHUNK) {
        float most = largest_of(k, x + i, n - i < CHUNK ? n - i : CHUNK);
        if (most > best) best = most, from = i;
    }
    for (size_t i = from; i < n; i++)
        if (x[i] == best) return i;
    return 0; /* all are NaN */
}

/* ---- the search ---- */

static double mass_of(const item_set *s, size_t i)
{
    return s->p ? (double)s->p[i] : 1;
}

static double sum_of(const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

/* part: sums of s->p */
static void sample_by_mass(mass_sample *out, const item_set *s, const double *part)
{
    double before = 0;
    out->n = s->n / 8 < SAMPLE ? s->n / 8 : SAMPLE;
    for (size_t i = 0, at_part = 0; i < out->n; i++) {
        double to = out->mass * ((double)i + 0.5) / (double)out->n, at;
        while (at_part + 1 < parts_of(s->n) && before + part[at_part] < to) before += part[at_part++];
        size_t k = at_part * DRAW_PART, end = k + DRAW_PART < s->n ? k + DRAW_PART : s->n;
        for (at = before + mass_of(s, k); at < to && k + 1 < end; at += mass_of(s, k)) k++;
        out->value[i] = s->x[k];
    }
}

static void sample_set(draw *d, mass_sample *out, const item_set *s)
{
    if (s->p) {
        d->k->part_sums(d->part, s->p, s->n);
        out->mass = sum_of(d->part, parts_of(s->n));
        sample_by_mass(out, s, d->part);
        return;
    }
    out->mass = (double)s->n;
    out->n = s->n / 8 < SAMPLE ? s->n / 8 : SAMPLE;
    for (size_t i = 0; i < out->n; i++) out->value[i] = s->x[s->n * i / out->n];
}

/* Computes two values that enclose the item at which `mass` is reached, except about one time in a hundred. */
static void bracket(const cpu_kernels *k, const mass_sample *m, double mass, float *lo, float *hi)
{
    double fraction = mass < m->mass ? mass / m->mass : 1, n = (double)m->n; /* both may be 0 */
    double rank = fraction * n, off = 2.5 * sqrt(rank * (1 - fraction)) + 1.5;
    *hi = rank - off < 1 ? FLT_MAX : cpu_kth_largest(k, m->value, m->n, (size_t)(rank - off));
    *lo = rank + off >= n ? -FLT_MAX : cpu_kth_largest(k, m->value, m->n, (size_t)(rank + off) + 1);
}

/* Reduces s to its `count` items listed in d->within. */
static void narrow(draw *d, item_set *s, size_t count)
{
    for (size_t j = 0; j < count; j++) { /* s may use the same memory: each element is read before it is overwritten */
        size_t i = (size_t)d->within[j];
        d->x[j] = s->x[i];
        if (s->p) d->w[j] = s->p[i];
        d->at[j] = s->at ? s->at[i] : (int32_t)i;
    }
    *s = (item_set){d->x, s->p ? d->w : NULL, d->at, count};
}

static float smallest_of(const item_set *s)
{
    float least = s->x[0];
    for (size_t i = 1; i < s->n; i++)
        if (s->x[i] < least) least = s->x[i];
    return least;
}

/* Keeps a part of s that contains the item, and adds the mass before that part to *before. Returns true if all
 * remaining items have one value. */
static bool step(draw *d, item_set *s, const mass_sample *m, double mass, double *before)
{
    float lo, hi;
    double sum[2]; /* above hi, and from lo on */
    bracket(d->k, m, mass - *before, &lo, &hi);
    size_t count = d->k->split(d->within, sum, s->x, s->p, s->n, lo, hi);
    if (count == s->n) {
        lo = hi = s->x[s->n / 2];
        count = d->k->split(d->within, sum, s->x, s->p, s->n, lo, hi);
    }
    bool higher = *before + sum[0] > mass, lower = *before + sum[1] <= mass;
    if (higher) {
        lo = nextafterf(hi, FLT_MAX);
        hi = FLT_MAX;
    } else if (lower) {
        hi = nextafterf(lo, -FLT_MAX);
        lo = -FLT_MAX;
    }
    if (higher || lower) count = d->k->split(d->within, sum, s->x, s->p, s->n, lo, hi);
    if (count == 0) { /* the sums of s and of its parts differ in their last bits: it is the last item */
        lo = hi = smallest_of(s);
        count = d->k->split(d->within, sum, s->x, s->p, s->n, lo, hi);
    }
    narrow(d, s, count);
    *before += sum[0];
    return lo == hi;
}

/* Sorts the indexes of a few items; equal values keep the order of their indexes. */
static void sort(int32_t order[FEW], const item_set *s)
{
    for (size_t i = 0; i < s->n; i++) {
        size_t k = i;
        for (; k > 0 && s->x[order[k - 1]] < s->x[i]; k--) order[k] = order[k - 1];
        order[k] = (int32_t)i;
    }
}

/* m: a sample of s, or NULL. */
static draw_item find(draw *d, item_set s, const mass_sample *m, double mass)
{
    int32_t order[FEW];
    mass_sample part;
    double before = 0;
    bool same = false;
    size_t k = 0;
    for (; s.n > FEW && !same; m = NULL) {
        if (!m) sample_set(d, &part, &s);
        same = step(d, &s, m ? m : &part, mass, &before);
    }
    if (!same) sort(order, &s);
    for (size_t i = 0; i < s.n; i++) {
        k = same ? i : (size_t)order[i];
        before += mass_of(&s, k);
        if (before > mass) break;
    }
    return (draw_item){s.at ? (size_t)s.at[k] : k, before};
}

draw_item draw_find(draw *d, double mass)
{
    double most = d->sample.mass * (1 - 1e-9);
    return find(d, d->all, &d->sample, mass < most ? mass : most);
}

double draw_mass(draw *d, float least)
{
    double sum[2];
    if (least <= 0) return d->sample.mass;
    d->k->split(d->within, sum, d->all.p, d->all.p, d->all.n, least, FLT_MAX);
    return sum[1];
}

/* ---- initialization ---- */

/* Returns the first `keep` of s. */
static item_set first_of(draw *d, item_set s, size_t keep)
{
    double sum[2];
    size_t last = find(d, s, NULL, (double)keep - 1).at, n = 0;
    size_t count = d->k->split(d->within, sum, s.x, NULL, s.n, s.x[last], FLT_MAX);
    for (size_t j = 0; j < count; j++) {
        size_t i = (size_t)d->within[j];
        if (!(s.x[i] > s.x[last]) && i > last) continue;
        d->kept[n] = s.x[i];
        d->kept_at[n++] = (int32_t)i;
    }
    return (item_set){d->kept, NULL, d->kept_at, n};
}

void draw_begin(draw *d, float *x, size_t n, size_t keep, float temp)
{
    float top = d->k->clamp(x, n), by = 1.44269504f / temp;
    d->all = (item_set){x, NULL, NULL, n};
    if (keep < n) d->all = first_of(d, d->all, keep);
    d->k->masses(d->p, d->part, d->all.x, d->all.n, top, by < 1e30f ? by : 1e30f);
    d->all.p = d->p;
    d->sample.mass = sum_of(d->part, parts_of(d->all.n));
    sample_by_mass(&d->sample, &d->all, d->part);
}

/* ---- rules ---- */

/* Returns the mass of the items that pass top-p and min-p. */
static double mass_kept(const draw_rule *r)
{
    double all = draw_mass(r->work, 0), kept = all;
    /* The first item up to which the mass is at least this. */
    if (r->top_p < 1) kept = fmin(kept, draw_find(r->work, nextafter(r->top_p * all, 0)).up_to);
    if (r->min_p > 0) kept = fmin(kept, draw_mass(r->work, draw_least(r)));
    return kept;
}

static void try_item(gumbel_best *best, const draw_rule *r, float x, size_t i)
{
    gumbel_try(best, r->seed, r->pos, (double)r->temp, x, (int32_t)i);
}

/* Returns the best item by noise of all. The largest is tried first, so that bounds exclude most others. */
static size_t noisiest(const draw_rule *r, float *x, size_t n)
{
    gumbel_best best = {.id = -1};
    r->work->k->clamp(x, n);
    size_t first = draw_first(x, n);
    try_item(&best, r, x[first], first);
    for (size_t i = 0; i < n; i++)
        if (i != first) try_item(&best, r, x[i], i);
    return (size_t)best.id;
}

/* Does the same for the items that pass top-k, top-p and min-p. */
static size_t noisiest_kept(const draw_rule *r, float *x, size_t n)
{
    draw *d = r->work;
    gumbel_best best = {.id = -1};
    draw_begin(d, x, n, draw_keep(r, n), r->temp);
    const item_set *all = &d->all;
    size_t last = n - 1; /* last item in order; without top-p, the last of all */
    float least = draw_least(r), from = -FLT_MAX;
    if (r->top_p < 1) {
        last = draw_find(d, nextafter(r->top_p * draw_mass(d, 0), 0)).at;
        from = x[last];
    }
    for (size_t k = 0; k < all->n; k++) {
        size_t i = all->at ? (size_t)all->at[k] : k;
        if (all->x[k] < from || (all->x[k] == from && i > last) || all->p[k] < least) continue;
        try_item(&best, r, all->x[k], i);
    }
    return (size_t)best.id;
}

size_t draw_by_rule(const draw_rule *r, float *x, size_t n, float fraction)
{
    bool cut = draw_keep(r, n) < n || r->top_p < 1 || r->min_p > 0;
    if (r->temp == 0) return draw_first(x, n);
    if (r->how == DRAW_GUMBEL) return cut ? noisiest_kept(r, x, n) : noisiest(r, x, n);
    draw_begin(r->work, x, n, draw_keep(r, n), r->temp);
    return draw_find(r->work, (double)fraction * mass_kept(r)).at;
}

void cpu_draw(backend *be, buf ids, buf x, size_t n, size_t vocab, const draw_rule *rule, buf fraction)
{
    (void)be; /* one thread: a row takes a few microseconds */
    int32_t *id = (int32_t *)(void *)ids.p;
    for (size_t i = 0; i < n; i++) {
        float *row = f32_at(x, 0) + i * vocab;
        id[n + i] = draw_finite(row, vocab);
        id[i] = (int32_t)draw_by_rule(&rule[i], row, vocab, f32_at(fraction, 0)[i]);
    }
}
