"""Journals of many writers in one folder: what any of them has finished, nobody computes again.

A dataset's rows come in any order and to any process, so that a place says nothing: a record is known by its id and the hash
of what it asks. Each process writes a journal of its own, and reads those that lie beside it.
"""

from __future__ import annotations

import uuid
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from pyspec.batch.journal import Journal, finished
from pyspec.errors import BatchWriteError
from pyspec.requests.records import Record
from pyspec.text.result import RecordResult


class JournalFolder:
    """What was finished in a folder, and a journal there for what this process adds. run: what the answers depend on.

    Records that failed are not among them: they are tried again. Raises BatchWriteError, and ResumeMismatch where the
    folder belongs to other models or options.
    """

    def __init__(self, folder: Path, run: dict[str, Any]) -> None:
        self._places: dict[tuple[str, str], tuple[Path, int, int]] = {}
        self._count = count()
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
        """The result of a record that was finished, as that of this place; None for one that was not."""
        place = self._places.get((record.id, record.sha256))
        if place is None:
            return None
        path, offset, size = place
        with path.open("rb") as stream:
            stream.seek(offset)
            return replace(msgspec.json.decode(stream.read(size), type=RecordResult), index=index)

    def append(self, result: RecordResult) -> None:
        """Add a finished record. Raises BatchWriteError."""
        self._own.append(replace(result, index=next(self._count)))

    def close(self) -> None:
        """Let go of the journal."""
        self._own.close()
