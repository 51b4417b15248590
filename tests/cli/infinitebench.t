# SPDX-License-Identifier: MIT
# eval infinitebench: samples that are made and read, prompts and rules, and data that is wrong.
# shellcheck disable=SC2086 # variables hold lists of arguments
. "$SRCDIR/tests/cli/lib.sh"
. "$SRCDIR/tests/cli/resume.sh"
m="$models/llama31-f32-tied"
own="$SRCDIR/eval/infinitebench/samples.jsonl"

ib() { # ib ARGS...: a run with a small model
    run eval infinitebench -m "$m" --threads 1 --gemm builtin --quiet "$@"
}

cases="--ctx 4096 --length 700,1400 --limit 2 --attn full,quest --skip 0 --budget 64,128"
ib $cases -o "$tmp/whole.jsonl" --json "$tmp/r.json"
check "a run" test "$status" -eq 0
out_has "InfiniteBench: 18 samples (12 of them made), prompts official (0 cut in the middle), wrap raw, rules official" "what was run"
for word in Retrieve.PassKey Retrieve.Number Retrieve.KV "  1400 tokens" En.MC Code.Debug Math.Find "average of tasks" "tokens attended"; do
    out_has "$word" "the table has $word"
done
check "a head and a line for each sample and strategy" test "$(wc -l <"$tmp/whole.jsonl")" -eq $((1 + 3 * 18))
check "made samples say their length and depth" grep -q '"dataset":"kv_retrieval","index":3,.*"length":1400,"depth":' "$tmp/whole.jsonl"
longest=$(sed -n '/"length":700/s/.*"prompt_tokens":\([0-9]*\).*/\1/p' "$tmp/whole.jsonl" | sort -n | tail -n 1)
check "which holds prompt and answer ($longest)" test "$longest" -le 694 -a "$longest" -gt 500
check "the report is JSON" grep -q '"title": "Retrieve.KV"' "$tmp/r.json"
check "with averages" grep -q '"average": ' "$tmp/r.json"
check "choices have their letter" grep -q '"dataset":"code_debug",.*"answers":\["[a-z_]*","[A-D]"\]' "$tmp/whole.jsonl"

refused 2 "seed" "another seed is another run" eval infinitebench -m "$m" --threads 1 --gemm builtin $cases --seed 7 -o "$tmp/whole.jsonl"
refused 2 "rules" "so are other rules" eval infinitebench -m "$m" --threads 1 --gemm builtin $cases --rules infllm -o "$tmp/whole.jsonl"
ib $cases --jobs 3 -o "$tmp/jobs.jsonl"
check "samples side by side give the same results" same_set "$tmp/whole.jsonl" "$tmp/jobs.jsonl"

# Prompts, rules, other tasks.
ib --ctx 2048 --prompts infllm --limit 2 --dataset passkey,code_debug -o "$tmp/infllm.jsonl"
out_has "prompts infllm (0 cut in the middle), wrap template, rules infllm" "InfLLM's"
check "the last token of the prompt is a decode step" test "$(grep -c '"decoded_prompt_tokens":1,' "$tmp/infllm.jsonl")" -eq 4
out_has "Code.Debug: no answer" "answers that InfLLM scores by lot are counted"
ib --ctx 2048 --prompts chat --rules official --limit 1 --dataset all
out_has "wrap template, rules official" "the chat model's prompts"
for word in En.Sum En.QA En.Dia Zh.QA Code.Run Math.Calc; do out_has "$word" "all tasks: $word"; done
ib --ctx 2048 --dataset math_find --max-length 100 -o "$tmp/cut.jsonl"
out_has "(2 cut in the middle)" "long prompts are cut and counted"

cp "$SRCDIR/eval/infinitebench/infllm_dataset2prompt.json" "$tmp/mine.json"
ib --ctx 2048 --prompts "$tmp/mine.json" --limit 2 --dataset passkey,code_debug -o "$tmp/mine.jsonl"
out_has "prompts mine.json (0 cut in the middle), wrap template, rules infllm" "a file of templates"
check "InfLLM's templates as a file: the same answers" same_answers "$tmp/infllm.jsonl" "$tmp/mine.jsonl"
check "the file's sum is in the results" grep -q '"prompts":"mine.json",.*"prompts_sha256":"[0-9a-f]\{64\}"' "$tmp/mine.jsonl"
echo '{"passkey": "Find and memorize it: {input} {context} {input}", "kv_retrieval": "{context}{func}"}' >"$tmp/mine.json"
ib --ctx 2048 --prompts "$tmp/mine.json" --limit 2 --dataset passkey
check "templates of the tasks that run are enough" test "$status" -eq 0
refused 1 "mine.json: 'kv_retrieval': unknown field {func}; supported fields: {context} {input} {key}" "a field that the task has not" eval infinitebench -m "$m" --prompts "$tmp/mine.json" --dataset passkey,kv_retrieval
refused 1 "mine.json: no template for data set 'number_string'" "a task without its template" eval infinitebench -m "$m" --prompts "$tmp/mine.json" --dataset number_string

# Data: a folder of files, one file, and lengths in addition.
mkdir "$tmp/data"
for t in longbook_choice_eng code_debug; do grep "\"$t\"" "$own" | sed 's/"dataset": "[a-z_]*", //' >"$tmp/data/$t.jsonl"; done
printf '{"id":0,"context":"The pass key is 12345.","input":"What is the pass key?","answer":["12345"],"options":[]}\n' >"$tmp/data/passkey.jsonl"
ib --ctx 4096 --data "$tmp/data" -o "$tmp/x.jsonl"
out_has "5 samples (0 of them made)" "a folder with some of the tasks"
ib --ctx 4096 --data "$tmp/data" --length 600 --limit 1
out_has "5 samples (3 of them made)" "--length makes them in spite of it"
ib --ctx 4096 --data "$tmp/data/code_debug.jsonl" --limit 1 --sample-seed 3
out_has "1 samples" "one file tells its task by its name"
sed 1d "$tmp/x.jsonl" | grep '"code_debug"' | "$RUN" eval score code_debug >"$tmp/scores" 2>"$tmp/err"
check "eval score reads the lines of results" test "$(wc -l <"$tmp/scores")" -eq 2

# Refused options.
refused 2 "nearest name is passkey" "a wrong task" eval infinitebench -m "$m" --dataset paskey
refused 2 "--prompts: 'gpt4'" "wrong prompts" eval infinitebench -m "$m" --prompts gpt4
refused 2 "--rules: 'mine'" "wrong rules" eval infinitebench -m "$m" --rules mine
refused 2 "--length 9000: exceeds the window of 4096" "a length beyond the window" eval infinitebench -m "$m" --ctx 4096 --length 9000
refused 2 "duplicate length 700" "a length twice" eval infinitebench -m "$m" --ctx 4096 --length 700,700
refused 2 "duplicate length 700" "the window, as 0 and as its length" eval infinitebench -m "$m" --ctx 700 --length 0,700
refused 2 "too short for passkey" "a length that holds nothing" eval infinitebench -m "$m" --ctx 4096 --length 50
refused 2 "generated, with --seed" "a seed that draws nothing" eval infinitebench -m "$m" --dataset passkey --limit 1 --sample-seed 3
refused 2 "none of the selected tasks is generated" "a length of what is read" eval infinitebench -m "$m" --dataset math_find --length 700
refused 2 "all tasks of --dataset are generated" "data of what is made" eval infinitebench -m "$m" --dataset passkey --length 700 --data "$tmp/data"
refused 1 "no file math_find.jsonl" "a task that is not there" eval infinitebench -m "$m" --data "$tmp/data" --dataset math_find
echo '{"context":"c","input":"The x of","answer":"five"}' >"$tmp/math_find.jsonl"
refused 1 "math_find.jsonl line 1: the answer 'five' is not a number" "a label that cannot be scored" eval infinitebench -m "$m" --ctx 2048 --data "$tmp/math_find.jsonl"
finish
