/* SPDX-License-Identifier: MIT */
/* The search for values that are not finite. */
#include "config.h"

#include <stdint.h>
#include <stdio.h>

#include "kernels/base/mem.h"
#include "kernels/ops_weights.h"
#include "model/weights.h"

enum { CHUNK_BYTES = 1 << 20 };

typedef struct {
    backend *be;
    void *chunk;
    char *name;
    size_t size;
} scan;

static bool all_finite(const void *p, dtype t, size_t bytes)
{
    const uint32_t *a = p;
    const uint16_t *b = p;
    const uint16_t mask = t == DT_BF16 ? 0x7f80 : 0x7c00;
    bool bad = false;
    for (size_t i = 0; t == DT_F32 && i < bytes / 4; i++) bad |= (a[i] & 0x7f800000) == 0x7f800000;
    for (size_t i = 0; t != DT_F32 && i < bytes / 2; i++) bad |= (b[i] & mask) == mask;
    return !bad;
}

/* Of blocks only the scales may be something else than numbers. */
static bool all_scales_finite(const unsigned char *p, dtype t, size_t bytes)
{
    bool good = true;
    for (size_t at = 0; at < bytes; at += qblock_bytes(t)) good &= all_finite(p + at, DT_F16, QBLOCK_SCALES);
    return good;
}

static status scan_weight(void *ctx, const weight_spec *w, err *e)
{
    const scan *s = ctx;
    dtype t = w->slot->type;
    bool blocks = dtype_in_qblocks(t);
    size_t bytes = weight_size(w, t), step = CHUNK_BYTES;
    if (blocks) step -= step % qblock_bytes(t);
    for (size_t at = 0; at < bytes; at += step) {
        size_t n = bytes - at < step ? bytes - at : step;
        s->be->ops->download(s->be, s->chunk, buf_at(w->slot->p, at), n);
        if (blocks ? all_scales_finite(s->chunk, t, n) : all_finite(s->chunk, t, n)) continue;
        snprintf(s->name, s->size, "%s", w->name);
        return err_set(e, ST_FORMAT, "tensor %s holds a value that is not finite", w->name);
    }
    return ST_OK;
}

status model_find_nonfinite(const model *m, char *name, size_t size)
{
    scan s = {m->be, NULL, name, size};
    if (size) name[0] = 0;
    TRY(mem_alloc(&s.chunk, CHUNK_BYTES, 1, "scan", NULL));
    status st = model_each_weight(m, scan_weight, &s, NULL);
    mem_free(s.chunk);
    return st;
}
