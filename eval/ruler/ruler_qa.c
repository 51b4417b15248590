/* SPDX-License-Identifier: MIT */
/* Questions among documents: the files of qa_1 and qa_2, and their prompts. Source: NVIDIA/RULER
 * scripts/data/synthetic/qa.py. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/provenance.h"
#include "eval/ruler/ruler.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum { MAX_DEPTH = 32 };
static const size_t MAX_FILE_BYTES = (size_t)1 << 30;

/* A document where it stands in the file. */
typedef struct {
    size_t at, n;    /* in the text, */
    const char *s;   /* which has moved to its place by then */
    uint32_t number; /* of the place */
} place;

typedef struct {
    ruler_qa *q;
    const char *name;
    place *p;
    size_t n, cap, q_cap;
    char where[96]; /* the part of the file that is looked at */
} reader;

static status wrong(const reader *r, const char *field, const char *expected, err *e)
{
    return err_set(e, ST_FORMAT, "%s: %s: '%s': expected %s", path_tail(r->name), r->where, field, expected);
}

/* ---- documents ---- */

/* Begins a document; text is added to q->text until end_document. */
static status start_document(reader *r, err *e)
{
    TRY(MEM_ROOM(&r->p, &r->cap, r->n + 1, e));
    if (r->n >= UINT32_MAX / 2) return err_set(e, ST_FORMAT, "%s: too many documents", path_tail(r->name));
    r->p[r->n] = (place){.at = r->q->text.n, .number = (uint32_t)r->n};
    return ST_OK;
}

static void end_document(reader *r)
{
    place *p = &r->p[r->n++];
    p->n = r->q->text.n - p->at;
}

static status add_text(reader *r, const json_t *text, const char *field, err *e)
{
    if (!json_is_string(text)) return wrong(r, field, "a text", e);
    return prompt_add(&r->q->text, json_string_value(text), json_string_length(text), e);
}

static int by_text(const void *a, const void *b)
{
    const place *x = a, *y = b;
    int d = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    if (d) return d;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

/* Numbers the documents: equal ones have one number. */
static status number_documents(reader *r, err *e)
{
    ruler_qa *q = r->q;
    TRY(MEM_NEW(&q->document, r->n, e));
    TRY(MEM_NEW(&q->place, r->n, e));
    q->n_places = r->n;
    for (size_t i = 0; i < r->n; i++) r->p[i].s = q->text.s + r->p[i].at;
    qsort(r->p, r->n, sizeof *r->p, by_text);
    for (size_t i = 0; i < r->n; i++) {
        const place *p = &r->p[i], *before = i ? p - 1 : NULL;
        if (!before || before->n != p->n || memcmp(before->s, p->s, p->n) != 0)
            q->document[q->n_documents++] = (utf8_text){p->s, p->n};
        q->place[p->number] = (uint32_t)(q->n_documents - 1);
    }
    return ST_OK;
}

/* ---- questions ---- */

/* Takes the answers. */
static status add_question(reader *r, const json_t *text, json_t *answers, err *e)
{
    ruler_qa *q = r->q;
    status st = ST_OK;
    if (!answers) return err_set(e, ST_NOMEM, "out of memory");
    if (!json_is_string(text)) st = wrong(r, "question", "a text", e);
    else st = MEM_ROOM(&q->question, &r->q_cap, q->n_questions + 1, e);
    if (st == ST_OK) q->question[q->n_questions++] = (ruler_question){json_string_value(text), answers, 0, 0, 0, 0};
    else json_decref(answers);
    return st;
}

/* ---- SQuAD ---- */

static status read_answers(reader *r, const json_t *qa, err *e)
{
    const json_t *list = json_object_get(qa, "answers"), *one;
    size_t i;
    json_t *texts = json_array();
    if (json_array_size(list) == 0) {
        json_decref(texts);
        return wrong(r, "answers", "a list that is not empty", e);
    }
    json_array_foreach(list, i, one)
    {
        json_t *text = json_object_get(one, "text");
        if (!json_is_string(text)) {
            json_decref(texts);
            return wrong(r, "answers", "objects with 'text'", e);
        }
        json_array_append(texts, text);
    }
    return add_question(r, json_object_get(qa, "question"), texts, e);
}

static status read_paragraph(reader *r, const json_t *paragraph, err *e)
{
    const json_t *list = json_object_get(paragraph, "qas"), *qa;
    size_t i;
    if (!json_is_array(list)) return wrong(r, "qas", "a list", e);
    json_array_foreach(list, i, qa)
    {
        const json_t *impossible = json_object_get(qa, "is_impossible");
        if (!json_is_boolean(impossible)) return wrong(r, "is_impossible", "true or false", e);
        if (json_is_true(impossible)) continue;
        TRY(read_answers(r, qa, e));
        r->q->question[r->q->n_questions - 1].own = r->n;
        r->q->question[r->q->n_questions - 1].n_own = 1;
    }
    TRY(start_document(r, e));
    TRY(add_text(r, json_object_get(paragraph, "context"), "context", e));
    end_document(r);
    return ST_OK;
}

static status read_article(reader *r, size_t number, const json_t *article, err *e)
{
    const json_t *list = json_object_get(article, "paragraphs"), *paragraph;
    size_t i, first = r->n, first_question = r->q->n_questions;
    snprintf(r->where, sizeof r->where, "article %zu", number);
    if (!json_is_array(list)) return wrong(r, "paragraphs", "a list", e);
    json_array_foreach(list, i, paragraph)
    {
        snprintf(r->where, sizeof r->where, "article %zu, paragraph %zu", number, i + 1);
        TRY(read_paragraph(r, paragraph, e));
    }
    for (size_t k = first_question; k < r->q->n_questions; k++) {
        r->q->question[k].near = first;
        r->q->question[k].n_near = r->n - first;
    }
    return ST_OK;
}

/* ---- HotpotQA ---- */

/* [title, [sentences]] */
static status read_document(reader *r, const json_t *document, err *e)
{
    const json_t *sentences = json_array_get(document, 1), *one;
    size_t i;
    TRY(start_document(r, e));
    TRY(add_text(r, json_array_get(document, 0), "context", e));
    TRY(prompt_add(&r->q->text, "\n", 1, e));
    if (!json_is_array(sentences)) return wrong(r, "context", "lists of a title and a list of sentences", e);
    json_array_foreach(sentences, i, one) TRY(add_text(r, one, "context", e));
    end_document(r);
    return ST_OK;
}

static status read_hotpot(reader *r, size_t number, const json_t *record, err *e)
{
    const json_t *list = json_object_get(record, "context"), *document;
    json_t *answer = json_object_get(record, "answer");
    size_t i, first = r->n;
    snprintf(r->where, sizeof r->where, "question %zu", number);
    if (!json_is_string(answer)) return wrong(r, "answer", "a text", e);
    if (json_array_size(list) == 0) return wrong(r, "context", "a list of documents", e);
    json_array_foreach(list, i, document) TRY(read_document(r, document, e));
    TRY(add_question(r, json_object_get(record, "question"), json_pack("[O]", answer), e));
    r->q->question[r->q->n_questions - 1].own = first;
    r->q->question[r->q->n_questions - 1].n_own = r->n - first;
    return ST_OK;
}

/* ---- files ---- */

/* SQuAD is an object with a list "data", HotpotQA a list. */
static status parse(ruler_qa *q, ruler_file format, const char *name, const char *text, size_t n, err *e)
{
    prompt_text whole = {0};
    if (format == RULER_SQUAD) return json_parse_object(&q->root, text, n, path_tail(name), MAX_DEPTH, e);
    status st = prompt_puts(&whole, "{\"data\":", e);
    if (st == ST_OK) st = prompt_add(&whole, text, n, e);
    if (st == ST_OK) st = prompt_add(&whole, "}", 1, e);
    if (st == ST_OK) st = json_parse_object(&q->root, whole.s, whole.n, path_tail(name), MAX_DEPTH, e);
    mem_free(whole.s);
    return st;
}

static status read_data(reader *r, ruler_file format, err *e)
{
    const json_t *list = json_object_get(r->q->root, "data"), *one;
    size_t i;
    if (!json_is_array(list))
        return err_set(e, ST_FORMAT, format == RULER_SQUAD ? "%s: 'data': expected a list" : "%s: expected a list",
                       path_tail(r->name));
    json_array_foreach(list, i, one)
    {
        TRY(format == RULER_SQUAD ? read_article(r, i + 1, one, e) : read_hotpot(r, i + 1, one, e));
    }
    if (r->q->n_questions == 0) return err_set(e, ST_FORMAT, "%s: no questions with answers", path_tail(r->name));
    return number_documents(r, e);
}

status ruler_qa_parse(ruler_qa *q, ruler_file format, const char *name, const char *text, size_t n, err *e)
{
    reader r = {.q = q, .name = name};
    *q = (ruler_qa){0};
    TRY(parse(q, format, name, text, n, e));
    status st = read_data(&r, format, e);
    mem_free(r.p);
    return st;
}

status ruler_qa_open(ruler_qa *q, ruler_file format, const char *path, err *e)
{
    char *text;
    size_t n;
    *q = (ruler_qa){0};
    TRY(file_read(&text, &n, path, MAX_FILE_BYTES, e));
    status st = ruler_qa_parse(q, format, path, text, n, e);
    mem_free(text);
    return st == ST_OK ? file_sha256(path, q->sum, e) : st;
}

void ruler_qa_close(ruler_qa *q)
{
    for (size_t i = 0; i < q->n_questions; i++) json_decref(q->question[i].answers);
    mem_free(q->question);
    mem_free(q->document);
    mem_free(q->place);
    mem_free(q->text.s);
    json_decref(q->root);
    *q = (ruler_qa){0};
}

/* ---- prompts ---- */

/* Numbers of documents. */
typedef struct {
    uint32_t *d;
    size_t n;
} documents;

static const ruler_qa *qa_of(const ruler_maker *m)
{
    return &m->in->qa[m->task->file];
}

static bool holds(const documents *d, uint32_t x)
{
    bool found = false;
    for (size_t i = 0; i < d->n && !found; i++) found = d->d[i] == x;
    return found;
}

/* Adds k of the documents of `from`. */
static status add_sample(ruler_maker *m, documents *d, const documents *from, size_t k, err *e)
{
    uint32_t *taken;
    TRY(MEM_NEW(&taken, k, e));
    status st = python_sample(&m->python, taken, from->n, k, e);
    for (size_t i = 0; i < k && st == ST_OK; i++) d->d[d->n++] = from->d[taken[i]];
    mem_free(taken);
    return st;
}

/* Fills d, and with `rest` as room, with n documents: those of the question and others, of its article first. */
static status choose(ruler_maker *m, const ruler_question *q, size_t n, documents *d, documents *rest, err *e)
{
    const ruler_qa *qa = qa_of(m);
    const uint32_t own = qa->place[q->own];
    for (size_t i = 0; i < q->n_own; i++) d->d[d->n++] = qa->place[q->own + i];
    for (size_t i = 0; i < q->n_near; i++)
        if (qa->place[q->near + i] != own) rest->d[rest->n++] = qa->place[q->near + i];
    if (n < d->n) {
        m->draft.failed = "the question has more documents of its own";
        return ST_OK;
    }
    if (n - d->n <= rest->n) return add_sample(m, d, rest, n - d->n, e);
    for (size_t i = 0; i < rest->n; i++) d->d[d->n++] = rest->d[i];
    rest->n = 0;
    for (size_t i = 0; i < qa->n_documents; i++)
        if (!holds(d, (uint32_t)i)) rest->d[rest->n++] = (uint32_t)i;
    return add_sample(m, d, rest, n - d->n, e);
}

static status put_document(ruler_maker *m, size_t number, utf8_text document, err *e)
{
    char text[24];
    snprintf(text, sizeof text, "%zu", number);
    const prompt_field f[] = {{"{i}", utf8_of(text)}, {"{document}", document}};
    if (number > 1) TRY(prompt_puts(&m->context, "\n\n", e));
    return prompt_append(&m->context, m->in->templates.document, f, 2, e);
}

/* The chosen documents, shuffled; without any: all of them, again and again, up to n. */
static status put_documents(ruler_maker *m, const documents *d, size_t n, err *e)
{
    const ruler_qa *qa = qa_of(m);
    uint32_t *order;
    TRY(MEM_NEW(&order, n, e));
    python_shuffled(order, n, m->seed);
    status st = ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        size_t k = d->n ? d->d[order[i]] : order[i] % qa->n_documents;
        st = put_document(m, i + 1, qa->document[k], e);
    }
    mem_free(order);
    return st;
}

static status fill(ruler_maker *m, const ruler_question *q, const documents *d, size_t n, err *e)
{
    size_t i;
    const json_t *answer;
    TRY(put_documents(m, d, n, e));
    const prompt_field f[] = {{"{context}", {m->context.s, m->context.n}}, {"{query}", utf8_of(q->text)}};
    TRY(ruler_draft_fill(m, f, 2, e));
    json_array_foreach(q->answers, i, answer) TRY(ruler_draft_answer(m, text_of(answer), e));
    return ST_OK;
}

status ruler_qa_ask(ruler_maker *m, int64_t n, err *e)
{
    const ruler_qa *qa = qa_of(m);
    const int64_t number = m->searching ? 0 : m->in->o->pre_samples + m->number;
    documents d = {0}, rest = {0};
    TRY(ruler_draft_start(m, e));
    if (number >= (int64_t)qa->n_questions)
        return err_set(e, ST_USAGE, "--samples: %s has %zu questions", ruler_file_options[m->task->file],
                       qa->n_questions);
    const ruler_question *q = &qa->question[number];
    size_t room = (size_t)n + q->n_own + q->n_near + qa->n_documents;
    status st = MEM_NEW(&d.d, room, e);
    if (st == ST_OK) st = MEM_NEW(&rest.d, room, e);
    if (st == ST_OK && (size_t)n < qa->n_documents) st = choose(m, q, (size_t)n, &d, &rest, e);
    if (st == ST_OK && !m->draft.failed) st = fill(m, q, &d, (size_t)n, e);
    mem_free(d.d);
    mem_free(rest.d);
    return st;
}
