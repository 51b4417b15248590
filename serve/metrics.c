/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "serve/metrics.h"

#include <inttypes.h>
#include <string.h>

/* upper bounds of the buckets, seconds */
static const double bounds[METRIC_BUCKETS - 1] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                  0.5,   1,      2.5,   5,    10,    25,   60};

void histogram_add(histogram *h, int64_t ns)
{
    double seconds = (double)ns / 1e9;
    int i = 0;
    while (i < METRIC_BUCKETS - 1 && seconds > bounds[i]) i++;
    h->n[i]++;
    h->seconds += seconds;
}

void histogram_write(FILE *f, const char *name, const histogram *h)
{
    int64_t n = 0;
    fprintf(f, "# TYPE %s histogram\n", name);
    for (int i = 0; i < METRIC_BUCKETS - 1; i++) {
        n += h->n[i];
        fprintf(f, "%s_bucket{le=\"%g\"} %" PRId64 "\n", name, bounds[i], n);
    }
    n += h->n[METRIC_BUCKETS - 1];
    fprintf(f, "%s_bucket{le=\"+Inf\"} %" PRId64 "\n%s_sum %.9f\n%s_count %" PRId64 "\n", name, n, name, h->seconds,
            name, n);
}

void metrics_write(FILE *f, const char *type, const metric *all, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const metric *m = &all[i];
        if (i == 0 || strcmp(m->name, all[i - 1].name) != 0) fprintf(f, "# TYPE %s %s\n", m->name, type);
        if (*m->label) fprintf(f, "%s{%s} %" PRId64 "\n", m->name, m->label, m->n);
        else fprintf(f, "%s %" PRId64 "\n", m->name, m->n);
    }
}
