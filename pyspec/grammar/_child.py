"""Runs grammars outside the process that decodes: one child process loads the vocabulary, and a fork of it runs each grammar.

    _child.py masks PATH OVERRIDES_HEX

Standard input is a socket. Each byte on it carries a descriptor, the socket of one grammar; a fork serves that until it is
closed. First the client sends a line of JSON, {"grammar", "root", "trigger"}, and receives the mask of the first token. Then it
sends each accepted token as an int32, and receives the mask of the next. Or it sends {"schema"}, and receives its grammar. PATH
is empty if there will be only schemas. A reply is a head (`HEAD`: kind, microseconds of work, size of the body) and a body. Kind
M: a bit per token, 1 if it is barred. Kind F: empty, no token is barred. Kind G: a grammar. Kind E: the reason of a failure.

A fork ends itself if one step or all together take too much processor time, or memory runs out: how busy the machine is does
not count. Run by path; imports no pyspec.
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
from functools import lru_cache
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

OTHER = Path(__file__).parents[1] / "store" / "_child.py"

HEAD = struct.Struct("<cII")

PARSE_S, STEP_S = 2.0, 1.0
"""Processor time for the first mask, and for each further one."""

FIRST_S, MEAN_S = 10.0, 0.25
"""Processor time for all steps together: the first, plus the second for each step."""

SLOW_S = 0.25
"""After a step longer than this, the process lowers its own priority."""

MOST_BYTES = 1 << 20
"""Longest grammar, bytes."""

ROOM = 512 << 20
"""Memory that a grammar may take, bytes."""

CANDIDATES = np.dtype([("id", np.intc), ("logit", np.single), ("p", np.single)], align=True)
"""The layout of `llama_token_data`."""


class Grammar:
    """A grammar in llama.cpp, and the tokens it allows."""

    def __init__(self, lc: Any, vocab: Any, asked: dict[str, Any]) -> None:
        self._lc = lc
        self._all = np.zeros(lc.llama_vocab_n_tokens(vocab), dtype=CANDIDATES)
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
        """Continue the text with this token."""
        self._lc.llama_sampler_accept(self._sampler, token)

    def barred(self) -> Any:
        """Return which tokens may not come next, as [n_vocab] booleans."""
        candidates = self._all.copy()
        pointer = candidates.ctypes.data_as(ctypes.POINTER(self._lc.llama_token_data))
        array = self._lc.llama_token_data_array(
            data=pointer, size=len(candidates), selected=-1, sorted=False
        )
        self._lc.llama_sampler_apply(self._sampler, ctypes.byref(array))
        return candidates["logit"] == -np.inf


class Patience:
    """Has the system end this process if one step, or all together, take too much processor time."""

    def __init__(self) -> None:
        self._start = 0.0
        self._left = FIRST_S
        # the first step may take long, so a thread lowers the priority during it; C code does not block threads
        self._aside = threading.Timer(SLOW_S, os.setpriority, (os.PRIO_PROCESS, os.getpid(), 10))
        self._aside.daemon = True
        self._aside.start()

    def begin(self, most: float) -> None:
        """Begin a step that may take `most` seconds of a processor."""
        self._left += MEAN_S
        self._start = process_time()
        signal.setitimer(signal.ITIMER_PROF, max(1e-3, min(most, self._left)))

    def end(self) -> int:
        """End the step and return its processor time in microseconds."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._aside.cancel()
        spent = process_time() - self._start
        self._left -= spent
        if spent > SLOW_S:
            os.nice(10)
        return int(1e6 * spent)


def serve(lc: Any, vocab: Any, connection: socket.socket) -> None:
    """Serve one grammar or one schema until the client is done."""
    stream = connection.makefile("rwb")
    asked = json.loads(stream.readline())
    patience = Patience()
    patience.begin(PARSE_S)
    if "schema" in asked:
        kind, body = convert(asked["schema"])
        reply(stream, kind, patience.end(), body)
    else:
        serve_masks(lc, vocab, asked, stream, patience)


@lru_cache(maxsize=1)
def schema_converter() -> Any:
    """Return llama-cpp-python's converter of JSON schemas, in a copy of its module that writes repetitions as `repeated` does.

    Its own nest: a text of at most 200 characters has 200 brackets in each other, which is deeper than a grammar may be.
    """
    spec: Any = find_spec("llama_cpp.llama_grammar")
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["_build_repetition"] = repeated
    return module.json_schema_to_gbnf


def repeated(
    item: str,
    least: int,
    most: int | None,
    separator_rule: str | None = None,
    item_rule_is_literal: bool = False,  # noqa: ARG001 - as the converter calls it
) -> str:
    """Return the GBNF of an item that comes so many times, with a separator between them if there is one."""
    if most is not None and most < max(least, 1):
        most = least
    if most == 0:
        return ""
    if not separator_rule:
        return _times(item, least, most)
    others = f"({separator_rule} {item})"
    rest = _times(others, max(least - 1, 0), None if most is None else most - 1)
    return f"{item} {rest}".rstrip() if least else f"({item} {rest})?".replace(" )", ")")


def _times(item: str, least: int, most: int | None) -> str:
    if most == 0:
        return ""
    short = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
    bounds = f"{{{least},{'' if most is None else most}}}"
    return item + short.get((least, most), bounds)


def convert(schema: str) -> tuple[bytes, bytes]:
    """Return the reply to a schema: its grammar, or why there is none."""
    try:
        text = schema_converter()(schema).encode()
    except Exception as error:  # noqa: BLE001 - an untrusted schema may break the converter in any way
        return b"E", f"{type(error).__name__}: {str(error)[:200]}".encode(errors="replace")
    return (b"G", text) if len(text) <= MOST_BYTES else (b"E", b"its grammar is too long")


def serve_masks(lc: Any, vocab: Any, asked: Any, stream: Any, patience: Patience) -> None:
    """Serve the masks of one grammar."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process lives
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
    """Load the vocabulary, then fork for each socket received, until the parent is gone."""
    control = socket.socket(fileno=os.dup(0))
    other = runpy.run_path(str(OTHER))
    lc = other["bindings"]()
    other["errors_of"](lc)
    model = load(lc, path, bytes.fromhex(overrides)) if path else None
    vocab = lc.llama_model_get_vocab(model) if model else None
    if path and not model:
        return
    if not path:
        schema_converter()  # forks have it then
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks are not waited for
    # signals are for the parent, which may have answers to finish
    for number in (signal.SIGINT, signal.SIGTERM):
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
    """Load a model without its weights; null on failure. overrides: an array of llama.cpp's structs, or empty."""
    lc.llama_backend_init()
    params = lc.llama_model_default_params()
    params.vocab_only, params.n_gpu_layers, params.use_extra_bufts = True, 0, False
    if overrides:
        kind = lc.llama_model_kv_override
        count = len(overrides) // ctypes.sizeof(kind)
        params.kv_overrides = (kind * count).from_buffer_copy(overrides)
    return lc.llama_model_load_from_file(os.fsencode(path), params)


def begin(other: dict[str, Any], lc: Any, vocab: Any, handle: int) -> None:
    """Serve one grammar in this fork, then end the fork."""
    status = 1
    try:
        pages = Path("/proc/self/statm")
        if pages.exists():  # other systems do not tell the memory in use
            used = int(pages.read_text("ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
            other["limit"](AS=used + ROOM)
        with socket.socket(fileno=handle) as connection:
            serve(lc, vocab, connection)
        status = 0
    except (OSError, ValueError, MemoryError):
        pass  # the client sees that the fork has ended
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[2:])
