# SPDX-License-Identifier: MIT
"""The tokenizers of the prompt fixtures, as transformers 4.57 has them (the slow LlamaTokenizer), and a chat of one
user message for each."""

import hashlib, lzma, os, struct, warnings

warnings.filterwarnings("ignore")
from transformers import LlamaTokenizer, PreTrainedTokenizerFast


def unpack(data, work, name, to):
    path = os.path.join(work, to)
    with lzma.open(os.path.join(data, "tokenizers", name + ".xz")) as f, open(path, "wb") as g:
        g.write(f.read())
    return path


def llama3(data, work):
    t = PreTrainedTokenizerFast(
        tokenizer_file=unpack(data, work, "llama3/tokenizer.json", "l.json"), clean_up_tokenization_spaces=True
    )
    head = "<|start_header_id|>%s<|end_header_id|>\n\n"
    return t, lambda p: head % "user" + p.strip() + "<|eot_id|>" + head % "assistant"


def mistral(data, work):
    t = LlamaTokenizer(
        unpack(data, work, "mistral/tokenizer.model.v3", "m.model"), legacy=True, clean_up_tokenization_spaces=False
    )
    t.add_special_tokens({"additional_special_tokens": ["[INST]", "[/INST]"]})
    assert t.convert_tokens_to_ids(["[INST]", "[/INST]"]) == [3, 4]
    # No space behind [INST]: the slow tokenizer puts one in front of what follows a special token.
    return t, lambda p: "[INST]" + p + "[/INST]"


def qwen(data, work):
    t = PreTrainedTokenizerFast(
        tokenizer_file=unpack(data, work, "qwen/tokenizer.json", "q.json"), clean_up_tokenization_spaces=False
    )
    system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    turn = "<|im_start|>%s\n%s<|im_end|>\n"
    return t, lambda p: turn % ("system", system) + turn % ("user", p) + "<|im_start|>assistant\n"


def digest(ids):
    return hashlib.sha256(struct.pack("<%di" % len(ids), *ids)).hexdigest()[:16]
