/* SPDX-License-Identifier: MIT */
/* ./run chat: a conversation; tokens in the KV cache are not fed again. */
#include "config.h"

#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/lines.h"
#include "cli/ranks.h"
#include "commands/generate.h"
#include "kernels/base/mem.h"

enum { CHAT_CTX = 8192, REPLY_TOKENS = 512 };

typedef struct {
    lines *in;
    char *shared; /* last line, if there are ranks */
    chat_message *msg;
    size_t n, cap;
    int n_refused;   /* messages beyond the context */
    bool ended;      /* by /bye */
    json_t *results; /* one reply per element, for --json */
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

/* Reads a line in the first rank and shares it with all ranks. */
static status next_line(conversation *v, comm *ranks, const char **line, err *e)
{
    if (!ranks || ranks->size == 1) return lines_next(v->in, line, e);
    char *text = NULL;
    *line = NULL;
    if (ranks->rank == 0) TRY(lines_next(v->in, line, e));
    if (*line && !(text = mem_strdup(*line))) return err_set(e, ST_NOMEM, "out of memory");
    size_t n = text ? strlen(text) : 0;
    status st = ranks_broadcast_text(ranks, &text, &n, e);
    mem_free(v->shared);
    *line = v->shared = text;
    return st;
}

/* ---- turns ---- */

/* Error of a message of n tokens that does not fit. */
static status refuse(const reply *r, conversation *v, size_t n, err *e)
{
    v->n_refused++;
    return err_set(e, ST_UNSUPPORTED, "message of %zu tokens after %zu tokens: exceeds the context of %lld tokens", n,
                   r->q.ids.n, (long long)session_limit(r->q.s));
}

/* Runs a turn. Feeds only the tokens that the session does not hold yet. */
static status turn(reply *r, conversation *v, const char *user, err *e)
{
    token_list ids = {0};
    size_t n_before = v->n;
    char *text = NULL;
    TRY(add_message(v, "user", user, e));
    status st = r->q.ids.n == 0 ? reply_encode(r, v->msg, v->n, &ids, e) : reply_encode_turn(r, v->msg, v->n, &ids, e);
    if (st != ST_OK) goto done;
    r->new_ids.n = 0;
    if (!reply_fits(r, ids.n)) TRY_GOTO(refuse(r, v, ids.n, e));
    TRY_GOTO(reply_run(r, &ids, e));
    TRY_GOTO(out_write("\n", 1, e));
    TRY_GOTO(out_flush(e));
    TRY_GOTO(tokenizer_decode(r->g.tok, r->new_ids.ids, r->new_ids.n, false, &text, NULL, e));
    TRY_GOTO(add_message(v, "assistant", text, e));
done:
    if (st != ST_OK) drop_messages(v, n_before);
    mem_free(text);
    token_list_free(&ids);
    return st;
}

/* Runs a turn and ends it. Ctrl-C stops the reply, not the chat. */
static status take_turn(reply *r, conversation *v, const char *line, err *e)
{
    err why = {0};
    const int n_refused = v->n_refused;
    status st = turn(r, v, line, &why);
    cli_clear_interrupt();
    if (st == ST_INTERRUPTED) {  /* the prompt was interrupted and is partly in the cache: */
        sequence_restart(&r->q); /* the next turn feeds all tokens again */
        fputs("\n(stopped; the message was removed from the conversation)\n", stderr);
        return ST_OK;
    }
    if (v->n_refused > n_refused) {
        fprintf(stderr, "(%s; the message was removed from the conversation%s)\n", why.msg,
                lines_edited(v->in) ? "; /new starts another" : "");
        return ST_OK;
    }
    if (st != ST_OK) return err_set(e, st, "%s", why.msg);
    if (!out_is_quiet()) reply_print_stats(r);
    if (lines_edited(v->in) && strcmp(r->finish, "context") == 0)
        out_note("(/new starts another conversation, /save FILE saves this one)");
    if (!r->o->run.out.json) return ST_OK;
    json_t *result = reply_json(r, e);
    if (!result) return e->code;
    return json_array_append_new(v->results, result) == 0 ? ST_OK
                                                          : err_set(e, ST_NOMEM, "out of memory for the report");
}

/* ---- commands at a terminal ---- */

static status run_new(reply *r, conversation *v, const char *text, err *e)
{
    (void)text;
    reply_clear(r);
    drop_messages(v, 0);
    if (r->o->system) TRY(add_message(v, "system", r->o->system, e));
    out_note("(new conversation)");
    return ST_OK;
}

static status run_save(reply *r, conversation *v, const char *path, err *e)
{
    (void)v;
    if (!*path) return err_set(e, ST_USAGE, "missing file name; /save FILE");
    TRY(reply_save(r, path, e));
    out_note("(%zu tokens saved; --load %s continues)", r->q.ids.n, path);
    return ST_OK;
}

static status run_attn(reply *r, conversation *v, const char *spec, err *e)
{
    (void)v;
    if (*spec) TRY(reply_change_attn(r, spec, e));
    out_note("(strategy %s%s)", attn_seq_spec(session_attn(r->q.s))->text,
             *spec && r->q.ids.n ? "; the next message computes the conversation again" : "");
    return ST_OK;
}

static status run_bye(reply *r, conversation *v, const char *text, err *e)
{
    (void)r;
    (void)text;
    (void)e;
    v->ended = true;
    return ST_OK;
}

static status run_help(reply *r, conversation *v, const char *text, err *e);

static const struct {
    const char *name, *arg, *help;
    status (*run)(reply *r, conversation *v, const char *text, err *e);
} chat_commands[] = {{"/help", "", "list the commands", run_help},
                     {"/new", "", "start a new conversation", run_new},
                     {"/save", " FILE", "save the session, for --load", run_save},
                     {"/attn", " SPEC", "continue with another strategy, such as quest:budget=1024", run_attn},
                     {"/bye", "", "end the chat, like Ctrl-D", run_bye}};
enum { N_COMMANDS = sizeof chat_commands / sizeof *chat_commands };

static status run_help(reply *r, conversation *v, const char *text, err *e)
{
    (void)r;
    (void)v;
    (void)text;
    (void)e;
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(stderr, "  %s%-*s  %s\n", chat_commands[i].name, (int)(12 - strlen(chat_commands[i].name)),
                chat_commands[i].arg, chat_commands[i].help);
    fputs("To send a line that begins with / as text, put a space before it.\n", stderr);
    return ST_OK;
}

static void list_commands(void)
{
    char text[128] = "";
    for (int i = 0; i < N_COMMANDS; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s%s", i ? ", " : "", chat_commands[i].name,
                 chat_commands[i].arg);
    out_note("(commands: %s)", text);
}

/* Runs a command. Its errors do not end the chat. */
static void run_line(reply *r, conversation *v, const char *line)
{
    const size_t n = strcspn(line, " ");
    err why = {0};
    int i = 0;
    while (i < N_COMMANDS && (strlen(chat_commands[i].name) != n || strncmp(chat_commands[i].name, line, n) != 0)) i++;
    if (i == N_COMMANDS)
        fprintf(stderr, "(%.*s: no such command; /help lists them. To send the line as text, put a space before it)\n",
                n < 40 ? (int)n : 40, line);
    else if (chat_commands[i].run(r, v, line + n + strspn(line + n, " "), &why) != ST_OK)
        fprintf(stderr, "(%s: %s)\n", chat_commands[i].name, why.msg);
}

/* Runs a line: a message, or at a terminal a command. */
static status take_line(reply *r, conversation *v, const char *line, err *e)
{
    if (lines_edited(v->in) && line[0] == '/') run_line(r, v, line);
    else if (lines_edited(v->in) && line[0] == ' ' && line[1] == '/') return take_turn(r, v, line + 1, e);
    else if (line[0]) return take_turn(r, v, line, e);
    return ST_OK;
}

static status converse(reply *r, conversation *v, err *e)
{
    const char *line = NULL;
    bool warned = false;
    status st = ST_OK;
    while (st == ST_OK && !v->ended) {
        st = next_line(v, r->o->run.engine.device.ranks, &line, e);
        if (st == ST_INTERRUPTED && cli_ending()) err_set(e, st, "interrupted");
        else if (st == ST_INTERRUPTED) {
            cli_clear_interrupt();
            st = ST_OK;
            if (warned) break;
            warned = true;
            fputs("\n(press Ctrl-C again or Ctrl-D to end the chat)\n", stderr);
            continue;
        }
        warned = false;
        if (st != ST_OK || !line) break;
        st = take_line(r, v, line, e);
    }
    if (lines_edited(v->in) && !v->ended) fputc('\n', stderr);
    return st;
}

/* Fails without a chat template, before the first line is read. */
static status check_template(reply *r, err *e)
{
    const chat_message probe = {"user", "x"};
    token_list unused = {0};
    if (tokenizer_chat_template(r->g.tok)) return ST_OK;
    status st = reply_encode(r, &probe, 1, &unused, e);
    token_list_free(&unused);
    return st;
}

static status run(reply *r, conversation *v, const reply_options *o, err *e)
{
    const comm *ranks = o->run.engine.device.ranks;
    int64_t n_tokens, most;
    TRY(reply_find(r, o, REPLY_TOKENS, e));
    if (r->n_new == 0) r->n_new = REPLY_TOKENS;
    most = r->g.m->config.max_positions < CHAT_CTX ? r->g.m->config.max_positions : CHAT_CTX;
    TRY(reply_tokens(r, most, &n_tokens, e));
    TRY(check_template(r, e));
    TRY(o->load ? reply_load(r, e) : reply_create(r, n_tokens, e));
    if (r->q.ids.n) { /* stands for the loaded conversation, of which a turn needs only the end */
        TRY(add_message(v, "user", "x", e));
        TRY(add_message(v, "assistant", "", e));
    }
    cli_catch_interrupt();
    if (o->system) TRY(add_message(v, "system", o->system, e));
    TRY(lines_open(&v->in, !ranks || ranks->size == 1, e));
    if (lines_edited(v->in)) list_commands();
    TRY(reply_keep(r, json_incref(v->results), converse(r, v, e), e));
    if (v->n_refused == 0 || lines_edited(v->in)) return ST_OK;
    return err_set(e, ST_UNSUPPORTED, "%d message%s did not fit the context of %lld tokens; use --ctx", v->n_refused,
                   v->n_refused > 1 ? "s" : "", (long long)session_limit(r->q.s));
}

static status cmd_chat(void *options, err *e)
{
    reply r = {0};
    conversation v = {.results = json_array()};
    status st = run(&r, &v, options, e);
    json_decref(v.results);
    drop_messages(&v, 0);
    mem_free(v.msg);
    lines_close(v.in);
    mem_free(v.shared);
    reply_free(&r);
    return st;
}

const command chat_command = {.name = "chat",
                              .args = "",
                              .summary = "hold a conversation",
                              .groups = OPTIONS_MODEL | OPTIONS_LENGTH | OPTIONS_REPLY | OPTIONS_PREFIX,
                              .size = sizeof(reply_options),
                              .place = REPLY_PLACES,
                              .run = cmd_chat};
