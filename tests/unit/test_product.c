/* SPDX-License-Identifier: MIT */
/* The invariants U1-U9 of methods.md 0.3 over the whole product of strategies and stores. What a strategy
 * selects, and what its rows hold, is compared with naive methods in the tests of their own. */
#include "config.h"

#define T_HEADS 14
#define T_KV    2
#define T_DIM   64

#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"
#include "tests/unit/devices.h"
#include "tests/unit/product.h"
#include "tests/unit/spy_ops.h"

/* Lifetime of a sequence: two prompts with decode steps after each. */
enum { P1 = 41, P2 = 19, STEPS = 10, ALL = P1 + P2 + 2 * STEPS };
typedef struct {
    head_rows prompt1[T_LAYERS * P1], step1[STEPS][T_LAYERS], prompt2[T_LAYERS * P2], step2[STEPS][T_LAYERS];
} life;

/* Group sizes 1, 2, 3, 4, 7 and 8; `window` of the last two layers. */
static const struct {
    int heads, kv, dim, window[2];
} layouts[] = {
    {2, 2, 32, {0, 0}},   {4, 2, 22, {50, 33}}, {6, 2, 32, {0, 0}},
    {8, 2, 26, {60, 12}}, {14, 2, 16, {0, 0}},  {8, 1, 64, {0, 0}},
};
/* WIDE: for stores whose groups are 64 channels of one token; SLOW: the one that ref has time for. */
enum { N_LAYOUTS = sizeof layouts / sizeof *layouts, WIDE = N_LAYOUTS - 1, SLOW = 1 };

static world w, louder; /* the same, with other values */
static life alone, other, full;

/* Every strategy meets every layout, and every store does. */
static int layout_of(int s, int k)
{
    bool wide = strstr(strategies[s].spec, "hf_axis0") || strstr(stores[k], "hf");
    static const int of_blocks[] = {0, 2, WIDE};
    if (stores[k][0] == 'q' && !wide) return of_blocks[(s + k) % 3];
    return wide ? WIDE : (s + k) % N_LAYOUTS;
}

/* ---- driving ---- */

static status open_seq(rig *r, attn_seq **out, const product_row *s, bool all, const kv_format *kv, err *e)
{
    static attn_spec spec;
    char text[sizeof spec.text * 2];
    attn_options o = {.kv = *kv};
    attn_limits lim = {.n_tokens = ALL, .chunk = (int64_t)r->rows};
    snprintf(text, sizeof text, "%s%s", s->spec, all ? s->all : "");
    *out = NULL;
    TRY(attn_spec_parse(&spec, text, &o, e));
    return attn_seq_create(out, &spec, &r->shape, &lim, r->be, e);
}

/* The same rows of the model's heads. */
static bool same(const rig *r, const void *a, const void *b, size_t n)
{
    const head_rows *x = a, *y = b;
    for (size_t i = 0; i < n; i++)
        if (memcmp(x[i], y[i], rig_q_row(r)) != 0) return false;
    return true;
}

static bool is_close(const rig *r, const void *a, const void *b, size_t n)
{
    const head_rows *x = a, *y = b;
    for (size_t i = 0; i < n; i++)
        if (!spy_near(&x[i][0][0], &y[i][0][0], rig_q_row(r) / sizeof(float))) return false;
    return true;
}

static bool same_life(const rig *r, const life *a, const life *b)
{
    return same(r, a->prompt1, b->prompt1, T_LAYERS * P1) && same(r, a->step1, b->step1, T_LAYERS * STEPS) &&
           same(r, a->prompt2, b->prompt2, T_LAYERS * P2) && same(r, a->step2, b->step2, T_LAYERS * STEPS);
}

static bool close_life(const rig *r, const life *a, const life *b)
{
    return is_close(r, a->prompt1, b->prompt1, T_LAYERS * P1) && is_close(r, a->step1, b->step1, T_LAYERS * STEPS) &&
           is_close(r, a->prompt2, b->prompt2, T_LAYERS * P2) && is_close(r, a->step2, b->step2, T_LAYERS * STEPS);
}

static void steps(rig *r, attn_seq *s, head_rows out[][T_LAYERS], int n)
{
    for (int i = 0; i < n; i++) rig_decode(r, &s, 1, out[i]);
}

static void live(rig *r, attn_seq *s, int64_t chunk, life *out)
{
    rig_prompt(r, &s, 1, P1, chunk, out->prompt1);
    steps(r, s, out->step1, STEPS);
    rig_prompt(r, &s, 1, P2, chunk, out->prompt2);
    steps(r, s, out->step2, STEPS);
}

/* ---- one invariant after the other ---- */

/* Settings of a checked combination; failures are recorded. */
typedef struct {
    rig *r;
    const product_row *s;
    const kv_format *kv;
    size_t held, copies; /* bytes of rows at the end of its life; regions a kv head */
    char failed[ATTN_TEXT];
} combination;

static bool note(combination *c, bool good, const char *what)
{
    size_t n = strlen(c->failed);
    if (!good && !strstr(c->failed, what)) snprintf(c->failed + n, sizeof c->failed - n, " %s;", what);
    return good;
}

/* U7: as the ops saw it, and as the sequence counts it. */
static void watched_steps(combination *c, attn_seq *s, head_rows out[][T_LAYERS], int64_t generated)
{
    for (int i = 0; i < STEPS; i++) {
        attn_stats a = attn_seq_stats(s);
        long allocated = mem_test_count();
        int64_t n = attn_seq_length(s) + 1, most = c->s->most ? c->s->most : n;
        if (c->s->flags & GROWS) most += generated + i + 1;
        bool plain = true;
        for (int l = 0; l < T_LAYERS; l++) {
            int64_t window = c->r->shape.window[l];
            plain &= !attn_seq_spec(s)->skip.has[l];
            if (attn_is_dense(attn_seq_spec(s), &c->r->shape, l) && window > most) most = window;
        }
        spy_begin();
        rig_decode(c->r, &s, 1, out[i]);
        spy.on = false;
        note(c, i == 0 || mem_test_count() == allocated, "a decode step allocates"); /* the first: the backend may */
        attn_stats b = attn_seq_stats(s);
        note(c, spy.reordered, "U5: order of visits");
        note(c, !plain || spy.most <= (most < n ? most : n), "U7: too many tokens attended");
        double counted = b.attended - a.attended - spy.sum;
        note(c, fabs(counted) <= spy.loose + 1e-9, "U7: attended tokens miscounted");
        note(c, spy.listed, "U7: listed tokens are not those attended");
    }
}

/* Bytes of the demoted rows: each in two runs of codes, or as f16, or in groups. */
static size_t demoted(const attn_seq *s, const attn_shape *sh)
{
    const char *text = attn_seq_spec(s)->text;
    size_t dim = (size_t)sh->head_dim, n = 0;
    bool rows = strstr(text, "f16") || strstr(text, "bits=16"), four = strstr(text, "token4") || strstr(text, "bits=4");
    size_t half = rows ? 2 * dim : (dim * (four ? 4 : 2) + 7) / 8 + 2 * 4;
    const char *g = strstr(text, "demote_g=");
    for (int l = 0; l < T_LAYERS; l++)
        for (int h = 0; h < (strstr(text, "per_q") ? sh->n_heads : sh->n_kv_heads); h++)
            n += (size_t)attn_seq_demoted(s, l, h, NULL);
    if (!g) return 2 * n * half;
    size_t size = (size_t)atoi(strchr(g, '=') + 1), codes = (dim * (strstr(text, "kivi4") ? 4 : 2) + 7) / 8;
    return 2 * n * codes + n / size * dim * 4 + n * ((dim + size - 1) / size) * 4;
}

/* U6: what is planned is what is allocated, what is held is what is stored. */
static void check_bytes(combination *c, const attn_seq *s, size_t rows, size_t rest)
{
    err e = {0};
    const attn_shape *sh = &c->r->shape;
    const attn_spec *spec = attn_seq_spec(s);
    attn_limits lim = {.n_tokens = ALL, .chunk = (int64_t)c->r->rows};
    attn_bytes plan, held = attn_seq_held(s), peak = attn_seq_peak(s);
    size_t stored = 0, row = 2 * kv_row_bytes(spec->kv.type, (size_t)sh->head_dim);
    note(c, attn_plan(&plan, spec, sh, &lim, &e) == ST_OK, "U6: no plan");
    bool each = strstr(spec->text, "per_q") && !attn_retrieves(spec);
    for (int l = 0; l < T_LAYERS; l++) {
        int regions = each && !attn_is_dense(spec, sh, l) ? sh->n_heads : sh->n_kv_heads;
        for (int h = 0; h < regions; h++) stored += (size_t)attn_seq_positions(s, l, h, NULL) * row;
    }
    if (c->s->flags & DEMOTES) stored += demoted(s, sh);
    note(c, kv_has_codes(&spec->kv) || held.kv == stored, "U6: rows held");
    note(c, peak.kv >= held.kv && plan.kv >= peak.kv && plan.index >= peak.index, "U6: held <= peak <= planned");
    bool wide = kv_has_codes(&spec->kv) && spec->kv.group < 4; /* codes take more than rows */
    note(c, plan.scratch == held.scratch && (wide ? plan.kv >= rows : plan.kv == rows), "U6: planned");
    /* but for the counters of the sequence: of its layers, of those apart from them, of drafts */
    size_t counters = 3 * READ_KINDS * sizeof(uint64_t);
    note(c, rest >= plan.index + plan.scratch && rest <= plan.index + plan.scratch + counters,
         "U6: planned index, scratch");
    c->held = held.kv;
    c->copies = each ? (size_t)(sh->n_heads / sh->n_kv_heads) : 1;
}

/* U6: what a prompt is evicted from is given back, but for the row of the next token, and room for demoted rows. */
static void check_given(combination *c, const attn_seq *s, size_t rows)
{
    const attn_spec *spec = attn_seq_spec(s);
    bool all = evicts(c->s, spec);
    for (int l = 0; l < T_LAYERS; l++) all &= c->r->shape.window[l] == 0 && !attn_is_dense(spec, &c->r->shape, l);
    if (!all || kv_has_codes(&spec->kv)) return;
    bool demotes = c->s->flags & DEMOTES;
    size_t kept = (size_t)attn_seq_positions(s, 0, 0, NULL), low = demotes ? demoted(s, &c->r->shape) : 0;
    size_t row = (attn_seq_held(s).kv - low) / kept, room = demotes ? rows - row * ALL : 0;
    note(c, rows - spy.given == row * (kept + 1) + room, "U6: given back");
}

/* U5-U7 along a life. */
static void check_life(combination *c, attn_seq *s, size_t rows, size_t rest)
{
    rig *r = c->r;
    spy.given = 0;
    rig_prompt(r, &s, 1, P1, 64, alone.prompt1);
    check_given(c, s, rows);
    watched_steps(c, s, alone.step1, 0);
    rig_prompt(r, &s, 1, P2, 64, alone.prompt2);
    watched_steps(c, s, alone.step2, STEPS + P2);
    check_bytes(c, s, rows, rest);
}

/* U8: with another value of the current token all heads of all layers give another output. Replaces the step. */
static void check_current(combination *c, attn_seq *s, const head_rows *want)
{
    head_rows got[T_LAYERS];
    rig *r = c->r;
    r->w = &louder;
    rig_decode(r, &s, 1, got);
    r->w = &w;
    for (int l = 0; l < T_LAYERS && !(c->s->flags & MISSES); l++)
        for (int i = 0; i < r->shape.n_heads * r->shape.head_dim; i++)
            note(c, (&got[l][0][0])[i] > (&want[l][0][0])[i], "U8: the current token is missed");
}

/* Case U4, then U2 followed by U8. */
static void check_again(combination *c, attn_seq *s)
{
    rig *r = c->r;
    attn_seq_reset(s);
    rig_prompt(r, &s, 1, P1, 64, other.prompt1);
    steps(r, s, other.step1, STEPS - 1);
    note(c,
         same(r, other.prompt1, alone.prompt1, T_LAYERS * P1) &&
             same(r, other.step1, alone.step1, T_LAYERS * (STEPS - 1)),
         "U4: reset");
    check_current(c, s, alone.step1[STEPS - 1]);
    err e = {0};
    note(c, attn_seq_rewind(s, 0, &e) == ST_OK && attn_seq_length(s) == 0, "back to the start");
    live(r, s, c->s->flags & WINDOWED ? 16 : 7, &other);
    bool equal = c->s->flags & BANDED ? close_life(r, &other, &alone) : same_life(r, &other, &alone);
    note(c, (c->s->flags & BY_CHUNK) || equal, "U2: chunks");
}

/* U3: the whole first prompt one by one. Its last token is a prompt again, which ends where the other did. */
static void check_single(combination *c, attn_seq *s)
{
    rig *r = c->r;
    if (!(c->s->flags & (ONE_BY_ONE | IN_A_RING))) return;
    attn_seq_reset(s);
    rig_prompt(r, &s, 1, 1, 1, NULL);
    for (int i = 1; i < P1 - 1; i++) rig_decode(r, &s, 1, NULL);
    rig_prompt(r, &s, 1, 1, 1, NULL);
    steps(r, s, other.step1, STEPS);
    bool equal = c->s->flags & ONE_BY_ONE ? same(r, other.step1, alone.step1, T_LAYERS * STEPS)
                                          : is_close(r, other.step1, alone.step1, T_LAYERS * STEPS);
    note(c, equal, "U3: one by one");
}

/* A store of raw keys rounds other numbers: the bits are equal if it does not round, else equal up to its rounding.
 * With quantized rows the only remaining difference is that a prompt is not quantized before its end. */
static bool raw_is_full(const combination *c, const attn_spec *spec)
{
    double num = 0, den = 0;
    if (spec->kv.type == DT_F32 && !kv_has_codes(&spec->kv)) return same_life(c->r, &other, &full);
    for (int i = 0; i < T_LAYERS * P1; i++)
        for (int k = 0; k < c->r->shape.n_heads * c->r->shape.head_dim; k++) {
            double x = (double)(&other.prompt1[i][0][0])[k], y = (double)(&full.prompt1[i][0][0])[k];
            num += (x - y) * (x - y);
            den += y * y;
        }
    if (kv_in_blocks(&spec->kv)) return num <= den * (spec->kv.type == DT_Q8 ? 1e-4 : 3e-2);
    return num <= den * (spec->kv.type == DT_F32 ? 0 : spec->kv.type == DT_F16 ? 1e-6 : 1e-4);
}

/* U1: the life of `full` over the same store; over 4 bits, whose numbers may have two codes, to rounding. What keeps
 * all holds its bytes (U6), and evictors over codes at most those, since a group stays while one of its tokens does,
 * and those that demote to rows of the same bytes. */
static void check_all(combination *c)
{
    err e = {0};
    attn_seq *s, *f;
    rig *r = c->r;
    if (!note(c, open_seq(r, &s, c->s, true, c->kv, &e) == ST_OK, "U1: created")) return;
    live(r, s, 64, &other);
    if (!note(c, open_seq(r, &f, &strategies[0], false, &attn_seq_spec(s)->kv, &e) == ST_OK, "U1: full")) return;
    live(r, f, 64, &full);
    bool everything = c->s->flags & RAW      ? raw_is_full(c, attn_seq_spec(s))
                      : c->kv->type == DT_Q4 ? close_life(r, &other, &full)
                                             : same_life(r, &other, &full);
    note(c, everything, "U1: everything");
    bool exact = !(c->s->flags & (RAW | BANDED));
    note(c, !exact || same(r, alone.prompt1, full.prompt1, T_LAYERS * P1), "U1: first prompt");
    size_t held = attn_seq_held(f).kv;
    size_t most = held * c->copies - !(c->s->flags & DEMOTES);
    note(c, evicts(c->s, attn_seq_spec(s)) ? c->held <= most : c->held == held, "U6: rows held, with those of full");
    attn_seq_free(s);
    attn_seq_free(f);
}

/* U1 through the selection. */
static void check_forced(combination *c, const attn_spec *spec)
{
    err e = {0};
    attn_seq *s;
    attn_spec all;
    rig *r = c->r;
    attn_options o = {.kv = *c->kv};
    attn_limits lim = {.n_tokens = ALL, .chunk = (int64_t)r->rows};
    char text[2 * sizeof all.text];
    if (!attn_retrieves(spec) || (c->s->flags & WINDOWED)) return;
    snprintf(text, sizeof text, "%s%s", c->s->spec, c->s->all);
    bool made = attn_spec_parse(&all, text, &o, &e) == ST_OK;
    all.forced = true;
    if (!note(c, made && attn_seq_create(&s, &all, &r->shape, &lim, r->be, &e) == ST_OK, "U1: created")) return;
    live(r, s, 64, &other);
    note(c, is_close(r, other.step2, full.step2, T_LAYERS * STEPS), "U1: everything, selected");
    attn_seq_free(s);
}

/* Combinations of the layout at work, and the steps of each alone. */
static struct {
    int strategy, store;
    head_rows step[STEPS][T_LAYERS];
} kept[N_STRATEGIES * N_STORES];
static int n_kept;

static void check_one(rig *r, int s, int k)
{
    err e = {0};
    attn_seq *seq;
    kv_format kv;
    combination c = {.r = r, .s = &strategies[s], .kv = &kv};
    kv_format_parse(&kv, stores[k], "--kv", &e);
    spy.by_codes = (kv_has_codes(&kv) || kv_in_blocks(&kv)) && multiplies_codes(r->be->about);
    const char *why = refusal(r->window, c.s, &kv);
    size_t rows = spy.rows, all = spy.rows + spy.codes + spy.other, rest = spy.other;
    status st = open_seq(r, &seq, c.s, false, &kv, &e);
    if (why) {
        is_err(st, &e, c.s->flags & DEMOTES && !packed(&kv) ? ST_UNSUPPORTED : ST_USAGE, why, "%s over %s is refused",
               c.s->spec, stores[k]);
        return;
    }
    if (!is_ok(st, &e, "%s over %s", c.s->spec, stores[k])) return;
    check_life(&c, seq, spy.rows - rows, spy.other - rest);
    kept[n_kept].strategy = s;
    kept[n_kept].store = k;
    memcpy(kept[n_kept++].step, alone.step1, sizeof alone.step1);
    check_again(&c, seq);
    check_single(&c, seq);
    check_all(&c);
    check_forced(&c, attn_seq_spec(seq));
    attn_seq_free(seq);
    note(&c, spy.rows + spy.codes + spy.other == all, "U6: not all was given back");
    ok(!c.failed[0], "%s, %s over %s, %d/%d heads of %d:%s", r->be->name, c.s->spec, stores[k], r->shape.n_heads,
       r->shape.n_kv_heads, r->shape.head_dim, c.failed[0] ? c.failed : " U1-U8");
}

/* ---- batches ---- */

enum { BATCH = 7, JOINED = 7 };

/* Sequences of a batch; at which of its steps each joins it. */
typedef struct {
    size_t n;
    attn_seq *seq[BATCH];
    int at[BATCH], first[BATCH];
} batch;

/* A later prompt is exact where nothing was evicted or quantized. */
static bool shares_again(const attn_seq *s, const product_row *by)
{
    const attn_spec *spec = attn_seq_spec(s);
    return attn_can_share(s, s, P2) == (!evicts(by, spec) && !kv_has_codes(&spec->kv) && !(by->flags & WINDOWED));
}

/* The prompt: together where it can be shared, which must be where it is exact and rows are of one type. */
static bool prompt_together(rig *r, const batch *b)
{
    attn_seq *shared[BATCH];
    size_t n = 0;
    bool expected = true;
    for (size_t i = 0; i < b->n; i++) {
        unsigned first = strategies[kept[b->at[0]].strategy].flags, flags = strategies[kept[b->at[i]].strategy].flags;
        bool exact = !((first | flags) & (WINDOWED | BANDED | BY_CHUNK));
        bool can = attn_can_share(b->seq[0], b->seq[i], P1);
        bool same = kv_same_rows(&attn_seq_spec(b->seq[i])->kv, &attn_seq_spec(b->seq[0])->kv);
        expected &= can == (exact && same);
        attn_seq *one = b->seq[i];
        if (can) shared[n++] = one;
        else rig_prompt(r, &one, 1, P1, 64, NULL);
    }
    if (n > 0) rig_prompt(r, shared, n, P1, 16, NULL);
    for (size_t i = 0; i < b->n; i++) expected &= shares_again(b->seq[i], &strategies[kept[b->at[i]].strategy]);
    return expected;
}

/* U9: strategies over different stores and of different lengths. */
static void check_batch(rig *r, int group, int n_groups)
{
    static head_rows out[T_LAYERS * BATCH];
    batch b = {0};
    char failed[ATTN_TEXT] = "";
    err e = {0};
    for (int i = group; i < n_kept && b.n < BATCH; i += n_groups, b.n++) {
        kv_format kv;
        kv_format_parse(&kv, stores[kept[i].store], "--kv", &e);
        b.at[b.n] = i;
        b.first[b.n] = (int)b.n % 3;
        if (open_seq(r, &b.seq[b.n], &strategies[kept[i].strategy], false, &kv, &e) != ST_OK) break;
    }
    bool shared = prompt_together(r, &b), equal = true;
    for (size_t i = 0; i < b.n; i++)
        for (int t = 0; t < b.first[i]; t++) rig_decode(r, &b.seq[i], 1, NULL);
    for (int t = 0; t < JOINED; t++) {
        rig_decode(r, b.seq, b.n, out);
        for (size_t i = 0; i < b.n; i++)
            for (size_t l = 0; l < T_LAYERS; l++) {
                if (same(r, out + l * b.n + i, kept[b.at[i]].step[b.first[i] + t] + l, 1)) continue;
                if (equal) snprintf(failed, sizeof failed, "%s", attn_seq_spec(b.seq[i])->text);
                equal = false;
            }
    }
    ok(equal && shared && !e.msg[0], "%s, a batch of %d, %d/%d heads of %d: U9, shared prompts %s%s", r->be->name,
       (int)b.n, r->shape.n_heads, r->shape.n_kv_heads, r->shape.head_dim, failed, e.msg);
    for (size_t i = 0; i < b.n; i++) attn_seq_free(b.seq[i]);
}

/* Checks all combinations assigned to this layout. A third of them includes every strategy, store and layout, and for
 * every strategy float rows and at least one kind of quantized rows. */
static void check_layout(rig *r, int i)
{
    err e = {0};
    r->window[1] = layouts[i].window[0];
    r->window[2] = layouts[i].window[1];
    if (!is_ok(rig_layout(r, layouts[i].heads, layouts[i].kv, layouts[i].dim, &e), &e, "layout %d", i)) return;
    spy.work = r->work;
    attn_watch(r->work, spy_layer, &r->shape);
    n_kept = 0;
    for (int s = 0; s < N_STRATEGIES; s++)
        for (int k = 0; k < N_STORES; k++)
            if (layout_of(s, k) == i && !tap_leaves_out((s + 2 * k) % 6 != 0)) check_one(r, s, k);
    int groups = (n_kept + BATCH - 1) / BATCH;
    for (int g = 0; g < groups; g++) check_batch(r, g, groups);
}

int main(void)
{
    static const char *const devices[] = {"cpu", "ref"};
    err e = {0};
    world_fill(&w, 29);
    louder = w;
    for (size_t i = 0; i < sizeof w.v / sizeof(float); i++) (&louder.v[0][0][0][0])[i] += 1;
    for (int d = 0; d < 2; d++) {
        rig r;
        if (!is_ok(rig_open(&r, devices[d], &w, 64, &e), &e, "%s backend", devices[d])) return tap_done();
        r.hint.question = (attn_span){2, 9};
        spy_open(r.be);
        for (int i = 0; i < N_LAYOUTS; i++)
            if (d == 0 || i == SLOW) check_layout(&r, i);
        is_ok(backend_fault(r.be, &e), &e, "%s: no fault", devices[d]);
        rig_close(&r);
    }
    return tap_done();
}
