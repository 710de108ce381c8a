"""Turns the tokens of an answer into its parts. All interfaces share this code."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspec.errors import InputError
from pyspec.grammar.languages import Constraint, Language
from pyspec.grammar.schemas import ANY_OBJECT, tool_schema
from pyspec.text.call_grammar import AnswerGrammar
from pyspec.text.notation import (
    CHANNEL,
    EFFORTS,
    MESSAGE,
    START,
    THINK,
    Notation,
    Start,
    known_efforts,
    nearest_effort,
    quiet_arguments,
)
from pyspec.text.parser import AnswerParser, joined
from pyspec.text.parts import AnswerPart
from pyspec.text.stream import StopFinder
from pyspec.text.template import ChatTemplate
from pyspec.vocab import piece_reader

_TAIL = 48  # tokens at a prompt's end that are searched for the start of reasoning
TokenBytes = Callable[[int], bytes]


class AnswerReader:
    """Turns tokens into parts, and never shows half a character, half a mark or a stop string.

    piece: bytes of one token id. stop: strings that end the answer if they occur in its content; in reasoning and calls they
    have no effect. parser: None for a text without reasoning and calls. forced: whether a call must be made. If that call was
    cut, what there is of it is not shown as text.
    """

    def __init__(
        self,
        piece: TokenBytes,
        stop: Iterable[str] = (),
        parser: AnswerParser | None = None,
        *,
        forced: bool = False,
    ) -> None:
        self._piece, self._parser, self._forced = piece, parser or AnswerParser(Notation()), forced
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._finder = StopFinder(stop)
        self._begun = parser is None
        self.reasoned = 0  # tokens of reasoning so far

    @property
    def stopped_by(self) -> str | None:
        """The stop string that was met, if any."""
        return self._finder.found

    @property
    def done(self) -> bool:
        """Whether a stop string was met; further tokens are ignored."""
        return self.stopped_by is not None

    @property
    def halfway(self) -> bool:
        """Whether the last token ended inside a character."""
        return bool(self._decoder.getstate()[0])

    @property
    def inside(self) -> bool:
        """Whether the next token belongs to reasoning; at the end, whether the answer was cut inside it."""
        return self._parser.inside

    def reason(self, ended: str | None) -> str | None:
        """Return the finish reason: "tool_calls" if the answer stopped with complete calls, else `ended`."""
        return "tool_calls" if self._parser.calls.complete and ended == "stop" else ended

    def push(self, ids: Iterable[int]) -> list[AnswerPart]:
        """Return the parts that these tokens make safe to show. Where they may be reasoning, they are counted one by one."""
        if self._begun and not self.inside:
            return self._push(ids)
        parts: list[AnswerPart] = []
        for token in ids:
            parts += self._push([token])
            self.reasoned += self.inside
        self._begun = any(part.kind == "content" for part in parts)
        return joined(parts)

    def _push(self, ids: Iterable[int]) -> list[AnswerPart]:
        if self.done:
            return []
        text = self._decoder.decode(b"".join(map(self._piece, ids)))
        return self._stopped(self._parser.push(text)) if text else []

    def finish(self) -> list[AnswerPart]:
        """Return what was held back until the end."""
        if self.done:
            return []
        rest = self._decoder.decode(b"", final=True)
        parts = [*self._parser.push(rest), *self._parser.finish()]
        if self._forced:
            kept = (part for part in parts if part.kind != "content")
            parts = [replace(each, text="") if each.kind == "broken" else each for each in kept]
        return joined(self._stopped(parts) + _content(self._finder.finish()))

    def _stopped(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        """Cut the parts at the first stop string in the content."""
        made: list[AnswerPart] = []
        for part in parts:
            if part.kind == "content":
                made += _content(self._finder.push(part.text))
            else:  # a stop string cannot span this part
                made += [*_content(self._finder.finish()), part]
            if self.done:
                break
        return made


def _content(text: str) -> list[AnswerPart]:
    return [AnswerPart("content", text)] if text else []


class Speech:
    """How one model writes answers: its notation, and which tokens stand for its marks.

    sources: its chat templates. tokenizer: a `GuardedTokenizer`. piece: bytes of a token, empty for control tokens.
    """

    def __init__(
        self, sources: Iterable[str], tokenizer: Any, piece: TokenBytes, architecture: str = ""
    ) -> None:
        self._tokenizer, self.piece, self.architecture = tokenizer, piece, architecture
        self._tokens: dict[str, int | None] = {}
        self._pieces: dict[bool, TokenBytes] = {}
        text = "\n".join(sources)
        self.notation = Notation.of(text, lambda mark: self.token_of(mark) is not None)
        self.quiet = quiet_arguments(text)
        """Template variables that ask for no reasoning, or as little as possible; empty if the template has none."""
        self._effort = known_efforts(text)
        self._budgets = "thinking_budget" in text

    def arguments(self, arguments: Mapping[str, Any], budget: int | None = None) -> dict[str, Any]:
        """Return the template variables; `reasoning_effort` becomes the nearest word if the template refuses others.

        budget: most tokens of reasoning; some templates tell the model.
        """
        made = dict(arguments)
        if budget is not None and self._budgets:
            made.setdefault("thinking_budget", budget)
        if self._effort and made.get("reasoning_effort") in EFFORTS:
            name, words = self._effort
            word = nearest_effort(made.pop("reasoning_effort"), words)
            made = {name: word, **made}
        return made

    def ids_of(self, text: str) -> list[int]:
        """Return the tokens of a text of the model's own, marks among them; empty if the vocabulary cannot spell it."""
        try:
            return list(self._tokenizer.tokenize(text.encode(), add_bos=False, special=True))
        except InputError:
            return []

    def token_of(self, mark: str) -> int | None:
        """Return the id of a mark that is a single token, else None."""
        if mark not in self._tokens:
            ids = self.ids_of(mark)
            whole = len(ids) == 1 and self._spelled(ids) == mark
            self._tokens[mark] = ids[0] if whole else None
        return self._tokens[mark]

    def start(self, prompt: Sequence[int]) -> Start:
        """Return whether an answer to this prompt begins inside reasoning, after it, or before any."""
        return self.notation.start(self._spelled(list(prompt[-_TAIL:])))

    def _spelled(self, ids: list[int]) -> str:
        data: bytes = self._tokenizer.detokenize(ids, special=True)
        return data.decode("utf-8", "replace")

    @classmethod
    def of(cls, llm: Any) -> Speech:
        vocab = llm._model.vocab
        architecture = llm.metadata.get("general.architecture", "")
        sources = ChatTemplate.of(llm).sources.values()
        return cls(sources, llm.tokenizer_, piece_reader(vocab), architecture)

    def reader(
        self,
        prompt: Sequence[int],
        stop: Iterable[str] = (),
        *,
        functions: Mapping[str, Any] | None = None,
        name: str = "",
        goes_on: bool = False,
        forced: bool = False,
    ) -> AnswerReader:
        """Return a reader of an answer.

        functions, name: see `AnswerParser`. goes_on: the prompt ends with content of it. forced: see `AnswerReader`.
        """
        parser = AnswerParser(
            self.notation,
            inside=not goes_on and self.start(prompt) == "inside",
            functions=functions,
            name=name,
        )
        return AnswerReader(self._showing(tools=bool(functions)), stop, parser, forced=forced)

    def shape(
        self,
        prompt: Sequence[int],
        content: Language | None = None,
        functions: Mapping[str, Any] | None = None,
        wanted: str | None = None,
        parallel: bool | None = None,
    ) -> Constraint | None:
        """Return what the answer to a prompt has to follow, or None for any text.

        content: what the content must look like; None for any text. functions: those that may be called. They are ignored
        beside a grammar of the caller's own, unless one is wanted. wanted: the one that must be called, or "required" for any.
        parallel: False for at most one call; True to allow several if one is required. Raises InputError.
        """
        if content is not None and content.source and wanted is None:
            functions = None
        functions = {name: tool_schema(schema) for name, schema in (functions or {}).items()}
        names = dict.fromkeys(functions, ANY_OBJECT)  # where schemas are too much for a grammar
        many, start = parallel is not False, self.start(prompt)

        def writer() -> AnswerGrammar:
            return AnswerGrammar(self.notation, self.token_of, start=start, many=many)

        if wanted is None and content is not None:
            if not functions:
                return Constraint(writer().after_reasoning(content))
            first, looser = (
                writer().content_or_calls(content, each) for each in (functions, names)
            )
            return Constraint(first, looser=looser)
        if not functions:
            return None
        if wanted is None:
            found, loose = writer().lazy(functions), writer().lazy(names)
            return Constraint(*found, looser=loose[0]) if found and loose else None
        named = {name: schema for name, schema in functions.items() if name == wanted}
        many = parallel is True and not named
        return Constraint(writer().calls(named or functions))

    def _showing(self, *, tools: bool) -> TokenBytes:
        """Return a function for the bytes of tokens that shows the notation's marks too."""
        if tools not in self._pieces:
            marks = {
                self.token_of(mark): mark.encode() for mark in self.notation.marks(tools=tools)
            }
            plain = self.piece
            self._pieces[tools] = lambda token: marks.get(token) or plain(token)
        return self._pieces[tools]


_TRIES = 3  # how often reasoning is ended in an answer; then the model is left alone
_HURRY = "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now."
"""What Qwen3 was trained to read before the end of reasoning that was cut."""


@dataclass(frozen=True)
class ReasoningLimit:
    """A limit on the reasoning of one answer."""

    tokens: int
    functions: Mapping[str, Any] = field(default_factory=dict)  # those that may be called
    goes_on: bool = False  # whether the prompt ends with content of the answer

    def budget(self, speech: Speech, prompt: Sequence[int]) -> Budget | None:
        """Return the budget of the answer to a prompt; None for a model that does not mark its reasoning."""
        end = speech.ids_of(reasoning_end(speech.notation, speech.architecture))
        if not end:
            return None
        reader = speech.reader(prompt, functions=self.functions, goes_on=self.goes_on)
        return Budget(reader, self.tokens, end)


def reasoning_end(notation: Notation, architecture: str = "") -> str:
    """Return the text that ends reasoning; empty if the model has no marks for it."""
    if notation.channels:
        return f"<|end|>{START}assistant{CHANNEL}final{MESSAGE}"
    if notation.reasoning is None:
        return ""
    if notation.reasoning != THINK:
        return notation.reasoning.close[0]
    hurry = _HURRY if architecture.startswith("qwen3") else ""
    return f"{hurry}\n{THINK.close[0]}\n\n"


class Budget:
    """Follows an answer, and says which token has to come next once its reasoning is to end.

    reader: of this answer. most: tokens of reasoning. end: tokens that end it.
    """

    def __init__(self, reader: AnswerReader, most: int, end: Sequence[int]) -> None:
        self._reader, self._most, self._end = reader, most, list(end)
        self._due: list[int] = []
        self._tries = _TRIES
        self._look()

    @property
    def next(self) -> int | None:
        """The token that has to come next; None for any."""
        return self._due[0] if self._due else None

    def accept(self, token: int) -> None:
        if self._due and self._due.pop(0) != token:
            self.give_up()
        if self._due or self._tries:
            self._reader.push([token])
        if not self._due:
            self._look()

    def give_up(self) -> None:
        """Let the answer go on as it will: something else forbids the end."""
        self._due, self._tries = [], 0

    def _look(self) -> None:
        spent = self._reader.inside and self._reader.reasoned >= self._most
        if spent and self._tries and not self._reader.halfway:  # half a character would stay half
            self._due, self._tries = list(self._end), self._tries - 1
