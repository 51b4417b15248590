# SPDX-License-Identifier: MIT
# info, tokenize, logits, help and version.
. "$SRCDIR/tests/cli/lib.sh"
m="$models/qwen2-yarn-f32"

run --version
out_has "kvasir" "--version"
run --help
out_has "generate" "--help lists the commands"
run
check "no command: usage, exit status 2" test "$status" -eq 2
run frobnicate
check "unknown command: exit status 2" test "$status" -eq 2
run generate --frobnicate
check "unknown option: exit status 2" test "$status" -eq 2
run generate --help-attn streaming
out_has "sink" "--help-attn shows parameters"

run info "$m"
out_has "Qwen2ForCausalLM" "info: architecture"
out_has "yarn" "info: rope"
out_has "tokenizer" "info: tokenizer"

printf 'Alice was 12 años old.\n' >"$tmp/text"
"$RUN" tokenize -m "$m" <"$tmp/text" >"$tmp/ids" 2>"$tmp/err"
check "tokenize prints ids" grep -qE '^[0-9]+( [0-9]+)*$' "$tmp/ids"
"$RUN" tokenize -m "$m" --decode <"$tmp/ids" >"$tmp/out" 2>"$tmp/err"
check "tokenize --decode gives the text back" cmp -s "$tmp/out" "$tmp/text"
printf '{"text": "one"}\n{"text": "two\\n"}\n' >"$tmp/jsonl"
"$RUN" tokenize -m "$m" --jsonl <"$tmp/jsonl" >"$tmp/out" 2>"$tmp/err"
check "tokenize --jsonl prints a line each" test "$(wc -l <"$tmp/out")" -eq 2
printf 'x y' | "$RUN" tokenize -m "$m" --decode >"$tmp/out" 2>"$tmp/err"
check "tokenize --decode refuses words" test $? -eq 1
printf '999999999' | "$RUN" tokenize -m "$m" --decode >"$tmp/out" 2>"$tmp/err"
check "tokenize --decode refuses ids outside the vocabulary" test $? -eq 1

run logits -m "$m" --ids 1,2,3
check "logits prints ten candidates" test "$(wc -l <"$tmp/out")" -eq 10
run logits -m "$m" --ids 1,2,3 -o "$tmp/l.npy"
check "logits -o writes float32 [3, 384]" test "$(wc -c <"$tmp/l.npy")" -eq $((128 + 3 * 384 * 4))
check "in NumPy's format" grep -qa "'shape': (3, 384)" "$tmp/l.npy"
run logits -m "$m" --ids 1,2,3 --last -o "$tmp/last.npy"
check "--last writes one row" test "$(wc -c <"$tmp/last.npy")" -eq $((128 + 384 * 4))
tail -c 1536 "$tmp/l.npy" >"$tmp/a"
tail -c 1536 "$tmp/last.npy" >"$tmp/b"
check "and it is the last one, bit by bit" cmp -s "$tmp/a" "$tmp/b"
refused 2 "--ids" "logits without ids" logits -m "$m"
refused 2 "not a list" "bad ids" logits -m "$m" --ids 1,x
refused 2 "outside the model's vocabulary" "an id outside the vocabulary" logits -m "$m" --ids 1,400
finish
