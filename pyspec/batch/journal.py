"""The journal of a batch: finished records are written to disk at once, so that none is computed twice.

Records finish out of order, and in another order after an interruption. So they are written to a journal beside the output
(OUT.journal), from which OUT is assembled at the end in the order of the inputs and moved into place in one step. At any time
OUT is absent, the former one, or complete. Finished records do not change. Unless the batch is exact, records computed after an
interruption may differ at near-ties from those of an undisturbed run, since floats round by the number of a decode's rows.

- Line one is the header: the run's identity (hashes of models, options). A journal with another header is never continued.
- A result is known by its record's id and the hash of its request, so that inputs may be mended and extended between two runs.
- Each record is written by one `os.write`. A write that fails or falls short is truncated, and so is a line torn by a crash,
  with all after it, when the journal is opened.
- `flock` keeps a second process out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import msgspec

from pyspec._version import __version__
from pyspec.batch.maker import Settings
from pyspec.engine.contexts import Models
from pyspec.errors import BatchWriteError, ResumeMismatch
from pyspec.machine.files import file_sha256, parse
from pyspec.text.parts import RecordResult

FORMAT = 1
SYNC_S = 1.0  # longest time until a record is synced to disk

_MAGIC = b'{"pyspec_batch":'
_LONGEST = 1 << 24  # bytes of a header
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
RESUME = "run the same command again to resume"

Key = tuple[str, str]  # what identifies a result: its record's id, and the hash of its request
_WRITTEN = ""  # stands for the id where a journal notes the hash of an output file


class Journal:
    """An append-only file of results, locked by this process. anew: whether to replace a journal of another run.

    Raises BatchWriteError if it cannot be created, is in use or is none, ResumeMismatch for one of other models or options.
    """

    def __init__(self, path: Path, run: dict[str, Any], *, anew: bool = False) -> None:
        self.path = path
        self.places: dict[Key, tuple[int, int]] = {}  # offset and size in bytes of each line
        self.failed: set[Key] = set()  # of failed records
        self.written: set[str] = set()
        self._anew = anew
        self._synced, self._end = monotonic(), 0
        self._fd = _open_locked(path)
        try:
            self._recover(run)
        except BaseException:
            os.close(self._fd)
            raise

    def append(self, result: RecordResult) -> None:
        """Add a finished record. Raises BatchWriteError, after which the file ends with the previous record."""
        data = msgspec.json.encode(result) + b"\n"
        self._write(data)
        self._keep(result, len(data))
        if monotonic() - self._synced >= SYNC_S:
            self.sync()

    def note(self, sha256: str) -> None:
        """Note the hash of an output file that is about to be written, by which `written` has it. Raises BatchWriteError."""
        if sha256 not in self.written:
            self.append(RecordResult(index=-1, id=_WRITTEN, prompt_sha256=sha256))

    def read(self, key: Key) -> RecordResult:
        offset, size = self.places[key]
        os.lseek(self._fd, offset, os.SEEK_SET)  # appending ignores the offset
        return msgspec.json.decode(os.read(self._fd, size), type=RecordResult)

    def sync(self) -> None:
        """Flush to the disk. Raises BatchWriteError."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._refused(error) from None
        self._synced = monotonic()

    def remove(self) -> None:
        """Delete the file, once the output is in place."""
        # while it is locked, so that no other process continues it
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the file without `sync`. Further calls do nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # errors that matter were raised by the write
                os.close(fd)

    # -- the file ----------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        rest = data
        try:
            while rest:  # after a partial write, the next one raises the reason
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
            raise self._refused(error) from None
        self._end += len(data)

    def _refused(self, error: OSError) -> BatchWriteError:
        what = (
            f"{self.path} cannot be written: {error.strerror}; {len(self.places)} records are kept"
        )
        return BatchWriteError(what, f"free some space, then {RESUME}")

    def _keep(self, result: RecordResult, size: int) -> None:
        key = result.id, result.prompt_sha256
        if result.id == _WRITTEN:
            self.written.add(result.prompt_sha256)
            return
        self.places[key] = self._end - size, size
        self.failed.discard(key)  # a result's last line counts
        if result.error is not None:
            self.failed.add(key)

    def _recover(self, run: dict[str, Any]) -> None:
        """Read the existing records, and truncate after the last whole one."""
        header = _header(run)
        with os.fdopen(os.dup(self._fd), "rb") as stream:
            first = stream.readline(_LONGEST)
            torn = not first.endswith(b"\n")
            if not (header.startswith(first) if torn else first.startswith(_MAGIC)):
                raise BatchWriteError(f"{self.path} is not a batch journal", "move it away")
            if torn or (first != header and self._anew):
                os.ftruncate(self._fd, 0)
                self._write(header)
                return
            self._end = len(first)
            stream.seek(0)
            for result, offset, size in finished(stream, self.path, run):
                self._end = offset + size
                self._keep(result, size)
        os.ftruncate(self._fd, self._end)


class _Header(msgspec.Struct):
    run: dict[str, Any]


def _header(run: dict[str, Any]) -> bytes:
    """The first line of a journal: the run's identity."""
    return msgspec.json.encode({"pyspec_batch": FORMAT, "run": run}) + b"\n"


def finished(
    stream: BinaryIO, path: Path, run: dict[str, Any]
) -> Iterator[tuple[RecordResult, int, int]]:
    """Records of a journal, which another process may be writing, with offset and size in bytes of their lines.

    Reading ends at the first line that is torn or invalid. Raises ResumeMismatch if it belongs to other models or options.
    """
    first = stream.readline(_LONGEST)
    if not first.endswith(b"\n"):  # it has just been created
        return
    if first != _header(run):
        raise _other(path, first, run)
    offset, decode = len(first), msgspec.json.Decoder(RecordResult).decode
    with contextlib.suppress(msgspec.MsgspecError, RecursionError, UnicodeError):
        for line in stream:
            if not line.endswith(b"\n"):
                return
            yield decode(line), offset, len(line)
            offset += len(line)


def _other(path: Path, first: bytes, run: dict[str, Any]) -> ResumeMismatch:
    try:
        was = parse(first, _Header).run
    except ValueError:
        was = {}
    now = msgspec.json.decode(msgspec.json.encode(run))
    changed = ", ".join(key for key in {**was, **now} if was.get(key) != now.get(key))
    what = f"{path} belongs to a run with other {changed or 'format'}"
    hint = "run the same command again, give another -o, or start over with --overwrite"
    return ResumeMismatch(what, hint)


def _open_locked(path: Path) -> int:
    while True:
        try:
            fd = os.open(path, _FLAGS, 0o600)
        except OSError as error:
            raise BatchWriteError(f"{path} cannot be written: {error.strerror}") from None
        try:
            _lock(fd, path)
            if os.path.samestat(os.fstat(fd), path.lstat()):
                return fd
        except FileNotFoundError:
            pass  # the process that had it has just finished and removed it
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _lock(fd: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise BatchWriteError(f"{path} is not a regular file")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise BatchWriteError(f"another process is writing {path}", "wait for it to end") from None


_TEXT_OPTIONS = (
    "flash_attn", "type_k", "type_v", "rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor",
    "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx", "kv_overrides", "swa_full", "lora_scale",
    "chat_template", "template_args",
)  # fmt: skip


def changing_texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of llama.cpp and the template that are set and change answers."""
    found = {name: options[name] for name in _TEXT_OPTIONS if options.get(name) not in (None, {})}
    if adapter := options.get("lora_path"):
        found["lora"] = file_sha256(Path(adapter))
    return found


def identity_of(models: Models, settings: Settings, options: Mapping[str, Any]) -> dict[str, Any]:
    """Version, hashes of models, default settings, and options of the batch."""
    rule = {"name": settings.rule.name, **getattr(settings.rule, "__dict__", {})}
    sampling = dict(vars(settings.sampling))
    del sampling["unseeded"]
    return {
        "pyspec": __version__,
        **{role: file_sha256(path) for role, path in models.files.items()},
        "drafter": getattr(models.parts.drafter, "name", "none"),
        "verification": {key: str(value) for key, value in rule.items()},
        "sampling": {key: str(value) for key, value in sampling.items()},
        "max_tokens": settings.max_tokens,
        "system": settings.system,
        "stop": list(settings.stop),
        "raw": settings.raw,
        **({} if settings.reasoning_budget is None else {"budget": settings.reasoning_budget}),
        **options,
    }
