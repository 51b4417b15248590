# SPDX-License-Identifier: MIT
# eval score and eval longbench --score: stored predictions, without a model.
. "$SRCDIR/tests/cli/lib.sh"

score() { # score METRIC [OPTION]: reads predictions from standard input
    "$RUN" eval score "$@" >"$tmp/out" 2>"$tmp/err"
    status=$?
}
same() { # same NAME: the output is standard input
    cat >"$tmp/want"
    check "$1" cmp "$tmp/out" "$tmp/want"
}

printf '%s\n' '{"prediction":"The Eiffel Tower, in Paris.","answers":["none","Eiffel Tower"]}' '' \
    '{"prediction":"yes\nno","answers":["no yes"]}' '{"prediction":"","answers":["x"]}' >"$tmp/in"
score qa_f1 --mean <"$tmp/in"
same "one score a line, and the mean" <<'EOF'
0.66666666666666663
1
0
mean 0.55555555555555547
EOF
score rouge_zh <<'EOF'
{"prediction":"我爱北京天安门","answers":["我爱北京"]}
EOF
same "Chinese words" <<'EOF'
0.85714285224489806
EOF
score qa_f1 </dev/null
check "nothing in, nothing out" test "$status" -eq 0 -a ! -s "$tmp/out"
echo '{"prediction":"x"}' | score qa_f1
err_has "standard input line 1: 'answers'" "a field is missing"
score math_find --mean <<'EOF'
{"prediction":"about 3.5 or 4","answers":3.5}
{"prediction":"5.0","answers":[5]}
{"prediction":"5","answers":[5.0]}
EOF
same "InfiniteBench: numbers for answers" <<'EOF'
1
0
1
mean 0.66666666666666663
EOF
echo '{"prediction":"C","answers":"foo"}' | score longbook_choice_eng
err_has "standard input line 1: longbook_choice_eng: expected two answers" "the letter is missing"
echo '{"prediction":"C","answers":true}' | score passkey
err_has "standard input line 1: 'answers'" "neither text nor number"
echo '{"prediction":"x","answers":["y"],"random_string_to_prepend":7}' | score mrcr
err_has "standard input line 1: 'random_string_to_prepend'" "a beginning that is no text"
refused 2 "supported: qa_f1" "no metric" eval score
refused 2 "rouge-l: unknown metric" "an unknown metric" eval score rouge-l
refused 2 "did you mean 'passkey'" "a near one" eval score paskey
refused 1 "no predictions" "a mean of nothing" eval score rouge --mean
refused 2 "--json" "a report of scores" eval score rouge --json "$tmp/r.json"

cat >"$tmp/qasper.jsonl" <<'EOF'
{"pred": "a b", "answers": ["b"], "all_classes": null, "length": 3999}
{"pred": "c", "answers": ["c"], "all_classes": null, "length": 4000}
{"pred": "d", "answers": ["x", "d e"], "all_classes": null, "length": 7999}
{"pred": "x y", "answers": ["y"], "all_classes": null, "length": 8000}
{"pred": "q", "answers": ["z"], "all_classes": null, "length": 12}
EOF
run eval longbench --score "$tmp/qasper.jsonl"
same "the official result.json" <<'EOF'
{
    "qasper": 66.67
}
EOF
run eval longbench --score "$tmp/qasper.jsonl" -E
same "and that of LongBench-E" <<'EOF'
{
    "qasper": {
        "0-4k": 50.0,
        "4-8k": 83.33,
        "8k+": 66.67
    }
}
EOF
head -n 1 "$tmp/qasper.jsonl" >"$tmp/2wikimqa_e.jsonl"
run eval longbench --score "$tmp/2wikimqa_e.jsonl" --e
out_has '"8k+": NaN' "an empty range is no number"
cp "$tmp/qasper.jsonl" "$tmp/mine.jsonl"
run eval longbench --score "$tmp/mine.jsonl" --dataset triviaqa
out_has '"triviaqa": 66.67' "the named dataset"
refused 2 "nearest name is" "the file's name is no dataset" eval longbench --score "$tmp/mine.jsonl"
refused 2 "nearest name is hotpotqa" "a wrong name" eval longbench --score "$tmp/mine.jsonl" --dataset hotpot
refused 1 "No such file" "no file" eval longbench --score "$tmp/lcc.jsonl"
refused 1 "line 1: classification" "no classes" eval longbench --score "$tmp/mine.jsonl" --dataset trec
echo '{"pred":"x","answers":[]}' >"$tmp/lcc.jsonl"
refused 1 "lcc.jsonl line 1: 'answers'" "no answers" eval longbench --score "$tmp/lcc.jsonl"
finish
