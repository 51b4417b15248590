/* SPDX-License-Identifier: MIT */
/* `eval ruler`: makes RULER's prompts and scores each strategy's answers. Averages cover all 13 tasks, as in published
 * tables; other means name their number of tasks. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "cli/command.h"
#include "eval/answers.h"
#include "eval/metrics/text.h"
#include "eval/ruler/ruler.h"
#include "eval/stats.h"
#include "kernels/base/mem.h"

enum { OFFICIAL_LENGTHS = 6 };

/* One item per sample, one pass per length and task. */
typedef struct {
    evaluation *ev;
    ruler_inputs in;
    size_t at_length, at_task; /* of the current pass */
    ruler_maker maker;
    json_t *answers;    /* lists of answers of the pass's samples */
    bool too_few_words; /* cwe: a list exceeded the available words */
} ruler_run;

/* ---- options ---- */

static status load(void *own, evaluation *ev, err *e)
{
    ruler_run *r = own;
    r->ev = ev;
    return ruler_inputs_open(&r->in, ev->options, e);
}

static status ready(void *own, evaluation *ev, err *e)
{
    ruler_run *r = own;
    if (ev->o->data) return ST_OK;
    for (size_t i = 0; i < r->in.n_length; i++) cli_warn_length(ev->g.m, "--length", r->in.length[i]);
    return ruler_inputs_check(&r->in, ev->g.tok, e);
}

/* Returns the checksum of a file, or NULL if none was read. */
static const char *sum_of(const char *sum)
{
    return sum[0] ? sum : NULL;
}

/* Returns the inputs that determine the prompts. */
static json_t *sources(const ruler_inputs *in)
{
    const ruler_options *o = in->o;
    return json_pack("{s:o, s:s, s:s, s:s, s:s, s:b, s:i, s:s?, s:s?, s:s?}", "lengths",
                     report_sizes(in->length, in->n_length), "variant", ruler_word(in, RULER_VARIANT), "template",
                     o->template ? o->template : "base", "words", ruler_word(in, RULER_WORDS), "tokens",
                     ruler_word(in, RULER_TOKENS), "remove_newline_tab", o->one_line, "pre_samples", o->pre_samples,
                     "essays", sum_of(in->essay.sum), "squad", sum_of(in->qa[RULER_SQUAD].sum), "hotpotqa",
                     sum_of(in->qa[RULER_HOTPOTQA].sum));
}

static json_t *config(const void *own)
{
    const ruler_run *r = own;
    const ruler_inputs *in = &r->in;
    json_t *tasks = json_object(), *from = r->ev->o->data ? json_pack("{s:O}", "data", in->data.files) : sources(in);
    for (size_t i = 0; i < RULER_TASKS; i++)
        if (in->runs[i]) json_object_set_new(tasks, ruler_tasks[i].name, json_integer((json_int_t)in->samples[i]));
    json_t *o = json_pack("{s:o, s:s, s:s}", "samples", tasks, "answer_prefix", ruler_word(in, RULER_PREFIX),
                          "protocol", protocol_of(r->ev));
    return results_merge(o, from);
}

/* ---- prompts ---- */

static status start_making(ruler_run *r, err *e)
{
    ruler_maker_close(&r->maker);
    TRY(ruler_maker_open(&r->maker, &r->in, &ruler_tasks[r->at_task], r->in.length[r->at_length], e));
    r->too_few_words |= r->maker.too_few_words;
    return ST_OK;
}

/* Starts pass k: a length and a task that runs, in this order. */
static status pass(void *own, evaluation *ev, size_t k, size_t *n, err *e)
{
    ruler_run *r = own;
    size_t i = 0;
    *n = 0;
    for (; i < r->in.n_length * RULER_TASKS; i++)
        if (r->in.runs[i % RULER_TASKS] && k-- == 0) break;
    if (i == r->in.n_length * RULER_TASKS) return ST_OK;
    r->at_length = i / RULER_TASKS;
    r->at_task = i % RULER_TASKS;
    *n = r->in.samples[r->at_task];
    snprintf(ev->label, sizeof ev->label, "%s", ruler_tasks[r->at_task].name);
    json_decref(r->answers);
    if (!(r->answers = json_array())) return err_set(e, ST_NOMEM, "out of memory");
    return ev->o->data ? ST_OK : start_making(r, e);
}

/* Returns the start of the question, which protocol decode feeds token by token: the last occurrence of its
 * beginning. */
static size_t question_at(const ruler_task *task, utf8_text s)
{
    static const char *const marks[RULER_FAMILIES][2] = {
        [RULER_NIAH] = {"What are all the special magic ", "What is the special magic "},
        [RULER_VT] = {"Question: "},
        [RULER_CWE] = {"Question: "},
        [RULER_FWE] = {"Question: "},
        [RULER_QA] = {"Answer the question based on the given documents."}};
    size_t at = 0;
    for (int i = 0; i < 2 && marks[task->family][i]; i++) {
        size_t hit = text_find_last(s, utf8_of(marks[task->family][i]));
        if (hit <= s.n && hit > at) at = hit;
    }
    return at;
}

/* Encodes the start of a prompt with one BOS, if the tokenizer adds it; some wrappers spell it. */
static status encode_head(token_list *out, const tokenizer *tok, const char *s, size_t n, err *e)
{
    TRY(tokenizer_encode(tok, s, n, TOKENIZE_SPECIAL | (tokenizer_adds_bos(tok) ? TOKENIZE_BOS : 0), out, e));
    if (out->n < 2 || !tokenizer_adds_bos(tok) || out->ids[1] != tokenizer_bos(tok)) return ST_OK;
    memmove(out->ids, out->ids + 1, --out->n * sizeof *out->ids);
    return ST_OK;
}

/* Encodes a prompt; with protocol decode, the question goes into the tail. kvpress's columns have a newline between
 * question and answer prefix. */
static status encode(ruler_run *r, prompt_tokens *out, const ruler_record *x, err *e)
{
    const tokenizer *tok = r->ev->g.tok;
    str t = {0};
    size_t cut = x->question.n ? x->context.n : question_at(&ruler_tasks[r->at_task], x->context);
    str_add(&t, x->context.s, x->context.n);
    str_add(&t, x->question.s, x->question.n);
    if (x->question.n) str_add(&t, "\n", 1);
    if (!r->in.choice[RULER_PREFIX]) str_add(&t, x->prefix.s, x->prefix.n);
    if (!r->ev->prompter.decode) cut = t.n;
    status st =
        json_array_append(r->answers, x->answers) == 0 ? str_check(&t, e) : err_set(e, ST_NOMEM, "out of memory");
    if (st == ST_OK) st = encode_head(&out->head, tok, t.s, cut, e);
    if (st == ST_OK) st = tokenizer_encode(tok, t.s + cut, t.n - cut, TOKENIZE_SPECIAL, &out->tail, e);
    str_free(&t);
    return st;
}

static status make_prompt(ruler_run *r, prompt_tokens *out, err *e)
{
    ruler_sample s;
    status st = ruler_make(&r->maker, &s, e);
    const ruler_record x = {
        .context = {s.text.s, s.cut}, .prefix = {s.text.s + s.cut, s.text.n - s.cut}, .answers = s.answers};
    if (st == ST_OK) st = encode(r, out, &x, e);
    ruler_sample_free(&s);
    return st;
}

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    ruler_run *r = own;
    const ruler_task *task = &ruler_tasks[r->at_task];
    out->dataset = task->name;
    out->index = (int64_t)(i * r->in.n_length + r->at_length);
    out->n_new = (size_t)r->in.templates.n_new[task->family];
    if (!ev->o->data) return make_prompt(r, &out->tokens, e);
    const ruler_record *x = ruler_data_at(&r->in.data, r->at_task, i);
    if (x->n_new) out->n_new = (size_t)x->n_new;
    return encode(r, &out->tokens, x, e);
}

/* ---- answers ---- */

static const char *const keys[] = {"task", "length", "index", "attn", "budget", NULL};

static json_t *identity(const void *own, const evaluation_item *x)
{
    const ruler_run *r = own;
    int64_t n = (int64_t)r->in.n_length, length = r->in.length[x->index % n];
    return json_pack("{s:s, s:o, s:I}", "task", x->dataset, "length",
                     length ? json_integer((json_int_t)length) : json_null(), "index", (json_int_t)(x->index / n));
}

/* Scores an answer. kvpress drops control characters; RULER turns them into newlines. */
static status score_answer(double *score, const ruler_run *r, size_t i, utf8_text answer, err *e)
{
    const metric *k = metric_find(ruler_tasks[r->at_task].metric);
    bool drops = r->ev->o->data && ruler_data_at(&r->in.data, r->at_task, i)->question.n;
    str kept = {0};
    for (size_t j = 0; j < answer.n; j++)
        if (!drops || (unsigned char)answer.s[j] >= 0x20) str_add(&kept, answer.s + j, 1);
    status st = str_check(&kept, e);
    if (st == ST_OK) st = labels_score(score, r->ev->m, k, str_text(&kept), json_array_get(r->answers, i), e);
    str_free(&kept);
    return st;
}

static status judge(void *own, const evaluation *ev, size_t i, utf8_text answer, json_t **members, err *e)
{
    const ruler_run *r = own;
    double score = 0;
    (void)ev;
    TRY(score_answer(&score, r, i, answer, e));
    *members = json_pack("{s:s%, s:O, s:f}", "prediction", answer.s, answer.n, "answers", json_array_get(r->answers, i),
                         "score", score);
    return ST_OK;
}

/* ---- numbers of the report ---- */

static const ruler_run *run_of(const answers *a)
{
    return a->t.ev->own;
}

static size_t rows_of(const answers *a)
{
    return a->t.ev->rows.n;
}

/* Groups answers by task and length. Items are in order of the tasks that run. */
static void answer_of(const void *own, size_t i, answer_id *out)
{
    const ruler_inputs *in = &((const ruler_run *)own)->in;
    size_t task = 0;
    for (; !in->runs[task] || i >= in->samples[task] * in->n_length; task++)
        if (in->runs[task]) i -= in->samples[task] * in->n_length;
    *out = (answer_id){
        .dataset = ruler_tasks[task].name, .index = (int64_t)i, .key = {(int64_t)task, (int64_t)(i % in->n_length)}};
}

static answer_group group_of(size_t task, size_t length)
{
    return ANSWERS((int64_t)task, (int64_t)length, ANSWER_ANY);
}

/* Returns the mean of the tasks' scores at a length; *n: number of tasks. */
static double mean_at(const answers *a, size_t length, size_t row, size_t *n)
{
    double sum = 0;
    *n = 0;
    for (size_t t = 0; t < RULER_TASKS; t++) {
        double x = answers_cell(a, row, group_of(t, length)).mean;
        if (isnan(x)) continue;
        sum += x;
        ++*n;
    }
    return *n ? sum / (double)*n : (double)NAN;
}

static size_t tasks_run(const answers *a)
{
    size_t n = 0;
    for (size_t t = 0; t < RULER_TASKS; t++) n += run_of(a)->in.runs[t];
    return n;
}

/* True if the lengths are RULER's own, 4k to 128k, in order. */
static bool has_official_lengths(const ruler_inputs *in)
{
    bool good = in->n_length == OFFICIAL_LENGTHS;
    for (size_t i = 0; good && i < OFFICIAL_LENGTHS; i++) good = in->length[i] == (int64_t)4096 << i;
    return good;
}

/* Returns the mean over the lengths of their averages of 13 tasks. weights: 0 equal, 1 increasing, -1 decreasing. */
static double mean_over_lengths(const answers *a, size_t row, int weights)
{
    double sum = 0, all = 0;
    size_t n, lengths = run_of(a)->in.n_length;
    for (size_t i = 0; i < lengths; i++) {
        double w = weights == 0 ? 1 : (double)(weights > 0 ? i + 1 : lengths - i);
        sum += w * mean_at(a, i, row, &n);
        all += w;
        if (n < RULER_TASKS) return (double)NAN;
    }
    return sum / all;
}

/* Returns the longest length whose average exceeds that of Llama-2-7B at 4k. */
static double effective_length(const answers *a, size_t row)
{
    const double threshold = 85.6;
    double longest = (double)NAN;
    for (size_t i = 0; i < run_of(a)->in.n_length; i++) {
        size_t n;
        double x = mean_at(a, i, row, &n), length = (double)run_of(a)->in.length[i];
        if (n == RULER_TASKS && x > threshold && !(length < longest)) longest = length;
    }
    return longest;
}

/* ---- text ---- */

static status print_length(const answers *a, size_t length, err *e)
{
    const ruler_inputs *in = &run_of(a)->in;
    char name[64];
    size_t n;
    if (!a->t.ev->o->data) table_line(a->t.text, "%lld tokens", (long long)in->length[length]);
    for (size_t t = 0; t < RULER_TASKS; t++) {
        if (in->named && !in->runs[t]) continue;
        for (size_t i = 0; i < rows_of(a); i++) a->t.x[i] = answers_cell(a, i, group_of(t, length)).mean;
        TRY(evaluation_table_line(&a->t, 2, ruler_tasks[t].name, in->runs[t] ? in->samples[t] : 0, a->decimals, e));
    }
    for (size_t i = 0; i < rows_of(a); i++) a->t.x[i] = mean_at(a, length, i, &n);
    size_t run = tasks_run(a);
    if (run == RULER_TASKS) snprintf(name, sizeof name, "average");
    else snprintf(name, sizeof name, "mean of %zu of %d tasks", run, RULER_TASKS);
    return run > 1 ? evaluation_table_line(&a->t, 2, name, 0, a->decimals, e) : ST_OK;
}

static status print_averages(const answers *a, err *e)
{
    static const char *const names[] = {"average", "wAvg (inc)", "wAvg (dec)"};
    static const int weights[] = {0, 1, -1};
    if (tasks_run(a) < RULER_TASKS || run_of(a)->in.n_length < 2) return ST_OK;
    table_line(a->t.text, "%s", "");
    table_line(a->t.text, "all lengths");
    for (int k = 0; k < (has_official_lengths(&run_of(a)->in) ? 3 : 1); k++) {
        for (size_t i = 0; i < rows_of(a); i++) a->t.x[i] = mean_over_lengths(a, i, weights[k]);
        TRY(evaluation_table_line(&a->t, 2, names[k], 0, a->decimals, e));
    }
    for (size_t i = 0; i < rows_of(a); i++) a->t.x[i] = effective_length(a, i);
    return evaluation_table_line(&a->t, 2, "effective length", 0, 0, e);
}

/* Prints the tasks that did not run, with the missing file or another reason. */
static status print_missing(const answers *a, err *e)
{
    for (ruler_file f = 0; f < RULER_FILES; f++) {
        size_t n = 0;
        for (size_t t = 0; t < RULER_TASKS; t++) {
            if (!run_of(a)->in.lacks[t] || ruler_tasks[t].file != f) continue;
            if (n++ == 0) paragraph("not run without %s FILE:", ruler_file_options[f]);
            paragraph(" %s", ruler_tasks[t].name);
        }
        if (n) TRY(paragraph_end(2, e));
    }
    for (size_t t = 0; t < RULER_TASKS; t++)
        if (run_of(a)->in.why[t].code != ST_OK) {
            paragraph("not run: %s: %s", ruler_tasks[t].name, run_of(a)->in.why[t].msg);
            TRY(paragraph_end(2, e));
        }
    if (!run_of(a)->too_few_words) return ST_OK;
    paragraph("cwe: RULER uses other words for its longest lists, which are not included; these prompts differ from "
              "RULER's");
    return paragraph_end(2, e);
}

static void add_title(const answers *a)
{
    const ruler_run *r = run_of(a);
    const ruler_options *o = r->in.o;
    const evaluation *ev = r->ev;
    paragraph("RULER%s: template %s, protocol %s, answer prefix %s, seed %llu", r->in.old ? " of 2024" : "",
              ev->o->data   ? "as in the data"
              : o->template ? o->template
                            : "base",
              protocol_of(ev), ruler_word(&r->in, RULER_PREFIX), (unsigned long long)ev->o->run.seed.value);
}

static status print_scores(const answers *a, err *e)
{
    const size_t n = run_of(a)->in.n_length;
    for (size_t i = 0; i < n; i++) {
        if (i > 0) table_line(a->t.text, "%s", "");
        TRY(print_length(a, i, e));
    }
    return print_averages(a, e);
}

/* ---- JSON ---- */

/* Returns null for prompts of --data. */
static json_t *length_json(const answers *a, size_t length)
{
    int64_t n = run_of(a)->in.length[length];
    return n ? json_integer((json_int_t)n) : json_null();
}

static json_t *mean_json(const answers *a, size_t length, size_t row)
{
    size_t n;
    json_t *o = evaluation_row_json(run_of(a)->ev, row);
    double mean = mean_at(a, length, row, &n);
    json_object_set_new(o, "length", length_json(a, length));
    json_object_set_new(o, "tasks", json_integer((json_int_t)n));
    json_object_set_new(o, "mean", results_real(mean));
    return o;
}

static status write_json(const answers *a, err *e)
{
    const evaluation *ev = run_of(a)->ev;
    const ruler_inputs *in = &run_of(a)->in;
    json_t *list = json_array(), *means = json_array(), *missing = json_array(), *options = ev->kind->config(run_of(a));
    for (size_t i = 0; i < in->n_length; i++)
        for (size_t row = 0; row < rows_of(a); row++) {
            json_array_append_new(means, mean_json(a, i, row));
            for (size_t t = 0; t < RULER_TASKS; t++)
                if (in->runs[t])
                    answers_json(&list, a, row, group_of(t, i), json_object(),
                                 json_pack("{s:s, s:o}", "task", ruler_tasks[t].name, "length", length_json(a, i)));
        }
    for (size_t t = 0; t < RULER_TASKS; t++)
        if (!in->named && !in->runs[t]) json_array_append_new(missing, json_string(ruler_tasks[t].name));
    json_t *extra = json_pack("{s:o, s:o}", "means", means, "not_run", missing);
    return report_write(&ev->o->run.out, &ev->g, options, list, extra, e);
}

static double percent(double sum, size_t n)
{
    return round_decimals(sum / (double)n * 100, 2);
}

static size_t count(const void *own)
{
    const ruler_inputs *in = &((const ruler_run *)own)->in;
    size_t n = 0;
    for (size_t t = 0; t < RULER_TASKS; t++)
        if (in->runs[t]) n += in->samples[t] * in->n_length;
    return n;
}

static const answers_layout layout = {.answer = answer_of,
                                      .title = add_title,
                                      .lines = print_scores,
                                      .notes = print_missing,
                                      .json = write_json,
                                      .mean = percent,
                                      .count = count};

/* ---- the command ---- */

static void free_run(void *own)
{
    ruler_run *r = own;
    json_decref(r->answers);
    ruler_maker_close(&r->maker);
    ruler_inputs_close(&r->in);
}

static const evaluation_kind evaluation_of_ruler = {.name = "ruler",
                                                    .size = sizeof(ruler_run),
                                                    .keys = keys,
                                                    .identity = identity,
                                                    .load = load,
                                                    .ready = ready,
                                                    .pass = pass,
                                                    .item = make_item,
                                                    .config = config,
                                                    .judge = judge,
                                                    .report = answers_report_layout,
                                                    .layout = &layout,
                                                    .free = free_run};

static status cmd_ruler(void *options, err *e)
{
    const ruler_options *o = options;
    return o->write ? ruler_write(o, e) : evaluation_run(&evaluation_of_ruler, o, e);
}

#define OWN(field) AT(ruler_options, field)

static const cli_option options[] = {
    OPTION("task", "NAME,...", TEXT, OWN(task), "run only these of the 13 tasks"),
    OPTION("length", "N,...", TEXT, OWN(length),
           "maximum tokens of a prompt and its answer, e.g. 4k,8k (default 4096)"),
    OPTION("samples", "N", WHOLE(1, 100000, 0), OWN(samples),
           "prompts per task and length (default 20; published: 500); with --data, the first N (default: all)"),
    OPTION("data", "PATH,...", TEXT, AT(ruler_options, common.data),
           "existing prompts: folders with TASK.jsonl, or files of RULER or kvpress"),
    OPTION("variant", "2025|2024", TEXT, OWN(choice[RULER_VARIANT]),
           "prompts of RULER since June 2025 (default) or of 2024, as in most published tables"),
    OPTION("template", "NAME", TEXT, OWN(template),
           "RULER's text around a prompt: base (default: none), meta-chat, meta-llama3, ..."),
    OPTION("essays", "FILE", TEXT, OWN(file[RULER_ESSAYS]),
           "haystack of five niah tasks: PaulGrahamEssays.json, or any text"),
    OPTION("squad", "FILE", TEXT, OWN(file[RULER_SQUAD]), "SQuAD v2 dev, for qa_1"),
    OPTION("hotpotqa", "FILE", TEXT, OWN(file[RULER_HOTPOTQA]), "HotpotQA dev (distractor), for qa_2"),
    OPTION("words", "3.0.1|2.2.0", TEXT, OWN(choice[RULER_WORDS]),
           "version of the word lists (wonderwords); older data sets use 2.2.0"),
    OPTION("tokens", "model|ws", TEXT, OWN(choice[RULER_TOKENS]),
           "count the model's tokens (default), or words between white space"),
    OPTION("protocol", "prefill|decode", TEXT, AT(ruler_options, common.protocol),
           "feed the prompt at once (default), or its question token by token"),
    OPTION("answer-prefix", "on|off", TEXT, OWN(choice[RULER_PREFIX]),
           "end prompts with the beginning of the answer (default on)"),
    OPTION("remove-newline-tab", NULL, FLAG, OWN(one_line), "replace white space in prompts by single spaces"),
    OPTION("pre-samples", "N", WHOLE(0, 1 << 24, 0), OWN(pre_samples), "qa_1, qa_2: skip the first N questions"),
    OPTION("write", "DIR", TEXT, OWN(write),
           "only write the prompts, as JSON lines in RULER's format; needs no weights, only a tokenizer"),
    {0}};

const command ruler_command = {.name = "eval ruler",
                               .args = "",
                               .summary = "RULER: 13 tasks at any length, prompts as the official generator makes them",
                               .groups = OPTIONS_MODEL | OPTIONS_RESULTS | OPTIONS_JOBS | OPTIONS_PREFIX,
                               .own = options,
                               .size = sizeof(ruler_options),
                               .place = EVALUATION_PLACES,
                               .run = cmd_ruler};
