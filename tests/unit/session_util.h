/* SPDX-License-Identifier: MIT */
/* Small sessions for saving and loading. */
#ifndef TESTS_UNIT_SESSION_UTIL_H
#define TESTS_UNIT_SESSION_UTIL_H

#include <string.h>

#include "model/session_file_impl.h"
#include "tests/tap.h"

enum { U_VOCAB = 384, U_CHUNK = 16, U_BATCH = 16 };

typedef struct {
    backend *be;
    model *m;
    decoder *dec;
} engine_parts;

static inline status parts_open_with(engine_parts *p, const char *name, backend_options bo, decoder_options opt, err *e)
{
    char rel[128];
    opt.exact = true;
    snprintf(rel, sizeof rel, "tests/data/models/%s", name);
    *p = (engine_parts){0};
    TRY(backend_open(&p->be, &bo, e));
    TRY(model_open(&p->m, tap_path(rel), p->be, e));
    return decoder_create(&p->dec, p->m, &opt, e);
}

static inline status parts_open(engine_parts *p, const char *name, const char *device, err *e)
{
    return parts_open_with(p, name, (backend_options){.device = device, .n_threads = 1},
                           (decoder_options){.chunk = U_CHUNK, .max_batch = U_BATCH}, e);
}

static inline void parts_close(engine_parts *p)
{
    decoder_free(p->dec);
    model_close(p->m);
    backend_close(p->be);
}

/* Checks the chunk used if no number is given: `want` tokens. */
static inline void check_chunk(const char *device, int64_t want)
{
    engine_parts p;
    err e = {0};
    status st = parts_open_with(&p, "qwen2-f16", (backend_options){.device = device, .n_threads = 1},
                                (decoder_options){.max_batch = 1}, &e);
    if (is_ok(st, &e, "%s", device)) is_int(decoder_chunk(p.dec), want, "%s: prompt tokens of a chunk", device);
    parts_close(&p);
}

static inline status session_new(session **s, const engine_parts *p, const char *strategy, const char *store, int64_t n,
                                 err *e)
{
    attn_spec spec;
    attn_options o = {0};
    TRY(kv_format_parse(&o.kv, store, "--kv", e));
    TRY(attn_spec_parse(&spec, strategy, &o, e));
    return session_create(s, p->dec, &spec, session_of(n), e);
}

static inline int32_t some_id(int64_t position)
{
    return (int32_t)((7 * position + position * position / 3 + 11) % 300);
}

static inline void keep_last_row(void *ctx, int64_t first, size_t n, const float *logits)
{
    (void)first;
    memcpy(ctx, logits + (n - 1) * U_VOCAB, U_VOCAB * sizeof(float));
}

/* Runs a prompt of n tokens (at most 64), then `steps` steps; out: U_VOCAB logits for each of the 1 + steps. */
static inline status live(session *s, size_t n, int steps, float *out, err *e)
{
    int32_t ids[64];
    prefill_options o = {.which = LOGITS_LAST, .rows = keep_last_row, .ctx = out};
    for (size_t i = 0; i < n; i++) ids[i] = some_id(session_length(s) + (int64_t)i);
    TRY(session_prefill(&s, 1, ids, n, &o, e));
    for (int i = 0; i < steps; i++) {
        int32_t id = some_id(session_length(s));
        TRY(session_decode(&s, 1, &id, out + (size_t)(i + 1) * U_VOCAB, e));
    }
    return ST_OK;
}

static inline status save_plain(const session *s, const char *path, err *e)
{
    return session_save(s, path, &(session_notes){0}, e);
}

/* Opens and loads a session. */
static inline status load_plain(session *s, const char *path, err *e)
{
    session_file *f;
    session_notes n;
    TRY(session_file_open(&f, path, e));
    status st = session_load(s, f, &n, e);
    session_file_close(f);
    return st;
}

/* Recomputes the checksum of a file in memory after a change. */
static inline void seal(unsigned char *file, size_t bytes)
{
    session_header h;
    memcpy(&h, file, sizeof h);
    uint64_t rest = session_tables(&h) + h.state_bytes;
    if (bytes < SESSION_HEADER || h.n_items > bytes || h.n_sums > bytes || h.state_bytes > bytes ||
        rest > bytes - SESSION_HEADER)
        return;
    session_sum(h.sum, &h, file + SESSION_HEADER, (size_t)rest);
    memcpy(file, &h, sizeof h);
}

#endif
