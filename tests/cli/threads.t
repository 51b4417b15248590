# SPDX-License-Identifier: MIT
# Threads of the program: fewer than asked for, and how they wait.
. "$SRCDIR/tests/cli/lib.sh"
text=$(seq -s ' ' 1 60)
gen() { "$@" "$RUN" generate -p "$text" -n 8 --temp 0 --threads 2 >"$tmp/out" 2>"$tmp/err" </dev/null; }

gen env
cp "$tmp/out" "$tmp/want"
grep -q ' 2 threads' "$tmp/err" || skip_all "built without OpenMP"
for limit in OMP_THREAD_LIMIT=1 OMP_DYNAMIC=true OMP_MAX_ACTIVE_LEVELS=0; do
    gen env $limit
    check "$limit: the same text" cmp "$tmp/want" "$tmp/out"
done
gen env OMP_THREAD_LIMIT=1
err_has "1 of 2 threads (OpenMP grants no more)" "the first line has the threads that run"

# ---- how threads wait ----
# What the runtimes of OpenMP read when they start: libomp's if that one is there (clang), else libgomp's.
unset OMP_WAIT_POLICY GOMP_SPINCOUNT KMP_BLOCKTIME
if ldd "$RUN" | grep -q libomp; then
    variable=KMP_BLOCKTIME bounded=1 active=2147483647
else
    variable=GOMP_SPINCOUNT bounded=4000 active=30000000000
fi
libgomp() { [ $variable = GOMP_SPINCOUNT ]; } # reads and shows its settings although no thread starts
# spin COMMAND...: the value that the last runtime to start shows; output of the command in $tmp/out and $tmp/err.
spin() {
    OMP_DISPLAY_ENV=verbose "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    sed -n "s/.* $variable *= *'\([^']*\)'.*/\1/p" "$tmp/err" | tail -n 1
}
# waits VALUE NAME COMMAND...
waits() {
    want=$1 name=$2
    shift 2
    got=$(spin "$@")
    check "$name: $variable $got" test "$got" = "$want"
}
waits $bounded "generate" "$RUN" generate -p hi -n 2 --quiet
if libgomp; then
    waits $bounded "bench" "$RUN" bench --help
    waits $bounded "an evaluation" "$RUN" eval longbench --help
    waits 300000 "help needs no second start" "$RUN" --help
    waits 300000 "the value of another runtime wins" env KMP_BLOCKTIME=200 "$RUN" generate -p hi -n 2 --quiet
fi
waits 7 "the user's value wins" env $variable=7 "$RUN" generate -p hi -n 2 --quiet
waits $active "OMP_WAIT_POLICY=active wins" env OMP_WAIT_POLICY=active "$RUN" generate -p hi -n 2
waits 0 "OMP_WAIT_POLICY=passive wins" env OMP_WAIT_POLICY=passive "$RUN" generate -p hi -n 2
# State that a program could lose when it restarts itself.
waits $bounded "found through PATH" env PATH="$(dirname "$RUN"):$PATH" "$(basename "$RUN")" generate -p hi -n 2 --quiet
cp "$RUN" "$tmp/a program"
waits $bounded "under another name" "$tmp/a program" generate -m "$models/qwen3-bf16" -p hi -n 2 --quiet
"$RUN" generate -p "$text" -n 4 --temp 0 --quiet >"$tmp/want" 2>/dev/null
"$RUN" generate -p "$text" -n 4 --temp 0 --quiet --tp 2 >"$tmp/out" 2>"$tmp/err"
check "two ranks" test $? -eq 0 -a -s "$tmp/out"
printf 'Hello.\nAgain.\n' | "$RUN" chat -m "$models/llama31-f32-tied" -n 4 --temp 0 --quiet >"$tmp/out" 2>"$tmp/err"
check "chat reads its pipe" test $? -eq 0 -a "$(wc -l <"$tmp/out")" -ge 2
if command -v script >/dev/null; then
    printf 'Hello.\n/bye\n' | timeout 120 script -qec "$RUN chat -m $models/llama31-f32-tied -n 4 --temp 0" /dev/null >"$tmp/out" 2>&1
    out_has "prompt " "chat on a terminal"
else
    skip "no script"
fi
run nonsense
check "an unknown command is refused once" test "$status" -eq 2 -a "$(grep -c nonsense "$tmp/err")" -eq 1
"$RUN" generate -p hi -n 2 --temp 0 --quiet <&- >"$tmp/out" 2>"$tmp/err"
check "closed standard input" test $? -eq 0

# ---- the library ----
lib=$(find "$(cd "$(dirname "$RUN")" && pwd)" -maxdepth 1 -name 'libkvasir.so.*')
if [ -n "$lib" ] && command -v python3 >/dev/null && python3 -c 'import ctypes' 2>/dev/null; then
    host="import ctypes, os, sys; ctypes.CDLL(sys.argv[1]); print(os.popen('env').read().count('GOMP_SPINCOUNT'))"
    waits $bounded "the library" python3 -c "$host" "$lib"
    check "the host's environment is as it was" test "$(cat "$tmp/out")" = 0
    ! libgomp || waits 7 "the host's value wins" env $variable=7 python3 -c "$host" "$lib"
else
    skip "no shared library or no Python"
fi
finish
