#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes tests/data/longbench/prompts.jsonl: LongBench prompts in tokens, by the steps of the official pred.py.

usage: make_longbench_fixtures.py DATA REPO
  DATA  folder with longbench/*.jsonl.xz and tokenizers/{llama3,mistral,qwen}
  REPO  the sources (reads eval/data/longbench, writes tests/data/longbench)

Needs transformers 4.57 (the slow LlamaTokenizer), sentencepiece, protobuf, jinja2. A line holds what the reference gives for
one sample: the number of tokens and the first 16 digits of the SHA-256 of their ids as little-endian int32.
Variants: raw and chat at the published maximum length; cut, chat at 1001 tokens (an odd number); decode, raw
with Quest's question part, whose ids come behind those of the head.
"""
import json, lzma, os, sys, tempfile

from reference_tokenizers import digest, llama3, mistral, qwen

DATA, REPO = sys.argv[1], sys.argv[2]
OWN = os.path.join(REPO, "eval/data/longbench")
PROMPTS = json.load(open(os.path.join(DATA, "longbench/config/dataset2prompt.json")))
MANY = 5
LONGEST = {llama3: 7500, mistral: 31500, qwen: 31500}
# pred.py: "chat models are better off without build prompts on these tasks"
NO_CHAT = ["trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"]


def text_of(tok, dataset, sample, max_length, build_chat):
    """pred.py: fill the template, cut the middle, wrap."""
    prompt = PROMPTS[dataset].format(**sample)
    ids = tok(prompt, truncation=False).input_ids
    if len(ids) > max_length:
        half = int(max_length / 2)
        prompt = tok.decode(ids[:half], skip_special_tokens=True) + tok.decode(ids[-half:], skip_special_tokens=True)
    return build_chat(prompt) if build_chat and dataset not in NO_CHAT else prompt


def quest(tok, dataset, prompt):
    """Quest's pred.py: question part is decoding."""
    q_pos = -1
    if dataset in ["qasper", "hotpotqa"]:
        q_pos = prompt.rfind("Question:")
    elif dataset in ["multifieldqa_en", "gov_report"]:
        q_pos = prompt.rfind("Now,")
    elif dataset in ["triviaqa"]:
        q_pos = prompt.rfind("Answer the question")
    elif dataset in ["narrativeqa"]:
        q_pos = prompt.rfind("Do not provide")
    q_pos = max(len(prompt) - 100, q_pos)
    tail = tok(prompt[q_pos:], truncation=False).input_ids
    has_bos = bool(tok("").input_ids)
    return tok(prompt[:q_pos], truncation=False).input_ids + tail[has_bos:]


def samples():
    """Up to five real samples of a dataset, and the first of our own."""
    own = [json.loads(s) for s in open(os.path.join(OWN, "samples.jsonl"), encoding="utf-8")]
    for dataset in PROMPTS:
        path = os.path.join(DATA, "longbench", dataset + ".jsonl.xz")
        real = []
        if os.path.exists(path):
            with lzma.open(path, "rt", encoding="utf-8") as f:
                real = [json.loads(s) for s in f][:MANY]
        for source, rows in (("data", real), ("own", [r for r in own if r["dataset"] == dataset][:1])):
            for i, sample in enumerate(rows):
                yield source, dataset, i, sample


def main():
    os.makedirs(os.path.join(REPO, "tests/data/longbench"), exist_ok=True)
    out = open(os.path.join(REPO, "tests/data/longbench/prompts.jsonl"), "w")
    with tempfile.TemporaryDirectory() as work:
        for make in (llama3, mistral, qwen):
            tok, chat = make(DATA, work)
            longest = LONGEST[make]
            for source, dataset, i, sample in samples():
                for variant, most, wrap in (("raw", longest, None), ("chat", longest, chat), ("cut", 1001, chat),
                                            ("decode", longest, None)):
                    text = text_of(tok, dataset, sample, most, wrap)
                    ids = quest(tok, dataset, text) if variant == "decode" else tok(text, truncation=False).input_ids
                    row = {"tokenizer": make.__name__, "source": source, "dataset": dataset, "index": i,
                           "variant": variant, "max_length": most, "n": len(ids), "ids": digest(ids)}
                    out.write(json.dumps(row, separators=(",", ":")) + "\n")


main()
