/* SPDX-License-Identifier: MIT */
/* After a rewind a sequence has the bits of one that was never longer, or the rewind is refused and changes nothing:
 * every strategy, and every store. */
#include "config.h"

#define T_HEADS 4
#define T_KV    2
#define T_DIM   64

#include "tests/unit/attention_oracle.h"
#include "tests/unit/product.h"

/* Two prompts with steps after each. */
enum { P1 = 41, P2 = 19, S1 = 16, S2 = 8, SECOND = P1 + S1, ENDED = SECOND + P2, ALL = ENDED + S2 };

static world w, other;
static head_rows want[ALL][T_LAYERS], got[T_LAYERS]; /* by position, those of steps */
static size_t index_bytes[ALL];                      /* held after the step of a position */

typedef struct {
    rig *r;
    attn_seq *s;
    bool same;
    int rewound, refused;
} run;

/* Steps up to n tokens and compares the outputs with those of the sequence that was never longer. */
static void steps_to(run *x, int64_t n)
{
    while (attn_seq_length(x->s) < n) {
        int64_t at = attn_seq_length(x->s);
        rig_decode(x->r, &x->s, 1, got);
        for (int l = 0; l < T_LAYERS; l++) x->same &= memcmp(got[l], want[at][l], rig_q_row(x->r)) == 0;
        x->same &= attn_seq_held(x->s).index == index_bytes[at];
    }
}

static void first_part(run *x)
{
    attn_seq_reset(x->s);
    rig_prompt(x->r, &x->s, 1, P1, 16, NULL);
}

static void live(run *x)
{
    first_part(x);
    for (int64_t at = P1; at < ALL; at = attn_seq_length(x->s)) {
        if (at == SECOND) rig_prompt(x->r, &x->s, 1, P2, 16, NULL);
        else rig_decode(x->r, &x->s, 1, want[at]);
        index_bytes[at] = attn_seq_held(x->s).index;
    }
}

static bool back(run *x, int64_t n)
{
    err e = {0};
    bool done = attn_seq_rewind(x->s, n, &e) == ST_OK;
    x->rewound += done;
    x->refused += !done;
    x->same &= done || (e.code == ST_UNSUPPORTED && e.msg[0]);
    return done;
}

/* Rewinds a few steps several times, then a part of the prompt, which is fed again as a prompt. */
static void check_steps(run *x, bool windows)
{
    static const int64_t to[] = {P1 + 8, P1 + 7, P1 + 5, P1 + 2, P1, P1 + 1};
    first_part(x);
    steps_to(x, P1 + 9);
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        bool done = back(x, to[i]);
        steps_to(x, done ? to[i] + 3 : attn_seq_length(x->s) + 1);
    }
    if (windows || !back(x, 23)) return;
    rig_prompt(x->r, &x->s, 1, P1 - 23, 16, NULL);
    steps_to(x, P1 + 3);
}

/* Rewinds to n and steps up to `end`; after a refusal it steps once. */
static void again(run *x, int64_t n, int64_t end)
{
    if (n < attn_seq_length(x->s)) steps_to(x, back(x, n) ? end : attn_seq_length(x->s) + 1);
}

/* Rewinds steps after a second prompt, then a part of that prompt, then all of it. */
static void check_prompt(run *x, bool windows)
{
    first_part(x);
    steps_to(x, SECOND);
    rig_prompt(x->r, &x->s, 1, P2, 16, NULL);
    steps_to(x, ENDED + 3);
    again(x, ENDED + 1, ENDED + 3);
    again(x, ENDED, ENDED + 2);
    if (!windows && back(x, SECOND + 6)) {
        rig_prompt(x->r, &x->s, 1, P2 - 6, 16, NULL);
        steps_to(x, ENDED + 2);
    }
    again(x, SECOND - 1, SECOND);
    again(x, P1 + 2, P1 + 4);
}

/* Steps with other tokens, then back to n: nothing is left of them. */
static void astray(run *x, int64_t n)
{
    x->r->w = &other;
    rig_steps(x->r, x->s, S1, NULL);
    x->r->w = &w;
    back(x, n);
}

/* Strategies that always support rewinding do so after other tokens: among steps, into the prompt, to the start. */
static void check_astray(run *x)
{
    first_part(x);
    steps_to(x, P1 + 4);
    astray(x, P1 + 2);
    steps_to(x, P1 + 9);
    astray(x, P1);
    steps_to(x, P1 + 3);
    astray(x, 23);
    rig_prompt(x->r, &x->s, 1, P1 - 23, 16, NULL);
    steps_to(x, P1 + 5);
    astray(x, 0);
    rig_prompt(x->r, &x->s, 1, P1, 16, NULL);
    steps_to(x, P1 + 9);
}

static void check(rig *r, const product_row *s, const char *store)
{
    static attn_spec spec;
    err e = {0};
    attn_options o = {0};
    attn_limits lim = {.n_tokens = ALL, .chunk = (int64_t)r->rows};
    run x = {.r = r, .same = true};
    kv_format_parse(&o.kv, store, "--kv", &e);
    if (refusal(r->window, s, &o.kv)) return;
    status st = attn_spec_parse(&spec, s->spec, &o, &e);
    if (st == ST_OK) st = attn_seq_create(&x.s, &spec, &r->shape, &lim, r->be, &e);
    if (!is_ok(st, &e, "%s over %s", s->spec, store)) return;
    live(&x);
    check_steps(&x, s->flags & WINDOWED);
    check_prompt(&x, s->flags & WINDOWED);
    if (x.refused == 0) check_astray(&x);
    bool first = strstr(s->spec, "center=1"); /* prompts leave what later keys made */
    bool must = !evicts(s, &spec) && !kv_has_codes(&spec.kv) && !(s->flags & WINDOWED) && !first;
    ok(x.same && (!must || x.refused == 0), "%s over %s: the same bits after %d rewinds, and after %d refusals",
       s->spec, store, x.rewound, x.refused);
    attn_seq_free(x.s);
}

int main(void)
{
    const char *all = getenv("TEST_ALL");
    rig r;
    err e = {0};
    world_fill(&w, 31);
    world_fill(&other, 32);
    if (!is_ok(rig_open(&r, "cpu", &w, 64, &e), &e, "opened")) return tap_done();
    for (int s = 0; s < N_STRATEGIES; s++)
        for (int k = 0; k < N_STORES; k++) {
            if (!all && s > 0 && k != 1 && (s + 3 * k) % N_STORES != 7) continue; /* 1: nearly all go back over f16 */
            bool window = !(strategies[s].flags & DEMOTES) && s % 3 == 0;
            r.window[1] = window ? 50 : 0;
            r.window[2] = window ? 33 : 0;
            check(&r, &strategies[s], stores[k]);
        }
    rig_close(&r);
    return tap_done();
}
