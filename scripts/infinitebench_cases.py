# SPDX-License-Identifier: MIT
"""Cases for make_infinitebench_fixtures.py: the worked examples of the scores' definition, awkward ones by hand, and
random ones from a fixed seed. All texts are invented. A case is (prediction, label)."""

import random

from metric_cases import EDGES, mutate, soup, words, zh

MARKS = list("\n:\"'.,?!{} `-*\u3000\u200b\x85()") + ["Option", "option", "  "]
NUMBERS = ["3.5", "-7", "12", "007", "1_0", "٣", "１２", "²", "1e3", "4.", ".5", "12.50", "1,024", "𝟟", "0.1", "0"]
NAMES = ["ALICE", "TOM", "DR", "STRASSE", "FIN", "O", "MARY ANN", "ΣΊΣΥΦΟΣ"]
WORDS = ["alice", "Alice.", "Mrs.", "straße", "ﬁn", "tom's", "σίσυφος", "Bob:", "{tom}", "dr", "ǅ", "MARY", "ANN", "o"]
DEBUG = [
    "answer is:",
    "is:",
    "answer:",
    "correct option is:",
    "answer is",
    "error is",
    "The",
    "A.",
    "C:",
    "B",
    "\n",
    "  ",
    "`foo`",
    "foo",
    "*C*",
    "Option C",
    "option",
    "D",
    "foo_bar",
    "- C",
    "Optionoption",
    "ooption",
]
CHOICE = [
    "answer is:",
    "answer:",
    "answer is",
    "option is",
    "A",
    "AB",
    "BCD",
    "DA",
    "I think",
    "B.",
    "Tom",
    "Tom Sawyer",
    "\n",
    "Tango",
    "{C}",
    "the",
    "ABCD",
    "(B)",
    "CB",
    "  ",
]


def joined(rng, parts, n):
    return rng.choice(["", " ", " ", "\n"]).join(rng.choice(parts) for _ in range(n))


def numbers(rng):
    key = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 6)))
    return (
        rng.choice(
            [
                key,
                " %s. What" % key,
                "key " + key[:2] + " " + key[2:],
                "x" + key + "y 5",
                key + rng.choice("0.,:٣"),
                soup(rng, 5) + key,
                "１" + key,
                soup(rng, 9),
                "",
            ]
        ),
        key,
    )


def first_number(rng, worked):
    yield from worked
    for p in ["", " ", "no", "٣", "１２", "0012", "12 0012", "1 2", "12\n", "-12", "12.0"]:
        yield p, "12"
    for _ in range(60):
        yield numbers(rng)


def uuid(rng):
    h = "%032x" % rng.getrandbits(128)
    return "-".join([h[:8], h[8:12], h[12:16], h[16:20], h[20:]])


def kv(rng):
    yield from [('"ab-12".', "ab-12"), ("(ab-12)", "ab-12"), ("ab-123", "ab-12"), ("", "x"), ("x", ""), ("a\x85b", "b")]
    for _ in range(70):
        a, b = uuid(rng), uuid(rng)
        yield rng.choice(["", " ", '"']) + rng.choice([a, b, a + b, a.upper(), a[:-1]]) + rng.choice(MARKS) + soup(
            rng, 3
        ), a


def dialogue(rng):
    yield from [
        ("alice.", ["ALICE"]),
        ("Mrs. Alice-Ann", ["ALICE"]),
        ("", ["ALICE"]),
        ("bob", ["ALICE", "BOB"]),
        ("straße", ["STRASSE"]),
        ("ﬁn", ["FIN"]),
        ("ΐ", ["Ϊ́"]),
    ]
    for _ in range(80):
        yield joined(rng, WORDS + MARKS, rng.randint(0, 5)), [rng.choice(NAMES), rng.choice(NAMES)]


def choice(rng):
    tom = ["Tom", "B"]
    yield from [
        ("A or B", tom),
        ("I think it is B", tom),
        ("The answer is: Tom Sawyer", tom),
        ("Dunno", ["x", "D"]),
        ("Tom", tom),
        (" Tom\n", tom),
        ("the answer is:", tom),
        ("the answer is: ", tom),
        ("answer is:B", tom),
        ("Tango", tom),
        ("the answer is Tango", tom),
        ("", tom),
        ("  ", tom),
        ("it: AB then B", tom),
        ("b", tom),
        ("\u3000B", tom),
        ("(B)", tom),
        ("The option is B", ["Tom", "B"]),
        ("x", ["A", "C"]),
        ("A", ["A", "C"]),
    ]
    for _ in range(120):
        yield joined(rng, CHOICE + MARKS[:6], rng.randint(0, 6)), [
            rng.choice(["Tom", "Tom Sawyer", "A", "the"]),
            rng.choice("ABCD"),
        ]


def debug(rng):
    foo = ["foo", "C"]
    yield from [
        ("The answer is: foo()", foo),
        ("C", foo),
        ("C. foo", foo),
        (" C: x", foo),
        ("The correct option is: C", foo),
        ("answer is:", foo),
        ("the error is C", foo),
        ("the answer is C", foo),
        ("", foo),
        ("is: bar answer is C", foo),
        ("the Option is:C", foo),
        ("- C", foo),
        ("answer: Option C", foo),
        ("error is", foo),
        ("it is: x", foo),
    ]
    for _ in range(150):
        yield joined(rng, DEBUG, rng.randint(0, 6)), [rng.choice(["foo", "foo_bar", "The"]), rng.choice("ABCD")]


def number_text(rng):
    return joined(rng, NUMBERS + ["about", "or", "is", ":", "-"], rng.randint(0, 5))


def math_find(rng):
    yield from [
        ("about 3.5 or 4", 3.5),
        ("-7", 7),
        ("", 7),
        ("3.5", 3),
        ("3.", 3),
        ("٣", 3),
        ("１２.５", 12.5),
        ("5", 5.0),
        ("5.0", 5),
        ("0012", 12),
        ("12345678901234567890", 1234567890123456789),
        ("1e3", 1000.0),
        ("0.1", 0.1),
        ("9" * 400, 1.5),
        ("0.30000000000000004", 0.3),
        ("7", -7),
        ("0", 0),
        ("x", [4.5]),
        ("4.5", [4.5]),
    ]
    for _ in range(120):
        yield number_text(rng), rng.choice([3.5, 7, 12, 10, 12.0, 1024, 0.1, 12.5, 3, 0, 5])


def math_calc(rng):
    yield from [
        ("[1, 4, 8, 9]", [1, 4, 8, 7]),
        ("", [1]),
        ("1", [1, 2]),
        ("-1 4", [1, 4]),
        ("1.5", [1, 5]),
        ("٣", [3]),
        ("0001", [1]),
        ("1 2", [-1, 2]),
        ("1 2 3", [[1, 2, 3]]),
        ("5", [5.0]),
    ]
    for _ in range(70):
        label = [rng.randint(0, 30) for _ in range(rng.randint(1, 8))]
        said = [x if rng.random() < 0.9 else x + 1 for x in label][: rng.randint(0, 9)]
        yield rng.choice([", ", " ", "\n", " -> "]).join(map(str, said)), label


def code_run(rng):
    yield from [
        ("The return value is -7.", -7),
        ("value: 12 units", 12),
        ("5.0", 5),
        ("+5", 5),
        ("5_0", 50),
        ("０５", 5),
        ("", 5),
        ("5__0", 50),
        ("_5", 5),
        ("5_", 5),
        ("-0", 0),
        ("+ 5", 5),
        ("--5", -5),
        ("٣", 3),
        ("-٣", -3),
        ("²", 2),
        ("5", 5.0),
        ("5", [5]),
        ("x:-12", -12),
        ("𝟟", 7),
        ("'8'", 8),
        ("is 0x10", 16),
        ("+-5", -5),
        ("-_5", -5),
    ]
    for _ in range(80):
        yield number_text(rng) + rng.choice(["", ".", " ", "\n", "`", ":"]), rng.choice(
            [-7, 12, 10, 7, 3, 0, 5, 50, 1024, 24]
        )


def qa_en(rng):
    for p, a in EDGES + [("The Eiffel Tower, in Paris.", "Eiffel Tower"), ("an apple a day", "apples a day")]:
        yield p, [a]
    for _ in range(60):
        a = words(rng, rng.randint(1, 8))
        yield mutate(rng, a), [words(rng, 4), a]


def qa_zh(rng):
    for p, a in EDGES + [("答案：北京大学", "北京大学"), ("《红楼梦》", "红楼梦"), ("ＡＢc", "abc"), ("a·b", "ab")]:
        yield p, [a]
    for _ in range(60):
        a = zh(rng, rng.randint(1, 20))
        yield mutate(rng, a), [a, zh(rng, 6)]


def lines(rng, n):
    return "\n".join(words(rng, rng.randint(0, 14)) for _ in range(n))


def summary(rng):
    yield from [
        ("The cat sat.\nThe dog ran.", "A cat sat\nThe dog ran fast"),
        ("cat the sat", "the cat sat"),
        ("don't stop", "dont stop"),
        ("", "x"),
        ("x", ""),
        ("\n\n", "\n"),
        ("a\n\nb", "b\na"),
        ("K İ", "k i"),
        ("a b c a b", "b a c b a"),
        ("x y z", "y x\nz y\nx z"),
        ("a a a", "a\na"),
        ("a\ra", "a a"),
        ("one\ntwo\nthree", ["nothing", "two\nthree"]),
        ("中文 abc", "abc 中文"),
    ]
    for _ in range(70):
        a = lines(rng, rng.randint(1, 6))
        yield rng.choice([mutate(rng, a), lines(rng, 4), a.upper(), "\n".join(sorted(a.split("\n")))]), a
    few = "a b c d".split()
    for _ in range(70):
        yield tuple(
            "\n".join(" ".join(rng.choice(few) for _ in range(rng.randint(0, 8))) for _ in range(3)) for _ in "pa"
        )


MAKERS = {
    "passkey": lambda rng: first_number(rng, [(" 71432. What", "71432"), ("key 7143 2", "71432")]),
    "number_string": lambda rng: first_number(rng, [("11 22", "1122")]),
    "kv_retrieval": kv,
    "longdialogue_qa_eng": dialogue,
    "longbook_sum_eng": summary,
    "longbook_choice_eng": choice,
    "longbook_qa_eng": qa_en,
    "longbook_qa_chn": qa_zh,
    "math_find": math_find,
    "math_calc": math_calc,
    "code_run": code_run,
    "code_debug": debug,
}
TASKS = list(MAKERS)


def cases_of(task):
    return MAKERS[task](random.Random(task))
