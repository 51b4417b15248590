/* SPDX-License-Identifier: MIT */
/* ./run info, tokenize and logits: inspect a model folder. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "model/generation_config.h"
#include "tokenizer/call_support.h"

enum { MAX_TEXT = 1 << 30, N_BEST = 10 };

static json_t *info_json(const model *m, const tokenizer *t)
{
    const model_config *c = &m->config;
    return json_pack("{s:s, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:b, s:s, s:I, s:I, s:s?, s:s?}",
                     "architecture", c->arch, "parameters", (json_int_t)c->n_params, "layers", c->n_layers, "heads",
                     c->n_heads, "kv_heads", c->n_kv_heads, "head_dim", c->head_dim, "hidden", c->hidden,
                     "feed_forward", c->ffn, "vocabulary", c->vocab, "max_positions", (json_int_t)c->max_positions,
                     "tied", (int)c->tied, "dtype", dtype_name(m->type), "weight_bytes", (json_int_t)m->weight_bytes,
                     "bytes_per_token", (json_int_t)m->decode_bytes, "tokenizer", t ? tokenizer_describe(t) : NULL,
                     "chat_template", t ? tokenizer_chat_template(t) : NULL);
}

typedef struct {
    tool_options t;
    const char *dir; /* positional argument */
} info_options;

/* Prints the ids that end generation. */
static status show_stops(const tokenizer *t, err *e)
{
    token_list l = {0};
    status st = tokenizer_eos_ids(t, &l, e);
    if (st == ST_OK) st = out_write("stop tokens   ", 14, e);
    for (size_t i = 0; i < l.n && st == ST_OK; i++) {
        bool seen = false;
        for (size_t k = 0; k < i; k++) seen |= l.ids[k] == l.ids[i];
        if (!seen) st = out_printf(e, " %d", (int)l.ids[i]);
    }
    token_list_free(&l);
    return st == ST_OK ? out_write("\n", 1, e) : st;
}

/* Prints the format of tool calls and the marker of thinking that the chat template supports. */
static status show_calls(const tokenizer *t, err *e)
{
    call_support s;
    if (!tokenizer_chat_template(t)) return ST_OK;
    TRY(call_support_find(&s, t, NULL, e));
    const char *format = s.format ? s.format->name : s.prints_tools ? "unknown format" : "none";
    return out_printf(e, "tool calls     %s%s%s\n", format, s.think_open ? "; thinking " : "",
                      s.think_open ? s.think_open : "");
}

static status show_sampling(const char *dir, err *e)
{
    sampler_options unused = {0};
    char text[GENERATION_TEXT];
    TRY(generation_config_read(&unused, text, dir, e));
    return *text ? out_printf(e, "sampling       %s (generation_config.json)\n", text) : ST_OK;
}

/* ---- memory of a context ---- */

/* Stores that hold a prompt in their own type; the others hold its float rows first. */
static const char *const stores[] = {"f16", "q8", "q4"};
enum { STORES = sizeof stores / sizeof *stores };

/* Adds the bytes of keys and values of n tokens under full attention; "-" for a store that does not fit the model. */
static void add_bytes(table *t, const model *m, const char *store, int64_t n)
{
    attn_spec spec;
    attn_options o = {0};
    memory_plan p;
    err unused = {0};
    const decoder_options d = {0};
    status st = kv_format_parse(&o.kv, store, "store", &unused);
    if (st == ST_OK) st = attn_spec_parse(&spec, "full", &o, &unused);
    if (st == ST_OK) st = session_plan(&p, m, &d, &spec, session_of(n), &unused);
    if (st == ST_OK) table_cell(t, "%.1f MB", (double)(p.kv + p.index) / 1e6);
    else table_cell(t, "-");
}

/* Prints the memory of keys and values for some lengths up to the model's positions. */
static status show_contexts(const model *m, err *e)
{
    table t = {0};
    int64_t most = m->config.max_positions;
    TRY(out_printf(e, "\nkeys and values of full attention, by --kv:\n"));
    table_column(&t, 0, 9, "tokens");
    for (size_t i = 0; i < STORES; i++) table_column(&t, 0, 10, stores[i]);
    for (int64_t n = 4096;; n = n * 4 < most ? n * 4 : most) {
        if (n > most) n = most;
        table_cell(&t, "%lld", (long long)n);
        for (size_t i = 0; i < STORES; i++) add_bytes(&t, m, stores[i], n);
        if (n == most) break;
    }
    return table_print(&t, e);
}

static status show_model(const result_options *o, engine *g, err *e)
{
    err why = {0};
    model_print_info(g->m, stdout);
    if (cli_open_tokenizer(&g->tok, g->m->name, &why) == ST_OK) {
        const char *name = tokenizer_chat_template(g->tok);
        TRY(out_printf(e, "tokenizer      %s\nchat template  %s\n", tokenizer_describe(g->tok), name ? name : "none"));
        TRY(show_calls(g->tok, e));
        TRY(show_stops(g->tok, e));
    } else {
        TRY(out_printf(e, "tokenizer      none (%s)\n", why.msg));
    }
    TRY(show_sampling(g->m->name, e));
    TRY(show_contexts(g->m, e));
    TRY(out_flush(e));
    return o->json ? report_write(o, g, NULL, json_pack("[o]", info_json(g->m, g->tok)), NULL, e) : ST_OK;
}

static status cmd_info(void *options, err *e)
{
    const info_options *o = options;
    const char *given = o->t.model.dir, *dir;
    const device_options cpu = {.name = "cpu"};
    engine g = {0};
    if (o->dir && given) return err_set(e, ST_USAGE, "-m %.100s and %.100s: give one model folder", given, o->dir);
    TRY(cli_model_dir(&dir, o->dir ? o->dir : given, e));
    status st = cli_open_backend(&g.be, &cpu, e);
    if (st == ST_OK) st = model_find(&g.m, dir, NULL, g.be, e);
    if (st == ST_OK) st = model_load(g.m, e);
    if (st == ST_OK) st = cli_convert_weights(g.m, &o->t.model, true, e);
    if (st == ST_OK) st = show_model(&o->t.out, &g, e);
    engine_close(&g);
    return st;
}

/* ---- tokenize ---- */

typedef struct {
    tool_options t;
    bool jsonl, decode, bos, special;
} tokenize_options;

typedef struct {
    const tokenize_options *o;
    const tokenizer *t;
    int64_t n_texts, n_tokens, n_bytes; /* n_bytes: bytes of text */
} converter;

static void count(converter *v, size_t n_tokens, size_t n_bytes)
{
    v->n_texts++;
    v->n_tokens += (int64_t)n_tokens;
    v->n_bytes += (int64_t)n_bytes;
}

static status print_ids(const token_list *l, err *e)
{
    for (size_t i = 0; i < l->n; i++) TRY(out_printf(e, i ? " %d" : "%d", (int)l->ids[i]));
    return out_write("\n", 1, e);
}

static status encode_text(converter *v, const char *text, size_t n, err *e)
{
    token_list l = {0};
    const bool has_bos = v->o->special && tokenizer_begins_with_bos(v->t, text, n);
    const unsigned flags =
        (v->o->bos && !has_bos ? TOKENIZE_BOS : 0) | (unsigned)(v->o->special ? TOKENIZE_SPECIAL : 0);
    status st = tokenizer_encode(v->t, text, n, flags, &l, e);
    if (st == ST_OK) st = print_ids(&l, e);
    count(v, l.n, n);
    token_list_free(&l);
    return st;
}

static status push_id(token_list *l, const tokenizer *t, long long id, err *e)
{
    if (id < 0 || id >= tokenizer_n_ids(t))
        return err_set(e, ST_FORMAT, "standard input: id %lld is outside the vocabulary of %d", id,
                       (int)tokenizer_n_ids(t));
    return token_list_push(l, (int32_t)id, e);
}

/* Reads ids separated by white space. */
static status read_ids(token_list *l, const tokenizer *t, const char *text, size_t n, err *e)
{
    const char *p = text;
    for (;;) {
        char *end;
        errno = 0;
        long long id = strtoll(p, &end, 10);
        if (end == p) break;
        if (errno) id = -1;
        TRY(push_id(l, t, id, e));
        p = end;
    }
    p += strspn(p, " \t\r\n");
    if (p == text + n) return ST_OK;
    return err_set(e, ST_FORMAT, "standard input: '%.20s' is not a token id", p);
}

/* Prints the text of ids, plain or (line) as {"text": ...}. */
static status decode(converter *v, const token_list *l, bool line, err *e)
{
    char *text, *dump = NULL;
    size_t n;
    TRY(tokenizer_decode(v->t, l->ids, l->n, v->o->special, &text, &n, e));
    json_t *o = line ? json_pack("{s:s%}", "text", text, n) : NULL;
    if (line) dump = json_dumps(o, JSON_ENSURE_ASCII);
    status st = !line  ? out_write(text, n, e)
                : dump ? out_printf(e, "%s\n", dump)
                       : err_set(e, ST_NOMEM, "out of memory");
    count(v, l->n, n);
    free(dump);
    json_decref(o);
    mem_free(text);
    return st;
}

static status decode_text(converter *v, const char *text, size_t n, err *e)
{
    token_list l = {0};
    status st = read_ids(&l, v->t, text, n, e);
    if (st == ST_OK) st = decode(v, &l, false, e);
    token_list_free(&l);
    return st;
}

static status decode_list(converter *v, const json_t *ids, err *e)
{
    token_list l = {0};
    status st = ST_OK;
    for (size_t i = 0; i < json_array_size(ids) && st == ST_OK; i++) {
        const json_t *id = json_array_get(ids, i);
        st = json_is_integer(id) ? push_id(&l, v->t, json_integer_value(id), e)
                                 : err_set(e, ST_FORMAT, "standard input: \"ids\": expected integers");
    }
    if (st == ST_OK) st = decode(v, &l, true, e);
    token_list_free(&l);
    return st;
}

/* Converts a line {"text": "..."} to a line of ids, or with --decode {"ids": [...]} to {"text"}. */
static status convert_line(converter *v, const char *line, size_t n, err *e)
{
    json_error_t je;
    json_t *j = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
    const json_t *text = json_object_get(j, "text"), *ids = json_object_get(j, "ids");
    status st;
    if (!j) st = err_set(e, ST_FORMAT, "standard input: not valid JSON: %.100s", je.text);
    else if (v->o->decode)
        st = json_is_array(ids) ? decode_list(v, ids, e)
                                : err_set(e, ST_FORMAT, "standard input: \"ids\": expected an array");
    else
        st = json_is_string(text) ? encode_text(v, json_string_value(text), json_string_length(text), e)
                                  : err_set(e, ST_FORMAT, "standard input: \"text\": expected a string");
    json_decref(j);
    return st;
}

static status convert_lines(converter *v, const char *text, size_t n, err *e)
{
    size_t number = 0;
    for (size_t at = 0; at < n;) {
        const char *nl = memchr(text + at, '\n', n - at);
        size_t len = nl ? (size_t)(nl - text) - at : n - at, used = len;
        err why = {0};
        number++;
        while (used > 0 && memchr(" \t\r", text[at + used - 1], 3)) used--;
        status st = used > 0 ? convert_line(v, text + at, len, &why) : ST_OK;
        if (st != ST_OK) return err_set(e, st, "line %zu of %s", number, why.msg);
        at += len + 1;
    }
    return ST_OK;
}

static status convert(converter *v, err *e)
{
    char *text;
    size_t n;
    TRY(file_read_text(&text, &n, "-", MAX_TEXT, e));
    status st = v->o->jsonl    ? convert_lines(v, text, n, e)
                : v->o->decode ? decode_text(v, text, n, e)
                               : encode_text(v, text, n, e);
    mem_free(text);
    return st == ST_OK ? out_flush(e) : st;
}

static status cmd_tokenize(void *options, err *e)
{
    const tokenize_options *o = options;
    engine g = {0};
    TRY(cli_model_dir(&g.name, o->t.model.dir, e));
    TRY(cli_open_tokenizer(&g.tok, g.name, e));
    converter v = {.o = o, .t = g.tok};
    status st = convert(&v, e);
    if (st == ST_OK && o->t.out.json) {
        json_t *result = json_pack("{s:I, s:I, s:I}", "texts", (json_int_t)v.n_texts, "tokens", (json_int_t)v.n_tokens,
                                   "bytes", (json_int_t)v.n_bytes);
        st = report_write(&o->t.out, &g, NULL, json_pack("[o]", result), NULL, e);
    }
    engine_close(&g);
    return st;
}

/* ---- logits ---- */

typedef struct {
    run_options run;
    const char *ids;
    bool last;
} logits_options;

typedef struct {
    const logits_options *o;
    engine g;
    session *s;
    token_list ids;
    FILE *f; /* file of -o; NULL: none, or not the first rank */
    size_t vocab;
    int failed;  /* errno of a failed write */
    float *last; /* [vocab] last row */
} logits_run;

static void take_rows(void *ctx, int64_t first, size_t n, const float *logits)
{
    logits_run *s = ctx;
    (void)first;
    if (s->f && fwrite(logits, sizeof(float) * s->vocab, n, s->f) != n) s->failed = errno;
    memcpy(s->last, logits + (n - 1) * s->vocab, s->vocab * sizeof(float));
}

/* Writes the header of NumPy format 1.0: magic, version, header length, a Python dict padded to 64 bytes. */
static bool write_npy_header(FILE *f, size_t rows, size_t cols)
{
    char head[128];
    memset(head, ' ', sizeof head);
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
    int n = snprintf(head + 10, sizeof head - 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }",
                     rows, cols);
    head[10 + n] = ' ';
    head[127] = '\n';
    return fwrite(head, 1, sizeof head, f) == sizeof head;
}

static status parse_ids(const char *text, token_list *out, err *e)
{
    for (const char *p = text;;) {
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        if (end == p || errno || v < 0 || v > INT32_MAX || (*end && *end != ','))
            return err_set(e, ST_USAGE, "--ids %.30s: expected token ids such as 1,2,3", p);
        TRY(token_list_push(out, (int32_t)v, e));
        if (!*end) return ST_OK;
        p = end + 1;
    }
}

/* Prints the most likely next tokens unless the logits go to a file, and adds them to list. Modifies the logits. */
static status show_best(const engine *g, float *logits, bool print, json_t *list, err *e)
{
    size_t vocab = (size_t)g->m->config.vocab;
    double sum = 0;
    float top = logits[logits_argmax(logits, vocab)];
    for (size_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - (double)top);
    double lse = (double)top + log(sum);
    for (size_t k = 0; k < N_BEST && k < vocab; k++) {
        int32_t id = logits_argmax(logits, vocab);
        double logprob = (double)logits[id] - lse;
        char *text = NULL;
        if (g->tok) TRY(tokenizer_decode(g->tok, &id, 1, true, &text, NULL, e));
        json_t *quoted = json_string(text ? text : "");
        char *shown = json_dumps(quoted, JSON_ENCODE_ANY);
        status st = print ? out_printf(e, "%8d  %9.4f  %s\n", (int)id, logprob, shown ? shown : "") : ST_OK;
        json_array_append_new(list, json_pack("{s:i, s:f, s:O}", "id", (int)id, "logprob", logprob, "text", quoted));
        free(shown);
        json_decref(quoted);
        mem_free(text);
        TRY(st);
        logits[id] = -INFINITY;
    }
    return out_flush(e);
}

static status report_logits(const logits_run *r, json_t *best, err *e)
{
    const result_options *out = &r->o->run.out;
    const attn_spec *spec = attn_seq_spec(session_attn(r->s));
    char params[512];
    attn_spec_params(spec, params, sizeof params);
    json_t *options = json_pack("{s:s, s:s, s:s}", "ids", r->o->ids, "attn", spec->text, "params", params);
    json_t *result =
        json_pack("{s:I, s:s?, s:O}", "tokens", (json_int_t)session_length(r->s), "file", out->output, "best", best);
    return report_write(out, &r->g, options, json_pack("[o]", result), NULL, e);
}

/* Feeds the ids; writes logits to the file and the last row to r->last. */
static status feed(logits_run *r, err *e)
{
    const char *path = r->o->run.out.output;
    bool last = r->o->last || !path;
    prefill_options p = {.which = last ? LOGITS_LAST : LOGITS_ALL, .rows = take_rows, .ctx = r};
    if (r->f && !write_npy_header(r->f, last ? 1 : r->ids.n, r->vocab)) r->failed = errno;
    return session_prefill(&r->s, 1, r->ids.ids, r->ids.n, &p, e);
}

/* As feed, with the file of -o, which is complete or absent. */
static status feed_file(logits_run *r, err *e)
{
    const comm *ranks = r->o->run.engine.device.ranks;
    const char *path = r->o->run.out.output;
    out_file out;
    if (!path || (ranks && ranks->rank > 0)) return feed(r, e);
    TRY(out_file_open(&out, "-o", path, e));
    r->f = out.f;
    status st = feed(r, e);
    errno = r->failed;
    status closed = out_file_close(&out, st == ST_OK && !r->failed, st == ST_OK ? e : NULL);
    return st == ST_OK ? closed : st;
}

static status run_logits(logits_run *r, const attn_spec *spec, err *e)
{
    const result_options *out = &r->o->run.out;
    err unused = {0};
    TRY(parse_ids(r->o->ids, &r->ids, e));
    TRY(session_create(&r->s, r->g.dec, spec, session_of((int64_t)r->ids.n), e));
    r->vocab = (size_t)r->g.m->config.vocab;
    TRY(MEM_NEW(&r->last, r->vocab, e));
    TRY(feed_file(r, e));
    if (out->output && !out->json) return ST_OK;
    cli_open_tokenizer(&r->g.tok, r->g.m->name, &unused); /* for token texts, if there is a tokenizer */
    json_t *best = json_array();
    status st = show_best(&r->g, r->last, !out->output, best, e);
    if (st == ST_OK && out->json) st = report_logits(r, best, e);
    json_decref(best);
    return st;
}

static status cmd_logits(void *options, err *e)
{
    logits_options *o = options;
    logits_run r = {.o = o};
    attn_spec spec;
    if (!o->ids) return err_set(e, ST_USAGE, "logits: requires --ids, such as --ids 1,2,3");
    if (!o->run.attn.kv) o->run.attn.kv = "f32"; /* for comparison with other programs */
    if (!o->run.engine.device.gemm) o->run.engine.device.gemm = "builtin";
    TRY(attn_args_parse(&spec, &o->run.attn, o->run.out.command, e));
    TRY(engine_open(&r.g, &o->run.engine, 1, false, e));
    status st = run_logits(&r, &spec, e);
    mem_free(r.last);
    session_free(r.s);
    token_list_free(&r.ids);
    engine_close(&r.g);
    return st;
}

/* ---- options ---- */

static const cli_option info_rows[] = {OPTION("weights", "TYPE", TEXT, AT(info_options, t.model.weights),
                                              "show sizes with matrices as bf16, f16, f32, q8 or q4"),
                                       {0}};

static const cli_option tokenize_rows[] = {
    OPTION("jsonl", NULL, FLAG, AT(tokenize_options, jsonl),
           "read lines {\"text\": ...}; write one line of ids for each"),
    OPTION("decode", NULL, FLAG, AT(tokenize_options, decode), "convert ids to text"),
    OPTION("bos", NULL, FLAG, AT(tokenize_options, bos), "prepend BOS, unless --special finds it there"),
    OPTION("special", NULL, FLAG, AT(tokenize_options, special),
           "read the spellings of special tokens as these tokens"),
    {0}};

static const cli_option logits_rows[] = {
    OPTION("ids", "1,2,3", TEXT, AT(logits_options, ids), "token ids to feed"),
    OPTION("last", NULL, FLAG, AT(logits_options, last), "only the last row"),
    {.letter = 'o',
     .arg = "FILE.npy",
     AT(logits_options, run.out.output),
     .help = "write float32 [tokens, vocab] (default: print the ten most likely next tokens)"},
    {0}};

const command info_command = {.name = "info",
                              .args = "[DIR]",
                              .summary = "show the contents of a model folder",
                              .own = info_rows,
                              .size = sizeof(info_options),
                              .place[IN_ARGUMENT] = offsetof(info_options, dir),
                              .alone = true,
                              .run = cmd_info};

const command tokenize_command = {.name = "tokenize",
                                  .args = "",
                                  .summary = "convert text to token ids and back",
                                  .own = tokenize_rows,
                                  .size = sizeof(tokenize_options),
                                  .alone = true,
                                  .run = cmd_tokenize};

const command logits_command = {.name = "logits",
                                .args = "",
                                .summary = "compute the logits of given ids",
                                .groups = OPTIONS_MODEL,
                                .own = logits_rows,
                                .size = sizeof(logits_options),
                                .run = cmd_logits};
