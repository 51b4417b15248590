# SPDX-License-Identifier: MIT
# eval agree: how long the text of a strategy stays that of full attention.
. "$SRCDIR/tests/cli/lib.sh"
agree() { run eval agree --quiet --ctx 512 --trials 4 "$@"; }
score() { # score ROW: the mean of a row of --json
    jq ".results[$1].score" "$tmp/report.json"
}

agree --attn full,streaming:budget=32,quest:budget=600 --json "$tmp/report.json"
check "it runs" test "$status" = 0
out_has "512 tokens" "a line for each length"
out_has ", skip 0" "the head has the dense layers"
if command -v jq >/dev/null; then
    check "full attention agrees with itself" test "$(score 0)" = 1
    check "streaming with few tokens does not" awk "BEGIN { exit !($(score 1) < 0.9) }"
    check "a budget that holds everything agrees" test "$(score 2)" = 1
else
    skip "jq is not there"
fi

agree --attn full,quest --budget 64 -o "$tmp/a.jsonl"
head -n 4 "$tmp/a.jsonl" >"$tmp/b.jsonl"
agree --attn full,quest --budget 64 -o "$tmp/b.jsonl"
for f in a b; do
    sed 1d "$tmp/$f.jsonl" | sed 's/"seconds": *[^,]*,//' | sort >"$tmp/$f"
done
check "an interrupted run continues to the same results" cmp "$tmp/a" "$tmp/b"
check "a line for each trial and row" test "$(wc -l <"$tmp/a")" = 8
run eval fidelity --measure text --quiet --ctx 512 --trials 4 --attn full,quest --budget 64 -o "$tmp/d.jsonl"
sed 1d "$tmp/d.jsonl" | sed 's/"seconds": *[^,]*,//' | sort >"$tmp/d"
check "eval fidelity --measure text is the same" cmp "$tmp/a" "$tmp/d"
refused 2 "--measure x: must be the first option, with selection, tokens, text, logits or divergence" "another measure" eval fidelity --measure x
agree --attn full,quest --budget 64 --jobs 3 -o "$tmp/c.jsonl"
sed 1d "$tmp/c.jsonl" | sed 's/"seconds": *[^,]*,//' | sort >"$tmp/c"
check "trials side by side give the same" cmp "$tmp/a" "$tmp/c"

for w in one two; do yes "$w of them" | head -n 300 >"$tmp/$w"; done
agree --attn full -f "$tmp/one" -o "$tmp/t.jsonl"
refused 2 "'text_sha256' is" "another text is another run" eval agree --attn full --ctx 512 --trials 4 -f "$tmp/two" -o "$tmp/t.jsonl"

printf 'A short text.' >"$tmp/short"
refused 2 "--ctx 512: the text has only" "a text that is too short" eval agree -f "$tmp/short" --ctx 512
refused 2 "--ctx 64: must be at least 160" "a length that is too short" eval agree --ctx 64
refused 2 "--attn: must include 'full'" "a lineup without full attention" eval agree --attn quest
refused 2 "--protocol: unknown protocol 'x' (decode, prefill)" "a protocol" eval agree --protocol x
refused 1 "no-such-file" "a file that is not there" eval agree -f "$tmp/no-such-file"
finish
