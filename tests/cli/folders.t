# SPDX-License-Identifier: MIT
# Folders as other programs and clones write them: numbers that C cannot hold, byte order marks, Git LFS pointers.
. "$SRCDIR/tests/cli/lib.sh"

# fresh FIXTURE: a writable copy in $d.
fresh() {
    d="$tmp/m"
    rm -rf "$d"
    cp -r "$models/$1" "$d"
    chmod -R u+w "$d"
}
ids() { "$RUN" tokenize -m "$d" --quiet <"$tmp/text" 2>"$tmp/err"; }
# edit FILE COMMAND...: the file, or an empty object, through a filter.
edit() {
    file="$d/$1"
    shift
    [ -f "$file" ] || echo '{}' >"$file"
    "$@" <"$file" >"$tmp/edited" && mv "$tmp/edited" "$file"
}
with_mark() { printf '\357\273\277' && cat; }
as_pointer() { printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4665465\nsize 1234567\n'; }
with_numbers() { sed '1s/{/{"x0": [NaN, Infinity, -Infinity, 1e999], "x1": 1000000000000000019884624838656, /; s/, }/}/'; }
refuses() { refused 1 "$1" "$2" tokenize -m "$d"; }
# JSON files that `tokenize` reads.
settings='tokenizer.json tokenizer_config.json special_tokens_map.json generation_config.json chat_template.json'

echo 'hello there' >"$tmp/text"
fresh qwen3-f32-sharded-tied
ids >"$tmp/want"
for f in $settings config.json model.safetensors.index.json; do edit "$f" with_numbers; done
check "the files have numbers that C cannot hold" grep -q NaN "$d/config.json" "$d/model.safetensors.index.json"
ids >"$tmp/out"
check "the same tokens" cmp "$tmp/want" "$tmp/out"
check "the weights load" "$RUN" logits -m "$d" --ids 1,2 -o "$tmp/o.npy" --quiet
fresh llama2-linear-f16
if has_sentencepiece; then
    ids >"$tmp/want"
    edit tokenizer_config.json sed '1s/{/{"model_max_length": 1000000000000000019884624838656,/'
    ids >"$tmp/out"
    check "transformers' marker for no length" cmp "$tmp/want" "$tmp/out"
fi
edit tokenizer.model as_pointer
refuses "tokenizer.model: a Git LFS pointer, not the file itself" "pointer: tokenizer.model"

for f in $settings; do
    fresh qwen3-bf16
    edit "$f" with_mark
    refuses "$f: begins with a byte order mark" "mark: $f"
    edit "$f" as_pointer
    refuses "$f: a Git LFS pointer" "pointer: $f"
done
edit chat_template.json printf '{}'
edit chat_template.jinja as_pointer
refuses "chat_template.jinja: a Git LFS pointer" "pointer: chat_template.jinja"
fresh qwen2-f16
edit merges.txt with_mark
refuses "merges.txt: begins with a byte order mark" "mark: merges.txt"
edit merges.txt as_pointer
refuses "merges.txt: a Git LFS pointer" "pointer: merges.txt"
edit vocab.json with_mark
refuses "vocab.json: begins with a byte order mark" "mark: vocab.json"
edit vocab.json as_pointer
refuses "vocab.json: a Git LFS pointer" "pointer: vocab.json"

loads() { refused 1 "$1" "$2" logits -m "$d" --ids 1 -o "$tmp/o.npy"; }
fresh qwen3-f32-sharded-tied
edit model-00002-of-00003.safetensors as_pointer
loads "model-00002-of-00003.safetensors: a Git LFS pointer" "pointer: a shard"
edit model.safetensors.index.json with_mark
loads "model.safetensors.index.json: begins with a byte order mark" "mark: the index"
edit model.safetensors.index.json as_pointer
loads "model.safetensors.index.json: a Git LFS pointer" "pointer: the index"
edit config.json with_mark
loads "config.json: begins with a byte order mark" "mark: config.json"
edit config.json as_pointer
loads "config.json: a Git LFS pointer" "pointer: config.json"
finish
