# SPDX-License-Identifier: MIT
# scripts/lib/gpu_peer.py without a GPU and without PyTorch: fake_torch knows shapes only.
. "$SRCDIR/tests/cli/lib.sh"
python3 -c 'import json, statistics' 2>/dev/null || skip_all "python3 is not there"
peer() { PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$SRCDIR/tests/cli/fake_torch" ran python3 "$SRCDIR/scripts/lib/gpu_peer.py" "$@"; }
# of FILE EXPRESSION: prints a Python expression of the report r, its rows a and what was left out.
of() { python3 -c "import json, sys; r = json.load(open(sys.argv[1])); a = r['results']; print($2)" "$1"; }

peer --shape tiny --decode 256,1k --prefill 64,16k --batch 1,8 --device cuda:0 --json "$tmp/peer.json"
check "it ends well" test "$status" -eq 0 -a ! -s "$tmp/err"
check "each case, as a queue and as a graph" test "$(grep -c '^tiny decode 1024 batch 8 torch-graph: ' "$tmp/out")" -eq 1 -a \
    "$(grep -c tokens/s "$tmp/out")" -eq 10
check "a long prompt is timed by its last chunk" test "$(of "$tmp/peer.json" "[x['tokens'] for x in a if x['phase'] == 'prefill']")" = "[64, 512]"
peer --shape tiny --decode 256 --prefill 64 --batch 1 --device cpu --json "$tmp/cpu.json"
check "no graph without a card" test "$(of "$tmp/cpu.json" "len(a)")" -eq 2

mkdir "$tmp/out.d"
"$RUN" bench --shape tiny --weights bf16 --phase decode --fill --ctx 256 --attn full --skip 0 --samples 1 --threads 1 --quiet \
    --json "$tmp/out.d/decode.json" >/dev/null 2>&1
cp "$tmp/peer.json" "$tmp/out.d"
check "bytes of a token within 2 % of those of bench" test "$(python3 - "$tmp/out.d/decode.json" "$tmp/peer.json" <<'END'
import json, sys
ours, theirs = (json.load(open(f))["results"] for f in sys.argv[1:])
theirs = [x for x in theirs if (x["phase"], x["ctx"], x["batch"]) == ("decode", 256, 1)]
print(len(ours), all(abs(x["bytes_per_token"] / ours[0]["bytes_per_token"] - 1) < 0.02 for x in theirs), len(theirs))
print(set(theirs[0]) - set(ours[0]))
END
)" = "1 True 2
set()"
ran perl "$SRCDIR/scripts/lib/gpu_table" "$tmp/out.d"
check "both in one table, compared with full" test "$status" -eq 0 -a \
    "$(grep -cE '^decode +tiny +device +(f16|bf16) +256 +1 +(full|torch|torch-graph) +- .* [0-9.]+ +(-|[0-9])' "$tmp/out")" -eq 3

FAKE_TORCH_MEMORY=1000000 peer --shape tiny --decode 16,64k --prefill 16 --batch 1 --json "$tmp/full.json"
check "what does not fit is left out" test "$status" -eq 0 -a \
    "$(of "$tmp/full.json" "len(a), [(x['ctx'], x['reason'][:20]) for x in r['left_out']]")" = "3 [(65536, 'CUDA out of memory. ')]"
peer --shape tny --json "$tmp/none.json"
check "an unknown shape" test "$status" -eq 1 -a ! -e "$tmp/none.json"
err_has "gpu_peer.py: --shape tny: must be one of llama-3.1-8b, qwen3-8b, tiny" "and says which there are"

check "the shapes are the program's" test "$(PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$SRCDIR/tests/cli/fake_torch:$SRCDIR/scripts/lib" python3 - "$SRCDIR/model/shapes.c" <<'END'
import re, sys, gpu_peer
text = open(sys.argv[1]).read()
for name, numbers in gpu_peer.SHAPES.items():
    found = re.search(r'"%s", ARCH\("\w+"\) DIMS\(([^)]*)\)' % re.escape(name), text)
    if not found or tuple(int(n) for n in found[1].split(",")) != numbers:
        print(name)
END
)" = ""
finish
