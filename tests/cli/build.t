# SPDX-License-Identifier: MIT
# What scripts/demo and scripts/check print of a build: one line a step; of a failure the log's end and its name.
. "$SRCDIR/tests/cli/lib.sh"
cd "$tmp" || exit 1
steps() { # steps COMMANDS: with scripts/lib/steps.sh
    sh -c ". \"\$SRCDIR/scripts/lib/steps.sh\"; $1" >"$tmp/out" 2>"$tmp/err"
    status=$?
}
steps 'step "compiling" echo noise; step "testing" echo more'
check "steps that succeed" test "$status" -eq 0
check "one line each, without the noise" test "$(grep -cE '^(compiling|testing) +[0-9]+ s$' "$tmp/out")" -eq 2 -a "$(wc -l <"$tmp/out")" -eq 2
check "which is in the log" grep -q noise build.log
steps 'step "compiling" sh -c "echo broken.c: no such; exit 3"; echo went on'
check "a step that fails ends the script with its status" test "$status" -eq 3
out_has "broken.c: no such" "and shows why"
out_has "$tmp/build.log" "and where the log is"
check "nothing follows" sh -c "! grep -q 'went on' '$tmp/out'"
echo 'a.cu(12): warning #177-D: variable "x" was declared' >build.log
steps show_warnings
out_has "warning #177-D" "nvcc's warnings are shown"
echo 'ok 1 - without a warning' >build.log
steps show_warnings
check "other words are not" test ! -s "$tmp/out"
for s in demo check build install_deps; do
    check "scripts/$s --help" sh -c "sh '$SRCDIR/scripts/$s' --help | grep -q ."
done
finish
