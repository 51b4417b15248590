/* SPDX-License-Identifier: MIT */
/* `eval gsm8k`, `math`, `aime`, `gpqa`, `mmlu`: problems in, one or several generations of each, their answers judged.
 */
#include "config.h"

#include "cli/command.h"
#include "eval/reason/reason_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"

/* FEW: new tokens for our own problems, which measure nothing. */
enum { LOOP_TOKENS = 200, LOOP_TIMES = 3, SHOTS = 5, FEW = 512 };

/* ---- options ---- */

static double given_or(double given, double of_protocol)
{
    return isnan(given) ? of_protocol : given;
}

static status parse_sampling(reason_run *r, err *e)
{
    const reason_options *o = r->o;
    const reason_protocol *p = &r->protocol;
    sampler *unused;
    if (r->task == REASON_MMLU) { /* one token, no choice to draw */
        r->n_samples = 1;
        return MEM_NEW(&r->only, r->data.n, e);
    }
    r->sampling = (sampler_options){.temp = given_or(o->temp, p->temp),
                                    .top_k = o->top_k < 0 ? p->top_k : o->top_k,
                                    .top_p = given_or(o->top_p, p->top_p),
                                    .min_p = given_or(o->min_p, 0),
                                    .repeat_penalty = 1};
    TRY(sampler_create(&unused, &r->sampling, 1, e)); /* its ranges */
    sampler_free(unused);
    bool greedy = r->sampling.temp == 0;
    r->n_samples = (size_t)(o->samples ? o->samples : greedy ? 1 : p->samples);
    if (greedy && r->n_samples > 1)
        return err_set(e, ST_USAGE, "--samples %zu: with temperature 0 all of them are the same; --temp T",
                       r->n_samples);
    if (!greedy) r->ev->sampling = &r->sampling;
    return ST_OK;
}

static status fix_commas(reason_run *r, err *e)
{
    const metric *logquant = metric_find("gsm8k_logquant");
    if (r->protocol.metric[0] != logquant) return err_set(e, ST_USAGE, "--fix-commas: only --rules logquant needs it");
    r->protocol.metric[0] = metric_find("gsm8k_logquant_commas");
    return ST_OK;
}

/* The protocol's texts, and those of --stop. */
static void list_stops(reason_run *r)
{
    const cli *c = r->ev->c;
    size_t n = 0;
    while (r->protocol.stop[n]) r->stop[n] = r->protocol.stop[n], n++;
    for (int i = 0; i < c->n_stop; i++)
        if (c->stop[i][0]) r->stop[n++] = c->stop[i];
}

static reason_task task_of(const evaluation *ev)
{
    reason_task t = REASON_GSM8K;
    while (strcmp(reason_task_name(t), ev->kind->name) != 0) t++;
    return t;
}

static status find_orders(reason_run *r, err *e)
{
    size_t n = r->data.n;
    if (r->task != REASON_GPQA) return ST_OK;
    TRY(MEM_NEW(&r->order, r->n_samples * n, e));
    for (size_t i = 0; i < r->n_samples * n; i++) {
        const reason_problem *x = &r->data.s[i % n];
        size_t at = i / n * n + (size_t)x->at.index;
        err inner = {0};
        status st = reason_order_of(r->order[i], r->protocol.order, x, at, &inner);
        if (st != ST_OK) return err_set(e, st, "record %lld: %.180s", (long long)x->at.index + 1, inner.msg);
    }
    return ST_OK;
}

/* Shots of rules that draw them for each problem. */
static status draw_shots(reason_run *r, err *e)
{
    const char *train = r->o->train;
    if (!r->protocol.drawn && !train) return ST_OK;
    if (!r->protocol.drawn) return err_set(e, ST_USAGE, "--train: --rules %s draws no shots", r->protocol.name);
    if (!train)
        return err_set(e, ST_USAGE, "--rules %s draws its shots from the training data: --train FILE",
                       r->protocol.name);
    TRY(reason_data_read_shots(&r->data, "--train", train, e));
    TRY(MEM_NEW(&r->draw, r->data.n, e));
    return reason_draw(r->draw, &r->protocol, &r->data, e);
}

static status load(void *own, evaluation *ev, err *e)
{
    reason_run *r = own;
    const cli *c = ev->c;
    r->o = c->own;
    r->ev = ev;
    r->task = task_of(ev);
    TRY(reason_protocol_open(&r->protocol, r->task, r->o->rules, ev->data_dir, e));
    if (r->o->fix_commas) TRY(fix_commas(r, e));
    list_stops(r);
    if (!c->wrap && (!c->template_name || r->protocol.wrap == WRAP_DOUBLE_BOS)) ev->prompter.wrap = r->protocol.wrap;
    TRY(reason_data_read(&r->data, r->task, &ev->source, e));
    TRY(draw_shots(r, e));
    TRY(parse_sampling(r, e));
    TRY(find_orders(r, e));
    TRY(MEM_NEW(&r->lost, r->data.n, e));
    TRY(metrics_open(&r->m, ev->data_dir, e));
    r->n_new = (size_t)(r->o->n_new ? r->o->n_new : r->protocol.n_new);
    if (!c->data && !r->o->n_new && r->n_new > FEW) r->n_new = FEW;
    r->least_new = r->n_new;
    ev->files = r->data.files;
    ev->n_samples = r->data.n * r->n_samples;
    return ST_OK;
}

/* Half of the window, or what the new tokens leave of it. */
static status max_length(size_t *out, const evaluation *ev, err *e)
{
    const reason_run *r = ev->own;
    int64_t half = ev->window / 2, n_new = (int64_t)r->n_new < half ? (int64_t)r->n_new : half;
    (void)e;
    *out = (size_t)(ev->window - n_new);
    return ST_OK;
}

/* Qwen3's template switches thinking off here; without that it is plain ChatML. */
static status ready(void *own, evaluation *ev, err *e)
{
    reason_run *r = own;
    const char *folder = tokenizer_chat_template(ev->g.tok);
    (void)e;
    if (r->protocol.thinks && !ev->prompter.chat_template && folder && strcmp(folder, "qwen3") == 0)
        ev->prompter.chat_template = "chatml";
    if (!ev->c->quiet && r->task != REASON_MMLU)
        fprintf(stderr, "%s: at most %zu new tokens: problems %zu, samples %zu, rows %zu, tokens %zu\n", ev->kind->name,
                ev->n_samples * ev->rows.n * r->n_new, r->data.n, r->n_samples, ev->rows.n, r->n_new);
    return ST_OK;
}

/* ---- prompts ---- */

/* Adds a message, whose text `store` keeps. */
typedef struct {
    chat_message *m;
    size_t n;
} talk;

static void say(talk *t, const char *role, const char *content)
{
    t->m[t->n++] = (chat_message){role, content};
}

/* The turns in front of the user's text, as messages or, without a template, as plain text. */
static status add_turns(const reason_run *r, talk *t, prompt_text *asked, err *e)
{
    const json_t *turns = r->protocol.turns;
    for (size_t i = 0; i < json_array_size(turns); i++) {
        TRY(reason_fill_turn(&asked[i], &r->protocol, i, e));
        say(t, "user", asked[i].s);
        say(t, "assistant", json_string_value(json_array_get(json_array_get(turns, i), 1)));
    }
    return ST_OK;
}

static status to_chat(const reason_run *r, prompt_text *text, const talk *t, err *e)
{
    prompt_text chat = {0};
    TRY(chat_render(r->ev->g.tok, r->ev->prompter.chat_template, t->m, t->n, &chat.s, &chat.n, e));
    mem_free(text->s);
    *text = chat;
    return ST_OK;
}

/* Questions and answers one behind the other, as lm-eval joins them. */
static status to_text(prompt_text *text, const talk *t, err *e)
{
    prompt_text out = {0};
    for (size_t i = 0; i < t->n; i++) {
        const char *s = t->m[i].content, *behind = i + 1 == t->n ? "" : i % 2 ? "\n\n" : " ";
        size_t n = strlen(s), m = strlen(behind);
        status st = mem_resize((void **)&out.s, out.n + n + m + 1, 1, "prompt", e);
        if (st != ST_OK) {
            mem_free(out.s);
            return st;
        }
        memcpy(out.s + out.n, s, n);
        memcpy(out.s + out.n + n, behind, m + 1);
        out.n += n + m;
    }
    mem_free(text->s);
    *text = out;
    return ST_OK;
}

/* The user's text with everything around it. */
static status wrap(const reason_run *r, prompt_text *text, err *e)
{
    size_t n_turns = json_array_size(r->protocol.turns);
    bool raw = r->ev->prompter.wrap == WRAP_RAW;
    talk t = {0};
    prompt_text *asked = NULL;
    status st;
    if (raw && n_turns == 0) return ST_OK;
    TRY_GOTO(MEM_NEW(&t.m, 2 * n_turns + 2, e));
    TRY_GOTO(MEM_NEW(&asked, n_turns, e));
    if (!raw && r->protocol.system) say(&t, "system", r->protocol.system);
    TRY_GOTO(add_turns(r, &t, asked, e));
    say(&t, "user", text->s);
    st = raw ? to_text(text, &t, e) : to_chat(r, text, &t, e);
done:
    for (size_t i = 0; asked && i < n_turns; i++) mem_free(asked[i].s);
    mem_free(asked);
    mem_free(t.m);
    return st;
}

/* Characters of a prompt's text that its decoded tokens lack: LogQuant's code takes off as many of the answer. */
static status count_lost(size_t *out, const reason_run *r, const prompt_text *text, const token_list *ids, err *e)
{
    char *decoded;
    size_t n;
    TRY(tokenizer_decode(r->ev->g.tok, ids->ids, ids->n, false, &decoded, &n, e));
    size_t all = prompt_characters(text->s, text->n), left = prompt_characters(decoded, n);
    *out = all > left ? all - left : 0;
    mem_free(decoded);
    return ST_OK;
}

/* Without -n an answer gets what the window leaves. */
static void set_new(reason_run *r, evaluation_item *out)
{
    int64_t left = r->ev->window - (int64_t)(out->tokens.head.n + out->tokens.tail.n);
    out->n_new = r->n_new;
    if (!r->o->n_new && left > 0 && left < (int64_t)r->n_new) out->n_new = (size_t)left;
    if (out->n_new < r->least_new) r->least_new = out->n_new;
}

static status make_prompt(reason_run *r, size_t i, evaluation_item *out, err *e)
{
    size_t problem = i % r->data.n;
    const prompter *p = &r->ev->prompter;
    prompt_text text;
    TRY(reason_fill(&text, &r->protocol, &r->data.s[problem], r->order ? r->order[i] : NULL, e));
    status st = r->draw ? reason_put_drawn(&text, &r->protocol, &r->data, r->draw[problem], e) : ST_OK;
    if (st == ST_OK) st = prompter_wrap(&out->tokens, p, false, &text, e);
    if (st == ST_OK) st = wrap(r, &text, e);
    if (st == ST_OK) st = prompter_encode(&out->tokens, p, true, &text, text.n, e);
    if (st == ST_OK && r->protocol.loses) st = count_lost(&r->lost[problem], r, &text, &out->tokens.head, e);
    mem_free(text.s);
    return st;
}

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    reason_run *r = own;
    out->dataset = ev->kind->name;
    out->index = (int64_t)i;
    out->stop = &ev->eos;
    out->stop_text = r->stop;
    out->random = evaluation_random(ev->c->seed, r->data.s[i % r->data.n].at.index, i / r->data.n);
    TRY(r->task == REASON_MMLU ? reason_mmlu_item(r, i, out, e) : make_prompt(r, i, out, e));
    set_new(r, out);
    return ST_OK;
}

/* ---- answers ---- */

static const char *const keys[] = {"index", "sample", "attn", "budget", NULL};

static json_t *identity(const void *own, const evaluation_item *x)
{
    const reason_run *r = own;
    size_t i = (size_t)x->index, n = r->data.n;
    return json_pack("{s:I, s:I}", "index", (json_int_t)r->data.s[i % n].at.index, "sample", (json_int_t)(i / n));
}

static json_t *stops_json(const reason_run *r)
{
    json_t *list = json_array();
    for (const char *const *s = r->stop; *s; s++) json_array_append_new(list, json_string(*s));
    return list;
}

static json_t *config(const void *own)
{
    const reason_run *r = own;
    const sampler_options *s = &r->sampling;
    return json_pack("{s:s, s:I, s:I, s:I, s:s, s:f, s:i, s:f, s:f, s:i, s:b, s:o}", "rules", r->protocol.name,
                     "problems", (json_int_t)r->data.n, "samples", (json_int_t)r->n_samples, "max_new_tokens",
                     (json_int_t)r->n_new, "protocol", r->ev->prompter.decode ? "decode" : "prefill", "temperature",
                     s->temp, "top_k", s->top_k, "top_p", s->top_p, "min_p", s->min_p, "shots", r->o->shots,
                     "fix_commas", r->o->fix_commas, "stop", stops_json(r));
}

char reason_right_letter(const reason_run *r, size_t i)
{
    const reason_problem *x = &r->data.s[i % r->data.n];
    return r->order ? reason_letter(x, r->order[i]) : x->answer.s[0];
}

/* The answer that one metric finds, and its score. */
static status judge_by(reason_run *r, const metric *k, utf8_text said, utf8_text label, json_t *answers, json_t *scores,
                       err *e)
{
    metric_case c = {said, &label, 1, NULL, 0};
    char *answer;
    size_t n;
    double score;
    TRY(metric_answer(&answer, &n, k, said, e));
    json_t *text = answer ? json_stringn(answer, n) : json_null();
    mem_free(answer);
    status st = metric_score(r->m, k, &c, &score, e);
    bool good = json_object_set_new(answers, metric_name(k), text) == 0 &&
                json_object_set_new(scores, metric_name(k), json_integer((json_int_t)score)) == 0;
    if (st == ST_OK && !good) st = err_set(e, ST_NOMEM, "out of memory for a result");
    return st;
}

static json_t *order_json(const reason_run *r, size_t i)
{
    const uint8_t *o = r->order ? r->order[i] : NULL;
    return o ? json_pack("[i, i, i, i]", o[0], o[1], o[2], o[3]) : NULL;
}

static utf8_text without_lost(utf8_text s, size_t lost)
{
    size_t at = prompt_character_at(s.s, s.n, lost);
    return (utf8_text){s.s + at, s.n - at};
}

static status judge(void *own, const evaluation *ev, size_t i, utf8_text output, json_t **members, err *e)
{
    reason_run *r = own;
    size_t problem = i % r->data.n;
    const reason_problem *x = &r->data.s[problem];
    char letter[2] = "";
    utf8_text label = x->answer, said = without_lost(output, r->lost[problem]);
    (void)ev;
    if (r->order) {
        letter[0] = reason_right_letter(r, i);
        label = (utf8_text){letter, 1};
    }
    json_t *answers = json_object(), *scores = json_object();
    status st = ST_OK;
    for (size_t k = 0; r->protocol.metric[k] && st == ST_OK; k++)
        st = judge_by(r, r->protocol.metric[k], said, label, answers, scores, e);
    if (r->task == REASON_MMLU) {
        /* One token: the letter, maybe behind a space. */
        char chosen[2] = {output.n ? output.s[output.n - 1] : 0, 0};
        json_object_set_new(answers, "likelihood", json_string(chosen));
        json_object_set_new(scores, "likelihood", json_integer(chosen[0] == label.s[0]));
    }
    *members =
        json_pack("{s:s%, s:s%, s:s%, s:o, s:o, s:o*}", "id", x->id.n ? x->id.s : "", x->id.n, "prediction", output.s,
                  output.n, "gold", label.s, label.n, "answer", answers, "scores", scores, "order", order_json(r, i));
    if (st == ST_OK) return ST_OK;
    json_decref(*members);
    *members = NULL;
    return st;
}

/* ---- loops ---- */

bool reason_is_loop(const int32_t *ids, size_t n)
{
    if (n < LOOP_TOKENS) return false;
    const int32_t *last = ids + n - LOOP_TOKENS;
    int times = 0;
    for (size_t i = 0; i + LOOP_TOKENS <= n; i++) times += memcmp(ids + i, last, LOOP_TOKENS * sizeof *ids) == 0;
    return times >= LOOP_TIMES;
}

static json_t *costs(const evaluation *ev, const evaluation_item *x, const together_reply *a)
{
    json_t *o = evaluation_costs_of(ev, x, a);
    if (o && json_object_set_new(o, "loop", json_boolean(reason_is_loop(a->ids, a->n))) == 0) return o;
    json_decref(o);
    return NULL;
}

/* ---- the commands ---- */

static void free_run(void *own)
{
    reason_run *r = own;
    mem_free(r->order);
    mem_free(r->lost);
    mem_free(r->only);
    mem_free(r->draw);
    metrics_destroy(r->m);
    reason_data_free(&r->data);
    reason_protocol_close(&r->protocol);
}

static const char *const tables[] = {"reason/protocols.json", NULL};

#define EVALUATION(task, decodes)                                                                                      \
    static const evaluation_kind evaluation_of_##task = {.name = #task,                                                \
                                                         .size = sizeof(reason_run),                                   \
                                                         .decode = decodes,                                            \
                                                         .own_samples = "reason/" #task ".jsonl",                      \
                                                         .tables = tables,                                             \
                                                         .keys = keys,                                                 \
                                                         .identity = identity,                                         \
                                                         .joined = true,                                               \
                                                         .load = load,                                                 \
                                                         .ready = ready,                                               \
                                                         .max_length = max_length,                                     \
                                                         .item = make_item,                                            \
                                                         .config = config,                                             \
                                                         .judge = judge,                                               \
                                                         .costs = costs,                                               \
                                                         .report = reason_report,                                      \
                                                         .free = free_run};

EVALUATION(gsm8k, false)
EVALUATION(math, false)
EVALUATION(aime, false)
EVALUATION(gpqa, false)
EVALUATION(mmlu, true)

enum { MOST = 1 << 30 };
#define OWN(field)       AT_OWN(reason_options, field)
#define WHOLE(low, high) .type = OPTION_WHOLE, .min = low, .max = high

#define RULES(names)                                                                                                   \
    {                                                                                                                  \
        .name = "rules", .arg = names, OWN(rules),                                                                     \
        .help = "whose prompt, new tokens, sampling and scoring (default: the first)"                                  \
    }
#define GENERATION                                                                                                     \
    {.name = "samples",                                                                                                \
     .arg = "N",                                                                                                       \
     WHOLE(1, 1024),                                                                                                   \
     OWN(samples),                                                                                                     \
     .help = "generations of each problem (default: of the rules)"},                                                   \
        {.letter = 'n',                                                                                                \
         .arg = "N",                                                                                                   \
         WHOLE(1, MOST),                                                                                               \
         OWN(n_new),                                                                                                   \
         .help = "most new tokens (default: of the rules, or what the window leaves)"},                                \
        {.name = "temp",                                                                                               \
         .arg = "T",                                                                                                   \
         .type = OPTION_NUMBER,                                                                                        \
         OWN(temp),                                                                                                    \
         .def = (double)NAN,                                                                                           \
         .help = "temperature, 0 = greedy (default: of the rules)"},                                                   \
        {.name = "top-k",                                                                                              \
         .arg = "K",                                                                                                   \
         WHOLE(0, MOST),                                                                                               \
         OWN(top_k),                                                                                                   \
         .def = -1,                                                                                                    \
         .help = "keep the K most likely tokens, 0 = all (default: of the rules)"},                                    \
        {.name = "top-p",                                                                                              \
         .arg = "P",                                                                                                   \
         .type = OPTION_NUMBER,                                                                                        \
         OWN(top_p),                                                                                                   \
         .def = (double)NAN,                                                                                           \
         .help = "keep the most likely tokens up to mass P (default: of the rules)"},                                  \
        {.name = "min-p",                                                                                              \
         .arg = "P",                                                                                                   \
         .type = OPTION_NUMBER,                                                                                        \
         OWN(min_p),                                                                                                   \
         .def = (double)NAN,                                                                                           \
         .help = "keep tokens with at least P times the best one's probability (default 0)"},                          \
    {                                                                                                                  \
        .name = "stop", .arg = "TEXT", .type = OPTION_TEXTS,                                                           \
        .help = "end answers at this text, beside those of the rules (up to 8 times)"                                  \
    }

static const cli_option gsm8k_options[] = {
    RULES("boxed|logquant|cot|cot_zeroshot|cot_llama|lmeval|official"),
    GENERATION,
    {.name = "fix-commas",
     .type = OPTION_FLAG,
     OWN(fix_commas),
     .help = "rules logquant: leave commas of the right answer out, too"},
    {.name = "train", .arg = "FILE", OWN(train), .help = "rules lmeval: the training data, from which shots are drawn"},
    {0}};
static const cli_option math_options[] = {RULES("boxed|lmeval|kvpress"), GENERATION, {0}};
static const cli_option aime_options[] = {
    RULES("pariskv|pariskv_tests|lmeval|kvpress|boxed|retroinfer_orz"), GENERATION, {0}};
static const cli_option gpqa_options[] = {RULES("pariskv|simple_evals|lmeval"), GENERATION, {0}};
static const cli_option mmlu_options[] = {
    RULES("official|lmeval"),
    {.name = "shots",
     .arg = "N",
     WHOLE(0, 100),
     OWN(shots),
     .def = SHOTS,
     .help = "worked questions of the subject in front of each (default 5)"},
    {.name = "protocol",
     .arg = "prefill|decode",
     AT(protocol),
     .help = "feed the question at once, or token by token behind the shots (default)"},
    {0}};

#define COMMAND(task, what)                                                                                            \
    const command task##_command = {.name = "eval " #task,                                                             \
                                    .args = "",                                                                        \
                                    .summary = what ": strategies and budgets compared",                               \
                                    .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_SAMPLES | OPTIONS_RESULTS,      \
                                    .own = task##_options,                                                             \
                                    .own_size = sizeof(reason_options),                                                \
                                    .compares = true,                                                                  \
                                    .evaluation = &evaluation_of_##task};

COMMAND(gsm8k, "GSM8K, word problems with whole numbers for answers")
COMMAND(math, "MATH-500, competition problems with answers in LaTeX")
COMMAND(aime, "AIME, competition problems with answers from 0 to 999")
COMMAND(gpqa, "GPQA, hard questions with four choices, with reasoning")
COMMAND(mmlu, "MMLU, multiple choice by likelihood")
