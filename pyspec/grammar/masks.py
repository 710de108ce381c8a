"""Token masks of grammars, computed in separate processes so that an expensive grammar harms nothing else.

llama.cpp's grammars can take exponential time and memory, at the first token or at the thousandth, and cannot be interrupted.
Therefore each runs in its own process (`_child.py`), which computes the next mask while the target decodes. The sampler waits
for a mask for a short time and then gives up the answer; a scheduler continues with other sequences meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import _internals as internals

from pyspec.errors import EngineError, InputError
from pyspec.grammar._child import CANDIDATES, HEAD
from pyspec.store.check import command_of, environment_of
from pyspec.store.files import show

ISOLATED = hasattr(os, "fork") and hasattr(socket, "send_fds")
"""Whether grammars run in separate processes. Without fork (Windows) they run in this one."""

_SCRIPT = Path(__file__).with_name("_child.py")
_START_S = 30.0
_ROW_S = 10.0
# that a row waits for its mask: a busy machine may give the process its second late
_VERDICTS = 256
SIMPLER = "give GBNF that begins at root, has no left recursion and is not too ambiguous"


class GrammarHost:
    """The process with a model's vocabulary, forked for each grammar and started for the first. path: "" for schemas only."""

    _all: ClassVar[weakref.WeakKeyDictionary[Any, GrammarHost]] = weakref.WeakKeyDictionary()
    _guard = threading.Lock()

    def __init__(self, path: str, overrides: bytes = b"") -> None:
        self._words = [path, overrides.hex()]
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._verdicts: OrderedDict[str, str] = OrderedDict()
        self._end: Callable[[], object] = lambda: None

    @classmethod
    def of(cls, llama: Any) -> GrammarHost:
        """Return the host of a `llama_cpp.Llama`."""
        with cls._guard:
            found = cls._all.get(llama)
            if found is None:
                overrides = bytes(getattr(llama, "_kv_overrides_array", None) or b"")
                found = cls._all[llama] = cls(llama.model_path, overrides)
            return found

    def open(self, grammar: str, root: str = "root", trigger: str | None = None) -> MaskProcess:
        """Start a process for one grammar and its first mask. trigger: pattern of the text from which the grammar applies."""
        asked = {"grammar": grammar, "root": root, "trigger": trigger}
        return self.ask(asked, "the grammar cannot be parsed")

    def ask(self, asked: dict[str, str | None], problem: str) -> MaskProcess:
        """Start a process for one request. problem: the error message if it fails."""
        line = json.dumps(asked)
        mine, other = socket.socketpair()
        with other:
            try:
                with self._lock:
                    self._send(other)
                mine.settimeout(_START_S)
                mine.sendall(line.encode() + b"\n")
            except OSError as error:
                mine.close()
                raise EngineError(
                    f"cannot start a process for the grammar: {error.strerror or error}"
                ) from None
        return MaskProcess(mine, problem)

    def _send(self, handle: socket.socket) -> None:
        if self._control is None or self._child is None or self._child.poll() is not None:
            self._launch()
        assert self._control is not None  # noqa: S101 - for the type checker
        socket.send_fds(self._control, [b"+"], [handle.fileno()])

    def _launch(self) -> None:
        self._end()
        mine, other = socket.socketpair()
        with other:
            self._child = subprocess.Popen(
                [*command_of("masks", _SCRIPT), *self._words],
                stdin=other.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=environment_of(gpu=False), cwd=Path(sys.executable).anchor,
            )  # fmt: skip
        self._control = mine
        self._end = weakref.finalize(self, _end, self._child, mine)

    def check(self, grammar: str, root: str = "root") -> None:
        """Raise InputError if llama.cpp cannot use a grammar, or its first mask takes too long. The verdict is cached."""
        key = hashlib.sha256(f"{root}\0{grammar}".encode()).hexdigest()
        why = self._verdicts.get(key)
        if why is None:
            with self.open(grammar, root) as process:
                process.wait(_START_S)
                why = process.error
            self._verdicts[key] = why
            if len(self._verdicts) > _VERDICTS:
                self._verdicts.popitem(last=False)
        if why:
            raise InputError(why, SIMPLER)


def _end(child: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    with contextlib.suppress(OSError), child:
        child.kill()


class MaskProcess:
    """The process of one grammar. error: why it gives no more masks, or empty. pace: recent mean seconds per mask."""

    def __init__(self, connection: socket.socket, problem: str) -> None:
        connection.setblocking(False)
        self._problem, self.text = problem, ""
        self._connection = connection
        self._data = bytearray()
        self._due = 1
        self.error, self.pace = "", 0.0
        self.barred: npt.NDArray[np.bool_] | None = None
        """Which tokens may not come next, padded to a multiple of eight; None if all may."""

    def fileno(self) -> int:
        """Return the descriptor, so that `select` can wait for several processes."""
        return self._connection.fileno()

    def accept(self, token: int) -> None:
        """Continue the text with this token."""
        self._due += 1
        try:
            self._connection.send(int(token).to_bytes(4, "little"))
        except OSError:
            self._fail()

    @property
    def ready(self) -> bool:
        """Whether the mask for the text so far has arrived, or never will."""
        while self._due and not self.error and self._read():
            pass
        return not self._due or bool(self.error)

    def wait(self, seconds: float) -> bool:
        """Wait until it is ready, at most `seconds`, and return whether it is."""
        end = monotonic() + seconds
        while not self.ready:
            left = end - monotonic()
            if left <= 0 or not select.select([self], [], [], left)[0]:
                return self.ready
        return True

    def begun(self, hint: str = SIMPLER) -> None:
        """Wait for the first reply. Raises InputError if none comes."""
        if not self.wait(_START_S):
            self._fail()
        if self.error:
            raise InputError(self.error, hint)

    def _read(self) -> bool:
        """Read what has arrived, and return whether anything did."""
        try:
            data = self._connection.recv(1 << 18)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._fail()
            return False
        self._data += data
        while len(self._data) >= HEAD.size:
            kind, spent, size = HEAD.unpack_from(self._data)
            if len(self._data) < HEAD.size + size:
                break
            self._take(kind, 1e-6 * spent, bytes(self._data[HEAD.size : HEAD.size + size]))
            del self._data[: HEAD.size + size]
        return True

    def _take(self, kind: bytes, spent: float, body: bytes) -> None:
        self._due -= 1
        self.pace = 0.75 * self.pace + 0.25 * spent if self.pace else spent
        if kind == b"E":
            said = f": {show(body, 200)}" if body else ""
            self._fail(f"{self._problem}{said}")
        elif kind == b"G":
            self.text = body.decode()
        elif kind == b"F":
            self.barred = None
        else:
            self.barred = np.unpackbits(np.frombuffer(body, np.uint8)).view(np.bool_)

    def _fail(self, why: str = "") -> None:
        self.error = self.error or why or f"{self._problem}: it takes too long or too much memory"

    def close(self) -> None:
        """End the process."""
        self._fail("closed")
        self._connection.close()

    def __enter__(self) -> MaskProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_SCHEMAS = GrammarHost("")


@lru_cache(maxsize=128)  # an agent sends one for each tool
def convert_schema(schema: str) -> str:
    """Convert a JSON schema to GBNF with llama-cpp-python's converter in a separate process. Raises InputError."""
    with _SCHEMAS.ask({"schema": schema}, "the JSON schema cannot be used") as process:
        process.begun("make it simpler")
        return process.text


class MaskHook(internals.CustomSampler):  # type: ignore[misc]  # llama_cpp is untyped
    """A sampler that applies the masks of a grammar's process. patience: seconds that a row waits for its mask."""

    def __init__(self, process: MaskProcess, patience: float | None = None) -> None:
        super().__init__(self._bar)
        self._accept_ref = llama_cpp.llama_sampler_i_accept(self._extend)
        self.sampler.iface.contents.accept = self._accept_ref
        self.process = process
        self._patience = _ROW_S if patience is None else patience

    @property
    def error(self) -> InputError | None:
        """Why the answer cannot go on, if it cannot."""
        why = self.process.error
        return InputError(why, SIMPLER) if why else None

    def _extend(self, _sampler: Any, token: int) -> None:
        if not self.process.error:
            self.process.accept(token)

    def _bar(self, array: Any) -> None:
        process = self.process
        candidates = read_candidates(array)
        if not process.wait(self._patience):
            process._fail()  # noqa: SLF001 - its own
        if process.error:
            candidates["logit"] = -np.inf  # no token is chosen, which the caller notices
        elif process.barred is not None:
            candidates["logit"][process.barred[candidates["id"]]] = -np.inf


def read_candidates(array: Any) -> npt.NDArray[Any]:
    """Return a writable view of the candidates of a `llama_token_data_array`."""
    size = array.contents.size
    block = (llama_cpp.llama_token_data * size).from_address(
        ctypes.addressof(array.contents.data.contents)
    )
    return np.frombuffer(block, dtype=CANDIDATES)


def wait_all(processes: Iterable[MaskProcess], seconds: float) -> None:
    """Wait until all processes are ready, at most `seconds`."""
    end = monotonic() + seconds
    while waited := [process for process in processes if not process.ready]:
        left = end - monotonic()
        if left <= 0 or not select.select(waited, [], [], left)[0]:
            return
