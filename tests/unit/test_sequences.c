/* SPDX-License-Identifier: MIT */
/* Whole sequences against scripts/fixtures/reference/sequences.py and what builds on it: what each method keeps, what
 * each step attends, and its outputs. The fixture's names are the strategies' texts. */
/* Builds: shim device */
#include "config.h"

#define T_HEADS 16
#define T_KV    4
#include "tests/unit/attention_oracle.h"
#include "tests/unit/reference.h"

/* As sequences.py has them. */
enum { RANDOM, DOMINANT, LARGE, SHARED_MEAN, SHARP, WORLDS };

static world worlds[WORLDS];
static head_rows got[T_LAYERS * T_MAX];

enum { PAR_HEADS, PAR_KV, PAR_WORLD, PAR_WINDOW, PAR_STEPS = PAR_WINDOW + T_LAYERS, PAR_TURNS, PAR_TURN };

/* One case; where its sequence stands in the fixture. */
typedef struct {
    const char *name;
    const int32_t *par;
    const float *out, *attended;
    const unsigned char *kept;
    size_t lists;
} expected;

static expected expected_of(const char *name)
{
    expected x = {.name = name,
                  .par = ints("%s.par", name),
                  .out = floats("%s.out", name),
                  .attended = floats("%s.attended", name)};
    if (!has("%s.kept", name)) return x;
    x.kept = copy_of(tensor("%s.kept", name));
    x.lists = tensor("%s.kept", name)->shape[2];
    return x;
}

/* Compares one number per head of a row with the next one of the fixture. Over quantized rows an extreme of float32 may
 * round to the half next to that of float64. */
static bool row_is(const rig *r, const head_rows out, const float *want, bool coded)
{
    double sum = 0;
    int n = r->shape.n_heads * T_DIM;
    for (int i = 0; i < n; i++) sum += (double)(&out[0][0])[i] * (1 + i % 13 / 8.0);
    return fabs(sum - (double)*want) < (coded ? 5e-5 : 1e-5);
}

/* Rows [T_LAYERS][n]. */
static bool rows_are(const rig *r, size_t n, expected *x)
{
    bool good = true, coded = strstr(x->name, "kivi") || strstr(x->name, "logquant") || strstr(x->name, "demote") ||
                              strstr(x->name, "mikv");
    for (size_t i = 0; i < n; i++)
        for (size_t l = 0; l < T_LAYERS; l++) good &= row_is(r, got[l * n + i], x->out++, coded);
    return good;
}

/* Positions that are stored now. */
static bool kept_is(const rig *r, const attn_seq *s, expected *x)
{
    bool good = true;
    size_t heads = (size_t)(x->lists == (size_t)r->shape.n_heads ? r->shape.n_heads : r->shape.n_kv_heads);
    for (int l = 0; l < T_LAYERS && x->kept; l++, x->kept += x->lists * (T_MAX / 8))
        for (size_t h = 0; h < heads; h++) {
            int64_t pos[T_MAX], n = attn_seq_positions(s, l, (int)h, pos);
            unsigned char bits[T_MAX / 8] = {0};
            for (int64_t i = 0; i < n; i++) bits[pos[i] / 8] |= (unsigned char)(1 << pos[i] % 8);
            good &= memcmp(bits, x->kept + (x->lists == 1 ? 0 : h) * (T_MAX / 8), sizeof bits) == 0;
        }
    return good;
}

/* Tokens that a step of n tokens might see, in all layers. */
static double visible(const rig *r, int64_t n)
{
    double sum = 0;
    for (int l = 0; l < T_LAYERS; l++) sum += (double)(r->window[l] > 0 && r->window[l] < n ? r->window[l] : n);
    return sum;
}

/* Prompts, `steps` steps after each. A prompt of less than no tokens is stored without attention. */
static void run(rig *r, expected x, int64_t chunk, group *g)
{
    err e = {0};
    attn_seq *s;
    size_t rows = 0;
    if (rig_seq(r, &s, x.name + 4, DT_F32, T_MAX, &e) != ST_OK) {
        group_note(g, false, "%s: %s", x.name, e.msg);
        return;
    }
    for (int turn = 0; turn < x.par[PAR_TURNS]; turn++) {
        int64_t n = x.par[PAR_TURN + turn];
        bool all = tensor("%s.out", x.name)->shape[0] > (size_t)(x.par[PAR_TURNS] * x.par[PAR_STEPS]), good = true;
        r->store_only = n < 0;
        if (n != 0) rig_prompt(r, &s, 1, n < 0 ? -n : n, chunk, n < 0 ? NULL : got);
        r->store_only = false;
        if (n > 0 && all) good = rows_are(r, (size_t)n, &x);
        group_note(g, good, "%s, chunk %d, prompt %d: outputs", x.name, (int)chunk, turn);
        group_note(g, kept_is(r, s, &x), "%s, chunk %d, prompt %d: kept", x.name, (int)chunk, turn);
        for (int i = 0; i < x.par[PAR_STEPS]; i++, rows++) {
            attn_stats before = attn_seq_stats(s), after;
            rig_decode(r, &s, 1, got);
            after = attn_seq_stats(s);
            group_note(g, rows_are(r, 1, &x), "%s, chunk %d, step %d of %d: outputs", x.name, (int)chunk, i, turn);
            group_note(g,
                       fabs(after.attended - before.attended - (double)x.attended[rows]) < 1e-4 &&
                           after.visible - before.visible == visible(r, attn_seq_length(s)),
                       "%s, chunk %d, step %d of %d: tokens attended", x.name, (int)chunk, i, turn);
        }
        group_note(g, kept_is(r, s, &x), "%s, chunk %d, steps of %d: kept", x.name, (int)chunk, turn);
    }
    attn_seq_free(s);
}

/* A case with each of its chunks. */
static void run_case(rig *r, const char *name, group *g)
{
    err e = {0};
    expected x = expected_of(name);
    const int32_t *p = x.par, *end = p + count_of(tensor("%s.par", name));
    if (p[PAR_HEADS] != r->shape.n_heads || p[PAR_KV] != r->shape.n_kv_heads)
        group_note(g, rig_layout(r, p[PAR_HEADS], p[PAR_KV], T_DIM, &e) == ST_OK, "%s: layout", name);
    r->w = &worlds[p[PAR_WORLD]];
    for (int l = 0; l < T_LAYERS; l++) r->window[l] = p[PAR_WINDOW + l];
    r->hint = (attn_hint){0};
    if (has("%s.question", name)) {
        const int32_t *span = ints("%s.question", name);
        r->hint.question = (attn_span){span[0], span[1]};
    }
    for (const int32_t *chunk = p + PAR_TURN + p[PAR_TURNS]; chunk < end; chunk++) run(r, x, *chunk, g);
}

/* at: number of the level, 0: ref or a device. */
static void check_method(rig *r, const char *level, int at, const char *method, int every)
{
    group g = {0};
    int seen = 0, n_cases = 0;
    for (size_t i = 0; i < st_count(fixture); i++) {
        char name[192];
        size_t n = strlen(st_at(fixture, i)->name);
        snprintf(name, sizeof name, "%.*s", n < 4 ? 0 : (int)n - 4, st_at(fixture, i)->name);
        if (strcmp(st_at(fixture, i)->name + strlen(name), ".par") != 0) continue;
        if (strncmp(name + 4, method, strlen(method)) != 0 || leaves_out(&seen, every, every)) continue;
        if (!tap_leaves_out(at > 0 && n_cases++ > 0 && (n_cases + at) % 2 != 0)) run_case(r, name, &g);
    }
    group_end(&g, method, level);
}

static void fill_worlds(void)
{
    for (int i = 0; i < WORLDS; i++) {
        world *w = &worlds[i];
        world_fill(w, 11);
        float *q = &w->q[0][0][0][0], *k = &w->k[0][0][0][0];
        for (size_t c = 3; i == DOMINANT && c < sizeof w->q / sizeof *q; c += T_DIM) q[c] *= 2;
        for (size_t c = 3; i == DOMINANT && c < sizeof w->k / sizeof *k; c += T_DIM) k[c] *= 8;
        for (size_t c = 0; i == LARGE && c < sizeof w->k / sizeof *k; c++) k[c] *= 8;
        for (size_t c = 0; i == SHARED_MEAN && c < sizeof w->k / sizeof *k; c++) k[c] += 4;
        for (int64_t p = 1; i == SHARP && p < T_MAX; p += 2)
            for (int c = 0; c < T_HEADS * T_DIM; c++) w->q[T_LAYERS - 1][p][c / T_DIM][c % T_DIM] *= 6;
    }
}

/* ref, and every level of the CPU that is here; or a device. */
static void check_level(const char *device, const char *level, int at)
{
    static const struct {
        const char *method;
        int every;           /* on the host's shim */
        const char *fixture; /* NULL: sequences */
    } methods[] = {{"full", 2, NULL},           {"streaming", 22, NULL},
                   {"kivi", 14, NULL},          {"logquant", 6, NULL},
                   {"h2o", 26, NULL},           {"snapkv", 26, NULL},
                   {"tova", 26, NULL},          {"quest", 22, NULL},
                   {"fier", 26, NULL},          {"pariskv", 82, NULL},
                   {"actqkv", 10, NULL},        {"quest", 6, "pages"},
                   {"infllm", 6, "infllm"},     {"h2o", 6, "demote"},
                   {"snapkv", 2, "demote"},     {"tova", 6, "demote"},
                   {"mikv", 6, "mikv"},         {"actqkv", 4, "question"},
                   {"pqcache", 2, "pq"},        {"tokenselect", 10, "tokenselect"},
                   {"magicpig", 6, "magicpig"}, {"quest", 2, "tail"},
                   {"fier", 1, "tail"},         {"pqcache", 1, "tail"},
                   {"streaming", 4, "demote"},  {"retroinfer", 6, "retroinfer"},
                   {"codes", 10, "codes"},
#ifndef ON_CUDA /* no such ops */
                   {"codes", 4, "certify"},
#endif
                   {"quest", 2, "mass"},        {"fier", 2, "mass"},
                   {"codes", 4, "mass"},        {"pqcache", 4, "mass"}};
    rig r;
    err e = {0};
    if (level) setenv("KVASIR_CPU", level, 1);
    status st = rig_open(&r, device, worlds, 64, &e);
    unsetenv("KVASIR_CPU");
    if (st == ST_UNSUPPORTED || st == ST_USAGE) tap_skip("%s", e.msg);
    else is_ok(st, &e, "%s opened", device);
    if (st != ST_OK) return;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        fixture_open(methods[i].fixture ? methods[i].fixture : "sequences");
        check_method(&r, level ? level : device, at, methods[i].method, methods[i].every);
        fixture_close();
    }
    is_ok(backend_fault(r.be, &e), &e, "%s, no fault", device);
    rig_close(&r);
}

int main(void)
{
    if (no_device()) return 0;
    fill_worlds();
    for (int d = 0; d < N_METHOD_DEVICES; d++)
        for (int l = 0; l < (strcmp(METHOD_DEVICES[d], "cpu") == 0 ? N_ALL_LEVELS : 1); l++)
            check_level(METHOD_DEVICES[d], strcmp(METHOD_DEVICES[d], "cpu") == 0 ? ALL_LEVELS[l] : NULL, d ? l + 1 : 0);
    check_races();
    return tap_done();
}
