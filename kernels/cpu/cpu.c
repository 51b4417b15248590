/* SPDX-License-Identifier: MIT */
/* The cpu backend: choice of SIMD level, threads and operations. */
#include "config.h"

#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/base/mem.h"
#include "kernels/comm.h"
#include "kernels/cpu/threads.h"

static void cpu_close(backend *be)
{
    cpu_ctx *c = be->ctx;
    gemm_destroy(c->gemm);
    mem_unmap(c->panel.p, c->panel.bytes);
    mem_unmap(c->halves.p, c->halves.bytes);
    mem_unmap(c->bytes.p, c->bytes.bytes);
    mem_unmap(c->order.p, c->order.bytes);
    mem_unmap(c->slices.p, c->slices.bytes);
    mem_unmap(c->tasks.p, c->tasks.bytes);
    mem_unmap(c->parts.p, c->parts.bytes);
    mem_free(c);
    be->ctx = NULL;
}

#define CPU_TABLE(name, OPS, type)  static const type cpu_##name = {OPS(OP_ENTRY, cpu_##name##_, ref_##name##_)};
#define CPU_FAMILY(name, OPS, type) .name = &cpu_##name,

OP_FAMILIES(CPU_TABLE)

static const backend_ops cpu_ops = {.chunk = 512,
                                    .short_chunk = 64,
                                    .tier = &ref_tier,
                                    .qblocks = QBLOCK_TYPES,
                                    .host = &ref_host,
                                    .certify = &cpu_certify,
                                    CORE_OPS(OP_ENTRY, cpu_, ref_) OP_FAMILIES(CPU_FAMILY)};

status backend_cpu_init(backend *be, int n_threads, err *e)
{
    const cpu_level *level;
    cpu_ctx *c;
    TRY(cpu_choose_level(&level, e));
    TRY(MEM_NEW(&c, 1, e));
    be->n_promised = threads_choose(n_threads, be->ranks ? be->ranks->local_size : 1);
    be->n_threads = threads_granted(be->n_promised);
    status st = gemm_create(&c->gemm, be->n_threads, e);
    if (st != ST_OK) {
        mem_free(c);
        return st;
    }
    c->k = level->kernels;
    c->bf16_gemm = c->gemm && level->bf16_gemm && gemm_has_bf16(c->gemm);
    be->ctx = c;
    be->ops = &cpu_ops;
    be->close = cpu_close;
    be->tiles = c->k->decode_tiles;
    be->name = "cpu";
    snprintf(be->about, sizeof be->about, "%s, %s%s", c->k->name, c->gemm ? gemm_name(c->gemm) : "built-in GEMM",
             c->bf16_gemm ? " (bf16)" : "");
    return ST_OK;
}
