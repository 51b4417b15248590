/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/mem.h"

static status open_regular(int *fd, size_t *size, const char *path, err *e)
{
    struct stat s;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return err_set(e, ST_IO, "%s: %s", path, strerror(errno));
    if (fstat(*fd, &s) != 0 || !S_ISREG(s.st_mode)) {
        close(*fd);
        return err_set(e, ST_IO, "%s: not a regular file", path);
    }
    *size = (size_t)s.st_size;
    return ST_OK;
}

status file_map_open(file_map *m, const char *path, err *e)
{
    int fd;
    m->data = NULL;
    m->size = 0;
    size_t size;
    TRY(open_regular(&fd, &size, path, e));
    if (size == 0) {
        close(fd);
        return ST_OK;
    }
    void *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    int why = errno;
    close(fd);
    if (p == MAP_FAILED) return err_set(e, ST_IO, "%s: cannot map %zu bytes: %s", path, size, strerror(why));
    m->data = p;
    m->size = size;
    return ST_OK;
}

void file_map_close(file_map *m)
{
    if (m->data) munmap((void *)(uintptr_t)m->data, m->size);
    m->data = NULL;
    m->size = 0;
}

status file_read_stream(char **out, size_t *size, FILE *f, const char *name, size_t max, err *e)
{
    char *buf = NULL;
    size_t n = 0, cap = 0;
    status st = ST_OK;
    *out = NULL;
    *size = 0;
    do {
        TRY_GOTO(mem_room((void **)&buf, &cap, n + 65536, 1, name, e));
        n += fread(buf + n, 1, cap - n - 1, f);
        if (n > max) {
            st = err_set(e, ST_FORMAT, "%s: larger than the limit of %zu bytes", name, max);
            goto done;
        }
    } while (!feof(f) && !ferror(f));
    if (ferror(f)) {
        st = err_set(e, ST_IO, "%s: %s", name, strerror(errno));
        goto done;
    }
    buf[n] = 0;
    *out = buf;
    *size = n;
    buf = NULL;
done:
    mem_free(buf);
    return st;
}

status file_read(char **out, size_t *size, const char *path, size_t max, err *e)
{
    int fd;
    size_t n;
    *out = NULL;
    *size = 0;
    TRY(open_regular(&fd, &n, path, e));
    FILE *f = n <= max ? fdopen(fd, "rb") : NULL;
    if (!f) {
        int why = errno;
        close(fd);
        if (n > max) return err_set(e, ST_FORMAT, "%s: %zu bytes; the limit is %zu", path, n, max);
        return err_set(e, ST_IO, "%s: %s", path, strerror(why));
    }
    status st = file_read_stream(out, size, f, path, max, e);
    fclose(f);
    return st;
}

/* Opens standard input, or anything but a folder; a named pipe waits for its writer. */
static FILE *open_input(const char *path)
{
    struct stat s;
    const int fd = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    const bool folder = fd >= 0 && fstat(fd, &s) == 0 && S_ISDIR(s.st_mode);
    FILE *f = fd >= 0 && !folder ? fdopen(fd, "rb") : NULL;
    if (f || fd < 0) return f;
    const int why = folder ? EISDIR : errno == EINVAL ? EBADF : errno; /* EINVAL: not open for reading */
    close(fd);
    errno = why;
    return NULL;
}

/* Returns the name of an input in messages. */
static const char *input_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path_tail(path);
}

status file_read_input(char **out, size_t *size, const char *path, size_t max, err *e)
{
    FILE *f = open_input(path);
    *out = NULL;
    *size = 0;
    if (!f) return err_set(e, ST_IO, "%s: %s", input_name(path), strerror(errno));
    status st = file_read_stream(out, size, f, input_name(path), max, e);
    fclose(f);
    return st;
}

status file_read_text(char **out, size_t *size, const char *path, size_t max, err *e)
{
    TRY(file_read_input(out, size, path, max, e));
    const size_t mark = file_mark(*out, *size);
    memmove(*out, *out + mark, *size - mark + 1); /* with the NUL */
    *size -= mark;
    if (*size < 2 || (memcmp(*out, "\xff\xfe", 2) != 0 && memcmp(*out, "\xfe\xff", 2) != 0)) return ST_OK;
    mem_free(*out);
    *out = NULL;
    return err_set(e, ST_FORMAT, "%s: encoded as UTF-16; save it as UTF-8", input_name(path));
}

status file_read_at(int fd, uint64_t at, void *to, size_t n, const char *name, err *e)
{
    for (size_t done = 0; done < n;) {
        errno = 0;
        ssize_t k = pread(fd, (char *)to + done, n - done, (off_t)(at + done));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            return err_set(e, ST_IO, "%s: reading at byte %llu: %s", name, (unsigned long long)(at + done),
                           errno ? strerror(errno) : "unexpected end of file");
        done += (size_t)k;
    }
    return ST_OK;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

status file_each(const char *dir, bool (*wanted)(const char *name),
                 status (*visit)(void *ctx, const char *path, err *e), void *ctx, const char *name, size_t *n, err *e)
{
    struct dirent **file;
    int all = scandir(dir, &file, NULL, by_name);
    status st = ST_OK;
    *n = 0;
    if (all < 0) return err_set(e, ST_IO, "%s: %s", name, strerror(errno));
    for (int i = 0; i < all; i++) {
        char *path = NULL;
        if (st == ST_OK && wanted(file[i]->d_name)) {
            path = path_join(dir, file[i]->d_name);
            st = path ? visit(ctx, path, e) : err_set(e, ST_NOMEM, "out of memory");
            ++*n;
        }
        mem_free(path);
        free(file[i]);
    }
    free(file);
    return st;
}

status file_check_pointer(const void *data, size_t n, const char *name, err *e)
{
    static const char first[] = "version https://git-lfs.github.com/spec/";
    if (n < sizeof first - 1 || memcmp(data, first, sizeof first - 1) != 0) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: a Git LFS pointer, not the file itself; run `git lfs pull` in its folder",
                   path_tail(name));
}

size_t file_mark(const char *text, size_t n)
{
    return n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

status file_check_text(const char *text, size_t n, const char *name, err *e)
{
    const unsigned char *s = (const unsigned char *)text;
    TRY(file_check_pointer(text, n, name, e));
    if (file_mark(text, n))
        return err_set(e, ST_FORMAT, "%s: begins with a byte order mark; save it as UTF-8 without one",
                       path_tail(name));
    if (n >= 2 && (!s[0] || !s[1] || (s[0] == 0xff && s[1] == 0xfe) || (s[0] == 0xfe && s[1] == 0xff)))
        return err_set(e, ST_FORMAT, "%s: encoded as UTF-16 or UTF-32; save it as UTF-8 without a byte order mark",
                       path_tail(name));
    return ST_OK;
}

char *path_join(const char *dir, const char *name)
{
    size_t a = strlen(dir), b = strlen(name);
    char *p;
    if (mem_alloc((void **)&p, a + b + 2, 1, "path", NULL) != ST_OK) return NULL;
    memcpy(p, dir, a);
    if (a && dir[a - 1] != '/') p[a++] = '/';
    memcpy(p + a, name, b + 1);
    return p;
}

char *path_in_model(const char *model, const char *name)
{
    const char *slash = strrchr(model, '/');
    if (!file_exists(model)) return path_join(model, name);
    char *p = path_join(slash ? model : ".", name);
    if (p && slash) memcpy(p + (slash + 1 - model), name, strlen(name) + 1);
    return p;
}

/* Returns the path that the text of a symbolic link means, in a new string. */
static char *link_path(const char *path, const char *text)
{
    const char *slash = strrchr(path, '/');
    char *to = NULL;
    if (*text == '/' || !slash) return mem_strdup(text);
    char *dir = mem_strdup(path);
    if (dir) {
        dir[slash + 1 - path] = 0;
        to = path_join(dir, text);
    }
    mem_free(dir);
    return to;
}

char *path_target(const char *path)
{
    enum { MOST_LINKS = 40 }; /* as in Linux */
    char text[PATH_MAX], *at = mem_strdup(path);
    int links = 0;
    for (ssize_t n; at && (n = readlink(at, text, sizeof text - 1)) >= 0; links++) {
        text[n] = 0;
        char *to = links < MOST_LINKS ? link_path(at, text) : NULL;
        mem_free(at);
        at = to;
    }
    errno = links > MOST_LINKS ? ELOOP : ENOMEM; /* for NULL */
    return at;
}

const char *path_tail(const char *path)
{
    size_t n = strlen(path);
    if (n <= 100) return path;
    const char *s = strchr(path + n - 100, '/');
    return s && s[1] ? s + 1 : path + n - 100;
}

bool file_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

bool dir_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

status dir_make(const char *dir, err *e)
{
    char *path = mem_strdup(dir);
    if (!path) return err_set(e, ST_NOMEM, "out of memory");
    status st = ST_OK;
    for (char *p = path; st == ST_OK && p;) {
        p = strchr(p + 1, '/');
        if (p) *p = 0;
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            st = err_set(e, ST_IO, "%s: %s", path_tail(path), strerror(errno));
        if (p) *p = '/';
    }
    mem_free(path);
    return st;
}
