/* SPDX-License-Identifier: MIT */
/* Commands that several ranks run together (kernels/comm.h): all do the same, the first one reads standard input,
 * prints and writes files. */
#ifndef EVAL_RANKS_H
#define EVAL_RANKS_H

#include "eval/cli.h"
#include "kernels/comm.h"

/* --tp N without a launcher: starts N ranks, in which it returns -1 with c->ranks, and waits for them: their exit status, or
 * that of an error that was told. Else -1 and nothing happens. Before anything has threads. */
int ranks_launch(cli *c);
/* c->ranks where nobody launched any: mpirun's, or one. Options of ranks that do not write are taken back. argv: as given;
 * ST_USAGE where --tp is another number than there are ranks, ranks were started with different options or versions, or the
 * command or an option is for one process alone. */
status ranks_open(cli *c, int argc, char **argv, err *e);
/* Before the options are known: a rank that is not the first is silent until ranks_open. */
void ranks_hush(void);
/* Whether this rank is to tell why it ends with rc: once, before ranks_close. */
bool ranks_speaks(const cli *c, int rc);
/* The exit status of all. */
int ranks_close(cli *c, int rc);

/* What the first rank has, on all of them; c NULL: one process alone. */
status ranks_share(comm *c, void *p, size_t bytes, err *e);
/* A text (mem_free), or NULL. */
status ranks_share_text(comm *c, char **text, size_t *n, err *e);

#endif
