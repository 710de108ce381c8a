"""Tokenizes rendered conversations: the template's control words become control tokens, all else stays text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import llama_cpp

from pyspec.errors import ContextOverflow, InputEncoding, InputError
from pyspec.text.control import Vocabulary

_SPACE = " \t\n\v\f\r"


@dataclass(frozen=True)
class Rendering:
    """A conversation as its template writes it."""

    text: str
    shown: str
    """The text with `signs` inside words that must stay text."""
    signs: tuple[str, str]
    """Characters that the text does not have: one for control words, and one for words that are tokens in any text."""

    @property
    def is_signed(self) -> bool:
        """Whether the text holds words that must not become control tokens."""
        return self.shown != self.text

    def before(self, mark: str) -> Rendering:
        """Return the part before the last `mark`. Raises InputError if the template dropped the mark."""
        at, place = self.text.rfind(mark), self.shown.rfind(mark)
        if at < 0:
            raise InputError(
                "this model's chat template cannot continue an answer",
                "end with a user message",
            )
        return replace(self, text=self.text[:at], shown=self.shown[:place])

    def find(self, opening: str, answer: str, at: int) -> int:
        """Return where the template opens this answer, from `at` on; -1 if nowhere. A text that says the same does not count."""
        while (at := self.text.find(opening + answer, at)) >= 0:
            place = self.place(at)
            if self.shown.startswith(opening, place):
                return at
            at += 1
        return -1

    def place(self, at: int) -> int:
        """Convert a position in `text` to one in `shown`, past the signs there."""
        if not self.is_signed:
            return at
        gone = [i for i, char in enumerate(self.shown) if char in self.signs]
        places = [i - n for n, i in enumerate(gone)]
        return at + bisect_left(places, at)


class PromptTokenizer:
    """Tokenizes renderings with the tokenizer of a `llama_cpp.Llama`."""

    def __init__(self, llm: Any) -> None:
        # not the model itself, which may hold whatever holds this object
        self._tokenizer, self._vocab = llm.tokenizer_, llm._model.vocab
        self.vocabulary = Vocabulary(self._vocab)
        self._add_bos, self._bos = bool(llm._model.add_bos_token()), llm.token_bos()
        self.most: int | None = None
        """Tokens of the longest prompt that fits, if known."""

    def prompt(
        self, rendering: Rendering, kept: Sequence[tuple[int, int, list[int]]] = ()
    ) -> list[int]:
        """Return token ids of a rendering. kept: stretches of `shown`, with the tokens to use for each."""
        tokens: list[int] = []
        if not kept:
            self._check_room(rendering.text)
        shown, at = rendering.shown, 0
        for start, end, ids in [*kept, (len(shown), len(shown), [])]:
            tokens += self._stretch(shown[at:start], rendering, goes_on=at > 0)
            tokens += ids
            at = end
        return self._with_bos(tokens)

    def bare(self, text: str) -> list[int]:
        """Return token ids of a text without a template; at least one."""
        self._check_room(text)
        return self._with_bos(self._parsed(text, special=False)) or [self._bos]

    def _check_room(self, text: str) -> None:
        """Raise ContextOverflow for a text that is surely too long: tokenizing ten megabytes takes a gigabyte of memory."""
        if self.most is not None and len(text) > self.most:
            need = self._tokenizer.fewest(text.encode("utf-8", "replace"))
            if need > self.most:
                raise ContextOverflow(self.most, need, counted=False)

    # -- answers as they were generated ------------------------------------------------------------

    def kept(
        self, rendering: Rendering, opening: str, answers: Iterable[Sequence[int]]
    ) -> list[tuple[int, int, list[int]]]:
        """Find answers that stand in `rendering.shown` as generated, after `opening`: start, end and tokens of each."""
        found, at = [], 0
        for answer in answers:
            for ids in (list(answer), self.without_end(answer, space=True)):
                text = self.text(ids)
                start = rendering.find(opening, text, at) if text else -1
                if start >= 0:
                    begin, at = start + len(opening), start + len(opening) + len(text)
                    found.append((rendering.place(begin), rendering.place(at), ids))
                    break
        return found

    def alternating(self, parts: Iterable[str]) -> list[int]:
        """Return the tokens of texts and marks in turn. Only the marks, every second part, may be control tokens."""
        made: list[int] = []
        for n, part in enumerate(parts):
            made += self._tokenized(part, special=n % 2 == 1, goes_on=True)
        return made

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of tokens, control tokens included."""
        return b"".join(map(self.vocabulary.piece, ids)).decode("utf-8", "replace")

    @cached_property
    def ends(self) -> frozenset[str]:
        """Control words that end an answer."""
        control = self.vocabulary.control.items()
        return frozenset(
            word for word, i in control if llama_cpp.llama_vocab_is_eog(self._vocab, i)
        )

    def without_end(self, ids: Iterable[int], *, space: bool = False) -> list[int]:
        """Return the tokens without end-of-generation tokens at the end, and with `space` without white space there."""
        kept = list(ids)
        while kept and (
            llama_cpp.llama_vocab_is_eog(self._vocab, kept[-1])
            or (space and not self.vocabulary.piece(kept[-1]).strip())
        ):
            kept.pop()
        return kept

    # -- stretches -----------------------------------------------------------------------------------

    def _stretch(self, text: str, rendering: Rendering, *, goes_on: bool) -> list[int]:
        """Tokenize template and contents together. goes_on: whether an answer's tokens come before them."""
        if not rendering.is_signed:
            return self._tokenized(text, special=True, goes_on=goes_on)
        tokens: list[int] = []
        control, at, after, strip = self.vocabulary.control, 0, goes_on, False
        for match in control.pattern.finditer(text):
            token = control[match[0]]
            before, behind = self.vocabulary.strips(token)
            piece = text[at : match.start()]
            piece = piece.lstrip(_SPACE) if strip else piece
            piece = piece.rstrip(_SPACE) if before else piece
            tokens += self._words(piece, rendering, goes_on=after)
            tokens.append(token)
            at, after, strip = match.end(), False, behind
        piece = text[at:]
        return tokens + self._words(
            piece.lstrip(_SPACE) if strip else piece, rendering, goes_on=after
        )

    def _words(self, text: str, rendering: Rendering, *, goes_on: bool) -> list[int]:
        """Tokenize the text between control tokens. Words with a sign inside are split there, so that they stay text."""
        tokens: list[int] = []
        for piece in text.replace(rendering.signs[0], "").split(rendering.signs[1]):
            tokens += self._tokenized(piece, special=False, goes_on=goes_on)
            goes_on = True
        return tokens

    def _tokenized(self, text: str, *, special: bool, goes_on: bool) -> list[int]:
        """Tokenize a text. goes_on: leave out the space that some vocabularies put in front."""
        if not text:
            return []
        if goes_on and (newline := self._newline):
            tokens = self._parsed("\n" + text, special=special)
            if tokens[: len(newline)] == newline:
                return tokens[len(newline) :]
        return self._parsed(text, special=special)

    def _parsed(self, text: str, *, special: bool) -> list[int]:
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise InputEncoding(
                f"the prompt is not UTF-8 at character {error.start}", "decode it first"
            ) from None
        return list(self._tokenizer.tokenize(data, add_bos=False, special=special))

    @cached_property
    def _newline(self) -> list[int]:
        """Tokens of a newline, for vocabularies that may put a space in front of a text; empty for others."""
        if llama_cpp.llama_vocab_type(self._vocab) != llama_cpp.LLAMA_VOCAB_TYPE_SPM:
            return []
        try:
            return self._parsed("\n", special=False)
        except InputError:  # the vocabulary has no newline
            return []

    def _with_bos(self, tokens: list[int]) -> list[int]:
        """Put the BOS token in front if this vocabulary wants one and the template did not write it."""
        begun = not self._add_bos or tokens[:1] == [self._bos]
        return tokens if begun else [self._bos, *tokens]
