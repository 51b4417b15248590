#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the parity fixtures of tests/data/models: tiny random checkpoints made with Hugging Face transformers,
their tokenizers, the logits and the greedy continuation that transformers computes in float32 from the stored
weights (expected.safetensors), and reference token ids (tokens.jsonl). Everything follows from fixed seeds.
Needs torch, transformers, tokenizers, safetensors, sentencepiece and tiktoken. See tests/data/models/README.md.
"""
import argparse
import base64
import copy
import io
import json
import math
import shutil
import unicodedata
from collections import namedtuple
from pathlib import Path

import sentencepiece
import tiktoken
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save, save_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

VOCAB = 384  # rows of every embedding; Qwen's tokenizers have fewer tokens, as the published ones do
N_PROMPT, N_GREEDY = 64, 32
MIN_GAP = 0.02  # between the two best logits at every greedy step: far above the noise of float sums

# ---- text ---------------------------------------------------------------------------------------------------
# Lewis Carroll, Alice's Adventures in Wonderland (1865, public domain), then a few lines of our own.
CORPUS = """\
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or twice she had \
peeped into the book her sister was reading, but it had no pictures or conversations in it, "and what is the use of a book," \
thought Alice "without pictures or conversations?"
So she was considering in her own mind (as well as she could, for the hot day made her feel very sleepy and stupid), whether the \
pleasure of making a daisy-chain would be worth the trouble of getting up and picking the daisies, when suddenly a White Rabbit \
with pink eyes ran close by her.
There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear the Rabbit \
say to itself, "Oh dear! Oh dear! I shall be late!" The Cheshire Cat grinned: it's we're all mad here, don't you \
know? I'll tell, I've said, I'd go, I'm sure.
    for (int i = 0; i < 100; i++) {
        printf("%d\\n", i);
    }
        return 0;
2024 123 1865 100 12 3.14 1,000
Voilà, l'été à Zürich: un café crème, naïve façade; größer, schön, Mädchen, fließend, mañana, señor.
Привет, мир! Всё хорошо, что хорошо кончается.
北京大学位于北京市。中国人民的大学。日本語のテキスト。東京の日本人です。
안녕하세요 세계. مرحبا بالعالم. नमस्ते दुनिया.
😀 😀😀 👍 🎉 😀👍
"""

TEXTS = [  # encoded by each tokenizer; spellings of special tokens are plain text here
    "", "a", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r\n\r\n", "\t", "\t\n ", " \n", "\n ", "a ", " a", "  a", "a  b", "a   b",
    "Alice", " Alice", "ALICE", "Hello world", " Hello  world ", "Hello, world!\n", "The Cheshire Cat", " Cheshire", "Cheshire",
    "don't DON'T I'LL we've they'd 'S 's 'tis it''s", "l'\u017f '\u017f I'\u212a", "\u2019s don\u2019t",
    "0", "12", "123", "1234", "1234567890", "3.14159 1,000,000", "a1b22c333d4444", "2024-01-31T23:59:59Z", "\u00bd\u00b2\u216b \u0661\u0662\u0663 \uff11\uff12",
    "x=1;y=2", "    indented\n\tcode()", "for (int i = 0; i < 100; i++) {\n        printf(\"%d\\n\", i);\n}\n",
    "def f(x):\n    return x**2  # square\n\n\nclass A:\n    pass\n", "#include <stdio.h>\r\nint main(void)\r\n{\r\n\treturn 0;\r\n}\r\n",
    "SELECT * FROM t WHERE a<>'b' -- c", "{\"k\": [1, 2.5e-3, null, true]}", "<a href=\"x\">y</a>", "https://example.com/a?b=c&d=%20#e",
    "C:\\path\\to\\file.txt", "snake_case camelCase PascalCase SCREAMING_CASE kebab-case", "camelCaseHTTPServer XMLHttpRequest iOS",
    "a/b//c /d/\n/e\r\n/", "!!!???...", "+-*/=<>()[]{}@#$%^&|~`", "\u201cquoted\u201d \u2014 dash \u2013 en\u2026", "\u00abguillemets\u00bb \u00a1hola! \u00bfqu\u00e9?",
    "caf\u00e9", "cafe\u0301", "na\u00efve Zoe\u0308 a\u030angstro\u0308m", "Vo\u00e0 voila\u0300 e\u0301te\u0301", "\u212b \u2126 \u212a", "e\u0323\u0301 e\u0301\u0323", "\u1e69 s\u0323\u0307 s\u0307\u0323",
    "\ufb01ne \ufb03 \u01c4 \u33a2", "\u1100\u1161\u11a8 \uac01", "\u0301leading mark", "\u0344 \u0958 \u0f73", "q\u0307\u0323 \u00c5 A\u030a", "Z\u0351\u036b\u0343\u036a\u0302a\u0300\u0301\u0302l\u0335\u0336g\u034fo",
    "Z\u00fcrich gr\u00f6\u00dfer Ma\u0308dchen STRASSE \u1e9e", "\u0130stanbul \u0131 I i", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0412\u0441\u0451 \u0435\u0308 \u0419 \u0418\u0306",
    "\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u03ba\u03cc\u03c3\u03bc\u03b5 \u03c2", "\u5317\u4eac\u5927\u5b66\u4f4d\u4e8e\u5317\u4eac\u5e02\u3002", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\uff76\uff9e \u304b\u3099", "\u6f22\u5b57\uf900\u8c48 \U0002f800",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u061f", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0 \u1c92 \u13a0\uab70",
    "\U0001f600", "\U0001f600\U0001f600 \U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7 \u2764\ufe0f 1\ufe0f\u20e3", "\U00020000\U0010ffff\U000e0001", "\ue000\uf8ff \ufdd0 \uffff",
    "\u0000\u0001", "\u0007bell \u001b[31mred\u001b[0m \u007f", "\u0080\u0085\u009f", "a\u000bb\u000cc\u001cd\u001fe", "a\u0085b \u0085 c", "a\u2028b\u2029c \u2028 d", "a\u00a0b\u00a0\u00a0c\u3000d\u2003e\u202ff\u205fg",
    "\u180e", "a\u180eb \u180e c", " \u180e\n", "a   \u180e   b", "a   \u0085   b", "a   \u001c   b", "a   \u200b   b", "a   \u2028   b", "a   \u3000   b\u00a0   ", "\u200b\ufeff\u2060 \u00ad", "\u200fRTL\u202e mark\u202c", "\ufffd", "a\ufffdb\ufffd\ufffd", "\u2581 \u2581\u2581a", "\u0120 \u010a \u0100\u0142",
    "a\r\nb\rc\n\rd", "end \r\n  \r\n", "  \n  \n x", "x \n\n  y", "\n\n\n\n", " " * 17, "a" + " " * 40 + "b", " " * 15 + "\n" + " " * 9 + "x", "\t\t\t\tx\t \ty", "tabs\t\tand  spaces   \n", "\u3000\u3000\n\u3000a",
    "a" * 33, "ab" * 20, "=" * 40, "-" * 7 + "\n" + "_" * 9, "the " * 12, "0" * 25, "\n" * 11, "pneumonoultramicroscopicsilicovolcanoconiosis",
    "<|im_start|>user\nhi<|im_end|>", "<|begin_of_text|>x<|eot_id|>", "<|start_header_id|>user<|end_header_id|>\n\n", "<s>[INST] hi [/INST]</s>", "<unk>", "<0x0A><0xFF>", "<|endoftext|>", "<think>\n\n</think>",
    "[REFERENCE_DOC_0] and [TOOL_CALLS]", "The pass key is 12345. Remember it. 12345 is the pass key.",
    "Oh dear! Oh dear! I shall be late! (when she thought it over afterwards, it occurred to her that she ought to have wondered)",
]

# ---- tokenizers ---------------------------------------------------------------------------------------------
LLAMA3_RE = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
             r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN_RE = LLAMA3_RE.replace("{1,3}", "")
TEKKEN_RE = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
             r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
             r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# The first specials of Llama-3.1 in their order: special i has id N + i, N being the number of ranks.
LLAMA3_SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
                   "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>",
                   "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|reserved_special_token_3|>"]
QWEN2_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
QWEN3_SPECIALS = QWEN2_SPECIALS + ["<tool_response>", "</tool_response>", "<think>", "</think>"]
MISTRAL_CONTROLS = ["[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
WHOLE_PIECES = ["\u0120Cheshire", "123"]  # no merges lead there: only ignore_merges (or tiktoken) finds them

SYSTEM = ("{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set messages = messages[1:] %}"
          "{% else %}{% set system = 'DEFAULT' %}{% endif %}")
LLAMA3_TURNS = ("{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
                "message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
                "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
CHATML_TURNS = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
                "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}")
INST_TURNS = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ 'OPEN' + message['content'] + "
              "'CLOSE' }}{% else %}{{ 'ANSWER' + message['content'] + eos_token }}{% endif %}{% endfor %}")
CHAT = {
    "llama3": "{{ bos_token }}" + LLAMA3_TURNS,
    "llama31": SYSTEM.replace("DEFAULT", "") + "{{ bos_token + '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
               "December 2023\nToday Date: 26 Jul 2024\n\n' + system + '<|eot_id|>' }}" + LLAMA3_TURNS,
    "llama2": SYSTEM.replace("DEFAULT", "") + INST_TURNS.replace("CLOSE", " [/INST]").replace("ANSWER", " ").replace(
        "'OPEN'", "'[INST] ' + ('<<SYS>>\n' + system + '\n<</SYS>>\n\n' if loop.first and system else '')"),
    "mistral": INST_TURNS.replace("OPEN", "[INST] ").replace("CLOSE", "[/INST]").replace("ANSWER", " "),
    "nemo": INST_TURNS.replace("OPEN", "[INST]").replace("CLOSE", "[/INST]").replace("'ANSWER' + ", ""),
    "qwen2": SYSTEM.replace("DEFAULT", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")
             + "{{ '<|im_start|>system\n' + system + '<|im_end|>\n' }}" + CHATML_TURNS + "{% endif %}",
    "qwen3": CHATML_TURNS + "{% if enable_thinking is defined and enable_thinking is false %}"
             "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
}

# files: name -> contents; encode: text -> ids, no BOS; bos: ids that open the prompt; eos: ids that end a text
Tok = namedtuple("Tok", "files encode bos eos note")


def byte_chars():
    """GPT-2's printable stand-ins, in the order in which they number the bytes: [(char, byte)]."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return [(chr(b), b) for b in plain] + [(chr(256 + i), b) for i, b in enumerate(rest)]


def train_merges(regex, n, normalizer=None):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.normalizer = normalizer or normalizers.Sequence([])
    alphabet = [c for c, _ in byte_chars()]
    tok.train_from_iterator([CORPUS], trainers.BpeTrainer(vocab_size=256 + n, initial_alphabet=alphabet, show_progress=False))
    return [tuple(m) for m in json.loads(tok.to_str())["model"]["merges"]]


def all_splits(tokens):
    """Merges as converters from tiktoken write them: every split of a token into two tokens, by rank."""
    rank = {t: i for i, t in enumerate(tokens)}
    merges = []
    for t in tokens:
        pairs = [(t[:i], t[i:]) for i in range(1, len(t)) if t[:i] in rank and t[i:] in rank]
        merges += sorted(pairs, key=lambda p: (rank[p[0]], rank[p[1]]))
    return merges


def added_token(index, text):
    special = not text.startswith(("<tool", "</tool", "<think", "</think"))
    return {"id": index, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": special}


def byte_level(space, trim, regex):
    return {"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": trim, "use_regex": regex}


def template(bos, index):
    def turn(type_id, seq):
        return [{"SpecialToken": {"id": bos, "type_id": type_id}}, {"Sequence": {"id": seq, "type_id": type_id}}]
    return {"type": "TemplateProcessing", "single": turn(0, "A"), "pair": turn(0, "A") + turn(1, "B"),
            "special_tokens": {bos: {"id": bos, "ids": [index], "tokens": [bos]}}}


def bpe_json(vocab, merges, regex, specials, normalizer=None, post=None, decoder=None, ignore_merges=False, trim=True):
    """tokenizer.json with the parts of the published files. specials: [(id, text)]."""
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added_token(i, t) for i, t in specials], "normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level(False, trim, False)]},
            "post_processor": post, "decoder": decoder or byte_level(True, True, True),
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges}}


def plain_encoder(spec):
    """Encodes with a copy that has no added tokens and no post-processor: specials are plain text, no BOS."""
    tok = Tokenizer.from_str(json.dumps({**spec, "added_tokens": [], "post_processor": None}))
    return lambda text: tok.encode(text, add_special_tokens=False).ids


def config_tokens(specials):
    return {str(i): {k: v for k, v in added_token(i, t).items() if k != "id"} for i, t in specials}


def write(path, value):
    """Text, bytes, or a value that becomes JSON: vocabularies on one line, configurations indented."""
    if not isinstance(value, (str, bytes)):
        layout = {"separators": (",", ":")} if path.name in ("tokenizer.json", "vocab.json") else {"indent": 2}
        value = json.dumps(value, ensure_ascii=False, **layout) + "\n"
    path.write_bytes(value if isinstance(value, bytes) else value.encode())


def check_bytes(tok, vocab, nfc=False):
    """The tokens of every test text spell the text again."""
    to_byte = dict(byte_chars())
    spell = {i: bytes(to_byte[c] for c in t) for t, i in vocab.items()}
    for text in TEXTS:
        want = unicodedata.normalize("NFC", text) if nfc else text
        if b"".join(spell[i] for i in tok.encode(text)) != want.encode():
            raise SystemExit(f"ids do not spell {text!r}")
    return tok


def llama3_tok(chat, as_tiktoken):
    merges = train_merges(LLAMA3_RE, VOCAB - 256 - len(LLAMA3_SPECIALS) - len(WHOLE_PIECES))
    tokens = [c for c, _ in byte_chars()] + [a + b for a, b in merges] + WHOLE_PIECES
    n = len(tokens)
    vocab = {t: i for i, t in enumerate(tokens)}
    specials = [(n + i, t) for i, t in enumerate(LLAMA3_SPECIALS)]
    config = {"added_tokens_decoder": config_tokens(specials), "bos_token": "<|begin_of_text|>", "chat_template": CHAT[chat],
              "clean_up_tokenization_spaces": True, "eos_token": "<|eot_id|>", "model_max_length": 131072,
              "model_input_names": ["input_ids", "attention_mask"], "tokenizer_class": "PreTrainedTokenizerFast"}
    files, encode = tiktoken_files(vocab, specials) if as_tiktoken else llama3_files(vocab, specials)
    note = (f"tiktoken ranks 0..{n - 1}; special i of Llama-3.1's list has id {n} + i, i < {len(LLAMA3_SPECIALS)} (published: "
            "256 of them), as added_tokens_decoder says" if as_tiktoken else "tokenizer.json of Llama-3, ignore_merges")
    tok = Tok({**files, "tokenizer_config.json": config}, encode, [n], [n + 1, n + 8, n + 9], note)
    return check_bytes(tok, vocab)


def llama3_files(vocab, specials):
    post = {"type": "Sequence", "processors": [byte_level(True, False, True), template("<|begin_of_text|>", len(vocab))]}
    merges = [f"{a} {b}" for a, b in all_splits(list(vocab))]  # the older spelling: one string a merge
    spec = bpe_json(vocab, merges, LLAMA3_RE, specials, post=post, ignore_merges=True)
    return {"tokenizer.json": spec}, plain_encoder(spec)


def tiktoken_files(vocab, specials):
    to_byte = dict(byte_chars())
    ranks = {bytes(to_byte[c] for c in t): i for t, i in vocab.items()}
    enc = tiktoken.Encoding("tiny", pat_str=LLAMA3_RE, mergeable_ranks=ranks, special_tokens={t: i for i, t in specials})
    lines = "".join(f"{base64.b64encode(b).decode()} {i}\n" for b, i in ranks.items())
    return {"tokenizer.model": lines}, enc.encode_ordinary


def nemo_tok():
    specials = ["<unk>", "<s>", "</s>"] + MISTRAL_CONTROLS
    pieces = [c for c, _ in sorted(byte_chars(), key=lambda p: p[1])]  # tekken numbers bytes by value
    pieces += [a + b for a, b in train_merges(TEKKEN_RE, VOCAB - 256 - len(specials) - 1)] + WHOLE_PIECES[:1]
    vocab = {t: i for i, t in enumerate(specials + pieces)}  # specials are in the model's vocabulary too
    spec = bpe_json(vocab, all_splits(pieces), TEKKEN_RE, list(enumerate(specials)), post=template("<s>", 1),
                    ignore_merges=True)
    config = {"add_bos_token": True, "add_eos_token": False, "added_tokens_decoder": config_tokens(enumerate(specials)),
              "bos_token": "<s>", "chat_template": CHAT["nemo"], "eos_token": "</s>", "unk_token": "<unk>",
              "tokenizer_class": "PreTrainedTokenizerFast"}
    files = {"tokenizer.json": spec, "tokenizer_config.json": config}
    tok = Tok(files, plain_encoder(spec), [1], [2], "tokenizer.json, tekken; specials 0..9, bytes by value from 10")
    return check_bytes(tok, vocab)


def qwen_tok(specials, chat, form):
    """form: "files" (vocab.json and merges.txt only), "strings" or "pairs" (how tokenizer.json spells merges)."""
    merges = train_merges(QWEN_RE, VOCAB - 256 - len(QWEN3_SPECIALS) - 6, normalizers.NFC())  # 6 rows stay unused
    vocab = {t: i for i, t in enumerate([c for c, _ in byte_chars()] + [a + b for a, b in merges])}
    n = len(vocab)
    numbered = [(n + i, t) for i, t in enumerate(specials)]
    level = byte_level(False, False, False)
    spec = bpe_json(vocab, [f"{a} {b}" for a, b in merges] if form == "strings" else merges, QWEN_RE, numbered,
                    {"type": "NFC"}, level, level, trim=False)
    config = {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": config_tokens(numbered), "bos_token": None,
              "chat_template": CHAT[chat], "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
              "model_max_length": 131072, "pad_token": "<|endoftext|>", "split_special_tokens": False,
              "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}
    files = {"tokenizer_config.json": config}
    if form == "files":
        files.update({"vocab.json": vocab, "merges.txt": "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges)})
    else:
        files["tokenizer.json"] = spec
    tok = Tok(files, plain_encoder(spec), [], [n + 2, n], f"Qwen, NFC, {form}; {n + len(specials)} tokens used")
    return check_bytes(tok, vocab, nfc=True)


def spm_tok(chat, controls, user_defined):
    """SentencePiece BPE with the trainer settings of Llama-2 and Mistral."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines() + CORPUS.splitlines()[:3] * 3), model_writer=out, model_type="bpe", vocab_size=VOCAB,
        character_coverage=0.98, split_digits=True, byte_fallback=True, allow_whitespace_only_pieces=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True, num_threads=1,
        control_symbols=controls, user_defined_symbols=user_defined, minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    config = {"add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False, "legacy": False,
              "bos_token": "<s>", "eos_token": "</s>", "pad_token": None, "sp_model_kwargs": {},
              "tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>"}
    if not controls:  # the spelling of the Llama-2 files
        for key in ("bos_token", "eos_token", "unk_token"):
            config[key] = {"__type": "AddedToken", "content": config[key], "lstrip": False, "normalized": True,
                           "rstrip": False, "single_word": False}
    if chat:
        config["chat_template"] = CHAT[chat]
    files = {"tokenizer.model": out.getvalue(), "tokenizer_config.json": config}
    return Tok(files, sp.encode, [1], [2], "SentencePiece BPE, byte fallback, identity, dummy prefix")


TOKENIZERS = {
    "llama3": lambda: llama3_tok("llama31", False), "tiktoken": lambda: llama3_tok("llama3", True), "nemo": nemo_tok,
    "qwen2": lambda: qwen_tok(QWEN2_SPECIALS, "qwen2", "strings"), "qwen2-files": lambda: qwen_tok(QWEN2_SPECIALS, "qwen2", "files"),
    "qwen3": lambda: qwen_tok(QWEN3_SPECIALS, "qwen3", "pairs"),
    "llama2": lambda: spm_tok("llama2", [], []), "llama2-nochat": lambda: spm_tok(None, [], []),
    "mistral": lambda: spm_tok("mistral", MISTRAL_CONTROLS, ["[REFERENCE_DOC_0]"]),
}

# ---- checkpoints --------------------------------------------------------------------------------------------

def rope(theta, kind="default", **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def shape(hidden, inter, heads, kv, layers=2, **more):
    return {"hidden_size": hidden, "intermediate_size": inter, "num_attention_heads": heads, "num_key_value_heads": kv,
            "num_hidden_layers": layers, "max_position_embeddings": 512, **more}


LLAMA31_ROPE = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
DYNAMIC_NOTE = ("dynamic rope: transformers takes the base from max(position)+1 of each forward call once that passes "
                "max_position_embeddings. The prompt is one call, so all its positions use the base for length 64; the "
                "token at position p >= 64 uses the base for length p+1; cached keys keep the rotation they got. "
                "One fresh model for each of logits and greedy_ids.")

# tok: key of TOKENIZERS; shard: largest shard; old: None leaves config.json as transformers 5 writes it, else it is
# put into the published spelling ("key" names the kind of scaling, "drop" and "add" change further keys).
CHECKPOINTS = [
    {"name": "llama31-f32-tied", "family": "Llama", "dtype": "float32", "tok": "llama3",
     "config": shape(64, 48, 4, 2, tie_word_embeddings=True, rms_norm_eps=1e-5, **rope(10000.0, "llama3", **LLAMA31_ROPE)),
     "old": {"key": "rope_type", "drop": ["head_dim"]}},
    {"name": "llama31-bf16-untied-sharded", "family": "Llama", "dtype": "bfloat16", "tok": "tiktoken", "shard": "100KB",
     "config": shape(64, 96, 4, 2, rms_norm_eps=1e-5, **rope(50000.0, "llama3", **LLAMA31_ROPE))},
    {"name": "llama2-linear-f16", "family": "Llama", "dtype": "float16", "tok": "llama2", "inv_freq": True,
     "config": shape(64, 96, 4, 4, rms_norm_eps=1e-5, **rope(10000.0, "linear", factor=4.0)),
     "old": {"key": "type", "drop": ["head_dim", "num_key_value_heads", "rope_theta", "attention_bias", "mlp_bias"]},
     "note": "the file also holds rotary_emb.inv_freq tensors, as old Llama files do; they are ignored"},
    {"name": "llama-dynamic-f32", "family": "Llama", "dtype": "float32", "tok": "llama2-nochat",
     "config": shape(48, 64, 3, 3, tie_word_embeddings=True, max_position_embeddings=48, **rope(10000.0, "dynamic", factor=2.0)),
     "old": {"key": "type", "drop": ["head_dim"]}, "note": DYNAMIC_NOTE},
    {"name": "mistral-swa-bf16", "family": "Mistral", "dtype": "bfloat16", "tok": "mistral",
     "config": shape(64, 96, 4, 2, head_dim=24, sliding_window=16, rms_norm_eps=1e-5, **rope(10000.0)),
     "old": {"key": "rope_type"}, "note": "a query sees itself and the 15 positions before it, in every layer"},
    {"name": "mistral-nemo-like-f32", "family": "Mistral", "dtype": "float32", "tok": "nemo", "shard": "120KB",
     "config": shape(48, 40, 4, 2, head_dim=8, sliding_window=None, rms_norm_eps=1e-5, **rope(1000000.0))},
    {"name": "qwen2-f16", "family": "Qwen2", "dtype": "float16", "tok": "qwen2-files",
     "config": shape(56, 64, 7, 1, 3, use_sliding_window=False, **rope(1000000.0)),
     "old": {"key": "type", "drop": ["rope_scaling"], "add": {"sliding_window": 8, "max_window_layers": 1}},
     "note": "sliding_window is given, but use_sliding_window is false: no window"},
    {"name": "qwen2-yarn-f32", "family": "Qwen2", "dtype": "float32", "tok": "qwen2",
     "config": shape(48, 64, 3, 1, tie_word_embeddings=True, **rope(500.0, "yarn", factor=4.0, original_max_position_embeddings=32)),
     "old": {"key": "type"}, "note": "yarn: cos and sin are scaled by 0.1 ln(4) + 1"},
    {"name": "qwen2-swa-f32", "family": "Qwen2", "dtype": "float32", "tok": "qwen2",
     "config": shape(48, 40, 3, 1, 3, tie_word_embeddings=True, use_sliding_window=True, sliding_window=12, max_window_layers=1,
                     layer_types=["full_attention", "sliding_attention", "full_attention"], **rope(10000.0)),
     "note": "layer_types wins over max_window_layers: only layer 1 has the window"},
    {"name": "qwen3-bf16", "family": "Qwen3", "dtype": "bfloat16", "tok": "qwen3",
     "config": shape(64, 96, 4, 2, head_dim=32, use_sliding_window=True, sliding_window=20, max_window_layers=1, **rope(1000000.0)),
     "old": {"key": "rope_type"}, "note": "no layer_types in config.json: layers i >= max_window_layers have the window"},
    {"name": "qwen3-f32-sharded-tied", "family": "Qwen3", "dtype": "float32", "tok": "qwen3", "shard": "100KB",
     "config": shape(48, 64, 4, 2, head_dim=16, tie_word_embeddings=True, **rope(
         10000.0, "yarn", factor=4.0, original_max_position_embeddings=32, attention_factor=1.25, beta_fast=8.0, beta_slow=0.5)),
     "note": "yarn with attention_factor and both betas given"},
]


def fill(model, config, seed, dtype):
    """Random weights of a scale that keeps logits lively; norm weights around 1, biases not zero."""
    gen = torch.Generator().manual_seed(seed)
    gain = {"q_proj": 1.4, "k_proj": 1.4, "v_proj": 1.2, "o_proj": 1.5, "gate_proj": 1.2, "up_proj": 1.2, "down_proj": 1.5,
            "lm_head": 1.8, "embed_tokens": 1.8 if config.tie_word_embeddings else math.sqrt(config.hidden_size)}
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=gen)
            part = name.split(".")[-2]
            if p.dim() == 1:
                value = 0.3 * noise if name.endswith("bias") else 1 + 0.2 * noise
            else:
                value = noise * gain[part] / math.sqrt(p.shape[1])
            p.copy_(value.to(dtype))


def build(spec, tok, seed):
    """The model in float32, its weights rounded to the file's dtype."""
    config = getattr(transformers, spec["family"] + "Config")(
        vocab_size=VOCAB, bos_token_id=(tok.bos or tok.eos)[-1], eos_token_id=tok.eos if len(tok.eos) == 3 else tok.eos[0],
        pad_token_id=None, attn_implementation="eager", **copy.deepcopy(spec["config"]))
    model = getattr(transformers, spec["family"] + "ForCausalLM")(config)
    model.generation_config.eos_token_id = tok.eos if len(tok.eos) > 1 else tok.eos[0]
    fill(model, config, seed, getattr(torch, spec["dtype"]))
    return model.eval()


def logits_of(model, ids):
    with torch.no_grad():
        return copy.deepcopy(model)(ids, use_cache=False).logits[0]


def greedy(model, ids):
    """Cached greedy continuation and the smallest gap between its two best logits."""
    out = copy.deepcopy(model).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=N_GREEDY, do_sample=False, use_cache=True,
        pad_token_id=0, return_dict_in_generate=True, output_logits=True)
    best = torch.stack(out.logits).squeeze(1).topk(2).values
    return out.sequences[0, ids.shape[1]:], (best[:, 0] - best[:, 1]).min().item()


def search(spec, tok, ids, first_seed):
    """The first seed whose logits are lively and whose greedy path no rounding can turn."""
    for seed in range(first_seed, first_seed + 1000):
        model = build(spec, tok, seed)
        path, gap = greedy(model, ids)
        lively = len(path) == N_GREEDY and len(set(path.tolist())) >= 16
        if lively and gap >= MIN_GAP and 1 <= logits_of(model, ids).std() <= 3:
            return seed, model
    raise SystemExit(f"{spec['name']}: no seed does")


def old_config(config, old):
    """config.json in the spelling of published checkpoints."""
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    kind = scaling.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {old["key"]: kind, **scaling}
    config["torch_dtype"] = config.pop("dtype")
    for key in ["layer_types", "transformers_version", *old.get("drop", [])]:
        config.pop(key, None)
    return dict(sorted({**config, **old.get("add", {})}.items()))


def add_inv_freq(path, model):
    tensors = load_file(path)
    for i in range(model.config.num_hidden_layers):
        tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = model.model.rotary_emb.inv_freq.half() + i  # wrong on purpose
    save_file(tensors, path, metadata={"format": "pt"})


def save_checkpoint(folder, spec, tok, model):
    copy.deepcopy(model).to(getattr(torch, spec["dtype"])).save_pretrained(folder, max_shard_size=spec.get("shard", "1GB"))
    if spec.get("inv_freq"):
        add_inv_freq(folder / "model.safetensors", model)
    config = json.loads((folder / "config.json").read_text())
    lines = "".join(json.dumps({"text": t, "ids": tok.encode(t)}, separators=(",", ":")) + "\n" for t in TEXTS)
    files = {"config.json": old_config(config, spec["old"]) if spec.get("old") else config,
             "generation_config.json": {k: getattr(model.generation_config, k) for k in ("bos_token_id", "eos_token_id")},
             "tokens.jsonl": lines, **tok.files}
    for name, value in files.items():
        write(folder / name, value)


def save_sorted(tensors, path, metadata):
    """The library orders metadata by chance; sorted keys make the file the same each time."""
    raw = save(tensors, metadata=metadata)
    size = int.from_bytes(raw[:8], "little")
    header = json.dumps(json.loads(raw[8:8 + size]), sort_keys=True, separators=(",", ":")).encode().ljust(size)
    path.write_bytes(raw[:8] + header + raw[8 + size:])


def save_expected(folder, spec, tok, ids, seed, source):
    """Reads the folder back, requires the values of the model it came from, and stores them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    logits, (path, gap) = logits_of(model, ids), greedy(model, ids)
    exact = logits_of(copy.deepcopy(model).double(), ids)
    error = ((logits - exact).square().sum() / exact.square().sum()).item()
    same = torch.equal(logits, logits_of(source, ids)) and torch.equal(path, greedy(source, ids)[0])
    uncached = logits_of(model, torch.cat([ids[0], path])[None, :-1])[N_PROMPT - 1:].argmax(-1)
    if not same or error > 1e-11 or ("dynamic" not in spec["name"] and not torch.equal(uncached, path)):
        raise SystemExit(f"{folder.name}: the values change with reloading, in float64 ({error:.1e}) or without the cache")
    versions = {m.__name__: m.__version__ for m in (torch, transformers, tokenizers, sentencepiece, tiktoken)}
    metadata = {**versions, "script": "scripts/make_golden.py", "seed": str(seed), "note": spec.get("note", ""),
                "how": "float32 on CPU, eager attention, weights as stored and widened; greedy_ids with the KV cache",
                "tokenizer": tok.note, "min_greedy_gap": f"{gap:.4f}", "nmse_to_float64": f"{error:.1e}"}
    save_sorted({"input_ids": ids[0].int(), "logits": logits.contiguous(), "greedy_ids": path.int()},
                folder / "expected.safetensors", metadata)
    print(f"{folder.name}: seed {seed}, gap {gap:.3f}, std {logits.std():.2f}, float64 {error:.1e}", flush=True)


def make(out, spec, first_seed):
    shutil.rmtree(folder := out / spec["name"], ignore_errors=True)
    folder.mkdir(parents=True)
    tok = TOKENIZERS[spec["tok"]]()
    ids = torch.tensor([(tok.bos + tok.encode(CORPUS))[:N_PROMPT]])
    seed, model = search(spec, tok, ids, first_seed)
    save_checkpoint(folder, spec, tok, model)
    save_expected(folder, spec, tok, ids, seed, model)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tests/data/models"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for i, spec in enumerate(CHECKPOINTS):
        make(args.out, spec, 1000 * (i + 1))


if __name__ == "__main__":
    main()
