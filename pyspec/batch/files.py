"""A batch from files to files: read, answer what the journal does not have, assemble the output."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pyspec.batch.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspec.batch.output import JsonLines, TextFiles
    from pyspec.batch.reading import Per
    from pyspec.batch.records import Record
    from pyspec.batch.results import Result


class Answerer(Protocol):
    """What answers records: a `Batch`, or many of them on other machines."""

    def identity(self) -> dict[str, Any]:
        """What the answers depend on."""

    def expect(self, records: Sequence[Record]) -> None:
        """Make room for the longest of these."""

    def run_indexed(self, records: Iterator[tuple[int, Record]]) -> Iterator[Result]:
        """Results as they finish."""

    def stats(self) -> dict[str, Any]:
        """Counts and times."""


@dataclass
class Summary:
    """What a run did. kept: records that the journal or an earlier run had already."""

    records: int
    kept: int = 0
    done: int = 0
    failed: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def count(self, result: Result) -> None:
        """Count one more finished record."""
        self.done += 1
        reason = result.error.type if result.error is not None else result.finish_reason or "?"
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self.failed += result.error is not None


@dataclass
class FileRun:
    """One run over records that are known: `kept` first, then `answer`, then `assemble`.

    Raises BatchWriteError or ResumeMismatch before anything is computed where the output is in use or
    belongs to something else.
    """

    answerer: Answerer
    records: Sequence[Record]
    output: JsonLines | TextFiles
    per: Per = "line"

    def __post_init__(self) -> None:
        self.run = {**self.answerer.identity(), "inputs": inputs_digest(self.records)}
        self.name = hashlib.sha256(msgspec.json.encode(self.run)).hexdigest()[:16]
        self.summary = Summary(len(self.records))
        self.journal: Journal | None = None
        failed = self.output.finished(self.name, self.records)
        if failed is not None:
            self.summary.kept, self.summary.failed = len(self.records), failed
            return
        self.journal = Journal(self.output.journal, self.run)
        self.summary.kept, self.summary.failed = len(self.journal.places), self.journal.failed

    @property
    def complete(self) -> bool:
        """Whether the output has been there from the start."""
        return self.journal is None

    def answer(self, report: Callable[[Result], None]) -> None:
        """Answer what is not in the journal yet; each record is on its way to the disk before `report` hears of it."""
        journal = self.journal
        if journal is None:
            return
        todo = [(i, record) for i, record in enumerate(self.records) if i not in journal]
        self.answerer.expect([record for _, record in todo])
        try:
            for result in self.answerer.run_indexed(iter(todo)):
                journal.append(result)
                self.summary.count(result)
                report(result)
        finally:
            journal.sync()

    def assemble(self) -> None:
        """Put the output in its place."""
        if self.journal is not None:
            self.output.assemble(self.journal, self.name, self.records, self.per)

    def close(self) -> None:
        """Let go of the journal."""
        if self.journal is not None:
            self.journal.close()

    def __enter__(self) -> FileRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def inputs_digest(records: Sequence[Record]) -> str:
    """One hash of all records in their order."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(f"{record.id}\0{record.sha256}\n".encode())
    return digest.hexdigest()
