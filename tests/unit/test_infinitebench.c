/* SPDX-License-Identifier: MIT */
/* InfiniteBench: samples that are read and made, and prompts, token by token against the official steps on real
 * tokenizers, where they are there. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/infinitebench/infinitebench.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tests/unit/oom.h"
#include "tests/unit/prompt_fixture.h"

static infinitebench_prompts sets[3];

static size_t task_of(const char *name)
{
    size_t t;
    if (dataset_find(&t, &infinitebench_names, name, strlen(name), NULL) != ST_OK) abort();
    return t;
}

/* ---- lines ---- */

static const sample_list lines = {.size = sizeof(infinitebench_sample), .drop = infinitebench_drop};

static status read_line(infinitebench_sample *s, infinitebench_set set, const char *line, err *e)
{
    const sample_reader r = {.names = &infinitebench_names, .read = infinitebench_read, .own = &sets[set]};
    return read_sample(s, &r, &lines, line, e);
}

static const char *field_of(const infinitebench_sample *s, const char *name)
{
    static char text[256];
    for (size_t i = 0; i < s->n_fields; i++)
        if (strcmp(s->field[i].name, name) == 0) {
            snprintf(text, sizeof text, "%.*s", (int)s->field[i].value.n, s->field[i].value.s);
            return text;
        }
    return "(none)";
}

#define KEY "9c1d2e3f-0a1b-4c2d-8e3f-a0b1c2d3e4f5"

static void test_fields(void)
{
    static const struct {
        const char *line, *field, *want;
    } cases[] = {
        {"{'dataset':'passkey','context':'c','input':'q','answer':'1'}", "{input}", "q"},
        {"{'dataset':'longbook_qa_eng','context':'c','input':'q','answer':'1'}", "{question}", "q"},
        {"{'dataset':'longbook_qa_eng','context':'c','input':'q','answer':'1'}", "{input}", "(none)"},
        {"{'dataset':'code_run','context':'c','input':'func_ func_1() func_2(-) "
         "func_03(-45)+func_4(1)',"
         "'answer':[1]}",
         "{func_call}", "func_03(-45)"},
        {"{'dataset':'code_run','context':'c','input':'func_func_1(2','answer':1}", NULL,
         "'input' has no function call"},
        {"{'dataset':'code_run','context':'c','input':'func_func_1(2)','answer':1}", "{func}", "func_1"},
        {"{'dataset':'math_find','context':'c','input':'x\\nThe 2nd LARGEST of of "
         "it.\\nof','answer':[4.5]}",
         "{prefix}", "What is the 2nd largest of in the following list?"},
        {"{'dataset':'math_find','context':'c','input':'The of The x\\nof','answer':1}", NULL,
         "'input' has no question such as"},
        {"{'dataset':'math_find','context':'c','input':'The The a of','answer':1}", "{prefix}",
         "What is the the a in the following list?"},
        {"{'dataset':'kv_retrieval','context':'c','input':'\\nKey: \\\"" KEY "\\\"\\n','answer':'1'}", "{key}",
         "\"" KEY "\""},
        {"{'dataset':'kv_retrieval','context':'c','input':'which?','answer':'1'}", "{key}", "(none)"},
        {"{'dataset':'code_debug','context':'c','input':'','answer':['b'],'options':['a','b','c','"
         "d']}",
         "{OPTION_C}", "c"},
        {"{'dataset':'code_debug','context':'c','answer':'b','options':['a','b','c']}", NULL,
         "'options': expected a list of four"},
        {"{'dataset':'code_debug','context':'c','answer':'b','options':['a','b','c',4]}", NULL,
         "'options': element 4 is not a string"},
        {"{'dataset':'code_debug','context':'c','answer':'e','options':['a','b','c','d']}", NULL,
         "'answer' is not one of 'options'"},
        {"{'dataset':'code_debug','context':'c','answer':['b','E'],'options':['a','b','c','d']}", NULL,
         "'answer': expected an option, or an option and its letter"},
        {"{'dataset':'passkey','context':'c','answer':'1'}", NULL, "'input': expected a string"},
        {"{'dataset':'passkey','context':5,'input':'q','answer':'1'}", NULL, "'context': expected a string"},
        {"{'dataset':'passkey','context':'c\\u0000','input':'q','answer':'1'}", NULL,
         "'context' holds the character U+0000"},
        {"{'dataset':'passkey','context':'c','input':'q','answer':''}", NULL, "'answer': empty"},
        {"{'dataset':'passkey','context':'c','input':'q'}", NULL, "'answer': expected a nonempty list"},
        {"{'dataset':'pass','context':'c','input':'q','answer':'1'}", NULL,
         "'dataset': 'pass' is not a dataset of InfiniteBench; the nearest name is passkey"},
        {"{'context':'c','input':'q','answer':'1'}", NULL, "'dataset': expected a string"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[512];
        infinitebench_sample s;
        err e;
        snprintf(line, sizeof line, "%s", cases[i].line);
        for (char *c = line; *c; c++)
            if (*c == '\'') *c = '"';
        status st = read_line(&s, PROMPTS_OFFICIAL, line, &e);
        if (cases[i].field) {
            is_ok(st, &e, "line %zu", i);
            is_str(field_of(&s, cases[i].field), cases[i].want, "%s", cases[i].field);
        } else {
            is_err(st, &e, ST_FORMAT, cases[i].want, "line %zu", i);
            ok(strncmp(e.msg, "x.jsonl line 1: ", 16) == 0, "which says where: %s", e.msg);
        }
        sample_drop(&lines, &s);
    }
}

/* A line of a million characters is looked through once, not once for each "The ". */
static void test_long_line(void)
{
    enum { WORDS = 1 << 18 };
    static const char begin[] = "{\"dataset\":\"math_find\",\"context\":\"c\",\"answer\":1,\"input\":\"",
                      end[] = "\\nThe last of it\"}";
    char *line = malloc(sizeof begin + sizeof end + 4 * (size_t)WORDS), *at = line;
    infinitebench_sample s;
    err e;
    if (!ok(line != NULL, "memory for a long line")) return;
    at = stpcpy(at, begin);
    for (int i = 0; i < WORDS; i++) at = stpcpy(at, "The ");
    strcpy(at, end);
    is_ok(read_line(&s, PROMPTS_OFFICIAL, line, &e), &e, "a long line without a match");
    is_str(field_of(&s, "{prefix}"), "What is the last in the following list?", "the next one's");
    sample_drop(&lines, &s);
    free(line);
}

static const char *label_of(const infinitebench_sample *s, size_t i)
{
    return json_string_value(json_array_get(s->labels, i));
}

static void test_labels(void)
{
    infinitebench_sample s;
    err e;
    is_ok(read_line(&s, PROMPTS_OFFICIAL,
                    "{\"dataset\":\"longbook_choice_eng\",\"context\":\"c\",\"input\":\"q\","
                    "\"answer\":[\"d\"],\"options\":[\"a\",\"b\",\"c\",\"d\"]}",
                    &e),
          &e, "an option");
    ok(json_array_size(s.labels) == 2, "has two labels");
    is_str(label_of(&s, 1), "D", "gets its letter");
    ok(infinitebench_answers(&s) == s.labels, "in the results too");
    sample_drop(&lines, &s);
    is_ok(read_line(&s, PROMPTS_OFFICIAL,
                    "{\"dataset\":\"math_find\",\"context\":\"c\",\"input\":\"The x of\",\"answer\":[5.0]}", &e),
          &e, "a number");
    is_str(label_of(&s, 0), "5.0", "is a text as a label");
    ok(json_array_size(s.labels) == 1 && json_is_real(json_array_get(infinitebench_answers(&s), 0)),
       "stays what it is in the results");
    sample_drop(&lines, &s);
    is_err(read_line(&s, PROMPTS_INFLLM,
                     "{\"dataset\":\"longbook_choice_eng\",\"context\":\"c\",\"input\":\"q\","
                     "\"answer\":[\"b\",\"\\u0000\"],\"options\":[\"a\",\"b\",\"c\",\"d\"]}",
                     &e),
           &e, ST_FORMAT, "an option, or an option and its letter", "U+0000 is no letter");
    sample_drop(&lines, &s);
    is_err(read_line(&s, PROMPTS_INFLLM,
                     "{\"dataset\":\"kv_retrieval\",\"context\":\"c\",\"input\":\"which?\","
                     "\"answer\":\"1\"}",
                     &e),
           &e, ST_FORMAT, "no key in quotes", "InfLLM's prompt needs the key");
    sample_drop(&lines, &s);
}

/* ---- samples that are made ---- */

static json_t *generate(const made_place *at, size_t units, double *depth)
{
    json_t *j = NULL;
    if (infinitebench_generate(&j, depth, at, units, NULL) != ST_OK) abort();
    return j;
}

/* The context of a sentence between `before` and `after` sentences of noise. */
static bool is_hidden(const char *s, const char *hidden, size_t before, size_t after)
{
    size_t n = strlen(MADE_NOISE);
    for (size_t i = 0; i < before; i++, s += n)
        if (strncmp(s, MADE_NOISE, n) != 0) return false;
    if (strncmp(s, hidden, strlen(hidden)) != 0) return false;
    s += strlen(hidden);
    for (size_t i = 0; i < after; i++, s += n)
        if (strncmp(s, MADE_NOISE, n) != 0) return false;
    return *s == 0;
}

static size_t runs(const char *s)
{
    size_t n = *s != 0;
    for (; *s && s[1]; s++) n += s[1] != s[0];
    return n;
}

static void test_hidden(const char *name, const char *what, size_t digits)
{
    made_place at = {task_of(name), 42, 4096, 0, 5};
    char last[16] = "";
    int same = 0;
    for (at.number = 0; at.number < at.count; at.number++) {
        double depth;
        char hidden[160], question[64];
        json_t *j = generate(&at, 10, &depth), *longer = generate(&at, 40, &depth), *again = generate(&at, 10, &depth);
        const char *key = string_in(j, "answer");
        size_t before = 10 * (size_t)at.number / 4;
        snprintf(hidden, sizeof hidden, "The %s is %s. Remember it. %s is the %s.\n", what, key, key, what);
        snprintf(question, sizeof question, "What is the %s?", what);
        ok(strlen(key) == digits && strspn(key, "0123456789") == digits && runs(key) <= 5, "%s: the key %s", name, key);
        ok(is_hidden(string_in(j, "context"), hidden, before, 10 - before) && depth == 10.0 * (double)before,
           "after %zu of 10 sentences", before);
        is_str(string_in(j, "input"), question, "the question");
        ok(json_equal(j, again) && strcmp(key, string_in(longer, "answer")) == 0,
           "again the same, and the same key in a longer one");
        same += strcmp(key, last) == 0;
        snprintf(last, sizeof last, "%s", key);
        json_decref(j);
        json_decref(longer);
        json_decref(again);
    }
    is_int(same, 0, "each number has its key");
}

static bool keys_differ(made_place a, made_place b)
{
    double depth;
    json_t *x = generate(&a, 3, &depth), *y = generate(&b, 3, &depth);
    bool differ = strcmp(string_in(x, "answer"), string_in(y, "answer")) != 0;
    json_decref(x);
    json_decref(y);
    return differ;
}

static void test_places(void)
{
    made_place a = {task_of("kv_retrieval"), 42, 4096, 1, 5}, seed = a, length = a, number = a, count = a;
    double depth;
    seed.seed = 43;
    length.length = 4097;
    number.number = 2;
    ok(keys_differ(a, seed) && keys_differ(a, length) && keys_differ(a, number),
       "seed, length and number change what is hidden");
    count.dataset = task_of("passkey");
    count.number = 0;
    count.count = 1;
    json_decref(generate(&count, 9, &depth));
    ok(fabs(depth - 100.0 * 4 / 9) < 1e-9, "one alone stands in the middle");
    count.number = 3;
    count.count = 4;
    json_decref(generate(&count, 7, &depth));
    ok(depth == 100, "the last one at the end");
}

static bool is_uuid(const char *s)
{
    for (size_t i = 0; i < 36; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? s[i] != '-' : !strchr("0123456789abcdef", s[i]) || !s[i]) return false;
    }
    return s[14] == '4' && strchr("89ab", s[19]) && s[36] == 0;
}

static void test_pairs(void)
{
    enum { UNITS = 2500 };
    made_place at = {task_of("kv_retrieval"), 42, 131072, 3, 10};
    double depth;
    json_t *j = generate(&at, UNITS, &depth), *few = generate(&at, 7, &depth), *value;
    const char *context = string_in(j, "context"), *begin = "JSON data:\n", *key, *asked = "";
    size_t i = 0, bad = 0;
    json_error_t je;
    char want[160];
    ok(strncmp(context, begin, strlen(begin)) == 0, "it begins as the official ones");
    json_t *pairs = json_loads(context + strlen(begin), JSON_REJECT_DUPLICATES, &je);
    if (!ok(pairs && json_object_size(pairs) == UNITS, "%d keys, none of them twice", UNITS)) return;
    json_object_foreach(pairs, key, value)
    {
        bad += !is_uuid(key) || !is_uuid(json_string_value(value));
        if (i++ == UNITS * 3 / 10) asked = key;
    }
    ok(bad == 0, "all of them UUIDs");
    snprintf(want, sizeof want, "\nKey: \"%s\"\nThe value associated with the specified key is: ", asked);
    is_str(string_in(j, "input"), want, "number 750 of 2500 is asked for");
    is_str(string_in(j, "answer"), string_in(pairs, asked), "its value is the answer");
    ok(strncmp(string_in(few, "context"), context, strlen(string_in(few, "context")) - 1) == 0,
       "a shorter one has the first of the pairs");
    ok(strchr(context, '\n') && !strstr(context, "}\n") && context[strlen(context) - 1] == '}',
       "it ends with its bracket");
    json_decref(pairs);
    json_decref(j);
    json_decref(few);
}

/* Sentences of noise, or pairs. */
static size_t units_of(const infinitebench_sample *s)
{
    const char *part = s->at.dataset == task_of("kv_retrieval") ? "\": \"" : MADE_NOISE;
    size_t n = 0;
    for (const char *c = s->context.s; (c = strstr(c, part)); c++) n++;
    return n;
}

static size_t tokens_of(const infinitebench_prompts *p, const prompter *how, const infinitebench_sample *s)
{
    prompt_tokens t;
    if (infinitebench_prompt_make(&t, p, how, s, NULL) != ST_OK) abort();
    size_t n = t.head.n + t.tail.n;
    prompt_tokens_free(&t);
    return n;
}

/* With what the prompts of made samples are written. */
typedef struct {
    const infinitebench_prompts *p;
    const prompter *how;
} writing;

static status read_made(const void *own, void *s, const char *path, const char *where, err *e)
{
    return infinitebench_read(((const writing *)own)->p, s, path, where, e);
}

static status make_made(void *own_sample, const made_place *at, size_t units, err *e)
{
    infinitebench_sample *s = own_sample;
    s->length = at->length;
    return infinitebench_generate(&s->at.root, &s->depth, at, units, e);
}

static status count_made(const void *own, const void *own_sample, int64_t *n, err *e)
{
    const writing *w = own;
    const infinitebench_sample *s = own_sample;
    prompt_tokens t;
    status st = infinitebench_prompt_make(&t, w->p, w->how, s, e);
    *n = (int64_t)(t.head.n + t.tail.n) + w->p->n_new[s->at.dataset];
    prompt_tokens_free(&t);
    return st;
}

static status make_sample(infinitebench_sample *s, const infinitebench_prompts *p, const prompter *how,
                          const made_place *at, err *e)
{
    const writing w = {p, how};
    const made_source source = {.exact = true, .own = &w, .read = read_made, .make = make_made, .count = count_made};
    return made_fit(s, &source, &lines, &infinitebench_names, at, e);
}

static void check_longest(const prompter *how, const infinitebench_prompts *p, const made_place *at)
{
    infinitebench_sample s, more;
    double depth;
    err e = {0};
    size_t room = (size_t)(at->length - p->n_new[at->dataset]);
    if (!is_ok(make_sample(&s, p, how, at, &e), &e, "%s of %lld tokens", infinitebench_tasks[at->dataset].name,
               (long long)at->length))
        return;
    size_t units = units_of(&s), n = tokens_of(p, how, &s);
    more = (infinitebench_sample){.at = {at->dataset, 0, generate(at, units + 1, &depth)}};
    if (infinitebench_read(p, &more, "", "x", &e) != ST_OK) abort();
    ok(n <= room && tokens_of(p, how, &more) > room, "%zu units fill %zu of %zu tokens, one more does not fit", units,
       n, room);
    ok(s.length == at->length && s.at.index == at->number && s.depth >= 0, "it knows its place");
    sample_drop(&lines, &s);
    sample_drop(&lines, &more);
}

static void test_longest(void)
{
    tokenizer *t = open_small("llama3");
    prompter how = {.tok = t, .max_length = 1 << 30};
    err e = {0};
    if (t) is_ok(tokenizer_set_template(t, "llama3", &e), &e, "a template");
    infinitebench_sample s;
    for (size_t task = 0; t && task < INFINITEBENCH_TASKS; task++) {
        if (!infinitebench_tasks[task].generated) continue;
        for (int set = 0; set < 3; set++) {
            made_place at = {task, 1, 1500 + 777 * set, set, 3};
            how.wrap = set == PROMPTS_OFFICIAL ? WRAP_RAW : WRAP_TEMPLATE;
            check_longest(&how, &sets[set], &at);
        }
    }
    made_place at = {task_of("passkey"), 1, 60, 0, 3};
    if (t)
        is_err(make_sample(&s, &sets[0], &how, &at, &e), &e, ST_USAGE,
               "60: too short for passkey, which needs at least", "a length that holds none");
    tokenizer_free(t);
}

/* Every allocation fails once. */
static void test_memory(void)
{
    tokenizer *t = open_small("llama3");
    prompter how = {.tok = t, .max_length = 1 << 30, .wrap = WRAP_RAW};
    made_place at = {task_of("kv_retrieval"), 1, 4000, 0, 3};
    oom_run o = {0};
    while (t && o.n < 400 && oom_next(&o)) {
        infinitebench_sample s;
        status st = make_sample(&s, &sets[0], &how, &at, &o.e);
        oom_saw(&o, st, NULL);
        if (st == ST_OK) sample_drop(&lines, &s);
    }
    if (t) ok((o.done || o.n == 400) && !o.bad, "out of memory at each of %ld allocations", o.n);
    tokenizer_free(t);
}

/* ---- prompts ---- */

static void test_last_token(void)
{
    tokenizer *t = open_small("llama3");
    prompter how = {.tok = t, .max_length = 4000};
    infinitebench_sample s;
    prompt_tokens chat, infllm;
    err e;
    if (!t) return;
    ok(tokenizer_set_template(t, "llama3", NULL) == ST_OK, "a template");
    is_ok(read_line(&s, PROMPTS_OFFICIAL,
                    "{\"dataset\":\"passkey\",\"context\":\"c\",\"input\":\"q\",\"answer\":\"1\"}", &e),
          &e, "a sample");
    is_ok(infinitebench_prompt_make(&chat, &sets[PROMPTS_CHAT], &how, &s, &e), &e, "chat");
    is_ok(infinitebench_prompt_make(&infllm, &sets[PROMPTS_INFLLM], &how, &s, &e), &e, "infllm");
    ok(chat.tail.n == 0 && infllm.tail.n == 1 && infllm.head.n + 1 == chat.head.n &&
           memcmp(infllm.head.ids, chat.head.ids, infllm.head.n * sizeof(int32_t)) == 0 &&
           infllm.tail.ids[0] == chat.head.ids[infllm.head.n],
       "InfLLM feeds the last token of the prompt by itself");
    prompt_tokens_free(&chat);
    prompt_tokens_free(&infllm);
    sample_drop(&lines, &s);
    tokenizer_free(t);
}

static void test_sets(void)
{
    infinitebench_set set;
    err e = {0};
    is_err(infinitebench_set_parse(&set, "gpt4", &e), &e, ST_USAGE, "--prompts: 'gpt4'", "an unknown set");
    size_t kv = task_of("kv_retrieval"), six = 0;
    ok(sets[0].n_new[kv] == 50 && sets[1].n_new[kv] == 50 && sets[2].n_new[kv] == 100, "lengths of answers");
    for (size_t i = 0; i < INFINITEBENCH_TASKS; i++) six += infinitebench_tasks[i].in_table;
    ok(six == 6 && infinitebench_tasks[5].in_table, "the six of the table are the first");
    infinitebench_prompts p;
    e = (err){0};
    is_err(infinitebench_prompts_open(&p, "/nonexistent", PROMPTS_CHAT, &e), &e, ST_IO, "official_prompts.json",
           "no prompts");
    infinitebench_prompts_close(&p);
}

/* ---- against the official steps ---- */

/* Line number `index` of a file of samples, with the prompts of a set. */
static bool read_nth(infinitebench_sample *s, const char *rel, size_t index, infinitebench_set set)
{
    line_reader r = {.name = rel};
    const char *line;
    char *text = NULL, *one = NULL;
    size_t n;
    err e = {0};
    if (file_read(&text, &r.size, tap_path(rel), 1 << 24, &e) != ST_OK) return false;
    r.s = text;
    bool there = next_line(&r, &line, &n);
    for (size_t i = 0; i < index && there; i++) there = next_line(&r, &line, &n);
    if (there) one = strndup(line, n);
    there = one && read_line(s, set, one, &e) == ST_OK;
    if (!there) printf("# %s\n", e.msg);
    free(one);
    mem_free(text);
    return there;
}

static bool agrees(const void *ctx, const json_t *j, const real_tokenizer *r, const tokenizer *t)
{
    bool own = strcmp(string_in(j, "source"), "own") == 0;
    size_t index = (size_t)json_integer_value(json_object_get(j, "index"));
    infinitebench_set set;
    infinitebench_sample s;
    (void)ctx;
    if (infinitebench_set_parse(&set, string_in(j, "prompts"), NULL) != ST_OK) return false;
    prompter how = {.tok = t,
                    .max_length = (size_t)json_integer_value(json_object_get(j, "max_length")),
                    .wrap = set == PROMPTS_OFFICIAL ? WRAP_RAW : WRAP_TEMPLATE,
                    .joined = true,
                    .halves = true,
                    .clean = r->clean};
    prompt_tokens out;
    if (!read_nth(&s, own ? "eval/infinitebench/samples.jsonl" : "tests/data/infinitebench/odd.jsonl", index, set))
        return false;
    status st = infinitebench_prompt_make(&out, &sets[set], &how, &s, NULL);
    sample_drop(&lines, &s);
    return is_prompt(j, &out, st);
}

static void test_real(void)
{
    check_real_prompts("tests/data/infinitebench/prompts.jsonl", 150, agrees, NULL);
}

int main(void)
{
    err e = {0};
    char dir[4096];
    bool good = true;
    snprintf(dir, sizeof dir, "%s", tap_path("eval"));
    for (int i = 0; i < 3; i++)
        good &= is_ok(infinitebench_prompts_open(&sets[i], dir, (infinitebench_set)i, &e), &e, "prompts of set %d", i);
    if (good) {
        test_sets();
        test_fields();
        test_long_line();
        test_labels();
        test_hidden("passkey", "pass key", 5);
        test_hidden("number_string", "sequence of digits", 10);
        test_places();
        test_pairs();
        test_longest();
        test_memory();
        test_last_token();
        test_real();
    }
    for (int i = 0; i < 3; i++) infinitebench_prompts_close(&sets[i]);
    return tap_done();
}
