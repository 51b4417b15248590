# SPDX-License-Identifier: MIT
# Several ranks under mpirun: the calls of comm.h, every strategy on two ranks against one, refusals, ranks that end. How
# models are split is tested without mpirun, whose start takes longest (tp.t).
# shellcheck disable=SC2086 # variables hold lists of arguments
. "$SRCDIR/tests/cli/lib.sh"
comm="$(dirname "$RUN")/tests/unit/test_comm"
m="$models/llama31-f32-tied"
pid='' again=''
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; remove_tmp' EXIT
[ -n "$(command -v mpirun)" ] || skip_all "no mpirun"
export TMPDIR=/tmp XDG_CACHE_HOME="$tmp/cache" # a long path of TMPDIR is too long for Open MPI's sockets
# Open MPI's libraries keep memory at their end.
export LSAN_OPTIONS=detect_leaks=0
MPIRUN="mpirun --allow-run-as-root --oversubscribe"

# Removes mpirun's own messages, framed by lines or preceded by a host's name, from $tmp/all.
strip() { sed '/^-----*$/,/^-----*$/d; /^\[/d' "$tmp/all" >"$tmp/err"; }
# mpi N COMMAND...: by N ranks; status in $status, output in $tmp/out and $tmp/err.
mpi() {
    ranks=$1
    shift
    timeout 540 $MPIRUN -n "$ranks" "$@" >"$tmp/out" 2>"$tmp/all" </dev/null
    status=$?
    strip
}
is_status() { check "$2 (status $status)" test "$status" -eq "$1"; }
# mpi_refused N TEXT NAME ARGS...: one line, and nothing on stdout.
mpi_refused() {
    n_ranks=$1 text=$2 name=$3
    shift 3
    mpi "$n_ranks" "$RUN" "$@"
    is_refusal 2 "$text" "$name"
}

mpi 3 "$comm"
! grep -q 'built without MPI' "$tmp/out" || skip_all "built without MPI"
is_status 0 "comm: the calls by 3 ranks"
check "comm: all of them" test "$(grep -c '^ok' "$tmp/out")" -eq 15
mpi 2 "$comm" fail
is_status 3 "comm: the ranks' exit code is the greatest"
mpi 2 "$comm" leave
is_status 1 "comm: a rank that fails alone ends those who wait for it"

# ---- numbers ----

set -- logits -m "$m" --ids 1,2,3,4,5,6,7,8,9 --quiet
"$RUN" "$@" -o "$tmp/1.npy"
mpi 2 "$RUN" "$@" -o "$tmp/n.npy"
is_status 0 "logits: 2 ranks"
check "the logits of one rank" near "$tmp/n.npy" "$tmp/1.npy"

# Every strategy, and every rule over all heads of a layer. The built-in model needs its tokenizer.
all=full,streaming,h2o,snapkv:window=8,tova,quest:page=4,fier:g=8,pariskv:sink=4:local=8:u=4:full_thr=0
all=$all,actqkv:sink=4:local=16:window=16:block=4:reps=2,infllm:sink=4:local=16:window=16:block=4:reps=2,magicpig:K=3:L=12:local=6
all=$all,retroinfer:sink=4:local=8:size=2,mikv,tova:demote=token2,kivi:r=32,logquant:r=24
all=$all,snapkv:window=8:gqa=layer_mean,quest:page=4:gqa=layer_mean,fier:g=8:gqa=layer_concat
all=$all,actqkv:sink=4:local=16:window=16:block=4:reps=2:gqa=layer_mean
kept=
for attn in $(echo "$all" | tr , ' '); do thin 3 || kept=$kept,$attn; done
all=${kept#,}
n_all=$(echo "$all" | tr , '\n' | wc -l)
# agree FILE FILE: perplexities in CSV, of all strategies, within 1e-3 of each other.
agree() {
    paste -d, "$1" "$2" | awk -F, -v n="$n_all" 'NR > 1 { d = $6 / $12 - 1; if (d < -1e-3 || d > 1e-3 || $3 != $9) exit 1 }
        END { if (NR <= n) exit 1 }'
}
if has_sentencepiece; then
    set -- eval pg19 --attn "$all" --budget 24 --skip 0 --ctx 48 --gemm builtin --quiet
    "$RUN" "$@" --csv "$tmp/1.csv" >"$tmp/one" 2>/dev/null
    mpi 2 "$RUN" "$@" --csv "$tmp/2.csv"
    is_status 0 "pg19 by 2 ranks"
    check "every strategy has the perplexity of one rank" agree "$tmp/1.csv" "$tmp/2.csv"

    # Prompts beyond the budget, greedy replies; and what is there already is not run again.
    set -- passkey --attn "$all" --protocol prefill --budget 40 --skip 0 --ctx 160 --trials 1 --gemm builtin --quiet
    "$RUN" "$@" -o "$tmp/1.jsonl" >"$tmp/one" 2>/dev/null
    mpi 2 "$RUN" "$@" -o "$tmp/2.jsonl"
    is_status 0 "passkey by 2 ranks"
    for f in 1 2; do sed -n 's/.*"attn":\("[^"]*"\).*"reply":\("[^"]*"\).*/\1 \2/p' "$tmp/$f.jsonl" >"$tmp/$f.txt"; done
    check "every strategy replies" test "$(wc -l <"$tmp/2.txt")" -eq "$n_all"
    check "what one rank replies" cmp "$tmp/1.txt" "$tmp/2.txt"
    cp "$tmp/2.jsonl" "$tmp/done.jsonl"
    mpi 2 "$RUN" "$@" -o "$tmp/2.jsonl"
    is_status 0 "all ranks know what is there already"
    check "which stays as it was" cmp "$tmp/2.jsonl" "$tmp/done.jsonl"
fi

# ---- standard input and files: the first rank's ----

printf 'Hi\nWhat?\n' >"$tmp/lines"
set -- chat -m "$models/qwen3-f32-sharded-tied" -n 6 --json "$tmp/chat.json"
"$RUN" "$@" --quiet <"$tmp/lines" >"$tmp/one" 2>/dev/null
$MPIRUN -n 2 "$RUN" "$@" <"$tmp/lines" >"$tmp/out" 2>"$tmp/err"
check "chat: the lines reach all ranks" cmp "$tmp/one" "$tmp/out"
check "one rank tells how fast" test "$(grep -c 'tokens/s' "$tmp/err")" -eq 2
check "the report counts the ranks" grep -q '"ranks": 2' "$tmp/chat.json"

# ---- refusals ----

set -- generate -m "$m" -p x
mpi_refused 2 "mpirun started 2 ranks" "another --tp" "$@" --tp 4
mpi_refused 2 "unknown option" "an unknown option" "$@" --nonsense
timeout 200 $MPIRUN -n 1 "$RUN" "$@" -n 2 : -n 1 "$RUN" "$@" -n 3 >"$tmp/out" 2>"$tmp/all" </dev/null
status=$?
strip
is_refusal 2 "rank 1 has other options" "ranks with different options"
cp -r "$m" "$tmp/0" && cp -r "$m" "$tmp/1" && chmod -R u+w "$tmp/0" "$tmp/1"
sed -i 's/"rms_norm_eps": [^,]*/"rms_norm_eps": 0.0002/' "$tmp/1/config.json"
# shellcheck disable=SC2016
mpi 2 sh -c 'cd "$0/$OMPI_COMM_WORLD_RANK" && exec "$1" logits -m . --ids 1,2' "$tmp" "$RUN"
is_refusal 2 "rank 1 has a different model" "ranks with different configurations"
cp "$m/config.json" "$tmp/1" && chmod u+w "$tmp/1/config.json"
size=$(wc -c <"$tmp/1/model.safetensors")
printf '\1' | dd of="$tmp/1/model.safetensors" bs=1 seek=$((size - 100)) conv=notrunc 2>/dev/null
# shellcheck disable=SC2016
mpi 2 sh -c 'cd "$0/$OMPI_COMM_WORLD_RANK" && exec "$1" logits -m . --ids 1,2' "$tmp" "$RUN"
is_refusal 2 "rank 1 has a different model" "ranks with different weights"
rm "$tmp/1/model.safetensors"
# shellcheck disable=SC2016
mpi 2 sh -c 'cd "$0/$OMPI_COMM_WORLD_RANK" && exec "$1" logits -m . --ids 1,2' "$tmp" "$RUN"
is_refusal 1 "no model.safetensors or" "a rank without a model ends all"

# ---- the end ----

# start: two ranks that would run for hours; their ids in $ranks.
start() {
    : >"$tmp/out" # what an earlier one printed
    rm -f "$tmp/rank.0" "$tmp/rank.1"
    env --default-signal=INT $MPIRUN -n 2 sh -c 'echo $$ >"$0.$OMPI_COMM_WORLD_RANK" && exec "$@"' "$tmp/rank" "$RUN" generate \
        -m "$m" -p x -n 4000000 --ctx 4000000 --attn streaming --budget 64 --ignore-eos --quiet >"$tmp/out" 2>"$tmp/err" </dev/null &
    pid=$!
    tries=0
    until [ "$(wc -c <"$tmp/out")" -gt 200 ] || [ $tries -gt 300 ]; do tries=$((tries + 1)) && sleep 0.1; done
}
# ends NAME: mpirun and the ranks end within 30 s, with an error.
ends() {
    tries=0
    while kill -0 "$pid" 2>/dev/null && [ $tries -lt 300 ]; do
        tries=$((tries + 1)) && sleep 0.1
        # Open MPI 4.1.4 now and then misses one; users press it again
        [ -z "$again" ] || [ $((tries % 50)) -ne 0 ] || kill -INT "$pid"
    done
    check "$1: mpirun ends" test $tries -lt 300
    kill -9 "$pid" 2>/dev/null
    wait "$pid"
    status=$?
    pid=
    check "$1: with an error (status $status)" test "$status" -ne 0
    until { gone "$(cat "$tmp/rank.0")" && gone "$(cat "$tmp/rank.1")"; } || [ $tries -gt 300 ]; do tries=$((tries + 1)) && sleep 0.1; done
    check "$1: no rank is left" test $tries -le 300
}
start
kill -9 "$(cat "$tmp/rank.1")"
ends "a rank is killed"
# mpirun has missed a death before: here it sees nothing
start
kill -STOP "$pid"
kill -9 "$(cat "$tmp/rank.0")"
tries=0
until gone "$(cat "$tmp/rank.1")" || [ $tries -gt 200 ]; do tries=$((tries + 1)) && sleep 0.1; done
check "a rank sees that another is gone" test $tries -le 200
kill -CONT "$pid"
ends "mpirun sees it late"
if env --default-signal=INT true 2>/dev/null; then
    start
    again=yes
    kill -INT "$pid"
    ends "Ctrl-C"
else
    skip "env cannot reset SIGINT, which shells ignore in the background"
fi
finish
