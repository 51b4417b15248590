/* SPDX-License-Identifier: MIT */
/* The op `draw` of ref, a whole sort, and of cpu, which sorts nothing; the noise of DRAW_GUMBEL. */
#include "config.h"

#include "kernels/gumbel.h"
#include "tests/unit/draw_rows.h"
#include "tests/unit/ops_util.h"

enum { MOST = 5000, TRIALS = 30 };

static int n_wrong; /* rows said to be finite that are not, or the reverse */

static int32_t draw_on(backend *be, const float *x, size_t n, const draw_rule *rule, float share)
{
    static float copy[MOST];
    int32_t id[2] = {-1, -1};
    memcpy(copy, x, n * sizeof *x);
    be->ops->draw(be, at(id), at(copy), 1, n, rule, at(&share));
    n_wrong += id[1] != draw_finite(x, n);
    return id[0];
}

/* cpu's masses have an error of 2^-21: of a share that far from the border between two items both are right. Noise has
 * the same bits. */
static bool same(backend *ref, backend *cpu, const float *x, size_t n, const draw_rule *rule, float share)
{
    const float off = 0x1p-20f;
    int32_t want = draw_on(ref, x, n, rule, share);
    if (rule->how == DRAW_GUMBEL) return draw_on(cpu, x, n, rule, share) == want;
    return draw_on(cpu, x, n, rule, share) == want || draw_on(cpu, x, n, rule, fmaxf(share - off, 0)) == want ||
           draw_on(cpu, x, n, rule, fminf(share + off, 0.99999994f)) == want;
}

/* Against the mathematical library, and against its own bound; the ends of the range too. */
static void check_noise(void)
{
    rng r = {9};
    double off = 0;
    int above = 0;
    for (int i = 0; i < 4000; i++) {
        uint64_t m = rng_next(&r) >> (11 + i % 50), last = ((uint64_t)1 << 53) - 1;
        if (i == 0) m = 0;
        if (i % 3 == 1) m = last - m;
        long double u = ((long double)m + 0.5L) * 0x1p-53L, rest = ((long double)(last - m) + 0.5L) * 0x1p-53L;
        long double want = -logl(m >> 52 ? -log1pl(-rest) : -logl(u));
        off = fmax(off, (double)fabsl((long double)gumbel_noise(m) - want));
        above += gumbel_noise(m) > gumbel_bound(m) || gumbel_bound(m) > GUMBEL_MOST;
    }
    ok(off < 2e-13 && above == 0, "the noise is -log(-log u): off by %.1e, %d above its bound", off, above);
    rng first = {42};
    ok(gumbel_bits(42, 0, 0) == rng_next(&first) >> 11, "from the first number of the generator on");
    ok(gumbel_bits(42, 1, 0) != gumbel_bits(42, 0, 1) && gumbel_bits(43, 0, 0) != gumbel_bits(42, 0, 0),
       "position, id and seed each make another one");
}

/* Logits that differ a little choose the same item more often than by their shares alone: at least (1 - TV)/(1 + TV) of
 * the positions, for the total variation TV of their masses. */
static void check_agreement(backend *be)
{
    enum { N = 200, POSITIONS = 2000 };
    float a[N], b[N];
    double pa = 0, pb = 0, tv = 0;
    int same_item = 0;
    rng r = {4};
    draw_rule rule = {.temp = 1, .top_p = 1, .seed = 3};
    err e = {0};
    if (!is_ok(draw_create(&rule.work, N, &e), &e, "work space")) return;
    for (int i = 0; i < N; i++) {
        a[i] = 6 * rng_float(&r);
        b[i] = a[i] + rng_float(&r) - 0.5f;
        pa += exp((double)a[i]);
        pb += exp((double)b[i]);
    }
    for (int i = 0; i < N; i++) tv += fabs(exp((double)a[i]) / pa - exp((double)b[i]) / pb) / 2;
    for (rule.pos = 0; rule.pos < POSITIONS; rule.pos++)
        same_item += draw_on(be, a, N, &rule, 0) == draw_on(be, b, N, &rule, 0);
    double share = (double)same_item / POSITIONS, least = (1 - tv) / (1 + tv);
    ok(share > least - 0.02 && share <= 1 - tv + 0.04, "two rows at a distance of %.3f agree in %.3f, at least %.3f",
       tv, share, least);
    draw_free(rule.work);
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
                rule.seed = rng_next(&r) % 1000;
                rule.pos = i;
                wrong += !same(ref, cpu, x, sizes[s], &rule, i < KINDS ? 0 : rng_float(&r));
            }
            ok(wrong == 0, "%zu ids, rule %zu: cpu draws what ref draws (%d of %d differ)", sizes[s], k, wrong,
               KINDS * TRIALS);
            draw_free(rule.work);
        }
    ok(n_wrong == 0, "rows are finite or not");
    check_noise();
    check_agreement(cpu);
    backend_close(cpu);
    return tap_done();
}
