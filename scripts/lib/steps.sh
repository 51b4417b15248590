# SPDX-License-Identifier: MIT
# step NAME COMMAND...: runs a command with its output in build.log and prints one line with its time. If the command
# fails, prints the end of the log and exits. Source this file in the root of the tree.
log=$PWD/build.log
step() {
    name=$1
    shift
    printf '%-34s' "$name"
    began=$(date +%s)
    printf '\n== %s: %s\n' "$name" "$*" >>"$log"
    rc=0
    "$@" >>"$log" 2>&1 || rc=$?
    if [ $rc -ne 0 ]; then
        echo "failed, $log ends with:"
        tail -n 25 "$log" | sed 's/^/    /'
        exit $rc
    fi
    echo "$(($(date +%s) - began)) s"
}

show_warnings() { grep -A 4 -E 'warning:|warning #' "$log" || :; }
