/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "kernels/backend.h"
#include "kernels/base/mem.h"
#include "kernels/comm.h"
#include "kernels/draw.h"
#include "kernels/half.h"
#include "kernels/ops_block.h"
#include "kernels/ops_codes.h"
#include "kernels/ops_paris.h"
#include "kernels/ops_tier.h"
#include "kernels/ref/ref.h"

float ref_get(buf b, dtype t, size_t i)
{
    uint16_t h;
    float f;
    if (t == DT_F32) {
        memcpy(&f, b.p + 4 * i, 4);
        return f;
    }
    memcpy(&h, b.p + 2 * i, 2);
    return t == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

void ref_floats(float *out, buf b, dtype t, size_t at, size_t n)
{
    uint16_t h;
    if (t == DT_F32) memcpy(out, b.p + 4 * at, 4 * n);
    else if (t == DT_F16) {
        for (size_t i = 0; i < n; i++) memcpy(&h, b.p + 2 * (at + i), 2), out[i] = f16_to_f32(h);
    } else {
        for (size_t i = 0; i < n; i++) memcpy(&h, b.p + 2 * (at + i), 2), out[i] = bf16_to_f32(h);
    }
}

void ref_put(buf b, dtype t, size_t i, float x)
{
    if (t == DT_F32) {
        memcpy(b.p + 4 * i, &x, 4);
        return;
    }
    uint16_t h = t == DT_F16 ? f32_to_f16(x) : f32_to_bf16(x);
    memcpy(b.p + 2 * i, &h, 2);
}

void ref_round_row(float *out, buf in, size_t r, size_t n, dtype t)
{
    for (size_t c = 0; c < n; c++) {
        float x = ref_get(in, DT_F32, r * n + c);
        buf b = {(unsigned char *)&x};
        ref_put(b, t, 0, x);
        out[c] = ref_get(b, t, 0);
    }
}

/* The choice is host code already, with this CPU's SIMD. */
static void ref_draw(backend *be, buf ids, buf x, size_t n, size_t vocab, const draw_rule *rule, buf share)
{
    (void)be;
    float *row = (float *)(void *)x.p;
    for (size_t i = 0; i < n; i++)
        ((int32_t *)(void *)ids.p)[i] =
            (int32_t)draw_by_rule(&rule[i], row + i * vocab, vocab, ((const float *)(void *)share.p)[i]);
}

/* Fresh address space is zero and takes memory only where it is touched. Small buffers come from
 * the heap, where sanitizers see each one's end. */
enum { MAP_FROM = 1 << 20 };

status ref_alloc(backend *be, buf *out, size_t bytes, const char *what, err *e)
{
    (void)be;
    out->p = NULL;
    if (bytes < MAP_FROM) return mem_alloc((void **)&out->p, bytes, 1, what, e);
    return mem_map_anon((void **)&out->p, bytes, what, e);
}

void ref_free(backend *be, buf b, size_t bytes)
{
    (void)be;
    if (bytes < MAP_FROM) mem_free(b.p);
    else mem_unmap(b.p, bytes);
}

void ref_discard(backend *be, buf b, size_t bytes)
{
    (void)be;
    mem_discard(b.p, bytes);
}

bool ref_map_file(backend *be, buf b, size_t bytes, int fd, uint64_t offset)
{
    (void)be;
    return bytes >= MAP_FROM && mem_map_file(b.p, bytes, fd, offset);
}

status ref_import(backend *be, buf *out, const void *host, size_t bytes, err *e)
{
    (void)be;
    (void)bytes;
    (void)e;
    out->p = (unsigned char *)(uintptr_t)host; /* weights are never written */
    return ST_OK;
}

void ref_release(backend *be, buf b, size_t bytes)
{
    (void)be;
    (void)b;
    (void)bytes;
}

void ref_upload(backend *be, buf dst, const void *src, size_t bytes)
{
    (void)be;
    memcpy(dst.p, src, bytes);
}

void ref_download(backend *be, void *dst, buf src, size_t bytes)
{
    (void)be;
    memcpy(dst, src.p, bytes);
}

void ref_copy(backend *be, buf dst, buf src, size_t bytes)
{
    (void)be;
    memcpy(dst.p, src.p, bytes);
}

size_t ref_available(backend *be)
{
    return mem_available() / (size_t)(be->ranks ? be->ranks->local_size : 1);
}

void ref_sync(backend *be)
{
    (void)be;
}

const host_ops ref_host = {.alloc = ref_alloc, .free = ref_free, .room = NULL, .bring = NULL};

const backend_ops ref_ops = {
    .alloc = ref_alloc,
    .free = ref_free,
    .import = ref_import,
    .release = ref_release,
    .upload = ref_upload,
    .download = ref_download,
    .copy = ref_copy,
    .discard = ref_discard,
    .map_file = ref_map_file,
    .available = ref_available,
    .sync = ref_sync,
    .all_reduce = ref_all_reduce,
    .gather_columns = ref_gather_columns,
    .embed = ref_embed,
    .rmsnorm = ref_rmsnorm,
    .linear = ref_linear,
    .quantize = ref_quantize,
    .convert = ref_convert,
    .swiglu = ref_swiglu,
    .add = ref_add,
    .draw = ref_draw,
    .i64_add = ref_i64_add,
    .pos_iota = ref_pos_iota,
    .pos_shift = ref_pos_shift,
    .pos_ring = ref_pos_ring,
    .count_lists = ref_count_lists,
    .rope_table = ref_rope_table,
    .rope = ref_rope,
    .kv_write = ref_kv_write,
    .kv_copy = ref_kv_copy,
    .attn_prefill = ref_attn_prefill,
    .attn_decode = ref_attn_decode,
    .attn_merge = ref_attn_merge,
    .block = &ref_block,
    .evict = &ref_evict,
    .codes = &ref_codes,
    .select = &ref_select,
    .quest = &ref_quest,
    .fier = &ref_fier,
    .paris = &ref_paris,
    .tier = &ref_tier,
    .host = &ref_host,
};

status backend_ref_init(backend *be, err *e)
{
    (void)e;
    be->name = "ref";
    be->ops = &ref_ops;
    be->n_threads = 1;
    strcpy(be->about, "plain C reference (slow; for tests)");
    return ST_OK;
}
