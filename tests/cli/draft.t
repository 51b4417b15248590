# SPDX-License-Identifier: MIT
# --draft: tokens are proposed and verified, and the text is that without drafts, byte for byte.
. "$SRCDIR/tests/cli/lib.sh"
m=$models/llama31-f32-tied
echo "Alice was beginning to get very tired. Alice was beginning to get very tired. Alice was beginning" >"$tmp/prompt"
base="generate -m $m -f $tmp/prompt --threads 1 --quiet --ignore-eos"

# same NAME DRAFT OPTION...: the bytes of the text without and with drafts. weights: options of drafts.
weights=
same() {
    what=$1
    draft=$2
    shift 2
    run $base "$@"
    cp "$tmp/out" "$tmp/plain"
    run $base "$@" --draft "$draft" $weights --json "$tmp/draft.json"
    check "$what: the same text" sh -c "test $status -eq 0 && test -s '$tmp/plain' && cmp -s '$tmp/out' '$tmp/plain'"
}
right=0
for t in 0 0.8 1.2; do
    same "temperature $t" ngram:adapt=off -n 40 --temp $t --seed 1
    right=$((right + $(sed -n 's/.*"accepted": *\([0-9]*\).*/\1/p' "$tmp/draft.json")))
done
check "some of it was drafted ($right tokens)" test "$right" -gt 0
same "without top-p" ngram:n=3 -n 40 --temp 1 --top-p 1
same "top-k and min-p" ngram -n 40 --temp 1 --top-k 9 --min-p 0.05
same "a repetition penalty" ngram -n 40 --temp 0.7 --repeat-penalty 1.2
same "greedy with a penalty" ngram -n 40 --temp 0 --repeat-penalty 1.1
same "all penalties" ngram -n 40 --temp 0 --repeat-penalty 1.1 --presence-penalty 0.5 --frequency-penalty -0.3
same "the draw by rank" ngram -n 40 --temp 0.9 --draw rank
same "a stop" ngram -n 40 --temp 0 --stop e
same "a full context" ngram -n 400 --temp 0 --ctx 90
same "one token" ngram -n 1 --temp 0
same "two tokens" ngram -n 2 --temp 0
same "rows of float32" ngram -n 40 --temp 0 --kv f32
same "small chunks" ngram -n 40 --temp 0 --chunk 3
same "rows on disk" ngram -n 60 --temp 0.8 --kv-tier "disk:window=0:cache=64k:$tmp"
same "two ranks" ngram -n 40 --temp 0.8 --tp 2

# An end of text inside a draft: the models of the tests hardly ever say one, so that a stop stands for it as well.
base="generate -m $m -f $tmp/prompt --threads 1 --quiet"
same "with ends of text" ngram -n 60 --temp 1.5 --seed 8

run $base -n 40 --temp 0 --draft ngram:adapt=off --json "$tmp/draft.json"
if command -v jq >/dev/null; then
    holds() { check "$2" jq -e "$1" "$tmp/draft.json"; }
    holds '.results[0].draft | .spec == "ngram:adapt=off" and .proposed >= .accepted and .accepted > 0' "the report has the counts"
    holds '.results[0].draft | (.accepted + .verifications) / .verifications - .accepted_length | fabs < 1e-3' "and the length"
    holds '.results[0].draft.withheld == 0' "drafts of fixed length are never withheld"
    holds '.results[0] | .draft.accepted + .draft.verifications == .new_tokens - 1' "of every token but the first"
else
    skip "jq is not there"
fi
run generate -m "$m" -f "$tmp/prompt" --threads 1 -n 40 --temp 0 --draft ngram
err_has "draft ngram: " "the statistics have a line"
err_has " verifications without drafts, which would not have paid" "and say when there were none: before the times are known"
err_has " tokens per verification | " "with the accepted length"
err_has " steps saved" "and the steps saved"

# Attention by tiles, emulated: verification and single steps take the same kernel, and the statistics say which.
export KVASIR_CPU=amx-emulated
same "tiles" ngram:adapt=off -n 40 --temp 0.8 --attn full:decode=tiles
run $base -n 300 --temp 0 --draft ngram --json "$tmp/auto.json"
cp "$tmp/out" "$tmp/drafted"
kernel=$(sed -n 's/.*"decode": *"\([a-z]*\)".*/\1/p' "$tmp/auto.json")
run $base -n 300 --temp 0 --attn "full:decode=$kernel"
check "a run that measures both kernels has the text of the one it took ($kernel)" cmp -s "$tmp/out" "$tmp/drafted"
run generate -m "$m" -f "$tmp/prompt" --threads 1 -n 40 --temp 0 --attn full:decode=tiles --draft ngram
err_has "| decode=tiles" "the statistics have the kernel"
run $base -n 11 --temp 0 --attn full:decode=tiles --save "$tmp/s.kv"
for by in "" "--draft ngram:adapt=off --threads 3"; do
    run generate -m "$m" --load "$tmp/s.kv" -p " beginning" -n 19 --temp 0 --quiet --ignore-eos --attn full:decode=tiles $by
    check "a saved session continues by tiles $by" test "$status" -eq 0 -a -s "$tmp/out"
    cp "$tmp/out" "$tmp/continued${by:+2}"
done
check "with and without drafts alike" cmp -s "$tmp/continued" "$tmp/continued2"
run generate -m "$m" --load "$tmp/s.kv" -p x -n 2 --quiet --attn full:decode=rows
is_refusal 1 "a session of full with decode=tiles, expected decode=rows" "but not by the other kernel"
run $base -n 2 --attn full:decode=tiles --kv f32
is_refusal 1 "full:decode=tiles: tiles need keys and values of f16 or bf16, not f32; use decode=rows" "rows that tiles do not take"
run $base -n 2 --draft fier:decode=tiles
is_refusal 2 "a draft uses the verifier's kernel; set decode in --attn" "a draft with a kernel of its own"
run $base -n 2 --attn full:decode=tile
is_refusal 2 "decode='tile', expected one of: auto rows tiles" "an unknown kernel"
export KVASIR_CPU=generic
run $base -n 2 --attn full:decode=tiles
is_refusal 1 "full:decode=tiles: needs tiles (AMX), not generic" "a CPU without tiles"
unset KVASIR_CPU

# A saved session continues as it would without drafts.
run generate -m "$m" -f "$tmp/prompt" --threads 1 --quiet -n 20 --temp 0.8 --save "$tmp/plain.kv"
run generate -m "$m" -f "$tmp/prompt" --threads 1 --quiet -n 20 --temp 0.8 --save "$tmp/draft.kv" --draft ngram
run generate -m "$m" --threads 1 --quiet -n 20 --temp 0.8 --load "$tmp/plain.kv"
cp "$tmp/out" "$tmp/plain"
run generate -m "$m" --threads 1 --quiet -n 20 --temp 0.8 --load "$tmp/draft.kv" --draft ngram
check "a saved session continues with the same text" cmp -s "$tmp/out" "$tmp/plain"

turns='Hello there, Alice.\nHello there, Alice.\nOnce more, Hello there, Alice.\n'
printf "$turns" | "$RUN" chat -m "$m" --threads 1 -n 12 --temp 0.8 --repeat-penalty 1.1 --quiet >"$tmp/plain"
printf "$turns" | "$RUN" chat -m "$m" --threads 1 -n 12 --temp 0.8 --repeat-penalty 1.1 --quiet --draft ngram >"$tmp/out"
check "a chat is the same" cmp -s "$tmp/out" "$tmp/plain"

# Strategies draft over the same rows: all of them are in tests/unit/test_draft.c. The models here have two layers, of which
# none is dense.
for attn in fier:budget=24:g=8:skip=0 quest:budget=16:page=4:skip=1:n=3 ngram:n=2,fier:budget=24:g=8:skip=0; do
    same "$attn" "$attn:adapt=off" -n 60 --temp 0.8
done
fier=fier:budget=24:g=8:skip=0:adapt=off
same "fier, a penalty" $fier -n 60 --temp 0.9 --repeat-penalty 1.2
same "fier, a full context" $fier -n 400 --temp 0 --ctx 90
same "fier, two ranks" $fier -n 40 --temp 0.8 --tp 2

printf "$turns" | "$RUN" chat -m "$m" --threads 1 -n 12 --temp 0.8 --repeat-penalty 1.1 --quiet --draft $fier >"$tmp/out"
printf "$turns" | "$RUN" chat -m "$m" --threads 1 -n 12 --temp 0.8 --repeat-penalty 1.1 --quiet >"$tmp/plain"
check "fier: a chat is the same" sh -c "test -s '$tmp/plain' && cmp -s '$tmp/out' '$tmp/plain'"
run generate -m "$m" -f "$tmp/prompt" --threads 1 --quiet -n 20 --temp 0.8 --save "$tmp/fier.kv" --draft $fier
run generate -m "$m" --threads 1 --quiet -n 20 --temp 0.8 --load "$tmp/plain.kv"
cp "$tmp/out" "$tmp/plain"
run generate -m "$m" --threads 1 --quiet -n 20 --temp 0.8 --load "$tmp/fier.kv"
check "fier: a saved session continues with the same text" sh -c "test -s '$tmp/plain' && cmp -s '$tmp/out' '$tmp/plain'"

# Drafts with weights of their own, which the whole session verifies with the model's.
weights="--draft-weights q4 --no-weights-cache"
same "another strategy and other weights" fier:budget=24:g=8:skip=0:adapt=off -n 60 --temp 0.8
same "ngram and other weights" ngram:n=2,full -n 60 --temp 0.8
same "weights of 4 bits, rows on disk" full:adapt=off -n 60 --temp 0.8 --kv-tier "disk:window=0:cache=64k:$tmp"
same "weights of 8 and 4 bits" full:adapt=off -n 40 --temp 0.8 --weights q8
weights="--draft-weights q8 --no-weights-cache"
same "weights of 8 bits" full:adapt=off -n 40 --temp 0.8
near=$(sed -n 's/.*"accepted": *\([0-9]*\).*/\1/p' "$tmp/draft.json")
check "drafts in 8 bits are mostly right ($near of 39 tokens)" test "$near" -gt 20
if command -v jq >/dev/null; then
    holds '.weights == "f32" and (.results[0].draft | .weights == "q8" and .weights_bytes > 0)' "the report has their type and bytes"
else
    skip "jq is not there"
fi
of_tests=$base base="generate -m $SRCDIR/model/demo -p Alice --threads 1 --quiet --ignore-eos"
same "weights of 8 bits, two ranks" full:adapt=off -n 40 --temp 0.8 --tp 2
weights= base=$of_tests
run generate -m "$m" -f "$tmp/prompt" --threads 1 -n 8 --draft full --draft-weights q8 --no-weights-cache
err_has " | weights of drafts q8, " "the statistics have them too"
moe="generate -m $models/qwen3-moe-f32 -p Alice --threads 1 --quiet --ignore-eos --no-weights-cache"
run $moe -n 6 --temp 0.8 --save "$tmp/moe.kv"
run $moe -n 24 --temp 0.8
cp "$tmp/out" "$tmp/plain"
run $moe -n 24 --temp 0.8 --draft full --draft-weights q4
check "drafts of experts in 4 bits keep the text" sh -c "test -s '$tmp/plain' && cmp -s '$tmp/out' '$tmp/plain'"
run generate -m "$models/qwen3-moe-f32" --threads 1 -n 12 --temp 0.8 --ignore-eos --load "$tmp/moe.kv" --draft full --draft-weights q4 --no-weights-cache
cp "$tmp/out" "$tmp/drafted"
err_has " | weights of drafts q4, " "also over a saved session"
run generate -m "$models/qwen3-moe-f32" --threads 1 --quiet -n 12 --temp 0.8 --ignore-eos --load "$tmp/moe.kv"
check "which continues with the same text" sh -c "test -s '$tmp/drafted' && cmp -s '$tmp/out' '$tmp/drafted'"
run $base --plan --draft full --draft-weights q8 --no-weights-cache
out_has " MB for drafts)" "and the plan"
XDG_CACHE_HOME="$tmp/cache" run generate -m "$m" -f "$tmp/prompt" --threads 1 -n 8 --draft full --draft-weights q4
err_has "weights: quantizing to q4" "they are kept in a file"
XDG_CACHE_HOME="$tmp/cache" run generate -m "$m" -f "$tmp/prompt" --threads 1 -n 8 --weights q4
err_has "weights: q4, mapped from" "which is that of --weights"
run generate -m "$m" --threads 1 --quiet -n 20 --temp 0.8 --load "$tmp/plain.kv"
cp "$tmp/out" "$tmp/plain"
run generate -m "$m" --threads 1 --quiet -n 20 --temp 0.8 --load "$tmp/plain.kv" --draft full --draft-weights q8 --no-weights-cache
check "they draft over a loaded session" cmp -s "$tmp/out" "$tmp/plain"
refused 2 "--draft-weights q4: requires --draft" "weights of no drafts" $base --draft-weights q4
refused 2 "--draft-weights q4: ngram drafts do not use the model" "weights of ngram" $base --draft ngram --draft-weights q4
refused 2 "--draft-weights: 'bf16' is not one of: q8 q4" "other weights" $base --draft full --draft-weights bf16
refused 2 "--draft-weights q8: must be smaller than the model's weights, q8" "weights that are not smaller" $base \
    --weights q8 --draft full --draft-weights q8
refused 1 "full:kv=f32: cannot draft: " "rows of its own" $base --draft full:kv=f32 --draft-weights q8

refused 2 "--draft: 'ngrams', expected ngram or a strategy" "an unknown draft" $base --draft ngrams
refused 2 "--draft: 'n=8', expected n=1 to n=7" "a long draft" $base --draft ngram:n=8
refused 2 "'k=3' after ngram" "another key" $base --draft ngram:k=3
refused 2 "--draft: 'quest,fier', expected ngram, a strategy, or one of each" "two strategies" $base --draft quest,fier
for attn in h2o actqkv full; do
    refused 1 "$attn: cannot draft: " "$attn" $base --draft $attn
done
refused 1 "cannot draft with demote" "rows that go elsewhere" $base --draft streaming:demote=token4
refused 2 "a draft uses the verifier's rows" "a store of its own" $base --draft quest:kv=f32
refused 1 "cannot draft over a loaded session" "a loaded session" generate -m "$m" --threads 1 -n 4 --load "$tmp/draft.kv" \
    --draft $fier
refused 1 "cannot be verified: quest: selects tokens in each step" "a verifier that chooses" $base --draft ngram --attn quest
refused 1 "cannot be verified: full: store kivi4" "rows in codes" $base --draft ngram --kv kivi4
finish
