/* SPDX-License-Identifier: MIT */
/* Tables of 80 columns. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/table.h"
#include "tests/tap.h"

static FILE *printed; /* replaces standard output while a table is printed */

/* Returns what was printed to the file, and empties it. */
static const char *printed_text(void)
{
    static char text[8192];
    fflush(stdout);
    rewind(printed);
    size_t n = fread(text, 1, sizeof text - 1, printed);
    text[n] = 0;
    rewind(printed);
    if (ftruncate(fileno(printed), 0) != 0) return "cannot truncate";
    return text;
}

/* Prints a table to the file and returns the text. flush: by table_flush. */
static const char *show(table *t, bool flush)
{
    int own = dup(STDOUT_FILENO);
    fflush(stdout);
    dup2(fileno(printed), STDOUT_FILENO);
    err e = {0};
    status st = flush ? table_flush(t, &e) : table_print(t, &e);
    const char *text = printed_text();
    dup2(own, STDOUT_FILENO);
    close(own);
    return st == ST_OK ? text : e.msg[0] ? "failed" : "no message";
}

static void add_row(table *t, const char *a, const char *b, const char *c)
{
    table_cell(t, "%s", a);
    table_cell(t, "%s", b);
    table_cell(t, "%s", c);
}

static void test_layout(void)
{
    table t = {0};
    table_column(&t, TABLE_KEY | TABLE_LEFT, 0, "name");
    table_column(&t, 0, 5, "n");
    table_column(&t, TABLE_LEFT, 0, "text");
    add_row(&t, "long name", "1", "x");
    table_line(&t, "a line of its own");
    add_row(&t, "b", "", "");
    table_cell(&t, "c");
    table_number(&t, 2.25, 1);
    table_number(&t, (double)NAN, 1);
    table_cell(&t, "d");
    table_rest(&t, "-");
    is_str(
        show(&t, false),
        "name           n  text\nlong name      1  x\na line of its own\nb\nc            2.2  -\nd              -  -\n",
        "widths, alignment, lines, missing numbers, no trailing spaces");
    ok(t.n_columns == 0 && !t.cell, "printing frees the table");
}

static void test_zero(void)
{
    table t = {0};
    table_column(&t, TABLE_KEY, 0, "key");
    table_column(&t, TABLE_DETAIL, 0, "zero");
    table_column(&t, 0, 0, "score");
    add_row(&t, "1", "0.00", "0.0 %");
    add_row(&t, "2", "-", "0.0 %");
    is_str(show(&t, false), "key  score\n  1  0.0 %\n  2  0.0 %\n--wide adds: zero\n",
           "a detail that is zero everywhere is left out, a result is not");
    table_column(&t, TABLE_KEY, 0, "key");
    table_column(&t, TABLE_DETAIL, 0, "zero");
    table_column(&t, 0, 0, "score");
    add_row(&t, "1", "0.00", "0");
    add_row(&t, "2", "0.01", "0");
    is_str(show(&t, false), "key  zero  score\n  1  0.00      0\n  2  0.01      0\n", "one value keeps the column");
}

static bool fits(const char *text)
{
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        if (strcspn(line, "\n") > 80) return false;
    return true;
}

static void test_width(void)
{
    table t = {0};
    table_column(&t, TABLE_KEY | TABLE_LEFT, 20, "key");
    table_column(&t, TABLE_DETAIL2, 10, "second");
    table_column(&t, TABLE_DETAIL, 10, "first");
    table_column(&t, TABLE_DETAIL2, 10, "third");
    table_column(&t, 0, 30, "result");
    for (int i = 1; i <= 5; i++) table_cell(&t, "%d", i);
    const char *text = show(&t, false);
    ok(fits(text) && strstr(text, "--wide adds: third\n") && strstr(text, "second"),
       "the last detail of the highest level is left out first");

    table_column(&t, TABLE_KEY | TABLE_LEFT, 20, "key");
    for (int i = 0; i < 3; i++) table_column(&t, 0, 30, "result");
    for (int i = 0; i < 4; i++) table_cell(&t, "v%d", i);
    text = show(&t, false);
    const char *second = strstr(text, "\n\nkey");
    ok(fits(text) && second && strstr(second, "v0") && strstr(second, "v2") && strstr(second + 5, "\n\nkey"),
       "a table that is still too wide is divided, and each part has the keys");

    table_column(&t, TABLE_KEY | TABLE_LEFT, 100, "key");
    table_column(&t, 0, 100, "result");
    table_cell(&t, "k");
    table_cell(&t, "r");
    ok(strstr(show(&t, false), "r\n") != NULL, "columns wider than a line are printed");
}

static void test_flush(void)
{
    table t = {0};
    table_column(&t, TABLE_KEY, 4, "key");
    table_column(&t, TABLE_DETAIL, 0, "zero");
    is_str(show(&t, true), " key  zero\n", "the titles come first");
    table_cell(&t, "1");
    table_cell(&t, "0");
    is_str(show(&t, true), "   1     0\n", "a row when it is known; columns without a value stay");
    table_cell(&t, "2");
    table_cell(&t, "0");
    is_str(show(&t, false), "   2     0\n", "the rest without titles");
}

static void test_paragraph(void)
{
    err e = {0};
    int own = dup(STDOUT_FILENO);
    fflush(stdout);
    dup2(fileno(printed), STDOUT_FILENO);
    for (int i = 0; i < 12; i++) paragraph("%s%d words", i ? ", " : "", i);
    status st = paragraph_end(2, &e);
    paragraph("next");
    if (st == ST_OK) st = paragraph_end(0, &e);
    const char *text = printed_text();
    dup2(own, STDOUT_FILENO);
    close(own);
    ok(st == ST_OK && fits(text) && strstr(text, ",\n  ") && strstr(text, "\nnext\n"), "paragraphs are folded");
}

static void test_wide(void)
{
    table t = {0};
    table_set_wide();
    table_column(&t, TABLE_KEY | TABLE_LEFT, 20, "key");
    table_column(&t, TABLE_DETAIL, 30, "zero");
    table_column(&t, TABLE_DETAIL2, 40, "last");
    table_cell(&t, "k");
    table_rest(&t, "0");
    const char *text = show(&t, false);
    ok(strcspn(text, "\n") == 94 && strstr(text, "zero") && strstr(text, "last") && !strstr(text, "--wide"),
       "--wide prints all columns in one table");
}

int main(void)
{
    printed = tmpfile();
    if (!printed) tap_skip_all("no temporary file");
    test_layout();
    test_zero();
    test_width();
    test_flush();
    test_paragraph();
    test_wide();
    fclose(printed);
    return tap_done();
}
