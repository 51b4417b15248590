/* SPDX-License-Identifier: MIT */
/* A naive evicting cache to compare the methods with: explicit lists of positions, attention in
 * double, one query at a time. A test says how a query's weights become scores. */
#ifndef TESTS_UNIT_EVICT_UTIL_H
#define TESTS_UNIT_EVICT_UTIL_H

#define T_HEADS 16
#define T_KV    4

#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"

#define UNUSED_OK __attribute__((unused))

typedef float head_rows[T_HEADS][T_DIM];
typedef struct sim sim;

enum { MEAN, SUM, MAX };

/* One list of a layer. w: weights of the query that was attended last, by head that reads the list. */
typedef struct {
    int64_t pos[T_MAX], n;
    double score[T_MAX];
} naive_list;

struct sim {
    const attn_shape *shape;
    int n_lists;
    int64_t budget, recent, chunk; /* chunk: 0, or prompts are pruned after so many tokens */
    int how;
    bool once, each_turn, by_count, by_rank;
    /* Takes the weights w[head][entry] of the query at p; left: tokens of the prompt behind it, -1 in decode. */
    void (*row)(sim *, int layer, int64_t p, int64_t left);
    void (*vote)(sim *, int layer, int64_t n_prompt); /* before a prompt is pruned; may be NULL */
    int64_t window, kernel;                           /* of SnapKV */
    bool max_pool;

    naive_list list[T_LAYERS][T_HEADS];
    double w_row[T_HEADS][T_MAX], votes[T_LAYERS][T_HEADS][T_MAX];
    bool listed;
    int64_t length;
    int turns;
};

static world w;
static head_rows got[T_LAYERS * T_MAX], want[T_LAYERS * T_MAX];

/* Queries and keys of w, rotated in double. */
static struct {
    bool done;
    double q[T_LAYERS][T_MAX][T_HEADS][T_DIM], k[T_LAYERS][T_MAX][T_KV][T_DIM];
} turned;

static void turn(double *out, const float *x, int64_t p)
{
    for (int c = 0; c < T_DIM / 2; c++) {
        double a = (double)p * (double)w.freq[c], u = (double)x[c], v = (double)x[c + T_DIM / 2];
        out[c] = u * cos(a) - v * sin(a);
        out[c + T_DIM / 2] = v * cos(a) + u * sin(a);
    }
}

static UNUSED_OK void turn_world(void)
{
    if (turned.done) return;
    for (int l = 0; l < T_LAYERS; l++)
        for (int64_t p = 0; p < T_MAX; p++) {
            for (int h = 0; h < T_HEADS; h++) turn(turned.q[l][p][h], w.q[l][p][h], p);
            for (int h = 0; h < T_KV; h++) turn(turned.k[l][p][h], w.k[l][p][h], p);
        }
    turned.done = true;
}

static UNUSED_OK int list_of(const sim *s, int head)
{
    if (s->n_lists == 1) return 0;
    return s->n_lists == s->shape->n_heads ? head : head / (s->shape->n_heads / s->shape->n_kv_heads);
}

static bool is_behind(const sim *s, int layer, int64_t p, int64_t j)
{
    int64_t window = s->shape->window[layer];
    return window > 0 && p - j >= window;
}

/* The query at p over all lists of a layer, p being in them; fills w_row. */
static UNUSED_OK void naive_attend(sim *s, int layer, int64_t p, head_rows out)
{
    int group = s->shape->n_heads / s->shape->n_kv_heads;
    for (int h = 0; h < s->shape->n_heads; h++) {
        const naive_list *l = &s->list[layer][list_of(s, h)];
        double sum = 0, acc[T_DIM] = {0};
        for (int64_t i = 0; i < l->n; i++) {
            int64_t j = l->pos[i];
            double x = 0, ranked[T_DIM];
            const double *key = turned.k[layer][j][h / group];
            if (s->by_rank) turn(ranked, w.k[layer][j][h / group], p - (l->n - 1) + i);
            if (s->by_rank) key = ranked;
            for (int c = 0; c < T_DIM; c++) x += turned.q[layer][p][h][c] * key[c];
            double e = is_behind(s, layer, p, j) ? 0 : exp(x * (double)s->shape->scale);
            s->w_row[h][i] = e;
            sum += e;
            for (int c = 0; c < T_DIM; c++) acc[c] += e * (double)w.v[layer][j][h / group][c];
        }
        for (int64_t i = 0; i < l->n; i++) s->w_row[h][i] /= sum;
        for (int c = 0; c < T_DIM; c++) out[h][c] = (float)(acc[c] / sum);
    }
}

/* Weights of the heads of list k for entry i, combined. */
static UNUSED_OK double combined(const sim *s, int k, int64_t i)
{
    double x = 0;
    int heads = s->shape->n_heads / s->n_lists;
    for (int h = k * heads; h < (k + 1) * heads; h++) {
        double y = s->w_row[h][i];
        x = s->how == MAX ? (y > x ? y : x) : x + y;
    }
    return s->how == MEAN ? x / heads : x;
}

static void naive_remove(naive_list *l, int64_t i)
{
    size_t left = (size_t)(l->n - i - 1);
    memmove(l->pos + i, l->pos + i + 1, left * sizeof *l->pos);
    memmove(l->score + i, l->score + i + 1, left * sizeof *l->score);
    l->n--;
}

static void drop_behind(sim *s, int layer, int64_t p)
{
    for (int k = 0; k < s->n_lists; k++)
        while (s->list[layer][k].n > 0 && is_behind(s, layer, p, s->list[layer][k].pos[0]))
            naive_remove(&s->list[layer][k], 0);
}

static void naive_prune(const sim *s, naive_list *l, int64_t p)
{
    while (l->n > s->budget) {
        int64_t victim = 0;
        double least = (double)INFINITY;
        for (int64_t i = 0; i < l->n - s->recent; i++) {
            double x = l->score[i] / (s->by_count ? (double)(p - l->pos[i] + 1) : 1);
            if (x > least) continue;
            least = x;
            victim = i;
        }
        naive_remove(l, victim);
    }
}

static void naive_append(sim *s, int layer, int64_t p)
{
    for (int k = 0; k < s->n_lists; k++) {
        naive_list *l = &s->list[layer][k];
        l->score[l->n] = 0;
        l->pos[l->n++] = p;
    }
}

static bool naive_dense(const sim *s, int layer)
{
    return s->shape->window[layer] > 0 && s->shape->window[layer] <= s->budget;
}

/* After the query at p: what is behind a window goes, then what the budget does not hold. */
static void naive_evict(sim *s, int layer, int64_t p, bool due, int64_t n_prompt)
{
    due &= s->listed || p + 1 > s->budget;
    if (naive_dense(s, layer)) return;
    if (s->listed || due) drop_behind(s, layer, p);
    if (!due) return;
    if (n_prompt && s->vote) s->vote(s, layer, n_prompt);
    for (int k = 0; k < s->n_lists; k++) naive_prune(s, &s->list[layer][k], p);
}

/* A prompt of n tokens; out [T_LAYERS][n]. */
static UNUSED_OK void sim_prompt(sim *s, int64_t n, head_rows *out)
{
    bool open = !s->once || s->each_turn || s->turns == 0;
    int64_t step = s->chunk && s->chunk < n ? s->chunk : n;
    memset(s->votes, 0, sizeof s->votes);
    for (int64_t from = 0; from < n; from += step) {
        int64_t to = from + step < n ? from + step : n, p = s->length + from;
        for (int l = 0; l < T_LAYERS; l++) {
            for (int64_t i = from; i < to; i++) {
                naive_append(s, l, s->length + i);
                naive_attend(s, l, s->length + i, out[l * n + i]);
                if (s->row) s->row(s, l, s->length + i, n - 1 - i);
            }
            naive_evict(s, l, s->length + to - 1, open && (s->chunk || to == n), n);
        }
        if (open && (s->chunk || to == n) && p + to - from > s->budget) s->listed = true;
    }
    s->length += n;
    s->turns++;
}

static UNUSED_OK void sim_decode(sim *s, head_rows *out)
{
    int64_t p = s->length++;
    if (!s->once && s->length > s->budget) s->listed = true;
    for (int l = 0; l < T_LAYERS; l++) {
        naive_append(s, l, p);
        naive_attend(s, l, p, out[l]);
        if (s->row) s->row(s, l, p, -1);
        naive_evict(s, l, p, !s->once, 0);
    }
}

static UNUSED_OK bool same_positions(const sim *s, const attn_seq *seq)
{
    int64_t pos[T_MAX];
    bool each = s->n_lists == s->shape->n_heads;
    for (int l = 0; l < T_LAYERS; l++)
        for (int h = 0; h < (each ? s->shape->n_heads : s->shape->n_kv_heads); h++) {
            const naive_list *k = &s->list[l][s->n_lists == 1 ? 0 : h];
            int64_t n = attn_seq_positions(seq, l, h, pos);
            if (n != k->n || memcmp(pos, k->pos, (size_t)n * sizeof *pos) != 0) {
                printf("# layer %d head %d: %d stored, %d expected\n", l, h, (int)n, (int)k->n);
                return false;
            }
        }
    return true;
}

static UNUSED_OK bool same_rows(const sim *s, const head_rows *a, const head_rows *b, int64_t n, double tolerance)
{
    for (int64_t i = 0; i < n; i++)
        for (int h = 0; h < s->shape->n_heads; h++)
            for (int c = 0; c < T_DIM; c++)
                if (!(fabs((double)a[i][h][c] - (double)b[i][h][c]) < tolerance)) return false;
    return true;
}

/* Prompts of the given lengths, `steps` decode steps after each: outputs, positions, counts. */
static UNUSED_OK void check_against(rig *r, sim *s, const char *text, const int64_t *prompts, int n_prompts, int steps,
                                    int64_t chunk)
{
    err e = {0};
    attn_seq *seq;
    turn_world();
    s->shape = &r->shape;
    if (!is_ok(rig_seq(r, &seq, text, DT_F32, T_MAX, &e), &e, "%s: created", text)) return;
    bool out = true, pos = true, bounded = true;
    for (int turn = 0; turn < n_prompts; turn++) {
        int64_t n = prompts[turn];
        if (n > 0) {
            rig_prompt(r, &seq, 1, n, chunk, got);
            sim_prompt(s, n, want);
            out &= same_rows(s, got, want, T_LAYERS * n, 1e-5);
            pos &= same_positions(s, seq);
        }
        for (int i = 0; i < steps; i++) {
            rig_decode(r, &seq, 1, got);
            sim_decode(s, want);
            out &= same_rows(s, got, want, T_LAYERS, 1e-5);
            pos &= pos && same_positions(s, seq);
            if (!s->once && s->listed)
                for (int l = 0; l < T_LAYERS; l++)
                    bounded &= naive_dense(s, l) || attn_seq_positions(seq, l, 0, NULL) <= s->budget;
        }
    }
    ok(out, "%s, %s, %d/%d heads, chunk %d, prompt %d: outputs", r->be->name, text, s->shape->n_heads,
       s->shape->n_kv_heads, (int)chunk, (int)prompts[0]);
    ok(pos, "%s, %s, chunk %d: positions stored after each step", r->be->name, text, (int)chunk);
    attn_stats st = attn_seq_stats(seq);
    double most = (double)st.steps * T_LAYERS * (double)(s->budget + 1);
    ok(bounded && (s->once || st.attended <= most), "%s: at most B stored, B + 1 attended (U7)", text);
    attn_seq_free(seq);
}

/* Bytes of rows, and of what goes with each entry (U6). */
static UNUSED_OK void check_held(rig *r, const sim *s, const attn_seq *seq, size_t entry)
{
    size_t kv = 0, index = 0;
    bool each = s->n_lists == s->shape->n_heads;
    for (int l = 0; l < T_LAYERS; l++) {
        if (naive_dense(s, l)) continue;
        for (int h = 0; h < (each ? s->shape->n_heads : s->shape->n_kv_heads); h++)
            kv += (size_t)attn_seq_positions(seq, l, h, NULL) * 2 * T_DIM * sizeof(float);
        for (int k = 0; k < s->n_lists; k++) index += (size_t)attn_seq_positions(seq, l, k, NULL) * entry;
    }
    attn_bytes held = attn_seq_held(seq), peak = attn_seq_peak(seq), plan;
    err e = {0};
    attn_limits lim = {.n_tokens = T_MAX, .chunk = (int64_t)r->rows};
    is_int((long long)held.kv, (long long)kv, "%s: K/V bytes held (U6)", attn_seq_spec(seq)->text);
    is_int((long long)held.index, (long long)index, "%s: bytes of lists and scores held", attn_seq_spec(seq)->text);
    is_ok(attn_plan(&plan, attn_seq_spec(seq), &r->shape, &lim, &e), &e, "planned");
    ok(peak.kv >= held.kv && plan.kv >= peak.kv && plan.index >= peak.index && plan.scratch == held.scratch,
       "%s: held %zu + %zu + %zu <= peak %zu + %zu <= planned %zu + %zu + %zu", attn_seq_spec(seq)->text, held.kv,
       held.index, held.scratch, peak.kv, peak.index, plan.kv, plan.index, plan.scratch);
}

/* Keys that are all the same and are not rotated, for planted cases; world_back ends it. */
static world flat;

static UNUSED_OK void world_flat(rig *r)
{
    flat = w;
    memset(flat.freq, 0, sizeof flat.freq);
    for (int l = 0; l < T_LAYERS; l++)
        for (int p = 0; p < T_MAX; p++)
            for (int h = 0; h < T_KV; h++)
                for (int c = 0; c < T_DIM; c++) flat.k[l][p][h][c] = 0.25f;
    r->w = &flat;
    r->be->ops->upload(r->be, r->freq, flat.freq, sizeof flat.freq);
}

/* All queries of the flat world look at one position. */
static UNUSED_OK void world_plant(int64_t at)
{
    for (int l = 0; l < T_LAYERS; l++)
        for (int p = 0; p < T_MAX; p++) {
            for (int h = 0; h < T_HEADS; h++) flat.q[l][p][h][0] = 2;
            for (int h = 0; h < T_KV; h++) flat.k[l][p][h][0] = p == at ? 8 : -1;
        }
}

static UNUSED_OK void world_back(rig *r)
{
    r->w = &w;
    r->be->ops->upload(r->be, r->freq, w.freq, sizeof w.freq);
}

static UNUSED_OK void check_refused(const char *text, const char *part)
{
    err e = {0};
    attn_spec spec;
    attn_options o = {.kv = kv_exact(DT_F32)};
    attn_shape shape = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 8};
    status st = attn_spec_parse(&spec, text, &o, &e);
    if (st == ST_OK) st = attn_spec_check(&spec, &shape, &e);
    is_err(st, &e, ST_USAGE, part, "refused: %s", text);
}

/* A store by position that never quantizes, and one that soon does. */
#define BY_POSITION ":kv=kivi4/g=4/r=160/rows=f32"
#define IN_CODES    ":kv=kivi2/g=4/r=8"

static struct {
    const backend_ops *real;
    backend_ops ops;
    long n;
} downloads;

static void count_download(backend *be, void *dst, buf src, size_t bytes)
{
    downloads.n++;
    downloads.real->download(be, dst, src, bytes);
}

/* One decode step of a sequence; how often the host waited for bytes. */
static UNUSED_OK long decode_downloads(rig *r, attn_seq **seq, head_rows *out)
{
    downloads.real = r->be->ops;
    downloads.ops = *r->be->ops;
    downloads.ops.download = count_download;
    downloads.n = 0;
    r->be->ops = &downloads.ops;
    rig_decode(r, seq, 1, out);
    r->be->ops = downloads.real;
    return downloads.n;
}

/* Over codes: bounded, and the bytes of the rows that are left are those of their groups. */
static UNUSED_OK void check_coded(rig *r, const char *text, int64_t budget)
{
    err e = {0};
    attn_seq *seq, *all;
    bool bounded = true, peaks = true;
    long waits = 0;
    if (!is_ok(rig_seq(r, &seq, text, DT_F32, T_MAX, &e), &e, "%s: created", text)) return;
    rig_seq(r, &all, "full" IN_CODES, DT_F32, T_MAX, &e);
    rig_prompt(r, &all, 1, 50, 16, NULL);
    rig_prompt(r, &seq, 1, 50, 16, NULL);
    for (int i = 0; i < 20; i++) {
        long least = decode_downloads(r, &all, want), n = decode_downloads(r, &seq, got);
        waits += n - least;
        for (int h = 0; h < r->shape.n_kv_heads; h++) bounded &= attn_seq_positions(seq, 1, h, NULL) <= budget;
        peaks &= attn_seq_peak(seq).kv >= attn_seq_held(seq).kv;
    }
    is_int(waits, 0, "%s: decode steps download nothing to count bytes", text);
    size_t held = attn_seq_held(seq).kv, most = attn_seq_held(all).kv;
    if (strstr(text, "per_q")) most *= (size_t)(r->shape.n_heads / r->shape.n_kv_heads);
    ok(bounded && held < most && peaks, "%s: %zu bytes held, %zu without eviction", text, held, most);
    rig_prompt(r, &seq, 1, 30, 7, got);
    bool finite = true;
    for (int i = 0; i < 30; i++)
        for (int c = 0; c < T_DIM; c++) finite &= isfinite(got[i][0][c]);
    ok(finite, "%s: a later prompt", text);
    attn_seq_free(seq);
    attn_seq_free(all);
}

static UNUSED_OK void check_rewind(rig *r, const char *text, bool before)
{
    err e = {0};
    attn_seq *s;
    memset(got, 0, sizeof got); /* what lies behind the model's heads */
    memset(want, 0, sizeof want);
    rig_seq(r, &s, text, DT_F16, 90, &e);
    rig_prompt(r, &s, 1, 10, 16, NULL);
    rig_decode(r, &s, 1, want);
    if (before) {
        is_ok(attn_seq_rewind(s, 10, &e), &e, "%s: rewind while nothing was evicted", text);
        rig_decode(r, &s, 1, got);
        ok(memcmp(got, want, T_LAYERS * sizeof *got) == 0, "%s: the same bits after rewind", text);
    }
    rig_prompt(r, &s, 1, 60, 16, NULL);
    is_err(attn_seq_rewind(s, 20, &e), &e, ST_UNSUPPORTED, "evicted", "%s: no rewind after an eviction", text);
    err none = {0};
    is_ok(attn_seq_rewind(s, 0, &none), &none, "%s: rewind to nothing", text);
    rig_prompt(r, &s, 1, 10, 16, NULL);
    rig_decode(r, &s, 1, got);
    ok(memcmp(got, want, T_LAYERS * sizeof *got) == 0, "%s: the same bits from there", text);
    attn_seq_free(s);
}

#endif
