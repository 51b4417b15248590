# SPDX-License-Identifier: MIT
"""Attention with its log-sum-exp, and the merge of segments (methods.md 0.2.1, 0.2.10, 0.2.11, section 1)."""
import numpy as np

from .common import F32, F64, lse, normal, queries_keys, scale_of, softmax, splitmix64


def logits(q, k, scale):
    """scale * q.k: q [hq, d], k [hkv, n, d] -> [hq, n]."""
    g = q.shape[0] // k.shape[0]
    return scale * np.einsum("hd,hnd->hn", q.astype(F64), np.repeat(k, g, axis=0).astype(F64))


def weights(x):
    """Softmax rows; a row that sees nothing is 0."""
    dead = ~np.isfinite(lse(x))
    return np.where(dead[..., None], 0, softmax(np.where(dead[..., None], 0, x)))


def attend(q, k, v, scale, mask=None):
    """One query position over the rows where mask ([n] or [hq, n]) holds -> out [hq, d], lse [hq]."""
    x = logits(q, k, scale)
    if mask is not None:
        x = np.where(mask, x, -np.inf)
    return np.einsum("hn,hnd->hd", weights(x), np.repeat(v, q.shape[0] // k.shape[0], axis=0).astype(F64)), lse(x)


def causal(q, k, v, scale, window=0):
    """The last m of n positions: q [m, hq, d] -> out [m, hq, d], lse [m, hq]. window: keys with p - j < window."""
    m, n = q.shape[0], k.shape[1]
    out, ls = [], []
    for t in range(m):
        p, j = n - m + t, np.arange(n)
        o, s = attend(q[t], k, v, scale, mask=(j <= p) & ((p - j < window) | (window == 0)))
        out.append(o)
        ls.append(s)
    return np.stack(out), np.stack(ls)


def merge(outs, lses):
    """Softmax over the union of disjoint segments from their outputs [s, hq, d] and log-sum-exps [s, hq]."""
    m = lses.max(axis=0)
    o, total = np.zeros(outs.shape[1:]), np.zeros(m.shape)
    for oi, li in zip(outs, lses):
        for h in range(len(m)):
            if np.isfinite(li[h]):  # an empty segment is skipped, not multiplied by 0
                w = np.exp(li[h] - m[h])
                o[h] += w * oi[h]
                total[h] += w
    live = total > 0
    o[live] /= total[live][:, None]
    return o, np.where(live, m + np.log(np.where(live, total, 1)), -np.inf)


def decode_case(kind, seed, hq, hkv, n, d, dtype=np.float16):
    q, k = queries_keys(kind, seed, hq, hkv, n, d, dtype)
    v = normal(seed + 3000, hkv, k.shape[1], d).astype(dtype)
    out, ls = attend(q, k, v, scale_of(d))
    return {"q": q, "k": k, "v": v, "out": out, "lse": ls}


def fixture():
    t = {}
    cases = {"random": ("random", 11, 4, 2, 37, 16, F32), "constant": ("constant", 12, 4, 2, 9, 16),
             "dominant": ("dominant", 13, 4, 2, 17, 16), "large": ("large", 14, 4, 2, 17, 16),
             "one": ("one", 15, 4, 2, 1, 16), "shared_mean": ("shared_mean", 16, 4, 2, 17, 16),
             "group7": ("random", 17, 7, 1, 20, 16), "group1": ("random", 18, 3, 3, 20, 6),
             "wide": ("random", 19, 2, 1, 5, 128)}
    for name, args in cases.items():
        for key, x in decode_case(*args).items():
            t[f"{name}.{key}"] = x
    q, k, v = t["random.q"], t["random.k"], t["random.v"]
    hq, (hkv, n, d) = len(q), k.shape

    # Ragged lists, one per kv head: padded by -1; the second is empty in lists_empty.
    for name, lengths in (("lists", (17, 5)), ("lists_empty", (8, 0))):
        lists = [np.sort(np.argsort(splitmix64(30 + h, n))[:m]) for h, m in enumerate(lengths)]
        mask = np.zeros((hkv, n), bool)
        idx = np.full((hkv, max(lengths)), -1, np.int32)
        for h, x in enumerate(lists):
            mask[h, x] = True
            idx[h, :len(x)] = x
        out, ls = attend(q, k, v, scale_of(d), mask=np.repeat(mask, hq // hkv, axis=0))
        t |= {f"{name}.idx": idx, f"{name}.out": out, f"{name}.lse": ls}

    borders = np.array([0, 0, 7, 7, 31, n])  # of the segments; two are empty
    parts = [attend(q, k, v, scale_of(d), mask=(np.arange(n) >= a) & (np.arange(n) < b))
             for a, b in zip(borders[:-1], borders[1:])]
    outs, lses = np.stack([p[0] for p in parts]), np.stack([p[1] for p in parts])
    o, ls = merge(outs, lses)
    t |= {"merge.borders": borders, "merge.seg_out": outs, "merge.seg_lse": lses, "merge.out": o, "merge.lse": ls}

    pq = normal(40, 5, 4, 16)  # the last 5 of 21 positions
    pk, pv = normal(41, 2, 21, 16).astype(np.float16), normal(42, 2, 21, 16).astype(np.float16)
    t |= {"prefill.q": pq, "prefill.k": pk, "prefill.v": pv}
    for name, window in (("prefill", 0), ("prefill_window5", 5)):
        out, ls = causal(pq, pk, pv, scale_of(16), window)
        t |= {f"{name}.out": out, f"{name}.lse": ls}
    return t


def check():
    t = fixture()
    assert np.allclose(t["merge.out"], t["random.out"], atol=1e-12)
    assert np.allclose(t["merge.lse"], t["random.lse"], atol=1e-12)
    assert np.allclose(t["constant.out"], np.repeat(t["constant.v"].astype(F64).mean(axis=1), 2, axis=0), atol=1e-6)
    assert np.allclose(t["one.out"], np.repeat(t["one.v"][:, 0], 2, axis=0))
    assert np.allclose(weights(logits(t["random.q"], t["random.k"], scale_of(16))).sum(axis=1), 1)
    assert np.all(t["lists_empty.out"][2:] == 0) and np.all(t["lists_empty.lse"][2:] == -np.inf)
    none = merge(np.full((2, 1, 3), np.nan), np.full((2, 1), -np.inf))
    assert np.all(none[0] == 0) and none[1][0] == -np.inf
    last = attend(t["prefill.q"][-1], t["prefill.k"], t["prefill.v"], scale_of(16))
    assert np.allclose(last[0], t["prefill.out"][-1]) and np.allclose(last[1], t["prefill.lse"][-1])
