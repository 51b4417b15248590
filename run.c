/* SPDX-License-Identifier: MIT */
/* Entry point: finds the command, runs it, and returns its exit status. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/ranks.h"
#include "cli/table.h"
#include "commands/generate.h"
#include "eval/evaluation.h"

/* Message for SIGBUS, which reading a mapped model or session raises if the file was truncated. */
static err bus_error;

static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_code != BUS_ADRERR) {
        signal(sig, SIG_DFL); /* another cause: the instruction faults again and kills the process */
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
    err_set(&bus_error, ST_IO, "%s %s: %.100s%s%.100s: a file was truncated while in use",
            program_invocation_short_name, cmd->name, where ? where : "the built-in model", load ? " or " : "",
            load ? load : "");
    strcat(bus_error.msg, "\n");
    sigaction(SIGBUS, &a, NULL);
}

/* Runs the command as one of the ranks. */
static status run_rank(const command *cmd, run_options *o, comm *ranks, err *e)
{
    if (cmd->groups & OPTIONS_MODEL) o->engine.device.ranks = ranks;
    if (ranks->rank > 0) o->out.json = o->out.csv = NULL;
    if (ranks->rank > 0 || o->out.quiet) out_hush();
    if (o->out.wide) table_set_wide();
    TRY(report_check(&o->out, e));
    return cmd->evaluation ? evaluation_run(cmd->evaluation, o, e) : cmd->run(o, e);
}

/* Parses the options into o and runs the command. Returns the exit status. */
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
    if (ranks_reports(ranks, rc) && rc) fprintf(stderr, "%s %s: %s\n", program_invocation_short_name, cmd->name, e.msg);
    rc = comm_close(ranks, rc);
    if (st == ST_INTERRUPTED) { /* dies of the signal, which shells and scripts check for */
        const int by = cli_ending() ? cli_ending() : SIGINT;
        signal(by, SIG_DFL);
        raise(by);
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

/* Opens /dev/null in place of closed descriptors 0 to 2. Otherwise the next file opened would get one of them and
 * receive the program's output. The open mode makes use of the descriptor fail. */
static void open_standard_files(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) _exit(1);
}

static bool is_help(const char *word)
{
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* Handles an option in place of a command. Returns the exit status, or -1 if there is no such option. */
static int run_option(int argc, char **argv)
{
    const char *option = argc > 1 ? argv[1] : "";
    if (strcmp(option, "--help-attn") == 0) return options_help_attn(argc > 2 ? argv[2] : "list");
    if (strcmp(option, "--version") == 0) puts("kvasir " PACKAGE_VERSION);
    else if (is_help(option)) command_usage(stdout);
    else if (strcmp(option, "--print-man") == 0) options_print_man(); /* used by make and by shell completion */
    else if (strcmp(option, "--complete") == 0) options_complete(argc - 2, argv + 2);
    else return -1;
    return options_printed();
}

/* Runs a command line. Returns the exit status. */
static int run_words(int argc, char **argv)
{
    int rc = run_option(argc, argv), n_words;
    if (rc >= 0) return rc;
    if (argc < 2) {
        command_usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "eval") == 0 && (argc < 3 || is_help(argv[2]))) {
        command_evaluations(argc < 3 ? stderr : stdout);
        return argc < 3 ? 2 : options_printed();
    }
    const command *cmd = command_find(argv, argc, &n_words);
    if (cmd) return run_command(cmd, argc - n_words, argv + n_words);
    command_unknown(argv, argc);
    return 2;
}

int main(int argc, char **argv)
{
    static char help[] = "--help";
    open_standard_files();
    if (argc > 1 && argv[1][0] != '-') cli_bound_spin(argv);
    ranks_hush();
    signal(SIGPIPE, SIG_IGN); /* writing to a closed stdout fails with an error message */
    signal(SIGXFSZ, SIG_IGN); /* exceeding the file size limit also fails with an error message */
    if (argc < 3 || !is_help(argv[1])) return run_words(argc, argv);
    char *line[] = {argv[0], argv[2], argc > 3 ? argv[3] : help, help, NULL}; /* help COMMAND is COMMAND --help */
    return run_words(argc > 3 ? 4 : 3, line);
}
