/* SPDX-License-Identifier: MIT */
/* Samples of benchmarks, read from files that are not trusted. A benchmark is a table of datasets; a dataset is a file
 * of records in a folder, a file named after it, or records with a member "dataset". */
#ifndef EVAL_SAMPLES_H
#define EVAL_SAMPLES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "eval/metrics/metrics.h"

/* Which samples are read. */
typedef struct {
    const char *data; /* files and folders, separated by commas */
    int64_t limit;    /* most samples of a dataset; 0: all */
    bool sampled;     /* `limit` samples are drawn by the seed; else the first ones are taken */
    uint64_t seed;
} sample_source;

/* ---- datasets ---- */

/* The datasets of a benchmark. */
typedef struct {
    const char *bench;  /* for messages: "LongBench" */
    const char *ending; /* suffix that does not change a dataset's name ("_e"); NULL: none */
    size_t n;
    const void *rows; /* [n] of `size` bytes, each of which begins with its name, of at most NEAREST_MAX bytes */
    size_t size;
} dataset_names;

static inline const char *dataset_name(const dataset_names *names, size_t i)
{
    return *(const char *const *)((const char *)names->rows + i * names->size);
}

#define DATASET_UNKNOWN SIZE_MAX

/* Finds a dataset by its name, whose n bytes need no end. ST_USAGE names the nearest one. */
status dataset_find(size_t *out, const dataset_names *names, const char *name, size_t n, err *e);
/* Marks the datasets of a list separated by commas; option: for messages ("--dataset"). */
status datasets_mark(bool *wanted, const dataset_names *names, const char *option, const char *datasets, err *e);

/* ---- samples ---- */

/* The beginning of every sample. */
typedef struct {
    size_t dataset; /* row of the benchmark's table */
    int64_t index;  /* number within its dataset, from 0, in the order of the data */
    json_t *root;   /* record that holds the texts; NULL: none */
    uint64_t draw;  /* of samples_keep */
} sample_head;

/* Samples of one type. Zeroed but for size and drop: empty. samples_free also after an error. */
typedef struct {
    size_t size;          /* bytes of a sample, which begins with a sample_head */
    void (*drop)(void *); /* frees what a sample holds besides its record; NULL: nothing */
    char *s;              /* samples, after samples_read by dataset, then by index */
    size_t n, cap;
    json_t *files; /* [{"name", "sha256"}] of the files that were read */
} sample_list;

static inline void *samples_at(const sample_list *l, size_t i)
{
    return l->s + i * l->size;
}

/* Frees what a sample of this list's type holds. */
void sample_drop(const sample_list *l, void *s);
/* Takes what the sample holds, also after an error. */
status samples_push(sample_list *l, void *s, err *e);
void samples_remove(sample_list *l, size_t i);
/* Keeps the samples that the source asks for: the first of each dataset, or those that its seed draws, which follow
 * from seed, dataset and index alone. Sorts them by dataset, then by index. */
void samples_keep(sample_list *l, const sample_source *from);
/* Returns the number of samples of a dataset. */
size_t samples_count(const sample_list *l, size_t dataset);
/* Returns {name: number of samples} of the datasets that have some, in the order of the list. */
json_t *samples_counts(const sample_list *l, const dataset_names *names);
/* Frees the record's member, a large text. */
void sample_forget(sample_head *s, const char *field);
void samples_free(sample_list *l);

/* ---- reading ---- */

/* How the records of a benchmark become samples. */
typedef struct {
    const dataset_names *names; /* NULL: one dataset, number 0 */
    const char *datasets;       /* --dataset, names that must have files in a folder; NULL: any that are found */
    const bool *wanted;         /* [names->n] datasets that are kept; NULL: all */
    const char *suffix;         /* of files in folders, before ".jsonl"; NULL: none */
    const char *const
        *in_folder; /* without names: files of which a folder's first is read; NULL: folders are refused */
    /* The dataset of a record, with that of its file or DATASET_UNKNOWN in *out; NULL: by the member "dataset". */
    status (*dataset)(size_t *out, const json_t *root, const char *path, const char *where, err *e);
    /* Fills a zeroed sample from its record, dataset and file. ST_FORMAT names `where` and the field. */
    status (*read)(const void *own, void *s, const char *path, const char *where, err *e);
    const void *own;
} sample_reader;

/* Reads the samples of the source's files and keeps those it asks for. Errors: ST_IO for a folder without files, or
 * without that of a dataset that was named; ST_FORMAT naming file, line and field; ST_USAGE. */
status samples_read(sample_list *l, const sample_reader *r, const sample_source *from, err *e);
/* Adds the samples of one file's text. */
status samples_add(sample_list *l, const sample_reader *r, const char *name, const char *text, size_t n, err *e);

/* Reads a whole file and adds its name and checksum to `files`. ST_USAGE if a file with the same content was read,
 * whose samples would count twice. *text is freed with mem_free. */
status samples_file(char **text, size_t *n, const char *path, json_t *files, err *e);

/* The text of a field. ST_FORMAT, with `where` ("qasper.jsonl line 3") first, for one that cannot be a prompt: missing,
 * no text, or with U+0000 in it. */
status sample_text(utf8_text *out, const json_t *root, const char *field, const char *where, err *e);
bool sample_has_nul(utf8_text s);
/* The four texts of the list "options". */
enum { SAMPLE_OPTIONS = 4 };
status sample_options(utf8_text out[SAMPLE_OPTIONS], const json_t *root, const char *where, err *e);
/* Sets *labels to the list of an answer, which is one of the options, and its letter. */
status sample_choice(json_t **labels, utf8_text answer, const utf8_text options[SAMPLE_OPTIONS], const char *where,
                     err *e);

#endif
