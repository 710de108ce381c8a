"""Reads records from lines of JSON: in our format, with the fields of the server's requests, or in OpenAI's batch format."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import msgspec

from pyspec.errors import InputError
from pyspec.requests.bodies import Body, ChatBody, read_body, records_of
from pyspec.requests.records import CHAT, Record

log = logging.getLogger("pyspec")


class LineBody(ChatBody, kw_only=True):
    """A line in our format: the fields of a chat request, or `prompt` in place of messages. id: the record's."""

    id: str | int | None = None
    messages: list[dict[str, Any]] | None = None  # type: ignore[assignment]  # prompt stands in for it
    prompt: str | None = None
    system: str | None = None
    suffix: Any = None
    echo: bool | None = None
    best_of: int | None = None

    refused = (*ChatBody.refused, "suffix")

    def records(self, name: str) -> list[Record]:
        """The line as one record. Raises InputError."""
        if self.echo or self.best_of not in (None, 1):
            raise InputError("echo and best_of are for completions", "use OpenAI's batch format")
        record = self._record(name, self.messages or [])
        record.form, record.prompt, record.system = "", self.prompt, self.system
        if self.messages is None:
            record.messages = None
        return [record]


class _Kind(msgspec.Struct):
    """The fields that tell OpenAI's format from ours."""

    custom_id: str | None = None
    url: str = ""
    body: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()

    @property
    def is_openai(self) -> bool:
        ours = bytes(self.prompt) or bytes(self.messages)
        return bool(bytes(self.body) or (not ours and (self.custom_id or self.url)))


def record_of(text: str, empty: Record, *, templated: bool) -> Record:
    """Read the record of a line. Raises InputError, whatever is wrong with the line.

    empty: stands for the line if it is faulty, and gets its id and form. templated: whether `--template` is in use.
    """
    try:
        line = msgspec.json.decode(text, type=_Kind)
        record = _openai(line, empty, templated=templated) if line.is_openai else _own(text)
        record.check()
        if record.speculation is not None and record.speculation.tokens:
            raise InputError("speculation.tokens is not supported in a batch", "leave it out")
    except RecursionError:
        raise InputError("JSON nested too deep") from None
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one line, the others are read
        raise InputError(str(error) or type(error).__name__) from None
    return record


def _own(text: str) -> Record:
    body = msgspec.json.decode(text, type=LineBody)
    record = _only(body, "" if body.id is None else str(body.id))
    for name in sorted(msgspec.json.decode(text, type=dict[str, msgspec.Raw]).keys() - _names()):
        _say_ignored(name[:40])
    return record


def _openai(line: _Kind, empty: Record, *, templated: bool) -> Record:
    """Read a line in OpenAI's format. `empty` gets its custom_id, even if the line is faulty."""
    empty.id, empty.form = line.custom_id or empty.id, CHAT
    if templated:
        raise InputError("--template cannot be used with OpenAI's batch format")
    if not bytes(line.body):
        raise InputError("the line has no body", "put the request into it")
    return _only(read_body(line.url, line.body), empty.id)


def _only(body: Body, name: str) -> Record:
    """Return the only record of a body. Raises InputError for several answers, a stream or logprobs."""
    record, *more = records_of(body, name)
    if body.n not in (None, 1) or body.stream or more:
        raise InputError(
            "n, stream and several prompts are not supported in a batch",
            "write a line for each answer",
        )
    if body.alternatives is not None:
        raise InputError("logprobs are not supported in a batch", "leave them out")
    return record


@cache
def _names() -> frozenset[str]:
    """Return the names of the fields that a line may have."""
    return frozenset(LineBody.__struct_fields__)


@cache
def _say_ignored(name: str) -> None:
    log.warning("JSON lines have a field %r, which is ignored", name)
