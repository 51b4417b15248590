/* SPDX-License-Identifier: MIT */
/* Any bytes as a reply: the first selects the format, the second cuts the text. The events do not depend on the cuts,
 * and arguments are a prefix of JSON. */
#include "config.h"

#include <stdint.h>

#include "tests/unit/calls_util.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static json_t *tools;
    static event_log whole, pieces;
    unsigned char cut[2048];
    err e = {0};
    if (n < 3 || n > sizeof cut) return 0;
    if (!tools && !(tools = json_loads(tools_text, 0, NULL))) abort();
    int n_formats = 0;
    while (call_formats[n_formats].name) n_formats++;
    const bool thinks = data[0] & 0x80, channel = data[1] & 2;
    const call_rules r = {.format = &call_formats[data[0] % n_formats],
                          .alone = data[1] & 4,
                          .tools = tools,
                          .think_open = !thinks   ? NULL
                                        : channel ? "<|channel>thought"
                                                  : "<think>",
                          .think_close = !thinks   ? NULL
                                         : channel ? "<channel|>"
                                                   : "</think>",
                          .thinking = data[0] & 0x40,
                          .special = data[1] & 1 ? special_marks : NULL};
    for (size_t i = 0; i < n; i++) cut[i] = (unsigned char)((data[1] >> (i % 7)) ^ data[i]);
    if (parse_reply(&whole, &r, (const char *)data + 2, n - 2, NULL, &e) != ST_OK) abort();
    if (parse_reply(&pieces, &r, (const char *)data + 2, n - 2, cut, &e) != ST_OK) abort();
    if (!whole.valid || whole.n != pieces.n || memcmp(whole.text, pieces.text, whole.n) != 0) abort();
    return 0;
}
