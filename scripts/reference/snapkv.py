# SPDX-License-Identifier: MIT
"""SnapKV: votes of the prompt's last queries, pooled (methods.md section 4; SnapKV: snapkv_utils.py)."""
import numpy as np

from .attention import logits, weights
from .common import F32, i32, integers, normal, queries_keys, scale_of, top


def votes(q, k):
    """q [w, hq, d], the last w of n: column sums of their causal softmax rows, before the window: [hq, n - w]."""
    w, n = len(q), k.shape[1]
    out = 0
    for i in range(w):
        x = logits(q[i], k, scale_of(k.shape[2]))
        x[:, n - w + i + 1:] = -np.inf
        out = out + weights(x)
    return out[:, :n - w]


def reduce(v, mode, hkv):
    g = v.reshape(hkv, -1, v.shape[-1])
    return {"per_q": v, "mean_s": g.mean(axis=1), "sum_s": g.sum(axis=1), "max_s": g.max(axis=1)}[mode]


def pool(v, kernel, form):
    """Stride 1, same length. avg divides by kernel at the borders too; max ignores what lies outside."""
    side, n = kernel // 2, v.shape[-1]
    spans = [v[..., max(0, j - side):j + side + 1] for j in range(n)]
    return np.stack([s.max(axis=-1) if form == "max" else s.sum(axis=-1) / kernel for s in spans], axis=-1)


def keep(pooled, n, w, capacity, tie=False):
    """Positions kept: all if n < capacity, else the best capacity - w before the window, and the window."""
    if n < capacity:
        return np.arange(n)
    return np.append(select(pooled, capacity - w, tie), np.arange(n - w, n))


def select(pooled, k, tie):
    """top, where equal values are copies of one maximum (a plateau) and tie by position; others must be clear."""
    values = np.unique(pooled.astype(F32))
    cut = np.sort(pooled.astype(F32))[-k]
    assert tie or np.sum(np.abs(values - cut) < 1e-5 * cut) == 1, "cut too narrow; take another seed"
    return top(pooled, k, tie=True)


def fixture():
    t = {}

    def put(name, pre, q, k, kernel, form, mode, capacity, tie=False):
        w, n = len(q), k.shape[1]
        v = reduce(votes(q, k), mode, len(k))
        pooled = pool(v, kernel, form)
        t[f"{name}.{mode}.votes"] = v
        t[f"{pre}.pooled"] = pooled
        t[f"{pre}.c{capacity}"] = np.stack([keep(x, n, w, capacity, tie) for x in pooled])

    w = 8
    q, k = normal(601, w, 4, 16), queries_keys("random", 602, 4, 2, 90, 16)[1]
    t |= {"random.par": i32(4, 2, 90, 16, w), "random.q": q, "random.k": k}
    for mode, form, kernel, capacity in (("mean_s", "max", 7, 24), ("mean_s", "max", 7, 90), ("mean_s", "avg", 5, 24),
                                         ("mean_s", "avg", 1, 33), ("mean_s", "max", 7, 91), ("per_q", "max", 7, 24),
                                         ("per_q", "avg", 5, 24), ("sum_s", "avg", 5, 24), ("max_s", "max", 5, 24),
                                         ("max_s", "avg", 7, 24), ("mean_s", "avg", 7, 9)):
        put("random", f"random.{mode}.{form}{kernel}", q, k, kernel, form, mode, capacity)
    # Kernel wider than what is voted on.
    t |= {"short.par": i32(4, 2, 12, 16, w), "short.q": q, "short.k": k[:, :12]}
    for form in ("max", "avg"):
        put("short", f"short.mean_s.{form}7", q, k[:, :12], 7, form, "mean_s", 10, tie=True)
    for seed, kind in enumerate(("constant", "dominant", "large", "one", "shared_mean", "tie", "planted"), 611):
        hq, w = 2, 1 if kind == "one" else 5
        k = queries_keys(kind, seed, hq, 1, 33, 16)[1]
        q = integers(seed + 50, -1, 1, w, hq, 16) if kind == "tie" else normal(seed + 50, w, hq, 16)
        if kind == "large":
            k /= 50
        if kind == "tie":  # pairs of equal keys: equal votes
            k = np.ascontiguousarray(np.repeat(k[:, ::2], 2, axis=1)[:, :33])
        if kind == "planted":  # every window query looks at token 13
            k[:, 13] = 4 * q.mean(axis=(0, 1)) / np.abs(q).mean()
        q, k = q.astype(np.float16), k.astype(np.float16)
        t |= {f"{kind}.par": i32(hq, 1, k.shape[1], 16, w), f"{kind}.q": q, f"{kind}.k": k}
        if kind != "one":
            put(kind, f"{kind}.mean_s.max7", q, k, 7, "max", "mean_s", 14, tie=True)
            put(kind, f"{kind}.mean_s.avg1", q, k, 1, "avg", "mean_s", 14, tie=kind in ("tie", "constant"))
    return t


def check():
    t = fixture()
    v = t["random.mean_s.votes"]
    padded = np.pad(v, ((0, 0), (2, 2)))
    assert np.allclose(t["random.mean_s.avg5.pooled"], sum(padded[:, i:i + v.shape[1]] for i in range(5)) / 5)
    assert np.array_equal(t["random.mean_s.avg1.pooled"], v)
    assert t["random.mean_s.max7.pooled"][0, 0] == v[0, :4].max()
    assert t["random.mean_s.max7.c24"].shape == (2, 24) and t["random.mean_s.max7.c90"].shape == (2, 90)
    assert t["random.mean_s.max7.c91"].shape == (2, 90)  # shorter than the capacity: everything
    assert np.all(t["random.mean_s.max7.c24"][:, -8:] == np.arange(82, 90))
    assert all(set(range(10, 17)) <= set(x) for x in t["planted.mean_s.max7.c14"])  # with its neighbourhood
    assert np.array_equal(t["constant.mean_s.avg1.c14"], [[*range(9), *range(28, 33)]])
    assert np.allclose(reduce(votes(t["random.q"], t["random.k"]), "sum_s", 2), 2 * v)
