/* SPDX-License-Identifier: MIT */
/* File for a layer's rows: created without a name, read and written past the page cache. Private to kernels/ref. */
#ifndef KERNELS_REF_TIER_FILE_H
#define KERNELS_REF_TIER_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/reader.h"

/* Alignment of file offsets and lengths for O_DIRECT. */
enum { TIER_SECTOR = 4096 };

typedef struct {
    int fd;
    bool direct;       /* bypasses the page cache; offsets and lengths are multiples of TIER_SECTOR */
    char name[96];     /* for messages */
    uint64_t at, size; /* range that was written last and may still be in the cache */
} tier_file;

/* direct: all accesses are multiples of TIER_SECTOR. work: TIER_SECTOR bytes, aligned to it. */
status tier_file_open(tier_file *f, const char *dir, int layer, bool direct, void *work, err *e);
void tier_file_close(tier_file *f);
status tier_file_write(tier_file *f, uint64_t at, const void *p, size_t n, err *e);
/* Performs jobs, all of this file. */
status tier_file_read(tier_file *f, reader *r, const read_job *jobs, size_t n, err *e);

#endif
