/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/bench/bench_sample.h"

#include "eval/stats.h"
#include "kernels/base/clock.h"
#include "kernels/comm.h"

/* Stop after SHORT_NS if enough samples are valid, after LONG_NS regardless. */
static const int64_t SHORT_NS = 4000000000, LONG_NS = 12000000000;

sample_verdict sample_judge(const meter_usage *spent, int n_threads, const double limit[2])
{
    const int64_t own_ns = 25000000;
    double low = limit[0] < limit[1] ? limit[0] : limit[1], high = limit[0] + limit[1] - low;
    if (spent->switches > spent->wall_ns / own_ns) return SAMPLE_PREEMPTED;
    if ((double)spent->cpu_ns < 0.98 * n_threads * (double)spent->wall_ns) return SAMPLE_WAITED;
    return high > 1.12 * low ? SAMPLE_UNSTEADY : SAMPLE_COUNTS;
}

void samples_settle(bench_samples *s, const sample_verdict *verdict, size_t n)
{
    size_t kept = 0, least = n < SAMPLES_LEAST ? n : SAMPLES_LEAST;
    for (size_t i = 0; i < SAMPLE_VERDICTS; i++) s->refused[i] = 0;
    for (size_t i = 0; i < n; i++) s->refused[verdict[i]] += verdict[i] != SAMPLE_COUNTS;
    s->n = n;
    for (size_t i = 0; i < SAMPLE_VERDICTS; i++) s->n -= s->refused[i];
    s->enough = s->n >= least && 3 * s->n >= n && n > 0;
    s->n_listed = n;
    if (!s->enough) return;
    for (size_t i = 0; i < n; i++) {
        if (verdict[i] != SAMPLE_COUNTS) continue;
        s->ns[kept] = s->ns[i];
        s->read_gbs[kept] = s->read_gbs[i];
        s->tiles[kept] = s->tiles[i];
        s->limit[kept++] = s->limit[i];
    }
    s->n_listed = kept;
}

/* Takes one sample: reading, run, reading. */
static status take(bench_samples *s, size_t i, sample_verdict *verdict, const bench_timing *t, err *e)
{
    meter_usage from, to;
    double read[2] = {0}, product[2] = {0}, tiles[2] = {0};
    int64_t ns = 0, waited = t->waited ? t->waited(t->ctx) : 0;
    if (t->prepare) TRY(t->prepare(t->ctx, e));
    if (!t->meter) {
        TRY(t->run(t->ctx, &ns, e));
        *verdict = SAMPLE_COUNTS;
    } else {
        from = meter_spent(t->meter);
        read[0] = meter_read(t->meter);
        tiles[0] = meter_tiles(t->meter);
        if (t->product) product[0] = meter_product(t->meter, t->kind);
        TRY(t->run(t->ctx, &ns, e));
        if (t->product) product[1] = meter_product(t->meter, t->kind);
        tiles[1] = meter_tiles(t->meter);
        read[1] = meter_read(t->meter);
        to = meter_spent(t->meter);
        waited = t->waited ? t->waited(t->ctx) - waited : 0;
        const meter_usage spent = {to.wall_ns - from.wall_ns - waited, to.cpu_ns - from.cpu_ns,
                                   to.switches - from.switches};
        *verdict = sample_judge(&spent, t->n_threads, t->product ? product : read);
    }
    s->ns[i] = (double)(ns > 0 ? ns : 1);
    s->read_gbs[i] = (read[0] + read[1]) / 2;
    s->tiles[i] = (tiles[0] + tiles[1]) / 2;
    s->limit[i] = t->product ? (product[0] + product[1]) / 2 : s->read_gbs[i];
    return ST_OK;
}

status bench_sample(bench_samples *out, const bench_timing *t, err *e)
{
    sample_verdict verdict[SAMPLES_MOST];
    size_t n = 0, n_good = 0, wanted = t->wanted ? t->wanted : SAMPLES_WANTED;
    int64_t start = clock_ns();
    *out = (bench_samples){0};
    while (n < 2 * wanted) {
        int64_t spent = clock_ns() - start, good = (int64_t)n_good;
        TRY(comm_broadcast(t->ranks, &spent, sizeof spent, 0, e));
        TRY(comm_broadcast(t->ranks, &good, sizeof good, 0, e));
        if (good >= (int64_t)wanted) break;
        if (n >= SAMPLES_LEAST && (spent > LONG_NS || (spent > SHORT_NS && good >= 5))) break;
        TRY(take(out, n, &verdict[n], t, e));
        n_good += verdict[n++] == SAMPLE_COUNTS;
    }
    samples_settle(out, verdict, n);
    return ST_OK;
}

sample_summary samples_summary(const bench_samples *s, double work, double need)
{
    double speed[SAMPLES_MOST], read[SAMPLES_MOST], limit[SAMPLES_MOST], fraction[SAMPLES_MOST], tiles[SAMPLES_MOST];
    double of_tiles[SAMPLES_MOST];
    bool known = s->enough && s->n_listed > 0, by_tiles = known;
    for (size_t i = 0; i < s->n_listed; i++) {
        speed[i] = 1e9 * work / s->ns[i];
        read[i] = s->read_gbs[i];
        tiles[i] = s->tiles[i];
        limit[i] = s->limit[i];
        known &= limit[i] > 0;
        by_tiles &= tiles[i] > 0;
        fraction[i] = limit[i] > 0 ? need / s->ns[i] / limit[i] : 0;
        of_tiles[i] = tiles[i] > 0 ? need / s->ns[i] / tiles[i] : 0;
    }
    return (sample_summary){.speed = stats_median(speed, s->n_listed),
                            .spread = stats_spread(speed, s->n_listed),
                            .read_gbs = stats_median(read, s->n_listed),
                            .limit = stats_median(limit, s->n_listed),
                            .tiles = stats_median(tiles, s->n_listed),
                            .fraction = known ? stats_median(fraction, s->n_listed) : -1,
                            .of_tiles = by_tiles ? stats_median(of_tiles, s->n_listed) : -1};
}
