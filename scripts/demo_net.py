# SPDX-License-Identifier: MIT
"""The built-in model in PyTorch, its starting point and its optimizer (see train_demo.py)."""
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from demo_tasks import SHAPE


# ---------------------------------------------------------------- model (parameter names as in Hugging Face)

class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.kv, self.d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = nn.Linear(c["hidden_size"], self.h * self.d, bias=False)
        self.k_proj = nn.Linear(c["hidden_size"], self.kv * self.d, bias=False)
        self.v_proj = nn.Linear(c["hidden_size"], self.kv * self.d, bias=False)
        self.o_proj = nn.Linear(self.h * self.d, c["hidden_size"], bias=False)

    def forward(self, x, cos, sin, mask, cache, pick):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.h, self.d).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv, self.d).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv, self.d).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            if "k" in cache:
                k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
                mask = torch.ones(t, k.shape[2], dtype=torch.bool).tril(k.shape[2] - t)
            cache["k"], cache["v"] = k, v
        k, v = k.repeat_interleave(self.h // self.kv, 1), v.repeat_interleave(self.h // self.kv, 1)
        if pick is not None:
            mask = pick(q, k)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(o.transpose(1, 2).reshape(b, t, -1))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x, *attn):
        x = x + self.self_attn(self.input_layernorm(x), *attn)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, c=SHAPE):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        half = torch.arange(0, c["head_dim"], 2, dtype=torch.float64) / c["head_dim"]
        angle = torch.arange(2 * c["max_position_embeddings"])[:, None] / c["rope_theta"] ** half
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=.02 / math.sqrt(2 * len(self.layers)) if deep else .02)

    def forward(self, ids, pos=None, local=None, cache=None, picks=None):
        """pos: positions [B, T]; local: (layers, window) whose attention is limited; picks: a mask maker a layer."""
        if pos is None:
            start = cache[0]["k"].shape[2] if cache and "k" in cache[0] else 0
            pos = torch.arange(start, start + ids.shape[1])[None]
        cos, sin = self.cos[pos][:, None], self.sin[pos][:, None]
        near = local_mask(ids.shape[1], local[1]) if local else None
        x = self.embed_tokens(ids)
        for i, layer in enumerate(self.layers):
            mask = near if local and i in local[0] else None
            x = layer(x, cos, sin, mask, cache[i] if cache else None, picks[i] if picks else None)
        return F.linear(self.norm(x), self.embed_tokens.weight)


@torch.no_grad()
def seed_copying(model, prev=1, find=3):
    """Start with a rough copying circuit, which would take many more tokens to appear by itself.

    One head of layer `prev` looks at the token before: its queries and keys see only a constant (dimension 0 of the
    embedding), turned by the rotary angles of one position. It writes 64 directions of that token's embedding to
    dimensions 192-255. One head of layer `find` matches them with the current token, in rotary pairs slow enough
    to work at any distance, and copies the token found.
    """
    e = model.embed_tokens.weight
    e[:, 0] = .32
    e[:, 192:] *= .1
    name, what = (torch.linalg.qr(torch.randn(191, 64))[0].T for _ in range(2))
    turn = SHAPE["rope_theta"] ** (-torch.arange(6) / 32)
    a, b = model.layers[prev].self_attn, model.layers[find].self_attn
    for layer in (a, b):
        layer.o_proj.weight[:, :64] = 0
        for proj in (layer.q_proj, layer.k_proj, layer.v_proj):
            proj.weight[:64] = 0
    a.q_proj.weight[:6, 0] = 1
    a.k_proj.weight[:6, 0] = torch.cos(turn)
    a.k_proj.weight[32:38, 0] = torch.sin(turn)
    a.v_proj.weight[:64, 1:192] = name
    a.o_proj.weight[192:, :64] = .09 * torch.eye(64)
    slow = (torch.arange(64) % 32 >= 15).float()[:, None]
    b.q_proj.weight[:64, 1:192] = 3.5 * slow * name
    b.k_proj.weight[:64, 192:] = 3.5 * slow * torch.eye(64)
    b.v_proj.weight[:64, 1:192] = what
    b.o_proj.weight[1:192, :64] = .5 * what.T


def local_mask(t, window):
    """The first four positions and the last `window` ones."""
    i = torch.arange(t)
    return (i[None] <= i[:, None]) & ((i[None] < 4) | (i[None] > i[:, None] - window))


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by Newton-Schulz (Jordan et al. 2024), in float32 and batched by shape."""

    def __init__(self, params, lr, momentum=.95, weight_decay=.05):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        shapes = {}
        for g in self.param_groups:
            for p in g["params"]:
                buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - g["momentum"])
                shapes.setdefault(p.shape, []).append((p, p.grad.lerp(buf, g["momentum"]), g))
        rank, world = dist.get_rank(), dist.get_world_size()
        for shape, items in shapes.items():
            x = torch.stack([u for _, u, _ in items[rank::world]])
            tall = shape[0] > shape[1]
            x = x.mT if tall else x
            x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
            for _ in range(5):
                a = x @ x.mT
                x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
            whole = torch.zeros(len(items), *shape)
            whole[rank::world] = x.mT if tall else x
            dist.all_reduce(whole)
            for (p, _, g), u in zip(items, whole):
                p.mul_(1 - g["lr"] * g["weight_decay"]).add_(u, alpha=-g["lr"] * max(1, shape[0] / shape[1]) ** .5)
