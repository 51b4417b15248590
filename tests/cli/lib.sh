# SPDX-License-Identifier: MIT
# shellcheck shell=sh
# TAP for command-line tests. $RUN is the program, $SRCDIR the sources.
n=0
models="$SRCDIR/tests/data/models"
tmp=$(mktemp -d) || exit 1
own_tmp=$tmp
remove_tmp() { rm -rf "$own_tmp"; } # what this made, whatever $tmp is by then
trap remove_tmp EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}log_path=$tmp/sanitizer"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:+$UBSAN_OPTIONS:}log_path=$tmp/sanitizer"

unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY # servers of tests are here

pass() { n=$((n + 1)); echo "ok $n - $1"; }
fail() { n=$((n + 1)); echo "not ok $n - $1"; }
skip() { n=$((n + 1)); echo "ok $n # SKIP $1"; }
# thin N: true for all but one in N calls where $THIN is set, as CI does under sanitizers: such a case is left out. CI
# runs all cases without them.
calls=0 left_out=0
thin() {
    calls=$((calls + 1))
    [ -n "${THIN-}" ] && [ $((calls % $1)) -ne 1 ] && left_out=$((left_out + 1))
}
# The plan; a sanitizer's report is a failure, whatever else the run did.
finish() {
    for report in "$tmp"/sanitizer.*; do
        [ ! -e "$report" ] || { fail "a sanitizer has nothing to report"; sed 's/^/# /' "$report" | head -20; }
    done
    echo "1..$n"
    [ $left_out -eq 0 ] || echo "# $left_out cases left out"
}
skip_all() { echo "1..0 # SKIP $1"; exit 0; }

# ran COMMAND...: status in $status, output in $tmp/out and $tmp/err.
ran() {
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    status=$?
}
run() { ran "$RUN" "$@"; }
# Shows what the last run printed.
show() { sed 's/^/#   out: /' "$tmp/out" | head -5; sed 's/^/#   err: /' "$tmp/err" | head -5; }
# check NAME COMMAND...: passes when the command succeeds.
check() {
    name=$1
    shift
    if "$@" >/dev/null 2>&1; then pass "$name"; else fail "$name"; show; fi
}
squeezed() { tr -s '\n ' '  '; }
# is_in TEXT FILE: wherever its lines are folded.
is_in() { grep -qF -- "$1" "$2" || squeezed <"$2" | grep -qF -- "$(printf %s "$1" | squeezed)"; }
out_has() { check "$2" is_in "$1" "$tmp/out"; }
err_has() { check "$2" grep -qF -- "$1" "$tmp/err"; }
# is_refusal STATUS TEXT NAME: of the last run: one line on stderr that holds TEXT, this exit status, nothing on stdout.
is_refusal() {
    if [ "$status" -eq "$1" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && [ ! -s "$tmp/out" ] && grep -qF -- "$2" "$tmp/err"; then
        pass "$3"
    else
        fail "$3 (status $status, want $1; text '$2')"
        show
    fi
}
# refused_by COMMAND STATUS TEXT NAME ARGS...: such a run by a command like `run`.
refused_by() {
    by=$1 want=$2 text=$3 name=$4
    shift 4
    "$by" "$@"
    is_refusal "$want" "$text" "$name"
}
run_quietly() { run "$@" --quiet; }
# refused STATUS TEXT NAME ARGS...: such a run of the program.
refused() { refused_by run_quietly "$@"; }
# works NAME ARGS...: a run of the program that ends with status 0.
works() {
    works=$1
    shift
    run "$@"
    check "$works" test "$status" -eq 0
}
has_sentencepiece() { ! "$RUN" info "$models/llama2-linear-f16" 2>/dev/null | grep -q 'built without SentencePiece'; }

# near FILE FILE: logits of the same shape, NMSE at most 1e-10.
near() {
    test "$(wc -c <"$1")" -eq "$(wc -c <"$2")" || return 1
    for f; do od -An -v -tf4 -w4 -j128 "$f" >"$f.txt"; done
    paste "$1.txt" "$2.txt" | awk '{ d = $1 - $2; e += d * d; s += $2 * $2 } END { exit !(NR > 100 && e <= 1e-10 * s) }'
}
# gone PID: or dead, and nobody has asked for its status.
gone() { ! grep -qs '^State:[[:space:]]*[^Z[:space:]]' "/proc/$1/status"; }
