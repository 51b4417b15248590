# SPDX-License-Identifier: MIT
# eval longbench: the table, files of results, templates, and data that is wrong. tests/cli/passkey.t has runs that are killed.
# shellcheck disable=SC2086 # variables hold lists of arguments
. "$SRCDIR/tests/cli/lib.sh"
. "$SRCDIR/tests/cli/resume.sh"
m="$models/llama31-f32-tied"
own="$SRCDIR/eval/longbench/samples.jsonl"

lb() { # lb ARGS...: a run with a small model and a window that its prompts fit
    run eval longbench -m "$m" --threads 1 --gemm builtin --ctx 8192 --quiet "$@"
}

cases="--dataset qasper,trec,samsum,vcsum,lcc --attn full,streaming,quest --budget 64,128"
lb $cases -o "$tmp/whole.jsonl" --json "$tmp/r.json"
check "a run" test "$status" -eq 0
n_lines=$(wc -l <"$tmp/whole.jsonl")
check "a head and a line for each sample and strategy" test "$n_lines" -eq $((1 + 5 * $(grep -c '"dataset": "qasper"' "$own") * 5))
out_has "single-doc QA" "the official groups"
out_has "average of datasets" "and the average"
check "the report is JSON" grep -q '"averages"' "$tmp/r.json"

lb $cases --jobs 3 -o "$tmp/jobs.jsonl"
check "side by side: the same results" same_set "$tmp/whole.jsonl" "$tmp/jobs.jsonl"
head -n 9 "$tmp/whole.jsonl" >"$tmp/part.jsonl"
lb $cases -o "$tmp/part.jsonl"
check "an interrupted run continues to the same results" same_results "$tmp/whole.jsonl" "$tmp/part.jsonl"

# Another configuration.
lb --dataset qasper -o "$tmp/one.jsonl"
cp "$tmp/one.jsonl" "$tmp/copy.jsonl"
sed 's/"backend":"/"backend":"another /' "$tmp/one.jsonl" >"$tmp/machine.jsonl"
refused 2 "'backend' is \"another" "another instruction set" eval longbench -m "$m" --ctx 8192 --gemm builtin --dataset qasper -o "$tmp/machine.jsonl"
one="eval longbench -m $m --ctx 8192 --gemm builtin --dataset qasper -o $tmp/one.jsonl"
refused 2 "'seed' is 42 in the file, 7 now" "another seed" $one --seed 7
refused 2 "'wrap' is" "another wrap" $one --wrap double-bos --template llama3
refused 2 "'limit' is null in the file, 1 now" "another number of samples" $one --limit 1
refused 2 "'runs[0].attn' is \"full\" in the file" "another strategy" $one --attn quest --budget 64
refused 2 "'max_length' is 7500 in the file, 100 now" "other prompts" $one --max-length 100
sed 's/sample/Sample/' "$own" >"$tmp/other.jsonl"
refused 2 "'data[0].name' is" "other data" $one --data "$tmp/other.jsonl"
sed 's/prompts.json":"..../prompts.json":"0000/' "$tmp/one.jsonl" >"$tmp/old.jsonl"
refused 2 "'tables.longbench/prompts.json' is \"0000" "other templates" eval longbench -m "$m" --ctx 8192 --gemm builtin --dataset qasper -o "$tmp/old.jsonl"
check "a refused run leaves the file alone" cmp "$tmp/one.jsonl" "$tmp/copy.jsonl"

# -E, limits, draws.
lb --dataset qasper -E
out_has "0-4k" "-E gives ranges of lengths"
refused 2 "narrativeqa is not in LongBench-E" "a dataset that -E has not" eval longbench -m "$m" -E --dataset narrativeqa
lb --limit 1
out_has "21 samples" "one sample of each dataset"
lb --protocol decode --dataset hotpotqa -o "$tmp/decode.jsonl"
check "the question is decoded" grep -q '"decoded_prompt_tokens":[1-9]' "$tmp/decode.jsonl"
lb --max-length 50 --dataset qasper -o "$tmp/cut.jsonl"
check "what is cut says so" grep -q '"truncated":true' "$tmp/cut.jsonl"

# Templates of one's own.
cp "$SRCDIR/eval/longbench/prompts.json" "$tmp/mine.json"
lb --dataset qasper -o "$tmp/official.jsonl"
lb --dataset qasper --prompts "$tmp/mine.json" -o "$tmp/mine.jsonl"
out_has "prompts mine.json" "a run with a file of templates says so"
check "the official templates as a file: the same answers" same_answers "$tmp/official.jsonl" "$tmp/mine.jsonl"
check "the file's name and sum are in the results" grep -q '"prompts":"mine.json","prompts_sha256":"[0-9a-f]\{64\}"' "$tmp/mine.jsonl"
echo '{"qasper": "{input} {context} {input} {", "elsewhere": 5}' >"$tmp/mine.json"
lb --dataset qasper --prompts "$tmp/mine.json" -o "$tmp/short.jsonl"
tokens() { sed -n 's/.*"prompt_tokens":\([0-9]*\).*/\1/p' "$1" | head -n 1; }
check "shorter templates give shorter prompts" test "$(tokens "$tmp/short.jsonl")" -lt "$(tokens "$tmp/official.jsonl")"
refused 2 "'prompts_sha256' is" "another file of this name" eval longbench -m "$m" --threads 1 --gemm builtin --ctx 8192 --dataset qasper --prompts "$tmp/mine.json" -o "$tmp/mine.jsonl"
bad_prompts() { # bad_prompts JSON TEXT NAME
    printf '%s\n' "$1" >"$tmp/mine.json"
    refused 1 "mine.json: $2" "$3" eval longbench -m "$m" --ctx 8192 --dataset qasper --prompts "$tmp/mine.json"
}
bad_prompts '{"qasper": 7}' "'qasper': found a number, expected a template" "a template that is none"
bad_prompts '{"qasper": "{input}"}' "'qasper': the template lacks {context}" "a template without the context"
bad_prompts '{"qasper": "{context}{question}"}' "'qasper': unknown field {question}; supported fields: {context} {input}" "a field that is none"
bad_prompts '{"qaspar": "{context}"}' "no template for data set 'qasper' (did you mean 'qaspar'?)" "a name that is near"
bad_prompts '["{context}"]' "the top level is not a JSON object" "a list"
bad_prompts '{"qasper": "{context}"' "not valid JSON: line " "no JSON"
bad_prompts '{"qasper": "{context}", "qasper": "{context}"}' "not valid JSON: line 1" "a name twice"
refused 1 "No such file" "no file" eval longbench -m "$m" --ctx 8192 --prompts "$tmp/none.json"
refused 2 "--score: not supported with --prompts" "--score with prompts" eval longbench --score x.jsonl --prompts y

# Bad input.
bad() { # bad LINE TEXT NAME
    printf '%s\n' '{"input":"q","context":"c","answers":["a"],"length":1,"dataset":"qasper"}' "$1" >"$tmp/qasper.jsonl"
    refused 1 "qasper.jsonl line 2: $2" "$3" eval longbench -m "$m" --ctx 8192 --data "$tmp/qasper.jsonl"
}
bad '{"input":"q"' "not valid JSON" "no JSON"
bad '{"context":"c","answers":["a"]}' "'input'" "no input"
bad '{"input":"q","answers":["a"]}' "'context'" "no context"
bad '{"input":"q","context":"c","answers":[]}' "'answers'" "no answers"
bad '{"input":"q","context":"c","answers":["",""]}' "'answers': every answer is empty" "empty answers"
bad '{"input":"q","context":"c","answers":["a"],"dataset":"hotpotqa"}' "'dataset' is hotpotqa in a file of qasper" "a line of another dataset"
bad '{"input":"q\u0000","context":"c","answers":["a"]}' "'input' holds the character U+0000" "a NUL"
printf '{"input":"q","context":"\377","answers":["a"]}\n' >"$tmp/qasper.jsonl"
refused 1 "line 1: not valid JSON" "bytes that are no UTF-8" eval longbench -m "$m" --ctx 8192 --data "$tmp/qasper.jsonl"
: >"$tmp/qasper.jsonl"
refused 1 "no samples" "an empty file" eval longbench -m "$m" --ctx 8192 --data "$tmp/qasper.jsonl"
echo '{"input":"q","context":"c","answers":["a"],"dataset":"quasper"}' >"$tmp/mine.jsonl"
refused 1 "line 1: 'dataset': 'quasper' is not a dataset of LongBench; the nearest name is qasper" "no dataset" eval longbench -m "$m" --data "$tmp/mine.jsonl"
mkdir "$tmp/dir"
refused 1 "no file of a dataset" "an empty folder" eval longbench -m "$m" --data "$tmp/dir"
refused 2 "nearest name is qasper" "a wrong name" eval longbench -m "$m" --dataset quasper
refused 2 "the window has 600" "prompts beyond the window" eval longbench -m "$m" --ctx 600 --max-length 590 --dataset gov_report
for data in qasper lcc; do
    drafted="eval longbench -m $m --ctx 8192 --dataset $data --limit 2 --threads 1 --quiet"
    run $drafted -o "$tmp/plain-$data.jsonl"
    run $drafted -o "$tmp/draft-$data.jsonl" --draft ngram:adapt=off,full --draft-weights q8 --no-weights-cache
    for f in plain draft; do sed '1d; s/"seconds":.*//' "$tmp/$f-$data.jsonl" >"$tmp/$f"; done
    check "--draft, $data: the same answers" sh -c "test -s '$tmp/plain' && cmp '$tmp/plain' '$tmp/draft'"
    check "with its counts" test "$(grep -c '"draft":{"spec":"ngram:adapt=off,full"' "$tmp/draft-$data.jsonl")" -eq 2
done
refused 2 "--wrap: 'chat'" "a wrong wrap" eval longbench -m "$m" --wrap chat
refused 2 "--clean-up" "a wrong switch" eval longbench -m "$m" --clean-up maybe
refused 2 "--protocol" "a wrong protocol" eval longbench -m "$m" --protocol both
refused 2 "--limit" "a seed without a limit" eval longbench -m "$m" --sample-seed 3
refused 2 "--score: not supported with --data" "--score with samples" eval longbench --score x.jsonl --data y
finish
