"""Output files of a batch. Two layouts are here: a text file for each input file, and a table."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pyspec.batch.journal import Journal
from pyspec.batch.reading import InputFile, Per, Reading, rows_of
from pyspec.errors import BatchWriteError, InputError, ResumeMismatch
from pyspec.machine.files import as_text, write_whole
from pyspec.requests.records import Record
from pyspec.text.parts import RecordResult

Results = Callable[[int], RecordResult]  # the result of a record, by its place among the inputs
_COLUMNS = ("answer", "finish_reason", "error")


class OutputFiles:
    """A run's output files. A file that existed before is replaced only if this run wrote it, or with `overwrite`."""

    stale = False  # whether an earlier output has every record and yet has to be written again
    most_named: int | None = 3  # failed records to name while the batch runs, None for all

    def __init__(
        self, paths: Iterable[Path], inputs: Sequence[InputFile], journal: Path, *, overwrite: bool
    ) -> None:
        self.journal, self.overwrite = journal, overwrite
        self.signatures = {path: _signature(path) for path in paths}  # as the run begins
        read = {os.path.realpath(source.path) for source in inputs if source.path is not None}
        for path in self.signatures:
            if os.path.realpath(path) in read:
                hint = "give another -o"
                raise InputError(f"{as_text(path)} is an input and would be overwritten", hint)
            if self.signatures[path] is not None and _is_model(path):
                hint = "give another -o"
                raise InputError(f"{as_text(path)} is a model and would be overwritten", hint)

    def chunks(self, path: Path, results: Results, records: Sequence[Record]) -> Iterator[bytes]:
        """Yield the content of a file in parts."""
        raise NotImplementedError

    def inspect(self, run: str) -> list[RecordResult]:
        """Return the results of an earlier output, see `JsonLines`; none where only the journal has them."""
        return []

    def check(self, journal: Journal) -> None:
        """Raise ResumeMismatch where a file exists that no run with this journal has written."""
        for path, signature in self.signatures.items():
            if self.overwrite or signature is None:
                continue
            if _sha256([path.read_bytes()]) not in journal.written:
                raise self.refuse(path)

    def assemble(self, journal: Journal, results: Results, records: Sequence[Record]) -> None:
        """Write the files. Raises BatchWriteError."""
        for path in self.signatures:
            # noted before, so that a file is known whenever the process ends
            journal.note(_sha256(self.chunks(path, results, records)))
        journal.sync()
        for path in self.signatures:
            self._write(path, self.chunks(path, results, records))

    def _write(self, path: Path, chunks: Iterator[bytes]) -> None:
        """Write a file atomically. Raises BatchWriteError if that fails, or if the file has changed since the run began."""
        try:
            if _signature(path) != self.signatures[path]:
                raise FileExistsError
            write_whole(path, chunks, replace=self.signatures[path] is not None)
        except FileExistsError:
            what = f"{as_text(path)} appeared or changed while the batch ran and is not overwritten"
            hint = "move it away and run the same command again: all records are in the journal"
            raise BatchWriteError(what, hint) from None
        except OSError as error:
            what = f"{path} cannot be written: {error.strerror}; all records are in the journal"
            hint = "free some space and run the same command again: it only writes the file"
            raise BatchWriteError(what, hint) from None
        self.signatures[path] = _signature(path)

    def refuse(self, path: Path, why: str = "") -> ResumeMismatch:
        """The error for a foreign file at `path`."""
        what = f"{as_text(path)} exists and is not the result of this run{why}"
        return ResumeMismatch(what, "give another -o, use --overwrite, or move it away")


def _sha256(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _is_model(path: Path) -> bool:
    """Whether a file is a GGUF, which this run may be using."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


def _signature(path: Path) -> object:
    """What changes with a file; None if there is none. Raises InputError for a link, a device or a folder: none is replaced."""
    try:
        found = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{as_text(path)} is not a regular file", "give another -o")
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class TextFiles(OutputFiles):
    """A folder with a text file for each input file: answers in the order of the records, nothing for one that failed."""

    most_named = None  # no file tells of them

    def __init__(
        self, folder: Path, inputs: Sequence[InputFile], per: Per, *, overwrite: bool = False
    ) -> None:
        self.per = per
        self._sources: dict[Path, str] = {}
        for source in inputs:
            if source.kind != "text":
                raise InputError(f"{source.name}: -o DIR/ is for text files", "give -o OUT.jsonl")
            path = folder / source.below
            if path in self._sources:
                hint = "rename one of them"
                raise InputError(f"two inputs would be written to {as_text(path)}", hint)
            self._sources[path] = source.name
        journal = folder / "pyspec-batch.journal"
        super().__init__(self._sources, inputs, journal, overwrite=overwrite)
        try:
            for path in (journal, *self.signatures):
                path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BatchWriteError(f"{path.parent} cannot be created: {error.strerror}") from None

    def chunks(self, path: Path, results: Results, records: Sequence[Record]) -> Iterator[bytes]:
        name = self._sources[path]
        indexes = (i for i, record in enumerate(records) if record.source == name)
        return (_ARRANGE[self.per](results(i).text).encode() for i in indexes)


_ARRANGE: dict[str, Callable[[str], str]] = {
    "line": lambda text: " ".join(text.split("\n")) + "\n",
    "paragraph": lambda text: text.strip("\n") + "\n\n",
    "file": lambda text: text + "\n",
}


class TableFile(OutputFiles):
    """A CSV file: the rows of CSV inputs, or else the records' ids, with columns for answers. reading: how inputs were read."""

    def __init__(
        self, path: Path, inputs: Sequence[InputFile], reading: Reading, *, overwrite: bool = False
    ) -> None:
        journal = path.with_name(path.name + ".journal")
        super().__init__([path], inputs, journal, overwrite=overwrite)
        self.inputs, self.reading = inputs, reading
        self._tables = bool(inputs) and all(source.kind == "csv" for source in inputs)
        if self._tables:
            heads = {source.name: self._head(source) for source in inputs}
            first = next(iter(heads.values()))
            if other := next((name for name, head in heads.items() if head != first), None):
                hint = "run one command for each"
                raise InputError(f"{other} has other columns than {inputs[0].name}", hint)

    def chunks(self, path: Path, results: Results, records: Sequence[Record]) -> Iterator[bytes]:
        if not self._tables:
            yield _row(["id", *_COLUMNS])
            for i, record in enumerate(records):
                yield _row([record.id, *_cells(results(i))])
            return
        indexes = {(record.source, record.line): i for i, record in enumerate(records)}
        head = self._head(self.inputs[0])
        # a name that the table has already gets a prefix
        ours = [name if name not in head else f"pyspec_{name}" for name in _COLUMNS]
        yield _row([*head, *ours])
        for source in self.inputs:
            if (empty := indexes.get((source.name, 0))) is not None:  # it has no rows
                yield _row([*[""] * len(head), *_cells(results(empty))])
            for line, row in self._rows(source)[1:]:
                at = indexes.get((source.name, line))
                filled = [*row, *[""] * (len(head) - len(row))]
                yield _row([*filled, *(["", "", ""] if at is None else _cells(results(at)))])

    def _head(self, source: InputFile) -> list[str]:
        return next(iter(self._rows(source)), (0, []))[1]

    def _rows(self, source: InputFile) -> list[tuple[int, list[str]]]:
        if source.path is None:
            raise InputError("stdin is not a table", "name the CSV file")
        with source.path.open("rb") as stream:
            return list(rows_of(stream, source.name, self.reading))


def _cells(result: RecordResult) -> list[str]:
    error = "" if result.error is None else f"{result.error.type}: {result.error.message}"
    return [result.text, result.finish_reason or "", error]


def _row(cells: Sequence[str]) -> bytes:
    """A row of CSV. Python's own writer leaves carriage returns unquoted before 3.13."""
    quoted = ('"' + c.replace('"', '""') + '"' if _SPECIAL.search(c) else c for c in cells)
    row = ",".join(quoted) or '""'  # an empty line would be no row
    return (row + "\n").encode("utf-8", "backslashreplace")


_SPECIAL = re.compile('[,"\r\n]')  # characters that require quotes
