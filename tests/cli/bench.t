# SPDX-License-Identifier: MIT
# bench: what it prints and reports. Speeds are not looked at: they belong to the machine.
. "$SRCDIR/tests/cli/lib.sh"

run bench --shape tiny --threads 1 --ctx 256 --attn full,quest:page=4 --budget 32 --skip 0 --samples 3 --quiet --json "$tmp/r.json" --wide
check "it runs" test "$status" -eq 0 -a ! -s "$tmp/err"
check "limits come first" sh -c "head -n 2 '$tmp/out' | tr -s '\n ' ' ' | grep -Eq '^limits, 1 thread: memory read [0-9.]+ GB/s \([0-9.]+ to [0-9.]+\); products of .* f32 [0-9]+ GFLOP/s, bf16 .*, int8 '"
check "each row has bandwidth, fraction of the limit and number of valid samples" \
    grep -qE "of limit +samples +counts +MB/token +read GB/s +GFLOP/s" "$tmp/out"
check "a row for each phase, strategy and context" test "$(grep -cE '^(prefill|decode) .* [0-9]+/[0-9]+ ' "$tmp/out")" -eq 4
check "what a step consists of" grep -qE "projections +index +score +top-k +attention +rest" "$tmp/out"
if command -v jq >/dev/null; then
    holds() { check "$2" jq -e "$1" "$tmp/r.json"; }
    holds '.limits | .memory == "read" and .read_gbps > 0 and .read_range[0] <= .read_gbps and .read_gbps <= .read_range[1] and
        .gemm_f32_gflops > 0 and .gemm_bf16_gflops >= 0 and .gemm_int8_gops >= 0 and (.gemm | length > 0)' "limits"
    holds '.results | length == 4 and all(.samples | .taken == (.refused | add) + (if .enough then (.tokens_per_s | length)
        else .taken - (.refused | add) end))' "samples taken are those that count and those refused"
    holds '.results | all(.samples as $s | ($s.tokens_per_s | length) == ($s.read_gbps | length) and
        ($s.tokens_per_s | all(. > 0)) and ($s.read_gbps | all(. > 0)))' "each with its speed and bandwidth"
    holds '.results | all(if .phase == "decode" then .samples.limit_gbps == .samples.read_gbps
        else .samples.limit_gops | all(. > 0) end)' "and its limit"
    holds '.results | all((.limit_share == null) == (.samples.enough | not))' "no share where too few samples count"
    holds '.results | all(.parts | ["embed","norm","qkv","index","score","topk","attention","out","ffn","logits","rest"] -
        keys == [])' "parts"
    holds '.results[] | select(.phase == "decode" and .ctx == 256 and .attn == "quest:page=4") | .parts |
        .score > 0 and .topk > 0 and .index > 0' "what chooses has a score and a top-k"
    holds '.results | map(select(.phase == "decode" and .attn == "full")) | all(.parts.topk == 0)' "full has no top-k"
    holds '.results | all(.filled == false)' "real prompts"
    run bench --shape tiny --threads 1 --ctx 9k --chunk 64 --phase prefill --attn full,snapkv:window=8 --budget 32 --samples 3 --quiet --json "$tmp/r.json"
    holds '.results | all(.filled)' "beyond 8k only the last chunk, after random rows"
    holds '.results | .[0].attended == 9184.5' "and attends them all"
    holds '.results | all(.tokens == 64)' "chunks are what is timed"
    run bench --shape tiny --threads 1 --ctx 200 --chunk 64 --phase prefill --attn full,snapkv:window=8 --budget 32 --samples 3 --quiet --json "$tmp/r.json"
    holds '.results | all(.tokens == 200 and (.filled | not)) and .[0].attended == 100.5' "up to 8k the whole prompt is timed"
    run bench --shape tiny --threads 1 --ctx 600 --fill --phase decode --attn all,infllm:sink=4:local=64:block=16 --budget 640 --batch 2 --samples 3 --quiet --json "$tmp/r.json"
    all=$("$RUN" --help-attn list | grep -cE '^  [a-z0-9]+ ') # with all and auto, without infllm's default and codes, which f16 rows lack
    holds "(.options.fill) and (.options.seed == 42) and (.results | length == $all - 3 and all(.filled))" "--fill: every strategy, for a batch"
    run bench --shape tiny --threads 1 --ctx 64 --phase decode --attn full,actqkv:budget=64 --samples 3 --quiet --json "$tmp/r.json"
    holds '(.results | length == 1) and (.left_out | length == 1) and (.left_out[0] | .attn == "actqkv:budget=64" and
        .ctx == 64 and (.reason | test("budget")))' "what cannot run is listed with the reason"
    drafts() { run bench --shape tiny --threads 1 --ctx 128 --samples 3 --quiet --json "$tmp/r.json" "$@"; }
    drafts --draft fier:budget=64:skip=0:n=3:adapt=off --accept 1
    holds '.results | length == 1 and (.[0] | .drafted == 3 and .accepted_length == 4 and .tokens_per_s > 0 and
        ((.tokens_per_s / .single_tokens_per_s - .times | fabs) < 1e-3 * .times))' "drafts that are all right"
    drafts --draft ngram:n=2:adapt=off,fier:budget=64:skip=0 --accept 0
    holds '.results[0] | .drafted > 0 and .accepted_length == 1' "drafts that are all wrong"
    holds '.results[0] | .draft_steps > 0 and .verify_steps > 0' "and what drafts and verifications take"
    drafts --draft ngram:n=4:adapt=off --accept 1
    holds '.results[0] | .drafted > 3.5 and .accepted_length > 4.5' "look-ups in a text that repeats itself"
    drafts --draft ngram:n=4:adapt=off --accept 0.9
    holds '.results[0] | .drafted > 3.5 and .accepted_length > 3.4 and .accepted_length < 4.7' "and where a tenth of them is wrong"
    drafts --draft full:n=3:adapt=off --draft-weights q4 --weights q8 --accept 1
    holds '.results[0] | .weights == "q8" and .draft_weights == "q4" and .accepted_length == 4' "drafts with other weights"
    out_has "drafts run with weights q4" "the table's head names them"
    run bench --shape tiny --threads 1 --ctx 64,128 --samples 3 --quiet --json "$tmp/r.json" --draft fier:budget=64:skip=0:n=3:adapt=off --draft-weights q8
    holds '[.results[] | [.ctx, .weights, .draft_weights]] == [[64, "bf16", "q8"], [128, "bf16", "q8"]]' "at several contexts"
    export KVASIR_CPU=amx-emulated
    drafts --draft ngram --accept 0.9
    holds '.results[0].decode | . == "tiles" or . == "rows"' "drafts choose a kernel"
    drafts --draft ngram --accept 0.9 --attn full:decode=tiles
    holds '.results[0].decode == "tiles"' "or take the one that is named"
    run bench --shape tiny --threads 1 --ctx 64 --attn full --samples 3 --quiet --json "$tmp/r.json" --wide
    check "rows have the rate of tiles" grep -q "tiles  of tiles" "$tmp/out"
    holds '.results | length == 2 and all(.tile_gflops > 0 and has("tile_share") == (.phase == "prefill"))' "prompts their share of it"
    run bench --shape tiny --threads 1 --ctx 64 --phase prefill --weights q8 --attn full --samples 3 --quiet --json "$tmp/r.json"
    holds '.results | length == 1 and (.[0].limit_product | . == "bf16" or . == "f32")' "tiles do not multiply quantized matrices in int8"
    unset KVASIR_CPU
    run bench --shape tiny --threads 1 --phase kernel --ctx 256,1k --budget 64 --samples 3 --quiet --json "$tmp/r.json" --wide
    check "single kernels" test "$status" -eq 0 -a "$(grep -cE ' [0-9]+/[0-9]+$' "$tmp/out")" -eq 15
    out_has "decode attention, tiles; verification, 4 rows, tiles: the cpu backend has no tiles" "as are kernels that a CPU does not have"
    out_has "decode attention, q8; decode attention, q4: 16 channels of a head are no multiple of 32" "rows that a shape cannot have are named"
    holds '(.model == "tiny") and (.results == []) and (.kernels | length == 15 and all(.ns > 0 and .ctx == 1024))' \
        "at contexts that are long enough"
else
    skip "jq is not there"
fi
refused 2 "unknown phase 'guess'" "an unknown phase" bench --shape tiny --phase guess
refused 2 "--batch 0" "no sequence" bench --shape tiny --batch 0
refused 2 "--accept 2: must be in [0, 1]" "more than all" bench --shape tiny --draft ngram --accept 2
refused 2 "--draft-weights q4: requires --draft" "weights of no drafts" bench --shape tiny --draft-weights q4
refused 2 "must be smaller than the model's weights, q4" "weights as large" bench --shape tiny --weights q4 --draft full --draft-weights q4
refused 2 "--phase and --batch are not supported" "drafts of prompts" bench --shape tiny --draft ngram --phase prefill
refused 2 "unknown" "an unknown shape" bench --shape none
refused 2 "cannot be combined" "a model and a shape" bench --shape tiny -m "$models/llama31-f32-tied"
refused 1 "r.json" "a report that cannot be written" bench --shape tiny --json "$tmp/none/r.json"
finish
