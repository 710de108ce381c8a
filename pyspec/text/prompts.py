"""Rendered conversations as tokens: the template's control words are control tokens, all else is text."""

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
    """A conversation as its template writes it.

    shown: the text, with `signs` where something in it shall stay text: in control words, and in defined ones.
    """

    text: str
    shown: str
    signs: tuple[str, str]

    @property
    def is_signed(self) -> bool:
        """Whether anything had to be kept from becoming a control token."""
        return self.shown != self.text

    def before(self, mark: str) -> Rendering:
        """What stands in front of the last such mark. Raises InputError where the template dropped it."""
        at, place = self.text.rfind(mark), self.shown.rfind(mark)
        if at < 0:
            raise InputError(
                "this model's chat template has no place for an answer that was begun",
                "end with a message of the user's",
            )
        return replace(self, text=self.text[:at], shown=self.shown[:place])

    def place(self, at: int) -> int:
        """Where a place of the text is in `shown`, behind the signs there."""
        if not self.is_signed:
            return at
        gone = [i for i, char in enumerate(self.shown) if char in self.signs]
        places = [i - n for n, i in enumerate(gone)]
        return at + bisect_left(places, at)


class PromptTokenizer:
    """Makes tokens of renderings, with a `llama_cpp.Llama`'s tokenizer."""

    def __init__(self, llm: Any) -> None:
        # not the model itself: who holds this may be held by it
        self._tokenizer, self._vocab = llm.tokenizer_, llm._model.vocab
        self.vocabulary = Vocabulary(self._vocab)
        self._add_bos, self._bos = bool(llm._model.add_bos_token()), llm.token_bos()
        self.most: int | None = None
        """Tokens of the longest prompt there is room for, where that is known."""

    def prompt(
        self, rendering: Rendering, kept: Sequence[tuple[int, int, list[int]]] = ()
    ) -> list[int]:
        """Token ids of a rendering; `kept` ones stand for the stretches of `shown` that they were."""
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
        """Token ids of a text that is nothing else; at least one."""
        self._check_room(text)
        return self._with_bos(self._parsed(text, special=False)) or [self._bos]

    def _check_room(self, text: str) -> None:
        """Raise ContextOverflow for what is too long whatever its tokens: making them takes a gigabyte for ten megabytes."""
        if self.most is not None and len(text) > self.most:
            need = self._tokenizer.fewest(text.encode("utf-8", "replace"))
            if need > self.most:
                raise ContextOverflow(self.most, need, counted=False)

    # -- answers as they were generated ------------------------------------------------------------

    def kept(
        self, rendering: Rendering, opening: str, answers: Iterable[Sequence[int]]
    ) -> list[tuple[int, int, list[int]]]:
        """Where in `rendering.shown` answers stand as they were generated, behind `opening`, and their tokens."""
        found, at = [], 0
        for answer in answers:
            for ids in (list(answer), self.without_end(answer, space=True)):
                text = self.text(ids)
                start = rendering.text.find(opening + text, at) if text else -1
                if start >= 0:
                    begin, at = start + len(opening), start + len(opening) + len(text)
                    found.append((rendering.place(begin), rendering.place(at), ids))
                    break
        return found

    def text(self, ids: Iterable[int]) -> str:
        """What tokens read, control tokens too."""
        return b"".join(map(self.vocabulary.piece, ids)).decode("utf-8", "replace")

    def without_end(self, ids: Iterable[int], *, space: bool = False) -> list[int]:
        """The tokens without those at their end that only end them, and with `space` without white space there."""
        said = list(ids)
        while said and (
            llama_cpp.llama_vocab_is_eog(self._vocab, said[-1])
            or (space and not self.vocabulary.piece(said[-1]).strip())
        ):
            said.pop()
        return said

    # -- stretches -----------------------------------------------------------------------------------

    def _stretch(self, text: str, rendering: Rendering, *, goes_on: bool) -> list[int]:
        """Tokens of template and contents together; goes_on: an answer's tokens stand before them."""
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
        """Tokens of what stands between control tokens: of its words, none that has a sign inside."""
        tokens: list[int] = []
        for piece in text.replace(rendering.signs[0], "").split(rendering.signs[1]):
            tokens += self._tokenized(piece, special=False, goes_on=goes_on)
            goes_on = True
        return tokens

    def _tokenized(self, text: str, *, special: bool, goes_on: bool) -> list[int]:
        """Tokens of a text; goes_on: without the space that some vocabularies put in front."""
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
        """Tokens of a line's end where a vocabulary may put a space in front of texts; none for others."""
        if llama_cpp.llama_vocab_type(self._vocab) != llama_cpp.LLAMA_VOCAB_TYPE_SPM:
            return []
        try:
            return self._parsed("\n", special=False)
        except InputError:  # it has no such character
            return []

    def _with_bos(self, tokens: list[int]) -> list[int]:
        """With the token that texts of this vocabulary begin with, unless the template wrote it."""
        begun = not self._add_bos or tokens[:1] == [self._bos]
        return tokens if begun else [self._bos, *tokens]
