/* SPDX-License-Identifier: MIT */
/* Commands that several ranks run together (kernels/comm.h): all do the same, the first one reads standard input,
 * prints and writes files. */
#ifndef CLI_RANKS_H
#define CLI_RANKS_H

#include "kernels/comm.h"

/* --tp N without a launcher: starts N ranks and waits for them. Returns -1 with *ranks in each rank, and in the parent
 * their exit status, or that of an error, which it has printed. Otherwise returns -1 and does nothing. Call it before
 * anything starts threads. */
int ranks_launch(comm **ranks, const char *command, int tp);
/* Sets *ranks if ranks_launch did not: to mpirun's ranks, or to one. argv: as given. alone: the command is for one
 * process. ST_USAGE if --tp is not the number of ranks, if ranks have different options or versions, or if several
 * ranks run a command that is for one. */
status ranks_open(comm **ranks, const char *command, bool alone, int tp, int argc, char **argv, err *e);
/* ST_USAGE for an option that several ranks cannot take. */
status ranks_refuse(const comm *ranks, const char *option, err *e);
/* Silences every rank but the first until ranks_open; called before the options are known. */
void ranks_hush(void);
/* Whether this rank reports the error with which all end: only the first rank to fail does. Call once, before
 * comm_close. */
bool ranks_speaks(comm *ranks, int rc);

/* Copies the first rank's text (mem_free), or NULL, to all ranks; c NULL: there is one process only. */
status ranks_share_text(comm *c, char **text, size_t *n, err *e);

#endif
