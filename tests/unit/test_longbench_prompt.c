/* SPDX-License-Identifier: MIT */
/* LongBench's prompts: templates, truncation, wrapping, Quest's cut, stops; and token by token against the official
 * steps on real data, where it is there. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "eval/longbench/longbench.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tests/unit/prompt_fixture.h"

static longbench_table datasets;
static const sample_list list_of_samples = {.size = sizeof(longbench_sample), .drop = longbench_drop};

static const longbench_dataset *dataset(const char *name)
{
    const longbench_dataset *d;
    if (longbench_find(&d, &datasets, name, strlen(name), NULL) != ST_OK) abort();
    return d;
}

/* ---- templates ---- */

static void test_fill(void)
{
    static const struct {
        const char *template, *want;
    } cases[] = {
        {"{context}|{input}", "{input} {x}|Q {context}"},
        {"", ""},
        {"{context", "{context"},
        {"{}{input}{{input}}", "{}Q {context}{Q {context}}"},
        {"{input}{input}", "Q {context}Q {context}"},
    };
    const prompt_field f[] = {{"{context}", {"{input} {x}", 11}}, {"{input}", {"Q {context}", 11}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        prompt_text t;
        err e = {0};
        if (!is_ok(prompt_fill(&t, cases[i].template, f, 2, &e), &e, "template %zu", i)) continue;
        is_str(t.s, cases[i].want, "fields are put in once");
        is_int((long long)t.n, (long long)strlen(t.s), "its length");
        mem_free(t.s);
    }
}

/* The filled prompts that were written out by hand with the samples. */
static void test_samples(void)
{
    sample_list data = list_of_samples;
    err e = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s", tap_path("eval/longbench/samples.jsonl"));
    sample_source s = {.data = path};
    size_t n_prompts = 0, last = 0, n_datasets = 0;
    bool same = true;
    if (!is_ok(longbench_read(&data, &datasets, &s, NULL, &e), &e, "the samples")) {
        samples_free(&data);
        return;
    }
    for (size_t i = 0; i < data.n; i++) {
        const longbench_sample *x = samples_at(&data, i);
        const prompt_field f[] = {{"{context}", x->p.text}, {"{input}", x->input}};
        const char *want = json_string_value(json_object_get(x->at.root, "expected_prompt"));
        prompt_text t;
        if (i == 0 || last != x->at.dataset) n_datasets++;
        last = x->at.dataset;
        if (!want || prompt_fill(&t, datasets.d[x->at.dataset].prompt, f, 2, &e) != ST_OK) continue;
        same &= strcmp(t.s, want) == 0;
        n_prompts++;
        mem_free(t.s);
    }
    is_int((long long)n_datasets, 21, "there are some of each dataset");
    ok(same && n_prompts == 21, "the filled prompts (%zu)", n_prompts);
    samples_free(&data);
}

/* ---- truncation ---- */

static void truncates(const tokenizer *t, const char *text, size_t most, bool clean, const char *want, size_t n_tokens)
{
    prompt_text p = {.s = mem_strdup(text), .n = strlen(text)};
    size_t n = 0;
    err e = {0};
    const prompt_cut cut = {.most = most, .first = most / 2, .last = most / 2, .clean = clean};
    is_ok(prompt_truncate(&p, t, &cut, &n, &e), &e, "at most %zu tokens", most);
    is_int((long long)n, (long long)n_tokens, "tokens before");
    is_str(p.s, want, "its text");
    is_int((long long)p.n, (long long)strlen(want), "its length");
    mem_free(p.s);
}

/* The middle is cut out of the whole: both parts are decoded as one list. */
static void truncates_joined(const tokenizer *t, const char *text, size_t most, const char *want)
{
    prompter p = {.tok = t, .max_length = most, .wrap = WRAP_RAW, .joined = true};
    prompt_text s = {.s = mem_strdup(text), .n = strlen(text)};
    prompt_tokens out = {0};
    err e = {0};
    is_ok(prompter_wrap(&out, &p, true, &s, &e), &e, "at most %zu tokens", most);
    ok(strcmp(s.s, want) == 0 && out.truncated == (out.n_tokens > most), "joined: %s", s.s);
    mem_free(s.s);
}

static void test_truncation(void)
{
    static const char letters[] = "a b c d e f g h o", marks[] = "a . b , c";
    tokenizer *t = open_small("llama3");
    if (t) {
        truncates(t, letters, 10, false, letters, 10);
        truncates(t, letters, 11, false, letters, 10);
        truncates(t, letters, 7, false, "a b g h o", 10);
        truncates(t, letters, 4, false, "a h o", 10);
        truncates(t, letters, 2, false, " o", 10);
        truncates(t, letters, 9, true, "a b c f g h o", 10);
        /* Each half is cleaned by itself: the space at the end of the first one stays. */
        truncates(t, marks, 8, true, marks, 8);
        truncates(t, marks, 7, false, "a  , c", 8);
        truncates(t, marks, 7, true, "a , c", 8);
        truncates(t, "a<|eot_id|> b c d e f g h", 6, false, "a f g h", 10);
        truncates_joined(t, letters, 11, letters); /* ten tokens with BOS */
        truncates_joined(t, letters, 10, letters);
        truncates_joined(t, letters, 7, "a b f g h o"); /* the first three, the last four */
        truncates_joined(t, letters, 6, "a b g h o");
        truncates_joined(t, letters, 3, " h o");
        truncates_joined(t, letters, 2, " o");
    }
    tokenizer_free(t);
    if ((t = open_small("spm"))) {
        token_list l = {0};
        char *head, *tail, want[256];
        err e = {0};
        tokenizer_encode(t, letters, strlen(letters), TOKENIZE_BOS, &l, &e);
        size_t h = l.n / 4;
        is_ok(tokenizer_decode(t, l.ids, h, false, &head, NULL, &e), &e, "the first ids");
        is_ok(tokenizer_decode(t, l.ids + l.n - h, h, false, &tail, NULL, &e), &e, "the last ids");
        snprintf(want, sizeof want, "%s%s", head, tail);
        ok(tail[0] != ' ', "SentencePiece: the second half begins without its space");
        truncates(t, letters, 2 * h, false, want, l.n);
        mem_free(head);
        mem_free(tail);
        token_list_free(&l);
    }
    tokenizer_free(t);
}

static void test_max_length(void)
{
    static const struct {
        int64_t window;
        size_t want;
    } cases[] = {{4096, 3500},     {8192, 7500}, {16384, 15500}, {32768, 31500}, {32000, 31500},
                 {131072, 130500}, {2048, 1500}, {1024, 524},    {600, 100}};
    size_t n;
    err e = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const evaluation ev = {.window = cases[i].window};
        is_ok(longbench_max_length(&n, &ev, &e), &e, "a window of %lld", (long long)cases[i].window);
        is_int((long long)n, (long long)cases[i].want, "its prompts");
    }
    is_err(longbench_max_length(&n, &(evaluation){.window = 512}, &e), &e, ST_USAGE, "--max-length", "a short window");
}

/* ---- the question, stops, whole prompts ---- */

static void test_cut(void)
{
    char s[600];
    const longbench_dataset *qasper = dataset("qasper"), *lcc = dataset("lcc");
    memset(s, 'x', sizeof s);
    memcpy(s + 100, "Question:", 9);
    is_int((long long)longbench_cut(qasper, s, 600), 500, "at most 100 characters are decoded");
    memcpy(s + 510, "Question:", 9);
    is_int((long long)longbench_cut(qasper, s, 600), 510, "the last occurrence");
    is_int((long long)longbench_cut(lcc, s, 600), 500, "a dataset without a rule");
    is_int((long long)longbench_cut(lcc, s, 100), 0, "a prompt of 100 characters");
    is_int((long long)longbench_cut(lcc, s, 99), 98, "a shorter one: as the original, the last one");
    is_int((long long)longbench_cut(qasper, s + 90, 50), 10, "unless there is a question");
    is_int((long long)longbench_cut(lcc, s, 0), 0, "an empty one");
    for (size_t i = 0; i < 600; i += 3) memcpy(s + i, "\xe5\x8c\x97", 3);
    is_int((long long)longbench_cut(lcc, s, 600), 300, "characters, not bytes");
}

static void test_stops(void)
{
    tokenizer *t = open_small("llama3");
    token_list l = {0}, more = {0}, newline = {0};
    err e = {0};
    if (!t) return;
    is_ok(tokenizer_eos_ids(t, &l, &e), &e, "the stops of most datasets");
    is_ok(longbench_stops(&more, t, &e), &e, "samsum's");
    bool eos = l.n > 0;
    for (size_t i = 0; i < l.n; i++) eos &= tokenizer_is_eos(t, l.ids[i]);
    ok(eos, "the model's own");
    tokenizer_encode(t, "\n", 1, 0, &newline, &e);
    ok(more.n == l.n + 1 && more.ids[l.n] == newline.ids[newline.n - 1], "and the newline");
    ok(dataset("samsum")->newline_stops && !dataset("triviaqa")->newline_stops,
       "in samsum alone, whose first token must not stop");
    token_list_free(&l);
    token_list_free(&more);
    token_list_free(&newline);
    tokenizer_free(t);
}

static void make(prompt_tokens *out, const prompter *p, const char *name, const char *context, const char *input)
{
    err e = {0};
    is_ok(longbench_prompt_make(out, p, dataset(name), (utf8_text){context, strlen(context)},
                                (utf8_text){input, strlen(input)}, &e),
          &e, "%s, %s", name, prompt_wrap_name(p->wrap));
}

static bool starts_with(const token_list *l, const tokenizer *t, int n_bos)
{
    for (int i = 0; i < n_bos; i++)
        if (l->ids[i] != tokenizer_bos(t)) return false;
    return l->ids[n_bos] != tokenizer_bos(t);
}

static void test_prompts(void)
{
    tokenizer *t = open_small("llama3");
    prompter p = {.tok = t, .max_length = 4000};
    prompt_tokens chat, raw, twice, cut;
    err e = {0};
    if (!t || !is_ok(tokenizer_set_template(t, "llama3", &e), &e, "a template")) return;
    const int32_t turn = tokenizer_special_id(t, "<|start_header_id|>");
    make(&chat, &p, "qasper", "c", "q");
    ok(starts_with(&chat.head, t, 1) && chat.head.ids[1] == turn && chat.tail.n == 0, "the template, one BOS");
    p.wrap = WRAP_DOUBLE_BOS;
    make(&twice, &p, "qasper", "c", "q");
    ok(starts_with(&twice.head, t, 2) && twice.head.n == chat.head.n + 1, "BOS twice");
    p.wrap = WRAP_RAW;
    make(&raw, &p, "qasper", "c", "q");
    ok(starts_with(&raw.head, t, 1) && raw.head.ids[1] != turn && !raw.truncated, "no template");
    prompt_tokens_free(&twice);
    p.wrap = WRAP_TEMPLATE;
    make(&twice, &p, "trec", "c", "q");
    ok(starts_with(&twice.head, t, 1) && twice.head.ids[1] != turn, "trec is never wrapped");
    p.wrap = WRAP_RAW;
    p.decode = true;
    make(&cut, &p, "qasper", "c", "q");
    ok(starts_with(&cut.head, t, 1) && cut.tail.n > 0 && starts_with(&cut.tail, t, 0), "the tail has no BOS");
    char *text;
    if (tokenizer_decode(t, cut.tail.ids, cut.tail.n, false, &text, NULL, NULL) == ST_OK) {
        is_str(text, "Question: q\n\nAnswer:", "and begins with the question");
        mem_free(text);
    }
    p.max_length = 20;
    prompt_tokens_free(&cut);
    make(&cut, &p, "qasper", "c", "q");
    ok(cut.truncated && cut.n_tokens == raw.n_tokens, "what is cut says so");
    prompt_tokens_free(&chat);
    prompt_tokens_free(&raw);
    prompt_tokens_free(&twice);
    prompt_tokens_free(&cut);
    p = (prompter){.tok = t, .max_length = 4000};
    is_ok(tokenizer_set_template(t, NULL, &e), &e, "the model's own template");
    is_err(longbench_prompt_make(&chat, &p, dataset("qasper"), (utf8_text){"c", 1}, (utf8_text){"q", 1}, &e), &e,
           ST_UNSUPPORTED, "chat template", "there is none");
    prompt_tokens_free(&chat);
    tokenizer_free(t);
}

/* ---- against the official steps ---- */

/* The data of a fixture: unpacked files of the real data, or our own samples. */
static bool read_real(sample_list *out, const char *dir)
{
    static const char *const names[] = {
        "2wikimqa", "gov_report",  "hotpotqa",      "multifieldqa_en",      "multifieldqa_zh",
        "musique",  "narrativeqa", "passage_count", "passage_retrieval_en", "qasper",
        "qmsum"};
    char rel[96], cmd[9000];
    err e = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(rel, sizeof rel, "longbench/%s.jsonl.xz", names[i]);
        const char *path = tap_data(rel);
        if (!path) return false;
        snprintf(cmd, sizeof cmd, "xz -dc '%s' > '%s/%s.jsonl'", path, dir, names[i]);
        if (system(cmd) != 0) return false;
    }
    sample_source s = {.data = dir, .limit = 5};
    return is_ok(longbench_read(out, &datasets, &s, NULL, &e), &e, "the real data");
}

static const longbench_sample *find_sample(const sample_list *data, const char *name, int64_t index)
{
    for (size_t i = 0; i < data->n; i++) {
        const longbench_sample *s = samples_at(data, i);
        if (strcmp(datasets.d[s->at.dataset].name, name) == 0 && s->at.index == index) return s;
    }
    return NULL;
}

/* The data of the fixture. */
typedef struct {
    sample_list real, own;
} fixture_data;

static bool agrees(const void *ctx, const json_t *j, const real_tokenizer *r, const tokenizer *t)
{
    const fixture_data *d = ctx;
    const char *variant = string_in(j, "variant");
    bool chat = strcmp(variant, "chat") == 0 || strcmp(variant, "cut") == 0;
    const longbench_sample *s = find_sample(strcmp(string_in(j, "source"), "own") == 0 ? &d->own : &d->real,
                                            string_in(j, "dataset"), json_integer_value(json_object_get(j, "index")));
    prompter p = {.tok = t,
                  .max_length = (size_t)json_integer_value(json_object_get(j, "max_length")),
                  .wrap = chat ? WRAP_TEMPLATE : WRAP_RAW,
                  .decode = strcmp(variant, "decode") == 0,
                  .clean = r->clean};
    prompt_tokens out;
    if (!s) return false;
    status st = longbench_prompt_make(&out, &p, &datasets.d[s->at.dataset], s->p.text, s->input, NULL);
    return is_prompt(j, &out, st);
}

static void test_real(void)
{
    char dir[] = "longbench_prompt_XXXXXX", cmd[64], path[4096];
    fixture_data d = {list_of_samples, list_of_samples};
    if (!tap_data("longbench/qasper.jsonl.xz") || !tap_data("tokenizers/llama3/tokenizer.json.xz")) {
        tap_skip("no real data (KVASIR_DATA or ../shared/data)");
        return;
    }
    if (!mkdtemp(dir)) abort();
    snprintf(path, sizeof path, "%s", tap_path("eval/longbench/samples.jsonl"));
    sample_source s = {.data = path};
    if (ok(read_real(&d.real, dir), "the data unpacks") &&
        ok(longbench_read(&d.own, &datasets, &s, NULL, NULL) == ST_OK, "our own samples"))
        check_real_prompts("tests/data/longbench/prompts.jsonl", 284, agrees, &d);
    samples_free(&d.real);
    samples_free(&d.own);
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    if (system(cmd) != 0) abort();
}

int main(void)
{
    err e = {0};
    if (!is_ok(longbench_open(&datasets, tap_path("eval"), &e), &e, "the table")) return tap_done();
    test_fill();
    test_samples();
    test_truncation();
    test_max_length();
    test_cut();
    test_stops();
    test_prompts();
    test_real();
    longbench_close(&datasets);
    return tap_done();
}
