# SPDX-License-Identifier: MIT
# Events while the program runs: Ctrl-C, and a model file that changes. Every reply here
# would otherwise take minutes.
. "$SRCDIR/tests/cli/lib.sh"
env --default-signal=INT,TERM,HUP true 2>/dev/null || skip_all "env cannot reset signals, which shells and nohup ignore"
m="$models/llama31-f32-tied"
long="--threads 1 -n 4000000 --ctx 4000000 --attn streaming --budget 64 --ignore-eos --seed 7"
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; remove_tmp' EXIT

# start ARGS...: the program in the background, reading $tmp/in, as a terminal would start it.
start() {
    : >"$tmp/out"
    : >"$tmp/err"
    # shellcheck disable=SC2086
    env --default-signal=INT,TERM,HUP "$RUN" "$@" $long <"$tmp/in" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
}
# until_true COMMAND...: waits for it to succeed, a minute at most.
until_true() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || return 1
        sleep 0.1
    done
}
larger() { [ "$(wc -c <"$tmp/out")" -gt "$1" ]; }
ended() { ! kill -0 "$pid"; }
sleeps() { grep -q '^Name:.run$' "/proc/$pid/status" && grep -q '^State:.S' "/proc/$pid/status"; }
# True if the program catches SIGTERM, bit 14 of the mask.
catches() { grep -q '^SigCgt:.*[4-7c-f]...$' "/proc/$pid/status"; }
replies() { [ "$(grep -c '^prompt .* tokens/s' "$tmp/err")" -eq "$1" ]; }
# finished STATUS NAME: the program ends, with this status.
finished() {
    check "$2: it ends" until_true ended
    wait "$pid"
    status=$?
    pid=
    check "$2: status $1 (is $status)" test "$status" -eq "$1"
}
whole_text() { iconv -f UTF-8 -t UTF-8 "$tmp/out"; }

# ---- generate ----
echo Alice >"$tmp/in"
start generate -m "$m"
check "generate prints as it goes" until_true larger 200
kill -INT "$pid"
finished 130 "Ctrl-C during generate"
err_has "tokens/s" "with its statistics"
check "what it printed is text" whole_text
check "and ends with a line" test "$(tail -c 1 "$tmp/out" | wc -l)" -eq 1

# The files of --save and --json are written, with the text so far.
written() {
    check "$1: the session is saved" test -s "$tmp/s.kv"
    check "$1: and reported as interrupted" grep -q '"finish_reason": "interrupted"' "$tmp/r.json"
}
for signal in INT TERM HUP; do
    rm -f "$tmp/s.kv" "$tmp/r.json"
    start generate -m "$m" --save "$tmp/s.kv" --json "$tmp/r.json"
    until_true larger 200
    kill -$signal "$pid"
    finished $((128 + $(env kill -l $signal))) "SIG$signal with --save and --json"
    written "SIG$signal"
done
run generate -m "$m" --load "$tmp/s.kv" -n 3 --ignore-eos --temp 0 --quiet
check "such a session continues" test "$status" -eq 0 -a -s "$tmp/out"
rm -f "$tmp/s.kv" "$tmp/r.json"
"$RUN" generate -m "$m" -p x -n 4000 --ctx 5000 --ignore-eos --attn streaming --budget 64 --save "$tmp/s.kv" --json "$tmp/r.json" 2>"$tmp/err" | head -c 10 >"$tmp/out"
written "a closed pipe"
err_has "standard output: Broken pipe" "which is still an error"
yes "Hello there, Alice." | head -n 400000 >"$tmp/long"
start generate -m "$m" -f "$tmp/long" --save "$tmp/no.kv" --json "$tmp/no.json"
until_true catches
kill -TERM "$pid"
finished 143 "SIGTERM during the prompt"
check "no file without a text" test ! -e "$tmp/no.kv" -a ! -e "$tmp/no.json"
long_kept=$long
long="--threads 1 --json $tmp/no.json"
start eval recall -m "$m" -f "$tmp/long" --ctx 8000 --attn all --budget 24
until_true catches
kill -TERM "$pid"
finished 143 "SIGTERM during eval recall"
err_has "interrupted; --json $tmp/no.json was not written" "which names the missing report"

# The results of other evaluations are kept, by both loops.
for what in "passkey --trials 100000 --attn full,quest --budget 24" "eval accept --trials 1000 --attn quest"; do
    # shellcheck disable=SC2086
    start $what -m "$m" --ctx 200 -o "$tmp/some.jsonl"
    until_true sh -c "test \$(wc -l <'$tmp/some.jsonl') -ge 4"
    kill -INT "$pid"
    finished 130 "Ctrl-C during $what"
    err_has "interrupted; --json $tmp/no.json has the $(($(wc -l <"$tmp/some.jsonl") - 1)) results so far" "--json keeps its results"
    check "which are those of -o, marked" sh -c "grep -q '\"interrupted\": true' '$tmp/no.json' &&
        test \$(grep -c '\"trial\": ' '$tmp/no.json') -eq $(($(wc -l <"$tmp/some.jsonl") - 1))"
    rm -f "$tmp/some.jsonl" "$tmp/no.json"
done
long=$long_kept

# With drafts: what was printed is the text without them.
long_kept=$long
long="--threads 1 -n 4000000 --ctx 100000 --ignore-eos --seed 7 --draft fier:budget=24:g=8:skip=0:adapt=off"
start generate -m "$m" -f "$tmp/in"
until_true larger 200
kill -INT "$pid"
finished 130 "Ctrl-C with drafts"
head -c 200 "$tmp/out" >"$tmp/drafted"
run generate -m "$m" -f "$tmp/in" --threads 1 -n 400 --ctx 100000 --ignore-eos --seed 7 --quiet
head -c 200 "$tmp/out" >"$tmp/plain"
check "what it printed is the text without drafts" cmp -s "$tmp/drafted" "$tmp/plain"
long=$long_kept

# Shells start background jobs with SIGINT ignored, and nohup-like wrappers too: it stays so.
"$RUN" generate -m "$m" --threads 1 -n 8000 --ctx 9000 --ignore-eos --attn streaming --budget 64 <"$tmp/in" >"$tmp/out" 2>"$tmp/err" &
pid=$!
until_true larger 1
kill -INT "$pid"
finished 0 "SIGINT ignored from the start"

# ---- a pipe ----
mkfifo "$tmp/fifo"
mv "$tmp/fifo" "$tmp/in"
start generate -m "$m"
exec 3>"$tmp/in"
printf 'half a prompt' >&3
check "generate waits for the rest of its prompt" until_true sleeps
kill -INT "$pid"
finished 130 "Ctrl-C while the prompt is read"
exec 3>&-
check "no text and no message" test ! -s "$tmp/out" -a ! -s "$tmp/err"

# ---- chat ----
start chat -m "$m"
exec 3>"$tmp/in"
echo "Hello there." >&3
check "chat answers" until_true larger 200
kill -INT "$pid"
check "Ctrl-C ends the reply, not the chat" until_true replies 1
before=$(wc -c <"$tmp/out")
echo "And again." >&3
check "the next line is answered" until_true larger $((before + 200))
kill -INT "$pid"
until_true replies 2
check "what it printed is text" whole_text
printf 'half a line' >&3
kill -INT "$pid"
check "Ctrl-C at the prompt says how to leave" until_true grep -q 'Ctrl-C again' "$tmp/err"
kill -INT "$pid"
finished 0 "a second one"
exec 3>&-

start chat -m "$m"
exec 3>"$tmp/in"
echo "Hello there." >&3
until_true larger 200
kill -INT "$pid"
until_true replies 1
exec 3>&-
finished 0 "end of input after Ctrl-C"

mkdir "$tmp/chats"
start chat -m "$m" --save "$tmp/chats/c.kv" --json "$tmp/chats/c.json"
exec 3>"$tmp/in"
echo "Hello there." >&3
until_true larger 200
kill -TERM "$pid"
finished 143 "SIGTERM ends a chat during its reply"
exec 3>&-
check "which is saved and reported" test -s "$tmp/chats/c.kv" -a -s "$tmp/chats/c.json"

# ---- a file that shrinks under the program ----
cp -r "$m" "$tmp/m"
chmod -R u+w "$tmp/m"
rm "$tmp/in"
echo Alice >"$tmp/in"
start generate -m "$tmp/m"
until_true larger 200
: >"$tmp/m/model.safetensors"
finished 1 "weights truncated while in use"
err_has "run generate: $tmp/m: a file was truncated" "the error names the model"
finish
