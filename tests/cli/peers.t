# SPDX-License-Identifier: MIT
# scripts/peers without the peer: options, and the picture of rows that are known. Nothing is fetched.
. "$SRCDIR/tests/cli/lib.sh"
PYTHON=${PYTHON:-python3}
"$PYTHON" -c 1 2>/dev/null || skip_all "python3 is missing"
export PYTHONDONTWRITEBYTECODE=1
peers() { ran "$PYTHON" "$SRCDIR/scripts/peers" "$@"; } # peers ARGS...: as run of lib.sh
bad() { # bad STATUS TEXT NAME ARGS...: as refused of lib.sh
    want=$1 text=$2 name=$3
    shift 3
    peers --dir "$tmp/none" "$@"
    is_refusal "$want" "$text" "$name"
}
peers --help
out_has "Usage: scripts/peers" "--help"
bad 2 "--weights: 'q3' is not one of bf16, q8, q4" "unknown weights" --run "$RUN" --weights bf16,q3
bad 2 "--ctx: 'many' is not a number of tokens" "a context that is no number" --run "$RUN" --ctx 4k,many
bad 2 "--repeat 0: expected at least 1" "no round" --run "$RUN" --repeat 0
bad 2 "--shape: 'llama-9' is not one of llama-3.2-1b, qwen3-30b-a3b, tiny" "an unknown shape" --run "$RUN" --shape llama-9
bad 2 "--shape: 'tiny:layers=0' is not one of" "no layer" --run "$RUN" --shape tiny:layers=0
bad 2 "unrecognized arguments: --fast" "an unknown option" --run "$RUN" --fast
bad 2 "argument --dir: expected one argument" "an option without its value" --dir
bad 1 "no such program" "no program to time" --run "$tmp/nothing"
check "nothing was made" test ! -e "$tmp/none"

# ---- GGUF files, with a stand-in for llama-bench ----
bad 1 "--gguf $tmp/no.gguf: no such file" "a file that is missing" --run "$RUN" --gguf "$tmp/no.gguf"
cp "$SRCDIR/tests/data/gguf/llama.gguf" "$SRCDIR/tests/data/gguf/qwen3.gguf" "$tmp"
bad 2 "two files have the same name" "two files of one name" --run "$RUN" --gguf "$tmp/llama.gguf,$SRCDIR/tests/data/gguf/llama.gguf"
if "$PYTHON" -m venv --without-pip "$tmp/peers/venv" >"$tmp/out" 2>"$tmp/err"; then
    bin=$tmp/peers/llama-cpp-python-1/build/bin
    mkdir -p "$bin"
    touch "$tmp/peers/venv/done" "$bin/../done"
    cat >"$bin/llama-bench" <<'END'
#!/bin/sh
[ "$1" = -m ] || exit 1
case "$*" in *"-fa on") on=1 ;; *) on=0 ;; esac
echo "$2" | tr , '\n' | while read -r f; do
    case $f in *llama.gguf) speed=$((2 + on)) ;; *) speed=$((2 - on)) ;; esac # with -fa on, one is faster, one slower
    echo "{\"model_filename\": \"$f\", \"samples_ts\": [$speed, $((speed + 2))], \"build_commit\": \"c\", \"cpu_info\": \"cpu\"}"
done
END
    chmod +x "$bin/llama-bench"
    peers --dir "$tmp/peers" --version 1 --run "$RUN" --gguf "$tmp/llama.gguf,$tmp/qwen3.gguf" --attn full --ctx 0 \
        --prompt - --threads 1 --json "$tmp/rows"
    out_has "GGUF files, 1 threads" "a table"
    check "a row for each file" test "$status" -eq 0 -a "$(grep -c '^| decode at 0 ' "$tmp/out")" -eq 2
    out_has "| llama | 4.0 (25.0 %) fa |" "flash attention where it is faster"
    out_has "| qwen3 | 3.0 (33.3 %) |" "no flash attention where it is slower"
    check "the setting in JSON" grep -q '"llama.cpp", "tokens_per_s": 4.0.*"flash_attention": "on"' "$tmp/rows"
    check "by both programs" test "$(grep -c '"weights": "qwen3", .*"name": "full"' "$tmp/rows")" -eq 1
    check "converted weights are cached in the folder" test -d "$tmp/peers/kvasir"
else
    skip "GGUF files: python3 has no venv"
fi

cat >"$tmp/rows.jsonl" <<'END'
{"peers": "llama.cpp", "package": "p", "about": {}, "shape": "tiny", "threads": 2}
{"weights": "q8", "phase": "decode", "tokens": 0, "name": "llama.cpp", "tokens_per_s": 10.0}
{"weights": "q8", "phase": "decode", "tokens": 4096, "name": "llama.cpp", "tokens_per_s": 5.0}
{"weights": "q8", "phase": "decode", "tokens": 0, "name": "full", "tokens_per_s": 20.0}
{"weights": "q8", "phase": "decode", "tokens": 4096, "name": "full", "tokens_per_s": 10.0}
{"weights": "q8", "phase": "prompt", "tokens": 512, "name": "full", "tokens_per_s": 900.0}
END
if "$PYTHON" -c "import matplotlib" 2>/dev/null; then
    peers --plot "$tmp/rows.jsonl" -o "$tmp/p.svg"
    check "a picture" test "$status" -eq 0
    cp "$tmp/p.svg" "$tmp/out"
    for text in ">llama.cpp<" ">full<" ">empty<" ">4k<" "tiny, q8, 2 CPU threads"; do out_has "$text" "the picture: '$text'"; done
else
    skip "the picture: no matplotlib"
fi
head -n 1 "$tmp/rows.jsonl" >"$tmp/head.jsonl"
bad 1 "no decode row with q8 weights" "a file without decode" --plot "$tmp/head.jsonl" -o "$tmp/x.svg"
bad 1 "No such file" "no file" --plot "$tmp/no.jsonl" -o "$tmp/x.svg"
echo '{"command":"bench"}' >"$tmp/other.jsonl"
bad 1 "not a result file of scripts/peers" "other results" --plot "$tmp/other.jsonl" -o "$tmp/x.svg"
bad 2 "--plot requires -o PICTURE.svg" "no place for the picture" --plot "$tmp/rows.jsonl"
finish
