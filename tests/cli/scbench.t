# SPDX-License-Identifier: MIT
# eval scbench: turns and requests on one context, sessions that continue from a copy, and data that is wrong.
# shellcheck disable=SC2086 # variables hold lists of arguments
. "$SRCDIR/tests/cli/lib.sh"
. "$SRCDIR/tests/cli/resume.sh"
m="$models/llama31-f32-tied"
sc() { run eval scbench --threads 1 --gemm builtin --quiet "$@"; }
# tokens FILE TURN: of the prompts of that turn.
tokens() { sed -n "s/.*\"turn\":$2,\"attn\":\"full\".*\"prompt_tokens\":\([0-9]*\).*/\1/p" "$1"; }

# Made samples and our own, with the built-in model.
cases="--dataset scbench_passkey,scbench_vt --limit 2 --length 1200 --attn full,snapkv,quest,streaming --skip 0 --budget 64"
sc $cases -o "$tmp/turns.jsonl" --json "$tmp/r.json"
check "turns" test "$status" -eq 0
out_has "turns with the right answers between them: 4 contexts (0 cut" "the head says how questions are asked"
out_has "passkey (made)              10" "made samples are labelled"
for turn in 1 2 3 4 5; do out_has "  turn $turn" "turn $turn has a line"; done
check "a line for each turn, sample and strategy" test "$(wc -l <"$tmp/turns.jsonl")" -eq $((1 + 4 * 5 * 4))
check "the report has turns" grep -q '"turn": 5' "$tmp/r.json"
check "a made sample fills its length" test "$(tokens "$tmp/turns.jsonl" 5 | sort -n | head -n 1)" -gt 1100
check "and not more" test "$(tokens "$tmp/turns.jsonl" 5 | sort -n | tail -n 1)" -lt 1200

# A session continued from a copy gives the same replies as one prefilled from its start; here the turn before is known.
{ head -n 1 "$tmp/turns.jsonl" && grep -E '"turn":(1|3),' "$tmp/turns.jsonl"; } >"$tmp/fresh.jsonl"
sc $cases -o "$tmp/fresh.jsonl"
check "turns that are fed from their start: the same results" same_set "$tmp/turns.jsonl" "$tmp/fresh.jsonl"
sc $cases --jobs 3 -o "$tmp/jobs.jsonl"
check "side by side: the same results" same_set "$tmp/turns.jsonl" "$tmp/jobs.jsonl"
killed "$tmp/part.jsonl" "2 17 30" eval scbench --threads 1 --gemm builtin --quiet $cases
sc $cases -o "$tmp/part.jsonl"
check "killed again and again: the same results" same_set "$tmp/turns.jsonl" "$tmp/part.jsonl"
sc $cases --mode multi-request -o "$tmp/requests.jsonl"
out_has "each question on the context alone" "requests"
check "their prompts do not grow" test "$(tokens "$tmp/requests.jsonl" 5 | head -n 1)" -le "$(($(tokens "$tmp/requests.jsonl" 1 | head -n 1) + 8))"
refused 2 "'mode' is \"multi-turn\" in the file, \"multi-request\" now" "the other mode in one file" \
    eval scbench --threads 1 --gemm builtin $cases --mode multi-request -o "$tmp/turns.jsonl"
# Answers of the model's own between turns.
sc $cases --disable-golden-context -o "$tmp/own.jsonl"
check "own answers" test "$status" -eq 0
out_has "turns with the model's own answers between them" "the head says so"
first() { grep '"turn":1,' "$1" | sed 's/,"seconds.*//' | sort; }
check "the first turn is the same" test "$(first "$tmp/own.jsonl")" = "$(first "$tmp/turns.jsonl")"
check "later ones are not" test "$(grep -c '"turn":5,' "$tmp/own.jsonl")" = 16 -a "$(grep '"turn":5,' "$tmp/own.jsonl" | sed 's/,"prompt_tokens.*//' | sort)" != \
    "$(grep '"turn":5,' "$tmp/turns.jsonl" | sed 's/,"prompt_tokens.*//' | sort)"
check "only the question is fed" test "$(tokens "$tmp/own.jsonl" 5 | sort -n | tail -n 1)" -lt 100
sc $cases --disable-golden-context --jobs 3 -o "$tmp/ownjobs.jsonl"
check "side by side: the same results" same_set "$tmp/own.jsonl" "$tmp/ownjobs.jsonl"
{ head -n 1 "$tmp/own.jsonl" && grep -E '"turn":(1|2|4),' "$tmp/own.jsonl"; } >"$tmp/ownpart.jsonl"
sc $cases --disable-golden-context -o "$tmp/ownpart.jsonl"
check "answers that are known are made again where others follow: the same results" same_set "$tmp/own.jsonl" "$tmp/ownpart.jsonl"
refused 2 "'golden_context' is" "both kinds of turns in one file" eval scbench --threads 1 --gemm builtin $cases --disable-golden-context -o "$tmp/turns.jsonl"
refused 2 "--mode multi-request has no answers between questions" "requests" eval scbench --mode multi-request --disable-golden-context
sc --limit 1 --length 2000 --seed 7 --attn full
check "all tasks at once" test "$status" -eq 0
for task in "kv (made)" "prefix_suffix (made)" "vt (made)" "mf (made)" qa_eng qa_chn choice_eng many_shot summary summary_with_needles "average of tasks"; do
    out_has "$task" "the table has $task"
done

# Data: gold answers stand between turns, and labels are read as the benchmark's code reads them.
line() { # line DATASET ANSWER1 ANSWER2
    printf '{"dataset":"%s","id":7,"context":"some text","multi_turns":[{"input":"one?","answer":%s},{"input":"two?","answer":%s}]}\n' "$1" "$2" "$3"
}
line scbench_kv '"A"' '"B"' >"$tmp/short.jsonl"
line scbench_kv '"A A A A A A"' '"B"' >"$tmp/long.jsonl"
for data in short long; do sc --data "$tmp/$data.jsonl" --attn full -o "$tmp/$data.out"; done
check "the first prompts are the same" test "$(tokens "$tmp/short.out" 1)" = "$(tokens "$tmp/long.out" 1)"
check "a longer right answer makes the second longer" test "$(tokens "$tmp/short.out" 2)" -lt "$(tokens "$tmp/long.out" 2)"
for data in short long; do
    run eval scbench -m "$m" --threads 1 --gemm builtin --quiet --ctx 600 --data "$tmp/$data.jsonl" --attn full -o "$tmp/$data.chat"
done
out_has "wrap template" "in a chat"
check "too" test "$(tokens "$tmp/short.chat" 2)" -lt "$(tokens "$tmp/long.chat" 2)"
run eval scbench -m "$m" --threads 1 --gemm builtin --quiet --ctx 600 --data "$tmp/long.jsonl" --attn full --mode multi-request -o "$tmp/request.chat"
check "but not in requests" test "$(tokens "$tmp/request.chat" 2)" -lt "$(tokens "$tmp/long.chat" 2)"
{ line scbench_many_shot '"(A)"' '["(B)"]' && line scbench_qa_eng '"(A)"' '5'; } >"$tmp/labels.jsonl"
sc --data "$tmp/labels.jsonl" --attn full -o "$tmp/labels.out"
check "a label that is a text is walked letter by letter" grep -q '"turn":1.*"answers":\["(","A",")"\]' "$tmp/labels.out"
check "a list is not" grep -q '"turn":2.*"answers":\["(B)"\]' "$tmp/labels.out"
check "nor that of another task" grep -q '"dataset":"scbench_qa_eng".*"answers":\["(A)"\]' "$tmp/labels.out"
sc --data "$tmp/short.jsonl" --attn full --max-length 8
out_has "1 contexts (1 cut in the middle)" "a context that is too long is cut"

number='"multi_turns":[{"input":"The largest number is","answer":"12"}]}'
echo "{\"dataset\":\"scbench_mf\",\"context\":[7, -3,12],$number" >"$tmp/list.jsonl"
echo "{\"dataset\":\"scbench_mf\",\"context\":\"[7, -3, 12]\",$number" >"$tmp/text.jsonl"
for data in list text; do sc --data "$tmp/$data.jsonl" --attn full -o "$tmp/$data.out"; done
said() { sed -n 's/.*"prediction":\(.*\),"answers".*"prompt_tokens":\([0-9]*\).*/\1 \2/p' "$1"; }
check "numbers as a context are what Python writes" test -n "$(said "$tmp/list.out")" -a "$(said "$tmp/list.out")" = "$(said "$tmp/text.out")"

# A limit on the size of files prevents branches; the scores are the same.
sc --limit 2 --attn full
cp "$tmp/out" "$tmp/with"
limited() (ulimit -f 64 && "$RUN" "$@")
ran limited eval scbench --threads 1 --gemm builtin --quiet --limit 2 --attn full
check "without room for a branch the scores are the same" test "$status" -eq 0 -a "$(head -n 5 "$tmp/out")" = "$(head -n 5 "$tmp/with")"

# Bad input.
bad() { # bad LINE TEXT NAME
    { line scbench_kv '"A"' '"B"' && printf '%s\n' "$1"; } >"$tmp/bad.jsonl"
    refused 1 "bad.jsonl line 2: $2" "$3" eval scbench --data "$tmp/bad.jsonl"
}
head='"dataset":"scbench_kv","context":"c"'
bad "{$head" "not valid JSON" "no JSON"
bad '{"dataset":"scbench_kv","multi_turns":[]}' "'input': expected a string" "no context"
bad "{$head}" "'multi_turns': expected a list of turns" "no turns"
printf '{%s,"multi_turns":[{"input":"i"}]}\n' "$head" >"$tmp/bad.jsonl"
refused 1 "bad.jsonl line 1 turn 1: 'answer' is missing" "no answer" eval scbench --data "$tmp/bad.jsonl"
printf '{"dataset":"scbench_choice_eng","context":"c","multi_turns":[{"input":"i","answer":"x","options":["a","b","c","d"]}]}\n' >"$tmp/bad.jsonl"
refused 1 "bad.jsonl line 1 turn 1: 'answer' is not one of 'options'" "an answer that is no option" eval scbench --data "$tmp/bad.jsonl"
printf '{"dataset":"scbench_summary_with_needles","context":"c","multi_turns":[{"input":"i","answer":"x","task":"scbench_repoqa"}]}\n' >"$tmp/bad.jsonl"
refused 1 "'task': scbench_repoqa cannot be part of a mixed task" "a turn of a task that is not there" eval scbench --data "$tmp/bad.jsonl"
printf '{"dataset":"scbench_mf","context":"c","multi_turns":[{"input":"How much?","answer":5}]}\n' >"$tmp/bad.jsonl"
refused 1 "scbench_mf sample 0: 'input': expected a string like" "mf without its question" eval scbench --data "$tmp/bad.jsonl"
refused 1 "is not supported: its score parses the answer with tree-sitter" "repoqa" eval scbench --dataset scbench_repoqa
line scbench_repoqa '"A"' '"B"' >"$tmp/bad.jsonl"
refused 1 "tree-sitter" "its data" eval scbench --data "$tmp/bad.jsonl"
refused 2 "nearest name is scbench_kv" "another task" eval scbench --dataset scbench_k
refused 2 "--dataset: no samples of the selected tasks" "a task without samples" eval scbench --dataset scbench_kv_hard
run eval scbench -m "$m" --threads 1 --gemm builtin --quiet --ctx 2048 --length 1100 --limit 1 --attn full,quest --budget 1 \
    --dataset scbench_passkey,scbench_kv_hard --json "$tmp/mixed.json"
out_has "1 contexts" "no error if another dataset is made"
check "a row that cannot run has an average of null" grep -q '"average": null' "$tmp/mixed.json"
refused 2 "--mode: 'both' is not one of" "another mode" eval scbench --mode both
refused 2 "--length (or --ctx) 20: too short for scbench_kv, which needs at least" "a length without room" eval scbench --length 20
refused 2 "--length: none of the selected tasks is generated" "a length of data" eval scbench --data "$tmp/short.jsonl" --length 2k
refused 2 "has no room for the questions and answers" "a window without room" eval scbench --ctx 16 --data "$tmp/short.jsonl"
finish
