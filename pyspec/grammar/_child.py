"""Runs grammars for a process that must not die of them: one process has the vocabulary, and a fork of it each grammar.

    _child.py masks PATH OVERRIDES_HEX

Standard input is a socket. With each byte on it comes a descriptor, the socket of one grammar; a fork serves that until it is
closed. First the other side sends a line of JSON, {"grammar", "root", "trigger"}, and is told which tokens may come
first; then it sends accepted tokens, an int32 each, and is told after each which may come next. Or it sends {"schema"}, and is
told the grammar of that. PATH is empty where only schemas come. A reply is a head (`HEAD`: kind, microseconds of work, bytes
that follow) and a body: of kind M a bit a token, 1 where it is barred, of kind F nothing, since no token is barred, of kind G
a grammar, and of kind E why there is none of these.

A fork ends itself where a step takes too long, all of them together do, or memory runs out. Run by path; imports no pyspec.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import socket
import struct
import sys
import tempfile
import threading
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

OTHER = Path(__file__).parents[1] / "store" / "_child.py"

HEAD = struct.Struct("<cII")

PARSE_S, STEP_S = 2.0, 1.0
"""Until the first mask, and from one to the next."""

FIRST_S, MEAN_S = 10.0, 0.25
"""All steps together may take the first and as often the second."""

SLOW_S = 0.25
"""A step that takes longer is no ordinary one: from then on others go before this process."""

MOST_BYTES = 1 << 20
"""Of a grammar."""

ROOM = 512 << 20
"""Bytes that a grammar may take."""

_CANDIDATES = np.dtype([("id", np.intc), ("logit", np.single), ("p", np.single)], align=True)


class Grammar:
    """One grammar in llama.cpp, and which tokens it allows."""

    def __init__(self, lc: Any, vocab: Any, asked: dict[str, Any]) -> None:
        self._lc = lc
        self._all = np.zeros(lc.llama_vocab_n_tokens(vocab), dtype=_CANDIDATES)
        self._all["id"] = np.arange(len(self._all))
        text, root = asked["grammar"].encode(), asked["root"].encode()
        if asked["trigger"] is None:
            self._sampler = lc.llama_sampler_init_grammar(vocab, text, root)
        else:
            patterns = (ctypes.c_char_p * 1)(asked["trigger"].encode())
            self._sampler = lc.llama_sampler_init_grammar_lazy_patterns(
                vocab, text, root, patterns, 1, (lc.llama_token * 1)(), 0
            )

    def __bool__(self) -> bool:
        return bool(self._sampler)

    def accept(self, token: int) -> None:
        """The text goes on with this token."""
        self._lc.llama_sampler_accept(self._sampler, token)

    def barred(self) -> Any:
        """Which tokens may not come next, [n_vocab] booleans."""
        candidates = self._all.copy()
        pointer = candidates.ctypes.data_as(ctypes.POINTER(self._lc.llama_token_data))
        array = self._lc.llama_token_data_array(
            data=pointer, size=len(candidates), selected=-1, sorted=False
        )
        self._lc.llama_sampler_apply(self._sampler, ctypes.byref(array))
        return candidates["logit"] == -np.inf


class Patience:
    """Lets the system end this process where a step of work, or all of it, takes too long."""

    def __init__(self) -> None:
        self._start = self.spent = 0.0
        self._left = FIRST_S
        # the first step, which may be anything, gives way while it is at work; C does not keep a thread from that
        self._aside = threading.Timer(SLOW_S, os.setpriority, (os.PRIO_PROCESS, os.getpid(), 10))
        self._aside.daemon = True
        self._aside.start()

    def begin(self, most: float) -> None:
        """A step begins that may take so many seconds."""
        self._left += MEAN_S
        self._start = perf_counter()
        signal.setitimer(signal.ITIMER_REAL, max(1e-3, min(most, self._left)))

    def end(self) -> int:
        """It has ended; returns the microseconds that it took."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._aside.cancel()
        spent = perf_counter() - self._start
        self._left -= spent
        if spent > SLOW_S:
            os.nice(10)
        return int(1e6 * spent)


def serve(lc: Any, vocab: Any, connection: socket.socket) -> None:
    """One grammar or one schema, until nobody asks any more."""
    stream = connection.makefile("rwb")
    asked = json.loads(stream.readline())
    patience = Patience()
    patience.begin(PARSE_S)
    if "schema" in asked:
        kind, body = convert(asked["schema"])
        reply(stream, kind, patience.end(), body)
    else:
        serve_masks(lc, vocab, asked, stream, patience)


def convert(schema: str) -> tuple[bytes, bytes]:
    """The reply to a schema: its grammar, or why it has none."""
    converter = import_module("llama_cpp.llama_grammar").json_schema_to_gbnf
    try:
        text = converter(schema).encode()
    except Exception as error:  # noqa: BLE001 - whatever the converter stumbles over, the schema is somebody's
        return b"E", f"{type(error).__name__}: {str(error)[:200]}".encode(errors="replace")
    return (b"G", text) if len(text) <= MOST_BYTES else (b"E", b"its grammar is too long")


def serve_masks(lc: Any, vocab: Any, asked: Any, stream: Any, patience: Patience) -> None:
    """One grammar's masks."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as the process lives
    os.dup2(errors.fileno(), 2)
    grammar = Grammar(lc, vocab, asked)
    if not grammar:
        errors.seek(0)
        said = errors.read(400).partition(b"error parsing grammar: ")[2].strip().partition(b"\n")[0]
        reply(stream, b"E", patience.end(), said)
        return
    while True:
        barred = grammar.barred()
        free = not barred.any()
        body = b"" if free else np.packbits(barred).tobytes()
        reply(stream, b"F" if free else b"M", patience.end(), body)
        data = stream.read(4)
        if len(data) < 4:
            return
        patience.begin(STEP_S)
        grammar.accept(int.from_bytes(data, "little"))


def reply(stream: Any, kind: bytes, spent: int, body: bytes) -> None:
    """Send one reply."""
    stream.write(HEAD.pack(kind, min(spent, 2**32 - 1), len(body)) + body)
    stream.flush()


def main(path: str, overrides: str) -> None:
    """Load the vocabulary, then fork for each socket that comes, until the other side has gone."""
    control = socket.socket(fileno=os.dup(0))
    other = runpy.run_path(str(OTHER))
    lc = other["bindings"]()
    other["errors_of"](lc)
    model = load(lc, path, bytes.fromhex(overrides)) if path else None
    vocab = lc.llama_model_get_vocab(model) if model else None
    if path and not model:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # meant for the process that asks, which may have answers to end
        signal.signal(number, signal.SIG_IGN)
    while True:
        data, handles, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        if os.fork() == 0:
            control.close()
            begin(other, lc, vocab, handles[0])
        os.close(handles[0])


def load(lc: Any, path: str, overrides: bytes) -> Any:
    """The model without its weights, or null; overrides: an array of llama.cpp's structs, or nothing."""
    lc.llama_backend_init()
    params = lc.llama_model_default_params()
    params.vocab_only, params.n_gpu_layers, params.use_extra_bufts = True, 0, False
    if overrides:
        kind = lc.llama_model_kv_override
        count = len(overrides) // ctypes.sizeof(kind)
        params.kv_overrides = (kind * count).from_buffer_copy(overrides)
    return lc.llama_model_load_from_file(os.fsencode(path), params)


def begin(other: dict[str, Any], lc: Any, vocab: Any, handle: int) -> None:
    """Serve one grammar in this fork, and end it."""
    status = 1
    try:
        pages = Path("/proc/self/statm")
        if pages.exists():  # other systems do not say what is in use
            used = int(pages.read_text("ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
            other["limit"](AS=used + ROOM)
        with socket.socket(fileno=handle) as connection:
            serve(lc, vocab, connection)
        status = 0
    except (OSError, ValueError, MemoryError):
        pass  # the other side sees that it has ended
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[2:])
