/* SPDX-License-Identifier: MIT */
/* The plain C implementation, by topic. Double accumulators; written to be read. */
#ifndef KERNELS_REF_REF_H
#define KERNELS_REF_REF_H

#include "kernels/ops.h"

/* Element i of a buffer as float, and its rounding to a type. */
float ref_get(buf b, dtype t, size_t i);
void ref_put(buf b, dtype t, size_t i, float x);

/* ref_ops' entries; cpu reuses those that need no speed. */
status ref_alloc(backend *be, buf *out, size_t bytes, const char *what, err *e);
void ref_free(backend *be, buf b, size_t bytes);
status ref_import(backend *be, buf *out, const void *host, size_t bytes, err *e);
void ref_release(backend *be, buf b, size_t bytes);
void ref_upload(backend *be, buf dst, const void *src, size_t bytes);
void ref_download(backend *be, void *dst, buf src, size_t bytes);
void ref_copy(backend *be, buf dst, buf src, size_t bytes);
void ref_sync(backend *be);

void ref_embed(backend *be, buf out, weight table, buf ids, size_t n);
void ref_rmsnorm(backend *be, buf out, buf x, weight w, size_t n, float eps);
void ref_linear(backend *be, const linear_job *jobs, size_t n_jobs, buf x, size_t n, bool exact);
void ref_swiglu(backend *be, buf out, buf gate, buf up, size_t n);
void ref_add(backend *be, buf x, buf y, size_t n);

void ref_i64_add(backend *be, buf x, size_t n, int64_t by);
void ref_pos_iota(backend *be, buf out, buf base, size_t n);
void ref_pos_shift(backend *be, buf out, buf pos, size_t n, int64_t cap, buf shift);
void ref_pos_ring(backend *be, buf out, buf pos, size_t n, int64_t sink, int64_t ring, buf base);

void ref_rope_table(backend *be, buf out, buf pos, size_t n, buf freq, size_t half, float mscale);
void ref_rope(backend *be, buf out, buf x, buf table, size_t n, size_t heads, size_t half);
void ref_kv_write(backend *be, const kv_rows *rows, buf slots, size_t n_lists, buf k, buf v,
                  size_t n);
void ref_kv_copy(backend *be, const kv_rows *to, buf dst, const kv_rows *from, buf src, size_t n);

void ref_attn_prefill(backend *be, const attn_job *job);
void ref_attn_decode(backend *be, const attn_job *jobs, size_t n_jobs);
void ref_attn_merge(backend *be, buf out, buf lse, buf parts, buf lses, size_t n_parts,
                    size_t n_rows, size_t dim);

#endif
