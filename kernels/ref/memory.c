/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "kernels/backend.h"
#include "kernels/base/mem.h"
#include "kernels/comm.h"
#include "kernels/ref/ref.h"

/* Fresh address space is zero and takes memory only when it is touched. Small buffers come from the heap, so that
 * sanitizers see their ends. */
enum { MAP_FROM = 1 << 20 };

status ref_alloc(backend *be, buf *out, size_t bytes, const char *what, err *e)
{
    out->p = NULL;
    if (bytes < MAP_FROM) return mem_alloc((void **)&out->p, bytes, 1, what, e);
    return mem_map_anon((void **)&out->p, bytes, what, e);
}

void ref_free(backend *be, buf b, size_t bytes)
{
    if (bytes < MAP_FROM) mem_free(b.p);
    else mem_unmap(b.p, bytes);
}

void ref_discard(backend *be, buf b, size_t bytes)
{
    mem_discard(b.p, bytes);
}

bool ref_map_file(backend *be, buf b, size_t bytes, int fd, uint64_t offset)
{
    return bytes >= MAP_FROM && mem_map_file(b.p, bytes, fd, offset);
}

status ref_import(backend *be, buf *out, const void *host, size_t bytes, err *e)
{
    out->p = (unsigned char *)(uintptr_t)host; /* weights are never written */
    return ST_OK;
}

void ref_release(backend *be, buf b, size_t bytes)
{
}

void ref_upload(backend *be, buf dst, const void *src, size_t bytes)
{
    memcpy(dst.p, src, bytes);
}

void ref_download(backend *be, void *dst, buf src, size_t bytes)
{
    memcpy(dst, src.p, bytes);
}

void ref_copy(backend *be, buf dst, buf src, size_t bytes)
{
    memcpy(dst.p, src.p, bytes);
}

size_t ref_available(backend *be)
{
    return mem_available() / (size_t)(be->ranks ? be->ranks->local_size : 1);
}

status ref_reserve(backend *be, const step_size *most, err *e)
{
    (void)be, (void)most, (void)e; /* all memory is the host's */
    return ST_OK;
}

status ref_select_reserve(backend *be, size_t n_lists, int64_t n_items, err *e)
{
    return ST_OK;
}

/* Ops are finished when they return. */
void ref_sync(backend *be)
{
}

void ref_step_begin(backend *be)
{
}

void ref_step_end(backend *be)
{
}

void ref_send(backend *be, unsigned slot, buf src, size_t bytes)
{
    memcpy(be->slot[slot], src.p, bytes);
}

void ref_receive(backend *be, void *dst, unsigned slot, size_t bytes)
{
    memcpy(dst, be->slot[slot], bytes);
}

#define REF_TABLE(name, OPS, type)  static const type ref_##name = {OPS(OP_ENTRY, ref_##name##_, ref_##name##_)};
#define REF_FAMILY(name, OPS, type) .name = &ref_##name,

OP_FAMILIES(REF_TABLE)
const tier_ops ref_tier = {TIER_OPS(OP_ENTRY, ref_tier_, ref_tier_)};
const host_ops ref_host = {.alloc = ref_alloc, .free = ref_free};

static const backend_ops ref_ops = {.chunk = 512,
                                    .short_chunk = 64,
                                    .tier = &ref_tier,
                                    .qblocks = QBLOCK_TYPES,
                                    .host = &ref_host,
                                    .certify = &ref_certify,
                                    CORE_OPS(OP_ENTRY, ref_, ref_) OP_FAMILIES(REF_FAMILY)};

status backend_ref_init(backend *be, err *e)
{
    be->name = "ref";
    be->ops = &ref_ops;
    be->n_threads = 1;
    strcpy(be->about, "plain C reference (slow; for tests)");
    return ST_OK;
}
