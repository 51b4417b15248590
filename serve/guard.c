/* SPDX-License-Identifier: MIT */
/* Access control: keys, Host and Origin. Web pages can send requests to this machine (CSRF), and their host names can
 * resolve to it (DNS rebinding), so both headers are checked. */
#include "config.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    if (stat(path, &st) != 0) return err_set(e, ST_IO, "--api-key-file %s: cannot read the file", path);
    if (st.st_mode & 077)
        return err_set(e, ST_USAGE, "--api-key-file %s: mode %03o lets others access the file; use chmod 600", path,
                       (unsigned)st.st_mode & 0777);
    TRY(file_read_text(&text, &size, path, KEYS_MAX_BYTES, e));
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
    if (r == ST_OK && *n == 0) r = err_set(e, ST_FORMAT, "--api-key-file %s: no keys found", path);
    memset(text, 0, size);
    mem_free(text);
    if (r == ST_OK) return r;
    mem_free(*out);
    *out = NULL;
    return r;
}

/* Compares in constant time. */
static bool same_sum(const char *a, const char *b)
{
    unsigned differ = 0;
    for (int i = 0; i < SHA256_HEX; i++) differ |= (unsigned)(a[i] ^ b[i]);
    return differ == 0;
}

const char *http_check_key(const http_options *o, const char *authorization)
{
    static const char bearer[] = "Bearer "; /* in any case: RFC 9110, 11.1 */
    char sum[SHA256_HEX];
    const char *found = NULL;
    if (o->n_keys == 0) return "";
    bool named = authorization && strncasecmp(authorization, bearer, sizeof bearer - 1) == 0;
    const char *secret = named ? authorization + sizeof bearer - 1 : "";
    sum_of(sum, secret + strspn(secret, " "));
    for (size_t i = 0; i < o->n_keys; i++) found = same_sum(o->keys[i].sum, sum) ? o->keys[i].name : found;
    return named ? found : NULL;
}

/* ---- names ---- */

static bool has_word(const char *words, const char *word, size_t n)
{
    for (size_t k; words && *words; words += k + (words[k] == ' ')) {
        k = strcspn(words, " ");
        if (k == n && strncasecmp(words, word, n) == 0) return true;
    }
    return false;
}

static void add_word(char out[HTTP_NAMES], const char *word)
{
    size_t at = strlen(out), n = strlen(word);
    if (n == 0 || at + n + 2 > HTTP_NAMES || has_word(out, word, n)) return;
    snprintf(out + at, HTTP_NAMES - at, "%s%s", at ? " " : "", word);
}

/* Adds an address, except for those of loopback, which are always accepted, and of a single link. */
static void add_address(char out[HTTP_NAMES], const struct sockaddr *a)
{
    char text[INET6_ADDRSTRLEN] = "", word[INET6_ADDRSTRLEN + 2];
    const struct sockaddr_in *v4 = (const void *)a;
    const struct sockaddr_in6 *v6 = (const void *)a;
    if (a->sa_family == AF_INET) {
        inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
        add_word(out, text);
    } else if (a->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) {
        inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
        snprintf(word, sizeof word, "[%s]", text);
        add_word(out, word);
    }
}

void http_own_names(char out[HTTP_NAMES], const char *host)
{
    char name[HOST_NAME_MAX + 1] = "";
    struct ifaddrs *all = NULL;
    out[0] = 0;
    if (strcmp(host, "0.0.0.0") != 0 && strcmp(host, "::") != 0) return;
    if (gethostname(name, sizeof name - 1) == 0 && !strpbrk(name, " :")) add_word(out, name);
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *x = all; x; x = x->ifa_next)
        if (x->ifa_addr && !(x->ifa_flags & IFF_LOOPBACK)) add_address(out, x->ifa_addr);
    freeifaddrs(all);
}

/* True if host[0, n) is one of the server's names. */
static bool is_own(const http_options *o, const char *host, size_t n)
{
    const char *const names[] = {o->host, "localhost", "127.0.0.1", "[::1]", o->host_name};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i] && strlen(names[i]) == n && strncasecmp(names[i], host, n) == 0) return true;
    return has_word(o->names, host, n);
}

/* Returns the length of NAME in NAME:PORT. */
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
