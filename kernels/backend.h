/* SPDX-License-Identifier: MIT */
/* Functions that each implementation of ops.h offers to backend_open. Private to kernels/. */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include "kernels/ops.h"
#include "kernels/ops_block.h"
#include "kernels/ops_certify.h"
#include "kernels/ops_cluster.h"
#include "kernels/ops_coded.h"
#include "kernels/ops_codes.h"
#include "kernels/ops_evict.h"
#include "kernels/ops_fier.h"
#include "kernels/ops_kmeans.h"
#include "kernels/ops_lsh.h"
#include "kernels/ops_paris.h"
#include "kernels/ops_pq.h"
#include "kernels/ops_quest.h"
#include "kernels/ops_select.h"
#include "kernels/ops_tail.h"
#include "kernels/ops_tier.h"
#include "kernels/ops_token.h"

#ifdef __cplusplus
extern "C" {
#define KERNELS_NOEXCEPT noexcept
#else
#define KERNELS_NOEXCEPT
#endif

/* A row of a list as a prototype and as an entry of a table. who: prefix of the backend's names. */
#define OP_DECLARE(who, ret, name, args) ret who##name args;
#define OP_ENTRY(who, ret, name, args)   .name = who##name,

/* Fills name, about, ops, n_threads and ctx of a zeroed backend. */
status backend_ref_init(backend *be, err *e);
status backend_cpu_init(backend *be, int n_threads, err *e);
/* index < 0: the first usable device. Errors: ST_UNSUPPORTED (built without CUDA), ST_DEVICE. */
status backend_cuda_init(backend *be, int index, err *e) KERNELS_NOEXCEPT;

/* Returns false and sets a fault if a job of attn_prefill has a bias or RoPE rows. */
static inline bool attn_is_plain(backend *be, const attn_job *j)
{
    if (!j->bias.p && !j->rope.p) return true;
    err_set(&be->fault, ST_UNSUPPORTED,
            j->bias.p ? "attn_prefill: a bias is not supported; use attn_decode"
                      : "attn_prefill: RoPE of keys is not supported; use attn_decode");
    return false;
}

#ifdef __cplusplus
}
#endif

#endif
