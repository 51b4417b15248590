# SPDX-License-Identifier: MIT
# Threads of the program: fewer than asked for.
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
finish
