# SPDX-License-Identifier: MIT
"""Part of scripts/peers, which prepares what this needs: writes models of random weights (GGUF), times llama-bench and
`./run bench` in turn, writes the table, the samples and the picture."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

SHAPES = {  # layers, hidden, feed-forward, heads, KV heads, head dim, vocabulary: those of model/shapes.c
    "llama-3.2-1b": (16, 2048, 8192, 32, 8, 64, 128256),
    "tiny": (2, 64, 160, 4, 2, 16, 512),
}
TYPES = {"bf16": "BF16", "q8": "Q8_0", "q4": "Q4_0"}
PEER = "llama.cpp"


def fail(text, status=1):
    sys.stderr.write(f"peers: {text}\n")
    sys.exit(status)


class Arguments(argparse.ArgumentParser):
    def error(self, message):
        fail(message, 2)


def count(text):
    """4k -> 4096; a whole number, with k or M of 1,024."""
    scale = {"k": 1024, "K": 1024, "M": 1024 * 1024}.get(text[-1:], 1)
    digits = text[:-1] if scale > 1 else text
    if not digits.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of tokens")
    return int(digits) * scale


def counts(text):
    return [] if text == "-" else [count(x) for x in text.split(",")]


def weights(text):
    for w in text.split(","):
        if w not in TYPES:
            raise argparse.ArgumentTypeError(f"'{w}' is not one of {', '.join(TYPES)}")
    return text.split(",")


def arguments():
    p = Arguments(add_help=False, allow_abbrev=False)
    for name in ("--dir", "--bench", "--package", "-o", "--json", "--plot"):
        p.add_argument(name)
    p.add_argument("--run", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../run"))
    p.add_argument("--shape", default="llama-3.2-1b", choices=SHAPES)
    p.add_argument("--weights", type=weights, default=list(TYPES))
    p.add_argument("--ctx", type=counts)
    p.add_argument("--prompt", type=counts)
    p.add_argument("--attn", default="full,quest,fier,pariskv")
    p.add_argument("--repeat", type=int)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    for name in ("--quick", "--prepare", "--check-only"):
        p.add_argument(name, action="store_true")
    a = p.parse_args()
    if a.ctx is None:
        a.ctx = [0, 4096, 16384] if a.quick else [0, 4096, 16384, 32768]
    if a.prompt is None:
        a.prompt = [512] if a.quick else [512, 8192]
    if a.repeat is None:
        a.repeat = 2 if a.quick else 3
    for name in ("repeat", "threads"):
        if getattr(a, name) < 1:
            fail(f"--{name} {getattr(a, name)}: expected at least 1", 2)
    if not a.plot and not os.access(a.run, os.X_OK):
        fail(f"--run {a.run}: no such program; scripts/build makes it")
    return a


# ---- models ----


def write_model(path, shape, weight):
    import gguf
    import numpy as np

    layers, hidden, ffn, heads, kv_heads, dim, vocab = SHAPES[shape]
    kind = gguf.GGMLQuantizationType[TYPES[weight]]
    random = np.random.default_rng(42)
    w = gguf.GGUFWriter(path + ".part", "llama")
    w.add_name(f"random {shape}")
    w.add_block_count(layers)
    w.add_context_length(131072)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_key_length(dim)
    w.add_value_length(dim)
    w.add_rope_dimension_count(dim)
    w.add_rope_freq_base(500000.0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(vocab)
    w.add_tokenizer_model("no_vocab")

    def matrix(name, rows, columns):
        data = gguf.quants.quantize((random.standard_normal((rows, columns), np.float32) * 0.02), kind)
        w.add_tensor(name + ".weight", data, raw_dtype=kind)

    def norm(name):
        w.add_tensor(name + ".weight", np.ones(hidden, np.float32))

    matrix("token_embd", vocab, hidden)  # the output matrix too: tied
    norm("output_norm")
    for i in range(layers):
        b = f"blk.{i}."
        norm(b + "attn_norm")
        norm(b + "ffn_norm")
        matrix(b + "attn_q", heads * dim, hidden)
        matrix(b + "attn_k", kv_heads * dim, hidden)
        matrix(b + "attn_v", kv_heads * dim, hidden)
        matrix(b + "attn_output", hidden, heads * dim)
        matrix(b + "ffn_gate", ffn, hidden)
        matrix(b + "ffn_up", ffn, hidden)
        matrix(b + "ffn_down", hidden, ffn)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    os.rename(path + ".part", path)


def models(a):
    out = {}
    for weight in a.weights:
        path = out[weight] = os.path.join(a.dir, f"{a.shape}-{weight}.gguf")
        if not os.path.exists(path):
            note(f"writing {path}")
            write_model(path, a.shape, weight)
    return out


# ---- timing ----


def note(text):
    sys.stderr.write(f"peers: {text}\n")


def output_of(command):
    r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if r.returncode:
        last = (r.stderr.strip().splitlines() or ["no message"])[-1]
        fail(f"{' '.join(command)}: status {r.returncode}: {last}")
    return r.stdout


def peer(a, files, rows, phase, n, ctx):
    """llama-bench over all models at once: it computes a context once and restores it for the other models."""
    repeat = a.repeat if n <= 4096 else min(a.repeat, 2)
    lines = output_of([a.bench, "-m", ",".join(files[w] for w in a.weights), "-t", str(a.threads), "-o", "jsonl",
                       "-r", str(repeat), "-p", str(n if phase == "prompt" else 0), "-n", str(0 if phase == "prompt" else n),
                       "-d", str(ctx)])
    by_file = {files[w]: w for w in a.weights}
    for line in lines.splitlines():
        r = json.loads(line)
        key = (by_file[r["model_filename"]], phase, ctx if phase == "decode" else n, PEER)
        rows.setdefault(key, []).extend(r["samples_ts"])
    return f"commit {r['build_commit']}, {r['cpu_info']}"


def ours(a, rows, phase, n):
    path = os.path.join(a.dir, "bench.json")
    command = [a.run, "bench", "--shape", a.shape, "--weights", ",".join(a.weights), "--threads", str(a.threads), "--ctx", str(n),
               "--quiet", "--json", path]
    if phase == "prompt":
        command += ["--phase", "prefill", "--samples", "2" if n > 4096 else "4"]
    else:
        command += ["--phase", "decode", "--attn", a.attn, "--budget", "1024", "--skip", "0", "--samples", "8"]
        command += ["--fill"] if n else []
    output_of(command)
    with open(path, encoding="utf-8") as f:
        report = json.load(f)
    for r in report["results"]:
        name = r["attn"] + (f" {r['budget']}" if r["budget"] else "")
        rows.setdefault((r["weights"], phase, n, name), []).extend(r["samples"]["tokens_per_s"])
    return report["version"]


def measure(a, files):
    """Each row: ours, the peer, ours again, so that a change of the machine's state shows in the spread."""
    rows, about = {}, {}
    tests = [("decode", c) for c in a.ctx] + [("prompt", p) for p in a.prompt]
    for phase, n in tests:
        began = time.monotonic()
        about["kvasir"] = ours(a, rows, phase, n)
        about[PEER] = peer(a, files, rows, phase, n if phase == "prompt" else 32, 0 if phase == "prompt" else n)
        ours(a, rows, phase, n)
        note(f"{phase} {n}: {time.monotonic() - began:.0f} s")
    return rows, about


# ---- results ----


def middle(samples):
    """Median, and the distance of the quartiles over it."""
    m = statistics.median(samples)
    if len(samples) < 2:
        return m, 0.0
    q = statistics.quantiles(samples, n=4, method="inclusive")
    return m, (q[2] - q[0]) / m


def table(rows, about, a):
    names = [PEER] + sorted({k[3] for k in rows} - {PEER}, key=lambda s: (s != "full", list(k[3] for k in rows).index(s)))
    out = [f"Tokens a second, medians; in brackets the distance of the quartiles. {a.shape}, random weights, {a.threads} threads, "
           f"{platform.machine()}.", f"llama.cpp of {a.package}: {about[PEER]}. Kvasir {about['kvasir']}.", "",
           "| | weights | " + " | ".join(names) + " | full over llama.cpp |", "|---|---|" + "---:|" * (len(names) + 1)]
    for phase, n in dict.fromkeys((k[1], k[2]) for k in rows):
        for w in a.weights:
            cells, speed = [], {}
            for name in names:
                samples = rows.get((w, phase, n, name))
                if not samples:
                    cells.append("-")
                    continue
                speed[name], spread = middle(samples)
                cells.append(f"{speed[name]:.1f} ({100 * spread:.1f} %)")
            ratio = f"{speed['full'] / speed[PEER]:.2f}" if {"full", PEER} <= speed.keys() else "-"
            label = f"decode at {n:,}" if phase == "decode" else f"prompt of {n:,}"
            out.append(f"| {label} | {w} | " + " | ".join(cells) + f" | {ratio} |")
    return "\n".join(out) + "\n"


def write(path, text):
    if not path:
        sys.stdout.write(text)
        return
    try:
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    except OSError as e:
        fail(f"{path}: {e.strerror}")


def json_lines(rows, about, a):
    head = {"peers": PEER, "package": a.package, "about": about, "shape": a.shape, "threads": a.threads}
    lines = [json.dumps(head)]
    for (w, phase, n, name), samples in rows.items():
        m, spread = middle(samples)
        lines.append(json.dumps({"weights": w, "phase": phase, "tokens": n, "name": name, "tokens_per_s": round(m, 3),
                                 "spread": round(spread, 4), "samples": [round(s, 3) for s in samples]}))
    return "\n".join(lines) + "\n"


# ---- picture ----

def lines_of(path, weight):
    """{name: [(context, tokens a second), ...]} of the decode rows."""
    try:
        with open(path, encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
    except OSError as e:
        fail(f"{path}: {e.strerror}")
    except ValueError:
        fail(f"{path}: not JSON lines, as scripts/peers --json writes them")
    if not rows or "peers" not in rows[0]:
        fail(f"{path}: no results of scripts/peers")
    out = {}
    for r in rows[1:]:
        if r["phase"] == "decode" and r["weights"] == weight:
            out.setdefault(r["name"], []).append((r["tokens"], r["tokens_per_s"]))
    if not out:
        fail(f"{path}: no decode with {weight} weights")
    return rows[0], {k: sorted(v) for k, v in out.items()}


def plot(path, weight, out):
    head, data = lines_of(path, weight)
    try:
        import matplotlib
    except ImportError:
        fail("pictures need matplotlib (pip install matplotlib)")
    matplotlib.use("Agg")
    from matplotlib import pyplot
    contexts = sorted({c for line in data.values() for c, _ in line})
    names = ["empty" if c == 0 else f"{c // 1024}k" if c % 1024 == 0 else str(c) for c in contexts]
    figure, axes = pyplot.subplots(figsize=(7.6, 3.8), layout="constrained")
    for name, line in sorted(data.items(), key=lambda d: -d[1][-1][1]):
        axes.plot([contexts.index(c) for c, _ in line], [v for _, v in line], "--o" if name == PEER else "-o", label=name)
    axes.set(title=f"{head['shape']}, {weight}, {head['threads']} CPU threads", xlabel="Context length (tokens)",
             ylabel="Tokens per second", ylim=(0, None))
    axes.set_xticks(range(len(names)), names)
    axes.grid(axis="y", color="#dddddd")
    figure.legend(loc="outside right center", frameon=False)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "peers"}):
        try:
            figure.savefig(out, metadata={"Date": None} if out.endswith(".svg") else {})
        except (OSError, ValueError) as e:
            fail(f"{out}: {e}")


def main():
    a = arguments()
    if a.check_only:
        return
    if a.plot:
        if not a.o:
            fail("--plot: -o PICTURE.svg is expected", 2)
        plot(a.plot, "q8" if len(a.weights) > 1 else a.weights[0], a.o)
        return
    files = models(a)
    if a.prepare:
        note(f"ready: {a.bench} and {len(files)} models in {a.dir}")
        return
    rows, about = measure(a, files)
    if a.json:
        write(a.json, json_lines(rows, about, a))
    write(a.o, table(rows, about, a))


main()
