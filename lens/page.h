/* SPDX-License-Identifier: MIT */
/* The page (page.html): chat and lens in one file, which is part of the program. */
#ifndef LENS_PAGE_H
#define LENS_PAGE_H

#include <stdbool.h>
#include <stdio.h>

#include "kernels/base/err.h"

enum { PAGE_POLICY = 512 };

/* The page as it is served. */
const char *page_text(size_t *n);
/* Its Content-Security-Policy: its own script and style by their sums, and nothing else; served: it may also ask the
 * server that it came from, and be in no frame. */
void page_policy(char out[PAGE_POLICY], bool served);

/* A page of its own with records in it: begin, each line of records, end. False: a write failed. */
bool page_begin(FILE *f);
bool page_line(FILE *f, const char *line, size_t n);
bool page_end(FILE *f);

#endif
