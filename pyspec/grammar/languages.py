"""What an answer must look like, written for llguidance: in its dialect of Lark, which has JSON schemas as expressions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pyspec.errors import InputError

MAX_BYTES = 1 << 20
"""Longest grammar, bytes."""

OWN_BYTES = 1 << 17
"""Longest grammar or expression in a caller's own words: it may nest as deep as it is long."""

MAX_RULES = 3000
"""Most rules of a grammar: where each may be empty, the work for a token grows with their square."""

_RULE = re.compile(r"^[ \t]*[?!]?[a-z_][^:\n]*:", re.MULTILINE | re.IGNORECASE)
_OPTIONS = '%llguidance {"no_forcing": true}\n'
# A text that has to come may then be spelled with any tokens, as without a grammar.


@dataclass(frozen=True)
class Language:
    """A set of texts."""

    start: str
    """A Lark expression."""
    rules: str = ""
    """The rules that it names."""
    own: str = ""
    """A whole Lark grammar, which the expression names `@own`."""
    source: str = ""
    """The grammar that a caller wrote, if one did."""

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

    language: Language
    """Of the whole answer, or of what begins with the first `trigger`."""
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


def of_lark(text: Any) -> Language:
    """The texts of a grammar in llguidance's dialect of Lark. Raises InputError."""
    if isinstance(text, str) and len(_RULE.findall(text)) > MAX_RULES:
        raise InputError(f"the grammar has more than {MAX_RULES} rules", "simplify it")
    return Language("@own", own=_own(text, "the grammar"), source=text)


def _own(text: Any, what: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"{what} is not a text")
    if len(text) > OWN_BYTES:
        raise InputError(f"{what} is longer than {OWN_BYTES} bytes", "make it shorter")
    return _encodable(text)


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError("the grammar is not UTF-8 text", "encode it as UTF-8") from None
    return text
