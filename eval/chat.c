/* SPDX-License-Identifier: MIT */
/* ./run chat: a conversation; what is in the KV cache is not fed again. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "eval/generate.h"
#include "kernels/base/mem.h"

enum { CHAT_CTX = 8192, REPLY_TOKENS = 512 };

typedef struct {
    chat_message *msg;
    size_t n, cap;
    token_list fed; /* ids that the session holds */
} conversation;

static status add_message(conversation *v, const char *role, const char *text, err *e)
{
    if (v->n == v->cap) {
        size_t cap = 2 * v->cap + 8;
        TRY(MEM_GROW(&v->msg, cap, e));
        v->cap = cap;
    }
    char *copy = mem_strdup(text);
    if (!copy) return err_set(e, ST_NOMEM, "out of memory");
    v->msg[v->n++] = (chat_message){role, copy};
    return ST_OK;
}

static void drop_messages(conversation *v, size_t from)
{
    while (v->n > from) mem_free((void *)(uintptr_t)v->msg[--v->n].content);
}

/* The ids behind the longest common beginning with what the session holds; the session goes back to
 * that point. Where its strategy cannot, the new ids follow what it holds. */
static status to_feed(conversation *v, session *s, const token_list *all, size_t *from, err *e)
{
    size_t same = 0, len = (size_t)session_length(s);
    while (same < len && same < all->n && all->ids[same] == v->fed.ids[same]) same++;
    if (same == all->n && same > 0) same--; /* at least one token gives logits */
    *from = same;
    err ignored = {0};
    if (same < len && session_rewind(s, (int64_t)same, &ignored) != ST_OK) {
        session_reset(s);
        *from = 0;
    }
    v->fed.n = *from;
    for (size_t i = *from; i < all->n; i++) TRY(token_list_push(&v->fed, all->ids[i], e));
    return ST_OK;
}

/* Reads one line of any length; *line is NULL at the end of input or at Ctrl-C. */
static status read_line(char **line, size_t *cap)
{
    bool terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    if (terminal) fputs("> ", stderr);
    ssize_t n = getline(line, cap, stdin);
    if (n < 0) {
        free(*line);
        *line = NULL;
        *cap = 0;
        return ST_OK;
    }
    if (n > 0 && (*line)[n - 1] == '\n') (*line)[n - 1] = 0;
    return ST_OK;
}

/* One turn: the whole conversation is encoded and its new part fed. */
static status turn(reply *r, conversation *v, const char *user, err *e)
{
    token_list all = {0}, part;
    size_t from, n_before = v->n;
    char *text = NULL;
    TRY(add_message(v, "user", user, e));
    status st = chat_encode(r->g->tok, r->c->template_name, v->msg, v->n, &all, e);
    if (st != ST_OK) goto done;
    if ((int64_t)all.n >= session_limit(r->s)) {
        st = err_set(e, ST_UNSUPPORTED, "the conversation of %zu tokens does not fit the context of %lld (see --ctx)", all.n,
                     (long long)session_limit(r->s));
        goto done;
    }
    TRY_GOTO(to_feed(v, r->s, &all, &from, e));
    part = (token_list){.ids = all.ids + from, .n = all.n - from};
    r->said.n = 0;
    TRY_GOTO(reply_run(r, &part, e));
    TRY_GOTO(out_write("\n", 1, e));
    /* What was decoded is in the cache: the next turn starts behind it. */
    for (size_t i = 0; i < r->said.n && v->fed.n < (size_t)session_length(r->s); i++)
        TRY_GOTO(token_list_push(&v->fed, r->said.ids[i], e));
    TRY_GOTO(tokenizer_decode(r->g->tok, r->said.ids, r->said.n, false, &text, NULL, e));
    TRY_GOTO(add_message(v, "assistant", text, e));
done:
    if (st != ST_OK) drop_messages(v, n_before);
    mem_free(text);
    token_list_free(&all);
    return st;
}

static status converse(reply *r, conversation *v, err *e)
{
    char *line = NULL;
    size_t cap = 0;
    status st = ST_OK;
    while (st == ST_OK) {
        cli_clear_interrupt();
        TRY_GOTO(read_line(&line, &cap));
        if (!line && cli_interrupted()) { /* Ctrl-C at the prompt: a fresh prompt */
            clearerr(stdin);
            fputc('\n', stderr);
            continue;
        }
        if (!line) break;
        if (line[0] == 0) continue;
        err turn_error = {0};
        st = turn(r, v, line, &turn_error);
        if (st == ST_INTERRUPTED) st = ST_OK; /* stopped while reading the prompt */
        else if (st != ST_OK) err_set(e, st, "%s", turn_error.msg);
        if (st == ST_OK && !r->c->quiet) reply_print_stats(r);
    }
done:
    free(line);
    return st;
}

status cmd_chat(const cli *c, err *e)
{
    engine g;
    reply r = {0};
    conversation v = {0};
    int64_t n_tokens, most;
    TRY(engine_open(&g, c, 1, false, true, e));
    most = g.m->config.max_positions < CHAT_CTX ? g.m->config.max_positions : CHAT_CTX;
    status st = session_tokens(c, &g, most, &n_tokens, e);
    if (st != ST_OK) goto done;
    if (!c->template_name && !tokenizer_chat_template(g.tok)) {
        chat_message probe = {"user", "x"};
        token_list unused = {0};
        st = chat_encode(g.tok, NULL, &probe, 1, &unused, e); /* its message lists the templates */
        token_list_free(&unused);
        if (st != ST_OK) goto done;
    }
    TRY_GOTO(reply_create(&r, c, &g, n_tokens, e));
    if (r.n_new == 0) r.n_new = REPLY_TOKENS;
    cli_catch_interrupt();
    if (c->system) TRY_GOTO(add_message(&v, "system", c->system, e));
    st = converse(&r, &v, e);
done:
    drop_messages(&v, 0);
    mem_free(v.msg);
    token_list_free(&v.fed);
    reply_free(&r);
    engine_close(&g);
    return st;
}
