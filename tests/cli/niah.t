# SPDX-License-Identifier: MIT
# eval niah: a needle at every depth of every length, in texts of one's own, and what is wrong.
# shellcheck disable=SC2086 # variables hold lists of arguments
. "$SRCDIR/tests/cli/lib.sh"
. "$SRCDIR/tests/cli/resume.sh"
niah() { run eval niah --threads 1 --gemm builtin --quiet "$@"; }
cases="--ctx 256,512 --trials 6 --attn full,streaming,quest --budget 64"
field() { sed -n "s/.*\"ctx\":$2,.*\"attn\":\"$3\".*\"$4\":\([^,}]*\).*/\1/p" "$1"; }

niah $cases -o "$tmp/whole.jsonl" --json "$tmp/r.json"
check "a run" test "$status" -eq 0
out_has "protocol decode, wrap template, seed 42, skip 0" "the head says how"
out_has "512 tokens                   6" "a line for each length"
out_has "  depth 80 to 100 %          2" "and for its depths"
check "a line for each trial" test "$(wc -l <"$tmp/whole.jsonl")" -eq 37
check "depths from 0 to 100" test "$(field "$tmp/whole.jsonl" 256 full depth | tr '\n' ' ')" = "0.0 20.0 40.0 60.0 80.0 100.0 "
check "prompts fill the length" test "$(field "$tmp/whole.jsonl" 512 full prompt_tokens | sort -n | head -n 1)" -gt 416
check "and not more, with their answer" test "$(field "$tmp/whole.jsonl" 512 full prompt_tokens | sort -n | tail -n 1)" -le 480
check "the model finds the needle" test "$(field "$tmp/whole.jsonl" 256 full found | grep -c true)" -ge 5
check "streaming finds what is near the end alone" test "$(field "$tmp/whole.jsonl" 512 streaming found | tr '\n' ' ')" = "false false false false false true "
check "the report has depths" grep -q '"depths": \[' "$tmp/r.json"
head -n 9 "$tmp/whole.jsonl" >"$tmp/part.jsonl"
niah $cases --jobs 4 -o "$tmp/part.jsonl"
check "a run that was ended continues to the same results" same_set "$tmp/whole.jsonl" "$tmp/part.jsonl"
niah --ctx 256 --trials 1 --attn full --protocol prefill -o "$tmp/one.jsonl"
check "one trial is in the middle" test "$(field "$tmp/one.jsonl" 256 full depth)" = 50.0
check "prefill feeds nothing token by token" test "$(field "$tmp/one.jsonl" 256 full decoded_prompt_tokens)" = 0

# Texts of one's own; a chat template.
echo "The lamp costs 70123 pounds." >"$tmp/needle"
echo "Question: How much does the lamp cost? Answer:" >"$tmp/question"
yes "The road is long. The rain falls." | head -n 30 >"$tmp/haystack"
own="--needle $tmp/needle --question $tmp/question --haystack $tmp/haystack"
niah --ctx 700 --trials 3 --attn full $own --key "70123 pounds" -o "$tmp/own.jsonl"
check "a needle of one's own, in a text that is too short and begins again" test "$status" -eq 0
check "what is hidden is in the configuration" grep -q '"needle":"The lamp costs 70123 pounds."' "$tmp/own.jsonl"
check "and what is to be found" grep -q '"key":"70123 pounds"' "$tmp/own.jsonl"
check "half of the key is half a score" grep -q '"score":0.5,"found":false' "$tmp/own.jsonl"
run eval niah -m "$models/llama31-f32-tied" --threads 1 --gemm builtin --quiet --ctx 400 --trials 2 --attn full -o "$tmp/chat.jsonl"
out_has "wrap template" "in a chat"
run eval niah -m "$models/llama31-f32-tied" --threads 1 --gemm builtin --quiet --ctx 400 --trials 2 --attn full --wrap raw -o "$tmp/raw.jsonl"
check "the question's tail has the template's end" \
    test "$(field "$tmp/chat.jsonl" 400 full decoded_prompt_tokens | head -n 1)" -gt "$(field "$tmp/raw.jsonl" 400 full decoded_prompt_tokens | head -n 1)"

refused 2 "--needle and --question: one requires the other" "a needle without a question" eval niah --needle "$tmp/needle"
refused 2 "--key: requires --needle FILE" "a key without a needle" eval niah --key x
refused 2 "--ctx 32: too short; the answer alone takes 32 tokens" "a length without room" eval niah --ctx 32
refused 2 "--ctx 40: too short; at least" "a length for no prompt" eval niah --ctx 40
: >"$tmp/empty"
refused 1 "--haystack " "an empty haystack" eval niah --haystack "$tmp/empty"
refused 1 "the file is empty" "an empty needle" eval niah --needle "$tmp/empty" --question "$tmp/question"
refused 1 "no-such-file" "a file that is not there" eval niah --haystack "$tmp/no-such-file"
refused 2 "the model has no chat template" "a template that is not there" eval niah -m "$models/llama-dynamic-f32" --wrap template
finish
