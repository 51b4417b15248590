/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/call_format.h"

#include <stddef.h>
#include <string.h>

#include "tokenizer/call_tags.h"

/* Steps of calls with a tag for the function and for each parameter. */
#define TAGS(close, before, name_end, key_open, key_end, value_end, end)                                               \
    {                                                                                                                  \
        {.op = OP_WHITE}, {.op = OP_MARK, .mark = {before}, .next = {2}},                                              \
            {.op = OP_NAME, .mark = {name_end}, .next = {3}}, {.op = OP_WHITE},                                        \
            {.op = OP_MARK, .mark = {key_open, end}, .next = {5, 7}}, {.op = OP_KEY, .mark = {key_end}, .next = {6}},  \
            {.op = OP_VALUE, .mark = {key_open, end}, .next = {5, 7}, .until = value_end}, {.op = OP_CLOSE},           \
            {.op = OP_WHITE}, {.op = OP_MARK, .mark = {close, before}, .next = {10, 2}},                               \
        {                                                                                                              \
            .op = OP_END                                                                                               \
        }                                                                                                              \
    }

#define DSML_KEY   "<｜DSML｜parameter name=\""
#define DSML_END   "</｜DSML｜invoke>"
#define DSML_UNTIL "</｜DSML｜parameter>"

/* Invocations in a section of DeepSeek, whose parameters say if they are text or JSON. */
#define DSML(row, section)                                                                                             \
    {                                                                                                                  \
        .name = row,                                                                                                   \
        .write = {.first = "<｜DSML｜" section ">\n",                                                                  \
                  .before = "<｜DSML｜invoke name=\"",                                                                 \
                  .after = "\">\n",                                                                                    \
                  .end = DSML_END "\n",                                                                                \
                  .last = "</｜DSML｜" section ">",                                                                    \
                  .key = DSML_KEY,                                                                                     \
                  .value = "\" string=\"true\">",                                                                      \
                  .until = DSML_UNTIL "\n",                                                                            \
                  .json = "\" string=\"false\">"},                                                                     \
        .marks = {"｜DSML｜", section}, .open = "<｜DSML｜" section ">", .close = "</｜DSML｜" section ">", .steps = { \
            {.op = OP_WHITE},                                                                                          \
            {.op = OP_MARK, .mark = {"<｜DSML｜invoke name=\""}, .next = {2}},                                         \
            {.op = OP_NAME, .mark = {"\">"}, .next = {3}},                                                             \
            {.op = OP_WHITE},                                                                                          \
            {.op = OP_MARK, .mark = {DSML_KEY, DSML_END}, .next = {5, 8}},                                             \
            {.op = OP_KEY, .mark = {"\" string=\"true\">", "\" string=\"false\">"}, .next = {6, 7}},                   \
            {.op = OP_VALUE, .mark = {DSML_KEY, DSML_END}, .next = {5, 8}, .until = DSML_UNTIL, .types = TYPE_STRING}, \
            {.op = OP_VALUE, .mark = {DSML_KEY, DSML_END}, .next = {5, 8}, .until = DSML_UNTIL, .types = TYPE_JSON},   \
            {.op = OP_CLOSE},                                                                                          \
            {.op = OP_WHITE},                                                                                          \
            {.op = OP_MARK, .mark = {"</｜DSML｜" section ">", "<｜DSML｜invoke name=\""}, .next = {11, 2}},           \
            {.op = OP_END}                                                                                             \
        }                                                                                                              \
    }

/* One object, or a list of objects, between two markers. */
#define LIST(row, opening, closing, ...)                                                                               \
    {                                                                                                                  \
        .name = row, .write = {.first = opening "[", __VA_ARGS__, .end = "}", .separator = ", ", .last = "]" closing}, \
        .marks = {opening}, .open = opening, .close = closing, .steps = {                                              \
            {.op = OP_WHITE},                                                                                          \
            {.op = OP_FORK, .next = {2, 5}},                                                                           \
            {.op = OP_OBJECT},                                                                                         \
            {.op = OP_WHITE},                                                                                          \
            {.op = OP_MARK, .mark = {closing}, .next = {10}},                                                          \
            {.op = OP_MARK, .mark = {"["}, .next = {6}},                                                               \
            {.op = OP_WHITE},                                                                                          \
            {.op = OP_OBJECT},                                                                                         \
            {.op = OP_WHITE},                                                                                          \
            {.op = OP_MARK, .mark = {",", "]"}, .next = {6, 3}},                                                       \
            {.op = OP_END}                                                                                             \
        }                                                                                                              \
    }

const call_format call_formats[] = {
    {.name = "llama3",
     .write = {.before = "{\"name\": \"", .after = "\", \"parameters\": ", .end = "}", .one = true},
     .marks = {"<|start_header_id|>", "\"parameters\""},
     .open = "<|python_tag|>",
     .whole = true,
     .after_open = 2,
     .steps = {{.op = OP_OBJECT},
               {.op = OP_END},
               {.op = OP_FORK, .next = {0, 3}},
               {.op = OP_NAME, .mark = {".call("}, .next = {4}},
               {.op = OP_PYTHON},
               {.op = OP_END}}},
    {.name = "mistral11",
     .write = {.before = "[TOOL_CALLS]", .after = "[ARGS]"},
     .marks = {"[TOOL_CALLS]", "[ARGS]"},
     .open = "[TOOL_CALLS]",
     .steps = {{.op = OP_NAME, .mark = {"[ARGS]", "[CALL_ID]"}, .next = {2, 1}},
               {.op = OP_ID, .mark = {"[ARGS]"}, .next = {2}},
               {.op = OP_WHITE},
               {.op = OP_ARGS},
               {.op = OP_END}}},
    {.name = "mistral3",
     .write = {.first = "[TOOL_CALLS][",
               .before = "{\"name\": \"",
               .after = "\", \"arguments\": ",
               .end = "}",
               .separator = ", ",
               .last = "]"},
     .marks = {"[TOOL_CALLS]"},
     .without = {"[ARGS]"},
     .open = "[TOOL_CALLS]",
     .close = "]",
     .id_last = true,
     .steps = {{.op = OP_WHITE},
               {.op = OP_MARK, .mark = {"["}, .next = {2}},
               {.op = OP_WHITE},
               {.op = OP_OBJECT},
               {.op = OP_WHITE},
               {.op = OP_MARK, .mark = {",", "]"}, .next = {2, 6}},
               {.op = OP_END}}},
    {.name = "seed",
     .write = {.before = "<seed:tool_call>\n<function=",
               .after = ">\n",
               .end = "</function>\n</seed:tool_call>",
               .separator = "\n",
               .key = "<parameter=",
               .value = ">",
               .until = "</parameter>\n"},
     .marks = {"<seed:tool_call>"},
     .open = "<seed:tool_call>",
     .close = "</seed:tool_call>",
     .steps = TAGS("</seed:tool_call>", "<function=", ">", "<parameter=", ">", "</parameter>", "</function>")},
    {.name = "invoke",
     .write = {.first = "<minimax:tool_call>\n",
               .before = "<invoke name=\"",
               .after = "\">\n",
               .end = "</invoke>\n",
               .last = "</minimax:tool_call>",
               .key = "<parameter name=\"",
               .value = "\">",
               .until = "</parameter>\n"},
     .marks = {"<minimax:tool_call>"},
     .open = "<minimax:tool_call>",
     .close = "</minimax:tool_call>",
     .steps = TAGS("</minimax:tool_call>", "<invoke name=\"", "\">", "<parameter name=\"", "\">", "</parameter>",
                   "</invoke>")},
    DSML("dsml", "function_calls"),
    DSML("dsml4", "tool_calls"),
    {.name = "glm",
     .write = {.before = "<tool_call>",
               .after = "\n",
               .end = "</tool_call>",
               .separator = "\n",
               .key = "<arg_key>",
               .value = "</arg_key>\n<arg_value>",
               .until = "</arg_value>\n"},
     .marks = {"<arg_key>"},
     .open = "<tool_call>",
     .close = "</tool_call>",
     .steps = {{.op = OP_NAME, .mark = {"<arg_key>", "</tool_call>"}, .next = {1, 5}},
               {.op = OP_KEY, .mark = {"</arg_key>"}, .next = {2}},
               {.op = OP_WHITE},
               {.op = OP_MARK, .mark = {"<arg_value>"}, .next = {4}},
               {.op = OP_VALUE, .mark = {"<arg_key>", "</tool_call>"}, .next = {1, 5}, .until = "</arg_value>"},
               {.op = OP_CLOSE},
               {.op = OP_END}}},
    {.name = "qwen_xml",
     .write = {.before = "<tool_call>\n<function=",
               .after = ">\n",
               .end = "</function>\n</tool_call>",
               .separator = "\n",
               .key = "<parameter=",
               .value = ">\n",
               .until = "\n</parameter>\n"},
     .marks = {"<tool_call>", "<function=", "<parameter="},
     .open = "<tool_call>",
     .close = "</tool_call>",
     .bare = "<function=",
     .after_bare = 2,
     .steps = TAGS("</tool_call>", "<function=", ">", "<parameter=", ">", "</parameter>", "</function>")},
    {.name = "deepseek",
     .write = {.first = "<｜tool▁calls▁begin｜>",
               .before = "<｜tool▁call▁begin｜>",
               .after = "<｜tool▁sep｜>",
               .end = "<｜tool▁call▁end｜>",
               .last = "<｜tool▁calls▁end｜>"},
     .marks = {"<｜tool▁calls▁begin｜>"},
     .open = "<｜tool▁calls▁begin｜>",
     .close = "<｜tool▁calls▁end｜>",
     .steps = {{.op = OP_WHITE},
               {.op = OP_MARK, .mark = {"<｜tool▁call▁begin｜>"}, .next = {2}},
               {.op = OP_NAME, .mark = {"<｜tool▁sep｜>"}, .next = {3}},
               {.op = OP_FORK, .next = {6, 4}}, /* R1: function, and the name in front of a block of code */
               {.op = OP_NAME, .mark = {"```json"}, .next = {5}},
               {.op = OP_WHITE},
               {.op = OP_ARGS},
               {.op = OP_WHITE},
               {.op = OP_MARK, .mark = {"<｜tool▁call▁end｜>", "```"}, .next = {9, 7}},
               {.op = OP_WHITE},
               {.op = OP_MARK, .mark = {"<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"}, .next = {11, 2}},
               {.op = OP_END}}},
    {.name = "kimi",
     .write = {.first = "<|tool_calls_section_begin|>",
               .before = "<|tool_call_begin|>functions.",
               .number = ":",
               .after = "<|tool_call_argument_begin|>",
               .end = "<|tool_call_end|>",
               .last = "<|tool_calls_section_end|>"},
     .marks = {"<|tool_calls_section_begin|>"},
     .open = "<|tool_calls_section_begin|>",
     .close = "<|tool_calls_section_end|>",
     .steps = {{.op = OP_WHITE},
               {.op = OP_MARK, .mark = {"<|tool_call_begin|>"}, .next = {2}},
               {.op = OP_PATH, .mark = {"<|tool_call_argument_begin|>"}, .next = {3}},
               {.op = OP_WHITE},
               {.op = OP_ARGS},
               {.op = OP_WHITE},
               {.op = OP_MARK, .mark = {"<|tool_call_end|>"}, .next = {7}},
               {.op = OP_WHITE},
               {.op = OP_MARK, .mark = {"<|tool_calls_section_end|>", "<|tool_call_begin|>"}, .next = {9, 2}},
               {.op = OP_END}}},
    {.name = "gemma4",
     .write = {.before = "<|tool_call>call:", .end = "<tool_call|>"}, /* plain JSON, which the parser reads too */
     .marks = {"<|tool_call>"},
     .open = "<|tool_call>",
     .close = "<tool_call|>",
     .steps = {{.op = OP_MARK, .mark = {"call:"}, .next = {1}},
               {.op = OP_NAME, .mark = {"{"}, .next = {2}},
               {.op = OP_BARE, .mark = {"<|\"|>"}},
               {.op = OP_WHITE},
               {.op = OP_MARK, .mark = {"<tool_call|>"}, .next = {5}},
               {.op = OP_END}}},
    {.name = "hermes",
     .write = {.before = "<tool_call>\n{\"name\": \"",
               .after = "\", \"arguments\": ",
               .end = "}\n</tool_call>",
               .separator = "\n"},
     .marks = {"<tool_call>"},
     .without = {"<function=", "<arg_key>"},
     .open = "<tool_call>",
     .close = "</tool_call>",
     .steps = {{.op = OP_WHITE},
               {.op = OP_OBJECT},
               {.op = OP_WHITE},
               {.op = OP_MARK, .mark = {"</tool_call>"}, .next = {4}},
               {.op = OP_END}}},
    LIST("nemotron", "<TOOLCALL>", "</TOOLCALL>", .before = "{\"name\": \"", .after = "\", \"arguments\": "),
    LIST("granite", "<|tool_call|>", "<|/tool_call|>", .before = "{\"name\": \"", .after = "\", \"arguments\": "),
    LIST("cohere", "<|START_ACTION|>", "<|END_ACTION|>", .before = "{\"tool_name\": \"",
         .after = "\", \"parameters\": "),
    {.name = NULL}};

const call_format *call_format_named(const char *name)
{
    for (const call_format *f = call_formats; f->name; f++)
        if (strcmp(f->name, name) == 0) return f;
    return NULL;
}

bool call_format_marked(const call_format *f, const char *text)
{
    bool has = true;
    for (int i = 0; i < 3 && f->marks[i]; i++) has &= strstr(text, f->marks[i]) != NULL;
    for (int i = 0; i < 2 && f->without[i]; i++) has &= strstr(text, f->without[i]) == NULL;
    return has;
}
