/* SPDX-License-Identifier: MIT */
/* The plain C implementation, by topic. Double accumulators; written to be read. */
#ifndef KERNELS_REF_REF_H
#define KERNELS_REF_REF_H

#include "kernels/backend.h"
#include "kernels/ops_rows.h"

/* The lists dictate arguments that one backend or another does not need. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define REF_DECLARE(name, OPS, type) OPS(OP_DECLARE, ref_##name##_, ref_##name##_)
CORE_OPS(OP_DECLARE, ref_, ref_)
OP_FAMILIES(REF_DECLARE)
TIER_OPS(OP_DECLARE, ref_tier_, ref_tier_)
CERTIFY_OPS(OP_DECLARE, ref_certify_, ref_certify_)
/* Fills one table of codes [cap]; counts what is read of the samples. */
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

/* Element i of a buffer; NULL where there is none. */
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

/* Whether a selection is used again (token_cache). */
static inline bool ref_token_again(buf state)
{
    return state.p && *i64_at(state, TOKEN_FRESH) == 0;
}

/* Element i of a buffer as float, and its rounding to a type. */
float ref_get(buf b, dtype t, size_t i);
void ref_put(buf b, dtype t, size_t i, float x);
/* n of them from element at on, as f32. */
void ref_floats(float *out, buf b, dtype t, size_t at, size_t n);

/* K and V rows of any type (ops_rows.h): a row at `at` of n elements, turned or not, from and to x. */
void ref_put_row(unsigned char *at, dtype t, bool turned, const float *x, size_t n);
void ref_get_row(float *x, const unsigned char *at, dtype t, bool turned, size_t n);
/* The orthonormal Walsh-Hadamard transform in place; n is a power of two. */
void ref_turn(float *x, size_t n);
/* A block of weights: the bits of the scale; code[c] is offset, of 8 bits also for DT_Q4. */
uint16_t ref_quantize_block(uint8_t code[QBLOCK_COLS], const float w[QBLOCK_COLS], dtype t);
/* Row r of in [..][n] f32, rounded to type t. */
void ref_round_row(float *out, buf in, size_t r, size_t n, dtype t);
/* Sum of 16 partial sums, and a dot product of f32 rows, in the order that ops_select.h fixes. */
float ref_sum16(const float part[16]);
float ref_dot16(const float *a, const float *b, size_t n);
/* One item of one head of a page_reduce. */
float ref_reduce_item(const page_reduce_job *j, size_t head, int64_t item);
/* K of a slot as f32, codes as the key that they give. */
void ref_k_row(float *out, const kv_rows *rows, size_t head, int64_t slot);

/* One job of linear whose weights lie in blocks (ops_weights.h). */
void ref_linear_qblocks(const linear_job *j, const float *x, size_t n, bool exact);

/* The list that a query head of a job reads: n entries from `first` on, their slots and positions. */
typedef struct {
    const int32_t *idx, *at; /* NULL: none */
    int64_t first, n;
} attn_list;
attn_list ref_list_of(const attn_job *j, size_t head);
static inline size_t list_slot(const attn_list *l, int64_t i)
{
    return (size_t)(l->idx ? l->idx[l->first + i] : l->first + i);
}
/* Whether query t sees entry i. */
bool ref_sees(const attn_job *j, const attn_list *l, size_t t, int64_t i);

/* Adds what an attention op reads of the job's rows to job->read, values: of V as well as of K. */
void ref_count_read(const attn_job *j, bool values);
/* A job that reads the slots [first, first + n) of all heads, for what counts. */
attn_job ref_slots_job(const kv_rows *rows, int64_t first, int64_t n, buf read);
/* The K row (value: V row) of a slot in a head as float, out of an exact row or of codes. */
void ref_row(const kv_rows *r, bool value, size_t head, size_t slot, float *out);

/* A rotated subspace v of a key of that norm, as ops_paris.h has it: its id, scale [2] and bins [3]. */
void ref_paris_code(unsigned char *id, unsigned char *scale, unsigned char *bins, const float *v, float norm,
                    bool alpha);
/* The sum of a[i] * b[i] in the order of ops_paris.h; n is a multiple of 8. */
static inline float ref_dot8(const float *a, const float *b, size_t n)
{
    float s[8] = {0};
    for (size_t i = 0; i < n; i += 8)
        for (size_t j = 0; j < 8; j++) s[j] += a[i + j] * b[i + j];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* What k-means is made of (ops_kmeans.h): a centroid's first summand, the nearest one of a row, and new centroids from
 * sums [n][dim] and counts [n] of rows; false: none changed. */
float ref_kmeans_bias(const float *c, size_t dim, kmeans_metric metric);
size_t ref_kmeans_nearest(const float *x, size_t dim, buf centroid, dtype t, size_t n, kmeans_metric metric);
bool ref_kmeans_means(float *centroid, const double *sum, const double *count, size_t n, size_t dim,
                      kmeans_metric metric);

/* Sorts the tokens of one head of a cluster.fill. */
void ref_cluster_sort(const cluster_index *x, const cluster_fill *j, size_t head);
/* What cluster.choose is made of, for one kv head: begin; clusters are taken, or left to estimates in ascending order;
 * then the list of all that were taken. */
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

/* What a colsum reads of n_groups sums, with `add`, and of K rows: into job->read. */
void ref_count_sums(const attn_job *job, size_t n_groups, bool add);

/* One list of item_spans: its places [first, end) hold candidates. group NULL: places are items. */
typedef struct {
    const int32_t *group;
    int64_t per, n, first, end;
} span_list;
/* lo, hi: the candidates. */
span_list ref_span_list(const item_spans *g, size_t list, int64_t lo, int64_t hi);
/* The scale of a list; the weight of what is held beside candidates, in units of these, the log of whose sum is `all`.
 */
float ref_mass_scale(const mass_job *j, size_t list);
/* Item of a place. */
static inline int64_t span_item(const span_list *l, int64_t place)
{
    return l->group ? l->group[place / l->per] * l->per + place % l->per : place;
}
/* Candidates of group r of a list: items [at[0], at[1]). */
static inline void span_items(const span_list *l, int64_t r, int64_t at[2])
{
    int64_t a = r * l->per, b = a + l->per, item = l->group[r] * l->per - a;
    at[0] = item + (a > l->first ? a : l->first);
    at[1] = item + (b < l->end ? b : l->end);
}
/* Heads that read an index together: n parts of n_heads / n heads each, one kv head's and one list's. */
static inline size_t span_parts(const item_spans *g, size_t n_kv_heads)
{
    return g->n_lists > n_kv_heads ? g->n_lists : n_kv_heads;
}
/* The same of a scorer's job, whose heads read an index in so many parts. */
static inline size_t score_parts(const score_job *j, size_t n_kv_heads)
{
    return j->spans ? span_parts(j->spans, n_kv_heads) : n_kv_heads;
}
/* The places that part i of `parts` scores. */
span_list ref_part_places(const score_job *j, size_t i, size_t parts);
/* The scores of the places [0, first) and [end, n * per) of n_heads heads: -INFINITY. */
void ref_span_blanks(float *score, size_t stride, size_t n_heads, const span_list *l);
/* Bytes that a job of fier.score reads. */
uint64_t fier_job_bytes(const score_job *j);
/* Votes by the backend's own ops. */
void ref_fier_votes(backend *be, const score_job *j);

#endif
