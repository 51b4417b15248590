/* SPDX-License-Identifier: MIT */
/* ActQKV against a naive run of methods.md 9 and 12.1 in double, and the invariants U1-U9. */
/* Builds: race */
#include "config.h"

#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"
#include "tests/unit/ops_util.h"

typedef float head_rows[T_HEADS][T_DIM];

enum { ROW = T_HEADS * T_DIM, CAT = T_HEADS * T_DIM, ROWS = 64 };

static world w;
static head_rows got[T_LAYERS * T_MAX], want[T_LAYERS * T_MAX];

/* ---- the naive memory ---- */

typedef struct {
    int64_t sink, local, window, block, reps, budget;
    bool plain, by_head, pool, pool_prefill, extra;
} rules;

typedef struct {
    bool in_stat[T_MAX];
    double mass[T_HEADS][T_MAX];
    double rep[T_MAX][T_HEADS][T_DIM];
    int64_t sinks, n_rep;
    double theta_sum;
    int64_t theta_n;
} naive_layer;

typedef struct {
    rules r;
    int window[T_LAYERS]; /* sliding windows */
    naive_layer l[T_LAYERS];
    int64_t n;               /* tokens so far */
    int64_t taken[T_LAYERS]; /* tokens that the last query attended */
} naive;

/* The query at the fixed distance, all heads in a row. */
static void far_query(const naive *x, int layer, int64_t p, double out[CAT])
{
    for (int h = 0; h < T_HEADS; h++)
        for (int c = 0; c < T_DIM / 2; c++) {
            double a = (double)(x->r.local - 1) * (double)w.freq[c];
            double u = (double)w.q[layer][p][h][c], v = (double)w.q[layer][p][h][c + T_DIM / 2];
            out[h * T_DIM + c] = u * cos(a) - v * sin(a);
            out[h * T_DIM + c + T_DIM / 2] = v * cos(a) + u * sin(a);
        }
}

/* Eqs. 6-9 over all prompt queries so far; the window is [first, end). */
static void naive_probe(const naive *x, int layer, int64_t first, int64_t end, double probe[CAT])
{
    const naive_layer *y = &x->l[layer];
    double mean[CAT] = {0}, var[CAT] = {0}, q[CAT], floor = 0, phi[T_MAX], total = 0, n = 0;
    for (int64_t p = 0; p < end; p++) {
        far_query(x, layer, p, q);
        n += y->in_stat[p];
        for (int c = 0; c < CAT && y->in_stat[p]; c++) mean[c] += q[c];
    }
    for (int c = 0; c < CAT; c++) mean[c] /= n;
    for (int64_t p = 0; p < end; p++) {
        far_query(x, layer, p, q);
        for (int c = 0; c < CAT && y->in_stat[p]; c++) var[c] += pow(q[c] - mean[c], 2) / (n - 1);
    }
    for (int c = 0; c < CAT; c++) floor += var[c] / CAT / 100;
    for (int64_t p = first; p < end; p++) {
        far_query(x, layer, p, q);
        phi[p] = 0;
        for (int c = 0; c < CAT; c++) phi[p] += pow(q[c] - mean[c], 2) / (var[c] + floor);
        total += phi[p];
    }
    memset(probe, 0, CAT * sizeof *probe);
    for (int64_t p = first; p < end; p++) {
        far_query(x, layer, p, q);
        double share = x->r.plain ? 1 / (double)(end - first) : phi[p] / total;
        for (int c = 0; c < CAT; c++) probe[c] += share * q[c];
    }
}

static double cosine(const double *a, const double *b, int n)
{
    double ab = 0, aa = 0, bb = 0;
    for (int c = 0; c < n; c++) {
        ab += a[c] * b[c];
        aa += a[c] * a[c];
        bb += b[c] * b[c];
    }
    return ab / sqrt(aa * bb);
}

static double naive_score(const naive *x, const double *probe, const double *rep)
{
    double sum = 0;
    if (!x->r.by_head) return cosine(probe, rep, CAT);
    for (int h = 0; h < T_HEADS; h++) sum += cosine(probe + h * T_DIM, rep + h * T_DIM, T_DIM) / T_HEADS;
    return sum;
}

static double entropy_of(const double *score, int64_t lo, int64_t hi)
{
    double z = 0, sum = 0;
    for (int64_t b = lo; b < hi; b++) z += exp(score[b]);
    for (int64_t b = lo; b < hi; b++) sum -= exp(score[b]) / z * log(exp(score[b]) / z);
    return sum;
}

static bool takes_part(const naive *x, int layer)
{
    return x->window[layer] == 0 || x->window[layer] > x->r.local;
}

static int64_t nominal_of(const rules *r)
{
    return (r->budget - (r->extra ? 0 : r->sink + r->local)) / r->block;
}

/* Eqs. 11-12 with the integer rules. */
static int64_t naive_budget(const naive *x, int layer, double theta, int64_t *pool, int64_t exist)
{
    double later = 0, share;
    int64_t left = 1, lo = nominal_of(&x->r) * 7 / 10, hi = 2 * nominal_of(&x->r);
    for (int j = layer + 1; j < T_LAYERS; j++) {
        if (!takes_part(x, j)) continue;
        left++;
        if (x->l[j].theta_n) later += x->l[j].theta_sum / (double)x->l[j].theta_n;
    }
    share = x->l[layer].theta_n && theta + later > 0 ? theta / (theta + later) : 1 / (double)left;
    int64_t b = (int64_t)floor(share * (double)*pool + 0.5);
    b = b < lo ? lo : b > hi ? hi : b;
    if (b > *pool - lo * (left - 1)) b = *pool - lo * (left - 1);
    if (b > exist) b = exist;
    *pool -= b;
    return b;
}

/* Marks the tokens of the k best blocks among [lo, n_rep). */
static void choose_blocks(const naive *x, int layer, const double *score, int64_t lo, int64_t k, bool far[T_MAX])
{
    const naive_layer *y = &x->l[layer];
    bool taken[T_MAX] = {false};
    for (; k > 0; k--) {
        int64_t best = -1;
        for (int64_t b = lo; b < y->n_rep; b++)
            if (!taken[b] && (best < 0 || score[b] > score[best])) best = b;
        if (best < 0) return;
        taken[best] = true;
        for (int64_t i = 0; i < x->r.block; i++) far[y->sinks + best * x->r.block + i] = true;
    }
}

/* Joint attention of position p over its band and the far tokens marked; masses of the band grow. */
static void naive_attend(naive *x, int layer, int64_t p, const bool far[T_MAX], float out[T_HEADS][T_DIM])
{
    naive_layer *y = &x->l[layer];
    int64_t seen = 0, width = x->window[layer];
    for (int h = 0; h < T_HEADS; h++) {
        double e[T_MAX] = {0}, sum = 0, acc[T_DIM] = {0};
        int kv = h / (T_HEADS / T_KV);
        seen = 0;
        for (int64_t j = 0; j <= p; j++) {
            bool band = p - j < x->r.local;
            if ((!band && !far[j]) || (width > 0 && p - j >= width)) continue;
            seen++;
            double s = rotated_dot(&w, w.q[layer][p][h], band ? p : x->r.local - 1, w.k[layer][j][kv], band ? j : 0);
            sum += e[j] = exp(s / sqrt((double)T_DIM));
        }
        for (int64_t j = 0; j <= p; j++) {
            for (int c = 0; c < T_DIM; c++) acc[c] += e[j] * (double)w.v[layer][j][kv][c];
            if (p - j < x->r.local) y->mass[h][j] += e[j] / sum;
        }
        for (int c = 0; c < T_DIM; c++) out[h][c] = (float)(acc[c] / sum);
    }
    x->taken[layer] = seen;
}

/* After position n - 1: sinks are filled, then blocks formed while the rest beyond the band holds one. */
static void naive_form(naive *x, int layer, int64_t n)
{
    naive_layer *y = &x->l[layer];
    const rules *r = &x->r;
    while (y->sinks < r->sink && y->sinks < n - r->local) y->sinks++;
    for (int64_t from; from = y->sinks + y->n_rep * r->block, n - r->local - from >= r->block && y->sinks == r->sink;
         y->n_rep++)
        for (int h = 0; h < T_HEADS; h++) {
            bool used[T_MAX] = {false};
            memset(y->rep[y->n_rep][h], 0, sizeof y->rep[0][0]);
            for (int64_t k = 0; k < r->reps; k++) {
                int64_t best = -1;
                for (int64_t j = from; j < from + r->block; j++)
                    if (!used[j] && (best < 0 || y->mass[h][j] > y->mass[h][best])) best = j;
                used[best] = true;
                for (int c = 0; c < T_DIM; c++)
                    y->rep[y->n_rep][h][c] += (double)w.k[layer][best][h / (T_HEADS / T_KV)][c] / (double)r->reps;
            }
        }
}

/* Window [first, end) of a layer, out [end - first]; pool NULL: the nominal number. Returns the entropy of its scores,
 * -1 without blocks. */
static double naive_window(naive *x, int layer, int64_t first, int64_t end, bool prompt, int64_t *pool, head_rows *out)
{
    naive_layer *y = &x->l[layer];
    double probe[CAT], score[T_MAX], theta = -1;
    int64_t width = x->window[layer], lo = 0;
    bool far[T_MAX] = {false};
    for (int64_t p = first; p < end && prompt; p++) y->in_stat[p] = true;
    if (prompt) naive_probe(x, layer, first, end, probe);
    else far_query(x, layer, first, probe);
    for (int64_t b = 0; b < y->n_rep; b++) score[b] = naive_score(x, probe, &y->rep[b][0][0]);
    while (width > 0 && lo < y->n_rep && y->sinks + (lo + 1) * x->r.block - 1 <= first - width) lo++;
    if (y->n_rep > 0) {
        theta = entropy_of(score, lo, y->n_rep);
        int64_t k = pool ? naive_budget(x, layer, theta, pool, y->n_rep - lo) : nominal_of(&x->r);
        choose_blocks(x, layer, score, lo, k, far);
    }
    for (int64_t j = 0; j < y->sinks; j++) far[j] = true;
    for (int64_t j = y->sinks + y->n_rep * x->r.block; j < end; j++) far[j] = true; /* pending, once beyond the band */
    for (int64_t p = first; p < end; p++) naive_attend(x, layer, p, far, out[p - first]);
    naive_form(x, layer, end);
    return theta;
}

/* A layer that sees no further than its band. */
static void naive_dense(naive *x, int layer, int64_t p, float out[T_HEADS][T_DIM])
{
    int64_t pos[T_MAX], n = 0;
    for (int64_t j = 0; j <= p; j++)
        if (p - j < x->window[layer]) pos[n++] = j;
    oracle_attend(&w, layer, p, p, pos, pos, n, out);
    x->taken[layer] = n;
}

/* A forward of n tokens; out [T_LAYERS][stride], from column `col` on. */
static void naive_forward(naive *x, int64_t n, bool prompt, head_rows *out, int64_t stride, int64_t col)
{
    int64_t windows = (n + x->r.window - 1) / x->r.window, pool[T_MAX], parts = 0;
    double theta[T_MAX];
    for (int l = 0; l < T_LAYERS; l++) parts += takes_part(x, l);
    for (int64_t i = 0; i < windows; i++) pool[i] = parts * nominal_of(&x->r);
    bool shared = x->r.pool && (!prompt || x->r.pool_prefill);
    double sum[T_LAYERS] = {0};
    int64_t count[T_LAYERS] = {0};
    for (int l = 0; l < T_LAYERS; l++) {
        head_rows *o = out + l * stride + col;
        for (int64_t p = x->n; p < x->n + n && !takes_part(x, l); p++) naive_dense(x, l, p, o[p - x->n]);
        for (int64_t i = 0; i < windows && takes_part(x, l); i++) {
            int64_t first = x->n + i * x->r.window, end = first + x->r.window;
            if (end > x->n + n) end = x->n + n;
            theta[i] = naive_window(x, l, first, end, prompt, shared ? &pool[i] : NULL, o + i * x->r.window);
            if (theta[i] < 0 || !shared) continue;
            sum[l] += theta[i];
            count[l]++;
        }
    }
    for (int l = 0; l < T_LAYERS; l++) {
        x->l[l].theta_sum += sum[l];
        x->l[l].theta_n += count[l];
    }
    x->n += n;
}

static void naive_prompt(naive *x, int64_t n, int64_t chunk, head_rows *out)
{
    for (int64_t done = 0; done < n; done += chunk)
        naive_forward(x, n - done < chunk ? n - done : chunk, true, out, n, done);
}

/* ---- against the naive run ---- */

static void spec_of(const rules *r, const char *more, char out[160])
{
    snprintf(out, 160, "actqkv:sink=%d:local=%d:window=%d:block=%d:reps=%d:budget=%d%s%s%s%s%s%s", (int)r->sink,
             (int)r->local, (int)r->window, (int)r->block, (int)r->reps, (int)r->budget, r->plain ? ":probe=mean" : "",
             r->by_head ? ":gqa=layer_mean" : "", r->pool ? "" : ":pool=fixed",
             r->pool_prefill ? ":pool_prefill=1" : "", r->extra ? ":budget_mode=extra" : "", more);
}

static bool close_rows(const head_rows *a, const head_rows *b, int64_t n)
{
    double num = 0, den = 0;
    for (int64_t i = 0; i < n * ROW; i++) {
        double x = (double)(&a[0][0][0])[i], y = (double)(&b[0][0][0])[i];
        num += (x - y) * (x - y);
        den += y * y;
    }
    return num <= 1e-10 * den;
}

/* Two prompts with decode steps behind each. */
static void check_naive(rig *g, const char *device, rules r, int64_t chunk, int64_t n1, int64_t n2)
{
    static naive x;
    char text[160];
    err e = {0};
    attn_seq *s;
    int64_t prompts[2] = {n1, n2};
    memset(&x, 0, sizeof x);
    x.r = r;
    memcpy(x.window, g->window, sizeof x.window);
    spec_of(&r, "", text);
    if (!is_ok(rig_seq(g, &s, text, DT_F32, T_MAX, &e), &e, "%s", text)) return;
    for (int turn = 0; turn < 2; turn++) {
        int64_t n = prompts[turn];
        rig_prompt(g, &s, 1, n, chunk, got);
        naive_prompt(&x, n, chunk, want);
        is_near(&got[0][0][0], &want[0][0][0], (size_t)(T_LAYERS * n) * ROW, 1e-10, "%s, chunk %d, prompt %d of %d",
                device, (int)chunk, turn + 1, (int)n);
        bool good = true, counted = true;
        for (int i = 0; i < 14; i++) {
            attn_stats before = attn_seq_stats(s);
            rig_decode(g, &s, 1, got);
            naive_forward(&x, 1, false, want, 1, 0);
            good &= close_rows(got, want, T_LAYERS);
            attn_stats after = attn_seq_stats(s);
            int64_t taken = 0;
            for (int l = 0; l < T_LAYERS; l++) taken += x.taken[l];
            counted &= after.attended - before.attended == (double)taken;
        }
        ok(good, "%s: decode steps", text);
        ok(counted, "%s: tokens attended (U7)", text);
    }
    attn_seq_free(s);
}

/* ---- invariants ---- */

static const rules BASE = {
    .sink = 3, .local = 16, .window = 8, .block = 4, .reps = 2, .budget = 3 + 16 + 3 * 4, .pool = true};

/* U1, bits: while all fits into the band it is full attention. */
static void check_exact(rig *g)
{
    static head_rows out[2][T_LAYERS * 48];
    err e = {0};
    attn_seq *a, *b;
    if (rig_seq(g, &a, "full", DT_F32, 64, &e) ||
        rig_seq(g, &b, "actqkv:sink=4:local=60:window=16:block=8:budget=90", DT_F32, 64, &e)) {
        ok(false, "U1: %s", e.msg);
        return;
    }
    rig_prompt(g, &a, 1, 48, 48, out[0]);
    rig_prompt(g, &b, 1, 48, 32, out[1]);
    bool same = rows_agree(&out[1][0][0][0], &out[0][0][0][0], sizeof out[0] / sizeof(float));
    for (int i = 0; i < 12; i++) {
        rig_decode(g, &a, 1, got);
        rig_decode(g, &b, 1, want);
        same &= rows_agree(&got[0][0][0], &want[0][0][0], T_LAYERS * sizeof *got / sizeof(float));
    }
    ok(same, "U1: n <= local has the bits of full attention");
    rig_decode(g, &a, 1, got);
    rig_decode(g, &b, 1, want);
    ok(memcmp(got, want, T_LAYERS * sizeof *got) != 0, "one token more has not");
    attn_seq_free(a);
    attn_seq_free(b);
}

static void check_no_way_back(rig *g)
{
    char text[160];
    err e = {0};
    attn_seq *s;
    spec_of(&BASE, "", text);
    if (!is_ok(rig_seq(g, &s, text, DT_BF16, 120, &e), &e, "%s", text)) return;
    ok(!attn_can_share(s, s, 1), "prompts are not shared");
    rig_prompt(g, &s, 1, 50, 64, NULL);
    is_err(attn_seq_rewind(s, 40, &e), &e, ST_UNSUPPORTED, "cannot go back", "no way back");
    err none = {0};
    is_ok(attn_seq_rewind(s, attn_seq_length(s), &none), &none, "but to where it is");
    attn_seq_free(s);
}

/* U6: bytes follow the formula, and the plan is what is held in the end. */
static void check_bytes(rig *g, dtype type)
{
    char text[160];
    err e = {0};
    attn_seq *s;
    attn_spec spec;
    attn_bytes plan, held = {0};
    attn_options o = {.kv = kv_exact(type)};
    attn_limits lim = {.n_tokens = 100, .chunk = ROWS};
    spec_of(&BASE, "", text);
    if (rig_seq(g, &s, text, type, lim.n_tokens, &e) || attn_spec_parse(&spec, text, &o, &e) ||
        attn_plan(&plan, &spec, &g->shape, &lim, &e)) {
        ok(false, "U6: %s", e.msg);
        return;
    }
    long long rep = CAT * (long long)dtype_size(type), fixed = 0;
    bool good = true;
    for (int64_t n = 0; n <= lim.n_tokens; n++) {
        long long left = n - BASE.local - BASE.sink, blocks = left > 0 ? left / BASE.block : 0;
        held = attn_seq_held(s);
        if (n == 0) fixed = (long long)held.index;
        good &= (long long)held.kv == n * T_LAYERS * 2 * T_KV * T_DIM * (long long)dtype_size(type);
        good &= (long long)held.index == fixed + T_LAYERS * blocks * rep;
        if (n == 0) n = 63, rig_prompt(g, &s, 1, 64, 64, NULL);
        else if (n < lim.n_tokens) rig_decode(g, &s, 1, NULL);
    }
    ok(good, "U6: %s, bytes of rows and representatives", dtype_name(type));
    long long masses = T_HEADS * (long long)(BASE.local + BASE.block + BASE.window) * 4, stats = 2 * CAT * 4;
    ok(fixed >= T_LAYERS * (masses + stats) && fixed < T_LAYERS * (masses + stats) + 600, "U6: masses and statistics");
    ok(plan.kv == held.kv && plan.index == held.index && plan.scratch == held.scratch, "U6: the plan is what is held");
    attn_seq_free(s);
}

static void check_steps(rig *g, bool extra)
{
    char text[160];
    err e = {0};
    attn_seq *s;
    bool bounded = true;
    rules r = BASE;
    double forced = (double)(r.sink + r.local), block = (double)r.block;
    r.extra = extra;
    if (extra) r.budget -= r.sink + r.local;
    spec_of(&r, "", text);
    if (!is_ok(rig_seq(g, &s, text, DT_F16, 150, &e), &e, "%s", text)) return;
    rig_prompt(g, &s, 1, 100, 64, NULL);
    rig_decode(g, &s, 1, NULL);
    long before = mem_test_count();
    for (int i = 0; i < 30; i++) {
        attn_stats a = attn_seq_stats(s);
        rig_decode(g, &s, 1, NULL);
        attn_stats b = attn_seq_stats(s);
        bounded &= b.attended - a.attended <= T_LAYERS * ((double)r.budget + (extra ? forced : 0) + block);
        bounded &= b.attended - a.attended > T_LAYERS * (forced + 2 * block);
        bounded &= b.index_read > a.index_read && b.kv_read > a.kv_read;
    }
    is_int(mem_test_count(), before, "decode steps allocate nothing");
    ok(bounded, "U7: %s: on average a layer attends the budget and at most a block more", text);
    attn_seq_free(s);
}

/* Rows that all stores hold exactly: with every block chosen only the rounding of representatives differs,
 * which decides nothing. */
static void check_stores(rig *g)
{
    static world keep;
    static head_rows out[2][T_LAYERS * 60];
    static const char *const stores[] = {"f16", "bf16", "kivi2/r=64/g=8", "logquant/r=96/g=8"};
    err e = {0};
    attn_seq *s;
    bool same = true;
    rules r = BASE;
    r.budget = 3 + 16 + 40 * 4;
    keep = w;
    for (size_t i = 0; i < sizeof w.k / sizeof(float); i++) {
        float *k = &w.k[0][0][0][0] + i, *v = &w.v[0][0][0][0] + i;
        *k = roundf(*k * 64) / 64;
        *v = roundf(*v * 64) / 64;
    }
    for (int i = -1; i < 4; i++) {
        char text[160], more[40] = "";
        if (i >= 0) snprintf(more, sizeof more, ":kv=%s", stores[i]);
        spec_of(&r, more, text);
        if (!is_ok(rig_seq(g, &s, text, DT_F32, 120, &e), &e, "%s", text)) continue;
        rig_prompt(g, &s, 1, 60, 64, out[i >= 0]);
        same &= i < 0 || rows_agree(&out[1][0][0][0], &out[0][0][0][0], sizeof out[0] / sizeof(float));
        rig_decode(g, &s, 1, i < 0 ? want : got);
        same &= i < 0 || rows_agree(&got[0][0][0], &want[0][0][0], T_LAYERS * sizeof *got / sizeof(float));
        attn_seq_free(s);
    }
    ok(same, "every store gives the bits of f32 where it holds the rows exactly");
    is_ok(
        rig_seq(g, &s, "actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=179:kv=kivi4/r=16/g=8", DT_F32, 120, &e),
        &e, "over kivi");
    attn_seq *f;
    rig_seq(g, &f, "actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=179", DT_F32, 120, &e);
    double num = 0, den = 0;
    rig_prompt(g, &s, 1, 60, 64, NULL);
    rig_prompt(g, &f, 1, 60, 64, NULL);
    for (int t = 0; t < 30; t++) {
        rig_decode(g, &s, 1, got);
        rig_decode(g, &f, 1, want);
        for (int i = 0; i < T_LAYERS * ROW; i++) {
            num += pow((double)(&got[0][0][0])[i] - (double)(&want[0][0][0])[i], 2);
            den += pow((double)(&want[0][0][0])[i], 2);
        }
    }
    ok(num > 0 && num < 0.02 * den, "over quantized rows: near, not equal (%.2g)", num / den);
    attn_seq_free(s);
    attn_seq_free(f);
    w = keep;
}

/* A forward of n tokens of one sequence whose rotations carry the factor mscale; out [T_LAYERS][n], NULL: rows are
 * stored and nothing is attended. */
static void feed(rig *g, attn_work *work, attn_seq *s, attn_step step, float mscale, head_rows *out)
{
    const backend_ops *o = g->be->ops;
    int64_t first = attn_seq_length(s), pos[ROWS];
    size_t n = step.n_tok;
    for (size_t i = 0; i < n; i++) pos[i] = first + (int64_t)i;
    o->upload(g->be, g->pos, pos, n * sizeof *pos);
    o->rope_table(g->be, g->table, g->pos, n, g->freq, T_DIM / 2, mscale);
    step.seq = &s, step.n_seq = 1;
    step.pos = g->pos, step.table = g->table, step.freq = g->freq, step.mscale = mscale;
    attn_begin(work, &step);
    for (int l = 0; l < T_LAYERS; l++) {
        o->upload(g->be, g->q, w.q[l][first], n * sizeof w.q[0][0]);
        o->upload(g->be, g->k, w.k[l][first], n * sizeof w.k[0][0]);
        o->upload(g->be, g->v, w.v[l][first], n * sizeof w.v[0][0]);
        if (!out) {
            attn_store(work, &step, l, g->k, g->v);
            continue;
        }
        attn_layer(work, &step, l, g->q, g->k, g->v, g->out);
        o->download(g->be, out + (size_t)l * n, g->out, n * sizeof(head_rows));
    }
    attn_end(work, &step);
}

/* Rows stored without attention: their blocks stand for their first tokens. */
static void check_fill(rig *g)
{
    static naive x;
    char text[160];
    err e = {0};
    attn_seq *s;
    spec_of(&BASE, "", text);
    if (!is_ok(rig_seq(g, &s, text, DT_F32, 150, &e), &e, "%s", text)) return;
    memset(&x, 0, sizeof x);
    x.r = BASE;
    for (int64_t done = 0; done < 90; done += 45) {
        attn_step step = {
            .n_tok = 45, .n_prompt = 90, .prompt_done = done, .flags = ATTN_PROMPT | (done ? ATTN_PROMPT_END : 0)};
        feed(g, g->work, s, step, 1, NULL);
        for (int l = 0; l < T_LAYERS; l++) naive_form(&x, l, done + 45);
    }
    x.n = 90;
    bool good = true;
    for (int i = 0; i < 20; i++) {
        rig_decode(g, &s, 1, got);
        naive_forward(&x, 1, false, want, 1, 0);
        good &= close_rows(got, want, T_LAYERS);
    }
    ok(good, "a context stored without attention, then decode steps");
    attn_seq_free(s);
}

/* Rotations with a factor scale every product by its square, those with raw keys too. */
static void check_mscale(rig *g)
{
    static head_rows out[2][T_LAYERS * ROWS];
    char text[160];
    err e = {0};
    bool good = true;
    const float scale = g->shape.scale;
    spec_of(&BASE, "", text);
    for (int i = 0; i < 2; i++) {
        attn_seq *s;
        attn_work *work;
        g->shape.scale = scale * (i ? 1 : 1.5625f);
        if (!is_ok(attn_work_create(&work, &g->shape, ROWS, g->be, &e), &e, "scale %g", (double)g->shape.scale)) return;
        is_ok(rig_seq(g, &s, text, DT_F32, 150, &e), &e, "%s", text);
        attn_step step = {.n_tok = ROWS, .n_prompt = ROWS, .flags = ATTN_PROMPT | ATTN_PROMPT_END};
        feed(g, work, s, step, i ? 1.25f : 1, out[i]);
        for (int t = 0; t < 5; t++) feed(g, work, s, (attn_step){.n_tok = 1}, i ? 1.25f : 1, i ? got : want);
        attn_seq_free(s);
        attn_work_free(work);
    }
    g->shape.scale = scale;
    good = close_rows(out[1], out[0], T_LAYERS * ROWS) && close_rows(got, want, T_LAYERS);
    ok(good, "a factor of the rotations counts in all segments");
}

static void check_bad(rig *g)
{
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"actqkv:budget=607", "at least sink + local + block = 608"},
        {"actqkv:budget=31:budget_mode=extra", "budget 31 is too small, at least block = 32"},
        {"actqkv:pool=fixed:pool_prefill=1", "pool_prefill=1 with pool=fixed, expected pool=entropy"},
        {"actqkv:gqa=vote", "one of: layer_concat layer_mean"},
        {"actqkv:block=8:reps=9", "at most block = 8"},
        {"actqkv:window=0", "window='0'"},
        {"actqkv:probe=max", "one of: act mean"},
        {"actqkv:window=48:sink=0:local=8:block=8:budget=64", "--chunk 64, expected a multiple of window = 48"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        attn_seq *s = NULL;
        status st = rig_seq(g, &s, bad[i].text, DT_F16, 150, &e);
        is_err(st, &e, ST_USAGE, bad[i].part, "%s", bad[i].text);
        attn_seq_free(s);
    }
    err e = {0};
    attn_seq *s = NULL;
    is_ok(rig_seq(g, &s, "actqkv:window=48:sink=0:local=8:block=8:budget=64", DT_F16, 64, &e), &e,
          "any chunk that holds every prompt will do");
    attn_seq_free(s);
}

static void check_all_naive(rig *g, const char *device)
{
    rules r = BASE;
    check_naive(g, device, r, 64, 70, 30);
    check_naive(g, device, r, 8, 41, 33);
    check_naive(g, device, r, 24, 10, 90);
    r.by_head = true;
    check_naive(g, device, r, 64, 70, 9);
    r.plain = true, r.pool = false;
    check_naive(g, device, r, 64, 70, 9);
    r = BASE;
    r.pool_prefill = true;
    check_naive(g, device, r, 16, 70, 40);
    r = BASE;
    r.extra = true, r.budget = 3 * 4;
    check_naive(g, device, r, 64, 70, 30);
    r = (rules){.sink = 0, .local = 1, .window = 1, .block = 1, .reps = 1, .budget = 5, .pool = true};
    check_naive(g, device, r, 5, 20, 7);
    r = (rules){.sink = 5, .local = 9, .window = 4, .block = 7, .reps = 7, .budget = 60, .pool = true};
    check_naive(g, device, r, 64, 75, 40);
    r = (rules){.sink = 2, .local = 12, .window = 32, .block = 3, .reps = 1, .budget = 20};
    check_naive(g, device, r, 64, 75, 40);
    g->window[0] = 30, g->window[2] = 11;
    check_naive(g, device, BASE, 16, 70, 30);
    g->window[0] = 17, g->window[1] = 61, g->window[2] = 0;
    check_naive(g, device, BASE, 64, 70, 30);
    g->window[0] = g->window[1] = 0;
}

int main(void)
{
    err e = {0};
    world_fill(&w, 11);
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig g;
        const char *device = METHOD_DEVICES[d];
        if (!is_ok(rig_open(&g, device, &w, ROWS, &e), &e, "%s backend", device)) return tap_done();
        if (!g.be->ops->codes || !g.be->ops->evict) {
            tap_skip("no codes or sums of attention on %s", device);
            rig_close(&g);
            continue;
        }
        check_all_naive(&g, device);
        check_exact(&g);
        check_no_way_back(&g);
        check_bytes(&g, DT_F32);
        check_bytes(&g, DT_F16);
        check_steps(&g, false);
        check_steps(&g, true);
        check_stores(&g);
        check_fill(&g);
        check_mscale(&g);
        check_bad(&g);
        char text[160];
        spec_of(&BASE, ":skip=1", text);
        rig_check_oom(&g, text, strcmp(device, "cuda") == 0 ? 12 : 30); /* of the host */
        is_ok(backend_fault(g.be, &e), &e, "%s, no fault", device);
        rig_close(&g);
    }
    check_races();
    return tap_done();
}
