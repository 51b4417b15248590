# SPDX-License-Identifier: MIT
# eval score with the rules for long outputs: the examples of doc/evals.md 17 and others, line by line.
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
score_refused gpqa '{"prediction":"(A)","answers":["E"]}' "the answer 'E' is none of A, B, C, D" "a label that is no letter"
score_refused aime '{"prediction":"\\boxed{1}","answers":["x"]}' "the answer 'x' is no whole number" "a label that is no number"
printf '{"prediction":"\\\\boxed{25}","answers":[25]}\n' | "$RUN" eval score aime >"$tmp/out"
check "a number for a label" grep -qx 1 "$tmp/out"
deep=$(printf '%4000s' '' | tr ' ' '(')
printf '{"prediction":"%s","answers":["(%s"]}\n' "$deep" "$deep" | "$RUN" eval score math >"$tmp/out"
check "an expression that is too deep is unequal" grep -qx 0 "$tmp/out"
finish
