# SPDX-License-Identifier: MIT
"""FIER: a bit per key element, two levels per channel and group (methods.md section 7; paper section 3.3, Alg. 1)."""
import numpy as np

from .common import F32, F64, away, f16, i32, normal, pad, queries_keys, splitmix64, top
from .gqa import MODES, dots, scored


def quantize(x, levels="range", half=False):
    """One group x [tokens, ...]: bits and (lo, hi). Split and levels in float32 (here: exact, checked to be clear)."""
    x = x.astype(F32)
    top_, low = x.max(axis=0), x.min(axis=0)
    mean = x.astype(F64).mean(axis=0)
    if levels == "mad":
        z = mean
        if len(x) > 1:
            flat = top_ == low  # a constant group has no spread, whatever its mean rounds to
            away(np.where(flat, 1, (x - z) / np.where(flat, 1, top_ - low)), [0], 2e-7)
            z = np.where(flat, low, z)
    else:
        z = (top_ + low) / F32(2)
    bits = x >= z
    if levels == "range":
        return bits, low.astype(F64), top_.astype(F64)
    if levels == "mad":
        spread = np.where(top_ == low, 0, np.abs(x - z).mean(axis=0))
        lo, hi = z - spread, z + spread
    else:  # two_mean: the means of the two classes
        n = bits.sum(axis=0)
        hi = (bits * x.astype(F64)).sum(axis=0) / n
        lo = np.where(n == len(x), hi, (~bits * x.astype(F64)).sum(axis=0) / np.maximum(len(x) - n, 1))
    return bits, (f16(lo) if half else lo), (f16(hi) if half else hi)


def encode(k, g, levels="range", half=False):
    """Keys [hkv, n, d] -> bits [hkv, n, d], lo and hi [hkv, groups, d]. The open group is built from what it has."""
    bits = np.zeros(k.shape, bool)
    lo, hi = [], []
    for a in range(0, k.shape[1], g):
        b, low, high = quantize(k[:, a:a + g].transpose(1, 0, 2), levels, half)
        bits[:, a:a + g] = b.transpose(1, 0, 2)
        lo.append(low)
        hi.append(high)
    return bits, np.stack(lo, axis=1), np.stack(hi, axis=1)


def estimate(q, bits, lo, hi, g):
    """q . (bit ? hi : lo): [hq, n]."""
    n = bits.shape[1]
    rows = np.where(bits, np.repeat(hi, g, axis=1)[:, :n], np.repeat(lo, g, axis=1)[:, :n])
    return dots(q, rows)


def with_open(q, k, g, levels, mode, half=False):
    """Estimates with another rule for the incomplete group: exact keys, or levels of the newest g tokens (window)."""
    bits, lo, hi = encode(k, g, levels, half)
    est = estimate(q, bits, lo, hi, g)
    n, a = k.shape[1], k.shape[1] // g * g
    if mode == "exact":
        est[:, a:] = dots(q, k[:, a:])
    else:
        b, low, high = quantize(k[:, max(0, n - g):].transpose(1, 0, 2), levels, half)
        rows = np.where(b, high, low).transpose(1, 0, 2)
        est[:, a:] = dots(q, rows[:, rows.shape[1] - (n - a):])
    return est


def choose(score, n, k, tie=False, sink=0, recent=0):
    """Best k of n, ascending: the newest token, forced sinks and recents count in k; score is of the others between."""
    recent = max(1, recent)
    forced = np.r_[0:sink, n - recent:n]
    return np.sort(np.append(top(score, k - len(forced), tie) + sink, forced))


def fixture():
    t = {}

    def put(name, pre, q, bits, lo, hi, g, tests, dtype, tie=False, levels=True):
        n, d, hkv = bits.shape[1], bits.shape[2], len(bits)
        est = estimate(q, bits, lo, hi, g)
        if levels:
            t[f"{pre}.lo"], t[f"{pre}.hi"] = lo.astype(dtype), hi.astype(dtype)
            t[f"{pre}.bits"] = np.packbits(bits, axis=-1, bitorder="little")
        t[f"{pre}.est"] = est
        for mode, k in tests:
            s = scored(lambda x: estimate(x, bits, lo, hi, g), q, hkv, mode, d, n - 1)
            t[f"{pre}.{mode}"] = s
            t[f"{pre}.{mode}.k{k}"] = pad([choose(x, n, k, tie) for x in s])

    q, k = queries_keys("random", 201, 4, 2, 77, 24)
    t |= {"random.par": i32(4, 2, 77, 24), "random.q": q, "random.k": k}
    for levels in ("range", "mad", "two_mean"):
        for g in (32, 8, 1) if levels == "range" else (8,):
            tests = [("vote", 1), ("vote", 12), ("vote", 33), ("per_q", 12)]
            if (levels, g) == ("range", 32):
                tests = [(m, 12) for m in MODES] + tests
            tests = tests if levels == "range" and g > 1 else [("vote", 12)]
            put("random", f"random.g{g}.{levels}", q, *encode(k, g, levels, True), g, tests, np.float16, levels=g > 1)
    for mode in ("exact", "window"):
        t[f"random.g32.range_{mode}.est"] = with_open(q, k, 32, "range", mode)
    est = estimate(q, *encode(k, 32), 32)
    s = scored(lambda x: estimate(x, *encode(k, 32), 32), q, 2, "vote", 24, 77)
    # The softmax of a vote runs over what can be chosen; without sinks and recents only that changes, by a constant.
    t["random.g32.range.vote.k12.sink2.recent3"] = pad([choose(x[2:74], 77, 12, sink=2, recent=3) for x in s])
    assert np.array_equal(t["random.g32.range.est"], est)
    for n in (1, 2, 7, 8, 9, 33):  # requant: the state after each append is that of a bulk build over the prefix
        bits, lo, hi = encode(k[:, :n], 8)
        t |= {f"random.g8.n{n}.lo": lo.astype(np.float16), f"random.g8.n{n}.hi": hi.astype(np.float16),
              f"random.g8.n{n}.est": estimate(q, bits, lo, hi, 8)}
    for seed, kind in enumerate(("constant", "dominant", "large", "one", "shared_mean", "tie"), 231):
        q, k = queries_keys(kind, seed, 4, 2, 21, 16, F32 if kind in ("dominant", "shared_mean") else np.float16)
        t |= {f"{kind}.par": i32(4, 2, k.shape[1], 16), f"{kind}.q": q, f"{kind}.k": k}
        tests = [("per_q", 9), ("max_s", 9)] + ([("vote", 9)] if kind not in ("constant", "tie") else [])
        if kind == "one":
            tests = []
        for levels in ("range", "mad", "two_mean") if kind in ("constant", "dominant") else ("range",):
            put(kind, f"{kind}.g8.{levels}", q, *encode(k, 8, levels, k.dtype != F32), 8, tests, k.dtype,
                kind in ("constant", "tie"))
    # Each (channel, group) takes two values: the estimate is the score.
    two = two_valued(221)
    q = normal(222, 4, 16)
    t |= {"two_values.par": i32(4, 2, 24, 16), "two_values.q": q, "two_values.k": two}
    put("two_values", "two_values.g8.range", q, *encode(two, 8), 8, [("vote", 6)], two.dtype)
    return t


def two_valued(seed):
    a, b = normal(seed, 2, 3, 1, 16).astype(np.float16), normal(seed + 1, 2, 3, 1, 16).astype(np.float16)
    pick = (splitmix64(seed + 2, 2 * 24 * 16) >> np.uint64(63)).astype(bool).reshape(2, 3, 8, 16)
    return np.where(pick, a, b).reshape(2, 24, 16)


def check():
    t = fixture()
    assert np.allclose(t["two_values.g8.range.est"], dots(t["two_values.q"], t["two_values.k"]), atol=1e-12)
    q, k = t["random.q"], t["random.k"]
    assert np.allclose(t["random.g1.range.est"], dots(q, k))
    assert np.array_equal(t["constant.g8.mad.est"], t["constant.g8.range.est"])
    assert np.all(t["constant.g8.range.bits"] == 255)  # a constant group has b = 1
    assert np.array_equal(t["constant.g8.range.per_q.k9"], [list(range(8)) + [20]] * 4)
    bits, lo, hi = encode(k, 32)
    assert np.array_equal(estimate(q, *encode(4 * k, 32), 32), 4 * estimate(q, bits, lo, hi, 32))
    shifted = estimate(q, *encode(k.astype(F32) + F32(0.5), 32), 32) - estimate(q, bits, lo, hi, 32)
    assert np.allclose(shifted, 0.5 * q.astype(F64).sum(axis=1, keepdims=True))
    assert np.allclose(t["random.g8.n33.est"][:, :32], t["random.g8.range.est"][:, :32])  # closed groups never change
    assert np.allclose(t["random.g8.n2.est"], dots(q, k[:, :2]))  # two tokens: two values
    assert np.array_equal(t["random.g32.range.vote.k1"], [[76]] * 2)  # the current token
    for row in t["random.g32.range.vote.k12.sink2.recent3"]:
        assert set(row) >= {0, 1, 74, 75, 76} and len(row) == 12
