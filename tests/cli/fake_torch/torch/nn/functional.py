# SPDX-License-Identifier: MIT
from torch import Tensor, bool as bool_type, long


def fit(good, *shapes):
    if not good:
        raise ValueError(f"shapes {shapes} do not fit")


def linear(x, w):
    fit(x.shape[-1] == w.shape[1], x.shape, w.shape)
    return Tensor((*x.shape[:-1], w.shape[0]), x.dtype)


def embedding(ids, table):
    assert ids.dtype == long
    return Tensor((*ids.shape, table.shape[1]), table.dtype)


def silu(x):
    return Tensor(x.shape, x.dtype)


def scaled_dot_product_attention(q, k, v, attn_mask, is_causal, enable_gqa):
    (batch, heads, m, dim), (_, kv, n, _) = q.shape, k.shape
    fit(k.shape == v.shape == (batch, kv, n, dim) and enable_gqa and heads % kv == 0, q.shape, k.shape, v.shape)
    # PyTorch's causal mask is aligned at the first key, so it suits prompts without earlier tokens alone.
    fit(not is_causal or (m == n and attn_mask is None), q.shape, k.shape)
    fit(m == 1 or is_causal or attn_mask is not None, q.shape)
    fit(attn_mask is None or (attn_mask.shape == (m, n) and attn_mask.dtype == bool_type), q.shape, k.shape)
    return Tensor(q.shape, q.dtype)
