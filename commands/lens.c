/* SPDX-License-Identifier: MIT */
/* ./run lens: the tokens that strategies read while a text is generated, as records or as a page. */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "cli/command.h"
#include "lens/lens.h"
#include "lens/page.h"
#include "kernels/base/mem.h"

typedef struct {
    run_options run;
    prompt_source prompt;
    template_options template;
    const char *drive;
    int n_new;
    bool chat, ignore_eos;
} lens_cmd_options;

typedef struct {
    const lens_cmd_options *o;
    engine g;
    lineup rows;
    attn_spec full, spec[LENS_STRATEGIES];
    token_list ids;
    out_file out;  /* file of -o */
    bool page;     /* -o is a page; else records */
    json_t *model; /* name of the model */
    lens *lens;
} lens_run_cmd;

/* ---- the output ---- */

static status take_line(void *ctx, const char *text, size_t n, err *e)
{
    lens_run_cmd *r = ctx;
    if (!r->o->run.out.output) return out_write(text, n, e);
    bool good = r->page ? page_line(r->out.f, text, n) : fwrite(text, 1, n, r->out.f) == n;
    return good ? ST_OK : err_set(e, ST_IO, "-o %s: %s", r->o->run.out.output, strerror(errno));
}

static status open_output(lens_run_cmd *r, err *e)
{
    const char *path = r->o->run.out.output, *end = path ? strrchr(path, '.') : NULL;
    if (!path) return ST_OK;
    r->page = end && (strcmp(end, ".html") == 0 || strcmp(end, ".htm") == 0);
    TRY(out_file_open(&r->out, "-o", path, e));
    return !r->page || page_begin(r->out.f) ? ST_OK : err_set(e, ST_IO, "-o %s: %s", path, strerror(errno));
}

/* ---- input ---- */

static status read_rows(lens_run_cmd *r, err *e)
{
    attn_options exact = {.kv = kv_plain(DT_F16)};
    TRY(lineup_read_budgets(&r->rows, &r->o->run.attn, "quest,streaming", "256", e));
    if (r->rows.n > LENS_STRATEGIES)
        return err_set(e, ST_USAGE, "--attn and --budget: %zu strategies in addition to full, expected at most %d",
                       r->rows.n, LENS_STRATEGIES);
    for (size_t i = 0; i < r->rows.n; i++) r->spec[i] = r->rows.run[i].spec;
    if (r->o->run.attn.kv) TRY(kv_format_parse(&exact.kv, r->o->run.attn.kv, "--kv", e));
    if (exact.kv.kind != KV_PLAIN) exact.kv = kv_plain(DT_F16);
    return attn_spec_parse(&r->full, "full", &exact, e);
}

/* Finds --drive: `full`, or a strategy by its name in the records. */
static status find_drive(const lens_run_cmd *r, size_t *out, err *e)
{
    const lens_cmd_options *o = r->o;
    char name[512];
    *out = 0;
    if (!o->drive || strcmp(o->drive, "full") == 0) return ST_OK;
    for (size_t i = 0; i < r->rows.n; i++) {
        lens_name(name, &r->spec[i]);
        if (strcmp(o->drive, name) == 0 || strcmp(o->drive, r->spec[i].text) == 0) *out = i + 1;
    }
    return *out ? ST_OK : err_set(e, ST_USAGE, "--drive %s: expected full or one of --attn", o->drive);
}

static status read_prompt(lens_run_cmd *r, err *e)
{
    const lens_cmd_options *o = r->o;
    char *text;
    size_t n;
    if (o->prompt.text && o->prompt.file) return err_set(e, ST_USAGE, "-p and -f: mutually exclusive");
    if (!o->chat && (o->template.name || o->template.args.n))
        return err_set(e, ST_USAGE, "%s: requires --chat", o->template.name ? "--template" : "--template-arg");
    if (o->chat) TRY(cli_set_template(r->g.tok, &o->template, e));
    TRY(cli_read_text(&text, &n, &o->prompt, o->run.engine.device.ranks, e));
    json_t *list = NULL;
    status st = o->chat ? chat_messages(&list, &(chat_message){"user", text}, 1, e) : ST_OK;
    if (list) st = chat_encode(r->g.tok, &(chat_input){.messages = list}, &r->ids, e);
    else if (st == ST_OK) st = tokenizer_encode_prompt(r->g.tok, text, n, true, &r->ids, e);
    json_decref(list);
    mem_free(text);
    return st;
}

/* ---- results ---- */

/* True if a strategy has means: not all of its layers are dense. */
static bool has_means(const lens_means *m)
{
    return m->attended > 0;
}

static json_t *mean_json(const lens_means *m, double mean)
{
    return has_means(m) ? json_real(mean) : json_null();
}

static status print_means(const lens_run_cmd *r, err *e)
{
    table t = {0};
    if (!r->o->run.out.output) return out_flush(e);
    paragraph("lens: %zu tokens of prompt, means over steps, layers that are not dense, and heads", r->ids.n);
    TRY(lineup_print_terms(&r->rows, e));
    lineup_columns(&r->rows, &t);
    table_column(&t, 0, 0, "read");
    table_column(&t, 0, 0, "missed");
    for (size_t i = 0; i < r->rows.n; i++) {
        lens_means m = lens_mean(r->lens, i);
        lineup_cells(&r->spec[i], &t);
        if (has_means(&m)) table_number(&t, m.attended, 1), table_number(&t, m.missed, 4);
        else table_rest(&t, "-");
    }
    TRY(table_print(&t, e));
    return out_flush(e);
}

static status write_report(const lens_run_cmd *r, err *e)
{
    if (!r->o->run.out.json) return ST_OK;
    json_t *results = json_array();
    for (size_t i = 0; i < r->rows.n; i++) {
        lens_means m = lens_mean(r->lens, i);
        json_array_append_new(results, json_pack("{s:s, s:o, s:o, s:o}", "attn", r->spec[i].text, "budget",
                                                 lineup_budget_json(&r->spec[i]), "attended", mean_json(&m, m.attended),
                                                 "missed", mean_json(&m, m.missed)));
    }
    return report_write(&r->o->run.out, &r->g, json_pack("{s:I}", "prompt_tokens", (json_int_t)r->ids.n), results, NULL,
                        e);
}

/* ---- the command ---- */

static status run(lens_run_cmd *r, err *e)
{
    const lens_cmd_options *o = r->o;
    bool done = false;
    int64_t behind, all;
    lens_options x = {.tok = r->g.tok,
                      .dec = r->g.dec,
                      .model = r->model ? json_string_value(r->model) : "",
                      .id = "0",
                      .full = &r->full,
                      .spec = r->spec,
                      .n = r->rows.n,
                      .ids = r->ids.ids,
                      .n_ids = r->ids.n,
                      .n_new = (size_t)o->n_new,
                      .ignore_eos = o->ignore_eos,
                      .line = take_line,
                      .ctx = r};
    TRY(find_drive(r, &x.drive, e));
    TRY(lens_open(&r->lens, &x, e));
    progress *bar = progress_start("lens");
    status st = ST_OK;
    while (st == ST_OK && !done) {
        st = lens_advance(r->lens, &done, e);
        lens_progress(r->lens, &behind, &all);
        progress_set(bar, behind, all);
        if (st == ST_OK && cli_interrupted()) st = err_set(e, ST_INTERRUPTED, "interrupted");
    }
    progress_end(bar);
    return st;
}

static status start(lens_run_cmd *r, err *e)
{
    TRY(read_rows(r, e));
    TRY(engine_find(&r->g, &r->o->run.engine, true, e));
    r->model = report_model(r->g.m->name);
    TRY(read_prompt(r, e));
    cli_warn_length(r->g.m, "prompt plus -n,", (int64_t)r->ids.n + r->o->n_new);
    TRY(engine_load(&r->g, 1 + r->rows.n, e));
    for (size_t i = 0; i < r->rows.n; i++) TRY(attn_spec_check(&r->spec[i], decoder_attn_shape(r->g.dec), e));
    return open_output(r, e);
}

static status cmd_lens(void *options, err *e)
{
    const lens_cmd_options *o = options;
    lens_run_cmd r = {.o = o};
    cli_catch_interrupt();
    status st = start(&r, e);
    if (st == ST_OK) st = run(&r, e);
    if (st == ST_OK && r.page && !page_end(r.out.f))
        st = err_set(e, ST_IO, "-o %s: %s", o->run.out.output, strerror(errno));
    if (r.out.f) {
        status closed = out_file_close(&r.out, st == ST_OK, st == ST_OK ? e : NULL);
        if (st == ST_OK) st = closed;
    }
    if (st == ST_OK) st = print_means(&r, e);
    if (st == ST_OK) st = write_report(&r, e);
    st = report_check_end(&o->run.out, st, e);
    cli_clear_interrupt();
    lens_close(r.lens);
    json_decref(r.model);
    lineup_free(&r.rows);
    token_list_free(&r.ids);
    engine_close(&r.g);
    return st;
}

#define OWN(field) AT(lens_cmd_options, field)

static const cli_option rows[] = {
    {.letter = 'p', .arg = "TEXT", OWN(prompt.text), .help = "prompt (default: standard input)"},
    {.letter = 'f', .arg = "FILE", OWN(prompt.file), .help = "read the prompt from a file"},
    OPTION("chat", NULL, FLAG, OWN(chat), "wrap the prompt in the model's chat template"),
    OPTION("template", "FILE|NAME|TEXT", TEXT, OWN(template.name),
           "chat template: a Jinja file, a name or a Jinja text (default: the model's own)"),
    OPTION("template-arg", "NAME=VALUE", .type = OPTION_TEXTS, OWN(template.args),
           "variable of the chat template, such as enable_thinking=false; repeatable"),
    {.letter = 'n', .arg = "N", WHOLE(1, 1 << 20, 32), OWN(n_new), .help = "maximum new tokens (default 32)"},
    OPTION("drive", "NAME", TEXT, OWN(drive),
           "strategy whose most likely tokens are generated: full (default) or one of --attn"),
    OPTION("ignore-eos", NULL, FLAG, OWN(ignore_eos), "continue after end-of-text"),
    {.letter = 'o',
     .arg = "FILE",
     OWN(run.out.output),
     .help = "FILE.html: page for a browser; else records, one JSON line each (default: standard output)"},
    {0}};

const command lens_command = {.name = "lens",
                              .args = "",
                              .summary = "show which tokens of a prompt strategies read",
                              .groups = OPTIONS_MODEL,
                              .own = rows,
                              .size = sizeof(lens_cmd_options),
                              .alone = true,
                              .run = cmd_lens};
