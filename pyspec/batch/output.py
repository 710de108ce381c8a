"""The output of a batch, assembled from the journal when all records are finished.

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

from pyspec.batch.bodies import body_of, choice_of
from pyspec.batch.reading import show
from pyspec.errors import BatchWriteError, InputError, ResumeMismatch
from pyspec.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspec.batch.journal import Journal
    from pyspec.batch.reading import InputFile, Per
    from pyspec.batch.records import Record, Result

ABOUT_THE_TEXT = ("verification", "relaxed", "relaxed_nats")
"""What of `speculation` tells about the text. The rest tells how it was computed: rounds and drafted
tokens depend on the clock, on the neighbours in a batch and on where a run was interrupted."""


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


def public(
    result: Result, run: str, form: str = "", *, counts: bool = False, model: str = ""
) -> bytes:
    """The line of a result in the output file, newline included; `run` names models and options.

    form: of OpenAI's batch format, "" for ours. counts: with all counts of speculation, which makes two
    runs' files differ.
    """
    block = result.speculation
    if not counts:
        block = {key: block[key] for key in ABOUT_THE_TEXT if key in block}
    if form:
        return msgspec.json.encode(_foreign(result, run, form, block, model)) + b"\n"
    line = {
        "id": result.id,
        "prompt_sha256": result.prompt_sha256,
        "text": result.text,
        "finish_reason": result.finish_reason,
        "usage": result.usage,
        "speculation": block,
        "error": result.error,
        "run": run,
    }
    return msgspec.json.encode(line) + b"\n"


def _foreign(
    result: Result, run: str, form: str, block: dict[str, Any], model: str
) -> dict[str, Any]:
    """A line of OpenAI's batch format. Its times are 0, so that the same answers have the same bytes."""
    name = hashlib.sha256(f"{run}\0{result.id}".encode()).hexdigest()[:24]
    response = error = None
    if result.error is None:
        choices = [choice_of(form, 0, result, tools=True)]
        body = body_of(form, f"cmpl-{name}", model, 0, choices)
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
