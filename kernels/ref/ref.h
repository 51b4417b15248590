/* SPDX-License-Identifier: MIT */
/* The reference implementation in plain C, with double accumulators. */
#ifndef KERNELS_REF_REF_H
#define KERNELS_REF_REF_H

#include "kernels/backend.h"
#include "kernels/ops_rows.h"

/* Backends do not use all arguments that the lists dictate. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define REF_DECLARE(name, OPS, type) OPS(OP_DECLARE, ref_##name##_, ref_##name##_)
CORE_OPS(OP_DECLARE, ref_, ref_)
OP_FAMILIES(REF_DECLARE)
TIER_OPS(OP_DECLARE, ref_tier_, ref_tier_)
CERTIFY_OPS(OP_DECLARE, ref_certify_, ref_certify_)
/* Fills one table from codes [cap]. ref_lsh_count counts the bytes that samples read. */
void ref_lsh_fill_table(const lsh_index *x, size_t head, size_t l, const uint16_t *code, slot_range range);
void ref_lsh_count(const lsh_job *j);
extern const tier_ops ref_tier;
extern const host_ops ref_host;
extern const certify_ops ref_certify;
/* Adds a finished job to its counts. */
void ref_certify_count(const certify_job *j);

static inline void add_bytes(buf read, uint64_t bytes)
{
    if (read.p) *(uint64_t *)(void *)read.p += bytes;
}

/* Returns the address of element i of a buffer; NULL if the buffer is absent. */
static inline float *f32_at(buf b, size_t i)
{
    return b.p ? (float *)(void *)b.p + i : NULL;
}
static inline int32_t *i32_at(buf b, size_t i)
{
    return b.p ? (int32_t *)(void *)b.p + i : NULL;
}
static inline int64_t *i64_at(buf b, size_t i)
{
    return b.p ? (int64_t *)(void *)b.p + i : NULL;
}

/* True if a selection is reused (token_cache). */
static inline bool ref_token_again(buf state)
{
    return state.p && *i64_at(state, TOKEN_FRESH) == 0;
}

/* Element i of a buffer as float, and its rounding to a type. */
float ref_get(buf b, dtype t, size_t i);
void ref_put(buf b, dtype t, size_t i, float x);
/* Reads n elements from index `at` on as f32. */
void ref_floats(float *out, buf b, dtype t, size_t at, size_t n);

/* Write and read a K or V row of n elements of any type (ops_rows.h), rotated or not, at `at`. */
void ref_put_row(unsigned char *at, dtype t, bool rotated, const float *x, size_t n);
void ref_get_row(float *x, const unsigned char *at, dtype t, bool rotated, size_t n);
/* Applies the orthonormal Walsh-Hadamard transform in place; n is a power of two. */
void ref_hadamard(float *x, size_t n);
/* Quantizes a block of weights; returns the bits of the scale. code[c] includes the offset, in 8 bits also for
 * DT_Q4. */
uint16_t ref_quantize_block(uint8_t code[QBLOCK_COLS], const float w[QBLOCK_COLS], dtype t);
/* Reads row r of in [..][n] f32, rounded to type t. */
void ref_round_row(float *out, buf in, size_t r, size_t n, dtype t);
/* Sum of 16 partial sums, and dot product of f32 rows, in the order fixed by ops_select.h. */
float ref_sum16(const float part[16]);
float ref_dot16(const float *a, const float *b, size_t n);
/* Reduces one item of one head of a page_reduce. */
float ref_reduce_item(const page_reduce_job *j, size_t head, int64_t item);
/* Reads K of a slot as f32, dequantized if needed. */
void ref_k_row(float *out, const kv_rows *rows, size_t head, int64_t slot);

/* Runs one job of linear with weights in blocks (ops_weights.h). */
void ref_linear_qblocks(const linear_job *j, const float *x, size_t n, bool exact);

/* The list that a query head of a job reads: n entries from `first` on, with slots and positions. */
typedef struct {
    const int32_t *idx, *at; /* NULL: none */
    int64_t first, n;
} attn_list;
attn_list ref_list_of(const attn_job *j, size_t head);
static inline size_t list_slot(const attn_list *l, int64_t i)
{
    return (size_t)(l->idx ? l->idx[l->first + i] : l->first + i);
}
/* True if query t sees entry i. */
bool ref_sees(const attn_job *j, const attn_list *l, size_t t, int64_t i);

/* Adds the bytes that an attention op reads of the job's rows to job->read. values: V too. */
void ref_count_read(const attn_job *j, bool values);
/* Returns a job that reads the slots [first, first + n) of all heads, for counting. */
attn_job ref_slots_job(const kv_rows *rows, int64_t first, int64_t n, buf read);
/* Reads the K row (value: V row) of a slot in a head as floats, dequantized if needed. */
void ref_row(const kv_rows *r, bool value, size_t head, size_t slot, float *out);

/* Encodes a rotated subspace v of a key of that norm (ops_paris.h): its id, scale [2] and bins [3]. */
void ref_paris_code(unsigned char *id, unsigned char *scale, unsigned char *bins, const float *v, float norm,
                    bool alpha);
/* Returns the sum of a[i] * b[i] in the order of ops_paris.h; n is a multiple of 8. */
static inline float ref_dot8(const float *a, const float *b, size_t n)
{
    float s[8] = {0};
    for (size_t i = 0; i < n; i += 8)
        for (size_t j = 0; j < 8; j++) s[j] += a[i + j] * b[i + j];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* Steps of k-means (ops_kmeans.h): initial term of a centroid's score, nearest centroid of a row, and new centroids
 * from sums [n][dim] and counts [n] of rows. ref_kmeans_means returns false if none changed. */
float ref_kmeans_bias(const float *c, size_t dim, kmeans_metric metric);
size_t ref_kmeans_nearest(const float *x, size_t dim, buf centroid, dtype t, size_t n, kmeans_metric metric);
bool ref_kmeans_means(float *centroid, const double *sum, const double *count, size_t n, size_t dim,
                      kmeans_metric metric);

/* Sorts the tokens of one head of a cluster.fill. */
void ref_cluster_sort(const cluster_index *x, const cluster_fill *j, size_t head);
/* Steps of cluster.choose for one kv head: begin; take clusters or leave them to estimates, in ascending order; then
 * list the members of all taken ones. */
static inline int32_t ref_cluster_size(const cluster_choice *j, size_t head, int64_t c)
{
    const int32_t *start = i32_at(j->x->start, head * (j->x->mean.cap + 1) + (size_t)c);
    return start[1] - start[0];
}
float ref_cluster_score(const cluster_choice *j, size_t head, int64_t c);
void ref_cluster_begin(const cluster_choice *j, size_t head);
void ref_cluster_take(const cluster_choice *j, size_t head, int64_t c);
void ref_cluster_leave(const cluster_choice *j, size_t head, int64_t c);
void ref_cluster_list(const cluster_choice *j, size_t head);

/* Adds the bytes that a colsum reads to job->read: n_groups sums, if `add`, and K rows. */
void ref_count_sums(const attn_job *job, size_t n_groups, bool add);

/* One list of item_spans: its columns [first, end) hold candidates. group NULL: columns are items. */
typedef struct {
    const int32_t *group;
    int64_t per, n, first, end;
} span_list;
/* lo, hi: range of candidates. */
span_list ref_span_list(const item_spans *g, size_t list, int64_t lo, int64_t hi);
/* Scale of a list, and weight of the attention outside the candidates, in units of theirs; `all` is the log of the sum
 * of theirs. */
float ref_mass_scale(const mass_job *j, size_t list);
/* Returns the item of a column. */
static inline int64_t span_item(const span_list *l, int64_t column)
{
    return l->group ? l->group[column / l->per] * l->per + column % l->per : column;
}
/* Writes the candidates of group r of a list: items [at[0], at[1]). */
static inline void span_items(const span_list *l, int64_t r, int64_t at[2])
{
    int64_t a = r * l->per, b = a + l->per, item = l->group[r] * l->per - a;
    at[0] = item + (a > l->first ? a : l->first);
    at[1] = item + (b < l->end ? b : l->end);
}
/* Returns the number n of parts of n_heads / n heads each. The heads of a part share a kv head and a list, and read an
 * index together. */
static inline size_t span_parts(const item_spans *g, size_t n_kv_heads)
{
    return g->n_lists > n_kv_heads ? g->n_lists : n_kv_heads;
}
/* The same for a scorer's job. */
static inline size_t score_parts(const score_job *j, size_t n_kv_heads)
{
    return j->spans ? span_parts(j->spans, n_kv_heads) : n_kv_heads;
}
/* Returns the columns that part i of `parts` scores. */
span_list ref_part_columns(const score_job *j, size_t i, size_t parts);
/* Sets the scores of the columns [0, first) and [end, n * per) of n_heads heads to -INFINITY. */
void ref_span_blanks(float *score, size_t stride, size_t n_heads, const span_list *l);
/* Returns the bytes that a job of fier.score reads. */
uint64_t fier_job_bytes(const score_job *j);
/* Computes votes with the backend's own ops. */
void ref_fier_votes(backend *be, const score_job *j);

#endif
