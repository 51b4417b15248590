#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Appends a longer, invented sample of each LongBench dataset to eval/data/longbench/samples.jsonl.

usage: make_longbench_samples.py samples.jsonl

The first 21 lines, short and written by hand, stay; the lines made here come anew behind them. Same seed, same text.
"""
import json, random, sys

R = random.Random(17)
NAMES = "Mara Tom Edda Jon Ruth Piet Ines Karl Vera Hugo Lena Otto Nora Emil Dora Max".split()
THINGS = "lantern ledger compass kettle violin anchor map clock mirror ladder basket key".split()
PLACES = ("under the stairs,behind the mill,in the chapel,beside the well,on the roof,in the cellar,at the ferry,"
          "near the orchard,inside the barn,by the lighthouse").split(",")
DOINGS = ("mended nets until dusk,counted the boats twice,wrote a long letter home,baked bread for the crew,"
          "walked to the next village,fed the goats before breakfast,read the old charts again,painted the north door,"
          "carried water up the hill,waited for the mail coach").split(",")
ZH_NAMES, ZH_THINGS = "小梅 阿强 老周 玉兰 志明 春花".split(), "灯笼 账本 罗盘 水壶 小提琴 钥匙".split()
ZH_PLACES = "楼梯下面 磨坊后面 水井旁边 屋顶上 地窖里 渡口附近".split()
ZH_DOINGS = "修补渔网 清点船只 写信回家 烤面包 走到邻村 喂山羊".split()


def line():
    return f"On day {R.randint(2, 90)} {R.choice(NAMES)} {R.choice(DOINGS)}."


def filler(n):
    return " ".join(line() for _ in range(n))


def fact():
    who, what, where = R.choice(NAMES), R.choice(THINGS), R.choice(PLACES)
    return who, what, where, f"{who} kept the {what} {where}."


def hidden(before, after):
    who, what, where, told = fact()
    return filler(before) + " " + told + " " + filler(after), f"Where did {who} keep the {what}?", where


def zh_line():
    return f"第{R.randint(2, 90)}天{R.choice(ZH_NAMES)}{R.choice(ZH_DOINGS)}。"


def zh_hidden(n):
    who, what, where = R.choice(ZH_NAMES), R.choice(ZH_THINGS), R.choice(ZH_PLACES)
    rows = [zh_line() for _ in range(n)]
    rows.insert(n // 2, f"{who}把{what}放在{where}。")
    return "".join(rows), f"{who}把{what}放在哪里？", where, f"{who}把{what}放在{where}。"


def passages(n, told):
    rows = [filler(5) for _ in range(n)]
    rows[R.randrange(n)] += " " + told
    return "\n\n".join(f"Passage {i + 1}:\nNotes {i + 1}\n{s}" for i, s in enumerate(rows))


def function(name, factor):
    return f"def {name}(x):\n    y = x * {factor}\n    return y + {R.randint(1, 9)}\n\n\n"


def make():
    for dataset, n in (("narrativeqa", 40), ("qasper", 25), ("multifieldqa_en", 30)):
        text, q, a = hidden(n // 2, n - n // 2)
        yield dataset, q, text, [a], None, "en"
    text, q, a, _ = zh_hidden(24)
    yield "multifieldqa_zh", q, text, [a], None, "zh"
    for dataset in ("hotpotqa", "2wikimqa", "musique"):
        who, what, where, told = fact()
        yield dataset, f"Where is the {what} that {who} kept?", passages(6, told), [where], None, "en"
    text, q, a, _ = zh_hidden(20)
    yield "dureader", q, "文章1\n标题：日记\n" + text, [a], None, "zh"
    yield "gov_report", "", filler(35), ["The report tells day by day what the people of the harbour did."], None, "en"
    talk = "\n".join(f"{R.choice(NAMES)}: {line()}" for _ in range(24))
    yield ("qmsum", "What did the meeting talk about?", talk, ["They told each other what had been done on which day."],
           None, "en")
    news = "\n".join(f"Passage {i + 1}:\n" + filler(8) for i in range(3))
    yield "multi_news", "", news, ["– Three notes tell what people did at the harbour."], None, "en"
    yield ("vcsum", "", "\n".join(f"发言人{1 + i % 2}：{zh_line()}" for i in range(16)), ["会议回顾了每天的工作。"], None, "zh")
    kinds = ["Food", "Date", "Animal", "Individual", "Other location", "Order, rank"]
    asked = [("Who %s ?" % R.choice(DOINGS), "Individual") if i % 2 else ("When did %s sail ?" % R.choice(NAMES), "Date")
             for i in range(24)]
    yield ("trec", "Question: Who owned the last boat ?\nType:",
           "\n".join(f"Question: {q}\nType: {k}" for q, k in asked), ["Individual"], kinds, "en")
    shots = []
    for _ in range(8):
        who, what, where, told = fact()
        shots.append(f"Passage:\n{told} {filler(2)}\nQuestion:\nWhere was the {what}?\nAnswer:\n{where}")
    who, what, where, told = fact()
    yield ("triviaqa", f"Passage:\n{filler(2)} {told}\nQuestion:\nWhere was the {what}?\nAnswer:\n", "\n\n".join(shots),
           [where, where.split(" ", 1)[1]], None, "en")
    shots = []
    for _ in range(8):
        a, b, what = R.choice(NAMES), R.choice(NAMES), R.choice(THINGS)
        shots.append(f"Dialogue: {a}: do you have the {what}?\n{b}: yes, it is here\nSummary: {b} has the {what}.")
    yield ("samsum", "Dialogue: Ruth: where is the map?\nPiet: I sold it\nSummary: ", "\n".join(shots),
           ["Piet sold the map."], None, "en")
    kinds = ["天气", "交通", "教育"]
    news = [("明天有大雨", "天气"), ("新桥今天通车", "交通"), ("学校开始上课", "教育")] * 5
    yield ("lsht", "新闻内容：\n渡口的船停航\n类别：", "\n".join(f"新闻内容：\n{s}\n类别：{k}" for s, k in news), ["交通"], kinds,
           "zh")
    rows = [filler(3) for _ in range(6)]
    rows += [rows[1], rows[4]]
    yield ("passage_count", "", "\n\n".join(f"Paragraph {i + 1}: {s}" for i, s in enumerate(rows)), ["6"], None, "en")
    rows = [filler(3) for _ in range(10)]
    who, what, where, told = fact()
    rows[6] += " " + told
    yield ("passage_retrieval_en", f"The text says where {who} kept a {what}.",
           "\n\n".join(f"Paragraph {i + 1}: {s}" for i, s in enumerate(rows)), ["Paragraph 7"], None, "en")
    rows = ["".join(zh_line() for _ in range(3)) for _ in range(8)]
    rows[2] += zh_hidden(0)[3]
    yield ("passage_retrieval_zh", "文中说某人把一件东西放在某处。", "\n\n".join(f"段落{i + 1}：{s}" for i, s in enumerate(rows)),
           ["段落3"], None, "zh")
    code = "".join(function(f"scale_{w}", R.randint(2, 40)) for w in THINGS)
    yield "lcc", "", code + "def scale_boat(x):\n    y = x * 12\n", ["    return y + 4"], None, "python"
    yield ("repobench-p", "def load(name):\n    key = name.strip()\n", "# path: scale.py\n" + code + "# path: main.py\n",
           ["    return scale_key(len(key))"], None, "python")


def main():
    path = sys.argv[1]
    kept = open(path, encoding="utf-8").read().split("\n")[:21]
    with open(path, "w", encoding="utf-8") as out:
        for s in kept:
            out.write(s + "\n")
        for i, (dataset, question, context, answers, classes, language) in enumerate(make()):
            count = len if language == "zh" else lambda s: len(s.split())
            length = count(question) + count(context) + sum(count(a) for a in answers)
            row = {"input": question, "context": context, "answers": answers, "length": length, "dataset": dataset,
                   "language": language, "all_classes": classes, "_id": "own%02d" % i}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


main()
