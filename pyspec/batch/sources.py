"""The inputs of a batch: files, folders, globs and stdin, in a fixed order, each once."""

from __future__ import annotations

import glob
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pyspec.batch.reading import Reading, read_csv, read_jsonl, read_text
from pyspec.batch.records import Record, unique
from pyspec.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TEXT_SUFFIXES = (".txt", ".md", ".text")
"""What is taken from a folder, besides JSONL."""

JSONL_SUFFIXES = (".jsonl", ".ndjson")

CSV_SUFFIXES = (".csv",)

_READERS = {"text": read_text, "jsonl": read_jsonl, "csv": read_csv}


@dataclass(frozen=True)
class InputFile:
    """One input file; path None is stdin.

    name: how records and messages call it. below: its path inside the folder it was found in. kind:
    "text", "jsonl" or "csv".
    """

    path: Path | None
    name: str
    below: str
    kind: str

    def open(self) -> BinaryIO:
        """The file, for reading. Raises InputError."""
        if self.path is None:
            return sys.stdin.buffer
        try:
            return self.path.open("rb")
        except OSError as error:
            raise InputError(f"{self.name} cannot be read: {error.strerror}") from None


def find_sources(inputs: Sequence[str]) -> list[InputFile]:
    """Files behind names, folders, globs and `-`, each once, folders sorted by path.

    Raises InputError for what does not exist, holds no text or is no regular file.
    """
    found: dict[str, InputFile] = {}
    for given in inputs:
        for source in _find(given):
            key = "-" if source.path is None else os.path.realpath(source.path)
            found.setdefault(key, source)
    return list(found.values())


def _find(given: str) -> list[InputFile]:
    if given == "-":
        return [InputFile(None, "stdin", "stdin", "text")]
    path = Path(given)
    if path.is_dir():
        return _inside(path)
    if not path.exists() and glob.has_magic(given):
        matches = sorted(Path(match) for match in glob.glob(given, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
        files = [match for match in matches if match.is_file()]
        if not files:
            raise InputError(f"{show(given)} matches no file")
        return [_source(file, file.name) for file in files]
    return [_source(path, path.name)]


def _inside(folder: Path) -> list[InputFile]:
    wanted = (*TEXT_SUFFIXES, *JSONL_SUFFIXES)
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in wanted
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not files:
        raise InputError(
            f"{show(str(folder))} holds no text files", f"their names end with {', '.join(wanted)}"
        )
    return [_source(file, file.relative_to(folder).as_posix()) for file in files]


def _source(path: Path, below: str) -> InputFile:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InputError(f"{show(str(path))} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise InputError(
            f"{show(str(path))} is not a regular file", "give files, folders or - for stdin"
        )
    suffix = path.suffix.lower()
    kind = "jsonl" if suffix in JSONL_SUFFIXES else "csv" if suffix in CSV_SUFFIXES else "text"
    return InputFile(path, show(path.as_posix()), below, kind)


def show(name: str) -> str:
    """A file's name as text: bytes that are not UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def read_sources(sources: Sequence[InputFile], reading: Reading) -> Iterator[Record]:
    """All records of all sources, in order; ids are unique. Raises InputError where a file cannot be read."""
    return unique(record for source in sources for record in _read(source, reading))


def _read(source: InputFile, reading: Reading) -> Iterator[Record]:
    stream = source.open()
    try:
        yield from _READERS[source.kind](stream, source.name, reading)
    except OSError as error:
        raise InputError(f"{source.name} cannot be read: {error.strerror}") from None
    finally:
        if source.path is not None:
            stream.close()
