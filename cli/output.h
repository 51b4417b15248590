/* SPDX-License-Identifier: MIT */
/* Results on standard output and in files, notes and progress on standard error, Ctrl-C. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/base/err.h"

/* Writes to stdout; a closed pipe or full disk is ST_IO once, at the first write that fails. */
status out_write(const char *text, size_t n, err *e);
status out_printf(err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
status out_flush(err *e);

/* ST_IO if the path names something other than a regular file: renaming a file to it would replace a device. */
status out_check_regular(const char *option, const char *path, err *e);

/* A file of results. It is written under a temporary name and renamed once it is complete, so that a failed run leaves
 * no half file. Messages name the option. */
typedef struct {
    FILE *f; /* to write to */
    char *tmp;
    const char *option, *path;
} out_file;
status out_file_open(out_file *o, const char *option, const char *path, err *e);
/* good: everything was written. ST_IO if it was not, or if the file cannot be renamed. Frees. */
status out_file_close(out_file *o, bool good, err *e);

/* Silences the notes and progress of this process: --quiet, and ranks other than the first. */
void out_hush(void);
bool out_is_quiet(void);
/* Prints a line to stderr, unless the process is quiet. */
void out_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Progress on stderr: a bar with an estimate on a terminal, else nothing until `every` seconds passed. */
typedef struct progress progress;
progress *progress_start(const char *what); /* NULL (quiet or out of memory) is fine below */
void progress_set(progress *p, int64_t done, int64_t total);
void progress_end(progress *p); /* clears the line, frees */

/* Ctrl-C. From cli_catch_interrupt on the first one sets a flag, which the command looks at; a second
 * one before the flag was cleared ends the program. Where SIGINT was ignored at the start (nohup,
 * jobs in the background of a script) it stays so. */
void cli_catch_interrupt(void);
bool cli_interrupted(void);
void cli_clear_interrupt(void);
/* Leaves Ctrl-C to the process that started the ranks; it then ends all of them. */
void cli_leave_interrupt(void);
/* Waits until fd can be read or ends; false at Ctrl-C. */
bool cli_wait_input(int fd);

#endif
