/* SPDX-License-Identifier: MIT */
/* `eval ruler`: prompts made as RULER makes them, answered by every strategy, and scored. */
#include "config.h"

#include <string.h>

#include "cli/command.h"
#include "eval/prediction.h"
#include "eval/ruler/ruler_run.h"
#include "kernels/base/mem.h"

/* ---- options ---- */

static status load(void *own, evaluation *ev, err *e)
{
    ruler_run *r = own;
    r->ev = ev;
    TRY(metrics_open(&r->m, ev->data_dir, e));
    return ruler_inputs_open(&r->in, ev->c, e);
}

static status ready(void *own, evaluation *ev, err *e)
{
    ruler_run *r = own;
    if (ev->c->data) return ST_OK;
    for (size_t i = 0; i < r->in.n_length; i++) cli_warn_length(ev->c, ev->g.m, "--length", r->in.length[i]);
    return ruler_inputs_check(&r->in, ev->g.tok, ev->c->seed, e);
}

static const char *word(const char *given, const char *otherwise)
{
    return given ? given : otherwise;
}

/* The sum of a file that was read; NULL: there is none. */
static const char *sum_of(const char *sum)
{
    return sum[0] ? sum : NULL;
}

/* What made prompts follow from. */
static json_t *sources(const ruler_inputs *in)
{
    const ruler_options *o = in->o;
    return json_pack("{s:o, s:s, s:s, s:s, s:s, s:b, s:i, s:s?, s:s?, s:s?}", "lengths",
                     report_sizes(in->length, in->n_length), "variant", word(o->variant, "2025"), "template",
                     word(o->template, "base"), "words", word(o->words, "3.0.1"), "tokens", word(o->tokens, "model"),
                     "remove_newline_tab", o->one_line, "pre_samples", o->pre_samples, "essays", sum_of(in->essay.sum),
                     "squad", sum_of(in->qa[RULER_SQUAD].sum), "hotpotqa", sum_of(in->qa[RULER_HOTPOTQA].sum));
}

static json_t *config(const void *own)
{
    const ruler_run *r = own;
    const ruler_inputs *in = &r->in;
    json_t *tasks = json_object(), *from = r->ev->c->data ? json_pack("{s:O}", "data", in->data.files) : sources(in);
    for (size_t i = 0; i < RULER_TASKS; i++)
        if (in->runs[i]) json_object_set_new(tasks, ruler_tasks[i].name, json_integer((json_int_t)in->samples[i]));
    json_t *o = json_pack("{s:o, s:s, s:s}", "samples", tasks, "answer_prefix", word(in->o->answer_prefix, "on"),
                          "protocol", r->ev->prompter.decode ? "decode" : "prefill");
    bool good = o && from && json_object_update(o, from) == 0;
    json_decref(from);
    if (good) return o;
    json_decref(o);
    return NULL;
}

/* ---- prompts ---- */

static void forget_answers(ruler_run *r)
{
    for (size_t i = 0; i < r->n_answers; i++) json_decref(r->answers[i]);
    mem_free(r->answers);
    r->answers = NULL;
    r->n_answers = 0;
}

/* The prompts of the pass are to be made. */
static status start_making(ruler_run *r, err *e)
{
    const ruler_settings s = ruler_inputs_settings(&r->in, r->ev->c->seed, r->in.length[r->at_length]);
    ruler_maker_close(&r->maker);
    TRY(ruler_maker_open(&r->maker, &ruler_tasks[r->at_task], &s, e));
    r->too_few_words |= r->maker.too_few_words;
    return ST_OK;
}

/* Pass k: the tasks that run, at each length. */
static status pass(void *own, evaluation *ev, size_t k, size_t *n, err *e)
{
    ruler_run *r = own;
    size_t i = 0;
    *n = 0;
    forget_answers(r);
    for (; i < r->in.n_length * RULER_TASKS; i++)
        if (r->in.runs[i % RULER_TASKS] && k-- == 0) break;
    if (i == r->in.n_length * RULER_TASKS) return ST_OK;
    r->at_length = i / RULER_TASKS;
    r->at_task = i % RULER_TASKS;
    *n = r->in.samples[r->at_task];
    snprintf(ev->label, sizeof ev->label, "%s", ruler_tasks[r->at_task].name);
    TRY(MEM_NEW(&r->answers, *n, e));
    r->n_answers = *n;
    return ev->c->data ? ST_OK : start_making(r, e);
}

/* Where the question begins, which protocol decode feeds token by token: the last such place. */
static size_t question_at(const ruler_task *task, const char *s, size_t n)
{
    static const char *const marks[RULER_FAMILIES][2] = {
        [RULER_NIAH] = {"What are all the special magic ", "What is the special magic "},
        [RULER_VT] = {"Question: "},
        [RULER_CWE] = {"Question: "},
        [RULER_FWE] = {"Question: "},
        [RULER_QA] = {"Answer the question based on the given documents."}};
    for (size_t at = n; at-- > 0;)
        for (int i = 0; i < 2; i++) {
            const char *mark = marks[task->family][i];
            if (mark && strncmp(s + at, mark, strlen(mark)) == 0) return at;
        }
    return 0;
}

/* The prompt begins with BOS where the tokenizer puts one, but with one only: some wrappers spell it. */
static status encode_head(token_list *out, const tokenizer *tok, const char *s, size_t n, err *e)
{
    TRY(tokenizer_encode(tok, s, n, TOKENIZE_SPECIAL | (tokenizer_adds_bos(tok) ? TOKENIZE_BOS : 0), out, e));
    if (out->n < 2 || !tokenizer_adds_bos(tok) || out->ids[1] != tokenizer_bos(tok)) return ST_OK;
    memmove(out->ids, out->ids + 1, --out->n * sizeof *out->ids);
    return ST_OK;
}

/* The prompt; with protocol decode its bytes from `cut` on go through the decode path. */
static status encode(const ruler_run *r, prompt_tokens *out, const grown_text *text, size_t cut, err *e)
{
    const tokenizer *tok = r->ev->g.tok;
    if (!r->ev->prompter.decode) cut = text->n;
    TRY(encode_head(&out->head, tok, text->s, cut, e));
    return tokenizer_encode(tok, text->s + cut, text->n - cut, TOKENIZE_SPECIAL, &out->tail, e);
}

static bool has_prefix(const ruler_run *r)
{
    return !r->in.o->answer_prefix || strcmp(r->in.o->answer_prefix, "off") != 0;
}

static status make_prompt(ruler_run *r, prompt_tokens *out, json_t **answers, err *e)
{
    ruler_sample s;
    status st = ruler_make(&r->maker, &s, e);
    size_t cut = st == ST_OK ? question_at(r->maker.task, s.input.s, s.input.n) : 0;
    if (st == ST_OK && has_prefix(r)) st = grown_put(&s.input, s.prefix.s, s.prefix.n, e);
    if (st == ST_OK) st = encode(r, out, &s.input, cut, e);
    if (st == ST_OK) *answers = json_incref(s.answers);
    ruler_sample_free(&s);
    return st;
}

/* Of kvpress's columns a line ends between question and answer prefix. */
static status take_prompt(const ruler_run *r, prompt_tokens *out, const ruler_record *x, json_t **answers, err *e)
{
    grown_text t = {0};
    size_t cut = x->question.n ? x->context.n : question_at(&ruler_tasks[x->at.dataset], x->context.s, x->context.n);
    status st = grown_put(&t, x->context.s, x->context.n, e);
    if (st == ST_OK && x->question.n) st = grown_put(&t, x->question.s, x->question.n, e);
    if (st == ST_OK && x->question.n) st = grown_put(&t, "\n", 1, e);
    if (st == ST_OK && x->prefix.n && has_prefix(r)) st = grown_put(&t, x->prefix.s, x->prefix.n, e);
    if (st == ST_OK) st = encode(r, out, &t, cut, e);
    if (st == ST_OK) *answers = json_incref(x->answers);
    grown_free(&t);
    return st;
}

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    ruler_run *r = own;
    const ruler_task *task = &ruler_tasks[r->at_task];
    out->dataset = task->name;
    out->index = (int64_t)(i * r->in.n_length + r->at_length);
    out->stop = &ev->eos;
    out->n_new = (size_t)r->in.templates.n_new[task->family];
    if (!ev->c->data) return make_prompt(r, &out->tokens, &r->answers[i], e);
    const ruler_record *x = ruler_data_at(&r->in.data, r->at_task, i);
    if (x->n_new) out->n_new = (size_t)x->n_new;
    return take_prompt(r, &out->tokens, x, &r->answers[i], e);
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

/* kvpress drops control characters, which RULER makes newlines. */
static status drop_controls(grown_text *out, utf8_text s, err *e)
{
    TRY(grown_put(out, "", 0, e));
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.s[i] >= 0x20) TRY(grown_put(out, s.s + i, 1, e));
    return ST_OK;
}

static status score_answer(double *score, const ruler_run *r, size_t i, utf8_text answer, err *e)
{
    const metric *k = metric_find(ruler_tasks[r->at_task].metric);
    grown_text kept = {0};
    status st = ST_OK;
    if (r->ev->c->data && ruler_data_at(&r->in.data, r->at_task, i)->question.n) {
        st = drop_controls(&kept, answer, e);
        answer = (utf8_text){kept.s, kept.n};
    }
    if (st == ST_OK) st = labels_score(score, r->m, k, answer, r->answers[i], e);
    grown_free(&kept);
    return st;
}

static status judge(void *own, const evaluation *ev, size_t i, utf8_text answer, json_t **members, err *e)
{
    const ruler_run *r = own;
    double score = 0;
    (void)ev;
    TRY(score_answer(&score, r, i, answer, e));
    *members =
        json_pack("{s:s%, s:O, s:f}", "prediction", answer.s, answer.n, "answers", r->answers[i], "score", score);
    return ST_OK;
}

static void free_run(void *own)
{
    ruler_run *r = own;
    forget_answers(r);
    ruler_maker_close(&r->maker);
    ruler_inputs_close(&r->in);
    metrics_destroy(r->m);
}

/* ---- the command ---- */

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
                                                    .report = ruler_report,
                                                    .free = free_run};

static status cmd_ruler(const cli *c, err *e)
{
    const ruler_options *o = c->own;
    return o->write ? ruler_write(c, e) : evaluation_run(&evaluation_of_ruler, c, e);
}

static const cli_option options[] = {
    {.name = "task", .arg = "NAME,...", AT_OWN(ruler_options, task), .help = "only these of the 13 tasks"},
    {.name = "length",
     .arg = "N,...",
     AT_OWN(ruler_options, length),
     .help = "most tokens of a prompt and its answer, as 4k,8k (default 4096)"},
    {.name = "samples",
     .arg = "N",
     .type = OPTION_WHOLE,
     .min = 1,
     .max = 100000,
     AT_OWN(ruler_options, samples),
     .help =
         "prompts of each task and length (default 20; published tables: 500); of --data the first N (default: all)"},
    {.name = "data",
     .arg = "PATH,...",
     AT(data),
     .help = "prompts that are there already: folders with TASK.jsonl, or files of RULER or of kvpress"},
    {.name = "variant",
     .arg = "2025|2024",
     AT_OWN(ruler_options, variant),
     .help = "whose prompts: RULER's since June 2025 (default), or those of 2024, as in most published tables"},
    {.name = "template",
     .arg = "NAME",
     AT_OWN(ruler_options, template),
     .help = "what RULER puts around a prompt: base (default: nothing), meta-chat, meta-llama3, ..."},
    {.name = "essays",
     .arg = "FILE",
     AT_OWN(ruler_options, essays),
     .help = "haystack of five niah tasks: PaulGrahamEssays.json, or any text"},
    {.name = "squad", .arg = "FILE", AT_OWN(ruler_options, squad), .help = "SQuAD v2 dev, for qa_1"},
    {.name = "hotpotqa", .arg = "FILE", AT_OWN(ruler_options, hotpotqa), .help = "HotpotQA dev (distractor), for qa_2"},
    {.name = "words",
     .arg = "3.0.1|2.2.0",
     AT_OWN(ruler_options, words),
     .help = "version of the word lists (wonderwords); older data sets have 2.2.0"},
    {.name = "tokens",
     .arg = "model|ws",
     AT_OWN(ruler_options, tokens),
     .help = "count the model's tokens (default), or words between white space"},
    {.name = "protocol",
     .arg = "prefill|decode",
     AT(protocol),
     .help = "feed the prompt at once (default), or its question token by token"},
    {.name = "answer-prefix",
     .arg = "on|off",
     AT_OWN(ruler_options, answer_prefix),
     .help = "whether prompts end in the beginning of the answer (default on)"},
    {.name = "remove-newline-tab",
     .type = OPTION_FLAG,
     AT_OWN(ruler_options, one_line),
     .help = "white space in prompts becomes single spaces"},
    {.name = "pre-samples",
     .arg = "N",
     .type = OPTION_WHOLE,
     .max = 1 << 24,
     AT_OWN(ruler_options, pre_samples),
     .help = "qa_1, qa_2: leave out the first N questions"},
    {.name = "write",
     .arg = "DIR",
     AT_OWN(ruler_options, write),
     .help = "only write the prompts, as JSON lines in RULER's format; a folder with a tokenizer is enough"},
    {0}};

const command ruler_command = {.name = "eval ruler",
                               .args = "",
                               .summary = "RULER: 13 tasks at any length, prompts as the official generator makes them",
                               .groups = OPTIONS_MODEL | OPTIONS_RESULTS | OPTIONS_JOBS | OPTIONS_PREFIX,
                               .own = options,
                               .own_size = sizeof(ruler_options),
                               .compares = true,
                               .run = cmd_ruler};
