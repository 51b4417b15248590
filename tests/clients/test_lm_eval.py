# SPDX-License-Identifier: MIT
"""lm-evaluation-harness over the server (local-completions) and over the adapter: the same scores and texts.

python -m unittest, with RUN, MODEL (a folder that finds pass keys), KVASIR_LIBRARY and PYTHONPATH of the package set.
CHOICES and ANSWERS: samples (100 and 50); LONGEST: characters of a prompt (800)."""
import json
import os
import random
import tempfile
import unittest
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from kvasir.lm_eval import KvasirLM  # noqa: E402
from server import Server  # noqa: E402

CHOICES, ANSWERS = int(os.environ.get("CHOICES", 100)), int(os.environ.get("ANSWERS", 50))
LONGEST = int(os.environ.get("LONGEST", 800))
INTRO = ("There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
         "I will quiz you about the important information there.\n")
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
QUEST, STREAMING = "quest:budget=64:skip=0", "streaming:budget=64:skip=0"
DECODE = 32  # tokens at the end of a prompt that are fed as steps: the question and what is scored

TASK = """{task: kv_%s, dataset_path: json, dataset_kwargs: {data_files: {test: %s}}, test_split: test,
 output_type: %s, doc_to_text: "{{question}}", doc_to_target: "{{gold}}", %s}
"""
CHOOSE = "doc_to_choice: \"{{choices}}\", metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]"
ANSWER = ("generation_kwargs: {until: [\"\\n\", \".\"], max_gen_toks: 8, do_sample: false, temperature: 0.0}, "
          "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]")


def passkey(rng, longest):
    key, n = rng.randrange(10000, 50000), rng.randrange(400, longest)
    at = rng.randrange(n)
    filler = FILLER * (n // len(FILLER) + 1)
    needle = "\nThe pass key is %d. Remember it. %d is the pass key.\n" % (key, key)
    return INTRO + filler[:at] + needle + filler[:n - at] + "\nWhat is the pass key? The pass key is", key


def write_tasks(folder):
    rng = random.Random(20)
    tasks = ("choice", CHOICES, "multiple_choice", CHOOSE), ("answer", ANSWERS, "generate_until", ANSWER)
    for name, n, kind, rest in tasks:
        rows = []
        for _ in range(n):
            question, key = passkey(rng, LONGEST)
            others = rng.sample([k for k in range(10000, 50000, 7) if k != key], 3)
            gold = rng.randrange(4)
            choices = [str(k) for k in others[:gold] + [key] + others[gold:]]
            rows.append({"question": question, "choices": choices, "gold": gold if name == "choice" else " %d" % key})
        (folder / (name + ".jsonl")).write_text("".join(json.dumps(r) + "\n" for r in rows))
        (folder / (name + ".yaml")).write_text(TASK % (name, folder / (name + ".jsonl"), kind, rest))


def results_of(lm, folder, tasks=("kv_choice", "kv_answer"), **o):
    """Returns, for each task, its metric and the value of each sample."""
    r = lm_eval.simple_evaluate(model=lm, tasks=list(tasks), bootstrap_iters=0, log_samples=True,
                                task_manager=TaskManager(include_path=str(folder), include_defaults=False), **o)
    metrics = {"kv_choice": "acc,none", "kv_answer": "exact_match,none"}
    found = {}
    for task in tasks:
        samples = sorted(r["samples"][task], key=lambda s: s["doc_id"])
        found[task] = (r["results"][task][metrics[task]], [s["resps"] for s in samples])
    return found


class HarnessTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        write_tasks(Path(cls.folder.name))
        cls.server = Server("-m", os.environ["MODEL"])

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.folder.cleanup()

    def served(self, attn, concurrent=1, **o):
        name = self.server.model() + ("" if attn == "full" else "@%s@decode=%d" % (attn, DECODE))
        args = "model=%s,base_url=%s/v1/completions,max_length=4096" % (name, self.server.url)
        args += ",num_concurrent=%d" % concurrent
        return results_of("local-completions", self.folder.name, model_args=args, **o)

    def both_ways(self, attn):
        served = self.served(attn, concurrent=8)
        steps = 0 if attn == "full" else DECODE
        lm = KvasirLM(os.environ["MODEL"], attn=attn, decode=steps, add_bos=False, chunk=64, max_length=4096)
        own = results_of(lm, self.folder.name)
        print(attn, {task: score for task, (score, _) in served.items()})
        for task in served:
            self.assertEqual(served[task][0], own[task][0])
            self.assertGreater(own[task][0], 0.9)
        self.assertEqual(served["kv_answer"][1], own["kv_answer"][1])
        self.assertEqual(len(served["kv_choice"][1]), CHOICES)
        for there, here in zip(served["kv_choice"][1], own["kv_choice"][1]):
            for ((a, greedy_a),), ((b, greedy_b),) in zip(there, here):
                self.assertAlmostEqual(float(a), float(b), places=4)
                self.assertEqual(str(greedy_a), str(greedy_b))

    def test_full(self):
        self.both_ways("full")

    def test_quest(self):
        self.both_ways(QUEST)

    def test_what_is_lost(self):
        scores = [self.served(attn, 8, tasks=["kv_choice"], limit=30)["kv_choice"][0] for attn in (QUEST, STREAMING)]
        self.assertGreater(scores[0], scores[1] + 0.2)

    def test_same_in_batches(self):
        """Whatever is asked at once, each score is the same to the digit."""
        one, four = (self.served(QUEST, n, limit=10) for n in (1, 4))
        self.assertEqual(one, four)


if __name__ == "__main__":
    unittest.main()
