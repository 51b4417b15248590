/* SPDX-License-Identifier: MIT */
/* ./run template: prints what a chat template renders. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/output.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "tokenizer/chat_set.h"

enum { MAX_FILE = 64 << 20 };

typedef struct {
    tool_options t;
    template_options template;
    const char *file, *context, *messages;
    bool ids;
} template_cmd_options;

static status read_json(json_t **out, const char *path, err *e)
{
    char *text;
    size_t n;
    TRY(file_read_text(&text, &n, path, MAX_FILE, e));
    status st = chat_parse(out, text, n, path, e);
    mem_free(text);
    return st;
}

/* Returns the status of a rendering: a template that refuses messages is no wrong option. */
static status refusal(status st)
{
    return st == ST_USAGE ? ST_FORMAT : st;
}

/* Renders a template file with the variables of a context, as they are. */
static status render_file(const template_cmd_options *o, err *e)
{
    json_t *variables = NULL;
    char *text = NULL;
    size_t n;
    chat_template t = {0};
    jinja_text out = {0};
    status st = o->context ? read_json(&variables, o->context, e) : ST_OK;
    if (st == ST_OK) st = chat_template_read(&text, &n, o->file, e);
    if (st == ST_OK) st = chat_template_parse(&t, "", path_tail(o->file), text, n, e);
    if (st == ST_OK && !t.parsed) st = err_set(e, ST_FORMAT, "%s", t.why);
    if (st == ST_OK) st = refusal(jinja_render(t.parsed, variables, chat_clock(), &out, e));
    if (st == ST_OK) st = out_write(out.text, out.n, e);
    jinja_text_free(&out);
    chat_template_free(&t);
    mem_free(text);
    json_decref(variables);
    return st;
}

static status print_text(const tokenizer *t, const chat_input *in, err *e)
{
    char *text;
    size_t n;
    TRY(refusal(chat_render(t, in, &text, &n, e)));
    status st = out_write(text, n, e);
    mem_free(text);
    return st;
}

static status print_ids(const tokenizer *t, const chat_input *in, err *e)
{
    token_list l = {0};
    status st = refusal(chat_encode(t, in, &l, e));
    for (size_t i = 0; i < l.n && st == ST_OK; i++) st = out_printf(e, i ? " %d" : "%d", (int)l.ids[i]);
    if (st == ST_OK) st = out_write("\n", 1, e);
    token_list_free(&l);
    return st;
}

/* Renders the conversation of a file with the template of a model. Other members than messages and tools are variables
 * of the template. */
static status render_messages(const template_cmd_options *o, err *e)
{
    const char *dir;
    tokenizer *t = NULL;
    json_t *j = NULL;
    TRY(cli_model_dir(&dir, o->t.model.dir, e));
    status st = cli_open_tokenizer(&t, dir, e);
    if (st == ST_OK) st = cli_set_template(t, &o->template, e);
    if (st == ST_OK) st = read_json(&j, o->messages, e);
    const chat_input in = chat_input_of(j);
    if (st == ST_OK) st = o->ids ? print_ids(t, &in, e) : print_text(t, &in, e);
    json_decref(j);
    tokenizer_free(t);
    return st;
}

static status cmd_template(void *options, err *e)
{
    const template_cmd_options *o = options;
    if (o->context && !o->file) return err_set(e, ST_USAGE, "--context: requires --file");
    if (!o->file == !o->messages) return err_set(e, ST_USAGE, "expected --file or --messages");
    if (o->ids && o->file) return err_set(e, ST_USAGE, "--ids: requires --messages");
    if (o->file && (o->template.name || o->template.args.n))
        return err_set(e, ST_USAGE, "%s: requires --messages", o->template.name ? "--template" : "--template-arg");
    TRY(o->file ? render_file(o, e) : render_messages(o, e));
    return out_flush(e);
}

#define OWN(field) AT(template_cmd_options, field)
static const cli_option own[] = {
    OPTION("file", "FILE", TEXT, OWN(file), "render this Jinja template"),
    OPTION("context", "FILE", TEXT, OWN(context), "JSON object with the variables of --file (default: none)"),
    OPTION("messages", "FILE", TEXT, OWN(messages),
           "JSON conversation for the model's template: messages, or an object with messages and tools"),
    OPTION("template", "FILE|NAME|TEXT", TEXT, OWN(template.name),
           "chat template: a Jinja file, a name or a Jinja text (default: the model's own)"),
    OPTION("template-arg", "NAME=VALUE", .type = OPTION_TEXTS, OWN(template.args),
           "variable of the chat template, such as enable_thinking=false; repeatable"),
    OPTION("ids", NULL, FLAG, OWN(ids), "print the token ids of the conversation"),
    {0}};

const command template_command = {.name = "template",
                                  .args = "",
                                  .summary = "print what a chat template renders",
                                  .own = own,
                                  .size = sizeof(template_cmd_options),
                                  .alone = true,
                                  .run = cmd_template};
