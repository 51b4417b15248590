/* SPDX-License-Identifier: MIT */
/* Any bytes as a chat template, and as the messages of a conversation in a built-in one. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/chat.h"
#include "tokenizer/impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Has every special token that a template may need, and a byte alphabet of printable ASCII. */
static tokenizer *make_tokenizer(void)
{
    static const char *const specials[] = {"<|begin_of_text|>",
                                           "<|start_header_id|>",
                                           "<|end_header_id|>",
                                           "<|eot_id|>",
                                           "<|im_start|>",
                                           "<|im_end|>",
                                           "<think>",
                                           "</think>",
                                           "[INST]",
                                           "[/INST]",
                                           "[SYSTEM_PROMPT]",
                                           "[/SYSTEM_PROMPT]",
                                           "</s>"};
    char json[8192];
    size_t k = (size_t)snprintf(json, sizeof json,
                                "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"\\u0120\":0,\"\\u010a\":1");
    for (int c = 33; c < 127; c++)
        k += (size_t)snprintf(json + k, sizeof json - k, ",\"%s%c\":%d", c == '"' || c == '\\' ? "\\" : "", c, c);
    k += (size_t)snprintf(json + k, sizeof json - k,
                          "}},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
                          ",\"added_tokens\":[");
    for (int i = 0; i < (int)(sizeof specials / sizeof *specials); i++)
        k += (size_t)snprintf(json + k, sizeof json - k, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true}",
                              i ? "," : "", 200 + i, specials[i]);
    k += (size_t)snprintf(json + k, sizeof json - k, "]}");
    tokenizer *t;
    err e = {0};
    if (tokenizer_open_json(&t, json, k, "built-in", &e) != ST_OK) {
        fprintf(stderr, "%s\n", e.msg);
        abort();
    }
    return t;
}

static int count_specials(const tokenizer *t, const token_list *l)
{
    int n = 0;
    for (size_t i = 0; i < l->n; i++) n += tokenizer_is_special(t, l->ids[i]);
    return n;
}

static char *copy(const uint8_t *data, size_t n)
{
    char *s = malloc(n + 1);
    if (!s) abort();
    if (n) memcpy(s, data, n);
    s[n] = 0;
    return s;
}

enum { MOST = 1024 };

static status encode(const tokenizer *t, const char *name, const chat_message *m, size_t n, token_list *l, err *e)
{
    json_t *list;
    TRY(chat_messages(&list, m, n, e));
    status st = chat_encode(t, &(chat_input){.messages = list, .name = name}, l, e);
    json_decref(list);
    return st;
}

/* One template, which the last byte chooses. */
static void use(const tokenizer *t, const char *name, const uint8_t *data, size_t n)
{
    char *a = copy(data, n / 2), *b = copy(data + n / 2, n - n / 2), *role = copy(data, n < 12 ? n : 12);
    const chat_message talk[] = {{"system", b}, {"user", a}, {"assistant", b}, {"user", a}};
    const chat_message plain[] = {{"system", "x"}, {"user", "x"}, {"assistant", "x"}, {"user", "x"}};
    const chat_message odd[] = {{role, a}, {"user", b}};
    token_list l = {0}, m = {0};
    err e = {0};
    if (encode(t, name, talk, 4, &l, &e) != ST_OK || encode(t, name, plain, 4, &m, NULL) != ST_OK) abort();
    /* The content of a message does not change the special tokens. */
    if (count_specials(t, &l) != count_specials(t, &m)) abort();
    if (encode(t, name, odd, 2, &l, &e) != ST_OK && !e.msg[0]) abort();
    token_list_free(&l);
    token_list_free(&m);
    free(a);
    free(b);
    free(role);
}

/* The bytes as the model's own template. */
static void parse(tokenizer *t, const uint8_t *data, size_t n)
{
    const chat_message m[] = {{"user", "x"}, {"assistant", "y"}};
    token_list l = {0};
    err e = {0};
    if (chat_set_add(&t->chat, "default", "input", (const char *)data, n, &e) != ST_OK) abort();
    if (encode(t, NULL, m, 1 + n % 2, &l, &e) != ST_OK && !e.msg[0]) abort();
    token_list_free(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static tokenizer *t;
    const char *const *names = chat_template_names();
    size_t count = 0;
    if (n == 0 || n > MOST) return 0;
    if (!t) t = make_tokenizer();
    while (names[count]) count++;
    parse(t, data, n);
    use(t, names[data[n - 1] % count], data, n);
    return 0;
}
