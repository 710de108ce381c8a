"""Records of a batch: what a prompt is, and what it asks for.

A record that cannot be used is still a record: it carries its error, so that the batch goes on and
the output has a line for it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from pyspec.errors import InputError, PyspecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Failure(msgspec.Struct, frozen=True):
    """Why a record has no answer: the name of the exception, and its sentence."""

    type: str
    message: str

    @classmethod
    def of(cls, error: PyspecError) -> Failure:
        """From an exception of this package."""
        return cls(type(error).__name__, str(error))


class Turn(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str


class Asked(msgspec.Struct, kw_only=True):
    """What a record may bring, and a line of JSON as well."""

    prompt: str | None = None
    messages: list[Turn] | None = None
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None


class Record(Asked, kw_only=True):
    """One prompt and what it asks for; None leaves the batch's own setting.

    Either `prompt` or `messages`. source: the input's name; line: where in it, from 1. error: why
    the record cannot be used.
    """

    id: str
    stop: list[str] | None = None
    source: str = ""
    line: int = 0
    error: Failure | None = None

    @property
    def sha256(self) -> str:
        """Hash of what is asked: everything but id and place."""
        asked = (self.prompt, self.messages, self.system, self.max_tokens, self.temperature)
        data = msgspec.json.encode((*asked, self.seed, self.stop))
        return hashlib.sha256(data).hexdigest()


def unique(records: Iterable[Record]) -> Iterator[Record]:
    """The same records; one whose id was there before fails, under the name of its place."""
    seen: set[str] = set()
    for record in records:
        if record.id in seen:
            error = InputError(
                f"{record.source}, line {record.line}: id {record.id[:80]!r} was there before"
            )
            record = Record(  # noqa: PLW2901 - takes its place
                id=_free(f"{record.source}:{record.line}", seen),
                source=record.source,
                line=record.line,
                error=Failure.of(error),
            )
        seen.add(record.id)
        yield record


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    return name
