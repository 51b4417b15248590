# SPDX-License-Identifier: MIT
# Sampling options of a model's generation_config.json, in its folder or that of a GGUF file, and stop tokens of the latter.
. "$SRCDIR/tests/cli/lib.sh"
mkdir "$tmp/m" && cp -R "$models/qwen3-bf16"/. "$tmp/m" && chmod -R u+w "$tmp/m"

# config TEXT: writes the file.
config() { echo "$1" >"$tmp/m/generation_config.json"; }
# used OPTION...: runs with the options, and prints those that were used.
used() {
    run generate -m "$tmp/m" -p a -n 1 --json "$tmp/j" "$@"
    tr -d ' \n' <"$tmp/j" | sed 's/.*"temp":\([^,]*\),"top_k":\([^,]*\),"top_p":\([^,]*\),"min_p":\([^,]*\),"repeat_penalty":\([^,]*\),.*/\1 \2 \3 \4 \5/'
}
# uses WANT NAME OPTION...
uses() {
    want=$1 name=$2
    shift 2
    got=$(used "$@")
    if [ "$got" = "$want" ]; then pass "$name"; else fail "$name"; echo "#   got '$got', want '$want'"; show; fi
}

config '{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.05, "min_p": null}'
uses "0.6 20 0.9 0.0 1.05" "the model's options"
err_has "generation_config.json: temp 0.6, top-k 20, top-p 0.9, repeat-penalty 1.05" "the statistics name them"
uses "0.5 20 1.0 0.0 1.05" "options of the command line win" --temp 0.5 --top-p 1
err_has "sampling: temp 0.5, top-k 20, top-p 1, min-p 0, repeat-penalty 1.05 (generation_config.json: temp 0.6," "both are printed"
uses "0.6 0 0.9 0.125 1.0" "also off" --top-k 0 --min-p 0.125 --repeat-penalty 1
run info -m "$tmp/m"
out_has "sampling       temp 0.6, top-k 20, top-p 0.9, repeat-penalty 1.05 (generation_config.json)" "info"
config '{"do_sample": false, "temperature": 0.6, "top_p": 0.9}'
uses "0.0 0 0.95 0.0 1.0" "do_sample false: greedy"
config '{"temperature": 1}'
uses "1.0 0 0.95 0.0 1.0" "keys that are missing keep the defaults"
config '{"eos_token_id": [7, 9]}'
uses "0.8 0 0.95 0.0 1.0" "no key of sampling"
rm "$tmp/m/generation_config.json"
uses "0.8 0 0.95 0.0 1.0" "no file"

# refused TEXT PART
refused() {
    config "$1"
    run generate -m "$tmp/m" -p a -n 1
    is_refusal 1 "generation_config.json: $2" "refused: $1"
}
refused '{"temperature": "hot"}' 'temperature is not a number'
refused '{"temperature": -1}' 'temperature -1: must be from 0 to 100'
refused '{"top_k": 1e300}' 'top_k 1e+300: must be from 0'
refused '{"top_p": -1}' 'top_p -1: must be from 0 to 1'
refused '{"top_k": 1.5}' 'top_k 1.5: must be an integer'
refused '{"do_sample": "no"}' 'do_sample is not true or false'
refused '{"temperature": "0.7"}' 'temperature is not a number'
refused '{"eos_token_id": [null]}' 'eos_token_id is not a token id or a list of ids'
refused '{' 'not valid JSON'
refused '[]' 'the top level is not a JSON object'
config '{"do_sample": null, "temperature": null, "top_k": null, "top_p": 0, "min_p": 1, "repetition_penalty": null}'
uses "0.8 0 0.0 1.0 1.0" "null is the default; top_p 0 and min_p 1 are in range, as in transformers"
config '{"do_sample": true, "temperature": 0}'
uses "0.0 0 0.95 0.0 1.0" "temperature 0 is greedy"
refused '{"repetition_penalty": true}' 'repetition_penalty is not a number'

gguf=$(find "$SRCDIR/tests/data/gguf" -name '*.gguf' | sort | head -1)
cp "$gguf" "$tmp/g.gguf"
run info -m "$tmp/g.gguf"
check "a GGUF file alone has no options" sh -c "! grep -q '^sampling' '$tmp/out'"
echo '{"temperature": 0.25, "eos_token_id": [77, 78]}' >"$tmp/generation_config.json"
run info -m "$tmp/g.gguf"
out_has "sampling       temp 0.25 (generation_config.json)" "a file in the folder of a GGUF file"
check "its stop tokens" grep -q '^stop tokens .* 77 78$' "$tmp/out"
finish
