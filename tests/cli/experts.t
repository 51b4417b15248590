# SPDX-License-Identifier: MIT
# A model with experts of 192 MiB in a memory control group (version 1 or 2) of 96 MiB: they are read from the file as
# they are chosen. Skipped where no such group can be made. The file has holes: all weights are 0.
. "$SRCDIR/tests/cli/lib.sh"
command -v python3 >/dev/null || skip_all "python3 writes the model"
from=$models/qwen3-moe-f32 m=$tmp/m
mkdir "$m" && cp "$from"/tokenizer*.json "$from"/generation_config.json "$m/"
python3 - "$from/config.json" "$m" <<'EOF' || exit 1
import json, struct, sys
config = json.load(open(sys.argv[1]))
hidden, width, experts, heads, kv, dim, vocab = 512, 512, 128, 4, 2, 16, config["vocab_size"]
config.update(hidden_size=hidden, moe_intermediate_size=width, num_experts=experts, num_local_experts=experts, num_hidden_layers=1,
              decoder_sparse_step=1, num_experts_per_tok=3, tie_word_embeddings=True, layer_types=None)
json.dump(config, open(sys.argv[2] + "/config.json", "w"))
layer = "model.layers.0."
shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden], layer + "input_layernorm.weight": [hidden],
          layer + "post_attention_layernorm.weight": [hidden], layer + "self_attn.q_proj.weight": [heads * dim, hidden],
          layer + "self_attn.k_proj.weight": [kv * dim, hidden], layer + "self_attn.v_proj.weight": [kv * dim, hidden],
          layer + "self_attn.o_proj.weight": [hidden, heads * dim], layer + "self_attn.q_norm.weight": [dim],
          layer + "self_attn.k_norm.weight": [dim], layer + "mlp.gate.weight": [experts, hidden],
          layer + "mlp.experts.gate_up_proj": [experts, 2 * width, hidden], layer + "mlp.experts.down_proj": [experts, hidden, width]}
table, at = {}, 0
for name, shape in shapes.items():
    size = 2
    for n in shape:
        size *= n
    table[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
    at += size
header = json.dumps(table).encode()
header += b" " * (-len(header) % 4096 + 4088)
with open(sys.argv[2] + "/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header)
    f.truncate(8 + len(header) + at)
EOF
run generate -m "$m" -p "Alice" -n 4 --temp 0 --threads 1
check "the model runs" test "$status" -eq 0
cp "$tmp/out" "$tmp/want"
check "in memory nothing is counted" test "$(grep -c '^experts:' "$tmp/err")" -eq 0

if [ -w /sys/fs/cgroup/memory ] && mkdir "/sys/fs/cgroup/memory/kvasir-$$" 2>/dev/null; then
    group=/sys/fs/cgroup/memory/kvasir-$$ limit=memory.limit_in_bytes
elif grep -qw memory /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null && mkdir "/sys/fs/cgroup/kvasir-$$" 2>/dev/null; then
    group=/sys/fs/cgroup/kvasir-$$ limit=memory.max
else
    skip "no memory control group can be made"
    finish
    exit
fi
if echo $((96 << 20)) >"$group/$limit" 2>/dev/null && sh -c "echo \$\$ >'$group/cgroup.procs'" 2>/dev/null; then
    sh -c "echo \$\$ >'$group/cgroup.procs' && exec \"\$@\"" sh "$RUN" generate -m "$m" -p "Alice" -n 4 --temp 0 --threads 1 \
        --json "$tmp/r.json" >"$tmp/out" 2>"$tmp/err"
    check "it runs in half the memory" test $? -eq 0
    check "with the same text" cmp "$tmp/want" "$tmp/out"
    check "the share of the chosen experts that was in memory" grep -q '^experts: [0-9.]* % of 0\.0[1-9] GB chosen were in memory' "$tmp/err"
    check "also in the report" grep -q '"resident_bytes"' "$tmp/r.json"
    sh -c "echo \$\$ >'$group/cgroup.procs' && exec \"\$@\"" sh "$RUN" generate -m "$m" -p "Alice" -n 4 --plan >"$tmp/out" 2>"$tmp/err"
    check "the group limits the available memory of a plan" sh -c "cat '$tmp/out' '$tmp/err' | grep -qE 'available ([0-9]|[0-9][0-9]|10[0-9])\.[0-9] MB'"
else
    skip "the memory control group takes no process"
fi
rmdir "$group"
finish
