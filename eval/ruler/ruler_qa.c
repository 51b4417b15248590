/* SPDX-License-Identifier: MIT */
/* Questions on documents: files and prompts of qa_1 and qa_2. Source: NVIDIA/RULER scripts/data/synthetic/qa.py. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/metrics/text.h"
#include "eval/provenance.h"
#include "eval/ruler/ruler.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum { MAX_DEPTH = 32 };
static const size_t MAX_FILE_BYTES = (size_t)1 << 30;

typedef struct {
    ruler_qa *q;
    const char *name;
    size_t cap;     /* capacity of questions */
    char where[96]; /* current part of the file, for messages */
} reader;

static status wrong(const reader *r, const char *field, const char *expected, err *e)
{
    return err_set(e, ST_FORMAT, "%s: %s: '%s': expected %s", path_tail(r->name), r->where, field, expected);
}

/* ---- documents ---- */

/* A document and its index in the file. */
typedef struct {
    utf8_text s;
    uint32_t number;
} entry;

static int by_text(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    int d = memcmp(x->s.s, y->s.s, x->s.n < y->s.n ? x->s.n : y->s.n);
    if (d) return d;
    if (x->s.n != y->s.n) return x->s.n < y->s.n ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

/* Numbers the distinct documents; equal documents have the same number. */
static status number_documents(ruler_qa *q, err *e)
{
    entry *p;
    const size_t n = json_array_size(q->texts);
    if (n >= UINT32_MAX / 2) return err_set(e, ST_FORMAT, "too many documents");
    TRY(MEM_NEW(&q->document, n, e));
    TRY(MEM_NEW(&q->index, n, e));
    TRY(MEM_NEW(&p, n, e));
    q->n_indices = n;
    for (size_t i = 0; i < n; i++) p[i] = (entry){json_text(json_array_get(q->texts, i)), (uint32_t)i};
    qsort(p, n, sizeof *p, by_text);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || !text_equal(p[i - 1].s, p[i].s)) q->document[q->n_documents++] = p[i].s;
        q->index[p[i].number] = (uint32_t)(q->n_documents - 1);
    }
    mem_free(p);
    return ST_OK;
}

/* ---- questions ---- */

/* Adds a question on n_own documents from `own` on. Takes ownership of the answers. */
static status add_question(reader *r, const json_t *record, json_t *answers, size_t own, size_t n_own, err *e)
{
    ruler_qa *q = r->q;
    const json_t *text = json_object_get(record, "question");
    status st =
        answers ? MEM_ROOM(&q->question, &r->cap, q->n_questions + 1, e) : err_set(e, ST_NOMEM, "out of memory");
    if (st == ST_OK && !json_is_string(text)) st = wrong(r, "question", "a text", e);
    if (st == ST_OK)
        q->question[q->n_questions++] = (ruler_question){json_string_value(text), answers, own, n_own, 0, 0};
    else json_decref(answers);
    return st;
}

/* ---- SQuAD ---- */

static status read_answers(reader *r, const json_t *qa, err *e)
{
    const json_t *list = json_object_get(qa, "answers"), *one;
    size_t i;
    if (json_array_size(list) == 0) return wrong(r, "answers", "a non-empty list", e);
    json_array_foreach(list, i, one)
    {
        if (!json_is_string(json_object_get(one, "text"))) return wrong(r, "answers", "objects with 'text'", e);
    }
    json_t *texts = json_array();
    json_array_foreach(list, i, one) json_array_append(texts, json_object_get(one, "text"));
    return add_question(r, qa, texts, json_array_size(r->q->texts), 1, e);
}

static status read_paragraph(reader *r, const json_t *paragraph, err *e)
{
    const json_t *list = json_object_get(paragraph, "qas"), *qa;
    json_t *context = json_object_get(paragraph, "context");
    size_t i;
    if (!json_is_array(list)) return wrong(r, "qas", "a list", e);
    json_array_foreach(list, i, qa)
    {
        const json_t *impossible = json_object_get(qa, "is_impossible");
        if (!json_is_boolean(impossible)) return wrong(r, "is_impossible", "true or false", e);
        if (json_is_false(impossible)) TRY(read_answers(r, qa, e));
    }
    if (!json_is_string(context)) return wrong(r, "context", "a text", e);
    return json_array_append(r->q->texts, context) == 0 ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

static status read_article(reader *r, size_t number, const json_t *article, err *e)
{
    const json_t *list = json_object_get(article, "paragraphs"), *paragraph;
    ruler_qa *q = r->q;
    size_t i, first = json_array_size(q->texts), first_question = q->n_questions;
    snprintf(r->where, sizeof r->where, "article %zu", number);
    if (!json_is_array(list)) return wrong(r, "paragraphs", "a list", e);
    json_array_foreach(list, i, paragraph)
    {
        snprintf(r->where, sizeof r->where, "article %zu, paragraph %zu", number, i + 1);
        TRY(read_paragraph(r, paragraph, e));
    }
    for (size_t k = first_question; k < q->n_questions; k++) {
        q->question[k].near = first;
        q->question[k].n_near = json_array_size(q->texts) - first;
    }
    return ST_OK;
}

/* ---- HotpotQA ---- */

/* Appends the text of [title, [sentences]]. */
static status join_document(prompt_text *out, const reader *r, const json_t *document, err *e)
{
    const json_t *title = json_array_get(document, 0), *sentences = json_array_get(document, 1), *one;
    size_t i;
    if (!json_is_string(title)) return wrong(r, "context", "a text", e);
    if (!json_is_array(sentences)) return wrong(r, "context", "lists of a title and a list of sentences", e);
    TRY(prompt_add(out, json_string_value(title), json_string_length(title), e));
    TRY(prompt_add(out, "\n", 1, e));
    json_array_foreach(sentences, i, one)
    {
        if (!json_is_string(one)) return wrong(r, "context", "a text", e);
        TRY(prompt_add(out, json_string_value(one), json_string_length(one), e));
    }
    return ST_OK;
}

static status read_document(reader *r, const json_t *document, err *e)
{
    prompt_text t = {0};
    status st = join_document(&t, r, document, e);
    if (st == ST_OK && json_array_append_new(r->q->texts, json_stringn(t.s, t.n)) != 0)
        st = err_set(e, ST_NOMEM, "out of memory");
    mem_free(t.s);
    return st;
}

static status read_hotpot(reader *r, size_t number, const json_t *record, err *e)
{
    const json_t *list = json_object_get(record, "context"), *document;
    json_t *answer = json_object_get(record, "answer");
    size_t i, first = json_array_size(r->q->texts);
    snprintf(r->where, sizeof r->where, "question %zu", number);
    if (!json_is_string(answer)) return wrong(r, "answer", "a text", e);
    if (json_array_size(list) == 0) return wrong(r, "context", "a list of documents", e);
    json_array_foreach(list, i, document) TRY(read_document(r, document, e));
    return add_question(r, record, json_pack("[O]", answer), first, json_array_size(list), e);
}

/* ---- files ---- */

/* Parses the file: SQuAD is an object with a list "data", HotpotQA a list. */
static status parse(ruler_qa *q, ruler_file format, const char *name, const char *text, size_t n, err *e)
{
    str whole = {0};
    if (format == RULER_SQUAD) return json_parse_object(&q->root, text, n, path_tail(name), MAX_DEPTH, e);
    str_add(&whole, "{\"data\":", 8);
    str_add(&whole, text, n);
    str_add(&whole, "}", 1);
    status st = str_check(&whole, e);
    if (st == ST_OK) st = json_parse_object(&q->root, whole.s, whole.n, path_tail(name), MAX_DEPTH, e);
    str_free(&whole);
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
    return number_documents(r->q, e);
}

status ruler_qa_parse(ruler_qa *q, ruler_file format, const char *name, const char *text, size_t n, err *e)
{
    reader r = {.q = q, .name = name};
    *q = (ruler_qa){.texts = json_array()};
    if (!q->texts) return err_set(e, ST_NOMEM, "out of memory");
    TRY(parse(q, format, name, text, n, e));
    return read_data(&r, format, e);
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
    mem_free(q->index);
    json_decref(q->texts);
    json_decref(q->root);
    *q = (ruler_qa){0};
}

/* ---- prompts ---- */

/* List of document numbers. */
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

/* Draws k documents of `from` and adds them. */
static status add_sample(ruler_maker *m, documents *d, const documents *from, size_t k, err *e)
{
    uint32_t *taken;
    TRY(MEM_NEW(&taken, k, e));
    status st = python_sample(&m->python, taken, from->n, k, e);
    for (size_t i = 0; i < k && st == ST_OK; i++) d->d[d->n++] = from->d[taken[i]];
    mem_free(taken);
    return st;
}

/* Fills d with n documents: the question's own, then others, of its article first. `rest` is scratch memory. */
static status choose(ruler_maker *m, const ruler_question *q, size_t n, documents *d, documents *rest, err *e)
{
    const ruler_qa *qa = qa_of(m);
    const uint32_t own = qa->index[q->own];
    for (size_t i = 0; i < q->n_own; i++) d->d[d->n++] = qa->index[q->own + i];
    for (size_t i = 0; i < q->n_near; i++)
        if (qa->index[q->near + i] != own) rest->d[rest->n++] = qa->index[q->near + i];
    if (n < d->n) {
        m->builder.failed = "the question alone has more documents";
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

/* Appends the chosen documents, shuffled. If d is empty: n documents, all of them in rotation. */
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
    TRY(ruler_builder_fill(m, f, 2, e));
    json_array_foreach(q->answers, i, answer) TRY(ruler_builder_answer(m, json_text(answer), e));
    return ST_OK;
}

status ruler_qa_ask(ruler_maker *m, int64_t n, err *e)
{
    const ruler_qa *qa = qa_of(m);
    const int64_t number = m->searching ? 0 : m->in->o->pre_samples + m->number;
    documents d = {0}, rest = {0};
    TRY(ruler_builder_start(m, e));
    if (number >= (int64_t)qa->n_questions)
        return err_set(e, ST_USAGE, "--samples: %s has only %zu questions", ruler_file_options[m->task->file],
                       qa->n_questions);
    const ruler_question *q = &qa->question[number];
    size_t room = (size_t)n + q->n_own + q->n_near + qa->n_documents;
    status st = MEM_NEW(&d.d, room, e);
    if (st == ST_OK) st = MEM_NEW(&rest.d, room, e);
    if (st == ST_OK && (size_t)n < qa->n_documents) st = choose(m, q, (size_t)n, &d, &rest, e);
    if (st == ST_OK && !m->builder.failed) st = fill(m, q, &d, (size_t)n, e);
    mem_free(d.d);
    mem_free(rest.d);
    return st;
}
