/* SPDX-License-Identifier: MIT */
/* `eval gsm8k`, `math`, `aime`, `gpqa`, `mmlu`: one or several generations per problem, and their scores. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "eval/answers.h"
#include "eval/reason/reason.h"
#include "eval/stats.h"
#include "kernels/base/mem.h"

/* FEW: new tokens for the built-in problems, which measure nothing. */
enum { LOOP_TOKENS = 200, LOOP_TIMES = 3, SHOTS = 5, FEW = 512 };

typedef struct {
    evaluation_options common;
    const char *rules, *train;
    int samples, n_new, top_k, shots; /* 0 (top_k: -1): as in the protocol */
    double temp, top_p, min_p;        /* NAN: as in the protocol */
    text_options stop;
    bool fix_commas;
} reason_options;

typedef struct {
    const reason_options *o;
    evaluation *ev; /* item i is sample i / n of problem i % n */
    reason_task task;
    reason_protocol protocol;
    reason_data data;
    size_t n, n_samples;     /* problems; samples per problem */
    size_t n_new, least_new; /* maximum number of new tokens; the smallest number that a prompt left */
    sampler_options sampling;
    const char *stop[REASON_STOPS + 8 + 1]; /* texts that end an answer: of the protocol, then of --stop */
    uint8_t (*order)[REASON_CHOICES];       /* [n_samples * n] GPQA: order of the choices */
    size_t *lost;                           /* [n] leading characters dropped by LogQuant's rule */
    uint32_t (*draw)[REASON_DRAWN];         /* [n] shots of each problem, if the rules draw them */
    int32_t (*only)[REASON_CHOICES];        /* [n] MMLU: last tokens of " A" ... " D" */
    size_t *group_of, n_groups;             /* [n] levels or subjects, numbered in order of appearance */
    size_t fewer_shots;                     /* MMLU: prompts without room for all shots */
} reason_run;

static const reason_problem *problem_of(const reason_run *r, size_t i)
{
    return reason_at(r->data.problems, i % r->n);
}

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
    if (r->task == REASON_MMLU) { /* one token, nothing to sample */
        r->n_samples = 1;
        return MEM_NEW(&r->only, r->n, e);
    }
    r->sampling = (sampler_options){.temp = given_or(o->temp, p->temp),
                                    .top_k = o->top_k < 0 ? p->top_k : o->top_k,
                                    .top_p = given_or(o->top_p, p->top_p),
                                    .min_p = given_or(o->min_p, 0),
                                    .repeat_penalty = 1};
    TRY(sampler_create(&unused, &r->sampling, 1, e)); /* checks the ranges */
    sampler_free(unused);
    bool greedy = r->sampling.temp == 0;
    r->n_samples = (size_t)(o->samples ? o->samples : greedy ? 1 : p->samples);
    if (greedy && r->n_samples > 1)
        return err_set(e, ST_USAGE, "--samples %zu: all samples are the same at temperature 0; set --temp T",
                       r->n_samples);
    if (!greedy) r->ev->sampling = &r->sampling;
    return ST_OK;
}

static status fix_commas(reason_run *r, err *e)
{
    const metric *logquant = metric_find("gsm8k_logquant");
    if (r->protocol.metric[0] != logquant) return err_set(e, ST_USAGE, "--fix-commas: requires --rules logquant");
    r->protocol.metric[0] = metric_find("gsm8k_logquant_commas");
    return ST_OK;
}

static void list_stops(reason_run *r)
{
    const text_options *more = &r->o->stop;
    size_t n = 0;
    while (r->protocol.stop[n]) r->stop[n] = r->protocol.stop[n], n++;
    for (int i = 0; i < more->n; i++)
        if (more->text[i][0]) r->stop[n++] = more->text[i];
}

static reason_task task_of(const evaluation *ev)
{
    reason_task t = REASON_GSM8K;
    while (strcmp(reason_task_name(t), ev->kind->name) != 0) t++;
    return t;
}

static status find_orders(reason_run *r, err *e)
{
    if (r->task != REASON_GPQA) return ST_OK;
    TRY(MEM_NEW(&r->order, r->n_samples * r->n, e));
    for (size_t i = 0; i < r->n_samples * r->n; i++) {
        const reason_problem *x = problem_of(r, i);
        err inner = {0};
        status st = reason_order_of(r->order[i], r->protocol.order, x, i / r->n * r->n + (size_t)x->at.index, &inner);
        if (st != ST_OK) return err_set(e, st, "record %lld: %.180s", (long long)x->at.index + 1, inner.msg);
    }
    return ST_OK;
}

static status find_groups(reason_run *r, err *e)
{
    const reason_problem **first;
    TRY(MEM_NEW(&r->group_of, r->n, e));
    TRY(MEM_NEW(&first, r->n, e));
    for (size_t i = 0; i < r->n; i++) {
        size_t *k = &r->group_of[i];
        while (*k < r->n_groups && !reason_same_group(first[*k], problem_of(r, i))) ++*k;
        if (*k == r->n_groups) first[r->n_groups++] = problem_of(r, i);
    }
    mem_free(first);
    return ST_OK;
}

static status draw_shots(reason_run *r, err *e)
{
    const char *train = r->o->train;
    if (!r->protocol.drawn && !train) return ST_OK;
    if (!r->protocol.drawn) return err_set(e, ST_USAGE, "--train: --rules %s draws no shots", r->protocol.name);
    if (!train)
        return err_set(e, ST_USAGE, "--rules %s: requires --train FILE, the training data from which shots are drawn",
                       r->protocol.name);
    TRY(reason_data_read_shots(&r->data, "--train", train, e));
    TRY(MEM_NEW(&r->draw, r->n, e));
    return reason_draw(r->draw, &r->protocol, &r->data, e);
}

static status load(void *own, evaluation *ev, err *e)
{
    reason_run *r = own;
    const evaluation_options *c = ev->o;
    r->o = ev->options;
    r->ev = ev;
    r->task = task_of(ev);
    TRY(reason_protocol_open(&r->protocol, r->task, r->o->rules, ev->data_dir, e));
    if (r->o->fix_commas) TRY(fix_commas(r, e));
    list_stops(r);
    if (!c->wrap && (!c->template.name || r->protocol.wrap == WRAP_DOUBLE_BOS)) ev->prompter.wrap = r->protocol.wrap;
    reason_data_start(&r->data, r->task, &ev->samples);
    TRY(reason_data_read(&r->data, &ev->source, e));
    r->n = ev->samples.n;
    TRY(draw_shots(r, e));
    TRY(parse_sampling(r, e));
    TRY(find_orders(r, e));
    TRY(find_groups(r, e));
    TRY(MEM_NEW(&r->lost, r->n, e));
    r->n_new = (size_t)(r->o->n_new ? r->o->n_new : r->protocol.n_new);
    if (!c->data && !r->o->n_new && r->n_new > FEW) r->n_new = FEW;
    r->least_new = r->n_new;
    ev->n_samples = r->n * r->n_samples;
    return ST_OK;
}

/* Leaves room for the new tokens, at most half of the window. */
static status max_length(size_t *out, const evaluation *ev, err *e)
{
    const reason_run *r = ev->own;
    int64_t half = ev->window / 2, n_new = (int64_t)r->n_new < half ? (int64_t)r->n_new : half;
    (void)e;
    *out = (size_t)(ev->window - n_new);
    return ST_OK;
}

static status ready(void *own, evaluation *ev, err *e)
{
    reason_run *r = own;
    (void)e;
    ev->prompter.thinks = r->protocol.thinks;
    if (r->task != REASON_MMLU)
        out_note("%s: at most %zu new tokens (problems %zu, samples %zu, rows %zu, tokens %zu)", ev->kind->name,
                 ev->n_samples * ev->rows.n * r->n_new, r->n, r->n_samples, ev->rows.n, r->n_new);
    return ST_OK;
}

/* ---- prompts ---- */

/* Adds the protocol's messages before the user's text: as a chat, or without a template concatenated as in lm-eval. */
static status wrap(reason_run *r, prompt_text *text, err *e)
{
    const chat_message *said = r->protocol.said;
    size_t n = r->protocol.n_said;
    bool raw = r->ev->prompter.wrap == WRAP_RAW;
    prompt_text out = {0};
    status st = ST_OK;
    r->protocol.said[n] = (chat_message){"user", text->s};
    if (!raw) st = prompter_say(&out, &r->ev->prompter, said, n + 1, e);
    for (size_t i = r->protocol.system != NULL; raw && i <= n && st == ST_OK; i++) {
        st = prompt_puts(&out, said[i].content, e);
        if (st == ST_OK && i < n) st = prompt_puts(&out, strcmp(said[i].role, "user") == 0 ? " " : "\n\n", e);
    }
    prompt_text *unused = st == ST_OK ? text : &out;
    mem_free(unused->s);
    if (st == ST_OK) *text = out;
    return st;
}

/* Counts the characters of a prompt that its decoded tokens lack; LogQuant's code drops as many from the answer. */
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

/* Limits an answer to the window's room, unless -n is given. */
static void set_new(reason_run *r, evaluation_item *out)
{
    int64_t left = r->ev->window - (int64_t)(out->tokens.head.n + out->tokens.tail.n);
    out->n_new = r->n_new;
    if (!r->o->n_new && left > 0 && left < (int64_t)r->n_new) out->n_new = (size_t)left;
    if (out->n_new < r->least_new) r->least_new = out->n_new;
}

static status make_prompt(reason_run *r, size_t i, evaluation_item *out, err *e)
{
    const size_t problem = i % r->n;
    const prompter *p = &r->ev->prompter;
    prompt_text text;
    status st = reason_fill(&text, &r->protocol, problem_of(r, i), r->order ? r->order[i] : NULL, &r->data,
                            r->draw ? r->draw[problem] : NULL, e);
    if (st == ST_OK) st = prompter_wrap(&out->tokens, p, false, &text, e);
    if (st == ST_OK) st = wrap(r, &text, e);
    if (st == ST_OK) st = prompter_encode(&out->tokens, p, true, &text, text.n, e);
    if (st == ST_OK && r->protocol.loses) st = count_lost(&r->lost[problem], r, &text, &out->tokens.head, e);
    mem_free(text.s);
    return st;
}

/* Makes an item that compares the tokens that begin " A" to " D". */
static status mmlu_item(reason_run *r, size_t i, evaluation_item *out, err *e)
{
    const reason_problem *x = problem_of(r, i);
    const prompter *p = &r->ev->prompter;
    size_t begins, shots = (size_t)r->o->shots;
    prompt_text text = {0};
    status st;
    /* A prompt that is too long gets fewer shots. */
    for (;; shots--) {
        TRY_GOTO(reason_fill_mmlu(&text, &begins, &r->protocol, &r->data, x, shots, e));
        TRY_GOTO(reason_encode_choices(&out->tokens.head, r->only[i], p, &text, e));
        if (out->tokens.head.n <= p->max_length || shots == 0) break;
        token_list_free(&out->tokens.head);
        mem_free(text.s);
        text = (prompt_text){0};
    }
    r->fewer_shots += shots < (size_t)r->o->shots;
    out->only = r->only[i];
    out->n_only = REASON_CHOICES;
    if (p->decode) st = reason_cut(&out->tokens, p, &text, begins, e);
done:
    mem_free(text.s);
    return st;
}

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    reason_run *r = own;
    out->index = (int64_t)i;
    out->stop_text = r->stop;
    out->random = evaluation_random(ev->o->run.seed.value, problem_of(r, i)->at.index, i / r->n);
    TRY(r->task == REASON_MMLU ? mmlu_item(r, i, out, e) : make_prompt(r, i, out, e));
    set_new(r, out);
    return ST_OK;
}

/* ---- answers ---- */

static const char *const keys[] = {"index", "sample", "attn", "budget", NULL};

static json_t *identity(const void *own, const evaluation_item *x)
{
    const reason_run *r = own;
    size_t i = (size_t)x->index;
    return json_pack("{s:I, s:I}", "index", (json_int_t)problem_of(r, i)->at.index, "sample", (json_int_t)(i / r->n));
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
                     "problems", (json_int_t)r->n, "samples", (json_int_t)r->n_samples, "max_new_tokens",
                     (json_int_t)r->n_new, "protocol", protocol_of(r->ev), "temperature", s->temp, "top_k", s->top_k,
                     "top_p", s->top_p, "min_p", s->min_p, "shots", r->o->shots, "fix_commas", r->o->fix_commas, "stop",
                     stops_json(r));
}

/* Adds the answer that one metric finds, and its score. */
static status judge_by(reason_run *r, const metric *k, utf8_text said, utf8_text label, json_t *found, json_t *scores,
                       err *e)
{
    metric_case c = {said, &label, 1, NULL, 0};
    char *answer;
    size_t n;
    double score;
    TRY(metric_answer(&answer, &n, k, said, e));
    json_t *text = answer ? json_stringn(answer, n) : json_null();
    mem_free(answer);
    status st = metric_score(r->ev->m, k, &c, &score, e);
    bool good = json_object_set_new(found, metric_name(k), text) == 0 &&
                json_object_set_new(scores, metric_name(k), json_integer((json_int_t)score)) == 0;
    if (st == ST_OK && !good) st = err_set(e, ST_NOMEM, "out of memory for a result");
    return st;
}

static status judge(void *own, const evaluation *ev, size_t i, utf8_text output, json_t **members, err *e)
{
    reason_run *r = own;
    const reason_problem *x = problem_of(r, i);
    const uint8_t *o = r->order ? r->order[i] : NULL;
    char letter[2] = "";
    utf8_text label = x->answer;
    size_t lost = prompt_character_at(output.s, output.n, r->lost[i % r->n]);
    utf8_text said = {output.s + lost, output.n - lost};
    (void)ev;
    if (o) {
        letter[0] = reason_letter(x, o);
        label = (utf8_text){letter, 1};
    }
    json_t *found = json_object(), *scores = json_object();
    status st = ST_OK;
    for (size_t k = 0; r->protocol.metric[k] && st == ST_OK; k++)
        st = judge_by(r, r->protocol.metric[k], said, label, found, scores, e);
    if (r->task == REASON_MMLU) {
        /* One token: the letter, with or without a space before it. */
        char chosen[2] = {output.n ? output.s[output.n - 1] : 0, 0};
        json_object_set_new(found, "likelihood", json_string(chosen));
        json_object_set_new(scores, "likelihood", json_integer(chosen[0] == label.s[0]));
    }
    *members = json_pack("{s:s%, s:s%, s:s%, s:o, s:o, s:o*}", "id", x->id.n ? x->id.s : "", x->id.n, "prediction",
                         output.s, output.n, "gold", label.s, label.n, "answer", found, "scores", scores, "order",
                         o ? json_pack("[i, i, i, i]", o[0], o[1], o[2], o[3]) : NULL);
    if (st == ST_OK) return ST_OK;
    json_decref(*members);
    *members = NULL;
    return st;
}

/* ---- loops ---- */

/* True if the last LOOP_TOKENS tokens occur at least LOOP_TIMES times in the answer. */
static bool is_loop(const int32_t *ids, size_t n)
{
    if (n < LOOP_TOKENS) return false;
    const int32_t *last = ids + n - LOOP_TOKENS;
    int times = 0;
    for (size_t i = 0; i + LOOP_TOKENS <= n; i++) times += memcmp(ids + i, last, LOOP_TOKENS * sizeof *ids) == 0;
    return times >= LOOP_TIMES;
}

static json_t *costs(const evaluation *ev, const evaluation_item *x, const batch_reply *a)
{
    return results_merge(evaluation_costs_of(ev, x, a), json_pack("{s:b}", "loop", is_loop(a->ids, a->n)));
}

/* ---- the report: numbers ---- */

static const reason_run *run_of(const answers *a)
{
    return a->t.ev->own;
}

static const char *metric_label(const reason_run *r, size_t k)
{
    if (r->task == REASON_MMLU) return k == 0 ? "likelihood" : NULL;
    return r->protocol.metric[k] ? metric_name(r->protocol.metric[k]) : NULL;
}

/* Groups answers by level or subject. */
static void answer_of(const void *own, size_t i, answer_id *out)
{
    const reason_run *r = own;
    *out = (answer_id){.index = (int64_t)i, .key = {(int64_t)r->group_of[i % r->n]}};
}

static utf8_text group_name(const reason_run *r, size_t group)
{
    size_t i = 0;
    while (r->group_of[i] != group) i++;
    return problem_of(r, i)->group;
}

/* Returns a count; 0 if it is NAN. */
static json_int_t whole(double x)
{
    return isnan(x) ? 0 : (json_int_t)x;
}

static double fraction(double k, double n)
{
    return n > 0 ? k / n : (double)NAN;
}

static bool is_right(const reason_run *r, const json_t *line, size_t by)
{
    return json_integer_value(json_object_get(json_object_get(line, "scores"), metric_label(r, by))) == 1;
}

/* Returns the fraction of a row's answers that are correct by a metric. */
static double accuracy_by(const answers *a, size_t row, size_t by)
{
    double right = 0, n = 0;
    for (size_t i = 0; i < a->n; i++) {
        const json_t *line = a->line[row * a->n + i];
        n += line != NULL;
        right += line && is_right(run_of(a), line, by);
    }
    return fraction(right, n);
}

/* Returns the first metric's score; the line has those of other metrics after it. */
static double first_score(const json_t *line)
{
    json_t *scores = json_object_get(line, "scores");
    return (double)json_integer_value(json_object_iter_value(json_object_iter(scores)));
}

static double percent(double sum, size_t n)
{
    return 100 * (sum / (double)n);
}

static answer_group group_of(size_t group)
{
    return ANSWERS((int64_t)group, ANSWER_ANY, ANSWER_ANY);
}

/* Counts the samples of a problem that a row answered; *right: those correct by the first metric. */
static size_t count_problem(const answers *a, size_t row, size_t problem, size_t *right)
{
    size_t n = 0;
    *right = 0;
    for (size_t i = problem; i < a->n; i += run_of(a)->n) {
        const json_t *line = a->line[row * a->n + i];
        n += line != NULL;
        *right += line && is_right(run_of(a), line, 0);
    }
    return n;
}

/* Returns pass@k: the mean over the problems of the chance that one of k samples is correct. */
static double pass_at(const answers *a, size_t row, size_t k)
{
    double sum = 0, n = 0;
    for (size_t i = 0; i < run_of(a)->n; i++) {
        size_t right, asked = count_problem(a, row, i, &right);
        if (asked < k) continue;
        sum += stats_pass(asked, right, k);
        n++;
    }
    return fraction(sum, n);
}

/* Returns an end of the 95 % interval of the mean over problems. Samples of one problem are not independent trials. */
static double interval(const answers *a, size_t row, size_t side)
{
    int64_t n = 0;
    double right = 0, ends[2] = {(double)NAN, (double)NAN};
    for (size_t i = 0; i < run_of(a)->n; i++) {
        size_t of_problem, asked = count_problem(a, row, i, &of_problem);
        if (asked == 0) continue;
        right += (double)of_problem / (double)asked;
        n++;
    }
    if (n > 0) stats_wilson(right, n, &ends[0], &ends[1]);
    return ends[side];
}

enum { NONE, LIMIT, LOOPS, TOKENS, SPEED, LINES };
static const char *const line_names[LINES] = {"without an answer", "hit the limit", "end in a loop",
                                              "new tokens an answer", "new tokens a second"};

static double generation(const answers *a, size_t row, size_t what)
{
    const char *first = metric_label(run_of(a), 0);
    double count[LINES] = {0}, n = 0, seconds = 0;
    for (size_t i = 0; i < a->n; i++) {
        const json_t *line = a->line[row * a->n + i];
        if (!line) continue;
        n++;
        count[NONE] += json_is_null(json_object_get(json_object_get(line, "answer"), first));
        count[LIMIT] += json_is_false(json_object_get(line, "stopped"));
        count[LOOPS] += json_is_true(json_object_get(line, "loop"));
        count[TOKENS] += results_number(line, "new_tokens");
        seconds += results_number(line, "seconds");
    }
    if (n == 0) return (double)NAN;
    return what == TOKENS ? count[TOKENS] / n : what == SPEED ? fraction(count[TOKENS], seconds) : count[what];
}

/* Returns the next k of 2, 4, 8 ... and the number of samples; 0 after the last. */
static size_t next_k(const reason_run *r, size_t k)
{
    size_t n = r->n_samples;
    return k == n ? 0 : 2 * k < n ? 2 * k : n;
}

/* ---- text ---- */

/* Prints a line of times * value(a, row, arg). */
static status print_line(const answers *a, int indent, const char *name, size_t samples, int decimals, double times,
                         double (*value)(const answers *a, size_t row, size_t arg), size_t arg, err *e)
{
    for (size_t row = 0; row < a->t.ev->rows.n; row++) a->t.x[row] = times * value(a, row, arg);
    return evaluation_table_line(&a->t, indent, name, samples, decimals, e);
}

static status print_accuracies(const answers *a, err *e)
{
    const reason_run *r = run_of(a);
    const char *label;
    char name[40];
    for (size_t k = 0; (label = metric_label(r, k)); k++) {
        TRY(print_line(a, 0, label, a->n, 1, 100, accuracy_by, k, e));
        if (k > 0) continue;
        TRY(print_line(a, 2, "95 % from", 0, 1, 100, interval, 0, e));
        TRY(print_line(a, 2, "95 % to", 0, 1, 100, interval, 1, e));
    }
    for (size_t k = next_k(r, 1); k > 0; k = next_k(r, k)) {
        snprintf(name, sizeof name, k == r->n_samples ? "any of %zu" : "pass@%zu", k);
        TRY(print_line(a, 2, name, r->n, 1, 100, pass_at, k, e));
    }
    for (size_t g = 0; r->n_groups > 1 && g < r->n_groups; g++) {
        const utf8_text x = group_name(r, g);
        snprintf(name, sizeof name, "%.*s", x.n < 22 ? (int)x.n : 22, x.n ? x.s : "others");
        TRY(answers_line(a, 2, name, group_of(g), e));
    }
    return ST_OK;
}

static status print_generations(const answers *a, err *e)
{
    for (size_t i = 0; i < LINES && run_of(a)->task != REASON_MMLU; i++)
        TRY(print_line(a, 0, line_names[i], 0, i == TOKENS || i == SPEED, 1, generation, i, e));
    return answers_costs(a, ALL_ANSWERS, e);
}

static void add_sampling(const reason_run *r)
{
    const sampler_options *s = &r->sampling;
    if (!r->ev->sampling) {
        paragraph(", greedy");
        return;
    }
    paragraph(", temperature %g, top-k %d, top-p %g", s->temp, s->top_k, s->top_p);
    if (s->min_p > 0) paragraph(", min-p %g", s->min_p);
    paragraph(", seed %llu", (unsigned long long)r->ev->o->run.seed.value);
}

static void add_title(const answers *a)
{
    const reason_run *r = run_of(a);
    const evaluation *ev = r->ev;
    paragraph("%s, rules %s: %zu problems", ev->kind->name, r->protocol.name, r->n);
    if (r->task == REASON_MMLU)
        paragraph(", %d shots (%zu prompts with fewer), protocol %s", r->o->shots, r->fewer_shots, protocol_of(ev));
    else
        paragraph(", %zu generation%s each of at most %zu tokens", r->n_samples, r->n_samples == 1 ? "" : "s",
                  r->n_new);
    if (r->least_new < r->n_new) paragraph(" (the window leaves %zu)", r->least_new);
    if (r->task != REASON_MMLU) add_sampling(r);
    if (ev->n_truncated) paragraph(", %zu prompts cut in the middle", ev->n_truncated);
    paragraph(", wrap %s", prompt_wrap_name(ev->prompter.wrap));
}

/* ---- JSON ---- */

static void add_row(json_t **list, const answers *a, size_t row)
{
    const reason_run *r = run_of(a);
    json_t *o = evaluation_row_json(r->ev, row);
    const char *label;
    char name[24];
    if (r->ev->rows.why[row].code != ST_OK) {
        *list = results_append(*list, o);
        return;
    }
    json_t *by = json_object(), *pass = json_object(), *in = json_object();
    for (size_t k = 0; (label = metric_label(r, k)); k++)
        json_object_set_new(by, label, results_real(accuracy_by(a, row, k)));
    for (size_t k = 1; k > 0; k = next_k(r, k)) {
        snprintf(name, sizeof name, "%zu", k);
        json_object_set_new(pass, name, results_real(pass_at(a, row, k)));
    }
    for (size_t g = 0; r->n_groups > 1 && g < r->n_groups; g++) {
        const answer_cell c = answers_cell(a, row, group_of(g));
        json_object_set_new(in, group_name(r, g).n ? group_name(r, g).s : "",
                            results_real(fraction(c.sum, (double)c.n)));
    }
    const answer_cell c = answers_cell(a, row, ALL_ANSWERS);
    json_t *more =
        json_pack("{s:I, s:o, s:[o, o], s:o, s:o, s:I, s:I, s:I, s:o, s:o}", "n", (json_int_t)c.costs.n, "accuracy", by,
                  "ci95", results_real(interval(a, row, 0)), results_real(interval(a, row, 1)), "pass", pass, "groups",
                  in, "no_answer", whole(generation(a, row, NONE)), "hit_limit", whole(generation(a, row, LIMIT)),
                  "loops", whole(generation(a, row, LOOPS)), "new_tokens", results_real(generation(a, row, TOKENS)),
                  "new_tokens_per_second", results_real(generation(a, row, SPEED)));
    o = results_merge(o, more);
    if (o) evaluation_costs_json(o, &c.costs);
    *list = results_append(*list, o);
}

static json_t *options_json(const void *own)
{
    const reason_run *r = own;
    return json_pack("{s:s, s:I, s:I, s:f, s:i, s:f}", "rules", r->protocol.name, "generations",
                     (json_int_t)r->n_samples, "max_new_tokens", (json_int_t)r->n_new, "temperature", r->sampling.temp,
                     "top_k", r->sampling.top_k, "top_p", r->sampling.top_p);
}

static const answers_layout layout = {.answer = answer_of,
                                      .title = add_title,
                                      .lines = print_accuracies,
                                      .costs = print_generations,
                                      .decimals = 1,
                                      .mean = percent,
                                      .score = first_score,
                                      .cells = add_row,
                                      .options = options_json};

/* ---- the commands ---- */

static void free_run(void *own)
{
    reason_run *r = own;
    mem_free(r->order);
    mem_free(r->lost);
    mem_free(r->only);
    mem_free(r->draw);
    mem_free(r->group_of);
    reason_data_free(&r->data);
    reason_protocol_close(&r->protocol);
}

static const char *const tables[] = {"reason/protocols.json", NULL};

enum { MOST = 1 << 30 };
#define OWN(field) AT(reason_options, field)

#define RULES(names)                                                                                                   \
    OPTION("rules", names, TEXT, OWN(rules),                                                                           \
           "set of rules for prompts, new tokens, sampling and scoring (default: the first)")
#define GENERATION                                                                                                     \
    OPTION("samples", "N", WHOLE(1, 1024, 0), OWN(samples), "generations of each problem (default: by the rules)"),    \
        {.letter = 'n',                                                                                                \
         .arg = "N",                                                                                                   \
         WHOLE(1, MOST, 0),                                                                                            \
         OWN(n_new),                                                                                                   \
         .help = "maximum number of new tokens (default: by the rules and the window)"},                               \
        OPTION("temp", "T", NUMBER((double)NAN), OWN(temp), "temperature, 0 = greedy (default: by the rules)"),        \
        OPTION("top-k", "K", WHOLE(0, MOST, -1), OWN(top_k),                                                           \
               "keep the K most likely tokens, 0 = all (default: by the rules)"),                                      \
        OPTION("top-p", "P", NUMBER((double)NAN), OWN(top_p),                                                          \
               "keep the most likely tokens up to mass P (default: by the rules)"),                                    \
        OPTION("min-p", "P", NUMBER((double)NAN), OWN(min_p),                                                          \
               "keep tokens with at least P times the best one's probability (default 0)"),                            \
        OPTION("stop", "TEXT", .type = OPTION_TEXTS, AT(reason_options, stop),                                         \
               "also end answers at this text (up to 8 times)")

static const cli_option gsm8k_options[] = {
    RULES("boxed|logquant|cot|cot_zeroshot|cot_llama|lmeval|official"),
    GENERATION,
    OPTION("fix-commas", NULL, FLAG, OWN(fix_commas), "rules logquant: also drop commas from the correct answer"),
    OPTION("train", "FILE", TEXT, OWN(train), "rules lmeval: training data from which shots are drawn"),
    {0}};
static const cli_option math_options[] = {RULES("boxed|lmeval|kvpress"), GENERATION, {0}};
static const cli_option aime_options[] = {
    RULES("pariskv|pariskv_tests|lmeval|kvpress|boxed|retroinfer_orz"), GENERATION, {0}};
static const cli_option gpqa_options[] = {RULES("pariskv|simple_evals|lmeval"), GENERATION, {0}};
static const cli_option mmlu_options[] = {
    RULES("official|lmeval"),
    OPTION("shots", "N", WHOLE(0, 100, SHOTS), OWN(shots),
           "worked examples of the subject before each question (default 5)"),
    OPTION("protocol", "prefill|decode", TEXT, AT(reason_options, common.protocol),
           "feed the question at once, or token by token after the shots (default)"),
    {0}};

#define EVALUATION(task, decodes, what)                                                                                \
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
                                                         .report = answers_report_layout,                              \
                                                         .layout = &layout,                                            \
                                                         .free = free_run};                                            \
    const command task##_command = {.name = "eval " #task,                                                             \
                                    .args = "",                                                                        \
                                    .summary = what,                                                                   \
                                    .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_SAMPLES | OPTIONS_RESULTS,      \
                                    .own = task##_options,                                                             \
                                    .size = sizeof(reason_options),                                                    \
                                    .place = EVALUATION_PLACES,                                                        \
                                    .evaluation = &evaluation_of_##task}

EVALUATION(gsm8k, false, "GSM8K, word problems with whole numbers for answers");
EVALUATION(math, false, "MATH-500, competition problems with answers in LaTeX");
EVALUATION(aime, false, "AIME, competition problems with answers from 0 to 999");
EVALUATION(gpqa, false, "GPQA, hard questions with four choices, with reasoning");
EVALUATION(mmlu, true, "MMLU, multiple choice by likelihood");
