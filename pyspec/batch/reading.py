"""Finds input files, in a fixed order without duplicates, and reads records from lines, paragraphs, files, JSON and columns.

Text is strict UTF-8. No record larger than the limit is ever held in memory.
"""

from __future__ import annotations

import csv
import glob
import logging
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from pyspec.batch.lines import record_of
from pyspec.errors import InputEncoding, InputError, InputTooLong
from pyspec.requests.records import Record, unique
from pyspec.text.result import Failure

log = logging.getLogger("pyspec")

MAX_RECORD = 1 << 20
"""Default limit on a record, bytes."""

Per = Literal["line", "file", "paragraph"]

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Reading:
    """Settings for reading inputs.

    per: the unit of a text file that is a record. limit: bytes of a record. errors: "strict", or "replace" to put U+FFFD where
    bytes are not UTF-8. template: text with `{text}` in it. column: the column of a CSV file that has the prompts; not needed
    if there is only one.
    """

    per: Per = "line"
    limit: int = MAX_RECORD
    errors: Literal["strict", "replace"] = "strict"
    template: str | None = None
    column: str | None = None

    def __post_init__(self) -> None:
        if self.template is not None and "{text}" not in self.template:
            raise InputError(
                "the template has no {text} in it", "write {text} where each input goes"
            )

    def wrap(self, text: str) -> str:
        """The prompt for one input. Braces other than `{text}` are left alone."""
        return text if self.template is None else self.template.replace("{text}", text)


Kind = Literal["text", "jsonl", "csv"]


def read_records(stream: BinaryIO, name: str, kind: Kind, reading: Reading) -> Iterator[Record]:
    """Records of one input. Blank lines, paragraphs, files and rows are skipped.

    A line of JSON has `prompt` or `messages`, and optionally id, system, max_tokens and the like, or is in OpenAI's batch
    format. Raises InputError for a table that cannot be read or lacks the column. Other faulty records carry their error.
    """
    for number, text in (_cells if kind == "csv" else _texts)(stream, name, kind, reading):
        whole = kind == "text" and reading.per == "file"
        record = Record(id=name if whole else f"{name}:{number}", source=name, line=number)
        if isinstance(text, InputError):
            record.error = Failure.of(text)
        elif not text.strip():
            continue
        elif kind == "jsonl":
            record = _from_json(text, record, reading)
        else:
            record.prompt = reading.wrap(text)
        yield record


# -- lines -----------------------------------------------------------------------------------------


class _Line(NamedTuple):
    """A line without its end. offset: of its first byte. data: None for a line over the limit."""

    number: int
    offset: int
    data: bytes | None


def _lines(stream: BinaryIO, limit: int, *, cr: bool = False) -> Iterator[_Line]:
    """Lines of a file without the BOM. LF, CRLF or the end of the file end a line. cr: keep the CR of CRLF."""
    offset = number = 0
    while data := stream.readline(limit + len(_BOM) + 2):
        number += 1
        bom = len(_BOM) if number == 1 and data.startswith(_BOM) else 0
        body = data[bom:].removesuffix(b"\n")
        if data.endswith(b"\n") and not cr:
            body = body.removesuffix(b"\r")
        yield _Line(number, offset + bom, body if len(body) <= limit else None)
        offset += len(data)
        while len(body) > limit and data and not data.endswith(b"\n"):
            data = stream.readline(1 << 16)  # the rest is skipped in parts, and not held
            offset += len(data)


def _groups(stream: BinaryIO, per: Per, limit: int) -> Iterator[list[_Line]]:
    """The lines of each record. One over the limit is cut soon after that."""
    group: list[_Line] = []
    size = 0
    for line in _lines(stream, limit):
        if per == "line":
            yield [line]
        elif per == "paragraph" and line.data is not None and not line.data.strip():
            if group:
                yield group
            group, size = [], 0
        elif size <= limit + 1:
            group.append(line)
            size += len(line.data or b"") + 1
    if group:
        yield group


def _texts(
    stream: BinaryIO, name: str, kind: Kind, reading: Reading
) -> Iterator[tuple[int, str | InputError]]:
    """Each record's first line number, and its text or error."""
    for lines in _groups(stream, reading.per if kind == "text" else "line", reading.limit):
        size = sum(len(line.data or b"") + 1 for line in lines) - 1
        try:
            if size > reading.limit:
                raise _too_long(name, lines[0].number, reading.limit)
            text = "\n".join(_text(line, name, reading) for line in lines)
            yield lines[0].number, text.rstrip("\n")
        except InputError as error:
            yield lines[0].number, error


def _text(line: _Line, name: str, reading: Reading) -> str:
    """A line's text. Raises InputTooLong or InputEncoding, which name line and byte."""
    if line.data is None:
        raise _too_long(name, line.number, reading.limit)
    try:
        return line.data.decode("utf-8", reading.errors)
    except UnicodeDecodeError as error:
        raise InputEncoding(
            f"{name} is not UTF-8 at byte {line.offset + error.start}, line {line.number}",
            "convert it, or use --encoding-errors replace",
        ) from None


def _too_long(name: str, line: int, limit: int) -> InputTooLong:
    return InputTooLong(f"{name}, line {line}: longer than {limit} bytes", "raise --max-input")


# -- JSON and tables -------------------------------------------------------------------------------


def _from_json(text: str, at: Record, reading: Reading) -> Record:
    """The record of a line of JSON, or the placeholder `at` with the error."""
    try:
        record = record_of(text, at, templated=reading.template is not None)
    except InputError as error:
        at.error = Failure.of(InputError(f"{at.source}, line {at.line}: {error}"))
        return at
    record.id, record.source, record.line = record.id or at.id, at.source, at.line
    if record.prompt is not None:
        record.prompt = reading.wrap(record.prompt)
    return record


def _cells(
    stream: BinaryIO, name: str, _kind: Kind, reading: Reading
) -> Iterator[tuple[int, str | InputError]]:
    """The cells of one column of a CSV file with a header row, each with the number of its row's last line."""
    rows = rows_of(stream, name, reading)
    _, head = next(rows, (0, []))
    if not head:
        raise InputError(f"{name} has no header row", "add one with the names of the columns")
    column = reading.column or (head[0] if len(head) == 1 else None)
    if column not in head:
        was = f"no column {column!r}" if column else "several columns"
        raise InputError(f"{name} has {was}", f"name one with --column: {', '.join(head)[:200]}")
    at = head.index(column)
    for number, row in rows:
        text = row[at].replace("\r\n", "\n").strip("\n") if at < len(row) else ""
        if text.strip() or not any(row):
            yield number, text
        else:
            yield number, InputError(f"{name}, line {number}: the row has no prompt")


def rows_of(stream: BinaryIO, name: str, reading: Reading) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file, the header first, each with the number of its last line.

    Raises InputError for invalid CSV, and for a row with more cells than the header, whose columns are ambiguous.
    """
    lines = (_text(line, name, reading) + "\n" for line in _lines(stream, reading.limit, cr=True))
    first = list(islice(lines, _SNIFFED))
    rows = csv.reader(chain(first, lines), delimiter=_delimiter(first, name), strict=True)
    old, columns = csv.field_size_limit(reading.limit), 0
    try:
        for row in rows:
            columns = columns or len(row)
            if len(row) > columns:
                raise InputError(
                    f"{name}, line {rows.line_num}: {len(row)} cells under {columns} columns",
                    'put cells with commas between quotes ("a, b")',
                )
            yield rows.line_num, row
    except csv.Error as error:
        raise InputError(f"{name}, line {rows.line_num}: {error}", "fix the CSV file") from None
    finally:
        csv.field_size_limit(old)


_SNIFFED = 100
"""Number of lines from which the delimiter is detected."""


def _delimiter(lines: Sequence[str], name: str) -> str:
    """The delimiter: a tab for .tsv, else a comma unless header and rows agree on another one. Raises InputError."""
    if name.lower().endswith(".tsv"):
        return "\t"
    named = [each for each in ",;\t|" if len(_first_rows(lines, each, 1)[0]) > 1]
    if len(named) > 1:
        widths = {each: [len(row) for row in _first_rows(lines, each, _SNIFFED)] for each in named}
        named = [each for each in named if set(widths[each][1:]) <= {widths[each][0]}] or named
    if len(named) > 1:
        raise InputError(
            f"{name}: {' or '.join(map(repr, named))} may separate its cells",
            "put the names of columns between quotes",
        )
    return named[0] if named else ","


def _first_rows(lines: Sequence[str], delimiter: str, most: int) -> list[list[str]]:
    """The first rows of complete lines, at least one."""
    found: list[list[str]] = []
    with suppress(csv.Error):  # raised when the rows are read
        found += islice(filter(None, csv.reader(lines, delimiter=delimiter, strict=True)), most)
    return found or [[]]


# -- which files -------------------------------------------------------------------------------------------------------


_KINDS: dict[str, Kind] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv"}
_TAKEN = (".txt", ".md", ".text", ".jsonl", ".ndjson")
# endings of the files that are read from a folder


@dataclass(frozen=True)
class InputFile:
    """An input file. path: None for stdin. name: for records and messages. below: path relative to the folder that was named."""

    path: Path | None
    name: str
    below: str
    kind: Kind


def find_sources(inputs: Sequence[str]) -> list[InputFile]:
    """Files for names, folders, globs and `-`, without duplicates; those of a folder are sorted by path.

    Raises InputError for names that do not exist, have no text files or are no regular file.
    """
    found: dict[str, InputFile] = {}
    for word in inputs:
        for source in _find(word):
            key = "-" if source.path is None else os.path.realpath(source.path)
            found.setdefault(key, source)
    return list(found.values())


def _find(word: str) -> list[InputFile]:
    if word == "-":
        return [InputFile(None, "stdin", "stdin", "text")]
    path = Path(word)
    if path.is_dir():
        return _inside(path)
    if not path.exists() and glob.has_magic(word):
        matches = sorted(Path(match) for match in glob.glob(word, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
        files = [match for match in matches if match.is_file()]
        if not files:
            raise InputError(f"{as_text(word)} matches no file")
        return [_source(file, file.name) for file in files]
    return [_source(path, path.name)]


def _inside(folder: Path) -> list[InputFile]:
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    files = [path for path in found if path.suffix.lower() in _TAKEN]
    _name_skipped(folder, [path for path in found if path.suffix.lower() not in _TAKEN])
    if not files:
        raise InputError(
            f"{as_text(str(folder))} contains no text files",
            f"their names end with {', '.join(_TAKEN)}",
        )
    return [_source(file, file.relative_to(folder).as_posix()) for file in files]


def _name_skipped(folder: Path, files: Sequence[Path]) -> None:
    if files:
        first = ", ".join(as_text(str(file.relative_to(folder))) for file in files[:_NAMED])
        more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
        log.warning("skipped in %s: %s%s", as_text(str(folder)), first, more)


_NAMED = 5
"""Number of skipped files that the warning names."""


def _source(path: Path, below: str) -> InputFile:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InputError(f"{as_text(str(path))} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise InputError(
            f"{as_text(str(path))} is not a regular file", "give files, folders or - for stdin"
        )
    return InputFile(path, as_text(path.as_posix()), below, _KINDS.get(path.suffix.lower(), "text"))


def as_text(name: str) -> str:
    """A file's name as text, with bytes that are not UTF-8 escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def read_sources(sources: Sequence[InputFile], reading: Reading) -> Iterator[Record]:
    """All records of all sources, in order, with unique ids. Raises InputError if a file cannot be read."""
    return unique(record for source in sources for record in _read(source, reading))


def _read(source: InputFile, reading: Reading) -> Iterator[Record]:
    kind = _kind(source, reading)
    try:
        with source.path.open("rb") if source.path else nullcontext(sys.stdin.buffer) as stream:
            yield from read_records(stream, source.name, kind, reading)
    except OSError as error:
        raise InputError(f"{source.name} cannot be read: {error.strerror}") from None


def _kind(source: InputFile, reading: Reading) -> Kind:
    """The format to read an input as. Raises InputError for a column of no table, and for JSON that is not in lines."""
    if reading.column is not None and source.path is None:
        return "csv"
    if reading.column is not None and source.kind != "csv":
        raise InputError(f"--column is for CSV files, and {source.name} is not one", "leave it out")
    if source.name.lower().endswith(".json") and reading.per == "line":
        raise InputError(
            f"{source.name} is JSON, not a file of lines",
            "`jq -c .[] IN.json > OUT.jsonl` makes lines of an array; --per file sends it as one text",
        )
    return source.kind
