/* SPDX-License-Identifier: MIT */
/* The end of a file in the folder of `serve --prefix-disk`, its sum made right again where that is possible: what is
 * taken lies within the file. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "eval/prefix_disk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The footer with the sum of what is before it, if that is there. */
static void seal(uint8_t *file, size_t size)
{
    prefix_footer f;
    prefix_sum *sums;
    err e = {0};
    if (size < sizeof f) return;
    size_t before = size - sizeof f;
    memcpy(&f, file + before, sizeof f);
    if (f.n_sums > before / sizeof *sums) return;
    size_t list = f.n_sums * sizeof *sums;
    if (mem_alloc((void **)&sums, f.n_sums, sizeof *sums, "sums", &e) != ST_OK) abort();
    if (list) memcpy(sums, file + before - list, list);
    prefix_footer_seal(f.sum, &f, sums);
    memcpy(file + before, &f, sizeof f);
    mem_free(sums);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    prefix_footer f;
    prefix_sum *sums;
    uint8_t *file;
    err e = {0};
    int fd = memfd_create("entry", MFD_CLOEXEC);
    if (fd < 0 || mem_alloc((void **)&file, size, 1, "file", &e) != ST_OK) abort();
    if (size) memcpy(file, data, size);
    seal(file, size);
    if (write(fd, file, size) != (ssize_t)size) abort();
    if (prefix_footer_read(&f, &sums, fd, &e) == ST_OK) {
        if (f.session_bytes + f.n_sums * sizeof *sums + sizeof f != size || strlen(f.key) != SHA256_HEX - 1) abort();
    } else if (sums || !e.msg[0]) {
        abort();
    }
    mem_free(sums);
    mem_free(file);
    close(fd);
    return 0;
}
