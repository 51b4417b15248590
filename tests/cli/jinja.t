# SPDX-License-Identifier: MIT
# Random chat templates render as jinja2 does. Needs Python with jinja2 ($PYTHON, else python3).
. "$SRCDIR/tests/cli/lib.sh"
PYTHON=${PYTHON:-python3}
test_jinja=$(dirname "$RUN")/tests/unit/test_jinja
[ -x "$test_jinja" ] || skip_all "tests/unit/test_jinja is not built"
"$PYTHON" -c 'import sys, jinja2; sys.exit(tuple(map(int, jinja2.__version__.split(".")[:2])) < (3, 1))' 2>/dev/null ||
    skip_all "no Python with jinja2 3.1"
PYTHONDONTWRITEBYTECODE=1 "$PYTHON" "$SRCDIR/tests/clients/jinja_random.py" "$tmp/cases.jsonl" "${CASES:-400}" "${SEED:-1}"
check "there are cases" test "$(grep -c '"text"' "$tmp/cases.jsonl")" -ge 100
ran "$test_jinja" "$tmp/cases.jsonl"
check "random templates render as jinja2 does" test "$status" -eq 0
[ "$status" -eq 0 ] || sed 's/^/# /' "$tmp/out" | head -40
finish
