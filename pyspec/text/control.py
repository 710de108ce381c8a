"""The control words of a vocabulary."""

from __future__ import annotations

import os
import re
from functools import cached_property
from itertools import chain
from typing import Any

import llama_cpp

from pyspec.text.stream import begins
from pyspec.vocab.tokenizer import piece_reader
from pyspec.vocab.word_tokens import tokens_with

_LONGEST = 256
"""How many characters at either end of a text are checked for part of a word."""

_CONTROL = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
_BRACKETS = tuple("<[{\uff5c|\u2581")


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
        for word in sorted(self, key=len, reverse=True):
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
    def edges(self) -> frozenset[str]:
        """First and last characters of the words that have a bracket or the like at both ends: no letter, digit or space."""
        return frozenset(chain.from_iterable((word[0], word[-1]) for word in self if _closed(word)))

    @cached_property
    def open_ended(self) -> Words:
        """Words that have a letter, a digit or a space at an end."""
        return Words({word: i for word, i in self.items() if not _closed(word)})

    @cached_property
    def joined(self) -> str:
        """All words as one text, in which parts of them can be found."""
        return "\0".join(self)

    def found_in(self, text: str) -> list[tuple[int, str]]:
        """Return the position and text of each word in a text, overlapping ones included."""
        found, at = [], 0
        while match := self.pattern.search(text, at):
            found.append((match.start(), match[0]))
            at = match.start() + 1
        return found

    def joins(self, text: str) -> list[int]:
        """Return the ends of a text at which a neighbouring text could complete a word: 0, and the text's length."""
        places = []
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


def _closed(word: str) -> bool:
    return not any(end.isalnum() or end.isspace() for end in (word[0], word[-1]))


def _any_of(words: list[str]) -> str:
    """Return a pattern for words with a common beginning."""
    head = os.path.commonprefix(words)  # noqa: RUF071 - it is for any strings
    rest = sorted((word[len(head) :] for word in words), key=len, reverse=True)
    return re.escape(head) + f"(?:{'|'.join(map(re.escape, rest))})"
