# SPDX-License-Identifier: MIT
"""Quest: page bounds and page choice (methods.md section 6; paper Alg. 1 and section 3.4)."""
import numpy as np

from .common import F32, F64, i32, pad, queries_keys, top
from .gqa import MODES, dots, scored


def bounds(k, page):
    """Elementwise max and min of each page's keys, [hkv, pages, d], exact copies; the last page may be partial."""
    cuts = range(0, k.shape[1], page)
    return (np.stack([k[:, a:a + page].max(axis=1) for a in cuts], axis=1),
            np.stack([k[:, a:a + page].min(axis=1) for a in cuts], axis=1))


def page_scores(q, hi, lo, form="sum"):
    """sum (or, as FIER words it, max) over channels of max(q_c hi_c, q_c lo_c): [hq, pages]. No softmax scale."""
    g = len(q) // len(hi)
    x = q.astype(F64)[:, None]
    terms = np.maximum(x * np.repeat(hi, g, axis=0).astype(F64), x * np.repeat(lo, g, axis=0).astype(F64))
    return terms.sum(axis=-1) if form == "sum" else terms.max(axis=-1)


def choose(score, n_pages, budget, page, min_pages=3, tie=False):
    """Pages attended, ascending: the best by score [n_pages - 1] and the last one, which is forced and counts."""
    take = min(n_pages, max(min_pages, budget // page))
    return np.append(top(score, take - 1, tie), n_pages - 1)


def chosen(k, q, hi, lo, mode, form, budget, page, min_pages=3, tie=False):
    """Combined scores [lists, pages - 1] of the pages that can be chosen, and the lists of attended pages."""
    n_pages = hi.shape[1]
    if n_pages == 1:
        return None, np.zeros((1, 1), np.int32)
    s = scored(lambda x: page_scores(x, hi, lo, form), q, len(k), mode, q.shape[1], n_pages - 1)
    return s, pad([choose(x, n_pages, budget, page, min_pages, tie) for x in s])


def fixture():
    t = {}

    def put(name, q, k, page, tests, dtype, tie=False):
        hi, lo = bounds(k, page)
        pre = f"{name}.p{page}"
        if page > 1:
            t[f"{pre}.max"], t[f"{pre}.min"] = hi.astype(dtype), lo.astype(dtype)
            t[f"{pre}.maxch"] = page_scores(q, hi, lo, "maxch")
        t[f"{pre}.sum"] = page_scores(q, hi, lo)
        for mode, form, budget, min_pages in tests:
            s, pages = chosen(k, q, hi, lo, mode, form, budget, page, min_pages, tie)
            if s is not None:
                t[f"{pre}.{form}.{mode}"] = s
            t[f"{pre}.{form}.{mode}.b{budget}.m{min_pages}"] = pages

    q, k = queries_keys("random", 101, 4, 2, 91, 24)
    t |= {"random.par": i32(4, 2, 91, 24), "random.q": q, "random.k": k}
    for page, budgets in ((16, (16, 48, 80)), (8, (8, 40, 72)), (1, (1, 5, 31))):
        tests = [("vote", "sum", b, 3) for b in budgets] + [("vote", "sum", budgets[0], 1)]
        tests += [("vote", "maxch", budgets[1], 3), ("per_q", "sum", budgets[1], 3)]
        if page == 8:
            tests += [(m, "sum", 40, 3) for m in MODES]
        put("random", q, k, page, tests, np.float16)
    # Prefixes: the state after each append is that of a bulk build over the prefix.
    for n in (1, 8, 9, 16, 17):
        hi, lo = bounds(k[:, :n], 8)
        t[f"random.p8.n{n}.max"], t[f"random.p8.n{n}.min"] = hi, lo
    for seed, kind in enumerate(("constant", "dominant", "large", "one", "shared_mean", "tie"), 111):
        q, k = queries_keys(kind, seed, 4, 2, 23, 16, F32 if kind in ("large", "shared_mean") else np.float16)
        t |= {f"{kind}.par": i32(4, 2, k.shape[1], 16), f"{kind}.q": q, f"{kind}.k": k}
        tie = kind in ("constant", "tie")  # all scores equal or whole: position decides; no votes of whole scores
        tests = [("per_q", "sum", 12, 3), ("max_s", "sum", 16, 3)] + ([] if kind == "tie" else [("vote", "sum", 12, 3)])
        put(kind, q, k, 4, [("per_q", "sum", 4, 1)] if kind == "one" else tests, k.dtype, tie)
    return t


def check():
    t = fixture()
    for name, page in (("random", 16), ("random", 8), ("dominant", 4), ("large", 4), ("shared_mean", 4), ("tie", 4)):
        q, k = t[f"{name}.q"], t[f"{name}.k"]
        s, exact = t[f"{name}.p{page}.sum"], dots(q, k)
        for p in range(s.shape[1]):
            slack = 1e-12 * np.abs(s).max()
            assert np.all(s[:, p:p + 1] + slack >= exact[:, p * page:(p + 1) * page])
    q, k = t["random.q"], t["random.k"]
    assert np.allclose(t["random.p1.sum"], dots(q, k))  # a page of one token: the score itself
    assert np.array_equal(t["constant.p4.sum.vote.b12.m3"], [[0, 1, 5]] * 2)  # ties: the lowest positions
    mixed = k[:, np.r_[7:-1:-1, 8:91]]  # permuting inside a page changes nothing
    assert np.array_equal(bounds(mixed, 8)[0], t["random.p8.max"])
    before = page_scores(q, *bounds(k[:, :88], 16))
    assert np.all(t["random.p16.sum"] >= before)  # adding tokens never lowers a score
    assert t["random.p16.sum.vote.b16.m3"].shape[1] == 3 and t["random.p16.sum.vote.b16.m1"].shape[1] == 1
