#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes tests/data/metrics: what LongBench's official code scores, for cases written here.

    python3 -m venv venv && venv/bin/pip install jieba==0.42.1 rouge==1.0.1 fuzzywuzzy==0.18.0 numpy
    venv/bin/python scripts/make_metric_fixtures.py LONGBENCH [MULTIFIELDQA_ZH.jsonl]

LONGBENCH is the folder of metrics.py and eval.py of THUDM/LongBench (commit 2e00731). CPython 3.11 (Unicode 14).
python-Levenshtein must not be installed: fuzzywuzzy would use it instead of difflib. The optional file is the
real data set of that name; of its segmentation only counts and hashes are written.
"""

import json
import os
import platform
import random
import re
import string
import sys
import unicodedata
import warnings
from importlib.metadata import version

warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
sys.setrecursionlimit(10**6)  # the package rouge walks back by recursion; with 1,000 it gives up on long sentences
import jieba  # noqa: E402
import numpy  # noqa: E402
import eval as official  # noqa: E402
import metrics  # noqa: E402
from metric_cases import cases_of, scorer_cases, segment_texts  # noqa: E402

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "metrics")
SCORES = {
    "qa_f1": metrics.qa_f1_score,
    "qa_f1_zh": metrics.qa_f1_zh_score,
    "rouge": metrics.rouge_score,
    "rouge_zh": metrics.rouge_zh_score,
    "classification": metrics.classification_score,
    "retrieval": metrics.retrieval_score,
    "retrieval_zh": metrics.retrieval_zh_score,
    "count": metrics.count_score,
    "code_sim": metrics.code_sim_score,
}


def write(name, rows):
    header = {
        "made_by": "scripts/make_metric_fixtures.py",
        "longbench": "2e00731",
        "python": platform.python_version(),
        "unicode": unicodedata.unidata_version,
        **{p: version(p) for p in ("jieba", "rouge", "fuzzywuzzy", "numpy")},
    }
    with open(os.path.join(OUT, name), "w", encoding="utf-8") as f:
        for row in [header, *rows]:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(name, len(rows))


def score_rows(name):
    for case in cases_of(name):
        prediction, answers, classes = case
        best = 0.0
        for answer in answers:
            best = max(best, SCORES[name](prediction, answer, all_classes=classes))
        row = {"prediction": prediction, "answers": answers}
        if classes:
            row["all_classes"] = classes
        yield {**row, "score": best}


def scorer_rows():
    for dataset, predictions, answers, lengths, classes in scorer_cases():
        total = official.scorer(dataset, predictions, answers, classes)
        buckets = official.scorer_e(dataset, predictions, answers, lengths, classes)
        yield {
            "dataset": dataset,
            "predictions": predictions,
            "answers": answers,
            "lengths": lengths,
            "all_classes": classes,
            "score": total,
            "score_e": [None if numpy.isnan(x) else float(x) for x in buckets.values()],
        }


def segment_rows():
    for text in segment_texts():
        yield {"text": text, "words": list(jieba.cut(text))}


def fnv(text):
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = (h ^ b) * 0x100000001B3 % 2**64
    return h


def real_rows(path):
    """Words of every context, each ended by U+001D: their number and the FNV-1a hash of all that as UTF-8."""
    with open(path, encoding="utf-8") as f:
        for line in f:
            words = list(jieba.cut(json.loads(line)["context"]))
            yield {"n_words": len(words), "fnv1a": "%016x" % fnv("".join(w + "\x1d" for w in words))}


def ranges(test):
    out = []
    for c in range(sys.maxunicode + 1):
        if 0xD800 <= c < 0xE000 or not test(chr(c)):
            continue
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def is_final(text, at):
    return text.lower()[at] == "\u03c2"


def unicode_rows():
    """Classes of characters as ranges. "known" are those that this Python's Unicode has; others are not compared."""
    zh = set(string.punctuation) | set(
        c for c in map(chr, range(0x10000)) if not metrics.normalize_zh_answer("x" + c)[1:]
    )
    tests = {
        "known": lambda c: unicodedata.category(c) != "Cn",
        "space": lambda c: not c.split(),
        "word": lambda c: re.match(r"\w", c),
        "digit": lambda c: re.match(r"\d", c),
        "punct": lambda c: c in string.punctuation,
        "punct_zh": lambda c: c in zh and c.split(),
        "sigma_cased": lambda c: is_final(c + "\u03a3", -1),
        "sigma_skipped": lambda c: is_final("a" + c + "\u03a3", -1) and not is_final(c + "\u03a3", -1),
        "lower_differs": lambda c: c.lower() != c,
    }
    for name, test in tests.items():
        yield {"class": name, "ranges": ranges(test)}
    text = "".join(chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000 and chr(c).lower() != chr(c))
    yield {"class": "lower", "text": "\n".join(text), "lower": "\n".join(c.lower() for c in text)}


def main():
    os.makedirs(OUT, exist_ok=True)
    jieba.setLogLevel(60)
    random.seed(0)
    for name in SCORES:
        write(name + ".jsonl", list(score_rows(name)))
    write("scorer.jsonl", list(scorer_rows()))
    write("segment.jsonl", list(segment_rows()))
    write("unicode.jsonl", list(unicode_rows()))
    if len(sys.argv) > 2:
        write("segment_real.jsonl", list(real_rows(sys.argv[2])))


main()
