"""Tokenizes prompts: a template's control words become control tokens, and all that others wrote stays text.

`FillIn` makes prompts that ask for the text between two others, by the vocabulary's own tokens for that (`tokenizer.ggml.fim_*`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import llama_cpp

from pyspec.errors import ContextOverflow, InputEncoding, InputError
from pyspec.text.stream import begun
from pyspec.vocab import PARSED, Words, piece_reader, tokens_with, words_of

_LONGEST = 256  # how many characters at a text's beginning are checked for the end of a word
_BRACKETS = tuple("<[{\uff5c|\u2581")


class ControlWords(Words):
    """Words that only a template may write."""

    @cached_property
    def edges(self) -> frozenset[str]:
        """First and last characters of the words that have a bracket or the like at both ends: no letter, digit or space."""
        return frozenset(chain.from_iterable((word[0], word[-1]) for word in self if _closed(word)))

    @cached_property
    def open_ended(self) -> ControlWords:
        """Words that have a letter, a digit or a space at an end."""
        return ControlWords({word: i for word, i in self.items() if not _closed(word)})

    @cached_property
    def joined(self) -> str:
        """All words as one text, in which parts of them can be found."""
        return "\0".join(self)

    @cached_property
    def _both_ways(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The words, and the same read backwards."""
        return tuple(self), tuple(word[::-1] for word in self)

    def joins(self, text: str) -> list[int]:
        """Return the ends of a text at which a neighbouring text could complete a word: 0, and the text's length."""
        words, backwards = self._both_ways
        places = [len(text)] if begun(text, words) else []
        return places + [0] * (begun(text[:_LONGEST][::-1], backwards) > 1)


def _closed(word: str) -> bool:
    return not any(end.isalnum() or end.isspace() for end in (word[0], word[-1]))


@dataclass(frozen=True)
class Rendering:
    """A conversation as its template writes it."""

    text: str
    breaks: dict[int, bool] = field(default_factory=dict)
    """Places that no control word spans, and whether words that are tokens in any text end there too."""

    @cached_property
    def _places(self) -> list[int]:
        return sorted(self.breaks)

    def before(self, mark: str) -> Rendering:
        """Return the part before the last `mark`. Raises InputError if the template dropped the mark."""
        at = self.text.rfind(mark)
        if at < 0:
            raise InputError(
                "this model's chat template cannot continue an answer",
                "end with a user message",
            )
        return replace(self, text=self.text[:at])

    def inside(self, start: int, end: int) -> list[int]:
        """Return the breaks between two places, without them."""
        return self._places[bisect_right(self._places, start) : bisect_left(self._places, end)]

    def find(self, opening: str, answer: str, at: int) -> int:
        """Return where the template opens this answer, from `at` on; -1 if nowhere. A text that says the same does not count."""
        while (at := self.text.find(opening + answer, at)) >= 0:
            if not self.inside(at - 1, at + len(opening)):
                return at
            at += 1
        return -1


class PromptTokenizer:
    """Tokenizes renderings with the tokenizer of a `llama_cpp.Llama`."""

    def __init__(self, llm: Any) -> None:
        # not the model itself, which may hold whatever holds this object
        self._tokenizer, self._vocab = llm.tokenizer_, llm._model.vocab
        self._piece = piece_reader(self._vocab, special=True)  # of any token
        self._add_bos, self._bos = bool(llm._model.add_bos_token()), llm.token_bos()
        self.most: int | None = None  # tokens of the longest prompt that fits, if known

    @cached_property
    def control(self) -> ControlWords:
        """Control tokens and the unknown token: tokens only if the text is parsed for them."""
        return ControlWords(words_of(self._vocab, tokens_with(self._vocab, PARSED)))

    @cached_property
    def defined(self) -> dict[str, int]:
        """Words that llama.cpp turns into one token wherever they occur, if they look like marks, with a bracket in front."""
        tokens = tokens_with(self._vocab, llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED)
        found = words_of(self._vocab, tokens)
        return {word: i for word, i in found.items() if word.startswith(_BRACKETS) and word[1:]}

    def prompt(
        self, rendering: Rendering, kept: Sequence[tuple[int, int, list[int]]] = ()
    ) -> list[int]:
        """Return token ids of a rendering. kept: stretches of its text, with the tokens to use for each."""
        tokens: list[int] = []
        if not kept:
            self._check_room(rendering.text)
        at, last = 0, len(rendering.text)
        for start, end, ids in [*kept, (last, last, [])]:
            tokens += self._stretch(rendering, at, start)
            tokens += ids
            at = end
        return self.with_bos(tokens)

    def bare(self, text: str) -> list[int]:
        """Return token ids of a text without a template; at least one."""
        self._check_room(text)
        return self.with_bos(self.parsed(text, special=False)) or [self._bos]

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
        """Find answers that stand in a rendering as generated, after `opening`: start, end and tokens of each."""
        found, at = [], 0
        for answer in answers:
            for ids in (list(answer), self.without_end(answer, space=True)):
                text = self.text(ids)
                start = rendering.find(opening, text, at) if text else -1
                if start >= 0:
                    begin, at = start + len(opening), start + len(opening) + len(text)
                    found.append((begin, at, ids))
                    break
        return found

    def alternating(self, parts: Iterable[str]) -> list[int]:
        """Return the tokens of texts and marks in turn. Only the marks, every second part, may be control tokens."""
        made: list[int] = []
        for n, part in enumerate(parts):
            made += self._spelled(part, special=n % 2 == 1, inner=True)
        return made

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of tokens, control tokens included."""
        return b"".join(map(self._piece, ids)).decode("utf-8", "replace")

    @cached_property
    def ends(self) -> frozenset[str]:
        """Control words that end an answer."""
        is_end = llama_cpp.llama_vocab_is_eog
        return frozenset(word for word, i in self.control.items() if is_end(self._vocab, i))

    def without_end(self, ids: Iterable[int], *, space: bool = False) -> list[int]:
        """Return the tokens without end-of-generation tokens at the end, and with `space` without white space there."""
        kept = list(ids)
        while kept and (
            llama_cpp.llama_vocab_is_eog(self._vocab, kept[-1])
            or (space and not self._piece(kept[-1]).strip())
        ):
            kept.pop()
        return kept

    # -- stretches -----------------------------------------------------------------------------------

    def _stretch(self, rendering: Rendering, start: int, end: int) -> list[int]:
        """Tokenize template and contents together. Behind the first stretch an answer's tokens come before them."""
        text, inner = rendering.text, start > 0
        if not rendering.breaks:
            return self._spelled(text[start:end], special=True, inner=inner)
        tokens, words = list[int](), list[str]()  # `words` are those since the last token
        for begin, stop in pairwise([start, *rendering.inside(start, end), end]):
            for piece in self.control.split(text[begin:stop], self._vocab):
                if isinstance(piece, str):
                    words.append(piece)
                    continue
                tokens += [*self._spelled("".join(words), special=False, inner=inner), piece]
                words, inner = [], False
            if rendering.breaks.get(stop) or stop == end:
                tokens += self._spelled("".join(words), special=False, inner=inner)
                words, inner = [], True
        return tokens

    def _spelled(self, text: str, *, special: bool, inner: bool) -> list[int]:
        """Tokenize a text. inner: leave out the space that some vocabularies put in front."""
        if text and inner and (newline := self._newline):
            tokens = self.parsed("\n" + text, special=special)
            if tokens[: len(newline)] == newline:
                return tokens[len(newline) :]
        return self.parsed(text, special=special)

    def parsed(self, text: str, *, special: bool) -> list[int]:
        """Return the tokens of a text; control words are tokens if `special`. Raises InputError."""
        if not text:
            return []
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
            return self.parsed("\n", special=False)
        except InputError:  # the vocabulary has no newline
            return []

    def with_bos(self, tokens: list[int]) -> list[int]:
        """Put the BOS token in front if this vocabulary wants one and the template did not write it."""
        written = not self._add_bos or tokens[:1] == [self._bos]
        return tokens if written else [self._bos, *tokens]


_SNIPPET = "\n\n--- snippet ---\n\n"
"""What stands before another file's text where the vocabulary has no token for that, as in llama-server."""


class OtherFile(NamedTuple):
    """Another file that may help. name: empty if unknown."""

    name: str
    text: str


class FillIn:
    """Makes prompts for one model. llm: a `TargetLlama`. Raises InputError for a model that was not made for this."""

    def __init__(self, llm: Any) -> None:
        vocab = llm._model.vocab
        self._before, self._after, self._middle = (
            int(getattr(llama_cpp, f"llama_vocab_fim_{name}")(vocab))
            for name in ("pre", "suf", "mid")
        )
        self._project, self._file = (
            int(getattr(llama_cpp, f"llama_vocab_fim_{name}")(vocab)) for name in ("rep", "sep")
        )
        if min(self._before, self._after, self._middle) < 0:
            raise InputError(
                "this model has no tokens for filling in (tokenizer.ggml.fim_*)",
                "leave the suffix out, or use a model for code, such as Qwen2.5-Coder",
            )
        tokens = PromptTokenizer(llm)
        self._text = partial(tokens.parsed, special=False)  # no control token is among them
        self._bos = tokens.with_bos([])
        self._suffix_first = bool(getattr(llm, "spm_infill", False))

    def tokens(self, prefix: str, suffix: str) -> list[int]:
        """Return the prompt for the text between these."""
        return self._joined(self._text(prefix), self._text(suffix))

    def fitting(
        self, prefix: str, suffix: str, others: Sequence[OtherFile], room: int
    ) -> list[int]:
        """Return such a prompt of at most so many tokens, with other files in front as far as there is room.

        What is farthest from the gap is left out; of prefix and suffix, the suffix keeps a quarter if both are long.
        """
        before, after = self._text(prefix), self._text(suffix)
        left = max(0, room - len(self._bos) - 3)
        n_after = min(len(after), max(left // 4, left - len(before)))
        n_before = min(len(before), left - n_after)
        front = self._others(others)
        n_front = min(len(front), left - n_after - n_before)
        kept = front[len(front) - n_front :]
        return self._joined(before[len(before) - n_before :], after[:n_after], kept)

    def _joined(self, before: list[int], after: list[int], front: Sequence[int] = ()) -> list[int]:
        first, second = [self._before, *before], [self._after, *after]
        if self._suffix_first:
            first, second = second, first
        return [*self._bos, *front, *first, *second, self._middle]

    def _others(self, others: Sequence[OtherFile]) -> list[int]:
        if not others:
            return []
        marked = self._project >= 0 and self._file >= 0
        made = [self._project, *self._text("project\n")] if marked else []
        for each in others:
            head = [self._file, *self._text(f"{each.name}\n")] if marked else self._text(_SNIPPET)
            made += [*head, *self._text(each.text)]
        return [*made, self._file, *self._text("file\n")] if marked else made
