"""Finds input files, and reads records from their lines, paragraphs, JSON lines or columns, or from whole files.

The order of files is fixed, and none is read twice. Text must be UTF-8. No record larger than the limit is held in memory.
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
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec

from pyspec.errors import InputEncoding, InputError, InputTooLong
from pyspec.machine.files import as_text
from pyspec.requests.bodies import UNDONE, Body, ChatBody, decoded, read_body, records_of
from pyspec.requests.records import CHAT, Record, unique
from pyspec.text.parts import Failure

log = logging.getLogger("pyspec")

MAX_RECORD = 1 << 20  # default limit on a record, bytes

Per = Literal["line", "file", "paragraph"]

_BOM = b"\xef\xbb\xbf"
Kind = Literal["text", "jsonl", "csv"]
_SNIFFED = 100  # number of lines from which the delimiter is detected


@dataclass(frozen=True)
class Reading:
    """Settings for reading inputs."""

    per: Per = "line"  # which part of a text file is a record
    limit: int = MAX_RECORD  # bytes of a record
    errors: Literal["strict", "replace"] = "strict"  # "replace" puts U+FFFD for what is not UTF-8
    template: str | None = None  # a text in which each input replaces `{text}`
    column: str | None = None  # of a CSV file, with the prompts; a file's only one needs no name

    def __post_init__(self) -> None:
        if self.template is not None and "{text}" not in self.template:
            hint = "write {text} where each input goes"
            raise InputError("the template has no {text} in it", hint)

    def wrap(self, text: str) -> str:
        """Return the prompt for one input. Braces other than `{text}` stay."""
        return text if self.template is None else self.template.replace("{text}", text)


def read_records(stream: BinaryIO, name: str, kind: Kind, reading: Reading) -> Iterator[Record]:
    """Read the records of one input. Blank lines, paragraphs and rows are skipped; an input of nothing else is a faulty record.

    A line of JSON is in OpenAI's batch format, or has `prompt` or `messages` and optional fields such as id, system and
    max_tokens. A faulty record carries its error. Raises InputError for a table that cannot be read or lacks the column.
    """
    found = False
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
        found = True
        yield record
    if not found:
        nothing = InputError(f"{name} has no rows" if kind == "csv" else f"{name} is empty")
        yield Record(id=name, source=name, error=Failure.of(nothing))


# -- lines -----------------------------------------------------------------------------------------


class _Line(NamedTuple):
    """A line without its line ending. offset: of its first byte in the file. data: None for a line over the limit."""

    number: int
    offset: int
    data: bytes | None


def _lines(stream: BinaryIO, limit: int, *, cr: bool = False) -> Iterator[_Line]:
    """Yield the lines of a file without its BOM. A line ends with LF or CRLF. cr: whether to keep the CR of CRLF."""
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
    """Yield the lines of each record. A record over the limit is cut soon after it."""
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
    """Yield the number of each record's first line, and the record's text or error."""
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
    """Decode a line. Raises InputTooLong or InputEncoding, which name the line and the byte."""
    if line.data is None:
        raise _too_long(name, line.number, reading.limit)
    try:
        return line.data.decode("utf-8", reading.errors)
    except UnicodeDecodeError as error:
        what = f"{name} is not UTF-8 at byte {line.offset + error.start}, line {line.number}"
        raise InputEncoding(what, "convert it, or use --encoding-errors replace") from None


def _too_long(name: str, line: int, limit: int) -> InputTooLong:
    return InputTooLong(f"{name}, line {line}: longer than {limit} bytes", "raise --max-input")


# -- JSON and tables -------------------------------------------------------------------------------


def _from_json(text: str, empty: Record, reading: Reading) -> Record:
    """Return the record of a line of JSON, or the `empty` one with what is wrong. `empty` gets the line's id and form."""
    try:
        line = msgspec.json.decode(text, type=_Kind)
        record = _openai(line, empty, reading) if line.is_openai else _own(text)
        record.check()
        if record.speculation is not None and record.speculation.tokens:
            raise InputError("speculation.tokens is not supported in a batch", "leave it out")
    except Exception as error:  # noqa: BLE001 - one faulty line must not end the others
        why = str(error) or type(error).__name__
        if isinstance(error, RecursionError):
            why = "JSON nested too deep"
        empty.error = Failure.of(InputError(f"{empty.source}, line {empty.line}: {why}"))
        return empty
    record.id, record.source, record.line = record.id or empty.id, empty.source, empty.line
    if record.prompt is not None:
        record.prompt = reading.wrap(record.prompt)
    return record


def _cells(
    stream: BinaryIO, name: str, _kind: Kind, reading: Reading
) -> Iterator[tuple[int, str | InputError]]:
    """Yield the cells of one column of a CSV file. Each comes with the number of its row's last line."""
    rows = rows_of(stream, name, reading)
    _, head = next(rows, (0, []))
    if not head:
        raise InputError(f"{name} has no header row", "add one with the names of the columns")
    column = reading.column
    if column is None and len(head) == 1:
        (column,) = head
        said = (
            "%s: %r is taken as the name of its only column; if it is a prompt, put a name above it"
        )
        log.warning(said, name, column[:80])
    if column is None or head.count(column) != 1:
        was = "several columns"
        if column is not None:
            was = f"{head.count(column) or 'no'} columns named {column!r}"
        raise InputError(f"{name} has {was}", f"name one with --column: {', '.join(head)[:200]}")
    at = head.index(column)
    for number, row in rows:
        text = row[at].replace("\r\n", "\n").strip("\n") if at < len(row) else ""
        if text.strip() or not any(row):
            yield number, text
        else:
            yield number, InputError(f"{name}, line {number}: the row has no prompt")


def rows_of(stream: BinaryIO, name: str, reading: Reading) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file, the header first. Each comes with the number of its last line.

    Raises InputError for invalid CSV, and for a row with more cells than the header, since its columns are ambiguous.
    """
    lines = (_text(line, name, reading) + "\n" for line in _lines(stream, reading.limit, cr=True))
    first = list(islice(lines, _SNIFFED))
    rows = csv.reader(chain(first, lines), delimiter=_delimiter(first, name), strict=True)
    old, columns = csv.field_size_limit(reading.limit), 0
    try:
        for row in rows:
            columns = columns or len(row)
            if len(row) > columns:
                what = f"{name}, line {rows.line_num}: {len(row)} cells under {columns} columns"
                raise InputError(what, 'put cells with commas between quotes ("a, b")')
            yield rows.line_num, row
    except csv.Error as error:
        raise InputError(f"{name}, line {rows.line_num}: {error}", "fix the CSV file") from None
    finally:
        csv.field_size_limit(old)


def _delimiter(lines: Sequence[str], name: str) -> str:
    """Detect the delimiter: a tab for .tsv, else a comma unless header and rows agree on another one. Raises InputError."""
    if name.lower().endswith(".tsv"):
        return "\t"
    named = [each for each in ",;\t|" if len(_first_rows(lines, each, 1)[0]) > 1]
    if len(named) > 1:
        widths = {each: [len(row) for row in _first_rows(lines, each, _SNIFFED)] for each in named}
        named = [each for each in named if set(widths[each][1:]) <= {widths[each][0]}] or named
    if len(named) > 1:
        hint = "put the names of columns between quotes"
        raise InputError(f"{name}: {' or '.join(map(repr, named))} may separate its cells", hint)
    return named[0] if named else ","


def _first_rows(lines: Sequence[str], delimiter: str, most: int) -> list[list[str]]:
    """Return the first rows of these lines, at least one."""
    found: list[list[str]] = []
    with suppress(csv.Error):  # raised when the rows are read
        found += islice(filter(None, csv.reader(lines, delimiter=delimiter, strict=True)), most)
    return found or [[]]


# -- which files -------------------------------------------------------------------------------------------------------

_KINDS: dict[str, Kind] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv"}
_IN_FOLDERS = (".txt", ".md", ".text", ".jsonl", ".ndjson")  # what is read from a folder


@dataclass(frozen=True)
class InputFile:
    """An input file."""

    path: Path | None  # None for stdin
    name: str  # in records and messages
    below: str  # its path relative to the folder that the user named
    kind: Kind


def find_sources(inputs: Sequence[str]) -> list[InputFile]:
    """Find the files for names, folders, globs and `-`, without duplicates. Files of a folder are sorted by path.

    Raises InputError for a name that does not exist or is no regular file, and for a folder without text files.
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
    found = {path: path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    hidden = {path for path, below in found.items() if any(p.startswith(".") for p in below.parts)}
    files = [path for path in sorted(found.keys() - hidden) if path.suffix.lower() in _IN_FOLDERS]
    hint = f"files are read whose names end with {', '.join(_IN_FOLDERS)}"
    if not files:
        raise InputError(f"{as_text(folder)} contains no text files", hint)
    if skipped := len(found) - len(files):
        log.warning("%d others in %s are skipped (%s)", skipped, as_text(folder), hint)
    return [_source(file, found[file].as_posix()) for file in files]


def _source(path: Path, below: str) -> InputFile:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InputError(f"{as_text(path)} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        hint = "give files, folders or - for stdin"
        raise InputError(f"{as_text(path)} is not a regular file", hint)
    return InputFile(path, as_text(path.as_posix()), below, _KINDS.get(path.suffix.lower(), "text"))


def read_sources(sources: Sequence[InputFile], reading: Reading) -> Iterator[Record]:
    """Read the records of all sources, in order and with unique ids. Raises InputError if a file cannot be read."""
    return unique(record for source in sources for record in _read(source, reading))


def _read(source: InputFile, reading: Reading) -> Iterator[Record]:
    kind = _kind(source, reading)
    try:
        with source.path.open("rb") if source.path else nullcontext(sys.stdin.buffer) as stream:
            yield from read_records(stream, source.name, kind, reading)
    except OSError as error:
        raise InputError(f"{source.name} cannot be read: {error.strerror}") from None


def _kind(source: InputFile, reading: Reading) -> Kind:
    """Return the format of an input. Raises InputError for a column of no table, and for JSON that is not in lines."""
    if reading.column is not None and source.path is None:
        return "csv"
    if reading.column is not None and source.kind != "csv":
        raise InputError(f"--column is for CSV files, and {source.name} is not one", "leave it out")
    if source.name.lower().endswith(".json") and reading.per == "line":
        hint = "`jq -c .[] IN.json > OUT.jsonl` makes lines of an array; --per file sends it as one text"
        raise InputError(f"{source.name} is JSON, not a file of lines", hint)
    return source.kind


# -- lines of JSON -----------------------------------------------------------------------------------------------------


class LineBody(ChatBody, kw_only=True):
    """A line in our format: the fields of a chat request, or `prompt` in place of messages. id: the record's."""

    id: str | int | None = None
    messages: list[dict[str, Any]] | None = None  # type: ignore[assignment]  # prompt stands in for it
    prompt: str | None = None
    system: str | None = None
    best_of: int | None = None
    # columns of data sets, beside which they are fields of other APIs
    background: Any = None
    context: Any = None
    conversation: Any = None
    personality: Any = None
    template: Any = None
    thread: Any = None

    def records(self) -> list[Record]:
        if self.best_of not in (None, 1):
            raise InputError("best_of is for completions", "use OpenAI's batch format")
        record = self._record(self.messages or [])
        record.form, record.prompt, record.system = "", self.prompt, self.system
        if self.messages is None:
            record.messages = None
        return [record]


class _Kind(msgspec.Struct):
    """The fields that tell OpenAI's format from ours."""

    custom_id: str | None = None
    url: str = ""
    body: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()

    @property
    def is_openai(self) -> bool:
        ours = bytes(self.prompt) or bytes(self.messages)
        return bool(bytes(self.body) or (not ours and (self.custom_id or self.url)))


def _own(text: str) -> Record:
    body = decoded(LineBody, text.encode())
    record = _only(body, "" if body.id is None else str(body.id))
    given = msgspec.json.decode(text, type=dict[str, msgspec.Raw]).keys()
    for name in sorted(given - {*LineBody.__struct_fields__, *UNDONE}):
        _say_ignored(name[:40])
    return record


def _openai(line: _Kind, empty: Record, reading: Reading) -> Record:
    """Read a line in OpenAI's format. `empty` gets its custom_id, even if the line is faulty."""
    empty.id, empty.form = line.custom_id or empty.id, CHAT
    if reading.template is not None:
        raise InputError("--template cannot be used with OpenAI's batch format")
    if not bytes(line.body):
        raise InputError("the line has no body", "put the request into it")
    return _only(read_body(line.url, line.body), empty.id)


def _only(body: Body, name: str) -> Record:
    """Return the only record of a body. Raises InputError for several answers, a stream or logprobs."""
    record, *more = records_of(body)
    record.id = name
    if body.n not in (None, 1) or body.stream or more:
        hint = "write a line for each answer"
        raise InputError("n, stream and several prompts are not supported in a batch", hint)
    if record.logprobs is not None:
        raise InputError("logprobs are not supported in a batch", "leave them out")
    return record


@cache
def _say_ignored(name: str) -> None:
    log.warning("JSON lines have a field %r, which is ignored", name)
