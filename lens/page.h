/* SPDX-License-Identifier: MIT */
/* The web page (page.html): chat and lens in one file, which is compiled into the program. */
#ifndef LENS_PAGE_H
#define LENS_PAGE_H

#include <stdbool.h>
#include <stdio.h>

#include "kernels/base/err.h"

enum { PAGE_POLICY = 512 };

/* Returns the page as served. */
const char *page_text(size_t *n);
/* Writes the page's Content-Security-Policy. It allows only the page's own script and style, by hash. served: also
 * allows requests to the page's own server, and forbids frames. */
void page_policy(char out[PAGE_POLICY], bool served);

/* Writes a standalone page up to its records. Returns false if the write failed, as do the next two. */
bool page_begin(FILE *f);
/* Writes a record to the page. */
bool page_line(FILE *f, const char *line, size_t n);
/* Writes the end of the page. */
bool page_end(FILE *f);

#endif
