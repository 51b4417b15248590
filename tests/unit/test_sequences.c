/* SPDX-License-Identifier: MIT */
/* Whole sequences against scripts/fixtures/reference/sequences.py: what each method keeps, what each step attends, and
 * its outputs. The fixture's names are the strategies' texts. */
/* Builds: shim race device */
#include "config.h"

#define T_HEADS 16
#define T_KV    4
#include "tests/unit/attention_oracle.h"
#include "tests/unit/reference.h"

typedef float head_rows[T_HEADS][T_DIM];

static world w;
static head_rows got[T_LAYERS * T_MAX];

enum { PAR_HEADS, PAR_KV, PAR_WINDOW, PAR_STEPS = PAR_WINDOW + T_LAYERS, PAR_TURNS, PAR_TURN };

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

/* One number for the heads of a row, against the next one of the fixture. */
static bool row_is(const rig *r, const head_rows out, const float *want)
{
    double sum = 0;
    int n = r->shape.n_heads * T_DIM;
    for (int i = 0; i < n; i++) sum += (double)(&out[0][0])[i] * (1 + i % 13 / 8.0);
    return fabs(sum - (double)*want) < 1e-5;
}

/* Rows [T_LAYERS][n]. */
static bool rows_are(const rig *r, size_t n, expected *x)
{
    bool good = true;
    for (size_t i = 0; i < n; i++)
        for (size_t l = 0; l < T_LAYERS; l++) good &= row_is(r, got[l * n + i], x->out++);
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
            double before = attn_seq_stats(s).attended;
            rig_decode(r, &s, 1, got);
            group_note(g, rows_are(r, 1, &x), "%s, chunk %d, step %d of %d: outputs", x.name, (int)chunk, i, turn);
            group_note(g, fabs(attn_seq_stats(s).attended - before - (double)x.attended[rows]) < 1e-4,
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
    for (int l = 0; l < T_LAYERS; l++) r->window[l] = p[PAR_WINDOW + l];
    for (const int32_t *chunk = p + PAR_TURN + p[PAR_TURNS]; chunk < end; chunk++) run(r, x, *chunk, g);
}

static void check_method(rig *r, const char *method, int every)
{
    group g = {0};
    for (size_t i = 0; i < st_count(fixture); i++) {
        char name[192];
        size_t n = strlen(st_at(fixture, i)->name);
        snprintf(name, sizeof name, "%.*s", n < 4 ? 0 : (int)n - 4, st_at(fixture, i)->name);
        if (strcmp(st_at(fixture, i)->name + strlen(name), ".par") != 0) continue;
        if (strncmp(name + 4, method, strlen(method)) == 0 && !left_out(every, 4 * every)) run_case(r, name, &g);
    }
    group_end(&g, method, r->be->name);
}

int main(void)
{
    if (no_device()) return 0;
    world_fill(&w, 11);
    for (int d = 0; d < N_METHOD_DEVICES; d++) {
        rig r;
        err e = {0};
        if (!is_ok(rig_open(&r, METHOD_DEVICES[d], &w, 64, &e), &e, "%s opened", METHOD_DEVICES[d])) continue;
        fixture_open("sequences");
        check_method(&r, "h2o", 7);
        check_method(&r, "snapkv", 7);
        check_method(&r, "tova", 7);
        check_method(&r, "pariskv", 23);
        check_method(&r, "actqkv", 4);
        fixture_close();
        is_ok(backend_fault(r.be, &e), &e, "%s, no fault", METHOD_DEVICES[d]);
        rig_close(&r);
    }
    check_races();
    return tap_done();
}
