/* SPDX-License-Identifier: MIT */
/* Generates samples like those of SCBench's tasks, of any length; the official generators are not published. A sample
 * has five answers, spread evenly over its context and asked for in random order. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/scbench/scbench.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

enum { N = SCBENCH_TURNS, HOPS = 3, AFFIX = 4, MOST_WORD = 20, NUMBERS = 1000000 };

/* Sample being generated. Turn i asks for hidden item order[i]. */
typedef struct {
    rng r;
    size_t units, order[N];
    FILE *context;
    json_t *turns;
} made;

/* True if hidden item k of n is placed before unit i. */
static bool is_here(const made *m, size_t i, size_t k, size_t n)
{
    return i == (size_t)(((double)k + 0.5) * (double)m->units / (double)n);
}

static void shuffle(size_t *x, size_t n, rng *r)
{
    for (size_t i = n; i-- > 1;) {
        size_t k = (size_t)rng_below(r, i + 1), t = x[i];
        x[i] = x[k];
        x[k] = t;
    }
}

static void add_turn(made *m, const char *input, json_t *answer)
{
    json_array_append_new(m->turns, json_pack("{s:s, s:o}", "input", input, "answer", answer));
}

/* ---- the tasks ---- */

static void make_kv(made *m)
{
    char key[N][UUID_CHARS + 1], value[N][UUID_CHARS + 1], k[UUID_CHARS + 1], v[UUID_CHARS + 1], input[160];
    for (size_t q = 0; q < N; q++) {
        uuid_draw(key[q], &m->r);
        uuid_draw(value[q], &m->r);
    }
    fputs("JSON data:\n{", m->context);
    for (size_t i = 0; i < m->units; i++) {
        for (size_t q = 0; q < N; q++)
            if (is_here(m, i, q, N)) fprintf(m->context, "\"%s\": \"%s\", ", key[q], value[q]);
        uuid_draw(k, &m->r);
        uuid_draw(v, &m->r);
        fprintf(m->context, "\"%s\": \"%s\"%s", k, v, i + 1 < m->units ? ", " : "}");
    }
    for (size_t i = 0; i < N; i++) {
        snprintf(input, sizeof input,
                 "Key: \"%s\"\nThe value associated with the specified key is: ", key[m->order[i]]);
        add_turn(m, input, json_string(value[m->order[i]]));
    }
}

static void draw_word(char out[MOST_WORD + 1], rng *r)
{
    size_t n = 12 + (size_t)rng_below(r, MOST_WORD - 11);
    for (size_t i = 0; i < n; i++) out[i] = (char)('a' + rng_below(r, 26));
    out[n] = 0;
}

static void make_prefix_suffix(made *m)
{
    char word[N][MOST_WORD + 1], other[MOST_WORD + 1], input[160];
    for (size_t q = 0; q < N; q++) draw_word(word[q], &m->r);
    fputs("Dictionary:\n", m->context);
    for (size_t i = 0; i < m->units; i++) {
        for (size_t q = 0; q < N; q++)
            if (is_here(m, i, q, N)) fprintf(m->context, "%s\n", word[q]);
        draw_word(other, &m->r);
        fprintf(m->context, "%s\n", other);
    }
    for (size_t i = 0; i < N; i++) {
        const char *w = word[m->order[i]];
        snprintf(input, sizeof input, "Prefix: %.*s\nSuffix: %s\nThe word with this prefix and this suffix is: ", AFFIX,
                 w, w + strlen(w) - AFFIX);
        add_turn(m, input, json_string(w));
    }
}

/* Writes chains of assignments among noise. Names differ in their first letter. */
static void make_vt(made *m)
{
    char name[N][HOPS][6], input[200];
    int value[N];
    for (size_t q = 0; q < N; q++) {
        value[q] = 10000 + (int)(q * 18000) + (int)rng_below(&m->r, 18000);
        for (size_t h = 0; h < HOPS; h++) {
            for (size_t i = 0; i < 5; i++) name[q][h][i] = (char)('A' + rng_below(&m->r, 26));
            name[q][h][0] = (char)('A' + h * N + q);
            name[q][h][5] = 0;
        }
    }
    for (size_t i = 0; i < m->units; i++) {
        for (size_t k = 0; k < N * HOPS; k++) {
            size_t q = k % N, h = k / N;
            if (!is_here(m, i, k, N * HOPS)) continue;
            if (h == 0) fprintf(m->context, "VAR %s = %d\n", name[q][0], value[q]);
            else fprintf(m->context, "VAR %s = VAR %s\n", name[q][h], name[q][h - 1]);
        }
        fputs(MADE_NOISE, m->context);
    }
    for (size_t i = 0; i < N; i++) {
        size_t q = m->order[i];
        snprintf(input, sizeof input,
                 "Question: Find all variables that are assigned the value %d in the text above. Answer: %d "
                 "variables are assigned the value %d in the text above, they are: ",
                 value[q], HOPS, value[q]);
        add_turn(m, input, json_pack("[s, s, s]", name[q][0], name[q][1], name[q][2]));
    }
}

/* Writes distinct numbers; the turns ask for the largest and smallest ones. */
static void make_mf(made *m)
{
    static const char *const which[N] = {"largest", "smallest", "second largest", "second smallest", "third largest"};
    size_t n = m->units, step = NUMBERS / n + 1, *at = NULL;
    int sorted[N] = {0}, *x = NULL;
    if (MEM_NEW(&at, n, NULL) != ST_OK || MEM_NEW(&x, n, NULL) != ST_OK) m->units = 0;
    for (size_t i = 0; i < m->units; i++) {
        x[i] = (int)(i * step + rng_below(&m->r, step));
        at[i] = i;
    }
    if (m->units) {
        const int of[N] = {x[n - 1], x[0], x[n - 2], x[1], x[n - 3]};
        memcpy(sorted, of, sizeof of);
        shuffle(at, n, &m->r);
    }
    for (size_t i = 0; i < m->units; i++) fprintf(m->context, "%s%d", i ? ", " : "[", x[at[i]]);
    fputs("]", m->context);
    for (size_t i = 0; i < N && m->units; i++) {
        char input[80];
        snprintf(input, sizeof input, "The %s number of the list is", which[m->order[i]]);
        add_turn(m, input, json_integer(sorted[m->order[i]]));
    }
    mem_free(at);
    mem_free(x);
}

static void make_passkey(made *m)
{
    static const char *const things[] = {"lamp",  "ship", "garden", "bridge", "letter", "horse", "window", "river",
                                         "clock", "road", "table",  "book",   "stone",  "door",  "ring",   "boat"};
    enum { THINGS = sizeof things / sizeof *things };
    size_t thing[THINGS];
    int key[N];
    char input[80], digits[16];
    for (size_t i = 0; i < THINGS; i++) thing[i] = i;
    shuffle(thing, THINGS, &m->r);
    for (size_t q = 0; q < N; q++) key[q] = 50001 + (int)rng_below(&m->r, 49999);
    for (size_t i = 0; i < m->units; i++) {
        for (size_t q = 0; q < N; q++)
            if (is_here(m, i, q, N))
                fprintf(m->context, "Remember this: the code of the %s is %d.\n", things[thing[q]], key[q]);
        fputs(MADE_NOISE, m->context);
    }
    for (size_t i = 0; i < N; i++) {
        snprintf(input, sizeof input, "What is the code of the %s? It is", things[thing[m->order[i]]]);
        snprintf(digits, sizeof digits, "%d", key[m->order[i]]);
        add_turn(m, input, json_string(digits));
    }
}

static const struct {
    const char *name;
    void (*make)(made *m);
} makers[] = {{"scbench_kv", make_kv},
              {"scbench_prefix_suffix", make_prefix_suffix},
              {"scbench_vt", make_vt},
              {"scbench_mf", make_mf},
              {"scbench_passkey", make_passkey}};

status scbench_generate(json_t **root, const made_place *at, size_t units, err *e)
{
    made m = {.r = made_rng(at), .units = units, .turns = json_array()};
    const char *name = scbench_tasks[at->dataset].name;
    char *text = NULL;
    size_t n = 0, k = 0;
    for (size_t i = 0; i < N; i++) m.order[i] = i;
    shuffle(m.order, N, &m.r);
    m.context = open_memstream(&text, &n);
    while (strcmp(makers[k].name, name) != 0) k++;
    if (m.context) makers[k].make(&m);
    bool good = m.context && fclose(m.context) == 0 && json_array_size(m.turns) == N;
    *root = good ? json_pack("{s:s, s:s%, s:O}", "dataset", name, "context", text, n, "multi_turns", m.turns) : NULL;
    json_decref(m.turns);
    free(text);
    return *root ? ST_OK : err_set(e, ST_NOMEM, "out of memory for a sample");
}
