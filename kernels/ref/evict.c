/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/ops_codes.h"
#include "kernels/ops_evict.h"
#include "kernels/ref/ref.h"

/* ---- column sums ---- */

/* Returns the weight that query t of a head gives entry i of a list. */
static float weight_of(const attn_job *j, size_t t, size_t head, const attn_list *l, int64_t i)
{
    size_t d = j->rows.head_dim, kv_head = head / (j->n_heads / j->rows.n_kv_heads), row = t * j->n_heads + head;
    if (j->scores.p) {
        double s = (double)*f32_at(j->scores, head * j->score_stride + (size_t)i), sum = (double)*f32_at(j->lse, row);
        return isinf(sum) ? 0 : (float)exp(s - sum);
    }
    float lse = ref_get(j->lse, DT_F32, row), k[256];
    if (lse == -INFINITY || !ref_sees(j, l, t, i)) return 0;
    ref_row(&j->rows, false, kv_head, list_slot(l, i), k);
    double s = 0;
    for (size_t c = 0; c < d; c++) s += (double)ref_get(j->q, DT_F32, row * d + c) * (double)k[c];
    return (float)exp(s * (double)j->scale - (double)lse);
}

static float combined(float sum, float x, int how)
{
    if (how == COMBINE_MAX) return sum > x ? sum : x;
    return sum + x;
}

/* Returns the bytes of the K rows of a list. */
static uint64_t key_bytes(const attn_job *j, const attn_list *l)
{
    const kv_codes *c = &j->rows.codes;
    size_t d = j->rows.head_dim, exact = kv_row_bytes(j->rows.type, d), code = codes_row_bytes(c, d);
    int64_t group = -1;
    uint64_t sum = 0;
    if (c->bits == 0) return (uint64_t)l->n * exact;
    for (int64_t i = 0; i < l->n; i++) {
        int64_t row = *i32_at(c->k_at, list_slot(l, i));
        sum += row >= 0 ? exact : code;
        if (row >= 0) continue;
        if (c->by_token) sum += 4 * codes_runs(c, d);
        else if ((-1 - row) / (int64_t)c->group != group) sum += 4 * d;
        if (!c->by_token) group = (-1 - row) / (int64_t)c->group;
    }
    return sum;
}

void ref_count_sums(const attn_job *j, size_t n_groups, bool add)
{
    uint64_t *read = (uint64_t *)(void *)j->read.p;
    size_t lists = j->n_lists == j->n_heads ? j->n_heads : j->rows.n_kv_heads;
    if (!read) return;
    for (size_t g = 0; g < n_groups && add; g++)
        read[READ_INDEX] += (uint64_t)ref_list_of(j, g * (j->n_heads / n_groups)).n * sizeof(float);
    for (size_t i = 0; i < lists && !j->copied && !j->scores.p; i++) {
        attn_list l = ref_list_of(j, i * (j->n_heads / lists));
        read[READ_K] += key_bytes(j, &l);
    }
}

void ref_evict_colsum(backend *be, const attn_job *j, size_t n_groups, int how, bool add, buf sum, size_t stride)
{
    size_t heads = j->n_heads / n_groups;
    float factor = how == COMBINE_MEAN ? 1 / (float)heads : 1;
    ref_count_sums(j, n_groups, add);
    for (size_t g = 0; g < n_groups; g++) {
        const attn_list l = ref_list_of(j, g * heads);
        for (int64_t i = 0; i < l.n; i++) {
            float total = add ? *f32_at(sum, g * stride + (size_t)i) : 0;
            for (size_t t = 0; t < j->n_tok; t++) {
                float w = 0;
                for (size_t h = g * heads; h < (g + 1) * heads; h++) w = combined(w, weight_of(j, t, h, &l, i), how);
                total += w * factor;
            }
            *f32_at(sum, g * stride + (size_t)i) = total;
        }
    }
}

void ref_evict_combine(backend *be, buf out, buf in, size_t stride, size_t n_heads, size_t n_groups, size_t n, int how)
{
    size_t heads = n_heads / n_groups;
    float factor = how == COMBINE_MEAN ? 1 / (float)heads : 1;
    for (size_t g = 0; g < n_groups; g++)
        for (size_t i = 0; i < n; i++) {
            float x = *f32_at(in, g * heads * stride + i);
            for (size_t h = 1; h < heads; h++) x = combined(x, *f32_at(in, (g * heads + h) * stride + i), how);
            *f32_at(out, g * stride + i) = x * factor;
        }
}

static float pooled(const float *x, int64_t n, int64_t i, int64_t kernel, bool max)
{
    float best = -INFINITY, sum = 0;
    for (int64_t k = i - kernel / 2; k <= i + kernel / 2; k++) {
        if (k < 0 || k >= n) continue;
        best = x[k] > best ? x[k] : best;
        sum += x[k];
    }
    return max ? best : sum / (float)kernel;
}

void ref_evict_pool(backend *be, const kept_rows *l, buf in, int64_t trim, int64_t kernel, bool max)
{
    for (size_t k = 0; k < l->n_lists; k++) {
        int64_t n = i64_at(l->range, 2 * k)[1] - trim;
        for (int64_t i = 0; i < n; i++)
            *f32_at(l->score, k * l->stride + (size_t)i) = pooled(f32_at(in, k * l->stride), n, i, kernel, max);
    }
}

void ref_evict_repeat_heads(backend *be, buf out, buf in, size_t n, size_t n_heads, size_t repeat, size_t dim)
{
    for (size_t r = 0; r < n * n_heads; r++)
        for (size_t k = 0; k < repeat; k++)
            memcpy(f32_at(out, (r * repeat + k) * dim), f32_at(in, r * dim), dim * sizeof(float));
}

/* ---- lists ---- */

/* Pointers into one list. */
typedef struct {
    int32_t *at, *slot;
    float *score;
    int64_t *count;
} view;

static view view_of(const kept_rows *l, size_t i)
{
    return (view){i32_at(l->at, i * l->stride), i32_at(l->slot, i * l->stride),
                  l->score.p ? f32_at(l->score, i * l->stride) : NULL, i64_at(l->range, 2 * i + 1)};
}

void ref_evict_open(backend *be, const kept_rows *l)
{
    for (size_t k = 0; k < l->n_lists; k++) {
        int32_t *slot = view_of(l, k).slot;
        for (size_t i = 0; i < l->stride; i++) slot[i] = (int32_t)i;
    }
}

void ref_evict_append(backend *be, const kept_rows *l, int64_t pos, size_t n, buf slots)
{
    for (size_t k = 0; k < l->n_lists; k++) {
        view v = view_of(l, k);
        for (size_t i = 0; i < n; i++) {
            int64_t e = (*v.count)++;
            v.at[e] = (int32_t)(pos + (int64_t)i);
            if (v.score) v.score[e] = 0;
            if (slots.p) *i64_at(slots, i * l->n_lists + k) = v.slot[e];
        }
    }
}

/* Maps a score to an integer of the same order; NaN like -INFINITY, -0 like 0. */
static uint32_t key_of(const view *v, int64_t i)
{
    float x = v->score[i];
    uint32_t u;
    if (isnan(x)) x = -INFINITY;
    x += 0.0f;
    memcpy(&u, &x, sizeof u);
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* Rule for the first n entries: those above `key` stay, and the first `ties` of those equal to it. */
typedef struct {
    uint32_t key;
    int64_t ties;
} cut;

static int64_t count_from(const view *v, int64_t n, uint32_t key)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += key_of(v, i) >= key;
    return count;
}

/* Returns the cut that leaves k of n entries. Its key is the largest that at least k entries reach, found bit by
 * bit. */
static cut cut_of(const view *v, int64_t n, int64_t k)
{
    cut c = {0, 0};
    if (k == 0) return (cut){UINT32_MAX, 0};
    for (int bit = 31; bit >= 0; bit--)
        if (count_from(v, n, c.key | 1u << bit) >= k) c.key |= 1u << bit;
    c.ties = k - count_from(v, n, c.key + 1); /* no score has the key UINT32_MAX */
    return c;
}

/* Returns the entry with the smallest score, the last one of equals. */
static int64_t weakest(const view *v, int64_t n)
{
    int64_t at = 0;
    uint32_t least = UINT32_MAX;
    for (int64_t i = 0; i < n; i++) {
        uint32_t key = key_of(v, i);
        if (key > least) continue;
        least = key;
        at = i;
    }
    return at;
}

/* Moves entry i down to w; the slot of a dropped entry takes its place. */
static void move_down(view *v, int64_t w, int64_t i)
{
    v->at[w] = v->at[i];
    if (v->score) v->score[w] = v->score[i];
    if (!v->slot) return;
    int32_t slot = v->slot[w];
    v->slot[w] = v->slot[i];
    v->slot[i] = slot;
}

/* Entries of a list that the budget drops. */
typedef struct {
    int32_t *slot, *at; /* NULL: not wanted */
    int64_t n;
} dropped;

static void record(dropped *d, const view *v, int64_t i)
{
    if (!d->slot) return;
    d->slot[d->n] = v->slot ? v->slot[i] : v->at[i];
    d->at[d->n++] = v->at[i];
}

/* Drops entries [from, from + n). */
static void drop(view *v, int64_t from, int64_t n)
{
    for (int64_t i = from + n; i < *v->count && n > 0; i++) move_down(v, i - n, i);
    *v->count -= n;
}

static void prune_list(view *v, int64_t pos, const keep_rule *r, dropped d, int64_t *seen, uint64_t *read)
{
    int64_t behind = 0, w = 0;
    while (r->band > 0 && behind < *v->count && pos - v->at[behind] >= r->band) behind++;
    drop(v, 0, behind);
    *seen = *v->count;
    if (*v->count <= r->budget) return;
    int64_t open = *v->count - r->recent;
    if (read) *read += (uint64_t)open * sizeof(float);
    if (*v->count == r->budget + 1) {
        int64_t victim = weakest(v, open);
        record(&d, v, victim);
        drop(v, victim, 1);
        return;
    }
    cut c = cut_of(v, open, r->budget - r->recent);
    for (int64_t i = 0; i < *v->count; i++) {
        uint32_t key = i < open ? key_of(v, i) : UINT32_MAX;
        if (i < open && (key < c.key || (key == c.key && c.ties-- <= 0))) {
            record(&d, v, i);
            continue;
        }
        if (w < i) move_down(v, w, i);
        w++;
    }
    *v->count = w;
}

void ref_evict_prune(backend *be, const kept_rows *l, int64_t pos, const keep_rule *rule)
{
    for (size_t k = 0; k < l->n_lists; k++) {
        view v = view_of(l, k);
        dropped d = {i32_at(rule->gone_slot, k * rule->gone_stride), i32_at(rule->gone_at, k * rule->gone_stride), 0};
        prune_list(&v, pos, rule, d, i64_at(l->seen, k), (uint64_t *)(void *)l->read.p);
    }
}

/* ---- compaction ---- */

/* Copies a row in all regions of list k. */
static void move_row(const kv_rows *r, const kept_rows *l, size_t k, int32_t to, int32_t from)
{
    size_t row = kv_row_bytes(r->type, r->head_dim), first = l->n_lists == 1 ? 0 : k;
    size_t end = l->n_lists == 1 ? r->n_kv_heads : k + 1;
    for (size_t h = first; h < end; h++) {
        size_t a = (h * r->cap + (size_t)to) * row, b = (h * r->cap + (size_t)from) * row;
        memcpy(r->k.p + a, r->k.p + b, row);
        memcpy(r->v.p + a, r->v.p + b, row);
    }
}

static void swap(int32_t *a, int32_t *b)
{
    int32_t x = *a;
    *a = *b;
    *b = x;
}

void ref_evict_compact(backend *be, const kv_rows *rows, const kept_rows *l, int64_t limit)
{
    for (size_t k = 0; k < l->n_lists; k++) {
        view v = view_of(l, k);
        size_t n = (size_t)*v.count, low = n; /* free slots below the limit come first: [n, low) */
        for (size_t i = n; i < l->stride; i++)
            if (v.slot[i] < limit) swap(&v.slot[low++], &v.slot[i]);
        for (size_t i = 0; i < n; i++) {
            if (v.slot[i] < limit) continue;
            low--;
            move_row(rows, l, k, v.slot[low], v.slot[i]);
            swap(&v.slot[low], &v.slot[i]);
        }
    }
}
