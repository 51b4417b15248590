/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/results.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "eval/prediction.h"
#include "cli/ranks.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum { MAX_DEPTH = 64, FLAGS = JSON_COMPACT | JSON_REAL_PRECISION(17) };
static const size_t MAX_FILE_BYTES = (size_t)1 << 32;
/* First bytes of every results file. */
static const char mark[] = "{\"kvasir\":";

struct results {
    char *path; /* NULL: in memory only */
    int fd;
    off_t size; /* size of the complete lines */
    const char *const *identity;
    json_t *by_id;  /* identity -> line */
    json_t *config; /* of results_options */
};

/* ---- differences ---- */

static void show_value(const json_t *j, char out[48])
{
    char *text = j ? json_dumps(j, JSON_ENCODE_ANY | FLAGS) : NULL;
    snprintf(out, 48, "%.40s%s", text ? text : "missing", text && strlen(text) > 40 ? "..." : "");
    free(text);
}

/* Continues `path` at offset n. */
static bool differ(const json_t *a, const json_t *b, char *path, size_t n, char *left, char *right);

static bool differ_in(const json_t *a, const json_t *b, const json_t *keys, char *path, size_t n, char *left,
                      char *right)
{
    const char *key;
    json_t *unused;
    json_object_foreach((json_t *)(uintptr_t)keys, key, unused)
    {
        size_t k = (size_t)snprintf(path + n, 96 - n, "%s%.40s", n ? "." : "", key);
        if (n + k >= 95) k = 95 - n;
        if (differ(json_object_get(a, key), json_object_get(b, key), path, n + k, left, right)) return true;
    }
    path[n] = 0;
    return false;
}

static bool differ(const json_t *a, const json_t *b, char *path, size_t n, char *left, char *right)
{
    if (json_equal(a, b)) return false;
    if (json_is_object(a) && json_is_object(b))
        return differ_in(a, b, a, path, n, left, right) || differ_in(a, b, b, path, n, left, right);
    for (size_t i = 0; json_is_array(a) && json_is_array(b); i++) {
        const json_t *x = json_array_get(a, i), *y = json_array_get(b, i);
        if (!x && !y) break;
        size_t k = (size_t)snprintf(path + n, 96 - n, "[%zu]", i);
        if (n + k >= 95) k = 95 - n;
        if (differ(x, y, path, n + k, left, right)) return true;
    }
    show_value(a, left);
    show_value(b, right);
    return true;
}

bool results_difference(const json_t *a, const json_t *b, char path[96], char left[48], char right[48])
{
    path[0] = 0;
    return differ(a, b, path, 0, left, right);
}

/* ---- identity ---- */

/* Returns the values of the identity as text (free); NULL: a member is missing, or out of memory. */
static char *identity_of(const results *r, const json_t *line)
{
    json_t *list = json_array();
    bool whole = list != NULL;
    for (size_t i = 0; r->identity[i]; i++) {
        json_t *value = json_object_get(line, r->identity[i]);
        if (!value || json_array_append(list, value) != 0) whole = false;
    }
    char *text = whole ? json_dumps(list, FLAGS) : NULL;
    json_decref(list);
    return text;
}

const json_t *results_find(const results *r, json_t *like)
{
    char *id = identity_of(r, like);
    const json_t *found = id ? json_object_get(r->by_id, id) : NULL;
    free(id);
    json_decref(like);
    return found;
}

json_t *results_list(const results *r)
{
    const char *id;
    json_t *line, *list = json_array();
    json_object_foreach(r->by_id, id, line)
    {
        if (json_array_append(list, line) == 0) continue;
        json_decref(list);
        return NULL;
    }
    return list;
}

json_t *results_config(const results *r)
{
    return json_incref(r->config);
}

/* Returns identity_of, or an error if it is NULL. */
static status need_identity(char **id, const results *r, const json_t *line, err *e)
{
    *id = identity_of(r, line);
    return *id ? ST_OK : err_set(e, ST_FORMAT, "a result lacks '%s' or another key of its identity", r->identity[0]);
}

/* Indexes a line by its identity. The line is borrowed. */
static status remember(results *r, const char *id, json_t *line, err *e)
{
    return json_object_set(r->by_id, id, line) == 0 ? ST_OK : err_set(e, ST_NOMEM, "out of memory for the results");
}

/* ---- writing ---- */

static status write_failed(results *r, err *e)
{
    int why = errno;
    if (ftruncate(r->fd, r->size) != 0) why = errno;
    return err_set(e, ST_IO, "-o %s: %s", path_tail(r->path), strerror(why));
}

/* Writes the line and a newline, and syncs the file. */
static status write_line(results *r, const json_t *line, err *e)
{
    char *text = json_dumps(line, FLAGS);
    if (!text) return err_set(e, ST_NOMEM, "out of memory for the results");
    size_t n = strlen(text), done = 0;
    text[n++] = '\n'; /* replaces the NUL */
    while (done < n) {
        ssize_t k = pwrite(r->fd, text + done, n - done, r->size + (off_t)done);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) break;
        done += (size_t)k;
    }
    free(text);
    if (done < n || fsync(r->fd) != 0) return write_failed(r, e);
    r->size += (off_t)n;
    return ST_OK;
}

status results_add(results *r, json_t *line, err *e)
{
    char *id = NULL;
    status st = line ? need_identity(&id, r, line, e) : err_set(e, ST_NOMEM, "out of memory for the results");
    if (st == ST_OK && json_object_get(r->by_id, id)) st = err_set(e, ST_USAGE, "duplicate result: %.100s", id);
    if (st == ST_OK && r->fd >= 0) st = write_line(r, line, e);
    if (st == ST_OK) st = remember(r, id, line, e);
    free(id);
    json_decref(line);
    return st;
}

/* Syncs the directory entry of a new file. */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd); /* some file systems do not support this; the file itself is synced in any case */
        close(fd);
    }
    free(dir);
}

static status write_head(results *r, const results_options *o, err *e)
{
    json_t *head = json_pack("{s:s, s:O, s:O}", "kvasir", o->command, "config", (json_t *)(uintptr_t)o->config,
                             "started", (json_t *)(uintptr_t)o->started);
    if (!head) return err_set(e, ST_NOMEM, "out of memory for the results");
    r->size = 0;
    status st = ftruncate(r->fd, 0) == 0 ? write_line(r, head, e) : write_failed(r, e);
    json_decref(head);
    sync_folder(r->path);
    return st;
}

/* ---- reading ---- */

static status check_head(const results *r, const results_options *o, const json_t *head, err *e)
{
    char path[96], here[48], there[48];
    const char *command = json_string_value(json_object_get(head, "kvasir"));
    const json_t *config = json_object_get(head, "config");
    if (!command || !json_is_object(config))
        return err_set(e, ST_USAGE, "-o %s: not a results file", path_tail(r->path));
    if (strcmp(command, o->command) != 0)
        return err_set(e, ST_USAGE, "-o %s: results of '%.40s'", path_tail(r->path), command);
    if (!results_difference(config, o->config, path, there, here)) return ST_OK;
    return err_set(e, ST_USAGE, "-o %.80s: results of another run: '%s' is %.32s in the file, %.32s now",
                   path_tail(r->path), path, there, here);
}

/* Adds a result of the file, unless one with the same identity exists. */
static status read_result(results *r, json_t *j, err *e)
{
    char *id;
    TRY(need_identity(&id, r, j, e));
    status st = json_object_get(r->by_id, id) ? ST_OK : remember(r, id, j, e);
    free(id);
    return st;
}

static status read_lines(results *r, const results_options *o, const char *text, size_t n, err *e)
{
    line_reader lines = {.name = r->path, .s = text, .size = n};
    const char *line;
    size_t len;
    for (bool head = true; next_line(&lines, &line, &len); head = false) {
        char where[128];
        json_t *j;
        err inner = {0};
        snprintf(where, sizeof where, "-o %.90s line %zu", path_tail(r->path), lines.number);
        TRY(json_parse_data(&j, line, len, where, MAX_DEPTH, e));
        status st = head ? check_head(r, o, j, e) : read_result(r, j, &inner);
        json_decref(j);
        if (st != ST_OK) return err_set(e, st, "%s: %.100s", where, inner.msg);
    }
    return ST_OK;
}

/* Reads the file. Text after its last newline is an incomplete line and is removed. */
static status read_file(results *r, const results_options *o, err *e)
{
    char *text = NULL;
    size_t n = 0, m = sizeof mark - 1;
    if (r->fd >= 0) TRY(file_read(&text, &n, r->path, MAX_FILE_BYTES, e));
    TRY(ranks_broadcast_text(o->ranks, &text, &n, e));
    status st = memcmp(text, mark, n < m ? n : m) == 0
                    ? ST_OK
                    : err_set(e, ST_USAGE, "-o %s: not a results file", path_tail(r->path));
    const char *end = n ? memrchr(text, '\n', n) : NULL;
    r->size = end ? (off_t)(end - text) + 1 : 0;
    if (st == ST_OK && end) st = read_lines(r, o, text, (size_t)r->size, e);
    mem_free(text);
    if (st != ST_OK || r->fd < 0) return st;
    if (!end) return write_head(r, o, e);
    return (size_t)r->size == n || ftruncate(r->fd, r->size) == 0 ? ST_OK : write_failed(r, e);
}

static status open_file(results *r, const results_options *o, err *e)
{
    struct stat s;
    if (strcmp(o->path, "-") == 0)
        return err_set(e, ST_USAGE,
                       "-o -: name a file, which a later run can continue; --json - writes to standard output");
    if (!(r->path = mem_strdup(o->path))) return err_set(e, ST_NOMEM, "out of memory");
    if (o->ranks && o->ranks->rank > 0) return read_file(r, o, e);
    r->fd = open(r->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (r->fd < 0 || fstat(r->fd, &s) != 0) return err_set(e, ST_IO, "-o %s: %s", path_tail(r->path), strerror(errno));
    if (!S_ISREG(s.st_mode)) return err_set(e, ST_IO, "-o %s: not a regular file", path_tail(r->path));
    if (flock(r->fd, LOCK_EX | LOCK_NB) != 0)
        return err_set(e, ST_IO, "-o %s: %s", path_tail(r->path),
                       errno == EWOULDBLOCK ? "another run is writing it" : strerror(errno));
    return read_file(r, o, e);
}

status results_open(results **out, const results_options *o, err *e)
{
    results *r;
    *out = NULL;
    TRY(MEM_NEW(&r, 1, e));
    *r = (results){.fd = -1,
                   .identity = o->identity,
                   .by_id = json_object(),
                   .config = json_incref((json_t *)(uintptr_t)o->config)};
    status st = r->by_id ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
    if (st == ST_OK && o->path) st = open_file(r, o, e);
    if (st != ST_OK) results_close(r);
    else *out = r;
    return st;
}

void results_close(results *r)
{
    if (!r) return;
    if (r->fd >= 0) close(r->fd);
    json_decref(r->by_id);
    json_decref(r->config);
    mem_free(r->path);
    mem_free(r);
}

size_t results_count(const results *r)
{
    return json_object_size(r->by_id);
}

double results_number(const json_t *line, const char *key)
{
    const json_t *j = json_object_get(line, key);
    return json_is_number(j) ? json_number_value(j) : (double)NAN;
}

json_t *results_real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

json_t *results_append(json_t *list, json_t *x)
{
    if (json_array_append_new(list, x) == 0) return list;
    json_decref(list);
    return NULL;
}

json_t *results_reals(const double *x, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) list = results_append(list, results_real(x[i]));
    return list;
}

json_t *results_merge(json_t *o, json_t *more)
{
    bool good = o && more && json_object_update(o, more) == 0;
    json_decref(more);
    if (good) return o;
    json_decref(o);
    return NULL;
}
