# SPDX-License-Identifier: MIT
# eval ruler: prompts byte for byte those of the official generator; runs that are ended; what is refused.
# shellcheck disable=SC2086 # variables hold lists of arguments
. "$SRCDIR/tests/cli/lib.sh"
. "$SRCDIR/tests/cli/resume.sh"
data="$SRCDIR/tests/data/ruler"
shared="${KVASIR_DATA:-$SRCDIR/../shared/data}"

# verdicts: a test for each line of the comparison.
verdicts() {
    sed 's/^/# /' "$tmp/why"
    while read -r verdict name; do check "$name" test "$verdict" = ok; done <"$tmp/verdicts"
}
if perl -MJSON::PP -MDigest::SHA -e 1 2>/dev/null; then
    QA="$data" RUN="$RUN" perl "$data/compare.pl" "$tmp" "$data/dev_ws.jsonl" >"$tmp/verdicts" 2>"$tmp/why"
    check "prompts of stored records were compared" test "$(wc -l <"$tmp/verdicts")" -eq 2
    verdicts
    mkdir "$tmp/old"
    QA="$data" ESSAYS="$SRCDIR/eval/pg19/10146.txt" RUN="$RUN" perl "$data/compare.pl" "$tmp/old" "$data/dev_2024.jsonl" \
        >"$tmp/verdicts" 2>"$tmp/why"
    check "and those of 2024" test "$(wc -l <"$tmp/verdicts")" -eq 5
    verdicts
else
    skip "perl with JSON::PP and Digest::SHA is not there"
fi
if perl -MJSON::PP -MDigest::SHA -e 1 2>/dev/null && command -v xz >/dev/null && [ -d "$shared/ruler" ]; then
    for t in llama3 qwen; do
        mkdir "$tmp/$t"
        xz -dc "$shared/tokenizers/$t/tokenizer.json.xz" >"$tmp/$t/tokenizer.json"
    done
    xz -dc "$shared/books/wilde-the-picture-of-dorian-gray.txt.xz" >"$tmp/essays.txt"
    mkdir "$tmp/all"
    QA="$shared/ruler/qa" TOKENIZERS="$tmp" ESSAYS="$tmp/essays.txt" RUN="$RUN" perl "$data/compare.pl" "$tmp/all" \
        "$shared/ruler/dev_ws.jsonl" "$shared/ruler/dev_llama3.jsonl" "$shared/ruler/dev_more.jsonl" \
        >"$tmp/verdicts" 2>"$tmp/why"
    check "all records were compared" test "$(grep -c . "$tmp/verdicts")" -ge 8
    verdicts
else
    skip "no real data (KVASIR_DATA or ../shared/data), perl or xz"
fi

# Runs.
m="$models/llama31-f32-tied"
ruler() { # ruler ARGS...: a run with a small model
    run eval ruler -m "$m" --threads 1 --gemm builtin --quiet "$@"
}
cases="--task niah_single_1,fwe --length 700,800 --samples 3 --attn full,quest --budget 64,128"
ruler $cases -o "$tmp/whole.jsonl" --json "$tmp/r.json"
check "a run" test "$status" -eq 0
for word in "RULER: template base, protocol prefill, answer prefix on, seed 42, skip 0" "700 tokens" "800 tokens" \
    "  niah_single_1              3" "  mean of 2 of 13 tasks" "tokens attended"; do
    out_has "$word" "the table has '$word'"
done
check "a head and a line for each sample and row" test "$(wc -l <"$tmp/whole.jsonl")" -eq $((1 + 2 * 2 * 3 * 3))
longest=$(sed -n 's/.*"length":700.*"prompt_tokens":\([0-9]*\).*/\1/p' "$tmp/whole.jsonl" | sort -n | tail -n 1)
check "prompts and answers fill the length ($longest)" test "$longest" -le 651 -a "$longest" -gt 540
check "the report is JSON" grep -q '"task": "fwe"' "$tmp/r.json"
head -n 20 "$tmp/whole.jsonl" >"$tmp/part.jsonl"
ruler $cases --jobs 3 -o "$tmp/part.jsonl"
check "a run that was ended continues to the same results" same_set "$tmp/whole.jsonl" "$tmp/part.jsonl"
ruler --length 3k --samples 1 --squad "$data/squad.json"
for word in "not run without --essays FILE: niah_single_2 niah_single_3 niah_multikey_1 niah_multivalue niah_multiquery" \
    "not run without --hotpotqa FILE: qa_2" "  qa_1                       1" "  mean of 6 of 13 tasks" \
    "not run: vt: the example has 579 tokens with this tokenizer; RULER allows 500"; do
    out_has "$word" "without some data: '$word'"
done
ruler --task niah_single_1 --length 700 --samples 2 --variant 2024 -o "$tmp/old.jsonl"
out_has "RULER of 2024: template base" "the older prompts run too"
refused 2 "'variant' is \"2024\" in the file, \"2025\" now" "the two do not mix" eval ruler -m "$m" --threads 1 --gemm builtin \
    --task niah_single_1 --length 700 --samples 2 -o "$tmp/old.jsonl"
ruler --task niah_single_1 --length 700 --samples 2 --protocol decode -o "$tmp/decode.jsonl"
check "the question goes through the decode path" test "$(grep -c '"decoded_prompt_tokens":[1-9]' "$tmp/decode.jsonl")" -eq 2
check "with the text after it" test "$(sed -n 's/.*"decoded_prompt_tokens":\([0-9]*\),.*/\1/p' "$tmp/decode.jsonl" | sort -n | tail -n 1)" -lt 200
sed 1d "$tmp/whole.jsonl" | "$RUN" eval score ruler_all >"$tmp/scores" 2>"$tmp/err"
check "eval score reads the lines of results" test "$(wc -l <"$tmp/scores")" -eq 36

head -c 3000 "$SRCDIR/eval/pg19/10146.txt" >"$tmp/essay.txt"
run eval ruler --task niah_single_2 --length 4k --samples 1 --variant 2024 --essays "$tmp/essay.txt" --write "$tmp/essay"
words=$(wc -w <"$tmp/essay.txt")
check "no more words of an essay than it has ($words)" test "$(wc -w <"$tmp/essay/niah_single_2.jsonl")" -lt $((words + 100))

# The 13 tasks: results as a run would have left them, so that no answer is missing.
all="--tokens ws --length 1k,1200 --samples 1 --essays $SRCDIR/eval/pg19/10146.txt --squad $data/squad.json --hotpotqa $data/hotpotqa.json"
killed "$tmp/all.jsonl" 1 eval ruler -m "$m" --threads 1 --gemm builtin --quiet $all
head -n 1 "$tmp/all.jsonl" >"$tmp/known.jsonl"
for t in niah_single_1 niah_single_2 niah_single_3 niah_multikey_1 niah_multikey_2 niah_multikey_3 niah_multivalue \
    niah_multiquery vt cwe fwe qa_1 qa_2; do
    for length in 1024:0.925 1200:0.5; do
        printf '{"task":"%s","length":%s,"index":0,"attn":"full","budget":null,"prediction":"","answers":["x"],"score":%s,"seconds":0,"kv_bytes":0,"attended":null}\n' \
            $t ${length%:*} ${length#*:}
    done
done >>"$tmp/known.jsonl"
ruler $all -o "$tmp/known.jsonl" --json "$tmp/r.json"
for word in "  average                         92.50" "  average                         50.00" "  average                         71.25" \
    "  effective length                 1024"; do
    out_has "$word" "all tasks: '$word'"
done
check "means are of 13 tasks" test "$(grep -c '"tasks": 13' "$tmp/r.json")" -eq 2
check "nothing was left out" grep -q '"not_run": \[\]' "$tmp/r.json"

# Files of prompts.
run eval ruler --task fwe,vt --length 1k,1200 --samples 2 --write "$tmp/prompts"
check "a folder for each length" test -s "$tmp/prompts/1024/fwe.jsonl" -a -s "$tmp/prompts/1200/vt.jsonl"
check "a line for each sample" test "$(wc -l <"$tmp/prompts/1024/vt.jsonl")" -eq 2
mkdir "$tmp/tokenizer"
cp "$SRCDIR"/model/demo/tokenizer* "$tmp/tokenizer/"
works "a tokenizer is enough" eval ruler --task fwe --length 1k --samples 1 -m "$tmp/tokenizer" --write "$tmp/few"
head -n 1 "$tmp/prompts/1024/fwe.jsonl" >"$tmp/first"
check "the first samples do not depend on their number" cmp "$tmp/first" "$tmp/few/fwe.jsonl"

# Prompts that are there already.
predictions() { sed -n 's/.*"task":"\([a-z_0-9]*\)".*"index":\([0-9]*\),"attn":"\([a-z]*\)","budget":\([0-9a-z]*\),\("prediction":.*\),"prompt_tokens".*/\1 \2 \3 \4 \5/p' "$@" | sort; }
run eval ruler --task niah_single_1,fwe --length 700 --samples 3 -m "$m" --write "$tmp/made"
ruler --data "$tmp/made" --attn full,quest --budget 64,128 -o "$tmp/data.jsonl"
check "a folder of prompts runs" test "$status" -eq 0
out_has "RULER: template as in the data" "and says so"
out_has "not run: vt: --data has no samples of vt" "with what is not in it"
grep '"length":700' "$tmp/whole.jsonl" >"$tmp/of700"
predictions "$tmp/of700" >"$tmp/a"
predictions "$tmp/data.jsonl" >"$tmp/b"
check "answers are those of prompts that are made" test "$(wc -l <"$tmp/a")" -eq 18 -a "$(cmp "$tmp/a" "$tmp/b" 2>&1)" = ""
mkdir "$tmp/fwe"
cp "$tmp/made/fwe.jsonl" "$tmp/fwe/validation.jsonl"
ruler --data "$tmp/fwe/validation.jsonl" --samples 2
out_has "  fwe                        2" "RULER's own folders"
printf '{"context":"Some text. The number is 5. ","question":"Question: what is the number?","answer_prefix":"Answer:","answer":["5"],"task":"qa_1","max_new_tokens":7}\n' >"$tmp/kvpress.jsonl"
ruler --data "$tmp/kvpress.jsonl" --protocol decode -o "$tmp/k.jsonl"
out_has "  qa_1                       1" "kvpress's columns"
check "with their own number of new tokens" grep -q '"new_tokens":7,' "$tmp/k.jsonl"
# kvpress drops control characters: a reference may lie around a newline. The built-in model writes some.
begin='It was a dark night. CHAPTER II\n\nThe old house' asks=' Question: what'
kvpress() { printf '{"context":"%s","question":"%s","answer_prefix":" Answer:","answer":["%s"],"task":"niah_single_1"}\n' "$begin" "$asks" "$1"; }
kvpress x >"$tmp/k1.jsonl"
run eval ruler --data "$tmp/k1.jsonl" --quiet --threads 1 --gemm builtin -o "$tmp/k1.out"
around=$(sed -n 's/.*"prediction":"[^"]*[^a-z]\([a-z][a-z]*\)\\n\([a-z][a-z]*\).*/\1\2/p' "$tmp/k1.out")
kvpress "$around" >"$tmp/k2.jsonl"
printf '{"input":"%s%s\\n","outputs":["%s"],"answer_prefix":" Answer:","task":"niah_single_1"}\n' "$begin" "$asks" "$around" >"$tmp/k3.jsonl"
for k in 2 3; do run eval ruler --data "$tmp/k$k.jsonl" --quiet --threads 1 --gemm builtin -o "$tmp/k$k.out"; done
said() { sed -n 's/.*"prediction":"\([^"]*\)".*/\1/p' "$1"; }
check "kvpress's columns are scored as kvpress does ($around)" sh -c "test -n '$around' && grep -q '\"score\":1.0' '$tmp/k2.out'"
check "RULER's own are not, with the same answer" test "$(said "$tmp/k2.out")" = "$(said "$tmp/k3.out")" -a "$(grep -c '"score":0.0' "$tmp/k3.out")" = 1
refused 2 "--length: not supported with --data" "lengths of data" eval ruler --data "$tmp/made" --length 4k
refused 2 "--variant: not supported with --data" "a variant of data" eval ruler --data "$tmp/made" --variant 2024
run eval ruler --task vt,fwe --length 1k --samples 2 --variant 2024 --write "$tmp/old"
check "files of 2024 have prompt and answer prefix in one" sh -c "grep -q 'they are: \"' '$tmp/old/vt.jsonl' && ! grep -q answer_prefix '$tmp/old/vt.jsonl'"
ruler --data "$tmp/old" -m "$m"
out_has "  vt                         2" "and run as data"
refused 1 "no file vt.jsonl" "a task that is not there" eval ruler --data "$tmp/made" --task vt
refused 2 "no samples of the tasks of --task" "nor in a file" eval ruler --data "$tmp/kvpress.jsonl" --task vt
cp "$tmp/made/fwe.jsonl" "$tmp/what.jsonl"
refused 1 "what.jsonl line 1: 'task' is missing" "a file that tells no task" eval ruler --data "$tmp/what.jsonl"
echo '{"input":"x","outputs":[1],"task":"fwe"}' >"$tmp/what.jsonl"
refused 1 "what.jsonl line 1: 'outputs': expected a string or a list of strings" "answers that are none" eval ruler --data "$tmp/what.jsonl"
echo '{"input":"x","outputs":"1","task":"few"}' >"$tmp/what.jsonl"
refused 1 "'task': 'few' is not a dataset of RULER; the nearest name is fwe" "a task that is none" eval ruler --data "$tmp/what.jsonl"

# Refused options.
refused 2 "--task: 'vq' is not a dataset of RULER; the nearest name is vt" "a wrong task" eval ruler --task vq
refused 2 "--task: qa_1 requires --squad FILE" "a task without its data" eval ruler --task qa_1
refused 2 "did you mean 'meta-llama3'" "a wrong template" eval ruler --template meta-lama3
refused 2 "--variant: '2023' is not one of: 2025 2024" "a wrong variant" eval ruler --variant 2023
refused 2 "--length 100: too short for cwe; the shortest prompt and its new tokens take" "a length that is too short, as of 2024" eval ruler --task cwe --length 100 --variant 2024
refused 2 "--words: '3' is not one of: 3.0.1 2.2.0" "wrong words" eval ruler --words 3
refused 2 "--tokens: 'x' is not one of" "wrong tokens" eval ruler --tokens x
refused 2 "--answer-prefix: 'no' is not one of: on off" "a wrong answer prefix" eval ruler --answer-prefix no
refused 2 "--length: duplicate length 4096" "a length twice" eval ruler --length 4k,4096
refused 2 "--length 100: too short for niah_single_1; the shortest prompt and its new tokens take" "a length that is too short" eval ruler --task niah_single_1 --length 100
refused 1 "vt: the example has 579 tokens with this tokenizer; RULER allows 500" "a tokenizer that vt's example is too long for" eval ruler -m "$m" --task vt
refused 2 "--length 240: too short for fwe; at least 250 tokens" "the same with invented words" eval ruler --task fwe --length 240
refused 2 "--seed 4294967296: must be at most 4294967295" "a seed that NumPy does not take" eval ruler --seed 4294967296 --task vt
refused 2 "--samples 17: --hotpotqa has only 16 questions" "more samples than questions" eval ruler --task qa_2 --hotpotqa "$data/hotpotqa.json" --samples 17
refused 2 "including those of --pre-samples" "or than are left" eval ruler --task qa_2 --hotpotqa "$data/hotpotqa.json" --samples 8 --pre-samples 9
refused 2 "--write: runs no model and does not support -o" "results of prompts" eval ruler --write "$tmp/x" -o "$tmp/y"
refused 1 "not a JSON object" "a file of the other format" eval ruler --task qa_1 --squad "$data/hotpotqa.json"
refused 1 "squad.json: expected a list" "and the other way round" eval ruler --task qa_2 --hotpotqa "$data/squad.json"
printf '{"data":[{"paragraphs":[{"context":"c","qas":[{"question":"q","is_impossible":false,"answers":[]}]}]}]}' >"$tmp/q.json"
refused 1 "q.json: article 1, paragraph 1: 'answers': expected a non-empty list" "a question without answers" eval ruler --task qa_1 --squad "$tmp/q.json"
printf '[{"question":"q","answer":"a","context":[["t","x"]]}]' >"$tmp/h.json"
refused 1 "h.json: question 1: 'context': expected lists of a title and a list of sentences" "a document that is none" eval ruler --task qa_2 --hotpotqa "$tmp/h.json"
printf 'a \377 b' >"$tmp/e.txt"
refused 1 "e.txt: not UTF-8: byte 2" "essays that are no UTF-8" eval ruler --task niah_single_2 --essays "$tmp/e.txt"
printf '{"txt":"a"}' >"$tmp/e.json"
refused 1 "e.json: 'text': expected a string" "essays without text" eval ruler --task niah_single_2 --essays "$tmp/e.json"
check "nothing was left of what was refused" test ! -e "$tmp/x"
finish
