/* SPDX-License-Identifier: MIT */
/* The commands and their options, as tables. Parsing, --help, the man page and completion follow from them.
 *
 * A command is a constant of this type, NAME_command, in a file or folder of its own, and a line in commands.c. Its
 * options fill a struct of its own, which begins with a run_options, or with a tool_options if it runs no model. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include <stddef.h>

#include "cli/lineup.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "cli/values.h"

/* Options of every command that runs no model, the first member of its own. */
typedef struct {
    result_options out;
    model_options model;
} tool_options;

/* Options of every command that runs a model, the first member of its own. */
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
    OPTION_WHOLE,    /* int, from min to max */
    OPTION_NUMBER,   /* double */
    OPTION_SEED,     /* seed_option */
    OPTION_HELP_ATTN /* --help-attn: prints and ends */
} option_type;

/* Options that several commands take. */
enum {
    OPTIONS_COMMON = 1, /* of every command */
    OPTIONS_MODEL = 2,  /* of those that run a model */
    OPTIONS_LENGTH = 4,
    OPTIONS_REPLY = 8,
    OPTIONS_PROMPT = 16,
    OPTIONS_SAMPLES = 32, /* of evaluations with samples */
    OPTIONS_RESULTS = 64, /* of those that go on where a file ends */
    OPTIONS_TRIALS = 128, /* of those that make their prompts */
    OPTIONS_JOBS = 256,   /* of other evaluations that answer prompts side by side */
    OPTIONS_PREFIX = 512  /* of those that keep prompts */
};

/* Start of the offset of a value: the options of the command, or a part of them, whose offset the command has. */
typedef enum { IN_OPTIONS, IN_PREFIX, IN_TEMPLATE, IN_ARGUMENT, OPTION_PLACES } option_place;

typedef struct {
    unsigned groups;  /* of OPTIONS_COMMON ...; 0: of one command, which has it in its own list */
    const char *name; /* NULL: the letter alone */
    int letter;       /* 0: the name alone */
    const char *arg;  /* its value, as --help shows it; words separated by | are all there are; NULL: a flag */
    option_type type;
    option_place in;
    size_t at;            /* where the value goes there */
    double min, max, def; /* of numbers */
    const char *help;     /* a line of --help */
    const char *man;      /* of the man page, which else has `help`; paragraphs end with \n */
} cli_option;

#define AT(type, field) .at = offsetof(type, field)

/* A row without a letter; kind: one of those that follow; at: AT. */
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
    const cli_option *own; /* its other options; ends with a row without help */
    size_t size;           /* of its options */
    /* Offsets in them of a prefix_args, the name of a template, and the argument that is not an option; 0: none. */
    size_t place[OPTION_PLACES];
    bool alone; /* for one process, not for several ranks */
    status (*run)(void *options, err *e);
    const struct evaluation_kind *evaluation; /* instead of `run`: the loop that evaluations share */
    const char *measure;                      /* `eval fidelity --measure NAME` is this command; NULL: none */
} command;

/* All commands; ends with NULL. */
extern const command *const commands[];
/* Returns the command of argv[1], of argv[1] and argv[2] ("eval recall"), or of "eval fidelity --measure NAME".
 * *n: words it takes. NULL: no such command. */
const command *command_find(char **argv, int argc, int *n);
/* To stderr: there is no such command, with the nearest name. */
void command_unknown(char **argv, int argc);

/* Fills cmd->size bytes of options. Wrong usage, --help and --help-attn end the program. */
status options_parse(void *options, const command *cmd, int argc, char **argv, err *e);
/* Returns the part of a command's options; NULL: it has none. */
void *options_part(const command *cmd, void *options, option_place in);
/* Option i of a command, shared ones first; NULL: there are no more. */
const cli_option *options_of(const command *cmd, size_t i);
/* The options that several commands take, in tables that end with a row without help; ends with NULL. */
extern const cli_option *const option_tables[];
extern const cli_option shared_rows[], prefix_rows[];

/* The exit status of `--help-attn NAME`. */
int options_help_attn(const char *name);
/* The exit status of what only prints. */
int options_printed(void);

/* The section OPTIONS of the man page. */
void options_print_man(void);
/* What may come next after the words of a command line, a line each: for completion. */
void options_complete(int n, char **words);

#endif
