/* SPDX-License-Identifier: MIT */
/* Without libFuzzer a target replays its corpus, tests/fuzz/corpus/NAME for fuzz_NAME: a crash fails. */
#include "config.h"

#include <dirent.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_FILE = 1 << 24 };

static void replay(const char *dir, const char *name)
{
    char path[4096], *data;
    size_t n;
    err e = {0};
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path) return;
    if (!file_exists(path)) return;
    if (!is_ok(file_read(&data, &n, path, MAX_FILE, &e), &e, "%s", name)) return;
    LLVMFuzzerTestOneInput((const uint8_t *)data, n);
    mem_free(data);
}

int main(int argc, char **argv)
{
    char rel[256], dir[4096];
    const char *name = strstr(argv[0], "fuzz_");
    (void)argc;
    for (const char *next; name && (next = strstr(name + 1, "fuzz_"));) name = next;
    snprintf(rel, sizeof rel, "tests/fuzz/corpus/%s", name ? name + 5 : "");
    snprintf(dir, sizeof dir, "%s", tap_path(rel)); /* targets ask for paths too */
    struct dirent **list;
    int n = scandir(dir, &list, NULL, alphasort);
    ok(n > 2, "%d corpus files in %s", n - 2, rel);
    for (int i = 0; i < n; i++) {
        replay(dir, list[i]->d_name);
        free(list[i]);
    }
    if (n >= 0) free(list);
    return tap_done();
}
