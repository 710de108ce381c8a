"""What an answer must look like, written for llguidance: in its dialect of Lark, which has JSON schemas as expressions.

llama.cpp's grammars (GBNF) are translated rule by rule and character by character. llguidance reads words as long as possible
before it looks at rules, and llama.cpp does not. Where every word is one character, both take the same texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

from pyspec.errors import InputError

MAX_BYTES = 1 << 20  # longest grammar, bytes
OWN_BYTES = 1 << 17  # the same in a caller's own words, which may nest as deep as they are long
MAX_RULES = 3000  # of a grammar: where each may be empty, a token's work grows with their square
_RULE = re.compile(r"^[ \t]*[?!]?[a-z_][^:\n]*:", re.MULTILINE | re.IGNORECASE)
# A text that has to come may then be spelled with any tokens, as without a grammar.
_OPTIONS = '%llguidance {"no_forcing": true}\n'


@dataclass(frozen=True)
class Language:
    """A set of texts."""

    start: str  # a Lark expression
    rules: str = ""  # the rules that it names
    own: str = ""  # a whole Lark grammar, which the expression names `@own`
    source: str = ""  # the grammar that a caller wrote, if one did

    def within(self, start: str, rules: str = "") -> Language:
        """Return the language of another expression, which may name this one's rules."""
        return Language(start, f"{rules}{self.rules}", self.own, self.source)

    @property
    def grammar(self) -> str:
        """What llguidance reads. Raises InputError if it is too long."""
        lark = f"{_OPTIONS}start: {self.start}\n{self.rules}"
        if len(lark) + len(self.own) > MAX_BYTES:
            raise InputError(f"the grammar is longer than {MAX_BYTES} bytes", "make it shorter")
        if not self.own:
            return str(_matcher().grammar_from_lark(_encodable(lark)))
        parts = [{"lark_grammar": lark}, {"name": "own", "lark_grammar": _OPTIONS + self.own}]
        return json.dumps({"grammars": parts})


@dataclass(frozen=True)
class Constraint:
    """What an answer follows."""

    language: Language  # of the whole answer, or of what begins with the first `trigger`
    trigger: str = ""
    looser: Language | None = None
    """Replaces a language that is too much for a grammar. If this is too much too, an answer with a trigger follows nothing."""


def _matcher() -> Any:
    """Llguidance's class, which is imported only where a grammar is."""
    from llguidance import LLMatcher  # noqa: PLC0415 - see above

    return LLMatcher


def literal(text: str) -> str:
    """Return a Lark expression for a fixed text. Raises InputError for one that is not Unicode."""
    return json.dumps(_encodable(text), ensure_ascii=False)


def of_regex(pattern: Any) -> Language:
    """The texts that a regular expression matches as a whole. Raises InputError."""
    made = json.loads(_matcher().grammar_from_regex(_own(pattern, "the regular expression")))
    return Language(made["grammars"][0]["lark_grammar"].removeprefix("start: "))


def of_choice(texts: Any) -> Language:
    """One of these texts. Raises InputError."""
    found = list(dict.fromkeys(texts)) if isinstance(texts, (list, tuple)) else []
    if not found or not all(isinstance(text, str) for text in found):
        raise InputError("a choice is made among texts", 'give a list such as ["yes", "no"]')
    ways = " | ".join(literal(text) for text in found if text)
    optional = "?" if "" in found else ""
    return Language(f"CHOICE{optional}", f"CHOICE: {ways}\n") if ways else Language('""')


def _own(text: Any, what: str, most: int = OWN_BYTES) -> str:
    if not isinstance(text, str):
        raise InputError(f"{what} is not a text")
    if len(text) > most:
        raise InputError(f"{what} is longer than {most} bytes", "make it shorter")
    return _encodable(text)


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError("the grammar is not UTF-8 text", "encode it as UTF-8") from None
    return text


MAX_CHARACTERS = 50_000  # most characters and classes of all rules
MAX_DEPTH = 128  # deepest nesting of brackets
MAX_REPEATS = 2000  # most repetitions of a part, as in llama.cpp
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_LINE = re.compile(r"\r\n|[\r\n]|$")
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_TIMES = re.compile(r"[*+?]|\{[ \t]*(\d{1,9})[ \t]*(?:(,)[ \t]*(\d{1,9})?[ \t]*)?\}")
_TOKEN = re.compile(r"(!?)<(\[\d{1,9}\]|[^>\[\]\s][^>]*)>")
_CHAR = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([trn\\\"\[\]]))|([^\\])",
    re.DOTALL,
)
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"}
_LAST = 0x10FFFF


def of_gbnf(text: Any, root: str = "root") -> Language:
    """The texts of a grammar in GBNF. Raises InputError for one that cannot be read."""
    return _Reader(_own(text, "the grammar", MAX_BYTES)).language(root)


def constraint_of(grammar: Any) -> Constraint:
    """Return the constraint of a `Constraint` or a `LlamaGrammar`. Raises InputError."""
    if isinstance(grammar, Constraint):
        return grammar
    return Constraint(of_gbnf(grammar._grammar, grammar._root))


_LARK = re.compile(r"^\s*(?:%llguidance\b|start\s*:(?!:=))", re.MULTILINE)


def of_grammar(text: Any) -> Language:
    """The texts of a grammar in llguidance's dialect of Lark, which has a rule `start`, or else in GBNF. Raises InputError."""
    if not isinstance(text, str) or not _LARK.search(text):
        return of_gbnf(text)
    if len(_RULE.findall(text)) > MAX_RULES:
        raise InputError(f"the grammar has more than {MAX_RULES} rules", "simplify it")
    return Language("@own", own=_own(text, "the grammar"), source=text)


class _Reader:
    """Reads one text. Each group becomes a rule of its own, since llguidance limits how deep brackets nest."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0
        self._names: dict[str, str] = {}
        self._rules: dict[str, str] = {}
        self._needs: dict[str, set[str]] = {}  # names in each rule; a later one replaces it
        self._seen: set[str] = set()
        self._n_groups = self._n_characters = 0

    def language(self, root: str) -> Language:
        """Read all rules; the text is one of the rule `root`."""
        self._match(_SPACES)
        while self._at < len(self._text):
            self._rule()
        for name in dict.fromkeys((root, *chain(*map(sorted, self._needs.values())))):
            if self._named(name) not in self._rules:
                raise InputError(f"the grammar has no rule named {name[:80]!r}", "add it")
        rules = "".join(f"{name}: {body}\n" for name, body in self._rules.items())
        return Language(self._named(root), rules, source=self._text)

    def _rule(self) -> None:
        name = self._match(_NAME) or self._fail("a rule's name")
        self._match(_SPACE)
        self._take("::=")
        self._match(_SPACES)
        self._seen = self._needs[name[0]] = set()
        self._add(self._named(name[0]), self._ways(nested=False))
        if not self._match(_LINE):
            self._fail("the end of the line")
        self._match(_SPACES)

    def _add(self, name: str, body: str) -> str:
        self._rules[name] = body
        if len(self._rules) > MAX_RULES:
            raise InputError(f"the grammar has more than {MAX_RULES} rules", "simplify it")
        return name

    def _named(self, name: str) -> str:
        return self._names.setdefault(name, f"r{len(self._names)}")

    def _ways(self, *, nested: bool) -> str:
        """Alternatives; within brackets they may go on in the next line."""
        space = _SPACES if nested else _SPACE
        ways = [self._sequence(space)]
        while self._text.startswith("|", self._at):
            self._at += 1
            self._match(_SPACES)
            ways.append(self._sequence(space))
        return " | ".join(way or '""' for way in ways)

    def _sequence(self, space: re.Pattern[str]) -> str:
        parts: list[str] = []
        while (part := self._part()) is not None:
            self._match(space)
            while times := self._match(_TIMES):
                part = self._repeated(part, times)
                self._match(space)
            parts.append(part)
        return " ".join(filter(None, parts))

    def _part(self) -> str | None:
        """One part of a sequence, or None where it ends."""
        readers: dict[str, Callable[[], str]] = {
            '"': self._literal,
            "[": self._class,
            "(": self._group,
            ".": lambda: "/(?s:.)/",
        }
        reader = readers.get(self._text[self._at : self._at + 1])
        if reader is not None:
            self._at += 1
            return reader()
        if found := self._match(_NAME):
            self._seen.add(found[0])
            return self._named(found[0])
        if found := self._match(_TOKEN):
            banned, name = found.groups()
            return f"<[^{name[1:-1]}]>" if banned and name[0] == "[" else f"<{name}>"
        return None

    def _group(self) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            hint = f"use at most {MAX_DEPTH} levels"
            raise InputError("the grammar nests brackets too deep", hint)
        self._match(_SPACES)
        body = self._ways(nested=True)
        self._take(")")
        self._depth -= 1
        return self._grouped(body)

    def _grouped(self, body: str) -> str:
        self._n_groups += 1
        return self._add(f"g{self._n_groups}", body)

    def _repeated(self, part: str, times: re.Match[str]) -> str:
        least, open_end, most = times.groups()
        if max(int(least or 0), int(most or 0)) > MAX_REPEATS:
            hint = f"use at most {MAX_REPEATS}"
            raise InputError("the grammar repeats a part too many times", hint)
        if not part:
            self._fail("something to repeat")
        one = part if " " not in part and part[-1] not in "*+?}" else self._grouped(part)
        if least is None:
            return one + times[0]
        bounds = least if not open_end else f"{least},{most or ''}"
        return f"{one}{{{bounds}}}" if most != "0" and bounds != "0" else '""'

    def _literal(self) -> str:
        chars = []
        while not self._text.startswith('"', self._at):
            code = self._char()
            chars.append(literal(chr(code) if code <= _LAST else "\ud800"))  # which refuses it
        self._at += 1
        return " ".join(chars)

    def _class(self) -> str:
        negated = self._text.startswith("^", self._at)
        self._at += negated
        ranges = []
        while not self._text.startswith("]", self._at):
            first = last = self._char()
            if (
                self._text.startswith("-", self._at)
                and self._text[self._at + 1 : self._at + 2] != "]"
            ):
                self._at += 1
                last = self._char()
            # no text has surrogates
            parts = (first, min(last, 0xD7FF)), (max(first, 0xE000), min(last, _LAST))
            ranges += [part for part in parts if part[0] <= part[1]]
        self._at += 1
        inside = "".join(f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in ranges)
        if not inside:
            return "/(?s:.)/" if negated else ""
        return f"/[{'^' * negated}{inside}]/"

    def _char(self) -> int:
        self._n_characters += 1
        if self._n_characters > MAX_CHARACTERS:
            hint = f"use at most {MAX_CHARACTERS} characters"
            raise InputError("the grammar has too many characters in its rules", hint)
        found = self._match(_CHAR) or self._fail("a character")
        code = next((int(digits, 16) for digits in found.groups()[:3] if digits), None)
        if code is None:
            return ord(_ESCAPES.get(found[4], found[4]) if found[4] else found[5])
        return min(code, _LAST + 1)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        if found:
            self._at = found.end()
        return found

    def _take(self, text: str) -> None:
        if not self._text.startswith(text, self._at):
            self._fail(text)
        self._at += len(text)

    def _fail(self, wanted: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        rest = ascii(self._text[self._at : self._at + 40])
        raise InputError(
            f"the grammar cannot be parsed: line {line} needs {wanted} before {rest}",
            "give GBNF with a rule named root",
        )
