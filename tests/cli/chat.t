# SPDX-License-Identifier: MIT
. "$SRCDIR/tests/cli/lib.sh"
m="$models/llama31-f32-tied"
# talk LINES ARGS...: feeds the lines (as printf writes them).
talk() {
    printf "%b" "$1" >"$tmp/in"
    shift
    "$RUN" chat "$@" <"$tmp/in" >"$tmp/out" 2>"$tmp/err"
    status=$?
}
turns() { sed -n 's/^prompt \([0-9]*\) tokens.*/\1/p' "$tmp/err" | tr '\n' ' '; }

talk 'Hello there, Alice.\nAnd again.\nOnce more.\n' -m "$m" -n 6 --temp 0
check "three turns" test "$status" -eq 0
# shellcheck disable=SC2046
set -- $(turns)
check "each turn is answered" test $# -eq 3
check "later turns feed only what is new ($*)" test "$2" -lt "$1" -a "$3" -lt "$1"
talk 'Hello there, Alice.\nAnd again.\n' -m "$models/qwen3-bf16" -n 6 --temp 0 --attn streaming --budget 24
check "an evicting strategy keeps its cache between turns" test "$status" -eq 0
talk '' -m "$m"
check "end of input ends the chat" test "$status" -eq 0
if has_sentencepiece; then
    talk 'x\n' -m "$models/llama-dynamic-f32"
    check "no template: refused" test "$status" -eq 1
    err_has "vicuna" "with the list of templates"
else
    skip "the folder without a template needs SentencePiece"
fi
talk 'x\n' -m "$m" --template nonsense
check "unknown template: exit status 2" test "$status" -eq 2
err_has "--template: unknown template 'nonsense' (llama3," "with the option and the names"
talk 'Hello.\nAgain.\n' -m "$m" -n 3 --json "$tmp/r.json"
check "--json has each reply" test "$(grep -c '"new_tokens": 3' "$tmp/r.json")" -eq 2
talk "$(seq 1 400 | tr '\n' ' ')" -m "$m" --ctx 64
check "a turn beyond the context: refused" test "$status" -eq 1
err_has "context of 64" "with the numbers"
finish
