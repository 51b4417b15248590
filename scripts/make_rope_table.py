#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/unit/rope_table.h: rotary frequencies and factors as transformers computes them, in float32,
for configurations of every supported kind and spelling. Needs torch and transformers 5.

    scripts/make_rope_table.py > tests/unit/rope_table.h
"""
import json

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

BASE = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 8,
        "num_attention_heads": 2, "vocab_size": 8, "max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CASES = [  # name, keys, sequence lengths
    ("plain", {}, [1]),
    ("theta at the top", {"rope_theta": 500000}, [1]),
    ("theta in rope_parameters", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, [1]),
    ("linear, old spelling", {"rope_scaling": {"type": "linear", "factor": 8.0}}, [1]),
    ("linear, new spelling", {"rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 5e4}}, [1]),
    ("dynamic", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, [1, 64, 65, 200]),
    ("llama3", {"rope_theta": 500000.0, "max_position_embeddings": 131072, "head_dim": 64,
                "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 8192}}, [1]),
    ("llama3, trained length absent", {"max_position_embeddings": 256, "rope_scaling": LLAMA3}, [1]),
    ("llama3, trained length at the top", {"max_position_embeddings": 4096, "rope_scaling": LLAMA3 |
     {"original_max_position_embeddings": 64}, "original_max_position_embeddings": 512}, [1]),
    ("yarn", {"rope_theta": 1e6, "head_dim": 32, "max_position_embeddings": 8192, "rope_scaling": YARN}, [1, 9000]),
    ("yarn, old spelling, no trained length", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, [1]),
    ("yarn, range not rounded", {"head_dim": 32, "rope_parameters": YARN | {"truncate": False}}, [1]),
    ("yarn, betas", {"head_dim": 32, "rope_parameters": YARN | {"beta_fast": 16, "beta_slow": 2.5}}, [1]),
    ("yarn, betas of 0", {"head_dim": 32, "rope_parameters": YARN | {"beta_fast": 0, "beta_slow": 0}}, [1]),
    ("yarn, attention factor", {"rope_parameters": YARN | {"attention_factor": 0.75}}, [1]),
    ("yarn, mscale pair", {"rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 1.3}}, [1]),
    ("yarn, mscale alone", {"rope_parameters": YARN | {"mscale": 0.707}}, [1]),
    ("yarn, factor null", {"max_position_embeddings": 8192, "rope_parameters": YARN | {"factor": None}}, [1]),
    ("yarn, factor below 1", {"rope_parameters": YARN | {"factor": 0.5}}, [1]),
    ("yarn, empty ramp", {"rope_parameters": YARN | {"original_max_position_embeddings": 4}}, [1]),
]


def compute(keys, seq_len):
    plain = {k: v for k, v in (BASE | json.loads(json.dumps(keys))).items() if k != "architectures"}
    config = transformers.LlamaConfig(**plain)
    kind = config.rope_parameters["rope_type"]
    f = LlamaRotaryEmbedding.compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
    freq, factor = f(config, seq_len=seq_len) if kind != "default" else f(config)
    return [float(x) for x in freq.to(torch.float32)], float(torch.tensor(factor, dtype=torch.float32))


def number(x):
    s = f"{x:.9g}"
    return s + ("f" if "." in s or "e" in s else ".0f")


def main():
    print("/* SPDX-License-Identifier: MIT */")
    print(f"/* Made by scripts/make_rope_table.py with transformers {transformers.__version__}, torch {torch.__version__}. */")
    print("static const struct {\n    const char *name, *json;\n    long long seq_len;\n    float mscale;\n"
          "    int half;\n    float freq[32];\n} rope_cases[] = {")
    for name, keys, lengths in CASES:
        for n in lengths:
            freq, factor = compute(keys, n)
            text = json.dumps(BASE | keys).replace('"', '\\"')
            cut = text.index(', \\"num_attention')
            print(f'    {{"{name}, length {n}",\n     "{text[:cut]}"\n     "{text[cut:]}",')
            print(f"     {n}, {number(factor)}, {len(freq)},\n     {{", end="")
            for i, x in enumerate(freq):
                print(number(x) + ("}},\n" if i + 1 == len(freq) else ",\n      " if i % 6 == 5 else ", "), end="")
    print("};")


main()
