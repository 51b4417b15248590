# SPDX-License-Identifier: MIT
# info, tokenize, logits, help and version.
. "$SRCDIR/tests/cli/lib.sh"
m="$models/qwen2-yarn-f32"

run --version
out_has "kvasir" "--version"
run --help
out_has "generate" "--help lists the commands"
cp "$tmp/out" "$tmp/usage"
run
check "no command: usage, exit status 2" test "$status" -eq 2
check "on standard error" cmp "$tmp/err" "$tmp/usage"
for word in -h help; do
    run $word
    check "$word is --help" cmp "$tmp/out" "$tmp/usage"
done
for command in info "eval niah"; do
    # shellcheck disable=SC2086
    run $command --help
    cp "$tmp/out" "$tmp/help"
    # shellcheck disable=SC2086
    run help $command
    check "help $command is $command --help" cmp "$tmp/out" "$tmp/help"
    # shellcheck disable=SC2086
    run $command -h
    check "as is $command -h" cmp "$tmp/out" "$tmp/help"
done
run help eval
check "help eval lists the evaluations" test "$status" -eq 0
out_has "  longbench2     LongBench v2" "with their summaries"
cp "$tmp/out" "$tmp/help"
for word in -h help --help; do
    run eval $word
    check "as does eval $word" cmp "$tmp/out" "$tmp/help"
done
run eval
check "eval without a name: the list, exit status 2" test "$status" -eq 2
check "on standard error too" cmp "$tmp/err" "$tmp/help"
run frobnicate
is_refusal 2 "unknown command 'frobnicate'; 'run help' lists the commands" "an unknown command"
run eval frobnicate
is_refusal 2 "unknown command 'eval frobnicate'; 'run help eval' lists" "an unknown evaluation"
run help frobnicate
is_refusal 2 "unknown command 'frobnicate'" "help of an unknown command"
for strategy in list quest pariskv; do "$RUN" --help-attn $strategy; done >>"$tmp/usage"
cat "$tmp/help" >>"$tmp/usage"
check "help fits 80 columns" awk 'length($0) > 80 { bad = 1 } END { exit bad }' "$tmp/usage"
prefix="$tmp/a prefix"
mkdir -p "$prefix/bin" "$prefix/share/kvasir/eval"
cp "$RUN" "$prefix/bin/kvasir"
ran "$prefix/bin/kvasir" eval agree -m none
err_has "kvasir eval agree: -m none: no such folder" "messages have the name of the program"
cp -R "$SRCDIR/model/demo" "$prefix/share/kvasir"
ran "$prefix/bin/kvasir" info
out_has "$prefix/share/kvasir/demo" "an installed program finds its own model, also after its prefix has moved"
touch "$prefix/share/kvasir/eval/DATA.md"
ran "$prefix/bin/kvasir" eval pg19 --limit 1
err_has "$prefix/share/kvasir/eval/pg19" "and its own data"
run generate --frobnicate
check "unknown option: exit status 2" test "$status" -eq 2
run generate --help-attn streaming
out_has "sink" "--help-attn shows parameters"

run --help-attn streaming
out_has "sink" "and without a command"
run --help-attn nonsense
check "--help-attn with an unknown name: exit status 2" test "$status" -eq 2
run tokenize -m "$m" --attn full
check "an option that a command does not use: exit status 2" test "$status" -eq 2
has() { check "--json of $1 has $2" grep -q "$2" "$tmp/r.json"; }

run info "$m" --json "$tmp/r.json"
has info '"architecture": "Qwen2ForCausalLM"'
has info '"chat_template": "tokenizer_config.json"'
run info -m "$m" "$m"
check "two models: exit status 2" test "$status" -eq 2
run info "$m"
out_has "Qwen2ForCausalLM" "info: architecture"
out_has "yarn" "info: rope"
out_has "tokens         f16          q8          q4" "info: memory of a context, by store"
out_has "f32 (26 tensors, 0.20 MB)" "info: tensors of a type and their bytes"
out_has "tokenizer" "info: tokenizer"

printf 'Alice was 12 años old.\n' >"$tmp/text"
"$RUN" tokenize -m "$m" <"$tmp/text" >"$tmp/ids" 2>"$tmp/err"
check "tokenize prints ids" grep -qE '^[0-9]+( [0-9]+)*$' "$tmp/ids"
"$RUN" tokenize -m "$m" --decode <"$tmp/ids" >"$tmp/out" 2>"$tmp/err"
check "tokenize --decode gives the text back" cmp -s "$tmp/out" "$tmp/text"
printf '{"text": "one"}\n{"text": "two\\n"}\n' >"$tmp/jsonl"
"$RUN" tokenize -m "$m" --jsonl <"$tmp/jsonl" >"$tmp/out" 2>"$tmp/err"
check "tokenize --jsonl prints a line each" test "$(wc -l <"$tmp/out")" -eq 2
printf '{"text": "one"}\n{"text": "two\\n"}\n' | "$RUN" tokenize -m "$m" --jsonl --json "$tmp/r.json" >"$tmp/out" 2>"$tmp/err"
has tokenize '"texts": 2'
while read -r ids; do echo "{\"ids\": [$(echo "$ids" | tr ' ' ,)]}"; done <"$tmp/out" >"$tmp/jsonl"
"$RUN" tokenize -m "$m" --jsonl --decode <"$tmp/jsonl" >"$tmp/out" 2>"$tmp/err"
check "tokenize --jsonl --decode gives the texts back" test "$(cat "$tmp/out")" = "$(printf '{"text": "one"}\n{"text": "two\\n"}')"
# decode_fails INPUT TEXT NAME ARGS...: the input is refused with this text.
decode_fails() {
    # shellcheck disable=SC2086
    printf '%b' "$1" | "$RUN" tokenize -m "$m" --decode >"$tmp/out" 2>"$tmp/err" $4
    check "$3: exit status 1" test $? -eq 1
    err_has "$2" "$3: is said"
}
decode_fails '{"ids": [1]}\n{"ids": [4294967297]}\n' "line 2 of standard input: id 4294967297" "an id beyond 32 bits" --jsonl
decode_fails '{"ids": [1.5]}\n' "line 1 of standard input" "an id that is no integer" --jsonl
decode_fails '1 99999999999999999999' "outside the vocabulary" "an id beyond 64 bits" ""
decode_fails '1\0000 2' "not a token id" "ids with a NUL between them" ""
printf 'x y' | "$RUN" tokenize -m "$m" --decode >"$tmp/out" 2>"$tmp/err"
check "tokenize --decode refuses words" test $? -eq 1
printf '999999999' | "$RUN" tokenize -m "$m" --decode >"$tmp/out" 2>"$tmp/err"
check "tokenize --decode refuses ids outside the vocabulary" test $? -eq 1

run logits -m "$m" --ids 1,2,3
check "logits prints ten candidates" test "$(wc -l <"$tmp/out")" -eq 10
run logits -m "$m" --ids 1,2,3 -o "$tmp/l.npy" --json "$tmp/r.json"
check "logits -o prints nothing" test ! -s "$tmp/out"
has logits '"logprob"'
check "logits -o writes float32 [3, 384]" test "$(wc -c <"$tmp/l.npy")" -eq $((128 + 3 * 384 * 4))
check "in NumPy's format" grep -qa "'shape': (3, 384)" "$tmp/l.npy"
run logits -m "$m" --ids 1,2,3 --last -o "$tmp/last.npy"
check "--last writes one row" test "$(wc -c <"$tmp/last.npy")" -eq $((128 + 384 * 4))
tail -c 1536 "$tmp/l.npy" >"$tmp/a"
tail -c 1536 "$tmp/last.npy" >"$tmp/b"
check "and it is the last one, bit by bit" cmp -s "$tmp/a" "$tmp/b"
refused 2 "--ids" "logits without ids" logits -m "$m"
refused 2 "expected token ids" "bad ids" logits -m "$m" --ids 1,x
refused 2 "outside the model's vocabulary" "an id outside the vocabulary" logits -m "$m" --ids 1,400
finish
