#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes eval/data/infinitebench/samples.jsonl: two invented samples of each InfiniteBench task that the program does
not make by itself, in the format of the official files.

usage: make_infinitebench_samples.py samples.jsonl
"""

import json, random, sys

R = random.Random(6)
NAMES = "Mara Tom Edda Jon Ruth Piet Ines Karl Vera Hugo Lena Otto".split()
THINGS = "lantern ledger compass kettle violin anchor map clock mirror ladder".split()
PLACES = "under the stairs,behind the mill,in the chapel,beside the well,on the roof,in the cellar,at the ferry".split(
    ","
)
DOINGS = (
    "mended nets until dusk,counted the boats twice,wrote a long letter home,baked bread for the crew,"
    "walked to the next village,fed the goats before breakfast,painted the north door"
).split(",")
ZH_DOINGS = "修补渔网 清点船只 写信回家 烤面包 走到邻村 喂山羊".split()


def line():
    return f"On day {R.randint(2, 90)} {R.choice(NAMES)} {R.choice(DOINGS)}."


def book(told):
    rows = ["\n".join(" ".join(line() for _ in range(4)) for _ in range(3)) for _ in range(4)]
    rows.insert(R.randrange(5), told)
    return "\n\n".join(rows)


def fact():
    who, what, where = R.choice(NAMES), R.choice(THINGS), R.choice(PLACES)
    return who, what, where, f"{who} kept the {what} {where}."


def choice():
    who, what, where, told = fact()
    options = R.sample([p for p in PLACES if p != where], 3) + [where]
    R.shuffle(options)
    return book(told), f"Where did {who} keep the {what}?", [where], options


def qa():
    who, what, where, told = fact()
    return book(told), f"Where did {who} keep the {what}?", [where, where.split(" ", 1)[1]], []


def summary():
    _, _, _, told = fact()
    return book(told), "", ["The book tells day by day what the people of the harbour did.\n" + told], []


def dialogue():
    who = R.choice(NAMES).upper()
    rows = [f"{R.choice(NAMES).upper()}: {line()}" for _ in range(14)]
    rows.insert(7, f"{who}: My name is {who.title()}.")
    rows.append(f"$$MASK$$: As I said, I am {who.title()}.")
    return "\n".join(rows), "", [who], []


def chinese():
    rows = [f"第{R.randint(2, 90)}天小梅{R.choice(ZH_DOINGS)}。" for _ in range(20)]
    rows.insert(9, "老周把灯笼放在磨坊后面。")
    return "".join(rows), "老周把灯笼放在哪里？", ["磨坊后面"], []


def find(kind):
    numbers = [R.randint(10, 99) for _ in range(80)]
    if kind == "largest":
        return (
            str(numbers),
            "You should answer with only one number, no other words. The largest number of the list is: ",
            [max(numbers)],
            [],
        )
    numbers = sorted(set(numbers))[:39]
    return (
        str(numbers),
        "You should answer with only one number, no other words. The median number of the list is: ",
        [numbers[len(numbers) // 2]],
        [],
    )


def calc():
    values, text = [R.randint(1, 99)], ""
    text = str(values[0])
    for _ in range(9):
        n, sign = R.randint(1, 9), R.choice("+-")
        values.append(values[-1] + n if sign == "+" else values[-1] - n)
        text += f" {sign} {n}"
    return text, "", values, []


def run():
    parts, total, arg = [], 0, R.randint(-9, 9)
    adds = [R.randint(1, 99) for _ in range(12)]
    for i, n in enumerate(adds):
        call = f"func_{i + 1}(x) + {n}" if i in (2, 5) else f"x + {n}"
        parts.append(f"def func_{i}(x):\n    var = {call}\n    return var\n")
    start = 2
    total = arg + adds[2] + adds[3]
    return (
        "\n".join(parts),
        f"Please give me the exact number of the return value of func_{start}({arg}). Be concise.",
        [total],
        [],
    )


def debug():
    names = R.sample([f"{v}_{t}" for v in ("load", "count", "mend", "sell") for t in THINGS], 8)
    wrong = R.randrange(8)
    body = "".join(
        f"def {n}(x):\n    total = x * {R.randint(2, 9)}\n    return {'totl' if i == wrong else 'total'}\n\n\n"
        for i, n in enumerate(names)
    )
    options = R.sample([n for i, n in enumerate(names) if i != wrong], 3) + [names[wrong]]
    R.shuffle(options)
    return body, "Which function has deliberate error?", [names[wrong]], options


def main():
    makers = {
        "longbook_choice_eng": [choice, choice],
        "code_debug": [debug, debug],
        "math_find": [lambda: find("largest"), lambda: find("median")],
        "longbook_sum_eng": [summary, summary],
        "longbook_qa_eng": [qa, qa],
        "longdialogue_qa_eng": [dialogue, dialogue],
        "longbook_qa_chn": [chinese, chinese],
        "code_run": [run, run],
        "math_calc": [calc, calc],
    }
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        for task, make in makers.items():
            for i, one in enumerate(make):
                context, question, answer, options = one()
                row = {
                    "dataset": task,
                    "id": i,
                    "context": context,
                    "input": question,
                    "answer": answer,
                    "options": options,
                }
                f.write(json.dumps(row, ensure_ascii=False) + "\n")


main()
