/* SPDX-License-Identifier: MIT */
/* Lines of data with answers: stored predictions {"pred" or "prediction", "answers", "all_classes" or, of MRCR,
 * "random_string_to_prepend", "length"}, and samples, whose text is their "context". InfiniteBench's answers are
 * labels. */
#ifndef EVAL_PREDICTION_H
#define EVAL_PREDICTION_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "eval/metrics/metrics.h"

/* The text of a JSON value; s NULL: it is none. */
static inline utf8_text json_text(const json_t *j)
{
    return (utf8_text){json_string_value(j), json_string_length(j)};
}

/* Lines of a text in memory. */
typedef struct {
    const char *name; /* for messages */
    const char *s;
    size_t size, at;
    size_t number; /* of the line last given, from 1 */
} line_reader;

/* The next line that is not blank, without its end; false when there is none. */
bool next_line(line_reader *r, const char **line, size_t *n);

typedef struct {
    json_t *root;                       /* record of a line that prediction_read took; else NULL */
    utf8_text text, *answers, *classes; /* text: of the field that was asked for */
    size_t n_answers, n_classes;        /* n_classes 0 where all_classes is null or missing */
    int64_t length;                     /* -1: missing */
    json_t *spelled;                    /* labels as texts; NULL: the answers are those of the record */
} prediction;

/* Reads a record, which holds the texts: `field` is the key of the text. labels NULL: answers are texts, under the key
 * "answers"; else the key of labels, which are a text, a number, a list of these, or such a list alone in a list. A
 * number becomes a text that tells 5 from 5.0. ST_FORMAT names `where` and the field. prediction_free also after an
 * error. */
status prediction_of(prediction *p, json_t *root, const char *field, const char *labels, const char *where, err *e);
/* The same of the line that r gave last. */
status prediction_read(prediction *p, const line_reader *r, const char *line, size_t n, const char *field,
                       const char *labels, err *e);
/* Labels as a new list of texts. ST_FORMAT names `field`. */
status labels_spell(json_t **out, const json_t *labels, const char *where, const char *field, err *e);
/* metric_score of a text against a list of texts. */
status labels_score(double *score, metrics *m, const metric *k, utf8_text said, const json_t *labels, err *e);
/* Checks that labels can be scored; errors begin with `where`. */
status labels_check(metrics *m, const metric *k, const json_t *labels, const char *where, err *e);
void prediction_free(prediction *p);

/* Calls `take` for each line of r, whose name and number precede its errors. field, labels: those of prediction_of. */
status predictions_each(line_reader r, const char *field, const char *labels,
                        status (*take)(void *own, const prediction *p, err *e), void *own, err *e);

#endif
