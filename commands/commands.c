/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "commands/generate.h"
#include "eval/evaluation.h"
#include "kernels/base/nearest.h"

/* Every command, in the order of the help: X defines `const command X_command` in its own file or folder. */
#define COMMANDS(X)                                                                                                    \
    X(generate)                                                                                                        \
    X(chat)                                                                                                            \
    X(serve)                                                                                                           \
    X(lens)                                                                                                            \
    X(passkey)                                                                                                         \
    X(niah)                                                                                                            \
    X(bench)                                                                                                           \
    X(recall)                                                                                                          \
    X(longbench)                                                                                                       \
    X(longbench2)                                                                                                      \
    X(infinitebench)                                                                                                   \
    X(ruler)                                                                                                           \
    X(scbench)                                                                                                         \
    X(mrcr)                                                                                                            \
    X(pg19)                                                                                                            \
    X(fidelity)                                                                                                        \
    X(agree)                                                                                                           \
    X(accept)                                                                                                          \
    X(drift)                                                                                                           \
    X(gsm8k)                                                                                                           \
    X(math)                                                                                                            \
    X(aime)                                                                                                            \
    X(gpqa)                                                                                                            \
    X(mmlu)                                                                                                            \
    X(score)                                                                                                           \
    X(info)                                                                                                            \
    X(tokenize)                                                                                                        \
    X(logits)

#define DECLARE(name) extern const command name##_command;
#define ROW(name)     &name##_command,
COMMANDS(DECLARE)
const command *const commands[] = {COMMANDS(ROW) NULL};
const cli_option *const option_tables[] = {shared_rows, reply_rows, prefix_rows, evaluation_rows, NULL};

/* argv[1], with argv[2] behind it. */
static void two_words(char out[64], char **argv, int argc)
{
    snprintf(out, 64, "%s %s", argv[1], argc > 2 ? argv[2] : "");
}

/* Returns the command whose measure argv[3] names; NULL: none. */
static const command *find_measure(char **argv, int argc, int *n)
{
    static const char option[] = "--measure=";
    const size_t length = sizeof option - 1;
    const char *name = argc > 3 && strncmp(argv[3], option, length) == 0 ? argv[3] + length : NULL;
    *n = 3;
    if (argc > 4 && strcmp(argv[3], "--measure") == 0) name = argv[4], *n = 4;
    for (const command *const *c = commands; name && *c; c++)
        if ((*c)->measure && strcmp((*c)->measure, name) == 0) return *c;
    return NULL;
}

const command *command_find(char **argv, int argc, int *n)
{
    char two[64];
    two_words(two, argv, argc);
    const command *by_measure = strcmp(two, fidelity_command.name) == 0 ? find_measure(argv, argc, n) : NULL;
    if (by_measure) return by_measure;
    for (const command *const *c = commands; *c; c++) {
        *n = strchr((*c)->name, ' ') ? 2 : 1;
        if (strcmp((*c)->name, *n == 2 ? two : argv[1]) == 0) return *c;
    }
    return NULL;
}

void command_unknown(char **argv, int argc)
{
    char two[64];
    nearest near;
    two_words(two, argv, argc);
    const char *found = strcmp(argv[1], "eval") == 0 && argc > 2 && argv[2][0] != '-' ? two : argv[1];
    nearest_start(&near, found);
    for (const command *const *c = commands; *c; c++) nearest_try(&near, (*c)->name, strlen((*c)->name));
    fprintf(stderr, "run: unknown command '%s'%s\n\n", found, nearest_hint(&near));
}
