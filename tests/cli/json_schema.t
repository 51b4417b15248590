# SPDX-License-Identifier: MIT
# --json-schema: replies are JSON of a schema, with and without drafts; schemas that cannot be enforced are refused.
. "$SRCDIR/tests/cli/lib.sh"
m=$SRCDIR/model/demo
cat >"$tmp/schema.json" <<'END'
{"type": "object", "properties": {"n": {"type": "integer", "minimum": -20, "maximum": 150},
 "kind": {"enum": ["cat", "caterpillar"]}, "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
 "required": ["n", "kind", "tags"], "additionalProperties": false}
END
base="generate -m $m -p Alice -n 300 --threads 1 --quiet"
form='^ *\{ *"n" *: *(-?[0-9]|-1[0-9]|-20|[1-9][0-9]|1[0-4][0-9]|150) *, *"kind" *: *"cat(erpillar)?" *, *"tags" *: *\[ *((true|false)( *, *(true|false)){0,2})? *\] *\} *$'

for seed in 1 2 3 4 5 6; do
    run $base --temp 2 --top-p 1 --seed $seed --json-schema "$tmp/schema.json" --json "$tmp/r.json"
    tr '\n\t' '  ' <"$tmp/out" | tr -s ' ' >"$tmp/line"
    check "seed $seed: the text has the schema's form" grep -Eq "$form" "$tmp/line"
done
is_in '"finish_reason": "stop"' "$tmp/r.json" && pass "the reply ends by itself" || fail "the reply ends by itself"

for draft in ngram ngram:adapt=off streaming:budget=16; do
    for how in "--temp 0" "--temp 1.5 --top-p 1 --seed 4" "--temp 1 --draw rank --seed 2"; do
        run $base $how --json-schema '{"type":"array","items":{"type":"object"},"minItems":2,"maxItems":4}'
        cp "$tmp/out" "$tmp/plain"
        run $base $how --json-schema '{"type":"array","items":{"type":"object"},"minItems":2,"maxItems":4}' --draft $draft
        check "$draft, $how: the same text with drafts" sh -c "test $status -eq 0 && test -s '$tmp/plain' && cmp -s '$tmp/out' '$tmp/plain'"
    done
done

run $base --json-schema '{"properties":{"a":{"pattern":"x"}}}'
is_refusal 1 '--json-schema: $.properties.a.pattern: not supported' "an unsupported keyword"
run $base --json-schema '{"type":"integer","minimum":3,"maximum":2}'
is_refusal 2 '--json-schema: $: no value satisfies minimum 3 and maximum 2' "a schema without values"
run $base --json-schema '{"type":}'
is_refusal 1 '--json-schema' "broken JSON"
run $base --json-schema "$tmp/none.json"
is_refusal 1 '--json-schema' "no such file"
run $base --json-schema '{}' --ignore-eos
is_refusal 2 '--json-schema and --ignore-eos: mutually exclusive' "no end"
run generate -m "$m" -p Alice -n 60 --temp 0 --threads 1 --json-schema '{"type":"string","format":"date","maxLength":9}'
err_has '--json-schema: $.format is not enforced' "keywords without effect are reported"
finish
