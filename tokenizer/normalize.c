/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/normalize.h"

#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

#include "kernels/base/mem.h"

/* Characters below U+0300 are starters, compose with nothing in front of them and are their own
 * NFC: text of these alone needs no work. 0xCC is the lead byte of U+0300. */
static bool surely_nfc(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] >= 0xcc) return false;
    return true;
}

status normalize_nfc(char **out, size_t *n_out, const char *text, size_t n, err *e)
{
    utf8proc_int32_t *buf;
    const utf8proc_option_t how = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    *out = NULL;
    *n_out = 0;
    if (surely_nfc(text, n)) return ST_OK;
    /* No canonical decomposition has more than 4/3 code points for each byte of its character; one
     * more place because reencode writes a NUL behind its text. */
    size_t cap;
    TRY(size_mul(&cap, n, 2, "normalized text", e));
    TRY(MEM_NEW(&buf, cap + 1, e));
    utf8proc_ssize_t m =
        utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, buf, (utf8proc_ssize_t)cap, how);
    if (m >= 0 && (size_t)m <= cap) m = utf8proc_reencode(buf, m, how);
    if (m < 0 || (size_t)m > cap * sizeof *buf) {
        mem_free(buf);
        return err_set(e, ST_FORMAT, "NFC: %s", m < 0 ? utf8proc_errmsg(m) : "text grew too much");
    }
    if ((size_t)m == n && memcmp(buf, text, n) == 0) {
        mem_free(buf);
        return ST_OK;
    }
    *out = (char *)buf;
    *n_out = (size_t)m;
    return ST_OK;
}
