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
RUN=$shim
refused 2 "--device cuda:9: the last GPU of this machine is cuda:1" "a device beyond the last" generate -m "$m" -p x --device cuda:9
run generate -m "$m" -p "Alice was beginning" -n 12 --temp 0 --kv f32 --gemm builtin --quiet --device cuda
check "the text of the CPU" cmp -s "$tmp/out" "$tmp/cpu"
run generate -m "$m" -p "Alice was" -n 3 --temp 0 --device cuda:1 --weights q8
check "weights of 8 bits" test "$status" -eq 0
err_has "cuda:1" "the device is named at the start"

# Device memory that the host cannot touch: strategies that run choose and write as the CPU does.
p="Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do"
for attn in full streaming:budget=16 quest:budget=16:page=4:skip=0 fier:budget=40:g=8:skip=1:gqa=vote; do
    set -- generate -m "$m" -p "$p" -n 8 --temp 0 --kv f32 --gemm builtin --quiet --attn "$attn"
    run "$@"
    cp "$tmp/out" "$tmp/cpu"
    export SHIM_GUARD=1
    run "$@" --device cuda
    unset SHIM_GUARD
    check "$attn: the text of the CPU" cmp -s "$tmp/out" "$tmp/cpu"
done
refused 1 "does not run on cuda:0 yet (missing operations: evict)" "a strategy that needs more is refused" \
    generate -m "$m" -p "Alice was" -n 3 --device cuda --attn h2o
refused 1 "does not run on cuda:0 yet (missing operations: codes)" "and so is a store" \
    generate -m "$m" -p "Alice was" -n 3 --device cuda --kv kivi2
finish
