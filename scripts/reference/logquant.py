# SPDX-License-Identifier: MIT
"""LogQuant: which positions stay exact, and quanto's per-token quantizer (methods.md section 11; paper Alg. 1)."""
import numpy as np

from .common import F32, F64, away, f16, i32, normal, pad, queries_keys


def thin(a, w):
    """A full list of 3w -> what stays, what is dropped (in list order)."""
    return a[0:2 * w:2] + a[2 * w:3 * w], a[1:2 * w:2]


def lists(n_end, w):
    """After each append, n = 1..n_end: the list; and for each n how many were dropped so far, and their order."""
    a, dropped, out = [], [], []
    for j in range(n_end):
        if len(a) == 3 * w:
            a, gone = thin(a, w)
            dropped += gone
        a.append(j)
        out.append((list(a), len(dropped)))
    return out, dropped


def quanto(x, bits):
    """hf_axis0_g64: x [..., 64] -> step as half, zero point, codes, dequantized. Codes from the float32 step."""
    x, top = x.astype(F32), 2**bits - 1
    low, high = x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)
    flat = high == low
    step = np.where(flat, F32(1), (high - low) / F32(top))
    away((x / step) % 1, [.5], 2e-6)
    away((-low / step) % 1, [.5], 2e-6)
    zero = np.rint(-low / step)
    assert np.abs(zero[~flat]).max(initial=0) <= 127, "zero point overflows int8"
    codes = np.clip(np.rint(x / step) + zero, 0, top)
    step = f16(np.where(flat, low, step))
    zero, codes = np.where(flat, -1, zero), np.where(flat, 0, codes)
    return step[..., 0], zero[..., 0], codes, step * (codes - zero)


def fixture():
    t = {}
    for r, n_end in ((3, 40), (12, 80)):
        w = r // 3
        rows, dropped = lists(n_end, w)
        t |= {f"r{r}.par": i32(r, w, n_end), f"r{r}.list": pad([a for a, _ in rows], 3 * w),
              f"r{r}.n_dropped": np.array([d for _, d in rows]), f"r{r}.dropped": np.array(dropped)}
    for r in (128, 256):
        w = r // 3
        rows, dropped = lists(3000, w)
        at = (3 * w, 3 * w + 1, 4 * w + 1, 3000)
        t |= {f"r{r}.par": i32(r, w, 3000), f"r{r}.at": np.array(at),
              f"r{r}.list": pad([rows[n - 1][0] for n in at], 3 * w),
              f"r{r}.n_dropped": np.array([rows[n - 1][1] for n in at]), f"r{r}.dropped": np.array(dropped[:4 * w])}
    cases = {"random": normal(801, 2, 3, 64), "random_d128": normal(802, 1, 2, 128),
             "half": normal(803, 1, 3, 64).astype(np.float16)}
    for seed, kind in enumerate(("constant", "dominant", "large", "shared_mean"), 811):
        cases[kind] = queries_keys(kind, seed, 2, 1, 3, 64, F32)[1]
    cases["constant"][:] = normal(820, 1, 3, 1)  # one value in every channel of a token
    for name, x in cases.items():
        groups = x.reshape(*x.shape[:2], -1, 64)
        for bits in (2, 4):
            step, zero, codes, back = quanto(groups, bits)
            pre = f"hf.{name}.b{bits}"
            t |= {f"hf.{name}.x": x, f"{pre}.step": step.astype(np.float16), f"{pre}.zero": zero.astype(np.int32),
                  f"{pre}.codes": codes.reshape(x.shape).astype(np.uint8), f"{pre}.back": back.reshape(x.shape)}
    return t


def check():
    for w in (1, 4, 10, 42):
        for n, (a, gone) in enumerate(lists(800, w)[0], 1):
            assert a == sorted(a) and a[0] == 0 and len(a) + gone == n
            assert n <= 3 * w or 2 * w + 1 <= len(a) <= 3 * w
            newest = a[-min(n, w + 1):]
            assert newest == list(range(n - len(newest), n))
            if n > 3 * w:  # token 0 aside, the horizon
                assert n - 1 - a[1] <= w * (2 + int(np.ceil(np.log2(w))))
    assert max(n - 1 - a[1] for n, (a, _) in enumerate(lists(4000, 42)[0], 1) if n > 126) <= 314
    t = fixture()
    for name in ("random", "random_d128", "half"):
        x, back = t[f"hf.{name}.x"].astype(F64), t[f"hf.{name}.b4.back"]
        step = np.repeat(t[f"hf.{name}.b4.step"], 64, axis=-1).reshape(x.shape)
        assert np.all(np.abs(x - back) <= step * 1.02)  # the rounded zero point shifts by up to half a step
    assert np.array_equal(t["hf.constant.b2.back"].astype(np.float16), t["hf.constant.x"].astype(np.float16))
