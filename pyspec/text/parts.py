"""The parts of an answer: reasoning, content and tool calls, streamed or as a whole."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspec.text.scan import Scanner
from pyspec.text.tokens import Step, TokenLogprobs

PartKind = Literal["reasoning", "content", "call", "arguments", "broken"]


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """The next part of an answer.

    "reasoning" and "content" carry text. "call" begins a call, and "arguments" adds to it. "broken" withdraws the call, whose
    arguments were cut or are not a JSON object.
    """

    kind: PartKind
    text: str
    """The function's name in a "call". In a "broken" one, what the model wrote, which a whole answer has as content."""
    index: int = 0
    """Number of the call, from 0."""
    id: str = ""
    """Id of the call, only in a "call"."""

    def delta(self) -> dict[str, Any]:
        """Return the part as the delta of an OpenAI chunk; empty for a broken call."""
        if self.kind in ("content", "reasoning"):
            return {"content" if self.kind == "content" else "reasoning_content": self.text}
        if self.kind == "call":
            call = Call(self.id, self.text).as_openai()
            return {"tool_calls": [{"index": self.index, **call}]}
        if self.kind == "arguments":
            return {"tool_calls": [{"index": self.index, "function": {"arguments": self.text}}]}
        return {}


@dataclass
class Call:
    """A function call."""

    id: str
    name: str
    arguments: str = ""
    """JSON text of an object."""

    def as_openai(self) -> dict[str, Any]:
        """Return the call as in an OpenAI message."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


class Piece(Step, frozen=True):
    """The result of one round: its tokens, and the parts of the answer that they made safe to show.

    The text may lag behind the tokens: a character split over tokens, or the possible beginning of a stop string, waits for
    the next piece.

    Attributes:
        tokens: The tokens of the round.
        finish_reason: As in `Step`; set only on the last piece.
        rows: Rows that the target decoded in the round.
        parts: Reasoning, content and calls, in the order of the answer.
        reasoning_cut: Whether the answer ended inside reasoning; set on the last piece.
        likely: Log-probabilities of each token, if requested.
    """

    parts: Sequence[AnswerPart] = ()
    reasoning_cut: bool = False
    likely: Sequence[TokenLogprobs | None] = ()

    @property
    def text(self) -> str:
        return self._joined("content", "broken")

    @property
    def reasoning(self) -> str:
        """The reasoning before the content of a chat answer."""
        return self._joined("reasoning")

    @property
    def calls(self) -> list[Call]:
        """Complete calls in these parts; empty unless the answer has ended."""
        return WholeAnswer.of(self.parts).calls if self.finish_reason else []

    def _joined(self, *kinds: PartKind) -> str:
        return "".join([part.text for part in self.parts if part.kind in kinds])


@dataclass
class WholeAnswer:
    """A whole answer, with its complete calls."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Iterable[AnswerPart]) -> WholeAnswer:
        texts: dict[str, list[str]] = {"reasoning": [], "content": []}
        calls: dict[int, tuple[AnswerPart, list[str]]] = {}
        for part in parts:
            if part.kind == "call":
                calls[part.index] = part, []
            elif part.kind == "arguments":
                calls[part.index][1].append(part.text)
            elif part.kind == "broken":
                del calls[part.index]
                texts["content"].append(part.text)
            else:
                texts[part.kind].append(part.text)
        made = [Call(begun.id, begun.text, "".join(text)) for begun, text in calls.values()]
        return cls("".join(texts["reasoning"]), "".join(texts["content"]), made)


class Calls:
    """Turns the calls that a reader finds in a text into parts.

    functions: parameter schemas by function name. name: the answer's name, from which ids are made. short_ids: make ids of
    nine letters and digits, as Mistral's templates demand.
    """

    def __init__(
        self,
        scanner: Scanner,
        give: Callable[[AnswerPart], None],
        functions: Mapping[str, Any],
        name: str,
        *,
        short_ids: bool = False,
    ) -> None:
        self.functions = functions
        self._scanner, self._give = scanner, give
        self._name, self._short = name, short_ids
        self._arguments: list[str] | None = None
        self._index = -1
        self.complete = 0
        """How many calls are complete."""

    @property
    def begun(self) -> int:
        """How many calls have begun."""
        return self._index + 1

    @property
    def is_open(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._arguments is not None

    def begin(self, name: str, call_id: str = "") -> None:
        """Begin a call. call_id: its id, if the model wrote one."""
        self._index += 1
        self._arguments = []
        self._give(AnswerPart("call", name, self._index, call_id or self._id()))

    def add(self, text: str) -> None:
        """Add to the arguments of the open call."""
        if text and self._arguments is not None:
            self._arguments.append(text)
            self._give(AnswerPart("arguments", text, self._index))

    def end(self) -> bool:
        """Complete the open call if its arguments are a JSON object, and return whether they are."""
        text, taken = "".join(self._arguments or ()), self._scanner.taken
        if not is_object(text):
            return False
        self.complete += 1
        self._arguments = None
        if taken is not None:
            taken.clear()
        return True

    def abandon(self) -> None:
        """Withdraw the open call: it was cut or is not valid."""
        taken, self._arguments = self._scanner.taken or [], None
        self._give(AnswerPart("broken", "".join(taken), self._index))
        taken.clear()

    def _id(self) -> str:
        digest = hashlib.sha256(f"{self._name}\0{self._index}".encode()).hexdigest()
        return digest[:9] if self._short else f"call_{digest[:24]}"


class TrimmedText:
    """Outgoing text of one kind. ends: whether white space at its end is held back until more text follows."""

    def __init__(self, kind: PartKind, give: Callable[[AnswerPart], None], *, ends: bool) -> None:
        self.ends = ends
        self._kind, self._give = kind, give
        self._dropping = self._has_text = False
        self._space: list[str] = []

    def skip(self) -> None:
        """Drop white space up to the next text."""
        self._dropping = True
        self._space.clear()

    def renew(self) -> None:
        """Start a new paragraph with the next text."""
        self.skip()
        if self._has_text:
            self._space.append("\n\n")

    def add(self, text: str) -> None:
        """Pass on text."""
        if self._dropping:
            text = text.lstrip()
        if not text:
            return
        self._dropping = False
        body = text.rstrip() if self.ends else text
        if body:
            self._has_text = True
            self._give(AnswerPart(self._kind, self.hold() + body))
        self._space.append(text[len(body) :])

    def hold(self) -> str:
        """Take out and return the white space that was held back."""
        space = "".join(self._space)
        self._space.clear()
        return space

    def flush(self) -> None:
        """Pass on the white space that was held back."""
        if space := self.hold():
            self._give(AnswerPart(self._kind, space))


def is_object(text: str) -> bool:
    return object_of(text) is not None


def object_of(text: str) -> dict[str, Any] | None:
    """Parse a text as a JSON object; None if it is not one. Its strings are `encodable`."""
    try:
        made = json.loads(text)
        if "\\ud" in text.lower():
            made = json.loads(encodable(json.dumps(made, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None
    return made if isinstance(made, dict) else None


def properties_of(schema: Any) -> Mapping[str, Any]:
    """Return the schemas of a function's parameters by name; none where clients sent no schema of an object."""
    known = schema.get("properties") if isinstance(schema, Mapping) else None
    return known if isinstance(known, Mapping) else {}


def encodable(text: str) -> str:
    """Replace lone surrogates, which JSON can write and UTF-8 cannot, by U+FFFD."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)
