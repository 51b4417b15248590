/* SPDX-License-Identifier: MIT */
/* Answers of a run, grouped by dataset, turn or length, and their means in the table and in --json. */
#ifndef EVAL_ANSWERS_H
#define EVAL_ANSWERS_H

#include "eval/evaluation_table.h"

enum { ANSWER_KEYS = 3, ANSWER_ANY = -1, ANSWER_NAME = 64 };

/* One answer of every row of the lineup. */
typedef struct {
    const char *dataset, *pass; /* identify its results, together with index */
    int64_t index;
    int64_t key[ANSWER_KEYS]; /* grouping keys */
} answer_id;

/* Selects the answers with these keys; ANSWER_ANY matches every value. */
typedef struct {
    int64_t key[ANSWER_KEYS];
} answer_group;
#define ANSWERS(...) ((answer_group){{__VA_ARGS__}})
#define ALL_ANSWERS  ANSWERS(ANSWER_ANY, ANSWER_ANY, ANSWER_ANY)

typedef struct {
    evaluation_table t;
    answer_id *id; /* [n] */
    size_t n;
    const json_t **line;                   /* [rows, n] results; NULL: missing */
    int decimals;                          /* decimals of scores in the table */
    double (*mean)(double sum, size_t n);  /* of n > 0 scores; NULL: in percent, rounded as in Python */
    double (*score)(const json_t *line);   /* NULL: the member "score"; NAN: not counted */
    bool (*is_marked)(const json_t *line); /* NULL: the member "undecided" */
} answers;

/* Results of one lineup row in a group. */
typedef struct {
    size_t n, marked;       /* answers with a score; those of them that are marked */
    double sum, mean;       /* sum of the scores, and their mean in percent; NAN: no scores */
    evaluation_costs costs; /* costs of all its answers */
} answer_cell;

bool answers_has(const answers *a, size_t i, answer_group g);
size_t answers_count(const answers *a, answer_group g);
answer_cell answers_cell(const answers *a, size_t row, answer_group g);
/* Returns the mean of the dataset means. Key 0 is the dataset number; `among` [n] marks the datasets (NULL: all). */
double answers_average(const answers *a, size_t row, size_t n, const bool *among);

/* Report of an evaluation with ev->samples: a tree of groups, in which level k groups by key k, or functions of its
 * own. Members that are NULL or 0 keep the defaults of `answers`. */
typedef struct answers_layout {
    void (*answer)(const void *own, size_t i, answer_id *out); /* describes answer i */
    void (*title)(const answers *a);                           /* begins the paragraph above the table */
    /* Writes the name of a group, whose keys up to `level` are set; false: the group has no line. */
    bool (*name)(const void *own, const answer_group *g, int level, char out[ANSWER_NAME]);
    const char *average;                       /* name of the mean over datasets; NULL: none */
    status (*lines)(const answers *a, err *e); /* prints scores; NULL: the named groups and the average */
    status (*costs)(const answers *a, err *e); /* prints time and memory; NULL: of all answers */
    status (*notes)(const answers *a, err *e); /* prints lines below the table; NULL: none */
    /* Adds the results of a row and a group to --json, after those of its subgroups. */
    void (*cell)(json_t **list, const answers *a, size_t row, const answer_group *g, int level);
    void (*cells)(json_t **list, const answers *a,
                  size_t row); /* adds all results of a row; NULL: `cell` of each group */
    void (*averages)(json_t *row_json, const answers *a,
                     size_t row);        /* adds a row's members of "averages"; NULL: the average, if it has a name */
    json_t *(*options)(const void *own); /* options in --json; NULL: out of memory */
    status (*json)(const answers *a, err *e); /* writes --json instead of cells, averages and options; NULL: default */
    int decimals;
    double (*mean)(double sum, size_t n);
    double (*score)(const json_t *line);
    bool (*is_marked)(const json_t *line);
    size_t (*count)(const void *own); /* number of answers; NULL: ev->n_samples */
} answers_layout;

/* Prints the report of ev->kind->layout and writes --json. An implementation of evaluation_kind.report. */
status answers_report_layout(void *own, evaluation *ev, err *e);

/* Prints the line of a group's means; nothing if the group has no answers. */
status answers_line(const answers *a, int indent, const char *name, answer_group g, err *e);
status answers_average_line(const answers *a, const char *name, size_t n, const bool *among, err *e);
/* Prints three lines with the means of a group's time and memory. */
status answers_costs(const answers *a, answer_group g, err *e);

/* Appends a group's cell: the members of `head`, the row's, those of `more`, "n", "score", "undecided" if some answers
 * are marked, and costs. Takes ownership of head and more, which may be NULL. */
void answers_json(json_t **list, const answers *a, size_t row, answer_group g, json_t *head, json_t *more);

#endif
