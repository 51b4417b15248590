/* SPDX-License-Identifier: MIT */
/* Commands that several ranks run together (kernels/comm.h). All compute the same; the first rank reads standard input,
 * prints and writes files. */
#ifndef CLI_RANKS_H
#define CLI_RANKS_H

#include "kernels/comm.h"

/* Starts N ranks for --tp N without a launcher and waits for them. Returns -1 in each rank, with *ranks set. Returns
 * their exit status in the parent, or that of an error, which it has printed. In other cases it does nothing and
 * returns -1. Call it before threads are started. */
int ranks_launch(comm **ranks, const char *command, int tp);
/* Sets *ranks, unless ranks_launch did, to mpirun's ranks or to one. argv: as given. alone: the command supports one
 * process only. ST_USAGE if --tp is not the number of ranks, if ranks have different options or versions, or if alone
 * and there are several ranks. */
status ranks_open(comm **ranks, const char *command, bool alone, int tp, int argc, char **argv, err *e);
/* Fails with ST_USAGE for an option that requires one process. */
status ranks_refuse(const comm *ranks, const char *option, err *e);
/* Silences all ranks but the first until ranks_open. Call it before the options are parsed. */
void ranks_hush(void);
/* True if this rank reports the final error: only the first rank to fail does. Call it once, before comm_close. */
bool ranks_reports(comm *ranks, int rc);

/* Copies the first rank's text (mem_free), or NULL, to all ranks. c NULL: one process. */
status ranks_broadcast_text(comm *c, char **text, size_t *n, err *e);

#endif
