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

/* The ids of a later turn: what the template writes behind the last reply. The reply itself is in the
 * cache as it was generated; encoding its text again could give other ids. So the conversation is
 * encoded with an empty reply, and what it shares with the prompt of the turn before is dropped. */
static status encode_tail(const conversation *v, const reply *r, token_list *out, err *e)
{
    token_list before = {0}, with = {0};
    const char *name = r->c->template_name;
    chat_message last = v->msg[v->n - 2];
    status st = chat_encode(r->g->tok, name, v->msg, v->n - 2, &before, e);
    v->msg[v->n - 2].content = "";
    if (st == ST_OK) st = chat_encode(r->g->tok, name, v->msg, v->n, &with, e);
    v->msg[v->n - 2] = last;
    size_t same = 0;
    while (same < before.n && same < with.n && before.ids[same] == with.ids[same]) same++;
    /* A reply cut short ends with a token that was sampled, but not fed. */
    int32_t unfed = r->said.n ? r->said.ids[r->said.n - 1] : -1;
    if (st == ST_OK && unfed >= 0 && !tokenizer_is_eos(r->g->tok, unfed))
        st = token_list_push(out, unfed, e);
    for (size_t i = same; st == ST_OK && i < with.n; i++) st = token_list_push(out, with.ids[i], e);
    token_list_free(&before);
    token_list_free(&with);
    return st;
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

/* One turn: only what the session does not hold yet is fed. */
static status turn(reply *r, conversation *v, const char *user, err *e)
{
    token_list ids = {0};
    size_t n_before = v->n;
    char *text = NULL;
    TRY(add_message(v, "user", user, e));
    status st = session_length(r->s) == 0
                    ? chat_encode(r->g->tok, r->c->template_name, v->msg, v->n, &ids, e)
                    : encode_tail(v, r, &ids, e);
    if (st != ST_OK) goto done;
    r->said.n = 0;
    TRY_GOTO(reply_run(r, &ids, e));
    TRY_GOTO(out_write("\n", 1, e));
    TRY_GOTO(tokenizer_decode(r->g->tok, r->said.ids, r->said.n, false, &text, NULL, e));
    TRY_GOTO(add_message(v, "assistant", text, e));
done:
    if (st != ST_OK) drop_messages(v, n_before);
    mem_free(text);
    token_list_free(&ids);
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
        if (st ==
            ST_INTERRUPTED) { /* stopped while the prompt was read: half of it is in the cache */
            session_reset(r->s);
            st = ST_OK;
        } else if (st != ST_OK) err_set(e, st, "%s", turn_error.msg);
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
    reply_free(&r);
    engine_close(&g);
    return st;
}
