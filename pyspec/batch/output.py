"""A run from files to files: what is not finished is answered and kept in the journal, then the output is assembled from it.

`OUT.jsonl` gets one line a record, in the order of the inputs. `DIR/` gets one text file an input
file; the journal stays in it, since text files have no place for errors and statistics. Nothing is
overwritten that this run did not write, unless it was told to.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pyspec.batch.bodies import public
from pyspec.batch.journal import Journal
from pyspec.batch.reading import show
from pyspec.errors import BatchWriteError, InputError, ResumeMismatch
from pyspec.store.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspec.batch.ray import RayBatch
    from pyspec.batch.reading import InputFile, Per
    from pyspec.batch.records import Record, Result
    from pyspec.batch.run import Batch


class _Known(msgspec.Struct):
    """What an earlier output says of a record."""

    prompt_sha256: str
    run: str
    id: str = ""
    custom_id: str | None = None
    error: dict[str, Any] | None = None


@dataclass
class Earlier:
    """An output of this very run. lines: offset and size of each answered record's line. failed: records without answer."""

    lines: dict[int, tuple[int, int]] = field(default_factory=dict)
    failed: int = 0


class JsonLines:
    """One JSONL file. counts: with all counts of speculation in each line. overwrite: whatever is there."""

    def __init__(
        self,
        path: Path,
        inputs: Sequence[InputFile],
        *,
        counts: bool = False,
        overwrite: bool = False,
        model: str = "",
    ) -> None:
        _refuse_inputs([path], inputs)
        _refuse_odd(path)
        self.path, self.counts, self.overwrite, self.model = path, counts, overwrite, model
        self.journal = path.with_name(path.name + ".journal")
        self._seen: dict[Path, object] = {}
        self._earlier = Earlier()

    def inspect(self, run: str, records: Sequence[Record]) -> Earlier | None:
        """What the file holds of this very run; None where there is no file, or it may be overwritten.

        Raises ResumeMismatch where it holds something else.
        """
        self._seen = {self.path: _signature(self.path)}
        if self._seen[self.path] is None:
            return None
        known, places = _known_lines(self.path)
        wanted = [(record.id, record.sha256) for record in records]
        found = [(line.custom_id or line.id, line.prompt_sha256) for line in known]
        if found == wanted and all(line.run == run for line in known):
            good = {i: places[i] for i, line in enumerate(known) if line.error is None}
            self._earlier = Earlier(good, len(known) - len(good))
            return self._earlier
        if self.overwrite:
            return None
        why = "is not the result of this run"
        if known:
            same = len(set(found) & set(wanted))
            why += (
                f": {same} of its {len(known)} records are asked here"
                if found != wanted
                else (": the same records, answered with other models or options")
            )
        raise ResumeMismatch(
            f"{self.path} exists and {why}", "give another -o, or --overwrite, or move it away"
        )

    def assemble(self, journal: Journal, run: str, records: Sequence[Record], per: Per) -> None:
        """Write the file, and then remove the journal. Raises BatchWriteError."""
        _write(self.path, self._lines(journal, run, records), self._seen)
        journal.remove()

    def _lines(self, journal: Journal, run: str, records: Sequence[Record]) -> Iterator[bytes]:
        old = self.path.open("rb") if self._earlier.lines else None
        try:
            for i, record in enumerate(records):
                if i in journal or old is None:
                    result = journal.read(i)
                    yield public(result, run, record.form, counts=self.counts, model=self.model)
                else:
                    offset, size = self._earlier.lines[i]
                    old.seek(offset)
                    yield old.read(size)
        finally:
            if old is not None:
                old.close()


def _known_lines(path: Path) -> tuple[list[_Known], list[tuple[int, int]]]:
    """Lines of an earlier output and where they lie; nothing where the file is none."""
    decode = msgspec.json.Decoder(_Known).decode
    known, places, offset = [], [], 0
    try:
        with path.open("rb") as stream:
            for line in stream:
                known.append(decode(line))
                places.append((offset, len(line)))
                offset += len(line)
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return [], []
    return known, places


class TextFiles:
    """A folder with one text file an input file, under the input's name."""

    def __init__(
        self, folder: Path, inputs: Sequence[InputFile], *, overwrite: bool = False
    ) -> None:
        self.folder, self.overwrite = folder, overwrite
        self.paths: dict[str, Path] = {}
        for source in inputs:
            if source.kind != "text":
                raise InputError(f"{source.name}: -o DIR/ is for text files", "give -o OUT.jsonl")
            path = folder / source.below
            if path in self.paths.values():
                raise InputError(
                    f"two inputs would be written to {show(str(path))}", "give them other names"
                )
            self.paths[source.name] = path
        _refuse_inputs(list(self.paths.values()), inputs)
        self.journal = folder / "pyspec-batch.journal"
        self._seen: dict[Path, object] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BatchWriteError(f"{folder} cannot be made: {error.strerror}") from None

    def inspect(self, run: str, records: Sequence[Record]) -> Earlier | None:
        """None: the journal knows."""
        self._seen = {path: _signature(path) for path in self.paths.values()}
        return None

    def check(self, journal: Journal, records: Sequence[Record], per: Per) -> None:
        """Raise ResumeMismatch where a file is there that the records in the journal did not make."""
        complete = all(i in journal for i in range(len(records)))
        for name, path in self.paths.items():
            if self.overwrite or self._seen[path] is None:
                continue
            _refuse_odd(path)
            own = b"".join(self._texts(journal, name, records, per)) if complete else None
            if own is None or path.read_bytes() != own:
                raise ResumeMismatch(
                    f"{show(str(path))} exists and is not the result of this run",
                    "give another -o, or --overwrite, or move it away",
                )

    def assemble(self, journal: Journal, run: str, records: Sequence[Record], per: Per) -> None:
        """Write the files, where answers stand as their inputs do: one a line, one a paragraph or one a file.

        Failed records leave theirs empty. Raises BatchWriteError.
        """
        for name, path in self.paths.items():
            _refuse_odd(path)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BatchWriteError(f"{path.parent} cannot be made: {error.strerror}") from None
            _write(path, self._texts(journal, name, records, per), self._seen)

    def _texts(
        self, journal: Journal, name: str, records: Sequence[Record], per: Per
    ) -> Iterator[bytes]:
        own = (i for i, record in enumerate(records) if record.source == name)
        return (_ARRANGE[per](journal.read(i).text).encode() for i in own)


_ARRANGE: dict[str, Callable[[str], str]] = {
    "line": lambda text: " ".join(text.split("\n")) + "\n",
    "paragraph": lambda text: text.strip("\n") + "\n\n",
    "file": lambda text: text + "\n",
}


def open_output(
    out: str,
    inputs: Sequence[InputFile],
    *,
    counts: bool = False,
    overwrite: bool = False,
    model: str = "",
) -> JsonLines | TextFiles:
    """The output that `-o` names: a folder where it ends with a slash or is one. model: its name in OpenAI's format."""
    if out.endswith(("/", os.sep)) or Path(out).is_dir():
        return TextFiles(Path(out), inputs, overwrite=overwrite)
    return JsonLines(Path(out), inputs, counts=counts, overwrite=overwrite, model=model)


def _refuse_inputs(outputs: Iterable[Path], inputs: Sequence[InputFile]) -> None:
    read = {os.path.realpath(source.path) for source in inputs if source.path is not None}
    for path in outputs:
        if os.path.realpath(path) in read:
            raise InputError(
                f"{show(str(path))} is an input and would be overwritten", "give another -o"
            )


def _refuse_odd(path: Path) -> None:
    """Nothing but a regular file is ever replaced: no link, no device, no folder."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise InputError(f"{show(str(path))} is not a regular file", "give another -o")


def _signature(path: Path) -> object:
    """What tells one file from another under the same name; None for no file."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _write(path: Path, chunks: Iterator[bytes], seen: dict[Path, object]) -> None:
    """All or nothing, and nothing in place of a file that was not there when the run began."""
    try:
        if _signature(path) != seen[path]:
            raise FileExistsError
        write_whole(path, chunks, replace=seen[path] is not None)
    except FileExistsError:
        raise BatchWriteError(
            f"{show(str(path))} appeared or changed while the batch ran and is not overwritten",
            "move it away: all records are in the journal, and the same command only writes them",
        ) from None
    except OSError as error:
        raise BatchWriteError(
            f"{path} cannot be written: {error.strerror}; all records are in the journal",
            "make room: the same command only writes it",
        ) from None
    seen[path] = _signature(path)


# -- the run -----------------------------------------------------------------------------------------------------------


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
        answerer: Batch | RayBatch,
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
