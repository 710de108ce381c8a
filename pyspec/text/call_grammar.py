"""Languages of calls in the form of a model family.

An expression is built from the family's marks and the JSON schemas of the parameters. A mark that is one token of the vocabulary
is demanded as that token, so that the model does not spell it out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pyspec.grammar.languages import Language, literal
from pyspec.grammar.schemas import json_expression, part_of
from pyspec.text.calls import BareCalls, CallForm, NamedCalls, ObjectCalls, TaggedCalls
from pyspec.text.notation import MARKS, Notation, Start
from pyspec.text.parts import properties_of
from pyspec.text.stream import any_of, types_of

Functions = Mapping[str, Any]  # schemas of parameters by function name, as of `tool_schema`
TokenOf = Callable[[str], int | None]  # returns the token of a mark, None if it is not a single one
_NEWLINE = '"\\n"?'
_GAP = "(/[ \\n]{1,3}/)?"

_IDS = {"#": "/[0-9]{1,2}/", "@": "/[a-zA-Z0-9]{9}/"}  # ids by their sign in `NamedCalls.written`
ValueWriter = Callable[[str, Any], str]
"""Makes the expression of an argument from its key and its schema."""


class AnswerGrammar:
    """Writes the language of one answer as Lark rules. Its rules add up, so each object makes one language.

    notation: how the model writes. token_of: None to spell marks as characters. start: where the answer begins: inside reasoning,
    which then comes first, behind it, or free to reason. many: whether several calls are allowed.
    """

    def __init__(
        self,
        notation: Notation,
        token_of: TokenOf | None = None,
        *,
        start: Start = "free",
        many: bool = True,
    ) -> None:
        self._notation, self._token_of = notation, token_of
        self._start, self._many = start, many
        self._rules: dict[str, str] = {}
        self._untils: dict[str, str] = {}

    def calls(self, functions: Functions) -> Language:
        """Return the language of an answer that is one call or several."""
        calls = self._any_calls(functions)
        return Language(f"{self._reasoning_first()} {calls}".strip(), self._written)

    def content_or_calls(self, content: Language, functions: Functions) -> Language:
        """Return the language of an answer that is either such content, or calls."""
        calls = self._rule("calls", self._any_calls(functions))
        body, first = self._content(content), self._reasoning_first()
        return content.within(f"{first} ( {body} | {calls} )".strip(), self._written)

    def lazy(self, functions: Functions) -> tuple[Language, str] | None:
        """Return a language that begins with the opening mark of calls, and the mark; None if calls have no mark."""
        form = self._notation.calls
        if self._notation.channels or isinstance(form, BareCalls):
            return None
        calls = self._any_calls(functions)
        return Language(calls, self._written), form.opens[0]

    def after_reasoning(self, content: Language) -> Language:
        """Let reasoning come before content. A caller's own grammar that contains the marks itself is returned unchanged."""
        reasoning = self._notation.reasoning
        marks = reasoning.close if reasoning else self._notation.marks(tools=False)
        if not marks or any(mark in content.source for mark in marks):
            return content
        first = self._reasoning_first()
        return content.within(f"{first} {self._content(content)}", self._written)

    @property
    def _written(self) -> str:
        return "".join(f"{name}: {body}\n" for name, body in self._rules.items())

    def _rule(self, name: str, body: str) -> str:
        self._rules[name] = body
        return name

    def _mark(self, text: str) -> str:
        """Return an expression for a mark: its token, or its characters; empty for a mark that the family lacks."""
        token = self._token_of(text) if self._token_of and text else None
        if token is not None:
            return f"<[{token}]>"
        return literal(text) if text else ""

    def _marks(self, text: str, known: tuple[str, ...]) -> str:
        """Return an expression for a text that contains marks."""
        pieces = re.split(f"({any_of(known).pattern})", text)
        return " ".join(
            self._mark(piece) if piece in known else literal(piece) for piece in pieces if piece
        )

    def _until(self, mark: str) -> str:
        """Return an expression for any text up to a mark, and the mark.

        If the mark is a token, the same characters as ordinary text do not end it.
        """
        token = self._token_of(mark) if self._token_of else None
        if token is not None:
            return f"<[^{token}]>* <[{token}]>"
        name = self._untils.setdefault(mark, f"until{len(self._untils)}")
        self._rules[f"{name}[suffix={literal(mark)}]"] = "/(?s:.*)/"
        return name

    def _content(self, content: Language) -> str:
        body = self._rule("content", content.start)
        if not self._notation.channels:
            return body
        return f"{self._marks('<|channel|>final<|message|>', MARKS)} {body}"

    def _reasoning_first(self) -> str:
        """Return an expression for reasoning before the answer: optional, or required if the prompt has begun it."""
        if self._notation.channels:
            before = self._marks("<|channel|>analysis<|message|>", MARKS)
            behind = self._marks("<|start|>assistant", MARKS)
            return f"( {before} {self._until('<|end|>')} {behind} )?"
        reasoning = self._notation.reasoning
        if reasoning is None or self._start == "behind":
            return ""
        ended = f"{self._until(reasoning.close[0])} {_GAP}"
        return ended if self._start == "inside" else f"( {self._mark(reasoning.open[0])} {ended} )?"

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _any_calls(self, functions: Functions) -> str:
        """Return an expression for calls in the family's form."""
        form = self._notation.calls
        if self._notation.channels:
            return self._in_channels(functions)
        if isinstance(form, ObjectCalls):
            return self._objects(form, functions)
        if isinstance(form, NamedCalls):
            return self._named(form, functions)
        if isinstance(form, TaggedCalls):
            return self._tagged(form, functions)
        return self._python(form, functions)

    def _each(self, functions: Functions, write: Callable[[str, Any, int], str]) -> str:
        """Return an expression for a call of any function. write: makes one from a name, a schema and its number."""
        ways = [
            self._rule(f"call{i}", write(name, schema, i))
            for i, (name, schema) in enumerate(functions.items())
        ]
        return self._rule("call", " | ".join(ways))

    def _several(self, call: str, between: str) -> str:
        return f"{call} ( {between} {call} )*" if self._many else call

    def _objects(self, form: ObjectCalls, functions: Functions) -> str:
        def write(name: str, schema: Any, i: int) -> str:
            inside = {"$id": f"urn:call:{i}", **schema}  # its references begin there
            properties = (
                {name: inside}
                if form.keyed
                else {form.name: {"const": name}, form.arguments: inside}
            )
            return json_expression({
                "type": "object", "properties": properties, "required": [*properties], "additionalProperties": False
            })  # fmt: skip

        call = self._each(functions, write)
        if isinstance(form, BareCalls):
            return self._several(call, literal("; "))
        first, last = self._mark(form.open), self._mark(form.close)
        if form.listed:
            listed = self._several(call, '"," " "?')
            return f'{first} " "? "[" {_NEWLINE} {listed} {_NEWLINE} "]" {last}'
        one = self._rule("one", f"{first} {_NEWLINE} {call} {_NEWLINE} {last}")
        return self._several(one, _NEWLINE)

    def _named(self, form: NamedCalls, functions: Functions) -> str:
        def write(name: str, schema: Any, i: int) -> str:
            sign = next((sign for sign in _IDS if sign in form.written), "#")
            before, sign, behind = form.written.partition(sign)
            head = self._marks(before.replace("NAME", name), form.marks)
            if sign:
                head += f" {_IDS[sign]} {self._marks(behind.replace('NAME', name), form.marks)}"
            fenced = form.behind and form.behind in form.written
            fence = literal(f"\n{form.behind}") if fenced else ""
            made = self._quoted(form.quote, schema, i) if form.quote else json_expression(schema)
            return f"{head} {self._rule(f'args{i}', made)} {fence} {self._mark(form.close)}"

        call = self._each(functions, write)
        calls = self._several(call, _NEWLINE)
        begin, end = map(self._mark, form.section)
        return f"{begin} {_NEWLINE} {calls} {_NEWLINE} {end}" if begin else calls

    def _quoted(self, mark: str, schema: Any, i: int) -> str:
        """Return an expression for the i-th function's object whose texts are between marks and whose keys are bare."""
        text = self._rule("text", f"{self._mark(mark)} {self._until(mark)}")
        pair = self._rule("pair", '( text | /[a-zA-Z_][a-zA-Z0-9_]*/ ) ":" value')
        self._rule("object", f'"{{" ( {pair} ( "," {pair} )* )? "}}"')
        self._rule("list", '"[" ( value ( "," value )* )? "]"')
        self._rule("number", r"/-?[0-9]+(\.[0-9]+)?/")
        self._rule("value", f'{text} | object | list | number | "true" | "false" | "null"')
        rules = {
            "string": "text", "integer": "number", "number": "number", "array": "list", "object": "object",
            "boolean": '( "true" | "false" )', "null": '"null"',
        }  # fmt: skip

        def argument(key: str, schema: Any) -> str:
            types = types_of(schema) & rules.keys()
            values = " | ".join(rules[kind] for kind in sorted(types)) or "value"
            return f"{literal(key + ':')} ( {values} )"

        pairs = self._arguments(f"pairs{i}", schema, argument, between='","')
        return f'"{{" {pairs} "}}"'

    def _in_channels(self, functions: Functions) -> str:
        def write(name: str, schema: Any, _i: int) -> str:
            head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
            return f"{self._marks(head, MARKS)} {json_expression(schema)}"

        return self._each(functions, write)

    def _arguments(self, rule: str, schema: Any, write: ValueWriter, between: str = "") -> str:
        """Return an expression for the arguments in order: all required ones, and any of the others."""
        known = properties_of(schema)
        required = schema.get("required")
        required = [key for key in known if isinstance(required, list) and key in required]
        each = {
            key: self._rule(f"{rule}-{i}", write(key, part_of(schema, value)))
            for i, (key, value) in enumerate(known.items())
        }
        if not between:
            return " ".join(each[key] if key in required else f"{each[key]}?" for key in known)
        # the separator comes before each argument except the first one present
        firsts = []
        for i, key in enumerate(known):
            rest = list(known)[i + 1 :]
            tail = [f"( {between} {each[k]} )" + ("" if k in required else "?") for k in rest]
            firsts.append(" ".join([each[key], *tail]))
            if key in required:
                break
        else:
            firsts.append('""')
        return self._rule(rule, " | ".join(firsts))

    def _tagged(self, form: TaggedCalls, functions: Functions) -> str:
        def argument(key: str, schema: Any) -> str:
            types = types_of(schema)
            text = not types or "string" in types
            ends = (text and form.text_key) or form.key_ends[-1 if text else -2 :][0]
            first = f"{self._mark(form.key_open)} {literal(key)} {self._mark(ends)} {_NEWLINE} {self._mark(form.value_open)}"
            values = schema.get("enum")
            if text and isinstance(values, list) and all(isinstance(v, str) for v in values):
                value = f"( {' | '.join(map(literal, values))} ) {_NEWLINE} {self._mark(form.value_close)}"
            elif text:
                value = self._until(form.value_close)
            else:
                value = f"{json_expression(schema)} {_NEWLINE} {self._mark(form.value_close)}"
            return f"{first} {value} {_NEWLINE}"

        def write(name: str, schema: Any, i: int) -> str:
            ends = literal(form.name_end) if form.name_end.strip() else ""
            head = f"{self._mark(form.open)} {literal(name)} {ends} {_NEWLINE}"
            arguments = self._arguments(f"args{i}", schema, argument)
            return f"{head} {arguments} {self._mark(form.close)}"

        call = self._each(functions, write)
        first, last = map(self._mark, form.section)
        if first:
            space = _NEWLINE if form.open else ""
            call = self._rule("one", f"{first} {space} {call} {_NEWLINE} {last}")
        return self._several(call, _NEWLINE)

    def _python(self, form: CallForm, functions: Functions) -> str:
        def argument(key: str, schema: Any) -> str:
            return f"{literal(key + '=')} {json_expression(schema)}"

        def write(name: str, schema: Any, i: int) -> str:
            arguments = self._arguments(f"args{i}", schema, argument, between='"," " "?')
            return f"{literal(name + '(')} {arguments} {literal(')')}"

        calls = self._several(self._each(functions, write), '"," " "?')
        return f'{self._mark(form.open)} "[" {calls} "]" {self._mark(form.close)}'
