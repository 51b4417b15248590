#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the tokenizer fixtures in tests/data/tokenizers with the reference libraries.

usage: make_tokens.py DATA OUT
  DATA  folder with tokenizers/{llama3,qwen,mistral} (.xz) and books/
  OUT   tests/data/tokenizers

Needs Python >= 3.11 with tokenizers 0.23, sentencepiece 0.2. Deterministic: fixed seed.
"""
import base64, io, json, lzma, os, random, sys, tempfile, unicodedata

import sentencepiece
import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

DATA, OUT = sys.argv[1], sys.argv[2]
R = random.Random(20250607)
N_LINES, MAX_CHARS = 2100, 90

SENTENCES = """Ceci n'est pas une pipe ; déjà-vu, cœur, Noël, où ça ?
Der Fluß fließt über die Straße; Größe, Äpfel, ÖL, ẞ.
El niño añadió ¿qué? ¡Olé! pingüino
Zażółć gęślą jaźń, Łódź
Příliš žluťoučký kůň úpěl ďábelské ódy
Şimdi İstanbul'da ılık bir gün
Съешь же ещё этих мягких французских булок, да выпей чаю
Η γρήγορη αλεπού πηδάει· ὦ ἄνδρες Ἀθηναῖοι
我们在北京大学学习机器翻译，2024年，价格是３５元。
吾輩は猫である。名前はまだ無い。カタカナとﾊﾝｶｸ
안녕하세요 세계! 한국어 띄어쓰기 테스트
مرحبا بالعالم، كيف حالك؟ ١٢٣٤٥
שָׁלוֹם עוֹלָם — טקסט דו־כיווני
नमस्ते दुनिया, यह हिन्दी है १२३
สวัสดีชาวโลก ภาษาไทยไม่มีเว้นวรรค
বাংলা ভাষা, தமிழ் மொழி, తెలుగు, ಕನ್ನಡ, മലയാളം
ქართული ენა, Հայերեն լեզու, ትግርኛ አማርኛ
Tiếng Việt có nhiều dấu: ữ ệ ỗ ặ
Íslenska: þú, ð, æ; Māori: kōwhai; Hawaiʻi
ᚠᛇᚻ ᛒᛦᚦ ᚠᚱᚩᚠᚢᚱ, 𐌲𐌿𐍄𐌹𐍃𐌺, 𓀀𓀁 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛
ʼn ŉ Å Å Ω Ω K K ﬁ ﬀ Ⅷ ½ ² ㎏ ㍿""".split("\n")

CODE = r"""for (size_t i = 0; i < n; i++) { a[i] += b[i] * 0x1F; }
	if (!p)		return -1;  /* tabs */
def f(x: int = 3, *args, **kw) -> str: return f"{x!r:>10}"
#include <stdio.h> // comment
SELECT * FROM t WHERE a<>'it''s' AND b>=3.14e-10;
<div class="x">&nbsp;<br/></div>
{"key": [1, 2.5, null, true], "s": "\u00e9\n"}
$ grep -rn 'foo\|bar' ./src | sed 's/a/b/g' && echo "$HOME"
fn main() -> Result<(), Box<dyn Error>> { let x = &mut v[..]; Ok(()) }
https://example.org/a/b?c=d&e=%20f#frag user@mail.example
x=1;y=2;;z===3!=4<=5>=6->7=>8::9...
    return self.__init__(**{k: v for k, v in zip(a, b)})
\begin{equation} \frac{a_1}{b^{2}} \end{equation}
0xDEADBEEF 1e-5 1_000_000 v1.2.3-rc4 192.168.0.1 12:34:56""".split("\n")

EMOJI = ("👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "😀", "❤️", "1️⃣", "🧑🏿‍🚀", "☃", "🤷‍♀️", "🫠", "\U0001f9d1\u200d")
SPECIAL = """<|begin_of_text|> <|end_of_text|> <|eot_id|> <|start_header_id|> <|end_header_id|> <|im_start|> <|im_end|>
<|endoftext|> <s> </s> <unk> [INST] [/INST] <<SYS>> <|reserved_special_token_0|> <|eom_id|> <|python_tag|> <0x0A> ▁ <|im_ <|>
<|vision_start|> <|object_ref_start|> [TOOL_CALLS] [AVAILABLE_TOOLS] <|begin_of_text <｜User｜>""".split()
SPACES = [" ", "  ", "   ", "    ", "\t", "\n", "\n\n", "\r\n", "\r", "\r\n\r\n", " \n", "\n ", "\v", "\f", "\u00a0", "\u0085",
          "\u1680", "\u180e", "\u2000", "\u2003", "\u2009", "\u200a", "\u200b", "\u200d", "\u2028", "\u2029", "\u202f",
          "\u205f", "\u2060", "\u3000", "\ufeff", "\x1c", "\x1f", "\x00"]
APOSTROPHES = ["'s", "'S", "'t", "'re", "'RE", "'Ve", "'m", "'ll", "'LL", "'d", "'\u017f", "'\u017fa", "'\u212a", "’s", "''s", "'sa", "' s",
               "'l", "'v", "'r", "'lL", "'st", "'ß"]
RANGES = [(0x20, 0x7f), (0x80, 0x250), (0x250, 0x370), (0x300, 0x370), (0x370, 0x530), (0x530, 0x800), (0x900, 0xe00),
          (0xe00, 0x1100), (0x1100, 0x1200), (0x1e00, 0x2000), (0x2000, 0x2070), (0x2070, 0x2c00), (0x3000, 0x3100),
          (0x3100, 0x4e00), (0x4e00, 0xa000), (0xac00, 0xd7a4), (0xe000, 0xe010), (0xf900, 0xfb00), (0xfb00, 0x10000),
          (0x10000, 0x10400), (0x1d100, 0x1d800), (0x1f000, 0x1fa00), (0x20000, 0x20100), (0x2f800, 0x2fa20),
          (0xe0000, 0xe0200), (0x10fff0, 0x110000)]


def assigned(c):  # characters that every library's Unicode version knows
    return unicodedata.category(c) not in ("Cn", "Cs")


def chars(lo, hi, n):
    out = []
    while len(out) < n:
        c = chr(R.randrange(lo, hi))
        if assigned(c) or lo >= 0x10fff0:
            out.append(c)
    return "".join(out)


def noise():
    raw = bytes(R.choice([R.randrange(256), R.randrange(32, 127)]) for _ in range(R.randint(1, 40)))
    return "".join(c for c in raw.decode("utf-8", "replace") if assigned(c))


def decomposed():
    base = R.choice(SENTENCES)
    return unicodedata.normalize(R.choice(["NFD", "NFKD", "NFC"]), base)


def jamo():
    return "".join(chr(0x1100 + R.randrange(19)) + chr(0x1161 + R.randrange(21)) + R.choice(["", chr(0x11a8 + R.randrange(27))])
                   for _ in range(R.randint(1, 6)))


def marks():
    return "".join(R.choice("aeouAncs각가") + "".join(chr(0x300 + R.randrange(0x70)) for _ in range(R.randint(0, 4)))
                   for _ in range(R.randint(1, 6)))


def cut(s):
    if len(s) < 4:
        return s
    a = R.randrange(0, len(s) // 2)
    return s[a:a + R.randint(2, MAX_CHARS)]


def digits():
    return R.choice(["", "-", "$", "v", " "]) + "".join(R.choice("0123456789") for _ in range(R.randint(1, 12))) + R.choice(
        ["", ".", ",000", "%", "th", "e5", " 7", "٣٤", "１２", "²", "½"])


def spaced():
    words = ["word", "The", "x", "é", "1", ".", "!!", "中", "-", "", "'"]
    return "".join(R.choice(words) + R.choice(SPACES) * R.choice([1, 1, 1, 2, 3, 9]) for _ in range(R.randint(1, 6))) + R.choice(words)


def mixed():
    parts = [lambda: cut(R.choice(SENTENCES))[:20], lambda: R.choice(EMOJI), lambda: R.choice(SPACES), digits,
             lambda: R.choice(APOSTROPHES), lambda: R.choice(CODE)[:20], lambda: R.choice(SPECIAL), lambda: marks()[:8]]
    return "".join(R.choice(parts)() for _ in range(R.randint(2, 7)))


def books():
    folder = os.path.join(DATA, "books")
    text = ""
    for name in sorted(os.listdir(folder)):
        if name.endswith(".txt.xz") and len(text) < 3_000_000:
            text += lzma.open(os.path.join(folder, name), "rt", encoding="utf-8").read(200_000)
    return text


BOOKS = books()


def prose():
    a = R.randrange(len(BOOKS) - 400)
    return BOOKS[a:a + R.randint(20, 220)]


KINDS = [(prose, 500), (mixed, 380), (lambda: cut(R.choice(SENTENCES)), 200), (lambda: cut(R.choice(CODE)), 160), (spaced, 180),
         (decomposed, 60), (jamo, 30), (marks, 60), (digits, 70), (noise, 130),
         (lambda: chars(*R.choice(RANGES), R.randint(1, 14)), 160),
         (lambda: "".join(chr(R.randrange(32)) for _ in range(R.randint(1, 6))) + R.choice(["", "a", "\x7f"]), 30),
         (lambda: "I" + "".join(R.choice(APOSTROPHES) + R.choice(["", " ", "x"]) for _ in range(R.randint(1, 4))), 60),
         (lambda: " ".join(R.choice(SPECIAL) + R.choice(["", "x"]) for _ in range(R.randint(1, 3))), 60),
         (lambda: R.choice(" \n\ta=-_.#*0") * R.randint(2, 80), 40)]


def make_lines():
    fixed = ["", " ", "  ", "\n", "a", "é", "e\u0301", "\u180e", "\u017f", "'\u017f", " \u180ex", "\r\n", "\x00", "\ufeffa", "\U0010ffff"]
    fixed += SENTENCES + CODE + list(EMOJI) + SPECIAL + APOSTROPHES + SPACES
    seen, out = set(), []
    for t in fixed:
        if t not in seen:
            seen.add(t)
            out.append(t)
    funcs, weights = zip(*KINDS)
    while len(out) < N_LINES:
        t = R.choices(funcs, weights)[0]()
        if t not in seen and all(assigned(c) or ord(c) >= 0x10fff0 for c in t):
            seen.add(t)
            out.append(t)
    return out


def unpack(name):
    return lzma.open(os.path.join(DATA, "tokenizers", name)).read()


def hf(raw):
    t = Tokenizer.from_str(raw.decode("utf-8"))
    t.encode_special_tokens = True  # spellings of special tokens are plain text
    return t


def write_ids(name, rows):
    with open(os.path.join(OUT, name + ".ids"), "w") as f:
        for r in rows:
            f.write(" ".join(map(str, r)) + "\n")


def write_jsonl(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        for r in rows:
            f.write(json.dumps(r, ensure_ascii=False) + "\n")


def decode_cases(toks):
    rows = []
    for name, enc, dec, n_ids in toks:
        pool = [i for t in ("é中😀 a▁b", "😀👨‍👩‍👧ก", "\x00\x7f ¿") for i in enc(t)]
        for _ in range(70):
            ids = [R.choice([R.choice(pool), R.choice(pool), R.randrange(n_ids), R.randrange(300)]) for _ in range(R.randint(1, 9))]
            rows.append({"tokenizer": name, "ids": ids, "text": dec(ids)})
    return rows


def small_bpe(lines, like, path, whole_words):
    """A BPE of 640 tokens with the parts of `like` (a real tokenizer.json), trained on the lines."""
    ref = json.loads(like)
    t = Tokenizer(models.BPE(ignore_merges=whole_words))
    full = Tokenizer.from_str(like.decode("utf-8"))
    t.pre_tokenizer, t.decoder = full.pre_tokenizer, full.decoder
    if full.normalizer:
        t.normalizer = full.normalizer
    trainer = trainers.BpeTrainer(vocab_size=640, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    t.train_from_iterator(lines, trainer)
    j = json.loads(t.to_str())
    # Equal counts make the trainer's order vary between runs of other versions; ids are fixed here by what it gave.
    n = len(j["model"]["vocab"])
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"] if whole_words else [
        "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    j["added_tokens"] = [{"id": n + i, "content": s, **flags, "special": "think" not in s} for i, s in enumerate(names)]
    if not whole_words:
        j["added_tokens"] += [{"id": n + 5, "content": "<L>", **flags, "lstrip": True, "special": False},
                              {"id": n + 6, "content": "<R>", **flags, "rstrip": True, "special": False},
                              {"id": n + 7, "content": "WORD", **flags, "single_word": True, "special": False},
                              {"id": n + 8, "content": "nörm", **flags, "normalized": True, "special": False}]
    pp = ref.get("post_processor")
    if whole_words:
        pp = json.loads(json.dumps(pp).replace("128000", str(n)))
    j["post_processor"] = pp
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(j, f, ensure_ascii=False)
    tok = Tokenizer.from_str(json.dumps(j))
    tok.encode_special_tokens = True
    return j, tok


def small_tiktoken(j, path):
    back = {c: b for b, c in byte_alphabet().items()}
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "tokenizer.model"), "w") as f:
        for text, i in sorted(j["model"]["vocab"].items(), key=lambda x: x[1]):
            raw = bytes(back[c] for c in text)
            f.write(f"{base64.b64encode(raw).decode()} {i}\n")


def byte_alphabet():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, k = {b: chr(b) for b in keep}, 0
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + k)
            k += 1
    return table


def by_rank(ranks, tok, text):
    """tiktoken's merging, in the obvious way, on the pieces of tok's pre-tokenizer."""
    alphabet, out = {c: b for b, c in byte_alphabet().items()}, []
    for piece, _ in tok.pre_tokenizer.pre_tokenize_str(text):
        raw = bytes(alphabet[c] for c in piece)
        parts = [raw] if raw in ranks else [bytes([b]) for b in raw]
        while len(parts) > 1:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 30))
            if parts[best] + parts[best + 1] not in ranks:
                break
            parts[best:best + 2] = [parts[best] + parts[best + 1]]
        out += [ranks[p] for p in parts]
    return out


def small_spm(lines, path):
    os.makedirs(path, exist_ok=True)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([t for t in lines if "\x00" not in t]), model_writer=model, vocab_size=700, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        character_coverage=0.98, control_symbols=["[INST]", "[/INST]"], minloglevel=2, num_threads=1)
    with open(os.path.join(path, "tokenizer.model"), "wb") as f:
        f.write(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def fnv(ids):
    h = 0xcbf29ce484222325
    for i in ids:
        h = (h ^ i) * 0x100000001b3 & 0xffffffffffffffff
    return f"{h:016x}"


def main():
    lines = make_lines()
    os.makedirs(OUT, exist_ok=True)
    write_jsonl(os.path.join(OUT, "lines.jsonl"), [{"text": t} for t in lines])
    raw_llama, raw_qwen = unpack("llama3/tokenizer.json.xz"), unpack("qwen/tokenizer.json.xz")
    toks = []
    for name, raw in (("llama3", raw_llama), ("qwen", raw_qwen)):
        t = hf(raw)
        toks.append((name, lambda s, t=t: t.encode(s, add_special_tokens=False).ids,
                     lambda ids, t=t: t.decode(ids, skip_special_tokens=True), t.get_vocab_size()))
    for v in ("v1", "v3"):
        sp = sentencepiece.SentencePieceProcessor(model_proto=unpack(f"mistral/tokenizer.model.{v}.xz"))
        toks.append((f"mistral-{v}", sp.encode, sp.decode, sp.get_piece_size()))
    for name, enc, _, _ in toks:
        write_ids(name, [enc(t) for t in lines])
    write_jsonl(os.path.join(OUT, "decode_cases.jsonl"), decode_cases(toks))

    train = [t for t in lines if len(t) > 3] + [BOOKS[i:i + 300] for i in range(0, 90000, 300)]
    cases = R.sample(lines, 160) + ["a <L> b <R>  c", "WORD aWORD WORDb (WORD)", "no\u0308rm nörm", "<think>x</think>", "x<|im_end|><|eot_id|>y"]
    small = os.path.join(OUT, "small")
    j, llama = small_bpe(train, raw_llama, os.path.join(small, "llama3"), True)
    ids = lambda t: (lambda s: t.encode(s, add_special_tokens=False).ids)
    ranks = {bytes({c: b for b, c in byte_alphabet().items()}[c] for c in s): i for s, i in j["model"]["vocab"].items()}
    folders = [("llama3", ids(llama)), ("tiktoken", lambda s: by_rank(ranks, llama, s))]
    small_tiktoken(j, os.path.join(small, "tiktoken"))
    _, qwen = small_bpe(train, raw_qwen, os.path.join(small, "qwen"), False)
    folders.append(("qwen", ids(qwen)))
    sp = small_spm(train, os.path.join(small, "spm"))
    folders.append(("spm", sp.encode))
    for name, enc in folders:
        write_jsonl(os.path.join(small, name, "tokens.jsonl"), [{"text": t, "ids": enc(t)} for t in cases])
    # One long text: long texts are cut before they go to SentencePiece, which must not show.
    text, long = " ".join(t for t in lines if "\x00" not in t), []
    for name, enc in [("mistral-v1", toks[2][1]), ("mistral-v3", toks[3][1]), ("llama3", toks[0][1]), ("qwen", toks[1][1])] + [
            ("small/" + n, f) for n, f in folders if n != "tiktoken"]:
        got = enc(text)
        long.append({"tokenizer": name, "n": len(got), "fnv": fnv(got)})
    write_jsonl(os.path.join(OUT, "long.jsonl"), long)
    with open(os.path.join(OUT, "README.md"), "w") as f:
        f.write(f"""Tokenizer fixtures, made by `scripts/make_tokens.py` (seed fixed; tokenizers {tokenizers.__version__}, sentencepiece {sentencepiece.__version__}).

- `lines.jsonl`: {len(lines)} texts. `NAME.ids`: their ids, one line a text, by the reference library on the real tokenizer NAME: no BOS,
  special tokens spelled out are plain text. The tokenizers themselves are not here: the tests take them from the real data, else skip.
- `decode_cases.jsonl`: ids, many of them parts of characters, and what the reference decodes them to.
- `long.jsonl`: number of ids and their FNV-1a hash (64 bits, an id a step) for all lines without U+0000 joined by spaces.
- `small/*`: small tokenizers, trained on the lines, with `tokens.jsonl` (texts and reference ids).

The lines hold short passages of public-domain books and invented text. `llama3.ids` was computed with the Llama 3 tokenizer (Meta Llama 3 Community License).
""")


main()
