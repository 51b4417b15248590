# SPDX-License-Identifier: MIT
# chat at a terminal, which script(1) provides: editing, pasted texts, commands and history.
. "$SRCDIR/tests/cli/lib.sh"
command -v script >/dev/null && script --version 2>/dev/null | grep -q util-linux || skip_all "script of util-linux is missing"
export TERM=xterm SHELL=/bin/sh RUN XDG_STATE_HOME="$tmp/state"
m="$models/llama31-f32-tied"
esc=$(printf '\033')

# begin ARGS...: starts a chat; what is written to descriptor 3 is typed.
begin() {
    rm -f "$tmp/keys"
    mkfifo "$tmp/keys"
    : >"$tmp/screen"
    n_prompts=0
    args="-m '$m' --temp 0 $*"
    script -qfec "\"\$RUN\" chat $args" "$tmp/screen" <"$tmp/keys" >"$tmp/shown" 2>&1 &
    terminal=$!
    exec 3>"$tmp/keys"
    await
}
# await: waits for the next prompt, a minute at most. The terminal marks pasted texts from then on.
await() {
    n_prompts=$((n_prompts + 1)) tries=0
    while [ "$(grep -o "${esc}\[?2004h" "$tmp/screen" | wc -l)" -lt $n_prompts ] && [ $tries -lt 1200 ]; do
        tries=$((tries + 1))
        sleep 0.05
    done
}
# enter TEXT: types a line (as printf writes it) and waits for the next prompt.
enter() {
    printf "%b\n" "$1" >&3
    await
}
# leave TEXT: types the last line; the status is in $status.
leave() {
    printf "%b" "$1" >&3
    exec 3>&-
    wait $terminal
    status=$?
    tr -d '\r' <"$tmp/screen" >"$tmp/out"
    : >"$tmp/err"
}
texts() { sed -n 's/^ *"text": //p' "$tmp/$1.json"; }

begin "-n 5 --ctx 2000 --json '$tmp/typed.json'"
enter "one two three"
enter "${esc}[200~one\rtwo\r\rthree${esc}[201~"
enter "$(yes ab | head -n 3000 | tr '\n' ' ')"
enter "/nonsense words"
enter " /nonsense words"
enter "/attn quest:budget=64"
enter "/attn nonsense"
enter "/save '$tmp/no/folder'"
enter "/save $tmp/saved.kv"
enter "/help"
enter "/new"
enter "one two three"
leave "/bye\n"
out_has "(commands: /help, /new, /save FILE, /attn SPEC, /bye)" "the first line names the commands"
check "/bye ends the chat" test "$status" -eq 0
printf 'one two three' | "$RUN" generate -m "$m" -n 5 --temp 0 --chat --json "$tmp/one.json" >/dev/null 2>&1
check "a typed line is a message" test "$(texts typed | head -n 1)" = "$(texts one)"
check "/new starts another conversation" test "$(texts typed | tail -n 1)" = "$(texts one)"
check "a pasted text is one message, and commands are none" test "$(texts typed | wc -l)" -eq 4
check "a long line is read whole" test "$(sed -n 's/.*(message of \([0-9]*\) tokens.*/\1/p' "$tmp/out")" -gt 6000
out_has "removed from the conversation; /new starts another)" "a message that does not fit: /new is offered"
out_has "(/nonsense: no such command; /help lists them. To send the line as text, put a space before it)" "no such command"
out_has "(strategy quest:budget=64" "/attn changes the strategy"
out_has "(/attn: " "an error of a command does not end the chat"
out_has "(/save: " "nor that of a file"
out_has "/save FILE    save the session, for --load" "/help lists the commands"
works "the saved session is loaded" generate -m "$m" --load "$tmp/saved.kv" -p x -n 2 --attn quest:budget=64
if ldd "$RUN" | grep -q libedit; then
    check "the history is private" test "$(stat -c %a "$tmp/state/kvasir/history")" = 600
    check "with one line for each message" grep -qx 'one\\040two\\040three' "$tmp/state/kvasir/history"
    begin "-n 5 --json '$tmp/again.json'"
    enter "${esc}[A${esc}[A"
    leave "/bye\n"
    check "the next chat recalls it" test "$(texts again)" = "$(texts one)"
else
    skip "built without libedit: no history"
fi

# A pasted text equals the same text in a file.
export KVASIR_HISTORY=
XDG_STATE_HOME="$tmp/other"
begin "-n 200 --ctx 160 --ignore-eos --json '$tmp/pasted.json' --save '$tmp/full.kv'"
enter "${esc}[200~one\rtwo\r\rthree${esc}[201~"
enter "more"
leave ""
check "a full context does not fail" test "$status" -eq 0
out_has "(/new starts another conversation, /save FILE saves this one)" "it is reported, with the commands that help"
check "--save is written" test -s "$tmp/full.kv"
printf 'one\ntwo\n\nthree' | "$RUN" generate -m "$m" -n 200 --ctx 160 --ignore-eos --temp 0 --chat --json "$tmp/two.json" >/dev/null 2>&1
check "a pasted text equals that of a file" test "$(texts pasted)" = "$(texts two)"
check "KVASIR_HISTORY= keeps no history" test ! -e "$tmp/other"
finish
