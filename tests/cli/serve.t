# SPDX-License-Identifier: MIT
. "$SRCDIR/tests/cli/lib.sh"
m="$models/llama31-f32-tied"
command -v curl >/dev/null || skip_all "curl is not here"
run serve -m "$m" --port 0 --host 999.1 --insecure
if grep -q 'libmicrohttpd' "$tmp/err"; then skip_all "built without libmicrohttpd"; fi
trap 'kill "$server" 2>/dev/null; remove_tmp' EXIT
server=

# start ARGS...: a server; its address in $url.
start() {
    : >"$tmp/log" # that of the server before says another address
    "$RUN" serve -m "$m" --port 0 --quiet "$@" >"$tmp/log.out" 2>"$tmp/log" </dev/null &
    server=$!
    for _ in $(seq 200); do
        url=$(sed -n 's/^listening on //p' "$tmp/log")
        [ -z "$url" ] || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    fail "the server starts"
    sed 's/^/#   /' "$tmp/log"
    finish
    exit 1
}
# stop: ends it; its status in $status.
stop() {
    kill -TERM "$server"
    wait "$server"
    status=$?
    server=
}
# get PATH [ARGS...]: the answer in $tmp/out, its status in $code.
get() {
    path=$1
    shift
    code=$(curl -s -o "$tmp/out" -w '%{http_code}' "$@" "$url$path" 2>"$tmp/err")
    echo >>"$tmp/out"
}
is_code() { check "$2" test "$code" = "$1"; }

start --alias q3=quest:budget=64:skip=0@decode=3,small=streaming:budget=16
check "the first line says where" sh -c "head -n 1 '$tmp/log' | grep -qE '^listening on http://127\.0\.0\.1:[0-9]+$'"
get /health
out_has '"ok"' "/health"
get /v1/models
out_has '"id":"llama31-f32-tied"' "/v1/models"
"$RUN" generate -m "$m" -p "Alice was beginning" -n 12 --temp 0 --chunk 64 --quiet >"$tmp/want" 2>/dev/null
get /v1/completions -d '{"prompt":"Alice was beginning","max_tokens":12,"temperature":0}'
jq -r '.choices[0].text' <"$tmp/out" | sed 's/^ //' >"$tmp/text"
sed 's/^ //' "$tmp/want" >"$tmp/want2"
check "a completion is the text of generate" cmp -s "$tmp/text" "$tmp/want2"
check "usage" test "$(jq '.usage.completion_tokens' <"$tmp/out")" -eq 12
get /v1/chat/completions -d '{"messages":[{"role":"user","content":"Hello"}],"max_tokens":8,"temperature":0}'
cp "$tmp/out" "$tmp/chat"
check "a chat" test "$(jq -r '.choices[0].message.role' <"$tmp/out")" = assistant
"$RUN" generate -m "$m" --chat -p Hello -n 8 --temp 0 --chunk 64 --quiet >"$tmp/want" 2>/dev/null
jq -r '.choices[0].message.content' <"$tmp/chat" >"$tmp/text"
check "is the text of generate --chat" cmp -s "$tmp/text" "$tmp/want"
get /v1/chat/completions -N -d '{"messages":[{"role":"user","content":"Hello"}],"max_tokens":8,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}'
check "a stream ends" test "$(grep . "$tmp/out" | tail -n 1)" = "data: [DONE]"
sed -n 's/^data: {/{/p' "$tmp/out" | jq -rj '.choices[].delta.content // ""' >"$tmp/text"
jq -rj '.choices[0].message.content' <"$tmp/chat" >"$tmp/want"
check "its pieces are the text" cmp -s "$tmp/text" "$tmp/want"
check "usage at its end" test "$(sed -n 's/^data: {/{/p' "$tmp/out" | tail -n 1 | jq '.usage.completion_tokens')" -eq "$(jq '.usage.completion_tokens' <"$tmp/chat")"
get /v1/completions -d '{"prompt":"Alice was beginning to get very tired","max_tokens":4,"attn":"quest","budget":64,"skip":0,"decode":3,"colour":1}'
out_has '"exact_prompt":false' "the prompt's end as decode steps"
out_has '"ignored":["colour"]' "a field that nobody knows is told"
get /v1/completions -d '{"prompt":"Alice was beginning to get very tired","max_tokens":4,"model":"q3","seed":1}'
out_has '"exact_prompt":false' "an alias with its decode steps"
out_has '"attn":"quest' "and its strategy"
get /v1/models/small
out_has '"id":"small"' "an alias is a model"
get /v1/models
check "of the list, behind the model itself" jq -e '[.data[].id] == ["llama31-f32-tied", "q3", "small"]' "$tmp/out"
get /v1/completions -d '{"prompt":"Alice","max_tokens":4,"model":"llama31-f32-tied@streaming:budget=16@decode=1"}'
out_has 'streaming' "a strategy in the model's name"
again="Alice was beginning to get very tired. Alice was beginning to get very tired. Alice was"
# More drafts, one by one and beside others: tests/unit/test_serve.c.
ask="\"prompt\":\"$again\",\"max_tokens\":40,\"ignore_eos\":true,\"temperature\":0.9,\"seed\":4"
get /v1/completions -d "{$ask}"
jq -rj '.choices[0].text' <"$tmp/out" >"$tmp/want"
get /v1/completions -N -d "{$ask,\"draft\":\"ngram:adapt=off\",\"stream\":true}"
sed -n 's/^data: {/{/p' "$tmp/out" | jq -rj '.choices[].text' >"$tmp/text"
check "a stream with drafts is the same text" sh -c "test -s '$tmp/want' && cmp -s '$tmp/text' '$tmp/want'"
get /v1/completions -d '{"prompt":"Alice","draft":"ngram","attn":"h2o"}'
is_code 400 "a strategy that cannot verify"
check "the error names the field" jq -e '.error.param == "draft"' "$tmp/out"
get /v1/completions -d "{$ask,\"n\":3}"
jq -c '.choices[].text' <"$tmp/out" >"$tmp/text"
for seed in 4 5 6; do
    get /v1/completions -d "{\"prompt\":\"$again\",\"max_tokens\":40,\"ignore_eos\":true,\"temperature\":0.9,\"seed\":$seed}"
    jq -c '.choices[0].text' <"$tmp/out"
done >"$tmp/want"
check "n choices are n requests whose seeds follow each other" sh -c "test -s '$tmp/want' && cmp -s '$tmp/text' '$tmp/want'"
get /tokenize -d '{"prompt":"Alice was"}'
jq -c '{tokens: .tokens}' <"$tmp/out" >"$tmp/ids"
get /detokenize -d "@$tmp/ids"
out_has 'Alice was' "/tokenize and /detokenize"
get /metrics
out_has 'kvasir_requests_total{endpoint="/v1/completions",status="200"} ' "/metrics counts requests"
out_has 'kvasir_first_token_seconds_bucket{le="+Inf"} ' "and how long they took"
check "each series is there once" test -z "$(grep -v '^#' "$tmp/out" | sed 's/ [^ ]*$//' | sort | uniq -d)"
get /v1/completions -d '{"prompt":'
is_code 400 "broken JSON"
check "an error has four keys" test "$(jq -c '.error | keys' <"$tmp/out")" = '["code","message","param","type"]'
get /nothing
is_code 404 "no such path"
stop
check "SIGTERM ends it" test "$status" -eq 0
check "with nothing on standard output" test ! -s "$tmp/log.out"

printf 'ann secret\n# nobody\nbob other\n' >"$tmp/keys"
chmod 600 "$tmp/keys"
start --api-key-file "$tmp/keys" --strict --memory 1k
get /v1/models
is_code 401 "no key"
get /v1/models -H "Authorization: Bearer wrong"
is_code 401 "a wrong key"
get /v1/models -H "Authorization: Bearer other"
is_code 200 "a key"
get /health
is_code 200 "/health needs none"
get /v1/completions -H "Authorization: Bearer secret" -d '{"prompt":"a","colour":1}'
is_code 400 "--strict"
get /v1/completions -H "Authorization: Bearer secret" -d '{"prompt":"Alice","max_tokens":400}'
is_code 503 "what can never fit is refused"
out_has memory_exceeded "with the numbers"
stop

# More sequences in a step than one product of a vendor's leaves their bits.
start --batch 16
ask="\"prompt\":\"$again\",\"max_tokens\":24,\"ignore_eos\":true,\"temperature\":0,\"logprobs\":5"
get /v1/completions -d "{$ask}"
jq -c '.choices[0] | del(.index)' <"$tmp/out" >"$tmp/want"
get /v1/completions -d "{$ask,\"n\":16}"
jq -c '.choices[] | del(.index)' <"$tmp/out" | sort -u >"$tmp/text"
check "16 sequences at once have the text and logprobs of one alone" sh -c "test -s '$tmp/want' && cmp -s '$tmp/text' '$tmp/want'"
stop

# known KEY: asks for the same text with a key; how many tokens of it were known in $known.
known() {
    get /v1/completions -H "Authorization: Bearer $1" -d "{\"prompt\":\"$long\",\"max_tokens\":8,\"temperature\":0,\"logprobs\":2}"
    known=$(jq '.kvasir.prefix_tokens' <"$tmp/out")
    jq -c '.choices' <"$tmp/out" >"$tmp/choices"
}
long=$(yes 'Alice was beginning to get very tired of sitting by her sister on the bank.' | head -n 8 | tr '\n' ' ')
start --api-key-file "$tmp/keys" --prefix-min 128 --ctx 1024
known secret
check "nothing is known of a first prompt" test "$known" -eq 0
cp "$tmp/choices" "$tmp/cold"
known secret
check "the same prompt again is known" test "$known" -ge 128
check "up to its last chunk" test $((known % 64)) -eq 0
check "usage says so" test "$(jq '.usage.prompt_tokens_details.cached_tokens' <"$tmp/out")" -eq "$known"
check "and the answer is the same" cmp -s "$tmp/choices" "$tmp/cold"
known other
check "nothing is known to another key" test "$known" -eq 0
get /metrics -H "Authorization: Bearer other"
out_has 'kvasir_prefix_lookups_total{result="hit"} 1' "/metrics counts what was known"
stop
start --api-key-file "$tmp/keys" --prefix-min 128 --ctx 1024 --prefix-shared
known secret
known other
check "--prefix-shared: it is" test "$known" -ge 128
check "with the same answer" cmp -s "$tmp/choices" "$tmp/cold"
stop
start --prefix-ram 0 --prefix-min 128 --ctx 1024
known secret
known secret
check "--prefix-ram 0: nothing is kept" test "$known" -eq 0
stop

# Killed while it answers, keeps and writes: what is in the folder serves, and no answer changes. KILLS=100 for more.
start --prefix-disk "$tmp/store:64M" --prefix-min 128 --ctx 1024
known secret
stop
start --prefix-disk "$tmp/store:64M" --prefix-min 128 --ctx 1024
known secret
check "--prefix-disk: a prompt is known after a restart" test "$known" -ge 128
check "with the same answer" cmp -s "$tmp/choices" "$tmp/cold"
stop
bad=0
for i in $(seq "${KILLS:-4}"); do
    start --prefix-disk "$tmp/store" --prefix-min 128 --ctx 1024
    for k in 1 2 3; do
        curl -s -o /dev/null "$url/v1/completions" -d "{\"prompt\":\"$i $k $long\",\"max_tokens\":40,\"stream\":true}" &
    done
    sleep "0.$(awk -v seed="$i$$" 'BEGIN { srand(seed); printf "%03d", 200 * rand() }')"
    kill -9 "$server"
    wait 2>/dev/null
    start --prefix-disk "$tmp/store" --prefix-min 128 --ctx 1024
    known secret
    cmp -s "$tmp/choices" "$tmp/cold" && [ "$known" -ge 128 ] || bad=$((bad + 1))
    grep -q 'prefix-disk' "$tmp/log" && bad=$((bad + 1))
    ls "$tmp/store" | grep -q part && bad=$((bad + 1))
    stop
done
check "killed ${KILLS:-4} times: what was kept serves, nothing is broken" test "$bad" -eq 0
chmod 755 "$tmp/store"
refused 2 "expected 0700" "prompts that others can read" serve -m "$m" --port 0 --prefix-disk "$tmp/store"

refused 2 "--api-key-file" "the network needs a key" serve -m "$m" --host 0.0.0.0 --port 0
refused 2 "is not an address" "an address" serve -m "$m" --host nowhere --insecure --port 0
chmod 644 "$tmp/keys"
refused 2 "expected 0600" "keys that others can read" serve -m "$m" --api-key-file "$tmp/keys" --port 0
refused 2 "--template: unknown template 'nobody'" "a template that there is not" serve -m "$m" --template nobody --port 0
refused 2 "nobody" "a strategy that there is not" serve -m "$m" --attn nobody --port 0
refused 2 "--alias q: " "an alias of a strategy that there is not" serve -m "$m" --alias q=nobody --port 0 --quiet
refused 2 "--alias: '=quest', expected NAME=SPEC" "an alias without a name" serve -m "$m" --alias =quest --port 0 --quiet
refused 2 "--prefill-share: 1, expected above 0" "a share for prompts alone" serve -m "$m" --prefill-share 1 --port 0 --quiet
finish
