"""What an answer is made of: tokens, in steps of one round each; reasoning, content and tool calls; and its result.

All interfaces share it, and the words about what drafts did.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from typing_extensions import Self

from pyspec.errors import PyspecError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_JOINERS = "\u200c\u200d"  # format characters that Persian and emoji need
_STEERING = ("Cc", "Cf", "Cs")


class Source(IntEnum):
    """Where an emitted token came from; the values are the extension's.

    Attributes:
        TARGET: The target chose it and it was not drafted.
        ACCEPTED: It was drafted, and the target chose it too.
        RELAXED: It was drafted, and the rule took it instead of the target's choice.
    """

    TARGET = 0
    ACCEPTED = 1
    RELAXED = 2

    @property
    def label(self) -> str:
        """The name in results: target, accepted or relaxed."""
        return self.name.lower()


class Token(msgspec.Struct, frozen=True):
    """One emitted token.

    Attributes:
        id: Vocabulary id.
        source: The target's own choice, a drafted token that it chose too, or a drafted runner-up.
        gap: For a relaxed token, how much the target preferred its own choice, in nats; 0 otherwise.
        preferred: The target's own choice at this place; differs from `id` only for a relaxed token.
        confirmed: For a relaxed token under `confirm`, how many drafted tokens after it were the target's own choices.
    """

    id: int
    source: Source
    gap: float
    preferred: int
    confirmed: int | None = None

    def described(self, text: str) -> dict[str, Any]:
        """The token in the form of results. text: its own."""
        made: dict[str, Any] = {
            "text": text,
            "source": self.source.label,
            "gap": round(self.gap, 4),
        }
        return {**made, "confirmed": self.confirmed} if self.confirmed else made


def targets_own(ids: Sequence[int]) -> tuple[Token, ...]:
    """Tokens known only to be the target's own."""
    return tuple(Token(id_, Source.TARGET, 0.0, id_) for id_ in ids)


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities at one place: of the emitted token, and of the likeliest ones as (id, value)."""

    value: float
    top: list[tuple[int, float]]

    @classmethod
    def of(cls, row: npt.NDArray[np.float32], token: int, n: int = 0) -> TokenLogprobs:
        """Log-softmax of a row of logits [n_vocab] at `token`, and its n largest values."""
        import numpy as np  # noqa: PLC0415 - every command reads this module, and help need not wait for it

        wide = row.astype(np.float64)
        logs = wide - wide.max()
        logs -= np.log(np.exp(logs).sum())
        top = np.argpartition(-logs, n)[:n] if n else np.empty(0, np.int64)
        top = top[np.argsort(-logs[top], kind="stable")]
        return cls(float(logs[token]), [(int(i), float(logs[i])) for i in top])


class Step(msgspec.Struct, frozen=True):
    """What one round emitted.

    Attributes:
        tokens: At least one.
        finish_reason: None while it goes on; "stop" after an end-of-generation token (the last of `tokens`), "length" at
            max_tokens, "context" when the context is full, "cancelled" after a cancel.
        rows: Rows that the target decoded.
    """

    tokens: tuple[Token, ...]
    finish_reason: str | None = None
    rows: int = 0


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning of two token sequences."""
    n = min(len(one), len(other))
    if list(one[:n]) == list(other[:n]):
        return n
    return next(i for i in range(n) if one[i] != other[i])


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
    index: int = 0  # number of the call, from 0
    id: str = ""  # id of the call, only in a "call"

    def delta(self) -> dict[str, Any]:
        """Return the part as the delta of an OpenAI chunk; empty for a broken call."""
        if self.kind in ("content", "reasoning"):
            return {"content" if self.kind == "content" else "reasoning_content": self.text}
        if self.kind == "call":
            call = call_of(self.id, self.text)
            return {"tool_calls": [{"index": self.index, **call}]}
        if self.kind == "arguments":
            return {"tool_calls": [{"index": self.index, "function": {"arguments": self.text}}]}
        return {}


def call_of(call_id: str, name: str, arguments: str = "") -> dict[str, Any]:
    """Return a function's call as in an OpenAI message. arguments: JSON text of an object."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


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
    def calls(self) -> list[dict[str, Any]]:
        """Complete calls in these parts, in OpenAI's form; empty unless the answer has ended."""
        return Result.of(self.parts).calls if self.finish_reason else []

    def _joined(self, *kinds: PartKind) -> str:
        return "".join([part.text for part in self.parts if part.kind in kinds])


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


def safe(text: str) -> str:
    """Remove what could control a terminal.

    Drops control characters other than newline and tab (ESC and the C1 set among them), format characters such as bidirectional
    overrides, and lone surrogates.
    """
    kept = f"\n\t{_JOINERS}"
    return "".join(c for c in text if c in kept or unicodedata.category(c) not in _STEERING)


# -- results ---------------------------------------------------------------------------------------------------------


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one answer and its prompt."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0

    @classmethod
    def of(cls, prompt: int, answer: int) -> Usage:
        return cls(prompt, answer, prompt + answer)


class Result(msgspec.Struct, kw_only=True):
    """One answer.

    Attributes:
        text: The content, without `reasoning` and `calls`.
        reasoning: What the model thought before it.
        reasoning_cut: Whether the answer ended inside reasoning.
        reasoned: Tokens of the reasoning.
        stop_string: The stop string that ended the answer.
        calls: Function calls, in OpenAI's form.
        finish_reason: "stop", "tool_calls", "length", "context", "cancelled", "error", or None if there was no answer.
        usage: Tokens of prompt and answer.
        speculation: The block that `AnswerOptions.block` makes; empty if unknown.
        tokens: The answer's tokens, if known; not stored for records.
    """

    text: str = ""
    reasoning: str = ""
    reasoning_cut: bool = False
    reasoned: int = 0
    stop_string: str | None = None
    calls: list[dict[str, Any]] = []
    finish_reason: str | None = None
    usage: Usage = Usage()
    speculation: dict[str, Any] = {}
    tokens: tuple[Token, ...] = ()

    @classmethod
    def of(cls, parts: Iterable[AnswerPart], **known: Any) -> Self:
        """Join the parts of an answer, in any pieces. known: the other fields."""
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
        content, reasoning = ("".join(texts[kind]) for kind in ("content", "reasoning"))
        made = [call_of(call.id, call.text, "".join(text)) for call, text in calls.values()]
        return cls(text=content, reasoning=reasoning, calls=made, **known)

    @property
    def rate(self) -> float:
        """Tokens per second after the prompt was read; 0 if unknown."""
        return float(self.speculation.get("timings", {}).get("tokens_per_second", 0.0))

    def message(self) -> dict[str, Any]:
        made: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            made["reasoning_content"] = self.reasoning
        if self.calls:
            made |= {"content": self.text or None, "tool_calls": self.calls}
        return made


class Failure(msgspec.Struct, frozen=True):
    """Why a record has no answer: the exception's name and message."""

    type: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception; one from outside this package is named in the message."""
        if isinstance(error, PyspecError):
            return cls(type(error).__name__, str(error))
        return cls("InputError", f"the record cannot be used: {type(error).__name__}: {error}")


class RecordResult(Result, kw_only=True, omit_defaults=True):
    """One record, answered or failed.

    A journal stores it as JSON without default values.

    Attributes:
        index: Place of the record among the inputs, from 0.
        id: The record's id.
        prompt_sha256: Hash of what the record asks.
        error: Why there is no answer.
        created: When it was answered, in seconds since 1970, for OpenAI's format; 0 elsewhere.
    """

    index: int
    id: str
    prompt_sha256: str
    error: Failure | None = None
    created: int = 0


def result_of(pieces: Sequence[Piece], block: dict[str, Any] | None) -> Result:
    """Join the pieces of an answer; one cut by an error has the reason `error`.

    block: its `speculation`, None if unknown.
    """
    last = pieces[-1] if pieces else Piece(())
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    known = {} if block is None else block
    return Result.of(
        (part for piece in pieces for part in piece.parts),
        finish_reason=last.finish_reason or "error",
        reasoning_cut=last.reasoning_cut,
        usage=Usage.of(known.get("prompt_tokens", 0), len(tokens)),
        speculation=known,
        tokens=tokens,
    )


Likely = Sequence[tuple[Token, TokenLogprobs | None]]
"""Tokens and their log-probabilities; None for a prompt's first token."""


def chat_logprobs(piece: Callable[[int], bytes], likely: Likely) -> list[dict[str, Any]]:
    """Tokens' log-probabilities in the format of a chat's choice."""

    def entry(token: int, value: float) -> dict[str, Any]:
        data = piece(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": value, "bytes": list(data)}

    return [
        {**entry(token.id, at.value), "top_logprobs": [entry(*pair) for pair in at.top]}
        for token, at in likely
        if at is not None
    ]


# -- what drafts did, in words -----------------------------------------------------------------------------------------

SAME = 0.05  # how far from 1 a factor may be and still count as the same speed


def counted(n: int, thing: str) -> str:
    """A number and what it counts, plural unless it is one."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def speed_sentence(block: Mapping[str, Any], tokens_per_second: float) -> str:
    """Say how fast an answer came beside plain decoding. block: a result's `speculation`."""
    if block.get("rounds") == 0:
        return "stopped before the first token"
    precision = 0 if tokens_per_second >= 100 else 1
    return f"{tokens_per_second:.{precision}f} tokens/s{_beside(block)}"


def _beside(block: Mapping[str, Any]) -> str:
    """The speed compared with plain decoding; empty if that is unknown."""
    if block.get("draft", "none") == "none":
        return ", plain decoding"
    if not block.get("verified"):
        return " (drafts off: they would not have paid off here)"
    factor = block.get("times_plain")
    if factor is None:
        return ""
    if factor <= 1 - SAME:
        return f", slower than plain decoding ({factor:.2f} times)"
    if factor < 1 + SAME:
        return ", as fast as plain decoding"
    return f", {factor:.{0 if factor >= 10 else 1}f} times plain decoding"


def stats_line(block: Mapping[str, Any], tokens_per_second: float) -> str:
    """The counts of an answer in one line."""
    if not block:
        return "0 tokens"
    tokens = round(block["rounds"] * block["mean_length"])
    parts = [counted(tokens, "token"), f"{tokens_per_second:.1f} tokens/s"]
    if block["draft"] != "none":
        plain = block.get("plain")
        rate = f"{plain['tokens_per_second']:.1f} tokens/s" if plain else "not known"
        parts.append(f"plain {rate}")
    if block["drafted"]:
        parts.append("{drafted} drafted, {verified} checked, {accepted} accepted".format(**block))
        parts.append(f"{block['mean_length']:.2f} tokens a round")
    else:
        parts.append("nothing drafted")
    if block["relaxed"]:
        parts.append(f"{block['relaxed']} relaxed ({block['relaxed_nats']:.2f} nats)")
    parts.append(f"prompt {block['prompt_tokens']}, {block['prompt_kept']} kept")
    parts.append(f"draft {block['draft']}")
    return " | ".join(parts)


class SpeculationBlock(dict[str, Any]):
    """The `speculation` block of a result: a dict with a sentence about what drafts did."""

    @property
    def sentence(self) -> str:
        """How fast the answer came, compared with plain decoding."""
        if not (timings := self.get("timings")):
            return "nothing was decoded"
        return speed_sentence(self, timings["tokens_per_second"])


def plain(value: Any) -> Any:
    """Return nested lists and dicts with numpy's numbers as Python's: llama-cpp-python leaves some in logprobs."""
    if isinstance(value, SpeculationBlock):
        return value
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.item() if type(value).__module__ == "numpy" else value
