#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes queries, keys and values that look like those of a real model, for `run eval recall --tensors`.

Keys: latent topics that last for some tokens, three heavy channels that all keys share (biases), noise; then
rotated by their positions. Queries look for a few earlier tokens, from the end of the text. Needs NumPy.

    make_recall_tensors.py OUT.safetensors [--n 5000] [--queries 16] [--seed 1] [--drift 0]

--drift X: the heavy channels move by X times their size from the first key to the last.
"""
import argparse
import json
import struct

import numpy as np

KV_HEADS, GROUP, DIM, TOPICS, THETA = 4, 2, 128, 64, 500000.0


def rotate(x, pos):
    """RoPE of x [..., n, DIM] at positions pos [n], pairs (i, i + DIM / 2)."""
    angle = pos[:, None] * THETA ** (-np.arange(DIM // 2) * 2.0 / DIM)
    a, b = x[..., : DIM // 2], x[..., DIM // 2 :]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1)


def make(n, m, drift, r):
    topics = r.standard_normal((KV_HEADS, TOPICS, DIM))
    slow = np.arange(DIM // 4, DIM // 2)  # where Llama and Qwen have them
    heavy = np.stack([r.choice(slow, 3, replace=False) for _ in range(KV_HEADS)])
    shift = np.zeros((KV_HEADS, 1, DIM))
    np.put_along_axis(shift, heavy[:, None], r.choice([-1, 1], (KV_HEADS, 1, 3)) * np.array([10, 7, 5]), 2)
    walk = np.repeat(r.integers(0, TOPICS, n // 20 + 1), 20)[:n]
    keys = 0.6 * topics[:, walk] + r.standard_normal((KV_HEADS, n, DIM))
    keys += shift * (1 + drift * np.linspace(0, 1, n)[None, :, None])
    wanted = r.integers(0, n, (KV_HEADS, GROUP, m, 4))
    kv = np.arange(KV_HEADS)[:, None, None, None]
    queries = keys[kv, wanted].mean(3) + 0.5 * r.standard_normal((KV_HEADS, GROUP, m, DIM))
    pos = np.arange(n)
    q = rotate(queries.reshape(KV_HEADS * GROUP, m, DIM), np.full(m, n - 1))
    return {"q": q, "k": rotate(keys, pos), "v": r.standard_normal((KV_HEADS, n, DIM))}


def save(path, tensors):
    header, data = {}, b""
    for name, x in tensors.items():
        raw = x.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--n", type=int, default=5000)
    p.add_argument("--queries", type=int, default=16)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--drift", type=float, default=0)
    a = p.parse_args()
    save(a.out, make(a.n, a.queries, a.drift, np.random.default_rng(a.seed)))


if __name__ == "__main__":
    main()
