# SPDX-License-Identifier: MIT
# eval longbench2: the table, both passes of a chain of thought, runs that are killed, and data that is wrong.
# shellcheck disable=SC2086 # variables hold lists of arguments
. "$SRCDIR/tests/cli/lib.sh"
. "$SRCDIR/tests/cli/resume.sh"
m="$models/llama31-f32-tied"
own="$SRCDIR/eval/longbench2/samples.jsonl"

lb() { # lb ARGS...: a run with a small model and a window that its prompts fit
    run eval longbench2 -m "$m" --threads 1 --gemm builtin --ctx 8192 --quiet "$@"
}
n_samples=$(wc -l <"$own")

# One pass.
lb --attn full,quest --skip 0 --budget 64,128 -o "$tmp/one.jsonl" --json "$tmp/r.json"
check "a run" test "$status" -eq 0
check "a head and a line for each sample and strategy" test "$(wc -l <"$tmp/one.jsonl")" -eq $((1 + 3 * n_samples))
for word in overall easy hard short medium long compensated "tokens attended"; do out_has "$word" "the table has $word"; done
out_has "prompts of at most 7808 tokens (0 cut" "the window less 128 new tokens and 256 for the template"
check "the report is JSON" grep -q '"compensated"' "$tmp/r.json"
check "a judged line" grep -q '"answers":\["B"\],"pred":null,"judge":false,"score":0.0,"difficulty":"easy","length":"short"' "$tmp/one.jsonl"
lb --no-context --limit 1 -o "$tmp/none.jsonl"
check "without the document prompts are short" test "$(sed -n 's/.*"prompt_tokens":\([0-9]*\).*/\1/p' "$tmp/none.jsonl")" -lt 350
out_has "without the documents" "and the table says so"
lb --max-length 101 --limit 2 -o "$tmp/cut.jsonl"
out_has "at most 101 tokens (2 cut" "what is cut is counted"
check "and said" grep -q '"truncated":true' "$tmp/cut.jsonl"
lb --limit 2 --sample-seed 5
out_has ": 2 samples" "a draw of samples"
sed '$!s/$/,/; 1s/^/[/; $s/$/]/' "$own" >"$tmp/data.json"
lb --attn full,quest --skip 0 --budget 64,128 --data "$tmp" -o "$tmp/array.jsonl"
check "the data as one list, in a folder" test "$status" -eq 0
sed 1d "$tmp/one.jsonl" >"$tmp/x" && sed 1d "$tmp/array.jsonl" >"$tmp/y"
check "gives the same results" same_results "$tmp/x" "$tmp/y"

# Two passes.
cases="--cot --attn full,quest,streaming --skip 0 --budget 64"
lb $cases -o "$tmp/whole.jsonl" --json "$tmp/r.json"
check "a chain of thought" test "$status" -eq 0
cp "$tmp/out" "$tmp/table"
out_has "prompts of at most 6912 tokens" "reasoning has 1024 new tokens"
check "a line of reasoning for each" test "$(grep -c '"pass":"reasoning"' "$tmp/whole.jsonl")" -eq $((3 * n_samples))
n_empty=$(grep '"pass":"reasoning"' "$tmp/whole.jsonl" | grep -c '"prediction":""')
check "and of an answer, but for empty ones" test "$(grep -c '"pass":"answer"' "$tmp/whole.jsonl")" -eq $((3 * n_samples - n_empty))
check "reasoning has no score" test "$(grep '"pass":"reasoning"' "$tmp/whole.jsonl" | grep -c '"score"')" -eq 0
check "the report has both costs" grep -q '"reasoning": {' "$tmp/r.json"

# Other rules.
lb --rules pariskv --attn full,quest --skip 0 --budget 64 -o "$tmp/paris.jsonl" --json "$tmp/r.json"
check "ParisKV's protocol" test "$status" -eq 0
out_has "rules pariskv, prompts of at most 7028 tokens (0 cut in the middle), wrap raw" "its prompts are raw and its own"
check "two passes for each" test "$(grep -c '"pass":"answer"' "$tmp/paris.jsonl")" -eq $((2 * n_samples))
prompts() { sed -n "s/.*\"pass\":\"$1\".*\"prompt_tokens\":\([0-9]*\).*/\1/p" "$tmp/paris.jsonl" | head -n 1; }
check "the second with the document, and longer" test "$(prompts answer)" -gt "$(prompts reasoning)"
check "no output is left out" test "$(grep '"pass":"answer"' "$tmp/paris.jsonl" | grep -c '"judge":null')" -eq 0
check "it samples, which the configuration says" grep -q '"temp": *0.1' "$tmp/paris.jsonl"
said() { sed -n 's/.*"prediction":"\(.*\)","answers.*/\1/p' "$1"; }
said "$tmp/paris.jsonl" >"$tmp/paris.said"
lb --rules pariskv --attn full,quest --skip 0 --budget 64 -o "$tmp/again.jsonl"
said "$tmp/again.jsonl" >"$tmp/again.said"
check "the same seed says the same" cmp "$tmp/paris.said" "$tmp/again.said"
lb --rules pariskv --attn full,quest --skip 0 --budget 64 --seed 7 -o "$tmp/other.jsonl"
said "$tmp/other.jsonl" >"$tmp/other.said"
check "another seed something else" sh -c "test -s '$tmp/again.said' && ! cmp -s '$tmp/again.said' '$tmp/other.said'"
lb --rules pariskv --max-length 101 --limit 2
out_has "at most 101 tokens (2 cut" "it cuts in the middle"
lb --rules kvpress --attn full,snapkv --skip 0 --budget 64 -o "$tmp/press.jsonl"
check "kvpress's" test "$status" -eq 0
check "answers have at most 16 tokens" test "$(sed -n 's/.*"new_tokens":\([0-9]*\).*/\1/p' "$tmp/press.jsonl" | sort -n | tail -n 1)" -le 16
refused 2 "--rules: 'own' is not one of: official pariskv kvpress" "other rules" eval longbench2 --rules own
refused 2 "--rules kvpress: not supported with --cot" "rules and prompts" eval longbench2 --rules kvpress --cot
refused 2 "--rules pariskv: not supported with a chat template" "a template for raw prompts" eval longbench2 --rules pariskv --wrap template

# Killed at several moments: in the first pass, between both, in the second one.
killed "$tmp/part.jsonl" "1 2 9 $((1 + 3 * n_samples)) $((2 + 3 * n_samples)) 24" eval longbench2 -m "$m" --threads 1 --gemm builtin --ctx 8192 --quiet $cases
# The same moments again, exactly: the file as it is after so many lines, and a part of the next one.
for many in 4 $((1 + 3 * n_samples)) $((3 + 3 * n_samples)); do
    { head -n "$many" "$tmp/whole.jsonl" && sed -n "$((many + 1))p" "$tmp/whole.jsonl" | head -c 40; } >"$tmp/at.jsonl"
    lb $cases -o "$tmp/at.jsonl"
    check "cut after line $many: continues to the same end" same_results "$tmp/whole.jsonl" "$tmp/at.jsonl"
done
lb $cases -o "$tmp/part.jsonl"
check "killed again and again: the last run ends" test "$status" -eq 0
check "with the results of an undisturbed one" same_results "$tmp/whole.jsonl" "$tmp/part.jsonl"
sed '/^seconds/d' "$tmp/out" >"$tmp/b"
sed '/^seconds/d' "$tmp/table" >"$tmp/a"
check "and its table" cmp "$tmp/a" "$tmp/b"
lb $cases --jobs 3 -o "$tmp/jobs.jsonl"
check "side by side: the same results" same_set "$tmp/whole.jsonl" "$tmp/jobs.jsonl"
one="eval longbench2 -m $m --ctx 8192 --gemm builtin -o $tmp/none.jsonl --limit 1"
refused 2 "'prompt' is \"0shot_no_context\" in the file, \"0shot\" now" "another prompt" $one
refused 2 "'max_length' is 7808 in the file, 6912 now" "another number of passes" $one --cot
refused 2 "'max_length' is 7808 in the file, 50 now" "other lengths" $one --no-context --max-length 50

# Outputs, as a file says them: counts and what is left out.
head -n 1 "$tmp/one.jsonl" >"$tmp/said.jsonl"
for attn in '"full","budget":null' '"quest","budget":64' '"quest","budget":128'; do
    for i in 0 1 2 3 4; do
        case $i in
        0) said='"pred":"B","judge":true' ;;
        1) said='"pred":null,"judge":false' ;;
        2) said='"pred":null,"judge":null' ;;
        3) said='"pred":"A","judge":false' ;;
        4) said='"pred":"B","judge":true' ;;
        esac
        echo "{\"dataset\":\"longbench2\",\"index\":$i,\"attn\":$attn,$said,\"seconds\":1.0,\"kv_bytes\":1,\"attended\":null}" >>"$tmp/said.jsonl"
    done
done
lb --attn full,quest --skip 0 --budget 64,128 -o "$tmp/said.jsonl"
has_row() { # has_row NAME N VALUE
    check "$1: $3" grep -qE "^ *$1 +($2)? +$3 +$3 +$3\$" "$tmp/out"
}
has_row overall 5 50.0
has_row easy 2 100.0
has_row hard 3 33.3
has_row short 2 50.0
has_row medium 2 0.0
has_row long 1 100.0
has_row "overall, compensated" "" 56.2
has_row "short, easy" 1 100.00
has_row "short, hard" 1 0.00
has_row "medium, hard" 1 0.00
has_row "long, hard" 1 100.00
has_row "right" "" 0/1
has_row "outputs without a choice" "" 1
has_row "empty, not counted" "" 1
has_row "tokens attended" "" -

# Bad input; tests/unit/test_longbench2 has more of it.
printf '[{"_id":"i","context":"\377"}]' >"$tmp/bad.json"
refused 1 "bad.json record 1: not valid JSON" "bytes that are no UTF-8" eval longbench2 -m "$m" --ctx 8192 --data "$tmp/bad.json"
refused 2 "a window of 400 tokens leaves only 16" "a window that is too small" eval longbench2 -m "$m" --ctx 400
refused 2 "the window has 600" "prompts beyond the window" eval longbench2 -m "$m" --ctx 600 --max-length 590
refused 2 "--no-context: not supported with --cot" "both prompts" eval longbench2 --cot --no-context
refused 2 "unknown option '--protocol'" "an option of another evaluation" eval longbench2 --protocol decode
finish
