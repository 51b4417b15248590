# SPDX-License-Identifier: MIT
"""ActQKV: probe of a window, block representatives, cosines, entropy budget (methods.md 9, 12.1; paper eqs. 6-12)."""
import numpy as np

from .attention import logits
from .common import F32, F64, away, i32, normal, order, queries_keys, scale_of, softmax, top

REPRESENTATIVES = 4


def probes(q, sizes):
    """q [n, hq, d] in windows. Statistics over all queries so far, per channel of the concatenated heads.
    -> weights [n], probes [windows, hq, d], mean and unbiased variance after each window [windows, hq * d]."""
    flat, end = q.reshape(len(q), -1).astype(F64), np.cumsum(sizes)
    w, probe, means, variances = [], [], [], []
    for a, b in zip(end - sizes, end):
        mean = flat[:b].mean(axis=0)
        var = ((flat[:b] - mean)**2).sum(axis=0) / max(1, b - 1)
        floor = var + var.mean() / 100
        phi = (flat[a:b] - mean)**2
        size = np.zeros(b - a) if var.mean() == 0 else (phi / floor).sum(axis=1)  # |phi_j|_1
        wj = size / size.sum() if size.sum() > 0 else np.full(b - a, 1 / (b - a))
        w.append(wj)
        probe.append((wj @ flat[a:b]).reshape(q.shape[1:]))
        means.append(mean)
        variances.append(var)
    return np.concatenate(w), np.stack(probe), np.stack(means), np.stack(variances)


def band_mass(q, k, band, q_far, k_far, scale):
    """Probability each band key gets from m queries, the last of n positions: one softmax over the keys with
    0 <= p - j < band and all far rows. q, q_far [m, hq, d]; k [hkv, n, d]; k_far [hkv, f, d] -> [hq, n]."""
    m, n, mass = len(q), k.shape[1], 0
    for i in range(m):
        dist = n - m + i - np.arange(n)
        near = np.where((dist >= 0) & (dist < band), logits(q[i], k, scale), -np.inf)
        mass = mass + softmax(np.concatenate([near, logits(q_far[i], k_far, scale)], axis=1))[:, :n]
    return mass


def representatives(k, mass, bs, tie=False):
    """Per block and query head the mean of the 4 keys with most mass.
    k [hkv, n, d], mass [hq, n] -> [blocks, hq, d]."""
    hq, g = len(mass), len(mass) // len(k)
    out = np.zeros((k.shape[1] // bs, hq, k.shape[2]))
    for b in range(len(out)):
        for h in range(hq):
            best = top(mass[h, b * bs:(b + 1) * bs], min(REPRESENTATIVES, bs), tie)
            out[b, h] = k[h // g, b * bs + best].astype(F64).mean(axis=0)
    return out


def cosines(probe, reps, per_head=False):
    """cos of the concatenated heads, or the mean of each head's cosine: [blocks]; 0 where a vector is 0."""
    dot, a, b = (probe * reps).sum(axis=2), (probe**2).sum(axis=1), (reps**2).sum(axis=2)
    if not per_head:
        dot, a, b = dot.sum(axis=1, keepdims=True), a.sum(keepdims=True), b.sum(axis=1, keepdims=True)
    norm = np.sqrt(a * b)
    return np.where(norm > 0, dot / np.where(norm > 0, norm, 1), 0).mean(axis=1)


def entropy(score):
    """Of the softmax over the block scores, natural log."""
    p = softmax(score)
    return 0 - (p * np.log(p)).sum(axis=-1)


def budgets(theta, n_blocks, nominal):
    """theta [steps, layers], blocks that exist [steps] -> blocks given [steps, layers]. Eq. 12 with integers."""
    steps, layers = theta.shape
    lo, hi = 7 * nominal // 10, 2 * nominal
    out = np.zeros((steps, layers), int)
    for s in range(steps):
        pool = layers * nominal
        for ell in range(layers):
            later = theta[:s, ell + 1:].mean(axis=0).sum() if s else 0
            total = theta[s, ell] + later
            share = theta[s, ell] / total if s and total > 0 else 1 / (layers - ell)
            want = share * pool + .5
            if want != np.rint(want):  # else exact in float32 as well
                away(want, [np.rint(want)], 1e-5)
            b = int(np.floor(want))
            b = min(max(b, lo), hi, pool - lo * (layers - ell - 1), n_blocks[s])
            out[s, ell] = b
            pool -= b
    return out


def fixture():
    t = {}
    for name, seed, sizes in (("random", 901, (6, 6, 6, 3)), ("offset", 902, (6, 4)), ("dominant", 903, (6, 4)),
                              ("equal", 904, (4, 4)), ("one", 905, (1, 1, 2)), ("gqa7", 906, (4, 4))):
        q = normal(seed, sum(sizes), 7 if name == "gqa7" else 4, 8)
        if name == "offset":  # a mean far above the spread: sums of squares would cancel
            q += 100
        elif name == "dominant":
            q[..., 3] *= 50
        elif name == "equal":
            q[:] = q[:1]
        elif name == "one":  # the first window is a single query, the second the same again
            q[1] = q[0]
        w, probe, mean, var = probes(q, np.array(sizes))
        t |= {f"stats.{name}.q": q, f"stats.{name}.sizes": i32(*sizes), f"stats.{name}.w": w,
              f"stats.{name}.probe": probe, f"stats.{name}.mean": mean, f"stats.{name}.var": var}

    q, q_far = normal(911, 6, 4, 16), normal(912, 6, 4, 16)
    k, k_far = queries_keys("random", 913, 4, 2, 24, 16)[1], queries_keys("random", 914, 4, 2, 5, 16)[1]
    t |= {"mass.q": q, "mass.k": k, "mass.q_far": q_far, "mass.k_far": k_far, "mass.band": i32(11)}
    t["mass.joint"] = band_mass(q, k, 11, q_far, k_far, scale_of(16))
    t["mass.near"] = band_mass(q, k, 11, q_far, k_far[:, :0], scale_of(16))

    cases = (("random", "random", 921, 4, 2, 8, 8), ("tie", "tie", 922, 4, 2, 5, 8),
             ("small", "random", 923, 3, 1, 6, 2),
             ("zero", "random", 924, 2, 1, 4, 4), ("dominant", "dominant", 925, 2, 2, 6, 4),
             ("same", "constant", 926, 2, 1, 6, 4))
    for name, kind, seed, hq, hkv, n_blocks, bs in cases:
        probe, k = queries_keys(kind, seed, hq, hkv, n_blocks * bs, 16)
        mass = np.abs(normal(seed + 50, hq, n_blocks * bs))
        if name == "tie":
            mass = np.floor(2 * mass)
        if name == "zero":
            probe[:] = 0
        reps = representatives(k, mass, bs, name == "tie")
        score, heads = cosines(probe.astype(F64), reps), cosines(probe.astype(F64), reps, True)
        pre, take, tie = f"blocks.{name}", n_blocks // 2, name in ("zero", "same")
        t |= {f"{pre}.par": i32(hq, hkv, n_blocks, bs, 16, take), f"{pre}.probe": probe, f"{pre}.k": k,
              f"{pre}.mass": mass, f"{pre}.reps": reps, f"{pre}.cos": score, f"{pre}.cos_head": heads,
              f"{pre}.sel": top(score, take, tie), f"{pre}.sel_head": top(heads, take, tie)}

    sharp = np.where(np.arange(4) % 2, .1, 8)[:, None, None]  # of every other step: entropies far from their means
    pools = {"random": (2 * normal(941, 4, 4, 12), 4), "tenfold": (sharp * normal(942, 4, 4, 12), 4),
             "few": (normal(943, 4, 4, 3), 4), "one": (normal(944, 2, 4, 1), 10), "flat": (np.full((2, 8, 40), .3), 20)}
    for name, (score, nominal) in pools.items():
        score = score.astype(F32)
        theta = entropy(score.astype(F64))
        t |= {f"pool.{name}.score": score, f"pool.{name}.nominal": i32(nominal), f"pool.{name}.theta": theta,
              f"pool.{name}.blocks": budgets(theta, np.full(len(score), score.shape[2]), nominal)}
    return t


def check():
    t = fixture()
    for name in ("random", "offset", "dominant", "equal", "one"):
        ends = np.cumsum(t[f"stats.{name}.sizes"])
        q, w = t[f"stats.{name}.q"], t[f"stats.{name}.w"]
        assert np.allclose(np.add.reduceat(w, ends - t[f"stats.{name}.sizes"]), 1)
        assert np.allclose(t[f"stats.{name}.mean"][-1], q.reshape(len(q), -1).astype(F64).mean(axis=0))
    assert np.allclose(t["stats.equal.w"], .25) and np.allclose(t["stats.equal.probe"][0], t["stats.equal.q"][0])
    assert t["stats.one.w"][0] == 1 and np.allclose(t["stats.one.probe"][0], t["stats.one.q"][0])
    q = normal(990, 12, 4, 8).astype(F64)
    assert np.allclose(probes(q, np.array([12]))[0], probes(-3 * q + 5, np.array([12]))[0])  # affine changes leave w
    near = t["mass.near"]
    assert np.allclose(near.sum(axis=1), 6) and np.all(near[:, :8] == 0) and np.all(t["mass.joint"] <= near)
    assert np.allclose(entropy(np.full(7, .3)), np.log(7))
    same = t["blocks.same.cos"]
    assert np.allclose(same, same[0]) and np.array_equal(t["blocks.same.sel"], [0, 1, 2])
    for name in ("random", "tenfold", "few", "one", "flat"):
        b, nominal, exist = t[f"pool.{name}.blocks"], t[f"pool.{name}.nominal"][0], t[f"pool.{name}.score"].shape[2]
        assert np.all(b.sum(axis=1) <= b.shape[1] * nominal) and np.all((b >= 0) & (b <= exist))
    assert np.all(t["pool.flat.blocks"] == 20) and np.all(t["pool.one.blocks"] == 1)
    theta = np.abs(3 + normal(991, 6, 5).astype(F64) / 4)
    assert np.all(budgets(theta, np.full(6, 100), 10).sum(axis=1) == 50)  # no clamp: the whole pool
    assert np.all(budgets(theta * np.where(np.arange(6) % 2, 10, 1)[:, None], np.full(6, 100), 10).sum(axis=1) <= 50)
    assert np.array_equal(order(np.array([1.0, np.nan, 1.0, 2.0])), [3, 0, 2, 1])
