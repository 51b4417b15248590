/* SPDX-License-Identifier: MIT */
/* The end of a file in the folder of `serve --prefix-disk`, its sum made right again where that is possible: what is
 * taken lies within the file. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "generate/prefix_disk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Makes the footer's sum right. */
static void seal(uint8_t *file, size_t size)
{
    prefix_footer f;
    if (size < sizeof f) return;
    memcpy(&f, file + (size - sizeof f), sizeof f);
    prefix_footer_seal(f.sum, &f);
    memcpy(file + (size - sizeof f), &f, sizeof f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    prefix_footer f;
    uint8_t *file;
    err e = {0};
    int fd = memfd_create("entry", MFD_CLOEXEC);
    if (fd < 0 || mem_alloc((void **)&file, size, 1, "file", &e) != ST_OK) abort();
    if (size) memcpy(file, data, size);
    seal(file, size);
    if (write(fd, file, size) != (ssize_t)size) abort();
    if (prefix_footer_read(&f, fd, &e) == ST_OK) {
        if (f.session_bytes + sizeof f != size || strlen(f.key) != SHA256_HEX - 1) abort();
    } else if (!e.msg[0]) {
        abort();
    }
    mem_free(file);
    close(fd);
    return 0;
}
