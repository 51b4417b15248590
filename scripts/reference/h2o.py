# SPDX-License-Identifier: MIT
"""H2O: accumulated attention, prompt pruning, victims while decoding (methods.md section 3, behaviour c)."""
import numpy as np

from .attention import logits, weights
from .common import i32, normal, pad, queries_keys, scale_of, top


def group(rows, mode, hkv):
    """Softmax rows [hq, n] -> rows of the accumulators: the mean of a kv head, or each head its own."""
    if mode == "per_q":
        return rows
    assert mode == "mean_s"
    return rows.reshape(hkv, -1, rows.shape[-1]).mean(axis=1)


def head_row(q, k, h, stored):
    """Softmax of one query head over the stored positions of its list, spread over all positions."""
    x = logits(q[h:h + 1], k[[h // (len(q) // len(k))]][:, stored], scale_of(k.shape[2]))
    out = np.zeros(k.shape[1])
    out[stored] = weights(x)[0]
    return out


class H2O:
    """One list per accumulator: positions stored and their sums."""

    def __init__(self, k, mode, hq, budget, norm="sum", hh=None, tie=False):
        self.k, self.mode, self.hq, self.tie, self.norm = k, mode, hq, tie, norm
        self.hh = budget // 2 if hh is None else hh
        self.r = budget - self.hh
        self.lists = [[] for _ in range(hq if mode == "per_q" else len(k))]
        self.a = np.zeros((len(self.lists), k.shape[1]))
        self.n = 0

    def see(self, q):
        """One token: append with A = 0, attend everything stored, add the softmax row."""
        for x in self.lists:
            x.append(self.n)
        self.n += 1
        per = self.hq // len(self.lists)
        rows = np.stack([head_row(q, self.k, h, self.lists[h // per]) for h in range(self.hq)])
        self.a += group(rows, self.mode, len(self.k))

    def prune(self):
        """Down to the budget: the newest r stay, and the hh best of the others. -> victims of each list."""
        gone = []
        for a, x in zip(self.a, self.lists):
            if len(x) <= self.hh + self.r:
                gone.append([])
                continue
            old = np.array(x[:len(x) - self.r], int)
            score = a[old] / (self.n - old if self.norm == "count" else 1)
            keep = old[top(score, self.hh, self.tie)]
            gone.append(sorted(set(old) - set(keep)))
            x[:] = [*keep, *x[len(x) - self.r:]]
        return gone


def run(t, name, q, k, prompt, budget, mode, norm="sum", chunk=0, hh=None, tie=False):
    """prompt tokens exactly, then (or after each chunk) prune; each later token: see, prune. Fills t."""
    s = H2O(k, mode, q.shape[1], budget, norm, hh, tie)
    victims, sums = [], []
    for i in range(len(q)):
        s.see(q[i])
        if i + 1 == prompt:
            t[f"{name}.prompt_sum"] = s.a[:, :prompt].copy()
        if i + 1 < prompt and not (chunk and (i + 1) % chunk == 0):
            continue
        gone = s.prune()
        if i + 1 == prompt:
            t[f"{name}.prompt_kept"] = pad(s.lists)
        elif i + 1 > prompt:
            victims.append([g[0] if g else -1 for g in gone])
            sums.append(np.stack([np.pad(a[x], (0, budget - len(x))) for a, x in zip(s.a, s.lists)]))
    t[f"{name}.par"] = i32(q.shape[1], *k.shape, prompt, budget, s.hh, s.r, chunk)
    if len(q) > prompt:
        t[f"{name}.victims"], t[f"{name}.end_kept"] = np.array(victims), pad(s.lists)
        t[f"{name}.sums"] = np.stack(sums)[[0, len(sums) // 2, -1]]
    return s


def inputs(kind, seed, n, d=16, hq=4, hkv=2):
    k = queries_keys(kind, seed, hq, hkv, n, d)[1]
    q = normal(seed + 5000, k.shape[1], hq, d)
    if kind == "tie":  # everything looks at token 0 alone: all other sums are 0 in float32
        q[:], k[:] = 0, 0
        q[..., 0] = 300
        k[:, 0, 0] = 300
    elif kind == "large":
        k /= 50
    return q.astype(np.float16), k


def fixture():
    t = {}
    q, k = inputs("random", 401, 54)
    t |= {"random.q": q, "random.k": k}
    for mode in ("mean_s", "per_q"):
        run(t, f"random.{mode}", q, k, 36, 16, mode)
    run(t, "random.count", q, k, 36, 16, "mean_s", norm="count")
    run(t, "random.hh5", q, k, 36, 16, "mean_s", hh=5)
    run(t, "random.odd", q, k, 36, 7, "mean_s")
    run(t, "random.chunk8", q, k, 36, 16, "mean_s", chunk=8)
    run(t, "random.no_prompt", q, k, 1, 12, "mean_s")
    for seed, kind in enumerate(("constant", "dominant", "large", "one", "shared_mean", "tie"), 411):
        q, k = inputs(kind, seed, 26, 16, 2, 1)
        t |= {f"{kind}.q": q, f"{kind}.k": k}
        run(t, kind, q, k, 14 if len(q) > 1 else 1, 8, "mean_s", tie=kind == "tie")
    return t


def check():
    q, k = inputs("random", 402, 40)
    s = run({}, "x", q, k, 40, 64, "mean_s")
    dense = np.zeros((2, 40))  # column sums of the dense causal softmax matrix
    for t in range(40):
        dense[:, :t + 1] += weights(logits(q[t], k[:, :t + 1], scale_of(16))).reshape(2, 2, -1).mean(axis=1)
    assert np.allclose(s.a, dense) and np.allclose(s.a.sum(axis=1), 40)
    t = fixture()
    for name in ("random.mean_s", "random.hh5", "random.odd", "dominant"):
        hq, hkv, n, d, prompt, budget, hh, r, _ = t[f"{name}.par"]
        assert t[f"{name}.end_kept"].shape == (hkv, budget) and hh + r == budget
        assert np.all(t[f"{name}.end_kept"][:, -r:] == np.arange(n - r, n))  # the newest r
        assert np.all(t[f"{name}.victims"].T < np.arange(prompt, n) - r + 1)
    assert np.array_equal(t["tie.prompt_kept"], [[0, 1, 2, 3, 10, 11, 12, 13]])  # lowest positions stay
    assert np.array_equal(t["tie.victims"][:, 0], np.arange(14, 26) - 4)
    assert t["one.prompt_sum"].shape == (1, 1) and np.all(t["one.prompt_sum"] == 1)
