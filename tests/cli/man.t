# SPDX-License-Identifier: MIT
# Manual pages and completions as `make install` puts them. kvasir(3) has all of kvasir.h: names, prototypes, comments.
. "$SRCDIR/tests/cli/lib.sh"
header="$SRCDIR/api/kvasir.h"
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -C "$(dirname "$RUN")" DESTDIR="$tmp/root" install-man \
    install-dist_bashcompletionDATA install-dist_zshcompletionDATA >"$tmp/out" 2>"$tmp/err"
check "they are installed" test $? -eq 0
man3=$(dirname "$(find "$tmp/root" -name kvasir.3)")
man1=${man3%/man3}/man1
check "the program's page" test -s "$man1/kvasir.1"
check "bash completion, under a name that bash looks for" \
    test -s "$(find "$tmp/root" -path '*/bash-completion/completions/kvasir.bash')"
check "zsh completion" test -s "$(find "$tmp/root" -path '*/site-functions/_kvasir')"

# ---- a page for each function ----
grep -v '^#' "$header" | tr '\n' ' ' | grep -oE 'KVASIR_API [^;]*;' | sed 's/KVASIR_API //; s/  */ /g' >"$tmp/prototypes"
sed 's/(.*//; s/.*[ *]//' "$tmp/prototypes" >"$tmp/functions"
check "the header has functions" test "$(wc -l <"$tmp/functions")" -ge 25
while read -r f; do echo ".so man3/kvasir.3" | cmp -s - "$man3/$f.3" || echo "$f"; done <"$tmp/functions" >"$tmp/out"
check "each has a page that leads to kvasir.3" test ! -s "$tmp/out"
check "and nothing else has" test "$(find "$man3" -type f | wc -l)" -eq $(($(wc -l <"$tmp/functions") + 1))
sed -n '/^\.SH NAME/,/^\.SH SYNOPSIS/p' "$man3/kvasir.3" | tr ' ,' '\n\n' >"$tmp/name"
grep -vxFf "$tmp/name" "$tmp/functions" >"$tmp/out"
check "each is in NAME" test ! -s "$tmp/out"

# ---- what the page says ----
# squeezed: one line, single spaces.
squeezed() { tr -s ' \t\n' '   '; }
backspace=$(printf '\b')
if command -v mandoc >/dev/null; then
    mandoc -Tutf8 "$man3/kvasir.3"
elif command -v man >/dev/null; then
    man --nh --nj -l "$man3/kvasir.3"
fi 2>"$tmp/err" | sed "s/.$backspace//g" >"$tmp/page"
if [ -s "$tmp/page" ]; then
    squeezed <"$tmp/page" >"$tmp/text"
    sed '/^DESCRIPTION/q' "$tmp/page" | squeezed >"$tmp/synopsis"
    while read -r p; do grep -qF -- "$p" "$tmp/synopsis" || echo "$p"; done <"$tmp/prototypes" >"$tmp/out"
    check "SYNOPSIS has each prototype" test ! -s "$tmp/out"
    # A line for each paragraph of a comment; those that are there for the header's readers are left out.
    awk '{ while (match($0, /\/\*/)) {
            $0 = substr($0, RSTART + 2); c = ""
            while (!match($0, /\*\//)) {
                c = c ($0 ~ /^[ *]*$/ ? "\n" : " " $0); getline; sub(/^ *\*/, "*"); if ($0 !~ /^\*\//) sub(/^\*/, "")
            }
            print c " " substr($0, 1, RSTART - 1); $0 = substr($0, RSTART + 2) } }' "$header" |
        tr -d '`' | tr -s ' ' | sed 's/^ //; s/ $//; s/^libkvasir: //' | grep -vE '^$|^SPDX|^----' >"$tmp/comments"
    check "the header has comments" test "$(wc -l <"$tmp/comments")" -ge 80
    # The first line is the page's name, without the full stop.
    sed -i '1s/\.$//' "$tmp/comments"
    while read -r c; do grep -qF -- "$c" "$tmp/text" || echo "$c"; done <"$tmp/comments" >"$tmp/out"
    check "it has each comment" test ! -s "$tmp/out"
    [ ! -s "$tmp/out" ] || show
    grep -oE '\bKVASIR_[A-Z]+\b' "$header" | sort -u | grep -vx -e KVASIR_API -e KVASIR_H >"$tmp/constants"
    sed -n 's/^} \(kvasir_[a-z]*\);/\1/p' "$header" >"$tmp/structs"
    check "there are constants and structs" test "$(wc -l <"$tmp/constants")" -ge 12 -a "$(wc -l <"$tmp/structs")" -ge 6
    while read -r c; do grep -qwF -- "$c" "$tmp/text" || echo "$c"; done <"$tmp/constants" >"$tmp/out"
    check "and each constant" test ! -s "$tmp/out"
    while read -r c; do grep -qF -- "{ ... } $c;" "$tmp/text" || echo "$c"; done <"$tmp/structs" >"$tmp/out"
    check "and each struct" test ! -s "$tmp/out"
    sed -n '/^typedef struct {/,/^}/s/^    \([^/* ][^/]*;\).*/\1/p' "$header" >"$tmp/fields"
    while read -r c; do grep -qF -- "$c" "$tmp/text" || echo "$c"; done <"$tmp/fields" >"$tmp/out"
    check "and each of their fields" test ! -s "$tmp/out" -a "$(wc -l <"$tmp/fields")" -ge 40
else
    skip "neither mandoc nor man is there"
fi
if command -v mandoc >/dev/null; then
    mandoc -Tlint -Wwarning "$man3/kvasir.3" "$man1/kvasir.1" 2>&1 | grep -v 'cannot parse date' >"$tmp/out"
    check "mandoc has nothing to say" test ! -s "$tmp/out"
    [ ! -s "$tmp/out" ] || show
else
    skip "mandoc is not there"
fi

# ---- what it does not understand ends make ----
printf '/* A. */\nstruct strange { int a; };\n' | "${AWK:-awk}" -f "$SRCDIR/api/man3.awk" >"$tmp/out" 2>"$tmp/err"
check "an unknown declaration is an error" test $? -eq 1
err_has "not understood: struct strange" "that names it"
finish
