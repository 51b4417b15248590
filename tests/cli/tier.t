# SPDX-License-Identifier: MIT
# --kv-tier disk: the same text as in memory, its reports, refused options, and no files left.
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm # small files that no disk is waited for
. "$SRCDIR/tests/cli/lib.sh"
m="$models/llama31-f32-tied"
mkdir "$tmp/kv"
seq 1 60 | tr '\n' ' ' >"$tmp/prompt"
set -- -m "$m" --seed 3 --ignore-eos --temp 0.8 --repeat-penalty 1.1

# The other strategies and stores: tests/unit/test_tier.c.
for a in full quest:budget=24:page=4:skip=1:kv=kivi2/r=32 fier:budget=20:g=8:skip=0 \
    retroinfer:budget=24:sink=3:local=5:size=4:update=8; do
    run generate "$@" --attn "$a" -f "$tmp/prompt" -n 60 --quiet --chunk 32
    cp "$tmp/out" "$tmp/device"
    run generate "$@" --attn "$a" -f "$tmp/prompt" -n 60 --chunk 64 --kv-tier "disk:window=8:cache=0:$tmp/kv" --json "$tmp/json"
    check "$a: the same text" cmp "$tmp/device" "$tmp/out"
    err_has "KV in files" "says what moved"
    check "and in the report" grep -q '"blocks_read": [1-9]' "$tmp/json"
done
run generate "$@" --attn quest:skip=0 -f "$tmp/prompt" -n 20 --quiet --kv-tier device
cp "$tmp/out" "$tmp/device"
run generate "$@" --attn quest:skip=0 -f "$tmp/prompt" -n 20 --quiet --kv-tier host
check "host: the same memory on a CPU" cmp "$tmp/device" "$tmp/out"
run generate "$@" --attn quest:skip=0 -f "$tmp/prompt" -n 20 --plan --kv-tier "disk:$tmp/kv"
out_has "in files in $tmp/kv 0." "the plan has bytes by tier"

run generate "$@" --attn h2o -f "$tmp/prompt" -n 20 --quiet --kv-tier disk
is_refusal 1 "--kv-tier disk is not supported: it drops tokens, and each step reads all others" "h2o is refused with the reason"
run generate "$@" --attn quest:skip=0 -f "$tmp/prompt" -n 20 --quiet --kv-tier tape
is_refusal 2 "is not one of: device host[:cache" "an unknown tier"
run generate "$@" --attn quest:skip=0 -f "$tmp/prompt" -n 20 --quiet --kv-tier "disk:$tmp/none"
is_refusal 1 "No such file or directory" "a folder that is not there"
run generate "$@" --attn quest:skip=0 -f "$tmp/prompt" -n 20 --quiet --kv-tier disk --save "$tmp/a.kv"
is_refusal 1 "cannot be saved" "--save"
run generate "$@" --attn quest:skip=0 -f "$tmp/prompt" -n 20 --quiet --ctx 900000M --kv-tier "disk:$tmp/kv"
is_refusal 1 "MB are available" "more than the disk has is refused before it begins"
run passkey -m "$m" --ctx 400 --trials 1 --budget 24 --attn quest,h2o --kv-tier "disk:$tmp/kv"
check "in a list the others run" is_in "it drops tokens, and each step reads all others" "$tmp/out"

# A disk that takes no more: the error names file and byte, and no text comes.
(
    trap '' XFSZ
    ulimit -f 16
    "$RUN" generate "$@" --attn quest:skip=0:budget=64 -f "$tmp/prompt" -n 400 --ctx 600 --kv-tier "disk:window=8:$tmp/kv"
) >"$tmp/out" 2>"$tmp/err"
check "a full disk ends the run" test $? -eq 1
check "and names file and byte" grep -q 'file of layer [0-9]*: writing at byte [0-9]*: File too large' "$tmp/err"

# Interrupted and killed in the middle.
from_shell=
! env --default-signal=INT true 2>/dev/null || from_shell="env --default-signal=INT" # shells ignore it in the background
for signal in INT KILL; do
    # shellcheck disable=SC2086
    $from_shell "$RUN" generate "$@" --attn quest:skip=0 -f "$tmp/prompt" -n 100000 --ctx 120k --kv-tier "disk:window=8:$tmp/kv" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    i=0
    while [ ! -s "$tmp/out" ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i + 1)); done
    kill -$signal $pid
    wait $pid
    check "$signal: it ends at once" test $? -ne 0
    check "$signal: a run that was ended leaves no file" test -z "$(ls -A "$tmp/kv")"
done

run bench --samples 3 --threads 1 -m "$m" --phase decode --ctx 200 --fill --attn quest:skip=0:budget=64,full --kv-tier "disk:window=32:cache=0:$tmp/kv" --json "$tmp/json"
out_has "between memory and files" "bench has a table of what moved"
check "and its report the same" test "$(grep -c '"hit_rate"' "$tmp/json")" -eq 2
finish
