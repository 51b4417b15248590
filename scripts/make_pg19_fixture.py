#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes tests/data/pg19/expected.json: perplexities that Hugging Face transformers gives the test checkpoints in
float32, by Quest's loop (token by token) and by YaRN's windows.

usage: make_pg19_fixture.py REPO

Reads tests/data/models and the beginning of eval/data/pg19/10146.txt. Needs torch, transformers, sentencepiece.
"""
import json, math, os, sys

import sentencepiece
import torch
import transformers

REPO = sys.argv[1]
BYTES = 800
# name, whether decoding token by token is compared (not where frequencies follow the length of the sequence)
MODELS = [("llama31-f32-tied", True), ("mistral-swa-bf16", True), ("qwen2-yarn-f32", True), ("qwen3-bf16", True),
          ("llama-dynamic-f32", False)]
WINDOWS = [(96, 32), (64, 17), (200, 199), (40, 1)]  # max_length, stride
TRUNCATE = [100, 33]


def quest_loop(model, ids, n):
    """Quest, evaluation/pg19/run.py: one token at a time, the KV cache kept; nll of each next token."""
    past, nlls = None, []
    for t in range(n):
        out = model(torch.tensor([ids[t:t + 1]]), past_key_values=past, use_cache=True)
        past = out.past_key_values
        nlls.append(-torch.log_softmax(out.logits[0, -1].double(), -1)[ids[t + 1]].item())
    return nlls


def forget_length(model):
    """transformers keeps dynamic frequencies of the longest sequence so far: here each window has its own."""
    rotary = model.model.rotary_emb
    if rotary.rope_type == "dynamic":
        rotary.max_seq_len_cached = rotary.original_max_seq_len
        rotary.register_buffer("inv_freq", rotary.original_inv_freq.clone(), persistent=False)


def yarn(model, bos, encoded_texts, max_length, sliding_window, truncate):
    """YaRN, eval/perplexity.py, compute_perplexity. The loss is the model's own from labels, but in double."""
    max_tokenized_len = max_length - 1 if bos is not None else max_length
    if truncate:
        encoded_texts = [x[:max_tokenized_len] for x in encoded_texts]
        sliding_window = max_tokenized_len
    nlls, n_tokens = [], 0
    for text in encoded_texts:
        labels = torch.tensor([text])
        seq_len = labels.size(1)
        prev_end_loc = 0
        for begin_loc in range(0, seq_len, sliding_window):
            end_loc = min(begin_loc + max_tokenized_len, seq_len)
            trg_len = end_loc - prev_end_loc
            input_ids = labels[:, begin_loc:end_loc]
            if bos is not None:
                input_ids = torch.cat([torch.tensor([[bos]]), input_ids], dim=1)
            target_ids = input_ids.clone()
            target_ids[:, :-trg_len] = -100
            forget_length(model)
            out = model(input_ids, labels=target_ids)
            exact = torch.nn.functional.cross_entropy(out.logits[0, :-1].double(), target_ids[0, 1:],
                                                      ignore_index=-100).item()
            assert abs(exact - out.loss.item()) < 1e-5
            nlls.append(exact)
            n_tokens += (target_ids[0, 1:] != -100).sum().item()
            prev_end_loc = end_loc
            if end_loc == seq_len:
                break
    return {"ppl": math.exp(sum(nlls) / len(nlls)), "windows": len(nlls), "tokens": n_tokens}


def tokenize(folder, text):
    """Ids with and without special tokens, and BOS (None: the tokenizer has none)."""
    if os.path.exists(os.path.join(folder, "tokenizer.model")):
        sp = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "tokenizer.model"))
        return [sp.bos_id()] + sp.encode(text), sp.encode(text), sp.bos_id()
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    return tok(text).input_ids, tok(text, add_special_tokens=False).input_ids, tok.bos_token_id


def one(name, decode, text):
    folder = os.path.join(REPO, "tests/data/models", name)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    ids, plain, bos = tokenize(folder, text)
    out = {"bos": bos, "plain": plain}
    if decode:
        n = min(len(ids) - 1, 400)
        out["nll"] = quest_loop(model, ids, n)
        logits = model(torch.tensor([ids[:n]])).logits[0].double()
        whole = -torch.log_softmax(logits, -1)[torch.arange(n), torch.tensor(ids[1:n + 1])]
        assert abs(math.exp(whole.mean().item()) / math.exp(sum(out["nll"]) / n) - 1) < 1e-6
    out["window"] = [dict(max_length=m, stride=s, **yarn(model, bos, [plain], m, s, False)) for m, s in WINDOWS]
    out["two_texts"] = dict(max_length=96, stride=32, **yarn(model, bos, [plain, plain[:70]], 96, 32, False))
    out["truncate"] = [dict(max_length=m, **yarn(model, bos, [plain], m, 0, True)) for m in TRUNCATE]
    return out


def main():
    torch.manual_seed(0)
    with open(os.path.join(REPO, "eval/data/pg19/10146.txt"), encoding="utf-8") as f:
        text = f.read()[:BYTES]
    with torch.no_grad():
        result = {"text_bytes": BYTES, "models": {name: one(name, decode, text) for name, decode in MODELS}}
    path = os.path.join(REPO, "tests/data/pg19/expected.json")
    with open(path, "w") as f:
        text = json.dumps(result, separators=(",", ":"))
        f.write(text.replace('"models":', '\n"models":').replace('},"', '},\n"') + "\n")
    for name, m in result["models"].items():
        print(name, len(m["plain"]), "tokens", m["window"][0])


main()
