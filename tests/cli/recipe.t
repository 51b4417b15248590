# SPDX-License-Identifier: MIT
# The commands of attention/README.md that add a strategy, in a copy of its files. The program is linked with the two
# objects that they change.
. "$SRCDIR/tests/cli/lib.sh"
build=$(dirname "$RUN")
copy="$tmp/copy"
mkdir -p "$copy/attention" "$copy/tests/unit"
cp "$SRCDIR/attention/strategies.c" "$copy/attention" && cp "$SRCDIR/tests/unit/test_toy.c" "$SRCDIR/tests/unit/test_reuse.c" \
    "$SRCDIR/tests/unit/product.h" "$copy/tests/unit" && chmod -R u+w "$copy"
sed -n '/^## Writing a strategy/,/^## /s/^    //p' "$SRCDIR/attention/README.md" >"$tmp/recipe"
grep '^sed ' "$tmp/recipe" >"$tmp/edits"
check "the recipe has edits" test "$(wc -l <"$tmp/edits")" -eq 4
ran sh -c "cd '$copy' && sh -e '$tmp/edits'"
check "they can be made" test "$status" -eq 0
check "and change both tables of tests" test "$(grep -c comb:budget "$copy/tests/unit/product.h" "$copy/tests/unit/test_reuse.c" | grep -c ':1$')" -eq 2

# as_make COMMAND: runs it with make's variables.
as_make() {
    printf 'include Makefile\nrecipe:\n\t%s\n' "$1" >"$tmp/recipe.mk"
    ran env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s -C "$build" -f "$tmp/recipe.mk" recipe
}
for f in comb strategies; do
    as_make "\$(COMPILE) -c -o $tmp/$f.o $copy/attention/$f.c"
    check "$f.c compiles" test -s "$tmp/$f.o"
done
as_make "\$(CXX) \$(AM_CXXFLAGS) \$(CXXFLAGS) \$(AM_LDFLAGS) \$(LDFLAGS) -o $tmp/run run.o $tmp/comb.o $tmp/strategies.o \$(link_libs) \$(LIBS)"
check "the program is linked" test -x "$tmp/run"
while read -r program words; do
    # shellcheck disable=SC2086
    ran "$tmp/${program#./}" $words
    check "$program $words" test "$status" -eq 0 -a -s "$tmp/out"
done <<EOF
$(grep '^\./run ' "$tmp/recipe")
EOF
out_has "comb:m=8" "the table has the strategy"
finish
