/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/ref/tier_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/temp_file.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/ops_tier.h"

static atomic_long fail_in;

void tier_test_fail_at(long n)
{
    atomic_store(&fail_in, n);
}

/* Opens a file without a name. If the system does not support this, creates one with a random name and removes it at
 * once. */
static int open_unnamed(const char *dir)
{
    if (file_refused(&fail_in)) return -1;
    int fd = open(dir, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
    char *path = path_join(dir, "kvasir-XXXXXX");
    fd = path ? mkstemp(path) : -1;
    if (fd >= 0) unlink(path);
    int why = errno;
    mem_free(path);
    errno = why;
    return fd;
}

/* True if a sector can be written past the cache and read back in two halves, as blocks are. */
static bool goes_direct(int fd, unsigned char *work)
{
    int flags = fcntl(fd, F_GETFL);
    const struct iovec half[] = {{work, TIER_SECTOR / 2}, {work + TIER_SECTOR / 2, TIER_SECTOR / 2}};
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) return false;
    memset(work, 0, TIER_SECTOR);
    if (pwrite(fd, work, TIER_SECTOR, 0) == TIER_SECTOR && preadv(fd, half, 2, 0) == TIER_SECTOR) return true;
    fcntl(fd, F_SETFL, flags);
    return false;
}

status tier_file_open(tier_file *f, const char *dir, int layer, bool direct, void *work, err *e)
{
    *f = (tier_file){.fd = -1};
    snprintf(f->name, sizeof f->name, "--kv-tier: %.60s: file of layer %d", path_tail(dir), layer);
    f->fd = open_unnamed(dir);
    if (f->fd < 0) return err_set(e, ST_IO, "%s: cannot create it: %s", f->name, strerror(errno));
    f->direct = direct && goes_direct(f->fd, work);
    return ST_OK;
}

void tier_file_close(tier_file *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

/* Drops earlier writes from the page cache and starts writing this one to the disk. */
static void behind(tier_file *f, uint64_t at, size_t n)
{
    if (f->direct) return;
    if (f->size) {
        sync_file_range(f->fd, (off_t)f->at, (off_t)f->size,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
        posix_fadvise(f->fd, (off_t)f->at, (off_t)f->size, POSIX_FADV_DONTNEED);
    }
    sync_file_range(f->fd, (off_t)at, (off_t)n, SYNC_FILE_RANGE_WRITE);
    f->at = at;
    f->size = n;
}

status tier_file_write(tier_file *f, uint64_t at, const void *p, size_t n, err *e)
{
    TRY(file_write_at(f->fd, at, p, n, f->name, &fail_in, e));
    behind(f, at, n);
    return ST_OK;
}

status tier_file_read(tier_file *f, reader *r, const read_job *jobs, size_t n, err *e)
{
    if (file_refused(&fail_in))
        return err_set(e, ST_IO, "%s: reading at byte %llu: %s", f->name, (unsigned long long)jobs[0].at,
                       strerror(errno));
    TRY(reader_run(r, jobs, n, f->name, e));
    if (!f->direct) posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
    return ST_OK;
}
