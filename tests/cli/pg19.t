# SPDX-License-Identifier: MIT
# eval pg19: tables, curves, files of results, a run that is killed, bad input.
# shellcheck disable=SC2086 # variables hold lists of arguments
. "$SRCDIR/tests/cli/lib.sh"
. "$SRCDIR/tests/cli/resume.sh"
m="$models/llama31-f32-tied"

# Books: a text, lines, another text; the order is that of the names as strings.
book() { head -c "$2" "$SRCDIR/eval/pg19/10146.txt" | tail -c "$1"; } # bytes, the end of them
quoted() { book "$1" "$2" | tr '\n' ' ' | tr -d '"'; }
mkdir "$tmp/books"
book 900 900 >"$tmp/books/9.txt"
book 700 2000 >"$tmp/books/10.txt"
{
    printf '{"short_book_title":"A Title, \\"quoted\\"","publication_date":1908,"url":"u","text":"%s"}\n' "$(quoted 400 3000)"
    printf '\n{"text":"%s"}\n' "$(quoted 350 4000)"
} >"$tmp/books/2.jsonl"

pg() { # pg ARGS...
    run eval pg19 -m "$m" --threads 1 --gemm builtin --quiet "$@"
}

cases="--data $tmp/books --limit 9 --ctx 400 --attn full,streaming,quest --budget 32,64 --skip 0"
pg $cases -o "$tmp/whole.jsonl" --csv "$tmp/r.csv" --json "$tmp/r.json"
check "a run" test "$status" -eq 0
check "a head and a line for each book and strategy" test "$(wc -l <"$tmp/whole.jsonl")" -eq $((1 + 4 * 5))
out_has "pg19: 4 books together, token by token" "a table of all books"
out_has "one chunked pass: log-likelihoods" "full attention is computed in two ways"
cp "$tmp/out" "$tmp/table"
check "order of books" sh -c "grep -o '\"data\":.*' '$tmp/whole.jsonl' | grep -o '\"name\":\"[^\"]*\"' | tr '\n' ' ' | grep -q '10.txt\" .*2.jsonl:1\" .*2.jsonl:3\" .*9.txt'"
out_has 'pg19: A Title, "quoted"' "a title"
check "the CSV has it in quotes" grep -qF '2.jsonl:1,"A Title, ""quoted""",full,,128,' "$tmp/r.csv"
check "points: 128, 256, 384, the end" test "$(grep -c '^10.txt,10,quest,64,' "$tmp/r.csv")" -eq 4
check "and all books together" test "$(grep -c '^all,all books,streaming,32,' "$tmp/r.csv")" -eq 4
check "the report is JSON" grep -q '"all": \[' "$tmp/r.json"
# By its definition: exp of the mean over all tokens of all books.
mean=$(sed -n 's/.*"budget":null.*"tokens":\([0-9]*\),"nll":\([0-9.]*\),.*/\1 \2/p' "$tmp/whole.jsonl" | awk '{ n += $1; s += $2 } END { printf "%.4f", exp(s / n) }')
check "the mean over all tokens" sh -c "grep -A9 'together, token' '$tmp/out' | grep '^full ' | grep -qF ' $mean '"
check "a text in the budget is full attention's" sh -c "grep -q '\"attn\":\"quest\".*\"attended\":3' '$tmp/whole.jsonl'"

# After a prompt.
pg --data "$tmp/books" --limit 1 --ctx 200 --prompt 100 --attn full,snapkv --budget 40 --skip 0 -o "$tmp/p.jsonl"
check "a prompt" test "$status" -eq 0
out_has "perplexity of the first L tokens after a prompt of 100" "a table with a prompt"
check "the value of its last token and of those after it" grep -q '"attn":"full".*"tokens":101,' "$tmp/p.jsonl"
check "what chooses at its end has chosen" sh -c "grep -q '\"attn\":\"snapkv\".*\"chunked_ppl\":null' '$tmp/p.jsonl'"
refused 2 "'prompt'" "another prompt" eval pg19 -m "$m" --gemm builtin --data "$tmp/books" --limit 1 --ctx 200 --prompt 90 \
    --attn full,snapkv --budget 40 --skip 0 -o "$tmp/p.jsonl"
refused 2 "--prompt 0: must be at least 1" "an empty prompt" eval pg19 -m "$m" --prompt 0
refused 2 "--prompt 300: must be less than --ctx 300" "a prompt of all" eval pg19 -m "$m" --data "$tmp/books" --ctx 300 --prompt 300
refused 2 "--prompt: not supported by --protocol window" "a prompt of windows" eval pg19 -m "$m" --protocol window --prompt 3

# Killed at several moments.
killed "$tmp/part.jsonl" "1 2 6 7 11" eval pg19 -m "$m" --threads 1 --gemm builtin --quiet $cases
printf '{"book":0,"at' >>"$tmp/part.jsonl"
pg $cases -o "$tmp/part.jsonl"
check "the last run ends" test "$status" -eq 0
check "with the results of an undisturbed one" same_set "$tmp/whole.jsonl" "$tmp/part.jsonl"
sed '/tokens\/s/d' "$tmp/out" >"$tmp/b"
sed '/tokens\/s/d' "$tmp/table" >"$tmp/a"
check "and its tables" cmp "$tmp/a" "$tmp/b"
cp "$tmp/part.jsonl" "$tmp/copy.jsonl"
pg $cases -o "$tmp/part.jsonl" --csv "$tmp/again.csv"
check "nothing is left to do" cmp "$tmp/part.jsonl" "$tmp/copy.jsonl"
check "the same CSV" cmp "$tmp/r.csv" "$tmp/again.csv"
p="eval pg19 -m $m --gemm builtin $cases -o $tmp/part.jsonl"
refused 2 "'lengths[0]' is 400 in the file, 300 now" "another length" $p --ctx 300
refused 2 "'seed' is 42 in the file, 7 now" "another seed" $p --seed 7
refused 2 "'data[" "other books" $p --limit 2
refused 2 "'protocol' is \"decode\" in the file" "another protocol" eval pg19 -m "$m" --gemm builtin --data "$tmp/books" --limit 9 \
    --attn full,streaming,quest --budget 32,64 --skip 0 -o "$tmp/part.jsonl" --protocol window --max-length 400
check "a refused run leaves the file alone" cmp "$tmp/part.jsonl" "$tmp/copy.jsonl"

# Both ways to compute full attention must agree: here by what a file says.
sed 's/"chunked_rms":[0-9][-e0-9.]*/"chunked_rms":0.005/' "$tmp/part.jsonl" >"$tmp/wrong.jsonl"
pg $cases -o "$tmp/wrong.jsonl"
check "decode path and chunked pass differ: status 1" test "$status" -eq 1
err_has "full: book 10.txt: the log-likelihoods token by token and in one chunked pass are 5.0e-03 apart; the limit is 4e-03" "and the reason"
out_has "4 books together" "below the tables"

# The limit follows from what is rounded, at each level and over few tokens.
agrees() { # agrees LIMIT ARGS...
    limit=$1
    shift
    for level in generic amx-emulated ""; do
        KVASIR_CPU=$level run eval pg19 --data "$tmp/books/9.txt" --ctx 80 --threads 1 --quiet "$@"
        check "both paths agree: $* $level" test "$status" -eq 0
        check "within $limit" sh -c "tr '\n' ' ' <'$tmp/out' | tr -s ' ' | grep -qF '; limit $limit)'"
    done
}
agrees 1e-04 -m "$m" --gemm builtin --kv f32
agrees 4e-03 -m "$m" --gemm builtin
agrees 1e-01 --gemm builtin --kv q8
agrees 1e-01
agrees 5e-01 --weights q8
agrees 5e-01 --weights q4

# Windows.
pg --data "$tmp/books" --limit 2 --protocol window --max-length 64,128 --stride 32 --attn full,streaming:prefill=banded:budget=16 \
    -o "$tmp/w.jsonl" --csv "$tmp/w.csv"
check "windows" test "$status" -eq 0
out_has "windows every 32 tokens" "say their stride"
check "a line for each book, strategy and length" test "$(wc -l <"$tmp/w.jsonl")" -eq $((1 + 2 * 2 * 2))
mean=$(sed -n 's/.*"budget":null,"length":64,.*"windows":\([0-9]*\),"loss":\([0-9.]*\),.*/\1 \2/p' "$tmp/w.jsonl" | awk '{ n += $1; s += $2 } END { printf "%.4f", exp(s / n) }')
check "the mean over windows" sh -c "grep '^full ' '$tmp/out' | grep -qF ' $mean '"
check "what a strategy does to prompts is seen" sh -c "awk -F, '\$1 == \"all\" && \$5 == 64 { print \$6 }' '$tmp/w.csv' | sort -u | wc -l | grep -qx 2"
pg --data "$tmp/books" --protocol window --max-length 64 --stride 63 --tokens 63
cp "$tmp/out" "$tmp/one"
pg --data "$tmp/books" --protocol truncate --max-length 64
check "one window is one window" test "$(grep '^full' "$tmp/one")" = "$(grep '^full' "$tmp/out")"

# Files that cannot be written.
refused 1 "No such file" "no folder for the CSV" eval pg19 -m "$m" --csv "$tmp/no/r.csv"
refused 1 "No such file" "no folder for results" eval pg19 -m "$m" --ctx 8 -o "$tmp/no/r.jsonl"
if (trap '' XFSZ && ulimit -f 2) 2>/dev/null; then
    (trap '' XFSZ && ulimit -f 6 && "$RUN" eval pg19 -m "$m" --threads 1 --quiet $cases -o "$tmp/full.jsonl" >"$tmp/out" 2>"$tmp/err" </dev/null)
    check "no room: status 1" test $? -eq 1
    err_has "full.jsonl: File too large" "and the reason"
    check "no line is broken" test "$(tail -c 1 "$tmp/full.jsonl" | od -An -c | tr -d ' ')" = '\n'
else
    skip "no limit of file sizes"
fi

# Bad input.
bad() { # bad CONTENT FILE TEXT NAME
    # shellcheck disable=SC2059
    printf "$1" >"$tmp/$2"
    refused 1 "$3" "$4" eval pg19 -m "$m" --limit 9 --data "$tmp/$2"
}
bad 'one\ntwo \377 three\n' b.txt "b.txt: not UTF-8: byte 8 (0xff), line 2" "bytes that are no UTF-8"
bad 'cut \342\202' b.txt "b.txt: not UTF-8: byte 4 (0xe2), line 1" "half a character at the end"
bad '' b.txt "b.txt: the text is empty" "an empty text"
bad '{"text":"some text"}\n{"text":' b.jsonl "b.jsonl line 2: not valid JSON" "no JSON"
bad '{"text":"some \377 text"}\n' b.jsonl "b.jsonl line 1: not valid JSON" "no UTF-8 in JSON"
bad '{"text":"some text"}\n\n{"title":"x"}\n' b.jsonl "b.jsonl line 3: 'text': expected a string" "no text"
bad '{"text":["x"]}\n' b.jsonl "b.jsonl line 1: 'text': expected a string" "a text that is a list"
bad '{"text":""}\n' b.jsonl "b.jsonl line 1: the text is empty" "an empty field"
bad '{"text":"some text","short_book_title":3}\n' b.jsonl "line 1: 'short_book_title': expected a string" "a title that is a number"
bad '\n \n' b.jsonl "b.jsonl: no line with a book" "no lines"
printf 'a' >"$tmp/b.txt"
refused 1 "b.txt: the text is too short" "one token without BOS" eval pg19 -m "$models/qwen2-yarn-f32" --data "$tmp/b.txt"
works "one token after BOS is a text" eval pg19 -m "$m" --data "$tmp/b.txt" --protocol truncate
printf 'some text' >"$tmp/c.txt"
refused 2 "c.txt duplicates the text of" "a book twice" eval pg19 -m "$m" --limit 9 --data "$tmp/c.txt,$tmp/c.txt"
refused 1 "No such file" "no file" eval pg19 -m "$m" --data "$tmp/none.txt"
mkdir "$tmp/empty"
refused 1 "no .txt or .jsonl file" "an empty folder" eval pg19 -m "$m" --data "$tmp/empty"
refused 2 "unknown protocol 'both'" "a wrong protocol" eval pg19 -m "$m" --protocol both
refused 2 "--stride 0: must be at least 1" "no stride" eval pg19 -m "$m" --protocol window --stride 0
refused 2 "would leave gaps" "a stride beyond the window" eval pg19 -m "$m" --protocol window --max-length 64 --stride 64
refused 2 "--stride: not supported by --protocol decode" "a stride without windows" eval pg19 -m "$m" --stride 3
refused 2 "takes its length from --ctx" "--max-length without windows" eval pg19 -m "$m" --max-length 64
refused 2 "takes its length from --max-length" "--ctx with windows" eval pg19 -m "$m" --protocol truncate --ctx 64
refused 2 "--ctx 0: must be at least 1" "no length" eval pg19 -m "$m" --ctx 0
refused 2 "--ctx: expected one length" "several lengths" eval pg19 -m "$m" --ctx 64,128
refused 2 "duplicate length 64" "a length twice" eval pg19 -m "$m" --protocol truncate --max-length 64,64
refused 2 "--tokens 1: must be at least 2" "too few tokens" eval pg19 -m "$m" --protocol window --tokens 1
refused 2 "budget" "a budget that is too small" eval pg19 -m "$m" --attn quest --budget 2
run eval pg19 -m "$m" --ctx 600 --data "$tmp/books"
err_has "warning: --ctx 600 exceeds the model's max_position_embeddings of 512" "beyond the model's window: a warning"
check "and a result" test "$status" -eq 0
finish
