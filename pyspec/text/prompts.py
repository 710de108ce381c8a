"""Tokenizes prompts: a template's control words become control tokens, and all that others wrote stays text.

A control word begins and ends with brackets or the like. If no text of a request has these characters, each control word in its
rendering is the template's own, however the template cuts and joins texts. So a veil replaces them by stand-ins before the
template runs, and puts them back afterwards. A stand-in is digits, which JSON, Python's notation and percent-encoding write as
they are: a prefix, drawn at random for each prompt, which occurs nowhere in the request, and a code for the character.

For example, a user of a model with ChatML's marks says `a <|im_end|> b`. P is the prefix:

    Veil.hide   a P001|im_endP003 b
    template    <|im_start|>user a P001|im_endP003 b<|im_end|>     the two control words are the template's own
    Veil.read   <|im_start|>user a <|im_end|> b<|im_end|>          and breaks around the first < and >: `Rendering.breaks`

`PromptTokenizer` makes control tokens of words that span no break, so the user's word becomes ordinary tokens.

`FillIn` makes prompts that ask for the text between two others, by the vocabulary's own tokens for that (`tokenizer.ggml.fim_*`).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import llama_cpp

from pyspec.errors import ContextOverflow, InputEncoding, InputError
from pyspec.text.messages import cut_of, unused_digits
from pyspec.text.stream import any_of, begun
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


# -- the veil ----------------------------------------------------------------------------------------------------------

_ROLES = frozenset(
    ["system", "developer", "user", "assistant", "tool", "function", "model", "ipython", "observation", "context", "documents"]
)  # fmt: skip
_OWN = ("system", "developer", "assistant")  # whose marks are meant, but for those around turns
_TYPES = frozenset(["function", "text", "object", "array", "string", "number", "integer", "boolean", "null"])  # fmt: skip
_KINDS = {"role": _ROLES, "type": _TYPES}  # words that a template knows, by their key


class Veil:
    """Hides the characters of one request's control words from its template.

    control: words that are tokens only if a template writes them. defined: words that are tokens in any text, unless something
    breaks them. around: words around turns. written: texts in which the prefix must not occur.
    """

    def __init__(
        self,
        control: ControlWords,
        defined: Collection[str],
        around: Collection[str],
        *written: str,
    ) -> None:
        self._control = control
        self._prefix = unused_digits(*written)
        self._cut = cut_of(self._prefix)
        edges = control.edges | {word[0] for word in defined}
        self._open_ended, self._parts = control.open_ended, control.joined
        self._around = frozenset(around)
        self._defined, self._pattern = any_of(tuple(defined)), any_of(tuple(edges))
        self._seaming = True
        codes = [(char, own) for char in sorted(edges) for own in (False, True)]
        self._standing = {key: f"{self._prefix}{code:03d}" for code, key in enumerate(codes, 1)}
        self._hidden = {f"{code:03d}": key for code, key in enumerate(codes, 1)}
        self._plain = {code: char for code, (char, _) in self._hidden.items()}
        self._seam = f"{self._prefix}000"
        self._found = re.compile(self._prefix + r"(\d{3})")
        self.seams = False
        """Whether texts of the last request were broken because they could be the inside of a control word."""
        self.hid = False  # whether anything was hidden in the last request

    def hide(self, inputs: Mapping[str, Any], *, seams: bool = True) -> dict[str, Any]:
        """Return a template's input with stand-ins. seams: whether to break texts that could be the inside of a control word."""
        self.hid = self.seams = False
        self._seaming = seams
        return {
            key: [self._turn(turn) for turn in part] if key == "messages" else self._part(part, "")
            for key, part in inputs.items()
        }

    def _turn(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self._field(key, each, turn["role"]) for key, each in turn.items()}

    def _part(self, part: Any, role: str, *, own_keys: bool = False) -> Any:
        """Return a part with stand-ins. own_keys: whether its keys are a caller's."""
        if isinstance(part, str):
            return self._text(part, role)
        if isinstance(part, Mapping):
            return {
                self._text(key, role, seams=own_keys) if isinstance(key, str) else key: self._field(
                    key, each, role, own_keys=own_keys
                )
                for key, each in part.items()
            }
        if isinstance(part, (list, tuple)):
            return [self._part(each, role, own_keys=own_keys) for each in part]
        return part

    def _field(self, key: str, value: Any, role: str, *, own_keys: bool = False) -> Any:
        if key in _KINDS and isinstance(value, str) and value in _KINDS[key] and not own_keys:
            return value
        return self._part(value, role, own_keys=own_keys or key == "arguments")

    def _text(self, text: str, role: str, *, seams: bool = True) -> str:
        made = self._broken(self._replaced(text, own=role in _OWN))
        core = text.strip()
        if seams and self._seaming and core and made == text and core in self._parts:
            self.seams = self.hid = True
            at = text.find(core) + 1
            made = text[:at] + self._seam + text[at:]
        return made

    def _replaced(self, text: str, *, own: bool) -> str:
        made = self._pattern.sub(lambda found: self._standing[found[0], own], text)
        self.hid |= made != text
        return made

    def _broken(self, text: str) -> str:
        """Put a seam into words that begin or end with a letter, and where a neighbouring text could complete one."""
        words = self._open_ended
        if not words:
            return text
        found = words.places(text, overlapping=True)
        places = {start + 1 for start, _ in found} | set(words.joins(text))
        self.hid |= bool(places)
        for at in sorted(places, reverse=True):
            text = text[:at] + self._seam + text[at:]
        return text

    def frame(self, shown: str) -> list[str]:
        """Return the control words that a rendering with stand-ins has: they are the template's own."""
        return [shown[start:end] for start, end in self._control.places(shown)]

    def bare(self, shown: str) -> str:
        """Return a rendering with all characters put back. Raises InputError if its template has cut stand-ins."""
        plain = self._plain.get
        made = self._found.sub(lambda found: plain(found[1], ""), shown)
        if self._cut.search(made):
            raise InputError(
                "the model's chat template cuts this conversation's texts where they have control words' characters",
                "leave out brackets such as < and [",
            )
        return made

    def read(self, shown: str) -> Rendering:
        """Return a rendering with characters put back, and breaks before and behind what was hidden."""
        text, breaks = self.bare(shown), dict[int, bool]()
        at = put = 0  # `put` is the place in `text` of what stands at `at`
        for found in self._found.finditer(shown):
            put += found.start() - at
            at, (char, own) = found.end(), self._hidden.get(found[1], _SEAM)
            word = self._defined.match(text, put) if char else None
            breaks.setdefault(put, False)
            put += len(char)
            ends = word is not None and (not own or word[0] in self._around)
            breaks[put] = ends or breaks.get(put, False)
        return Rendering(text, breaks)


_SEAM = ("", True)  # what a seam stands for: no character


Render = Callable[[Mapping[str, Any]], "str | None"]
"""Renders a template's input; None if the template refuses it."""


def veiled(veil: Veil, inputs: Mapping[str, Any], plain: str, render: Render) -> str | None:
    """Render a request behind a veil. None if the template refuses it. plain: the rendering without a veil."""
    found = render(veil.hide(inputs))
    if found is None or veil.bare(found) == plain or not veil.seams:
        return found
    # what was broken may be names that the template knows, rather than insides of words
    without = render(veil.hide(inputs, seams=False))
    return without if without and veil.frame(without) == veil.frame(found) else found


# -- the text between two others -----------------------------------------------------------------------------------------

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
