"""Remembers earlier texts of each owner, in this process and on disk.

No owner's text is ever drafted for another. A draft does not change strict output, but its speed reveals whether the draft was
right.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
import zlib
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from pyspec.errors import OptionError, PyspecError
from pyspec.lookup.text_index import TAIL, Continuation, TextIndex

log = logging.getLogger("pyspec")

MAX_TOKENS = 500_000
"""Most tokens of all owners together: 84 bytes each in memory, 4 on disk."""

MAX_DAYS = 7.0
"""How many days a text is kept at most."""

_AN_OWNER = 50
# tokens that an owner costs besides its texts: indexes take 3 kB, objects 1 kB


class Total:
    """Tokens of several owners' texts together."""

    def __init__(self) -> None:
        self.tokens = 0


class OwnTexts:
    """One owner's texts in two generations: recent ones, and older ones, which go when the recent ones are full or old.

    most: tokens per generation. age: seconds until a generation is too old. path: the file that keeps them; None for no file.
    total: also counts their tokens. size: tokens of all texts. generation: its number; a place is valid in one.
    """

    def __init__(
        self,
        most: int = 2**31,
        age: float = math.inf,
        path: Path | None = None,
        total: Total | None = None,
    ) -> None:
        self._most, self._age, self._total = most, age, total
        self._late, self._before = TextIndex(), TextIndex()
        self.generation = self.size = 0
        self._born = self._born_before = time.time()
        self._file = None if path is None else TextFile(path)
        self._file_before = None if path is None else TextFile(path.with_suffix(".before"))
        if self._file is not None and self._file_before is not None:
            self._born = self._file.load(self._late, self._born)
            self._born_before = self._file_before.load(self._before, self._born_before)
        self._count()

    def _count(self) -> None:
        size = self._late.size + self._before.size
        if self._total is not None:
            self._total.tokens += size - self.size
        self.size = size

    @property
    def nbytes(self) -> int:
        return self._late.nbytes + self._before.nbytes

    @property
    def due(self) -> float:
        """When something will be too old, in seconds since 1970."""
        late = self._born + self._age if self._late.size else math.inf
        return min(late, self._born_before + 2 * self._age if self._before.size else math.inf)

    def tidy(self, now: float | None = None) -> None:
        """Drop what is too much or too old; called between texts. now: in seconds since 1970."""
        now = time.time() if now is None else now
        if self._late.size >= self._most or (self._late.size and now >= self._born + self._age):
            self._start_generation(now)
        if self._before.size and now >= self._born_before + 2 * self._age:
            self._before = TextIndex()
            if self._file_before is not None:
                self._file_before.remove()
        self._count()

    def _start_generation(self, now: float) -> None:
        self._before, self._born_before = self._late, self._born
        self._late, self._born = TextIndex(), now
        self.generation += 1
        if self._file is not None and self._file_before is not None:
            self._file.move(self._file_before, now)

    def add(self, place: int, tokens: Sequence[int]) -> int:
        """The place after these tokens, starting from `place`."""
        place, known = self._late.walk(place, tokens)
        if known == len(tokens):
            return place
        end = self._late.add(place, tokens[known:])
        self._count()
        if self._file is not None:
            self._file.write(place, tokens[known:], end)
        return end

    def next(self, place: int, tokens: Sequence[int], limit: int) -> Continuation:
        """What may follow these tokens, which end at `place`: by the longer match; recent texts win ties."""
        found = self._late.next(place, len(tokens), limit)
        if self._before.size and found.match < TAIL:
            older = self._before.look_up(tokens, limit)
            found = older if older.match > found.match else found
        return found

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def leave(self) -> None:
        """Stop counting in the total."""
        if self._total is not None:
            self._total.tokens -= self.size
        self._total = None

    def remove(self) -> None:
        """Delete the files; whatever is added later stays in this process and is not counted."""
        self.leave()
        for file in (self._file, self._file_before):
            if file is not None:
                file.remove()
        self._file = self._file_before = None


def _checked(stamp: bytes) -> bytes:
    """A file's time with its checksum: a damaged time would make texts look too old to keep."""
    return stamp + zlib.crc32(stamp).to_bytes(4, "little")


class TextFile:
    """The texts of an index on disk, as the calls that made it: each as place, number of tokens and tokens, all 32-bit.

    Reading ends at a part that a crash cut off or that is invalid. Disk errors are logged once; then nothing is kept there.
    """

    _START = b"pyspec texts 1\0\0"
    _MAX_WAITING = 1 << 14  # tokens that may wait to be written

    def __init__(self, path: Path) -> None:
        self._path = path
        self._runs: list[tuple[int, list[int]]] = []
        self._end = self._waiting = 0
        self._born = time.time()
        self._failed = False

    def load(self, index: TextIndex, born: float) -> float:
        """Fill an empty index; returns the time of its first text, or `born` if there is none."""
        self._born = born
        try:
            data = self._path.read_bytes()
        except OSError:
            return born
        head = len(self._START) + 12
        stamped = data[len(self._START) : head]
        if not data.startswith(self._START) or stamped != _checked(stamped[:8]):
            self.remove()
            return born
        stamp = float(np.frombuffer(stamped[:8], "<f8")[0])
        self._born = stamp if 0.0 < stamp <= born else born
        numbers = np.frombuffer(data[head : head + (len(data) - head) // 4 * 4], "<i4")
        good = head + 4 * self._read(index, numbers)
        if good < len(data):
            self._try(lambda: _truncate(self._path, good))
        return self._born

    @staticmethod
    def _read(index: TextIndex, numbers: Any) -> int:
        """Read into the index; returns how many numbers were valid."""
        at = 0
        while at + 2 <= len(numbers):
            place, n = int(numbers[at]), int(numbers[at + 1])
            if n < 1 or at + 2 + n > len(numbers):
                break
            try:
                index.add(place, numbers[at + 2 : at + 2 + n].tolist())
            except PyspecError:
                break
            at += 2 + n
        return at

    def write(self, place: int, tokens: Sequence[int], end: int) -> None:
        """Note that these tokens were added at `place`, which led to `end`."""
        if self._runs and place == self._end:
            self._runs[-1][1].extend(tokens)
        else:
            self._runs.append((place, list(tokens)))
        self._end = end
        self._waiting += len(tokens)
        if self._waiting >= self._MAX_WAITING:
            self.flush()

    def flush(self) -> None:
        runs, self._runs, self._waiting, self._end = self._runs, [], 0, 0
        if runs:
            numbers = [n for place, tokens in runs for n in (place, len(tokens), *tokens)]
            self._try(lambda: self._append(np.asarray(numbers, "<i4").tobytes()))

    def _append(self, data: bytes) -> None:
        if not self._path.exists():
            self._path.touch(mode=0o600)
            data = self._START + _checked(np.asarray([self._born], "<f8").tobytes()) + data
        with self._path.open("ab") as file:
            file.write(data)

    def move(self, other: TextFile, now: float) -> None:
        """Rename the file to `other`'s; this one is empty, from `now` on."""
        self.flush()
        self._born = now
        if self._path.exists():
            self._try(lambda: self._path.replace(other._path))

    def remove(self) -> None:
        """Delete the file, if it exists."""
        self._runs, self._waiting = [], 0
        self._try(lambda: self._path.unlink(missing_ok=True))

    def _try(self, act: Any) -> None:
        if self._failed:
            return
        try:
            act()
        except OSError as error:
            self._failed = True
            log.warning("texts are no longer saved in %s: %s", self._path.parent, error.strerror)


def _truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


class Memory:
    """The texts of each owner, for drafts. Not thread-safe.

    Args:
        folder: Keeps them for later processes, readable only for this user; None for this process only. Only one process at a
            time can use a folder.
        vocabulary: Identifies what the tokens mean; texts of another vocabulary are not read.
        tokens: Most tokens of all owners together; each owner counts 50 more. The least recently used owners go first.
        days: How long a text is kept at most.

    Raises:
        OptionError: The folder cannot be used.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        vocabulary: str = "",
        tokens: int = MAX_TOKENS,
        days: float = MAX_DAYS,
    ) -> None:
        if tokens < 1 or not days > 0.0:
            raise OptionError(
                f"a memory cannot have {tokens} tokens for {days} days",
                "use at least 1 token, and more than 0 days",
            )
        self._tokens, self._age = tokens, 0.5 * 86400.0 * days
        self._owners: dict[str, OwnTexts] = {}  # least recently used first
        self._total, self._serials = Total(), count()
        # when each may have become too old: a heap, in which entries of dropped owners are ignored
        self._due: list[tuple[float, int, str]] = []
        self._serial_of: dict[str, int] = {}
        self._lock: FileLock | None = None
        self._folder = None if folder is None else self._open(Path(folder), vocabulary)

    def _open(self, folder: Path, vocabulary: str) -> Path | None:
        path = folder.expanduser() / _name_of(vocabulary)
        try:
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)
            lock = FileLock(path / "lock", mode=0o600)
            lock.acquire(blocking=False)
        except Timeout:
            log.warning(
                "another process saves texts in %s; those of this process are not saved", folder
            )
            return None
        except OSError as error:
            raise OptionError(
                f"texts cannot be saved in {folder}: {error.strerror}",
                "name a folder that you can write to",
            ) from error
        self._lock = lock
        self._clean(path)
        return path

    def _clean(self, folder: Path) -> None:
        """Delete files that are too old, and beyond the size limit the oldest."""
        found = [(path.stat(), path) for path in folder.iterdir() if path.name != "lock"]
        left, oldest = 4 * self._tokens, time.time() - 2 * self._age
        for stat, path in sorted(found, key=lambda one: -one[0].st_mtime):
            left -= stat.st_size
            if stat.st_mtime < oldest or left < 0:
                path.unlink(missing_ok=True)

    def texts_of(self, owner: str) -> OwnTexts:
        """An owner's texts; first drops what is too old or too much.

        Args:
            owner: Any name; "" owns texts without a named owner.
        """
        now = time.time()
        self._drop_old(now)
        texts = self._owners.pop(owner, None)
        self._owners[owner] = texts = self._opened(owner, now) if texts is None else texts
        texts.tidy(now)
        self._make_room()
        return texts

    def _opened(self, owner: str, now: float) -> OwnTexts:
        path = None if self._folder is None else self._folder / f"{_name_of(owner)}.texts"
        texts = OwnTexts((self._tokens + 1) // 2, self._age, path, self._total)
        self._serial_of[owner] = next(self._serials)
        self._remind(owner, min(texts.due, now + self._age))
        return texts

    def _remind(self, owner: str, due: float) -> None:
        heappush(self._due, (due, self._serial_of[owner], owner))

    def _drop_old(self, now: float) -> None:
        left = []
        while self._due and self._due[0][0] <= now:
            _, serial, owner = heappop(self._due)
            if self._serial_of.get(owner) != serial:
                continue
            self._owners[owner].tidy(now)
            if self._owners[owner].size:
                left.append(owner)
            else:
                self._drop(owner)
        for owner in left:
            self._remind(owner, self._owners[owner].due)

    def _make_room(self) -> None:
        """Drop owners until the rest fits; the most recently used one stays."""
        while len(self._owners) > 1:
            if self.size + _AN_OWNER * len(self._owners) <= self._tokens:
                break
            self._drop(next(iter(self._owners)))
        if len(self._due) > 2 * len(self._owners) + _AN_OWNER:
            self._due = [each for each in self._due if self._serial_of.get(each[2]) == each[1]]
            heapify(self._due)

    def _drop(self, owner: str) -> None:
        self._owners.pop(owner).remove()
        del self._serial_of[owner]

    @property
    def size(self) -> int:
        """Tokens of all owners."""
        return self._total.tokens

    @property
    def nbytes(self) -> int:
        return sum(texts.nbytes for texts in self._owners.values())

    def close(self) -> None:
        """Write what is not on disk yet and release the folder; may be called twice."""
        for texts in self._owners.values():
            texts.flush()
            texts.leave()
        self._owners.clear()
        self._serial_of.clear()
        self._due.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = self._folder = None


def _name_of(what: str) -> str:
    return hashlib.sha256(what.encode("utf-8", "surrogatepass")).hexdigest()[:32]
