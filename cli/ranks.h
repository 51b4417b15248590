/* SPDX-License-Identifier: MIT */
/* Commands that several ranks run together (kernels/comm.h): all do the same, the first one reads standard input,
 * prints and writes files. */
#ifndef CLI_RANKS_H
#define CLI_RANKS_H

#include "cli/cli.h"
#include "kernels/comm.h"

/* --tp N without a launcher: starts N ranks and waits for them. Returns -1 with c->ranks in each rank, and in the
 * parent their exit status, or that of an error, which it has printed. Otherwise returns -1 and does nothing. Call it
 * before anything starts threads. */
int ranks_launch(cli *c);
/* Sets c->ranks if ranks_launch did not: to mpirun's ranks, or to one. Removes the options for files from ranks that
 * do not write. argv: as given. ST_USAGE if --tp is not the number of ranks, if ranks have different options or
 * versions, or if the command or an option is for one process only. */
status ranks_open(cli *c, int argc, char **argv, err *e);
/* ST_USAGE for an option that several ranks cannot take. */
status ranks_refuse(const cli *c, const char *option, err *e);
/* Silences every rank but the first until ranks_open; called before the options are known. */
void ranks_hush(void);
/* Whether this rank reports the error with which all end: only the first rank to fail does. Call once, before
 * ranks_close. */
bool ranks_speaks(const cli *c, int rc);
/* The exit status of all. */
int ranks_close(cli *c, int rc);

/* Copies the first rank's text (mem_free), or NULL, to all ranks; c NULL: there is one process only. */
status ranks_share_text(comm *c, char **text, size_t *n, err *e);

#endif
