"""A model that a running server has: it chats like one that is loaded here."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspec.chat.dialogue import SavedModel
from pyspec.chat.servers import RunningServer
from pyspec.errors import EngineError, InputError
from pyspec.llama.options import AnswerOptions, Speculation
from pyspec.sampling.options import OFFERED
from pyspec.sampling.settings import Sampling
from pyspec.sampling.suggested import SuggestedSampling, suggested_by
from pyspec.sampling.verification import MARGIN_OPTIONS, Margin, Strict
from pyspec.text.messages import Message
from pyspec.text.parts import AnswerPart, Piece


class RemoteChat:
    """The model of a server, with the parts of `LlamaChat` that a chat uses. Its tokens are not known here.

    shape: fields of a request that say what answers must look like.
    """

    knows_tokens = False

    def __init__(self, server: RunningServer) -> None:
        self.server, self.name, self.draft = server, server.name, server.draft
        self.companion, self.n_ctx = "none", server.n_ctx
        self.stats: dict[str, Any] | None = None
        self.thinking, self.budget = True, -1
        self.shape: dict[str, Any] = {}
        known = Path(server.path) if server.path else None
        self.suggested = suggested_by(known) if known and known.is_file() else SuggestedSampling()
        self._messages: list[Message] = []
        self._cancelled = False
        self._connection: http.client.HTTPConnection | None = None

    def target(self) -> SavedModel:
        """The target for a saved chat; without a hash, tokens of another process are not taken over."""
        return SavedModel(self.name, "", self.server.path)

    def is_text(self, _token: int) -> bool:
        """No token is known."""
        return False

    def piece(self, _token: int) -> bytes:
        """No token is known."""
        return b""

    def prompt(self, messages: Sequence[Message], *, goes_on: bool = False) -> list[int]:
        """The tokens of a prompt, as the server counts them. goes_on: the server sees by the last message."""
        self._messages = [{"role": m["role"], "content": m["content"]} for m in messages]
        if goes_on:
            return []
        told = self._asked("/tokenize", {"messages": self._messages, "model": self.name})
        return list(told["tokens"])

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
        """Nothing is held."""

    def cancel(self) -> None:
        """End the current answer; safe from any thread."""
        self._cancelled = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def answer(
        self, _prompt: Sequence[int], options: AnswerOptions, **_chat: Any
    ) -> Generator[Piece, None, None]:
        """Answer the messages of the last prompt; the last piece has a finish_reason."""
        self._cancelled, self.stats = False, None
        return self._pieces(self._body(options))

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

    def _pieces(self, body: Mapping[str, Any]) -> Generator[Piece, None, None]:
        connection = self._connection = self.server.connection()
        try:
            connection.request(
                "POST", "/v1/chat/completions", json.dumps(body), self.server.headers
            )
            for chunk in _chunks(connection.getresponse()):
                yield from self._taken(chunk)
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            if not self._cancelled:
                where = f"the server at {self.server.url}"
                raise EngineError(f"{where} ended the answer: {error}", "--server none") from None
        finally:
            connection.close()
            self._connection = None
        if self.stats is None:
            yield Piece((), "cancelled" if self._cancelled else "error")

    def _taken(self, chunk: Mapping[str, Any]) -> Iterator[Piece]:
        if "error" in chunk:
            raise EngineError(str(chunk["error"].get("message")), "--server none answers here")
        (choice,) = chunk["choices"]
        delta = choice.get("delta") or {}
        kinds = (("reasoning", "reasoning_content"), ("content", "content"))
        parts = [AnswerPart(kind, delta[name]) for kind, name in kinds if delta.get(name)]  # type: ignore[arg-type]
        ended = choice.get("finish_reason")
        if ended:
            self.stats = chunk.get("speculation") or {}
        if parts or ended:
            yield Piece((), ended, parts=parts, reasoning_cut=bool(choice.get("reasoning_cut")))

    def _asked(self, path: str, body: Mapping[str, Any]) -> Any:
        connection = self.server.connection(30.0)
        try:
            connection.request("POST", path, json.dumps(body), self.server.headers)
            response = connection.getresponse()
            return _read(response)
        except (OSError, http.client.HTTPException) as error:
            where = f"the server at {self.server.url}"
            raise EngineError(f"{where} does not answer: {error}", "--server none") from None
        finally:
            connection.close()


def _read(response: http.client.HTTPResponse) -> Any:
    """The body of a response. Raises InputError for a refusal."""
    try:
        told = json.loads(response.read())
    except ValueError:
        told = {}
    if response.status != 200:
        why = told.get("error", {}).get("message", f"status {response.status}")
        raise InputError(f"the server refuses: {why}")
    return told


def _chunks(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The events of a stream. Raises InputError for a refusal."""
    if response.status != 200:
        _read(response)
    for line in response:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def _sampled(sampling: Sampling) -> dict[str, Any]:
    return {
        **{each.name: getattr(sampling, each.name) for each in OFFERED},
        "seed": sampling.seed,
        "sampling": sampling.noise,
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
    }


def _speculation(asked: Speculation) -> dict[str, Any]:
    told: dict[str, Any] = {"enabled": asked.enabled}
    rule = asked.verification
    if isinstance(rule, (Margin, Strict)):
        told["verify"] = rule.name
    if isinstance(rule, Margin):
        own = {asked: getattr(rule, name) for asked, name in MARGIN_OPTIONS.items()}
        told |= {
            name: value
            for name, value in own.items()
            if value is not None and value != float("inf")
        }
    told |= {"length": asked.length, "draft_max": asked.draft_max}
    return {name: value for name, value in told.items() if value is not None}
