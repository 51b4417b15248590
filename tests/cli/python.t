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
check "its version is the program's" grep -qx "version = \"$(cat "$tmp/out")\"" "$SRCDIR/pyproject.toml"
"$PYTHON" -m unittest discover -v -s "$SRCDIR/python/tests" >"$tmp/out" 2>"$tmp/err"
check "the package's tests pass" test $? -eq 0
sed 's/^/# /' "$tmp/err" | grep -E '(FAIL|ERROR|Error|\.\.\.)'
check "there are some" test "$(grep -c '\.\.\. ok$' "$tmp/err")" -ge 10

# The sources in a build folder.
mkdir built && cp -R "$SRCDIR/python" built/python && cp "$(dirname "$KVASIR_LIBRARY")"/libkvasir* built/
(unset KVASIR_LIBRARY && PYTHONPATH=built/python "$PYTHON" -c '
import kvasir._library as of
assert "/built/libkvasir.so." in of.find(), of.find()') >"$tmp/out" 2>"$tmp/err"
check "the package finds the library of its build folder" test $? -eq 0

# The installed package has the library and the program in it and needs nothing else of this tree.
if "$PYTHON" -c 'import setuptools, wheel, pip' 2>/dev/null; then
    mkdir -p built/model built/eval && cp -R "$SRCDIR/model/demo" built/model/ && cp "$SRCDIR/eval/DATA.md" built/eval/
    cp "$SRCDIR/setup.py" "$SRCDIR/pyproject.toml" built/ && mkdir built/scripts
    chmod -R u+w built
    # Without a build, scripts/build makes one.
    printf '#!/bin/sh\ncp "%s" run && echo built >>compiled\n' "$RUN" >built/scripts/build
    chmod +x built/scripts/build
    "$PYTHON" -m pip wheel --quiet --no-deps --no-index --no-build-isolation -w wheels ./built >"$tmp/out" 2>"$tmp/err" &&
        "$PYTHON" -m pip install --quiet --no-deps --no-index --target site wheels/*.whl >>"$tmp/out" 2>>"$tmp/err"
    check "a wheel is built and installed" test $? -eq 0
    check "a missing program is compiled, once" test "$(cat built/compiled)" = built
    check "of this platform, for any Python 3" sh -c "ls wheels | grep -q '^kvasir-.*-py3-none-linux'"
    rm -r built
    (unset KVASIR_LIBRARY && PYTHONPATH=site "$PYTHON" -c '
import sys, kvasir
assert "site" in kvasir.__file__
model = kvasir.Model.from_pretrained(sys.argv[1], threads=1)
print("".join(model.session("quest:budget=32:page=4", limit=64).generate("one two", 4, temperature=0)))' \
        "$models/llama31-f32-tied") >"$tmp/out" 2>"$tmp/err"
    check "and generates" test $? -eq 0 -a -s "$tmp/out"
    check "the data of evaluations are installed" test -f site/share/kvasir/eval/DATA.md
    check "the wheel has the command kvasir" test "$(site/bin/kvasir --version)" = "$("$RUN" --version)"
    site/bin/kvasir info >"$tmp/out" 2>"$tmp/err"
    check "which finds its own model" grep -q 'site/share/kvasir/demo' "$tmp/out" "$tmp/err"
else
    skip "Python has no pip, setuptools and wheel"
fi
finish
