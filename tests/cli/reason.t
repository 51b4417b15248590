# SPDX-License-Identifier: MIT
# eval gsm8k, math, aime, gpqa, mmlu: generations, samples, runs that were ended, orders of choices, and data that is wrong.
# How answers are scored: answers.t.
. "$SRCDIR/tests/cli/lib.sh"
. "$SRCDIR/tests/cli/resume.sh"
data="$SRCDIR/tests/data/reason"
own="$SRCDIR/eval/reason"
m="$models/llama31-f32-tied"

# ---- generations ----

go() { # go TASK ARGS...: a run with a small model
    task=$1
    shift
    run eval "$task" -m "$m" --threads 1 --gemm builtin --ctx 4096 --quiet "$@"
}
lines() { sed 1d "$1" | wc -l; }

go gsm8k -n 12 --attn full,quest --budget 64 -o "$tmp/g.jsonl" --json "$tmp/g.json"
check "gsm8k: a run" test "$status" = 0
check "a line for each problem and strategy" test "$(lines "$tmp/g.jsonl")" = 6
out_has "gsm8k, rules boxed: 3 problems, 1 generation each of at most 12 tokens, greedy, wrap template" "the head says what ran"
for word in "95 % from" "without an answer" "hit the limit" "end in a loop" "new tokens an answer" "new tokens a second"; do
    out_has "$word" "the table has: $word"
done
check "a judged line" grep -q '"gold":".*#### 18","answer":{"gsm8k":.*},"scores":{"gsm8k":0}' "$tmp/g.jsonl"
check "the report has the interval" grep -q '"ci95"' "$tmp/g.json"
go gsm8k -n 4 --limit 1 --attn quest,streaming --json "$tmp/own.json"
check "without --budget each strategy has its own" test "$(grep -c '"budget": [1-9]' "$tmp/own.json")" = 2
go gsm8k --rules cot --limit 2 -n 4
out_has "gsm8k_strict" "two filters: the first"
out_has "gsm8k_flexible" "and the second"
out_has "wrap raw" "lm-eval's prompts are no chats"
go gsm8k --rules cot_llama --limit 1 -n 4
out_has "gsm8k_llama" "shots as turns of a chat"
go gsm8k --rules cot_llama --limit 1 -n 4 --wrap raw
check "or as a text" test "$status" = 0
go gsm8k --rules logquant --limit 1 -n 4
out_has "wrap double-bos" "LogQuant's prompts have two BOS"
go gsm8k --rules logquant --fix-commas --limit 1 -n 4
out_has "gsm8k_logquant_commas" "commas of the label left out"
run eval aime -m "$m" --threads 1 --gemm builtin --ctx 600 --quiet --data "$own/aime.jsonl" --limit 1 --samples 1
out_has "at most 38912 tokens (the window leaves " "a window that is too small for the rules shortens answers"

run eval aime -m "$m" --threads 1 --gemm builtin --ctx 600 --data "$own/aime.jsonl" --limit 1 --samples 2 -n 4 --attn full,streaming --budget 64
err_has "aime: at most 16 new tokens (problems 1, samples 2, rows 2, tokens 4)" "how much it may generate is said first"
go aime --rules pariskv_tests --limit 1 --samples 1 -n 4
out_has "aime_tests" "the rules of ParisKV's other script"

# Prompts, by their number of tokens.
tokens() { "$RUN" tokenize -m "$m" --quiet --special "$@" <"$tmp/prompt" | wc -w; }
asked() { sed -n '2s/.*"prompt_tokens":\([0-9]*\).*/\1/p' "$1"; }
if command -v jq >/dev/null; then
    jq -j '.gsm8k.cot.shots[] | "Q: \(.[0])\nA: \(.[1])\n\n"' "$own/protocols.json" >"$tmp/prompt"
    check "lm-eval's eight shots" test "$(sha256sum <"$tmp/prompt" | cut -c 1-16)" = 3d55795c084e26f6
    head -n 1 "$own/gsm8k.jsonl" | jq -j '"Q: \(.question)\nA:"' >>"$tmp/prompt"
    go gsm8k --rules cot --limit 1 -n 1 -o "$tmp/cot.jsonl"
    check "stand in front of the question" test "$(asked "$tmp/cot.jsonl")" = "$(tokens --bos)"
    # random.Random(1234) draws 7 1 0 6 4 of nine for the first problem, 0 1 8 2 7 for the second.
    for i in 0 1 2 3 4 5 6 7 8; do
        printf '{"question":"%*s","answer":"#### %s"}\n' $((1 + 7 * i * i)) "$i" $i
    done >"$tmp/train.jsonl"
    for i in 1 2 9 3 8; do
        sed -n ${i}p "$tmp/train.jsonl" | jq -j '"Question: \(.question)\nAnswer: \(.answer)\n\n"'
    done >"$tmp/prompt"
    sed -n 2p "$own/gsm8k.jsonl" | jq -j '"Question: \(.question)\nAnswer:"' >>"$tmp/prompt"
    go gsm8k --rules lmeval --train "$tmp/train.jsonl" --limit 2 -n 1 -o "$tmp/lmeval.jsonl"
    check "lm-eval's shots, drawn for each question" test "$(sed -n '3s/.*"prompt_tokens":\([0-9]*\).*/\1/p' "$tmp/lmeval.jsonl")" = "$(tokens --bos)"
    out_has "gsm8k_hash" "its two filters: the first"
    check "the training data is part of the configuration" grep -q '"name":"train.jsonl"' "$tmp/lmeval.jsonl"
    { printf '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n'
    printf 'Today Date: 26 Jul 2024\n\nYou are a helpful assistant.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n'
    q=$(head -n 1 "$own/gsm8k.jsonl" | jq .question)
    jq -j --argjson q "$q" '.gsm8k.logquant.user | sub("{question}"; $q) | sub("\n$"; "")' "$own/protocols.json"
    printf '<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n'; } >"$tmp/prompt"
    go gsm8k --rules logquant --limit 1 -n 1 -o "$tmp/log.jsonl"
    check "LogQuant's prompt, with a second BOS" test "$(asked "$tmp/log.jsonl")" = "$(($(tokens) + 1))"
else
    skip "jq is not there"
fi
printf '%s\n' 'The following are multiple choice questions (with answers) about  plain sums.' '' 'What is 1 + 1?' 'A. 1' 'B. 2' \
    'C. 3' 'D. 4' 'Answer: B' '' 'What is 2 + 2?' 'A. 1' 'B. 2' 'C. 3' 'D. 4' 'Answer: D' '' 'What is 1 + 2?' 'A. 1' 'B. 2' \
    'C. 3' 'D. 4' 'Answer: A' | head -c -1 >"$tmp/prompt"
go mmlu --data "$data/mmlu" --limit 1 --protocol prefill -o "$tmp/first.jsonl"
check "MMLU's prompt, up to its letter" test "$(asked "$tmp/first.jsonl")" = "$(($(tokens --bos) - 1))"

# Samples are drawn by seed, problem and sample alone.
go math -n 16 --samples 3 --attn full,streaming --budget 64 -o "$tmp/s.jsonl"
check "math: samples" test "$(lines "$tmp/s.jsonl")" = 24
out_has "temperature 0.6, top-k 20, top-p 0.95, seed 42" "the head says how they are drawn"
for word in "level 1" "pass@2" "any of 3"; do out_has "$word" "the table has: $word"; done
go math -n 16 --samples 3 --attn full,streaming --budget 64 --jobs 5 -o "$tmp/j.jsonl"
check "side by side: the same" same_set "$tmp/s.jsonl" "$tmp/j.jsonl"
go math -n 16 --samples 3 --attn streaming --budget 64 --limit 2 -o "$tmp/one.jsonl"
said() { sed -n 's/.*"index":\([01]\),"sample":\([0-9]\),"attn":"streaming".*"prediction":\("[^,]*\),.*/\1 \2 \3/p' "$1" | sort; }
said "$tmp/s.jsonl" >"$tmp/a"
said "$tmp/one.jsonl" >"$tmp/b"
check "alone: the same" test -s "$tmp/a" -a "$(cat "$tmp/a")" = "$(cat "$tmp/b")"
check "samples differ" test "$(cut -d ' ' -f 3- "$tmp/a" | sort -u | wc -l)" -gt 3
go math -n 16 --samples 3 --attn streaming --budget 64 --limit 2 --seed 7 -o "$tmp/seed.jsonl"
said "$tmp/seed.jsonl" >"$tmp/c"
check "another seed: other samples" test "$(cat "$tmp/b")" != "$(cat "$tmp/c")"
go math -n 8 --temp 0 --limit 1
out_has "1 generation each of at most 8 tokens, greedy" "temperature 0 is greedy"

# Cut in the middle of a line.
head -n 7 "$tmp/s.jsonl" >"$tmp/cut.jsonl"
sed -n 8p "$tmp/s.jsonl" | head -c 60 >>"$tmp/cut.jsonl"
go math -n 16 --samples 3 --attn full,streaming --budget 64 -o "$tmp/cut.jsonl"
check "a run that was ended continues to the same results" same_set "$tmp/s.jsonl" "$tmp/cut.jsonl"

# 3 of 8 samples are right: 37.5 %, pass@4 92.9 %.
go aime -n 4 --limit 1 -o "$tmp/p.jsonl"
head -n 1 "$tmp/p.jsonl" >"$tmp/said.jsonl"
for i in 0 1 2 3 4 5 6 7; do
    echo "{\"index\":0,\"sample\":$i,\"attn\":\"full\",\"budget\":null,\"answer\":{\"aime\":\"40\"},\"scores\":{\"aime\":$((i < 3))},\"stopped\":true,\"new_tokens\":2,\"seconds\":1.0,\"kv_bytes\":1,\"attended\":null}" >>"$tmp/said.jsonl"
done
go aime -n 4 --limit 1 -o "$tmp/said.jsonl"
has_row() { check "$1: $3" grep -qE "^ *$1 +($2)? +$3\$" "$tmp/out"; }
has_row aime 8 37.5
has_row pass@2 1 64.3
has_row pass@4 1 92.9
has_row "any of 8" 1 100.0
has_row "hit the limit" "" 0

# ---- the built-in model: loops, texts that end an answer ----

run eval gsm8k --quiet --limit 1 -n 512 -o "$tmp/l.jsonl"
check "a loop is seen, and the limit" grep -q '"new_tokens":512,"stopped":false.*"loop":true' "$tmp/l.jsonl"
run eval gsm8k --quiet --limit 1 -n 40 -o "$tmp/free.jsonl"
text() { sed -n 's/.*"prediction":"\(.*\)","gold".*/\1/p' "$1"; }
free=$(text "$tmp/free.jsonl")
stop=$(printf '%s\n' "$free" | grep -o '[a-z]\{4,\}' | sed -n 3p)
run eval gsm8k --quiet --limit 1 -n 40 --stop "$stop" -o "$tmp/stop.jsonl"
check "an answer ends before a text" test -n "$stop" -a "$(text "$tmp/stop.jsonl")" = "${free%%"$stop"*}"
check "and generation stops there" grep -q '"stopped":true' "$tmp/stop.jsonl"
check "before the limit" test "$(sed -n 's/.*"new_tokens":\([0-9]*\).*/\1/p' "$tmp/stop.jsonl")" -lt 40
refused 2 "'stop[0]' is " "another stop" eval gsm8k --limit 1 -n 40 --stop xyz -o "$tmp/stop.jsonl"

# ---- gpqa: the order of the choices ----

go gpqa --data "$data/gpqa.csv" --limit 3 -n 4 -o "$tmp/q1.jsonl"
orders() { sed -n 's/.*"index":\([0-9]\),"sample":\([0-9]\).*"gold":"\(.\)".*"order":\(\[[0-9,]*\]\).*/\2 \1 \3 \4/p' "$1" | sort; }
orders "$tmp/q1.jsonl" >"$tmp/a"
printf '%s\n' '0 0 B [3,0,2,1]' '0 1 D [3,1,2,0]' '0 2 A [0,1,3,2]' >"$tmp/b"
check "by the record's id, as CPython shuffles" cmp "$tmp/a" "$tmp/b"
go gpqa --data "$data/gpqa.csv" --rules simple_evals --samples 1 -n 4 -o "$tmp/q2.jsonl"
orders "$tmp/q2.jsonl" | cut -d ' ' -f 4 >"$tmp/a"
printf '%s\n' '[3,1,0,2]' '[3,1,2,0]' '[2,3,0,1]' '[2,0,3,1]' '[1,3,0,2]' >"$tmp/b"
check "by simple-evals' stream" cmp "$tmp/a" "$tmp/b"
go gpqa --data "$data/gpqa.csv" --rules simple_evals --samples 2 -n 4 -o "$tmp/q3.jsonl"
check "its second sample has another order" test "$(orders "$tmp/q3.jsonl" | cut -d ' ' -f 4 | sort -u | wc -l)" -gt 5

# ---- mmlu ----

go mmlu --data "$data/mmlu" --attn full,quest --budget 64 -o "$tmp/m.jsonl"
check "mmlu: a run" test "$(lines "$tmp/m.jsonl")" = 6
out_has "mmlu, rules official: 3 problems, 5 shots (0 prompts with fewer), protocol decode" "the head"
for word in likelihood plain_sums words; do out_has "$word" "the table has: $word"; done
check "every answer is a letter" test "$(grep -c '"prediction":"[^"]*[ABCD]"' "$tmp/m.jsonl")" = 6
check "questions are decoded" test "$(grep -c '"decoded_prompt_tokens":0' "$tmp/m.jsonl")" = 0
grep -v '"index":1,' "$tmp/m.jsonl" | sed '/"index":0,"sample":0,"attn":"quest"/d' >"$tmp/fresh.jsonl"
go mmlu --data "$data/mmlu" --attn full,quest --budget 64 -o "$tmp/fresh.jsonl"
check "a question that reuses the shots of the previous one: the same as alone" same_set "$tmp/m.jsonl" "$tmp/fresh.jsonl"
go mmlu --data "$data/mmlu" --protocol prefill -o "$tmp/mp.jsonl"
letters() { sed -n 's/.*"index":\([0-9]\).*"attn":"full".*"prediction":\("[^"]*"\).*"prompt_tokens":\([0-9]*\).*/\1 \2 \3/p' "$1" | sort; }
letters "$tmp/m.jsonl" >"$tmp/a"
letters "$tmp/mp.jsonl" >"$tmp/b"
check "full attention chooses the same from prompts of the same length" cmp "$tmp/a" "$tmp/b"
go mmlu --data "$data/mmlu" --shots 1 --protocol prefill -o "$tmp/m1.jsonl"
check "fewer shots: shorter prompts" test "$(letters "$tmp/m1.jsonl" | head -n 1 | cut -d ' ' -f 3)" -lt "$(head -n 1 "$tmp/b" | cut -d ' ' -f 3)"
go mmlu --data "$data/mmlu" --max-length 160
out_has "(2 prompts with fewer)" "what is too long has fewer shots"

# ---- bad input ----

bad() { # bad TASK NAME LINE TEXT WHAT
    printf '%s\n' "$3" >"$tmp/$2"
    refused 1 "$4" "$5" eval "$1" -m "$m" --data "$tmp/$2"
}
bad gsm8k b.jsonl '{"question":"q"}' "b.jsonl line 1: 'answer': expected a string" "no answer"
bad gsm8k b.jsonl '{"question":"q","answer":[1]}' "b.jsonl line 1: 'answer': expected a string or a whole number" "a list"
bad math b.json '[{"problem":"p","answer":"1"},{"problem":7,"answer":"1"}]' "b.json record 2: 'problem': expected a string" "an array"
bad math b.jsonl '{"problem":"p","answer":"1","level":[]}' "'level': expected a string or a whole number" "a level"
bad aime b.jsonl '{"problem":"p","answer":"x"}' "'answer' is 'x', expected a whole number" "an answer that is no number"
bad gpqa b.csv 'Question,Correct Answer
"a' "b.csv line 2: unterminated quoted field" "quotes that do not end"
bad gpqa b.csv 'Question,Correct Answer
a' "b.csv line 2: 1 fields, expected 2" "a row that is too short"
bad gpqa b.csv 'Question,Correct Answer
"a"b,c' "b.csv line 2: text after a quoted field" "text after quotes"
bad gpqa b.jsonl '{"Question":"q","Correct Answer":"a","Incorrect Answer 1":"b","Incorrect Answer 2":"c","Incorrect Answer 3":"d"}' \
    "record 1: 'Record ID' is missing" "no id to take the order from"
bad mmlu x_test.csv 'q,1,2,3,4,E' "'answer' is 'E', expected A, B, C or D" "a letter that there is not"
bad mmlu b.jsonl '{"question":"q","subject":"s","choices":["a"],"answer":0}' "'choices': expected a list of four texts" "one choice"
bad mmlu x_dev.csv 'q,1,2,3,4,A' "--data: shots, but no problems" "shots alone"
: >"$tmp/empty.jsonl"
refused 1 "empty.jsonl: no problems" "nothing" eval aime -m "$m" --data "$tmp/empty.jsonl"
refused 2 "expected a file, not a folder" "a folder" eval gsm8k -m "$m" --data "$tmp"
refused 2 "--rules: 'bax' is not one of: boxed logquant" "rules that there are not" eval gsm8k --rules bax
refused 2 "--rules lmeval: requires --train FILE" "rules with shots, without them" eval gsm8k --rules lmeval
refused 2 "--train: --rules boxed draws no shots" "shots of other rules" eval gsm8k --train "$own/gsm8k.jsonl"
refused 2 "--train: only 3 questions; --rules lmeval draws 5" "too few of them" eval gsm8k --rules lmeval --train "$own/gsm8k.jsonl"
refused 1 "empty.jsonl: no problems" "none" eval gsm8k --rules lmeval --train "$tmp/empty.jsonl"
refused 2 "did you mean 'boxed'" "and the nearest ones" eval gsm8k --rules boxd
refused 2 "--samples 2: all samples are the same at temperature 0" "many equal samples" eval gsm8k --samples 2
refused 2 "--temp 200: must be in [0, 100]" "a temperature" eval math --temp 200
refused 2 "--fix-commas: requires --rules logquant" "commas of other rules" eval gsm8k --fix-commas
refused 2 "the window has 100" "a prompt beyond the window" eval gsm8k -m "$m" --ctx 100 -n 50
finish
