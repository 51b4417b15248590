#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch comparison for `scripts/gpu_check bench`: decode and prefill of the same shapes with random bf16 weights and
torch's scaled_dot_product_attention over a preallocated cache, as in transformers' models. Decode is timed as a queue of
launches ("torch") and as a CUDA graph ("torch-graph"). Rows have the names of `./run bench --json`.

Unlike a generation, it attends a fixed number of tokens, does not rotate, and takes the greedy token; the omitted work
takes negligible time. Cases that do not fit into memory are listed under left_out."""
import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

# layers, hidden, feed-forward, heads, kv heads, head size, vocabulary: as in model/shapes.c
SHAPES = {
    "llama-3.1-8b": (32, 4096, 14336, 32, 8, 128, 128256),
    "qwen3-8b": (36, 4096, 12288, 32, 8, 128, 151936),
    "tiny": (2, 64, 160, 4, 2, 16, 512),
}
CHUNK, SAMPLES = 512, 10


class Model:
    """Weights of one shape, with a forward over a cache of k and v for each layer (decode step or prompt chunk)."""

    def __init__(self, name, device):
        self.n, self.dim, self.ffn, self.heads, self.kv, self.d, self.vocab = SHAPES[name]
        self.name, self.device = name, device
        self.embed = self.matrix(self.vocab, self.dim)
        self.head = self.matrix(self.vocab, self.dim)
        self.norm = torch.ones(self.dim, dtype=torch.bfloat16, device=device)
        rows = (self.heads + 2 * self.kv) * self.d
        self.layers = [(self.matrix(rows, self.dim), self.matrix(self.dim, self.heads * self.d),
                        self.matrix(2 * self.ffn, self.dim), self.matrix(self.dim, self.ffn)) for _ in range(self.n)]

    def matrix(self, rows, cols):
        return torch.empty(rows, cols, dtype=torch.bfloat16, device=self.device).uniform_(-0.035, 0.035)

    def decode_bytes(self):
        return 2 * (sum(w.numel() for layer in self.layers for w in layer) + self.head.numel())

    def cache(self, batch, tokens):
        shape = (batch, self.kv, tokens, self.d)
        return [tuple(torch.empty(shape, dtype=torch.bfloat16, device=self.device).normal_() for _ in range(2))
                for _ in range(self.n)]

    def rms(self, x):
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5).to(x.dtype) * self.norm

    def forward(self, ids, cache, past):
        """Stores the rows of tokens past .. past + m - 1 (ids [batch, m]) in the cache; returns the next tokens."""
        batch, m = ids.shape
        x = F.embedding(ids, self.embed)
        for (qkv, out, gate_up, down), (k, v) in zip(self.layers, cache):
            q, new_k, new_v = F.linear(self.rms(x), qkv).view(batch, m, -1, self.d).transpose(1, 2).split(
                [self.heads, self.kv, self.kv], dim=1)
            k[:, :, past:past + m] = new_k
            v[:, :, past:past + m] = new_v
            mask = None
            if m > 1 and past:
                mask = torch.ones(m, past + m, dtype=torch.bool, device=self.device).tril(past)
            a = F.scaled_dot_product_attention(q, k[:, :, :past + m], v[:, :, :past + m], attn_mask=mask,
                                               is_causal=m > 1 and not past, enable_gqa=True)
            x = x + F.linear(a.transpose(1, 2).reshape(batch, m, -1), out)
            gate, up = F.linear(self.rms(x), gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, down)
        return F.linear(self.rms(x[:, -1:]), self.head).argmax(-1)


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_seconds(run, device):
    run()
    times = []
    for _ in range(SAMPLES):
        wait(device)
        start = time.perf_counter()
        run()
        wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times), (max(times) - min(times)) / statistics.median(times)


def captured(run):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def row(m, phase, how, ctx, batch, tokens, seconds, spread):
    cache = 4 * m.n * m.kv * m.d * ctx
    return {"model": m.name, "phase": phase, "attn": how, "budget": None, "ctx": ctx, "batch": batch, "layers": m.n,
            "weights": "bf16", "kv": "bf16", "tokens": tokens, "tokens_per_s": tokens / seconds, "spread": spread,
            "bytes_per_token": m.decode_bytes() / batch + cache}


def decode_rows(m, ctx, batch):
    cache = m.cache(batch, ctx + 1)
    ids = torch.zeros(batch, 1, dtype=torch.long, device=m.device)

    def step():
        ids.copy_(m.forward(ids, cache, ctx))

    yield row(m, "decode", "torch", ctx, batch, batch, *median_seconds(step, m.device))
    if m.device.type == "cuda":
        yield row(m, "decode", "torch-graph", ctx, batch, batch, *median_seconds(captured(step), m.device))


def prefill_rows(m, ctx):
    """Times the whole prompt up to 8k, and only the last chunk beyond, as `./run bench` does."""
    timed = ctx if ctx <= 8192 else CHUNK
    cache = m.cache(1, ctx)
    ids = torch.zeros(1, timed, dtype=torch.long, device=m.device)
    yield row(m, "prefill", "torch", ctx, 1, timed, *median_seconds(lambda: m.forward(ids, cache, ctx - timed), m.device))


def measure(m, decode, prefill, batches, report):
    cases = [("decode", c, b, lambda c=c, b=b: decode_rows(m, c, b)) for c in decode for b in batches]
    cases += [("prefill", c, 1, lambda c=c: prefill_rows(m, c)) for c in prefill]
    for phase, ctx, batch, rows in cases:
        try:
            for r in rows():
                report["results"].append(r)
                print(f"{m.name} {phase} {ctx} batch {batch} {r['attn']}: {r['tokens_per_s']:.1f} tokens/s", flush=True)
        except (torch.OutOfMemoryError if hasattr(torch, "OutOfMemoryError") else RuntimeError) as e:
            report["left_out"].append({"model": m.name, "attn": "torch", "budget": None, "ctx": ctx, "batch": batch,
                                       "weights": "bf16", "kv": "bf16", "reason": str(e).splitlines()[0][:200]})
        if m.device.type == "cuda":
            torch.cuda.empty_cache()


def sizes(text):
    return [int(w[:-1]) * 1024 if w.endswith("k") else int(w) for w in text.split(",")]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cuda:0")
    p.add_argument("--shape", default="llama-3.1-8b,qwen3-8b", help="list of " + ", ".join(SHAPES))
    p.add_argument("--decode", default="1k,32k,128k,512k", type=sizes, help="contexts of decode")
    p.add_argument("--prefill", default="1k,8k,32k,128k", type=sizes, help="contexts of prefill")
    p.add_argument("--batch", default="1,8", type=sizes)
    p.add_argument("--json", required=True)
    a = p.parse_args()
    device = torch.device(a.device)
    report = {"command": "gpu_peer", "version": torch.__version__, "device": a.device, "results": [], "left_out": []}
    with torch.inference_mode():
        for name in a.shape.split(","):
            if name not in SHAPES:
                sys.exit(f"gpu_peer.py: --shape {name}: must be one of {', '.join(SHAPES)}")
            measure(Model(name, device), a.decode, a.prefill, a.batch, report)
    with open(a.json, "w", encoding="utf-8") as f:
        json.dump(report, f, indent=1)


if __name__ == "__main__":
    main()
