# SPDX-License-Identifier: MIT
# scripts/fetch_data, from a folder that answers as the hosts do (file:// URLs). The real hosts are never asked.
. "$SRCDIR/tests/cli/lib.sh"
for p in curl jq sha256sum; do command -v $p >/dev/null || skip_all "$p is not there"; done
curl --version | grep -q ' file ' || skip_all "curl without file://"
h="$tmp/host" d="$tmp/data"
commit=0123456789abcdef0123456789abcdef01234567

fetch() { ran sh "$SRCDIR/scripts/fetch_data" --base "file://$h" -o "$d" "$@"; } # fetch ARGS...: as run of lib.sh
failed() { # failed STATUS TEXT NAME ARGS...
    want=$1 text=$2 name=$3
    shift 3
    fetch "$@"
    if [ "$status" -eq "$want" ] && grep -qF -- "$text" "$tmp/err"; then pass "$name"; else fail "$name (status $status)"; show; fi
}
sum() { sha256sum "$1" | cut -d' ' -f1; }
# hub REPO FILE...: answers for the files, which are there.
hub() {
    repo=$1
    shift
    mkdir -p "$h/api/datasets/$repo/revision" "$h/api/datasets/$repo/tree"
    echo "{\"id\":\"$repo\",\"sha\":\"$commit\"}" >"$h/api/datasets/$repo/revision/main"
    for f; do
        p="$h/datasets/$repo/resolve/$commit/$f"
        printf '{"type":"file","path":"%s","size":%s,"oid":"aa","lfs":{"oid":"%s","size":%s}}\n' "$f" "$(wc -c <"$p")" "$(sum "$p")" "$(wc -c <"$p")"
    done | jq -s . >"$h/api/datasets/$repo/tree/$commit"
}

v2="$h/datasets/THUDM/LongBench-v2/resolve/$commit"
mkdir -p "$v2"
echo '[{"_id":"1"}]' >"$v2/data.json"
hub THUDM/LongBench-v2 data.json
fetch longbench2
check "a download" test "$status" -eq 0
check "is there" cmp "$v2/data.json" "$d/longbench2/data.json"
check "its commit is recorded" grep -q "THUDM/LongBench-v2 commit $commit" "$d/longbench2/SHA256SUMS"
check "and its SHA-256" grep -qx "$(sum "$v2/data.json")  data.json" "$d/longbench2/SHA256SUMS"
check "which sha256sum reads" sh -c "cd '$d/longbench2' && sha256sum --check --strict --quiet SHA256SUMS"
mv "$h" "$h.away"
fetch longbench2
check "again: the host is not asked" test "$status" -eq 0
err_has "complete and verified" "and that is said"
echo more >>"$d/longbench2/data.json"
failed 1 "files differ from SHA256SUMS" "a file that changed" longbench2
mv "$h.away" "$h"
rm -r "$d"

math="$h/datasets/HuggingFaceH4/MATH-500/resolve/$commit"
mkdir -p "$math"
echo '{"problem":"p","answer":"1"}' >"$math/test.jsonl"
hub HuggingFaceH4/MATH-500 test.jsonl
fetch math500
check "MATH-500" cmp "$math/test.jsonl" "$d/math500/test.jsonl"
rm -r "$d"

# SCBench's files lie in a folder of the repository.
sc="$h/datasets/microsoft/SCBench/resolve/$commit" names=''
mkdir -p "$sc/data"
for f in kv prefix_suffix vt qa_eng qa_chn choice_eng many_shot summary mf summary_with_needles; do
    names="$names data/scbench_$f.jsonl"
    echo "{\"id\":\"$f\"}" >"$sc/data/scbench_$f.jsonl"
done
# shellcheck disable=SC2086
hub microsoft/SCBench $names
mv "$h/api/datasets/microsoft/SCBench/tree/$commit" "$tmp/list"
mkdir "$h/api/datasets/microsoft/SCBench/tree/$commit"
mv "$tmp/list" "$h/api/datasets/microsoft/SCBench/tree/$commit/data"
fetch scbench
check "SCBench" test "$status" -eq 0 -a "$(grep -c 'scbench_.*jsonl' "$d/scbench/SHA256SUMS")" -eq 10
check "its files lie side by side" cmp "$sc/data/scbench_mf.jsonl" "$d/scbench/scbench_mf.jsonl"
fetch scbench
err_has "complete and verified" "once"
rm -r "$d"
echo '[]' >"$h/api/datasets/microsoft/SCBench/tree/$commit/data"
failed 1 "no file data/scbench_kv.jsonl in commit" "a commit without them" scbench
rm -r "$d"

# GitHub: the commit, and git's blob id of a file in the list of its folder.
gh="$h/openai/grade-school-math/$commit/grade_school_math/data" list="$h/repos/openai/grade-school-math"
mkdir -p "$gh" "$list/commits" "$list/contents/grade_school_math"
printf '{"question":"q","answer":"#### 1"}\n' >"$gh/test.jsonl"
echo "{\"sha\":\"$commit\"}" >"$list/commits/HEAD"
blob=$({ printf 'blob %s\0' "$(wc -c <"$gh/test.jsonl" | tr -d ' ')"; cat "$gh/test.jsonl"; } | sha1sum | cut -d' ' -f1)
cp "$gh/test.jsonl" "$gh/train.jsonl"
for f in test train; do echo "{\"name\":\"$f.jsonl\",\"size\":$(wc -c <"$gh/test.jsonl"),\"sha\":\"$blob\"}"; done | jq -s . >"$list/contents/grade_school_math/data"
fetch gsm8k
check "GSM8K" cmp "$gh/test.jsonl" "$d/gsm8k/test.jsonl"
check "and its training data" cmp "$gh/train.jsonl" "$d/gsm8k/train.jsonl"
check "its commit is recorded" grep -q "openai/grade-school-math commit $commit" "$d/gsm8k/SHA256SUMS"
fetch gsm8k
err_has "complete and verified" "once"
rm -r "$d"
printf '{"question":"q","answer":"#### 2"}\n' >"$gh/test.jsonl"
failed 1 "test.jsonl: its git is" "another content than GitHub's record" gsm8k
check "is not kept" test ! -e "$d/gsm8k/test.jsonl"
echo '[]' >"$list/contents/grade_school_math/data"
failed 1 "no file grade_school_math/data/test.jsonl" "a commit of GitHub without the file" gsm8k

# MMLU's archive: the folders dev and test.
if command -v tar >/dev/null; then
    mm="$h/datasets/cais/mmlu/resolve/$commit"
    mkdir -p "$mm" "$tmp/t/data/dev" "$tmp/t/data/test" "$tmp/t/data/val"
    for f in dev test val; do echo "q,a,b,c,d,A" >"$tmp/t/data/$f/anatomy_$f.csv"; done
    tar -cf "$mm/data.tar" -C "$tmp/t" data
    hub cais/mmlu data.tar
    fetch mmlu
    check "MMLU is unpacked" cmp "$tmp/t/data/test/anatomy_test.csv" "$d/mmlu/test/anatomy_test.csv"
    check "what is needed of it, recorded" test "$(grep -c '\.csv$' "$d/mmlu/SHA256SUMS")" -eq 2
    fetch mmlu
    err_has "complete and verified" "once"
else
    skip "no tar"
fi
failed 2 "gpqa is gated" "data that need an account" gpqa
failed 2 "openai/mrcr is parquet" "data in a format that is not read" mrcr
failed 2 "under copyright" "data that are not to be had" essays
failed 2 "no published checksum" "data that nobody vouches for" hotpotqa

# Wrong content: refused, and nothing is left.
echo '[{"_id":"2"}]' >"$v2/data.json"
failed 1 "data.json: its sha256 is" "another content than the host's record" longbench2
check "nothing is left of it" test ! -e "$d/longbench2/data.json" -a ! -e "$d/longbench2/data.json.part"
hub THUDM/LongBench-v2 data.json

# Resumed: the half that is there is not fetched again.
mkdir -p "$d/longbench2"
head -c 7 "$v2/data.json" >"$d/longbench2/data.json.part"
fetch longbench2
check "a partial download is continued" cmp "$v2/data.json" "$d/longbench2/data.json"
rm -r "$d"
mkdir -p "$d/longbench2"
printf 'garbage' >"$d/longbench2/data.json.part"
failed 1 "removed" "half of another file" longbench2
fetch longbench2
check "the next run gets it whole" cmp "$v2/data.json" "$d/longbench2/data.json"

# Small files outside the large file storage: git's blob id.
rm -r "$d"
blob=$({ printf 'blob %s\0' "$(wc -c <"$v2/data.json")"; cat "$v2/data.json"; } | sha1sum | cut -d' ' -f1)
echo "[{\"type\":\"file\",\"path\":\"data.json\",\"size\":$(wc -c <"$v2/data.json"),\"oid\":\"$blob\"}]" >"$h/api/datasets/THUDM/LongBench-v2/tree/$commit"
fetch longbench2
check "a file by its blob id" test "$status" -eq 0
rm -r "$d"
echo "[{\"type\":\"file\",\"path\":\"data.json\",\"size\":14,\"oid\":\"$commit\"}]" >"$h/api/datasets/THUDM/LongBench-v2/tree/$commit"
failed 1 "its git is" "a wrong blob id" longbench2
echo '[]' >"$h/api/datasets/THUDM/LongBench-v2/tree/$commit"
failed 1 "no file data.json" "a commit without the file" longbench2
failed 1 "no answer" "no such revision" longbench2 --revision v9
echo '{"sha":"../../etc"}' >"$h/api/datasets/THUDM/LongBench-v2/revision/main"
failed 1 "the hub's commit is '../../etc'" "an answer that is no commit" longbench2

# InfiniteBench: every file, one commit.
ib="$h/datasets/xinrongzhang2022/InfiniteBench/resolve/$commit"
mkdir -p "$ib"
names="code_debug code_run kv_retrieval longbook_choice_eng longbook_qa_chn longbook_qa_eng longbook_sum_eng longdialogue_qa_eng math_calc math_find number_string passkey"
for f in $names; do echo "{\"id\":\"$f\"}" >"$ib/$f.jsonl"; done
# shellcheck disable=SC2046,SC2086
hub xinrongzhang2022/InfiniteBench $(printf '%s.jsonl ' $names)
mv "$ib/math_find.jsonl" "$tmp/away"
failed 1 "download failed" "a file that the host does not give" infinitebench
check "what came before it stays" test -f "$d/infinitebench/code_debug.jsonl"
mv "$tmp/away" "$ib/math_find.jsonl"
mv "$ib/code_debug.jsonl" "$tmp/away"
fetch infinitebench
check "the rest, without what is there" test "$status" -eq 0 -a "$(find "$d/infinitebench" -type f | wc -l)" -eq 13
echo "$commit" | sed 's/0/9/' >"$tmp/other"
sed -i '$d' "$d/infinitebench/SHA256SUMS"
echo "{\"sha\":\"$(cat "$tmp/other")\"}" >"$h/api/datasets/xinrongzhang2022/InfiniteBench/revision/main"
failed 1 "started with commit $commit" "files of two commits do not mix" infinitebench

# PG-19: the bucket's list with MD5.
mkdir -p "$h/storage/v1/b/deepmind-gutenberg" "$h/deepmind-gutenberg/test"
for f in 1 2; do
    echo "book $f" >"$h/deepmind-gutenberg/test/$f.txt"
    printf '{"name":"test/%s.txt","size":"7","md5Hash":"%s"}\n' $f "$(md5sum "$h/deepmind-gutenberg/test/$f.txt" | perl -ne 'print pack "H32", $_' | base64)"
done | jq -s '{items: .}' >"$h/storage/v1/b/deepmind-gutenberg/o"
if command -v perl >/dev/null; then
    fetch pg19
    check "books" test "$status" -eq 0 -a -f "$d/pg19/1.txt" -a -f "$d/pg19/2.txt"
    err_has "lists 2 books, the test split had 100" "their number is checked"
    rm -r "$d/pg19"
    echo "book 3" >"$h/deepmind-gutenberg/test/2.txt"
    failed 1 "2.txt: its md5 is" "a book that differs" pg19
    check "is not kept" test ! -e "$d/pg19/2.txt" -a ! -e "$d/pg19/2.txt.part" -a -f "$d/pg19/1.txt"
else
    skip "no perl to pack MD5"
fi

# LongBench's archive.
if command -v zip >/dev/null && command -v unzip >/dev/null; then
    lb="$h/datasets/THUDM/LongBench/resolve/$commit"
    mkdir -p "$lb" "$tmp/z/data"
    echo '{"input":"q"}' >"$tmp/z/data/qasper.jsonl"
    echo '{"input":"q"}' >"$tmp/z/data/trec_e.jsonl"
    (cd "$tmp/z" && zip -q "$lb/data.zip" data/qasper.jsonl data/trec_e.jsonl)
    hub THUDM/LongBench data.zip
    fetch longbench
    check "an archive is unpacked" cmp "$tmp/z/data/qasper.jsonl" "$d/longbench/qasper.jsonl"
    check "all of it, recorded" test "$(grep -c '\.jsonl$' "$d/longbench/SHA256SUMS")" -eq 2
    fetch longbench
    err_has "complete and verified" "once"
else
    skip "no zip and unzip"
fi

failed 2 "'longbench3' is not one of" "no such data" longbench3
failed 2 "DATASET is missing" "no data"
failed 2 "--revision supports only a single dataset" "a revision of several" --revision abc all
failed 2 "is not a branch or commit" "a revision with slashes" --revision ../x pg19
finish
