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

# ---- templates, names and GGUF files ----
echo '[{"role": "user", "content": "Hi"}]' >"$tmp/m.json"
fresh qwen3-bf16
"$RUN" tokenize -m "$d" --quiet <"$tmp/m.json" >"$tmp/want"
ln -s m "$tmp/linked"
for name in "$d/" "$d/." "$tmp/linked"; do
    "$RUN" tokenize -m "$name" --quiet <"$tmp/m.json" >"$tmp/out" 2>"$tmp/err"
    check "-m ${name#"$tmp"}" cmp "$tmp/out" "$tmp/want"
done
(cd "$d" && "$RUN" generate -m . -p a -n 1 --quiet --json "$tmp/j" >"$tmp/out")
check "the name of . in reports" grep -q '"model": "m"' "$tmp/j"
printf '\357\273\277A\r\n{{ messages[0].content }}' >"$d/chat_template.jinja"
"$RUN" template -m "$d" --messages "$tmp/m.json" >"$tmp/out" 2>"$tmp/err"
check "a folder's template is rendered as by transformers" sh -c "printf '\357\273\277A\nHi' | cmp - '$tmp/out'"
mkdir "$d/additional_chat_templates" && echo 'RAG' >"$d/additional_chat_templates/my rag.jinja"
"$RUN" template -m "$d" --messages "$tmp/m.json" --template "my rag" >"$tmp/out" 2>"$tmp/err"
check "a name with a blank" test "$(cat "$tmp/out")" = RAG
refused 2 "default, my rag" "a missing name lists those of the model" template -m "$d" --messages "$tmp/m.json" --template no
rm -r "$d"/*template*
for value in null '[]' '{}' 5; do
    echo "{\"chat_template\": $value}" >"$d/tokenizer_config.json"
    refused 1 "no chat template; name one with --template" "chat_template $value" template -m "$d" --messages "$tmp/m.json"
done
fresh qwen3-f32-sharded-tied
for file in /etc/passwd ../m/x.safetensors ""; do
    sed -i 's|\("model.embed_tokens.weight": \)"[^"]*"|\1"'"$file"'"|' "$d/model.safetensors.index.json"
    refused 1 "expected a plain file name" "a shard '$file'" info -m "$d"
done
sed -i 's|\("model.embed_tokens.weight": \)"[^"]*"|\1"no.safetensors"|' "$d/model.safetensors.index.json"
refused 1 "no.safetensors: No such file" "a missing shard" info -m "$d"
gguf=$(find "$SRCDIR/tests/data/gguf" -name '*.gguf' | sort | head -1)
mkdir "$tmp/g" && cp "$gguf" "$tmp/g/X.GGUF" && cp "$gguf" "$tmp/g/noext" && ln -s noext "$tmp/g/sha256-abc"
for name in X.GGUF noext sha256-abc; do works "GGUF: $name" info -m "$tmp/g/$name"; done
refused 1 "expected a Hugging Face folder, or the path of a GGUF file" "a folder of GGUF files" info -m "$tmp/g"
echo text >"$tmp/g/text"
refused 1 "not a GGUF file" "another file" info -m "$tmp/g/text"
for name in - "" a/../..; do refused 1 "-m $name: no such folder or file" "-m '$name'" info -m "$name"; done

# changed COMMAND: a folder changed by a command.
changed() {
    fresh qwen3-bf16
    (cd "$d" && eval "$1")
}
changed 'rm tokenizer.json'
refused 1 "m: no tokenizer.json, tokenizer.model, vocab.json" "no tokenizer" generate -m "$d" -p a -n 1
changed 'rm config.json && mkdir config.json'
refused 1 "config.json: not a regular file" "a folder in place of config.json" info -m "$d"
changed 'rm model.safetensors && ln -s nowhere model.safetensors'
refused 1 "no model.safetensors" "a dangling link" info -m "$d"
changed 'mv model.safetensors consolidated.safetensors'
refused 1 "consolidated.safetensors has Mistral's own names" "Mistral's own files" info -m "$d"
changed 'mv tokenizer.json tekken.json'
refused 1 "tekken.json: config.pattern is missing" "another file as tekken.json" generate -m "$d" -p a -n 1
changed ': >model.safetensors'
refused 1 "model.safetensors: truncated header: 0 bytes" "an empty file" info -m "$d"
changed 'echo "{\"weight_map\": {\"a\": \"b.safetensors\"}}" >model.safetensors.index.json'
works "a single file is read although there is an index" generate -m "$d" -p a -n 1
changed ': >chat_template.jinja'
"$RUN" template -m "$d" --messages "$tmp/m.json" >"$tmp/out"
check "an empty chat_template.jinja comes before tokenizer_config.json" test ! -s "$tmp/out"
changed 'echo x >chat_template.jinja && : >additional_chat_templates'
"$RUN" template -m "$d" --messages "$tmp/m.json" >"$tmp/out"
check "a file in place of additional_chat_templates" test "$(cat "$tmp/out")" = x
finish
