/* SPDX-License-Identifier: MIT */
/* The op `draw` of ref, a whole sort, and of cpu, which sorts nothing. */
#include "config.h"

#include "tests/unit/draw_rows.h"
#include "tests/unit/ops_util.h"

enum { MOST = 5000, TRIALS = 30 };

static int32_t draw_on(backend *be, const float *x, size_t n, const draw_rule *rule, float share)
{
    static float copy[MOST];
    int32_t id = -1;
    memcpy(copy, x, n * sizeof *x);
    be->ops->draw(be, at(&id), at(copy), 1, n, rule, at(&share));
    return id;
}

/* cpu's masses have an error of 2^-21: of a share that far from the border between two items both are right. */
static bool same(backend *ref, backend *cpu, const float *x, size_t n, const draw_rule *rule, float share)
{
    const float off = 0x1p-20f;
    int32_t want = draw_on(ref, x, n, rule, share);
    return draw_on(cpu, x, n, rule, share) == want || draw_on(cpu, x, n, rule, fmaxf(share - off, 0)) == want ||
           draw_on(cpu, x, n, rule, fminf(share + off, 0.99999994f)) == want;
}

int main(void)
{
    static const size_t sizes[] = {1, 5, 130, 1500, MOST};
    static float x[MOST];
    backend *ref = open_ref(), *cpu;
    err e = {0};
    if (!is_ok(backend_open(&cpu, &(backend_options){.device = "cpu", .n_threads = 1}, &e), &e, "cpu"))
        return tap_done();
    rng r = {7};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t k = 0; k < N_RULES; k++) {
            draw_rule rule = rules[k];
            int wrong = 0;
            if (!is_ok(draw_create(&rule.work, sizes[s], &e), &e, "work space")) return tap_done();
            for (int i = 0; i < KINDS * TRIALS; i++) {
                make_row(x, sizes[s], i % KINDS, &r);
                wrong += !same(ref, cpu, x, sizes[s], &rule, i < KINDS ? 0 : rng_float(&r));
            }
            ok(wrong == 0, "%zu ids, rule %zu: cpu draws what ref draws (%d of %d differ)", sizes[s], k, wrong,
               KINDS * TRIALS);
            draw_free(rule.work);
        }
    backend_close(cpu);
    return tap_done();
}
