/* SPDX-License-Identifier: MIT */
/* Search for vendor libraries opened at run time. They are not part of the driver, but of toolkits and of PyTorch. */
#include "config.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/library.h"

/* Adds the existing library folders of a prefix, including those of pip packages for its python3. */
static void add_folders(glob_t *all, const char *prefix, size_t len)
{
    static const char *const below[] = {"lib64", "lib", "targets/*/lib", "lib/python3*/*-packages/nvidia/*/lib"};
    char pattern[4096];
    if (len == 0 || len > sizeof pattern / 2) return;
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        snprintf(pattern, sizeof pattern, "%.*s/%s", (int)len, prefix, below[i]);
        glob(pattern, GLOB_APPEND, NULL, all);
    }
}

/* Returns the folders to search after those of the loader; free with globfree. */
static glob_t find_folders(void)
{
    static const char *const homes[] = {"CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"};
    const char *path = getenv("PATH");
    glob_t all = {};
    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++) {
        const char *home = getenv(homes[i]);
        if (home) add_folders(&all, home, strlen(home));
    }
    for (const char *p = path; p && *p;) { /* .../bin and .../lib have the same parent */
        size_t n = strcspn(p, ":"), up = n;
        while (up > 0 && p[up - 1] != '/') up--;
        if (up > 1) add_folders(&all, p, up - 1);
        p += n + (p[n] == ':');
    }
    add_folders(&all, "/usr/local/cuda", strlen("/usr/local/cuda"));
    return all;
}

static void *open_version(const char *stem, int version, const glob_t *folders)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.so.%d", stem, version);
    void *found = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    for (size_t i = 0; i < folders->gl_pathc && !found; i++) {
        snprintf(name, sizeof name, "%s/%s.so.%d", folders->gl_pathv[i], stem, version);
        found = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    return found;
}

void *cuda_library(const char *stem, int version, int oldest, int newest)
{
    glob_t folders = find_folders();
    void *found = open_version(stem, version, &folders);
    for (int v = newest; v >= oldest && !found; v--) found = v == version ? NULL : open_version(stem, v, &folders);
    globfree(&folders);
    return found;
}
