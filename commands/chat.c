/* SPDX-License-Identifier: MIT */
/* ./run chat: a conversation; what is in the KV cache is not fed again. */
#include "config.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "commands/generate.h"
#include "cli/ranks.h"
#include "kernels/base/mem.h"

enum { CHAT_CTX = 8192, REPLY_TOKENS = 512, READ_BYTES = 4096 };

typedef struct {
    chat_message *msg;
    size_t n, cap;
    json_t *results; /* --json: one reply each */
} conversation;

static status add_message(conversation *v, const char *role, const char *text, err *e)
{
    TRY(MEM_ROOM(&v->msg, &v->cap, v->n + 1, e));
    char *copy = mem_strdup(text);
    if (!copy) return err_set(e, ST_NOMEM, "out of memory");
    v->msg[v->n++] = (chat_message){role, copy};
    return ST_OK;
}

static void drop_messages(conversation *v, size_t from)
{
    while (v->n > from) mem_free((void *)(uintptr_t)v->msg[--v->n].content);
}

/* ---- lines ---- */

/* Standard input, with the bytes that were read beyond the end of a line. */
typedef struct {
    char *text;
    size_t at, n, cap; /* the next line begins at `at` */
    bool ended;
    char *shared; /* the last line, where there are ranks */
} input;

static status read_more(input *in, err *e)
{
    if (in->at) memmove(in->text, in->text + in->at, in->n - in->at);
    in->n -= in->at;
    in->at = 0;
    TRY(MEM_ROOM(&in->text, &in->cap, in->n + READ_BYTES, e));
    if (!cli_wait_input(STDIN_FILENO)) {
        in->n = 0; /* what was typed so far is dropped, as a terminal does */
        return ST_INTERRUPTED;
    }
    ssize_t k = read(STDIN_FILENO, in->text + in->n, in->cap - in->n - 1);
    if (k < 0 && errno != EINTR) return err_set(e, ST_IO, "standard input: %s", strerror(errno));
    in->ended = k == 0;
    in->n += k > 0 ? (size_t)k : 0;
    return ST_OK;
}

/* One line of any length, valid until the next call; NULL at the end of input. ST_INTERRUPTED
 * (without a message) at Ctrl-C. */
static status read_line(input *in, const char **line, err *e)
{
    char *end = NULL;
    *line = NULL;
    while (!(end = in->n > in->at ? memchr(in->text + in->at, '\n', in->n - in->at) : NULL)) {
        if (in->ended) break;
        TRY(read_more(in, e));
    }
    if (!end && in->n == in->at) return ST_OK;
    if (!end) end = in->text + in->n++; /* the last line has no end: there is room for one */
    *end = 0;
    *line = in->text + in->at;
    in->at = (size_t)(end + 1 - in->text);
    return ST_OK;
}

/* The line of the first rank, on all. */
static status next_line(input *in, comm *ranks, const char **line, err *e)
{
    if (!ranks || ranks->size == 1) return read_line(in, line, e);
    char *text = NULL;
    *line = NULL;
    if (ranks->rank == 0) TRY(read_line(in, line, e));
    if (*line && !(text = mem_strdup(*line))) return err_set(e, ST_NOMEM, "out of memory");
    size_t n = text ? strlen(text) : 0;
    status st = ranks_share_text(ranks, &text, &n, e);
    mem_free(in->shared);
    *line = in->shared = text;
    return st;
}

/* ---- turns ---- */

/* One turn: only what the session does not hold yet is fed. */
static status turn(reply *r, conversation *v, const char *user, err *e)
{
    token_list ids = {0};
    size_t n_before = v->n;
    char *text = NULL;
    TRY(add_message(v, "user", user, e));
    status st = r->q.ids.n == 0 ? chat_encode(r->g.tok, r->o->template_name, v->msg, v->n, &ids, e)
                                : reply_encode_turn(r, v->msg, v->n, &ids, e);
    if (st != ST_OK) goto done;
    r->said.n = 0;
    TRY_GOTO(reply_run(r, &ids, e));
    TRY_GOTO(out_write("\n", 1, e));
    TRY_GOTO(out_flush(e));
    TRY_GOTO(tokenizer_decode(r->g.tok, r->said.ids, r->said.n, false, &text, NULL, e));
    TRY_GOTO(add_message(v, "assistant", text, e));
done:
    if (st != ST_OK) drop_messages(v, n_before);
    mem_free(text);
    token_list_free(&ids);
    return st;
}

/* A turn and its end: Ctrl-C stops the reply, not the chat. */
static status take_turn(reply *r, conversation *v, const char *line, err *e)
{
    err why = {0};
    status st = turn(r, v, line, &why);
    cli_clear_interrupt();
    if (st == ST_INTERRUPTED) {  /* while the prompt was read: half of it is in the cache, */
        sequence_restart(&r->q); /* and the next turn feeds all tokens anew */
        fputs("\n(stopped: this message is not part of the conversation)\n", stderr);
        return ST_OK;
    }
    if (st != ST_OK) return err_set(e, st, "%s", why.msg);
    if (!out_is_quiet()) reply_print_stats(r);
    if (!r->o->run.out.json) return ST_OK;
    json_t *result = reply_json(r, e);
    if (!result) return e->code;
    return json_array_append_new(v->results, result) == 0 ? ST_OK
                                                          : err_set(e, ST_NOMEM, "out of memory for the report");
}

static status converse(reply *r, conversation *v, err *e)
{
    const bool terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    input in = {0};
    const char *line = NULL;
    bool warned = false;
    status st = ST_OK;
    while (st == ST_OK) {
        if (terminal) fputs("> ", stderr);
        st = next_line(&in, r->o->run.engine.device.ranks, &line, e);
        if (st == ST_INTERRUPTED) {
            cli_clear_interrupt();
            st = ST_OK;
            if (warned) break;
            warned = true;
            fputs("\n(Ctrl-C again, or Ctrl-D, ends the chat)\n", stderr);
            continue;
        }
        warned = false;
        if (st != ST_OK || !line) break;
        if (line[0]) st = take_turn(r, v, line, e);
    }
    if (terminal) fputc('\n', stderr);
    mem_free(in.text);
    mem_free(in.shared);
    return st;
}

/* Fails without a chat template; the message lists those that --template can name. */
static status check_template(const reply *r, err *e)
{
    chat_message probe = {"user", "x"};
    token_list unused = {0};
    if (r->o->template_name || tokenizer_chat_template(r->g.tok)) return ST_OK;
    status st = chat_encode(r->g.tok, NULL, &probe, 1, &unused, e);
    token_list_free(&unused);
    return st;
}

static status run(reply *r, conversation *v, const reply_options *o, err *e)
{
    int64_t n_tokens, most;
    TRY(reply_find(r, o, REPLY_TOKENS, e));
    if (r->n_new == 0) r->n_new = REPLY_TOKENS;
    most = r->g.m->config.max_positions < CHAT_CTX ? r->g.m->config.max_positions : CHAT_CTX;
    TRY(reply_tokens(r, most, &n_tokens, e));
    TRY(check_template(r, e));
    TRY(o->load ? reply_load(r, e) : reply_create(r, n_tokens, e));
    if (r->q.ids.n) { /* what was said: a turn needs nothing but its end */
        TRY(add_message(v, "user", "x", e));
        TRY(add_message(v, "assistant", "", e));
    }
    cli_catch_interrupt();
    if (o->system) TRY(add_message(v, "system", o->system, e));
    TRY(converse(r, v, e));
    TRY(reply_save(r, e));
    return o->run.out.json ? reply_report(r, json_incref(v->results), e) : ST_OK;
}

static status cmd_chat(void *options, err *e)
{
    reply r = {0};
    conversation v = {.results = json_array()};
    status st = run(&r, &v, options, e);
    json_decref(v.results);
    drop_messages(&v, 0);
    mem_free(v.msg);
    reply_free(&r);
    return st;
}

const command chat_command = {.name = "chat",
                              .args = "",
                              .summary = "talk, turn by turn",
                              .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_REPLY | OPTIONS_PREFIX,
                              .size = sizeof(reply_options),
                              .place = REPLY_PLACES,
                              .run = cmd_chat};
