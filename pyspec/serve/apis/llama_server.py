"""llama-server's `/infill`, a gap in a text with its names for the finish reasons, and its `/tokenize`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from pyspec.batch.run import Batch
from pyspec.requests.bodies import Body
from pyspec.requests.fields import REFUSED
from pyspec.requests.records import COMPLETION, Record
from pyspec.serve.apis.completions import broken
from pyspec.serve.apis.interface import (
    PING,
    PROMPT_TOO_LONG,
    Interface,
    data_event,
    openai_refusal,
)
from pyspec.serve.pending import Choice, PendingRequest


class OtherFileBody(msgspec.Struct):
    """Another file that is open in the editor."""

    text: str
    filename: str | None = None


_HINTS = ("n_indent", "response_fields", "t_max_predict_ms")
# llama.vim sends them by default: how early an answer may end, and what of the reply it reads


class InfillBody(Body):
    """A gap to fill between two texts. prompt: the text in it so far. input_extra: other files, the most useful last.

    n_predict: other APIs' max_tokens.
    """

    refused = (
        *(name for name in REFUSED if name not in ("n_predict", *_HINTS)), "n_probs", "return_tokens",
    )  # fmt: skip

    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[OtherFileBody] | None = None
    prompt: str | None = None
    n_predict: int | None = None
    n_probs: int | None = None
    return_tokens: bool | None = None

    form = COMPLETION
    most_answers = 1

    def records(self, name: str) -> list[Record]:
        """The request as one record. Raises InputError."""
        if self.n_predict is not None:
            self.max_tokens = self.n_predict
        others = [(each.filename or "", each.text) for each in self.input_extra or ()]
        suffix = self.input_suffix or ""
        text = (self.input_prefix or "") + (self.prompt or "")
        return [
            Record(prompt=text, suffix=suffix, others=others, form=COMPLETION, **self._shared(name))
        ]


def _whole(_pending: PendingRequest, choices: list[Choice]) -> dict[str, Any]:
    (choice,) = choices
    return {**_end(choice), "content": choice.result.text}


_STOPS = {"length": "limit", "context": "limit", "cancelled": "none"}


def _end(choice: Choice) -> dict[str, Any]:
    """The last event of an answer: finish reason, counts and times."""
    result, pending, times = choice.result, choice.pending, choice.block["timings"]
    kind = "word" if result.stop_string else _STOPS.get(result.finish_reason, "eos")
    n, read = result.usage.completion_tokens, result.usage.prompt_tokens
    rest = times["total_ms"] - times["first_token_ms"]
    return {
        "content": "",
        "stop": True,
        "model": pending.serving.model,
        "tokens_predicted": n,
        "tokens_evaluated": read,
        "tokens_cached": choice.block.get("prompt_kept", 0),
        "truncated": result.finish_reason == "context",
        "stop_type": kind,
        "stopping_word": result.stop_string or "",
        "timings": {
            "prompt_n": read,
            "prompt_ms": times["first_token_ms"],
            "predicted_n": n,
            "predicted_ms": rest,
            "predicted_per_second": times["tokens_per_second"],
            "draft_n": choice.block.get("verified", 0),
            "draft_n_accepted": choice.block.get("accepted", 0),
        },
        "speculation": choice.block,
    }


async def _events(pending: PendingRequest) -> AsyncIterator[bytes]:
    """The answer as it grows, and its end, as server-sent events."""
    choices = pending.choices()
    async for choice in pending.updates(choices):
        if choice is None:
            yield PING
        elif text := "".join(part.text for part in choice.taken()):
            yield data_event({"content": text, "stop": False})
    yield data_event(_end(choices[0]))


INFILL = Interface(
    "completion", "infill-", InfillBody, _whole, _events, openai_refusal, broken,
    too_long=PROMPT_TOO_LONG,
)  # fmt: skip


class TokenizeBody(msgspec.Struct):
    """A text whose tokens are asked for."""

    content: str
    add_special: bool | None = None  # whether to add a beginning-of-text token
    parse_special: bool | None = None  # whether names of control tokens become those tokens
    with_pieces: bool | None = None  # whether to return each token's text
    model: str | None = None


class DetokenizeBody(msgspec.Struct):
    """A request to turn token ids into text."""

    tokens: list[int]
    model: str | None = None


def tokenize(batch: Batch, body: TokenizeBody) -> dict[str, Any]:
    """The tokens of a text. Raises InputError."""
    tokens = batch.target.tokenizer_.tokenize(
        body.content.encode("utf-8", "surrogatepass"),
        add_bos=bool(body.add_special),
        special=body.parse_special is not False,
    )
    if body.with_pieces:
        return {"tokens": [{"id": token, "piece": _text(batch, [token])} for token in tokens]}
    return {"tokens": list(tokens)}


def detokenize(batch: Batch, body: DetokenizeBody) -> dict[str, str]:
    """The text of tokens. Raises InputError."""
    return {"content": _text(batch, body.tokens)}


WORK: dict[str, tuple[type[Any], Callable[[Batch, Any], dict[str, Any]]]] = {
    "/tokenize": (TokenizeBody, tokenize),
    "/detokenize": (DetokenizeBody, detokenize),
}
"""The body and the function of each path."""


def _text(batch: Batch, tokens: list[int]) -> str:
    data: bytes = batch.target.tokenizer_.detokenize(tokens, special=True)
    return data.decode("utf-8", "replace")
