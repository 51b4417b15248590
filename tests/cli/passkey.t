# SPDX-License-Identifier: MIT
# passkey: files of results, a run that is killed again and again, trials side by side.
# shellcheck disable=SC2086 # variables hold lists of arguments
. "$SRCDIR/tests/cli/lib.sh"
. "$SRCDIR/tests/cli/resume.sh"
m="$models/llama31-f32-tied"
cases="passkey -m $m --ctx 512,640 --attn full,streaming,quest --budget 64 --trials 5 --threads 1 --gemm builtin --quiet"

same_report() { grep -v '"seconds"' "$1" >"$tmp/a" && grep -v '"seconds"' "$2" >"$tmp/b" && cmp "$tmp/a" "$tmp/b"; }

run $cases --json "$tmp/none.json"
cp "$tmp/out" "$tmp/table"
works "a run" $cases -o "$tmp/whole.jsonl" --json "$tmp/whole.json"
check "a head and a line for each trial, length and strategy" test "$(wc -l <"$tmp/whole.jsonl")" -eq $((1 + 5 * 2 * 3))
check "its table is that of a run without a file" cmp "$tmp/out" "$tmp/table"
check "and so is its report" same_report "$tmp/none.json" "$tmp/whole.json"
check "no path of this machine is in it" test "$(grep -cF "$SRCDIR" "$tmp/whole.jsonl")" -eq 0
check "a line has everything" grep -qE '^\{"ctx":640,"trial":4,"attn":"quest","budget":64,"depth":100.0,"key":[0-9]+,"reply":".*","correct":(true|false),"prompt_tokens":[0-9]+,"decoded_prompt_tokens":[1-9][0-9]*,"new_tokens":[0-9]+,"seconds":[0-9.e-]+,"kv_bytes":[1-9]' "$tmp/whole.jsonl"

# Killed at several moments: after each of these numbers of lines, wherever the program is then.
killed "$tmp/part.jsonl" "1 2 9 16 22" $cases
check "killed: the beginning of a file" test "$(wc -l <"$tmp/part.jsonl")" -ge 1
printf '{"ctx":640,"tri' >>"$tmp/part.jsonl"
works "the last run ends" $cases -o "$tmp/part.jsonl" --json "$tmp/part.json"
check "with the results of an undisturbed one" same_results "$tmp/whole.jsonl" "$tmp/part.jsonl"
check "and its table" cmp "$tmp/out" "$tmp/table"
check "and its report" same_report "$tmp/whole.json" "$tmp/part.json"
cp "$tmp/part.jsonl" "$tmp/copy.jsonl"
run $cases -o "$tmp/part.jsonl"
check "nothing is left to do" cmp "$tmp/part.jsonl" "$tmp/copy.jsonl"
check "the table is there all the same" cmp "$tmp/out" "$tmp/table"

run $cases --jobs 3 -o "$tmp/jobs.jsonl" --json "$tmp/jobs.json"
check "side by side: the same results" same_set "$tmp/whole.jsonl" "$tmp/jobs.jsonl"
check "the same table" cmp "$tmp/out" "$tmp/table"
check "and the same report" same_report "$tmp/whole.json" "$tmp/jobs.json"

# Another configuration; and files that are none of ours.
refused 2 "'seed' is 42 in the file, 7 now" "another seed" $cases -o "$tmp/part.jsonl" --seed 7
refused 2 "'ctx[1]' is 640 in the file, 600 now" "other lengths" $cases -o "$tmp/part.jsonl" --ctx 512,600
refused 2 "'runs[1].params' is" "another budget" $cases -o "$tmp/part.jsonl" --budget 70
# Through drafts: the same replies, with their counts.
replies() { sed '1d; s/.*"trial":\([0-9]*\).*"reply":\(.*\),"correct".*/\1 \2/' "$1"; }
plain="passkey -m $SRCDIR/model/demo --ctx 512 --attn full --trials 3 --threads 1 --quiet --skip 0"
run $plain -o "$tmp/plain.jsonl"
replies "$tmp/plain.jsonl" >"$tmp/replies"
for draft in ngram:adapt=off "fier:budget=64:skip=0:adapt=off --draft-weights q4 --no-weights-cache"; do
    rm -f "$tmp/draft.jsonl"
    run $plain -o "$tmp/draft.jsonl" --draft $draft
    replies "$tmp/draft.jsonl" >"$tmp/drafted"
    check "--draft $draft: the same replies" sh -c "test -s '$tmp/replies' && cmp '$tmp/replies' '$tmp/drafted'"
    check "and the counts" test "$(grep -cE '"draft":\{"spec":.*"accepted":[1-9]' "$tmp/draft.jsonl")" -eq 3
done
check "with the weights of drafts" grep -q '"weights":"q4","weights_bytes":' "$tmp/draft.jsonl"
refused 2 "'draft' is " "other drafts" $plain -o "$tmp/draft.jsonl" --draft ngram
refused 2 "--jobs 2: not supported with --draft" "drafts side by side" $plain --draft ngram --jobs 2
refused 1 "quest: selects tokens in each step" "what cannot verify" passkey -m "$m" --ctx 512 --attn quest --draft ngram
refused 2 "--draft-weights q4: requires --draft" "weights of no drafts" $plain --draft-weights q4
refused 2 "unknown option '--draft'" "an evaluation that generates nothing" eval pg19 --draft ngram
# A strategy that hears the question: only where prompts ask first, and with a weight.
blocks=actqkv:sink=4:local=32:window=16:block=4:budget=60
for first in '' --ask-first; do
    run passkey -m "$m" --ctx 512 --attn "$blocks,$blocks:question=4" --trials 4 --threads 1 --gemm builtin --quiet $first -o "$tmp/q$first.jsonl"
    for row in $blocks $blocks:question=4; do
        grep "\"attn\":\"$row\"" "$tmp/q$first.jsonl" | sed 's/.*"reply":\(.*\),"correct".*/\1/' >"$tmp/$row$first"
    done
done
check "a question at the end changes nothing" cmp "$tmp/$blocks" "$tmp/$blocks:question=4"
differ() { ! cmp -s "$1" "$2"; }
check "one before the text does" differ "$tmp/$blocks--ask-first" "$tmp/$blocks:question=4--ask-first"
check "refused runs leave the file alone" cmp "$tmp/part.jsonl" "$tmp/copy.jsonl"
finish
