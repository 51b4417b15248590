/* SPDX-License-Identifier: MIT */
/* A body of a request from outside: whatever is taken is within the limits that the scheduler relies on. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "serve/api.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    api_request r;
    api_error e = {0};
    const call_support calls = {.format = &call_formats[data[0] >> 5], .described = data[0] & 64};
    const api_rules rules = {.strict = data[0] & 2, .sampling = api_sampling(), .calls = &calls};
    bool chat = data[0] & 1, lens = data[0] & 4;
    api_kind of = lens ? API_LENS : chat ? API_CHAT : API_COMPLETION;
    if (data[0] & 8) of = data[0] & 16 ? API_RESPONSE : API_MESSAGE;
    if (data[0] & 8) chat = true, lens = false;
    const char *body = (const char *)data + 1;
    if (!api_read(&r, of, body, size - 1, &rules, &e)) {
        char *text = api_error_text(&e);
        if (e.http < 400 || !text) abort();
        free(text);
        return 0;
    }
    if (lens) chat = r.chat;
    if (lens && (r.n_strategies < 1 || r.n_strategies > API_MAX_STRATEGIES || r.max_tokens < 1)) abort();
    if (r.n < 1 || r.n > API_MAX_CHOICES || r.n_stop > API_MAX_STOPS || r.top_logprobs > API_MAX_LOGPROBS) abort();
    if (chat ? json_array_size(r.talk.messages) == 0 : r.n_prompts == 0 || r.n_prompts > API_MAX_PROMPTS) abort();
    if (!(r.sampling.temp >= 0) || r.max_tokens < -1) abort();
    for (size_t i = 0; i < json_array_size(r.talk.messages); i++)
        if (!json_is_string(json_object_get(json_array_get(r.talk.messages, i), "role"))) abort();
    for (int i = 0; i < r.n_stop; i++)
        if (!*r.stop[i]) abort();
    api_free(&r);
    return 0;
}
