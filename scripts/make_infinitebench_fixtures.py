#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes tests/data/metrics of InfiniteBench: what its official code scores, for cases written here.

    python3 -m venv venv && venv/bin/pip install rouge-score==0.1.2 tqdm
    venv/bin/python scripts/make_infinitebench_fixtures.py INFINITEBENCH INFLLM

INFINITEBENCH is the folder of compute_scores.py of OpenBMB/InfiniteBench (src, commit 88b3daa), INFLLM that of
infinitebench_eval.py of thunlp/InfLLM (benchmark, commit 0fe9bc0). CPython 3.11 (Unicode 14). Of the package
`evaluate`, which fetches its metrics from a server, only what compute_scores.py asks of it is stood in for: rouge_score
without stemming, the best of several references.
"""

import json
import os
import platform
import sys
import types
import unicodedata
from importlib.metadata import version

from rouge_score.rouge_scorer import RougeScorer


class Rouge:
    def compute(self, predictions, references, use_aggregator):
        scorer, (p,), (r,) = RougeScorer(["rougeLsum"]), predictions, references
        score = scorer.score_multi(r, p) if isinstance(r, list) else scorer.score(r, p)
        return {"rougeLsum": [score["rougeLsum"].fmeasure]}


for name, content in (("evaluate", {"load": lambda name: Rouge()}), ("args", {"parse_args": None})):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)
sys.path[:0] = sys.argv[1:3]
import compute_scores as official  # noqa: E402
import infinitebench_eval as infllm  # noqa: E402
from infinitebench_cases import TASKS, cases_of  # noqa: E402

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "metrics")


def write(name, rows):
    header = {
        "made_by": "scripts/make_infinitebench_fixtures.py",
        "infinitebench": "88b3daa",
        "infllm": "0fe9bc0",
        "python": platform.python_version(),
        "unicode": unicodedata.unidata_version,
        "rouge-score": version("rouge-score"),
    }
    with open(os.path.join(OUT, name), "w", encoding="utf-8") as f:
        for row in [header, *rows]:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(name, len(rows))


def score_rows(task):
    for prediction, label in cases_of(task):
        try:
            score = official.get_score_one(prediction, label, task, "yarn-mistral")
        except ValueError:  # int("3.5"): the definition makes it a 0
            score = 0.0
        yield {"prediction": prediction, "answers": label, "score": score}


def infllm_choice_rows():
    """eval.py: the best over the list of answers. An empty prediction raises; the definition makes it a 0."""
    for prediction, label in cases_of("longbook_choice_eng"):
        scores = (
            [float(infllm.get_score_one_longbook_choice_eng(prediction, x)) for x in label] if prediction else [0.0]
        )
        yield {"prediction": prediction, "answers": label, "score": max(scores)}


def infllm_debug_rows():
    """The letter that is drawn where nothing is found is no letter here, and said."""
    drawn = []
    infllm.random.choice = lambda letters: drawn.append(letters)
    for prediction, label in cases_of("code_debug"):
        drawn.clear()
        score = float(infllm.get_score_one_code_debug(prediction, label))
        yield {"prediction": prediction, "answers": label, "undecided": bool(drawn), "score": score}


def upper_row():
    text = "".join(chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000 and chr(c).upper() != chr(c))
    return {"text": "\n".join(text), "upper": "\n".join(c.upper() for c in text)}


def main():
    for task in TASKS:
        write(task + ".jsonl", list(score_rows(task)))
    write("longbook_choice_eng_infllm.jsonl", list(infllm_choice_rows()))
    write("code_debug_infllm.jsonl", list(infllm_debug_rows()))
    write("upper.jsonl", [upper_row()])


main()
