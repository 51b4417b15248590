# SPDX-License-Identifier: MIT
# Values beyond the range of f16 rows in some tokens: commands end with an error that names layer and remedy.
. "$SRCDIR/tests/cli/lib.sh"
d="$tmp/m"
cp -r "$models/llama31-f32-tied" "$d"
chmod -R u+w "$d"
# Row 0 of layer 0's value matrix becomes 8192 in all columns: some tokens then have a value above 65504.
head_len=$(od -An -tu8 -N8 "$d/model.safetensors" | tr -d ' ')
at=$(head -c $((8 + head_len)) "$d/model.safetensors" | tail -c +9 | tr '{' '\n' | grep -A1 'layers.0.self_attn.v_proj' |
    sed -n 's/.*"data_offsets":\[\([0-9]*\),.*/\1/p' | tail -1)
i=0
while [ $i -lt 64 ]; do printf '\000\000\000\106'; i=$((i + 1)); done |
    dd of="$d/model.safetensors" bs=1 seek=$((8 + head_len + at)) conv=notrunc 2>/dev/null
head -c 1200 "$SRCDIR/README.md" >"$tmp/text"

# ends NAME ARGS...: with the error, and nothing after it.
ends() {
    name=$1
    shift
    run "$@" -m "$d" --threads 1 --quiet
    check "$name: exit status 1" test "$status" = 1
    err_has "values of layer 0 exceed 65504, the range of f16 rows; use bf16 rows (--kv bf16)" "$name: layer and remedy"
}
for how in "--repeat-penalty 1.1" "--draft ngram" "--kv kivi4:r=16:g=16"; do
    # shellcheck disable=SC2086
    ends "generate $how" generate -p Alice -n 200 --ignore-eos --seed 3 $how
    check "after a text" test -s "$tmp/out"
done
works "with the remedy it generates" generate -m "$d" -p Alice -n 200 --ignore-eos --seed 3 --kv bf16 --quiet
printf 'Alice\nAlice\n' | "$RUN" chat -m "$d" -n 200 --ignore-eos --seed 3 --quiet >"$tmp/out" 2>"$tmp/err"
status=$?
check "chat: exit status 1" test "$status" = 1
err_has "values of layer 0 exceed" "chat: the error"
# The first row of these is right; the second one would be a row of 0 % or NaN.
ends "eval agree" eval agree -f "$tmp/text" --ctx 200 --trials 1 --attn full:kv=f32,full
ends "eval drift" eval drift -f "$tmp/text" -n 64 --every 64 --prompt 100 --attn full
finish
