/* SPDX-License-Identifier: MIT */
/* Metrics in the Prometheus text format 0.0.4. No label has a value that a client chooses. */
#ifndef SERVE_METRICS_H
#define SERVE_METRICS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { METRIC_BUCKETS = 16 };

/* Numbers of durations in each bucket; the last bucket has no upper bound. */
typedef struct {
    int64_t n[METRIC_BUCKETS];
    double seconds; /* sum of all durations */
} histogram;

void histogram_add(histogram *h, int64_t ns);
void histogram_write(FILE *f, const char *name, const histogram *h);

typedef struct {
    const char *name;
    char label[64]; /* `name="value"`, several separated by commas; "": none */
    int64_t n;
} metric;

/* Writes metrics of one type, counter or gauge. Metrics of the same name must be adjacent. */
void metrics_write(FILE *f, const char *type, const metric *all, size_t n);

#endif
