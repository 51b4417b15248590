# SPDX-License-Identifier: MIT
# shellcheck shell=sh
# TAP for command-line tests. $RUN is the program, $SRCDIR the sources.
n=0
models="$SRCDIR/tests/data/models"
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

pass() { n=$((n + 1)); echo "ok $n - $1"; }
fail() { n=$((n + 1)); echo "not ok $n - $1"; }
skip() { n=$((n + 1)); echo "ok $n # SKIP $1"; }
finish() { echo "1..$n"; }
skip_all() { echo "1..0 # SKIP $1"; exit 0; }

# run ARGS...: status in $status, output in $tmp/out and $tmp/err.
run() {
    "$RUN" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    status=$?
}
# Shows what the last run printed.
show() { sed 's/^/#   out: /' "$tmp/out" | head -5; sed 's/^/#   err: /' "$tmp/err" | head -5; }
# check NAME COMMAND...: passes when the command succeeds.
check() {
    name=$1
    shift
    if "$@" >/dev/null 2>&1; then pass "$name"; else fail "$name"; show; fi
}
out_has() { check "$2" grep -qF -- "$1" "$tmp/out"; }
err_has() { check "$2" grep -qF -- "$1" "$tmp/err"; }
# refused STATUS TEXT NAME ARGS...: one line on stderr that holds TEXT, this exit status, nothing on stdout.
refused() {
    want=$1 text=$2 name=$3
    shift 3
    run "$@" --quiet
    if [ "$status" -eq "$want" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ ! -s "$tmp/out" ] && grep -qF -- "$text" "$tmp/err"; then
        pass "$name"
    else
        fail "$name (status $status, want $want; text '$text')"
        show
    fi
}
has_sentencepiece() { ! "$RUN" info "$models/llama2-linear-f16" 2>/dev/null | grep -q 'built without SentencePiece'; }
