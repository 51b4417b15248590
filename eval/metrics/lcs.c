/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/metrics/lcs.h"

#include "kernels/base/mem.h"

static const size_t MAX_ALIGN = (size_t)1 << 32;

status lcs_create(lcs *l, size_t longest_x, size_t longest_y, size_t words_x, size_t words_y, err *e)
{
    size_t cells;
    TRY(size_mul(&cells, words_x, words_y, "rouge", e));
    if (cells > MAX_ALIGN)
        return err_set(e, ST_UNSUPPORTED, "rouge: texts of %zu and %zu words are too long to be aligned", words_y,
                       words_x);
    TRY(MEM_NEW(&l->above, longest_x * longest_y / 64 + 1, e));
    TRY(MEM_NEW(&l->row[0], longest_y + 1, e));
    return MEM_NEW(&l->row[1], longest_y + 1, e);
}

void lcs_free(lcs *l)
{
    mem_free(l->above);
    mem_free(l->row[0]);
    mem_free(l->row[1]);
    *l = (lcs){0};
}

void lcs_mark(lcs *l, const uint32_t *x, size_t n_x, const uint32_t *y, size_t n_y, bool ties_up, bool *in)
{
    uint32_t *up = l->row[0], *cur = l->row[1];
    for (size_t j = 0; j <= n_y; j++) up[j] = 0;
    cur[0] = 0;
    for (size_t i = 0; i < n_x; i++) {
        for (size_t j = 0; j < n_y; j++) {
            size_t bit = i * n_y + j;
            uint64_t mask = (uint64_t)1 << (bit & 63);
            bool is_above = ties_up ? up[j + 1] >= cur[j] : up[j + 1] > cur[j];
            l->above[bit >> 6] = is_above ? l->above[bit >> 6] | mask : l->above[bit >> 6] & ~mask;
            cur[j + 1] = x[i] == y[j] ? up[j] + 1 : is_above ? up[j + 1] : cur[j];
        }
        uint32_t *t = up;
        up = cur;
        cur = t;
        cur[0] = 0;
    }
    for (size_t i = n_x, j = n_y; i && j;) {
        size_t bit = (i - 1) * n_y + j - 1;
        if (x[i - 1] == y[j - 1]) {
            in[i - 1] = true;
            i--;
            j--;
        } else if (l->above[bit >> 6] >> (bit & 63) & 1) {
            i--;
        } else {
            j--;
        }
    }
}
