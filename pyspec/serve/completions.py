"""Completions: OpenAI's of chats and texts, and llama-server's `/infill` of a gap in a text, with its `/tokenize`."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec

from pyspec.batch.run import Batch
from pyspec.requests.bodies import Body, ChatBody, CompletionBody
from pyspec.requests.records import CHAT, COMPLETION, Record, body_of, choice_of, openai_reason
from pyspec.serve.interface import (
    PING,
    Choice,
    Interface,
    PendingRequest,
    data_event,
    openai_refusal,
)
from pyspec.text.parts import Likely, TokenLogprobs, chat_logprobs


def whole(pending: PendingRequest) -> dict[str, Any]:
    body = _frame(pending, [_whole(choice) for choice in pending.choices])
    blocks = [
        {**choice.block, "tokens": choice.details} if choice.details else choice.block
        for choice in pending.choices
    ]
    block = blocks[0] if len(blocks) == 1 else {"choices": blocks}
    return {**body, "usage": _usage(pending), "speculation": block}


def _whole(choice: Choice) -> dict[str, Any]:
    """A finished answer as a choice of a response's body."""
    shown = choice_of(choice.record.form, choice.index, choice.result)
    if choice.record.logprobs is not None:
        shown["logprobs"] = LogprobWriter(choice).write(choice.likely)
    return shown


async def events(pending: PendingRequest) -> AsyncIterator[bytes]:
    """The chunks of all choices, then `[DONE]`. None comes before the first text: until then another replica could answer."""
    writers = [_ChunkWriter(pending, choice) for choice in pending.choices]
    async for choice in pending.updates():
        if choice is None:
            yield PING
            continue
        for each in writers[choice.index].events():
            yield each
    if (pending.body.stream_options or {}).get("include_usage"):
        yield data_event({**_frame(pending, [], chunk=True), "usage": _usage(pending)})
    yield b"data: [DONE]\n\n"


def _frame(
    pending: PendingRequest, choices: list[dict[str, Any]], *, chunk: bool = False
) -> dict[str, Any]:
    """The body of a response with these choices, or of a chunk of it."""
    form = pending.choices[0].record.form
    body = body_of(form, pending.name, pending.serving.model, pending.created, choices)
    return {**body, "object": "chat.completion.chunk"} if chunk and form == CHAT else body


class _ChunkWriter:
    """Writes the chunks of a choice; a chat's first one has the role."""

    def __init__(self, pending: PendingRequest, choice: Choice) -> None:
        self._pending, self._choice = pending, choice
        self._is_chat = choice.record.form == CHAT
        self._logprobs = LogprobWriter(choice)
        self._begun = not self._is_chat

    def events(self) -> Iterator[bytes]:
        choice = self._choice
        parts, ended = choice.taken()
        deltas = [delta for part in parts if (delta := part.delta())]
        if not deltas and (choice.likely or choice.details):
            deltas = [{"content": ""}]
        if not self._begun and (deltas or ended):
            self._begun = True
            yield data_event(self._chunk({"role": "assistant", "content": ""}))
        for delta in deltas:
            chunk = self._chunk(delta)
            if choice.likely:
                chunk["choices"][0]["logprobs"] = self._logprobs.write(choice.likely)
            if choice.details:
                chunk["tokens"] = choice.details
            choice.likely, choice.details = [], []
            yield data_event(chunk)
        if ended:
            yield data_event(self._last())

    def _last(self) -> dict[str, Any]:
        result = self._choice.result
        chunk = self._chunk({}, openai_reason(result.finish_reason))
        if result.reasoning_cut:
            chunk["choices"][0]["reasoning_cut"] = True
        return {**chunk, "speculation": self._choice.block}

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        index = self._choice.index
        made: dict[str, Any] = {"index": index, "finish_reason": reason, "logprobs": None}
        made |= {"delta": delta} if self._is_chat else {"text": delta.get("content", "")}
        return _frame(self._pending, [made], chunk=True)


def _usage(pending: PendingRequest) -> dict[str, Any]:
    results = [choice.result for choice in pending.choices]
    firsts = results[:: pending.body.n or 1]  # the prompt of several choices counts once
    prompt = pending.prompt_tokens
    kept = sum(result.speculation.get("prompt_kept", 0) for result in firsts)
    answer = sum(result.usage.completion_tokens for result in results)
    reasoned = sum(result.reasoned for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": kept},
        "completion_tokens_details": {"reasoning_tokens": reasoned},
    }


class LogprobWriter:
    """Writes the log-probabilities of an answer, at once or in parts."""

    def __init__(self, choice: Choice) -> None:
        self._form, self._piece = choice.record.form, choice.piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._written = 0

    def write(self, likely: Likely) -> dict[str, Any]:
        """The next tokens' `logprobs` of a choice."""
        if self._form == CHAT:
            return {"content": chat_logprobs(self._piece, likely)}
        return {
            "tokens": [self._word(token.id) for token, _ in likely],
            "token_logprobs": [at and at.value for _, at in likely],
            "top_logprobs": [at and self._by_word(at) for _, at in likely],
            "text_offset": [self._offset(token.id) for token, _ in likely],
        }

    def _offset(self, token: int) -> int:
        """The index of a token's first character in the text, even where an earlier token began that character."""
        at = self._written
        self._written += len(self._decoder.decode(self._piece(token)))
        return at

    def _by_word(self, at: TokenLogprobs) -> dict[str, float]:
        """Log-probabilities by text. Of two tokens with the same text, the likelier counts."""
        found: dict[str, float] = {}
        for token, value in at.top:
            word = self._word(token)
            found[word] = max(value, found.get(word, value))
        return found

    def _word(self, token: int) -> str:
        """A token's text, or its bytes in OpenAI's notation if they are not UTF-8."""
        data = self._piece(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


CHATS = Interface("chat", "chatcmpl-", ChatBody, whole, events, openai_refusal, data_event)
TEXTS = Interface("completion", "cmpl-", CompletionBody, whole, events, openai_refusal, data_event)

_STOPS = {"length": "limit", "context": "limit", "cancelled": "none"}


# -- llama-server's ----------------------------------------------------------------------------------------------------


class OtherFileBody(msgspec.Struct):
    """Another file that is open in the editor."""

    text: str
    filename: str | None = None


class InfillBody(Body):
    """A gap between two texts. prompt: the text in it so far. input_extra: other files, the best last. n_predict: max_tokens."""

    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[OtherFileBody] | None = None
    prompt: str | None = None
    n_predict: int | None = None
    # llama.vim sends them by default: how early an answer may end, and what of the reply it reads
    n_indent: Any = None
    response_fields: Any = None
    t_max_predict_ms: Any = None

    most_answers = 1

    def records(self) -> list[Record]:
        if self.n_predict is not None:
            self.max_tokens = self.n_predict
        others = [(each.filename or "", each.text) for each in self.input_extra or ()]
        suffix = self.input_suffix or ""
        text = (self.input_prefix or "") + (self.prompt or "")
        return [
            Record(prompt=text, suffix=suffix, others=others, form=COMPLETION, **self._shared())
        ]


def _filled(pending: PendingRequest) -> dict[str, Any]:
    (choice,) = pending.choices
    return {**_end(pending), "content": choice.result.text}


def _end(pending: PendingRequest) -> dict[str, Any]:
    """The last event of an answer: finish reason, counts and times."""
    (choice,) = pending.choices
    result, times = choice.result, choice.times
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


async def _filling(pending: PendingRequest) -> AsyncIterator[bytes]:
    """The answer as it grows, and its end, as server-sent events."""
    async for choice in pending.updates():
        if choice is None:
            yield PING
        elif text := "".join(part.text for part in choice.taken()[0]):
            yield data_event({"content": text, "stop": False})
    yield data_event(_end(pending))


INFILL = Interface(
    "completion", "infill-", InfillBody, _filled, _filling, openai_refusal, data_event
)


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
        return {"tokens": [{"id": token, "piece": batch.maker.text([token])} for token in tokens]}
    return {"tokens": list(tokens)}


def detokenize(batch: Batch, body: DetokenizeBody) -> dict[str, str]:
    """The text of tokens. Raises InputError."""
    return {"content": batch.maker.text(body.tokens)}


Work = tuple[type[Any], Callable[[Batch, Any], dict[str, Any]]]  # a path's body and function

WORK: dict[str, Work] = {
    "/tokenize": (TokenizeBody, tokenize),
    "/detokenize": (DetokenizeBody, detokenize),
}
