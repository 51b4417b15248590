# SPDX-License-Identifier: MIT
"""Cases for make_metric_fixtures.py: the worked examples of the metrics' definition, awkward ones by hand, and
random ones from a fixed seed. All texts are invented."""

import random

TREC = ["Food", "Date", "Order, rank", "Number of something", "City", "Disease and medicine", "Animal", "Individual"]
NESTED = ["A", "B", "AB", "ABC", "C"]

EN = (
    "The harbour master kept a log of every ship, and the log was never wrong. In May of 1899 a storm took the "
    "lamp from the lighthouse. Mara, who sold honey on the quay, set forty jars in her window. A candle burned "
    "behind each one! The boats came home by that amber light; an old sailor called it the second sun. U.S. "
    "ships paid $3.50 a ton, others 1,024 cents. She didn't ask for thanks. \"It's only honey,\" she said."
).split(" ")
ZH = (
    "港务局长每天记录所有进出港口的船只，这本日志从未出错。一八九九年五月的一场暴风雨毁坏了灯塔。玛拉在码头上卖蜂蜜，她把四十个罐子放在窗口，"
    "每个罐子后面都点燃一支蜡烛！渔船凭着琥珀色的光回到了家。根据《海商法》第二十三条的规定，船舶所有人应当承担赔偿责任，金额为人民币8999.50元。"
    "本院认为，原告的诉讼请求有事实和法律依据，应予支持。２０１９年12月31日，南京市长江大桥管理处召开了会议，讨论了iPhone 13 Pro与C++编程的问题。"
    "王小明硕士毕业于中国科学院计算所，后在日本京都大学深造；他来到了网易杭研大厦。小姑娘龘靐齉爩在𠮷野家吃饭，增长率为12.5%，约3.0倍。"
)
CODE = [
    "for (size_t i = 0; i < n; i++) sum += x[i] * y[i];",
    "    return self.value if key in self.cache else None",
    "def forward(self, hidden_states, attention_mask=None):",
    "public static void main(String[] args) {",
    '        logger.info("loaded %d rows from %s", len(rows), path)',
    "const auto& item = items.at(index);",
    "    print(f'{name}: {value:.2f}')",
    'if err != nil { return fmt.Errorf("open: %w", err) }',
    "x = {'a': 1, 'b': [2, 3], 'c': (4,)}",
    "\treturn",
]
ODD = list("aA. .\n\t,!ß\u0345\u0301’“”ªⅣⓐ１２３٣²½①_-中文段落\u3000\u200b\ufeff\x1c\x85\xa0😀ﬁ𝟙«»İΣσςΑThe") + [
    "\r\n",
    "the ",
    " an ",
    "\0",
]


def words(rng, n):
    return " ".join(rng.choice(EN) for _ in range(n))


def soup(rng, n):
    return "".join(rng.choice(ODD) for _ in range(n))


def zh(rng, n):
    at = rng.randrange(len(ZH))
    return (ZH + ZH)[at : at + n]


def mutate(rng, s):
    """s with some parts taken out, doubled, or replaced."""
    s = list(s)
    for _ in range(rng.randint(1, 2 + len(s) // 12)):
        at, kind = rng.randrange(len(s) + 1), rng.random()
        if kind < 0.4:
            s[at : at + rng.randint(0, 6)] = []
        elif kind < 0.6:
            s[at:at] = soup(rng, rng.randint(0, 3))
        else:
            s[at:at] = s[max(0, at - rng.randint(0, 9)) : at]
    return "".join(s)


def shuffled(rng, s):
    parts = s.split(" ")
    rng.shuffle(parts)
    return " ".join(parts)


# What every metric of free text must survive.
EDGES = [
    ("", "x"),
    ("x", ""),
    ("", ""),
    (" ", " "),
    ("...", "x"),
    ("x", "..."),
    (".", "."),
    ("!?,;", "!?,;"),
    ("。，！", "。，！"),
    ("\n\n", "\n"),
    ("\n\na b\nc", "a b c"),
    ("a\r\nb", "a b"),
    ("a\tb\x1cc\x85d", "a b c d"),
    ("\u200bab", "ab"),
    ("\ufeffab", "ab"),
    ("😀 😀😀", "😀"),
    ("👩‍👩‍👧 family", "👩‍👩‍👧"),
    ("café", "cafe\u0301"),
    ("ΟΔΟΣ ΣΑΣ.", "οδος σας"),
    ("İstanbul", "i\u0307stanbul"),
    ("STRASSE Straße", "straße"),
    ("Ⅳ ⓐ ª", "ⅳ ⓐ ª"),
    ("１２３", "123"),
    ("٣ ²", "3 2"),
    ("a\0b", "a b"),
    ("no no no no", "no"),
    ("no", "no no no no"),
    ("word " * 400, "word"),
    ("中文 and English 混合 text", "English 中文"),
    ("Straße中", "straße 中"),
    ("тест Тест ТЕСТ", "тест"),
    ("ﬁne ﬁ", "fine ﬁ"),
    ("\u2028x\u2029y", "x y"),
    ("a_b the_c", "b c"),
    ("-a- (the) an.", "a the an"),
]

QA = [
    ("The Eiffel Tower, in Paris.", "Eiffel Tower"),
    ("U.S.A.", "the USA"),
    ("an apple a day", "apples a day"),
    ("yes yes no", "yes no no"),
    ("", "unanswerable"),
    ("It’s 1,024 GB", "its 1024 gb"),
    ("the a an", "a"),
    ("The THE tHe", "the"),
    ("a\u0301 b", "b"),
    ("theatre an", "theatre"),
    ("a’b", "b"),
    ("A-B", "ab"),
    ("K\u212a", "kk"),
]
QA_ZH = [
    ("北京大学", "北京大学"),
    ("答案是：北京大学。", "北京大学"),
    ("在2019年，浙江大学举办了年会", "浙江大学"),
    ("北京", "北京大学"),
    ("Python 3.8版本", "python3.8"),
    ("《红楼梦》", "红楼梦"),
    ("张·三", "张三"),
    ("南京市长江大桥", "长江大桥"),
    ("ＡＢＣ公司", "abc公司"),
    ("１２．５％", "12.5%"),
    ("2019 年 12 月", "2019年12月"),
    ("３．１４", "3.14"),
]
ROUGE = [
    ("the cat sat on the mat", "the cat is on the mat"),
    ("the the the the", "the cat"),
    ("A b c. D e f.", "A b c. X e f."),
    ("one two three four", "four three two one"),
    ("The end. ", "The end."),
    ("same text", "same text"),
    ("a b c d. e f", "e f. a b c d"),
    ("a b a b a b", "b a b a"),
    ("x . . y", "x y"),
    (". a", "a ."),
    ("Cat", "cat"),
    ("a,b", "a, b"),
    ("u v w. x y z. u v", "v u w. z y x"),
    (" . . ", " . "),
]
ROUGE_ZH = [
    ("我爱北京天安门", "我爱北京"),
    ("会议讨论了人工智能的发展。", "本次会议讨论了人工智能"),
    ("你好", "再见"),
    ("第一。第二.第三", "第二.第一"),
    ("3.14和2.71", "2.71和3.14"),
]
RETRIEVAL = [
    ("The answer is Paragraph 12 (not 2).", "Paragraph 12"),
    ("12 12 3", "Paragraph 12"),
    ("Paragraph 012", "Paragraph 12"),
    ("12", "see Paragraph x, Paragraph 12 and Paragraph 3"),
    ("１２", "Paragraph １２"),
    ("Paragraph 3\n\nParagraph 12", "Paragraph 12"),
]
RETRIEVAL_ZH = [
    ("答案是段落3，不是段落5", "段落3"),
    ("３", "段落3"),
    ("段落３", "段落３"),
    ("3", "段落段落3"),
    ("段落3段落3", "答案：段落3。"),
]
COUNT = [
    ("There are 17 of 20", "17"),
    ("3.0", "3"),
    ("none", "0"),
    ("", "3"),
    ("3", ""),
    ("٣", "٣"),
    ("x²1", "1"),
    ("17", " 17"),
]
CODE_SIM = [
    ("return x + 1", "return x + 1"),
    ("\n\n# comment\nreturn x+1\nfoo()", "return x + 1"),
    ("```python\nfoo(bar)\n```", "foo(bar)"),
    ("// nothing", "x"),
    ("abcd", "bcde"),
    ("tide", "diet"),
    ("diet", "tide"),
    ("ab" * 100, "ba" * 100),
    ("x" * 250 + "y", "y" + "x" * 250),
    ("return self.value", "return self.values()"),
    ("\n\n\n", "x"),
    ("# only\n# comments", ""),
    ("a / b", "a//b"),
    ("a / b\nc", "a / b"),
    ("    x = 1", "x = 1"),
    ("ab" * 99 + "c", "c" + "ab" * 99),
    ("abcab" * 50, "bcabc" * 41),
    ("q" + "x" * 199, "x" * 199 + "q"),
    ("q" + "x" * 200, "x" * 200 + "q"),
    ("é😀x", "x😀é"),
]
CLASSES = [
    ("Individual", "Individual", TREC),
    ("Type: Food and Animal", "Food", TREC),
    ("person", "Individual", TREC),
    ("ABC", "ABC", NESTED),
    ("ABC", "AB", NESTED),
    ("AB", "AB", NESTED),
    ("", "A", NESTED),
    ("ABC", "", NESTED),
    ("abc", "A", NESTED),
    ("A A A", "A", ["A", "A"]),
    ("AB", "AB", ["A", "A", "AB"]),
    ("AB", "AB", ["", "A", "B", "AB"]),
    ("新闻类别：时政新闻", "时政", ["时政", "体育", "新闻"]),
    ("体育。", "体育", ["时政", "体育"]),
]


def pairs_of(name, rng):
    """Random (prediction, answer) pairs."""
    for i in range(40):
        n = [5, 20, 60, 200][i % 4]
        if name in ("qa_f1", "rouge"):
            answer = words(rng, n) if i % 5 else soup(rng, n)
            yield (mutate(rng, answer) if i % 3 else shuffled(rng, answer)), answer
        elif name in ("qa_f1_zh", "rouge_zh"):
            answer = zh(rng, n) if i % 5 else soup(rng, n)
            yield (mutate(rng, answer) if i % 3 else zh(rng, n)), answer
        elif name == "code_sim":
            answer = rng.choice(CODE) if i % 4 else "".join(rng.choice("abc (") for _ in range(rng.randint(150, 450)))
            lead = rng.choice(["", "\n", "```c\n", "# first\n", "// a\n"])
            yield lead + mutate(rng, answer) + "\n" + rng.choice(CODE), answer
        else:
            parts = ["1", "12", "012", "３", "3", "٣", "no", ".", "²", "段落3", "Paragraph 12", "12.3", "-3"]
            answer = {"retrieval": "Paragraph ", "retrieval_zh": "段落", "count": ""}[name] + rng.choice(
                ["3", "12", "１２"]
            )
            yield rng.choice([" ", "\n", "，", ""]).join(rng.choice(parts) for _ in range(i % 9)), answer


def random_classes(rng):
    for _ in range(45):
        classes = [rng.choice(NESTED + TREC + ["", "Food and", "时政", "政"]) for _ in range(rng.randint(1, 8))]
        prediction = "".join(rng.choice(classes + [" ", "x"]) for _ in range(rng.randint(0, 6)))
        yield prediction, rng.choice(classes + ["ABC", "none of them"]), classes


def long_pair(rng):
    """Some thousand words of a small vocabulary, and half of them in another order."""
    text = [("w%d" % rng.randint(0, 60)) + ("." if rng.random() < 0.02 else "") for _ in range(2500)]
    return " ".join(text), " ".join(text[1200:] + text[:300])


def cases_of(name):
    """[(prediction, answers, classes or None)]"""
    rng = random.Random("metrics " + name)
    if name == "classification":
        out = [(p, [a], c) for p, a, c in [*CLASSES, *random_classes(rng)]]
        return out + [("AB x", ["none", "A", "AB"], NESTED)]
    by_hand = {
        "qa_f1": QA + EDGES,
        "qa_f1_zh": QA_ZH + EDGES,
        "rouge": ROUGE + EDGES,
        "rouge_zh": ROUGE_ZH + EDGES,
        "retrieval": RETRIEVAL + [(p, "Paragraph 3") for p, _ in EDGES],
        "retrieval_zh": RETRIEVAL_ZH + [(p, "段落3") for p, _ in EDGES],
        "count": COUNT + EDGES,
        "code_sim": CODE_SIM + EDGES,
    }[name]
    out = [(p, [a], None) for p, a in [*by_hand, *pairs_of(name, rng)]]
    if name in ("qa_f1", "rouge"):
        p, a = long_pair(rng)
        out += [(p, [a], None), (p, ["unlike", a, "w1 w2"], None)]
    if name in ("qa_f1_zh", "rouge_zh"):
        out += [(ZH * 4, [ZH[200:] + ZH[:100]], None), (ZH, ["无关", ZH[:150]], None)]
    if name == "code_sim":
        long = "".join(rng.choice(CODE) for _ in range(60))
        out += [(mutate(rng, long), [long], None), ("x = 1", ["y", "x = 2", ""], None)]
    return out


def scorer_cases():
    """[(dataset, predictions, answers, lengths, classes)]"""
    yield "trec", ["\n\nIndividual\nDate"], [["Individual"]], [10], TREC
    yield "qasper", ["yes", "no"], [["no", "Yes."], ["unanswerable"]], [100, 9000], None
    yield "samsum", ["\nA b.\nC d."], [["A b."]], [3999], None
    yield "qasper", ["a b", "c", "d", "x y", "q"], [["a"], ["b"], ["d e"], ["y"], ["z"]], [
        3999,
        4000,
        7999,
        8000,
        12,
    ], None
    yield "qasper", ["a b", "c", "d", "x y", "q"], [["b"], ["c"], ["d e"], ["y"], ["z"]], [
        3999,
        4000,
        7999,
        8000,
        12,
    ], None
    rng = random.Random("scorer")
    for dataset, n in [
        ("hotpotqa", 7),
        ("triviaqa", 8),
        ("qasper", 137),
        ("hotpotqa", 500),
        ("multifieldqa_en", 150),
        ("passage_count", 40),
    ]:
        # Many scores of few values, so that means lie near the middle between two decimals.
        words_ = ["x", "y", "z", "u", "v"]
        preds = [
            " ".join(rng.choice(words_) for _ in range(rng.randint(0, 6))) + rng.choice(["", "\nx y z"])
            for _ in range(n)
        ]
        answers = [[" ".join(rng.sample(words_, rng.randint(1, 3)))] for _ in range(n)]
        if dataset == "passage_count":
            preds, answers = ["%d of %d" % (rng.randint(1, 3), rng.randint(1, 3)) for _ in range(n)], [
                [str(rng.randint(1, 3))] for _ in range(n)
            ]
        yield dataset, preds, answers, [
            rng.choice([10, 3999, 5000, 8000, 20000]) if n > 8 else 10 for _ in range(n)
        ], None
    for n, right in [(400, 21), (800, 43), (16, 1), (160, 3), (200, 1)]:
        # means such as 5.25 % and 5.375 %
        yield "passage_retrieval_en", ["1"] * right + ["2"] * (n - right), [["Paragraph 1"]] * n, [1] * n, None
    yield "vcsum", [ZH[:80], ZH[50:90]], [[ZH[20:70]], [ZH[:40]]], [5000, 9000], None
    yield "lcc", [CODE[0] + "\n", "# " + CODE[1]], [[CODE[0]], [CODE[1]]], [5000, 9000], None
    yield "lsht", ["\n时政\n体育", "体育"], [["时政"], ["时政"]], [5000, 9000], ["时政", "体育"]


def segment_texts():
    rng = random.Random("segment")
    han = [chr(c) for c in range(0x4E00, 0x9FD6)]
    odd = list("ab12.%+#&_- \n\r\t，。AZ９é𠮷\u3000龥鿕鿖\u4dff")
    out = [
        "小明硕士毕业于中国科学院计算所",
        "南京市长江大桥",
        "2019年12月31日，武汉市",
        "iPhone 13 Pro的价格是8999元",
        "C++和Java",
        "３．１４",
        "𠮷野家",
        "",
        "\r\n",
        "\r\r\n\n",
        " ",
        "a.b",
        "3.14%",
        "1.2.3",
        "abc12.5%中12%",
        "AT&T公司c#",
        "他来到了网易杭研大厦",
        "我来到北京清华大学",
        "乒乓球拍卖完了",
        "-1.5e10",
        "....",
        "%%",
        "龘靐齉爩",
        "龘",
        "龘a龘",
        "一",
        "一一一一一一",
        "的的的的",
        "B超和T恤",
        ZH,
        ZH[::-1],
    ]
    out += [zh(rng, rng.randint(2, 60)) for _ in range(60)]
    out += ["".join(rng.choice(ZH) for _ in range(rng.randint(2, 40))) for _ in range(150)]
    out += ["".join(rng.choice(han) for _ in range(rng.randint(1, 30))) for _ in range(60)]
    out += ["".join(rng.choice(rng.choice([han, odd, ZH])) for _ in range(rng.randint(1, 40))) for _ in range(150)]
    return out
