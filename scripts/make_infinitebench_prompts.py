#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes tests/data/infinitebench/prompts.jsonl: InfiniteBench prompts in tokens, by the steps of the official
eval_yarn_mistral.py and of InfLLM's pred.py.

usage: make_infinitebench_prompts.py DATA REPO
  DATA  folder with infinitebench/*.json and tokenizers/{llama3,mistral,qwen}
  REPO  the sources (reads eval/data/infinitebench and tests/data/infinitebench, writes the latter)

Needs transformers 4.57, sentencepiece, protobuf. A line holds what the reference gives for one sample: the number of
tokens and the first 16 digits of the SHA-256 of their ids as little-endian int32; cut to 101 tokens, too. Of infllm the
ids are all of the prompt, the last one of which is fed by itself.
"""

import json, os, re, sys, tempfile

from reference_tokenizers import digest, llama3, mistral, qwen

DATA, REPO = sys.argv[1], sys.argv[2]
HERE = os.path.join(REPO, "tests/data/infinitebench")
OFFICIAL = json.load(open(os.path.join(DATA, "infinitebench/official_prompts.json"), encoding="utf-8"))
TEMPLATES = {
    "official": OFFICIAL["yarn_mistral"],
    "chat": OFFICIAL["gpt4"],
    "infllm": json.load(open(os.path.join(DATA, "infinitebench/infllm_dataset2prompt.json"), encoding="utf-8")),
}


def fields(task, eg):
    """What a template is filled with."""
    out = {"context": eg["context"]}
    if task == "code_run":
        out["func_call"] = re.findall(r"func_[0-9]+\(\-?[0-9]+\)", eg["input"])[0]
        out["func"] = out["func_call"].split("(")[0]
    elif task in ("code_debug", "longbook_choice_eng"):
        out.update(zip(("OPTION_A", "OPTION_B", "OPTION_C", "OPTION_D"), eg["options"], strict=True))
    elif task == "math_find":
        out["prefix"] = "What is %s in the following list?" % re.findall(r"The .+ of", eg["input"])[0].lower()[:-3]
    elif task == "kv_retrieval":
        out["key"] = eg["input"][6:44]
    out["input"] = out["question"] = eg["input"]
    return out


def truncate_by_tokens(text, tok, most):
    ids = tok.encode(text)
    if len(ids) > most:
        text = tok.decode(ids[: most // 2] + ids[-(most // 2) :], skip_special_tokens=True)
    return text


def samples():
    for source, path in (
        ("own", os.path.join(REPO, "eval/data/infinitebench/samples.jsonl")),
        ("odd", os.path.join(HERE, "odd.jsonl")),
    ):
        for i, line in enumerate(open(path, encoding="utf-8")):
            yield source, i, json.loads(line)


def main():
    out = open(os.path.join(HERE, "prompts.jsonl"), "w")
    with tempfile.TemporaryDirectory() as work:
        for make in (llama3, mistral, qwen):
            tok, chat = make(DATA, work)
            for source, i, eg in samples():
                task = eg["dataset"]
                for name, most in (
                    ("official", 131072),
                    ("official", 101),
                    ("chat", 131072),
                    ("chat", 100),
                    ("infllm", 131072),
                ):
                    text = truncate_by_tokens(TEMPLATES[name][task].format(**fields(task, eg)), tok, most)
                    ids = tok(text if name == "official" else chat(text)).input_ids
                    row = {
                        "tokenizer": make.__name__,
                        "source": source,
                        "index": i,
                        "prompts": name,
                        "max_length": most,
                        "n": len(ids),
                        "ids": digest(ids),
                    }
                    out.write(json.dumps(row, separators=(",", ":")) + "\n")


main()
