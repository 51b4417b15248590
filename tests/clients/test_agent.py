# SPDX-License-Identifier: MIT
"""An agent's loop of tool calls through three APIs: each turn computes only what follows the turn before it.
python -m unittest, with RUN and MODEL (a folder) set; TURNS and TOKENS (of the last prompt, roughly) may be."""
import json
import os
import tempfile
import unittest

import anthropic
import openai

from server import Server

TURNS, TOKENS = int(os.environ.get("TURNS", 3)), int(os.environ.get("TOKENS", 900))
CHUNK = 64
TAGS = """{{ bos_token }}{% for t in tools or [] %}{{ t | tojson }}
{% endfor %}{% for m in messages %}{{ '[' + m.role + ']\n' }}{{ m.content or '' }}{% for c in m.tool_calls or [] %}
{{- '<tool_call>\n<function=' + c.function.name + '>\n' }}
{%- for name, value in c.function.arguments | items %}
{{- '<parameter=' + name + '>\n' }}{{ value if value is string else value | tojson }}{{ '\n</parameter>\n' }}
{%- endfor %}{{- '</function>\n</tool_call>' }}
{%- endfor %}{{ eos_token + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '[assistant]\n' }}{% endif %}"""
WORDS = "the rabbit ran across a field and looked at its watch before it went down a large hole under the hedge".split()


def schema(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


TEXT, NUMBER = {"type": "string", "maxLength": 12}, {"type": "integer", "minimum": 0, "maximum": 99}
TOOLS = {"read": schema(path=TEXT, line=NUMBER), "write": schema(path=TEXT, text=TEXT),
         "search": schema(words={"type": "array", "items": TEXT, "maxItems": 3}, deep={"type": "boolean"}),
         "move": schema(x=NUMBER, y=NUMBER), "paint": schema(color={"enum": ["red", "green"]}, mix={"type": "number"}),
         "stop": schema(why={"type": ["string", "null"], "maxLength": 9})}


def words(n, start):
    """About n tokens of text."""
    return " ".join(WORDS[(start + i * (1 + i // len(WORDS))) % len(WORDS)] for i in range(int(n / 1.3)))


SYSTEM, RESULT = words(TOKENS * 0.6, 0), TOKENS * 0.35 / TURNS


class Chat:
    def __init__(self, url, model, tools, strict):
        self.client, self.model, self.list = openai.OpenAI(base_url=url + "/v1", api_key="none"), model, []
        self.tools = [{"type": "function", "function": {"name": name, "parameters": s, "strict": strict}}
                      for name, s in tools.items()]
        self.list = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Begin."}]

    def turn(self, seed, stream):
        o = {"model": self.model, "messages": self.list, "tools": self.tools, "tool_choice": "required", "seed": seed,
             "parallel_tool_calls": False, "max_completion_tokens": 400, "temperature": 1}
        if stream:
            with self.client.chat.completions.stream(**o, stream_options={"include_usage": True}) as s:
                r = s.get_final_completion()
        else:
            r = self.client.chat.completions.create(**o)
        m = r.choices[0].message
        self.list.append(m.model_dump(exclude_none=True, exclude={"parsed"}))
        calls = [(c.id, c.function.name, json.loads(c.function.arguments)) for c in m.tool_calls]
        return calls, r.usage.prompt_tokens, r.usage.prompt_tokens_details.cached_tokens, r.usage.completion_tokens

    def results(self, texts):
        self.list += [{"role": "tool", "tool_call_id": i, "content": text} for i, text in texts]


class Messages:
    def __init__(self, url, model, tools, strict):
        self.client, self.model = anthropic.Anthropic(base_url=url, api_key="none"), model
        self.tools = [{"name": name, "input_schema": s, "strict": strict} for name, s in tools.items()]
        self.list = [{"role": "user", "content": "Begin."}]

    def turn(self, seed, stream):
        o = {"model": self.model, "system": SYSTEM, "messages": self.list, "tools": self.tools, "max_tokens": 400,
             "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
             "extra_body": {"seed": seed, "temperature": 1}}
        if stream:
            with self.client.messages.stream(**o) as s:
                m = s.get_final_message()
        else:
            m = self.client.messages.create(**o)
        self.list.append({"role": "assistant", "content": [b.model_dump() for b in m.content]})
        calls = [(b.id, b.name, b.input) for b in m.content if b.type == "tool_use"]
        cached = m.usage.cache_read_input_tokens
        return calls, m.usage.input_tokens + cached, cached, m.usage.output_tokens

    def results(self, texts):
        self.list.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, "content": text}
                                                      for i, text in texts]})


class Responses:
    def __init__(self, url, model, tools, strict):
        self.client, self.model = openai.OpenAI(base_url=url + "/v1", api_key="none"), model
        self.tools = [{"type": "function", "name": name, "parameters": s, "strict": strict}
                      for name, s in tools.items()]
        self.list = [{"role": "user", "content": "Begin."}]

    def turn(self, seed, stream):
        o = {"model": self.model, "instructions": SYSTEM, "input": self.list, "tools": self.tools,
             "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 400, "temperature": 1,
             "extra_body": {"seed": seed}}
        if stream:
            with self.client.responses.stream(**o) as s:
                r = s.get_final_response()
        else:
            r = self.client.responses.create(**o)
        self.list += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in r.output]
        calls = [(i.call_id, i.name, json.loads(i.arguments)) for i in r.output if i.type == "function_call"]
        return calls, r.usage.input_tokens, r.usage.input_tokens_details.cached_tokens, r.usage.output_tokens

    def results(self, texts):
        self.list += [{"type": "function_call_output", "call_id": i, "output": text} for i, text in texts]


class AgentTest(unittest.TestCase):
    """Runs every loop with two templates: calls that the server describes, and calls in tags."""

    def loop(self, api, server, stream, tools, strict):
        agent, before, sizes = api(server.url, server.model(), tools, strict), 0, []
        for i in range(TURNS):
            calls, prompt, cached, new = agent.turn(100 * stream + i, stream)
            self.assertTrue(calls)
            for _, name, arguments in calls:
                self.assertLessEqual(set(arguments), set(tools[name]["properties"]))
            # The last token is EOS, and the row of the token before it may be missing.
            self.assertGreaterEqual(cached, before - CHUNK - 1, f"turn {i + 1}: {prompt} tokens, {sizes}")
            sizes.append((prompt, cached, new))
            before = prompt + new
            agent.results([(id, words(RESULT / len(calls), i)) for id, _, _ in calls])
        if "TURNS" in os.environ:
            print(f"{api.__name__}, stream {stream}: prompt, cached, new tokens of each turn: {sizes}", flush=True)
        agent.client.close()

    def loops(self, server, tools, strict):
        try:
            for api in (Chat, Messages, Responses):
                for stream in (False, True):
                    with self.subTest(api=api.__name__, stream=stream):
                        self.loop(api, server, stream, tools, strict)
        finally:
            self.assertEqual(server.stop(), 0)

    def server(self, *options):
        return Server("-m", os.environ["MODEL"], "--ctx", str(max(8192, TOKENS * 3 // 2)), *options)

    def test_described(self):
        self.loops(self.server("--tools", "hermes"), TOOLS, True)

    def test_tags(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as f:
            f.write(TAGS)
            f.flush()
            self.loops(self.server("--template", f.name), {name: schema() for name in TOOLS}, False)
