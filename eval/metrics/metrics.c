/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/metrics/answer.h"

#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"

/* ---- state ---- */

bool metrics_undecided(const metrics *m)
{
    return m->undecided;
}

status metrics_open(metrics **out, const char *data_dir, err *e)
{
    metrics *m;
    *out = NULL;
    TRY(MEM_NEW(&m, 1, e));
    if (!(m->jieba_dir = path_join(data_dir, "jieba"))) {
        mem_free(m);
        return err_set(e, ST_NOMEM, "out of memory");
    }
    *out = m;
    return ST_OK;
}

void metrics_destroy(metrics *m)
{
    if (!m) return;
    segmenter_destroy(m->words);
    mem_free(m->jieba_dir);
    mem_free(m);
}

/* ---- answers in outputs ---- */

static status extract(const answer_rule *rule, str *out, bool *found, utf8_text output, err *e)
{
    utf8_text part;
    if (rule->extract) return rule->extract(out, found, output, e);
    if (rule->pattern) TRY(regex_find(&part, found, rule->pattern, rule->last, output, e));
    else *found = rule->find(&part, output);
    if (*found) str_set(out, part.s, part.n);
    return str_check(out, e);
}

/* Compares the answer of an output with a label. Both may be modified. */
static status compare(bool *same, const answer_rule *rule, str *answer, str *label, err *e)
{
    if (rule->label) TRY(rule->label(label, e));
    if (rule->clean) rule->clean(answer);
    if (rule->clean) rule->clean(label);
    TRY(str_check(answer, e));
    TRY(str_check(label, e));
    *same = rule->equal ? rule->equal(answer, label) : text_equal(str_text(answer), str_text(label));
    TRY(str_check(answer, e));
    return str_check(label, e);
}

/* Scores 1 if the answer in an output equals the label, by the metric's rule. */
static status score_answer(const metric_pair *p, double *score, err *e)
{
    str answer = {0}, label = {0};
    bool found = false, same = false;
    status st = extract(p->rule, &answer, &found, p->prediction, e);
    str_set(&label, p->answer.s, p->answer.n);
    if (st == ST_OK && found) st = compare(&same, p->rule, &answer, &label, e);
    *score = same;
    str_free(&answer);
    str_free(&label);
    return st;
}

/* ---- the table ---- */

/* A metric that extracts an answer from a long output by a rule. */
#define BY_RULE(metric, of)                                                                                            \
    {                                                                                                                  \
        .name = #metric, .score = score_answer, .labels = true, .rule = &answer_##of                                   \
    }

static const metric table[] = {
    {.name = "qa_f1", .score = score_qa_f1},
    {.name = "qa_f1_zh", .score = score_qa_f1_zh},
    {.name = "rouge", .score = score_rouge},
    {.name = "rouge_zh", .score = score_rouge_zh},
    {.name = "classification", .score = score_classification},
    {.name = "retrieval", .score = score_retrieval},
    {.name = "retrieval_zh", .score = score_retrieval_zh},
    {.name = "count", .score = score_count},
    {.name = "code_sim", .score = score_code_sim},
    {.name = "passkey", .score = score_first_number, .labels = true},
    {.name = "number_string", .score = score_first_number, .labels = true},
    {.name = "kv_retrieval", .score = score_kv_retrieval, .labels = true},
    {.name = "longdialogue_qa_eng", .score = score_longdialogue, .labels = true, .whole = true},
    {.name = "longbook_sum_eng", .score = score_rouge_lsum, .labels = true},
    {.name = "longbook_choice_eng", .score = score_choice, .labels = true, .whole = true},
    {.name = "longbook_choice_eng_infllm", .score = score_choice_infllm, .labels = true},
    {.name = "longbook_qa_eng", .score = score_qa_f1, .labels = true},
    {.name = "longbook_qa_chn", .score = score_char_f1_zh, .labels = true},
    {.name = "math_find", .score = score_math_find, .labels = true},
    {.name = "math_calc", .score = score_math_calc, .labels = true, .whole = true},
    {.name = "code_run", .score = score_code_run, .labels = true},
    {.name = "code_debug", .score = score_code_debug, .labels = true, .whole = true},
    {.name = "code_debug_infllm", .score = score_code_debug_infllm, .labels = true, .whole = true},
    {.name = "ruler_all", .score = score_ruler_all, .whole = true},
    {.name = "ruler_part", .score = score_ruler_part},
    {.name = "mrcr", .score = score_mrcr, .whole = true},
    {.name = "mrcr_v2", .score = score_mrcr_v2},
    {.name = "scbench_kv", .score = score_contains, .labels = true},
    {.name = "scbench_qa_eng", .score = score_contains_upper, .labels = true},
    {.name = "scbench_vt", .score = score_fraction_found, .labels = true, .whole = true},
    {.name = "scbench_mf", .score = score_math_find_whole, .labels = true},
    BY_RULE(gsm8k, gsm8k),
    BY_RULE(gsm8k_strict, gsm8k_strict),
    BY_RULE(gsm8k_flexible, gsm8k_flexible),
    BY_RULE(gsm8k_hash, gsm8k_hash),
    BY_RULE(gsm8k_llama, gsm8k_llama),
    BY_RULE(gsm8k_official, gsm8k_official),
    BY_RULE(gsm8k_logquant, gsm8k_logquant),
    BY_RULE(gsm8k_logquant_commas, gsm8k_logquant_commas),
    BY_RULE(math, boxed),
    BY_RULE(math_hendrycks, boxed),
    BY_RULE(math_lmeval, boxed),
    BY_RULE(math_kvpress, boxed),
    BY_RULE(aime, boxed),
    BY_RULE(aime_tests, boxed),
    BY_RULE(aime_lmeval, boxed),
    BY_RULE(aime_kvpress, boxed),
    BY_RULE(gpqa, gpqa),
    BY_RULE(gpqa_cot, gpqa_cot),
    BY_RULE(gpqa_simple_evals, gpqa_simple_evals),
    BY_RULE(gpqa_lmeval, gpqa_lmeval),
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
    status st = extract(k->rule, &t, &found, prediction, e);
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

/* ---- scores ---- */

status metric_score(metrics *m, const metric *k, const metric_case *c, double *score, err *e)
{
    *score = 0;
    m->undecided = false;
    TRY(text_check(c->prediction, e));
    for (size_t i = 0; i < c->n_answers; i++) TRY(text_check(c->answers[i], e));
    for (size_t i = 0; i < c->n_classes; i++) TRY(text_check(c->classes[i], e));
    for (size_t i = 0; i < (k->whole && c->n_answers ? 1 : c->n_answers); i++) {
        double one = 0;
        metric_pair p = {.m = m,
                         .rule = k->rule,
                         .prediction = c->prediction,
                         .answer = c->answers[i],
                         .answers = c->answers,
                         .n_answers = c->n_answers,
                         .classes = c->classes,
                         .n_classes = c->n_classes};
        TRY(k->score(&p, &one, e));
        if (one > *score) *score = one;
    }
    return ST_OK;
}
