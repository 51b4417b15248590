# SPDX-License-Identifier: MIT
# The Python package over the library that was built. Needs Python with NumPy ($PYTHON, else python3).
. "$SRCDIR/tests/cli/lib.sh"
PYTHON=${PYTHON:-python3}
KVASIR_LIBRARY=$(find "$(cd "$(dirname "$RUN")" && pwd)" -maxdepth 1 -name 'libkvasir.so.*')
[ -n "$KVASIR_LIBRARY" ] || skip_all "built without a shared library"
"$PYTHON" -c 'import sys, numpy; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || skip_all "no Python 3.9 with NumPy"
export KVASIR_LIBRARY PYTHONPATH="$SRCDIR/python" PYTHONDONTWRITEBYTECODE=1
cd "$tmp" || exit 1
"$RUN" --version | sed 's/.* //' >"$tmp/out"
check "its version is the program's" grep -qx "version = \"$(cat "$tmp/out")\"" "$SRCDIR/python/pyproject.toml"
"$PYTHON" -m unittest discover -v -s "$SRCDIR/python/tests" >"$tmp/out" 2>"$tmp/err"
check "the package's tests pass" test $? -eq 0
sed 's/^/# /' "$tmp/err" | grep -E '(FAIL|ERROR|Error|\.\.\.)'
check "there are some" test "$(grep -c '\.\.\. ok$' "$tmp/err")" -ge 10
finish
