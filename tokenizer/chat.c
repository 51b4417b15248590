/* SPDX-License-Identifier: MIT */
/* Chat templates by family. A conversation is written as special tokens, given by id, and plain
 * text between them: what a message says can never become a special token.
 * Source: evals.md section 3. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/chars.h"
#include "tokenizer/impl.h"

typedef struct {
    const tokenizer *t;
    const char *name; /* of the template, for messages */
    token_list *out;  /* NULL: everything stays text, special tokens by their spelling */
    char *text;       /* plain text since the last special token */
    size_t n, cap;
} writer;

/* Variants of one family differ in a text or a switch. */
typedef struct family {
    const char *name;
    status (*write)(writer *w, const struct family *f, const chat_message *m, size_t n, err *e);
    const char *system; /* default or fixed system text */
    bool no_think;
} family;

static status write_text(writer *w, const char *s, size_t n, err *e)
{
    TRY(MEM_ROOM(&w->text, &w->cap, w->n + n, e));
    if (n) memcpy(w->text + w->n, s, n);
    w->n += n;
    return ST_OK;
}

static status write_str(writer *w, const char *s, err *e)
{
    return write_text(w, s, strlen(s), e);
}

static status write_trimmed(writer *w, const char *s, err *e)
{
    size_t n = strlen(s);
    trim_python(&s, &n);
    return write_text(w, s, n, e);
}

static status flush(writer *w, err *e)
{
    if (!w->out) return ST_OK;
    status st = w->n ? tokenizer_encode(w->t, w->text, w->n, 0, w->out, e) : ST_OK;
    w->n = 0;
    return st;
}

static status write_special(writer *w, const char *spelling, err *e)
{
    const int32_t id = tokenizer_special_id(w->t, spelling);
    if (id < 0)
        return err_set(e, ST_UNSUPPORTED, "chat template %s needs the token %s, which this tokenizer has not", w->name,
                       spelling);
    if (!w->out) return write_str(w, spelling, e);
    TRY(flush(w, e));
    return token_list_push(w->out, id, e);
}

static status write_bos(writer *w, err *e)
{
    char *spelling;
    size_t n;
    if (w->t->bos < 0) return ST_OK;
    if (w->out) {
        TRY(flush(w, e));
        return token_list_push(w->out, w->t->bos, e);
    }
    TRY(tokenizer_decode(w->t, &w->t->bos, 1, true, &spelling, &n, e));
    status st = write_text(w, spelling, n, e);
    mem_free(spelling);
    return st;
}

static bool role_is(const chat_message *m, const char *role)
{
    return strcmp(m->role, role) == 0;
}

/* Text of the system message in front, NULL if there is none; *m and *n move behind it. */
static const char *take_system(const chat_message **m, size_t *n)
{
    if (*n == 0 || !role_is(*m, "system")) return NULL;
    const char *s = (*m)->content;
    ++*m;
    --*n;
    return s;
}

static status llama3_head(writer *w, const char *role, err *e)
{
    TRY(write_special(w, "<|start_header_id|>", e));
    TRY(write_str(w, role, e));
    TRY(write_special(w, "<|end_header_id|>", e));
    return write_str(w, "\n\n", e);
}

static status write_llama3(writer *w, const family *f, const chat_message *m, size_t n, err *e)
{
    const char *system = take_system(&m, &n);
    TRY(write_bos(w, e));
    if (system || f->system) {
        TRY(llama3_head(w, "system", e));
        if (f->system) TRY(write_str(w, f->system, e));
        TRY(write_trimmed(w, system ? system : "", e));
        TRY(write_special(w, "<|eot_id|>", e));
    }
    for (size_t i = 0; i < n; i++) {
        TRY(llama3_head(w, m[i].role, e));
        TRY(write_trimmed(w, m[i].content, e));
        TRY(write_special(w, "<|eot_id|>", e));
    }
    return llama3_head(w, "assistant", e);
}

static status chatml_turn(writer *w, const char *role, const char *content, err *e)
{
    TRY(write_special(w, "<|im_start|>", e));
    TRY(write_str(w, role, e));
    TRY(write_str(w, "\n", e));
    TRY(write_str(w, content, e));
    TRY(write_special(w, "<|im_end|>", e));
    return write_str(w, "\n", e);
}

static status write_chatml(writer *w, const family *f, const chat_message *m, size_t n, err *e)
{
    if (f->system && !role_is(m, "system")) TRY(chatml_turn(w, "system", f->system, e));
    for (size_t i = 0; i < n; i++) TRY(chatml_turn(w, m[i].role, m[i].content, e));
    TRY(write_special(w, "<|im_start|>", e));
    TRY(write_str(w, "assistant\n", e));
    if (!f->no_think) return ST_OK;
    TRY(write_special(w, "<think>", e));
    TRY(write_str(w, "\n\n", e));
    TRY(write_special(w, "</think>", e));
    return write_str(w, "\n\n", e);
}

/* "[INST]" is plain text; a turn is encoded by itself, as the vendor's encoder does. */
static status write_mistral_v1(writer *w, const family *f, const chat_message *m, size_t n, err *e)
{
    const char *system = take_system(&m, &n);
    (void)f;
    TRY(write_bos(w, e));
    for (size_t i = 0; i < n; i++) {
        TRY(flush(w, e));
        if (role_is(&m[i], "assistant")) {
            TRY(write_str(w, m[i].content, e));
            TRY(write_special(w, "</s>", e));
            continue;
        }
        TRY(write_str(w, "[INST] ", e));
        if (i == 0 && system) {
            TRY(write_str(w, system, e));
            TRY(write_str(w, "\n\n", e));
        }
        TRY(write_str(w, m[i].content, e));
        TRY(write_str(w, " [/INST]", e));
    }
    return ST_OK;
}

static status write_mistral_v3(writer *w, const family *f, const chat_message *m, size_t n, err *e)
{
    const char *system = take_system(&m, &n);
    (void)f;
    TRY(write_bos(w, e));
    for (size_t i = 0; i < n; i++) {
        const bool user = role_is(&m[i], "user");
        if (user) TRY(write_special(w, "[INST]", e));
        if (system && i == n - 1) { /* with the last user message, unlike v1 */
            TRY(write_str(w, system, e));
            TRY(write_str(w, "\n\n", e));
        }
        TRY(write_str(w, m[i].content, e));
        TRY(write_special(w, user ? "[/INST]" : "</s>", e));
    }
    return ST_OK;
}

static status write_vicuna(writer *w, const family *f, const chat_message *m, size_t n, err *e)
{
    const char *system = take_system(&m, &n);
    TRY(write_bos(w, e));
    TRY(write_str(w, system ? system : f->system, e));
    TRY(write_str(w, " ", e));
    for (size_t i = 0; i < n; i++) {
        const bool user = role_is(&m[i], "user");
        TRY(write_str(w, user ? "USER: " : "ASSISTANT: ", e));
        TRY(write_str(w, m[i].content, e));
        if (user) TRY(write_str(w, " ", e));
        else TRY(write_special(w, "</s>", e));
    }
    return write_str(w, "ASSISTANT:", e);
}

static status write_llama2(writer *w, const family *f, const chat_message *m, size_t n, err *e)
{
    const char *system = take_system(&m, &n);
    (void)f;
    for (size_t i = 0; i < n; i++) {
        if (role_is(&m[i], "assistant")) {
            TRY(write_str(w, " ", e));
            TRY(write_trimmed(w, m[i].content, e));
            TRY(write_str(w, " ", e));
            TRY(write_special(w, "</s>", e));
            continue;
        }
        TRY(write_bos(w, e));
        TRY(write_str(w, "[INST] ", e));
        if (i == 0 && system) {
            TRY(write_str(w, "<<SYS>>\n", e));
            TRY(write_str(w, system, e));
            TRY(write_str(w, "\n<</SYS>>\n\n", e));
        }
        TRY(write_trimmed(w, m[i].content, e));
        TRY(write_str(w, " [/INST]", e));
    }
    return ST_OK;
}

/* The date is pinned: a prompt must not depend on the day it is made. */
static const family templates[] = {
    {"llama3", write_llama3, NULL, false},
    {"llama3.1", write_llama3, "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n", false},
    {"mistral-v1", write_mistral_v1, NULL, false},
    {"mistral-v3", write_mistral_v3, NULL, false},
    {"qwen2", write_chatml, "You are a helpful assistant.", false},
    {"qwen2.5", write_chatml, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", false},
    {"qwen3", write_chatml, NULL, true},
    {"chatml", write_chatml, NULL, false},
    {"vicuna", write_vicuna,
     "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
     "helpful, "
     "detailed, and polite answers to the user's questions.",
     false},
    {"llama2", write_llama2, NULL, false},
};
enum { N_TEMPLATES = sizeof templates / sizeof *templates };

const char *const *chat_template_names(void)
{
    static const char *const names[] = {"llama3", "llama3.1", "mistral-v1", "mistral-v3", "qwen2", "qwen2.5",
                                        "qwen3",  "chatml",   "vicuna",     "llama2",     NULL};
    _Static_assert(sizeof names / sizeof *names == N_TEMPLATES + 1, "a name for each template");
    return names;
}

static bool has(const char *text, size_t n, const char *mark)
{
    return memmem(text, n, mark, strlen(mark)) != NULL;
}

const char *chat_detect(const tokenizer *t, const char *text, size_t n)
{
    if (has(text, n, "<|start_header_id|>")) return has(text, n, "Cutting Knowledge Date") ? "llama3.1" : "llama3";
    if (has(text, n, "<|im_start|>")) {
        if (has(text, n, "enable_thinking")) return "qwen3";
        if (has(text, n, "You are Qwen, created by Alibaba Cloud")) return "qwen2.5";
        return has(text, n, "You are a helpful assistant") ? "qwen2" : "chatml";
    }
    if (has(text, n, "[INST]")) {
        if (has(text, n, "<<SYS>>")) return "llama2";
        return tokenizer_special_id(t, "[INST]") >= 0 ? "mistral-v3" : "mistral-v1";
    }
    return has(text, n, "USER:") && has(text, n, "ASSISTANT:") ? "vicuna" : NULL;
}

/* [system] user (assistant user)*: what every family's template accepts. */
static status check_roles(const chat_message *m, size_t n, err *e)
{
    if (n == 0) return err_set(e, ST_USAGE, "chat: no messages");
    const size_t first = role_is(&m[0], "system");
    for (size_t i = first; i < n; i++) {
        const char *want = (i - first) % 2 == 0 ? "user" : "assistant";
        if (!role_is(&m[i], want))
            return err_set(e, ST_USAGE, "chat: message %zu is from \"%.20s\", expected \"%s\"", i + 1, m[i].role, want);
    }
    if (n == first || !role_is(&m[n - 1], "user"))
        return err_set(e, ST_USAGE, "chat: the last message is from \"%.20s\", expected \"user\"", m[n - 1].role);
    return ST_OK;
}

static status no_template(const char *name, err *e)
{
    char list[160] = "";
    size_t n = 0;
    for (int i = 0; i < N_TEMPLATES; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", templates[i].name);
    return name ? err_set(e, ST_UNSUPPORTED, "chat template \"%.40s\" is unknown; there are %s", name, list)
                : err_set(e, ST_UNSUPPORTED, "the model's folder has no known chat template; choose one of %s", list);
}

/* The conversation into w, whose t is set. */
static status write_chat(writer *w, const char *name, const chat_message *msgs, size_t n, err *e)
{
    const char *wanted = name ? name : w->t->chat;
    const family *tm = NULL;
    for (int i = 0; i < N_TEMPLATES && wanted; i++)
        if (strcmp(templates[i].name, wanted) == 0) tm = &templates[i];
    if (!tm) return no_template(wanted, e);
    TRY(check_roles(msgs, n, e));
    w->name = tm->name;
    return tm->write(w, tm, msgs, n, e);
}

status chat_encode(const tokenizer *t, const char *name, const chat_message *msgs, size_t n, token_list *out, err *e)
{
    writer w = {.t = t, .out = out};
    const size_t before = out->n;
    status st = write_chat(&w, name, msgs, n, e);
    if (st == ST_OK) st = flush(&w, e);
    mem_free(w.text);
    if (st != ST_OK) out->n = before;
    return st;
}

status chat_render(const tokenizer *t, const char *name, const chat_message *msgs, size_t n, char **out, size_t *len,
                   err *e)
{
    writer w = {.t = t};
    *out = NULL;
    status st = write_chat(&w, name, msgs, n, e);
    if (st == ST_OK) st = write_text(&w, "", 1, e); /* the NUL */
    if (st != ST_OK) {
        mem_free(w.text);
        return st;
    }
    *out = w.text;
    *len = w.n - 1;
    return ST_OK;
}
