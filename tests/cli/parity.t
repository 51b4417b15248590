# SPDX-License-Identifier: MIT
# scripts/parity: options, and tables with a stand-in for llama.cpp's binding, whose logits are Kvasir's in float32.
. "$SRCDIR/tests/cli/lib.sh"
PYTHON=${PYTHON:-python3}
export PYTHONDONTWRITEBYTECODE=1
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || skip_all "no Python 3.9"
parity() { ran "$PYTHON" "$SRCDIR/scripts/parity" --dir "$tmp/peers" --version 1 "$@"; } # parity ARGS...: as run
bad() { # bad STATUS TEXT NAME ARGS...: as refused of lib.sh
    want=$1 text=$2 name=$3
    shift 3
    parity "$@"
    is_refusal "$want" "$text" "$name"
}
llama=$SRCDIR/tests/data/gguf/llama.gguf
parity --help
out_has "Usage: scripts/parity" "--help"
bad 2 "required: FILE.gguf" "no file"
bad 1 "$tmp/no.gguf: no such file" "a file that is missing" "$tmp/no.gguf"
bad 2 "--tokens 0: expected at least 1" "no token" --tokens 0 "$llama"
bad 2 "--prompt and --greedy need each other" "greedy text without a prompt" --greedy 5 "$llama"
bad 1 "run scripts/peers --prepare" "llama.cpp is missing" "$llama"

KVASIR_LIBRARY=$(find "$(cd "$(dirname "$RUN")" && pwd)" -maxdepth 1 -name 'libkvasir.so.*')
if [ -n "$KVASIR_LIBRARY" ] && "$PYTHON" -c 'import numpy' 2>/dev/null; then
    export KVASIR_LIBRARY
    mkdir -p "$tmp/peers/llama-cpp-python-1/llama_cpp"
    cat >"$tmp/peers/llama-cpp-python-1/llama_cpp/llama_cpp.py" <<'END'
import ctypes, os, types
import kvasir
llama_token, llama_log_callback = ctypes.c_int32, lambda f: f
LLAMA_FLASH_ATTN_TYPE_DISABLED = 0
llama_log_set = lambda *_: None
llama_backend_init = llama_model_default_params = llama_log_set
llama_context_default_params = types.SimpleNamespace
llama_model_get_vocab = lambda model: model
llama_vocab_n_tokens = lambda model: model.info["vocab"]
llama_batch_get_one = lambda ids, n: list(ids)
def llama_model_load_from_file(path, _):
    return kvasir.Model.from_pretrained(path.decode(), threads=1, ctx=64, weights="f32", gemm="builtin")
def llama_init_from_model(model, _):
    return model.session(store="f32")
def llama_decode(session, ids):
    session.feed(ids, steps=True)
def llama_get_logits_ith(session, _):
    row = session.logits * (1 if os.environ.get("SIGN") is None else -1)
    llama_get_logits_ith.kept = row
    return row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
END
    parity --tokens 5 -f "$SRCDIR/doc/usage.md" --skip 100 "$llama"
    out_has "| llama.gguf | llama.cpp | 0.00000 | 0.00000 | 0.00000 | 0.0000 | 100.0 % |" "no divergence from itself"
    check "a row of ours" test "$status" -eq 0 -a "$(grep -c '^| llama.gguf | kvasir | 0.' "$tmp/out")" -eq 1
    SIGN=-1 parity --tokens 5 -f "$SRCDIR/doc/usage.md" "$llama"
    check "other logits diverge" test "$(grep -c 'llama.cpp | 0.00000' "$tmp/out")" -eq 0 -a "$status" -eq 0
    parity --greedy 5 --prompt "a b" "$llama"
    out_has "| llama.gguf | 'a b' | 5 | - |" "the same greedy text"
    SIGN=-1 parity --greedy 5 --prompt "a b" "$llama"
    check "text that differs at once" grep -q "| llama.gguf | 'a b' | 0 | [0-9]" "$tmp/out"
else
    skip "logits: no shared library or no NumPy"
fi
finish
