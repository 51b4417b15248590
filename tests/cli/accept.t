# SPDX-License-Identifier: MIT
# eval accept: how often a strategy's next token is full attention's, and how long its drafts are right.
. "$SRCDIR/tests/cli/lib.sh"
accept() { run eval accept --quiet --threads 1 --ctx 300,420 -n 6 --trials 2 "$@"; }
rows() { # rows FILTER: true of every result of --json
    jq -e "[.results[] | $1] | all" "$tmp/report.json"
}

accept --attn full,streaming:budget=16,fier:budget=1000,h2o --budget 24 -o "$tmp/a.jsonl" --json "$tmp/report.json"
check "it runs" test "$status" = 0
out_has "drafts of 8 tokens from 6 places of each of 2 pieces, against full attention over the same rows, seed 42, skip 0" \
    "the head says what was run"
out_has "  - h2o: cannot draft" "what cannot draft is left out with its reason"
check "a line for each strategy, temperature and length, and for all lengths" \
    test "$(grep -cE '^(full|streaming|fier).* (300|420|all) ' "$tmp/out")" = 18
if command -v jq >/dev/null; then
    of() { rows "select(.attn | test(\"$1\")) | $2"; }
    check "greedy and drawn" jq -e '[.results[].temp] == [0, 1, 0, 1, 0, 1, 0, 1]' "$tmp/report.json"
    check "the fields of a result" of '^(full|streaming)' \
        '[has("attn", "budget", "kv", "temp", "n", "agreement", "ci95", "h8", "run", "accepted_length", "by_context")] | all'
    check "full attention drafts its own text" of '^full$' \
        '.agreement == 1 and .h8 == 1 and .run == null and .accepted_length == 5 and .differences == 0'
    check "so does what attends everything" of '^fier' '.agreement == 1 and .h8 == 1 and .accepted_lengths[7] == 9'
    check "few tokens do not" of '^streaming' '.agreement < 1 and .differences > 0 and .accepted_length < 5'
    check "drafts of all places" of '^(full|streaming|fier)' \
        '.n == 24 and .tokens == 24 and .kv == "f16" and (.by_context | map(.n) == [12, 12])'
    check "the interval holds the share" of '^(full|streaming|fier)' '.ci95[0] <= .agreement and .agreement <= .ci95[1]'
    check "an accepted length is the mean of drafts, and a verification's own token" of '^(full|streaming|fier)' \
        '(.hazards | map(. // 0) | 1 + .[0] * (1 + .[1] * (1 + .[2] * (1 + .[3])))) - .accepted_length | fabs < 1e-3'
    check "what did not run has no numbers" of '^h2o' '.n == 0 and .agreement == null and (.reason | test("cannot draft"))'
else
    skip "jq is not there"
fi

# A session that went on from another temperature leaves no trace, and neither does a run that was ended.
accept --attn streaming:budget=16 --temp 1 -o "$tmp/one.jsonl"
grep streaming "$tmp/a.jsonl" | sed 1d | grep '"temp": *1' | sort >"$tmp/a"
sed 1d "$tmp/one.jsonl" | sort >"$tmp/one"
check "a temperature by itself gives the same" cmp "$tmp/a" "$tmp/one"
head -n 3 "$tmp/one.jsonl" >"$tmp/b.jsonl"
accept --attn streaming:budget=16 --temp 1 -o "$tmp/b.jsonl"
sed 1d "$tmp/b.jsonl" | sort >"$tmp/b"
check "an interrupted run continues to the same results" cmp "$tmp/one" "$tmp/b"
check "a line for each piece" test "$(wc -l <"$tmp/b")" = 4

printf 'A short text.' >"$tmp/short"
refused 2 "--ctx 2048: the text has only" "a text that is too short" eval accept -f "$tmp/short"
refused 2 "--ctx 64: must exceed -n 64 by at least 2 tokens" "no prompt" eval accept --ctx 64
refused 2 "--temp: 'x': expected a comma-separated list of numbers >= 0" "a temperature" eval accept --temp 0,x
refused 2 "--temp: '-1': expected a comma-separated list of numbers >= 0" "a negative one" eval accept --temp -1
refused 1 "is quantized as tokens arrive; use f32, f16, bf16, q8 or q4" "rows in codes" eval accept --attn quest --kv kivi4
refused 1 "no-such-file" "a file that is not there" eval accept -f "$tmp/no-such-file"
finish
