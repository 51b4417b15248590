# SPDX-License-Identifier: MIT
"""ParisKV: rotation, codes, collisions, rerank (methods.md section 8; paper section 4.1, Prop. 4.1)."""
import numpy as np

from .common import Bf16, F32, F64, away, bf16, i32, normal, queries_keys, scale_of, splitmix64, top
from .gqa import probes, vote

THRESHOLDS = np.array([.0843, .1698, .2578, .3499, .4487, .5585, .6901])
CENTRES = np.array([.0420, .1266, .2130, .3025, .3973, .5001, .6169, .7633])
TAUS = (5, 15, 30, 50, 75, 100)  # percent
PATTERNS = (np.arange(256)[:, None] >> np.arange(8) & 1) * 2 - 1  # sign of element j of pattern id: bit j


def padded(d):
    return max(8, 1 << (d - 1).bit_length())


def signs(n, seed=42):
    return np.where(splitmix64(seed, n) >> np.uint64(63), -1.0, 1.0)


def hadamard(x):
    """Orthonormal, natural order, along the last axis: butterflies of span 1, 2, 4, ..."""
    n, span, x = x.shape[-1], 1, x.astype(F64)
    while span < n:
        y = x.reshape(*x.shape[:-1], n // (2 * span), 2, span)
        x = np.stack([y[..., 0, :] + y[..., 1, :], y[..., 0, :] - y[..., 1, :]], axis=-2).reshape(x.shape)
        span *= 2
    return x / np.sqrt(n)


def rotate(x, rounds=1):
    """x [..., d] -> norm [...], rotated direction [..., d_p]."""
    dp = padded(x.shape[-1])
    x = np.concatenate([x.astype(F64), np.zeros((*x.shape[:-1], dp - x.shape[-1]))], axis=-1)
    norm = np.maximum(np.sqrt((x * x).sum(axis=-1)), 1e-8)
    x = x / norm[..., None]
    for r in range(rounds):
        x = hadamard(x * signs(dp * rounds)[r * dp:(r + 1) * dp])
    return norm, x


def encode(k, rounds=1, exact=False):
    """Keys [..., d] -> ids [..., nb], bins [..., nb, 8], weights [..., nb] before rounding to bf16."""
    norm, x = rotate(k, rounds)
    b = x.reshape(*x.shape[:-1], -1, 8)
    if not exact:  # zero keys aside, no element may lie where float32 rounding decides its sign
        away(b[norm > 1e-8], [0], 2e-8)
    ids = ((b >= 0) << np.arange(8)).sum(axis=-1)
    r = np.sqrt((b * b).sum(axis=-1))
    u = np.abs(b) / np.maximum(r, 1e-8)[..., None]
    away(u, THRESHOLDS, 1e-6)
    bins = (u[..., None] > THRESHOLDS).sum(axis=-1)
    alpha = np.maximum((CENTRES[bins] * u).sum(axis=-1), 1e-6)
    return ids, bins, norm[..., None] * r / alpha


def nibbles(ids, bins):
    """Sign * 8 + bin, even element in the low nibble: [..., d_p / 2] bytes."""
    code = (ids[..., None] >> np.arange(8) & 1) * 8 + bins
    code = code.reshape(*code.shape[:-2], -1)
    return (code[..., ::2] | code[..., 1::2] << 4).astype(np.uint8)


def pattern_order(y):
    """The 256 patterns by y.sigma descending (one block): products added for j = 0..7 in float32, ties to the lower."""
    s = np.zeros(256, F32)
    for j in range(8):
        s = s + y.astype(F32)[j] * PATTERNS[:, j].astype(F32)
    return np.lexsort((np.arange(256), -s))


def bonuses(ids, y, rho):
    """Collision tiers of the patterns of each block: ids [nr, nb], y [nb, 8] -> [nb, 256]."""
    nr, out = len(ids), np.zeros((len(y), 256), np.int64)
    limits = np.array([-(-nr * rho * tau // 10000) for tau in TAUS])
    for b, yb in enumerate(y):
        count = np.bincount(ids[:, b], minlength=256)
        before = 0
        for p in pattern_order(yb):
            out[b, p] = (before < limits).sum()
            before += count[p]
    return out


def collisions(ids, y, rho):
    bonus = bonuses(ids, y, rho)
    return bonus, bonus[np.arange(ids.shape[1]), ids].sum(axis=1)


def robust(ids, y, rho):
    """Do float32 errors in the probe leave every collision score alone?"""
    want = collisions(ids, y, rho)[1]
    noise = 2e-7 * np.abs(y).max() * normal(77, 12, *y.shape)
    return all(np.array_equal(collisions(ids, y + e, rho)[1], want) for e in noise)


def estimates(q, ids, bins, w, rounds=1):
    """|q| * sum over blocks of w * (signed centres . y): one probe q [d] -> [nr]."""
    norm, y = rotate(q, rounds)
    v = CENTRES[bins] * np.where(ids[..., None] >> np.arange(8) & 1, 1, -1)
    return norm * (w * (v * y.reshape(-1, 8)).sum(axis=-1)).sum(axis=-1)


def case(q, k, rho, beta, k_top, rounds=1, center=False, exact=False):
    hkv, n, d = k.shape
    keys = k.astype(F64) - k.astype(F64).mean(axis=1, keepdims=True) if center else k
    ids, bins, w = encode(keys, rounds, exact)
    w16 = bf16(w)
    take, n_cand = min(k_top, n), max(min(k_top, n), -(-n * beta // 100))
    t = {"par": i32(len(q), hkv, n, d, rho, beta, k_top, rounds, int(center)), "q": q, "k": k,
         "x": rotate(keys[:, :2], rounds)[1], "ids": ids.astype(np.uint8), "codes": nibbles(ids, bins),
         "w": Bf16(w16)}
    rows = {name: [] for name in ("y", "bonus", "score", "cand", "est", "sel", "est_head", "sel_vote")}
    for h, p in enumerate(probes(q, hkv)):
        y = rotate(p, rounds)[1].reshape(-1, 8)
        assert exact or robust(ids[h], y, rho), "probe too near a tie; take another seed"
        bonus, score = collisions(ids[h], y, rho)
        cand = top(score, n_cand, tie=True)
        est = estimates(p, ids[h], bins[h], w16[h], rounds)
        heads = np.stack([estimates(x, ids[h], bins[h], w16[h], rounds) for x in q.reshape(hkv, -1, d)[h]])
        votes = vote(heads[:, cand], scale_of(d))
        sel = (cand[top(est[cand], take, exact)], cand[top(votes, take, exact)])
        for key, x in zip(rows, (y.ravel(), bonus.astype(np.uint8), score, cand, est, sel[0], heads, sel[1])):
            rows[key].append(x)
    for key, x in rows.items():
        t[key] = np.concatenate(x) if key == "est_head" else np.stack(x)
    return t


def fixture():
    t = {}

    def put(name, tensors, drop=()):
        t.update({f"{name}.{key}": x for key, x in tensors.items() if key not in drop})

    t["signs"] = signs(256).astype(np.int32)
    for name, seed, hq, hkv, n, d, rho, beta, k_top in (("d64", 301, 4, 2, 30, 64, 30, 25, 6),
                                                        ("d80", 302, 3, 1, 24, 80, 50, 50, 9),
                                                        ("d128", 303, 4, 1, 32, 128, 20, 10, 9)):
        q, k = queries_keys("random", seed, hq, hkv, n, d)
        put(name, case(q, k, rho, beta, k_top), () if name == "d80" else ("bonus",))
    for kind, seed in (("constant", 311), ("dominant", 312), ("large", 313), ("one", 314), ("shared_mean", 315)):
        q, k = queries_keys(kind, seed, 2, 1, 12, 64)
        put(kind, case(q, k, 30, 50, 4, exact=kind == "constant"), ("bonus", "est_head"))
        if kind == "shared_mean":
            put("center", case(q, k, 30, 50, 4, center=True), ("q", "k", "bonus", "est_head"))
        if kind == "dominant":
            put("rounds2", case(q, k, 30, 50, 4, rounds=2), ("q", "k", "bonus", "est_head"))
    # One channel alone, powers of two, and a zero key: patterns and estimates tie exactly, float32 rounds nothing.
    q, k = np.zeros((2, 64), F32), np.zeros((1, 16, 64), np.float16)
    q[:, 5] = 2
    for j in range(1, 16):
        k[0, j, (5, 9)[j % 2]] = (-1.0) ** (j // 4) * 2.0 ** (j // 8)
    put("one_hot", case(q, k, 50, 50, 4, exact=True))
    return t


def check():
    dense = np.array([[1.0]])
    while len(dense) < 128:
        dense = np.block([[dense, dense], [dense, -dense]])
    x = normal(390, 5, 128).astype(F64)
    assert np.allclose(hadamard(x), x @ dense / np.sqrt(128)) and np.allclose(hadamard(hadamard(x)), x)
    assert list(signs(8)) == [-1, 1, 1, 1, 1, -1, 1, -1]
    for rounds in (1, 2):
        norm, y = rotate(x[:, :80], rounds)  # padding and rotation keep norms and inner products
        assert np.allclose((y @ y.T) * norm[:, None] * norm, x[:, :80] @ x[:, :80].T)
    y = normal(300, 8)
    assert list(pattern_order(y)[[0, -1]]) == [((y >= 0) << np.arange(8)).sum(), ((y < 0) << np.arange(8)).sum()]
    assert list(pattern_order(np.zeros(8))) == list(range(256))  # ties to the lower id
    t = fixture()
    for name in ("d64", "d80", "d128"):
        hq, hkv, n, d, rho = t[f"{name}.par"][:5]
        codes, ids = t[f"{name}.codes"], t[f"{name}.ids"]
        top_bits = np.stack([codes >> 3 & 1, codes >> 7], axis=-1).reshape(*ids.shape, 8)
        assert np.array_equal((top_bits << np.arange(8)).sum(axis=-1), ids)  # the id is the sign bits
        p = probes(t[f"{name}.q"], hkv)
        exact = np.einsum("hd,hnd->hn", p, t[f"{name}.k"].astype(F64))
        assert np.corrcoef(exact.ravel(), t[f"{name}.est"].ravel())[0, 1] > .99
        for h in range(hkv):
            y = t[f"{name}.y"][h].reshape(-1, 8)
            hit = bonuses(ids[h], y, rho)[np.arange(ids.shape[2]), ids[h]] >= 1  # at least rho of nr have a bonus
            assert np.all(hit.sum(axis=0) >= min(n, -(-n * rho // 100)))
