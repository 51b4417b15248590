/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "cli/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/output.h"
#include "kernels/base/mem.h"
#include "kernels/base/sha256.h"

/* ---- silence ---- */

static int own_stderr = -1;

void ranks_hush(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!rank) rank = getenv("PMIX_RANK");
    if (!rank || strtol(rank, NULL, 10) <= 0) return;
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    own_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (null < 0 || dup2(null, STDOUT_FILENO) < 0 || dup2(null, STDERR_FILENO) < 0) _exit(1);
    close(null);
}

/* Lets errors be printed again. */
static void end_hush(void)
{
    if (own_stderr < 0) return;
    dup2(own_stderr, STDERR_FILENO);
    close(own_stderr);
    own_stderr = -1;
}

/* ---- agreement of ranks ---- */

typedef struct {
    char version[32], options[SHA256_HEX];
} start;

static status check_same(comm *ranks, const char *command, int argc, char **argv, err *e)
{
    start own = {.version = PACKAGE_VERSION}, *all;
    sha256 hash;
    sha256_init(&hash);
    sha256_add(&hash, command, strlen(command) + 1);
    for (int i = 1; i < argc; i++) sha256_add(&hash, argv[i], strlen(argv[i]) + 1);
    sha256_hex(&hash, own.options);
    TRY(MEM_NEW(&all, (size_t)ranks->size, e));
    status st = comm_all_gather(ranks, all, &own, sizeof own, e);
    for (int r = 1; r < ranks->size && st == ST_OK; r++) {
        if (strcmp(all[r].version, all[0].version) != 0)
            st = err_set(e, ST_USAGE, "rank %d is version %.31s, rank 0 version %.31s", r, all[r].version,
                         all[0].version);
        else if (strcmp(all[r].options, all[0].options) != 0)
            st = err_set(e, ST_USAGE, "rank %d has other options than rank 0", r);
    }
    mem_free(all);
    return st;
}

static status check_number(int n, int tp, err *e)
{
    if (tp == 0 || tp == n) return ST_OK;
    return err_set(e, ST_USAGE, "--tp %d: mpirun started %d rank%s; omit --tp, or use mpirun -n %d", tp, n,
                   n == 1 ? "" : "s", tp);
}

status ranks_refuse(const comm *ranks, const char *option, err *e)
{
    if (!ranks || ranks->size == 1) return ST_OK;
    return err_set(e, ST_USAGE, "%s: supports one process, not %d ranks", option, ranks->size);
}

int ranks_launch(comm **ranks, const char *command, int tp)
{
    bool launched;
    int rc = 0;
    err e = {0};
    if (tp < 2 || comm_launched(&launched, NULL) != ST_OK || launched) return -1;
    status st = comm_fork(ranks, tp, &rc, &e);
    if (*ranks) return -1;
    if (e.msg[0]) fprintf(stderr, "%s %s: %s\n", program_invocation_short_name, command, e.msg);
    return st == ST_OK ? rc : st == ST_USAGE ? 2 : 1;
}

status ranks_open(comm **ranks, const char *command, bool alone, int tp, int argc, char **argv, err *e)
{
    if (!*ranks) TRY(comm_open(ranks, e));
    end_hush();
    if ((*ranks)->size > 1) {
        cli_leave_interrupt();
        TRY(check_same(*ranks, command, argc, argv, e));
        if (alone) return err_set(e, ST_USAGE, "supports one process, not %d ranks", (*ranks)->size);
    }
    return check_number((*ranks)->size, tp, e);
}

bool ranks_reports(comm *ranks, int rc)
{
    return ranks ? comm_speaker(ranks, rc) == ranks->rank : own_stderr < 0;
}

/* ---- broadcast ---- */

status ranks_broadcast_text(comm *c, char **text, size_t *n, err *e)
{
    int64_t size = *text ? (int64_t)*n : -1;
    if (!c || c->size == 1) return ST_OK;
    TRY(comm_broadcast(c, &size, sizeof size, 0, e));
    if (c->rank > 0) {
        *text = NULL;
        *n = size > 0 ? (size_t)size : 0;
        if (size >= 0) TRY(mem_alloc((void **)text, *n + 1, 1, "text", e));
    }
    return *n ? comm_broadcast(c, *text, *n, 0, e) : ST_OK;
}
