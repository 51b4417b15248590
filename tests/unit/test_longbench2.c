/* SPDX-License-Identifier: MIT */
/* LongBench v2: choices of outputs, markers, truncation, data; and prompts token by token against the official steps,
 * where the tokenizers are there. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "eval/longbench2/longbench2.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tests/unit/oom.h"
#include "tests/unit/prompt_fixture.h"
#include "tokenizer/chars.h"

static longbench2_templates templates;

/* ---- choices ---- */

static void test_choices(void)
{
    static const struct {
        const char *output;
        char want;
    } cases[] = {
        {"The correct answer is (B).", 'B'},
        {"**The correct answer is C**", 'C'},
        {"The correct answer is B. No: The correct answer is (D)", 'D'},
        {"The correct answer is Dog", 'D'},
        {"the correct answer is (A)", 0},
        {"Answer: (A)", 0},
        {"", 0},
        {"The correct answer is ", 0},
        {"The correct answer is (", 0},
        {"The correct answer is (A", 0},
        {"The correct answer is (E)", 0},
        {"The correct answer is E. The correct answer is A", 'A'},
        {"The correct answer is (A) or The correct answer is (B)", 'A'},
        {"The correct answer is The correct answer is (C)", 'C'},
        {"The correct answer is  B", 0},
        {"The correct answer is:\n(B)", 0},
        {"The co*rrect answer** is (*B*)", 'B'},
        {"***The correct answer is **D", 'D'},
        {"*", 0},
        {"The correct answer is (a)", 0},
        {"The correct answer is (AB)", 0},
        {"\xe7\xad\x94\xef\xbc\x9aThe correct answer is (A)\xe3\x80\x82", 'A'},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        is_int(longbench2_choice(utf8_of(cases[i].output)), cases[i].want, "choice of output %zu", i);
    is_int(longbench2_choice((utf8_text){"\0The correct answer is (C)\0", 27}), 'C', "next to NULs");
    is_int(longbench2_choice((utf8_text){NULL, 0}), 0, "of nothing");
}

/* ---- choices by other rules ---- */

static void test_pariskv_prompt(void)
{
    longbench2_sample s = {.context = utf8_of(" $Q$ {A} "), .question = utf8_of("{context}?")};
    prompt_text t;
    err e = {0};
    for (int i = 0; i < LONGBENCH2_CHOICES; i++) s.choice[i] = utf8_of(&"w\0x\0y\0z"[2 * i]);
    if (!is_ok(longbench2_fill(&t, &templates, LONGBENCH2_PARISKV, &s, utf8_of("r"), &e), &e, "ParisKV's prompt"))
        return;
    is_str(
        t.s,
        "Please read the following text and answer the questions below.\n\n<text>\n $Q$ {A} \n</text>\n\nWhat is the "
        "correct answer to this question: {context}?\nChoices:\n(A) w\n(B) x\n(C) y\n(D) z\n\nLet's think step by "
        "step:",
        "fields stay as they are");
    mem_free(t.s);
}

static void test_says(void)
{
    ok(longbench2_says(utf8_of("**The correct answer is (B)**"), 'B'), "kvpress: in brackets");
    ok(longbench2_says(utf8_of("The correct answer is A. No: The correct answer is B"), 'B'), "any of several");
    ok(longbench2_says(utf8_of("The correct answer is Dog"), 'D'), "the beginning of a word");
    ok(!longbench2_says(utf8_of("the correct answer is B"), 'B'), "case counts");
    ok(!longbench2_says(utf8_of("The correct answer is A"), 'B'), "another letter");
}

/* ---- markers ---- */

static void replaces(const char *in, const char *marker, const char *value, const char *want)
{
    prompt_text t = {.s = mem_strdup(in), .n = strlen(in)};
    err e = {0};
    is_ok(prompt_replace(&t, utf8_of(marker), utf8_of(value), &e), &e, "replace %s", marker);
    is_str(t.s, want, "in '%s'", in);
    is_int((long long)t.n, (long long)strlen(want), "its length");
    mem_free(t.s);
}

static void test_replace(void)
{
    replaces("a $Q$ b $Q$", "$Q$", "x", "a x b x");
    replaces("$Q$", "$Q$", "", "");
    replaces("", "$Q$", "x", "");
    replaces("none", "$Q$", "x", "none");
    replaces("$Q$Q$", "$Q$", "x", "xQ$");
    replaces("$Q$$Q$", "$Q$", "$Q$$Q$", "$Q$$Q$$Q$$Q$");
    replaces("$$Q$$", "$Q$", "-", "$-$");
}

static utf8_text text_in(const json_t *j)
{
    return (utf8_text){json_string_value(j), json_string_length(j)};
}

static const longbench2_sample *nth(const sample_list *l, size_t i)
{
    return samples_at(l, i);
}

static status read_source(sample_list *l, const sample_source *s, err *e)
{
    *l = (sample_list){.size = sizeof(longbench2_sample)};
    return samples_read(l, &longbench2_reader, s, e);
}

/* Reads one of our files of samples. */
static bool read_samples(sample_list *d, const char *rel)
{
    char path[4096];
    err e = {0};
    snprintf(path, sizeof path, "%s", tap_path(rel));
    sample_source s = {.data = path};
    return is_ok(read_source(d, &s, &e), &e, "%s", rel);
}

/* The filled prompts (of the benchmark itself) stored next to the format's samples. */
static void test_fill(void)
{
    sample_list d;
    size_t n = 0, good = 0;
    err e = {0};
    if (read_samples(&d, "tests/data/longbench2/format_samples.jsonl"))
        for (size_t i = 0; i < d.n; i++)
            for (int p = 0; p < LONGBENCH2_PARISKV; p++) {
                char key[64];
                prompt_text t;
                snprintf(key, sizeof key, "expected_prompt_%s", longbench2_prompt_name((longbench2_prompt)p));
                utf8_text want = text_in(json_object_get(nth(&d, i)->at.root, key));
                n++;
                if (longbench2_fill(&t, &templates, (longbench2_prompt)p, nth(&d, i),
                                    utf8_of(" I looked at the window. \n"), &e) != ST_OK)
                    continue;
                good += want.s && want.n == t.n && memcmp(want.s, t.s, t.n) == 0;
                mem_free(t.s);
            }
    samples_free(&d);
    is_int((long long)n, 12, "filled prompts");
    is_int((long long)good, 12, "as they were written out by hand");
}

/* Every white space of Python goes, nothing else does. */
static void test_strip(void)
{
    static const char all[] = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f "
                              "\xc2\x85\xc2\xa0\xe1\x9a\x80\xe2\x80\x80\xe2\x80\x8a\xe2\x80\xa8"
                              "\xe2\x80\xa9\xe2\x80\xaf\xe2\x81\x9f\xe3\x80\x80";
    char question[256];
    longbench2_sample s = {.choice = {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}}};
    prompt_text t;
    err e = {0};
    snprintf(question, sizeof question, "%s\xe2\x80\x8b x\xef\xbb\xbf%s", all, all);
    s.question = utf8_of(question);
    s.context = utf8_of(all);
    is_ok(longbench2_fill(&t, &templates, LONGBENCH2_0SHOT, &s, (utf8_text){0}, &e), &e, "filled");
    ok(t.s && strstr(t.s, "<text>\n\n</text>"), "a context of white space is empty");
    ok(t.s && strstr(t.s, "this question: \xe2\x80\x8b x\xef\xbb\xbf\nChoices"), "U+200B and U+FEFF stay");
    mem_free(t.s);
}

/* ---- data ---- */

#define RECORD                                                                                                         \
    "\"_id\":\"i\",\"difficulty\":\"easy\",\"length\":\"short\",\"question\":\"q\",\"choice_A\":"                      \
    "\"a\","                                                                                                           \
    "\"choice_B\":\"b\",\"choice_C\":\"c\",\"choice_D\":\"d\","
#define GOOD "{" RECORD "\"answer\":\"A\",\"context\":\"c\"}"

/* The data as a file of that name, in a folder of its own where the name is of a published one. */
static status read_text(sample_list *d, const char *text, size_t n, err *e)
{
    char dir[64], path[128];
    make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/x", dir);
    write_file(path, text, n);
    sample_source s = {.data = path};
    status st = read_source(d, &s, e);
    remove_dir(dir);
    return st;
}

static void reads(const char *text, size_t want)
{
    sample_list d;
    err e = {0};
    is_ok(read_text(&d, text, strlen(text), &e), &e, "%zu bytes", strlen(text));
    is_int((long long)d.n, (long long)want, "samples");
    for (size_t i = 0; i < d.n; i++) ok(nth(&d, i)->at.index == (int64_t)i, "index %zu", i);
    samples_free(&d);
}

static void refuses_bytes(const char *text, size_t n, const char *part)
{
    sample_list d;
    err e = {0};
    status st = read_text(&d, text, n, &e);
    is_err(st, &e, ST_FORMAT, part, "%s", part);
    samples_free(&d);
}

static void refuses(const char *text, const char *part)
{
    refuses_bytes(text, strlen(text), part);
}

static void test_data(void)
{
    reads(GOOD "\n" GOOD "\n\n" GOOD, 3);
    reads("[" GOOD "]", 1);
    reads("\n [\n" GOOD " ,\n" GOOD "\n]\n ", 2);
    reads("[{\"a\":\"],\\\"[{\",\"b\":[[1,2],{\"x\":[]}]," RECORD "\"answer\":\"D\",\"context\":\"}],{\\\\\"}]", 1);
    refuses("", "no samples");
    refuses("[]", "no samples");
    refuses("[", "record 1: not valid JSON");
    refuses("[" GOOD, "record 1: unterminated list");
    refuses("[" GOOD ",]", "record 2: not valid JSON");
    refuses("[" GOOD "] x", "trailing text after the list");
    refuses("[" GOOD GOOD "]", "record 1: not valid JSON");
    refuses("[1]", "record 1: ");
    refuses(GOOD "\n{\"context\":", "line 2: not valid JSON");
    refuses("[" GOOD ",{" RECORD "\"answer\":\"A\"}]", "record 2: 'context': expected a string");
    refuses("{\"_id\":1}", "line 1: '_id': expected a string");
    refuses("{" RECORD "\"answer\":\"E\",\"context\":\"c\"}", "'answer' is 'E', expected A, B, C or D");
    refuses("{" RECORD "\"answer\":\"AB\",\"context\":\"c\"}", "'answer' is 'AB'");
    refuses("{" RECORD "\"answer\":\"\",\"context\":\"c\"}", "'answer' is ''");
    refuses("{" RECORD "\"answer\":null,\"context\":\"c\"}", "'answer': expected a string");
    refuses("{" RECORD "\"answer\":\"A\",\"context\":\"a\\u0000\"}", "'context' holds the character U+0000");
    /* Python's json refuses the first, and its tokenizers the lone surrogate. */
    refuses("{" RECORD "\"answer\":\"A\",\"context\":\"a\xff\"}", ", in 'context': unable to decode byte 0xff");
    refuses("{" RECORD "\"answer\":\"A\",\"context\":\"\\ud800\"}", ", in 'context': invalid Unicode");
    refuses("[" GOOD ",{" RECORD "\"answer\":\"A\",\"context\":\"\xc3\"}]", "record 2: not valid JSON");
    refuses("{\"a\":{\"b\":\"x:y\"},\"question\":[{\"c\":\"\xff\"}]}", ", in 'question'");
    refuses("{\"a\":1,\"\xff\":2}", ": unable to decode");
    refuses("{\"a\\\"\":tru", ", in 'a\\\"'");
    refuses("\"", "line 1: not valid JSON");
    refuses_bytes("[" GOOD ",\0]", sizeof GOOD + 3, "record 2: not valid JSON");
}

static void test_folders(void)
{
    char dir[64], path[128], both[200];
    sample_list d;
    err e = {0};
    make_dir(dir, sizeof dir);
    sample_source s = {.data = dir};
    is_err(read_source(&d, &s, &e), &e, ST_IO, "neither data.json nor data.jsonl exists", "an empty folder");
    samples_free(&d);
    snprintf(path, sizeof path, "%s/data.json", dir);
    write_file(path, "[" GOOD "]", sizeof GOOD + 1);
    is_ok(read_source(&d, &s, &e), &e, "data.json of a folder");
    is_int((long long)d.n, 1, "its sample");
    is_str(json_string_value(json_object_get(json_array_get(d.files, 0), "name")), "data.json", "is noted");
    samples_free(&d);
    snprintf(both, sizeof both, "%s,%s", dir, path);
    s.data = both;
    e = (err){0};
    is_err(read_source(&d, &s, &e), &e, ST_USAGE, "has the same content as another file", "the same samples twice");
    samples_free(&d);
    unlink(path);
    remove_dir(dir);
}

/* Failing allocations leak nothing and are reported. */
static void test_memory(void)
{
    char dir[64], path[128];
    oom_run o = {0};
    make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/x", dir);
    write_file(path, "[" GOOD "," GOOD "]", 2 * sizeof GOOD + 1);
    while (oom_next(&o)) {
        sample_source s = {.data = path};
        sample_list d;
        prompt_text t = {0};
        status st = read_source(&d, &s, &o.e);
        if (st == ST_OK) st = longbench2_fill(&t, &templates, LONGBENCH2_COT_ANSWER, nth(&d, 1), utf8_of("r"), &o.e);
        oom_saw(&o, st, NULL);
        mem_free(t.s);
        samples_free(&d);
    }
    remove_dir(dir);
    oom_ok(&o, 10, "reading and filling");
}

/* ---- against the official steps ---- */

static const char *const sources[] = {"format", "odd", "own"}, *const source_files[] = {
                                                                   "tests/data/longbench2/format_samples.jsonl",
                                                                   "tests/data/longbench2/odd.jsonl",
                                                                   "eval/longbench2/samples.jsonl"};
enum { N_SOURCES = 3 };

static const longbench2_sample *sample_of(const sample_list *data, const json_t *j)
{
    size_t i = (size_t)json_integer_value(json_object_get(j, "index"));
    for (int k = 0; k < N_SOURCES; k++)
        if (strcmp(string_in(j, "source"), sources[k]) == 0 && i < data[k].n) return nth(&data[k], i);
    return NULL;
}

static longbench2_prompt prompt_of(const json_t *j)
{
    int p = 0;
    while (p < LONGBENCH2_PROMPTS - 1 &&
           strcmp(string_in(j, "prompt"), longbench2_prompt_name((longbench2_prompt)p)) != 0)
        p++;
    return (longbench2_prompt)p;
}

static bool agrees(const void *ctx, const json_t *j, const real_tokenizer *r, const tokenizer *t)
{
    const longbench2_sample *s = sample_of(ctx, j);
    bool raw = strcmp(string_in(j, "wrap"), "raw") == 0;
    prompter p = {.tok = t,
                  .max_length = (size_t)json_integer_value(json_object_get(j, "max_length")),
                  .wrap = raw ? WRAP_RAW : WRAP_TEMPLATE,
                  .joined = true,
                  .clean = r->clean};
    prompt_text text;
    prompt_tokens out = {0};
    if (!s) return false;
    status st = longbench2_fill(&text, &templates, prompt_of(j), s,
                                utf8_of("\n I looked at the window, and at $C_A$ .\xe3\x80\x80"), NULL);
    if (st == ST_OK) st = prompter_wrap(&out, &p, true, &text, NULL);
    if (st == ST_OK) st = prompter_encode(&out, &p, true, &text, text.n, NULL);
    mem_free(text.s);
    bool whole = out.tail.n == 0;
    return is_prompt(j, &out, st) && whole;
}

static void test_real(void)
{
    sample_list data[N_SOURCES] = {0};
    bool there = true;
    for (int k = 0; k < N_SOURCES; k++) there &= read_samples(&data[k], source_files[k]);
    if (there) check_real_prompts("tests/data/longbench2/prompts.jsonl", 240, agrees, data);
    for (int k = 0; k < N_SOURCES; k++) samples_free(&data[k]);
}

int main(void)
{
    err e = {0};
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", tap_path("eval"));
    if (is_ok(longbench2_templates_read(&templates, dir, &e), &e, "the templates")) {
        test_choices();
        test_pariskv_prompt();
        test_says();
        test_replace();
        test_fill();
        test_strip();
        test_data();
        test_folders();
        test_memory();
        test_real();
    }
    longbench2_templates_free(&templates);
    return tap_done();
}
