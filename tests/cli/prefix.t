# SPDX-License-Identifier: MIT
# --prefix-disk: prompts of generate, chat, evaluations and the server in one folder.
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm # every entry waits for the disk
. "$SRCDIR/tests/cli/lib.sh"
m="$models/llama31-f32-tied"
kv="$tmp/kv"
words='Alice was beginning to get very tired of sitting by her sister on the bank. '
lines() { yes "$words" | head -n "$1" | tr -d '\n'; }
lines 11 >"$tmp/long"
{ lines 11 && echo 'And then she slept.'; } >"$tmp/longer"

# gen OUT ARGS...: generate with the store; how many tokens of the prompt were known in $known.
gen() {
    out=$1
    shift
    run generate -m "$m" --chunk 64 --prefix-min 64 -n 16 --ignore-eos --json "$tmp/json" "$@"
    cp "$tmp/out" "$tmp/$out"
    known=$(jq '.results[0].prefix_tokens' <"$tmp/json")
}
# plain OUT ARGS...: without it.
plain() {
    out=$1
    shift
    run generate -m "$m" --chunk 64 -n 16 --ignore-eos --quiet "$@"
    cp "$tmp/out" "$tmp/$out"
}

# The other strategies: tests/unit/test_reuse.c.
for a in full quest:budget=64:page=4 actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31; do
    plain want --attn "$a" -f "$tmp/long" --temp 0.8 --seed 5
    plain want2 --attn "$a" -f "$tmp/longer" --temp 0
    gen first --attn "$a" -f "$tmp/long" --temp 0.8 --seed 5 --prefix-disk "$kv"
    check "$a: the first time nothing is known" test "$known" -eq 0
    check "and the text is that without the store" cmp -s "$tmp/first" "$tmp/want"
    gen second --attn "$a" -f "$tmp/long" --temp 0.8 --seed 5 --prefix-disk "$kv"
    check "the second time it is, up to the last chunk" test "$known" -eq 320
    check "with the same text" cmp -s "$tmp/second" "$tmp/want"
    gen third --attn "$a" -f "$tmp/longer" --temp 0 --prefix-disk "$kv"
    check "a longer prompt finds its beginning" test "$known" -eq 320
    check "with the text that it has without" cmp -s "$tmp/third" "$tmp/want2"
done
a=quest:budget=128:page=4
plain want --attn "$a" -f "$tmp/long" --temp 0.8 --seed 5
gen other --attn "$a" -f "$tmp/long" --temp 0.8 --seed 5 --prefix-disk "$kv"
check "another budget of quest finds the prompt" test "$known" -eq 320
check "with the text that it has without" cmp -s "$tmp/other" "$tmp/want"
for a in h2o:budget=24 quest:kv=kivi4/r=32; do
    refused 1 "--prefix-disk: ${a%%:*}" "$a: refused, and named" generate -m "$m" -p x -n 1 --attn "$a" --prefix-disk "$kv"
done

rm -rf "$kv"
gen a -f "$tmp/long" --prefix-disk "$kv"
err_has "tokens, 0 of them cached, " "the statistics say what was known"
check "a folder for the user alone" test "$(stat -c %a "$kv")" = 700
check "with one entry" test "$(ls "$kv" | wc -l)" -eq 1
head -c 500 "$tmp/long" >"$tmp/short"
gen b -f "$tmp/short" --prefix-disk "$kv"
check "a shorter prompt finds a part, and leaves nothing" test "$known" -gt 0 -a "$(ls "$kv" | wc -l)" -eq 1
for other in "--attn quest" "--kv bf16" "--chunk 32" "--ctx 600" "--gemm builtin" "-m $models/qwen2-f16"; do
    # shellcheck disable=SC2086
    gen b -f "$tmp/long" --prefix-disk "$kv" --prefix-min 100000 $other
    check "$other: nothing is known" test "$known" -eq 0
done
refused 1 "--prefix-disk: not supported with --draft fier" "a strategy's drafts" generate -m "$m" -p x -n 1 --draft fier --prefix-disk "$kv"
plain want -f "$tmp/long" --temp 0
for _ in 1 2; do gen b -f "$tmp/long" --temp 0 --draft ngram --prefix-disk "$kv"; done
check "drafts: known" test "$known" -eq 320
check "with the same text" cmp -s "$tmp/b" "$tmp/want"

# Damage, and what is foreign.
plain want -f "$tmp/long" --temp 0
rm -rf "$kv"
gen a -f "$tmp/long" --temp 0 --prefix-disk "$kv"
for f in "$kv"/*; do cp "$f" "$tmp/entry" && printf x | dd of="$f" bs=1 seek=5000 conv=notrunc 2>/dev/null; done
gen b -f "$tmp/long" --temp 0 --prefix-disk "$kv" --prefix-min 100000
check "a damaged entry serves nobody" test "$known" -eq 0
check "the text stays" cmp -s "$tmp/b" "$tmp/want"
check "one line says so" test "$(grep -c '^--prefix-disk: .*damaged' "$tmp/err")" -eq 1
check "and it goes" test "$(ls "$kv" | wc -l)" -eq 0
cp "$tmp/entry" "$f"
# The version is the first word after the magic of the footer, which has 16 + 2 * 4 + 8 + 2 * 72 bytes.
printf '\377' | dd of="$f" bs=1 seek=$(($(stat -c %s "$f") - 176 + 16)) conv=notrunc 2>/dev/null
gen b -f "$tmp/long" --temp 0 --prefix-disk "$kv" --prefix-min 100000
check "another version serves nobody" test "$known" -eq 0
check "one line says so" test "$(grep -c '^--prefix-disk: .*version 255, expected' "$tmp/err")" -eq 1
echo note >"$kv/note"
gen b -f "$tmp/long" --temp 0 --prefix-disk "$kv"
err_has "ignoring 1 files that are not entries" "other files are reported"
check "and left alone" test -e "$kv/note"

# SIZE: the least recently used go.
rm -rf "$kv"
for i in 1 2; do gen a -p "$i $(lines 11)" --prefix-disk "$kv"; done
size=$(du -B1 -s "$kv" | cut -f1)
gen a -p "1 $(lines 11)" --prefix-disk "$kv"
gen a -p "3 $(lines 11)" --prefix-disk "$kv:$size"
check "SIZE: entries go" test "$(ls "$kv" | wc -l)" -eq 2
gen a -p "1 $(lines 11)" --prefix-disk "$kv" --prefix-min 100000
check "what was used stays" test "$known" -gt 0
gen a -p "2 $(lines 11)" --prefix-disk "$kv" --prefix-min 100000
check "what was not goes" test "$known" -eq 0

# Several processes at once; killed ones.
rm -rf "$kv"
for i in 1 2 3 4; do
    for k in 1 2; do
        "$RUN" generate -m "$m" --chunk 64 --prefix-min 64 -n 16 --ignore-eos --quiet --temp 0 -p "$i $(lines 11)" \
            --prefix-disk "$kv" >"$tmp/at.$i.$k" 2>>"$tmp/at.err" &
    done
    wait
done
bad=0
for i in 1 2 3 4; do
    plain want -p "$i $(lines 11)" --temp 0
    gen got -p "$i $(lines 11)" --temp 0 --prefix-disk "$kv"
    for f in at.$i.1 at.$i.2 got; do cmp -s "$tmp/$f" "$tmp/want" || bad=$((bad + 1)); done
    [ "$known" -eq 320 ] || bad=$((bad + 1))
done
check "two processes at once: the same texts, and all is known" test "$bad" -eq 0
check "and no complaints" test ! -s "$tmp/at.err"
plain want -f "$tmp/long" --temp 0
bad=0
for i in $(seq "${KILLS:-4}"); do
    "$RUN" generate -m "$m" --chunk 64 --prefix-min 64 -n 100 --ignore-eos --quiet -p "$i $(lines 10)" --prefix-disk "$kv" \
        >/dev/null 2>&1 &
    pid=$!
    sleep "0.$(awk -v seed="$i$$" 'BEGIN { srand(seed); printf "%03d", 250 * rand() }')"
    kill -9 "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    gen got -f "$tmp/long" --temp 0 --prefix-disk "$kv"
    grep -q 'prefix-disk' "$tmp/err" && bad=$((bad + 1))
    cmp -s "$tmp/got" "$tmp/want" || bad=$((bad + 1))
done
check "killed ${KILLS:-4} times: nothing is broken" test "$bad" -eq 0
check "and nothing is left of it" test -z "$(find "$kv" -name '*.part')"

# Chats: each turn's prompt, with what was said before.
rm -rf "$kv"
{ lines 3; echo; lines 3; echo; echo 'And you?'; } >"$tmp/turns"
chat() { "$RUN" chat -m "$m" --chunk 16 --ctx 480 -n 12 --temp 0.8 --seed 3 "$@" <"$tmp/turns" >"$tmp/out" 2>"$tmp/err"; }
for a in full actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31; do
    chat --attn "$a" --quiet && cp "$tmp/out" "$tmp/want"
    chat --attn "$a" --prefix-disk "$kv" --prefix-min 16 --json "$tmp/json"
    check "$a: a chat says what it says without the store" cmp -s "$tmp/out" "$tmp/want"
    check "nothing was known" test "$(jq -c '[.results[].prefix_tokens]' <"$tmp/json")" = '[0,0,0]'
    chat --attn "$a" --prefix-disk "$kv" --prefix-min 16 --json "$tmp/json"
    check "again, with the same texts" cmp -s "$tmp/out" "$tmp/want"
    check "both long turns are known" test "$(jq '[.results[:2][].prefix_tokens > 64] | all' <"$tmp/json")" = true
done

# Evaluations: results do not change, and a later run knows the contexts.
answers() { jq -c 'del(.seconds, .started)' <"$1"; } # all but times
evals() { # evals NAME ARGS...: without the store, with it, and again
    ev=$1
    rm -rf "$kv"
    run eval "$@" -m "$m" --quiet -o "$tmp/$ev.0.jsonl"
    shift
    run eval "$ev" "$@" -m "$m" --prefix-disk "$kv" --prefix-min 32 -o "$tmp/$ev.1.jsonl"
    run eval "$ev" "$@" -m "$m" --prefix-disk "$kv" --prefix-min 32 -o "$tmp/$ev.2.jsonl"
    for i in 0 1 2; do answers "$tmp/$ev.$i.jsonl" >"$tmp/$ev.$i"; done
    check "eval $ev: the answers are those without the store" cmp -s "$tmp/$ev.0" "$tmp/$ev.1"
    check "and there are some" test -s "$tmp/$ev.0"
    check "again" cmp -s "$tmp/$ev.0" "$tmp/$ev.2"
    check "with most of the prompts known" sh -c "sed -n 's/.*: \([0-9]*\) of \([0-9]*\) prompt tokens were cached.*/\1 \2/p' '$tmp/err' |
        awk '{ known += \$1; all += \$2 } END { exit !(all > 0 && 2 * known > all) }'"
}
set -- --attn full,quest:page=4,streaming --budget 32 --skip 0 --chunk 32 --limit 1
evals longbench --protocol decode --max-length 200 --ctx 900 "$@"
evals infinitebench --max-length 200 --ctx 800 "$@"
evals scbench --max-length 200 --ctx 2000 "$@"
evals ruler --task niah_single_1,fwe --length 700 --samples 2 --jobs 2 --attn full,quest:page=4 --budget 32 --chunk 32
run eval longbench -m "$m" --max-length 200 --ctx 900 --prefix-disk "$kv" "$@"
err_has "--prefix-disk: streaming" "a strategy that leaves nothing is named, and runs"
refused 1 "--prefix-disk: not supported with --draft fier" "so are a strategy's drafts" eval longbench -m "$m" --limit 1 --max-length 200 --ctx 900 \
    --prefix-disk "$kv" --draft fier
refused 1 "--prefix-disk: streaming" "alone it is refused" eval longbench -m "$m" --attn streaming --limit 1 --max-length 200 \
    --ctx 900 --prefix-disk "$kv"

# Refused values.
for size in 5q 0 -3 '' big; do
    refused 2 "--prefix-disk: '$size' after the folder, expected a size" "SIZE '$size'" generate -m "$m" -p x --prefix-disk "$kv:$size"
done
refused 2 "missing folder name" "no folder" generate -m "$m" -p x --prefix-disk ""
gen a -f "$tmp/long" --prefix-disk "$tmp/a:b/"
check "a folder with a colon" test "$(ls "$tmp/a:b" | wc -l)" -eq 1
refused 1 "--prefix-disk: $m/config.json" "a file" generate -m "$m" -p x --prefix-disk "$m/config.json"
refused 1 "--prefix-disk: $tmp/no/kv: No such file" "a folder that cannot be made" generate -m "$m" -p x --prefix-disk "$tmp/no/kv"
if [ "$(id -u)" -ne 0 ]; then
    mkdir "$tmp/shut" && chmod 500 "$tmp/shut"
    refused 1 "not writable" "a folder that cannot be written" generate -m "$m" -p x --prefix-disk "$tmp/shut"
fi
chmod 755 "$kv"
refused 2 "expected 0700" "prompts that others can read" generate -m "$m" -p x --prefix-disk "$kv"
refused 2 "expected 0700" "before prompts are made" eval longbench -m "$m" --prefix-disk "$kv" --limit 1
chmod 700 "$kv"
refused 2 "--prefix-disk and --load" "a session that has begun" generate -m "$m" --prefix-disk "$kv" --load "$tmp/x"
refused 1 "--prefix-disk: a session in --kv-tier disk" "--kv-tier" generate -m "$m" -p x --prefix-disk "$kv" --kv-tier disk
refused 2 "--prefix-disk: supports one process" "--tp" generate -m "$m" -p x --prefix-disk "$kv" --tp 2
refused 2 "prefix-min" "no number" generate -m "$m" -p x --prefix-disk "$kv" --prefix-min 0

# The server's folder is the same, at the same time too.
run serve -m "$m" --port 0 --host 999.1 --insecure
if ! command -v curl >/dev/null || grep -q 'libmicrohttpd' "$tmp/err"; then
    skip "no server, or no curl"
    finish
    exit 0
fi
trap 'kill "$server" 2>/dev/null; rm -rf "$tmp"' EXIT
rm -rf "$kv"
gen a -f "$tmp/long" --temp 0 --prefix-disk "$kv"
serve() {
    : >"$tmp/log" # the previous server's log has another address
    "$RUN" serve -m "$m" --port 0 --quiet --prefix-shared --prefix-min 64 --prefix-disk "$kv" >"$tmp/log.out" 2>"$tmp/log" </dev/null &
    server=$!
    for _ in $(seq 200); do
        url=$(sed -n 's/^listening on //p' "$tmp/log")
        [ -z "$url" ] || break
        sleep 0.1
    done
}
serve
ask() { # ask FILE: how many tokens the server knew, its text
    jq -Rs '{prompt: ., max_tokens: 16, temperature: 0, ignore_eos: true}' <"$1" |
        curl -s "$url/v1/completions" -d @- >"$tmp/answer"
    known=$(jq '.kvasir.prefix_tokens' <"$tmp/answer")
    jq -r '.choices[0].text' <"$tmp/answer" | sed 's/^ //' >"$tmp/text"
}
ask "$tmp/long"
check "the server finds what generate kept" test "$known" -eq 320
sed 's/^ //' "$tmp/a" >"$tmp/want"
check "and says the same" cmp -s "$tmp/text" "$tmp/want"
echo "Once more. $(cat "$tmp/long")" >"$tmp/other"
ask "$tmp/other"
check "it keeps another prompt" test "$known" -eq 0
for _ in $(seq 100); do
    [ "$(find "$kv" -type f ! -name '*.part' | wc -l)" -lt 2 ] || break
    sleep 0.1
done
gen a -f "$tmp/other" --temp 0 --prefix-disk "$kv"
check "generate finds what the server kept, while it runs" test "$known" -ge 320
check "but not the rows of its reply" test "$known" -le "$(jq '(.usage.prompt_tokens - 1) / 64 | floor * 64' <"$tmp/answer")"
sed 's/^ //' "$tmp/a" >"$tmp/want"
check "and says the same" cmp -s "$tmp/text" "$tmp/want"
echo "And again. $(cat "$tmp/long")" >"$tmp/third"
gen a -f "$tmp/third" --temp 0 --prefix-disk "$kv"
ask "$tmp/third"
check "and the server finds what generate stores in the same folder" test "$known" -ge 320
kill -TERM "$server"
wait "$server"
check "no complaints" test "$(grep -c prefix-disk "$tmp/log")" -eq 0
# Keys that changed: the first buffer of rows begins at byte 65536.
for f in "$kv"/*; do printf '\125\052\125' | dd of="$f" bs=1 seek=65637 conv=notrunc 2>/dev/null; done
entries=$(find "$kv" -type f | wc -l)
serve
ask "$tmp/other"
check "a server computes the prompt of a damaged entry" test "$known" -eq 0
check "with the same text" cmp -s "$tmp/text" "$tmp/want"
check "one line says so" test "$(grep -c "^--prefix-disk: .*: damaged: 'K rows' of layer 0: bytes 65536 to" "$tmp/log")" -eq 1
ask "$tmp/other"
ask "$tmp/other"
check "the next request keeps it again" test "$known" -ge 320
kill -TERM "$server"
wait "$server"
check "in place of the damaged file" test "$(find "$kv" -type f | wc -l)" -eq "$entries"
finish
