/* SPDX-License-Identifier: MIT */
/* Results on standard output and in files, notes and progress on standard error, and Ctrl-C. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/base/err.h"

/* Write to stdout, or to stderr if a results file is standard output. A closed pipe or full disk is ST_IO, once, at the
 * first failing write. */
status out_write(const char *text, size_t n, err *e);
status out_printf(err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints text and a newline, folded; further lines begin at column indent. */
status out_folded(const char *text, int indent, err *e);
status out_flush(err *e);

/* Results file. A regular file is written under a temporary name and renamed when it is complete, so a failed run
 * leaves no partial file; a symbolic link stays. A pipe, a device and standard output ("-", /dev/stdout) are written in
 * place. Messages name the option. */
typedef struct {
    FILE *f;            /* stream to write to */
    char *tmp, *target; /* temporary and final name; NULL: written in place */
    const char *option, *path;
} out_file;
status out_file_open(out_file *o, const char *option, const char *path, err *e);
/* Closes and frees a results file. good: all was written; renames it. ST_IO if a write or the renaming failed. */
status out_file_close(out_file *o, bool good, err *e);
/* Checks that a results file can be written, before a long run, and leaves it as it is. */
status out_file_check(const char *option, const char *path, err *e);
/* True if a path names standard output. */
bool out_is_stdout(const char *path);

/* Silences the notes and progress of this process: --quiet, and ranks other than the first. */
void out_hush(void);
bool out_is_quiet(void);
/* Prints a line to stderr, unless the process is quiet. */
void out_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Progress on stderr: a bar with an estimate on a terminal, else a line every `every` seconds. */
typedef struct progress progress;
progress *progress_start(const char *what); /* NULL: quiet or out of memory; the functions below accept it */
void progress_set(progress *p, int64_t done, int64_t total);
void progress_end(progress *p); /* clears the line and frees */

/* Catches Ctrl-C, SIGTERM and SIGHUP: the first one sets a flag that the command polls; a second one before the flag is
 * cleared ends the program. A signal that was ignored at the start (nohup, background jobs of scripts) stays ignored.
 */
void cli_catch_interrupt(void);
bool cli_interrupted(void);
/* Returns SIGTERM or SIGHUP if one was caught, which end a command that Ctrl-C does not end; else 0. */
int cli_ending(void);
/* Clears the flag after Ctrl-C. */
void cli_clear_interrupt(void);
/* Leaves Ctrl-C to the process that started the ranks, which then ends them. */
void cli_leave_interrupt(void);
/* Waits until fd is readable or at its end. False after Ctrl-C. */
bool cli_wait_input(int fd);

#endif
