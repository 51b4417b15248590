/* SPDX-License-Identifier: MIT */
/* Vocabularies of tiktoken, whose ids are ranks: Llama-3's tokenizer.model, lines of "base64(token) rank", and
 * Mistral's tekken.json. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "tokenizer/impl.h"

enum { N_SPECIAL = 256, MAX_TOKEN = 4096, WHAT_MAX = 240 };

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes s[0..n) to out (3/4 n bytes). False if it is not padded base64. */
static bool base64_decode(const char *s, size_t n, char *out, size_t *n_out)
{
    size_t m = 0, pad = 0;
    if (n == 0 || n % 4 != 0) return false;
    while (pad < 2 && s[n - 1 - pad] == '=') pad++;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t v = 0;
        for (size_t k = 0; k < 4; k++) {
            int d = i + k < n - pad ? base64_digit(s[i + k]) : 0;
            if (d < 0) return false;
            v = v << 6 | (uint32_t)d;
        }
        for (size_t k = 0; k < 3; k++) out[m++] = (char)(v >> (16 - 8 * k) & 0xff);
    }
    *n_out = m - pad;
    return true;
}

/* Parses a line: the token's base64 and its rank. */
static bool parse_line(const char *line, size_t len, size_t *n_base64, int32_t *rank)
{
    const char *space = memchr(line, ' ', len);
    if (!space || space == line) return false;
    *n_base64 = (size_t)(space - line);
    const size_t n_digits = len - *n_base64 - 1;
    if (n_digits == 0 || n_digits > 8) return false;
    *rank = 0;
    for (size_t i = 0; i < n_digits; i++) {
        if (space[1 + i] < '0' || space[1 + i] > '9') return false;
        *rank = *rank * 10 + (space[1 + i] - '0');
    }
    return true;
}

static size_t line_length(const char *s, size_t n)
{
    const char *nl = memchr(s, '\n', n);
    return nl ? (size_t)(nl - s) : n;
}

bool tiktoken_looks_like(const char *text, size_t n)
{
    size_t len = line_length(text, n < 2 * MAX_TOKEN ? n : 2 * MAX_TOKEN), k;
    int32_t rank;
    if (len && text[len - 1] == '\r') len--;
    if (!parse_line(text, len, &k, &rank)) return false;
    for (size_t i = 0; i < k; i++)
        if (base64_digit(text[i]) < 0 && text[i] != '=') return false;
    return true;
}

static status load_lines(bpe *b, const char *text, size_t n, const char *name, err *e)
{
    char bytes[MAX_TOKEN], what[WHAT_MAX];
    size_t n_line = 0;
    for (size_t i = 0; i < n;) {
        const char *line = text + i;
        size_t len = line_length(line, n - i), k, m;
        int32_t rank;
        i += len + 1;
        n_line++;
        if (len && line[len - 1] == '\r') len--;
        if (len == 0) continue;
        snprintf(what, sizeof what, "%.180s: line %zu", name, n_line);
        if (!parse_line(line, len, &k, &rank)) return err_set(e, ST_FORMAT, "%s: not a base64 token and a rank", what);
        if (k > MAX_TOKEN) return err_set(e, ST_FORMAT, "%s: token of %zu bytes is too long", what, k / 4 * 3);
        if (!base64_decode(line, k, bytes, &m) || m == 0) return err_set(e, ST_FORMAT, "%s: bad base64", what);
        TRY(bpe_add_token(b, rank, bytes, m, true, what, e));
    }
    return ST_OK;
}

/* Adds the special tokens of Llama 3.1, then reserved ones up to 256. Llama 3 has reserved ones at 4, 8 and 10. Source:
 * meta-llama/llama-models, llama3/tokenizer.py. */
static status add_specials(tokenizer *t, int32_t base, const char *name, err *e)
{
    static const char *const first[] = {
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>",
        "<|finetune_right_pad_id|>",
        "<|reserved_special_token_2|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
    };
    const int n_first = (int)(sizeof first / sizeof *first);
    for (int i = 0; i < N_SPECIAL; i++) {
        char text[48];
        if (i < n_first) snprintf(text, sizeof text, "%s", first[i]);
        else snprintf(text, sizeof text, "<|reserved_special_token_%d|>", i - n_first + 3);
        added_token a = {.text = text, .n = strlen(text), .id = base + i, .special = true};
        TRY(added_push(&t->added, &a, name, e));
    }
    t->guessed_added = true;
    t->bos = base;
    t->adds_bos = true;
    return ST_OK;
}

status tiktoken_load(tokenizer *t, const char *text, size_t n, const char *name, err *e)
{
    size_t n_lines = 1;
    for (size_t i = 0; i < n; i++) n_lines += text[i] == '\n';
    TRY(bpe_create(&t->bpe, n_lines, 0, BPE_BY_RANK | BPE_WHOLE_WORDS, e));
    TRY(load_lines(t->bpe, text, n, name, e));
    const int missing = bpe_finish(t->bpe, -1);
    if (missing) return err_set(e, ST_FORMAT, "%s: %d of the 256 bytes have no token", name, missing);
    if ((size_t)bpe_n_ids(t->bpe) != bpe_n_tokens(t->bpe))
        return err_set(e, ST_FORMAT, "%s: %zu tokens, but ranks up to %d", name, bpe_n_tokens(t->bpe),
                       bpe_n_ids(t->bpe) - 1);
    TRY(pretok_create(&t->pre, e));
    TRY(pretok_add_regex(t->pre, PRETOK_LLAMA3, PRETOK_ISOLATED, name, e));
    return add_specials(t, bpe_n_ids(t->bpe), name, e);
}

/* ---- tekken.json ---- */

/* The control tokens of files without a list of them. Source: mistral-common, tekken.py. */
static const char *const tekken_specials[] = {
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
};

/* Built-in templates by the version of a file. */
static const struct {
    const char *version, *name;
} tekken_templates[] = {{"v3", "mistral-v3"}, {"v7", "mistral-v7"}, {"v11", "mistral-v7"}, {"v13", "mistral-v7"}};

bool tekken_looks_like(const json_t *root)
{
    return json_is_array(json_object_get(root, "vocab"));
}

static status tekken_size(const json_t *config, const char *key, json_int_t most, json_int_t *out, const char *name,
                          err *e)
{
    const json_t *v = json_object_get(config, key);
    *out = json_integer_value(v);
    if (json_is_integer(v) && *out >= 1 && *out <= most) return ST_OK;
    return err_set(e, ST_FORMAT, "%.180s: config.%s is not an integer from 1 to %lld", name, key, (long long)most);
}

static status tekken_token(bpe *b, const json_t *entry, int32_t rank, int32_t id, const char *name, err *e)
{
    char bytes[MAX_TOKEN], what[WHAT_MAX];
    const json_t *given = json_object_get(entry, "rank");
    const char *text = json_string_value(json_object_get(entry, "token_bytes"));
    size_t n = text ? strlen(text) : 0, m;
    snprintf(what, sizeof what, "%.180s: vocab[%d]", name, rank);
    if (!json_is_integer(given) || json_integer_value(given) != rank)
        return err_set(e, ST_FORMAT, "%s: its rank is not %d", what, rank);
    if (n > MAX_TOKEN) return err_set(e, ST_FORMAT, "%s: token of %zu bytes is too long", what, n / 4 * 3);
    if (!base64_decode(text, n, bytes, &m) || m == 0)
        return err_set(e, ST_FORMAT, "%s: token_bytes is not base64", what);
    return bpe_add_token(b, id, bytes, m, true, what, e);
}

static status tekken_push(tokenizer *t, const char *text, json_int_t id, const char *name, err *e)
{
    added_token a = {
        .text = (char *)(uintptr_t)text, .n = strlen(text), .id = (int32_t)id, .special = true}; /* copied */
    if (strcmp(text, "<s>") == 0) t->bos = a.id;
    if (strcmp(text, "</s>") == 0) TRY(token_list_push(&t->eos, a.id, e));
    return added_push(&t->added, &a, name, e);
}

/* Adds the special tokens: those of the list, or the defaults, then <SPECIAL_n>. All of them are control tokens here:
 * no text becomes one. */
static status tekken_add_specials(tokenizer *t, const json_t *list, json_int_t n, const char *name, err *e)
{
    const size_t n_usual = sizeof tekken_specials / sizeof *tekken_specials;
    const bool usual = !list || json_is_null(list);
    const size_t given = usual ? n_usual : json_array_size(list);
    char text[32];
    if (given > (size_t)n)
        return err_set(e, ST_FORMAT, "%s: %zu special tokens, but config.default_num_special_tokens is %lld", name,
                       given, (long long)n);
    for (size_t i = 0; i < (size_t)n; i++) {
        const json_t *entry = json_array_get(list, i), *rank = json_object_get(entry, "rank");
        const char *found = usual && i < n_usual ? tekken_specials[i] : NULL;
        if (!usual && i < given) {
            found = json_string_value(json_object_get(entry, "token_str"));
            if (!found || !json_is_integer(rank) || json_integer_value(rank) != (json_int_t)i)
                return err_set(e, ST_FORMAT, "%s: special_tokens[%zu] has no token_str, or its rank is not %zu", name,
                               i, i);
        }
        if (!found) snprintf(text, sizeof text, "<SPECIAL_%zu>", i);
        TRY(tekken_push(t, found ? found : text, (json_int_t)i, name, e));
    }
    t->adds_bos = t->bos >= 0;
    return ST_OK;
}

status tekken_load(tokenizer *t, const json_t *root, const char *name, err *e)
{
    const json_t *config = json_object_get(root, "config"), *vocab = json_object_get(root, "vocab");
    const char *pattern = json_string_value(json_object_get(config, "pattern"));
    const char *version = json_string_value(json_object_get(config, "version"));
    json_int_t all, special;
    if (!pattern) return err_set(e, ST_FORMAT, "%s: config.pattern is missing or not a string", name);
    TRY(tekken_size(config, "default_vocab_size", BPE_MAX_IDS, &all, name, e));
    TRY(tekken_size(config, "default_num_special_tokens", all - 1, &special, name, e));
    const json_int_t n = all - special;
    if ((size_t)n > json_array_size(vocab))
        return err_set(e, ST_FORMAT, "%s: %zu tokens, but config.default_vocab_size needs %lld", name,
                       json_array_size(vocab), (long long)n);
    TRY(bpe_create(&t->bpe, (size_t)n, 0, BPE_BY_RANK | BPE_WHOLE_WORDS, e));
    for (json_int_t i = 0; i < n; i++)
        TRY(tekken_token(t->bpe, json_array_get(vocab, (size_t)i), (int32_t)i, (int32_t)(special + i), name, e));
    const int missing = bpe_finish(t->bpe, -1);
    if (missing) return err_set(e, ST_FORMAT, "%s: %d of the 256 bytes have no token", name, missing);
    TRY(pretok_create(&t->pre, e));
    TRY(pretok_add_regex(t->pre, pattern, PRETOK_ISOLATED, name, e));
    for (size_t i = 0; i < sizeof tekken_templates / sizeof *tekken_templates; i++)
        if (version && strcmp(version, tekken_templates[i].version) == 0) t->usual_chat = tekken_templates[i].name;
    snprintf(t->describe, sizeof t->describe, "tekken %.8s (tekken.json)", version ? version : "");
    return tekken_add_specials(t, json_object_get(root, "special_tokens"), special, name, e);
}
