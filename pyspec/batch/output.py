"""Runs a batch from input files to output files. Answers go into a journal first; the output is assembled from it at the end.

`OUT.jsonl` has a line for each record, in the order of the inputs. `DIR/` has a text file for each input file, and `OUT.csv` a
row for each record. The journal stays beside it, for records that are added or retried. Without `--overwrite`, a run replaces
only files that it wrote itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from pyspec.batch.journal import Journal, Key
from pyspec.batch.reading import InputFile, Per, Reading, rows_of
from pyspec.errors import BatchWriteError, InputError, ResumeMismatch
from pyspec.machine.files import as_text, hash_of, write_whole
from pyspec.requests.records import Record, body_of, choice_of
from pyspec.text.parts import RecordResult

Results = Callable[[int], RecordResult]  # the result of a record, by its place among the inputs
_COLUMNS = ("answer", "finish_reason", "error")


class OutputFiles:
    """A run's output files. A file that existed before is replaced only if this run wrote it, or with `overwrite`."""

    most_named: int | None = 3  # failed records to name while the batch runs, None for all

    def __init__(
        self, paths: Iterable[Path], inputs: Sequence[InputFile], journal: Path, *, overwrite: bool
    ) -> None:
        self.journal, self.overwrite = journal, overwrite
        self.run = ""  # hash of the run's identity, once it has begun
        self.signatures = {path: _signature(path) for path in paths}  # as the run begins
        read = {os.path.realpath(source.path) for source in inputs if source.path is not None}
        for path in self.signatures:
            if os.path.realpath(path) in read:
                what = f"{as_text(path)} is an input and would be overwritten"
                raise InputError(what, "give another -o")

    def chunks(self, path: Path, results: Results, records: Sequence[Record]) -> Iterator[bytes]:
        """Yield the content of a file in parts."""
        raise NotImplementedError

    def check(self, journal: Journal) -> None:
        """Raise ResumeMismatch where a file exists that no run with this journal has written."""
        for path, signature in self.signatures.items():
            there = signature is not None and not self.overwrite
            if there and hash_of(path) not in journal.written:
                raise self.refuse(path)

    def assemble(self, journal: Journal, results: Results, records: Sequence[Record]) -> None:
        """Write the files. Raises BatchWriteError."""
        for path in self.signatures:
            self._write(path, self.chunks(path, results, records), journal)

    def _write(self, path: Path, chunks: Iterator[bytes], journal: Journal) -> None:
        """Write a file atomically. Raises BatchWriteError if that fails, or if the file has changed since the run began."""

        def noted() -> Iterator[bytes]:
            digest = hashlib.sha256()
            for chunk in chunks:
                digest.update(chunk)
                yield chunk
            if _signature(path) != self.signatures[path]:
                raise FileExistsError
            # before the file has its name, so that it is known whenever the process ends
            journal.note(digest.hexdigest())
            journal.sync()

        try:
            write_whole(path, noted(), replace=self.signatures[path] is not None)
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


def _signature(path: Path) -> object:
    """What changes with a file; None if there is none. Raises InputError for a link, a device or a folder: none is replaced."""
    try:
        found = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{as_text(path)} is not a regular file", "give another -o")
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class JsonLines(OutputFiles):
    """A JSONL file. prompts: whether it has the record's prompt. model: the model's name in lines of OpenAI's format."""

    def __init__(
        self, path: Path, inputs: Sequence[InputFile], *, prompts: bool = False, overwrite: bool = False, model: str = "",
    ) -> None:  # fmt: skip
        journal = path.with_name(path.name + ".journal")
        super().__init__([path], inputs, journal, overwrite=overwrite)
        self.prompts, self.model = prompts, model

    def chunks(self, path: Path, results: Results, records: Sequence[Record]) -> Iterator[bytes]:
        for i, record in enumerate(records):
            whole = {"prompt": record.prompt, "messages": record.messages} if self.prompts else {}
            prompt = {name: value for name, value in whole.items() if value is not None}
            yield output_line(results(i), self.run, record.form, model=self.model, prompt=prompt)


ABOUT_THE_TEXT = ("sampling", "seed", "verification", "relaxed", "relaxed_nats")
"""Members of `speculation` that describe the text. The others describe its computation: rounds and drafted tokens depend on
the clock, on neighbours in the batch and on interruptions."""


def output_line(
    result: RecordResult,
    run: str,
    form: str = "",
    *,
    model: str = "",
    prompt: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """Return a result's line in the output file, with its newline.

    run: hash of the run's identity. form: the endpoint of a line in OpenAI's batch format, "" for a line in ours.
    prompt: the record's prompt, if the line is to have it.
    """
    block = {key: result.speculation[key] for key in ABOUT_THE_TEXT if key in result.speculation}
    if form:
        line = {**_openai_line(result, run, form, block, model), **prompt}
        return msgspec.json.encode(line) + b"\n"
    line = {"id": result.id, **prompt, "prompt_sha256": result.prompt_sha256, "text": result.text}
    for name in ("reasoning", "reasoning_cut", "calls"):
        if value := getattr(result, name):
            line[name] = value
    line |= {"finish_reason": result.finish_reason, "usage": result.usage, "speculation": block}
    return msgspec.json.encode({**line, "error": result.error, "run": run}) + b"\n"


def _openai_line(
    result: RecordResult, run: str, form: str, block: dict[str, Any], model: str
) -> dict[str, Any]:
    name = hashlib.sha256(f"{run}\0{result.id}".encode()).hexdigest()[:24]
    response = error = None
    if result.error is None:
        choices = [choice_of(form, 0, result)]
        body = body_of(form, f"cmpl-{name}", model, result.created, choices)
        body = {**body, "usage": result.usage, "speculation": block}
        response = {"status_code": 200, "request_id": f"req_{name}", "body": body}
    else:
        error = {"code": result.error.type, "message": result.error.message}
    return {
        "id": f"batch_req_{name}",
        "custom_id": result.id,
        "response": response,
        "error": error,
        "prompt_sha256": result.prompt_sha256,
        "run": run,
    }


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


def open_output(
    out: str, inputs: Sequence[InputFile], reading: Reading, *, overwrite: bool, **lines: Any
) -> OutputFiles:
    """Open the output that `-o` names: a folder if it is one or ends with a slash, a table if it ends with .csv, else JSON lines.

    lines: arguments of `JsonLines`. Raises InputError for an unknown ending, and for prompts in a folder or a table.
    """
    if out == "-":
        hint = "name a file, such as OUT.jsonl"
        raise InputError("-o - would be stdout, from which no batch resumes", hint)
    folder = out.endswith(("/", os.sep)) or Path(out).is_dir()
    if not folder and not (parent := Path(out).parent).is_dir():
        hint = "create it"
        raise InputError(f"-o {as_text(out)}: there is no folder {as_text(parent)}", hint)
    if lines.get("prompts") and (folder or out.lower().endswith(".csv")):
        raise InputError("--with-prompt is for JSON lines", "give -o OUT.jsonl, or leave it out")
    if folder:
        return TextFiles(Path(out), inputs, reading.per, overwrite=overwrite)
    if out.lower().endswith(".csv"):
        return TableFile(Path(out), inputs, reading, overwrite=overwrite)
    if Path(out).suffix.lower() not in ("", ".jsonl", ".ndjson"):
        hint = "use OUT.jsonl for JSON lines, OUT.csv for a table or DIR/ for text files"
        raise InputError(f"-o {as_text(out)} has no known ending", hint)
    return JsonLines(Path(out), inputs, overwrite=overwrite, **lines)


# -- the run -----------------------------------------------------------------------------------------------------------


@dataclass
class RunProgress:
    """Counts of a run."""

    records: int
    kept: int = 0  # answered by an earlier run
    done: int = 0  # finished by this one, answered or failed
    answered: int = 0
    failed: int = 0  # those of earlier runs included
    tokens: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        return self.records - self.kept - self.answered - self.failed

    def count(self, result: RecordResult) -> None:
        self.done += 1
        reason = result.error.type if result.error is not None else result.finish_reason or "?"
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self.failed += result.error is not None
        self.answered += result.error is None
        self.tokens += result.usage.completion_tokens


class FileRun:
    """Answers records and writes their output. Use it in a `with` block: first `answer`, then `assemble`.

    Results of earlier runs are kept, by what identifies each: the inputs may have been mended or extended. retry_failed: whether
    to answer failed records again. Entering the block raises BatchWriteError if another process writes this output, and
    ResumeMismatch if it belongs to other models or options, or would lose answers. Nothing has been computed by then.
    """

    def __init__(
        self,
        answerer: Any,  # a `Batch`, or what has its `identity` and `run_indexed`
        records: Sequence[Record],
        output: OutputFiles,
        *,
        retry_failed: bool = False,
    ) -> None:
        self.answerer, self.records, self.output = answerer, records, output
        self.retry_failed = retry_failed
        self.summary = RunProgress(len(records))
        self.run = answerer.identity()
        output.run = hashlib.sha256(msgspec.json.encode(self.run)).hexdigest()[:16]
        self._own = [(record.id, record.sha256) for record in records]
        self._keys: list[Key] = []
        self._todo: list[int] = []

    def __enter__(self) -> FileRun:
        self.journal = journal = Journal(self.output.journal, self.run, anew=self.output.overwrite)
        try:
            self._begin(journal)
        except BaseException:
            (journal.close if journal.places else journal.remove)()
            raise
        return self

    def _begin(self, journal: Journal) -> None:
        found = matched(self._own, journal.places)
        answered = journal.places.keys() - journal.failed
        if answered and not self.output.overwrite:
            self._refuse_loss(journal.path, answered, answered & {*found})
        self.output.check(journal)
        failed = [key in journal.failed for key in found]
        self.summary.failed = 0 if self.retry_failed else sum(failed)
        self.summary.kept = len(found) - found.count(None) - sum(failed)
        self._keys = [self._own[i] if key is None else key for i, key in enumerate(found)]
        for i, key in enumerate(found):
            if key is None or (failed[i] and self.retry_failed):
                self._keys[i] = self._own[i]
                self._todo.append(i)

    def _refuse_loss(self, path: Path, answered: set[Key], kept: set[Key]) -> None:
        """Raise ResumeMismatch where no answer is kept, or answered records are gone, neither changed nor elsewhere."""
        names = {name for name, _ in answered - kept}
        if kept:
            names -= {name for name, _ in self._own}
        if names:
            lost = f"{len(names)} records that are not in these inputs, {min(names)} among them"
            raise self.output.refuse(path, f": it has answers to {lost}")

    @property
    def complete(self) -> bool:
        return not self._todo

    def answer(self, report: Callable[[RecordResult], None]) -> None:
        """Answer unfinished records. Each is written to the journal before `report` is called with it."""
        todo = [(i, self.records[i]) for i in self._todo]
        try:
            for result in self.answerer.run_indexed(todo):
                if self.records[result.index].form:
                    result.created = int(time())
                self.journal.append(result)
                self.summary.count(result)
                report(result)
        finally:
            self.journal.sync()

    def assemble(self) -> None:
        read, keys, own = self.journal.read, self._keys, self.records
        self.output.assemble(self.journal, lambda i: replace(read(keys[i]), id=own[i].id), own)

    def __exit__(self, *_: object) -> None:
        self.journal.close()


def matched(wanted: Sequence[Key], known: Iterable[Key]) -> list[Key | None]:
    """For each record, the earlier result that is its answer; None for a record that has none.

    A record that moved (a line above it is new, its file has another name) keeps the answer to the same request.
    """
    free = dict.fromkeys(known)
    found = [key if key in free else None for key in wanted]
    moved: dict[str, deque[Key]] = {}
    taken = {*found}
    for key in free:
        if key not in taken:
            moved.setdefault(key[1], deque()).append(key)
    for i, (_, sha256) in enumerate(wanted):
        if found[i] is None and moved.get(sha256):
            found[i] = moved[sha256].popleft()
    return found
