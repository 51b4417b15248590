/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/prompt.h"

#include <stdio.h>
#include <string.h>

#include "cli/values.h"
#include "kernels/base/mem.h"

/* ---- templates ---- */

/* Returns the field whose name begins at s; NULL: none. */
static const prompt_field *field_at(const char *s, const prompt_field *f, size_t n)
{
    for (size_t i = 0; *s == '{' && i < n; i++)
        if (strncmp(s, f[i].name, strlen(f[i].name)) == 0) return &f[i];
    return NULL;
}

status prompt_append(prompt_text *text, const char *template, const prompt_field *f, size_t n, err *e)
{
    str_add(text, "", 0);
    while (*template) {
        const prompt_field *p = field_at(template, f, n);
        str_add(text, p ? p->value.s : template, p ? p->value.n : 1);
        template += p ? strlen(p->name) : 1;
    }
    return str_check(text, e);
}

status prompt_fill(prompt_text *out, const char *template, const prompt_field *f, size_t n, err *e)
{
    *out = (prompt_text){0};
    status st = prompt_append(out, template, f, n, e);
    if (st != ST_OK) str_free(out);
    return st;
}

status prompt_replace(prompt_text *text, utf8_text marker, utf8_text value, err *e)
{
    str_replace(text, marker, value);
    return str_check(text, e);
}

status prompt_add(prompt_text *text, const char *s, size_t n, err *e)
{
    str_add(text, s, n);
    return str_check(text, e);
}

status prompt_puts(prompt_text *text, const char *s, err *e)
{
    return prompt_add(text, s, strlen(s), e);
}

/* Writes a byte in the form it has in a quoted Python string. */
static void spell_byte(char out[8], char c, char quote)
{
    const unsigned char u = (unsigned char)c;
    if (c == quote || c == '\\') snprintf(out, 8, "\\%c", c);
    else if (c == '\n' || c == '\t' || c == '\r') snprintf(out, 8, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
    else if (u < 32 || u == 127) snprintf(out, 8, "\\x%02x", u);
    else snprintf(out, 8, "%c", c);
}

status prompt_add_repr(prompt_text *text, utf8_text s, err *e)
{
    char quote = memchr(s.s, '\'', s.n) && !memchr(s.s, '"', s.n) ? '"' : '\'', spelled[8];
    TRY(prompt_add(text, &quote, 1, e));
    for (size_t i = 0; i < s.n; i++) {
        spell_byte(spelled, s.s[i], quote);
        TRY(prompt_puts(text, spelled, e));
    }
    return prompt_add(text, &quote, 1, e);
}

/* ---- truncation ---- */

/* Appends the text of ids. */
static status add_decoded(prompt_text *out, const tokenizer *tok, const int32_t *ids, size_t n, bool clean, err *e)
{
    char *part;
    size_t len;
    TRY(tokenizer_decode(tok, ids, n, false, &part, &len, e));
    if (clean) tokenizer_clean_up(part, &len);
    status st = prompt_add(out, part, len, e);
    mem_free(part);
    return st;
}

/* Appends the text of the kept ids, whose list it modifies. */
static status decode_rest(prompt_text *out, const tokenizer *tok, const token_list *l, const prompt_cut *cut, err *e)
{
    const int32_t *last = l->ids + l->n - cut->last;
    if (cut->joined) {
        memmove(l->ids + cut->first, last, cut->last * sizeof *last);
        return add_decoded(out, tok, l->ids, cut->first + cut->last, cut->clean, e);
    }
    TRY(add_decoded(out, tok, l->ids, cut->first, cut->clean, e));
    return add_decoded(out, tok, last, cut->last, cut->clean, e);
}

status prompt_truncate(prompt_text *text, const tokenizer *tok, const prompt_cut *cut, size_t *n_tokens, err *e)
{
    token_list l = {0};
    prompt_text rest = {0};
    unsigned flags = TOKENIZE_SPECIAL | (tokenizer_adds_bos(tok) ? TOKENIZE_BOS : 0);
    status st = tokenizer_encode(tok, text->s, text->n, flags, &l, e);
    *n_tokens = l.n;
    if (st == ST_OK && l.n > cut->most) {
        st = decode_rest(&rest, tok, &l, cut, e);
        prompt_text *unused = st == ST_OK ? text : &rest;
        mem_free(unused->s);
        if (st == ST_OK) *text = rest;
    }
    token_list_free(&l);
    return st;
}

/* ---- chat ---- */

static const char *const wraps[] = {"template", "raw", "double-bos", NULL};

status prompt_wrap_parse(prompt_wrap *out, const char *text, err *e)
{
    int i;
    TRY(cli_choose(&i, text, wraps, "--wrap", e));
    *out = (prompt_wrap)i;
    return ST_OK;
}

const char *prompt_wrap_name(prompt_wrap w)
{
    return wraps[w];
}

/* ---- characters ---- */

static bool begins(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

size_t prompt_characters(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += begins(s[i]);
    return count;
}

size_t prompt_character_at(const char *s, size_t n, size_t i)
{
    size_t at = 0;
    for (; at < n; at++)
        if (begins(s[at]) && i-- == 0) break;
    return at;
}

size_t prompt_find_last(const char *s, size_t n, const char *text)
{
    size_t len = strlen(text);
    for (size_t i = n >= len ? n - len + 1 : 0; i-- > 0;)
        if (memcmp(s + i, text, len) == 0) return i;
    return n;
}

/* ---- from the text of a prompt to its tokens ---- */

status prompter_chat(prompt_text *out, const prompter *p, const json_t *messages, err *e)
{
    enum { CLOCK = 1721995200 }; /* 26 July 2024, 12:00 UTC */
    json_t *args = json_pack("{s:b}", "enable_thinking", p->thinks);
    *out = (prompt_text){0};
    if (!args || (p->args && json_object_update(args, (json_t *)(uintptr_t)p->args) != 0)) {
        json_decref(args);
        return err_set(e, ST_NOMEM, "out of memory");
    }
    status st =
        chat_render(p->tok, &(chat_input){.messages = messages, .args = args, .now = CLOCK}, &out->s, &out->n, e);
    json_decref(args);
    return st;
}

status prompter_say(prompt_text *out, const prompter *p, const chat_message *m, size_t n, err *e)
{
    json_t *list;
    *out = (prompt_text){0};
    TRY(chat_messages(&list, m, n, e));
    status st = prompter_chat(out, p, list, e);
    json_decref(list);
    return st;
}

status prompter_ask(prompt_text *text, const prompter *p, err *e)
{
    prompt_text chat;
    if (strlen(text->s) != text->n) return err_set(e, ST_FORMAT, "a chat message cannot hold the character U+0000");
    TRY(prompter_say(&chat, p, &(chat_message){"user", text->s}, 1, e));
    mem_free(text->s);
    *text = chat;
    return ST_OK;
}

status prompter_wrap(prompt_tokens *out, const prompter *p, bool chat, prompt_text *text, err *e)
{
    size_t half = p->max_length / 2;
    prompt_cut cut = {.most = p->max_length,
                      .first = half,
                      .last = p->joined && !p->halves ? p->max_length - half : half,
                      .joined = p->joined,
                      .clean = p->clean};
    TRY(prompt_truncate(text, p->tok, &cut, &out->n_tokens, e));
    out->truncated = out->n_tokens > p->max_length;
    return chat && p->wrap != WRAP_RAW ? prompter_ask(text, p, e) : ST_OK;
}

status prompter_encode(prompt_tokens *out, const prompter *p, bool chat, const prompt_text *text, size_t cut, err *e)
{
    bool wrapped = chat && p->wrap != WRAP_RAW;
    bool bos = wrapped ? p->wrap == WRAP_DOUBLE_BOS : tokenizer_adds_bos(p->tok);
    unsigned flags = TOKENIZE_SPECIAL | (bos ? TOKENIZE_BOS : 0);
    TRY(tokenizer_encode(p->tok, text->s, cut, flags, &out->head, e));
    if (cut == text->n) return ST_OK;
    return tokenizer_encode(p->tok, text->s + cut, text->n - cut, TOKENIZE_SPECIAL, &out->tail, e);
}

status prompter_take(prompt_tokens *out, const prompter *p, bool chat, prompt_text *text, err *e)
{
    status st = prompter_wrap(out, p, chat, text, e);
    if (st == ST_OK) st = prompter_encode(out, p, chat, text, text->n, e);
    mem_free(text->s);
    return st;
}

status prompt_tokens_break(prompt_tokens *t, err *e)
{
    if (t->head.n == 0) return ST_OK;
    TRY(MEM_GROW(&t->breaks, t->n_breaks + 1, e));
    t->breaks[t->n_breaks++] = t->head.n;
    return ST_OK;
}

status prompt_tokens_find(attn_span *out, const prompt_tokens *t, const tokenizer *tok, utf8_text text, err *e)
{
    token_list l = {0};
    *out = (attn_span){0};
    status st = text.n ? tokenizer_encode(tok, text.s, text.n, TOKENIZE_SPECIAL, &l, e) : ST_OK;
    size_t n = l.n > 2 ? l.n - 2 : 0;
    for (size_t i = 0; st == ST_OK && n && i + n <= t->head.n && out->end == 0; i++)
        if (memcmp(t->head.ids + i, l.ids + 1, n * sizeof *l.ids) == 0)
            *out = (attn_span){(int64_t)i, (int64_t)(i + n)};
    token_list_free(&l);
    return st;
}

void prompt_tokens_free(prompt_tokens *t)
{
    mem_free(t->breaks);
    token_list_free(&t->head);
    token_list_free(&t->tail);
}
