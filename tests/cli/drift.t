# SPDX-License-Identifier: MIT
# eval drift: a generation with each strategy, judged at intervals.
. "$SRCDIR/tests/cli/lib.sh"
drift() { run eval drift --quiet --threads 1 --gemm builtin --prompt 512 -n 96 --every 32 --judged 2 "$@"; }
rows() { # rows FILTER: true of every interval of --json
    jq -e "[.results[].intervals[] | $1] | all" "$tmp/report.json"
}

drift --attn full,streaming,h2o,tova,quest,quest:budget=1000,fier,kivi,pariskv:full_thr=64:sink=4:local=32:u=32 --budget 64 --compare 64 --json "$tmp/report.json"
check "it runs" test "$status" = 0
out_has "96 new tokens after a prompt of 512, seed 42, the last 2 of each 32 judged, skip 0" "the head says what was run"
check "a line of the end against the start for each strategy" test "$(grep -c '^end / start' "$tmp/out")" = 9
if command -v jq >/dev/null; then
    only() { rows "select(.attn | test(\"$1\")) | $2"; }
    check "three intervals of each strategy" \
        jq -e '[.results[].intervals | map(.generated) == [32, 64, 96]] | all' "$tmp/report.json"
    check "a session holds prompt and new tokens" rows '.length == 512 + .generated'
    check "all attention misses nothing" only '^(full|kivi|quest:budget=1000)$' \
        '(.recall - 1 | fabs) < 1e-9 and (.mass - 1 | fabs) < 1e-9'
    check "those that choose miss some" only '^(streaming|h2o|tova|quest|fier|pariskv.*)$' \
        '.mass > 0 and .mass < 0.999 and .recall > 0 and .recall < 1'
    check "judged is what a step attended: what was kept before it evicted, and its own token" \
        only '^(streaming|h2o|tova)$' '.selected == 65 and .attended == 65'
    check "it is compared with full attention where that was asked for" \
        jq -e '[.results[].intervals | map(.kl != null and .top1 != null) == [false, true, false]] | all' "$tmp/report.json"
    check "what attends everything is full attention" only '^(full|quest:budget=1000)$' \
        '.kl == null or ((.kl | fabs) < 1e-6 and .top1 == 1)'
    check "what misses some, or reads codes, is not" only '^(streaming|h2o|tova|quest|fier|pariskv.*|kivi)$' \
        '.kl == null or (.kl > 1e-5 and .top1 <= 1)'
    check "full attention reads and holds what it has seen: 2 * 2 * 64 values of 2 bytes a token and layer" \
        only '^full$' '.kv_bytes == 6 * 512 * .length and .kv_read >= 6 * 512 * (.length - 16) and .index_read == 0'
    check "evictors hold and read the same to the end" \
        jq -e '[.results[] | select(.attn == "streaming" or .attn == "h2o") | .intervals | (map(.kv_bytes), map(.attended)) | unique | length == 1] | all' "$tmp/report.json"
    check "an index grows with its tokens" \
        jq -e '[.results[] | select(.attn == "quest") | .intervals | map(.index_bytes) | . == sort and .[2] > .[0]] | all' "$tmp/report.json"
    check "tokens that are attended before an index has them: quest's open page and the page before" \
        only '^quest$' '.newest >= 1 and .newest <= 32'
    check "pariskv's local tokens and its buffer" only '^pariskv' '.newest >= 32 and .newest <= 65'
    check "evictors have none" only '^(full|streaming|h2o|tova|kivi)$' '.newest == null'
    check "the end against the start is the last interval over the first" \
        jq -e '.results[0] | .intervals as $i | .end_over_start["KV MB"] - $i[2].kv_bytes / $i[0].kv_bytes | fabs < 1e-8' "$tmp/report.json"
    check "every interval has a speed" rows '.tokens_per_s > 0'
else
    skip "jq is not there"
fi

# The last step of 608 tokens has its own and 607 others.
drift --attn streaming:budget=607,h2o:budget=607,tova:budget=607,streaming:budget=606 --compare 0 --json "$tmp/report.json"
if command -v jq >/dev/null; then
    check "eviction after the last step only misses nothing" only 'budget=607$' '(.mass - 1 | fabs) < 1e-9 and .recall == 1'
    check "earlier eviction does" \
        jq -e '[.results[] | select(.attn | test("606$")) | .intervals | .[1].mass > 1 - 1e-9 and .[2].mass < 1 - 1e-9] | any' "$tmp/report.json"
    check "nothing was compared" rows '.kl == null'
else
    skip "jq is not there"
fi

drift --attn streaming,quest --budget 64 -o "$tmp/a.jsonl"
check "a line for each interval" test "$(wc -l <"$tmp/a.jsonl")" = 7
head -n 6 "$tmp/a.jsonl" >"$tmp/b.jsonl"
drift --attn streaming,quest --budget 64 -o "$tmp/b.jsonl"
for f in a b; do sed 1d "$tmp/$f.jsonl" | sed 's/"tokens_per_s": *[^,]*,//' >"$tmp/$f"; done
check "an interrupted run continues to the same results" cmp "$tmp/a" "$tmp/b"
drift --attn streaming,quest --budget 64 --chunk 64 --seed 7 -o "$tmp/c.jsonl"
sed 1d "$tmp/c.jsonl" | sed 's/"tokens_per_s": *[^,]*,//' >"$tmp/c"
check "another seed, another text" test "$(sort "$tmp/a" "$tmp/c" | uniq -d | wc -l)" -lt 6

printf 'A short text.' >"$tmp/short"
drift --attn streaming:budget=8:sink=4,pariskv:budget=0
check "what cannot run is left out with its reason" test "$status" = 0
out_has "  - " "the reason is there"
refused 2 "--prompt 2048: the text has only" "a text that is too short" eval drift -f "$tmp/short"
refused 2 "-n 100: must be a multiple of --every 64" "part of an interval" eval drift -n 100 --every 64
refused 2 "--every 8: must be greater than --judged 8" "nothing left to be timed" eval drift -n 8 --every 8
refused 2 "--compare 100: must be 0 or a multiple of --every 64" "a comparison within an interval" \
    eval drift -n 128 --every 64 --compare 100
refused 2 "--prompt 0: must be at least 1" "no prompt" eval drift --prompt 0
refused 2 "-n" "no number" eval drift -n many
refused 1 "no-such-file" "a file that is not there" eval drift -f "$tmp/no-such-file"
finish
