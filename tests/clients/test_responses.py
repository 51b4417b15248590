# SPDX-License-Identifier: MIT
"""The Responses API of openai-python over the server: python -m unittest, with RUN and MODEL (a folder) set."""
import os
import unittest

import openai

from server import Server

TOOL = {"type": "function", "name": "get_weather", "description": "Returns the weather", "strict": False,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
HISTORY = [
    {"role": "user", "content": [{"type": "input_text", "text": "What is the weather in Rome?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "I call it."}]},
    {"type": "function_call", "call_id": "abcdefgh1", "name": "get_weather", "arguments": "{\"city\": \"Rome\"}"},
    {"type": "function_call_output", "call_id": "abcdefgh1", "output": "sunny"},
    {"role": "user", "content": "And in Paris?"}]


class ResponsesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("-m", os.environ["MODEL"], "--tools", "hermes")
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none")
        cls.model = cls.server.model()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0

    def ask(self, **o):
        return {"model": self.model, "input": "Hi", "instructions": "Be brief.", "max_output_tokens": 16,
                "extra_body": {"seed": 1}, **o}

    def test_create(self):
        r = self.client.responses.create(**self.ask(max_output_tokens=4))
        self.assertEqual((r.object, r.status, r.incomplete_details.reason), ("response", "incomplete",
                                                                            "max_output_tokens"))
        self.assertEqual(r.instructions, "Be brief.")
        self.assertEqual(r.usage.output_tokens, 4)
        self.assertTrue(r.output_text)

    def test_stream(self):
        whole = self.client.responses.create(**self.ask())
        with self.client.responses.stream(**self.ask()) as s:
            events = list(s)
        final = events[-1].response
        self.assertEqual(final.output_text, whole.output_text)
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        self.assertEqual([e.type for e in events[:4]], ["response.created", "response.in_progress",
                                                        "response.output_item.added", "response.content_part.added"])
        self.assertIn(events[-1].type, ("response.completed", "response.incomplete"))

    def test_tools(self):
        tools = [TOOL, {"type": "custom", "name": "shell"}, {"type": "web_search"}]
        r = self.client.responses.create(**self.ask(input=HISTORY, tools=tools))
        self.assertEqual(r.model_extra["kvasir"]["ignored"], ["web_search"])
        self.assertEqual([t.type for t in r.tools], ["function", "custom", "web_search"])

    def test_input_tokens(self):
        count = self.client.responses.input_tokens.count
        self.assertGreater(count(model=self.model, input=HISTORY, tools=[TOOL]).input_tokens,
                           count(model=self.model, input=HISTORY).input_tokens)

    def test_refused(self):
        for o in ({"previous_response_id": "resp_1"}, {"background": True}, {"truncation": "auto"},
                  {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}):
            with self.assertRaises(openai.BadRequestError):
                self.client.responses.create(**self.ask(**o))
