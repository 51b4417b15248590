# SPDX-License-Identifier: MIT
# The first commands of three users, on the built-in model and as README.md and doc/ give them, with shorter texts.
. "$SRCDIR/tests/cli/lib.sh"
has_sentencepiece || skip_all "the built-in model needs SentencePiece"
cd "$tmp" || exit 1
fact="The pass key is 68421. What is the pass key? The pass key is"
yes "The grass is green. The sky is blue. Here we go." | head -n 40 >text
printf %s "$fact" >>text

# ---- at a terminal ----
works "help" help
out_has "chat " "help names the commands"
works "help of a command" help generate
works "a continuation" generate -p "She looked at him, and said" -n 8 --temp 0.5 --seed 1
works "a fact" generate -p "$fact" -n 6
out_has 68421 "is found"
printf '%s\n' "$fact" >lines
"$RUN" chat -n 6 <lines >out 2>err
check "a conversation without options" grep -q 68421 out
works "a strategy" generate -f text -n 6 --attn quest --budget 128
out_has 68421 "finds it too"
works "its keys" --help-attn quest
works "a saved session" generate -f text -n 0 --save doc.kv
works "a question to it" generate --load doc.kv -n 6
out_has 68421 "is answered"
works "drafts" generate -f text -n 6 --draft ngram
works "the model" info
works "tokens" tokenize

# ---- a researcher ----
run eval
check "eval lists the evaluations" test "$status" -eq 2
check "with a line for each" grep -q '^  longbench ' "$tmp/err"
works "passkeys" passkey --ctx 512 --trials 2 --attn full,streaming,quest --budget 64 --json passkey.json
works "needles" eval niah --ctx 256 --trials 2 --attn full,quest --budget 64
works "recall of a selection" eval recall -f text --ctx 512 --attn quest,fier --budget 64
works "samples of a benchmark" eval longbench --limit 1 --dataset qasper --attn full,quest --budget 64 -o longbench.jsonl
works "the same command again" eval longbench --limit 1 --dataset qasper --attn full,quest --budget 64 -o longbench.jsonl
works "perplexity" eval pg19 --ctx 256 --attn full,quest --budget 128
works "the lens" lens -f text --attn quest,streaming -n 4 -o lens.html
works "speed" bench --ctx 256 --attn full --phase decode
check "files for later" test -s passkey.json -a -s longbench.jsonl -a -s lens.html

# ---- over HTTP ----
"$RUN" serve --port 0 >/dev/null 2>served &
server=$!
trap 'kill $server 2>/dev/null; remove_tmp' EXIT
while ! grep -q '^listening on ' served && kill -0 $server 2>/dev/null; do sleep 0.1; done
url=$(sed -n 's/^listening on //p' served)
if [ -z "$url" ] || ! command -v curl >/dev/null; then
    skip "no server or no curl"
    finish
    exit
fi
# asked TEXT NAME CURL-ARGS...: the answer has a text.
asked() {
    text=$1 name=$2
    shift 2
    ran curl -sS --max-time 60 "$@"
    out_has "$text" "$name"
}
asked ok "health" "$url/health"
asked '"demo"' "the model's name" "$url/v1/models"
asked '"text"' "a completion" "$url/v1/completions" -d '{"prompt": "It was a dark night, and the", "max_tokens": 8}'
message='"messages": [{"role": "user", "content": "'$fact'"}], "max_tokens": 6'
asked 68421 "a chat" "$url/v1/chat/completions" -d "{$message}"
asked '[DONE]' "a stream" "$url/v1/chat/completions" -d "{$message, \"stream\": true}"
asked '"attn":"quest' "a strategy" "$url/v1/chat/completions" -d "{$message, \"attn\": \"quest\", \"budget\": 64}"
asked '"count"' "tokens" "$url/tokenize" -d '{"prompt": "dark night"}'
asked 'kvasir' "counters" "$url/metrics"
asked '<!DOCTYPE html>' "the page" "$url/"
asked '"error"' "an error" "$url/v1/completions" -d '{"prompt": 1.5}'
finish
