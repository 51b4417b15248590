/* SPDX-License-Identifier: MIT */
/* Questions on documents, as RULER's qa_1 and qa_2 take them from SQuAD v2 and HotpotQA. Files are not trusted. Source:
 * NVIDIA/RULER scripts/data/synthetic/qa.py. */
#ifndef EVAL_RULER_RULER_QA_H
#define EVAL_RULER_RULER_QA_H

#include <jansson.h>
#include <stdint.h>

#include "eval/prompt.h"
#include "kernels/base/sha256.h"

typedef struct {
    const char *text;
    json_t *answers;     /* a list of texts */
    size_t own, n_own;   /* of ruler_qa.place: its documents */
    size_t near, n_near; /* those of the same article; 0: of none */
} ruler_question;

typedef struct {
    char sum[SHA256_HEX]; /* of the file */
    json_t *root;         /* holds texts of questions */
    json_t *texts;        /* documents in the order of the file */
    utf8_text *document;  /* distinct, in the order of code points */
    uint32_t *place;      /* [n_places] the documents in the order of the file: numbers of `document` */
    ruler_question *question;
    size_t n_documents, n_places, n_questions;
} ruler_qa;

/* Files that the user brings; RULER_FILES: their number, or none of them. */
typedef enum { RULER_ESSAYS, RULER_SQUAD, RULER_HOTPOTQA, RULER_FILES } ruler_file;

/* Reads RULER_SQUAD or RULER_HOTPOTQA. Errors: ST_FORMAT naming the file, the article, paragraph or question (from 1)
 * and the field. ruler_qa_close also after an error. */
status ruler_qa_open(ruler_qa *q, ruler_file format, const char *path, err *e);
/* The same from the text of a file. */
status ruler_qa_parse(ruler_qa *q, ruler_file format, const char *name, const char *text, size_t n, err *e);
void ruler_qa_close(ruler_qa *q);

#endif
