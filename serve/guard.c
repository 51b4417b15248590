/* SPDX-License-Identifier: MIT */
/* Access: keys, and the names of hosts and origins. Pages of other sites can send requests to this machine, and a
 * name of theirs can be made to lead here; so both are checked. */
#include "config.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/sha256.h"
#include "serve/http.h"

enum { KEYS_MAX_BYTES = 1 << 20 };

static void sum_of(char out[SHA256_HEX], const char *secret)
{
    sha256 s;
    sha256_init(&s);
    sha256_add(&s, secret, strlen(secret));
    sha256_hex(&s, out);
}

void http_make_key(http_key *k, const char *name, const char *secret)
{
    *k = (http_key){0};
    snprintf(k->name, sizeof k->name, "%s", name);
    sum_of(k->sum, secret);
}

status http_read_keys(http_key **out, size_t *n, const char *path, err *e)
{
    struct stat st;
    char *text, *save = NULL;
    size_t size;
    *out = NULL;
    *n = 0;
    if (stat(path, &st) != 0) return err_set(e, ST_IO, "--api-key-file %s: cannot be read", path);
    if (st.st_mode & 077)
        return err_set(e, ST_USAGE, "--api-key-file %s: mode %03o, expected 0600: others can read it", path,
                       (unsigned)st.st_mode & 0777);
    TRY(file_read(&text, &size, path, KEYS_MAX_BYTES, e));
    status r = ST_OK;
    for (char *line = strtok_r(text, "\r\n", &save); line && r == ST_OK; line = strtok_r(NULL, "\r\n", &save)) {
        char *space = strchr(line, ' ');
        if (*line == '#') continue;
        if (!space || space == line || !space[1] || (size_t)(space - line) >= sizeof(*out)->name) {
            r = err_set(e, ST_FORMAT, "--api-key-file %s: line %zu, expected `name key`", path, *n + 1);
            break;
        }
        *space = 0;
        r = MEM_GROW(out, *n + 1, e);
        if (r == ST_OK) http_make_key(&(*out)[(*n)++], line, space + 1);
    }
    if (r == ST_OK && *n == 0) r = err_set(e, ST_FORMAT, "--api-key-file %s: no key in it", path);
    memset(text, 0, size);
    mem_free(text);
    if (r == ST_OK) return r;
    mem_free(*out);
    *out = NULL;
    return r;
}

/* In a time that does not tell where they differ. */
static bool same_sum(const char *a, const char *b)
{
    unsigned differ = 0;
    for (int i = 0; i < SHA256_HEX; i++) differ |= (unsigned)(a[i] ^ b[i]);
    return differ == 0;
}

const char *http_check_key(const http_options *o, const char *authorization)
{
    static const char bearer[] = "Bearer ";
    char sum[SHA256_HEX];
    const char *found = NULL;
    if (o->n_keys == 0) return "";
    bool named = authorization && strncmp(authorization, bearer, sizeof bearer - 1) == 0;
    sum_of(sum, named ? authorization + sizeof bearer - 1 : "");
    for (size_t i = 0; i < o->n_keys; i++) found = same_sum(o->keys[i].sum, sum) ? o->keys[i].name : found;
    return named ? found : NULL;
}

/* True if host[0, n) is one of the server's names. */
static bool is_own(const http_options *o, const char *host, size_t n)
{
    const char *const names[] = {o->host, "localhost", "127.0.0.1", "[::1]", o->host_name};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i] && strlen(names[i]) == n && strncasecmp(names[i], host, n) == 0) return true;
    return false;
}

/* Length of the name in NAME:PORT. */
static size_t name_length(const char *host)
{
    const char *end = *host == '[' ? strchr(host, ']') : NULL;
    return end ? (size_t)(end + 1 - host) : strcspn(host, ":");
}

bool http_check_host(const http_options *o, const char *host)
{
    return !host || is_own(o, host, name_length(host));
}

bool http_check_origin(const http_options *o, int port, const char *origin)
{
    char number[16];
    if (!origin || (o->cors && strcmp(origin, o->cors) == 0)) return true;
    if (strncmp(origin, "http://", 7) != 0) return false;
    const char *host = origin + 7;
    size_t n = name_length(host);
    snprintf(number, sizeof number, ":%d", port);
    return is_own(o, host, n) && strcmp(host + n, port == 80 && !host[n] ? "" : number) == 0;
}
