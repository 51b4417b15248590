/* SPDX-License-Identifier: MIT */
/* Files that a test writes. */
#ifndef TESTS_UNIT_FILES_H
#define TESTS_UNIT_FILES_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Replaces a file by n bytes, for the user alone. */
static inline void write_file(const char *path, const void *p, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n || close(fd) != 0) {
        printf("Bail out! cannot write %s\n", path);
        exit(1);
    }
}

#endif
