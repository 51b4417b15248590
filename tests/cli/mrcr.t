# SPDX-License-Identifier: MIT
# eval mrcr: conversations in JSON lines and CSV, bins of needles and lengths, and data that is wrong.
. "$SRCDIR/tests/cli/lib.sh"
. "$SRCDIR/tests/cli/resume.sh"
m="$models/llama31-f32-tied"
mrcr() { run eval mrcr -m "$m" --threads 1 --gemm builtin --quiet --ctx 4096 "$@"; }
own="$SRCDIR/eval/mrcr/samples.jsonl"

mrcr --attn full,streaming --skip 0 --budget 64 -o "$tmp/whole.jsonl" --json "$tmp/r.json"
check "a run" test "$status" -eq 0
out_has "MRCR: 4 samples (0 too long for the window)" "all samples"
out_has "2 needles" "by needles"
out_has "  under 4k tokens" "and lengths"
check "a line for each sample and strategy" test "$(wc -l <"$tmp/whole.jsonl")" -eq 9
check "the report has bins" grep -q '"to": 4096' "$tmp/r.json"
check "prompts are whole conversations in the chat template" grep -q '"wrap":"template"' "$tmp/whole.jsonl"
head -n 4 "$tmp/whole.jsonl" >"$tmp/part.jsonl"
mrcr --attn full,streaming --skip 0 --budget 64 -o "$tmp/part.jsonl"
check "an interrupted run continues to the same results" same_results "$tmp/whole.jsonl" "$tmp/part.jsonl"
mrcr --wrap raw --limit 1
check "without a template" test "$status" -eq 0
long=$(sed -n 's/.*"prompt_tokens":\([0-9]*\).*/\1/p' "$tmp/whole.jsonl" | sort -n | tail -n 1)
mrcr --max-length $((long - 1)) --attn full -o "$tmp/short.jsonl"
out_has "MRCR: 3 samples (1 too long" "what does not fit is left out, not cut"
new_tokens() { sed -n '1s/.*"new_tokens":\([0-9]*\).*/\1/p' "$1"; }
check "answers are as long with --max-length" test "$(new_tokens "$tmp/short.jsonl")" = "$(new_tokens "$tmp/whole.jsonl")"
refused 2 "all 4 prompts have more than the" "a window for none of them" eval mrcr -m "$m" --ctx 300

# Scores, by a file of answers: the mean of each number of needles and each length.
{
    head -n 1 "$tmp/whole.jsonl" | sed 's/full","params":[^}]*}/&/'
    for i in 0 1 2 3; do
        for attn in '"full","budget":null' '"streaming","budget":64'; do
            echo "{\"dataset\":\"mrcr\",\"index\":$i,\"attn\":$attn,\"score\":0.${i}5,\"seconds\":1.0,\"kv_bytes\":1,\"attended\":null}"
        done
    done
} >"$tmp/said.jsonl"
mrcr --attn full,streaming --skip 0 --budget 64 -o "$tmp/said.jsonl"
check "2 needles" grep -qE '^2 needles +2 +10.00 +10.00$' "$tmp/out"
check "4 needles" grep -qE '^4 needles +2 +30.00 +30.00$' "$tmp/out"

# Version 2.
printf 'queries,answer\r\n"User: write, ""please"".\nAssistant:",kL0aZ9qX1vab an answer\r\n' >"$tmp/mrcr_8needle_x.csv"
mrcr --data "$tmp/mrcr_8needle_x.csv" --attn full -o "$tmp/v2.jsonl"
check "CSV" test "$status" -eq 0
out_has "8 needles" "the file's name tells how many needles"
out_has ", temperature 1, seed 42" "its answers are drawn"
mrcr --data "$tmp/mrcr_8needle_x.csv" --attn full,streaming --budget 4000 --seed 7 -o "$tmp/seven.jsonl"
said() { sed -n 's/.*"prediction":\("[^"]*"\).*/\1/p' "$1"; }
check "by the seed" test "$(said "$tmp/v2.jsonl")" != "$(said "$tmp/seven.jsonl" | head -n 1)"
check "the same for all strategies" test "$(said "$tmp/seven.jsonl" | uniq | wc -l)" -eq 1
mrcr --data "$tmp/mrcr_8needle_x.csv" --attn full --temp 0 -o "$tmp/greedy.jsonl"
check "temperature 0 is greedy" grep -q '"temp":0.0' "$tmp/greedy.jsonl"
refused 2 "'temp' is 1.0 in the file, 0.0 now" "the two do not mix" eval mrcr -m "$m" --threads 1 --gemm builtin --ctx 4096 \
    --data "$tmp/mrcr_8needle_x.csv" --attn full --temp 0 -o "$tmp/v2.jsonl"
refused 2 "samples of version 2 use temperature 1" "nor do the versions" eval mrcr -m "$m" --ctx 4096 --data "$own,$tmp/mrcr_8needle_x.csv"
refused 2 "--temp -1" "a temperature" eval mrcr --temp -1
printf 'queries,answer,n_needles\na,b,4\n' >"$tmp/mrcr_8needle_y.csv"
mrcr --data "$tmp/mrcr_8needle_y.csv" --attn full
out_has "4 needles" "or a column"

# Bad input.
bad() { # bad LINE TEXT NAME
    { head -n 1 "$own" && printf '%s\n' "$1"; } >"$tmp/bad.jsonl"
    refused 1 "bad.jsonl line 2: $2" "$3" eval mrcr --data "$tmp/bad.jsonl"
}
good='"answer":"a","random_string_to_prepend":"a"'
bad "{$good" "not valid JSON" "no JSON"
bad "{$good}" "'prompt': expected a list of messages" "no conversation"
bad "{$good,\"prompt\":\"[1\"}" "'prompt': expected the JSON text of a list" "half of one"
bad "{$good,\"prompt\":[{\"role\":\"poet\",\"content\":\"x\"}]}" "'prompt': message 1: 'role' must be" "a role"
bad "{$good,\"prompt\":[{\"role\":\"user\"}]}" "'prompt': message 1 has no text" "no text"
bad '{"prompt":[],"answer":"a"}' "'random_string_to_prepend': expected a string" "no beginning"
bad '{"answer":""}' "'answer' is empty" "no answer"
bad "{$good,\"n_needles\":0}" "'n_needles': expected a whole number" "no needles"
csv() { # csv TEXT MESSAGE NAME
    # shellcheck disable=SC2059
    printf "$1" >"$tmp/bad.csv"
    refused 1 "bad.csv$2" "$3" eval mrcr --data "$tmp/bad.csv"
}
csv 'queries,answer\na,b\n"c' " line 3: unterminated quoted field" "a quote without an end"
csv 'queries,answer\n"a"b,c\n' " line 2: text after a quoted field" "text after a quote"
csv 'queries,answer\na\n' " line 2: 1 fields, expected 2" "a field is missing"
csv 'queries,queries\na,b\n' " line 1: column 2 has a duplicate name" "two columns of one name"
csv 'queries,answer\na,\377\n' " line 2: field 2 is not UTF-8" "bytes that are no UTF-8"
csv '\n' ": no samples" "an empty file"
csv 'queries,answer\n' ": no samples" "columns alone"
csv 'answer\nb\n' " line 2: 'random_string_to_prepend': expected a string" "no prompt"
refused 1 "a folder, expected files" "a folder" eval mrcr --data "$tmp"
finish
