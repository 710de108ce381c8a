"""Languages of calls in the form of a model family.

An expression is built from the family's marks and the JSON schemas of the parameters. A mark that is one token of the vocabulary
is demanded as that token, so that the model does not spell it out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pyspec.grammar.languages import Language, literal
from pyspec.grammar.schemas import held, part_of
from pyspec.text.calls import BareCalls, CallForm, NamedCalls, ObjectCalls, SpokenCalls
from pyspec.text.notation import Notation, Start
from pyspec.text.parts import properties_of
from pyspec.text.tagged import QUOTE, GemmaCalls, TaggedCalls, types_of

Functions = Mapping[str, Any]
"""Schemas of parameters by function name, as `tool_schema` returns them."""

TokenOf = Callable[[str], int | None]
"""Returns the token of a mark, or None if it is not a single token."""

_NEWLINE = '"\\n"?'
_GAP = "(/[ \\n]{1,3}/)?"


class GrammarWriter:
    """Collects Lark rules and returns expressions for parts. token_of: None to spell marks as characters."""

    def __init__(self, token_of: TokenOf | None = None) -> None:
        self._token_of = token_of
        self._rules: dict[str, str] = {}
        self._untils: dict[str, str] = {}

    @property
    def rules(self) -> str:
        return "".join(f"{name}: {body}\n" for name, body in self._rules.items())

    def rule(self, name: str, body: str) -> str:
        self._rules[name] = body
        return name

    def mark(self, text: str) -> str:
        """Return an expression for a mark: its token, or its characters."""
        token = self._token_of(text) if self._token_of and text else None
        return literal(text) if token is None else f"<[{token}]>"

    def marks(self, text: str, known: tuple[str, ...]) -> str:
        """Return an expression for a text that contains marks."""
        pattern = "|".join(map(re.escape, sorted(filter(None, known), key=len, reverse=True)))
        pieces = re.split(f"({pattern})", text) if pattern else [text]
        return " ".join(
            self.mark(piece) if piece in known else literal(piece) for piece in pieces if piece
        )

    def until(self, mark: str) -> str:
        """Return an expression for any text up to a mark, and the mark.

        If the mark is a token, the same characters as ordinary text do not end it.
        """
        token = self._token_of(mark) if self._token_of else None
        if token is not None:
            return f"<[^{token}]>* <[{token}]>"
        name = self._untils.setdefault(mark, f"until{len(self._untils)}")
        self._rules[f"{name}[suffix={literal(mark)}]"] = "/(?s:.*)/"
        return name


# -- calls -------------------------------------------------------------------------------------------------------------


def calls_grammar(
    notation: Notation,
    functions: Functions,
    *,
    many: bool = True,
    start: Start = "free",
    token_of: TokenOf | None = None,
) -> Language:
    """Return the language of an answer that is a call, or several if `many`.

    start: where the answer begins: inside reasoning, which then comes first, behind it, or free to reason.
    """
    w = GrammarWriter(token_of)
    calls = _any_calls(w, notation, functions, many=many)
    return Language(f"{reasoning_first(w, notation, start)} {calls}".strip(), w.rules)


def content_or_calls(
    notation: Notation,
    content: Language,
    functions: Functions,
    *,
    many: bool = True,
    start: Start = "free",
    token_of: TokenOf | None = None,
) -> Language:
    """Return the language of an answer that is either such content, or calls. Otherwise as `calls_grammar`."""
    w = GrammarWriter(token_of)
    calls = w.rule("calls", _any_calls(w, notation, functions, many=many))
    body = _content(w, notation, content)
    first = reasoning_first(w, notation, start)
    return content.within(f"{first} ( {body} | {calls} )".strip(), w.rules)


def _any_calls(w: GrammarWriter, notation: Notation, functions: Functions, *, many: bool) -> str:
    if notation.channels:
        return _in_channels(w, functions)
    return written_calls(w, notation.calls, functions, many=many)


def _content(w: GrammarWriter, notation: Notation, content: Language) -> str:
    body = w.rule("content", content.start)
    if not notation.channels:
        return body
    return f"{w.marks('<|channel|>final<|message|>', notation.marks(tools=False))} {body}"


def lazy_grammar(
    notation: Notation,
    functions: Functions,
    *,
    many: bool = True,
    token_of: TokenOf | None = None,
) -> tuple[Language, str] | None:
    """Return a language that begins with the opening mark of calls, and the mark; None if calls have no mark."""
    form = notation.calls
    if notation.channels or form.unmarked:
        return None
    w = GrammarWriter(token_of)
    calls = written_calls(w, form, functions, many=many)
    return Language(calls, w.rules), form.opens[0]


def after_reasoning(
    notation: Notation, content: Language, *, start: Start = "free", token_of: TokenOf | None = None
) -> Language:
    """Let reasoning come before content. A caller's own grammar that contains the marks itself is returned unchanged."""
    marks = notation.reasoning.close if notation.reasoning else notation.marks(tools=False)
    if not marks or any(mark in content.source for mark in marks):
        return content
    w = GrammarWriter(token_of)
    first = reasoning_first(w, notation, start)
    return content.within(f"{first} {_content(w, notation, content)}", w.rules)


def reasoning_first(w: GrammarWriter, notation: Notation, start: Start) -> str:
    """Return an expression for reasoning before the answer: optional, or required if the prompt has begun it."""
    if notation.channels:
        marks = notation.marks(tools=False)
        before = w.marks("<|channel|>analysis<|message|>", marks)
        behind = w.marks("<|start|>assistant", marks)
        return f"( {before} {w.until('<|end|>')} {behind} )?"
    marks_of = notation.reasoning
    if marks_of is None or start == "behind":
        return ""
    ended = f"{w.until(marks_of.close[0])} {_GAP}"
    return ended if start == "inside" else f"( {w.mark(marks_of.open[0])} {ended} )?"


def written_calls(w: GrammarWriter, form: CallForm, functions: Functions, *, many: bool) -> str:
    """Return an expression for calls in a family's form."""
    if isinstance(form, ObjectCalls):
        return _objects(w, form, functions, many=many)
    if isinstance(form, NamedCalls):
        return _named(w, form, functions, many=many)
    if isinstance(form, TaggedCalls):
        return _tagged(w, form, functions, many=many)
    if isinstance(form, GemmaCalls):
        return _gemma(w, form, functions, many=many)
    return _python(w, form, functions, many=many)


def _each(w: GrammarWriter, functions: Functions, write: Callable[[str, Any, int], str]) -> str:
    """Return an expression for a call of any function. write: makes one from a name, a schema and its number."""
    ways = [
        w.rule(f"call{i}", write(name, schema, i))
        for i, (name, schema) in enumerate(functions.items())
    ]
    return w.rule("call", " | ".join(ways))


def _several(call: str, between: str, *, many: bool) -> str:
    return f"{call} ( {between} {call} )*" if many else call


def _objects(w: GrammarWriter, form: ObjectCalls, functions: Functions, *, many: bool) -> str:
    def write(name: str, schema: Any, i: int) -> str:
        inside = {"$id": f"urn:call:{i}", **schema}  # its references begin there
        properties = (
            {name: inside} if form.keyed else {form.name: {"const": name}, form.arguments: inside}
        )
        return held({
            "type": "object", "properties": properties, "required": [*properties], "additionalProperties": False
        })  # fmt: skip

    call = _each(w, functions, write)
    if isinstance(form, BareCalls):
        return _several(call, literal("; "), many=many)
    first, last = w.mark(form.open), w.mark(form.close) if form.close else ""
    if form.listed:
        listed = _several(call, '"," " "?', many=many)
        return f'{first} " "? "[" {_NEWLINE} {listed} {_NEWLINE} "]" {last}'
    one = w.rule("one", f"{first} {_NEWLINE} {call} {_NEWLINE} {last}")
    return _several(one, _NEWLINE, many=many)


def _named(w: GrammarWriter, form: NamedCalls, functions: Functions, *, many: bool) -> str:
    def write(name: str, schema: Any, i: int) -> str:
        before, sign, behind = _split_id(form.written)
        head = w.marks(before.replace("NAME", name), form.marks)
        if sign:
            head += f" {_IDS[sign]} {w.marks(behind.replace('NAME', name), form.marks)}"
        fence = literal(f"\n{form.behind}") if form.behind and form.behind in form.written else ""
        last = w.mark(form.close) if form.close else ""
        return f"{head} {w.rule(f'args{i}', held(schema))} {fence} {last}"

    call = _each(w, functions, write)
    if isinstance(form, SpokenCalls):  # the prompt ends with the first mark
        bare = [f"{literal(name + chr(10))} args{i}" for i, name in enumerate(functions)]
        first = w.rule("first", " | ".join(bare))
        return f"{first} ( {call} )*" if many else first
    calls = _several(call, _NEWLINE, many=many)
    begin, end = form.section
    return f"{w.mark(begin)} {_NEWLINE} {calls} {_NEWLINE} {w.mark(end)}" if begin else calls


_IDS = {"#": "/[0-9]{1,2}/", "@": "/[a-zA-Z0-9]{9}/"}
"""Expressions for ids, by their sign in `NamedCalls.written`."""


def _split_id(written: str) -> tuple[str, str, str]:
    sign = next((sign for sign in _IDS if sign in written), "#")
    return written.partition(sign)


def _in_channels(w: GrammarWriter, functions: Functions) -> str:
    marks = ("<|channel|>", "<|message|>", "<|constrain|>")

    def write(name: str, schema: Any, _i: int) -> str:
        head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        return f"{w.marks(head, marks)} {held(schema)}"

    return _each(w, functions, write)


# -- arguments one by one ----------------------------------------------------------------------------------------------


ValueWriter = Callable[[str, Any], str]
"""Makes the expression of an argument from its key and its schema."""


def _arguments(
    w: GrammarWriter, rule: str, schema: Any, write: ValueWriter, between: str = ""
) -> str:
    """Return an expression for the arguments in order: all required ones, and any of the others."""
    known = properties_of(schema)
    required = schema.get("required")
    required = [key for key in known if isinstance(required, list) and key in required]
    each = {
        key: w.rule(f"{rule}-{i}", write(key, part_of(schema, value)))
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
    return w.rule(rule, " | ".join(firsts))


def _tagged(w: GrammarWriter, form: TaggedCalls, functions: Functions, *, many: bool) -> str:
    def argument(key: str, schema: Any) -> str:
        types = types_of({"properties": {key: schema}}, key)
        text = not types or "string" in types
        ends = form.text_key if text and form.text_key else form.key_ends[-1 if text else -2 :][0]
        first = f"{w.mark(form.key_open)} {literal(key)} {w.mark(ends)} {_NEWLINE}"
        if form.value_open:
            first += f" {w.mark(form.value_open)}"
        values = schema.get("enum")
        if text and isinstance(values, list) and all(isinstance(v, str) for v in values):
            value = f"( {' | '.join(map(literal, values))} ) {_NEWLINE} {w.mark(form.value_close)}"
        elif text:
            value = w.until(form.value_close)
        else:
            value = f"{held(schema)} {_NEWLINE} {w.mark(form.value_close)}"
        return f"{first} {value} {_NEWLINE}"

    def write(name: str, schema: Any, i: int) -> str:
        ends = literal(form.name_close) if form.name_close.strip() else ""
        head = (
            f"{w.mark(form.name_open) if form.name_open else ''} {literal(name)} {ends} {_NEWLINE}"
        )
        arguments = _arguments(w, f"args{i}", schema, argument)
        return f"{head} {arguments} {w.mark(form.call_close)}"

    call = _each(w, functions, write)
    if not form.open:
        return _several(call, _NEWLINE, many=many)
    last = w.mark(form.close) if form.close and form.close != form.call_close else ""
    space = _NEWLINE if form.name_open else ""
    one = w.rule("one", f"{w.mark(form.open)} {space} {call} {_NEWLINE} {last}")
    return _several(one, _NEWLINE, many=many)


def _gemma(w: GrammarWriter, form: GemmaCalls, functions: Functions, *, many: bool) -> str:
    quote = w.mark(QUOTE)
    text = w.rule("text", f"{quote} {w.until(QUOTE)}")
    pair = w.rule("pair", '( text | /[a-zA-Z_][a-zA-Z0-9_]*/ ) ":" value')
    w.rule("object", f'"{{" ( {pair} ( "," {pair} )* )? "}}"')
    w.rule("list", '"[" ( value ( "," value )* )? "]"')
    w.rule("number", r"/-?[0-9]+(\.[0-9]+)?/")
    w.rule("value", f'{text} | object | list | number | "true" | "false" | "null"')
    rules = {
        "string": "text", "integer": "number", "number": "number", "array": "list", "object": "object",
        "boolean": '( "true" | "false" )', "null": '"null"',
    }  # fmt: skip

    def argument(key: str, schema: Any) -> str:
        types = types_of({"properties": {key: schema}}, key) & rules.keys()
        values = " | ".join(rules[kind] for kind in sorted(types)) or "value"
        return f"{literal(key + ':')} ( {values} )"

    def write(name: str, schema: Any, i: int) -> str:
        arguments = _arguments(w, f"args{i}", schema, argument, between='","')
        return f'{literal(f"call:{name}" + "{")} {arguments} "}}"'

    call = _each(w, functions, write)
    one = w.rule("one", f"{w.mark(form.opens[0])} {call} {w.mark(form.marks[1])}")
    return _several(one, _NEWLINE, many=many)


def _python(w: GrammarWriter, form: CallForm, functions: Functions, *, many: bool) -> str:
    def argument(key: str, schema: Any) -> str:
        return f"{literal(key + '=')} {held(schema)}"

    def write(name: str, schema: Any, i: int) -> str:
        arguments = _arguments(w, f"args{i}", schema, argument, between='"," " "?')
        return f"{literal(name + '(')} {arguments} {literal(')')}"

    calls = _several(_each(w, functions, write), '"," " "?', many=many)
    return f'{w.mark(form.opens[0])} "[" {calls} "]" {w.mark(form.marks[1])}'
