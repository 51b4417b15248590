# SPDX-License-Identifier: MIT
# What strategies, their parameters and options refuse: one line that says what was meant or what is expected.
. "$SRCDIR/tests/cli/lib.sh"
m="$models/llama31-f32-tied"
g() {
    text=$1
    shift
    refused 2 "$text" "$*" generate -m "$m" -p x -n 1 "$@"
}

g "unknown strategy 'qest' (did you mean 'quest'?); known: full" --attn qest
g "unknown strategy 'zzz'; known: full" --attn zzz
g "logquant, or all" --attn zzz
g "has no parameter 'pgae' (did you mean 'page'?)" --attn quest:pgae=16
g "layer_concat (did you mean 'vote'?)" --attn quest:gqa=vot
g "page='0', expected a number from 1" --attn quest:page=0
g "'page' is not key=value" --attn quest:page
g "unknown store 'kivi3' (did you mean 'kivi2'?)" --kv kivi3
g "store 'kivi2' has no parameter 'sink_pf' (did you mean 'sink_fp'?)" --kv kivi2:sink_pf=1
g "--kv: r=100 is not a multiple of g=32" --kv kivi2:r=100
g "--attn kivi:r=100: r=100 is not a multiple of g=32" --attn kivi:r=100
g "kivi: has its own store; --kv kivi2" --attn kivi --kv kivi2
g "--skip: 'x', expected a number of leading layers" --attn quest --skip x
g "--attn quest:skip=1+: skip='1+', expected" --attn quest:skip=1+
g "unknown option '--atn' (did you mean '--attn'?)" --atn full
g "unknown option '--budgt' (did you mean '--budget'?)" --budgt=5
g "unknown option '--xyzzy'" --xyzzy
g "generate accepts one strategy, found" --attn all
g "--budget: '-5' is not a size" --attn quest --budget -5
# The smallest budgets of methods.md 0.2.3.
for pair in streaming/5 h2o/2 snapkv/2 tova/1 quest/16 fier/1 pqcache/34 retroinfer/85 pariskv/1 actqkv/608 infllm/4352 tokenselect/1; do
    method=${pair%/*} least=${pair#*/}
    run generate -m "$m" -p x -n 1 --attn "$method" --budget 0 --quiet
    check "$method: a budget of 0 is refused with the least one" grep -q "$method: budget 0 is too small, at least .*$least" "$tmp/err"
    [ "$least" -eq 1 ] || g "$method: budget $((least - 1)) is too small" --attn "$method" --budget $((least - 1))
    works "$method: the least budget runs" generate -m "$m" -p x -n 1 --attn "$method" --budget "$least" --quiet
done
g "codes: store f16 is not quantized; use a quantized store such as kivi4 or q8" --attn codes
g "codes: budget 128 is too small, at least 129: the newest 128 tokens are always attended (forced, or unquantized in store kivi4" --attn codes --kv kivi4 --budget 128
for eps in 0 1 1.5 -0.1 x 0.00001 nan; do
    g "--certify: certify='$eps', expected off or a number in (0, 1) of up to 4 decimals" --certify=$eps --attn codes --kv kivi4
done
g "quest: --certify: page bounds and one-bit keys certify nothing" --certify 0.1 --attn quest
g "h2o: --certify: the attention of dropped tokens is unknown" --certify 0.1 --attn h2o
g "codes: store f16 is not quantized" --certify 0.1 --attn codes
g "codes: certify over store kivi2" --certify 0.1 --attn codes --kv kivi2
works "what attends everything misses nothing" generate -m "$m" -p x -n 1 --certify 0.1 --quiet
works "codes: the least budget runs" generate -m "$m" -p x -n 1 --attn codes --kv kivi4 --budget 129 --quiet
works "an option may be shortened" generate -m "$m" -p x -n 1 --temp 0 --bud 9 --quiet
works "a value may look like an option" generate -m "$m" -p --atn -n 1 --temp 0 --quiet
run generatte
check "an unknown command is exit status 2" test "$status" -eq 2
err_has "unknown command 'generatte' (did you mean 'generate'?)" "with the nearest one"
run eval recal
err_has "unknown command 'eval recal' (did you mean 'eval recall'?)" "of two words too"
run --help-attn kivy
check "--help-attn of an unknown strategy is exit status 2" test "$status" -eq 2
err_has "(did you mean 'kivi'?)" "with the nearest one"
run --help-attn
out_has "all         every strategy (in lists)" "the list of strategies names all"

# Lists leave out strategies that cannot run, and say why.
run bench -m "$m" --attn all --kv kivi2 --ctx 8 --phase decode --samples 1 --quiet
check "bench: --attn all over a store with codes" test "$status" -eq 0
out_has "  - kivi: has its own store; --kv kivi2 does not apply" "why kivi is not there"
out_has "  - oracle: store kivi2" "why oracle is not there"
out_has "  - actqkv: budget 256 is too small" "why actqkv is not there"
run eval recall -m "$m" -f "$SRCDIR/README.md" --attn all --kv kivi2 --ctx 64 --queries 2 --json "$tmp/r.json" --quiet
check "eval recall: --attn all over a store with codes" test "$status" -eq 0
out_has "  - logquant: has its own store" "why logquant is not there"
check "and in the report" grep -q '"reason": "logquant: has its own store' "$tmp/r.json"
refused 2 "actqkv: budget 9 is too small" "nothing can run" eval recall -m "$m" -f "$SRCDIR/README.md" --attn actqkv --budget 9
run eval recall -m "$m" -f "$SRCDIR/README.md" --attn tova,all --budget 32 --ctx 64 --queries 2 --skip 0 --quiet
check "'all' within a list" test "$status" -eq 0
out_has "pariskv" "the whole table"

# A folder is no file; two results must not share a file.
for o in "--json:generate -p x -n 1" "-o:logits --ids 1,2" "--dump:eval recall -p one" "--csv:eval pg19"; do
    # shellcheck disable=SC2086
    refused 1 "${o%%:*} $tmp: neither a regular file nor a pipe" "${o%%:*}: a folder" ${o#*:} -m "$m" "${o%%:*}" "$tmp"
done
refused 2 "--json $tmp/same: same file as -o" "a report over results" passkey -m "$m" -o "$tmp/same" --json "$tmp/same"
: >"$tmp/same"
ln -s same "$tmp/link"
refused 2 "same file as -o" "a report over results by another name" eval pg19 -m "$m" -o "$tmp/same" --csv "$tmp/link"
refused 2 "--csv $tmp/new: same file as --json" "curves over a report" eval pg19 -m "$m" --json "$tmp/new" --csv "$tmp/new"
refused 2 "--length (or --ctx) 9: too short for passkey, which needs at least" "a length without room" eval infinitebench -m "$m" --length 9 --dataset passkey
refused 2 "--wrap double-bos: the model has no chat template; name one with --template" "no template" eval longbench -m "$models/llama-dynamic-f32" --wrap double-bos
for o in -1 9223372036854775808 18446744073709551616 1.5; do
    refused 2 "--seed: '$o', expected a whole number from 0 to 9223372036854775807" "seed $o" generate -m "$m" -p x --seed $o
done
works "the largest seed" generate -m "$m" -p x -n 1 --seed 9223372036854775807 --json "$tmp/seed"
check "the report contains it" grep -q '"seed": 9223372036854775807' "$tmp/seed"
for o in "--limit 0" "--jobs 0" "--jobs 100000" "--seed -1" "extra"; do
    # shellcheck disable=SC2086
    refused 2 "${o%% *}" "eval longbench $o" eval longbench -m "$m" $o
done
finish
