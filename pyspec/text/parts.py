"""What an answer consists of: reasoning, content and calls of tools, in parts as they come and as a whole."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspec.text.scan import Scanner
from pyspec.tokens import Step, TokenLogprobs

PartKind = Literal["reasoning", "content", "call", "arguments", "broken"]


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """The next part of an answer.

    kind: "reasoning" and "content" bring text; "call" begins the call of the function `text`; "arguments" brings more of its
    JSON; "broken" says that the call is none, its arguments being cut or no JSON object: `text` is what was written, which an
    answer that is given as a whole has as content. index: of the call, from 0; id: of the call, with "call" alone.
    """

    kind: PartKind
    text: str
    index: int = 0
    id: str = ""

    def delta(self) -> dict[str, Any]:
        """As the delta of a chunk, as OpenAI's clients know it; nothing of a call that proved to be none."""
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
    """The call of a function. arguments: JSON text of an object."""

    id: str
    name: str
    arguments: str = ""

    def as_openai(self) -> dict[str, Any]:
        """As OpenAI's messages have it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


class Piece(Step, frozen=True):
    """What one round brought to an answer: its tokens, and the parts that they made safe to show.

    The text may lag behind the tokens: a character split over tokens, or what may become a stop string, waits for the next
    piece.

    Attributes:
        tokens: The tokens of the round.
        finish_reason: As of `Step`; set on the last piece alone.
        rows: Rows that the target decoded in the round.
        parts: Reasoning, content and calls, in the order in which the answer has them.
        reasoning_cut: Whether the answer ended inside reasoning; set on the last piece.
        likely: Log-probabilities of each token, where they were asked for.
    """

    parts: Sequence[AnswerPart] = ()
    reasoning_cut: bool = False
    likely: Sequence[TokenLogprobs | None] = ()

    @property
    def text(self) -> str:
        """The content."""
        return self._joined("content", "broken")

    @property
    def reasoning(self) -> str:
        """What a chat's answer has in front of its text."""
        return self._joined("reasoning")

    @property
    def calls(self) -> list[Call]:
        """Calls of functions."""
        return WholeAnswer.of(self.parts).calls if self.finish_reason else []

    def _joined(self, *kinds: PartKind) -> str:
        return "".join([part.text for part in self.parts if part.kind in kinds])


@dataclass
class WholeAnswer:
    """An answer as a whole: of calls those that are complete."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Iterable[AnswerPart]) -> WholeAnswer:
        """What the parts of an answer say together."""
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
    """Takes the calls that a reader finds in a text, and gives them on as parts.

    functions: the parameters' schema of each function by its name. name: of the answer, from which ids are made. short_ids: of
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
        """How many are complete."""

    @property
    def begun(self) -> int:
        """How many have begun."""
        return self._index + 1

    @property
    def is_open(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._arguments is not None

    def begin(self, name: str, given: str = "") -> None:
        """A call begins. given: its id as the model wrote it, where it did."""
        self._index += 1
        self._arguments = []
        self._give(AnswerPart("call", name, self._index, given or self._id()))

    def add(self, text: str) -> None:
        """More of its arguments."""
        if text and self._arguments is not None:
            self._arguments.append(text)
            self._give(AnswerPart("arguments", text, self._index))

    def end(self) -> bool:
        """It is complete, if its arguments are a JSON object; whether they are."""
        text, taken = "".join(self._arguments or ()), self._scanner.taken
        if not is_object(text):
            return False
        self.complete += 1
        self._arguments = None
        if taken is not None:
            taken.clear()
        return True

    def abandon(self) -> None:
        """It was cut, or is none."""
        taken, self._arguments = self._scanner.taken or [], None
        self._give(AnswerPart("broken", "".join(taken), self._index))
        taken.clear()

    def _id(self) -> str:
        digest = hashlib.sha256(f"{self._name}\0{self._index}".encode()).hexdigest()
        return digest[:9] if self._short else f"call_{digest[:24]}"


class TrimmedText:
    """Text of one kind on its way out. ends: whether white space waits for what comes behind it."""

    def __init__(self, kind: PartKind, give: Callable[[AnswerPart], None], *, ends: bool) -> None:
        self.ends = ends
        self._kind, self._give = kind, give
        self._dropping = self._said = False
        self._space: list[str] = []

    def skip(self) -> None:
        """Leave out white space up to the next text."""
        self._dropping = True
        self._space.clear()

    def renew(self) -> None:
        """The next text is a paragraph of its own."""
        self.skip()
        if self._said:
            self._space.append("\n\n")

    def add(self, text: str) -> None:
        """Give it on."""
        if self._dropping:
            text = text.lstrip()
        if not text:
            return
        self._dropping = False
        body = text.rstrip() if self.ends else text
        if body:
            self._said = True
            self._give(AnswerPart(self._kind, self.hold() + body))
        self._space.append(text[len(body) :])

    def hold(self) -> str:
        """The white space that waits, taken out."""
        space = "".join(self._space)
        self._space.clear()
        return space

    def flush(self) -> None:
        """Give on the white space that waits."""
        if space := self.hold():
            self._give(AnswerPart(self._kind, space))


def is_object(text: str) -> bool:
    """Whether a text is a JSON object."""
    return object_of(text) is not None


def object_of(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, None for other texts. Its strings are `encodable`."""
    try:
        made = json.loads(text)
        if "\\ud" in text.lower():
            made = json.loads(encodable(json.dumps(made, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None
    return made if isinstance(made, dict) else None


def encodable(text: str) -> str:
    """The text, with a sign for each half of a character, which JSON can name and UTF-8 cannot."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)
