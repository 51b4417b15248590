/* SPDX-License-Identifier: MIT */
/* The operations of the engine: one list, several implementations (ref, cpu, cuda).
 *
 * Buffers lie in the backend's memory, and only ops read or write them. Shapes are [outer, inner], row-major.
 * Operations are queued in order; only `download`, `receive` and `sync` wait. Compute ops return no status: the first
 * fault is kept, and `backend_fault` returns it. Values that the host knows (positions, counts, whatever follows from
 * the number of tokens) are arguments. Values that ops compute (scores, lists, budgets) are read from buffers.
 * A decode step is recorded again each time and its graph takes the new arguments, as long as the ops and their order
 * stay the same. Numbers named *_max or `most` are host bounds.
 * The sign and payload of a NaN result are unspecified.
 * Every op is deterministic and row-independent: a row's bits do not depend on the other rows of the call or on the
 * thread count (a vendor's GEMM is exempt). */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Types of elements, then of blocks: matrices (ops_weights.h), and of DT_Q8 and DT_Q4 also K and V rows (ops_rows.h).
 */
typedef enum {
    DT_F32,
    DT_F16,
    DT_BF16,
    DT_Q8,
    DT_Q4,
    DT_Q4Z,
    DT_Q4K,
    DT_Q5K,
    DT_Q6K,
    DT_FP8,
    DT_Q4G,
    DT_Q4G32,
    DT_COUNT
} dtype;

/* Returns the bytes of an element. */
static inline size_t dtype_size(dtype t)
{
    return t == DT_F32 ? 4 : 2;
}
/* Returns the type of a name; DT_COUNT: none has it. */
dtype dtype_named(const char *name);
const char *dtype_name(dtype t); /* "f32", "bf16", "q8", ... */

/* An address in a backend's memory. */
typedef struct {
    unsigned char *p;
} buf;

static inline buf buf_at(buf b, size_t bytes)
{
    return (buf){b.p + bytes};
}

/* A weight matrix [rows, cols] or vector (rows = 1). cols are contiguous, or in blocks, which only `linear` and `embed`
 * read. p NULL: absent. order i32 [cols]: column c of a matrix in blocks is column order[c] of x of `linear`; p NULL:
 * column c. Backends that do not take DT_Q4G get no order. */
typedef struct {
    buf p;
    dtype type;
    size_t rows, cols;
    buf order;
} weight;

enum { LINEAR_ALIKE = 16 }; /* rows of x */

/* One product of `linear`: out [n, w.rows] f32 = x w^T + bias. */
typedef struct {
    buf out;
    weight w;
    weight bias; /* [1, w.rows]; p NULL: none */
} linear_job;

/* Products together with the ops before and after them in a layer. Each has the bits of its own op.
 * norm  p not NULL: the jobs multiply rmsnorm(x) of this weight and eps. room [n, cols] f32 is work space.
 * gated two jobs of one shape, gate and up. The first's out is swiglu of both, the second's is undefined afterwards.
 * into  [n, w.rows] f32, for one job. p not NULL: out is summed over the ranks and added to into, then undefined.
 * spent nothing reads x afterwards, and it becomes undefined.
 * No other buffer is written, and none twice. into may be x if there is no norm. */
typedef struct {
    const linear_job *jobs;
    size_t n_jobs;
    buf x; /* [n, cols] f32 */
    size_t n;
    bool exact;
    weight norm;
    float eps;
    buf room;
    bool gated;
    buf into;
    bool spent;
} projection;

/* Quantized rows: n_kv_heads regions of `cap` rows of codes. A pair (a, b) of f16 numbers gives x = a + code * b, with
 * zero_point x = b * (code - a).
 * k, v    u8 [n_kv_heads][cap][row_bytes]: code i of a row is in bits [i * bits, (i + 1) * bits), lowest first;
 *         row_bytes = (head_dim * bits + 7) / 8
 * k_pair  by_token false: f16 [n_kv_heads][cap / group][2][head_dim], all a, then all b: one pair for a channel of
 *         `group` quantized rows that start at a multiple of it. Otherwise like v_pair
 * v_pair  f16 [n_kv_heads][cap][runs][2], one pair for `run` channels of a row (the last run may be shorter);
 *         runs = (head_dim + run - 1) / run
 * k_at, v_at  i32 [slots], the same for all heads: r >= 0 for float row r of a slot, -1 - c for quantized row c
 * Rows that are not quantized here are "exact" in the names of this interface, block rows (ops_rows.h) included.
 * Source: KIVI (quant/new_pack.py); methods.md 10.3, 11.7. */
typedef struct {
    int bits; /* 2 or 4; 0: no row is quantized and a slot is a row */
    bool by_token, zero_point;
    size_t cap, group, run;
    buf k, v, k_pair, v_pair, k_at, v_at;
} kv_codes;

/* Halves of a store whose rows are rotated (ops_rows.h). */
enum { KV_ROTATED_K = 1, KV_ROTATED_V = 2 };

/* K and V rows of one layer: n_kv_heads regions of `cap` rows of head_dim elements each. type is that of elements, or
 * DT_Q8 or DT_Q4 for rows in blocks, which may be rotated (ops_rows.h). tier: some rows may be in a file (ops_tier.h),
 * and readers announce their reads; NULL: all are in memory. */
typedef struct {
    buf k, v;
    dtype type;
    unsigned rotated;
    size_t n_kv_heads, head_dim, cap;
    kv_codes codes;
    struct tier_layer *tier;
    const struct kv_near *near; /* NULL: ops read k and v (ops_tier.h) */
} kv_rows;

/* Items (tokens, pages, spans) of a layer with n_slots slots; [lo, hi) are candidates. */
typedef struct {
    int64_t n_slots, lo, hi;
} item_range;

/* The slots [first, first + n). */
typedef struct {
    int64_t first, n;
} slot_range;

/* Counters: bytes read of K rows, of V rows and of a method's index; tokens attended by decode steps if only the device
 * knows them (count_lists); and measurements of samples in units of 1 / READ_ONE (tail.missed): missed fractions of
 * attention, variances of their sums over the heads of a list, and the number of fractions. */
enum { READ_K, READ_V, READ_INDEX, READ_ATTENDED, READ_MISSED, READ_MISSED_VAR, READ_MEASURED, READ_KINDS };
#define READ_ONE 4294967296.0

/* Attention of one sequence's queries over one set of stored rows.
 * q       [n_tok, n_heads, head_dim] f32, after RoPE. out has the same shape and may not alias q.
 * lse     [n_tok, n_heads] f32: log sum of exp of the scaled scores; p NULL: not wanted.
 *         A query that sees no key gives out = 0, lse = -INFINITY. On ref and cpu a NaN score makes out and lse of its
 *         head NaN.
 * range   i64 [n_lists][2]: first entry and count n, computed by ops; n_max is the host's bound on n. p NULL: every
 *         list has the n_max entries that start at `first`.
 * idx     i32 [n_lists][idx_stride]: slots in the order of positions; p NULL: entry i is slot i.
 * n_lists 1 (all heads), n_kv_heads or n_heads.
 * qpos    i64 [n_tok]. masked: entry first + i of the range has position j = kpos + i. A query at p sees it if j <= p
 *         and, with band > 0, p - j < band. Not masked: all entries are visible.
 * at      i32 [n_lists][idx_stride]: position of each entry of idx, ascending; replaces kpos.
 * read    u64 [READ_KINDS]: bytes of rows are added to its K and V; p NULL: not counted. For each list, the entries
 *         from the first to the last that a query of the job sees count once, K and V separately: the elements of a
 *         float or block row, the codes and pairs of a quantized row. The pairs of a group of K rows count once a list.
 * copied  rows is a working copy that was counted when it was made; it is not counted again.
 * scores  f32 [n_heads][score_stride]: attn_decode writes the score of entry range.first + i to column i of each head,
 *         -INFINITY if it is not visible; p NULL: not wanted.
 * bias    f32 [n_heads][bias_stride], attn_decode only (a fault in attn_prefill). Entry range.first + i has the score
 *         scale * q.k + column i of its head; -INFINITY excludes it; p NULL: 0. Four bytes for each head and visible
 *         entry are added to `read` as index. Source: methods.md 0.2.10.
 * rope    f32 [>= n_max][head_dim], attn_decode only (a fault in attn_prefill). The key of entry range.first + i is
 *         rotated by row i, a row of rope_table, in float32 as `rope` does it; p NULL: keys as stored.
 * pseudo  the rows stand for groups of tokens (means, centroids); their bytes are added to `read` as index.
 * rounded attn_prefill may round q, k, v and the weights to bf16 for its products if the CPU multiplies these faster
 *         (CUDA: to the type of the rows). Rows of f32 are exempt. Level amx always takes 16 bits (2e-10). Sums and
 *         the softmax stay in float32. Each of the four adds an NMSE of 2.4e-6 to the output, q and k times the
 *         variance of the scores; lse has the error of the scores. Bits still depend only on the query and its list.
 * tiles   attn_decode multiplies by tiles of the CPU (backend.tiles) over rows of f16 and bf16, without rope: q and the
 *         weights have 16 bits each, f16 rows all of theirs, NMSE 2e-10. Ignored elsewhere.
 * Query head h reads kv head h / (n_heads / n_kv_heads). Scores are scale * q.k + bias, in float32. */
typedef struct {
    buf q, out, lse;
    size_t n_tok, n_heads;
    kv_rows rows;
    buf range, idx;
    size_t n_lists, idx_stride;
    int64_t first, n_max;
    buf qpos, at;
    bool masked;
    int64_t kpos, band;
    float scale;
    buf read;
    bool copied;
    buf scores, bias, rope;
    size_t score_stride, bias_stride;
    bool rounded, pseudo, tiles;
} attn_job;

/* First entry and count of a list, for backends that read buffers in place. */
static inline int64_t attn_job_first(const attn_job *j, size_t list)
{
    return j->range.p ? ((const int64_t *)(const void *)j->range.p)[2 * list] : j->first;
}

static inline int64_t attn_job_count(const attn_job *j, size_t list)
{
    return j->range.p ? ((const int64_t *)(const void *)j->range.p)[2 * list + 1] : j->n_max;
}

/* Row i of k and v (each [n, n_kv_heads, head_dim] f32) goes to row slots[i] (i64 [n]), or with n_lists = n_kv_heads to
 * slots[i][head], rounded to rows->type (nearest even). slots.p NULL: to row first + i. v.p NULL: only k, to rows
 * without kv_near. The jobs of a call write different rows of regions of one shape and type. */
typedef struct {
    const kv_rows *rows;
    int64_t first;
    buf slots;
    size_t n_lists;
    buf k, v;
    size_t n;
} kv_write_job;

typedef struct draw_rule draw_rule; /* draw.h */

/* Each op is declared once, as a row OP(own or plain, type, name, arguments) of a list. `own`: every backend has its
 * own implementation; `plain`: cpu uses the reference's. The lists generate the structs of function pointers here, and
 * each backend's prototypes and tables (backend.h). */
#define OP_POINTER(who, ret, name, args) ret(*name) args;

/* Families of ops, each in its own header ops_*.h: name, list, struct of function pointers. */
#define OP_FAMILIES(F)                                                                                                 \
    F(codes, CODES_OPS, codes_ops)                                                                                     \
    F(evict, EVICT_OPS, evict_ops)                                                                                     \
    F(select, SELECT_OPS, select_ops)                                                                                  \
    F(quest, INDEX_OPS, index_ops)                                                                                     \
    F(fier, INDEX_OPS, index_ops)                                                                                      \
    F(paris, PARIS_OPS, paris_ops)                                                                                     \
    F(block, BLOCK_OPS, block_ops)                                                                                     \
    F(kmeans, KMEANS_OPS, kmeans_ops)                                                                                  \
    F(pq, INDEX_OPS, index_ops)                                                                                        \
    F(token, TOKEN_OPS, token_ops)                                                                                     \
    F(lsh, LSH_OPS, lsh_ops)                                                                                           \
    F(tail, TAIL_OPS, tail_ops) F(cluster, CLUSTER_OPS, cluster_ops) F(coded, INDEX_OPS, index_ops)

#define OP_TYPEDEF(name, OPS, type) typedef struct type type;
#define OP_MEMBER(name, OPS, type)  const type *name;

OP_FAMILIES(OP_TYPEDEF)
typedef struct tier_ops tier_ops; /* rows that lie partly in a file */
typedef struct host_ops host_ops; /* rows in the host's memory */
typedef struct certify_ops certify_ops;

typedef struct backend backend;
typedef struct comm comm; /* comm.h */

/* Number of host slots for backend_send, and bytes of each. */
enum { BACKEND_SLOTS = 4, BACKEND_SLOT_BYTES = 2048 };

/* Upper bounds of future decode steps: rows, heads and their size, keys of a row, numbers of a row of activations; and
 * rows of prompts. exact: as in `linear`. */
typedef struct {
    size_t rows, n_heads, head_dim, width, prompt_rows;
    int64_t n_keys;
    bool exact;
} step_size;

#define CORE_OPS(OP, own, plain)                                                                                       \
    /* ---- memory ---- */                                                                                             \
    /* Allocates zeroed memory. */                                                                                     \
    OP(plain, status, alloc, (backend *, buf * out, size_t bytes, const char *what, err *e))                           \
    OP(plain, void, free, (backend *, buf, size_t bytes))                                                              \
    /* Makes host memory that outlives the buffer readable by ops. CPU returns the same address. */                    \
    OP(plain, status, import, (backend *, buf * out, const void *host, size_t bytes, err *e))                          \
    /* Allocates the scratch memory of such steps and prompts now, so that they allocate none. */                      \
    OP(plain, status, reserve, (backend *, const step_size *, err *e))                                                 \
    OP(plain, void, release, (backend *, buf, size_t bytes))                                                           \
    OP(plain, void, upload, (backend *, buf dst, const void *src, size_t bytes))                                       \
    OP(plain, void, download, (backend *, void *dst, buf src, size_t bytes))                                           \
    OP(plain, void, copy, (backend *, buf dst, buf src, size_t bytes))                                                 \
    /* Makes the content undefined; its memory may return to the system. */                                            \
    OP(plain, void, discard, (backend *, buf b, size_t bytes))                                                         \
    /* Makes a buffer of `bytes` bytes from alloc a private copy of an open file from `offset` on, which is read       \
     * when it is touched. Returns false and changes nothing if the data must be uploaded instead. */                  \
    OP(plain, bool, map_file, (backend *, buf b, size_t bytes, int fd, uint64_t offset))                               \
    /* Returns the bytes that alloc may still give to this rank; 0: unknown. */                                        \
    OP(plain, size_t, available, (backend *))                                                                          \
    OP(plain, void, sync, (backend *))                                                                                 \
    /* See backend_step_begin and backend_send. */                                                                     \
    OP(plain, void, step_begin, (backend *))                                                                           \
    OP(plain, void, step_end, (backend *))                                                                             \
    OP(plain, void, send, (backend *, unsigned slot, buf src, size_t bytes))                                           \
    OP(plain, void, receive, (backend *, void *dst, unsigned slot, size_t bytes))                                      \
    /* ---- the transformer ---- */                                                                                    \
    /* out [n, table.cols] f32 = rows ids[i] (i32 [n]) of table, of elements or in blocks; ids must be valid. */       \
    OP(own, void, embed, (backend *, buf out, weight table, buf ids, size_t n))                                        \
    /* out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * w; out may be x. x, out [n, w.cols] f32. */                          \
    OP(own, void, rmsnorm, (backend *, buf out, buf x, weight w, size_t n, float eps))                                 \
    /* The jobs share x [n, cols] f32. exact: no vendor GEMM, and float32 activations. ops_weights.h defines           \
     * products with weights in blocks. On CPUs a row of at most LINEAR_ALIKE rows has the bits that it has alone. */  \
    OP(own, void, linear, (backend *, const linear_job *jobs, size_t n_jobs, buf x, size_t n, bool exact))             \
    /* Runs rmsnorm, linear, swiglu, all_reduce and add in this order, each if it is requested. */                     \
    OP(plain, void, project, (backend *, const projection *))                                                          \
    /* Runs n projections without norm and into, of one `exact`. Each has the bits of its own call. No buffer of one   \
     * is written by another. */                                                                                       \
    OP(own, void, project_each, (backend *, const projection *list, size_t n))                                         \
    /* Converts w, a matrix of elements, to type DT_Q8 or DT_Q4: weight_bytes(type, w.rows, w.cols) bytes. */          \
    OP(own, void, quantize, (backend *, buf out, dtype type, weight w))                                                \
    /* out[i] = in[i] for i < n, from one element type to another, rounded to nearest even. */                         \
    OP(own, void, convert, (backend *, buf out, dtype to, buf in, dtype from, size_t n))                               \
    /* out = silu(gate) * up, [n] f32 each; out may be gate. */                                                        \
    OP(own, void, swiglu, (backend *, buf out, buf gate, buf up, size_t n))                                            \
    /* x *= 1 / (1 + exp(-gate)), [n] f32 each. */                                                                     \
    OP(own, void, gate, (backend *, buf x, buf gate, size_t n))                                                        \
    /* x = cap * tanh(x * by), [n] f32. */                                                                             \
    OP(own, void, softcap, (backend *, buf x, size_t n, float by, float cap))                                          \
    /* out [n, cols] f32: row i is the sum over t < terms of by[i * terms + t] (f32) times row at[i * terms + t] (i32) \
     * of x [, cols] f32. Products are rounded and then added in the order of t. out and x do not overlap. */          \
    OP(own, void, sum_rows, (backend *, buf out, buf x, buf at, buf by, size_t n, size_t terms, size_t cols))          \
    /* x += y, [n] f32 each. */                                                                                        \
    OP(own, void, add, (backend *, buf x, buf y, size_t n))                                                            \
    /* ids[i] (i32 [2 n]) = index that rule[i] draws from row i of x [n, vocab] f32, with fraction[i] (f32 [n], in [0, \
     * 1)); ids[n + i] = 1 if row i is finite, else 0. See draw.h. x may change, unless the backend queues. */         \
    OP(own, void, draw, (backend *, buf ids, buf x, size_t n, size_t vocab, const draw_rule *rule, buf fraction))      \
    /* ---- ranks (comm.h); a single process is rank 0 of 1 ---- */                                                    \
    /* x [n] f32 becomes the sum over the ranks, with the same bits on all. */                                         \
    OP(plain, void, all_reduce, (backend *, buf x, size_t n))                                                          \
    /* x holds this rank's columns [n][part] f32 of a matrix [n][total] and becomes the whole matrix. Rank r has       \
     * the columns from min(r * part, total - part) on; part is total / ranks, rounded up. x has room for n * total    \
     * numbers and one more for each rank. */                                                                          \
    OP(plain, void, gather_columns, (backend *, buf x, size_t n, size_t part, size_t total))                           \
    /* ---- counts ---- */                                                                                             \
    /* total (u64) += sum over the layers with `chose` of the mean length of their n_lists lists, rounded up. range    \
     * i64 [n][n_lists][2] as in attn_job; chose [n] is in host memory. */                                             \
    OP(plain, void, count_lists, (backend *, buf total, buf range, size_t n, size_t n_lists, const bool *chose))       \
    /* ---- rotary embedding, rotate-half layout ---- */                                                               \
    /* out [n, half, 2] f32 = {cos, sin}(pos[i] * freq[c]) * mscale; angles reduced in double.                         \
     * pos i64 [n], freq f32 [half]. Source: Su et al. 2021 (RoFormer), transformers' rotate_half. */                  \
    OP(own, void, rope_table, (backend *, buf out, buf pos, size_t n, buf freq, size_t half, float mscale))            \
    /* out, x [n, heads, dim] f32; row i uses table row i. Rotates the first 2*half channels of a head and copies      \
     * the rest. out may be x. */                                                                                      \
    OP(own, void, rope, (backend *, buf out, buf x, buf table, size_t n, size_t heads, size_t dim, size_t half))       \
    /* ---- KV rows ---- */                                                                                            \
    OP(own, void, kv_write, (backend *, const kv_write_job *jobs, size_t n_jobs))                                      \
    /* Copies rows [from, from + n) to [to, to + n); the ranges are disjoint, or to <= from. */                        \
    OP(plain, void, kv_move, (backend *, const kv_rows *rows, int64_t to, int64_t from, size_t n))                     \
    /* ---- attention ---- */                                                                                          \
    /* Prompt chunks: many queries a sequence. Tiles of keys are aligned to the entries of the list, or to slots       \
     * without a list. Nothing of size n_tok x n is stored. Bits do not depend on the chunk. */                        \
    OP(own, void, attn_prefill, (backend *, const attn_job *job))                                                      \
    /* Decode: jobs with the same n_heads and head_dim, n_tok = 1 each, and any mixture of lengths, kv heads and       \
     * types. */                                                                                                       \
    OP(own, void, attn_decode, (backend *, const attn_job *jobs, size_t n_jobs))                                       \
    /* Merges n_parts partial results over disjoint keys into out [n_rows, dim] with lse [n_rows]. Part i lies at      \
     * parts + i * n_rows * dim, its lse at lses + i * n_rows. Parts with lse = -INFINITY are skipped; if all are,     \
     * out = 0, lse = -INFINITY. lse.p NULL: not wanted. Source: methods.md 0.2.10 (flash-decoding's split and         \
     * merge). */                                                                                                      \
    OP(own, void, attn_merge,                                                                                          \
       (backend *, buf out, buf lse, buf parts, buf lses, size_t n_parts, size_t n_rows, size_t dim))

typedef struct {
    size_t chunk;         /* backend_chunk(be, 0) */
    size_t short_chunk;   /* the same, where the decode steps of other sequences wait for it */
    bool at_once;         /* alloc takes all its memory at once, not when it is written, and discard returns none */
    bool imports_copy;    /* import takes memory, counted in `available` */
    bool queues;          /* ops run after the call that queues them */
    bool rounds_f16;      /* products of f16 weights round x to f16, and attention over f16 rows may */
    unsigned qblocks;     /* types of matrices in blocks that ops take: bit 1 << type */
    const tier_ops *tier; /* NULL, like a family: unsupported by the backend */
    const host_ops *host;
    const certify_ops *certify;
    CORE_OPS(OP_POINTER, , )
    OP_FAMILIES(OP_MEMBER)
} backend_ops;

struct backend {
    const char *name; /* "ref", "cpu", "cuda:0" */
    char about[128];  /* SIMD level and GEMM, which determine the last bits; for the start-up message */
    const backend_ops *ops;
    int n_threads;  /* CPU threads that compute */
    int n_promised; /* number of threads requested or chosen; larger than n_threads if OpenMP grants fewer */
    bool tiles;     /* attn_job.tiles has an effect */
    comm *ranks;    /* borrowed; NULL: a single process */
    err fault;      /* the first failure of a compute op */
    int64_t *stage_ns, marked_ns; /* backend_mark; stage_ns NULL: off */
    /* slots of backend_send if ops finish before they return */
    unsigned char slot[BACKEND_SLOTS][BACKEND_SLOT_BYTES];
    void *ctx;
    void (*close)(backend *); /* releases ctx; NULL: nothing to release */
};

typedef struct {
    const char *device; /* "auto", "cpu", "ref" (slow, for tests), "cuda", "cuda:N" */
    int n_threads;      /* 0: physical cores, or this rank's part of them */
    comm *ranks; /* ranks that compute a model together, on cpu, or on cuda with one GPU each. NULL: one process. A
                    single rank gives the same result, but on cuda it uses NCCL */
} backend_options;

status backend_open(backend **out, const backend_options *o, err *e);
void backend_close(backend *be);
/* Returns ST_OK, or the first fault of a compute op, copied to e. */
status backend_fault(const backend *be, err *e);
/* Profiling: waits for the ops so far and adds the time since the last mark to stage_ns[stage]; stage -1: discards it.
 * Callers define the stages. Does nothing if stage_ns is NULL. */
void backend_mark(backend *be, int stage);
/* Writes "2 threads", or "1 of 2 threads (OpenMP grants no more)", for start-up messages. */
enum { BACKEND_THREADS_TEXT = 80 };
void backend_threads_text(char out[BACKEND_THREADS_TEXT], const backend *be);
/* Number of ranks, and index of this one; 1 and 0 for a single process. */
int backend_ranks(const backend *be);
int backend_rank(const backend *be);
/* Returns the prompt tokens of one forward: `asked`, or the device's default if that is 0. */
static inline size_t backend_chunk(const backend *be, size_t asked)
{
    return asked ? asked : be->ops->chunk;
}

/* The ops queued between begin and end form a step. A backend may delay them until the end and run them as a whole.
 * Calls that wait inside a step (download, sync, alloc, free) are allowed: they first run the delayed ops, and the rest
 * is queued as usual. */
void backend_step_begin(backend *be);
void backend_step_end(backend *be);
/* Returns the number of steps worth queueing before the results of the first are read; 0 if ops run at once. */
int backend_ahead(const backend *be);
/* A small download without waiting: send copies src, as it is after the ops so far, to a slot; receive copies it out
 * once it has arrived. A slot keeps its content until the next send to it. */
void backend_send(backend *be, unsigned slot, buf src, size_t bytes);
void backend_receive(backend *be, void *dst, unsigned slot, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
