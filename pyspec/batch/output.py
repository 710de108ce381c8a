"""The output of a batch, assembled from the journal when all records are finished.

`OUT.jsonl` gets one line a record, in the order of the inputs. `DIR/` gets one text file an input
file; the journal stays in it, since text files have no place for errors and statistics.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pyspec.atomic import write_whole
from pyspec.batch.results import public
from pyspec.batch.sources import show
from pyspec.errors import BatchWriteError, InputError, ResumeMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspec.batch.journal import Journal
    from pyspec.batch.reading import Per
    from pyspec.batch.records import Record
    from pyspec.batch.sources import Source


class _Known(msgspec.Struct):
    """What an earlier output says of a record."""

    id: str
    prompt_sha256: str
    run: str
    error: dict[str, str] | None = None


class JsonLines:
    """One JSONL file. counts: with all counts of speculation in each line."""

    def __init__(self, path: Path, inputs: Sequence[Source], *, counts: bool = False) -> None:
        _refuse_inputs([path], inputs)
        _refuse_odd(path)
        self.path, self.counts = path, counts
        self.journal = path.with_name(path.name + ".journal")

    def finished(self, run: str, records: Sequence[Record]) -> int | None:
        """How many records failed, where the file holds the result of this very run already; else None.

        Raises ResumeMismatch where it holds something else: it is not overwritten.
        """
        if self.journal.exists() or not self.path.exists():
            return None
        try:
            lines = self.path.read_bytes().splitlines()
            known = [msgspec.json.decode(line, type=_Known) for line in lines]
        except (OSError, msgspec.MsgspecError, UnicodeError):
            known = []
        wanted = [(record.id, record.sha256, run) for record in records]
        if [(line.id, line.prompt_sha256, line.run) for line in known] == wanted:
            return sum(line.error is not None for line in known)
        raise ResumeMismatch(
            f"{self.path} exists and is not the result of this run",
            "give another -o, or move it away",
        )

    def assemble(self, journal: Journal, run: str, records: Sequence[Record], per: Per) -> None:
        """Write the file, and then remove the journal. Raises BatchWriteError."""
        lines = (public(journal.read(i), run, counts=self.counts) for i in range(len(records)))
        _write(self.path, lines)
        journal.remove()


class TextFiles:
    """A folder with one text file an input file, under the input's name."""

    def __init__(self, folder: Path, inputs: Sequence[Source]) -> None:
        self.folder = folder
        self.paths: dict[str, Path] = {}
        for source in inputs:
            if source.jsonl:
                raise InputError(f"{source.name}: -o DIR/ is for text files", "give -o OUT.jsonl")
            path = folder / source.below
            if path in self.paths.values():
                raise InputError(
                    f"two inputs would be written to {show(str(path))}", "give them other names"
                )
            self.paths[source.name] = path
        _refuse_inputs(list(self.paths.values()), inputs)
        self.journal = folder / "pyspec-batch.journal"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BatchWriteError(f"{folder} cannot be made: {error.strerror}") from None

    def finished(self, run: str, records: Sequence[Record]) -> int | None:
        """None: the journal knows."""
        return None

    def assemble(self, journal: Journal, run: str, records: Sequence[Record], per: Per) -> None:
        """Write the files, where answers stand as their inputs do: one a line, one a paragraph or one a file.

        Failed records leave theirs empty. Raises BatchWriteError.
        """
        for name, path in self.paths.items():
            _refuse_odd(path)
            own = [i for i, record in enumerate(records) if record.source == name]
            texts = (_arranged(journal.read(i).text, per) for i in own)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BatchWriteError(f"{path.parent} cannot be made: {error.strerror}") from None
            _write(path, (text.encode() for text in texts))


def open_output(
    out: str, inputs: Sequence[Source], *, counts: bool = False
) -> JsonLines | TextFiles:
    """The output that `-o` names: a folder where it ends with a slash or is one."""
    if out.endswith(("/", os.sep)) or Path(out).is_dir():
        return TextFiles(Path(out), inputs)
    return JsonLines(Path(out), inputs, counts=counts)


_ARRANGE: dict[str, Callable[[str], str]] = {
    "line": lambda text: " ".join(text.split("\n")) + "\n",
    "paragraph": lambda text: text.strip("\n") + "\n\n",
    "file": lambda text: text + "\n",
}


def _arranged(text: str, per: Per) -> str:
    return _ARRANGE[per](text)


def _refuse_inputs(outputs: Iterable[Path], inputs: Sequence[Source]) -> None:
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


def _write(path: Path, chunks: Iterator[bytes]) -> None:
    """All or nothing."""
    try:
        write_whole(path, chunks)
    except OSError as error:
        raise BatchWriteError(
            f"{path} cannot be written: {error.strerror}; all records are in the journal",
            "make room: the same command only writes it",
        ) from None
