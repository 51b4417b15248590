# SPDX-License-Identifier: MIT
# scripts/reproduce: its items, what it refuses, its tables on reports that are known, and short items from end to end.
. "$SRCDIR/tests/cli/lib.sh"
command -v jq >/dev/null || skip_all "jq is missing"
PYTHON=${PYTHON:-python3}
"$PYTHON" -c 1 2>/dev/null || skip_all "python3 is missing"
lib="$SRCDIR/scripts/lib/reproduce"
reproduce() { ran "$PYTHON" "$SRCDIR/scripts/reproduce" "$@"; } # reproduce ARGS...: as run of lib.sh
bad() { refused_by reproduce "$@"; } # bad STATUS TEXT NAME ARGS...: as refused of lib.sh

# ---- the items ----

reproduce --help
out_has "usage: scripts/reproduce" "--help"
reproduce --list
check "--list" test "$status" -eq 0 -a ! -s "$tmp/err"
grep -v '^ ' "$tmp/out" | awk '{ print $1, $2 }' >"$tmp/listed"
# The papers' own numbering: fier 9 figures and 7 tables; pariskv 10, 3; logquant 8, 7; actqkv 5, 10.
for k in 1 2 3 4 5 6 7 8 9; do echo "fier fig$k"; done >"$tmp/all"
for k in 1 2 3 4 5 6 7; do echo "fier tab$k"; done >>"$tmp/all"
for k in 1 2 3 4 5 6 7 8 9 10; do echo "pariskv fig$k"; done >>"$tmp/all"
for k in 1 2 3; do echo "pariskv tab$k"; done >>"$tmp/all"
for k in 1 2 3 4 5 6 7 8; do echo "logquant fig$k"; done >>"$tmp/all"
for k in 1 2 3 4 B5 C6 D7; do echo "logquant tab$k"; done >>"$tmp/all"
for k in 1 2 3 4 5; do echo "actqkv fig$k"; done >>"$tmp/all"
for k in 1 2 3 4 5 6 7 8 9 10; do echo "actqkv tab$k"; done >>"$tmp/all"
sort "$tmp/listed" >"$tmp/listed.sorted"
check "no item is listed twice" test -z "$(uniq -d "$tmp/listed.sorted")"
check "every table and figure is listed" test -z "$(sort "$tmp/all" | comm -23 - "$tmp/listed.sorted")"
check "other items are only sections with their own numbers" test -z "$(sort "$tmp/all" | comm -13 - "$tmp/listed.sorted" | grep -v ' sec')"
reproduce --list actqkv
check "--list of a paper" test "$(grep -cv '^ ' "$tmp/out")" -eq 15 -a "$(grep -c '^actqkv ' "$tmp/out")" -eq 15

# Each item has a command or a reason, and shows what it would run.
no_command='' no_reason='' own=0
while read -r paper item; do
    reproduce "$paper" "$item" --dry-run
    [ "$status" -ne 0 ] || ! grep -q '^\$ \./run' "$tmp/out" || own=$((own + 1))
    [ "$status" -ne 2 ] || reproduce "$paper" "$item" -m DIR --dry-run
    if [ "$status" -eq 0 ]; then
        grep -qE '^\$ (\./run|python3|for) ' "$tmp/out" && ! grep -q '@[A-Z]*@' "$tmp/out" || no_command="$no_command $paper/$item"
    else
        [ "$status" -eq 1 ] && grep -q "$paper $item cannot run here: [A-Z].*\.\$" "$tmp/err" || no_reason="$no_reason $paper/$item"
    fi
done <"$tmp/listed"
check "each item has a command, with all its words ($no_command)" test -z "$no_command"
check "or says why it cannot run ($no_reason)" test -z "$no_reason"
check "at least 20 run without a model of one's own" test "$own" -ge 20
while read -r paper item; do
    grep -qF "| \`$paper $item\` | " "$SRCDIR/doc/papers.md" || echo "$paper $item"
done <"$tmp/listed" >"$tmp/missing"
check "doc/papers.md has a row for each" test ! -s "$tmp/missing"
check "all numbers are of items, and as many as there are columns" awk -F '\t' 'FILENAME == ARGV[1] { split($0, x, " "); known[x[1], x[2]] = 1; next }
    /^#/ { next } !(($1, $2) in known) { exit 1 } $3 == "columns" { n[$1, $2] = NF - 3; next } NF - 5 != n[$1, $2] { exit 1 }' \
    "$tmp/listed" "$lib/published.tsv"

# ---- what it refuses ----

bad 2 "unknown paper 'logqaunt'; did you mean 'logquant'?" "an unknown paper" logqaunt tab1
bad 2 "unknown paper 'quest'" "another one" --list quest
bad 2 "fier has no item 'tabel3'; did you mean 'tab3'?" "an unknown item" fier tabel3
bad 2 "logquant has no item 'tabb5'; did you mean 'tabB5'?" "letters of another case" logquant tabb5
bad 2 "ITEM is missing; --list fier" "no item" fier
bad 2 "PAPER is missing; one of: fier pariskv logquant actqkv" "nothing"
bad 2 "unrecognized arguments: --fast" "an unknown option" fier tab1 --fast
bad 2 "--data: expected one argument" "an option without its value" fier tab5 --data
bad 2 "unrecognized arguments: tab2" "two items" fier tab1 tab2
bad 2 "fier tab2 needs -m DIR" "a table that needs a model" fier tab2
bad 2 "fier tab5 needs $tmp/none/longbench" "data that are not there" fier tab5 --data "$tmp/none" --run "$RUN"
bad 1 "$tmp/none: no such program" "no program" fier fig6 --run "$tmp/none"
bad 2 "fier fig8 does not support -m" "a model where none is used" fier fig8 -m DIR
reproduce fier tab3 --dry-run -m DIR
out_has "passkey -m $PWD/DIR --chars --ctx 10000" "with a model: the paper's sizes"
reproduce fier fig6 --dry-run -m "$tmp/a model's"
out_has "eval recall -m '$tmp/a model'\"'\"'s' -f OUT/book.txt" "odd names are quoted"

# ---- tables ----

cat >"$tmp/recall.json" <<'END'
{"command": "eval recall", "results": [
 {"attn": "a", "budget": 64, "ctx": 9, "layer": 0, "dense": true, "recall": 9, "mass": 9, "out_err": 9, "selected": 9},
 {"attn": "a", "budget": 64, "ctx": 9, "layer": 1, "dense": false, "recall": 0.25, "mass": 0.5, "out_err": null, "selected": 64},
 {"attn": "a", "budget": 64, "ctx": 9, "layer": 2, "dense": false, "recall": 0.75, "mass": 0.5, "out_err": null, "selected": 60}]}
END
view() { jq -r -L "$lib" "include \"views\"; $1" "$tmp/recall.json" | tr '\t\n' ' ;'; }
check "means leave dense layers out" test "$(view 'by_budget("recall")')" = "here a 64 0.5;"
check "what is not known is not there" test "$(view recall)" = "here a recall 0.5;here a mass 0.5;"
check "by layer" test "$(view 'by_layer("selected")')" = "here a layer 1 64;here a layer 2 60;"
for k in 0 1 15 16; do echo "{\"layer\": 0, \"head\": 0, \"query\": $k, \"positions\": [$k, 32, 33]}"; done >"$tmp/dump.jsonl"
slurped() { jq -s -r -L "$lib" "include \"views\"; $1" "$tmp/dump.jsonl" | grep '	all layers	' | cut -f 3-4 | tr '\t\n' '=;'; }
check "pages of the best tokens" test "$(slurped 'pages(16)')" = \
    "pages with best tokens=2;pages that could hold them=1;best among their tokens, %=9.4;"
check "what stays from step to step" test "$(slurped steps)" = "1 later, %=66.7;"
printf 'fier\ttab3\tcolumns\t32\t64\nfier\ttab3\tLongChat\tq\tQuest\t65\t99\nfier\ttab3\tLongChat\t-\tOther\t1\t2\n' >"$tmp/published"
tables() {
    "$PYTHON" -Bc 'import sys
sys.path.insert(0, sys.argv[1])
from tables import show_tables
show_tables("fier", "tab3", open(sys.argv[2]), [line.rstrip("\n").split("\t") for line in open(sys.argv[3])])' \
        "$lib" "$tmp/published" "$tmp/ours" | tr -s ' ' | sed 's/^ //' | tr '\n' ';'
}
printf 'here\tq\t64\t98\nhere\tz\t32\t7\n' >"$tmp/ours"
check "ours next to theirs" test "$(tables)" = "row source 32 64;q here - 98;Quest LongChat 65 99;Other LongChat 1 2;z here 7 -;"
printf 'here\tq\tfound\t98\n' >"$tmp/ours"
check "another measure: a table of its own" test "$(tables)" = \
    "row source found;q here 98;;published:;row source 32 64;Quest LongChat 65 99;Other LongChat 1 2;"

# ---- from end to end ----

mkdir -p "$tmp/data/infinitebench"
for d in passkey number_string kv_retrieval longbook_choice_eng code_debug math_find; do
    printf '{"id": 0}\n{"id": 1}\n' >"$tmp/data/infinitebench/$d.jsonl"
done
reproduce actqkv tab6 --data "$tmp/data" --run "$RUN"
check "a table of samples" test "$status" -eq 0
check "ours and theirs in it" test "$(grep -cE '^(passkey +here +2|Ret.PassKey +paper +590)$' "$tmp/out")" -eq 2
echo 'no JSON' >"$tmp/data/infinitebench/passkey.jsonl"
reproduce actqkv tab6 --data "$tmp/data" --run "$RUN"
check "samples that are none" test "$status" -ne 0
err_has "actqkv tab6: command 1 failed" "and which command it was"

run tokenize
if grep -q 'built without SentencePiece' "$tmp/err"; then
    skip "the built-in model needs SentencePiece"
    finish
    exit 0
fi
reproduce fier fig6 --run "$RUN" --out "$tmp/results"
check "fier fig6 on the built-in model" test "$status" -eq 0
out_has '$ ' "its command is shown"
check "the report is kept" jq -e '.results | length == 24' "$tmp/results/fier-fig6-1.json"
check "its numbers are the report's" test "$(sed -n 's/^fier:gqa=per_q  *here  *//p' "$tmp/out")" = \
    "$(jq '[.results[] | select(.attn == "fier:gqa=per_q").recall] | add / length * 10000 | round / 10000' "$tmp/results/fier-fig6-1.json")"
out_has "differences: Mean over 64 queries" "the differences are printed"
check "date, machine and model are said" grep -qE '^20[0-9-]*, .*, [0-9]+ cores, model: built-in, [0-9]+ s$' "$tmp/out"
finish
