# SPDX-License-Identifier: MIT
# scripts/report: tables of small files whose means and intervals are known, pictures, bad input.
. "$SRCDIR/tests/cli/lib.sh"
PYTHON=${PYTHON:-python3}
"$PYTHON" -c 1 2>/dev/null || skip_all "python3 is missing"
d="$SRCDIR/tests/data/report"

report() { ran "$PYTHON" "$SRCDIR/scripts/report" "$@"; } # report ARGS...: as run of lib.sh
wrong() { refused_by report "$@"; } # wrong STATUS TEXT NAME ARGS...: as refused of lib.sh

# Wilson's intervals of 16 of 16, 8 of 16, 10 of 20 and 2 of 20. An average of two columns is as far from its limits as
# the root of the sum of both columns' squared distances, halved.
report "$d/longbench.jsonl"
check "tables" test "$status" -eq 0
check "nothing on standard error" test ! -s "$tmp/err"
out_has "| full | 100.00 [80.6, 100.0] | 50.00 [29.9, 70.1] | 75.00 [61.1, 85.0] |" "scores of 100 %: the interval is not a point"
out_has "| quest 64 | 50.00 [28.0, 72.0] | 10.00 [2.8, 30.1] | 30.00 [18.4, 44.9] |" "means, intervals, and that of the average"
out_has "SHA-256 aaaaaaaaaaaa" "the model is named"
out_has "| quest 64 | 36 | 64.0 | 2.00 | 0.00 | 0.500 |" "costs"
cp "$tmp/out" "$tmp/first"
report "$d/longbench.jsonl"
check "the same files give the same intervals" cmp "$tmp/out" "$tmp/first"
report "$d/passkey.jsonl"
out_has "| streaming 64 | 10.00 [2.8, 30.1] | 10.00 [2.8, 30.1] | 10.00 [4.9, 24.2] |" "two lengths"
out_has "| strategy | 1k | 2k | average |" "lengths are columns"
# Two books: a quarter of the resamples has the better one twice, a quarter the other.
report "$d/pg19.jsonl"
out_has "| 28.28 [20.0, 40.0] |" "perplexity over books, and its interval"
grep -v '"book":1' "$d/pg19.jsonl" >"$tmp/one.jsonl"
report "$tmp/one.jsonl"
out_has "| 24.00 |" "one book has no interval"
report "$d/recall.json"
out_has "| quest 64 | 1k | 64.0 | 0.4000 | 0.5000 | - |" "recall: mean over the layers that are not dense"
# 10 of 20: Wilson's interval of tests/unit/test_stats.c; E(4) = 1 + (10 + 8 + 6 + 4) / 20.
report "$d/accept.json"
out_has "| quest 64 | 0 | 20 | 0.5000 [0.299, 0.701] | 0.7500 | 2.5 | 2.400 |" "accepted drafts"
out_has "| full | 0 | 20 | 1.0000 [0.839, 1.000] | 1.0000 | - | 5.000 |" "without a difference there is no run"
check "a strategy that did not run is missing" sh -c "! grep -q h2o '$tmp/out'"
sed 's/"n": 20, "right": \[10, /"n": 30, "right": [10, /' "$d/accept.json" >"$tmp/accept.json"
report "$d/accept.json" "$d/accept.json"
err_has "counted once" "the same text twice counts once"
out_has "| quest 64 | 0 | 20 | 0.5000 [" "and has the numbers of one"
with_text() { # with_text FILE SHA256 CTX: the results, of a text with a name
    sed "s/\"results\":/\"options\": {\"text_sha256\": \"$2\", \"seed\": 42}, \"results\":/; s/\"n\": 20/\"by_context\": [$3], &/" "$d/accept.json" >"$tmp/$1"
}
with_text one.json aa '{"ctx": 512}'
sed 's/\[10, 8/[11, 8/' "$tmp/one.json" >"$tmp/again.json"
report "$tmp/one.json" "$tmp/again.json"
out_has "| quest 64 | 0 | 20 | 0.5000 [" "so does a text by its sum"
with_text other.json bb '{"ctx": 512}'
report "$tmp/one.json" "$tmp/other.json"
out_has "| quest 64 | 0 | 40 | 0.5000 [" "another text adds to it"
with_text longer.json aa '{"ctx": 1024}'
report "$tmp/one.json" "$tmp/longer.json"
out_has "| quest 64 | 0 | 40 | 0.5000 [" "and so do its longer pieces"
with_text both.json aa '{"ctx": 512}, {"ctx": 1024}'
wrong 1 "pieces of 512 tokens are in another file too" "some pieces of another file" "$tmp/one.json" "$tmp/both.json"
report "$d/drafts.json"
out_has "| fier:budget=1024, weights q4 | small | bf16 | f16 | 1k | 0.9 | 800.0 | 960.0 | 1.20 | 4.00 | 4.10 |" "drafts of bench"
report "$d/drafts.json" "$d/bench.json"
out_has "## Drafts" "drafts in addition to speeds"
out_has "## Speed" "and the speeds"
report "$d/accept.json" "$tmp/accept.json"
out_has "| quest 64 | 0 | 50 | 0.4000 [" "several texts are added up"
report "$d/bench.json"
out_has "| decode, quest 64 | small | - | - | 4k | 1 | 800.0 | 1.250 | 2.0 % | - | - |" "speed"
out_has "| quest 64 | 1.25 | 1.25 | 1.25 | 1.250 | 0.00 | - | - | - |" "a step that costs the same at every context"
report "$d/ruler.jsonl"
out_has "RULER, scores (1k tokens)" "RULER: a table for each length"
out_has '| strategy | niah\_single\_1 | vt | mean of 2 tasks |' "a mean of some tasks says so"
out_has "| quest 64 | 50.00 [28.0, 72.0] | 0.00 [0.0, 49.0] | 25.00 [14.0, 51.9] |" "its means and intervals"
out_has "| full | 100.00 [80.6, 100.0] | 0.00 [0.0, 49.0] | 50.00 [40.3, 74.5] |" "and those of the other length"
# Two samples of 16 problems. Half of the problems right in both, or one sample right of each: as 8 of 16.
report "$d/math.jsonl"
out_has "math, right answers in %, by rule" "long generations: a table by rule"
out_has "16 problems; mean over samples." "samples of one problem count once"
out_has "| quest 64 | 50.00 [28.0, 72.0] | 50.00 [28.0, 72.0] |" "their means, and intervals over problems"
out_has "| full | 32 | 0.0 | 0.0 | 0.0 | 125.0 | 250.0 |" "lengths and speeds of answers"
out_has "| quest 64 | 32 | 25.0 | 12.5 | 6.2 | 125.0 | 250.0 |" "answers without an answer, at the limit, in loops"
out_has "| quest 64 | 32 | 64.0 | 2.00 |" "costs of long generations"
head -n 9 "$d/math.jsonl" >"$tmp/part.jsonl"
report "$tmp/part.jsonl"
out_has "100.00\\* [34.2, 100.0]" "problems that are missing have a star"
sed '2s/"scores":{[^}]*}/"scores":7/' "$d/math.jsonl" >"$tmp/bad.jsonl"
wrong 1 "a result has an unexpected value" "scores that are none" "$tmp/bad.jsonl"
report "$d/drift.jsonl"
out_has "| quest 256 | 1k | 1000 | 1.0 | 0.10 | 256 | 0.500 | 0.750 | 12.5 |" "drift: the first interval"
out_has "| quest 256 | 3k | 333 | 3.0 | 0.30 | 256 | 0.167 | 0.250 | 12.5 |" "the middle one"
out_has "| full | 5k | 200 | 5.0 | 0.00 | 256 | 1.000 | 1.000 | - |" "and the last one"
# slopes FILE READ ENOUGH: steps of 2 ms and 50 ns for each token of context; 40 MB and 1,000 bytes.
slopes() {
    "$PYTHON" -c '
import json, sys
path, read, enough = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "1"
same = {"model": "small", "weights": "q8", "kv": "f16", "phase": "decode", "attn": "full", "budget": None, "batch": 1, "spread": 0.01,
        "limit_share": 0.5, "samples": {"enough": enough}}
results = [{**same, "ctx": n, "tokens_per_s": 1e9 / (2e6 + 50 * n), "bytes_per_token": 40e6 + 1000 * n,
            "read_gbps": read * (1 if n == 16384 else 40) / 40} for n in (1024, 4096, 16384)]
json.dump({"command": "bench", "version": "1", "model": "small", "results": results}, open(path, "w"), separators=(",", ":"))' "$1" "$2" "$3"
}
slopes "$tmp/slopes.json" 40 1
report "$tmp/slopes.json"
out_has "| full | 2.05 | 2.20 | 2.82 | 2.000 | 50.00 | 40.0" "what a token of context costs"
out_has "| 25.00 | 50 % |" "and what its bytes cost at least"
slopes "$tmp/slopes.json" 40 0
report "$tmp/slopes.json"
out_has "| full | 2.05? |" "steps of too few samples are marked"
out_has "?: too few valid samples" "and explained"

report "$d/longbench.jsonl" "$d/fier.jsonl"
out_has '| fier 64 | 100.00 [80.6, 100.0] | 100.00\* [56.6, 100.0]' "files share a table; too few samples get a star"
out_has "A star" "which is explained"
report --dataset trec --attn quest "$d/longbench.jsonl"
out_has "| quest 64 | 10.00 [2.8, 30.1] |" "one dataset, one strategy"
check "and no other" test "$(grep -c full "$tmp/out")" -eq 0
report "$d/longbench.jsonl" "$d/longbench.jsonl"
err_has "counted once" "a file given twice counts once"
gzip -c "$d/longbench.jsonl" >"$tmp/z.jsonl.gz" && report "$tmp/z.jsonl.gz"
check "a packed file" cmp "$tmp/out" "$tmp/first"
report "$d/longbench.jsonl" -o "$tmp/t.md"
check "-o" cmp "$tmp/t.md" "$tmp/first"

# A run that was killed.
head -c 9000 "$d/longbench.jsonl" >"$tmp/cut.jsonl"
report "$tmp/cut.jsonl"
check "a killed run" test "$status" -eq 0
err_has "incomplete last line ignored" "an incomplete last line is ignored, with a note"
check "what is missing shows" grep -qF 'than the run has in total' "$tmp/out"
grep -v '"dataset":"trec"' "$d/longbench.jsonl" >"$tmp/half.jsonl"
report "$tmp/half.jsonl"
out_has "Not started: trec" "a dataset that has not started"

# Bad input.
line() { { head -1 "$d/longbench.jsonl"; printf '%s\n' "$1"; } >"$tmp/bad.jsonl"; }
bad() { line "$1"; wrong 1 "bad.jsonl line 2: $2" "$3" "$tmp/bad.jsonl"; }
good='"index":0,"attn":"full","budget":null'
bad '{"dataset":"qasper"' "not valid JSON" "no JSON"
bad '[1]' "not a JSON object" "no object"
bad "$(printf '{"dataset":"\377"}')" "not valid JSON" "no UTF-8"
bad "{$good,\"score\":1}" "'dataset' is missing" "no dataset"
bad "{\"dataset\":\"qasper\",$good}" "'score' is missing" "no score"
bad "{\"dataset\":\"qasper\",$good,\"score\":\"1\"}" "'score' is \"1\", expected a number" "a score in quotes"
bad "{\"dataset\":\"qasper\",\"index\":0,\"attn\":\"full\",\"score\":1}" "'budget' is missing" "no budget"
: >"$tmp/empty"
wrong 1 "empty: empty" "an empty file" "$tmp/empty"
printf '{"kvasir":"eval longb' >"$tmp/half"
report "$tmp/half"
err_has "no complete line" "half of a first line"
echo "some text" >"$tmp/text"
wrong 1 "text: not a result file" "another file" "$tmp/text"
wrong 1 "No such file" "no file" "$tmp/none"
wrong 1 "Is a directory" "a folder" "$tmp"
sed 's/aaaaaaaa/bbbbbbbb/' "$d/fier.jsonl" >"$tmp/model.jsonl"
wrong 1 "cannot share a table: 'model_sha256' is" "another model" "$d/longbench.jsonl" "$tmp/model.jsonl"
sed 's/"max_length":3500/"max_length":7500/' "$d/fier.jsonl" >"$tmp/length.jsonl"
wrong 1 "'max_length' is 7500 and 3500" "other prompts" "$d/longbench.jsonl" "$tmp/length.jsonl"
sed 's/11111111/55555555/' "$d/fier.jsonl" >"$tmp/data.jsonl"
wrong 1 "'data.qasper.jsonl.sha256' is" "other data" "$d/longbench.jsonl" "$tmp/data.jsonl"
sed 's/"ctx":\[1024,2048\]/"ctx":[4096]/; s/"streaming"/"h2o"/' "$d/passkey.jsonl" >"$tmp/lengths.jsonl"
report "$d/passkey.jsonl" "$tmp/lengths.jsonl"
out_has "| h2o 64 |" "other lengths of passkeys are other columns"
sed 's/qasper/质量é/g' "$d/longbench.jsonl" >"$tmp/names.jsonl"
report "$tmp/names.jsonl"
out_has "| strategy | 质量é | trec | average |" "names of any script"
check "without a warning" test ! -s "$tmp/err"
head -c 300 "$tmp/z.jsonl.gz" >"$tmp/half.gz"
wrong 1 "not a complete gzip file" "half of a packed file" "$tmp/half.gz"
echo '{"command":"eval longbench","results":[]}' >"$tmp/lb.json"
wrong 1 "use its -o file" "a report without samples" "$tmp/lb.json"
wrong 1 "no result" "no strategy of that name" --attn h2o "$d/longbench.jsonl"
wrong 1 "No such file" "no folder for the table" -o "$tmp/no/t.md" "$d/longbench.jsonl"
wrong 2 "required: FILE" "no files"
wrong 2 "--plot: invalid choice: 'pie'" "no such picture" --plot pie "$d/bench.json"
wrong 2 "needs --plot KIND" "a picture of what?" -o "$tmp/x.png" "$d/bench.json"
wrong 1 "--plot passkey needs results of passkey" "a picture of other results" --plot passkey "$d/bench.json"
"$PYTHON" -S "$SRCDIR/scripts/report" --plot speed "$d/bench.json" >"$tmp/out" 2>"$tmp/err" </dev/null
status=$?
is_refusal 1 "pictures need matplotlib" "without matplotlib: the package to install"

# Pictures: each has what its axes need; whether they look well, people have to see.
"$PYTHON" -c "import matplotlib" 2>/dev/null || { skip "pictures: no matplotlib"; finish; exit; }
picture() { # picture KIND FILE TEXT...
    kind=$1 file=$2
    shift 2
    report --plot "$kind" "$d/$file" -o "$tmp/$kind.svg"
    check "a picture: $kind" test "$status" -eq 0
    cp "$tmp/$kind.svg" "$tmp/out"
    for text; do out_has "$text" "$kind: '$text'"; done
}
picture perplexity pg19.jsonl "Length (tokens)" "Perplexity" "quest 256" ">128<" ">512<" "#009e73"
picture score longbench.jsonl "Budget (tokens)" "Average score, 2 datasets (%)" ">quest<" ">full<"
picture score ruler.jsonl "Length (tokens)" "RULER, mean of 2 tasks" ">1k<" ">2k<" ">full<" ">quest 64<"
report --plot score --dataset vt "$d/ruler.jsonl" -o "$tmp/vt.svg"
cp "$tmp/vt.svg" "$tmp/out"
out_has ">RULER, vt<" "the picture of one task names it"
picture recall recall.json "Budget (tokens)" "Recall of the best tokens" ">32<" ">64<" ">fier<"
picture accept accept.json "Budget (tokens)" "Tokens equal to full attention's" ">64<" ">128<" ">quest<" ">full<"
picture drift drift.jsonl "New tokens" "Mass of exact attention" ">1k<" ">4k<" ">full<" ">quest 256<"
picture passkey passkey.jsonl "Context length (tokens)" "Depth (%)" "Found (%)" "streaming 64" ">1k<" ">2k<"
picture drafts drafts.json "Context length (tokens)" "Tokens per second" ">1k<" ">4k<" ">full<" ">full, drafts by fier 1024<" \
    ">full, drafts by fier 1024, weights q4<" ">full, drafts by ngram<"
report --plot drafts "$d/drafts.json" "$d/bench.json" -o "$tmp/both.svg"
cp "$tmp/both.svg" "$tmp/out"
out_has ">quest 64 alone<" "drafts: compared with retrieval alone"
wrong 1 "no result of bench --draft" "drafts of other results" --plot drafts "$d/bench.json"
picture speed bench.json "Context length (tokens)" "Time of a decode step (ms)" ">1k<" ">4k<" "quest 64"
{
    echo '{"kvasir":"eval scbench","config":{"version":"1","samples":{"scbench_kv":3}},"started":{"model":"m"}}'
    for turn in 1 2; do
        echo "{\"dataset\":\"scbench_kv\",\"index\":0,\"turn\":$turn,\"attn\":\"full\",\"budget\":null,\"score\":0.${turn}0}"
    done
} >"$tmp/scbench.jsonl"
report "$tmp/scbench.jsonl"
out_has '| full | 15.00\* [' "SCBench: turns are samples, of which one is missing"
sed 's/scbench/mrcr/; s/"turn":1/"needles":2/; s/"turn":2/"needles":8/; s/"index":0,"needles":8/"index":1,"needles":8/' "$tmp/scbench.jsonl" >"$tmp/mrcr.jsonl"
report "$tmp/mrcr.jsonl"
out_has "| strategy | 2 needles | 8 needles | average |" "MRCR: by needles"
{
    echo '{"kvasir":"eval niah","config":{"version":"1","ctx":[1024],"trials":2,"needle":"x"},"started":{"model":"m"}}'
    for trial in 1 9; do
        echo "{\"ctx\":1024,\"trial\":$trial,\"attn\":\"full\",\"budget\":null,\"depth\":${trial}0.0,\"score\":0.${trial}5,\"found\":false}"
    done
} >"$tmp/niah.jsonl"
report "$tmp/niah.jsonl"
out_has "| full | 55.00 [" "a needle's mean"
report --plot passkey "$tmp/niah.jsonl" -o "$tmp/niah.svg"
cp "$tmp/niah.svg" "$tmp/out"
for text in "Depth (%)" ">1k<" ">15<" ">95<"; do out_has "$text" "its heat map: '$text'"; done
report --plot speed "$d/bench.json" -o "$tmp/p.png"
check "PNG" sh -c "head -c 4 '$tmp/p.png' | grep -q PNG"
report "$d/longbench.jsonl" "$d/passkey.jsonl" -o "$tmp/all/"
check "a folder: the tables" grep -q '](passkey.svg)' "$tmp/all/report.md"
check "and their pictures" test -s "$tmp/all/passkey.svg" -a -s "$tmp/all/score-longbench.svg"

cp "$d/longbench.jsonl" "$tmp/mine.jsonl"
wrong 1 "is one of the files to report" "a table over its results" -o "$tmp/mine.jsonl" "$tmp/mine.jsonl"
check "which are still there" cmp "$d/longbench.jsonl" "$tmp/mine.jsonl"

# The commands of doc/reports.md, on the results in the same folder.
cd "$SRCDIR" || exit 1
sed -n 's/^    scripts\/report --plot \([a-z]*\) -o \([^ ]*\) \(.*\)$/\1 \3/p' doc/reports.md >"$tmp/commands"
check "a documented command for each picture" test "$(cut -d' ' -f1 "$tmp/commands" | sort -u | wc -l)" -eq 7
while read -r kind files; do
    # shellcheck disable=SC2086
    report --plot "$kind" -o "$tmp/$kind.svg" $files
    check "as documented: $kind of $files" test "$status" -eq 0
done <"$tmp/commands"
finish
