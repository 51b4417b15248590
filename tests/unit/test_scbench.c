/* SPDX-License-Identifier: MIT */
/* SCBench's prompts: the parts of a conversation, or of requests. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/scbench/scbench.h"
#include "kernels/base/mem.h"
#include "tests/unit/prompt_fixture.h"

static const sample_list lines = {.size = sizeof(scbench_sample), .drop = scbench_drop};

static status read_line(scbench_sample *s, const char *line, err *e)
{
    const sample_reader r = {.names = &scbench_names, .read = scbench_read};
    return read_sample(s, &r, &lines, line, e);
}

/* Compares the parts of a line in a mode, joined with " | ". */
static void parts_are(const scbench_asking *a, const char *line, const char *want)
{
    char got[1024] = "";
    scbench_sample s;
    err e = {0};
    if (is_ok(read_line(&s, line, &e), &e, "a line of SCBench"))
        for (size_t i = 0; i < s.n_turns + a->requests; i++) {
            prompt_text t;
            if (!is_ok(scbench_part_text(&t, a, &s, i, &e), &e, "part %zu", i)) break;
            snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i ? " | " : "", t.s);
            mem_free(t.s);
        }
    is_str(got, want, "its parts");
    sample_drop(&lines, &s);
}

/* Compares the part after the model's own answer: the tokens of part 1, and the token that ends an answer. */
static void own_part_is(const scbench_asking *a, const char *line, const char *want, int32_t ends)
{
    scbench_sample s;
    scbench_parts p = {0};
    err e = {0};
    char *text = NULL;
    size_t n;
    if (is_ok(read_line(&s, line, &e), &e, "a line of SCBench") &&
        is_ok(scbench_parts_make(&p, a, &s, 1000, &e), &e, "its parts") &&
        is_ok(tokenizer_decode(a->how->tok, p.part[1].ids, p.part[1].n, true, &text, &n, &e), &e, "the second")) {
        is_str(text, want, "what follows an answer of the model's own");
        is_int(p.ends, ends, "what ends one");
    }
    mem_free(text);
    scbench_parts_free(&p);
    sample_drop(&lines, &s);
}

/* Prompts as evals.md 16.1 has them, in Llama-3's template and without one. */
static void test_parts(void)
{
    static const char
        vt[] = "{\"dataset\":\"scbench_vt\",\"context\":\"C\",\"multi_turns\":[{\"input\":\"q\",\"answer\":"
               "[\"A'b\",\"D\"]},{\"input\":\"r\",\"answer\":[\"E\"]}]}",
        mf[] = "{\"dataset\":\"scbench_mf\",\"context\":\"[1]\",\"multi_turns\":[{\"input\":\"The Big is\","
               "\"answer\":5},{\"input\":\"The Is is\",\"answer\":1.5},{\"input\":\"The x is\",\"answer\":1}]}",
        sum[] = "{\"dataset\":\"scbench_summary\",\"input\":\"C\",\"multi_turns\":[{\"input\":\"q\",\"answer\":"
                "\"a\"},{\"input\":\"r\",\"answer\":\"b\"}]}";
    scbench_prompts prompts;
    tokenizer *tok;
    err e = {0};
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", tap_path("eval"));
    if (!is_ok(scbench_prompts_open(&prompts, dir, &e), &e, "SCBench's prompts")) return;
    if (is_ok(tokenizer_open(&tok, tap_path("tests/data/models/llama31-f32-tied"), &e), &e, "a tokenizer")) {
        prompter raw = {.tok = tok, .wrap = WRAP_RAW}, chat = {.tok = tok};
        token_list eos = {0};
        is_ok(tokenizer_set_template(tok, "llama3", &e), &e, "a template");
        is_ok(tokenizer_eos_ids(tok, &eos, &e), &e, "its end tokens");
        scbench_asking a = {&prompts, &raw, false, false, &eos};
        parts_are(&a, vt, "C\n\nq | [\"A'b\", 'D']\n\nr");
        parts_are(&a, mf,
                  "What is the big?\n\n[1]\n\nThe Big is | 5\n\nWhat is the is?\n\nThe Is is | "
                  "1.5\n\nWhat is the x?\n\nThe x is");
        a.requests = true;
        parts_are(&a, vt, "C | q | r");
        parts_are(&a, mf,
                  "The Big is\n\n[1] | What is the big?\n\nThe Big is | What is the is?\n\nThe Is is | "
                  "What is the x?\n\nThe x is");
        a.how = &chat;
#define USER "<|start_header_id|>user<|end_header_id|>\n\n"
#define SAYS "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        parts_are(&a, vt, "<|begin_of_text|>" USER "C | q" SAYS " | r" SAYS);
        a.requests = false;
        parts_are(&a, vt, "<|begin_of_text|>" USER "C\n\nq" SAYS " | [\"A'b\", 'D']<|eot_id|>" USER "r" SAYS);
        parts_are(&a, mf,
                  "<|begin_of_text|>" USER "What is the big?\n\n[1]\n\nThe Big is" SAYS " | 5<|eot_id|>" USER
                  "What is the x?\n\nThe Is is" SAYS " | 1.5<|eot_id|>" USER "What is the x?\n\nThe x is" SAYS);
        parts_are(&a, sum, "<|begin_of_text|>" USER "C\n\nq" SAYS " | a<|eot_id|>" USER "r" SAYS "This paper");
        token_list eot = {0};
        a.own = true;
        parts_are(&a, vt, "<|begin_of_text|>" USER "C\n\nq" SAYS " | <|eot_id|>" USER "r" SAYS);
        is_ok(tokenizer_encode(tok, "<|eot_id|>", 10, TOKENIZE_SPECIAL, &eot, &e), &e, "the end of a turn");
        own_part_is(&a, vt, USER "r" SAYS, eot.n == 1 ? eot.ids[0] : -2);
        a.how = &raw;
        own_part_is(&a, vt, "r", eos.n ? eos.ids[0] : -1);
        token_list_free(&eot);
        token_list_free(&eos);
    }
    tokenizer_free(tok);
    scbench_prompts_close(&prompts);
}

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* The answers of a made sample of scbench_mf, from the numbers in its context. */
static void test_numbers(void)
{
    enum { UNITS = 40 };
    static const struct {
        const char *input;
        int at;
    } asked[] = {{"The largest number of the list is", UNITS - 1},
                 {"The smallest number of the list is", 0},
                 {"The second largest number of the list is", UNITS - 2},
                 {"The second smallest number of the list is", 1},
                 {"The third largest number of the list is", UNITS - 3}};
    enum { N_ASKED = sizeof asked / sizeof *asked };
    made_place at = {.seed = 1, .length = 1000, .count = 1};
    json_t *root, *turn;
    size_t i;
    int x[UNITS], n = 0, right = 0;
    err e = {0};
    while (strcmp(scbench_tasks[at.dataset].name, "scbench_mf") != 0) at.dataset++;
    if (!is_ok(scbench_generate(&root, &at, UNITS, &e), &e, "a list of numbers")) return;
    json_t *list = json_loads(json_string_value(json_object_get(root, "context")), 0, NULL);
    for (; n < UNITS && n < (int)json_array_size(list); n++)
        x[n] = (int)json_integer_value(json_array_get(list, (size_t)n));
    is_int(n, UNITS, "its numbers");
    qsort(x, (size_t)n, sizeof *x, ascending);
    json_array_foreach(json_object_get(root, "multi_turns"), i, turn)
    {
        for (size_t k = 0; k < N_ASKED; k++)
            right += strcmp(asked[k].input, json_string_value(json_object_get(turn, "input"))) == 0 &&
                     json_integer_value(json_object_get(turn, "answer")) == x[asked[k].at];
    }
    is_int(right, N_ASKED, "the right answer to each question");
    json_decref(list);
    json_decref(root);
}

int main(void)
{
    test_parts();
    test_numbers();
    return tap_done();
}
