# SPDX-License-Identifier: MIT
# GGUF files as models: reports, sessions, ranks, drafts, the weights cache, broken files.
. "$SRCDIR/tests/cli/lib.sh"
m="$SRCDIR/tests/data/gguf/llama.gguf"
XDG_CACHE_HOME="$tmp/cache"
export XDG_CACHE_HOME
cache="$tmp/cache/kvasir"
logits() { run logits -m "$m" --ids 1,2,3,4,5 "$@"; }
text() { run generate -m "$m" -p Alice -n 12 --temp 0 --attn full "$@"; }

works "info" info "$m"
out_has "LlamaForCausalLM" "the architecture"
out_has "llama.gguf (0.07 MB, 21 tensors)" "the file"
out_has "q4 (10 tensors" "types of the matrices"
out_has "byte-level BPE (GGUF), 384 tokens" "the tokenizer"
out_has "chat template  tokenizer.chat_template" "the chat template"
check "all tensors are used" test "$(grep -c 'not used' "$tmp/out")" -eq 0
for a in qwen2 qwen3; do works "info of $a" info "$SRCDIR/tests/data/gguf/$a.gguf"; done

check "info converts nothing" test "$(grep -c 'in memory' "$tmp/out")" -eq 0 -a ! -e "$cache"

# ---- evaluations ----
eval_passkey() { run passkey -m "$1" --ctx 300 --trials 1 --attn full,quest:skip=0 --budget 64 --quiet --no-weights-cache -o "$tmp/results"; }
eval_passkey "$m"
check "an evaluation runs" test "$status" -eq 0 -a "$(wc -l <"$tmp/results")" -eq 3
eval_passkey "$m"
check "and resumes" test "$status" -eq 0 -a "$(wc -l <"$tmp/results")" -eq 3
eval_passkey "$SRCDIR/tests/data/gguf/qwen2.gguf"
is_refusal 2 "model_sha256" "results of another file are refused"

# ---- the weights cache ----
logits
err_has "cached in $cache/" "the first start writes the cache"
cp "$tmp/out" "$tmp/held"
check "one file, for the user alone" test "$(find "$cache" -type f -perm 600 | wc -l)" -eq 1
logits
err_has "mapped from $cache/" "the second start maps it"
check "with the same result" cmp -s "$tmp/out" "$tmp/held"
logits --no-weights-cache
check "without the cache too" cmp -s "$tmp/out" "$tmp/held"
f=$(find "$cache" -type f)
head -c 9000 "$f" >"$tmp/part" && cp "$tmp/part" "$f"
logits
err_has "9000 bytes, expected" "a file that is too short is named"
check "and its results are right" cmp -s "$tmp/out" "$tmp/held"
printf 'x' | dd of="$f" bs=1 seek=10000 conv=notrunc 2>/dev/null
logits
err_has "fail their checksum" "a damaged byte is found"
check "and its results are right too" cmp -s "$tmp/out" "$tmp/held"
logits
err_has "mapped from" "it was made again"
logits --quiet
check "--quiet says nothing" test ! -s "$tmp/err"
cp "$m" "$tmp/copy.gguf"
run logits -m "$tmp/copy.gguf" --ids 1,2,3,4,5
err_has "cached in" "another file has a cache file of its own"
check "and the same result" cmp -s "$tmp/out" "$tmp/held"
for t in f32 bf16 q8 q4; do
    works "--weights $t" logits -m "$m" --ids 1,2,3,4,5 --weights $t
done

# ---- plans, sessions, ranks, drafts ----
rm -rf "$cache"
run generate -m "$m" -p x -n 2 --plan
check "a plan of a model that will be mapped" test "$status" -eq 0 -a "$(grep -c 'in memory' "$tmp/out")" -eq 0
check "a plan converts nothing" test ! -e "$cache"
run generate -m "$m" -p x -n 2 --plan --no-weights-cache
out_has "MB in memory" "without the cache the weights are in memory"
text
cp "$tmp/out" "$tmp/text"
run generate -m "$m" -p Alice -n 1 --temp 0 --attn full --save "$tmp/s.kv"
works "a session is loaded" generate -m "$m" -p " and" -n 4 --temp 0 --load "$tmp/s.kv"
refused 1 "s.kv" "a session of another model" generate -m "$SRCDIR/tests/data/gguf/qwen3.gguf" -p " and" -n 4 --load "$tmp/s.kv"
text --weights f32
cp "$tmp/out" "$tmp/f32"
text --weights f32 --tp 2
check "--tp 2: the same text" cmp -s "$tmp/out" "$tmp/f32"
refused 2 "must be smaller than the model's weights" "a draft of the model's type" generate -m "$m" -p x -n 1 --draft streaming:budget=64 --draft-weights q4
m="$SRCDIR/tests/data/gguf/qwen2.gguf"
text
cp "$tmp/out" "$tmp/text"
text --draft streaming:budget=64 --draft-weights q4
check "--draft-weights q4: the same text" test "$status" -eq 0 -a -z "$(cmp "$tmp/out" "$tmp/text")"
text --draft streaming:budget=64 --draft-weights q4 --no-weights-cache
check "and without the cache" test "$status" -eq 0 -a -z "$(cmp "$tmp/out" "$tmp/text")"
m="$SRCDIR/tests/data/gguf/llama.gguf"

# ---- an id beyond the vocabulary ----
key=tokenizer.ggml.eos_token_id
at=$(LC_ALL=C grep -abo "$key" "$m" | cut -d : -f 1)
cp "$m" "$tmp/ids.gguf"
printf '\377\377\377\377' | dd of="$tmp/ids.gguf" bs=1 seek=$((at + ${#key} + 4)) conv=notrunc 2>/dev/null
for c in "generate -p Alice -n 2" "tokenize" "info"; do
    # shellcheck disable=SC2086 # words of a command
    works "$c with an id beyond the vocabulary" $c -m "$tmp/ids.gguf"
    check "warns once" test "$(grep -c "ids.gguf: $key is 4294967295, ignored: the file has 384" "$tmp/err")" -eq 1
done

# ---- files that are refused ----
# replaced FROM TO: the file with a text replaced by another one of its length.
replaced() { LC_ALL=C sed "s/$1/$2/g" "$m" >"$tmp/bad.gguf"; }
gen() { refused 1 "$1" "$2" generate -m "$tmp/bad.gguf" -p Alice -n 2 --temp 0; }
replaced llama.block_count llama.block_coumt; gen "bad.gguf: llama.block_count is missing" "a missing key"
replaced blk.1.ffn_up.weight blk.1.ffn_ux.weight; gen "blk.1.ffn_up.weight is missing" "a missing tensor"
replaced tokenizer.ggml.model tokenizer.ggml.mopel; gen "bad.gguf: tokenizer.ggml.model" "no tokenizer"
replaced llama-bpe llama-xyz; gen 'tokenizer.ggml.pre "llama-xyz" is not supported' "an unknown pre-tokenizer"
head -c 60000 "$m" >"$tmp/bad.gguf"; gen "bad.gguf: truncated" "a truncated file"
head -c 40 "$m" >"$tmp/bad.gguf"; gen "bad.gguf: truncated" "a truncated header"
printf 'GGUF\0\0\0\3' >"$tmp/bad.gguf"; gen "big-endian" "a big-endian file"
: >"$tmp/bad.gguf"; gen "bad.gguf" "an empty file"
echo '{}' >"$tmp/bad.gguf"; gen "not a GGUF file" "another file"
refused 1 "no/such.gguf" "no file" generate -m "$tmp/no/such.gguf" -p x -n 1
finish
