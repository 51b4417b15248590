# SPDX-License-Identifier: MIT
# What code, help and pages cite is there: sections of the specifications, files and headings that links name,
# and the commands of doc/methods.md.
. "$SRCDIR/tests/cli/lib.sh"
pages="methods evals"
dirs="api attention cli commands doc eval examples generate kernels lens model python scripts serve tests tokenizer"

# Section numbers of a page's headings ("## 13a. Comparison" is 13a), one a line.
headings() { sed -n 's/^##*  *\([0-9][0-9]*[a-z]\{0,1\}\(\.[0-9][0-9]*\)*\)\.\{0,1\} .*/\1/p' "$1"; }

# sections PAGE FILE...: "SECTION FILE" for each section of PAGE.md that a file cites. Lines are joined without what
# marks comments and strings, as citations may be cut. After a comma a number needs a dot ("6.1, 7.2", not "9.7, 32").
sections() {
    page=$1
    shift
    awk -v page="$page" '
    function number() {
        if (!match(text, /^[0-9]+[a-z]?(\.[0-9]+)*/)) return ""
        num = substr(text, 1, RLENGTH)
        text = substr(text, RLENGTH + 1)
        return num
    }
    function cited(file,    num) {
        while (match(text, page "\\.md[`),;]*( sections?| section| points?)? [0-9]")) {
            text = substr(text, RSTART + RLENGTH - 1)
            for (num = number(); num != ""; num = number()) {
                print num, file
                if (match(text, /^ (and|to|or) [0-9]/)) text = substr(text, RLENGTH)
                else if (match(text, /^, [0-9]+[a-z]?\.[0-9]/)) text = substr(text, 3)
                else break
            }
        }
    }
    function reversed(file) {
        while (match(text, " [0-9]+[a-z]?(\\.[0-9]+)* of (doc/)?" page "\\.md")) {
            num = substr(text, RSTART + 1)
            sub(/ of .*/, "", num)
            print num, file
            text = substr(text, RSTART + RLENGTH)
        }
    }
    function done() { text = all; cited(name); text = all; reversed(name); all = "" }
    FNR == 1 { if (NR > 1) done(); name = FILENAME }
    { sub(/^[ \t]*([*#"]|\/\*|\/\/)*[ \t]*/, ""); sub(/"$/, ""); all = all " " $0 }
    END { done() }' "$@" | sort -u
}

# dangling PAGE DIR FILE...: citations of sections that DIR/PAGE.md does not have.
dangling() {
    page=$1
    headings "$2/$page.md" >"$tmp/headings"
    shift 2
    sections "$page" "$@" | while read -r num file; do grep -qxF -- "$num" "$tmp/headings" || echo "$file cites $page.md $num"; done
}

# section NUMBER: a section of doc/methods.md, to the next heading.
section() { awk -v n="$1" '/^##* [0-9]/ { num = $2; sub(/\.$/, "", num); in_it = num == n } in_it' doc/methods.md; }

# Anchors of a page as its hosts make them: lower case, no punctuation, - for a space.
anchors() { sed -n 's/^##* //p' "$1" | tr 'A-Z ' 'a-z-' | sed 's/[^a-z0-9_-]//g'; }

# broken FILE: targets of its links that do not exist. Not those of the net.
broken() {
    dir=$(dirname "$1")
    awk '/^    /{next} { line = $0
        while (match(line, /\]\([^) ]+\)/)) { print substr(line, RSTART + 2, RLENGTH - 3); line = substr(line, RSTART + RLENGTH) } }' "$1" |
        grep -v '^[a-z]*:' | sort -u | while read -r link; do
        path=${link%%#*} anchor=${link#"${link%%#*}"}
        to=$dir/$path
        [ -n "$path" ] || to=$1
        if [ ! -e "$to" ]; then echo "$1: $link does not exist"
        elif [ -n "$anchor" ] && ! anchors "$to" | grep -qxF -- "${anchor#\#}"; then echo "$1: $link is no heading"; fi
    done
}

# none NAME COMMAND...: passes when the command prints nothing.
none() {
    name=$1
    shift
    "$@" >"$tmp/out" 2>"$tmp/err"
    if [ -s "$tmp/out" ] || [ -s "$tmp/err" ]; then fail "$name"; show; else pass "$name"; fi
}

# ---- the test can fail ----
mkdir "$tmp/try"
printf '# T\n\n## 1. One\n\n### 1.2 Two\n\n[a](b.md) [c](#1-one) [d](#2-none)\n' >"$tmp/try/methods.md"
printf '/* Of %s 1.2, 7.5; see\n * %s section 1 and 9. */ "as %s\n * 4.1" %s 1.2, 32 times; point 8 of doc/%s */\n' \
    methods.md doc/methods.md methods.md methods.md methods.md >"$tmp/try/a.c"
dangling methods "$tmp/try" "$tmp/try/a.c" | sed 's/.* //' | tr '\n' ' ' >"$tmp/out"
check "sections that do not exist are found" test "$(cat "$tmp/out")" = "4.1 7.5 8 9 "
broken "$tmp/try/methods.md" | sed 's/.*: //' | tr '\n' ';' >"$tmp/out"
check "links to nothing are found" test "$(cat "$tmp/out")" = "#2-none is no heading;b.md does not exist;"

# ---- citations ----
cd "$SRCDIR" || exit 1
# shellcheck disable=SC2086
find $dirs -type f \( -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.py' -o -name '*.t' -o -name '*.md' -o \
    -name '*.sh' -o -name '*.mk' \) ! -path tests/cli/docs.t ! -path '*/data/*' >"$tmp/files"
for file in README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md kvasir.1 run.c; do [ ! -e "$file" ] || echo "$file" >>"$tmp/files"; done
"$RUN" --help-attn list | sed -n 's/^  \([a-z0-9][a-z0-9]*\) .*/\1/p' | grep -v '^all$' >"$tmp/strategies"
mkdir "$tmp/help"
# Folded lines are joined.
unfolded() { awk '/^     / { sub(/^ +/, " "); printf "%s", $0; next } { printf "%s%s", (NR > 1 ? "\n" : ""), $0 } END { print "" }'; }
while read -r strategy; do "$RUN" --help-attn "$strategy" </dev/null | unfolded >"$tmp/help/$strategy"; done <"$tmp/strategies"
for page in $pages; do
    # shellcheck disable=SC2046
    none "every section of $page.md that code and pages cite exists" dangling "$page" doc $(cat "$tmp/files")
    # shellcheck disable=SC2046
    check "sections of $page.md are cited" test $(sections "$page" $(cat "$tmp/files") | wc -l) -ge 20
done
none "every section that --help-attn cites exists" dangling methods doc "$tmp"/help/*
while read -r strategy; do
    check "--help-attn $strategy names its section" grep -q '^  source: .*; doc/methods\.md [0-9]' "$tmp/help/$strategy"
    of=$(sed -n 's/^  source: .*, deviations \([0-9][0-9a-z.]*\).*/\1/p' "$tmp/help/$strategy")
    section "$of" >"$tmp/section"
    check "--help-attn $strategy names the section of its deviations" grep -qE '^#+ .* Deviations$|^\*Deviations\.\*' "$tmp/section"
    check "doc/methods.md has a section of $strategy" grep -qE "[Ss]trategy \`$strategy\`|^\`$strategy\` keeps" doc/methods.md
done <"$tmp/strategies"

# ---- links ----
grep '\.md$' "$tmp/files" | sort >"$tmp/markdown"
while read -r file; do none "links of $file" broken "$file"; done <"$tmp/markdown"

# ---- commands: strategies, stores and places are accepted as doc/methods.md writes them ----
if "$RUN" tokenize </dev/null 2>&1 | grep -q 'built without SentencePiece'; then
    skip "the built-in model needs SentencePiece"
else
    sed -n 's/^    \(\.\/run .*\)/\1/p' doc/methods.md | sed 's/  *#.*//' >"$tmp/commands"
    check "doc/methods.md has commands" test "$(wc -l <"$tmp/commands")" -ge 20
    while read -r line; do
        option() { echo "$line" | sed -n "s/.* --$1 \([^ ]*\).*/\1/p"; }
        budgets=$(option budget) kv=$(option kv) tier=$(option kv-tier)
        bad=
        for attn in $(option attn | tr ',' ' '); do
            for budget in $(echo "${budgets:-none}" | tr ',' ' '); do
                set -- generate -p x -n 1 --ctx 4096 --quiet --attn "$attn"
                [ "$budget" = none ] || [ -z "$(sed -n 's/^  budget .*/b/p' "$tmp/help/${attn%%:*}")" ] || set -- "$@" --budget "$budget"
                [ -z "$kv" ] || set -- "$@" --kv "$kv"
                [ -z "$tier" ] || set -- "$@" --kv-tier "$tier"
                run "$@"
                [ "$status" -eq 0 ] || bad="$bad $attn"
            done
        done
        if [ -z "$bad" ]; then pass "$line"; else fail "$line:$bad"; show; fi
    done <"$tmp/commands"
fi
finish
