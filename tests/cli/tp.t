# SPDX-License-Identifier: MIT
# --tp N without mpirun: ranks that the program forks against one process, on CPUs, and on the host's CUDA devices with a
# stand-in for NCCL; refusals; ranks that end.
. "$SRCDIR/tests/cli/lib.sh"
build=$(dirname "$RUN")
m="$models/llama31-f32-tied"
pid=''
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; remove_tmp' EXIT
export XDG_CACHE_HOME="$tmp/cache"

for ranks in 2 3; do
    "$build/tests/unit/test_comm" $ranks >"$tmp/out" 2>"$tmp/err"
    check "comm: the calls by $ranks ranks" test $? -eq 0 -a "$(grep -c '^ok' "$tmp/out")" -eq 15
done
"$build/tests/unit/test_comm" 3 fail
check "comm: the ranks' exit code is the greatest" test $? -eq 3
"$build/tests/unit/test_comm" 3 leave
check "comm: a rank that fails alone ends those who wait for it" test $? -eq 1
"$build/tests/unit/test_comm" 3 die 2>"$tmp/err"
check "comm: and so does one that dies" test $? -eq 1
err_has "rank 2 (process" "which is reported"

# ---- numbers ----

# same_logits N NAME ARGS...: of N ranks and one.
same_logits() {
    ranks=$1 name=$2
    shift 2
    "$RUN" logits "$@" --ids 1,2,3,4,5,6,7,8,9 --no-weights-cache --quiet -o "$tmp/1.npy"
    works "$name: $ranks ranks (status $status)" logits "$@" --ids 1,2,3,4,5,6,7,8,9 -o "$tmp/n.npy" --tp "$ranks"
    check "the logits of one rank" near "$tmp/n.npy" "$tmp/1.npy"
}
for x in "2 llama31-f32-tied" "2 qwen3-f32-sharded-tied" "2 mistral-swa-bf16" "4 llama2-linear-f16" "2 phi3-longrope-f16" "2 ministral3-vision-f16" "2 mixtral-f16" "2 qwen2-moe-bf16" "2 qwen3-moe-f32" "2 qwen3-vl-moe-bf16" "2 muse-glimmer-bf16"; do
    same_logits "${x% *}" "${x#* }" -m "$models/${x#* }"
done

# as_transformers MODEL: two ranks; no logit differs by more than 5e-5.
as_transformers() {
    f=$models/$1/expected.safetensors
    size=$(od -An -tu8 -N8 "$f" | tr -d ' ')
    for tensor in input_ids logits; do # "data_offsets" precedes the other keys
        at=$(tail -c +9 "$f" | head -c "$size" | sed "s/.*\"$tensor\":{\"data_offsets\":\[\([0-9]*\),.*/\1/")
        od -An -v -t$([ $tensor = logits ] && echo f4 || echo d4) -w4 -j$((8 + size + at)) "$f" >"$tmp/$tensor"
    done
    works "$1: ranks on the ids of transformers" logits -m "$models/$1" --tp 2 -o "$tmp/n.npy" \
        --ids "$(head -n 64 "$tmp/input_ids" | tr -d ' ' | paste -sd,)"
    od -An -v -tf4 -w4 -j128 "$tmp/n.npy" >"$tmp/n.txt"
    check "the logits of transformers" sh -c "paste '$tmp/n.txt' '$tmp/logits' | awk -v n=$(wc -l <"$tmp/n.txt") \
        'NR <= n { d = \$1 - \$2; if (d < 0) d = -d; if (!(d <= 5e-5)) bad = 1 } END { exit bad || n < 1000 }'"
}
for x in mixtral-f16 qwen2-moe-bf16 qwen3-moe-f32 qwen3-vl-moe-bf16; do as_transformers $x; done

for x in qwen2moe qwen3moe qwen3vlmoe; do
    same_logits 2 "$x.gguf" -m "$SRCDIR/tests/data/gguf/$x.gguf" --weights f32
done
refused 2 "tensor blk.0.ffn_down_exps.weight of" "experts whose blocks of 32 a split cuts" \
    logits -m "$SRCDIR/tests/data/gguf/qwen3moe.gguf" --ids 1,2,3 --tp 2

# with_biases DIR: the model with a bias of 0.1 on every product: those of `o` and `down` count once.
with_biases() {
    f="$m/model.safetensors"
    size=$(od -An -tu8 -N8 "$f" | tr -d ' ')
    mkdir "$1"
    sed 's/"\(attention\|mlp\)_bias": false/"\1_bias": true/' "$m/config.json" >"$1/config.json"
    awk -v at=$(($(wc -c <"$f") - 8 - size)) 'BEGIN {
        n = split("self_attn.q 64 self_attn.k 32 self_attn.v 32 self_attn.o 64 mlp.gate 48 mlp.up 48 mlp.down 64", w, " ")
        for (l = 0; l < 2; l++) for (i = 1; i < n; i += 2) {
            printf ",\"model.layers.%d.%s_proj.bias\":{\"dtype\":\"F32\",\"shape\":[%d],", l, w[i], w[i + 1]
            printf "\"data_offsets\":[%d,%d]}", at, at += 4 * w[i + 1]
        }
        printf "}"
    }' >"$tmp/entries"
    { tail -c +9 "$f" | head -c "$size" | sed 's/} *$//' | tr -d '\n' && cat "$tmp/entries"; } >"$tmp/header"
    while [ $(($(wc -c <"$tmp/header") % 8)) -ne 0 ]; do printf ' ' >>"$tmp/header"; done
    n_header=$(wc -c <"$tmp/header")
    {
        # shellcheck disable=SC2059
        printf "\\$(printf %o $((n_header % 256)))\\$(printf %o $((n_header / 256)))\\0\\0\\0\\0\\0\\0"
        cat "$tmp/header" && tail -c +$((9 + size)) "$f"
        seq 704 | while read -r _; do printf '\315\314\314\075'; done
    } >"$1/model.safetensors"
}
with_biases "$tmp/biases"
same_logits 2 biases -m "$tmp/biases"

if has_sentencepiece; then
    for w in q8 q4; do
        same_logits 2 "$w" --weights $w
        err_has "cached in" "$w: the weights are kept in a file of each rank"
    done
    check "two files of each type" test "$(find "$tmp/cache" -name '*.q[48]' | wc -l)" -eq 4
    run logits --weights q4 --ids 1,2,3,4,5,6,7,8,9 --tp 2 -o "$tmp/m.npy"
    check "they are used again" test "$(grep -c 'mapped from' "$tmp/err")" -eq 1
    check "and give the same bits" cmp "$tmp/m.npy" "$tmp/n.npy"
fi

# ---- one process prints and reads ----

for sample in "--temp 0" "--temp 0.8 --seed 5"; do
    # shellcheck disable=SC2086
    set -- generate -m "$m" -p "She looked at him" -n 24 $sample
    "$RUN" "$@" --quiet >"$tmp/one" 2>/dev/null
    run "$@" --tp 2 --json "$tmp/json"
    check "generate $sample: the text of one rank" cmp "$tmp/one" "$tmp/out"
done
check "one rank tells how fast" test "$(grep -c 'tokens/s' "$tmp/err")" -eq 1
err_has "2 ranks, each" "and how many there are"
check "so does the report" grep -q '"ranks": 2' "$tmp/json"
printf 'Hi\nWhat?\n' >"$tmp/lines"
set -- chat -m "$models/qwen3-f32-sharded-tied" -n 6 --quiet
"$RUN" "$@" <"$tmp/lines" >"$tmp/one" 2>/dev/null
"$RUN" "$@" --tp 2 <"$tmp/lines" >"$tmp/out" 2>"$tmp/err"
check "chat: the lines reach all ranks" cmp "$tmp/one" "$tmp/out"

works "bench: ranks take as many samples" bench -m "$m" --phase decode --ctx 32 --quiet --tp 2

# ---- refusals ----

set -- generate -m "$m" -p x
refused 2 "has 2 key-value heads, not a multiple of 3" "KV heads" "$@" --tp 3
refused 2 "has a feed-forward of 64, not a multiple of 3" "the feed-forward" generate -m "$models/llama-dynamic-f32" -p x --tp 3
refused 2 "2 ranks has 24, which must be a multiple of 32" "columns of blocks" "$@" --weights q8 --tp 2
refused 2 "at most 64 ranks on one machine without mpirun" "too many" "$@" --tp 65
refused 2 "not 2 ranks" "recall" eval recall -m "$m" -p x --tp 2
refused 2 "not 2 ranks" "sessions on disk" "$@" --save "$tmp/x" --tp 2
refused 1 "not supported with 2 ranks: gqa=layer_vote adds the softmax" "a rule that does not add up over ranks" "$@" --attn quest:gqa=layer_vote --tp 2
refused 1 "not supported with 2 ranks: a vote adds the softmax" "the same of tokenselect" "$@" --attn tokenselect --tp 2
refused 1 "not supported with 2 ranks: gqa=layer_mean" "another" "$@" --attn h2o:gqa=layer_mean --tp 2
refused 1 "config.json: No such file" "a missing model is reported once" generate -m "$tmp" -p x --tp 2

# ---- the end ----

# start PROGRAM ARGS...: two ranks that would run for hours; their ids in $rank0 and $rank1.
start() {
    program=$1
    shift
    : >"$tmp/out" # what an earlier one printed
    env --default-signal=INT "$program" generate -m "$m" -p x -n 4000000 --ctx 4000000 --attn streaming --budget 64 --ignore-eos \
        --quiet --tp 2 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null &
    pid=$!
    tries=0
    until [ "$(wc -c <"$tmp/out")" -gt 20 ] || [ $tries -gt 1500 ]; do tries=$((tries + 1)) && sleep 0.02; done
    # shellcheck disable=SC2046
    set -- $(grep -ls "^PPid:[[:space:]]*$pid\$" /proc/[0-9]*/status | cut -d/ -f3 | sort -n)
    rank0=$1 rank1=$2
}
# ends STATUS NAME: within 30 s, and no rank is left.
ends() {
    tries=0
    until { gone "$pid" && gone "$rank0" && gone "$rank1"; } || [ $tries -gt 1500 ]; do tries=$((tries + 1)) && sleep 0.02; done
    check "$2: all end" test $tries -le 1500
    kill -9 "$pid" "$rank0" "$rank1" 2>/dev/null
    wait "$pid"
    status=$?
    pid=
    check "$2: with status $1 (status $status)" test "$status" -eq "$1"
}
if env --default-signal=INT true 2>/dev/null; then
    start "$RUN"
    kill -9 "$rank1"
    ends 1 "a rank is killed"
    err_has "run generate: rank 1 (process $rank1) was ended by signal 9" "which is reported"
    start "$RUN"
    kill -9 "$rank0"
    ends 1 "the first rank is killed"
    start "$RUN"
    kill -9 "$pid"
    ends 137 "who started them is killed"
    start "$RUN"
    kill -INT "$pid"
    ends 130 "Ctrl-C"
    check "Ctrl-C: no message" test ! -s "$tmp/err"
else
    skip "env cannot reset SIGINT, which shells ignore in the background"
fi

# ---- GPUs: the host's, with NCCL of the tests ----

shim="$build/tests/cuda/run_shim"
if [ ! -x "$shim" ] || [ ! -e "$build/tests/cuda/nccl/libnccl.so.2" ]; then
    skip "no host build of the CUDA kernels"
    finish
    exit 0
fi
cpu=$RUN
mkdir "$tmp/none" && echo x >"$tmp/none/libnccl.so.2"
export LD_LIBRARY_PATH="$tmp/none"
RUN=$shim
set -- generate -m "$m" -p "Alice was" -n 3 --temp 0 --kv f32 --gemm builtin --device cuda
refused 1 "ranks need NCCL: " "no NCCL" "$@" --tp 2
run "$@" --tp 1
err_has "no NCCL" "one rank does without it, and says so"
export LD_LIBRARY_PATH="$build/tests/cuda/nccl"
run "$@" --tp 1
err_has "NCCL 1.2.3" "or goes through it"
if ldconfig -p 2>/dev/null | grep -q libnccl; then skip "the loader finds another NCCL first"; else
    folder="$tmp/venv/lib/python3.12/site-packages/nvidia/nccl/lib"
    mkdir -p "$folder" && cp "$build/tests/cuda/nccl/libnccl.so.2" "$folder/"
    ran env LD_LIBRARY_PATH= VIRTUAL_ENV="$tmp/venv" "$RUN" "$@" --tp 1
    err_has "NCCL 1.2.3" "which is found in a Python environment"
fi
refused 2 "3 ranks on this machine need a GPU each, it has 2" "more ranks than GPUs" "$@" --tp 3
refused 1 "--device cuda:1: 2 ranks require cpu, or cuda with one GPU each" "two ranks on one GPU" "$@" --device cuda:1 --tp 2
export FAKE_NCCL_FAIL=5
refused 1 "NCCL: a failure that was asked for" "a call that fails on all ranks" "$@" --tp 2
export FAKE_NCCL_FAIL=5:1
refused 1 "NCCL: a failure that was asked for" "and on one, for which the other waits" "$@" --tp 2
unset FAKE_NCCL_FAIL
start "$shim" --device cuda
kill -9 "$rank1"
ends 1 "a rank is killed while the other waits for NCCL"

# Prompts beyond the budget, which strategies choose from, and steps; at first with device memory that the host cannot touch.
p="Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do"
act=actqkv:budget=18:sink=2:local=8:window=16:block=4:reps=2
inf=infllm:budget=18:sink=2:local=8:window=16:block=4:reps=2
export SHIM_GUARD=1
for attn in full quest:budget=16:page=4:skip=0 fier:budget=24:g=8:skip=0:gqa=layer_concat h2o:budget=16:skip=0 \
    tova:budget=16:skip=0 mikv:skip=0 snapkv:budget=12:window=4:skip=0 snapkv:budget=12:window=4:skip=0:gqa=layer_mean kivi:g=8:r=16 \
    retroinfer:budget=12:sink=1:local=4:size=2:update=4 \
    pqcache:budget=14:sink=2:bits=4 codes:budget=16:skip=0:kv=kivi4/g=4/r=8 pariskv:budget=4:sink=1:local=4:u=4:full_thr=0 $act $act:gqa=layer_mean $inf; do
    ! thin 3 || continue
    set -- generate -m "$m" -p "$p" -n 8 --temp 0 --kv f32 --gemm builtin --quiet --attn "$attn"
    "$cpu" "$@" >"$tmp/one" 2>/dev/null
    run "$@" --device cuda --tp 2
    unset SHIM_GUARD
    check "$attn: two GPUs, the text of the CPU" cmp -s "$tmp/out" "$tmp/one"
done
# Numbers of rules over all heads of a layer, side by side.
all=$act,$act:gqa=layer_mean,$inf,quest:page=4:gqa=layer_mean,fier:g=8:gqa=layer_concat
set -- eval pg19 -m "$m" --attn "$all" --budget 18 --skip 0 --ctx 28 --gemm builtin --quiet
"$cpu" "$@" --csv "$tmp/1.csv" >"$tmp/one" 2>/dev/null
run "$@" --csv "$tmp/2.csv" --device cuda --tp 2
agree() { paste -d, "$1" "$2" | awk -F, 'NR > 1 { d = $6 / $12 - 1; if (d < -1e-4 || d > 1e-4 || $3 != $9) exit 1 } END { exit NR < 6 }'; }
check "pg19: two GPUs have the perplexities of the CPU" agree "$tmp/1.csv" "$tmp/2.csv"
finish
