# SPDX-License-Identifier: MIT
"""Tests of the adapter for lm-evaluation-harness, if that is installed."""
import importlib.util
import math
import os
import types
import unittest
from pathlib import Path

FOLDER = Path(os.environ["SRCDIR"]) / "tests/data/models/llama31-f32-tied"


def requests(*rows):
    return [types.SimpleNamespace(args=row) for row in rows]


@unittest.skipUnless(importlib.util.find_spec("lm_eval"), "no lm_eval")
class AdapterTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from kvasir.lm_eval import KvasirLM

        cls.make = staticmethod(lambda **o: KvasirLM(FOLDER, kv="f32", gemm="builtin", threads=1, max_length=128, **o))

    def test_scores(self):
        steps, prompt, some = (self.make(**o) for o in ({}, {"decode": 0}, {"decode": 5}))
        rows = requests(("one two three", " four five"), ("one two three", " six"), ("", "seven"), ("a b ", "c"))
        results = [lm.loglikelihood(rows, disable_tqdm=True) for lm in (steps, prompt, some)]
        for other in results[1:]:
            for (a, greedy_a), (b, greedy_b) in zip(results[0], other):
                self.assertTrue(a < 0 and math.isclose(a, b, abs_tol=1e-3))
                self.assertEqual(greedy_a, greedy_b)
        session = steps.model.session(store="f32")
        ids = steps.tok_encode("one two three four five")
        logprobs, _ = session.feed(ids, scores=True)
        n = len(ids) - len(steps.tok_encode("one two three"))
        self.assertAlmostEqual(results[0][0][0], float(logprobs[-n:].sum()), places=3)

    def test_greedy_is_greedy(self):
        lm = self.make()
        text = lm.generate_until(requests(("one two", {"until": [], "max_gen_toks": 1})), disable_tqdm=True)[0]
        session = lm.model.session(store="f32")
        session.feed(lm.tok_encode("one two"))
        self.assertEqual(text, "".join(lm.model.session(store="f32").generate(lm.tok_encode("one two"), 1)))
        self.assertTrue(lm._loglikelihood_tokens([(None, lm.tok_encode("one two"), [session.sample()])], True)[0][1])

    def test_rolling(self):
        lm = self.make(decode=0)
        text = "one two three four " * 20
        ids = lm.tok_encode(text, add_special_tokens=False)
        self.assertGreater(len(ids), 128)
        whole, short = lm.loglikelihood_rolling(requests((text,), ("one two",)), disable_tqdm=True)
        self.assertTrue(math.isfinite(whole) and whole < short < 0)
        ids = [lm.prefix_token_id, *lm.tok_encode("one two", False)]
        logprobs, _ = lm.model.session(store="f32").feed(ids, scores=True)
        self.assertAlmostEqual(short, float(logprobs[1:].sum()), places=3)

    def test_until(self):
        lm = self.make()
        row = {"max_gen_toks": 16, "do_sample": True, "temperature": 0.9, "seed": 4}
        whole = lm.generate_until(requests(("one two", row)), disable_tqdm=True)[0]
        cut = whole[3:5]
        part = lm.generate_until(requests(("one two", {**row, "until": [cut]})), disable_tqdm=True)[0]
        self.assertEqual(part, whole[: whole.index(cut)])


if __name__ == "__main__":
    unittest.main()
