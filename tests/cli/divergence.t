# SPDX-License-Identifier: MIT
# eval divergence: how far a strategy's next-token distributions are from full attention's.
. "$SRCDIR/tests/cli/lib.sh"
divergence() { run eval divergence --quiet --threads 1 --ctx 300,420 -n 6 --trials 2 "$@"; }
rows() { # rows FILTER: true of every result of --json
    jq -e "[.results[] | $1] | all" "$tmp/report.json"
}

divergence --attn full,streaming:budget=16,fier:budget=1000,kivi:bits=2 --budget 24 -o "$tmp/a.jsonl" --json "$tmp/report.json"
check "it runs" test "$status" = 0
out_has "divergence: KL divergence from full attention over f32 rows after each of the last 6 tokens of 2 pieces, seed 42, skip 0" \
    "the head says what was run"
check "a line for each row and length" test "$(grep -cE '^(full|streaming|fier|kivi).* (300|420) ' "$tmp/out")" = 8
if command -v jq >/dev/null; then
    of() { rows "select(.attn | test(\"$1\")) | $2"; }
    check "the fields of a result" rows \
        '[has("attn", "budget", "kv", "ctx", "n", "kl", "kl_error", "kl_median", "kl_p99", "top1", "ci95", "attended")] | all'
    check "the figures are in order" rows '.n == 12 and .kl >= 0 and .kl_median <= .kl_p99 and .ci95[0] <= .top1 and .top1 <= .ci95[1]'
    check "rows of 16 bits are close to those of 32" of '^full$' '.kl < 1e-4 and .kl > 0 and .top1 == 1'
    check "a budget that holds everything changes nothing" \
        jq -e '[.results[] | select(.attn | test("^(full|fier)"))] | (.[0].kl == .[2].kl) and (.[1].kl == .[3].kl)' "$tmp/report.json"
    check "few tokens are far" of '^streaming' '.kl > 0.01 and .attended < 20'
    check "rows in two bits are between" of '^kivi' '.kl > 1e-4 and .attended == .visible'
else
    skip "jq is not there"
fi
divergence --attn full --kv f32 --json "$tmp/exact.json"
check "full attention over float32 rows is the reference" test "$(grep -cE '"(kl|kl_p99)": 0(\.0)?,' "$tmp/exact.json")" = 4

# The alias auto.
divergence --attn full,auto,auto:budget=40 --budget 16 --json "$tmp/report.json"
if command -v jq >/dev/null; then
    check "auto is a strategy with a budget of its own" \
        jq -e '.results[2] | .attn == "fier:budget=4096:force_sink=4:force_recent=32" and .budget == 4096' "$tmp/report.json"
    check "a parameter after auto counts" jq -e '.results[4].budget == 40 and .results[4].attended < 50' "$tmp/report.json"
    check "auto is exact up to its budget" jq -e '.results | (.[0].kl == .[2].kl) and (.[1].kl == .[3].kl) and (.[5].kl > .[3].kl)' \
        "$tmp/report.json"
else
    skip "jq is not there"
fi
run generate -p "one two" -n 4 --temp 0 --threads 1 --attn auto --save "$tmp/auto.session"
err_has "--attn auto: fier:budget=4096:force_sink=4:force_recent=32, exact up to 4096 tokens" "generate says what auto is"
check "a session has the resolved name" grep -aq 'fier:budget=4096:' "$tmp/auto.session"

# A row gives the same alone. An interrupted run continues.
divergence --attn streaming:budget=16 -o "$tmp/one.jsonl"
grep '"streaming' "$tmp/a.jsonl" | sed 1d | sort >"$tmp/a"
sed 1d "$tmp/one.jsonl" | sort >"$tmp/one"
check "a row by itself gives the same" cmp "$tmp/a" "$tmp/one"
head -n 3 "$tmp/one.jsonl" >"$tmp/b.jsonl"
run eval fidelity --measure divergence --quiet --threads 1 --ctx 300,420 -n 6 --trials 2 --attn streaming:budget=16 -o "$tmp/b.jsonl"
sed 1d "$tmp/b.jsonl" | sort >"$tmp/b"
check "an interrupted run continues to the same results" cmp "$tmp/one" "$tmp/b"
check "a line for each piece" test "$(wc -l <"$tmp/b")" = 4

refused 2 "--ctx 64: must exceed -n 64 by at least 2 tokens" "no prompt" eval divergence --ctx 64
printf 'A short text.' >"$tmp/short"
refused 2 "--ctx 2048: the text has only" "a text that is too short" eval divergence -f "$tmp/short"
finish
