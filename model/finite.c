/* SPDX-License-Identifier: MIT */
/* Search for non-finite values in weights and in the rows of a session. */
#include "config.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "attention/state.h"
#include "kernels/base/mem.h"
#include "kernels/ops_weights.h"
#include "model/block.h"
#include "model/decoder.h"
#include "model/weights.h"

enum { CHUNK_BYTES = 1 << 20 };

/* True if p holds an infinity or, unless only_infinite, a NaN. */
static bool holds(const void *p, dtype t, size_t bytes, bool only_infinite)
{
    const uint32_t *a = p, exponent = 0x7f800000, bits = only_infinite ? 0x7fffffff : exponent;
    const uint16_t *b = p, half = t == DT_BF16 ? 0x7f80 : 0x7c00, half_bits = only_infinite ? 0x7fff : half;
    bool found = false;
    for (size_t i = 0; t == DT_F32 && i < bytes / 4; i++) found |= (a[i] & bits) == exponent;
    for (size_t i = 0; t != DT_F32 && i < bytes / 2; i++) found |= (b[i] & half_bits) == half;
    return found;
}

static bool all_finite(const void *p, dtype t, size_t bytes)
{
    return !holds(p, t, bytes, false);
}

/* True if the scales of quantized blocks are finite; the other bytes are integers. */
static bool all_scales_finite(const unsigned char *p, dtype t, size_t bytes)
{
    bool good = true;
    for (size_t at = 0; at < bytes; at += qblock_bytes(t)) good &= all_finite(p + at, DT_F16, qblock_head_bytes(t));
    return good;
}

/* True if a buffer is finite; otherwise also sets *infinite if it holds an infinity. chunk: CHUNK_BYTES of scratch. */
static bool buffer_finite(backend *be, buf b, dtype t, size_t bytes, void *chunk, bool *infinite)
{
    bool blocks = dtype_in_qblocks(t), good = true;
    size_t step = blocks ? CHUNK_BYTES - CHUNK_BYTES % qblock_bytes(t) : CHUNK_BYTES;
    for (size_t at = 0; at < bytes; at += step) {
        size_t n = bytes - at < step ? bytes - at : step;
        be->ops->download(be, chunk, buf_at(b, at), n);
        if (blocks ? all_scales_finite(chunk, t, n) : all_finite(chunk, t, n)) continue;
        good = false;
        *infinite |= holds(chunk, t, n, true);
    }
    return good;
}

static bool weight_is_finite(backend *be, const weight_spec *w, void *chunk)
{
    bool unused = false;
    return buffer_finite(be, w->slot->p, w->slot->type, weight_size(w, w->slot->type), chunk, &unused);
}

status model_find_nonfinite(const model *m, char *name, size_t size)
{
    void *chunk;
    const weight_spec *w = m->weights;
    if (size) name[0] = 0;
    TRY(mem_alloc(&chunk, CHUNK_BYTES, 1, "scan", NULL));
    while (w < weights_end(m) && weight_is_finite(m->be, w, chunk)) w++;
    mem_free(chunk);
    if (w == weights_end(m)) return ST_OK;
    snprintf(name, size, "%s", w->name);
    return ST_FORMAT;
}

/* ---- rows ---- */

/* A non-finite value in the rows of a layer. */
typedef struct {
    int layer;        /* index among layers with keys and values; -1: all values are finite */
    const char *what; /* "keys" or "values" */
    bool f16, infinite;
} row_fault;

typedef struct {
    attn_state base;
    backend *be;
    dtype type; /* of float and block rows */
    void *chunk;
    row_fault first; /* of the lowest layer; keys before values */
} row_scan;

static status skip_host(attn_state *v, const char *name, int layer, void *p, size_t bytes, err *e)
{
    (void)v, (void)name, (void)layer, (void)p, (void)bytes, (void)e;
    return ST_OK;
}

static status skip_mem(attn_state *v, const char *name, int layer, buf b, size_t bytes, err *e)
{
    (void)v, (void)name, (void)layer, (void)b, (void)bytes, (void)e;
    return ST_OK;
}

/* Returns the type of the numbers in a buffer of rows; DT_COUNT: other content. "pairs" are scales of quantized
 * rows. */
static dtype numbers_in(const row_scan *s, const char *name)
{
    if (strcmp(name, "K pairs") == 0 || strcmp(name, "V pairs") == 0) return DT_F16;
    bool rows = strcmp(name, "K rows") == 0 || strcmp(name, "V rows") == 0;
    return rows && !dtype_in_qblocks(s->type) ? s->type : DT_COUNT;
}

static status scan_rows(attn_state *v, const char *name, int layer, buf b, size_t bytes, state_part part, err *e)
{
    row_scan *s = (row_scan *)v;
    dtype t = numbers_in(s, name);
    row_fault found = {.layer = layer, .what = name[0] == 'K' ? "keys" : "values", .f16 = t == DT_F16};
    bool good = true;
    (void)bytes, (void)e;
    if (t == DT_COUNT || (s->first.layer >= 0 && s->first.layer <= layer)) return ST_OK;
    for (size_t g = 0; g < part.n; g++)
        good &= buffer_finite(s->be, buf_at(b, g * part.stride), t, part.used, s->chunk, &found.infinite);
    if (!good) s->first = found;
    return ST_OK;
}

/* Finds the first layer with a non-finite value in its rows; first->layer is its index among all layers. False: the
 * rows cannot be scanned. */
static bool find_row_fault(const decoder *d, attn_seq *seq, row_fault *first)
{
    row_scan s = {.base = {.host = skip_host, .mem = skip_mem, .rows = scan_rows},
                  .be = d->be,
                  .type = attn_seq_spec(seq)->kv.type,
                  .first = {.layer = -1}};
    if (mem_alloc(&s.chunk, CHUNK_BYTES, 1, "scan", NULL) != ST_OK) return false;
    status st = attn_seq_state(seq, &s.base, NULL);
    mem_free(s.chunk);
    *first = s.first;
    for (const block *b = d->m->blocks; s.first.layer >= 0 && b < d->m->blocks + d->m->n_blocks; b++)
        if (b->kv == s.first.layer) first->layer = b->layer;
    return st == ST_OK;
}

/* ---- logits ---- */

/* Writes the cause of a non-finite row of logits as text. */
static void explain(const decoder *d, attn_seq *seq, const float *row, char *out, size_t size)
{
    static const char remedy[] = "use bf16 rows (--kv bf16)";
    const model_config *c = &d->m->config;
    const kv_format *kv = &attn_seq_spec(seq)->kv;
    const bool f16 = kv->kind != KV_PLAIN || kv->type == DT_F16;
    row_fault at;
    bool scanned = find_row_fault(d, seq, &at);
    if (!scanned && f16) snprintf(out, size, "if keys or values exceed 65504, the range of f16 rows, %s", remedy);
    else if (!scanned) snprintf(out, size, "the rows of its layers cannot be scanned");
    else if (at.layer >= 0 && at.infinite && at.f16)
        snprintf(out, size, "the %s of layer %d exceed 65504, the range of f16 rows; %s", at.what, at.layer, remedy);
    else if (at.layer == 0 || (at.layer > 0 && at.infinite))
        snprintf(out, size, "the %s of layer %d are not finite", at.what, at.layer);
    else if (at.layer > 0 || (isnan(row[0]) && isnan(row[c->vocab - 1]))) {
        int layer = (at.layer > 0 ? at.layer : c->n_layers) - 1;
        if (f16 && backend_ranks(d->be) > 1) /* rows of other ranks are not scanned */
            snprintf(out, size, "the output of layer %d is not finite; if rows of another rank exceed 65504, %s", layer,
                     remedy);
        else snprintf(out, size, "the output of layer %d is not finite", layer);
    } else snprintf(out, size, "the output matrix produces values beyond the range of float32");
}

status decoder_not_finite(decoder *d, attn_seq *seq, int64_t pos, const float *row, err *e)
{
    char text[176];
    if (d->scanned != d->w && model_find_nonfinite(d->w, text, sizeof text) == ST_FORMAT)
        return err_set(e, ST_FORMAT, "%s: tensor %s holds NaN or infinity", d->m->name, text);
    d->scanned = d->w;
    explain(d, seq, row, text, sizeof text);
    return err_set(e, ST_FORMAT, "%.40s: the logits of position %lld are not finite: %s", d->m->name, (long long)pos,
                   text);
}
