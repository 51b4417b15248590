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
get /v1/models/
out_has '"id":"llama31-f32-tied"' "/v1/models/ with a final slash"
get /v1/models -I
is_code 200 "HEAD"
get /v1/completions -D "$tmp/head"
check "405 names the method" grep -qi '^allow: POST' "$tmp/head"
get /v1/completions -H 'Content-Encoding: gzip' -d '{"prompt":"a"}'
is_code 415 "a compressed body"
get /v1/completions -H 'Content-Encoding: identity' -H 'Expect: 100-continue' -d '{"prompt":"a","max_tokens":1}'
is_code 200 "identity, and Expect: 100-continue"
# field NAME MEMBERS: the error of a strategy names the field.
field() {
    get /v1/completions -d "{\"prompt\":\"a\",$2}"
    check "param of $2: $1" sh -c "test $code = 400 && grep -q '\"param\":\"$1\"' '$tmp/out' && ! grep -q -e '--[a-z]*[ :]' '$tmp/out'"
}
field attn '"attn":"nope"'
field attn '"attn":"h2o:budget=8:recent=9"'
field attn '"attn":"kivi","kv":"q8"'
field budget '"attn":"quest","budget":"x"'
field kv '"kv":"q9"'
field skip '"skip":"x"'
field draft '"draft":"nope:n=1"'
# body CODE TEXT BODY: the answer to a body.
body() {
    get /v1/completions -H 'Content-Type: text/plain' -d "$3"
    check "body '$3': $1" sh -c "test $code = $1 && grep -qF '$2' '$tmp/out'"
}
body 200 '"text"' '{"prompt":"a","max_tokens":1,"n":16}'
body 400 "presence_penalty" '{"prompt":"a","presence_penalty":NaN}'
body 400 "the body: not valid JSON" ''
body 400 "the body: not valid JSON" null
body 400 "the top level is not a JSON object" '[]'
get /v1/embeddings -d '{"input":"a"}'
check "an unknown path" grep -qF '"unknown path /v1/embeddings"' "$tmp/out"
get /v1/completions -X DELETE
check "a method" grep -qF 'expected method POST, found DELETE' "$tmp/out"
# prompt_tokens MEMBERS: of a chat.
prompt_tokens() {
    get /v1/chat/completions -d "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":1$1}"
    jq .usage.prompt_tokens <"$tmp/out"
}
echo '[{"role": "user", "content": "Hi"}]' >"$tmp/talk"
check "a request and run template: the same ids" test "$(prompt_tokens "")" -eq "$("$RUN" template -m "$m" --messages "$tmp/talk" --ids | wc -w)"
check "chat_template_kwargs and --template-arg: the same ids" test "$(prompt_tokens ',"chat_template_kwargs":{"add_generation_prompt":false}')" -eq \
    "$("$RUN" template -m "$m" --messages "$tmp/talk" --ids --template-arg add_generation_prompt=false | wc -w)"
get /v1/completions -d '{"prompt":"It was","max_tokens":6,"temperature":0}'
jq -c '.choices[0].text' <"$tmp/out" >"$tmp/greedy"
get /v1/completions -d '{"prompt":"It was","max_tokens":6,"top_p":0,"n":2,"seed":1}'
check "top_p 0 is greedy" test "$(jq -c '.choices[].text' <"$tmp/out" | sort -u)" = "$(cat "$tmp/greedy")"
get /v1/completions -d '{"prompt":"It was","max_tokens":24,"temperature":0,"ignore_eos":true,"frequency_penalty":2,"presence_penalty":2,"return_token_ids":true}'
is_code 200 "frequency and presence penalties"
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
long=$(yes 'Alice was beginning to get very tired of sitting by her sister on the bank.' | head -n 8 | tr '\n' ' ')
# events FIELDS: the JSON events of a stream of 4 tokens after a long prompt, in $tmp/events.
events() {
    get /v1/completions -N -d "{\"prompt\":\"$long\",\"max_tokens\":4,\"ignore_eos\":true,\"temperature\":0,\"stream\":true$1}"
    sed -n 's/^data: {/{/p' "$tmp/out" >"$tmp/events"
}
events ',"return_progress":true,"n":2'
check "return_progress: each chunk of the prompt is reported, up to its end" jq -es '[.[].prompt_progress // empty] |
    length > 2 and ([.[].processed] | . == unique and .[0] == 64) and .[-1].processed == .[-1].total and all(.cache == 0)' "$tmp/events"
check "before the first text, and no other chunk has it" jq -es 'map(has("prompt_progress")) | . == (sort | reverse)' "$tmp/events"
check "a chunk with progress has no choices" jq -es '[.[] | select(.prompt_progress) | .choices] | all(. == [])' "$tmp/events"
events ""
check "other streams have no progress" sh -c "! grep -q progress '$tmp/events'"
get /lens -N -d "{\"prompt\":\"$long\",\"strategies\":[\"quest:budget=64\"],\"max_tokens\":2,\"return_progress\":true}"
check "a lens reports progress until its first step" jq -es '[.[].kind] as $k | [.[] | select(.kind == "progress")] as $p |
    ($p | length > 2) and ($p[-1].total - $p[-1].done == 2) and ($k | rindex("progress") < index("step"))' "$tmp/out"
get /v1/completions -d '{"prompt":"Alice was beginning to get very tired","max_tokens":4,"attn":"quest","budget":64,"skip":0,"decode":3,"colour":1}'
out_has '"exact_prompt":false' "the prompt's end as decode steps"
out_has '"ignored":["colour"]' "an unknown field is reported"
get /v1/completions -d '{"prompt":"Alice was beginning to get very tired","max_tokens":4,"model":"q3","seed":1}'
out_has '"exact_prompt":false' "an alias with its decode steps"
out_has '"attn":"quest' "and its strategy"
get /v1/models/small
out_has '"id":"small"' "an alias is a model"
get /v1/models
check "aliases follow the model in the list" jq -e '[.data[].id] == ["llama31-f32-tied", "q3", "small"]' "$tmp/out"
get /v1/completions -d '{"prompt":"Alice","max_tokens":4,"model":"llama31-f32-tied@streaming:budget=16@decode=1"}'
out_has 'streaming' "a strategy in the model's name"
again="Alice was beginning to get very tired. Alice was beginning to get very tired. Alice was"
# More drafts, alone and in batches: tests/unit/test_serve.c.
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
special='<|im_start|>user\nHi<|im_end|>\n'
# rendered MESSAGES FIELDS: the prompt of a conversation.
rendered() {
    get /tokenize -d "{\"messages\":$1$2}"
    cp "$tmp/out" "$tmp/ids"
    get /detokenize -d "@$tmp/ids"
    jq -rj .prompt <"$tmp/out" >"$tmp/prompt"
}
hi='[{"role":"user","content":"Hi"}]'
rendered "$hi" ',"chat_template_kwargs":{"add_generation_prompt":false}'
printf '%s' "$hi" >"$tmp/hi.json"
"$RUN" template -m "$m" --messages "$tmp/hi.json" --template-arg add_generation_prompt=false >"$tmp/want"
check "/tokenize renders a chat as template does" cmp -s "$tmp/prompt" "$tmp/want"
rendered '[{"role":"user","content":"Hi"},{"role":"assistant","content":"One, two"}]'
check "a last message from the assistant is continued" test "$(tail -n 1 "$tmp/prompt" | grep -c 'One, two$')" = 1
get /tokenize -d "{\"prompt\":\"$special\"}"
n_ids=$(jq .count <"$tmp/out")
get /v1/completions -d "{\"prompt\":\"$special\",\"max_tokens\":1}"
check "/tokenize and a completion count the same tokens" test "$(jq .usage.prompt_tokens <"$tmp/out")" = "$n_ids"
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
start --api-key-file "$tmp/keys" --strict --memory 1k --cors http://localhost:5173
get /v1/models
is_code 401 "no key"
get /v1/models -H "Authorization: Bearer wrong"
is_code 401 "a wrong key"
get /v1/models -H "Authorization: Bearer other"
is_code 200 "a key"
for form in 'bearer other' 'BEARER  other'; do
    get /v1/models -H "Authorization: $form"
    is_code 200 "Authorization: $form"
done
ask=authorization,content-type,x-stainless-os,x-stainless-retry-count
get /v1/chat/completions -X OPTIONS -D "$tmp/head" -H "Origin: http://localhost:5173" -H "Access-Control-Request-Headers: $ask"
is_code 204 "a preflight request"
check "allows the headers that it asks for" grep -qi "^access-control-allow-headers: $ask" "$tmp/head"
get /v1/chat/completions -X OPTIONS -D "$tmp/head" -H "Origin: http://localhost:5173" -H 'Access-Control-Request-Headers: a"<b>'
check "only names are repeated" grep -qi "^access-control-allow-headers: authorization, content-type" "$tmp/head"
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
# A reply is in the folder too.
turn() { # turn IDS ANSWER: asks with token ids
    get /v1/completions -d "{\"prompt\":$1,\"max_tokens\":100,\"temperature\":0,\"ignore_eos\":true,\"return_token_ids\":true}"
    jq -c '.choices' <"$tmp/out" >"$tmp/$2"
    known=$(jq '.usage.prompt_tokens_details.cached_tokens' <"$tmp/out")
}
start --prefix-disk "$tmp/turns" --prefix-min 64 --ctx 1024
get /tokenize -d "{\"prompt\":\"$long\"}"
first=$(jq -c '.tokens' <"$tmp/out")
turn "$first" first
second=$(jq -c --argjson first "$first" '$first + .[0].token_ids + $first[:20]' <"$tmp/first")
for _ in $(seq 200); do
    [ "$(find "$tmp/turns" -type f ! -name '*.part' | wc -l)" -lt 2 ] || break
    sleep 0.1
done
kill -9 "$server"
wait "$server" 2>/dev/null
start --prefix-disk "$tmp/turns" --prefix-min 64 --ctx 1024
turn "$second" warm
want=$(jq -n --argjson ids "$second" '($ids | length - 21) / 64 | floor * 64')
check "a reply is known after kill -9, up to its last chunk" test "$known" -eq "$want"
turn "$second" again
check "and the second prompt, with the same answer" cmp -s "$tmp/warm" "$tmp/again"
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

start --log requests --api-key-file "$tmp/keys"
get /v1/completions -H "Authorization: Bearer secret" -d '{"prompt":"Hidden words","max_tokens":3,"ignore_eos":true}'
get /v1/chat/completions -H "Authorization: Bearer secret" \
    -d '{"messages":[{"role":"user","content":"a"}],"max_tokens":1}'
get /v1/models
stop
check "of a chat with thinking, tools and calls" grep -qE \
    '200 \| prompt [0-9]+, cached 0, new 1 tokens \| thinking 0, tools 0, choice none, no constraint, calls 0, length \|' \
    "$tmp/log"
check "--log requests: a line per request" grep -qE \
    '^[0-9-]+T[0-9:]+Z key [a-z]+ /v1/completions 200 \| prompt [0-9]+, cached 0, new 3 tokens \| [0-9.]+ s$' "$tmp/log"
check "a refused one has its address" grep -qE ' 127\.0\.0\.1 /v1/models 401 \|' "$tmp/log"
check "no texts" sh -c "! grep -q Hidden '$tmp/log'"
start --host 0.0.0.0 --insecure
url="http://127.0.0.1:${url##*:}"
name=$(sed -n 's/^accepted in Host headers: localhost //p' "$tmp/log" | cut -d' ' -f1)
get /v1/models -H "Host: $name:80"
check "all addresses: the machine's own names are accepted ($name)" test "$code" = 200 -a -n "$name"
get /v1/models -H "Host: evil.example"
is_code 421 "others are not"
out_has "--host-name adds one" "and the error has the option"
stop
refused 2 "--api-key-file" "the network needs a key" serve -m "$m" --host 0.0.0.0 --port 0
refused 2 "expected an address" "an address" serve -m "$m" --host nowhere --insecure --port 0
chmod 644 "$tmp/keys"
refused 2 "mode 644 lets others access the file" "keys that others can read" serve -m "$m" --api-key-file "$tmp/keys" --port 0
refused 2 "--template nobody: no such file or template" "a template that there is not" serve -m "$m" --template nobody --port 0
refused 2 "nobody" "a strategy that there is not" serve -m "$m" --attn nobody --port 0
refused 2 "--alias q: " "an alias of a strategy that there is not" serve -m "$m" --alias q=nobody --port 0 --quiet
refused 2 "--alias =quest: expected NAME=SPEC" "an alias without a name" serve -m "$m" --alias =quest --port 0 --quiet
refused 2 "--log all: expected requests" "another log" serve -m "$m" --log all --port 0 --quiet
refused 2 "--prefill-share 1: must be in (0, 1)" "a share for prompts alone" serve -m "$m" --prefill-share 1 --port 0 --quiet
finish
