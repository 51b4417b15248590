# SPDX-License-Identifier: MIT
"""anthropic-python over the server: python -m unittest, with RUN and MODEL (a folder) set."""
import os
import unittest

import anthropic

from server import Server

TOOL = {"name": "get_weather", "description": "Returns the weather", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
HISTORY = [
    {"role": "user", "content": "What is the weather in Rome?"},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I call it.", "signature": "kvasir"},
        {"type": "tool_use", "id": "toolu_abcdefgh1", "name": "get_weather", "input": {"city": "Rome"}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_abcdefgh1", "content": [{"type": "text", "text": "sunny"}]},
        {"type": "text", "text": "And in Paris?"}]}]


class AnthropicTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("-m", os.environ["MODEL"], "--tools", "hermes")
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key="none")
        cls.model = cls.server.model()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0

    def ask(self, messages=({"role": "user", "content": "Hi"},), **o):
        o = {"max_tokens": 8, "system": "Be brief.", "extra_body": {"seed": 1}, **o}
        return {"model": self.model, "messages": list(messages), **o}

    def test_create(self):
        m = self.client.messages.create(**self.ask())
        self.assertEqual((m.type, m.role, m.model), ("message", "assistant", self.model))
        self.assertEqual(m.content[0].type, "text")
        self.assertIn(m.stop_reason, ("end_turn", "max_tokens"))
        self.assertGreater(m.usage.input_tokens + m.usage.cache_read_input_tokens, 2)
        self.assertLessEqual(m.usage.output_tokens, 8)

    def test_stream(self):
        whole = self.client.messages.create(**self.ask())
        with self.client.messages.stream(**self.ask()) as s:
            text = "".join(s.text_stream)
            final = s.get_final_message()
        self.assertEqual(text, "".join(b.text for b in whole.content))
        self.assertEqual(final.content[0].text, text)
        self.assertEqual(final.stop_reason, whole.stop_reason)

    def test_tools(self):
        m = self.client.messages.create(**self.ask(HISTORY, tools=[TOOL], tool_choice={"type": "auto"}))
        self.assertEqual(m.type, "message")

    def test_count_tokens(self):
        n = self.client.messages.count_tokens(model=self.model, messages=HISTORY, tools=[TOOL]).input_tokens
        self.assertGreater(n, self.client.messages.count_tokens(model=self.model, messages=HISTORY).input_tokens)

    def test_shortened(self):
        with self.client.messages.stream(**self.ask(max_tokens=10 ** 9, stop_sequences=["a", "e", "o"])) as s:
            final = s.get_final_message()
        self.assertEqual(final.stop_reason, "stop_sequence")
        self.assertIn(final.stop_sequence, "aeo")

    def test_errors(self):
        with self.assertRaises(anthropic.BadRequestError) as c:
            self.client.messages.create(**self.ask([{"role": "user", "content": [{"type": "document"}]}]))
        self.assertIn("messages[0].content[0]: document", str(c.exception))
        self.assertTrue(c.exception.request_id.startswith("req_"))
        with self.assertRaises(anthropic.BadRequestError) as c:
            self.client.messages.create(**self.ask([{"role": "user", "content": "a " * 300000}]))
        self.assertRegex(str(c.exception), r"prompt is too long: \d+ tokens > \d+ maximum")
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(**{**self.ask(), "model": "other"})
