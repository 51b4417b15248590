# SPDX-License-Identifier: MIT
# Everything generated from the tables of commands and options: sections of the man page, --help and completion.
. "$SRCDIR/tests/cli/lib.sh"

run --print-man
cp "$tmp/out" "$tmp/man"
sed '1,/^\.\\" From here on/d; /^\.\\" So far/,$d' "$SRCDIR/kvasir.1" >"$tmp/page"
check "the man page has the commands and options of the tables (else: make man)" cmp "$tmp/out" "$tmp/page"
out_has '\fB\-\-max\-length\fR \fIN\fR' "it names options"

# completes WORD NAME WORDS...: WORD is among what may follow.
completes() {
    word=$1 name=$2
    shift 2
    run --complete "$@"
    check "completion: $name" grep -qx -- "$word" "$tmp/out"
}
completes generate "commands" ""
completes eval "the first word of a command of two" ""
completes longbench2 "the second word" eval ""
completes --trials "options of a command" passkey ""
completes -m "letters" passkey --
completes prefill "values of an option" passkey --protocol ""
completes quest "strategies" generate --attn ""
completes auto "and their aliases" generate --attn ""
completes --cot "options of a command of two words" eval longbench2 -
run --complete passkey --json ""
check "a file's name is left to the shell" test ! -s "$tmp/out"
run --complete generate ""
check "no options of other commands" sh -c "! grep -q trials '$tmp/out'"

if command -v bash >/dev/null; then
    found=$(bash -c '. "$SRCDIR/kvasir.bash"; COMP_WORDS=("$RUN" eval long); COMP_CWORD=2; _kvasir; echo "${COMPREPLY[*]}"')
    check "bash completes a word" test "$found" = "longbench longbench2"
else
    skip "bash is not there"
fi
if command -v zsh >/dev/null; then
    # shellcheck disable=SC2016
    zsh -fc 'compadd() { print -l "${next[@]}"; }; _files() { echo files; }; words=("$RUN" eval lo) CURRENT=3
        . "$SRCDIR/_kvasir"; words=("$RUN" passkey --json "") CURRENT=4; _kvasir' >"$tmp/out" 2>"$tmp/err"
    check "zsh gets words" grep -qx longbench2 "$tmp/out"
    check "or completes names of files" test "$(tail -n 1 "$tmp/out")" = files
else
    skip "zsh is not there"
fi

run --help
sed -n '/^Strategies/q; s/^  \([a-z]*\) .*/\1/p' "$tmp/out" | grep -v -e '^$' -e '^eval$' >"$tmp/commands"
run help eval
sed -n 's/^  \([a-z0-9][a-z0-9]*\) .*/eval \1/p' "$tmp/out" >>"$tmp/commands"
check "--help names commands" grep -qx generate "$tmp/commands"
check "help eval names evaluations" grep -qx 'eval longbench2' "$tmp/commands"
while read -r command; do
    # shellcheck disable=SC2086
    run $command --help
    grep -oE '^ {2,6}(-[a-zA-Z], )?--[a-z-]+' "$tmp/out" | grep -oE -- '--[a-z-]+' | grep -v -e --help$ -e --usage | sort >"$tmp/help"
    # shellcheck disable=SC2086
    run --complete $command -
    grep -- -- "$tmp/out" | grep -v -e --help$ | sort >"$tmp/completed"
    check "$command: --help and completion have the same options" cmp "$tmp/help" "$tmp/completed"
    run $command --help
    check "$command: described after the options" sh -c "tail -n 1 '$tmp/out' | grep -q '^[^ ]'"
    check "$command: described in the man page" grep -qF "\\fB$command\\fR" "$tmp/man"
done <"$tmp/commands"
finish
