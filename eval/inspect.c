/* SPDX-License-Identifier: MIT */
/* ./run info, tokenize and logits: looking into a model folder. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "eval/cli.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

enum { MAX_TEXT = 1 << 30, N_BEST = 10 };

status cmd_info(const cli *c, err *e)
{
    engine g = {0};
    cli named = *c;
    const char *dir;
    err tok_error = {0};
    if (c->input) named.model = c->input;
    TRY(cli_model_dir(&named, &dir, e));
    backend_options o = {.device = "cpu"};
    status st = backend_open(&g.be, &o, e);
    if (st == ST_OK) st = model_open(&g.m, dir, g.be, e);
    if (st == ST_OK) {
        model_print_info(g.m, stdout);
        if (tokenizer_open(&g.tok, dir, &tok_error) == ST_OK) {
            const char *name = tokenizer_chat_template(g.tok);
            st = out_printf(e, "tokenizer       %s\nchat template   %s\n",
                            tokenizer_describe(g.tok), name ? name : "none");
        } else {
            st = out_printf(e, "tokenizer       none (%s)\n", tok_error.msg);
        }
        if (st == ST_OK) st = out_flush(e);
    }
    engine_close(&g);
    return st;
}

/* ---- tokenize ---- */

static status print_ids(const token_list *l, err *e)
{
    for (size_t i = 0; i < l->n; i++) TRY(out_printf(e, i ? " %d" : "%d", (int)l->ids[i]));
    return out_write("\n", 1, e);
}

static status encode_text(const cli *c, const tokenizer *t, const char *text, size_t n, err *e)
{
    token_list l = {0};
    status st = tokenizer_encode(
        t, text, n, (c->bos ? TOKENIZE_BOS : 0) | (c->special ? TOKENIZE_SPECIAL : 0), &l, e);
    if (st == ST_OK) st = print_ids(&l, e);
    token_list_free(&l);
    return st;
}

/* Ids separated by white space; the text without anything behind it. */
static status decode_text(const cli *c, const tokenizer *t, const char *text, err *e)
{
    token_list l = {0};
    char *out = NULL;
    size_t len;
    status st = ST_OK;
    for (const char *p = text; st == ST_OK;) {
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        if (end == p) {
            if (p[strspn(p, " \t\r\n")])
                st = err_set(e, ST_FORMAT, "tokenize --decode: '%.20s' is not a token id", p);
            break;
        }
        if (errno || v < 0 || v >= tokenizer_n_ids(t))
            st = err_set(e, ST_FORMAT, "tokenize --decode: id %ld is outside the vocabulary of %d",
                         v, (int)tokenizer_n_ids(t));
        else st = token_list_push(&l, (int32_t)v, e);
        p = end;
    }
    if (st == ST_OK) st = tokenizer_decode(t, l.ids, l.n, c->special, &out, &len, e);
    if (st == ST_OK) st = out_write(out, len, e);
    mem_free(out);
    token_list_free(&l);
    return st;
}

/* Lines {"text": "..."} (or {"ids": [...]} with --decode): one line of ids (or of {"text"}) each. */
static status convert_line(const cli *c, const tokenizer *t, const char *line, size_t n,
                           size_t number, err *e)
{
    json_error_t je;
    json_t *j = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
    json_t *text = json_object_get(j, "text"), *ids = json_object_get(j, "ids");
    token_list l = {0};
    status st = ST_OK;
    if (!j) {
        st = err_set(e, ST_FORMAT, "standard input: line %zu is not valid JSON: %.100s", number,
                     je.text);
    } else if (!c->decode) {
        if (json_is_string(text))
            st = encode_text(c, t, json_string_value(text), json_string_length(text), e);
        else st = err_set(e, ST_FORMAT, "standard input: line %zu has no string \"text\"", number);
    } else if (!json_is_array(ids)) {
        st = err_set(e, ST_FORMAT, "standard input: line %zu has no list \"ids\"", number);
    } else {
        char *out = NULL;
        size_t len, i;
        json_t *v;
        json_array_foreach(ids, i, v) if (st == ST_OK) st =
            token_list_push(&l, json_is_integer(v) ? (int32_t)json_integer_value(v) : -1, e);
        if (st == ST_OK) st = tokenizer_decode(t, l.ids, l.n, c->special, &out, &len, e);
        json_t *result = st == ST_OK ? json_pack("{s:s%}", "text", out, len) : NULL;
        char *dump = result ? json_dumps(result, JSON_ENSURE_ASCII) : NULL;
        if (st == ST_OK)
            st = dump ? out_printf(e, "%s\n", dump)
                      : err_set(e, ST_FORMAT, "standard input: line %zu decodes to invalid UTF-8",
                                number);
        free(dump);
        json_decref(result);
        mem_free(out);
    }
    token_list_free(&l);
    json_decref(j);
    return st;
}

static status convert_lines(const cli *c, const tokenizer *t, const char *text, size_t n, err *e)
{
    size_t number = 0;
    for (size_t at = 0; at < n;) {
        const char *nl = memchr(text + at, '\n', n - at);
        size_t len = nl ? (size_t)(nl - text) - at : n - at;
        number++;
        if (len > 0) TRY(convert_line(c, t, text + at, len, number, e));
        at += len + 1;
    }
    return ST_OK;
}

status cmd_tokenize(const cli *c, err *e)
{
    const char *dir;
    tokenizer *t = NULL;
    char *text = NULL;
    size_t n;
    TRY(cli_model_dir(c, &dir, e));
    status st = tokenizer_open(&t, dir, e);
    if (st == ST_OK) st = file_read_stream(&text, &n, stdin, "standard input", MAX_TEXT, e);
    if (st == ST_OK) {
        if (c->jsonl) st = convert_lines(c, t, text, n, e);
        else if (c->decode) st = decode_text(c, t, text, e);
        else st = encode_text(c, t, text, n, e);
    }
    if (st == ST_OK) st = out_flush(e);
    mem_free(text);
    tokenizer_free(t);
    return st;
}

/* ---- logits ---- */

typedef struct {
    FILE *f;
    size_t vocab;
    bool failed;
    float *last; /* [vocab] */
} logits_sink;

static void take_rows(void *ctx, int64_t first, size_t n, const float *logits)
{
    logits_sink *s = ctx;
    (void)first;
    if (s->f && fwrite(logits, sizeof(float) * s->vocab, n, s->f) != n) s->failed = true;
    memcpy(s->last, logits + (n - 1) * s->vocab, s->vocab * sizeof(float));
}

/* NumPy's format 1.0: magic, version, header length, a Python dict padded to 64 bytes. */
static bool write_npy_header(FILE *f, size_t rows, size_t cols)
{
    char head[128];
    memset(head, ' ', sizeof head);
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
    int n = snprintf(head + 10, sizeof head - 10,
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }", rows, cols);
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
            return err_set(e, ST_USAGE, "--ids: '%.30s' is not a list of token ids such as 1,2,3",
                           p);
        TRY(token_list_push(out, (int32_t)v, e));
        if (!*end) return ST_OK;
        p = end + 1;
    }
}

static status print_best(const engine *g, float *logits, err *e)
{
    size_t vocab = (size_t)g->m->config.vocab;
    double sum = 0;
    float top = logits[logits_argmax(logits, vocab)];
    for (size_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - (double)top);
    double lse = (double)top + log(sum);
    for (size_t k = 0; k < N_BEST && k < vocab; k++) {
        int32_t id = logits_argmax(logits, vocab);
        char *text = NULL;
        if (g->tok) TRY(tokenizer_decode(g->tok, &id, 1, true, &text, NULL, e));
        json_t *quoted = json_string(text ? text : "");
        char *shown = json_dumps(quoted, JSON_ENCODE_ANY);
        status st = out_printf(e, "%8d  %9.4f  %s\n", (int)id, (double)logits[id] - lse,
                               shown ? shown : "");
        free(shown);
        json_decref(quoted);
        mem_free(text);
        TRY(st);
        logits[id] = -INFINITY;
    }
    return out_flush(e);
}

static status run_logits(const cli *c, engine *g, session *s, const token_list *ids,
                         logits_sink *sink, err *e)
{
    char *tmp = NULL;
    status st = ST_OK;
    if (c->output) {
        if (asprintf(&tmp, "%s.part", c->output) < 0) return err_set(e, ST_NOMEM, "out of memory");
        sink->f = fopen(tmp, "wb");
        if (!sink->f || !write_npy_header(sink->f, c->last ? 1 : ids->n, sink->vocab)) {
            st = err_set(e, ST_IO, "-o %s: %s", tmp, strerror(errno));
            goto done;
        }
    }
    prefill_options o = {
        .which = c->last || !c->output ? LOGITS_LAST : LOGITS_ALL, .rows = take_rows, .ctx = sink};
    TRY_GOTO(session_prefill(&s, 1, ids->ids, ids->n, &o, e));
    if (!c->output) {
        st = print_best(g, sink->last, e);
        goto done;
    }
    bool good = fclose(sink->f) == 0 && !sink->failed;
    sink->f = NULL;
    if (!good || rename(tmp, c->output) != 0)
        st = err_set(e, ST_IO, "-o %s: %s", c->output, strerror(errno));
done:
    if (sink->f) fclose(sink->f);
    if (st != ST_OK && tmp) unlink(tmp);
    free(tmp);
    return st;
}

status cmd_logits(const cli *c, err *e)
{
    engine g;
    token_list ids = {0};
    attn_spec spec;
    session *s = NULL;
    logits_sink sink = {0};
    err tok_error = {0};
    if (!c->ids) return err_set(e, ST_USAGE, "logits: --ids 1,2,3 is needed");
    TRY(cli_parse_one_attn(&spec, c, e));
    TRY(engine_open(&g, c, 1, true, false, e));
    status st = parse_ids(c->ids, &ids, e);
    if (st == ST_OK) st = session_create(&s, g.dec, &spec, (int64_t)ids.n, e);
    sink.vocab = (size_t)g.m->config.vocab;
    if (st == ST_OK) st = MEM_NEW(&sink.last, sink.vocab, e);
    if (st == ST_OK && !c->output)
        tokenizer_open(&g.tok, g.m->name, &tok_error); /* spellings, where there are any */
    if (st == ST_OK) st = run_logits(c, &g, s, &ids, &sink, e);
    mem_free(sink.last);
    session_free(s);
    token_list_free(&ids);
    engine_close(&g);
    return st;
}
