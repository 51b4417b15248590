/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void stats_wilson(double k, int64_t n, double *low, double *high)
{
    const double z = 1.959963984540054;
    *low = 0;
    *high = 1;
    if (n <= 0) return;
    double count = (double)n, p = k / count, z2 = z * z;
    double middle = p + z2 / (2 * count), scale = 1 + z2 / count;
    double half = z * sqrt(p * (1 - p) / count + z2 / (4 * count * count));
    /* For k = 0 or k = n one bound is exactly 0 or 1; computing it would round. */
    if (k > 0) *low = (middle - half) / scale;
    if (k < count) *high = (middle + half) / scale;
}

double stats_pass(size_t n, size_t c, size_t k)
{
    double fail = 1;
    if (n - c < k) return 1;
    for (size_t i = n - c + 1; i <= n; i++) fail *= 1 - (double)k / (double)i;
    return 1 - fail;
}

double stats_accepted_length(const double *hazard, size_t n)
{
    double chance = 1, tokens = 1;
    for (size_t i = 0; i < n && !isnan(hazard[i]); i++) tokens += chance *= hazard[i];
    return tokens;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double stats_median(double *x, size_t n)
{
    if (n == 0) return 0;
    qsort(x, n, sizeof *x, compare);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

double stats_quantile(double *x, size_t n, double q)
{
    qsort(x, n, sizeof *x, compare);
    double at = q * (double)(n - 1), below = floor(at);
    size_t i = (size_t)below;
    return i + 1 < n ? x[i] + (at - below) * (x[i + 1] - x[i]) : x[i];
}

double stats_spread(double *x, size_t n)
{
    double median = stats_median(x, n);
    return median == 0 ? 0 : (stats_quantile(x, n, 0.75) - stats_quantile(x, n, 0.25)) / median;
}

double round_decimals(double x, int decimals)
{
    char text[352]; /* the largest double has 309 digits */
    snprintf(text, sizeof text, "%.*f", decimals, x);
    return strtod(text, NULL);
}
