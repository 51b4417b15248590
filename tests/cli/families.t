# SPDX-License-Identifier: MIT
# Families whose files, rotary embedding or queries differ from Llama's: reports, strategies, ranks, weights, sessions.
. "$SRCDIR/tests/cli/lib.sh"
XDG_CACHE_HOME="$tmp/cache"
export XDG_CACHE_HOME
prompt="Alice was beginning to get very tired of sitting by her sister on the bank"
text() { run generate -m "$m" -p "$prompt" -n 16 --temp 0 --quiet "$@"; }

# family NAME: runs of the fixture tests/data/models/NAME.
family() {
    m="$models/$1"
    text --weights f32 --attn full
    cp "$tmp/out" "$tmp/want"
    text --weights f32 --attn full --chunk 7
    check "$1: text of short chunks" cmp -s "$tmp/out" "$tmp/want"
    text --weights f32 --attn full --tp 2
    check "$1: text of two ranks" cmp -s "$tmp/out" "$tmp/want"
    text --weights f32 --attn full --draft ngram
    check "$1: text with drafts" cmp -s "$tmp/out" "$tmp/want"
    works "$1: every strategy" passkey -m "$m" --ctx 250 --trials 1 --attn all --budget 64 --quiet
    works "$1: weights in 8 bits" generate -m "$m" -p "$prompt" -n 4 --weights q8 --no-weights-cache
    works "$1: a session is saved" generate -m "$m" -p "$prompt" -n 8 --temp 0 --ctx 400 --save "$tmp/s.kv"
    works "$1: and loaded" generate -m "$m" -p " and" -n 8 --temp 0 --ctx 400 --load "$tmp/s.kv"
}

# ---- Phi-3 ----
family phi3-longrope-f16
works "info" info -m "$m"
out_has "Phi3ForCausalLM" "the architecture"
out_has "longrope, theta 10000, factor 10.6667, 6 of 8 channels, trained length 48" "the rotary embedding"
out_has "14 tensors" "the file"
check "all tensors are used" test "$(grep -c 'not used' "$tmp/out")" -eq 0
run generate -m "$m" -p Alice -n 24 --temp 0 --quiet --ctx 48
cp "$tmp/out" "$tmp/short"
run generate -m "$m" -p Alice -n 24 --temp 0 --quiet --ctx 49
check "the context chooses the factors" test "$status" -eq 0 -a "$(cmp -s "$tmp/out" "$tmp/short"; echo $?)" -eq 1

# ---- Ministral 3 ----
family ministral3-vision-f16
works "info" info -m "$m"
out_has "Ministral3ForCausalLM" "the architecture of the text model"
out_has "query scale beta 0.5, trained length 16" "the factor of queries"
out_has "not used       15 tensors" "tensors of the vision model"

# ---- Muse Glimmer ----
family muse-glimmer-bf16
works "info" info -m "$m"
out_has "rope           plain, theta 500000, none in layers without a window" "the rotary embedding"
out_has "sliding window 16 in layer 0" "the window"
finish
