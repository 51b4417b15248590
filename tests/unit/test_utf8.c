/* SPDX-License-Identifier: MIT */
/* UTF-8: kernels/base/utf8 and tokenizer/chars against a decoder written from the definition. */
#include "config.h"

#include <stdint.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/utf8.h"
#include "tests/tap.h"
#include "tokenizer/chars.h"
#include "tokenizer/normalize.h"

/* Length of the character at s by encoding what its bits say again and comparing (Unicode 3.9,
 * D92). */
static int slow_len(const unsigned char *s, size_t n)
{
    for (int k = 1; k <= 4 && (size_t)k <= n; k++) {
        static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
        uint32_t c = k == 1 ? s[0] : s[0] & (0x7fu >> k);
        int lead_ok = k == 1 ? s[0] < 0x80 : (s[0] & (0xff00u >> (k + 1) & 0xff)) == (0xff00u >> k & 0xff);
        for (int i = 1; i < k; i++) {
            if ((s[i] & 0xc0) != 0x80) lead_ok = 0;
            c = c << 6 | (s[i] & 0x3f);
        }
        if (lead_ok && c >= least[k] && c <= 0x10ffff && !(c >= 0xd800 && c < 0xe000)) return k;
    }
    return 0;
}

static unsigned char begins[3][1 << 21]; /* bit sets: the proper beginnings of characters, by length */

static void fill_beginnings(void)
{
    for (int32_t c = 0x80; c <= 0x10ffff; c++) {
        char s[4];
        uint32_t v = 0;
        const int k = char_put(s, c);
        for (int i = 0; i + 1 < k && !(c >= 0xd800 && c < 0xe000); i++) {
            v = v << 8 | (unsigned char)s[i];
            begins[i][v >> 3] |= (unsigned char)(1u << (v & 7));
        }
    }
}

static size_t slow_tail(const unsigned char *s, size_t n)
{
    uint32_t v = 0;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        v |= (uint32_t)s[n - back] << 8 * (back - 1);
        if (begins[back - 1][v >> 3] >> (v & 7) & 1) return back;
    }
    return 0;
}

/* Many three-byte strings, and four-byte ones around every limit. */
static void test_against_definition(void)
{
    static const unsigned char edge[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf,
                                         0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xf8, 0xff};
    const int n_edge = sizeof edge;
    long wrong = 0, wrong_tail = 0;
    fill_beginnings();
    for (long v = 0; v < 1 << 24; v += 1 + (v & 31)) {
        const unsigned char s[3] = {(unsigned char)(v >> 16), (unsigned char)(v >> 8), (unsigned char)v};
        for (size_t n = 1; n <= 3; n++) {
            wrong += utf8_valid_len(s, n) != slow_len(s, n);
            wrong_tail += utf8_partial_tail(s, n) != slow_tail(s, n);
        }
    }
    for (int i = 0; i < n_edge * n_edge * n_edge * n_edge; i++) {
        const unsigned char s[4] = {edge[i % n_edge], edge[i / n_edge % n_edge], edge[i / n_edge / n_edge % n_edge],
                                    edge[i / n_edge / n_edge / n_edge]};
        wrong += utf8_valid_len(s, 4) != slow_len(s, 4);
        wrong_tail += utf8_partial_tail(s, 4) != slow_tail(s, 4);
    }
    is_int(wrong, 0, "utf8_valid_len agrees with the definition");
    is_int(wrong_tail, 0, "utf8_partial_tail agrees with the definition");
}

static void test_code_points(void)
{
    long wrong = 0;
    for (int32_t c = 0; c <= 0x10ffff; c++) {
        char s[8] = "x";
        int32_t got = -1, back = -1;
        if (c >= 0xd800 && c < 0xe000) continue;
        const int k = char_put(s + 1, c);
        wrong += char_at(s + 1, (size_t)k, &got) != k || got != c;
        wrong += char_before(s, (size_t)k + 1, &back) != k || back != c;
    }
    is_int(wrong, 0, "every code point: written and read from both sides");
    int32_t c;
    is_int(char_at("\xe2\x82", 2, &c), 0, "a partial character is none");
    is_int(char_at("", 0, &c), 0, "nor is nothing");
    is_int(char_before("\x80\x80", 2, &c), 0, "nor are continuation bytes");
    is_int(char_before("a\x80", 2, &c), 0, "a character does not end after a stray byte");
}

/* Examples of Unicode 15, tables 3-8 to 3-11. */
static void test_broken(void)
{
    static const struct {
        const char *s;
        size_t n, want;
    } cases[] = {
        {"\xc0\xaf\xe0", 3, 1},
        {"\xed\xa0\x80", 3, 1},
        {"\xf4\x91\x92\x93", 4, 1},
        {"\xff", 1, 1},
        {"\x80", 1, 1},
        {"\xe1\x80\xe2", 3, 2},
        {"\xf0\x91\x92\xf1", 4, 3},
        {"\xe1", 1, 1},
        {"\xf1\x80"
         "A",
         3, 2},
        {"\xf0\x80\x80", 3, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        is_int((long long)broken_len(cases[i].s, cases[i].n), (long long)cases[i].want, "maximal subpart %zu", i);
}

static void test_trim(void)
{
    const char *s = "\t\x1f\xc2\x85 a b\xe2\x80\x8b\xe3\x80\x80\n";
    size_t n = strlen(s);
    trim_python(&s, &n);
    ok(n == 6 && memcmp(s, "a b\xe2\x80\x8b", 6) == 0, "trimming stops at U+200B");
    s = " \n";
    n = 2;
    trim_python(&s, &n);
    is_int((long long)n, 0, "nothing is left of white space");
    ok(!is_white_space(0x180e) && !is_white_space(0x1c) && is_python_space(0x1c) && is_white_space(0x85),
       "members of the sets");
}

static void test_normalizer(void)
{
    static const struct {
        normalize_kind kind;
        const char *in, *want; /* want NULL: unchanged */
    } cases[] = {
        {NORMALIZE_NFC, "plain", NULL},
        {NORMALIZE_NFC, "\xc3\xa9", NULL},
        {NORMALIZE_NFC, "", NULL},
        {NORMALIZE_NFC, "\xe4\xb8\xad", NULL},
        {NORMALIZE_NFC, "e\xcc\x81", "\xc3\xa9"},                                /* e + acute */
        {NORMALIZE_NFC, "\xe2\x84\xab", "\xc3\x85"},                             /* Angstrom sign */
        {NORMALIZE_NFC, "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"}, /* Hangul jamo */
        {NORMALIZE_NFC, "a\xcc\x81\xcc\xa3", "\xe1\xba\xa1\xcc\x81"},            /* marks are reordered */
        {NORMALIZE_NFC, "\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"},             /* composition exclusion grows */
        {NORMALIZE_NFC, "\xf0\x9d\x85\x9e", "\xf0\x9d\x85\x97\xf0\x9d\x85\xa5"}, /* and outside the BMP */
        {NORMALIZE_NFC, "\xce\x90", NULL},
        {NORMALIZE_NFC, "\xf0\xaf\xa0\x80", "\xe4\xb8\xbd"}, /* compatibility ideograph */
        {NORMALIZE_NFD, "\xc3\xa9", "e\xcc\x81"},
        {NORMALIZE_NFKC, "\xef\xac\x81", "fi"},
        {NORMALIZE_NFKD, "\xef\xac\x81\xc3\xa9", "fie\xcc\x81"},
        {NORMALIZE_NFD, "\xef\xac\x81", NULL},
        {NORMALIZE_NFKD, "a b", NULL},
        {NORMALIZE_PREPEND, "a b", "__a b"},
        {NORMALIZE_PREPEND, "", NULL},
        {NORMALIZE_REPLACE, " a  b", "__a____b"},
        {NORMALIZE_REPLACE, "ab", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *out;
        size_t n;
        normalizer z = {0};
        if (!ok(normalizer_add(&z, cases[i].kind, " ", "__", "test", NULL) == ST_OK &&
                    normalizer_run(&z, &out, &n, cases[i].in, strlen(cases[i].in), NULL) == ST_OK,
                "normalizer %zu", i))
            continue;
        normalizer_free(&z);
        const char *want = cases[i].want;
        ok(want ? out && n == strlen(want) && memcmp(out, want, n) == 0 : !out, "normalizer %zu: text", i);
        mem_free(out);
    }
}

int main(void)
{
    test_against_definition();
    test_code_points();
    test_broken();
    test_trim();
    test_normalizer();
    return tap_done();
}
