# SPDX-License-Identifier: MIT
# Sessions on disk: --save and --load, from process to process.
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm # every session waits for the disk
. "$SRCDIR/tests/cli/lib.sh"
m="$models/llama31-f32-tied"
kv="$tmp/a.kv"
seq 1 40 | tr '\n' ' ' >"$tmp/prompt"
# joined A B: the first output without its last newline, then the second.
joined() { head -c -1 "$1" && cat "$2"; }

penalties="--repeat-penalty 1.1 --presence-penalty 0.5 --frequency-penalty 0.7"
# The other strategies: tests/unit/test_session_file.c.
for a in full h2o:budget=24 quest:budget=24:page=4:skip=0:tail=sample:5 kivi:r=32; do
    set -- -m "$m" --seed 3 --ignore-eos --quiet $penalties
    "$RUN" generate "$@" --attn "$a" -f "$tmp/prompt" -n 20 --save "$tmp/whole.kv" >"$tmp/out" 2>"$tmp/err"
    "$RUN" generate "$@" --attn "$a" -f "$tmp/prompt" -n 7 --save "$kv" >"$tmp/out" 2>>"$tmp/err"
    "$RUN" generate -m "$m" --ignore-eos --quiet $penalties --load "$kv" --save "$kv" -n 13 >"$tmp/out" 2>>"$tmp/err"
    # Incomplete UTF-8 is cut at the end of a run, so the continuations are compared.
    for f in whole.kv a.kv; do
        "$RUN" generate -m "$m" --ignore-eos --quiet $penalties --load "$tmp/$f" -n 30 >"$tmp/$f.out" 2>>"$tmp/err"
    done
    check "$a: continues as an uninterrupted run does" cmp "$tmp/whole.kv.out" "$tmp/a.kv.out"
    check "with as many tokens" test "$(wc -c <"$tmp/a.kv.out")" -gt 30
done

rm "$tmp/whole.kv" "$tmp"/*.out
if has_sentencepiece; then
    for a in full quest:budget=32:page=4:skip=0 h2o:budget=32; do
        set -- --temp 0.7 --seed 3 --ignore-eos --quiet
        "$RUN" generate "$@" --attn "$a" -p "She looked at him, and said that the house" -n 40 >"$tmp/whole" 2>"$tmp/err"
        "$RUN" generate "$@" --attn "$a" -p "She looked at him, and said that the house" -n 13 --save "$kv" >"$tmp/first" 2>>"$tmp/err"
        "$RUN" generate --temp 0.7 --ignore-eos --quiet --load "$kv" -n 27 >"$tmp/out" 2>>"$tmp/err"
        joined "$tmp/first" "$tmp/out" >"$tmp/both"
        check "$a: the text continues as if never interrupted" cmp -s "$tmp/whole" "$tmp/both"
    done
fi

run generate -m "$m" -f "$tmp/prompt" -n 0 --temp 0.9 --seed 5 --save "$kv"
check "a prompt alone is saved" test "$status" -eq 0 -a "$(stat -c %a "$kv")" = 600
"$RUN" generate -m "$m" -f "$tmp/prompt" -n 9 --temp 0.9 --seed 5 --quiet >"$tmp/whole"
cp "$kv" "$tmp/copy.kv"
run generate -m "$m" -n 9 --temp 0.9 --load "$kv" --quiet
check "and continues with its random numbers" cmp -s "$tmp/whole" "$tmp/out"
run generate -m "$m" -p "And then" -n 9 --temp 0 --load "$kv"
cp "$tmp/out" "$tmp/answer"
check "it can be asked" test "$status" -eq 0 -a -s "$tmp/out"
check "without reading the text again" sh -c "sed -n 's/^prompt \([0-9]*\) tokens.*/\1/p' '$tmp/err' | { read -r n; test \"\$n\" -lt 12; }"
run generate -m "$m" -p "And then" -n 9 --temp 0 --load "$kv"
check "and asked again, with the same answer" cmp -s "$tmp/out" "$tmp/answer"
check "a session that is read stays as it is" cmp -s "$kv" "$tmp/copy.kv"
run generate -m "$m" -n 3 --temp 0 --load "$kv" --save "$kv" --ignore-eos
works "a session can be saved in its own place" generate -m "$m" -n 3 --temp 0 --load "$kv" --save "$kv" --ignore-eos
works "a question in the chat template" generate -m "$m" -p "What now?" --chat -n 5 --temp 0 --load "$kv"
check "no files but the sessions are left" test "$(find "$tmp" -name '*.kv*' | wc -l)" -eq 2

# Chats.
printf 'Hello there, Alice.\n' | "$RUN" chat -m "$m" -n 6 --temp 0 --save "$tmp/chat.kv" >"$tmp/first" 2>"$tmp/err"
printf 'And again.\n' | "$RUN" chat -m "$m" -n 6 --temp 0 --load "$tmp/chat.kv" --quiet >>"$tmp/first" 2>"$tmp/err"
printf 'Hello there, Alice.\nAnd again.\n' | "$RUN" chat -m "$m" -n 6 --temp 0 --ctx 512 --quiet >"$tmp/whole" 2>"$tmp/err"
check "a chat continues" cmp -s "$tmp/first" "$tmp/whole"

# Refused sessions.
cp "$tmp/copy.kv" "$kv"
refused 1 "a session of another model" "another model" generate -m "$models/qwen2-f16" --load "$kv" -n 1
refused 1 "a.kv: a session of strategy 'full', expected 'quest'" "another strategy" generate -m "$m" --load "$kv" -n 1 --attn quest
refused 1 "stored as f16, expected bf16" "another store" generate -m "$m" --load "$kv" -n 1 --kv bf16
refused 1 "a context of" "another context" generate -m "$m" --load "$kv" -n 1 --ctx 64
refused 1 "saved with --chunk 512, expected 64" "other chunks" generate -m "$m" --load "$kv" -n 1 --chunk 64
refused 1 "does not fit the context" "a question that is too long" generate -m "$m" --load "$kv" -n 1 -p "$(seq 1 400 | tr '\n' ' ')"
refused 2 "--plan and --load" "--plan" generate -m "$m" --load "$kv" --plan
refused 2 "--system and --load" "--system" generate -m "$m" --load "$kv" --chat -p x --system y
refused 1 "nowhere.kv: No such file" "a file that is not there" generate -m "$m" --load "$tmp/nowhere.kv"
refused 1 "not a regular file" "a device" generate -m "$m" --load /dev/zero
refused 1 "not a session" "another kind of file" generate -m "$m" --load "$m/model.safetensors"
head -c 5000 "$kv" >"$tmp/cut.kv"
refused 1 "cut.kv: 5000 bytes, expected" "a file that is cut" generate -m "$m" --load "$tmp/cut.kv"
cp "$kv" "$tmp/cut.kv"
printf 'x' | dd of="$tmp/cut.kv" bs=1 seek=4500 conv=notrunc 2>/dev/null
refused 1 "cut.kv: damaged: checksum" "a damaged byte" generate -m "$m" --load "$tmp/cut.kv"

# Keys and values that changed: the first buffer of rows begins at byte 65536.
cp --sparse=always "$kv" "$tmp/cut.kv"
printf '\125\052\125' | dd of="$tmp/cut.kv" bs=1 seek=65637 conv=notrunc 2>/dev/null
for c in generate chat; do
    refused 1 "cut.kv: damaged: 'K rows' of layer 0: bytes 65536 to" "$c: changed keys" "$c" -m "$m" --load "$tmp/cut.kv"
    works "$c --no-verify loads them" "$c" -m "$m" -n 1 --load "$tmp/cut.kv" --no-verify </dev/null
done
printf 'x' | dd of="$tmp/cut.kv" bs=1 seek=4500 conv=notrunc 2>/dev/null
refused 1 "cut.kv: damaged: checksum" "--no-verify checks everything else" generate -m "$m" --load "$tmp/cut.kv" --no-verify
refused 2 "--no-verify: requires --load" "--no-verify alone" generate -m "$m" -p x --no-verify
cp --sparse=never "$kv" "$tmp/cut.kv"
works "a copy without holes is loaded" generate -m "$m" -n 1 --load "$tmp/cut.kv"

# A file that a program of version 4 of the format wrote: quest.
gzip -dc "$SRCDIR/tests/data/sessions/version4.kv.gz" >"$tmp/cut.kv"
run generate -m "$m" -n 3 --ignore-eos --load "$tmp/cut.kv" --save "$tmp/cut.kv"
check "a session of an earlier version is loaded" test "$status" -eq 0
check "with one warning" test "$(grep -c '^warning: --load .*cut.kv: saved by an earlier version: rows are not checksummed' "$tmp/err")" -eq 1
run generate -m "$m" -n 3 --ignore-eos --load "$tmp/cut.kv"
check "saved again it has checksums" sh -c "test $status -eq 0 && ! grep -q warning '$tmp/err'"
refused 1 "--save $tmp/no/a.kv: cannot create the file" "a folder that is not there, before anything runs" \
    generate -m "$m" -p x -n 1 --save "$tmp/no/a.kv"
refused 1 "--save /dev/null: not a regular file" "a device to write to" generate -m "$m" -p x -n 1 --save /dev/null
if (trap '' XFSZ && ulimit -f 2) 2>/dev/null; then
    (trap '' XFSZ && ulimit -f 8 && "$RUN" generate -m "$m" -f "$tmp/prompt" -n 0 --quiet --save "$tmp/full.kv" >"$tmp/out" 2>"$tmp/err" </dev/null)
    status=$?
    check "no room: exit status 1" test "$status" -eq 1
    check "with the file and the byte" grep -q 'full.kv: writing at byte [0-9]*: File too large' "$tmp/err" # shells count in other units
    check "and no file" test "$(find "$tmp" -name 'full*' | wc -l)" -eq 0
fi
finish
