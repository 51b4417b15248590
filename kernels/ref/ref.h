/* SPDX-License-Identifier: MIT */
/* The plain C implementation, by topic. Double accumulators; written to be read. */
#ifndef KERNELS_REF_REF_H
#define KERNELS_REF_REF_H

#include "kernels/ops.h"
#include "kernels/ops_block.h"
#include "kernels/ops_evict.h"
#include "kernels/ops_fier.h"
#include "kernels/ops_paris.h"
#include "kernels/ops_quest.h"
#include "kernels/ops_select.h"

/* Element i of a buffer as float, and its rounding to a type. */
float ref_get(buf b, dtype t, size_t i);
void ref_put(buf b, dtype t, size_t i, float x);
/* n of them from element at on, as f32. */
void ref_floats(float *out, buf b, dtype t, size_t at, size_t n);

/* Row r of in [..][n] f32, rounded to type t. */
void ref_round_row(float *out, buf in, size_t r, size_t n, dtype t);
/* Sum of 16 partial sums, and a dot product of f32 rows, in the order that ops_select.h fixes. */
float ref_sum16(const float part[16]);
float ref_dot16(const float *a, const float *b, size_t n);
/* K of a slot as f32, codes as the key that they give. */
void ref_k_row(float *out, const kv_rows *rows, size_t head, int64_t slot);

/* ref_ops' entries; cpu reuses those that need no speed. */
status ref_alloc(backend *be, buf *out, size_t bytes, const char *what, err *e);
void ref_free(backend *be, buf b, size_t bytes);
status ref_import(backend *be, buf *out, const void *host, size_t bytes, err *e);
void ref_release(backend *be, buf b, size_t bytes);
void ref_upload(backend *be, buf dst, const void *src, size_t bytes);
void ref_download(backend *be, void *dst, buf src, size_t bytes);
void ref_discard(backend *be, buf b, size_t bytes);
bool ref_map_file(backend *be, buf b, size_t bytes, int fd, uint64_t offset);
void ref_copy(backend *be, buf dst, buf src, size_t bytes);
size_t ref_available(backend *be);
void ref_sync(backend *be);

void ref_embed(backend *be, buf out, weight table, buf ids, size_t n);
void ref_rmsnorm(backend *be, buf out, buf x, weight w, size_t n, float eps);
void ref_linear(backend *be, const linear_job *jobs, size_t n_jobs, buf x, size_t n, bool exact);
/* One job of linear whose weights lie in blocks (ops_weights.h). */
void ref_linear_blocks(const linear_job *j, const float *x, size_t n, bool exact);
void ref_quantize(backend *be, buf out, dtype type, weight w);
void ref_convert(backend *be, buf out, dtype to, buf in, dtype from, size_t n);
void ref_swiglu(backend *be, buf out, buf gate, buf up, size_t n);
void ref_add(backend *be, buf x, buf y, size_t n);
void ref_all_reduce(backend *be, buf x, size_t n);
void ref_gather_columns(backend *be, buf x, size_t n, size_t part, size_t total);

void ref_i64_add(backend *be, buf x, size_t n, int64_t by);
void ref_pos_iota(backend *be, buf out, buf base, size_t n);
void ref_pos_shift(backend *be, buf out, buf pos, size_t n, int64_t cap, buf shift);
void ref_pos_ring(backend *be, buf out, buf pos, size_t n, int64_t sink, int64_t ring, buf base);
void ref_count_lists(backend *be, buf total, buf range, size_t n, size_t n_lists, buf chosen, size_t stride);

void ref_rope_table(backend *be, buf out, buf pos, size_t n, buf freq, size_t half, float mscale);
void ref_rope(backend *be, buf out, buf x, buf table, size_t n, size_t heads, size_t half);
void ref_kv_write(backend *be, const kv_rows *rows, buf slots, size_t n_lists, buf k, buf v,
                  size_t n);
void ref_kv_copy(backend *be, const kv_rows *to, buf dst, const kv_rows *from, buf src, size_t n);

/* Adds what an attention op reads of the job's rows to job->read, values: of V as well as of K. */
void ref_count_read(const attn_job *j, bool values);
/* The K row (value: V row) of a slot in a head as float, out of an exact row or of codes. */
void ref_row(const kv_rows *r, bool value, size_t head, size_t slot, float *out);

void ref_attn_prefill(backend *be, const attn_job *job);
void ref_attn_decode(backend *be, const attn_job *jobs, size_t n_jobs);
void ref_attn_merge(backend *be, buf out, buf lse, buf parts, buf lses, size_t n_parts,
                    size_t n_rows, size_t dim);

void ref_block_fold(backend *be, const band_mass *m, buf sum, size_t stride, buf at, int64_t n_max);
void ref_block_form(backend *be, const block_index *x, const kv_rows *keys, const band_mass *m, buf at, int64_t n_max);
void ref_block_list(backend *be, const far_list *l);
double ref_entropy(const float *score, int64_t lo, int64_t hi, float scale);
/* The share of a layer with n candidates whose entropy is theta. */
void ref_take_share(const entropy_pool *p, size_t window, size_t layer, int64_t n, float theta, buf k);
void ref_block_take(backend *be, const entropy_pool *p, size_t window, size_t layer, const item_scores *s, float scale,
                    buf k);
void ref_block_close_pools(backend *be, const entropy_pool *p, size_t n_windows);
void ref_combine_heads(backend *be, buf out, buf in, size_t stride, size_t n_heads, size_t n_groups, size_t n, int how);
/* What a colsum reads of n_groups sums, with `add`, and of K rows: into job->read. */
void ref_count_sums(const attn_job *job, size_t n_groups, bool add);
void ref_pool(backend *be, const kept_rows *l, buf in, int64_t trim, int64_t kernel, bool max);
void ref_repeat_heads(backend *be, buf out, buf in, size_t n, size_t n_heads, size_t repeat, size_t dim);
void ref_open(backend *be, const kept_rows *l);
void ref_append(backend *be, const kept_rows *l, buf pos, size_t n, buf slots);
void ref_prune(backend *be, const kept_rows *l, buf pos, const keep_rule *rule);
void ref_compact(backend *be, const kv_rows *rows, const kept_rows *l, int64_t limit);
void ref_by_rank(backend *be, const kv_rows *out, const kv_rows *rows, const kept_rows *l, buf pos, buf freq, buf read);
void ref_mean_heads(backend *be, buf out, buf q, size_t n_rows, size_t n_heads, size_t n_groups, size_t dim);
void ref_exact(backend *be, buf score, size_t stride, buf q, size_t n_heads, const kv_rows *rows, buf n,
               int64_t n_max, buf read);
void ref_combine(backend *be, buf out, buf in, size_t stride, size_t n_heads, size_t n_lists, buf n,
                 int64_t n_max, gqa_mode mode, float scale);
void ref_choose(backend *be, const choose_job *job);
void ref_choose_groups(backend *be, const choose_job *job, const item_groups *g);

/* One list of item_groups: its places [first, end) hold candidates. */
typedef struct {
    const int32_t *group;
    int64_t per, n, first, end;
} group_list;
/* lo, hi: the candidates. */
group_list ref_group_list(const item_groups *g, size_t list, int64_t lo, int64_t hi);
/* Item of a place. */
static inline int64_t group_item(const group_list *l, int64_t place)
{
    return l->group[place / l->per] * l->per + place % l->per;
}
/* Candidates of group r of a list: items [at[0], at[1]). */
static inline void group_items(const group_list *l, int64_t r, int64_t at[2])
{
    int64_t a = r * l->per, b = a + l->per, item = l->group[r] * l->per - a;
    at[0] = item + (a > l->first ? a : l->first);
    at[1] = item + (b < l->end ? b : l->end);
}
/* Heads that read an index together: n parts of n_heads / n heads each, one kv head's and one list's. */
static inline size_t group_parts(const item_groups *g, size_t n_kv_heads)
{
    return g->n_lists > n_kv_heads ? g->n_lists : n_kv_heads;
}
/* The scores of the places [0, first) and [end, n * per) of n_heads heads: -INFINITY. */
void ref_group_blanks(float *score, size_t stride, size_t n_heads, const group_list *l);
void ref_quest_add(backend *be, const quest_index *x, buf pos, buf k, size_t n);
void ref_quest_redo(backend *be, const quest_index *x, const kv_rows *rows, int64_t n);
void ref_quest_score(backend *be, buf score, size_t stride, buf q, size_t n_heads, const quest_index *x, buf n,
                     int64_t n_max, bool max_channel, buf read);
void ref_quest_score_groups(backend *be, buf score, size_t stride, buf q, size_t n_heads, const quest_index *x, buf n,
                            const item_groups *g, bool max_channel, buf read);
void ref_fier_add(backend *be, const fier_index *x, buf pos, buf k, size_t n);
void ref_fier_redo(backend *be, const fier_index *x, const kv_rows *rows, int64_t n);
void ref_fier_score(backend *be, buf score, size_t stride, buf q, size_t n_heads, const fier_index *x, buf n,
                    int64_t n_max, buf read);
/* Bytes that the scores of a list read of one kv head; n: tokens in all. */
uint64_t fier_group_bytes(const fier_index *x, const group_list *l, int64_t n);
void ref_fier_score_groups(backend *be, buf score, size_t stride, buf q, size_t n_heads, const fier_index *x, buf n,
                           const item_groups *g, buf read);
void ref_fier_vote(backend *be, buf out, buf score, size_t stride, buf q, size_t n_heads, const fier_index *x, buf n,
                   int64_t n_max, float scale, buf read);
/* ops_paris.h: what cpu reuses */
void ref_paris_mean(backend *be, const paris_index *x, const kv_rows *rows, buf range, int64_t n_max);
void ref_paris_count(backend *be, const paris_index *x, buf range, int64_t n_max, buf read);
void ref_paris_search(backend *be, const paris_job *j);
void ref_paris_resolve(backend *be, buf idx, size_t idx_stride, buf range, size_t n_lists, buf cand, size_t stride);

#endif
