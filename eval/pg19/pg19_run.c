/* SPDX-License-Identifier: MIT */
/* `eval pg19`: options, and results as tables (lengths by strategies), CSV and JSON. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "cli/command.h"
#include "eval/perplexity.h"
#include "eval/pg19/pg19.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

enum { DEFAULT_LENGTH = 4096, DEFAULT_STRIDE = 256, DEFAULT_BOOKS = 1 };
enum { FIRST_COLUMN = 256, MAX_COLUMNS = 48, CELL = 9 };

/* ---- options ---- */

/* Refuses options of other protocols, which would have no effect. */
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
        return err_set(e, ST_USAGE, "--prompt: not supported by --protocol %s; use --protocol decode", name);
    if (r->protocol != PG19_WINDOW && r->o->stride)
        return err_set(e, ST_USAGE, "--stride: not supported by --protocol %s", name);
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
        return err_set(e, ST_USAGE, "--ctx: expected one length; the curve has all shorter ones");
    r->stride = r->protocol == PG19_WINDOW ? DEFAULT_STRIDE : 0;
    if (r->o->stride) TRY(cli_parse_size(&r->stride, r->o->stride, "--stride", e));
    if (r->o->tokens) TRY(cli_parse_size(&r->tokens, r->o->tokens, "--tokens", e));
    if (r->o->prompt) TRY(cli_parse_size(&r->prompt, r->o->prompt, "--prompt", e));
    if (r->o->prompt && r->prompt < 1) return err_set(e, ST_USAGE, "--prompt %s: must be at least 1", r->o->prompt);
    if (r->o->stride && r->stride < 1) return err_set(e, ST_USAGE, "--stride %s: must be at least 1", r->o->stride);
    if (r->o->tokens && r->tokens < 2) return err_set(e, ST_USAGE, "--tokens %s: must be at least 2", r->o->tokens);
    for (size_t i = 0; text && i < r->n_lengths; i++)
        if (r->length[i] < (decode ? 1 : 2))
            return err_set(e, ST_USAGE, "%s %lld: must be at least %d token%s", option, (long long)r->length[i],
                           decode ? 1 : 2, decode ? "" : "s");
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

/* Sets default lengths and makes the checks that depend on the model. */
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
                return err_set(e, ST_USAGE, "--max-length: duplicate length %lld", (long long)r->length[i]);
        cli_warn_length(m, decode ? "--ctx" : "--max-length", r->length[i]);
        if (r->stride > r->length[i] - bos)
            return err_set(e, ST_USAGE, "--stride %lld: windows of %lld tokens%s would leave gaps in the text",
                           (long long)r->stride, (long long)r->length[i], bos ? ", one of them BOS," : "");
        if (r->prompt >= r->length[i])
            return err_set(e, ST_USAGE, "--prompt %lld: must be less than --ctx %lld", (long long)r->prompt,
                           (long long)r->length[i]);
    }
    return ST_OK;
}

/* ---- tokenization ---- */

/* Tokenizes a book as the reference does: with BOS if the tokenizer adds it; for windows without. */
static status tokenize(const pg19_run *r, pg19_book *b, err *e)
{
    unsigned flags = TOKENIZE_SPECIAL;
    if (r->protocol == PG19_DECODE && tokenizer_adds_bos(r->m.g.tok)) flags |= TOKENIZE_BOS;
    TRY(tokenizer_encode(r->m.g.tok, b->text, b->n, flags, &b->ids, e));
    mem_free(b->text);
    b->text = NULL;
    bool before = r->protocol != PG19_DECODE && tokenizer_bos(r->m.g.tok) >= 0; /* the window's BOS */
    if (r->prompt > 0 && (int64_t)b->ids.n <= r->prompt)
        return err_set(e, ST_USAGE, "--prompt %lld: too long; %.100s has %zu tokens", (long long)r->prompt, b->name,
                       b->ids.n);
    if (b->ids.n + before >= 2) return ST_OK;
    return err_set(e, ST_FORMAT, "%.100s: the text is too short: there is no token to score", b->name);
}

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

/* Index that stands for all books. */
static const size_t ALL = SIZE_MAX;

/* ---- numbers ---- */

/* Returns the sum of the first n values of a decode result; NAN if its curve lacks that point. */
static double sum_at(const json_t *line, int64_t n)
{
    const json_t *curve = json_object_get(line, "curve"), *length = json_object_get(curve, "length"),
                 *ppl = json_object_get(curve, "ppl");
    for (size_t i = 0; i < json_array_size(length); i++)
        if (json_integer_value(json_array_get(length, i)) == n) {
            const json_t *x = json_array_get(ppl, i);
            return json_is_number(x) ? (double)n * log(json_number_value(x)) : (double)NAN;
        }
    return (double)NAN;
}

/* Totals of a row at a length, for one book or all. */
typedef struct {
    size_t n;
    int64_t tokens, longest;                      /* total; maximum of one book */
    double nll, loss, windows, attended, seconds; /* sums; attended: over tokens */
    double kv_bytes, index_bytes;                 /* maximum */
    bool limited;                                 /* some token was not attended */
    double worst;                                 /* largest difference from a chunked pass; -1: none */
    const json_t *worst_line;
    size_t worst_book;
} totals;

static void add_difference(totals *t, const json_t *line, size_t book)
{
    double d = results_number(line, "chunked_rms");
    if (isnan(d) || d <= t->worst) return;
    t->worst = d;
    t->worst_line = line;
    t->worst_book = book;
}

static totals totals_of(const pg19_run *r, size_t row, size_t book, int64_t length)
{
    totals t = {.worst = -1};
    for (size_t i = 0; i < r->books.n; i++) {
        const json_t *line = book == ALL || book == i ? pg19_result(r, row, i, length) : NULL;
        if (!line) continue;
        int64_t tokens = json_integer_value(json_object_get(line, "tokens"));
        double attended = results_number(line, "attended");
        t.n++;
        t.tokens += tokens;
        if (tokens > t.longest) t.longest = tokens;
        t.nll += results_number(line, "nll");
        t.loss += results_number(line, "loss");
        t.windows += results_number(line, "windows");
        t.attended += attended * (double)tokens;
        t.seconds += results_number(line, "seconds") / results_number(line, "together");
        t.kv_bytes = fmax(t.kv_bytes, results_number(line, "kv_bytes"));
        t.index_bytes = fmax(t.index_bytes, results_number(line, "index_bytes"));
        t.limited |= attended < results_number(line, "visible");
        add_difference(&t, line, i);
    }
    return t;
}

/* Returns the perplexity of the first n tokens of the books that have n tokens; NAN if none has. */
static double ppl_of_first(const pg19_run *r, size_t row, size_t book, int64_t n)
{
    double sum = 0, count = 0;
    for (size_t i = 0; i < r->books.n; i++) {
        const json_t *line = book == ALL || book == i ? pg19_result(r, row, i, r->length[0]) : NULL;
        if (!line || json_integer_value(json_object_get(line, "tokens")) < n) continue;
        sum += sum_at(line, n);
        count += (double)n;
    }
    return count > 0 ? exp(sum / count) : (double)NAN;
}

/* Returns the perplexity of the first n tokens (n 0: all), or in windows of n tokens; NAN: no results. */
static double ppl_at(const pg19_run *r, size_t row, size_t book, int64_t n)
{
    bool decode = r->protocol == PG19_DECODE;
    if (decode && n) return ppl_of_first(r, row, book, n);
    const totals t = totals_of(r, row, book, decode ? r->length[0] : n);
    double sum = decode ? t.nll : t.loss, count = decode ? (double)t.tokens : t.windows;
    return count > 0 ? exp(sum / count) : (double)NAN;
}

/* Returns the tokens of the longest result of a book, or of all books. */
static int64_t longest(const pg19_run *r, size_t book)
{
    int64_t most = 0;
    for (size_t row = 0; row < r->m.rows.n; row++) {
        const totals t = totals_of(r, row, book, r->length[0]);
        if (t.longest > most) most = t.longest;
    }
    return most;
}

/* ---- text ---- */

/* Lists the lengths of a table; 0 stands for all tokens of all books. */
static size_t list_columns(const pg19_run *r, size_t book, int64_t out[MAX_COLUMNS])
{
    size_t n = 0;
    if (r->protocol != PG19_DECODE) {
        for (size_t i = 0; i < r->n_lengths && n < MAX_COLUMNS; i++) out[n++] = r->length[i];
        return n;
    }
    int64_t most = longest(r, book), at = FIRST_COLUMN;
    for (; at < most || (at == most && book == ALL); at *= 2) out[n++] = at;
    out[n++] = book == ALL ? 0 : most;
    return n;
}

static void length_text(char out[24], int64_t n)
{
    if (n == 0) snprintf(out, 24, "all");
    else if (n % 1024 == 0) snprintf(out, 24, "%lldk", (long long)(n / 1024));
    else snprintf(out, 24, "%lld", (long long)n);
}

static void add_columns(const pg19_run *r, const int64_t *column, size_t n, table *t)
{
    char text[24];
    lineup_columns(&r->m.rows, t);
    for (size_t i = 0; i < n; i++) {
        length_text(text, column[i]);
        table_column(t, 0, 0, text);
    }
    if (r->protocol != PG19_DECODE) return;
    table_column(t, 0, 0, "attended");
    table_column(t, TABLE_DETAIL, 0, "KV MB");
    table_column(t, TABLE_DETAIL2, 0, "index MB");
}

static void add_row(const pg19_run *r, size_t row, size_t book, const int64_t *column, size_t n, table *t)
{
    lineup_cells(&r->m.rows.run[row].spec, t);
    for (size_t i = 0; i < n; i++) {
        double x = ppl_at(r, row, book, column[i]);
        if (!isfinite(x)) table_cell(t, isinf(x) ? "inf" : "-");
        else if (x < 1e5) table_cell(t, "%.4f", x);
        else table_cell(t, "%.3e", x);
    }
    if (r->protocol != PG19_DECODE) return;
    const totals sum = totals_of(r, row, book, r->length[0]);
    double known = sum.n > 0 ? 1 : (double)NAN;
    table_number(t, sum.attended / (double)sum.tokens, 1);
    table_number(t, known * sum.kv_bytes / 1e6, 2);
    table_number(t, known * sum.index_bytes / 1e6, 2);
}

static status print_title(const pg19_run *r, size_t book, err *e)
{
    const pg19_book *b = book == ALL ? NULL : &r->books.book[book];
    if (b) paragraph("pg19: %s", b->title);
    else paragraph("pg19: %zu books", r->books.n);
    switch (r->protocol) {
    case PG19_DECODE:
        paragraph("%s, token by token: perplexity of the first L tokens", b ? "" : " together");
        if (r->prompt) paragraph(" after a prompt of %lld", (long long)r->prompt);
        break;
    case PG19_WINDOW:
        paragraph(", windows every %lld tokens: perplexity by length of the windows", (long long)r->stride);
        break;
    case PG19_TRUNCATE: paragraph(", the first window alone: perplexity by its length");
    }
    return lineup_print_terms(&r->m.rows, e);
}

static status print_table(const pg19_run *r, size_t book, err *e)
{
    int64_t column[MAX_COLUMNS];
    size_t n = list_columns(r, book, column);
    TRY(print_title(r, book, e));
    table t = {0};
    add_columns(r, column, n, &t);
    for (size_t i = 0; i < r->m.rows.n; i++) add_row(r, i, book, column, n, &t);
    TRY(table_print(&t, e));
    return out_printf(e, "\n");
}

/* ---- below the tables ---- */

/* Prints that no token of a row was left out, or the difference from its chunked pass. */
static status print_note(const pg19_run *r, size_t row, const totals *t, err *e)
{
    const attn_spec *spec = &r->m.rows.run[row].spec;
    if (t->n > 0 && !t->limited && attn_has_budget(spec)) {
        paragraph("  - %s, budget %lld: every token was attended: the text is within the budget or too short for this "
                  "strategy, or the strategy selects only after prompts",
                  spec->text, (long long)spec->budget);
        return paragraph_end(4, e);
    }
    if (t->worst < 0) return ST_OK;
    paragraph(
        "  - %s: %.6f token by token, %.6f in one chunked pass: log-likelihoods %.1e apart (root mean square over "
        "tokens; limit %.0e)",
        spec->text, results_number(t->worst_line, "ppl"), results_number(t->worst_line, "chunked_ppl"), t->worst,
        results_number(t->worst_line, "chunked_limit"));
    return paragraph_end(4, e);
}

static status print_notes(const pg19_run *r, err *e)
{
    double seconds = 0;
    int64_t tokens = 0;
    TRY(lineup_print_why(&r->m.rows, e));
    if (r->protocol != PG19_DECODE) return ST_OK;
    for (size_t row = 0; row < r->m.rows.n; row++) {
        const totals t = totals_of(r, row, ALL, r->length[0]);
        TRY(print_note(r, row, &t, e));
        seconds += t.seconds;
        tokens += t.tokens;
    }
    return out_printf(e, "%lld tokens in %.1f s: %.1f tokens/s%s\n", (long long)tokens, seconds,
                      seconds > 0 ? (double)tokens / seconds : 0,
                      r->m.rows.n > 1 ? " of all strategies, side by side" : "");
}

/* ---- CSV ---- */

/* Writes a text and a comma. */
static void csv_text(FILE *f, const char *s)
{
    bool quoted = s[strcspn(s, ",\"\r\n")] != 0;
    if (quoted) fputc('"', f);
    for (; *s; s++) fprintf(f, "%s%c", *s == '"' ? "\"" : "", *s);
    fputs(quoted ? "\"," : ",", f);
}

/* Writes a point of a curve, unless it is unknown. */
static void csv_row(FILE *f, const pg19_run *r, size_t row, size_t book, int64_t n)
{
    const attn_spec *spec = &r->m.rows.run[row].spec;
    const pg19_book *b = book == ALL ? NULL : &r->books.book[book];
    double ppl = ppl_at(r, row, book, n);
    char budget[24] = "";
    if (isnan(ppl)) return;
    if (attn_has_budget(spec)) lineup_budget_text(budget, sizeof budget, spec);
    csv_text(f, b ? b->name : "all");
    csv_text(f, b ? b->title : "all books");
    csv_text(f, spec->text);
    fprintf(f, "%s,%lld,%.17g\n", budget, (long long)n, ppl);
}

/* Writes all points of a book's curves. */
static status csv_book(FILE *f, const pg19_run *r, size_t book, err *e)
{
    size_t tokens = (size_t)longest(r, book), n = perplexity_lengths(tokens, NULL);
    int64_t *curve, *length = r->length;
    TRY(MEM_NEW(&curve, n, e));
    if (r->protocol == PG19_DECODE) perplexity_lengths(tokens, length = curve);
    else n = r->n_lengths;
    for (size_t i = 0; i < r->m.rows.n * n; i++) csv_row(f, r, i / n, book, length[i % n]);
    mem_free(curve);
    return ST_OK;
}

static status write_csv(const pg19_run *r, err *e)
{
    out_file o;
    TRY(out_file_open(&o, "--csv", r->m.o->out.csv, e));
    fputs("book,title,strategy,budget,length,ppl\n", o.f);
    status st = ST_OK;
    for (size_t i = 0; i < r->books.n && st == ST_OK; i++) st = csv_book(o.f, r, i, e);
    if (r->books.n > 1 && st == ST_OK) st = csv_book(o.f, r, ALL, e);
    status closed = out_file_close(&o, !ferror(o.f) && st == ST_OK, st == ST_OK ? e : NULL);
    return st == ST_OK ? closed : st;
}

/* ---- JSON ---- */

static json_t *all_json(const void *run)
{
    const pg19_run *r = run;
    json_t *all = json_array();
    for (size_t row = 0; row < r->m.rows.n; row++) {
        json_t *ppl = json_array();
        for (size_t i = 0; i < r->n_lengths; i++)
            ppl = results_append(ppl, results_real(ppl_at(r, row, ALL, r->protocol == PG19_DECODE ? 0 : r->length[i])));
        all = results_append(all, measure_row_json(&r->m, row, json_pack("{s:o, s:n}", "ppl", ppl, "reason")));
    }
    return json_pack("{s:o}", "all", all);
}

/* Returns an error if a decode path and its chunked pass disagree. */
static status check_paths(const pg19_run *r, err *e)
{
    for (size_t row = 0; row < r->m.rows.n && r->protocol == PG19_DECODE; row++) {
        const totals t = totals_of(r, row, ALL, r->length[0]);
        if (t.worst < 0 || t.worst <= results_number(t.worst_line, "chunked_limit")) continue;
        return err_set(e, ST_DEVICE,
                       "%.60s: book %.60s: the log-likelihoods token by token and in one chunked pass are %.1e apart; "
                       "the limit is %.0e",
                       r->m.rows.run[row].spec.text, r->books.book[t.worst_book].name, t.worst,
                       results_number(t.worst_line, "chunked_limit"));
    }
    return ST_OK;
}

static status print_all(const void *run, err *e)
{
    const pg19_run *r = run;
    for (size_t i = 0; i < r->books.n && r->protocol == PG19_DECODE; i++) TRY(print_table(r, i, e));
    if (r->books.n > 1 || r->protocol != PG19_DECODE) TRY(print_table(r, r->books.n > 1 ? ALL : 0, e));
    TRY(print_notes(r, e));
    return r->m.o->out.csv ? write_csv(r, e) : ST_OK;
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
    return json_pack("{s:s}", "attn", names ? names : "full");
}

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
                                       .end = print_all,
                                       .results = results_json,
                                       .extra = all_json};

static status cmd_pg19(void *options, err *e)
{
    const pg19_options *o = options;
    pg19_run r = {.m.o = &o->run, .o = o};
    status st = measure_run(&r.m, &pg19_kind, e);
    if (st == ST_OK) st = check_paths(&r, e);
    pg19_books_free(&r.books);
    mem_free(r.length);
    measure_close(&r.m);
    return st;
}

static const cli_option rows[] = {
    OPTION("data", "PATH,...", TEXT, AT(pg19_options, data),
           "text files, JSON lines with \"text\", or folders of them (default: one book)"),
    OPTION("limit", "N", WHOLE(1, 1 << 30, 0), AT(pg19_options, limit), "use the first N books (default 1)"),
    OPTION("protocol", "decode|window|truncate", TEXT, AT(pg19_options, protocol),
           "token by token through the strategy (default; Quest), YaRN's sliding window, or its first window"),
    OPTION("ctx", "N", TEXT, AT(pg19_options, run.attn.ctx),
           "decode: tokens of a book (default: the model's window, at most 4k)"),
    OPTION("prompt", "N", TEXT, AT(pg19_options, prompt),
           "decode: feed the first N tokens as a prompt and score the others (default: no prompt)"),
    OPTION("max-length", "N,...", TEXT, AT(pg19_options, max_length), "tokens of a window (default: as --ctx)"),
    OPTION("stride", "N", TEXT, AT(pg19_options, stride), "start a window every N tokens (default 256)"),
    OPTION("tokens", "N", TEXT, AT(pg19_options, tokens), "windows: use at most N tokens of a book"),
    OPTION("csv", "FILE", TEXT, AT(pg19_options, run.out.csv), "write book,title,strategy,budget,length,ppl"),
    {0}};

const command pg19_command = {.name = "eval pg19",
                              .args = "",
                              .summary = "perplexity against length on books",
                              .groups = OPTIONS_MODEL | OPTIONS_RESULTS,
                              .own = rows,
                              .size = sizeof(pg19_options),
                              .run = cmd_pg19};
