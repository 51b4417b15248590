# SPDX-License-Identifier: MIT
"""What all references share: random numbers, ordering, softmax, narrow floats, the safetensors writer. NumPy only."""
import json

import numpy as np

F32, F64 = np.float32, np.float64
GAP = 1e-5  # a cut between chosen and dropped must be this wide (relative to the largest score): float32 code agrees


class Bf16:
    """A tensor to be written as BF16: float32 values that are bf16 numbers."""

    def __init__(self, x):
        self.bits = (np.asarray(x, F32).view(np.uint32) >> 16).astype(np.uint16)


def splitmix64(seed, n):
    """n outputs of SplitMix64 (methods.md 0.2.9)."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, n + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def normal(seed, *shape):
    """About N(0, 1), float32: twelve 24-bit uniforms minus 6. No libm, so the same bits everywhere."""
    n = int(np.prod(shape))
    u = (splitmix64(seed, 12 * n) >> np.uint64(40)).astype(F64) / 2**24
    return (u.reshape(n, 12).sum(axis=1) - 6).astype(F32).reshape(shape)


def integers(seed, low, high, *shape):
    """Whole numbers low..high as float32: exact arithmetic, many ties."""
    r = splitmix64(seed, int(np.prod(shape))) >> np.uint64(33)
    return (low + (r % np.uint64(high - low + 1)).astype(np.int64)).astype(F32).reshape(shape)


KINDS = ("random", "constant", "dominant", "large", "one", "shared_mean", "tie")


def queries_keys(kind, seed, hq, hkv, n, d, dtype=np.float16):
    """q [hq, d], float32, and k [hkv, n, d] of one adversarial kind."""
    q, k = normal(seed, hq, d), normal(seed + 1000, hkv, n, d)
    if kind == "constant":  # every key of a head the same
        k = np.repeat(k[:, :1], n, axis=1)
    elif kind == "dominant":  # one channel outweighs all others, in keys and queries
        k[..., 3] *= 40
        q[..., 3] *= 4
    elif kind == "large":
        k *= 300
    elif kind == "one":  # the only token
        k = k[:, :1]
    elif kind == "shared_mean":  # a mean eight times the spread
        k += 8 * normal(seed + 2000, hkv, 1, d)
    elif kind == "tie":  # whole numbers: exact scores, equal ones among them
        q, k = integers(seed, -1, 1, hq, d), integers(seed + 1000, -1, 1, hkv, n, d)
    return q, np.ascontiguousarray(k).astype(dtype)


def scale_of(d):
    return F64(F32(1 / np.sqrt(d)))  # the softmax scale as float32 code holds it


def order(score):
    """Positions by score descending, then position ascending; NaN as -inf (methods.md 0.2.2). Scores as float32."""
    s = np.where(np.isnan(score), -np.inf, score).astype(F32)
    return np.lexsort((np.arange(len(s)), -s))


def top(score, k, tie=False):
    """The first k of `order`, ascending. Unless tie, the cut must be wide enough for float32 code to agree on it."""
    o = order(score)
    if not tie and 0 < k < len(o):
        s = np.asarray(score, F64)[o]
        big = np.abs(s[np.isfinite(s)]).max()
        clear = s[k - 1] - s[k] > GAP * big or 1e-30 < s[k] < s[k - 1] * (1 - 10 * GAP)  # or, of weights, a clear ratio
        assert clear, f"cut too narrow: {s[k - 1]} and {s[k]}; take another seed"
    return np.sort(o[:k])


def away(x, edges, gap):
    """Asserts that no x lies within gap of an edge: a float32 computation of x falls on the same side."""
    d = np.abs(np.asarray(x, F64)[..., None] - np.asarray(edges, F64))
    assert d.min() > gap, f"a value lies within {d.min()} of an edge; take another seed"


def lse(x, axis=-1):
    """log sum exp; -inf where nothing is to be summed."""
    m = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    safe = np.where(np.isfinite(m), m, 0)
    with np.errstate(divide="ignore"):
        return np.squeeze(safe + np.log(np.sum(np.exp(x - safe), axis=axis, keepdims=True)), axis=axis)


def softmax(x, axis=-1):
    return np.exp(x - np.expand_dims(lse(x, axis), axis))


def f16(x):
    """Rounded to half precision (ties to even), as float64. A value close to the middle of two halves, where float32
    code could fall on the other side, is refused; exactly in the middle is fine."""
    x = np.asarray(x, F64)
    h = x.astype(np.float16)
    for other in (np.nextafter(h, np.float16(np.inf)), np.nextafter(h, np.float16(-np.inf))):
        mid = (h.astype(F64) + other.astype(F64)) / 2
        clear = (np.abs(x - mid) > 3e-7 * np.abs(x)) | (x == mid)
        assert np.all(clear), "ambiguous rounding to half; take another seed"
    return h.astype(F64)


def bf16(x):
    """Rounded to bfloat16 (to nearest, ties to even), as float64; same demand as f16."""
    b = np.asarray(x, F32).view(np.uint32)
    low = (b & np.uint32(0xFFFF)).astype(np.int64)
    assert np.all((np.abs(low - 0x8000) > 6) | (b == 0)), "ambiguous rounding to bfloat16; take another seed"
    r = (b + np.uint32(0x7FFF) + ((b >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return r.view(F32).astype(F64)


def pad(lists, width=None):
    """Lists of positions as one I32 array, filled up with -1."""
    width = max([len(x) for x in lists], default=0) if width is None else width
    out = np.full((len(lists), width), -1, np.int32)
    for row, x in zip(out, lists):
        row[:len(x)] = x
    return out


def i32(*x):
    return np.array(x, np.int32)


NAMES = {"float16": "F16", "float32": "F32", "int32": "I32", "uint8": "U8"}


def save(path, tensors):
    """Writes safetensors: widest elements first, then by name, so that every tensor is aligned. float64 becomes F32."""
    rows = []
    for name, x in tensors.items():
        if isinstance(x, Bf16):
            rows.append((2, name, "BF16", x.bits))
            continue
        x = np.ascontiguousarray(x)
        x = x.astype(F32) if x.dtype == F64 else x.astype(np.int32) if x.dtype == np.int64 else x
        rows.append((x.itemsize, name, NAMES[str(x.dtype)], x))
    header, data, at = {}, [], 0
    for _, name, dtype, x in sorted(rows, key=lambda r: (-r[0], r[1])):
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        data.append(x.astype(x.dtype.newbyteorder("<")).tobytes())
        at += x.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(data))
