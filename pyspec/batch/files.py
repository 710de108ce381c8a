"""A run from files to files: what is not finished is answered and kept in the journal; at the end the output is put in place."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pyspec.batch.journal import Journal
from pyspec.batch.output import Earlier, JsonLines, TextFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspec.batch.reading import Per
    from pyspec.batch.records import Record, Result


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
class RunProgress:
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


class FileRun:
    """One run over records that are known, inside `with`: first `answer`, then `assemble`.

    retry_failed: answer again what failed before. Entering raises BatchWriteError or ResumeMismatch
    where the output is in use or belongs to something else; nothing has been computed then.
    """

    def __init__(
        self,
        answerer: Answerer,
        records: Sequence[Record],
        output: JsonLines | TextFiles,
        per: Per = "line",
        *,
        retry_failed: bool = False,
    ) -> None:
        self.answerer, self.records, self.output, self.per = answerer, records, output, per
        self.retry_failed = retry_failed
        self.summary = RunProgress(len(records))
        self.run = {**answerer.identity(), "inputs": inputs_digest(records)}
        self.name = hashlib.sha256(msgspec.json.encode(self.run)).hexdigest()[:16]
        self.journal: Journal | None = None
        self._todo: list[int] = []

    def __enter__(self) -> FileRun:
        earlier = self.output.inspect(self.name, self.records)
        again = self.retry_failed and earlier is not None and earlier.failed > 0
        if earlier is not None and not again and not self.output.journal.exists():
            self.summary.kept, self.summary.failed = len(self.records), earlier.failed
            return self
        journal = Journal(self.output.journal, self.run, anew=self.output.overwrite)
        try:
            self._begin(journal, earlier or Earlier())
        except BaseException:
            journal.close()
            raise
        return self

    def _begin(self, journal: Journal, earlier: Earlier) -> None:
        if isinstance(self.output, TextFiles):
            self.output.check(journal, self.records, self.per)
        again = journal.failed if self.retry_failed else set()
        done = (earlier.lines.keys() | journal.places.keys()) - again
        self._todo = [i for i in range(len(self.records)) if i not in done]
        self.summary.kept, self.summary.failed = len(done), len(journal.failed - again)
        self.journal = journal

    @property
    def complete(self) -> bool:
        """Whether the output has been there from the start."""
        return self.journal is None

    def answer(self, report: Callable[[Result], None]) -> None:
        """Answer what is not done yet; each record is on its way to the disk before `report` hears of it."""
        journal = self.journal
        if journal is None:
            return
        todo = [(i, self.records[i]) for i in self._todo]
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

    def __exit__(self, *_: object) -> None:
        self.close()


def inputs_digest(records: Sequence[Record]) -> str:
    """One hash of all records in their order."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(f"{record.id}\0{record.sha256}\n".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()
