# SPDX-License-Identifier: MIT
"""TOVA: the last query's attention, averaged over heads, decides (methods.md section 5; TOVA: src/tova_cache.py)."""
import numpy as np

from .attention import logits, weights
from .common import i32, normal, pad, queries_keys, scale_of, top


def last_row(q, k, stored, mode):
    """Mean softmax row of one query [hq, d] over the stored positions of each list: [lists, n stored]."""
    hkv = len(k)
    rows = np.stack([weights(logits(q[h:h + 1], k[[h // (len(q) // hkv)]][:, stored[h * len(stored) // len(q)]],
                                    scale_of(k.shape[2])))[0] for h in range(len(q))])
    return rows.mean(axis=0)[None] if mode == "layer_mean" else rows.reshape(hkv, -1, rows.shape[1]).mean(axis=1)


def run(t, name, q, k, prompt, budget, mode="layer_mean", protect_last=False, tie=False):
    """q [n, hq, d]: the prompt's last query prunes to the budget, each later one drops the smallest. Fills t."""
    lists = [list(range(prompt)) for _ in range(1 if mode == "layer_mean" else len(k))]
    victims, rows = [], []
    for i in range(prompt - 1, len(q)):
        if i >= prompt:
            for x in lists:
                x.append(i)
        row = last_row(q[i], k, lists, mode)
        if i < prompt:
            t[f"{name}.prompt_row"] = row
        elif len(row[0]) == budget + 1:
            rows.append(row)
        gone = []
        for a, x in zip(row, lists):
            a = np.append(a[:-1], np.inf) if protect_last else a
            before = set(x)
            x[:] = [x[j] for j in top(a, min(budget, len(x)), tie)]
            gone.append(min(before - set(x), default=-1))
        if i < prompt:
            t[f"{name}.prompt_kept"] = pad(lists)
        else:
            victims.append(gone)
    t[f"{name}.par"] = i32(q.shape[1], *k.shape, prompt, budget, int(protect_last))
    if len(q) > prompt:
        t[f"{name}.victims"], t[f"{name}.end_kept"] = np.array(victims), pad(lists)
        t[f"{name}.rows"] = np.stack([rows[0], rows[len(rows) // 2], rows[-1]])


def inputs(kind, seed, n, d=16, hq=4, hkv=2):
    k = queries_keys(kind, seed, hq, hkv, n, d)[1]
    q = normal(seed + 5000, k.shape[1], hq, d)
    if kind == "tie":  # pairs of equal keys: equal weights
        k = np.repeat(k[:, ::2], 2, axis=1)
    elif kind == "large":
        k /= 50
    return q.astype(np.float16), k[:, :n]


def fixture():
    t = {}
    q, k = inputs("random", 501, 56)
    t |= {"random.q": q, "random.k": k}
    run(t, "random.layer_mean", q, k, 30, 12)
    run(t, "random.mean_s", q, k, 30, 12, "mean_s")
    run(t, "random.protect", q, k, 30, 12, protect_last=True)
    run(t, "random.budget1", q, k, 30, 1)
    run(t, "random.no_prompt", q, k, 1, 9)
    for seed, kind in enumerate(("constant", "dominant", "large", "one", "shared_mean", "tie"), 511):
        q, k = inputs(kind, seed, 20, 16, 2, 1)
        t |= {f"{kind}.q": q, f"{kind}.k": k}
        run(t, kind, q, k, 11 if len(q) > 1 else 1, 6, tie=kind in ("tie", "constant"))
    return t


def check():
    t = fixture()
    for name in ("random.layer_mean", "random.mean_s", "dominant", "large"):
        assert np.allclose(t[f"{name}.prompt_row"].sum(axis=1), 1) and np.allclose(t[f"{name}.rows"].sum(axis=2), 1)
        assert np.all(np.diff(t[f"{name}.end_kept"], axis=1) > 0)  # chronological
    assert np.array_equal(t["random.protect.victims"].ravel() < np.arange(30, 56), np.ones(26, bool))
    assert np.array_equal(t["constant.victims"].ravel(), np.arange(11, 20))  # all equal: the highest position goes
    q, k = inputs("random", 502, 20, hq=1, hkv=1)
    one = {}
    run(one, "x", q, k, 19, 19)
    row = weights(logits(q[-1], k, scale_of(16)))[0]
    assert one["x.victims"][0, 0] == row.argmin()  # one head: the minimum of its row
