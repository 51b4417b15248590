# SPDX-License-Identifier: MIT
# --weights: types, the cache file and what goes wrong with it.
. "$SRCDIR/tests/cli/lib.sh"
m="$models/llama31-f32-tied"
XDG_CACHE_HOME="$tmp/cache"
export XDG_CACHE_HOME
cache="$tmp/cache/kvasir"
logits() { run logits -m "$m" --ids 1,2,3,4,5 "$@"; }

logits
cp "$tmp/out" "$tmp/plain"
logits --weights f32
check "the file's own type changes nothing" cmp -s "$tmp/out" "$tmp/plain"
logits --weights q8
err_has "quantizing to q8" "q8 says that it quantizes"
err_has "cached in $cache/" "and where"
cp "$tmp/out" "$tmp/q8"
check "logits are others" test -s "$tmp/q8" -a -n "$(cmp "$tmp/q8" "$tmp/plain")"
check "one file, for the user alone" test "$(find "$cache" -type f -perm 600 | wc -l)" -eq 1
logits --weights q8
err_has "mapped from $cache/" "the second start maps it"
check "with the same result" cmp -s "$tmp/out" "$tmp/q8"
logits --weights q8 --no-weights-cache
check "without the cache too" cmp -s "$tmp/out" "$tmp/q8"
check "and it is not mentioned" test "$(grep -c "$cache" "$tmp/err")" -eq 0

f=$(find "$cache" -type f)
head -c 5000 "$f" >"$tmp/part" && cp "$tmp/part" "$f"
logits --weights q8
err_has "5000 bytes, expected" "a file that is too short is named with what was expected"
check "and its results are right" cmp -s "$tmp/out" "$tmp/q8"
logits --weights q8
err_has "mapped from" "it was made again"
logits --weights q8 --quiet
check "--quiet says nothing" test ! -s "$tmp/err"

: >"$tmp/file"
XDG_CACHE_HOME="$tmp/file" logits --weights q8
err_has "warning: weights cache $tmp/file" "a folder that cannot be made is a warning"
check "one line" test "$(grep -c warning "$tmp/err")" -eq 1
check "and no more" cmp -s "$tmp/out" "$tmp/q8"
HOME="$tmp/home" XDG_CACHE_HOME=relative logits --weights q4
err_has "cached in $tmp/home/.cache/kvasir/" "a relative XDG_CACHE_HOME is ignored"

run info "$m" --weights q4
out_has "q4 (" "info counts tensors held as q4"
run generate -m "$m" -p x -n 2 --plan --weights q8 --no-weights-cache
out_has "MB in memory" "the plan tells what is in memory"
rm -rf "$cache"
run generate -m "$m" -p x -n 2 --plan --weights q8
check "with a cache file all is mapped" test "$(grep -c "in memory" "$tmp/out")" -eq 0
check "a plan quantizes nothing" test ! -e "$cache"
run bench --shape tiny --weights bf16,q8,q4 --phase decode --ctx 0 --samples 3 --json "$tmp/b.json"
check "bench takes a list of types" test "$status" -eq 0
out_has "tiny, q4," "each by its name"
if command -v jq >/dev/null; then
    check "and reports fewer bytes for each" jq -e '[.results[].bytes_per_token] | .[0] > .[1] and .[1] > .[2]' "$tmp/b.json"
else
    skip "jq is not there"
fi
works "of a model of files too" bench -m "$m" --weights f32,q8 --phase decode --ctx 0 --samples 3 --no-weights-cache
out_has ", q8," "the type of its copy"
refused 2 "'q5' is not one of" "an unknown type" logits -m "$m" --ids 1 --weights q5
refused 2 "'q5' is not one of" "in a list of bench" bench --shape tiny --weights q8,q5
finish
