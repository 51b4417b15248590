/* SPDX-License-Identifier: MIT */
/* Eviction and quantization: quantized rows, attention sums, lists of kept rows. */
/* Builds: shim race device */
#include "config.h"

#include "kernels/ops_evict.h"
#include "tests/unit/op_attn.h"

/* ---- codes ---- */

static void put_element(void *p, dtype t, size_t i, float f)
{
    uint16_t h = t == DT_F16 ? f32_to_f16(f) : f32_to_bf16(f);
    if (t == DT_F32) ((float *)p)[i] = f;
    else ((uint16_t *)p)[i] = h;
}

/* Numbers that codes round: any, quarters (halves of steps), constants, far from 0 (zero points beyond int8). */
static buf quantizable(op_run *x, size_t n, dtype t, int kind)
{
    void *p = xmalloc(4 * n);
    for (size_t i = 0; i < n; i++) {
        float f = 2 * rng_float(&x->r) - 1;
        put_element(p, t, i, kind == 0 ? f : kind == 1 ? rintf(f * 6) / 4 : kind == 2 ? -1.25f : 200 + rintf(3 * f));
    }
    buf b = op_in(x, p, n * dtype_size(t));
    free(p);
    return b;
}

/* Zeros: what a row leaves of its last byte may be anything else. */
static kv_codes code_buffers(op_run *x, const kv_rows *r, kv_codes c)
{
    size_t n = r->n_kv_heads * c.cap, v_pair = 4 * n * codes_runs(&c, r->head_dim);
    c.k = op_inout(x, NULL, n * codes_row_bytes(&c, r->head_dim), BITS, 0);
    c.v = op_inout(x, NULL, n * codes_row_bytes(&c, r->head_dim), BITS, 0);
    c.k_pair = op_out(x, c.by_token ? v_pair : 4 * n / c.group * r->head_dim, BITS, 0);
    c.v_pair = op_out(x, v_pair, BITS, 0);
    return c;
}

/* Quantizes all but the first two groups from permuted exact rows, at once and in steps; then fetches all rows. */
static void encode(op_run *x, const int64_t *p)
{
    enum { HEADS = 2, CAP = 32 };
    size_t dim = (size_t)p[0], rows = (size_t)p[4], first = 2 * rows, n = CAP - first;
    kv_rows r = {.type = (dtype)p[1], .n_kv_heads = HEADS, .head_dim = dim, .cap = CAP};
    r.k = quantizable(x, HEADS * CAP * dim, r.type, (int)p[6]);
    r.v = quantizable(x, HEADS * CAP * dim, r.type, (int)p[6]);
    kv_codes form = {.bits = (int)p[2],
                     .by_token = p[3] % 2,
                     .zero_point = p[3] / 2,
                     .cap = CAP,
                     .group = rows,
                     .run = (size_t)p[5]};
    size_t step = form.by_token ? 5 : rows, bytes = HEADS * CAP * codes_row_bytes(&form, dim);
    int64_t src[CAP];
    int32_t at[CAP];
    for (size_t i = 0; i < CAP; i++)
        src[i] = (int64_t)((i * 7 + 3) % CAP), at[i] = i < first ? (int32_t)i : -1 - (int32_t)i;
    buf from = op_in(x, src, sizeof src);
    kv_rows parts = r;
    r.codes = code_buffers(x, &r, form), parts.codes = code_buffers(x, &r, form);
    x->be->ops->codes->encode(x->be, &r, false, from, first, n);
    x->be->ops->codes->encode(x->be, &r, true, from, first, n);
    for (size_t i = 0; i < n; i += step) {
        size_t m = n - i < step ? n - i : step;
        x->be->ops->codes->encode(x->be, &parts, false, buf_at(from, 8 * i), first + i, m);
        x->be->ops->codes->encode(x->be, &parts, true, buf_at(from, 8 * i), first + i, m);
    }
    op_same(x, r.codes.k, parts.codes.k, bytes, "K in steps");
    op_same(x, r.codes.v, parts.codes.v, bytes, "V in steps");
    r.codes.k_at = r.codes.v_at = op_in(x, at, sizeof at);
    kv_rows out = {.type = DT_F32, .n_kv_heads = HEADS, .head_dim = dim, .cap = CAP};
    out.k = op_out(x, 4 * HEADS * CAP * dim, BITS, 0), out.v = op_out(x, 4 * HEADS * CAP * dim, BITS, 0);
    x->be->ops->codes->fetch(x->be, &out, &r, 0, CAP, op_read(x));
    float *v = op_see(x, out.v, 4 * HEADS * CAP * dim);
    for (size_t i = 0; i < HEADS * CAP * dim && p[6] == 2 && r.type != DT_BF16; i++)
        op_note(x, v[i] == -1.25f, "a constant comes back as %g", (double)v[i]);
    free(v);
}

/* Rows of another store, by a list for each region or one for all, become codes or exact rows. */
static void demote(op_run *x, const int64_t *p)
{
    enum { HEADS = 3, CAP = 40, TO = 40 };
    size_t dim = (size_t)p[0], per = (size_t)p[4], first = 2 * per, n = 3 * per;
    kv_rows from = {.type = (dtype)p[1], .n_kv_heads = HEADS, .head_dim = dim, .cap = CAP}, to = from;
    from.k = quantizable(x, HEADS * CAP * dim, from.type, 0);
    from.v = quantizable(x, HEADS * CAP * dim, from.type, 0);
    int32_t slot[HEADS][CAP];
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < CAP; i++) slot[h][i] = (i * 7 + 11 * h) % CAP;
    demote_job j = {.to = &to,
                    .from = &from,
                    .slot = op_in(x, slot, sizeof slot),
                    .n_lists = p[5] ? 1 : HEADS,
                    .stride = CAP,
                    .first = first,
                    .n = n,
                    .exact = p[2] == 0};
    to.cap = TO;
    if (j.exact) {
        to.type = DT_F16;
        to.k = op_inout(x, NULL, 2 * HEADS * TO * dim, BITS, 0),
        to.v = op_inout(x, NULL, 2 * HEADS * TO * dim, BITS, 0);
    } else {
        to.codes = code_buffers(
            x, &to,
            (kv_codes){.bits = (int)p[2], .by_token = p[3], .cap = TO, .group = p[3] ? 1 : per, .run = dim / 2});
        float f[HEADS * 128];
        for (size_t i = 0; i < HEADS * dim; i++) f[i] = 0.5f + rng_float(&x->r);
        j.factor = op_in(x, f, HEADS * dim * sizeof *f);
    }
    x->be->ops->codes->demote(x->be, &j);
}

/* Maxima of columns, what balances them, and channels divided by it. */
static void balance(op_run *x, const int64_t *p)
{
    enum { N = 5, GROUPS = 3 };
    size_t dim = (size_t)p[0], heads = GROUPS * (size_t)p[1], all = GROUPS * dim;
    const codes_ops *o = x->be->ops->codes;
    float zero[GROUPS * 128] = {0};
    buf q = op_floats(x, N * heads * dim), k = op_floats(x, N * all);
    buf q_max = op_inout(x, zero, all * sizeof(float), BITS, 0),
        k_max = op_inout(x, zero, all * sizeof(float), BITS, 0);
    buf b = op_out(x, all * sizeof(float), BITS, 0), out = op_out(x, N * heads * dim * sizeof(float), BITS, 0);
    o->column_max(x->be, q_max, q, N, heads, GROUPS, dim);
    o->column_max(x->be, k_max, k, N, GROUPS, GROUPS, dim);
    o->balance(x->be, b, q_max, k_max, all);
    o->divide_channels(x->be, out, q, b, N, heads, GROUPS, dim);
    float *f = op_see(x, b, all * sizeof(float));
    for (size_t i = 0; i < all; i++) op_note(x, f[i] > 0 && f[i] < INFINITY, "factor %zu: %g", i, (double)f[i]);
    free(f);
}

/* Some slots; K alone. */
static void fetch(op_run *x, const int64_t *p)
{
    op_shape s = {.n_tok = 1,
                  .kv = 2,
                  .group = 1,
                  .dim = (size_t)p[0],
                  .n = 60,
                  .type = (dtype)p[1],
                  .bits = (int)p[2],
                  .by_token = p[3]};
    attn_job j = op_attn(x, &s);
    size_t bytes = 4 * s.kv * 70 * s.dim;
    kv_rows out = {.k = op_out(x, bytes, BITS, 0), .type = DT_F32, .n_kv_heads = s.kv, .head_dim = s.dim, .cap = 70};
    if (p[4]) out.v = op_out(x, bytes, BITS, 0);
    x->be->ops->codes->fetch(x->be, &out, &j.rows, p[5], p[6], op_read(x));
}

/* Worked by hand: a group of K or a row of V, and what comes back. */
static void example(op_run *x, const int64_t *p)
{
    static const struct {
        int bits, n;
        bool zero;
        float in[6], back[6];
    } all[] = {{2, 6, false, {0.5f, 0, 1.5f, 2.5f, 3, 1}, {0, 0, 2, 2, 3, 1}}, /* halves to even */
               {4, 4, false, {-3.5f, 0.25f, -3.25f, 0}, {-3.5f, 0.25f, -3.25f, 0}},
               {2, 4, true, {-1.5f, 0, 1, 1.5f}, {-2, 0, 1, 1}}, /* step 1, zero point 1.5 to even: 2 */
               /* zero point -200 is 56 as int8: x / step + 56 = 256.. is cut to 3, 3 - 56 = -53 */
               {2, 4, true, {200, 201, 202, 203}, {-53, -53, -53, -53}},
               {4, 3, true, {0, 0, 0}, {0, 0, 0}}};
    size_t n = (size_t)all[p[0]].n, dim = p[1] ? n : 2, cap = p[1] ? 1 : n;
    int64_t src[6] = {0, 1, 2, 3, 4, 5};
    int32_t at[6] = {-1, -2, -3, -4, -5, -6}, exact[6] = {0, 1, 2, 3, 4, 5};
    float rows[12] = {0};
    for (size_t i = 0; i < n; i++) rows[p[1] ? i : 2 * i] = all[p[0]].in[i];
    kv_rows r = {.k = op_in(x, rows, 4 * cap * dim),
                 .v = op_in(x, rows, 4 * cap * dim),
                 .type = DT_F32,
                 .n_kv_heads = 1,
                 .head_dim = dim,
                 .cap = cap};
    r.codes = code_buffers(
        x, &r, (kv_codes){.bits = all[p[0]].bits, .zero_point = all[p[0]].zero, .cap = cap, .group = cap, .run = n});
    buf from = op_in(x, src, sizeof src);
    if (p[1]) x->be->ops->codes->encode(x->be, &r, true, from, 0, 1);
    else x->be->ops->codes->encode(x->be, &r, false, from, 0, n);
    r.codes.k_at = op_in(x, p[1] ? exact : at, sizeof at), r.codes.v_at = op_in(x, p[1] ? at : exact, sizeof at);
    kv_rows out = r;
    out.k = op_out(x, 4 * cap * dim, BITS, 0), out.v = op_out(x, 4 * cap * dim, BITS, 0);
    out.codes = (kv_codes){0};
    x->be->ops->codes->fetch(x->be, &out, &r, 0, (int64_t)cap, (buf){NULL});
    float *back = op_see(x, p[1] ? out.v : out.k, 4 * cap * dim);
    for (size_t i = 0; i < n; i++)
        op_note(x, back[p[1] ? i : 2 * i] == all[p[0]].back[i], "number %zu: %g", i, (double)back[p[1] ? i : 2 * i]);
    free(back);
}

/* ---- attention sums ---- */

/* Groups of heads that read one list: a head each, those of a KV head, all. */
static size_t groups_of(const op_shape *s, int64_t how)
{
    if (s->lists == LIST_PER_HEAD || how == 2) return s->kv * s->group;
    return s->lists == LIST_PER_KV || how == 1 ? s->kv : 1;
}

static void colsum(op_run *x, const int64_t *p)
{
    op_shape s = {.n_tok = (size_t)p[7],
                  .kv = 2,
                  .group = (size_t)p[1],
                  .dim = (size_t)p[0],
                  .n = (size_t)p[2],
                  .type = (dtype)p[3],
                  .lists = (int)(p[4] / 2),
                  .idx = p[4] % 2,
                  .bits = (int)(p[6] / 2 * 2),
                  .by_token = p[6] % 2,
                  .seen = p[4] % 2 ? SEEN_AT : SEEN_KPOS,
                  .band = p[5]};
    attn_job j = op_attn(x, &s);
    size_t groups = groups_of(&s, p[8]), stride = s.n + 9, rows = s.n_tok * j.n_heads;
    int how = (int)(p[9] % 3);
    float *lse = random_f32(&x->r, rows), *start = random_f32(&x->r, groups * stride);
    for (size_t i = 0; i < rows; i++) lse[i] = i % 11 == 5 ? -INFINITY : 2 + lse[i];
    j.lse = op_in(x, lse, 4 * rows);
    j.read = op_read(x);
    buf sum = op_inout(x, start, 4 * groups * stride, UNIT, 1e-5),
        parts = op_inout(x, start, 4 * groups * stride, IN, 0);
    buf fresh = op_inout(x, start, 4 * groups * stride, UNIT, 1e-5);
    const evict_ops *o = x->be->ops->evict;
    o->colsum(x->be, &j, groups, how, false, fresh, stride);
    o->colsum(x->be, &j, groups, how, true, sum, stride);
    j.copied = true;
    attn_job one = j;
    for (size_t t = 0; t < s.n_tok; t += one.n_tok) {
        one.n_tok = s.n_tok - t < 7 ? s.n_tok - t : 7;
        one.q = buf_at(j.q, 4 * t * j.n_heads * s.dim);
        one.lse = buf_at(j.lse, 4 * t * j.n_heads);
        one.qpos = buf_at(j.qpos, 8 * t);
        o->colsum(x->be, &one, groups, how, true, parts, stride);
    }
    op_same(x, sum, parts, 4 * groups * stride, "sums in chunks");
    free(lse), free(start);
}

/* From the scores of one query: some entries not seen, a head that sees nothing; in their own place too. */
static void from_scores(op_run *x, const int64_t *p)
{
    enum { KV = 2, N = 300, ROW = N + 7 };
    size_t n_heads = KV * (size_t)p[0], all = n_heads * ROW;
    float *score = random_f32(&x->r, all), *lse = random_f32(&x->r, n_heads), *start = random_f32(&x->r, all);
    for (size_t i = 0; i < all; i += 5) score[i] = -INFINITY;
    if (n_heads > 2) lse[2] = -INFINITY;
    attn_job j = {.lse = op_in(x, lse, 4 * n_heads),
                  .n_tok = 1,
                  .n_heads = n_heads,
                  .range = op_range(x, 4, p[1]),
                  .n_lists = 1,
                  .n_max = N,
                  .rows = {.n_kv_heads = KV, .head_dim = 8},
                  .read = op_read(x),
                  .scores = op_in(x, score, 4 * all),
                  .score_stride = ROW};
    const evict_ops *o = x->be->ops->evict;
    o->colsum(x->be, &j, KV, (int)p[2], p[3], op_inout(x, start, 4 * KV * ROW, UNIT, 1e-5), ROW);
    buf apart = op_inout(x, score, 4 * all, UNIT, 1e-5);
    o->colsum(x->be, &j, n_heads, COMBINE_SUM, false, apart, ROW);
    o->colsum(x->be, &j, n_heads, COMBINE_SUM, false, j.scores, ROW);
    op_same(x, apart, j.scores, 4 * all, "in place");
    free(score), free(lse), free(start);
}

static void combine(op_run *x, const int64_t *p)
{
    enum { HEADS = 12, N = 70 };
    size_t groups = (size_t)p[0], n = (size_t)p[2];
    x->be->ops->evict->combine(x->be, op_out(x, 4 * groups * N, UNIT, 1e-6), op_floats(x, HEADS * N), N, HEADS, groups,
                               n, (int)p[1]);
    buf in = op_floats(x, 3 * 4 * n); /* [3][4][n]: each head three times, one after the other */
    buf out = op_out(x, 4 * 3 * 12 * n, BITS, 0);
    x->be->ops->evict->repeat_heads(x->be, out, in, 3, 4, 3, n);
    for (size_t h = 0; h < 36; h++) op_same(x, buf_at(in, h / 3 * 4 * n), buf_at(out, h * 4 * n), 4 * n, "repeated");
}

/* ---- lists ---- */

enum { LISTS = 3, STRIDE = 64 };

/* Kept rows and what they hold. */
typedef struct {
    int32_t at[LISTS][STRIDE], slot[LISTS][STRIDE];
    float score[LISTS][STRIDE];
    int64_t range[LISTS][2], seen[LISTS];
} lists;

static kept_rows kept_of(op_run *x, bool by_position)
{
    kept_rows k = {.at = op_in(x, NULL, sizeof(int32_t[LISTS][STRIDE])),
                   .score = op_in(x, NULL, sizeof(float[LISTS][STRIDE])),
                   .range = op_inout(x, NULL, sizeof(int64_t[LISTS][2]), BITS, 0),
                   .seen = op_inout(x, NULL, sizeof(int64_t[LISTS]), BITS, 0),
                   .read = op_read(x),
                   .n_lists = LISTS,
                   .stride = STRIDE};
    if (!by_position) k.slot = op_in(x, NULL, sizeof(int32_t[LISTS][STRIDE]));
    return k;
}

static void see_lists(op_run *x, lists *l, const kept_rows *k)
{
    const backend_ops *o = x->be->ops;
    o->download(x->be, l->at, k->at, sizeof l->at);
    o->download(x->be, l->score, k->score, sizeof l->score);
    o->download(x->be, l->range, k->range, sizeof l->range);
    o->download(x->be, l->seen, k->seen, sizeof l->seen);
    if (k->slot.p) o->download(x->be, l->slot, k->slot, sizeof l->slot);
}

static bool is_permutation(const int32_t *slot)
{
    bool seen[STRIDE] = {false};
    for (int i = 0; i < STRIDE; i++) {
        if (slot[i] < 0 || slot[i] >= STRIDE || seen[slot[i]]) return false;
        seen[slot[i]] = true;
    }
    return true;
}

static float random_score(op_run *x, int kind)
{
    float f = 4 * rng_float(&x->r) - 1;
    switch (kind) {
    case 0: return f;
    case 1: return (float)(int)(2 * f) / 2; /* many ties */
    case 2: return rng_next(&x->r) % 4 ? 0.5f : rng_next(&x->r) % 2 ? NAN : -INFINITY;
    case 3: return rng_next(&x->r) % 2 ? 0.0f : -0.0f;
    default: return rng_next(&x->r) % 3 ? f : INFINITY;
    }
}

/* Adds the content of the lists up to their ends to the results. */
static void keep_lists(op_run *x, lists *l, const kept_rows *k)
{
    see_lists(x, l, k);
    for (int i = 0; i < LISTS; i++) {
        op_note(x, !k->slot.p || is_permutation(l->slot[i]), "list %d: slots", i);
        for (int64_t e = l->range[i][1]; e < STRIDE; e++) l->at[i][e] = 0, l->slot[i][e] = 0, l->score[i][e] = 0;
    }
    op_inout(x, l->at, sizeof l->at, BITS, 0);
    op_inout(x, l->score, sizeof l->score, BITS, 0);
    if (k->slot.p) op_inout(x, l->slot, sizeof l->slot, BITS, 0);
}

static void prune(op_run *x, const int64_t *p)
{
    static lists old;
    int64_t n = op_int(x, 0, STRIDE), last = 0;
    kept_rows k = kept_of(x, p[1]);
    const evict_ops *o = x->be->ops->evict;
    if (!p[1]) o->open(x->be, &k);
    o->append(x->be, &k, 5, (size_t)n, p[1] ? (buf){NULL} : op_out(x, sizeof(int64_t[STRIDE][LISTS]), BITS, 0));
    keep_rule r = {.band = p[2] ? op_int(x, 1, 100) : 0, .budget = p[3] ? n - 1 : op_int(x, 0, n + 1)};
    if (p[3] == 2) r.budget = INT64_MAX;
    if (r.budget < 0) r.budget = 0;
    r.recent = p[3] == 2 ? 3 : op_int(x, 0, r.budget);
    r.gone_slot = op_inout(x, NULL, sizeof old.slot, BITS, 0), r.gone_at = op_inout(x, NULL, sizeof old.at, BITS, 0);
    r.gone_stride = STRIDE;
    see_lists(x, &old, &k);
    for (int64_t e = 0; e < n; e++) { /* with gaps */
        last += op_int(x, 1, 3);
        for (int i = 0; i < LISTS; i++) {
            op_note(x, old.at[i][e] == 5 + e, "list %d entry %d at %d", i, (int)e, old.at[i][e]);
            old.at[i][e] = (int32_t)last;
            old.score[i][e] = random_score(x, (int)p[0]);
        }
    }
    x->be->ops->upload(x->be, k.at, old.at, sizeof old.at);
    x->be->ops->upload(x->be, k.score, old.score, sizeof old.score);
    o->prune(x->be, &k, last, &r);
    keep_lists(x, &old, &k);
}

/* A life of lists: appended to, pruned, compacted; rows lie where the slots say, below a limit. */
static void compact(op_run *x, const int64_t *p)
{
    enum { DIM = 2, LIMIT = 9 };
    static lists l;
    kept_rows kept = kept_of(x, false);
    size_t bytes = sizeof(float[LISTS][STRIDE][DIM]);
    kv_rows rows = {op_in(x, NULL, bytes), op_in(x, NULL, bytes), DT_F32, 0, LISTS, DIM, STRIDE, {0}, NULL, NULL};
    buf slots = op_in(x, NULL, sizeof(int64_t[STRIDE][LISTS])),
        fresh = op_in(x, NULL, sizeof(float[STRIDE][LISTS][DIM]));
    const backend_ops *o = x->be->ops;
    int64_t next = 0;
    kept.n_lists = p[0] ? 1 : LISTS;
    o->evict->open(x->be, &kept);
    for (int turn = 0; turn < 12; turn++) {
        size_t n = turn % 3 ? 1 : (size_t)op_int(x, 1, STRIDE - LIMIT);
        float f[STRIDE][LISTS][DIM];
        for (size_t i = 0; i < n; i++)
            for (int h = 0; h < LISTS; h++) f[i][h][0] = (float)(next + (int64_t)i), f[i][h][1] = (float)h;
        o->upload(x->be, fresh, f, n * sizeof *f);
        o->evict->append(x->be, &kept, next, n, slots);
        next += (int64_t)n;
        o->kv_write(x->be, &(kv_write_job){&rows, 0, slots, kept.n_lists, fresh, fresh, n}, 1);
        see_lists(x, &l, &kept);
        for (size_t i = 0; i < kept.n_lists; i++)
            for (int64_t e = 0; e < l.range[i][1]; e++) l.score[i][e] = rng_float(&x->r);
        o->upload(x->be, kept.score, l.score, sizeof l.score);
        o->evict->prune(x->be, &kept, next - 1, &(keep_rule){.budget = LIMIT - 1, .recent = 2});
        o->evict->compact(x->be, &rows, &kept, LIMIT);
        see_lists(x, &l, &kept);
        float(*k)[STRIDE][DIM] = op_see(x, rows.k, bytes), (*v)[STRIDE][DIM] = op_see(x, rows.v, bytes);
        for (size_t h = 0; h < LISTS; h++) {
            size_t i = p[0] ? 0 : h;
            op_note(x, is_permutation(l.slot[i]) && l.slot[i][l.range[i][1]] < LIMIT, "slots, turn %d", turn);
            for (int64_t e = 0; e < l.range[i][1]; e++) {
                int32_t s = l.slot[i][e];
                bool there = s < LIMIT && k[h][s][0] == (float)l.at[i][e] && v[h][s][0] == (float)l.at[i][e];
                op_note(x, there && k[h][s][1] == (float)h, "turn %d, entry %d of %zu in slot %d", turn, (int)e, i, s);
            }
        }
        free(k), free(v);
    }
}

static void pool(op_run *x, const int64_t *p)
{
    kept_rows k = kept_of(x, true);
    int64_t range[LISTS][2] = {{0, p[1]}, {0, STRIDE}, {0, 1 + p[1] % 9}};
    x->be->ops->upload(x->be, k.range, range, sizeof range);
    k.score = op_out(x, sizeof(float[LISTS][STRIDE]), UNIT, 1e-6);
    x->be->ops->evict->pool(x->be, &k, op_floats(x, LISTS * STRIDE), p[2], p[0], p[3]);
}

#define DIMS    OP_P(2, 6, 8, 10, 18, 32, 34, 64, 80, 96, 128, 256)
#define FORMS   OP_P(2, 3, 4, 5)
#define LENGTHS OP_P(1, 2, 7, 127, 128, 129, 300)

static const op_test tests[] = {
    {"codes: encode and fetch all",
     encode,
     264,
     13,
     89,
     {DIMS, OP_TYPES, OP_P(2, 4), OP_P(0, 1, 2, 3), OP_P(4, 8), OP_P(32, 6, 64, 8), OP_P(0, 0, 1, 2, 3)}},
    {"codes: fetch rows",
     fetch,
     96,
     7,
     41,
     {DIMS, OP_TYPES, OP_P(2, 4), OP_BOOL, OP_BOOL, OP_P(0, 7, 31), OP_P(29, 1, 0)}},
    {"codes: examples", example, 20, 3, 0, {OP_P(0, 1, 2, 3, 4), OP_BOOL}},
    {"attention sums",
     colsum,
     260,
     17,
     89,
     {DIMS, OP_P(1, 2, 3, 4, 5, 6, 7, 8), LENGTHS, OP_TYPES, OP_P(0, 1, 3, 5), OP_P(0, 20, 150), OP_P(0),
      OP_P(1, 2, 9, 40), OP_P(0, 1, 2), OP_P(0, 1, 2)}},
    {"attention sums over codes",
     colsum,
     60,
     11,
     41,
     {DIMS, OP_P(1, 2, 4), LENGTHS, OP_TYPES, OP_P(0, 1, 3, 5), OP_P(0, 20, 150), FORMS, OP_P(1, 5), OP_P(0, 1, 2),
      OP_P(0, 1, 2)}},
    {"attention sums, large groups",
     colsum,
     6,
     3,
     0,
     {OP_P(8), OP_P(50), OP_P(150), OP_TYPES, OP_P(0), OP_P(0, 20), OP_P(0), OP_P(70), OP_P(0, 1), OP_P(0, 1, 2)}},
    {"attention sums from scores",
     from_scores,
     135,
     7,
     43,
     {OP_P(1, 2, 3, 4, 5, 6, 7, 8, 12), LENGTHS, OP_P(0, 1, 2), OP_BOOL}},
    {"heads combined, repeated", combine, 36, 5, 17, {OP_P(3, 4, 12), OP_P(0, 1, 2), OP_P(1, 2, 64, 70)}},
    {"codes: demote",
     demote,
     150,
     7,
     31,
     {OP_P(2, 6, 8, 32, 34, 64, 128), OP_TYPES, OP_P(0, 2, 4), OP_BOOL, OP_P(4, 8), OP_BOOL}},
    {"codes: balance", balance, 12, 3, 5, {OP_P(2, 34, 128), OP_P(1, 2, 7)}},
    {"prune", prune, 1500, 29, 149, {OP_P(0, 1, 2, 3, 4), OP_BOOL, OP_P(0, 0, 1), OP_P(0, 0, 1, 1, 2)}},
    {"append, prune, compact", compact, 8, 3, 5, {OP_BOOL}},
    {"pool", pool, 120, 7, 31, {OP_P(1, 3, 5, 7, 9, 11), OP_P(0, 1, 5, 9, 33, 63), OP_P(0, 1, 2, 3, 4), OP_BOOL}},
};

int main(void)
{
    if (!op_table(tests, sizeof tests / sizeof *tests)) return 0;
    return tap_done();
}
