# SPDX-License-Identifier: MIT
# --device cuda: what a machine without a GPU says, and the whole program with its kernels on the host (tests/cushim).
. "$SRCDIR/tests/cli/lib.sh"
m="$models/llama31-f32-tied"

run generate -m "$m" -p x -n 2 --device cuda --quiet
if [ "$status" -eq 0 ]; then pass "--device cuda runs on this machine's GPU"
else is_refusal 1 "--device cuda" "--device cuda without a usable GPU says so in one line"; fi
refused 2 "unknown device 'cuda:x'" "a device that is no number" generate -m "$m" -p x --device cuda:x

run generate -m "$m" -p "Alice was beginning" -n 12 --temp 0 --kv f32 --gemm builtin --quiet
cp "$tmp/out" "$tmp/cpu"
shim="$(dirname "$RUN")/tests/cuda/run_shim"
[ -x "$shim" ] || { skip "no host build of the CUDA kernels"; finish; exit 0; }
cpu=$RUN
RUN=$shim
refused 1 "out of memory: weights 0." "weights that do not fit, before they are copied" \
    generate -m "$m" -p x -n 2 --device cuda --ctx 90M
refused 2 "--device cuda:9: the last GPU of this machine is cuda:1" "a device beyond the last" generate -m "$m" -p x --device cuda:9
refused 1 "codes: does not run on cuda:0 yet (missing operations: certify)" "certificates" \
    generate -m "$m" -p x --device cuda --attn codes --kv kivi4 --certify 0.1
run generate -m "$m" -p "Alice was beginning" -n 12 --temp 0 --kv f32 --gemm builtin --quiet --device cuda
check "the text of the CPU" cmp -s "$tmp/out" "$tmp/cpu"
works "weights of 8 bits" generate -m "$m" -p "Alice was" -n 3 --temp 0 --device cuda:1 --weights q8
err_has "cuda:1" "the device is named at the start"

# Types of weights that it does not multiply.
cp -r "$SRCDIR/tests/data/packed/fp8-row" "$tmp/fp8"
cp "$m"/tokenizer*.json "$tmp/fp8"
works "a plan of weights in FP8" generate -m "$tmp/fp8" -p x -n 2 --device cuda --plan
err_has "weights: cuda:0 does not multiply FP8: 7 matrices are converted to q8" "the type, the reason and the new type"
works "weights in FP8" generate -m "$tmp/fp8" -p x -n 2 --device cuda --no-weights-cache
check "which is reported once" test "$(grep -c 'does not multiply' "$tmp/err")" -eq 1
refused 2 "--weights: 'q4z' is not one of" "a type for files alone" generate -m "$m" -p x -n 2 --device cuda --weights q4z

# Drafts: the text of the same device without them, by a look-up, a strategy, and weights of their own.
set -- generate -m "$m" -p "Alice was. Alice was. Alice" -n 12 --temp 0.8 --ignore-eos --quiet --device cuda
run "$@"
cp "$tmp/out" "$tmp/plain"
for draft in ngram:adapt=off fier:budget=8:g=4:skip=0:adapt=off "full:n=3:adapt=off --draft-weights q4 --no-weights-cache"; do
    # shellcheck disable=SC2086
    run "$@" --draft $draft
    check "--draft $draft: the same text" sh -c "test $status -eq 0 && test -s '$tmp/plain' && cmp -s '$tmp/out' '$tmp/plain'"
done

# Device memory that the host cannot touch: strategies that run choose and write as the CPU does.
p="Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do"
for attn in full streaming:budget=16 quest:budget=16:page=4:skip=0 fier:budget=40:g=8:skip=1:gqa=vote \
    quest:budget=16:page=4:coarse=8:coarse_keep=2:skip=0 fier:budget=12:g=8:coarse=12:coarse_keep=2:skip=1 \
    h2o:budget=16:skip=0 h2o:budget=16:skip=0:gqa=per_q tova:budget=16:skip=0 snapkv:budget=12:window=4:skip=0 \
    h2o:budget=16:skip=0:demote=token2 mikv:skip=0 kivi:g=8:r=16 logquant:w=4 h2o:budget=16:kv=kivi2/g=4/r=8 quest:budget=16:page=4:kv=kivi4/g=4/r=8 \
    pqcache:budget=14:sink=2:bits=4 quest:budget=16:page=4:skip=0:gqa=per_q fier:budget=16:g=8:skip=0:kv=kivi4/g=4/r=8 retroinfer:budget=12:sink=1:local=4:size=2:update=4 codes:budget=16:skip=0:kv=kivi4/g=4/r=8 \
    pariskv:budget=4:sink=1:local=4:u=4:full_thr=0 actqkv:budget=18:sink=2:local=8:window=4:block=4:reps=2 \
    infllm:budget=18:sink=2:local=8:window=4:block=4:reps=2 \
    tokenselect:budget=8:sink=2:local=8:window=4; do
    ! thin 8 || continue # tests/cuda has all of them
    set -- generate -m "$m" -p "$p" -n 8 --temp 0 --kv f32 --gemm builtin --quiet --attn "$attn"
    run "$@"
    cp "$tmp/out" "$tmp/cpu"
    export SHIM_GUARD=1
    run "$@" --device cuda
    unset SHIM_GUARD
    check "$attn: the text of the CPU" cmp -s "$tmp/out" "$tmp/cpu"
done
# A lens shows the same positions as read as on the CPU.
reads() { grep -o '"reads":"[^"]*"' "$tmp/out"; }
set -- lens -m "$m" -p "$p" -n 3 --kv f32 --gemm builtin --quiet --ignore-eos --attn quest:page=4,h2o,streaming --budget 16
RUN=$cpu
run "$@"
RUN=$shim
reads >"$tmp/cpu"
export SHIM_GUARD=1
run "$@" --device cuda
unset SHIM_GUARD
reads >"$tmp/cuda"
check "lens: nine records" test "$(wc -l <"$tmp/cuda")" -eq 9
check "lens: what was read is that of the CPU" cmp -s "$tmp/cuda" "$tmp/cpu"
# Rows in the host's memory: the same text as on the device.
for attn in full quest:budget=16:page=4:skip=0 quest:budget=16:page=4:skip=0:tail=sample:5 fier:budget=40:g=8:skip=0:kv=kivi4/g=4/r=8 \
    pariskv:budget=4:sink=1:local=4:u=4:full_thr=0 actqkv:budget=18:sink=2:local=8:window=4:block=4:reps=2 \
    infllm:budget=18:sink=2:local=8:window=4:block=4:reps=2 \
    tokenselect:budget=8:sink=2:local=8:window=4; do
    ! thin 8 || continue
    set -- generate -m "$m" -p "$p" -n 8 --temp 0 --device cuda --attn "$attn"
    run "$@" --quiet
    cp "$tmp/out" "$tmp/device"
    export SHIM_GUARD=1
    run "$@" --kv-tier host:window=8:cache=64k --json "$tmp/json"
    unset SHIM_GUARD
    check "$attn: the same text with --kv-tier host" cmp -s "$tmp/out" "$tmp/device"
    err_has "KV in host memory" "the rows there are reported"
    check "and in the report" grep -q '"host_bytes": [1-9]' "$tmp/json"
    check "with what crossed the link" grep -q '"written_bytes": [1-9]' "$tmp/json"
done
run generate -m "$m" -p x -n 2 --device cuda --kv-tier host --attn quest:skip=0 --plan
out_has "; in host memory 0." "the plan has bytes by tier"
refused 1 "MB are available" "more than the host has" generate -m "$m" -p x -n 2 --device cuda --kv-tier host \
    --attn quest:skip=0 --ctx 900M
refused 1 "h2o: --kv-tier host is not supported: it drops tokens, and each step reads all others" "h2o" generate -m "$m" -p x -n 2 --device cuda --kv-tier host --attn h2o
refused 1 "--kv-tier host cannot be saved" "--save" generate -m "$m" -p x -n 2 --device cuda --kv-tier host --save "$tmp/a.kv"
run bench --samples 3 --shape tiny --weights bf16 --skip 0 --quiet --phase decode --fill --ctx 128 --budget 64 --attn quest,fier,pariskv \
    --kv kivi4 --kv-tier host --device cuda
check "bench with rows in the host's memory" test "$status" -eq 0
out_has "in host memory: MB" "and a table of it"
# Tokens are chosen on the device, a step ahead of what is printed.
for how in "--temp 0.9 --seed 4" "--temp 1.2 --seed 2 --top-k 40 --top-p 0.9 --min-p 0.02" "--temp 0 --stop e" \
    "--temp 0.7 --seed 1 --repeat-penalty 1.3" "--temp 0 --ctx 28"; do
    set -- generate -m "$m" -p "Alice was beginning" -n 12 --kv f32 --gemm builtin --quiet $how
    RUN=$cpu
    run "$@"
    RUN=$shim
    cp "$tmp/out" "$tmp/cpu"
    run "$@" --device cuda
    check "$how: the text of the CPU" cmp -s "$tmp/out" "$tmp/cpu"
done

# The host build's devices have 1 GiB: what does not fit is left out of the table, with its bytes.
run bench --samples 3 --shape tiny --phase decode --fill --ctx 2k --kv f32 --batch 1,1024 --quiet --wide --device cuda
check "a batch that fits, of two" test "$status" -eq 0 -a "$(grep -c '^decode .* [0-9]*/[0-9]* ' "$tmp/out")" -eq 1
out_has "out of memory: KV 1426.1 MB" "the other with what it needs"
out_has "memory copied, read and written, " "limits of the device"
finish
