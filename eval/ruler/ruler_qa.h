/* SPDX-License-Identifier: MIT */
/* Questions on documents for RULER's qa_1 (SQuAD v2) and qa_2 (HotpotQA). Files are untrusted. Source: NVIDIA/RULER
 * scripts/data/synthetic/qa.py. */
#ifndef EVAL_RULER_RULER_QA_H
#define EVAL_RULER_RULER_QA_H

#include <jansson.h>
#include <stdint.h>

#include "eval/prompt.h"
#include "kernels/base/sha256.h"

typedef struct {
    const char *text;
    json_t *answers;     /* a list of strings */
    size_t own, n_own;   /* its documents: first index into ruler_qa.index, and count */
    size_t near, n_near; /* documents of its article, also in index; n_near 0: none */
} ruler_question;

typedef struct {
    char sum[SHA256_HEX]; /* SHA-256 of the file */
    json_t *root;         /* owner of the questions' texts */
    json_t *texts;        /* documents in file order */
    utf8_text *document;  /* distinct documents in code-point order */
    uint32_t *index;      /* [n_indices] documents in file order, as indices into `document` */
    ruler_question *question;
    size_t n_documents, n_indices, n_questions;
} ruler_qa;

/* Files that the user provides; RULER_FILES: their number, or none of them. */
typedef enum { RULER_ESSAYS, RULER_SQUAD, RULER_HOTPOTQA, RULER_FILES } ruler_file;

/* Reads a file in the format RULER_SQUAD or RULER_HOTPOTQA. ST_FORMAT: the message names the file, the article,
 * paragraph or question (from 1) and the field. Call ruler_qa_close also after an error. */
status ruler_qa_open(ruler_qa *q, ruler_file format, const char *path, err *e);
/* Parses the text of such a file. */
status ruler_qa_parse(ruler_qa *q, ruler_file format, const char *name, const char *text, size_t n, err *e);
void ruler_qa_close(ruler_qa *q);

#endif
