/* SPDX-License-Identifier: MIT */
/* Proposed tokens: the look-up, and how many are worth it. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/base/rng.h"
#include "model/ngram.h"
#include "tests/tap.h"

enum { MOST = 7 };

static void check_lookup(void)
{
    static const struct {
        int32_t ids[16];
        size_t n, most, n_want;
        int32_t want[MOST];
        const char *what;
    } cases[] = {
        {{1, 2, 3, 9, 1, 2, 3}, 7, 4, 4, {9, 1, 2, 3}, "three tokens match"},
        {{1, 2, 3, 9, 1, 2, 3}, 7, 2, 2, {9, 1}, "at most so many"},
        {{1, 2, 3, 9, 4, 2, 3}, 7, 4, 4, {9, 4, 2, 3}, "two tokens match"},
        {{5, 2, 3, 9, 4, 2}, 6, 4, 4, {3, 9, 4, 2}, "one token matches"},
        {{1, 2, 7, 1, 2, 8, 1, 2}, 8, 1, 1, {8}, "the latest place of several"},
        {{3, 1, 2, 7, 5, 1, 2, 8, 3, 1, 2}, 11, 1, 1, {7}, "a longer match before a later one"},
        {{4, 4, 4}, 3, 4, 1, {4}, "a match may overlap what is matched"},
        {{1, 2, 3}, 3, 4, 0, {0}, "nothing stood before"},
        {{1}, 1, 4, 0, {0}, "one token alone"},
        {{1, 1}, 2, 0, 0, {0}, "none wanted"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t got[MOST];
        size_t n = ngram_lookup(cases[i].ids, cases[i].n, got, cases[i].most);
        ok(n == cases[i].n_want && memcmp(got, cases[i].want, n * sizeof *got) == 0, "%s", cases[i].what);
    }
}

/* Steps of a hazard, for a machine on which a row more costs `row` of a step and a drafted token `draft` of one. */
static size_t length_after(double hazard, double row, double draft)
{
    draft_pace p;
    double sum = 0;
    size_t g = 0;
    pace_start(&p, MOST);
    for (int i = 0; i < 300; i++) {
        g = pace_length(&p);
        pace_timed(&p, g + 1, (int64_t)(1e6 * (1 + row * (double)g)), g, (int64_t)(1e6 * draft * (double)g));
        for (size_t k = 0; k < g; k++) {
            bool hit = (sum += hazard) >= 1;
            sum -= hit;
            pace_judged(&p, hit);
            if (!hit) break;
        }
    }
    return g;
}

static void check_pace(void)
{
    draft_pace p;
    pace_start(&p, MOST);
    is_int((long long)pace_length(&p), 0, "first what a step alone costs");
    is_int((long long)length_after(0.95, 0.02, 0), MOST, "sure and free: as many as there may be");
    is_int((long long)length_after(0.8, 0, 0.25), 3, "a of 0.8 at a cost of 0.25: three");
    is_int((long long)length_after(0.05, 0.9, 0), 0, "hopeless: none");
    ok(length_after(0.6, 0.2, 0) < length_after(0.9, 0.2, 0), "the surer, the more");
    ok(length_after(0.9, 0.6, 0) < length_after(0.9, 0.1, 0), "the cheaper a row, the more");
    p.fixed = true;
    is_int((long long)pace_length(&p), MOST, "or, fixed, all from the start");
    pace_start(&p, MOST);
    p.accepted = 0;
    int tried = 0;
    for (int i = 0; i < 1000; i++) {
        size_t g = pace_length(&p);
        tried += g > 0;
        pace_timed(&p, g + 1, 1000 + 900 * (int64_t)g, g, 0);
        if (g > 0) pace_judged(&p, false);
    }
    ok(tried >= 8 && tried <= 13, "where nothing is right, one is tried now and then: %d times in 1000 steps", tried);
}

/* Returns the speedup over single steps of n tokens, on a machine on which a step of g + 1 rows takes 1 + row g^power
 * single steps, and a drafted token `draft`. */
static double speedup(double hazard, double row, double power, double draft, int n, uint64_t seed)
{
    rng chance = {seed};
    draft_pace p;
    double time = 0;
    int made = 0;
    pace_start(&p, MOST);
    while (made < n) {
        size_t g = pace_length(&p);
        double rows = 1 + row * pow((double)g, power), drafts = draft * (double)g;
        time += rows + drafts;
        pace_timed(&p, g + 1, (int64_t)(1e6 * rows), g, (int64_t)(1e6 * drafts));
        made++;
        for (size_t k = 0; k < g; k++) {
            bool hit = (double)rng_float(&chance) < hazard;
            pace_judged(&p, hit);
            if (!hit) break;
            made++;
        }
    }
    return made / time;
}

static void check_gain(void)
{
    static const double hazard[] = {0, 0.5, 0.9}, row[] = {0.02, 0.2, 0.5, 0.8, 1.2}, draft[] = {0, 0.3, 0.8};
    double least = 1, worst = 1;
    for (int i = 0; i < 3 * 5 * 3 * 2 * 20; i++) {
        double h = hazard[i % 3], r = row[i / 3 % 5], d = draft[i / 15 % 3], power = i / 45 % 2 ? 1.2 : 0.8;
        least = fmin(least, speedup(h, r, power, d, 64, (uint64_t)i));
        worst = fmin(worst, speedup(h, r, power, d, 2000, (uint64_t)i));
    }
    ok(least >= 0.968, "64 tokens lose little, whatever drafts cost and how many are right: %.4f", least);
    ok(worst >= 0.985, "2000 tokens still less: %.4f", worst);
    ok(speedup(0.9, 0.02, 1, 0, 64, 1) > 3, "cheap rows pay at once");
    ok(speedup(0.9, 0.4, 1, 0, 2000, 1) > 1.25, "rows of 0.4 steps pay");
    ok(speedup(0.9, 0.2, 1, 0.2, 2000, 1) > 1.3, "so do drafts of 0.2");
}

static void check_times(void)
{
    draft_pace p;
    pace_start(&p, MOST);
    ok(pace_step_ns(&p, 3) == 0, "nothing is known");
    pace_timed(&p, 1, 100, 0, 0);
    ok(pace_step_ns(&p, 1) == 100 && pace_step_ns(&p, 5) == 100, "one number of rows: flat");
    pace_timed(&p, 5, 180, 0, 0);
    ok(pace_step_ns(&p, 3) == 140 && pace_step_ns(&p, 7) == 220, "two: a line");
    pace_timed(&p, 5, 9999, 0, 0);
    ok(pace_step_ns(&p, 5) < 200, "an interruption counts little");
}

/* Times of steps of 1 and 4 rows in two ways, at an acceptance of 0.75 (pace_start) or less. */
static void check_ways(void)
{
    static const int64_t rows[2] = {1000, 3000}, tiles[2] = {1100, 1400};
    draft_pace p;
    pace_start(&p, MOST);
    ok(pace_prefers(&p, 4, tiles, rows), "slower single steps and much faster verifications: more tokens");
    ok(!pace_prefers(&p, 4, rows, tiles), "and not the other way round");
    ok(!pace_prefers(&p, 4, rows, rows), "equal times: the first way stays");
    p.accepted = 0.01;
    ok(!pace_prefers(&p, 4, tiles, rows), "where nothing is accepted, single steps count");
    pace_start(&p, 3);
    p.fixed = true;
    p.accepted = 0.01;
    ok(pace_prefers(&p, 4, tiles, rows), "unless every step has drafts");
}

static void check_limit(void)
{
    draft_pace p;
    pace_start(&p, MOST);
    pace_limit(&p, 16);
    is_int((long long)p.most, MOST, "a step of more rows than drafts need: no limit");
    pace_limit(&p, 4);
    is_int((long long)p.most, 3, "a step of 4 rows: 3 drafts");
    pace_limit(&p, 1);
    is_int((long long)p.most, 1, "of one row: one draft");
    pace_start(&p, MOST);
    p.fixed = true;
    pace_limit(&p, 4);
    is_int((long long)p.most, MOST, "a fixed length stays");
}

int main(void)
{
    check_limit();
    check_ways();
    check_lookup();
    check_pace();
    check_gain();
    check_times();
    return tap_done();
}
