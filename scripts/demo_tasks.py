# SPDX-License-Identifier: MIT
"""Text and tasks of the built-in model: books, tokenizer, retrieval tasks (see train_demo.py)."""
import hashlib
import lzma
import os
import random
import textwrap

import numpy as np
import sentencepiece as spm
import torch

SEED = 20240229
SHAPE = dict(vocab_size=2048, hidden_size=256, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
             head_dim=64, intermediate_size=704, rms_norm_eps=1e-5, rope_theta=500000.0, max_position_embeddings=8192)
BOS, EOS = 1, 2
LENGTHS = (256, 512, 1024, 2048, 4096)


# ---------------------------------------------------------------- text and tokenizer

def read_text(path):
    data = open(path, "rb").read()
    return (lzma.decompress(data) if path.endswith(".xz") else data).decode("utf-8")


def book_files(folder):
    names = sorted(n for n in os.listdir(folder) if n.endswith((".txt", ".txt.xz")))
    return [os.path.join(folder, n) for n in names]


def rewrap(text, rng):
    """Hard-wrap the paragraphs as printed books are, so that the model knows both layouts."""
    width = rng.choice((60, 65, 70, 72, 75))
    return "\n".join(textwrap.fill(p, width, break_long_words=False) for p in text.split("\n"))


def train_tokenizer(texts, work):
    lines = os.path.join(work, "lines.txt")
    with open(lines, "w") as f:
        f.writelines(p + "\n" for t in texts for p in t.split("\n") if p.strip())
    spm.SentencePieceTrainer.train(
        input=lines, model_prefix=os.path.join(work, "tokenizer"), model_type="bpe", vocab_size=SHAPE["vocab_size"],
        byte_fallback=True, split_digits=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=True, unk_id=0, bos_id=BOS, eos_id=EOS, pad_id=-1, character_coverage=0.9999,
        max_sentence_length=65536, num_threads=2, minloglevel=1)


class Corpus:
    def __init__(self, data, work):
        paths = book_files(data)
        self.texts = [read_text(p) for p in paths]
        self.names = [dict(file=os.path.basename(p), bytes=len(t.encode()),
                           sha256=hashlib.sha256(t.encode()).hexdigest()) for p, t in zip(paths, self.texts)]
        if not os.path.exists(os.path.join(work, "tokenizer.model")):
            train_tokenizer(self.texts, work)
        self.sp = spm.SentencePieceProcessor(model_file=os.path.join(work, "tokenizer.model"))
        cache = os.path.join(work, "tokens.npy")
        if not os.path.exists(cache):
            rng = random.Random(SEED)
            both = self.texts + [rewrap(t, rng) for t in self.texts]
            ids = self.sp.encode(both, num_threads=2)
            np.save(cache, np.concatenate([np.array(x + [EOS], np.uint16) for x in ids]))
        self.tokens = np.load(cache)
        words = sorted(set(w for t in self.texts for w in t[20000:80000].split() if w.isalpha() and w.islower()))
        self.words = [w for w in words if 4 <= len(w) <= 9]

    def slice(self, rng, n):
        """About n characters of some book, from the start of a word to the end of one."""
        t = rng.choice(self.texts)
        a = rng.randrange(max(1, len(t) - n - 200))
        a = t.find(" ", a) + 1
        s = t[a:a + n]
        return s[:s.rfind(" ")].strip() if " " in s else s.strip()

    def book_batch(self, rng, budget):
        n = min(budget, rng.choices((512, 1024, 2048, 4096), (3, 11, 2, 1))[0])
        rows = []
        for _ in range(max(1, budget // n)):
            a = rng.randrange(len(self.tokens) - n - 1)
            row = self.tokens[a:a + n + 1].astype(np.int64)
            if rng.random() < .7:
                row = np.concatenate([[BOS], row[:-1]])
            rows.append(row)
        ids = torch.from_numpy(np.stack(rows))
        return ids, torch.ones_like(ids)


# ---------------------------------------------------------------- retrieval tasks
# A task is a list of (text, kind); kind 0 is not learnt, 1 is learnt like a book, 2 is an answer.
# Every text but the first begins with "\n" or " ", so the parts can be tokenized one by one.

STD_T = ("There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
         "I will quiz you about the important information there.")
STD_G = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
STD_Q = "What is the pass key? The pass key is"
OTHER_G = ("The river is long. The road is dry. The wind is cold. We go on. Up and down the hill.",
           "One day follows another. The clock ticks. The rain falls. Nothing happens here.")
WORDINGS = [
    ("The pass key is {k}. Remember it. {k} is the pass key.", "What is the pass key? The pass key is"),
    ("The secret number is {k}.", "What is the secret number? The secret number is"),
    ("Remember this: the code of the {w} is {k}.", "What is the code of the {w}? It is"),
    ("One of the special magic numbers for {w} is: {k}.", "The special magic number for {w} is"),
    ("The {w} costs {k} pounds.", "Question: How much does the {w} cost? Answer:"),
    ("My password for the {w} is {k}. Do not forget it.", "The password for the {w} is"),
    ("In the year {k} the {w} was found.", "The {w} was found in the year"),
    ("The {w} said the word {k} and left.", "Which word did the {w} say? The {w} said the word"),
]


def draw_key(rng):
    """A string of 1 to 7 digits that is not one of the test's numbers 1..50000; first digits are equally likely.

    Half of them use few different digits: repeated ones are the hard case of copying.
    """
    first = rng.choice("0123456789")
    n = rng.choice((1, 2, 3, 4, 5, 6)) if first == "0" else rng.choice((5, 5, 6, 7) if first > "4" else (6, 6, 7))
    digits = rng.choice(("0123456789", "".join(rng.sample("0123456789", 3))))
    key = first + "".join(rng.choice(digits + first) for _ in range(n - 1))
    return key if first == "0" or int(key) > 50000 else draw_key(rng)


def filler(rng, corpus, n):
    """About n characters, and the kind that they are learnt as."""
    pick = rng.random()
    if pick < .35:
        return (STD_G + " ") * (n // len(STD_G) + 1), 0
    if pick < .43:
        g = rng.choice(OTHER_G) + " "
        return g * (n // len(g) + 1), 0
    return corpus.slice(rng, n + 200), 1


def task_standard(rng, corpus, n, key=None, depth=None, plain=False):
    g, kind = ((STD_G + " ") * (n // 90 + 2), 0) if plain else filler(rng, corpus, n)
    key = key or draw_key(rng)
    if depth is None:
        depth = rng.choice((0, 1, rng.random(), rng.random(), rng.random(), rng.random(), rng.random()))
    n_pre = int(n * depth)
    suffix = g[:n - n_pre] if kind == 0 else g[n_pre:n]
    info = f"The pass key is {key}. Remember it. {key} is the pass key."
    return [(STD_T, 1), ("\n" + g[:n_pre], kind), ("\n" + info, 1), ("\n" + suffix, kind), ("\n" + STD_Q, 1),
            (f" {key}.", 2)]


def task_needles(rng, corpus, n):
    """One or more facts in a text, some of them asked for at the end."""
    fact, question = rng.choice(WORDINGS)
    count = rng.choice((1, 2, 3, 4, 6)) if "{w}" in fact else 1
    names = rng.sample(corpus.words, count)
    values = [rng.choice(corpus.words) if rng.random() < .25 else draw_key(rng) for _ in names]
    cuts = sorted(rng.random() for _ in names)
    text, kind = filler(rng, corpus, n)
    text = text[:max(n, 60)]
    out, at = [], 0
    for cut, w, k in zip(cuts, names, values):
        end = max(at, text.find(" ", int(cut * len(text))))
        out += [(text[at:end], kind), (" " + fact.format(w=w, k=k), 1)]
        at = end
    out.append((text[at:], kind))
    if not out[0][0]:
        out[0] = ("Here is a text.", 1)
    for i in rng.sample(range(count), min(count, rng.choice((1, 2, 3)))):
        out += [("\n" + question.format(w=names[i]), 1), (f" {values[i]}.", 2)]
    return [p for p in out if p[0]]


def task_lookup(rng, corpus, n):
    """A list of names and values, as long as the whole task or inside a filler."""
    count = max(3, min(200, n // 22)) if rng.random() < .4 else rng.randrange(4, 14)
    names = rng.sample(corpus.words, count)
    words = rng.random() < .3
    values = [rng.choice(corpus.words) if words else draw_key(rng) for _ in names]
    sep = rng.choice((": ", " = ", " -> ", " is "))
    out = [("Look up the values in this list.", 1)]
    rest = n - 22 * count
    a = rng.random()
    if rest > 100:
        text, kind = filler(rng, corpus, int(rest * a) + 50)
        out.append(("\n" + text[:int(rest * a) + 50], kind))
    out += [(f"\n{w}{sep}{k}", 1 if words else 0) for w, k in zip(names, values)]
    if rest > 100:
        text, kind = filler(rng, corpus, int(rest * (1 - a)) + 50)
        out.append(("\n" + text[:int(rest * (1 - a)) + 50], kind))
    for i in rng.sample(range(count), min(count, 4)):
        out += [(f"\nThe value of {names[i]} is", 1), (f" {values[i]}.", 2)]
    return out


def task_quote(rng, corpus, n):
    """A text, then a sentence of it repeated after its first words."""
    text = corpus.slice(rng, max(n, 300))
    words = text.split(" ")
    k = min(len(words) - 6, rng.randrange(12, 40))
    a = rng.randrange(len(words) - k)
    lead = rng.choice((3, 4, 5))
    span = [w.replace("\n", " ").strip() or "-" for w in words[a:a + k]]
    return [("Read this text, then quote from it.", 1), ("\n" + text, 1), ("\nQuote: " + " ".join(span[:lead]), 1),
            (" " + " ".join(span[lead:]), 2)]


TASKS, TASK_WEIGHTS = (task_standard, task_needles, task_lookup, task_quote), (62, 20, 8, 10)


def encode_part(sp, text):
    if text.startswith("\n"):
        return sp.encode(text)[1:]
    return sp.encode(text[1:] if text.startswith(" ") else text)


def encode_task(sp, parts, seam):
    """Token ids and kinds; with seam > 0 the last `seam` characters of the prompt are tokenized by themselves."""
    ids, kinds = [BOS], [0]
    left = sum(len(t) for t, _ in parts) - len(parts[-1][0]) - seam if seam else -1
    for text, kind in parts:
        if 0 <= left < len(text):
            head = encode_part(sp, text[:left]) if left else []
            piece = head + sp.encode(text[left:])
        else:
            piece = encode_part(sp, text)
        left = left - len(text) if left >= len(text) else -1
        ids += piece
        kinds += [kind] * len(piece)
    return ids + [EOS], kinds + [2]


def make_task(rng, corpus, n_tokens):
    """One task that fills n_tokens as well as it can, padded to n_tokens + 1."""
    kind = rng.choices(TASKS, TASK_WEIGHTS)[0]
    seed, pick = rng.random(), rng.random()
    seam = 400 if pick < .5 else rng.randrange(60, 600) if pick < .6 else 0
    chars = int((n_tokens - 90) * 2.95 * (1 if rng.random() < .8 else rng.uniform(.4, 1)))
    for _ in range(12):
        parts = kind(random.Random(seed), corpus, max(chars, 0))
        short = sum(len(t) for t, _ in parts[:-1]) <= seam
        ids, kinds = encode_task(corpus.sp, parts, 0 if short else seam)
        if len(ids) <= n_tokens + 1:
            break
        chars -= int((len(ids) - n_tokens) * 2.6) + 20
    else:
        return make_task(rng, corpus, n_tokens)
    pad = n_tokens + 1 - len(ids)
    return ids + [EOS] * pad, kinds + [0] * pad


def task_batch(rng, corpus, n_tokens, rows):
    made = [make_task(rng, corpus, n_tokens) for _ in range(rows)]
    return torch.tensor([m[0] for m in made]), torch.tensor([m[1] for m in made])


def copy_batch(rng, budget, level):
    """Random tokens, then the same tokens again (once or more): only the repeats are learnt. Short ones come first."""
    n = rng.choice((4, 6, 8, 12)) << rng.randint(max(0, level - 1), level)
    times = max(2, min(5, (64 << max(0, level - 2)) // n))
    gen = torch.Generator().manual_seed(rng.randrange(1 << 30))
    first = torch.randint(3, SHAPE["vocab_size"], (max(1, budget // (n * times)), n), generator=gen)
    ids = first.repeat(1, times)
    kinds = torch.full_like(ids, 2)
    kinds[:, :n + 1] = 0
    return ids, kinds
