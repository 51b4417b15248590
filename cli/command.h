/* SPDX-License-Identifier: MIT */
/* Commands and their options as tables, from which parsing, --help, the man page and completion follow.
 *
 * A command is a constant of this type, NAME_command, in its own file or folder, and a line in commands.c. Its options
 * fill a struct of its own that begins with a run_options, or with a tool_options if it runs no model. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include <stddef.h>

#include "cli/lineup.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "cli/values.h"

/* Common options of commands that run no model; first member of their options. */
typedef struct {
    result_options out;
    model_options model;
} tool_options;

/* Common options of commands that run a model; first member of their options. */
typedef struct {
    result_options out;
    engine_options engine;
    attn_args attn;
    seed_option seed;
} run_options;

_Static_assert(offsetof(run_options, engine.model) == offsetof(tool_options, model), "-m is in both");

typedef enum {
    OPTION_TEXT,     /* const char * */
    OPTION_TEXTS,    /* text_options */
    OPTION_FLAG,     /* bool */
    OPTION_WHOLE,    /* int in [min, max] */
    OPTION_NUMBER,   /* double */
    OPTION_SEED,     /* seed_option */
    OPTION_HELP_ATTN /* --help-attn: prints and exits */
} option_type;

/* Groups of options that several commands share. */
enum {
    OPTIONS_COMMON = 1, /* all commands */
    OPTIONS_MODEL = 2,  /* commands that run a model */
    OPTIONS_LENGTH = 4,
    OPTIONS_REPLY = 8,
    OPTIONS_PROMPT = 16,
    OPTIONS_SAMPLES = 32, /* evaluations with samples */
    OPTIONS_RESULTS = 64, /* commands that resume from a results file */
    OPTIONS_TRIALS = 128, /* commands that generate their prompts */
    OPTIONS_JOBS = 256,   /* evaluations that answer prompts in batches */
    OPTIONS_PREFIX = 512, /* commands with a prefix cache */
    OPTIONS_TABLE = 1024  /* commands that print tables without -o */
};

/* Base of the offset of a value: the command's options, or a part of them whose offset the command gives. */
typedef enum { IN_OPTIONS, IN_PREFIX, IN_TEMPLATE, IN_ARGUMENT, OPTION_PLACES } option_place;

typedef struct {
    unsigned groups;  /* OPTIONS_COMMON ...; 0: an option of one command, in its own list */
    const char *name; /* NULL: only a letter */
    int letter;       /* 0: only a name */
    const char *arg;  /* value in --help; words separated by | are the complete list; NULL: a flag */
    option_type type;
    option_place in;
    size_t at;            /* offset of the value */
    double min, max, def; /* range and default of numbers */
    const char *help;     /* line of --help */
    const char *man;      /* text in the man page; NULL: help. Paragraphs end with \n */
} cli_option;

#define AT(type, field) .at = offsetof(type, field)

/* Table row without a letter. kind: one of the types below; at: AT. */
#define OPTION(name_, arg_, kind, at_, help_)                                                                          \
    {                                                                                                                  \
        .name = name_, .arg = arg_, kind, at_, .help = help_                                                           \
    }
#define TEXT                       .type = OPTION_TEXT
#define FLAG                       .type = OPTION_FLAG
#define WHOLE(low, high, default_) .type = OPTION_WHOLE, .min = low, .max = high, .def = default_
#define NUMBER(default_)           .type = OPTION_NUMBER, .def = default_

struct evaluation_kind;

typedef struct {
    const char *name, *args, *summary;
    unsigned groups;       /* OPTIONS_MODEL ... */
    const cli_option *own; /* options of this command only; ends with a row without help */
    size_t size;           /* size of its options */
    /* Offsets of a prefix_args, the name of a template, and the positional argument; 0: none. */
    size_t place[OPTION_PLACES];
    bool alone; /* supports one process only */
    status (*run)(void *options, err *e);
    const struct evaluation_kind *evaluation; /* replaces `run`: kind of an evaluation that uses the common loop */
    const char *measure;                      /* `eval fidelity --measure NAME` runs this command; NULL: none */
} command;

/* Every command, terminated by NULL. */
extern const command *const commands[];
/* Returns the command of argv[1], of argv[1] and argv[2] ("eval recall"), or of "eval fidelity --measure NAME". *n:
 * number of its words. NULL: no such command. */
const command *command_find(char **argv, int argc, int *n);
/* Prints an error for an unknown command to stderr, with the nearest name. */
void command_unknown(char **argv, int argc);
/* Prints the commands and the names of evaluations and strategies. */
void command_usage(FILE *f);
/* Prints the evaluations, the commands of `eval`. */
void command_evaluations(FILE *f);

/* Fills cmd->size bytes of options. Usage errors, --help and --help-attn exit. */
status options_parse(void *options, const command *cmd, int argc, char **argv, err *e);
/* Returns a part of a command's options, or NULL if it has none. */
void *options_part(const command *cmd, void *options, option_place in);
/* Returns option i of a command, shared ones first, or NULL after the last. */
const cli_option *options_of(const command *cmd, size_t i);
/* Tables of shared options, each terminated by a row without help; the list ends with NULL. */
extern const cli_option *const option_tables[];
extern const cli_option shared_rows[], prefix_rows[];

/* Runs `--help-attn NAME` and returns its exit status. */
int options_help_attn(const char *name);
/* Returns the exit status of a command that only prints. */
int options_printed(void);

/* Description of the commands that share it, for --help and the man page. */
typedef struct {
    const char *names; /* separated by ", " */
    const char *text;  /* paragraphs separated by newlines */
} command_about;
/* In the order of the man page, terminated by a NULL name. */
extern const command_about command_abouts[];

/* Prints sections COMMANDS and OPTIONS of the man page. */
void options_print_man(void);
/* Prints the words that may follow a command line, one per line, for completion. */
void options_complete(int n, char **words);

#endif
