"""Journals of many writers in one folder, so that no worker repeats what another has finished.

Ray gives a dataset's rows to any process in any order, so an index does not identify a record; its id and the hash of its
request do. Each process writes its own journal, and reads those of the others.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from pyspec.batch.journal import Journal, finished
from pyspec.errors import BatchWriteError
from pyspec.requests.records import Record
from pyspec.text.result import RecordResult


class JournalFolder:
    """The finished records of a folder, and this process's journal in it. run: identity of the models and options.

    Failed records do not count as finished. Raises BatchWriteError, and ResumeMismatch if the folder belongs to other models
    or options.
    """

    def __init__(self, folder: Path, run: dict[str, Any]) -> None:
        self._places: dict[tuple[str, str], tuple[Path, int, int]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.journal")):
                with path.open("rb") as stream:
                    for result, offset, size in finished(stream, path, run):
                        if result.error is None:
                            self._places[result.id, result.prompt_sha256] = path, offset, size
        except OSError as error:
            raise BatchWriteError(f"{folder} cannot be used: {error.strerror}") from None
        self._own = Journal(folder / f"{uuid.uuid4().hex}.journal", run)

    def find(self, index: int, record: Record) -> RecordResult | None:
        """The result of a finished record, renumbered to this index; None for an unfinished one."""
        place = self._places.get((record.id, record.sha256))
        if place is None:
            return None
        path, offset, size = place
        with path.open("rb") as stream:
            stream.seek(offset)
            return replace(msgspec.json.decode(stream.read(size), type=RecordResult), index=index)

    def append(self, result: RecordResult) -> None:
        """Add a finished record. Raises BatchWriteError."""
        self._own.append(result)

    def close(self) -> None:
        self._own.close()
