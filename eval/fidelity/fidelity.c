/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/fidelity/fidelity.h"

#include <math.h>

#include "cli/command.h"
#include "eval/provenance.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "model/sampler.h"

/* ---- the text ---- */

enum { MAX_TEXT_BYTES = 1 << 28 };

status fidelity_text_read(fidelity_text *t, const engine *g, const char *path, unsigned flags, err *e)
{
    const char *dir;
    char *bytes = NULL;
    size_t n = 0;
    TRY(cli_data_dir(&dir, e));
    char *book = path_join(dir, "pg19/10146.txt");
    if (!path) path = book;
    status st = path ? file_read(&bytes, &n, path, MAX_TEXT_BYTES, e) : err_set(e, ST_NOMEM, "out of memory");
    if (st == ST_OK) st = file_sha256(path, t->sha256, e);
    if (st == ST_OK) st = tokenizer_encode(g->tok, bytes, n, flags, &t->ids, e);
    mem_free(book);
    mem_free(bytes);
    for (size_t i = 0; i < t->n_ctx && st == ST_OK; i++) {
        if (t->ctx[i] > (int64_t)t->ids.n)
            return err_set(e, ST_USAGE, "--ctx %lld: the text has only %zu tokens", (long long)t->ctx[i], t->ids.n);
        cli_warn_ctx(g->m, t->ctx[i]);
    }
    return st;
}

void fidelity_text_free(fidelity_text *t)
{
    token_list_free(&t->ids);
    mem_free(t->ctx);
}

status fidelity_piece(token_list *out, const fidelity_text *t, const tokenizer *tok, size_t n, uint64_t seed,
                      int64_t ctx, int trial, err *e)
{
    rng random = {seed ^ (uint64_t)ctx << 32 ^ (uint64_t)trial};
    if (tokenizer_adds_bos(tok)) {
        TRY(token_list_push(out, tokenizer_bos(tok), e));
        n--;
    }
    const int32_t *from = t->ids.ids + rng_below(&random, t->ids.n - n + 1);
    for (size_t i = 0; i < n; i++) TRY(token_list_push(out, from[i], e));
    return ST_OK;
}

/* ---- distributions ---- */

double fidelity_divergence(const float *p, const float *q, size_t vocab)
{
    double p0 = logits_nll(p, vocab, 0), q0 = logits_nll(q, vocab, 0), sum = 0;
    for (size_t i = 0; i < vocab; i++) {
        double log_p = (double)p[i] - (double)p[0] - p0, log_q = (double)q[i] - (double)q[0] - q0;
        if (log_p > -700) sum += exp(log_p) * (log_p - log_q);
    }
    return sum;
}

/* ---- the command without a valid --measure ---- */

typedef struct {
    tool_options t;
    const char *measure;
} fidelity_options;

static status cmd_fidelity(void *options, err *e)
{
    const char *name = ((const fidelity_options *)options)->measure;
    return err_set(e, ST_USAGE,
                   "--measure%s%.40s: must be the first option, with selection, tokens, text, logits or "
                   "divergence",
                   name ? " " : "", name ? name : "");
}

static const cli_option rows[] = {
    OPTION("measure", "selection|tokens|text|logits|divergence", TEXT, AT(fidelity_options, measure),
           "must be first: run eval recall, accept, agree, drift or divergence with the options that follow"),
    {0}};

const command fidelity_command = {.name = "eval fidelity",
                                  .args = "",
                                  .summary = "how closely strategies follow full attention, by one of five measures",
                                  .own = rows,
                                  .size = sizeof(fidelity_options),
                                  .run = cmd_fidelity};
