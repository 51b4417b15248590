# SPDX-License-Identifier: MIT
. "$SRCDIR/tests/cli/lib.sh"
m="$models/llama31-f32-tied"

for d in "$models"/*/; do
    name=$(basename "$d")
    if ! has_sentencepiece && [ -f "$d/tokenizer.model" ] && [ "$name" != llama31-bf16-untied-sharded ]; then
        skip "$name: built without SentencePiece"
        continue
    fi
    works "generate on $name" generate -m "$d" -p "Alice was" -n 8 --temp 0
done

run generate -m "$m" -p "Alice was beginning" -n 12 --temp 0
cp "$tmp/out" "$tmp/first"
err_has "tokens/s" "statistics on stderr"
err_has "attended 100.0 %" "full attention attends everything"
run generate -m "$m" -p "Alice was beginning" -n 12 --temp 0 --threads 1 --gemm builtin --chunk 3
check "greedy output does not depend on threads, GEMM and chunk" cmp -s "$tmp/out" "$tmp/first"
special='<|begin_of_text|>Alice<|eot_id|>'
run generate -m "$m" -p "$special" -n 1 --json "$tmp/r.json"
ids=$(printf %s "$special" | "$RUN" tokenize -m "$m" --special --quiet | wc -w)
check "a prompt with special tokens has the ids of tokenize --special" grep -q "\"prompt_tokens\": $ids," "$tmp/r.json"
printf 'Alice was beginning' >"$tmp/prompt"
run generate -m "$m" -f "$tmp/prompt" -n 12 --temp 0
check "-f reads the prompt from a file" cmp -s "$tmp/out" "$tmp/first"
"$RUN" generate -m "$m" -n 12 --temp 0 --quiet <"$tmp/prompt" >"$tmp/out" 2>"$tmp/err"
check "standard input is the default prompt" cmp -s "$tmp/out" "$tmp/first"
check "--quiet is quiet" test ! -s "$tmp/err"
run generate -m "$m" -p "Alice" -n 20 --seed 5
cp "$tmp/out" "$tmp/first"
run generate -m "$m" -p "Alice" -n 20 --seed 5
check "the same seed gives the same text" cmp -s "$tmp/out" "$tmp/first"
run generate -m "$m" -p "Alice" -n 20 --seed 6
check "another seed gives another text" sh -c "! cmp -s '$tmp/out' '$tmp/first'"
run generate -m "$m" -p "Alice" -n 20 --seed 5 --draw gumbel
check "the draw by noise is the default" cmp -s "$tmp/out" "$tmp/first"
run generate -m "$m" -p "Alice" -n 20 --seed 5 --draw rank
check "the draw by rank gives another text" sh -c "test -s '$tmp/out' && ! cmp -s '$tmp/out' '$tmp/first'"
refused 2 "--draw: 'ranks' is not one of: gumbel rank" "an unknown draw" generate -m "$m" -p x --draw ranks
works "invalid UTF-8 is accepted" generate -m "$m" -p "$(printf 'broken \377\376 bytes')" -n 4 --temp 0
works "streaming runs" generate -m "$m" -p "Alice" -n 4 --temp 0 --attn streaming --budget 8 --json "$tmp/r.json"
for k in '"command": "generate"' '"attn": "streaming"' '"budget": 8' '"text"' '"new_tokens": 4'; do
    check "--json has $k" grep -qF "$k" "$tmp/r.json"
done
run generate -m "$m" -p "Alice" -n 4 --plan
out_has "KV" "--plan prints the memory"
moe="$models/qwen3-moe-f32"
run generate -m "$moe" -p x -n 2 --plan
out_has "read per token: 0.2 MB; parameters: 0.10 M, active 0.07 M (3 of 8 experts)" "and what a token reads of experts"
run generate -m "$moe" -p x -n 2 --plan --tp 2
out_has "read per token: 0.1 MB on each rank; parameters: 0.10 M" "on each of two ranks too"

refused 1 "no such folder" "missing folder" generate -m /nowhere -p x
refused 1 "max_position_embeddings" "a prompt beyond the context" generate -m "$m" -p x -n 100000
refused 1 "does not fit the context of 4" "a prompt beyond --ctx" generate -m "$m" -p "one two three four five six" --ctx 4 -n 1
run generate -m "$m" -p x --ctx max -n 1 --plan
check "--ctx max: the model's positions where memory allows them" grep -q '^512 tokens: ' "$tmp/out"
err_has "--ctx max: 512 tokens, the model's positions; KV" "and is reported"
refused 2 "--ctx: 'maximum' is not a size" "another word" generate -m "$m" -p x --ctx maximum
refused 1 "out of memory" "a context beyond the memory" generate -m "$m" -p x --ctx 100000000000 -n 1
refused 1 "are needed" "a passkey length beyond the memory" passkey -m "$m" --attn full --ctx 900000M --trials 1
refused 2 "--temp" "a bad temperature" generate -m "$m" -p x --temp -1
refused 2 "unknown strategy 'best'" "an unknown strategy" generate -m "$m" -p x --attn best
refused 2 "at least sink + 1" "a budget that is too small" generate -m "$m" -p x --attn streaming --budget 3
refused 2 "--system: requires --chat" "a system message without --chat" generate -m "$m" -p x --system y
refused 2 "--template: requires --chat" "a template without --chat" generate -m "$m" -p x --template qwen3
refused 2 "--attn: generate accepts one strategy, found 2" "two strategies" generate -m "$m" -p x --attn full,streaming
refused 2 "unknown device" "an unknown device" generate -m "$m" -p x --device tpu
refused 2 "--kv: unknown" "an unknown KV type" generate -m "$m" -p x --kv f8
refused 1 "--json $tmp/no/r.json" "a report that cannot be written, before anything runs" generate -m "$m" -p x --json "$tmp/no/r.json"
refused 1 "nowhere.txt" "a missing prompt file" generate -m "$m" -f "$tmp/nowhere.txt"
# A certificate for each step, layer and head, whatever the threads.
cert="generate -m $m -f $SRCDIR/LICENSE --ctx 2k -n 12 --temp 0 --attn codes:min=1 --kv kivi4:g=4:r=8 --skip 0 --certify 0.2"
works "generate with certificates runs" $cert --threads 1 --json "$tmp/r.json"
err_has "certified 100.0 % of" "all heads are certified"
err_has "selection length: mean" "and how long their lists are is said"
cp "$tmp/out" "$tmp/one"
run $cert --threads 3 --quiet
check "the text does not depend on the threads" cmp -s "$tmp/out" "$tmp/one"
if command -v jq >/dev/null; then
    check "its report has them" jq -e '.results[0].certify | .heads == .certified and .bound_most <= 0.2 and
        .bound_mean <= .bound_most and .tokens_p10 <= .tokens_p90 and .tokens_p90 <= .tokens_most' "$tmp/r.json"
else
    skip "jq is not there"
fi
"$RUN" generate -m "$m" -p Alice -n 8 --quiet >&- 2>"$tmp/err"
check "a closed stdout is exit status 1" test $? -eq 1
err_has "standard output: Bad file descriptor" "and is said"
if [ -w /dev/full ]; then
    "$RUN" --help >/dev/full 2>"$tmp/err"
    check "--help to a full disk is exit status 1" test $? -eq 1
    "$RUN" generate -m "$m" -p Alice -n 8 --quiet >/dev/full 2>"$tmp/err"
    check "stdout on a full disk is exit status 1" test $? -eq 1
    err_has "standard output" "and is said"
fi
finish
