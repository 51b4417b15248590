# SPDX-License-Identifier: MIT
# The built-in model: found without -m, generates, and tells strategies apart.
. "$SRCDIR/tests/cli/lib.sh"
run tokenize
grep -q 'built without SentencePiece' "$tmp/err" && skip_all "the built-in model needs SentencePiece"

run info
out_has "LlamaForCausalLM" "the built-in model is found"
run generate -p "It was a dark night, and the" -n 40 --temp 0
check "it generates" test "$status" -eq 0 -a "$(wc -w <"$tmp/out")" -gt 10
cp "$tmp/out" "$tmp/first"
run generate -p "It was a dark night, and the" -n 40 --temp 0 --attn streaming --budget 512
check "a budget that covers the text changes nothing" cmp -s "$tmp/out" "$tmp/first"

works "passkey runs" passkey --ctx 1024 --attn full,streaming --budget 2,64 --trials 8 --json "$tmp/r.json"
out_has "at least sink + 1" "a budget that is too small is a line with the reason"
if command -v jq >/dev/null; then
    get() { jq -r ".results[] | select(.attn == \"$1\") | .$2" "$tmp/r.json"; }
    check "full attention finds most keys" test "$(get full correct)" -ge 7
    check "a window of 60 tokens does not" test "$(get streaming correct)" -le 2
    check "full attention attends all of the prompt" jq -e '.results[] | select(.attn == "full") | .attended > 700' "$tmp/r.json"
    check "streaming attends budget + 1" test "$(get streaming attended)" = 65
    check "the report has the fields that scripts rely on" jq -e '(.command == "passkey") and (.results | all(
        has("attn") and has("params") and has("budget") and has("ctx") and has("protocol") and has("trials") and
        has("correct") and has("accuracy") and has("ci95") and has("attended") and has("kv_bytes") and
        has("kv_bytes_peak") and has("seconds")))' "$tmp/r.json"
else
    skip "jq is not there"
fi
run passkey --ctx 1024 --attn full --trials 2 --protocol prefill
out_has "protocol prefill" "the whole prompt prefilled"
refused 2 "at least sink + 1" "alone, a budget that is too small is an error" passkey --attn streaming --budget 2 --trials 1
refused 2 "unknown protocol" "an unknown protocol" passkey --protocol guess
run bench --shape tiny --phase decode --ctx 0 --samples 3 --threads 1 --json "$tmp/b.json"
out_has "memory read" "bench measures the machine"
check "and reports shares" grep -q '"limit_share"' "$tmp/b.json"
finish
