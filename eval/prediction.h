/* SPDX-License-Identifier: MIT */
/* Lines of data with answers: samples, whose text is "context", and stored predictions {"pred" or "prediction",
 * "answers", "all_classes" or (MRCR) "random_string_to_prepend", "length"}. Answers of InfiniteBench are labels. */
#ifndef EVAL_PREDICTION_H
#define EVAL_PREDICTION_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "eval/metrics/metrics.h"

/* Returns the text of a JSON value; s NULL: not a string. */
static inline utf8_text json_text(const json_t *j)
{
    return (utf8_text){json_string_value(j), json_string_length(j)};
}

/* Lines of a text in memory. */
typedef struct {
    const char *name; /* name in messages */
    const char *s;
    size_t size, at;
    size_t number; /* number of the last returned line, from 1 */
} line_reader;

/* Returns the next nonblank line, without its newline; false: end of text. */
bool next_line(line_reader *r, const char **line, size_t *n);

typedef struct {
    json_t *root;                       /* record that prediction_read parsed; else NULL */
    utf8_text text, *answers, *classes; /* text: value of the requested field */
    size_t n_answers, n_classes;        /* n_classes 0 where all_classes is null or missing */
    int64_t length;                     /* -1: missing */
    json_t *spelled;                    /* labels as texts; NULL: the answers belong to the record */
} prediction;

/* Reads a record, which owns the texts. `field` is the key of the text. labels NULL: answers are texts under the key
 * "answers". Else `labels` is the key of the labels: a text, a number, a list of these, or such a list nested in a list
 * of one. A number becomes a text that distinguishes 5 from 5.0. ST_FORMAT names `where` and the field. Requires
 * prediction_free, also after an error. */
status prediction_of(prediction *p, json_t *root, const char *field, const char *labels, const char *where, err *e);
/* Reads the line that r returned last, as prediction_of does. */
status prediction_read(prediction *p, const line_reader *r, const char *line, size_t n, const char *field,
                       const char *labels, err *e);
/* Returns labels as a new list of texts. ST_FORMAT names `field`. */
status labels_spell(json_t **out, const json_t *labels, const char *where, const char *field, err *e);
/* Scores a text against a list of strings with metric_score. */
status labels_score(double *score, metrics *m, const metric *k, utf8_text said, const json_t *labels, err *e);
/* Checks that labels can be scored; errors begin with `where`. */
status labels_check(metrics *m, const metric *k, const json_t *labels, const char *where, err *e);
void prediction_free(prediction *p);

/* Calls `take` for each line of r, whose name and number begin its errors. field, labels: see prediction_of. */
status predictions_each(line_reader r, const char *field, const char *labels,
                        status (*take)(void *own, const prediction *p, err *e), void *own, err *e);

#endif
