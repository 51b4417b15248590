/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/call_format.h"

#include <stddef.h>
#include <string.h>

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
