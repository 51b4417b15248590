/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/fidelity/fidelity.h"
#include "eval/provenance.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

enum { MAX_TEXT_BYTES = 1 << 28 };

status fidelity_read_text(token_list *text, char sum[SHA256_HEX], const engine *g, const cli *c, unsigned flags, err *e)
{
    const char *dir;
    char *bytes = NULL;
    size_t n = 0;
    TRY(cli_data_dir(&dir, e));
    char *book = path_join(dir, "pg19/10146.txt");
    const char *path = c->prompt_file ? c->prompt_file : book;
    status st = path ? file_read(&bytes, &n, path, MAX_TEXT_BYTES, e) : err_set(e, ST_NOMEM, "out of memory");
    if (st == ST_OK) st = file_sha256(path, sum, e);
    if (st == ST_OK) st = tokenizer_encode(g->tok, bytes, n, flags, text, e);
    mem_free(book);
    mem_free(bytes);
    return st;
}

status fidelity_check_ctx(const token_list *text, const int64_t *ctx, size_t n_ctx, const engine *g, const cli *c,
                          err *e)
{
    for (size_t i = 0; i < n_ctx; i++) {
        if (ctx[i] > (int64_t)text->n)
            return err_set(e, ST_USAGE, "--ctx %lld: the text has only %zu tokens", (long long)ctx[i], text->n);
        cli_warn_ctx(c, g->m, ctx[i]);
    }
    return ST_OK;
}

const int32_t *fidelity_piece(const token_list *text, size_t n, uint64_t seed, int64_t ctx, size_t trial)
{
    rng random = {seed ^ (uint64_t)ctx << 32 ^ trial};
    return text->ids + rng_below(&random, text->n - n + 1);
}
