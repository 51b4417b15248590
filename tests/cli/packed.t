# SPDX-License-Identifier: MIT
# Quantized folders in commands: the weights cache, ranks that split blocks, the report of losses.
. "$SRCDIR/tests/cli/lib.sh"
export XDG_CACHE_HOME="$tmp/cache"
ids=1,2,3,4,5,6,7,8,9

for f in fp8-block awq gptq-order w4a16; do
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
finish
