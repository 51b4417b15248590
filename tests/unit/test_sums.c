/* SPDX-License-Identifier: MIT */
/* Checksums of blocks: every change of a block is found, by any number of threads, and holes are not read. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "kernels/base/sums.h"
#include "tests/tap.h"

enum { AT = 4096, PIECES = 3, USED = 7 * SUMS_BLOCK + 1000, STRIDE = 8 * SUMS_BLOCK, BYTES = AT + PIECES * STRIDE };
enum { N_SUMS = PIECES * 8 };

static unsigned char *file; /* mapped */
static uint64_t sum[N_SUMS];
static sums_part part[] = {{.at = AT, .n = 0, .used = 5},
                           {.at = AT, .n = PIECES, .stride = STRIDE, .used = USED, .sum = sum},
                           {.at = AT, .n = 4, .used = 0}};
static int fd;

/* Checks with 1 and 4 threads, with the file's holes and without: all agree. Returns the damaged block's number; -1:
 * none. */
static int64_t check(void)
{
    int64_t found[4];
    for (int i = 0; i < 4; i++) {
        err e = {0};
        sums_bad bad = {9, 9, 9};
        status st = sums_check(i < 2 ? fd : -1, part, 3, i % 2 ? 4 : 1, &bad, &e);
        found[i] = st == ST_OK ? -1 : st == ST_FORMAT && bad.part == 1 ? (int64_t)((bad.at - AT) / SUMS_BLOCK) : -2;
    }
    return found[0] == found[1] && found[0] == found[2] && found[0] == found[3] ? found[0] : -3;
}

static void flip(uint64_t at)
{
    file[at] ^= 0x10;
}

static void swap_blocks(uint64_t a, uint64_t b)
{
    unsigned char *p = file + AT + a * SUMS_BLOCK, *q = file + AT + b * SUMS_BLOCK;
    for (size_t i = 0; i < SUMS_BLOCK; i++) {
        unsigned char x = p[i];
        p[i] = q[i];
        q[i] = x;
    }
}

static void check_changes(void)
{
    is_int(check(), -1, "blocks as they were written");
    const uint64_t at[] = {0, SUMS_BLOCK - 1, SUMS_BLOCK, USED - 1, STRIDE, 2 * STRIDE + 5, 2 * STRIDE + USED - 1};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        flip(AT + at[i]);
        is_int(check(), (long long)(at[i] / SUMS_BLOCK), "a bit of byte %llu", (unsigned long long)at[i]);
        flip(AT + at[i]);
    }
    flip(AT + USED);
    is_int(check(), -1, "bytes between the pieces may be anything");
    flip(AT + USED);
    swap_blocks(1, 11);
    is_int(check(), 1, "two blocks that were swapped: the first one is reported");
    swap_blocks(1, 11);
    sum[20]++;
    is_int(check(), 20, "another checksum");
    sum[20]--;
    memcpy(file + AT + 2 * SUMS_BLOCK, file + AT + 3 * SUMS_BLOCK, SUMS_BLOCK);
    is_int(check(), 2, "a block in place of another one");
}

/* The whole file becomes a hole. */
static void make_hole(void)
{
    if (ftruncate(fd, 0) != 0 || ftruncate(fd, BYTES) != 0) abort();
}

static void check_holes(void)
{
    struct stat s;
    sums_bad bad;
    err e = {0};
    memset(sum, 0, sizeof sum);
    make_hole();
    is_ok(sums_check(fd, part, 3, 2, &bad, &e), &e, "holes");
    ok(fstat(fd, &s) == 0 && s.st_blocks == 0, "are not read");
    is_int((long long)sums_of(file, 1000), 0, "zeros have the checksum 0");
    memset(file, 0, BYTES);
    is_int(check(), -1, "zeros that were written");
    make_hole();
    flip(AT + STRIDE + 3 * SUMS_BLOCK + 77);
    is_int(check(), 11, "a byte in a hole");
    make_hole();
    sum[4] = 1;
    is_int(check(), 4, "a hole in place of a block");
}

int main(void)
{
    sums_bad bad;
    err e = {0};
    ok(sums_of("kvasir", 6) == 0x6129f9e87037f3b6u, "a known checksum: XXH3_64bits of xxHash 0.8");
    fd = memfd_create("sums", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, BYTES) != 0) return tap_skip_all("no file in memory");
    file = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED) return tap_skip_all("the file is not mapped");
    part[0].p = part[1].p = part[2].p = file + AT;
    for (size_t i = 0; i < BYTES; i++) file[i] = (unsigned char)(i * 2654435761u >> 13);
    for (int g = 0; g < PIECES; g++) sums_make(sum + 8 * g, file + AT + g * STRIDE, USED, 2, NULL);
    is_int((long long)sums_count(PIECES, USED), N_SUMS, "eight blocks a piece");
    check_changes();
    check_holes();
    mem_test_fail_at(1);
    status st = sums_check(fd, part, 3, 2, &bad, &e);
    mem_test_fail_at(0);
    is_int(st, ST_NOMEM, "no memory");
    munmap(file, BYTES);
    close(fd);
    return tap_done();
}
