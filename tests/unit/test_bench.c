/* SPDX-License-Identifier: MIT */
/* Basics of `bench`: valid samples, contexts of random rows, prompts in parts. No test depends on time. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/bench/bench_fill.h"
#include "eval/bench/bench_sample.h"
#include "kernels/cpu/limits.h"
#include "model/block.h"
#include "model/decoder.h"
#include "tests/unit/session_util.h"

/* ---- samples ---- */

static void test_judge(void)
{
    enum { MS = 1000000 };
    static const struct {
        meter_usage spent;
        int threads;
        double limit[2];
        sample_verdict want;
        const char *what;
    } cases[] = {
        {{4 * MS, 8 * MS, 0}, 2, {45, 46}, SAMPLE_COUNTS, "both cores all the time"},
        {{4 * MS, 8 * MS, 1}, 2, {45, 46}, SAMPLE_PREEMPTED, "one switch in a short sample"},
        {{60 * MS, 120 * MS, 2}, 2, {45, 46}, SAMPLE_COUNTS, "two in 60 ms: the kernel's own work"},
        {{60 * MS, 120 * MS, 3}, 2, {45, 46}, SAMPLE_PREEMPTED, "three in 60 ms"},
        {{100 * MS, 197 * MS, 0}, 2, {45, 46}, SAMPLE_COUNTS, "98.5 % of the threads' time"},
        {{100 * MS, 195 * MS, 0}, 2, {45, 46}, SAMPLE_WAITED, "97.5 %"},
        {{100 * MS, 100 * MS, 0}, 2, {45, 46}, SAMPLE_WAITED, "one core of two"},
        {{100 * MS, 100 * MS, 0}, 1, {45, 46}, SAMPLE_COUNTS, "one core of one"},
        {{4 * MS, 8 * MS, 0}, 2, {100, 111.9}, SAMPLE_COUNTS, "readings 11.9 % apart"},
        {{4 * MS, 8 * MS, 0}, 2, {112.1, 100}, SAMPLE_UNSTEADY, "12.1 %, falling"},
        {{4 * MS, 8 * MS, 0}, 2, {45, 80}, SAMPLE_UNSTEADY, "another state of the memory"},
        {{4 * MS, 8 * MS, 0}, 2, {0, 0}, SAMPLE_COUNTS, "no readings"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        is_int(sample_judge(&cases[i].spent, cases[i].threads, cases[i].limit), cases[i].want, "%s", cases[i].what);
}

/* verdict: C counts, P preempted, W waited, U unsteady; sample i takes i + 1 ns. */
static bench_samples settled(const char *text)
{
    bench_samples s = {0};
    sample_verdict v[SAMPLES_MOST];
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        v[i] = text[i] == 'C'   ? SAMPLE_COUNTS
               : text[i] == 'P' ? SAMPLE_PREEMPTED
               : text[i] == 'W' ? SAMPLE_WAITED
                                : SAMPLE_UNSTEADY;
        s.ns[i] = (double)(i + 1);
        s.read_gbs[i] = 10.0 * (double)(i + 1);
        s.limit[i] = 100.0 * (double)(i + 1);
    }
    samples_settle(&s, v, n);
    return s;
}

static void test_settle(void)
{
    bench_samples s = settled("PCWCUC");
    is_int((long)s.n, 3, "three of six count");
    ok(s.enough && s.n_listed == 3, "which is enough");
    ok(s.ns[0] == 2 && s.ns[1] == 4 && s.ns[2] == 6 && s.read_gbs[1] == 40 && s.limit[2] == 600,
       "they alone are listed");
    ok(s.refused[SAMPLE_PREEMPTED] == 1 && s.refused[SAMPLE_WAITED] == 1 && s.refused[SAMPLE_UNSTEADY] == 1,
       "the others are counted by reason");
    s = settled("CCPPP");
    ok(!s.enough && s.n == 2 && s.n_listed == 5, "two are too few: all are listed");
    s = settled("CCCPPPPPPU");
    ok(!s.enough && s.n == 3 && s.n_listed == 10, "so are three of ten");
    s = settled("CCC");
    ok(s.enough && s.n_listed == 3, "three of three are enough");
    s = settled("CC");
    ok(s.enough, "so are two where there are no more");
    s = settled("");
    ok(!s.enough && s.n_listed == 0, "none are not");
}

static void test_summary(void)
{
    /* Five tokens per run that need 90 units; limits measured in the same runs: 1, 2 and 4 units per ns. */
    bench_samples s = {.n = 3,
                       .enough = true,
                       .n_listed = 3,
                       .ns = {100, 50, 25},
                       .read_gbs = {40, 50, 45},
                       .limit = {1, 2, 4},
                       .tiles = {2, 2, 8}};
    sample_summary m = samples_summary(&s, 5, 90);
    ok(fabs(m.speed - 1e8) < 1, "median speed %.0f", m.speed);
    ok(m.read_gbs == 45 && m.limit == 2, "medians of bandwidth and limit");
    ok(fabs(m.fraction - 0.9) < 1e-12, "shares are taken sample by sample: %.3f", m.fraction);
    ok(fabs(m.of_tiles - 0.45) < 1e-12, "also those of tile products: %.3f", m.of_tiles);
    s.tiles[2] = 0;
    ok(samples_summary(&s, 5, 90).of_tiles == -1, "none without tiles");
    s.limit[1] = 0;
    ok(samples_summary(&s, 5, 90).fraction == -1, "no share where a limit is not known");
    s.limit[1] = 2;
    s.enough = false;
    ok(samples_summary(&s, 5, 90).fraction == -1, "none where too few samples count");
}

typedef struct {
    int prepared, run, fail_at;
} counter;

static status count_prepare(void *ctx, err *e)
{
    (void)e;
    ((counter *)ctx)->prepared++;
    return ST_OK;
}

static status count_run(void *ctx, int64_t *ns, err *e)
{
    counter *c = ctx;
    *ns = 1000 + c->run;
    return c->run++ == c->fail_at ? err_set(e, ST_INTERRUPTED, "interrupted") : ST_OK;
}

static void test_sample(void)
{
    counter c = {.fail_at = -1};
    bench_timing t = {.prepare = count_prepare, .run = count_run, .ctx = &c, .n_threads = 1};
    bench_samples s;
    err e = {0};
    is_ok(bench_sample(&s, &t, &e), &e, "samples without a meter");
    ok(s.enough && s.n == SAMPLES_WANTED && c.run == SAMPLES_WANTED && c.prepared == SAMPLES_WANTED,
       "all count, each prepared");
    ok(s.ns[0] == 1000 && s.ns[19] == 1019 && s.limit[0] == 0, "times as the runs gave them");
    c = (counter){.fail_at = -1};
    t.wanted = 2;
    is_ok(bench_sample(&s, &t, &e), &e, "two samples");
    ok(s.enough && s.n == 2 && c.run == 2, "no more are taken");
    t.wanted = 0;
    c = (counter){.fail_at = 4};
    is_int(bench_sample(&s, &t, &e), ST_INTERRUPTED, "a run that fails ends it");
    is_int(c.run, 5, "at once");
}

/* The numbers themselves belong to the machine. The level is one with tiles that every machine has. */
static void test_meter(void)
{
    backend *be;
    cpu_meter *m = NULL;
    kernel_limits l;
    err e = {0};
    setenv("KVASIR_CPU", "amx-emulated", 1);
    status st = backend_open(&be, &(backend_options){.device = "cpu", .n_threads = 2}, &e);
    unsetenv("KVASIR_CPU");
    if (!is_ok(st, &e, "cpu")) return;
    if (is_ok(cpu_meter_create(&m, be, &e), &e, "meter")) {
        meter_usage a = cpu_meter_usage(m);
        cpu_meter_limits(m, &l);
        meter_usage b = cpu_meter_usage(m);
        ok(l.read_low > 0 && l.read_low <= l.read_gbs && l.read_gbs <= l.read_high, "a bandwidth and its range");
        ok(l.gemm_gops[PRODUCT_F32] > 0 && l.gemm_name[0], "products of %s", l.gemm_name);
        ok((cpu_meter_product(m, PRODUCT_S8) > 0) == (l.gemm_gops[PRODUCT_S8] > 0),
           "a product that is there stays there");
        ok(cpu_meter_tiles(m) > 0, "products of tiles");
        ok(b.wall_ns > a.wall_ns && b.cpu_ns > a.cpu_ns && b.switches >= a.switches, "times increase");
    }
    cpu_meter_free(m);
    backend_close(be);
    if (!is_ok(backend_open(&be, &(backend_options){.device = "ref", .n_threads = 1}, &e), &e, "ref")) return;
    is_int(cpu_meter_create(&m, be, &e), ST_UNSUPPORTED, "another device is refused");
    backend_close(be);
}

/* ---- contexts ---- */

enum { N = 50, CHUNK = 16, FILLED = 200 };

static int32_t ids[N];

static bool open_parts(engine_parts *p, size_t chunk)
{
    err e = {0};
    return is_ok(parts_open_with(p, "llama31-f32-tied", (backend_options){.device = "cpu", .n_threads = 2},
                                 (decoder_options){.chunk = chunk, .max_batch = 1}, &e),
                 &e, "model");
}

static session *new_session(const engine_parts *p, const char *text)
{
    session *s = NULL;
    err e = {0};
    is_ok(session_new(&s, p, text, "f16", FILLED + N + 8, &e), &e, "%s", text);
    return s;
}

/* ids [from, from + n) of a prompt, with `before` tokens before them and `after` tokens after them. */
static void feed(session *s, size_t from, size_t n, size_t before, size_t after, float *logits)
{
    err e = {0};
    const prefill_options o = {
        .which = LOGITS_LAST, .rows = keep_last_row, .ctx = logits, .before = before, .after = after};
    is_ok(session_prefill(&s, 1, ids + from, n, &o, &e), &e, "%zu tokens after %zu", n, before);
}

static const char *const strategies[] = {"full",
                                         "streaming:budget=24",
                                         "h2o:budget=24:skip=0",
                                         "snapkv:budget=24:window=8:skip=0",
                                         "tova:budget=24:skip=0",
                                         "quest:budget=32:skip=0",
                                         "fier:budget=24:skip=0",
                                         "pqcache:budget=20:sink=4:bits=3",
                                         "retroinfer:budget=24:sink=3:local=5:size=4:update=8",
                                         "pariskv:budget=24:skip=0",
                                         "actqkv:sink=4:local=8:window=16:block=4:reps=2:budget=24:skip=0",
                                         "infllm:sink=4:local=8:window=16:block=4:reps=2:budget=24:skip=0",
                                         "tokenselect:sink=4:local=16:window=16:budget=12",
                                         "kivi",
                                         "logquant"};

/* A prompt in two calls, cut at a chunk, is the prompt in one. */
static void test_parts(void)
{
    engine_parts p;
    if (!open_parts(&p, CHUNK)) return;
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        float whole[2][U_VOCAB] = {{0}}, cut[2][U_VOCAB] = {{0}};
        session *s = new_session(&p, strategies[i]);
        if (!s) continue;
        feed(s, 0, N, 0, 0, whole[0]);
        session_decode(&s, 1, ids, whole[1], NULL);
        session_reset(s);
        feed(s, 0, 2 * CHUNK, 0, N - 2 * CHUNK, cut[0]);
        ok(cut[0][0] == 0 && cut[0][U_VOCAB - 1] == 0, "no logits before the prompt's end");
        feed(s, 2 * CHUNK, N - 2 * CHUNK, 2 * CHUNK, 0, cut[0]);
        session_decode(&s, 1, ids, cut[1], NULL);
        ok(memcmp(whole, cut, sizeof whole) == 0, "%s: a prompt in two parts", strategies[i]);
        session_free(s);
    }
    parts_close(&p);
}

/* Logits of the chunk after random rows, and of a step. */
static void behind_fill(session *s, uint64_t seed, float out[2][U_VOCAB])
{
    err e = {0};
    session_reset(s);
    const fill_options o = {.n_tokens = FILLED - 8, .after = N, .seed = seed};
    is_ok(fill_sessions(&s, 1, &o, &e), &e, "fill");
    feed(s, 0, N, FILLED - 8, 0, out[0]);
    is_ok(session_decode(&s, 1, ids, out[1], &e), &e, "a step");
}

/* A store made for prompts of a chunk takes no longer ones. */
static void check_longest(const engine_parts *p, const attn_spec *spec, const fill_options *o)
{
    session *s;
    err e = {0};
    if (!is_ok(session_create(&s, p->dec, spec, (session_size){.n_tokens = FILLED, .longest_prompt = CHUNK}, &e), &e,
               "%s, short prompts", spec->text))
        return;
    is_err(fill_sessions(&s, 1, o, &e), &e, ST_UNSUPPORTED, "the store has room for", "pieces that are too long");
    e = (err){0};
    is_err(session_prefill(&s, 1, ids, CHUNK + 1, &(prefill_options){.which = LOGITS_LAST}, &e), &e, ST_UNSUPPORTED,
           "the store has room for", "a prompt that is too long");
    session_free(s);
}

/* Rows in pieces: the same where nothing waits for a prompt's end; over codes less is held in full. */
static void test_pieces(const engine_parts *p)
{
    err e = {0};
    for (int i = 0; i < 2; i++) {
        float whole[U_VOCAB], cut[U_VOCAB];
        session *s = new_session(p, i ? "full:kv=kivi4/r=16/g=16" : "full");
        fill_options o = {.n_tokens = FILLED, .seed = 5};
        is_ok(fill_sessions(&s, 1, &o, &e), &e, "fill");
        is_ok(session_decode(&s, 1, ids, whole, &e), &e, "a step");
        session_reset(s);
        o.piece = 2 * CHUNK;
        is_ok(fill_sessions(&s, 1, &o, &e), &e, "fill in pieces");
        size_t peak = attn_seq_peak(session_attn(s)).kv;
        is_ok(session_decode(&s, 1, ids, cut, &e), &e, "a step");
        ok(session_length(s) == FILLED + 1 && (i || memcmp(whole, cut, sizeof whole) == 0), "what pieces make");
        attn_spec spec = *attn_seq_spec(session_attn(s));
        attn_bytes plan[2];
        if (i) check_longest(p, &spec, &o);
        attn_limits lim = {.n_tokens = FILLED, .chunk = CHUNK};
        for (int k = 0; k < 2; k++) {
            lim.prompt = k ? o.piece : 0;
            is_ok(attn_plan(&plan[k], &spec, decoder_attn_shape(p->dec), &lim, &e), &e, "plan");
        }
        ok(peak <= plan[1].kv && (i ? plan[1].kv < plan[0].kv : plan[1].kv == plan[0].kv),
           "%s: %zu bytes at most, planned %zu, in one piece %zu", spec.text, peak, plan[1].kv, plan[0].kv);
        session_free(s);
    }
}

static void test_fill(void)
{
    engine_parts p;
    if (!open_parts(&p, CHUNK)) return;
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        static float a[2][U_VOCAB], b[2][U_VOCAB], c[2][U_VOCAB];
        bool finite = true;
        session *s = new_session(&p, strategies[i]);
        if (!s) continue;
        behind_fill(s, 1, a);
        behind_fill(s, 1, b);
        behind_fill(s, 2, c);
        for (size_t k = 0; k < U_VOCAB; k++) finite &= isfinite(a[0][k]) && isfinite(a[1][k]);
        ok(finite && session_length(s) == FILLED - 8 + N + 1, "%s: a chunk and a step after random rows",
           strategies[i]);
        ok(memcmp(a, b, sizeof a) == 0 && memcmp(a, c, sizeof a) != 0, "the seed makes the rows");
        session_free(s);
    }
    test_pieces(&p);
    session *s = new_session(&p, "full");
    err e = {0};
    is_int(fill_sessions(&s, 1, &(fill_options){.n_tokens = FILLED + N + 9}, &e), ST_UNSUPPORTED,
           "more than fits is refused");
    session_free(s);
    parts_close(&p);
}

static double variance(const float *x, size_t n, size_t stride)
{
    double sum = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        double y = (double)x[i * stride];
        sum += y;
        square += y * y;
    }
    return square / (double)n - sum / (double)n * (sum / (double)n);
}

/* Rows given to the last layer, before rotation: normal, except for the outlier channels. With 192 rows a variance of 1
 * is estimated within 0.4 (four standard errors). */
static void test_rows(void)
{
    engine_parts p;
    if (!open_parts(&p, 192)) return;
    session *s = new_session(&p, "full");
    err e = {0};
    const attn_shape *sh = decoder_attn_shape(p.dec);
    size_t dim = (size_t)sh->head_dim, width = (size_t)sh->n_kv_heads * dim, want = (dim * FILL_OUTLIERS + 99) / 100;
    is_ok(fill_sessions(&s, 1, &(fill_options){.n_tokens = 192, .seed = 3}, &e), &e, "fill");
    const block *last = NULL;
    for (const block *b = p.dec->w->blocks; b < p.dec->w->blocks + p.dec->w->n_blocks; b++)
        if (b->kind->keeps_kv) last = b;
    buf keys, values;
    attention_scratch(p.dec, last, p.dec->max_rows, &keys, &values);
    const float *k = (const float *)(void *)keys.p, *v = (const float *)(void *)values.p;
    bool good = true;
    for (size_t h = 0; h < (size_t)sh->n_kv_heads; h++) {
        size_t wide = 0, normal = 0;
        for (size_t c = h * dim; c < (h + 1) * dim; c++) {
            double var = variance(k + c, 192, width);
            wide += fabs(var - FILL_SCALE * FILL_SCALE) < 0.4 * FILL_SCALE * FILL_SCALE;
            normal += fabs(var - 1) < 0.4;
            good &= fabs(variance(v + c, 192, width) - 1) < 0.4;
        }
        is_int((long)wide, (long)want, "kv head %zu: channels that stand out", h);
        is_int((long)(wide + normal), (long)dim, "the others are standard normal");
    }
    ok(good, "values are standard normal");
    session_free(s);
    parts_close(&p);
}

int main(void)
{
    for (int i = 0; i < N; i++) ids[i] = (7 * i + 11) % 300;
    test_judge();
    test_settle();
    test_summary();
    test_sample();
    test_meter();
    test_parts();
    test_fill();
    test_rows();
    return tap_done();
}
