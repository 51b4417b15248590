/* SPDX-License-Identifier: MIT */
/* Files written by tests. */
#ifndef TESTS_UNIT_FILES_H
#define TESTS_UNIT_FILES_H

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Replaces a file by n bytes, accessible only to the user. */
static inline void write_file(const char *path, const void *p, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n || close(fd) != 0) {
        printf("Bail out! cannot write %s\n", path);
        exit(1);
    }
}

/* Removes a folder and the files in it. */
static inline void remove_dir(const char *dir)
{
    char path[4200];
    DIR *d = opendir(dir);
    for (struct dirent *f; d && (f = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", dir, f->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(dir);
}

#endif
