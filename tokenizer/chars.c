/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/chars.h"

#include "kernels/base/utf8.h"

int char_at(const char *s, size_t n, int32_t *c)
{
    const unsigned char *u = (const unsigned char *)s;
    static const unsigned char lead_mask[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    int k = n ? utf8_valid_len(u, n) : 0;
    if (k == 0) return 0;
    *c = u[0] & lead_mask[k];
    for (int i = 1; i < k; i++) *c = *c << 6 | (u[i] & 0x3f);
    return k;
}

int char_before(const char *s, size_t end, int32_t *c)
{
    for (size_t k = 1; k <= 4 && k <= end; k++)
        if (((unsigned char)s[end - k] & 0xc0) != 0x80) return char_at(s + end - k, k, c) == (int)k ? (int)k : 0;
    return 0;
}

int char_put(char *out, int32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    int k = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (int i = k - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (c & 0x3f));
        c >>= 6;
    }
    out[0] = (char)(lead[k] | c);
    return k;
}

bool is_white_space(int32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_python_space(int32_t c)
{
    return is_white_space(c) || (c >= 0x1c && c <= 0x1f);
}

void trim_python(const char **s, size_t *n)
{
    int32_t c;
    int k;
    while (*n && (k = char_at(*s, *n, &c)) && is_python_space(c)) {
        *s += k;
        *n -= (size_t)k;
    }
    while (*n && (k = char_before(*s, *n, &c)) && is_python_space(c)) *n -= (size_t)k;
}

size_t broken_len(const char *s, size_t n)
{
    for (size_t k = n < 3 ? n : 3; k > 1; k--)
        if (utf8_partial_tail((const unsigned char *)s, k) == k) return k;
    return 1;
}
