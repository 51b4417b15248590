/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "commands/generate.h"
#include "eval/evaluation.h"
#include "kernels/base/fold.h"
#include "kernels/base/nearest.h"

/* Every command in the order of the help. X defines `const command X_command` in its own file or folder. */
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
    X(divergence)                                                                                                      \
    X(drift)                                                                                                           \
    X(gsm8k)                                                                                                           \
    X(math)                                                                                                            \
    X(aime)                                                                                                            \
    X(gpqa)                                                                                                            \
    X(mmlu)                                                                                                            \
    X(score)                                                                                                           \
    X(info)                                                                                                            \
    X(template)                                                                                                        \
    X(tokenize)                                                                                                        \
    X(logits)

#define DECLARE(name) extern const command name##_command;
#define ROW(name)     &name##_command,
COMMANDS(DECLARE)
const command *const commands[] = {COMMANDS(ROW) NULL};
const cli_option *const option_tables[] = {shared_rows, reply_rows, prefix_rows, evaluation_rows, NULL};

/* Joins argv[1] and argv[2]. */
static void two_words(char out[64], char **argv, int argc)
{
    snprintf(out, 64, "%s %s", argv[1], argc > 2 ? argv[2] : "");
}

/* Returns the command of the measure argv[3], or NULL. */
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
    bool is_eval = strcmp(argv[1], "eval") == 0 && argc > 2 && argv[2][0] != '-';
    const char *found = is_eval ? two : argv[1];
    nearest_start(&near, found);
    for (const command *const *c = commands; *c; c++) nearest_try(&near, (*c)->name, strlen((*c)->name));
    fprintf(stderr, "%s: unknown command '%s'%s; '%s help%s' lists the commands\n", program_invocation_short_name,
            found, nearest_hint(&near), program_invocation_short_name, is_eval ? " eval" : "");
}

/* ---- help ---- */

/* Returns the second word of a command of two words, or NULL. */
static const char *evaluation_name(const command *c)
{
    return strncmp(c->name, "eval ", 5) == 0 ? c->name + 5 : NULL;
}

static void print_command(FILE *f, const char *name, const char *summary)
{
    int at = fprintf(f, "  %-13s  ", name);
    fold_print(f, summary, at, at);
}

void command_evaluations(FILE *f)
{
    const char *program = program_invocation_short_name;
    fprintf(f, "usage: %s eval NAME [OPTION...]\n\n", program);
    for (const command *const *c = commands; *c; c++)
        if (evaluation_name(*c)) print_command(f, evaluation_name(*c), (*c)->summary);
    fprintf(f, "\n'%s help eval NAME' lists the options of an evaluation.\n", program);
}

/* Appends a word to a list. */
static void add_word(char *list, size_t size, const char *word)
{
    size_t n = strlen(list);
    snprintf(list + n, size - n, "%s%s", n ? ", " : "", word);
}

void command_usage(FILE *f)
{
    const char *program = program_invocation_short_name;
    char evaluations[512] = "", strategies[512] = "", last[128];
    fprintf(f, "kvasir " PACKAGE_VERSION ": LLM inference with KV-cache retrieval built in\n\n");
    fprintf(f, "usage: %s COMMAND [OPTION...]\n\n", program);
    for (const command *const *c = commands; *c; c++) {
        if (evaluation_name(*c)) add_word(evaluations, sizeof evaluations, evaluation_name(*c));
        else print_command(f, (*c)->name, (*c)->summary);
    }
    print_command(f, "eval NAME", evaluations);
    fprintf(f, "\n");
    for (const attn_method *const *m = attn_methods(); *m; m++)
        add_word(strategies, sizeof strategies, attn_method_name(*m));
    int at = fprintf(f, "Strategies (--attn): ");
    fold_print(f, strategies, at, 2);
    snprintf(last, sizeof last, "'%s help COMMAND' lists a command's options, '%s --help-attn' the strategies.",
             program, program);
    fprintf(f, "\n");
    fold_print(f, last, 0, 0);
}
