/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/utf8.h"

/* Returns the length announced by a lead byte (0: not a lead byte) and the range of the second byte, which excludes
 * overlong forms, surrogates and values above U+10FFFF (RFC 3629). */
static int lead_info(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (c < 0x80) return 1;
    if (c >= 0xc2 && c <= 0xdf) return 2;
    if (c >= 0xe0 && c <= 0xef) {
        if (c == 0xe0) *lo = 0xa0;
        if (c == 0xed) *hi = 0x9f;
        return 3;
    }
    if (c >= 0xf0 && c <= 0xf4) {
        if (c == 0xf0) *lo = 0x90;
        if (c == 0xf4) *hi = 0x8f;
        return 4;
    }
    return 0;
}

/* Returns the number of the first n bytes that are a valid start of one character; *need = its length. */
static size_t good_prefix(const unsigned char *s, size_t n, int *need)
{
    unsigned char lo, hi;
    *need = n ? lead_info(s[0], &lo, &hi) : 0;
    if (*need == 0) return 0;
    size_t i = 1;
    for (; i < (size_t)*need && i < n; i++) {
        if (s[i] < lo || s[i] > hi) break;
        lo = 0x80;
        hi = 0xbf;
    }
    return i;
}

int utf8_valid_len(const unsigned char *s, size_t n)
{
    int need;
    size_t got = good_prefix(s, n, &need);
    return need && got == (size_t)need ? need : 0;
}

size_t utf8_partial_tail(const unsigned char *s, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        int need;
        size_t got = good_prefix(s + n - back, back, &need);
        if (need) return got == back && back < (size_t)need ? back : 0;
    }
    return 0;
}
