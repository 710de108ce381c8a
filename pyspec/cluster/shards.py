"""Journals of many workers in one folder, so that none repeats what another has finished."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from pyspec.batch.journal import Journal, Key, finished
from pyspec.errors import BatchWriteError
from pyspec.requests.records import Record
from pyspec.text.result import RecordResult


class JournalFolder:
    """The answered records of a folder when it was opened, and this process's journal in it. run: identity of the batch.

    Raises BatchWriteError, and ResumeMismatch if the folder belongs to other models or options.
    """

    def __init__(self, folder: Path, run: dict[str, Any]) -> None:
        self._known: dict[Key, RecordResult] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.journal")):
                with path.open("rb") as stream:
                    for result, *_ in finished(stream, path, run):
                        if result.error is None:
                            self._known[result.id, result.prompt_sha256] = result
        except OSError as error:
            raise BatchWriteError(f"{folder} cannot be used: {error.strerror}") from None
        self._own = Journal(folder / f"{uuid.uuid4().hex}.journal", run)
        self.append, self.close = self._own.append, self._own.close

    def find(self, record: Record) -> RecordResult | None:
        """The result of an answered record; None for another one."""
        return self._known.get((record.id, record.sha256))
