# SPDX-License-Identifier: MIT
# Others' programs over the server: openai-python, anthropic-python, lm-evaluation-harness (which is also compared with
# the adapter in python/). $PYTHON, else python3, has them (`pip install openai anthropic 'lm_eval[api]'`); without them
# nothing is tested here.
. "$SRCDIR/tests/cli/lib.sh"
PYTHON=${PYTHON:-python3}
run serve -m "$models/llama31-f32-tied" --port 0 --host 999.1 --insecure
if grep -q 'libmicrohttpd' "$tmp/err"; then skip_all "built without libmicrohttpd"; fi
case $RUN in /*) ;; *) RUN=$PWD/$RUN ;; esac
top=$(cd "$SRCDIR" && pwd)
KVASIR_LIBRARY=$(find "$(dirname "$RUN")" -maxdepth 1 -name 'libkvasir.so.*')
export RUN KVASIR_LIBRARY PYTHONPATH="$top/tests/clients:$top/python" PYTHONDONTWRITEBYTECODE=1
cd "$tmp" || exit 1

# client MODULE FOLDER [TESTS]: its tests (default: those of its name) pass over the model of a folder.
client() {
    if ! "$PYTHON" -c "import $1" 2>/dev/null; then
        skip "Python has no $1"
        return
    fi
    MODEL=$2 HOME=$tmp timeout 600 "$PYTHON" -m unittest -v "test_${3-$1}" >"$tmp/out" 2>"$tmp/err"
    check "$1: all tests pass" test $? -eq 0
    grep -E '(FAIL|ERROR|Error:| \.\.\. )' "$tmp/err" | sed 's/^/# /'
    check "$1: there are some" grep -qE '^Ran [0-9]+ tests?' "$tmp/err"
}

client openai "$top/tests/data/models/llama31-f32-tied"
client anthropic "$top/model/demo"
client openai "$top/model/demo" responses
if "$PYTHON" -c "import openai" 2>/dev/null; then client anthropic "$top/model/demo" agent; else skip "Python has no openai"; fi
if [ -n "$KVASIR_LIBRARY" ]; then client lm_eval "$top/model/demo"; else skip "built without a shared library"; fi
finish
