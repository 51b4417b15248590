/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "generate/prefix_disk.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/temp_file.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"

#define FOOTER_MAGIC    "kvasir prefix\n"
#define BYTE_ORDER_MARK 0x01020304u
#define NS              1000000000u /* nanoseconds per second */

enum { PIECE = 1 << 20 };

struct prefix_disk {
    char *dir;
    prefix_log log;
    int fd;                  /* of the folder; writers hold a shared lock on it */
    bool scanned, settled;   /* scanned at least once; any further change will change the folder's time */
    struct timespec changed; /* modification time of the folder at the last scan */
};

/* ---- names ---- */

void prefix_disk_name(char out[SHA256_HEX], const prefix_name *name)
{
    sha256 sum;
    sha256_init(&sum);
    sha256_add(&sum, name->key, strlen(name->key));
    sha256_add(&sum, name->ids, name->n * sizeof *name->ids);
    sha256_hex(&sum, out);
}

static bool is_hex(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isdigit((unsigned char)text[i]) && !(text[i] >= 'a' && text[i] <= 'f')) return false;
    return true;
}

/* True for the names of entries. is_part: of temporary files left by an interrupted write. */
static bool is_name(const char *text)
{
    return is_hex(text, strnlen(text, SHA256_HEX)) && strlen(text) == SHA256_HEX - 1;
}

static bool is_part(const char *text)
{
    size_t n = strlen(text);
    return n > SHA256_HEX + 5 && text[SHA256_HEX - 1] == '.' && is_hex(text, SHA256_HEX - 1) &&
           strcmp(text + n - 5, ".part") == 0;
}

void prefix_log_line(const prefix_log *log, const char *format, ...)
{
    char line[640];
    va_list arg;
    if (!log->line) return;
    int n = snprintf(line, sizeof line, "%s: ", log->name);
    va_start(arg, format);
    vsnprintf(line + n, sizeof line - (size_t)n, format, arg);
    va_end(arg);
    log->line(log->ctx, line);
}

static void log_entry(const prefix_disk *d, const char *name, const char *what)
{
    prefix_log_line(&d->log, "%.16s...: %s", name, what);
}

/* ---- footers ---- */

void prefix_footer_seal(char out[72], const prefix_footer *f)
{
    prefix_footer zero = *f;
    sha256 sum;
    memset(zero.sum, 0, sizeof zero.sum);
    sha256_init(&sum);
    sha256_add(&sum, &zero, sizeof zero);
    memset(out, 0, 72);
    sha256_hex(&sum, out);
}

status prefix_footer_read(prefix_footer *f, int fd, err *e)
{
    char sum[72];
    struct stat s;
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) return err_set(e, ST_FORMAT, "not a regular file");
    uint64_t size = (uint64_t)s.st_size;
    if (size < sizeof *f || file_read_at(fd, size - sizeof *f, f, sizeof *f, "footer", NULL) != ST_OK ||
        memcmp(f->magic, FOOTER_MAGIC, sizeof FOOTER_MAGIC) != 0)
        return err_set(e, ST_FORMAT, "damaged: no footer");
    if (f->version != PREFIX_DISK_VERSION || f->order != BYTE_ORDER_MARK)
        return err_set(e, ST_FORMAT, "version %u, expected %d", (unsigned)f->version, PREFIX_DISK_VERSION);
    prefix_footer_seal(sum, f);
    if (memcmp(sum, f->sum, sizeof sum) != 0 || f->session_bytes != size - sizeof *f || !is_name(f->key))
        return err_set(e, ST_FORMAT, "damaged: the footer");
    return ST_OK;
}

/* ---- entries ---- */

static int open_at(const prefix_disk *d, const char *name)
{
    return openat(d->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/* Opens the session in a file and copies its key to `key`. */
static status open_entry(session_file **out, char key[SHA256_HEX], const prefix_disk *d, const char *name, err *e)
{
    prefix_footer f;
    *out = NULL;
    int fd = open_at(d, name);
    if (fd < 0) return err_set(e, ST_IO, "%s", strerror(errno));
    status st = prefix_footer_read(&f, fd, e);
    if (st != ST_OK) {
        close(fd);
        return st;
    }
    memcpy(key, f.key, SHA256_HEX);
    return session_file_take(out, fd, name, f.session_bytes, e);
}

status prefix_disk_read(prefix_disk *d, const prefix_name *name, session_file **out, err *e)
{
    char file[SHA256_HEX], key[SHA256_HEX];
    prefix_disk_name(file, name);
    return open_entry(out, key, d, file, e);
}

void prefix_disk_touch(prefix_disk *d, const prefix_name *name, uint64_t used)
{
    char file[SHA256_HEX];
    const struct timespec at = {(time_t)(used / NS), (long)(used % NS)};
    prefix_disk_name(file, name);
    (void)utimensat(d->fd, file, (const struct timespec[]){at, at}, AT_SYMLINK_NOFOLLOW);
}

void prefix_disk_remove(prefix_disk *d, const prefix_name *name, const char *why)
{
    char file[SHA256_HEX];
    prefix_disk_name(file, name);
    if (why) log_entry(d, file, why);
    (void)unlinkat(d->fd, file, 0);
}

/* ---- writing ---- */

static status copy(temp_file *d, int fd, const prefix_extent *x, unsigned char *piece, err *e)
{
    for (off_t at = x->at; at < x->end;) {
        size_t n = x->end - at < PIECE ? (size_t)(x->end - at) : PIECE;
        TRY(file_read_at(fd, (uint64_t)at, piece, n, "the file in memory", e));
        TRY(temp_file_write(d, (uint64_t)at, piece, n, e));
        at += (off_t)n;
    }
    return ST_OK;
}

static status write_all(temp_file *d, const char *key, int fd, uint64_t bytes, const prefix_extent *written,
                        size_t n_written, err *e)
{
    prefix_footer f = {.version = PREFIX_DISK_VERSION, .order = BYTE_ORDER_MARK, .session_bytes = bytes};
    unsigned char *piece;
    status st = mem_alloc((void **)&piece, PIECE, 1, "piece of an entry", e);
    for (size_t i = 0; i < n_written && st == ST_OK; i++) st = copy(d, fd, &written[i], piece, e);
    mem_free(piece);
    memcpy(f.magic, FOOTER_MAGIC, sizeof FOOTER_MAGIC);
    memcpy(f.key, key, SHA256_HEX);
    prefix_footer_seal(f.sum, &f);
    if (st == ST_OK) st = temp_file_write(d, bytes, &f, sizeof f, e);
    return st == ST_OK ? temp_file_commit(d, bytes + sizeof f, e) : st;
}

static char *path_of(const prefix_disk *d, const prefix_name *name, err *e)
{
    char *path = NULL;
    size_t n = strlen(d->dir);
    if (MEM_NEW(&path, n + 1 + SHA256_HEX, e) != ST_OK) return NULL;
    memcpy(path, d->dir, n);
    path[n] = '/';
    prefix_disk_name(path + n + 1, name);
    return path;
}

status prefix_disk_write(prefix_disk *d, const prefix_name *name, int fd, const prefix_extent *written,
                         size_t n_written, size_t *bytes, err *e)
{
    struct stat s;
    temp_file temp = {.fd = -1};
    *bytes = 0;
    if (fstat(fd, &s) != 0) return err_set(e, ST_IO, "%s", strerror(errno));
    char *path = path_of(d, name, e);
    status st = path ? ST_OK : ST_NOMEM;
    (void)flock(d->fd, LOCK_SH); /* without locks only a temporary file can be lost */
    if (st == ST_OK) st = temp_file_open(&temp, path, e);
    if (st == ST_OK) st = write_all(&temp, name->key, fd, (uint64_t)s.st_size, written, n_written, e);
    if (st == ST_OK && stat(path, &s) == 0) *bytes = (size_t)s.st_blocks * 512;
    temp_file_close(&temp);
    (void)flock(d->fd, LOCK_UN);
    mem_free(path);
    return st;
}

/* ---- the folder ---- */

static status open_folder(prefix_disk *d, const char *dir, const char *name, err *e)
{
    struct stat s;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return err_set(e, ST_IO, "%s: %.200s: %s", name, dir, strerror(errno));
    d->fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->fd < 0 || fstat(d->fd, &s) != 0) return err_set(e, ST_IO, "%s: %.200s: %s", name, dir, strerror(errno));
    if (s.st_uid != geteuid() || (s.st_mode & 077) != 0)
        return err_set(e, ST_USAGE, "%s: %.200s: mode %04o, expected 0700 and owned by you, since it holds prompts",
                       name, dir, (unsigned)s.st_mode & 07777);
    if (faccessat(d->fd, ".", W_OK | X_OK, AT_EACCESS) != 0)
        return err_set(e, ST_IO, "%s: %.200s: not writable: %s", name, dir, strerror(errno));
    return ST_OK;
}

status prefix_disk_check(const char *dir, const char *name, err *e)
{
    prefix_disk d = {.fd = -1};
    status st = open_folder(&d, dir, name, e);
    if (d.fd >= 0) close(d.fd);
    return st;
}

static uint64_t ns_of(const struct timespec *t)
{
    return (uint64_t)t->tv_sec * NS + (uint64_t)t->tv_nsec;
}

/* Reports an entry to found->entry, or returns the reason why it is invalid. */
static status check_file(prefix_disk *d, const char *file, const prefix_found *found, err *e)
{
    char key[SHA256_HEX], right[SHA256_HEX];
    session_file *f;
    struct stat s;
    size_t n;
    if (fstatat(d->fd, file, &s, AT_SYMLINK_NOFOLLOW) != 0) return err_set(e, ST_IO, "%s", strerror(errno));
    TRY(open_entry(&f, key, d, file, e));
    prefix_name name = {.key = key, .ids = session_file_ids(f, &n)};
    name.n = n > 0 ? n - 1 : 0;
    prefix_disk_name(right, &name);
    status st = ST_OK;
    if (name.n == 0 || strcmp(right, file) != 0) st = err_set(e, ST_FORMAT, "damaged: name of another entry");
    else if (!found->entry(found->ctx, &name, (size_t)s.st_blocks * 512, ns_of(&s.st_mtim)))
        st = err_set(e, ST_NOMEM, "out of memory");
    session_file_close(f);
    return st;
}

static DIR *list(const prefix_disk *d)
{
    int fd = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir && fd >= 0) close(fd);
    return dir;
}

/* Removes temporary files that no process is writing. */
static void remove_parts(prefix_disk *d)
{
    DIR *dir = list(d);
    if (dir && flock(d->fd, LOCK_EX | LOCK_NB) == 0) {
        for (struct dirent *x; (x = readdir(dir));)
            if (is_part(x->d_name)) unlinkat(d->fd, x->d_name, 0);
        (void)flock(d->fd, LOCK_UN);
    }
    if (dir) closedir(dir);
}

/* True if the store already has a file. */
static bool has_file(const prefix_disk *d, const char *file, const prefix_found *found)
{
    struct stat s;
    if (fstatat(d->fd, file, &s, AT_SYMLINK_NOFOLLOW) != 0) return false;
    return found->has(found->ctx, file, (size_t)s.st_blocks * 512, ns_of(&s.st_mtim));
}

static void scan(prefix_disk *d, const prefix_found *found)
{
    size_t foreign = 0;
    DIR *dir = list(d);
    if (!dir) return;
    for (struct dirent *x; (x = readdir(dir));) {
        err e = {0};
        if (!is_name(x->d_name)) {
            foreign += !is_part(x->d_name) && strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0;
        } else if (!has_file(d, x->d_name, found) && check_file(d, x->d_name, found, &e) != ST_OK) {
            bool damaged = e.code != ST_IO && e.code != ST_NOMEM;
            if (damaged || !d->scanned) log_entry(d, x->d_name, e.msg);
            if (damaged) unlinkat(d->fd, x->d_name, 0);
        }
    }
    closedir(dir);
    if (foreign && !d->scanned) prefix_log_line(&d->log, "ignoring %zu files that are not entries", foreign);
    d->scanned = true;
}

/* True if t is more than a second ago. File times have the resolution of a tick, so two changes in one tick have the
 * same time. */
static bool is_long_ago(const struct timespec *t)
{
    return ns_of(t) + NS < (uint64_t)clock_real_ns();
}

bool prefix_disk_scan(prefix_disk *d, const prefix_found *found)
{
    struct stat s;
    if (fstat(d->fd, &s) != 0) return false;
    if (d->scanned && d->settled && ns_of(&s.st_mtim) == ns_of(&d->changed)) return false;
    d->changed = s.st_mtim;
    d->settled = is_long_ago(&s.st_mtim);
    scan(d, found);
    return true;
}

status prefix_disk_open(prefix_disk **out, const char *dir, const prefix_log *log, const prefix_found *found, err *e)
{
    prefix_disk *d;
    *out = NULL;
    TRY(MEM_NEW(&d, 1, e));
    d->fd = -1;
    d->log = *log;
    d->dir = mem_strdup(dir);
    status st = d->dir ? open_folder(d, dir, log->name, e) : err_set(e, ST_NOMEM, "out of memory");
    if (st != ST_OK) {
        prefix_disk_close(d);
        return st;
    }
    remove_parts(d);
    (void)prefix_disk_scan(d, found);
    *out = d;
    return ST_OK;
}

void prefix_disk_close(prefix_disk *d)
{
    if (!d) return;
    if (d->fd >= 0) close(d->fd);
    mem_free(d->dir);
    mem_free(d);
}
