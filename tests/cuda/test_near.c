/* SPDX-License-Identifier: MIT */
/* Rows in host memory with device copies (kv_near): which rows have copies, the counts, and that attention has the same
 * bits without reading host rows that have copies. */
/* Builds: shim race device */
#include "config.h"

#include "kernels/ops_rows.h"
#include "kernels/ops_tier.h"
#include "tests/cuda/cuda_util.h"

enum { KV = 2, CAP = 64, FILLED = 29, STEPS = 12, LIST = 12, BACK = 7, MOST_LISTS = 4, NONE = -1 };

typedef struct {
    size_t dim, n_lists, group; /* n_lists 0: a range without a selection */
    dtype type;
    int64_t first, window, slots;
    unsigned rotated;
} shape;

/* Slot of each device row. */
typedef struct {
    int64_t ring[CAP], tag[KV][CAP];
    uint64_t count[NEAR_KINDS];
} naive;

typedef struct {
    backend *be;
    shape s;
    device d;
    kv_near near;
    kv_rows rows, plain; /* in host memory with device copies, and on the device */
    naive want;
    int64_t n;
} rig;

static size_t row_bytes(const shape *s)
{
    return kv_row_bytes(s->type, s->dim);
}

static bool is_kept(const rig *r, int64_t slot)
{
    return slot < r->s.first || (r->s.window && r->want.ring[slot % r->s.window] == slot);
}

static bool is_cached(const rig *r, int h, int64_t slot)
{
    return r->s.slots && r->want.tag[h][slot % r->s.slots] == slot;
}

/* Processes the lists of a head, all at once. */
static void naive_bring(rig *r, int h, const int32_t *slot, int n, bool chosen)
{
    int64_t claim[CAP];
    uint64_t moved = 0;
    for (int i = 0; i < CAP; i++) claim[i] = NONE;
    for (int i = 0; i < n; i++) {
        bool here = is_kept(r, slot[i]) || is_cached(r, h, slot[i]);
        r->want.count[NEAR_ASKED] += 2;
        r->want.count[NEAR_FOUND] += here ? 2 : 0;
        if (!is_kept(r, slot[i]) && is_cached(r, h, slot[i])) claim[slot[i] % r->s.slots] = CAP;
    }
    for (int i = 0; i < n && chosen && r->s.slots; i++) {
        int64_t *c = &claim[slot[i] % r->s.slots];
        if (!is_kept(r, slot[i]) && slot[i] > *c) *c = slot[i];
    }
    for (int i = 0; i < CAP; i++)
        if (claim[i] >= 0 && claim[i] < CAP) r->want.tag[h][i] = claim[i], moved++;
    for (int i = 0; i < n; i++) moved += !is_kept(r, slot[i]) && !is_cached(r, h, slot[i]);
    r->want.count[NEAR_LINK] += 2 * moved * row_bytes(&r->s);
}

static void write_rows(rig *r, rng *g, int64_t n)
{
    int64_t slot[CAP];
    device d = {.be = r->be};
    float *k = random_f32(g, (size_t)n * KV * r->s.dim), *v = random_f32(g, (size_t)n * KV * r->s.dim);
    size_t bytes = (size_t)n * KV * r->s.dim * sizeof *k;
    for (int64_t i = 0; i < n; i++) {
        int64_t s = slot[i] = r->n + i;
        for (int h = 0; h < KV; h++)
            if (is_cached(r, h, s)) r->want.tag[h][s % r->s.slots] = NONE;
        if (s >= r->s.first && r->s.window) r->want.ring[s % r->s.window] = s;
    }
    buf at = put(&d, slot, (size_t)n * sizeof *slot), dk = put(&d, k, bytes), dv = put(&d, v, bytes);
    r->be->ops->kv_write(r->be, &(kv_write_job){&r->rows, 0, at, 1, dk, dv, (size_t)n}, 1);
    r->be->ops->kv_write(r->be, &(kv_write_job){&r->plain, 0, at, 1, dk, dv, (size_t)n}, 1);
    r->be->ops->sync(r->be);
    drop(&d);
    free(k), free(v);
    r->n += n;
}

/* Writes an ascending list without duplicates that includes the newest slot. */
static int choose(int32_t *out, rng *g, int64_t n)
{
    int k = 0;
    for (int64_t i = 0; i + 1 < n; i++)
        if (rng_below(g, (uint64_t)n) < LIST && k + 1 < LIST) out[k++] = (int32_t)i;
    out[k++] = (int32_t)(n - 1);
    return k;
}

/* Fills host rows that have device copies with NaN, or restores them. */
static void spoil(rig *r, unsigned char *const keep[2])
{
    size_t row = row_bytes(&r->s);
    for (int half = 0; half < 2; half++) {
        unsigned char *p = half ? r->rows.v.p : r->rows.k.p;
        memcpy(keep[half], p, KV * CAP * row);
        for (int h = 0; h < KV; h++)
            for (int64_t i = 0; i < r->n; i++)
                if (is_kept(r, i) || is_cached(r, h, i)) memset(p + ((size_t)h * CAP + (size_t)i) * row, 0xff, row);
    }
}

static void restore(rig *r, unsigned char *const keep[2])
{
    for (int half = 0; half < 2; half++)
        memcpy(half ? r->rows.v.p : r->rows.k.p, keep[half], KV * CAP * row_bytes(&r->s));
}

static bool same_places(rig *r)
{
    int32_t ring[CAP], tag[KV * CAP], claim[KV * CAP];
    uint64_t count[NEAR_KINDS];
    const backend_ops *o = r->be->ops;
    bool good = true;
    size_t window = (size_t)r->s.window, slots = (size_t)r->s.slots;
    o->download(r->be, count, r->near.count, sizeof count);
    if (window) o->download(r->be, ring, r->near.ring, window * sizeof *ring);
    if (slots) o->download(r->be, tag, r->near.tag, KV * slots * sizeof *tag);
    if (slots) o->download(r->be, claim, r->near.claim, KV * slots * sizeof *claim);
    for (size_t i = 0; i < window; i++) good &= ring[i] == r->want.ring[i] + 1;
    for (size_t i = 0; i < KV * slots; i++) good &= tag[i] == r->want.tag[i / slots][i % slots] + 1 && claim[i] == 0;
    return good && memcmp(count, r->want.count, sizeof count) == 0;
}

/* Runs a decode step over random lists, on both stores. */
static bool same_step(rig *r, rng *g)
{
    device d = {.be = r->be};
    const shape *s = &r->s;
    size_t heads = KV * s->group, lists = s->n_lists ? s->n_lists : 1, n_out = heads * s->dim;
    int64_t range[MOST_LISTS][2];
    int32_t idx[MOST_LISTS][CAP] = {{0}};
    for (size_t l = 0; l < lists; l++) {
        range[l][0] = 0;
        range[l][1] = s->n_lists ? choose(idx[l], g, r->n) : r->n;
        for (int i = 0; i < r->n && !s->n_lists; i++) idx[l][i] = i;
    }
    for (int h = 0; h < KV; h++) {
        int32_t all[MOST_LISTS * CAP];
        int n = 0;
        size_t per = lists > KV ? s->group : 1;
        for (size_t i = 0; i < per; i++)
            for (int64_t k = 0, l = lists == 1 ? 0 : (int64_t)((size_t)h * per + i); k < range[l][1]; k++)
                all[n++] = idx[l][k];
        naive_bring(r, h, all, n, s->n_lists > 0);
    }
    float *q = random_f32(g, n_out), *out[2] = {xmalloc(4 * n_out), xmalloc(4 * n_out)};
    unsigned char *const keep[2] = {xmalloc(KV * CAP * row_bytes(s)), xmalloc(KV * CAP * row_bytes(s))};
    attn_job job = {.q = put(&d, q, 4 * n_out),
                    .n_tok = 1,
                    .n_heads = heads,
                    .n_lists = lists,
                    .idx_stride = CAP,
                    .n_max = CAP,
                    .range = put(&d, range, sizeof range),
                    .scale = 0.5f};
    if (s->n_lists) job.idx = put(&d, idx, sizeof idx);
    for (int near = 0; near < 2; near++) {
        job.rows = near ? r->rows : r->plain;
        job.out = put(&d, out[near], 4 * n_out);
        if (near) r->be->ops->host->bring(r->be, &job);
        r->be->ops->sync(r->be);
        if (near) spoil(r, keep);
        r->be->ops->attn_decode(r->be, &job, 1);
        r->be->ops->download(r->be, out[near], job.out, 4 * n_out);
        if (near) restore(r, keep);
    }
    bool good = memcmp(out[0], out[1], 4 * n_out) == 0;
    drop(&d);
    free(q), free(out[0]), free(out[1]), free(keep[0]), free(keep[1]);
    return good;
}

static bool rig_open(rig *r, backend *be, const shape *s)
{
    static const unsigned char zero[1 << 15];
    err e = {0};
    size_t rows = KV * CAP * row_bytes(s), near = KV * (size_t)(s->first + s->window + s->slots) * row_bytes(s);
    *r = (rig){.be = be, .s = *s, .d = {.be = be}};
    for (int i = 0; i < CAP; i++) r->want.ring[i] = r->want.tag[0][i] = r->want.tag[1][i] = NONE;
    r->near = (kv_near){.k = put(&r->d, zero, near),
                        .v = put(&r->d, zero, near),
                        .first = s->first,
                        .window = s->window,
                        .slots = s->slots,
                        .count = put(&r->d, zero, NEAR_KINDS * sizeof(uint64_t))};
    if (s->window) r->near.ring = put(&r->d, zero, (size_t)s->window * 4);
    if (s->slots) r->near.tag = put(&r->d, zero, KV * (size_t)s->slots * 4);
    if (s->slots) r->near.claim = put(&r->d, zero, KV * (size_t)s->slots * 4);
    r->plain = (kv_rows){.k = put(&r->d, zero, rows),
                         .v = put(&r->d, zero, rows),
                         .type = s->type,
                         .rotated = s->rotated,
                         .n_kv_heads = KV,
                         .head_dim = s->dim,
                         .cap = CAP};
    r->rows = r->plain;
    r->rows.near = &r->near;
    return is_ok(be->ops->host->alloc(be, &r->rows.k, rows, "K rows", &e), &e, "pinned") &&
           is_ok(be->ops->host->alloc(be, &r->rows.v, rows, "V rows", &e), &e, "pinned");
}

static void test_shape(backend *be, const shape *s, int order)
{
    rig r;
    rng g = {11};
    set_order(order);
    if (!rig_open(&r, be, s)) return;
    bool bits = true, places = true;
    write_rows(&r, &g, FILLED);
    for (int i = 0; i < STEPS; i++) {
        if (i == STEPS / 2) r.n -= BACK; /* rewrites rows that had device copies */
        write_rows(&r, &g, 1);
        bits &= same_step(&r, &g);
        places &= same_places(&r);
    }
    ok(bits, "%zu lists, dim %zu, %s, %d+%d+%d places: the same bits, and what is near is read there", s->n_lists,
       s->dim, dtype_name(s->type), (int)s->first, (int)s->window, (int)s->slots);
    ok(places, "%zu lists: rows and counts as simulated, %llu of %llu found", s->n_lists,
       (unsigned long long)r.want.count[NEAR_FOUND], (unsigned long long)r.want.count[NEAR_ASKED]);
    be->ops->host->free(be, r.rows.k, KV * CAP * row_bytes(s));
    be->ops->host->free(be, r.rows.v, KV * CAP * row_bytes(s));
    drop(&r.d);
}

int main(void)
{
    static const shape shapes[] = {
        {8, 2, 2, DT_F16, 3, 8, 16, 0},
        {6, 2, 1, DT_BF16, 0, 4, 8, 0},
        {64, 2, 3, DT_F32, 2, 1, 4, 0},
        {8, 4, 2, DT_F16, 2, 4, 8, 0},
        {8, 1, 1, DT_F16, 1, 2, 16, 0},
        {8, 2, 2, DT_F16, 0, 0, 8, 0},
        {8, 2, 2, DT_F16, 4, 8, 0, 0},
        {8, 0, 2, DT_F16, 4, 8, 8, 0},
        {64, 2, 3, DT_Q8, 2, 4, 8, KV_ROTATED_K},
        {32, 2, 2, DT_Q4, 2, 4, 8, KV_ROTATED_K | KV_ROTATED_V},
        {96, 0, 2, DT_Q4, 4, 8, 8, 0},
        {128, 2, 5, DT_Q4, 2, 4, 8, KV_ROTATED_K | KV_ROTATED_V},
    };
    backend *be = open_cuda();
    if (!be) return 0; /* the failure was reported */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int order = 0; order < n_orders(); order++) test_shape(be, &shapes[i], order);
    check_end(be);
    return tap_done();
}
