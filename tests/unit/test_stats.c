/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>

#include "eval/fidelity/fidelity.h"
#include "eval/stats.h"
#include "tests/tap.h"

static bool near(double got, double want)
{
    return fabs(got - want) < 1e-12;
}

/* Values from the formula in Python's double arithmetic. */
static void test_wilson(void)
{
    static const struct {
        int64_t k, n;
        double low, high;
    } cases[] = {
        {0, 20, 0, 0.16112515805281938},
        {20, 20, 0.8388748419471806, 1},
        {10, 20, 0.29929800819821234, 0.7007019918017877},
        {1, 20, 0.008881448800795402, 0.23613119344674208},
        {263, 500, 0.4822016483694956, 0.5694018859265038},
        {0, 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double low, high;
        stats_wilson((double)cases[i].k, cases[i].n, &low, &high);
        ok(near(low, cases[i].low) && near(high, cases[i].high), "Wilson interval of %lld in %lld: %.6f %.6f",
           (long long)cases[i].k, (long long)cases[i].n, low, high);
    }
    double low, high;
    stats_wilson(0, 7, &low, &high);
    ok(low == 0 && high < 1, "no success: the lower bound is 0 exactly");
    stats_wilson(7, 7, &low, &high);
    ok(high == 1 && low > 0, "all successes: the upper bound is 1 exactly");
}

static void test_median(void)
{
    double odd[] = {5, 1, 3}, even[] = {4, 1, 3, 2}, one[] = {7}, zero[] = {0, 0, 0};
    ok(near(stats_median(odd, 3), 3), "median of an odd number of values");
    ok(near(stats_median(even, 4), 2.5), "median of an even number of values");
    ok(near(stats_median(one, 1), 7), "median of one value");
    ok(near(stats_median(one, 0), 0), "median of nothing");
    double five[] = {50, 10, 1000, 30, 20};
    ok(near(stats_spread(odd, 3), 2.0 / 3), "spread: middle half over median");
    ok(near(stats_spread(even, 4), 1.5 / 2.5), "between two values in proportion");
    ok(near(stats_spread(five, 5), 1), "the outermost values do not count");
    ok(near(stats_spread(one, 1), 0), "spread of one value");
    ok(near(stats_spread(zero, 3), 0), "spread around 0");
    ok(near(stats_spread(one, 0), 0), "spread of nothing");
}

static void test_quantile(void)
{
    double x[] = {4, 1, 3, 2, 5}, one[] = {7};
    ok(near(stats_quantile(x, 5, 0), 1) && near(stats_quantile(x, 5, 1), 5), "the quantiles 0 and 1 are the ends");
    ok(near(stats_quantile(x, 5, 0.99), 4.96) && near(stats_quantile(x, 5, 0.1), 1.4), "interpolated between two");
    ok(near(stats_quantile(one, 1, 0.99), 7), "any quantile of one value");
}

/* Values from numpy in double arithmetic. */
static void test_divergence(void)
{
    const float p[] = {1, 2, 3, -1}, moved[] = {101, 102, 103, 99}, q[] = {0.5F, 2.5F, 1, 0};
    const float sure[] = {0, 400, 0, 0}, other[] = {400, 0, 0, 0}, never[] = {-INFINITY, 2, 3, -1};
    ok(fidelity_divergence(p, p, 4) == 0 && near(fidelity_divergence(p, moved, 4), 0),
       "none between equal distributions, whatever is added to the logits");
    ok(near(fidelity_divergence(p, q, 4), 0.6713191986492894), "of two distributions: %.15f",
       fidelity_divergence(p, q, 4));
    ok(near(fidelity_divergence(q, p, 4), 0.602004544331091), "in the other direction: %.15f",
       fidelity_divergence(q, p, 4));
    ok(near(fidelity_divergence(sure, other, 4), 400), "of two certain ones");
    ok(isfinite(fidelity_divergence(never, p, 4)), "a token that full attention excludes counts nothing");
}

/* Five drafts of four tokens had 4, 0, 2, 4 and 1 accepted: the mean length is (5 + 1 + 3 + 5 + 2) / 5. */
static void test_accepted_length(void)
{
    const double hazard[] = {4.0 / 5, 3.0 / 4, 2.0 / 3, 2.0 / 2}, sure[] = {1, 1, 1}, never[] = {0, (double)NAN};
    ok(near(stats_accepted_length(hazard, 4), 3.2), "accepted length of four drafted tokens");
    ok(near(stats_accepted_length(hazard, 1), 1.8), "of one");
    ok(near(stats_accepted_length(hazard, 0), 1), "of none");
    ok(near(stats_accepted_length(sure, 3), 4), "of three that are always right");
    ok(near(stats_accepted_length(never, 2), 1), "of two where the first is never right");
}

int main(void)
{
    test_wilson();
    test_accepted_length();
    test_median();
    test_quantile();
    test_divergence();
    return tap_done();
}
