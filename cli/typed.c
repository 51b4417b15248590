/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "cli/typed.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>

#include "cli/output.h"
#include "kernels/base/mem.h"

enum { READ_BYTES = 4096 };

/* Mark after a pasted text. Source: xterm, Control Sequences, bracketed paste mode. */
#define PASTE_END "\033[201~"

status typed_input_more(typed_input *in, err *e)
{
    if (in->at) memmove(in->text, in->text + in->at, in->n - in->at);
    in->n -= in->at;
    in->at = 0;
    TRY(MEM_ROOM(&in->text, &in->cap, in->n + READ_BYTES, e));
    if (!cli_wait_input(STDIN_FILENO)) {
        in->n = 0; /* drops the typed text, like a terminal */
        return ST_INTERRUPTED;
    }
    ssize_t k = read(STDIN_FILENO, in->text + in->n, in->cap - in->n - 1);
    if (k < 0 && errno != EINTR) return err_set(e, ST_IO, "standard input: %s", strerror(errno));
    in->ended = k == 0;
    in->n += k > 0 ? (size_t)k : 0;
    return ST_OK;
}

/* Returns the bytes of the next character: 0 if they are not all read yet. */
static size_t next_char(const typed_input *in, utf8proc_int32_t *c)
{
    const uint8_t *p = (const uint8_t *)in->text + in->at;
    size_t n = in->n - in->at, need = 1;
    if (n && *p >= 0xc2) need = *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 1;
    if (n == 0 || (n < need && !in->ended)) return 0;
    utf8proc_ssize_t k = utf8proc_iterate(p, (utf8proc_ssize_t)n, c);
    if (k > 0) return (size_t)k;
    *c = 0xfffd;
    return 1;
}

status typed_read_char(typed_input *in, wchar_t *c, err *e)
{
    utf8proc_int32_t code = -1;
    size_t n;
    while (!(n = next_char(in, &code)) && !in->ended) TRY(typed_input_more(in, e));
    in->at += n;
    *c = (wchar_t)code;
    return ST_OK;
}

status typed_text_add(typed_text *t, wchar_t c, err *e)
{
    TRY(MEM_ROOM(&t->c, &t->cap, t->n + 1, e));
    t->c[t->n++] = c;
    return ST_OK;
}

static bool ends_paste(const typed_text *t)
{
    const size_t n = sizeof PASTE_END - 1;
    if (t->n < n) return false;
    for (size_t i = 0; i < n; i++)
        if (t->c[t->n - n + i] != (wchar_t)PASTE_END[i]) return false;
    return true;
}

status typed_read_paste(typed_input *in, typed_text *out, err *e)
{
    wchar_t c = 0, before;
    while (!ends_paste(out)) {
        before = c;
        TRY(typed_read_char(in, &c, e));
        if (c < 0) return ST_OK;
        if (c == '\n' && before == '\r') continue;
        if (c) TRY(typed_text_add(out, c == '\r' ? '\n' : c, e));
    }
    out->n -= sizeof PASTE_END - 1;
    return ST_OK;
}
