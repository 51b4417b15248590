# SPDX-License-Identifier: MIT
"""openai-python over the server: python -m unittest, with RUN and MODEL (a folder) set."""
import asyncio
import math
import os
import unittest

import openai

from server import Server

LONG = "Alice was beginning to get very tired of sitting by her sister on the bank"


class OpenAITest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("-m", os.environ["MODEL"], "--alias", "small=streaming:budget=16@decode=4", "--per-client", "16")
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none")
        cls.model = cls.server.model()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0

    def complete(self, prompt=LONG, **o):
        o = {"max_tokens": 8, "temperature": 0, **o}
        return self.client.completions.create(model=self.model, prompt=prompt, **o)

    def chat(self, **o):
        o = {"max_tokens": 8, "temperature": 0, **o}
        return self.client.chat.completions.create(model=self.model, messages=[{"role": "user", "content": "Hi"}], **o)

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], [self.model, "small"])
        self.assertEqual(self.client.models.retrieve("small").owned_by, "kvasir")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_prompts(self):
        text = self.complete().choices[0].text
        ids = self.client.post("../tokenize", body={"prompt": LONG}, cast_to=dict)["tokens"]
        self.assertEqual(self.complete(ids).choices[0].text, text)
        for prompts in ([LONG, LONG], [ids, ids]):
            r = self.complete(prompts)
            self.assertEqual([(c.index, c.text) for c in r.choices], [(0, text), (1, text)])
            self.assertEqual(r.usage.prompt_tokens, 2 * len(ids))
            self.assertEqual(r.usage.total_tokens, 2 * len(ids) + r.usage.completion_tokens)

    def test_sampling(self):
        o = {"temperature": 1, "seed": 5, "max_tokens": 24, "extra_body": {"ignore_eos": True}}
        whole = self.complete(**o).choices[0].text
        self.assertEqual(self.complete(**o).choices[0].text, whole)
        both = self.complete(n=2, **o).choices
        self.assertEqual(both[0].text, whole)
        self.assertNotEqual(both[1].text, whole)
        cut = self.complete(stop=["never there", whole[4:7]], **o).choices[0]
        self.assertEqual((cut.text, cut.finish_reason), (whole[: whole.index(whole[4:7])], "stop"))
        self.assertEqual(self.complete(**o).choices[0].finish_reason, "length")

    def test_logprobs(self):
        c = self.complete(max_tokens=0, echo=True, logprobs=2).choices[0]
        self.assertEqual("".join(c.logprobs.tokens[-len(c.logprobs.top_logprobs) + 1 :]).strip(), LONG)
        self.assertEqual((c.text.strip(), c.logprobs.token_logprobs[0]), (LONG, None))
        for own, top, token in list(zip(c.logprobs.token_logprobs, c.logprobs.top_logprobs, c.logprobs.tokens))[1:]:
            self.assertEqual(top[token], own)
            self.assertTrue(own <= max(top.values()) <= 0 and len(top) in (2, 3))
        said = self.complete(logprobs=1).choices[0].logprobs
        self.assertEqual(said.token_logprobs, [max(t.values()) for t in said.top_logprobs])
        chat = self.chat(logprobs=True, top_logprobs=3).choices[0]
        self.assertEqual(len(chat.logprobs.content[0].top_logprobs), 3)
        self.assertEqual(chat.logprobs.content[0].logprob, chat.logprobs.content[0].top_logprobs[0].logprob)
        self.assertLessEqual(sum(math.exp(t.logprob) for t in chat.logprobs.content[0].top_logprobs), 1)

    def test_stream(self):
        whole = self.chat(max_tokens=16).choices[0]
        chunks = list(self.chat(max_tokens=16, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks[:-1]), whole.message.content)
        self.assertEqual(chunks[-2].choices[0].finish_reason, whole.finish_reason)
        self.assertEqual((chunks[-1].choices, len({c.id for c in chunks})), ([], 1))
        self.assertLessEqual(chunks[-1].usage.completion_tokens, 16)
        self.assertIn("attn", chunks[-1].model_extra["kvasir"])
        messages = [{"role": "developer", "content": "Be brief"},
                    {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
        with self.client.chat.completions.stream(model=self.model, messages=messages, max_tokens=4) as s:
            self.assertTrue([e for e in s if e.type == "chunk"])
            self.assertIn(s.current_completion_snapshot.choices[0].finish_reason, ("stop", "length"))

    def test_strategies(self):
        r = self.complete(extra_body={"attn": "quest", "budget": 64, "skip": 0, "decode": 3, "colour": 1})
        self.assertTrue(r.model_extra["kvasir"]["attn"].startswith("quest"))
        self.assertEqual(r.model_extra["kvasir"]["ignored"], ["colour"])
        self.assertFalse(r.model_extra["kvasir"]["exact_prompt"])
        r = self.client.completions.create(model="small", prompt=LONG, max_tokens=2)
        self.assertTrue(r.model_extra["kvasir"]["attn"].startswith("streaming"))

    def test_cancel(self):
        before = self.server.metric("kvasir_cancelled_total")
        s = self.complete(n=16, max_tokens=400, stream=True, extra_body={"ignore_eos": True})
        next(iter(s))
        s.close()
        self.assertTrue(self.server.idle())
        self.assertEqual(self.server.metric("kvasir_cancelled_total"), before + 1)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(max_tokens=10**6)
        self.assertEqual((caught.exception.code, caught.exception.param), ("context_length_exceeded", "prompt"))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(logit_bias={"1": 5})
        self.assertEqual((caught.exception.type, caught.exception.param), ("invalid_request_error", "logit_bias"))

    def test_never_fits(self):
        """The client does not ask again."""
        server = Server("-m", os.environ["MODEL"], "--memory", "1k")
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
            with self.assertRaises(openai.InternalServerError) as caught:
                client.completions.create(model=self.model, prompt=LONG, max_tokens=100)
        self.assertEqual((caught.exception.status_code, caught.exception.code), (503, "memory_exceeded"))
        self.assertEqual(server.metric('kvasir_requests_total{endpoint="/v1/completions",status="503"}'), 1)
        self.assertEqual(server.stop(), 0)

    def test_many(self):
        """64 clients at once: answered, or told to come again."""
        o = {"max_tokens": 200, "temperature": 0, "extra_body": {"ignore_eos": True}}

        async def ask(client, i):
            try:
                r = await client.completions.create(model=self.model, prompt=LONG, **o)
                return r.choices[0].text
            except openai.RateLimitError as e:
                return e.code

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0) as client:
                return await asyncio.gather(*(ask(client, i) for i in range(64)))

        alone = self.complete(**o).choices[0].text
        said = asyncio.run(all_of_them())
        self.assertEqual(set(said), {alone, "queue_full"})
        self.assertTrue(self.server.idle())

    def test_killed(self):
        """A truncated response does not look complete."""
        server = Server("-m", os.environ["MODEL"])
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
            s = client.completions.create(model=self.model, prompt=LONG, n=16, max_tokens=400, stream=True,
                                          extra_body={"ignore_eos": True})
            parts = iter(s)
            next(parts)
            server.kill()
            with self.assertRaises((openai.APIConnectionError, openai.APIError)):
                for _ in parts:
                    pass


if __name__ == "__main__":
    unittest.main()
