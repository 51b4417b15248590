/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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
            st = err_set(e, ST_FORMAT, "%s: larger than the %zu bytes allowed", name, max);
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
        if (n > max) return err_set(e, ST_FORMAT, "%s: %zu bytes, at most %zu allowed", path, n, max);
        return err_set(e, ST_IO, "%s: %s", path, strerror(why));
    }
    status st = file_read_stream(out, size, f, path, max, e);
    fclose(f);
    return st;
}

status file_read_at(int fd, uint64_t at, void *to, size_t n, const char *name, err *e)
{
    for (size_t done = 0; done < n;) {
        errno = 0;
        ssize_t k = pread(fd, (char *)to + done, n - done, (off_t)(at + done));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            return err_set(e, ST_IO, "%s: reading at byte %llu: %s", name, (unsigned long long)(at + done),
                           errno ? strerror(errno) : "the file ends there");
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

status file_check_text(const char *text, size_t n, const char *name, err *e)
{
    const unsigned char *s = (const unsigned char *)text;
    TRY(file_check_pointer(text, n, name, e));
    if (n >= 3 && memcmp(s, "\xef\xbb\xbf", 3) == 0)
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
