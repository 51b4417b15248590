#!/bin/sh
# SPDX-License-Identifier: MIT
# Generates files.mk (lists of source and data files) and ./configure. Needs autoconf, automake and pkg-config.
#   autogen.sh [lists]    lists: only files.mk
set -e
cd "$(dirname "$0")"
list() { # list NAME "FOLDER..." PATTERN...: prints the matching files (without .xz) as a make variable
    printf '%s =' "$1"
    folder=$2
    shift 2
    for pattern in "$@"; do find $folder -name "$pattern" -type f; done | sed 's/\.xz$//' | LC_ALL=C sort -u |
        while read -r file; do printf ' \\\n  %s' "$file"; done
    echo
}
{
    echo '# Made by autogen.sh'
    list listed_sources "attention cli commands eval generate grammar lens model" '*.[ch]'
    list eval_data eval '*.json' '*.jsonl' '*.txt' '*.txt.xz' '*.tsv' '*.md' LICENSE
} >files.mk
[ "$1" = lists ] || autoreconf --install --force --warnings=all
