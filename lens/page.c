/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "lens/page.h"

#include <string.h>

#include "kernels/base/base64.h"
#include "kernels/base/sha256.h"

static const char page[] = {
#include "lens/page.inc"
    0};

static const char policy_mark[] = "<!--policy-->", data_mark[] = "<!--data-->";

const char *page_text(size_t *n)
{
    *n = sizeof page - 1;
    return page;
}

/* Writes 'sha256-...' of the text between two tags. */
static void sum_of(char out[64], const char *from, const char *to)
{
    const char *begin = strstr(page, from) + strlen(from), *end = strstr(begin, to);
    sha256 s;
    char hex[SHA256_HEX], text[48];
    uint8_t bytes[32];
    unsigned x;
    sha256_init(&s);
    sha256_add(&s, begin, (size_t)(end - begin));
    sha256_hex(&s, hex);
    for (size_t i = 0; i < sizeof bytes; i++) {
        sscanf(hex + 2 * i, "%2x", &x);
        bytes[i] = (uint8_t)x;
    }
    base64_write(text, bytes, sizeof bytes);
    snprintf(out, 64, "'sha256-%s'", text);
}

void page_policy(char out[PAGE_POLICY], bool served)
{
    char script[64], style[64];
    sum_of(script, "<script>", "</script>");
    sum_of(style, "<style>", "</style>");
    snprintf(out, PAGE_POLICY, "default-src 'none'; script-src %s; style-src %s; base-uri 'none'; form-action 'none'%s",
             script, style, served ? "; connect-src 'self'; frame-ancestors 'none'" : "");
}

static bool put(FILE *f, const char *from, const char *to)
{
    size_t n = (size_t)(to - from);
    return fwrite(from, 1, n, f) == n;
}

bool page_begin(FILE *f)
{
    char policy[PAGE_POLICY];
    const char *mark = strstr(page, policy_mark), *data = strstr(page, data_mark);
    page_policy(policy, false);
    return put(f, page, mark) &&
           fprintf(f, "<meta http-equiv=\"Content-Security-Policy\" content=\"%s\">", policy) > 0 &&
           put(f, mark + sizeof policy_mark - 1, data) &&
           fputs("<script type=\"application/x-ndjson\" id=\"data\">\n", f) >= 0;
}

/* Escapes '<', which could end the script element. In JSON it occurs only inside strings. */
bool page_line(FILE *f, const char *line, size_t n)
{
    for (const char *end = line + n; line < end;) {
        const char *at = memchr(line, '<', (size_t)(end - line));
        if (!put(f, line, at ? at : end)) return false;
        if (!at) break;
        if (fputs("\\u003c", f) < 0) return false;
        line = at + 1;
    }
    return true;
}

bool page_end(FILE *f)
{
    return fputs("</script>\n", f) >= 0 &&
           put(f, strstr(page, data_mark) + sizeof data_mark - 1, page + sizeof page - 1);
}
