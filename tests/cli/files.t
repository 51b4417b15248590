# SPDX-License-Identifier: MIT
# Files as shells provide them: pipes, standard input and output, byte order marks, CRLF, symbolic links.
. "$SRCDIR/tests/cli/lib.sh"
m="$models/llama31-f32-tied"
short="-m $m -n 4 --temp 0 --ignore-eos --quiet"
# gen ARGS...: a short text.
gen() {
    # shellcheck disable=SC2086
    timeout 20 "$RUN" generate $short "$@" 2>"$tmp/err"
}
prompt='Hello there, Alice.'
gen -p "$prompt" >"$tmp/want"
# same NAME ARGS...: the text is that of $prompt.
same() {
    same=$1
    shift
    gen "$@" >"$tmp/out"
    check "$same" cmp "$tmp/out" "$tmp/want"
}

# ---- inputs ----
mkfifo "$tmp/fifo"
printf %s "$prompt" >"$tmp/fifo" &
same "-f names a pipe" -f "$tmp/fifo"
for f in - /dev/stdin; do
    printf %s "$prompt" | gen -f $f >"$tmp/out"
    check "-f $f" cmp "$tmp/out" "$tmp/want"
done
printf '\357\273\277%s' "$prompt" >"$tmp/bom.txt"
same "a byte order mark is not part of a prompt" -f "$tmp/bom.txt"
same "nor on standard input" <"$tmp/bom.txt"
printf '\377\376H\000i\000' >"$tmp/utf16.txt"
refused 1 "$tmp/utf16.txt: encoded as UTF-16" "a prompt in UTF-16" generate -m "$m" -f "$tmp/utf16.txt"
refused 1 "$tmp: Is a directory" "a prompt that is a folder" generate -m "$m" -f "$tmp"
printf '\357\273\277x\r\n' | "$RUN" tokenize -m "$m" >"$tmp/a"
printf 'x\r\n' | "$RUN" tokenize -m "$m" >"$tmp/b"
check "tokenize drops the mark and keeps CRLF" cmp "$tmp/a" "$tmp/b"
printf '\357\273\277{"text": "x"}\r\n\r\n{"text": "y"}' | "$RUN" tokenize -m "$m" --jsonl >"$tmp/out" 2>"$tmp/err"
check "JSON lines with a mark, CRLF, an empty line and no last newline" test "$(wc -l <"$tmp/out")" -eq 2

# Samples: the same questions in every form give the same report.
printf '{"question": "a", "answer": "#### 4"}\n{"question": "b", "answer": "#### 5"}\n' >"$tmp/g.jsonl"
printf '\357\273\277{"question": "a", "answer": "#### 4"}\r\n\r\n{"question": "b", "answer": "#### 5"}' >"$tmp/bom.jsonl"
printf '\357\273\277[{"question": "a", "answer": "#### 4"},\r\n{"question": "b", "answer": "#### 5"}]\r\n' >"$tmp/list.json"
printf '\357\273\277question,answer\r\na,#### 4\r\nb,#### 5\r\n' >"$tmp/g.csv"
gsm() { "$RUN" eval gsm8k -m "$m" -n 2 --attn full --temp 0 --ctx 4096 --quiet --data "$1" --json "$tmp/r.json" >"$tmp/out" 2>"$tmp/err"; }
results() { sed -n '/"results"/,$p' "$tmp/r.json" | grep -v '_s"\|seconds\|per_s\|"ms\|sha256\|"name"'; }
gsm "$tmp/g.jsonl"
check "samples are read" test -s "$tmp/r.json"
results >"$tmp/samples"
for f in bom.jsonl list.json g.csv; do
    rm -f "$tmp/r.json"
    gsm "$tmp/$f"
    results | cmp -s - "$tmp/samples" && pass "$f" || { fail "$f"; show; }
done
rm -f "$tmp/r.json"
gsm - <"$tmp/bom.jsonl"
check "--data -" test -s "$tmp/r.json"
printf '\357\273\277{"prediction": "Paris", "answers": ["Paris"]}\r\n' | "$RUN" eval score qa_f1 >"$tmp/out" 2>"$tmp/err"
check "predictions with a mark" grep -qx 1 "$tmp/out"

# ---- outputs ----
gen -p "$prompt" --json - >"$tmp/out"
check "--json -: standard output has the report alone" test "$(head -c 1 "$tmp/out")" = "{"
check "and the text is on standard error" cmp "$tmp/err" "$tmp/want"
gen -p "$prompt" --json /dev/stdout >"$tmp/r.json"
check "/dev/stdout that is a file: written in place" test "$(head -c 1 "$tmp/r.json")" = "{" -a "$(tail -n 1 "$tmp/r.json")" = "}"
gen -p "$prompt" --json /dev/stdout | tail -n 1 >"$tmp/out"
check "/dev/stdout that is a pipe" grep -qx '}' "$tmp/out"
wc -l <"$tmp/fifo" >"$tmp/lines" &
gen -p "$prompt" --json "$tmp/fifo" >/dev/null
wait $!
check "a report into a named pipe" test "$(cat "$tmp/lines")" -gt 20 -a -p "$tmp/fifo"
gen -p "$prompt" --json /dev/full >/dev/null && fail "a full device is an error" || pass "a full device is an error"
check "that names the option" grep -q -- '--json /dev/full: ' "$tmp/err"
"$RUN" logits -m "$m" --ids 1,2 -o - --quiet 2>"$tmp/err" >"$tmp/out"
"$RUN" logits -m "$m" --ids 1,2 -o "$tmp/l.npy" --quiet
check "logits -o -" cmp "$tmp/out" "$tmp/l.npy"
refused 2 "same file as" "two results on standard output" logits -m "$m" --ids 1,2 -o - --json /dev/stdout
refused 2 "-o -: name a file" "results that a later run continues" passkey -m "$m" --ctx 256 --attn full -o -

# ---- symbolic links ----
mkdir "$tmp/big"
for o in save json; do
    ln -s "big/$o" "$tmp/$o"
    gen -p x "--$o" "$tmp/$o" >/dev/null
    check "--$o through a dangling link makes the file" test -L "$tmp/$o" -a -s "$tmp/big/$o" -a ! -L "$tmp/big/$o"
    gen -p "$prompt" "--$o" "$tmp/$o" >/dev/null
    check "and replaces it" test -L "$tmp/$o" -a "$(ls "$tmp/big")" = "$(ls "$tmp/big" | grep -v part)"
    ln -s loop "$tmp/loop$o"
    ln -s "loop$o" "$tmp/loop"
    refused 1 "--$o $tmp/loop" "--$o: links in a circle" generate -m "$m" -p x -n 1 "--$o" "$tmp/loop"
    rm "$tmp/loop"
done
ln -s "$tmp/save" "$tmp/chain"
gen -p "$prompt" --save "$tmp/chain" >/dev/null
check "a link to a link" test -L "$tmp/chain" -a -L "$tmp/save" -a -s "$tmp/big/save"
for option in --json --save; do
    refused 1 "$option $tmp/none/x: " "$option in a missing folder" generate -m "$m" -p x -n 1 "$option" "$tmp/none/x"
done
echo old >"$tmp/kept.json"
yes abc | head -300 >"$tmp/long"
refused 1 "does not fit the context of 100" "a prompt that does not fit" generate -m "$m" -f "$tmp/long" -n 5 --ctx 100 --json "$tmp/kept.json"
check "leaves the report of an earlier run" test "$(cat "$tmp/kept.json")" = old
for to in '>&-' '>/dev/full'; do
    for what in "generate -m $m -p x -n 1 --quiet" "template --file $tmp/kept.json" "generate -m $m -p x -n 1 --quiet --json -"; do
        sh -c "'$RUN' $what $to" 2>"$tmp/err"
        check "${what%% *} $to: status 1" test $? -eq 1
    done
done
refused 1 "not a regular file" "a session into a pipe" generate -m "$m" -p x -n 1 --save "$tmp/fifo"
check "the pipe is still there" test -p "$tmp/fifo"

# ---- more ends of files ----
"$RUN" generate -m "$m" -n 1 --quiet <&- >"$tmp/out" 2>"$tmp/err"
status=$?
is_refusal 1 "standard input: Bad file descriptor" "generate <&-"
"$RUN" chat -m "$m" -n 1 --quiet <&- >"$tmp/out" 2>"$tmp/err"
status=$?
is_refusal 1 "standard input: Bad file descriptor" "chat <&-"
"$RUN" template --file - <&- >"$tmp/out" 2>"$tmp/err"
status=$?
is_refusal 1 "Bad file descriptor" "template <&-"
run chat -m "$m" --json "$tmp/none.json" --quiet
check "a chat without a message reports no reply" grep -q '"results": \[\]' "$tmp/none.json"
gen -p "$prompt" --save "$tmp/one.kv" >/dev/null
cp "$tmp/one.kv" "$tmp/two.kv"
head -c 5000 "$tmp/one.kv" >"$tmp/cut.kv"
refused 1 "--load $tmp/cut.kv: 5000 bytes, expected" "a cut session" generate -m "$m" --load "$tmp/cut.kv" -n 2 --json "$tmp/no.json"
check "writes no report" test ! -e "$tmp/no.json"
refused 1 "a session of strategy 'full', expected 'quest'" "a session of another strategy" \
    generate -m "$m" --load "$tmp/two.kv" --save "$tmp/two.kv" --attn quest -n 2
check "stays as it was" cmp "$tmp/one.kv" "$tmp/two.kv"
refused 1 "-o /dev/full: not a regular file" "results in a device" eval niah -m "$m" --ctx 512 --trials 1 -o /dev/full
mkdir "$tmp/d" && refused 1 "neither a regular file nor a pipe" "a report over a folder" generate -m "$m" -p x --json "$tmp/d"
gen -p - --json "$tmp/two words ö.json" >"$tmp/out"
for text in a '<|begin_of_text|>a'; do printf %s "$text" | "$RUN" tokenize -m "$m" --special --bos --quiet; done >"$tmp/ids"
check "--bos adds no second BOS" test "$(sort -u "$tmp/ids" | wc -l)" -eq 1
check "-p - is a text" grep -q "\"prompt_tokens\": $(printf - | "$RUN" tokenize -m "$m" --special --bos | wc -w)," "$tmp/two words ö.json"
cp -R "$m" "$tmp/mö del"
run generate -m "$tmp/mö del" -p x -n 1 --json /dev/stderr --quiet
err_has '"model": "mö del"' "--json /dev/stderr, a model whose name has a blank and no ASCII"
finish
