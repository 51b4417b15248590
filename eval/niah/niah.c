/* SPDX-License-Identifier: MIT */
/* `eval niah`: a sentence hidden in a text, at several depths and lengths. doc/evals.md 19. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "eval/answers.h"
#include "eval/niah/niah.h"
#include "eval/provenance.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "tokenizer/chars.h"

/* NEW: tokens of an answer. SPARE: tokens of a length that may stay unused. BINS: depths in the table. */
enum { NEW = 32, SPARE = 32, BINS = 5, LEAST_PIECE = 64, MAX_TEXT_BYTES = 1 << 28, MAX_SMALL_BYTES = 1 << 16 };

static const char NEEDLE[] = "The secret number is 71432.", KEY[] = "71432",
                  QUESTION[] = "What is the secret number? The secret number is";

typedef struct {
    evaluation_options common;
    const char *haystack, *needle, *question, *key;
} niah_options;

typedef struct {
    const niah_options *o;
    evaluation *ev; /* an item for each trial of each length */
    int64_t *ctx;
    size_t n_ctx, n_trials;
    char *haystack, *needle, *question; /* contents of files; NULL: built-in text */
    niah_texts texts;
    double bytes_per_token; /* average over the start of the haystack */
    json_t *sums;           /* SHA-256 of the haystack, for the configuration */
} niah_run;

/* ---- options ---- */

/* Reads a short text from a file and strips it; path NULL: uses `ours`. */
static status read_short(utf8_text *out, char **store, const char *path, const char *option, const char *ours, err *e)
{
    *out = (utf8_text){ours, strlen(ours)};
    if (!path) return ST_OK;
    TRY(file_read(store, &out->n, path, MAX_SMALL_BYTES, e));
    out->s = *store;
    trim_python(&out->s, &out->n);
    return out->n > 0 ? ST_OK : err_set(e, ST_FORMAT, "%s %s: the file is empty", option, path_tail(path));
}

static status read_haystack(niah_run *r, err *e)
{
    char *ours = path_join(r->ev->data_dir, "pg19/10146.txt"), sum[SHA256_HEX];
    const char *path = r->o->haystack ? r->o->haystack : ours;
    size_t n = 0;
    status st = ours ? file_read(&r->haystack, &n, path, MAX_TEXT_BYTES, e) : err_set(e, ST_NOMEM, "out of memory");
    if (st == ST_OK && n < LEAST_PIECE)
        st = err_set(e, ST_FORMAT, "--haystack %s: %zu bytes, expected at least %d", path_tail(path), n, LEAST_PIECE);
    if (st == ST_OK) st = file_sha256(path, sum, e);
    if (st == ST_OK && !(r->sums = json_string(sum))) st = err_set(e, ST_NOMEM, "out of memory");
    mem_free(ours);
    r->texts.haystack = (utf8_text){r->haystack, n};
    return st;
}

static status load(void *own, evaluation *ev, err *e)
{
    niah_run *r = own;
    const niah_options *o = ev->options;
    r->o = o;
    r->ev = ev;
    r->n_trials = (size_t)ev->o->trials;
    TRY(cli_parse_sizes(&r->ctx, &r->n_ctx, ev->o->run.attn.ctx, "1024,2048,4096", "--ctx", e));
    ev->n_samples = r->n_ctx * r->n_trials;
    if (!o->needle != !o->question) return err_set(e, ST_USAGE, "--needle and --question: one requires the other");
    if (o->key && !o->needle) return err_set(e, ST_USAGE, "--key: requires --needle FILE");
    TRY(read_short(&r->texts.needle, &r->needle, o->needle, "--needle", NEEDLE, e));
    TRY(read_short(&r->texts.question, &r->question, o->question, "--question", QUESTION, e));
    r->texts.key = o->key      ? (utf8_text){o->key, strlen(o->key)}
                   : o->needle ? r->texts.needle
                               : (utf8_text){KEY, strlen(KEY)};
    if (r->texts.key.n == 0) return err_set(e, ST_USAGE, "--key: the text is empty");
    return read_haystack(r, e);
}

/* ---- prompts ---- */

static double depth_of(const niah_run *r, size_t trial)
{
    return r->n_trials > 1 ? 100.0 * (double)trial / (double)(r->n_trials - 1) : 50;
}

/* Returns the byte of the haystack where a trial starts. */
static size_t start_of(const niah_run *r, int64_t ctx, size_t trial)
{
    rng random = {r->ev->o->run.seed.value};
    random.state = rng_next(&random) ^ (uint64_t)ctx;
    random.state = rng_next(&random) ^ (uint64_t)trial;
    return (size_t)rng_below(&random, r->texts.haystack.n);
}

/* Encodes the prompt with about n bytes of haystack. With protocol decode, the question and everything after it go into
 * the tail. */
static status encode(prompt_tokens *out, const niah_run *r, int64_t ctx, size_t trial, size_t n, err *e)
{
    const prompter *how = &r->ev->prompter;
    prompt_text text;
    size_t question = 0;
    status st = niah_text(&text, &question, &r->texts, start_of(r, ctx, trial), n, depth_of(r, trial), e);
    size_t n_question = text.n - question;
    if (st == ST_OK && how->wrap != WRAP_RAW) st = prompter_ask(&text, how, e);
    size_t cut = text.n;
    if (st == ST_OK && how->decode) { /* the last occurrence of the question */
        for (cut = text.n - n_question; memcmp(text.s + cut, r->texts.question.s, n_question) != 0 && cut > 0;) cut--;
    }
    if (st == ST_OK) st = prompter_encode(out, how, true, &text, cut, e);
    mem_free(text.s);
    return st;
}

/* Makes the prompt that fills the length except for a few tokens. */
static status fit(prompt_tokens *out, const niah_run *r, int64_t ctx, size_t trial, err *e)
{
    size_t room = (size_t)ctx - NEW, n = (size_t)((double)room * r->bytes_per_token);
    bool shrinks = false;
    for (;;) {
        TRY(encode(out, r, ctx, trial, n, e));
        size_t tokens = out->head.n + out->tail.n;
        bool fits = tokens <= room;
        if (fits && (shrinks || room - tokens <= SPARE)) return ST_OK;
        if (!fits && n <= LEAST_PIECE)
            return err_set(e, ST_USAGE, "--ctx %lld: too short; at least %zu tokens are needed", (long long)ctx,
                           tokens + NEW);
        double off = r->bytes_per_token * fabs((double)tokens - (double)room);
        if (fits) {
            n += (size_t)(off / 2) + 1;
        } else {
            n = (double)n > off + SPARE + LEAST_PIECE ? n - (size_t)off - SPARE : LEAST_PIECE;
            shrinks = true;
        }
        prompt_tokens_free(out);
        *out = (prompt_tokens){0};
    }
}

static status ready(void *own, evaluation *ev, err *e)
{
    enum { SAMPLE = 1 << 14 };
    niah_run *r = own;
    token_list ids = {0};
    utf8_text h = r->texts.haystack;
    size_t n = h.n < SAMPLE ? h.n : SAMPLE;
    TRY(tokenizer_encode(ev->g.tok, h.s, n, 0, &ids, e));
    r->bytes_per_token = (double)n / (double)(ids.n ? ids.n : 1);
    token_list_free(&ids);
    for (size_t i = 0; i < r->n_ctx; i++) {
        if (r->ctx[i] <= NEW)
            return err_set(e, ST_USAGE, "--ctx %lld: too short; the answer alone takes %d tokens", (long long)r->ctx[i],
                           NEW);
        cli_warn_ctx(ev->g.m, r->ctx[i]);
    }
    return ST_OK;
}

static status make_item(void *own, const evaluation *ev, size_t i, evaluation_item *out, err *e)
{
    niah_run *r = own;
    (void)ev;
    out->index = (int64_t)i;
    out->n_new = NEW;
    return fit(&out->tokens, r, r->ctx[i / r->n_trials], i % r->n_trials, e);
}

/* ---- answers ---- */

static const char *const keys[] = {"ctx", "trial", "attn", "budget", NULL};

static json_t *identity(const void *own, const evaluation_item *x)
{
    const niah_run *r = own;
    size_t i = (size_t)x->index;
    return json_pack("{s:I, s:I}", "ctx", (json_int_t)r->ctx[i / r->n_trials], "trial", (json_int_t)(i % r->n_trials));
}

static status judge(void *own, const evaluation *ev, size_t i, utf8_text answer, json_t **members, err *e)
{
    const niah_run *r = own;
    double fraction;
    bool found;
    (void)ev;
    TRY(niah_score(&fraction, &found, answer, r->texts.key, e));
    *members = json_pack("{s:f, s:s%, s:f, s:b}", "depth", depth_of(r, i % r->n_trials), "prediction", answer.s,
                         answer.n, "score", fraction, "found", found);
    return ST_OK;
}

static json_t *config(const void *own)
{
    const niah_run *r = own;
    const niah_texts *t = &r->texts;
    const prompter *p = &r->ev->prompter;
    const char *chat = tokenizer_chat_template(p->tok);
    return json_pack("{s:o, s:I, s:s, s:s, s:s?, s:O, s:s%, s:s%, s:s%}", "ctx", report_sizes(r->ctx, r->n_ctx),
                     "trials", (json_int_t)r->n_trials, "protocol", protocol_of(r->ev), "wrap",
                     prompt_wrap_name(p->wrap), "template", p->wrap == WRAP_RAW ? NULL : chat, "haystack", r->sums,
                     "needle", t->needle.s, t->needle.n, "question", t->question.s, t->question.n, "key", t->key.s,
                     t->key.n);
}

/* ---- the report ---- */

/* Groups answers by length, and by depth in equal bins; depth 100 belongs to the last bin. */
static void answer_of(const void *own, size_t i, answer_id *out)
{
    const niah_run *r = own;
    int bin = (int)(depth_of(r, i % r->n_trials) * BINS / 100);
    *out = (answer_id){.index = (int64_t)i, .key = {(int64_t)(i / r->n_trials), bin < BINS ? bin : BINS - 1}};
}

static double percent_found(const answer_cell *c)
{
    return c->n ? 100 * (double)c->marked / (double)c->n : (double)NAN;
}

static bool is_found(const json_t *line)
{
    return json_is_true(json_object_get(line, "found"));
}

static answer_group of_length(size_t length)
{
    return ANSWERS((int64_t)length, ANSWER_ANY, ANSWER_ANY);
}

static status print_length(const answers *a, const niah_run *r, size_t length, err *e)
{
    char name[40];
    snprintf(name, sizeof name, "%lld tokens", (long long)r->ctx[length]);
    TRY(answers_line(a, 0, name, of_length(length), e));
    for (int bin = 0; bin < BINS; bin++) {
        snprintf(name, sizeof name, "depth %d to %d %%", bin * 100 / BINS, (bin + 1) * 100 / BINS);
        TRY(answers_line(a, 2, name, ANSWERS((int64_t)length, bin, ANSWER_ANY), e));
    }
    for (size_t row = 0; row < r->ev->rows.n; row++) {
        const answer_cell c = answers_cell(a, row, of_length(length));
        a->t.x[row] = percent_found(&c);
    }
    return evaluation_table_line(&a->t, 2, "the whole key", r->n_trials, 1, e);
}

static void add_title(const answers *a)
{
    const evaluation *ev = a->t.ev;
    paragraph("needle in a haystack: percent of the key's words found, protocol %s, wrap %s, seed %llu",
              protocol_of(ev), prompt_wrap_name(ev->prompter.wrap), (unsigned long long)ev->o->run.seed.value);
}

static status print_scores(const answers *a, err *e)
{
    const niah_run *r = a->t.ev->own;
    for (size_t i = 0; i < r->n_ctx; i++) TRY(print_length(a, r, i, e));
    return ST_OK;
}

static json_t *depths_json(const answers *a, const niah_run *r, size_t row, size_t length)
{
    json_t *list = json_array();
    for (size_t t = 0; t < r->n_trials; t++) {
        const json_t *line = a->line[row * a->n + length * r->n_trials + t];
        if (line)
            json_array_append_new(list,
                                  json_pack("{s:f, s:O, s:O}", "depth", depth_of(r, t), "score",
                                            json_object_get(line, "score"), "found", json_object_get(line, "found")));
    }
    return list;
}

static status write_json(const answers *a, err *e)
{
    const evaluation *ev = a->t.ev;
    const niah_run *r = ev->own;
    json_t *list = json_array();
    for (size_t i = 0; i < ev->rows.n * r->n_ctx; i++) {
        size_t row = i / r->n_ctx, length = i % r->n_ctx;
        json_t *o = evaluation_row_json(ev, row);
        const answer_cell c = answers_cell(a, row, of_length(length));
        json_object_set_new(o, "ctx", json_integer((json_int_t)r->ctx[length]));
        json_object_set_new(o, "score", results_real(c.mean));
        json_object_set_new(o, "found", results_real(percent_found(&c)));
        json_object_set_new(o, "depths", depths_json(a, r, row, length));
        evaluation_costs_json(o, &c.costs);
        json_array_append_new(list, o);
    }
    return report_write(&ev->o->run.out, &ev->g, config(r), list, NULL, e);
}

static double percent_of_words(const json_t *line)
{
    return 100 * results_number(line, "score");
}

static double plain_mean(double sum, size_t n)
{
    return sum / (double)n;
}

static const answers_layout layout = {.answer = answer_of,
                                      .title = add_title,
                                      .lines = print_scores,
                                      .json = write_json,
                                      .decimals = 1,
                                      .mean = plain_mean,
                                      .score = percent_of_words,
                                      .is_marked = is_found};

/* ---- the command ---- */

static void free_run(void *own)
{
    niah_run *r = own;
    mem_free(r->ctx);
    mem_free(r->haystack);
    mem_free(r->needle);
    mem_free(r->question);
    json_decref(r->sums);
}

static const evaluation_kind evaluation_of_niah = {.name = "niah",
                                                   .size = sizeof(niah_run),
                                                   .attn = "all",
                                                   .budget = "256",
                                                   .decode = true,
                                                   .wraps = true,
                                                   .keys = keys,
                                                   .identity = identity,
                                                   .load = load,
                                                   .ready = ready,
                                                   .item = make_item,
                                                   .config = config,
                                                   .judge = judge,
                                                   .report = answers_report_layout,
                                                   .layout = &layout,
                                                   .free = free_run};

#define OWN(field) AT(niah_options, field)

static const cli_option options[] = {
    OPTION("haystack", "FILE", TEXT, OWN(haystack),
           "text that hides the needle, repeated if too short (default: the book of eval pg19)"),
    OPTION("needle", "FILE", TEXT, OWN(needle),
           "hidden text (default: \"The secret number is 71432.\"); requires --question"),
    OPTION("question", "FILE", TEXT, OWN(question), "question after the text; requires --needle"),
    OPTION("key", "TEXT", TEXT, OWN(key), "words expected in the answer (default: those of the needle)"),
    OPTION("protocol", "decode|prefill", TEXT, AT(niah_options, common.protocol),
           "feed the question token by token (default), or all at once"),
    OPTION("wrap", "template|raw|double-bos", TEXT, AT(niah_options, common.wrap),
           "prompts in the chat template (default if the model has one), as they are, or with BOS twice"),
    OPTION("template", "FILE|NAME|TEXT", TEXT, AT(niah_options, common.template.name),
           "chat template: a Jinja file, a name or a Jinja text (default: the model's own)"),
    OPTION("template-arg", "NAME=VALUE", .type = OPTION_TEXTS, AT(niah_options, common.template.args),
           "variable of the chat template, such as enable_thinking=false; repeatable"),
    {0}};

EVALUATION_COMMAND(niah, OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_RESULTS | OPTIONS_TRIALS,
                   "a needle in a haystack, by depth and length");
