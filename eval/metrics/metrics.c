/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/metrics/impl.h"

#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"

struct metrics {
    char *jieba_dir;
    segmenter *words;
    bool undecided;
};

static const metric table[] = {
    {"qa_f1", score_qa_f1, false, false},
    {"qa_f1_zh", score_qa_f1_zh, false, false},
    {"rouge", score_rouge, false, false},
    {"rouge_zh", score_rouge_zh, false, false},
    {"classification", score_classification, false, false},
    {"retrieval", score_retrieval, false, false},
    {"retrieval_zh", score_retrieval_zh, false, false},
    {"count", score_count, false, false},
    {"code_sim", score_code_sim, false, false},
    {"passkey", score_first_number, true, false},
    {"number_string", score_first_number, true, false},
    {"kv_retrieval", score_kv_retrieval, true, false},
    {"longdialogue_qa_eng", score_longdialogue, true, true},
    {"longbook_sum_eng", score_rouge_lsum, true, false},
    {"longbook_choice_eng", score_choice, true, true},
    {"longbook_choice_eng_infllm", score_choice_infllm, true, false},
    {"longbook_qa_eng", score_qa_f1, true, false},
    {"longbook_qa_chn", score_char_f1_zh, true, false},
    {"math_find", score_math_find, true, false},
    {"math_calc", score_math_calc, true, true},
    {"code_run", score_code_run, true, false},
    {"code_debug", score_code_debug, true, true},
    {"code_debug_infllm", score_code_debug_infllm, true, true},
};
enum { N_METRICS = sizeof table / sizeof *table };
static const metric *const listed[N_METRICS + 1] = {
    &table[0],  &table[1],  &table[2],  &table[3],  &table[4],  &table[5],  &table[6],  &table[7],
    &table[8],  &table[9],  &table[10], &table[11], &table[12], &table[13], &table[14], &table[15],
    &table[16], &table[17], &table[18], &table[19], &table[20], &table[21], &table[22]};

const metric *const *metric_list(void)
{
    return listed;
}

const metric *metric_find(const char *name)
{
    for (size_t i = 0; listed[i]; i++)
        if (strcmp(listed[i]->name, name) == 0) return listed[i];
    return NULL;
}

const char *metric_name(const metric *k)
{
    return k->name;
}

bool metric_takes_labels(const metric *k)
{
    return k->labels;
}

bool metrics_undecided(const metrics *m)
{
    return m->undecided;
}

void metrics_set_undecided(metrics *m, bool undecided)
{
    m->undecided = undecided;
}

status metrics_create(metrics **out, const char *jieba_dir, err *e)
{
    metrics *m;
    *out = NULL;
    TRY(MEM_NEW(&m, 1, e));
    if (!(m->jieba_dir = mem_strdup(jieba_dir))) {
        mem_free(m);
        return err_set(e, ST_NOMEM, "out of memory");
    }
    *out = m;
    return ST_OK;
}

status metrics_open(metrics **out, const char *data_dir, err *e)
{
    char *jieba = path_join(data_dir, "jieba");
    *out = NULL;
    status st = jieba ? metrics_create(out, jieba, e) : err_set(e, ST_NOMEM, "out of memory");
    mem_free(jieba);
    return st;
}

void metrics_destroy(metrics *m)
{
    if (!m) return;
    segmenter_destroy(m->words);
    mem_free(m->jieba_dir);
    mem_free(m);
}

status metrics_segmenter(metrics *m, const segmenter **out, err *e)
{
    if (!m->words) TRY(segmenter_create(&m->words, m->jieba_dir, e));
    *out = m->words;
    return ST_OK;
}

/* The texts of a case as code points; free_texts releases. */
static status decode_texts(text *t, span *s, const utf8_text *from, size_t n, err *e)
{
    for (size_t i = 0; i < n; i++) {
        TRY(text_decode(&t[i], from[i].s, from[i].n, e));
        s[i] = text_span(&t[i]);
    }
    return ST_OK;
}

static void free_texts(text *t, size_t n)
{
    for (size_t i = 0; t && i < n; i++) text_free(&t[i]);
    mem_free(t);
}

status metric_score(metrics *m, const metric *k, const metric_case *c, double *score, err *e)
{
    size_t n = 1 + c->n_answers + c->n_classes;
    text *t = NULL;
    span *s = NULL;
    status st;
    *score = 0;
    TRY_GOTO(MEM_NEW(&t, n, e));
    TRY_GOTO(MEM_NEW(&s, n, e));
    TRY_GOTO(decode_texts(t, s, &c->prediction, 1, e));
    TRY_GOTO(decode_texts(t + 1, s + 1, c->answers, c->n_answers, e));
    TRY_GOTO(decode_texts(t + 1 + c->n_answers, s + 1 + c->n_answers, c->classes, c->n_classes, e));
    m->undecided = false;
    for (size_t i = 0; i < (k->whole && c->n_answers ? 1 : c->n_answers); i++) {
        double one = 0;
        metric_pair p = {.m = m,
                         .prediction = s[0],
                         .answer = s[1 + i],
                         .answers = s + 1,
                         .n_answers = c->n_answers,
                         .n_classes = c->n_classes,
                         .classes = c->classes ? s + 1 + c->n_answers : NULL};
        TRY_GOTO(k->score(&p, &one, e));
        if (one > *score) *score = one;
    }
done:
    free_texts(t, n);
    mem_free(s);
    return st;
}
