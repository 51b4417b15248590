#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes tests/data/longbench2/prompts.jsonl: LongBench v2 prompts in tokens, by the steps of the official pred.py.

usage: make_longbench2_fixtures.py DATA REPO
  DATA  folder with longbench_v2/*.txt and tokenizers/{llama3,mistral,qwen}
  REPO  the sources (reads tests/data/longbench2 and eval/data/longbench2, writes tests/data/longbench2)

Needs transformers 4.57 (the slow LlamaTokenizer), sentencepiece, protobuf. A line holds what the reference gives for one
sample: the number of tokens and the first 16 digits of the SHA-256 of their ids as little-endian int32, for each prompt, at the
official maximum length and cut to 101 and 64 tokens; raw and as the user message of a chat.
"""
import json, os, sys, tempfile

from reference_tokenizers import digest, llama3, mistral, qwen

DATA, REPO = sys.argv[1], sys.argv[2]
HERE = os.path.join(REPO, "tests/data/longbench2")
PROMPTS = ["0shot", "0shot_no_context", "0shot_cot", "0shot_cot_ans"]
REASONING = "\n I looked at the window, and at $C_A$ .\u3000"


def fill(template, item):
    """pred.py: get_pred."""
    return (template.replace("$DOC$", item["context"].strip()).replace("$Q$", item["question"].strip())
            .replace("$C_A$", item["choice_A"].strip()).replace("$C_B$", item["choice_B"].strip())
            .replace("$C_C$", item["choice_C"].strip()).replace("$C_D$", item["choice_D"].strip())
            .replace("$COT$", REASONING.strip()))


def cut(tok, prompt, max_len):
    """pred.py: query_llm."""
    input_ids = tok.encode(prompt)
    if len(input_ids) > max_len:
        input_ids = input_ids[:max_len // 2] + input_ids[-max_len // 2:]
        prompt = tok.decode(input_ids, skip_special_tokens=True)
    return prompt


def samples():
    for source, path in (("format", os.path.join(HERE, "format_samples.jsonl")), ("odd", os.path.join(HERE, "odd.jsonl")),
                         ("own", os.path.join(REPO, "eval/data/longbench2/samples.jsonl"))):
        for i, line in enumerate(open(path, encoding="utf-8")):
            yield source, i, json.loads(line)


def main():
    out = open(os.path.join(HERE, "prompts.jsonl"), "w")
    with tempfile.TemporaryDirectory() as work:
        for make in (llama3, mistral, qwen):
            tok, chat = make(DATA, work)
            for source, i, item in samples():
                for name in PROMPTS:
                    template = open(os.path.join(DATA, "longbench_v2", name + ".txt"), encoding="utf-8").read()
                    for most in (120000, 101, 64):
                        text = cut(tok, fill(template, item), most)
                        for wrap in ("raw", "template"):
                            ids = tok(chat(text) if wrap == "template" else text).input_ids
                            row = {"tokenizer": make.__name__, "source": source, "index": i, "prompt": name,
                                   "max_length": most, "wrap": wrap, "n": len(ids), "ids": digest(ids)}
                            out.write(json.dumps(row, separators=(",", ":")) + "\n")


main()
