"""From an answer's tokens to its parts: the one way for every door."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pyspec.errors import InputError
from pyspec.text.calls.grammar import after_reasoning, calls_grammar, content_or_calls, lazy_grammar
from pyspec.text.notation import Notation
from pyspec.text.parser import AnswerParser
from pyspec.text.parts import AnswerPart
from pyspec.text.reasoning import EFFORTS, Start, known_efforts, nearest_effort, quiet_arguments
from pyspec.text.stream import TextAssembler
from pyspec.text.template import ChatTemplate
from pyspec.text.tokenizer import piece_reader

_TAIL = 48
"""Tokens at a prompt's end in which reasoning may have begun."""

TokenBytes = Callable[[int], bytes]


class AnswerReader:
    """Turns tokens into parts, without ever showing half a character, half a mark or a stop string.

    piece: bytes of one token id. stop: strings that end the answer where its content has them; reasoning and calls do not end
    there. parser: None for a text that has neither.
    """

    def __init__(
        self, piece: TokenBytes, stop: Iterable[str] = (), parser: AnswerParser | None = None
    ) -> None:
        self._stop, self._parser = tuple(stop), parser
        self._text = TextAssembler(piece, () if parser else self._stop)
        self._content = _stopping(self._stop)
        self.reasoned = 0
        """Tokens of reasoning so far."""

    @property
    def done(self) -> bool:
        """Whether a stop string was met; further tokens are ignored."""
        return self._content.done if self._parser else self._text.done

    @property
    def stopped_by(self) -> str | None:
        """The stop string that was met."""
        text: TextAssembler = self._content if self._parser else self._text
        return text.stopped_by

    @property
    def inside(self) -> bool:
        """Whether what comes next is reasoning; at the end: whether the answer was cut there."""
        return self._parser is not None and self._parser.inside

    def reason(self, ended: str | None) -> str | None:
        """Why an answer that `ended` so did: "tool_calls" where it stopped with complete calls."""
        called = self._parser is not None and self._parser.calls.complete > 0
        return "tool_calls" if called and ended == "stop" else ended

    def push(self, ids: Iterable[int]) -> list[AnswerPart]:
        """What these tokens make safe to give on; where they may be reasoning they are read one by one, and counted."""
        if not self.inside:
            return self._push(ids)
        parts: list[AnswerPart] = []
        for token in ids:
            parts += self._push([token])
            self.reasoned += self.inside
        return parts

    def _push(self, ids: Iterable[int]) -> list[AnswerPart]:
        if self.done:
            return []
        text = self._text.push(ids)
        if self._parser is None:
            return _content(text)
        return self._stopped(self._parser.push(text)) if text else []

    def finish(self) -> list[AnswerPart]:
        """What was held back at the end."""
        if self.done:
            return []
        text = self._text.finish()
        if self._parser is None:
            return _content(text)
        parts = self._stopped([*self._parser.push(text), *self._parser.finish()])
        return parts if self.done else parts + _content(self._content.finish())

    def _stopped(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        """The parts up to a stop string in the content."""
        if not self._stop:
            return parts
        made: list[AnswerPart] = []
        for part in parts:
            if part.kind == "content":
                made += _content(self._content.push([part.text]))
            else:  # content goes on behind it as another text
                made += [*_content(self._content.finish()), part]
                self._content = _stopping(self._stop)
            if self.done:
                break
        return made


def _stopping(stop: Sequence[str]) -> Any:
    """Finds stop strings in texts: an assembler whose tokens are texts."""
    return TextAssembler(lambda text: str(text).encode(), stop)


def _content(text: str) -> list[AnswerPart]:
    return [AnswerPart("content", text)] if text else []


class Speech:
    """How one model writes answers: its notation, and the tokens that its marks are.

    sources: its chat templates. tokenizer: a `GuardedTokenizer`. piece: bytes of a token, of control tokens none. quiet:
    variables with which its template asks for no reasoning, or for the least; none where it has no such.
    """

    def __init__(self, sources: Iterable[str], tokenizer: Any, piece: TokenBytes) -> None:
        self._tokenizer, self._piece = tokenizer, piece
        self._tokens: dict[str, int | None] = {}
        self._pieces: dict[bool, TokenBytes] = {}
        text = "\n".join(sources)
        self.notation = Notation.of(text, lambda mark: self.token_of(mark) is not None)
        self.quiet = quiet_arguments(text)
        self._effort = known_efforts(text)

    def arguments(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Template variables, a `reasoning_effort` among them in the template's own words where it takes no others."""
        made = dict(asked)
        if self._effort and made.get("reasoning_effort") in EFFORTS:
            name, words = self._effort
            word = nearest_effort(made.pop("reasoning_effort"), words)
            made = {name: word, **made}
        return made

    def token_of(self, mark: str) -> int | None:
        """The one token that a mark is, or None."""
        if mark not in self._tokens:
            try:
                ids = self._tokenizer.tokenize(mark.encode(), add_bos=False, special=True)
            except InputError:  # a vocabulary that cannot spell it
                ids = []
            whole = len(ids) == 1 and self._spelled(ids) == mark
            self._tokens[mark] = ids[0] if whole else None
        return self._tokens[mark]

    def start(self, prompt: Sequence[int]) -> Start:
        """Where an answer to this prompt begins."""
        return self.notation.start(self._spelled(list(prompt[-_TAIL:])))

    def _spelled(self, ids: list[int]) -> str:
        """What tokens read, control tokens too."""
        data: bytes = self._tokenizer.detokenize(ids, special=True)
        return data.decode("utf-8", "replace")

    @classmethod
    def of(cls, llm: Any) -> Speech:
        """Of a `llama_cpp.Llama` that is a `TargetLlama`."""
        vocab = llm._model.vocab  # noqa: SLF001 - llama_cpp has no public way
        return cls(ChatTemplate.of(llm).sources.values(), llm.tokenizer_, piece_reader(vocab))

    def reader(
        self,
        prompt: Sequence[int],
        stop: Iterable[str] = (),
        *,
        functions: Mapping[str, Any] | None = None,
        name: str = "",
        goes_on: bool = False,
    ) -> AnswerReader:
        """A reader of the answer to a prompt. functions, name: as `AnswerParser` has them. goes_on: behind content of its own."""
        parser = AnswerParser(
            self.notation,
            inside=not goes_on and self.start(prompt) == "inside",
            functions=functions,
            name=name,
        )
        return AnswerReader(self._showing(tools=bool(functions)), stop, parser)

    def shape(
        self,
        prompt: Sequence[int],
        grammar: str | None = None,
        functions: Mapping[str, Any] | None = None,
        wanted: str | None = None,
        parallel: bool | None = None,
    ) -> tuple[str, str | None] | None:
        """The grammar of the answer to a prompt, and a pattern of the text from which on it holds, or None for all of it.

        grammar: what the content has to look like, if there is any. functions: which may be called; wanted: the one that
        must be, or "required" for any of them; parallel: False for one call at most, True for several where one must be.
        Raises InputError.
        """
        if grammar is None and functions and wanted is None:
            return lazy_grammar(self.notation, functions, many=parallel is not False)
        start = self.start(prompt)
        if grammar is not None and functions and wanted is None:
            text = content_or_calls(
                self.notation, grammar, functions,
                many=parallel is not False, start=start, token_of=self.token_of,
            )  # fmt: skip
            return text, None
        if grammar is not None and not functions:
            text = after_reasoning(self.notation, grammar, start=start, token_of=self.token_of)
            return text, None
        if not functions:
            return None
        named = {name: schema for name, schema in functions.items() if name == wanted}
        text = calls_grammar(
            self.notation, named or functions,
            many=parallel is True and not named, start=start, token_of=self.token_of,
        )  # fmt: skip
        return text, None

    def plain_reader(self, stop: Iterable[str] = ()) -> AnswerReader:
        """A reader of a text that is no chat's answer, and of which everything is content."""
        return AnswerReader(self._piece, stop)

    def _showing(self, *, tools: bool) -> TokenBytes:
        """Bytes of tokens, those of marks too."""
        if tools not in self._pieces:
            marks = {
                self.token_of(mark): mark.encode() for mark in self.notation.marks(tools=tools)
            }
            plain = self._piece
            self._pieces[tools] = lambda token: marks.get(token) or plain(token)
        return self._pieces[tools]
