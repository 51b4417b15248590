/* SPDX-License-Identifier: MIT */
/* The program: finds the command, runs it, gives its exit code. */
#include "config.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/ranks.h"
#include "commands/generate.h"
#include "eval/evaluation.h"

static void print_usage(FILE *f)
{
    fprintf(f, "kvasir " PACKAGE_VERSION
               ": LLM inference with KV-cache retrieval built in\n\nusage: run COMMAND [OPTION...]\n\n");
    for (const command *const *c = commands; *c; c++) fprintf(f, "  %-18s %s\n", (*c)->name, (*c)->summary);
    fprintf(f, "\nrun COMMAND --help lists a command's options. Strategies (--help-attn NAME for "
               "parameters):\n\n");
    attn_print_help(f, NULL);
}

/* Models and sessions are mapped: one that shrinks meanwhile faults where it is read. */
static err bus_error;

static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_code != BUS_ADRERR) {
        signal(sig, SIG_DFL); /* not that: the faulting instruction runs again and ends us */
        return;
    }
    ssize_t n = write(STDERR_FILENO, bus_error.msg, strlen(bus_error.msg));
    (void)n;
    _exit(1);
}

static void catch_bus_error(const command *cmd, run_options *o)
{
    struct sigaction a = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    const char **argument = options_part(cmd, o, IN_ARGUMENT);
    const char *where = argument && *argument ? *argument : o->engine.model.dir;
    const char *load = cmd->groups & OPTIONS_REPLY ? ((const reply_options *)o)->load : NULL;
    err_set(&bus_error, ST_IO, "run %s: %.100s%s%.100s: a file was truncated while in use", cmd->name,
            where ? where : "the built-in model", load ? " or " : "", load ? load : "");
    strcat(bus_error.msg, "\n");
    sigaction(SIGBUS, &a, NULL);
}

/* Runs the command as one of the ranks. */
static status run_rank(const command *cmd, run_options *o, comm *ranks, err *e)
{
    if (cmd->groups & OPTIONS_MODEL) o->engine.device.ranks = ranks;
    if (ranks->rank > 0) o->out.json = o->out.csv = NULL;
    if (ranks->rank > 0 || o->out.quiet) out_hush();
    TRY(report_check(&o->out, e));
    return cmd->evaluation ? evaluation_run(cmd->evaluation, o, e) : cmd->run(o, e);
}

/* Runs the command with options of which a tool has the first ones only. Returns the exit status. */
static int run_with(const command *cmd, run_options *o, int argc, char **argv)
{
    comm *ranks = NULL;
    err e = {0};
    o->out.command = cmd->name;
    status st = options_parse(o, cmd, argc, argv, &e);
    if (st == ST_OK) {
        int tp = cmd->groups & OPTIONS_MODEL ? o->engine.device.tp : 0, rc = ranks_launch(&ranks, cmd->name, tp);
        if (rc >= 0) return rc;
        catch_bus_error(cmd, o);
        st = ranks_open(&ranks, cmd->name, cmd->alone, tp, argc, argv, &e);
    }
    if (st == ST_OK) st = run_rank(cmd, o, ranks, &e);
    int rc = st == ST_OK ? 0 : st == ST_USAGE ? 2 : 1;
    if (ranks_speaks(ranks, rc) && rc) fprintf(stderr, "run %s: %s\n", cmd->name, e.msg);
    rc = comm_close(ranks, rc);
    if (st == ST_INTERRUPTED) { /* ends as Ctrl-C would have ended it: shells and scripts look at that */
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    return rc;
}

static int run_command(const command *cmd, int argc, char **argv)
{
    run_options *o = calloc(1, cmd->size);
    if (!o) return 1;
    int rc = run_with(cmd, o, argc, argv);
    free(o);
    return rc;
}

/* A descriptor 0, 1 or 2 that is closed would be the next file's: text would go into reports. What
 * stands there instead fails when it is used. */
static void hold_standard_files(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) _exit(1);
}

/* Options that stand instead of a command; -1: there is none. */
static int run_option(int argc, char **argv)
{
    const char *option = argc > 1 ? argv[1] : "";
    if (strcmp(option, "--help-attn") == 0) return options_help_attn(argc > 2 ? argv[2] : "list");
    if (strcmp(option, "--version") == 0) puts("kvasir " PACKAGE_VERSION);
    else if (strcmp(option, "--help") == 0 || strcmp(option, "help") == 0) print_usage(stdout);
    else if (strcmp(option, "--print-man") == 0) options_print_man(); /* these two are for make and the shell */
    else if (strcmp(option, "--complete") == 0) options_complete(argc - 2, argv + 2);
    else return -1;
    return options_printed();
}

int main(int argc, char **argv)
{
    hold_standard_files();
    if (argc > 1 && argv[1][0] != '-') cli_bound_spin(argv);
    ranks_hush();
    signal(SIGPIPE, SIG_IGN); /* a closed stdout is an error message, not a silent end */
    signal(SIGXFSZ, SIG_IGN); /* and so is a file that reached the limit of its size */
    int rc = run_option(argc, argv), n_words = 1;
    if (rc >= 0) return rc;
    const command *cmd = argc > 1 ? command_find(argv, argc, &n_words) : NULL;
    if (cmd) return run_command(cmd, argc - n_words, argv + n_words);
    if (argc > 1) command_unknown(argv, argc);
    print_usage(stderr);
    return 2;
}
