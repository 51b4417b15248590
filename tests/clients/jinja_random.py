# SPDX-License-Identifier: MIT
"""Writes templates from a small random grammar and what transformers' environment renders, for `test_jinja FILE`.

usage: jinja_random.py OUT [COUNT] [SEED]

The environment is set up here as transformers does, so that only jinja2 is needed."""
import json
import random
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

VARIABLES = {
    "s": " Hi <b> ", "u": "Grüße 你", "e": "", "n": 3, "m": -2, "f": 2.5, "t": True, "no": None,
    "l": [3, 1, 2], "w": ["b", "A", "c"], "d": {"b": 1, "a": "x", "k": [1, None]},
    "rows": [{"role": "user", "n": 1}, {"role": "tool"}, {"role": "user", "n": 0}],
}
NAMES = [*VARIABLES, "x", "y", "missing"]
FILTERS = ["trim", "upper", "lower", "capitalize", "title", "length", "string", "list", "first", "last", "join", "join('-')",
           "default('z')", "default('z', true)", "tojson", "tojson(indent=2)", "int", "float", "abs", "sort", "reverse|list",
           "unique|list", "min", "max", "sum", "replace('a', 'bb')", "indent(2)", "dictsort", "items|list", "round", "e", "safe",
           "map('upper')|list", "select('string')|list", "selectattr('n')|list", "map(attribute='role')|join(',')", "trim('x')"]
TESTS = ["defined", "none", "string", "number", "mapping", "sequence", "iterable", "boolean", "integer", "odd", "in l", "eq 3",
         "not defined", "not none", "not string", "divisibleby 2", "upper", "true", "undefined"]
METHODS = ["strip()", "split()", "split('i')", "rsplit(none, 1)", "upper()", "startswith('G')", "get('b')", "get('q', 4)",
           "items()|list", "keys()|list", "replace('i', '')", "find('b')", "count('i')", "splitlines()", "title()", "values()|list",
           "join(w)", "format(1, 2)", "endswith(('x', ' '))", "lstrip(' H')", "isdigit()", "append(1)", "index(1)", "role", "n", "a"]
LITERALS = ["1", "0", "-1", "2.5", "'a'", "'a i'", "''", "true", "none", "[1, 2]", "[]", "{'a': 1}", "(1, 'b')", "'%s|%s'", "'{}'"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or", "+", "~", "and", "or"]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("render"), [], [], body).set_lineno(line)

    def render(self, caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


class Grammar:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def expression(self, depth=3):
        r = self.r
        kind = r.randrange(12) if depth else r.randrange(2)
        if kind == 0:
            return r.choice(LITERALS)
        if kind <= 3:
            return r.choice(NAMES)
        inner = lambda: self.expression(depth - 1)
        if kind == 4:
            return f"{inner()} {r.choice(OPERATORS)} {inner()}"
        if kind == 5:
            return f"({inner()} {r.choice(OPERATORS)} {inner()})"
        if kind <= 7:
            return f"{inner()}|{r.choice(FILTERS)}"
        if kind == 8:
            return f"{r.choice(NAMES)}.{r.choice(METHODS)}"
        if kind == 9:
            return f"({inner()} is {r.choice(TESTS)})"
        if kind == 10:
            return f"({inner()} if {inner()} else {inner()})"
        return f"{r.choice(NAMES)}[{r.choice(['0', '-1', '1:', '::-1', ':2', chr(39) + 'a' + chr(39), 'n'])}]"

    def block(self, depth=2):
        r = self.r
        sign = lambda: r.choice(["", "", "", "-", "+"])
        tag = lambda text: "{%" + sign() + " " + text + " " + sign() + "%}" + r.choice(["", "", "\n", " "])
        kind = r.randrange(9) if depth else r.randrange(3)
        body = lambda: "".join(self.block(depth - 1) for _ in range(r.randrange(1, 3)))
        if kind == 0:
            return r.choice(["text ", "\n", "  ", "a\n  b", "{# c #}", "{#- c -#}\n", "é"])
        if kind <= 2:
            end = r.choice(["", "-"])
            return "{{" + r.choice(["", "-"]) + " " + self.expression() + " " + end + "}}"
        if kind == 3:
            return tag("if " + self.expression(2)) + body() + tag("else") + body() + tag("endif")
        if kind == 4:
            extra = r.choice(["", "{{ loop.index }}{{ loop.last }}", tag("if loop.first") + tag("continue") + tag("endif"),
                              "{{ loop.nextitem }}", "{{ loop.length }}"])
            condition = r.choice(["", "", " if x", " if x != 1"])
            return tag(f"for x in {self.expression(1)}{condition}") + extra + body() + tag("else") + "E" + tag("endfor")
        if kind == 5:
            return tag(f"set {r.choice('xy')} = {self.expression()}")
        if kind == 6:
            return tag("set y") + body() + tag("endset")
        if kind == 7:
            return tag("macro g(x, y=2)") + body() + tag("endmacro") + "{{ g(" + self.expression(1) + ") }}"
        return r.choice([tag("filter upper") + body() + tag("endfilter"), tag("generation") + body() + tag("endgeneration"),
                         tag("set ns = namespace(a=0)") + tag("for z in l") + tag("set ns.a = ns.a + z") + tag("endfor") + "{{ ns.a }}"])

    def template(self):
        return "".join(self.block() for _ in range(self.r.randrange(1, 4)))


def expected(env, template):
    try:
        return {"text": env.from_string(template).render(**json.loads(json.dumps(VARIABLES)))}
    except Exception as error:  # the classes are Python's, jinja2's and those of the sandbox
        return {"fails": True, "why": str(error)}


def main():
    out, count, seed = sys.argv[1], int((sys.argv[2:] or ["1500"])[0]), int((sys.argv[3:] or ["1"])[0])
    grammar, env = Grammar(seed), environment()
    with open(out, "w", encoding="utf-8") as f:
        print(json.dumps({"variables": VARIABLES}), file=f)
        for _ in range(count):
            template = grammar.template()
            line = {"template": template, **expected(env, template)}
            # Python's integers have no limit, and the text of an object has its address.
            text = line.get("text", "")
            if "object at 0x" in text or "<built-in" in text or len(text) > 100000:
                continue
            print(json.dumps(line), file=f)


if __name__ == "__main__":
    main()
