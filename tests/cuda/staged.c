/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tests/cuda/staged.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops_block.h"
#include "kernels/ops_codes.h"
#include "kernels/ops_evict.h"
#include "kernels/ops_fier.h"
#include "kernels/ops_paris.h"
#include "kernels/ops_quest.h"
#include "kernels/ops_select.h"

/* Of all backends: there is one kind of device in a program. */
static backend_ops real;

/* A buffer of one call: where the call has it, which while the op runs is memory of the device. */
typedef struct {
    buf *at;
    size_t bytes;
    buf host, dev;
} part;

/* The part that lies around part i, of equal ones the first; itself, if none does. */
static size_t holder(const part *p, size_t n, size_t i)
{
    size_t best = i;
    for (size_t j = 0; j < n; j++) {
        bool around = p[j].host.p && p[j].host.p <= p[i].host.p && p[j].host.p + p[j].bytes >= p[i].host.p + p[i].bytes;
        if (around && (p[j].bytes > p[best].bytes || (p[j].bytes == p[best].bytes && j < best))) best = j;
    }
    return best;
}

static void stage(backend *be, part *p, size_t n)
{
    err e = {0};
    for (size_t i = 0; i < n; i++) p[i].host = *p[i].at;
    for (size_t i = 0; i < n; i++) {
        if (!p[i].host.p || holder(p, n, i) != i) continue;
        if (real.alloc(be, &p[i].dev, p[i].bytes + 1, "test", &e) != ST_OK) {
            printf("Bail out! %s\n", e.msg);
            exit(1);
        }
        real.upload(be, p[i].dev, p[i].host.p, p[i].bytes);
    }
    for (size_t i = 0; i < n; i++) {
        const part *h = &p[holder(p, n, i)];
        if (p[i].host.p) *p[i].at = buf_at(h->dev, (size_t)(p[i].host.p - h->host.p));
    }
}

/* What the op has changed comes back. */
static void unstage(backend *be, part *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        *p[i].at = p[i].host;
        if (!p[i].dev.p) continue;
        unsigned char *now = malloc(p[i].bytes + 1);
        if (!now) abort();
        real.download(be, now, p[i].dev, p[i].bytes);
        if (memcmp(p[i].host.p, now, p[i].bytes) != 0) memcpy(p[i].host.p, now, p[i].bytes);
        free(now);
        real.free(be, p[i].dev, p[i].bytes + 1);
    }
}

/* One op: a call of `real`, then the buffers in it. */
#define STAGED(call, ...)                                       \
    do {                                                        \
        part parts_[] = {__VA_ARGS__};                          \
        stage(be, parts_, sizeof parts_ / sizeof parts_[0]);    \
        call;                                                   \
        unstage(be, parts_, sizeof parts_ / sizeof parts_[0]);  \
    } while (0)
#define BYTES(b, n) {.at = &(b), .bytes = (n)}
#define F32(b, n) BYTES(b, (n) * sizeof(float))
#define F64(b, n) BYTES(b, (n) * sizeof(double))
#define I32(b, n) BYTES(b, (n) * sizeof(int32_t))
#define I64(b, n) BYTES(b, (n) * sizeof(int64_t))

/* The buffers of structs, which are copies of the caller's. */
#define ROWS(r)                                                                                               \
    BYTES((r).k, (r).n_kv_heads * (r).cap * (r).head_dim * dtype_size((r).type)),                             \
        BYTES((r).v, (r).n_kv_heads * (r).cap * (r).head_dim * dtype_size((r).type)),                         \
        BYTES((r).codes.k, code_bytes(&(r))), BYTES((r).codes.v, code_bytes(&(r))),                           \
        BYTES((r).codes.k_pair, pair_bytes(&(r), (r).codes.by_token)),                                        \
        BYTES((r).codes.v_pair, pair_bytes(&(r), true)), I32((r).codes.k_at, (r).cap), I32((r).codes.v_at, (r).cap)
#define JOB(j)                                                                                                \
    ROWS((j).rows), F32((j).q, (j).n_tok * (j).n_heads * (j).rows.head_dim),                                  \
        F32((j).out, (j).n_tok * (j).n_heads * (j).rows.head_dim), F32((j).lse, (j).n_tok * (j).n_heads),     \
        I64((j).range, 2 * (j).n_lists), I32((j).idx, (j).n_lists * (j).idx_stride), I64((j).qpos, (j).n_tok), \
        I64((j).kpos, 1), I32((j).at, (j).n_lists * (j).idx_stride), I64((j).read, READ_KINDS),               \
        F32((j).scores, (j).n_heads * (j).score_stride)
#define CHOICE(j)                                                                                             \
    F32((j).score, (j).n_lists * (j).stride), I64((j).n, 3), I64((j).k, (j).n_k), I64((j).tail, 1),           \
        I64((j).first, 1), I32((j).idx, (j).n_lists * (size_t)(j).idx_stride), I64((j).range, 2 * (j).n_lists)
#define GROUPS(g) I32((g).group, (g).n_lists * (g).stride), I64((g).range, 2 * (g).n_lists)
#define PAGES(x) BYTES((x).bound, (x).n_kv_heads * (x).cap * 2 * (x).head_dim * dtype_size((x).type))
#define BITS(x)                                                                                               \
    I32((x).bits, (x).n_kv_heads * (((x).cap + 31) / 32) * fier_words((x).head_dim) * 32),                    \
        BYTES((x).levels, (x).n_kv_heads * (((x).cap + (x).group - 1) / (x).group) * 2 * (x).head_dim *       \
                              dtype_size((x).type)),                                                          \
        BYTES((x).ring, (x).n_kv_heads * (x).group * (x).head_dim * dtype_size((x).type))
#define KEPT(l)                                                                                               \
    I32((l).at, (l).n_lists * (l).stride), I32((l).slot, (l).n_lists * (l).stride),                           \
        F32((l).score, (l).n_lists * (l).stride), I64((l).range, 2 * (l).n_lists), I64((l).seen, (l).n_lists), \
        I64((l).read, 1)
#define PARIS(x)                                                                                              \
    BYTES((x).id, (x).n_kv_heads * (x).cap * paris_blocks((x).head_dim)),                                     \
        BYTES((x).code, (x).n_kv_heads * (x).cap * paris_blocks((x).head_dim) * PARIS_CODE),                  \
        I32((x).count, (x).n_kv_heads * paris_blocks((x).head_dim) * PARIS_PATTERNS), I64((x).counted, 2),    \
        F32((x).sign, (x).rounds * paris_dim((x).head_dim)), F32((x).mean, (x).n_kv_heads * (x).head_dim)
#define BAND(m) F32((m).mass, (m).n_heads * (m).ring), I64((m).read, 1)
#define REPS(x) BYTES((x).rep, (x).cap * (x).n_heads * (x).head_dim * dtype_size((x).type))
#define POOL(p, windows)                                                                                      \
    F32((p).theta, (windows) * (p).n_layers), F64((p).sum, (p).n_layers), I64((p).count, 1),                  \
        I64((p).pool, (windows)), I64((p).bound, 2)

static size_t code_bytes(const kv_rows *r)
{
    return r->codes.k.p ? r->n_kv_heads * r->codes.cap * codes_row_bytes(&r->codes, r->head_dim) : 0;
}

static size_t pair_bytes(const kv_rows *r, bool by_token)
{
    const kv_codes *c = &r->codes;
    if (!c->k_pair.p) return 0;
    return r->n_kv_heads * 2 * sizeof(uint16_t) *
           (by_token ? c->cap * codes_runs(c, r->head_dim) : c->cap / c->group * r->head_dim);
}

/* ---- ops.h ---- */

static void kv_write(backend *be, const kv_rows *rows, buf slots, size_t n_lists, buf k, buf v, size_t n)
{
    kv_rows r = *rows;
    size_t row = r.n_kv_heads * r.head_dim;
    STAGED(real.kv_write(be, &r, slots, n_lists, k, v, n), ROWS(r), I64(slots, n * n_lists), F32(k, n * row),
           F32(v, n * row));
}

static void attn_prefill(backend *be, const attn_job *job)
{
    attn_job j = *job;
    STAGED(real.attn_prefill(be, &j), JOB(j));
}

static void attn_decode(backend *be, const attn_job *jobs, size_t n_jobs)
{
    for (size_t i = 0; i < n_jobs; i++) {
        attn_job j = jobs[i];
        STAGED(real.attn_decode(be, &j, 1), JOB(j));
    }
}

/* ---- ops_select.h ---- */

static void mean_heads(backend *be, buf out, buf q, size_t n_rows, size_t n_heads, size_t n_groups, size_t dim)
{
    STAGED(real.select->mean_heads(be, out, q, n_rows, n_heads, n_groups, dim), F32(out, n_rows * n_groups * dim),
           F32(q, n_rows * n_heads * dim));
}

static void exact(backend *be, buf score, size_t stride, buf q, size_t n_heads, const kv_rows *rows, buf n, int64_t n_max,
                  buf read)
{
    kv_rows r = *rows;
    STAGED(real.select->exact(be, score, stride, q, n_heads, &r, n, n_max, read), ROWS(r), F32(score, n_heads * stride),
           F32(q, n_heads * r.head_dim), I64(n, 3), I64(read, 1));
}

static void combine(backend *be, buf out, buf in, size_t stride, size_t n_heads, size_t n_lists, buf n, int64_t n_max,
                    gqa_mode mode, float scale)
{
    STAGED(real.select->combine(be, out, in, stride, n_heads, n_lists, n, n_max, mode, scale), F32(out, n_lists * stride),
           F32(in, n_heads * stride), I64(n, 3));
}

static void choose(backend *be, const choose_job *job)
{
    choose_job j = *job;
    STAGED(real.select->choose(be, &j), CHOICE(j));
}

static void choose_groups(backend *be, const choose_job *job, const item_groups *groups)
{
    choose_job j = *job;
    item_groups g = *groups;
    STAGED(real.select->choose_groups(be, &j, &g), CHOICE(j), GROUPS(g));
}

/* ---- ops_quest.h ---- */

static void quest_add(backend *be, const quest_index *host, buf pos, buf k, size_t n)
{
    quest_index x = *host;
    STAGED(real.quest->add(be, &x, pos, k, n), PAGES(x), I64(pos, 1), F32(k, n * x.n_kv_heads * x.head_dim));
}

static void quest_redo(backend *be, const quest_index *host, const kv_rows *rows, int64_t n)
{
    quest_index x = *host;
    kv_rows r = *rows;
    STAGED(real.quest->redo(be, &x, &r, n), PAGES(x), ROWS(r));
}

static void quest_score(backend *be, buf score, size_t stride, buf q, size_t n_heads, const quest_index *host, buf n,
                        int64_t n_max, bool max_channel, buf read)
{
    quest_index x = *host;
    STAGED(real.quest->score(be, score, stride, q, n_heads, &x, n, n_max, max_channel, read), PAGES(x),
           F32(score, n_heads * stride), F32(q, n_heads * x.head_dim), I64(n, 3), I64(read, 1));
}

static void quest_score_groups(backend *be, buf score, size_t stride, buf q, size_t n_heads, const quest_index *host, buf n,
                               const item_groups *groups, bool max_channel, buf read)
{
    quest_index x = *host;
    item_groups g = *groups;
    STAGED(real.quest->score_groups(be, score, stride, q, n_heads, &x, n, &g, max_channel, read), PAGES(x), GROUPS(g),
           F32(score, n_heads * stride), F32(q, n_heads * x.head_dim), I64(n, 3), I64(read, 1));
}

/* ---- ops_fier.h ---- */

static void fier_add(backend *be, const fier_index *host, buf pos, buf k, size_t n)
{
    fier_index x = *host;
    STAGED(real.fier->add(be, &x, pos, k, n), BITS(x), I64(pos, 1), F32(k, n * x.n_kv_heads * x.head_dim));
}

static void fier_redo(backend *be, const fier_index *host, const kv_rows *rows, int64_t n)
{
    fier_index x = *host;
    kv_rows r = *rows;
    STAGED(real.fier->redo(be, &x, &r, n), BITS(x), ROWS(r));
}

static void fier_score(backend *be, buf score, size_t stride, buf q, size_t n_heads, const fier_index *host, buf n,
                       int64_t n_max, buf read)
{
    fier_index x = *host;
    STAGED(real.fier->score(be, score, stride, q, n_heads, &x, n, n_max, read), BITS(x), F32(score, n_heads * stride),
           F32(q, n_heads * x.head_dim), I64(n, 3), I64(read, 1));
}

static void fier_vote(backend *be, buf out, buf score, size_t stride, buf q, size_t n_heads, const fier_index *host, buf n,
                      int64_t n_max, float scale, buf read)
{
    fier_index x = *host;
    STAGED(real.fier->vote(be, out, score, stride, q, n_heads, &x, n, n_max, scale, read), BITS(x),
           F32(out, x.n_kv_heads * stride), F32(score, n_heads * stride), F32(q, n_heads * x.head_dim), I64(n, 3),
           I64(read, 1));
}

static void fier_score_groups(backend *be, buf score, size_t stride, buf q, size_t n_heads, const fier_index *host, buf n,
                              const item_groups *groups, buf read)
{
    fier_index x = *host;
    item_groups g = *groups;
    STAGED(real.fier->score_groups(be, score, stride, q, n_heads, &x, n, &g, read), BITS(x), GROUPS(g),
           F32(score, n_heads * stride), F32(q, n_heads * x.head_dim), I64(n, 3), I64(read, 1));
}

/* ---- ops_codes.h ---- */

static void encode_k(backend *be, const kv_rows *rows, buf src, size_t first, size_t n)
{
    kv_rows r = *rows;
    STAGED(real.codes->encode_k(be, &r, src, first, n), ROWS(r), I64(src, n));
}

static void encode_v(backend *be, const kv_rows *rows, buf src, size_t first, size_t n)
{
    kv_rows r = *rows;
    STAGED(real.codes->encode_v(be, &r, src, first, n), ROWS(r), I64(src, n));
}

static void fetch(backend *be, const kv_rows *out, const kv_rows *rows, buf range, buf idx, size_t n_lists,
                  size_t idx_stride, int64_t n_max, buf read)
{
    kv_rows o = *out, r = *rows;
    STAGED(real.codes->fetch(be, &o, &r, range, idx, n_lists, idx_stride, n_max, read), ROWS(o), ROWS(r),
           I64(range, 2 * n_lists), I32(idx, n_lists * idx_stride), I64(read, READ_KINDS));
}

/* ---- ops_evict.h ---- */

static void colsum(backend *be, const attn_job *job, size_t n_groups, int how, bool add, buf sum, size_t stride)
{
    attn_job j = *job;
    STAGED(real.evict->colsum(be, &j, n_groups, how, add, sum, stride), JOB(j), F32(sum, n_groups * stride));
}

static void combine_heads(backend *be, buf out, buf in, size_t stride, size_t n_heads, size_t n_groups, size_t n, int how)
{
    STAGED(real.evict->combine(be, out, in, stride, n_heads, n_groups, n, how), F32(out, n_groups * stride),
           F32(in, n_heads * stride));
}

static void pool(backend *be, const kept_rows *kept, buf in, int64_t trim, int64_t kernel, bool max)
{
    kept_rows l = *kept;
    STAGED(real.evict->pool(be, &l, in, trim, kernel, max), KEPT(l), F32(in, l.n_lists * l.stride));
}

static void repeat_heads(backend *be, buf out, buf in, size_t n, size_t n_heads, size_t repeat, size_t dim)
{
    STAGED(real.evict->repeat_heads(be, out, in, n, n_heads, repeat, dim), F32(out, n * n_heads * repeat * dim),
           F32(in, n * n_heads * dim));
}

static void open_lists(backend *be, const kept_rows *kept)
{
    kept_rows l = *kept;
    STAGED(real.evict->open(be, &l), KEPT(l));
}

static void append(backend *be, const kept_rows *kept, buf pos, size_t n, buf slots)
{
    kept_rows l = *kept;
    STAGED(real.evict->append(be, &l, pos, n, slots), KEPT(l), I64(pos, n), I64(slots, n * l.n_lists));
}

static void prune(backend *be, const kept_rows *kept, buf pos, const keep_rule *rule)
{
    kept_rows l = *kept;
    STAGED(real.evict->prune(be, &l, pos, rule), KEPT(l), I64(pos, 1));
}

static void compact(backend *be, const kv_rows *rows, const kept_rows *kept, int64_t limit)
{
    kv_rows r = *rows;
    kept_rows l = *kept;
    STAGED(real.evict->compact(be, &r, &l, limit), ROWS(r), KEPT(l));
}

static void by_rank(backend *be, const kv_rows *out, const kv_rows *rows, const kept_rows *kept, buf pos, buf freq, buf read)
{
    kv_rows o = *out, r = *rows;
    kept_rows l = *kept;
    STAGED(real.evict->by_rank(be, &o, &r, &l, pos, freq, read), ROWS(o), ROWS(r), KEPT(l), I64(pos, 1),
           F32(freq, r.head_dim / 2), I64(read, READ_KINDS));
}

/* ---- ops_paris.h ---- */

static void paris_mean(backend *be, const paris_index *host, const kv_rows *rows, buf range, int64_t n_max)
{
    paris_index x = *host;
    kv_rows r = *rows;
    STAGED(real.paris->mean(be, &x, &r, range, n_max), PARIS(x), ROWS(r), I64(range, 2));
}

static void paris_encode(backend *be, const paris_index *host, const kv_rows *rows, buf range, int64_t n_max)
{
    paris_index x = *host;
    kv_rows r = *rows;
    STAGED(real.paris->encode(be, &x, &r, range, n_max), PARIS(x), ROWS(r), I64(range, 2));
}

static void paris_query(backend *be, buf y, buf norm, buf q, size_t n_heads, const paris_index *host)
{
    paris_index x = *host;
    STAGED(real.paris->query(be, y, norm, q, n_heads, &x), PARIS(x), F32(y, n_heads * paris_dim(x.head_dim)),
           F32(norm, n_heads), F32(q, n_heads * x.head_dim));
}

static void paris_count(backend *be, const paris_index *host, buf range, int64_t n_max, buf read)
{
    paris_index x = *host;
    STAGED(real.paris->count(be, &x, range, n_max, read), PARIS(x), I64(range, 2), I64(read, 1));
}

static void paris_bonus(backend *be, buf bonus, const paris_index *host, buf y, buf limit, size_t n_tiers, buf read)
{
    paris_index x = *host;
    STAGED(real.paris->bonus(be, bonus, &x, y, limit, n_tiers, read), PARIS(x),
           BYTES(bonus, x.n_kv_heads * paris_blocks(x.head_dim) * PARIS_PATTERNS),
           F32(y, x.n_kv_heads * paris_dim(x.head_dim)), I64(limit, n_tiers), I64(read, 1));
}

static void collide(backend *be, buf score, size_t stride, const paris_index *host, buf bonus, buf range, int64_t n_max,
                    buf read)
{
    paris_index x = *host;
    STAGED(real.paris->collide(be, score, stride, &x, bonus, range, n_max, read), PARIS(x),
           BYTES(score, x.n_kv_heads * stride),
           BYTES(bonus, x.n_kv_heads * paris_blocks(x.head_dim) * PARIS_PATTERNS), I64(range, 2), I64(read, 1));
}

static void candidates(backend *be, buf cand, size_t stride, buf score, size_t score_stride, size_t n_kv_heads, buf range,
                       buf m, int64_t n_max)
{
    STAGED(real.paris->candidates(be, cand, stride, score, score_stride, n_kv_heads, range, m, n_max),
           I32(cand, n_kv_heads * stride), BYTES(score, n_kv_heads * score_stride), I64(range, 2), I64(m, 1));
}

static void estimate(backend *be, buf est, const paris_index *host, buf y, buf norm, size_t n_heads, buf cand, size_t stride,
                     buf m, int64_t m_max, buf read)
{
    paris_index x = *host;
    STAGED(real.paris->estimate(be, est, &x, y, norm, n_heads, cand, stride, m, m_max, read), PARIS(x),
           F32(est, n_heads * stride), F32(y, n_heads * paris_dim(x.head_dim)), F32(norm, n_heads),
           I32(cand, x.n_kv_heads * stride), I64(m, 1), I64(read, 1));
}

static void search(backend *be, const paris_job *job)
{
    paris_job j = *job;
    paris_index x = *j.x;
    size_t heads = x.n_kv_heads, n = heads * x.cap;
    j.x = &x;
    STAGED(real.paris->search(be, &j), PARIS(x), F32(j.y, heads * paris_dim(x.head_dim)), F32(j.norm, heads),
           I64(j.limit, j.n_tiers), I64(j.range, 2), I64(j.m, 1),
           BYTES(j.bonus, heads * paris_blocks(x.head_dim) * PARIS_PATTERNS), BYTES(j.score, n), I32(j.cand, n),
           F32(j.est, n), I64(j.read, 1));
}

static void resolve(backend *be, buf idx, size_t idx_stride, buf range, size_t n_lists, buf cand, size_t stride)
{
    STAGED(real.paris->resolve(be, idx, idx_stride, range, n_lists, cand, stride), I32(idx, n_lists * idx_stride),
           I64(range, 2 * n_lists), I32(cand, n_lists * stride));
}

/* ---- ops_block.h ---- */

static void moments(backend *be, buf mean, buf m2, size_t before, buf x, size_t n, size_t dim)
{
    STAGED(real.block->moments(be, mean, m2, before, x, n, dim), F32(mean, dim), F32(m2, dim), F32(x, n * dim));
}

static void probe(backend *be, buf out, buf weights, buf x, size_t n, size_t dim, buf mean, buf m2, size_t count)
{
    STAGED(real.block->probe(be, out, weights, x, n, dim, mean, m2, count), F32(out, dim), F32(weights, n),
           F32(x, n * dim), F32(mean, dim), F32(m2, dim));
}

static void score_blocks(backend *be, buf score, buf with, const block_index *host, size_t parts, buf n, int64_t n_max,
                         buf read)
{
    block_index x = *host;
    STAGED(real.block->score(be, score, with, &x, parts, n, n_max, read), REPS(x), F32(score, (size_t)n_max),
           F32(with, x.n_heads * x.head_dim), I64(n, 3), I64(read, 1));
}

static void fold(backend *be, const band_mass *host, buf sum, size_t stride, buf at, int64_t n_max)
{
    band_mass m = *host;
    STAGED(real.block->fold(be, &m, sum, stride, at, n_max), BAND(m), F32(sum, m.n_heads * stride), I64(at, 3));
}

static void form(backend *be, const block_index *host, const kv_rows *keys, const band_mass *mass, buf at, int64_t n_max)
{
    block_index x = *host;
    kv_rows r = *keys;
    band_mass m = mass ? *mass : (band_mass){.n_heads = 0};
    STAGED(real.block->form(be, &x, &r, mass ? &m : NULL, at, n_max), REPS(x), ROWS(r), BAND(m), I64(at, 3));
}

static void list(backend *be, const far_list *host)
{
    far_list l = *host;
    int64_t at[4], chosen[2];
    memcpy(at, l.at.p, sizeof at);
    memcpy(chosen, l.chosen.p, sizeof chosen);
    size_t most = (size_t)(at[1] + chosen[1] * l.size + at[3] - at[2]);
    STAGED(real.block->list(be, &l), I64(l.at, 4), I32(l.block, (size_t)(chosen[0] + chosen[1])), I64(l.chosen, 2),
           I32(l.idx, most), I64(l.range, 2), I64(l.count, 1));
}

static void take(backend *be, const entropy_pool *host, size_t window, size_t layer, const item_scores *items, float scale,
                 buf k)
{
    entropy_pool p = *host;
    item_scores s = *items;
    STAGED(real.block->take(be, &p, window, layer, &s, scale, k), POOL(p, window + 1), F32(s.score, s.n_lists * s.stride),
           I64(s.n, 3), I64(k, 1));
}

static void close_pools(backend *be, const entropy_pool *host, size_t n_windows)
{
    entropy_pool p = *host;
    STAGED(real.block->close_pools(be, &p, n_windows), POOL(p, n_windows));
}

void stage_ops(backend *be)
{
    static const select_ops select = {mean_heads, exact, combine, choose, NULL, choose_groups};
    static const quest_ops quest = {quest_add, quest_redo, quest_score, quest_score_groups};
    static const fier_ops fier = {fier_add, fier_redo, fier_score, fier_vote, fier_score_groups};
    static const codes_ops codes = {encode_k, encode_v, fetch};
    static const evict_ops evict = {colsum, combine_heads, pool, repeat_heads, open_lists, append, prune, compact, by_rank};
    static const paris_ops paris = {paris_mean, paris_encode, paris_query, paris_count, paris_bonus,
                                    collide,    candidates,   estimate,    search,      resolve};
    static const block_ops block = {moments, probe, score_blocks, fold, form, list, take, close_pools};
    static backend_ops table = {.kv_write = kv_write, .attn_prefill = attn_prefill, .attn_decode = attn_decode,
                                .select = &select, .quest = &quest, .fier = &fier, .codes = &codes, .evict = &evict,
                                .paris = &paris, .block = &block};
    if (be->ops != &table) real = *be->ops;
    table.alloc = real.alloc;
    table.free = real.free;
    table.upload = real.upload;
    table.download = real.download;
    table.available = real.available;
    table.sync = real.sync;
    be->ops = &table;
}
