/* SPDX-License-Identifier: MIT */
/* Man page section and shell completion, generated from the tables of commands and options. */
#include "config.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"

/* ---- the man page ---- */

/* Prints text for troff. Words that begin with a dash are options, in bold. */
static void put_text(const char *s)
{
    bool bold = false, start = true;
    for (; *s; s++) {
        bool word = isalnum((unsigned char)*s) || *s == '-';
        if (bold && !word) fputs("\\fR", stdout), bold = false;
        if (start && *s == '-' && (s[1] == '-' || isalpha((unsigned char)s[1]))) fputs("\\fB", stdout), bold = true;
        if (*s == '\n') fputs("\n.IP\n", stdout);
        else if (*s == '-') fputs("\\-", stdout);
        else if (*s == '\\') fputs("\\e", stdout);
        else putchar(*s);
        start = strchr(" (\n", *s) != NULL;
    }
    fputs(bold ? "\\fR" : "", stdout);
}

static void put_option(const cli_option *o)
{
    fputs(".TP\n\\fB", stdout);
    if (o->letter) printf("\\-%c", o->letter);
    if (o->letter && o->name) fputs(", ", stdout);
    if (o->name) {
        fputs("\\-\\-", stdout);
        for (const char *c = o->name; *c; c++) fputs(*c == '-' ? "\\-" : (char[2]){*c}, stdout);
    }
    fputs("\\fR", stdout);
    if (o->arg) {
        fputs(" \\fI", stdout);
        put_text(o->arg);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    if (o->man) {
        put_text(o->man);
    } else { /* makes a line of --help a sentence */
        putchar(toupper((unsigned char)o->help[0]));
        put_text(o->help + 1);
        putchar('.');
    }
    putchar('\n');
}

/* Lists the commands that have a shared option. */
static void takers(char *out, size_t size, unsigned groups)
{
    size_t n = 0, of = 0, all = 0, k = 0;
    for (const command *const *c = commands; *c; c++) all++, of += ((*c)->groups & groups) != 0;
    if (groups & OPTIONS_COMMON) of = 0;
    if (of == 0) snprintf(out, size, "every command");
    for (const command *const *c = commands; of > 0 && *c && n < size; c++) {
        if (!((*c)->groups & groups)) continue;
        const char *before = k == 0 ? "" : k + 1 == of ? " and " : ", ";
        n += (size_t)snprintf(out + n, size - n, "%s%s", before, (*c)->name);
        k++;
    }
}

static void put_commands(void)
{
    puts(".SH COMMANDS");
    for (const command_about *a = command_abouts; a->names; a++) {
        fputs(".TP\n\\fB", stdout);
        for (const char *c = a->names; *c; c++) {
            if (*c == ',') fputs("\\fR, \\fB", stdout), c++;
            else putchar(*c);
        }
        fputs("\\fR", stdout);
        for (const command *const *c = commands; *c; c++)
            if (*(*c)->args && strcmp((*c)->name, a->names) == 0) printf(" \\fI%s\\fR", (*c)->args);
        putchar('\n');
        put_text(a->text);
        putchar('\n');
    }
}

void options_print_man(void)
{
    char last[512] = "", now[512];
    put_commands();
    puts(".SH OPTIONS");
    for (const cli_option *const *t = option_tables; *t; t++)
        for (const cli_option *o = *t; o->help; o++) {
            takers(now, sizeof now, o->groups);
            if (strcmp(now, last) != 0) printf("%sFor %s:\n", last[0] ? ".PP\n" : "", now);
            strcpy(last, now);
            put_option(o);
        }
    for (const command *const *c = commands; *c; c++) {
        if ((*c)->own) printf(".PP\nFor %s:\n", (*c)->name);
        for (const cli_option *o = (*c)->own; o && o->help; o++) put_option(o);
    }
}

/* ---- completion ---- */

/* Prints the words of a list such as "auto|builtin". */
static void print_choices(const char *arg)
{
    for (const char *s = arg; *s; s += strcspn(s, "|"), s += *s == '|') printf("%.*s\n", (int)strcspn(s, "|"), s);
}

static void print_strategies(void)
{
    for (const attn_method *const *m = attn_methods(); *m; m++) puts(attn_method_name(*m));
    for (const attn_alias *a = attn_aliases(); a->name; a++) puts(a->name);
}

/* Completes the value of the option `word`. False: it is not an option with a value. */
static bool complete_value(const command *cmd, const char *word)
{
    const cli_option *o;
    for (size_t i = 0; (o = options_of(cmd, i)); i++) {
        bool named = o->name && strncmp(word, "--", 2) == 0 && strcmp(word + 2, o->name) == 0;
        if (!o->arg || !(named || (word[0] == '-' && word[1] == o->letter && !word[2]))) continue;
        if (strchr(o->arg, '|')) print_choices(o->arg);
        if (named && (strcmp(o->name, "attn") == 0 || strcmp(o->name, "help-attn") == 0)) print_strategies();
        return true;
    }
    return false;
}

static void complete_names(const char *first)
{
    size_t n = strlen(first);
    for (const command *const *c = commands; *c; c++) {
        const char *name = (*c)->name;
        if (n == 0) printf("%.*s\n", (int)strcspn(name, " "), name);
        else if (strncmp(name, first, n) == 0 && name[n] == ' ') puts(name + n + 1);
    }
    if (n == 0) puts("help\n--help\n--help-attn\n--version");
}

void options_complete(int n, char **words)
{
    char none[] = "", *argv[3] = {none, n > 0 ? words[0] : none, n > 1 ? words[1] : none};
    int taken;
    const cli_option *o;
    const command *cmd = command_find(argv, 3, &taken);
    if (n < 2 || !cmd || n <= taken) {
        complete_names(n < 2 ? "" : words[0]);
        return;
    }
    if (n > taken + 1 && complete_value(cmd, words[n - 2])) return;
    for (size_t i = 0; (o = options_of(cmd, i)); i++)
        if (o->name) printf("--%s\n", o->name);
        else printf("-%c\n", o->letter);
    puts("--help");
}
