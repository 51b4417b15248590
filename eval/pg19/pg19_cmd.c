/* SPDX-License-Identifier: MIT */
/* `eval pg19`: options, books, results. */
#include "config.h"

#include <string.h>

#include "cli/command.h"
#include "eval/pg19/pg19.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

enum { DEFAULT_LENGTH = 4096, DEFAULT_STRIDE = 256, DEFAULT_BOOKS = 1 };
/* ---- options ---- */

/* Refuses options of another protocol, which would have no effect. */
static status check_options(const pg19_run *r, err *e)
{
    const pg19_options *o = r->o;
    const char *name = pg19_protocols[r->protocol];
    if (r->protocol == PG19_DECODE && (o->max_length || r->o->tokens))
        return err_set(e, ST_USAGE, "%s: --protocol decode takes its length from --ctx N",
                       o->max_length ? "--max-length" : "--tokens");
    if (r->protocol != PG19_DECODE && o->run.attn.ctx)
        return err_set(e, ST_USAGE, "--ctx: --protocol %s takes its length from --max-length N", name);
    if (r->protocol != PG19_DECODE && r->o->prompt)
        return err_set(e, ST_USAGE, "--prompt: --protocol %s feeds windows, --protocol decode has a prompt", name);
    if (r->protocol != PG19_WINDOW && r->o->stride)
        return err_set(e, ST_USAGE, "--stride: --protocol %s has none", name);
    return ST_OK;
}

static status parse_protocol(pg19_run *r, err *e)
{
    const char *text = r->o->protocol ? r->o->protocol : pg19_protocols[PG19_DECODE];
    for (pg19_protocol p = PG19_DECODE; p <= PG19_TRUNCATE; p++) {
        if (strcmp(text, pg19_protocols[p]) != 0) continue;
        r->protocol = p;
        return check_options(r, e);
    }
    return err_set(e, ST_USAGE, "--protocol: unknown protocol '%.40s' (decode, window, truncate)", text);
}

static status parse_lengths(pg19_run *r, err *e)
{
    const pg19_options *o = r->o;
    bool decode = r->protocol == PG19_DECODE;
    const char *option = decode ? "--ctx" : "--max-length", *text = decode ? o->run.attn.ctx : o->max_length;
    TRY(cli_parse_sizes(&r->length, &r->n_lengths, text, "0", option, e));
    if (decode && r->n_lengths > 1)
        return err_set(e, ST_USAGE, "--ctx: one length is needed, the curve shows all below it");
    r->stride = r->protocol == PG19_WINDOW ? DEFAULT_STRIDE : 0;
    if (r->o->stride) TRY(cli_parse_size(&r->stride, r->o->stride, "--stride", e));
    if (r->o->tokens) TRY(cli_parse_size(&r->tokens, r->o->tokens, "--tokens", e));
    if (r->o->prompt) TRY(cli_parse_size(&r->prompt, r->o->prompt, "--prompt", e));
    if (r->o->prompt && r->prompt < 1) return err_set(e, ST_USAGE, "--prompt %s: at least 1 is needed", r->o->prompt);
    if (r->o->stride && r->stride < 1) return err_set(e, ST_USAGE, "--stride %s: at least 1 is needed", r->o->stride);
    if (r->o->tokens && r->tokens < 2) return err_set(e, ST_USAGE, "--tokens %s: at least 2 are needed", r->o->tokens);
    for (size_t i = 0; text && i < r->n_lengths; i++)
        if (r->length[i] < (decode ? 1 : 2))
            return err_set(e, ST_USAGE, "%s %lld: at least %d token%s needed", option, (long long)r->length[i],
                           decode ? 1 : 2, decode ? " is" : "s are");
    return ST_OK;
}

static status read_books(pg19_run *r, err *e)
{
    const pg19_options *o = r->o;
    const char *dir;
    size_t limit = o->limit ? (size_t)o->limit : DEFAULT_BOOKS;
    if (o->data) return pg19_read(&r->books, o->data, limit, e);
    TRY(cli_data_dir(&dir, e));
    char *own = path_join(dir, "pg19");
    status st = own ? pg19_read(&r->books, own, limit, e) : err_set(e, ST_NOMEM, "out of memory");
    mem_free(own);
    return st;
}

/* Default lengths, and checks that depend on the model. */
static status finish_lengths(pg19_run *r, err *e)
{
    const pg19_options *o = r->o;
    const model *m = r->m.g.m;
    int64_t most = m->config.max_positions, def = most < DEFAULT_LENGTH ? most : DEFAULT_LENGTH;
    bool bos = tokenizer_bos(r->m.g.tok) >= 0, decode = r->protocol == PG19_DECODE;
    if (!o->run.attn.ctx && !o->max_length) r->length[0] = def;
    for (size_t i = 0; i < r->n_lengths; i++) {
        for (size_t k = 0; k < i; k++)
            if (r->length[k] == r->length[i])
                return err_set(e, ST_USAGE, "--max-length: %lld is there twice", (long long)r->length[i]);
        cli_warn_length(m, decode ? "--ctx" : "--max-length", r->length[i]);
        if (r->stride > r->length[i] - bos)
            return err_set(e, ST_USAGE, "--stride %lld: windows of %lld tokens%s would leave gaps in the text",
                           (long long)r->stride, (long long)r->length[i], bos ? ", one of them BOS," : "");
        if (r->prompt >= r->length[i])
            return err_set(e, ST_USAGE, "--prompt %lld: less than --ctx %lld is expected", (long long)r->prompt,
                           (long long)r->length[i]);
    }
    return ST_OK;
}

/* ---- books in tokens ---- */

/* As the reference tokenizes a text: with BOS where it puts one; for windows without. */
static status tokenize(const pg19_run *r, pg19_book *b, err *e)
{
    unsigned flags = TOKENIZE_SPECIAL;
    if (r->protocol == PG19_DECODE && tokenizer_adds_bos(r->m.g.tok)) flags |= TOKENIZE_BOS;
    TRY(tokenizer_encode(r->m.g.tok, b->text, b->n, flags, &b->ids, e));
    mem_free(b->text);
    b->text = NULL;
    bool before = r->protocol != PG19_DECODE && tokenizer_bos(r->m.g.tok) >= 0; /* BOS of a window */
    if (r->prompt > 0 && (int64_t)b->ids.n <= r->prompt)
        return err_set(e, ST_USAGE, "--prompt %lld: %.100s has %zu tokens, more are needed", (long long)r->prompt,
                       b->name, b->ids.n);
    if (b->ids.n + before >= 2) return ST_OK;
    return err_set(e, ST_FORMAT, "%.100s: the text is too short: no token follows another one", b->name);
}

/* Tokens of the longest session. */
static int64_t session_tokens(const pg19_run *r)
{
    int64_t most = 1;
    for (size_t i = 0; i < r->n_lengths; i++)
        if (r->length[i] > most) most = r->length[i];
    if (r->protocol != PG19_DECODE) return most;
    size_t longest = 0;
    for (size_t i = 0; i < r->books.n; i++)
        if (r->books.book[i].ids.n > longest) longest = r->books.book[i].ids.n;
    return (int64_t)longest - 1 < most ? (int64_t)longest - 1 : most;
}

/* ---- the command ---- */

static status parse(void *own, err *e)
{
    pg19_run *r = own;
    TRY(parse_protocol(r, e));
    TRY(parse_lengths(r, e));
    return read_books(r, e);
}

static status ready(void *own, err *e)
{
    pg19_run *r = own;
    TRY(finish_lengths(r, e));
    for (size_t i = 0; i < r->books.n; i++) {
        TRY(tokenize(r, &r->books.book[i], e));
        if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    return lineup_check(&r->m.rows, &r->m.g, session_tokens(r), e);
}

static size_t passes(const void *own)
{
    return ((const pg19_run *)own)->books.n;
}

static json_t *number_json(int64_t x)
{
    return x ? json_integer(x) : json_null();
}

static json_t *config(const void *own)
{
    const pg19_run *r = own;
    return json_pack("{s:s, s:o, s:o, s:o}", "protocol", pg19_protocols[r->protocol], "lengths",
                     report_sizes(r->length, r->n_lengths), "stride", number_json(r->stride), "tokens",
                     number_json(r->tokens));
}

static json_t *output_config(const void *own)
{
    const pg19_run *r = own;
    json_t *list = json_array();
    for (const pg19_book *b = r->books.book; b < r->books.book + r->books.n; b++)
        list =
            results_append(list, json_pack("{s:s, s:s, s:s}", "name", b->name, "title", b->title, "sha256", b->sha256));
    return json_pack("{s:o, s:o*}", "data", list, "prompt", r->prompt ? json_integer(r->prompt) : NULL);
}

static json_t *json_config(const void *own)
{
    const pg19_run *r = own;
    const char *names = r->m.o->attn.names;
    return json_pack("{s:s, s:f}", "attn", names ? names : "full", "tolerance", r->tolerance);
}

/* Lists the results by row, book and length. */
static json_t *results_json(const void *own)
{
    const pg19_run *r = own;
    size_t n = r->books.n * r->n_lengths;
    json_t *list = json_array();
    for (size_t i = 0; i < r->m.rows.n * n; i++) {
        const json_t *line = pg19_result(r, i / n, i % n / r->n_lengths, r->length[i % r->n_lengths]);
        if (line) list = results_append(list, json_incref((json_t *)(uintptr_t)line));
    }
    return list;
}

static const char *const identity[] = {"book", "attn", "budget", "length", NULL};

static const measure_kind pg19_kind = {.attn = "full",
                                       .identity = identity,
                                       .resume = "from there",
                                       .together = true,
                                       .passes = passes,
                                       .parse = parse,
                                       .ready = ready,
                                       .config = config,
                                       .output_config = output_config,
                                       .json_config = json_config,
                                       .run = pg19_run_book,
                                       .end = pg19_print,
                                       .results = results_json,
                                       .extra = pg19_all_json};

static status cmd_pg19(void *options, err *e)
{
    const pg19_options *o = options;
    pg19_run r = {
        .m.o = &o->run, .o = o, .tolerance = cli_builtin_gemm(&o->run.engine.device) ? PG19_LIMIT_BUILTIN : PG19_LIMIT};
    status st = measure_run(&r.m, &pg19_kind, e);
    if (st == ST_OK) st = pg19_check(&r, e);
    pg19_books_free(&r.books);
    mem_free(r.length);
    measure_close(&r.m);
    return st;
}

static const cli_option rows[] = {
    OPTION("data", "PATH,...", TEXT, AT(pg19_options, data),
           "texts, JSON lines with \"text\", or folders of them (default: a book)"),
    OPTION("limit", "N", WHOLE(1, 1 << 30, 0), AT(pg19_options, limit), "the first N books (default 1)"),
    OPTION("protocol", "decode|window|truncate", TEXT, AT(pg19_options, protocol),
           "token by token through the strategy (default; Quest), YaRN's sliding window, or its first window"),
    OPTION("ctx", "N", TEXT, AT(pg19_options, run.attn.ctx),
           "decode: tokens of a book (default: the model's window, at most 4k)"),
    OPTION("prompt", "N", TEXT, AT(pg19_options, prompt),
           "decode: the first N tokens are a prompt, and those behind it are scored (default: there is none)"),
    OPTION("max-length", "N,...", TEXT, AT(pg19_options, max_length), "tokens of a window (default: as --ctx)"),
    OPTION("stride", "N", TEXT, AT(pg19_options, stride), "a window begins every N tokens (default 256)"),
    OPTION("tokens", "N", TEXT, AT(pg19_options, tokens), "windows: at most N tokens of a book"),
    OPTION("csv", "FILE", TEXT, AT(pg19_options, run.out.csv), "write book,title,strategy,budget,length,ppl"),
    {0}};

const command pg19_command = {.name = "eval pg19",
                              .args = "",
                              .summary = "perplexity against length on books: strategies and budgets compared",
                              .groups = OPTIONS_MODEL | OPTIONS_RESULTS,
                              .own = rows,
                              .size = sizeof(pg19_options),
                              .run = cmd_pg19};
