"""Grammars for calls in the form of a model family.

A grammar is built from the family's marks and the JSON schemas of the parameters. If an answer must be a call, a mark that is one
token of the vocabulary is demanded as that token, so that the model does not spell it out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from pyspec.grammar.gbnf import schema_grammar
from pyspec.text.calls.form import CallForm
from pyspec.text.calls.named import NamedCalls, SpokenCalls
from pyspec.text.calls.objects import BareCalls, ObjectCalls
from pyspec.text.calls.tagged import TaggedCalls, types_of
from pyspec.text.calls.values import QUOTE, GemmaCalls
from pyspec.text.notation import Notation
from pyspec.text.parts import properties_of
from pyspec.text.reasoning import Start

Functions = Mapping[str, Any]
"""JSON schemas of parameters by function name."""

TokenOf = Callable[[str], int | None]
"""Returns the token of a mark, or None if it is not a single token."""

_RULE = re.compile(r"^([\w-]+) ::=", re.MULTILINE)
_PIECE = re.compile(r'"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\]|[\w-]+|.', re.DOTALL)
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


class GrammarWriter:
    """Collects the rules of a grammar and returns expressions for its parts. token_of: None to spell marks as characters."""

    def __init__(self, token_of: TokenOf | None = None) -> None:
        self._token_of = token_of
        self._rules = {"nl": r'"\n"?'}
        self._untils: dict[str, str] = {}

    def text(self, root: str) -> str:
        """Return the whole grammar. root: the expression for the answer."""
        rules = {"root": root, **self._rules}
        return "".join(f"{name} ::= {body}\n" for name, body in rules.items())

    def rule(self, name: str, body: str) -> str:
        """Add a rule, and return its name."""
        self._rules[name] = body
        return name

    def literal(self, text: str) -> str:
        """Return an expression for a fixed text."""
        return json.dumps(text, ensure_ascii=False) if text else '""'

    def mark(self, text: str) -> str:
        """Return an expression for a mark: its token, or its characters."""
        token = self._token_of(text) if self._token_of and text else None
        return self.literal(text) if token is None else f"<[{token}]>"

    def marks(self, text: str, known: tuple[str, ...]) -> str:
        """Return an expression for a text that contains marks."""
        pattern = "|".join(map(re.escape, sorted(filter(None, known), key=len, reverse=True)))
        pieces = re.split(f"({pattern})", text) if pattern else [text]
        return " ".join(
            self.mark(piece) if piece in known else self.literal(piece) for piece in pieces if piece
        )

    def schema(self, name: str, schema: Any) -> str:
        """Return an expression for JSON that follows a schema. Raises InputError."""
        return self.include(name, schema_grammar(schema))

    def include(self, name: str, grammar: str) -> str:
        """Add another grammar's rules under new names, and return its root."""
        names = {rule: f"{name}-{rule}" for rule in _RULE.findall(grammar)}
        renamed = "".join(names.get(piece, piece) for piece in _PIECE.findall(grammar))
        for line in renamed.splitlines():
            rule, found, body = line.partition(" ::= ")
            if found and rule in names.values():
                self._rules[rule] = body
                last = rule
            elif line.strip():
                self._rules[last] += f" {line.strip()}"
        return f"{name}-root"

    def until(self, mark: str) -> str:
        """Return an expression for any text up to a mark, and the mark.

        Each state is the length of the mark's prefix at the text's end (Knuth, Morris and Pratt, SIAM J. Computing 6(2), 1977).
        """
        name = self._untils.setdefault(mark, f"until-{len(self._untils)}")
        for n in range(len(mark)):
            begun, steps = mark[:n], {mark[n]: n + 1}
            for char in dict.fromkeys(mark):
                text = begun + char
                longest = next(k for k in range(n + 1, -1, -1) if text.endswith(mark[:k]))
                if longest and char not in steps:
                    steps[char] = longest
            others = "".join(map(_in_brackets, steps))
            ways = [f"[^{others}] {name}-0"]
            for char, to in steps.items():
                rest = "" if to == len(mark) else f" {name}-{to}"
                ways.append(self.literal(char) + rest)
            self._rules[f"{name}-{n}"] = " | ".join(ways)
        return self._ended(name, mark)

    def _ended(self, name: str, mark: str) -> str:
        """End at the mark's token, if it is one; the same characters as ordinary text do not end it."""
        token = self._token_of(mark) if self._token_of else None
        if token is None:
            return f"{name}-0"
        return f"( !<[{token}]>* <[{token}]> )"


def _in_brackets(char: str) -> str:
    return f"\\{char}" if char in "]\\^-[" else json.dumps(char, ensure_ascii=False)[1:-1]


# -- calls -------------------------------------------------------------------------------------------------------------


def calls_grammar(
    notation: Notation,
    functions: Functions,
    *,
    many: bool = True,
    start: Start = "free",
    token_of: TokenOf | None = None,
) -> str:
    """Return a grammar for an answer that is a call, or several if `many`.

    start: where the answer begins: inside reasoning, which then comes first, behind it, or free to reason.
    Raises InputError for an unusable schema.
    """
    w = GrammarWriter(token_of)
    calls = _any_calls(w, notation, functions, many=many)
    return w.text(f"{reasoning_first(w, notation, start)} {calls}".strip())


def content_or_calls(
    notation: Notation,
    grammar: str,
    functions: Functions,
    *,
    many: bool = True,
    start: Start = "free",
    token_of: TokenOf | None = None,
) -> str:
    """Return a grammar for an answer that is either content that follows `grammar`, or calls. Otherwise as `calls_grammar`."""
    w = GrammarWriter(token_of)
    calls = w.rule("calls", _any_calls(w, notation, functions, many=many))
    content = _content(w, notation, grammar)
    return w.text(f"{reasoning_first(w, notation, start)} ( {content} | {calls} )".strip())


def _any_calls(w: GrammarWriter, notation: Notation, functions: Functions, *, many: bool) -> str:
    if notation.channels:
        return _in_channels(w, functions)
    return written_calls(w, notation.calls, functions, many=many)


def _content(w: GrammarWriter, notation: Notation, grammar: str) -> str:
    body = w.include("content", grammar)
    if not notation.channels:
        return body
    return f"{w.marks('<|channel|>final<|message|>', notation.marks(tools=False))} {body}"


def lazy_grammar(
    notation: Notation, functions: Functions, *, many: bool = True
) -> tuple[str, str] | None:
    """Return a grammar that applies from the opening mark of calls, and a pattern of the mark; None if calls have no mark."""
    form = notation.calls
    if notation.channels or form.unmarked:
        return None
    w = GrammarWriter()
    grammar = w.text(written_calls(w, form, functions, many=many))
    return grammar, re.sub(r"([\\^$.*+?()\[\]{}|])", r"\\\1", form.opens[0])


def after_reasoning(
    notation: Notation, grammar: str, *, start: Start = "free", token_of: TokenOf | None = None
) -> str:
    """Let reasoning come before the content of a grammar. A grammar that contains the marks itself is returned unchanged."""
    marks = notation.reasoning.close if notation.reasoning else notation.marks(tools=False)
    if not marks or any(mark in grammar for mark in marks):
        return grammar
    w = GrammarWriter(token_of)
    first = reasoning_first(w, notation, start)
    return w.text(f"{first} {_content(w, notation, grammar)}")


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
    space = w.rule("gap", r"[ \n]? [ \n]? [ \n]?")
    ended = f"{w.until(marks_of.close[0])} {space}"
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


def _each(w: GrammarWriter, functions: Functions, write: Callable[[str, Any, str], str]) -> str:
    """Return an expression for a call of any function. write: makes one from a name, a schema and a name for rules."""
    ways = [
        w.rule(f"call-{i}", write(name, schema or _NOTHING, f"args-{i}"))
        for i, (name, schema) in enumerate(functions.items())
    ]
    return w.rule("call", " | ".join(ways))


def _several(call: str, between: str, *, many: bool) -> str:
    return f"{call} ( {between} {call} )*" if many else call


def _objects(w: GrammarWriter, form: ObjectCalls, functions: Functions, *, many: bool) -> str:
    def write(name: str, schema: Any, rule: str) -> str:
        if form.keyed:
            return f"{w.literal('{' + json.dumps(name) + ': ')} {w.schema(rule, schema)} {w.literal('}')}"
        properties = {form.name: {"const": name}, form.arguments: schema}
        return w.schema(
            rule, {"type": "object", "properties": properties, "required": [*properties]}
        )

    call = _each(w, functions, write)
    if isinstance(form, BareCalls):
        return _several(call, w.literal("; "), many=many)
    first, last = w.mark(form.open), w.mark(form.close) if form.close else ""
    if form.listed:
        listed = _several(call, '"," " "?', many=many)
        return f'{first} " "? "[" nl {listed} nl "]" {last}'
    one = w.rule("one", f"{first} nl {call} nl {last}")
    return _several(one, "nl", many=many)


def _named(w: GrammarWriter, form: NamedCalls, functions: Functions, *, many: bool) -> str:
    def write(name: str, schema: Any, rule: str) -> str:
        before, sign, behind = _split_id(form.written)
        head = w.marks(before.replace("NAME", name), form.marks)
        if sign:
            head += f" {_IDS[sign]} {w.marks(behind.replace('NAME', name), form.marks)}"
        fence = w.literal(f"\n{form.behind}") if form.behind and form.behind in form.written else ""
        last = w.mark(form.close) if form.close else ""
        return f"{head} {w.schema(rule, schema)} {fence} {last}"

    call = _each(w, functions, write)
    if isinstance(form, SpokenCalls):  # the prompt ends with the first mark
        bare = {
            f"first-{i}": f"{w.literal(name + chr(10))} args-{i}-root"
            for i, name in enumerate(functions)
        }
        first = w.rule("first", " | ".join(w.rule(*pair) for pair in bare.items()))
        return f"{first} ( {call} )*" if many else first
    calls = _several(call, "nl", many=many)
    begin, end = form.section
    return f"{w.mark(begin)} nl {calls} nl {w.mark(end)}" if begin else calls


_IDS = {"#": "[0-9] [0-9]?", "@": " ".join(["[a-zA-Z0-9]"] * 9)}
"""Expressions for ids, by their sign in `NamedCalls.written`."""


def _split_id(written: str) -> tuple[str, str, str]:
    sign = next((sign for sign in _IDS if sign in written), "#")
    return written.partition(sign)


def _in_channels(w: GrammarWriter, functions: Functions) -> str:
    marks = ("<|channel|>", "<|message|>", "<|constrain|>")

    def write(name: str, schema: Any, rule: str) -> str:
        head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        return f"{w.marks(head, marks)} {w.schema(rule, schema)}"

    return _each(w, functions, write)


# -- arguments one by one ----------------------------------------------------------------------------------------------


ValueWriter = Callable[[str, str, Any], str]
"""Makes the expression of an argument from its key, a name for rules, and its schema."""


def _arguments(
    w: GrammarWriter, rule: str, schema: Any, write: ValueWriter, between: str = ""
) -> str:
    """Return an expression for the arguments in order: all required ones, and any of the others."""
    known = properties_of(schema)
    required = schema.get("required") if isinstance(schema, Mapping) else None
    required = [key for key in known if isinstance(required, list) and key in required]
    each = {
        key: w.rule(f"{rule}-{i}", write(key, f"{rule}-{i}", value))
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
    def argument(key: str, rule: str, schema: Any) -> str:
        types = types_of({"properties": {key: schema}}, key)
        text = not types or "string" in types
        ends = form.text_key if text and form.text_key else form.key_ends[-1 if text else -2 :][0]
        first = f"{w.mark(form.key_open)} {w.literal(key)} {w.mark(ends)} nl"
        if form.value_open:
            first += f" {w.mark(form.value_open)}"
        values = schema.get("enum") if isinstance(schema, Mapping) else None
        if text and isinstance(values, list) and all(isinstance(v, str) for v in values):
            value = f"( {' | '.join(map(w.literal, values))} ) nl {w.mark(form.value_close)}"
        elif text:
            value = w.until(form.value_close)
        else:
            value = f"{w.schema(rule, schema)} nl {w.mark(form.value_close)}"
        return f"{first} {value} nl"

    def write(name: str, schema: Any, rule: str) -> str:
        ends = w.literal(form.name_close) if form.name_close.strip() else ""
        head = f"{w.mark(form.name_open) if form.name_open else ''} {w.literal(name)} {ends} nl"
        return f"{head} {_arguments(w, rule, schema, argument)} {w.mark(form.call_close)}"

    call = _each(w, functions, write)
    if not form.open:
        return _several(call, "nl", many=many)
    last = w.mark(form.close) if form.close and form.close != form.call_close else ""
    space = "nl" if form.name_open else ""
    one = w.rule("one", f"{w.mark(form.open)} {space} {call} nl {last}")
    return _several(one, "nl", many=many)


def _gemma(w: GrammarWriter, form: GemmaCalls, functions: Functions, *, many: bool) -> str:
    quote = w.mark(QUOTE)
    text = w.rule("text", f"{quote} {w.until(QUOTE)}")
    pair = w.rule("pair", '( text | [a-zA-Z_] [a-zA-Z0-9_]* ) ":" value')
    w.rule("object", f'"{{" ( {pair} ( "," {pair} )* )? "}}"')
    w.rule("list", '"[" ( value ( "," value )* )? "]"')
    w.rule("number", '"-"? [0-9]+ ( "." [0-9]+ )?')
    w.rule("value", f'{text} | object | list | number | "true" | "false" | "null"')
    rules = {
        "string": "text", "integer": "number", "number": "number", "array": "list", "object": "object",
        "boolean": '( "true" | "false" )', "null": '"null"',
    }  # fmt: skip

    def argument(key: str, _rule: str, schema: Any) -> str:
        types = types_of({"properties": {key: schema}}, key) & rules.keys()
        values = " | ".join(rules[kind] for kind in sorted(types)) or "value"
        return f"{w.literal(key + ':')} ( {values} )"

    def write(name: str, schema: Any, rule: str) -> str:
        arguments = _arguments(w, rule, schema, argument, between='","')
        return f'{w.literal(f"call:{name}" + "{")} {arguments} "}}"'

    call = _each(w, functions, write)
    one = w.rule("one", f"{w.mark(form.opens[0])} {call} {w.mark(form.marks[1])}")
    return _several(one, "nl", many=many)


def _python(w: GrammarWriter, form: CallForm, functions: Functions, *, many: bool) -> str:
    def argument(key: str, rule: str, schema: Any) -> str:
        return f"{w.literal(key + '=')} {w.schema(rule, schema)}"

    def write(name: str, schema: Any, rule: str) -> str:
        arguments = _arguments(w, rule, schema, argument, between='"," " "?')
        return f"{w.literal(name + '(')} {arguments} {w.literal(')')}"

    calls = _several(_each(w, functions, write), '"," " "?', many=many)
    return f'{w.mark(form.opens[0])} "[" {calls} "]" {w.mark(form.marks[1])}'
