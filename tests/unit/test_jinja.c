/* SPDX-License-Identifier: MIT */
/* The Jinja interpreter: constructs against transformers' environment, origins of bytes, limits, memory errors.
 * `test_jinja FILE` instead checks the cases of a file, which a script may make from random templates. */
#include "config.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/tap.h"
#include "tests/unit/jinja_util.h"
#include "tests/unit/oom.h"

static void show(const char *text, status st, const jinja_text *got, const err *e)
{
    printf("# template: %s\n#   status %d %s\n#   got: %s\n", text, (int)st, e->msg, got->text ? got->text : "");
}

/* Checks the cases of a file made by scripts/fixtures/make_jinja.py. */
static void check_cases(const char *path, int least)
{
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    int n = 0, wrong = 0;
    json_t *shared = NULL;
    while (f && getline(&line, &cap, f) > 0) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
        const json_t *text = json_object_get(row, "template"), *own = json_object_get(row, "variables");
        if (!text) {
            json_decref(shared);
            shared = row;
            continue;
        }
        jinja_text got;
        err e = {0};
        const status st = render(json_string_value(text), json_string_length(text),
                                 own ? own : json_object_get(shared, "variables"), &got, &e);
        n++;
        if (!is_as_expected(st, &got, row)) {
            wrong++;
            show(json_string_value(text), st, &got, &e);
            if (json_object_get(row, "text")) printf("#   want: %s\n", json_string_value(json_object_get(row, "text")));
        }
        jinja_text_free(&got);
        json_decref(row);
    }
    ok(n >= least && wrong == 0, "%d of %d templates render as the reference does", n - wrong, n);
    json_decref(shared);
    free(line);
    if (f) fclose(f);
}

/* Expects the text, whose bytes from the variables are in `input` marked by ^. */
static void check_marks(const char *template, const char *json, const char *text, const char *marks)
{
    json_t *variables = json_loads(json, 0, NULL);
    jinja_text got;
    err e = {0};
    char shown[256] = "";
    if (is_ok(render(template, strlen(template), variables, &got, &e), &e, "%s", template)) {
        for (size_t i = 0; i < got.n && i + 1 < sizeof shown; i++) shown[i] = got.input[i] ? '^' : '.';
        is_str(got.text, text, "%s: text", template);
        is_str(shown, marks, "%s: origins", template);
    }
    jinja_text_free(&got);
    json_decref(variables);
}

static void test_marks(void)
{
    const char *v =
        "{\"s\": \" a<b> \", \"n\": 12, \"l\": [\"x\", \"y\"], \"d\": {\"k\": \"v\"}, \"t\": true, \"f\": 1.5}";
    check_marks("<{{ s }}>", v, "< a<b> >", ".^^^^^^.");
    check_marks("{{ s | trim }}|{{ s.strip() ~ '<b>' }}", v, "a<b>|a<b><b>", "^^^^.^^^^...");
    check_marks("{{ s.split('<')[1] + '<' }}{{ s[1:3] }}{{ s|upper }}", v, "b> <a< A<B> ", "^^^.^^^^^^^^");
    check_marks("{{ s.replace('<', '[[') }}{{ 'x-y'.replace('-', s) }}", v, " a[[b> x a<b> y", "^^..^^^.^^^^^^.");
    check_marks("{{ l|join('-') }} {{ ', '.join(l) }}{{ l }}", v, "x-y x, y['x', 'y']", "^.^.^..^^^^^^^^^^^");
    check_marks("{{ d|tojson }}{{ {'a': s}|tojson }}{{ {'a': 'b'}|tojson }}", v,
                "{\"k\": \"v\"}{\"a\": \" a<b> \"}{\"a\": \"b\"}", "^^^^^^^^^^^^^^^^^^^^^^^^^..........");
    check_marks("{{ n }}{{ n + 1 }}{{ 3 }}{{ t }}{{ f }}{{ '%05d' % n }}", v, "12133True1.500012", "^^^^.^^^^^^^...^^");
    check_marks("{% for k, x in d.items() %}{{ k }}={{ x }}{% endfor %}{{ d }}", v, "k=v{'k': 'v'}", "^.^^^^^^^^^^^");
    check_marks("{% macro f(a, b='<b>') %}{{ a }}{{ b }}{% endmacro %}{{ f(s) }}{{ f('x', s)|length }}", v,
                " a<b> <b>7", "^^^^^^....");
    check_marks("{% set x %}[{{ s }}]{% endset %}{{ x|trim }}{{ x[2:] }}", v, "[ a<b> ]a<b> ]", ".^^^^^^.^^^^^.");
    check_marks("{{ '{}:{}'.format(s, 'b') }}{{ 'a%s' % s }}{{ missing|default(s) }}", v, " a<b> :ba a<b>  a<b> ",
                "^^^^^^...^^^^^^^^^^^^");
    check_marks("{{ s|e }}{{ s|indent(1, true) }}{% filter upper %}q{{ l[0] }}{% endfilter %}", v,
                " a&lt;b&gt;   a<b> QX", "^^^^^^^^^^^^.^^^^^^.^");
}

static void check_fails(const char *template, const char *json, status want, const char *part)
{
    json_t *variables = json_loads(json, 0, NULL);
    jinja_text got;
    err e = {0};
    is_err(render(template, strlen(template), variables, &got, &e), &e, want, part, "error: %s", part);
    ok((want == ST_USAGE) == (got.text != NULL), "%s: only raise_exception leaves a text", part);
    jinja_text_free(&got);
    json_decref(variables);
}

static void test_errors(void)
{
    char long_text[2000], template[2100];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    check_fails("a\n{% if x %}", "{}", ST_FORMAT, "test:2: unexpected end of the template");
    check_fails("a\n\n{{ who }}{{ x.y.z }}", "{\"x\": {}}", ST_FORMAT, "test:3: dict object has no attribute 'y'");
    check_fails("{{ x + 1 }}", "{}", ST_FORMAT, "test:1: 'x' is undefined");
    check_fails("{% for i in [1] %}\n{{ m.foo.bar }}{% endfor %}", "{\"m\": {}}", ST_FORMAT,
                "test:2: dict object has no attribute 'foo'");
    check_fails("{{ raise_exception('no ' ~ x) }}", "{\"x\": \"tools\"}", ST_USAGE, "no tools");
    snprintf(template, sizeof template, "{{ raise_exception('%s') }}", long_text);
    jinja_text got;
    json_t *none = json_object();
    is_int(render(template, strlen(template), none, &got, NULL), ST_USAGE, "raise_exception with a long message");
    is_str(got.text, long_text, "the whole message");
    jinja_text_free(&got);
    json_decref(none);
    check_fails("\xff", "{}", ST_FORMAT, "invalid UTF-8");
}

/* Returns n times `part` between head and tail. */
static char *repeated(const char *head, const char *part, int n, const char *tail)
{
    char *s = calloc(1, strlen(head) + strlen(part) * (size_t)n + strlen(tail) + 1), *p = s;
    if (!s) abort();
    p = stpcpy(p, head);
    for (int i = 0; i < n; i++) p = stpcpy(p, part);
    strcpy(p, tail);
    return s;
}

static void check_repeated(const char *head, const char *part, int n, const char *tail, const char *message)
{
    char *s = repeated(head, part, n, tail);
    check_fails(s, "{}", ST_FORMAT, message);
    free(s);
}

static void test_limits(void)
{
    check_repeated("", "{{ ", 1, "x", "tag without end");
    check_repeated("{{ ", "(", 200, "", "nested");
    check_repeated("{{ ", "-", 200, "1 }}", "nested");
    check_repeated("{{ ", "not ", 200, "1 }}", "nested");
    check_repeated("", "{% if 1 %}", 200, "", "nested");
    check_repeated("{{ 1", " if 1 else 1", 200, " }}", "nested");
    check_repeated("{{ 1", " + 1", 2000, " }}", "nested");
    check_repeated("{{ x", "|string", 2000, " }}", "nested");
    check_repeated("", "x", (1 << 20) + 1, "", "bytes");
    check_fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{}", ST_FORMAT, "nested");
    check_fails("{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
                "{}", ST_FORMAT, "nested");
    check_repeated("{% for a in range(99999) %}", "{% if 0 %}{% endif %}", 200, "{% endfor %}", "steps");
    check_fails("{{ 'x' * 99999999 }}", "{}", ST_FORMAT, "MiB");
    check_fails(
        "{% set ns = namespace(x='x' * 1000) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "{}",
        ST_FORMAT, "MiB");
    check_fails("{{ 9223372036854775807 + 1 }}", "{}", ST_FORMAT, "overflow");
    check_fails("{{ 99999999999999999999 }}", "{}", ST_FORMAT, "range");
    check_fails("{{ '{:>99999}'.format(1) }}{{ '%99999d' % 1 }}", "{}", ST_FORMAT, "width");
}

static const char *const chat = "{% macro say(m) %}<{{ m.role }}>{{ m.content | trim }}{% endmacro %}"
                                "{% for m in messages if m.role != 'x' %}{{ say(m) }}{{ loop.last }}{% endfor %}"
                                "{{ messages | map(attribute='role') | list | tojson(indent=1) }}{{ '%s' % messages }}";
static const char *const talk = "{\"messages\": [{\"role\": \"user\", \"content\": \" Hi \"}, {\"role\": \"x\"}]}";

static void test_memory(void)
{
    json_t *variables = json_loads(talk, 0, NULL);
    oom_run parsing = {0}, rendering = {0};
    jinja *j = NULL;
    jinja_text got = {0};
    while (oom_next(&parsing)) oom_saw(&parsing, jinja_parse(&j, chat, strlen(chat), "test", &parsing.e), &j);
    oom_ok(&parsing, 2, "parsing");
    while (oom_next(&rendering)) oom_saw(&rendering, jinja_render(j, variables, 0, &got, &rendering.e), &got.text);
    oom_ok(&rendering, 2, "rendering");
    jinja_text_free(&got);
    jinja_free(j);
    json_decref(variables);
}

typedef struct {
    const jinja *j;
    bool same;
} worker;

static void *render_often(void *arg)
{
    worker *w = arg;
    json_t *variables = json_loads(talk, 0, NULL);
    w->same = true;
    for (int i = 0; i < 100; i++) {
        jinja_text got;
        w->same &= jinja_render(w->j, variables, 0, &got, NULL) == ST_OK && strncmp(got.text, "<user>HiTrue", 12) == 0;
        jinja_text_free(&got);
    }
    json_decref(variables);
    return NULL;
}

static void test_threads(void)
{
    enum { N = 4 };
    pthread_t threads[N];
    worker w[N];
    jinja *j;
    if (jinja_parse(&j, chat, strlen(chat), "test", NULL) != ST_OK) return;
    for (int i = 0; i < N; i++) {
        w[i] = (worker){.j = j};
        if (pthread_create(&threads[i], NULL, render_often, &w[i]) != 0) abort();
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        ok(w[i].same, "thread %d renders the shared template", i);
    }
    jinja_free(j);
}

int main(int argc, char **argv)
{
    setenv("TZ", "UTC", 1);
    if (argc > 1) {
        check_cases(argv[1], 1);
        return tap_done();
    }
    check_cases(tap_path("tests/data/jinja/cases.jsonl"), 200);
    test_marks();
    test_errors();
    test_limits();
    test_memory();
    test_threads();
    return tap_done();
}
