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
    err_has "name one with --template" "with a way out"
    talk 'The pass key is 68421. What is the pass key? The pass key is\nWhat is the pass key? The pass key is\n' -n 6
    check "the built-in model needs no options, and remembers" test "$(grep -c '^ *68421' "$tmp/out")" -eq 2
    printf 'The pass key is 68421.' >"$tmp/in"
    printf '[{"role": "user", "content": "The pass key is 68421."}]' >"$tmp/messages"
    "$RUN" tokenize --special <"$tmp/in" >"$tmp/want"
    run template --messages "$tmp/messages" --ids
    check "its template gives BOS and the tokens of a prompt" test "$(cat "$tmp/out")" = "1 $(cat "$tmp/want")"
else
    skip "the folder without a template needs SentencePiece"
fi
talk 'x\n' -m "$m" --template nonsense
check "unknown template: exit status 2" test "$status" -eq 2
err_has "--template nonsense: no such file or template; templates: llama3," "with the option and the names"
talk 'Hello.\n/bye\n' -m "$m" -n 3 --json "$tmp/r.json"
check "lines of a pipe are messages, without prompts and modes of a terminal" \
    test "$(grep -c '"new_tokens": 3' "$tmp/r.json")" -eq 2 -a -z "$(grep -e '^> ' -e "$(printf '\033')" "$tmp/err")"
talk 'Hello.\nAgain.\n' -m "$m" -n 3 --json "$tmp/r.json"
check "--json has each reply" test "$(grep -c '"new_tokens": 3' "$tmp/r.json")" -eq 2
talk "$(seq 1 400 | tr '\n' ' ')" -m "$m" --ctx 64
check "a turn beyond the context: refused" test "$status" -eq 1
err_has "context of 64" "with the numbers"

# Presence and frequency penalties count the tokens of one reply, as in a request to the server.
set -- -m "$m" -n 12 --temp 0 --ignore-eos --quiet --presence-penalty 1 --frequency-penalty 0.5
talk 'Hello.\n' "$@" --save "$tmp/p.kv"
"$RUN" generate "$@" --load "$tmp/p.kv" --chat -p 'Again.' >"$tmp/want" 2>>"$tmp/err"
talk 'Hello.\nAgain.\n' "$@"
tail -n "$(wc -l <"$tmp/want")" "$tmp/out" >"$tmp/last"
check "penalties start again with each reply" cmp "$tmp/want" "$tmp/last"

# A message that does not fit leaves the conversation as it was.
long=$(seq 1 400 | tr '\n' ' ')
talk "Hello.\n$long\nAgain.\n" -m "$m" -n 3 --temp 0 --ctx 160 --save "$tmp/s.kv" --json "$tmp/r.json"
check "a message that does not fit: status 1" test "$status" -eq 1
check "the others are answered and reported" test "$(grep -c '"new_tokens": 3' "$tmp/r.json")" -eq 2
err_has "1 message did not fit the context of 160 tokens; use --ctx" "and the last line says so"
cp "$tmp/out" "$tmp/with"
talk 'Hello.\nAgain.\n' -m "$m" -n 3 --temp 0 --ctx 160 --save "$tmp/other.kv"
check "the same texts as without it" cmp "$tmp/out" "$tmp/with"
check "and the same session" cmp "$tmp/s.kv" "$tmp/other.kv"
talk "$long\nHello.\n" -m "$m" -n 3 --temp 0 --ctx 160 --save "$tmp/first.kv"
check "the first message may be the long one" test "$status" -eq 1 -a -s "$tmp/first.kv"
talk 'Hello.\n' -m "$m" -n 400 --temp 0 --ctx 100 --ignore-eos --save "$tmp/cut.kv" --json "$tmp/cut.json"
err_has "text cut: the context of 100 tokens is full" "a cut reply says so"
check "and in the report" grep -q '"finish_reason": "context"' "$tmp/cut.json"
talk 'Hello.\nAgain.\n' -m "$m" --load "$tmp/cut.kv" --save "$tmp/cut2.kv"
check "a full session refuses every message and is saved again" test "$status" -eq 1 -a -s "$tmp/cut2.kv"
run generate -m "$m" -p Hello -n 5 --stop e --json "$tmp/r.json" --ignore-eos --temp 0
check "an end by number or by text" grep -q '"finish_reason": "\(length\|stop\)"' "$tmp/r.json"
finish
