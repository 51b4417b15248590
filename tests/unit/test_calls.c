/* SPDX-License-Identifier: MIT */
/* Tool calls and thinking in replies: the formats of the model families, however the text is cut. */
#include "config.h"

#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/calls_util.h"
#include "tokenizer/call_tags.h"

enum { CUTS = 200 };

static json_t *tools;

typedef struct {
    const char *format, *think, *reply, *want;
} reply_row;

#define QWEN(args)        "<tool_call>\n<function=w>\n" args "</function>\n</tool_call>"
#define PARAM(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"

#define DSML(key, text, value) "<｜DSML｜parameter name=\"" key "\" string=\"" text "\">" value "</｜DSML｜parameter>\n"
#define DSML_END               "</｜DSML｜invoke>\n"
#define DEEPSEEK(calls)        "<｜tool▁calls▁begin｜>" calls "<｜tool▁calls▁end｜>"
#define DS_CALL(name, args)    "<｜tool▁call▁begin｜>" name "<｜tool▁sep｜>" args "<｜tool▁call▁end｜>"
#define KIMI(calls)            "<|tool_calls_section_begin|>" calls "<|tool_calls_section_end|>"
#define KIMI_CALL(name, args)  "<|tool_call_begin|>" name "<|tool_call_argument_begin|>" args "<|tool_call_end|>"

/* think: NULL: no markers; "in": the reply starts inside thinking; "channel": markers with special tokens. */
static const reply_row rows[] = {
    {"hermes", NULL, "Hi.", "T:Hi."},
    {"hermes", NULL, "<tool_call>\n{\"name\": \"w\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
     "C:w#({\"city\": \"Paris\"})"},
    {"hermes", NULL, "Let me see.\n<tool_call>\n{\"name\": \"w\", \"arguments\": {}}\n</tool_call>",
     "T:Let me see.|C:w#({})"},
    {"hermes", NULL,
     "<tool_call>\n{\"name\": \"w\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"v\", \"arguments\": "
     "{\"a\": [1, {\"b\": null}]}}\n</tool_call>\n",
     "C:w#({})|C:v#({\"a\": [1, {\"b\": null}]})"},
    {"hermes", NULL, "<tool_call>{\"arguments\": {\"days\": 2}, \"name\": \"w\"}</tool_call>", "C:w#({\"days\": 2})"},
    {"hermes", NULL, "<tool_call>\n{\"name\": \"w\", \"arg", "T:<tool_call>\n{\"name\": \"w\", \"arg"},
    {"hermes", NULL, "<tool_call>\n{\"name\": \"w\", \"arguments\": {\"city\": \"Pa", "C:w#({\"city\": \"Pa)"},
    {"hermes", NULL, "<tool_call>\nnot json\n</tool_call>", "T:<tool_call>\nnot json\n</tool_call>"},
    {"hermes", NULL, "<tool_call>{\"name\": \"w\", \"arguments\": {\"city\": \"</tool_call>\"}}</tool_call>",
     "C:w#({\"city\": \"</tool_call>\"})"},
    {"hermes", NULL, "a <tool_", "T:a <tool_"},
    {"hermes", "in", "Hm.\n</think>\n\nYes.", "R:Hm.|T:Yes."},
    {"hermes", "", "<think>\nx\n</think>\n\n<tool_call>{\"name\": \"w\", \"arguments\": {}}</tool_call>",
     "R:x|C:w#({})"},
    {"hermes", "in", "Hm", "R:Hm"},
    {"hermes", "in", "<tool_call>{}\n\nHm\n\n</th</think>a <think>b</think>",
     "R:<tool_call>{}\n\nHm\n\n</th|T:a <think>b</think>"},
    {"hermes", "channel", "{{<|channel>}}thought\nHm{{<channel|>}}Yes", "R:Hm|T:Yes"},
    {"hermes", "channel", "\n{{<|channel>}}thoughtful", "R:ful"},
    {"hermes", "channel", "\n{{<|channel>}}though{{<channel|>}}t", "T:\nthought"},
    {"hermes", "channel", "<|channel>thought", "T:<|channel>thought"},
    {"hermes", "channel", "{{<|channel>}}thou", "T:thou"},
    {"hermes", "", "Yes. </think> <think>", "T:Yes. </think> <think>"},
    {"hermes", "", " <thin air", "T: <thin air"},
    {"hermes", NULL, "<tool_call>{\"name\": \"w\", \"arguments\": \"{\\\"days\\\": 1}\"}</tool_call>",
     "C:w#({\"days\": 1})"},
    {"hermes", NULL, "<tool_call>{\"name\": \"w\"}</tool_call> and text", "C:w#({})|T: and text"},
    {"hermes", NULL, "<tool_call>{\"name\": \"w\", \"arguments\": {\"a\": 1,}}</tool_call>ok", "C:w#({\"a\": 1,)|T:ok"},
    {"hermes", NULL,
     "<tool_call>{\"name\": \"w\", \"arguments\": {}}\n<tool_call>{\"name\": \"v\", \"arguments\": {}}</tool_call>",
     "C:w#({})|C:v#({})"},
    {"hermes", NULL, "<tool_call><tool_call>{\"name\": \"w\", \"arguments\": {}}</tool_call>",
     "T:<tool_call>|C:w#({})"},
    {"hermes", NULL, "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
     "T:<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>"},
    {"qwen_xml", NULL, QWEN(PARAM("city", "Paris") PARAM("days", "3") PARAM("on", "True") PARAM("tags", "[\"a\"]")),
     "C:w#({\"city\": \"Paris\", \"days\": 3, \"on\": true, \"tags\": [\"a\"]})"},
    {"qwen_xml", NULL, QWEN(PARAM("days", "three")), "C:w#({\"days\": \"three\"})"},
    {"qwen_xml", NULL, QWEN(PARAM("city", "a\n\nb </parameter> c")), "C:w#({\"city\": \"a\\n\\nb </parameter> c\"})"},
    {"qwen_xml", NULL, "<function=w>\n</function>", "C:w#({})"},
    {"qwen_xml", NULL, "See <function=w> and\n<function=x>", "T:See <function=w> and\n<function=x>"},
    {"qwen_xml", NULL, "Now\n<function=w>\n" PARAM("days", "1.0") "</function>\n</tool_call>\n",
     "T:Now|C:w#({\"days\": 1})"},
    {"qwen_xml", NULL, QWEN(PARAM("when", "None") PARAM("unit", "1") PARAM("deg", "1e3") PARAM("x", "[1]")),
     "C:w#({\"when\": null, \"unit\": 1, \"deg\": 1e3, \"x\": \"[1]\"})"},
    {"qwen_xml", NULL, QWEN(PARAM("when", "now") PARAM("unit", "C") PARAM("when", "later")),
     "C:w#({\"when\": \"now\", \"unit\": \"C\"})"},
    {"qwen_xml", NULL, QWEN(PARAM("city", "\"q\" \\ \t")), "C:w#({\"city\": \"\\\"q\\\" \\\\ \\t\"})"},
    {"qwen_xml", NULL, "<tool_call>\n<function=w>\n<parameter=city>\nPar", "C:w#({\"city\": \"Par)"},
    {"qwen_xml", NULL, "<tool_call>\n<function=w>\n<parameter=days>\n1\n</parameter>\n", "C:w#({\"days\": 1})"},
    {"qwen_xml", NULL, "<tool_call>\n<function=w>\n<parameter=days>\n1", "C:w#)"},
    {"llama3", NULL, "{\"name\": \"w\", \"parameters\": {\"city\": \"Rome\"}}", "C:w#({\"city\": \"Rome\"})"},
    {"llama3", NULL, "{\"name\": \"unknown\", \"parameters\": {}}", "T:{\"name\": \"unknown\", \"parameters\": {}}"},
    {"llama3", NULL, "{\"a\": 1}", "T:{\"a\": 1}"},
    {"llama3", NULL, "Set {\"name\": \"w\", \"parameters\": {}}", "T:Set {\"name\": \"w\", \"parameters\": {}}"},
    {"llama3", NULL,
     "{\"type\": \"function\", \"name\": \"w\", \"parameters\": {}}; {\"name\": \"w\", \"parameters\": {\"days\": 1}}",
     "C:w#({})|C:w#({\"days\": 1})"},
    {"llama3", NULL, "{{<|python_tag|>}}w.call(city=\"Rome\")", "C:w#({\"city\": \"Rome\"})"},
    {"llama3", NULL, "{{<|python_tag|>}}w.call(city=\"R)\\\"\", on=\"a\")",
     "C:w#({\"city\": \"R)\\\"\", \"on\": \"a\"})"},
    {"llama3", NULL, "{{<|python_tag|>}}w.call()", "C:w#({})"},
    {"llama3", NULL, "{{<|python_tag|>}}{\"name\": \"w\", \"parameters\": {}}", "C:w#({})"},
    {"llama3", NULL, "{{<|python_tag|>}}print(1)", "T:<|python_tag|>print(1)"},
    {"mistral3", NULL, "{{[TOOL_CALLS]}} [{\"name\": \"w\", \"arguments\": {\"days\": 1}, \"id\": \"abcdefgh1\"}]",
     "C:w#abcdefgh1({\"days\": 1})"},
    {"mistral3", NULL, "{{[TOOL_CALLS]}}[{\"name\": \"w\", \"arguments\": {}}, {\"name\": \"v\", \"arguments\": {}}]",
     "C:w#({})|C:v#({})"},
    {"mistral3", NULL, "{{[TOOL_CALLS]}}[{\"name\": \"w\", \"arguments\": {\"days\": 1", "C:w#({\"days\": 1)"},
    {"mistral11", NULL, "ok{{[TOOL_CALLS]}}w{{[ARGS]}}{\"days\": 1}{{[TOOL_CALLS]}}w{{[ARGS]}}{}",
     "T:ok|C:w#({\"days\": 1})|C:w#({})"},
    {"mistral11", NULL, "{{[TOOL_CALLS]}}w{{[CALL_ID]}}abc123XYZ{{[ARGS]}}{}", "C:w#abc123XYZ({})"},
    {"mistral11", NULL, "[TOOL_CALLS]", "T:[TOOL_CALLS]"},
    {"mistral11", NULL, "a{{</s>}}b", "T:ab"},
    {"glm", NULL, "<tool_call>w\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
     "C:w#({\"days\": 3})"},
    {"glm", NULL, "<tool_call>w</tool_call><tool_call>w<arg_key>city</arg_key><arg_value>a</arg_value></tool_call>",
     "C:w#({})|C:w#({\"city\": \"a\"})"},
    {"seed", NULL, "<seed:tool_call>\n<function=w>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
     "C:w#({\"days\": 3})"},
    {"invoke", NULL,
     "<minimax:tool_call>\n<invoke name=\"w\">\n<parameter name=\"city\">a</parameter>\n</invoke>\n<invoke "
     "name=\"v\">\n</invoke>\n</minimax:tool_call>",
     "C:w#({\"city\": \"a\"})|C:v#({})"},
    {"dsml", NULL,
     "ok\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"w\">\n" DSML("city", "true", "3")
         DSML("days", "false", "3") DSML_END "<｜DSML｜invoke name=\"v\">\n" DSML_END "</｜DSML｜function_calls>",
     "T:ok|C:w#({\"city\": \"3\", \"days\": 3})|C:v#({})"},
    {"dsml4", NULL,
     "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"w\">\n" DSML("city", "true", "</a> b")
         DSML("tags", "false", "[{}, 1]") DSML_END "</｜DSML｜tool_calls>",
     "C:w#({\"city\": \"</a> b\", \"tags\": [{}, 1]})"},
    {"dsml", NULL, "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"w\">\n" DSML("on", "false", "tru"),
     "C:w#({\"on\": \"tru\"})"},
    {"dsml", NULL,
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"w\">\n" DSML("city", "false", "\"a\\n\"")
         DSML("on", "true", "\"a\"") DSML_END "</｜DSML｜function_calls>",
     "C:w#({\"city\": \"a\\n\", \"on\": \"\\\"a\\\"\"})"},
    {"dsml", NULL, "<｜DSML｜function_calls>\nno", "T:<｜DSML｜function_calls>\nno"},
    {"deepseek", NULL, "a" DEEPSEEK(DS_CALL("w", "{\"days\": 1}") DS_CALL("v", "{}")),
     "T:a|C:w#({\"days\": 1})|C:v#({})"},
    {"deepseek", NULL, DEEPSEEK(DS_CALL("function", "w\n```json\n{\"days\": 1}\n```") "\n" DS_CALL("v", "{}")),
     "C:w#({\"days\": 1})|C:v#({})"},
    {"deepseek", NULL, DEEPSEEK(DS_CALL("w", "{\"city\": \"<｜tool▁call▁end｜>")),
     "C:w#({\"city\": \"<｜tool▁call▁end｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>)"},
    {"deepseek", NULL, DEEPSEEK(DS_CALL("w", "{\"days\": }")) "b", "C:w#({\"days\": )|T:b"},
    {"kimi", NULL, "a " KIMI(KIMI_CALL("functions.w:0", "{\"days\": 1}") KIMI_CALL("functions.v.x:1", "{}")),
     "T:a|C:w#functions.w:0({\"days\": 1})|C:v.x#functions.v.x:1({})"},
    {"kimi", NULL, KIMI(KIMI_CALL("w", "{}")), "C:w#w({})"},
    {"kimi", NULL, KIMI(KIMI_CALL("functions.:0", "{}")), "T:" KIMI(KIMI_CALL("functions.:0", "{}"))},
    {"gemma4", NULL, "<|tool_call>call:w{city:<|\"|>a \"b\", {c:1}<|\"|>,days:3}<tool_call|>",
     "C:w#({\"city\":\"a \\\"b\\\", {c:1}\",\"days\":3})"},
    {"gemma4", NULL,
     "<|tool_call>call:w{a:{b:[1,<|\"|>x<|\"|>,true],<|\"|>c "
     "d<|\"|>:null},e:{},f:[]}<tool_call|><|tool_call>call:v{}<tool_call|>.",
     "C:w#({\"a\":{\"b\":[1,\"x\",true],\"c d\":null},\"e\":{},\"f\":[]})|C:v#({})|T:."},
    {"gemma4", NULL, "<|tool_call>call:w{\"city\": \"a <|\", \"x:y\": {\"z\": 1}, days: 3}<tool_call|>",
     "C:w#({\"city\": \"a <|\", \"x:y\": {\"z\": 1}, \"days\": 3})"},
    {"gemma4", NULL, "<|tool_call>call:w{city:<|\"|>Par", "C:w#({\"city\":\"Par)"},
    {"gemma4", NULL, "<|tool_call>call:w{days:x}<tool_call|>", "C:w#({\"days\":)"},
    {"nemotron", NULL,
     "Let me\n<TOOLCALL>[{\"name\": \"w\", \"arguments\": {\"days\": 1}}, {\"name\": \"v\"}]</TOOLCALL>",
     "T:Let me|C:w#({\"days\": 1})|C:v#({})"},
    {"nemotron", NULL, "<TOOLCALL>{\"name\": \"w\", \"arguments\": {}}", "C:w#({})"},
    {"granite", NULL, "<|tool_call|>[{\"name\": \"w\", \"arguments\": {\"days\": 1}}]", "C:w#({\"days\": 1})"},
    {"cohere", NULL,
     "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"w\", \"parameters\": {\"days\": "
     "1}}\n]<|END_ACTION|>",
     "C:w#0({\"days\": 1})"},
    {NULL, NULL, "<tool_call>\n{\"name\": \"w\", \"arguments\": {}}\n</tool_call>",
     "T:<tool_call>\n{\"name\": \"w\", \"arguments\": {}}\n</tool_call>"},
};

static call_rules rules_of(const reply_row *r)
{
    const bool channel = r->think && strcmp(r->think, "channel") == 0;
    return (call_rules){.format = r->format ? call_format_named(r->format) : NULL,
                        .tools = tools,
                        .think_open = channel    ? "<|channel>thought"
                                      : r->think ? "<think>"
                                                 : NULL,
                        .think_close = channel    ? "<channel|>"
                                       : r->think ? "</think>"
                                                  : NULL,
                        .thinking = r->think && strcmp(r->think, "in") == 0,
                        .special = special_marks};
}

/* A small generator of random numbers. */
static unsigned draw(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

/* Checks that random cuts, cuts at every byte, and one piece give the same events. */
static void check_cuts(const call_rules *r, const char *reply, size_t n, const char *want, size_t row)
{
    unsigned char *cut = calloc(n + 1, 1);
    unsigned seed = 7;
    int different = 0, invalid = 0;
    event_log got;
    err e = {0};
    for (int k = 0; k < CUTS; k++) {
        for (size_t i = 0; i < n; i++) cut[i] = k == 0 ? 1 : (unsigned char)draw(&seed);
        if (parse_reply(&got, r, reply, n, cut, &e) != ST_OK || strcmp(got.text, want) != 0) different++;
        invalid += !got.valid;
    }
    ok(different == 0 && invalid == 0, "row %zu: %d cuts give the same events (%d differ, %d invalid)", row, CUTS,
       different, invalid);
    free(cut);
}

static void check_rows(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const reply_row *row = &rows[i];
        call_rules r = rules_of(row);
        event_log got;
        err e = {0};
        is_ok(parse_reply(&got, &r, row->reply, strlen(row->reply), NULL, &e), &e, "row %zu is parsed", i);
        is_str(got.text, row->want, "row %zu, %s", i, row->format ? row->format : "no format");
        check_cuts(&r, row->reply, strlen(row->reply), row->want, i);
    }
}

/* Random replies of markers and text: the cuts do not matter, and arguments are a prefix of JSON. */
static void check_random(void)
{
    static const char *const parts[] = {"<tool_call>",
                                        "</tool_call>",
                                        "{\"name\": \"w\", ",
                                        "\"arguments\": {",
                                        "\"a\": 1",
                                        "}}",
                                        "\n",
                                        "<function=w>",
                                        "<parameter=days>",
                                        "</parameter>",
                                        "</function>",
                                        "x",
                                        "{{[TOOL_CALLS]}}",
                                        "w",
                                        "{{[ARGS]}}",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        "<think>",
                                        "</think>",
                                        "<",
                                        " ",
                                        "\"id\": \"abcdefgh1\"",
                                        "<arg_key>",
                                        "</arg_key>",
                                        "<arg_value>",
                                        "</arg_value>",
                                        "{{<|python_tag|>}}",
                                        ".call(",
                                        "city=\"",
                                        "\")",
                                        "<｜DSML｜function_calls>",
                                        "<｜DSML｜invoke name=\"w\">",
                                        DSML("days", "false", "1"),
                                        DSML("city", "true", "1"),
                                        DSML_END,
                                        "<｜tool▁calls▁begin｜>",
                                        "<｜tool▁call▁begin｜>",
                                        "<｜tool▁sep｜>",
                                        "<｜tool▁call▁end｜>",
                                        "```json",
                                        "<|tool_calls_section_begin|>",
                                        "<|tool_call_begin|>",
                                        "functions.w:0",
                                        "<|tool_call_argument_begin|>",
                                        "<|tool_call>",
                                        "call:w{",
                                        "days:",
                                        "<|\"|>",
                                        "<tool_call|>",
                                        "<TOOLCALL>",
                                        "</TOOLCALL>"};
    enum { REPLIES = 2000, PARTS = sizeof parts / sizeof *parts };
    unsigned seed = 1;
    int different = 0, invalid = 0, called = 0, n_formats = 0;
    while (call_formats[n_formats].name) n_formats++;
    for (int k = 0; k < REPLIES; k++) {
        char reply[4096] = "";
        unsigned char cut[4096];
        event_log whole, pieces;
        err e = {0};
        call_rules r = rules_of(&(reply_row){.format = call_formats[k % n_formats].name, .think = k % 3 ? "" : NULL});
        for (unsigned i = draw(&seed) % 24; i > 0; i--) strcat(reply, parts[draw(&seed) % PARTS]);
        for (size_t i = 0; i < sizeof cut; i++) cut[i] = (unsigned char)draw(&seed);
        if (parse_reply(&whole, &r, reply, strlen(reply), NULL, &e) != ST_OK) different++;
        if (parse_reply(&pieces, &r, reply, strlen(reply), cut, &e) != ST_OK) different++;
        if (strcmp(whole.text, pieces.text) != 0) different++, printf("# %s: %s\n", r.format->name, reply);
        invalid += !whole.valid;
        called += strstr(whole.text, "C:") != NULL;
    }
    is_int(different, 0, "%d random replies: equal events however they are cut", REPLIES);
    is_int(invalid, 0, "their arguments are prefixes of JSON; %d replies have calls", called);
    ok(called > 5, "some have calls");
}

static void check_marks(void)
{
    static const char *const texts[][2] = {
        {"a <tool_call> b", "hermes"},        {"<tool_call> <function= <parameter=", "qwen_xml"},
        {"<tool_call> <arg_key>", "glm"},     {"[TOOL_CALLS]", "mistral3"},
        {"[TOOL_CALLS] [ARGS]", "mistral11"}, {"nothing", NULL}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *got = NULL;
        for (const call_format *f = call_formats; f->name; f++)
            if (call_format_marked(f, texts[i][0]) && !got) got = f->name;
        is_str(got ? got : "none", texts[i][1] ? texts[i][1] : "none", "marks: %s", texts[i][0]);
    }
    ok(!call_format_named("nobody"), "no format of another name");
}

static void check_memory(void)
{
    const call_rules r = rules_of(&rows[22]);
    event_log got;
    for (long k = 1; k < 100; k++) {
        err e = {0};
        mem_test_fail_at(k);
        const status st = parse_reply(&got, &r, rows[22].reply, strlen(rows[22].reply), NULL, &e);
        mem_test_fail_at(0);
        if (st != ST_OK && st != ST_NOMEM) ok(false, "allocation %ld: %s", k, e.msg);
        if (st == ST_OK) {
            ok(k > 5, "each of %ld allocations may fail", k - 1);
            return;
        }
    }
    ok(false, "allocations end");
}

int main(void)
{
    tools = json_loads(tools_text, 0, NULL);
    if (!ok(tools, "the tools are JSON")) return tap_done();
    check_rows();
    check_random();
    check_marks();
    check_memory();
    json_decref(tools);
    return tap_done();
}
