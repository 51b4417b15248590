# SPDX-License-Identifier: MIT
"""Combining the scores of the query heads that share a kv head, or a layer (methods.md 0.2.4)."""
import numpy as np

from .common import F64, i32, lse, queries_keys, scale_of, top

MODES = ("per_q", "mean_q", "mean_s", "sum_s", "max_s", "vote", "layer_mean", "layer_vote", "layer_concat")


def probes(q, hkv):
    """mean_q: one probe per kv head, the mean of its queries."""
    return q.astype(F64).reshape(hkv, -1, q.shape[-1]).mean(axis=1)


def vote(score, scale):
    """log of the summed softmax weights: lse over the heads (first axis) of (logit - lse of its head). Of a single head
    the raw score decides, so that is its vote."""
    if len(score) == 1:
        return score[0]
    x = scale * score
    return lse(x - lse(x)[:, None], axis=0)


def combine(score, mode, hkv, scale):
    """Raw scores [hq, n] -> [lists, n]. For mean_q the caller scores the probes and passes [hkv, n]."""
    group = score.reshape(hkv, -1, score.shape[-1])
    if mode == "per_q":
        return score
    if mode == "mean_q":
        assert len(score) == hkv
        return score
    if mode in ("mean_s", "sum_s", "max_s"):
        return {"mean_s": group.mean, "sum_s": group.sum, "max_s": group.max}[mode](axis=1)
    if mode == "vote":
        return np.stack([vote(g, scale) for g in group])
    if mode == "layer_vote":
        return vote(score, scale)[None]
    if mode == "layer_mean":
        return score.mean(axis=0)[None]
    assert mode == "layer_concat"  # dot product of the concatenated heads
    return score.sum(axis=0)[None]


def dots(q, k):
    return np.einsum("hd,hnd->hn", q.astype(F64), np.repeat(k, len(q) // len(k), axis=0).astype(F64))


def scored(score_of, q, hkv, mode, d, n_candidates):
    """Combined scores of the first n_candidates items; score_of(queries) gives raw scores [len(queries), items]."""
    raw = score_of(probes(q, hkv) if mode == "mean_q" else q)
    return combine(raw[:, :n_candidates], mode, hkv, scale_of(d))


def fixture():
    t = {}
    # underflow: votes that a plain sum of softmax weights in float32 would flush to 0
    cases = {"group2": ("random", 51, 4, 2, 40, 16), "group3": ("random", 52, 6, 2, 25, 16),
             "group7": ("random", 53, 7, 1, 25, 16), "group1": ("random", 54, 3, 3, 25, 16),
             "group8": ("random", 55, 8, 1, 25, 16), "underflow": ("large", 56, 4, 2, 25, 16),
             "dominant": ("dominant", 57, 4, 2, 25, 16), "tie": ("tie", 58, 4, 2, 25, 8)}
    for name, (kind, seed, hq, hkv, n, d) in cases.items():
        q, k = queries_keys(kind, seed, hq, hkv, n, d)
        candidates, chosen = n - 3, 7  # the last three are forced and stay out of the softmax
        t |= {f"{name}.par": i32(hq, hkv, n, d, candidates, chosen), f"{name}.q": q, f"{name}.k": k,
              f"{name}.raw": dots(q, k)}
        for mode in MODES:
            s = scored(lambda x: dots(x, k), q, hkv, mode, d, candidates)
            t[f"{name}.{mode}"] = s
            tie = name == "tie"
            if tie and "vote" in mode:
                continue  # a vote is not exact: ties of votes are no rule, only rounding
            t[f"{name}.{mode}.sel"] = np.stack([top(x, chosen, tie) for x in s]).astype(np.int32)
    return t


def check():
    t = fixture()
    assert np.allclose(t["group3.mean_q"], t["group3.mean_s"])  # raw scores are linear in q
    assert np.allclose(t["group3.sum_s"], 3 * t["group3.mean_s"])
    assert np.allclose(np.exp(t["group7.vote"]).sum(axis=1), 7)
    assert np.allclose(t["group7.vote"], t["group7.layer_vote"])
    assert np.array_equal(t["group1.vote.sel"], t["group1.per_q.sel"])  # one head: the raw score decides
    assert t["underflow.vote"].min() < np.log(np.finfo(np.float32).tiny)
    s = t["tie.per_q"]
    assert any(np.sum(row[sel].min() == row) > np.sum(row[sel].min() == row[sel])  # the cut runs through equals
               for row, sel in zip(s, t["tie.per_q.sel"]))
    for row, sel in zip(s, t["tie.per_q.sel"]):
        assert set(sel) == set(sorted(range(len(row)), key=lambda j: (-row[j], j))[:len(sel)])
