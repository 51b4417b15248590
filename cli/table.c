/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "cli/table.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "kernels/base/fold.h"
#include "kernels/base/mem.h"

enum { GAP = 2 }; /* spaces between columns */

static bool wide;

void table_set_wide(void)
{
    wide = true;
}

/* ---- contents ---- */

static void no_memory(table *t)
{
    err_set(&t->failed, ST_NOMEM, "out of memory for a table");
}

static __attribute__((format(printf, 3, 0))) void add(table *t, bool is_line, const char *fmt, va_list ap)
{
    char *text;
    if (t->failed.code != ST_OK) return;
    if (vasprintf(&text, fmt, ap) < 0) {
        no_memory(t);
        return;
    }
    if (MEM_GROW(&t->cell, t->n_cells + 1, &t->failed) == ST_OK) t->cell[t->n_cells++] = (table_text){text, is_line};
    else free(text);
}

void table_column(table *t, unsigned flags, size_t least, const char *title)
{
    size_t n = strlen(title);
    char *copy = strdup(title);
    if (!copy) no_memory(t);
    else if (MEM_GROW(&t->column, t->n_columns + 1, &t->failed) != ST_OK) free(copy);
    else t->column[t->n_columns++] = (table_title){copy, flags, n > least ? n : least, false};
}

void table_cell(table *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add(t, false, fmt, ap);
    va_end(ap);
}

void table_number(table *t, double x, int decimals)
{
    if (isnan(x)) table_cell(t, "-");
    else table_cell(t, "%.*f", decimals, x);
}

void table_rest(table *t, const char *text)
{
    while (t->failed.code == ST_OK && t->n_cells % t->n_columns) table_cell(t, "%s", text);
}

void table_line(table *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add(t, true, fmt, ap);
    va_end(ap);
    table_rest(t, "");
}

static void clear(table *t)
{
    for (size_t i = 0; i < t->n_cells; i++) free(t->cell[i].text);
    t->n_cells = 0;
}

void table_free(table *t)
{
    clear(t);
    for (size_t i = 0; i < t->n_columns; i++) free(t->column[i].text);
    mem_free(t->cell);
    mem_free(t->column);
    *t = (table){0};
}

/* ---- layout ---- */

/* Returns the width of a part: the key columns and columns [from, to). */
static size_t part_width(const table *t, size_t from, size_t to)
{
    size_t width = 0;
    for (size_t c = 0; c < t->n_columns; c++)
        if (!t->column[c].hidden && ((t->column[c].flags & TABLE_KEY) || (c >= from && c < to)))
            width += t->column[c].width + (width ? GAP : 0);
    return width;
}

static bool is_zero(const char *text)
{
    return text[strspn(text, "0.-% ")] == 0;
}

/* True if the table has rows, and none has a value in this column. */
static bool is_unused(const table *t, size_t column)
{
    for (size_t i = 0; i < t->n_cells; i += t->n_columns)
        if (!t->cell[i].is_line && !is_zero(t->cell[i + column].text)) return false;
    return t->n_cells > 0;
}

/* Leaves out columns. complete: all rows are known. */
static void hide(table *t, bool complete)
{
    for (size_t c = 0; complete && c < t->n_columns; c++)
        if (t->column[c].flags & (TABLE_DETAIL | TABLE_DETAIL2)) t->column[c].hidden = is_unused(t, c);
    for (unsigned level = TABLE_DETAIL2; level >= TABLE_DETAIL; level /= 2)
        for (size_t c = t->n_columns; c-- > 0 && part_width(t, 0, t->n_columns) > FOLD_COLUMNS;)
            if (t->column[c].flags & level) t->column[c].hidden = true;
}

static void choose(table *t, bool complete)
{
    for (size_t i = 0; i < t->n_cells; i++) {
        size_t n = strlen(t->cell[i].text), *width = &t->column[i % t->n_columns].width;
        if (!t->cell[i - i % t->n_columns].is_line && n > *width) *width = n;
    }
    if (!wide) hide(t, complete);
}

/* ---- printing ---- */

/* Prints a text of a column. *pad: spaces before it, printed with the next text, so that no line ends with spaces. */
static status print_text(const table_title *column, const char *text, size_t *pad, err *e)
{
    size_t n = strlen(text), fill = n < column->width ? column->width - n : 0;
    bool left = column->flags & TABLE_LEFT;
    if (!left) *pad += fill;
    if (n > 0) {
        TRY(out_printf(e, "%*s%s", (int)*pad, "", text));
        *pad = 0;
    }
    *pad += GAP + (left ? fill : 0);
    return ST_OK;
}

/* Prints the key columns and columns [from, to) of a row, or the titles. row: first cell; NULL: the titles. */
static status print_row(const table *t, const table_text *row, size_t from, size_t to, err *e)
{
    size_t pad = 0;
    if (row && row->is_line) return out_printf(e, "%s\n", row->text);
    for (size_t c = 0; c < t->n_columns; c++)
        if (!t->column[c].hidden && ((t->column[c].flags & TABLE_KEY) || (c >= from && c < to)))
            TRY(print_text(&t->column[c], row ? row[c].text : t->column[c].text, &pad, e));
    return out_printf(e, "\n");
}

static status print_part(const table *t, size_t from, size_t to, err *e)
{
    if (!t->started) TRY(print_row(t, NULL, from, to, e));
    for (size_t i = 0; i < t->n_cells; i += t->n_columns) TRY(print_row(t, &t->cell[i], from, to, e));
    return ST_OK;
}

/* Returns the end of the part that begins with column `from`: at least one column, and all that fit. */
static size_t part_end(const table *t, size_t from)
{
    size_t to = from;
    while (to < t->n_columns && (t->column[to].hidden || (t->column[to].flags & TABLE_KEY))) to++;
    if (to < t->n_columns) to++;
    while (to < t->n_columns && (wide || part_width(t, from, to + 1) <= FOLD_COLUMNS)) to++;
    return to;
}

static status print_parts(const table *t, err *e)
{
    for (size_t from = 0, to; from < t->n_columns; from = to) {
        to = part_end(t, from);
        if (from > 0) TRY(out_printf(e, "\n"));
        TRY(print_part(t, from, to, e));
    }
    return ST_OK;
}

status table_flush(table *t, err *e)
{
    if (t->failed.code != ST_OK) return err_set(e, t->failed.code, "%s", t->failed.msg);
    if (!t->started) choose(t, false);
    TRY(print_part(t, 0, t->n_columns, e));
    t->started = true;
    clear(t);
    return out_flush(e);
}

/* Prints the names of the columns that were left out. */
static status print_hidden(const table *t, err *e)
{
    const char *before = "--wide adds: ";
    for (size_t c = 0; c < t->n_columns; c++)
        if (t->column[c].hidden) paragraph("%s%s", before, t->column[c].text), before = ", ";
    return before[0] == ',' ? paragraph_end(2, e) : ST_OK;
}

status table_print(table *t, err *e)
{
    status st = t->failed.code == ST_OK ? ST_OK : err_set(e, t->failed.code, "%s", t->failed.msg);
    if (st == ST_OK && !t->started) choose(t, true);
    if (st == ST_OK) st = t->started ? print_part(t, 0, t->n_columns, e) : print_parts(t, e);
    if (st == ST_OK) st = print_hidden(t, e);
    table_free(t);
    return st;
}

/* ---- paragraphs ---- */

static char text[8192];
static size_t n_text; /* bytes of the paragraph; a longer one is cut */

void paragraph(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text + n_text, sizeof text - n_text, fmt, ap);
    va_end(ap);
    n_text += n > 0 ? (size_t)n : 0;
    if (n_text >= sizeof text) n_text = sizeof text - 1;
}

status paragraph_end(int indent, err *e)
{
    status st = out_folded(text, indent, e);
    n_text = 0;
    text[0] = 0;
    return st;
}
