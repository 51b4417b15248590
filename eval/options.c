/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/options.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/nearest.h"

/* Options that argp adds by itself. */
static const struct argp_option argp_own[] = {{"help", '?', 0, 0, 0, 0}, {"usage", 1, 0, 0, 0, 0}, {0}};

/* The option of a word "--name" or "--name=value", n bytes of a name that may be shortened; NULL: there is none. */
static const struct argp_option *find_option(const struct argp_option *o, const char *name, size_t n,
                                             nearest *near)
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

status options_check(const struct argp_option *options, int argc, char **argv, err *e)
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
                return err_set(e, ST_USAGE, "unknown option '--%.*s' (did you mean '--%s'?)", (int)n, name,
                               near.name);
            if (!o) return err_set(e, ST_USAGE, "unknown option '--%.*s', see --help", (int)n, name);
        } else if (argv[i][0] == '-' && argv[i][1]) {
            o = find_letter(options, argv[i][1]);
            joined = argv[i][2];
        }
        if (o && o->arg && !joined) i++;
    }
    return ST_OK;
}

void options_unknown_command(const char *found, const char *const *names)
{
    nearest near;
    nearest_start(&near, found);
    for (size_t i = 0; names[i]; i++) nearest_try(&near, names[i], strlen(names[i]));
    fprintf(stderr, "run: unknown command '%s'%s\n\n", found, nearest_hint(&near));
}
