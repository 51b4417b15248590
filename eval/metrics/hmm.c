/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/metrics/hmm.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"

enum { B, E, M, S, MAX_FILE_BYTES = 1 << 26 };
static const double IMPOSSIBLE = -3.14e100;

/* ---- reading ---- */

/* The state of a letter alone in its field, or -1. */
static int state_of(const char *field)
{
    static const char letters[] = "BEMS";
    const char *at = field[0] && !field[1] ? strchr(letters, field[0]) : NULL;
    return at ? (int)(at - letters) : -1;
}

/* Cuts at tabs in place; the number of fields, 5 where there are more than 4. */
static int split_fields(char *line, char *field[4])
{
    int n = 0;
    for (char *p = line, *tab; p; p = tab) {
        if (n == 4) return 5;
        field[n++] = p;
        if ((tab = strchr(p, '\t'))) *tab++ = 0;
    }
    return n;
}

/* Where the value of a row belongs: NULL where the row is not understood, *skip where it never matters. */
static double *place_of(hmm *h, char *field[4], int n, bool *skip)
{
    int s = n > 2 ? state_of(field[1]) : -1;
    *skip = false;
    if (s < 0) return NULL;
    if (n == 3 && strcmp(field[0], "start") == 0) return &h->start[s];
    if (n == 4 && strcmp(field[0], "trans") == 0) {
        int to = state_of(field[2]);
        return to < 0 ? NULL : &h->trans[s][to];
    }
    if (n == 4 && strcmp(field[0], "emit") == 0 && strncmp(field[2], "U+", 2) == 0) {
        char *end;
        unsigned long c = strtoul(field[2] + 2, &end, 16);
        if (*end || end == field[2] + 2) return NULL;
        *skip = c < HAN_FIRST || c > HAN_LAST;
        return *skip ? NULL : &h->emit[s][c - HAN_FIRST];
    }
    return NULL;
}

static void clear(hmm *h)
{
    for (int s = 0; s < HMM_STATES; s++) {
        h->start[s] = IMPOSSIBLE;
        for (int to = 0; to < HMM_STATES; to++) h->trans[s][to] = IMPOSSIBLE;
        for (int c = 0; c < N_HAN; c++) h->emit[s][c] = IMPOSSIBLE;
    }
}

static bool read_row(hmm *h, char *line)
{
    char *field[4] = {0}, *end;
    bool skip;
    int n = split_fields(line, field);
    double *out = place_of(h, field, n, &skip);
    if (!out) return skip;
    *out = strtod(field[n - 1], &end);
    return end != field[n - 1] && !*end && *out <= 0 && *out >= IMPOSSIBLE;
}

status hmm_read(hmm *h, const char *path, err *e)
{
    char *file, *next;
    size_t size, line = 0;
    status st = ST_OK;
    TRY(file_read(&file, &size, path, MAX_FILE_BYTES, e));
    clear(h);
    for (char *p = file; p && *p && st == ST_OK; p = next) {
        if ((next = strchr(p, '\n'))) *next++ = 0;
        line++;
        if (!read_row(h, p)) st = err_set(e, ST_FORMAT, "%s line %zu: not a row of the model", path_tail(path), line);
    }
    if (st == ST_OK && line == 0) st = err_set(e, ST_FORMAT, "%s: empty", path_tail(path));
    mem_free(file);
    return st;
}

/* ---- Viterbi ---- */

/* The two states that may come before each one, the larger letter first: it wins ties. */
static const uint8_t before[HMM_STATES][2] = {[B] = {S, E}, [E] = {M, B}, [M] = {M, B}, [S] = {S, E}};

/* path[i] = state of character i. from [n, HMM_STATES] is scratch. */
static void best_path(const hmm *h, span s, uint8_t *path, uint8_t *from)
{
    double v[HMM_STATES], w[HMM_STATES];
    for (int y = 0; y < HMM_STATES; y++) v[y] = h->start[y] + h->emit[y][s.c[0] - HAN_FIRST];
    for (size_t i = 1; i < s.n; i++) {
        for (int y = 0; y < HMM_STATES; y++) {
            const uint8_t a = before[y][0], b = before[y][1];
            double emit = h->emit[y][s.c[i] - HAN_FIRST];
            double via_a = v[a] + h->trans[a][y] + emit, via_b = v[b] + h->trans[b][y] + emit;
            from[i * HMM_STATES + (size_t)y] = via_b > via_a ? b : a;
            w[y] = via_b > via_a ? via_b : via_a;
        }
        memcpy(v, w, sizeof v);
    }
    uint8_t y = v[E] > v[S] ? E : S;
    for (size_t i = s.n; i-- > 0; y = from[i * HMM_STATES + y]) path[i] = y;
}

status hmm_cut(const hmm *h, span s, span_list *words, err *e)
{
    uint8_t *path;
    size_t begin = 0, room;
    status st = ST_OK;
    TRY(size_mul(&room, s.n, 1 + HMM_STATES, "hidden states", e));
    TRY(MEM_NEW(&path, room, e));
    best_path(h, s, path, path + s.n);
    for (size_t i = 0; i < s.n && st == ST_OK; i++)
        if (path[i] == E || path[i] == S) {
            st = span_push(words, span_from(s, begin, i + 1), e);
            begin = i + 1;
        }
    mem_free(path);
    return st; /* the last state is E or S, so nothing is left over */
}
