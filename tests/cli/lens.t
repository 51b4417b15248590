# SPDX-License-Identifier: MIT
# lens: records, the page with its data inside, and the page's own checks in a browser.
. "$SRCDIR/tests/cli/lib.sh"
m="$models/llama31-f32-tied"
attn=quest:page=4,streaming
text="Alice was beginning to get very tired of sitting by her sister on the bank"

run lens -m "$m" -p "$text" --attn $attn --budget 16 -n 4 --ignore-eos --quiet
check "records on standard output" test "$status" -eq 0 -a "$(grep -c '"kind":"step"' "$tmp/out")" -eq 8
cp "$tmp/out" "$tmp/records"
run lens -m "$m" -p "$text" --attn $attn --budget 16 -n 4 --ignore-eos --quiet -o "$tmp/lens.ndjson" --json "$tmp/r.json"
check "the same in a file" cmp "$tmp/records" "$tmp/lens.ndjson"
out_has "missed" "then a table is on standard output"
run lens -m "$m" -p "$text" --attn $attn --budget 16 -n 4 --ignore-eos --quiet --threads 1 --chunk 8 --gemm builtin -o "$tmp/lens.html"
check "a page" grep -q '^<!DOCTYPE html>' "$tmp/lens.html"
check "with the records in it" test "$(grep -c '^{"kind":"step"' "$tmp/lens.html")" -eq 8
check "is smaller than 150 KB" test "$(wc -c <"$tmp/lens.html")" -lt 150000
check "has all of its parts" sh -c "! grep -q '^@include' '$tmp/lens.html' && grep -q '^function selftest' '$tmp/lens.html'"
grep -oE '(\$|on)\("[a-z-]+"[,)]' "$tmp/lens.html" | sed 's/.*("//; s/".*//' | sort -u >"$tmp/ids"
: >"$tmp/out"
while read -r id; do grep -q "id=\"$id\"" "$tmp/lens.html" || echo "$id" >>"$tmp/out"; done <"$tmp/ids"
check "and the elements that its script names" test -s "$tmp/ids" -a ! -s "$tmp/out"
check "and loads nothing" test -z "$(grep -E '(src|href)="' "$tmp/lens.html")"
if command -v jq >/dev/null; then
    check "every line is JSON" sh -c "jq -c . <'$tmp/records'"
    check "texts are those of the prompt" test "$(jq -rj 'select(.kind == "prompt").texts[1:][]' <"$tmp/records" | sed 's/^ //')" = "$text"
    "$RUN" generate -m "$m" -p "$text" -n 4 --temp 0 --ignore-eos --quiet >"$tmp/want" 2>/dev/null
    jq -rj 'select(.kind == "step" and .s == 1).text' <"$tmp/records" | sed 's/^ //' >"$tmp/said"
    sed 's/^ //' "$tmp/want" | tr -d '\n' >"$tmp/want2"
    check "new tokens are those of generate" cmp "$tmp/said" "$tmp/want2"
    check "a budget that is not all misses something, and the table's means are those of the records" jq -es --slurpfile r "$tmp/r.json" '
        ([.[] | select(.kind == "step" and .s == 2).missed] | add / length) as $m | ($m > 0) and
        (($r[0].results[1].missed - $m) | fabs < 1e-5)' "$tmp/records"
else
    skip "jq is not there"
fi
# Reads of strategies without a selection: sinks in addition to a sliding window of 16, and recalled demoted rows.
run lens -m "$models/mistral-swa-bf16" -p "$text" --attn streaming --budget 12 -n 3 --ignore-eos --quiet
check "the sinks of streaming are read in layers with windows" test "$(grep -c '"attended":13.0,' "$tmp/out")" -eq 3
run lens -m "$m" -p "$text" --attn h2o:demote=token4:recall=0,h2o:demote=token4:recall=3 --budget 12 -n 3 --ignore-eos --quiet
check "demoted rows are read as far as they are recalled" \
    test "$(grep -c '"attended":13.0,' "$tmp/out")" -eq 3 -a "$(grep -c '"attended":16.0,' "$tmp/out")" -eq 3
run lens -m "$m" -p "$text" --attn quest --skip 2 --budget 16 -n 2 --quiet -o "$tmp/dense.html" --json "$tmp/r.json"
check "where all layers are dense nothing is chosen" grep -q '^quest  *16  *-  *-$' "$tmp/out"
check "and the report has null" test "$(grep -cE '"(attended|missed)": null' "$tmp/r.json")" -eq 2
refused 2 "at most 3" "four strategies" lens -m "$m" -p "$text" --attn quest,fier,h2o,tova
refused 2 "expected full or one of --attn" "a drive that is not there" lens -m "$m" -p "$text" --attn quest --drive h2o
refused 2 "at least 2" "a prompt of one token" lens -m "$m" -p "" --attn quest
refused 1 "neither a regular file nor a pipe" "a folder" lens -m "$m" -p "$text" --attn quest -o "$tmp"
check "a refused run leaves no file" test -z "$(ls "$tmp" | grep part)"

browser=$(command -v chromium-headless-shell || command -v chromium) || browser=
if [ -z "$browser" ]; then
    skip "Chromium is not there"
    finish
    exit 0
fi
# A browser that cannot run proves nothing about the page.
HOME=$tmp timeout 60 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$tmp/browser" \
    --dump-dom "data:text/html,<p>here</p>" >"$tmp/dom" 2>/dev/null </dev/null
if ! grep -q '<p>here</p>' "$tmp/dom"; then
    skip "Chromium does not run here"
    finish
    exit 0
fi
# opened URL: the page as the browser has it, once its script ran, in $tmp/dom.
opened() {
    HOME=$tmp timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$tmp/browser" \
        --virtual-time-budget=30000 --dump-dom "$1" >"$tmp/dom" 2>"$tmp/err" </dev/null
}
# tests_itself URL NAME: the page's own checks hold.
tests_itself() {
    opened "$1"
    sed -n 's/.*<pre id="selftest">//; /^ok /p; /^not ok /p; /^1\.\./p' "$tmp/dom" >"$tmp/self"
    check "$2: the page's own checks were run" grep -q '^1\.\.' "$tmp/self"
    sed -n 's/^not ok /  /p' "$tmp/self" >"$tmp/out"
    check "$2: and hold" test ! -s "$tmp/out"
}
tests_itself "file://$tmp/lens.html?selftest" "a file"
opened "file://$tmp/lens.html"
check "the page shows its data" grep -q 'aria-label="quest:page=4:budget=16: step 0, read' "$tmp/dom"

"$RUN" serve -m "$m" --port 0 --quiet >/dev/null 2>"$tmp/log" </dev/null &
server=$!
for _ in $(seq 200); do
    url=$(sed -n 's/^listening on //p' "$tmp/log")
    { [ -z "$url" ] && kill -0 $server 2>/dev/null; } || break
    sleep 0.1
done
if [ -n "$url" ]; then
    tests_itself "$url/lens?selftest" "served, under its policy"
    kill -TERM $server
else
    skip "built without libmicrohttpd"
fi
wait $server
finish
