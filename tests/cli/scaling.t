# SPDX-License-Identifier: MIT
# The model of doc/scaling.md: beside what was measured, and its tables.
. "$SRCDIR/tests/cli/lib.sh"
perl -MJSON::PP -MIO::Uncompress::Gunzip -e 1 2>/dev/null || skip_all "perl with its core modules is not there"
model() { # model ARGS...: as run of lib.sh
    "$SRCDIR/scripts/scaling" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    status=$?
}
results="$SRCDIR/doc/results"

model check "$results/scale.json.gz" "$results/scale-kivi4.json.gz"
check "measured steps are within a factor of 1.4" test "$status" -eq 0
check "all 28 that are modelled" test "$(grep -c '^| llama-3.2-1b' "$tmp/out")" -eq 28
for s in full streaming quest fier; do out_has "| f16   | $s " "$s is among them"; done
model check --factor 1.01 "$results/scale.json.gz"
check "a smaller factor does not hold" test "$status" -eq 1
perl -MIO::Uncompress::Gunzip=gunzip -e 'my $x; gunzip($ARGV[0] => \$x); $x =~ s/("tokens_per_s": )([0-9.]+)/$1 . $2 \/ 2/ge; print $x' \
    "$results/scale.json.gz" >"$tmp/slow.json"
model check "$tmp/slow.json"
check "steps of twice the time are found" test "$status" -eq 1
check "as off by 2" grep -qE '[|] +(1\.9[0-9]|2\.[01][0-9]) ! [|]$' "$tmp/out"

model
check "the tables" test "$status" -eq 0
grep '^|' "$tmp/out" >"$tmp/want"
check "are those of doc/scaling.md" test "$(grep -cxFf "$tmp/want" "$SRCDIR/doc/scaling.md")" -eq "$(grep -c . "$tmp/want")"
model --far-us 50
grep '^|' "$tmp/out" >"$tmp/slow"
check "a slower network gives others" sh -c "! cmp -s '$tmp/want' '$tmp/slow'"
model --memory 0
is_refusal 2 "--memory 0: a number above 0" "no bandwidth"
model sent guess 8 2 64 1
is_refusal 2 "RULE HEADS" "an unknown rule"
model check
is_refusal 2 "a report is expected" "no report"
model check "$tmp/none.json"
is_refusal 1 "none.json" "a report that is not there"
echo '[]' >"$tmp/none.json"
model check "$tmp/none.json"
is_refusal 1 "no report of bench" "something else"
finish
