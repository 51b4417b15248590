# SPDX-License-Identifier: MIT
# eval recall: on text (the built-in model) and on tensors of a file.
. "$SRCDIR/tests/cli/lib.sh"
# json NAME FILTER: --json of the last run holds a condition.
if command -v jq >/dev/null; then
    json() { check "$1" jq -e "$2" "$tmp/r.json"; }
else
    json() { skip "$1: no jq"; }
fi

# Five keys of four channels, of which the first is 3 0 2 0 1; two query heads that ask for the first channel.
head='{"q":{"dtype":"F32","shape":[2,1,4],"data_offsets":[0,32]},"k":{"dtype":"F32","shape":[1,5,4],"data_offsets":[32,112]}}'
zero='\000\000\000\000' one='\000\000\200\077' two='\000\000\000\100' three='\000\000\100\100'
row() { printf "$1$zero$zero$zero"; }
tensors() {
    printf "\\$(printf %o ${#head})\000\000\000\000\000\000\000%s" "$head"
    row $one; row $one
    row $three; row $zero; row $two; row $zero; row ${1:-$one}
}
tensors >"$tmp/t.safetensors"
run eval recall --tensors "$tmp/t.safetensors" --attn fier --budget 2 --dump "$tmp/d.jsonl" --json "$tmp/r.json" --quiet
check "recall on tensors runs" test "$status" -eq 0
out_has "1.0000" "the best key is found"
check "one line a kv head" test "$(wc -l <"$tmp/d.jsonl")" -eq 1
check "the current token and the best other one" grep -q '"kv_head": 0, "positions": \[0, 4\]' "$tmp/d.jsonl"
check "without v there is no output error" grep -q '"out_err": null' "$tmp/r.json"
refused 2 "use a strategy that retrieves" "eviction needs the order of the queries" eval recall --tensors "$tmp/t.safetensors" --attn h2o
refused 1 "q: missing tensor" "no q" eval recall --tensors "$SRCDIR/tests/data/reference/mass.safetensors" --attn fier
tensors '\000\000\300\177' >"$tmp/nan.safetensors"
refused 1 "k: element 16 is NaN" "NaN" eval recall --tensors "$tmp/nan.safetensors" --attn fier
run eval fidelity --measure=selection --tensors "$tmp/t.safetensors" --attn fier --budget 2 --prompt-keys 2 --dump "$tmp/e.jsonl" --quiet
check "keys added one by one after a prompt: the same selection" cmp "$tmp/d.jsonl" "$tmp/e.jsonl"
refused 2 "--prompt-keys 5: " "a prompt of all keys" eval recall --tensors "$tmp/t.safetensors" --attn fier --prompt-keys 5
refused 2 "--prompt-keys: requires --tensors" "a prompt's keys of a text" eval recall -p x --attn fier --prompt-keys 2
refused 2 "eval recall: requires -f FILE" "no text" eval recall --attn fier
refused 2 "unknown strategy" "an unknown strategy" eval recall -p x --attn nothing

run tokenize
if grep -q 'built without SentencePiece' "$tmp/err"; then
    finish
    exit 0
fi
run eval recall -f "$SRCDIR/README.md" --ctx 512 --queries 4 --attn kivi,streaming:sink=0 --budget 128 --skip 0 \
    --json "$tmp/r.json" --quiet
json "what is in codes, evicted: as if only the exact tokens had been kept" \
    '[.results[] | if .attn == "kivi" then .evicted_err else -.out_err end] | add | fabs < 1e-3'
json "in codes it costs less" '[.results[] | select(.attn == "kivi") | .out_err - .evicted_err] | add < 0'
run eval recall -f "$SRCDIR/README.md" --ctx 512 --queries 4 --attn full,full:kv=hf4/r=2,full:kv=hf2/r=2,streaming:sink=0,h2o:kv=hf2 --budget 128 \
    --skip 0 --distributions --json "$tmp/r.json" --quiet
out_has "attention distributions" "a table of distributions"
json "dropping is twice the mass of what is gone" \
    '[.results[] | select(.attn == "streaming:sink=0") | .attn_l1 - 2 * (1 - .mass) | fabs] | max < 1e-8'
json "full attention has no distance, fewer bits have more, dropping has most" '
    def l1($a; $k): [.results[] | select(.attn == $a) | .[$k]] | add;
    l1("full"; "attn_l1") < 1e-9 and l1("full:kv=hf4/r=2"; "attn_l1") < l1("full:kv=hf2/r=2"; "attn_l1") and
    l1("full:kv=hf2/r=2"; "attn_l1") < l1("full:kv=hf2/r=2"; "attn_l1_evicted")'
json "an evictor over codes: no distance is known" \
    '[.results[] | select(.attn == "h2o:kv=hf2") | .attn_l1] | unique == [null]'
refused 2 "--distributions: not supported with --tensors" "distributions of tensors" \
    eval recall --tensors "$tmp/t.safetensors" --attn fier --distributions
run eval recall -f "$SRCDIR/README.md" --ctx 256 --queries 3 --attn full,quest,fier,streaming --budget 64,256 --skip 0 --json "$tmp/r.json" --quiet
check "recall on text runs" test "$status" -eq 0
if command -v jq >/dev/null; then
    mean() { jq "[.results[] | select(.attn == \"$1\" and .budget == $2) | .$3] | add / length"  "$tmp/r.json"; }
    check "full attention is exact" jq -e '[.results[] | select(.attn == "full") | .out_err] | max < 1e-5' "$tmp/r.json"
    check "a budget that covers the text selects it all" test "$(mean fier 256 mass)" = 1
    check "tokens are chosen better than pages, and both better than the newest" \
        jq -ne "$(mean fier 64 recall) > $(mean quest 64 recall) and $(mean fier 64 mass) > $(mean streaming 64 mass)"
else
    skip "jq is not there"
fi
run eval recall -f "$SRCDIR/README.md" --ctx 256 --queries 3 --attn fier,fier:tail=sample:64 --budget 64 --skip 0 --json "$tmp/r.json" --quiet
out_has "tail err" "a column for the error with a sample"
json "the sample's error is reported in addition to that of the tokens, which is unchanged" '
    def sum($a; $k): [.results[] | select(.attn == $a) | .[$k]] | add;
    (sum("fier"; "out_err") - sum("fier:tail=sample:64"; "out_err") | fabs) < 1e-4 and
    sum("fier:tail=sample:64"; "tail_out_err") < 0.8 * sum("fier"; "out_err") and
    sum("fier"; "tail_out_err") == null'
run eval recall -f "$SRCDIR/README.md" --ctx 256 --queries 3 --attn fier:tail=sample:16,fier:gqa=per_q:tail=sample:256 --budget 64 --skip 0 \
    --json "$tmp/r.json" --quiet
out_has "missed mass, estimated from samples" "a table of what was missed"
json "what a sample says was missed, its interval, and what was missed" '
    [.results[] | .ci95[0] <= .missed_mass and .missed_mass <= .ci95[1] and
     (.missed_mass_exact + .mass - 1 | fabs) < 1e-9 and .ci95_holds >= 0 and .ci95_holds <= 1] | all'
json "a sample of all that was missed is exact" '[.results[] | select(.attn | test("256")) |
    .ci95[1] - .ci95[0] == 0 and (.missed_mass - .missed_mass_exact | fabs) < 1e-3 and .tail_out_err < 1e-2 and .ci95_holds == 1] | all'
run eval recall -f "$SRCDIR/README.md" --ctx 700 --queries 3 --attn full,quest,codes,codes:budget=140:min=1 --kv kivi4:r=64 \
    --certify 0.1 --skip 0 --json "$tmp/r.json" --quiet
check "recall with certificates runs" test "$status" -eq 0
out_has "quest: --certify: page bounds" "what certifies nothing is left out"
out_has "codes: 100.0 % certified; bound: mean" "all heads are certified"
json "what is missed is below the bound, and that below what was asked for" '
    [.results[] | .certified // empty | select(.share > 0) | .missed_most <= .bound_most and .bound_most <= 0.1] |
    length > 6 and all'
json "not everything is attended" '[.results[] | select(.attn == "codes") | .selected] | min < 600'
json "with a bound on tokens some heads miss it" '
    [.results[] | select(.attn == "codes:budget=140:min=1") | .certified.share] | add / length | . > 0 and . < 1'
json "full attention has no certificate" '[.results[] | select(.attn == "full") | .certified] | unique == [null]'
refused 2 "the offset of a run is one byte and may wrap" "codes without a bound" \
    eval recall -f "$SRCDIR/README.md" --ctx 256 --attn codes --kv hf4 --certify 0.1
refused 2 "does not select within prompts" "--window of what does not choose there" \
    eval recall -f "$SRCDIR/README.md" --ctx 256 --attn quest --window
refused 2 "(256 tokens) or the chunk" "more queries than a window" \
    eval recall -f "$SRCDIR/README.md" --ctx 1024 --queries 300 --attn actqkv:budget=1024 --window
refused 2 "not supported with --tensors" "--window with tensors" eval recall --tensors "$tmp/t.safetensors" --attn fier --window
probes=actqkv:sink=4:local=64:window=64:block=16:budget=132
run eval recall -f "$SRCDIR/README.md" --ctx 640 --queries 64 --window --attn $probes,$probes:probe=mean --skip 0 \
    --dump "$tmp/d.jsonl" --json "$tmp/r.json" --quiet
check "a prompt window is judged" test "$status" -eq 0
check "with one set of positions a layer and query" test "$(grep -c '"kv_head": -1' "$tmp/d.jsonl")" -eq 768
run eval recall -f "$SRCDIR/README.md" --ctx 256 --queries 2 --attn $probes,streaming --budget 132 --skip 0 \
    --dump "$tmp/d.jsonl" --quiet
run eval recall -m "$models/llama31-f32-tied" -f "$SRCDIR/README.md" --ctx 200 --queries 2 --skip 0 --budget 40 \
    --attn magicpig:K=3:L=12:local=16,h2o:demote=token4:recall=5 --dump "$tmp/e.jsonl" --quiet
check "magicpig: a set of each query head" test "$(grep -c '"magicpig.*"head": [0-3],' "$tmp/e.jsonl")" -eq 16
check "a step selects what it keeps, its own token and the demoted rows that it recalls" \
    grep -q '^h2o:demote=token4:recall=5 .* 46\.0 ' "$tmp/out"
check "one set of all heads of a layer in decode steps" test "$(grep -c '"kv_head": -1' "$tmp/d.jsonl")" -eq 24 -a "$(wc -l <"$tmp/d.jsonl")" -eq 24
refused 2 "the text has only" "a text that is too short" eval recall -p "a few words" --ctx 512 --attn fier
finish
