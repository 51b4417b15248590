# SPDX-License-Identifier: MIT
# Quantized folders in commands: the weights cache, ranks that split blocks, the report of losses.
. "$SRCDIR/tests/cli/lib.sh"
export XDG_CACHE_HOME="$tmp/cache"
ids=1,2,3,4,5,6,7,8,9

for f in fp8-block awq gptq-order w4a16 moe-fp8 moe-awq moe-gptq; do
    d="$SRCDIR/tests/data/packed/$f"
    works "$f: converts" logits -m "$d" --ids $ids -o "$tmp/1.npy"
    err_has "weights: converted in" "which is reported"
    works "$f: from the cache" logits -m "$d" --ids $ids -o "$tmp/2.npy"
    err_has "weights: safetensors, mapped from" "which is reported"
    check "the same bits" cmp -s "$tmp/1.npy" "$tmp/2.npy"
    works "$f: decoded" logits -m "$d" --ids $ids --weights f32 --quiet -o "$tmp/1.npy"
    works "$f: decoded on 2 ranks" logits -m "$d" --ids $ids --weights f32 --tp 2 --quiet -o "$tmp/n.npy"
    check "the logits of one rank" near "$tmp/n.npy" "$tmp/1.npy"
done
works "ranks split blocks" logits -m "$SRCDIR/tests/data/packed/fp8-block" --ids $ids --tp 2 -o "$tmp/n.npy"
err_has "weights: FP8 is converted to q8; the largest error is 0" "the type and the loss are reported"

# ---- plans, sessions, ranks, drafts ----
# with_tokenizer FOLDER: a copy in $m, with a tokenizer.
with_tokenizer() {
    m="$tmp/$1"
    cp -r "$SRCDIR/tests/data/packed/$1" "$m"
    cp "$models"/llama31-f32-tied/tokenizer*.json "$m"
}
text() { run generate -m "$m" -p Alice -n 12 --temp 0 --ignore-eos --quiet "$@"; }
for f in fp8-row gptq gptq-order mixed; do
    with_tokenizer $f
    rm -rf "$XDG_CACHE_HOME"
    works "$f: a plan" generate -m "$m" -p x -n 2 --plan
    check "converts nothing" test ! -e "$XDG_CACHE_HOME"
    text
    mv "$tmp/out" "$tmp/text"
    check "a text" test "$status" -eq 0 -a -s "$tmp/text"
    text --no-weights-cache
    check "without the cache the same one" cmp -s "$tmp/out" "$tmp/text"
    text --draft streaming:budget=64 --draft-weights q4
    if [ "$f" = gptq ]; then err_has "must be smaller than the model's weights" "drafts of 4 bits are no smaller"
    else check "and with drafts" cmp -s "$tmp/out" "$tmp/text"; fi
    works "a session is saved" generate -m "$m" -p Alice -n 5 --temp 0 --ignore-eos --quiet --save "$tmp/s.kv"
    works "and continued" generate -m "$m" -n 7 --temp 0 --ignore-eos --quiet --load "$tmp/s.kv"
    [ "$f" = mixed ] || works "ranks" logits -m "$m" --ids $ids --tp 2 --quiet -o "$tmp/n.npy"
done
refused 2 "has 188 columns, each rank 94" "ranks that split a block of padding" logits -m "$m" --ids $ids --tp 2
with_tokenizer awq
refused 1 "s.kv" "a session of another folder" generate -m "$m" -n 4 --load "$tmp/s.kv"

# ---- numbers that are not finite ----
# A code of 127 is NaN: that of the first weight of q_proj.
with_tokenizer fp8-tensor
header=$(od -An -tu8 -N8 "$m/model.safetensors" | tr -d ' ')
at=$(head -c $((header + 8)) "$m/model.safetensors" | tail -c "$header" | sed 's/.*q_proj.weight":{[^}]*"data_offsets":\[\([0-9]*\).*/\1/')
printf '\177' | dd of="$m/model.safetensors" bs=1 seek=$((header + 8 + at)) conv=notrunc 2>/dev/null
for w in "" "--weights f32"; do
    # shellcheck disable=SC2086 # words of options
    refused 1 "q_proj.weight has weights that are not finite" "FP8 that is NaN $w" logits -m "$m" --ids $ids $w
done
finish
