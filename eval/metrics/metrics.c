/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/metrics/answer.h"

#include <string.h>

#include "kernels/base/mem.h"

/* Metrics that extract an answer from a long output. */
#define ANSWERS(name)                                                                                                  \
    {                                                                                                                  \
#name, score_answer, true, false, &answer_##name                                                               \
    }

#define BOXED(name)                                                                                                    \
    {                                                                                                                  \
#name, score_answer, true, false, &answer_boxed                                                                \
    }

static const metric table[] = {
    {"qa_f1", score_qa_f1, false, false, NULL},
    {"qa_f1_zh", score_qa_f1_zh, false, false, NULL},
    {"rouge", score_rouge, false, false, NULL},
    {"rouge_zh", score_rouge_zh, false, false, NULL},
    {"classification", score_classification, false, false, NULL},
    {"retrieval", score_retrieval, false, false, NULL},
    {"retrieval_zh", score_retrieval_zh, false, false, NULL},
    {"count", score_count, false, false, NULL},
    {"code_sim", score_code_sim, false, false, NULL},
    {"passkey", score_first_number, true, false, NULL},
    {"number_string", score_first_number, true, false, NULL},
    {"kv_retrieval", score_kv_retrieval, true, false, NULL},
    {"longdialogue_qa_eng", score_longdialogue, true, true, NULL},
    {"longbook_sum_eng", score_rouge_lsum, true, false, NULL},
    {"longbook_choice_eng", score_choice, true, true, NULL},
    {"longbook_choice_eng_infllm", score_choice_infllm, true, false, NULL},
    {"longbook_qa_eng", score_qa_f1, true, false, NULL},
    {"longbook_qa_chn", score_char_f1_zh, true, false, NULL},
    {"math_find", score_math_find, true, false, NULL},
    {"math_calc", score_math_calc, true, true, NULL},
    {"code_run", score_code_run, true, false, NULL},
    {"code_debug", score_code_debug, true, true, NULL},
    {"code_debug_infllm", score_code_debug_infllm, true, true, NULL},
    {"ruler_all", score_ruler_all, false, true, NULL},
    {"ruler_part", score_ruler_part, false, false, NULL},
    {"mrcr", score_mrcr, false, true, NULL},
    {"mrcr_v2", score_mrcr_v2, false, false, NULL},
    {"scbench_kv", score_contains, true, false, NULL},
    {"scbench_qa_eng", score_contains_upper, true, false, NULL},
    {"scbench_vt", score_share_found, true, true, NULL},
    {"scbench_mf", score_math_find_whole, true, false, NULL},
    ANSWERS(gsm8k),
    ANSWERS(gsm8k_strict),
    ANSWERS(gsm8k_flexible),
    ANSWERS(gsm8k_hash),
    ANSWERS(gsm8k_llama),
    ANSWERS(gsm8k_official),
    ANSWERS(gsm8k_logquant),
    ANSWERS(gsm8k_logquant_commas),
    BOXED(math),
    BOXED(math_hendrycks),
    BOXED(math_lmeval),
    BOXED(math_kvpress),
    BOXED(aime),
    BOXED(aime_tests),
    BOXED(aime_lmeval),
    BOXED(aime_kvpress),
    ANSWERS(gpqa),
    ANSWERS(gpqa_cot),
    ANSWERS(gpqa_simple_evals),
    ANSWERS(gpqa_lmeval),
};
enum { N_METRICS = sizeof table / sizeof *table };

const metric *metric_next(const metric *k)
{
    if (!k) return table;
    return k + 1 < table + N_METRICS ? k + 1 : NULL;
}

const metric *metric_find(const char *name)
{
    const metric *k = metric_next(NULL);
    while (k && strcmp(k->name, name) != 0) k = metric_next(k);
    return k;
}

const char *metric_name(const metric *k)
{
    return k->name;
}

bool metric_takes_labels(const metric *k)
{
    return k->labels;
}

status score_answer(const metric_pair *p, double *score, err *e)
{
    str answer = {0};
    bool found = false, same = false;
    status st = p->rule->extract(&answer, &found, p->said, e);
    if (st == ST_OK && found) st = p->rule->same(&same, &answer, p->label, e);
    *score = same;
    str_free(&answer);
    return st;
}

bool metric_finds_answers(const metric *k)
{
    return k->rule != NULL;
}

status metric_answer(char **answer, size_t *n, const metric *k, utf8_text prediction, err *e)
{
    str t = {0};
    bool found = false;
    *answer = NULL;
    *n = 0;
    status st = k->rule->extract(&t, &found, prediction, e);
    if (st == ST_OK && found && !t.s) str_set(&t, "", 0);
    if (st == ST_OK) st = str_check(&t, e);
    if (st != ST_OK || !found) {
        str_free(&t);
        return st;
    }
    *answer = t.s;
    *n = t.n;
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
    metrics_set_undecided(m, false);
    for (size_t i = 0; i < (k->whole && c->n_answers ? 1 : c->n_answers); i++) {
        double one = 0;
        metric_pair p = {.m = m,
                         .rule = k->rule,
                         .said = c->prediction,
                         .label = c->answers[i],
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
