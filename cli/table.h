/* SPDX-License-Identifier: MIT */
/* Tables and paragraphs on standard output, at most FOLD_COLUMNS wide unless --wide is given. The width does not depend
 * on the terminal, so that a file has the same text.
 *
 * A table that is too wide leaves out columns of details, those of the highest level first, then the last. If it is
 * still too wide, it is divided: each part repeats the key columns. A column of details without any value but zero is
 * also left out. A line below the table names the columns that --wide adds. */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"

/* Flags of a column. Text is right-aligned without TABLE_LEFT. */
enum { TABLE_LEFT = 1, TABLE_KEY = 2, TABLE_DETAIL = 4, TABLE_DETAIL2 = 8 };

typedef struct {
    char *text;
    unsigned flags;
    size_t width;
    bool hidden;
} table_title;

typedef struct {
    char *text;
    bool is_line; /* first cell of a row that is a line */
} table_text;

/* A zeroed struct is a table without columns. The first failure is kept and returned by table_flush and table_print. */
typedef struct {
    table_title *column;
    table_text *cell; /* [n_cells] by row */
    size_t n_columns, n_cells;
    bool started; /* the titles were printed */
    err failed;
} table;

/* Adds a column. least: minimum width; the title and the cells may be wider. */
void table_column(table *t, unsigned flags, size_t least, const char *title);
/* Adds the next cell of a row. A row is complete with a cell for each column. */
void table_cell(table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Adds a number; NAN is "-". */
void table_number(table *t, double x, int decimals);
/* Fills the rest of a row with a text. */
void table_rest(table *t, const char *text);
/* Adds a line that is no row, such as a heading; "": an empty line. */
void table_line(table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints the rows added so far, for tables whose rows take long. The first call chooses the columns by their minimum
 * widths; columns without a value stay. */
status table_flush(table *t, err *e);
/* Prints the table, or what table_flush has left of it, and frees it. */
status table_print(table *t, err *e);
void table_free(table *t);

/* --wide: prints all columns. */
void table_set_wide(void);

/* Appends to a paragraph, which paragraph_end prints, folded, with a newline. */
void paragraph(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* indent: column of the lines after the first. */
status paragraph_end(int indent, err *e);

#endif
