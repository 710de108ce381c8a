"""The control words of a vocabulary, and how to keep user text from becoming control tokens."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cached_property
from itertools import chain, islice
from typing import Any, NamedTuple

import llama_cpp

from pyspec._lib import address, check, ffi, lib
from pyspec.text.stream import begins
from pyspec.text.tokenizer import piece_reader

_LONGEST = 256
"""How many characters at either end of a text are checked for part of a word."""

_CONTROL = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
_BRACKETS = tuple("<[{\uff5c|\u2581")


def tokens_with(vocab: Any, attributes: int) -> list[int]:
    """Return the ids of all tokens that have one of these attributes."""
    pointer, count = ffi.cast("void *", address(vocab)), ffi.new("int32_t *")
    check(lib.ps_vocab_with(pointer, attributes, ffi.NULL, 0, count))
    ids = ffi.new("int32_t[]", max(1, count[0]))
    check(lib.ps_vocab_with(pointer, attributes, ids, count[0], count))
    return list(ids[0 : count[0]])


class Vocabulary:
    """The words that are single tokens: `control` (only if the text is parsed for them) and `defined` (in any text).

    Both map a word to its id; `defined` holds only words that look like marks, with a bracket in front. piece: a token's
    bytes, control tokens included.
    """

    def __init__(self, vocab: Any) -> None:
        self._vocab = vocab
        self.piece = piece_reader(vocab, special=True)

    @cached_property
    def control(self) -> Words:
        """Control tokens and the unknown token."""
        return Words(self._texts(_CONTROL))

    @cached_property
    def defined(self) -> dict[str, int]:
        """Words that llama.cpp turns into one token wherever they occur."""
        found = self._texts(llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED)
        return {word: i for word, i in found.items() if word.startswith(_BRACKETS) and word[1:]}

    def strips(self, token: int) -> tuple[bool, bool]:
        """Return whether a token strips the white space before it, and that after it."""
        attr = llama_cpp.llama_vocab_get_attr(self._vocab, token)
        return (
            bool(attr & llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP),
            bool(attr & llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP),
        )

    def _texts(self, attributes: int) -> dict[str, int]:
        found = {}
        for token in tokens_with(self._vocab, attributes):
            data = llama_cpp.llama_vocab_get_text(self._vocab, token)
            if text := data.decode("utf-8", "ignore"):
                found[text] = token
        return found


class Words(dict[str, int]):
    """Words and their ids. At each place in a text the longest word matches, as in llama.cpp."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """A pattern that matches any of the words."""
        groups: dict[str, list[str]] = {}
        for word in sorted(self):
            groups.setdefault(word[:2], []).append(word)
        # grouped by their first characters: a flat alternation of thousands is slow at every possible start
        return re.compile("|".join(map(_any_of, groups.values())) or r"(?!)")

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self)

    @cached_property
    def _backwards(self) -> list[str]:
        return sorted(word[::-1] for word in self)

    @cached_property
    def _firsts(self) -> re.Pattern[str]:
        firsts = {word[0] for word in self}
        return re.compile(f"[{''.join(map(re.escape, sorted(firsts)))}]" if firsts else r"(?!)")

    @cached_property
    def _inner(self) -> set[str]:
        return {word[1:-1] for word in self if word[2:]}

    def found_in(self, text: str) -> list[tuple[int, str]]:
        """Return the position and text of each word in a text, overlapping ones included."""
        found, at = [], 0
        while match := self.pattern.search(text, at):
            found.append((match.start(), match[0]))
            at = match.start() + 1
        return found

    def joins(self, text: str) -> list[int]:
        """Return where neighbouring text could complete a word: 0 (before), the text's length (after), or 1 (on both sides)."""
        places = [1] if text in self._inner else []
        tail = text[-_LONGEST:]
        for match in self._firsts.finditer(tail):
            if begins(self._sorted, tail[match.start() :]):
                places.append(len(text))
                break
        head = text[:_LONGEST]
        ends = (n for n in range(2, len(head) + 1) if head[n - 1] in self._lasts)
        if any(begins(self._backwards, head[n - 1 :: -1]) for n in ends):
            places.append(0)
        return places

    @cached_property
    def _lasts(self) -> set[str]:
        return {word[-1] for word in self}


def _any_of(words: list[str]) -> str:
    """Return a pattern for words with a common beginning."""
    head = os.path.commonprefix(words)  # noqa: RUF071 - it is for any strings
    rest = sorted((word[len(head) :] for word in words), key=len, reverse=True)
    return re.escape(head) + f"(?:{'|'.join(map(re.escape, rest))})"


# -- signs in messages -------------------------------------------------------------------------------------------------


DEFAULT_SIGNS = ("\uf8d0", "\uf8d1")


def unused_signs(text: str, asked: Any) -> tuple[str, str]:
    """Return two characters that occur neither in the text nor in the request."""
    written = text + json.dumps(asked, ensure_ascii=False)
    private = chain(range(0xF8D0, 0xF900), range(0xF0000, 0xFFFFE))
    first, second = islice((chr(code) for code in private if chr(code) not in written), 2)
    return first, second


class Spot(NamedTuple):
    """A word in the messages of a role; an empty role means tools and other variables."""

    word: str
    role: str


class Hider:
    """Inserts a sign into words: the first into control words, the second into defined words that users and tools wrote.

    spots: words that the last full `hide` broke or spared. spared: words to leave whole.
    """

    def __init__(self, control: Words, defined: Mapping[str, int], signs: tuple[str, str]) -> None:
        self.signs = signs
        self.spared: set[Spot] = set()
        self.spots: set[Spot] = set()
        self._control, self._defined = control, defined
        self._only: set[Spot] | None = None

    def bare(self, text: str) -> str:
        """Return a text without signs."""
        return text.replace(self.signs[0], "").replace(self.signs[1], "")

    def hide(self, asked: Mapping[str, Any], only: set[Spot] | None = None) -> dict[str, Any]:
        """Return the template's input with a sign in each word, or only in those of the given spots."""
        self._only = only
        if only is None:
            self.spots = set()
        return {
            key: [self._part(turn, turn["role"]) for turn in part]
            if key == "messages"
            else self._part(part, "")
            for key, part in asked.items()
        }

    def _part(self, part: Any, role: str, *, name: bool = False) -> Any:
        if isinstance(part, str):
            return self._text(part, role, name=name)
        if isinstance(part, Mapping):
            return {
                self._text(key, role, name=True): self._part(each, role, name=key == "role")
                for key, each in part.items()
            }
        if isinstance(part, (list, tuple)):
            return [self._part(each, role) for each in part]
        return part

    def _text(self, text: str, role: str, *, name: bool) -> str:
        """Insert a sign into each word, and, except in a role or a key, where a neighbour could complete one."""
        places: dict[int, str] = {}
        for at, word in self._control.found_in(text):
            self._put(places, at + 1, 0, Spot(word, role))
        for word in () if role in _OWN else self._defined:
            at = text.find(word)
            while at >= 0:
                self._put(places, at + 1, 1, Spot(word, role))
                at = text.find(word, at + 1)
        for at in () if name else self._control.joins(text):
            self._put(places, at, 0, Spot(text[-8:] if at else text[:8], role))
        if not places:
            return text
        cuts = sorted(places)
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
        return pieces[0] + "".join(places[at] + piece for at, piece in zip(cuts, pieces[1:]))

    def _put(self, places: dict[int, str], at: int, sign: int, spot: Spot) -> None:
        self.spots.add(spot)
        if spot not in self.spared and (self._only is None or spot in self._only):
            places.setdefault(at, self.signs[sign])


_OWN = ("", "system", "developer", "assistant")
"""Roles whose marks are meant as marks; the empty one stands for tools."""
