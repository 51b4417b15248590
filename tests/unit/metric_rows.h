/* SPDX-License-Identifier: MIT */
/* Rows of tests/data/metrics, after a header with their origin. */
#ifndef TESTS_METRIC_ROWS_H
#define TESTS_METRIC_ROWS_H

#include <stdio.h>
#include <string.h>

#include "eval/prediction.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"

typedef struct {
    char *file;
    line_reader r;
    const char *line; /* the row as text */
    size_t n;
} metric_rows;

/* Returns false, after a failed check, if the file or its header does not exist. */
static inline bool rows_open(metric_rows *m, const char *name)
{
    char rel[128];
    err e = {0};
    *m = (metric_rows){.r.name = name};
    snprintf(rel, sizeof rel, "tests/data/metrics/%s", name);
    if (!is_ok(file_read(&m->file, &m->r.size, tap_path(rel), (size_t)1 << 26, &e), &e, "%s", name)) return false;
    m->r.s = m->file;
    return ok(next_line(&m->r, &m->line, &m->n) && strncmp(m->line, "{\"made_by\"", 10) == 0, "%s has its header",
              name);
}

/* Returns the next row (json_decref), NULL at the end. */
static inline json_t *rows_next(metric_rows *m)
{
    json_t *j;
    err e = {0};
    if (!next_line(&m->r, &m->line, &m->n)) return NULL;
    if (json_parse_data(&j, m->line, m->n, m->r.name, 16, &e) != ST_OK) ok(false, "%s", e.msg);
    return j;
}

static inline void rows_close(metric_rows *m)
{
    mem_free(m->file);
}

static inline const char *jieba_dir(void)
{
    return tap_path("eval/jieba");
}

#endif
