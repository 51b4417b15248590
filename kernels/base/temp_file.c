/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/temp_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"

static atomic_long fail_in;

void temp_file_test_fail_at(long n)
{
    atomic_store(&fail_in, n);
}

bool file_refused(atomic_long *calls)
{
    if (atomic_load(calls) == 0 || atomic_fetch_sub(calls, 1) != 1) return false;
    errno = EIO;
    return true;
}

static bool refused(void)
{
    return file_refused(&fail_in);
}

static status failed(const temp_file *d, const char *what, err *e)
{
    return err_set(e, ST_IO, "%s: %s: %s", path_tail(d->path), what, strerror(errno));
}

/* Returns the folder of a path in a new string. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return mem_strdup(".");
    if (slash == path) return mem_strdup("/");
    char *dir = mem_strdup(path);
    if (dir) dir[slash - path] = 0;
    return dir;
}

static status name_temp_file(temp_file *d, const char *path, err *e)
{
    char suffix[32];
    snprintf(suffix, sizeof suffix, ".%ld.part", (long)getpid());
    d->path = path_target(path); /* a symbolic link stays, and the file that it names is replaced */
    if (!d->path) return err_set(e, errno == ELOOP ? ST_IO : ST_NOMEM, "%s: %s", path_tail(path), strerror(errno));
    const size_t n = strlen(d->path);
    TRY(mem_alloc((void **)&d->part, n + sizeof suffix, 1, "file name", e));
    memcpy(d->part, d->path, n);
    memcpy(d->part + n, suffix, strlen(suffix) + 1);
    return ST_OK;
}

status temp_file_open(temp_file *d, const char *path, err *e)
{
    struct stat s;
    *d = (temp_file){.fd = -1};
    if (stat(path, &s) == 0 && !S_ISREG(s.st_mode)) return err_set(e, ST_IO, "%s: not a regular file", path_tail(path));
    TRY(name_temp_file(d, path, e));
    char *dir = folder_of(d->path);
    if (!dir) return err_set(e, ST_NOMEM, "%s: out of memory", path_tail(path));
    unlink(d->part); /* left by an earlier process with the same number */
    if (!refused()) d->fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (d->fd < 0 && !refused()) d->fd = open(d->part, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    mem_free(dir);
    return d->fd < 0 ? failed(d, "cannot create the file", e) : ST_OK;
}

status file_write_at(int fd, uint64_t at, const void *p, size_t n, const char *name, atomic_long *calls, err *e)
{
    const char *from = p;
    for (size_t done = 0; done < n;) {
        ssize_t k = file_refused(calls) ? -1 : pwrite(fd, from + done, n - done, (off_t)(at + done));
        if (k < 0 && errno == EINTR) continue;
        if (k == 0) errno = ENOSPC;
        if (k <= 0)
            return err_set(e, ST_IO, "%s: writing at byte %llu: %s", name, (unsigned long long)(at + done),
                           strerror(errno));
        done += (size_t)k;
    }
    return ST_OK;
}

status temp_file_write(temp_file *d, uint64_t at, const void *p, size_t n, err *e)
{
    return file_write_at(d->fd, at, p, n, path_tail(d->path), &fail_in, e);
}

/* Links an unnamed file under its temporary name. */
static bool name_part(const temp_file *d)
{
    char by_fd[64];
    snprintf(by_fd, sizeof by_fd, "/proc/self/fd/%d", d->fd);
    return access(d->part, F_OK) == 0 ||
           (!refused() && linkat(AT_FDCWD, by_fd, AT_FDCWD, d->part, AT_SYMLINK_FOLLOW) == 0);
}

/* Syncs the folder's entry. Failures are ignored, since a file system without this has no alternative. */
static void sync_folder(const temp_file *d)
{
    char *dir = folder_of(d->path);
    int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    mem_free(dir);
}

status temp_file_publish(temp_file *d, err *e)
{
    if (!name_part(d)) return failed(d, "cannot name the temporary file", e);
    if (refused() || rename(d->part, d->path) != 0) return failed(d, "cannot rename the temporary file", e);
    close(d->fd);
    d->fd = -1;
    return ST_OK;
}

status temp_file_commit(temp_file *d, uint64_t size, err *e)
{
    if (size > 0 && (refused() || ftruncate(d->fd, (off_t)size) != 0))
        return err_set(e, ST_IO, "%s: cannot set the size to %llu bytes: %s", path_tail(d->path),
                       (unsigned long long)size, strerror(errno));
    if (refused() || fsync(d->fd) != 0) return failed(d, "cannot write the file to the disk", e);
    TRY(temp_file_publish(d, e));
    sync_folder(d);
    return ST_OK;
}

void temp_file_close(temp_file *d)
{
    if (d->fd >= 0) {
        close(d->fd);
        unlink(d->part);
    }
    mem_free(d->path);
    mem_free(d->part);
    *d = (temp_file){.fd = -1};
}
