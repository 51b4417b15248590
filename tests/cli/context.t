# SPDX-License-Identifier: MIT
# A context split over ranks: the simulation of tests/mpi, under mpirun.
. "$SRCDIR/tests/cli/lib.sh"
simulation="$(dirname "$RUN")/tests/mpi/test_context"
[ -n "$(command -v mpirun)" ] || skip_all "no mpirun"
[ -x "$simulation" ] || skip_all "no simulation was built"
for ranks in 2 4; do
    # Open MPI's libraries keep memory at their end.
    ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0" timeout 400 mpirun --allow-run-as-root --oversubscribe -n "$ranks" "$simulation" \
        >"$tmp/out" 2>"$tmp/err" </dev/null
    status=$?
    ! grep -q 'built without MPI' "$tmp/out" || skip_all "built without MPI"
    check "$ranks ranks" test "$status" -eq 0
    check "$ranks ranks: all checks" test "$(grep -c '^ok' "$tmp/out")" -eq 56
    grep '^# \|^not ok' "$tmp/out"
done
finish
