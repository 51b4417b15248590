/* SPDX-License-Identifier: MIT */
/* SHA-256: the standard's examples, and every way of cutting a text at the borders of its blocks. */
#include "config.h"

#include <string.h>

#include "kernels/base/sha256.h"
#include "tests/tap.h"

static const char *sum(const char *s, size_t first, size_t n)
{
    static char hex[SHA256_HEX];
    sha256 h;
    sha256_init(&h);
    sha256_add(&h, s, first);
    sha256_add(&h, s + first, n - first);
    sha256_hex(&h, hex);
    return hex;
}

int main(void)
{
    static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    static char many[1000];
    int bad = 0;
    is_str(sum("", 0, 0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "nothing");
    is_str(sum("abc", 1, 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "FIPS 180-4: abc");
    is_str(sum(two, 0, 56), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
           "FIPS 180-4: two blocks");
    sha256 h;
    char hex[SHA256_HEX];
    memset(many, 'a', sizeof many);
    sha256_init(&h);
    sha256_add(&h, many, 1);
    sha256_add(&h, NULL, 0);
    sha256_add(&h, many, sizeof many - 1);
    for (int i = 1; i < 1000; i++) sha256_add(&h, many, sizeof many);
    sha256_hex(&h, hex);
    is_str(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0", "FIPS 180-4: a million times a");
    for (size_t n = 0; n < 200; n++) {
        char whole[SHA256_HEX];
        memcpy(whole, sum(many, 0, n), sizeof whole);
        for (size_t first = 1; first <= n; first++) bad += strcmp(sum(many, first, n), whole) != 0;
    }
    is_int(bad, 0, "the same in whatever pieces it comes");
    return tap_done();
}
