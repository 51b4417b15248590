/* SPDX-License-Identifier: MIT */
/* MagicPIG: chances of a sample, rewind. test_sequences.c has its outputs, test_ops_lsh.c its ops. */
#include "config.h"

#include "kernels/ops_lsh.h"
#include "tests/unit/attention_oracle.h"

static void test_example(void)
{
    static const float cosine[] = {0, .1f, .3f, .5f, .7f};
    static const double w[] = {.00968, .03074, .21367, .73555, .99768};
    bool good = fabs((double)lsh_bias(.5f, 2, 3) - .87441) < 1e-5;
    for (int i = 0; i < 5; i++) good &= fabs(exp(-(double)lsh_bias(cosine[i], 10, 150)) - 1e-4 - w[i]) < 6e-6;
    ok(good, "chances of methods.md 20.3");
    ok(lsh_bias(1.0000001f, 10, 150) == lsh_bias(1, 10, 150) && fabs((double)lsh_bias(-1, 10, 150) - log(1e4)) < 1e-5,
       "cosines beyond 1; an opposite key has no chance");
}

/* ---- sequences ---- */

typedef float head_rows[T_HEADS][T_DIM];

static world w, other;

static void play(rig *r, attn_seq *s, int64_t n, int steps, head_rows *out)
{
    if (n > 0) rig_prompt(r, &s, 1, n, 16, NULL);
    for (int i = 0; i < steps; i++) rig_decode(r, &s, 1, out + i * T_LAYERS);
}

/* Back behind what was hashed, into hashed new tokens, into the prompt, to the start: as if the rest had never been.
 * In the prompt tables are made anew when a prompt ends. */
static void check_rewind(rig *r)
{
    static const int64_t to[] = {74, 62, 51, 50, 49, 33, 2, 0};
    static const char *const specs[] = {"magicpig:K=3:L=12:sink=3:local=6:skip=0",
                                        "magicpig:K=3:L=12:sink=0:local=6:skip=1",
                                        "magicpig:K=5:L=20:sink=3:local=0:skip=0"};
    static head_rows a[30 * T_LAYERS], b[30 * T_LAYERS];
    for (int i = 0; i < 24; i++) {
        err e = {0};
        attn_seq *s, *direct;
        const char *spec = specs[i % 3];
        int64_t n = to[i / 3];
        rig_seq(r, &s, spec, DT_F16, 140, &e);
        if (!is_ok(rig_seq(r, &direct, spec, DT_F16, 140, &e), &e, "%s", spec)) return;
        play(r, s, 50, n > 50 ? (int)n - 50 : 0, a);
        r->w = &other;
        play(r, s, 0, 25, a);
        r->w = &w;
        is_ok(attn_seq_rewind(s, n, &e), &e, "%s: rewind to %d", spec, (int)n);
        if (n < 50) play(r, s, 70 - n, 10, a), play(r, direct, 70, 10, b);
        else play(r, s, 0, 10, a), play(r, direct, 50, (int)n - 50, b), play(r, direct, 0, 10, b);
        ok(memcmp(a, b, 10 * T_LAYERS * sizeof *a) == 0 && attn_seq_held(s).index == attn_seq_held(direct).index,
           "%s: after a rewind to %d", spec, (int)n);
        attn_seq_free(s);
        attn_seq_free(direct);
    }
}

int main(void)
{
    rig r;
    err e = {0};
    world_fill(&w, 11);
    world_fill(&other, 12);
    test_example();
    for (int d = 0; d < 2; d++) {
        const char *device = d ? "ref" : "cpu";
        if (!is_ok(rig_open(&r, device, &w, 64, &e), &e, "%s backend", device)) return tap_done();
        check_rewind(&r);
        rig_check_oom(&r, "magicpig:K=3:L=12:sink=3:local=6:skip=1", 8);
        is_ok(backend_fault(r.be, &e), &e, "%s, no fault", device);
        rig_close(&r);
    }
    return tap_done();
}
