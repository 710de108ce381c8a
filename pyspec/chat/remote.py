"""The model of a running server, with the interface of one that is loaded here."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from math import inf
from typing import TYPE_CHECKING, Any

from pyspec.chat.asking import Request
from pyspec.chat.servers import RunningServer
from pyspec.errors import EngineError, InputError
from pyspec.sampling.options import OFFERED
from pyspec.sampling.suggested import SuggestedSampling
from pyspec.sampling.verification import MARGIN_OPTIONS, Margin, Strict

if TYPE_CHECKING:
    from pyspec.chat.files import SavedModel
    from pyspec.llama.options import AnswerOptions, Speculation
    from pyspec.sampling.settings import Sampling
    from pyspec.text.messages import Message
    from pyspec.text.parts import Piece


class RemoteChat:
    """The model of a server, with the parts of `LlamaChat` that a chat uses. Tokens are unknown: the server sends text.

    Modules that read and keep answers are imported while the server computes, so that requests are sent at once.
    shape: request fields that restrict the form of answers.
    """

    knows_tokens = False

    def __init__(self, server: RunningServer) -> None:
        self.server, self.name, self.draft = server, server.name, server.draft
        self.companion, self.n_ctx = "none", server.n_ctx
        self.stats: dict[str, Any] | None = None
        self.thinking, self.budget = True, -1
        self.shape: dict[str, Any] = {}
        self.suggested = SuggestedSampling(server.suggested, tuple(server.left))
        self._messages: list[Message] = []
        self._cancelled = False
        self._request: Request | None = None

    def target(self) -> SavedModel:
        """The target for a saved chat; without a hash, tokens of another process are not taken over."""
        from pyspec.chat.files import SavedModel  # noqa: PLC0415 - see the class

        return SavedModel(self.name, "", self.server.path)

    def is_text(self, _token: int) -> bool:
        """No token is known."""
        return False

    def piece(self, _token: int) -> bytes:
        """No token is known."""
        return b""

    def take(self, messages: Sequence[Message]) -> None:
        """Answer these messages next."""
        self._messages = [{"role": m["role"], "content": m["content"]} for m in messages]

    def prompt(self, messages: Sequence[Message], *, goes_on: bool = False) -> list[int]:
        """The tokens of a prompt, as the server counts them. goes_on: the server sees by the last message."""
        self.take(messages)
        if goes_on:
            return []
        reply = self._reply("/tokenize", {"messages": self._messages, "model": self.name})
        return list(reply["tokens"])

    def describe(self) -> list[tuple[str, str]]:
        """Return names and values that describe the model."""
        return [
            ("target", self.name), ("server", self.server.url), ("draft", self.draft),
            ("context", f"{self.n_ctx} tokens"),
        ]  # fmt: skip

    def use(self, confirm: Any = None, **_other: str) -> None:
        """Refuse: models are the server's."""
        hint = "start the chat with --server none"
        raise InputError(f"the models are those of the server at {self.server.url}", hint)

    def close(self) -> None:
        """Do nothing: the server keeps its model."""

    def cancel(self) -> None:
        """End the current answer; safe from any thread."""
        self._cancelled = True
        if (request := self._request) is not None:
            request.cancel()

    def answer(
        self, _prompt: Sequence[int], options: AnswerOptions, **_chat: Any
    ) -> Generator[Piece, None, None]:
        """Ask for an answer to the messages of the last prompt, at once; the last piece has a finish_reason."""
        self._cancelled, self.stats = False, None
        try:
            self._request = self.server.ask("/v1/chat/completions", self._body(options))
        except OSError as error:
            raise self._lost(f"does not answer: {error}") from None
        return self._pieces(self._request)

    def _body(self, options: AnswerOptions) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.name, "messages": self._messages, "stream": True}
        body |= _sampled(options.sampling) | self.shape
        body |= {"speculation": _speculation(options.speculation)}
        if options.max_tokens is not None:
            body["max_tokens"] = options.max_tokens
        if options.stop:
            body["stop"] = list(options.stop)
        if options.reasoning is not None:
            body["reasoning_budget"] = options.reasoning.tokens
        if not self.thinking:
            body["enable_thinking"] = False
        return body

    def _pieces(self, request: Request) -> Generator[Piece, None, None]:
        from pyspec.text.parts import Piece  # noqa: PLC0415 - see the class

        with closing(request):
            try:
                for chunk in _chunks(request):
                    yield from self._taken(chunk)
            except (OSError, ValueError, LookupError) as error:
                if not self._cancelled:
                    raise self._lost(f"ended the answer: {error}") from None
            finally:
                self._request = None
        if self.stats is None:
            if not self._cancelled:
                raise self._lost("closed the connection during the answer")
            yield Piece((), "cancelled")

    def _lost(self, how: str) -> EngineError:
        return EngineError(
            f"the server at {self.server.url} {how}", "use --server none to answer here"
        )

    def _taken(self, chunk: Mapping[str, Any]) -> Iterator[Piece]:
        from pyspec.text.parts import AnswerPart, Piece  # noqa: PLC0415 - see the class

        if "error" in chunk:
            raise EngineError(
                str(chunk["error"].get("message")), "use --server none to answer here"
            )
        (choice,) = chunk["choices"]
        delta = choice.get("delta") or {}
        kinds = (("reasoning", "reasoning_content"), ("content", "content"))
        parts = [AnswerPart(kind, delta[name]) for kind, name in kinds if delta.get(name)]  # type: ignore[arg-type]
        ended = choice.get("finish_reason")
        if ended:
            self.stats = chunk.get("speculation") or {}
        if parts or ended:
            yield Piece((), ended, parts=parts, reasoning_cut=bool(choice.get("reasoning_cut")))

    def _reply(self, path: str, body: Mapping[str, Any]) -> Any:
        try:
            with closing(self.server.ask(path, body, _TIMEOUT_S)) as request:
                return _read(request, request.status())
        except (OSError, ValueError) as error:
            raise self._lost(f"does not answer: {error}") from None


_TIMEOUT_S = 30.0


def _read(request: Request, status: int) -> Any:
    """The body of an answer. Raises InputError for a refusal."""
    if status == 200:
        return request.json()
    try:
        why = request.json().get("error", {}).get("message")
    except (ValueError, AttributeError):
        why = None
    raise InputError(f"the server refuses: {why or f'status {status}'}")


def _chunks(request: Request) -> Iterator[dict[str, Any]]:
    """The events of a stream. Raises InputError for a refusal."""
    if (status := request.status()) != 200:
        _read(request, status)
    for line in request.lines():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def _sampled(sampling: Sampling) -> dict[str, Any]:
    own: dict[str, Any] = {"dry_sequence_breakers": list(sampling.dry_sequence_breakers)}
    if sampling.noise != "auto":
        own["sampling"] = sampling.noise
    if (
        sampling.noise != "auto" or not sampling.chance
    ):  # else the server draws in the way that is faster there
        own["seed"] = sampling.seed
    return {each.name: getattr(sampling, each.name) for each in OFFERED} | own


def _speculation(wanted: Speculation) -> dict[str, Any]:
    rule = wanted.verification
    block: dict[str, Any] = {"enabled": wanted.enabled}
    block |= {"length": wanted.length, "draft_max": wanted.draft_max}
    if isinstance(rule, (Margin, Strict)):
        block["verify"] = rule.name
    if isinstance(rule, Margin):
        block |= {field: getattr(rule, name) for field, name in MARGIN_OPTIONS.items()}
    # JSON has no infinity; a limit that is left out is none
    return {name: value for name, value in block.items() if value not in (None, inf)}
