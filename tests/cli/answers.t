# SPDX-License-Identifier: MIT
# eval score with the rules for long outputs: the examples of doc/evals.md 17 and others; scripts/score.
. "$SRCDIR/tests/cli/lib.sh"
data="$SRCDIR/tests/data/reason"

for f in "$data"/*.jsonl; do
    metric=$(basename "$f" .jsonl)
    "$RUN" eval score "$metric" <"$f" >"$tmp/out" 2>"$tmp/err"
    sed 's/^{"score": \([01]\).*/\1/' "$f" >"$tmp/want"
    check "$metric: $(wc -l <"$f") answers" cmp "$tmp/out" "$tmp/want"
done
score_refused() { # score_refused METRIC LINE TEXT NAME
    printf '%s\n' "$2" | "$RUN" eval score "$1" >"$tmp/out" 2>"$tmp/err"
    status=$?
    is_refusal 1 "$3" "$4"
}
score_refused gpqa '{"prediction":"(A)","answers":["E"]}' "the answer 'E' is not A, B, C or D" "a label that is no letter"
printf '{"prediction":"\\\\boxed{25}","answers":[25]}\n' | "$RUN" eval score aime >"$tmp/out"
check "a number for a label" grep -qx 1 "$tmp/out"
for metric in math_hendrycks math_lmeval math_kvpress aime aime_tests aime_lmeval aime_kvpress; do
    "$RUN" eval score "$metric" <"$data/math.jsonl" >"$tmp/out" 2>"$tmp/err"
    sed 's/^{"score": \([01]\).*/\1/' "$data/math.jsonl" >"$tmp/want"
    check "$metric: the rule of math" cmp "$tmp/out" "$tmp/want"
done

# ---- scripts/score ----

grade() { ran "${PYTHON:-python3}" "$SRCDIR/scripts/score" "$@"; } # grade ARGS...: as run of lib.sh
has_package() {
    "${PYTHON:-python3}" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)" 2>/dev/null
}
cat >"$tmp/math.jsonl" <<'EOF'
{"kvasir": "eval math", "config": {}}
{"index": 0, "sample": 0, "attn": "full", "budget": null, "prediction": "so \\boxed{\\frac{\\sqrt{3}}{3}}", "gold": "\\frac{1}{\\sqrt{3}}"}
{"index": 1, "sample": 0, "attn": "full", "budget": null, "prediction": "hence $x=2$", "gold": "2"}
{"index": 1, "sample": 0, "attn": "quest", "budget": 64, "prediction": "hence $x=2$", "gold": "3"}
EOF
echo '{"kvasir": "eval gsm8k", "config": {}}' >"$tmp/gsm8k.jsonl"
if ! command -v "${PYTHON:-python3}" >/dev/null; then
    skip "python3 is not installed"
else
    grade
    check "scripts/score: no file" test "$status" = 2
    grade --help
    out_has "math-verify (default)" "scripts/score --help"
    if has_package math_verify; then
        grade "$tmp/math.jsonl"
        out_has "full                            -        2        2         100.00" "math-verify: equal expressions"
        out_has "quest                          64        1        0           0.00" "math-verify: a wrong answer"
        grade "$tmp/gsm8k.jsonl"
        is_refusal 1 "results of \`eval gsm8k\`" "results of another evaluation"
    else
        grade "$tmp/math.jsonl"
        is_refusal 1 "math-verify is not installed; pip install math-verify" "scripts/score: no grader"
        skip "math-verify is not installed"
    fi
    if has_package lm_eval && has_package datasets; then
        grade --grader lm-eval --lines "$tmp/math.jsonl"
        check "lm-eval: strings" test "$(sed 's/.*"score": //' "$tmp/out" | tr -d '\n')" = "0}1}0}"
        sed 's/eval math/eval aime/' "$tmp/math.jsonl" >"$tmp/aime.jsonl"
        grade --grader lm-eval "$tmp/aime.jsonl"
        out_has "full                            -        2        1          50.00" "lm-eval: its aime"
    else
        skip "lm-eval is not installed"
    fi
fi
finish
