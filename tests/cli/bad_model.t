# SPDX-License-Identifier: MIT
# Broken model folders: one line that names file and field, exit status 1, no output.
. "$SRCDIR/tests/cli/lib.sh"

# fresh: a writable copy of a good folder in $d.
fresh() {
    d="$tmp/m"
    rm -rf "$d"
    cp -r "$models/${1:-llama31-f32-tied}" "$d"
    chmod -R u+w "$d"
}
gen() { refused 1 "$1" "$2" generate -m "$d" -p Alice -n 2 --temp 0; }
edit() { sed "$1" "$d/config.json" >"$d/c" && mv "$d/c" "$d/config.json"; }

fresh; rm "$d/config.json"; gen "config.json" "no config.json"
fresh; rm "$d/model.safetensors"; gen "safetensors" "no weights"
fresh; rm "$d/tokenizer.json"; gen "tokenizer" "no tokenizer"
fresh; rm -r "$d"; gen "no such folder" "no folder"
fresh; echo '{' >"$d/config.json"; gen "config.json" "config.json is not JSON"
fresh; edit 's/"LlamaForCausalLM"/"GPT2LMHeadModel"/'; gen "GPT2LMHeadModel" "unsupported architecture"
fresh; edit 's/"hidden_size": [0-9]*/"hidden_size": 0/'; gen "hidden_size" "zero dimension"
fresh; edit 's/"hidden_size": [0-9]*/"hidden_size": "big"/'; gen "hidden_size" "wrong type"
fresh; edit 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 900000000/'; gen "num_hidden_layers" "huge dimension"
fresh; edit 's/"rope_type": "[a-z0-9]*"/"rope_type": "spiral"/'; gen "spiral" "unknown rope kind"
fresh; edit 's/"vocab_size": [0-9]*/"vocab_size": 999/'; gen "model.embed_tokens.weight" "wrong shape"
fresh; head -c 1000 "$d/model.safetensors" >"$d/x"; mv "$d/x" "$d/model.safetensors"; gen "model.safetensors" "truncated weights"
fresh; head -c 4 "$d/model.safetensors" >"$d/x"; mv "$d/x" "$d/model.safetensors"; gen "model.safetensors" "truncated header length"
fresh; echo more >>"$d/model.safetensors"; gen "model.safetensors" "file too long"
fresh; printf '\377\377\377\377\377\377\377\177{}' >"$d/model.safetensors"; gen "model.safetensors" "absurd header length"
fresh; : >"$d/model.safetensors"; gen "model.safetensors" "empty weights"
fresh; rm "$d/model.safetensors"; mkdir "$d/model.safetensors"; gen "model.safetensors" "a folder in place of the weights"
fresh mistral-nemo-like-f32; rm "$d"/model-00002-of-*.safetensors; gen "model-00002-of-" "missing shard"
fresh; echo '{"model": 5}' >"$d/tokenizer.json"; gen "tokenizer.json" "broken tokenizer"
# Every byte of the tensors becomes 0xff, which is NaN.
fresh; size=$(wc -c <"$d/model.safetensors"); head_len=$(od -An -tu8 -N8 "$d/model.safetensors" | tr -d ' ')
{ head -c $((8 + head_len)) "$d/model.safetensors"; head -c $((size - 8 - head_len)) /dev/zero | tr '\0' '\377'; } >"$d/x"
mv "$d/x" "$d/model.safetensors"; gen "holds NaN or infinity" "NaN weights"
finish
