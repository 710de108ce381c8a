"""Which inputs there are, in a fixed order, each once, and how lines, paragraphs, files, JSON lines and columns become records.

Text is strict UTF-8. No record is ever held that is larger than the limit.
"""

from __future__ import annotations

import csv
import glob
import os
import stat
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import msgspec

from pyspec.batch.bodies import CHAT, read_body
from pyspec.batch.records import Asked, Failure, Record, unique
from pyspec.errors import InputEncoding, InputError, InputTooLong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MAX_RECORD = 1 << 20
"""Largest record unless told otherwise, bytes."""

Per = Literal["line", "file", "paragraph"]

_BOM = b"\xef\xbb\xbf"


class _JsonLine(Asked):
    """A line of a JSONL input; fields that are not named here are ignored. custom_id, url, body: OpenAI's batch format."""

    id: str | int | None = None
    stop: str | list[str] | None = None
    custom_id: str | None = None
    url: str = ""
    body: msgspec.Raw = msgspec.Raw()


@dataclass(frozen=True)
class Reading:
    """How inputs are read.

    per: what one record of a text file is. limit: largest record, bytes. errors: "strict", or
    "replace" to put U+FFFD where bytes are not UTF-8. template: text with `{text}` in it. column: of
    a CSV file, where the text is.
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
        """The prompt made of one input; braces other than `{text}` are left alone."""
        return text if self.template is None else self.template.replace("{text}", text)


@dataclass(frozen=True)
class _Line:
    """One line without its end; offset is its first byte's. A line over the limit has no data."""

    number: int
    offset: int
    data: bytes | None


def read_text(stream: BinaryIO, name: str, reading: Reading) -> Iterator[Record]:
    """Records of a text file. Blank lines, paragraphs and files give none."""
    if reading.per == "file":
        yield from _whole_file(stream, name, reading)
        return
    groups: Iterator[list[_Line]] = ([line] for line in _lines(stream, reading.limit))
    if reading.per == "paragraph":
        groups = _paragraphs(_lines(stream, reading.limit))
    for lines in groups:
        place = f"{name}:{lines[0].number}"
        record = Record(id=place, source=name, line=lines[0].number)
        yield from _filled(record, partial(_joined, lines, name, reading), reading)


def read_jsonl(stream: BinaryIO, name: str, reading: Reading) -> Iterator[Record]:
    """Records of a JSONL file.

    Each line has `prompt` or `messages`, and optionally id, system, max_tokens, temperature, seed, stop.
    """
    decode = msgspec.json.Decoder(_JsonLine).decode
    for line in _lines(stream, reading.limit):
        try:
            text = _joined([line], name, reading)
            if not text.strip():
                continue
            record = _from_json(text, decode, name, line.number, reading)
        except InputError as error:
            place = f"{name}:{line.number}"
            record = Record(id=place, source=name, line=line.number, error=Failure.of(error))
        yield record


# -- lines -----------------------------------------------------------------------------------------


def _lines(stream: BinaryIO, limit: int) -> Iterator[_Line]:
    """Lines by bytes; LF and CRLF end one, the end of the file too. A BOM is no part of the first."""
    offset = number = 0
    while data := stream.readline(limit + len(_BOM) + 2):
        number += 1
        start, offset = offset, offset + len(data)
        ended = data.endswith(b"\n")
        if number == 1 and data.startswith(_BOM):
            start += len(_BOM)
            data = data[len(_BOM) :]
        body = data[:-1] if ended else data
        body = body[:-1] if ended and body.endswith(b"\r") else body
        if not ended and len(body) > limit:
            offset += _skip_line(stream)
        yield _Line(number, start, body if len(body) <= limit else None)


def _skip_line(stream: BinaryIO) -> int:
    skipped = 0
    while chunk := stream.readline(1 << 16):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped


def _paragraphs(lines: Iterator[_Line]) -> Iterator[list[_Line]]:
    group: list[_Line] = []
    for line in lines:
        if line.data is None or line.data.strip():
            group.append(line)
        elif group:
            yield group
            group = []
    if group:
        yield group


def _joined(lines: list[_Line], name: str, reading: Reading) -> str:
    """The text of lines. Raises InputTooLong or InputEncoding, which name line and byte."""
    size = sum(len(line.data) + 1 for line in lines if line.data is not None) - 1
    if size > reading.limit or any(line.data is None for line in lines):
        raise _too_long(name, lines[0].number, reading.limit)
    return "\n".join(
        _decoded(line.data or b"", line.offset, name, line.number, reading) for line in lines
    )


def _too_long(name: str, line: int, limit: int) -> InputTooLong:
    return InputTooLong(f"{name}, line {line}: longer than {limit} bytes", "raise --max-input")


def _decoded(data: bytes, offset: int, name: str, line: int, reading: Reading) -> str:
    try:
        return data.decode("utf-8", reading.errors)
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        raise InputEncoding(
            f"{name} is not UTF-8 at byte {offset + error.start}, line {line}",
            "convert it, or use --encoding-errors replace",
        ) from None


def _whole_file(stream: BinaryIO, name: str, reading: Reading) -> Iterator[Record]:
    data = stream.read(reading.limit + len(_BOM) + 1)
    offset = len(_BOM) if data.startswith(_BOM) else 0
    data = data[offset:]

    def text() -> str:
        if len(data) > reading.limit:
            raise _too_long(name, 1, reading.limit)
        return _decoded(data, offset, name, 1, reading).replace("\r\n", "\n").rstrip("\n")

    yield from _filled(Record(id=name, source=name, line=1), text, reading)


def _filled(record: Record, text: Callable[[], str], reading: Reading) -> Iterator[Record]:
    """The record with the text as its prompt, or with the error of reading it; nothing where the text is blank."""
    try:
        found = text()
    except InputError as error:
        record.error = Failure.of(error)
    else:
        if not found.strip():
            return
        record.prompt = reading.wrap(found)
    yield record


# -- JSON ------------------------------------------------------------------------------------------


def _from_json(
    text: str, decode: Callable[[str], _JsonLine], name: str, number: int, reading: Reading
) -> Record:
    where = f"{name}, line {number}"
    try:
        line = decode(text)
        record = _foreign(line, where, reading) if bytes(line.body) else _own(line, reading)
    except RecursionError:
        raise InputError(f"{where}: JSON nested too deep") from None
    except (msgspec.MsgspecError, UnicodeError, InputError) as error:
        raise InputError(f"{where}: {error}") from None
    if record.id == "":
        record.id = f"{name}:{number}"
    record.source, record.line = name, number
    return record


def _own(line: _JsonLine, reading: Reading) -> Record:
    asked = {key: getattr(line, key) for key in Asked.__struct_fields__}
    record = Record(id="" if line.id is None else str(line.id), **asked)
    record.stop = [line.stop] if isinstance(line.stop, str) else line.stop
    record.check()
    if record.prompt is not None:
        record.prompt = reading.wrap(record.prompt)
    return record


def _foreign(line: _JsonLine, where: str, reading: Reading) -> Record:
    """A record of one of OpenAI's batch lines; one that cannot be used keeps its custom_id."""
    name = line.custom_id or ""
    try:
        if reading.template is not None:
            raise InputError("a template has no place in OpenAI's batch format")
        body = read_body(line.url, line.body)
        if body.n not in (None, 1) or body.stream:
            raise InputError("n and stream have no place in a batch", "one answer a line")
        record = body.record(name)
        record.check()
    except InputError as error:
        return Record(id=name, form=CHAT, error=Failure.of(InputError(f"{where}: {error}")))
    return record


# -- tables ----------------------------------------------------------------------------------------


def read_csv(stream: BinaryIO, name: str, reading: Reading) -> Iterator[Record]:
    """Records of a CSV file whose first row names the columns; blank cells give none.

    Raises InputError where the column is not there or not named, and InputEncoding.
    """
    rows = csv.reader(_csv_lines(stream, name, reading), strict=True)
    old = csv.field_size_limit(reading.limit)
    try:
        head = next(rows, [])
        if reading.column not in head:
            was = f"no column {reading.column!r}" if reading.column else "several columns"
            raise InputError(
                f"{name} has {was}", f"name one with --column: {', '.join(head)[:200]}"
            )
        at = head.index(reading.column)
        for row in rows:
            number = rows.line_num
            text = row[at].strip("\n") if at < len(row) else ""
            record = Record(id=f"{name}:{number}", source=name, line=number)
            yield from _filled(record, lambda text=text: text, reading)  # type: ignore[misc]
    except csv.Error as error:
        raise InputError(f"{name}, line {rows.line_num}: {error}", "mend the table") from None
    finally:
        csv.field_size_limit(old)


def _csv_lines(stream: BinaryIO, name: str, reading: Reading) -> Iterator[str]:
    for line in _lines(stream, reading.limit):
        if line.data is None:
            raise _too_long(name, line.number, reading.limit)
        yield _decoded(line.data, line.offset, name, line.number, reading) + "\n"


# -- which files -------------------------------------------------------------------------------------------------------


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
