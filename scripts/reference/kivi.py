# SPDX-License-Identifier: MIT
"""KIVI: keys per channel over token groups, values per token over channel runs (methods.md section 10; new_pack.py)."""
import numpy as np

from .attention import weights
from .common import F32, F64, away, f16, i32, normal, queries_keys, scale_of, splitmix64


def quantize(x, bits, axis=0):
    """One group along axis: codes, and step and minimum rounded to half. Codes from the unrounded range, in float32."""
    exact = x.dtype == np.float16  # then a middle between two codes is met exactly or clearly missed
    x, steps = x.astype(F32), F32(2**bits - 1)
    low, span = x.min(axis=axis, keepdims=True), x.max(axis=axis, keepdims=True) - x.min(axis=axis, keepdims=True)
    at = (x - low) * steps / np.where(span > 0, span, F32(1))  # in this order; a constant group gets 0
    if not exact:
        away(at, np.arange(2**bits) + .5, 2e-6)
    return np.rint(at).astype(np.uint8), f16(span / steps).squeeze(axis), f16(low).squeeze(axis)


def dequantize(codes, step, low, axis=0):
    return codes * np.expand_dims(step, axis) + np.expand_dims(low, axis)


def keys(k, bits, g):
    """k [hkv, n, d], n a multiple of g -> codes [hkv, n, d], step and low [hkv, n / g, d], dequantized [hkv, n, d]."""
    groups = k.reshape(len(k), -1, g, k.shape[2])
    codes, step, low = quantize(groups, bits, 2)
    return codes.reshape(k.shape), step, low, dequantize(codes, step, low, 2).reshape(k.shape)


def values(v, bits, g):
    """v [hkv, n, d] -> codes, step and low [hkv, n, ceil(d / g)], dequantized; the last run may be short."""
    parts = [(*(p := quantize(v[..., a:a + g], bits, 2)), dequantize(*p, 2)) for a in range(0, v.shape[2], g)]
    codes, step, low, back = zip(*parts)
    return (np.concatenate(codes, axis=2), np.stack(step, axis=2), np.stack(low, axis=2), np.concatenate(back, axis=2))


def borders(n, r):
    """After n tokens: keys j < first and values j < second are quantized."""
    return r * (n // r), max(0, n - r)


def replay(n_end, r, prompt):
    """The same by the rule: a prompt, then single steps."""
    kq, vq = prompt - prompt % r, max(0, prompt - r)
    out = {prompt: (kq, vq)}
    for n in range(prompt + 1, n_end + 1):
        kq = n if n - kq == r else kq
        vq = vq + 1 if n - vq > r else vq
        out[n] = (kq, vq)
    return out


def attend(q, k, v, bits, g, r):
    """The step that sees n tokens: the state of n - 1, plus its own rows. -> out [hq, d], lse [hq]."""
    hkv, n, d = k.shape
    kq, vq = borders(n - 1, r)
    kk, vv = k.astype(F64), v.astype(F64)
    kk[:, :kq] = keys(k[:, :kq], bits, g)[3]
    vv[:, :vq] = values(v[:, :vq], bits, g)[3]
    rep = len(q) // hkv
    x = scale_of(d) * np.einsum("hd,hnd->hn", q.astype(F64), np.repeat(kk, rep, axis=0))
    m = x.max(axis=1)
    return (np.einsum("hn,hnd->hd", weights(x), np.repeat(vv, rep, axis=0)),
            m + np.log(np.exp(x - m[:, None]).sum(axis=1)))


def fixture():
    t = {}

    def put(name, k, v, g, all_bits=(2, 4), back=True):
        t[f"{name}.par"], t[f"{name}.k"], t[f"{name}.v"] = i32(g), k, v
        for bits in all_bits:
            for x, (codes, step, low, whole) in (("k", keys(k, bits, g)), ("v", values(v, bits, g))):
                pre = f"{name}.b{bits}.{x}"
                t[f"{pre}.codes"] = codes
                t[f"{pre}.step"], t[f"{pre}.min"] = step.astype(np.float16), low.astype(np.float16)
                if back:
                    t[f"{pre}.back"] = whole

    def half(seed, *shape):
        return normal(seed, *shape).astype(np.float16)

    put("random", half(701, 1, 64, 16), half(702, 1, 16, 32), 32, back=False)
    put("d80", half(703, 1, 32, 6), half(704, 2, 3, 80), 32)
    put("d24_g16", half(705, 1, 16, 24), half(706, 1, 5, 24), 16, (4,))
    put("f32", normal(707, 1, 16, 16), normal(708, 1, 16, 16), 8, (4,))
    for seed, kind in enumerate(("constant", "dominant", "large", "shared_mean"), 711):
        k = queries_keys(kind, seed, 2, 1, 16, 16, F32)[1]
        v = queries_keys(kind, seed + 100, 2, 1, 16, 16, F32)[1].swapaxes(1, 2)  # so its groups are the odd ones
        put(kind, k, np.ascontiguousarray(v), 8, (2,))
    # Values in the middle between two codes round to the even one (1.5 -> 2, 2.5 -> 2 of 3; 7.5 -> 8 of 15).
    grid = (splitmix64(721, 16 * 16) % np.uint64(31)).astype(F32).reshape(1, 16, 16) / 2
    grid[:, ::8], grid[:, 1::8] = 0, 15
    grid[:, :, 0], grid[:, :, 8], grid[:, :, 1], grid[:, :, 9] = 0, 0, 15, 15
    put("halves", grid.astype(np.float16), grid.astype(np.float16), 8, (2, 4))
    t["borders"] = np.array([(n, r, *borders(n, r)) for r in (8, 32) for n in range(0, 3 * r + 2)])
    q, k, v = normal(731, 2, 16), half(732, 1, 39, 16), half(733, 1, 39, 16)
    t |= {"attend.q": q, "attend.k": k, "attend.v": v, "attend.par": i32(8, 16)}
    for bits in (2, 4):
        t[f"attend.b{bits}.out"], t[f"attend.b{bits}.lse"] = attend(q, k, v, bits, 8, 16)
    return t


def check():
    t = fixture()
    for name in ("d80", "dominant", "large", "shared_mean", "halves"):
        g = t[f"{name}.par"][0]
        for x in "kv":
            n, d = t[f"{name}.{x}"].shape[1:]
            err = np.abs(t[f"{name}.{x}"].astype(F64) - t[f"{name}.b2.{x}.back"])
            step, low = t[f"{name}.b2.{x}.step"].astype(F64), t[f"{name}.b2.{x}.min"].astype(F64)
            wide = [np.repeat(y, g, axis=1 if x == "k" else 2)[:, :n, :d] for y in (step, low)]
            assert np.all(err <= wide[0] / 2 + 2.0**-11 * (np.abs(wide[1]) + 3 * wide[0]) + 1e-6)
    assert np.all(t["constant.b2.k.codes"] == 0) and np.allclose(t["constant.b2.k.back"], t["constant.k"], rtol=1e-3)
    assert set(t["halves.b4.k.codes"][(t["halves.k"] == 7.5)]) == {8}
    exact = (2 * normal(740, 1, 1, 16).astype(np.float16).astype(F32) + F32(.5) *
             (splitmix64(741, 128) % np.uint64(4)).astype(F32).reshape(1, 8, 16)).astype(np.float16)
    exact[:, 0], exact[:, 1] = exact.min(axis=1), exact.min(axis=1) + 1.5  # four equally spaced half numbers
    assert np.abs(keys(exact, 2, 8)[3] - exact.astype(F64)).max() < 4e-3
    for r, prompt in ((8, 0), (8, 5), (8, 8), (8, 19), (32, 33)):
        assert all(borders(n, r) == b for n, b in replay(70, r, prompt).items())
