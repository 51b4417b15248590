/* SPDX-License-Identifier: MIT */
/* Samples of benchmarks, read from untrusted files. A benchmark is a table of datasets. The records of a dataset are in
 * a file in a folder, in a file named after it, or have a member "dataset". */
#ifndef EVAL_SAMPLES_H
#define EVAL_SAMPLES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "eval/metrics/metrics.h"

/* Selection of samples. */
typedef struct {
    const char *data; /* files and folders, comma-separated */
    int64_t limit;    /* maximum number of samples of a dataset; 0: all */
    bool sampled;     /* draw `limit` samples with the seed; else take the first ones */
    uint64_t seed;
} sample_source;

/* ---- datasets ---- */

/* The datasets of a benchmark. */
typedef struct {
    const char *bench;  /* name in messages: "LongBench" */
    const char *ending; /* suffix that does not change a dataset's name ("_e"); NULL: none */
    size_t n;
    const void *rows; /* [n] rows of `size` bytes; each begins with its name, of at most NEAREST_MAX bytes */
    size_t size;
} dataset_names;

static inline const char *dataset_name(const dataset_names *names, size_t i)
{
    return *(const char *const *)((const char *)names->rows + i * names->size);
}

#define DATASET_UNKNOWN SIZE_MAX

/* Finds a dataset by its name of n bytes, which need not be NUL-terminated. ST_USAGE names the nearest dataset. */
status dataset_find(size_t *out, const dataset_names *names, const char *name, size_t n, err *e);
/* Marks the datasets of a comma-separated list; option: name in messages ("--dataset"). */
status datasets_mark(bool *wanted, const dataset_names *names, const char *option, const char *datasets, err *e);

/* ---- samples ---- */

/* First member of every sample. */
typedef struct {
    size_t dataset; /* row of the benchmark's table */
    int64_t index;  /* number within its dataset, from 0, in the order of the data */
    json_t *root;   /* record that owns the texts; NULL: none */
    uint64_t draw;  /* used by samples_keep */
} sample_head;

/* Samples of one type. A struct that is zero except for size and drop is empty. Requires samples_free, also after an
 * error. */
typedef struct {
    size_t size;          /* bytes of a sample, which begins with a sample_head */
    void (*drop)(void *); /* frees the sample's memory except its record; NULL: nothing */
    char *s;              /* samples; after samples_read, sorted by dataset, then by index */
    size_t n, cap;
    json_t *files; /* [{"name", "sha256"}] of the files read */
} sample_list;

static inline void *samples_at(const sample_list *l, size_t i)
{
    return l->s + i * l->size;
}

/* Frees the contents of a sample of this list's type. */
void sample_drop(const sample_list *l, void *s);
/* Appends a sample and takes ownership of its contents, also after an error. */
status samples_push(sample_list *l, void *s, err *e);
void samples_remove(sample_list *l, size_t i);
/* Keeps the samples that the source selects: the first of each dataset, or those drawn with its seed. A draw depends
 * only on seed, dataset and index. Sorts the samples by dataset, then by index. */
void samples_keep(sample_list *l, const sample_source *from);
/* Returns the number of samples of a dataset. */
size_t samples_count(const sample_list *l, size_t dataset);
/* Returns {name: number of samples} of the datasets with samples, in the order of the list. */
json_t *samples_counts(const sample_list *l, const dataset_names *names);
/* Frees a member of the record: a large text. */
void sample_forget(sample_head *s, const char *field);
void samples_free(sample_list *l);

/* ---- reading ---- */

/* Conversion of a benchmark's records to samples. */
typedef struct {
    const dataset_names *names;   /* NULL: one dataset, number 0 */
    const char *datasets;         /* --dataset: names that must have files in a folder; NULL: all that are found */
    const bool *wanted;           /* [names->n] datasets to keep; NULL: all */
    const char *suffix;           /* suffix of file names in folders, before ".jsonl"; NULL: none */
    const char *const *in_folder; /* without names: candidate file names in a folder, of which the first that exists is
                                     read; NULL: folders are errors */
    /* Finds the dataset of a record. *out holds the dataset of the file, or DATASET_UNKNOWN. NULL: uses the member
     * "dataset". */
    status (*dataset)(size_t *out, const json_t *root, const char *path, const char *where, err *e);
    /* Fills a zeroed sample from its record, dataset and file. ST_FORMAT names `where` and the field. */
    status (*read)(const void *own, void *s, const char *path, const char *where, err *e);
    const void *own;
} sample_reader;

/* Reads the samples of the source's files and keeps the selected ones. Errors: ST_IO for a folder without files, or
 * without the file of a dataset that was named; ST_FORMAT with file, line and field; ST_USAGE. */
status samples_read(sample_list *l, const sample_reader *r, const sample_source *from, err *e);
/* Adds the samples of one file's text. */
status samples_add(sample_list *l, const sample_reader *r, const char *name, const char *text, size_t n, err *e);

/* Reads a whole file and adds its name and checksum to `files`. ST_USAGE: a file with the same content was read before,
 * whose samples would count twice. Free *text with mem_free. */
status samples_file(char **text, size_t *n, const char *path, json_t *files, err *e);

/* Returns the text of a field. ST_FORMAT, beginning with `where` ("qasper.jsonl line 3"): the field is missing, not a
 * text, or contains U+0000, and cannot be a prompt. */
status sample_text(utf8_text *out, const json_t *root, const char *field, const char *where, err *e);
bool sample_has_nul(utf8_text s);
/* Reads the four texts of the list "options". */
enum { SAMPLE_OPTIONS = 4 };
status sample_options(utf8_text out[SAMPLE_OPTIONS], const json_t *root, const char *where, err *e);
/* Sets *labels to a list of the answer, which must be one of the options, and its letter. */
status sample_choice(json_t **labels, utf8_text answer, const utf8_text options[SAMPLE_OPTIONS], const char *where,
                     err *e);

#endif
