# SPDX-License-Identifier: MIT
"""Tests of the package with the library: python -m unittest discover python/tests (needs KVASIR_LIBRARY and SRCDIR)."""
import gc
import os
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

import numpy as np

import kvasir

MODELS = Path(os.environ["SRCDIR"]) / "tests/data/models"
FOLDER = MODELS / "llama31-f32-tied"
TEXT = "one two three four five six seven"


def load(**options):
    return kvasir.Model.from_pretrained(FOLDER, **{"threads": 1, "gemm": "builtin", "chunk": 16, "ctx": 256, **options})


class ModelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = load()

    def test_info(self):
        info = self.model.info
        self.assertEqual(info["architecture"], "LlamaForCausalLM")
        self.assertEqual(info["ctx"], 256)
        self.assertIn("llama31-f32-tied", repr(self.model))
        self.assertEqual(kvasir.__version__.count("."), 2)

    def test_text(self):
        for text in ["", "Hello, wörld: 1 + 2", "x" * 2000, "\0 in it"]:
            self.assertEqual(self.model.decode(self.model.encode(text, bos=False)), text)
        self.assertEqual(self.model.encode("a", bos=True)[0], self.model.info["bos"])

    def test_chat(self):
        ids = self.model.chat([{"role": "user", "content": "Hi"}], template="llama3")
        self.assertGreater(len(ids), 3)
        with self.assertRaises(kvasir.KvasirError) as caught:
            self.model.chat([{"role": "user", "content": "Hi"}], template="nonsense")
        text = "{{ messages[0].content }}{{ tools[0].name }}{{ x | tojson }}"
        ids = self.model.chat([{"role": "user", "content": None}], template=text, tools=[{"name": "f"}], x=False)
        self.assertEqual(self.model.decode(ids).strip(), "Nonef{}".format("false"))
        self.assertEqual(caught.exception.status, "USAGE")

    def test_refusals(self):
        with self.assertRaises(kvasir.KvasirError) as caught:
            self.model.session("questt")
        self.assertEqual(caught.exception.status, "USAGE")
        self.assertIn("quest", str(caught.exception))
        with self.assertRaises(kvasir.KvasirError):
            kvasir.Model.from_pretrained("/nowhere")
        s = self.model.session()
        with self.assertRaises(kvasir.KvasirError):
            s.logits
        with self.assertRaises(kvasir.KvasirError):
            s.feed([10**6])
        with self.assertRaises(ValueError):
            s.feed([[1, 2]])
        with self.assertRaises(ValueError):
            kvasir.decode([s], [1, 2])

    def test_generate_is_the_program(self):
        out = subprocess.run(
            [os.environ["RUN"], "generate", "-m", FOLDER, "-p", TEXT, "-n", "24", "--temp", "0.7", "--top-p", "1",
             "--seed", "1", "--attn", "quest:budget=32:page=4", "--gemm", "builtin", "--threads", "1", "--chunk", "16",
             "--save", "saved.kv", "--quiet"],
            capture_output=True, check=True, cwd=self.folder())
        session = self.model.session("quest:budget=32:page=4")
        ids = self.model.encode(TEXT)
        session.feed(ids)
        said = list(session.generate_tokens(None, 24, temperature=0.7, seed=1))
        self.assertEqual(self.model.decode(said).strip(), out.stdout.decode("utf-8", "replace").strip())
        loaded = self.model.load_session(self.folder() / "saved.kv")
        self.assertEqual(loaded.tokens[: len(ids) + 23], ids + said[:23])

    def folder(self):
        if not hasattr(ModelTest, "_folder"):
            ModelTest._folder = tempfile.TemporaryDirectory()
        return Path(ModelTest._folder.name)

    def test_stop(self):
        whole = "".join(self.model.session().generate(TEXT, 20, temperature=0.9, seed=5))
        self.assertGreater(len(whole), 8)
        cut = whole[4:6]
        pieces = "".join(self.model.session().generate(TEXT, 20, stop=[cut], temperature=0.9, seed=5))
        self.assertEqual(pieces, whole[: whole.index(cut)])

    def test_closing_stops(self):
        session = self.model.session()
        g = session.generate_tokens(TEXT, 100, stop_at_end=False)
        for _ in range(3):
            next(g)
        before = len(session)
        g.close()
        self.assertEqual(len(session), before)

    def test_finish_reason(self):
        session = self.model.session(limit=64)
        list(session.generate_tokens(TEXT, 2, stop_at_end=False))
        self.assertEqual(session.finish_reason, "length")
        tokens = list(session.generate_tokens(None, 100, stop_at_end=False))
        self.assertEqual(session.finish_reason, "context")
        self.assertEqual(len(session), 64)
        self.assertGreater(len(tokens), 1)
        text = "".join(self.model.session().generate(TEXT, 20, temperature=0.9, seed=5))
        session = self.model.session()
        list(session.generate(TEXT, 20, stop=text[4:6], temperature=0.9, seed=5))
        self.assertEqual(session.finish_reason, "stop")

    def test_greedy(self):
        session = self.model.session()
        session.feed(TEXT)
        best = session.sample()
        self.assertEqual({session.sample(temperature=2, top_p=0, seed=i) for i in range(20)}, {best})
        for name, value in [("temperature", -1), ("top_p", 2), ("min_p", -1), ("repeat_penalty", 20), ("repeat_penalty", 0),
                            ("presence_penalty", -3), ("frequency_penalty", 2.5), ("top_k", -1), ("seed", -1), ("seed", 2**63), ("seed", 2**64)]:
            with self.assertRaisesRegex(kvasir.KvasirError, f"^{name} {value}: must be"):
                session.sample(**{name: value})

    def test_logits(self):
        session = self.model.session()
        session.feed(TEXT)
        logits = session.logits
        self.assertEqual(logits.shape, (self.model.info["vocab"],))
        self.assertFalse(logits.flags.writeable)
        self.assertEqual(session.sample(), int(np.argmax(logits)))
        with self.assertRaises(ValueError):
            logits[0] = 1
        kept = logits[3:]
        want = kept.copy()
        del session, logits
        gc.collect()
        np.testing.assert_array_equal(kept, want)

    def test_scores(self):
        ids = self.model.encode(TEXT)
        session, steps = self.model.session(store="f32"), self.model.session(store="f32")
        logprobs, best = session.feed(ids, scores=True)
        self.assertTrue(np.isnan(logprobs[0]) and best[0] == -1)
        for i, token in enumerate(ids):
            if i:
                x = steps.logits.astype(np.float64)
                x -= x.max()
                self.assertAlmostEqual(logprobs[i], x[token] - np.log(np.exp(x).sum()), places=4)
                self.assertEqual(best[i], int(np.argmax(x)))
            steps.feed([token], steps=True)

    def test_fork_and_rewind(self):
        session = self.model.session()
        session.feed(TEXT)
        fork = session.fork()
        kvasir.decode([session, fork], [5, 5])
        np.testing.assert_array_equal(session.logits, fork.logits)
        kvasir.decode([session], [6])
        session.rewind(len(fork))
        kvasir.decode([session, fork], [7, 7])
        np.testing.assert_array_equal(session.logits, fork.logits)
        self.assertEqual(session.tokens, fork.tokens)

    def test_selection(self):
        session = self.model.session("quest:budget=16:page=4:skip=0")
        session.watch()
        session.feed(np.arange(100) % 200)
        session.feed([1, 2], steps=True)
        for layer in range(self.model.info["layers"]):
            for head in range(self.model.info["heads"]):
                read = session.selection(layer, head)
                self.assertTrue((np.diff(read) > 0).all() and read[-1] == 101 and 0 < len(read) <= 20)
        stats = session.stats
        self.assertEqual((stats["length"], stats["steps"]), (102, 2))
        self.assertIn("page=4", stats["strategy"])
        self.assertGreater(self.model.plan("full", limit=1000)["kv"], 0)

    def test_threads(self):
        def work(i):
            session = self.model.session()
            session.feed(TEXT)
            out[i] = list(session.generate_tokens(None, 8, stop_at_end=False))

        out = [None] * 4
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertTrue(out[0] and all(o == out[0] for o in out))


class OptionsTest(unittest.TestCase):
    PROMPT = np.arange(100) % 13 + 20

    def generate(self, model, **sampling):
        session = model.session()
        said = list(session.generate_tokens(self.PROMPT, 40, stop_at_end=False, **sampling))
        return said, session

    def test_drafts(self):
        model = load()
        for draft in ["ngram", "quest:budget=32:page=4", "ngram,fier:budget=32"]:
            drafts = load(draft=draft)
            for sampling in [{}, {"temperature": 0.8, "seed": 3}]:
                (want, a), (said, b) = self.generate(model, **sampling), self.generate(drafts, **sampling)
                self.assertEqual(said, want)
                np.testing.assert_array_equal(b.logits, a.logits)
                self.assertGreater(b.stats["drafted"], 0)
                self.assertEqual(a.stats["drafted"], 0)
            fork = b.fork()
            kvasir.decode([b, fork], [5, 5])
            np.testing.assert_array_equal(b.logits, fork.logits)
            with self.assertRaises(kvasir.KvasirError) as caught:
                drafts.session("h2o:budget=16")
            self.assertEqual(caught.exception.status, "UNSUPPORTED")

    def test_prefix_cache(self):
        want, session = self.generate(load())
        with tempfile.TemporaryDirectory() as folder:
            for known, options in [(0, {"prefix_ram": 1 << 24}), (0, {"prefix_disk": folder}),
                                   (96, {"prefix_disk": folder, "draft": "ngram"})]:
                seen = []
                model = load(prefix_min=16, progress=lambda done, _: seen.append(done), **options)
                for known in [known, 96]:
                    seen.clear()
                    said, cached = self.generate(model)
                    self.assertEqual(said, want)
                    self.assertEqual(cached.stats["prefix_tokens"], known)
                    self.assertEqual(seen, [*range(known + 16, 97, 16), 100])
                del cached, model  # before the folder is opened again
                gc.collect()

    def test_program_prefix(self):
        """Uses a prompt that the program cached in a folder."""
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o700)
            text = " ".join(str(i) for i in range(60))
            out = subprocess.run(
                [os.environ["RUN"], "generate", "-m", FOLDER, "-p", text, "-n", "12", "--temp", "0", "--gemm", "builtin",
                 "--threads", "1", "--chunk", "16", "--ctx", "256", "--prefix-disk", folder, "--prefix-min", "16",
                 "--quiet"], capture_output=True, check=True)
            session = load(prefix_disk=folder, prefix_min=16).session()
            ids = session.model.encode(text)
            said = list(session.generate_tokens(ids, 12))
            self.assertEqual(session.stats["prefix_tokens"], (len(ids) - 1) // 16 * 16)
            self.assertEqual(session.model.decode(said).strip(), out.stdout.decode("utf-8", "replace").strip())


class CallbackTest(unittest.TestCase):
    def test_log_and_progress(self):
        lines, seen = [], []
        model = load(log=lambda level, line: lines.append((level, line)),
                     progress=lambda done, total: seen.append((done, total)))
        self.assertEqual(len(lines), 1)
        self.assertIn("Llama", lines[0][1])
        model.session().feed(list(range(40)))
        self.assertEqual(seen, [(16, 40), (32, 40), (40, 40)])

    def test_false_stops(self):
        model = load(progress=lambda done, total: done < 32)
        session = model.session()
        with self.assertRaises(kvasir.KvasirError) as caught:
            session.feed(list(range(40)))
        self.assertEqual(caught.exception.status, "INTERRUPTED")
        self.assertEqual(len(session), 0)

    def test_exceptions_come_through(self):
        def fail(*_):
            raise ZeroDivisionError("in a callback")

        model = load(progress=fail)
        session = model.session()
        with self.assertRaises(ZeroDivisionError):
            session.feed(list(range(40)))
        self.assertEqual(len(session), 0)
        with self.assertRaises(ZeroDivisionError):
            load(log=fail)


if __name__ == "__main__":
    unittest.main()
