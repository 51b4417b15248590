/* SPDX-License-Identifier: MIT */
/* Parses command lines with argp, which also prints --help. */
#include "config.h"

#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/output.h"
#include "kernels/base/nearest.h"

/* FIRST_KEY: first argp key of options without a letter */
enum { MAX_OPTIONS = 80, FIRST_KEY = 256 };

/* Options of a command for argp; argp[i] is row[i]. -h and a terminator follow. */
typedef struct {
    struct argp_option argp[MAX_OPTIONS + 2];
    const cli_option *row[MAX_OPTIONS];
    size_t n;
    const command *cmd;
    void *options;
} parsing;

const cli_option *options_of(const command *cmd, size_t i)
{
    for (const cli_option *const *t = option_tables; *t; t++)
        for (const cli_option *o = *t; o->help; o++)
            if (o->groups & (OPTIONS_COMMON | cmd->groups) && i-- == 0) return o;
    for (const cli_option *o = cmd->own; o && o->help; o++)
        if (i-- == 0) return o;
    return NULL;
}

/* Returns the section of an option in --help: model, replies or command. */
static int section_of(const cli_option *o)
{
    if (o->groups & (OPTIONS_COMMON | OPTIONS_MODEL | OPTIONS_LENGTH)) return 1;
    return o->groups & OPTIONS_REPLY ? 2 : 3;
}

static void collect(parsing *p)
{
    for (const cli_option *o; p->n < MAX_OPTIONS && (o = options_of(p->cmd, p->n)); p->n++) {
        p->row[p->n] = o;
        p->argp[p->n] = (struct argp_option){
            o->name, o->letter ? o->letter : FIRST_KEY + (int)p->n, o->arg, 0, o->help, section_of(o)};
    }
    p->argp[p->n] = (struct argp_option){NULL, 'h', NULL, OPTION_HIDDEN, NULL, 0}; /* -h is --help */
}

/* ---- unknown options ---- */

/* Options that argp adds itself. */
static const struct argp_option argp_own[] = {{"help", '?', 0, 0, 0, 0}, {"usage", 1, 0, 0, 0, 0}, {0}};

/* Returns the option of a word "--name" or "--name=value". name[0, n) may be abbreviated. NULL: unknown. */
static const struct argp_option *find_option(const struct argp_option *o, const char *name, size_t n, nearest *near)
{
    for (; o->name || o->key; o++) {
        if (!o->name) continue;
        if (strncmp(o->name, name, n) == 0) return o;
        nearest_try(near, o->name, strlen(o->name));
    }
    return NULL;
}

static const struct argp_option *find_letter(const struct argp_option *o, int letter)
{
    for (; o->name || o->key; o++)
        if (o->key == letter) return o;
    return NULL;
}

/* Reports unknown long options in one line with a hint, unlike argp. Options may be abbreviated as in getopt_long; argp
 * reports other errors. */
static status check_names(const struct argp_option *options, int argc, char **argv, err *e)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const struct argp_option *o = NULL;
        const char *name = argv[i] + 2;
        bool joined = false; /* its value is in the same word */
        char word[NEAREST_MAX + 1];
        nearest near;
        if (strncmp(argv[i], "--", 2) == 0) {
            size_t n = strcspn(name, "=");
            snprintf(word, sizeof word, "%.*s", n < sizeof word ? (int)n : 0, name);
            nearest_start(&near, word);
            joined = name[n] == '=';
            o = find_option(options, name, n, &near);
            if (!o) o = find_option(argp_own, name, n, &near);
            if (!o && near.name[0])
                return err_set(e, ST_USAGE, "unknown option '--%.*s' (did you mean '--%s'?)", (int)n, name, near.name);
            if (!o) return err_set(e, ST_USAGE, "unknown option '--%.*s', see --help", (int)n, name);
        } else if (argv[i][0] == '-' && argv[i][1]) {
            o = find_letter(options, argv[i][1]);
            joined = argv[i][2];
        }
        if (o && o->arg && !joined) i++;
    }
    return ST_OK;
}

/* ---- values ---- */

/* prints one line, unlike argp_error */
#define wrong_usage(state, ...) argp_failure(state, 2, 0, __VA_ARGS__)

/* Writes "--name", or "-n" for an option without a name. */
static const char *spelling(const cli_option *o, char out[64])
{
    if (o->name) snprintf(out, 64, "--%s", o->name);
    else snprintf(out, 64, "-%c", o->letter);
    return out;
}

static double number(struct argp_state *state, const cli_option *o, const char *text)
{
    char *end, name[64];
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || *end || errno) wrong_usage(state, "%s: '%s' is not a number", spelling(o, name), text);
    return v;
}

static int whole(struct argp_state *state, const cli_option *o, const char *text)
{
    char *end, name[64];
    errno = 0;
    long v = strtol(text, &end, 10);
    if (end == text || *end || errno || (double)v < o->min || (double)v > o->max)
        wrong_usage(state, "%s: '%s', expected a whole number from %d to %d", spelling(o, name), text, (int)o->min,
                    (int)o->max);
    return (int)v;
}

static uint64_t seed(struct argp_state *state, const cli_option *o, const char *text)
{
    char *end, name[64];
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || v < 0)
        wrong_usage(state, "%s: '%s', expected a whole number from 0 to %lld", spelling(o, name), text, LLONG_MAX);
    return (uint64_t)v;
}

void *options_part(const command *cmd, void *options, option_place in)
{
    return cmd->place[in] || in == IN_OPTIONS ? (char *)options + cmd->place[in] : NULL;
}

static void *field(const parsing *p, const cli_option *o)
{
    return (char *)options_part(p->cmd, p->options, o->in) + o->at;
}

static void set_default(const parsing *p, const cli_option *o)
{
    if (o->type == OPTION_WHOLE) *(int *)field(p, o) = (int)o->def;
    if (o->type == OPTION_NUMBER) *(double *)field(p, o) = o->def;
    if (o->type == OPTION_SEED) ((seed_option *)field(p, o))->value = (uint64_t)o->def;
}

static void add_text(struct argp_state *state, text_options *t, const cli_option *o, const char *text)
{
    const int most = sizeof t->text / sizeof *t->text;
    char name[64];
    if (t->n == most) wrong_usage(state, "%s: given more than %d times", spelling(o, name), most);
    t->text[t->n++] = text;
}

static void take(struct argp_state *state, const parsing *p, const cli_option *o, char *arg)
{
    switch (o->type) {
    case OPTION_TEXT: *(const char **)field(p, o) = arg; return;
    case OPTION_FLAG: *(bool *)field(p, o) = true; return;
    case OPTION_WHOLE: *(int *)field(p, o) = whole(state, o, arg); return;
    case OPTION_NUMBER: *(double *)field(p, o) = number(state, o, arg); return;
    case OPTION_SEED: *(seed_option *)field(p, o) = (seed_option){seed(state, o, arg), true}; return;
    case OPTION_TEXTS: return add_text(state, field(p, o), o, arg);
    case OPTION_HELP_ATTN: exit(options_help_attn(arg));
    }
}

static error_t on_key(int key, char *arg, struct argp_state *state)
{
    parsing *p = state->input;
    for (size_t i = 0; i < p->n; i++)
        if (p->argp[i].key == key) return take(state, p, p->row[i], arg), 0;
    if (key == 'h') argp_state_help(state, stdout, ARGP_HELP_STD_HELP);
    if (key != ARGP_KEY_ARG) return ARGP_ERR_UNKNOWN;
    const char **argument = options_part(p->cmd, p->options, IN_ARGUMENT);
    if (!argument || *argument) wrong_usage(state, "unexpected argument '%s'", arg);
    *argument = arg;
    return 0;
}

/* Returns the description of a command. */
static const char *about_of(const char *name)
{
    size_t n = strlen(name);
    for (const command_about *a = command_abouts; a->names; a++)
        for (const char *c = a->names; c; c = strstr(c, ", ") ? strstr(c, ", ") + 2 : NULL)
            if (strncmp(c, name, n) == 0 && (c[n] == 0 || c[n] == ',')) return a->text;
    return "";
}

status options_parse(void *options, const command *cmd, int argc, char **argv, err *e)
{
    static char name[64]; /* argp keeps a pointer to it in argv[0] */
    parsing p = {.cmd = cmd, .options = options};
    collect(&p);
    for (size_t i = 0; i < p.n; i++) set_default(&p, p.row[i]);
    char doc[4096];
    snprintf(doc, sizeof doc, "%s\v%s", cmd->summary, about_of(cmd->name));
    struct argp argp = {p.argp, on_key, *cmd->args ? cmd->args : NULL, doc, NULL, NULL, NULL};
    snprintf(name, sizeof name, "%s %s", program_invocation_short_name, cmd->name);
    argv[0] = name;
    argp_err_exit_status = 2;
    TRY(check_names(p.argp, argc, argv, e));
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &p);
    return ST_OK;
}

/* ---- --help-attn ---- */

int options_printed(void)
{
    err e = {0};
    if (out_flush(&e) == ST_OK) return 0;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, e.msg);
    return 1;
}

int options_help_attn(const char *name)
{
    const attn_alias *as = attn_alias_find(name);
    const attn_method *m = attn_method_find(as ? as->method : name);
    if (as) printf("%s: %s\n\n", as->name, as->summary);
    if (!m && strcmp(name, "list") != 0 && strcmp(name, "all") != 0) {
        err e = {0};
        attn_method_unknown("--help-attn", name, &e);
        fprintf(stderr, "%s: %s\n", program_invocation_short_name, e.msg);
        return 2;
    }
    attn_print_help(stdout, m);
    return options_printed();
}
