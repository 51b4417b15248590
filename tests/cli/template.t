# SPDX-License-Identifier: MIT
# template: renderings of files and conversations, their ids, refusals; --template and --template-arg elsewhere.
. "$SRCDIR/tests/cli/lib.sh"
m=$models/qwen3-bf16
chat=$SRCDIR/tests/data/chat

# ---- a template and its variables ----
printf '{{ a }} {{ b | tojson }}\n{%% if c %%}\nx{%% endif %%}' >"$tmp/t.jinja"
printf '{"a": 1.5, "b": {"z": [true, null]}, "c": 1}' >"$tmp/c.json"
works "a file" template --file "$tmp/t.jinja" --context "$tmp/c.json"
check "its text" test "$(cat "$tmp/out")" = "1.5 {\"z\": [true, null]}
x"
printf "{{ strftime_now('%%Y-%%m-%%d') }}" >"$tmp/t.jinja"
TZ=UTC SOURCE_DATE_EPOCH=1785067200 "$RUN" template --file "$tmp/t.jinja" --context "$tmp/c.json" >"$tmp/out"
check "SOURCE_DATE_EPOCH fixes the date" test "$(cat "$tmp/out")" = 2026-07-26
printf '\n{{ raise_exception("No. " ~ a) }}' >"$tmp/t.jinja"
refused 1 "No. 1.5" "a raised error" template --file "$tmp/t.jinja" --context "$tmp/c.json"
printf '\n\n{{ nothing.x }}' >"$tmp/t.jinja"
refused 1 "t.jinja:3: " "an undefined variable" template --file "$tmp/t.jinja" --context "$tmp/c.json"
printf '{%% if %%}' >"$tmp/t.jinja"
refused 1 "t.jinja:1: " "a faulty template" template --file "$tmp/t.jinja" --context "$tmp/c.json"
printf '[' >"$tmp/bad.json"
refused 1 "bad.json: " "faulty JSON" template --file "$tmp/t.jinja" --context "$tmp/bad.json"
refused 2 "expected --file or --messages" "nothing" template
refused 2 "expected --file or --messages" "both" template --file "$tmp/t.jinja" --messages "$tmp/bad.json"
refused 2 "--context: requires --file" "a context alone" template --context "$tmp/c.json"
refused 2 "--template-arg: requires --messages" "an ignored option" template --file "$tmp/t.jinja" --template-arg a=1
printf '{{ x is defined }}' >"$tmp/t.jinja"
works "a file alone" template --file "$tmp/t.jinja"
check "has no variables" test "$(cat "$tmp/out")" = False
# nested OPEN CLOSE: JSON of 129 levels.
nested() { yes "$1" | head -129 | tr -d '\n'; printf 1; yes "$2" | head -129 | tr -d '\n'; }
for open in '[ ]' '{"a": }'; do
    nested "${open% *}" "${open#* }" >"$tmp/deep.json"
    refused 1 "JSON nested 129 deep, at most 128 allowed" "deep JSON" template --file "$tmp/t.jinja" --context "$tmp/deep.json"
done
check "no usage line ends with a blank" sh -c "'$RUN' help template | head -1 | grep -q ']$' && '$RUN' help chat | head -1 | grep -q ']$'"

# ---- a conversation ----
printf '[{"role": "user", "content": "Hi <|im_end|>"}]' >"$tmp/m.json"
works "the model's template" template -m "$m" --messages "$tmp/m.json"
check "its text" test "$(cat "$tmp/out")" = "<|im_start|>user
Hi <|im_end|><|im_end|>
<|im_start|>assistant"
works "its ids" template -m "$m" --messages "$tmp/m.json" --ids
end=$(printf '<|im_end|>' | "$RUN" tokenize -m "$m" --special)
check "a message writes no special token" test "$(tr ' ' '\n' <"$tmp/out" | grep -cx "$end")" = 1
works "a variable" template -m "$m" --messages "$tmp/m.json" --template-arg enable_thinking=false
out_has "</think>" "enable_thinking"
works "a variable that is text" template -m "$m" --messages "$tmp/m.json" --template-arg enable_thinking=no
check "is not false" test "$(grep -c think "$tmp/out")" = 0
printf '{"messages": [{"role": "user", "content": "Hi"}], "tools": [{"function": {"name": "f"}}], "enable_thinking": false}' >"$tmp/o.json"
works "a file with tools" template -m "$m" --messages "$tmp/o.json" --template "$chat/tools.jinja"
out_has '{"name": "f"}' "the tools"
out_has "<think></think>" "and variables"
works "a template as text" template -m "$m" --messages "$tmp/m.json" --template "{{ messages[0].role }}{% if x %}!{% endif %}" --template-arg x=1
check "its text" test "$(cat "$tmp/out")" = "user!"
refused 1 "--template:1: " "a faulty text" template -m "$m" --messages "$tmp/m.json" --template "{% if %}"
works "a built-in template" template -m "$m" --messages "$tmp/m.json" --template chatml
refused 2 "--template nonsense: no such file or template; templates: llama3," "an unknown template" \
    template -m "$m" --messages "$tmp/m.json" --template nonsense
refused 2 "--template-arg x: expected NAME=VALUE" "an argument without a value" \
    template -m "$m" --messages "$tmp/m.json" --template-arg x
printf '[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]' >"$tmp/m.json"
refused 1 "Roles must alternate user/assistant" "a conversation that the template refuses" \
    template -m "$m" --messages "$tmp/m.json" --template "$chat/instruct.jinja"
printf '[]' >"$tmp/m.json"
refused 1 "no messages" "no messages" template -m "$m" --messages "$tmp/m.json"

# ---- other commands ----
works "generate" generate -m "$m" -p Hi --chat -n 2 --temp 0 --template "$chat/tools.jinja" --template-arg enable_thinking=false
refused 2 "--template-arg: requires --chat" "a variable without --chat" generate -m "$m" -p Hi --template-arg x=1

# ---- files of a shell ----
echo '[{"role": "user", "content": "Hi there"}]' >"$tmp/m.json"
"$RUN" template -m "$m" --messages "$tmp/m.json" --template "$chat/tools.jinja" >"$tmp/want"
# renders NAME TEMPLATE: standard input is tools.jinja; the text is that of the file.
renders() {
    "$RUN" template -m "$m" --messages "$tmp/m.json" --template "$2" <"$chat/tools.jinja" >"$tmp/out" 2>"$tmp/err"
    check "$1" cmp "$tmp/out" "$tmp/want"
}
renders "--template -" -
renders "--template /dev/stdin" /dev/stdin
mkfifo "$tmp/fifo"
cat "$chat/tools.jinja" >"$tmp/fifo" &
renders "--template names a pipe" "$tmp/fifo"
ln -s "$chat/tools.jinja" "$tmp/link"
renders "a symbolic link" "$tmp/link"
{ printf '\357\273\277' && cat "$chat/tools.jinja"; } >"$tmp/bom.jinja"
renders "a byte order mark is not part of a template" "$tmp/bom.jinja"
echo '{{ 1 }}' | "$RUN" template --file - >"$tmp/out"
check "--file -" test "$(cat "$tmp/out")" = 1
printf '\377\376a\000' >"$tmp/u16"
refused 1 "$tmp/u16: encoded as UTF-16" "a template in UTF-16" template -m "$m" --messages "$tmp/m.json" --template "$tmp/u16"
for name in . / "" "$tmp"; do
    refused 2 "no such file or template" "--template '$name'" template -m "$m" --messages "$tmp/m.json" --template "$name"
done
refused 2 "--template $tmp/no.jinja" "chat with a missing template" chat -m "$m" --template "$tmp/no.jinja"

# ---- arguments and conversations ----
# argument TEXT WANT
argument() {
    run template -m "$m" --messages "$tmp/m.json" --template '{{ a | default("none") }}' --template-arg "$1"
    check "--template-arg $1" test "$(cat "$tmp/out")" = "$2"
}
argument a=1=2 1=2
argument a= ""
argument a=null None
argument 'a=[' '['
argument a=NaN NaN
argument a=9223372036854775808 9223372036854775808
argument messages=1 none
refused 2 "--template-arg =1: expected NAME=VALUE" "no name" template -m "$m" --messages "$tmp/m.json" --template-arg =1
run template -m "$m" --messages "$tmp/m.json" --template '{{ a }}' --template-arg a=1 --template-arg a=2
check "the last of two arguments" test "$(cat "$tmp/out")" = 2
# conversation TEXT ERROR: of printf
conversation() {
    # shellcheck disable=SC2059
    printf "$1" >"$tmp/x.json"
    refused 1 "$2" "refused: $1" template -m "$m" --messages "$tmp/x.json"
}
conversation '{"role": "user", "content": "Hi"}\n{"role": "user", "content": "Hi"}' "x.json: not valid JSON: line 2 column 1"
conversation '{"role": "user", "content": "Hi"}' "no messages"
conversation '["Hi"]' "message 1 is not an object with a role"
conversation '' "x.json: not valid JSON"
conversation '5' "x.json: expected an array of messages, or an object"
conversation '[{"role": "user", "content": "Hi"}] x' "end of file expected near 'x'"
conversation '[{"role": "user", "content": "a\\u0000b"}]' "U+0000 in a string"
conversation '[{"role": "user", "content": "a\\ud800b"}]' "invalid Unicode"
conversation '[{"role": "user", "content": "a\377b"}]' "unable to decode byte 0xff"
printf '\357\273\277[{"role": "user", "content": "Hi there"}]\r\n' >"$tmp/x.json"
"$RUN" template -m "$m" --messages "$tmp/x.json" >"$tmp/a" && "$RUN" template -m "$m" --messages "$tmp/m.json" >"$tmp/b"
check "a conversation with a mark and CRLF" cmp "$tmp/a" "$tmp/b"
"$RUN" template -m "$m" --messages "$tmp/m.json" --ids | tr ' ' '\n' >"$tmp/a"
"$RUN" tokenize -m "$m" --special <"$tmp/b" | tr ' ' '\n' >"$tmp/want"
check "a rendering has the same ids as a prompt" cmp "$tmp/a" "$tmp/want"
printf '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]' >"$tmp/x.json"
run template -m "$m" --messages "$tmp/x.json"
check "a last reply is continued" test "$(tail -n 1 "$tmp/out")" = Well

# prompt_tokens FILE
prompt_tokens() { sed -n 's/.*"prompt_tokens": \([0-9]*\).*/\1/p' "$1"; }
printf 'Hi there\r\n' >"$tmp/p.txt"
echo 'Hi there' | "$RUN" chat -m "$m" -n 1 --json "$tmp/c" --quiet >"$tmp/out" 2>"$tmp/err"
for how in "-p|Hi there" "-f|$tmp/p.txt"; do
    run generate -m "$m" --chat "${how%%|*}" "${how#*|}" -n 1 --json "$tmp/g"
    check "generate --chat ${how%%|*} and chat: the same prompt" test "$(prompt_tokens "$tmp/g")" = "$(prompt_tokens "$tmp/c")"
done

run template -m "$m" --messages "$tmp/m.json" --template '{{ a }}' --template-arg 'a=1
2'
check "an argument of two lines" test "$(cat "$tmp/out")" = "1
2"
echo '[{"role": "system", "content": "S"}, {"role": "user", "content": "Hi there"}]' >"$tmp/x.json"
"$RUN" template -m "$m" --messages - --ids <"$tmp/x.json" >"$tmp/a"
run generate -m "$m" --chat --system S -p 'Hi there' -n 1 --json "$tmp/g"
check "--system and a system message: the same prompt" test "$(prompt_tokens "$tmp/g")" -eq "$(wc -w <"$tmp/a")"
finish
