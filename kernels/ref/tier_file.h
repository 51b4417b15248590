/* SPDX-License-Identifier: MIT */
/* The file below a layer's rows: made without a name, written and read past the page cache. Inside of kernels/ref. */
#ifndef KERNELS_REF_TIER_FILE_H
#define KERNELS_REF_TIER_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/reader.h"

/* What O_DIRECT wants of places in the file and of lengths. */
enum { TIER_SECTOR = 4096 };

typedef struct {
    int fd;
    bool direct;       /* past the page cache; lengths and places are multiples of TIER_SECTOR */
    char name[96];     /* for messages */
    uint64_t at, size; /* what was written last and may still be in the cache */
} tier_file;

/* direct: it is used in multiples of TIER_SECTOR. work: TIER_SECTOR bytes at a multiple of it. */
status tier_file_open(tier_file *f, const char *dir, int layer, bool direct, void *work, err *e);
void tier_file_close(tier_file *f);
status tier_file_write(tier_file *f, uint64_t at, const void *p, size_t n, err *e);
/* Of jobs of this file alone. */
status tier_file_read(tier_file *f, reader *r, const read_job *jobs, size_t n, err *e);

#endif
