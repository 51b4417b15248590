/* SPDX-License-Identifier: MIT */
/* Metrics in Prometheus' text format 0.0.4. No label has a value that a client chooses. */
#ifndef SERVE_METRICS_H
#define SERVE_METRICS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { METRIC_BUCKETS = 16 };

/* Counts of durations up to a bucket's seconds and above those of the bucket before; the last has no bound. */
typedef struct {
    int64_t n[METRIC_BUCKETS];
    double seconds; /* of all */
} histogram;

void histogram_add(histogram *h, int64_t ns);
void histogram_write(FILE *f, const char *name, const histogram *h);

typedef struct {
    const char *name;
    char label[64]; /* `name="value"`, also several with commas; "": none */
    int64_t n;
} metric;

/* Writes metrics of one type, counter or gauge; those with the same name must be neighbours. */
void metrics_write(FILE *f, const char *type, const metric *all, size_t n);

#endif
